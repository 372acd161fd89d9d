"""Operators that need no copy: reshape (an alias) and the affine views transpose, expand, slice, split.

Model: a view's element [o] is one input element whose position is affine in o; reshape keeps the row-major order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, axes_of, axis_of, broadcast_shape, get, get_ints, present, require
from superkernel.ops.opdef import MOVED, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types

_X = (ArgDef("x", MOVED),)


# reshape


def _reshape_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, shape = present(inputs, 0), get_ints(attrs, "shape")
    require(all(d >= -1 for d in shape), "bad extent in shape", "0 or more, or one -1", list(shape))
    require(shape.count(-1) <= 1, "more than one -1 in shape", "at most one", list(shape))
    known = prod(d for d in shape if d != -1)
    if -1 in shape:
        fits = known > 0 and x.size % known == 0
        require(fits, "the -1 in shape has no single answer", f"a divisor of {x.size} elements", list(shape))
        shape = tuple(x.size // known if d == -1 else d for d in shape)
    require(prod(shape) == x.size, "shape has another number of elements", f"{x.size} ({x})", list(shape))
    return (TensorType(x.dtype, shape),)


def _reshape_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    return (present(inputs, 0).reshape(outputs[0].shape),)


# Views: transpose, expand, slice, split


def _permutation(attrs: Attrs, rank: int) -> tuple[int, ...]:
    perm = get_ints(attrs, "perm")
    return axes_of(perm, rank, "perm") if perm else tuple(reversed(range(rank)))


def _transpose_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, perm = present(inputs, 0), get_ints(attrs, "perm")
    require(len(perm) in (0, x.rank), "perm has the wrong length", f"{x.rank} axes", list(perm))
    return (TensorType(x.dtype, tuple(x.shape[p] for p in _permutation(attrs, x.rank))),)


def _transpose_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = present(inputs, 0)
    return (x.transpose(_permutation(attrs, x.ndim)),)


def _expand_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, shape = present(inputs, 0), get_ints(attrs, "shape")
    require(all(d >= 0 for d in shape), "negative extent in shape", "0 or more", list(shape))
    return (TensorType(x.dtype, broadcast_shape([x.shape, shape])),)


def _expand_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    return (np.broadcast_to(present(inputs, 0), outputs[0].shape),)


def slice_ranges(shape: Sequence[int], attrs: Attrs) -> tuple[range, ...]:
    """Per dimension the input indices that `slice` takes, after NumPy's clamping. `attrs`: a legal slice's."""
    starts, ends = get_ints(attrs, "starts"), get_ints(attrs, "ends")
    axes = axes_of(get_ints(attrs, "axes") or range(len(starts)), len(shape))
    steps = get_ints(attrs, "steps") or (1,) * len(starts)
    taken = [range(extent) for extent in shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        taken[axis] = range(*slice(start, end, step).indices(shape[axis]))
    return tuple(taken)


def _slice_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, count = present(inputs, 0), len(get_ints(attrs, "starts"))
    for name in ("ends", "axes", "steps"):
        given = get_ints(attrs, name)
        legal = (count,) if name == "ends" else (count, 0)
        require(len(given) in legal, f"{name} has the wrong length", f"{count}, as starts", len(given))
    require(count <= x.rank, "more starts than dimensions", f"at most {x.rank}", count)
    require(0 not in get_ints(attrs, "steps"), "a step is 0", "steps that are not 0", list(get_ints(attrs, "steps")))
    return (TensorType(x.dtype, tuple(len(r) for r in slice_ranges(x.shape, attrs))),)


def _slice_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = present(inputs, 0)
    for axis, taken in enumerate(slice_ranges(x.shape, attrs)):
        # A negative step that runs past index 0 has the stop -1, which NumPy would count from the end.
        stop = None if taken.stop < 0 else taken.stop
        x = x[(slice(None),) * axis + (slice(taken.start, stop, taken.step) if len(taken) else slice(0, 0),)]
    return (x,)


def _split_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, sizes = present(inputs, 0), get_ints(attrs, "sizes")
    axis = axis_of(get(attrs, "axis", int), x.rank)
    require(len(sizes) > 0 and min(sizes) >= 0, "bad sizes", "one or more sizes of at least 0", list(sizes))
    require(sum(sizes) == x.shape[axis], "sizes do not add up to the axis", x.shape[axis], list(sizes))
    return tuple(TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes)


def _split_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    stops = np.cumsum(get_ints(attrs, "sizes"))[:-1].tolist()
    return tuple(np.split(present(inputs, 0), stops, axis=get(attrs, "axis", int)))


_SHAPE = (attr("shape", tuple, "extents of the output"),)
_RESHAPE_ATTRS = (attr("shape", tuple, "extents of the output; one may be -1: what is left"),)
_SLICE_ATTRS = (
    attr("starts", tuple),
    attr("ends", tuple),
    attr("axes", (), "empty: the first axes"),
    attr("steps", (), "empty: all 1; may be negative"),
)

OPS: tuple[OpDef, ...] = (
    OpDef(
        "reshape",
        Family.RESHAPE,
        "The same elements in row-major order, in another shape.",
        _X,
        _RESHAPE_ATTRS,
        _reshape_infer,
        _reshape_reference,
    ),
    OpDef(
        "transpose",
        Family.VIEW,
        "Axes permuted: output axis i is input axis perm[i].",
        _X,
        (attr("perm", (), "empty: all axes reversed"),),
        _transpose_infer,
        _transpose_reference,
    ),
    OpDef(
        "expand",
        Family.VIEW,
        "x broadcast against shape (either may have the extent 1).",
        _X,
        _SHAPE,
        _expand_infer,
        _expand_reference,
    ),
    OpDef(
        "slice",
        Family.VIEW,
        "x[start:end:step] on the given axes, clamped as in NumPy.",
        _X,
        _SLICE_ATTRS,
        _slice_infer,
        _slice_reference,
    ),
    OpDef(
        "split",
        Family.VIEW,
        "Consecutive parts along an axis, one output per size.",
        _X,
        (attr("axis", 0), attr("sizes", tuple, "extents of the parts")),
        _split_infer,
        _split_reference,
        results=("parts...",),
    ),
)
