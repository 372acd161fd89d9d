"""Pools over 1 or more spatial axes of [N, C, spatial...]: max, average, Lp, and the global ones.

Model: padding never enters a maximum; it enters an average only with `count_include_pad`, and then only as far as the
padding reaches (not the part of a last window that ceil_mode lets hang over). A window over padding only gives the
least value of the type (max) or 0 (average).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, get, get_ints, present, require, require_rank, slot, to_f64, widen
from superkernel.ops.opdef import FLOATS, NUMERIC, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types
from superkernel.ops.reduce import lowest
from superkernel.ops.windows import Window, spatial, trailing, window_taps, windows

_X = (ArgDef("x", FLOATS, doc="[N, C, spatial]"),)


def pool_windows(shape: Sequence[int], attrs: Attrs) -> tuple[Window, ...]:
    """The window of each spatial axis of a pool over an input of `shape`."""
    rank = len(shape) - 2
    require(len(get_ints(attrs, "kernel")) > 0, "kernel is empty", f"{rank} extents", "none", "attribute 'kernel'")
    kernel = spatial(attrs, "kernel", rank, 1, 1)
    ceil_mode = "ceil_mode" in attrs and get(attrs, "ceil_mode", bool)
    return windows(shape[2:], kernel, attrs, dilated="dilations" in attrs, ceil_mode=ceil_mode)


def _pool_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    require_rank(x, 3, None, slot(_X, 0))
    axes = pool_windows(x.shape, attrs)
    for axis, window in enumerate(axes):
        deepest = max(window.begin, window.end)
        require(
            deepest < window.reach, f"pads of spatial axis {axis} hold a whole window", f"< {window.reach}", deepest
        )
    return (TensorType(x.dtype, (*x.shape[:2], *(w.size for w in axes))),)


def _pool_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return outputs[0].size * prod(get_ints(attrs, "kernel"))


def _max_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = widen(present(inputs, 0))
    out = np.full(outputs[0].shape, lowest(x.dtype), x.dtype)
    for _, targets, sources in window_taps(pool_windows(x.shape, attrs)):
        part = out[trailing(targets)]
        np.maximum(part, x[trailing(sources)], out=part)
    return (out,)


def _summed(x: Array, attrs: Attrs, outputs: Outputs) -> Array:
    """The sum of each window."""
    out = np.zeros(outputs[0].shape)
    for _, targets, sources in window_taps(pool_windows(x.shape, attrs)):
        out[trailing(targets)] += x[trailing(sources)]
    return out


def window_counts(window: Window, include_pad: bool) -> Array:
    """Per output of one axis: how many positions its average divides by."""
    first = np.arange(window.size)[:, None] * window.stride + np.arange(window.kernel) * window.dilation
    low, high = (0, window.begin + window.extent + window.end) if include_pad else (0, window.extent)
    position = first if include_pad else first - window.begin
    counts: Array = ((position >= low) & (position < high)).sum(axis=1)
    return counts


def _average_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(present(inputs, 0))
    total = _summed(x, attrs, outputs)
    axes = pool_windows(x.shape, attrs)
    for axis, window in enumerate(axes):
        counts = np.maximum(window_counts(window, get(attrs, "count_include_pad", bool)), 1)
        total /= counts.reshape(-1, *(1,) * (len(axes) - 1 - axis))
    return (total,)


POWER_MAX = 64  # kernels multiply so often


def _lp_infer(inputs: Types, attrs: Attrs) -> Outputs:
    p = get(attrs, "p", int)
    require(0 < p <= POWER_MAX, "bad p", f"1 to {POWER_MAX}", p, "attribute 'p'")
    return _pool_infer(inputs, attrs)


def _lp_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    p = get(attrs, "p", int)
    total = _summed(np.abs(to_f64(present(inputs, 0))) ** p, attrs, outputs)
    return (total ** (1.0 / p),)


# Global pools


def _global_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    require_rank(x, 3, None, slot(_X, 0))
    return (TensorType(x.dtype, (*x.shape[:2], *(1,) * (x.rank - 2))),)


def _global_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return present(inputs, 0).size


def _global_average_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(present(inputs, 0))
    total = x.sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    return (total / np.float64(prod(x.shape[2:])),)


def _global_max_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = widen(present(inputs, 0))
    axes = tuple(range(2, x.ndim))
    return (np.maximum.reduce(x, axis=axes, keepdims=True, initial=lowest(x.dtype)),)


_KERNEL = attr("kernel", tuple, "extents of the window")
_STRIDES = attr("strides", (), "one per spatial axis; empty: all 1")
_PADS = attr("pads", (), "begins of the spatial axes, then ends; empty: none")
_DILATIONS = attr("dilations", (), "one per spatial axis; empty: all 1")
_CEIL = attr("ceil_mode", False, "a last window may hang over the end")
_ATTRS = (_KERNEL, _STRIDES, _PADS, _DILATIONS, _CEIL)

OPS: tuple[OpDef, ...] = (
    OpDef(
        "max_pool",
        Family.POOL,
        "The greatest of each window; NaN if any is.",
        (ArgDef("x", NUMERIC, doc="[N, C, spatial]"),),
        _ATTRS,
        _pool_infer,
        _max_reference,
        _pool_flops,
    ),
    OpDef(
        "avg_pool",
        Family.POOL,
        "The mean of each window.",
        _X,
        (*_ATTRS, attr("count_include_pad", False, "padding counts as zeros")),
        _pool_infer,
        _average_reference,
        _pool_flops,
    ),
    OpDef(
        "global_avg_pool",
        Family.POOL,
        "The mean over all spatial axes.",
        _X,
        (),
        _global_infer,
        _global_average_reference,
        _global_flops,
    ),
    OpDef(
        "global_max_pool",
        Family.POOL,
        "The greatest over all spatial axes.",
        _X,
        (),
        _global_infer,
        _global_max_reference,
        _global_flops,
    ),
    OpDef(
        "lp_pool",
        Family.POOL,
        "(sum of |x|^p)^(1/p) of each window.",
        _X,
        (_KERNEL, _STRIDES, _PADS, attr("p", 2, f"1 to {POWER_MAX}")),
        _lp_infer,
        _lp_reference,
        lambda inputs, outputs, attrs: 2 * _pool_flops(inputs, outputs, attrs),
    ),
)
