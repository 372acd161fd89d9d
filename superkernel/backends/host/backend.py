"""The CPU at hand as a backend: executable code in this process, run by its persistent workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from superkernel import _core
from superkernel.backends.host.attest import attest
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.executable import HostExecutable
from superkernel.backends.host.memory_nodes import place_constants
from superkernel.backends.host.regions import constants_bytes, raise_flash
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.features import detect_cpu, keep_cpu, kept_cpu, recalled, told
from superkernel.codegen.host.image import GENERATOR, HostImage, ImageBuilder
from superkernel.compilation.backend import Backend
from superkernel.compilation.compiled import Job, Planned
from superkernel.compilation.stages import Stages
from superkernel.core import settings
from superkernel.core.errors import Violation
from superkernel.core.files import is_folder
from superkernel.core.limits import usable_cpus
from superkernel.core.option import HOST
from superkernel.core.options import Options
from superkernel.sync.plan import Plan
from superkernel.sync.verify import Certificate, verify
from superkernel.target.cpu import THREADS_MAX, CpuTarget, profiled
from superkernel.target.machine import load_profile

if TYPE_CHECKING:
    from superkernel.backends.host.planner import HostPlanner
    from superkernel.compilation.library import Library
    from superkernel.scheduler.kernel_table import KernelTable


class HostBackend(Backend[CpuTarget, Planned[Plan], Certificate, HostImage, HostCompiled]):
    """See the module docstring."""

    plan_type: ClassVar[type | None] = Plan
    generator: ClassVar[tuple[str, ...]] = GENERATOR
    fallbacks_run: ClassVar[str] = "inside the fused kernel"
    compiled = HostCompiled

    def __init__(self, workspace: _core.Workspace | None = None) -> None:
        self._workspace = workspace

    def of_one_object(self) -> Self:
        return type(self)(_core.Workspace())

    def names(self) -> tuple[str, ...]:
        return (HOST,)

    def named(self, name: str) -> CpuTarget | None:
        if name.endswith(".json"):
            profile = load_profile(name)
            return profiled(detect_cpu(), profile) if profile.core is None else None
        if name != HOST:
            return None
        directory = settings.cache_directory()
        found = kept_cpu(ObjectCache(directory)) if directory is not None and is_folder(directory) else None
        return found or detect_cpu()

    def local_target(self, told: Mapping[str, Any] | None = None) -> CpuTarget:
        return recalled(told or {}) or detect_cpu()

    def local_record(self, target: CpuTarget) -> Mapping[str, Any]:
        return told(target)

    def cores(self, target: CpuTarget, threads: int | None) -> int:
        return min(THREADS_MAX, usable_cpus()) if threads is None else threads

    def refusals(self, target: CpuTarget, options: Options, threads: int | None) -> list[Violation]:
        return options.refused(HOST)

    @property
    def kernels(self) -> KernelTable[CpuTarget]:
        from superkernel.scheduler.families import HOST_KERNELS

        return HOST_KERNELS

    def planner(self, job: Job[CpuTarget]) -> HostPlanner:
        from superkernel.backends.host.planner import HostPlanner

        return HostPlanner(job, self.kernels)

    def verify(self, planned: Planned[Plan]) -> Certificate:
        return verify(planned.plan, planned.units)

    def emit(self, run: Stages, job: Job[CpuTarget], planned: Planned[Plan], cache: ObjectCache) -> HostImage:
        graph, options = planned.graph, job.options
        keep_cpu(job.target, cache)
        builder = ImageBuilder(
            planned.schedule,
            planned.plan,
            job.target,
            cache,
            inputs=len(graph.inputs),
            outputs=len(graph.outputs),
            states=len(graph.states),
            prefetch=options.starts_early and options.weight_strength != "none",
            progress=run.progress.update,
            keep_ir="ir" in run.dumps,
            later=run.later,
        )
        image = builder.build(planned.grouping.constants)
        flash = job.target.regions().get("flash")
        if flash is not None and constants_bytes(planned.schedule) + image.code_bytes > flash:
            raise_flash(planned.schedule, flash, image.code_bytes)
        return image

    def attest(self, job: Job[CpuTarget], planned: Planned[Plan], image: HostImage, proved: Certificate) -> Certificate:
        return attest(planned, image, proved)

    def bind(
        self, job: Job[CpuTarget], planned: Planned[Plan], image: HostImage, proved: Certificate
    ) -> HostExecutable:
        place_constants(image.constants, planned.schedule, job.target.profile.node_of)
        watchdog_ms = job.options.watchdog_ms
        if job.options.debug == "races":
            from superkernel.backends.host.races import RaceExecutable

            return RaceExecutable(image, planned.schedule, planned.plan, job.target, watchdog_ms)
        shared = self._workspace
        return HostExecutable(
            image, planned.schedule, planned.plan, watchdog_ms, stepwise=proved.stepwise, workspace=shared
        )

    def export(
        self, models: Mapping[str, Sequence[HostCompiled]], path: Path, manifest: Sequence[str], compiler: str | None
    ) -> Library:
        from superkernel.backends.host.library.export import export

        return export(models, path, manifest, compiler)


BACKEND = HostBackend()
