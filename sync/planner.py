"""From a schedule to the least synchronisation that is provably enough.

Model: each task has a vector clock: for every core, how many of that core's tasks are known to be complete when the
task may start. A task must know of every task it conflicts with. What program order and earlier waits already tell
needs nothing; for the rest the planner takes, per producer core, the latest task that is needed, and drops those
which another one implies. A kept need becomes a wait of the consumer's core and a set behind the producer's task;
sets that nobody waits for do not exist.

With `sync="full"` every core waits for every other one in front of every sub-operator: what a fused kernel without
analysis does.

Architecture invariant: nothing here is trusted. `verify` proves the result without importing this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, starmap
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from superkernel.core.collection import paused
from superkernel.core.counted import counted
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Schedule, Task
from superkernel.sync.hazards import AccessColumns
from superkernel.sync.plan import (
    BODY,
    SET,
    WAIT,
    Boundary,
    Hazard,
    Plan,
    Set,
    Step,
    StepRows,
    SyncForm,
    TaskStep,
    Wait,
    WaitReason,
    WaitReasons,
    Witness,
)  # fmt: skip


@paused()
def plan_sync(schedule: Schedule, *, sync: str = "minimal", handover_ns: float = 100.0) -> Plan:
    """The synchronisation plan. `sync` as in `Options`; `handover_ns` is the cost of one flag between two cores."""
    if sync == "full":
        return _full(schedule, handover_ns)
    return _Assembler(schedule, handover_ns).plan()


class _Assembler:
    """Waits and sets into per-core programs, boundaries with their forms."""

    def __init__(self, schedule: Schedule, handover_ns: float) -> None:
        self.schedule, self.handover_ns = schedule, handover_ns
        tasks = schedule.tasks
        self.core_of, self.subop_of = (
            np.fromiter(map(attrgetter(name), tasks), np.int32, len(tasks)) for name in ("core", "subop")
        )

    def plan(self) -> Plan:
        tasks, accesses = self.schedule.tasks, AccessColumns(self.schedule.tasks)
        needs, implied = accesses.search().needs(self.core_of.tolist(), self.schedule.cores)
        awaited = np.zeros(len(tasks), np.bool_)
        awaited[accesses.task[needs[:, 0]]] = True
        count_of = np.zeros(len(tasks), np.int32)  # of the set behind a task
        sets = [0] * self.schedule.cores
        for number in np.flatnonzero(awaited).tolist():
            sets[tasks[number].core] += 1
            count_of[number] = sets[tasks[number].core]
        reasons = _reasons(accesses, needs, count_of)
        programs = tuple(self._programs(count_of, reasons))
        return Plan(tasks, programs, tuple(sets), reasons, tuple(self._boundaries(reasons, implied)))

    def _waits_of_cores(self, reasons: WaitReasons) -> Iterator[range]:
        """Each core's waits, which stand together. What is computed of waits is computed core by core: there may be
        millions."""
        core = reasons.accesses[reasons.rows[:, 1], 1]
        return starmap(range, pairwise(np.searchsorted(core, np.arange(self.schedule.cores + 1)).tolist()))

    def _programs(self, count_of: NDArray[np.int32], reasons: WaitReasons) -> Iterator[StepRows]:
        """Per core: of each of its tasks the waits, the body and the set."""
        for core, waits in enumerate(self._waits_of_cores(reasons)):
            earlier, later = reasons.rows[waits.start : waits.stop, :2].T
            tasks = np.flatnonzero(self.core_of == core)
            sets = count_of[tasks] > 0
            ahead = np.bincount(reasons.accesses[later, 0], minlength=len(self.core_of))[tasks]
            stop = np.cumsum(ahead + 1 + sets)  # of a task's steps
            body, last = stop - 1 - sets, stop[sets] - 1
            rows = np.zeros((stop[-1] if len(stop) else 0, 5), np.int32)
            rows[:, 0] = WAIT
            rows[body, 0], rows[body, 1] = BODY, tasks
            rows[last, 0], rows[last, 1] = SET, count_of[tasks[sets]]
            at = np.flatnonzero(rows[:, 0] == WAIT)
            rows[at, 1], rows[at, 2] = reasons.accesses[earlier][:, (1, 3)].T
            rows[at, 3], rows[at, 4] = reasons.accesses[later, 2], np.arange(waits.start, waits.stop)
            yield StepRows(rows)

    def _boundaries(self, reasons: WaitReasons, implied: NDArray[np.int32]) -> Iterator[Boundary]:
        cores, count = self.schedule.cores, len(self.schedule.subops)
        first, conflicts = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        pairs, fan_in = np.zeros(count, np.int64), np.zeros(count, np.int64)  # of cores, each pair once
        members = np.zeros((count, cores), np.bool_)  # who waits or is awaited
        for core, waits in enumerate(self._waits_of_cores(reasons)):
            earlier, later, of_wait = reasons.rows[waits.start : waits.stop, :3].T
            subop = reasons.accesses[later, 2]
            conflicts += np.bincount(subop, of_wait, count).astype(np.int64)
            at = np.full(count, -1, np.int64)
            at[subop[::-1]] = np.arange(waits.stop - 1, waits.start - 1, -1)
            first = np.where(first < 0, at, first)
            awaited = np.zeros((count, cores), np.bool_)
            awaited[subop, reasons.accesses[earlier, 1]] = True
            number = np.count_nonzero(awaited, axis=1)
            pairs, fan_in, members = pairs + number, np.maximum(fan_in, number), members | awaited
            members[:, core] |= number > 0
        implied_of_subop = np.zeros(count, np.int64)
        np.add.at(implied_of_subop, self.subop_of, implied)
        sizes = np.count_nonzero(members, axis=1)
        columns = (first, conflicts, pairs, sizes, fan_in, implied_of_subop)
        for sub, figures in zip(self.schedule.subops, np.stack(columns, axis=1).tolist(), strict=True):
            yield self._boundary(sub.index, reasons, *figures)

    def _boundary(
        self, subop: int, reasons: WaitReasons, first: int, conflicts: int, pairs: int, members: int, fan_in: int,
        implied: int,
    ) -> Boundary:  # fmt: skip
        cores = self.schedule.cores
        form = form_of(pairs, members, cores)
        full_cost = 0.0 if cores == 1 else self.handover_ns * (1 + 0.1 * (cores - 2))
        cost = self.handover_ns * (1 + 0.1 * (fan_in - 1)) if pairs else 0.0
        wider = tuple((f, full_cost) for f in (SyncForm.FULL,) if f is not form)
        reason = self._without_wait(implied)
        if pairs:
            reason = f"{reasons[first].witness}" + (f" and {conflicts - 1} more" if conflicts > 1 else "")
        return Boundary(subop, form, reason, implied, cost, wider)

    def _without_wait(self, implied: int) -> str:
        """Why none is needed."""
        if self.schedule.cores == 1:
            return "one core: program order"
        if implied:
            return f"{counted(implied, 'ordering constraint')} implied by earlier waits"
        return "every core reads only what it wrote itself"


def _reasons(accesses: AccessColumns, needs: NDArray[np.int32], count_of: NDArray[np.int32]) -> WaitReasons:
    """One per need, which become its rows. Accesses and regions that none of them names are left out."""
    columns = (accesses.task, accesses.core, accesses.subop, count_of[accesses.task], accesses.place, accesses.write)
    used = _numbered_anew(needs[:, :2], len(accesses.task))
    table = np.stack([column[used] for column in columns], axis=1, dtype=np.int32)
    regions = accesses.regions[_numbered_anew(needs[:, 3:], len(accesses.regions))]
    return WaitReasons(needs, table, accesses.places, regions)


def _numbered_anew(numbers: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Those below `count` that occur, which are replaced by their places among them."""
    occurs = np.zeros(count, np.bool_)
    occurs[numbers] = True
    place = np.cumsum(occurs, dtype=np.int32) - 1
    numbers[:] = place[numbers]
    return np.flatnonzero(occurs)


def form_of(pairs: int, members: int, cores: int) -> SyncForm:
    """The form of so many pairs of a waiting and an awaited core, of so many cores."""
    if not pairs:
        return SyncForm.NONE
    if pairs == members * (members - 1) and pairs > 1:
        return SyncForm.FULL if members == cores else SyncForm.SUBSET
    return SyncForm.POINT_TO_POINT


def _full(schedule: Schedule, handover_ns: float) -> Plan:
    """A barrier of all cores between consecutive sub-operators: every core sets, then waits for every other."""
    cores = schedule.cores
    programs: list[list[Step]] = [[] for _ in range(cores)]
    reasons: list[WaitReason] = []
    boundaries: list[Boundary] = []
    by_subop: dict[int, list[Task]] = {}
    for task in schedule.tasks:
        by_subop.setdefault(task.subop, []).append(task)
    order = list(by_subop)
    for number, subop in enumerate(order):
        waits = bool(number) and cores > 1
        if waits:
            witness = Witness(
                Hazard.BARRIER,
                by_subop[order[number - 1]][-1].index,
                by_subop[subop][0].index,
                "all",
                Region(0, 0),
                Region(0, 0),
            )
            for program in programs:
                program.append(Set(number))
            for core in range(cores):
                for producer in (p for p in range(cores) if p != core):
                    wait = Wait(producer, number, subop, len(reasons))
                    reasons.append(WaitReason(core, wait, witness, 0))
                    programs[core].append(wait)
        for task in by_subop[subop]:
            programs[task.core].append(TaskStep(task.index))
        form = SyncForm.FULL if waits else SyncForm.NONE
        reason = (
            "asked for by sync='full'" if waits else "first sub-operator" if cores > 1 else "one core: program order"
        )
        boundaries.append(Boundary(subop, form, reason, 0, handover_ns if waits else 0.0, ()))
    sets = max(0, len(order) - 1) if cores > 1 else 0
    boundaries.sort(key=lambda b: b.subop)
    return Plan(schedule.tasks, tuple(map(tuple, programs)), (sets,) * cores, tuple(reasons), tuple(boundaries))
