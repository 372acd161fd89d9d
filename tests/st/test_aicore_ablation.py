"""No optimisation changes a bit: outputs and states of small models are the same under all options, free of races.

Levels of synchronisation x strengths of preloading are run in full; the other options' values are dealt out over them
so that each meets each of the levels.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
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
from superkernel.pipeline_aicore import AicoreCompiled, with_other_code
from superkernel.random_inputs import random_inputs

SYNC = ("minimal", "type-range", "full")
PRELOAD = ("auto", "none", "per-func", "max")
SPLIT = (1, 3, "auto")


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


def combinations() -> list[dict[str, Any]]:
    """All levels of synchronisation with all strengths of preloading, each pair with other values of the rest."""
    found = []
    for number, (sync, preload) in enumerate(product(SYNC, PRELOAD)):
        row, column = divmod(number, len(PRELOAD))
        options = {"sync": sync, "preload": preload, "split": SPLIT[(row + column) % len(SPLIT)]}
        found.append({**options, "early_start": (row + column // 2) % 2 == 0, "debug_sync_all": number == 7})
    return found


def test_combinations_hold_what_is_promised() -> None:
    rows = combinations()
    for a, b in (("sync", "preload"), ("sync", "early_start"), ("preload", "early_start"), ("sync", "split")):
        want = {(x[a], y[b]) for x in rows for y in rows}
        assert {(row[a], row[b]) for row in rows} == want, (a, b)


@pytest.mark.parametrize("make", [encoder, decoder, residual_chain, branching, mixed], ids=lambda f: f.__name__)
def test_every_option_gives_the_same_bits(make: Any) -> None:
    graph = make()
    inputs = random_inputs(graph.inputs, 0)
    base = sk.compile(graph, target="mini", options={"fallback": "forbid"})
    compiled = base._compiled
    assert isinstance(compiled, AicoreCompiled)
    expected = _results(base, inputs)
    assert any(np.frombuffer(raw, np.uint8).any() for raw in expected.values())
    plans = set()
    for row in combinations():
        other = with_other_code(compiled, replace(Options(), **row))
        plans.add(str(other.plan))
        assert _results(Kernel(other), inputs) == expected, row
    assert len(plans) >= 4  # the options do something


def test_what_is_rebuilt_is_what_is_compiled() -> None:
    """The shortcut that the test above takes makes the same program."""
    graph = encoder()
    options = Options(sync="full", early_start=False, preload="none", split=3)
    base = sk.compile(graph, target="mini")._compiled
    assert isinstance(base, AicoreCompiled)
    whole = sk.compile(graph, target="mini", options=options)._compiled
    assert isinstance(whole, AicoreCompiled)
    assert with_other_code(base, options).image.elf == whole.image.elf


def _results(kernel: Kernel, inputs: dict[str, Any]) -> dict[str, bytes]:
    result = kernel.run(inputs)
    states = {f"state {name}": array.tobytes() for name, array in kernel.states.items()}
    return {**states, **{name: array.tobytes() for name, array in result.outputs.items()}}
