"""One model on everything that can run it: NumPy reference, host, simulator, emulator in every timing.

What is asked of each, relative to the largest magnitude of an output (or state):

- the host stays within HOST_BOUND of the reference, 16-bit outputs within HOST_BOUND_16;
- the simulator stays within the bound of the precision that the accelerator computes with (transforms/precision.py);
- the emulator has the simulator's bits. Where commands ran that may differ in their last place (exp, ln), and only
  there, it may differ from the simulator by as much as the simulator may from the reference;
- each hart executes as many instructions and misses as many lines of code on the emulator as on the simulator, where
  the emulator's plugin is there to count;
- events are ordered alike: backends/aicore/qemu_events.py.

Integer outputs are held to the reference's only where nothing is computed with less precision than declared: an
argmax may turn over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from superkernel.analysis.errors import relative_error
from superkernel.analysis.mutation import MutationTable, MutationTest, check_mutable
from superkernel.backends.aicore.compiled import LOWERED
from superkernel.backends.aicore.qemu import QemuRun
from superkernel.backends.aicore.qemu_counts import HartCounts, simulated_counts
from superkernel.backends.aicore.qemu_events import EventOrder
from superkernel.backends.aicore.qemu_order import LaunchOrder
from superkernel.backends.aicore.qemu_process import find_qemu
from superkernel.backends.aicore.qemu_schedule import EngineSchedule
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SuperKernelError, UnsupportedError
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.sim.trace import records
from superkernel.transforms.precision import error_bound
from superkernel.transforms.selections import no_bound, selections

if TYPE_CHECKING:
    from superkernel.backends.aicore.kernel import AicoreKernel
    from superkernel.runtime.kernel import Kernel

Array = NDArray[Any]
Arrays = dict[str, Array]
Counts = Sequence[Sequence[HartCounts]]

HOST_BOUND: Final = 1e-4
HOST_BOUND_16: Final = 1e-2
EVENTS_MAX: Final = 20_000
_BOUND_F32: Final = 1e-4


@dataclass(frozen=True)
class CheckRow:
    """One run. `difference`: to the reference, relative; `bits`: the same bits as the simulator's (None: not asked);
    `counts`: as many instructions and missed lines per hart; `events`: so many pairs of events in the same order (both
    None: not compared); `verdict`: "agrees", or what is wrong."""

    executor: str
    timing: str
    difference: float
    bits: bool | None
    run_ms: float
    verdict: str = "agrees"
    counts: bool | None = None
    events: int | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing differs that must not."""
        return self.verdict == "agrees"


@dataclass(frozen=True)
class CrossCheck:
    """All runs of one model. `bound`: what the accelerator may differ from the reference by; None where no bound can
    be, because of the `selections`: the accelerator's floats are then held against one another only."""

    model: str
    target: str
    bound: float | None
    rows: tuple[CheckRow, ...]
    selections: tuple[str, ...] = ()
    mutants: MutationTable | None = None

    @property
    def ok(self) -> bool:
        """Whether all agree, and mutants were noticed."""
        return all(row.ok for row in self.rows) and (self.mutants is None or self.mutants.ok)

    def to_json(self) -> dict[str, Any]:
        """The machine-readable form."""
        rows = [asdict(row) for row in self.rows]
        head = {"model": self.model, "target": self.target, "bound": self.bound, "selections": list(self.selections)}
        mutants = {} if self.mutants is None else {"mutants": self.mutants.to_json()}
        return {**head, "ok": self.ok, "runs": rows, **mutants}

    def text(self) -> str:
        """A table."""
        bound = f"bound {self.bound:.1e}" if self.bound is not None else no_bound(self.selections)
        lines = [
            f"{self.model} on {self.target}, {bound}",
            f"{'executor':10} {'timing':10} {'difference':>11} {'as sim':>7} {'counts':>7} {'events':>7} {'ms':>9}  "
            "verdict",
        ]
        for row in self.rows:
            bits = {None: "", True: "bits", False: "close"}[row.bits]
            counts = {None: "", True: "same", False: "other"}[row.counts]
            events = "" if row.events is None else str(row.events)
            lines.append(
                f"{row.executor:10} {row.timing:10} {row.difference:11.2e} {bits:>7} {counts:>7} {events:>7} "
                f"{row.run_ms:9.1f}  {row.verdict}"
            )
        return "\n".join([*lines, *(["", self.mutants.text()] if self.mutants else [])])


def schedules(timings: Sequence[str], seeds: int, watchdog_s: float) -> list[EngineSchedule]:
    """Each timing, `random` once per seed. Raises InputError on an unknown name."""
    found = []
    for timing in timings:
        for seed in range(seeds if timing == "random" else 1):
            found.append(EngineSchedule(timing, seed, watchdog_s))  # type: ignore[arg-type]
    return found


class _Checker:
    """The runs of one model, each from the same states."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], kernel: AicoreKernel, precision: DType) -> None:
        self.inputs, self.kernel = inputs, kernel
        results = evaluate(graph, inputs, wide=True)
        names = dict(zip(kernel.outputs, graph.returned, strict=True))
        self.expected: Arrays = {n: results[v] for n, v in names.items()}
        self.expected |= {f"state {n}": a for n, a in results.states.items()}
        self.events: list[EventOrder] | None = None
        self.lowered = precision is not DType.F32
        self.bound = error_bound(graph, precision) if self.lowered else _BOUND_F32
        self.selections = selections(graph) if self.lowered else ()

    def run(self, kernel: Kernel, launch: Callable[[], Arrays]) -> tuple[Arrays, float]:
        """Outputs and next states, and how long it took."""
        kernel.reset_states()
        start = time.perf_counter_ns()
        found = dict(launch())
        run_ms = (time.perf_counter_ns() - start) / 1e6
        return found | {f"state {n}": np.array(a) for n, a in kernel.states.items()}, run_ms

    def row(self, kernel: Kernel, launch: Callable[[], Arrays], executor: str, timing: str = "") -> CheckRow:
        """A run that is held against the reference."""
        found, run_ms = self.run(kernel, launch)
        if executor == "sim":
            self.simulated = found
        difference = max((relative_error(found[n], self.expected[n], self.expected[n]) for n in found), default=0.0)
        wrong = [n for n in found if not self._near(found[n], self.expected[n], executor)]
        verdict = f"beyond the bound: {', '.join(wrong)}" if wrong else "agrees"
        return CheckRow(executor, timing, difference, None, run_ms, verdict)

    def _near(self, got: Array, want: Array, executor: str) -> bool:
        lowered = self.lowered and executor != "host"
        if got.dtype.kind not in "fV":
            return lowered or np.array_equal(got, want)
        bound = self.bound if executor != "host" else HOST_BOUND_16 if got.dtype.itemsize < 4 else HOST_BOUND
        return bound is None or relative_error(got, want, want) <= bound

    def emulated(self, schedule: EngineSchedule) -> CheckRow:
        """A run on the emulator, held against the simulator's."""
        runs: list[QemuRun] = []

        def launch() -> Arrays:
            outputs, run = self.kernel.emulate(self.inputs, schedule, log=self.events is not None, count=True)
            runs.append(run)
            return outputs

        try:
            found, run_ms = self.run(self.kernel, launch)
            events, disagreements = self._events(runs[0])
        except SuperKernelError as error:
            return CheckRow("qemu", str(schedule), float("inf"), False, 0.0, str(error))
        difference = max((relative_error(found[n], self.expected[n], self.expected[n]) for n in found), default=0.0)
        bits = all(found[n].tobytes() == self.simulated[n].tobytes() for n in found)
        apart = max((relative_error(found[n], self.simulated[n], self.expected[n]) for n in found), default=0.0)
        counts = _same_counts(runs[0].counts, self.counts) if runs[0].counts else None
        verdict = "agrees"
        if not bits and not runs[0].inexact:
            verdict = "other bits than the simulator, without exp or ln"
        elif self.bound is not None and apart > self.bound:
            verdict = f"differs from the simulator by {apart:.1e}"
        elif counts is False:
            verdict = "other numbers of instructions or missed lines than on the simulator"
        elif disagreements:
            verdict = "; ".join(disagreements)
        return CheckRow("qemu", str(schedule), difference, bits, run_ms, verdict, counts, events)

    def observe(self) -> None:
        """Simulate once more, for counts and events."""
        executable, io = self.kernel.emulation(self.inputs)
        program = executable.program
        launches = program.simulate(io, trace=True, races=False).launches
        self.counts = tuple(simulated_counts(launch, program.image.image) for launch in launches)
        self.traces = [records(launch.trace) for launch in launches]
        small = sum(len(trace) for trace in self.traces) <= EVENTS_MAX
        self.events = [] if small else None

    def _events(self, run: QemuRun) -> tuple[int | None, list[str]]:
        """How many pairs of events were compared, and what is wrong with them."""
        if self.events is None:
            return None, []
        if not self.events:
            try:
                orders = [LaunchOrder(logs, self.kernel.emulation(self.inputs)[0].program.target) for logs in run.logs]
            except UnsupportedError:
                self.events = None
                return None, []
            self.events = [EventOrder(order, trace) for order, trace in zip(orders, self.traces, strict=True)]
        texts = [text for e, logs in zip(self.events, run.logs, strict=True) for text in e.disagreements(logs)]
        return sum(e.pairs for e in self.events), texts


def _same_counts(emulated: Counts, simulated: Counts) -> bool:
    """Lines are compared where the plugin could follow all prefetches."""
    for mine, theirs in zip(chain(*emulated), chain(*simulated), strict=True):
        lines = mine.misses is None or (mine.misses, mine.prefetches) == (theirs.misses, theirs.prefetches)
        if mine.instructions != theirs.instructions or not lines:
            return False
    return True


def crosscheck(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    target: str = "mini",
    options: Mapping[str, Any] | None = None,
    runs: Sequence[EngineSchedule] = (EngineSchedule("now"), EngineSchedule("late"), EngineSchedule("random")),
    mutants: int = 0,
    plain: int = 0,
) -> CrossCheck:
    """Compile a graph for an accelerator (with `options`) and for this machine, and run it on everything; `runs` are
    those on the emulator, where `mutants` of the synchronisation and `plain` runs of the program as it is are tried,
    too (mutation.py). Runs that fail there become rows. Raises what `compile` raises, MachineError without an
    emulator, UnsupportedError where the target is no accelerator, and ahead of any run where mutants are asked of a
    program of several launches."""
    from superkernel.api import compile, resolved

    for name, count in (("mutants", mutants), ("plain", plain)):
        if count < 0:
            raise InputError("bad count", location=f"argument {name!r}", expected="0 or more", found=repr(count))
    described = resolved(target)
    find_qemu()
    chosen = Options.of(options)
    made = compile(graph, described, options=chosen)
    if made.executor != "sim":
        raise UnsupportedError("only accelerators have a simulator and an emulator", location=f"target {target!r}")
    kernel = cast("AicoreKernel", made)
    if mutants or plain:
        check_mutable(kernel)
    host = compile(graph)
    precision = LOWERED.get(chosen.precision, DType.F32)
    checker = _Checker(graph, inputs, kernel, precision)
    rows = [
        checker.row(host, lambda: host.run(inputs).outputs, "host"),
        checker.row(kernel, lambda: kernel.run(inputs).outputs, "sim"),
    ]
    checker.observe()
    rows += [checker.emulated(schedule) for schedule in runs]
    table = MutationTest(kernel, inputs).table(mutants, plain) if mutants or plain else None
    return CrossCheck(graph.name, target, checker.bound, tuple(rows), checker.selections, table)
