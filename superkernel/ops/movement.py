"""Operators that move elements along fixed paths: concat, pad, tile, one_hot, trilu, topk; and the table of all moves.

Model: where the path of every axis is independent of the others (slice, pad, tile, resize) it is an index map per axis:
`source[o]` is the input index that output index `o` reads. The reference takes along it.
Views are in `views.py`; gathers and scatters, whose paths are data, in `gathering.py`; resize in `resizing.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import (
    attr,
    axis_of,
    get,
    get_ints,
    is_float,
    present,
    require,
    require_rank,
    require_same_dtype,
    require_shape,
    slot,
    widen,
)
from superkernel.ops.gathering import OPS as GATHERING
from superkernel.ops.opdef import ANY, MOVED, NUMERIC, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types
from superkernel.ops.resizing import RESIZE
from superkernel.ops.views import OPS as VIEWS

_X = (ArgDef("x", ANY),)


# concat

_CONCAT_ARGS = (ArgDef("xs", MOVED, variadic=True),)


def _concat_infer(inputs: Types, attrs: Attrs) -> Outputs:
    dtype = require_same_dtype(inputs, _CONCAT_ARGS)
    first = present(inputs, 0)
    axis = axis_of(get(attrs, "axis", int), first.rank)
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
    return (np.concatenate([present(inputs, i) for i in range(len(inputs))], axis=get(attrs, "axis", int)),)


# pad


def pad_sources(extent: int, begin: int, end: int, mode: str) -> NDArray[np.int64]:
    """The input index that each output index of one padded axis copies, -1 where it gets the constant. Negative pads
    crop first; reflect, edge and wrap then repeat what is left."""
    first, last = max(0, -begin), extent - max(0, -end)
    kept = last - first
    position = np.arange(-max(0, begin), kept + max(0, end), dtype=np.int64)
    if mode == "constant":
        return np.where((position >= 0) & (position < kept), first + position, -1)
    if mode == "edge":
        return first + position.clip(0, max(0, kept - 1))
    if mode == "wrap":
        return first + position % max(1, kept)
    turn = position % max(1, 2 * (kept - 1))
    return first + np.minimum(turn, 2 * (kept - 1) - turn)


def _pads(attrs: Attrs, rank: int) -> list[tuple[int, int]]:
    pads = get_ints(attrs, "pads")
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _pad_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, pads, mode = present(inputs, 0), get_ints(attrs, "pads"), get(attrs, "mode", str)
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
    x = widen(present(inputs, 0))
    value = get(attrs, "value", float)
    fill = value if is_float(x) else np.asarray(value).astype(x.dtype)[()]
    for axis, (begin, end) in enumerate(_pads(attrs, x.ndim)):
        source = pad_sources(x.shape[axis], begin, end, get(attrs, "mode", str))
        outside = source < 0
        shape = (*x.shape[:axis], len(source), *x.shape[axis + 1 :])
        x = np.full(shape, fill, x.dtype) if x.shape[axis] == 0 else x.take(np.maximum(source, 0), axis=axis)
        x[(slice(None),) * axis + (outside,)] = fill
    return (x,)


# tile, trilu, one_hot, topk

_TILE_ARGS = (ArgDef("x", MOVED),)


def _tile_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, repeats = present(inputs, 0), get_ints(attrs, "repeats")
    require(len(repeats) == x.rank, "repeats has the wrong length", x.rank, len(repeats))
    require(all(r >= 0 for r in repeats), "negative repeats", "0 or more", list(repeats))
    return (TensorType(x.dtype, tuple(d * r for d, r in zip(x.shape, repeats, strict=True))),)


def _tile_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    return (np.tile(present(inputs, 0), get_ints(attrs, "repeats")),)


def _trilu_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    require_rank(x, 2, None, slot(_X, 0))
    return (x,)


def _trilu_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, k = widen(present(inputs, 0)), get(attrs, "k", int)
    columns, rows = np.arange(x.shape[-1]), np.arange(x.shape[-2])[:, None]
    kept = columns - rows >= k if get(attrs, "upper", bool) else columns - rows <= k
    return (np.where(kept, x, np.zeros((), x.dtype)),)


_ONE_HOT_ARGS = (
    ArgDef("indices", NUMERIC, doc="values outside -depth .. depth-1 give a row of off; floats are truncated"),
    ArgDef("values", ANY, doc="[off, on]"),
)


def _one_hot_infer(inputs: Types, attrs: Attrs) -> Outputs:
    indices, values, depth = present(inputs, 0), present(inputs, 1), get(attrs, "depth", int)
    require_shape(values, (2,), slot(_ONE_HOT_ARGS, 1))
    require(depth >= 0, "negative depth", "0 or more", depth)
    axis = axis_of(get(attrs, "axis", int), indices.rank + 1)
    return (TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:])),)


def _one_hot_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    indices, values = np.trunc(widen(present(inputs, 0))), widen(present(inputs, 1))
    axis, depth = axis_of(get(attrs, "axis", int), outputs[0].rank), get(attrs, "depth", int)
    signed = indices if indices.dtype.kind == "f" else indices.astype(np.int64)
    row = np.expand_dims(np.where(indices < 0, signed + depth, signed), axis)
    levels = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(outputs[0].rank)])
    return (np.where(row == levels, values[1], values[0]),)


def _topk_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, k = present(inputs, 0), get(attrs, "k", int)
    axis = axis_of(get(attrs, "axis", int), x.rank)
    require(0 <= k <= x.shape[axis], "k is out of range", f"0 to {x.shape[axis]}", k)
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape), TensorType(DType.I64, shape))


def _topk_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = widen(present(inputs, 0))
    axis, k = axis_of(get(attrs, "axis", int), x.ndim), get(attrs, "k", int)
    if get(attrs, "largest", bool):
        # A stable ascending sort of the mirrored axis, mirrored back: descending, equal values by rising index.
        mirrored = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(mirrored, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis), chosen.astype(np.int64)


def _topk_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return present(inputs, 0).size * max(1, get(attrs, "k", int)).bit_length()


_PAD_ATTRS = (
    attr("pads", tuple, "begins of all axes, then ends; negative ones crop"),
    attr("mode", "constant", choices=("constant", "reflect", "edge", "wrap")),
    attr("value", 0.0, "what mode constant fills in"),
)
_TOPK_ATTRS = (
    attr("k", int),
    attr("axis", -1),
    attr("largest", True),
    attr("sorted", True, "False leaves the order open"),
)
_AXIS = (attr("axis", int),)

OPS: tuple[OpDef, ...] = (
    *VIEWS,
    OpDef(
        "concat",
        Family.MOVE,
        "The inputs one behind the other along an axis.",
        _CONCAT_ARGS,
        _AXIS,
        _concat_infer,
        _concat_reference,
    ),
    OpDef(
        "pad",
        Family.MOVE,
        "x with a border of a constant, or of its own reflected, edge or repeated elements.",
        _X,
        _PAD_ATTRS,
        _pad_infer,
        _pad_reference,
    ),
    OpDef(
        "tile",
        Family.MOVE,
        "x repeated along every axis.",
        _TILE_ARGS,
        (attr("repeats", tuple, "one per axis"),),
        _tile_infer,
        _tile_reference,
    ),
    *GATHERING,
    OpDef(
        "one_hot",
        Family.MOVE,
        "on where the level along axis equals the index, else off.",
        _ONE_HOT_ARGS,
        (attr("depth", int), attr("axis", -1)),
        _one_hot_infer,
        _one_hot_reference,
    ),
    OpDef(
        "trilu",
        Family.MOVE,
        "The upper or lower triangle of the last two axes, 0 elsewhere.",
        _X,
        (attr("upper", True), attr("k", 0, "diagonal to cut at; above the main one where positive")),
        _trilu_infer,
        _trilu_reference,
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
        _topk_flops,
        results=("values", "indices"),
    ),
)
