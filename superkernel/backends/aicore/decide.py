"""Decisions by simulation, the option `decide="simulate"`: what may gain or lose is tried out on the device's model.

Model: cost models decide each optimisation of `DECISIONS` by itself and by estimate. Here the program is simulated for
timing as they have it; then each one that the user has left to the compiler is left out on top of what was best so far,
and stays out where that is faster. So nothing that is decided here makes the program slower than leaving it off.

The outcome is a few values of options. They are kept in the cache of compiled objects, under all that determines the
program and its cycles: graph, constants, target, options, sources.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.timeline import span_of
from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.compiled import Job
from superkernel.compilation.planned import job_key
from superkernel.core.json_text import parse_json
from superkernel.core.options import OPTIONS, Options
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.aicore import AicoreTarget

SIMULATE = "simulate"
DECISIONS = ("locality", "streams", "weight_prefetch", "preload", "split")  # in this order


def settled(
    job: Job[AicoreTarget], sources: str, cache: ObjectCache, compiled: Callable[[Options], AicoreCompiled]
) -> Options:
    """The job's options with every decision made. `sources`: digest of kernels from outside; `compiled`: the program
    under other options."""
    key = _key(job, sources)
    kept = _read(None if key is None else cache.get(key), job.options)
    if kept is not None:
        return kept
    quiet = "allow" if job.options.fallback == "warn" else job.options.fallback
    best = replace(job.options, decide="estimate", fallback=quiet)
    best_cycles = launched_cycles(compiled(best))
    for name in DECISIONS:
        if getattr(best, name) == OPTIONS[name].default:
            without = replace(best, **{name: OPTIONS[name].off})
            cycles = launched_cycles(compiled(without))
            if cycles < best_cycles:
                best, best_cycles = without, cycles
    chosen = {name: getattr(best, name) for name in DECISIONS}
    if key is not None:
        cache.put(key, json.dumps(chosen).encode())
    return replace(job.options, **chosen)


def launched_cycles(compiled: AicoreCompiled) -> int:
    """Cycles of a simulated run with random inputs, and what its launches cost; without what NumPy takes in between."""
    graph, target = compiled.graph, compiled.target
    inputs = random_inputs(graph.inputs, 0).values()
    outputs = (np.zeros(graph.types[v].shape, graph.types[v].dtype.numpy) for v in graph.outputs)
    io = [*inputs, *outputs, *(state.copy() for state in graph.states.values())]
    run = compiled.executable.simulate(io, mode="timing", races=False)
    work = sum(span_of(compiled, launch)[1] for launch in run.launches)
    return work + len(run.launches) * target.cycles(target.dispatch.launch_ns)


def _key(job: Job[AicoreTarget], sources: str) -> str | None:
    """What the outcome is kept under, if anywhere."""
    key = job_key(job, sources)
    return None if key is None else f"decide {key}"


def _read(data: bytes | None, options: Options) -> Options | None:
    """The options with what an entry says; None where it says nothing that could be: deciding again puts it right."""
    if data is None:
        return None
    try:
        chosen: dict[str, Any] = parse_json(data)
        legal = all(chosen[name] in (getattr(options, name), OPTIONS[name].off) for name in DECISIONS)
        return replace(options, **{name: chosen[name] for name in DECISIONS}) if legal else None
    except (ValueError, TypeError, KeyError):
        return None
