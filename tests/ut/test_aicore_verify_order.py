"""Races of an accelerator's plan: which pairs of accesses must be ordered, and how a race is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_plans import CUBE, GROUP, plan_of, read, tasks_of, texts, write

from superkernel.scheduler.schedule import MemoryAccess, Space
from superkernel.sync.aicore.plan import AicorePlan, Await, LaunchEnd, OperandWait, Pause, Run, Signal
from superkernel.sync.aicore.verify_order import check_order
from superkernel.sync.aicore.verify_replay import Replay
from superkernel.sync.verify_pairs import Accesses


def races(plan: AicorePlan) -> list[str]:
    replay = Replay(plan)
    assert replay.run() == []
    return texts(check_order(plan, replay, Accesses(plan.tasks)))


def test_a_race_of_two_cores_is_told_with_the_event_that_is_missing() -> None:
    tasks = tasks_of((0, 0, (write(0, 8, 1),)), (1, 3, (read(16, 8, 0), read(4, 8, 2))))
    assert races(plan_of(tasks, [Run(0)], [Run(1)])) == [
        "core 3, sub-operator 1, operand 2: race: tasks 0 (sub-operator 0, core 0) and 1 (sub-operator 1, core 3) "
        "touch the same bytes of arena0 and are not ordered; expected an event from core 0; found bytes 0+8 and 4+8"
    ]


def test_a_race_of_one_core_is_told_with_the_fence_that_is_missing() -> None:
    tasks = tasks_of((0, 3, (write(0, 8, 1),)), (1, 3, (read(4, 8, 2),)))
    assert races(plan_of(tasks, vector=[Run(0), Run(1)])) == [
        "core 3, sub-operator 1, operand 2: race: tasks 0 (sub-operator 0, core 3) and 1 (sub-operator 1, core 3) "
        "touch the same bytes of arena0 and are not ordered; expected a fence behind the core's own stores; found "
        "bytes 0+8 and 4+8"
    ]


def test_a_fence_right_behind_the_store() -> None:
    tasks = tasks_of((0, 3, (write(0, 8, 1),)), (1, 3, (read(4, 8, 2),)))
    assert races(plan_of(tasks, vector=[Run(0), Run(1, (OperandWait(2, (), True),))])) == []


@pytest.mark.parametrize("first", [read, write])
@pytest.mark.parametrize("second", [read, write])
@pytest.mark.parametrize("cores", [(0, 0), (0, 1), (0, 2)])
def test_who_must_be_ordered(first: Any, second: Any, cores: tuple[int, int]) -> None:
    """Across cores all but two reads; on one core a read behind a write, as stores come in order."""
    start = tasks_of((0, 0, (write(0, 8, 0),)), (2, cores[0], (first(0, 8, 0),)), (3, cores[1], (second(0, 8, 0),)))
    known: list[Any] = [Run(0), LaunchEnd(2)]
    vector = [LaunchEnd(2), Run(3)] if cores[1] == 2 else [LaunchEnd(2)]
    found = races(plan_of(start, [*known, Run(2), Run(3)], vector))
    expected = first is write and second is read if cores == (0, 0) else write in (first, second)
    assert len(found) == expected


def test_what_nobody_else_touches_is_no_race() -> None:
    tasks = tasks_of((0, 0, (write(0, 8, 0),)), (1, 3, (read(8, 8, 0), write(16, 8, 1))), (2, 1, (write(24, 8, 0),)))
    assert races(plan_of(tasks, [Run(0), Run(2)], [Run(1)])) == []


@pytest.mark.parametrize("space", [Space.ARENA, Space.SCRATCH])
@pytest.mark.parametrize("parts", [(True, True), (True, False), (False, True), (False, False)])
def test_tasks_of_one_sub_operator_meet_in_its_workspace_and_in_what_they_divide(
    space: Space, parts: tuple[bool, bool]
) -> None:
    """Whatever the sub-operator waits for: nothing stands between its own tasks."""
    one, other = (write(0, 8, 0, space, dynamically_partitioned=part) for part in parts)
    tasks = tasks_of((0, 0, (one,)), (0, 1, (other,)))
    right = space is Space.SCRATCH or parts == (True, True)
    assert races(plan_of(tasks, [Run(0)])) == ([] if right else [
        "core 1, sub-operator 0, operand 0: race: tasks 0 (sub-operator 0, core 0) and 1 (sub-operator 0, core 1) "
        f"touch the same bytes of {space.value}0 and are not ordered; expected an event from core 0; found "
        "bytes 0+8 and 0+8"
    ])  # fmt: skip


def test_one_core_may_do_both_parts() -> None:
    """Two ranges of one sub-operator on one core: a kernel orders its own commands."""
    tasks = tasks_of((0, 0, (write(0, 8, 0),)), (0, 0, (read(0, 8, 0),)))
    assert races(plan_of(tasks, [Run(0)])) == []


def test_workspaces_of_two_sub_operators_are_ordered_as_anything_else() -> None:
    for space, parts in ((Space.SCRATCH, False), (Space.ARENA, True)):
        access = write(0, 8, 0, space, dynamically_partitioned=parts)
        tasks = tasks_of((0, 0, (access,)), (1, 2, (access,)))
        assert len(races(plan_of(tasks, [Run(0)], [Run(1)]))) == 1
        made = plan_of(tasks, [Run(0), Signal(0)], [Await(0, 1), Run(1)], [(GROUP, CUBE, 0)])
        assert races(made) == []


def test_what_numpy_computes_between_launches_races_with_nobody() -> None:
    wide = (read(0, 8, 0), write(8, 8, 1))
    tasks = tasks_of((0, 3, (write(0, 8, 0),)), (1, 0, wide), (2, 1, (read(8, 8, 0),)))
    assert races(plan_of(tasks, [Pause(1), Run(2)], [Run(0), Pause(1)])) == []
    assert len(races(plan_of(tasks, [Run(1), Run(2)], [Run(0)]))) == 2


def test_each_pair_of_tasks_is_told_once() -> None:
    tasks = tasks_of(
        (0, 0, (write(0, 8, 0), write(8, 8, 1))), (1, 2, (read(0, 8, 0), read(8, 8, 1))), (2, 3, (read(0, 8, 0),))
    )
    found = races(plan_of(tasks, [Run(0)], [Run(1), Run(2)]))
    assert [text.split(" (")[0].rsplit(" ", 1)[-1] for text in found] == ["0", "0"]
    assert [text.split(":")[0] for text in found] == [
        "core 2, sub-operator 1, operand 0",
        "core 3, sub-operator 2, operand 0",
    ]


def test_only_the_operand_that_waits_may_go_on() -> None:
    tasks = tasks_of((0, 0, (write(0, 16, 0),)), (1, 2, (read(0, 8, 0), read(8, 8, 1))))
    for operand in (0, 1):
        waits = (OperandWait(operand, (0,), False),)
        (found,) = races(plan_of(tasks, [Run(0), Signal(0)], [Run(1, waits)], [(GROUP, CUBE, 0)]))
        assert found.startswith(f"core 2, sub-operator 1, operand {1 - operand}: race")


def test_an_access_of_no_operand_is_told_as_that() -> None:
    access = MemoryAccess(Space.ARENA, 0, False, read(0, 8).regions)
    tasks = tasks_of((0, 0, (write(0, 8),)), (1, 2, (replace(access),)))
    (found,) = races(plan_of(tasks, [Run(0)], [Run(1)]))
    assert found.startswith("core 2, sub-operator 1, operand None: race")
