"""Bags of embeddings: rows of a table, joined by bag.

Bags of one size are rows of a dense tensor, reduced; others, and those that offsets say at run time, are scattered into
their bag's row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.lowerings.index import as_index
from superkernel.frontends.torch.lowerings.search import places_among
from superkernel.frontends.torch.registry import lowers

_MODES = (("reduce_sum", "add"), ("reduce_sum", "add"), ("reduce_max", "max"))  # sum, mean, max
_MEAN, _MAX = 1, 2


@dataclass(frozen=True)
class _Rows:
    """The rows that were looked up, [indices, width], and 1 for each that counts, [indices, 1]; what a row that does
    not count holds."""

    rows: Tensor
    counted: Tensor
    neutral: Tensor


@lowers("_embedding_bag_forward_only", "_embedding_bag")
def embedding_bag(call: TorchCall) -> list[Tensor | None]:
    if call.read != {0}:
        raise call.unsupported("only the bags themselves are supported", hint="places and sizes are for training")
    mode = int(call.get("mode", 0))
    looked_up = _looked_up(call, mode)
    size = _even(call)
    join = _scattered if size is None else _reduced
    y, count = join(call, looked_up, mode, size or 0)
    if mode == _MEAN:
        y = call.emit("div", y, call.emit("maximum", count, call.like(1, count)))
    if mode == _MAX:
        zero = call.like(0, y)  # of a bag that nothing is in
        y = call.emit("where", call.emit("equal", count, zero), zero, y)
    return [y, None, None, None]


def _looked_up(call: TorchCall, mode: int) -> _Rows:
    weight, indices = call.tensor("weight"), as_index(call, call.tensor("indices"))
    rows = call.emit("gather", weight, indices, axis=0)
    neutral = call.like(-np.inf if mode == _MAX else 0.0, rows)
    factors = call.optional("per_sample_weights")
    if factors is not None:
        rows = call.emit("mul", rows, call.reshape(factors, (*factors.shape, 1)))
    shape, left_out = (*indices.shape, 1), call.get("padding_idx", -1)
    if left_out < 0:
        return _Rows(rows, call.expand(call.like(1, rows), shape), neutral)
    kept = call.reshape(call.emit("not_equal", indices, call.like(left_out, indices)), shape)
    return _Rows(call.emit("where", kept, rows, neutral), call.cast(kept, rows.dtype), neutral)


def _starts(call: TorchCall) -> NDArray[np.int64] | None:
    """Where bags begin, and the last one ends, where that is known."""
    offsets = call.tensor("offsets").value.data
    if offsets is None:
        return None
    ends = [] if call.get("include_last_offset", False) else [call.tensor("indices").type.size]
    return np.asarray([*offsets.reshape(-1), *ends], np.int64)


def _even(call: TorchCall) -> int | None:
    """The size of the bags where all have one, and all indices are in them."""
    starts = _starts(call)
    sizes = set() if starts is None else set(np.diff(starts).tolist())
    if starts is None or len(sizes) != 1 or sizes <= {0}:
        return None
    return int(sizes.pop()) if (starts[0], starts[-1]) == (0, call.tensor("indices").type.size) else None


def _reduced(call: TorchCall, found: _Rows, mode: int, size: int) -> tuple[Tensor, Tensor]:
    parts = (found.rows, _MODES[mode][0]), (found.counted, "reduce_sum")
    cut = [(call.reshape(t, (-1 if 0 in t.shape else t.shape[0] // size, size, t.shape[1])), op) for t, op in parts]
    y, count = (call.emit(op, t, axes=(1,), keepdims=False) for t, op in cut)
    return y, count


def _scattered(call: TorchCall, found: _Rows, mode: int, _: int) -> tuple[Tensor, Tensor]:
    """Behind the last offset, where it ends the last bag, there is one bag more, which nobody sees."""
    offsets, bags = as_index(call, call.tensor("offsets")), call.shape[0]
    extent = offsets.type.size
    each = call.constant(np.arange(found.rows.shape[0], dtype=np.int64))
    passed = places_among(call, call.cast(offsets, DType.I64), each, right=True)
    bag = call.reshape(call.emit("sub", passed, call.like(1, passed)), (each.shape[0], 1))
    joined = []
    for rows, start, reduction in (
        (found.rows, found.neutral, _MODES[mode][1]),
        (found.counted, call.like(0, found.rows), "add"),
    ):
        empty = call.expand(start, (extent, rows.shape[1]))
        y = call.emit("scatter_nd", empty, bag, rows, reduction=reduction)
        joined.append(call.slice(y, 0, 0, bags))
    return joined[0], joined[1]
