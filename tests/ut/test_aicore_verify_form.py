"""The form of an accelerator's plan: runs, events, flags, words and barriers, a fault at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_plans import ACROSS, ALL, CUBE, GROUP, NOTIFY, TYPE, VECTOR, plan_of, tasks_of, texts, write

from superkernel.scheduler.schedule import Copies, Space, Task
from superkernel.sync.aicore.plan import (
    AICPU,
    AicorePlan,
    Await,
    Event,
    HartKind,
    Mode,
    OperandWait,
    Pause,
    Run,
    Signal,
    Step,
)
from superkernel.sync.aicore.verify_form import check_form

TASKS = tasks_of(*((0, core, ()) for core in (0, 1)), *((1, core, ()) for core in (2, 3, 4, 5)))
FROM_CUBE = (GROUP, CUBE, 0)


def plan(**changes: Any) -> AicorePlan:
    """Cube cores compute, vector cores go on."""
    parts: dict[str, Any] = {"tasks": TASKS, "cube": [Run(0), Signal(0)], "vector": [Await(0, 1), Run(1)]}
    return plan_of(**parts | {"events": [FROM_CUBE]} | changes)


def wrong(plan: AicorePlan, units: dict[int, int] | None = None) -> list[str]:
    return texts(check_form(plan, units or {}))


def test_a_plan_that_is_well_formed() -> None:
    assert wrong(plan()) == []
    assert wrong(plan(), {0: 2, 1: 4}) == []


# Units ----------------------------------------------------------------------------------------------------------------


def test_units_are_those_that_are_told_else_those_up_to_the_last() -> None:
    assert wrong(plan(), {0: 3}) == ["sub-operator 0: units are left out or invented; expected 3; found 2"]
    gap = (*TASKS[:4], Task(4, 1, 4, 3, 4, ()), Task(5, 1, 5, 4, 6, ()))
    assert wrong(plan(tasks=gap)) == ["sub-operator 1: units are left out or done twice; expected 2; found 3..4"]
    backwards = (replace(TASKS[1], index=0), replace(TASKS[0], index=1), *TASKS[2:])
    assert wrong(plan(tasks=backwards)) == [], "the last unit is not that of the last task"


def test_a_sub_operator_of_no_units_is_told_once() -> None:
    none = (Task(0, 0, 0, 0, 0, ()), *(replace(task, index=task.index - 1) for task in TASKS[2:]))
    assert wrong(plan(tasks=none)) == ["core 0, task 0: empty unit range; found 0..0"]


def test_cores_may_share_units() -> None:
    """A range of a kernel that runs on a cube core and its vector cores."""
    tasks = tasks_of((0, 0, ()), (0, 1, ()))
    shared = (*(replace(task, begin=0, end=2) for task in tasks), *TASKS[2:])
    assert wrong(plan(tasks=shared)) == []


def test_units_of_what_groups_copy_are_not_counted() -> None:
    tasks = (*(replace(task, begin=0, end=1 + task.index) for task in TASKS[:2]), *TASKS[2:])
    assert wrong(plan(tasks=tasks)) == ["sub-operator 0: units are left out or done twice; expected 1; found 0..2"]
    assert wrong(plan(tasks=tasks, copies=(Copies(0, (), 64, 2),))) == []


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", [-1, 6])
def test_tasks_of_no_core(core: int) -> None:
    tasks = (*TASKS[:5], replace(TASKS[5], core=core))
    assert wrong(plan(tasks=tasks)) == [f"task 5: no such core; expected 0 to 5; found {core}"]
    if core == 6:
        events = [FROM_CUBE]
        assert wrong(plan(tasks=tasks, events=events, aicpu=[Run(1)])) == [], "the aicpu hart"


@pytest.mark.parametrize(
    ("cube", "found"),
    [([Run(0), Run(0), Signal(0)], "[0, 0]"), ([Run(2), Run(0), Signal(0)], "[2, 0]"), ([Run(0), Pause(0)], "[0, 0]")],
)
def test_runs_out_of_order(cube: list[Step], found: str) -> None:
    text = f"program cube: runs leave the global order or repeat; found {found}"
    assert text in wrong(plan(cube=cube))


def test_no_more_than_twenty_runs_are_told() -> None:
    text = "program cube: runs leave the global order or repeat; found " + str(list(range(30, 10, -1)))
    assert text in wrong(plan(cube=[Run(30 - n) for n in range(31)]))


def test_what_has_tasks_is_run_by_their_type() -> None:
    assert wrong(plan(cube=[Signal(0)])) == ["program cube, sub-operator 0: a sub-operator with tasks is not run"]
    assert wrong(plan(cube=[Run(0), Signal(0), Run(1)], vector=[Await(0, 1)])) == [
        "program vector, sub-operator 1: a sub-operator with tasks is not run"
    ]


def test_what_numpy_computes_is_run_by_nobody() -> None:
    assert wrong(plan(cube=[Pause(0), Signal(0)], vector=[Pause(0), Await(0, 1), Run(1)])) == []


# Events ---------------------------------------------------------------------------------------------------------------


def numbered(*events: tuple[Any, ...], **changes: Any) -> list[str]:
    """What is wrong with events that come as often as they must."""
    made = plan(events=events, **changes)
    programs: dict[HartKind, tuple[Step, ...]] = {
        kind: (
            *(step for step in program if isinstance(step, Run)),
            *(Signal(e.index) for e in made.events if kind in e.signallers),
            *(Await(e.index, 1) for e in made.events if kind in e.receivers),
        )
        for kind, program in made.programs.items()
    }
    return wrong(replace(made, programs=programs))


def test_events_are_numbered_in_order() -> None:
    second = Event(2, TYPE, VECTOR, 1, 0)
    assert wrong(replace(plan(), events=(*plan().events, second)))[0] == (
        "event 1: event indices are not in order; found 2"
    )


@pytest.mark.parametrize(
    "event",
    [
        (TYPE, CUBE, 0),
        (TYPE, VECTOR, 3),
        (GROUP, VECTOR, 0),
        (ALL, None, 0),
        (NOTIFY, CUBE, 7, VECTOR),
        (NOTIFY, CUBE, 0, CUBE),
        (NOTIFY, AICPU, 0, CUBE),
        (NOTIFY, VECTOR, 0, AICPU),
    ],
)
def test_events_that_there_may_be(event: tuple[Any, ...]) -> None:
    assert numbered(event, aicpu=()) == []


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ((NOTIFY, CUBE, 0), "a word goes from cores to harts, or from an aicpu hart to cores"),
        ((TYPE, CUBE, 0, CUBE), "a word goes from cores to harts, or from an aicpu hart to cores"),
        ((NOTIFY, AICPU, 0, AICPU), "a word goes from cores to harts, or from an aicpu hart to cores"),
        ((TYPE, AICPU, 0), "an aicpu hart has no cross-core flags"),
        ((TYPE, CUBE, 4), "no such flag for the plan; expected 0 to 3; found 4"),
        ((TYPE, CUBE, -1), "no such flag for the plan; expected 0 to 3; found -1"),
        ((TYPE, None, 0), "mode and setters do not fit"),
        ((ALL, CUBE, 0), "mode and setters do not fit"),
        ((ACROSS, None, 0), "mode and setters do not fit"),
        ((Mode.PAIR, CUBE, 0), "a mode that only kernels have"),
    ],
)
def test_events_that_there_are_not(event: tuple[Any, ...], says: str) -> None:
    found = numbered(event, aicpu=())
    assert len(found) == 1
    assert found[0].startswith(f"event 0: {says}")
    assert "flag 0" in found[0] or "word 0" in found[0] or "expected" in found[0]


def test_an_aicpu_hart_receives_no_flags() -> None:
    found = numbered((TYPE, CUBE, 0, AICPU), aicpu=())
    assert "event 0: an aicpu hart has no cross-core flags" in [text.split(";")[0] for text in found]


def test_only_one_cube_core_of_a_group_may_signal_it() -> None:
    """Its vector cores count each of them; several vector cores count once."""
    more: dict[str, Any] = {"cube_cores": 4, "vector_cores": 4, "groups": 2}
    tasks = (*TASKS[:2], *(replace(task, core=task.core + 2) for task in TASKS[2:]))
    assert wrong(replace(plan(tasks=tasks), **more))[0].startswith(
        "event 0: one group's cube cores signal it several times; found event 0"
    )
    for mode, setters in ((GROUP, VECTOR), (TYPE, CUBE)):
        made = plan(tasks=tasks, events=[(mode, setters, 0)])
        signal, take = (VECTOR, CUBE) if mode is GROUP else (CUBE, CUBE)
        programs: dict[Any, list[Step]] = {CUBE: [Run(0)], VECTOR: [Run(1)]}
        programs[signal].append(Signal(0))
        programs[take].append(Await(0, 1))
        assert wrong(replace(made, programs={k: tuple(p) for k, p in programs.items()}, **more)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cube": [Run(0)]}, ["cube, event 0: event is not signalled as often as it must be; expected 1; found 0"]),
        (
            {"cube": [Signal(0), Run(0), Signal(0)]},
            ["cube, event 0: event is not signalled as often as it must be; expected 1; found 2"],
        ),
        (
            {"vector": [Await(0, 1), Run(1), Signal(0)]},
            ["vector, event 0: event is not signalled as often as it must be; expected 0; found 1"],
        ),
        ({"vector": [Run(1)]}, ["vector, event 0: event is not awaited as often as it must be; expected 1; found 0"]),
        (
            {"vector": [Await(0, 1), Run(1, (OperandWait(0, (0,), False),))]},
            ["vector, event 0: event is not awaited as often as it must be; expected 1; found 2"],
        ),
        (
            {"cube": [Run(0), Signal(0), Await(0, 0)]},
            ["cube, event 0: event is not awaited as often as it must be; expected 0; found 1"],
        ),
    ],
)
def test_each_event_is_signalled_and_awaited_once(changes: dict[str, Any], says: list[str]) -> None:
    assert wrong(plan(**changes)) == [f"program {text}" for text in says]


def test_operands_of_one_kernel_take_an_event_together() -> None:
    waits = (OperandWait(0, (0,), False), OperandWait(1, (0,), False))
    assert wrong(plan(vector=[Run(1, waits)])) == []


# Flags and words ------------------------------------------------------------------------------------------------------


def test_a_flag_is_for_one_mode_and_one_type_of_setters() -> None:
    assert numbered((TYPE, VECTOR, 1), (TYPE, VECTOR, 1)) == [], "one after the other"
    assert numbered((TYPE, VECTOR, 1), (TYPE, CUBE, 1)) == [], "at other cores"
    for first, second in (((TYPE, VECTOR, 1), (GROUP, CUBE, 1)), ((GROUP, CUBE, 1), (ALL, None, 1))):
        assert numbered(first, second) == [
            f"event 1, flag 1: a flag is used by two kinds of events; expected mode {first[0].value}; "
            f"found mode {second[0].value}"
        ]
    assert numbered((TYPE, VECTOR, 1), (GROUP, CUBE, 2)) == [], "another flag"


def test_a_word_serves_one_event() -> None:
    words = [(NOTIFY, CUBE, 1, VECTOR), (NOTIFY, CUBE, 1, VECTOR)]
    assert numbered(*words) == ["event 1, word 1: two events have one word; found event 0"]
    assert numbered(words[0], (NOTIFY, CUBE, 2, VECTOR), (TYPE, VECTOR, 1), (TYPE, VECTOR, 1)) == []
    assert numbered((NOTIFY, CUBE, 0, VECTOR)) == []
    assert numbered((NOTIFY, CUBE, -1, VECTOR)) == ["event 0, word -1: two events have one word; found event 0"]
    found = numbered(words[0], words[1], (TYPE, VECTOR, 1), (GROUP, CUBE, 1))
    assert len(found) == 2, "flags behind words are looked at all the same"


# Barriers -------------------------------------------------------------------------------------------------------------


def barriers(busy: tuple[int, ...], joined: int, *, told: int = 3, other: int = 0) -> list[str]:
    """Sub-operator 1 meets on vector cores, of which some have units."""
    tasks = (*TASKS[:2], *(Task(2 + n, 1, core, n, n + 1, ()) for n, core in enumerate(busy)))
    return wrong(plan(tasks=tasks, vector=[Await(0, 1), Run(1, barriers=joined), Run(2, barriers=other)],
                      barriers={1: told}))  # fmt: skip


def test_cores_without_units_join_barriers() -> None:
    assert barriers((2, 3, 4, 5), 0) == [], "nobody is idle"
    assert barriers((2, 3), 3) == []
    for joined, other in ((2, 0), (4, 0), (0, 3)):
        assert barriers((3, 4), joined, other=other) == [
            "sub-operator 1, vector cores 2 to 5 without units: deadlock: cores meet inside a kernel, and others never "
            f"come; expected 3 barriers joined; found {joined}"
        ]


def test_both_types_of_cores_join_barriers() -> None:
    tasks = tasks_of((0, 1, ()), (0, 2, ()), (0, 3, ()), (0, 4, ()))
    made = plan(tasks=tasks, cube=[Run(0, barriers=1), Signal(0)], vector=[Await(0, 1), Run(0)], barriers={0: 1})
    assert wrong(made) == [
        "sub-operator 0, vector cores 5 to 5 without units: deadlock: cores meet inside a kernel, and others never "
        "come; expected 1 barrier joined; found 0"
    ]


@pytest.mark.parametrize("space", [Space.INPUT, Space.CONSTANT])
def test_inputs_and_constants_are_never_written(space: Space) -> None:
    tasks = (replace(TASKS[0], accesses=(write(0, 8, space=space),)), *TASKS[1:])
    assert wrong(plan(tasks=tasks)) == [f"core 0, task 0: writes to {space.value}0"]
