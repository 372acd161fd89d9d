"""Operators that only move elements along fixed paths: reshape, views, concat, pad, tile, one_hot, trilu, resize, topk.

Model: where the path of every axis is independent of the others (slice, pad, tile, resize) it is an index map per axis:
`source[o]` is the input index that output index `o` reads. The reference takes along it, the access box is its range.
Gathers and scatters, whose paths are data, are in `gathering.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from superkernel.dtypes import DType
from superkernel.ops.common import array as nth
from superkernel.ops.common import (
    axes_of,
    axis_of,
    bool_attr,
    box_broadcast,
    box_size,
    box_with,
    broadcast_shape,
    float_attr,
    get_bool,
    get_float,
    get_int,
    get_ints,
    get_str,
    int_attr,
    ints_attr,
    is_float,
    present,
    require,
    require_rank,
    require_same_dtype,
    require_shape,
    slot,
    str_attr,
    widen,
)
from superkernel.ops.gathering import OPS as GATHERING
from superkernel.ops.opdef import (
    ANY,
    NUMERIC,
    AccessFn,
    ArgDef,
    Array,
    AttrDef,
    Attrs,
    Family,
    InferFn,
    OpDef,
    ReferenceFn,
    Types,
)
from superkernel.ops.resizing import RESIZE
from superkernel.tensor import Box, TensorType, full_box

Arrays = Sequence[Array | None]
Outputs = tuple[TensorType, ...]
Boxes = tuple[Box | None, ...]

_X = (ArgDef("x", ANY),)


def _no_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return 0


def _row(
    name: str,
    family: Family,
    doc: str,
    args: tuple[ArgDef, ...],
    attrs: tuple[AttrDef, ...],
    infer: InferFn,
    reference: ReferenceFn,
    access: AccessFn,
) -> OpDef:
    return OpDef(name, family, doc, args, attrs, infer, reference, access, _no_flops)


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
    return (nth(inputs, 0).reshape(outputs[0].shape),)


def _flat_span(shape: Sequence[int], box: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First and one past the last row-major position inside a non-empty box."""
    first = last = 0
    for extent, (start, stop) in zip(shape, box, strict=True):
        first, last = first * extent + start, last * extent + stop - 1
    return first, last + 1


def _span_box(shape: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
    """The smallest box that holds every row-major position start..stop-1."""
    box: list[tuple[int, int]] = []
    inner = prod(shape)
    together = True  # all positions agree on the dimensions so far
    for extent in shape:
        inner //= extent
        low, high = start // inner, (stop - 1) // inner
        box.append((low % extent, high % extent + 1) if together else (0, extent))
        together = together and low == high
    return box


def _reshape_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    """Both shapes split into groups of dimensions with equal products: each group maps on its own."""
    source, target = present(inputs, 0).shape, outputs[0].shape
    if box_size(box) == 0 or prod(source) == 0:
        return (full_box(source),)
    result: list[tuple[int, int]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first_i, first_j, left, right = i, j, 1, 1
        while left != right or (i == first_i and j == first_j):
            if i < len(source) and (left <= right or j == len(target)):
                left, i = left * source[i], i + 1
            else:
                right, j = right * target[j], j + 1
        start, stop = _flat_span(target[first_j:j], box[first_j:j])
        result += _span_box(source[first_i:i], start, stop)
    return (tuple(result),)


# Views: transpose, expand, slice, split


def _permutation(attrs: Attrs, rank: int) -> tuple[int, ...]:
    perm = get_ints(attrs, "perm")
    return axes_of(perm, rank, "perm") if perm else tuple(reversed(range(rank)))


def _transpose_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, perm = present(inputs, 0), get_ints(attrs, "perm")
    require(len(perm) in (0, x.rank), "perm has the wrong length", f"{x.rank} axes", list(perm))
    return (TensorType(x.dtype, tuple(x.shape[p] for p in _permutation(attrs, x.rank))),)


def _transpose_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = nth(inputs, 0)
    return (x.transpose(_permutation(attrs, x.ndim)),)


def _transpose_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    spans = dict(zip(_permutation(attrs, len(box)), box, strict=True))
    return (tuple(spans[i] for i in range(len(box))),)


def _expand_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, shape = present(inputs, 0), get_ints(attrs, "shape")
    require(all(d >= 0 for d in shape), "negative extent in shape", "0 or more", list(shape))
    return (TensorType(x.dtype, broadcast_shape([x.shape, shape])),)


def _expand_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    return (np.broadcast_to(nth(inputs, 0), outputs[0].shape),)


def _expand_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    return (box_broadcast(present(inputs, 0).shape, box),)


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
    x = nth(inputs, 0)
    for axis, taken in enumerate(slice_ranges(x.shape, attrs)):
        # A negative step that runs past index 0 has the stop -1, which NumPy would count from the end.
        stop = None if taken.stop < 0 else taken.stop
        x = x[(slice(None),) * axis + (slice(taken.start, stop, taken.step) if len(taken) else slice(0, 0),)]
    return (x,)


def _slice_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    spans = []
    for (start, stop), taken in zip(box, slice_ranges(present(inputs, 0).shape, attrs), strict=True):
        ends = (taken[start], taken[stop - 1]) if stop > start else (0, -1)
        spans.append((min(ends), max(ends) + 1) if stop > start else (0, 0))
    return (tuple(spans),)


def _split_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, sizes = present(inputs, 0), get_ints(attrs, "sizes")
    axis = axis_of(get_int(attrs, "axis"), x.rank)
    require(len(sizes) > 0 and min(sizes) >= 0, "bad sizes", "one or more sizes of at least 0", list(sizes))
    require(sum(sizes) == x.shape[axis], "sizes do not add up to the axis", x.shape[axis], list(sizes))
    return tuple(TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes)


def _split_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    stops = np.cumsum(get_ints(attrs, "sizes"))[:-1].tolist()
    return tuple(np.split(nth(inputs, 0), stops, axis=get_int(attrs, "axis")))


def _split_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    axis = axis_of(get_int(attrs, "axis"), len(box))
    before = sum(get_ints(attrs, "sizes")[:index])
    return (box_with(box, {axis: (box[axis][0] + before, box[axis][1] + before)}),)


# concat

_CONCAT_ARGS = (ArgDef("xs", ANY, variadic=True),)


def _concat_infer(inputs: Types, attrs: Attrs) -> Outputs:
    dtype = require_same_dtype(inputs, _CONCAT_ARGS)
    first = present(inputs, 0)
    axis = axis_of(get_int(attrs, "axis"), first.rank)
    total = 0
    for i, kind in enumerate(inputs):
        assert kind is not None
        where = slot(_CONCAT_ARGS, i)
        require_rank(kind, first.rank, first.rank, where)
        wanted = (*first.shape[:axis], kind.shape[axis], *first.shape[axis + 1 :])
        require_shape(kind, wanted, where)
        total += kind.shape[axis]
    return (TensorType(dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _concat_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    return (np.concatenate([nth(inputs, i) for i in range(len(inputs))], axis=get_int(attrs, "axis")),)


def _concat_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    axis = axis_of(get_int(attrs, "axis"), len(box))
    found: list[Box | None] = []
    before = 0
    for i in range(len(inputs)):
        extent = present(inputs, i).shape[axis]
        start, stop = max(box[axis][0] - before, 0), min(box[axis][1] - before, extent)
        found.append(box_with(box, {axis: (start, stop)}) if start < stop else None)
        before += extent
    return tuple(found)


# pad


def pad_sources(extent: int, begin: int, end: int, mode: str) -> tuple[int, ...]:
    """The input index that each output index of one padded axis copies, -1 where it gets the constant. Negative pads
    crop first; reflect, edge and wrap then repeat what is left."""
    first, last = max(0, -begin), extent - max(0, -end)
    kept = last - first
    found = []
    for position in range(-max(0, begin), kept + max(0, end)):
        if 0 <= position < kept:
            found.append(first + position)
        elif mode == "constant":
            found.append(-1)
        elif mode == "edge":
            found.append(first + min(max(position, 0), kept - 1))
        elif mode == "wrap":
            found.append(first + position % kept)
        else:
            turn = position % max(1, 2 * (kept - 1))
            found.append(first + min(turn, 2 * (kept - 1) - turn))
    return tuple(found)


def _pads(attrs: Attrs, rank: int) -> list[tuple[int, int]]:
    pads = get_ints(attrs, "pads")
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _pad_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, pads, mode = present(inputs, 0), get_ints(attrs, "pads"), get_str(attrs, "mode")
    require(len(pads) == 2 * x.rank, "pads has the wrong length", f"{2 * x.rank} (begins, then ends)", len(pads))
    shape = []
    for axis, (begin, end) in enumerate(_pads(attrs, x.rank)):
        kept = x.shape[axis] + min(begin, 0) + min(end, 0)
        grows = begin > 0 or end > 0
        require(kept >= 0, f"pads crop more than axis {axis} has", f"at most {x.shape[axis]}", (begin, end))
        filled = mode == "constant" or not grows or kept > 0
        require(filled, f"mode {mode} has nothing to repeat on axis {axis}", "at least one element", kept)
        shape.append(kept + max(begin, 0) + max(end, 0))
    return (TensorType(x.dtype, tuple(shape)),)


def _pad_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = widen(nth(inputs, 0))
    value = get_float(attrs, "value")
    fill = value if is_float(x) else np.asarray(value).astype(x.dtype)[()]
    for axis, (begin, end) in enumerate(_pads(attrs, x.ndim)):
        source = np.array(pad_sources(x.shape[axis], begin, end, get_str(attrs, "mode")), dtype=np.int64)
        outside = source < 0
        shape = (*x.shape[:axis], len(source), *x.shape[axis + 1 :])
        x = np.full(shape, fill, x.dtype) if x.shape[axis] == 0 else x.take(np.maximum(source, 0), axis=axis)
        x[(slice(None),) * axis + (outside,)] = fill
    return (x,)


def _pad_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    x = present(inputs, 0)
    spans = []
    for (begin, end), (start, stop), extent in zip(_pads(attrs, x.rank), box, x.shape, strict=True):
        used = [i for i in pad_sources(extent, begin, end, get_str(attrs, "mode"))[start:stop] if i >= 0]
        if not used:
            return (None,)
        spans.append((min(used), max(used) + 1))
    return (tuple(spans),)


# tile, trilu, one_hot, topk


def _tile_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, repeats = present(inputs, 0), get_ints(attrs, "repeats")
    require(len(repeats) == x.rank, "repeats has the wrong length", x.rank, len(repeats))
    require(all(r >= 0 for r in repeats), "negative repeats", "0 or more", list(repeats))
    return (TensorType(x.dtype, tuple(d * r for d, r in zip(x.shape, repeats, strict=True))),)


def _tile_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    return (np.tile(nth(inputs, 0), get_ints(attrs, "repeats")),)


def _tile_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    spans = []
    for extent, (start, stop) in zip(present(inputs, 0).shape, box, strict=True):
        if stop <= start:
            spans.append((0, 0))
            continue
        low, high = start % extent, (stop - 1) % extent
        spans.append((low, high + 1) if start // extent == (stop - 1) // extent else (0, extent))
    return (tuple(spans),)


def _trilu_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    require_rank(x, 2, None, slot(_X, 0))
    return (x,)


def _trilu_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, k = widen(nth(inputs, 0)), get_int(attrs, "k")
    columns, rows = np.arange(x.shape[-1]), np.arange(x.shape[-2])[:, None]
    kept = columns - rows >= k if get_bool(attrs, "upper") else columns - rows <= k
    return (np.where(kept, x, np.zeros((), x.dtype)),)


def _trilu_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    return (box,)


_ONE_HOT_ARGS = (
    ArgDef("indices", NUMERIC, doc="values outside -depth .. depth-1 give a row of off; floats are truncated"),
    ArgDef("values", ANY, doc="[off, on]"),
)


def _one_hot_infer(inputs: Types, attrs: Attrs) -> Outputs:
    indices, values, depth = present(inputs, 0), present(inputs, 1), get_int(attrs, "depth")
    require_shape(values, (2,), slot(_ONE_HOT_ARGS, 1))
    require(depth >= 0, "negative depth", "0 or more", depth)
    axis = axis_of(get_int(attrs, "axis"), indices.rank + 1)
    return (TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:])),)


def _one_hot_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    indices, values = np.trunc(widen(nth(inputs, 0))), widen(nth(inputs, 1))
    axis, depth = axis_of(get_int(attrs, "axis"), outputs[0].rank), get_int(attrs, "depth")
    signed = indices if indices.dtype.kind == "f" else indices.astype(np.int64)
    row = np.expand_dims(np.where(signed < 0, signed + depth, signed), axis)
    levels = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(outputs[0].rank)])
    return (np.where(row == levels, values[1], values[0]),)


def _one_hot_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    axis = axis_of(get_int(attrs, "axis"), len(box))
    return (box[:axis] + box[axis + 1 :], ((0, 2),))


def _topk_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, k = present(inputs, 0), get_int(attrs, "k")
    axis = axis_of(get_int(attrs, "axis"), x.rank)
    require(0 <= k <= x.shape[axis], "k is out of range", f"0 to {x.shape[axis]}", k)
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape), TensorType(DType.I64, shape))


def _topk_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = widen(nth(inputs, 0))
    axis, k = axis_of(get_int(attrs, "axis"), x.ndim), get_int(attrs, "k")
    if get_bool(attrs, "largest"):
        # A stable ascending sort of the mirrored axis, mirrored back: descending, equal values by rising index.
        mirrored = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(mirrored, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis), chosen.astype(np.int64)


def _topk_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    axis = axis_of(get_int(attrs, "axis"), len(box))
    return (box_with(box, {axis: (0, present(inputs, 0).shape[axis])}),)


def _topk_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return present(inputs, 0).size * max(1, get_int(attrs, "k")).bit_length()


_SHAPE = (ints_attr("shape", doc="extents of the output"),)
_RESHAPE_ATTRS = (ints_attr("shape", doc="extents of the output; one may be -1: what is left"),)
_SLICE_ATTRS = (
    ints_attr("starts"),
    ints_attr("ends"),
    ints_attr("axes", (), "empty: the first axes"),
    ints_attr("steps", (), "empty: all 1; may be negative"),
)
_PAD_ATTRS = (
    ints_attr("pads", doc="begins of all axes, then ends; negative ones crop"),
    str_attr("mode", "constant", ("constant", "reflect", "edge", "wrap")),
    float_attr("value", 0.0, "what mode constant fills in"),
)
_TOPK_ATTRS = (
    int_attr("k"),
    int_attr("axis", -1),
    bool_attr("largest", True),
    bool_attr("sorted", True, "False leaves the order open"),
)
_AXIS = (int_attr("axis"),)

OPS: tuple[OpDef, ...] = (
    _row(
        "reshape",
        Family.RESHAPE,
        "The same elements in row-major order, in another shape.",
        _X,
        _RESHAPE_ATTRS,
        _reshape_infer,
        _reshape_reference,
        _reshape_access,
    ),
    _row(
        "transpose",
        Family.VIEW,
        "Axes permuted: output axis i is input axis perm[i].",
        _X,
        (ints_attr("perm", (), "empty: all axes reversed"),),
        _transpose_infer,
        _transpose_reference,
        _transpose_access,
    ),
    _row(
        "expand",
        Family.VIEW,
        "x broadcast against shape (either may have the extent 1).",
        _X,
        _SHAPE,
        _expand_infer,
        _expand_reference,
        _expand_access,
    ),
    _row(
        "slice",
        Family.VIEW,
        "x[start:end:step] on the given axes, clamped as in NumPy.",
        _X,
        _SLICE_ATTRS,
        _slice_infer,
        _slice_reference,
        _slice_access,
    ),
    _row(
        "split",
        Family.VIEW,
        "Consecutive parts along an axis, one output per size.",
        _X,
        (int_attr("axis", 0), ints_attr("sizes", doc="extents of the parts")),
        _split_infer,
        _split_reference,
        _split_access,
    ),
    _row(
        "concat",
        Family.MOVE,
        "The inputs one behind the other along an axis.",
        _CONCAT_ARGS,
        _AXIS,
        _concat_infer,
        _concat_reference,
        _concat_access,
    ),
    _row(
        "pad",
        Family.MOVE,
        "x with a border of a constant, or of its own reflected, edge or repeated elements.",
        _X,
        _PAD_ATTRS,
        _pad_infer,
        _pad_reference,
        _pad_access,
    ),
    _row(
        "tile",
        Family.MOVE,
        "x repeated along every axis.",
        _X,
        (ints_attr("repeats", doc="one per axis"),),
        _tile_infer,
        _tile_reference,
        _tile_access,
    ),
    *GATHERING,
    _row(
        "one_hot",
        Family.MOVE,
        "on where the level along axis equals the index, else off.",
        _ONE_HOT_ARGS,
        (int_attr("depth"), int_attr("axis", -1)),
        _one_hot_infer,
        _one_hot_reference,
        _one_hot_access,
    ),
    _row(
        "trilu",
        Family.MOVE,
        "The upper or lower triangle of the last two axes, 0 elsewhere.",
        _X,
        (bool_attr("upper", True), int_attr("k", 0, "diagonal to cut at; above the main one where positive")),
        _trilu_infer,
        _trilu_reference,
        _trilu_access,
    ),
    RESIZE,
    OpDef(
        "topk",
        Family.MOVE,
        "The k largest or smallest along an axis and their indices; of equal values the lowest index first.",
        (ArgDef("x", NUMERIC),),
        _TOPK_ATTRS,
        _topk_infer,
        _topk_reference,
        _topk_access,
        _topk_flops,
    ),
)
