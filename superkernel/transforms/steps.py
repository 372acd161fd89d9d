"""What is quantised, counted in the steps of its codes from the start, so that nothing is left to be divided by.

Model: `quantize` divides by its scale and rounds. Where what it gets is made with constant factors (sums of integers
times the scales of both sides, dequantised codes, sums of such values, what a relu leaves of them), these are divided
by the scale when compiling, once, and the scale is 1. A result has two roundings less then: the product with a factor
and the nearest integer are all that is left of it, as in runtimes whose operators are quantised as a whole. Factors
that somebody else reads stay for them beside the new ones.

Invariant: nothing is divided that would leave the normal numbers of f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import BYTES
from superkernel.transforms.editor import Editor

_TYPES = BYTES | {DType.I16, DType.U16}
_DEPTH_MOST = 8  # of sums within sums
_NORMAL = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class CountSteps:
    """See the module docstring."""

    def apply(self, graph: Graph) -> Graph:
        if not any(node.op == "quantize" for node in graph.nodes):
            return graph
        editor = Editor.of(graph)
        for node in editor.walk():
            if node.op == "quantize":
                _count(editor, node)
        return editor.finish()


def _count(editor: Editor, node: Node) -> None:
    """One quantize."""
    x, factor, *point = node.inputs
    scale = editor.scalar(factor)
    small = editor.type(node.outputs[0]).dtype in _TYPES
    if x is None or factor is None or scale is None or not small or scale == 1 or not scale > 0:
        return
    if editor.type(x).dtype is not DType.F32 or editor.type(factor).dtype is not DType.F32:
        return
    if not _divides(editor, x, scale, _DEPTH_MOST):
        return
    one = editor.constant(np.ones_like(editor.constants[factor]), f"{node.name}/one")
    editor.set_inputs(node, (_divided(editor, x, scale, node), one, *point))


def _quotient(array: NDArray[Any], scale: float) -> NDArray[np.float32]:
    """In f32: a quotient of two f32 in f64, rounded again, is their quotient in f32."""
    with np.errstate(over="ignore", under="ignore"):
        return (array.astype(np.float64) / scale).astype(np.float32)


def _is_fit(array: NDArray[Any] | None, scale: float) -> bool:
    """Whether factors can be divided; zeros stay zeros."""
    if array is None or array.dtype != np.float32:
        return False
    size = np.abs(_quotient(array, scale))
    return bool(np.all((array == 0) | ((size >= _NORMAL[0]) & (size <= _NORMAL[1]))))


def _divides(editor: Editor, value: str, scale: float, depth: int) -> bool:
    """Whether `_divided` can."""
    array, node = editor.array(value), editor.producer.get(value)
    if array is not None:
        return _is_fit(array, scale)
    if node is None or depth == 0:
        return False
    if node.op == "dequantize":
        return _is_fit(editor.array(node.inputs[1]), scale)
    if editor.only_reader(value) is None:
        return False
    if node.op == "mul":
        return _factor(editor, node, scale) is not None
    if node.op not in ("add", "relu"):
        return False
    return all(v is not None and _divides(editor, v, scale, depth - 1) for v in node.inputs)


def _factor(editor: Editor, node: Node, scale: float) -> int | None:
    """Which input of a product is a constant that can be divided."""
    return next((i for i, v in enumerate(node.inputs) if _is_fit(editor.array(v), scale)), None)


def _divided(editor: Editor, value: str, scale: float, near: Node) -> str:
    """A value over the scale."""
    array, node = editor.array(value), editor.producer.get(value)
    if array is not None:
        return editor.constant(_quotient(array, scale), f"{near.name}/steps")
    assert node is not None
    inputs = list(node.inputs)
    place = 1 if node.op == "dequantize" else _factor(editor, node, scale) if node.op == "mul" else None
    for i, v in enumerate(inputs):
        if place in (None, i):
            assert v is not None
            inputs[i] = _divided(editor, v, scale, near)
    made = editor.emit(node.op, inputs, node.attrs, node)
    assert made is not None, f"{node.op} of the same types"
    return made
