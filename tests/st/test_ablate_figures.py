"""What fusion must give a decoder's step, and that the figures of an ablation keep to their bounds."""

from __future__ import annotations

import json
from typing import Any

import models
import pytest
from models_aicore import branching, residual_chain

import superkernel as sk
from superkernel.ablate import ablation_target, figures
from superkernel.ablate_figures import Chain, Figures, Measure, longest_chain
from superkernel.graph import Graph
from superkernel.pipeline_aicore import AicoreCompiled
from superkernel.sync.aicore.plan import AicorePlan, Await, CoreKind, Event, Mode, Run, Signal
from superkernel.target.aicore import load_target

LAUNCH_NS = 1700


def _holds_its_bounds(found: Figures) -> None:
    speedup, saved, pure_cut = found.bounds
    assert speedup is not None
    assert saved is not None
    assert 1 < found.speedup <= speedup
    assert 0 < found.saved <= saved < 1
    assert found.pure_cut <= pure_cut <= 1
    assert 0 <= found.chain.floor_ns <= found.chain.latency_ns


@pytest.mark.slow
@pytest.mark.parametrize(("target", "layers"), [("a3", 8), ("mini", 2)])
def test_what_a_decode_step_must_gain(target: str, layers: int) -> None:
    """Twice as fast as one by one, 15 % faster than with barriers, half of their pure cost gone. Where that is less
    than 60 %, the events that follow from one another alone are more than the 40 % that could be left."""
    device = ablation_target(target)
    assert float(device.dispatch.launch_ns) == LAUNCH_NS
    found = figures(models.decode_step(layers=layers), device)
    assert found.speedup >= 2
    assert found.saved >= 0.15
    assert found.pure_cut >= 0.5
    _holds_its_bounds(found)
    if found.pure_cut < 0.6:
        assert found.chain.latency_ns / 1000 > 0.4 * found.full.pure_us
        assert found.fused.pure_us < found.chain.latency_ns / 1000


@pytest.mark.parametrize("make", [residual_chain, branching, models.moe_layer], ids=lambda f: f.__name__)
def test_small_models_keep_to_their_bounds(make: Any) -> None:
    found = figures(make(), ablation_target("mini"))
    _holds_its_bounds(found)
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["bounds"]["speedup"] == pytest.approx(found.bounds[0])
    assert plain["chain"]["events"] == found.chain.events > 0
    assert f"{found.chain.events} events in turn" in "\n".join(found.lines())


def test_nothing_to_cut_is_no_cut() -> None:
    found = Figures(4.0, Measure(2.0, 0.0), Measure(2.0, 0.0), None, Chain())
    assert found.pure_cut == found.saved == 0.0
    assert found.bounds == (None, None, 0.0)
    assert "cannot be simulated" in "\n".join(found.lines())


# Chains ---------------------------------------------------------------------------------------------------------------


def _plan(graph: Graph) -> AicorePlan:
    compiled = sk.compile(graph, target="mini")._compiled
    assert isinstance(compiled, AicoreCompiled)
    return compiled.plan


def _made(*events: Event, **programs: tuple[Any, ...]) -> AicorePlan:
    kinds = {CoreKind(name): steps for name, steps in programs.items()}
    return AicorePlan((), 2, 4, 2, kinds, events, (), 8, 15)


def test_a_chain_takes_the_dearest_way() -> None:
    """0 -> 1 -> 3 by events of all cores; 2 hears of 0 within its group only."""
    target = load_target("mini")
    wide, group = float(target.sync.core_full_ns), float(target.sync.group_ns)
    plan = _made(
        Event(0, Mode.ALL, None, 0, 0),
        Event(1, Mode.GROUP, CoreKind.CUBE, 1, 0),
        Event(2, Mode.ALL, None, 2, 1),
        cube=(Run(0), Signal(0), Signal(1), Run(2), Await(0, 3), Await(2, 3), Signal(2), Run(3)),
        vector=(Await(1, 1), Await(0, 1), Signal(0), Run(1), Signal(2), Await(2, 3)),
    )
    assert longest_chain(plan, target, {}) == Chain(2, 2 * wide, 2 * wide)
    assert longest_chain(plan, target, {1: wide, 3: 100.0}) == Chain(2, 2 * wide, wide - 100.0)
    near = _made(Event(0, Mode.GROUP, CoreKind.CUBE, 0, 0), cube=(Run(0), Signal(0)), vector=(Await(0, 1), Run(1)))
    assert longest_chain(near, target, {}) == Chain(1, group, group)
    assert longest_chain(_made(cube=(Run(0), Run(1)), vector=(Run(0),)), target, {}) == Chain()


def test_a_chain_is_no_longer_than_the_plan() -> None:
    plan = _plan(models.transformer(layers=1))
    found = longest_chain(plan, load_target("mini"), {})
    assert 0 < found.events <= len(plan.events)
    assert found.floor_ns == found.latency_ns
    plenty = dict.fromkeys(range(len(plan.boundaries)), 1e9)
    assert longest_chain(plan, load_target("mini"), plenty).floor_ns == 0
