"""Elements of 8 bytes on the accelerator: moved by kernels where they can be, else by NumPy between two launches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs

MOVES: dict[str, Callable[[Any, Any], Any]] = {
    "pad": lambda b, x: b.pad(x, pads=(1, 2, 1, 0)),
    "slice": lambda b, x: x[::2, ::3],
    "flip": lambda b, x: x[::-1, ::-1],
    "gather": lambda b, x: b.gather(x, b.constant(np.array([1, 0])), axis=1),
    "concat": lambda b, x: b.concat(x, x, axis=1),
    "transpose": lambda b, x: b.transpose(x, perm=(1, 0)),
    "where": lambda b, x: b.where(
        x > b.constant(np.zeros((), x.dtype.numpy)), x, b.constant(np.ones((), x.dtype.numpy))
    ),
}


@pytest.mark.parametrize("shape", [(4, 6), (64, 600)])
@pytest.mark.parametrize("dtype", ["i64", "u64", "f64"])
@pytest.mark.parametrize("name", MOVES)
def test_moves_of_wide_elements(name: str, dtype: str, shape: tuple[int, int]) -> None:
    """Small ones a control unit moves; what is too large for it and lies crosswise, NumPy."""
    b = sk.GraphBuilder(name)
    b.output(MOVES[name](b, b.input("x", shape, dtype)), "y")
    graph = b.graph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = sk.compile(graph, target="mini")
    fallbacks = kernel.summary()["fallbacks"]
    assert bool(caught) == bool(fallbacks)
    assert shape != (4, 6) or not fallbacks
    inputs = random_inputs(graph.inputs, 0)
    assert np.array_equal(kernel.run(inputs).outputs["y"], evaluate(graph, inputs)["y"])


def test_a_kernel_that_cannot_be_cut_is_told_and_forbidden() -> None:
    b = sk.GraphBuilder("large")
    b.output(b.pad(b.input("x", (64, 600), "i64"), pads=(1, 2, 1, 0)), "y")
    graph = b.graph()
    with pytest.warns(sk.FallbackWarning, match=r"y \(pad\)"):
        kernel = sk.compile(graph, target="mini")
    text = str(kernel.explain("y"))
    assert "cannot be cut for aicore.movement" in text
    assert "8-byte elements are moved only, not made" in text
    with pytest.raises(sk.UnsupportedError, match="8-byte elements are moved only"):
        sk.compile(graph, target="mini", options={"fallback": "forbid"})


def test_a_program_without_an_operator_falls_back_too() -> None:
    """Views alone: no node is an anchor, NumPy runs the program."""
    b = sk.GraphBuilder("views")
    x = b.input("x", (64, 600), "i64")
    b.output(b.transpose(x, perm=(1, 0))[::-1, ::-1], "y")
    graph = b.graph()
    with pytest.warns(sk.FallbackWarning):
        kernel = sk.compile(graph, target="mini")
    assert kernel._compiled.schedule.subops[0].body.op is None
    inputs = random_inputs(graph.inputs, 0)
    assert np.array_equal(kernel.run(inputs).outputs["y"], evaluate(graph, inputs)["y"])
