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

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from superkernel.core.counted import counted
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Schedule, Task
from superkernel.sync.hazards import AccessColumns
from superkernel.sync.plan import (
    BODY,
    HAZARDS,
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


def plan_sync(schedule: Schedule, *, sync: str = "minimal", handover_ns: float = 100.0) -> Plan:
    """The synchronisation plan. `sync` as in `Options`; `handover_ns` is the cost of one flag between two cores."""
    if sync == "full":
        return _full(schedule, handover_ns)
    return _Assembler(schedule, handover_ns).plan()


class _Assembler:
    """Waits and sets into per-core programs, boundaries with their forms."""

    def __init__(self, schedule: Schedule, handover_ns: float) -> None:
        self.schedule, self.handover_ns = schedule, handover_ns
        self.accesses = AccessColumns(schedule.tasks)
        core_of = [task.core for task in schedule.tasks]
        self.needs, self.implied_of_task = self.accesses.search().needs(core_of, schedule.cores)

    def plan(self) -> Plan:
        tasks = self.schedule.tasks
        core_of, subop_of = (
            np.fromiter(map(attrgetter(name), tasks), np.int32, len(tasks)) for name in ("core", "subop")
        )
        awaited = np.zeros(len(tasks), np.bool_)
        awaited[self.accesses.task[self.needs[:, 2]]] = True
        count_of = np.zeros(len(tasks), np.int32)  # of the set behind a task
        sets = [0] * self.schedule.cores
        for number in np.flatnonzero(awaited).tolist():
            sets[tasks[number].core] += 1
            count_of[number] = sets[tasks[number].core]
        reasons = self._reasons(core_of, subop_of, count_of)
        programs = tuple(self._programs(core_of, count_of, reasons))
        return Plan(tasks, programs, tuple(sets), reasons, tuple(self._boundaries(subop_of, reasons)))

    def _programs(
        self, core_of: NDArray[np.int32], count_of: NDArray[np.int32], reasons: WaitReasons
    ) -> Iterator[StepRows]:
        """Per core: of each of its tasks the waits, which stand in this order in `reasons`, the body and the set."""
        order = np.argsort(core_of, kind="stable")
        sets = count_of[order] > 0
        stop = np.cumsum(np.bincount(self.needs[:, 0], minlength=len(order))[order] + 1 + sets)  # of a task's steps
        rows = np.zeros((stop[-1] if len(stop) else 0, 5), np.int64)
        rows[:, 0] = WAIT
        body = stop - 1 - sets
        rows[body, 0], rows[body, 1] = BODY, order
        rows[stop[sets] - 1, 0], rows[stop[sets] - 1, 1] = SET, count_of[order[sets]]
        rows[rows[:, 0] == WAIT, 1:] = reasons.rows[:, 1:5]
        ends = np.append(stop, 0)[np.searchsorted(core_of[order], np.arange(self.schedule.cores), "right") - 1]
        at = 0
        for end in ends.tolist():
            yield StepRows(rows[at : max(at, end)])
            at = max(at, end)

    def _reasons(
        self, core_of: NDArray[np.int32], subop_of: NDArray[np.int32], count_of: NDArray[np.int32]
    ) -> WaitReasons:
        """One per need, in the order of the waits: by core, task and producer."""
        accesses = self.accesses
        needs = self.needs[np.argsort(core_of[self.needs[:, 0]], kind="stable")]
        consumer, producer, earlier, later, left, right, conflicts = needs.T
        hazard = np.where(accesses.write[later], np.where(accesses.write[earlier], _WAW, _WAR), _RAW)
        used, numbers = np.unique(np.stack((left, right)), return_inverse=True)
        rows = np.empty((len(needs), 12), np.int32)
        rows[:, 0], rows[:, 1], rows[:, 2] = core_of[consumer], producer, count_of[accesses.task[earlier]]
        rows[:, 3], rows[:, 4], rows[:, 5] = subop_of[consumer], np.arange(len(needs)), conflicts
        rows[:, 6], rows[:, 7], rows[:, 8] = hazard, accesses.task[earlier], consumer
        rows[:, 9], rows[:, 10:] = accesses.place[later], numbers.reshape(2, -1).T
        return WaitReasons(rows, accesses.places, accesses.regions[used])

    def _boundaries(self, subop_of: NDArray[np.int32], reasons: WaitReasons) -> Iterator[Boundary]:
        count = len(self.schedule.subops)
        implied = np.zeros(count, np.int64)
        np.add.at(implied, subop_of, self.implied_of_task)
        order = np.argsort(reasons.rows[:, 3], kind="stable")
        first = np.searchsorted(reasons.rows[order, 3], np.arange(count + 1)).tolist()
        for sub, number in zip(self.schedule.subops, implied.tolist(), strict=True):
            yield self._boundary(sub.index, order[first[sub.index] : first[sub.index + 1]], reasons, number)

    def _boundary(self, subop: int, waits: NDArray[np.int64], reasons: WaitReasons, implied: int) -> Boundary:
        cores = self.schedule.cores
        rows = reasons.rows[waits]
        pairs = set(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True))
        form = form_of(pairs, cores)
        full_cost = 0.0 if cores == 1 else self.handover_ns * (1 + 0.1 * (cores - 2))
        cost = 0.0
        if pairs:
            fan_in = max(Counter(core for core, _ in pairs).values())
            cost = self.handover_ns * (1 + 0.1 * (fan_in - 1))
        wider = tuple((f, full_cost) for f in (SyncForm.FULL,) if f is not form)
        reason = self._without_wait(implied)
        if len(waits):
            more = int(rows[:, 5].sum()) - 1
            reason = f"{reasons[int(waits[0])].witness}" + (f" and {more} more" if more else "")
        return Boundary(subop, form, reason, tuple(waits.tolist()), implied, cost, wider)

    def _without_wait(self, implied: int) -> str:
        """Why none is needed."""
        if self.schedule.cores == 1:
            return "one core: program order"
        if implied:
            return f"{counted(implied, 'ordering constraint')} implied by earlier waits"
        return "every core reads only what it wrote itself"


_RAW, _WAR, _WAW = (HAZARDS.index(hazard) for hazard in (Hazard.RAW, Hazard.WAR, Hazard.WAW))


def form_of(pairs: set[tuple[int, int]], cores: int) -> SyncForm:
    """The form of a set of (waiting core, producing core) pairs."""
    if not pairs:
        return SyncForm.NONE
    members = {core for pair in pairs for core in pair}
    if len(pairs) == len(members) * (len(members) - 1) and len(pairs) > 1:
        return SyncForm.FULL if len(members) == cores else SyncForm.SUBSET
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
        waits: list[int] = []
        if number and cores > 1:
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
                    waits.append(wait.index)
                    reasons.append(WaitReason(core, wait, witness, 0))
                    programs[core].append(wait)
        for task in by_subop[subop]:
            programs[task.core].append(TaskStep(task.index))
        form = SyncForm.FULL if waits else SyncForm.NONE
        reason = (
            "asked for by sync='full'" if waits else "first sub-operator" if cores > 1 else "one core: program order"
        )
        boundaries.append(Boundary(subop, form, reason, tuple(waits), 0, handover_ns if waits else 0.0, ()))
    sets = max(0, len(order) - 1) if cores > 1 else 0
    boundaries.sort(key=lambda b: b.subop)
    return Plan(schedule.tasks, tuple(map(tuple, programs)), (sets,) * cores, tuple(reasons), tuple(boundaries))
