"""Early-Start in the traces of runs: the head of a kernel (its weights) passes beside the tail of the one before, and
signals hold nobody up. Without it, or where there is nothing ahead of the first wait, there is no overlap."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import superkernel as sk
from superkernel.analysis.ablate import ablate, ablation_target
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.timeline import Activity, Timeline, summed
from superkernel.ir.graph import Graph
from superkernel.sim.trace import COMMAND
from superkernel.sync.aicore.plan import Drain, Run

PRODUCTS = 5


@cache
def products() -> Graph:
    """Products in a row, each of everything that the one before made; weights of 512 KiB each."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("products")
    x = b.input("x", (16, 512), "f16")
    for number in range(PRODUCTS):
        weight = rng.standard_normal((512, 512), np.float32) * np.float32(0.05)
        x = x @ b.constant(weight.astype(np.float16), name=f"w{number}")
    b.output(x, "y")
    return b.graph()


@cache
def without_weights() -> Graph:
    """Softmaxes along the one axis and the other: the first thing that each does is to read what it waits for."""
    b = sk.GraphBuilder("without_weights")
    x = b.input("x", (96, 96), "f16")
    for _ in range(4):
        x = b.softmax(x).transpose(1, 0)
    b.output(x, "y")
    return b.graph()


@cache
def traced(make: str, target: str, early_start: bool) -> tuple[AicoreCompiled, Timeline]:
    graph = {"products": products, "without_weights": without_weights}[make]()
    options = {"early_start": early_start, "weight_prefetch": "none", "streams": "off"}
    kernel = sk.compile(graph, target=target, options=options)
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    io = kernel._io(list(kernel._random().values()))
    run = compiled.executable.simulate(io, mode="timing", races=False, trace=True)
    return compiled, Timeline.of(compiled, run.launches[0])


def overlaps(line: Timeline) -> list[int]:
    """By boundary: cycles from the first command of a sub-operator, on any core, to the end of the last one of the
    sub-operator before it; 0 where there is no overlap."""
    rows = line.rows[line.rows["kind"] == COMMAND]
    of = rows["marker"] // 4
    spans = [rows[of == subop] for subop in range(line.subops)]
    return [max(0, int(a["end"].max()) - int(b["begin"].min())) for a, b in pairwise(spans) if len(a) and len(b)]


def cycles(line: Timeline) -> int:
    return line.end - line.begin


@pytest.mark.parametrize("target", ["mini", "a3"])
def test_heads_pass_beside_tails(target: str) -> None:
    plain, early = (traced("products", target, on)[1] for on in (False, True))
    assert overlaps(plain) == [0] * (PRODUCTS - 1)
    found = overlaps(early)
    assert len(found) == PRODUCTS - 1
    assert min(found) > 0
    assert cycles(early) < 0.9 * cycles(plain)
    waits = [summed([line.split()]) for line in (plain, early)]
    assert waits[1][Activity.PURE] < 0.7 * waits[0][Activity.PURE]


def test_the_weights_come_first_and_then_the_wait() -> None:
    """On a core that waits inside a product, commands of that product begin before the flag is taken."""
    _, line = traced("products", "mini", True)
    ahead = 0
    for take in line.takes:
        rows = line.of_core[take.core]
        mine = rows[(rows["kind"] == COMMAND) & (rows["marker"] // 4 == take.subop)]
        if take.event is not None and len(mine):
            ahead += int(mine["begin"].min()) < take.end
    assert ahead >= PRODUCTS - 1


def test_what_the_programs_say() -> None:
    early, plain = (traced("products", "mini", on)[0].plan for on in (True, False))
    inside = [s for program in early.programs.values() for s in program if isinstance(s, Run) and s.waits]
    assert len(inside) >= PRODUCTS - 1
    assert not any(isinstance(s, Drain) for program in early.programs.values() for s in program)
    assert any(isinstance(s, Drain) for program in plain.programs.values() for s in program)
    assert not any(isinstance(s, Run) and s.waits for program in plain.programs.values() for s in program)


def test_it_brings_nothing_ahead_where_all_depends_on_the_wait() -> None:
    """No command of a softmax begins before the flag is there: only signals pass sooner."""
    _, line = traced("without_weights", "mini", True)
    for take in line.takes:
        rows = line.of_core[take.core]
        mine = rows[(rows["kind"] == COMMAND) & (rows["marker"] // 4 == take.subop)]
        if take.event is not None and len(mine):
            assert int(mine["begin"].min()) >= take.fired
    constants = [c for c in traced("without_weights", "mini", True)[0].schedule.constants if c.nbytes > 4096]
    assert constants == []


def test_a_single_sub_operator_gains_nothing() -> None:
    b = sk.GraphBuilder("alone")
    b.output(b.softmax(b.input("x", (64, 256), "f16")), "y")
    rows = {row.name: row for row in ablate(b.graph(), ablation_target("mini")).rows}
    assert rows["early start"].verdict == "no gain here"
    assert rows["minimal sync"].verdict == "no gain here"
