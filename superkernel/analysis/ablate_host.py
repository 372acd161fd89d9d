"""What each optimisation gives on the host: `superkernel ablate --target host`.

Model: the rows of `ablate.py`, as far as their options do something on the host, and measured: one by one; the fused
kernel with all of them off, a barrier of all cores between any two sub-operators; then one switched on after the other,
up to the kernel that one gets. All rows take turns in one process (`backends/host/profile.py`), so that drift of the
machine meets them alike. Times are medians of plain launches with 95 % intervals; a row *gains* where its interval and
that of the row above are disjoint, and by at least 0.5 %. What a launch consists of is the mean over cores of launches
with time stamps, and sums to its time with the rest (`backends/host/profile.py`); where the machine was too busy it is
withheld, and readers are told neither gains nor speedups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from superkernel.analysis.ablate import FUSED, NO_GAIN, ONE_BY_ONE, ablation_chart, steps_on
from superkernel.backends.host.backend import BACKEND
from superkernel.backends.host.conditions import Conditions
from superkernel.backends.host.estimates import MedianInterval
from superkernel.backends.host.kernel import HostKernel
from superkernel.backends.host.profile import measure
from superkernel.backends.host.report import TimePart
from superkernel.backends.host.variants import with_other_sync
from superkernel.compilation.pipeline import compile_graph
from superkernel.core.counted import counted
from superkernel.core.errors import InputError
from superkernel.core.option import HOST
from superkernel.core.options import OPTIONS, Options
from superkernel.display.charts import Bars
from superkernel.display.difference import SAMPLES_MIN
from superkernel.target.cpu import CpuTarget

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superkernel.backends.host.compiled import HostCompiled
    from superkernel.ir.graph import Graph

ROUNDS = 60
STEPS = steps_on(HOST)


@dataclass(frozen=True)
class HostRow:
    """A line of the table: a launch in us with its interval; `gain`: 1 - its time / the row's above; `split`: us by
    part of the time, empty where that is not known."""

    name: str
    us: float
    low_us: float
    high_us: float
    gain: float | None
    speedup: float
    waits: int | None
    split: Mapping[str, float]
    beyond_noise: bool = False  # the interval and that of the row above are disjoint

    @property
    def verdict(self) -> str:
        """Empty where the step gives something."""
        if self.gain is None or (self.gain >= NO_GAIN and self.beyond_noise):
            return ""
        return "slower here" if self.gain <= -NO_GAIN and self.beyond_noise else "no gain here"


@dataclass(frozen=True)
class HostAblation:
    """See the module docstring."""

    graph: str
    target: str
    cores: int
    subops: int
    rows: tuple[HostRow, ...]
    conditions: Conditions

    def to_json(self) -> dict[str, Any]:
        """Plain data, one row per step."""
        rows = [{**asdict(row), "verdict": row.verdict} for row in self.rows]
        head = {"schema": "superkernel.host_ablation/1", "graph": self.graph, "target": self.target}
        return {**head, "cores": self.cores, "subops": self.subops, "rows": rows, "conditions": asdict(self.conditions)}

    def text(self) -> str:
        """For a terminal."""
        kinds = list(dict.fromkeys(kind for row in self.rows for kind in row.split))
        lines = [
            f"{self.graph} on {self.target}, {counted(self.cores, 'core')}, {counted(self.subops, 'sub-operator')}",
            *self.conditions.sentences(),
            "",
            f"{'step':<17}{'us':>9}{'from':>9}{'to':>9}{'gain':>8}{'speedup':>9}"
            + ("   us of " + "".join(f"{kind:>11}" for kind in kinds) if kinds else ""),
        ]
        for row in self.told:
            gain = "" if row.gain is None else f"{row.gain:.1%}"
            line = f"{row.name:<17}{row.us:>9.2f}{row.low_us:>9.2f}{row.high_us:>9.2f}{gain:>8}"
            line += f"{row.speedup:>8.2f}x" if self.conditions.trusted else f"{'':>9}"
            parts = "".join(f"{row.split[kind]:>z11.2f}" if kind in row.split else f"{'':>11}" for kind in kinds)
            lines.append(f"{line}{'':>9}{parts}  {row.verdict}".rstrip())
        ends = "95 % intervals" if self.conditions.launches >= SAMPLES_MIN else "their range: too few for intervals"
        lines += ["", f"medians with {ends}; gain: against the row above; speedup: against one by one"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def chart(self) -> Bars:
        """The rows as bars."""
        return ablation_chart(self.told)

    @property
    def told_apart(self) -> bool:
        """Whether the last row and the first differ beyond noise."""
        first, last = self.rows[0], self.rows[-1]
        disjoint = last.high_us < first.low_us or last.low_us > first.high_us
        return disjoint and self.conditions.launches >= SAMPLES_MIN

    @property
    def told(self) -> tuple[HostRow, ...]:
        """The rows as a reader is told them: without gains where the machine was too busy."""
        return self.rows if self.conditions.trusted else tuple(dataclasses.replace(r, gain=None) for r in self.rows)


def ablate_host(
    graph: Graph,
    target: CpuTarget,
    *,
    threads: int | None = None,
    options: Options | None = None,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    rounds: int = ROUNDS,
) -> HostAblation:
    """Compile and measure a graph with the optimisations switched on one after the other. `options`: for everything
    that no step decides. `inputs`: random ones of seed 0 by default. Raises InputError."""
    if rounds < 1:
        raise InputError("no rounds", location="rounds", expected="at least 1", found=str(rounds))
    kernels = dict(_kernels(graph, target, threads, options or Options()))
    *others, last = kernels
    chosen = kernels[last]
    kernel = HostKernel(chosen)
    arrays = kernel._random() if inputs is None else kernel._arrays(inputs)
    io = kernel._io(list(arrays.values()))
    report = measure(chosen, io, rounds, {name: kernels[name] for name in others})
    single, run, conditions = report.one_by_one, report.run, report.conditions
    assert single is not None
    assert run is not None
    assert conditions is not None
    rows = [_row(ONE_BY_ONE, single, None, single, None, report.one_by_one_parts)]
    above: MedianInterval | None = single
    for each in report.variants:
        rows.append(_row(each.name, each.run, above, single, each.waits, each.parts))
        above = each.run
    rows.append(_row(last, run, above, single, chosen.plan.waits, report.parts))
    return HostAblation(graph.name, report.target, chosen.cores, report.subops, tuple(rows), conditions)


def _kernels(
    graph: Graph, target: CpuTarget, threads: int | None, options: Options
) -> Iterator[tuple[str, HostCompiled]]:
    """A kernel per row: those of one schedule share its kernels and constants."""
    off = {name: value for step in STEPS for name, value in step.off.items()}
    given = dataclasses.replace(options, dump=(), debug_sync_all=False, debug="off", **off)
    made = compile_graph(graph, target, given, BACKEND, threads=threads)
    if not any(task.end > task.begin for task in made.schedule.tasks):
        found = "its outputs are inputs, states, constants or empty"
        raise InputError("the graph computes nothing", location=f"graph {graph.name!r}", found=found)
    yield FUSED, made
    for step in STEPS:
        given = dataclasses.replace(given, **step.on)
        if any(OPTIONS[name].stage == "schedule" for name in step.on):
            made = compile_graph(graph, target, given, BACKEND, threads=threads)
        else:
            made = with_other_sync(made, cast("dict[str, Any]", step.on))
        yield step.name, made


def _row(
    name: str,
    run: MedianInterval,
    above: MedianInterval | None,
    single: MedianInterval,
    waits: int | None,
    parts: tuple[TimePart, ...],
) -> HostRow:
    gain = None if above is None else 1 - run.median_ns / above.median_ns
    apart = above is not None and run.apart(above)
    split = {part.name: part.ns / 1e3 for part in parts}
    us, low, high = run.median_ns / 1e3, run.low_ns / 1e3, run.high_ns / 1e3
    return HostRow(name, us, low, high, gain, single.median_ns / run.median_ns, waits, split, apart)
