"""Of real plans, under any options, nothing can be left out: the verifier refuses a plan without any single event,
await, signal, fence, notification, part in meetings, or without what stands ahead of any single operand.

Kept though the bytes do not need them are: events of `sync` "full" and "type-range" (wider than the bytes need, which
is what these levels are for); drains without Early-Start; and takes of an event ahead of one operand of a kernel where
another of its operands needs it and this one only needs an earlier event of the same flags. The core takes all of them
in that kernel whichever operand it comes to first, so that no take is too many, though one may come early.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import models
import pytest
from aicore_plans import without_event
from test_aicore_ablation import Bench, branching, decoder, encoder, experts, mixed, residual_chain

from superkernel.sync.aicore.plan import AicorePlan, Await, HartKind, OperandWait, Run, Signal, Step, awaited
from superkernel.sync.aicore.service import AwaitCount, Notify
from superkernel.sync.aicore.verify import check_aicore_plan

MODELS = {f.__name__: f for f in (encoder, decoder, residual_chain, branching, mixed, experts)}
MODELS["ragged"] = lambda: models.ragged_attention(batch=2, tokens=16, width=64)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "late": {"early_start": False},
    "given order": {"streams": "off", "weight_prefetch": "max"},
    "types": {"sync": "type-range"},
    "full": {"sync": "full", "weight_prefetch": "max", "launches": "fused"},
}


@cache
def bench(model: str) -> Bench:
    return Bench(MODELS[model](), "mini")


def plan_of(model: str, options: str) -> tuple[AicorePlan, dict[int, int]]:
    compiled = bench(model).made({"preload": "none", "split": 1, **OPTIONS[options]})
    rows = zip(compiled.schedule.subops, compiled.schedule.tilings, strict=True)
    return compiled.plan, {s.index: t.units for s, t in rows}


def edits(plan: AicorePlan) -> Iterator[tuple[str, AicorePlan]]:
    """The plan with a single step of a single type of hart left out."""
    for kind, program in plan.programs.items():
        for at, step in enumerate(program):
            for name, left in without_one(step):
                steps = (*program[:at], *left, *program[at + 1 :])
                yield f"{kind.value} step {at}, {step}: without {name}", _with(plan, kind, steps)
    for launch, service in enumerate(plan.service):
        for at, order in enumerate(service):
            if isinstance(order, AwaitCount):
                fewer = (*service[:at], *service[at + 1 :])
                services = (*plan.service[:launch], fewer, *plan.service[launch + 1 :])
                yield f"service step {at}, {order}", replace(plan, service=services)


def without_one(step: Step) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """A step of synchronisation without one of its parts, and what remains of it."""
    if isinstance(step, (Await, Signal, Notify)):
        yield "it", ()
    if isinstance(step, Run):
        for event in dict.fromkeys(awaited(step)):
            waits = [replace(w, events=tuple(e for e in w.events if e != event)) for w in step.waits]
            yield f"event {event}", (replace(step, waits=tuple(waits)),)
        for number, wait in enumerate(step.waits):
            if wait.events:
                yield f"the events of operand {wait.operand}", (_other_wait(step, number, replace(wait, events=())),)
            if wait.fence:
                yield f"the fence of operand {wait.operand}", (_other_wait(step, number, replace(wait, fence=False)),)
        if step.feeds:
            yield "its part in meetings", (replace(step, feeds=0),)


def _other_wait(step: Run, number: int, wait: OperandWait) -> Run:
    return replace(step, waits=(*step.waits[:number], wait, *step.waits[number + 1 :]))


def _with(plan: AicorePlan, kind: HartKind, steps: tuple[Step, ...]) -> AicorePlan:
    return replace(plan, programs={**plan.programs, kind: steps})


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_no_single_step_can_be_left_out(model: str, options: str) -> None:
    plan, units = plan_of(model, options)
    wrong, certificate = check_aicore_plan(plan, units)
    assert certificate is not None, wrong
    tried = list(edits(plan))
    assert len(tried) >= len(plan.events)
    accepted = [name for name, edited in tried if check_aicore_plan(edited, units)[1] is not None]
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
