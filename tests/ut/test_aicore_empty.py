"""Graphs with dimensions of no elements compile for the accelerator, with the graph passes (which fold empty results)
and without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs

Body = Callable[[sk.GraphBuilder], Any]


def _zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


BODIES: dict[str, Body] = {
    "rows": lambda b: b.gelu(b.input("x", (0, 16)) @ b.constant(_zeros(16, 8))),
    "columns": lambda b: b.gelu(b.input("x", (4, 16)) @ b.constant(_zeros(16, 0))),
    "batch": lambda b: b.gelu(b.input("x", (0, 4, 16)) @ b.input("z", (0, 16, 3))),
    "depth": lambda b: b.cos(b.input("x", (4, 0)) @ b.constant(_zeros(0, 8))),
    "sum": lambda b: b.reduce_sum(b.input("x", (4, 0)), axes=(1,)),
    "mean": lambda b: b.reduce_mean(b.input("x", (0, 4)), axes=(1,)),
    "softmax": lambda b: b.softmax(b.input("x", (0, 16)), axis=-1),
    "concat": lambda b: b.concat(b.input("x", (5, 4)), b.input("z", (0, 4)), axis=0),
    "attention": lambda b: b.attention(b.input("q", (1, 2, 3, 16)), *(b.input(n, (1, 2, 0, 16)) for n in "kv")),
}


@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_empty_dimensions(name: str, simplify: bool) -> None:
    b = sk.GraphBuilder(name)
    b.output(BODIES[name](b), "y")
    graph = b.graph()
    inputs = random_inputs(graph.inputs, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if name == "depth" else "error")  # no kernel sums up nothing
        kernel = sk.compile(graph, target="mini", options={"simplify": simplify})
    got, want = kernel.run(inputs).outputs["y"], evaluate(graph, inputs)["y"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=4e-3, atol=4e-3)


def test_empty_results_are_folded() -> None:
    b = sk.GraphBuilder("image")
    b.output(b.relu(b.conv(b.input("x", (0, 4, 6, 6)), b.constant(_zeros(8, 4, 3, 3)))), "y")
    for target in ("host", "mini"):
        kernel = sk.compile(b.graph(), target=target)
        assert kernel.run({"x": _zeros(0, 4, 6, 6)}).outputs["y"].shape == (0, 8, 4, 4)
