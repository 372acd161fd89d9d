"""Products of integers made ready for a matrix engine of signed bytes: the same integers, and what is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder, Tensor
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.transforms import simplify
from superkernel.transforms.signed import SignedIntegers

Array = NDArray[Any]
RNG = np.random.default_rng(11)
TYPES = {"u8": (np.uint8, 0, 256), "i8": (np.int8, -128, 128)}


def codes(word: str, *shape: int) -> Array:
    dtype, low, high = TYPES[word]
    return RNG.integers(low, high, shape).astype(dtype)


def same(graph: Graph, wanted_ops: set[str]) -> Graph:
    """The graph after the pass, which gives the same integers on random inputs."""
    found = SignedIntegers().apply(graph)
    given = {n: codes(str(t.dtype), *t.shape) if t.dtype.is_integer else RNG.standard_normal(t.shape).astype("f") * 3
             for n, t in graph.inputs.items()}  # fmt: skip
    before, after = evaluate(graph, given), evaluate(found, given)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    products = [node for node in found.nodes if node.op in ("conv_integer", "matmul_integer")]
    assert {node.op for node in products} == wanted_ops
    for node in products:
        assert found.types[node.inputs[0] or ""].dtype.value == "i8"
        assert not any(node.inputs[2:])
    return found


@pytest.mark.parametrize("word", TYPES)
@pytest.mark.parametrize("zero", [None, 0, 7, 127])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pads", [(), (1, 1, 1, 1), (2, 0, 0, 1)])
def test_conv(word: str, zero: int | None, bias: bool, pads: tuple[int, ...]) -> None:
    b = GraphBuilder("conv")
    point = None if zero is None else b.constant(np.array(zero, TYPES[word][0]))
    summand = b.constant(RNG.integers(-(10**6), 10**6, 5).astype(np.int32)) if bias else None
    w = b.constant(codes("i8", 5, 3, 3, 3))
    b.output(b.conv_integer(b.input("x", (2, 3, 6, 7), word), w, summand, point, pads=pads, strides=(2, 1)), "y")
    same(b.graph(), {"conv_integer"})


@pytest.mark.parametrize("word", TYPES)
@pytest.mark.parametrize("zero", [None, 0, 101])
@pytest.mark.parametrize("shape", [(20, 6), (3, 20, 6)])
def test_matmul(word: str, zero: int | None, shape: tuple[int, ...]) -> None:
    b = GraphBuilder("matmul")
    point = None if zero is None else b.constant(np.array(zero, TYPES[word][0]))
    b.output(b.matmul_integer(b.input("x", (3, 4, 20), word), b.constant(codes("i8", *shape)), point), "y")
    same(b.graph(), {"matmul_integer"})


def test_sums_that_wrap_wrap_alike() -> None:
    b = GraphBuilder("wraps")
    bias = b.constant(np.full(1, 2**31 - 5, np.int32))
    b.output(b.conv_integer(b.input("x", (1, 4, 3, 3), "u8"), b.constant(codes("i8", 1, 4, 3, 3)), bias), "y")
    graph = b.graph()
    x = np.full((1, 4, 3, 3), 255, np.uint8)
    after = SignedIntegers().apply(graph)
    np.testing.assert_array_equal(evaluate(after, {"x": x})["y"], evaluate(graph, {"x": x})["y"])


def quantised(b: GraphBuilder, x: Tensor, zero: int = 120) -> Tensor:
    return b.quantize(x, b.constant(np.float32(0.05)), b.constant(np.array(zero, np.uint8)), dtype="u8")


def real(b: GraphBuilder, x: Tensor, zero: int = 120) -> Tensor:
    return b.dequantize(x, b.constant(np.float32(0.05)), b.constant(np.array(zero, np.uint8)))


def test_codes_are_made_and_moved_as_signed_ones() -> None:
    """No byte is made twice: what dequantises the codes reads the signed ones, too."""
    b = GraphBuilder("moves")
    x = quantised(b, b.input("x", (1, 4, 8, 8)))
    both = b.concat(b.max_pool(x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)), x, axis=1)
    sums = b.conv_integer(both, b.constant(codes("i8", 6, 8, 1, 1)), None, b.constant(np.array(120, np.uint8)))
    b.output(sums, "y")
    b.output(b.relu(real(b, x)), "z")
    found = same(b.graph(), {"conv_integer"})
    assert not [name for name, kind in found.types.items() if kind.dtype.value == "u8"]


def test_codes_that_leave_stay_as_they_are() -> None:
    b = GraphBuilder("kept")
    x = quantised(b, b.input("x", (4, 8)))
    b.output(x, "codes")
    b.output(b.matmul_integer(x, b.constant(codes("i8", 8, 3)), b.constant(np.array(120, np.uint8))), "y")
    found = same(b.graph(), {"matmul_integer"})
    assert found.types["codes"].dtype.value == "u8"


@pytest.mark.parametrize("what", ["weights from outside", "unsigned weights", "a zero point of the weights", "dynamic"])
def test_others_are_convolutions_of_floats(what: str) -> None:
    b = GraphBuilder("others")
    x, w = b.input("x", (1, 4, 5, 5), "u8"), b.constant(codes("i8", 3, 4, 3, 3))
    zeros: dict[str, Any] = {}
    if what == "weights from outside":
        w = b.input("w", (3, 4, 3, 3), "i8")
    elif what == "unsigned weights":
        w = b.constant(codes("u8", 3, 4, 3, 3))
    elif what == "a zero point of the weights":
        zeros = {"w_zero": b.constant(np.array(3, np.int8))}
    else:
        zeros = {"x_zero": b.input("z", (), "u8")}
    b.output(b.conv_integer(x, w, **zeros), "y")
    same(b.graph(), set())


def test_left_alone() -> None:
    """Padding that counts already, and products whose zero point is computed."""
    b = GraphBuilder("padded")
    b.output(b.conv_integer(b.input("x", (1, 4, 5, 5), "i8"), b.constant(codes("i8", 3, 4, 3, 3)), padding=4), "y")
    graph = b.graph()
    assert SignedIntegers().apply(graph) is graph
    b = GraphBuilder("dynamic")
    w = b.constant(codes("i8", 8, 3))
    b.output(b.matmul_integer(b.input("x", (4, 8), "u8"), w, b.input("z", (), "u8")), "y")
    graph = b.graph()
    assert SignedIntegers().apply(graph) is graph


def test_what_is_padded_counts() -> None:
    """The operator itself: an image that has the number all around it gives the same sums."""
    x, w = codes("i8", 1, 3, 5, 5), codes("i8", 4, 3, 3, 3)
    b = GraphBuilder("padded")
    b.output(b.conv_integer(b.input("x", x.shape, "i8"), b.constant(w), pads=(1, 1, 1, 1), padding=-9), "y")
    b.output(b.conv_integer(b.input("wide", (1, 3, 7, 7), "i8"), b.constant(w)), "z")
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-9)
    found = evaluate(b.graph(), {"x": x, "wide": wide})
    np.testing.assert_array_equal(found["y"], found["z"])


def test_averages_and_depthwise_sums_are_of_whole_numbers() -> None:
    """Nothing that an order of sums could change is left ahead of a `quantize`, and values are those of the graph."""
    b = GraphBuilder("whole")
    x = real(b, quantised(b, b.input("x", (1, 6, 9, 9))))
    scale = b.constant((RNG.uniform(0.5, 1.5, (6, 1, 1, 1)) * 0.01).astype(np.float32))
    y = b.conv(x, b.dequantize(b.constant(codes("i8", 6, 1, 3, 3)), scale), groups=6)
    y = real(b, quantised(b, y))
    b.output(quantised(b, b.global_avg_pool(y)), "y")
    graph = b.graph()
    simple = simplify(graph, quantised=True)
    (conv,) = (node for node in simple.nodes if node.op == "conv")
    (reader,) = simple.consumers[conv.outputs[0]]
    assert reader.op == "round"
    array = simple.constants[conv.inputs[1] or ""]
    np.testing.assert_array_equal(array, np.rint(array))
    given = {"x": RNG.standard_normal((1, 6, 9, 9)).astype(np.float32) * 3}
    difference = evaluate(simple, given)["y"].astype(int) - evaluate(graph, given)["y"].astype(int)
    assert np.abs(difference).max() <= 1
