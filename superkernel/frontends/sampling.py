"""Images read at computed places: for each place the points about it are gathered, with all of their channels, and
weighted.

Model: along each axis a place has a few taps. Every combination of the axes' taps is one gather of rows; whoever asks
adds what they give, or takes the greatest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import Emitter


@dataclass(frozen=True)
class Tap:
    """Along one axis: whole places, as floats; what the points there count (None: wholly), and where they count at all
    (None: everywhere; places outside of the image stand for its border)."""

    place: Tensor
    weight: Tensor | None = None
    inside: Tensor | None = None


def places_type(x: Tensor) -> DType:
    """The type that places in an image are computed in."""
    return DType.F64 if x.dtype is DType.F64 else DType.F32


def scaled(call: Emitter, x: Tensor, factor: float, term: float) -> Tensor:
    """x factor + term."""
    if factor != 1:
        x = call.emit("mul", x, call.like(factor, x))
    return call.emit("add", x, call.like(term, x)) if term else x


def between(call: Emitter, x: Tensor, low: float, high: float) -> Tensor:
    """Whether low <= x <= high."""
    reaches = call.emit("greater_equal", x, call.like(low, x))
    return call.emit("logical_and", reaches, call.emit("less_equal", x, call.like(high, x)))


def linear_taps(call: Emitter, place: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The whole places on both sides, and their weights."""
    below = call.emit("floor", place)
    behind = call.emit("sub", place, below)
    return [(below, scaled(call, behind, -1.0, 1.0)), (scaled(call, below, 1.0, 1.0), behind)]


def rows_of(call: Emitter, x: Tensor, groups: int = 1) -> Tensor:
    """[batch, channel, places] as rows of a group's channels: of each image each place, of each place each group."""
    perm = (0, *range(2, x.rank), 1)
    count = x.shape[0] * prod(x.shape[2:]) * groups
    return call.reshape(call.transpose(x, perm), (count, x.shape[1] // groups))


def read_by_image(call: Emitter, x: Tensor, rank: int, groups: int = 1) -> tuple[Tensor, Tensor]:
    """What places of so many axes, the images first, are read from: rows, and the number of each image's first row.
    Where sizes are found, how many images there are may be one of them: then each has rows of its own."""
    rows, count = rows_of(call, x, groups), prod(x.shape[2:]) * groups
    if call.thorough:
        rows = call.reshape(rows, (x.shape[0], count, x.shape[1] // groups))
        return rows, call.constant(np.zeros((1,) * rank, np.int64))
    firsts = np.arange(x.shape[0], dtype=np.int64) * count
    return rows, call.constant(firsts.reshape(-1, *(1 for _ in range(rank - 1))))


def weighted(
    call: Emitter, rows: Tensor, first: Tensor, extents: Sequence[int], taps: Iterable[Sequence[Tap]], groups: int = 1
) -> Iterator[Tensor]:
    """For each combination of the axes' taps [places, channels]: rows of `rows_of`, or of each image, times their
    weights. `first`: the row that counting begins with; it and what the taps have are broadcast to one another."""
    strides = [prod(extents[axis + 1 :]) * groups for axis in range(len(extents))]
    for chosen in product(*taps):
        index, weight, inside = first, None, None
        for extent, stride, tap in zip(extents, strides, chosen, strict=True):
            if tap.inside is not None:
                inside = tap.inside if inside is None else call.emit("logical_and", inside, tap.inside)
            whole = call.emit("clip", tap.place, call.like(0, tap.place), call.like(extent - 1, tap.place))
            ahead = call.emit("mul", call.cast(whole, DType.I64), call.constant(np.int64(stride)))
            index = call.emit("add", index, ahead)
            if tap.weight is not None:
                weight = tap.weight if weight is None else call.emit("mul", weight, tap.weight)
        if rows.rank == 2:
            value = call.emit("gather", rows, index, axis=0)
        else:
            index = call.reshape(index, (*index.shape, 1))
            value = call.emit("gather_nd", rows, index, batch_dims=1)
        if inside is not None:
            value = call.emit("where", call.reshape(inside, (*inside.shape, 1)), value, call.like(0, value))
        if weight is not None:
            value = call.emit("mul", value, call.cast(call.reshape(weight, (*weight.shape, 1)), rows.dtype))
        yield value


def summed(call: Emitter, values: Iterable[Tensor]) -> Tensor:
    """The sum of one tensor or more."""
    first, *others = values
    for other in others:
        first = call.emit("add", first, other)
    return first
