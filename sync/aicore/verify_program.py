"""What a linked program was seen to do, as the plan that it is: for the verifier, in place of the one it came from.

Model: per hart and launch a straight line of what it was seen to do (`verify_seen`). Which step of the program a wait
belongs to is not recorded. It follows from where it was seen:

- signals cut the line of a core into *stretches*; all cores of a type must signal alike, and each stretch must run the
  same sub-operators and take the same flags on all of them;
- within a stretch nobody is told anything, so that waits may stand at any place that no core's accesses come ahead of:
  ahead of a run, where all its cores had waited when it began; at an operand, where all had when they first came to it;
  else behind the run. Cores without units of a run do not count for it;
- an operand has a fence where on all cores its loads come behind all stores of earlier calls (`verify_fences`).

The n-th signal of a flag by a type of setters is one event, the n-th take of the flag at a type of receivers takes it.

It checks, beyond what the plan's form tells (`verify_form`):

 E1  all cores of a type signal, wait and call alike;
 E2  what a signal tells of is complete: all accesses of all calls ahead of it;
 E3  words in memory are counted up by one by each setter, and awaited for all setters of the present run;
E4, of what cores do inside kernels, stands in `verify_inside`; that all others join their barriers is checked here.

Architecture invariant: imports plain data types only, nothing of the planner, nothing of code generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from superkernel.core.errors import Violation
from superkernel.scheduler.schedule import Task
from superkernel.sync.aicore.plan import (
    AICPU,
    AicorePlan,
    Await,
    AwaitCount,
    CoreKind,
    Event,
    HartKind,
    LaunchEnd,
    Mode,
    Notify,
    OperandWait,
    Pause,
    Prefetch,
    Run,
    ServiceStep,
    Signal,
    Step,
)
from superkernel.sync.aicore.verify_fences import fences
from superkernel.sync.aicore.verify_inside import check_inside, inner_flags
from superkernel.sync.aicore.verify_seen import (
    AwaitWord,
    Called,
    Count,
    Fetch,
    Lines,
    Returned,
    Seen,
    SetFlag,
    Shape,
    TakeFlag,
)

BEHIND = -2  # in place of an operand: of waits that no operand is sure of, which the kernel has passed at its end


_Wait = tuple[str, int]  # what is taken: a flag or a word
_Taken = tuple[str, int, int]  # and for which time, by cores of a type


class _Take(NamedTuple):
    """Of one core: what it took, after how many waits of the launch, and where: 2 x the stretch's calls so far, less 1
    inside the last of them."""

    taken: _Taken
    waits: int
    place: int


@dataclass
class _Stretch:
    """Of one core, between two signals."""

    calls: list[Called] = field(default_factory=list)
    takes: list[_Take] = field(default_factory=list)
    joined: int = 0  # barriers, outside of calls
    notified: list[int] = field(default_factory=list)  # behind how many calls
    closing: SetFlag | Count | None = None  # what ends it; None: the launch


def rebuild(
    lines: Lines, tasks: Sequence[Task], shape: Shape, meant: AicorePlan, run: int, words: dict[int, int]
) -> tuple[AicorePlan, list[Violation]]:
    """The plan that a program is, and what is wrong already. `tasks`: all of them, as they were called. `meant`: the
    plan that it should be, which is asked for no more than which values are copied, what NumPy computes between two
    launches, and for which sub-operator SDMA prefetches. `run`: the how manieth of the program on this memory, from 1;
    `words`: what the runs before have left in words that are set, and then this one."""
    return _Rebuilder(lines, tasks, shape, meant, run, words).plan()


class _Rebuilder:
    def __init__(
        self, lines: Lines, tasks: Sequence[Task], shape: Shape, meant: AicorePlan, run: int, words: dict[int, int]
    ) -> None:
        self.lines, self.tasks, self.shape, self.meant, self.run = lines, tuple(tasks), shape, meant, run
        self.left = words
        self.wrong: list[Violation] = []
        self.inner = inner_flags(lines)
        kinds: tuple[HartKind, ...] = (*CoreKind, AICPU) if shape.aicpu else tuple(CoreKind)
        self.frame = AicorePlan(
            self.tasks, shape.cube_cores, shape.vector_cores, shape.groups, dict.fromkeys(kinds, ()), (), (),
            shape.flags, shape.flag_count_max, copies=meant.copies,
        )  # fmt: skip
        self.events: dict[tuple[Any, ...], Event] = {}
        self.words = {word: n for n, word in enumerate(sorted(self._counted()))}
        self.barriers: dict[int, int] = {}
        self.event_of: dict[tuple[HartKind, _Taken], list[int]] = {}

    def say(self, message: str, where: str, expected: object = "", found: object = "") -> None:
        self.wrong.append(Violation(message, where, str(expected), str(found)))

    def plan(self) -> tuple[AicorePlan, list[Violation]]:
        """See `rebuild`."""
        stretches = {kind: self._stretches(kind) for kind in self.frame.programs}
        if not self.wrong:
            self.barriers, wrong = check_inside(self.lines, self.inner, self.frame)
            self.wrong += wrong
        programs: dict[HartKind, tuple[Step, ...]] = {}
        if not self.wrong:
            self._signals(stretches)
            programs = {kind: tuple(self._program(kind, rows)) for kind, rows in stretches.items()}
        service = () if self.wrong else self._service()
        plan = AicorePlan(
            self.tasks, self.shape.cube_cores, self.shape.vector_cores, self.shape.groups,
            programs or self.frame.programs, tuple(self.events.values()), (), self.shape.flags,
            self.shape.flag_count_max, service, self.barriers, self.meant.copies,
        )  # fmt: skip
        return plan, self.wrong

    # What there is ----------------------------------------------------------------------------------------------------

    def _counted(self) -> set[int]:
        """Words that harts of the plan add to."""
        harts = (hart for launch in self.lines for hart in launch[: self.frame.harts])
        return {event.word for hart in harts for event in hart if isinstance(event, Count) and event.add}

    # Cores into stretches ---------------------------------------------------------------------------------------------

    def _stretches(self, kind: HartKind) -> list[list[list[_Stretch]]]:
        """By launch, stretch and core of a type; all cores have as many of them (E1)."""
        taken = [Counter[_Wait]() for _ in self.frame.cores(kind)]
        found = []
        for launch, harts in enumerate(self.lines):
            cores = [
                self._cut(f"launch {launch}, core {core}", harts[core], taken[n])
                for n, core in enumerate(self.frame.cores(kind))
            ]
            first = [_told(stretch.closing) for stretch in cores[0]] if cores else []
            for core, own in zip(self.frame.cores(kind), cores, strict=True):
                if (signals := [_told(stretch.closing) for stretch in own]) != first:
                    where = f"launch {launch}, core {core}"
                    self.say("cores of a type signal differently", where, first, signals)
                    return []
            found.append([list(row) for row in zip(*cores, strict=True)])
        return found

    def _cut(self, where: str, events: Sequence[Seen], taken: Counter[_Wait]) -> list[_Stretch]:
        """The stretches of one core in one launch."""
        found = [_Stretch()]
        inside = False
        calls = waits = 0
        for event in events:
            here = found[-1]
            waits += isinstance(event, (TakeFlag, AwaitWord))
            if isinstance(event, Called):
                here.calls.append(event)
                inside = True
                calls += 1
            elif isinstance(event, Returned):
                inside = False
            elif isinstance(event, (TakeFlag, AwaitWord)):
                if isinstance(event, TakeFlag) and event.flag in self.inner:
                    continue
                key = ("flag", event.flag) if isinstance(event, TakeFlag) else ("word", event.word)
                if isinstance(event, AwaitWord):
                    self._check_await(where, event)
                taken[key] += 1
                here.takes.append(_Take((*key, taken[key] - 1), waits, 2 * len(here.calls) - inside))
            elif isinstance(event, SetFlag) and event.flag in self.inner:
                here.joined += not inside
            elif isinstance(event, (SetFlag, Count)):
                if event.complete != calls:
                    self.say("a signal may be seen before what it tells of is done", f"{where}: {event}", calls)
                if isinstance(event, Count) and not event.add:
                    here.notified.append(len(here.calls))
                    continue
                if inside:
                    self.say("a kernel signals others", f"{where}: {event}")
                here.closing = event
                found.append(_Stretch())
            else:
                self.say("a core prefetches constants", where)
        for stretch in found:
            subops = [call.task.subop for call in stretch.calls]
            if any(a >= b for a, b in pairwise(subops)):
                self.say("calls leave the global order", where, sorted(set(subops)), subops)
        return found

    def _check_await(self, where: str, event: AwaitWord) -> None:
        """E3: what a core awaits is all setters of this run."""
        setters = self._setters(event.word)
        if event.value != self.run * setters:
            self.say("a word is awaited for another count", f"{where}: {event}", self.run * setters, event.value)

    def _setters(self, word: int) -> int:
        """Harts that add to a word, each one time."""
        return sum(
            any(isinstance(e, Count) and e.word == word and e.add and e.value == 1 for e in hart)
            for launch in self.lines
            for hart in launch
        )

    # Events -----------------------------------------------------------------------------------------------------------

    def _signals(self, stretches: Mapping[HartKind, list[list[list[_Stretch]]]]) -> None:
        """All events, by what was signalled."""
        for kind, launches in stretches.items():
            given = Counter[tuple[Any, ...]]()
            after = -1
            for cores in (row for launch in launches for row in launch):
                after = max([after, *(call.task.subop for core in cores for call in core.calls)])
                closing = cores[0].closing
                if closing is None:
                    continue
                family = self._family(kind, closing)
                key = (*family, given[family])
                given[family] += 1
                if key not in self.events:
                    self.events[key] = self._event(kind, closing, after)
        for key, event in self.events.items():
            for receivers in event.receivers:
                self.event_of.setdefault((receivers, (key[0], key[1], key[-1])), []).append(event.index)

    def _family(self, kind: HartKind, signal: SetFlag | Count) -> tuple[Any, ...]:
        if isinstance(signal, Count):
            return ("word", signal.word, kind)
        return ("flag", signal.flag, signal.mode, None if signal.mode is Mode.ALL else kind)

    def _event(self, kind: HartKind, signal: SetFlag | Count, after: int) -> Event:
        index = len(self.events)
        if isinstance(signal, SetFlag):
            setters = None if signal.mode is Mode.ALL else kind
            return Event(index, signal.mode, setters, signal.flag, after)
        if signal.value != 1:
            self.say("a word is not counted up by one", str(signal), 1, signal.value)
        waiting = {
            self.frame.kind(core)
            for launch in self.lines
            for core, events in enumerate(launch[: self.frame.harts])
            if any(isinstance(e, AwaitWord) and e.word == signal.word for e in events)
        }
        if len(waiting) != 1:
            self.say("a word is not awaited by harts of one type", str(signal), 1, len(waiting))
        return Event(index, Mode.NOTIFY, kind, self.words[signal.word], after, next(iter(waiting), kind))

    def _taken(self, kind: HartKind, taken: _Taken) -> int | None:
        """The event that a take is of."""
        found = self.event_of.get((kind, taken), [])
        if len(found) == 1:
            return found[0]
        self.say(
            "a wait for what nobody signals" if not found else "a flag is used by two kinds of events",
            f"{kind.value} cores, {taken[0]} {taken[1]}, take {taken[2]}", "one event", len(found),
        )  # fmt: skip
        return None

    # Programs ---------------------------------------------------------------------------------------------------------

    def _program(self, kind: HartKind, launches: list[list[list[_Stretch]]]) -> Iterator[Step]:
        firsts = [self._first_run(launch) for launch in range(len(self.lines))]
        given = Counter[tuple[Any, ...]]()
        notified = 0
        for number, launch in enumerate(launches):
            if number:
                paused = self.meant.between[number - 1] if number - 1 < len(self.meant.between) else None
                yield LaunchEnd(firsts[number]) if paused is None else Pause(paused)
                notified = 0
            by_core = [[call for stretch in core for call in stretch.calls] for core in zip(*launch, strict=True)]
            fenced = fences(by_core)
            for cores in launch:
                for step in self._steps(kind, cores, fenced):
                    if isinstance(step, Notify):
                        notified += 1
                        step = Notify(notified)
                    yield step
                closing = cores[0].closing
                if closing is not None:
                    family = self._family(kind, closing)
                    yield Signal(self.events[(*family, given[family])].index)
                    given[family] += 1

    def _first_run(self, launch: int) -> int:
        """The first sub-operator that a launch calls."""
        return min((e.task.subop for hart in self.lines[launch] for e in hart if isinstance(e, Called)), default=-1)

    def _steps(self, kind: HartKind, cores: list[_Stretch], fenced: Mapping[int, frozenset[int]]) -> Iterator[Step]:
        """One stretch: its waits and runs."""
        runs = sorted({call.task.subop for core in cores for call in core.calls})
        at = {subop: n for n, subop in enumerate(runs)}
        places: dict[_Taken, int] = {}
        first = {take.taken for take in cores[0].takes}
        for number, core in enumerate(cores):
            own = {take.taken for take in core.takes}
            if own != first:
                where = f"{kind.value} core {number}, stretch with sub-operators {runs}"
                self.say("cores of a type wait differently", where, sorted(first), sorted(own))
                return
            for take in core.takes:
                # A core without units of some runs had waited ahead of all behind its last one.
                behind = at[core.calls[take.place // 2 - 1].task.subop] + 1 if take.place >= 2 else 0
                inside = take.place % 2 == 1
                place = 2 * at[core.calls[take.place // 2].task.subop] + 1 if inside else 2 * behind
                places[take.taken] = max(places.get(take.taken, 0), place)
        steps: list[list[Step]] = [[] for _ in range(2 * len(runs) + 1)]
        inner: list[list[tuple[_Taken, int]]] = [[] for _ in runs]
        for take in cores[0].takes:
            event, place = self._taken(kind, take.taken), places[take.taken]
            if event is not None and place % 2:
                inner[place // 2].append((take.taken, event))
            elif event is not None:
                steps[place].append(Await(event, runs[place // 2] if place // 2 < len(runs) else -1))
        joined = self._joined(kind, cores, runs)
        for n, subop in enumerate(runs):
            waits = self._operand_waits(cores, subop, inner[n], fenced.get(subop, frozenset()))
            steps[2 * n + 1].append(Run(subop, waits, joined.get(subop, 0)))
        for calls in cores[0].notified:
            behind = at[cores[0].calls[calls - 1].task.subop] + 1 if calls else 0
            steps[2 * behind].append(Notify(0))
        for core in cores[1:]:
            if core.notified:
                self.say("another core than the first counts for the service hart", f"{kind.value} cores")
        for row in steps:
            yield from row

    def _joined(self, kind: HartKind, cores: list[_Stretch], runs: Sequence[int]) -> dict[int, int]:
        """Barriers that cores without units join, by sub-operator."""
        found: dict[int, int] = {}
        for number, core in enumerate(cores):
            own = {call.task.subop for call in core.calls}
            missing = [subop for subop in runs if subop not in own and subop in self.barriers]
            if core.joined != sum(self.barriers[subop] for subop in missing):
                where = f"{kind.value} core {number}, sub-operators {missing}"
                self.say(
                    "deadlock: cores meet inside a kernel, and others never come", where,
                    sum(self.barriers[subop] for subop in missing), core.joined,
                )  # fmt: skip
            found |= {subop: self.barriers[subop] for subop in missing}
        return found

    def _operand_waits(
        self, cores: Sequence[_Stretch], subop: int, inner: Sequence[tuple[_Taken, int]], fenced: frozenset[int]
    ) -> tuple[OperandWait, ...]:
        """The waits inside a run: each operand has those that all its cores had passed there."""
        busy = [(core, call) for core in cores for call in core.calls if call.task.subop == subop]
        passed = {taken for taken, _ in inner}
        sure: dict[int, set[_Taken]] = {}
        for core, call in busy:
            for operand, use in call.uses.items():
                if use.waits is not None:
                    mine = {take.taken for take in core.takes if take.waits <= use.waits}
                else:
                    mine = _told_to_take(core, call, call.told.get(operand, ()))
                sure[operand] = sure.get(operand, passed) & mine
        found = []
        rest = set(passed)
        for operand in sorted(set(sure) | fenced):
            own = sure.get(operand, set())
            rest -= own
            if own or operand in fenced:
                events = tuple(event for taken, event in inner if taken in own)
                found.append(OperandWait(operand, events, operand in fenced))
        if rest:
            found.append(OperandWait(BEHIND, tuple(event for taken, event in inner if taken in rest), False))
        return tuple(found)

    # Service ----------------------------------------------------------------------------------------------------------

    def _service(self) -> tuple[tuple[ServiceStep, ...], ...]:
        """The programs of the service hart, by launch; the harts behind it do nothing."""
        return tuple(tuple(self._service_steps(launch, harts)) for launch, harts in enumerate(self.lines))

    def _service_steps(self, launch: int, harts: Sequence[Sequence[Seen]]) -> Iterator[ServiceStep]:
        where = f"launch {launch}, service hart"
        kind_of: dict[int, tuple[CoreKind, int]] = {}
        for kind in CoreKind:
            core = self.frame.cores(kind).start
            for event in harts[core] if len(self.frame.cores(kind)) else ():
                if isinstance(event, Count) and not event.add:
                    base = kind_of.setdefault(event.word, (kind, self.left.get(event.word, 0)))[1]
                    self._check_next(f"launch {launch}, core {core}", event)
        events = harts[self.frame.harts] if self.frame.harts < len(harts) else ()
        meant = [
            s
            for s in (self.meant.service[launch] if launch < len(self.meant.service) else ())
            if isinstance(s, Prefetch)
        ]
        fetched = 0
        own: Count | None = None
        for event in events:
            if isinstance(event, Fetch) and own is None:
                if fetched < len(meant):
                    yield Prefetch(meant[fetched].subop, event.offset, event.nbytes)
                fetched += 1
            elif isinstance(event, AwaitWord) and own is None and event.word in kind_of:
                kind, base = kind_of[event.word]
                yield AwaitCount(kind, event.value - base)
            elif isinstance(event, Count) and not event.add and own is None:
                own = event
                self._check_next(where, event)
            elif not (
                isinstance(event, AwaitWord) and own is not None and (event.word, event.value) == (own.word, own.value)
            ):
                self.say("not a step of the service hart", f"{where}: {event}")
        if fetched != len(meant):
            self.say("prefetches are left out or invented", where, len(meant), fetched)
        if events and (own is None or not isinstance(events[-1], AwaitWord)):
            self.say("the service hart ends before its prefetches", where)
        for number in range(self.frame.harts + 1, len(harts)):
            if harts[number]:
                self.say("a hart without a program does something", f"launch {launch}, hart {number}")

    def _check_next(self, where: str, event: Count) -> None:
        """E3: a word that is set gets its next number, whatever launches there were."""
        wanted = self.left.get(event.word, 0) + 1
        if event.value != wanted:
            self.say("a word does not get its next number", f"{where}: {event}", wanted, event.value)
        self.left[event.word] = event.value


def _told_to_take(core: _Stretch, call: Called, flags: Sequence[int]) -> set[_Taken]:
    """What a core has taken where a kernel has executed waits for these flags: the next ones of each in count."""
    inside = 2 * core.calls.index(call) + 1
    left = Counter(flags)
    found = set()
    for take in core.takes:
        what, number, _ = take.taken
        if take.place == inside and what == "flag" and left[number]:
            left[number] -= 1
            found.add(take.taken)
        elif take.place < inside:
            found.add(take.taken)
    return found


def _told(signal: SetFlag | Count | None) -> tuple[Any, ...]:
    """What all cores of a type must have in common of a signal."""
    if isinstance(signal, SetFlag):
        return ("flag", signal.flag, signal.mode.value)
    return () if signal is None else ("word", signal.word, signal.value)
