"""Of real plans, under any options, nothing can be left out: the verifier refuses a plan without any single event,
await, signal, fence, notification, part in barriers, or without what stands ahead of any single operand.

Kept though the bytes do not need them are: events of `sync` "full" and "type-range" (wider than the bytes need, which
is what these levels are for); drains without Early-Start; and takes of an event ahead of one operand of a kernel where
another of its operands needs it and this one only needs an earlier event of the same flags. The core takes all of them
in that kernel whichever operand it comes to first, so that no take is too many, though one may come early.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import models
import pytest
from models_aicore import branching, residual_chain
from models_small import decoder, encoder, experts, mixed
from option_sets import Variants

from superkernel.sync.aicore.mutate import edits, without_event
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.sync.verify_pairs import Accesses

MODELS = {f.__name__: f for f in (encoder, decoder, residual_chain, branching, mixed, experts)}
MODELS["ragged"] = lambda: models.ragged_attention(batch=2, tokens=16, width=64)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "late": {"early_start": False},
    "given order": {"streams": "off", "locality": "off", "weight_prefetch": "max"},
    "types": {"sync": "type-range"},
    "full": {"sync": "full", "weight_prefetch": "max", "launches": "fused"},
}


@cache
def bench(model: str) -> Variants:
    return Variants(MODELS[model](), "mini")


def plan_of(model: str, options: str) -> tuple[AicorePlan, dict[int, int]]:
    compiled = bench(model).made({"preload": "none", "split": 1, **OPTIONS[options]})
    rows = zip(compiled.schedule.subops, compiled.schedule.tilings, strict=True)
    return compiled.plan, {s.index: t.units for s, t in rows}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_no_single_step_can_be_left_out(model: str, options: str) -> None:
    plan, units = plan_of(model, options)
    wrong, certificate = check_aicore_plan(plan, units)
    assert certificate is not None, wrong
    tried, accesses = list(edits(plan)), Accesses(plan.tasks)
    assert len(tried) >= len(plan.events)
    accepted = [name for name, edited in tried if check_aicore_plan(edited, units, accesses)[1] is not None]
    assert accepted == []


@pytest.mark.parametrize("options", ["default", "late", "given order"])
@pytest.mark.parametrize("model", MODELS)
def test_no_event_of_a_minimal_plan_is_removable(model: str, options: str) -> None:
    plan, units = plan_of(model, options)
    assert plan.events
    for event in plan.events:
        wrong, certificate = check_aicore_plan(without_event(plan, event.index), units)
        assert certificate is None, f"{event} is not needed"
        assert wrong


@pytest.mark.parametrize("model", ["encoder", "experts"])
def test_accesses_may_be_kept_from_another_plan(model: str) -> None:
    """What meets is the same in all plans of the same tasks: the verifier says the same, kept or not."""
    plan, units = plan_of(model, "default")
    accesses = Accesses(plan.tasks)
    assert check_aicore_plan(plan, units, accesses) == check_aicore_plan(plan, units)
    for event in plan.events:
        faulty = without_event(plan, event.index)
        assert check_aicore_plan(faulty, units, accesses) == check_aicore_plan(faulty, units)
