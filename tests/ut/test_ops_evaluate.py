"""The reference evaluator: what it returns, when it rounds, what it refuses, and that real sizes are usable."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from superkernel import reference
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, InputError, InternalError
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.table import op_table
from superkernel.reference import apply, evaluate, run_reference


def chain(dtype: DType = DType.F32) -> Graph:
    """y = sqrt(x) * sqrt(x), z = y - x."""
    nodes = [
        Node("r", "sqrt", ("x",), ("r",)),
        Node("y", "mul", ("r", "r"), ("y",)),
        Node("z", "sub", ("y", "x"), ("z",)),
    ]
    return Graph.build(inputs={"x": TensorType(dtype, (3,))}, nodes=nodes, outputs=["z"])


def counter() -> Graph:
    """A state that adds its input up; the output is the state before the run."""
    nodes = [Node("n", "add", ("s", "x"), ("n",)), Node("o", "identity", ("s",), ("o",))]
    kind = TensorType(DType.F32, (2,))
    states = {"s": np.zeros(2, np.float32)}
    return Graph.build(inputs={"x": kind}, nodes=nodes, outputs=["o"], states=states, updates={"s": "n"})


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16])
def test_every_node_rounds_to_its_type(dtype: DType) -> None:
    x = np.array([2.0, 3.0, 5.0]).astype(dtype.numpy)
    found = evaluate(chain(dtype), {"x": x}, keep=["r", "y"])
    root = np.sqrt(x.astype(np.float64)).astype(dtype.numpy)
    square = (root.astype(np.float64) ** 2).astype(dtype.numpy)
    assert found["r"].dtype == found["y"].dtype == dtype.numpy
    np.testing.assert_array_equal(found["r"], root)
    np.testing.assert_array_equal(found["y"], square)
    np.testing.assert_array_equal(found["z"], (square.astype(np.float64) - x.astype(np.float64)).astype(dtype.numpy))
    assert list(found) == ["z", "r", "y"]


def test_wide_does_not_round() -> None:
    x = np.array([2.0, 3.0, 5.0], ml_dtypes.bfloat16)
    found = evaluate(chain(DType.BF16), {"x": x}, wide=True)
    assert found["z"].dtype == np.float64
    assert np.abs(found["z"]).max() < 1e-15
    assert np.abs(evaluate(chain(DType.BF16), {"x": x})["z"].astype(float)).max() > 1e-3


def test_wide_keeps_integers_and_bools() -> None:
    nodes = [
        Node("q", "quantize", ("x", "s"), ("q",)),
        Node("b", "less", ("x", "s"), ("b",)),
        Node("c", "cast", ("q",), ("c",), {"dtype": "f16"}),
    ]
    kind = TensorType(DType.F32, (2,))
    constants = {"s": np.float32(0.5)}
    graph = Graph.build(inputs={"x": kind}, nodes=nodes, outputs=["q", "b", "c"], constants=constants)
    found = evaluate(graph, {"x": np.array([1.3, 0.2])}, wide=True)
    assert found["q"].dtype == np.uint8
    assert found["q"].tolist() == [3, 0]
    assert found["b"].tolist() == [False, True]
    assert found["c"].dtype == np.float64


def test_states_come_back_and_nothing_is_changed() -> None:
    graph, x = counter(), np.array([1.0, 2.0], np.float32)
    first = evaluate(graph, {"x": x})
    assert first["o"].tolist() == [0.0, 0.0]
    assert first.states["s"].tolist() == [1.0, 2.0]
    second = evaluate(graph, {"x": x}, first.states)
    assert second["o"].tolist() == [1.0, 2.0]
    assert second.states["s"].tolist() == [2.0, 4.0]
    assert first.states["s"].tolist() == [1.0, 2.0]
    assert not graph.states["s"].any()
    second["o"][:] = 9
    assert first.states["s"].tolist() == [1.0, 2.0]


def test_results_are_arrays_of_their_own() -> None:
    kind = TensorType(DType.F32, (2, 3))
    nodes = [Node("v", "slice", ("x",), ("v",), {"starts": (0,), "ends": (1,)})]
    graph = Graph.build(inputs={"x": kind}, nodes=nodes, outputs=["v", "x"])
    x = np.ones((2, 3), np.float32)
    found = evaluate(graph, {"x": x})
    found["v"][:] = 5
    found["x"][:] = 6
    assert (x == 1).all()


def test_python_numbers_take_the_declared_type() -> None:
    assert evaluate(chain(), {"x": [1, 4, 9]})["z"].dtype == np.float32


def test_all_wrong_inputs_are_reported() -> None:
    with pytest.raises(InputError) as caught:
        evaluate(chain(), {"w": np.zeros(3)}, {"s": np.zeros(1)}, keep=["q"])
    text = str(caught.value)
    for words in ("input 'x': missing", "input 'w': unknown", "state 's': unknown", "no value is called 'q'"):
        assert words in text
    with pytest.raises(InputError, match=r"input 'x': wrong type; expected f32\[3\]; found float64\[3\]"):
        evaluate(chain(), {"x": np.zeros(3)})
    with pytest.raises(InputError, match="wrong type"):
        evaluate(chain(), {"x": np.zeros(4, np.float32)})
    with pytest.raises(InputError, match="state 's': wrong type"):
        evaluate(counter(), {"x": np.zeros(2, np.float32)}, {"s": np.zeros(3, np.float32)})


def test_apply_checks_like_a_node() -> None:
    assert apply("add", [np.ones(2), np.ones(2)])[0].tolist() == [2.0, 2.0]
    with pytest.raises(GraphError, match="did you mean softmax"):
        apply("sotfmax", [np.ones(2)])
    with pytest.raises(GraphError, match="wrong number of inputs"):
        apply("add", [np.ones(2)])


def test_a_reference_that_contradicts_its_row_is_an_internal_error() -> None:
    row = op_table()["relu"]
    with pytest.raises(InternalError, match="contradicts the declared type"):
        run_reference(row, [np.ones(3)], {}, (TensorType(DType.F64, (4,)),))


def test_the_reference_imports_no_kernel() -> None:
    folder = Path(reference.__file__).parent
    paths = [*folder.glob("*.py"), *(folder.parent / "ops").glob("*.py")]
    assert len(paths) > 20
    for path in paths:
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in statement.names] if isinstance(statement, ast.Import) else []
            names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
            banned = ("codegen", "scheduler", "sync", "backends", "_core", "llvmlite", "kernel", "registry")
            for name in names:
                assert not any(part in banned for part in name.split(".")), f"{path.name} imports {name}"


def test_real_sizes_take_seconds() -> None:
    """A ResNet-50 stage and a MiniLM layer, each a fraction of a second on an idle core."""
    rng = np.random.default_rng(0)
    image, kernel = rng.normal(size=(1, 128, 28, 28)), rng.normal(size=(128, 128, 3, 3))
    rows, weight = rng.normal(size=(128, 384)), rng.normal(size=(384, 1536))
    start = time.process_time()
    assert apply("conv", [image, kernel], {"pads": (1, 1, 1, 1)})[0].shape == image.shape
    depthwise = apply("conv", [image, kernel[:, :1]], {"pads": (1, 1, 1, 1), "groups": 128})[0]
    assert depthwise.shape == image.shape
    hidden = apply("gelu", apply("matmul", [rows, weight]))[0]
    assert apply("matmul", [hidden, weight.T])[0].shape == rows.shape
    heads = [rng.normal(size=(1, 12, 128, 32)) for _ in range(3)]
    assert apply("attention", heads)[0].shape == (1, 12, 128, 32)
    assert time.process_time() - start < 20.0
