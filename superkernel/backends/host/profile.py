"""Measuring a kernel of the host: launches of three kinds in turn, and the `Report` and `Trace` made of them.

Model: a *round* is a plain launch, a profiled one and, where asked for, the sub-operators one by one, without time
stamps and with them. Rounds run
without Python between them; stamps are copied in memory, and read when all have run. Where launches are short, each is
preceded by one of its own kind, so that the profiled launch finds caches as warm as the plain one; what is left between
the two is stated as the stamps' cost. Which rounds count says `conditions.py`.

Where the kernel is held against others (*variants*), each has as many rounds, and takes turns with it in `BLOCKS`
blocks of rounds: what changes about the machine meanwhile meets all of them.

A launch's *time* is the median of the plain launches; nothing else is called so. Parts of the time are means over the
middle half of the profiled launches (by total): unlike medians they add up.
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
from superkernel.backends.host.hang import PlanWords
from superkernel.backends.host.page import page_of
from superkernel.backends.host.replay import LaunchReplay
from superkernel.backends.host.report import (
    BoundaryReport,
    HardwareCounts,
    MedianInterval,
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
from superkernel.compilation.kernel_uses import computed_in, kernel_uses
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

    def middle(self) -> NDArray[np.int64]:
        """Of the kept rounds, those in the middle half by the profiled launch's ticks; at least one."""
        return self._middle(self.edges)

    def middle_singles(self) -> NDArray[np.int64]:
        """The same by the ticks of the sub-operators one by one."""
        return self._middle(self.single_edges)

    def _middle(self, edges: NDArray[np.uint64]) -> NDArray[np.int64]:
        ticks = (edges[:, 1] - edges[:, 0]).astype(np.int64)
        kept = np.flatnonzero(self.kept)
        order = kept[np.argsort(ticks[kept], kind="stable")]
        quarter = len(order) // 4
        return order[quarter : len(order) - quarter]


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
    whole = {name: _joined(parts, watch, compiled.cores) for name, parts in found.items()}
    return whole.pop(""), whole


def _joined(parts: Sequence[_core.ProfileRows], watch: Watch, cores: int) -> Rounds:
    names = Literal[
        "plain_ns", "profiled_ns", "single_ns", "edges", "events", "single_edges", "single_events", "preemptions",
        "chain_ticks",
    ]  # fmt: skip

    def column(name: names) -> Array:
        return np.concatenate([part[name] for part in parts])

    preemptions = column("preemptions")
    return Rounds(
        column("plain_ns"), column("profiled_ns"), column("single_ns"), column("edges"), column("events"), preemptions,
        watch.conditions(preemptions.sum(axis=1), cores, frequencies(column("chain_ticks"), 1e9 / _core.tsc_hz())),
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
    rows = (_variant(name, kernel, others[name], ns_per_tick) for name, kernel in (variants or {}).items())
    return replace(report, variants=tuple(rows))


def _variant(name: str, compiled: HostCompiled, measured: Rounds, ns_per_tick: float) -> Variant:
    figures = _figures(compiled, measured, ns_per_tick)
    middle = [figures[int(row)] for row in measured.middle()]
    parts = _parts(middle, list(figures.values()), compiled.plan.cores) if measured.conditions.trusted else ()
    run = MedianInterval.of(measured.plain[measured.kept])
    return Variant(name, run, compiled.plan.waits, sum(compiled.plan.sets), parts)


def _figures(compiled: HostCompiled, measured: Rounds, ns_per_tick: float) -> dict[int, RunFigures]:
    """Of the kept rounds, by number."""
    moving = moving_of(compiled)
    return {
        int(row): read_stamps(compiled.plan, measured.events[row], ns_per_tick, measured.edges[row].tolist(), moving)
        for row in np.flatnonzero(measured.kept)
    }


def _single_parts(compiled: HostCompiled, measured: Rounds, ns_per_tick: float) -> tuple[TimePart, ...]:
    """What the sub-operators one by one consist of, where that was asked for and can be said."""
    if not len(measured.single_edges) or not measured.conditions.trusted:
        return ()
    moving, events, edges = moving_of(compiled), measured.single_events, measured.single_edges
    figures = {
        int(row): read_single_stamps(events[row], edges[row].tolist(), ns_per_tick, moving)
        for row in np.flatnonzero(measured.kept)
    }
    middle = [figures[int(row)] for row in measured.middle_singles()]
    return _parts(middle, list(figures.values()), compiled.cores)


def report_of(
    compiled: HostCompiled, measured: Rounds, ns_per_tick: float, counters: HardwareCounts | None = None
) -> Report:
    """The report of what was measured."""
    plan, kept = compiled.plan, measured.kept
    figures = _figures(compiled, measured, ns_per_tick)
    middle = [figures[int(row)] for row in measured.middle()]
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
    work, peak = _work(compiled, middle, list(figures.values())), _peak(compiled)
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
        one_by_one_parts=_single_parts(compiled, measured, ns_per_tick),
        work=work,
        precision=formats_text(compiled.options.precision, tuple(formats_in_force(compiled.schedule).items())),
        run=run,
        profiled_ns=float(np.mean([f.total for f in middle])),
        stamps=MedianInterval.of((measured.profiled - measured.plain)[kept]),
        parts=_parts(middle, list(figures.values()), plan.cores) if measured.conditions.trusted else (),
        conditions=measured.conditions,
        counters=counters,
        kernels=kernel_uses(compiled),
        gains=_gains(compiled, measured, ns_per_tick, boundaries, work) if measured.conditions.trusted else (),
        peak=peak,
        timeline=_timeline(compiled, measured, ns_per_tick),
        page_of=partial(page_of, compiled.schedule),
    )


def _timeline(compiled: HostCompiled, measured: Rounds, ns_per_tick: float) -> Trace:
    """The launch with the median time."""
    middle = measured.middle()
    notes = tuple(measured.conditions.sentences())
    return trace_of(compiled, measured.events[int(middle[len(middle) // 2])], ns_per_tick, notes)


def _gains(
    compiled: HostCompiled,
    measured: Rounds,
    ns_per_tick: float,
    boundaries: Sequence[BoundaryReport],
    work: Sequence[Work],
) -> tuple[Gain, ...]:
    """What would help most, from the launch with the median time, largest first."""
    plan, middle = compiled.plan, measured.middle()
    row = int(middle[len(middle) // 2])
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
    everything = now - replay.time_ns(free=[index for indices in waits.values() for index in indices])
    found.append(Gain("no core ever waits", everything / whole))
    figures = read_stamps(plan, measured.events[row], ns_per_tick)
    for subop, _ in sorted(figures.subop.items(), key=lambda item: -item[1])[:GAINS_TRIED]:
        factor, said = faster(_of_roof(work[subop], _peak(compiled)))
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


def _parts(middle: Sequence[RunFigures], kept: Sequence[RunFigures], cores: int) -> tuple[TimePart, ...]:
    """What a profiled launch's time consists of, mean over cores. They sum to it."""

    def of(figures: RunFigures) -> dict[str, float]:
        found = {
            "work": float(figures.busy.sum() - figures.movement.sum()),
            "movement": float(figures.movement.sum()),
            "pure sync": float(figures.pure.sum() + figures.sets.sum()),
            "imbalance": float(figures.imbalance.sum()),
            "end": float(figures.end.sum()),
            "launch": float(figures.launch.sum()),
        }
        found = {name: ns / cores for name, ns in found.items()}
        return found | {"rest": figures.total - sum(found.values())}

    means, each = [of(f) for f in middle], [of(f) for f in kept]
    total = float(np.mean([f.total for f in middle])) or 1.0
    rows = []
    for name in means[0]:
        interval = MedianInterval.of([row[name] for row in each])
        ns = float(np.mean([row[name] for row in means]))
        rows.append(TimePart(name, ns, ns / total, interval.low_ns, interval.high_ns))
    return tuple(rows)


def _work(compiled: HostCompiled, middle: Sequence[RunFigures], kept: Sequence[RunFigures]) -> tuple[Work, ...]:
    """A row per sub-operator."""
    schedule = compiled.schedule
    cores: dict[int, set[int]] = {}
    for task in schedule.tasks:
        cores.setdefault(task.subop, set()).add(task.core)
    rows = []
    for sub, flops in zip(schedule.subops, flops_of(compiled.graph, schedule), strict=True):
        busy = float(np.mean([f.subop.get(sub.index, 0.0) for f in middle]))
        each = MedianInterval.of([f.subop.get(sub.index, 0.0) for f in kept])
        nbytes = sum(operand.type.nbytes for operand in sub.body.operands)
        on = len(cores.get(sub.index, ()))
        what = computed_in(sub, schedule.tilings[sub.index])
        names, low, high = compiled.symbols[sub.index], each.low_ns, each.high_ns
        rows.append(Work(sub.index, sub.name, sub.kernel, on, busy, flops, nbytes, what, names, low, high))
    return tuple(rows)


def traced(compiled: HostCompiled, io: Sequence[Array]) -> Trace:
    """The launch with the median time of many as a timeline. States change."""
    measured, _ = run_rounds(compiled, io, 0, single=False)
    return _timeline(compiled, measured, 1e9 / _core.tsc_hz())
