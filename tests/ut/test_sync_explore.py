"""The explorer finds what goes wrong, by running it."""

from __future__ import annotations

from random_plans import minimal

from superkernel.analysis.random_plans import random_schedule, read, schedule_of, write
from superkernel.scheduler.schedule import Task
from superkernel.sync.explore import explore
from superkernel.sync.mutate import mutants
from superkernel.sync.plan import Plan, Set, TaskStep, Wait


def producer_consumer() -> Plan:
    tasks = [Task(0, 0, 0, 0, 1, (write(0, 8),)), Task(1, 1, 1, 0, 1, (read(0, 8), write(8, 8)))]
    return minimal(schedule_of(2, tasks))


def test_a_small_plan_is_explored_exhaustively() -> None:
    result = explore(producer_consumer())
    assert result.complete
    assert not result.wrong


def test_two_independent_tasks_interleave_in_every_way() -> None:
    tasks = [Task(i, i, i, 0, 1, (write(8 * i, 8),)) for i in range(2)]
    result = explore(minimal(schedule_of(2, tasks)))
    assert (result.interleavings, result.complete) == (6, True)  # (2 + 2)! / (2! 2!)


def test_a_missing_wait_is_found() -> None:
    plan = producer_consumer()
    programs = (plan.programs[0], tuple(s for s in plan.programs[1] if isinstance(s, TaskStep)))
    result = explore(Plan(plan.tasks, programs, plan.sets, (), ()))
    assert "task 1 on core 1 reads" in result.wrong


def test_a_deadlock_is_found() -> None:
    plan = producer_consumer()
    programs = ((Wait(1, 1, 0, 9), *plan.programs[0]), (*plan.programs[1], Set(1)))
    assert "deadlock" in explore(Plan(plan.tasks, programs, (1, 1), (), ())).wrong


def test_a_lost_overwrite_is_found() -> None:
    tasks = [Task(0, 0, 0, 0, 1, (write(0, 8),)), Task(1, 1, 1, 0, 1, (write(0, 8),))]
    plan = Plan(tuple(tasks), ((TaskStep(0),), (TaskStep(1),)), (0, 0), (), ())
    assert "final memory" in explore(plan).wrong


def test_mutants_go_wrong_when_run() -> None:
    """Not only in the verifier's eyes: weakened plans really read the wrong bytes in some interleaving. (All but
    those whose conflict is a write that is overwritten unread: a race by definition that no run can show.)"""
    tried = caught = 0
    for seed in range(8):
        plan = minimal(random_schedule(seed, 2, 5))
        for mutant in mutants(plan):
            if mutant.what.endswith("removed") and ": wait" in mutant.what:
                tried += 1
                found = explore(mutant.plan, limit=400).wrong or explore(mutant.plan, limit=200, seed=seed).wrong
                caught += bool(found)
    assert tried > 10
    assert caught >= 0.9 * tried
