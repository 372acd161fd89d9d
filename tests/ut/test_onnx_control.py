"""Control flow, sequences and optionals of ONNX, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx_models import check, f32, helper, model, node, numpy_helper, onnx

import superkernel
from superkernel.core.errors import FileFormatError, InputError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.frontends.onnx import control
from superkernel.frontends.onnx.call import StaticValueError
from superkernel.reference import evaluate

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def value(name: str, kind: int, shape: Sequence[int] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def body(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: dict[str, Any] | None = None
) -> Any:
    made = [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()]
    return helper.make_graph(list(nodes), "body", list(inputs), list(outputs), made)


def branches(condition: str, *, other: str = "Exp") -> Any:
    made = [
        body([node(op, "x", f"{name}_out")], [], [helper.make_empty_tensor_value_info(f"{name}_out")])
        for name, op in (("then", "Neg"), ("else", other))
    ]
    return node("If", condition, then_branch=made[0], else_branch=made[1])


# -- If


@pytest.mark.parametrize("taken", [True, False])
def test_if_with_a_known_condition_is_its_branch(taken: bool) -> None:
    proto = model([branches("c")], {"x": f32(3)}, constants={"c": np.array(taken)})
    graph = check(proto, {"x": f32(3)})
    assert [n.op for n in graph.nodes] == ["neg" if taken else "exp"]


@pytest.mark.parametrize("sign", [1, -1])
def test_if_with_a_computed_condition_selects(sign: int) -> None:
    nodes = [node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m zero", "c"), branches("c")]
    x = np.abs(f32(3)) * np.float32(sign)
    graph = check(model(nodes, {"x": x}, constants={"zero": np.float32(0)}), {"x": x})
    assert {"neg", "exp", "where"} <= {n.op for n in graph.nodes}


def test_if_whose_branches_differ_in_type_needs_its_condition() -> None:
    nodes = [node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m zero", "c"), branches("c", other="Size")]
    with pytest.raises(StaticValueError, match="decides what output 0 is") as caught:
        load_graph(model(nodes, {"x": f32(3)}, constants={"zero": np.float32(0)}))
    assert caught.value.inputs == ("x",)


# -- Loop


def doubling(*, until: float | None = None, scanned: bool = False) -> Any:
    """v = 2 v in each turn, at most `m` turns, while v's sum is below `until`."""
    nodes = [node("Add", "v v", "v_out"), node("ReduceSum", "v_out", "total", keepdims=0)]
    nodes += [node("Less", "total limit", "go") if until is not None else node("Identity", "c_in", "go")]
    inputs = [value("i", INT64, []), value("c_in", BOOL, []), value("v", FLOAT, [2])]
    outputs = [value("go", BOOL, []), value("v_out", FLOAT, [2])]
    if scanned:
        nodes.append(node("Identity", "total", "row"))
        outputs.append(value("row", FLOAT, []))
    names = "last rows" if scanned else "last"
    constants = {"limit": np.float32(until or 0)}
    return node("Loop", "m c x", names, body=body(nodes, inputs, outputs, constants))


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_loop_is_unrolled(turns: int) -> None:
    constants = {"m": np.int64(turns), "c": np.array(True)}
    proto = model([doubling(scanned=True)], {"x": f32(2)}, ["last", "rows"], constants=constants)
    graph = check(proto, {"x": f32(2)})
    assert [n.op for n in graph.nodes].count("add") == turns


@pytest.mark.parametrize("start", [0.1, 1.0, 7.0])
def test_loop_that_ends_on_data_keeps_its_values(start: float) -> None:
    """The number of turns differs by the data, in one and the same graph."""
    constants = {"m": np.int64(6), "c": np.array(True)}
    x = np.full(2, start, np.float32)
    graph = check(model([doubling(until=10.0)], {"x": x}, ["last"], constants=constants), {"x": x})
    result = superkernel.compile(graph, threads=2).run({"x": x}).outputs["last"]
    np.testing.assert_array_equal(result, evaluate(graph, {"x": x})["last"])


def test_loop_by_its_condition_alone() -> None:
    """v is known, so is the condition of each turn."""
    proto = model([doubling(until=50.0)], {"y": f32(2)}, ["last"], constants={"x": np.ones(2, np.float32)})
    proto.graph.node[0].input[0] = proto.graph.node[0].input[1] = ""
    graph = load_graph(proto)
    np.testing.assert_array_equal(evaluate(graph, {"y": f32(2)})["last"], [32, 32])


def test_a_loop_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "NODES_MAX", 100)  # it is walked so far
    proto = model([doubling(until=50.0)], {"x": f32(2)}, ["last"])
    proto.graph.node[0].input[0] = proto.graph.node[0].input[1] = ""
    with pytest.raises(StaticValueError, match="whose end is known at run time only"):
        load_graph(proto)
    proto = model([doubling()], {"x": f32(2)}, ["last"], constants={"c": np.array(True)})
    proto.graph.node[0].input[0] = ""
    with pytest.raises(UnsupportedError, match="too long to be unrolled") as caught:
        load_graph(proto)
    assert "endless" in str(caught.value)
    assert caught.value.violations[0].expected == "at most 100 nodes"


def test_scanned_rows_of_a_loop_that_ends_on_data_are_refused() -> None:
    constants = {"m": np.int64(6), "c": np.array(True)}
    with pytest.raises(StaticValueError, match="how long the loop's outputs are"):
        load_graph(model([doubling(until=10.0, scanned=True)], {"x": f32(2)}, ["last", "rows"], constants=constants))


def test_a_long_loop_is_refused_before_it_is_walked() -> None:
    constants = {"m": np.int64(1 << 40), "c": np.array(True)}
    with pytest.raises(UnsupportedError, match=f"{1 << 40} turns"):
        load_graph(model([doubling()], {"x": f32(2)}, ["last"], constants=constants))


def test_constants_of_a_body_are_made_once() -> None:
    wide = np.arange(2000, dtype=np.float32)
    inner = body(
        [node("Identity", "c_in", "go"), node("Add", "v wide", "v_out")],
        [value("i", INT64, []), value("c_in", BOOL, []), value("v", FLOAT, [2000])],
        [value("go", BOOL, []), value("v_out", FLOAT, [2000])],
        {"wide": wide},
    )
    constants = {"m": np.int64(5), "c": np.array(True)}
    graph = check(model([node("Loop", "m c x", body=inner)], {"x": f32(2000)}, constants=constants), {"x": f32(2000)})
    assert len(graph.constants) == 1


def test_a_body_of_another_number_of_inputs_is_no_loop() -> None:
    broken = doubling()
    del broken.attribute[0].g.input[-1]
    with pytest.raises(FileFormatError, match="another number of inputs"):
        load_graph(model([broken], {"x": f32(2)}, ["last"], constants={"m": np.int64(2), "c": np.array(True)}))


def test_what_a_body_refuses_is_said_once() -> None:
    inner = body(
        [node("Identity", "c_in", "go"), node("StringNormalizer", "v", "v_out")],
        [value("i", INT64, []), value("c_in", BOOL, []), value("v", FLOAT, [2])],
        [value("go", BOOL, []), value("v_out", FLOAT, [2])],
    )
    constants = {"m": np.int64(3), "c": np.array(True)}
    with pytest.raises(UnsupportedError, match="StringNormalizer") as caught:
        load_graph(model([node("Loop", "m c x", body=inner)], {"x": f32(2)}, constants=constants))
    assert len(caught.value.violations) == 1


# -- Scan


def running_sum(**attributes: Any) -> Any:
    inner = body(
        [node("Add", "s e", "s_out"), node("Mul", "s_out s_out", "row")],
        [value("s", FLOAT, [3]), value("e", FLOAT, [3])],
        [value("s_out", FLOAT, [3]), value("row", FLOAT, [3])],
    )
    return node("Scan", "s0 x", "last rows", body=inner, num_scan_inputs=1, **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_axes": [1]},
        {"scan_input_directions": [1]},
        {"scan_output_axes": [1], "scan_output_directions": [1]},
    ],
)
def test_scan(attributes: dict[str, list[int]]) -> None:
    x = f32(3, 5) if "scan_input_axes" in attributes else f32(5, 3)
    inputs = {"x": x, "s0": f32(3)}
    check(model([running_sum(**attributes)], inputs, ["last", "rows"]), inputs)


def test_scan_compiles_for_the_host() -> None:
    inputs = {"x": f32(5, 3), "s0": f32(3)}
    graph = load_graph(model([running_sum()], inputs, ["last", "rows"]))
    for name, wanted in evaluate(graph, inputs).items():
        np.testing.assert_allclose(superkernel.compile(graph, threads=2).run(inputs).outputs[name], wanted, rtol=1e-6)


# -- sequences and optionals


def test_sequences_inside_a_model_leave_nothing() -> None:
    nodes = [
        node("SplitToSequence", "x", "parts", axis=0, keepdims=1),
        node("SequenceAt", "parts last", "tail"),
        node("SequenceErase", "parts last", "rest"),
        node("SequenceInsert", "rest tail first", "turned"),
        node("ConcatFromSequence", "turned", "y", axis=0),
        node("SequenceLength", "turned", "count"),
    ]
    constants = {"last": np.int64(-1), "first": np.int64(0)}
    graph = check(model(nodes, {"x": f32(4, 2)}, ["y", "count"], constants=constants), {"x": f32(4, 2)})
    assert {n.op for n in graph.nodes} <= {"slice", "concat"}


def test_split_by_a_size_leaves_a_shorter_part() -> None:
    nodes = [node("SplitToSequence", "x size", "parts"), node("SequenceAt", "parts two", "y")]
    constants = {"size": np.int64(2), "two": np.int64(2)}
    graph = load_graph(model(nodes, {"x": f32(5, 2)}, constants=constants))
    assert evaluate(graph, {"x": f32(5, 2)})["y"].shape == (1, 2)


def sequence_model() -> Any:
    """y = every element, twice: a sequence in, a sequence out."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    inner = body([node("Add", "e e", "t")], [value("e", FLOAT)], [value("t", FLOAT)])
    infos = [helper.make_value_info(name, kind) for name in ("s", "y")]
    graph = helper.make_graph([node("SequenceMap", "s", body=inner)], "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_sequence_is_as_many_inputs_and_outputs() -> None:
    x = [f32(2), f32(3)]
    kernel = superkernel.compile(sequence_model(), shapes={"s": [(2,), (3,)]}, threads=2)
    outputs = kernel.run({"s.0": x[0], "s.1": x[1]}).outputs
    assert list(outputs) == ["y.0", "y.1"]
    for mine, wanted in zip(outputs.values(), x, strict=True):
        np.testing.assert_array_equal(mine, 2 * wanted)


def test_a_sequence_of_unknown_length_is_refused_with_what_to_give() -> None:
    with pytest.raises(UnsupportedError, match="a sequence of unknown length") as caught:
        load_graph(sequence_model())
    assert "shapes={'s': [(...), ...]}" in str(caught.value)
    with pytest.raises(InputError, match="of another kind"):
        load_graph(sequence_model(), shapes={"s": (2, 3)})
    with pytest.raises(InputError, match="of another kind"):
        load_graph(model([node("Relu", "x")], {"x": f32(2)}), shapes={"x": [(2,)]})
    with pytest.raises(InputError, match="not a shape"):
        superkernel.compile(sequence_model(), shapes={"s": [(2,), (-3,)]})


@pytest.mark.parametrize("op", ["SequenceAt", "SequenceErase"])
def test_positions_beyond_the_ends(op: str) -> None:
    nodes = [node("SplitToSequence", "x", "parts"), node(op, "parts p")]
    with pytest.raises(FileFormatError, match="position out of range"):
        load_graph(model(nodes, {"x": f32(2, 2)}, constants={"p": np.int64(2)}))


def test_a_tensor_where_a_sequence_belongs_and_the_other_way_round() -> None:
    with pytest.raises(FileFormatError, match="a sequence of tensors is expected"):
        load_graph(model([node("SequenceLength", "x")], {"x": f32(2)}))
    nodes = [node("SplitToSequence", "x", "parts"), node("Relu", "parts")]
    with pytest.raises(FileFormatError, match="a sequence where a tensor is expected"):
        load_graph(model(nodes, {"x": f32(2)}))


def test_optionals_are_known() -> None:
    nodes = [
        node("Optional", "x", "held"),
        node("OptionalHasElement", "held", "there"),
        node("OptionalGetElement", "held", "y"),
    ]
    graph = load_graph(model(nodes, {"x": f32(2)}, ["y", "there"], opset=18))
    assert evaluate(graph, {"x": f32(2)})["there"]
    empty = node("Optional", "", "held", type=helper.make_tensor_type_proto(FLOAT, [2]))
    with pytest.raises(FileFormatError, match="the optional is empty"):
        load_graph(model([empty, nodes[2]], {"x": f32(2)}, opset=18))
