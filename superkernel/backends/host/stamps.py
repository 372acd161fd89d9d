"""What the time stamps of profiled launches say: figures of each launch, and a launch as a timeline.

Model: the profiled entry leaves one stamp before the first step and one behind every step of every core; all cores read
the same, invariant counter. The caller reads it ahead of the launch and behind it. So the time of a core is tiled: from
the caller's start to its first stamp and from the last core's last stamp to the caller's end it is *launch*; steps are
*busy*, *pure* or *imbalance* (`report.py`); from its own last stamp to the last core's it waits at the *end*.

Invariant: for each core these five sum to the launch's total.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.hang import PlanWords
from superkernel.backends.host.replay import LaunchReplay
from superkernel.backends.page_parts import flops_of
from superkernel.core.counted import counted
from superkernel.display.spans import SignalFlow, Span, SpanKind, Track, with_symbols
from superkernel.display.tracing import Trace
from superkernel.sync.plan import Plan, Set, TaskStep, Wait


@dataclass
class RunFigures:
    """One profiled launch, in ns. Arrays are per core; `pure` and `imbalance` per wait index where there are waits;
    `movement` is part of `busy`."""

    total: float
    busy: NDArray[np.float64]
    movement: NDArray[np.float64]
    pure: NDArray[np.float64]
    imbalance: NDArray[np.float64]
    sets: NDArray[np.float64]
    launch: NDArray[np.float64]
    end: NDArray[np.float64]
    subop: dict[int, float] = field(default_factory=dict)  # busiest core's time in each sub-operator's bodies


def read_stamps(
    plan: Plan,
    events: NDArray[np.uint64],
    ns_per_tick: float,
    edges: Sequence[int] | None = None,
    moving: Collection[int] = (),
) -> RunFigures:
    """The figures of one launch from its stamps, [cores, words] in ticks. `edges`: the caller's begin and end; without,
    the first and the last stamp. `moving`: sub-operators that compute nothing."""
    stamps = [core_stamps(plan, events, core, ns_per_tick) for core in range(plan.cores)]
    set_at = _signalled(plan, stamps)
    waits = 1 + max((s.index for p in plan.programs for s in p if isinstance(s, Wait)), default=-1)
    busy, movement, sets, launch, at_end = np.zeros((5, plan.cores))
    figures = RunFigures(0.0, busy, movement, np.zeros(waits), np.zeros(waits), sets, launch, at_end)
    for core, program in enumerate(plan.programs):
        for i, step in enumerate(program):
            begin, end = stamps[core][i], stamps[core][i + 1]
            if isinstance(step, TaskStep):
                figures.busy[core] += end - begin
                subop = plan.tasks[step.task].subop
                if subop in moving:
                    figures.movement[core] += end - begin
                figures.subop[subop] = max(figures.subop.get(subop, 0.0), end - begin)
            elif isinstance(step, Set):
                figures.sets[core] += end - begin
            else:
                late = min(max(set_at[step.producer, step.count] - begin, 0.0), end - begin)
                figures.imbalance[step.index] = late
                figures.pure[step.index] = end - begin - late
    first, last = min(s[0] for s in stamps), max(s[-1] for s in stamps)
    begin, end = first, last
    if edges is not None:
        zero = int(events[:, 0].min())
        begin, end = ((int(edge) - zero) * ns_per_tick for edge in edges)
    figures.total = end - begin
    figures.launch += [s[0] - begin + end - last for s in stamps]
    figures.end += [last - s[-1] for s in stamps]
    return figures


def read_single_stamps(
    stamps: NDArray[np.uint64], edges: Sequence[int], ns_per_tick: float, moving: Collection[int] = ()
) -> RunFigures:
    """The figures of the sub-operators one by one from begin and end of each core's share of each, [cores, subops, 2]
    in ticks. Who is done ahead of the last core of a sub-operator waits, which is *imbalance*, by core; from there to
    the begin of the next one it is *launch*, join and start; behind the last sub-operator it waits at the *end*."""
    begin, end = np.moveaxis((stamps - np.uint64(edges[0])).astype(np.int64) * ns_per_tick, 2, 0)
    total = (int(edges[1]) - int(edges[0])) * ns_per_tick
    left = end.max(axis=0, initial=0.0)
    entered = np.concatenate([[0.0], left])
    busy, waits, launch = end - begin, left - end, begin - entered[:-1]
    movement = busy[:, sorted(moving)].sum(axis=1)
    nothing = np.zeros(len(stamps))
    return RunFigures(
        total, busy.sum(axis=1), movement, np.zeros(0), waits[:, :-1].sum(axis=1), nothing,
        launch.sum(axis=1) + total - entered[-1], waits[:, -1:].sum(axis=1),
        dict(enumerate(busy.max(axis=0).tolist())),
    )  # fmt: skip


def moving_of(compiled: HostCompiled) -> set[int]:
    """Sub-operators that compute nothing."""
    return {subop for subop, flops in enumerate(flops_of(compiled.graph, compiled.schedule)) if not flops}


def _signalled(plan: Plan, stamps: Sequence[Sequence[float]]) -> dict[tuple[int, int], float]:
    """When each set was done, in ns, by core and count."""
    return {
        (core, step.count): stamps[core][i + 1]
        for core, program in enumerate(plan.programs)
        for i, step in enumerate(program)
        if isinstance(step, Set)
    }


def trace_of(
    compiled: HostCompiled, events: NDArray[np.uint64], ns_per_tick: float, notes: Sequence[str] = ()
) -> Trace:
    """The timeline of a profiled launch from its stamps, [cores, words] in ticks. `notes`: what a reader must know."""
    plan, names = compiled.plan, {sub.index: sub.name for sub in compiled.schedule.subops}
    stamps = [core_stamps(plan, events, core, ns_per_tick) for core in range(plan.cores)]
    set_at = _signalled(plan, stamps)
    words, moving = PlanWords(plan, compiled.schedule), moving_of(compiled)
    path = tuple(
        (core, begin / 1e3, end / 1e3) for core, begin, end in reversed(list(LaunchReplay(plan, stamps).path()))
    )
    flow_of = {place: number for number, place in enumerate(sorted(set_at))}
    spans: list[Span] = []
    flows: list[SignalFlow] = []
    for core, program in enumerate(plan.programs):
        for i, step in enumerate(program):
            begin, end = stamps[core][i] / 1e3, stamps[core][i + 1] / 1e3
            if isinstance(step, TaskStep):
                subop = plan.tasks[step.task].subop
                kind = SpanKind.MOVEMENT if subop in moving else SpanKind.WORK
                spans.append(Span(core, begin, end, names[subop], kind, subop))
            elif isinstance(step, Set):
                spans.append(Span(core, begin, end, f"set {step.count}", SpanKind.SIGNAL))
                flows.append(
                    SignalFlow(core, end, f"core {core}, set {step.count}", flow_of[core, step.count], taken=False)
                )
            else:
                place = (step.producer, step.count)
                why = {"why": words.why_waits(step.index)}
                subop, name = plan.reasons[step.index].wait.subop, f"wait for core {step.producer}, set {step.count}"
                late = min(max(set_at[place] / 1e3, begin), end)
                if late > begin:
                    spans.append(Span(core, begin, late, name, SpanKind.IMBALANCE, subop, why))
                spans.append(Span(core, late, end, name, SpanKind.WAIT, subop, why))
                flows.append(
                    SignalFlow(core, end, f"core {step.producer}, set {step.count}", flow_of[place], taken=True)
                )
    title = f"{compiled.graph.name} on the host, {counted(compiled.cores, 'core')}"
    cores = {core: f"core {core}" for core in range(plan.cores)}
    tracks = tuple(Track(core, 0, "worker") for core in cores)
    told = with_symbols(spans, compiled.symbols)
    return Trace(title, cores, tracks, told, tuple(flows), names, tuple(notes), path, measured=True)


def core_stamps(plan: Plan, events: NDArray[np.uint64], core: int, ns_per_tick: float) -> list[float]:
    """A core's stamps in ns since the earliest first stamp of all cores."""
    start = int(events[:, 0].min())
    count = len(plan.programs[core]) + 1
    return [(int(e) - start) * ns_per_tick for e in events[core, :count]]
