"""Resize and Upsample.

Every mode is a linear map along each resized axis. The modes that the table's `resize` has go to it; all others
(cubic, antialias, crop and resize, rarer coordinate rules) become one product per axis with a constant matrix, built
here in float64. Means of integers are taken in floats; as ONNX Runtime has it they are truncated, those of the matrix
modes rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers
from superkernel.frontends.resample import Weights, along, interpolating, picking
from superkernel.ir.graph import VALUE_BYTES_MAX
from superkernel.ops.resizing import places

_WHOLE = (np.float32(0.0), np.float32(1.0))


@lowers("Resize", "Upsample")
def resize(call: OnnxCall) -> Tensor:
    x, mode = call.input(0), call.attr("mode", "nearest")
    if x.dtype.is_float or mode == "nearest":
        return _resized(call, x, mode)
    y = _resized(call, call.cast(x, DType.F32 if x.dtype.itemsize < 4 else DType.F64), mode)
    return call.cast(call.emit("round", y) if mode == "cubic" or call.attr("antialias", 0) else y, x.dtype)


def _resized(call: OnnxCall, x: Tensor, mode: str) -> Tensor:
    axes = [call.axis(a, x.rank) for a in call.attr("axes") or range(x.rank)]
    sizes, scales = _targets(call, x, axes)
    # Before operator set 11 output i reads input i / scale, rounded down.
    old = call.op == "Upsample" or call.opset < 11
    rule = "asymmetric" if old else call.attr("coordinate_transformation_mode", "half_pixel")
    nearest = "floor" if old else call.attr("nearest_mode", "round_prefer_floor")
    direct = mode in ("nearest", "linear") and rule in ("half_pixel", "asymmetric", "align_corners")
    if rule == "align_corners":  # the table's corners are those of the sizes
        direct = direct and all(abs(x.shape[a] * scales[a] - sizes[a]) < 1e-6 for a in axes)
    if direct and x.dtype.is_float and not call.attr("antialias", 0) and not call.attr("exclude_outside", 0):
        options = {"mode": mode, "coordinate_mode": rule, "nearest_mode": nearest}
        return call.emit("resize", x, sizes=sizes, scales=scales, **options)
    region = call.static(1).reshape(-1).astype(np.float32) if rule == "tf_crop_and_resize" else None
    if region is not None and region.size != 2 * len(axes):
        raise call.contradiction("not a region", expected=f"{2 * len(axes)} numbers", found=region.size)
    y = x
    outside: NDArray[np.bool_] | None = None
    for slot, axis in enumerate(axes):
        if sizes[axis] == x.shape[axis] and scales[axis] == 1.0 and region is None:
            continue
        span = _WHOLE if region is None else (region[slot], region[len(axes) + slot])
        at = _coordinates(rule, x.shape[axis], sizes[axis], scales[axis], span, picks=mode == "nearest")
        weights = _matrix(call, mode, nearest, at, x.shape[axis], scales[axis])
        y = along(call, y, weights, axis)
        if region is not None:
            mask = (at < 0) | (at > x.shape[axis] - 1)
            shape = [1] * x.rank
            shape[axis] = sizes[axis]
            outside = mask.reshape(shape) if outside is None else outside | mask.reshape(shape)
    if outside is not None and bool(outside.any()):
        fill = call.like(call.attr("extrapolation_value", 0.0), y)
        y = call.emit("where", call.constant(np.broadcast_to(outside, y.shape)), fill, y)
    return call.emit("identity", y) if y is x else y


def _targets(call: OnnxCall, x: Tensor, axes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Output size and scale per axis."""
    sizes, scales = list(x.shape), [1.0] * x.rank
    if call.op == "Upsample":
        given = call.static(1).reshape(-1).tolist() if call.has(1) else list(call.required("scales"))
        wanted = None
    else:
        slot = 1 if call.opset < 11 else 2
        given = call.static(slot).reshape(-1).tolist() if call.has(slot) else []
        wanted = call.static_ints(3) if call.has(3) else None
    steps = given if wanted is None else wanted
    fits = len(steps) == len(axes) and all(0 <= s <= VALUE_BYTES_MAX for s in steps)
    if not fits or (wanted is not None and 0 in (x.shape[a] for a in axes)):
        expected = f"a size or scale for each of {len(axes)} axes"
        raise call.contradiction("not what to resize to", expected=expected, found=f"{steps} for {x.type}")
    if wanted is None:
        for axis, scale in zip(axes, given, strict=True):
            scales[axis], sizes[axis] = float(scale), math.floor(x.shape[axis] * float(scale))
        return sizes, scales
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    ratios = [w / x.shape[a] for a, w in zip(axes, wanted, strict=True)]
    if policy != "stretch":
        common = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [common] * len(axes)
        wanted = [math.floor(common * x.shape[a] + 0.5) for a in axes]
    for axis, size, ratio in zip(axes, wanted, ratios, strict=True):
        sizes[axis], scales[axis] = size, ratio
    return sizes, scales


def _coordinates(
    rule: str, extent: int, size: int, scale: float, span: tuple[np.float32, np.float32], *, picks: bool
) -> Weights:
    """Where in the input each output index lies. `picks`: elements are to be picked there."""
    out = np.arange(size, dtype=np.float64)
    if rule == "asymmetric":
        return places(extent, size, scale, rule, single=picks)
    if rule == "align_corners":
        # size as the exact product: with a scale that is not a ratio of sizes the corner is where the scale says
        length = extent * scale
        return np.zeros(size) if length == 1 else out * (extent - 1) / (length - 1)
    if rule == "pytorch_half_pixel" and extent * scale == 1:
        return np.zeros(size)
    if rule == "tf_crop_and_resize":
        start, end = span  # in f32, as they are given: 0.2 and 1.2 are 1 apart, and the edge is not outside
        last, half = np.float32(extent - 1), np.float32(0.5)
        if size == 1:
            return np.full(1, half * (start + end) * last, np.float64)
        between = np.arange(size, dtype=np.float32) * (end - start) * last / np.float32(size - 1)
        return np.asarray(start * last + between, np.float64)
    centre = places(extent, size, scale, "half_pixel", single=picks)
    if rule == "half_pixel_symmetric" and np.float32(scale) != np.float32(size / extent):
        return (extent - 1) / 2 + (out + 0.5 - size / 2) / scale
    return centre


def _matrix(call: OnnxCall, mode: str, nearest: str, at: Weights, extent: int, scale: float) -> Weights:
    """weights[output, input] by the node's attributes."""
    if mode == "nearest":
        rounding: dict[str, Callable[[Weights], Weights]] = {
            "floor": np.floor,
            "ceil": np.ceil,
            "round_prefer_ceil": lambda p: np.floor(p + 0.5),
            "round_prefer_floor": lambda p: np.ceil(p - 0.5),
        }
        return picking(np.clip(rounding[nearest](at), 0, extent - 1).astype(int), extent)
    cubic = -0.75 if call.opset < 11 else call.attr("cubic_coeff_a", -0.75)
    stretch = max(1.0, 1.0 / scale) if call.attr("antialias", 0) and scale else 1.0
    outside = bool(call.attr("exclude_outside", 0))
    chosen = None if mode == "linear" else cubic
    return interpolating(at, extent, cubic=chosen, stretch=stretch, exclude_outside=outside)
