"""Graphs that find sizes in their data: what they compute for all of them, how they count, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.builder.tensor import Tensor
from superkernel.core.errors import GraphError, UnsupportedError
from superkernel.frontends.emitter import Emitter
from superkernel.frontends.found import FoundSizes
from superkernel.ir.graph import Graph
from superkernel.padding.counted import Counted, Write, counted
from superkernel.reference import evaluate
from superkernel.transforms.dead import RemoveDead

Array = NDArray[Any]
Results = Sequence[Any]
EXTENT = 20


class Walk(Emitter):
    """What a model is written with. `x`: [20]."""

    def __init__(self, asked: Sequence[int], extent: int) -> None:
        self.b = sk.GraphBuilder("walk")
        super().__init__(self.b, "walk", "here", thorough=True)
        self.found = FoundSizes(asked)
        self.x = self.b.input("x", (extent,), "f32")

    def above(self, x: Tensor, least: float) -> Tensor:
        """The elements above a number."""
        (places,) = self.found.places(self, self.b.greater(x, least))
        return self.b.gather(x, places)


Model = Callable[[Walk], Results]


def writer(model: Model, extent: int = EXTENT) -> Write:
    def write(asked: Sequence[int]) -> Counted:
        walk = Walk(asked, extent)
        for number, value in enumerate(model(walk)):
            walk.b.output(value, name=f"y{number}")
        return walk.found.counted(RemoveDead(constants=True).apply(walk.b.graph()))

    return write


def made(model: Model, extent: int = EXTENT) -> Graph:
    write = writer(model, extent)
    return counted(write(()), write)


def twice(w: Walk, v: Tensor) -> Tensor:
    """Each element, and its square behind it."""
    rows = [w.b.reshape(part, (part.shape[0], 1)) for part in (v, v * v)]
    return w.b.concat(*rows, axis=1).reshape(2 * v.shape[0])


def two_sizes(w: Walk) -> Results:
    v, u = w.above(w.x, 0.5), w.above(w.x, 0.8)
    return v, w.b.reduce_sum(v), u * 2.0, w.b.reduce_max(u)


def nested(w: Walk) -> Results:
    v = w.above(w.x, 0.3)
    u = w.above(v, 0.7)
    return w.b.reduce_sum(v), u, w.b.reduce_mean(u), v


def picked(w: Walk) -> Results:
    """The best of some, by places among these."""
    v = w.above(w.x, 0.5)
    best, order = w.b.topk(v, min(4, v.shape[0]))
    return w.b.gather(v * 3.0, order), best, w.b.argmax(v, axis=0, keepdims=False)


def zeros_for_nothing(w: Walk) -> Results:
    """Another graph, of the same results, where nothing is found."""
    v = w.above(w.x, 0.5)
    return [w.b.reduce_sum(v) if v.shape[0] else w.constant(np.zeros(1, np.float32))]


def beside_one(w: Walk) -> Results:
    """Of both the mean by shares, of which there are none where nothing is found."""
    v, u = w.above(w.x, 0.5), w.above(w.x[:1], 0.5)
    means = []
    for each in (v, u):
        share = w.b.softmax(w.b.reshape(each, (1, each.shape[0])), axis=1)
        means.append(w.b.reshape(w.b.matmul(share, w.b.reshape(each, (each.shape[0], 1))), (1,)))
    return v, u, *means


def mean_by_shares(x: Array) -> list[float]:
    found = above(x, 0.5)
    return [(np.exp(found) * found).sum() / max(np.exp(found).sum(), 1)]


def above(x: Array, least: float) -> Array:
    return x[x > np.float32(least)]


def doubled(x: Array) -> Array:
    v = above(x, 0.5)
    return np.stack([v, v * v], axis=1).reshape(-1)


def best(x: Array) -> list[Any]:
    v = above(x, 0.5)
    order = np.argsort(-v, kind="stable")[:4]
    return [v[order] * 3, v[order], v.argmax()]


MODELS: dict[str, tuple[Model, Callable[[Array], Sequence[Any]]]] = {
    "elements": (lambda w: [w.above(w.x, 0.5)], lambda x: [above(x, 0.5)]),
    "twice as many": (lambda w: [twice(w, w.above(w.x, 0.5))], lambda x: [doubled(x)]),
    "a sum of twice as many": (
        lambda w: [w.b.reduce_sum(twice(w, w.above(w.x, 0.5)), keepdims=False)],
        lambda x: [doubled(x).sum()],
    ),
    "three more": (
        lambda w: [y := w.b.concat(w.x[:3], w.above(w.x, 0.5), axis=0), w.b.reduce_max(y, keepdims=False)],
        lambda x: [y := np.concatenate([x[:3], above(x, 0.5)]), y.max()],
    ),
    "five at most": (
        lambda w: [y := w.slice(w.above(w.x, 0.5), 0, 0, 5), w.b.reduce_min(y, keepdims=False)],
        lambda x: [y := above(x, 0.5)[:5], y.min()],
    ),
    "two sizes": (two_sizes, lambda x: [v := above(x, 0.5), [v.sum()], (u := above(x, 0.8)) * 2, [u.max()]]),
    "one of another": (
        nested,
        lambda x: [[(v := above(x, 0.3)).sum()], u := above(v, 0.7), [u.mean()], v],
    ),
    "the best": (picked, best),
    "those behind the sixth": (lambda w: [w.slice(w.above(w.x, 0.5), 0, 6, EXTENT)], lambda x: [above(x, 0.5)[6:]]),
    "zeros instead of no sum": (zeros_for_nothing, lambda x: [[above(x, 0.5).sum()]]),
    "some of all, and one or none": (
        beside_one,
        lambda x: [above(x, 0.5), above(x[:1], 0.5), mean_by_shares(x), mean_by_shares(x[:1])],
    ),
    "behind two others, or nothing": (
        lambda w: [
            w.concat([w.constant(np.zeros((2, 1), np.float32)), w.reshape(v := w.above(w.x, 0.5), (v.shape[0], 1))], 0)
        ],
        lambda x: [np.concatenate([np.zeros(2), above(x, 0.5)])[:, None]],
    ),
    "an element or two": (lambda w: [w.slice(w.above(w.x, 0.5), 0, 0, 2) * 2.0], lambda x: [above(x, 0.5)[:2] * 2]),
    "nothing that is found": (lambda w: [(w.above(w.x, 0.5), w.x * 2.0)[1]], lambda x: [x * 2]),
}


def data(seed: int, share: float, extent: int = EXTENT) -> Array:
    """Some above 0.8, as many between 0.5 and 0.8, all others below 0.3."""
    rng = np.random.default_rng(seed)
    low, middle, high = 0.3 * rng.random(extent), 0.5 + 0.3 * rng.random(extent), 0.8 + 0.2 * rng.random(extent)
    drawn = rng.random(extent)
    return np.where(drawn < share / 2, high, np.where(drawn < share, middle, low)).astype(np.float32)


@pytest.mark.parametrize("what", MODELS)
def test_results_for_all_there_is(what: str) -> None:
    model, wanted = MODELS[what]
    graph = made(model)
    for seed, share in enumerate((0.2, 0.3, 0.5, 0.8, 0.9, 1.0, 1.0, 1.0)):
        x = data(seed, share)
        found = evaluate(graph, {"x": x})
        for name, want in zip(graph.returned, wanted(x), strict=True):
            assert found[name].shape == np.shape(want), (name, share)
            np.testing.assert_allclose(found[name], want, rtol=1e-6, err_msg=name)


def test_a_number_that_grows_beside_one_that_does_not() -> None:
    """The size of all there is, 20, as that and as itself."""

    def model(w: Walk) -> Results:
        v = w.above(w.x, 0.5)
        return [w.b.reduce_sum(v, keepdims=False) * w.constant(np.float32(v.shape[0])) + w.constant(np.float32(EXTENT))]

    graph = made(model)
    for seed, share in enumerate((0.3, 0.6, 1.0)):
        x = data(seed, share)
        v = above(x, 0.5)
        np.testing.assert_allclose(evaluate(graph, {"x": x})["y0"], v.sum() * len(v) + EXTENT, rtol=1e-5)


def test_whole_numbers_that_stay_are_known() -> None:
    """Indices of rows that are there whatever is found."""
    graph = made(
        lambda w: [w.b.gather(w.b.concat(w.x[:3], w.above(w.x, 0.5), axis=0), w.constant(np.array([2, 0])), axis=0)]
    )
    for seed, share in enumerate((0.0, 0.5, 1.0)):
        x = data(seed, share)
        np.testing.assert_array_equal(evaluate(graph, {"x": x})["y0"], x[[2, 0]])


def test_where_nothing_is_found_results_are_empty() -> None:
    for what in ("elements", "twice as many", "five at most"):
        graph = made(MODELS[what][0])
        assert evaluate(graph, {"x": data(1, 0.0)})["y0"].shape == (0,)
    assert evaluate(made(MODELS["three more"][0]), {"x": data(1, 0.0)})["y0"].shape == (3,)


@pytest.mark.parametrize("extent", [0, 1, 2, 3])
def test_of_few(extent: int) -> None:
    graph = made(lambda w: [v := w.above(w.x, 0.5), w.b.reduce_sum(v, keepdims=False)], extent)
    for seed in range(8):
        x = data(seed, 0.5, extent)
        found = evaluate(graph, {"x": x})
        assert found["y0"].tolist() == above(x, 0.5).tolist()
        np.testing.assert_allclose(found["y1"], above(x, 0.5).sum(), rtol=1e-6)


def test_what_counts_is_computed_once() -> None:
    """A guard and two outputs of one size, and inputs that say what counts of none."""
    graph = made(lambda w: [v := w.above(w.x, 0.5), v * 2.0, w.b.reduce_sum(v)])
    assert list(graph.inputs) == ["x"]
    counts = {count for row in graph.extents.values() for _, count in row}
    assert len(counts) == 1
    assert graph.outputs == ("y0", "y1", "y2", *counts)
    assert sum(node.op == "less" for node in graph.nodes) == 1


def test_what_is_found_is_counted_as_it_is() -> None:
    """As many as are found, at most as many as there are: nothing is computed of the count."""
    graph = made(lambda w: [w.above(w.x, 0.5)])
    assert {node.op for node in graph.nodes} == {"greater", "nonzero", "slice", "gather", "reshape"}


def test_numbers_are_no_more_than_there_are() -> None:
    """Who reads the counts need not look at the extents."""
    graph = made(lambda w: [w.slice(w.above(w.x, 0.5), 0, 0, 5)])
    ((_, ((_, count),)),) = graph.extents.items()
    assert evaluate(graph, {"x": data(3, 1.0)}, keep=[count])[count] == 5


def test_a_limit_below_more_than_are_found() -> None:
    """Of twice as many, and of three more."""
    few = made(lambda w: [w.slice(twice(w, w.above(w.x, 0.5)), 0, 0, 30)])
    more = made(lambda w: [w.slice(w.b.concat(w.x[:3], w.above(w.x, 0.5), axis=0), 0, 0, 22)])
    for seed in range(4):
        x = data(seed, 1.0)
        assert evaluate(few, {"x": x}, keep=few.outputs)[few.outputs[-1]] == 30
        assert evaluate(more, {"x": x}, keep=more.outputs)[more.outputs[-1]] == 22


@pytest.mark.parametrize("extent", [2, 3, 4])
def test_all_but_the_first_of_few(extent: int) -> None:
    graph = made(lambda w: [w.slice(w.above(w.x, 0.5), 0, 1, extent)], extent)
    for seed in range(8):
        x = data(seed, 0.8, extent)
        assert evaluate(graph, {"x": x})["y0"].tolist() == above(x, 0.5)[1:].tolist()


def test_graphs_are_written_once_each() -> None:
    asked: list[tuple[int, ...]] = []
    write = writer(lambda w: [w.above(w.x, 0.5)])

    def noted(sizes: tuple[int, ...]) -> Counted:
        asked.append(sizes)
        return write(sizes)

    counted(write(()), noted)
    assert len(asked) == len(set(asked))
    assert {(0,), (1,), (2,), (EXTENT - 1,)} < set(asked)


def test_names_that_repeat_are_numbered() -> None:
    graph = made(lambda w: [w.slice(w.above(w.x, 0.5), 0, first, EXTENT) for first in (1, 2, 3)])
    assert {"0 i64", "0 i64 (2)", "0 i64 (3)"} < set(graph.constants)


def test_numbers_that_stay_where_some_graph_is_another_one() -> None:
    """Where there are some of the first and none of the second, what numbers would be is not known."""

    def model(w: Walk) -> Results:
        v, u = w.above(w.x, 0.5), w.above(w.x, 0.8)
        numbers = w.constant(np.array([v.shape[0], 3], np.float32))
        sums = w.b.reduce_sum(v) * numbers
        return [sums if u.shape[0] or not v.shape[0] else w.constant(np.zeros(2, np.float32)), u]

    graph = made(model)
    for seed, share in enumerate((0.0, 0.5, 1.0)):
        x = data(seed, share)
        v = above(x, 0.5)
        np.testing.assert_allclose(evaluate(graph, {"x": x})["y0"], v.sum() * np.array([len(v), 3]), rtol=1e-5)


def test_names_that_are_taken() -> None:
    def model(w: Walk) -> Results:
        v = w.above(w.x, 0.5)
        taken = [w.b.mul(v, 2.0, name=f"walk/nonzero_0 {name}") for name in ("count", "count (2)", "flat", "first")]
        return [v, *taken]

    x = data(4, 0.6)
    found = evaluate(made(model), {"x": x})
    np.testing.assert_array_equal(found["y2"], above(x, 0.5) * 2)


def sized(w: Walk) -> Results:
    v = w.above(w.x, 0.5)
    return [v / float(v.shape[0] ** 2 or 1)]


def unlike(w: Walk) -> Results:
    """As many numbers as are found, but nothing of what is found."""
    return [w.constant(np.arange(w.above(w.x, 0.5).shape[0])), w.x * 2.0]


def longer(w: Walk) -> Results:
    """What is found decides whether more is looked for."""
    v = w.above(w.x, 0.5)
    return [w.above(v, 0.8) if v.shape[0] > 3 else v]


def asking(w: Walk) -> Results:
    v = w.above(w.x, 0.5)
    w.found.branches.append(v.shape[0] > 0)
    return [v]


def only_nothing(w: Walk) -> Results:
    v = w.above(w.x, 0.5)
    return [w.b.reduce_sum(v) + float(v.shape[0] == 0)]


def one_is_another(w: Walk) -> Results:
    """A single element is read without its axis."""
    v = w.above(w.x, 0.5)
    return [w.b.reshape(v, ()) if v.shape[0] == 1 else w.b.reshape(v, (v.shape[0], 1))]


def either(w: Walk) -> Results:
    """An extent that grows by one where either of two sizes does."""
    v, u = w.above(w.x, 0.5), w.above(w.x, 0.8)
    return [v, w.constant(np.arange(v.shape[0] + u.shape[0]))]


def more_of_all(w: Walk) -> Results:
    """As many as are found, and five more if all are."""
    v = w.above(w.x, 0.5)
    return [v, w.constant(np.arange(v.shape[0] if v.shape[0] < EXTENT else 25))]


def either_way(*ways: Sequence[bool]) -> Model:
    """Another way is gone where some sizes are nothing and others are not."""

    def model(w: Walk) -> Results:
        found = [w.above(w.x, least) for least in (0.5, 0.8, 0.9)[: len(ways[0])]]
        w.found.branches.append([bool(v.shape[0]) for v in found] not in [[*way] for way in ways])
        return found

    return model


def no_number_of_nothing(w: Walk) -> Results:
    v = w.above(w.x, 0.5)
    total = w.b.reduce_sum(v)
    return [total * w.constant(np.float32(v.shape[0])) if v.shape[0] else w.constant(np.zeros(1, np.float32))]


def other_rank(w: Walk) -> Results:
    v = w.above(w.x, 0.5)
    return [v if v.shape[0] else w.constant(np.zeros((0, 1), np.float32))]


def all_for_none(w: Walk) -> Results:
    """As many of all as are found, or all."""
    v = w.above(w.x, 0.5)
    return [v, w.b.reduce_sum(w.slice(w.x, 0, 0, v.shape[0] or EXTENT))]


def uneven(w: Walk) -> Results:
    """Of five the third and the last two: graphs for 0 to 3 of them do not tell how many of four."""
    v, u = w.above(w.x, 0.5), w.above(w.x[:5], 0.5)
    count = (0, 0, 0, 1, 1, 3)[u.shape[0]]
    return [v, w.slice(u, 0, min(2, u.shape[0] - count), min(2, u.shape[0] - count) + count)]


REFUSED: dict[str, tuple[Model, str]] = {
    "two sizes that must be one": (lambda w: [w.above(w.x, 0.5) + w.above(w.x, 0.8)], "for 3, 2; sizes that are data"),
    "a number that grows as a square": (sized, "no one size that is data"),
    "elements behind those found": (lambda w: [w.b.concat(w.above(w.x, 0.5), w.x, axis=0)], "behind an axis"),
    "nothing that says how many": (unlike, "by what no result needs"),
    "one that is read otherwise": (one_is_another, "another one for other sizes|type of its results"),
    "an extent of two sizes": (either, "no one size that is data"),
    "half of them": (
        lambda w: [w.b.reduce_sum(w.slice(v := w.above(w.x, 0.5), 0, 0, v.shape[0] // 2))],
        "node 'y0': an extent that grows as no one size",
    ),
    "another extent of all": (more_of_all, "no one size that is data"),
    "more to be found": (longer, "hangs on how much is found"),
    "a branch for nothing": (asking, "another way is gone where nothing is found"),
    "a branch for nothing of the first": (either_way([False, True]), "another way is gone"),
    "a branch for nothing of the second": (either_way([True, False]), "another way is gone"),
    "a branch for nothing of one between two": (either_way([True, False, True]), "another way is gone"),
    "a number for nothing": (only_nothing, "no one size that is data"),
    "a number of which nothing is known for nothing": (no_number_of_nothing, "a number that hangs on how much"),
    "results of another rank for nothing": (other_rank, "results are others where nothing is found"),
    "all where there are none": (all_for_none, "no one size that is data"),
    "a growth that is not seen to be even": (uneven, "no one size that is data"),
    "every second, two at most": (
        lambda w: [w.slice(w.slice(w.above(w.x, 0.5), 0, 1, EXTENT, 2), 0, 0, 2)],
        "no one size that is data",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_may_hang_on_more_than_counts_is_refused(what: str) -> None:
    model, reason = REFUSED[what]
    with pytest.raises(UnsupportedError, match=reason):
        made(model)


def test_of_one_the_graph_for_nothing_is_the_only_sample() -> None:
    """So it must be alike, where more to be found would tell what a sum must not see."""
    with pytest.raises(UnsupportedError, match="another one for other sizes"):
        made(zeros_for_nothing, 1)


def test_errors_have_what_was_seen() -> None:
    """Of the square of 2, 7, 19, 1 and 0."""
    with pytest.raises(UnsupportedError) as caught:
        made(lambda w: [v := w.above(w.x, 0.5), w.constant(np.arange(v.shape[0] ** 2))])
    assert caught.value.violations[0].found == "4, 49, 361, 1, 0 of 400"


def test_no_graph_for_nothing_is_no_reason() -> None:
    """A model that cannot be written for nothing has no results then that could be others."""

    def model(w: Walk) -> Results:
        v = w.above(w.x, 0.5)
        if not v.shape[0]:
            raise GraphError("nothing is found")
        return [v * 2.0]

    x = data(2, 0.5)
    np.testing.assert_array_equal(evaluate(made(model), {"x": x})["y0"], above(x, 0.5) * 2)


def test_no_graph_for_none_of_the_one_there_may_be_is_no_reason() -> None:
    def model(w: Walk) -> Results:
        v, u = w.above(w.x, 0.5), w.above(w.x[:1], 0.5)
        if not u.shape[0]:
            raise GraphError("the first is not found")
        return [v * 2.0, u]

    x = data(2, 0.9)
    found = evaluate(made(model), {"x": x})
    np.testing.assert_array_equal(found["y0"], above(x, 0.5) * 2)
    np.testing.assert_array_equal(found["y1"], above(x[:1], 0.5))
