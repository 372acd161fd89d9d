"""Determinants of small matrices: elimination with pivots, written out column by column, for all matrices of a stack at
once."""

from __future__ import annotations

from math import prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import Emitter

_EXTENT_MAX = 32
"""A graph has some fifteen operators for each column."""


def determinant(call: Emitter, x: Tensor) -> Tensor:
    """[...] of x [..., n, n]: the product of the pivots, each the largest of its column."""
    *stack, size, _ = x.shape
    if size > _EXTENT_MAX:
        expected = f"at most {_EXTENT_MAX} rows"
        raise call.unsupported("a determinant of a large matrix", expected=expected, found=str(x.type))
    count = prod(stack)
    left = call.reshape(call.cast(x, DType.F64 if x.dtype is DType.F64 else DType.F32), (count, size, size))
    product = call.expand(call.like(1, left), (count, 1, 1))
    for extent in range(size, 0, -1):
        column = call.emit("abs", call.slice(left, 2, 0, 1))
        best = call.emit("argmax", column, axis=1, keepdims=True)
        row = call.emit("gather_elements", left, call.expand(best, (count, 1, extent)), axis=1)
        pivot = call.slice(row, 2, 0, 1)
        is_first = call.emit("equal", best, call.like(0, best))
        product = call.emit("mul", product, call.emit("where", is_first, pivot, call.emit("neg", pivot)))
        if extent == 1:
            break
        numbers = call.constant(np.arange(1, extent, dtype=np.int64).reshape(-1, 1))
        rest = call.emit(
            "where", call.emit("equal", numbers, best), call.slice(left, 1, 0, 1), call.slice(left, 1, 1, extent)
        )
        divisor = call.emit("where", call.emit("equal", pivot, call.like(0, pivot)), call.like(1, pivot), pivot)
        factors = call.emit("div", call.slice(rest, 2, 0, 1), divisor)
        taken = call.emit("mul", factors, call.slice(row, 2, 1, extent))
        left = call.emit("sub", call.slice(rest, 2, 1, extent), taken)
    return call.cast(call.reshape(product, tuple(stack)), x.dtype)
