"""Small ONNX models, and onnxruntime's word on what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

Arrays = Mapping[str, NDArray[Any]]
RNG = np.random.default_rng(3)


def f32(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[Any],
    inputs: Arrays,
    outputs: Sequence[str] = ("y",),
    *,
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    functions: Sequence[Any] = (),
    shapes: Mapping[str, Sequence[object]] | None = None,
) -> Any:
    """A ModelProto; shapes of inputs are those of the arrays unless `shapes` says otherwise."""
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), (shapes or {}).get(name, list(a.shape))
        )
        for name, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    initialisers = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "test", infos, results, initialisers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    made.ir_version = 8
    return made


def check(proto: Any, inputs: Arrays, **options: Any) -> Graph:
    """Same outputs as onnxruntime without optimisation."""
    graph = load_graph(proto, **options)
    results = evaluate(graph, {name: inputs[name] for name in graph.inputs})
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    for name, wanted in zip([o.name for o in proto.graph.output], session.run(None, dict(inputs)), strict=True):
        assert results[name].dtype == wanted.dtype
        np.testing.assert_allclose(results[name], wanted, rtol=2e-4, atol=2e-5, err_msg=name)
    return graph


def node(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> Any:
    names = [name if name != "_" else "" for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)
