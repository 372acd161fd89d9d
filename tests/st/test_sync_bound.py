"""The least pure synchronisation of a program: reached exactly where nothing can hide a flag, never undercut by other
levels of synchronisation of the same kernels on the same cores."""

from __future__ import annotations

from typing import Any

import models
import pytest
from models_aicore import branching, residual_chain
from option_sets import Variants

import superkernel as sk
from superkernel.analysis.ablate import ablation_target, figures
from superkernel.analysis.sync_bound import ChainLink, Dependences, beside, sync_lower_bound
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.kernel import AicoreKernel
from superkernel.backends.aicore.timeline import Activity, Timeline, summed
from superkernel.ir.graph import Graph
from superkernel.sync.aicore.plan import AicorePlan, CoreKind, Event, Mode

CODE = {"preload": "max", "split": 1, "weight_prefetch": "none", "launches": "fused"}


def powers(count: int, size: int = 128) -> Graph:
    """Products without a constant: nothing can be loaded ahead of a result."""
    b = sk.GraphBuilder("powers")
    x = b.input("x", (size, size))
    value = x
    for _ in range(count):
        value = value @ x
    b.output(value, "y")
    return b.graph()


def normed(size: int = 64) -> Graph:
    """Softmax down and across: each row needs all of what was computed by columns."""
    b = sk.GraphBuilder("normed")
    b.output(b.softmax(b.softmax(b.input("x", (size, size)), axis=0), axis=1), "y")
    return b.graph()


@pytest.mark.parametrize("graph", [powers(3), normed()], ids=lambda g: str(g.name))
def test_the_bound_is_reached_where_nothing_can_hide_a_flag(graph: Graph) -> None:
    found = figures(graph, ablation_target("mini"))
    assert found.chain.bound_ns == pytest.approx(found.chain.latency_ns, rel=0.01)
    assert found.fused.pure_us == pytest.approx(found.chain.bound_ns / 1000)
    assert found.pure_cut == pytest.approx(found.bounds[2])


def _traced(compiled: AicoreCompiled) -> tuple[list[Timeline], float]:
    """A run, and the pure synchronisation in it; ns."""
    kernel = AicoreKernel(compiled)
    io = kernel._io(list(kernel._random().values()))
    run = compiled.executable.simulate(io, mode="timing", races=False, trace=True)
    lines = [Timeline.of(compiled, launch) for launch in run.launches]
    pure = summed(line.split() for line in lines)[Activity.PURE]
    return lines, pure * compiled.target.nanoseconds(1)


@pytest.mark.parametrize("make", [models.transformer, residual_chain, branching, models.moe_layer])
def test_no_plan_of_the_same_kernels_undercuts_the_bound(make: Any) -> None:
    variants = Variants(make(), "mini")
    default = variants.made(CODE)
    lines, pure = _traced(default)
    chain = sync_lower_bound(default, lines)
    assert 0 <= chain.bound_ns <= chain.latency_ns
    assert chain.bound_ns <= pure
    for levels in ({"sync": "type-range"}, {"sync": "full"}, {"early_start": False}):
        _, other = _traced(variants.made({**CODE, **levels}))
        assert other >= chain.bound_ns


# What stands beside a chain -------------------------------------------------------------------------------------------


def _bits(*rows: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(1 << n for n in row) for row in rows)


def test_work_beside_a_chain_counts_once() -> None:
    """0 -> 1 -> 2 by flags of all cores; 3 needs nothing and nobody needs it; 4 needs 0 by such a flag."""
    order = Dependences(
        needs=_bits((), (0,), (0, 1), (), (0,)),
        needed=_bits((1, 2, 4), (2,), (), (), ()),
        far=_bits((1, 2, 4), (2,), (), (), ()),
        direct=((), (0,), (1,), (), (0,)),
    )
    events = (Event(0, Mode.ALL, None, 0, 0), Event(1, Mode.ALL, None, 1, 1))
    plan = AicorePlan((), 2, 4, 2, {CoreKind.CUBE: (), CoreKind.VECTOR: ()}, events, (), 8, 15)
    links, left = (ChainLink(0, 1, 900.0), ChainLink(1, 2, 900.0)), {(0, 1): 900.0, (1, 2): 900.0}
    assert order.beside(0, 1) == [3]  # 4 cannot begin sooner than 1
    assert order.beside(1, 2) == [3, 4]
    assert beside(links, order, plan, {3: 500.0}, left) == 500.0
    assert beside(links, order, plan, {3: 5000.0}, left) == 1800.0
    assert beside(links, order, plan, {3: 500.0, 4: 5000.0}, left) == 1400.0
    assert beside(links, order, plan, {}, left) == 0.0


def test_what_a_receiver_needs_as_well_hides_no_flag() -> None:
    """0 and 1 both make what 2 needs: whichever is last, its own flag is left."""
    order = Dependences(
        needs=_bits((), (), (0, 1)), needed=_bits((2,), (2,), ()), far=_bits((2,), (2,), ()), direct=((), (), (0, 1))
    )
    events = (Event(0, Mode.ALL, None, 0, 0), Event(1, Mode.ALL, None, 1, 1))
    plan = AicorePlan((), 2, 4, 2, {CoreKind.CUBE: (), CoreKind.VECTOR: ()}, events, (), 8, 15)
    links = (ChainLink(1, 2, 900.0),)
    assert beside(links, order, plan, {0: 5000.0}, {(0, 2): 900.0, (1, 2): 900.0}) == 0.0
    assert beside(links, order, plan, {0: 5000.0}, {(0, 2): 600.0, (1, 2): 900.0}) == 300.0
    assert beside(links, order, plan, {0: 5000.0}, {(1, 2): 900.0}) == 900.0  # nothing is known of its flag
