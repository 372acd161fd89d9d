"""Products of integers for a matrix engine that multiplies signed bytes and knows no zero points.

Model: u8 codes are i8 codes with a zero point 128 lower: what quantises or moves them does so for the others, so that
bytes of either type cost the same. A zero point z of the left factor adds -z times the sum of the weights to each
result, a constant per output; padding of a convolution then counts as z. Sums are those of the graph before, modulo
2^32. A product of matrices whose weights are not constant, not signed or have a zero point stays as it is; such a
convolution becomes one of the same numbers in floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.ir.graph import Graph, Node
from superkernel.transforms.editor import Editor
from superkernel.transforms.quantised import float_conv

_SIGN = 128
_MOVES = frozenset({"reshape", "transpose", "slice", "max_pool", "concat"})


@dataclass(frozen=True)
class SignedIntegers:
    """See the module docstring."""

    def apply(self, graph: Graph) -> Graph:
        if not any(node.op in ("matmul_integer", "conv_integer") for node in graph.nodes):
            return graph
        editor = Editor.of(graph)
        pass_ = _Pass(editor)
        for node in editor.walk():
            if node.op in ("matmul_integer", "conv_integer"):
                pass_.product(node)
        for node in editor.walk():
            if node.op == "conv_integer" and not _is_plain(editor, node):
                float_conv(editor, node)
        for value, twin in pass_.signed.items():
            pass_.read_by_others(value, twin)
        return editor.finish()


def _is_plain(editor: Editor, node: Node) -> bool:
    """Whether a convolution is of signed bytes alone."""
    x, w, *more = node.inputs
    signed = all(v is not None and editor.type(v).dtype is DType.I8 for v in (x, w))
    return signed and w in editor.constants and not any(more)


class _Pass:
    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.signed: dict[str, str] = {}
        """u8 values, and what holds the same codes less 128."""

    def product(self, node: Node) -> None:
        """One product."""
        editor, is_conv = self.editor, node.op == "conv_integer"
        x, w, *rest = node.inputs
        bias, zero, weights_zero = (*rest, None, None, None)[:3] if is_conv else (None, *(*rest, None, None)[:2])
        codes, point = editor.array(w), editor.array(zero)
        if x is None or codes is None or codes.dtype != np.int8 or weights_zero is not None:
            return
        if (point is None and zero is not None) or (point is not None and point.size != 1):
            return
        if (bias is not None and editor.array(bias) is None) or node.attrs.get("padding", 0) != 0:
            return
        shift = 0 if point is None else int(point.reshape(())[()])
        left: str | None = x
        if editor.type(x).dtype is DType.U8:
            left, shift = self.less_128(x, node), shift - _SIGN
        offset = self._offset(codes, shift, editor.array(bias), is_conv)
        if left is None or (left == x and offset is None and zero is None):
            return
        attrs = {**node.attrs, "padding": shift} if is_conv else node.attrs
        whole = None if offset is not None else node.outputs[0]
        sums = editor.emit(node.op, (left, w), attrs, node, whole)
        if offset is not None and sums is not None:
            editor.emit("add", (sums, editor.constant(offset, f"{node.name}/offset")), {}, node, node.outputs[0])

    def _offset(self, codes: NDArray[Any], shift: int, bias: NDArray[Any] | None, is_conv: bool) -> NDArray[Any] | None:
        """What is to be added to each output's sum, shaped to broadcast; None where that is nothing."""
        axes = tuple(range(1, codes.ndim)) if is_conv else (codes.ndim - 2,)
        total = -shift * codes.sum(axis=axes, dtype=np.int64)
        if bias is not None:
            total = total + bias.reshape(-1)
        if not total.any() and bias is None:
            return None
        shape = (1, -1, *(1,) * (codes.ndim - 2)) if is_conv else (*codes.shape[:-2], 1, codes.shape[-1])
        found: NDArray[Any] = total.astype(np.int32).reshape(shape)
        return found if is_conv or codes.ndim > 2 else found.reshape(-1)

    def less_128(self, value: str, near: Node) -> str | None:
        """An i8 value with the codes of a u8 one less 128."""
        if value not in self.signed:
            made = self._made(value, near)
            if made is None:
                return None
            self.signed[value] = made
        return self.signed[value]

    def _made(self, value: str, near: Node) -> str | None:
        editor, constant = self.editor, self.editor.array(value)
        if constant is not None:
            return editor.constant((constant.astype(np.int16) - _SIGN).astype(np.int8), f"{value}/signed")
        node = editor.producer.get(value)
        if node is not None and node.op == "quantize":
            zero = editor.array(node.inputs[2]) if len(node.inputs) > 2 else np.zeros((), np.uint8)
            if zero is not None:
                return editor.emit(
                    "quantize", (*node.inputs[:2], self._lower(zero, node)), {**node.attrs, "dtype": DType.I8}, node
                )
        if node is not None and node.op in _MOVES and editor.type(node.outputs[0]).dtype is DType.U8:
            first = node.inputs if node.op == "concat" else node.inputs[:1]
            moved = [None if v is None else self.less_128(v, node) for v in first]
            if all(v is not None for v in moved):
                return editor.emit(node.op, (*moved, *node.inputs[len(moved) :]), node.attrs, node)
        wide = editor.emit("cast", (value,), {"dtype": DType.F32}, near)
        less = editor.constant(np.float32(_SIGN), f"{near.name}/sign")
        lower = None if wide is None else editor.emit("sub", (wide, less), {}, near)
        return None if lower is None else editor.emit("cast", (lower,), {"dtype": DType.I8}, near)

    def _lower(self, zero: NDArray[Any], near: Node) -> str:
        return self.editor.constant((zero.astype(np.int16) - _SIGN).astype(np.int8), f"{near.name}/signed_zero")

    def read_by_others(self, value: str, twin: str) -> None:
        """Whoever dequantises the u8 value reads the other one, so that the former need not be made."""
        editor = self.editor
        if editor.producer.get(value) is None or editor.producer[value].op not in ("quantize", *_MOVES):
            return
        for name in list(editor.readers.get(value, {})):
            node = editor.nodes.get(name)
            if node is None or node.op != "dequantize" or node.inputs[0] != value:
                continue
            zero = editor.array(node.inputs[2]) if len(node.inputs) > 2 else np.zeros((), np.uint8)
            if zero is not None:
                editor.emit("dequantize", (twin, node.inputs[1], self._lower(zero, node)), {}, node, node.outputs[0])
