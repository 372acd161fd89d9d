"""Why a node runs as it does on the accelerator: kernel choice, grouping, placement, synchronisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.ops.grouped import TILINGS
from superkernel.runtime.decisions import Decisions, common, subop_index
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.sync.aicore.plan import Event


@dataclass(frozen=True, kw_only=True, repr=False)
class AicoreExplanation(Decisions):
    """The decisions about a sub-operator on the accelerator. `events`: what it waits for; `witnesses`: conflicting
    accesses that forbid anything narrower."""

    launch: str
    events: tuple[str, ...]
    witnesses: tuple[str, ...]
    weights: str = ""
    tiling: str = ""

    def _lines(self) -> Iterator[str]:
        yield from [f"tiling: {self.tiling}"] if self.tiling else []
        yield f"launch: {self.launch}"
        yield f"boundary: {self.form}, {self.cost_ns:.0f} ns if nothing hides it: {self.reason}"
        yield from (f"  {e}" for e in self.events)
        yield from (f"  because: {w}" for w in self.witnesses)
        yield from (f"  instead: {form}, {cost:.0f} ns" for form, cost in self.alternatives)
        yield from [f"constants: {self.weights}"] if self.weights else []


def explain_aicore(compiled: AicoreCompiled, node: str | int) -> AicoreExplanation:
    """See `Kernel.explain`. Raises InputError on a node that no sub-operator computes."""
    schedule, plan = compiled.schedule, compiled.plan
    sub = schedule.subops[subop_index(compiled, node)]
    found = common(compiled, sub.index)
    refused = tuple(f"{sub.name}: cannot be cut for {why}" for why in compiled.chooser.refused(sub.body))
    boundary = next(b for b in plan.boundaries if b.subop == sub.index)
    tasks = [t for t in plan.tasks if t.subop == sub.index]
    shown = [f"core {t.core} ({plan.kind(t.core).value}): units {t.begin} to {t.end}" for t in tasks[:TASKS_SHOWN]]
    if len(tasks) > TASKS_SHOWN:
        shown.append(f"and {len(tasks) - TASKS_SHOWN} more")
    return AicoreExplanation(
        **{**found, "grouping": (*found["grouping"], *refused)},
        placement=schedule.notes[sub.index],
        launch=_launch_text(compiled, sub.index),
        tasks=tuple(shown),
        events=tuple(_event_text(plan.events[e], schedule.subops[plan.events[e].after].name) for e in boundary.events),
        witnesses=tuple(map(str, boundary.witnesses)),
        weights=compiled.weights.note_of(sub.index),
        tiling=_tiling_text(compiled, sub.index),
    )


TASKS_SHOWN = 8


def _launch_text(compiled: AicoreCompiled, subop: int) -> str:
    """In which launch it runs, with what else, and why."""
    number = compiled.plan.launch_of.get(subop)
    part = next((p for p in compiled.parts if subop in p.subops), None)
    if number is None or part is None:
        return "none: NumPy computes it between two launches"
    return f"{number} of {compiled.image.launches}; {part}"


def _tiling_text(compiled: AicoreCompiled, subop: int) -> str:
    """How a tiling that depends on data comes about, or by which one a sub-operator is divided."""
    schedule = compiled.schedule
    sub, tiling = schedule.subops[subop], schedule.tilings[subop]
    if sub.body.op in TILINGS:
        if not isinstance(tiling, AicoreTiling):
            return f"computed by NumPy between two launches (option tiling={compiled.options.tiling!r})"
        return "computed by an aicpu hart beside the cores, from data of this launch; out of range it ends the program"
    if not isinstance(tiling, AicoreTiling) or not tiling.dynamically_partitioned:
        return ""
    makers = {v: s.name for s in schedule.subops if s.body.op in TILINGS for v in s.values[-1:]}
    maker = next((makers[v] for v in sub.values if v in makers), "an input")
    return f"work is partitioned into {tiling.units} shares at run time, by the table of {maker!r}"


def _event_text(event: Event, after: str) -> str:
    who = "all cores" if event.setters is None else f"{event.setters.value} cores"
    what = f"flag {event.flag}" if event.to is None else f"word {event.flag} to {event.to.value}"
    return f"event {event.index}: {who} behind {after!r}, mode {event.mode.value}, {what}"
