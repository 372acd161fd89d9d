"""No optimisation changes a bit: outputs and states of small models are the same under all options, free of races, and
those of the sub-operators launched one by one.

`pytest --combinations N` runs N combinations of the options per model (default 12; 64 and more on `a3` as well as on
`mini`, fewer there otherwise). Levels of synchronisation x strengths of preloading come first and in full; whatever is
free in a row is set so that as many pairs of values as can be meet that have not met yet.
"""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import models
import numpy as np
import pytest
from aicore_systems import fused_model

import superkernel as sk
from superkernel.builder import GraphBuilder, Tensor
from superkernel.graph import Graph
from superkernel.kernel import Kernel
from superkernel.options import Options
from superkernel.pipeline_aicore import AicoreCompiled, compile_for_aicore, with_other_code
from superkernel.random_inputs import random_inputs
from superkernel.target.aicore import load_target

Row = dict[str, Any]
AXES: dict[str, tuple[Any, ...]] = {
    "sync": ("minimal", "type-range", "full"),
    "preload": ("auto", "none", "per-func", "max"),
    "early_start": (True, False),
    "split": ("auto", 1, 3),
    "weight_prefetch": ("auto", "none", "max"),
    "streams": ("auto", "off"),
    "locality": ("auto", "off"),
    "tiling": ("sunk", "host"),
    "launches": ("fused", "auto", "single"),
    "func_align": (0, 256),
}
GRID = ("sync", "preload")
SCHEDULING = ("streams", "tiling", "locality")  # another schedule; all else is other code for the same
ALL_PAIRS = 64  # combinations in which all pairs of values meet
TRIES = 30


def _conv(b: GraphBuilder, rng: np.random.Generator, x: Tensor, channels: int, size: int, stride: int = 1) -> Tensor:
    shape = (channels, x.shape[1], size, size)
    weight = b.constant(rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:]))))
    pad = size // 2
    return b.conv(x, weight, pads=(pad,) * 4, strides=(stride, stride))


def residual_chain() -> Graph:
    """Two blocks of a residual network: the first halves the image and has a projection."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("residual_chain")
    x = b.relu(_conv(b, rng, b.input("image", (1, 16, 16, 16)), 16, 3))
    for channels, stride in ((32, 2), (32, 1)):
        inner = _conv(b, rng, b.relu(_conv(b, rng, x, channels, 3, stride)), channels, 3)
        x = b.relu(inner + (x if stride == 1 else _conv(b, rng, x, channels, 1, stride)))
    b.output(x, name="y")
    return b.graph()


def branching() -> Graph:
    """Four branches of different depth, joined along the channels."""
    rng = np.random.default_rng(1)
    b = GraphBuilder("branching")
    x = b.relu(_conv(b, rng, b.input("image", (1, 16, 12, 12)), 32, 3))
    pooled = b.max_pool(x, kernel=(3, 3), pads=(1, 1, 1, 1), strides=(1, 1))
    branches = [
        b.relu(_conv(b, rng, x, 16, 1)),
        b.relu(_conv(b, rng, b.relu(_conv(b, rng, x, 16, 1)), 32, 3)),
        b.relu(_conv(b, rng, b.relu(_conv(b, rng, b.relu(_conv(b, rng, x, 16, 1)), 16, 3)), 16, 3)),
        b.relu(_conv(b, rng, pooled, 16, 1)),
    ]
    b.output(b.concat(*branches, axis=1), name="y")
    return b.graph()


def encoder() -> Graph:
    return models.transformer(layers=1)


def decoder() -> Graph:
    return models.decode_step(layers=1)


def mixed() -> Graph:
    return fused_model()


def experts() -> Graph:
    return models.moe_layer(tokens=16, width=64, inner=64, experts=4)


MODELS = (encoder, decoder, residual_chain, branching, mixed, experts)


def dealt(count: int) -> list[Row]:
    """`count` different combinations, the same every time: see the module docstring. The first ones of many are those
    of few."""
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


@pytest.mark.parametrize("count", [12, ALL_PAIRS])
def test_combinations_hold_what_is_promised(count: int) -> None:
    rows = dealt(count)
    assert len({tuple(row.items()) for row in rows}) == count
    assert rows[:12] == dealt(12)
    met = set().union(*map(pairs, rows))
    wanted = {(a, x, b, y) for a, b in combinations(AXES, 2) for x in AXES[a] for y in AXES[b]}
    left = {(a, b) for a, _, b, _ in wanted - met}
    assert GRID not in left
    assert {row[axis] for row in rows for axis in AXES} == {value for axis in AXES for value in AXES[axis]}
    assert len(met) >= (len(wanted) if count >= ALL_PAIRS else 0.8 * len(wanted)), left


@pytest.mark.parametrize("target", ["mini", "a3"])
@pytest.mark.parametrize("make", MODELS, ids=lambda f: f.__name__)
def test_every_option_gives_the_same_bits(make: Any, target: str, request: pytest.FixtureRequest) -> None:
    count = int(request.config.getoption("--combinations"))
    rows = dealt(count if target == "mini" or count >= ALL_PAIRS else count // 6)
    bench = Bench(make(), target)
    expected = bench.results(bench.made({}), single=True)
    assert any(np.frombuffer(raw, np.uint8).any() for raw in expected.values())
    plans = set()
    for row in ({}, {"debug_sync_all": True}, *rows):
        other = bench.made(row)
        plans.add(str(other.plan))
        assert bench.results(other) == expected, row
    assert len(plans) >= min(4, len(rows))  # the options do something


class Bench:
    """A model under any options: what does not depend on them is made once."""

    def __init__(self, graph: Graph, target: str) -> None:
        self.graph, self.target = graph, load_target(target)
        self.inputs = random_inputs(graph.inputs, 0)
        self.schedules: dict[tuple[Any, ...], AicoreCompiled] = {}

    def made(self, row: Row) -> AicoreCompiled:
        options = Options(**{"fallback": "forbid", **row})
        key = tuple(getattr(options, axis) for axis in SCHEDULING)
        base = self.schedules.get(key)
        if base is None:
            base = self.schedules[key] = compile_for_aicore(self.graph, self.target, options=options)
        return base if base.options == options else with_other_code(base, options)

    def results(self, compiled: AicoreCompiled, *, single: bool = False) -> dict[str, bytes]:
        """Outputs and states; `single`: of every sub-operator in a launch of its own, from one end to the other."""
        kernel = Kernel(compiled)
        io = kernel._io(list(kernel._arrays(self.inputs).values()))
        compiled.executable.simulate(io, single=single)
        names = [*compiled.output_names, *(f"state {name}" for name in compiled.graph.states)]
        return {name: a.tobytes() for name, a in zip(names, io[len(self.graph.inputs) :], strict=True)}


def test_what_is_rebuilt_is_what_is_compiled() -> None:
    """The shortcut that the test above takes makes the same program."""
    graph = encoder()
    options = Options(sync="full", early_start=False, preload="none", split=3)
    base = sk.compile(graph, target="mini")._compiled
    assert isinstance(base, AicoreCompiled)
    whole = sk.compile(graph, target="mini", options=options)._compiled
    assert isinstance(whole, AicoreCompiled)
    assert with_other_code(base, options).image.elf == whole.image.elf
