"""Chains of additions and multiplications with constants: (x * a + b) * c + d becomes x * (a c) + (b c + d).

What normalisation layers of older exporters leave behind. Constants are combined in float64 and rounded once; they are
not combined where the result would be larger than both. A factor moves inside a sum, (x + a) * b to x * b + a b, only
behind a convolution or matrix product, whose weights it can then join: elsewhere it saves nothing, and it cancels badly
where x is near -a.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.ir.graph import Graph, Node
from superkernel.transforms.editor import Editor
from superkernel.transforms.linear import keeps


@dataclass(frozen=True)
class MergeAffine:
    """Only floating-point chains whose inner values nobody else reads."""

    def apply(self, graph: Graph) -> Graph:
        editor = Editor.of(graph)
        progress = True
        while progress:
            progress = False
            for node in editor.walk(("add", "mul")):
                progress |= _merge(editor, node)
        return editor.finish()


def _operand_and_constant(editor: Editor, node: Node) -> tuple[str, str] | None:
    """(variable, constant) of an addition or multiplication that keeps the variable's type, else None."""
    for slot in (0, 1):
        variable, constant = node.inputs[slot], node.inputs[1 - slot]
        if variable is None or constant is None or constant not in editor.constants or variable in editor.constants:
            continue
        kind = editor.type(variable)
        if kind.dtype.is_float and kind == editor.type(node.outputs[0]):
            return variable, constant
    return None


def _merge(editor: Editor, node: Node) -> bool:
    outer = _operand_and_constant(editor, node)
    if outer is None:
        return False
    value, constant = outer
    inner_node = editor.producer.get(value)
    if inner_node is None or inner_node.op not in ("add", "mul") or editor.only_reader(value) is not node:
        return False
    inner = _operand_and_constant(editor, inner_node)
    if inner is None or (node.op == "add" and inner_node.op == "mul"):
        return False
    source, first = inner
    if node.op != inner_node.op and not _from_product(editor, source):
        return False
    a, b = editor.constants[first].astype(np.float64), editor.constants[constant].astype(np.float64)
    combined: NDArray[Any] = a + b if node.op == "add" else a * b
    if combined.size > max(a.size, b.size):
        return False
    dtype = editor.type(value).dtype.numpy
    if not keeps(combined, dtype):
        return False
    merged = editor.constant(combined.astype(dtype), f"{node.name}/merged")
    if node.op == inner_node.op:
        return editor.emit(node.op, (source, merged), {}, node, node.outputs[0]) is not None
    scaled = editor.emit("mul", (source, constant), {}, node)  # (x + a) * b = x * b + a b
    return editor.emit("add", (scaled, merged), {}, node, node.outputs[0]) is not None


def _from_product(editor: Editor, value: str) -> bool:
    """True where the value is a convolution or matrix product, perhaps scaled and shifted by constants."""
    node = editor.producer.get(value)
    while node is not None and node.op in ("add", "mul"):
        found = _operand_and_constant(editor, node)
        node = None if found is None else editor.producer.get(found[0])
    return node is not None and node.op in ("conv", "conv_transpose", "matmul")
