"""The service hart's programs: every wait ends, none is missing, and prefetches come in time and for somebody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hand_plans import CUBE, VECTOR, plan_of, read, tasks_of, texts, write

from superkernel.scheduler.schedule import MemoryAccess, Space
from superkernel.sync.aicore.plan import (
    Await,
    AwaitCount,
    Drain,
    LaunchEnd,
    Notify,
    Pause,
    Prefetch,
    Run,
    ServiceStep,
    Signal,
    Step,
)
from superkernel.sync.aicore.verify_service import LINE_BYTES, check_service


def constants(start: int, length: int) -> MemoryAccess:
    return read(start, length, space=Space.CONSTANT)


TASKS = tasks_of(
    (0, 0, ()), (1, 2, (constants(0, 2048),)), (2, 0, (constants(4096, 1024),)), (3, 2, (constants(8192, 1024),))
)
CUBES: list[Step] = [Run(0), Notify(1), Run(2), Notify(2)]
VECTORS: list[Step] = [Run(1), Notify(1), Run(3)]
SERVICE: list[ServiceStep] = [AwaitCount(CUBE, 1), Prefetch(2, 4096, 1024), AwaitCount(CUBE, 2), AwaitCount(VECTOR, 1)]


def wrong(
    *service: Sequence[Any], cube: Sequence[Any] = CUBES, vector: Sequence[Any] = VECTORS, tasks: Any = TASKS
) -> list[str]:
    return texts(check_service(plan_of(tasks, cube, vector, service=tuple(map(tuple, service)))))


def test_programs_that_are_right() -> None:
    assert wrong(SERVICE) == []
    assert wrong(cube=[Run(0), Run(2)], vector=[Run(1), Run(3)]) == [], "no service at all"


@pytest.mark.parametrize("end", [LaunchEnd(2), Pause(5)])
def test_counts_begin_anew_in_each_launch(end: Step) -> None:
    cube: list[Step] = [Run(0), Notify(1), end, Run(2), Notify(1), Notify(2)]
    vector: list[Step] = [Run(1), end, Run(3), Notify(1)]
    second = [Prefetch(2, 4096, 1024), AwaitCount(CUBE, 1), AwaitCount(CUBE, 2), AwaitCount(VECTOR, 1)]
    assert wrong([AwaitCount(CUBE, 1)], second, cube=cube, vector=vector) == []
    assert wrong([], [AwaitCount(CUBE, 1), *second], cube=cube, vector=vector) == [
        "service of launch 1, step 1: prefetch 1024 bytes at 4096 for 2: a prefetch waits until its use is over; "
        "expected below 2; found 2",
        "service of launch 0, cube count 1: a notification that nobody awaits; expected an await of it; found none",
    ]
    late = [AwaitCount(VECTOR, 1), AwaitCount(CUBE, 1), AwaitCount(CUBE, 2)]
    assert wrong([AwaitCount(CUBE, 1), Prefetch(2, 4096, 1024)], late, cube=cube, vector=vector) == [
        "service of launch 0, step 1: prefetch 1024 bytes at 4096 for 2: a prefetch for another launch; expected "
        "launch 0; found launch 1"
    ]


def test_other_steps_end_no_launch() -> None:
    cube: list[Step] = [Drain(), Run(0), Signal(0), Notify(1), Await(1, 2), Run(2), Notify(2), Drain()]
    assert wrong(SERVICE, cube=cube) == []


def test_what_no_program_runs_is_prefetched_in_no_launch() -> None:
    assert wrong([*SERVICE, Prefetch(7, 0, 512)])[0] == (
        "service of launch 0, step 4: prefetch 512 bytes at 0 for 7: a prefetch for another launch; expected launch 0; "
        "found launch None"
    )


def test_notifications_are_counted_from_one() -> None:
    tried: list[tuple[int, int]] = [(2, 3), (1, 3), (0, 1)]
    for counts in tried:
        cube = [Run(0), Notify(counts[0]), Run(2), Notify(counts[1])]
        first = int(counts[0] == 1)
        assert wrong(SERVICE, cube=cube)[0] == (
            f"program cube, launch 0: notifications are not counted from 1; expected {first + 1}; found {counts[first]}"
        )
    cube = [Run(0), LaunchEnd(2), Run(2), Notify(2)]
    assert wrong([], [AwaitCount(CUBE, 1)], cube=cube, vector=[Run(1), LaunchEnd(2), Run(3)]) == [
        "program cube, launch 1: notifications are not counted from 1; expected 1; found 2"
    ]


def test_each_notification_is_awaited() -> None:
    assert wrong(SERVICE[:-1]) == [
        "service of launch 0, vector count 1: a notification that nobody awaits; expected an await of it; found none"
    ]
    assert wrong([AwaitCount(CUBE, 2), AwaitCount(VECTOR, 1)]) == [
        "service of launch 0, cube count 1: a notification that nobody awaits; expected an await of it; found none"
    ]
    assert len(wrong()) == 3, "by nobody at all"


@pytest.mark.parametrize(("kind", "count", "reach"), [(CUBE, 3, 2), (CUBE, 0, 2), (VECTOR, 2, 1)])
def test_a_count_that_is_never_reached(kind: Any, count: int, reach: int) -> None:
    assert wrong([*SERVICE, AwaitCount(kind, count)]) == [
        f"service of launch 0, step 4: await {kind.value} count {count}: deadlock: nobody notifies so often; expected "
        f"1 to {reach}; found {count}"
    ]


def test_a_count_of_nobody() -> None:
    assert wrong([AwaitCount(CUBE, 1)], cube=[Run(0)], vector=[Run(1)], tasks=TASKS[:2]) == [
        "service of launch 0, step 0: await cube count 1: deadlock: nobody notifies so often; expected 1 to 0; found 1"
    ]


def test_counts_of_a_type_do_not_fall() -> None:
    assert wrong([*SERVICE, AwaitCount(CUBE, 1)]) == [
        "service of launch 0, step 4: await cube count 1: awaits what it has awaited; expected at least 2; found 1"
    ]
    assert wrong([*SERVICE, AwaitCount(CUBE, 2)]) == []
    assert wrong([*SERVICE[2:], *SERVICE[:1]])[0].endswith("awaits what it has awaited; expected at least 2; found 1")


def test_no_more_programs_than_launches() -> None:
    assert wrong(SERVICE, []) == ["service: service programs without a launch; expected 1; found 2"]
    end: list[Step] = [LaunchEnd(2)]
    assert wrong([AwaitCount(CUBE, 1)], [], cube=[Run(0), Notify(1), *end], vector=end) == []


# Prefetches -----------------------------------------------------------------------------------------------------------


def prefetched(
    step: Prefetch, *ahead: ServiceStep, cube: Sequence[Any] = CUBES, vector: Sequence[Any] = VECTORS, **more: Any
) -> list[str]:
    """What is wrong with a prefetch, the awaits left out of account."""
    return [text for text in wrong([*ahead, step], cube=cube, vector=vector, **more) if "prefetch" in text]


def test_a_prefetch_does_not_wait_for_its_own_use() -> None:
    early, late = AwaitCount(CUBE, 1), AwaitCount(CUBE, 2)
    for subop, offset, wait, told in ((2, 4096, early, []), (3, 8192, late, []), (2, 4096, late, [2])):
        found = prefetched(Prefetch(subop, offset, 1024), wait)
        assert [f"expected below {subop}; found {n}" in text for text, n in zip(found, told, strict=True)] == [True] * (
            len(told)
        )
    both = prefetched(Prefetch(1, 0, 1024), late, AwaitCount(VECTOR, 1))
    assert len(both) == 1
    assert both[0].endswith("a prefetch waits until its use is over; expected below 1; found 2"), "the furthest counts"


def test_ahead_of_all_kernels_nobody_is_waited_for() -> None:
    """A notification ahead of the first kernel stands behind none, in the second launch too."""
    assert prefetched(Prefetch(1, 0, 1024), AwaitCount(VECTOR, 1), vector=[Notify(1), Run(1), Run(3)]) == []
    tasks = tasks_of((0, 2, (constants(0, 512),)))
    assert (
        prefetched(Prefetch(0, 0, 512), AwaitCount(VECTOR, 1), cube=[], vector=[Notify(1), Run(0)], tasks=tasks) == []
    )
    assert prefetched(Prefetch(0, 0, 512), cube=[], vector=[Run(0)], tasks=tasks) == []
    cube: list[Step] = [Run(0), LaunchEnd(1), Notify(1), Run(2)]
    second = [AwaitCount(CUBE, 1), Prefetch(1, 0, 512)]
    assert wrong([], second, cube=cube, vector=[LaunchEnd(1), Run(1)]) == []


def read_by(*accesses: MemoryAccess, offset: int, nbytes: int) -> bool:
    """Whether a prefetch passes for a sub-operator with these accesses."""
    tasks = tasks_of((0, 0, accesses))
    found = prefetched(Prefetch(0, offset, nbytes), cube=[Run(0)], vector=[], tasks=tasks)
    text = f"service of launch 0, step 0: prefetch {nbytes} bytes at {offset} for 0: a prefetch of what its "
    assert found in ([], [f"{text}sub-operator does not read; expected its constants"])
    return not found


def test_a_prefetch_is_of_constants_that_are_read() -> None:
    assert read_by(constants(1024, 1024), offset=1024, nbytes=1024)
    assert not read_by(read(1024, 1024), offset=1024, nbytes=1024)
    assert not read_by(offset=1024, nbytes=1024)
    assert read_by(constants(4096, 64), constants(1024, 1024), constants(0, 64), offset=1024, nbytes=1024)
    assert read_by(constants(1024, 512), constants(1536, 512), offset=1024, nbytes=1024), "its ends by two operands"


def test_a_prefetch_is_for_the_sub_operator_that_it_names() -> None:
    tasks = tasks_of((0, 0, (constants(0, 64),)), (1, 0, (constants(1024, 1024),)))
    made: dict[str, Any] = {"cube": [Run(0), Run(1)], "vector": [], "tasks": tasks}
    assert prefetched(Prefetch(1, 1024, 1024), **made) == []
    assert len(prefetched(Prefetch(0, 1024, 1024), **made)) == 1


def test_the_ends_of_a_prefetch_may_be_rounded_to_a_line() -> None:
    line = LINE_BYTES
    assert line == 512
    many = constants(2 * line, 4 * line)
    for offset, nbytes, passes in (
        (line + 1, 5 * line - 1, True),  # its first line has the first byte that is read
        (line, 5 * line, False),
        (2 * line, 5 * line - 1, True),  # its last line has the last byte that is read
        (2 * line, 5 * line, False),
        (4 * line, 1, True),
        (6 * line - 1, 1, True),
        (6 * line, 1, False),
        (6 * line, line, False),
        (line - 1, 1, False),
        (4 * line, 0, False),
        (4 * line, -1, False),
    ):
        assert read_by(many, offset=offset, nbytes=nbytes) is passes, (offset, nbytes)
    assert read_by(constants(0, line), offset=0, nbytes=line)
    assert not read_by(constants(0, line), offset=-1, nbytes=line)
    ends = constants(0, 16), constants(4 * line, 16)
    assert read_by(*ends, offset=0, nbytes=4 * line + 16), "what lies between is not looked at"
    assert not read_by(ends[0], offset=0, nbytes=4 * line + 16)
    assert not read_by(ends[1], offset=0, nbytes=4 * line + 16)
    assert not read_by(*ends, offset=0, nbytes=4 * line), "up to the second"
    assert not read_by(*ends, offset=0, nbytes=2 * line), "which is further on"


def test_an_output_is_no_constant() -> None:
    assert not read_by(write(0, 1024, space=Space.OUTPUT), offset=0, nbytes=1024)
