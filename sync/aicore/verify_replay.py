"""What each core of an accelerator plan knows, and where: its programs executed with nothing but signals and awaits.

A4 (no deadlock), A6 (no count above its limit) and the second half of A7 (launches) of `verify`, and the
happens-before that A5 rests on: a vector per core, up to which step of each other core's program it knows. A signal
publishes what its core has completed and learnt; an await propagates what the signals it needs have published.

The rule for flags, as the hardware has it: a flag carries no name. Its n-th count at a core stands for the n-th signal
of that flag by every setter that the core observes, and the n-th take of the flag, wherever it stands, propagates what
these signals have published. What an event is called decides nothing. A kernel takes the flags of an operand where it
comes to the operand, and which operand it comes to first is its own affair: an operand is sure of as many takes of a
flag as its own waits have, the next ones in count, not of those that stand at other operands. Behind the kernel all of
them are taken. A word in memory serves one event, so a wait for it does bring what that event's setters published.

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import Violation
from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
    Drain,
    Event,
    HartKind,
    LaunchEnd,
    Mode,
    Pause,
    Run,
    Signal,
    Step,
    awaited,
)
from superkernel.sync.verify_pairs import Accesses

Vector = NDArray[np.int32]
Matrix = NDArray[np.int32]

_Flag = tuple[int, HartKind]
"""A flag, and the type of cores at which it counts."""


@dataclass
class _Count:
    """One flag at one type of cores: what each type of setters knew at each of its signals, and where it was taken."""

    event: Event  # one of the flag's, for who is observed
    signals: dict[HartKind, list[Matrix]]
    events: dict[HartKind, list[int]]  # what each signal was called
    taken: list[int] = field(default_factory=list)  # step numbers, in order
    published: tuple[int, Matrix | Vector] | None = None  # what was observed last: of which signal, and what

    @property
    def complete(self) -> int:
        """Signals that all setters have given."""
        return min(map(len, self.signals.values()))

    @property
    def untaken(self) -> list[int]:
        """Events that some setter has signalled and nobody has taken."""
        return [e for rows in self.events.values() for e in rows[len(self.taken) :]]


@dataclass(frozen=True)
class Reached:
    """By access: the step that it belongs to, and up to which step its core's own stores are fenced where it begins.
    `known[row[access]]`: up to which step of each core's program its core knows there (row 0, of what no program runs:
    nothing)."""

    step: NDArray[np.int64]
    row: NDArray[np.int64]
    known: Matrix
    fenced: Vector


@dataclass
class Replay:
    """Executes the programs; keeps what each core knows at each access. Positions are step numbers + 1, per type."""

    plan: AicorePlan
    step_of: dict[tuple[HartKind, int], int] = field(default_factory=dict)
    under_way: dict[int, str] = field(default_factory=dict)  # event -> the end of a launch that it outlives

    def __post_init__(self) -> None:
        total = self.plan.harts
        self.known = np.zeros((total, total), np.int32)
        self.fenced = np.zeros(total, np.int32)
        ranges = {kind: self.plan.cores(kind) for kind in self.plan.programs}
        self.mine = {kind: slice(cores.start, cores.stop) for kind, cores in ranges.items()}
        own = self.known.ravel()[:: total + 1]  # what each core knows of itself
        self.own = {kind: own[mine] for kind, mine in self.mine.items()}
        runs = ((kind, s) for kind, program in self.plan.programs.items() for s in program if isinstance(s, Run))
        rows = 1 + sum((1 + len(step.waits)) * len(ranges[kind]) for kind, step in runs)
        self.known_at = np.zeros((rows, total), np.int32)  # what was known at accesses
        self.fenced_at = np.zeros(rows, np.int32)
        self.row_of: dict[tuple[int, int | None, HartKind], int] = {}  # sub-operator, operand -> row of core 0 in these
        self.rows = 1  # of these, in use
        self.units = {(task.subop, task.core) for task in self.plan.tasks}
        self.at: dict[HartKind, int] = dict.fromkeys(self.plan.programs, 0)
        self.counts: dict[_Flag, _Count] = {}
        self.words: dict[tuple[HartKind, int], Matrix] = {}  # what setters knew when they counted an event's word up
        self.read_words: set[tuple[HartKind, int]] = set()
        for event in self.plan.events:
            for kind in event.receivers if event.mode is not Mode.NOTIFY else ():
                setters = event.signallers
                empty = _Count(event, {k: [] for k in setters}, {k: [] for k in setters})
                self.counts.setdefault((event.flag, kind), empty)

    def run(self) -> list[Violation]:
        """Until all programs end, or none can go on."""
        moved = True
        while moved:
            moved = False
            for kind, program in self.plan.programs.items():
                at = self.at[kind]
                while at < len(program) and self._step(kind, program[at], at + 1):
                    at += 1
                    moved = True
                self.at[kind] = at
            moved = self._pass_pause() or moved
        self._find_under_way("the end")
        stuck = []
        for kind, program in self.plan.programs.items():
            if self.at[kind] < len(program):
                step = program[self.at[kind]]
                missing = sorted({e for e in awaited(step) if not self._is_there(kind, awaited(step), e)})
                stuck.append(
                    Violation(
                        "deadlock: this step is never passed",
                        f"program {kind.value}, step {self.at[kind]}: {step}",
                        expected="its events to be signalled",
                        found=f"events {missing} are not",
                    )
                )
        if stuck:
            return stuck
        return [
            Violation("an event is under way where a launch ends", f"event {index}", "taken before", end)
            for index, end in self.under_way.items()
        ]

    def _pass_pause(self) -> bool:
        """All programs stand at the same end of a launch: everything is complete, no event under way."""
        steps: list[Pause | LaunchEnd] = []
        for kind, program in self.plan.programs.items():
            step = program[self.at[kind]] if self.at[kind] < len(program) else None
            if not isinstance(step, (Pause, LaunchEnd)):
                return False
            steps.append(step)
        if any(step != steps[0] for step in steps):
            return False
        self._find_under_way(str(steps[0]))
        for kind in self.plan.programs:
            self.step_of[kind, steps[0].subop] = self.at[kind] + 1  # what stands behind a `LaunchEnd` changes its own
            self.at[kind] += 1
            self.known[:, self.mine[kind]] = self.at[kind]
            self.fenced[self.mine[kind]] = self.at[kind]
        return True

    def _find_under_way(self, where: str) -> None:
        for count in self.counts.values():
            for index in count.untaken:
                self.under_way.setdefault(index, where)
        for _, index in self.words:
            for kind in self.plan.events[index].receivers:
                if (kind, index) not in self.read_words:
                    self.under_way.setdefault(index, where)

    def _is_there(self, kind: HartKind, events: Sequence[int], index: int) -> bool:
        """Whether a step that takes `events` finds what one of them stands for."""
        event = self.plan.events[index]
        if event.mode is Mode.NOTIFY:
            return all((setters, index) in self.words for setters in event.signallers)
        count = self.counts[event.flag, kind]
        return count.complete >= len(count.taken) + len(self._of_flag(events, event.flag))

    def _of_flag(self, events: Sequence[int], flag: int) -> list[int]:
        """Those of the events, each once, that count on a flag."""
        made = self.plan.events
        return [e for e in dict.fromkeys(events) if made[e].mode is not Mode.NOTIFY and made[e].flag == flag]

    def _step(self, kind: HartKind, step: Step, number: int) -> bool:
        """Whether a step can be executed, which it is then. `number`: its own."""
        if isinstance(step, (Pause, LaunchEnd)):
            return False
        mine = self.mine[kind]
        known, fenced = self.known[mine], self.fenced[mine]
        events = awaited(step)
        for index in events:
            if not self._is_there(kind, events, index):
                return False
        if isinstance(step, Signal):
            self._signal(kind, self.plan.events[step.event], known.copy())
        elif isinstance(step, Drain):
            fenced[:] = number
        elif isinstance(step, Await):
            self._learn(known, fenced, kind, events)
            self._take(kind, events, number)
        elif isinstance(step, Run):
            self._access(kind, step, events, number)
        self.own[kind][:] = number
        return True

    def _signal(self, kind: HartKind, event: Event, knew: Matrix) -> None:
        if event.mode is Mode.NOTIFY:
            self.words[kind, event.index] = knew
            return
        for receiver in event.receivers:
            count = self.counts[event.flag, receiver]
            count.signals[kind].append(knew)
            count.events[kind].append(event.index)

    def _access(self, kind: HartKind, step: Run, events: Sequence[int], number: int) -> None:
        """What is known at each operand's first access, at the least; behind the kernel, all of it."""
        self.step_of[kind, step.subop] = number
        known, fenced = self.known[self.mine[kind]], self.fenced[self.mine[kind]]
        base, base_fenced = self._keep(kind, step.subop, None, known, fenced)
        for wait in step.waits:
            here, own = self._keep(kind, step.subop, wait.operand, base, base_fenced)
            self._learn(here, own, kind, wait.events)
            if wait.fence:
                own[:] = number - 1
                for n, core in enumerate(self.plan.cores(kind)):
                    if (step.subop, core) in self.units:  # others pass no fence
                        fenced[n] = number - 1
        if events:
            self._learn(known, fenced, kind, events)
            self._take(kind, events, number)

    def _keep(
        self, kind: HartKind, subop: int, operand: int | None, known: Matrix, fenced: Vector
    ) -> tuple[Matrix, Vector]:
        """The rows of an operand's first access, with so much known and fenced there."""
        rows = slice(self.rows, self.rows + len(known))
        self.row_of[subop, operand, kind] = self.rows - self.mine[kind].start
        self.rows = rows.stop
        here, own = self.known_at[rows], self.fenced_at[rows]
        here[:], own[:] = known, fenced
        return here, own

    def _take(self, kind: HartKind, events: Sequence[int], number: int) -> None:
        for index in dict.fromkeys(events):
            event = self.plan.events[index]
            if event.mode is Mode.NOTIFY:
                self.read_words.add((kind, index))
            else:
                self.counts[event.flag, kind].taken.append(number)

    def _learn(self, known: Matrix, fenced: Vector, kind: HartKind, events: Sequence[int]) -> None:
        """A type's cores take the events' flags, as often as events name them. What others know of a core's own stores,
        it need not wait for any more."""
        nth: dict[int, int] = {}
        for index in dict.fromkeys(events):
            event = self.plan.events[index]
            if event.mode is Mode.NOTIFY:
                published = self._observed(kind, event, [self.words[k, index] for k in event.signallers])
            else:
                count = self.counts[event.flag, kind]
                at = nth.setdefault(event.flag, len(count.taken))
                nth[event.flag] += 1
                if count.published is None or count.published[0] != at:  # else an operand has asked for it
                    signals = [rows[at] for rows in count.signals.values()]
                    count.published = at, self._observed(kind, event, signals)
                published = count.published[1]
            own = published[..., self.mine[kind]]
            np.maximum(known, published, out=known)
            np.maximum(fenced, own.diagonal() if own.ndim == 2 else own, out=fenced)

    def _observed(self, kind: HartKind, event: Event, signals: Sequence[Matrix]) -> Matrix | Vector:
        """What all setters have published, or, by core of a type, those of its group."""
        if event.mode is not Mode.GROUP:
            published: Vector = functools.reduce(np.maximum, [np.maximum.reduce(rows) for rows in signals])
            return published
        (rows,) = signals
        groups = self.plan.groups
        of_group = rows.reshape(groups, -1, rows.shape[1]).max(axis=1)
        return np.repeat(of_group, len(self.plan.cores(kind)) // groups, axis=0)

    def reached(self, accesses: Accesses) -> Reached:
        """What is known where the accesses begin."""
        of_core = [self.plan.kind(core) for core in range(self.plan.harts)]
        cores, subops = accesses.core.tolist(), accesses.subop.tolist()
        kinds = [of_core[core] for core in cores]
        step = np.fromiter(map(self.step_of.__getitem__, zip(kinds, subops, strict=True)), np.int64)
        operands = map(attrgetter("operand"), accesses.source)
        others = map(self.row_of.get, zip(subops, repeat(None), kinds, strict=False), map(operator.neg, cores))
        waiting = map(self.row_of.get, zip(subops, operands, kinds, strict=True), others)
        row = np.fromiter(waiting, np.int64) + accesses.core
        return Reached(step, row, self.known_at, self.fenced_at[row])


def check_counts(plan: AicorePlan, replay: Replay) -> Iterator[Violation]:
    """Before a flag counts for the (limit + 1)-th time untaken, a signaller must know the first as taken."""
    for (flag, kind), count in replay.counts.items():
        late = range(plan.flag_count_max, len(count.taken))
        observed = _observed(plan, count, kind) if late else {}
        for number in late:
            taken = count.taken[number - plan.flag_count_max]
            # For each receiver, a setter that it observes knows at its signal that the receiver has passed that step.
            if not all(any(r[number][n, c] >= taken for r, n in setters) for c, setters in observed.items()):
                events = sorted({rows[number] for rows in count.events.values()})
                yield Violation(
                    "a count can exceed its limit", f"flag {flag} on {kind.value} cores, event {events[0]}",
                    f"at most {plan.flag_count_max}", f"the one {plan.flag_count_max} before it may not be taken yet",
                )  # fmt: skip


def _observed(plan: AicorePlan, count: _Count, kind: HartKind) -> dict[int, list[tuple[list[Matrix], int]]]:
    """By receiver, of each setter that it observes what its type knew at each signal, and its row in that."""
    row = {core: (count.signals[its], n) for its in count.signals for n, core in enumerate(plan.cores(its))}
    return {core: [row[setter] for setter in plan.observed(count.event, core)] for core in plan.cores(kind)}
