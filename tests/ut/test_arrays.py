"""Constant data: what is refused, what is converted, and that nobody changes it behind a graph's back."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import networkx as nx
import numpy as np
import pytest

import superkernel
from superkernel.builder import GraphBuilder
from superkernel.core import arrays
from superkernel.core.arrays import constant_array
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, InputError
from superkernel.core.tensor import TensorType
from superkernel.frontends.networkx_form import from_networkx
from superkernel.ir.graph import Graph, Node
from superkernel.reference import evaluate
from superkernel.transforms import simplify


class Sparse:
    """Stands for a matrix of scipy.sparse."""

    def toarray(self) -> np.ndarray[Any, Any]:
        return np.eye(2)


class Remote:
    """An array that is not in memory."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        raise TypeError("can't convert device tensor")


LOSES = {
    "masked": (np.ma.masked_array([1.0, 2.0], [False, True]), "a masked array"),
    "sparse": (Sparse(), "call .toarray()"),
    "complex": (np.array([1 + 2j]), "real and imaginary"),
    "fields": (np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]), "each field"),
    "objects": (np.array([Fraction(1, 3)]), "numbers of one type"),
    "holes": ([1.0, None], "numbers of one type"),
    "text": (np.array(["1.5"]), "not supported"),
    "one text": ("1.5", "not supported"),
    "dates": (np.array([datetime.date(2020, 1, 1)], "M8[D]"), "difference"),
    "long floats": (np.array([1.0], np.longdouble), "float64"),
    "ragged": ([[1.0], [2.0, 3.0]], "cannot be read as an array"),
    "remote": (Remote(), "can't convert device tensor"),
    "large integer": (1 << 70, "does not fit"),
    "nothing": (None, "not an array of numbers"),
}


@pytest.mark.parametrize("name", LOSES)
def test_what_would_lose_something_is_refused(name: str) -> None:
    value, text = LOSES[name]
    for dtype in (None, "f32"):
        if name in ("long floats", "large integer") and dtype:  # rounding is what the type asks for
            continue
        for make in (GraphBuilder().constant, lambda v, d: GraphBuilder().state("s", v, d)):
            with pytest.raises(InputError) as caught:
                make(value, dtype)
            assert text in str(caught.value)
            assert str(caught.value).startswith(("constant", "state 's'"))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1.5], "i32"), ([300], "i8"), (-1, "u8"), ([np.nan], "i64"), (1e19, "i64"), (2, "bool"), ([-1], "u64")],
)
def test_numbers_that_do_not_fit(value: Any, dtype: str) -> None:
    for given in (value, np.asarray(value)):
        with pytest.raises(InputError, match="does not fit the element type"):
            GraphBuilder().constant(given, dtype)


def test_numbers_beside_a_tensor_must_fit() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "u8")
    with pytest.raises(InputError, match="does not fit"):
        x + 300
    with pytest.raises(InputError, match="does not fit"):
        x - (-1)


CONVERTED: dict[str, tuple[Any, str | None, Any]] = {
    "byte order": (np.array([1.5, -2], ">f4"), None, np.array([1.5, -2], np.float32)),
    "byte order of integers": (np.array([[1], [2]], ">i8"), None, np.array([[1], [2]])),
    "whole floats": ([1.0, -3.0], "i8", np.array([1, -3], np.int8)),
    "truth": ([1, 0], "bool", np.array([True, False])),
    "rounding": (0.1, "f16", np.float16(0.1)),
    "long floats": (np.array([0.5], np.longdouble), "f32", np.array([0.5], np.float32)),
    "narrow floats": (np.array([0.5], ml_dtypes.float8_e4m3fn), "bf16", np.array([0.5], ml_dtypes.bfloat16)),
    "nothing masked": (np.ma.masked_array([1.0]), None, np.array([1.0])),
    "columns first": (np.asfortranarray(np.arange(6.0).reshape(2, 3)), None, np.arange(6.0).reshape(2, 3)),
    "backwards": (np.arange(3)[::-1], None, np.array([2, 1, 0])),
    "unaligned": (np.frombuffer(b"\0" + np.arange(3.0).tobytes(), np.float64, offset=1), None, np.arange(3.0)),
    "scalar": (np.float32(2), None, np.float32(2)),
    "empty": (np.zeros((0, 3), np.int32), None, np.zeros((0, 3), np.int32)),
    "largest": (np.array([2**64 - 1], np.uint64), "u64", np.array([2**64 - 1], np.uint64)),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_keeps_its_value_is_converted(name: str) -> None:
    value, dtype, expected = CONVERTED[name]
    found = constant_array(value, None if dtype is None else DType.of(dtype))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert found.flags.aligned
    assert not found.flags.writeable


def _with_constant(array: Any, **options: Any) -> Graph:
    kind = TensorType(DType.F32, (4,))
    node = Node("y", "add", ("x", "w"), ("y",))
    return Graph.build(inputs={"x": kind}, constants={"w": array}, nodes=[node], outputs=["y"], **options)


def test_a_graph_names_the_constants_it_refuses() -> None:
    with pytest.raises(GraphError) as caught:
        Graph.build(
            inputs={},
            constants={"a": LOSES["masked"][0], "b": np.array([1j])},
            states={"s": ["x"]},
            nodes=[],
            outputs=["a"],
        )
    assert [v.location for v in caught.value.violations] == ["constant 'a'", "constant 'b'", "state 's'"]


def test_big_endian_constants_of_a_graph_are_read_as_what_they_are() -> None:
    graph = _with_constant(np.array([1, 2, 3, 4], ">f4"))
    x = np.zeros(4, np.float32)
    assert np.array_equal(superkernel.compile(graph, threads=1)(x), [1, 2, 3, 4])


def _networkx(array: Any) -> Graph:
    g: nx.DiGraph[str] = nx.DiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(4,))
    g.add_node("w", op="constant", value=array)
    g.add_node("y", op="add")
    g.add_edge("x", "y", input_index=0)
    g.add_edge("w", "y", input_index=1)
    return from_networkx(g)


def _built(array: Any) -> Graph:
    b = GraphBuilder()
    b.output(b.input("x", (4,)) + b.constant(array, name="w"), name="y")
    return b.graph()


@pytest.mark.parametrize("make", [_with_constant, _networkx, _built])
def test_writing_to_an_array_does_not_change_the_graph(make: Callable[[Any], Graph]) -> None:
    array = np.arange(4, dtype=np.float32)
    graph = make(array)
    kernel = superkernel.compile(graph, threads=1)
    x = np.zeros(4, np.float32)
    array += 100
    assert np.array_equal(evaluate(graph, {"x": x})["y"], [0, 1, 2, 3])
    assert np.array_equal(kernel(x), [0, 1, 2, 3])
    assert np.array_equal(superkernel.compile(graph, threads=1)(x), [0, 1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        graph.constants["w"][0] = 1


def test_a_view_of_memory_that_can_be_written_to_is_copied() -> None:
    array = np.arange(8, dtype=np.float32)
    view = array[:4]
    view.flags.writeable = False
    graph = _with_constant(view)
    array[:] = 7
    assert np.array_equal(graph.constants["w"], [0, 1, 2, 3])


def test_memory_that_nobody_writes_to_is_not_copied(tmp_path: Path) -> None:
    frozen = np.arange(4, dtype=np.float32)
    frozen.flags.writeable = False
    raw = np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), np.float32)
    np.save(tmp_path / "w.npy", frozen)
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    for array in (frozen, raw, mapped):
        for make in (_with_constant, _networkx, _built):
            assert np.shares_memory(make(array).constants["w"], array)
    own = np.arange(4, dtype=np.float32)
    assert np.shares_memory(_with_constant(own, copy=False).constants["w"], own)
    assert own.flags.writeable


def test_large_graphs_are_not_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "COPIED_BYTES_MAX", 40)
    monkeypatch.setattr(arrays, "SMALL_BYTES_MAX", 15)
    few, view, foreign = np.arange(4, dtype=np.float32), np.arange(8, dtype=np.float32), bytearray(16)
    small = np.arange(3, dtype=np.float32)
    given = {"few": few, "view": view[:4], "foreign": np.frombuffer(foreign, np.float32), "small": small}

    def build(**options: Any) -> Graph:
        return Graph.build(inputs={}, constants=given, nodes=[], outputs=["few"], **options)

    assert not any(np.shares_memory(a, given[name]) for name, a in build(copy=True).constants.items())
    graph = build()
    shared = {name for name, a in graph.constants.items() if np.shares_memory(a, given[name])}
    assert shared == {"few", "view"}
    for array in (few, view, view[:4]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    small[0] = foreign[0] = 1
    assert (graph.constants["small"][0], graph.constants["foreign"][0]) == (0, 0)


def test_passes_keep_the_arrays_that_they_do_not_change() -> None:
    """Plans in the cache refer to a graph's own arrays by identity instead of holding them."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    b = GraphBuilder()
    x = b.input("x", (4, 64))
    y = b.identity(x) @ b.constant(weight, name="w")
    b.output(b.relu(b.identity(y)))
    graph = b.graph()
    simplified = simplify(graph)
    assert len(simplified.nodes) < len(graph.nodes)
    assert simplified.constants["w"] is graph.constants["w"]


def test_nothing_is_remembered_of_an_array_that_is_gone() -> None:
    """Ctrl-C may come while it is forgotten; another array may then lie at its address."""
    gone = np.arange(3)
    dead = weakref.ref(gone)
    del gone
    array = np.frombuffer(b"12345678", np.uint8)
    for kept, asked in ((arrays._digests, arrays.contents_digest), (arrays._samples, arrays.samples)):
        want = asked(array.copy())
        kept[id(array)] = dead, b"another's"
        assert asked(array) == want
        assert kept[id(array)][0]() is array
