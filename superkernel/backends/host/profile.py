"""Measuring a kernel of the host: launches of three kinds in turn, and the `Report` and `Trace` made of them.

Model: a *round* is a plain launch, a profiled one and, where asked for, the sub-operators one by one, without time
stamps and with them. Rounds run
without Python between them; stamps are copied in memory, and read when all have run. Where launches are short, each is
preceded by one of its own kind, so that the profiled launch finds caches as warm as the plain one; what is left between
the two is stated as the stamps' cost. Which rounds count says `conditions.py`.

Where the kernel is held against others (*variants*), each has as many rounds, and takes turns with it in `BLOCKS`
blocks of rounds: what changes about the machine meanwhile meets all of them.

A launch's *time* is the median of the plain launches; nothing else is called so. All times are of the counter that
stamps are read from. Parts of the time are means over the middle half of the profiled launches, by total
(`estimates.py`); *rest* is what they leave of the launch's time, below zero by what the stamps cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.computed_in import formats_in_force, formats_text
from superkernel.backends.host.conditions import Conditions, Watch, frequencies, kept_launches
from superkernel.backends.host.estimates import MedianInterval, RatioInterval, middle_half, middle_means
from superkernel.backends.host.hang import PlanWords
from superkernel.backends.host.page import page_of
from superkernel.backends.host.replay import LaunchReplay
from superkernel.backends.host.report import (
    BoundaryReport,
    HardwareCounts,
    Report,
    TimePart,
    Variant,
    Work,
)
from superkernel.backends.host.stamps import (
    RunFigures,
    core_stamps,
    moving_of,
    read_single_stamps,
    read_stamps,
    trace_of,
)
from superkernel.backends.page_parts import flops_of
from superkernel.compilation.kernel_uses import KernelUses, computed_in
from superkernel.display.page import Gain
from superkernel.display.tracing import Trace

WARMUP_RUNS = 5
BUDGET_NS = 5e8  # for the launches of a report without a comparison
ROUNDS_MIN, ROUNDS_MAX = 15, 200
BLOCKS = 8
STAMPS_BYTES_MAX = 1 << 24  # read in Python, step by step
SHORT_NS = 5e6  # launches below are preceded by one of their kind
COUNTED_LAUNCHES = 20
GAINS_TRIED = 8  # boundaries and sub-operators, the costliest
LEAST_FASTER = 0.95  # of its time: a sub-operator that its roof leaves less than that to gain is no remedy
Array = NDArray[Any]


@dataclass(frozen=True)
class Rounds:
    """What was measured, by round: ns of each kind of launch (`single` may be empty, and its stamps with it), stamps,
    and who may be kept."""

    plain: NDArray[np.int64]
    profiled: NDArray[np.int64]
    single: NDArray[np.int64]
    edges: NDArray[np.uint64]
    events: NDArray[np.uint64]
    preemptions: NDArray[np.int64]  # [rounds, kinds of launches]
    conditions: Conditions
    single_edges: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    single_events: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 1, 0, 2), np.uint64))

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Rounds that no disturbance met; all where there are too few of them."""
        return kept_launches(self.preemptions.sum(axis=1))[0]

    @property
    def median_row(self) -> int:
        """Of the kept rounds, the one whose profiled launch takes the median of the ticks."""
        kept = np.flatnonzero(self.kept)
        middle = kept[middle_half((self.edges[kept, 1] - self.edges[kept, 0]).astype(np.int64))]
        return int(middle[len(middle) // 2])


def run_rounds(
    compiled: HostCompiled,
    io: Sequence[Array],
    rounds: int,
    *,
    single: bool,
    variants: Mapping[str, HostCompiled] | None = None,
) -> tuple[Rounds, dict[str, Rounds]]:
    """Measure the kernel, and variants of it by name. `rounds` 0: as many as `BUDGET_NS` allow. States change."""
    kernels = {"": compiled, **(variants or {})}
    once = float(np.median(compiled.executable.time(io, 3, WARMUP_RUNS)))
    words = max(1, 2 * len(compiled.schedule.subops) * single, *(k.image.spec.events_words for k in kernels.values()))
    stamps_bytes = 8 * compiled.cores * words
    short = once < SHORT_NS
    if rounds == 0:
        rounds = int(np.clip(BUDGET_NS / max(once * (4 if short else 2), 1.0), ROUNDS_MIN, ROUNDS_MAX))
    rounds = min(rounds, max(ROUNDS_MIN, STAMPS_BYTES_MAX // stamps_bytes))
    blocks = np.diff(np.linspace(0, rounds, min(rounds, BLOCKS if variants else 1) + 1).astype(int))
    watch = Watch()
    found: dict[str, list[_core.ProfileRows]] = {name: [] for name in kernels}
    for number, block in enumerate(blocks):
        warmup = 1 if number else WARMUP_RUNS
        for name, kernel in kernels.items():
            part = kernel.executable.profile(io, int(block), warmup, settle=short, single=single and not name)
            found[name].append(part)
    whole = {name: _joined(parts, watch, compiled) for name, parts in found.items()}
    return whole.pop(""), whole


def _joined(parts: Sequence[_core.ProfileRows], watch: Watch, compiled: HostCompiled) -> Rounds:
    names = Literal[
        "plain_ns", "profiled_ns", "single_ns", "edges", "events", "single_edges", "single_events", "preemptions",
        "chain_ticks",
    ]  # fmt: skip

    def column(name: names) -> Array:
        return np.concatenate([part[name] for part in parts])

    preemptions = column("preemptions")
    return Rounds(
        column("plain_ns"), column("profiled_ns"), column("single_ns"), column("edges"), column("events"), preemptions,
        watch.conditions(
            preemptions.sum(axis=1), compiled.plan.cores, frequencies(column("chain_ticks"), 1e9 / _core.tsc_hz()),
            compiled.target.handover_ns,
        ),
        column("single_edges"), column("single_events"),
    )  # fmt: skip


def measure(
    compiled: HostCompiled, io: Sequence[Array], rounds: int, variants: Mapping[str, HostCompiled] | None = None
) -> Report:
    """Profile and, where `rounds` > 0, compare fused with one by one, and with variants, in as many rounds. States
    change."""
    measured, others = run_rounds(compiled, io, rounds, single=rounds > 0, variants=variants)
    counted = compiled.executable.count(io, COUNTED_LAUNCHES) / COUNTED_LAUNCHES
    ns_per_tick = 1e9 / _core.tsc_hz()
    report = report_of(compiled, measured, ns_per_tick, HardwareCounts.of(counted))
    rows = (_variant(name, kernel, measured, others[name], ns_per_tick) for name, kernel in (variants or {}).items())
    return replace(report, variants=tuple(rows))


def _variant(name: str, compiled: HostCompiled, kernel: Rounds, measured: Rounds, ns_per_tick: float) -> Variant:
    """A variant beside the kernel, whose rounds have the same numbers as its own."""
    trusted, both = measured.conditions.trusted, measured.kept & kernel.kept
    parts = _parts(_figures(compiled, measured, ns_per_tick), measured.plain[measured.kept]) if trusted else ()
    told = trusted and kernel.conditions.trusted and both.any()
    ratio = RatioInterval.of(measured.plain[both], kernel.plain[both]) if told else None
    run = MedianInterval.of(measured.plain[measured.kept])
    return Variant(name, run, compiled.plan.waits, sum(compiled.plan.sets), parts, ratio)


def _figures(compiled: HostCompiled, measured: Rounds, ns_per_tick: float) -> list[RunFigures]:
    """Of the kept rounds."""
    moving = moving_of(compiled)
    return [
        read_stamps(compiled.plan, measured.events[row], ns_per_tick, measured.edges[row].tolist(), moving)
        for row in np.flatnonzero(measured.kept)
    ]


def _single_parts(compiled: HostCompiled, measured: Rounds, ns_per_tick: float) -> tuple[TimePart, ...]:
    """What the sub-operators one by one consist of, where that was asked for and can be said."""
    if not len(measured.single_edges) or not measured.conditions.trusted:
        return ()
    moving, events, edges = moving_of(compiled), measured.single_events, measured.single_edges
    figures = [
        read_single_stamps(events[row], edges[row].tolist(), ns_per_tick, moving)
        for row in np.flatnonzero(measured.kept)
    ]
    return _parts(figures, measured.single[measured.kept])


def report_of(
    compiled: HostCompiled, measured: Rounds, ns_per_tick: float, counters: HardwareCounts | None = None
) -> Report:
    """The report of what was measured."""
    plan, kept = compiled.plan, measured.kept
    figures = _figures(compiled, measured, ns_per_tick)
    middle = [figures[int(row)] for row in middle_half([f.total for f in figures])]
    pure, imbalance, busy, sets = (
        np.mean([getattr(f, name) for f in middle], axis=0) for name in ("pure", "imbalance", "busy", "sets")
    )
    run = MedianInterval.of(measured.plain[kept])
    compared = len(measured.single) > 0
    subops, words = compiled.schedule.subops, PlanWords(plan, compiled.schedule)
    waits = plan.waits_ahead()
    boundaries = tuple(
        BoundaryReport(
            b.subop,
            subops[b.subop].name,
            b.form.value,
            b.reason,
            len(waits[b.subop]),
            float(sum(pure[w] for w in waits[b.subop])),
            float(sum(imbalance[w] for w in waits[b.subop])),
            words.why_waits(waits[b.subop][0]) if waits[b.subop] else "",
        )
        for b in plan.boundaries
    )
    work, peak = _work(compiled, figures), _peak(compiled)
    return Report(
        graph=compiled.graph.name,
        target=f"host {compiled.target.tier}",
        cores=compiled.cores,
        nodes=len(compiled.source.nodes),
        subops=len(subops),
        distinct_kernels=len({s for row in compiled.symbols for s in row}),
        waits=plan.waits,
        sets=sum(plan.sets),
        naive_syncs=max(0, len(subops) - 1),
        run_ns=run.median_ns,
        busy_ns=tuple(map(float, busy)),
        pure_ns=float((pure.sum() + sets.sum()) / plan.cores),
        imbalance_ns=float(imbalance.sum() / plan.cores),
        boundaries=boundaries,
        fallbacks=tuple(
            f"{subops[i].name} ({subops[i].body.op}), {sum(o.type.nbytes for o in subops[i].body.operands)} bytes"
            for i in compiled.image.host_calls
        ),
        fused=run if compared else None,
        one_by_one=MedianInterval.of(measured.single[kept]) if compared else None,
        ratio=RatioInterval.of(measured.single[kept], measured.plain[kept]) if compared else None,
        one_by_one_parts=_single_parts(compiled, measured, ns_per_tick),
        work=work,
        precision=formats_text(compiled.options.precision, tuple(formats_in_force(compiled.schedule).items())),
        run=run,
        profiled_ns=float(np.mean([f.total for f in middle])),
        stamps=MedianInterval.of((measured.profiled - measured.plain)[kept]),
        parts=_parts(figures, measured.plain[kept]) if measured.conditions.trusted else (),
        conditions=measured.conditions,
        counters=counters,
        kernels=tuple(KernelUses(compiled)),
        gains=_gains(compiled, measured, ns_per_tick, boundaries, work) if measured.conditions.trusted else (),
        peak=peak,
        timeline=_timeline(compiled, measured, ns_per_tick),
        page_of=partial(page_of, compiled.schedule),
    )


def _timeline(compiled: HostCompiled, measured: Rounds, ns_per_tick: float) -> Trace:
    """The launch with the median time."""
    notes = tuple(measured.conditions.sentences())
    return trace_of(compiled, measured.events[measured.median_row], ns_per_tick, notes)


def _gains(
    compiled: HostCompiled,
    measured: Rounds,
    ns_per_tick: float,
    boundaries: Sequence[BoundaryReport],
    work: Sequence[Work],
) -> tuple[Gain, ...]:
    """What would help most, from the launch with the median time, largest first."""
    plan, row = compiled.plan, measured.median_row
    stamps = [core_stamps(plan, measured.events[row], core, ns_per_tick) for core in range(plan.cores)]
    replay = LaunchReplay(plan, stamps)
    whole = (int(measured.edges[row, 1]) - int(measured.edges[row, 0])) * ns_per_tick
    now = replay.time_ns()
    found = [Gain("launching for free", 1 - now / whole)]
    costly = sorted(boundaries, key=lambda b: -b.pure_ns - b.imbalance_ns)[:GAINS_TRIED]
    waits = plan.waits_ahead()
    for boundary in costly:
        saved = now - replay.time_ns(free=waits[boundary.subop])
        found.append(Gain(f"no core waits ahead of sub-operator {boundary.subop} ({boundary.name})", saved / whole))
    if sum(map(bool, waits.values())) > 1:
        everything = now - replay.time_ns(free=[index for indices in waits.values() for index in indices])
        found.append(Gain("no core ever waits", everything / whole))
    figures = read_stamps(plan, measured.events[row], ns_per_tick)
    for subop, _ in sorted(figures.subop.items(), key=lambda item: -item[1])[:GAINS_TRIED]:
        factor, said = faster(_of_roof(work[subop], _peak(compiled)))
        if factor > LEAST_FASTER:
            continue
        saved = now - replay.time_ns(factors={subop: factor})
        found.append(Gain(f"sub-operator {subop} ({work[subop].name}) {said}", saved / whole))
    return tuple(sorted((g for g in found if g.share > 0), key=lambda g: (-g.share, g.what)))


def _peak(compiled: HostCompiled) -> tuple[float, float]:
    """What the cores can do together: flops per ns, bytes per ns."""
    return compiled.cores * compiled.target.flops_per_ns, compiled.cores * compiled.target.l2_bytes_per_ns


def _of_roof(work: Work, peak: tuple[float, float]) -> float:
    """What a sub-operator reaches of what the cores can do, as part of 1; 0 where that is not known."""
    if work.computed_in != "f32" or not all(peak):
        return 0.0
    return max(work.gflops / peak[0], work.gbytes / peak[1])


def faster(of_roof: float) -> tuple[float, str]:
    """What time a sub-operator could do with, as part of what it takes: half, or what its roof leaves."""
    factor = min(1.0, max(0.5, of_roof))
    return factor, "twice as fast" if factor == 0.5 else f"as fast as the cores can be, {1 / factor:.1f} times"


def _parts(figures: Sequence[RunFigures], plain: NDArray[np.int64]) -> tuple[TimePart, ...]:
    """What a launch's time consists of: means over the cores that left stamps, which may be fewer than the kernel has,
    and the rest, so that they sum to the median of the launches without stamps. `plain`: these, in ns, by round."""

    def of(figures: RunFigures) -> dict[str, float]:
        found = {
            "work": float(figures.busy.sum() - figures.movement.sum()),
            "movement": float(figures.movement.sum()),
            "pure sync": float(figures.pure.sum() + figures.sets.sum()),
            "imbalance": float(figures.imbalance.sum()),
            "end": float(figures.end.sum()),
            "launch": float(figures.launch.sum()),
        }
        return {name: ns / len(figures.busy) for name, ns in found.items()}

    rows, totals = [of(f) for f in figures], np.array([f.total for f in figures])
    means, low, high = middle_means(np.array([list(row.values()) for row in rows]), totals)
    run, without = MedianInterval.of(plain).median_ns, MedianInterval.of(plain - totals)
    rest = run - float(means.sum())
    ends = min(rest, without.low_ns), max(rest, without.high_ns)
    parts = zip(rows[0], means.tolist(), low.tolist(), high.tolist(), strict=True)
    return tuple(
        TimePart(name, ns, ns / (run or 1.0), *interval) for name, ns, *interval in (*parts, ("rest", rest, *ends))
    )


def _work(compiled: HostCompiled, figures: Sequence[RunFigures]) -> tuple[Work, ...]:
    """A row per sub-operator."""
    schedule = compiled.schedule
    cores: dict[int, set[int]] = {}
    for task in schedule.tasks:
        cores.setdefault(task.subop, set()).add(task.core)
    times = np.array([[f.subop.get(sub.index, 0.0) for sub in schedule.subops] for f in figures])
    means, low, high = middle_means(times, [f.total for f in figures])
    flops = flops_of(compiled.graph, schedule)
    return tuple(
        Work(
            sub.index,
            sub.name,
            sub.kernel,
            len(cores.get(sub.index, ())),
            float(means[place]),
            flops[place],
            sum(operand.type.nbytes for operand in sub.body.operands),
            computed_in(sub, schedule.tilings[sub.index]),
            compiled.symbols[sub.index],
            float(low[place]),
            float(high[place]),
        )
        for place, sub in enumerate(schedule.subops)
    )


def traced(compiled: HostCompiled, io: Sequence[Array]) -> Trace:
    """The launch with the median time of many as a timeline. States change."""
    measured, _ = run_rounds(compiled, io, 0, single=False)
    return _timeline(compiled, measured, 1e9 / _core.tsc_hz())
