"""ONNX models whose weights are quantised in blocks: MatMulNBits, and MatMul of what DequantizeLinear dequantises in
blocks, held against onnxruntime; they become `block_matmul`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx_models import Arrays, check, f32, model, node, numpy_helper

import superkernel
from superkernel.codegen.host.features import detect_cpu
from superkernel.core.errors import UnsupportedError
from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate

RNG = np.random.default_rng(12)


def nbits(
    depth: int = 64, columns: int = 24, bits: int = 4, block: int = 32, zeros: str = "", bias: bool = False,
    x: Any = np.float32, **attrs: Any,
) -> tuple[Any, Arrays]:  # fmt: skip
    """A model of one MatMulNBits, and its input."""
    blocks = -(-depth // block)
    constants = {
        "w": RNG.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.02, columns * blocks).astype(x),
    }
    if zeros == "packed":
        constants["z"] = RNG.integers(0, 256, columns * -(-blocks * bits // 8)).astype(np.uint8)
    elif zeros == "equal":
        constants["z"] = np.full(columns * -(-blocks * bits // 8), 0x77, np.uint8)
    elif zeros == "floats":
        constants["z"] = RNG.uniform(4, 12, (columns, blocks)).astype(x)
    if bias:
        constants["b"] = f32(columns).astype(x)
    names = f"x w s {'z' if zeros else '_'} _ {'b' if bias else '_'}".rstrip(" _")
    made = node("MatMulNBits", names, domain="com.microsoft", K=depth, N=columns, bits=bits, block_size=block, **attrs)
    inputs = {"x": f32(2, 3, depth).astype(x)}
    return model([made], inputs, constants=constants), inputs


def products(graph: Graph) -> int:
    return sum(n.op == "block_matmul" for n in graph.nodes)


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [*((bits, zeros) for bits in (4, 8) for zeros in ("", "packed", "equal")), (4, "floats")],  # none with 8 bits there
)
def test_matmul_nbits(bits: int, zeros: str) -> None:
    graph = check(*nbits(bits=bits, zeros=zeros, bias=True))
    assert [n.op for n in graph.nodes] == ["block_matmul", "add"]
    assert (len(graph.nodes[0].inputs) > 3 and graph.nodes[0].inputs[3] is not None) == (zeros in ("packed", "floats"))


@pytest.mark.parametrize("depth", [16, 80, 100])
def test_depths_that_no_block_divides(depth: int) -> None:
    assert products(check(*nbits(depth, zeros="packed"))) == 1


@pytest.mark.parametrize("level", [0, 1, 4])
def test_a_compiled_model_has_no_fallback(level: int) -> None:
    """Accuracy level 4 takes rows of bytes, as onnxruntime does, where the CPU multiplies these itself."""
    proto, inputs = nbits(128, 48, zeros="packed", bias=True, accuracy_level=level)
    kernel = superkernel.compile(proto, options={"fallback": "forbid"})
    (sub,) = kernel._compiled.schedule.subops
    in_bytes = sub.kernel == "host.block_matmul.int8"
    assert in_bytes or sub.kernel == "host.block_matmul.gemv"
    if level != 4:
        assert not in_bytes
    elif detect_cpu().has("avx512vnni"):
        assert in_bytes
        assert "int8 allowed: 8-bit rows by block" in str(kernel.explain(sub.name if hasattr(sub, "name") else 0))
    found, wanted = kernel.run(inputs).outputs["y"], evaluate(load_graph(proto), inputs)["y"]
    rounding = np.abs(inputs["x"]).max() / 254 * 32 * 4 * 15 * 0.02 if in_bytes else 0.0
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5 + rounding)
    if in_bytes:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        (theirs,) = session.run(None, inputs)
        np.testing.assert_allclose(found, theirs, atol=2e-5 * np.abs(theirs).max())


def test_what_is_refused() -> None:
    proto, _ = nbits(bits=2)
    with pytest.raises(UnsupportedError, match="so many bits"):
        load_graph(proto)
    proto, inputs = nbits(zeros="packed")
    proto.graph.node[0].input.append("g")
    order = np.arange(64, dtype=np.int32) // 32
    grouped = model(list(proto.graph.node), inputs, constants={**arrays_of(proto), "g": order})
    with pytest.raises(UnsupportedError, match="g_idx"):
        load_graph(grouped)


def arrays_of(proto: Any) -> Arrays:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def dequantised(
    kind: Any, low: int, high: int, depth: int = 64, block: int = 16, zeros: bool = False, axis: int = 0
) -> tuple[Any, Arrays]:
    """x times DequantizeLinear(w) of a type, with random codes."""
    shape = (depth, 24)
    scales = tuple(extent // block if i == axis else extent for i, extent in enumerate(shape))
    constants: dict[str, Any] = {
        "w": RNG.integers(low, high + 1, shape).astype(kind),
        "s": RNG.uniform(0.01, 0.02, scales).astype(np.float32),
    }
    if zeros:
        constants["z"] = RNG.integers(low, high + 1, scales).astype(kind)
    nodes = [
        node("DequantizeLinear", "w s z" if zeros else "w s", "d", axis=axis, block_size=block),
        node("MatMul", "x d"),
    ]
    inputs = {"x": f32(2, depth)}
    return model(nodes, inputs, constants=constants, opset=21), inputs


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("kind", "low", "high", "bits"),
    [
        (ml_dtypes.int4, -8, 7, 4),
        (ml_dtypes.uint4, 0, 15, 4),
        (np.int8, -128, 127, 8),
        (np.uint8, 0, 255, 8),
        (np.int8, -3, 12, 8),
    ],
)
def test_dequantised_weights(kind: Any, low: int, high: int, bits: int, zeros: bool) -> None:
    graph = check(*dequantised(kind, low, high, zeros=zeros))
    assert [n.attrs["bits"] for n in graph.nodes if n.op == "block_matmul"] == [bits]


def test_blocks_along_the_columns_are_no_such_product() -> None:
    graph = check(*dequantised(np.int8, -9, 9, block=8, axis=1))
    assert products(graph) == 0


def table(bits: int, zeros: bool, block: int = 16, blocks: int = 3, x: Any = np.float32, **attrs: Any) -> Any:
    """A model of one GatherBlockQuantized, and its indices."""
    constants = {
        "w": RNG.integers(0, 256, (20, blocks * block * bits // 8)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.02, (20, blocks)).astype(x),
    }
    if zeros:
        constants["z"] = RNG.integers(0, 256, (20, -(-blocks * bits // 8))).astype(np.uint8)
    names = "w i s z" if zeros else "w i s"
    attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": bits, **attrs}
    made = node("GatherBlockQuantized", names, domain="com.microsoft", **attrs)
    inputs = {"i": RNG.integers(0, 20, (2, 5)).astype(np.int64)}
    return model([made], inputs, constants=constants), inputs


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("x", [np.float32, np.float16])
def test_rows_of_a_table_in_blocks(bits: int, zeros: bool, x: Any) -> None:
    """Codes are gathered, not numbers: no constant is larger than the table."""
    graph = check(*table(bits, zeros, x=x))
    stored = 20 * 48 * bits // 8
    assert max(a.nbytes for a in graph.constants.values()) <= max(stored, 20 * 3 * 4)
    assert "gather" in [n.op for n in graph.nodes]


@pytest.mark.parametrize(
    ("change", "said"), [({"gather_axis": 1}, "rows of a table"), ({"block_size": 32}, "fill the rows")]
)
def test_other_tables_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        load_graph(table(4, False, **change)[0])
