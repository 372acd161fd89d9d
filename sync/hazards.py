"""Which earlier tasks a task must come after: conflicts of byte regions, found in one pass over the global order.

Model: per address space a list of live accesses. A task conflicts with a live access of another task where the regions overlap and one of the two
writes. A write that covers an older access entirely retires it: whoever conflicts with the old one also conflicts with the new one, which itself comes
after the old one, so order is kept through it. That keeps the list as short as the live data.

Invariant: for every pair of conflicting tasks (a before b) the result holds a chain a -> ... -> b of listed conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Hazard, Witness
from superkernel.tensor import Region


@dataclass(frozen=True, slots=True)
class _Live:
    """An access that later tasks may still conflict with; `low` and `high` bound its regions."""

    task: int
    write: bool
    low: int
    high: int
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Task `later` must come after task `earlier`, because of the witness."""

    earlier: int
    later: int
    witness: Witness


_READ_ONLY = (Space.CONSTANT, Space.INPUT)


def find_conflicts(tasks: Sequence[Task]) -> Iterator[list[Conflict]]:
    """For each task in order, its conflicts with earlier tasks (of any core), at most one per earlier task."""
    live: dict[tuple[Space, int], list[_Live]] = {}
    for task in tasks:
        found: dict[int, Conflict] = {}
        for access in task.accesses:
            if access.regions and access.space not in _READ_ONLY:
                records = live.setdefault((access.space, access.slot), [])
                _match(task.index, access, records, found)
        yield list(found.values())
        for access in task.accesses:
            if access.regions and access.space not in _READ_ONLY:
                _record(task.index, access, live[access.space, access.slot])


def _bounds(regions: tuple[Region, ...]) -> tuple[int, int]:
    return min(r.start for r in regions), max(r.stop for r in regions)


def _match(task: int, access: MemoryAccess, records: list[_Live], found: dict[int, Conflict]) -> None:
    low, high = _bounds(access.regions)
    write = access.write
    for other in records:
        if other.low >= high or low >= other.high or not (write or other.write) or other.task in found:
            continue
        pair = _overlap(other.regions, access.regions)
        if pair is not None:
            hazard = Hazard.RAW if not write else Hazard.WAW if other.write else Hazard.WAR
            place = f"{access.space.value}{access.slot}"
            found[other.task] = Conflict(other.task, task, Witness(hazard, other.task, task, place, *pair))


def _overlap(left: tuple[Region, ...], right: tuple[Region, ...]) -> tuple[Region, Region] | None:
    for a in left:
        for b in right:
            if a.overlaps(b):
                return (a, b)
    return None


def _record(task: int, access: MemoryAccess, records: list[_Live]) -> None:
    low, high = _bounds(access.regions)
    if access.write and len(access.regions) == 1 and access.regions[0].count == 1:
        # The older access is ordered before this task (it overlaps a write of it), so it may go.
        records[:] = [r for r in records if r.task == task or not (low <= r.low and r.high <= high)]
    records.append(_Live(task, access.write, low, high, access.regions))
