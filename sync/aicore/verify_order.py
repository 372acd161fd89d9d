"""Races of an accelerator plan: pairs of accesses to the same bytes that nothing orders.

A5 of `verify`, given what cores know at each access (`verify_replay`).

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from superkernel.errors import Violation
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.aicore.plan import AicorePlan, Pause
from superkernel.sync.aicore.verify_replay import Replay
from superkernel.tensor import Region

RACES_MAX = 20  # listed; more are counted


@dataclass
class _Rows:
    """Accesses of one address space as columns."""

    low: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)
    core: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    subop: list[int] = field(default_factory=list)
    write: list[bool] = field(default_factory=list)
    source: list[tuple[Task, MemoryAccess]] = field(default_factory=list)


def check_order(plan: AicorePlan, replay: Replay) -> tuple[int, int, list[Violation]]:
    """The number of pairs of accesses whose address ranges meet, of those on two cores, and the races among them."""
    spaces: dict[tuple[Space, int], _Rows] = {}
    for task in plan.tasks:
        step = replay.step_of[plan.kind(task.core), task.subop]
        for access in task.accesses:
            if access.regions and access.space not in (Space.INPUT, Space.CONSTANT):
                rows = spaces.setdefault((access.space, access.slot), _Rows())
                rows.low.append(min(r.start for r in access.regions))
                rows.high.append(max(r.stop for r in access.regions))
                rows.core.append(task.core)
                rows.step.append(step)
                rows.subop.append(task.subop)
                rows.write.append(access.write)
                rows.source.append((task, access))
    pairs = cross = 0
    races: list[Violation] = []
    for rows in spaces.values():
        p, c, found = _check_space(plan, replay, rows)
        pairs, cross = pairs + p, cross + c
        races += found
    return pairs, cross, races[:RACES_MAX]


def _check_space(plan: AicorePlan, replay: Replay, rows: _Rows) -> tuple[int, int, list[Violation]]:
    low, high, core, step, subop = (np.array(c) for c in (rows.low, rows.high, rows.core, rows.step, rows.subop))
    write = np.array(rows.write)
    pairs = cross = 0
    races: list[Violation] = []
    paused = {s.subop for program in plan.programs.values() for s in program if isinstance(s, Pause)}
    for b, (task, access) in enumerate(rows.source):
        stop = int(np.searchsorted(subop, subop[b]))
        meets = (low[:stop] < high[b]) & (high[:stop] > low[b])
        if not access.write:
            meets &= write[:stop]
        found = np.flatnonzero(meets)
        pairs += len(found)
        other = core[found] != task.core
        cross += int(other.sum())
        if access.space is not Space.SCRATCH:
            beside = np.flatnonzero((low[stop:b] < high[b]) & (high[stop:b] > low[b]) & (core[stop:b] != task.core))
            for a in beside + stop:
                pair = _meeting(rows.source[a][1].regions, access.regions)
                if rows.source[a][1].dealt_out and access.dealt_out:
                    continue
                if (write[a] or access.write) and pair is not None and len(races) < RACES_MAX:
                    races.append(_race(rows.source[a][0], task, access, *pair))
        if task.subop in paused:  # it runs between two launches: all before it is complete
            continue
        known, fenced = replay.at_operand(task.subop, access.operand, task.core)
        late = found[known[core[found]] < step[found]]
        own = found[~other]
        if not access.write:
            late = np.union1d(late, own[step[own] > fenced])
        for a in late:
            earlier, before = rows.source[a]
            pair = _meeting(before.regions, access.regions)
            if pair is not None and len(races) < RACES_MAX:
                races.append(_race(earlier, task, access, *pair))
    return pairs, cross, races


def _race(a: Task, b: Task, access: MemoryAccess, left: Region, right: Region) -> Violation:
    same = a.core == b.core
    return Violation(
        f"race: tasks {a.index} (sub-operator {a.subop}, core {a.core}) and {b.index} (sub-operator {b.subop}, core "
        f"{b.core}) touch the same bytes of {access.space.value}{access.slot} and are not ordered",
        f"core {b.core}, sub-operator {b.subop}, operand {access.operand}",
        expected="a fence behind the core's own stores" if same else f"an event from core {a.core}",
        found=f"bytes {left} and {right}",
    )


def _meeting(left: Sequence[Region], right: Sequence[Region]) -> tuple[Region, Region] | None:
    return next(((a, b) for a in left for b in right if _share_byte(a, b)), None)


def _share_byte(a: Region, b: Region) -> bool:
    """Whether two strided byte sets meet: run by run of the one with fewer runs."""
    if a.count > b.count:
        a, b = b, a
    starts = a.start + np.arange(a.count, dtype=np.int64) * a.stride
    if b.count == 1 or b.stride == 0:
        return bool(((starts < b.start + b.length) & (b.start < starts + a.length)).any())
    first = np.maximum(0, (starts - b.start - b.length) // b.stride + 1)
    return bool(((first < b.count) & (b.start + first * b.stride < starts + a.length)).any())
