"""What each core of an accelerator plan knows, and where: its programs executed with nothing but signals and awaits.

A4 (no deadlock), A6 (no count above its limit) and the second half of A7 (launches) of `verify`, and the
happens-before that A5 rests on: a vector per core, up to which step of each other core's program it knows. A signal
publishes what its core has completed and learnt; an await brings what the signals it needs have published.

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import Violation
from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
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

Vector = NDArray[np.int64]
Matrix = NDArray[np.int64]


@dataclass
class Replay:
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


def check_counts(plan: AicorePlan, replay: Replay) -> Iterator[Violation]:
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


def _somebody_knows(plan: AicorePlan, replay: Replay, event: Event, kind: HartKind, taken: int) -> bool:
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
