"""ONNX operators on small element types against the standard's own evaluator: casts code by code, quantisation per
tensor, axis and block."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.frontends import load_graph
from superkernel.reference import evaluate

onnx = pytest.importorskip("onnx", minversion="1.22")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

Array = NDArray[Any]
FLOATS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1"]
INTEGERS = ["INT4", "UINT4", "INT2", "UINT2"]


def code(name: str) -> int:
    return int(getattr(TensorProto, name))


def array_type(name: str) -> Any:
    return helper.tensor_dtype_to_np_dtype(code(name))


def check(node: Any, given: dict[str, Array], result: str, opset: int = 25) -> Array:
    """A model of one node: the kernel's result, which is that of the reference and of the standard's evaluator."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    output = helper.make_tensor_value_info("y", code(result), None)
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=12)
    with np.errstate(all="ignore"):
        (expected,) = ReferenceEvaluator(model).run(None, given)
    loaded = load_graph(model)
    found = sk.compile(loaded, threads=1).run(given).outputs["y"]
    assert found.dtype == np.asarray(expected).dtype
    for array in (evaluate(loaded, given)["y"], np.asarray(expected)):
        np.testing.assert_array_equal(found.astype(np.float64), array.astype(np.float64))
    return found


def numbers() -> Array:
    high, low = np.arange(1 << 10, dtype=np.uint32) << 22, np.array([0, 1, 0x1FFFFF, 0x200000, 0x200001], np.uint32)
    found: Array = (high[:, None] | low).reshape(-1).view(np.float32)
    return found


@pytest.mark.parametrize("mode", ["up", "nearest", "down"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two_round_as_they_are_told(mode: str, saturate: int) -> None:
    attrs: dict[str, Any] = {"to": code("FLOAT8E8M0"), "saturate": saturate, "round_mode": mode}
    check(helper.make_node("Cast", ["x"], ["y"], **attrs), {"x": numbers()}, "FLOAT8E8M0")


def test_another_way_to_round_is_refused() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], name="c", to=code("FLOAT8E8M0"), round_mode="odd")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT8E8M0, [2])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 25)])
    with pytest.raises(sk.FileFormatError, match="unknown round_mode"):
        load_graph(model)


@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_casts(name: str) -> None:
    x = np.arange(-20, 20, dtype=np.float32) if name in INTEGERS else numbers()
    x = x[~np.isnan(x)] if name == "FLOAT4E2M1" else x  # which has none: 0 here
    codes = check(helper.make_node("Cast", ["x"], ["y"], to=code(name)), {"x": x}, name)
    check(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT), {"x": codes}, "FLOAT")
    check(helper.make_node("CastLike", ["x", "t"], ["y"]), {"x": codes, "t": np.zeros(1, np.float16)}, "FLOAT16")


@pytest.mark.parametrize(("axis", "block", "shape"), [(1, 0, ()), (1, 0, (4,)), (0, 0, (6,)), (1, 2, (6, 2))])
@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_quantisation(name: str, axis: int, block: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x, scale = rng.uniform(-9, 9, (6, 4)).astype(np.float32), rng.uniform(0.3, 2, shape).astype(np.float32)
    zero = np.zeros(shape, array_type(name)) if name in FLOATS else np.ones(shape, array_type(name))
    attrs: dict[str, Any] = {"axis": axis, "block_size": block}
    codes = check(
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], **attrs), {"x": x, "s": scale, "z": zero}, name
    )
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], **attrs)
    check(node, {"x": codes, "s": scale, "z": zero}, "FLOAT")


def test_scales_may_be_powers_of_two() -> None:
    """Of blocks of small floats, as microscaling formats have them."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (3, 8), dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    scale = np.array([[1, 0.5], [4, 2], [0.25, 8]], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    attrs: dict[str, Any] = {"axis": 1, "block_size": 4, "output_dtype": TensorProto.FLOAT}
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT4E2M1, [3, 8]),
        helper.make_tensor_value_info("s", TensorProto.FLOAT8E8M0, [3, 2]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 8])
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], **attrs)
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]), ir_version=12)
    found = sk.compile(load_graph(model), threads=1).run({"x": codes, "s": scale}).outputs["y"]
    assert np.array_equal(found, codes.astype(np.float32) * np.repeat(scale.astype(np.float32), 4, axis=1))


def test_weights_in_four_bits_are_those_in_bytes() -> None:
    """A product with weights of INT4 is that with weights of INT8."""
    rng = np.random.default_rng(3)
    weights, scale = rng.integers(-8, 8, (64, 32)), rng.uniform(0.01, 0.1, 32).astype(np.float32)
    graphs = []
    for kind in ("INT4", "INT8"):
        w = helper.make_tensor("w", code(kind), weights.shape, weights.reshape(-1).tolist())
        s = onnx.numpy_helper.from_array(scale, "s")
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 64])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 32])
        model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [w, s]), ir_version=12)
        graphs.append(load_graph(model))
    given = rng.standard_normal((5, 64)).astype(np.float32)
    four, eight = (sk.compile(graph, threads=1) for graph in graphs)
    assert np.array_equal(four(given), eight(given))
    kept = [sorted(str(c.dtype) for c in graph.constants.values()) for graph in graphs]
    assert kept[0] == kept[1] == ["float32", "int8"]
