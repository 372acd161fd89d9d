"""What each optimisation gives on a model, on an accelerator: `superkernel ablate`; `ablate_host.py` is the host's.

Model: `STEPS` are the optimisations that options declare, in their order. The first row launches the sub-operators one
by one; the second is the fused kernel with all of them off (a barrier of all cores behind a drain between any two
sub-operators); each step switches one on, on top of those above it, and once more alone on top of the second row. Every
row is compiled (kernels come from the cache) and simulated in mode `timing`.

Times are launches x `dispatch.launch_ns` + the launches' cycles; `timeline.py` splits the cycles into activities, so
that a row's split sums to its time. `gain` of a row: 1 - its time / the row's above. Below 0.5 % it is none.

Predictions, from the row above (its split per sub-operator i, `wait` = pure + imbalance) and the plan of the step:

    tiling        the launches that are saved x launch_ns
    fused         (launches - 1) x launch_ns - sum of cost_i of the plan's boundaries
    sync levels   sum of pure_i x (1 - cost_i of the new plan / cost_i of the old one), nothing where it does not fall;
                  where early start is on and the barriers behind drains go, what it says of the waits left, too
    locality      the same
    early start   sum of min(wait_i, misses_i + control_i + movement_i x constants' part of the bytes that i reads):
                  what precedes the first access of an operand runs during the wait
    preload       all cycles of instruction misses
    split         cycles that fetches of one line by several cores wait for one another, mean over cores
    streams       estimated cycles as given - those of the arrangement that is taken (`scheduler/aicore/streams.py`)
    weights       what the schedule of SDMA's tasks says, from the families' costs (`codegen/aicore/weight_prefetch.py`)

They are what a planner could know; the difference to `gain` is what overlaps, or comes up elsewhere.

*Choices* ask the other way round what a default is worth: each option is switched off with all others on. Prediction
and simulation stand side by side; where the kernel without it takes over 1 % less, the choice is a loss.

Below the rows stands by what each step gains, or why it cannot (`ablate_mechanism.py`), and three figures of the
whole, each with its bound (`ablate_figures.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from superkernel.analysis.ablate_figures import (
    Figures,
    Measure,
    Measured,
    ahead_cycles,
    constant_shares,
    unsynchronised_cycles,
)
from superkernel.analysis.ablate_mechanism import mechanism
from superkernel.analysis.sync_bound import sync_lower_bound
from superkernel.api import resolved
from superkernel.backends import backend_of
from superkernel.backends.aicore.backend import BACKEND, AicoreBackend
from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.kernel import AicoreKernel
from superkernel.backends.aicore.shared import Shared
from superkernel.backends.aicore.timeline import Activity, Timeline, span_of, summed
from superkernel.backends.aicore.variants import with_other_code
from superkernel.compilation.pipeline import compile_graph
from superkernel.core.counted import counted
from superkernel.core.errors import InputError, UnsupportedError
from superkernel.core.option import ACCELERATOR
from superkernel.core.options import OPTIONS, Options
from superkernel.display.charts import TOLD_AS, Bars, StackedBar
from superkernel.ops.grouped import TILINGS
from superkernel.scheduler.aicore.streams import AS_GIVEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superkernel.backends.aicore.compiled import AicoreCompiled
    from superkernel.ir.graph import Graph
    from superkernel.sim.counters import LaunchResult
    from superkernel.target.aicore import AicoreTarget

NO_GAIN = 0.005
LOSS = 0.01  # part of the time: what a default may lose at most against leaving it off
ONE_BY_ONE, FUSED = "one by one", "fused, full sync"
SWEEPS = ("icache.miss_latency_cycles", "sync.core_full_ns", "dispatch.launch_ns")
SWEEP_POINTS = 4
_LAUNCH = "dispatch.launch_ns"


Prediction = Callable[[Measured, "AicoreCompiled"], float]  # the row above, the step -> ns that it saves


@dataclass(frozen=True)
class Step:
    """An optimisation: option values that switch it off and on."""

    name: str
    off: Mapping[str, Any]
    on: Mapping[str, Any]
    predict: Prediction | None = None
    needs: tuple[str, ...] = ()  # operators: a graph without any of them has no such step


def _predict_fused(above: Measured, step: AicoreCompiled) -> float:
    return _predict_tiling(above, step) - sum(b.cost_ns for b in step.plan.boundaries)


def _predict_sync(above: Measured, step: AicoreCompiled) -> float:
    """A barrier behind a drain leaves nothing to start early: what goes without gains that, too."""
    before = {b.subop: b.cost_ns for b in above.compiled.plan.boundaries}
    after = {b.subop: b.cost_ns for b in step.plan.boundaries}
    left = {subop: min(1.0, after[subop] / cost) if cost else 1.0 for subop, cost in before.items()}
    rows = [item for split in above.splits for item in split.items()]
    saved = sum(row[Activity.PURE] * (1 - left.get(subop, 1.0)) for subop, row in rows)
    if _starts_early(step.options) and not _starts_early(above.compiled.options):
        ahead = ahead_cycles(above.splits, constant_shares(step))
        waits = ((subop, row[Activity.PURE] * left.get(subop, 1.0) + row[Activity.IMBALANCE]) for subop, row in rows)
        saved += sum(min(wait, ahead[subop]) for subop, wait in waits)
    return step.target.nanoseconds(1) * saved


def _starts_early(options: Options) -> bool:
    return options.starts_early and options.sync_level != "full"


def _predict_early_start(above: Measured, step: AicoreCompiled) -> float:
    ahead = ahead_cycles(above.splits, constant_shares(step))
    rows = [item for split in above.splits for item in split.items()]
    saved = sum(min(row[Activity.PURE] + row[Activity.IMBALANCE], ahead[subop]) for subop, row in rows)
    return step.target.nanoseconds(1) * saved


def _predict_streams(above: Measured, step: AicoreCompiled) -> float:
    tried = dict(step.schedule.arrangements)
    return step.target.nanoseconds(1) * (tried[AS_GIVEN] - step.schedule.arrangements[0][1])


def _predict_tiling(above: Measured, step: AicoreCompiled) -> float:
    return (above.launches - step.image.launches) * float(step.target.dispatch.launch_ns)


_PREDICTIONS: Mapping[str, Prediction] = {
    "sync": _predict_sync,
    "early_start": _predict_early_start,
    "preload": lambda above, step: step.target.nanoseconds(1) * summed(above.splits)[Activity.MISSES],
    "split": lambda above, step: step.target.nanoseconds(1) * above.same_line,
    "weight_prefetch": lambda above, step: step.target.nanoseconds(1) * step.weights.gain_cycles,
    "tiling": _predict_tiling,
    "streams": _predict_streams,
    "locality": _predict_sync,
}
_NEEDS = {"tiling": TILINGS}


def steps_on(kind: str) -> tuple[Step, ...]:
    """The steps that do something on a kind of target, in the order of the options."""
    return tuple(
        Step(name, {o.name: o.off}, {o.name: on}, _PREDICTIONS.get(o.name), _NEEDS.get(o.name, ()))
        for o in OPTIONS.values()
        for name, on in o.steps.items()
        if kind not in o.idle and on not in o.refused.get(kind, {})
    )


STEPS = steps_on(ACCELERATOR)
_SCHEDULING = frozenset(o.name for o in OPTIONS.values() if o.stage == "schedule")  # they need another schedule


@dataclass(frozen=True)
class Row:
    """A line of the table. Gains are parts of 1; `alone`: against the second row. `split`: us by activity, launch,
    and NumPy between launches where there is such work, which sum to `us`. `why`: by what it gains, or cannot."""

    name: str
    cycles: int
    us: float
    gain: float | None
    alone: float | None
    predicted: float | None
    speedup: float
    split: Mapping[str, float]
    why: str = ""

    @property
    def verdict(self) -> str:
        """Empty where the step gives something."""
        return "no gain here" if self.gain is not None and self.gain < NO_GAIN else ""


@dataclass(frozen=True)
class Choice:
    """An option switched on last. `us_without`: all others on. Parts of that time: `gain` as simulated, and as
    `predicted` from the run without it (None where there is no prediction)."""

    option: str
    us_without: float
    gain: float
    predicted: float | None

    @property
    def verdict(self) -> str:
        """Empty where it loses nothing to speak of."""
        return "a loss" if self.gain < -LOSS else ""


@dataclass(frozen=True)
class Sweep:
    """Gains of the steps over a range of an uncertain figure: `gains[step]` follows `values`. `changed`: the steps
    whose verdict depends on it."""

    path: str
    values: tuple[float, ...]
    gains: Mapping[str, tuple[float, ...]]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Ablation:
    """See the module docstring."""

    graph: str
    target: str
    subops: int
    rows: tuple[Row, ...]
    figures: Figures
    choices: tuple[Choice, ...] = ()
    sweeps: tuple[Sweep, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, one row per step."""
        rows = [{**asdict(row), "verdict": row.verdict} for row in self.rows]
        found = {"schema": "superkernel.ablation/1", "graph": self.graph, "target": self.target}
        more = {"choices": [{**asdict(c), "verdict": c.verdict} for c in self.choices]}
        more["sweeps"] = [asdict(s) for s in self.sweeps]
        return {**found, "subops": self.subops, "rows": rows, "figures": self.figures.to_json(), **more}

    def text(self) -> str:
        """For a terminal."""
        kinds = list(self.rows[0].split)
        head = f"{'step':<17}{'cycles':>10}{'us':>9}{'gain':>8}{'alone':>8}{'predicted':>11}{'speedup':>9}"
        lines = [
            f"{self.graph} on {self.target} (simulated), {counted(self.subops, 'sub-operator')}",
            "",
            head + "   us of " + "".join(f"{TOLD_AS.get(k, k):>11}" for k in kinds),
        ]
        for row in self.rows:
            shown = "".join(f"{_percent(g):>{w}}" for g, w in ((row.gain, 8), (row.alone, 8), (row.predicted, 11)))
            parts = "".join(f"{row.split[k]:>11.2f}" for k in kinds)
            line = f"{row.name:<17}{row.cycles:>10}{row.us:>9.2f}{shown}{row.speedup:>8.2f}x{'':>9}{parts}"
            lines.append(f"{line}  {row.verdict}".rstrip())
        lines += ["", "gain: against the row above; alone: on top of 'fused, full sync'; speedup: against one by one"]
        lines += ["", *(f"{row.name}: {row.why}" for row in self.rows if row.why)]
        lines += ["", *choice_lines(self.choices), "", *self.figures.lines()]
        for sweep in self.sweeps:
            lines += ["", *_sweep_lines(sweep)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def chart(self) -> Bars:
        """The rows as bars."""
        return ablation_chart(self.rows)


class ChartRow(Protocol):
    """What a row's bar needs."""

    @property
    def name(self) -> str: ...
    @property
    def us(self) -> float: ...
    @property
    def gain(self) -> float | None: ...
    @property
    def verdict(self) -> str: ...
    @property
    def split(self) -> Mapping[str, float]: ...


def ablation_chart(rows: Sequence[ChartRow]) -> Bars:
    """A bar per row, with what it gains on the row above."""

    def said(row: ChartRow) -> str:
        return row.verdict or ("" if row.gain is None else f"gain {row.gain:.1%}")

    bars = tuple(StackedBar(row.name, row.us, tuple(row.split.items()), said(row)) for row in rows)
    note = (
        "Each on top of those above it; gain: the part of the time of the row above that it saves. The first rows are "
        "without any of these optimisations; a report's bars of the same names have those of the chosen kernel, and so "
        "other times."
    )
    return Bars("What each optimisation gives", bars, note)


def ablate(
    graph: Graph,
    target: AicoreTarget,
    *,
    options: Options | None = None,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    sensitivity: bool = False,
) -> Ablation:
    """Compile and simulate a graph with the optimisations switched on one after the other. `options`: for everything
    that no step decides. `inputs`: random ones of seed 0 by default."""
    return _Ablation(graph, target, options or Options(), inputs).run(sensitivity)


def choices(
    graph: Graph,
    target: AicoreTarget,
    *,
    options: Options | None = None,
    inputs: Mapping[str, NDArray[Any]] | None = None,
) -> tuple[Choice, ...]:
    """What each option of `ablate` gives on top of all others, alone."""
    return _Ablation(graph, target, options or Options(), inputs).choices()


def figures(
    graph: Graph,
    target: AicoreTarget,
    *,
    options: Options | None = None,
    inputs: Mapping[str, NDArray[Any]] | None = None,
) -> Figures:
    """The three figures of `ablate` alone: what stands between the first two rows and the last one is left out."""
    return _Ablation(graph, target, options or Options(), inputs).figures()


class _Ablation:
    """The programs of one model, each built and run once."""

    def __init__(
        self, graph: Graph, target: AicoreTarget, options: Options, inputs: Mapping[str, NDArray[Any]] | None
    ) -> None:
        self.graph, self.target, self.steps = graph, target, STEPS
        off = {name: value for step in self.steps for name, value in step.off.items()}
        self.options = dataclasses.replace(options, dump=(), debug_sync_all=False, launches="fused", **off)
        self.shared = Shared()
        self.base = self.compiled_anew(self.options)
        used = {node.op for node in self.base.graph.nodes}
        self.steps = tuple(step for step in self.steps if not step.needs or used & set(step.needs))
        kernel = AicoreKernel(self.base)
        arrays = kernel._random() if inputs is None else kernel._arrays(inputs)
        self.io = kernel._io(list(arrays.values()))
        self.known: dict[tuple[Options, bool], Measured] = {}
        self.numpy_us: dict[tuple[str, ...], float] = {}  # by nodes, as first measured: no row differs by its noise
        self.lines_all_on: list[Timeline] = []  # of the other rows they would take memory for nothing

    def run(self, sensitivity: bool) -> Ablation:
        """All rows."""
        single, fused = self.measured({}, single=True), self.measured({})
        if 0 in (single.cycles, fused.cycles):
            found = "its outputs are inputs, states, constants or empty"
            raise InputError("the graph computes nothing", location=f"graph {self.graph.name!r}", found=found)
        chain = [single, fused]
        rows = [self.row(ONE_BY_ONE, single, None, None, None, single)]
        rows.append(self.row(FUSED, fused, single, None, _predict_fused, single))
        on: dict[str, Any] = {}
        for step in self.steps:
            on |= step.on
            chain.append(self.measured(on))
            alone = 1 - self.measured(step.on).time_us() / fused.time_us()
            row = self.row(step.name, chain[-1], chain[-2], alone, step.predict, single)
            (option,) = step.on
            rows.append(dataclasses.replace(row, why=mechanism(option, chain[-2], chain[-1])))
        sweeps = [self.sweep(path, chain) for path in SWEEPS if self.target.range_of(path)] if sensitivity else []
        subops = len(self.base.schedule.subops)
        return Ablation(
            self.graph.name, self.target.name, subops, tuple(rows), self.figures(), self.choices(), tuple(sweeps)
        )

    @property
    def all_on(self) -> dict[str, Any]:
        """Every step's last value."""
        return {name: value for step in self.steps for name, value in step.on.items()}

    def choices(self) -> tuple[Choice, ...]:
        """Everything on, against everything but one."""
        found = []
        fused = self.measured(self.all_on)
        for option, step in {name: last for last in self.steps for name in last.on}.items():
            without = self.measured({**self.all_on, **step.off})
            us = without.time_us()
            predicted = None if step.predict is None else step.predict(without, fused.compiled) / 1000 / us
            found.append(Choice(option, us, 1 - fused.time_us() / us, predicted))
        return tuple(found)

    def figures(self) -> Figures:
        """Of the first two rows and the last one. Tables that depend on data are computed on the device in all of them:
        what NumPy takes for them between launches is no figure of the device."""
        tables = {name: value for step in self.steps if step.needs for name, value in step.on.items()}
        single = self.measured(tables, single=True)
        full, fused = self.measured(tables), self.measured(self.all_on)
        cycle_ns = self.target.nanoseconds(1)
        chain = sync_lower_bound(fused.compiled, self.lines_all_on)
        free = unsynchronised_cycles(fused.compiled, self.io, self.shared)
        free_us = None if free is None else dataclasses.replace(fused, cycles=free).time_us()
        before, after = (
            Measure(run.time_us(), summed(run.splits)[Activity.PURE] * cycle_ns / 1000) for run in (full, fused)
        )
        barriers, events = len(full.compiled.plan.events), len(fused.compiled.plan.events)
        return Figures(single.time_us(), before, after, free_us, chain, barriers, events)

    def row(
        self,
        name: str,
        run: Measured,
        above: Measured | None,
        alone: float | None,
        predict: Prediction | None,
        single: Measured,
    ) -> Row:
        us = run.time_us()
        gain = None if above is None else 1 - us / above.time_us()
        predicted = None
        if above is not None and predict is not None:
            predicted = predict(above, run.compiled) / 1000 / above.time_us()
        per_us = self.target.nanoseconds(1) / 1000
        split = {a.name.lower(): cycles * per_us for a, cycles in reversed(summed(run.splits).items())}
        split["launch"] = run.launches * float(self.target.dispatch.launch_ns) / 1000
        if self.numpy_us:
            split["numpy"] = run.numpy_us
        return Row(name, run.cycles, us, gain, alone, predicted, single.time_us() / us, split)

    # Programs ---------------------------------------------------------------------------------------------------------

    def measured(self, on: Mapping[str, Any], *, single: bool = False) -> Measured:
        """The fused kernel with some options switched on; `single`: its sub-operators launched one by one."""
        options = dataclasses.replace(self.options, **on)
        found = self.known.get((options, single))
        if found is None:
            found, lines = self.measure(self.compiled(options), single=single)
            self.known[options, single] = found
            if not single and options == dataclasses.replace(self.options, **self.all_on):
                self.lines_all_on = lines
        return found

    def compiled(self, options: Options) -> AicoreCompiled:
        """The program under some options; the schedule of another one is taken where it is the same."""
        for made in (self.base, *(run.compiled for run in self.known.values())):
            if made.options == options:
                return made
            if all(getattr(made.options, name) == getattr(options, name) for name in _SCHEDULING):
                return with_other_code(made, options, self.shared)
        return self.compiled_anew(options)

    def compiled_anew(self, options: Options) -> AicoreCompiled:
        return compile_graph(self.graph, self.target, options, AicoreBackend(self.shared))

    def measure(self, compiled: AicoreCompiled, *, single: bool = False) -> tuple[Measured, list[Timeline]]:
        run = compiled.executable.simulate(self.io, mode="timing", races=False, trace=True, single=single)
        lines = [Timeline.of(compiled, launch, single=single) for launch in run.launches]
        subops = compiled.schedule.subops
        found = Measured(
            compiled, single, len(lines), sum(line.end - line.begin for line in lines),
            tuple(line.split() for line in lines), _same_line(run.launches, compiled.plan.total),
            sum(self.numpy_us.setdefault(subops[call.subop].nodes, call.us) for call in run.between),
        )  # fmt: skip
        return found, lines

    # Sensitivity ------------------------------------------------------------------------------------------------------

    def sweep(self, path: str, chain: Sequence[Measured]) -> Sweep:
        """The gains of each row over a figure's range. The programs stay as they are; what a launch costs is not even
        simulated again."""
        targets = self.target.sweep(path, SWEEP_POINTS)
        names = [FUSED, *(step.name for step in self.steps)]
        times = [[self._time_us(run, target, path) for run in chain] for target in targets]
        gains = {name: tuple(1 - row[number + 1] / row[number] for row in times) for number, name in enumerate(names)}
        changed = tuple(name for name, row in gains.items() if len({gain >= NO_GAIN for gain in row}) > 1)
        values = tuple(float(str(target.value(path))) for target in targets)
        return Sweep(path, values, gains, changed)

    def _time_us(self, run: Measured, target: AicoreTarget, path: str) -> float:
        if path == _LAUNCH:
            return run.time_us(target)
        made, graph = run.compiled, run.compiled.graph
        executable = SimExecutable(made.image, made.schedule, target, len(graph.inputs), len(graph.outputs))
        again = executable.simulate(self.io, mode="timing", races=False, single=run.single)
        cycles = sum(span_of(made, launch)[1] for launch in again.launches)
        return dataclasses.replace(run, cycles=cycles).time_us(target)


def ablation_target(target: str | Any) -> AicoreTarget:
    """The accelerator of a name or file. Raises UnsupportedError for other kinds of targets."""
    device = resolved(target)
    if backend_of(device) is not BACKEND:
        hint = "on the host `superkernel.analysis.ablate_host` measures what each optimisation gives"
        raise UnsupportedError("no program of an accelerator", expected="an accelerator", found=device.kind, hint=hint)
    return cast("AicoreTarget", device)


def _same_line(launches: Sequence[LaunchResult], cores: int) -> float:
    return sum(launch.memory.fetch_same_line_cycles for launch in launches) / cores


def choice_lines(found: Sequence[Choice]) -> list[str]:
    """For a terminal."""
    lines = [f"{'on top of all others':<28}{'gain':>8}{'predicted':>11}{'us without':>12}"]
    for choice in found:
        numbers = f"{_percent(choice.gain):>8}{_percent(choice.predicted):>11}{choice.us_without:>12.2f}"
        lines.append(f"  {choice.option:<26}{numbers}  {choice.verdict}".rstrip())
    return lines


def _percent(part: float | None) -> str:
    return "" if part is None else f"{part:.1%}"


def _sweep_lines(sweep: Sweep) -> list[str]:
    lines = [f"{sweep.path:<28}" + "".join(f"{value:>9g}" for value in sweep.values)]
    for name, gains in sweep.gains.items():
        note = "  depends on it" if name in sweep.changed else ""
        lines.append(f"  {name:<26}" + "".join(f"{gain:>9.1%}" for gain in gains) + note)
    return lines
