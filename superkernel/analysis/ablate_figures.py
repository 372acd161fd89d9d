"""What an ablation comes to in three figures, and what no synchronisation of these sub-operators could exceed.

    speedup    one by one / everything on, launches included
    saved      1 - everything on / the fused kernel with a barrier between any two sub-operators and nothing else on
    pure cut   1 - pure synchronisation of everything on / that of the barriers

*Unsynchronised* bounds the first two: the kernel with everything on, built again without the events between its cores
and simulated for timing alone (its results would be wrong). Kernels, their order and the launch stay; so does what an
aicpu hart says, without which a control unit would read tables that are not there. None where such a program ends in a
fault, and where it takes longer: cores that nobody holds up may come to their weights before these were prefetched.

The *lower bound of synchronisation* bounds the third: what the longest chain of events costs whatever hides it
(`sync_bound.py`). A graph with branches whose run falls below it all the same has no bound: it is 1, all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superkernel.analysis.sync_bound import Chain
from superkernel.backends.aicore.critical import without_events
from superkernel.backends.aicore.timeline import Activity
from superkernel.core.counted import counted
from superkernel.core.errors import DataError, SimulationError
from superkernel.scheduler.schedule import Space
from superkernel.sync.aicore.plan import AICPU

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superkernel.backends.aicore.compiled import AicoreCompiled
    from superkernel.backends.aicore.shared import Shared
    from superkernel.target.aicore import AicoreTarget

Split = dict[int, dict[Activity, float]]
"""Per core its cycles by what it did."""


@dataclass(frozen=True)
class Measured:
    """A program and its run. `splits`: by launch. `same_line`: cycles that fetches waited for one another, per core."""

    compiled: AicoreCompiled
    single: bool
    launches: int
    cycles: int
    splits: tuple[Split, ...]
    same_line: float
    numpy_us: float = 0.0

    def time_us(self, target: AicoreTarget | None = None) -> float:
        """With what the launches cost, and NumPy between them."""
        target = target or self.compiled.target
        launches_ns = self.launches * float(target.dispatch.launch_ns)
        return (target.nanoseconds(self.cycles) + launches_ns) / 1000 + self.numpy_us


@dataclass(frozen=True)
class Measure:
    """A kernel's time with its launches, and the pure synchronisation in it; us."""

    us: float
    pure_us: float


@dataclass(frozen=True)
class Figures:
    """See the module docstring. `barriers`: those of full synchronisation; `events`: those that are left."""

    single_us: float
    full: Measure
    fused: Measure
    unsynchronised_us: float | None
    chain: Chain
    barriers: int = 0
    events: int = 0

    @property
    def speedup(self) -> float:
        """One by one over everything on, launches included; above 1 fusing gains."""
        return self.single_us / self.fused.us

    @property
    def saved(self) -> float:
        """Part of the time with full barriers that everything on saves."""
        return 1 - self.fused.us / self.full.us

    @property
    def pure_cut(self) -> float:
        """0 where there is nothing to cut."""
        return 1 - self.fused.pure_us / self.full.pure_us if self.full.pure_us else 0.0

    @property
    def bounds(self) -> tuple[float | None, float | None, float]:
        """The most that each figure could be, in the same order."""
        free, pure = self.unsynchronised_us, self.full.pure_us
        ways = (
            (None, None) if free is None or free > self.fused.us else (self.single_us / free, 1 - free / self.full.us)
        )
        bound_us = self.chain.bound_ns / 1000
        if pure and self.fused.pure_us < bound_us:
            return (*ways, 1.0)
        return (*ways, 1 - bound_us / pure if pure else 0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        speedup, saved, pure_cut = self.bounds
        found = {"speedup": self.speedup, "saved": self.saved, "pure_cut": self.pure_cut}
        return {**found, "bounds": {"speedup": speedup, "saved": saved, "pure_cut": pure_cut}, **asdict(self)}

    def lines(self) -> list[str]:
        """For a terminal: each figure, its bound, and where the bound is from."""
        speedup, saved, pure_cut = self.bounds
        free = "cannot be simulated" if self.unsynchronised_us is None else f"{self.unsynchronised_us:.2f} us"
        if self.unsynchronised_us is not None and speedup is None:
            free += ", longer than with it: weights are used before they are prefetched, or more at a time"
        return [
            f"{'everything on':<30}{'':>9}{'at most':>10}",
            f"{'  against one by one':<30}{self.speedup:>8.2f}x" + ("" if speedup is None else f"{speedup:>9.2f}x"),
            f"{'  against fused, full sync':<30}{-self.saved:>9.1%}" + ("" if saved is None else f"{-saved:>10.1%}"),
            f"{'  its pure synchronisation':<30}{-self.pure_cut:>9.1%}{-pure_cut:>10.1%}",
            f"without waiting for one another: {free}",
            *self._pure_lines(),
        ]

    def _pure_lines(self) -> list[str]:
        """What is left of the barriers' cost, and why it cannot be less."""
        chain, left_us = self.chain, self.fused.pure_us
        latency_us, bound_us = chain.latency_ns / 1000, chain.bound_ns / 1000
        above = left_us >= bound_us
        barriers = f"{self.full.pure_us:.2f} us ({counted(self.barriers, 'barrier')})"
        lines = [
            f"pure synchronisation: {left_us:.2f} us left of {barriers}" + above * f", at least {bound_us:.2f} us",
            f"  {counted(self.events, 'event')} left, each of them needed; the longest chain: "
            f"{counted(chain.events, 'event')} in turn, {chain.wide} of all cores, {latency_us:.2f} us",
        ]
        if not above:
            return [*lines, "  work of other branches hides flags too, so that no lower bound can be given"]
        if left_us > latency_us:
            lines.append(f"  waits for events beside that chain: {left_us - latency_us:.2f} us or more")
        return [
            *lines,
            f"  hidden in this run: {max(0.0, latency_us - left_us):.2f} us; at most {latency_us - bound_us:.2f} us: "
            "by what sub-operators do ahead of their operands",
            "  (weights, set-up) with the work in equal shares"
            + (f", and by {chain.beside_ns / 1000:.2f} us of work beside the chain" if chain.beside_ns else ""),
        ]


def unsynchronised_cycles(compiled: AicoreCompiled, io: Sequence[NDArray[Any]], shared: Shared) -> int | None:
    """Cycles of a program without the events between its cores."""
    from superkernel.backends.aicore.timeline import span_of
    from superkernel.backends.aicore.variants import unverified_program

    plan = compiled.plan
    between_cores = [e.index for e in plan.events if AICPU not in (e.setters, e.to)]
    program = unverified_program(compiled, without_events(plan, between_cores), shared)
    try:
        run = program.simulate(io, mode="timing", races=False, unwritten=False)
    except (SimulationError, DataError):  # unordered, even its data may be out of range
        return None
    return sum(span_of(compiled, launch)[1] for launch in run.launches)


def constant_shares(compiled: AicoreCompiled) -> list[float]:
    """The constants' part of the bytes that each sub-operator reads."""
    read = np.zeros((len(compiled.schedule.subops), 2))
    for task in compiled.schedule.tasks:
        for access in task.accesses:
            if not access.write:
                is_constant = access.space is Space.CONSTANT
                read[task.subop] += sum(r.nbytes for r in access.regions) * np.array([is_constant, 1])
    return [float(part) for part in read[:, 0] / np.maximum(read[:, 1], 1)]


def ahead_cycles(splits: Sequence[Split], constants: Sequence[float], *, misses: bool = True) -> dict[int, float]:
    """What each sub-operator can do ahead of its first operand, from the times of its parts. `constants`: their part of
    the bytes that it reads; `misses`: whether instruction misses are among it."""
    return {
        subop: misses * row[Activity.MISSES] + row[Activity.CONTROL] + row[Activity.MOVEMENT] * constants[subop]
        for split in splits
        for subop, row in split.items()
    }
