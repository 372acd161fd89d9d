"""Why a node runs as it does on the accelerator: kernel choice, grouping, placement, synchronisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superkernel.explain import subop_index
from superkernel.ineffective import without_effect
from superkernel.ops.grouped import TILINGS
from superkernel.registry.explanation import Explanation as KernelExplanation
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.sync.aicore.plan import Event

if TYPE_CHECKING:
    from superkernel.pipeline_aicore import AicoreCompiled


@dataclass(frozen=True)
class AicoreExplanation:
    """The decisions about one sub-operator, and their reasons. `events`: what it waits for; `witnesses`: conflicting
    accesses that forbid anything narrower; `alternatives`: wider forms with their cost in ns."""

    subop: int
    name: str
    nodes: tuple[str, ...]
    kernel: str
    selection: KernelExplanation
    grouping: tuple[str, ...]
    options: tuple[str, ...]
    placement: str
    launch: str
    tasks: tuple[str, ...]
    form: str
    reason: str
    cost_ns: float
    alternatives: tuple[tuple[str, float], ...]
    events: tuple[str, ...]
    witnesses: tuple[str, ...]
    weights: str = ""
    tiling: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "selection": self.selection.to_json()}

    def text(self) -> str:
        """For a terminal."""
        lines = [f"sub-operator {self.subop} {self.name!r}, kernel {self.kernel}", f"computes: {', '.join(self.nodes)}"]
        lines += ["", self.selection.text, "", f"placement: {self.placement}"]
        lines += [f"  {t}" for t in self.tasks]
        lines += [f"grouping: {n}" for n in self.grouping]
        lines += [f"option: {o}" for o in self.options]
        if self.tiling:
            lines.append(f"tiling: {self.tiling}")
        lines.append(f"launch: {self.launch}")
        lines.append(f"boundary: {self.form}, {self.cost_ns:.0f} ns if nothing hides it: {self.reason}")
        lines += [f"  {e}" for e in self.events]
        lines += [f"  because: {w}" for w in self.witnesses]
        lines += [f"  instead: {form}, {cost:.0f} ns" for form, cost in self.alternatives]
        if self.weights:
            lines.append(f"constants: {self.weights}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def explain_aicore(compiled: AicoreCompiled, node: str | int) -> AicoreExplanation:
    """See `Kernel.explain`. Raises InputError on a node that no sub-operator computes."""
    schedule, plan = compiled.schedule, compiled.plan
    sub = schedule.subops[subop_index(compiled, node)]
    boundary = next(b for b in plan.boundaries if b.subop == sub.index)
    tasks = [t for t in plan.tasks if t.subop == sub.index]
    shown = [f"core {t.core} ({plan.kind(t.core).value}): units {t.begin} to {t.end}" for t in tasks[:TASKS_SHOWN]]
    if len(tasks) > TASKS_SHOWN:
        shown.append(f"and {len(tasks) - TASKS_SHOWN} more")
    return AicoreExplanation(
        subop=sub.index,
        name=sub.name,
        nodes=sub.nodes,
        kernel=sub.kernel,
        selection=compiled.chooser.select(sub.body).explanation,
        grouping=(
            *(str(n) for n in compiled.grouping.notes if n.node in sub.nodes),
            *(f"{sub.name}: cannot be cut for {why}" for why in compiled.chooser.refused(sub.body)),
        ),
        options=without_effect(compiled.options, host=False),
        placement=schedule.notes[sub.index],
        launch=_launch_text(compiled, sub.index),
        tasks=tuple(shown),
        form=boundary.form.value,
        reason=boundary.reason,
        cost_ns=boundary.cost_ns,
        alternatives=tuple((form.value, cost) for form, cost in boundary.alternatives),
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
    """How a tiling that depends on data comes about, or by which one a sub-operator is dealt out."""
    schedule = compiled.schedule
    sub, tiling = schedule.subops[subop], schedule.tilings[subop]
    if sub.body.op in TILINGS:
        if not isinstance(tiling, AicoreTiling):
            return f"computed by NumPy between two launches (option tiling={compiled.options.tiling!r})"
        return "computed by an aicpu hart beside the cores, from data of this launch; out of range it ends the program"
    if not isinstance(tiling, AicoreTiling) or not tiling.dealt_out:
        return ""
    makers = {v: s.name for s in schedule.subops if s.body.op in TILINGS for v in s.values[-1:]}
    maker = next((makers[v] for v in sub.values if v in makers), "an input")
    return f"work is dealt out to {tiling.units} shares at run time, by the table of {maker!r}"


def _event_text(event: Event, after: str) -> str:
    who = "all cores" if event.setters is None else f"{event.setters.value} cores"
    what = f"flag {event.flag}" if event.to is None else f"word {event.flag} to {event.to.value}"
    return f"event {event.index}: {who} behind {after!r}, mode {event.mode.value}, {what}"
