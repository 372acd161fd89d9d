"""The independent verifier: proves a plan free of races and deadlocks, or says what is wrong. Always on, at any size.

It reads only the plan's tasks and per-core programs. It checks:

 V1  every task stands in exactly one program, that of its core, and each core's bodies follow the global order;
 V2  sets count 1, 2, 3, ... in program order, as many as the plan declares;
 V3  a wait names another, existing core and a count that this core reaches in one launch; wait indices are unique;
 V4  no deadlock: executing the programs with nothing but their waits, every core reaches its end;
 V5  every pair of tasks with overlapping accesses, at least one of them a write, is ordered by happens-before, in the
    global order;
 V6  inputs and constants are never written;
 V7  units: each sub-operator's tasks cover its units without gap or overlap, where the number of units is given;
 V8  nothing is read from arena or outputs that no earlier task of the global order wrote.

Happens-before is what sets (release) and waits (acquire) and program order give: a bit set of accesses per set and
per body. It does not check: that the accesses declared by the tilings are what the machine code does (tests poison
everything undeclared), nor that the counter primitive is right. The claim is: race- and deadlock-free for this
program, given complete declared accesses and correct primitives.

V1's numbers, V6, V7 and whether bytes meet are told in `verify_tasks`, for all targets.

Architecture invariant: imports plain data types only, nothing of the planner; finds conflicts by its own sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import VerificationError, Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait
from superkernel.sync.verify_tasks import check_tasks, overlapping_regions, race


@dataclass(frozen=True, slots=True)
class Emitted:
    """Of code that was emitted, digests of what was proved: the calls, waits and sets of its workers, the addresses of
    all operands, what is read and written there, and the objects that it was loaded from. All but the last are empty
    where the system did not let what it does be recorded."""

    program: str
    addresses: str
    accesses: str
    objects: str

    def __str__(self) -> str:
        objects = f"objects {self.objects[:16]}"
        if not self.program:
            return f"covers the plan only: this system does not let code be changed to record what it does; {objects}"
        return (
            "covers the program as loaded: "
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
    emitted: Emitted | None = None

    def __str__(self) -> str:
        text = (
            f"certificate: {self.tasks} tasks on {self.cores} cores, {self.waits} waits, {self.sets} sets; "
            f"{self.conflicting_pairs} pairs of accesses whose address ranges meet ({self.cross_core_pairs} across "
            "cores): none races; no deadlock"
        )
        return text if self.emitted is None else f"{text}\n{self.emitted}"


def verify(plan: Plan, units: Mapping[int, int] | None = None) -> Certificate:
    """Check V1 to V8. `units`: number of units by sub-operator, for V7. Raises VerificationError with every
    violation."""
    wrong, certificate = check(plan, units)
    if certificate is None or wrong:
        raise VerificationError(violations=wrong)
    return certificate


def check(plan: Plan, units: Mapping[int, int] | None = None) -> tuple[list[Violation], Certificate | None]:
    """As `verify`, but returns the violations; the certificate is None where there are any."""
    wrong = [*check_tasks(plan.tasks, units or {}), *_check_bodies(plan), *_check_sets(plan), *_check_waits(plan)]
    if wrong:
        return wrong, None
    rows = _accesses(plan.tasks)
    before, stuck = _happens_before(plan, rows)
    if stuck:
        return stuck, None
    wrong += _check_coverage(plan.tasks)
    pairs = cross = 0
    for space_rows in rows.values():
        found = _check_order(plan.tasks, space_rows, before)
        pairs, cross = pairs + found.pairs, cross + found.cross_core
        wrong += found.races
    if wrong:
        return wrong, None
    waits = sum(isinstance(step, Wait) for program in plan.programs for step in program)
    return [], Certificate(len(plan.tasks), plan.cores, waits, sum(plan.sets), pairs, cross)


@dataclass(frozen=True, slots=True)
class _Row:
    """One access in the relation: bit number (in task order), bounds of its regions."""

    bit: int
    task: int
    access: MemoryAccess
    low: int
    high: int


@dataclass(slots=True)
class _Found:
    """Of one address space: pairs whose address ranges meet, and races among them."""

    pairs: int
    cross_core: int
    races: list[Violation]


def _accesses(tasks: Sequence[Task]) -> dict[tuple[Space, int], list[_Row]]:
    """All accesses that can conflict, by address space, numbered in the global order."""
    rows: dict[tuple[Space, int], list[_Row]] = {}
    bit = 0
    for task in tasks:
        for access in task.accesses:
            if access.regions and access.space not in (Space.INPUT, Space.CONSTANT):
                low = min(r.start for r in access.regions)
                high = max(r.stop for r in access.regions)
                rows.setdefault((access.space, access.slot), []).append(_Row(bit, task.index, access, low, high))
                bit += 1
    return rows


def _check_order(tasks: Sequence[Task], rows: Sequence[_Row], before: Sequence[int]) -> _Found:
    """V5 for one address space, with bit sets over accesses.

    An access meets [low, high) iff it starts below high and does not stop at or below low: two prefix unions, over
    starts and over stops, give all overlapping accesses of a row in two operations. Only those not ordered by
    happens-before are then compared region by region.
    """
    starting = _unions(sorted((row.low, row.bit) for row in rows), [row.high for row in rows])
    stopped = _unions(sorted((row.high - 1, row.bit) for row in rows), [row.low for row in rows])
    writers = sum(1 << row.bit for row in rows if row.access.write)
    of_core: dict[int, int] = {}
    first_bit: dict[int, int] = {}
    by_bit = {row.bit: row for row in rows}
    for row in rows:
        core = tasks[row.task].core
        of_core[core] = of_core.get(core, 0) | 1 << row.bit
        first_bit.setdefault(row.task, row.bit)
    found = _Found(0, 0, [])
    raced: set[tuple[int, int]] = set()
    for row in rows:
        overlapping = starting[row.high] & ~stopped[row.low] & (1 << first_bit[row.task]) - 1
        if not row.access.write:
            overlapping &= writers
        found.pairs += overlapping.bit_count()
        found.cross_core += (overlapping & ~of_core[tasks[row.task].core]).bit_count()
        doubtful = overlapping & ~before[row.task]
        while doubtful:
            bit = doubtful & -doubtful
            doubtful ^= bit
            other = by_bit[bit.bit_length() - 1]
            pair = overlapping_regions(other.access.regions, row.access.regions)
            if pair is not None and (other.task, row.task) not in raced:
                raced.add((other.task, row.task))
                earlier, later = tasks[other.task], tasks[row.task]
                wanted = f"a wait on core {earlier.core} before task {later.index}"
                found.races.append(race(earlier, later, row.access, pair, f"boundary {later.subop}", wanted))
    return found


def _unions(points: Sequence[tuple[int, int]], queries: Sequence[int]) -> dict[int, int]:
    """For each query x the union of the bits of all points below x. `points` are (position, bit), sorted."""
    result: dict[int, int] = {}
    union = at = 0
    for x in sorted(set(queries)):
        while at < len(points) and points[at][0] < x:
            union |= 1 << points[at][1]
            at += 1
        result[x] = union
    return result


def _check_bodies(plan: Plan) -> Iterator[Violation]:
    """V1."""
    seen: dict[int, int] = {}
    for core, program in enumerate(plan.programs):
        last = -1
        for step in program:
            if not isinstance(step, TaskStep):
                continue
            where = f"core {core}, task {step.task}"
            if not 0 <= step.task < len(plan.tasks):
                yield Violation("no such task", where)
                continue
            if plan.tasks[step.task].core != core:
                yield Violation("task runs on the wrong core", where, str(plan.tasks[step.task].core), str(core))
            if step.task in seen:
                yield Violation("task runs twice", where)
            if step.task < last:
                yield Violation("bodies leave the global order", where, f"after task {last}")
            seen[step.task] = core
            last = max(last, step.task)
    for task in plan.tasks:
        if task.index not in seen:
            yield Violation("task never runs", f"core {task.core}, task {task.index}")


def _check_sets(plan: Plan) -> Iterator[Violation]:
    """V2."""
    for core, program in enumerate(plan.programs):
        counts = [step.count for step in program if isinstance(step, Set)]
        if counts != list(range(1, len(counts) + 1)):
            yield Violation("sets do not count 1, 2, 3, ...", f"core {core}", found=str(counts[:20]))
        if len(counts) != plan.sets[core]:
            yield Violation(
                "number of sets is not the declared one", f"core {core}", str(plan.sets[core]), str(len(counts))
            )


def _check_waits(plan: Plan) -> Iterator[Violation]:
    """V3."""
    seen: set[int] = set()
    for core, program in enumerate(plan.programs):
        for step in program:
            if not isinstance(step, Wait):
                continue
            where = f"core {core}, boundary {step.subop}, wait {step.index}"
            if not 0 <= step.producer < plan.cores or step.producer == core:
                yield Violation("wait for a core that cannot signal", where, found=str(step.producer))
            elif not 1 <= step.count <= plan.sets[step.producer]:
                reach = f"1 to {plan.sets[step.producer]}"
                yield Violation(
                    "the threshold is never reached, or reached before the launch", where, reach, str(step.count)
                )
            if step.index in seen:
                yield Violation("wait index is used twice", where)
            seen.add(step.index)


def _happens_before(plan: Plan, rows: Mapping[tuple[Space, int], Sequence[_Row]]) -> tuple[list[int], list[Violation]]:
    """V4 and the relation: for each task the bit set of accesses that have completed, visibly, when it starts."""
    cores = range(plan.cores)
    own = [0] * len(plan.tasks)  # the bits of each task's accesses
    for space_rows in rows.values():
        for row in space_rows:
            own[row.task] |= 1 << row.bit
    at = [0 for _ in cores]
    knows = [0 for _ in cores]
    at_set: list[list[int]] = [[] for _ in cores]  # knowledge published by each set
    before = [0] * len(plan.tasks)
    moved = True
    while moved:
        moved = False
        for core in cores:
            program = plan.programs[core]
            while at[core] < len(program):
                step = program[at[core]]
                if isinstance(step, TaskStep):
                    before[step.task] = knows[core]
                    knows[core] |= own[step.task]
                elif isinstance(step, Set):
                    at_set[core].append(knows[core])
                elif len(at_set[step.producer]) >= step.count:
                    knows[core] |= at_set[step.producer][step.count - 1]
                else:
                    break
                at[core] += 1
                moved = True
    return before, list(_deadlock(plan, at, at_set))


def _deadlock(plan: Plan, at: Sequence[int], at_set: Sequence[Sequence[int]]) -> Iterator[Violation]:
    for core, program in enumerate(plan.programs):
        if at[core] < len(program):
            step = program[at[core]]
            assert isinstance(step, Wait)
            yield Violation(
                "deadlock: this wait is never passed",
                f"core {core}, boundary {step.subop}, wait {step.index}",
                expected=f"core {step.producer} at count {step.count}",
                found=f"it stops at {len(at_set[step.producer])}",
            )


def _check_coverage(tasks: Sequence[Task]) -> Iterator[Violation]:
    """V8: every byte that a task reads of arena or outputs was written by a task of an earlier sub-operator."""
    written: dict[tuple[Space, int], _Runs] = {}
    pending: dict[tuple[Space, int], list[Region]] = {}
    subop = -1
    for task in tasks:
        if task.subop != subop:
            for key, regions in pending.items():
                written[key] = _joined(written.get(key, _NOTHING), regions)
            pending.clear()
            subop = task.subop
        for access in task.accesses:
            key = (access.space, access.slot)
            if access.space not in (Space.ARENA, Space.OUTPUT):
                continue
            if access.write:
                pending.setdefault(key, []).extend(access.regions)
                continue
            for region in access.regions:
                hole = _hole(written.get(key, _NOTHING), region)
                if hole is not None:
                    yield Violation(
                        f"reads bytes {hole[0]}..{hole[1]} of {access.space.value}{access.slot} that nobody wrote",
                        f"core {task.core}, task {task.index}",
                    )


_Runs: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]  # starts and stops of disjoint runs that do not touch
_NOTHING: _Runs = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def _starts(region: Region) -> NDArray[np.int64]:
    return region.start + np.arange(region.count, dtype=np.int64) * region.stride


def _joined(written: _Runs, regions: Sequence[Region]) -> _Runs:
    """The runs with those of further regions, however many: what touches becomes one."""
    starts = np.concatenate([written[0], *map(_starts, regions)])
    stops = np.concatenate([written[1], *(_starts(r) + r.length for r in regions)])
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(stops[order])
    first = np.ones(len(starts), np.bool_)
    first[1:] = starts[1:] > reach[:-1]
    last = np.append(first[1:], True)
    return starts[first], reach[last]


def _hole(written: _Runs, region: Region) -> tuple[int, int] | None:
    """The first run of the region that is not covered whole, or None."""
    starts = _starts(region)
    at = np.searchsorted(written[0], starts, "right") - 1
    bare = (at < 0) | (np.append(written[1], -1)[at] < starts + region.length)
    found = np.flatnonzero(bare)
    return (int(starts[found[0]]), int(starts[found[0]]) + region.length) if len(found) else None
