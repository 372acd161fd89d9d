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

from superkernel.core.tensor import Region, any_overlap
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Hazard, Witness

READ_ONLY = (Space.CONSTANT, Space.INPUT)

Key = tuple[Space, int]


@dataclass(frozen=True, slots=True)
class Live:
    """An access that later tasks may still conflict with; `low` and `high` bound its regions."""

    task: int
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


@dataclass(frozen=True, slots=True)
class Conflict:
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
        place = f"{self.key[0].value}{self.key[1]}"
        return Witness(self.hazard, self.earlier, self.later, place, self.left, self.right)


def find_conflicts(tasks: Sequence[Task]) -> Iterator[list[Conflict]]:
    """For each task in order, its conflicts with earlier tasks (of any core), at most one per earlier task and operand
    of the later one (accesses that name no operand count as one)."""
    spaces: dict[Key, list[Extent]] = {}
    at = 0
    while at < len(tasks):
        stop = at
        while stop < len(tasks) and tasks[stop].subop == tasks[at].subop:
            stop += 1
        fresh: dict[Key, tuple[list[Live], list[Live]]] = {}  # this sub-operator's reads and writes
        for task in tasks[at:stop]:
            found: dict[tuple[int, int | None], Conflict] = {}
            mine = [(a, _live(task.index, a)) for a in task.accesses if a.regions and a.space not in READ_ONLY]
            for access, live in mine:
                key = (access.space, access.slot)
                for extent in spaces.get(key, ()):
                    _match(access, live, extent.low, extent.high, extent.writes, extent.reads, found)
                if key in fresh:  # parts of one sub-operator that collide (never, for well-made tilings)
                    reads, writes = fresh[key]
                    _match(access, live, live.low, live.high, writes, reads, found)
            for access, live in mine:
                fresh.setdefault((access.space, access.slot), ([], []))[access.write].append(live)
            yield [c for c in found.values() if c.earlier != task.index]
        for key, (reads, writes) in fresh.items():
            _record(spaces.setdefault(key, []), reads, writes)
        at = stop


def _live(task: int, access: MemoryAccess) -> Live:
    regions = access.regions
    if len(regions) == 1:
        return Live(task, regions[0].start, regions[0].stop, regions)
    return Live(task, min(r.start for r in regions), max(r.stop for r in regions), regions)


def _match(
    access: MemoryAccess,
    live: Live,
    low: int,
    high: int,
    writes: Sequence[Live],
    reads: Sequence[Live],
    found: dict[tuple[int, int | None], Conflict],
) -> None:
    """Conflicts of one access with the older ones of a stretch [low, high)."""
    if low >= live.high or live.low >= high:
        return
    for older, hazard in ((writes, Hazard.WAW if access.write else Hazard.RAW), (reads, Hazard.WAR)):
        if hazard is Hazard.WAR and not access.write:
            return
        for other in older:
            if other.low >= live.high or live.low >= other.high or (other.task, access.operand) in found:
                continue
            pair = any_overlap(other.regions, live.regions)
            if pair is not None:
                key = (access.space, access.slot)
                found[other.task, access.operand] = Conflict(other.task, live.task, hazard, key, *pair, access.operand)


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
    return [
        Live(a.task, max(a.low, low), min(a.high, high), a.regions) for a in accesses if a.low < high and low < a.high
    ]


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
