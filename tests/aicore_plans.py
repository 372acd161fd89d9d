"""Plans of the accelerator, altered for tests."""

from __future__ import annotations

from dataclasses import replace

from superkernel.sync.aicore.plan import AicorePlan, Await, Run, Signal, Step


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
