"""Interpolation of images: nearest, linear and cubic.

The table's `resize` takes nearest and linear. Cubic is a product with a constant matrix per axis. torch finds nearest
neighbours in single precision; where that picks another element than the table does, the picks become a
gather. Images of bytes are resampled axis by axis in whole numbers, as torch and PIL do, to the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.resample import Weights, along, interpolating, picks
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers
from superkernel.ops.resizing import axis_plan

_WHOLE_BITS_MAX = 22
_NAMES = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}


def _image(call: TorchCall) -> Tensor:
    return call.tensor("input" if "input" in call.args else "self")


def _scales(call: TorchCall, x: Tensor) -> list[float]:
    """Output per input step of each spatial axis: what the caller gave, or the sizes' ratio."""
    sizes = call.shape[2:]
    listed = call.get("scale_factors")
    if listed is None:
        listed = [call.args.get(n) for n in ("scales_d", "scales_h", "scales_w")][3 - len(sizes) :]
        if len(sizes) == 1:
            listed = [call.args.get("scales")]
    given = [float(s) if s is not None and s > 0 else None for s in listed]
    return [n / x.shape[2 + i] if given[i] is None else float(given[i] or 0) for i, n in enumerate(sizes)]


@lowers(*(f"{name}{n}d" for n in (1, 2, 3) for name in ("upsample_nearest", "_upsample_nearest_exact")))
def nearest(call: TorchCall) -> Tensor:
    x = _image(call)
    scales = _scales(call, x)
    exact = call.op.startswith("_")
    options: dict[str, Any] = {"coordinate_mode": "half_pixel" if exact else "asymmetric", "mode": "nearest"}
    steps = list(zip(x.shape[2:], call.shape[2:], scales, strict=True))
    picks = [_picked(extent, size, np.float32(1 / scale), exact) for extent, size, scale in steps]
    options["nearest_mode"] = "round_prefer_ceil" if exact else "floor"
    table = [axis_plan(extent, size, scale, options).low for extent, size, scale in steps]
    same = all(np.array_equal(p, i) for p, i in zip(picks, table, strict=True))
    if same and x.dtype.is_float:
        return call.emit("resize", x, sizes=call.shape, scales=[1.0, 1.0, *scales], **options)
    for axis, index in enumerate(picks, 2):
        if not np.array_equal(index, np.arange(x.shape[axis])):
            x = call.emit("gather", x, call.constant(index), axis=axis)
    return x


def _picked(extent: int, size: int, step: np.float32, exact: bool) -> NDArray[np.int64]:
    """The element that each output takes for torch."""
    places = (np.arange(size).astype(np.float32) + np.float32(0.5 if exact else 0)) * step
    return np.asarray(np.minimum(np.floor(places), extent - 1), np.int64)


@lowers(*(f"upsample_{name}" for name in _NAMES.values()))
def linear(call: TorchCall) -> Tensor:
    x = _image(call)
    if x.dtype is DType.U8 and call.op == "upsample_bilinear2d":
        return _interpolated(call, x, None)
    rule = "align_corners" if call.args["align_corners"] else "half_pixel"
    full = [1.0, 1.0, *_scales(call, x)]
    if rule == "align_corners":  # corners are those of the sizes, whatever factor they came from
        full = [s / e for s, e in zip(call.shape, x.shape, strict=True)]
    return call.emit("resize", x, sizes=call.shape, scales=full, mode="linear", coordinate_mode=rule)


@lowers("upsample_bicubic2d")
def bicubic(call: TorchCall) -> Tensor:
    return _interpolated(call, _image(call), -0.75)


def _interpolated(call: TorchCall, x: Tensor, cubic: float | None) -> Tensor:
    corners = bool(call.args["align_corners"])
    found = []
    for axis, scale in enumerate(_scales(call, x), 2):
        places = _places(x.shape[axis], call.shape[axis], scale, corners)
        found.append(interpolating(places, x.shape[axis], cubic=cubic))
    return _resampled(call, x, found)


@lowers("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def antialiased(call: TorchCall) -> Tensor:
    """As PIL has it: where an image shrinks, the kernel is as much wider; what lies outside does not count."""
    x = _image(call)
    cubic = -0.5 if "cubic" in call.op else None
    corners = bool(call.args["align_corners"])
    found = []
    for axis, scale in enumerate(_scales(call, x), 2):
        extent, size = x.shape[axis], call.shape[axis]
        step = 1 / scale
        if corners:  # they change the step alone
            step = (extent - 1) / (size - 1) if size > 1 else 0.0
        places = (np.arange(size, dtype=np.float64) + 0.5) * step - 0.5
        found.append(interpolating(places, extent, cubic=cubic, stretch=max(1.0, step), exclude_outside=True))
    return _resampled(call, x, found)


def _resampled(call: TorchCall, x: Tensor, weights: list[Weights]) -> Tensor:
    """`weights` along the spatial axes. Bytes start with the last axis and are bytes again behind each one."""
    if x.dtype is not DType.U8:
        for axis, of_axis in enumerate(weights, 2):
            x = along(call, x, of_axis, axis)
        return x
    y = call.cast(x, DType.F32)
    for axis in reversed(range(2, x.rank)):
        if picks(weights[axis - 2]):
            y = along(call, y, weights[axis - 2], axis)
            continue
        whole, unit = _whole(weights[axis - 2])
        total = call.emit("mul", along(call, y, whole, axis), call.like(1 / unit, y))
        nearest = call.emit("floor", call.emit("add", total, call.like(0.5, y)))
        y = call.emit("clip", nearest, call.like(0.0, y), call.like(255.0, y))
    return call.cast(y, DType.U8)


def _whole(weights: Weights) -> tuple[Weights, float]:
    """Weights as whole numbers below 2**15, and what is one in them: the largest power of two that allows it. Their
    sums of bytes are below 2**24, so that f32 holds them."""
    bits = 0
    while bits < _WHOLE_BITS_MAX and np.floor(0.5 + weights.max() * 2 ** (bits + 1)) < 1 << 15:
        bits += 1
    return np.trunc(weights * 2**bits + np.copysign(0.5, weights)), float(2**bits)


def _places(extent: int, size: int, scale: float, corners: bool) -> Weights:
    out = np.arange(size, dtype=np.float64)
    if corners:
        return out * (extent - 1) / max(1, size - 1)
    return (out + 0.5) / scale - 0.5
