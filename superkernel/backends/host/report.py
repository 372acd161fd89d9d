"""What a run's time went into: sync per boundary, pure cost apart from imbalance, fused against one by one.

Model: a profiled run leaves one time stamp behind every step of every core (ns since the first stamp). A *boundary*
is a sub-operator whose tasks wait. For a wait of core c for producer p, from `begin` to `end`, with p's set at `set`:

    imbalance = time in [begin, end] before `set`: the producer still had work to do, no sync could be faster;
    pure      = the rest: what the synchronisation itself costs.

A set's own time counts as pure. What a core waits behind its last step until the last core is done is *end*, what the
launch takes ahead of a core's first step and behind the last core's last is *launch*. Work, pure sync, imbalance, end
and launch add up to the profiled launch; with the rest, which is below zero by what the time stamps cost, to `run_ns`.
A *row of work* is a sub-operator's own time, that of its busiest core, with the operations that its nodes stand for (a
multiply-add counts as two). Figures of one launch vary; `Report` therefore holds those of many (`profile.py`), with
their intervals (`estimates.py`): medians of whole launches, which alternate in one process, and means over the middle
half for what a launch consists of.

Where the machine was too busy (`conditions.py`) the report says times of whole launches alone, in every form for
readers; the JSON form keeps what was measured of sub-operators and boundaries beside `conditions.trusted`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from superkernel.backends.host.conditions import Conditions
from superkernel.backends.host.estimates import MedianInterval, RatioInterval
from superkernel.compilation.kernel_uses import KernelUse, use_lines
from superkernel.core.counted import counted
from superkernel.core.errors import UnsupportedError
from superkernel.display import notebook
from superkernel.display.charts import Chart
from superkernel.display.notebook import Share, Time
from superkernel.display.page import Gain, Page
from superkernel.display.spans import Recording
from superkernel.display.units import format_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

HTML_ROWS_MAX = 40
TOO_BUSY = "the machine was too busy to tell"
LEAST_SHARE = 0.0005  # of a launch: parts below are not mentioned


@dataclass(frozen=True)
class BoundaryReport:
    """The synchronisation in front of one sub-operator. Times are per launch, in ns."""

    subop: int
    name: str
    form: str  # none, point-to-point, subset, full
    reason: str
    arrivals: int  # waits that the boundary's cores execute
    pure_ns: float
    imbalance_ns: float
    why: str = ""  # for whom and for which tensor the first of the waits is


@dataclass(frozen=True)
class Work:
    """What one sub-operator itself took per launch, in ns: its busiest core's time from begin to end of its body."""

    subop: int
    name: str
    kernel: str
    cores: int
    busy_ns: float
    flops: float  # of its graph nodes, on all cores together
    operand_bytes: int  # sizes of its operands: what a cold run must move at most
    computed_in: str = ""  # format of its products, or the type of its result
    symbols: tuple[str, ...] = ()  # of its kernel function
    low_ns: float = 0.0  # 95 % interval of `busy_ns`
    high_ns: float = 0.0

    @property
    def gflops(self) -> float:
        """10^9 operations per second over all of its cores."""
        return self.flops / self.busy_ns if self.busy_ns else 0.0

    @property
    def gbytes(self) -> float:
        """10^9 bytes of operands per second over all of its cores."""
        return self.operand_bytes / self.busy_ns if self.busy_ns else 0.0


@dataclass(frozen=True)
class TimePart:
    """A part of a launch's time, mean over cores: ns with their 95 % interval, and share of 1."""

    name: str
    ns: float
    share: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class Variant:
    """The same sub-operators with other options, measured in turn with the kernel: its launch, and what it consists of;
    `ratio`: against the kernel's, of rounds of the same block. No `parts` and no `ratio` where the machine was too
    busy."""

    name: str
    run: MedianInterval
    waits: int
    sets: int
    parts: tuple[TimePart, ...]
    ratio: RatioInterval | None = None


@dataclass(frozen=True)
class HardwareCounts:
    """What the CPU counted per launch, all cores together, in user mode; cores that wait for the next launch count
    cycles and instructions too. None: that event cannot be had."""

    cycles: float | None
    instructions: float | None
    cache_misses: float | None

    @staticmethod
    def of(counted: NDArray[Any]) -> HardwareCounts | None:
        """From [cores, 3] per launch, negative where not counted; None where there is nothing."""
        found = [None if (column < 0).any() else float(column.sum()) for column in counted.T]
        return HardwareCounts(*found) if any(value is not None for value in found) else None

    def __str__(self) -> str:
        names = {"cycles": self.cycles, "instructions": self.instructions, "cache misses": self.cache_misses}
        return ", ".join(f"{value:,.0f} {name}" for name, value in names.items() if value is not None)


@dataclass(frozen=True)
class Report:
    """See the module docstring. `run_ns`: the time of a launch, as `run` has it with its interval; `busy_ns` per core;
    `fused`, `one_by_one` and the `ratio` of the second to the first None where not compared; `work` in the order of
    execution. `profiled_ns` is the time of a launch that leaves time stamps, `stamps` what they cost, `parts` what it
    consists of and `one_by_one_parts` what the sub-operators one by one do, none where the machine was too busy to
    say; `variants`: what it was held against beside one by one; `gains`: what would help, the largest first;
    `timeline`: the launch with the median time, no part of the JSON form."""

    graph: str
    target: str
    cores: int
    nodes: int
    subops: int
    distinct_kernels: int
    waits: int
    sets: int
    naive_syncs: int  # full barriers that a fused kernel without analysis would have
    run_ns: float
    busy_ns: tuple[float, ...]
    pure_ns: float  # mean over cores
    imbalance_ns: float  # mean over cores
    boundaries: tuple[BoundaryReport, ...]
    fallbacks: tuple[str, ...]
    fused: MedianInterval | None = None
    one_by_one: MedianInterval | None = None
    ratio: RatioInterval | None = None
    one_by_one_parts: tuple[TimePart, ...] = ()
    work: tuple[Work, ...] = ()
    precision: str = ""  # where less than the declared precision is allowed: what was computed in what
    run: MedianInterval | None = None
    profiled_ns: float = 0.0
    stamps: MedianInterval | None = None
    parts: tuple[TimePart, ...] = ()
    variants: tuple[Variant, ...] = ()
    conditions: Conditions | None = None
    counters: HardwareCounts | None = None
    kernels: tuple[KernelUse, ...] = ()
    gains: tuple[Gain, ...] = ()
    peak: tuple[float, float] = (0.0, 0.0)  # what the cores can do together: flops per ns, bytes per ns
    timeline: Recording | None = field(default=None, compare=False, repr=False)
    page_of: Callable[[Report], Page] | None = field(default=None, compare=False, repr=False)

    @property
    def trusted(self) -> bool:
        """False where the machine was too busy for shares to mean anything."""
        return self.conditions is None or self.conditions.trusted

    @property
    def speedup(self) -> float | None:
        """How many times as long the sub-operators take one by one; None where that cannot be told: not compared,
        within noise of 1, or on a machine that was too busy."""
        return self.ratio.median if self.ratio is not None and self.ratio.told and self.trusted else None

    @property
    def idle(self) -> str:
        """Which of the cores have nothing to do, as a sentence; empty where all work."""
        working = sum(ns > 0 for ns in self.busy_ns)
        if not 0 < working < self.cores:
            return ""
        works = "works" if working == 1 else "work"
        return f"{working} of {counted(self.cores, 'core')} {works}: by estimate more would take longer"

    def to_json(self) -> dict[str, Any]:
        """Plain data, stable keys."""
        found = asdict(replace(self, timeline=None, page_of=None))
        del found["timeline"], found["page_of"]
        return {"schema": "superkernel.report/2", **found, "speedup": self.speedup}

    def json(self) -> str:
        """`to_json` as text."""
        return json.dumps(self.to_json(), indent=2)

    def text(self, boundaries_max: int = 12) -> str:
        """The report for a terminal, with the costliest boundaries."""
        lines = self._headlines()
        lines += self._work_lines(boundaries_max)
        lines += use_lines(self.kernels, boundaries_max)
        shown = self._costliest(boundaries_max)
        if shown:
            lines.append(self._forms())
            times = f" {'pure':>10} {'imbalance':>10}" if self.trusted else ""
            lines.append(f"{'boundary':<40} {'form':<15} {'arrivals':>8}{times}  reason")
            for b in shown:
                times = f" {format_ns(b.pure_ns):>10} {format_ns(b.imbalance_ns):>10}" if self.trusted else ""
                lines.append(f"{_label(b.subop, b.name):<40} {b.form:<15} {b.arrivals:>8}{times}  {b.why or b.reason}")
            if len(shown) < len(self.boundaries):
                lines.append(f"({self._which(len(shown), len(self.boundaries))}; all of them in the JSON form)")
        return "\n".join(lines)

    def _headlines(self) -> list[str]:
        lines = [
            f"{self.graph}: {counted(self.nodes, 'node')} -> {counted(self.subops, 'sub-operator')} "
            f"({self.distinct_kernels} distinct) -> 1 kernel on {counted(self.cores, 'core')} ({self.target})",
            f"sync points: {counted(self.naive_syncs, 'full barrier')} before, {counted(self.waits, 'wait')} and "
            f"{counted(self.sets, 'set')} after",
            f"a launch takes {self.run or format_ns(self.run_ns)}",
        ]
        lines += [self.idle] if self.idle else []
        lines += [] if self.conditions is None else list(self.conditions.sentences())
        lines += self._part_lines()
        if self.fused is not None and self.one_by_one is not None:
            medians = "medians with 95 % intervals" if self.fused.told else "medians, too few for intervals"
            lines.append(
                f"fused {self.fused}, one by one {self.one_by_one}: {self._ratio(self.ratio)} "
                f"({medians}, {counted(self.fused.samples, 'alternating pair')})"
            )
            if self.one_by_one_parts and self.trusted:
                lines.append(f"one by one, mean over cores: {_said(self.one_by_one_parts)}")
        for variant in self.variants:
            waits = counted(variant.waits, "wait")
            lines.append(f"with {variant.name} {variant.run}, {waits}: {self._ratio(variant.ratio)}")
        lines += [self.precision] if self.precision else []
        return lines + [f"fallback to NumPy: {text}" for text in self.fallbacks]

    def html(self, *charts: Chart) -> str:
        """A page of its own: what limits the kernel and what would help, the timeline, all tables, further
        charts. Raises UnsupportedError for a report that was not measured here."""
        if self.page_of is None:
            hint = "`kernel.report()` makes one"
            raise UnsupportedError("a report without a timeline", location=f"report of {self.graph!r}", hint=hint)
        page = self.page_of(self)
        return replace(page, charts=(*charts, *page.charts)).html()

    def _part_lines(self) -> list[str]:
        """What a launch's time consists of, where that is known."""
        if not self.parts or not self.trusted:
            return []
        busy = ", ".join(f"core {c} {format_ns(ns)}" for c, ns in enumerate(self.busy_ns))
        cost = ""
        if self.stamps is not None:
            seen = self.stamps.told and self.stamps.low_ns > 0
            cost = f", {self.stamps.median_ns:+.0f} ns for the stamps" if seen else ", whose cost is lost in the noise"
        said = f"with time stamps {format_ns(self.profiled_ns)}{cost}; mean over cores: {_said(self.parts)}"
        lines = [said, f"busy: {busy}"]
        return lines + ([f"per launch, all cores: {self.counters}"] if self.counters is not None else [])

    def _ratio(self, ratio: RatioInterval | None) -> str:
        return TOO_BUSY if ratio is None or not self.trusted else str(ratio)

    def _which(self, shown: int, whole: int) -> str:
        """Which boundaries are shown."""
        return f"the {shown} costliest of {whole}" if self.trusted else f"the {shown} of {whole} with most arrivals"

    def _costliest(self, rows_max: int) -> list[BoundaryReport]:
        """The boundaries that cost most, as far as that is known, in the order of execution."""
        known = self.trusted
        costliest = sorted(self.boundaries, key=lambda b: (-(b.pure_ns + b.imbalance_ns) * known, -b.arrivals, b.subop))
        return sorted(costliest[:rows_max], key=lambda b: b.subop)

    def _of_launch(self, work: Work) -> float:
        """A sub-operator's time on its busiest core as part of a launch: all of them sum to more than 1 where different
        cores work at different ones at a time."""
        return work.busy_ns / (self.run_ns or 1.0)

    def _longest(self) -> list[Work]:
        return sorted(self.work, key=lambda w: (-w.busy_ns, w.subop))

    def _forms(self) -> str:
        forms = Counter(b.form for b in self.boundaries)
        return "boundaries: " + ", ".join(f"{n} {form}" for form, n in sorted(forms.items()))

    def _repr_html_(self) -> str:
        """For notebooks: all of it, the longest and the costliest in tables."""
        title, *lines = self._headlines()
        work = [
            (
                w.subop,
                w.name,
                Time(w.busy_ns / 1e3),
                Share(self._of_launch(w)),
                w.cores,
                w.gflops,
                w.gbytes,
                w.kernel,
            )
            for w in self._longest()
            if self.trusted
        ]
        known = self.trusted
        boundaries = [
            (b.subop, b.name, b.form, b.arrivals)
            + ((Time(b.pure_ns / 1e3), Time(b.imbalance_ns / 1e3)) if known else ())
            + (b.why or b.reason,)
            for b in self._costliest(HTML_ROWS_MAX)
        ]
        return notebook.shown(
            title,
            notebook.lines(lines),
            notebook.table(
                ("", "sub-operator", "busy", "of launch", "cores", "GFLOP/s", "GB/s", "kernel"),
                work[:HTML_ROWS_MAX],
                f"the {HTML_ROWS_MAX} longest of {len(work)}" if len(work) > HTML_ROWS_MAX else "",
            ),
            notebook.lines([self._forms()] if self.boundaries else []),
            notebook.table(
                ("", "boundary ahead of", "form", "arrivals", *(("pure", "imbalance") if known else ()), "reason"),
                boundaries,
                self._which(HTML_ROWS_MAX, len(self.boundaries)) if len(self.boundaries) > HTML_ROWS_MAX else "",
            ),
            notebook.folded("kernels", "\n".join(use_lines(self.kernels, HTML_ROWS_MAX))),
        )

    def _work_lines(self, rows_max: int) -> list[str]:
        """The sub-operators that took longest, longest first, where that is known."""
        if not self.work or not self.trusted:
            return []
        lines = [f"{'sub-operator':<40} {'busy':>10} {'of launch':>9} {'cores':>5} {'GFLOP/s':>9} {'GB/s':>7}  kernel"]
        longest = self._longest()
        for w in longest[:rows_max]:
            lines.append(
                f"{_label(w.subop, w.name):<40} {format_ns(w.busy_ns):>10} {100 * self._of_launch(w):>7.1f} % "
                f"{w.cores:>5} {w.gflops:>9.1f} {w.gbytes:>7.1f}  {w.kernel}"
            )
        if len(longest) > rows_max:
            lines.append(f"(the {rows_max} longest of {len(longest)})")
        return lines

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        time = f"{counted(self.subops, 'sub-operator')}, {format_ns(self.run_ns)}"
        return f"<superkernel.Report {self.graph!r} on {self.target}: {time}>"


def _said(parts: Sequence[TimePart]) -> str:
    shown = [part for part in parts if abs(part.share) >= LEAST_SHARE]
    return ", ".join(f"{part.name} {format_ns(part.ns)} ({100 * part.share:.1f} %)" for part in shown)


def _label(subop: int, name: str) -> str:
    label = f"{subop} {name}"
    return label if len(label) <= 40 else label[:39] + "…"
