"""The compilation for the accelerator, start to end: the same stages as `pipeline`, another back half.

Graph -> simplify -> lower precision -> group (registry chooses kernels, images channels last) -> place (with
memory) -> plan sync -> verify -> addresses -> image (one ELF file) -> executable (the simulator)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from superkernel import __version__, settings
from superkernel.choice import KernelChooser
from superkernel.codegen.aicore.addresses import map_addresses
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.image import AicoreImage, AicoreImageBuilder
from superkernel.codegen.aicore.weight_prefetch import (
    NO_PREFETCH,
    WeightPrefetch,
    plan_weight_prefetch,
    with_prefetch,
)
from superkernel.codegen.cache import ObjectCache
from superkernel.dtypes import DType
from superkernel.dumps import with_dumps
from superkernel.errors import InputError
from superkernel.executors.sim import SimExecutable
from superkernel.explain_aicore import AicoreExplanation, explain_aicore
from superkernel.files import file_name, replacing
from superkernel.graph import Graph
from superkernel.ineffective import without_effect
from superkernel.options import Options
from superkernel.pipeline import CacheFactory, Stages, names_of_outputs, tell_fallbacks
from superkernel.scheduler.aicore.launches import Part, by_scope
from superkernel.scheduler.aicore.place import CannotCut, Workspaces, place_aicore
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.grouped import grouped_cut
from superkernel.scheduler.group import Grouping, group
from superkernel.scheduler.schedule import Schedule
from superkernel.scoping import with_scopes
from superkernel.sim.trace import records, trace_of
from superkernel.sim_report import SimReport, measure
from superkernel.sync.aicore.launching import plan_launches
from superkernel.sync.aicore.plan import AicorePlan, Form
from superkernel.sync.aicore.verify import AicoreCertificate, verify_aicore
from superkernel.target.aicore import AicoreTarget
from superkernel.tracing import Trace
from superkernel.transforms import simplify
from superkernel.transforms.precision import error_bound, lower_precision
from superkernel.transforms.selections import selections
from superkernel.transforms.tilings import SinkTilings

_PRECISIONS = {"auto": DType.F16, "f16": DType.F16, "bf16": DType.BF16}


@dataclass
class AicoreCompiled:
    """Everything a compilation for the accelerator made; `Kernel` is its face."""

    source: Graph
    graph: Graph
    options: Options
    target: AicoreTarget
    grouping: Grouping
    chooser: KernelChooser
    schedule: Schedule
    workspaces: Workspaces
    plan: AicorePlan
    certificate: AicoreCertificate
    image: AicoreImage
    executable: SimExecutable
    stage_ns: dict[str, int]
    version: str = __version__
    dumps: Mapping[str, int] = field(default_factory=dict)  # name -> number among the outputs, behind the graph's own
    parts: tuple[Part, ...] = ()
    weights: WeightPrefetch = NO_PREFETCH
    output_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.output_names = names_of_outputs(self.graph)

    executor: ClassVar[str] = "sim"

    @cached_property
    def selections(self) -> tuple[str, ...]:
        """Operators that a rounding may tip over; none where nothing is lowered."""
        return () if self.options.precision == "f32" else selections(self.source)

    @property
    def error_bound(self) -> float | None:
        """What outputs may be off by because of narrow values (`transforms.precision`); None: no bound can be given.
        0: nothing is lowered."""
        if self.options.precision == "f32":
            return 0.0
        return error_bound(self.source, _PRECISIONS[self.options.precision])

    def run(self, io: Sequence[NDArray[Any]]) -> SimReport:
        """One fused run on the simulator; outputs and states are written in place."""
        return measure(self, io, baseline=False)

    def profile(self, io: Sequence[NDArray[Any]], rounds: int, warm: bool = False) -> SimReport:
        """A fused run and, with `rounds` above 0, the baseline of single launches. States change."""
        return measure(self, io, baseline=rounds > 0, warm=warm)

    def time(self, io: Sequence[NDArray[Any]], rounds: int) -> NDArray[np.int64]:
        """Simulated ns of a fused run, the same every time."""
        return np.full(rounds, round(self.run(io).time_us * 1000), np.int64)

    def trace(self, io: Sequence[NDArray[Any]]) -> Trace:
        """See `Kernel.trace`."""
        run = self.executable.simulate(io, mode="timing", races=False, trace=True)
        names = {sub.index: sub.name for sub in self.schedule.subops}
        title = f"{self.graph.name} on {self.target.name}, simulated"
        return trace_of([records(launch.trace) for launch in run.launches], self.target, names, title)

    def explain(self, node: str | int) -> AicoreExplanation:
        """See `Kernel.explain`."""
        return explain_aicore(self, node)

    def save(self, path: str | PathLike[str]) -> None:
        """The program with its constants as one ELF file, which names its target: for `superkernel sim run`, a
        disassembler, an emulator. Raises InputError on what is no file name, MachineError where the file cannot be
        written."""
        name, data = file_name(path), self.image.whole_elf()
        with replacing(name, "the program") as file:
            file.write(data)

    @property
    def cores(self) -> int:
        """Cube and vector cores together."""
        return self.plan.total

    def summary(self) -> dict[str, Any]:
        """Counts and sizes."""
        forms = [b.form.value for b in self.plan.boundaries if b.form is not Form.NONE]
        return {
            "name": self.graph.name,
            "target": self.target.name,
            "cube_cores": self.plan.cube_cores,
            "vector_cores": self.plan.vector_cores,
            "options_without_effect": list(without_effect(self.options, host=False)),
            "nodes": len(self.source.nodes),
            "sub_operators": len(self.schedule.subops),
            "distinct_kernels": len({s for row in self.image.symbols for s in row.values()}),
            "events": len(self.plan.events),
            "launches": self.image.launches,
            "scopes": [str(part) for part in self.parts],
            "boundaries": {form: forms.count(form) for form in sorted(set(forms))},
            "arena_bytes": self.schedule.arena_bytes,
            "constant_bytes": sum(c.nbytes for c in self.schedule.constants),
            "code_bytes": self.image.image.code_bytes,
            "code_copies": self.image.code.copies,
            "preload": self.image.code.strength,
            "prefetched_lines": self.image.code.lines,
            "code_reasons": list(self.image.code.reasons),
            "streams": dict(self.schedule.arrangements),
            "weight_prefetch": self.weights.strength,
            "weight_prefetch_bytes": self.weights.nbytes,
            "weight_prefetch_reason": self.weights.reason,
            "fallbacks": [self.schedule.subops[i].name for i in self.image.host_calls],
            "error_bound": self.error_bound,
            "selections": list(self.selections),
            "inputs": {n: str(t) for n, t in self.graph.inputs.items()},
            "outputs": {
                n: str(self.graph.types[v]) for n, v in zip(self.output_names, self.graph.outputs, strict=True)
            },
            "stage_ms": {name: round(ns / 1e6, 2) for name, ns in self.stage_ns.items()},
        }

    def stage_text(self, stage: str) -> str:
        """The text of one stage."""
        texts: dict[str, Callable[[], str]] = {
            "graph": lambda: str(self.source),
            "simplified": lambda: str(self.graph),
            "subops": lambda: str(self.grouping),
            "schedule": lambda: str(self.schedule),
            "plan": lambda: str(self.plan),
            "certificate": lambda: str(self.certificate),
            "map": lambda: self.image.image.map_text(),
        }
        if stage not in texts:
            raise InputError("no such stage", expected=", ".join(texts), found=repr(stage))
        return texts[stage]()

    def manifest(self) -> Any:
        """Kernels this model needs, for selective registration."""
        return self.chooser.manifest(self.graph.name, [s.body for s in self.schedule.subops])


def compile_for_aicore(
    source: Graph, target: AicoreTarget, *, options: Options, cache_factory: CacheFactory = ObjectCache
) -> AicoreCompiled:
    """One kernel for all cores of an accelerator. Raises UnsupportedError, MachineError, VerificationError."""
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
            graph = lower_precision(graph, _PRECISIONS[options.precision], narrow_states=True)
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
    return _complete(run, scheduled, options, cache)


def with_other_code(compiled: AicoreCompiled, options: Options) -> AicoreCompiled:
    """The same schedule with other options of synchronisation and of code: what stands ahead of them is not done again.
    Options that decide the schedule must be those of `compiled`."""
    same = _Scheduled(
        compiled.source, compiled.graph, compiled.target, compiled.chooser, compiled.grouping, compiled.schedule,
        compiled.workspaces, compiled.dumps,
    )  # fmt: skip
    cache = ObjectCache(settings.cache_directory() if options.cache else None)
    return _complete(Stages(settings.dump_stages()), same, options, cache)


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


def _planned(front: _Scheduled, options: Options) -> tuple[Schedule, Workspaces, AicorePlan, tuple[Part, ...]]:
    """The plan, and the launches that share it. What turns out to run in launches of its own has no flag to save: it is
    placed again where it was before `locality`."""
    schedule, workspaces, apart = front.schedule, front.workspaces, set[int]()
    while True:
        code_bytes = [front.chooser.code_bytes(sub.kernel) for sub in schedule.subops]
        plan, parts = plan_launches(
            schedule, front.target, sync=options.sync_level, early_start=options.starts_early,
            launches=options.launches, strict=options.strict_scope, code_bytes=code_bytes.__getitem__,
        )  # fmt: skip
        alone = {i for part in parts if not part.fused or len(part.subops) == 1 for i in part.subops}
        if not alone & schedule.localised:
            return schedule, workspaces, plan, parts
        apart |= alone
        schedule, workspaces = place_aicore(
            front.grouping, front.target, streams=options.streams, locality=options.locality, apart=apart
        )


def _complete(run: Stages, front: _Scheduled, options: Options, cache: ObjectCache) -> AicoreCompiled:
    """From the schedule to the executable."""
    graph, target = front.graph, front.target
    with run.stage("sync"):
        schedule, workspaces, plan, parts = _planned(front, options)
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
        builder = AicoreImageBuilder(schedule, workspaces, plan, target, addresses, cache, code, run.progress.update)
        image = builder.build(front.grouping.constants)
    for name, text in image.ir_texts.items():
        run.dump("ir", f"; {name}\n{text}")
    tell_fallbacks(options, schedule, image.host_calls, "between two launches")
    with run.stage("bind"):
        executable = SimExecutable(image, schedule, workspaces, plan, target, len(graph.inputs), len(graph.outputs))
    run.finish()
    return AicoreCompiled(
        front.source, graph, options, target, front.grouping, front.chooser, schedule, workspaces, plan, certificate,
        image, executable, run.times, parts=parts, dumps=front.dumps, weights=weights,
    )  # fmt: skip
