"""Rotary position embedding written out becomes `rope`: what is recognised, what is left alone, what kernels compute
of it on both targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.builder import GraphBuilder, Tensor
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.transforms import simplify
from superkernel.transforms.rotary import FuseRotary

BATCH, HEADS, ROWS, WIDTH = 2, 3, 5, 16
HALF = WIDTH // 2


def angles(rows: int = ROWS, half: int = HALF) -> np.ndarray:
    return np.arange(rows, dtype=np.float32)[:, None] / 10000.0 ** (np.arange(half, dtype=np.float32) / half)


def doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, array], -1)


def heads(b: GraphBuilder, name: str, width: int = WIDTH) -> Tensor:
    return b.input(name, (BATCH, ROWS, HEADS, width)).transpose(0, 2, 1, 3)


def rotate_half(b: GraphBuilder, x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return b.concat(-x[..., half:], x[..., :half], axis=-1)


def known_tables(b: GraphBuilder) -> None:
    """Of two layers: the tables' halves are two constants, not four."""
    cos, sin = (b.constant(f(doubled(angles()))) for f in (np.cos, np.sin))
    for name in ("q", "k"):
        x = heads(b, name)
        b.output(x * cos + rotate_half(b, x) * sin, name=f"{name}_turned")


def other_orders(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(doubled(angles()))[None]) for f in (np.cos, np.sin))
    x = heads(b, "x")
    first, second = b.split(x, axis=3, sizes=(HALF, HALF))
    turned = b.concat(second * -1.0, first, axis=3)
    b.output(sin * turned + cos * x, name="y")


def computed_tables(b: GraphBuilder) -> None:
    """What exporters write: positions are an input, tables a concatenation of the angles with themselves."""
    position = b.input("position", (BATCH, ROWS))
    half = position.reshape(BATCH, ROWS, 1) * b.constant(angles(2)[1])
    whole = b.concat(half, half, axis=-1)
    cos, sin = (f(whole).reshape(BATCH, 1, ROWS, WIDTH) * 1.25 for f in (b.cos, b.sin))
    x = heads(b, "x")
    b.output(x * cos + rotate_half(b, x) * sin, name="y")


def tables_by_position(b: GraphBuilder) -> None:
    position = b.input("position", (ROWS,), "i64")
    cos, sin = (b.gather(b.constant(f(doubled(angles(2)))), position, axis=0) for f in (np.cos, np.sin))
    x = heads(b, "x")
    b.output(x * cos + rotate_half(b, x) * sin, name="y")


def written_halves(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(angles())) for f in (np.cos, np.sin))
    x = heads(b, "x")
    left, right = x[..., :HALF], x[..., HALF:]
    b.output(b.concat(left * cos - right * sin, right * cos + left * sin, axis=-1), name="y")


def some_elements(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(doubled(angles()))) for f in (np.cos, np.sin))
    x = heads(b, "x", WIDTH + 8)
    part = x[..., :WIDTH]
    b.output(b.concat(part * cos + rotate_half(b, part) * sin, x[..., WIDTH:], axis=-1), name="y")


def three_dimensions(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(doubled(angles()))[None]) for f in (np.cos, np.sin))
    x = b.input("x", (ROWS, HEADS, WIDTH)).transpose(1, 0, 2)
    b.output(x * cos + rotate_half(b, x) * sin, name="y")


def three_dimensions_by_rows(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(angles())[:, None]) for f in (np.cos, np.sin))
    x = b.input("x", (ROWS, HEADS, WIDTH))
    left, right = x[..., :HALF], x[..., HALF:]
    b.output(b.concat(left * cos - right * sin, right * cos + left * sin, axis=-1), name="y")


RECOGNISED = (
    known_tables, other_orders, computed_tables, tables_by_position, written_halves, some_elements, three_dimensions,
    three_dimensions_by_rows,
)  # fmt: skip


def different_halves(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(angles(half=WIDTH))) for f in (np.cos, np.sin))
    x = heads(b, "x")
    b.output(x * cos + rotate_half(b, x) * sin, name="y")


def halves_nobody_knows(b: GraphBuilder) -> None:
    cos, sin = (b.input(name, (ROWS, WIDTH)) for name in ("cos", "sin"))
    x = heads(b, "x")
    b.output(x * cos + rotate_half(b, x) * sin, name="y")


def not_negated(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(doubled(angles()))) for f in (np.cos, np.sin))
    x = heads(b, "x")
    b.output(x * cos + b.concat(x[..., HALF:], x[..., :HALF], axis=-1) * sin, name="y")


def of_another_value(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(doubled(angles()))) for f in (np.cos, np.sin))
    b.output(heads(b, "x") * cos + rotate_half(b, heads(b, "z")) * sin, name="y")


def turned_along_another_axis(b: GraphBuilder) -> None:
    x = b.input("x", (2, 3, WIDTH, WIDTH))
    cos, sin = (b.constant(f(doubled(angles(WIDTH)))) for f in (np.cos, np.sin))
    turned = b.concat(-x[:, :, HALF:], x[:, :, :HALF], axis=2)
    b.output(x * cos + turned * sin, name="y")


def read_elsewhere(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(doubled(angles()))) for f in (np.cos, np.sin))
    x = heads(b, "x")
    turned = rotate_half(b, x)
    b.output(x * cos + turned * sin, name="y")
    b.output(turned, name="turned")


def exchanged_tables(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(angles())) for f in (np.cos, np.sin))
    x = heads(b, "x")
    left, right = x[..., :HALF], x[..., HALF:]
    b.output(b.concat(left * cos - right * sin, right * sin + left * cos, axis=-1), name="y")


def two_dimensions(b: GraphBuilder) -> None:
    cos, sin = (b.constant(f(doubled(angles()))) for f in (np.cos, np.sin))
    x = b.input("x", (ROWS, WIDTH))
    b.output(x * cos + rotate_half(b, x) * sin, name="y")


LEFT_ALONE = (
    different_halves, halves_nobody_knows, not_negated, of_another_value, turned_along_another_axis, read_elsewhere,
    exchanged_tables, two_dimensions,
)  # fmt: skip


def build(make: Callable[[GraphBuilder], None]) -> Graph:
    b = GraphBuilder(make.__name__)
    make(b)
    return b.graph()


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        name: rng.integers(0, 2, kind.shape)
        if kind.dtype.is_integer
        else rng.standard_normal(kind.shape, dtype=np.float32)
        for name, kind in graph.inputs.items()
    }


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("make", RECOGNISED)
def test_it_becomes_one_operator(make: Callable[[GraphBuilder], None]) -> None:
    graph = build(make)
    found = FuseRotary().apply(graph)
    assert ops(found).count("rope") == len(graph.outputs)
    assert not {"neg", "concat", "split", "slice", "add", "sub"} & set(ops(found))
    assert FuseRotary().apply(found) is found
    inputs = inputs_of(graph)
    before, after = (evaluate(g, inputs, wide=True) for g in (graph, found))
    for name in graph.outputs:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-6)


def test_tables_are_halved_once() -> None:
    found = simplify(build(known_tables))
    assert sorted(array.shape for array in found.constants.values()) == [(ROWS, HALF)] * 2
    found = simplify(build(computed_tables))
    (turned,) = (node for node in found.nodes if node.op == "rope")
    assert [found.types[v or ""].shape for v in turned.inputs[1:]] == [(BATCH, 1, ROWS, HALF)] * 2
    (turned,) = (node for node in simplify(build(some_elements)).nodes if node.op == "rope")
    assert turned.attrs["rotary_dim"] == WIDTH


@pytest.mark.parametrize("make", LEFT_ALONE)
def test_it_is_left_alone(make: Callable[[GraphBuilder], None]) -> None:
    graph = build(make)
    assert FuseRotary().apply(graph) is graph


@pytest.mark.parametrize("make", RECOGNISED)
@pytest.mark.parametrize(("target", "tolerance"), [("host", 1e-6), ("mini", 4e-3)])
def test_kernels(make: Callable[[GraphBuilder], None], target: str, tolerance: float) -> None:
    graph = build(make)
    inputs = inputs_of(graph)
    expected = evaluate(graph, inputs, wide=True)
    threads: Any = {"threads": 2} if target == "host" else {}
    fused = sk.compile(graph, target=target, **threads)
    assert any("rope" in line for line in fused.stage_text("subops").splitlines())
    plain = sk.compile(graph, target=target, options={"simplify": False}, **threads)
    assert fused.summary()["sub_operators"] < plain.summary()["sub_operators"]
    for kernel in (fused, plain):
        for name, array in kernel.run(inputs).outputs.items():
            np.testing.assert_allclose(array, expected[name], rtol=tolerance, atol=tolerance)
