"""Products with per-channel factors around them: gemm, batch normalisation, and what folds into constant weights.

Folding computes in float64 and rounds once to the weights' element type. A weight is copied, so it is only folded into
a product that is its one reader.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from superkernel.ir.graph import Node
from superkernel.transforms.base import NodePass
from superkernel.transforms.editor import Editor

_FINFO: Any = ml_dtypes.finfo  # NumPy's, and bf16's too; it carries no types


def _scaled(editor: Editor, value: str, factor: float, near: Node, output: str | None = None) -> str | None:
    kind = editor.type(value)
    number = editor.constant(np.array(factor).astype(kind.dtype.numpy), f"{near.name}/factor")
    return editor.emit("mul", (value, number), {}, near, output)


def _lower_gemm(editor: Editor, node: Node) -> None:
    a, b = node.inputs[0], node.inputs[1]
    c = node.inputs[2] if len(node.inputs) > 2 else None
    alpha, beta = float(node.attrs["alpha"]), float(node.attrs["beta"])  # type: ignore[arg-type]
    flags = {flag: node.attrs[flag] for flag in ("trans_a", "trans_b")}
    output = node.outputs[0]
    if not editor.type(output).dtype.is_float and (alpha != 1.0 or beta != 1.0):
        return
    add_c = c is not None and beta != 0.0
    assert b is not None
    if alpha != 1.0 and b in editor.constants and editor.type(b).dtype.is_float:
        scaled = editor.constants[b].astype(np.float64) * alpha
        if keeps(scaled, editor.constants[b].dtype):
            b, alpha = editor.constant(scaled.astype(editor.constants[b].dtype), f"{node.name}/b"), 1.0
    plain = not add_c and alpha == 1.0
    product = editor.emit("matmul", (a, b), flags, node, output if plain else None)
    if product is None or plain:
        return
    if alpha != 1.0:
        product = _scaled(editor, product, alpha, node, None if add_c else output)
    if add_c:
        assert c is not None
        if beta != 1.0:
            c = _scaled(editor, c, beta, node)
        editor.emit("add", (product, c), {}, node, output)


class LowerGemm(NodePass):
    """alpha * op(a) @ op(b) + beta * c as matmul, multiplications (only where a factor is not one) and an addition."""

    rules = ({"gemm": _lower_gemm},)


def _lower_batch_norm(editor: Editor, node: Node) -> None:
    arrays = [editor.array(v) for v in node.inputs[1:]]
    if any(a is None for a in arrays):
        return
    scale, bias, mean, variance = (np.asarray(a, np.float64) for a in arrays)
    factor = scale / np.sqrt(variance + float(node.attrs["epsilon"]))  # type: ignore[arg-type]
    kind = editor.type(node.outputs[0])
    shape = (1, -1) + (1,) * (kind.rank - 2)
    parts = [a.astype(kind.dtype.numpy).reshape(shape) for a in (factor, bias - mean * factor)]
    names = [editor.constant(a, f"{node.name}/{s}") for a, s in zip(parts, ("factor", "shift"), strict=True)]
    scaled = editor.emit("mul", (node.inputs[0], names[0]), {}, node)
    editor.emit("add", (scaled, names[1]), {}, node, node.outputs[0])


class LowerBatchNorm(NodePass):
    """With constant statistics one multiplication and one addition with per-channel constants."""

    rules = ({"batch_norm": _lower_batch_norm},)


def _fold_into_producer(editor: Editor, node: Node) -> None:
    for slot in (0, 1) if node.op in ("mul", "add") else (0,):
        value, other = node.inputs[slot], node.inputs[1 - slot]
        producer = None if value is None else editor.producer.get(value)
        factor = editor.array(other)
        if producer is None or factor is None or value is None or editor.only_reader(value) is not node:
            continue
        if editor.type(value) != editor.type(node.outputs[0]) or not editor.type(value).dtype.is_float:
            continue
        if producer.op == "matmul" and node.op not in ("mul", "div"):
            continue  # a product has no place for a term
        axis = {"conv": 1, "matmul": editor.type(value).rank - 1}.get(producer.op)
        channels = None if axis is None else _per_channel(factor.astype(np.float64), editor.type(value).shape, axis)
        if channels is None:
            continue
        if producer.op == "conv":
            _fold_into_conv(editor, node, producer, channels)
        elif node.op in ("mul", "div"):
            _fold_into_matmul(editor, node, producer, channels)
        return


def _per_channel(array: NDArray[Any], shape: tuple[int, ...], axis: int) -> NDArray[Any] | None:
    """The array as one number per channel, where it varies along no other axis."""
    full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(extent != 1 for i, extent in enumerate(full.shape) if i != axis):
        return None
    return np.broadcast_to(full.reshape(-1), (shape[axis],))


def keeps(exact: NDArray[Any], dtype: Any) -> bool:
    """True where rounding to `dtype` keeps the numbers: no overflow, no underflow that matters beside the largest."""
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(exact.astype(dtype).astype(np.float64) - exact).max(initial=0.0)
    return bool(error <= float(_FINFO(dtype).eps) * np.abs(exact).max(initial=0.0) < np.inf)


def _fold_into_conv(editor: Editor, node: Node, conv: Node, channels: NDArray[Any]) -> None:
    x, w = conv.inputs[0], conv.inputs[1]
    b = conv.inputs[2] if len(conv.inputs) > 2 else None
    weights, bias = editor.array(w), editor.array(b)
    if weights is None or (b is not None and bias is None) or w is None:
        return
    dtype = weights.dtype
    offset = np.zeros(weights.shape[0]) if bias is None else bias.astype(np.float64)
    if node.op in ("mul", "div"):
        if len(editor.readers[w]) != 1:
            return
        factor = channels if node.op == "mul" else 1.0 / channels
        scaled = weights.astype(np.float64) * factor.reshape((-1,) + (1,) * (weights.ndim - 1))
        offset = offset * factor
        if not keeps(scaled, dtype) or not keeps(offset, dtype):
            return
        w = editor.constant(scaled.astype(dtype), f"{conv.name}/weight")
    else:
        offset = offset + (channels if node.op == "add" else -channels)
        if not keeps(offset, dtype):
            return
    b = editor.constant(offset.astype(dtype), f"{conv.name}/bias") if bias is not None or offset.any() else None
    editor.emit("conv", (x, w) if b is None else (x, w, b), conv.attrs, conv, node.outputs[0])


def _fold_into_matmul(editor: Editor, node: Node, product: Node, channels: NDArray[Any]) -> None:
    a, b = product.inputs
    weights = editor.array(b)
    if weights is None or b is None or weights.ndim != 2 or len(editor.readers[b]) != 1 or weights.dtype.kind in "iub":
        return
    factor = channels if node.op == "mul" else 1.0 / channels
    scaled = weights.astype(np.float64) * (factor[:, None] if product.attrs["trans_b"] else factor)
    if not keeps(scaled, weights.dtype):
        return
    w = editor.constant(scaled.astype(weights.dtype), f"{product.name}/weight")
    editor.emit("matmul", (a, w), product.attrs, product, node.outputs[0])


class FoldIntoWeights(NodePass):
    """conv or matmul, then mul or add with a per-channel constant: the factor goes into the weights, the addend into
    conv's bias."""

    rules = (dict.fromkeys(("mul", "div", "add", "sub"), _fold_into_producer),)
