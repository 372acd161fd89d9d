"""The planner: enough synchronisation, not more, with its reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_plans import is_accepted, minimal

from superkernel.analysis.random_plans import random_schedule, read, schedule_of, write
from superkernel.scheduler.schedule import Schedule, Space, Task
from superkernel.sync.executions import executions, held_back
from superkernel.sync.explore import explore
from superkernel.sync.mutate import mutants
from superkernel.sync.plan import Hazard, Plan, Set, Step, StepRows, SyncForm, TaskStep, Wait, WaitReasons, parse_plan
from superkernel.sync.planner import form_of, plan_sync


def waits_of(plan: Plan) -> list[tuple[int, int, int]]:
    """(core, producer, count) of every wait."""
    return [(c, s.producer, s.count) for c, p in enumerate(plan.programs) for s in p if isinstance(s, Wait)]


def two(first: tuple[int, Any], second: tuple[int, Any]) -> Schedule:
    rows = [Task(i, i, core, 0, 1, (access,)) for i, (core, access) in enumerate((first, second))]
    return schedule_of(2, rows)


@pytest.mark.parametrize(
    ("first", "second", "hazard"),
    [
        (write(0, 64), read(32, 8), Hazard.RAW),
        (read(0, 64), write(32, 8), Hazard.WAR),
        (write(0, 64), write(63, 8), Hazard.WAW),
        (write(0, 4, 16, 4), read(16, 4), Hazard.RAW),
    ],
)
def test_a_conflict_between_cores_is_one_wait_and_one_set(first: object, second: object, hazard: Hazard) -> None:
    plan = minimal(two((0, first), (1, second)))
    assert waits_of(plan) == [(1, 0, 1)]
    assert plan.sets == (1, 0)
    assert plan.reasons[0].witness is not None
    assert plan.reasons[0].witness.hazard is hazard
    assert [b.form for b in plan.boundaries] == [SyncForm.NONE, SyncForm.POINT_TO_POINT]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, write(0, 64)), (0, read(0, 64))),  # one core
        ((0, write(0, 64)), (1, read(64, 8))),  # neighbours
        ((0, read(0, 64)), (1, read(0, 64))),  # two readers
        ((0, write(0, 4, 16, 4)), (1, write(4, 12, 16, 4))),  # interleaved columns
        ((0, read(0, 8, space=Space.CONSTANT)), (1, read(0, 8, space=Space.CONSTANT))),
    ],
)
def test_no_conflict_no_sync(first: tuple[int, object], second: tuple[int, object]) -> None:
    plan = minimal(two(first, second))
    assert plan.waits == 0
    assert plan.sets == (0, 0)


def test_what_an_earlier_wait_tells_needs_no_other() -> None:
    tasks = [
        Task(0, 0, 0, 0, 1, (write(0, 8),)),
        Task(1, 1, 0, 0, 1, (write(8, 8),)),
        Task(2, 2, 1, 0, 1, (read(8, 8),)),
        Task(3, 3, 1, 0, 1, (read(0, 8),)),
    ]
    plan = minimal(schedule_of(2, tasks))
    assert waits_of(plan) == [(1, 0, 1)]
    assert plan.boundaries[3].implied == 1


def test_what_another_core_passes_on_needs_no_other() -> None:
    tasks = [
        Task(0, 0, 0, 0, 1, (write(0, 8),)),
        Task(1, 1, 1, 0, 1, (read(0, 8), write(8, 8))),
        Task(2, 2, 2, 0, 1, (read(8, 8), read(0, 8))),
    ]
    plan = minimal(schedule_of(3, tasks))
    assert waits_of(plan) == [(1, 0, 1), (2, 1, 1)]


def test_waits_for_one_producer_are_merged_into_the_latest() -> None:
    tasks = [Task(i, i, 0, 0, 1, (write(8 * i, 8),)) for i in range(3)]
    tasks.append(Task(3, 3, 1, 0, 1, (read(0, 24),)))
    plan = minimal(schedule_of(2, tasks))
    assert waits_of(plan) == [(1, 0, 1)]
    assert [s for s in plan.programs[0] if isinstance(s, Set)] == [plan.programs[0][-1]]
    assert plan.reasons[0].conflicts == 3


def test_an_exchange_of_all_cores_is_full_of_some_is_a_subset() -> None:
    for cores, form in ((2, SyncForm.FULL), (3, SyncForm.SUBSET)):
        tasks = [Task(c, 0, c, c, c + 1, (write(8 * c, 8),)) for c in range(2)]
        tasks += [Task(2 + c, 1, c, c, c + 1, (read(0, 16),)) for c in range(2)]
        assert minimal(schedule_of(cores, tasks)).boundaries[1].form is form


@pytest.mark.parametrize(
    ("pairs", "members", "form"),
    [(0, 0, "none"), (1, 2, "point-to-point"), (2, 2, "subset"), (2, 3, "point-to-point"), (6, 3, "subset"),
     (11, 4, "point-to-point"), (12, 4, "full")],
)  # fmt: skip
def test_a_boundary_is_named_after_who_waits_for_whom(pairs: int, members: int, form: str) -> None:
    assert form_of(pairs, members, 4) is SyncForm(form)


def test_cores_that_wait_twice_for_one_another_count_once() -> None:
    """Two tasks of a sub-operator on a core, each with a wait for the same other core."""
    tasks = [Task(n, n, 1, 0, 1, (write(8 * n, 8),)) for n in range(2)]
    tasks += [Task(2 + n, 2, 0, n, n + 1, (read(8 * n, 8),)) for n in range(2)]
    tasks.append(Task(4, 2, 1, 2, 3, (write(64, 8),)))
    plan = minimal(schedule_of(3, tasks))
    assert waits_of(plan) == [(0, 1, 1), (0, 1, 2)]
    ahead = plan.boundaries[2]
    assert (ahead.form, ahead.cost_ns) == (SyncForm.POINT_TO_POINT, 100.0)
    assert plan.waits_ahead() == {0: [], 1: [], 2: [0, 1]}
    assert ahead.reason == f"{plan.reasons[0].witness} and 1 more"


def test_retired_accesses_keep_order_through_the_new_ones() -> None:
    """A later reader of part of a rewritten buffer is still ordered after everybody who used the old contents."""
    tasks = [
        Task(0, 0, 0, 0, 1, (write(0, 64),)),
        Task(1, 1, 1, 0, 1, (read(0, 64),)),
        Task(2, 2, 2, 0, 1, (write(0, 64),)),
        Task(3, 3, 0, 0, 1, (write(16, 8),)),
    ]
    plan = minimal(schedule_of(3, tasks))
    assert waits_of(plan) == [(0, 2, 1), (1, 0, 1), (2, 1, 1)]
    assert is_accepted(plan)


@pytest.mark.parametrize("cores", [2, 3, 5])
def test_random_plans_are_accepted_and_run_right(cores: int) -> None:
    for seed in range(40):
        plan = minimal(random_schedule(seed, cores))
        assert is_accepted(plan), seed
        result = explore(plan, limit=15, seed=seed)
        assert not result.wrong, f"seed {seed}: {result.wrong}"


def test_no_kept_wait_is_removable_and_no_mutant_survives() -> None:
    killed = waits = 0
    for seed in range(60):
        plan = minimal(random_schedule(seed, 2 + seed % 4))
        waits += plan.waits
        for mutant in mutants(plan):
            if is_accepted(mutant.plan):  # whoever waited for the set is content with the next one
                assert ": set " in mutant.what, f"seed {seed}: {mutant.what} was accepted"
                assert mutant.what.endswith(" removed"), f"seed {seed}: {mutant.what} was accepted"
                assert not held_back(executions(mutant.plan)), f"seed {seed}: {mutant.what} was accepted"
            else:
                killed += 1
    assert waits > 200
    assert killed > 1000


def test_the_full_form_is_right_and_never_less() -> None:
    for seed in range(20):
        schedule = random_schedule(seed)
        full = plan_sync(schedule, sync="full")
        assert is_accepted(full)
        assert full.waits >= minimal(schedule).waits
        assert not explore(full, limit=5, seed=seed).wrong


def test_one_core_needs_nothing() -> None:
    for sync in ("minimal", "full"):
        plan = plan_sync(random_schedule(1, cores=1), sync=sync)
        assert plan.waits == 0
        assert plan.sets == (0,)


def test_plans_print_and_parse_back() -> None:
    plan = minimal(random_schedule(3))
    again = parse_plan(str(plan))
    assert (again.tasks, again.programs, again.sets) == (plan.tasks, plan.programs, plan.sets)


def test_work_follows_live_data_not_program_length() -> None:
    """Hazards of a long chain over a reused arena: each task is compared with a bounded number of older ones."""
    from superkernel.sync.hazards import find_conflicts

    tasks = []
    for i in range(400):
        here, there = 64 * (i % 2), 64 * ((i + 1) % 2)
        tasks += [Task(2 * i + c, i, c, c, c + 1, (read(there, 64), write(here + 32 * c, 32))) for c in range(2)]
    counts = [len(found) for found in find_conflicts(tasks)]
    assert max(counts) <= 6


def test_reasons_are_made_when_they_are_asked_for() -> None:
    plan = minimal(random_schedule(3))
    reasons = list(plan.reasons)
    waits = [(c, s) for c, program in enumerate(plan.programs) for s in program if isinstance(s, Wait)]
    assert [(reason.core, reason.wait) for reason in reasons] == waits
    assert [plan.reasons[n] for n in range(len(plan.reasons))] == reasons
    assert plan.reasons[-1] == reasons[-1]
    assert plan.reasons[1:3] == tuple(reasons[1:3])
    for reason in reasons:
        witness = reason.witness
        assert witness is not None
        assert (plan.tasks[witness.producer].core, plan.tasks[witness.consumer].core) == (
            reason.wait.producer,
            reason.core,
        )
        for task, region in ((witness.producer, witness.earlier), (witness.consumer, witness.later)):
            assert any(region in access.regions for access in plan.tasks[task].accesses)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [(table, column, value) for table, columns in (("rows", (0, 1, 3, 4)), ("accesses", (4, 5))) for column in columns
     for value in (-1, 2)],
)  # fmt: skip
def test_reasons_of_numbers_that_stand_for_nothing_are_refused(table: str, column: int, value: int) -> None:
    """As a damaged file may have them."""
    wrong = {"rows": np.zeros((2, 5), np.int32), "accesses": np.ones((2, 6), np.int32)}
    regions: Any = np.array([[0, 8, 0, 1]] * 2)
    assert len(WaitReasons(wrong["rows"], wrong["accesses"], ("arena0", "arena1"), regions)) == 2
    wrong[table][1, column] = value
    with pytest.raises(ValueError, match=f"a number in {table}"):
        WaitReasons(wrong["rows"], wrong["accesses"], ("arena0", "arena1"), regions)


def test_reasons_in_tables_of_other_shapes_are_refused() -> None:
    tables: Any = (np.zeros((2, 5), np.int32), np.ones((1, 6), np.int32), np.array([[0, 8, 0, 1]]))

    def made(*columns: Any) -> WaitReasons:
        rows, accesses, regions = columns
        return WaitReasons(rows, accesses, ("arena0", "arena1"), regions)

    assert len(made(*tables)) == 2
    for number, name in enumerate(("rows", "accesses", "regions")):
        table = tables[number]
        for wrong in (table[:, 1:], table.astype(np.int16), table[0]):
            with pytest.raises(ValueError, match=f"{name} of"):
                made(*tables[:number], wrong, *tables[number + 1 :])
    tables[1][0, 5] = 0
    with pytest.raises(ValueError, match="two reads"):
        made(*tables)


def test_steps_in_columns_are_the_steps() -> None:
    steps: tuple[Step, ...] = (Wait(1, 2, 3, 4), TaskStep(7), Set(1), TaskStep(8))
    columns = StepRows.of(steps)
    assert StepRows.of(columns) is columns
    assert (list(columns), len(columns), columns[1:3], columns[-1]) == (list(steps), 4, steps[1:3], steps[-1])
    assert (columns == steps, steps == columns, hash(columns), repr(columns)) == (True, True, hash(steps), repr(steps))
    for other in (steps[:3], (*steps[:3], Set(8)), StepRows.of(reversed(steps))):
        assert columns != other
    assert columns != list(steps)
    many = StepRows.of(TaskStep(n) for n in range(3000))
    assert [step.task for step in many if isinstance(step, TaskStep)] == list(range(3000))
    assert list(StepRows.of(())) == []


def test_steps_of_no_kind_are_refused() -> None:
    """As a damaged file may have them."""
    rows: Any = StepRows.of((Wait(1, 2, 3, 4), TaskStep(7))).rows
    for wrong in (rows[:, :4], rows.astype(np.float64), rows[0]):
        with pytest.raises(ValueError, match="rows of"):
            StepRows(wrong)
    assert StepRows(rows.astype(np.int32)) == StepRows(rows)
    for kind in (-1, 3):
        wrong = rows.copy()
        wrong[1, 0] = kind
        with pytest.raises(ValueError, match="no kind"):
            StepRows(wrong)
