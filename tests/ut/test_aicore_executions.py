"""The search of all executions of accelerator plans: what is known of small ones, both searches, and runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from seeds import seeds

from superkernel.analysis.random_aicore import CUBE, VECTOR, BufferOp, chain, copied, schedule_of, small_target
from superkernel.analysis.rates_aicore import AICORE
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space
from superkernel.sync.aicore.executions import executions
from superkernel.sync.aicore.explore import explore_aicore
from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
    AwaitCount,
    CoreKind,
    Event,
    LaunchEnd,
    Mode,
    Notify,
    OperandWait,
    Prefetch,
    Run,
    Signal,
)
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.executions import System, all_states, held_back

SMALL = small_target()
Search = Callable[[System], str]
BOTH = pytest.mark.parametrize("search", [all_states, held_back])


def of_ops(*ops: BufferOp, **options: Any) -> AicorePlan:
    return plan_aicore(schedule_of(ops, SMALL), SMALL, **options)


def with_steps(plan: AicorePlan, kind: CoreKind, *steps: Any) -> AicorePlan:
    return replace(plan, programs={**plan.programs, kind: steps})


def without_waits(plan: AicorePlan) -> AicorePlan:
    programs = {k: tuple(Run(s.subop) for s in p if isinstance(s, Run)) for k, p in plan.programs.items()}
    return replace(plan, programs=programs, events=())


@BOTH
@pytest.mark.parametrize(
    ("ops", "wrong"),
    [
        (chain(CUBE, VECTOR), "loads"),  # the vector core may come first
        (chain(VECTOR, VECTOR), "loads"),  # a core's own stores are late
        ([BufferOp(CUBE, 1, (), 0), BufferOp(VECTOR, 1, (), 0)], "stores"),  # nobody reads it: a race all the same
        ([BufferOp(CUBE, 1, ((0, True),), 1), BufferOp(VECTOR, 1, (), 0)], "stores"),
        ([BufferOp(VECTOR, 1, (), 0), BufferOp(VECTOR, 1, (), 0)], ""),  # stores of one core stay in order
        ([BufferOp(VECTOR, 1, ((0, False),), 1), BufferOp(VECTOR, 1, (), 0)], ""),
        ([BufferOp(CUBE, 1, (), 0), BufferOp(VECTOR, 1, (), 1)], ""),
    ],
)
def test_plans_with_and_without_synchronisation(search: Search, ops: list[BufferOp], wrong: str) -> None:
    plan = of_ops(*ops)
    assert search(executions(plan)) == ""
    found = search(executions(without_waits(plan)))
    assert wrong in found
    assert bool(found) == bool(wrong)


@BOTH
@pytest.mark.parametrize(
    ("waits", "right"),
    [
        ([OperandWait(0, (0,), False), OperandWait(1, (1,), False)], False),  # operand 1 first: the count of event 0
        ([OperandWait(0, (0,), False), OperandWait(1, (0, 1), False)], True),
        ([OperandWait(0, (1,), False), OperandWait(1, (1, 0), False)], True),  # names decide nothing
        ([OperandWait(0, (), False), OperandWait(1, (0, 1), False)], False),
    ],
)
def test_a_wait_takes_the_next_count(search: Search, waits: list[OperandWait], right: bool) -> None:
    """Two products on one flag, and one that reads both by operands of its own; two vector cores."""
    target = small_target(2, flags_per_core=7)
    ops = [BufferOp(VECTOR, 2, (), 0), BufferOp(VECTOR, 2, (), 1), BufferOp(VECTOR, 2, ((0, True), (1, True)), 2)]
    plan = plan_aicore(schedule_of(ops, target), target)
    assert len({event.flag for event in plan.events}) == 1
    *before, last = plan.programs[CoreKind.VECTOR]
    assert isinstance(last, Run)
    changed = with_steps(plan, CoreKind.VECTOR, *before, replace(last, waits=tuple(waits)))
    assert bool(search(executions(changed))) is not right


@BOTH
def test_counts_that_are_too_high_left_over_or_never_come(search: Search) -> None:
    plan = replace(of_ops(BufferOp(CUBE, 1, (), 0), BufferOp(VECTOR, 1, (), 1)), events=tuple(
        Event(n, Mode.GROUP, CoreKind.CUBE, 8, 0) for n in range(2)
    ))  # fmt: skip
    run, other = Run(0), Run(1)
    both = with_steps(plan, CoreKind.CUBE, run, Signal(0), Signal(1))
    taken = with_steps(both, CoreKind.VECTOR, Await(0, 1), Await(1, 1), other)
    assert search(executions(taken)) == ""
    assert "counts above 1" in search(executions(replace(taken, flag_count_max=1)))
    assert "has taken 1" in search(executions(with_steps(both, CoreKind.VECTOR, Await(0, 1), other)))
    assert "signalled" in search(executions(with_steps(taken, CoreKind.CUBE, run, Signal(0))))
    events = (plan.events[0], Event(1, Mode.GROUP, CoreKind.VECTOR, 9, 1))
    stuck = with_steps(replace(plan, events=events), CoreKind.CUBE, Await(1, 0), run, Signal(0))
    assert "deadlock" in search(executions(with_steps(stuck, CoreKind.VECTOR, Await(0, 1), other, Signal(1))))


@BOTH
def test_launches_end_together(search: Search) -> None:
    plan = of_ops(*chain(CUBE, VECTOR), cuts={1})
    assert search(executions(plan)) == ""
    steps = [s for s in plan.programs[CoreKind.CUBE] if not isinstance(s, LaunchEnd)]
    assert "deadlock" in search(executions(with_steps(plan, CoreKind.CUBE, *steps)))


@BOTH
def test_cores_meet_inside_a_kernel(search: Search) -> None:
    target = small_target(2)
    plan = plan_aicore(schedule_of([BufferOp(VECTOR, 1, (), 0, barriers=2)], target), target)
    assert [s.barriers for s in plan.programs[CoreKind.VECTOR] if isinstance(s, Run)] == [2]
    assert search(executions(plan)) == ""
    for joined in (0, 1, 3):
        found = search(executions(with_steps(plan, CoreKind.VECTOR, Run(0, barriers=joined))))
        assert "others do not come as often" in found


@BOTH
def test_who_met_knows_what_was_stored_before(search: Search) -> None:
    """Behind a meeting of both vector cores: stores of the kernel before it. Without one nothing orders them."""
    target = small_target(2)
    ops = [BufferOp(VECTOR, 2, (), 0), BufferOp(VECTOR, 2, (), 1, barriers=1), BufferOp(VECTOR, 2, ((0, True),), 2)]
    for barriers, right in ((1, True), (0, False)):
        ops[1] = replace(ops[1], barriers=barriers)
        plan = without_waits(plan_aicore(schedule_of(ops, target), target))
        assert bool(search(executions(plan))) is not right


@BOTH
def test_copies_are_read_where_they_were_computed(search: Search) -> None:
    target = small_target(1, 2)
    ops = [BufferOp(VECTOR, 4, (), 0), BufferOp(VECTOR, 2, ((0, False),), 1), BufferOp(VECTOR, 2, ((1, False),), 2)]
    plan = plan_aicore(copied(ops, target, 1), target)
    assert len([t for t in plan.tasks if t.subop == 1]) == 2
    assert held_back(executions(plan)) == ""
    task = next(t for t in plan.tasks if t.subop == 1)
    access = next(a for a in task.accesses if a.write)
    short = replace(access, regions=(replace(access.regions[0], length=1),))
    tasks = [replace(t, accesses=(*t.accesses[:-1], short)) if t is task else t for t in plan.tasks]
    assert "was not computed for it" in held_back(executions(replace(plan, tasks=tuple(tasks))))


def _served(*steps: Any, notified: int = 1) -> AicorePlan:
    """A vector kernel, its notifications, and one that reads constants."""
    plan = of_ops(BufferOp(VECTOR, 1, (), 0), BufferOp(VECTOR, 1, (), 1))
    access = MemoryAccess(Space.CONSTANT, 0, False, (Region(0, 512),), 0)
    tasks = tuple(replace(t, accesses=(*t.accesses, access)) for t in plan.tasks)
    counts = [Notify(n + 1) for n in range(notified)]
    plan = with_steps(replace(plan, tasks=tasks), CoreKind.VECTOR, Run(0), *counts, Run(1))
    return replace(plan, service=(steps,))


@BOTH
def test_the_service_hart(search: Search) -> None:
    wait, fetch = AwaitCount(CoreKind.VECTOR, 1), Prefetch(1, 0, 512)
    assert search(executions(_served(wait, fetch))) == ""
    assert search(executions(_served(fetch, wait))) == ""
    assert "deadlock" in search(executions(_served(wait, replace(wait, count=2), fetch)))
    assert "release nothing" in search(executions(_served(fetch)))
    assert "release nothing" in search(executions(_served(wait, fetch, notified=2)))
    late = executions(_served(wait, replace(fetch, subop=0)))
    assert search(late) == ""
    assert "behind its use" in late.useless
    assert not executions(_served(wait, fetch)).useless
    assert "in launch 0" in search(executions(_served(wait, replace(fetch, subop=7))))


@pytest.mark.parametrize("seed", seeds(3))
def test_both_searches_agree_and_see_what_runs_show(seed: int) -> None:
    """Mutants of random plans of all families: the two searches say the same; what a run of values shows, they do."""
    rng = random.Random(seed)
    right = shown = 0
    for family in AICORE.families:
        plan = family.make(rng)
        tried = [mutant for _, mutant in AICORE.mutants(plan)]
        for one in (plan, *rng.sample(tried, min(4, len(tried)))):
            system = executions(one)
            wrong = held_back(system)
            if system.states <= 1 << 14:
                assert bool(all_states(system)) == bool(wrong)
            if not one.barriers and not any(one.service) and not one.copies:
                run = explore_aicore(one, limit=4, seed=seed)
                assert wrong or not run.wrong, run.wrong
                shown += bool(run.wrong)
            right += not wrong
    assert shown > 3
    assert right > 3
