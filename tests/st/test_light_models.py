"""The nine light ONNX models (AlexNet to DenseNet) with random weights, end to end, against onnxruntime.

The largest difference, relative to the largest value of the output, must stay below 1e-4: on the reference after
import alone, on the reference after the standard transforms, and on the host with 1, 2 or 3 threads. Most are `slow`.
Of the models with hundreds of megabytes of weights a run draws one, of the numbers of threads too, and whether the
reference has the graph as it was imported or as it was transformed; a soak run has all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import soak
from models import LIGHT_MODELS, light_input, light_model
from numpy.typing import NDArray

from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.transforms import simplify

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ERROR_MAX = 1e-4
QUICK = {"squeezenet", "shufflenet", "resnet50"}
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")
DRAWN = [name for name in LIGHT_MODELS if name not in LARGE] + soak.drawn(LARGE, 1)
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in DRAWN]


class Case(NamedTuple):
    """A graph, its inputs and onnxruntime's outputs."""

    graph: Graph
    inputs: Mapping[str, Any]
    expected: list[NDArray[np.float32]]


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    """One model at a time, for they are large: pytest runs all tests of one before it makes the next."""
    model = light_model(request.param)
    inputs = light_input(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # threads of its own would spin where other tests have the CPUs
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Case(load_graph(model), inputs, session.run(None, dict(inputs)))


def check(graph: Graph, results: Mapping[str, Any], expected: list[NDArray[np.float32]]) -> None:
    assert len(graph.outputs) == len(expected)
    for name, wanted in zip(graph.outputs, expected, strict=True):
        assert results[name].shape == wanted.shape
        error = np.abs(results[name].astype(np.float64) - wanted).max() / np.abs(wanted).max()
        assert error < ERROR_MAX, f"{name}: {error:.2e}"


@pytest.mark.parametrize("simplified", soak.drawn((False, True), 1))
def test_reference(case: Case, simplified: bool) -> None:
    graph, inputs, expected = case
    if simplified:
        imported, graph = graph, simplify(graph)
        left = {node.op for node in graph.nodes}
        assert not left & {"batch_norm", "gemm", "identity"}, left
        lowered = sum(node.op == "gemm" for node in imported.nodes)  # each becomes a matmul and an add
        assert len(graph.nodes) <= len(imported.nodes) + lowered
    check(graph, evaluate(graph, inputs), expected)


@pytest.mark.usefixtures("mostly_translated")
@pytest.mark.parametrize("threads", soak.drawn((1, 2, 3), 1))
def test_host(case: Case, threads: int) -> None:
    import superkernel

    graph, inputs, expected = case
    kernel = superkernel.compile(graph, threads=threads)
    check(graph, kernel.run(inputs).outputs, expected)
