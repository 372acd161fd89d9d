"""Reductions and scans along axes: sums, extremes, products, norms, argmax, cumsum.

Model: `axes` empty means all. Integers reduce in their own type and wrap; floats in float64. Over nothing the result is
the identity of the operation: 0 for sums, 1 for products, the least value for max, the greatest for min, NaN for means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, axes_of, axis_of, get, get_ints, present, require, widen
from superkernel.ops.opdef import (
    ANY,
    FLOATS,
    NUMERIC,
    ArgDef,
    Array,
    Arrays,
    AttrDef,
    Attrs,
    Family,
    OpDef,
    Outputs,
    Types,
)

Reduction = Callable[[Array, tuple[int, ...]], Array]  # keeps the reduced dimensions, as 1


def reduced_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes a legal reduction works on, counted from the front, rising."""
    axes = get_ints(attrs, "axes")
    return tuple(sorted(axes_of(axes, rank))) if axes else tuple(range(rank))


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    return (TensorType(x.dtype, _kept_shape(x.shape, reduced_axes(attrs, x.rank), get(attrs, "keepdims", bool))),)


def _reduction(name: str, doc: str, formula: Reduction, dtypes: frozenset[DType], flops_per_element: int = 1) -> OpDef:
    def reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
        x = widen(present(inputs, 0))
        result = formula(x, reduced_axes(attrs, x.ndim))
        return (np.asarray(result).reshape(outputs[0].shape),)

    def flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
        return flops_per_element * present(inputs, 0).size

    attr_defs = (attr("axes", (), "empty: all axes"), attr("keepdims", True, "reduced axes stay, as 1"))
    return OpDef(name, Family.REDUCE, doc, (ArgDef("x", dtypes),), attr_defs, _infer, reference, flops)


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    result: Array = x.sum(axis=axes, keepdims=True, dtype=x.dtype)
    return result


def _prod(x: Array, axes: tuple[int, ...]) -> Array:
    result: Array = x.prod(axis=axes, keepdims=True, dtype=x.dtype)
    return result


def lowest(dtype: np.dtype[Any]) -> float | int | bool:
    """The identity of max: no value of the type is less."""
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _highest(dtype: np.dtype[Any]) -> float | int | bool:
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else int(np.iinfo(dtype).max)


def _max(x: Array, axes: tuple[int, ...]) -> Array:
    result: Array = np.maximum.reduce(x, axis=axes, keepdims=True, initial=lowest(x.dtype))
    return result


def _min(x: Array, axes: tuple[int, ...]) -> Array:
    result: Array = np.minimum.reduce(x, axis=axes, keepdims=True, initial=_highest(x.dtype))
    return result


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    result: Array = _sum(x, axes) / np.prod([x.shape[a] for a in axes], dtype=np.float64)
    return result


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    """log(sum(e^x)), shifted by the greatest element where that is finite."""
    top = _max(x, axes)
    shift = np.where(np.isfinite(top), top, 0.0)
    result: Array = np.log(_sum(np.exp(x - shift), axes)) + shift
    return result


# argmax, argmin, cumsum


def _arg_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    axis = axis_of(get(attrs, "axis", int), x.rank)
    shape = _kept_shape(x.shape, (axis,), get(attrs, "keepdims", bool))
    out = TensorType(DType.I64, shape)
    require(x.shape[axis] > 0 or out.size == 0, "an empty axis has no extreme", "at least one element", x)
    return (out,)


def _element_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return present(inputs, 0).size


def _arg(name: str, doc: str, find: Callable[..., Array]) -> OpDef:
    def reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
        x = widen(present(inputs, 0))
        if outputs[0].size == 0:
            return (np.zeros(outputs[0].shape, np.int64),)
        axis = axis_of(get(attrs, "axis", int), x.ndim)
        if get(attrs, "select_last_index", bool):
            found = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis)
        else:
            found = find(x, axis=axis)
        return (np.asarray(found, np.int64).reshape(outputs[0].shape),)

    attrs = (
        attr("axis", 0),
        attr("keepdims", True, "the reduced axis stays, as 1"),
        attr("select_last_index", False, "of equal values the last index instead of the first"),
    )
    args = (ArgDef("x", NUMERIC),)
    return OpDef(name, Family.REDUCE, doc, args, attrs, _arg_infer, reference, _element_flops, discontinuous=True)


def _cumsum_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    axis_of(get(attrs, "axis", int), x.rank)
    return (x,)


def _cumsum_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = widen(present(inputs, 0))
    axis, reverse = axis_of(get(attrs, "axis", int), x.ndim), get(attrs, "reverse", bool)
    running = np.flip(x, axis) if reverse else x
    total = running.cumsum(axis=axis, dtype=x.dtype)
    if get(attrs, "exclusive", bool):
        zero = np.zeros((*x.shape[:axis], min(1, x.shape[axis]), *x.shape[axis + 1 :]), x.dtype)
        total = np.concatenate([zero, total[(slice(None),) * axis + (slice(0, -1),)]], axis=axis)
    return (np.flip(total, axis) if reverse else total,)


_CUMSUM_ATTRS: tuple[AttrDef, ...] = (
    attr("axis", 0),
    attr("exclusive", False, "leave the element itself out"),
    attr("reverse", False, "from the end"),
)

OPS: tuple[OpDef, ...] = (
    _reduction("reduce_sum", "Sum.", _sum, NUMERIC),
    _reduction("reduce_mean", "Sum / count.", _mean, FLOATS),
    _reduction("reduce_max", "The greatest; NaN if any is; for bool: any.", _max, ANY),
    _reduction("reduce_min", "The least; NaN if any is; for bool: all.", _min, ANY),
    _reduction("reduce_prod", "Product.", _prod, NUMERIC),
    _reduction("reduce_l1", "Sum of |x|.", lambda x, axes: _sum(np.abs(x), axes), NUMERIC, 2),
    _reduction("reduce_l2", "sqrt(sum of x^2).", lambda x, axes: np.sqrt(_sum(x * x, axes)), FLOATS, 2),
    _reduction("reduce_log_sum", "log(sum).", lambda x, axes: np.log(_sum(x, axes)), FLOATS),
    _reduction("reduce_log_sum_exp", "log(sum of e^x).", _log_sum_exp, FLOATS, 2),
    _reduction("reduce_sum_square", "Sum of x^2.", lambda x, axes: _sum(x * x, axes), NUMERIC, 2),
    _arg("argmax", "Index of the greatest along an axis.", np.argmax),
    _arg("argmin", "Index of the least along an axis.", np.argmin),
    OpDef(
        "cumsum",
        Family.REDUCE,
        "Running sum along an axis.",
        (ArgDef("x", NUMERIC),),
        _CUMSUM_ATTRS,
        _cumsum_infer,
        _cumsum_reference,
        _element_flops,
    ),
)
