"""Conflicts of tasks: found by byte, and enough of them to imply all others."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from random_plans import bytes_of
from seeds import seeds

from superkernel import _core
from superkernel.analysis.random_aicore import CUBE, MINI, BufferOp, schedule_of
from superkernel.analysis.random_plans import random_accesses, random_schedule, read, write
from superkernel.core.errors import InputError
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync import hazards
from superkernel.sync.aicore.plan import Form
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.hazards import AccessColumns, Conflict, Witnesses, find_all, find_conflicts
from superkernel.sync.plan import Hazard


def tasks_of(*rows: tuple[int, tuple[MemoryAccess, ...]]) -> list[Task]:
    """Tasks from (sub-operator, accesses)."""
    return [Task(n, subop, n, 0, 1, accesses) for n, (subop, accesses) in enumerate(rows)]


def conflicts(tasks: list[Task]) -> list[Conflict]:
    rows = list(find_conflicts(tasks))
    assert len(rows) == len(tasks)
    assert all(conflict.later == task.index for task, row in zip(tasks, rows, strict=True) for conflict in row)
    return [conflict for row in rows for conflict in row]


def pairs(tasks: list[Task]) -> list[tuple[int, int]]:
    return sorted((conflict.earlier, conflict.later) for conflict in conflicts(tasks))


@pytest.mark.parametrize(
    ("first", "second", "hazard"),
    [(write, read, Hazard.RAW), (read, write, Hazard.WAR), (write, write, Hazard.WAW), (read, read, None)],
)
def test_a_conflict_says_what_it_is_and_where(first: object, second: object, hazard: Hazard | None) -> None:
    tasks = tasks_of((0, (first(8, 8),)), (1, (second(12, 8),)))  # type: ignore[operator]
    found = conflicts(tasks)
    if hazard is None:
        assert found == []
        return
    assert found == [Conflict(0, 1, hazard, (Space.ARENA, 0), Region(8, 8), Region(12, 8))]
    assert str(found[0].witness) == f"{hazard.value}: task 0 bytes 8+8 and task 1 bytes 12+8 of arena0"


@pytest.mark.parametrize(("start", "meets"), [(0, False), (1, True), (15, True), (16, False)])
def test_ranges_meet_where_they_share_a_byte(start: int, meets: bool) -> None:
    assert pairs(tasks_of((0, (write(8, 8),)), (1, (write(start, 8),)))) == ([(0, 1)] if meets else [])


def test_a_workspace_is_no_operand() -> None:
    """It is needed ahead of all of them, by cores that read none of them too."""
    regions = (Region(0, 8),)
    uses = tuple(MemoryAccess(Space.ARENA, n, True, regions, operand) for n, operand in enumerate((None, -1, 2)))
    assert AccessColumns(tasks_of((0, uses))).operand.tolist() == [0, -1, 2]


def test_memories_are_told_apart() -> None:
    def of(space: Space, slot: int, written: bool = True) -> MemoryAccess:
        return MemoryAccess(space, slot, written, (Region(0, 8),))

    rows = [(n, (of(space, slot),)) for n, (space, slot) in enumerate(
        [(Space.ARENA, 0), (Space.ARENA, 1), (Space.OUTPUT, 0), (Space.ARENA, 1)])]  # fmt: skip
    assert pairs(tasks_of(*rows)) == [(1, 3)]
    for space in (Space.CONSTANT, Space.INPUT):
        assert pairs(tasks_of((0, (of(space, 0),)), (1, (of(space, 0, False),)))) == [], "which nobody writes"


def test_sub_operators_without_accesses_are_planned() -> None:
    """By the accelerator's planner, which asks for pairs of accesses by sub-operator."""
    schedule = schedule_of([BufferOp(CUBE, 2, (), 0), BufferOp(CUBE, 2, ((0, True),), 1)])
    plan = plan_aicore(replace(schedule, tasks=tuple(replace(task, accesses=()) for task in schedule.tasks)), MINI)
    assert [(b.implied, b.form) for b in plan.boundaries] == [(0, Form.NONE)] * 2
    assert plan.events == ()


def test_what_names_no_operand_is_taken_for_the_first_and_a_workspace_is_none() -> None:
    accesses = tuple(replace(read(8 * n, 8), operand=operand) for n, operand in enumerate((None, -1, 3)))
    assert AccessColumns(tasks_of((0, accesses))).operand.tolist() == [0, -1, 3]


def test_accesses_of_no_bytes_conflict_with_nobody() -> None:
    nothing = MemoryAccess(Space.ARENA, 0, True, ())
    assert pairs(tasks_of((0, (write(0, 8),)), (1, (nothing,)), (2, (read(0, 8),)))) == [(0, 2)]


@pytest.mark.parametrize("count", [1, 2])
def test_an_access_of_several_regions_meets_by_each(count: int) -> None:
    """Runs or strided ones; what lies between them is nobody's."""
    regions = tuple(Region(start, 4, 8 if count > 1 else 0, count) for start in (0, 40))
    several = MemoryAccess(Space.ARENA, 0, True, regions)
    for at, region in ((0, 0), (8 * count - 8, 0), (40, 1), (40 + 8 * count - 8, 1)):
        (after,) = conflicts(tasks_of((0, (several,)), (1, (read(at, 4),))))
        assert (after.left, after.right) == (regions[region], Region(at, 4))
        (before,) = conflicts(tasks_of((0, (write(at, 4),)), (1, (several,))))
        assert (before.left, before.right) == (Region(at, 4), regions[region])
    for gap in (4, 20, 60):
        assert pairs(tasks_of((0, (several,)), (1, (read(gap, 4),)))) == []
        assert pairs(tasks_of((0, (write(gap, 4),)), (1, (several,)))) == []


def test_of_several_regions_on_either_side_those_that_meet_are_told() -> None:
    first, second = (MemoryAccess(Space.ARENA, 0, True, (Region(at, 4), Region(40, 4))) for at in (0, 100))
    (found,) = conflicts(tasks_of((0, (first,)), (1, (second,))))
    assert (found.left, found.right) == (Region(40, 4), Region(40, 4))


def test_a_task_has_one_conflict_per_earlier_task_and_operand() -> None:
    def at(operand: int | None, *accesses: MemoryAccess) -> tuple[MemoryAccess, ...]:
        return tuple(MemoryAccess(a.space, a.slot, a.write, a.regions, operand) for a in accesses)

    reads = (read(0, 4), read(4, 4))
    for later, count in ((at(None, *reads), 1), (at(1, *reads), 1), ((*at(0, reads[0]), *at(1, reads[1])), 2)):
        found = conflicts(tasks_of((0, (write(0, 8),)), (1, later)))
        assert len(found) == count
        assert {c.operand for c in found} == {a.operand for a in later}


def test_writers_retire_what_they_cover_whole() -> None:
    old = [(0, (write(0, 16),)), (1, (read(0, 16),))]
    whole = tasks_of(*old, (2, (write(0, 8),)), (2, (write(8, 8),)), (3, (write(0, 16),)))
    assert pairs(whole) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 4), (3, 4)]
    part = tasks_of(*old, (2, (write(0, 8),)), (3, (write(0, 16),)))
    assert pairs(part) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    gap = tasks_of(*old[:1], (1, (write(0, 8, 16, 2), write(8, 4, 16, 2))), (2, (read(0, 16),)))
    assert pairs(gap) == [(0, 1), (0, 2), (1, 2)]
    columns = tasks_of(*old[:1], (1, (write(0, 4, 8, 2),)), (1, (write(4, 4, 8, 2),)), (2, (read(0, 16),)))
    assert pairs(columns) == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_each_stretch_that_a_sub_operator_writes_is_retired_by_itself() -> None:
    old = [(0, (write(0, 8),)), (0, (write(16, 8),)), (0, (write(8, 8),))]
    anew = [(1, (write(0, 8),)), (1, (write(16, 8),))]
    assert pairs(tasks_of(*old, *anew, (2, (read(0, 24),)))) == [(0, 3), (1, 4), (2, 5), (3, 5), (4, 5)]


@pytest.mark.parametrize(
    ("parts", "gap"),
    [
        ([Region(0, 2, 8, 2), Region(0, 6)], 6),
        ([Region(0, 9, 3, 3), Region(15, 1, 13, 2)], 16),
        ([Region(0, 4, 6, 3), Region(2, 4)], 10),
        ([Region(0, 2, 6, 2), Region(2, 2, 6, 2), Region(1, 2)], 4),
    ],
    ids=["one in the other", "runs in one another", "a run between runs", "columns and a run"],
)
def test_bytes_written_twice_do_not_stand_for_those_left_out(parts: list[Region], gap: int) -> None:
    """Stretches whose writes have as many bytes as they, but not each of their bytes."""
    apart = tuple((1, (MemoryAccess(Space.ARENA, 0, True, (part,)),)) for part in parts)
    together = (1, (MemoryAccess(Space.ARENA, 0, True, tuple(parts)),))
    for anew in (apart, (together,)):
        tasks = tasks_of((0, (write(0, 40),)), *anew, (2, (read(gap, 1),)))
        assert (0, len(anew) + 1) in pairs(tasks)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_stretch_is_written_anew_where_each_of_its_bytes_is(seed: int) -> None:
    """By regions that follow one another, in columns or runs, of which one may lie elsewhere or be written twice."""
    rng = random.Random(seed)
    parts, start = [], 0
    for _ in range(rng.randint(1, 4)):
        rows, width, columns = rng.choice([1, 2, 5]), rng.randint(1, 3), rng.randint(1, 4)
        pitch = width * columns
        parts += [Region(start + width * n, width, pitch if rows > 1 else 0, rows) for n in range(columns)]
        start += rows * pitch
    if rng.random() < 0.7:
        victim = rng.randrange(len(parts))
        length = min(rng.randint(1, 8), start)
        parts[victim] = rng.choice([parts[rng.randrange(len(parts))], Region(rng.randint(0, start - length), length)])
    rng.shuffle(parts)
    anew = tasks_of((0, (write(0, start + 8),)), *((1, (MemoryAccess(Space.ARENA, 0, True, (p,)),)) for p in parts))
    written = {r.start + i * r.stride + j for r in parts for i in range(r.count) for j in range(r.length)}
    left = [n for n in range(start) if n not in written]
    after = len(anew)
    of_all([*anew, Task(after, 2, after, 0, 1, tuple(read(n, 1) for n in left or range(start)))])
    for n in range(start):
        retired = (0, after) not in pairs([*anew, Task(after, 2, after, 0, 1, (read(n, 1),))])
        assert retired <= (n in written)
        assert retired or left or not _end_to_end(parts), (n, parts)


def _end_to_end(parts: list[Region]) -> bool:
    """Whether no byte is written twice."""
    return sum(r.length * r.count for r in parts) == max(r.stop for r in parts)


def test_what_a_write_leaves_on_either_side_stays() -> None:
    start = [(0, (write(0, 24),)), (1, (read(0, 24),)), (2, (write(8, 8),))]
    for at, length, expected in ((0, 8, [0, 1]), (16, 8, [0, 1]), (8, 8, [2]), (7, 2, [0, 1, 2]), (15, 2, [0, 1, 2])):
        found = [a for a, b in pairs(tasks_of(*start, (3, (write(at, length),)))) if b == 3]
        assert found == expected, (at, length)


@pytest.mark.parametrize("parts", [1, 80], ids=["few", "many"])
@pytest.mark.parametrize("start", [0, 8], ids=["first half", "second half"])
def test_what_is_left_of_an_access_is_met_there_alone(start: int, parts: int) -> None:
    """A part of a sub-operator that reads the bytes written anew does not come after the older writer, though another
    part reads what that one has left. The two read up to where the one ends and the other begins."""
    readers = [(2, (read(at, 4),)) for at in ((4, 8) if start == 0 else (8, 4)) for _ in range(parts)]
    tasks = tasks_of((0, (write(0, 16),)), (1, (write(start, 8),)), *readers)
    anew, old = [(1, 2 + n) for n in range(parts)], [(0, 2 + parts + n) for n in range(parts)]
    assert pairs(tasks) == sorted([(0, 1), *anew, *old])


def test_reads_of_a_sub_operator_are_not_retired_by_its_own_writes() -> None:
    tasks = tasks_of((0, (write(0, 8),)), (1, (read(0, 8), write(0, 8))), (2, (write(0, 8),)))
    assert pairs(tasks) == [(0, 1), (1, 2)]
    others = tasks_of((0, (write(0, 8),)), (1, (read(0, 8),)), (1, (write(0, 8),)), (2, (write(0, 8),)))
    assert pairs(others) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]


def test_parts_of_one_sub_operator_that_collide() -> None:
    tasks = tasks_of((0, (write(0, 8),)), (0, (write(4, 8),)), (0, (read(10, 8),)), (0, (read(0, 2),)))
    assert pairs(tasks) == [(0, 1), (0, 3), (1, 2)]
    reads = tasks_of((0, (read(0, 8),)), (0, (read(0, 8),)), (1, (write(0, 4),)))
    assert pairs(reads) == [(0, 2), (1, 2)]


def of_all(tasks: list[Task]) -> None:
    """Each conflict is one by bytes, and every pair of tasks that conflict has a chain of listed ones."""
    listed: dict[int, set[int]] = {task.index: set() for task in tasks}
    for conflict in conflicts(tasks):
        listed[conflict.later].add(conflict.earlier)
        left, right = ({r.start + i * r.stride + j for i in range(r.count) for j in range(r.length)}
                       for r in (conflict.left, conflict.right))  # fmt: skip
        exact = conflict.left.count == 1 or conflict.right.count == 1 or conflict.left.stride == conflict.right.stride
        assert left & right or not exact, conflict
        for number, region, write_ in (
            (conflict.earlier, conflict.left, conflict.hazard is not Hazard.WAR),
            (conflict.later, conflict.right, conflict.hazard is not Hazard.RAW),
        ):
            assert any(
                (a.space, a.slot) == conflict.key and a.write is write_ and region in a.regions
                for a in tasks[number].accesses
            ), conflict
    before: list[set[int]] = []
    for task in tasks:
        before.append(listed[task.index].union(*(before[a] for a in listed[task.index])))
    for later in tasks:
        for earlier in tasks[: later.index]:
            meet = any(
                (a.space, a.slot) == (b.space, b.slot) and (a.write or b.write) and bytes_of(a) & bytes_of(b)
                for a in earlier.accesses
                for b in later.accesses
            )
            assert not meet or earlier.index in before[later.index], (earlier.index, later.index)


@pytest.mark.parametrize("seed", seeds(20))
def test_every_conflict_is_implied(seed: int) -> None:
    of_all(list(random_schedule(seed, 4, 12).tasks))


@pytest.mark.parametrize("seed", seeds(6))
def test_many_tasks_are_compared_as_few_are(seed: int) -> None:
    """Sub-operators of many parts, by rows and by columns, of one and of several strides."""
    rng = random.Random(seed)
    rows: list[tuple[int, tuple[MemoryAccess, ...]]] = []
    for subop in range(6):
        stride, parts = rng.choice([(64, 16), (64, 32), (32, 8)])
        width = stride // parts
        for part in range(parts):
            shift = rng.choice([0, 0, width]) if subop else 0
            source = read((width * part + shift) % stride, width, stride, 512 // stride)
            whole = read(rng.randrange(500), rng.randint(1, 12))
            target = write(512 + width * part, width, stride, 512 // stride)
            straight = write(512 + 512 // parts * part, 512 // parts)
            mine = (source, whole, rng.choice([target, straight]) if subop % 3 == 2 else target)
            to, back = (512, -512) if subop % 2 else (0, 0)  # from one half of the memory to the other and back
            shifts = ((access, back if access.write else to) for access in mine)
            rows.append((subop, tuple(replace(a, regions=(a.regions[0].shifted(n),)) for a, n in shifts)))
    of_all(tasks_of(*rows))


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("form", [(16, 4, 12, 5), (16, 4, 8, 7), (30, 40, 0, 1)])
def test_one_is_compared_with_many_as_with_each(form: tuple[int, int, int, int], seed: int) -> None:
    """A strided access or a run with runs and strided accesses of its own stride and of others, as earlier and as
    later one."""
    rng = random.Random(seed)
    forms = [(1, 0), (2, 8), (6, 8), (3, 12), (4, 18), (2, 40)]
    regions = []
    for count, stride in (rng.choice(forms) for _ in range(150)):
        regions.append(Region(rng.randrange(100), rng.randint(1, stride - 1 if stride else 12), stride, count))
    many = [MemoryAccess(Space.ARENA, 0, False, (region,)) for region in regions]
    one = MemoryAccess(Space.ARENA, 0, True, (Region(*form),))
    meet = [n for n, other in enumerate(many) if pairs(tasks_of((0, (one,)), (1, (other,))))]
    assert 20 < len(meet) < 130
    assert pairs(tasks_of((0, (one,)), *((1, (other,)) for other in many))) == [(0, n + 1) for n in meet]
    assert pairs(tasks_of(*((0, (other,)) for other in many), (1, (one,)))) == [(n, 150) for n in meet]


def test_accesses_are_kept_short() -> None:
    """A chain that writes the same bytes again and again: each task conflicts with its neighbours only."""
    tasks = tasks_of(*((n, (read(64 * (n % 2), 64), write(64 * ((n + 1) % 2), 64))) for n in range(40)))
    assert len(conflicts(tasks)) < 3 * len(tasks)


@pytest.mark.parametrize("seed", seeds(8))
def test_any_bytes(seed: int) -> None:
    """Even of tilings that nobody makes, each conflict is one."""
    for conflict in conflicts(list(random_accesses(seed).tasks)):
        assert conflict.earlier < conflict.later


def test_conflicts_of_sub_operators_in_falling_order() -> None:
    """Each a task with an access: there are no two in a row whose sub-operators do not fall."""
    found = find_all([Task(n, 2 - n, 0, 0, 1, (write(0, 8),)) for n in range(3)])
    later = [found.accesses.task[found.pairs[found.of(subop)]][:, 1].tolist() for subop in range(3)]
    assert [set(tasks) for tasks in later] == [{2}, {1}, set()]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (0, 2, 0, 2)])
@pytest.mark.parametrize("runs", [1, 3, 256])
def test_all_conflicts_by_sub_operator(order: tuple[int, ...], runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order of sub-operators; within one there are none, though two of its tasks write the same bytes."""
    monkeypatch.setattr(hazards, "_RUNS", runs)
    regions = [(write(0, 8), write(64, 8)), (read(0, 8),), (write(4, 8), read(64, 8)), (write(0, 16),)]
    tasks = [task for at, subop in enumerate(order) for task in (Task(2 * at, subop, 0, 0, 1, regions[at]),
             Task(2 * at + 1, subop, 1, 1, 2, regions[at]))]  # fmt: skip
    found = find_all(tasks)
    accesses = found.accesses
    for subop in range(5):
        pairs = [(int(accesses.task[a]), int(accesses.task[b])) for a, b in found.pairs[found.of(subop)].tolist()]
        outside = [c for c in conflicts(tasks) if tasks[c.later].subop == subop != tasks[c.earlier].subop]
        assert pairs == [(c.earlier, c.later) for c in outside]
        assert [accesses.witness(*pair) for pair in found.pairs[found.of(subop)].tolist()] == [
            c.witness for c in outside
        ]
    assert len(found.pairs) == found.begin[-1] > 0


def test_conflicts_of_sub_operators_that_come_from_last_to_first() -> None:
    found = find_all([Task(n, 2 - n, 0, 0, 1, (write(0, 8),)) for n in range(3)])
    assert [found.pairs[found.of(subop)].tolist() for subop in range(4)] == [[[1, 2]], [[0, 1]], [], []]


ROWS, REGIONS = [[0, 0, 0, -1, 1, 1], [1, 1, 0, -1, 0, 1]], [[0, 8, 0, 1], [4, 8, 0, 1]]


def search(rows: list[list[int]], regions: list[list[int]]) -> _core.Conflicts:
    return _core.Conflicts(np.array(rows, np.int64), np.array(regions, np.int64))


def test_columns_of_accesses_make_conflicts() -> None:
    assert [pairs.tolist() for pairs in search(ROWS, REGIONS)] == [[], [[0, 1]]]
    needs, implied = search(ROWS, REGIONS).needs([0, 1], 2)
    assert (needs.tolist(), implied.tolist()) == ([[0, 1, 1, 0, 1]], [0, 0])


def test_needs_stand_by_core_then_task_then_awaited_core() -> None:
    """Three cores write a part each; all of them read the whole, the last core first."""
    rows = [[0, n, 0, -1, 1, 1] for n in range(3)] + [[1, 3 + n, 0, -1, 0, 1] for n in range(3)]
    regions = [[8 * n, 8, 0, 1] for n in range(3)] + [[0, 24, 0, 1]] * 3
    needs, implied = search(rows, regions).needs([0, 1, 2, 2, 1, 0], 3)
    assert needs[:, :3].tolist() == [[1, 5, 1], [2, 5, 1], [0, 4, 1], [2, 4, 1], [0, 3, 1], [1, 3, 1]]
    assert needs[:, 3:].tolist() == needs[:, :2].tolist(), "each access has one region"
    assert implied.tolist() == [0] * 6


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(0, 0, 2), (0, 1, 2), (1, 0, -1), (1, 1, -1), (1, 2, -1), (1, 2, 1 << 31), (1, 5, 0), (1, 5, 2), (1, 5, -1)],
)
def test_columns_that_are_none_are_refused(row: int, column: int, value: int) -> None:
    rows = [list(each) for each in ROWS]
    rows[row][column] = value
    with pytest.raises(InputError):
        search(rows, REGIONS)


def test_other_shapes_and_cores_that_are_none_are_refused() -> None:
    for rows, regions in ((REGIONS, REGIONS), (ROWS, ROWS), (ROWS, [REGIONS[0], [4, 0, 0, 1]]), (ROWS, [[0] * 4] * 2)):
        with pytest.raises(InputError):
            search(rows, regions)
    for core_of in ([0], [0, 2], [0, -1]):
        with pytest.raises(InputError):
            search(ROWS, REGIONS).needs(core_of, 2)


def test_witnesses_are_a_sequence_whose_members_are_made_when_asked_for() -> None:
    tasks = [Task(n, n, n % 2, 0, 1, (write(8 * n, 16),)) for n in range(4)]
    found = find_all(tasks)
    pairs = found.pairs.tolist()
    assert pairs == [[0, 1], [1, 2], [2, 3]]
    witnesses = Witnesses(found.accesses, pairs)
    each = tuple(found.accesses.witness(*pair) for pair in pairs)
    assert [(one.producer, one.consumer) for one in each] == [(0, 1), (1, 2), (2, 3)]
    assert len(witnesses) == 3
    assert (witnesses[0], witnesses[-1]) == (each[0], each[2])
    assert (witnesses[1:], witnesses[:0]) == (each[1:], ())
    assert witnesses == each == Witnesses(found.accesses, pairs)
    assert hash(witnesses) == hash(each)
    assert repr(witnesses) == repr(each)
    for other in (each[1:], Witnesses(found.accesses, pairs[:2]), list(each)):
        assert witnesses != other
