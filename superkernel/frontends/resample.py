"""Resampling along one axis as a constant matrix: weights[output, input], every row sums to one; built in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.frontends.emitter import Emitter

Weights = NDArray[np.float64]


def picking(index: NDArray[np.intp], extent: int) -> Weights:
    """The matrix that takes element index[i] for output i."""
    return np.asarray(np.eye(extent)[np.clip(index, 0, extent - 1)])


def interpolating(
    places: Weights, extent: int, *, cubic: float | None = None, stretch: float = 1.0, exclude_outside: bool = False
) -> Weights:
    """The matrix of linear interpolation, or of Keys' cubic convolution with the coefficient `cubic`, at `places` in
    the input; the kernel is `stretch` times as wide (antialiasing). What lies outside counts as the edge, or not at
    all."""
    kernel: Callable[[Weights], Weights] = (
        (lambda d: np.maximum(0.0, 1.0 - np.abs(d))) if cubic is None else (lambda d: _cubic(np.abs(d), cubic))
    )
    reach = 1.0 if cubic is None else 2.0
    first = np.floor(places - reach * stretch).astype(int)
    taps = int(2 * reach * stretch) + 3
    columns = first[:, None] + np.arange(taps)
    values = kernel((columns - places[:, None]) / stretch)
    inside = (columns >= 0) & (columns < extent)
    if exclude_outside:
        values = np.where(inside, values, 0.0)
    values = values / values.sum(axis=1, keepdims=True)
    weights = np.zeros((len(places), extent))
    np.add.at(weights, (np.arange(len(places))[:, None], np.clip(columns, 0, extent - 1)), values)
    return weights


def _cubic(d: Weights, a: float) -> Weights:
    """Keys' cubic convolution kernel."""
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def picks(weights: Weights) -> bool:
    """Whether each output is one element of the input."""
    is_one = weights.shape[1] > 0 and (weights.sum(axis=1) == 1).all()
    return bool(is_one and ((weights == 0) | (weights == 1)).all())


def along(call: Emitter, x: Tensor, weights: Weights, axis: int) -> Tensor:
    """`weights` applied along one axis: a gather where it only picks, else a product."""
    if picks(weights):
        index = call.constant(weights.argmax(axis=1).astype(np.int64))
        return call.emit("gather", x, index, axis=axis)
    last = x.rank - 1
    matrix = call.constant(weights.astype(x.dtype.numpy))
    if axis == last:
        return call.emit("matmul", x, matrix, trans_b=True)
    if axis == last - 1:
        return call.emit("matmul", matrix, x)
    perm = [i for i in range(x.rank) if i != axis] + [axis]
    y = call.emit("matmul", call.transpose(x, perm), matrix, trans_b=True)
    return call.transpose(y, [perm.index(i) for i in range(x.rank)])
