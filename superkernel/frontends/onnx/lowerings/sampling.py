"""Images read at computed places: GridSample, RoiAlign, DeformConv; AffineGrid, which computes such places."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.errors import FileFormatError
from superkernel.frontends.deformable import Deformed, deform_conv
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.lowerings.conv import window
from superkernel.frontends.onnx.registry import lowers
from superkernel.frontends.regions import Regions, roi_align
from superkernel.frontends.sampling import Tap, between, places_type, read_by_image, scaled, summed, weighted

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # names before operator set 20
_CUBIC = -0.75  # the coefficient of Keys' kernel that ONNX demands


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
    grid = call.cast(call.reshape(grid, (x.shape[0], points, count)), places_type(x))
    taps = []
    for axis, extent in enumerate(extents):
        column = count - 1 - axis  # the grid's first column is the image's last axis
        place = call.reshape(call.slice(grid, 2, column, column + 1), grid.shape[:2])
        taps.append(_taps(call, place, extent, mode, padding, aligned))
    sampled = summed(call, weighted(call, *read_by_image(call, x, 2), extents, taps))
    perm = (0, 2, 1)
    return call.reshape(call.transpose(sampled, perm), (*x.shape[:2], *call.input(1).shape[1:-1]))


@lowers("RoiAlign")
def regions(call: OnnxCall) -> Tensor:
    """Before operator set 16 coordinates are those of corners."""
    x, boxes, images = call.input(0), call.input(1), call.input(2)
    call.require_rank(x, 4, 4)
    if boxes.rank != 2 or boxes.shape[1] != 4 or images.shape != boxes.shape[:1]:
        expected, found = "rois [regions, 4] and batch_indices [regions]", f"{boxes.type} and {images.type}"
        raise call.contradiction("not regions of images", expected=expected, found=found)
    mode = str(call.attr("mode", "avg")).lower()
    rule = call.attr("coordinate_transformation_mode", "half_pixel") if call.opset >= 16 else "output_half_pixel"
    bins = (call.attr("output_height", 1), call.attr("output_width", 1))
    if mode not in ("avg", "max") or rule not in ("half_pixel", "output_half_pixel") or min(bins) < 1:
        raise call.contradiction("no such mode or size", found=f"{mode}, {rule}, {bins[0]} x {bins[1]}")
    samples, scale = call.attr("sampling_ratio", 0), call.attr("spatial_scale", 1.0)
    return roi_align(call, x, boxes, images, Regions(bins, samples, scale, rule == "half_pixel", mode == "max"))


@lowers("DeformConv")
def deformed(call: OnnxCall) -> Tensor:
    x, weight, offset = (call.input(operand) for operand in range(3))
    bias, mask = call.optional(3), call.optional(4)
    call.require_rank(x, 3)
    kernel = tuple(call.attr("kernel_shape") or weight.shape[2:])
    geometry = window(call, x.shape[2:], kernel)
    strides, pads, dilations = (geometry[name] for name in ("strides", "pads", "dilations"))
    begins, ends = pads[: len(kernel)], pads[len(kernel) :]
    groups, many = call.attr("group", 1), call.attr("offset_group", 1)
    moved = Deformed(strides, begins, ends, dilations, groups, many)
    wrong = moved.misfit(x, weight, offset, mask, bias)
    if wrong is not None or kernel != weight.shape[2:]:
        raise call.contradiction(
            **(wrong or {"message": "not the kernel's shape", "found": f"{kernel}, {weight.type}"})
        )
    return deform_conv(call, x, weight, offset, mask, bias, moved)


def _taps(call: OnnxCall, place: Tensor, extent: int, mode: str, padding: str, aligned: bool) -> list[Tap]:
    """The whole places about those that the grid gives from -1 to 1, or beyond."""
    low, high = (0.0, extent - 1.0) if aligned else (-0.5, extent - 0.5)
    place = scaled(call, place, (high - low) / 2, (high + low) / 2)
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
        found = [(scaled(call, below, 1.0, float(at)), kernel(call, behind, at)) for at in offsets]
    if padding == "reflection":
        return [Tap(call.emit("round", _reflected(call, at, low, high)), weight) for at, weight in found]
    # Places beyond the border are clipped where they are read.
    return [Tap(at, weight, between(call, at, 0, extent - 1) if padding == "zeros" else None) for at, weight in found]


def _clipped(call: OnnxCall, place: Tensor, extent: int) -> Tensor:
    return call.emit("clip", place, call.like(0, place), call.like(extent - 1, place))


def _reflected(call: OnnxCall, place: Tensor, low: float, high: float) -> Tensor:
    """Places turned back at both borders as often as it takes: low + w - |(x - low) mod 2 w - w|."""
    width = high - low
    if width == 0:
        return call.emit("mul", place, call.like(0, place))
    turns = call.emit("floor", scaled(call, place, 1 / (2 * width), -low / (2 * width)))
    along = call.emit(
        "sub", scaled(call, place, 1.0, -low - width), call.emit("mul", turns, call.like(2 * width, place))
    )
    return scaled(call, call.emit("abs", along), -1.0, low + width)


def _linear(call: OnnxCall, behind: Tensor, at: int) -> Tensor:
    """The weight of the place `at` behind the whole one below: 1 - |t - at|."""
    return behind if at else scaled(call, behind, -1.0, 1.0)


def _keys(call: OnnxCall, behind: Tensor, at: int) -> Tensor:
    """Keys' kernel at |t - at|, a polynomial of the distance on either side of 1."""
    distance = scaled(call, behind, 1.0, float(-at)) if at <= 0 else scaled(call, behind, -1.0, float(at))
    a = _CUBIC
    factors = (a + 2, -(a + 3), 0.0, 1.0) if at in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
    value = call.like(factors[0], distance)
    for factor in factors[1:]:
        value = call.emit("add", call.emit("mul", value, distance), call.like(factor, distance))
    return value
