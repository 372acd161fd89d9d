"""The compilation, start to end: `compile_graph` is the list of stages.

    Graph -> simplify -> group (registry chooses kernels) -> place (with memory) -> plan sync -> verify -> image ->
    executable

Each stage's data prints as text: SK_DUMP shows it while compiling, `Kernel.stage_text` afterwards; SK_TRACE writes
the stages' times.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from superkernel import __version__, settings
from superkernel.choice import KernelChooser
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.dumps import with_dumps
from superkernel.errors import InputError, MachineError
from superkernel.executors.host import HostExecutable
from superkernel.graph import Graph
from superkernel.ineffective import without_effect
from superkernel.ops.grouped import TILINGS
from superkernel.options import Options
from superkernel.progress import Progress
from superkernel.scheduler.families.grouped import host_cut
from superkernel.scheduler.group import Grouping, group
from superkernel.scheduler.layout import storage_policy
from superkernel.scheduler.place import place
from superkernel.scheduler.schedule import Schedule
from superkernel.scoping import with_scopes
from superkernel.sync.plan import Plan
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import Certificate, verify
from superkernel.target.cpu import CpuTarget
from superkernel.transforms import simplify
from superkernel.transforms.tilings import SinkTilings

if TYPE_CHECKING:
    from superkernel.explain import Explanation
    from superkernel.report import Report
    from superkernel.tracing import Trace

WARMUP_ROUNDS = 5
CacheFactory = Callable[[Path | None], ObjectCache]


class FallbackWarning(UserWarning):
    """A sub-operator has no kernel and runs on the NumPy reference."""


@dataclass
class Compiled:
    """Everything a compilation made; `Kernel` is its face."""

    source: Graph
    graph: Graph
    options: Options
    cpu: CpuTarget
    cores: int
    grouping: Grouping
    chooser: KernelChooser
    schedule: Schedule
    plan: Plan
    certificate: Certificate
    image: HostImage
    executable: HostExecutable
    stage_ns: dict[str, int]
    version: str = __version__
    dumps: Mapping[str, int] = field(default_factory=dict)  # name -> number among the outputs, behind the graph's own
    output_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.output_names = names_of_outputs(self.graph)

    executor: ClassVar[str] = "host"

    def run(self, io: Sequence[NDArray[Any]]) -> None:
        """One launch on the io table: inputs, outputs, states."""
        self.executable.run(io)

    def profile(self, io: Sequence[NDArray[Any]], rounds: int, warm: bool = True) -> Report:
        """See `Kernel.report`. States change. Runs are warm, whatever is asked for."""
        from superkernel.profile import measure

        return measure(self, io, rounds)

    def time(self, io: Sequence[NDArray[Any]], rounds: int) -> NDArray[np.int64]:
        """See `Kernel.time`."""
        return self.executable.time(io, rounds, WARMUP_ROUNDS)

    def trace(self, io: Sequence[NDArray[Any]]) -> Trace:
        """See `Kernel.trace`."""
        from superkernel.profile import traced

        return traced(self, io)

    def explain(self, node: str | int) -> Explanation:
        """See `Kernel.explain`."""
        from superkernel.explain import explain

        return explain(self, node)

    def save(self, path: str | PathLike[str]) -> None:
        """See `Kernel.save`."""
        from superkernel.saved import save

        save(self, path)

    @property
    def objects(self) -> Mapping[str, bytes]:
        """Object code by cache key."""
        return self.image.objects

    def summary(self) -> dict[str, Any]:
        """Counts and sizes."""
        from superkernel.computed_in import formats_in_force

        return {
            "name": self.graph.name,
            "target": f"host {self.cpu.tier}",
            "threads": self.cores,
            "options_without_effect": list(without_effect(self.options, host=True)),
            "nodes": len(self.source.nodes),
            "sub_operators": len(self.schedule.subops),
            "computed_in": formats_in_force(self),
            "distinct_kernels": len({s for s in self.image.symbols if s is not None}),
            "waits": self.plan.waits,
            "sets": sum(self.plan.sets),
            "arena_bytes": self.schedule.arena_bytes,
            "constant_bytes": sum(c.nbytes for c in self.schedule.constants),
            "code_bytes": sum(map(len, self.image.objects.values())),
            "from_cache": self.image.from_cache,
            "fallbacks": [self.schedule.subops[i].name for i in self.image.host_calls],
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
        }
        if stage not in texts:
            raise InputError("no such stage", expected=", ".join(texts), found=repr(stage))
        return texts[stage]()

    def manifest(self) -> Any:
        """Kernels this model needs, for selective registration."""
        return self.chooser.manifest(self.graph.name, [s.body for s in self.schedule.subops])


def names_of_outputs(graph: Graph) -> tuple[str, ...]:
    """A value may be an output several times: later ones are numbered."""
    names: list[str] = []
    for name in graph.outputs:
        free, number = name, 0
        while free in names or (number and free in graph.outputs):
            number += 1
            free = f"{name}:{number}"
        names.append(free)
    return tuple(names)


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
        source, graph, options, cpu, cores, grouping, chooser, schedule, plan, certificate, image, executable,
        run.times, dumps=dumps,
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


def tell_fallbacks(options: Options, schedule: Schedule, host_calls: Sequence[int], where: str) -> None:
    """Warn of sub-operators that have no kernel, where the options ask for it."""
    asked = TILINGS if options.tiling == "host" else ()
    names = [f"{s.name} ({s.body.op})" for s in (schedule.subops[i] for i in host_calls) if s.body.op not in asked]
    if options.fallback != "warn" or not names:
        return
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    warnings.warn(
        f"no kernel for {listed}: computed by NumPy {where} (hint: Options(fallback='allow') silences this)",
        FallbackWarning,
        stacklevel=4,
    )


class Stages:
    """Times, dumps and progress of one compilation."""

    def __init__(self, dumps: frozenset[str]) -> None:
        self.dumps = dumps
        self.times: dict[str, int] = {}
        self.progress = Progress()
        self._events: list[dict[str, Any]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        self.progress.update(name, 0, 1)
        try:
            yield
        except BaseException:
            self.progress.close()
            raise
        self.times[name] = time.perf_counter_ns() - start
        event = {"name": name, "ph": "X", "pid": 0, "tid": 0, "ts": start / 1000, "dur": self.times[name] / 1000}
        self._events.append(event)

    def dump(self, stage: str, data: object) -> None:
        if stage in self.dumps:
            print(f"--- {stage} ---\n{data}", file=sys.stderr)

    def finish(self) -> None:
        self.progress.close()
        path = settings.trace_file()
        if path is not None:
            try:
                path.write_text(json.dumps({"traceEvents": self._events}))
            except OSError as error:
                raise MachineError(f"cannot write the trace: {error}", location="SK_TRACE") from error
