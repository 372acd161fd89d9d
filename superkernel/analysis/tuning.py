"""A model tuned on the machine at hand: the kernels and tilings that could be the best of each of its sub-operators are
measured, and kept in the timing database (`target/timings.py`), which selection and placement go by from then on.

Model: a *candidate* is one kernel function on its own: kernel, body and tiling. Those that matter for a sub-operator
are the tilings of its kernel, and the competing kernels at their best tiling, whose predicted times lie within
`NEAR` times the least. Times are of one core: all units of work, activations warm, constants from where a launch of the
model finds them (L2, L3 or memory), which copies of them that take turns see to. Candidates of one body take turns, and
the least of many slices counts. Then the model is planned again with what is known, which may choose others; that ends
when everything near is measured, and with it whatever is chosen.

Invariants: an entry is measured once: a second run measures nothing new. What was measured is kept whatever ends the
run: a spent budget, Ctrl-C, an error. Bits: as with a machine's profile, what was measured may decide which kernel
computes something.

What it does not measure: several cores at once (the model of the machine scales what one core takes), kernels from
outside, whose code changes, and what depends on data (grouped products).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.analysis.errors import Array
from superkernel.api import compile, thread_count
from superkernel.backends.host.estimates import MedianInterval, RatioInterval
from superkernel.backends.host.planner import HostPlanner
from superkernel.codegen.host.constants import aligned_bytes
from superkernel.codegen.host.features import detect_cpu, forget_cpu
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.compilation.compiled import Job, Planned
from superkernel.compilation.planning import plan_graph
from superkernel.compilation.stages import Stages
from superkernel.core.errors import InputError, UnsupportedError
from superkernel.core.limits import usable_cpus
from superkernel.core.options import Options
from superkernel.ir.body import Body, Operand, Role
from superkernel.ir.graph import Graph
from superkernel.machine import keep_timings, kept_timings
from superkernel.ops.grouped import TILINGS
from superkernel.registry.requirement import body_of
from superkernel.scheduler.cost import CostBook
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.place import streamed_bytes
from superkernel.scheduler.tiling import CostedTiling
from superkernel.scheduler.timed import code_text, constant_bytes, measured_share
from superkernel.sync.plan import Plan
from superkernel.target.cpu import THREADS_MAX, CpuTarget
from superkernel.target.timings import Timings, timing_key

NEAR = 1.5  # predicted times up to so many times the least are candidates
BUDGET_S = 60.0
ROUNDS, ROUND_S = 40, 2e-3  # that compare before and after, and how long each takes at least
CHANGES_SHOWN = 20
_ON_DATA = frozenset({*TILINGS, "grouped_matmul"})  # how much they do depends on data
_SLICE_S, _SLICES, _SLICES_MIN = 2e-4, 25, 5  # of a candidate: how long one takes at least, how many there are
_CANDIDATE_S = 0.1  # after which the least number will do
_COPIES_MAX, _COPIES_BYTES_MAX = 64, 256 << 20  # of constants that take turns

Tiled = CostedTiling[CpuTarget]


@dataclass(frozen=True, slots=True)
class TuningCandidate:
    """One kernel function, what it is predicted to take on one core, and the key of its entry."""

    kernel: str
    body: Body
    tiling: Tiled
    predicted_ns: float
    target: CpuTarget

    @property
    def key(self) -> str:
        """Of its entry in the timing database."""
        source = self.target.constants_from(constant_bytes(self.body))
        return timing_key(code_text(self.kernel, self.body, self.tiling), source)


@dataclass(frozen=True, slots=True)
class TuningChange:
    """What is otherwise about how a sub-operator is computed: kernel, fields of the tiling, cores; before -> after."""

    subop: str
    what: tuple[str, ...]


@dataclass(frozen=True)
class LaunchComparison:
    """A launch before and after, and how many times as fast it became: the median of rounds, with its 95 % interval."""

    before: MedianInterval
    after: MedianInterval
    speedup: float
    low: float
    high: float

    @staticmethod
    def of(before: Sequence[float], after: Sequence[float]) -> LaunchComparison:
        """From ns per round, both of a round measured beside one another."""
        ratio = RatioInterval.of(before, after)
        found = MedianInterval.of(before), MedianInterval.of(after)
        return LaunchComparison(*found, ratio.median, ratio.low, ratio.high)

    def __str__(self) -> str:
        times = f"a launch: {self.before} before, {self.after} after"
        return f"{times}, {self.speedup:.3f} times as fast [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Tuned:
    """See the module docstring. `measured`: entries made now; `known`: those of the model's candidates that there were;
    `left`: candidates that the budget did not reach. `comparison`: None where nothing is chosen otherwise."""

    graph: str
    target: str
    cores: int
    measured: int
    known: int
    left: int
    seconds: float
    changes: tuple[TuningChange, ...]
    comparison: LaunchComparison | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"schema": "superkernel.tuned/1", **asdict(self)}

    def text(self) -> str:
        """For a terminal."""
        left = f"; {self.left} more than the budget allowed: run it again to go on" if self.left else ""
        lines = [
            f"{self.graph} on {self.target}, {self.cores} cores: {self.measured} candidates measured in "
            f"{self.seconds:.1f} s, {self.known} were known{left}",
            *(f"  {c.subop}: {', '.join(c.what)}" for c in self.changes[:CHANGES_SHOWN]),
            *([f"  and {more} more"] if (more := len(self.changes) - CHANGES_SHOWN) > 0 else []),
            "nothing is chosen otherwise than before" if self.comparison is None else str(self.comparison),
        ]
        return "\n".join(lines)


def tune(
    graph: Graph,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    budget_s: float = BUDGET_S,
    again: bool = False,
    inputs: Mapping[str, Array] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Measure what matters for a graph on this machine, keep it, and compare a launch before with one after.

    threads, options: as of `superkernel.compile`. budget_s: of measuring, compilation of the candidates included.
    again: what is known of the model is measured anew. inputs: of the compared launches (default: random).
    progress: is told what is being measured. Raises what compiling raises; MachineError where times cannot be kept,
    as where SK_MACHINE names another machine's profile."""
    if not budget_s >= 0:
        raise InputError("not a time", location="budget_s", expected="seconds >= 0", found=repr(budget_s))
    start, chosen = time.monotonic(), Options.of(options)
    cores = thread_count(threads) or min(THREADS_MAX, usable_cpus())
    known = kept_timings()
    keep_timings(known)  # before anything takes time: can it be kept?
    before = replace(detect_cpu(), timings=known)
    entries, fresh, asked = dict(known.ns), set[str](), set[str]()
    first, left = _planned(graph, before, cores, chosen)[1], 0
    try:
        while True:
            cpu = replace(before, timings=Timings(dict(entries)))
            found = {c.key: c for c in candidates(*_planned(graph, cpu, cores, chosen))}
            asked.update(found)
            wanted = [c for key, c in found.items() if key not in fresh and (again or key not in entries)]
            groups = _by_body(wanted)
            for done, group in enumerate(groups):
                if time.monotonic() - start > budget_s:
                    left = sum(map(len, groups[done:]))
                    break
                progress(f"{done + 1} of {len(groups)}: {len(group)} candidates of {group[0].body.op or 'a program'}")
                for candidate, ns in zip(group, measured_ns(group), strict=True):
                    if ns is not None:
                        entries[candidate.key] = ns
                    fresh.add(candidate.key)
            if left or not groups:
                break
    finally:
        keep_timings(Timings(entries))
        forget_cpu()
    seconds = time.monotonic() - start
    after = replace(before, timings=Timings(entries))
    changes = tuple(_changes(first, _planned(graph, after, cores, chosen)[1]))
    comparison = _compared(graph, (before, after), cores, chosen, inputs) if changes else None
    made, had = len(fresh & entries.keys()), len((asked & known.ns.keys()) - fresh)
    return Tuned(graph.name, before.tier, cores, made, had, left, seconds, changes, comparison)


def _planned(graph: Graph, cpu: CpuTarget, cores: int, options: Options) -> tuple[HostPlanner, Planned[Plan]]:
    """The model as it is planned with what is known."""
    job = Job(graph, cpu, cores, options)
    planner = HostPlanner(job, HOST_KERNELS)
    return planner, plan_graph(Stages(frozenset()), job, planner)


def candidates(planner: HostPlanner, planned: Planned[Plan]) -> Iterator[TuningCandidate]:
    """What could be the best for some sub-operator, by what is known and predicted."""
    job, seen = planner.job, set[tuple[str, Body]]()
    limit = job.options.max_workspace_bytes
    streaming = replace(job.target, constants_bytes=streamed_bytes(planned.grouping))
    book = CostBook(streaming, job.cores, HOST_KERNELS.family_of, None if isinstance(limit, str) else limit)
    for sub in planned.grouping.subops:
        if (sub.kernel, sub.body) in seen or not _measurable(sub.kernel, sub.body):
            continue
        seen.add((sub.kernel, sub.body))
        costs = [(t, book.partition(sub, t, 1).longest_ns) for t in book.tilings(sub)]
        yield from _near([TuningCandidate(sub.kernel, sub.body, t, ns, streaming) for t, ns in costs])
        selection = planner.chooser.selection_of(sub)
        level = [c.row.kernel for c in selection.explanation.eligible if c.row.role is selection.row.role]
        body = body_of(selection.requirement)
        if body is None or len(set(level)) < 2:
            continue
        rivals = []
        for kernel in dict.fromkeys(level):
            with contextlib.suppress(UnsupportedError):
                tilings = HOST_KERNELS.family_of(kernel).tilings(kernel, body, job.target)
                rivals.append(min((_rival(kernel, body, t, job.target) for t in tilings), key=_predicted))
        yield from (c for c in _near(rivals) if _measurable(c.kernel, body))


def _measurable(kernel: str, body: Body) -> bool:
    return kernel != HOST_REFERENCE and body.op not in _ON_DATA and not HOST_KERNELS.sources_of(kernel)


def _rival(kernel: str, body: Body, tiling: Tiled, target: CpuTarget) -> TuningCandidate:
    share = measured_share(kernel, body, tiling, target)
    predicted = tiling.cost_ns(body, 0, tiling.units, target) * (1.0 if share is None else share)
    return TuningCandidate(kernel, body, tiling, predicted, target)


def _predicted(candidate: TuningCandidate) -> float:
    return candidate.predicted_ns


def _near(found: Sequence[TuningCandidate]) -> list[TuningCandidate]:
    least = min(map(_predicted, found), default=0.0)
    return [c for c in found if c.predicted_ns <= NEAR * least]


def _by_body(found: Sequence[TuningCandidate]) -> list[list[TuningCandidate]]:
    """Together what is compared; what takes longest first."""
    groups: dict[tuple[Body, str], list[TuningCandidate]] = {}
    for c in found:
        groups.setdefault((c.body, c.target.constants_from(constant_bytes(c.body))), []).append(c)
    return sorted(groups.values(), key=lambda group: -max(map(_predicted, group)))


def measured_ns(group: Sequence[TuningCandidate]) -> list[float | None]:
    """ns of all units of each candidate of one body on one core; None where it cannot be compiled. Candidates of one
    code have one time."""
    timers: dict[bytes, KernelTimer] = {}
    owners: list[bytes | None] = []
    for candidate in group:
        try:
            timer = KernelTimer(candidate)
        except UnsupportedError:
            owners.append(None)
        else:
            owners.append(timer.code)
            timers.setdefault(timer.code, timer)
    best = dict.fromkeys(timers, math.inf)
    for turn in range(_SLICES):
        for code, timer in timers.items():
            if turn < _SLICES_MIN or timer.spent_s < _CANDIDATE_S:
                best[code] = min(best[code], timer.slice_ns())
    return [None if code is None else max(1.0, round(best[code], 1)) for code in owners]


class KernelTimer:
    """A candidate compiled, with operands; what calling it costs is taken off."""

    def __init__(self, candidate: TuningCandidate) -> None:
        body, cpu = candidate.body, candidate.target
        self._kernel = StandaloneKernel(candidate.kernel, body, candidate.tiling, cpu)
        self.code = self._kernel.object
        self._units, self.spent_s = candidate.tiling.units, 0.0
        rng = np.random.default_rng(0)
        packed = self._kernel.pack([_operand(rng, operand) for operand in body.operands])
        constants = [i for i, operand in enumerate(body.operands) if operand.role is Role.CONSTANT]
        copies = _copies(sum(packed[i].nbytes for i in constants), cpu, constant_bytes(body))
        self._sets = [packed] + [
            [_copy(a) if i in constants else a for i, a in enumerate(packed)] for _ in range(copies - 1)
        ]
        self._calls = [self._kernel.prepared(arrays) for arrays in self._sets]
        self._turn, self._count = 0, 1
        self._empty_ns = min(self._loop(0, 20) for _ in range(5))
        once = max(self._loop(self._units, 1), 1.0)
        self._count = max(1, min(10_000, int(_SLICE_S * 1e9 / once)))

    def slice_ns(self) -> float:
        """ns of a call, over one slice."""
        return self._loop(self._units, self._count) - self._empty_ns

    def _loop(self, stop: int, count: int) -> float:
        calls, turn = self._calls, self._turn
        start = time.perf_counter_ns()
        for i in range(turn, turn + count):
            calls[i % len(calls)](0, stop)
        took = time.perf_counter_ns() - start
        self._turn, self.spent_s = (turn + count) % len(calls), self.spent_s + took / 1e9
        return took / count


def _copies(packed_bytes: int, cpu: CpuTarget, stored_bytes: int) -> int:
    """How many copies of constants keep them out of the caches that are nearer than where a launch finds them."""
    source = cpu.constants_from(stored_bytes)
    beyond = {"l2": 0, "l3": 2 * cpu.l2_bytes, "memory": 2 * cpu.l3_bytes}[source]
    if not packed_bytes or not beyond:
        return 1
    return max(1, min(-(-min(beyond, _COPIES_BYTES_MAX) // packed_bytes), _COPIES_MAX))


def _operand(rng: np.random.Generator, operand: Operand) -> NDArray[Any]:
    """Floats of ordinary size, zeros where a number may be an index."""
    kind = operand.type
    if operand.role is Role.OUTPUT or not kind.dtype.is_float:
        return np.zeros(kind.shape, kind.dtype.numpy)
    return np.asarray(rng.uniform(0.5, 1.5, kind.shape)).astype(kind.dtype.numpy)


def _copy(array: NDArray[Any]) -> NDArray[Any]:
    fresh = aligned_bytes(array.nbytes)
    fresh[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return fresh


def _changes(before: Planned[Plan], after: Planned[Plan]) -> Iterator[TuningChange]:
    """Sub-operators that are computed otherwise."""
    old, new = _computed(before), _computed(after)
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name, {}), new.get(name, {})
        fields = dict.fromkeys([*a, *b]) if a.get("tiling") == b.get("tiling") else ("kernel", "tiling", "cores")
        what = tuple(f"{f} {a.get(f, 'none')} -> {b.get(f, 'none')}" for f in fields if a.get(f) != b.get(f))
        if what:
            yield TuningChange(name, what)


def _computed(planned: Planned[Plan]) -> dict[str, dict[str, str]]:
    """Kernel, tiling with its fields and number of cores of each sub-operator."""
    schedule = planned.schedule
    cores = Counter(task.subop for task in schedule.tasks)
    return {
        sub.name: {
            "kernel": sub.kernel,
            "cores": str(cores[sub.index]),
            "tiling": type(tiling).__name__,
            **{name: str(value) for name, value in vars(tiling).items()},
        }
        for sub, tiling in zip(schedule.subops, schedule.tilings, strict=True)
    }


def _compared(
    graph: Graph, targets: Sequence[CpuTarget], cores: int, options: Options, inputs: Mapping[str, Array] | None
) -> LaunchComparison:
    """Launches with each target's knowledge, taking turns; of each turn the shortest."""
    kernels = [compile(graph, target, cores, options) for target in targets]
    once_s = max(float(kernel.time(inputs, rounds=3).min()) for kernel in kernels) / 1e9
    count = max(3, int(ROUND_S / once_s))
    times: list[list[float]] = [[] for _ in kernels]
    for _ in range(ROUNDS):
        for kernel, found in zip(kernels, times, strict=True):
            found.append(float(kernel.time(inputs, rounds=count).min()))
    return LaunchComparison.of(*times)
