"""Independent branches: in step on disjoint cores, or in turn, where that is faster, and as given where each of them
fills the machine. Streams that nodes name are an order of issue. No bit of a result depends on any of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from models_aicore import fork_and_join

import superkernel as sk
from superkernel.analysis.ablate import ablate, ablation_target
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.report import SimReport
from superkernel.builder.tensor import Tensor
from superkernel.core.errors import VerificationError
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.runtime.kernel import Kernel
from superkernel.scheduler.aicore.streams import Arrangement, _State, arrange, streams_of
from superkernel.scheduler.dependences import dependences, issued
from superkernel.sync.aicore.mutate import without_event
from superkernel.sync.aicore.plan import CoreKind, Mode
from superkernel.sync.aicore.verify import verify_aicore


def _products(b: sk.GraphBuilder, x: Tensor, steps: int, width: int, name: str) -> Tensor:
    rng = np.random.default_rng(len(name))
    for number in range(steps):
        x = x @ b.constant(rng.standard_normal((width, width), np.float32) * 0.05, name=f"{name}{number}")
    return x


@cache
def two_chains(rows: int = 64, width: int = 128, steps: int = 6) -> Graph:
    """Two chains of products that share nothing, one written down behind the other."""
    b = sk.GraphBuilder("two_chains")
    for name in ("left", "right"):
        x = b.input(f"x_{name}", (rows, width))
        x = _products(b, x, steps, width, name)
        b.output(x, f"y_{name}")
    return b.graph()


@cache
def cube_beside_vector(products: bool = True, softmaxes: bool = True) -> Graph:
    """A chain of products, and a chain of softmaxes."""
    b = sk.GraphBuilder("cube_beside_vector")
    if products:
        b.output(_products(b, b.input("x", (128, 256)), 6, 256, "w"), "y")
    if softmaxes:
        v = b.input("v", (512, 256), "f16")
        for _ in range(6):
            v = b.softmax(v * 2.0)
        b.output(v, "s")
    return b.graph()


@cache
def few_rows(named: bool = False) -> Graph:
    """Two chains of softmaxes of fewer rows than the large accelerator has vector cores."""
    b = sk.GraphBuilder("few_rows")
    for name in ("left", "right"):
        v = b.input(f"v_{name}", (32, 256), "f16")
        for _ in range(6):
            if named:
                with b.stream(name):
                    v = b.softmax(v * 2.0)
            else:
                v = b.softmax(v * 2.0)
        b.output(v, f"s_{name}")
    return b.graph()


def made(graph: Graph, target: Any = "mini", **options: Any) -> tuple[Kernel, AicoreCompiled]:
    kernel = sk.compile(graph, target=target, options={"weight_prefetch": "none", **options})
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    return kernel, compiled


def run(kernel: Kernel) -> tuple[SimReport, dict[str, bytes]]:
    result = kernel.run(random_inputs(kernel.inputs, 0))
    assert isinstance(result.report, SimReport)
    return result.report, {name: array.tobytes() for name, array in result.outputs.items()}


def timed(kernel: Kernel, compiled: AicoreCompiled) -> int:
    io = kernel._io(list(kernel._random().values()))
    return compiled.executable.simulate(io, mode="timing", races=False).launches[0].cycles


def cores_of(compiled: AicoreCompiled, name: str) -> set[int]:
    index = next(s.index for s in compiled.schedule.subops if s.name == name)
    return {task.core for task in compiled.schedule.tasks if task.subop == index}


# Where it is faster ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["mini", "a3"])
def test_two_chains_of_small_products_go_in_turn(target: str) -> None:
    """The flag of one travels while the other computes."""
    graph = two_chains()
    plain, serial = made(graph, target, streams="off")
    kernel, turns = made(graph, target)
    assert timed(kernel, turns) < 0.75 * timed(plain, serial)
    names = [s.name for s in turns.schedule.subops if s.kernel.startswith("aicore.matmul")]
    first, second = names[::2], names[1::2]
    assert [s.name for s in serial.schedule.subops if s.name in names] == first + second
    assert len(turns.plan.events) <= len(serial.plan.events)
    assert sum(b.implied for b in turns.plan.boundaries) > 0
    explained = kernel.explain("y_left").text()
    assert "in turn" in explained
    assert "as given" in explained
    predicted = dict(kernel.summary()["streams"])
    gained = timed(plain, serial) - timed(kernel, turns)
    assert 0.5 * gained < predicted["as given"] - predicted["in turn"] < 1.5 * gained
    if target == "mini":
        assert run(kernel)[1] == run(plain)[1]


@pytest.mark.parametrize("named", [False, True])
def test_chains_that_leave_cores_idle_go_side_by_side(named: bool) -> None:
    plain, serial = made(few_rows(), "a3", streams="off")
    kernel, beside = made(few_rows(named), "a3")
    assert timed(kernel, beside) < 0.7 * timed(plain, serial)
    left, right = cores_of(beside, "s_left"), cores_of(beside, "s_right")
    assert left
    assert right
    assert not left & right
    assert beside.plan.events == (), "each core goes on from what it wrote itself"
    assert "side by side" in kernel.explain("s_left").text()
    assert run(kernel)[1] == run(plain)[1]


def test_events_between_streams_are_only_those_that_are_needed() -> None:
    """Each event that is left has its conflict: without it the verifier finds a race."""
    plan = made(two_chains())[1].plan
    needed = [b for b in plan.boundaries if b.events]
    assert all(b.witnesses for b in needed)
    for event in plan.events:
        if event.mode is Mode.TYPE:
            with pytest.raises(VerificationError, match="race"):
                verify_aicore(without_event(plan, event.index))


def test_a_cube_chain_passes_beside_a_vector_chain() -> None:
    both = timed(*made(cube_beside_vector()))
    cube, vector = timed(*made(cube_beside_vector(softmaxes=False))), timed(*made(cube_beside_vector(products=False)))
    assert both < 0.75 * (cube + vector)
    plan = made(cube_beside_vector())[1].plan
    assert [e.mode for e in plan.events] == [Mode.ALL, *[Mode.TYPE] * (len(plan.events) - 1)], "the cast of x, no other"
    assert both < 0.7 * timed(*made(cube_beside_vector(), streams="off")), "memory of their own"


def test_branches_have_shares_and_the_rest_has_all_cores() -> None:
    kernel, compiled = made(fork_and_join(), "a3")
    for option in ("locality", "streams"):
        assert timed(kernel, compiled) < timed(*made(fork_and_join(), "a3", **{option: "off"}))
    order = [s.name for s in compiled.schedule.subops]
    stem, left, right = (cores_of(compiled, name) for name in [n for n in order if n.startswith("softmax")][:3])
    assert not left & right
    assert len(stem) > max(len(left), len(right))
    assert run(kernel)[1] == run(made(fork_and_join(), "a3", streams="off")[0])[1]
    for event in compiled.plan.events:  # cores of one branch do their part of the synchronisation of the other
        if event.setters is CoreKind.VECTOR:
            vector = compiled.plan.cores(CoreKind.VECTOR)
            assert set(compiled.plan.observed(event, vector[0])) == set(vector)


def test_the_ablation_has_a_step_for_it() -> None:
    rows = {row.name: row for row in ablate(two_chains(), ablation_target("mini")).rows}
    assert rows["streams"].gain is not None
    assert rows["streams"].gain > 0.02
    assert rows["streams"].verdict == ""


# Where it is not ------------------------------------------------------------------------------------------------------


def test_branches_that_fill_the_machine_stay_as_they_are() -> None:
    graph = two_chains(512, 512, 2)
    kernel, compiled = made(graph)
    plain, off = made(graph, streams="off")
    assert [s.name for s in compiled.schedule.subops] == [s.name for s in off.schedule.subops]
    assert [(t.core, t.begin, t.end) for t in compiled.plan.tasks] == [(t.core, t.begin, t.end) for t in off.plan.tasks]
    assert timed(kernel, compiled) < 1.01 * timed(plain, off)
    assert "as given" in kernel.explain("y_left").text()


def test_a_chain_has_no_branches_to_speak_of() -> None:
    _, compiled = made(cube_beside_vector(softmaxes=False))
    assert not any("stream" in note for note in compiled.schedule.notes)


# Streams that nodes name ----------------------------------------------------------------------------------------------


def crossing(order: tuple[str, ...]) -> Graph:
    """Four softmaxes that share nothing; the streams of the first ones are given."""
    b = sk.GraphBuilder("crossing")
    for number, stream in enumerate(order):
        x = b.input(f"x{number}", (16, 64 * (number + 1)))
        with b.stream(stream):
            b.output(b.softmax(x), f"y{number}")
    return b.graph()


@pytest.mark.parametrize("target", ["mini", "host"])
@pytest.mark.parametrize("streams", [("a", "b", "a", "b"), ("a", "a", "a", "a"), ("b", "a", "a", "b")])
def test_a_named_stream_is_an_order_of_issue(streams: tuple[str, ...], target: str) -> None:
    compiled = sk.compile(crossing(streams), target=target, threads=2 if target == "host" else None)._compiled
    order = [sub.name for sub in compiled.schedule.subops]
    for stream in set(streams):
        own = [f"y{n}" for n, s in enumerate(streams) if s == stream]
        found = [name for name in order if name in own]
        assert found == own


def test_data_is_there_whatever_stream_made_it() -> None:
    """Every node on another stream than its producer."""
    b = sk.GraphBuilder("zigzag")
    x = b.input("x", (64, 128))
    for number in range(4):
        with b.stream(number % 2):
            x = _products(b, x, 1, 128, f"w{number}")
    b.output(x, "y")
    plain = sk.GraphBuilder("zigzag")
    x = plain.input("x", (64, 128))
    for number in range(4):
        x = _products(plain, x, 1, 128, f"w{number}")
    plain.output(x, "y")
    assert run(made(b.graph())[0])[1] == run(made(plain.graph())[0])[1]


def test_streams_cover_the_graph_with_chains() -> None:
    _, compiled = made(fork_and_join(), streams="off")
    grouping = compiled.grouping
    before = dependences(grouping)
    streams = streams_of(grouping, before)
    assert len(set(streams)) == 2
    for index, row in enumerate(before):
        ahead = [i for i in range(index) if streams[i] == streams[index]]
        assert not ahead or max(ahead) in row, "a stream is a chain"
    assert issued(grouping) == before, "nobody has named one"


# Bits, and the verifier -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["minimal", "type-range", "full"])
@pytest.mark.parametrize("streams", ["auto", "off"])
def test_no_setting_changes_a_bit(sync: str, streams: str) -> None:
    expected = run(made(fork_and_join(), streams="off", sync="full", early_start=False)[0])[1]
    assert run(made(fork_and_join(), streams=streams, sync=sync)[0])[1] == expected


@pytest.mark.parametrize("target", ["mini", "a3"])
def test_many_branches_are_arranged_with_few_looks_at_the_cores(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Four times as many parts of a concatenation take about four times as many: each is looked at when its turn may
    have come."""

    class Arranged(Exception):
        pass

    def arranged(*args: Any) -> Arrangement:
        arrange(*args)
        raise Arranged

    looks = 0
    begin = _State.begin

    def counted(self: _State, place: Any) -> float:
        nonlocal looks
        looks += 1
        return begin(self, place)

    monkeypatch.setattr("superkernel.scheduler.aicore.place.arrange", arranged)
    monkeypatch.setattr(_State, "begin", counted)
    found = []
    for parts in (50, 200):
        b = sk.GraphBuilder("wide")
        b.output(b.concat(*(b.input(f"x{i}", (3, 5)) for i in range(parts)), axis=1))
        looks = 0
        with pytest.raises(Arranged):
            sk.compile(b.graph(), target=target, options={"cache": False})
        found.append(looks)
    assert found[0] > 3 * 50  # three arrangements are played
    assert found[1] <= 6 * found[0]
