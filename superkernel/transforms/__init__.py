"""Passes from Graph to Graph. `STANDARD` is the list that the compiler runs, in order; each pass has its own file.

Order: expressions are made canonical first (folding, identities), patterns are recognised while their parts still stand
as exporters wrote them, then what is left of gemm and batch_norm is lowered and folded into weights, and transposed
convolutions become plain ones, of the taps that meet an image.
"""

from __future__ import annotations

from superkernel.ir.graph import Graph
from superkernel.transforms.activations import FuseActivations
from superkernel.transforms.affine import MergeAffine
from superkernel.transforms.attention import FuseAttention
from superkernel.transforms.base import Pass
from superkernel.transforms.cleanup import MergeReindexing, RemoveIdentities
from superkernel.transforms.cse import ShareSubexpressions
from superkernel.transforms.dead import RemoveDead
from superkernel.transforms.editor import kept_editors
from superkernel.transforms.fold import FoldConstants
from superkernel.transforms.gathers import SliceGathers
from superkernel.transforms.linear import FoldIntoWeights, LowerBatchNorm, LowerGemm
from superkernel.transforms.norms import FuseNorms
from superkernel.transforms.quantised import FoldDequantised, FuseQuantised, LowerIntegerConv
from superkernel.transforms.rotary import FuseRotary
from superkernel.transforms.signed import SignedIntegers
from superkernel.transforms.steps import CountSteps
from superkernel.transforms.taps import DropPaddedTaps
from superkernel.transforms.transposed import ConvolveByPhases

STANDARD: tuple[Pass, ...] = (
    RemoveDead(),
    FoldConstants(),
    RemoveIdentities(),
    SliceGathers(),
    ShareSubexpressions(),
    FuseActivations(),
    FuseNorms(),
    FuseRotary(),
    FuseAttention(),
    LowerGemm(),
    LowerBatchNorm(),
    MergeAffine(),
    FoldIntoWeights(),
    ConvolveByPhases(),
    DropPaddedTaps(),
    MergeReindexing(),
    RemoveIdentities(),
    FoldConstants(),
    ShareSubexpressions(),
    RemoveDead(),
)


def simplify(graph: Graph, quantised: bool = False, signed: bool = False) -> Graph:
    """The graph after the standard passes. `quantised`: products of dequantised values become products of integers;
    `signed`: of signed ones without zero points."""
    first: tuple[Pass, ...] = (FuseQuantised(),) if quantised else (LowerIntegerConv(),)
    first = (*first, SignedIntegers()) if quantised and signed else first
    last: tuple[Pass, ...] = (CountSteps(),) if quantised else ()
    idle: set[Pass] = set()  # those that find nothing to do in the graph as it is
    with kept_editors():
        for step in (*first, FoldDequantised(), *STANDARD, *last):
            before = graph
            if step not in idle:
                graph = step.apply(before)
            idle = idle | {step} if graph is before else set()
    return graph
