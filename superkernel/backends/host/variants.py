"""Kernels of the same schedule with other options of synchronisation: what a report holds a kernel against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from superkernel.backends.host.backend import BACKEND
from superkernel.backends.host.compiled import HostCompiled
from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.compiled import Job, Scheduled
from superkernel.compilation.pipeline import complete
from superkernel.compilation.planning import plan_schedule
from superkernel.compilation.stages import Stages
from superkernel.core import settings

BARRIERS = "full barriers"


def with_other_sync(compiled: HostCompiled, options: Mapping[str, Any]) -> HostCompiled:
    """The same schedule with other values of options of stage `program`. It is verified and attested like any other;
    kernels are shared, and constants as far as kernels share them anyway."""
    run = Stages(settings.dump_stages())
    given = replace(compiled.options, fallback="allow", **options)  # what it falls back to is said already
    job = Job(compiled.source, compiled.target, compiled.cores, given)
    scheduled = Scheduled(compiled.graph, compiled.grouping, compiled.schedule, compiled.dumps)
    planned = plan_schedule(run, BACKEND.planner(job), scheduled)
    cache = ObjectCache(settings.cache_directory() if given.cache else None)
    return complete(run, job, BACKEND, planned, cache, compiled.kernel_choice)


def barriers_of(compiled: HostCompiled) -> dict[str, HostCompiled]:
    """The kernel with a barrier of all cores between any two sub-operators; nothing where it has no waits to lose."""
    if compiled.cores == 1 or compiled.options.sync_level == "full" or not compiled.plan.waits:
        return {}
    return {BARRIERS: with_other_sync(compiled, {"sync": "full"})}
