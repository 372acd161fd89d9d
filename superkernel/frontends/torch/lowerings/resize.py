"""Interpolation of images: nearest, linear and cubic.

The table's `resize` takes nearest and linear. Cubic is a product with a constant matrix per axis. torch finds nearest
neighbours in single precision; where that picks another element than the table does, the picks become a
gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.frontends.resample import Weights, along, interpolating
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers
from superkernel.ops.resizing import axis_plan

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
    rule = "align_corners" if call.args["align_corners"] else "half_pixel"
    full = [1.0, 1.0, *_scales(call, x)]
    if rule == "align_corners":  # corners are those of the sizes, whatever factor they came from
        full = [s / e for s, e in zip(call.shape, x.shape, strict=True)]
    return call.emit("resize", x, sizes=call.shape, scales=full, mode="linear", coordinate_mode=rule)


@lowers("upsample_bicubic2d")
def bicubic(call: TorchCall) -> Tensor:
    x = _image(call)
    corners = bool(call.args["align_corners"])
    for axis, scale in enumerate(_scales(call, x), 2):
        places = _places(x.shape[axis], call.shape[axis], scale, corners)
        x = along(call, x, interpolating(places, x.shape[axis], cubic=-0.75), axis)
    return x


@lowers("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def antialiased(call: TorchCall) -> Tensor:
    """As PIL has it: where an image shrinks, the kernel is as much wider; what lies outside does not count."""
    x = _image(call)
    cubic = -0.5 if "cubic" in call.op else None
    corners = bool(call.args["align_corners"])
    for axis, scale in enumerate(_scales(call, x), 2):
        extent, size = x.shape[axis], call.shape[axis]
        step = (extent - 1) / max(1, size - 1) if corners else 1 / scale
        places = (
            np.arange(size, dtype=np.float64) + 0.5
        ) * step - 0.5  # with aligned corners, too: these change the step alone
        weights = interpolating(places, extent, cubic=cubic, stretch=max(1.0, step), exclude_outside=True)
        x = along(call, x, weights, axis)
    return x


def _places(extent: int, size: int, scale: float, corners: bool) -> Weights:
    out = np.arange(size, dtype=np.float64)
    if corners:
        return out * (extent - 1) / max(1, size - 1)
    return (out + 0.5) / scale - 0.5
