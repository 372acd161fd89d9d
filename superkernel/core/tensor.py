"""Tensor types, index boxes and byte regions: what a value is, and which part of it somebody touches.

Model: a `TensorType` is dense, row-major, static. A `Box` is a half-open hyper-rectangle of indices. A `Region` is
the byte set `{start + i*stride + j : 0 <= i < count, 0 <= j < length}` relative to some base; boxes of strided views
become a few of them (`regions_of_box`), exactly where the view has at most two non-contiguous levels, one region per
outer index above that.

Invariant: a region never claims less than is touched. Above `MAX_REGIONS` regions the cover is widened, never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import gcd, prod
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.frozen import frozen

MAX_REGIONS = 64
PAIRS_TRIED = 4096
"""So many pairs of regions are held against one another as they come; of more, those whose bounds meet."""
RUNS_JOINED = 1 << 22

Box = tuple[tuple[int, int], ...]  # one (start, stop) per dimension


InputShape: TypeAlias = Sequence[int] | Sequence[Sequence[int]]
"""The shape of an input; of a sequence of tensors, those of its elements."""


@frozen(slots=False)
class TensorType:
    """dtype and static shape of a dense row-major tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Number of elements (1 for a scalar)."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Size of the dense array."""
        return self.size * self.dtype.itemsize

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        return row_major_strides(self.shape)

    @cached_property
    def _text(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self._text

    @staticmethod
    def parse(text: str) -> TensorType:
        """Inverse of `str()`."""
        name, _, dims = text.partition("[")
        dims = dims.rstrip("]")
        return TensorType(DType.of(name), tuple(int(d) for d in dims.split(",")) if dims else ())


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense row-major tensor."""
    return _row_major(tuple(shape))


@lru_cache(maxsize=4096)  # grouping asks for the same few shapes at every step
def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def strided_view(
    array: NDArray[Any], shape: Sequence[int], strides: Sequence[int], offset: int, writeable: bool = False
) -> NDArray[Any]:
    """The affine view of an array's elements in row-major order: `strides` and `offset` in elements. A copy where the
    array is not contiguous; an array of its own where the view is empty."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if 0 in shape:
        return np.zeros(shape, flat.dtype)
    steps = [s * flat.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=writeable)


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides over [N, C, spatial...] of a dense N, spatial..., C."""
    images, channels, *space = shape
    steps = row_major_strides((images, *space, channels))
    return (steps[0], 1, *steps[1:-1])


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """NumPy broadcasting of a view to `target`: new and stretched dimensions get stride 0."""
    lead = len(target) - len(shape)
    inner = tuple(0 if d == 1 and t != 1 else s for d, s, t in zip(shape, strides, target[lead:], strict=True))
    return (0,) * lead + inner


def full_box(shape: Sequence[int]) -> Box:
    """The box that covers the whole shape."""
    return tuple((0, d) for d in shape)


@frozen()
class Region:
    """`count` runs of `length` bytes, `stride` bytes apart, the first at `start`. Canonical: count 1 has stride 0."""

    start: int
    length: int
    stride: int = 0
    count: int = 1

    @property
    def stop(self) -> int:
        """One past the last byte."""
        return self.start + (self.count - 1) * self.stride + self.length

    @property
    def nbytes(self) -> int:
        """Bytes that belong to it, gaps between the runs left out."""
        return self.length * self.count

    def shifted(self, offset: int) -> Region:
        """The same set, `offset` bytes further on."""
        return Region(self.start + offset, self.length, self.stride, self.count)

    def overlaps(self, other: Region) -> bool:
        """True where the two may share a byte. Exact for runs, for equal strides and for run against strided; for two
        different strides it may say True of disjoint sets (never False of overlapping ones)."""
        if self.start >= other.stop or other.start >= self.stop:
            return False
        if self.count == 1 and other.count == 1:
            return True
        if self.count == 1 or other.count == 1:
            run, many = (self, other) if self.count == 1 else (other, self)
            first = max(0, -((many.start + many.length - 1 - run.start) // many.stride))
            return first < many.count and many.start + first * many.stride < run.stop
        if self.stride == other.stride:
            return self._overlaps_equal_stride(other)
        step = gcd(self.stride, other.stride)
        delta = (other.start - self.start) % step
        return delta < self.length or step - delta < other.length

    def _overlaps_equal_stride(self, other: Region) -> bool:
        """Runs i of self and j of other meet iff -other.length < d + k*stride < self.length with k = j - i in range."""
        d = other.start - self.start
        low = -((d + other.length - 1) // self.stride)
        high = (self.length - 1 - d) // self.stride
        return max(low, -(self.count - 1)) <= min(high, other.count - 1)

    def __str__(self) -> str:
        text = f"{self.start}+{self.length}"
        return text if self.count == 1 else f"{text}*{self.count}/{self.stride}"

    @staticmethod
    def parse(text: str) -> Region:
        """Inverse of `str()`."""
        run, _, rest = text.partition("*")
        start, _, length = run.partition("+")
        if not rest:
            return Region(int(start), int(length))
        count, _, stride = rest.partition("/")
        return Region(int(start), int(length), int(stride), int(count))


def regions_of_box(box: Box, strides: Sequence[int], itemsize: int, offset: int = 0) -> tuple[Region, ...]:
    """Byte regions that the index box touches in a view with `strides` (elements, may be 0 or negative) from element
    `offset`. Empty boxes give ()."""
    levels: list[tuple[int, int]] = []  # (stride in bytes > 0, extent > 1), outermost first
    start = offset * itemsize
    for (begin, stop), stride in zip(box, strides, strict=True):
        extent = stop - begin
        if extent <= 0:
            return ()
        start += begin * stride * itemsize
        if extent > 1 and stride != 0:
            if stride < 0:
                start += (extent - 1) * stride * itemsize
            levels.append((abs(stride) * itemsize, extent))
    levels.sort(reverse=True)
    length = itemsize
    while levels and levels[-1][0] <= length:  # contiguous (or overlapping) with what is inside: one longer run
        stride, extent = levels.pop()
        length += stride * (extent - 1)
    while len(levels) > 1 and levels[-2][0] == levels[-1][0] * levels[-1][1]:  # two levels that walk as one
        (_, outer), (stride, inner) = levels[-2], levels[-1]
        levels[-2:] = [(stride, outer * inner)]
    if not levels:
        return (Region(start, length),)
    (stride, count), outer_levels = levels[-1], levels[:-1]
    if prod(extent for _, extent in outer_levels) > MAX_REGIONS:
        span = sum(s * (e - 1) for s, e in levels) + length
        return (Region(start, span),)
    return tuple(
        Region(start + sum(i * s for i, (s, _) in zip(index, outer_levels, strict=True)), length, stride, count)
        for index in product(*(range(extent) for _, extent in outer_levels))
    )


def joined_regions(regions: Sequence[Region]) -> Sequence[Region]:
    """The same bytes in fewer regions, where runs that touch become one; as they are where that does not help, or where
    there are more than `RUNS_JOINED` runs."""
    counts = np.array([region.count for region in regions])
    if counts.sum() > RUNS_JOINED:
        return regions
    starts, strides, lengths = (np.array([getattr(r, name) for r in regions]) for name in ("start", "stride", "length"))
    of = np.repeat(np.arange(len(regions)), counts)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    low, length = starts[of] + nth * strides[of], lengths[of]
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate((low + length)[order])
    begins = np.concatenate([[True], low[1:] > high[:-1]])
    low, high = low[begins], high[np.concatenate([begins[1:], [True]])]
    found = _evenly_apart(low, high - low)
    return found if len(found) < len(regions) else regions


def _evenly_apart(low: NDArray[np.int64], length: NDArray[np.int64]) -> list[Region]:
    """Runs in order, as regions: those of one length with one distance between them are one."""
    gaps = np.where(length[1:] == length[:-1], np.diff(low), 0)  # 0: no two of one region
    begins = np.flatnonzero(np.diff(gaps, prepend=-1))
    found: list[Region] = []
    free = 0  # the first run that no region has
    for begin, end in pairwise([*begins.tolist(), len(gaps)]):
        first, last = max(free, begin), end
        if gaps[begin] and last > first:
            found.append(Region(int(low[first]), int(length[first]), int(gaps[begin]), last - first + 1))
            free = last + 1
        else:
            found += [Region(int(low[i]), int(length[i])) for i in range(first, last)]
            free = max(free, last)
    return found + [Region(int(low[i]), int(length[i])) for i in range(free, len(low))]


def any_overlap(left: Sequence[Region], right: Sequence[Region]) -> tuple[Region, Region] | None:
    """A pair of overlapping regions, or None: of few the first one, of many the first by addresses."""
    if len(left) * len(right) <= PAIRS_TRIED:
        return next(((a, b) for a in left for b in right if a.overlaps(b)), None)
    reached: tuple[list[Region], list[Region]] = ([], [])  # those of each side that may meet what comes
    sides = ((region.start, side, region) for side, regions in enumerate((left, right)) for region in regions)
    for start, side, region in sorted(sides, key=itemgetter(0, 1)):
        others = reached[1 - side]
        others[:] = [other for other in others if other.stop > start]
        for other in others:
            if region.overlaps(other):
                return (other, region) if side else (region, other)
        reached[side].append(region)
    return None
