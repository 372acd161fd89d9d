"""Searches among sorted values, and elements by their rank: searchsorted, median, kthvalue.

What is no number counts as larger than every number, as in torch's order.
"""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.lowerings.index import as_index
from superkernel.frontends.torch.registry import lowers

_COUNTED_MAX = 128  # boundaries that are all compared with; more are bisected


@lowers("searchsorted", "bucketize")
def searchsorted(call: TorchCall) -> Tensor:
    bounds = call.tensor("boundaries" if call.op == "bucketize" else "sorted_sequence")
    values = call.typed(call.args["self"], bounds.dtype)
    order = call.optional("sorter")
    if order is not None:
        bounds = call.emit("gather_elements", bounds, as_index(call, order), axis=-1)
    right = bool(call.get("right", False)) or call.get("side") == "right"
    return call.cast(places_among(call, bounds, values, right=right), call.dtype)


def places_among(call: TorchCall, bounds: Tensor, values: Tensor, *, right: bool) -> Tensor:
    """i64: how many of the bounds, sorted along the last axis, lie before each value (`right`: before it or at it).
    Bounds have one axis, or the values' axes but for the last."""
    if bounds.dtype is DType.BOOL:
        bounds, values = call.cast(bounds, DType.U8), call.cast(values, DType.U8)
    order = "greater" if right else "greater_equal"
    extent = bounds.shape[-1]
    if extent <= _COUNTED_MAX:
        rows = bounds if bounds.rank == 1 else call.reshape(bounds, (*bounds.shape[:-1], 1, extent))
        passed = call.emit("logical_not", call.emit(order, rows, call.reshape(values, (*values.shape, 1))))
        return call.emit("reduce_sum", call.cast(passed, DType.I64), axes=(-1,), keepdims=False)
    flat = call.reshape(values, (1,)) if values.rank == 0 else values
    return call.reshape(_bisected(call, bounds, flat, order), values.shape)


def _bisected(call: TorchCall, bounds: Tensor, values: Tensor, order: str) -> Tensor:
    extent = bounds.shape[-1]
    start, end = (call.expand(call.constant(np.full((), n, np.int64)), values.shape) for n in (0, extent))
    one, last = call.constant(np.int64(1)), call.constant(np.int64(extent - 1))
    for _ in range(extent.bit_length()):
        middle = call.emit("shift_right", call.emit("add", start, end), one)
        at = call.emit("minimum", middle, last)  # of a search that has ended behind all
        if bounds.rank == 1:
            found = call.emit("gather", bounds, at, axis=0)
        else:
            found = call.emit("gather_elements", bounds, at, axis=-1)
        passed = call.emit("logical_not", call.emit(order, found, values))
        goes_on = call.emit("less", start, end)
        up = call.emit("logical_and", goes_on, passed)
        start = call.emit("where", up, call.emit("add", middle, one), start)
        end = call.emit("where", call.emit("logical_xor", goes_on, up), middle, end)
    return start


# -- by rank


@lowers("kthvalue")
def kth_value(call: TorchCall) -> list[Tensor | None]:
    x = call.lifted("self")
    axis = call.axis("dim", x.rank)
    return [call.reshape(y, call.shape) for y in _of_rank(call, x, axis, int(call.args["k"]))]


def _of_rank(call: TorchCall, x: Tensor, axis: int, count: int) -> list[Tensor]:
    """The largest of the `count` least, and its place, with the axis kept."""
    least = call.emit_all("topk", x, k=count, axis=axis, largest=False, sorted=True)
    return [call.slice(y, axis, count - 1, count) for y in least]


@lowers("median", "nanmedian")
def median(call: TorchCall) -> list[Tensor | None]:
    """The lower of two in the middle. A median is no number where one element is none, the first of them; that of
    numbers alone leaves them out."""
    x = call.tensor("self")
    whole = call.overload == "default"
    if whole or x.rank == 0:
        x = call.reshape(x, (x.type.size,))
    axis = 0 if whole else call.axis("dim", x.rank)
    if not x.shape[axis]:
        raise call.unsupported("a median of no elements", found=x.type)
    if x.dtype.is_float and call.op == "nanmedian":
        found = _of_numbers(call, x, axis)
    else:
        found = _of_rank(call, x, axis, (x.shape[axis] + 1) // 2)
        if x.dtype.is_float:
            found = _or_no_number(call, x, axis, found)
    return [call.reshape(y, call.shape) for y in (found[:1] if whole else found)]


def _or_no_number(call: TorchCall, x: Tensor, axis: int, found: list[Tensor]) -> list[Tensor]:
    none = call.cast(call.emit("isnan", x), DType.U8)
    has_nan = call.cast(call.emit("reduce_max", none, axes=(axis,), keepdims=True), DType.BOOL)
    first = call.emit("argmax", none, axis=axis, keepdims=True)
    instead = (call.like(float("nan"), x), first)
    return [call.emit("where", has_nan, n, y) for n, y in zip(instead, found, strict=True)]


def _of_numbers(call: TorchCall, x: Tensor, axis: int) -> list[Tensor]:
    ordered = call.emit_all("topk", x, k=x.shape[axis], axis=axis, largest=False, sorted=True)
    numbers = call.cast(call.emit("logical_not", call.emit("isnan", x)), DType.I64)
    count = call.emit("reduce_sum", numbers, axes=(axis,), keepdims=True)
    last = call.emit("maximum", call.emit("sub", count, call.like(1, count)), call.like(0, count))
    at = call.emit("shift_right", last, call.like(1, last))
    return [call.emit("gather_elements", y, at, axis=axis) for y in ordered]
