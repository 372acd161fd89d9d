"""Values that are counted in steps of codes ahead of their quantize: which, what of, and how they are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.builder import GraphBuilder, Tensor
from superkernel.ir.graph import Graph, Node
from superkernel.reference import evaluate
from superkernel.transforms.steps import CountSteps

SCALE, FACTORS = np.float32(0.037), np.array([[0.011], [0.0003], [0.0]], np.float32)
STEPS = (FACTORS.astype(np.float64) / SCALE).astype(np.float32)


class Sums:
    """Whole numbers [3, 50] as sums of products are, and what is made of them."""

    def __init__(self) -> None:
        self.b = GraphBuilder("sums")
        self.real = self.b.cast(self.b.input("sums", (3, 50), "i32"), dtype="f32")

    def constant(self, number: Any) -> Tensor:
        return self.b.constant(np.asarray(number, np.float32))

    def codes(self, name: str, scale: float, zero: int) -> Tensor:
        given = self.b.input(name, (3, 50), "u8")
        return self.b.dequantize(given, self.constant(scale), self.b.constant(np.array(zero, np.uint8)))

    def quantised(self, real: Tensor, scale: Any = SCALE) -> Graph:
        point = self.b.constant(np.array(7, np.uint8))
        self.b.output(self.b.quantize(real, self.constant(scale), point, dtype="u8"), "y")
        return self.b.graph()


def given(graph: Graph, seed: int = 5) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    data = {"sums": rng.integers(-9000, 9000, (3, 50)).astype(np.int32)}
    return data | {n: rng.integers(0, 256, (3, 50)).astype(np.uint8) for n in graph.inputs if n != "sums"}


def by_steps(real: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.clip(np.rint(real) + 7, 0, 255).astype(np.uint8)


def quantize_of(graph: Graph) -> Node:
    (node,) = (node for node in graph.nodes if node.op == "quantize")
    return node


def scale_of(graph: Graph) -> float:
    name = quantize_of(graph).inputs[1]
    assert name is not None
    return float(graph.constants[name])


def check(graph: Graph, wanted: NDArray[np.uint8], data: dict[str, NDArray[Any]]) -> None:
    """The pass alone and a compiled kernel give just these codes; the graph as it was is at most a step off."""
    counted = CountSteps().apply(graph)
    assert scale_of(counted) == 1.0
    assert CountSteps().apply(counted) is counted
    np.testing.assert_array_equal(evaluate(counted, data)["y"], wanted)
    np.testing.assert_array_equal(sk.compile(graph).run(data).outputs["y"], wanted)
    before = evaluate(graph, data)["y"].astype(int)
    assert np.abs(before - wanted).max() <= 1
    assert len(np.unique(wanted)) > 20


def test_a_product_with_constants() -> None:
    s = Sums()
    graph = s.quantised(s.real * s.constant(FACTORS))
    data = given(graph)
    check(graph, by_steps(data["sums"].astype(np.float32) * STEPS), data)


def test_a_sum_with_dequantised_codes_behind_a_relu() -> None:
    s = Sums()
    graph = s.quantised(s.b.relu(s.real * s.constant(FACTORS) + s.codes("other", 0.02, 130)))
    data = given(graph)
    other = (data["other"].astype(np.int32) - 130).astype(np.float32) * (np.float32(0.02) / SCALE)
    total = data["sums"].astype(np.float32) * STEPS + other
    check(graph, by_steps(np.maximum(total, np.float32(0))), data)


def test_codes_that_others_dequantise_too_keep_their_scale_for_them() -> None:
    s = Sums()
    other = s.codes("other", 0.02, 130)
    s.b.output(other * other, "square")
    graph = s.quantised(s.real * s.constant(FACTORS) + other)
    counted, data = CountSteps().apply(graph), given(graph)
    assert scale_of(counted) == 1.0
    assert sum(node.op == "dequantize" for node in counted.nodes) == 2
    both = evaluate(counted, data)["square"], evaluate(graph, data)["square"]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize(
    "refused", ["read by others", "too small", "too large", "of two computed values", "scales per row", "i32"]
)
def test_what_is_divided_still(refused: str) -> None:
    s = Sums()
    factor = {"too small": 1e-38, "too large": 1e38}.get(refused, 0.011)
    product = s.real * s.constant(factor)
    scale = {"too small": 100.0, "too large": 1e-3}.get(refused, SCALE)
    if refused == "read by others":
        s.b.output(product, "product")
    if refused == "of two computed values":
        product = s.real * s.real
    if refused == "i32":
        s.b.output(s.b.quantize(product, s.constant(scale), dtype="i32"), "y")
        graph = s.b.graph()
    else:
        graph = s.quantised(product, np.full((3, 1), SCALE) if refused == "scales per row" else scale)
    assert CountSteps().apply(graph) is graph
