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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.core.counted import counted
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Schedule, Task
from superkernel.sync.hazards import Conflict, find_conflicts
from superkernel.sync.plan import Boundary, Hazard, Plan, Set, Step, SyncForm, TaskStep, Wait, WaitReason, Witness


@dataclass(slots=True)
class _Need:
    """Task `consumer` must wait until the task at `position` of core `producer` is complete."""

    consumer: Task
    producer: int
    position: int
    latest: Conflict
    conflicts: int


@dataclass(slots=True)
class _Result:
    """Needs that became waits, per task, and what was implied, per sub-operator."""

    kept: dict[int, list[_Need]]
    implied: dict[int, int]


def plan_sync(schedule: Schedule, *, sync: str = "minimal", handover_ns: float = 100.0) -> Plan:
    """The synchronisation plan. `sync` as in `Options`; `handover_ns` is the cost of one flag between two cores."""
    if sync == "full":
        return _full(schedule, handover_ns)
    result = _minimal_needs(schedule)
    return _Assembler(schedule, result, handover_ns).plan()


def _minimal_needs(schedule: Schedule) -> _Result:
    tasks = schedule.tasks
    position = [0] * len(tasks)  # of a task within its core
    done = [0] * schedule.cores  # tasks placed on each core so far
    clocks = np.zeros((schedule.cores, schedule.cores), np.int32)  # what each core knows so far
    finish = np.zeros((len(tasks), schedule.cores), np.int32)  # clock at the end of each task
    result = _Result({}, {})
    for task, conflicts in zip(tasks, find_conflicts(tasks), strict=True):
        clock = clocks[task.core]
        needs, implied = _needs_of(task, conflicts, tasks, position, clock, finish)
        if needs:
            np.maximum(clock, finish[[need.latest.earlier for need in needs]].max(axis=0), out=clock)
            result.kept[task.index] = needs
        result.implied[task.subop] = result.implied.get(task.subop, 0) + implied
        position[task.index] = done[task.core]
        done[task.core] += 1
        clock[task.core] = done[task.core]
        finish[task.index] = clock
    return result


def _needs_of(
    task: Task,
    conflicts: Sequence[Conflict],
    tasks: Sequence[Task],
    position: Sequence[int],
    clock: NDArray[np.int32],
    finish: NDArray[np.int32],
) -> tuple[list[_Need], int]:
    """The needs that neither the core's clock nor another need implies, and how many constraints were implied."""
    latest: dict[int, _Need] = {}
    implied = 0
    known = clock.tolist() if conflicts else ()
    for conflict in conflicts:
        core = tasks[conflict.earlier].core
        if core == task.core:
            continue
        at = position[conflict.earlier]
        if known[core] > at:
            implied += 1
            continue
        need = latest.get(core)
        if need is None:
            latest[core] = _Need(task, core, at, conflict, 1)
        else:
            need.conflicts += 1
            if at > need.position:
                need.position, need.latest = at, conflict
    needs = sorted(latest.values(), key=lambda n: n.producer)
    if len(needs) < 2:
        return needs, implied + sum(need.conflicts - 1 for need in needs)
    producers = [need.producer for need in needs]
    told = finish[[need.latest.earlier for need in needs]][:, producers] > [need.position for need in needs]
    kept = []
    for need, tellers in zip(needs, told.sum(axis=0).tolist(), strict=True):
        if tellers > 1:  # another one besides the need itself
            implied += need.conflicts
        else:
            implied += need.conflicts - 1
            kept.append(need)
    return kept, implied


class _Assembler:
    """Waits and sets into per-core programs, boundaries with their forms."""

    def __init__(self, schedule: Schedule, result: _Result, handover_ns: float) -> None:
        self.schedule, self.result, self.handover_ns = schedule, result, handover_ns

    def plan(self) -> Plan:
        cores = self.schedule.cores
        needed: list[set[int]] = [set() for _ in range(cores)]
        for needs in self.result.kept.values():
            for need in needs:
                needed[need.producer].add(need.position)
        count_of = [{p: i + 1 for i, p in enumerate(sorted(positions))} for positions in needed]
        programs: list[tuple[Step, ...]] = []
        reasons: list[WaitReason] = []
        of_subop: dict[int, list[WaitReason]] = {}
        for core, tasks in enumerate(self.schedule.tasks_of_core):
            steps: list[Step] = []
            for position, task in enumerate(tasks):
                for need in self.result.kept.pop(task.index, ()):  # what is a wait now makes room for the next
                    wait = Wait(need.producer, count_of[need.producer][need.position], task.subop, len(reasons))
                    reason = WaitReason(core, wait, need.latest.witness, need.conflicts)
                    reasons.append(reason)
                    of_subop.setdefault(task.subop, []).append(reason)
                    steps.append(wait)
                steps.append(TaskStep(task.index))
                if position in count_of[core]:
                    steps.append(Set(count_of[core][position]))
            programs.append(tuple(steps))
        boundaries = tuple(self._boundary(sub.index, of_subop.get(sub.index, [])) for sub in self.schedule.subops)
        return Plan(self.schedule.tasks, tuple(programs), tuple(map(len, count_of)), tuple(reasons), boundaries)

    def _boundary(self, subop: int, reasons: Sequence[WaitReason]) -> Boundary:
        cores = self.schedule.cores
        pairs = {(r.core, r.wait.producer) for r in reasons}
        implied = self.result.implied.get(subop, 0)
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
