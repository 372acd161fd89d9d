"""GraphBuilder: handles, arithmetic, indexing, names, errors at the call, and the generated methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superkernel.builder import GraphBuilder
from superkernel.builder.generate import TARGET, source
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, InputError, SuperKernelError, UnsupportedError
from superkernel.ir.graph import Graph, KernelType
from superkernel.ops.table import op_table
from superkernel.reference import evaluate


def test_generated_methods_are_current() -> None:
    assert TARGET.read_text() == source(), "run `python -m superkernel.builder.generate`"


def test_every_operator_has_a_method() -> None:
    for name in op_table():
        assert callable(getattr(GraphBuilder, name)), name


def test_attributes_by_place_as_in_numpy() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (2, 8), "f32")
    assert b.reshape(x, (4, 4)).shape == (4, 4)
    assert b.transpose(x, (1, 0)).shape == (8, 2)
    assert b.softmax(x, 0).shape == (2, 8)
    with pytest.raises(TypeError):
        b.trilu(x, True, 1)  # type: ignore[call-arg]  # of the attributes that may be left out, the first alone


def test_example_of_the_readme() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((6, 4), np.float32), rng.standard_normal(4, np.float32)
    b = GraphBuilder("net")
    x = b.input("x", (1, 6), "f32")
    w = b.constant(weight, name="w")
    y = b.matmul(x, w)
    assert (y.shape, y.dtype) == ((1, 4), DType.F32)
    b.output(b.relu(y + bias), name="y")
    graph = b.graph()
    data = rng.standard_normal((1, 6), np.float32)
    np.testing.assert_allclose(evaluate(graph, {"x": data})["y"], np.maximum(data @ weight + bias, 0), rtol=1e-6)
    assert graph.outputs == ("y",)
    assert str(b.graph()) == str(graph), "a second graph() gives the same graph"


ARITHMETIC = {
    "add": (lambda x: x + 2.0, lambda x: x + 2),
    "radd": (lambda x: 2 + x, lambda x: 2 + x),
    "sub": (lambda x: x - 0.5, lambda x: x - 0.5),
    "rsub": (lambda x: 1.5 - x, lambda x: 1.5 - x),
    "mul": (lambda x: x * x, lambda x: x * x),
    "rdiv": (lambda x: 1 / (x + 9), lambda x: 1 / (x + 9)),
    "pow": (lambda x: x**2, lambda x: x**2),
    "neg": (lambda x: -x, lambda x: -x),
    "abs": (lambda x: abs(x), np.abs),
    "matmul": (lambda x: x @ x.T, lambda x: x @ np.swapaxes(x, -1, -2)),
    "array on the left": (lambda x: np.ones((3, 4), np.float32) - x, lambda x: 1 - x),
    "less": (lambda x: x < 0, lambda x: x < 0),
    "logic": (lambda x: (x < 0) | ~(x < 1), lambda x: (x < 0) | ~(x < 1)),
    "equal": (lambda x: x.equal(x), lambda x: x == x),
    "cast": (lambda x: (x * 10).astype("i32"), lambda x: (x * 10).astype(np.int32)),
    "sum": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "mean": (lambda x: x.mean(0, keepdims=True), lambda x: x.mean(0, keepdims=True)),
    "max": (lambda x: x.max(), lambda x: x.max()),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    build, expected = ARITHMETIC[name]
    b = GraphBuilder()
    b.output(build(b.input("x", (2, 3, 4))), name="y")
    data = np.random.default_rng(1).standard_normal((2, 3, 4), np.float32)
    result, wanted = evaluate(b.graph(), {"x": data})["y"], np.asarray(expected(data))  # type: ignore[operator]
    assert result.shape == wanted.shape
    assert (result.dtype == bool) == (wanted.dtype == bool)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


INDICES = [
    np.s_[0],
    np.s_[-1],
    np.s_[1:],
    np.s_[:, ::2],
    np.s_[..., ::-1],
    np.s_[..., 2:0:-1],
    np.s_[0, ..., None],
    np.s_[None, :, 1],
    np.s_[:, -3:-1, 3],
    np.s_[...],
    np.s_[1:1],
    np.s_[:, :, ::-3],
    np.s_[-9:9, 5:0:-2],
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_basic_indexing_is_numpys(index: Any) -> None:
    data = np.arange(2 * 6 * 5, dtype=np.float32).reshape(2, 6, 5)
    b = GraphBuilder()
    y = b.input("x", data.shape)[index]
    assert y.shape == data[index].shape
    b.output(y, name="y")
    np.testing.assert_array_equal(evaluate(b.graph(), {"x": data})["y"], data[index])


def test_index_tensor_gathers() -> None:
    b = GraphBuilder()
    y = b.input("x", (4, 3))[b.constant([2, 0])]
    assert y.shape == (2, 3)


@pytest.mark.parametrize("index", [5, -6, (0, 0, 0, 0), (..., ...)])
def test_bad_index(index: object) -> None:
    x = GraphBuilder().input("x", (5, 6, 5))
    with pytest.raises(GraphError):
        x[index]


def test_a_mask_as_an_index() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,), "f32")
    with pytest.raises(UnsupportedError, match=r"how many elements it takes is data .*b\.nonzero"):
        x[b.greater(x, 0.5)]


def test_index_of_another_kind() -> None:
    x = GraphBuilder().input("x", (5,))
    with pytest.raises(InputError, match="not an index"):
        x["a"]


def test_errors_name_the_node_and_leave_no_trace() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    with pytest.raises(GraphError, match=r"node 'bad' \(add\)") as caught:
        b.add(x, np.zeros((4, 5), np.float32), name="bad")
    assert "[2, 3] and [4, 5]" in str(caught.value)
    b.output(b.relu(x, name="bad"))  # the name is free again
    assert b.graph().outputs == ("bad",)


def test_unknown_operator_is_suggested() -> None:
    b = GraphBuilder()
    with pytest.raises(GraphError, match="did you mean") as caught:
        b.apply("reluu", (b.input("x", (1,)),))
    assert "relu" in str(caught.value)


def test_names() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,))
    with pytest.raises(GraphError, match="is taken"):
        b.input("x", (2,))
    first, second = b.relu(x), b.relu(x)
    assert first.name != second.name
    named = b.neg(x, name="relu_2")
    third = b.relu(x)
    assert third.name not in {first.name, second.name, named.name}
    renamed = b.output(first, name="out")
    assert renamed.name == first.name == "out"
    copied = b.output(named, name="copy")
    assert named.name == "relu_2"
    assert b.graph().producers[copied.name].op == "identity"


def test_output_twice_is_refused() -> None:
    b = GraphBuilder()
    y = b.output(b.relu(b.input("x", (2,))))
    with pytest.raises(GraphError, match="already is an output"):
        b.output(y)


def test_scalar_takes_the_other_operands_type() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,), "f16")
    assert (x + 1).dtype is DType.F16
    n = b.input("n", (2,), "i32")
    assert (n * 2).dtype is DType.I32
    with pytest.raises(InputError, match="does not fit"):
        n * 0.5
    condition = b.input("c", (2,), "bool")
    assert b.where(condition, x, 0.0).dtype is DType.F16


def test_foreign_tensor_is_refused() -> None:
    x = GraphBuilder("one").input("x", (2,))
    with pytest.raises(InputError, match="another builder"):
        GraphBuilder("two").relu(x)


def test_tensor_has_no_truth() -> None:
    x = GraphBuilder().input("x", (2,))
    with pytest.raises(InputError, match="truth"):
        bool(x < 1)


def test_tensor_has_rows() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    first, second = x
    b.output(first - second, name="y")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(evaluate(b.graph(), {"x": array})["y"], array[0] - array[1])
    with pytest.raises(InputError, match="no length"):
        iter(b.constant(1.0))


def test_tensors_in_a_list_are_refused() -> None:
    """With a hint at what was meant, and without a node for each row that was looked at."""
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    for call in (
        lambda: b.concat([x, x], axis=0),  # type: ignore[arg-type]
        lambda: b.matmul([[x]], x),  # type: ignore[arg-type]
        lambda: b.constant(x),
        lambda: np.asarray(x),
    ):
        with pytest.raises(InputError, match="not constant data"):
            call()
    with pytest.raises(InputError, match="one by one"):
        b.concat((x, x), axis=0)  # type: ignore[arg-type]
    b.output(b.relu(x), name="y")
    assert len(b.graph().nodes) == 1


def test_state_and_update() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))
    total = b.state("total", np.zeros(3, np.float32))
    new = total + x
    b.update(total, new)
    with pytest.raises(GraphError, match="already has an update"):
        b.update(total, new)
    with pytest.raises(GraphError, match="only a state"):
        b.update(x, new)
    b.output(new, name="sum")
    graph = b.graph()
    assert graph.updates == {"total": "sum"}
    other = b.state("other", np.zeros(2, np.float32))
    with pytest.raises(GraphError, match="another type"):
        b.update(other, new)


def test_scope_stream_and_kernel_type() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,))
    with b.scope("layer0"), b.scope("ffn"), b.stream(3), b.kernel_type("AIV_ONLY"):
        y = b.relu(x)
    b.output(b.neg(y))
    first, second = b.graph().nodes
    assert (first.scope, first.stream, first.kernel_type) == ("layer0/ffn", 3, KernelType.AIV_ONLY)
    assert (second.scope, second.stream, second.kernel_type) == (None, None, None)
    assert first.name.startswith("layer0/ffn/relu")


@pytest.mark.parametrize("name", [1.5, True, None, [1]])
def test_a_stream_is_a_number_or_a_text(name: Any) -> None:
    with pytest.raises(GraphError, match="stream must be an integer or a text"), GraphBuilder("g").stream(name):
        pass


@pytest.mark.parametrize("name", [5, None, ["a"]])
def test_a_scope_is_a_text(name: Any) -> None:
    with pytest.raises(GraphError, match="scope must be a text"), GraphBuilder("g").scope(name):
        pass


def test_several_outputs() -> None:
    b = GraphBuilder()
    left, right = b.split(b.input("x", (2, 5)), axis=1, sizes=(2, 3), name="cut")
    assert (left.shape, right.shape, left.name, right.name) == ((2, 2), (2, 3), "cut:0", "cut:1")
    b.output(left, name="l")  # names given by the operator's own name stay; the output is a copy
    b.output(right)
    assert b.graph().outputs == ("l", "cut:1")


@pytest.mark.parametrize("shape", [(-1,), (1.5,), ("n",)])
def test_bad_input_shape(shape: Any) -> None:
    with pytest.raises(SuperKernelError, match="not a size"):
        GraphBuilder().input("x", shape)


def test_unused_own_constants_are_dropped_and_named_ones_kept() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,))
    b.constant(np.ones(2, np.float32))
    b.constant(np.ones(2, np.float32), name="kept")
    b.output(b.relu(x))
    assert list(b.graph().constants) == ["kept"]


def test_types_are_those_that_a_graph_infers_by_itself() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (4, 6), "f16")
    b.rename(halves := b.split(b.cast(x, "f32"), sizes=(2, 4), axis=1)[1], "wide")
    b.output(b.reduce_max(halves @ b.constant(np.ones((4, 3), np.float32)), axes=(-1,)), name="y")
    made = b.graph()
    parts = {name: getattr(made, name) for name in ("name", "inputs", "constants", "outputs")}
    assert made == Graph.build(nodes=made.nodes, copy=False, **parts)


def test_a_value_that_no_process_holds_is_refused() -> None:
    b = GraphBuilder("net")
    b.output(b.expand(b.input("x", (1, 1)), shape=(1 << 24, 1 << 24)), name="y")
    with pytest.raises(GraphError, match="too large to be addressed"):
        b.graph()
