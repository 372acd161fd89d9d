"""The accelerator as a backend: one ELF file for all of its harts, run on a simulator or an emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from superkernel.backends.aicore.attest import attest
from superkernel.backends.aicore.compiled import AicoreCompiled, AicorePlanned
from superkernel.backends.aicore.decide import SIMULATE, settled
from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.planner import AicorePlanner
from superkernel.backends.aicore.shared import Shared
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.image import AicoreImage, AicoreImageBuilder
from superkernel.codegen.aicore.memory_map import map_addresses
from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.backend import Backend
from superkernel.compilation.compiled import Job
from superkernel.compilation.stages import Stages
from superkernel.core.errors import Violation
from superkernel.core.files import exists
from superkernel.core.option import ACCELERATOR
from superkernel.core.options import SIMULATION_LIMIT_S, Options
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.sync.aicore.verify import AicoreCertificate, verify_aicore
from superkernel.target.aicore import AicoreTarget, load_target, preset_names


class AicoreBackend(Backend[AicoreTarget, AicorePlanned, AicoreCertificate, AicoreImage, AicoreCompiled]):
    """See the module docstring. `shared`: of compilations of one graph under many options."""

    fallbacks_run: ClassVar[str] = "between two launches"
    compiled = AicoreCompiled

    def __init__(self, shared: Shared | None = None) -> None:
        self._shared = shared

    @property
    def shared(self) -> Shared:
        """What compilations with this backend share; each has its own where nobody gave one."""
        return self._shared or Shared()

    def names(self) -> tuple[str, ...]:
        return preset_names()

    def named(self, name: str) -> AicoreTarget | None:
        described = name in preset_names() or Path(name).suffix or exists(name)
        return load_target(name) if described else None

    def cores(self, target: AicoreTarget, threads: int | None) -> int:
        return target.cores

    def refusals(self, target: AicoreTarget, options: Options, threads: int | None) -> list[Violation]:
        wrong = options.refused(ACCELERATOR)
        if threads is not None:
            cores = f"{target.device.cube_cores} cube and {target.device.vector_cores} vector cores"
            wrong.append(Violation("an accelerator has cores, not threads", "threads", cores, repr(threads)))
        return wrong

    @property
    def kernels(self) -> KernelTable[AicoreTarget]:
        return AICORE_KERNELS

    def settled(
        self, job: Job[AicoreTarget], cache: ObjectCache, compiled: Callable[[Options], AicoreCompiled]
    ) -> Options:
        return settled(job, self.kernels.sources, cache, compiled) if job.options.decide == SIMULATE else job.options

    def planner(self, job: Job[AicoreTarget]) -> AicorePlanner:
        return AicorePlanner(job, self.kernels, self.shared)

    def verify(self, planned: AicorePlanned) -> AicoreCertificate:
        return verify_aicore(planned.plan, planned.units)

    def emit(self, run: Stages, job: Job[AicoreTarget], planned: AicorePlanned, cache: ObjectCache) -> AicoreImage:
        graph, schedule, options = planned.graph, planned.schedule, job.options
        types = [graph.types[v] for v in graph.outputs]
        states = [graph.types[s] for s in graph.states]
        addresses = map_addresses(schedule, job.target, list(graph.inputs.values()), types, states)
        code = CodeOptions(options.func_align, options.split, options.preload)
        builder = AicoreImageBuilder(
            schedule, planned.plan, job.target, addresses, cache, code, run.progress.update, self.shared.kernels,
        )  # fmt: skip
        return builder.build(planned.grouping.constants)

    def attest(
        self, job: Job[AicoreTarget], planned: AicorePlanned, image: AicoreImage, proved: AicoreCertificate
    ) -> AicoreCertificate:
        return attest(planned, image, job.target)

    def bind(
        self, job: Job[AicoreTarget], planned: AicorePlanned, image: AicoreImage, proved: AicoreCertificate
    ) -> SimExecutable:
        inputs, outputs = len(planned.graph.inputs), len(planned.graph.outputs)
        limit_s = job.options.watchdog_ms / 1000 or SIMULATION_LIMIT_S
        return SimExecutable(image, planned.schedule, job.target, inputs, outputs, limit_s, job.options.simulation)


BACKEND = AicoreBackend()
