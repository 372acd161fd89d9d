"""Transposed convolutions as plain ones: the same numbers under the same name, and what is left as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from seeds import seeds

import superkernel as sk
from superkernel.core.errors import SuperKernelError
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.transforms.transposed import ConvolveByPhases

Shape = tuple[int, ...]


def made(x: Shape, w: Shape, bias: bool = True, constant: bool = True, **attrs: Any) -> Graph:
    b, rng = sk.GraphBuilder("transposed"), np.random.default_rng(0)
    weights = rng.standard_normal(w).astype(np.float32)
    filters = b.constant(weights) if constant else b.input("w", w)
    added = b.constant(rng.standard_normal(w[1] * attrs.get("groups", 1)).astype(np.float32)) if bias else None
    b.output(b.conv_transpose(b.input("x", x), filters, added, **attrs), name="y")
    return b.graph()


def check(graph: Graph) -> Graph:
    """The rewritten graph computes the same."""
    found = ConvolveByPhases().apply(graph)
    ops = [node.op for node in found.nodes]
    assert "conv" in ops
    assert "conv_transpose" not in ops
    x = np.random.default_rng(1).standard_normal(graph.types["x"].shape).astype(np.float32)
    got, want = (evaluate(g, {"x": x})["y"] for g in (found, graph))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return found


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 8, 5, 6), (8, 3, 2, 2), {"strides": (2, 2)}),
        ((2, 8, 5, 6), (8, 3, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((1, 8, 5, 6), (8, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
        ((1, 8, 5, 6), (8, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 8, 5, 6), (8, 3, 2, 1), {"strides": (3, 2)}),  # phases without taps
        ((1, 8, 30), (8, 5, 16), {"strides": (8,), "pads": (4, 4)}),
        ((1, 4, 3, 4, 5), (4, 2, 2, 3, 4), {"strides": (2, 1, 3), "pads": (0, 1, 2, 1, 0, 1)}),
        ((1, 12, 4, 4), (12, 2, 3, 3), {"strides": (2, 2), "groups": 3}),
        ((1, 4, 1, 1), (4, 2, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ],
    ids=str,
)
def test_the_same_numbers(x: Shape, w: Shape, attrs: dict[str, Any]) -> None:
    for bias in (True, False):
        check(made(x, w, bias, **attrs))


def test_without_strides_nothing_is_laid_side_by_side() -> None:
    found = check(made((1, 8, 5, 6), (8, 3, 3, 3), pads=(1, 1, 1, 1)))
    assert [node.op for node in found.nodes] == ["conv"]
    assert found.nodes[0].outputs == ("y",)


@pytest.mark.parametrize("seed", seeds(20))
def test_random_shapes(seed: int) -> None:
    """Whatever is rewritten computes the same; what crops whole inputs may be left."""
    rng = np.random.default_rng(seed)
    rank, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2]))
    kernel, strides = (tuple(map(int, rng.integers(1, 5, rank))) for _ in range(2))
    pads = tuple(int(rng.integers(0, 4)) for _ in range(2 * rank))
    extra = tuple(int(rng.integers(0, s)) for s in strides)
    x = (int(rng.integers(1, 3)), 4 * groups, *map(int, rng.integers(1, 7, rank)))
    attrs: dict[str, Any] = {"strides": strides, "pads": pads, "output_padding": extra, "groups": groups}
    try:
        graph = made(x, (x[1], int(rng.integers(1, 4)), *kernel), bool(seed % 2), **attrs)
    except SuperKernelError:
        return  # the pads crop more than there is
    if ConvolveByPhases().apply(graph) is not graph:
        check(graph)
    else:
        assert any(p >= k for p, k in zip(pads, kernel * 2, strict=True)) or 0 in graph.types["y"].shape


@pytest.mark.parametrize(
    "graph",
    [
        made((1, 8, 5, 6), (8, 3, 3, 3), dilations=(2, 2)),
        made((1, 8, 5, 6), (8, 1, 4, 4), strides=(2, 2), groups=8),
        made((1, 8, 5, 6), (8, 3, 2, 2), strides=(2, 2), constant=False),
        made((1, 8, 5, 6), (8, 3, 2, 2), strides=(2, 2), pads=(4, 4, 0, 0)),
    ],
    ids=["dilated", "depthwise", "weights that change", "inputs that are cropped"],
)
def test_what_is_left_as_it_is(graph: Graph) -> None:
    assert ConvolveByPhases().apply(graph) is graph


def test_a_network_has_the_packed_kernels() -> None:
    b, rng = sk.GraphBuilder("decoder"), np.random.default_rng(0)

    def noise(*shape: int) -> Any:
        return b.constant(rng.standard_normal(shape).astype(np.float32) / np.float32(8))

    x = b.relu(b.conv_transpose(b.input("x", (1, 16, 7, 9)), noise(16, 24, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1)))
    b.output(b.conv_transpose(x, noise(24, 3, 2, 2), strides=(2, 2)), name="y")
    kernel, given = sk.compile(b.graph(), threads=2), rng.standard_normal((1, 16, 7, 9)).astype(np.float32)
    assert "host.conv.transpose" not in kernel.stage_text("subops")
    want = evaluate(b.graph(), {"x": given})["y"]
    np.testing.assert_allclose(kernel(given), want, rtol=1e-5, atol=1e-5)
