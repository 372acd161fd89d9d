"""Whether an accelerator plan is well formed: what `verify` checks of steps and events by themselves.

A1 (runs, units), A2 (signals and awaits), A3 (flags, words), A7 (writes) and A9 (barriers) of `verify`. Each check
takes the plan and yields what is wrong. None of them executes the programs.

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from superkernel.core.counted import counted
from superkernel.core.errors import Violation
from superkernel.sync.aicore.plan import AICPU, AicorePlan, CoreKind, HartKind, Mode, Pause, Run, Signal, Step, awaited
from superkernel.sync.verify_tasks import check_tasks


def check_form(plan: AicorePlan, units: Mapping[int, int]) -> list[Violation]:
    """What is wrong with runs, units, events, writes and barriers. `units`: number of units by sub-operator; where it
    is not told, units are without gap or overlap up to the last."""
    ends: dict[int, int] = {}
    for task in plan.tasks:
        if task.end > ends.setdefault(task.subop, 0):
            ends[task.subop] = task.end
    return [
        *check_tasks(plan.tasks, {**ends, **units}, shared=True, copied={copies.subop for copies in plan.copies}),
        *_check_runs(plan),
        *_check_events(plan),
        *_check_flags(plan),
        *_check_barriers(plan),
    ]


def _check_runs(plan: AicorePlan) -> Iterator[Violation]:
    needed: dict[HartKind, set[int]] = {kind: set() for kind in plan.programs}
    kinds = [plan.kind(core) for core in range(plan.harts)]
    for index, task in enumerate(plan.tasks):
        if not 0 <= task.core < len(kinds):
            yield Violation("no such core", f"task {index}", f"0 to {len(kinds) - 1}", str(task.core))
        else:
            needed[kinds[task.core]].add(task.subop)
    for kind, program in plan.programs.items():
        runs = [s.subop for s in program if isinstance(s, (Run, Pause))]
        if runs != sorted(set(runs)):
            yield Violation("runs leave the global order or repeat", f"program {kind.value}", found=str(runs[:20]))
        for subop in sorted(needed[kind] - set(runs)):
            yield Violation("a sub-operator with tasks is not run", f"program {kind.value}, sub-operator {subop}")


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
        if event.mode is Mode.PAIR:
            yield Violation("a mode that only kernels have", where, found=str(event))
        if (event.setters is None) != (event.mode is Mode.ALL):
            yield Violation("mode and setters do not fit", where, found=str(event))
        if event.mode is Mode.GROUP and event.setters is CoreKind.CUBE and plan.cube_cores != plan.groups:
            yield Violation("one group's cube cores signal it several times", where, found=str(event))
    for kind, program in plan.programs.items():
        signalled = (s.event for s in program if isinstance(s, Signal))
        for name, found, expected in (
            ("signalled", Counter(signalled), Counter(e.index for e in plan.events if kind in e.signallers)),
            ("awaited", Counter(_unique(program)), Counter(e.index for e in plan.events if kind in e.receivers)),
        ):
            for index in sorted({index for index, _ in found.items() ^ expected.items()}):
                yield Violation(
                    f"event is not {name} as often as it must be", f"program {kind.value}, event {index}",
                    str(expected[index]), str(found[index]),
                )  # fmt: skip


def _unique(program: Sequence[Step]) -> list[int]:
    """Awaited events; one that several operands of one kernel name is taken once."""
    return [event for step in program for event in dict.fromkeys(awaited(step))]


def _check_barriers(plan: AicorePlan) -> Iterator[Violation]:
    """A9. Where cores of a type meet inside a kernel, those without units must come too, as often."""
    for subop, barriers in plan.barriers.items():
        busy = {task.core for task in plan.tasks if task.subop == subop}
        for kind in dict.fromkeys(plan.kind(core) for core in busy):
            idle = [core for core in plan.cores(kind) if core not in busy]
            joined = sum(s.barriers for s in plan.programs[kind] if isinstance(s, Run) and s.subop == subop)
            if idle and joined != barriers:
                yield Violation(
                    "deadlock: cores meet inside a kernel, and others never come",
                    f"sub-operator {subop}, {kind.value} cores {idle[0]} to {idle[-1]} without units",
                    f"{counted(barriers, 'barrier')} joined",
                    f"{joined}",
                )


def _check_flags(plan: AicorePlan) -> Iterator[Violation]:
    """A3. A flag counts at a core for one mode and one type of setters; a word is one event's."""
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
