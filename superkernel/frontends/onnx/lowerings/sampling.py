"""GridSample: an image read at computed places, as gathers of its points with all of their channels; AffineGrid, which
computes such places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # names before operator set 20
_CUBIC = -0.75  # the coefficient of Keys' kernel that ONNX demands
Taps = Sequence[tuple[Tensor, Tensor | None]]
"""Along one axis: whole places, and what the point there counts; None: wholly."""


@lowers("AffineGrid")
def affine_grid(call: OnnxCall) -> Tensor:
    """The places of all elements, from -1 to 1 along each axis, times theta. The standard's own definition loses a
    batch of one."""
    theta, sizes = call.input(0), call.static_ints(1)
    count = len(sizes) - 2
    if count not in (2, 3) or theta.shape != (sizes[0], count, count + 1):
        expected = "theta [N, 2, 3] with size [N, C, H, W], or [N, 3, 4] with [N, C, D, H, W]"
        raise call.contradiction("theta and size do not fit", expected=expected, found=f"{theta.type}, {sizes}")
    aligned = bool(call.attr("align_corners", 0))
    axes = [_middles(extent) if not aligned else _corners(extent) for extent in sizes[2:]]
    places = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(sizes[2:])], axis=-1)
    rows = call.constant(places.reshape(-1, count + 1).astype(theta.dtype.numpy))
    return call.reshape(call.emit("matmul", rows, theta, trans_b=True), (sizes[0], *sizes[2:], count))


def _middles(extent: int) -> NDArray[np.float64]:
    return np.asarray((2 * np.arange(extent) + 1) / max(extent, 1) - 1)


def _corners(extent: int) -> NDArray[np.float64]:
    return np.linspace(-1.0, 1.0, extent) if extent > 1 else np.zeros(extent)


@lowers("GridSample")
def grid_sample(call: OnnxCall) -> Tensor:
    """Along each axis one, two or four places with weights; every combination is a gather."""
    x, grid = call.input(0), call.input(1)
    extents, count = x.shape[2:], grid.shape[-1]
    mode = call.attr("mode", "linear")
    mode = _MODES.get(mode, mode)
    padding, aligned = call.attr("padding_mode", "zeros"), bool(call.attr("align_corners", 0))
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise FileFormatError("no such mode", location=call.where, found=f"{mode}, {padding}")
    if len(extents) != count or grid.rank != x.rank or grid.shape[0] != x.shape[0]:
        raise FileFormatError("the grid does not fit", location=call.where, expected=x.shape, found=grid.shape)
    if mode != "nearest" and not x.dtype.is_float:
        raise call.unsupported("only floating-point images are interpolated", found=str(x.dtype))
    points = prod(grid.shape[1:-1])
    grid = call.cast(call.reshape(grid, (x.shape[0], points, count)), DType.F64 if x.dtype is DType.F64 else DType.F32)
    taps = []
    for axis, extent in enumerate(extents):
        column = count - 1 - axis  # the grid's first column is the image's last axis
        place = call.reshape(call.slice(grid, 2, column, column + 1), grid.shape[:2])
        taps.append(_taps(call, place, extent, mode, padding, aligned))
    sampled = _gathered(call, x, taps, zeros=padding == "zeros")
    perm = (0, 2, 1)
    return call.reshape(call.transpose(sampled, perm), (*x.shape[:2], *call.input(1).shape[1:-1]))


def _gathered(call: OnnxCall, x: Tensor, taps: Sequence[Taps], *, zeros: bool) -> Tensor:
    """[batch, point, channel]: the sum over all combinations of the axes' places."""
    batch, channels, extents = x.shape[0], x.shape[1], x.shape[2:]
    size = prod(extents)
    perm = (0, *range(2, x.rank), 1)
    rows = call.reshape(call.transpose(x, perm), (batch * size, channels))
    first = call.constant(np.arange(batch, dtype=np.int64)[:, None] * size)
    total: Tensor | None = None
    for chosen in product(*taps):
        index, weight, inside = first, None, None
        for axis, (place, counts) in enumerate(chosen):
            last = extents[axis] - 1
            if zeros:
                within = call.emit(
                    "logical_and",
                    call.emit("greater_equal", place, call.like(0, place)),
                    call.emit("less_equal", place, call.like(last, place)),
                )
                inside = within if inside is None else call.emit("logical_and", inside, within)
            whole = call.emit("clip", place, call.like(0, place), call.like(last, place))
            stride = call.constant(np.int64(prod(extents[axis + 1 :])))
            index = call.emit("add", index, call.emit("mul", call.cast(whole, DType.I64), stride))
            if counts is not None:
                weight = counts if weight is None else call.emit("mul", weight, counts)
        value = call.emit("gather", rows, index, axis=0)
        if inside is not None:
            value = call.emit("where", call.reshape(inside, (*inside.shape, 1)), value, call.like(0, value))
        if weight is not None:
            value = call.emit("mul", value, call.cast(call.reshape(weight, (*weight.shape, 1)), x.dtype))
        total = value if total is None else call.emit("add", total, value)
    assert total is not None  # every axis has a place
    return total


def _taps(call: OnnxCall, place: Tensor, extent: int, mode: str, padding: str, aligned: bool) -> Taps:
    """The whole places about those that the grid gives from -1 to 1, or beyond."""
    low, high = (0.0, extent - 1.0) if aligned else (-0.5, extent - 0.5)
    place = _scaled(call, place, (high - low) / 2, (high + low) / 2)
    if mode == "nearest":
        place = call.emit("round", place)
    if padding == "reflection":
        place = _reflected(call, place, low, high)
    elif padding == "border" and mode != "cubic":  # of cubic taps each is clipped on its own, as torch has it
        place = _clipped(call, place, extent)
    below = place if mode == "nearest" else call.emit("floor", place)
    if mode == "nearest":
        found: list[tuple[Tensor, Tensor | None]] = [(below, None)]
    else:
        offsets = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
        behind = call.emit("sub", place, below)
        kernel = _linear if mode == "linear" else _keys
        found = [(_scaled(call, below, 1.0, float(at)), kernel(call, behind, at)) for at in offsets]
    if padding != "reflection":
        return found  # places beyond the border are clipped, or count as zeros, where they are read
    return [(call.emit("round", _reflected(call, at, low, high)), weight) for at, weight in found]


def _clipped(call: OnnxCall, place: Tensor, extent: int) -> Tensor:
    return call.emit("clip", place, call.like(0, place), call.like(extent - 1, place))


def _reflected(call: OnnxCall, place: Tensor, low: float, high: float) -> Tensor:
    """Places turned back at both borders as often as it takes: low + w - |(x - low) mod 2 w - w|."""
    width = high - low
    if width == 0:
        return call.emit("mul", place, call.like(0, place))
    turns = call.emit("floor", _scaled(call, place, 1 / (2 * width), -low / (2 * width)))
    along = call.emit(
        "sub", _scaled(call, place, 1.0, -low - width), call.emit("mul", turns, call.like(2 * width, place))
    )
    return _scaled(call, call.emit("abs", along), -1.0, low + width)


def _scaled(call: OnnxCall, x: Tensor, factor: float, term: float) -> Tensor:
    """x factor + term."""
    if factor != 1:
        x = call.emit("mul", x, call.like(factor, x))
    return call.emit("add", x, call.like(term, x)) if term else x


def _linear(call: OnnxCall, behind: Tensor, at: int) -> Tensor:
    """The weight of the place `at` behind the whole one below: 1 - |t - at|."""
    return behind if at else _scaled(call, behind, -1.0, 1.0)


def _keys(call: OnnxCall, behind: Tensor, at: int) -> Tensor:
    """Keys' kernel at |t - at|, a polynomial of the distance on either side of 1."""
    distance = _scaled(call, behind, 1.0, float(-at)) if at <= 0 else _scaled(call, behind, -1.0, float(at))
    a = _CUBIC
    factors = (a + 2, -(a + 3), 0.0, 1.0) if at in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
    value = call.like(factors[0], distance)
    for factor in factors[1:]:
        value = call.emit("add", call.emit("mul", value, distance), call.like(factor, distance))
    return value
