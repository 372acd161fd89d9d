"""The compilation, start to end: `compile_graph` is the list of stages.

    Graph -> simplify -> group (registry chooses kernels) -> place (with memory) -> plan sync -> verify -> image ->
    executable

Each stage's data prints as text: SK_DUMP shows it while compiling, `Kernel.stage_text` afterwards; SK_TRACE writes
the stages' times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from superkernel import settings
from superkernel.choice import KernelChooser
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.compiled import Compiled
from superkernel.dumps import with_dumps
from superkernel.executors.host import HostExecutable
from superkernel.graph import Graph
from superkernel.options import Options
from superkernel.scheduler.families.grouped import host_cut
from superkernel.scheduler.group import group
from superkernel.scheduler.layout import storage_policy
from superkernel.scheduler.place import place
from superkernel.scheduler.schedule import Schedule
from superkernel.scoping import with_scopes
from superkernel.stages import CacheFactory, Stages, tell_fallbacks
from superkernel.sync.plan import Plan
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import verify
from superkernel.target.cpu import CpuTarget
from superkernel.transforms import simplify
from superkernel.transforms.tilings import SinkTilings


def compile_graph(
    source: Graph,
    *,
    cores: int,
    options: Options,
    cache_factory: CacheFactory = ObjectCache,
) -> Compiled:
    """One kernel from one graph. Raises UnsupportedError, MachineError, VerificationError."""
    run = Stages(settings.dump_stages())
    cpu = detect_cpu()
    cache = cache_factory(settings.cache_directory() if options.cache else None)
    chooser = KernelChooser(cpu, options)

    with_scopes(source, options.scopes)  # for its checks: one entry needs no scopes
    run.dump("graph", source)
    with run.stage("simplify"):
        graph = simplify(source) if options.simplify else source
        graph = SinkTilings(lambda x, w: host_cut(cpu.tier)).apply(graph)
    run.dump("simplified", graph)
    with run.stage("group"):
        layout = storage_policy(graph, chooser.choose, cpu, options)
        grouping = group(graph, chooser.choose, cpu, options, storage=layout)
        dumps: dict[str, int] = {}
        if options.dump:
            graph, dumps = with_dumps(graph, grouping.subops, options.dump)
            grouping = group(graph, chooser.choose, cpu, options, storage=layout)
    run.dump("subops", grouping)
    with run.stage("place"):
        schedule = place(grouping, graph, cpu, cores, options)
    run.dump("schedule", schedule)
    with run.stage("sync"):
        plan = plan_sync(schedule, sync=options.sync_level, handover_ns=cpu.handover_ns)
    run.dump("plan", plan)
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
    return Compiled(
        source=source, graph=graph, options=options, cpu=cpu, cores=cores, grouping=grouping, chooser=chooser,
        schedule=schedule, plan=plan, certificate=certificate, image=image, executable=executable,
        stage_ns=run.times, dumps=dumps,
    )  # fmt: skip


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
