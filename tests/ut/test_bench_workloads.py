"""The benchmark's workloads: every form of one computes what its graph says in float64, on small sizes.

ONNX is run by onnxruntime; torch and JAX only where they are installed (in the benchmark's own environment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import emit_array
import numpy as np
import pytest
import workloads
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder
from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate

ERROR_MAX = 2e-5
Arrays = Mapping[str, NDArray[Any]]
TINY = {w.build.__name__ + str(w.tiny): w for w in workloads.WORKLOADS.values() if w.tiny is not None}


def cnn_operators() -> Graph:
    """What only the light models use: unequal pads, LRN, batch norm, groups, gemm, two kinds of average."""
    rng = np.random.default_rng(3)
    b = GraphBuilder("cnn")

    def noise(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    x = b.input("x", (1, 6, 9, 9))
    x = b.conv(x, noise(8, 3, 3, 3), noise(8), strides=(1, 2), pads=(0, 1, 1, 2), groups=2)
    x = b.batch_norm(x, noise(8), noise(8), noise(8), np.abs(noise(8)) + 1)
    x = b.lrn(x, size=5, alpha=1e-2, beta=0.75, bias=2.0)
    x = b.max_pool(x, kernel=(3, 3), strides=(1, 1), pads=(0, 0, 1, 1))
    x = b.avg_pool(x, kernel=(2, 2), strides=(1, 1), pads=(0, 0, 1, 1))
    x = b.avg_pool(x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), count_include_pad=True)
    flat = b.identity(x).reshape(1, x.shape[1] * x.shape[2] * x.shape[3])
    b.output(b.softmax(b.gemm(flat, noise(5, flat.shape[1]), noise(5), trans_b=True), axis=1), name="y")
    return b.graph()


def pooled_embedding() -> Graph:
    """What only MiniLM uses: gather of rows, masked attention, pooling over tokens."""
    rng = np.random.default_rng(4)
    b = GraphBuilder("embedding")
    ids, mask = b.input("ids", (1, 5), "i64"), b.input("mask", (1, 5))
    x = b.gather(rng.standard_normal((12, 8), np.float32), ids, axis=0)
    heads = x.reshape(1, 5, 2, 4).transpose(0, 2, 1, 3)
    hidden = ((mask - 1.0) * 1e9).reshape(1, 1, 1, 5)
    x = b.attention(heads, heads, heads, hidden).transpose(0, 2, 1, 3).reshape(1, 5, 8)
    x = b.matmul(x, rng.standard_normal((8, 8), np.float32), trans_b=True)
    y = b.reduce_sum(x, axes=(1,), keepdims=False)
    b.output(y / b.sqrt(b.reduce_sum(y * y, axes=(-1,))), name="y")
    return b.graph()


GRAPHS: dict[str, Callable[[], Graph]] = {
    **{name: partial(w.graph, tiny=True) for name, w in TINY.items()},
    "cnn_operators": cnn_operators,
    "pooled_embedding": pooled_embedding,
}


@cache
def case(name: str) -> tuple[Graph, Arrays, Any]:
    """A graph, inputs, and what it gives in float64."""
    graph = GRAPHS[name]()
    inputs = workloads.make_inputs(graph)
    return graph, inputs, evaluate(graph, inputs, wide=True)


def check(name: str, outputs: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    graph, inputs, expected = case(name)
    assert list(outputs) == list(graph.outputs)
    assert set(states) == set(graph.states)
    pairs = [(np.asarray(outputs[n]), expected[n]) for n in graph.outputs]
    # Rows of a cache behind the position are nobody's business: GroupQueryAttention clears them.
    rows = slice(0, int(inputs["position"][0]) + 1) if graph.states else slice(0)
    pairs += [(np.asarray(states[n])[:, :, rows], expected.states[n][:, :, rows]) for n in graph.states]
    for found, wanted in pairs:
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= ERROR_MAX * np.abs(wanted).max()


def first_states(graph: Graph) -> dict[str, NDArray[Any]]:
    return {name: np.array(array) for name, array in graph.states.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_numpy(name: str) -> None:
    graph, inputs, _ = case(name)
    outputs, states = emit_array.to_numpy(graph)(inputs, first_states(graph))
    assert all(np.asarray(a).dtype == np.float32 for a in outputs), "computed in another precision than f32"
    check(name, dict(zip(graph.outputs, outputs, strict=True)), states)


@pytest.mark.parametrize("contrib", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_onnx(name: str, contrib: bool) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    import emit_onnx

    graph, inputs, _ = case(name)
    model = emit_onnx.to_onnx(graph, contrib=contrib)
    fused = {n.op_type for n in model.graph.node if n.domain == "com.microsoft"}
    wanted = set()
    if contrib and any(n.op == "attention" for n in graph.nodes):
        wanted = {"GroupQueryAttention" if graph.states else "MultiHeadAttention"}
    assert fused == wanted
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = dict(
        zip(
            (o.name for o in session.get_outputs()),
            session.run(None, {**inputs, **first_states(graph)}),
            strict=True,
        )
    )
    states = {n: found.pop(n + emit_onnx.NEXT) for n in graph.states}
    check(name, found, states)


@pytest.mark.parametrize("name", GRAPHS)
def test_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    import emit_torch

    graph, inputs, _ = case(name)
    module = emit_torch.to_torch(graph)
    with torch.no_grad():
        outputs = module(*(torch.from_numpy(inputs[n]) for n in graph.inputs))
    constants = len(graph.constants)
    states = {n: getattr(module, f"value_{constants + i}") for i, n in enumerate(graph.states)}
    check(name, dict(zip(graph.outputs, outputs, strict=True)), states)


@pytest.mark.parametrize("name", GRAPHS)
def test_torch_frontend(name: str) -> None:
    """There and back: the torch form of a graph, imported, computes what the graph does."""
    torch = pytest.importorskip("torch")
    import emit_torch

    graph, inputs, _ = case(name)
    examples = tuple(torch.from_numpy(inputs[n]) for n in graph.inputs)
    imported = load_graph(emit_torch.to_torch(graph), example_inputs=examples)
    found = evaluate(imported, dict(zip(imported.inputs, inputs.values(), strict=True)))
    states = dict(zip(graph.states, found.states.values(), strict=True))
    check(name, dict(zip(graph.outputs, found.values(), strict=True)), states)


@pytest.mark.parametrize("name", GRAPHS)
def test_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    graph, inputs, _ = case(name)
    outputs, states = jax.jit(emit_array.to_jax(graph))(inputs, first_states(graph))
    check(name, dict(zip(graph.outputs, outputs, strict=True)), states)


def test_onnx_refuses_what_it_cannot_write() -> None:
    pytest.importorskip("onnx")
    import emit_onnx

    b = GraphBuilder("sort")
    b.output(b.cumsum(b.input("x", (4,)), axis=0))
    with pytest.raises(NotImplementedError, match="cumsum"):
        emit_onnx.to_onnx(b.graph())


def test_a_workload_in_bytes() -> None:
    """The same network as a model of bytes, near the one in f32."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    graph = load_graph(workloads.quantised_onnx("dwcnn-96", tiny=True))
    assert {"quantize", "dequantize"} <= {node.op for node in graph.nodes}
    plain = workloads.WORKLOADS["dwcnn-96"].graph(tiny=True)
    inputs = workloads.make_inputs(plain)
    want, got = (next(iter(evaluate(g, inputs).values())) for g in (plain, graph))
    assert 0 < np.abs(want - got).max() < 0.2 * np.abs(want).max()


def test_names_and_choice() -> None:
    plain = [w for w in workloads.WORKLOADS.values() if not w.quantised]
    assert workloads.choose(None) == plain
    assert len(plain) >= 30
    assert [w.name for w in workloads.choose("int8-*")] == [f"int8-{name}" for name in workloads.QUANTISED]
    assert {w.name for w in workloads.choose("mlp-64,decode-*")} == {
        "mlp-64",
        "decode-small",
        "decode-medium",
        "decode-large",
    }
    with pytest.raises(ValueError, match="no workload matches"):
        workloads.choose("mlp-65")


def test_a_decoder_step_can_be_repeated() -> None:
    graph, inputs, expected = case(next(n for n, w in TINY.items() if w.kind == "decoder"))
    again = evaluate(graph, inputs, expected.states, wide=True)
    for name in graph.outputs:
        np.testing.assert_array_equal(again[name], expected[name])
    assert 0 < inputs["position"][0] < next(iter(graph.states.values())).shape[2] - 1
