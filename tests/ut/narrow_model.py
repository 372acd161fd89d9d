"""What matrix products of reduced precision compute, but for the rounding of sums: NumPy, in float64 behind the
rounding of the factors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.formats import BF16, BF16X3, INT8, INT8X2, NumberFormat

Array = NDArray[Any]


def bf16(x: Array) -> Array:
    return x.astype(np.float32).astype(DType.BF16.numpy).astype(np.float64)


def weights8(w: Array) -> Array:
    """Columns of signed bytes with a scale, widened again; divided in f32, as kernels' weights are: near halves it
    matters."""
    largest = np.abs(w).max(axis=-2, keepdims=True) if w.shape[-2] else np.zeros((1, w.shape[-1]))
    scale = (largest.astype(np.float32) / np.float32(127)).astype(np.float64)
    safe = np.where(scale > 0, scale, 1.0)
    return np.clip(np.rint(w.astype(np.float32) / safe.astype(np.float32)).astype(np.float64), -127, 127) * scale


def rows_of_codes(x: Array, largest: int) -> Array:
    """Rows of unsigned integers with a scale and a zero point, widened again."""
    low = np.minimum(x.min(axis=-1, keepdims=True, initial=0.0), 0.0)
    high = np.maximum(x.max(axis=-1, keepdims=True, initial=0.0), 0.0)
    width = (high - low).astype(np.float32)
    inverse = np.float32(largest) / np.where(width > 0, width, np.float32(1))
    start = np.rint((-low).astype(np.float32) * inverse)
    code = np.clip(np.rint(x.astype(np.float32) * inverse) + start, 0, largest)
    return (code - start) * (width / np.float32(largest)).astype(np.float64)


def expected_product(a: Array, b: Array, form: NumberFormat) -> Array:
    """What a format computes but for the rounding of sums."""
    if form.name == BF16.name:
        return np.matmul(bf16(a), bf16(b))
    if form.name == BF16X3.name:
        (ah, al), (bh, bl) = ((bf16(x), bf16(x - bf16(x))) for x in (a, b))
        return np.matmul(ah, bh) + np.matmul(ah, bl) + np.matmul(al, bh)
    rows = {INT8.name: rows_of_codes(a, 255), INT8X2.name: rows_of_codes(a, 65535)}.get(form.name, a)
    return np.matmul(rows, weights8(b))
