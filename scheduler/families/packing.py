"""How weights are packed in a number format: columns of f32 values as words, with what stands behind them."""

from __future__ import annotations

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.formats import NumberFormat
from superkernel.ops.opdef import Array


def words_of(values: Array, number: NumberFormat) -> Array:
    """[..., depth, columns] as [..., words, columns, step], zeros behind the depth."""
    *outer, depth, columns = values.shape
    if gap := -depth % number.grain:
        values = np.concatenate([values, np.zeros((*outer, gap, columns), values.dtype)], axis=-2)
    return values.reshape(*outer, -1, number.step, columns).swapaxes(-1, -2)


def encoded(values: Array, number: NumberFormat) -> Array:
    """f32 [..., depth, columns] as words of floats: bytes [..., words, parts, columns, bytes of a word]."""
    wide = words_of(values, number)
    parts = []
    for _ in range(number.weight_parts):
        parts.append(wide.astype(number.weights.numpy))
        wide = wide - parts[-1].astype(np.float32)
    return np.ascontiguousarray(np.stack(parts, axis=-3)).view(np.uint8)


def signed_bytes(values: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """f32 values as i8, and the f32 scale that they share along `axis`."""
    scale = (np.abs(values).max(axis=axis).astype(np.float32) / np.float32(127)).astype(np.float32)
    divisor = np.expand_dims(np.where(scale > 0, scale, np.float32(1)), axis)
    return np.clip(np.rint(values / divisor), -127, 127).astype(DType.I8.numpy), scale


def bytes_of(array: Array, outer: int) -> Array:
    """The bytes of an array behind its first `outer` dimensions."""
    return np.ascontiguousarray(array).reshape(*array.shape[:outer], -1).view(np.uint8)
