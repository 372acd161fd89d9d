"""An accelerator's report as a page (`superkernel.display.page`): the run once more, with its event trace.

The simulator gives the same run again, so that the page shows the one that the report is of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from superkernel.backends.aicore.critical import CriticalReport, critical_of
from superkernel.backends.aicore.critical_path import critical_path
from superkernel.backends.aicore.measure import span_of
from superkernel.backends.aicore.timeline import Activity, Timeline, summed
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
    Activity.COMPUTE: ("compute", "computing"),
    Activity.MOVEMENT: ("movement", "copying between memories"),
    Activity.MISSES: ("misses", "waiting for instructions"),
    Activity.PURE: ("pure sync", "synchronisation itself"),
    Activity.IMBALANCE: ("imbalance", "waiting for cores that still work"),
    Activity.CONTROL: ("control", "control units' own instructions"),
}
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
        trace = traced(compiled, run)
        us = {row.subop: (row.last - row.first) / report.clock_mhz for row in report.subops}
        lines = [Timeline.of(compiled, launch) for launch in run.launches]
        split = summed(line.split() for line in lines)
        gains = _gains(critical_of(compiled, lines, run.numpy_us), report)
        limits = [(LIMITS[activity][1], split[activity] / (report.cycles or 1)) for activity in Activity]
        return Page(
            trace,
            headline(limits, gains),
            _bars(self, report, run),
            gains,
            (_boundaries(report, compiled), _work(report), kernels_table(report.kernels)),
            (flow_of(compiled.schedule, us), memory_of(compiled.schedule, trace), _roofline(compiled, trace)),
        )

    def simulated(self, compiled: AicoreCompiled, *, single: bool = False) -> SimRun:
        """A run of the program, or of another one of the same schedule, for its times."""
        io = [array.copy() for array in self.io]
        return compiled.executable.simulate(io, mode="timing", races=False, trace=True, warm=self.warm, single=single)


def traced(compiled: AicoreCompiled, run: SimRun) -> Trace:
    """A run for timing that was traced as a timeline, with its critical path where it is one launch."""
    between: dict[int, list[tuple[int, float]]] = {}
    for call in run.between:
        between.setdefault(call.launch, []).append((call.subop, call.us))
    names = {sub.index: sub.name for sub in compiled.schedule.subops}
    title = f"{compiled.graph.name} on {compiled.target.name}, simulated"
    path: list[tuple[int, float, float]] = []
    if len(run.launches) == 1:
        us = compiled.target.nanoseconds(1) / 1000
        pieces = critical_path(Timeline.of(compiled, run.launches[0]))
        path = sorted(((p.core, p.begin * us, p.end * us) for p in pieces), key=lambda row: row[1])
    rows = [records(launch.trace) for launch in run.launches]
    trace = trace_of(rows, compiled.target, names, title, between, path, values_read(compiled.schedule))
    mode = run.timed_without_data([sub.name for sub in compiled.schedule.subops])
    notes = (*trace.notes, mode, _ends(compiled, run))
    return replace(trace, spans=with_symbols(trace.spans, compiled.symbols), notes=notes)


def _ends(compiled: AicoreCompiled, run: SimRun) -> str:
    """How a report's time comes out of the timeline's."""
    us = compiled.target.nanoseconds(1) / 1000
    spans = [span_of(compiled, launch) for launch in run.launches]
    inside, ahead = (sum(column) * us for column in zip(*((cycles, begin) for begin, cycles in spans), strict=True))
    behind = sum(launch.cycles for launch in run.launches) * us - inside - ahead
    return (
        "a report's cycles are those from the program's begin on the first core to its end on the last one, "
        f"{inside:.2f} us; in place of what cores do ahead of it ({ahead:.2f} us) and behind it ({behind:.2f} us) it "
        "adds the cost of a launch"
    )


def _gains(found: CriticalReport, report: SimReport) -> tuple[Gain, ...]:
    """What would help, largest first: estimates from the critical path."""
    whole = found.cycles or 1
    gains = [Gain("all instructions in the cache", found.path.get("misses", 0) / whole)]
    for row in found.boundaries[:ROWS]:
        gains.append(Gain(f"no core waits ahead of sub-operator {row.subop} ({row.name})", row.removed))
    gains.append(Gain("every signal visible at once", found.path.get("pure", 0) / whole))
    for subop, name, cycles in found.by_subop[:ROWS]:
        gains.append(Gain(f"sub-operator {subop} ({name}) twice as fast", cycles / whole / 2))
    if report.numpy_us:
        gains.append(Gain("kernels for what NumPy computes", report.numpy_us / report.time_us))
    return tuple(sorted((g for g in gains if g.share > 0), key=lambda g: (-g.share, g.what)))


def _bars(source: PageSource, report: SimReport, chosen: SimRun) -> tuple[StackedBar, ...]:
    """Ways to run the same sub-operators; the chosen one alone where the report compares nothing."""
    compiled, bars = source.compiled, []
    if report.baseline is not None:
        run = source.simulated(compiled, single=True)
        bars.append(_bar("one by one", compiled, run, report.numpy_us, single=True))
        options = compiled.options
        if options.sync_level != "full":
            full = with_other_code(compiled, replace(options, sync="full", launches="fused", fallback="allow"))
            bars.append(_bar("full barriers", full, source.simulated(full), report.numpy_us))
    return (*bars, _bar("as chosen", compiled, chosen, report.numpy_us, launching=report.baseline is not None))


def _bar(
    name: str, compiled: AicoreCompiled, run: SimRun, numpy_us: float, *, single: bool = False, launching: bool = True
) -> StackedBar:
    """A run with its parts, mean over the cores. `numpy_us`: as the report has it, so that no bar differs by its noise;
    `launching`: with what its launches cost."""
    us = compiled.target.nanoseconds(1) / 1000
    split = summed(Timeline.of(compiled, launch, single=single).split() for launch in run.launches)
    parts = [(LIMITS[activity][0], cycles * us) for activity, cycles in split.items()]
    launch_us = len(run.launches) * float(compiled.target.dispatch.launch_ns) / 1000 if launching else 0.0
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
    return PageTable("Boundaries", head, rows, "Means over the cores.")


def _work(report: SimReport) -> PageTable:
    us = 1 / report.clock_mhz
    rows = tuple(
        (
            r.subop, r.name, (r.last - r.first) * us, None if r.single_cycles is None else r.single_cycles * us,
            r.kind, r.cores, r.misses, r.kernel,
        )
        for r in report.subops
    )  # fmt: skip
    return PageTable("Kernels", ("", "sub-operator", "us", "alone us", "type", "cores", "misses", "kernel"), rows)


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
