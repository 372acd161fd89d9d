"""The list scheduler by numbers alone: what it hands over, what it asks, what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from seeds import seeds

from superkernel import _core
from superkernel.core.errors import InputError
from superkernel.core.tensor import Region, any_overlap
from superkernel.scheduler.tiling import Access

HANDOVER_NS, LINE_NS, WORK_NS = 10.0, 8.0, 100.0
Part = tuple[Sequence[Access], int | None]


def two_steps(written: Sequence[Region], read: Sequence[Region], stored: int | None = None) -> _core.ListScheduler:
    """A host call, which is core 0's, writes a buffer at byte 64 of a value; two ranges read the value."""
    parts: Mapping[tuple[int, int], Part] = {
        (0, 0): ([Access(0, True, tuple(written))], stored),
        (1, 0): ([], None),
        (1, 1): ([Access(0, False, tuple(read))], None),
    }
    return _core.ListScheduler(
        [(0, [[(1, 0), (0, 64)]], [], [], True), (1, [[(0, 0)]], [0], [0], False)],
        [[([WORK_NS], WORK_NS)], [([WORK_NS, WORK_NS], WORK_NS)]],
        lambda work, partition, part: parts[work, part],
        [[0.0, HANDOVER_NS], [HANDOVER_NS, 0.0]],
        HANDOVER_NS,
        LINE_NS,
        [0, 1],
    )


def read_late_ns(written: Sequence[Region], read: Sequence[Region], stored: int | None = None) -> float:
    """By how much the second range is later than the first one, which reads nothing."""
    scheduler = two_steps(written, read, stored)
    assert scheduler.run_in_order("") == [0, 1]
    (_, _, first_ns, _), (_, _, done_ns, _) = scheduler.placements()
    assert first_ns == WORK_NS
    return done_ns - 2 * WORK_NS


@pytest.mark.parametrize(
    ("written", "read", "stored", "nbytes"),
    [
        ([Region(0, 640)], [Region(64, 640)], None, 640),
        ([Region(0, 640)], [Region(384, 64)], None, 64),
        ([Region(0, 640)], [Region(64, 640)], 32, 32),  # what may be written anywhere
        ([Region(0, 64, 128, 4)], [Region(64, 448)], None, 256),  # as dense as the sparser of the two
        ([Region(0, 64, 128, 4)], [Region(64, 1, 128, 4)], None, 4),
    ],
)
def test_bytes_that_another_core_wrote_come_line_by_line(
    written: list[Region], read: list[Region], stored: int | None, nbytes: int
) -> None:
    assert read_late_ns(written, read, stored) == pytest.approx(HANDOVER_NS + nbytes / 64 * LINE_NS)


@pytest.mark.parametrize("read", [[Region(0, 64)], [Region(704, 8)], [Region(128, 64, 128, 3)]])
def test_what_meets_nothing_waits_for_nothing(read: list[Region]) -> None:
    assert read_late_ns([Region(0, 64, 128, 5)], read) == 0.0


@pytest.mark.parametrize("seed", seeds(3))
def test_many_regions_meet_as_in_python(seed: int) -> None:
    """Of few pairs each is tried, many are walked by their addresses."""
    rng, met = np.random.default_rng(seed), set()
    for count in (2, 8, 70, 90):
        for _ in range(40):
            size = 64 * count
            sides = [
                [
                    Region(int(start), int(rng.integers(1, 4)), 4 * int(rng.integers(1, 5)), int(rng.integers(2, 4)))
                    for start in rng.integers(0, size, count) * 4 + shift
                ]
                for shift in (0, int(rng.integers(0, 3)))
            ]
            kept = sides[1][: int(rng.integers(1, count + 1))]
            meets = any_overlap([r.shifted(64) for r in sides[0]], kept) is not None
            assert (read_late_ns(sides[0], kept) > 0.0) is meets
            met.add((count, meets))
    assert len(met) > 4


def test_who_touches_a_buffer_last_and_what_is_known_of_it() -> None:
    scheduler = two_steps([Region(0, 128)], [Region(64, 64)])
    order = scheduler.run_in_order("as given")
    assert [row[3] for row in scheduler.placements()] == ["as given"] * 2
    assert scheduler.touched(order) == [(0, {0: 1, 1: 1}, [-1, -1], ((64, 192, 0),), False)]
    assert scheduler.makespan_ns() == WORK_NS + HANDOVER_NS + WORK_NS + LINE_NS + HANDOVER_NS


@pytest.mark.parametrize(
    ("written", "read", "apart"),
    [
        ([Region(0, 64), Region(64, 64)], [Region(0, 64), Region(64, 64)], True),
        ([Region(0, 64), Region(64, 64)], [Region(0, 32), Region(96, 32)], True),
        ([Region(0, 64), Region(64, 64)], [Region(64, 64), Region(0, 64)], False),  # each what the other has written
        ([Region(0, 64), Region(64, 64)], [Region(0, 65), Region(65, 63)], False),
        ([Region(0, 68), Region(64, 64)], [Region(0, 64), Region(64, 64)], False),  # both write four bytes
        ([Region(0, 4, 8, 8), Region(4, 4, 8, 8)], [Region(0, 4, 8, 8), Region(4, 4, 8, 8)], False),  # strided pieces
    ],
)
def test_buffers_of_which_nobody_uses_the_others_bytes(written: list[Region], read: list[Region], apart: bool) -> None:
    scheduler = _core.ListScheduler(
        [(0, [[(0, 0)]], [], [], False), (1, [[(0, 0)]], [0], [0], False)],
        [[([WORK_NS] * 2, WORK_NS)]] * 2,
        lambda work, _, part: ([Access(0, work == 0, ((written, read)[work][part],))], None),
        [[0.0, HANDOVER_NS], [HANDOVER_NS, 0.0]],
        HANDOVER_NS,
        LINE_NS,
        [0, 1],
    )
    ((_, _, _, runs, found),) = scheduler.touched(scheduler.run_in_order(""))
    assert found is apart
    assert not apart or runs == ((0, 64, 0), (64, 128, 1))


def test_what_goes_wrong_with_an_answer_is_told() -> None:
    def accesses(work: int, partition: int, part: int) -> Any:
        raise ArithmeticError(f"{work} {partition} {part}")

    scheduler = _core.ListScheduler(
        [(0, [[(0, 0)]], [], [], False)], [[([1.0], 1.0)]], accesses, [[0.0]], 1.0, 1.0, [0]
    )
    with pytest.raises(ArithmeticError, match="0 0 0"):
        scheduler.run()


GOOD: dict[str, Any] = {
    "subops": [(0, [[(0, 0)]], [0], [], False)],
    "partitions": [[([1.0], 1.0)]],
    "accesses": lambda *_: ([], None),
    "handovers_ns": [[0.0, 1.0], [1.0, 0.0]],
    "handover_ns": 1.0,
    "line_ns": 1.0,
    "apart": [0, 1],
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"subops": [(1, [[(0, 0)]], [0], [], False)]},
        {"subops": [(0, [[]], [0], [], False)]},
        {"subops": [(0, [[(-1, 0)]], [0], [], False)]},
        {"subops": [(0, [[(0, 0)]], [1], [], False)]},
        {"subops": [(0, [[(0, 0)]], [0], [1], False)]},
        {"partitions": [[]]},
        {"partitions": [[([1.0] * 3, 1.0)]]},
        {"partitions": [[([1.0], 1.0), ([1.0, 1.0], 1.0)]], "handovers_ns": [[0.0] * 3] * 3, "apart": [0]},
        {"handovers_ns": []},
        {"handovers_ns": [[0.0, 1.0], [1.0]]},
        {"apart": []},
        {"apart": [2]},
    ],
)
def test_what_cannot_be_scheduled_is_refused(wrong: dict[str, Any]) -> None:
    assert _core.ListScheduler(**GOOD).run() == [0]
    with pytest.raises(InputError, match="nothing that can be scheduled"):
        _core.ListScheduler(**(GOOD | wrong)).run()


def test_orders_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="by their numbers"):
        _core.ListScheduler(**GOOD).touched([1])


def test_accesses_without_bytes_are_refused() -> None:
    with pytest.raises(InputError, match="accesses of bytes"):
        _core.ListScheduler(**(GOOD | {"accesses": lambda *_: ([Access(0, True, ())], None)})).run()


def test_vector_clocks_know_what_sources_knew() -> None:
    clock = _core.VectorClock(3)
    clock.run(0, 0, [])
    clock.run(1, 1, [(0, 0)])
    clock.run(2, 2, [(1, 1)])
    clock.run(2, 0, [])
    assert clock.at(0, [0]) == [-1, -1, -1]
    assert clock.at(1, [1]) == [0, -1, -1]
    assert clock.at(2, [2]) == [0, 1, -1]
    assert clock.at(2, [2, 0]) == [0, -1, -1]
    assert clock.at(5, []) == [5, 5, 5]


@pytest.mark.parametrize(("core", "sources"), [(3, []), (-1, []), (0, [(0, 1)]), (0, [(0, 3)])])
def test_vector_clocks_refuse_what_has_not_run(core: int, sources: list[tuple[int, int]]) -> None:
    clock = _core.VectorClock(3)
    with pytest.raises(KeyError):
        clock.run(0, core, sources)
    with pytest.raises(KeyError):
        clock.at(0, [0])
