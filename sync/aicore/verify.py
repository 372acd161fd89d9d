"""The independent verifier of accelerator plans: proves a plan free of races and deadlocks, or says what is wrong.

It reads tasks, events and the programs: the two of the cores, and that of the aicpu hart where there is one. It checks:

 A1  each sub-operator with tasks on a type of core is run exactly once by its program, in the global order; tasks
     stand on cores of types that run them; their units are covered without gap or overlap;
 A2  every event is signalled once by each type that sets it and awaited once by each type whose counts it grows;
 A3  a flag is used by events of one mode and one type of setters, and awaited in the order in which it is signalled; a
     word in memory is one event's;
 A4  no deadlock: executing the programs with nothing but their signals and awaits, both reach their end;
 A5  every pair of overlapping accesses, at least one of them a write, is ordered by happens-before in the global
     order; on one core a read behind the core's own write needs a fence between them; tasks of one sub-operator on
     different cores conflict in its workspace only, and where they write what is dealt out among them at run time;
 A6  no count of a flag can exceed its limit, however far the setters run ahead;
 A7  no event is under way where a launch ends; inputs and constants are never written;
 A8  the service hart comes to the end of its programs, and prefetches what is used (`verify_service`);
 A9  where all cores of a type meet inside a kernel, cores without units of it come as often.

Happens-before: a signal publishes what its core has completed and learnt; an await brings what the signals it needs
have published. Knowledge is a vector per core: up to which step of each other core's program. A wait inside a kernel
counts for the operand it stands at, and for everything behind the kernel.

Not checked: that declared accesses are what the kernels do (the simulator checks every one), that a kernel orders its
own commands, and that what is dealt out at run time is disjoint (the simulator's race detection does both).

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from superkernel.errors import VerificationError, Violation
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.aicore.plan import (
    AICPU,
    AicorePlan,
    Await,
    CoreKind,
    Cut,
    Drain,
    Event,
    HartKind,
    Mode,
    Pause,
    Run,
    Signal,
    awaited,
)
from superkernel.sync.aicore.verify_service import check_service
from superkernel.tensor import Region

Vector = NDArray[np.int64]
Matrix = NDArray[np.int64]

RACES_MAX = 20  # listed; more are counted


@dataclass(frozen=True, slots=True)
class AicoreCertificate:
    """What was proved, in numbers."""

    tasks: int
    cores: int
    events: int
    awaits: int
    conflicting_pairs: int
    cross_core_pairs: int

    def __str__(self) -> str:
        return (
            f"certificate: {self.tasks} tasks on {self.cores} cores, {self.events} events, {self.awaits} awaits; "
            f"{self.conflicting_pairs} pairs of accesses whose address ranges meet ({self.cross_core_pairs} across "
            "cores): none races; no deadlock; no flag above its limit"
        )


def verify_aicore(plan: AicorePlan, units: Mapping[int, int] | None = None) -> AicoreCertificate:
    """Check A1 to A9. `units`: number of units by sub-operator. Raises VerificationError with every violation."""
    wrong, certificate = check_aicore_plan(plan, units)
    if certificate is None or wrong:
        raise VerificationError(violations=wrong)
    return certificate


def check_aicore_plan(
    plan: AicorePlan, units: Mapping[int, int] | None = None
) -> tuple[list[Violation], AicoreCertificate | None]:
    """As `verify_aicore`, but returns the violations."""
    wrong = [*_check_runs(plan), *_check_units(plan, units or {}), *_check_events(plan), *_check_writes(plan)]
    wrong += [*check_service(plan), *_check_meetings(plan)]
    if wrong:
        return wrong, None
    wrong = list(_check_flag_order(plan))
    if wrong:
        return wrong, None
    replay = _Replay(plan)
    wrong = replay.run()
    if wrong:
        return wrong, None
    wrong = list(_check_counts(plan, replay))
    pairs, cross, races = _check_order(plan, replay)
    wrong += races
    if wrong:
        return wrong, None
    return [], AicoreCertificate(len(plan.tasks), plan.harts, len(plan.events), plan.waits, pairs, cross)


# A1, A2, A3, A7 -------------------------------------------------------------------------------------------------------


def _check_runs(plan: AicorePlan) -> Iterator[Violation]:
    paused = {s.subop for program in plan.programs.values() for s in program if isinstance(s, Pause)}
    needed: dict[HartKind, set[int]] = {kind: set() for kind in plan.programs}
    for index, task in enumerate(plan.tasks):
        if task.index != index:
            yield Violation("task indices are not the global order", expected=str(index), found=str(task.index))
        if not 0 <= task.core < plan.harts:
            yield Violation("no such core", f"task {index}", f"0 to {plan.harts - 1}", str(task.core))
        elif task.subop not in paused:
            needed[plan.kind(task.core)].add(task.subop)
    for kind, program in plan.programs.items():
        runs = [s.subop for s in program if isinstance(s, (Run, Pause))]
        if runs != sorted(set(runs)):
            yield Violation("runs leave the global order or repeat", f"program {kind.value}", found=str(runs[:20]))
        for subop in sorted(needed[kind] - set(runs)):
            yield Violation("a sub-operator with tasks is not run", f"program {kind.value}, sub-operator {subop}")


def _check_units(plan: AicorePlan, units: Mapping[int, int]) -> Iterator[Violation]:
    """Ranges of one sub-operator tile its units; the roles of a MIX range share one."""
    ranges: dict[int, set[tuple[int, int]]] = {}
    for task in plan.tasks:
        if task.begin >= task.end:
            yield Violation("empty unit range", f"task {task.index}", found=f"{task.begin}..{task.end}")
        ranges.setdefault(task.subop, set()).add((task.begin, task.end))
    for subop, parts in ranges.items():
        at = 0
        for begin, end in sorted(parts):
            if begin != at:
                yield Violation("units are left out or done twice", f"sub-operator {subop}", str(at), f"{begin}..{end}")
            at = max(at, end)
        if subop in units and at != units[subop]:
            yield Violation("units are left out or invented", f"sub-operator {subop}", str(units[subop]), str(at))


def _check_events(plan: AicorePlan) -> Iterator[Violation]:
    for index, event in enumerate(plan.events):
        where = f"event {index}"
        if event.index != index:
            yield Violation("event indices are not in order", where, found=str(event.index))
        if (event.mode is Mode.NOTIFY) != (event.to is not None) or event.to is event.setters is AICPU:
            yield Violation("a word goes from cores to harts, or from an aicpu hart to cores", where, found=str(event))
        if AICPU in (event.setters, event.to) and event.mode is not Mode.NOTIFY:
            yield Violation("an aicpu hart has no cross-core flags", where, found=str(event))
        if event.mode is not Mode.NOTIFY and not 0 <= event.flag < plan.flags:
            yield Violation("no such flag for the plan", where, f"0 to {plan.flags - 1}", str(event.flag))
        if (event.setters is None) != (event.mode is Mode.ALL):
            yield Violation("mode and setters do not fit", where, found=str(event))
        if event.mode is Mode.GROUP and event.setters is CoreKind.CUBE and plan.cube_cores != plan.groups:
            yield Violation("one group's cube cores signal it several times", where, found=str(event))
    for kind, program in plan.programs.items():
        signalled = [s.event for s in program if isinstance(s, Signal)]
        taken = [e for s in program for e in awaited(s)]
        for name, found, expected in (
            ("signalled", signalled, [e.index for e in plan.events if kind in e.signallers]),
            ("awaited", _unique_per_step(program, taken), [e.index for e in plan.events if kind in e.receivers]),
        ):
            for index in sorted({*found, *expected}):
                times, want = found.count(index), expected.count(index)
                if times != want:
                    yield Violation(
                        f"event is not {name} as often as it must be", f"program {kind.value}, event {index}",
                        str(want), str(times),
                    )  # fmt: skip


def _unique_per_step(program: Sequence[object], taken: Sequence[int]) -> list[int]:
    """Awaited events; one that several operands of one kernel name is taken once."""
    found: list[int] = []
    for step in program:
        if isinstance(step, Run):
            found += dict.fromkeys(awaited(step))
        elif isinstance(step, Await):
            found.append(step.event)
    return found


def _check_meetings(plan: AicorePlan) -> Iterator[Violation]:
    """A9. Where cores of a type meet inside a kernel, those without units must come too, as often."""
    for subop, meetings in plan.meetings.items():
        busy = {task.core for task in plan.tasks if task.subop == subop}
        for kind in dict.fromkeys(plan.kind(core) for core in busy):
            idle = [core for core in plan.cores(kind) if core not in busy]
            feeds = sum(s.feeds for s in plan.programs[kind] if isinstance(s, Run) and s.subop == subop)
            if idle and feeds != meetings:
                yield Violation(
                    "deadlock: cores meet inside a kernel, and others never come",
                    f"sub-operator {subop}, {kind.value} cores {idle[0]} to {idle[-1]} without units",
                    f"{meetings} meetings fed",
                    f"{feeds}",
                )


def _check_writes(plan: AicorePlan) -> Iterator[Violation]:
    for task in plan.tasks:
        for access in task.accesses:
            if access.write and access.space in (Space.INPUT, Space.CONSTANT):
                yield Violation(f"writes to {access.space.value}{access.slot}", f"core {task.core}, task {task.index}")


def _check_flag_order(plan: AicorePlan) -> Iterator[Violation]:
    """A3. Within one kernel, events are taken in the order of their numbers at best: those of one flag must stand at
    one operand, in order."""
    family: dict[tuple[int, HartKind], tuple[Mode, HartKind | None]] = {}
    words: dict[int, int] = {}
    for event in plan.events:
        if event.mode is Mode.NOTIFY:  # its word only grows: nobody else may
            other = words.setdefault(event.flag, event.index)
            if other != event.index or event.flag < 0:
                yield Violation(
                    "two events have one word", f"event {event.index}, word {event.flag}", found=f"event {other}"
                )
            continue
        for kind in event.receivers:
            known = family.setdefault((event.flag, kind), (event.mode, event.setters))
            if known != (event.mode, event.setters):
                yield Violation(
                    "a flag is used by two kinds of events", f"event {event.index}, flag {event.flag}",
                    f"mode {known[0].value}", f"mode {event.mode.value}",
                )  # fmt: skip
    for kind, program in plan.programs.items():
        taken = _unique_per_step(program, ())
        for setter, its in plan.programs.items():
            signalled = {s.event: at for at, s in enumerate(its) if isinstance(s, Signal)}
            last: dict[int, int] = {}
            for index in taken:
                event = plan.events[index]
                if event.mode is Mode.NOTIFY or index not in signalled or setter not in event.signallers:
                    continue
                if signalled[index] < last.get(event.flag, -1):
                    yield Violation(
                        "a flag is awaited in another order than it is signalled",
                        f"program {kind.value}, event {index}, flag {event.flag}",
                    )
                last[event.flag] = signalled[index]


# A4 and happens-before ------------------------------------------------------------------------------------------------


@dataclass
class _Replay:
    """Executes the programs; keeps what each core knows at each access. Positions are step numbers + 1, per type."""

    plan: AicorePlan
    at_access: dict[tuple[int, int | None], Matrix] = field(default_factory=dict)  # (sub-operator, operand)
    fenced_at: dict[tuple[int, int | None], Vector] = field(default_factory=dict)
    step_of: dict[tuple[HartKind, int], int] = field(default_factory=dict)
    await_step: dict[tuple[HartKind, int], int] = field(default_factory=dict)
    at_signal: dict[tuple[HartKind, int], Matrix] = field(default_factory=dict)
    under_way: dict[int, str] = field(default_factory=dict)  # event -> the end of a launch that it outlives

    def __post_init__(self) -> None:
        total = self.plan.harts
        self.known = np.zeros((total, total), np.int64)
        self.fenced = np.zeros(total, np.int64)
        self.units = {(task.subop, task.core) for task in self.plan.tasks}
        self.at: dict[HartKind, int] = dict.fromkeys(self.plan.programs, 0)

    def run(self) -> list[Violation]:
        """Until both programs end, or neither can go on."""
        moved = True
        while moved:
            moved = False
            for kind, program in self.plan.programs.items():
                while self.at[kind] < len(program) and self._step(kind, program[self.at[kind]]):
                    self.at[kind] += 1
                    moved = True
            moved = self._pass_pause() or moved
        stuck = [
            Violation("an event is under way where a launch ends", f"event {index}", "taken before", end)
            for index, end in self.under_way.items()
        ]
        for kind, program in self.plan.programs.items():
            if self.at[kind] < len(program):
                step = program[self.at[kind]]
                missing = [e for e in awaited(step) if not self._complete(self.plan.events[e])]
                stuck.append(
                    Violation(
                        "deadlock: this step is never passed",
                        f"program {kind.value}, step {self.at[kind]}: {step}",
                        expected="its events to be signalled",
                        found=f"events {missing} are not",
                    )
                )
        return stuck

    def _pass_pause(self) -> bool:
        """Both programs stand at the same end of a launch: everything is complete, no event under way."""
        steps: list[Pause | Cut] = []
        for kind, program in self.plan.programs.items():
            step = program[self.at[kind]] if self.at[kind] < len(program) else None
            if not isinstance(step, (Pause, Cut)):
                return False
            steps.append(step)
        if any(step != steps[0] for step in steps):
            return False
        for _, index in self.at_signal:
            for kind in self.plan.events[index].receivers:
                if (kind, index) not in self.await_step:
                    self.under_way.setdefault(index, str(steps[0]))
        for kind in self.plan.programs:
            if isinstance(steps[0], Pause):
                self.step_of[kind, steps[0].subop] = self.at[kind] + 1
            self.at[kind] += 1
            mine = list(self.plan.cores(kind))
            self.known[:, mine] = self.at[kind]
            self.fenced[mine] = self.at[kind]
        return True

    def _complete(self, event: Event) -> bool:
        return all((kind, event.index) in self.at_signal for kind in event.signallers)

    def _step(self, kind: HartKind, step: object) -> bool:
        if isinstance(step, (Pause, Cut)):
            return False
        mine = list(self.plan.cores(kind))
        number = self.at[kind] + 1
        events = awaited(step) if isinstance(step, (Await, Run)) else ()
        if not all(self._complete(self.plan.events[e]) for e in events):
            return False
        if isinstance(step, Signal):
            self.at_signal[kind, step.event] = self.known[mine].copy()
        elif isinstance(step, Drain):
            self.fenced[mine] = number
        elif isinstance(step, Await):
            self._learn(self.known, self.fenced, mine, self.plan.events[step.event])
            self.await_step[kind, step.event] = number
        elif isinstance(step, Run):
            self._access(kind, mine, step, number)
        self.known[mine, mine] = number
        return True

    def _access(self, kind: HartKind, mine: list[int], step: Run, number: int) -> None:
        """What is known at each operand's first access; behind the kernel, all of it."""
        self.step_of[kind, step.subop] = number
        base, fenced = self.known.copy(), self.fenced.copy()
        self._keep(step.subop, None, mine, base, fenced)
        for wait in step.waits:
            here, own = base.copy(), fenced.copy()
            for event in wait.events:
                self._learn(here, own, mine, self.plan.events[event])
                self._learn(self.known, self.fenced, mine, self.plan.events[event])
                self.await_step[kind, event] = number
            if wait.fence:
                own[mine] = number - 1
                busy = [core for core in mine if (step.subop, core) in self.units]  # others pass no fence
                self.fenced[busy] = number - 1
            self._keep(step.subop, wait.operand, mine, here, own)

    def _keep(self, subop: int, operand: int | None, mine: list[int], known: Matrix, fenced: Vector) -> None:
        total = self.plan.harts
        rows = self.at_access.setdefault((subop, operand), np.full((total, total), -1, np.int64))
        rows[mine] = known[mine]
        own = self.fenced_at.setdefault((subop, operand), np.full(total, -1, np.int64))
        own[mine] = fenced[mine]

    def _learn(self, known: Matrix, fenced: Vector, mine: list[int], event: Event) -> None:
        """A type's cores take an event. What others know of a core's own stores, it need not wait for any more."""
        published = np.zeros_like(known)
        for kind in self.plan.programs:
            if (kind, event.index) in self.at_signal:
                published[list(self.plan.cores(kind))] = self.at_signal[kind, event.index]
        whole = None if event.mode is Mode.GROUP else published[list(self.plan.heard(event, mine[0]))].max(axis=0)
        for core in mine:
            learnt = published[list(self.plan.heard(event, core))].max(axis=0) if whole is None else whole
            known[core] = np.maximum(known[core], learnt)
            fenced[core] = max(fenced[core], learnt[core])

    def at_operand(self, subop: int, operand: int | None, core: int) -> tuple[Vector, int]:
        """What a core knows where it comes to an operand, and up to where its own stores are fenced."""
        rows = self.at_access.get((subop, operand))
        if rows is None or rows[core, core] < 0:
            operand = None
            rows = self.at_access[subop, None]
        return rows[core], int(self.fenced_at[subop, operand][core])


# A6 -------------------------------------------------------------------------------------------------------------------


def _check_counts(plan: AicorePlan, replay: _Replay) -> Iterator[Violation]:
    """Before a flag is signalled for the (limit + 1)-th time untaken, a signaller must know the first as taken."""
    uses: dict[tuple[int, HartKind], list[Event]] = {}
    for event in plan.events:
        for kind in event.receivers if event.mode is not Mode.NOTIFY else ():
            uses.setdefault((event.flag, kind), []).append(event)
    for (flag, kind), events in uses.items():
        for number in range(plan.flag_count_max, len(events)):
            event, earlier = events[number], events[number - plan.flag_count_max]
            taken = replay.await_step[kind, earlier.index]
            if not _somebody_knows(plan, replay, event, kind, taken):
                yield Violation(
                    "a count can exceed its limit", f"flag {flag} on {kind.value} cores, event {event.index}",
                    f"at most {plan.flag_count_max}", f"event {earlier.index} may not be taken yet",
                )  # fmt: skip


def _somebody_knows(plan: AicorePlan, replay: _Replay, event: Event, kind: HartKind, taken: int) -> bool:
    """For each receiver, a setter that it listens to knows at its signal that the receiver has passed step `taken`."""
    for core in plan.cores(kind):
        fine = False
        for setter in plan.heard(event, core):
            its = plan.kind(setter)
            row = replay.at_signal[its, event.index][setter - plan.cores(its)[0]]
            if row[core] >= taken:
                fine = True
                break
        if not fine:
            return False
    return True


# A5 -------------------------------------------------------------------------------------------------------------------


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


def _check_order(plan: AicorePlan, replay: _Replay) -> tuple[int, int, list[Violation]]:
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


def _check_space(plan: AicorePlan, replay: _Replay, rows: _Rows) -> tuple[int, int, list[Violation]]:
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
