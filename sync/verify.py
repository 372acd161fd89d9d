"""The independent verifier: proves a plan free of races and deadlocks, or says what is wrong. Always on, at any size.

It reads only the plan's tasks and per-core programs. It checks:

 V1  every task stands in exactly one program, that of its core, and each core's bodies follow the global order;
 V2  sets count up in program order, from 1 at the least to the number that the plan declares: the counter grows by so
     much in each launch;
 V3  a wait names another, existing core and a count that this core reaches in one launch; wait indices are unique;
 V4  no deadlock: executing the programs with nothing but their waits, every core reaches its end;
 V5  every pair of tasks with overlapping accesses, at least one of them a write, is ordered by happens-before, in the
    global order;
 V6  inputs and constants are never written;
 V7  units: each sub-operator's tasks cover its units without gap or overlap, where the number of units is given;
 V8  nothing is read from arena or outputs that no earlier task of the global order wrote.

Happens-before is what sets (release) and waits (acquire) and program order give: a vector clock per set and per body,
which counts the bodies of each core. It does not check: that the accesses declared by the tilings are what the machine
code does (tests poison everything undeclared), nor that the counter primitive is right. The claim is: race- and
deadlock-free for this program, given complete declared accesses and correct primitives.

V1's numbers, V6 and V7 are told in `verify_tasks`, V8 and the pairs of V5 in `verify_pairs`, for all targets.

Architecture invariant: imports plain data types only, nothing of the planner; finds conflicts by its own sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.collection import paused
from superkernel.core.counted import counted
from superkernel.core.errors import VerificationError, Violation
from superkernel.sync.plan import BODY, SET, WAIT, Plan, Step, StepRows, Wait
from superkernel.sync.verify_pairs import Accesses, Numbers
from superkernel.sync.verify_tasks import check_tasks

Clocks: TypeAlias = NDArray[np.int32]


AS_LOADED = "as loaded"


@dataclass(frozen=True, slots=True)
class Emitted:
    """Of code that was emitted, digests of what was proved: the calls, waits and sets of its workers, the addresses of
    all operands, what is read and written there, and the objects that it was loaded from. All but the last are empty
    where the system did not let what it does be recorded. `seen`: where it was."""

    program: str
    addresses: str
    accesses: str
    objects: str
    seen: str = AS_LOADED

    def __str__(self) -> str:
        objects = f"objects {self.objects[:16]}"
        if not self.program:
            return f"covers the plan only: this system does not let code be changed to record what it does; {objects}"
        return (
            f"covers the program {self.seen}: "
            f"calls, waits and sets {self.program[:16]}, addresses {self.addresses[:16]}, accesses "
            f"{self.accesses[:16]}, {objects}\n"
            "does not cover: that kernels touch only what their tilings declare, that objects are what the compiler "
            "made, memory order within instructions (docs/reliability.md)"
        )


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was proved, in numbers. `emitted`: of which code; None: of a plan."""

    tasks: int
    cores: int
    waits: int
    sets: int
    conflicting_pairs: int  # pairs of accesses, one a write, whose address ranges meet
    cross_core_pairs: int
    stepwise: bool  # also proved: with all of a sub-operator before any of the next, its tasks need no order
    emitted: Emitted | None = None

    def __str__(self) -> str:
        text = (
            f"certificate: {counted(self.tasks, 'task')} on {counted(self.cores, 'core')}, "
            f"{counted(self.waits, 'wait')}, {counted(self.sets, 'set')}; {counted(self.conflicting_pairs, 'pair')} of "
            f"accesses whose address ranges meet ({self.cross_core_pairs} across cores): none races; no deadlock"
        )
        return text if self.emitted is None else f"{text}\n{self.emitted}"


def verify(plan: Plan, units: Mapping[int, int] | None = None) -> Certificate:
    """Check V1 to V8. `units`: number of units by sub-operator, for V7. Raises VerificationError with every
    violation."""
    wrong, certificate = check(plan, units)
    if certificate is None:
        raise VerificationError(violations=wrong)
    return certificate


@paused()
def check(plan: Plan, units: Mapping[int, int] | None = None) -> tuple[list[Violation], Certificate | None]:
    """As `verify`, but returns the violations; the certificate is None where there are any."""
    programs = list(map(_Program, plan.programs))
    wrong = [
        *check_tasks(plan.tasks, units or {}),
        *_check_bodies(plan, programs),
        *_check_sets(plan, programs),
        *_check_waits(plan, programs),
    ]
    if wrong:
        return wrong, None
    before, stuck = _happens_before(plan, programs)
    if stuck:
        return stuck, None
    accesses = Accesses(plan.tasks)
    wrong = [*_check_coverage(accesses), *_check_order(plan, programs, accesses, before)]
    if wrong:
        return wrong, None
    waits = sum(len(program.waits) for program in programs)
    within_task = accesses.count_overlaps(accesses.task)
    pairs = accesses.count_overlaps() - within_task
    within_core = accesses.count_overlaps(accesses.core) - within_task
    sizes = len(plan.tasks), plan.cores, waits, sum(plan.sets)
    return [], Certificate(*sizes, pairs, pairs - within_core, _is_stepwise(plan, accesses))


def _is_stepwise(plan: Plan, accesses: Accesses) -> bool:
    """Whether tasks of one sub-operator on different cores share no byte that one of them writes. Then they may run at
    any time between the sub-operator before and the next, on any thread."""
    if any(after.subop < task.subop for task, after in pairwise(plan.tasks)):
        return False
    subop, core = accesses.subop, accesses.core
    if accesses.count_overlaps(subop) == accesses.count_overlaps(subop, core):
        return True  # not even their ranges meet

    def beside(one: Numbers, other: Numbers) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = subop[one] == subop[other]
        found[found] = core[one[found]] != core[other[found]]
        return found

    return next(accesses.racing(beside), None) is None


class _Program:
    """One core's steps by kind: `others` are its bodies and sets with their numbers, and `ahead` tells how many waits
    come ahead of each of them, and of the end. Waits, by their places, stand in columns: there may be millions."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._rows = rows = StepRows.of(steps).rows
        kinds = rows[:, 0]
        at = np.flatnonzero(kinds != WAIT)
        self.ahead = [place - nth for nth, place in enumerate([*at.tolist(), len(rows)])]
        self.others: list[tuple[int, int]] = [(kind, number) for kind, number in rows[at, :2].tolist()]
        self.bodies: list[int] = rows[kinds == BODY, 1].tolist()
        self.counts: list[int] = rows[kinds == SET, 1].tolist()
        self.waits = np.flatnonzero(kinds == WAIT).astype(np.int32)
        self.producer, self.count, self.index = (rows[self.waits, column] for column in (1, 2, 4))

    def wait(self, nth: int) -> Wait:
        """One of them, to be spoken of."""
        return Wait(*self._rows[self.waits[nth], 1:].tolist())


def _check_order(plan: Plan, programs: Sequence[_Program], accesses: Accesses, before: Clocks) -> Iterator[Violation]:
    """V5: of each pair, the later task starts when its core knows the earlier one as complete."""
    number = np.zeros(len(plan.tasks), np.int64)  # of a task among those of its core
    for program in programs:
        number[program.bodies] = np.arange(len(program.bodies))
    first = number[accesses.task]

    def late(earlier: Numbers, later: Numbers) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = before[accesses.task[later], accesses.core[earlier]] <= first[earlier]
        return found

    for a, b in accesses.racing(late):
        one, other = accesses.tasks[a], accesses.tasks[b]
        wanted = f"a wait on core {one.core} before task {other.index}"
        yield accesses.race(a, b, f"boundary {other.subop}", wanted)


def _check_coverage(accesses: Accesses) -> Iterator[Violation]:
    """V8."""
    for task, access, low, high in accesses.unwritten:
        yield Violation(
            f"reads bytes {low}..{high} of {access.space.value}{access.slot} that nobody wrote",
            f"core {task.core}, task {task.index}",
        )


def _check_bodies(plan: Plan, programs: Sequence[_Program]) -> Iterator[Violation]:
    """V1."""
    seen: set[int] = set()
    for core, program in enumerate(programs):
        last = 0
        for task in program.bodies:
            if not 0 <= task < len(plan.tasks):
                yield Violation("no such task", f"core {core}, task {task}")
                continue
            home = plan.tasks[task].core
            if home != core:
                yield Violation("task runs on the wrong core", f"core {core}, task {task}", str(home), str(core))
            if task in seen:
                yield Violation("task runs twice", f"core {core}, task {task}")
            seen.add(task)
            if task < last:
                yield Violation("bodies leave the global order", f"core {core}, task {task}", f"after task {last}")
            else:
                last = task
    for left in plan.tasks:
        if left.index not in seen:
            yield Violation("task never runs", f"core {left.core}, task {left.index}")


def _check_sets(plan: Plan, programs: Sequence[_Program]) -> Iterator[Violation]:
    """V2."""
    for core, program in enumerate(programs):
        counts = program.counts
        if any(after <= before for before, after in pairwise((0, *counts))):
            yield Violation("sets do not count up", f"core {core}", found=str(counts[:20]))
        last = counts[-1] if counts else 0
        if last != plan.sets[core]:
            yield Violation("sets do not end at the declared number", f"core {core}", str(plan.sets[core]), str(last))


def _check_waits(plan: Plan, programs: Sequence[_Program]) -> Iterator[Violation]:
    """V3."""
    sets = np.array(plan.sets, np.int64)
    all_indices = np.concatenate([np.zeros(0, np.int64), *(program.index for program in programs)])
    twice = np.zeros(len(all_indices), np.bool_)
    if not (all_indices[1:] > all_indices[:-1]).all():  # else none is: they count up
        twice[:] = True
        twice[np.unique(all_indices, return_index=True)[1]] = False
    begin = 0
    for core, program in enumerate(programs):
        nobody = (program.producer < 0) | (program.producer >= plan.cores) | (program.producer == core)
        reach = sets[np.where(nobody, core, program.producer)]
        out_of_reach = (program.count < 1) | (program.count > reach)
        again = twice[begin : begin + len(program.waits)]
        begin += len(program.waits)
        for n in np.flatnonzero(nobody | out_of_reach | again).tolist():
            wait = program.wait(n)
            where = f"core {core}, boundary {wait.subop}, wait {wait.index}"
            if nobody[n]:
                yield Violation("wait for a core that cannot signal", where, found=str(wait.producer))
            elif out_of_reach[n]:
                yield Violation(
                    "the threshold is never reached, or reached before the launch",
                    where,
                    f"1 to {reach[n]}",
                    str(wait.count),
                )
            if again[n]:
                yield Violation("wait index is used twice", where)


def _happens_before(plan: Plan, programs: Sequence[_Program]) -> tuple[Clocks, list[Violation]]:
    """V4 and the relation: for each task, how many bodies of each core have completed, visibly, when it starts."""
    begin = np.cumsum((0, *plan.sets))  # of a core's counts in the two below
    published = np.zeros((begin[-1], plan.cores), np.int32)  # by each count, or the next one set
    reached = np.zeros(begin[-1], np.bool_)
    awaited = [begin[program.producer] + program.count - 1 for program in programs]
    knows = np.zeros((plan.cores, plan.cores), np.int32)
    before = np.zeros((len(plan.tasks), plan.cores), np.int32)
    passed, done, at_set = [0] * plan.cores, [0] * plan.cores, begin.tolist()  # waits; bodies and sets; the next count
    moved = True
    while moved:
        moved = False
        for core, program in enumerate(programs):
            mine, asked_of, ahead, first = knows[core], awaited[core], program.ahead, int(begin[core])
            begun, at = passed[core], done[core]
            others, end = program.others, len(program.others)
            while True:
                stop = ahead[at]
                if begun < stop:
                    asked = asked_of[begun:stop]
                    told = _leading(reached.take(asked))
                    if told:
                        np.maximum(mine, np.maximum.reduce(published.take(asked[:told], axis=0)), out=mine)
                        begun += told
                    if begun < stop:
                        break
                if at == end:
                    break
                kind, number = others[at]
                if kind == BODY:
                    before[number] = mine
                    mine[core] += 1
                else:
                    stop = first + number
                    published[at_set[core] : stop] = mine
                    reached[at_set[core] : stop] = True
                    at_set[core] = stop
                at += 1
            moved = moved or (begun, at) != (passed[core], done[core])
            passed[core], done[core] = begun, at
    return before, [
        Violation(
            "deadlock: this wait is never passed",
            f"core {core}, boundary {wait.subop}, wait {wait.index}",
            expected=f"core {wait.producer} at count {wait.count}",
            found=f"it stops at {at_set[wait.producer] - begin[wait.producer]}",
        )
        for core, program in enumerate(programs)
        for wait in map(program.wait, range(len(program.waits))[passed[core] : passed[core] + 1])
    ]


def _leading(ready: NDArray[np.bool_]) -> int:
    """How many are ahead of the first that is not."""
    first = ready.tobytes().find(0)
    return first if first >= 0 else len(ready)
