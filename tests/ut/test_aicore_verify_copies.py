"""Values that groups compute each for itself: what is read of a copy was written by its own computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hand_plans import plan_of, read, tasks_of, texts, write

from superkernel.scheduler.schedule import Copies, MemoryAccess, Space, Task
from superkernel.sync.aicore.verify_copies import check_copies

# Sub-operator 1 computes 32 bytes twice, from byte 100 and from byte 200 on; operand 0 of sub-operator 2 reads them.
COPIES = Copies(1, ((1, 1), (2, 0)), 100, 2)
MADE = [(1, 0, (read(0, 8, 0), write(100, 32, 1))), (1, 1, (read(0, 8, 0), write(200, 32, 1)))]
USED = [(2, 0, (read(100, 32, 0), write(300, 8, 1))), (2, 1, (read(200, 32, 0), write(308, 8, 1)))]


def wrong(tasks: tuple[Task, ...], *copies: Copies, units: Mapping[int, int] | None = None) -> list[str]:
    return texts(check_copies(plan_of(tasks, copies=copies or (COPIES,)), units or {}))


def not_made(byte: int, who: str, *, core: int = 0, subop: int = 2, operand: int = 0) -> list[str]:
    return [
        f"core {core}, sub-operator {subop}, operand {operand}: a core reads a copy that was not computed for it; "
        f"expected byte {byte} of sub-operator 1; found written by {who}"
    ]


def test_each_group_reads_its_own() -> None:
    assert wrong(tasks_of(*MADE, *USED)) == []
    assert wrong(tasks_of(*MADE, (2, 1, (read(100, 32, 0),)))) == [], "whoever computed it, A5 orders the two"


def test_without_copies_nothing_is_looked_at() -> None:
    tasks = tasks_of(*MADE[:1], *USED)
    assert texts(check_copies(plan_of(tasks), {})) == []
    assert wrong(tasks, replace(COPIES, uses=())) == []
    assert wrong(tasks, replace(COPIES, uses=((7, 0),))) == []


def test_a_copy_that_nobody_computed() -> None:
    assert wrong(tasks_of(*MADE[:1], *USED)) == not_made(200, "nobody", core=1)
    assert wrong(tasks_of(MADE[0], (1, 1, (write(200, 31, 1),)), *USED)) == not_made(231, "nobody", core=1)
    assert wrong(tasks_of(MADE[0], (1, 1, (write(201, 31, 1),)), *USED)) == not_made(200, "nobody", core=1)
    assert wrong(tasks_of(*USED)) == [*not_made(100, "nobody"), *not_made(200, "nobody", core=1)]


def test_every_copy_is_looked_at() -> None:
    second = replace(COPIES, subop=3, uses=((3, 0), (4, 0)))
    tasks = tasks_of(*MADE, *USED, (3, 0, (write(400, 8, 0),)), (4, 0, (read(400, 9, 0),)))
    found = wrong(tasks, COPIES, second)
    assert len(found) == 1
    assert "expected byte 408 of sub-operator 3; found written by nobody" in found[0]


def test_what_was_there_before_the_computation_does_not_count() -> None:
    """The memory had another value, or an earlier one of this operand."""
    tasks = tasks_of((0, 0, (write(0, 400, 0),)), MADE[0], *USED)
    assert wrong(tasks) == not_made(200, "nobody", core=1)
    tasks = tasks_of((0, 0, (write(0, 400, 1),)), MADE[0], *USED)
    assert wrong(tasks, replace(COPIES, uses=((0, 1), *COPIES.uses))) == not_made(200, "nobody", core=1)


def test_what_overwrote_a_copy_is_told() -> None:
    between = (2, 0, (write(110, 4, 5),))
    after = [(3, core, accesses) for _, core, accesses in USED]
    uses = replace(COPIES, uses=((1, 1), (3, 0)))
    assert wrong(tasks_of(*MADE, between, *after), uses) == not_made(110, "sub-operator 2", subop=3)
    last = [(2, core, accesses) for _, core, accesses in USED]
    assert wrong(tasks_of(*MADE, *last, (3, 0, (write(110, 4, 5),)))) == [], "behind the last use"


def test_what_a_sub_operator_reads_it_reads_ahead_of_its_own_writes() -> None:
    """In place: the copy is read before it is overwritten, by any task of the sub-operator."""
    in_place = [(2, 0, (write(100, 32, 1),)), (2, 1, (read(100, 32, 0),))]
    assert wrong(tasks_of(*MADE, *in_place)) == []
    own = [(1, 0, (read(100, 32, 0), write(100, 32, 1)))]
    assert wrong(tasks_of(*own), replace(COPIES, uses=((1, 0), (1, 1)))) == not_made(100, "nobody", subop=1)


def test_only_the_operands_that_are_named_are_looked_at() -> None:
    tasks = tasks_of(*MADE, (2, 0, (read(100, 32, 0), read(120, 40, 1))))
    assert wrong(tasks) == []
    assert wrong(tasks, replace(COPIES, uses=((1, 1), (2, 1)))) == not_made(132, "nobody", operand=1)
    others = tasks_of(*MADE, (2, 0, (read(100, 32, 0),)), (3, 0, (read(120, 40, 0),)))
    assert wrong(others) == [], "operand 0 of another sub-operator"


def test_a_writing_use_is_not_read() -> None:
    tasks = tasks_of((1, 0, (write(100, 64, 1),)), (2, 0, (write(120, 60, 0), read(100, 32, 1))))
    assert wrong(tasks) == []


def test_one_byte_of_a_read_is_told_and_no_more() -> None:
    strided = read(100, 4, 0, stride=16, count=9)
    found = wrong(tasks_of(*MADE, (2, 0, (strided,))))
    assert found == not_made(132, "nobody")
    two = MemoryAccess(Space.ARENA, 0, False, (*read(132, 4).regions, *read(140, 4).regions), 0)
    assert wrong(tasks_of(*MADE, (2, 0, (two,)))) == not_made(132, "nobody")
    reads = (read(132, 4, 0), read(140, 4, 0))
    assert wrong(tasks_of(*MADE, (2, 0, reads))) == [*not_made(132, "nobody"), *not_made(140, "nobody")]


def test_strided_writes_and_reads_are_compared_byte_by_byte() -> None:
    odd = [(1, 0, (write(100, 4, 1, stride=8, count=4),))]
    assert wrong(tasks_of(*odd, (2, 0, (read(100, 4, 0, stride=8, count=4),)))) == []
    assert wrong(tasks_of(*odd, (2, 0, (read(108, 4, 0, stride=16, count=2),)))) == []
    assert wrong(tasks_of(*odd, (2, 0, (read(104, 4, 0, stride=8, count=3),)))) == not_made(104, "nobody")
    assert wrong(tasks_of(*odd, (2, 0, (read(124, 5, 0),)))) == not_made(128, "nobody")


def test_writes_outside_of_the_copies_are_left_out_of_account() -> None:
    """Of a write that begins ahead of the copies or ends behind them, what lies between counts."""
    others = write(90, 12, 2), write(130, 20, 2), write(50, 8, 2), write(0, 95, 2)
    around = [(1, 0, (write(100, 32, 1),)), (2, 0, others)]
    use = replace(COPIES, uses=((1, 1), (3, 0)))
    assert wrong(tasks_of(*around, (3, 0, (read(102, 28, 0),))), use) == []
    assert wrong(tasks_of(*around, (3, 0, (read(101, 29, 0),))), use) == not_made(101, "sub-operator 2", subop=3)
    assert wrong(tasks_of(*around, (3, 0, (read(102, 29, 0),))), use) == not_made(130, "sub-operator 2", subop=3)
    touching = [(1, 0, (write(100, 32, 1),)), (2, 0, (write(92, 8, 2), write(132, 8, 2)))]
    assert wrong(tasks_of(*touching, (3, 0, (read(100, 32, 0),))), use) == []


def test_another_memory_is_another() -> None:
    for other in (write(100, 32, 5, Space.OUTPUT), write(100, 32, 5, slot=1)):
        tasks = tasks_of(*MADE, (2, 0, (other,)), (3, 0, (read(100, 32, 0),)))
        assert wrong(tasks, replace(COPIES, uses=((1, 1), (3, 0)))) == []
        spread = tasks_of(MADE[0], (1, 1, (replace(other, operand=1),)), *USED)
        assert wrong(spread) == ["sub-operator 1: copies lie in several spaces; expected one; found 2"]


def test_nothing_is_read_of_no_bytes() -> None:
    empty = MemoryAccess(Space.ARENA, 0, True, (), 1)
    assert wrong(tasks_of((1, 0, (empty,)))) == []


@pytest.mark.parametrize(
    ("begin", "end", "limit", "right"),
    [(0, 1, 1, True), (0, 2, 1, False), (-1, 1, 1, False), (1, 1, 2, False), (1, 2, 2, True), (0, 9, None, True)],
)
def test_units_are_those_that_there_are(begin: int, end: int, limit: int | None, right: bool) -> None:
    """Some may be left out, and several cores may compute one."""
    task = Task(0, 1, 3, begin, end, (write(100, 32, 1),))
    units = {} if limit is None else {1: limit}
    other = Task(1, 2, 0, -1, 0, ())
    expected = [f"sub-operator 1, core 3: units are invented; expected 0..{limit}; found {begin}..{end}"]
    assert wrong((task, other), units=units) == ([] if right else expected)
