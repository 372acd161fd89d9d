"""A small program of the host, and images of it that do something else than its plan says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import superkernel as sk
from superkernel.backends.host.compiled import HostCompiled
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.core import settings
from superkernel.scheduler.schedule import Schedule
from superkernel.sync.plan import Plan, Step, Wait

X = np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32)


def chain() -> sk.Graph:
    """Products of rows, with a softmax between: cut differently, so that cores exchange rows at their borders."""
    b = sk.GraphBuilder("chain")
    rng = np.random.default_rng(0)
    x = b.input("x", X.shape)
    w = b.constant(rng.standard_normal((64, 64)).astype(np.float32) / 8)
    y = b.softmax(b.gelu(x @ w), axis=1)
    b.output(b.relu((y + x) @ w), "y")
    return b.graph()


def image_of(compiled: HostCompiled, plan: Plan, schedule: Schedule | None = None) -> HostImage:
    """The program with another plan, or other addresses."""
    builder = ImageBuilder(
        schedule or compiled.schedule,
        plan,
        compiled.target,
        ObjectCache(settings.cache_directory()),
        inputs=len(compiled.graph.inputs),
        outputs=len(compiled.graph.outputs),
        states=len(compiled.graph.states),
    )
    return builder.build(compiled.grouping.constants)


def without(plan: Plan, index: int) -> Plan:
    """The plan but for one of its waits."""

    def kept(steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(s for s in steps if not isinstance(s, Wait) or s.index != index)

    return replace(plan, programs=tuple(map(kept, plan.programs)))
