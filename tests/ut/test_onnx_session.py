"""ONNX models as bytes, as sessions like ONNX Runtime's, and behind the standard's interface of backends."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superkernel as sk
from superkernel.adaptors import kept, onnx_backend
from superkernel.adaptors import session as session_module
from superkernel.core.errors import FileFormatError, GraphError, InputError, UnsupportedError


def model(rows: int | str = 2, columns: int = 3) -> onnx.ModelProto:
    """y/out = relu(x:0 + w), z = x:0 * w."""
    x = helper.make_tensor_value_info("x:0", TensorProto.FLOAT, [rows, columns])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, columns]) for n in ("y/out", "z")]
    weight = onnx.numpy_helper.from_array(np.arange(columns, dtype=np.float32) - 1, "w")
    nodes = [
        helper.make_node("Add", ["x:0", "w"], ["s"]),
        helper.make_node("Relu", ["s"], ["y/out"]),
        helper.make_node("Mul", ["x:0", "w"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "small", [x], outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def wanted(x: Any) -> tuple[Any, Any]:
    w = np.arange(x.shape[1], dtype=np.float32) - 1
    return np.maximum(x + w, 0), x * w


def given(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_bytes_are_a_model() -> None:
    data, x = model().SerializeToString(), given(2, 3)
    for found, want in zip(sk.compile(data, threads=1)(x), wanted(x), strict=True):
        np.testing.assert_array_equal(found, want)
    many = sk.compile_dynamic(model("n").SerializeToString(), {"n": (1, 9)}, threads=1)
    np.testing.assert_array_equal(many(given(5, 3))[0], wanted(given(5, 3))[0])
    with pytest.raises(FileFormatError, match="not a readable ONNX model"):
        sk.compile(b"no model at all")


def test_a_session_runs_by_name(tmp_path: Path) -> None:
    path, x = tmp_path / "small.onnx", given(2, 3)
    onnx.save(model(), str(path))
    y, z = wanted(x)
    for source in (path, str(path), model().SerializeToString(), model()):
        session = sk.InferenceSession(source, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        (entry,) = session.get_inputs()
        assert (entry.name, entry.type, entry.shape) == ("x:0", "tensor(float)", [2, 3])
        assert [o.name for o in session.get_outputs()] == ["y/out", "z"]
        assert session.get_providers() == ["CPUExecutionProvider"]
        for found, want in zip(session.run(None, {"x:0": x}), (y, z), strict=True):
            np.testing.assert_array_equal(found, want)
        (only,) = session.run(["z"], {"x:0": x})
        np.testing.assert_array_equal(only, z)


def test_a_session_takes_the_shapes_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KERNELS_MAX", 2)
    session = sk.InferenceSession(model("rows"), SimpleNamespace(intra_op_num_threads=1), options={"precision": "f32"})
    assert session.get_inputs()[0].shape == ["rows", 3]
    for rows in (1, 4, 1, 7, 4):
        x = given(rows, 3)
        for found, want in zip(session.run(None, {"x:0": x}), wanted(x), strict=True):
            np.testing.assert_array_equal(found, want)
    assert len(session._kernels._items) == 2


def test_what_code_for_onnx_runtime_does() -> None:
    x = given(2, 3)
    session = sk.InferenceSession(path_or_bytes=model().SerializeToString(), providers="CPUExecutionProvider")
    for found, want in zip(session.run([], {"x:0": x}), wanted(x), strict=True):
        np.testing.assert_array_equal(found, want)


def relu(source: onnx.ValueInfoProto, result: onnx.ValueInfoProto, op: str = "Relu", count: int = 1) -> Any:
    node = helper.make_node(op, ["x"] * count, ["y"])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(helper.make_graph([node], "g", [source], [result]), opset_imports=opsets, ir_version=9)


def test_inputs_without_a_shape() -> None:
    session = sk.InferenceSession(relu(*(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy")))
    (entry,) = session.get_inputs()
    assert (entry.shape, entry.has_shape, entry.type) == ([], False, "tensor(float)")
    for x in (given(2, 3), given(4), given()):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
    with pytest.raises(InputError, match="not an array"):
        session.run(None, {"x": [[1.0], [2.0, 3.0]]})


def reshaped() -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "g", [x, shape], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_inputs_that_decide_shapes() -> None:
    session, x = sk.InferenceSession(reshaped()), given(2, 3)
    with pytest.raises(InputError, match="not an array"):
        session.run(None, {"x": x, "shape": [[3.0], [2.0, 1.0]]})
    for wanted_shape in ([3, 2], [6, 1], [3, 2], [-1, 3]):
        (found,) = session.run(None, {"x": x, "shape": np.array(wanted_shape)})
        np.testing.assert_array_equal(found, x.reshape(wanted_shape))
    assert len(session._kernels._items) == 3
    rep = onnx_backend.prepare(reshaped())
    np.testing.assert_array_equal(rep.run([x, np.array([1, 6])])[0], x.reshape(1, 6))
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    np.testing.assert_allclose(onnx_backend.run_node(node, [x, np.array([1])])[0], x.sum(axis=1), rtol=1e-6)
    refused: tuple[tuple[Any, str], ...] = (
        (np.array([4, 2]), "another number of elements"),
        ([[3.0], [2.0, 1.0]], "not an array"),
        (np.array([3.0, 2.0]), "another element type"),
        (np.array([1, 2, 3]), "wrong shape"),
    )
    for value, said in refused:
        with pytest.raises((GraphError, InputError), match=said):
            session.run(None, {"x": x, "shape": value})


def test_large_inputs_do_not_decide_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "DECIDING_MAX", 1)
    with pytest.raises(UnsupportedError, match="must be known at compile time"):
        sk.InferenceSession(reshaped())


def test_several_threads_run_a_session() -> None:
    session, x, wrong = sk.InferenceSession(reshaped()), given(2, 3), []

    def work(shape: list[int]) -> None:
        for _ in range(5):
            (found,) = session.run(None, {"x": x, "shape": np.array(shape)})
            if not np.array_equal(found, x.reshape(shape)):
                wrong.append(shape)

    threads = [threading.Thread(target=work, args=([n, 6 // n],)) for n in (1, 2, 3, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(session._kernels._items) == 4


def test_sequences_are_lists() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    elements = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    pair = sk.InferenceSession(relu(x, helper.make_value_info("y", elements), "SequenceConstruct", 2))
    assert pair.get_outputs()[0].type == "seq(tensor(float))"
    ((first, second),) = pair.run(None, {"x": given(2, 3)})
    np.testing.assert_array_equal(first, given(2, 3))
    np.testing.assert_array_equal(second, given(2, 3))
    listed = helper.make_value_info("x", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, ["n", 3])))
    extent = helper.make_tensor_value_info("n", TensorProto.FLOAT, ["n"])
    joined = relu(listed, helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 3]), "ConcatFromSequence")
    joined.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    joined.graph.input.append(extent)
    (whole,) = sk.InferenceSession(joined).run(None, {"x": [given(2, 3), given(1, 3)], "n": given(2)})
    np.testing.assert_array_equal(whole, np.concatenate([given(2, 3), given(1, 3)]))
    whether = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    value = helper.make_value_info("x", whether)
    asked = relu(value, helper.make_tensor_value_info("y", TensorProto.BOOL, []), "OptionalHasElement")
    assert sk.InferenceSession(asked).get_inputs()[0].type == "optional(tensor(float))"


def test_a_session_is_of_the_model_as_it_was() -> None:
    x, changed = given(4, 3), model("rows")
    session = sk.InferenceSession(changed)
    dynamic = sk.compile_dynamic(changed, {"rows": (1, 8)}, threads=1)
    changed.graph.node[1].op_type = "Neg"
    np.testing.assert_array_equal(session.run(["y/out"], {"x:0": x})[0], wanted(x)[0])
    np.testing.assert_array_equal(dynamic(x)[0], wanted(x)[0])


@pytest.mark.parametrize("rows", [2, "rows"])
def test_sessions_are_copied_and_pickled(rows: int | str) -> None:
    x, session = given(2, 3), sk.InferenceSession(model(rows), SimpleNamespace(intra_op_num_threads=1))
    for other in (copy.deepcopy(session), pickle.loads(pickle.dumps(session))):
        assert other is not session
        np.testing.assert_array_equal(other.run(None, {"x:0": x})[0], wanted(x)[0])


def test_what_a_session_refuses() -> None:
    for providers in (3, object(), [()], [("CUDAExecutionProvider", {})]):
        with pytest.raises(InputError, match="no provider that is here"):
            sk.InferenceSession(model(), providers=providers)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no provider that is here"):
        sk.InferenceSession(model(), providers=["CUDAExecutionProvider"])
    with pytest.raises(InputError, match="not an ONNX model"):
        sk.InferenceSession(3)
    node = helper.make_node("Unknown", ["x"], ["y"], domain="elsewhere")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    unknown = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=9)
    with pytest.raises(UnsupportedError, match="Unknown"):
        sk.InferenceSession(unknown)
    session = sk.InferenceSession(model("rows"))
    refused: tuple[tuple[Any, Any, str], ...] = (
        (["w"], {"x:0": given(2, 3)}, "no output 'w'"),
        (None, {"x": given(2, 3)}, "no input 'x'"),
        (None, {}, "missing"),
        (None, {"x:0": given(2, 4)}, "wrong shape"),
        (None, {"x:0": given(3)}, "wrong shape"),
        (None, {"x:0": given(2, 3).astype(np.float64)}, "wrong element type"),
        (None, [given(2, 3)], "not what a session runs"),
        (None, None, "not what a session runs"),
        ("z", {"x:0": given(2, 3)}, "not what a session runs"),
        (3, {"x:0": given(2, 3)}, "not what a session runs"),
    )
    for names, feed, said in refused:
        with pytest.raises(InputError, match=said):
            session.run(names, feed)


def test_the_interface_of_backends() -> None:
    x = given(2, 3)
    rep = onnx_backend.prepare(model(), "CPU:0", precision="f32")
    for inputs in ([x], {"x:0": x}, x):
        for found, want in zip(rep.run(inputs), wanted(x), strict=True):
            np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(onnx_backend.run_model(model("n"), [x])[1], wanted(x)[1])
    node = helper.make_node("Gemm", ["a", "b"], ["c"], alpha=2.0)
    a, b = given(2, 4), given(4, 3)
    np.testing.assert_allclose(onnx_backend.run_node(node, [a, b])[0], 2 * (a @ b), rtol=1e-5, atol=1e-5)
    twice = helper.make_node("Add", ["a", "a"], ["c"])
    np.testing.assert_array_equal(onnx_backend.run_node(twice, [a, a])[0], 2 * a)
    np.testing.assert_array_equal(onnx_backend.run_node(twice, [a.astype(">f4")] * 2)[0], 2 * a)
    with pytest.raises(InputError, match=r"expected 2 \(a, b\); found 1"):
        onnx_backend.run_node(node, [a])
    with pytest.raises(InputError, match="expected a sequence of arrays; found int"):
        onnx_backend.run_node(node, 3)  # type: ignore[arg-type]
    for call in (onnx_backend.prepare, lambda wrong: onnx_backend.run_node(wrong, [a])):
        with pytest.raises(InputError, match=r"expected an onnx\.(Model|Node)Proto; found int"):
            call(3)  # type: ignore[arg-type]
    assert not onnx_backend.supports_device(None)  # type: ignore[arg-type]
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA")
    assert onnx_backend.is_compatible(model())
    with pytest.raises(InputError, match="no such device"):
        onnx_backend.prepare(model(), "CUDA")
    with pytest.raises(InputError, match="too many inputs"):
        rep.run([x, x])
    with pytest.raises(onnx.checker.ValidationError):
        onnx_backend.prepare(onnx.ModelProto())


def preset_model(rows: int | str = 2, ir_version: int = 8) -> onnx.ModelProto:
    """y = x + w, w an input with a value."""
    x, w, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [rows, 3]), ("w", [3]), ("y", [rows, 3]))
    )
    weight = onnx.numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "preset", [x, w], [y], [weight])
    made = helper.make_model(graph, producer_name="me", ir_version=ir_version)
    made.metadata_props.add(key="a", value="b")
    return made


@pytest.mark.parametrize("rows", [2, "rows"])
def test_a_call_overrides_initialisers_that_are_inputs(rows: int | str) -> None:
    session, x, other = sk.InferenceSession(preset_model(rows)), given(2, 3), np.array([10, 20, 30], np.float32)
    assert [v.name for v in session.get_inputs()] == ["x"]
    assert [(v.name, v.type, v.shape) for v in session.get_overridable_initializers()] == [("w", "tensor(float)", [3])]
    for weight in (None, other, None, -other):
        feed = {"x": x} if weight is None else {"x": x, "w": weight}
        want = x + (np.array([1, 2, 3], np.float32) if weight is None else weight)
        np.testing.assert_array_equal(session.run(None, feed)[0], want)
    assert len(session._kernels._items) == 2
    with pytest.raises(InputError, match="input 'w'"):
        session.run(None, {"x": x, "w": other.astype(np.float64)})
    old = sk.InferenceSession(preset_model(rows, ir_version=3))
    assert not old.get_overridable_initializers()
    with pytest.raises(InputError, match="no input 'w'"):
        old.run(None, {"x": x, "w": other})


def test_a_session_takes_options_of_providers_and_tells_of_its_model() -> None:
    session = sk.InferenceSession(preset_model(), None, ["CPUExecutionProvider"], [{"arena": "1"}])
    told = session.get_modelmeta()
    assert (told.producer_name, told.graph_name, told.custom_metadata_map) == ("me", "preset", {"a": "b"})


def test_a_session_takes_lists_for_sequences() -> None:
    s = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [None, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    graph = helper.make_graph([helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)], "list", [s], [y])
    session = sk.InferenceSession(helper.make_model(graph, ir_version=8))
    assert session.get_inputs()[0].type == "seq(tensor(float))"
    for rows in ((2, 1), (2, 1), (3,)):
        parts = [given(n, 3) for n in rows]
        np.testing.assert_array_equal(session.run(None, {"s": parts})[0], np.concatenate(parts))
    assert len(session._kernels._items) == 2
    with pytest.raises(InputError, match="not a list of arrays"):
        session.run(None, {"s": given(2, 3)})
