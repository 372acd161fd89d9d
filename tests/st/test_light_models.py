"""The nine light ONNX models (AlexNet to DenseNet) with random weights, end to end, against onnxruntime.

The largest difference, relative to the largest value of the output, must stay below 1e-4: on the reference after
import alone, on the reference after the standard transforms, and on the host with 1, 2 and 3 threads. Most are `slow`:
VGG-19 alone has half a gigabyte of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from models import LIGHT_MODELS, light_input, light_model
from numpy.typing import NDArray

from superkernel.frontends import load_graph
from superkernel.graph import Graph
from superkernel.reference import evaluate
from superkernel.transforms import simplify

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ERROR_MAX = 1e-4
QUICK = {"squeezenet", "shufflenet", "resnet50"}
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in LIGHT_MODELS]


@lru_cache(maxsize=1)
def case(name: str) -> tuple[Graph, Mapping[str, Any], list[NDArray[np.float32]]]:
    """The graph, its inputs and onnxruntime's outputs; one model at a time, for they are large."""
    model = light_model(name)
    inputs = light_input(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return load_graph(model), inputs, session.run(None, dict(inputs))


def check(graph: Graph, results: Mapping[str, Any], expected: list[NDArray[np.float32]]) -> None:
    assert len(graph.outputs) == len(expected)
    for name, wanted in zip(graph.outputs, expected, strict=True):
        assert results[name].shape == wanted.shape
        error = np.abs(results[name].astype(np.float64) - wanted).max() / np.abs(wanted).max()
        assert error < ERROR_MAX, f"{name}: {error:.2e}"


@pytest.mark.parametrize("name", NAMES)
def test_import(name: str) -> None:
    graph, inputs, expected = case(name)
    check(graph, evaluate(graph, inputs), expected)


@pytest.mark.parametrize("name", NAMES)
def test_transforms(name: str) -> None:
    graph, inputs, expected = case(name)
    simple = simplify(graph)
    left = {node.op for node in simple.nodes}
    assert not left & {"batch_norm", "gemm", "identity"}, left
    lowered = sum(node.op == "gemm" for node in graph.nodes)  # each becomes a matmul and an add
    assert len(simple.nodes) <= len(graph.nodes) + lowered
    check(simple, evaluate(simple, inputs), expected)


HOST = [
    pytest.param(
        name, threads, marks=() if name == "squeezenet" or (name, threads) == ("resnet50", 2) else pytest.mark.slow
    )
    for name in LIGHT_MODELS
    for threads in (1, 2, 3)
]


@pytest.mark.parametrize(("name", "threads"), HOST)
def test_host(name: str, threads: int) -> None:
    import superkernel

    graph, inputs, expected = case(name)
    kernel = superkernel.compile(graph, threads=threads)
    check(graph, kernel.run(inputs).outputs, expected)
