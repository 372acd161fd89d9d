"""resize: nearest or N-linear interpolation, one axis after the other.

Model: an output index of an axis stands at an input coordinate (`coordinate_mode`); nearest picks one input index,
linear two with weights that add up to 1. Both are an `AxisPlan`, computed once from the static shapes; a kernel may use
the same plan as its table. Scales not given are sizes / input extents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, get, get_floats, get_ints, is_float, present, require, saturate, to_f64
from superkernel.ops.opdef import (
    FLOATS,
    INTS,
    ArgDef,
    Array,
    Arrays,
    AttrDef,
    AttrKind,
    Attrs,
    Family,
    OpDef,
    Outputs,
    Types,
)

_ARGS = (ArgDef("x", FLOATS | INTS),)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class AxisPlan:
    """Per output index of one axis: the two input indices (equal for nearest) and the weight of the second."""

    low: Array
    high: Array
    weight: Array


def places(extent: int, size: int, scale: float, rule: str, *, single: bool = False) -> Array:
    """Where each of `size` outputs stands, in input indices, by "asymmetric", "align_corners" or "half_pixel".

    One division of whole numbers where the scale is the ratio of the sizes, so that no rounding moves what lies on an
    element, or half way between two. Other scales are numbers in single precision, 1.1 say, which `single` lets be
    what they stand for: places are rounded to it, as whoever picks elements needs."""
    at = np.arange(size, dtype=np.float64)
    if rule == "align_corners":
        return at * (extent - 1) / (size - 1) if size > 1 else np.zeros(size)
    if np.float32(scale) == np.float32(size / max(extent, 1)):
        return at * extent / size if rule == "asymmetric" else ((2 * at + 1) * extent - size) / (2 * size)
    found = (at if rule == "asymmetric" else at + 0.5) / scale
    if single:
        found = found.astype(np.float32).astype(np.float64)
    return np.asarray(found if rule == "asymmetric" else found - 0.5)


def axis_plan(extent: int, size: int, scale: float, attrs: Attrs) -> AxisPlan:
    """The plan of one axis of a legal resize. `extent` > 0 where `size` > 0."""
    linear = get(attrs, "mode", str) == "linear"
    at = places(extent, size, scale, get(attrs, "coordinate_mode", str), single=not linear)
    if linear:
        at = np.clip(at, 0.0, max(extent - 1, 0))
        low = np.floor(at).astype(np.int64)
        return AxisPlan(low, np.minimum(low + 1, extent - 1), at - low)
    nearest = {
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
        "floor": np.floor(at),
        "ceil": np.ceil(at),
    }[get(attrs, "nearest_mode", str)]
    index = np.clip(nearest, 0, max(extent - 1, 0)).astype(np.int64)
    return AxisPlan(index, index, np.zeros(size))


def axis_plans(shape: tuple[int, ...], attrs: Attrs) -> tuple[AxisPlan | None, ...]:
    """One plan per axis, None where the axis is copied as it is."""
    sizes, given = get_ints(attrs, "sizes"), get_floats(attrs, "scales")
    plans: list[AxisPlan | None] = []
    for i, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        scale = given[i] if given else size / max(extent, 1)
        plans.append(None if extent == size and scale == 1.0 else axis_plan(extent, size, scale, attrs))
    return tuple(plans)


def _infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, sizes, scales = present(inputs, 0), get_ints(attrs, "sizes"), get_floats(attrs, "scales")
    require(len(sizes) == x.rank, "sizes has the wrong length", f"{x.rank} extents", len(sizes))
    require(all(s >= 0 for s in sizes), "negative size", "0 or more", list(sizes))
    require(len(scales) in (0, x.rank), "scales has the wrong length", f"none or {x.rank}", len(scales))
    legal = all(0.0 < s < float("inf") for s in scales)
    require(legal, "bad scale", "finite scales above 0", list(scales))
    for extent, size in zip(x.shape, sizes, strict=True):
        require(extent > 0 or size == 0, "an empty axis cannot grow", 0, size)
    return (TensorType(x.dtype, sizes),)


def _reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = present(inputs, 0)
    plans = axis_plans(x.shape, attrs)
    linear = get(attrs, "mode", str) == "linear"
    result = to_f64(x) if linear else x
    for axis, plan in enumerate(plans):
        if plan is None:
            continue
        low = result.take(plan.low, axis=axis)
        if not linear:
            result = low
            continue
        weight = plan.weight.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        result = low * (1.0 - weight) + result.take(plan.high, axis=axis) * weight
    if linear and not is_float(x):
        result = saturate(result, outputs[0].dtype)
    return (result,)


def _flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    """Three operations per interpolated axis and element."""
    if get(attrs, "mode", str) == "nearest":
        return 0
    plans = axis_plans(present(inputs, 0).shape, attrs)
    return 3 * outputs[0].size * sum(plan is not None for plan in plans)


RESIZE = OpDef(
    "resize",
    Family.MOVE,
    "x sampled at other extents: the nearest element or the N-linear mean of the neighbours; integers truncate.",
    _ARGS,
    (
        attr("sizes", tuple, "extents of the output"),
        AttrDef("scales", AttrKind.FLOATS, (), "output per input step, one per axis; empty: sizes / input extents"),
        attr("mode", "nearest", choices=("nearest", "linear")),
        attr("coordinate_mode", "half_pixel", choices=("half_pixel", "asymmetric", "align_corners")),
        attr(
            "nearest_mode", "round_prefer_floor", choices=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        ),
    ),
    _infer,
    _reference,
    _flops,
)
