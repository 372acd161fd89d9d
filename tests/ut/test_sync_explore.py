"""The explorer finds what goes wrong, by running it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from random_plans import minimal

from superkernel.analysis.random_plans import random_schedule, read, schedule_of, write
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.explore import Choices, Exploration, Writers, explore, interleavings
from superkernel.sync.mutate import mutants
from superkernel.sync.plan import Plan, Set, Step, TaskStep, Wait


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


# By hand --------------------------------------------------------------------------------------------------------------

READS = "task {} on core {} reads what another task than in the global order wrote"


def by_hand(accesses: Sequence[Sequence[MemoryAccess]], *programs: Sequence[Step]) -> Plan:
    """A task per core and row of accesses, in order."""
    tasks = tuple(Task(n, n, n, 0, 1, tuple(own)) for n, own in enumerate(accesses))
    return Plan(tasks, tuple(map(tuple, programs)), (9,) * len(programs), (), ())


def unordered(*accesses: Sequence[MemoryAccess]) -> Plan:
    return by_hand(accesses, *([TaskStep(n)] for n in range(len(accesses))))


@pytest.mark.parametrize(("limit", "runs", "complete"), [(1, 1, False), (3, 3, False), (4, 4, True), (100, 4, True)])
def test_choices_are_made_in_order_up_to_the_limit(limit: int, runs: int, complete: bool) -> None:
    """Where the first choice is 0 there is no second one."""
    tried: list[list[int]] = []

    def run(choose: Choices) -> str:
        first = choose(2)
        tried.append([first, choose(3)] if first else [first, choose(1)])
        return ""

    assert interleavings(run, limit) == Exploration(runs, complete)
    assert tried == [[0, 0], [1, 0], [1, 1], [1, 2]][:runs]


def test_the_first_run_that_goes_wrong_is_the_last() -> None:
    assert interleavings(lambda choose: "so" if choose(5) == 2 else "", 100) == Exploration(3, False, "so")
    assert interleavings(lambda choose: "so" if choose(5) == 2 else "", 2) == Exploration(2, False)


def test_a_plan_is_explored_up_to_a_limit() -> None:
    plan = unordered([write(0, 8)], [write(8, 8)])
    assert explore(plan, limit=5) == Exploration(5, False)
    assert explore(plan, limit=6) == Exploration(6, True)
    assert explore(plan, limit=5, seed=3) == Exploration(5, False)
    many = unordered(*([write(8 * n, 8)] for n in range(5)))
    assert explore(many) == Exploration(1000, False), "unless told otherwise"
    assert explore(unordered([write(0, 8)])) == Exploration(1, True), "one core has no choice"


def test_random_runs_of_one_seed_are_the_same() -> None:
    """The number of the first that goes wrong is told; without it nothing is."""
    plan = unordered([write(0, 8)], [read(0, 8)])
    numbers = set()
    for seed in range(8):
        found = explore(plan, limit=50, seed=seed)
        assert found == Exploration(found.interleavings, False, READS.format(1, 1))
        assert found == explore(plan, limit=found.interleavings, seed=seed)
        assert explore(plan, limit=found.interleavings - 1, seed=seed) == Exploration(found.interleavings - 1, False)
        numbers.add(found.interleavings)
    assert len(numbers) > 1


def test_bodies_overlap() -> None:
    """Both load before either stores: what task 0 reads is wrong where task 1 has stored ahead of it alone."""
    plan = unordered([read(0, 8)], [write(0, 8)])
    assert explore(plan).wrong == READS.format(0, 0)
    waits = by_hand([[read(0, 8)], [write(0, 8)]], [TaskStep(0), Set(1)], [Wait(0, 1, 1, 0), TaskStep(1)])
    assert explore(waits) == Exploration(1, True)


STRIDED = MemoryAccess(Space.ARENA, 0, True, (Region(0, 4, 8, 2), Region(32, 4)))


@pytest.mark.parametrize("start", [0, 3, 8, 11, 32, 35])
def test_a_byte_that_was_written_is_seen(start: int) -> None:
    assert explore(unordered([STRIDED], [read(start, 1)])).wrong == READS.format(1, 1)


@pytest.mark.parametrize(("start", "length"), [(4, 4), (12, 20), (36, 4)])
def test_bytes_that_nobody_wrote_are_anybodys(start: int, length: int) -> None:
    assert explore(unordered([STRIDED], [read(start, length)])) == Exploration(6, True)


def test_memories_are_told_apart() -> None:
    for space, slot in ((Space.OUTPUT, 0), (Space.ARENA, 1)):
        other = MemoryAccess(space, slot, False, (Region(0, 8),))
        assert explore(unordered([write(0, 8)], [other])) == Exploration(6, True)
    nothing = MemoryAccess(Space.ARENA, 0, False, ())
    assert explore(unordered([write(0, 8)], [nothing])) == Exploration(6, True)
    memory = Writers(unordered([write(0, 8)]).tasks)
    assert len(memory.of(nothing)) == 0
    assert memory != "no memory"


def test_each_access_of_a_task_is_looked_at() -> None:
    assert explore(unordered([write(0, 8)], [read(8, 8), read(0, 8)])).wrong == READS.format(1, 1)
    assert explore(unordered([write(16, 8), write(0, 8)], [read(0, 8)])).wrong == READS.format(1, 1)


def test_the_last_writer_is_seen_and_no_other() -> None:
    """Of three tasks, the second writes anew what the third reads."""
    rows = [[write(0, 8)], [write(0, 8)], [read(0, 8)]]
    right = by_hand(
        rows, [TaskStep(0), Set(1)], [Wait(0, 1, 1, 0), TaskStep(1), Set(1)], [Wait(1, 1, 2, 1), TaskStep(2)]
    )
    assert explore(right) == Exploration(1, True)
    early = by_hand(
        rows, [TaskStep(0), Set(1)], [Wait(0, 1, 1, 0), TaskStep(1), Set(1)], [Wait(0, 1, 2, 1), TaskStep(2)]
    )
    assert explore(early).wrong == READS.format(2, 2)


@pytest.mark.parametrize(("count", "passes"), [(1, True), (2, True), (3, False)])
def test_a_wait_is_passed_where_the_counter_is_no_less(count: int, passes: bool) -> None:
    """The last set counts, whatever it said before."""
    rows = [[write(0, 8)], [read(0, 8)]]
    plan = by_hand(rows, [TaskStep(0), Set(1), Set(2)], [Wait(0, count, 1, 0), TaskStep(1)])
    wrong = explore(plan).wrong
    assert wrong == ("" if passes else "deadlock: core 1 at event 0")


def test_a_set_is_no_sum() -> None:
    plan = by_hand([[write(0, 8)], [write(8, 8)]], [Set(2), Set(2), TaskStep(0)], [Wait(0, 3, 1, 0), TaskStep(1)])
    assert explore(plan).wrong == "deadlock: core 1 at event 0"


def test_a_deadlock_names_the_cores_that_stand() -> None:
    plan = by_hand(
        [[write(0, 8)], [write(8, 8)], [write(16, 8)]],
        [TaskStep(0), Wait(1, 1, 0, 0)],
        [Wait(0, 1, 1, 1), TaskStep(1)],
        [TaskStep(2)],
    )
    assert explore(plan).wrong == "deadlock: core 0 at event 2, core 1 at event 0"


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
