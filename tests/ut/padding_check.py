"""Poison in the padding of graphs of which it is proved that padding changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import superkernel as sk
from superkernel.ir.graph import Graph
from superkernel.padding.guards import Guards, guarded, places_of
from superkernel.padding.proof import proved
from superkernel.reference import evaluate

Array = NDArray[Any]


def hold(small: Graph, large: Graph, guards: Guards | None = None, *, compiled: bool = False) -> None:
    """Results of the padded graph, whatever the padding holds, begin with those of the other. By the reference or, of
    the padded one, as `compiled` on the host."""
    found = proved(small, large)
    given = {name: numbers(kind.shape, seed) for seed, (name, kind) in enumerate(small.inputs.items())}
    want = evaluate(small, given)
    graph, asked = guarded(large, found if guards is None else guards)
    kernel = sk.compile(graph, threads=2) if compiled else None
    first: dict[str, Array] = {}
    for poison in (0.0, np.nan, np.inf, -3e38, None):
        inputs = {}
        for name, kind in large.inputs.items():
            whole = numbers(kind.shape, 99) * 50 if poison is None else np.full(kind.shape, poison, np.float32)
            whole[tuple(map(slice, given[name].shape))] = given[name]
            inputs[name] = whole
        for place, name in asked.items():
            inputs[name] = np.arange(graph.inputs[name].shape[0]) < places_of(found)[place].count
        results = evaluate(graph, inputs) if kernel is None else kernel.run(inputs).outputs
        for mine, theirs in zip(small.outputs, graph.outputs, strict=True):
            cut = results[theirs][tuple(map(slice, want[mine].shape))]
            if poison == 0.0:
                np.testing.assert_allclose(cut, want[mine], rtol=2e-4, atol=2e-4)
                first[mine] = cut
            np.testing.assert_array_equal(cut, first[mine], f"{mine} with {poison}\n{large}")


def numbers(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)
