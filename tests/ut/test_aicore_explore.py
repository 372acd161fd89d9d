"""The explorer of accelerator plans, and the planner and the verifier held against it.

The explorer runs plans by the hardware's rule alone: a wait takes the next count of a flag, whatever it is called.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from seeds import seeds

from superkernel.analysis.random_aicore import CUBE, MINI, VECTOR, BufferOp, chain, random_ops, schedule_of
from superkernel.core.errors import InternalError
from superkernel.sync.aicore.explore import explore_aicore
from superkernel.sync.aicore.mutate import edits, rearranged
from superkernel.sync.aicore.plan import AicorePlan, Await, CoreKind, Event, Mode, OperandWait, Run, Signal
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.aicore.verify import check_aicore_plan, verify_aicore


def _two_products(flags: int = 7) -> AicorePlan:
    """Two products, and a third that reads both by operands of its own: two events, on one flag where flags are few."""
    target = MINI.replaced({"sync.flags_per_core": flags})
    ops = [BufferOp(CUBE, 4, (), 0), BufferOp(CUBE, 4, (), 1), BufferOp(CUBE, 4, ((0, True), (1, True)), 2)]
    return plan_aicore(schedule_of(ops, target), target)


def _waiting(plan: AicorePlan, kind: CoreKind, *waits: OperandWait) -> AicorePlan:
    """The plan with other waits at the last kernel of a type."""
    program = plan.programs[kind]
    at = max(n for n, step in enumerate(program) if isinstance(step, Run))
    run = program[at]
    assert isinstance(run, Run)
    return _with(plan, kind, *program[:at], replace(run, waits=waits), *program[at + 1 :])


def _with(plan: AicorePlan, kind: CoreKind, *steps: Any) -> AicorePlan:
    return replace(plan, programs={**plan.programs, kind: steps})


def test_each_operand_needs_as_many_takes_of_a_flag_as_its_data_is_old() -> None:
    plan = _two_products()
    assert len({event.flag for event in plan.events}) == 1
    verify_aicore(plan)
    assert not explore_aicore(plan, limit=200, seed=0).wrong


@pytest.mark.parametrize(
    "waits",
    [
        (OperandWait(0, (0,), False), OperandWait(1, (1,), False)),  # comes to operand 1 first: the count of event 0
        (OperandWait(0, (1,), False), OperandWait(1, (0,), False)),
        (OperandWait(0, (0, 1), False),),
        (OperandWait(0, (), False), OperandWait(1, (0, 1), False)),
    ],
)
def test_a_take_of_a_flag_is_not_the_event_that_it_names(waits: tuple[OperandWait, ...]) -> None:
    broken = _waiting(_two_products(), CoreKind.CUBE, *waits)
    wrong, certificate = check_aicore_plan(broken)
    assert certificate is None
    assert "race" in wrong[0].message
    assert "reads at operand" in explore_aicore(broken, limit=200, seed=0).wrong


def test_names_do_not_matter_where_counts_are_right() -> None:
    """Both events at operand 1 in the other order, or only the second's name at operand 0: the same counts."""
    for first, second in (((0,), (1, 0)), ((1,), (0, 1))):
        plan = _waiting(_two_products(), CoreKind.CUBE, OperandWait(0, first, False), OperandWait(1, second, False))
        verify_aicore(plan)
        assert not explore_aicore(plan, limit=200, seed=0).wrong


def test_with_flags_of_their_own_operands_wait_for_their_own_events() -> None:
    """The same waits that are a race on one flag are none on two."""
    plan = _two_products(flags=16)
    assert len({event.flag for event in plan.events}) == 2
    plan = _waiting(plan, CoreKind.CUBE, OperandWait(0, (0,), False), OperandWait(1, (1,), False))
    verify_aicore(plan)
    assert not explore_aicore(plan, limit=200, seed=0).wrong


def test_pending_events_are_taken_behind_a_kernel_that_takes_earlier_ones() -> None:
    """Few flags that count to two: many events are under way when a kernel takes the first of them."""
    target = MINI.replaced({"sync.flags_per_core": 5, "sync.flag_count_max": 2})
    for seed in range(60):
        schedule = schedule_of(random_ops(random.Random(seed), 3), target)
        plan = plan_aicore(schedule, target)
        verify_aicore(plan)
        for kind in CoreKind:
            taken = [e for s in plan.programs[kind] if isinstance(s, (Await, Run)) for e in _events(s)]
            for flag in {plan.events[e].flag for e in taken}:
                of_flag = [e for e in dict.fromkeys(taken) if plan.events[e].flag == flag]
                assert of_flag == sorted(of_flag)


def _events(step: Await | Run) -> list[int]:
    return [step.event] if isinstance(step, Await) else [e for w in step.waits for e in w.events]


# The explorer's own canaries ------------------------------------------------------------------------------------------


def test_the_explorer_finds_a_missing_fence() -> None:
    plan = plan_aicore(schedule_of(chain(VECTOR, VECTOR)), MINI)
    assert not explore_aicore(plan, limit=100, seed=0).wrong
    bare = _waiting(plan, CoreKind.VECTOR)
    assert "reads at operand" in explore_aicore(bare, limit=100, seed=0).wrong


def test_the_explorer_finds_a_deadlock() -> None:
    plan = plan_aicore(schedule_of([BufferOp(CUBE, 2, (), 0), BufferOp(VECTOR, 4, (), 1)]), MINI)
    events = (Event(0, Mode.GROUP, CoreKind.CUBE, 8, 0), Event(1, Mode.GROUP, CoreKind.VECTOR, 9, 0))
    plan = replace(plan, events=events)
    plan = _with(plan, CoreKind.CUBE, Await(1, 0), *plan.programs[CoreKind.CUBE], Signal(0))
    plan = _with(plan, CoreKind.VECTOR, Await(0, 0), *plan.programs[CoreKind.VECTOR], Signal(1))
    assert "deadlock" in explore_aicore(plan, limit=10, seed=0).wrong
    assert "deadlock" in explore_aicore(plan, limit=10).wrong


def test_the_explorer_finds_counts_that_are_left_over_or_too_high() -> None:
    plan = plan_aicore(schedule_of([BufferOp(CUBE, 2, (), 0)]), MINI)
    plan = replace(plan, events=(Event(0, Mode.TYPE, CoreKind.CUBE, 3, 0),))
    untaken = _with(plan, CoreKind.CUBE, *plan.programs[CoreKind.CUBE], Signal(0))
    assert "flag 3 still counts 1" in explore_aicore(untaken, limit=5, seed=0).wrong
    high = replace(_two_products(), flag_count_max=1)
    assert "counts to 2" in explore_aicore(high, limit=100, seed=0).wrong
    assert check_aicore_plan(high)[1] is None


def test_the_explorer_finds_a_lost_overwrite() -> None:
    """The last writer of a buffer that nobody reads."""
    schedule = schedule_of([BufferOp(CUBE, 2, (), 0), BufferOp(VECTOR, 4, (), 0)])
    plan = plan_aicore(schedule, MINI)
    assert not explore_aicore(plan, limit=100, seed=0).wrong
    programs = {k: tuple(Run(s.subop) for s in steps if isinstance(s, Run)) for k, steps in plan.programs.items()}
    bare = replace(plan, events=(), programs=programs)
    assert "final memory" in explore_aicore(bare, limit=100, seed=0).wrong


def test_a_tiny_plan_is_explored_exhaustively() -> None:
    target = MINI.replaced({"device.groups": 1, "device.cube_cores": 1, "device.vector_cores": 2})
    plan = plan_aicore(schedule_of([BufferOp(CUBE, 1, (), 0)], target), target)
    found = explore_aicore(plan, limit=100)
    assert found.complete
    assert not found.wrong


def test_what_is_not_explored_is_refused() -> None:
    with pytest.raises(InternalError, match="barriers"):
        explore_aicore(replace(_two_products(), barriers={0: 1}))


# Planner and verifier against it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(16))
def test_what_is_accepted_goes_right_when_run(seed: int) -> None:
    """Plans with few flags, and mutants of them: those that the verifier accepts find no wrong interleaving, most of
    those that it refuses do."""
    rng = random.Random(seed)
    flags, count_max = rng.choice([5, 6, 7, 8, 10, 16]), rng.choice([1, 2, 3, 15])
    target = MINI.replaced({"sync.flags_per_core": flags, "sync.flag_count_max": count_max})
    schedule = schedule_of(random_ops(rng, rng.randint(2, 6)), target)
    plan = plan_aicore(schedule, target, early_start=rng.random() < 0.8)
    verify_aicore(plan)
    assert not explore_aicore(plan, limit=20, seed=seed).wrong
    tried = [*edits(plan), *rearranged(plan)]
    shown = refused = 0
    for name, mutant in rng.sample(tried, min(12, len(tried))):
        _, certificate = check_aicore_plan(mutant)
        wrong = explore_aicore(mutant, limit=25, seed=seed).wrong
        if certificate is None:
            refused, shown = refused + 1, shown + bool(wrong)
        else:
            assert not wrong, name
    assert shown >= 0.6 * refused or refused < 5
