"""When a launch's sub-operators need their constants, and what it costs them to bring these from HBM themselves.

Model: L2 is cold where a run begins. A sub-operator's first touch of a constant misses: its cores bring the bytes at
`hbm.core_bytes_per_cycle` each, those that several cores read in equal shares. What is in L2 comes at the rate of the
core's own path. What that makes of a kernel, which may hide much of it behind its other engines, its family says, by
its cost on targets that differ. A family that has misses in its cost (`AicoreTiling.missed`) is asked with HBM as it is
and with an HBM that costs nothing; one that has not, on the target and on one whose paths are as slow as misses. By how
much of what could miss is a constant that does, the sub-operator lies between the two. Sub-operators follow one another
on the cores of their types, and wait for the plan's events.

Early-Start: a kernel that waits for its operands brings constants meanwhile, as long as the wait is and as far as its
local memory has room (HELD of it).

Not in it: misses of activations (what a launch has written is in L2), traffic of other cores but as a share of HBM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.ir.body import Role
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.schedule import MemoryAccess, Schedule, Space, Task
from superkernel.sync.aicore.plan import AicorePlan, CoreKind, HartKind, LaunchEnd, Pause, Run
from superkernel.target.aicore import AicoreTarget

PAGE_BYTES = 4096  # what is known about first touches
GAP_BYTES = 8192  # ranges nearer to one another are brought as one
FREE_BYTES_PER_CYCLE = 4096
HELD = 0.25  # of the memory that MTE2 fills
PARTS = 1.25  # a kernel that would need so much longer to read all that it declares reads only parts
_PATH = {CoreKind.CUBE: "rates.gm_to_l1_gb_per_s", CoreKind.VECTOR: "rates.gm_to_ub_gb_per_s"}
_FIRST_TOUCHED = (Space.CONSTANT, Space.INPUT, Space.STATE)


@dataclass(frozen=True)
class Demand:
    """Of a sub-operator: cycles with its constants in L2 (`hit_cycles`), and without, if nothing of them comes early
    (`cold_cycles`); cycles in which its cores bring what misses, and how many of these Early-Start has room for; bytes
    that all bring from HBM, and that all move from and to L2; ranges of constants (begin, end) that they touch first;
    and whether they read all that they declare."""

    subop: int
    kinds: tuple[HartKind, ...]
    hit_cycles: float
    cold_cycles: float
    missing_cycles: float
    room_cycles: float
    hbm_bytes: float
    l2_bytes: float
    ranges: tuple[tuple[int, int], ...]
    whole: bool

    @property
    def nbytes(self) -> int:
        """Of the ranges."""
        return sum(end - begin for begin, end in self.ranges)

    def gain_cycles(self, wait_cycles: float) -> float:
        """What its constants in L2 save it, where it waits so long for its operands."""
        if not self.missing_cycles or not self.whole:
            return 0.0
        early = min(1.0, self.room_cycles / self.missing_cycles, wait_cycles / self.missing_cycles)
        return (self.cold_cycles - self.hit_cycles) * (1 - early)


@dataclass(frozen=True)
class Times:
    """When each sub-operator's types come to it (`entry`), when all that it waits for is there (`start`), and when it
    ends; what having its constants in L2 saves (`gain`); cycles of the launch."""

    entry: Mapping[int, float]
    start: Mapping[int, float]
    end: Mapping[int, float]
    gain: Mapping[int, float]

    @property
    def total(self) -> float:
        """When the last sub-operator ends, cycles."""
        return max(self.end.values(), default=0.0)


def demands_of(schedule: Schedule, plan: AicorePlan, target: AicoreTarget) -> tuple[Demand, ...]:
    """Of all sub-operators that run on cores, in order."""
    rows: list[list[Task]] = [[] for _ in schedule.subops]
    for task in schedule.tasks:
        rows[task.subop].append(task)
    seen = _Seen(schedule)
    miss_gb_per_s = target.hbm.core_bytes_per_cycle * target.device.clock_mhz / 1000
    slow = target.replaced({path: min(miss_gb_per_s, float(str(target.value(path)))) for path in _PATH.values()})
    free_gb_per_s = FREE_BYTES_PER_CYCLE * target.device.clock_mhz / 1000
    warm = target.replaced(
        {
            "hbm.core_bytes_per_cycle": FREE_BYTES_PER_CYCLE, "hbm.rate_gb_per_s": free_gb_per_s, "hbm.latency_ns": 0,
        }
    )  # fmt: skip
    found = []
    for sub, tiling, tasks in zip(schedule.subops, schedule.tilings, rows, strict=True):
        if isinstance(tiling, AicoreTiling) and tasks:
            spans = {(t.begin, t.end) for t in tasks}
            hit, cold = (warm, target) if tiling.missed else (target, slow)
            cost = {
                span: (tiling.contended_cycles(sub.body, *span, hit), tiling.contended_cycles(sub.body, *span, cold))
                for span in spans
            }
            found.append(_demand(tasks, cost, tiling.missed, plan, target, seen))
    return tuple(found)


def times_of(
    demands: Sequence[Demand], plan: AicorePlan, target: AicoreTarget, prefetched: Collection[int] = ()
) -> Times:
    """The launch played through, with the constants of some sub-operators in L2."""
    free: dict[HartKind, float] = dict.fromkeys(plan.programs, 0.0)
    done: dict[HartKind, list[float]] = {kind: [] for kind in plan.programs}  # by sub-operator: all up to it
    entry: dict[int, float] = {}
    begin: dict[int, float] = {}
    end: dict[int, float] = {}
    gain: dict[int, float] = {}
    of = {demand.subop: demand for demand in demands}
    for boundary in plan.boundaries:
        demand = of.get(boundary.subop)
        if demand is not None:
            entry[demand.subop] = min(free[kind] for kind in demand.kinds)
            start = max(free[kind] for kind in demand.kinds)
            for index in boundary.events:
                event = plan.events[index]
                latency = target.flag_cycles(event.mode.value)
                setters: Iterable[HartKind] = CoreKind if event.setters is None else (event.setters,)
                start = max(start, max(done[kind][event.after] for kind in setters) + latency)
            gain[demand.subop] = demand.gain_cycles(start - entry[demand.subop])
            cycles = demand.hit_cycles + (0.0 if demand.subop in prefetched else gain[demand.subop])
            begin[demand.subop] = start
            end[demand.subop] = start + cycles
            free.update(dict.fromkeys(demand.kinds, start + cycles))
        for kind, row in done.items():
            row.append(free[kind])
    return Times(entry, begin, end, gain)


def launches_of(plan: AicorePlan) -> dict[int, int]:
    """Sub-operator -> number of the launch that runs it."""
    found: dict[int, int] = {}
    for program in plan.programs.values():
        launch = 0
        for step in program:
            if isinstance(step, Run):
                found[step.subop] = launch
            launch += isinstance(step, (Pause, LaunchEnd))
    return found


class _Seen:
    """Which pages of constants, inputs and states were touched before."""

    def __init__(self, schedule: Schedule) -> None:
        self._stops: dict[tuple[Space, int], int] = {}
        for access in (a for task in schedule.tasks for a in task.accesses if a.space in _FIRST_TOUCHED):
            key = (access.space, access.slot)
            self._stops[key] = max(self._stops.get(key, 0), *(r.stop for r in access.regions), 0)
        self._pages: dict[tuple[Space, int], NDArray[np.bool_]] = {}

    def _of(self, access: MemoryAccess) -> NDArray[np.bool_]:
        key = (access.space, access.slot)
        if key not in self._pages:
            self._pages[key] = np.zeros(self._stops[key] // PAGE_BYTES + 1, bool)
        return self._pages[key]

    def fresh(self, access: MemoryAccess, start: int, stop: int) -> float:
        """The part of a stretch that nobody has touched."""
        pages = self._of(access)[start // PAGE_BYTES : (stop - 1) // PAGE_BYTES + 1]
        return 1.0 - float(pages.mean())

    def touch(self, accesses: Sequence[MemoryAccess]) -> None:
        for access in accesses:
            pages = self._of(access)
            for region in access.regions:
                pages[region.start // PAGE_BYTES : (region.stop - 1) // PAGE_BYTES + 1] = True


def _demand(
    tasks: Sequence[Task],
    cost: Mapping[tuple[int, int], tuple[float, float]],
    could_miss: Collection[Role],
    plan: AicorePlan,
    target: AicoreTarget,
    seen: _Seen,
) -> Demand:
    """`cost`: cycles of each range with what could miss in L2, and with it missing. `could_miss`: what that is in the
    family's cost, none: it has no misses in it."""
    outside = [a for t in tasks for a in t.accesses if a.space in _FIRST_TOUCHED]
    sharers = Counter((a.space, a.slot, r) for t in tasks for a in t.accesses if not a.write for r in a.regions)
    miss_rate = float(target.hbm.core_bytes_per_cycle)
    room = {CoreKind.CUBE: HELD * target.memory.l1_bytes, CoreKind.VECTOR: HELD * target.memory.ub_bytes}
    hit = cold = missing = early = hbm = 0.0
    moved = float(sum(r.nbytes for t in tasks for a in t.accesses for r in a.regions))
    ranges: list[tuple[int, int]] = []
    whole = True
    for task in tasks:
        kind = plan.kind(task.core)
        if not isinstance(kind, CoreKind):  # an aicpu hart loads word by word
            hit = cold = max(hit, cost[task.begin, task.end][0])
            continue
        rate = target.mb_per_s(_PATH[kind]) / target.device.clock_mhz
        read = share = missed = constant = 0.0
        for access, region in ((a, r) for a in task.accesses if not a.write for r in a.regions):
            read += region.nbytes
            role = Role.CONSTANT if access.space is Space.CONSTANT else Role.INPUT
            share += region.nbytes / sharers[access.space, access.slot, region] if role in could_miss else 0.0
            constant += region.nbytes if access.space is Space.CONSTANT else 0
            if access.space in _FIRST_TOUCHED:
                fresh = seen.fresh(access, region.start, region.stop)
                own = region.nbytes * fresh / sharers[access.space, access.slot, region]
                hbm += own
                if access.space is Space.CONSTANT and fresh:
                    missed += own
                    ranges.append((region.start, region.stop))
        cycles, slowly = cost[task.begin, task.end]
        could = share if could_miss else read
        whole &= constant / rate <= PARTS * max(cycles, float(target.dma.startup_cycles))
        hit = max(hit, cycles)
        cold = max(cold, cycles + (slowly - cycles) * (missed / could if could else 0.0))
        missing = max(missing, missed / miss_rate)
        early = max(early, room[kind] / miss_rate)
    seen.touch(outside)
    kinds = tuple(dict.fromkeys(plan.kind(t.core) for t in tasks))
    return Demand(tasks[0].subop, kinds, hit, cold, missing, early, hbm, moved, _merged(ranges), whole)


def _merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1] + GAP_BYTES:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return tuple(found)
