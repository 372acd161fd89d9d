"""Programs of what was compiled before: in another process, with other options of synchronisation and of code, or with
another plan."""

from __future__ import annotations

from superkernel.backends.aicore.backend import AicoreBackend
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.shared import Shared
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.image import AicoreImageBuilder
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


def unverified_program(compiled: AicoreCompiled, plan: AicorePlan) -> SimExecutable:
    """The program of another plan, which nobody has verified: for experiments in timing, never for results."""
    code = CodeOptions(compiled.options.func_align, compiled.options.split, compiled.options.preload)
    builder = AicoreImageBuilder(
        compiled.schedule, plan, compiled.target, compiled.image.addresses, _cache(compiled.options), code,
    )  # fmt: skip
    image = builder.build(compiled.grouping.constants)
    inputs, outputs = len(compiled.graph.inputs), len(compiled.graph.outputs)
    return SimExecutable(image, compiled.schedule, compiled.target, inputs, outputs)


def compile_again(source: Graph, target: AicoreTarget, options: Options) -> AicoreCompiled:
    """The same program once more, in another process."""
    return compile_graph(source, target, options, AicoreBackend())


def _cache(options: Options) -> ObjectCache:
    return ObjectCache(settings.cache_directory() if options.cache else None)
