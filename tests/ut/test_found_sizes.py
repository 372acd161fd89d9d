"""Models whose data decides sizes: results against onnxruntime's, what is refused and why, and graphs that say so of
their own accord."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_models import f32, helper, model, node, onnxruntime

import superkernel as sk
from superkernel.analysis.bisection import bisect
from superkernel.analysis.crosscheck import _Checker as Checker
from superkernel.backends.aicore.kernel import AicoreKernel
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.frontends.json_form import load_json, save_json
from superkernel.frontends.networkx_form import from_networkx, to_networkx
from superkernel.ir.graph import Graph

Feed = dict[str, NDArray[Any]]
FLAT = [node("Reshape", "x minus", "flat"), node("Greater", "flat half", "c"), node("Compress", "flat c", "v")]
HEAD = [
    node("NonMaxSuppression", "boxes scores limit overlap least", "selected"),
    node("Gather", "selected two", "of", axis=1),
    node("Squeeze", "of one", "box"),
    node("Reshape", "boxes rows", "all"),
    node("Gather", "all box", "chosen", axis=0),
    node("Gather", "selected zero", "sample", axis=1),
    node("Gather", "selected one", "class", axis=1),
    node("Concat", "sample class of", "place", axis=1),
    node("GatherND", "scores place", "score"),
    node("Shape", "score", "count"),
    node("Min", "count most", "k"),
    node("TopK", "score k", "best order"),
    node("Gather", "chosen order", "y", axis=0),
]
NUMBERS: Feed = {
    "half": np.array(0.5, np.float32),
    "quarter": np.array(0.25, np.float32),
    "bar": np.array(0.9, np.float32),
    "minus": np.array([-1]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "last": np.array([-1]),
    "many": np.array([1 << 40]),
    "two": np.array([2]),
    "four": np.array([4]),
    "five": np.array([5]),
    "ten": np.array([10]),
    "first": np.array([7, 8], np.float32),
    "places": np.arange(30),
    "limit": np.array([9]),
    "overlap": np.array([0.4], np.float32),
    "least": np.array([0.3], np.float32),
    "rows": np.array([-1, 4]),
    "most": np.array([20]),
}
MODELS: dict[str, tuple[list[Any], str]] = {
    "coordinates": ([node("Greater", "x half", "c"), node("NonZero", "c", "y")], "y"),
    "elements by mask": (
        [
            node("Greater", "x half", "c"),
            node("NonZero", "c", "n"),
            node("Transpose", "n", "t", perm=[1, 0]),
            node("GatherND", "x t", "y"),
        ],
        "y",
    ),
    "softmax of rows": (
        [
            node("ReduceMax", "x", "m", axes=[1], keepdims=0),
            node("Greater", "m bar", "c"),
            node("Compress", "x c", "r", axis=0),
            node("Softmax", "r", "y", axis=0),
        ],
        "y",
    ),
    "columns": (
        [
            node("ReduceMax", "x", "m", axes=[0], keepdims=0),
            node("Greater", "m bar", "c"),
            node("Compress", "x c", "r", axis=1),
            node("Transpose", "x", "t", perm=[1, 0]),
            node("MatMul", "t r", "y"),
            node("Transpose", "r", "z", perm=[1, 0]),
        ],
        "y z",
    ),
    "sums": ([*FLAT, node("ReduceSum", "v", "s", keepdims=0), node("Sub", "v s", "y")], "y s"),
    "the best": (
        [
            *FLAT,
            node("Shape", "v", "n"),
            node("Min", "n four", "k"),
            node("TopK", "v k", "t at"),
            node("Compress", "places c", "p"),
            node("Gather", "p at", "y"),
        ],
        "y t",
    ),
    "found again": ([*FLAT, node("Less", "v bar", "d"), node("Compress", "v d", "w"), node("Mul", "w w", "y")], "y v"),
    "behind two others, five at most": (
        [*FLAT, node("Concat", "first v", "w", axis=0), node("Slice", "w zero five", "y")],
        "y w",
    ),
    "all but the first, all but the last": (
        [
            *FLAT,
            node("Slice", "v one many", "a"),
            node("Slice", "v zero last", "b"),
            node("Sub", "a b", "y"),
            node("Slice", "v four many", "z"),
        ],
        "y z",
    ),
    "one mask written twice": (
        [
            *FLAT,
            node("Constant", "", "again", value=helper.make_tensor("again", 1, [], [0.5])),
            node("Greater", "flat again", "d"),
            node("Compress", "flat d", "w"),
            node("Add", "v w", "y"),
        ],
        "y",
    ),
    "the sum of one, if there is one": (
        [*FLAT, node("Slice", "v zero one", "w"), node("ReduceSum", "w", "y", keepdims=0), node("Mul", "v y", "z")],
        "y z",
    ),
    "one, if there is one": (
        [
            *FLAT,
            node("Slice", "v zero one", "y"),
            node("Slice", "v last many", "z"),
            node("Shape", "v", "n"),
            node("Min", "n one", "k"),
            node("TopK", "v k", "t at"),
        ],
        "y z t at",
    ),
    "how many, as numbers": (
        [
            *FLAT,
            node("Shape", "v", "n"),
            node("Cast", "n", "f", to=1),
            node("Div", "v f", "y"),
            node("NonZero", "c", "at"),
            node("Shape", "at", "z"),
            node("Greater", "n zero", "some"),
            node("Cast", "some", "any", to=6),
        ],
        "y v z any at",
    ),
    "shares of nothing": ([*FLAT, node("Softmax", "v", "p", axis=0), node("MatMul", "p v", "y")], "y"),
    "every second": ([*FLAT, node("Concat", "v v", "w", axis=0), node("Add", "v v", "y")], "y"),
    "a detector's head": (HEAD, "y best chosen score selected"),
}


def feeds(what: str) -> Iterator[Feed]:
    """Inputs with more and more to be found, from nothing on."""
    for seed, share in enumerate((0.0, 0.1, 0.5, 0.9, 1.0)):
        rng = np.random.default_rng(seed)
        if what == "a detector's head":
            middle, side = rng.random((1, 15, 2)), rng.random((1, 15, 2)) / 4
            boxes = np.concatenate([middle - side, middle + side], 2).astype(np.float32)
            yield {"boxes": boxes, "scores": (rng.random((1, 3, 15)) * share).astype(np.float32)}
        else:
            x = rng.random((5, 6))
            yield {"x": np.where(x < share, 0.5 + x / 2, x / 2).astype(np.float32)}


def written(what: str) -> Any:
    nodes, outputs = MODELS[what]
    read = {name for each in nodes for name in each.input}
    constants = {name: array for name, array in NUMBERS.items() if name in read}
    return model(nodes, next(feeds(what)), outputs.split(), constants=constants)


@pytest.mark.parametrize("what", MODELS)
def test_results_are_as_long_as_the_data_has_it(what: str) -> None:
    proto = written(what)
    kernel = sk.compile(proto, threads=2)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds(what):
        wanted = dict(zip(kernel.outputs, session.run(None, feed), strict=True))
        called = kernel(**feed)
        listed = called if isinstance(called, tuple) else (called,)
        ways = [dict(zip(kernel.outputs, listed, strict=True))]
        ways += [kernel.run(feed, executor=executor).outputs for executor in ("host", "reference")]
        for found in ways:
            for name, want in wanted.items():
                assert found[name].shape == want.shape, name
                np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6, err_msg=name)


def test_on_an_accelerator() -> None:
    kernel = sk.compile(written("found again"), "mini", options={"fallback": "forbid", "precision": "f32"})
    for feed in feeds("found again"):
        want = feed["x"][(feed["x"] > 0.5) & (feed["x"] < np.float32(0.9))] ** 2
        np.testing.assert_allclose(kernel.run(feed).outputs["y"], want, rtol=1e-3)


def part(value: str) -> Any:
    """A branch that returns a value from outside."""
    result = helper.make_empty_tensor_value_info("result")
    return helper.make_graph([node("Identity", value, "result")], "part", [], [result])


REFUSED: dict[str, tuple[list[Any], str]] = {
    "a squeeze of whatever is one": ([*FLAT, node("Unsqueeze", "v one", "u"), node("Squeeze", "u", "y")], "type"),
    "two sizes that must be the same": (
        [*FLAT, node("Less", "flat bar", "d"), node("Compress", "flat d", "w"), node("Add", "v w", "y")],
        "for 3, 2; sizes that are data",
    ),
    "the fewer of two": (
        [
            *FLAT,
            node("Less", "flat quarter", "d"),
            node("Compress", "flat d", "w"),
            node("Mul", "w w", "z"),
            node("Shape", "w", "n"),
            node("Slice", "v zero n", "y"),
        ],
        "grows as no one size",
    ),
    "which of two is more": (
        [
            *FLAT,
            node("Less", "flat quarter", "d"),
            node("Compress", "flat d", "w"),
            node("Shape", "v", "n"),
            node("Shape", "w", "m"),
            node("Less", "n m", "less"),
            node("Where", "less v half", "y"),
        ],
        "changes with the sizes",
    ),
    "every second of those behind the tenth": (
        [
            *FLAT,
            node("Reshape", "half one", "h"),
            node("Concat", "h v", "w", axis=0),
            node("Slice", "w ten many zero two", "y"),
        ],
        "grows as no one size",
    ),
    "at least one": (
        [*FLAT, node("Shape", "v", "n"), node("Max", "n one", "k"), node("Slice", "flat zero k", "y")],
        "grows as no one size",
    ),
    "one behind the other": (
        [*FLAT, node("Less", "flat bar", "d"), node("Compress", "flat d", "w"), node("Concat", "v w", "y", axis=0)],
        "behind an axis",
    ),
    "whether there is anything": (
        [
            *FLAT,
            node("Shape", "v", "n"),
            node("Greater", "n zero", "any"),
            node("Squeeze", "any", "some"),
            node("If", "some", "y", then_branch=part("v"), else_branch=part("flat")),
        ],
        "where nothing is found",
    ),
    "nothing instead of another": (
        [
            *FLAT,
            node("ReduceSum", "v", "s", keepdims=0),
            node("Shape", "v", "n"),
            node("Equal", "n zero", "none"),
            node("Where", "none half s", "y"),
        ],
        "changes with the sizes",
    ),
    "what grows as either of two, as far as was tried": (
        [
            node("ReduceMax", "x", "m", axes=[1], keepdims=0),
            node("Greater", "m half", "a"),
            node("Compress", "x a", "r", axis=0),
            node("ReduceMax", "r", "n", axes=[0], keepdims=0),
            node("Greater", "n half", "b"),
            node("Compress", "r b", "c", axis=1),
            node("Slice", "c two last one", "y"),
        ],
        "grows as several sizes",
    ),
    "how many, at least one": (
        [
            *FLAT,
            node("ReduceSum", "v", "s", keepdims=0),
            node("Shape", "v", "n"),
            node("Max", "n one", "k"),
            node("Cast", "k", "f", to=1),
            node("Div", "s f", "y"),
        ],
        "grows as no one size",
    ),
    "one by how many": (
        [
            *FLAT,
            node("Shape", "v", "n"),
            node("Cast", "n", "f", to=1),
            node("Div", "bar f", "g"),
            node("Mul", "v g", "y"),
        ],
        "changes with the sizes",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_may_hang_on_what_does_not_count_is_refused(what: str) -> None:
    nodes, reason = REFUSED[what]
    read = {name for each in nodes for name in each.input}
    constants = {name: array for name, array in NUMBERS.items() if name in read}
    with pytest.raises(UnsupportedError, match=reason):
        load_graph(model(nodes, {"x": f32(5, 6)}, constants=constants))


# -- graphs of one's own


def counting(name: str = "found") -> sk.GraphBuilder:
    b = sk.GraphBuilder("counting")
    x = b.input("x", (8,), "f32")
    table = b.nonzero(b.greater(x, 0.0), 8)
    b.output(b.identity(table[1:], name=name), extents={0: table[0]})
    b.output(x * 2.0, name="twice")
    return b


X = np.array([1, -1, 2, 0, -3, 4, 0, 5], np.float32)


def test_a_graph_may_say_that_extents_are_data(tmp_path: Path) -> None:
    graph = counting().graph()
    assert graph.returned == ("found", "twice")
    assert len(graph.outputs) == 3
    assert f"extent 0 of found <- {graph.outputs[2]}" in str(graph)
    path = tmp_path / "g.json"
    save_json(graph, path)
    kernel = sk.compile(graph, threads=1)
    kernel.save(tmp_path / "k.sk")
    same = [kernel, copy.copy(kernel), pickle.loads(pickle.dumps(kernel)), sk.load(tmp_path / "k.sk")]
    same += [sk.compile(each, threads=1) for each in (from_networkx(to_networkx(graph)), load_json(path))]
    for each in same:
        found, twice = each(X)
        assert found.tolist() == [0, 2, 5, 7]
        assert twice.tolist() == (X * 2).tolist()
        assert list(each.outputs) == ["found", "twice"]


def test_what_holds_runs_against_the_reference_takes_found_sizes() -> None:
    graph = counting().graph()
    assert bisect(graph, threads=2, inputs={"x": X}).first is None
    kernel = sk.compile(graph, "mini", options={"fallback": "allow"})
    assert isinstance(kernel, AicoreKernel)
    held = Checker(graph, {"x": X}, kernel, DType.F32).row(kernel, lambda: kernel.run({"x": X}).outputs, "sim")
    assert held.ok


def test_dumps_and_counts_do_not_mix() -> None:
    kernel = sk.compile(counting(), threads=1, options={"dump": ["greater_0"]})
    result = kernel.run({"x": X})
    assert result.outputs["found"].tolist() == [0, 2, 5, 7]
    assert result.dumps["greater_0"].tolist() == (X > 0).tolist()
    assert kernel(X)[0].tolist() == [0, 2, 5, 7]


def test_memory_of_ones_own_has_no_data_for_an_extent() -> None:
    kernel = sk.compile(counting(), threads=1)
    with pytest.raises(UnsupportedError, match="whose extents are data"):
        kernel(X, out=(np.zeros(8, np.int64), np.zeros(8, np.float32)))
    with pytest.raises(UnsupportedError, match="whose extents are data"):
        kernel.bind(X)


def test_buckets_of_such_a_graph_are_refused() -> None:
    def source(n: int) -> Graph:
        b = sk.GraphBuilder("counting")
        x = b.input("x", (n,), "f32")
        table = b.nonzero(b.greater(x, 0.0), n)
        b.output(b.identity(table[1:]), extents={0: table[0]})
        return b.graph()

    assert sk.compile_dynamic(source, {"n": (1, 9)}, threads=1)(X).tolist() == [0, 2, 5, 7]
    with pytest.raises(UnsupportedError, match="extents are data"):
        sk.compile_dynamic(source, {"n": (1, 9)}, threads=1, buckets={"n": [9]})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another axis": ({"found": ((1, "count"),)}, "0 to 0"),
    "an axis twice": ({"found": ((0, "count"), (0, "count"))}, "each once"),
    "a count of another type": ({"found": ((0, "x"),)}, "not a count"),
    "no output": ({"table": ((0, "count"),)}, "not an output"),
    "an unknown count": ({"found": ((0, "nothing"),)}, "nothing"),
}


@pytest.mark.parametrize("what", WRONG)
def test_extents_are_checked(what: str) -> None:
    extents, reason = WRONG[what]
    b = sk.GraphBuilder()
    x = b.input("x", (8,), "f32")
    table = b.nonzero(x, 8, name="table")
    b.output(b.identity(table[1:], name="found"))
    b.output(b.reshape(table[:1], (), name="count"))
    graph = b.graph()
    with pytest.raises(GraphError, match=reason):
        Graph.build(
            inputs=graph.inputs, nodes=graph.nodes, outputs=["found"], constants=graph.constants, extents=extents
        )


def test_extents_in_networkx_are_checked() -> None:
    source: nx.MultiDiGraph[Any] = to_networkx(counting().graph())
    mark = next(key for key, data in source.nodes(data=True) if "extents" in data)
    source.nodes[mark]["extents"] = "0"
    with pytest.raises(GraphError, match="'extents' is not read"):
        from_networkx(source)
