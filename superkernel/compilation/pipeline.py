"""The compilation, start to end, for every kind of target: `compile_graph` is the list of stages.

    Graph -> plan (from the cache, or `planning`) -> verify -> image -> attest -> loaded

Each stage asks the target's backend. Each stage's data prints as text: SK_DUMP shows it while compiling,
`Kernel.stage_text` afterwards; SK_TRACE writes the stages' times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.backend import Backend, CertificateT, CompiledT, ImageT, PlannedT, TargetT
from superkernel.compilation.compiled import Job
from superkernel.compilation.planned import PlanForm, PlanStore
from superkernel.compilation.scoping import with_scopes
from superkernel.compilation.stages import CacheFactory, Later, Stages, report_fallbacks
from superkernel.core import settings
from superkernel.core.arrays import interned
from superkernel.core.options import Options
from superkernel.ir.graph import Graph

if TYPE_CHECKING:
    from superkernel.compilation.choice import KernelChooser

Choice = Callable[[], "KernelChooser"]


def compile_graph(
    source: Graph,
    target: TargetT,
    options: Options,
    backend: Backend[TargetT, PlannedT, CertificateT, ImageT, CompiledT],
    *,
    threads: int | None = None,
    cache_factory: CacheFactory = ObjectCache,
    later: Later | None = None,
) -> CompiledT:
    """One kernel from one graph. Without `later` everything is done on return. Raises UnsupportedError, MachineError,
    VerificationError."""
    run = Stages(settings.dump_stages(), later)
    scoped = with_scopes(source, options.scopes)  # checked everywhere, in force where there is more than one entry
    source = _with_known_arrays(scoped if target.separates_scopes else source)
    job = Job(source, target, backend.cores(target, threads), options)
    cache = cache_factory(settings.cache_directory() if options.cache else None)
    run.dump("graph", source)

    def other(options: Options) -> CompiledT:
        return compile_graph(source, target, options, backend, threads=threads, cache_factory=cache_factory)

    job = replace(job, options=backend.settled(job, cache, other))
    planned, chooser = _planned(run, job, backend, cache)
    return complete(run, job, backend, planned, cache, chooser)


def _with_known_arrays(graph: Graph) -> Graph:
    """The graph with the arrays of others that are compiled already, where they are equal: whoever knows them by
    identity (digests, packed constants) has nothing to do, and memory holds them once."""
    constants, states = ({n: interned(a) for n, a in part.items()} for part in (graph.constants, graph.states))
    return replace(graph, constants=constants, states=states)


def complete(
    run: Stages,
    job: Job[TargetT],
    backend: Backend[TargetT, PlannedT, CertificateT, ImageT, CompiledT],
    planned: PlannedT,
    cache: ObjectCache,
    chooser: Choice,
) -> CompiledT:
    """From the plan to what runs."""
    with run.stage("verify"):
        certificate = backend.verify(planned)
    with run.stage("image"):
        image = backend.emit(run, job, planned, cache)
    with run.stage("attest"):
        certificate = backend.attest(job, planned, image, certificate)
    for name, text in image.ir_texts.items():
        run.dump("ir", f"; {name}\n{text}")
    report_fallbacks(job.options, planned.schedule, image.host_calls, backend.fallbacks_run)
    with run.stage("bind"):
        executable = backend.bind(job, planned, image, certificate)
    run.finish()
    return backend.compiled(
        **vars(job), **vars(planned), certificate=certificate, image=image, executable=executable,
        kernel_choice=chooser, stage_ns=run.times,
    )  # fmt: skip


def _planned(
    run: Stages,
    job: Job[TargetT],
    backend: Backend[TargetT, PlannedT, Any, Any, Any],
    cache: ObjectCache,
) -> tuple[PlannedT, Choice]:
    """The plan of a job, from the cache, or made and kept there: what makes it is not even imported until then. With it
    the choice of its kernels, for whoever asks for reasons."""
    store = PlanStore(cache, job, PlanForm(backend)) if backend.plan_type is not None else None
    if store is not None:
        with run.stage("look up"):
            found = store.find()
        if found is not None:
            stages = {"simplified": found.graph, "subops": found.grouping, "schedule": found.schedule}
            for name, data in {**stages, "plan": found.plan}.items():
                run.dump(name, data)
            return found, lambda: backend.planner(job).chooser
    from superkernel.compilation.planning import plan_graph

    planner = backend.planner(job)
    planned = plan_graph(run, job, planner)
    if store is not None and run.later is not None:
        run.later(partial(store.keep, planned))
    elif store is not None:
        with run.stage("keep"):
            store.keep(planned)
    return planned, lambda: planner.chooser
