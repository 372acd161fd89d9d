"""The compilation, start to end: `compile_graph` is the list of stages.

    Graph -> plan (from the cache, or `planning`) -> verify -> image -> executable

Each stage's data prints as text: SK_DUMP shows it while compiling, `Kernel.stage_text` afterwards; SK_TRACE writes
the stages' times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.executable import HostExecutable
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.compilation.planned import Planned, PlanStore
from superkernel.compilation.scoping import with_scopes
from superkernel.compilation.stages import CacheFactory, Stages, tell_fallbacks
from superkernel.core import settings
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.scheduler.schedule import Schedule
from superkernel.sync.plan import Plan
from superkernel.sync.verify import verify
from superkernel.target.cpu import CpuTarget

if TYPE_CHECKING:
    from superkernel.compilation.choice import KernelChooser


def compile_graph(
    source: Graph,
    *,
    cores: int,
    options: Options,
    cache_factory: CacheFactory = ObjectCache,
) -> HostCompiled:
    """One kernel from one graph. Raises UnsupportedError, MachineError, VerificationError."""
    run = Stages(settings.dump_stages())
    cpu = detect_cpu()
    cache = cache_factory(settings.cache_directory() if options.cache else None)
    run.dump("graph", source)
    with_scopes(source, options.scopes)  # for its checks: one entry needs no scopes
    planned = _planned(run, source, PlanStore(cache, source, cpu, cores, options), cpu, cores, options)
    graph, grouping, schedule, plan = planned.graph, planned.grouping, planned.schedule, planned.plan
    with run.stage("verify"):
        certificate = verify(plan, {s.index: t.units for s, t in zip(schedule.subops, schedule.tilings, strict=True)})
    with run.stage("image"):
        image = _image(run, graph, grouping.constants, schedule, plan, cpu, cache, options)
    for name, text in image.ir_texts.items():
        run.dump("ir", f"; {name}\n{text}")
    tell_fallbacks(options, schedule, image.host_calls, "inside the fused kernel")
    with run.stage("bind"):
        executable = HostExecutable(image, schedule, plan, options.watchdog_ms)
    run.finish()
    return HostCompiled(
        source=source, graph=graph, options=options, cpu=cpu, cores=cores, grouping=grouping,
        kernel_choice=lambda: _chooser(cpu, options),
        schedule=schedule, plan=plan, certificate=certificate, image=image, executable=executable,
        stage_ns=run.times, dumps=planned.dumps,
    )  # fmt: skip


def _chooser(cpu: CpuTarget, options: Options) -> KernelChooser:
    from superkernel.compilation.choice import KernelChooser

    return KernelChooser(cpu, options)


def _planned(run: Stages, source: Graph, store: PlanStore, cpu: CpuTarget, cores: int, options: Options) -> Planned:
    """The plan of a graph, from the cache, or made and kept there: what makes it is not even imported until then."""
    with run.stage("look up"):
        found = store.find()
    if found is not None:
        stages = {"simplified": found.graph, "subops": found.grouping, "schedule": found.schedule, "plan": found.plan}
        for name, data in stages.items():
            run.dump(name, data)
        return found
    from superkernel.compilation.planning import plan_graph

    planned = plan_graph(run, source, cpu, cores, options)
    with run.stage("keep"):
        store.keep(planned)
    return planned


def _image(
    run: Stages,
    graph: Graph,
    constants: Mapping[str, NDArray[Any]],
    schedule: Schedule,
    plan: Plan,
    cpu: CpuTarget,
    cache: ObjectCache,
    options: Options,
) -> HostImage:
    builder = ImageBuilder(
        schedule,
        plan,
        cpu,
        cache,
        inputs=len(graph.inputs),
        outputs=len(graph.outputs),
        states=len(graph.states),
        prefetch=options.starts_early and options.weight_strength != "none",
        progress=run.progress.update,
        keep_ir="ir" in run.dumps,
    )
    return builder.build(constants)
