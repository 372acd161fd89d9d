"""The compilation for the accelerator, start to end: the same stages as `pipeline`, another back half.

Graph -> simplify -> lower precision -> group (registry chooses kernels, images channels last) -> place (with
memory) -> plan sync -> verify -> addresses -> image (one ELF file) -> executable (the simulator)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from superkernel.backends.aicore.compiled import LOWERED, AicoreCompiled
from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.shared import Shared
from superkernel.codegen.aicore.addresses import map_addresses
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.image import AicoreImageBuilder
from superkernel.codegen.aicore.weight_prefetch import (
    plan_weight_prefetch,
    with_prefetch,
)
from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.choice import KernelChooser
from superkernel.compilation.dumps import with_dumps
from superkernel.compilation.scoping import with_scopes
from superkernel.compilation.stages import CacheFactory, Stages, tell_fallbacks
from superkernel.core import settings
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.scheduler.aicore.launches import Part, by_scope
from superkernel.scheduler.aicore.place import CannotCut, Workspaces, place_aicore
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.grouped import grouped_cut
from superkernel.scheduler.group import group
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.schedule import Schedule
from superkernel.sync.aicore.launching import plan_launches
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.sync.aicore.verify import verify_aicore
from superkernel.target.aicore import AicoreTarget
from superkernel.transforms import simplify
from superkernel.transforms.precision import lower_precision
from superkernel.transforms.tilings import SinkTilings


def compile_for_aicore(
    source: Graph,
    target: AicoreTarget,
    *,
    options: Options,
    cache_factory: CacheFactory = ObjectCache,
    shared: Shared | None = None,
) -> AicoreCompiled:
    """One kernel for all cores of an accelerator. `shared`: of other compilations of the graph for the target. Raises
    UnsupportedError, MachineError, VerificationError."""
    run = Stages(settings.dump_stages())
    cache_path: Path | None = settings.cache_directory() if options.cache else None
    cache = cache_factory(cache_path)
    chooser = KernelChooser(target, options)

    source = with_scopes(source, options.scopes)
    run.dump("graph", source)
    with run.stage("simplify"):
        graph = simplify(source) if options.simplify else source
    with run.stage("precision"):
        if options.precision != "f32":
            graph = lower_precision(graph, LOWERED[options.precision], narrow_states=True)
            graph = simplify(graph) if options.simplify else graph
        slots = int(target.device.groups)
        graph = SinkTilings(lambda x, w: grouped_cut(x, w, target), slots).apply(graph)
    run.dump("simplified", graph)
    while True:
        with run.stage("group"):
            grouping = group(graph, chooser.choose, target, options, families=family_of)
            dumped, dumps = graph, dict[str, int]()
            if options.dump:
                dumped, dumps = with_dumps(graph, grouping.subops, options.dump)
                grouping = group(dumped, chooser.choose, target, options, families=family_of)
            grouping = by_scope(grouping)
        run.dump("subops", grouping)
        try:
            with run.stage("place"):
                schedule, workspaces = place_aicore(
                    grouping, target, streams=options.streams, locality=options.locality
                )
            break
        except CannotCut as found:  # once for each kernel that does not do, at most
            chooser.refuse(found.sub.body, found.error)
    graph = dumped
    run.dump("schedule", schedule)
    scheduled = _Scheduled(source, graph, target, chooser, grouping, schedule, workspaces, dumps)
    return _complete(run, scheduled, options, cache, shared or Shared())


def with_other_code(compiled: AicoreCompiled, options: Options, shared: Shared | None = None) -> AicoreCompiled:
    """The same schedule with other options of synchronisation and of code: what stands ahead of them is not done again.
    Options that decide the schedule must be those of `compiled`."""
    same = _Scheduled(
        compiled.source, compiled.graph, compiled.target, compiled.chooser, compiled.grouping, compiled.schedule,
        compiled.workspaces, compiled.dumps,
    )  # fmt: skip
    cache = ObjectCache(settings.cache_directory() if options.cache else None)
    return _complete(Stages(settings.dump_stages()), same, options, cache, shared or Shared())


def unverified_program(compiled: AicoreCompiled, plan: AicorePlan) -> SimExecutable:
    """The program of another plan, which nobody has verified: for experiments in timing, never for results."""
    cache = ObjectCache(settings.cache_directory() if compiled.options.cache else None)
    code = CodeOptions(compiled.options.func_align, compiled.options.split, compiled.options.preload)
    builder = AicoreImageBuilder(
        compiled.schedule, compiled.workspaces, plan, compiled.target, compiled.image.addresses, cache, code
    )
    image = builder.build(compiled.grouping.constants)
    inputs, outputs = len(compiled.graph.inputs), len(compiled.graph.outputs)
    return SimExecutable(image, compiled.schedule, compiled.workspaces, plan, compiled.target, inputs, outputs)


@dataclass(frozen=True)
class _Scheduled:
    """A compilation as far as its schedule."""

    source: Graph
    graph: Graph
    target: AicoreTarget
    chooser: KernelChooser
    grouping: Grouping
    schedule: Schedule
    workspaces: Workspaces
    dumps: Mapping[str, int]


def _planned(
    front: _Scheduled, options: Options, shared: Shared
) -> tuple[Schedule, Workspaces, AicorePlan, tuple[Part, ...]]:
    """The plan, and the launches that share it. What turns out to run in launches of its own has no flag to save: it is
    placed again where it was before `locality`."""
    schedule, workspaces, apart = front.schedule, front.workspaces, set[int]()
    while True:
        code_bytes = [front.chooser.code_bytes(sub.kernel) for sub in schedule.subops]
        plan, parts = plan_launches(
            schedule, front.target, sync=options.sync_level, early_start=options.starts_early,
            launches=options.launches, strict=options.strict_scope, code_bytes=code_bytes.__getitem__,
            conflicts=shared.conflicts(schedule),
        )  # fmt: skip
        alone = {i for part in parts if not part.fused or len(part.subops) == 1 for i in part.subops}
        if not alone & schedule.localised:
            return schedule, workspaces, plan, parts
        apart |= alone
        schedule, workspaces = place_aicore(
            front.grouping, front.target, streams=options.streams, locality=options.locality, apart=apart
        )


def _complete(run: Stages, front: _Scheduled, options: Options, cache: ObjectCache, shared: Shared) -> AicoreCompiled:
    """From the schedule to the executable."""
    graph, target = front.graph, front.target
    with run.stage("sync"):
        schedule, workspaces, plan, parts = _planned(front, options, shared)
        weights = plan_weight_prefetch(schedule, plan, target, options.weight_strength)
        plan = with_prefetch(plan, weights)
    run.dump("plan", plan)
    with run.stage("verify"):
        units = {s.index: t.units for s, t in zip(schedule.subops, schedule.tilings, strict=True)}
        certificate = verify_aicore(plan, units)
    with run.stage("image"):
        types = [graph.types[v] for v in graph.outputs]
        states = [graph.types[s] for s in graph.states]
        addresses = map_addresses(schedule, target, list(graph.inputs.values()), types, states)
        code = CodeOptions(options.func_align, options.split, options.preload)
        builder = AicoreImageBuilder(
            schedule, workspaces, plan, target, addresses, cache, code, run.progress.update, shared.kernels
        )
        image = builder.build(front.grouping.constants)
    for name, text in image.ir_texts.items():
        run.dump("ir", f"; {name}\n{text}")
    tell_fallbacks(options, schedule, image.host_calls, "between two launches")
    with run.stage("bind"):
        executable = SimExecutable(image, schedule, workspaces, plan, target, len(graph.inputs), len(graph.outputs))
    run.finish()
    return AicoreCompiled(
        source=front.source, graph=graph, options=options, target=target, grouping=front.grouping,
        kernel_choice=lambda: front.chooser, schedule=schedule, workspaces=workspaces, plan=plan,
        certificate=certificate,
        image=image, executable=executable, stage_ns=run.times, parts=parts, dumps=front.dumps, weights=weights,
    )  # fmt: skip
