"""Plans for the accelerator: planned for random programs, proved by the independent verifier, broken on purpose."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from seeds import seeds

from superkernel.analysis.random_aicore import (
    CUBE,
    MINI,
    MIX,
    VECTOR,
    BufferOp,
    chain,
    random_ops,
    schedule_of,
    small_target,
)
from superkernel.core.errors import VerificationError
from superkernel.scheduler.families.aicore.base import AicoreKernelType
from superkernel.sync.aicore import planner
from superkernel.sync.aicore.mutate import without_event
from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
    CoreKind,
    Drain,
    Event,
    Form,
    HartKind,
    Mode,
    Run,
    Signal,
    Step,
)  # fmt: skip
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.aicore.verify import check_aicore_plan, verify_aicore


@pytest.mark.parametrize("early_start", [True, False])
@pytest.mark.parametrize("sync", ["minimal", "type-range", "full"])
@pytest.mark.parametrize("seed", seeds(12))
def test_random_programs_verify(seed: int, sync: str, early_start: bool) -> None:
    rng = random.Random(seed)
    schedule = schedule_of(random_ops(rng, rng.randint(2, 40)))
    plan = plan_aicore(schedule, MINI, sync=sync, early_start=early_start)
    certificate = verify_aicore(
        plan, {s.index: t.units for s, t in zip(schedule.subops, schedule.tilings, strict=True)}
    )
    assert certificate.tasks == len(schedule.tasks)
    assert certificate.events == len(plan.events)


@pytest.mark.parametrize("seed", seeds(20))
def test_few_conflicts_are_looked_at_like_many(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one or in columns: the plans are the same, with plenty of flags and with few."""
    rng = random.Random(seed)
    flags, limit = rng.choice((5, 8, 16)), rng.choice((1, 15))
    target = small_target(2, rng.choice((1, 2, 4)), flags_per_core=flags, flag_count_max=limit)
    schedule = schedule_of(random_ops(rng, 25), target)
    plans = []
    for few in (-1, 2, 1 << 30):
        monkeypatch.setattr(planner, "FEW", few)
        plans.append(plan_aicore(schedule, target))
    assert plans[0].events
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize("seed", range(30))
def test_no_event_of_a_minimal_plan_can_be_left_out(seed: int) -> None:
    rng = random.Random(100 + seed)
    plan = plan_aicore(schedule_of(random_ops(rng, 25)), MINI)
    assert plan.events
    for event in plan.events:
        wrong, certificate = check_aicore_plan(without_event(plan, event.index))
        assert certificate is None, f"event {event} is not needed"
        assert any("race" in v.message or "exceed" in v.message for v in wrong)


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 6])
def test_no_fence_can_be_left_out(seed: int) -> None:
    rng = random.Random(200 + seed)
    plan = plan_aicore(schedule_of(random_ops(rng, 25)), MINI)
    found = 0
    for kind, program in plan.programs.items():
        for at, step in enumerate(program):
            if isinstance(step, Run) and any(w.fence for w in step.waits):
                cut = Run(step.subop, tuple(replace(w, fence=False) for w in step.waits))
                programs = {**plan.programs, kind: (*program[:at], cut, *program[at + 1 :])}
                wrong, _ = check_aicore_plan(replace(plan, programs=programs))
                assert any("race" in v.message for v in wrong), f"the fence of {step} is not needed"
                found += 1
    assert found


@pytest.mark.parametrize(
    ("kinds", "whole", "form"),
    [
        ((VECTOR, VECTOR), False, Form.FENCE),
        ((VECTOR, VECTOR), True, Form.TYPE),
        ((CUBE, CUBE), False, Form.FENCE),
        ((CUBE, CUBE), True, Form.TYPE),
        ((CUBE, VECTOR), False, Form.GROUP),
        ((CUBE, VECTOR), True, Form.ALL),
        ((VECTOR, CUBE), False, Form.GROUP),
        ((VECTOR, CUBE), True, Form.ALL),
        ((MIX, CUBE), False, Form.GROUP),
        ((CUBE, MIX), False, Form.GROUP),
    ],
)
def test_the_narrowest_form_that_the_data_allows(kinds: tuple[AicoreKernelType, ...], whole: bool, form: Form) -> None:
    plan = plan_aicore(schedule_of(chain(*kinds, whole=whole)), MINI)
    assert plan.boundaries[1].form is form
    verify_aicore(plan)


def test_levels_are_wider_in_turn() -> None:
    schedule = schedule_of(chain(CUBE, VECTOR, VECTOR, CUBE, MIX, VECTOR))
    plans = [plan_aicore(schedule, MINI, sync=s) for s in ("minimal", "type-range", "full")]
    for plan in plans:
        verify_aicore(plan)
    wide = [sum(e.mode is not Mode.GROUP for e in p.events) for p in plans]
    everybody = [sum(e.mode is Mode.ALL for e in p.events) for p in plans]
    assert wide == [1, 5, 5]  # one vector core of a MIX range writes, both read
    assert everybody == [0, 2, 5]  # between kernels of one type each, that type sets alone


def _waits(plan: AicorePlan, kind: CoreKind, subop: int) -> dict[int, list[int]]:
    """By operand, the sub-operators behind which the events are set that it waits for."""
    run = next(s for s in plan.programs[kind] if isinstance(s, Run) and s.subop == subop)
    return {w.operand: [plan.events[e].after for e in w.events] for w in run.waits}


def test_operands_that_were_made_first_wait_for_less() -> None:
    ops = [BufferOp(CUBE, 4, (), 0), BufferOp(CUBE, 4, (), 1), BufferOp(CUBE, 4, ((1, True), (0, True)), 2)]
    plan = plan_aicore(schedule_of(ops), MINI)
    verify_aicore(plan)
    waits = _waits(plan, CoreKind.CUBE, 2)
    assert waits[1] == [0]
    assert waits[0] == [0, 1]  # flags of one family are taken in order, whichever operand comes first
    late = plan_aicore(schedule_of(ops), MINI, early_start=False)
    assert [e.after for e in late.events] == [1]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_there_are_no_more_rounds_than_a_kernel_has_entries(count: int) -> None:
    ops = [BufferOp(VECTOR, 4, (), n) for n in range(count)]
    ops.append(BufferOp(VECTOR, 4, tuple((n, True) for n in range(count)), 5))
    plan = plan_aicore(schedule_of(ops), MINI)
    verify_aicore(plan)
    assert [e.after for e in plan.events] == list(range(count))[-3:]
    assert all(waits[-1] >= operand for operand, waits in _waits(plan, CoreKind.VECTOR, count).items())


def test_an_event_of_all_cores_serves_operands_that_need_less() -> None:
    """The vector cores take it anyway: their older operand needs no event of its own."""
    ops = [
        BufferOp(VECTOR, 4, (), 0),
        BufferOp(CUBE, 4, ((0, True),), 1),
        BufferOp(VECTOR, 4, ((0, True), (1, True)), 2),
    ]
    plan = plan_aicore(schedule_of(ops), MINI)
    verify_aicore(plan)
    assert [(e.mode, e.after) for e in plan.events] == [(Mode.ALL, 0), (Mode.ALL, 1)]
    assert _waits(plan, CoreKind.VECTOR, 2) == {0: [0], 1: [0, 1]}


def test_where_flags_are_short_all_operands_wait_for_one_event() -> None:
    sync = replace(MINI.sync, flags_per_core=type(MINI.sync.flags_per_core)(3), flag_count_max=1)
    few = replace(MINI, sync=sync)
    ops = [BufferOp(CUBE, 4, (), 0), BufferOp(CUBE, 4, (), 1), BufferOp(CUBE, 4, ((0, True), (1, True)), 2)]
    plan = plan_aicore(schedule_of(ops), few)
    verify_aicore(plan)
    assert [e.after for e in plan.events] == [1]


def test_a_long_one_way_chain_does_not_overflow_counts() -> None:
    """Cube cores that run ahead of vector cores for ever, were nobody to hold them back."""
    ops = []
    for step in range(100):
        buffer = step % 3
        ops.append(BufferOp(CUBE, 2, ((5, False),), buffer))
        ops.append(BufferOp(VECTOR, 4, ((buffer, False),), 4))
    verify_aicore(plan_aicore(schedule_of(ops), MINI))


def _edited(plan: AicorePlan, kind: CoreKind, at: int, *steps: Any) -> AicorePlan:
    program = plan.programs[kind]
    return replace(plan, programs={**plan.programs, kind: (*program[:at], *steps, *program[at + 1 :])})


def test_each_check_rejects_its_canary() -> None:
    plan = plan_aicore(schedule_of(chain(CUBE, VECTOR, CUBE, VECTOR, whole=True)), MINI)
    program = plan.programs[CoreKind.VECTOR]
    run = next(i for i, s in enumerate(program) if isinstance(s, Run))
    signal = next(i for i, s in enumerate(program) if isinstance(s, Signal))
    event = plan.events[0]
    cases = {
        "is not run": _edited(plan, CoreKind.VECTOR, run),
        "repeat": _edited(plan, CoreKind.VECTOR, run, program[run], program[run]),
        "not signalled as often": _edited(plan, CoreKind.VECTOR, signal),
        "not awaited as often": _edited(plan, CoreKind.VECTOR, len(program) - 1, program[-1], Await(event.index, 0)),
        "two kinds of events": replace(
            plan, events=(*plan.events, Event(len(plan.events), Mode.TYPE, CoreKind.CUBE, event.flag, 0))
        ),
        "no such flag": replace(plan, events=(replace(event, flag=15), *plan.events[1:])),
        "left out or done twice": replace(plan, tasks=(replace(plan.tasks[0], begin=1, end=2), *plan.tasks[1:])),
    }
    for text, broken in cases.items():
        if text == "two kinds of events":
            cube = broken.programs[CoreKind.CUBE]
            extra = (*cube, Signal(len(plan.events)), Await(len(plan.events), 0))
            broken = replace(broken, programs={**broken.programs, CoreKind.CUBE: extra})
        wrong, certificate = check_aicore_plan(broken)
        assert certificate is None
        assert any(text in v.message for v in wrong), (text, wrong)


def test_deadlock_is_told() -> None:
    """Each type takes what the other signals only behind its own take."""
    plan = plan_aicore(schedule_of([BufferOp(CUBE, 2, (), 0), BufferOp(VECTOR, 4, (), 1)]), MINI)
    events = (Event(0, Mode.GROUP, CoreKind.CUBE, 8, 0), Event(1, Mode.GROUP, CoreKind.VECTOR, 9, 0))
    programs: dict[HartKind, tuple[Step, ...]] = {
        CoreKind.CUBE: (Await(1, 0), *plan.programs[CoreKind.CUBE], Signal(0)),
        CoreKind.VECTOR: (Await(0, 0), *plan.programs[CoreKind.VECTOR], Signal(1)),
    }
    with pytest.raises(VerificationError, match="deadlock"):
        verify_aicore(replace(plan, events=events, programs=programs))


def test_drains_stand_behind_kernels_without_early_start() -> None:
    plan = plan_aicore(schedule_of(chain(VECTOR, VECTOR)), MINI, early_start=False)
    steps = plan.programs[CoreKind.VECTOR]
    assert [type(s) for s in steps] == [Run, Drain, Run, Drain]
    verify_aicore(plan)
