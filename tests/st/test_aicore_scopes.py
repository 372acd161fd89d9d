"""Scopes: which sub-operators share a launch, what splits them, and when sharing loses."""

from __future__ import annotations

import warnings
from typing import Any

import networkx as nx
import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.core.errors import InputError, UnsupportedError
from superkernel.runtime.kernel import Kernel
from superkernel.target.aicore import load_target

MINI = load_target("mini")
CHEAP_LAUNCHES = MINI.replaced({"dispatch.launch_ns": 300, "sync.core_full_ns": 2000})
SIZE = 64
X = {"x": np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)}


def chain(*scopes: str | None) -> sk.Graph:
    """Softmaxes along both axes in turn, each in a scope or in none: every one needs all of the one before."""
    b = sk.GraphBuilder("chain")
    x = b.input("x", (SIZE, SIZE))
    for number, scope in enumerate(scopes):
        if scope is None:
            x = b.softmax(x, axis=number % 2, name=f"n{number}")
        else:
            with b.scope(scope):
                x = b.softmax(x, axis=number % 2, name=f"n{number}")
    b.output(x, "y")
    return b.graph()


def compiled(graph: Any, target: Any = MINI, **options: Any) -> tuple[Kernel, AicoreCompiled]:
    kernel = sk.compile(graph, target=target, options=options)
    found = kernel._compiled
    assert isinstance(found, AicoreCompiled)
    return kernel, found


def rows(made: AicoreCompiled) -> list[tuple[str | None, list[int]]]:
    return [(part.scope, list(part.subops)) for part in made.parts]


def test_without_scopes_the_graph_is_one_launch() -> None:
    _, made = compiled(chain(None, None, None))
    assert made.image.launches == 1
    assert rows(made) == [("", [0, 1, 2])]


def test_a_scope_is_a_launch_and_what_is_outside_is_launched_alone() -> None:
    kernel, made = compiled(chain("a", "a", None, "b", "b"))
    assert rows(made) == [("a", [0, 1]), (None, [2]), ("b", [3, 4])]
    assert made.image.launches == 3
    report = kernel.run(X).report
    assert report.launches == 3
    assert [row.launches for row in report.parts] == [1, 1, 1]
    assert "scope 'b'" in kernel.explain("n3").text()
    assert "outside all scopes" in kernel.explain("n2").text()


def test_nothing_is_joined_across_scopes() -> None:
    b = sk.GraphBuilder("join")
    x = b.input("x", (SIZE, SIZE))
    with b.scope("first"):
        y = b.exp(x, name="e")
    with b.scope("second"):
        y = b.relu(b.tanh(y, name="t"), name="r")
    b.output(y, "y")
    _, made = compiled(b.graph())
    assert all(sub.scope for sub in made.schedule.subops)
    assert [sub.scope for sub in made.schedule.subops] == ["first", "second"]
    whole = sk.compile(b.graph(), target="mini", options={"scopes": {"all": ["*"]}})
    assert len(whole._compiled.schedule.subops) == 1


def test_sub_operators_of_a_scope_are_brought_together() -> None:
    """Two independent chains, their nodes given in turn."""
    b = sk.GraphBuilder("two")
    x = b.input("x", (SIZE, SIZE))
    ends = {"a": x, "b": x}
    for number in range(3):
        for scope in ends:
            with b.scope(scope):
                ends[scope] = b.softmax(ends[scope], axis=number % 2)
    b.output(ends["a"] + ends["b"], "y")
    _, made = compiled(b.graph())
    assert [(s, len(i)) for s, i in rows(made)] == [("a", 3), ("b", 3), (None, 1)]
    assert made.image.launches == 3
    assert not any(part.split for part in made.parts)


def test_what_must_run_between_splits_a_scope() -> None:
    kernel, made = compiled(chain("a", None, "a"))
    assert rows(made) == [("a", [0]), (None, [1]), ("a", [2])]
    assert "'n1', which is not in the scope, must run between" in made.parts[0].split
    assert "must run between" in kernel.explain("n0").text()


@pytest.mark.parametrize("sync", ["minimal", "type-range", "full"])
def test_bits_do_not_depend_on_launches(sync: str) -> None:
    found = []
    for graph in (chain(*[None] * 6), chain("a", "a", None, "b", "b", "a")):
        for launches, early_start in (("fused", True), ("fused", False), ("single", True)):
            kernel, _ = compiled(graph, launches=launches, sync=sync, early_start=early_start)
            found.append(kernel.run(X).outputs["y"])
    assert all(np.array_equal(found[0].view(np.uint32), other.view(np.uint32)) for other in found)


def test_a_fusion_that_loses_is_declined() -> None:
    graph = chain(*[None] * 6)
    times = {}
    for launches in ("auto", "fused", "single"):
        kernel, made = compiled(graph, CHEAP_LAUNCHES, launches=launches, locality="off")
        row = kernel.run(X).report.parts[0]
        times[launches] = row.simulated_us
        assert row.predicted_us == pytest.approx(row.simulated_us, rel=0.35)
        assert made.image.launches == (1 if launches == "fused" else 6)
    assert times["auto"] == times["single"] < 0.9 * times["fused"]
    kernel, made = compiled(graph, CHEAP_LAUNCHES, locality="off")
    assert "declined" in made.parts[0].decision
    assert "fusion is predicted to lose" in kernel.explain("n1").text()
    assert "the other way" in kernel.run(X).report.text()


def test_fusion_pays_where_cores_compute_what_they_read() -> None:
    """The same chain, each core with the rows that it reads itself: nothing is left to wait for. What runs in launches
    of its own has no flag to save, and stays where it was."""
    graph = chain(*[None] * 6)
    times = {}
    for launches in ("auto", "fused", "single"):
        kernel, made = compiled(graph, CHEAP_LAUNCHES, launches=launches)
        times[launches] = kernel.run(X).report.parts[0].simulated_us
        assert bool(made.schedule.rematerialised) is (launches != "single")
    assert times["auto"] == times["fused"] < times["single"]
    off = compiled(graph, CHEAP_LAUNCHES, launches="single", locality="off")[1]
    assert made.schedule.tasks == off.schedule.tasks


def test_a_fusion_that_gains_is_kept() -> None:
    graph = chain(*[None] * 6)
    times = {}
    for launches in ("auto", "single"):
        kernel, made = compiled(graph, launches=launches)
        times[launches] = kernel.run(X).report.parts[0].simulated_us
        assert made.parts[0].fused == (launches == "auto")
    assert times["auto"] < times["single"]


def with_fallback(scoped: bool) -> sk.Graph:
    """A softmax, an operator that no kernel computes at this size, a softmax."""
    b = sk.GraphBuilder("fallback")
    x = b.input("x", (SIZE, SIZE))

    def body() -> Any:
        y = b.softmax(x, axis=1)
        y = b.cumsum(y, axis=1, name="sums")
        return b.softmax(y, axis=1)

    if scoped:
        with b.scope("part"):
            y = body()
    else:
        y = body()
    b.output(y, "y")
    return b.graph()


@pytest.mark.parametrize("scoped", [True, False])
def test_an_operator_without_a_kernel_splits_its_scope(scoped: bool) -> None:
    kernel, made = compiled(with_fallback(scoped), fallback="allow")
    assert made.image.host_calls == (1,)
    assert made.image.launches == 2
    assert [part.scope for part in made.parts] == ["part" if scoped else ""] * 2
    names = ("sub-operator 0", "sub-operator 2")
    assert [part.name for part in made.parts] == [f"scope 'part', {name}" if scoped else name for name in names]
    assert "has no kernel: NumPy computes it between two launches" in made.parts[0].split
    assert "has no kernel" in kernel.explain(0).text()
    assert "NumPy computes it" in kernel.explain(1).text()
    kernel.run(X)


@pytest.mark.parametrize(("scoped", "where"), [(True, "scope 'part'"), (False, "the whole graph")])
def test_a_strict_scope_refuses_it(scoped: bool, where: str) -> None:
    with pytest.raises(UnsupportedError, match="without a kernel splits its scope") as caught:
        compiled(with_fallback(scoped), fallback="allow", strict_scope="abort")
    assert where in str(caught.value)
    assert "cumsum" in str(caught.value)


def test_scopes_of_a_networkx_graph_and_by_name() -> None:
    graph = nx.DiGraph()
    graph.add_node("x", op="input", shape=[SIZE, SIZE], dtype="f32")
    graph.add_node("n0", op="softmax", attrs={"axis": 0}, scope="a")
    graph.add_node("n1", op="softmax", attrs={"axis": 1}, scope="a")
    graph.add_node("n10", op="softmax", attrs={"axis": 0})
    graph.add_node("y", op="output")
    graph.add_edges_from([("x", "n0"), ("n0", "n1"), ("n1", "n10"), ("n10", "y")])
    assert rows(compiled(graph)[1]) == [("a", [0, 1]), (None, [2])]
    assert rows(compiled(graph, scopes={"b": "n1"})[1]) == [("a", [0]), ("b", [1]), (None, [2])]
    assert rows(compiled(graph, scopes=["b:n1*"])[1]) == [("a", [0]), ("b", [1, 2])]
    with pytest.raises(InputError, match="no node of the scope"):
        compiled(graph, scopes={"b": ["n2"]})


def test_on_the_host_scopes_change_nothing() -> None:
    scoped, plain = (sk.compile(g, threads=2) for g in (chain("a", None, "b"), chain(None, None, None)))
    assert len(scoped._compiled.schedule.subops) == len(plain._compiled.schedule.subops)
    assert np.array_equal(scoped.run(X).outputs["y"], plain.run(X).outputs["y"])


@pytest.mark.parametrize("target", ["host", "mini"])
def test_entries_of_scopes_that_put_no_node_anywhere_are_refused_at_once(target: str) -> None:
    """On the host too, and all of them in one error."""
    with pytest.raises(InputError) as caught:
        sk.compile(chain(None, None), target, options={"scopes": ["a:n9", "b:n*", "c:n1", "b:n0"]})
    none, shadowed = caught.value.violations
    assert (none.message, none.location) == ("no node of the scope", "option 'scopes', entry 'a:n9'")
    assert shadowed.location == "option 'scopes', entry 'c:n1'"
    assert shadowed.found == "'n1' is taken by 'b:n*'"
    assert "particular ahead" in shadowed.hint


def test_scopes_that_cross_are_told_and_the_particular_ahead_of_the_general_is_not() -> None:
    graph = chain(None, None, None)
    with pytest.warns(sk.ScopeWarning) as told:
        sk.compile(graph, options={"scopes": ["a:n[01]", "b:n[12]"]})
    assert told[0].filename == __file__, "on the host, too"
    with pytest.warns(sk.ScopeWarning, match=r"'n1' is matched by 'a:n\[01\]' and by 'b:n\[12\]'") as told:
        kernel = sk.compile(graph, MINI, options={"scopes": ["a:n[01]", "b:n[12]"]})
    assert told[0].filename == __file__, "the warning names the line that compiles"
    assert rows(kernel._compiled) == [("a", [0, 1]), ("b", [2])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(compiled(graph, scopes=["a:n1", "b:*"])[1]) == [("b", [0]), ("a", [1]), ("b", [2])]
