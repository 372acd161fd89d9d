"""networkx graphs: what is read, what is refused, and the way back."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

from superkernel.builder import GraphBuilder
from superkernel.core.errors import GraphError, InputError
from superkernel.frontends import load_graph
from superkernel.frontends.networkx_form import from_networkx, to_networkx
from superkernel.ir.graph import Graph, KernelType
from superkernel.reference import evaluate


def small() -> nx.DiGraph[str]:
    g: Any = nx.DiGraph(name="small")
    g.add_node("x", op="input", dtype="f32", shape=(2, 3))
    g.add_node("c", op="constant", value=np.full(3, 2.0, np.float32))
    g.add_node("s", op="sub", kernel_type="AIV_ONLY", stream=1, scope="a/b")
    g.add_node("y", op="leaky_relu", attrs={"alpha": 0.5})
    g.add_edge("c", "s", input_index=1)
    g.add_edge("x", "s", input_index=0)
    g.add_edge("s", "y")
    return g


def test_small_graph() -> None:
    graph = load_graph(small())
    assert graph.name == "small"
    assert graph.outputs == ("y",)
    first = graph.nodes[0]
    assert (first.kernel_type, first.stream, first.scope) == (KernelType.AIV_ONLY, 1, "a/b")
    x = np.array([[1, 2, 3], [4, 0, -1]], np.float32)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], np.where(x > 2, x - 2, (x - 2) * 0.5))


def test_one_value_twice_needs_a_multigraph() -> None:
    g: Any = nx.MultiDiGraph()
    g.add_node(0, op="input", dtype="f32", shape=[2])
    g.add_node(1, op="sub")
    g.add_edge(0, 1, input_index=0)
    g.add_edge(0, 1, input_index=1)
    graph = load_graph(g)
    assert graph.nodes[0].inputs == ("0", "0")


def test_output_nodes_count_in_order_and_several_outputs_are_numbered() -> None:
    g: Any = nx.DiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(5,))
    g.add_node("cut", op="split", axis=0, sizes=(2, 3))
    g.add_node("o1", op="output")
    g.add_node("o0", op="output")
    g.add_edge("x", "cut")
    g.add_edge("cut", "o1", output_index=1)
    g.add_edge("cut", "o0")
    assert load_graph(g).outputs == ("cut:1", "cut:0")


def test_absent_optional_input() -> None:
    g: Any = nx.DiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(5,))
    g.add_node("hi", op="constant", value=np.float32(1))
    g.add_node("y", op="clip")
    g.add_edge("x", "y", input_index=0)
    g.add_edge("hi", "y", input_index=2)
    assert load_graph(g).nodes[0].inputs == ("x", None, "hi")


def test_state() -> None:
    g: Any = nx.DiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(2,))
    g.add_node("total", op="state", value=np.zeros(2, np.float32), update="new")
    g.add_node("new", op="add")
    g.add_node("y", op="neg")
    g.add_edge("x", "new", input_index=0)
    g.add_edge("total", "new", input_index=1)
    g.add_edge("new", "y")
    graph = load_graph(g)
    assert graph.updates == {"total": "new"}
    assert graph.outputs == ("y",)


def broken(change: str) -> nx.DiGraph[str]:
    g: Any = small()
    if change == "no op":
        del g.nodes["y"]["op"]
    elif change == "unknown op":
        g.nodes["y"]["op"] = "leeky_relu"
    elif change == "no input_index":
        del g.edges["x", "s"]["input_index"]
    elif change == "same input_index":
        g.edges["x", "s"]["input_index"] = 1
    elif change == "input_index far out":
        g.edges["x", "s"]["input_index"] = 7
    elif change == "negative input_index":
        g.edges["x", "s"]["input_index"] = -1
    elif change == "output_index":
        g.edges["s", "y"]["output_index"] = 1
    elif change == "keys read the same":
        g.add_node(1, op="input", dtype="f32", shape=())
        g.add_node("1", op="input", dtype="f32", shape=())
    elif change == "edge into an input":
        g.add_edge("s", "x")
    elif change == "dtype":
        g.nodes["x"]["dtype"] = "f33"
    elif change == "shape":
        g.nodes["x"]["shape"] = (2, -3)
    elif change == "no shape":
        del g.nodes["x"]["shape"]
    elif change == "kernel_type":
        g.nodes["s"]["kernel_type"] = "AIX"
    elif change == "stream":
        g.nodes["s"]["stream"] = 1.5
    elif change == "scope":
        g.nodes["s"]["scope"] = 5
    elif change == "attribute twice":
        g.nodes["y"]["alpha"] = 0.5
    elif change == "unknown attribute":
        g.nodes["y"]["attrs"] = {"alpha_": 0.5}
    elif change == "output feeds":
        g.add_node("o", op="output")
        g.add_edge("y", "o")
        g.add_node("z", op="neg")
        g.add_edge("o", "z")
    elif change == "output without edge":
        g.add_node("o", op="output")
    elif change == "cycle":
        g.add_node("t", op="add")
        g.add_edge("t", "t", input_index=0)
        g.add_edge("x", "t", input_index=1)
    return g


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no op", "'op' is missing"),
        ("unknown op", "did you mean leaky_relu"),
        ("no input_index", "input_index is required"),
        ("same input_index", "two edges feed input 1"),
        ("input_index far out", "input_index out of range"),
        ("negative input_index", "integer >= 0"),
        ("output_index", "wrong number of outputs"),
        ("keys read the same", "two node keys read the same"),
        ("edge into an input", "an edge leads into input"),
        ("dtype", "not an element type"),
        ("shape", "not a shape"),
        ("no shape", "'shape' is missing"),
        ("kernel_type", "unknown kernel_type"),
        ("stream", "stream must be an integer or a text"),
        ("scope", "scope must be a text"),
        ("attribute twice", "given twice"),
        ("unknown attribute", "unknown attribute 'alpha_'"),
        ("output feeds", "feeds nothing"),
        ("output without edge", "exactly one edge"),
        ("cycle", "cycle"),
    ],
)
def test_refused(change: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        load_graph(broken(change))


def test_all_violations_at_once() -> None:
    g: Any = small()
    g.nodes["x"]["dtype"] = "f33"
    g.nodes["s"]["stream"] = 1.5
    with pytest.raises(GraphError) as caught:
        load_graph(g)
    assert len(caught.value.violations) == 2


def test_undirected_is_refused() -> None:
    with pytest.raises(InputError, match="directed"):
        load_graph(nx.Graph())


def rich() -> Graph:
    b = GraphBuilder("rich")
    x = b.input("x", (4, 6))
    total = b.state("total", np.ones((4, 6), np.float32))
    b.state("fixed", np.arange(3, dtype=np.int8))
    with b.scope("part"), b.stream("left"):
        new = b.add(total, x, name="sum")
    b.update(total, new)
    left, right = b.split(new, axis=1, sizes=(2, 4))
    b.output(b.clip(right, None, 3.0), name="clipped")
    b.output(b.cast(left, dtype="bf16"))
    b.output(left - left)
    b.output(x)
    return b.graph()


def test_round_trip() -> None:
    graph = rich()
    again = load_graph(to_networkx(graph))
    assert str(again) == str(graph)
    assert [n.stream for n in again.nodes] == [n.stream for n in graph.nodes]
    for name, array in graph.constants.items():
        np.testing.assert_array_equal(again.constants[name], array)
    for name, array in graph.states.items():
        np.testing.assert_array_equal(again.states[name], array)


def test_what_is_no_source() -> None:
    with pytest.raises(InputError, match="not a source"):
        load_graph(42)
    with pytest.raises(InputError, match="no known format"):
        load_graph("model.pb")
    with pytest.raises(InputError, match="only apply to ONNX"):
        load_graph(rich(), dims={"n": 1})
    graph = rich()
    assert load_graph(graph) is graph


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"attrs": 3}, "'attrs' is not a mapping"),
        ({"outputs": 3}, "'outputs' is not a list"),
    ],
)
def test_ill_typed_node_attributes(change: dict[str, object], text: str) -> None:
    g = nx.DiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(2,))
    g.add_node("y", op="relu", **change)
    g.add_edge("x", "y")
    with pytest.raises(GraphError, match=text):
        from_networkx(g)


@pytest.mark.parametrize("field", ["input_index", "output_index"])
def test_absurd_edge_indices_end_at_once(field: str) -> None:
    g = nx.MultiDiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(2,))
    g.add_node("a", op="relu")
    g.add_node("y", op="concat", axis=0)
    g.add_edge("x", "a")
    g.add_edge("a", "y", **{"input_index": 0, field: 10**9})
    with pytest.raises(GraphError, match="out of range"):
        from_networkx(g)


def test_one_size_of_a_split_may_stand_by_itself() -> None:
    g: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(2,))
    g.add_node("a", op="split", axis=0, sizes=2)
    g.add_edge("x", "a")
    graph = from_networkx(g)
    assert [str(graph.types[name]) for name in graph.outputs] == ["f32[2]"]
