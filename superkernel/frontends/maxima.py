"""Where the largest elements of pooling windows stand, and putting elements back there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.frontends.emitter import Emitter


def places_of_maxima(
    call: Emitter,
    x: Tensor,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    begins: Sequence[int],
    dilations: Sequence[int],
) -> Tensor:
    """Where the largest element of each window stands in its image, counted row by row: the first of equal ones.
    `sizes`: windows along each axis; `begins`: padding ahead of each, at least."""
    extents = x.shape[2:]
    image: NDArray[np.int64] = np.zeros((), np.int64)
    inside: NDArray[np.bool_] = np.ones((), np.bool_)
    axes = zip(kernel, strides, begins, dilations, strict=False)
    for extent, size, (taps, stride, pad, dilation) in zip(extents, sizes, axes, strict=True):
        taken = np.arange(size)[:, None] * stride - pad + np.arange(taps) * dilation
        image = np.add.outer(image * extent, np.clip(taken, 0, extent - 1))
        inside = np.logical_and.outer(inside, (taken >= 0) & (taken < extent))
    count = len(sizes)
    order = [*range(0, 2 * count, 2), *range(1, 2 * count, 2)]  # rows of windows, then what is in each
    rows = int(np.prod(sizes))
    image, inside = image.transpose(order).reshape(rows, -1), inside.transpose(order).reshape(rows, -1)
    flat = call.reshape(x, (*x.shape[:2], int(np.prod(extents))))
    seen = call.emit("gather", flat, call.constant(image), axis=2)
    if not inside.all():
        lowest = -np.inf if x.dtype.is_float else np.iinfo(x.dtype.numpy).min
        seen = call.emit("where", call.constant(inside), seen, call.like(lowest, seen))
    best = call.emit("argmax", seen, axis=3, keepdims=True)
    table = call.expand(call.constant(image), (*x.shape[:2], *image.shape))
    return call.reshape(call.emit("gather_elements", table, best, axis=3), (*x.shape[:2], *sizes))


def unpooled(call: Emitter, x: Tensor, places: Tensor, size: int) -> Tensor:
    """Elements of x [rows, elements] at `places` of rows of so many; zeros elsewhere. Of several for one place the
    last one stands there."""
    zeros = call.expand(call.like(0, x), (x.shape[0], size))
    return call.emit("scatter_elements", zeros, places, x, axis=1)
