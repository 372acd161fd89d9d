"""Accelerator plans with faults of synchronisation: something left out, or rearranged.

Of `edits` of a plan of level "minimal" none is harmless. Of `rearranged` ones, and of mutants of other plans, the
search of their executions says which are broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
    AwaitCount,
    HartKind,
    LaunchEnd,
    Notify,
    OperandWait,
    Pause,
    Run,
    ServiceProgram,
    Signal,
    Step,
    awaited,
)


def without_event(plan: AicorePlan, gone: int) -> AicorePlan:
    """The plan as if an event had never been: not signalled, not awaited, the others numbered anew."""
    number = {e.index: n for n, e in enumerate(e for e in plan.events if e.index != gone)}

    def kept(step: Step) -> Step | None:
        if isinstance(step, (Signal, Await)):
            return None if step.event == gone else replace(step, event=number[step.event])
        if isinstance(step, Run):
            waits = (replace(w, events=tuple(number[e] for e in w.events if e != gone)) for w in step.waits)
            return replace(step, waits=tuple(waits))
        return step

    programs = {k: tuple(s for step in p if (s := kept(step)) is not None) for k, p in plan.programs.items()}
    events = tuple(replace(e, index=number[e.index]) for e in plan.events if e.index != gone)
    return replace(plan, programs=programs, events=events, boundaries=())


def edits(plan: AicorePlan) -> Iterator[tuple[str, AicorePlan]]:
    """The plan with a single step of a single type of hart left out."""
    for kind, program in plan.programs.items():
        for at, step in enumerate(program):
            for name, left in without_one(step):
                steps = (*program[:at], *left, *program[at + 1 :])
                yield f"{kind.value} step {at}, {step}: without {name}", _with(plan, kind, steps)
    for launch, service in enumerate(plan.service):
        for at, order in enumerate(service):
            if isinstance(order, AwaitCount):
                fewer = (*service[:at], *service[at + 1 :])
                yield f"service step {at}, {order}", _with_service(plan, launch, fewer)


def service_rearranged(plan: AicorePlan) -> Iterator[tuple[str, AicorePlan]]:
    """The plan with other service programs: a step earlier, an await of a count less or more, a prefetch in the next
    launch."""
    for launch, service in enumerate(plan.service):
        for at, step in enumerate(service):
            here = f"service {launch} step {at}, {step}"
            before, after = service[:at], service[at + 1 :]
            if after:
                yield f"{here}: behind {after[0]}", _with_service(plan, launch, (*before, after[0], step, *after[1:]))
            if isinstance(step, AwaitCount):
                for other in (replace(step, count=step.count - 1), replace(step, count=step.count + 1)):
                    yield f"{here}: {other}", _with_service(plan, launch, (*before, other, *after))
            elif launch + 1 < len(plan.service):
                moved = _with_service(plan, launch, (*before, *after))
                yield f"{here}: a launch later", _with_service(moved, launch + 1, (step, *plan.service[launch + 1]))


def _with_service(plan: AicorePlan, launch: int, steps: ServiceProgram) -> AicorePlan:
    return replace(plan, service=(*plan.service[:launch], steps, *plan.service[launch + 1 :]))


def without_one(step: Step) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """A step of synchronisation without one of its parts, and what remains of it."""
    if isinstance(step, (Await, Signal, Notify)):
        yield "it", ()
    if isinstance(step, Run):
        for event in dict.fromkeys(awaited(step)):
            waits = [replace(w, events=tuple(e for e in w.events if e != event)) for w in step.waits]
            yield f"event {event}", (replace(step, waits=tuple(waits)),)
        for number, wait in enumerate(step.waits):
            if wait.events:
                yield f"the events of operand {wait.operand}", (_other_wait(step, number, replace(wait, events=())),)
            if wait.fence:
                yield f"the fence of operand {wait.operand}", (_other_wait(step, number, replace(wait, fence=False)),)
        if step.barriers:
            yield "its part in barriers", (replace(step, barriers=0),)


def rearranged(plan: AicorePlan) -> Iterator[tuple[str, AicorePlan]]:
    """The plan with its synchronisation rearranged: an event left out at one of several operands, moved to another
    operand or out of the kernel, put on another flag of its family, taken or signalled a step earlier or later."""
    for kind, program in plan.programs.items():
        for at, step in enumerate(program):
            here = f"{kind.value} step {at}, {step}"
            for name, changed in _rearranged_run(step) if isinstance(step, Run) else ():
                yield f"{here}: {name}", _with(plan, kind, (*program[:at], *changed, *program[at + 1 :]))
            after = program[at + 1] if at + 1 < len(program) else None
            both = (type(step), type(after))
            swaps = Run in both and not {*both} & {Pause, LaunchEnd} and both != (Run, Run)
            if (after is not None and swaps) or both in ((Signal, Signal), (Await, Await)):
                swapped = (*program[:at], after, step, *program[at + 2 :])
                yield f"{here}: behind {after}", _with(plan, kind, swapped)  # type: ignore[arg-type]
    for event in plan.events:
        for flag in sorted({e.flag for e in plan.events if e.family == event.family and e.to is None} - {event.flag}):
            other = (*plan.events[: event.index], replace(event, flag=flag), *plan.events[event.index + 1 :])
            yield f"{event}: on flag {flag}", replace(plan, events=other)


def _rearranged_run(step: Run) -> Iterator[tuple[str, tuple[Step, ...]]]:
    for number, wait in enumerate(step.waits):
        for event in wait.events:
            fewer = replace(wait, events=tuple(e for e in wait.events if e != event))
            several = sum(event in w.events for w in step.waits) > 1
            if several:
                yield f"without event {event} at operand {wait.operand}", (_other_wait(step, number, fewer),)
            else:
                yield f"event {event} behind it", (_other_wait(step, number, fewer), Await(event, step.subop))
            for other, its in enumerate(step.waits):
                if other != number:
                    moved = _other_wait(step, number, fewer)
                    to = replace(its, events=tuple(dict.fromkeys((*its.events, event))))
                    yield (
                        f"event {event} from operand {wait.operand} to {its.operand}",
                        (_other_wait(moved, other, to),),
                    )


def _other_wait(step: Run, number: int, wait: OperandWait) -> Run:
    return replace(step, waits=(*step.waits[:number], wait, *step.waits[number + 1 :]))


def _with(plan: AicorePlan, kind: HartKind, steps: tuple[Step, ...]) -> AicorePlan:
    return replace(plan, programs={**plan.programs, kind: steps})
