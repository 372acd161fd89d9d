"""Cores of microcontrollers: planned and proved as the host is, with code for another core, and nothing that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from superkernel.backends.host.attest import attested
from superkernel.backends.host.planner import HostPlanner
from superkernel.backends.host.regions import constants_bytes, raise_flash
from superkernel.backends.microcontroller.compiled import MicrocontrollerCompiled, NotHere
from superkernel.backends.microcontroller.readback import bases_of, read_back
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.image import GENERATOR
from superkernel.codegen.microcontroller.image import MicrocontrollerImage, ProgramBuilder
from superkernel.compilation.backend import Backend
from superkernel.compilation.compiled import Job, Planned
from superkernel.compilation.stages import Stages
from superkernel.core.errors import FileFormatError, Violation
from superkernel.core.option import HOST
from superkernel.core.options import Options
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.sync.plan import Plan
from superkernel.sync.verify import Certificate, verify
from superkernel.target.cpu import CpuTarget
from superkernel.target.machine import load_profile
from superkernel.target.microcontroller import CORES, MicrocontrollerTarget, microcontroller_target, typical_profile

if TYPE_CHECKING:
    from superkernel.compilation.library import Library


class MicrocontrollerPlanner(HostPlanner):
    """The host's, for a core that waits for nobody."""

    counter_bytes: ClassVar[int] = 0


class MicrocontrollerBackend(
    Backend[CpuTarget, Planned[Plan], Certificate, MicrocontrollerImage, MicrocontrollerCompiled]
):
    """See the module docstring."""

    plan_type: ClassVar[type | None] = Plan
    generator: ClassVar[tuple[str, ...]] = (*GENERATOR, "codegen/microcontroller")
    fallbacks_run: ClassVar[str] = "nowhere"
    compiled = MicrocontrollerCompiled

    def names(self) -> tuple[str, ...]:
        return tuple(CORES)

    def named(self, name: str) -> MicrocontrollerTarget | None:
        if name in CORES:
            return microcontroller_target(typical_profile(name))
        if not name.endswith(".json"):
            return None
        profile = load_profile(name)
        if profile.core is None:
            return None
        if profile.core not in CORES:
            where = f"file {name!r}, 'core'"
            raise FileFormatError("unknown core", location=where, expected=", ".join(CORES), found=repr(profile.core))
        return microcontroller_target(profile)

    def cores(self, target: CpuTarget, threads: int | None) -> int:
        return 1

    def refusals(self, target: CpuTarget, options: Options, threads: int | None) -> list[Violation]:
        wrong = options.refused(HOST)
        if threads not in (None, 1):
            wrong.append(Violation("a microcontroller's kernel has one thread", "threads", "1", repr(threads)))
        if options.debug == "races":
            wrong.append(Violation("nothing runs here", "option 'debug'", "off", repr(options.debug)))
        return wrong

    @property
    def kernels(self) -> KernelTable[CpuTarget]:
        return HOST_KERNELS

    def planner(self, job: Job[CpuTarget]) -> MicrocontrollerPlanner:
        return MicrocontrollerPlanner(job, self.kernels)

    def verify(self, planned: Planned[Plan]) -> Certificate:
        return verify(planned.plan, planned.units)

    def emit(
        self, run: Stages, job: Job[CpuTarget], planned: Planned[Plan], cache: ObjectCache
    ) -> MicrocontrollerImage:
        graph = planned.graph
        inputs, states = tuple(graph.inputs.values()), tuple(graph.types[name] for name in graph.states)
        outputs = tuple(graph.types[value] for value in graph.outputs)
        builder = ProgramBuilder(
            planned.schedule,
            planned.plan,
            job.target,
            cache,
            inputs=len(inputs),
            outputs=len(outputs),
            states=len(states),
            prefetch=False,
            progress=run.progress.update,
            keep_ir="ir" in run.dumps,
        )
        image = builder.program(planned.grouping.constants, inputs, outputs, states)
        flash = job.target.regions()["flash"]
        if constants_bytes(planned.schedule) + image.code_bytes > flash:
            raise_flash(planned.schedule, flash, image.code_bytes)
        return image

    def attest(
        self, job: Job[CpuTarget], planned: Planned[Plan], image: MicrocontrollerImage, proved: Certificate
    ) -> Certificate:
        return attested(planned, image, proved, read_back(image.program, bases_of(planned.graph), image.working))

    def bind(
        self, job: Job[CpuTarget], planned: Planned[Plan], image: MicrocontrollerImage, proved: Certificate
    ) -> NotHere:
        assert isinstance(job.target, MicrocontrollerTarget)
        return NotHere(job.target.core)

    def export(
        self,
        models: Mapping[str, Sequence[MicrocontrollerCompiled]],
        path: Path,
        manifest: Sequence[str],
        compiler: str | None,
    ) -> Library:
        from superkernel.backends.microcontroller.library import export

        return export(models, path, manifest, compiler)


BACKEND = MicrocontrollerBackend()
