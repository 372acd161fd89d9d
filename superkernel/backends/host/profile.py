"""From time stamps to a `Report`: how long each step took, what waits waited for, fused against one by one.

The profiled entry leaves one stamp before the first step and one behind every step of every core (all cores read the
same, invariant counter). The definitions of pure cost and imbalance stand in `report.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.computed_in import computed_in, formats_in_force, formats_text
from superkernel.backends.host.report import BoundaryReport, MedianInterval, Report, Work
from superkernel.display.spans import SignalFlow, Span, SpanKind, Track
from superkernel.display.tracing import Trace
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

PROFILED_RUNS = 31
WARMUP_RUNS = 5
Array = NDArray[Any]


@dataclass
class RunFigures:
    """One profiled run, in ns. Arrays are per core, or per wait index."""

    total: float
    busy: NDArray[np.float64]
    pure: NDArray[np.float64]
    imbalance: NDArray[np.float64]
    sets: NDArray[np.float64]
    subop: dict[int, float] = field(default_factory=dict)  # busiest core's time in each sub-operator's bodies


def measure(compiled: HostCompiled, io: Sequence[Array], rounds: int) -> Report:
    """Profile `PROFILED_RUNS` launches and, where `rounds` > 0, compare fused with one by one. States change."""
    executable, plan = compiled.executable, compiled.plan
    ns_per_tick = 1e9 / _core.tsc_hz()
    for _ in range(WARMUP_RUNS):
        executable.run(io)
    figures = [read_stamps(plan, executable.profiled(io), ns_per_tick) for _ in range(PROFILED_RUNS)]
    pure, imbalance = (np.median([getattr(f, name) for f in figures], axis=0) for name in ("pure", "imbalance"))
    busy = np.median([f.busy for f in figures], axis=0)
    set_ns = np.median([f.sets for f in figures], axis=0)
    fused = one_by_one = None
    if rounds > 0:
        fused, one_by_one = map(MedianInterval.of, executable.compare(io, rounds, WARMUP_RUNS))
    subops = compiled.schedule.subops
    boundaries = tuple(
        BoundaryReport(
            b.subop,
            subops[b.subop].name,
            b.form.value,
            b.reason,
            len(b.waits),
            float(sum(pure[w] for w in b.waits)),
            float(sum(imbalance[w] for w in b.waits)),
        )
        for b in plan.boundaries
    )
    return Report(
        graph=compiled.graph.name,
        target=f"host {compiled.target.tier}",
        cores=compiled.cores,
        nodes=len(compiled.source.nodes),
        subops=len(subops),
        distinct_kernels=len({s for s in compiled.image.symbols if s is not None}),
        waits=plan.waits,
        sets=sum(plan.sets),
        naive_syncs=max(0, len(subops) - 1),
        run_ns=float(np.median([f.total for f in figures])),
        busy_ns=tuple(map(float, busy)),
        pure_ns=float((pure.sum() + set_ns.sum()) / compiled.cores),
        imbalance_ns=float(imbalance.sum() / compiled.cores),
        boundaries=boundaries,
        fallbacks=tuple(
            f"{subops[i].name} ({subops[i].body.op}), {sum(o.type.nbytes for o in subops[i].body.operands)} bytes"
            for i in compiled.image.host_calls
        ),
        fused=fused,
        one_by_one=one_by_one,
        work=_work(compiled, figures),
        precision=formats_text(compiled.options.precision, tuple(formats_in_force(compiled.schedule).items())),
    )


def _work(compiled: HostCompiled, figures: Sequence[RunFigures]) -> tuple[Work, ...]:
    """A row per sub-operator."""
    graph, schedule = compiled.graph, compiled.schedule
    nodes = {node.name: node for node in graph.nodes}
    cores: dict[int, set[int]] = {}
    for task in schedule.tasks:
        cores.setdefault(task.subop, set()).add(task.core)
    rows = []
    for sub in schedule.subops:
        flops = 0.0
        for node in (nodes[name] for name in sub.nodes if name in nodes):
            flops += graph.definition(node).flops(graph.input_types(node), graph.output_types(node), node.attrs)
        busy = float(np.median([f.subop.get(sub.index, 0.0) for f in figures]))
        nbytes = sum(operand.type.nbytes for operand in sub.body.operands)
        on = len(cores.get(sub.index, ()))
        what = computed_in(sub, schedule.tilings[sub.index])
        rows.append(Work(sub.index, sub.name, sub.kernel, on, busy, flops, nbytes, what))
    return tuple(rows)


def read_stamps(plan: Plan, events: NDArray[np.uint64], ns_per_tick: float) -> RunFigures:
    """The figures of one run from its stamps, [cores, words] in ticks."""
    stamps = [_core_stamps(plan, events, core, ns_per_tick) for core in range(plan.cores)]
    set_at = _signalled(plan, stamps)
    waits = 1 + max((s.index for p in plan.programs for s in p if isinstance(s, Wait)), default=-1)
    figures = RunFigures(0.0, np.zeros(plan.cores), np.zeros(waits), np.zeros(waits), np.zeros(plan.cores))
    for core, program in enumerate(plan.programs):
        for i, step in enumerate(program):
            begin, end = stamps[core][i], stamps[core][i + 1]
            if isinstance(step, TaskStep):
                figures.busy[core] += end - begin
                subop = plan.tasks[step.task].subop
                figures.subop[subop] = max(figures.subop.get(subop, 0.0), end - begin)
            elif isinstance(step, Set):
                figures.sets[core] += end - begin
            else:
                late = min(max(set_at[step.producer, step.count] - begin, 0.0), end - begin)
                figures.imbalance[step.index] = late
                figures.pure[step.index] = end - begin - late
    first = min(s[0] for s in stamps)
    figures.total = max(s[-1] for s in stamps) - first
    return figures


def _signalled(plan: Plan, stamps: Sequence[Sequence[float]]) -> dict[tuple[int, int], float]:
    """When each set was done, in ns, by core and count."""
    return {
        (core, step.count): stamps[core][i + 1]
        for core, program in enumerate(plan.programs)
        for i, step in enumerate(program)
        if isinstance(step, Set)
    }


def traced(compiled: HostCompiled, io: Sequence[Array]) -> Trace:
    """A warm launch as a timeline."""
    for _ in range(WARMUP_RUNS):
        compiled.executable.run(io)
    events = compiled.executable.profiled(io)
    return trace_of(compiled, events, 1e9 / _core.tsc_hz())


def trace_of(compiled: HostCompiled, events: NDArray[np.uint64], ns_per_tick: float) -> Trace:
    """The timeline of a profiled launch from its stamps, [cores, words] in ticks."""
    plan, names = compiled.plan, {sub.index: sub.name for sub in compiled.schedule.subops}
    stamps = [_core_stamps(plan, events, core, ns_per_tick) for core in range(plan.cores)]
    set_at = _signalled(plan, stamps)
    flow_of = {place: number for number, place in enumerate(sorted(set_at))}
    spans: list[Span] = []
    flows: list[SignalFlow] = []
    for core, program in enumerate(plan.programs):
        for i, step in enumerate(program):
            begin, end = stamps[core][i] / 1e3, stamps[core][i + 1] / 1e3
            if isinstance(step, TaskStep):
                subop = plan.tasks[step.task].subop
                spans.append(Span(core, begin, end, names[subop], SpanKind.WORK, subop))
            elif isinstance(step, Set):
                spans.append(Span(core, begin, end, f"set {step.count}", SpanKind.SIGNAL))
                flows.append(
                    SignalFlow(core, end, f"core {core}, set {step.count}", flow_of[core, step.count], taken=False)
                )
            else:
                place = (step.producer, step.count)
                subop, name = plan.reasons[step.index].wait.subop, f"wait for core {step.producer}, set {step.count}"
                late = min(max(set_at[place] / 1e3, begin), end)
                if late > begin:
                    spans.append(Span(core, begin, late, name, SpanKind.IMBALANCE, subop))
                spans.append(Span(core, late, end, name, SpanKind.WAIT, subop))
                flows.append(
                    SignalFlow(core, end, f"core {step.producer}, set {step.count}", flow_of[place], taken=True)
                )
    title = f"{compiled.graph.name} on the host, {compiled.cores} cores"
    cores = {core: f"core {core}" for core in range(plan.cores)}
    return Trace(title, cores, tuple(Track(core, 0, "worker") for core in cores), tuple(spans), tuple(flows), names)


def _core_stamps(plan: Plan, events: NDArray[np.uint64], core: int, ns_per_tick: float) -> list[float]:
    """A core's stamps in ns since the earliest first stamp of all cores."""
    start = int(events[:, 0].min())
    count = len(plan.programs[core]) + 1
    return [(int(e) - start) * ns_per_tick for e in events[core, :count]]
