"""The pairs that a proof of order looks at: enough to imply all others, and few."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from random_plans import bytes_of, is_accepted
from seeds import seeds

from superkernel.analysis.random_plans import random_accesses, random_schedule, read, schedule_of, write
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync import verify_pairs
from superkernel.sync.plan import Plan, Set, Step, TaskStep, Wait
from superkernel.sync.verify_pairs import RACES_MAX, Accesses, _Bundle, _BundleColumns, _Runs, _Stretches


def tasks_of(*rows: tuple[int, int, tuple[MemoryAccess, ...]]) -> list[Task]:
    """Tasks from (sub-operator, core, accesses)."""
    return [Task(n, subop, core, 0, 1, accesses) for n, (subop, core, accesses) in enumerate(rows)]


def pairs_of(tasks: list[Task]) -> set[tuple[int, int]]:
    """The pairs by task, after a look at bytes."""
    accesses = Accesses(tasks)
    found = accesses.racing(lambda earlier, later: np.ones(len(earlier), np.bool_))
    return {(int(accesses.task[a]), int(accesses.task[b])) for a, b in found}


def test_writers_stand_for_all_before_them() -> None:
    tasks = tasks_of(
        (0, 0, (write(0, 16),)),
        (1, 1, (read(4, 4),)),
        (2, 2, (write(0, 16),)),
        (3, 3, (read(4, 4),)),
        (4, 0, (write(0, 16),)),
        (5, 1, (read(8, 8),)),
        (6, 2, (write(0, 16),)),
        (7, 3, (write(0, 16),)),
    )
    links = {(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (4, 5), (4, 6), (5, 6), (6, 7)}
    assert pairs_of(tasks) == links
    assert number_of_pairs(Accesses(tasks)) == len(links)


def test_writers_of_other_stretches_of_one_sub_operator_stay() -> None:
    """Each of them, whichever is longer."""
    for lengths in ((16, 8), (8, 16)):
        rows = [(0, core, (write(0, length, space=Space.SCRATCH),)) for core, length in enumerate(lengths)]
        tasks = tasks_of(*rows, (1, 2, (read(0, 4, space=Space.SCRATCH),)))
        assert pairs_of(tasks) == {(0, 1), (0, 2), (1, 2)}


def test_all_writers_of_one_sub_operator_stay() -> None:
    """Workspaces: many cores write the same bytes, and whoever comes next must come after each of them."""
    rows = [(0, core, (write(0, 16, space=Space.SCRATCH),)) for core in range(3)]
    tasks = tasks_of(*rows, (1, 3, (read(0, 4, space=Space.SCRATCH),)))
    assert pairs_of(tasks) == {(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)}


@pytest.mark.parametrize(
    ("columns", "retired"),
    [
        ([(0, 4), (4, 4)], True),
        ([(0, 5), (3, 5)], True),
        ([(0, 4), (5, 3)], False),
        ([(1, 3), (4, 4)], False),
        ([(0, 4)], False),
        ([(0, 4), (4, 3)], False),
        ([(0, 2), (4, 7), (7, 7)], False),
    ],
)
def test_columns_retire_what_is_older_where_they_leave_no_gap(columns: list[tuple[int, int]], retired: bool) -> None:
    later = [(1, 1 + n, (write(at, length, 8, 4),)) for n, (at, length) in enumerate(columns)]
    tasks = tasks_of((0, 0, (write(0, 32),)), *later, (2, 5, (read(0, 32),)))
    assert ((0, len(tasks) - 1) in pairs_of(tasks)) is not retired


def test_reads_of_one_core_stand_for_earlier_ones_of_the_same_bytes_only() -> None:
    tasks = tasks_of(
        (0, 0, (write(0, 32),)),
        (1, 1, (read(0, 4, 8, 4),)),
        (2, 1, (read(4, 4, 8, 4),)),
        (3, 1, (read(4, 4, 8, 4),)),
        (4, 2, (write(0, 4), write(12, 4))),
    )
    assert pairs_of(tasks) == {(0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (3, 4)}


def test_tasks_of_one_sub_operator_are_paired_where_they_meet() -> None:
    tasks = tasks_of(
        (0, 0, (read(0, 8), write(0, 8))),
        (0, 1, (read(8, 8), write(8, 8))),
        (0, 2, (read(4, 8),)),
        (0, 3, (write(16, 4, 8, 2),)),
        (0, 4, (write(20, 4, 8, 2),)),
        (0, 5, (write(23, 4, 8, 2),)),
    )
    assert pairs_of(tasks) == {(0, 2), (1, 2), (3, 5), (4, 5)}


@pytest.mark.parametrize(
    ("columns", "pairs"),
    [
        ([(0, 4), (4, 4)], 0),
        ([(0, 3), (4, 4)], 0),
        ([(0, 5), (3, 5)], 1),
        ([(0, 5), (5, 5)], 1),
        ([(0, 4), (2, 4), (4, 4)], 3),
        ([(0, 4), (2, 4), (6, 2)], 3),
        ([(0, 4), (4, 4), (64, 4), (68, 4)], 0),
    ],
)
def test_columns_of_one_sub_operator_are_paired_where_they_may_meet(columns: list[tuple[int, int]], pairs: int) -> None:
    """Those that lie one behind the other are not, those that overlap are, the next line's included."""
    tasks = tasks_of(*((0, core, (write(at, length, 8, 4),)) for core, (at, length) in enumerate(columns)))
    assert number_of_pairs(Accesses(tasks)) == pairs


def test_columns_far_apart_are_not_one_stretch() -> None:
    writes = [(0, core, (write(64 * core, 4, 8, 4),)) for core in range(3)]
    assert number_of_pairs(Accesses(tasks_of(*writes, (1, 3, (read(64, 4, 8, 4),))))) == 1


def test_columns_that_begin_in_the_next_line_are_another_stretch() -> None:
    """Their ranges meet, so that they are paired; who reads what is ahead of the second is paired with the first."""
    writes = [(0, core, (write(8 * core, 4, 8, 2),)) for core in range(2)]
    assert number_of_pairs(Accesses(tasks_of(*writes))) == 1
    assert number_of_pairs(Accesses(tasks_of(*writes, (1, 3, (read(0, 4),))))) == 2


def test_columns_with_a_gap_between_them_count_as_written() -> None:
    """They and no more: neither the gap nor what lies behind the last of a line."""
    tasks = tasks_of(
        *((0, core, (write(at, 2, 8, 2),)) for core, at in enumerate((1, 5, 65))),
        (1, 0, tuple(read(at, 2, 8, 2) for at in (1, 5, 65))),
        (2, 0, tuple(read(at, 1, 8, 2) for at in (3, 7, 67))),
    )
    unwritten = [(task.index, low, high) for task, _, low, high in Accesses(tasks).unwritten]
    assert unwritten == [(4, 3, 4), (4, 7, 8), (4, 67, 68)]


def test_stretches_and_runs_do_not_grow_in_number() -> None:
    """Those that have no users any more are one again."""
    stretches = _Stretches()
    empty = list(stretches.starts)
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        for n in order:
            stretches.add(_Bundle(8 * n, 8 * n + 8, write=False, users=[n], latest={n: n}, regions=[]))
        assert stretches.starts == [empty[0], 0, 8, 16, 24, empty[1]]
        assert [stretches.users_of(8 * n, 8 * n + 8) for n in range(-1, 4)] == [[], [0], [1], [2], []]
        stretches.add(_Bundle(0, 16, write=False, users=[3], latest={3: 3}, regions=[]))
        assert stretches.starts == [empty[0], 0, 8, 16, 24, empty[1]], "one that ends where one does cuts none"
        assert sorted(stretches.users_of(4, 12)) == [0, 1, 3]
        for n in order:
            stretches.clear(8 * n, 8 * n + 8)
        assert stretches.starts == empty
        assert stretches.users == [{}, {}]
    runs = _Runs()
    for low, high in ((0, 4), (8, 12), (4, 8), (2, 9), (20, 24), (11, 21)):
        runs.add(low, high)
    assert (runs.starts, runs.stops) == ([0], [24])


def test_a_stretch_is_cleared_whole_where_its_beginning_has_no_users() -> None:
    tasks = tasks_of(
        (0, 0, (write(0, 16),)),
        (1, 1, (read(8, 8),)),
        (2, 2, (write(0, 16),)),
        (3, 3, (write(0, 16),)),
    )
    assert number_of_pairs(Accesses(tasks)) == 4


def test_races_are_listed_up_to_a_number() -> None:
    assert RACES_MAX == 20
    tasks = tasks_of((0, 0, (write(0, 8),)), *((1, core, (read(0, 8),)) for core in range(1, 30)))
    assert len(pairs_of(tasks)) == RACES_MAX


def test_tasks_that_race_in_several_places_are_listed_once() -> None:
    accesses = Accesses(tasks_of((0, 0, (write(0, 8), write(32, 8))), (1, 1, (read(0, 8), read(32, 8)))))
    assert len(list(accesses.racing(lambda earlier, later: np.ones(len(earlier), np.bool_)))) == 1


def test_what_nobody_writes_and_what_touches_nothing_is_left_out() -> None:
    """Inputs and constants, and accesses without regions, the last one too; states may be read before they are
    written."""
    kept = read(0, 8, space=Space.STATE)
    others = (read(0, 8, space=Space.INPUT), read(0, 8, space=Space.CONSTANT), MemoryAccess(Space.STATE, 0, False, ()))
    accesses = Accesses(tasks_of((0, 0, (kept, *others))))
    assert accesses.source == [kept]
    assert accesses.unwritten == []
    assert Accesses(tasks_of((0, 0, (read(0, 8, space=Space.ARENA),)))).unwritten != []


def test_bytes_side_by_side_are_compared_one_by_one() -> None:
    """Runs of one byte, one byte apart."""
    regions = Region(1, 1, 0, 1), Region(0, 1, 1, 3), Region(3, 1, 0, 1)
    accesses = Accesses(tasks_of(*((n, 0, (MemoryAccess(Space.STATE, 0, True, (r,)),)) for n, r in enumerate(regions))))
    earlier, later = np.array([(0, 1), (1, 2), (0, 2)], np.int32).T
    assert accesses.share(earlier, later).tolist() == [True, False, False]
    assert accesses.share(later, earlier).tolist() == [True, False, False]


def test_what_nobody_wrote_is_told_with_its_first_bytes() -> None:
    tasks = tasks_of(
        (0, 0, (write(0, 4, 8, 3), write(64, 8))),
        (1, 0, (write(4, 4, 8, 2), read(0, 4, 8, 3), read(64, 8))),
        (2, 0, (read(0, 24), read(0, 20), read(60, 6), read(2, 4, 8, 3))),
        (2, 1, (read(0, 24),)),
    )
    unwritten = [(task.index, low, high) for task, _, low, high in Accesses(tasks).unwritten]
    assert unwritten == [(2, 0, 24), (3, 0, 24), (2, 60, 66), (2, 18, 22)]


@pytest.mark.parametrize("seed", seeds(30))
def test_every_conflict_is_implied(seed: int) -> None:
    """Order between all pairs, and program order, order all tasks that conflict: by transitive closure."""
    tasks = random_accesses(seed).tasks
    before: list[set[int]] = [set() for _ in tasks]
    found = pairs_of_all(tasks)
    for later, task in enumerate(tasks):
        for earlier in range(later):
            if (earlier, later) in found or tasks[earlier].core == task.core:
                before[later] |= before[earlier] | {earlier}
    for later, task in enumerate(tasks):
        for earlier in range(later):
            if conflict(tasks[earlier], task):
                assert earlier in before[later], (earlier, later)


def pairs_of_all(tasks: tuple[Task, ...]) -> set[tuple[int, int]]:
    accesses = Accesses(tasks)
    shared = [
        (a, b)
        for earlier, later in accesses.blocks()
        for a, b in zip(earlier.tolist(), later.tolist(), strict=True)
        if bytes_of(accesses.source[a]) & bytes_of(accesses.source[b])
    ]
    return {(int(accesses.task[a]), int(accesses.task[b])) for a, b in shared}


def number_of_pairs(accesses: Accesses) -> int:
    return sum(len(earlier) for earlier, _ in accesses.blocks())


def conflict(earlier: Task, later: Task) -> bool:
    return any(
        (a.space, a.slot) == (b.space, b.slot) and (a.write or b.write) and bytes_of(a) & bytes_of(b)
        for a in earlier.accesses
        for b in later.accesses
    )


@pytest.mark.parametrize("seed", seeds(10))
def test_bytes_are_compared_exactly(seed: int) -> None:
    """Regions of one and of several runs, of equal and of different strides, one and two per access."""
    rng = random.Random(seed)

    def regions() -> tuple[Region, ...]:
        runs = [(rng.randrange(24), rng.randint(1, 6), rng.choice([3, 7, 8, 8]), rng.randint(1, 5)) for _ in "ab"]
        return tuple(Region(s, n, step if c > 1 else 0, c) for s, n, step, c in runs[: rng.randint(1, 2)])

    tasks = tasks_of(*((n, 0, (MemoryAccess(Space.STATE, 0, True, regions()),)) for n in range(12)))
    accesses = Accesses(tasks)
    for a, b in combinations(range(12), 2):
        shares = bool(bytes_of(accesses.source[a]) & bytes_of(accesses.source[b]))
        assert accesses.share(np.array([a], np.int32), np.array([b], np.int32)).tolist() == [shares]


@pytest.mark.parametrize(("at_once", "tried"), [(1 << 30, 1 << 30), (7, 1 << 30), (1, 0), (7, 16), (1 << 30, 0)])
@pytest.mark.parametrize("seed", seeds(2))
def test_bytes_are_compared_in_parts(seed: int, at_once: int, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pairs, and accesses of many regions, in any order of their regions."""
    monkeypatch.setattr(verify_pairs, "AT_ONCE", at_once)
    monkeypatch.setattr(verify_pairs, "PAIRS_TRIED", tried)
    rng = random.Random(seed)

    def regions() -> tuple[Region, ...]:
        runs = ((rng.randrange(700), rng.randint(1, 6), rng.choice([7, 8, 31]), rng.choice([1, 1, 2, 4])) for _ in "ab")
        return tuple(Region(s, n, step if c > 1 else 0, c) for s, n, step, c in runs)

    def several() -> tuple[Region, ...]:
        return tuple(region for _ in range(rng.randint(1, 4)) for region in regions())

    tasks = tasks_of(*((n, 0, (MemoryAccess(Space.STATE, 0, True, several()),)) for n in range(14)))
    accesses = Accesses(tasks)
    pairs = list(combinations(range(14), 2))
    expected = [bool(bytes_of(accesses.source[a]) & bytes_of(accesses.source[b])) for a, b in pairs]
    assert 10 < sum(expected) < len(pairs) - 10
    earlier, later = np.array(pairs, np.int32).T
    assert accesses.share(earlier, later).tolist() == expected
    assert accesses.share(later, earlier).tolist() == expected


@pytest.mark.parametrize("seed", seeds(6))
def test_ranges_that_meet_are_counted(seed: int) -> None:
    tasks = random_accesses(seed).tasks
    accesses = Accesses(tasks)

    def bounds(access: MemoryAccess) -> tuple[int, int]:
        return min(r.start for r in access.regions), max(r.stop for r in access.regions)

    counts = {"all": 0, "task": 0, "core": 0}
    for (t, a), (u, b) in combinations(zip(accesses.tasks, accesses.source, strict=True), 2):
        (low, high), (start, stop) = bounds(a), bounds(b)
        if (a.space, a.slot) == (b.space, b.slot) and (a.write or b.write) and low < stop and start < high:
            counts["all"] += 1
            counts["task"] += t.index == u.index
            counts["core"] += t.core == u.core
    assert accesses.count_overlaps() == counts["all"]
    assert accesses.count_overlaps(accesses.task) == counts["task"]
    assert accesses.count_overlaps(accesses.core) == counts["core"]


def test_pairs_are_counted_where_addresses_are_far_away() -> None:
    """More groups of cores and spaces than 64 bits have room for, were each as far away from the others."""
    far = (1 << 60) - 13  # so that 16 times all bytes that there are is nothing, in 64 bits
    cores = [0, 16, 16, 0]
    tasks = tasks_of(*((n, core, (write(0, 8), read(far, 8), write(far + 4, 8))) for n, core in enumerate(cores)))
    accesses = Accesses(tasks)
    # Six pairs of tasks meet at 0 and three times at `far`; each task's own read and write do, too.
    assert accesses.count_overlaps() == 6 * 4 + 4
    assert accesses.count_overlaps(accesses.core) == 2 * 4 + 4
    assert accesses.count_overlaps(accesses.task) == 4
    assert accesses.count_overlaps(accesses.core, accesses.subop) == 4


def test_groups_of_several_columns_are_kept_apart_where_addresses_are_far_away() -> None:
    """Few cores and few sub-operators, but many pairs of them."""
    far = (1 << 57) - 13  # so that 128 times all bytes that there are is nothing, in 64 bits
    own = (write(0, 8), read(far, 8), write(far + 4, 8))
    accesses = Accesses(tasks_of(*((subop, core, own) for subop in (0, 7) for core in (0, 16))))
    # Each task's own read and write meet; the groups of cores 0 and 16 are 16 * 8 apart.
    assert accesses.count_overlaps(accesses.core, accesses.subop) == 4


@pytest.mark.parametrize("stride", [0, 64])
@pytest.mark.parametrize("cores", [2, 16])
def test_pairs_grow_with_tasks_and_no_faster(cores: int, stride: int) -> None:
    """A chain over an arena that is reused all the time, by rows or by columns: twice the tasks, twice the pairs."""

    def part(at: int, c: int) -> Region:
        width = 64 // cores
        return Region(at + width * c, width, 64, 4) if stride else Region(at + 4 * width * c, 4 * width)

    def pairs(count: int) -> int:
        rows = []
        for i in range(count):
            here, there = 256 * (i % 8), 256 * ((i - 1) % 8)
            for c in range(cores):
                source = MemoryAccess(Space.ARENA, 0, False, (part(there, c),))
                rows.append((i, c, (source, MemoryAccess(Space.ARENA, 0, True, (part(here, c),)))))
        return number_of_pairs(Accesses(tasks_of(*rows)))

    assert pairs(80) < 2.3 * pairs(40)


@pytest.mark.parametrize("most", [1, 7])
@pytest.mark.parametrize("many", [False, True])
def test_pairs_come_in_blocks(many: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones, whatever the size of a block; none is larger than that and the pairs of one access."""
    writers = [(0, core, (write(0, 16, space=Space.SCRATCH),)) for core in range(3)]
    readers = [(1, core, (read(0, 4, space=Space.SCRATCH),)) for core in range(5)]
    tasks = tasks_of(*writers, *readers) if many else random_accesses(3).tasks
    monkeypatch.setattr(verify_pairs, "_BLOCK", 1 << 30)
    ((earlier, later),) = Accesses(tasks).blocks()
    monkeypatch.setattr(verify_pairs, "_BLOCK", most)
    blocks = list(Accesses(tasks).blocks())
    assert len(blocks) > 1
    assert min(len(one) for one, _ in blocks[:-1]) >= most
    assert max(len(one) for one, _ in blocks) < most + max(most, *np.bincount(later))
    assert most > 1 or all(len(set(other.tolist())) == 1 for _, other in blocks)
    assert [tuple(np.concatenate(column)) for column in zip(*blocks, strict=True)] == [tuple(earlier), tuple(later)]


@pytest.mark.parametrize("some", [1, 5, 16])
@pytest.mark.parametrize("seed", seeds(3))
def test_regions_are_looked_at_in_parts(seed: int, some: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pairs in the same order, and the same bytes that nobody wrote, however many regions there are in one."""

    def found() -> tuple[list[tuple[list[int], list[int]]], list[tuple[int, int, int]]]:
        accesses = Accesses(tasks)
        pairs = [(earlier.tolist(), later.tolist()) for earlier, later in accesses.blocks()]
        return pairs, [(task.index, low, high) for task, _, low, high in accesses.unwritten]

    tasks = [*random_accesses(seed).tasks, *random_schedule(seed, subops=30).tasks]
    whole = found()
    assert sum(len(earlier) for earlier, _ in whole[0]) > 20
    made: list[int] = []
    first = _BundleColumns.__init__

    def counted(self: _BundleColumns, regions: Any, some: slice, *rest: Any) -> None:
        made.append(some.start)
        first(self, regions, some, *rest)

    monkeypatch.setattr(_BundleColumns, "__init__", counted)
    monkeypatch.setattr(verify_pairs, "_REGIONS", some)
    assert found() == whole
    assert len(made) > 3
    assert made == sorted(set(made))


def test_a_gap_between_columns_is_no_order() -> None:
    """Core 2 reads what core 0 wrote and core 1's columns leave out: it must wait for core 0, whatever core 1 did."""
    tasks = tasks_of((0, 0, (write(0, 32),)), (1, 1, (write(0, 7, 8, 4),)), (2, 2, (read(7, 1),)))

    def plan(*waits: Wait) -> Plan:
        programs: tuple[tuple[Step, ...], ...] = (
            (TaskStep(0), Set(1)),
            (Wait(0, 1, 1, 9), TaskStep(1)),
            (*waits, TaskStep(2)),
        )
        return Plan(tuple(tasks), programs, (1, 0, 0), (), ())

    assert not is_accepted(plan())
    assert is_accepted(plan(Wait(0, 1, 2, 0)))


def test_no_tasks_have_no_pairs() -> None:
    assert number_of_pairs(Accesses(schedule_of(2, []).tasks)) == 0
    assert Accesses([]).count_overlaps() == 0
