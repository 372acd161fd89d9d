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
from collections.abc import Sequence

import numpy as np

from superkernel.core.counted import counted
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Schedule, Task
from superkernel.sync.hazards import AccessColumns
from superkernel.sync.plan import Boundary, Hazard, Plan, Set, Step, SyncForm, TaskStep, Wait, WaitReason, Witness


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
        cores, tasks, needs = self.schedule.cores, self.schedule.tasks, self.needs
        awaited = np.zeros(len(tasks), np.bool_)
        awaited[self.accesses.task[needs[:, 2]]] = True
        count_of: list[int] = [0] * len(tasks)
        sets = [0] * cores
        for number in np.flatnonzero(awaited).tolist():
            sets[tasks[number].core] += 1
            count_of[number] = sets[tasks[number].core]
        first = np.searchsorted(needs[:, 0], np.arange(len(tasks) + 1)).tolist()
        programs: list[tuple[Step, ...]] = []
        reasons: list[WaitReason] = []
        of_subop: list[list[WaitReason]] = [[] for _ in self.schedule.subops]
        for core, mine in enumerate(self.schedule.tasks_of_core):
            steps: list[Step] = []
            for task in mine:
                rows = needs[first[task.index] : first[task.index + 1]].tolist()
                for _, producer, earlier, later, left, right, conflicts in rows:
                    witness = self.accesses.witness(earlier, later, left, right)
                    wait = Wait(producer, count_of[witness.producer], task.subop, len(reasons))
                    reasons.append(WaitReason(core, wait, witness, conflicts))
                    steps.append(wait)
                of_subop[task.subop] += reasons[len(reasons) - len(rows) :]
                steps.append(TaskStep(task.index))
                if count_of[task.index]:
                    steps.append(Set(count_of[task.index]))
            programs.append(tuple(steps))
        implied = [0] * len(of_subop)
        for task, number in zip(tasks, self.implied_of_task.tolist(), strict=True):
            implied[task.subop] += number
        boundaries = tuple(
            self._boundary(sub.index, of_subop[sub.index], implied[sub.index]) for sub in self.schedule.subops
        )
        return Plan(tasks, tuple(programs), tuple(sets), tuple(reasons), boundaries)

    def _boundary(self, subop: int, reasons: Sequence[WaitReason], implied: int) -> Boundary:
        cores = self.schedule.cores
        pairs = {(r.core, r.wait.producer) for r in reasons}
        form = form_of(pairs, cores)
        full_cost = 0.0 if cores == 1 else self.handover_ns * (1 + 0.1 * (cores - 2))
        cost = 0.0
        if pairs:
            fan_in = max(Counter(core for core, _ in pairs).values())
            cost = self.handover_ns * (1 + 0.1 * (fan_in - 1))
        wider = tuple((f, full_cost) for f in (SyncForm.FULL,) if f is not form)
        return Boundary(
            subop, form, self._why(form, reasons, implied), tuple(r.wait.index for r in reasons), implied, cost, wider
        )

    def _why(self, form: SyncForm, reasons: Sequence[WaitReason], implied: int) -> str:
        if form is SyncForm.NONE:
            if self.schedule.cores == 1:
                return "one core: program order"
            if implied:
                return f"{counted(implied, 'ordering constraint')} implied by earlier waits"
            return "every core reads only what it wrote itself"
        witness = reasons[0].witness
        assert witness is not None
        more = sum(r.conflicts for r in reasons) - 1
        return f"{witness}" + (f" and {more} more" if more else "")


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
