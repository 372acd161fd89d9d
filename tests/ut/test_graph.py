"""Graph.build: order, inference, and every kind of mistake with its words, all of them at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, KernelType, Node

F32 = DType.F32


def f32(*shape: int) -> TensorType:
    return TensorType(F32, shape)


def node(name: str, op: str, inputs: str, outputs: str | None = None, **attrs: Any) -> Node:
    names = tuple(None if i == "_" else i for i in inputs.split())
    return Node(name, op, names, tuple((outputs or name).split()), attrs)


def build(nodes: list[Node], outputs: str, **rest: Any) -> Graph:
    return Graph.build(inputs=rest.pop("inputs", {"x": f32(2, 3)}), nodes=nodes, outputs=outputs.split(), **rest)


def problems(nodes: list[Node], outputs: str = "y", **rest: Any) -> list[str]:
    """The text of every violation of a graph that must be refused."""
    with pytest.raises(GraphError) as caught:
        build(nodes, outputs, **rest)
    return [str(v) for v in caught.value.violations]


def test_types_attributes_and_relations() -> None:
    nodes = [node("y", "add", "h b"), node("h", "softmax", "x"), node("s", "split", "y", "s0 s1", axis=1, sizes=[1, 2])]
    graph = build(nodes, "s1 y", constants={"b": np.ones(3, np.float32)})
    assert [n.name for n in graph.nodes] == ["h", "y", "s"]
    assert graph.nodes[0].attrs == {"axis": -1}
    assert graph.nodes[2].attrs == {"axis": 1, "sizes": (1, 2)}
    assert graph.types["s1"] == f32(2, 2)
    assert graph.output_types(graph.nodes[2]) == (f32(2, 1), f32(2, 2))
    assert graph.input_types(graph.nodes[1]) == (f32(2, 3), f32(3))
    assert graph.producers["s0"].name == "s"
    assert [n.name for n in graph.consumers["y"]] == ["s"]
    assert "x" not in graph.producers
    assert "s1" not in graph.consumers
    assert graph.definition(graph.nodes[0]).name == "softmax"
    assert "y = add(h, b)" in str(graph)


def test_the_order_is_stable() -> None:
    names = ["d", "b", "a", "c"]
    graph = build([node(n, "relu", "x") for n in names], "a b c d")
    assert [n.name for n in graph.nodes] == names


def test_order_of_a_shuffled_chain() -> None:
    chain = [node(f"v{i}", "relu", f"v{i - 1}" if i else "x") for i in range(60)]
    shuffled = [chain[i] for i in np.random.default_rng(1).permutation(60)]
    graph = build(shuffled, "v59")
    assert [n.name for n in graph.nodes] == [f"v{i}" for i in range(60)]


def test_absent_optional_inputs_and_repeated_inputs() -> None:
    graph = build([node("c", "clip", "x _ hi"), node("y", "add", "c c")], "y", constants={"hi": np.float32(1.0)})
    assert graph.input_types(graph.nodes[0]) == (f32(2, 3), None, f32())
    assert [n.name for n in graph.consumers["c"]] == ["y"]
    assert graph.constants["hi"].shape == ()


def test_node_fields_survive() -> None:
    given = Node("y", "relu", ("x",), ("y",), {}, KernelType.AIV_ONLY, 2, "layer0")
    kept = build([given], "y").nodes[0]
    assert (kept.kernel_type, kept.stream, kept.scope) == (KernelType.AIV_ONLY, 2, "layer0")


def test_a_graph_of_inputs_and_constants_only() -> None:
    graph = build([], "x k", constants={"k": np.arange(3)})
    assert graph.types["k"] == TensorType(DType.I64, (3,))


def test_states_are_copied_and_checked() -> None:
    cache = np.zeros((2, 3), np.float32)
    graph = build([node("y", "add", "x s")], "y", states={"s": cache}, updates={"s": "y"})
    cache[:] = 7
    assert not graph.states["s"].any()
    assert "state s: f32[2,3] <- y" in str(graph)
    wrong = problems([node("y", "reduce_sum", "x")], states={"s": cache}, updates={"s": "y", "t": "y", "s2": "z"})
    assert [w.split("; ")[0] for w in wrong] == [
        "update of an unknown state 't'",
        "update of an unknown state 's2'",
        "the update of state 's2' names an unknown value 'z'",
    ]


def test_an_update_of_another_type() -> None:
    wrong = problems([node("y", "reduce_sum", "x")], states={"s": np.zeros((2, 3), np.float32)}, updates={"s": "y"})
    assert wrong == ["the update of state 's' has another type; expected f32[2,3]; found f32[1,1]"]


def test_unknown_operator_suggests() -> None:
    assert "did you mean softmax" in problems([node("y", "sotfmax", "x")])[0]


def test_all_violations_at_once() -> None:
    nodes = [
        node("a", "nope", "x"),
        node("b", "relu", "ghost"),
        node("b", "relu", "x", "y"),
        node("c", "relu", "x", "y"),
    ]
    wrong = problems(nodes, "y z")
    text = "\n".join(wrong)
    for words in ("unknown operator 'nope'", "unknown value 'ghost'", "duplicate node name 'b'", "duplicate name 'y'"):
        assert words in text
    assert "the output 'z' is not a value" in text


def test_inference_errors_of_independent_nodes_are_all_reported() -> None:
    nodes = [
        node("a", "reshape", "x", shape=(7,)),
        node("b", "matmul", "x x"),
        node("c", "relu", "a"),
        node("y", "gelu", "x", approximate="no"),
    ]
    wrong = problems(nodes)
    assert len(wrong) == 3
    assert wrong[0].startswith("node 'a' (reshape): shape has another number of elements; expected 6 (f32[2,3])")
    assert "node 'b' (matmul), input 1 (b): inner dimensions differ" in wrong[1]
    assert "expected one of none, tanh; found 'no'" in wrong[2]


def test_cycles_are_named_in_flow_order() -> None:
    nodes = [
        node("p", "relu", "x"),
        node("a", "add", "p c"),
        node("b", "relu", "a"),
        node("c", "relu", "b"),
        node("y", "relu", "c"),
    ]
    wrong = problems(nodes)
    assert len(wrong) == 1
    assert "cycle" in wrong[0]
    path = wrong[0].split(":")[0].split(" -> ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    readers = {"a": "b", "b": "c", "c": "a"}
    assert all(readers[first] == second for first, second in pairwise(path))


def test_a_node_that_reads_itself() -> None:
    assert "y -> y" in problems([node("y", "add", "x y")])[0]


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ({"inputs": {"x": f32(2, -1)}}, "negative dimension"),
        ({"constants": {"x": np.zeros(2)}}, "duplicate name 'x'"),
        ({"constants": {"k": np.zeros(2, complex)}}, "element type is not supported"),
        ({"constants": {"k": np.array(["a"])}}, "element type is not supported"),
        ({"inputs": {"": f32(1)}}, "empty name"),
    ],
)
def test_bad_values(rest: dict[str, Any], words: str) -> None:
    nodes = [] if "inputs" in rest else [node("y", "relu", "x")]
    assert any(words in w for w in problems(nodes, "y", **rest))


def test_no_outputs() -> None:
    assert "no output" in problems([node("y", "relu", "x")], "")[0]


def test_wrong_number_of_outputs() -> None:
    assert "wrong number of outputs; expected 1; found 2" in problems([node("y", "relu", "x", "y z")])[0]


def test_wrong_inputs() -> None:
    assert "expected 2 to 2; found 1" in problems([node("y", "add", "x")])[0]
    assert "a required input is absent" in problems([node("y", "add", "x _")])[0]
    text = problems([node("y", "bitwise_not", "x")])[0]
    assert "input 0 (x): element type not accepted; expected i16" in text


def test_constants_are_contiguous_and_keep_their_shape() -> None:
    graph = build([], "k s", constants={"k": np.arange(6).reshape(2, 3).T, "s": np.float32(2.0)})
    assert graph.constants["k"].flags.c_contiguous
    assert graph.constants["k"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert graph.types["s"] == f32()
