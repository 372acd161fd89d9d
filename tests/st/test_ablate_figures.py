"""What fusion must give a decoder's step, and that the figures of an ablation keep to their bounds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
from ablation_models import encoder
from models_aicore import branching, residual_chain

import superkernel as sk
from superkernel.analysis.ablate import ablation_target, figures
from superkernel.analysis.ablate_figures import Figures, Measure
from superkernel.analysis.sync_bound import Chain, longest_chain
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.ir.graph import Graph
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
    assert 0 <= found.chain.bound_ns <= found.chain.latency_ns


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


def test_the_guide_s_figures_of_an_encoder_layer_are_printed() -> None:
    guide = (Path(__file__).parents[2] / "docs/accelerator.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"```text\n(pure synchronisation.*?)\n```", guide, re.DOTALL)
    assert said in "\n".join(figures(encoder(), ablation_target("a3")).lines())


@pytest.mark.parametrize("make", [residual_chain, branching, models.moe_layer], ids=lambda f: f.__name__)
def test_small_models_keep_to_their_bounds(make: Any) -> None:
    found = figures(make(), ablation_target("mini"))
    _holds_its_bounds(found)
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["bounds"]["speedup"] == pytest.approx(found.bounds[0])
    assert plain["chain"]["events"] == found.chain.events > 0
    text = "\n".join(found.lines())
    assert f"{found.chain.events} events in turn, {found.chain.wide} of all cores" in text
    assert f"({found.barriers} barriers)" in text
    assert 0 < found.chain.events <= found.events
    assert plain["barriers"] == found.barriers > 0


def test_no_figure_holds_what_numpy_takes_between_launches() -> None:
    """The tables of a mixture of experts are computed on the device, launched one by one and with full barriers too."""
    first, second = (figures(models.moe_layer(), ablation_target("mini")) for _ in range(2))
    assert first == second
    assert first.bounds[0] is not None
    assert 1 < first.speedup < first.bounds[0] < 10


def test_what_is_left_of_the_barriers_is_explained() -> None:
    """The lower bound stands beside the figure, with what it consists of; where branches undercut it, there is none."""
    chain = Chain(3, 2760.0, 1000.0, wide=3)
    found = Figures(20.0, Measure(15.0, 6.0), Measure(10.0, 2.5), 8.0, chain, barriers=6, events=4)
    text = "\n".join(found.lines())
    assert "2.50 us left of 6.00 us (6 barriers), at least 1.00 us" in text
    assert "4 events left, each of them needed; the longest chain: 3 events in turn, 3 of all cores, 2.76 us" in text
    assert "hidden in this run: 0.26 us; at most 1.76 us" in text
    assert "beside that chain" not in text
    beside = replace(found, fused=Measure(10.0, 3.0))
    assert "waits for events beside that chain: 0.24 us" in "\n".join(beside.lines())
    below = replace(found, fused=Measure(10.0, 0.9))
    assert below.bounds[2] == 1.0
    text = "\n".join(below.lines())
    assert "at least" not in text
    assert "no lower bound can be given" in text


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
    kinds: Any = {CoreKind(name): steps for name, steps in programs.items()}
    return AicorePlan((), 2, 4, 2, kinds, events, (), 8, 15)


def test_a_chain_takes_the_dearest_way() -> None:
    """0 -> 1 -> 3 by events of all cores; 2 hears of 0 within its group only."""
    target = load_target("mini")
    own, group = (target.nanoseconds(target.cycles(ns)) for ns in (target.sync.core_full_ns, target.sync.group_ns))
    wide = target.nanoseconds(target.cycles(target.sync.core_full_ns) + target.cycles(target.sync.group_ns))
    plan = _made(
        Event(0, Mode.ALL, None, 0, 0),
        Event(1, Mode.GROUP, CoreKind.CUBE, 1, 0),
        Event(2, Mode.ALL, None, 2, 1),
        cube=(Run(0), Signal(0), Signal(1), Run(2), Await(0, 3), Await(2, 3), Signal(2), Run(3)),
        vector=(Await(1, 1), Await(0, 1), Signal(0), Run(1), Signal(2), Await(2, 3)),
    )
    nothing = dict.fromkeys([(0, 1), (0, 3), (1, 2), (2, 3)], 0.0)
    assert longest_chain(plan, target, nothing) == Chain(2, 2 * wide, 2 * wide)
    some = nothing | {(0, 1): wide, (0, 3): 200.0, (2, 3): 100.0}
    assert longest_chain(plan, target, some) == Chain(2, 2 * wide, wide - 100.0)
    assert longest_chain(plan, target, {}).bound_ns == 0
    near = _made(Event(0, Mode.GROUP, CoreKind.CUBE, 0, 0), cube=(Run(0), Signal(0)), vector=(Await(0, 1), Run(1)))
    assert longest_chain(near, target, {(0, 1): 0.0}) == Chain(1, group, group)
    alone = _made(Event(0, Mode.TYPE, CoreKind.CUBE, 0, 0), cube=(Run(0), Signal(0), Await(0, 1), Run(1)), vector=())
    assert longest_chain(alone, target, {(0, 1): 0.0}) == Chain(1, own, own)
    assert longest_chain(_made(cube=(Run(0), Run(1)), vector=(Run(0),)), target, {}) == Chain()


def test_a_chain_is_no_longer_than_the_plan() -> None:
    plan = _plan(models.transformer(layers=1))
    nothing = {(e.index, s): 0.0 for e in plan.events for s in range(len(plan.boundaries))}
    found = longest_chain(plan, load_target("mini"), nothing)
    assert 0 < found.events == len(found.links) <= len(plan.events)
    assert found.bound_ns == found.latency_ns
    plenty = dict.fromkeys(nothing, 1e9)
    assert longest_chain(plan, load_target("mini"), plenty).bound_ns == 0
