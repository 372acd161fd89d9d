"""Which earlier tasks a task must come after: conflicts of byte regions, found in one pass over the global order.

Model: per address space a list of *extents*, stretches of bytes with the accesses of them that later tasks may still
conflict with. The writes of one sub-operator that together fill a stretch without a gap make a new extent, and retire
every older access inside it: whoever conflicts with an old access conflicts with one of the new writes too, which
itself comes after the old one, so order is kept through it. That keeps the lists as short as the live data, whatever
the length of the program.

Invariant: for every pair of conflicting tasks (a before b) the result holds a chain a -> ... -> b of listed conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from superkernel.core.tensor import Region, any_overlap
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Hazard, Witness

READ_ONLY = (Space.CONSTANT, Space.INPUT)

Key = tuple[Space, int]


class Live(NamedTuple):
    """An access that later tasks may still conflict with; `low` and `high` bound its regions."""

    task: int
    write: bool
    low: int
    high: int
    regions: tuple[Region, ...]


@dataclass(slots=True)
class Extent:
    """Bytes [low, high) and who touched them since they were last written as a whole."""

    low: int
    high: int
    writes: list[Live] = field(default_factory=list)
    reads: list[Live] = field(default_factory=list)


class Conflict(NamedTuple):
    """Task `later` must come after task `earlier`: the regions `left` and `right` of the address space meet."""

    earlier: int
    later: int
    hazard: Hazard
    key: Key
    left: Region
    right: Region
    operand: int | None = None  # of the later task, where accesses say it

    @property
    def witness(self) -> Witness:
        """The pair of accesses, as plans keep it."""
        return Witness(self.hazard, self.earlier, self.later, _place(self.key), self.left, self.right)


@cache
def _place(key: Key) -> str:
    """One text for all who name the place: plans have millions of them."""
    return f"{key[0].value}{key[1]}"


def find_conflicts(tasks: Sequence[Task]) -> Iterator[list[Conflict]]:
    """For each task in order, its conflicts with earlier tasks (of any core), at most one per earlier task and operand
    of the later one (accesses that name no operand count as one)."""
    spaces: dict[Key, list[Extent]] = {}
    for _, subop in groupby(tasks, attrgetter("subop")):
        mine = [(task, [(a, _live(task.index, a)) for a in task.accesses if _counts(a)]) for task in subop]
        fresh: dict[Key, list[Live]] = {}  # this sub-operator's accesses
        for access, live in (use for _, uses in mine for use in uses):
            fresh.setdefault((access.space, access.slot), []).append(live)
        met = {key: iter(_met(spaces.get(key, ()), lives)) for key, lives in fresh.items()}
        for task, uses in mine:
            found: dict[tuple[int, int | None], Conflict] = {}
            for access, live in uses:
                key = (access.space, access.slot)
                for other in next(met[key]):
                    if other.task != task.index and (other.task, access.operand) not in found:
                        pair: tuple[Region, Region] | None = (other.regions[0], live.regions[0])
                        if len(other.regions) > 1 or len(live.regions) > 1:
                            pair = any_overlap(other.regions, live.regions)
                        if pair is not None:
                            hazard = _HAZARDS[other.write, live.write]
                            conflict = Conflict(other.task, task.index, hazard, key, *pair, access.operand)
                            found[other.task, access.operand] = conflict
            yield list(found.values())
        for key, lives in fresh.items():
            reads, writes = [a for a in lives if not a.write], [a for a in lives if a.write]
            _record(spaces.setdefault(key, []), reads, writes)


_HAZARDS = {(True, False): Hazard.RAW, (False, True): Hazard.WAR, (True, True): Hazard.WAW}


def _counts(access: MemoryAccess) -> bool:
    return bool(access.regions) and access.space not in READ_ONLY


def _live(task: int, access: MemoryAccess) -> Live:
    first, *more = regions = access.regions
    if not more:
        return Live(task, access.write, first.start, first.stop, regions)
    return Live(task, access.write, min(r.start for r in regions), max(r.stop for r in regions), regions)


def _met(extents: Sequence[Extent], mine: Sequence[Live]) -> Iterator[list[Live]]:
    """For each access of a sub-operator, the accesses that it conflicts with: older ones by extent, then those of
    earlier tasks of the sub-operator; writes first. Of accesses of several regions, those whose bounds meet."""
    low, high = min(live.low for live in mine), max(live.high for live in mine)
    near = [part for e in extents if e.low < high and low < e.high for part in (e.writes, e.reads) if part]
    writes = [live for live in mine if live.write]
    if writes:  # parts of one sub-operator that collide (never, for well-made tilings)
        near += [part for part in (writes, [live for live in mine if not live.write]) if part]
    rows: list[list[Live]] = [[] for _ in mine]
    for others in near:
        if others[0].write or writes:
            _add_met(rows, others, mine)
    for row, live in zip(rows, mine, strict=True):
        yield [other for other in row if other.task < live.task]


def _add_met(rows: Sequence[list[Live]], others: Sequence[Live], mine: Sequence[Live]) -> None:
    """Those of others, all reads or all writes, that meet."""
    reads = not others[0].write
    if len(others) * len(mine) < _FEW:
        for row, live in zip(rows, mine, strict=True):
            if live.write or not reads:
                row += [other for other in others if _meet(other, live)]
        return
    right = _columns(others)
    for at in range(0, len(mine), step := max(1, _MANY // len(others))):
        meet = _all_meet(_columns(mine[at : at + step])[:, :, None], right[:, None, :])
        for n, other in zip(*(column.tolist() for column in np.nonzero(meet)), strict=True):
            if mine[at + n].write or not reads:
                rows[at + n].append(others[other])


_FEW, _MANY = 64, 1 << 20  # pairs of accesses: below, each is looked at by itself; above, not all at once


def _meet(a: Live, b: Live) -> bool:
    """Whether bounds meet, and regions where each has one."""
    if a.low >= b.high or b.low >= a.high:
        return False
    return len(a.regions) > 1 or len(b.regions) > 1 or a.regions[0].overlaps(b.regions[0])


def _columns(lives: Sequence[Live]) -> NDArray[np.int64]:
    """Bounds of accesses; start, length, stride and count of those that are one region, else zeros."""
    rows = []
    for live in lives:
        region = live.regions[0]
        one = len(live.regions) == 1
        form = (region.start, region.length, region.stride, region.count) if one else (0, 0, 0, 0)
        rows.append((live.low, live.high, *form))
    return np.array(rows, np.int64).T


def _all_meet(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """As `_meet`, of columns. Run i of `a` and run i + k of `b` meet where -length of b < distance + k * stride <
    length of a, with the one stride that there is; with two, as if there was no end to the runs."""
    meet: NDArray[np.bool_] = (a[0] < b[1]) & (b[0] < a[1])
    stride, distance = np.maximum(np.where(a[5] == 1, b[4], a[4]), 1), b[2] - a[2]
    least = np.maximum(-((distance + b[3] - 1) // stride), 1 - a[5])
    most = np.minimum((a[3] - 1 - distance) // stride, b[5] - 1)
    inside = least <= most
    two = meet & (a[5] > 1) & (b[5] > 1) & (a[4] != b[4])
    if two.any():
        step = np.maximum(np.gcd(a[4], b[4]), 1)
        delta = distance % step
        inside = np.where(two, (delta < a[3]) | (step - delta < b[3]), inside)
    meet &= inside | (a[5] == 0) | (b[5] == 0)
    return meet


def _record(extents: list[Extent], reads: Sequence[Live], writes: Sequence[Live]) -> None:
    """Enter a finished sub-operator's accesses; its reads first, so that its own writes do not retire them."""
    for low, high, filled, members in _groups(writes):
        if filled:
            extents[:] = [left for extent in extents for left in _without(extent, low, high)]
        extents.append(Extent(low, high, members))
    for live in reads:
        extent = next((e for e in extents if e.low <= live.low and live.high <= e.high), None)
        if extent is None:
            extents.append(Extent(live.low, live.high, [], [live]))
        else:
            extent.reads.append(live)


def _without(extent: Extent, low: int, high: int) -> Iterator[Extent]:
    """What remains of an extent once [low, high) has been written anew: the parts on either side."""
    if high <= extent.low or extent.high <= low:
        yield extent
        return
    for start, stop in ((extent.low, low), (high, extent.high)):
        if start < stop:
            part = Extent(start, stop, _inside(extent.writes, start, stop), _inside(extent.reads, start, stop))
            if part.writes or part.reads:
                yield part


def _inside(accesses: Sequence[Live], low: int, high: int) -> list[Live]:
    """The accesses that touch the stretch, their bounds cut to it (the regions stay whole: a witness may lie
    outside)."""
    return [a._replace(low=max(a.low, low), high=min(a.high, high)) for a in accesses if a.low < high and low < a.high]


def _groups(writes: Sequence[Live]) -> Iterator[tuple[int, int, bool, list[Live]]]:
    """Writes whose stretches meet, with their common stretch and whether they fill it.

    Writes of one sub-operator do not overlap one another (else they would be a race), so they fill a stretch exactly
    where their bytes add up to it; should that not hold, order is lost and the verifier rejects the plan."""
    members: list[Live] = []
    low = high = total = 0
    for live in sorted(writes, key=lambda w: w.low):
        if members and live.low > high:
            yield low, high, total == high - low, members
            members = []
        if not members:
            low, high, total = live.low, live.high, 0
        members.append(live)
        high = max(high, live.high)
        total += sum(r.nbytes for r in live.regions)
    if members:
        yield low, high, total == high - low, members
