"""Unique: what there is of equal elements or slices, once, which is as long as the data has it."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers

_COLUMNS_MAX = 64
"""Slices are sorted by one element after the other."""


@lowers("Unique")
def unique(call: OnnxCall) -> list[Tensor | None]:
    """Slices are sorted, so that equal ones are neighbours, and the first of each kind is found, which all of its kind
    have as their leader."""
    x, axis = call.input(0), call.attr("axis")
    axis = 0 if axis is None else call.axis(axis, x.rank)
    if call.attr("axis") is None or not x.rank:
        x = call.reshape(x, (x.type.size,))
    count = x.shape[axis]
    if not x.type.size:
        if count:
            raise call.unsupported("slices without elements", found=str(x.type))
        return [x, *(call.constant(np.zeros(0, np.int64)) for _ in range(3))]
    order, begins = _sorted(call, x, axis)
    group = _numbered(call, begins)
    zeros, last = call.constant(np.zeros(count, np.int64)), call.constant(np.full(count, count - 1))
    firsts = call.emit("scatter_elements", last, group, order, reduction="min")
    leader = call.emit("scatter_elements", zeros, order, call.emit("gather", firsts, group))
    if call.attr("sorted", 1):
        found = call.emit("gather", order, call.found.places(call, begins)[0])
        inverse = call.emit("scatter_elements", zeros, order, group)
    else:
        leads = call.emit("equal", leader, call.constant(np.arange(count)))
        found = call.found.places(call, leads)[0]
        inverse = call.emit("gather", _numbered(call, leads), leader)
    ones = call.constant(np.ones(count, np.int64))
    members = call.emit("scatter_elements", zeros, leader, ones, reduction="add")
    return [call.emit("gather", x, found, axis=axis), found, inverse, call.emit("gather", members, found)]


def _sorted(call: OnnxCall, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """In which order the slices are sorted, equal ones as they stood, and which then differ from the one before."""
    count = x.shape[axis]
    rows = call.transpose(x, [axis, *(d for d in range(x.rank) if d != axis)])
    rows = call.reshape(rows, (count, x.type.size // count))
    if rows.dtype is DType.BOOL:
        rows = call.cast(rows, DType.U8)
    columns = rows.shape[1]
    if columns > _COLUMNS_MAX:
        expected = f"at most {_COLUMNS_MAX} elements in a slice"
        raise call.unsupported("slices of many elements", expected=expected, found=str(columns))
    order: Tensor | None = None
    for column in reversed(range(columns)):
        keys = call.reshape(call.slice(rows, 1, column, column + 1), (count,))
        keys = keys if order is None else call.emit("gather", keys, order)
        _, places = call.emit_all("topk", keys, k=count, largest=False)
        order = places if order is None else call.emit("gather", order, places)
    assert order is not None  # there are elements
    ranked = call.emit("gather", rows, order, axis=0)
    one, other = call.slice(ranked, 0, 0, count - 1), call.slice(ranked, 0, 1, count)
    same = call.emit("equal", one, other)
    if rows.dtype.is_float:  # what is no number equals what is none
        neither = call.emit("logical_and", call.emit("isnan", one), call.emit("isnan", other))
        same = call.emit("logical_or", same, neither)
    differs = call.cast(call.emit("logical_not", same), DType.U8)
    begins = call.cast(call.emit("reduce_max", differs, axes=(1,), keepdims=False), DType.BOOL)
    return order, call.concat([call.constant(np.ones(1, np.bool_)), begins], 0)


def _numbered(call: OnnxCall, marks: Tensor) -> Tensor:
    """How many marks there are up to each place, less one."""
    number = call.emit("cumsum", call.cast(marks, DType.I64), axis=0)
    return call.emit("sub", number, call.like(1, number))
