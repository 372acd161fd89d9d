"""Programs of what was compiled before: in another process, with other options of synchronisation and of code, or with
another plan."""

from __future__ import annotations

from dataclasses import replace

from superkernel.backends.aicore.backend import AicoreBackend
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.shared import Shared
from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.compiled import Job
from superkernel.compilation.pipeline import compile_graph, complete
from superkernel.compilation.planning import plan_schedule
from superkernel.compilation.stages import Stages
from superkernel.core import settings
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.target.aicore import AicoreTarget


def with_other_code(compiled: AicoreCompiled, options: Options, shared: Shared | None = None) -> AicoreCompiled:
    """The same schedule with other options of synchronisation and of code: what stands ahead of them is not done again.
    Options that decide the schedule must be those of `compiled`."""
    backend, run = AicoreBackend(shared), Stages(settings.dump_stages())
    job = Job(compiled.source, compiled.target, compiled.cores, options)
    planned = plan_schedule(run, backend.planner(job), compiled)
    return complete(run, job, backend, planned, _cache(options), compiled.kernel_choice)


def unverified_program(compiled: AicoreCompiled, plan: AicorePlan, shared: Shared | None = None) -> SimExecutable:
    """The program of another plan, which nobody has verified: for experiments in timing, never for results."""
    other, backend = replace(compiled, plan=plan), AicoreBackend(shared)
    image = backend.emit(Stages(frozenset()), other, other, _cache(compiled.options))
    return backend.bind(other, other, image, compiled.certificate)


def compile_again(source: Graph, target: AicoreTarget, options: Options) -> AicoreCompiled:
    """The same program once more, in another process."""
    return compile_graph(source, target, options, AicoreBackend())


def _cache(options: Options) -> ObjectCache:
    return ObjectCache(settings.cache_directory() if options.cache else None)
