"""The search of all executions: what is known of small plans, both searches against each other, and against runs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from random_plans import minimal
from seeds import seeds

from superkernel.analysis.random_plans import random_accesses, random_schedule, read, schedule_of, write
from superkernel.scheduler.schedule import Space, Task
from superkernel.sync.executions import BadState, Move, System, all_states, executions, held_back, meet, touched
from superkernel.sync.explore import explore
from superkernel.sync.mutate import mutants, rearranged
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

BOTH = pytest.mark.parametrize("search", [all_states, held_back])


def pair(*programs: tuple[object, ...], sets: tuple[int, ...] = (1, 0)) -> Plan:
    """Task 0 on core 0 writes what task 1 on core 1 reads."""
    tasks = (Task(0, 0, 0, 0, 1, (write(0, 8),)), Task(1, 1, 1, 0, 1, (read(0, 8), write(8, 8))))
    return Plan(tasks, programs, sets, (), ())  # type: ignore[arg-type]


BODY, SET, WAIT, NEXT = TaskStep(0), Set(1), Wait(0, 1, 1, 0), TaskStep(1)


@BOTH
@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        (pair((BODY, SET), (WAIT, NEXT)), ""),
        (pair((BODY, SET), (NEXT, WAIT)), "task 1 (core 1) begins and task 0 (core 0) has not ended"),
        (pair((SET, BODY), (WAIT, NEXT)), "has not ended"),
        (pair((BODY, SET), (replace(WAIT, count=2), NEXT)), "deadlock"),
        (pair((BODY,), (WAIT, NEXT), sets=(0, 0)), "deadlock"),
        (pair((BODY, SET), (WAIT,)), "task 1 does not run just once, on core 1"),
        (pair((BODY, SET, BODY), (WAIT, NEXT)), "task 0 does not run just once"),
        (pair((BODY, NEXT, SET), (WAIT,)), "task 1 does not run just once"),
        (pair((BODY, SET), (WAIT, NEXT), sets=(2, 0)), "ends at 1, the next launch begins at 2"),
        (pair((BODY, Set(2)), (WAIT, NEXT), sets=(2, 0)), ""),  # a count left out: the next one serves
        (pair((BODY, SET), (replace(WAIT, count=0), NEXT)), "has not ended"),
    ],
)
def test_small_plans(search: object, plan: Plan, wrong: str) -> None:
    found = search(executions(plan))  # type: ignore[operator]
    assert wrong in found
    assert bool(found) == bool(wrong)


@BOTH
def test_bodies_of_one_core_in_another_order(search: object) -> None:
    for second, wrong in ((read(0, 8), True), (read(8, 8), False)):
        tasks = (Task(0, 0, 0, 0, 1, (write(0, 8),)), Task(1, 1, 0, 0, 1, (second,)))
        plan = Plan(tasks, ((TaskStep(1), TaskStep(0)),), (0,), (), ())
        assert bool(search(executions(plan))) is wrong  # type: ignore[operator]


@BOTH
def test_a_write_that_nobody_reads_is_a_race_all_the_same(search: object) -> None:
    """The explorer of values can see nothing here: the third task writes over both."""
    tasks = [Task(i, i, i % 2, 0, 1, (write(0, 8),)) for i in range(3)]
    programs = ((TaskStep(0), Set(1)), (TaskStep(1),))
    plan = Plan(tuple(tasks[:2]), programs, (1, 0), (), ())
    assert "has not ended" in search(executions(plan))  # type: ignore[operator]


@BOTH
def test_a_choice_that_leads_nowhere_is_a_deadlock(search: object) -> None:
    """Two actors; the first may go to a state in which it waits for ever."""
    moves = (Move(0, 0, 1), Move(0, 1, 2, ((1, 0b10),)), Move(1, 0, 1, ((0, 0b100),)))
    system = System(("a", "b"), (3, 2), moves, ())
    assert "deadlock" in search(system)  # type: ignore[operator]
    free = replace(system, moves=(*moves[:2], Move(1, 0, 1)))
    assert search(free) == ""  # type: ignore[operator]
    fault = BadState("both", (0, 0b001), ((1, 0b10),))
    assert search(replace(free, faults=(fault,))) == "both"  # type: ignore[operator]


def test_bytes_meet_where_a_set_of_them_does() -> None:
    rng = random.Random(0)
    met = 0
    for _ in range(300):
        one, other = (random_accesses(rng.getrandbits(32)).tasks[-1].accesses[-1] for _ in range(2))
        bytes_of = [
            {(a.space, a.slot, r.start + n * r.stride + k)
             for r in a.regions for n in range(r.count) for k in range(r.length)} for a in (one, other)
        ]  # fmt: skip
        found = meet(touched([one]), touched([other]))
        assert found == bool(bytes_of[0] & bytes_of[1])
        met += found
    assert 10 < met < 290
    assert not touched([read(0, 8, space=Space.INPUT), read(0, 8, space=Space.CONSTANT)])


@pytest.mark.parametrize("seed", seeds(6))
def test_both_searches_agree_and_see_what_runs_show(seed: int) -> None:
    """Mutants of random plans: the two searches say the same, and whatever an interleaving of values shows, they do."""
    rng = random.Random(seed)
    right = shown = 0
    for _ in range(12):
        number = rng.getrandbits(32)
        schedule = random_accesses(number) if rng.random() < 0.5 else random_schedule(number, rng.randint(2, 3), 4)
        plan = minimal(schedule)
        tried = [m.plan for m in (*mutants(plan), *rearranged(plan))]
        for one in (plan, *rng.sample(tried, min(6, len(tried)))):
            system = executions(one)
            if system.states > 1 << 14:
                continue
            wrong = held_back(system)
            assert bool(all_states(system)) == bool(wrong)
            run = explore(one, limit=12, seed=number)
            assert wrong or not run.wrong
            shown, right = shown + bool(run.wrong), right + (not wrong)
    assert shown > 5
    assert right > 5


def test_a_plan_with_many_cores_is_searched() -> None:
    plan = minimal(random_schedule(1, 32, 4, columns=32))
    assert executions(plan).states > 1 << 40
    assert not held_back(executions(plan))
    waits = [m.plan for m in mutants(plan) if ": wait" in m.what and m.what.endswith("removed")]
    assert waits
    assert all(held_back(executions(mutant)) for mutant in waits[:20])


def test_what_the_three_tasks_are_for() -> None:
    """A fault names the actor that is held back; others run on as far as they can."""
    tasks = [Task(i, i, i, 0, 1, (write(0, 8),)) for i in range(3)]
    plan = minimal(schedule_of(3, tasks))
    assert not held_back(executions(plan))
    first = (plan.programs[0], plan.programs[1], tuple(s for s in plan.programs[2] if isinstance(s, TaskStep)))
    assert "task 2 (core 2) begins" in held_back(executions(replace(plan, programs=first)))
