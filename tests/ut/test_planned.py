"""Plans from the cache: the same as made anew, never of another graph, and proved like any other."""

from __future__ import annotations

import dataclasses
import errno
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from seeds import seeds

import superkernel as sk
from superkernel.backends.host.backend import BACKEND
from superkernel.codegen.cache import CacheWarning, ObjectCache
from superkernel.codegen.host.features import detect_cpu
from superkernel.compilation import planned
from superkernel.compilation.compiled import Job
from superkernel.compilation.planned import PlanForm, PlanStore
from superkernel.core.errors import VerificationError
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.sync.plan import Plan

FORM = PlanForm(BACKEND)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path))


@pytest.fixture
def no_planning(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(*_: object) -> None:
        raise AssertionError("planned again")

    return lambda: monkeypatch.setattr("superkernel.compilation.planning.plan_graph", refuse)


def _graph(scale: float = 1.0, epsilon: float = 1e-5, name: str = "layer", width: int = 48) -> Graph:
    rng = np.random.default_rng(1)
    b = sk.GraphBuilder(name)
    x = b.input("x", (8, 64), "f32")
    state = b.state("s", np.zeros((8, width), np.float32))
    y = b.matmul(x, b.constant(rng.standard_normal((64, width), dtype=np.float32)))
    y = b.layer_norm(y, b.constant(np.full(width, scale, np.float32)), b.constant(np.zeros(width, np.float32)),
                     axis=-1, epsilon=epsilon)  # fmt: skip
    total = b.add(state, b.relu(y))
    b.update(state, total)
    b.output(b.matmul(total, b.constant(rng.standard_normal((width, 32), dtype=np.float32))))
    return b.graph()


def _key(graph: Graph, options: Options | None = None, cores: int = 2) -> str | None:
    return PlanStore(ObjectCache(Path(".")), Job(graph, detect_cpu(), cores, options or Options()), FORM)._key


def test_parts_of_other_buffers_are_kept(no_planning: Callable[[], None]) -> None:
    b = sk.GraphBuilder("parts")
    x = b.input("x", (8, 64), "f32")
    part = b.softmax(x, axis=1)
    b.output(b.softmax(b.concat(part, b.cumsum(part, axis=1), axis=0), axis=1))
    data = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32)
    first = sk.compile(b.graph(), threads=2)
    assert any(buffer.inside for buffer in first._compiled.grouping.buffers.values())
    no_planning()
    assert np.array_equal(sk.compile(b.graph(), threads=2)(data), first(data))


def test_same_plan_and_results(no_planning: Callable[[], None]) -> None:
    x = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32)
    first = sk.compile(_graph(), threads=2)
    expected = [first(x), first(x)]
    no_planning()
    again = sk.compile(_graph(), threads=2)
    for stage in ("graph", "simplified", "subops", "schedule", "plan", "certificate"):
        assert again.stage_text(stage) == first.stage_text(stage)
    assert all(np.array_equal(again(x), e) for e in expected), "states begin anew"
    assert str(again.explain(0)) == str(first.explain(0))
    assert "look up" in again.summary()["stage_ms"]


def test_dumps_come_back(no_planning: Callable[[], None]) -> None:
    graph = _graph()
    options = {"dump": [next(n.name for n in graph.nodes if n.op == "relu")]}
    x = np.ones((8, 64), np.float32)
    first = sk.compile(graph, threads=1, options=options).run({"x": x}).dumps
    no_planning()
    again = sk.compile(graph, threads=1, options=options).run({"x": x}).dumps
    assert first.keys() == again.keys()
    assert len(first) == 1
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    "other",
    [
        lambda: _key(_graph(scale=1.5)),
        lambda: _key(_graph(epsilon=1e-6)),
        lambda: _key(_graph(name="other")),
        lambda: _key(_graph(width=50)),
        lambda: _key(_graph(), Options(fuse=False)),
        lambda: _key(_graph(), cores=1),
        lambda: _key(_with(outputs=("s", *_graph().outputs))),
        lambda: _key(_with(updates={})),
        lambda: _key(_with(states={"s": np.ones((8, 48), np.float32)})),
        lambda: _key(_with_node(scope="a")),
        lambda: _key(_with_node(stream=1)),
    ],
    ids=["constant", "attribute", "name", "type", "option", "cores", "outputs", "updates", "state", "scope", "stream"],
)
def test_another_key(other: Callable[[], str | None]) -> None:
    assert _key(_graph()) == _key(_graph())
    assert None not in (_key(_graph()), other())
    assert other() != _key(_graph())


def _with(**changes: Any) -> Graph:
    return dataclasses.replace(_graph(), **changes)


def _with_node(**changes: Any) -> Graph:
    graph = _graph()
    return dataclasses.replace(graph, nodes=(dataclasses.replace(graph.nodes[0], **changes), *graph.nodes[1:]))


def test_another_file_of_the_package_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who edits the scheduler must not be given plans of the one before."""
    source = tmp_path / "package" / "compilation" / "planned.py"
    source.parent.mkdir(parents=True)
    monkeypatch.setattr(planned, "__file__", str(source))
    stamps = []
    for text in ("a = 1", "a = 12"):
        source.write_text(text)
        planned._package_stamp.cache_clear()
        stamps.append(planned._package_stamp())
    monkeypatch.undo()
    planned._package_stamp.cache_clear()
    assert stamps[0] != stamps[1]


def test_weights_are_stored_by_name(tmp_path: Path) -> None:
    b = sk.GraphBuilder("wide")
    x = b.input("x", (1, 1024), "f32")
    b.output(b.matmul(x, b.constant(np.ones((1024, 1024), np.float32))))
    sk.compile(b.graph(), threads=1)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.o")) < 200_000


def test_a_plan_that_is_mostly_constants_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "ENTRY_BYTES_MAX", 64)
    b = sk.GraphBuilder("folded")
    x = b.input("x", (4, 64), "f32")
    b.output(b.add(x, b.exp(b.constant(np.ones((4, 64), np.float32)))))
    stages = [sk.compile(b.graph(), threads=1).summary()["stage_ms"] for _ in range(2)]
    assert all("place" in row for row in stages)


def test_a_plan_that_has_no_form_does_not_stop_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise TypeError("float where int is declared")

    monkeypatch.setattr(PlanForm, "written", refuse)
    with pytest.warns(CacheWarning, match="not kept in the cache: float where int"):
        kernel = sk.compile(_graph(), threads=1)
    assert kernel(np.ones((8, 64), np.float32)).shape == (8, 32)


@pytest.mark.parametrize("data", [b"", b"junk", pickle.dumps([1, 2]), b"cno_such_module\nname\n."])
def test_an_entry_that_cannot_be_read_is_made_again(tmp_path: Path, data: bytes) -> None:
    graph = _graph()
    store = PlanStore(ObjectCache(tmp_path), Job(graph, detect_cpu(), 1, Options()), FORM)
    assert store._key is not None
    ObjectCache(tmp_path).put(store._key, data)
    assert store.find() is None
    kernel = sk.compile(graph, threads=1)
    assert kernel(np.ones((8, 64), np.float32)).shape == (8, 32)
    assert store.find() is not None


def test_a_stored_plan_is_verified(tmp_path: Path) -> None:
    """Whatever lies in the cache, a plan that waits too little does not run."""
    graph, options = _graph(width=512), Options(cost_placement=False)
    sk.compile(graph, threads=2, options=options)
    store = PlanStore(ObjectCache(tmp_path), Job(graph, detect_cpu(), 2, options), FORM)
    found = store.find()
    assert found is not None
    assert found.plan.waits > 0
    programs = tuple(tuple(s for s in p if type(s).__name__ != "Wait") for p in found.plan.programs)
    store.keep(dataclasses.replace(found, plan=dataclasses.replace(found.plan, programs=programs)))
    with pytest.raises(VerificationError):
        sk.compile(graph, threads=2, options=options)


def test_the_memory_of_a_stored_plan_is_checked(tmp_path: Path) -> None:
    """All that the arena holds at one address: no order of tasks makes that right."""
    b = sk.GraphBuilder("both are read")
    left = b.matmul(b.input("x", (8, 64), "f32"), b.constant(np.ones((64, 64), np.float32)))
    b.output(b.matmul(left, b.transpose(b.softmax(left, axis=-1), perm=(1, 0))))
    graph = b.graph()
    sk.compile(graph, threads=2)
    store = PlanStore(ObjectCache(tmp_path), Job(graph, detect_cpu(), 2, Options()), FORM)
    found = store.find()
    assert found is not None
    flat = tuple(
        tuple(MemoryAddress(a.space, a.slot, 0) if a.space is Space.ARENA else a for a in row)
        for row in found.schedule.addresses
    )
    assert flat != found.schedule.addresses
    store.keep(dataclasses.replace(found, schedule=dataclasses.replace(found.schedule, addresses=flat)))
    with pytest.raises(VerificationError, match="not its own"):
        sk.compile(graph, threads=2)


@pytest.mark.parametrize("seed", seeds(1))
def test_a_damaged_plan_is_no_plan_or_one_of_its_type(tmp_path: Path, seed: int) -> None:
    """Behind the digest, too: whatever stands in an entry, reading it ends in a plan, in none or in a refusal."""
    rng = np.random.default_rng(seed)
    graph = _graph()
    planned_ = sk.compile(graph, threads=2, options={"cache": False})._compiled
    arrays = {**graph.constants, **graph.states}
    whole, refused = FORM.written(planned_, arrays), 0
    for _ in range(200):
        data = bytearray(whole)
        for at in rng.integers(0, len(data), int(rng.integers(1, 4))):
            data[at] = int(rng.integers(256))
        try:
            found = FORM.read(bytes(data), arrays)
        except (ValueError, VerificationError):
            refused += 1
        else:
            assert type(found.plan) is Plan
    assert refused > 20


def test_a_package_that_cannot_be_looked_through_has_no_plans_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    planned._package_stamp.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(planned, "os", SimpleNamespace(scandir=refused))
        with pytest.warns(CacheWarning, match="plans are not cached: .*Too many open files"):
            sk.compile(_graph(), threads=1)
    assert _key(_graph()) is not None, "asked again the next time"


def test_without_a_cache_nothing_is_kept(tmp_path: Path) -> None:
    sk.compile(_graph(), threads=1, options={"cache": False})
    assert not list(tmp_path.rglob("*.o"))
    assert PlanStore(ObjectCache(None), Job(_graph(), detect_cpu(), 1, Options()), FORM).find() is None


def test_what_plans_is_not_imported_for_a_kept_plan() -> None:
    code = (
        "import sys, superkernel as sk; b = sk.GraphBuilder('g'); b.output(b.softmax(b.input('x', (8, 8)), axis=1));"
        "sk.compile(b.graph(), threads=2); print(*sys.modules)"
    )
    imported = [
        set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
        for _ in range(2)
    ]
    planning = {f"superkernel.{name}" for name in ("scheduler.place", "registry.selection", "codegen.host.emitters")}
    assert planning <= imported[0]
    assert not planning & imported[1]
