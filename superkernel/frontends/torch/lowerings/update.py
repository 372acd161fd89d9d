"""Writes by index: caches, scatters.

Rows at consecutive places of a state, as a key-value cache is written, become `kv_update`, which works in place.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from superkernel.builder.tensor import Tensor, Value
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.lowerings.index import as_index, split_masks, stacked
from superkernel.frontends.torch.lowerings.pointwise import divided
from superkernel.frontends.torch.lowerings.shape import diagonal_places
from superkernel.frontends.torch.registry import lowers

# -- at known places


@lowers("slice_scatter", "select_scatter")
def window(call: TorchCall) -> Tensor:
    x, new = call.tensor("self"), call.cast(call.tensor("src"), call.dtype)
    axis = call.axis("dim", x.rank)
    if call.op == "select_scatter":
        start = int(call.args["index"]) % x.shape[axis]
        end, step = start + 1, 1
        new = call.reshape(new, (*new.shape[:axis], 1, *new.shape[axis:]))
    else:
        given = slice(call.get("start"), call.args.get("end"), int(call.get("step", 1)))
        start, end, step = given.indices(x.shape[axis])
    places = range(start, end, step)
    if not places:
        return x
    new = call.expand(new, (*x.shape[:axis], len(places), *x.shape[axis + 1 :]))
    if len(places) == x.shape[axis]:
        return new
    if step == 1 and _is_state(x):
        return _write_rows(call, x, axis, call.constant(np.asarray([start], np.int64)), new)
    if step == 1:
        return call.concat([call.slice(x, axis, 0, start), new, call.slice(x, axis, end, x.shape[axis])], axis)
    return _put(call, x, axis, call.constant(np.asarray(places, np.int64)), new)


# -- at computed places


@lowers("index_copy", "index_add", "index_fill")
def index_copy(call: TorchCall) -> Tensor:
    x = call.lifted("self")
    axis = call.axis("dim", x.rank)
    places = call.reshape(as_index(call, call.tensor("index")), (call.tensor("index").type.size,))
    shape = (*x.shape[:axis], places.shape[0], *x.shape[axis + 1 :])
    if call.op == "index_fill":
        value = call.typed(call.args["value"], x.dtype)
        return call.reshape(_put(call, x, axis, places, call.expand(value, shape)), call.shape)
    new = call.reshape(call.tensor("source"), shape)
    if call.op == "index_add":
        alpha = call.get("alpha", 1)
        new = new if alpha == 1 else call.emit("mul", new, call.like(alpha, new))
        return call.reshape(_put(call, x, axis, places, new, "add"), call.shape)
    start = _consecutive(places.value)
    if start is not None and _is_state(x):
        return _write_rows(call, x, axis, Tensor(call.builder, start), new)
    return call.reshape(_put(call, x, axis, places, new), call.shape)


@lowers("index_put", "_unsafe_index_put")
def index_put(call: TorchCall) -> Tensor:
    """x[i, :, j] = values, or += with `accumulate`."""
    x, values = call.tensor("self"), call.cast(call.tensor("values"), call.dtype)
    indices = call.args["indices"]
    masks = [i for i in indices if i is not None and i.dtype is DType.BOOL]
    if masks and masks[0].value.data is None:
        return _put_where(call, x, values, indices, masks)
    given = split_masks(call, indices)
    axes = [axis for axis, i in enumerate(given) if i is not None]
    picked = [i for i in given if i is not None]
    adds = bool(call.get("accumulate", False))
    if len(axes) == 1 and picked[0].rank <= 1 and not adds:
        places = call.reshape(picked[0], (picked[0].type.size,))
        lead = (*x.shape[: axes[0]], *picked[0].shape, *x.shape[axes[0] + 1 :])
        kept = (*x.shape[: axes[0]], places.shape[0], *x.shape[axes[0] + 1 :])
        new = call.reshape(call.expand(values, lead), kept)
        start = _consecutive(places.value)
        if start is not None and _is_state(x):
            return _write_rows(call, x, axes[0], _from_end(call, Tensor(call.builder, start), x.shape[axes[0]]), new)
    rest = [d for d in range(x.rank) if d not in axes]
    places = stacked(call, picked, [x.shape[a] for a in axes])
    count = places.rank - 1
    front = [*axes, *rest]
    neighbours = axes == list(range(axes[0], axes[-1] + 1))
    before = axes[0] if neighbours else 0
    shape = (*(x.shape[d] for d in rest[:before]), *places.shape[:-1], *(x.shape[d] for d in rest[before:]))
    new = call.expand(values, shape)
    new = call.transpose(new, [*range(before, before + count), *range(before), *range(before + count, new.rank)])
    y = call.emit("scatter_nd", call.transpose(x, front), places, new, reduction="add" if adds else "none")
    return call.transpose(y, [front.index(d) for d in range(x.rank)])


def _put_where(call: TorchCall, x: Tensor, values: Tensor, indices: list[Tensor | None], masks: list[Tensor]) -> Tensor:
    """x[mask] = number."""
    mask = masks[0]
    before = indices.index(mask)
    if len(masks) > 1 or len([i for i in indices if i is not None]) > 1 or values.type.size != 1:
        hint = "torch.where(mask, values, x) with values of x's shape"
        raise call.unsupported("a mask that is computed at run time can only be filled with one number", hint=hint)
    mask = call.reshape(mask, (*mask.shape, *(1,) * (x.rank - before - mask.rank)))
    value = call.reshape(values, ())
    if call.get("accumulate", False):
        value = call.emit("add", x, value)
    return call.emit("where", mask, value, x)


@lowers("scatter", "scatter_add", "scatter_reduce.two")
def scatter(call: TorchCall) -> Tensor:
    x, places = call.lifted("self"), as_index(call, call.lifted("index"))
    word = "add" if call.op == "scatter_add" else call.get("reduce")
    new: Any = call.args.get("src", call.args.get("value"))
    if isinstance(new, Tensor) and new.rank:
        for d in range(new.rank):
            new = call.slice(new, d, 0, places.shape[d])
    new = call.expand(call.typed(new, x.dtype), places.shape)
    return call.reshape(_scattered(call, x, call.axis("dim", x.rank), places, new, word), call.shape)


@lowers("index_reduce")
def index_reduce(call: TorchCall) -> Tensor:
    """Whole slices, joined element by element."""
    x, places = call.lifted("self"), as_index(call, call.tensor("index"))
    axis = call.axis("dim", x.rank)
    shape = (*x.shape[:axis], places.type.size, *x.shape[axis + 1 :])
    lifted = call.reshape(places, [-1 if d == axis else 1 for d in range(x.rank)] if places.type.size else shape)
    new = call.reshape(call.tensor("source"), shape)
    y = _scattered(call, x, axis, call.expand(lifted, shape), new, call.args["reduce"])
    return call.reshape(y, call.shape)


_REDUCTIONS = {
    "sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min",
}  # fmt: skip


def _scattered(call: TorchCall, x: Tensor, axis: int, places: Tensor, new: Tensor, word: str | None) -> Tensor:
    """x with elements replaced by new ones, or joined with them by the reduction `word`; without `include_self` the
    elements of x that are joined with any do not count."""
    if word is None:
        return call.emit("scatter_elements", x, places, new, axis=axis, reduction="none")
    if word not in _REDUCTIONS:
        raise call.unsupported("this reduction of a scatter has no kernel", expected=", ".join(_REDUCTIONS), found=word)

    def put(into: Tensor, number: float, reduction: str) -> Tensor:
        numbers = call.expand(call.like(number, into), places.shape)
        return call.emit("scatter_elements", into, places, numbers, axis=axis, reduction=reduction)

    alone = not call.get("include_self", True)
    reduction = _REDUCTIONS[word]
    start = put(x, _neutral(reduction, x.dtype), "none") if alone else x
    y = call.emit("scatter_elements", start, places, new, axis=axis, reduction=reduction)
    if word != "mean":
        return y
    count = put(call.expand(call.like(0 if alone else 1, x), x.shape), 1, "add")
    return divided(call, y, call.emit("maximum", count, call.like(1, count)), "floor" if x.dtype.is_integer else None)


def _neutral(reduction: str, dtype: DType) -> float:
    """What joined with a number leaves it is."""
    if reduction in ("add", "mul"):
        return 0 if reduction == "add" else 1
    if dtype is DType.BOOL:
        return reduction == "min"
    if dtype.is_float:
        return -np.inf if reduction == "max" else np.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduction == "max" else limits.max)


@lowers("put")
def put(call: TorchCall) -> Tensor:
    """At places of the flattened tensor."""
    x = call.tensor("self")
    flat, places = call.reshape(x, (x.type.size,)), as_index(call, call.tensor("index"))
    count = (places.type.size,)
    new = call.reshape(call.tensor("source"), count)
    reduction = "add" if call.get("accumulate", False) else "none"
    y = call.emit("scatter_elements", flat, call.reshape(places, count), new, axis=0, reduction=reduction)
    return call.reshape(y, x.shape)


@lowers("masked_scatter")
def masked_scatter(call: TorchCall) -> Tensor:
    """The n-th place where the mask is true takes the n-th element of the source."""
    x, mask = (call.expand(call.tensor(name), call.shape) for name in ("self", "mask"))
    source = call.tensor("source")
    flat = call.cast(call.reshape(mask, (x.type.size,)), DType.I64)
    if not x.type.size or not source.type.size:
        return x
    order = call.emit("cumsum", flat, axis=0)
    first = call.emit("maximum", call.emit("sub", order, call.like(1, order)), call.like(0, order))
    picked = call.emit("gather", call.reshape(source, (source.type.size,)), first, axis=0)
    return call.emit("where", mask, call.reshape(picked, x.shape), x)


# -- at places that strides say


@lowers("as_strided", "as_strided_scatter")
def strided(call: TorchCall) -> Tensor:
    """Of a tensor whose memory holds its elements in order and nothing else: places of the flattened one."""
    x, value = call.tensor("self"), call.raw["self"].meta["val"]
    if not value.is_contiguous() or value.storage_offset():
        raise call.unsupported("strides in memory that holds something else", hint="index it, or call contiguous()")
    sizes, strides = call.ints("size"), call.ints("stride")
    offset = int(call.get("storage_offset", 0))
    places = np.full(sizes, offset, np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        places += np.arange(size).reshape([-1 if d == axis else 1 for d in range(len(sizes))]) * stride
    if places.size and places.max() >= x.type.size:
        raise call.unsupported("strides that lead out of the tensor", expected=f"below {x.type.size}")
    flat = call.reshape(x, (x.type.size,))
    if call.op == "as_strided":
        return call.emit("gather", flat, call.constant(places), axis=0)
    new = call.reshape(call.tensor("src"), (places.size,))
    return call.reshape(_put(call, flat, 0, call.constant(places.reshape(-1)), new), x.shape)


@lowers("diagonal_scatter")
def diagonal_scatter(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    a, b = call.axis("dim1", x.rank), call.axis("dim2", x.rank, 1)
    rest = [d for d in range(x.rank) if d not in (a, b)]
    order = [*rest, a, b]
    outer = tuple(x.shape[d] for d in rest)
    flat = call.reshape(call.transpose(x, order), (*outer, x.shape[a] * x.shape[b]))
    new = call.tensor("src")
    places = diagonal_places(new.shape[-1], x.shape[b], int(call.get("offset", 0)))
    y = call.reshape(_put(call, flat, len(rest), call.constant(places), new), (*outer, x.shape[a], x.shape[b]))
    return call.transpose(y, [order.index(d) for d in range(x.rank)])


def _put(call: TorchCall, x: Tensor, axis: int, places: Tensor, new: Tensor, reduction: str = "none") -> Tensor:
    """x with whole slices at `places` of an axis replaced by, or joined with, those of `new`."""
    order = [axis, *(d for d in range(x.rank) if d != axis)]
    tuples = call.reshape(places, (*places.shape, 1))
    y = call.emit("scatter_nd", call.transpose(x, order), tuples, call.transpose(new, order), reduction=reduction)
    return call.transpose(y, [order.index(d) for d in range(x.rank)])


# -- caches


def _is_state(x: Tensor) -> bool:
    """True of a state, and of one that was written to already."""
    value: Value | None = x.value
    while value is not None and value.record is not None and value.record.op in ("kv_update", "reshape"):
        value = value.record.inputs[0]
    return value is not None and value.initial is not None


def _write_rows(call: TorchCall, x: Tensor, axis: int, start: Tensor, new: Tensor) -> Tensor:
    """x with rows from `start` of an axis replaced by `new`: as the third of four axes, where `kv_update` writes."""
    if x.rank == 4 and axis == 2:
        return call.emit("kv_update", x, new, start)
    outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    cut = call.reshape(x, (1, outer, x.shape[axis], inner))
    rows = call.reshape(new, (1, outer, new.shape[axis], inner))
    return call.reshape(call.emit("kv_update", cut, rows, start), x.shape)


def _consecutive(places: Value) -> Value | None:
    """The first of places that follow one another, where that is certain: a single one, or a first + 0, 1, 2, ..."""
    count = places.type.size
    record = places.record
    if count == 1:
        return places
    while record is not None and record.op == "reshape":
        record = record.inputs[0].record
    if record is None or record.op != "add":
        return None
    for first, steps in (record.inputs, record.inputs[::-1]):
        known = steps.data is not None and np.array_equal(steps.data.reshape(-1), np.arange(count))
        if known and first.type.size == 1:
            return first if len(first.type.shape) <= 1 else None
    return None


def _from_end(call: TorchCall, start: Tensor, extent: int) -> Tensor:
    """A place that may be negative, counted from the front."""
    if start.value.data is not None and int(start.value.data.reshape(-1)[0]) >= 0:
        return start
    behind = call.emit("add", start, call.like(extent, start))
    return call.emit("where", call.emit("less", start, call.like(0, start)), behind, start)
