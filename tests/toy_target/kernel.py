"""What users hold of the interpreter: its report is how many steps each core made and waited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.display import notebook
from superkernel.runtime.decisions import Decisions, common, subop_index
from superkernel.runtime.kernel import Io, Kernel
from toy_target.compiled import ToyCompiled
from toy_target.machine import Counts, ToyMachine


@dataclass(frozen=True)
class ToyReport:
    """One run."""

    graph: str
    counts: Counts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        cores = zip(self.counts.steps, self.counts.waited, strict=True)
        lines = [f"  core {n}: {steps} steps, {waited} waited" for n, (steps, waited) in enumerate(cores)]
        return "\n".join([f"{self.graph}: {self.counts.ticks} ticks", *lines])

    def _repr_html_(self) -> str:
        return notebook.folded(self.graph, self.text())


@dataclass(frozen=True, kw_only=True, repr=False)
class ToyExplanation(Decisions):
    """Nothing of its own."""

    def _lines(self) -> Iterator[str]:
        yield f"boundary: {self.form}: {self.reason}"


class ToyKernel(Kernel):
    """A kernel of the interpreter. What it leaves out, saved kernels among it, the base class refuses."""

    _compiled: ToyCompiled
    _executable: ToyMachine

    def explain(self, node: str | int) -> ToyExplanation:
        schedule, index = self._compiled.schedule, subop_index(self._compiled, node)
        tasks = tuple(f"core {t.core}: rows {t.begin}..{t.end}" for t in schedule.tasks if t.subop == index)
        placement = str(schedule.tilings[index])
        return ToyExplanation(**common(self._compiled, index), placement=placement, tasks=tasks)

    def _measure(self, io: Io, rounds: int, warm: bool) -> ToyReport:
        return ToyReport(self.name, self._executable.counted(io))

    def _times(self, io: Io, rounds: int) -> NDArray[np.int64]:
        ns = self._executable.counted(io).ticks * self._compiled.target.tick_ns
        return np.full(rounds, round(ns), np.int64)


KERNEL = ToyKernel
