"""Combinations of the accelerator's options, and a model compiled under any of them: what tests and benchmarks share.

`ordered_rows` gives combinations in an order that is the same every time. Levels of synchronisation x strengths of
preloading come first and in full; whatever is free in a row is set so that as many pairs of values as can be meet that
have not met yet.
"""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

from superkernel.backends.aicore.backend import AicoreBackend
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.kernel import AicoreKernel
from superkernel.backends.aicore.shared import Shared
from superkernel.backends.aicore.variants import with_other_code
from superkernel.compilation.pipeline import compile_graph
from superkernel.core.option import ACCELERATOR
from superkernel.core.options import OPTIONS, Options
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.aicore import load_target

Row = dict[str, Any]
APART = {"strict_scope", "debug_sync_all", "decide"}  # refuses; overrides the rest; chooses among the rest
_DECIDING = [o for o in OPTIONS.values() if o.stage in ("schedule", "program") and ACCELERATOR in o.targets]
AXES: dict[str, tuple[Any, ...]] = {o.name: o.values for o in _DECIDING if o.name not in APART}
GRID = ("sync", "preload")
SCHEDULING = tuple(o.name for o in _DECIDING if o.stage == "schedule")  # all else is other code for the same schedule
PLAIN: Row = {"preload": "none", "split": 1}  # what is built quickest
ALL_PAIRS = 64  # combinations in which all pairs of values meet
TRIES = 30


def ordered_rows(count: int) -> list[Row]:
    """`count` different combinations: see the module docstring. The first ones of many are those of few."""
    rng = random.Random(0)
    grid = [dict(zip(GRID, values, strict=True)) for values in product(*(AXES[axis] for axis in GRID))]
    rows: list[Row] = []
    met: set[tuple[Any, ...]] = set()
    while len(rows) < count:
        fixed = grid[len(rows)] if len(rows) < len(grid) else {}
        tried = [{axis: fixed.get(axis, rng.choice(AXES[axis])) for axis in AXES} for _ in range(TRIES)]
        fresh = [row for row in tried if row not in rows]
        if fresh:
            rows.append(max(fresh, key=lambda row: len(pairs(row) - met)))
            met |= pairs(rows[-1])
    return rows


def pairs(row: Row) -> set[tuple[Any, ...]]:
    """Any two options with their values."""
    return {(a, row[a], b, row[b]) for a, b in combinations(AXES, 2)}


def schedule_key(row: Row) -> tuple[Any, ...]:
    """Combinations with equal keys have one schedule."""
    options = Options(**row)
    return tuple(getattr(options, axis) for axis in SCHEDULING)


class Variants:
    """A model under any options: what does not depend on them is made once."""

    def __init__(self, graph: Graph, target: str) -> None:
        self.graph, self.target = graph, load_target(target)
        self.inputs = random_inputs(graph.inputs, 0)
        self.schedules: dict[tuple[Any, ...], AicoreCompiled] = {}
        self.shared = Shared()

    def made(self, row: Row) -> AicoreCompiled:
        """The program under a combination of options."""
        options = Options(**{"fallback": "forbid", **row})
        key = schedule_key(row)
        if key not in self.schedules:
            # one launch: what runs in launches of its own loses what `locality` did, for all that is rebuilt from it
            first = Options(fallback="forbid", launches="fused", **PLAIN, **dict(zip(SCHEDULING, key, strict=True)))
            self.schedules[key] = compile_graph(self.graph, self.target, first, AicoreBackend(self.shared))
        return with_other_code(self.schedules[key], options, self.shared)

    def results(self, compiled: AicoreCompiled, *, single: bool = False) -> dict[str, bytes]:
        """Outputs and states; `single`: of every sub-operator in a launch of its own, from one end to the other."""
        kernel = AicoreKernel(compiled)
        io = kernel._io(list(kernel._arrays(self.inputs).values()))
        compiled.executable.simulate(io, single=single)
        names = [*compiled.output_names, *(f"state {name}" for name in compiled.graph.states)]
        return {name: a.tobytes() for name, a in zip(names, io[len(self.graph.inputs) :], strict=True)}
