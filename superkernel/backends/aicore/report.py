"""What a run on the simulated accelerator cost, and where: `SimReport`.

Definitions. The *wait* of a core ahead of a sub-operator is what its control unit stood still for in cross-core flags.
A flag is visible a fixed time after its last setter signals (`sync.*_ns`); a wait is at most that long where everybody
had signalled when the core came: this part is *pure* synchronisation cost, min(wait, latency of the events). What goes
beyond is *imbalance*: others had more to do. Figures of a sub-operator are means over the cores that waited or worked.

The *cycles* of a launch are from the first core's entry into it to the last core's leaving; the start code and the
count of harts at the end are part of what a launch costs (`dispatch.launch_ns`) and are left out.

*Instruction misses* are lines that the control unit had to wait for. *Prefetched* lines are in time (`timely`), still
on their way when they are entered (`late`), both counted where they are used, or `useless`: never entered before they
went out or the launch ended, counted where they were fetched. The *baseline* launches the same kernels one by
one, each with cold instruction caches and `dispatch.launch_ns` on top; weights and activations stay in L2 between
launches, as they do between the sub-operators of the fused kernel.

Sub-operators without a kernel are computed by NumPy between launches. What that takes is measured on this machine, and
is part of every total in us, of the baseline's too: it computes the same; cycles are simulated ones alone.

A *part* is what a scope has in one piece (without scopes: everything). Its time, predicted and simulated, is with
`dispatch.launch_ns` for each of its launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from superkernel.compilation.kernel_uses import KernelUse, use_lines
from superkernel.core.counted import counted
from superkernel.core.errors import UnsupportedError
from superkernel.display import notebook
from superkernel.display.charts import Chart, ordered_parts
from superkernel.display.notebook import Share, Time
from superkernel.display.page import Page
from superkernel.transforms.selections import no_bound

ROWS_SHOWN = 40
HTML_HEAD = (
    "", "sub-operator", "type", "from", "to", "took", "of the run", "sync", "pure", "imbalance", "misses", "alone",
)  # fmt: skip
CYCLES_UNIT = "in cycles but for what has its unit; NumPy computes between launches, and has no cycles"
FETCH_STALLS = ("fetch", "prefetch_late")
FATES = ("timely", "late", "useless")
CORE_KINDS = ("cube", "vector")


class PageMaker(Protocol):
    """What makes a page of a report."""

    def page(self, report: SimReport) -> Page:
        """The report's page."""


@dataclass(frozen=True)
class SubopRow:
    """A sub-operator. Cycles; `first`, `last`: from its first core's entry to the last core's end of control work (its
    engines may go on), both 0 where NumPy computes it. `waiting`: cores that `wait`, `pure` and `imbalance` are means
    over. `busy`: of each engine, the core that it keeps busiest."""

    subop: int
    name: str
    kernel: str
    kind: str
    form: str
    cores: int
    first: int
    last: int
    wait: float
    pure: float
    imbalance: float
    waiting: int
    misses: int
    miss_cycles: float
    prefetched: dict[str, int]
    instructions: int
    busy: dict[str, int]
    single_cycles: int | None = None  # alone, cold, without the launch
    symbols: tuple[str, ...] = ()  # of its kernel functions, by role
    numpy_us: float = 0.0  # where NumPy computes it


@dataclass(frozen=True)
class CoreRow:
    """A core. `stalls`: cycles of its control unit by cause; `busy`, `flag_wait`, `memory_wait`: of its engines."""

    core: int
    kind: str
    cycles: int
    instructions: int
    misses: int
    stalls: dict[str, int]
    busy: dict[str, int]
    flag_wait: dict[str, int]
    memory_wait: dict[str, int]


@dataclass(frozen=True)
class PartRow:
    """A part of the graph, in one launch or one by one, and what the cost model had predicted for that and for the
    other way (None: there is none)."""

    part: str
    launches: int
    predicted_us: float
    other_way_us: float | None
    simulated_us: float


@dataclass(frozen=True)
class Baseline:
    """The sub-operators launched one by one. `cycles` are the launches' own, `launch_ns` what each costs on top;
    `launch_range_ns`: what it may cost instead, in a steady stream and as the first one."""

    launches: int
    cycles: int
    launch_ns: float
    time_us: float
    launch_range_ns: tuple[float, float]


@dataclass(frozen=True)
class SimReport:
    """See the module docstring. `memory`: bytes and events of L2 and HBM over the run. `prefetched`: lines of code, all
    cores; `copies` of the code. `error_bound`: what outputs may be off by, relative to their largest value, because
    values are narrow; None: no bound can be given, because of the `selections`. `simulation`: the mode that the figures
    are from, the option. For timing only: `needed_data`, sub-operators for whose tilings data was computed all the
    same; `data_dependent`, those whose cycles may depend on data that was not. `split`: us by what became of them,
    which sum to `time_us` (`timeline.py` defines the parts); empty for the report of a call."""

    graph: str
    target: str
    clock_mhz: int
    launches: int
    cycles: int
    time_us: float
    instructions: int
    code_bytes: int
    subops: tuple[SubopRow, ...]
    cores: tuple[CoreRow, ...]
    memory: dict[str, int]
    fallbacks: tuple[str, ...]
    prefetched: dict[str, int]
    copies: int
    weights: str = ""  # what was decided about prefetching them into L2
    baseline: Baseline | None = None
    parts: tuple[PartRow, ...] = ()
    error_bound: float | None = None
    selections: tuple[str, ...] = ()
    warm: bool = False
    numpy_us: float = 0.0
    simulation: str = "both"
    needed_data: tuple[str, ...] = ()
    data_dependent: tuple[str, ...] = ()
    kernels: Sequence[KernelUse] = ()
    split: dict[str, float] = field(default_factory=dict)
    source: PageMaker | None = field(default=None, compare=False, repr=False)

    @property
    def speedup(self) -> float | None:
        """Time of the baseline over time of the fused run."""
        return None if self.baseline is None else self.baseline.time_us / self.time_us

    @property
    def pure_cycles(self) -> float:
        """Pure synchronisation cost, summed over the boundaries."""
        return sum(row.pure for row in self.subops)

    def took_us(self, row: SubopRow) -> float:
        """From a sub-operator's begin to its end, or what NumPy took for it."""
        return row.numpy_us or (row.last - row.first) / self.clock_mhz

    def engine_share(self, kind: str, engine: str) -> float:
        """Part of the run that an engine is busy, mean over the cores of a type ("cube", "vector") that work."""
        rows = [r for r in self.cores if r.kind == kind and r.busy.get(engine)]
        return float(np.mean([r.busy[engine] / self.cycles for r in rows])) if rows else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, stable keys."""
        found = asdict(replace(self, source=None, kernels=tuple(self.kernels)))
        del found["source"]
        return {"schema": "superkernel.sim_report/2", **found, "speedup": self.speedup}

    def __getstate__(self) -> dict[str, Any]:
        """Without what makes the page, which holds the kernel: copies and pickles have figures and texts."""
        return {**vars(self), "source": None}

    def html(self, *charts: Chart) -> str:
        """A page of its own: what limits the kernel and what would help, the timeline, all tables, further charts. It
        simulates the run once more, and others that it is held against. Raises UnsupportedError for a report that
        `Kernel.report` did not make."""
        if self.source is None:
            hint = "`kernel.report()` makes one"
            raise UnsupportedError("a report without a timeline", location=f"report of {self.graph!r}", hint=hint)
        page = self.source.page(self)
        return replace(page, charts=(*charts, *page.charts)).html()

    def text(self) -> str:
        """For a terminal."""
        return "\n".join(_text(self))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks: what stands ahead of the tables as lines, the sub-operators as a table, engines to unfold."""
        title, *lines = _headlines(self)
        rows = [
            (
                row.subop, row.name, row.kind, *((None, None) if row.numpy_us else (row.first, row.last)),
                Time(self.took_us(row)), Share(self.took_us(row) / (self.time_us or 1)),
                row.form, row.pure, row.imbalance, row.misses, row.single_cycles,
            )
            for row in self.subops
        ]  # fmt: skip
        return notebook.shown(
            title,
            notebook.lines(lines),
            notebook.table(
                HTML_HEAD,
                rows[:ROWS_SHOWN],
                CYCLES_UNIT + (f"; and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else ""),
            ),
            notebook.folded("engines", "\n".join(_engine_lines(self))),
            notebook.folded("kernels", "\n".join(use_lines(self.kernels, ROWS_SHOWN))),
        )

    def __repr__(self) -> str:
        times = f"{counted(len(self.subops), 'sub-operator')}, {self.cycles} cycles, {self.time_us:.2f} us"
        return f"<superkernel.SimReport {self.graph!r} on {self.target}: {times}>"


# Text -----------------------------------------------------------------------------------------------------------------


def _text(report: SimReport) -> list[str]:
    tables = (_engine_lines(report), _subop_lines(report), use_lines(report.kernels))
    return [*_headlines(report), *(line for table in tables if table for line in ("", *table))]


def _headlines(report: SimReport) -> list[str]:
    """What is said of the whole run."""
    lines = [
        f"{report.graph} on {report.target} ({report.clock_mhz} MHz, {_simulated(report)}): {report.cycles} cycles, "
        f"{report.time_us:.2f} us" + (" with its launch" if report.baseline else ""),
        f"{counted(len(report.subops), 'sub-operator')}, {report.code_bytes} bytes of code, "
        f"{report.instructions} instructions",
    ]
    if report.baseline is not None:
        base = report.baseline
        lines.append(
            f"one by one: {counted(base.launches, 'launch')} of {base.launch_ns / 1000:.2f} us, "
            f"{base.time_us:.2f} us in all: {report.speedup:.2f}x the fused time"
        )
        steady, first = base.launch_range_ns
        least, most = (_speedup_with(report, base, launch_ns) for launch_ns in (steady, first))
        lines.append(
            f"with launches of {steady / 1000:.2f} us (steady stream) {least:.2f}x, "
            f"of {first / 1000:.2f} us (first one) {most:.2f}x"
        )
    if report.split:
        parts = ", ".join(f"{name} {us / report.time_us:.1%}" for name, us in ordered_parts(report.split.items()))
        lines.append(f"where it goes: {parts}")
    if report.needed_data:
        lines.append(f"data was computed, as tilings depend on it: {', '.join(report.needed_data)}")
    if report.data_dependent:
        lines.append(f"no data was computed, on which cycles may depend in: {', '.join(report.data_dependent)}")
    if report.warm:
        lines.append("the second of two runs: L2 is as the first one left it")
    if report.fallbacks:
        lines.append(
            f"computed by NumPy between launches, {report.numpy_us:.2f} us of the total, measured on this machine: "
            f"{', '.join(report.fallbacks)}"
        )
    if report.selections:
        lines.append(no_bound(report.selections))
    lines += _part_lines(report)
    cores = sum(core.kind in CORE_KINDS for core in report.cores) or 1
    pure, imbalance = (sum(getattr(r, n) * r.waiting for r in report.subops) / cores for n in ("pure", "imbalance"))
    lines.append(
        f"cores stand still between sub-operators, mean over all of them, whether others work meanwhile or not: "
        f"{pure + imbalance:.0f} cycles, {pure:.0f} of them pure synchronisation, {imbalance:.0f} imbalance"
    )
    memory = report.memory
    lines.append(
        f"L2: {memory['read_bytes']} bytes read, {memory['write_bytes']} written, {memory['misses']} of "
        f"{memory['hits'] + memory['misses']} lines missed; HBM: {memory['hbm_read_bytes']} read, "
        f"{memory['hbm_write_bytes']} written; {memory['shared']} pieces of lines shared"
    )
    missed = sum(row.stalls.get(cause, 0) for row in report.cores for cause in FETCH_STALLS) / len(report.cores)
    lines.append(
        f"instruction lines, all cores: {sum(row.misses for row in report.cores)} missed; prefetched: "
        + ", ".join(f"{report.prefetched[fate]} {fate}" for fate in FATES)
        + f"; waits for them {missed:.0f} cycles per core; {counted(report.copies, 'copy')} of the code"
    )
    lines.append(_weights_line(report))
    return lines


def _simulated(report: SimReport) -> str:
    return "simulated" if report.simulation == "both" else f"simulated, {report.simulation} only"


def _speedup_with(report: SimReport, base: Baseline, launch_ns: float) -> float:
    """How many times the fused time one by one takes, with launches of another cost on both sides."""
    more_us = (launch_ns - base.launch_ns) / 1000
    return (base.time_us + base.launches * more_us) / (report.time_us + report.launches * more_us)


def _part_lines(report: SimReport) -> list[str]:
    """Where there is one part, in one launch, its prediction is one line."""
    found = []
    for row in report.parts[:ROWS_SHOWN]:
        other = "" if row.other_way_us is None else f" ({row.other_way_us:.2f} us the other way)"
        found.append(
            f"{row.part}, {counted(row.launches, 'launch')}: predicted {row.predicted_us:.2f} us{other}, "
            f"simulated {row.simulated_us:.2f} us"
        )
    if len(report.parts) > ROWS_SHOWN:
        found.append(f"... and {counted(len(report.parts) - ROWS_SHOWN, 'more part')}")
    return found


def _weights_line(report: SimReport) -> str:
    """The lines of L2 that SDMA was asked for."""
    asked = [(fate, report.memory[f"prefetched_{fate}"]) for fate in (*FATES, "present")]
    said = ", ".join(f"{lines} {fate}" for fate, lines in asked)
    return f"weights prefetched into L2: {said}" if any(n for _, n in asked) else f"weight prefetch {report.weights}"


def _engine_lines(report: SimReport) -> list[str]:
    lines = ["engine      busy  waits for flags  for memory   (part of the run, mean over cores that use it)"]
    for kind in CORE_KINDS:
        rows = [r for r in report.cores if r.kind == kind]
        names = dict.fromkeys(n for r in rows for n in r.busy)
        for name in names:
            used = [r for r in rows if r.busy.get(name)]
            if used:
                shares = [float(np.mean([getattr(r, f)[name] for r in used])) / report.cycles for f in _ENGINE_FIELDS]
                lines.append(f"{kind + ' ' + name:<12}" + "  ".join(f"{s:6.1%}" for s in shares))
        stalls: dict[str, float] = {}
        for r in rows:
            for cause, cycles in r.stalls.items():
                stalls[cause] = stalls.get(cause, 0.0) + cycles / len(rows)
        top = sorted(stalls.items(), key=lambda item: -item[1])[:5]
        lines.append(f"{kind} control unit waits on " + ", ".join(f"{c} {n / report.cycles:.1%}" for c, n in top))
    return lines


_ENGINE_FIELDS = ("busy", "flag_wait", "memory_wait")


def _subop_lines(report: SimReport) -> list[str]:
    head = (
        f"{'sub-operator':<28} {'type':<12} {'from':>8} {'to':>8} {'sync':<8} {'pure':>7} {'imbal.':>7} {'misses':>7}"
        f" {'timely':>7} {'late':>5} {'useless':>7}"
    )
    lines = [head + ("    alone" if report.baseline else "")]
    for row in report.subops[:ROWS_SHOWN]:
        alone = f" {row.single_cycles:>8}" if row.single_cycles is not None else ""
        when = f"{row.numpy_us:>14.2f} us" if row.numpy_us else f"{row.first:>8} {row.last:>8}"
        fates = "".join(f" {row.prefetched[fate]:>{width}}" for fate, width in zip(FATES, (7, 5, 7), strict=True))
        lines.append(
            f"{row.name[-28:]:<28} {row.kind:<12} {when} {row.form:<8} {row.pure:>7.0f} "
            f"{row.imbalance:>7.0f} {row.misses:>7}{fates}{alone}"
        )
    if len(report.subops) > ROWS_SHOWN:
        lines.append(f"... and {len(report.subops) - ROWS_SHOWN} more")
    return lines
