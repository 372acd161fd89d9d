"""An accelerator's report as a page (`superkernel.display.page`): the run once more, with its event trace.

The simulator gives the same run again, so that the page shows the one that the report is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.critical import CriticalReport, critical_of
from superkernel.backends.aicore.critical_path import critical_path
from superkernel.backends.aicore.timeline import PART_NAMES, Timeline, span_of, summed
from superkernel.backends.aicore.variants import with_other_code
from superkernel.backends.page_parts import (
    busy_times,
    flops_of,
    flow_of,
    kernels_table,
    memory_of,
    reading_in_words,
    values_read,
)
from superkernel.core.counted import counted
from superkernel.display.charts import Roofline, RooflinePoint, StackedBar
from superkernel.display.page import Gain, Page, PageTable, headline
from superkernel.display.spans import with_symbols
from superkernel.display.tracing import Trace
from superkernel.sim.trace import records, trace_of

if TYPE_CHECKING:
    from superkernel.backends.aicore.compiled import AicoreCompiled
    from superkernel.backends.aicore.executable import SimRun
    from superkernel.backends.aicore.report import SimReport, SubopRow

ROWS = 8  # boundaries and sub-operators in the list of gains
LIMITS = {
    "compute": "computing",
    "movement": "copying between memories",
    "misses": "waiting for instructions",
    "pure sync": "synchronisation itself",
    "imbalance": "waiting for cores that still work",
    "control": "control units' own instructions",
    "launch": "launching",
    "NumPy": "what NumPy computes on the host",
}
"""Parts of a report's `split`, as what limits a kernel."""
FORMS = {
    "none": "no core waits: earlier waits order it, or the same core wrote what is read",
    "fence": "no core waits for another one; each waits for its own engines",
    "group": "cores wait for those of their group",
    "type": "cores wait for all of one type",
    "across": "cores of one type wait for all of the other",
    "all": "every core waits for all others",
    "several": "several events, each for those that need it",
}


@dataclass(frozen=True)
class PageSource:
    """What a page needs beside the report: the program, and its io table as it was ahead of the run."""

    compiled: AicoreCompiled
    io: Sequence[NDArray[Any]]
    warm: bool = False

    def page(self, report: SimReport) -> Page:
        """The report's page."""
        compiled = self.compiled
        run = self.simulated(compiled)
        numpy_us = {row.subop: row.numpy_us for row in report.subops}
        run = replace(run, between=tuple(replace(call, us=numpy_us[call.subop]) for call in run.between))
        trace = traced(compiled, run)
        us = {subop: end - begin for subop, (begin, end) in busy_times(trace).items()}
        lines = [Timeline.of(compiled, launch) for launch in run.launches]
        gains = _gains(critical_of(compiled, lines, run.numpy_us), report)
        limits = [(LIMITS[name], part / report.time_us) for name, part in report.split.items()]
        return Page(
            trace,
            headline(limits, gains),
            _bars(self, report),
            gains,
            (_boundaries(report, compiled), _work(report, us), kernels_table(report.kernels)),
            (flow_of(compiled.schedule, us), memory_of(compiled.schedule, trace), _roofline(compiled, trace)),
        )

    def simulated(self, compiled: AicoreCompiled, *, single: bool = False) -> SimRun:
        """A run of the program, or of another one of the same schedule, for its times."""
        io = [array.copy() for array in self.io]
        return compiled.executable.simulate(io, mode="timing", races=False, trace=True, warm=self.warm, single=single)


def traced(compiled: AicoreCompiled, run: SimRun) -> Trace:
    """A run for timing that was traced as a timeline, with its critical path where it is one launch. It lasts as long
    as a report of it says, but for what launches cost."""
    between: dict[int, list[tuple[int, float]]] = {}
    for call in run.between:
        between.setdefault(call.launch, []).append((call.subop, call.us))
    names = {sub.index: sub.name for sub in compiled.schedule.subops}
    title = f"{compiled.graph.name} on {compiled.target.name}, simulated"
    path: list[tuple[int, float, float]] = []
    windows = [span_of(compiled, launch) for launch in run.launches]
    if len(run.launches) == 1:
        us, first = compiled.target.nanoseconds(1) / 1000, windows[0][0]
        pieces = critical_path(Timeline.of(compiled, run.launches[0]))
        path = sorted(((p.core, (p.begin - first) * us, (p.end - first) * us) for p in pieces), key=lambda row: row[1])
    rows = [_inside(records(launch.trace), *window) for launch, window in zip(run.launches, windows, strict=True)]
    trace = trace_of(rows, compiled.target, names, title, between, path, values_read(compiled.schedule))
    mode = run.timed_without_data([sub.name for sub in compiled.schedule.subops])
    notes = (*trace.notes, mode)
    return replace(trace, spans=with_symbols(trace.spans, compiled.symbols), notes=notes)


def _inside(rows: NDArray[Any], begin: int, cycles: int) -> NDArray[Any]:
    """What records hold of the cycles that a report counts, from the first of them on: neither the start code ahead of
    them nor the count of harts behind, which are part of what a launch costs."""
    kept = rows[(rows["end"] >= begin) & (rows["begin"] <= begin + cycles)].copy()
    for column in ("begin", "end"):
        kept[column] = np.clip(kept[column], begin, begin + cycles) - begin
    return kept


def _gains(found: CriticalReport, report: SimReport) -> tuple[Gain, ...]:
    """What would help, largest first, as parts of the report's time: estimates from the critical path."""
    cycle = 1 / report.clock_mhz / report.time_us
    gains = [Gain("all instructions in the cache", found.path.get("misses", 0) * cycle)]
    for row in found.boundaries[:ROWS]:
        gain = row.removed * found.cycles * cycle
        gains.append(Gain(f"no core waits ahead of sub-operator {row.subop} ({row.name})", gain))
    gains.append(Gain("every signal visible at once", found.instantly * found.cycles * cycle))
    for subop, name, cycles in found.by_subop[:ROWS]:
        if subop < len(report.subops):
            gains.append(Gain(f"sub-operator {subop} ({name}) twice as fast", cycles * cycle / 2))
        else:
            gains.append(Gain("entering the kernel and leaving it for free", cycles * cycle))
    gains.append(Gain("launching for free", report.split.get("launch", 0.0) / report.time_us))
    gains.append(Gain("kernels for what NumPy computes", report.numpy_us / report.time_us))
    return tuple(sorted((g for g in gains if g.share > 0), key=lambda g: (-g.share, g.what)))


def _bars(source: PageSource, report: SimReport) -> tuple[StackedBar, ...]:
    """Ways to run the same sub-operators; the chosen one alone where the report compares nothing."""
    compiled, bars = source.compiled, []
    if report.baseline is not None:
        run = source.simulated(compiled, single=True)
        bars.append(_bar("one by one", compiled, run, report.numpy_us, single=True))
        options = compiled.options
        if options.sync_level != "full":
            full = with_other_code(compiled, replace(options, sync="full", launches="fused", fallback="allow"))
            bars.append(_bar("full barriers", full, source.simulated(full), report.numpy_us))
    return (*bars, StackedBar("as chosen", report.time_us, tuple(report.split.items())))


def _bar(name: str, compiled: AicoreCompiled, run: SimRun, numpy_us: float, *, single: bool = False) -> StackedBar:
    """Another run with the parts of its time. `numpy_us`: as the report has it, so that no bar differs by its noise."""
    us = compiled.target.nanoseconds(1) / 1000
    split = summed(Timeline.of(compiled, launch, single=single).split() for launch in run.launches)
    parts = [(PART_NAMES[activity], cycles * us) for activity, cycles in split.items()]
    launch_us = len(run.launches) * float(compiled.target.dispatch.launch_ns) / 1000
    parts += [("launch", launch_us), ("NumPy", numpy_us)]
    return StackedBar(name, sum(part for _, part in parts), tuple(parts))


def _boundaries(report: SimReport, compiled: AicoreCompiled) -> PageTable:
    boundaries = {b.subop: b for b in compiled.plan.boundaries}
    reads, us = reading_in_words(compiled.schedule), 1 / report.clock_mhz

    def why(row: SubopRow) -> str:
        events = len(boundaries[row.subop].events)
        if not events:
            return FORMS.get(row.form, row.form)
        cause = reads.get(row.subop, "it writes where others may still read")
        return f"{FORMS.get(row.form, row.form)}, {counted(events, 'event')}; {cause}"

    rows = tuple((r.subop, r.name, r.form, r.pure * us, r.imbalance * us, why(r)) for r in report.subops)
    head = ("", "ahead of", "form", "pure us", "imbalance us", "why")
    note = (
        "Means over the cores that wait there, whether others work meanwhile or not; what no work hides is in the bars."
    )
    return PageTable("Boundaries", head, rows, note)


def _work(report: SimReport, busy_us: Mapping[int, float]) -> PageTable:
    us = 1 / report.clock_mhz
    rows = tuple(
        (
            r.subop, r.name, busy_us.get(r.subop, 0.0), None if r.single_cycles is None else r.single_cycles * us,
            r.kind, r.cores, r.misses, r.kernel,
        )
        for r in report.subops
    )  # fmt: skip
    head = ("", "sub-operator", "us", "alone us", "type", "cores", "misses", "kernel")
    note = "From the first work of any core to the last one's; alone: a launch of its own, with cold caches."
    return PageTable("Kernels", head, rows, note)


def _roofline(compiled: AicoreCompiled, trace: Trace) -> Roofline:
    """Under the device's peaks: of a sub-operator's time, from its first engine's begin to its last one's end."""
    target, times = compiled.target, busy_times(trace)
    flops = flops_of(compiled.graph, compiled.schedule)
    took = {subop: end - begin for subop, (begin, end) in times.items()}
    whole = sum(took.values()) or 1.0
    points = []
    for sub in compiled.schedule.subops:
        us, nbytes = took.get(sub.index, 0.0), sum(operand.type.nbytes for operand in sub.body.operands)
        if us and nbytes:
            operations = flops[sub.index]
            points.append(RooflinePoint(sub.name, operations / nbytes, operations / us / 1e3, us / whole))
    roofs = (
        ("cube cores, f16", target.cube_flops_per_ns(target.cube.k_f16)),
        ("vector cores, 16 bits", target.vector_ops_per_ns(target.vector.lanes_16bit)),
    )
    return Roofline(tuple(points), roofs, (("L2", target.l2.aggregate_gb_per_s), ("HBM", target.hbm_gb_per_s)))
