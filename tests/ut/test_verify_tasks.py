"""What the verifiers ask of tasks alone: numbers, units, who writes what, and whether bytes meet."""

from __future__ import annotations

from itertools import product

import pytest
from random_plans import bytes_of

from superkernel.analysis.random_plans import read, write
from superkernel.core.errors import Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.verify_tasks import check_tasks, overlapping_regions, race


def tasks_of(*ranges: tuple[int, int], subop: int = 0) -> list[Task]:
    """A task per range of units, each on a core of its own."""
    return [Task(n, subop, n, begin, end, ()) for n, (begin, end) in enumerate(ranges)]


def told(found: Violation) -> tuple[str, str, str, str]:
    return found.message, found.location, found.expected, found.found


def test_tasks_are_numbered_in_the_global_order() -> None:
    tasks = [Task(0, 0, 0, 0, 1, ()), Task(2, 1, 1, 0, 1, ()), Task(2, 2, 0, 0, 1, ())]
    assert [told(v) for v in check_tasks(tasks, {})] == [("task indices are not the global order", "", "1", "2")]


@pytest.mark.parametrize("space", [Space.INPUT, Space.CONSTANT])
def test_inputs_and_constants_are_read_and_never_written(space: Space) -> None:
    tasks = [Task(0, 0, 3, 0, 1, (read(0, 8, space=space), write(0, 8)))]
    assert list(check_tasks(tasks, {})) == []
    tasks = [Task(0, 0, 3, 0, 1, (write(0, 8), MemoryAccess(space, 2, True, (Region(0, 8),))))]
    assert [told(v) for v in check_tasks(tasks, {})] == [(f"writes to {space.value}2", "core 3, task 0", "", "")]


@pytest.mark.parametrize(("begin", "end", "wrong"), [(0, 1, False), (1, 1, True), (2, 1, True)])
def test_a_task_has_units(begin: int, end: int, wrong: bool) -> None:
    found = [told(v) for v in check_tasks([Task(0, 5, 1, begin, end, ())], {})]
    assert found == [("empty unit range", "core 1, task 0", "", f"{begin}..{end}")] * wrong


TWICE, INVENTED = "units are left out or done twice", "units are left out or invented"


@pytest.mark.parametrize(
    ("ranges", "wrong"),
    [
        ([(0, 2), (2, 4)], []),
        ([(2, 4), (0, 2)], []),
        ([(0, 2), (3, 4)], [(TWICE, "2", "3..4")]),
        ([(1, 4)], [(TWICE, "0", "1..4")]),
        ([(0, 3), (2, 4)], [(TWICE, "3", "2..4")]),
        ([(0, 4), (1, 2)], [(TWICE, "4", "1..2")]),
        ([(0, 4), (0, 4)], [(TWICE, "4", "0..4")]),
        ([(0, 3)], [(INVENTED, "4", "3")]),
        ([(0, 5)], [(INVENTED, "4", "5")]),
        ([], [(INVENTED, "4", "0")]),
    ],
)
def test_units_are_covered_once(ranges: list[tuple[int, int]], wrong: list[tuple[str, str, str]]) -> None:
    found = [told(v) for v in check_tasks(tasks_of(*ranges, subop=7), {7: 4})]
    assert found == [(message, "sub-operator 7", *numbers) for message, *numbers in wrong]


def test_units_of_others_nobody_knows() -> None:
    assert list(check_tasks(tasks_of((3, 9)), {})) == []


def test_one_range_on_several_cores_counts_once_where_they_share_it() -> None:
    tasks = tasks_of((0, 4), (0, 4))
    assert list(check_tasks(tasks, {0: 4}, shared=True)) == []
    assert len(list(check_tasks(tasks_of((0, 4), (1, 4)), {0: 4}, shared=True))) == 1


def test_units_that_groups_compute_each_for_itself_are_not_counted_but_others_are() -> None:
    """The others stand behind them."""
    tasks = [*tasks_of((0, 4), (0, 4)), Task(2, 1, 0, 0, 3, ())]
    assert [told(v) for v in check_tasks(tasks, {0: 4, 1: 4}, copied=[0])] == [(INVENTED, "sub-operator 1", "4", "3")]


def test_bytes_meet_exactly() -> None:
    """All pairs of small regions: one run and several, apart, side by side and interleaved, runs that overlap."""
    regions = [
        Region(start, length, stride if count > 1 else 0, count)
        for start, length, (stride, count) in product(
            (0, 1, 4, 7, 11), (1, 2, 4), ((0, 1), (1, 3), (3, 2), (4, 3), (5, 4), (9, 2))
        )
    ]
    sets = {region: bytes_of(MemoryAccess(Space.ARENA, 0, True, (region,))) for region in regions}
    for a, b in product(regions, regions):
        pair = overlapping_regions([a], [b])
        assert (pair is not None) == bool(sets[a] & sets[b]), (a, b)
        assert pair is None or pair == (a, b)


def test_the_first_pair_that_meets_is_told() -> None:
    left, right = [Region(0, 4), Region(8, 4)], [Region(100, 4), Region(10, 4), Region(0, 4)]
    assert overlapping_regions(left, right) == (left[0], right[2])
    assert overlapping_regions(left, right[:2]) == (left[1], right[1])
    assert overlapping_regions(left, right[:1]) is None


def test_a_race_names_both_tasks() -> None:
    one, other = Task(3, 1, 0, 0, 1, ()), Task(5, 2, 4, 0, 1, ())
    pair = Region(0, 4), Region(2, 4)
    found = race(one, other, write(2, 4), pair, "boundary 2", "a wait")
    assert found.message.startswith("race: tasks 3 (sub-operator 1, core 0) and 5 (sub-operator 2, core 4) touch")
    assert (found.location, found.expected, found.found) == (
        "core 4, boundary 2",
        "a wait",
        f"bytes {pair[0]} and {pair[1]}",
    )
