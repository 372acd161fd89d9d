"""Convolutions without taps that only meet padding: the same numbers, the fewest taps, and what is left as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from seeds import seeds

import superkernel as sk
from superkernel.core.errors import SuperKernelError
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.transforms.taps import DropPaddedTaps

Shape = tuple[int, ...]


def made(x: Shape, weights: NDArray[Any], constant: bool = True, **attrs: Any) -> Graph:
    b = sk.GraphBuilder("taps")
    filters = b.constant(weights) if constant else b.input("w", weights.shape)
    b.output(b.conv(b.input("x", x), filters, b.constant(np.ones(len(weights), np.float32)), **attrs), name="y")
    return b.graph()


def noise(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def check(graph: Graph) -> Graph:
    """The rewritten graph, which computes the same."""
    found = DropPaddedTaps().apply(graph)
    x = np.random.default_rng(1).standard_normal(graph.types["x"].shape).astype(np.float32)
    got, want = (evaluate(g, {"x": x})["y"] for g in (found, graph))
    np.testing.assert_array_equal(got, want)
    return found


def kernel(graph: Graph) -> Shape:
    (weights,) = (a.shape[2:] for a in graph.constants.values() if a.ndim > 1)
    return tuple(weights)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "left"),
    [
        ((1, 3, 6, 6), (4, 3, 3, 3), {"dilations": (12, 12), "pads": (12, 12, 12, 12)}, (1, 1)),
        ((1, 3, 6, 9), (4, 3, 3, 3), {"dilations": (6, 6), "pads": (6, 6, 6, 6)}, (1, 3)),
        ((1, 3, 4), (4, 3, 5), {"dilations": (2,), "pads": (4, 4)}, (3,)),
        (
            (2, 4, 2, 3, 2),
            (4, 2, 3, 1, 3),
            {"pads": (2, 0, 2, 2, 0, 0), "groups": 2, "dilations": (2, 1, 1)},
            (1, 1, 2),
        ),
        ((1, 3, 1, 1), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}, (1, 1)),
        ((1, 3, 1, 1), (4, 3, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, (1, 1)),
    ],
    ids=str,
)
def test_only_taps_that_meet_the_image_are_kept(x: Shape, w: Shape, attrs: dict[str, Any], left: Shape) -> None:
    graph = made(x, noise(*w), **attrs)
    found = check(graph)
    assert kernel(found) == left
    np.testing.assert_allclose(
        sk.compile(graph, threads=1).run({"x": noise(*x)}).outputs["y"],
        evaluate(graph, {"x": noise(*x)})["y"],
        1e-5,
        1e-5,
    )


@pytest.mark.parametrize("seed", seeds(30))
def test_random_windows(seed: int) -> None:
    """Whatever is dropped, results are the same, and nothing is dropped twice."""
    rng = np.random.default_rng(seed)
    rank, groups = int(rng.integers(1, 4)), int(rng.choice([1, 2]))
    window, strides, dilations = (tuple(map(int, rng.integers(1, 5, rank))) for _ in range(3))
    pads = tuple(int(rng.integers(0, 9)) for _ in range(2 * rank))
    x = (int(rng.integers(1, 3)), 2 * groups, *map(int, rng.integers(1, 6, rank)))
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    try:
        graph = made(x, noise(2 * groups, 2, *window), **attrs)
    except SuperKernelError:
        return  # the window does not fit
    found = check(graph)
    assert DropPaddedTaps().apply(found) is found


@pytest.mark.parametrize(
    "graph",
    [
        made((1, 3, 6, 6), noise(4, 3, 3, 3), dilations=(5, 5), pads=(5, 5, 5, 5)),
        made((1, 3, 6, 6), noise(4, 3, 3, 3), constant=False, dilations=(6, 6), pads=(6, 6, 6, 6)),
        made((1, 3, 6, 6), np.full((4, 3, 3, 3), np.inf, np.float32), dilations=(6, 6), pads=(6, 6, 6, 6)),
        made((1, 3, 1), noise(4, 3, 2), dilations=(2,), pads=(1, 1)),
    ],
    ids=["all taps meet it", "weights that change", "weights that are infinite", "nothing meets it"],
)
def test_what_is_left_as_it_is(graph: Graph) -> None:
    assert DropPaddedTaps().apply(graph) is graph
