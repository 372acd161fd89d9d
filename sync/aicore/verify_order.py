"""Races of an accelerator plan: pairs of accesses to the same bytes that nothing orders.

A5 of `verify`, in two halves: which accesses can meet, which follows from the tasks alone (`Accesses`), and whether
they are ordered, given what cores know at each access (`verify_replay`). Whoever checks many plans of the same tasks
keeps the first half.

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.aicore.plan import AicorePlan, Pause
from superkernel.sync.aicore.verify_replay import Replay
from superkernel.sync.verify_tasks import overlapping_regions, race

RACES_MAX = 20  # listed; more are counted
_BLOCK = 256  # accesses whose pairs are looked at together

_Column: TypeAlias = NDArray[np.int64]
_Pairs: TypeAlias = tuple[_Column, _Column]  # (earlier, later), as numbers of accesses


@dataclass
class _Space:
    """Accesses of one address space, in the global order."""

    source: list[tuple[Task, MemoryAccess]] = field(default_factory=list)
    blocks: list[_Pairs] | None = None

    def __post_init__(self) -> None:
        accesses = [access for _, access in self.source]
        self.low = np.array([min(r.start for r in a.regions) for a in accesses], np.int64)
        self.high = np.array([max(r.stop for r in a.regions) for a in accesses], np.int64)
        self.core = np.array([task.core for task, _ in self.source], np.int64)
        self.subop = np.array([task.subop for task, _ in self.source], np.int64)
        self.write = np.array([a.write for a in accesses], np.bool_)

    def pairs(self) -> Iterator[_Pairs]:
        """Accesses of two sub-operators whose address ranges meet, at least one of them a write; block by block."""
        for begin in range(0, len(self.source), _BLOCK):
            block = range(begin, min(begin + _BLOCK, len(self.source)))
            found = [self._before(b) for b in block]
            yield np.concatenate(found), np.repeat(np.array(block), [len(row) for row in found])

    def _before(self, b: int) -> _Column:
        stop = int(np.searchsorted(self.subop, self.subop[b]))
        meets = (self.low[:stop] < self.high[b]) & (self.high[:stop] > self.low[b])
        if not self.write[b]:
            meets &= self.write[:stop]
        return np.flatnonzero(meets)

    def beside(self) -> Iterator[Violation]:
        """Tasks of one sub-operator on two cores that touch the same bytes: nothing can order them."""
        for b, (task, access) in enumerate(self.source):
            if access.space is Space.SCRATCH:
                return
            first = int(np.searchsorted(self.subop, self.subop[b]))
            mine = slice(first, b)
            meets = (self.low[mine] < self.high[b]) & (self.high[mine] > self.low[b]) & (self.core[mine] != task.core)
            for a in np.flatnonzero(meets) + first:
                earlier, before = self.source[a]
                pair = overlapping_regions(before.regions, access.regions)
                if before.dynamically_partitioned and access.dynamically_partitioned:
                    continue
                if (before.write or access.write) and pair is not None:
                    yield _race(earlier, task, access, pair)


class Accesses:
    """What the tasks of a plan access, by address space; inputs and constants, which nobody writes, are left out."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        found: dict[tuple[Space, int], list[tuple[Task, MemoryAccess]]] = {}
        for task in tasks:
            for access in task.accesses:
                if access.regions and access.space not in (Space.INPUT, Space.CONSTANT):
                    found.setdefault((access.space, access.slot), []).append((task, access))
        self.spaces = [_Space(source) for source in found.values()]
        self.beside: list[Violation] | None = None

    def keep(self) -> Accesses:
        """Find what meets now, and keep it for all checks to come."""
        for space in self.spaces:
            space.blocks = list(space.pairs())
        self.beside = self._beside()
        return self

    def _beside(self) -> list[Violation]:
        return _first(violation for space in self.spaces for violation in space.beside())

    def races(self, plan: AicorePlan, replay: Replay) -> tuple[int, int, list[Violation]]:
        """The number of pairs of accesses whose address ranges meet, of those on two cores, and the races."""
        paused = {s.subop for program in plan.programs.values() for s in program if isinstance(s, Pause)}
        pairs = cross = 0
        races = list(self._beside() if self.beside is None else self.beside)
        for space in self.spaces:
            # what runs between two launches begins when all before it is complete
            ordered = np.isin(space.subop, list(paused))
            step = np.array([replay.step_of[plan.kind(task.core), task.subop] for task, _ in space.source], np.int64)
            for earlier, later in space.pairs() if space.blocks is None else space.blocks:
                pairs += len(earlier)
                cross += int((space.core[earlier] != space.core[later]).sum())
                open_ = ~ordered[later]
                for a, b in zip(*_unordered(space, replay, step, earlier[open_], later[open_]), strict=True):
                    if len(races) < RACES_MAX:
                        races += _race_of(space, a, b)
        return pairs, cross, races[:RACES_MAX]


def check_order(plan: AicorePlan, replay: Replay, accesses: Accesses | None = None) -> tuple[int, int, list[Violation]]:
    """The number of pairs of accesses whose address ranges meet, of those on two cores, and the races among them.
    `accesses`: of the plan's tasks, where they are known."""
    return (accesses or Accesses(plan.tasks)).races(plan, replay)


def _unordered(space: _Space, replay: Replay, step: _Column, earlier: _Column, later: _Column) -> _Pairs:
    """The pairs whose later core may begin before the earlier access is complete: it does not know so much of the other
    core; or it is the same core, which reads what it wrote and has passed no fence."""
    numbers, row = np.unique(later, return_inverse=True)
    if not len(numbers):
        return earlier, later
    reached = []
    for number in numbers:
        task, access = space.source[number]
        reached.append(replay.at_operand(task.subop, access.operand, task.core))
    known, fenced = np.stack([vector for vector, _ in reached]), np.array([fence for _, fence in reached], np.int64)
    core, at = space.core[earlier], step[earlier]
    late = known[row, core] < at
    late |= (core == space.core[later]) & ~space.write[later] & (at > fenced[row])
    return earlier[late], later[late]


def _race_of(space: _Space, a: int, b: int) -> list[Violation]:
    earlier, before = space.source[a]
    task, access = space.source[b]
    pair = overlapping_regions(before.regions, access.regions)
    return [] if pair is None else [_race(earlier, task, access, pair)]


def _first(violations: Iterable[Violation]) -> list[Violation]:
    return [violation for violation, _ in zip(violations, range(RACES_MAX), strict=False)]


def _race(a: Task, b: Task, access: MemoryAccess, pair: tuple[Region, Region]) -> Violation:
    wanted = "a fence behind the core's own stores" if a.core == b.core else f"an event from core {a.core}"
    return race(a, b, access, pair, f"sub-operator {b.subop}, operand {access.operand}", wanted)
