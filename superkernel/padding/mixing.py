"""Rules of operators that take elements of an axis together: lines, reductions, sums, windows, norms."""

from __future__ import annotations

from dataclasses import replace

from superkernel.ops.common import get, get_floats, get_ints
from superkernel.ops.pool import pool_windows
from superkernel.ops.reduce import reduced_axes
from superkernel.padding.guards import Fill, Guard
from superkernel.padding.padded import (
    PaddedNode,
    PaddedResult,
    apart,
    apart_shape,
    broadcast_result,
    guard,
    refuse,
    rest_whole,
    whole_axes,
)
from superkernel.padding.places import unmoved

_LINE = "takes all elements of a line together"


def line(step: PaddedNode) -> PaddedResult:
    """Along one axis, with no value that changes nothing."""
    step.same_attrs()
    return apart(step, {step.axis(step.input(0).rank)}, _LINE)


def topk(step: PaddedNode) -> PaddedResult:
    """Of equal values the first is found first: one that does not lie in the padding. No value is behind a NaN where
    the smallest are asked for. Fewer are the first of more, in order."""
    step.same_attrs(*(["k"] if step.attrs["sorted"] else []))
    x, axis = step.input(0), step.axis(step.input(0).rank)
    if not get(step.attrs, "largest", bool):
        return line(step)
    most = step.padded_outputs[0].shape[axis]
    if step.outputs[0].shape[axis] > most:
        refuse("attribute 'k' changes with the sizes", f"at most {most}", str(step.attrs["k"]))
    guards = guard(step, 0, axis, Fill.LEAST, _LINE)
    places = (*x.places[:axis], unmoved(step.outputs[0].shape[axis]), *x.places[axis + 1 :])
    return PaddedResult([places, places], guards, below=x.shape[axis])


def lp_norm(step: PaddedNode) -> PaddedResult:
    """Zeros add nothing to a sum of powers."""
    step.same_attrs()
    x = step.input(0)
    return PaddedResult([x.places], guard(step, 0, step.axis(x.rank), Fill.ZERO, _LINE))


def softmax(step: PaddedNode) -> PaddedResult:
    """Of the least value, the exponential is 0; so is the share."""
    step.same_attrs()
    x = step.input(0)
    axis = step.axis(x.rank)
    guards = guard(step, 0, axis, Fill.LEAST, _LINE)
    return PaddedResult([x.places], guards, axis if guards and step.definition.name == "softmax" else None)


_IDENTITIES = {
    **dict.fromkeys(("sum", "l1", "l2", "sum_square", "log_sum"), Fill.ZERO),
    **dict.fromkeys(("max", "log_sum_exp"), Fill.LEAST),
    "min": Fill.GREATEST,
    "prod": Fill.ONE,
    "mean": Fill.UNCOUNTED,
}


def reduced(step: PaddedNode) -> PaddedResult:
    """Also argmax and argmin, which find what comes first: that does not lie in the padding."""
    step.same_attrs()
    x, name, what = step.input(0), step.definition.name, "reduces an axis"
    drops = not step.attrs["keepdims"]
    if "axes" in step.attrs:
        axes, fill = reduced_axes(step.attrs, x.rank), _IDENTITIES.get(name.removeprefix("reduce_"))
    else:
        axes, fill = (step.axis(x.rank),), Fill.LEAST if name == "argmax" else Fill.GREATEST
        if get(step.attrs, "select_last_index", bool):
            fill = None
    if fill is None:
        return apart(step, axes, what, drops=drops)
    guards = tuple(each for axis in axes for each in guard(step, 0, axis, fill, what))
    kept = [() if axis in axes else x.places[axis] for axis in range(x.rank) if not (drops and axis in axes)]
    return PaddedResult([tuple(kept)], guards, below=None if "axes" in step.attrs else x.shape[axes[0]])


def scan(step: PaddedNode) -> PaddedResult:
    """Running sums: from the front they do not reach the padding, from the end zeros add nothing."""
    x, axis = step.input(0), step.axis(step.input(0).rank)
    step.same_attrs()
    what = "sums along an axis"
    guards: tuple[Guard, ...] = ()
    if get(step.attrs, "reverse", bool):
        guards = guard(step, 0, axis, Fill.ZERO, what)
    elif not x.is_unmoved(axis):
        whole_axes(x, [axis], what)
    return PaddedResult([x.places], guards)


def tail(step: PaddedNode) -> PaddedResult:
    """Norms over an axis and all behind it; scale and bias are broadcast."""
    step.same_attrs()
    x = step.input(0)
    whole_axes(x, range(step.axis(x.rank), x.rank), "normalises over an axis")
    return broadcast_result(step, step.inputs)


def samples(step: PaddedNode) -> PaddedResult:
    """Samples, along the first axis, for themselves: convolutions, norms of groups of channels."""
    step.same_attrs()
    rest_whole(step)
    return apart_shape(step, 1, "takes neighbours along an axis together")


def convolved(step: PaddedNode) -> PaddedResult:
    """A convolution reads zeros behind the end of an image anyway; of a transposed one they add nothing."""
    step.same_attrs()
    rest_whole(step)
    return _windows(step, 1, Fill.ZERO)


def largest(step: PaddedNode) -> PaddedResult:
    """max_pool, which sees nothing behind the end of an image; that of the whole image."""
    step.same_attrs()
    return _windows(step, 2, Fill.LEAST)


def summed(step: PaddedNode) -> PaddedResult:
    """lp_pool: sums of powers, which are not divided."""
    step.same_attrs()
    return _windows(step, 2, Fill.ZERO)


def averaged(step: PaddedNode) -> PaddedResult:
    """avg_pool: each window is divided by as many elements as in the padded image, where none hangs over its end."""
    step.same_attrs()
    x, windows = step.input(0), pool_windows(step.input(0).shape, step.attrs)
    counts_pads, hangs_over = (get(step.attrs, name, bool) for name in ("count_include_pad", "ceil_mode"))
    for axis, window in enumerate(windows, start=2):
        if hangs_over or (window.end > 0 and not counts_pads):
            whole_axes(x, [axis], "may divide by fewer elements at the end of an axis")
    found = _windows(step, 2, Fill.ZERO)
    return replace(found, guards=tuple(each for each in found.guards if windows[each.axis].end > 0))


def mean_of_all(step: PaddedNode) -> PaddedResult:
    """global_avg_pool"""
    return _windows(step, 2, Fill.UNCOUNTED)


def _windows(step: PaddedNode, free: int, fill: Fill) -> PaddedResult:
    """Windows along the axes behind channels, of which each result is one; the first `free` axes, for themselves."""
    x, what = step.input(0), "takes neighbours along an axis together"
    whole_axes(x, range(free, 2), what)
    guards = tuple(each for axis in range(2, x.rank) for each in guard(step, 0, axis, fill, what))
    shapes = step.outputs[0].shape, step.padded_outputs[0].shape
    if any(a > b for a, b in zip(*shapes, strict=True)):
        refuse("an extent shrinks where sizes grow")
    return PaddedResult([(*x.places[:free], *map(unmoved, shapes[0][free:]))], guards)


def channels(step: PaddedNode) -> PaddedResult:
    """batch_norm, lrn: all axes but that of channels for themselves."""
    step.same_attrs()
    rest_whole(step)
    return apart(step, {1}, "has parameters per channel, or takes channels together,")


def resized(step: PaddedNode) -> PaddedResult:
    """Samples and channels that keep their extents, for themselves."""
    step.same_attrs("sizes")
    x = step.input(0)
    scales = get_floats(step.attrs, "scales") or (1.0,) * x.rank
    kept = [
        extents == (x.shape[axis], x.padded[axis]) and scales[axis] == 1.0
        for axis, extents in enumerate(zip(step.outputs[0].shape, step.padded_outputs[0].shape, strict=True))
    ]
    whole_axes(x, [axis for axis in range(x.rank) if not kept[axis]], "interpolates along an axis")
    sizes = get_ints(step.attrs, "sizes")
    if any(a != b for a, b, keep in zip(sizes, step.padded_outputs[0].shape, kept, strict=True) if not keep):
        refuse("its results' extents change with the sizes")
    return PaddedResult([tuple(x.places[a] if keep else unmoved(sizes[a]) for a, keep in enumerate(kept))])
