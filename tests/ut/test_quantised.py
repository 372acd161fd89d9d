"""Quantised graphs: what becomes of dequantised products and moves, and their integers against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.builder import GraphBuilder, Tensor
from superkernel.core.dtypes import DType
from superkernel.ir.body import Role
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.transforms import simplify
from superkernel.transforms.quantised import FuseQuantised, softmax_grid

Array = NDArray[Any]
X_SCALE, Y_SCALE = np.float32(0.031), np.float32(0.27)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def weights(*shape: int, seed: int = 0) -> tuple[Array, Array]:
    """Codes and a scale per output channel."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 1.5, shape[0]).astype(np.float32) * np.float32(0.01)
    return rng.integers(-127, 128, shape).astype(np.int8), scale


def spread(scale: Array, rank: int) -> Array:
    return scale.reshape(-1, *(1,) * (rank - 1))


def integer_conv(x: Array, w: Array, zero: int, pad: int) -> Array:
    """Sums of products of codes, tap by tap, in 64-bit integers."""
    wide = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    high, wide_columns = wide.shape[2] - w.shape[2] + 1, wide.shape[3] - w.shape[3] + 1
    total = np.zeros((x.shape[0], w.shape[0], high, wide_columns), np.int64)
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            part = wide[:, :, i : i + high, j : j + wide_columns]
            total += np.einsum("nchw,mc->nmhw", part, w[:, :, i, j].astype(np.int64))
    return total


def requantised(real: Array, zero: int, dtype: Any) -> Array:
    info = np.iinfo(dtype)
    return np.clip(np.rint(real / float(Y_SCALE)) + zero, info.min, info.max).astype(dtype)


class Quantised:
    """A graph whose activations are codes of one type."""

    def __init__(self, dtype: str) -> None:
        self.b, self.dtype = GraphBuilder("quantised"), np.dtype({"u8": "uint8", "i8": "int8"}[dtype])
        self.word, self.zero = dtype, 131 if dtype == "u8" else -3

    def point(self) -> Tensor:
        return self.b.constant(np.array(self.zero, self.dtype))

    def codes(self, *shape: int) -> Tensor:
        return self.b.input("x", shape, self.word)

    def real(self, codes: Tensor, scale: np.float32 = X_SCALE) -> Tensor:
        return self.b.dequantize(codes, self.b.constant(scale), self.point())

    def weights(self, codes: Array, scale: Array) -> Tensor:
        return self.b.dequantize(self.b.constant(codes), self.b.constant(spread(scale, codes.ndim)))

    def quantised(self, real: Tensor, scale: np.float32 = Y_SCALE) -> Tensor:
        return self.b.quantize(real, self.b.constant(scale), self.point(), dtype=self.word)

    def random(self, *shape: int, seed: int = 3) -> Array:
        info = np.iinfo(self.dtype)
        return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(self.dtype)


def run(graph: Graph, x: Array, threads: int = 1) -> Array:
    return np.array(sk.compile(graph, threads=threads)(x=x))


def bias_of(q: Quantised, kind: str, count: int, scale: Array) -> tuple[Tensor | None, Array]:
    """A bias as QDQ models have it (codes of the sums' scale), or in f32, and its values."""
    rng = np.random.default_rng(5)
    if kind == "none":
        return None, np.zeros(count)
    if kind == "real":
        real = rng.standard_normal(count).astype(np.float32)
        return q.b.constant(real), real.astype(np.float64)
    codes, own = rng.integers(-4000, 4000, count).astype(np.int32), X_SCALE * scale
    return q.b.dequantize(q.b.constant(codes), q.b.constant(own)), codes * own.astype(np.float64)


@pytest.mark.parametrize("bias", ["none", "codes", "real"])
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_conv_and_relu(dtype: str, bias: str) -> None:
    q, (w, scale) = Quantised(dtype), weights(20, 6, 3, 3)
    given, offset = bias_of(q, bias, 20, scale)
    y = q.b.conv(q.real(q.codes(1, 6, 9, 8)), q.weights(w, scale), given, pads=(1, 1, 1, 1))
    q.b.output(q.quantised(q.b.relu(y)), name="y")
    graph = q.b.graph()
    simple = simplify(graph, quantised=True)
    assert "conv_integer" in ops(simple)
    assert not {"conv", "dequantize"} & set(ops(simple))
    assert "conv_integer" not in ops(simplify(graph))
    x = q.random(1, 6, 9, 8)
    exact = integer_conv(x, w, q.zero, 1) * spread(scale * X_SCALE, 3).astype(np.float64) + spread(offset, 3)
    wanted = requantised(np.maximum(exact, 0), q.zero, q.dtype)
    found = run(graph, x)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert (found != wanted).mean() < 0.01
    np.testing.assert_array_equal(run(graph, x, threads=2), found)


@pytest.mark.parametrize("bias", ["none", "codes", "real"])
@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize("rows", [1, 9])
def test_gemm(rows: int, dtype: str, bias: str) -> None:
    q, (w, scale) = Quantised(dtype), weights(50, 33)
    given, offset = bias_of(q, bias, 50, scale)
    real = q.b.gemm(q.real(q.codes(rows, 33)), q.weights(w, scale), given, trans_b=True)
    q.b.output(q.quantised(real), name="y")
    graph = q.b.graph()
    assert "matmul_integer" in ops(simplify(graph, quantised=True))
    x = q.random(rows, 33)
    sums = (x.astype(np.int64) - q.zero) @ w.T.astype(np.int64)
    wanted = requantised(sums * (scale * X_SCALE).astype(np.float64) + offset, q.zero, q.dtype)
    found = run(graph, x)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    np.testing.assert_array_equal(run(graph, x, threads=2), found)


WORDS: dict[str, tuple[Any, int]] = {"i16": (np.int16, -77), "u16": (np.uint16, 32100)}
W_SCALE, V_SCALE = np.float32(1.5e-4), np.float32(2.5e-3)


def real_words(b: GraphBuilder, codes: Tensor, dtype: str, scale: np.float32) -> Tensor:
    kind, zero = WORDS[dtype]
    return b.dequantize(codes, b.constant(scale), b.constant(np.array(zero, kind)))


def words_of(b: GraphBuilder, real: Tensor, dtype: str, scale: np.float32) -> Tensor:
    kind, zero = WORDS[dtype]
    return b.quantize(real, b.constant(scale), b.constant(np.array(zero, kind)), dtype=dtype)


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("form", ["conv", "depthwise", "gemm", "reshaped"])
def test_activations_of_16_bits(form: str, dtype: str) -> None:
    """As products of their bytes: within one step of the exact sums' codes, on any number of threads."""
    kind, zero = WORDS[dtype]
    b, info = GraphBuilder("words"), np.iinfo(kind)
    w, scale = weights(*{"conv": (20, 6, 3, 3), "depthwise": (8, 1, 3, 3)}.get(form, (50, 96)))
    shape = {"conv": (1, 6, 9, 8), "depthwise": (1, 8, 9, 8), "gemm": (9, 96)}.get(form, (9, 4, 24))
    real = real_words(b, b.input("x", shape, dtype), dtype, W_SCALE)
    bias = np.random.default_rng(5).standard_normal(len(w)).astype(np.float32)
    factor = b.dequantize(b.constant(w), b.constant(spread(scale, w.ndim)))
    if form == "conv":
        y = b.conv(real, factor, b.constant(bias), pads=(1, 1, 1, 1))
    elif form == "depthwise":
        y = b.conv(real, factor, b.constant(bias), pads=(1, 1, 1, 1), groups=8)
    else:
        y = b.gemm(b.reshape(real, (9, 96)) if form == "reshaped" else real, factor, b.constant(bias), trans_b=True)
    b.output(words_of(b, y, dtype, V_SCALE), name="y")
    graph = b.graph()
    integers = {"conv": "conv_integer", "depthwise": "round"}.get(form, "matmul_integer")
    assert ops(simplify(graph, quantised=True)).count(integers) == 2
    x = np.random.default_rng(3).integers(info.min, info.max + 1, shape).astype(kind)
    if form == "conv":
        sums = integer_conv(x, w, zero, 1)
    elif form == "depthwise":
        sums = np.concatenate([integer_conv(x[:, i : i + 1], w[i : i + 1], zero, 1) for i in range(8)], axis=1)
    else:
        sums = (x.reshape(9, 96).astype(np.int64) - zero) @ w.T.astype(np.int64)
    assert np.abs(sums).max() > 1 << 23
    steps, offset = (spread(v, 3) if w.ndim == 4 else v for v in ((scale * W_SCALE).astype(np.float64), bias))
    wanted = np.clip(np.rint((sums * steps + offset) / float(V_SCALE)) + zero, info.min, info.max)
    assert len(np.unique(wanted)) > 300
    found = run(graph, x)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    np.testing.assert_array_equal(run(graph, x, threads=2), found)


def test_unsigned_words_that_are_quantised_become_signed() -> None:
    """For all that dequantise them; what the graph gives stays what it is."""
    b = GraphBuilder("words")
    codes = words_of(b, b.input("x", (64,)), "u16", V_SCALE)
    b.output(codes, name="codes")
    b.output(real_words(b, codes, "u16", V_SCALE), name="y")
    graph = b.graph()
    fused = FuseQuantised().apply(graph)
    assert [n.attrs["dtype"] for n in fused.nodes if n.op == "quantize"] in (
        [DType.I16, DType.U16],
        [DType.U16, DType.I16],
    )
    x = np.linspace(-120, 120, 64, dtype=np.float32)
    wanted = evaluate(graph, {"x": x})
    for name in ("codes", "y"):
        np.testing.assert_array_equal(evaluate(fused, {"x": x})[name], wanted[name])


@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize(("depth", "pieces"), [(24, 1), (1100, 2)])
def test_factors_that_are_both_computed(dtype: str, depth: int, pieces: int) -> None:
    """Products of their codes in f32, in pieces of the depth whose sums f32 holds: the same integers on a target that
    adds in another order."""
    q = Quantised(dtype)
    keys = q.b.transpose(q.real(q.b.input("k", (2, 7, depth), dtype)), (0, 2, 1))
    y = q.b.matmul(q.real(q.codes(2, 5, depth)), keys)
    q.b.output(q.quantised(y, np.float32(2.0)), name="y")
    graph = q.b.graph()
    assert ops(simplify(graph, quantised=True)).count("matmul") == pieces
    x, k = q.random(2, 5, depth), q.random(2, 7, depth, seed=4)
    sums = np.einsum("bmk,bnk->bmn", *(v.astype(np.int64) - q.zero for v in (x, k)))
    info = np.iinfo(q.dtype)
    wanted = np.clip(np.rint(sums * float(X_SCALE * X_SCALE) / 2.0) + q.zero, info.min, info.max)
    found = np.array(sk.compile(graph, threads=1)(x=x, k=k))
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert len(np.unique(found)) > 10
    device = sk.compile(graph, target="mini", options={"fallback": "forbid"}).run({"x": x, "k": k}).outputs["y"]
    np.testing.assert_array_equal(device, found)


@pytest.mark.parametrize(("axis", "shape"), [(-1, (3, 7, 50)), (1, (2, 33, 20))])
@pytest.mark.parametrize("scale", [0.21, 0.037, 0.004])
def test_softmax_between_codes(scale: float, axis: int, shape: tuple[int, ...]) -> None:
    """The same integers on every tier and target, within a step of the exact ones; equal codes share equally."""
    q = Quantised("u8")
    y = q.b.softmax(q.real(q.codes(*shape), np.float32(scale)), axis=axis)
    q.b.output(q.b.quantize(y, q.b.constant(np.float32(1 / 256)), q.b.constant(np.array(0, np.uint8))), name="y")
    graph = q.b.graph()
    assert ops(simplify(graph, quantised=True)) == ["cast", "softmax_integer", "quantize"]
    x = q.random(*shape)
    x[0] = 17
    power = np.exp((x.astype(np.float64) - x.max(axis, keepdims=True)) * np.float32(scale))
    wanted = np.clip(np.rint(256 * power / power.sum(axis, keepdims=True)), 0, 255)
    found = run(graph, x)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert len(np.unique(found[0])) == 1
    assert scale < 0.03 or len(np.unique(found)) > 10
    device = sk.compile(graph, target="mini", options={"fallback": "forbid"}).run({"x": x}).outputs["y"]
    np.testing.assert_array_equal(device, found)


def test_softmax_of_values_that_are_kept_is_left_alone() -> None:
    q = Quantised("u8")
    y = q.b.softmax(q.real(q.codes(4, 30)))
    q.b.output(q.quantised(y), name="codes")
    q.b.output(y, name="y")
    assert "softmax_integer" not in ops(simplify(q.b.graph(), quantised=True))


@pytest.mark.parametrize("row", [7, 128, 500])
def test_exponentials_in_steps_hang_on_no_target(row: int) -> None:
    """However far they are off within what any target allows itself."""
    for scale in np.random.default_rng(2).uniform(0.0005, 0.5, 20).astype(np.float32):
        grid = softmax_grid(float(scale), row)
        assert grid is not None
        assert grid * row <= 1 << 24
        exact = np.exp((np.arange(1, 256, dtype=np.float32) * -scale).astype(np.float64)) * grid
        for off in (-(2.0**-22), 2.0**-22):
            np.testing.assert_array_equal(np.rint(exact * (1 + off)), np.rint(exact))
    assert softmax_grid(0.1, 800) is None


def test_unsigned_weights_around_128() -> None:
    q, (w, scale) = Quantised("u8"), weights(50, 33)
    b = q.b
    shifted = b.constant((w.astype(np.int16) + 128).astype(np.uint8))
    points = b.constant(np.full((50, 1), 128, np.uint8))
    real = b.dequantize(shifted, b.constant(spread(scale, 2)), points)
    b.output(q.quantised(b.matmul(q.real(q.codes(4, 33)), real, trans_b=True)), name="y")
    simple = simplify(b.graph(), quantised=True)
    (product,) = (node for node in simple.nodes if node.op == "matmul_integer")
    np.testing.assert_array_equal(simple.constants[product.inputs[1] or ""], w.T)


@pytest.mark.parametrize("what", ["weights' zero point", "scales per depth", "depthwise", "computed weights"])
def test_left_alone(what: str) -> None:
    q, (w, scale) = Quantised("u8"), weights(8, 8)
    b, x = q.b, q.real(q.codes(4, 8) if what != "depthwise" else q.codes(1, 8, 5, 5))
    if what == "depthwise":
        filters, own = weights(8, 1, 3, 3)
        b.output(b.conv(x, q.weights(filters, own), groups=8), name="y")
    elif what == "computed weights":
        b.output(b.matmul(x, b.input("w", (8, 8))), name="y")
    else:
        shape = (1, 8) if what == "scales per depth" else (8, 1)
        point = b.constant(np.full(shape, 1 if what != "scales per depth" else 0, np.int8))
        real = b.dequantize(b.constant(w), b.constant(scale.reshape(shape)), point)
        b.output(b.matmul(x, real, trans_b=True), name="y")
    assert not {"matmul_integer", "conv_integer"} & set(ops(simplify(b.graph(), quantised=True)))


def test_nothing_dequantised_nothing_done() -> None:
    b = GraphBuilder("plain")
    b.output(b.relu(b.input("x", (4,))), name="y")
    graph = b.graph()
    assert FuseQuantised().apply(graph) is graph


@pytest.mark.parametrize("move", ["max_pool", "reshape", "transpose", "slice", "concat"])
@pytest.mark.parametrize("same", [True, False])
def test_moves(move: str, same: bool) -> None:
    """Codes are moved where both sides mean the same by them; equal results in any case."""
    q = Quantised("u8")
    b, x = q.b, q.real(q.codes(1, 4, 6, 6))
    if move == "max_pool":
        y = b.max_pool(x, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    elif move == "reshape":
        y = b.reshape(x, (4, 36))
    elif move == "transpose":
        y = b.transpose(x, (0, 2, 3, 1))
    elif move == "slice":
        y = b.slice(x, (1,), (3,), axes=(1,))
    else:
        y = b.concat(x, q.real(b.constant(q.random(1, 3, 6, 6)), Y_SCALE), axis=1)
    b.output(q.quantised(y, X_SCALE if same else Y_SCALE), name="y")
    graph = b.graph()
    fused = FuseQuantised().apply(graph)
    left = ops(fused).count("dequantize")
    assert left == (1 if move == "concat" else 0 if same else 1)
    inputs = {"x": q.random(1, 4, 6, 6)}
    wanted = evaluate(graph, inputs)["y"]
    np.testing.assert_array_equal(evaluate(fused, inputs)["y"], wanted)
    np.testing.assert_array_equal(run(graph, inputs["x"]), wanted)


def test_residual_network() -> None:
    """Codes between all sub-operators; every kernel of bytes; the reference within a step."""
    q = Quantised("u8")
    b = q.b

    def conv(x: Tensor, count: int, own: int, seed: int) -> Tensor:
        w, scale = weights(count, own, 3, 3, seed=seed)
        y = b.conv(q.real(x, X_SCALE if own == 8 else Y_SCALE), q.weights(w, scale), pads=(1, 1, 1, 1))
        return q.quantised(b.relu(y))

    first = conv(q.codes(1, 8, 12, 12), 16, 8, 1)
    second = conv(first, 16, 16, 2)
    total = q.quantised(b.add(q.real(first, Y_SCALE), q.real(second, Y_SCALE)))
    pooled = q.quantised(b.max_pool(q.real(total, Y_SCALE), (2, 2), strides=(2, 2)))
    b.output(conv(pooled, 16, 16, 3), name="y")
    graph = b.graph()
    x = q.random(1, 8, 12, 12)
    kernel = sk.compile(graph, threads=2)
    found = kernel(x=x)
    wanted = evaluate(graph, {"x": x})["y"]
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    explained = [str(kernel.explain(i)) for i in range(4)]
    assert all("host.conv.bytes" in text or "host.pool" in text for text in explained)


def test_values_that_were_dequantised_for_many_are_kept_as_codes() -> None:
    """Both readers of the codes' values read the codes: nothing of four bytes an element is stored between them."""
    q = Quantised("u8")
    b = q.b
    w, scale = weights(16, 8, 3, 3)
    first = q.quantised(b.conv(q.real(q.codes(1, 8, 12, 12), X_SCALE), q.weights(w, scale), pads=(1, 1, 1, 1)))
    w, scale = weights(16, 16, 3, 3, seed=1)
    real = q.real(first, Y_SCALE)
    second = b.conv(real, q.weights(w, scale), pads=(1, 1, 1, 1))
    b.output(q.quantised(b.relu(b.add(second, real))), name="y")
    graph = b.graph()
    kernel = sk.compile(graph, threads=2)
    bodies = [sub.body for sub in kernel._compiled.grouping.subops]
    computed = [o.type.dtype for body in bodies for o in body.operands if o.role is not Role.CONSTANT]
    assert len(bodies) == 2
    assert set(computed) == {DType.U8}
    x = q.random(1, 8, 12, 12)
    assert np.abs(kernel(x=x).astype(int) - evaluate(graph, {"x": x})["y"].astype(int)).max() <= 1


INTEGER_CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "bytes": ((1, 6, 7, 8), (9, 6, 3, 3), {"pads": (1, 1, 0, 0)}, "i8"),
    "around 128": ((1, 6, 7, 8), (9, 6, 3, 3), {}, "128"),
    "depthwise": ((1, 6, 7, 8), (6, 1, 3, 3), {"groups": 6, "pads": (1, 1, 1, 1)}, "i8"),
    "three dimensions": ((1, 2, 4, 5, 3), (3, 2, 2, 2, 1), {}, "i8"),
    "zero points": ((1, 6, 7, 8), (9, 6, 3, 3), {"pads": (1, 1, 1, 1)}, "each"),
    "computed weights": ((1, 6, 7, 8), (9, 6, 1, 1), {}, "computed"),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", INTEGER_CONVS)
def test_integer_convolutions(name: str, bias: bool) -> None:
    """Exact whichever way they are computed, in bytes where there is a kernel for that."""
    x, shape, attrs, kind = INTEGER_CONVS[name]
    q = Quantised("u8")
    b, rng = q.b, np.random.default_rng(2)
    codes = rng.integers(-128, 128, shape)
    own: Tensor | None = None
    if kind in ("i8", "computed"):
        w: Tensor = b.constant(codes.astype(np.int8))
        w = w if kind == "i8" else b.relu(b.input("w", shape, "i8"))
    else:
        w = b.constant((codes + 128).astype(np.uint8))
        points = np.array(128) if kind == "128" else rng.integers(90, 150, shape[0])
        own = b.constant(points.astype(np.uint8))
    offset = b.constant(rng.integers(-9999, 9999, shape[0]).astype(np.int32)) if bias else None
    b.output(b.conv_integer(q.codes(*x), w, offset, q.point(), own, **attrs), name="y")
    graph = b.graph()
    in_bytes = name in ("bytes", "around 128")
    assert ("conv_integer" in ops(simplify(graph, quantised=True))) is in_bytes
    assert "conv_integer" not in ops(simplify(graph))
    inputs = {"x": q.random(*x), **({"w": codes.astype(np.int8)} if kind == "computed" else {})}
    wanted = evaluate(graph, inputs)["y"]
    np.testing.assert_array_equal(evaluate(simplify(graph), inputs)["y"], wanted)
    np.testing.assert_array_equal(sk.compile(graph, threads=1)(**inputs), wanted)


@pytest.mark.parametrize("weights_type", ["int8", "uint8"])
def test_qlinear_conv(weights_type: str) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    rng, zero = np.random.default_rng(4), 128 if weights_type == "uint8" else 0
    w, scale = weights(12, 5, 3, 3)
    stored, bias = (w.astype(np.int16) + zero).astype(weights_type), rng.integers(-999, 999, 12).astype(np.int32)
    given = {
        "sx": X_SCALE, "zx": np.uint8(131), "w": stored, "sw": scale, "zw": np.full(12, zero, weights_type),
        "sy": Y_SCALE, "zy": np.uint8(120), "b": bias,
    }  # fmt: skip
    names = ["x", *given]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 5, 8, 9))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, (1, 12, 8, 9))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in given.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    x = rng.integers(0, 256, (1, 5, 8, 9)).astype(np.uint8)
    kernel = sk.compile(model, threads=1)
    assert "host.conv.bytes" in str(kernel.explain(0))
    real = (integer_conv(x, w, 131, 1) + spread(bias, 3)) * spread(scale * X_SCALE, 3).astype(np.float64)
    found = np.asarray(kernel(x=x))
    assert np.abs(found.astype(int) - requantised(real, 120, np.uint8)).max() <= 1


CLAMPS = {
    "relu, from the first code": ("u8", 0, lambda b, x: b.relu(x), True),
    "relu, signed codes from the first": ("i8", -128, lambda b, x: b.relu(x), True),
    "relu, a zero in the middle": ("i8", 0, lambda b, x: b.relu(x), False),
    "clip as far as the codes": ("u8", 0, lambda b, x: b.clip(x, 0.0, 255.0 * float(Y_SCALE)), True),
    "clip that cuts codes off": ("u8", 0, lambda b, x: b.clip(x, 0.0, 254.0 * float(Y_SCALE)), False),
    "clip at one end": ("u8", 0, lambda b, x: b.clip(x, 0.0), True),
    "another function": ("u8", 0, lambda b, x: b.abs(x), False),
}


@pytest.mark.parametrize("name", CLAMPS)
def test_a_clamp_that_codes_repeat_is_gone(name: str) -> None:
    """And nothing else changes, at and around the ends."""
    dtype, zero, clamp, gone = CLAMPS[name]
    kind = np.dtype({"u8": "uint8", "i8": "int8"}[dtype])
    b = GraphBuilder("clamped")
    x = b.dequantize(b.input("x", (512,), "i8"), np.array(0.75, np.float32), np.array(3, np.int8))
    b.output(b.quantize(clamp(b, x + 0.1), np.array(Y_SCALE), np.array(zero, kind), dtype=DType(dtype)), name="y")
    graph = b.graph()
    found = FuseQuantised().apply(graph)
    assert ("relu" in ops(found) or "clip" in ops(found) or "abs" in ops(found)) != gone
    data = {"x": np.resize(np.arange(-128, 128, dtype=np.int8), 512)}
    np.testing.assert_array_equal(evaluate(found, data)["y"], evaluate(graph, data)["y"])
    np.testing.assert_array_equal(sk.compile(graph)(**data), evaluate(graph, data)["y"])
