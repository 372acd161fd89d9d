"""Graph passes: text before and after, equal results on random inputs, and what each pass must leave alone.

The texts are in `transforms/<case>.txt`; `SK_BLESS=1 pytest tests/ut/test_transforms.py` rewrites them, for review.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from models import decode_step, mlp, transformer
from seeds import seeds

from superkernel.builder import GraphBuilder, Tensor
from superkernel.core.errors import GraphError
from superkernel.ir.graph import Graph, Node
from superkernel.reference import evaluate
from superkernel.transforms import STANDARD, simplify
from superkernel.transforms.activations import FuseActivations
from superkernel.transforms.affine import MergeAffine
from superkernel.transforms.attention import FuseAttention
from superkernel.transforms.base import Pass, PatternPass
from superkernel.transforms.cleanup import MergeReindexing, RemoveIdentities
from superkernel.transforms.cse import ShareSubexpressions
from superkernel.transforms.dead import RemoveDead
from superkernel.transforms.editor import Editor
from superkernel.transforms.fold import FoldConstants
from superkernel.transforms.gathers import SliceGathers
from superkernel.transforms.linear import FoldIntoWeights, LowerBatchNorm, LowerGemm
from superkernel.transforms.norms import FuseNorms
from superkernel.transforms.pattern import Match
from superkernel.transforms.quantised import FoldDequantised, LowerIntegerConv

TEXTS = Path(__file__).with_name("transforms")
RNG = np.random.default_rng(7)


def const(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    step: Pass
    build: Callable[[GraphBuilder], object]
    gone: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    rtol: float = 1e-5


# -- what the passes do


def fold(b: GraphBuilder) -> None:
    shape = b.reduce_sum(b.constant(np.arange(6, dtype=np.int64), name="c"), axes=(0,), keepdims=True)
    b.output(b.input("x", (2,), "i64") + b.mul(shape, 2), name="y")


def dead(b: GraphBuilder) -> None:
    x = b.input("x", (2,))
    unused = b.constant(np.ones(2, np.float32), name="unused")
    b.exp(b.relu(x) + unused)
    left, _ = b.split(b.neg(x), axis=0, sizes=(1, 1))
    b.output(left, name="y")


def identities(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3))
    y = b.identity(b.cast(b.reshape(b.exp(x), shape=(2, -1)), dtype="f32"))
    y = b.transpose(b.expand(y, shape=(1, 3)), perm=(0, 1)) * 1.0
    y = b.pad(b.slice(y, starts=(0,), ends=(9,), axes=(1,)), pads=(0, 0, 0, 0))
    b.output(b.identity(y), name="y")
    b.output(b.identity(x), name="copy_of_input")


def reindexing(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, 4))
    y = b.reshape(b.reshape(x, shape=(6, 4)), shape=(3, 8))
    b.output(b.transpose(b.transpose(x, perm=(1, 2, 0)), perm=(2, 0, 1)) * 2.0, name="identity_in_two")
    b.output(b.transpose(b.transpose(x, perm=(1, 2, 0)), perm=(1, 0, 2)), name="one_transpose")
    b.output(b.transpose(b.reshape(x, shape=(2, 1, 12)), perm=(1, 0, 2)), name="only_a_reshape")
    b.output(y, name="y")


def matmul_flags(b: GraphBuilder) -> None:
    x, w = b.input("x", (2, 4, 3)), b.input("w", (5, 4))
    b.output(b.matmul(b.transpose(x, perm=(0, 2, 1)), b.transpose(w)), name="y")


def share(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3))
    first, second = b.exp(x) + 1.0, b.exp(x) + 1.0
    b.output(first * second, name="y")
    s = b.state("s", np.zeros((2, 3), np.float32))
    b.update(s, b.exp(x))


def gemm(b: GraphBuilder) -> None:
    x, w, c = b.input("x", (3, 4)), b.constant(const(5, 4), name="w"), b.constant(const(5), name="c")
    b.output(b.gemm(x, w, c, trans_b=True, alpha=0.5, beta=2.0), name="scaled")
    b.output(b.gemm(x, w, c, trans_b=True), name="plain")
    b.output(b.gemm(x, b.input("v", (4, 2)), alpha=3.0), name="variable")
    b.output(b.gemm(x, w, c, trans_b=True, beta=0.0), name="no_c")


def batch_norm(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, 4, 4))
    b.output(b.batch_norm(x, const(3), const(3), const(3), np.abs(const(3))), name="y")


def affine(b: GraphBuilder) -> None:
    x = b.conv(b.input("x", (2, 3, 4)), b.constant(const(3, 3, 1), name="w"))
    y = ((x * const(3, 1) + const(3, 1)) * const(3, 1) + const(3, 1)) * 2.0
    b.output(y, name="y")


def gathers(b: GraphBuilder) -> None:
    x = b.input("x", (3, 8, 4))
    b.output(b.gather(x, b.constant(np.int64(0)), axis=1), name="first")
    b.output(b.gather(x, b.constant(np.int64(-1)), axis=0), name="last")
    b.output(b.gather(x, b.constant(np.array([1, 3, 5])), axis=1), name="spaced")
    b.output(b.gather(x, b.constant(np.array([2, 1, 0])), axis=2), name="backwards")
    b.output(b.gather(x, b.constant(np.array([[0, 1], [2, 3]])), axis=1), name="square")


def conv_weights(b: GraphBuilder) -> None:
    x = b.input("x", (1, 3, 5, 5))
    y = b.conv(x, b.constant(const(4, 3, 3, 3), name="w"))
    b.output(b.relu((y * const(1, 4, 1, 1) + const(4, 1, 1)) / const(4, 1, 1) - 0.5), name="y")
    z = b.conv(x, b.constant(const(2, 3, 1, 1), name="v"), b.constant(const(2), name="bias"))
    b.output(z + const(1, 2, 1, 1), name="z")


def matmul_weights(b: GraphBuilder) -> None:
    x = b.input("x", (3, 4))
    b.output(b.relu((x @ b.constant(const(4, 5), name="w")) * const(5) + const(5)), name="y")
    b.output(b.matmul(x, b.constant(const(6, 4), name="v"), trans_b=True) / const(1, 6), name="z")


def gelus(b: GraphBuilder) -> None:
    x = b.input("x", (2, 9))
    b.output(x * 0.5 * (b.erf(x / sqrt(2.0)) + 1.0), name="exporter")
    b.output(x * (0.5 * (1.0 + b.erf(x * sqrt(0.5)))), name="rewritten")
    b.output(x * (1.0 + b.erf(x / 1.4142135)) / 2.0, name="halved")
    b.output(0.5 * x * (1.0 + b.tanh(sqrt(2 / pi) * (x + 0.044715 * b.pow(x, 3.0)))), name="tanh_pow")
    b.output(0.5 * x * (1.0 + b.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))), name="tanh_fast")
    b.output(x * 0.5 * (1.0 + b.tanh(0.79788 * (x + 0.044715 * (x * x * x)))), name="tanh_cube")


def activations(b: GraphBuilder) -> None:
    x = b.input("x", (2, 9))
    b.output(b.sigmoid(x) * x, name="silu")
    b.output(x * b.tanh(b.softplus(x)), name="mish")
    b.output(x * b.hard_sigmoid(x, alpha=1 / 6, beta=0.5), name="hard_swish")
    b.output(x * b.clip(x + 3.0, 0.0, 6.0) / 6.0, name="relu6_form")


def norms(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, 8))
    d = x - x.mean(2, keepdims=True)
    n = d / b.sqrt(b.pow(d, 2.0).mean(-1, keepdims=True) + 1e-5)
    b.output(n * const(8) + const(1, 8), name="layer_norm")
    e = b.exp(x)
    d = e - e.mean(1, 2, keepdims=True)
    b.output(d * b.rsqrt((d * d).mean(1, 2, keepdims=True) + 1e-6), name="two_axes")
    z = b.tanh(x)
    b.output(const(8) * (z * b.reciprocal(b.sqrt(b.square(z).mean(-1, keepdims=True) + 1e-6))), name="rms_norm")


def heads(b: GraphBuilder, name: str, tokens: int = 5) -> Tensor:
    return b.input(name, (2, tokens, 3, 4)).transpose(0, 2, 1, 3)


def attention(b: GraphBuilder) -> None:
    q, v = heads(b, "q"), heads(b, "v", 6)
    k = b.input("k", (2, 6, 3, 4)).transpose(0, 2, 3, 1)
    mask = b.input("mask", (2, 1, 5, 6))
    b.output(b.softmax(q @ k / 2.0 + mask) @ v, name="bert")
    b.output(b.softmax(b.matmul(q * 0.7, v * 0.7, trans_b=True)) @ v, name="torch")
    keep = b.input("keep", (5, 6), "bool")
    b.output(b.softmax(b.where(keep, q @ k, -1e9)) @ v, name="filled")
    p = b.softmax(b.where(keep, q @ k, float("-inf")))
    b.output(b.where(b.isnan(p), 0.0, p) @ v, name="guarded")
    counts = b.input("counts", (6,), "bool")
    b.output(b.softmax(b.where(counts, q @ k / 2.0 + mask, float("-inf"))) @ v, name="added, then filled")


def grouped_queries(b: GraphBuilder) -> None:
    q, caches = b.input("q", (2, 6, 1, 4)), [b.input(name, (2, 3, 5, 4)) for name in "kv"]
    k, v = (c.reshape(2, 3, 1, 5, 4) for c in caches)
    k, v = (b.expand(c, shape=(2, 3, 2, 5, 4)).reshape(2, 6, 5, 4) for c in (k, v))
    b.output(b.softmax((q @ k.T) / 2.0 + b.input("mask", (2, 1, 1, 5))) @ v, name="y")


CASES = {
    "fold": Case(FoldConstants(), fold, gone=("reduce_sum", "mul")),
    "dead": Case(RemoveDead(), dead, gone=("exp", "relu")),
    "identities": Case(RemoveIdentities(), identities, gone=("cast", "reshape", "expand", "slice", "pad", "mul")),
    "reindexing": Case(MergeReindexing(), reindexing),
    "matmul_flags": Case(MergeReindexing(), matmul_flags, gone=("transpose",)),
    "share": Case(ShareSubexpressions(), share),
    "gemm": Case(LowerGemm(), gemm, gone=("gemm",), made=("matmul", "mul", "add")),
    "batch_norm": Case(LowerBatchNorm(), batch_norm, gone=("batch_norm",), made=("mul", "add")),
    "affine": Case(MergeAffine(), affine),
    "gathers": Case(SliceGathers(), gathers, gone=("gather",), made=("slice",)),
    "conv_weights": Case(FoldIntoWeights(), conv_weights, gone=("mul", "add", "sub", "div"), rtol=1e-4),
    "matmul_weights": Case(FoldIntoWeights(), matmul_weights, gone=("mul", "div"), rtol=1e-4),
    "gelus": Case(FuseActivations(), gelus, gone=("erf", "tanh", "mul", "add", "div"), made=("gelu",), rtol=1e-3),
    "activations": Case(FuseActivations(), activations, gone=("mul",), made=("silu", "mish", "hard_swish")),
    "norms": Case(FuseNorms(), norms, gone=("reduce_mean", "add", "mul"), made=("layer_norm", "rms_norm")),
    "grouped_queries": Case(FuseAttention(), grouped_queries, gone=("expand", "softmax"), made=("attention",)),
    "attention": Case(FuseAttention(), attention, gone=("softmax", "matmul"), made=("attention",)),
}


def build(make: Callable[[GraphBuilder], object]) -> Graph:
    global RNG
    RNG = np.random.default_rng(7)
    b = GraphBuilder("case")
    make(b)
    return b.graph()


def random_inputs(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, kind in graph.inputs.items():
        if kind.dtype.is_float:
            found[name] = rng.standard_normal(kind.shape).astype(kind.dtype.numpy)
        else:
            found[name] = rng.integers(0, 2, kind.shape).astype(kind.dtype.numpy)
    return found


def assert_equal(before: Graph, after: Graph, rtol: float) -> None:
    assert after.outputs == before.outputs
    assert after.inputs == before.inputs
    assert after.updates.keys() == before.updates.keys()
    for seed in range(3):
        inputs = random_inputs(before, seed)
        wanted = evaluate(before, inputs, keep=tuple(before.updates.values()))
        found = evaluate(after, inputs, keep=tuple(after.updates.values()))
        pairs = [(o, o) for o in before.outputs] + [(before.updates[s], after.updates[s]) for s in before.updates]
        for mine, theirs in pairs:
            np.testing.assert_allclose(found[theirs], wanted[mine], rtol=rtol, atol=rtol * 1e-1, err_msg=mine)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("name", CASES)
def test_text(name: str) -> None:
    case = CASES[name]
    before = build(case.build)
    name_of_pass = re.sub(r"(?<!^)(?=[A-Z])", "-", type(case.step).__name__).lower()
    text = f"{name_of_pass}\n\n{before}\n\n=>\n\n{case.step.apply(before)}\n"
    path = TEXTS / f"{name}.txt"
    if os.environ.get("SK_BLESS"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("name", CASES)
def test_equivalence(name: str) -> None:
    case = CASES[name]
    before = build(case.build)
    after = case.step.apply(before)
    left = set(ops(after))
    assert not left & set(case.gone)
    assert left >= set(case.made)
    assert_equal(before, after, case.rtol)


@pytest.mark.parametrize("fill", [-1e4, -65504.0, -1e9])
@pytest.mark.parametrize("swapped", [False, True])
def test_rows_without_visible_keys_average_as_written(fill: float, swapped: bool) -> None:
    """where(keep, scores, fill) makes all scores of such a row equal; what is added must do the same."""
    b = GraphBuilder("masked")
    q, k, v = (b.input(name, (1, 2, 4, 8)) for name in "qkv")
    scores = b.matmul(q, k, trans_b=True)
    keep = b.input("keep", (1, 1, 4, 4), "bool")
    chosen = b.where(b.logical_not(keep), fill, scores) if swapped else b.where(keep, scores, fill)
    b.output(b.softmax(chosen) @ v, name="y")
    graph = b.graph()
    fused = FuseAttention().apply(graph)
    assert "attention" in ops(fused)
    inputs = {**random_inputs(graph, 3), "keep": np.zeros((1, 1, 4, 4), bool)}
    np.testing.assert_allclose(evaluate(fused, inputs)["y"], evaluate(graph, inputs)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("known", "fused"), [(np.tri(4, dtype=bool), True), (np.eye(4, k=1, dtype=bool), False)])
def test_f16_needs_a_visible_key_in_every_row(known: np.ndarray, fused: bool) -> None:
    """f16 has no number that every score vanishes behind."""
    b = GraphBuilder("masked")
    q, k, v = (b.input(name, (1, 2, 4, 8), "f16") for name in "qkv")
    b.output(b.softmax(b.where(b.constant(known), b.matmul(q, k, trans_b=True), -65504.0)) @ v, name="y")
    assert ("attention" in ops(FuseAttention().apply(b.graph()))) is fused


@pytest.mark.parametrize(
    ("dtype", "weight", "factor", "folds"),
    [("f32", 1e20, 1e25, False), ("f16", 1e-3, 1e-4, False), ("f16", 100.0, 1e4, False), ("f16", 1.0, 0.125, True)],
)
@pytest.mark.parametrize("op", ["conv", "matmul"])
def test_factors_that_the_weights_cannot_hold_stay_outside(
    op: str, dtype: str, weight: float, factor: float, folds: bool
) -> None:
    b = GraphBuilder("scaled")
    if op == "conv":
        product = b.conv(b.input("x", (1, 3, 4, 4), dtype), b.constant(np.full((2, 3, 1, 1), weight), dtype))
    else:
        product = b.matmul(b.input("x", (2, 3), dtype), b.constant(np.full((3, 2), weight), dtype))
    b.output(product * factor, name="y")
    assert ("mul" not in ops(FoldIntoWeights().apply(b.graph()))) is folds


@pytest.mark.parametrize(("dtype", "factor", "merges"), [("f32", 1e30, False), ("f16", 1e3, False), ("f16", 4.0, True)])
def test_factors_whose_product_overflows_stay_apart(dtype: str, factor: float, merges: bool) -> None:
    b = GraphBuilder("scaled")
    b.output(b.input("x", (2, 3), dtype) * factor * factor, name="y")
    assert (ops(MergeAffine().apply(b.graph())) == ["mul"]) is merges


@pytest.mark.parametrize("name", CASES)
def test_second_application_changes_nothing(name: str) -> None:
    case = CASES[name]
    once = case.step.apply(build(case.build))
    assert case.step.apply(once) is once


@pytest.mark.parametrize("name", CASES)
def test_standard_passes_keep_the_meaning(name: str) -> None:
    before = build(CASES[name].build)
    assert_equal(before, simplify(before), 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_patterns_match_only_where_they_say_that_they_begin(name: str) -> None:
    editor = Editor(build(CASES[name].build))
    passes = [step for step in STANDARD if isinstance(step, PatternPass)]
    assert len(passes) == 2
    for pattern, _ in (rule for step in passes for rule in step.rules):
        begins = {node.name for node in editor.nodes.values() if pattern.begins_at(node.op)}
        ways = ((node.name, pattern.find(editor, node.outputs[0], Match())) for node in editor.nodes.values())
        assert {node for node, found in ways if any(True for _ in found)} <= begins


# -- what they must leave alone


def used_inside(b: GraphBuilder) -> None:
    x = b.input("x", (2, 8))
    gate = b.sigmoid(x)
    b.output(x * gate, name="y")
    b.output(gate, name="gate")


def gelu_with_other_constant(b: GraphBuilder) -> None:
    x = b.input("x", (2, 8))
    b.output(x * 0.5 * (b.erf(x / 1.5) + 1.0), name="y")


def gelu_with_almost_a_half(b: GraphBuilder) -> None:
    x = b.input("x", (2, 8))
    b.output(x * 0.5005 * (b.erf(x / sqrt(2.0)) + 1.0), name="y")


def gelu_of_two_values(b: GraphBuilder) -> None:
    x, z = b.input("x", (2, 8)), b.input("z", (2, 8))
    b.output(x * 0.5 * (b.erf(z / sqrt(2.0)) + 1.0), name="y")


def norm_over_a_middle_axis(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, 8))
    d = x - x.mean(1, keepdims=True)
    b.output(d / b.sqrt((d * d).mean(1, keepdims=True) + 1e-5), name="y")


def norm_with_another_numerator(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, 8))
    d = x - x.mean(2, keepdims=True)
    b.output(x / b.sqrt((d * d).mean(2, keepdims=True) + 1e-5), name="y")


def norm_whose_variance_is_an_output(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, 8))
    d = x - x.mean(2, keepdims=True)
    variance = (d * d).mean(2, keepdims=True)
    b.output(variance, name="variance")
    b.output(d / b.sqrt(variance + 1e-5), name="y")


def attention_with_probabilities(b: GraphBuilder) -> None:
    q, k, v = heads(b, "q"), heads(b, "k"), heads(b, "v")
    p = b.softmax(b.matmul(q, k, trans_b=True))
    b.output(p, name="p")
    b.output(p @ v, name="y")


def attention_over_another_axis(b: GraphBuilder) -> None:
    q, k, v = heads(b, "q"), heads(b, "k"), heads(b, "v")
    b.output(b.softmax(b.matmul(q, k, trans_b=True), axis=2) @ v, name="y")


def attention_of_a_mask_and_a_low_number(b: GraphBuilder) -> None:
    q, v, keep = heads(b, "q"), heads(b, "v", 6), b.input("keep", (6,), "bool")
    b.output(b.softmax(b.where(keep, b.matmul(q, v, trans_b=True) + b.input("mask", (5, 6)), -1e9)) @ v, name="y")


def attention_of_more_masks_than_scores(b: GraphBuilder) -> None:
    q, v, keep = heads(b, "q"), heads(b, "v", 6), b.input("keep", (2, 1, 5, 6), "bool")
    q, v = (b.slice(x, (0,), (1,), axes=(0,)) for x in (q, v))
    scores = b.where(keep, b.matmul(q, v, trans_b=True), float("-inf"))
    b.output(b.matmul(b.slice(b.softmax(scores), (0,), (1,), axes=(0,)), v), name="some")
    b.output(b.softmax(scores) @ v, name="all")


def attention_with_broadcast_heads(b: GraphBuilder) -> None:
    q, k, v = heads(b, "q"), b.input("k", (2, 1, 5, 4)), heads(b, "v")
    b.output(b.softmax(b.matmul(q, k, trans_b=True)) @ v, name="y")


def heads_repeated_one_after_the_other(b: GraphBuilder) -> None:
    """tile-like repetition: query head h reads head h % 3, which is no grouping of neighbours."""
    q, k, v = b.input("q", (2, 6, 1, 4)), b.input("k", (2, 3, 5, 4)), b.input("v", (2, 3, 5, 4))
    k, v = (b.expand(c.reshape(2, 1, 3, 5, 4), shape=(2, 2, 3, 5, 4)).reshape(2, 6, 5, 4) for c in (k, v))
    b.output(b.attention(q, k, v), name="y")


def shared_weights(b: GraphBuilder) -> None:
    x, w = b.input("x", (3, 4)), b.constant(const(4, 4), name="w")
    b.output((x @ w) * const(4), name="y")
    b.output(b.exp(x) @ w, name="z")


def factor_along_rows(b: GraphBuilder) -> None:
    b.output((b.input("x", (3, 4)) @ const(4, 5)) * const(3, 1), name="y")


def conv_read_twice(b: GraphBuilder) -> None:
    y = b.conv(b.input("x", (1, 3, 5, 5)), const(4, 3, 3, 3))
    b.output(y * const(4, 1, 1), name="y")
    b.output(b.exp(y), name="z")


def batch_norm_of_variables(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, 4))
    b.output(b.batch_norm(x, b.input("s", (3,)), const(3), const(3), np.ones(3, np.float32)), name="y")


def large_expand(b: GraphBuilder) -> None:
    b.output(b.input("x", (256, 512)) + b.expand(b.constant(const(512)), shape=(256, 512)), name="y")


def affine_that_would_grow(b: GraphBuilder) -> None:
    b.output(b.input("x", (16, 16)) * const(16, 1) * const(16), name="y")


def affine_of_a_plain_value(b: GraphBuilder) -> None:
    b.output((b.input("x", (4,)) + -1e7) * 3.0, name="y")


def gathers_that_are_no_slices(b: GraphBuilder) -> None:
    x = b.input("x", (3, 8))
    b.output(b.gather(x, b.constant(np.array([0, 1, 3])), axis=1), name="uneven")
    b.output(b.gather(x, b.constant(np.array([2, 2])), axis=1), name="repeated")
    b.output(b.gather(x, b.constant(np.array([6, 7, 8])), axis=1), name="beyond")
    b.output(b.gather(x, b.input("i", (2,), "i64"), axis=1), name="computed")


def affine_of_integers(b: GraphBuilder) -> None:
    b.output((b.input("x", (4,), "i32") + 3) * 5, name="y")


def equal_nodes_in_two_streams(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    with b.stream(0):
        left = b.exp(x)
    with b.stream(1):
        right = b.exp(x)
    b.output(left - right, name="y")


def reversal(b: GraphBuilder) -> None:
    x = b.input("x", (4, 4))
    y = b.slice(x, starts=(-1,), ends=(-9,), axes=(0,), steps=(-1,))
    y = b.pad(y, pads=(1, 0, -1, 0))
    b.output(b.transpose(y), name="y")


def widening_by_one(b: GraphBuilder) -> None:
    b.output(b.input("x", (1, 3)) * b.constant(np.ones((2, 1), np.float32)), name="y")
    b.output(b.input("z", (3,)) + 0.0, name="zero")


def transposed_batch(b: GraphBuilder) -> None:
    x, w = b.input("x", (2, 4, 3)), b.input("w", (2, 3, 5))
    b.output(b.matmul(b.transpose(x, perm=(1, 0, 2))[:2], w), name="y")


ALONE = [
    (FuseActivations(), used_inside),
    (FuseActivations(), gelu_with_other_constant),
    (FuseActivations(), gelu_with_almost_a_half),
    (FuseActivations(), gelu_of_two_values),
    (FuseNorms(), norm_over_a_middle_axis),
    (FuseNorms(), norm_with_another_numerator),
    (FuseNorms(), norm_whose_variance_is_an_output),
    (FuseAttention(), attention_with_probabilities),
    (FuseAttention(), attention_over_another_axis),
    (FuseAttention(), attention_with_broadcast_heads),
    (FuseAttention(), attention_of_a_mask_and_a_low_number),
    (FuseAttention(), attention_of_more_masks_than_scores),
    (FuseAttention(), heads_repeated_one_after_the_other),
    (FoldIntoWeights(), shared_weights),
    (FoldIntoWeights(), factor_along_rows),
    (FoldIntoWeights(), conv_read_twice),
    (LowerBatchNorm(), batch_norm_of_variables),
    (FoldConstants(), large_expand),
    (MergeAffine(), affine_that_would_grow),
    (MergeAffine(), affine_of_integers),
    (MergeAffine(), affine_of_a_plain_value),
    (SliceGathers(), gathers_that_are_no_slices),
    (ShareSubexpressions(), equal_nodes_in_two_streams),
    (RemoveIdentities(), reversal),
    (RemoveIdentities(), widening_by_one),
    (MergeReindexing(), transposed_batch),
    (LowerGemm(), matmul_flags),
    (RemoveDead(), share),
]


@pytest.mark.parametrize(("step", "make"), ALONE, ids=[f"{type(s).__name__}-{m.__name__}" for s, m in ALONE])
def test_left_alone(step: Pass, make: Callable[[GraphBuilder], object]) -> None:
    graph = build(make)
    assert step.apply(graph) is graph
    assert_equal(graph, simplify(graph), 1e-4)


# -- whole models and the editor


@pytest.mark.parametrize("make", [mlp, transformer, decode_step])
def test_models_keep_their_meaning(make: Callable[[], Graph]) -> None:
    graph = make()
    assert_equal(graph, simplify(graph), 1e-4)


def test_written_out_transformer_becomes_operators() -> None:
    """What an exporter makes of one encoder layer."""
    b = GraphBuilder()
    x = b.input("x", (1, 6, 8))
    parts = [(x @ const(8, 8) + const(8)).reshape(1, 6, 2, 4) for _ in range(3)]
    q, v = (p.transpose(0, 2, 1, 3) for p in (parts[0], parts[2]))
    scores = (q @ parts[1].transpose(0, 2, 3, 1)) / 2.0 + b.input("mask", (1, 1, 1, 6))
    mixed = (b.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(1, 6, 8)
    h = x + b.gemm(mixed.reshape(6, 8), const(8, 8), const(8)).reshape(1, 6, 8)
    d = h - h.mean(-1, keepdims=True)
    h = d / b.sqrt(b.pow(d, 2.0).mean(-1, keepdims=True) + 1e-12) * const(8) + const(8)
    u = h @ const(8, 16)
    b.output(h + (u * 0.5 * (b.erf(u / sqrt(2.0)) + 1.0)) @ const(16, 8), name="y")
    graph = b.graph()
    simple = simplify(graph)
    assert ops(simple).count("attention") == ops(simple).count("layer_norm") == ops(simple).count("gelu") == 1
    assert not {"softmax", "erf", "reduce_mean", "gemm", "sqrt", "pow"} & set(ops(simple))
    assert_equal(graph, simple, 1e-4)


def test_mean_and_variance_over_different_axes_are_no_layer_norm() -> None:
    """But what is left is the root mean square of the centred value."""
    b = GraphBuilder()
    x = b.input("x", (2, 3, 8))
    d = x - x.mean(2, keepdims=True)
    b.output(d / b.sqrt((d * d).mean(1, 2, keepdims=True) + 1e-5), name="y")
    graph = b.graph()
    simple = FuseNorms().apply(graph)
    assert ops(simple) == ["reduce_mean", "sub", "rms_norm"]
    assert_equal(graph, simple, 1e-5)


def test_names_given_to_outputs_survive_aliasing() -> None:
    """An identity in front of an output: the producer takes over the output's name; of an input it has to stay."""
    graph = build(identities)
    simple = simplify(graph)
    assert simple.producers["y"].op == "exp"
    assert simple.producers["copy_of_input"].op == "identity"


def test_an_output_takes_over_a_value_with_other_readers() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    y = b.exp(x)
    b.output(y * 2.0, name="first")
    b.output(b.identity(y), name="second")
    s = b.state("s", np.zeros((2, 3), np.float32))
    b.update(s, y)
    graph = b.graph()
    simple = RemoveIdentities().apply(graph)
    assert ops(simple) == ["exp", "mul"]
    assert simple.updates == {"s": "second"}
    assert_equal(graph, simple, 1e-6)


@pytest.mark.parametrize("seed", seeds(60))
def test_random_graphs_keep_their_meaning(seed: int) -> None:
    """Chains of what the passes look for, in random order, with values read twice and outputs in the middle."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("random")
    x = b.input("x", (4, 6))
    values = [x, b.constant(rng.standard_normal((4, 6), np.float32))]

    def one(pick: int, t: Tensor, u: Tensor) -> Tensor:
        weight = rng.standard_normal((6, 6), np.float32) * np.float32(0.4)
        row, number = rng.standard_normal(6, np.float32), float(rng.choice([1.0, 2.0, 0.5]))
        options: list[Callable[[], Tensor]] = [
            lambda: b.identity(t),
            lambda: t * number,
            lambda: t * row + number,
            lambda: b.gemm(t, weight, row, alpha=number, trans_b=bool(pick % 2)),
            lambda: b.transpose(b.transpose(t)),
            lambda: b.reshape(b.reshape(t, shape=(2, 12)), shape=(4, 6)),
            lambda: t * b.sigmoid(t),
            lambda: t * 0.5 * (b.erf(t / sqrt(2.0)) + 1.0),
            lambda: t + u,
            lambda: b.matmul(b.matmul(t, b.transpose(u)), u) * 0.1,
            lambda: b.tanh((t @ weight) * row),
            lambda: (t - t.mean(1, keepdims=True)) * b.rsqrt(b.square(u).mean(1, keepdims=True) + 1e-5),
            lambda: b.cast(t, dtype="f32"),
        ]
        return options[pick % len(options)]()

    for _ in range(14):
        t, u = (values[int(i)] for i in rng.integers(max(0, len(values) - 4), len(values), 2))
        made = one(int(rng.integers(1000)), t, u)
        values.append(b.tanh(made) if rng.random() < 0.3 else made)
    for i in sorted(set(rng.integers(2, len(values), 3).tolist())):
        b.output(values[i], name=f"out{i}")
    graph = b.graph()
    simple = simplify(graph)
    assert_equal(graph, simple, 1e-3)
    assert str(simple) == str(with_every_pass(graph))


def with_every_pass(graph: Graph) -> Graph:
    """The graph after all passes for floats, whether they found something to do before or not."""
    first: tuple[Pass, ...] = (LowerIntegerConv(), FoldDequantised())
    for step in (*first, *STANDARD):
        graph = step.apply(graph)
    return graph


def test_a_pass_that_finds_nothing_is_asked_again_behind_a_change_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Graph] = []
    apply = FoldConstants.apply

    def counted(self: FoldConstants, graph: Graph) -> Graph:
        asked.append(graph)
        return apply(self, graph)

    monkeypatch.setattr(FoldConstants, "apply", counted)
    b = GraphBuilder()
    x = b.input("x", (4, 6))
    b.output(b.tanh(x), name="y")
    assert ops(simplify(b.graph())) == ["tanh"]
    assert len(asked) == 1
    b.output(b.gemm(x, const(6, 6), const(6)), name="z")  # is lowered
    assert ops(simplify(b.graph())) == ["tanh", "matmul", "add"]
    assert len(asked) == 1 + STANDARD.count(FoldConstants())


def test_a_walk_over_some_operators_goes_by_what_nodes_are_at_their_turn() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    b.output(b.exp(b.tanh(b.exp(x))), name="y")
    editor = Editor(b.graph())
    assert [node.name for node in editor.walk(("exp",))] == ["exp_0", "y"]
    found = []
    for node in editor.walk(("exp", "sin")):
        found.append((node.name, node.op))
        if node.name == "exp_0":
            assert editor.emit("sin", ["exp_0"], {}, node, "tanh_0")
            assert editor.emit("cos", ["tanh_0"], {}, node, "y")
    assert found == [("exp_0", "exp"), ("tanh_0", "sin")]


def test_editor_refuses_a_result_of_another_type() -> None:
    b = GraphBuilder()
    b.output(b.exp(b.input("x", (2, 3))), name="y")
    editor = Editor(b.graph())
    node = editor.producer["y"]
    assert editor.emit("transpose", ("x",), {"perm": (1, 0)}, node, "y") is None
    assert editor.emit("matmul", ("x", "x"), {}, node) is None
    assert editor.finish() is editor.graph


def test_editor_result_is_checked() -> None:
    b = GraphBuilder()
    b.output(b.exp(b.input("x", (2, 3))), name="y")
    editor = Editor(b.graph())
    node = editor.producer["y"]
    editor.set_inputs(node, ("nobody",))
    with pytest.raises(GraphError, match="unknown value"):
        editor.finish()


def test_order_of_nodes_is_kept() -> None:
    """A replacement stands where the replaced node stood, so later stages see the graph in its user's order."""
    b = GraphBuilder()
    x = b.input("x", (2, 8))
    y = b.sigmoid(x) * x
    b.output(b.exp(x), name="second")
    b.output(y, name="first")
    simple = FuseActivations().apply(b.graph())
    assert [node.op for node in simple.nodes] == ["silu", "exp"]
    assert isinstance(simple.nodes[0], Node)
