"""From the simulator's counters to a `SimReport`; the definitions of its figures stand in `report.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.report import FATES, FETCH_STALLS, Baseline, CoreRow, PartRow, SimReport, SubopRow
from superkernel.backends.aicore.timeline import PART_NAMES, Timeline, span_of, summed
from superkernel.codegen.aicore.program_spec import PHASE_BEHIND
from superkernel.compilation.kernel_uses import KernelUses
from superkernel.sim.counters import STALLS, ControlCounts, CoreCounts, LaunchResult, MarkerCounts
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.target.aicore import AicoreTarget

_WAITS = ("cross_wait", "wait_memory")
NUMPY_TRIALS = 5  # the first one finds cold caches


def measure(
    compiled: AicoreCompiled,
    io: Sequence[NDArray[Any]],
    *,
    baseline: bool,
    split: bool = False,
    warm: bool = False,
    delays: int = 0,
) -> SimReport:
    """Run on the simulator and account for it. Outputs and states are those of the fused run. `warm`: as in
    `SimExecutable.simulate`; `delays`, of the fused run: as in `Device`; `split`: with the parts of its time, and what
    NumPy computes is timed several times. In the executable's mode, which must have
    times; for timing only, outputs and states stay."""
    executable, kept = compiled.executable, None
    states = io[len(compiled.graph.inputs) + len(compiled.graph.outputs) :]
    if baseline:
        kept = [state.copy() for state in states]
    mode = executable.mode
    trials = NUMPY_TRIALS if split else 1
    run = executable.simulate(
        io, mode=mode, trace=split, warm=warm, delays=delays, races=mode == "both", numpy_trials=trials
    )
    names = [sub.name for sub in compiled.schedule.subops]
    report = replace(
        report_of(compiled, run.launches),
        warm=warm,
        simulation=mode,
        needed_data=tuple(names[index] for index in run.needed_data),
        data_dependent=tuple(names[index] for index in run.data_dependent),
    )
    numpy_us = {call.subop: call.us for call in run.between}
    rows = tuple(replace(row, numpy_us=numpy_us.get(row.subop, 0.0)) for row in report.subops)
    report = replace(report, subops=rows, numpy_us=run.numpy_us, time_us=report.time_us + run.numpy_us)
    if split:
        found = summed(Timeline.of(compiled, launch).split() for launch in run.launches)
        us = compiled.target.nanoseconds(1) / 1000
        parts = {PART_NAMES[activity]: cycles * us for activity, cycles in found.items()}
        report = replace(report, split={**parts, "NumPy": run.numpy_us})
    if not baseline:
        return report
    assert kept is not None
    spare = [*io[: len(compiled.graph.inputs)], *(a.copy() for a in io[len(compiled.graph.inputs) :])]
    for state, old in zip(spare[len(spare) - len(kept) :], kept, strict=True):
        state[...] = old
    single = executable.simulate(spare, mode=mode, single=True, warm=warm, races=mode == "both")
    return _with_baseline(compiled, report, single.launches)


def report_of(compiled: AicoreCompiled, launches: Sequence[LaunchResult]) -> SimReport:
    """The report of a fused run's launches."""
    target, plan = compiled.target, compiled.plan
    cycles = sum(span_of(compiled, launch)[1] for launch in launches)
    rows = tuple(_subop_row(compiled, launches, sub.index) for sub in compiled.schedule.subops)
    memory = {name: sum(getattr(launch.memory, name) for launch in launches) for name in launches[0].memory.__slots__}
    return SimReport(
        compiled.graph.name,
        target.name,
        int(target.device.clock_mhz),
        len(launches),
        cycles,
        target.nanoseconds(cycles) / 1000,
        sum(launch.instructions for launch in launches),
        compiled.image.image.code_bytes,
        rows,
        tuple(_core_row(plan, core, launches) for core in range(plan.total)),
        memory,
        tuple(compiled.schedule.subops[i].name for i in compiled.image.host_calls),
        _prefetched(core.control for launch in launches for core in launch.cores),
        compiled.image.code.copies,
        parts=tuple(_part_rows(compiled, launches)),
        error_bound=compiled.error_bound,
        selections=compiled.selections,
        weights=compiled.weights.reason,
        kernels=KernelUses(compiled),
    )


def _part_rows(compiled: AicoreCompiled, launches: Sequence[LaunchResult]) -> Iterator[PartRow]:
    """Each part with what it really took."""
    target, launch_of = compiled.target, compiled.plan.launch_of
    for part in compiled.parts:
        numbers = {launch_of[i] for i in part.subops if i in launch_of}
        if part.predicted is None or not numbers:
            continue
        cycles = sum(span_of(compiled, launches[n])[1] for n in numbers)
        ways = (part.predicted.fused_ns, part.predicted.single_ns)
        chosen, other = ways if part.fused else ways[::-1]
        yield PartRow(
            part.name,
            len(numbers),
            chosen / 1000,
            other / 1000 if len(part.subops) > 1 else None,
            (target.nanoseconds(cycles) + len(numbers) * float(target.dispatch.launch_ns)) / 1000,
        )


def _subop_row(compiled: AicoreCompiled, launches: Sequence[LaunchResult], subop: int) -> SubopRow:
    sub, plan = compiled.schedule.subops[subop], compiled.plan
    boundary = next(b for b in plan.boundaries if b.subop == subop)
    latency = _latency_cycles(compiled.target, plan, boundary.events)
    found: list[tuple[int, tuple[MarkerCounts, ...]]] = []
    start = 0
    for launch in launches:
        begin, cycles = span_of(compiled, launch)
        for core in launch.cores:
            markers = tuple(m for m in core.of_sub_operator(subop) if m.phase)
            if markers:
                found.append((start - begin, markers))
        start += cycles
    waits = [float(sum(m.control.stalls[w] for m in markers for w in _WAITS)) for _, markers in found]
    pure = [min(wait, latency) for wait in waits]
    marks = [(at, m) for at, markers in found for m in markers]
    busy: dict[str, int] = {}
    for _, markers in found:
        for name in {n for m in markers for n in m.engines}:
            busy[name] = max(busy.get(name, 0), sum(m.engines[name].busy for m in markers if name in m.engines))
    tiling = compiled.schedule.tilings[subop]
    return SubopRow(
        subop,
        sub.name,
        sub.kernel,
        getattr(getattr(tiling, "launch_type", None), "value", "host"),
        boundary.form.value,
        len({t.core for t in plan.tasks if t.subop == subop}),
        min((at + m.control.first_cycle for at, m in marks if m.control.first_cycle is not None), default=0),
        max((at + m.control.last_cycle for at, m in marks), default=0),
        _mean(waits),
        _mean(pure),
        _mean([w - p for w, p in zip(waits, pure, strict=True)]),
        len(found),
        sum(m.control.misses for _, m in marks),
        _mean([float(sum(m.control.stalls[s] for m in markers for s in FETCH_STALLS)) for _, markers in found]),
        _prefetched(m.control for _, m in marks),
        sum(m.control.instructions for _, m in marks),
        {name: cycles for name, cycles in sorted(busy.items()) if cycles},
        symbols=compiled.symbols[subop],
    )


def _prefetched(counts: Iterable[ControlCounts]) -> dict[str, int]:
    """Prefetched lines by what became of them."""
    rows = list(counts)
    return {fate: sum(getattr(row, f"prefetched_{fate}") for row in rows) for fate in FATES}


def _latency_cycles(target: AicoreTarget, plan: AicorePlan, events: Iterable[int]) -> int:
    """What the boundary's events cost a core that finds everybody ready: they run side by side."""
    return max((target.flag_cycles(plan.events[e].mode.value) for e in events), default=0)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _core_row(plan: AicorePlan, number: int, launches: Sequence[LaunchResult]) -> CoreRow:
    """A core inside the launches: without the start code and what follows the end."""
    cores: list[CoreCounts] = [launch.cores[number] for launch in launches]
    outside = len(plan.boundaries)
    inside = [m for c in cores for m in c.markers if m.phase and (m.sub_operator, m.phase) != (outside, PHASE_BEHIND)]

    def engines(field: str) -> dict[str, int]:
        names = [n for n in cores[0].engines if any(c.engines[n].commands for c in cores)]
        return {n: sum(getattr(c.engines[n], field) for c in cores) for n in names}

    return CoreRow(
        number,
        plan.kind(number).value,
        sum(m.control.cycles for m in inside),
        sum(m.control.instructions for m in inside),
        sum(m.control.misses for m in inside),
        {s: n for s in STALLS if (n := sum(m.control.stalls[s] for m in inside))},
        engines("busy"),
        engines("waits_flag"),
        engines("waits_memory"),
    )


def _with_baseline(compiled: AicoreCompiled, report: SimReport, singles: Sequence[LaunchResult]) -> SimReport:
    target = compiled.target
    launched = [s.index for s in compiled.schedule.subops if compiled.image.calls[s.index] is not None]
    alone = dict(zip(launched, (span_of(compiled, launch)[1] for launch in singles), strict=True))
    cycles = sum(alone.values())
    launch_ns = float(target.dispatch.launch_ns)
    time_us = (target.nanoseconds(cycles) + launch_ns * len(launched)) / 1000 + report.numpy_us  # the same work
    rows = tuple(replace(row, single_cycles=alone.get(row.subop)) for row in report.subops)
    # The fused kernel is launched too: once per part.
    fused_us = report.time_us + launch_ns * report.launches / 1000
    steady_to_first = (float(target.dispatch.steady_ns), float(target.dispatch.first_ns))
    base = Baseline(len(launched), cycles, launch_ns, time_us, steady_to_first)
    split = {**report.split, "launch": fused_us - report.time_us} if report.split else {}
    return replace(report, subops=rows, time_us=fused_us, baseline=base, split=split)
