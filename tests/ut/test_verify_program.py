"""What workers of the host were seen to do, made a plan again: lines made by hand, with a fault at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Region, TensorType
from superkernel.ir.body import Body, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, SubOperator
from superkernel.scheduler.schedule import MemoryAccess, MemoryAddress, Schedule, Space, Task, absolute
from superkernel.scheduler.tiling import Access, Tiling
from superkernel.sync.plan import Set, TaskStep, Wait
from superkernel.sync.verify_program import Call, Event, HostCall, Rebuilt, rebuild

ARENA, INPUT, OUTPUT, SCRATCH = Space.ARENA, Space.INPUT, Space.OUTPUT, Space.SCRATCH
BYTES = TensorType(DType.U8, (8,))


@dataclass(frozen=True)
class Pieces(Tiling):
    """Two bytes of each operand per unit, and all that an operand in and out holds is read. `still`: operands that are
    not touched."""

    pieces: int = 4
    scratch: int = 0
    still: tuple[int, ...] = ()

    @property
    def units(self) -> int:
        return self.pieces

    @property
    def scratch_bytes(self) -> int:
        return self.scratch

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        part = Region(2 * begin, 2 * (end - begin))
        touched = tuple(
            Access(n, operand.role is not Role.INPUT, () if n in self.still else (part,))
            for n, operand in enumerate(body.operands)
        )
        both = [n for n, operand in enumerate(body.operands) if operand.role is Role.INOUT]
        return touched + tuple(Access(n, False, (Region(0, 8),)) for n in both)


def body(op: str | None = None, *roles: Role, types: Sequence[TensorType] = (), **epilogue: Any) -> Body:
    """A copy of operand 0 to operand 1, behind an anchor where one is named."""
    roles = roles or (Role.INPUT, Role.OUTPUT)
    operands = tuple(Operand(role, kind) for role, kind in zip(roles, types or [BYTES] * len(roles), strict=True))
    parts = {
        "inputs": (ProgramInput(0, DType.U8, (1,)),),
        "outputs": (ProgramOutput(0, 1, (1,)),),
    } | epilogue
    return Body(op, (), operands, (), (), (), PointwiseProgram((8,), instructions=(), **parts))


def at(space: Space, offset: int = 0, slot: int = 0) -> MemoryAddress:
    return MemoryAddress(space, slot, offset)


SYMBOLS = ("copy", "sum", None)
SIZES = {(INPUT, 0): 8, (ARENA, 0): 24, (OUTPUT, 0): 8, (SCRATCH, 0): 16, (SCRATCH, 1): 16}
PLACES = ((at(INPUT), at(ARENA, 8)), (at(ARENA, 8), at(ARENA, 16)), (at(ARENA, 16), at(OUTPUT)))
TILINGS = (Pieces(), Pieces(scratch=16), Pieces())
WORK = ((0, 0, 0, 2), (0, 1, 2, 4), (1, 0, 0, 4), (2, 1, 0, 4))


def scheduled(
    bodies: Sequence[Body] = (body(), body("sum"), body("odd")),
    tilings: Sequence[Pieces] = TILINGS,
    places: Sequence[tuple[MemoryAddress, ...]] = PLACES,
) -> Schedule:
    """Sub-operator 0 on both cores, 1 on core 0, 2 on core 1."""
    subops = tuple(SubOperator(n, f"s{n}", one, ("v",) * len(one.operands), (), "") for n, one in enumerate(bodies))
    tasks = tuple(
        Task(index, s, core, begin, end, absolute(tilings[s].accesses(bodies[s], begin, end), places[s]))
        for index, (s, core, begin, end) in enumerate(WORK)
    )
    return Schedule(2, subops, tuple(tilings), tuple(places), tasks, (), 24, 16, ())


SCHEDULE = scheduled()


def call(subop: int, core: int, begin: int, end: int, places: Sequence[Any] = (), **more: Any) -> Call:
    own = {"scratch": at(SCRATCH, slot=core)} | more
    symbol = own.pop("symbol", SYMBOLS[subop])
    return Call(symbol, tuple(places or PLACES[subop]), begin=begin, end=end, **own)


FIRST, SECOND, THIRD, LAST = call(0, 0, 0, 2), call(0, 1, 2, 4), call(1, 0, 0, 4), HostCall(2)


def seen(
    *,
    first: Event = FIRST,
    second: Event = SECOND,
    third: Event = THIRD,
    last: Event = LAST,
    schedule: Schedule = SCHEDULE,
    meant: Sequence[Task] | None = None,
    sizes: dict[tuple[Space, int], int] = SIZES,
    symbols: Sequence[str | None] = SYMBOLS,
) -> Rebuilt:
    """Of the program with other calls."""
    program = [[first, Set(1), Wait(1, 1, -1, 0), third, Set(2)], [second, Set(1), Wait(0, 2, -1, 1), last]]
    return rebuild(program, schedule, schedule.tasks if meant is None else meant, symbols, sizes)


def wrong(**changes: Any) -> list[str]:
    return [str(violation) for violation in seen(**changes).wrong]


def where(task: int) -> str:
    subop, core, _, _ = WORK[task]
    return f"core {core}, task {task} (sub-operator {subop})"


# Programs -------------------------------------------------------------------------------------------------------------


def test_a_program_is_its_plan() -> None:
    found = seen()
    assert found.wrong == ()
    assert found.addresses == PLACES
    assert all(task is meant for task, meant in zip(found.plan.tasks, SCHEDULE.tasks, strict=True))
    assert found.plan.programs == (
        (TaskStep(0), Set(1), Wait(1, 1, 1, 0), TaskStep(2), Set(2)),
        (TaskStep(1), Set(1), Wait(0, 2, 2, 1), TaskStep(3)),
    )
    assert found.plan.sets == (2, 1)
    assert (found.plan.reasons, found.plan.boundaries) == ((), ())
    bodies = [sub.body for sub in SCHEDULE.subops]
    assert found.touched == {
        ("copy", 0, 2): TILINGS[0].accesses(bodies[0], 0, 2),
        ("copy", 2, 4): TILINGS[0].accesses(bodies[0], 2, 4),
        ("sum", 0, 4): TILINGS[1].accesses(bodies[1], 0, 4),
        ("host call 2", 0, 4): TILINGS[2].accesses(bodies[2], 0, 4),
    }


def test_a_wait_behind_all_calls_is_for_none() -> None:
    program: list[list[Event]] = [[FIRST, THIRD, Wait(1, 1, 7, 0)], [Wait(0, 1, 7, 1), SECOND, LAST]]
    found = rebuild(program, SCHEDULE, SCHEDULE.tasks, SYMBOLS, SIZES)
    assert found.plan.programs == (
        (TaskStep(0), TaskStep(2), Wait(1, 1, -1, 0)),
        (Wait(0, 1, 0, 1), TaskStep(1), TaskStep(3)),
    )
    assert found.plan.sets == (0, 0)


@pytest.mark.parametrize(("calls", "number"), [([FIRST], 1), ([], 0), ([FIRST, THIRD, THIRD], 3)])
def test_as_many_calls_as_tasks(calls: list[Event], number: int) -> None:
    """One more is no step, and what is left out stays as it is meant: it is refused anyway."""
    found = rebuild([calls, [SECOND, LAST]], SCHEDULE, SCHEDULE.tasks, SYMBOLS, SIZES)
    assert [str(one) for one in found.wrong] == [f"core 0: calls are left out or invented; expected 2; found {number}"]
    assert found.plan.tasks == SCHEDULE.tasks
    assert found.plan.programs[0] == tuple(TaskStep(n) for n in (0, 2)[:number])


@pytest.mark.parametrize(
    ("change", "task", "expected", "found"),
    [
        ({"first": call(0, 0, 0, 2, symbol="other")}, 0, "copy", "other"),
        ({"third": HostCall(1)}, 2, "sum", "host call 1"),
        ({"last": HostCall(1)}, 3, "host call 2", "host call 1"),
        ({"last": call(2, 1, 0, 4, symbol="odd")}, 3, "None", "odd"),
    ],
)
def test_another_kernel(change: dict[str, Event], task: int, expected: str, found: str) -> None:
    assert wrong(**change) == [f"{where(task)}: not its kernel; expected {expected}; found {found}"]


# Units and accesses ---------------------------------------------------------------------------------------------------


def test_units_are_those_of_the_call() -> None:
    found = seen(first=call(0, 0, 1, 2), second=call(0, 1, 2, 3))
    assert found.wrong == ()
    assert [(task.begin, task.end) for task in found.plan.tasks] == [(1, 2), (2, 3), (0, 4), (0, 4)]
    read, write = found.plan.tasks[0].accesses
    assert read == MemoryAccess(INPUT, 0, False, (Region(2, 2),))
    assert write == MemoryAccess(ARENA, 0, True, (Region(10, 2),))
    assert found.plan.tasks[2] is SCHEDULE.tasks[2]


def test_units_that_touch_as_little_as_those_that_were_meant_are_others() -> None:
    found = seen(schedule=scheduled(tilings=(Pieces(still=(0, 1)), *TILINGS[1:])), first=call(0, 0, 0, 1))
    assert [(task.begin, task.end) for task in found.plan.tasks[:2]] == [(0, 1), (2, 4)]


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 2), (3, 2), (2, 5)])
def test_units_that_there_are_not(begin: int, end: int) -> None:
    found = seen(second=call(0, 1, begin, end))
    assert [str(one) for one in found.wrong] == [
        f"{where(1)}: units that there are not; expected of 4; found {begin}..{end}"
    ]
    assert found.plan.tasks[1] is SCHEDULE.tasks[1]


READ, WRITE = SCHEDULE.tasks[0].accesses


@pytest.mark.parametrize(
    "lies",
    [
        (),
        (READ,),
        (READ, WRITE, WRITE),
        (replace(READ, space=ARENA), WRITE),
        (replace(READ, slot=1), WRITE),
        (READ, replace(WRITE, write=False)),
        (READ, replace(WRITE, regions=())),
        (READ, replace(WRITE, regions=(Region(0, 4),))),
        (READ, replace(WRITE, regions=(Region(8, 4), Region(8, 4)))),
        (replace(READ, regions=(Region(0, 3),)), WRITE),
        (replace(READ, regions=(Region(0, 4, 8),)), WRITE),
        (replace(READ, regions=(Region(0, 4, 0, 2),)), WRITE),
    ],
)
def test_accesses_are_those_of_the_tiling_whatever_the_plan_says(lies: tuple[MemoryAccess, ...]) -> None:
    first, *others = SCHEDULE.tasks
    meant = (replace(first, accesses=lies), *others)
    found = seen(meant=meant)
    assert found.wrong == ()
    assert found.plan.tasks == SCHEDULE.tasks
    assert found.plan.tasks[0] is not meant[0]
    assert found.plan.tasks[1] is meant[1]


def test_accesses_lie_where_the_calls_put_them() -> None:
    other = (at(INPUT), at(ARENA))
    found = seen(first=call(0, 0, 0, 2, other), second=call(0, 1, 2, 4, other))
    assert found.wrong == ()
    assert found.addresses == (other, *PLACES[1:])
    assert found.plan.tasks[1].accesses == (
        MemoryAccess(INPUT, 0, False, (Region(4, 4),)),
        MemoryAccess(ARENA, 0, True, (Region(4, 4),)),
    )


# Addresses ------------------------------------------------------------------------------------------------------------


def test_calls_that_do_not_agree() -> None:
    found = seen(second=call(0, 1, 2, 4, (at(INPUT), at(ARENA))))
    assert [str(one) for one in found.wrong] == [
        f"{where(1)}: the calls of a sub-operator do not agree on its operands"
    ]
    assert found.addresses == PLACES, "those of the first call"


def test_an_operand_that_lies_nowhere() -> None:
    found = seen(first=call(0, 0, 0, 2, (at(INPUT), None)))
    assert [str(one) for one in found.wrong] == [f"{where(0)}: an operand lies nowhere; found 1"]
    assert found.plan.tasks[0] is SCHEDULE.tasks[0]


@pytest.mark.parametrize("scratch", [None, at(SCRATCH, slot=1), at(SCRATCH, 1), at(ARENA)])
def test_another_scratch_memory(scratch: MemoryAddress | None) -> None:
    assert wrong(third=call(1, 0, 0, 4, scratch=scratch)) == [
        f"{where(2)}: not its own scratch memory; expected 16 bytes; found {scratch}"
    ]


def test_scratch_memory_is_large_enough() -> None:
    small = {**SIZES, (SCRATCH, 0): 15}
    assert wrong(sizes=small) == [f"{where(2)}: not its own scratch memory; expected 16 bytes; found {at(SCRATCH)}"]


def behind(task: int, size: int, access: str) -> str:
    return f"{where(task)}: reaches behind its memory; expected {size} bytes; found {access}"


def test_an_access_lies_inside_its_memory() -> None:
    assert wrong(sizes={**SIZES, (INPUT, 0): 7}) == [behind(1, 7, "r:input0:4+4")]
    assert wrong(sizes={**SIZES, (OUTPUT, 0): 0}) == [behind(3, 0, "w:output0:0+8")]
    unknown = {key: size for key, size in SIZES.items() if key != (OUTPUT, 0)}
    assert wrong(sizes=unknown) == [behind(3, 0, "w:output0:0+8")]
    low = (at(INPUT, -1), PLACES[0][1])
    assert wrong(first=call(0, 0, 0, 2, low), second=call(0, 1, 2, 4, low)) == [behind(0, 8, "r:input0:-1+4")]


def test_what_is_not_touched_reaches_nowhere() -> None:
    still = scheduled(tilings=(Pieces(still=(0,)), *TILINGS[1:]))
    assert wrong(schedule=still, sizes={**SIZES, (INPUT, 0): 0}) == []
    low = (at(INPUT, -1), PLACES[0][1])
    assert wrong(schedule=still, first=call(0, 0, 0, 2, low), second=call(0, 1, 2, 4, low)) == [
        behind(0, 8, "r:input0:"),
        behind(1, 8, "r:input0:"),
    ], "but lies where memory is"


# Operands over one another --------------------------------------------------------------------------------------------


def over(*places: MemoryAddress, one: Body, units: tuple[int, int] = (0, 4), tiling: Pieces = TILINGS[1]) -> list[str]:
    """What is wrong where sub-operator 1 has another body and other places."""
    bodies, size = [body(), one, body("odd")], {**SIZES, (ARENA, 0): 64, (ARENA, 1): 64}
    schedule = scheduled(bodies, (TILINGS[0], tiling, TILINGS[2]), (PLACES[0], places, PLACES[2]))
    return wrong(schedule=schedule, sizes=size, third=call(1, 0, *units, places))


def overwrites(source: int, target: int, *places: MemoryAddress) -> str:
    return (
        f"{where(2)}: overwrites one operand while it works on another; found operands {source} at {places[source]} "
        f"and {target} at {places[target]}"
    )


@pytest.mark.parametrize(("offset", "meets"), [(0, False), (1, True), (8, True), (15, True), (16, False)])
def test_an_operand_over_another(offset: int, meets: bool) -> None:
    places = (at(ARENA, 8), at(ARENA, offset))
    assert over(*places, one=body("sum")) == ([overwrites(0, 1, *places)] if meets else [])


def test_operands_of_other_spaces_and_slots_are_apart() -> None:
    assert over(at(ARENA), at(ARENA, slot=1), one=body("sum")) == []
    assert over(at(INPUT), at(ARENA), one=body("sum")) == []


def test_only_units_that_meet_are_over_one_another() -> None:
    """Units 0 and 1 are the first four bytes, four bytes ahead of those of the other operand."""
    places = (at(ARENA, 4), at(ARENA))
    assert over(*places, one=body("sum"), units=(0, 2)) == []
    assert over(*places, one=body("sum"), units=(0, 3)) == [overwrites(0, 1, *places)]
    still = Pieces(still=(0,))
    assert over(at(ARENA), at(ARENA), one=body("sum"), tiling=still) == []


def test_operands_that_are_read_may_lie_over_one_another() -> None:
    three = body("sum", Role.INPUT, Role.INPUT, Role.OUTPUT)
    assert over(at(ARENA), at(ARENA), at(ARENA, 8), one=three) == []
    kept = body("sum", Role.INPUT, Role.INOUT)
    places = (at(ARENA), at(ARENA))
    assert over(*places, one=kept) == [overwrites(0, 1, *places)]
    apart = (at(ARENA, 4), at(ARENA))
    assert over(*apart, one=kept, units=(0, 1)) == [], "what is read of the other is not written"
    both = body("sum", Role.OUTPUT, Role.OUTPUT)
    assert over(*places, one=both) == [overwrites(1, 0, *places), overwrites(0, 1, *places)]


SAME = (at(ARENA), at(ARENA))


def test_pointwise_work_may_be_in_place() -> None:
    assert over(*SAME, one=body()) == []
    assert over(at(ARENA), at(ARENA, 2), one=body()) == [overwrites(0, 1, at(ARENA), at(ARENA, 2))]


def test_work_in_place_of_one_operand_is_not_held_against_another() -> None:
    """Operand 2 is in place of operand 0. Operand 1 begins in their midst, behind the units that are worked on."""
    one = body(
        None, Role.INPUT, Role.OUTPUT, Role.OUTPUT, outputs=(ProgramOutput(0, 1, (1,)), ProgramOutput(0, 2, (1,)))
    )
    places = (at(ARENA, 8), at(ARENA, 12), at(ARENA, 8))
    assert over(*places, one=one, units=(0, 2)) == []
    assert overwrites(0, 1, *places) in over(*places, one=one, units=(0, 3))


@pytest.mark.parametrize(
    "one",
    [
        body("sum"),
        body(inputs=(ProgramInput(0, DType.U8, (2,)),)),
        body(inputs=(ProgramInput(0, DType.U8, (1,), 1),)),
        body(inputs=(ProgramInput(0, DType.U8, (1,)), ProgramInput(0, DType.U8, (-1,), 7))),
        body(outputs=(ProgramOutput(0, 1, (-1,), 7),)),
        body(outputs=(ProgramOutput(0, 1, (1,)), ProgramOutput(0, 0, (1,)))),
        body(types=(BYTES, TensorType(DType.F16, (4,)))),
    ],
)
def test_work_in_place_walks_alike(one: Body) -> None:
    assert over(*SAME, one=one) == [overwrites(0, 1, *SAME)]


def test_walks_of_other_operands_do_not_count() -> None:
    """Operand 2 is read and stored otherwise, and lies elsewhere."""
    one = body(
        None, Role.INPUT, Role.OUTPUT, Role.INPUT, Role.OUTPUT,
        inputs=(ProgramInput(0, DType.U8, (1,)), ProgramInput(2, DType.U8, (2,))),
        outputs=(ProgramOutput(0, 1, (1,)), ProgramOutput(0, 3, (2,))),
    )  # fmt: skip
    assert over(*SAME, at(ARENA, 16), at(ARENA, 32), one=one) == []


def test_a_sub_operator_whose_calls_lie_nowhere_is_not_looked_at_again() -> None:
    assert wrong(third=call(1, 0, 0, 4, (None, None))) == [f"{where(2)}: an operand lies nowhere; found 0"]
