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

A *part* is what a scope has in one piece (without scopes: everything). Its time, predicted and simulated, is with
`dispatch.launch_ns` for each of its launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.aicore.program_spec import PHASE_BEHIND, PHASE_ENTRY
from superkernel.sim.counters import STALLS, ControlCounts, CoreCounts, LaunchResult, MarkerCounts
from superkernel.sync.aicore.plan import AicorePlan, Mode
from superkernel.target.aicore import AicoreTarget
from superkernel.transforms.selections import no_bound

if TYPE_CHECKING:
    from superkernel.pipeline_aicore import AicoreCompiled

ROWS_SHOWN = 40
_WAITS = ("cross_wait", "wait_memory")
_FETCH_STALLS = ("fetch", "prefetch_late")
FATES = ("timely", "late", "useless")


@dataclass(frozen=True)
class SubopRow:
    """A sub-operator. Cycles; `first`, `last`: from its first core's entry to the last core's end of control work (its
    engines may go on). `busy`: of each engine, the core that it keeps busiest."""

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
    misses: int
    miss_cycles: float
    prefetched: dict[str, int]
    instructions: int
    busy: dict[str, int]
    single_cycles: int | None = None  # alone, cold, without the launch


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
    """The sub-operators launched one by one. `cycles` are the launches' own, `launch_ns` what each costs on top."""

    launches: int
    cycles: int
    launch_ns: float
    time_us: float


@dataclass(frozen=True)
class SimReport:
    """See the module docstring. `memory`: bytes and events of L2 and HBM over the run. `prefetched`: lines of code, all
    cores; `copies` of the code. `error_bound`: what outputs may be off by, relative to their largest value, because
    values are narrow; None: no bound can be given, because of the `selections`."""

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

    @property
    def speedup(self) -> float | None:
        """Time of the baseline over time of the fused run."""
        return None if self.baseline is None else self.baseline.time_us / self.time_us

    @property
    def pure_cycles(self) -> float:
        """Pure synchronisation cost, summed over the boundaries."""
        return sum(row.pure for row in self.subops)

    def engine_share(self, kind: str, engine: str) -> float:
        """Part of the run that an engine is busy, mean over the cores of a type ("cube", "vector") that work."""
        rows = [r for r in self.cores if r.kind == kind and r.busy.get(engine)]
        return float(np.mean([r.busy[engine] / self.cycles for r in rows])) if rows else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, stable keys."""
        return {"schema": "superkernel.sim_report/1", **asdict(self), "speedup": self.speedup}

    def text(self) -> str:
        """For a terminal."""
        return "\n".join(_text(self))

    def __str__(self) -> str:
        return self.text()


def measure(compiled: AicoreCompiled, io: Sequence[NDArray[Any]], *, baseline: bool, warm: bool = False) -> SimReport:
    """Run on the simulator and account for it. Outputs and states are those of the fused run. `warm`: as in
    `SimExecutable.simulate`."""
    executable, kept = compiled.executable, None
    states = io[len(compiled.graph.inputs) + len(compiled.graph.outputs) :]
    if baseline:
        kept = [state.copy() for state in states]
    run = executable.simulate(io, warm=warm)
    report = replace(report_of(compiled, run.launches), warm=warm)
    if not baseline:
        return report
    assert kept is not None
    spare = [*io[: len(compiled.graph.inputs)], *(a.copy() for a in io[len(compiled.graph.inputs) :])]
    for state, old in zip(spare[len(spare) - len(kept) :], kept, strict=True):
        state[...] = old
    single = executable.simulate(spare, single=True, warm=warm)
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
    )


def _part_rows(compiled: AicoreCompiled, launches: Sequence[LaunchResult]) -> Iterator[PartRow]:
    """Each part with what it really took."""
    target, launch_of = compiled.target, compiled.plan.launch_of
    for part in compiled.parts:
        numbers = {launch_of[i] for i in part.subops if i in launch_of}
        if part.predicted is None or not numbers:
            continue
        cycles = sum(span_of(compiled, launches[n])[1] for n in numbers)
        ways = (part.predicted.fused_ns, part.predicted.apart_ns)
        chosen, other = ways if part.fused else ways[::-1]
        yield PartRow(
            part.name,
            len(numbers),
            chosen / 1000,
            other / 1000 if len(part.subops) > 1 else None,
            (target.nanoseconds(cycles) + len(numbers) * float(target.dispatch.launch_ns)) / 1000,
        )


def span_of(compiled: AicoreCompiled, launch: LaunchResult) -> tuple[int, int]:
    """When a launch begins, and its cycles."""
    outside = len(compiled.schedule.subops)
    markers = [m for core in launch.cores for m in core.of_sub_operator(outside)]
    begin = min((m.control.first_cycle or 0 for m in markers if m.phase == PHASE_ENTRY), default=0)
    end = max((m.control.first_cycle or 0 for m in markers if m.phase == PHASE_BEHIND), default=launch.cycles)
    return begin, end - begin


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
        sum(m.control.misses for _, m in marks),
        _mean([float(sum(m.control.stalls[s] for m in markers for s in _FETCH_STALLS)) for _, markers in found]),
        _prefetched(m.control for _, m in marks),
        sum(m.control.instructions for _, m in marks),
        {name: cycles for name, cycles in sorted(busy.items()) if cycles},
    )


def _prefetched(counts: Iterable[ControlCounts]) -> dict[str, int]:
    """Prefetched lines by what became of them."""
    rows = list(counts)
    return {fate: sum(getattr(row, f"prefetched_{fate}") for row in rows) for fate in FATES}


def _latency_cycles(target: AicoreTarget, plan: AicorePlan, events: Iterable[int]) -> int:
    """What the boundary's events cost a core that finds everybody ready: they run side by side."""
    sync = target.sync
    cost = {Mode.GROUP: sync.group_ns, Mode.NOTIFY: sync.memory_flag_ns + sync.atomic_ns}
    return max((target.cycles(cost.get(plan.events[e].mode, sync.core_full_ns)) for e in events), default=0)


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
    time_us = (target.nanoseconds(cycles) + launch_ns * len(launched)) / 1000
    rows = tuple(replace(row, single_cycles=alone.get(row.subop)) for row in report.subops)
    # The fused kernel is launched too: once per part.
    fused_us = report.time_us + launch_ns * report.launches / 1000
    return replace(report, subops=rows, time_us=fused_us, baseline=Baseline(len(launched), cycles, launch_ns, time_us))


# Text -----------------------------------------------------------------------------------------------------------------


def _text(report: SimReport) -> list[str]:
    lines = [
        f"{report.graph} on {report.target} ({report.clock_mhz} MHz, simulated): {report.cycles} cycles, "
        f"{report.time_us:.2f} us" + (" with its launch" if report.baseline else ""),
        f"{len(report.subops)} sub-operators, {report.code_bytes} bytes of code, {report.instructions} instructions",
    ]
    if report.baseline is not None:
        base = report.baseline
        lines.append(
            f"one by one: {base.launches} launches of {base.launch_ns / 1000:.2f} us, {base.time_us:.2f} us in all: "
            f"{report.speedup:.2f}x the fused time"
        )
    if report.warm:
        lines.append("the second of two runs: L2 is as the first one left it")
    if report.fallbacks:
        lines.append(f"computed by NumPy between launches: {', '.join(report.fallbacks)}")
    if report.selections:
        lines.append(no_bound(report.selections))
    lines += _part_lines(report)
    wait = sum(r.wait for r in report.subops)
    lines.append(
        f"waits between sub-operators, mean over cores: {wait:.0f} cycles, {report.pure_cycles:.0f} of them pure "
        f"synchronisation, {wait - report.pure_cycles:.0f} imbalance"
    )
    memory = report.memory
    lines.append(
        f"L2: {memory['read_bytes']} bytes read, {memory['write_bytes']} written, {memory['misses']} of "
        f"{memory['hits'] + memory['misses']} lines missed; HBM: {memory['hbm_read_bytes']} read, "
        f"{memory['hbm_write_bytes']} written; same-line waits {memory['same_line_cycles']} cycles"
    )
    missed = sum(row.stalls.get(cause, 0) for row in report.cores for cause in _FETCH_STALLS) / len(report.cores)
    copies = "1 copy" if report.copies == 1 else f"{report.copies} copies"
    lines.append(
        f"instruction lines, all cores: {sum(row.misses for row in report.cores)} missed; prefetched: "
        + ", ".join(f"{report.prefetched[fate]} {fate}" for fate in FATES)
        + f"; waits for them {missed:.0f} cycles per core; {copies} of the code"
    )
    lines.append(_weights_line(report))
    lines += ["", *_engine_lines(report), "", *_subop_lines(report)]
    return lines


def _part_lines(report: SimReport) -> list[str]:
    """Where there is one part, in one launch, its prediction is one line."""
    found = []
    for row in report.parts[:ROWS_SHOWN]:
        other = "" if row.other_way_us is None else f" ({row.other_way_us:.2f} us the other way)"
        launches = "1 launch" if row.launches == 1 else f"{row.launches} launches"
        found.append(
            f"{row.part}, {launches}: predicted {row.predicted_us:.2f} us{other}, simulated {row.simulated_us:.2f} us"
        )
    if len(report.parts) > ROWS_SHOWN:
        found.append(f"... and {len(report.parts) - ROWS_SHOWN} more parts")
    return found


def _weights_line(report: SimReport) -> str:
    """The lines of L2 that SDMA was asked for."""
    asked = [(fate, report.memory[f"prefetched_{fate}"]) for fate in (*FATES, "present")]
    said = ", ".join(f"{lines} {fate}" for fate, lines in asked)
    return f"weights prefetched into L2: {said}" if any(n for _, n in asked) else f"weight prefetch {report.weights}"


def _engine_lines(report: SimReport) -> list[str]:
    lines = ["engine      busy  waits for flags  for memory   (part of the run, mean over cores that use it)"]
    for kind in ("cube", "vector"):
        rows = [r for r in report.cores if r.kind == kind]
        names = dict.fromkeys(n for r in rows for n in r.busy)
        for name in names:
            used = [r for r in rows if r.busy.get(name)]
            if used:
                shares = [_mean([getattr(r, f)[name] / report.cycles for r in used]) for f in _ENGINE_FIELDS]
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
        fates = "".join(f" {row.prefetched[fate]:>{width}}" for fate, width in zip(FATES, (7, 5, 7), strict=True))
        lines.append(
            f"{row.name[-28:]:<28} {row.kind:<12} {row.first:>8} {row.last:>8} {row.form:<8} {row.pure:>7.0f} "
            f"{row.imbalance:>7.0f} {row.misses:>7}{fates}{alone}"
        )
    if len(report.subops) > ROWS_SHOWN:
        lines.append(f"... and {len(report.subops) - ROWS_SHOWN} more")
    return lines
