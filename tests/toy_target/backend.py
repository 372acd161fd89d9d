"""The interpreter as a backend."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.backend import Backend
from superkernel.compilation.compiled import Job, Planned
from superkernel.compilation.stages import Stages
from superkernel.core.errors import Violation
from superkernel.core.options import Options
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.scheduler.schedule import Space
from superkernel.scheduler.tiling import pack_bytes
from superkernel.sync.plan import Plan
from superkernel.sync.verify import Certificate, verify
from toy_target.compiled import ToyCompiled
from toy_target.kernels import TOY_KERNELS
from toy_target.machine import ToyImage, ToyMachine
from toy_target.planner import ToyPlanner
from toy_target.target import ToyTarget


class ToyBackend(Backend[ToyTarget, Planned[Plan], Certificate, ToyImage, ToyCompiled]):
    """See the module docstring."""

    fallbacks_run: ClassVar[str] = "nowhere"
    compiled = ToyCompiled

    def names(self) -> tuple[str, ...]:
        return ("toy",)

    def named(self, name: str) -> ToyTarget | None:
        return ToyTarget() if name in self.names() else None

    def cores(self, target: ToyTarget, threads: int | None) -> int:
        return target.cores

    def refusals(self, target: ToyTarget, options: Options, threads: int | None) -> list[Violation]:
        if options.precision in ("auto", "f32"):
            return []
        return [Violation("not on the interpreter", "option 'precision'", "auto, f32", repr(options.precision))]

    @property
    def kernels(self) -> KernelTable[ToyTarget]:
        return TOY_KERNELS

    def planner(self, job: Job[ToyTarget]) -> ToyPlanner:
        return ToyPlanner(job, self.kernels)

    def verify(self, planned: Planned[Plan]) -> Certificate:
        return verify(planned.plan, planned.units)

    def emit(self, run: Stages, job: Job[ToyTarget], planned: Planned[Plan], cache: ObjectCache) -> ToyImage:
        graph, constants = planned.graph, planned.schedule.constants
        blob = np.zeros(max((c.offset + c.nbytes for c in constants), default=0), np.uint8)
        for slot in constants:
            data = pack_bytes(slot.pack, planned.grouping.constants[slot.value])
            blob[slot.offset : slot.offset + slot.nbytes] = data
        inputs, outputs = len(graph.inputs), len(graph.outputs)
        return ToyImage(blob, {Space.INPUT: 0, Space.OUTPUT: inputs, Space.STATE: inputs + outputs})

    def bind(self, job: Job[ToyTarget], planned: Planned[Plan], image: ToyImage, proved: Certificate) -> ToyMachine:
        return ToyMachine(image, planned.schedule, planned.plan, job.target)


BACKEND = ToyBackend()
