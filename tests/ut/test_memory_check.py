"""The check of a memory plan, on sub-operators made by hand: what is read is what was written there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from superkernel.core.dtypes import DType
from superkernel.core.errors import VerificationError
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, SubOperator, View
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.memory_check import MAX_RUNS, ByteOwners, check_memory, read_runs, written_runs
from superkernel.scheduler.schedule import MemoryAddress, Space

IN, OUT, INOUT, CONSTANT = Role.INPUT, Role.OUTPUT, Role.INOUT, Role.CONSTANT
ARENA, INPUT, OUTPUT, STATE = Space.ARENA, Space.INPUT, Space.OUTPUT, Space.STATE


def bytes_of(size: int) -> TensorType:
    return TensorType(DType.U8, (size,))


def at(space: Space, offset: int = 0, slot: int = 0) -> MemoryAddress:
    return MemoryAddress(space, slot, offset)


def buffer(size: int, space: Space | None = None, slot: int = 0, **more: object) -> ValueBuffer:
    """Of bytes; in the arena where no space is named."""
    place = None if space is None else MemoryAddress(space, slot, 0)
    return ValueBuffer(bytes_of(size), place, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Use:
    """An operand of `size` bytes, and where it lies. Touched are `count` bytes of it (all), `step` apart, from `first`
    on."""

    value: str
    role: Role
    address: MemoryAddress
    size: int
    count: int | None = None
    step: int = 1
    first: int = 0

    @property
    def touched(self) -> int:
        return self.size if self.count is None else self.count


def sub_operator(index: int, *uses: Use) -> SubOperator:
    """It reads by views, and stores each output in a program of its own."""
    inputs: list[View | PointwiseProgram] = []
    for number, use in enumerate(uses):
        if use.role is OUT:
            out = ProgramOutput(0, number, (use.step,), use.first)
            inputs.append(PointwiseProgram((use.touched,), (ProgramInput(-1, DType.U8),), (), (out,)))
        else:
            inputs.append(View(number, (use.touched,), (use.step,), use.first))
    operands = tuple(Operand(use.role, bytes_of(use.size)) for use in uses)
    nothing = PointwiseProgram((1,), (), (), ())
    body = Body("sum", (), operands, tuple(inputs), (None,) * len(uses), (), nothing)
    return SubOperator(index, f"s{index}", body, tuple(use.value for use in uses), (), "none")


def wrong(buffers: dict[str, ValueBuffer], *rows: Sequence[Use]) -> list[str]:
    """What the check says."""
    subops = [sub_operator(index, *row) for index, row in enumerate(rows)]
    try:
        check_memory(subops, [[use.address for use in row] for row in rows], buffers)
    except VerificationError as error:
        return [str(violation) for violation in error.violations]
    return []


def strange(sub: int, operand: str, expected: str, found: str) -> str:
    where = f"sub-operator {sub} (s{sub}), operand {operand!r}"
    return f"{where}: the operand's bytes are not its own; expected {expected}; found {found}"


def elsewhere(sub: int, operand: str, expected: str, found: str) -> str:
    where = f"sub-operator {sub} (s{sub}), operand {operand!r}"
    return f"{where}: a buffer lies at two places; expected {expected}; found {found}"


def lost(place: str, expected: str, found: str) -> str:
    return f"{place}: a result is not what was to be left there; expected {expected}; found {found}"


BUFFERS = {
    "x": buffer(8, INPUT),
    "y": buffer(8, INPUT, 1),
    "a": buffer(8),
    "b": buffer(8),
    "out": buffer(8, OUTPUT),
}
X, Y = Use("x", IN, at(INPUT), 8), Use("y", IN, at(INPUT, slot=1), 8)
WRITE_A, READ_A = Use("a", OUT, at(ARENA, 8), 8), Use("a", IN, at(ARENA, 8), 8)
RESULT = Use("out", OUT, at(OUTPUT), 8)


# Operands -------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read() -> None:
    assert wrong(BUFFERS, [X, WRITE_A], [READ_A, Y, RESULT]) == []


def test_an_operand_that_nobody_wrote() -> None:
    found = wrong(BUFFERS, [X, Y, READ_A, RESULT])
    assert found == [strange(0, "a", "a", "bytes 8..16 of arena0 hold 'nothing'")]


def test_reads_come_ahead_of_the_sub_operators_own_writes() -> None:
    found = wrong(BUFFERS, [WRITE_A, READ_A, RESULT])
    assert found == [strange(0, "a", "a", "bytes 8..16 of arena0 hold 'nothing'")]
    overwritten = Use("b", OUT, at(ARENA, 8), 8)
    assert wrong(BUFFERS, [X, WRITE_A], [overwritten, READ_A, RESULT]) == []


def test_an_input_lies_in_its_own_slot_and_no_further() -> None:
    assert wrong(BUFFERS, [replace(X, address=at(INPUT, slot=1)), RESULT]) == [
        strange(0, "x", "x", "bytes 0..8 of input1 hold 'y'")
    ]
    assert wrong(BUFFERS, [replace(X, address=at(INPUT, 6)), RESULT]) == [
        strange(0, "x", "x", "bytes 8..14 of input0 hold 'nothing'")
    ]


def test_spaces_of_one_slot_are_several() -> None:
    in_input = Use("b", OUT, at(INPUT), 8)
    assert wrong(BUFFERS, [X, WRITE_A], [Y, in_input], [READ_A, RESULT]) == []
    assert wrong(BUFFERS, [X, WRITE_A], [Y, in_input], [X, RESULT]) == [
        strange(2, "x", "x", "bytes 0..8 of input0 hold 'b'")
    ]


@pytest.mark.parametrize(("offset", "low", "high"), [(0, 8, 8), (1, 8, 9), (12, 12, 16), (15, 15, 16), (16, 8, 8)])
def test_bytes_that_another_buffer_took(offset: int, low: int, high: int) -> None:
    """All whose bytes it lies on are named."""
    over = Use("b", OUT, at(ARENA, offset), 8)
    found = wrong(BUFFERS, [X, WRITE_A], [Y, over], [READ_A, RESULT])
    expected = [strange(2, "a", "a", f"bytes {low}..{high} of arena0 hold 'b'")] if low < high else []
    assert found == expected


def test_every_strange_operand_is_named() -> None:
    over = Use("b", OUT, at(ARENA, 12), 2)
    found = wrong(BUFFERS, [X, WRITE_A], [Y, over], [READ_A, replace(READ_A, value="b"), RESULT], [READ_A])
    assert found == [
        strange(2, "a", "a", "bytes 12..14 of arena0 hold 'b'"),
        elsewhere(2, "b", "arena0 from byte 12 on", "arena0 from byte 8 on"),
        strange(2, "b", "b", "bytes 8..12 of arena0 hold 'a'"),
        strange(2, "b", "b", "bytes 14..16 of arena0 hold 'a'"),
        strange(3, "a", "a", "bytes 12..14 of arena0 hold 'b'"),
    ]


def test_outputs_and_constants_demand_nothing() -> None:
    constant = Use("c", CONSTANT, at(Space.CONSTANT), 8)
    buffers = {**BUFFERS, "c": buffer(8, Space.CONSTANT)}
    assert wrong(buffers, [X, constant, WRITE_A], [READ_A, RESULT]) == []


def test_empty_operands_have_no_bytes() -> None:
    """Neither of their own nor of others, in whose midst they lie."""
    empty = {**BUFFERS, "none": buffer(0)}
    read, write = Use("none", IN, at(ARENA, 12), 0), Use("none", OUT, at(ARENA, 12), 0)
    assert wrong(empty, [X, WRITE_A], [Y, write], [read, READ_A, RESULT]) == []
    one_element = Operand(OUT, TensorType(DType.U8, (0, 4)))
    sub = sub_operator(1, Y, replace(write, count=2))
    sub = replace(sub, body=replace(sub.body, operands=(sub.body.operands[0], one_element)))
    check_memory(
        [sub_operator(0, X, WRITE_A), sub, sub_operator(2, READ_A, RESULT)],
        [[X.address, WRITE_A.address], [Y.address, write.address], [READ_A.address, RESULT.address]],
        empty,
    )


def test_bodies_that_are_shared_are_each_looked_at_in_their_place() -> None:
    copy = sub_operator(0, X, WRITE_A)
    names = [("x", "a"), ("a", "b"), ("b", "out")]
    subops = [replace(copy, index=n, values=values) for n, values in enumerate(names)]
    places = [[at(INPUT), at(ARENA)], [at(ARENA), at(ARENA, 8)], [at(ARENA, 8), at(OUTPUT)]]
    check_memory(subops, places, BUFFERS)
    places[2][0] = at(ARENA)
    with pytest.raises(VerificationError, match=r"sub-operator 2 .* expected b; found bytes 0\.\.8 of arena0 hold 'a'"):
        check_memory(subops, places, BUFFERS)


# Parts of operands ----------------------------------------------------------------------------------------------------


def test_writes_count_for_the_bytes_that_are_stored() -> None:
    """Every other one, so that two halves make a whole."""
    even, odd = replace(WRITE_A, count=4, step=2), replace(WRITE_A, count=4, step=2, first=1)
    assert wrong(BUFFERS, [X, even], [Y, odd], [READ_A, RESULT]) == []
    found = wrong(BUFFERS, [X, even], [Y, even], [READ_A, RESULT])
    assert found == [strange(2, "a", "a", f"bytes {n}..{n + 1} of arena0 hold 'nothing'") for n in (9, 11, 13, 15)]


def test_reads_count_for_the_whole_operand() -> None:
    half, first = replace(WRITE_A, count=4), replace(READ_A, count=4)
    found = wrong(BUFFERS, [X, half], [first, RESULT])
    assert found == [strange(1, "a", "a", "bytes 12..16 of arena0 hold 'nothing'")]


def test_reads_through_a_window_count_for_what_its_views_touch() -> None:
    buffers = {**BUFFERS, "window": buffer(8, inside=("a", 0))}
    half = replace(WRITE_A, count=4, first=2)
    window = Use("window", IN, at(ARENA, 8), 8, count=4, first=2)
    assert wrong(buffers, [X, half], [window, RESULT]) == []
    assert wrong(buffers, [X, half], [replace(window, first=3), RESULT]) == [
        strange(1, "window", "a", "bytes 14..15 of arena0 hold 'nothing'")
    ]
    larger = {**buffers, "window": buffer(9, inside=("a", 0))}
    assert wrong(larger, [X, half], [window, RESULT])[0] == strange(
        1, "window", "a", "bytes 8..10 of arena0 hold 'nothing'"
    ), "of another type it is no window"


def test_a_part_counts_as_what_it_is_a_part_of() -> None:
    buffers = {**BUFFERS, "low": buffer(4, inside=("all", 0)), "high": buffer(4, inside=("all", 4))}
    buffers |= {"all": buffer(8, inside=("a", 0))}
    low, high = Use("low", OUT, at(ARENA, 8), 4), Use("b", OUT, at(ARENA, 12), 4)
    assert wrong(buffers, [X, low], [Y, replace(high, value="high")], [READ_A, RESULT]) == []
    found = wrong(buffers, [X, low], [Y, high], [READ_A, RESULT])
    assert found == [strange(2, "a", "a", "bytes 12..16 of arena0 hold 'b'")]


def test_a_part_that_lies_elsewhere_than_in_its_buffer() -> None:
    """All bytes are the buffer's own, but not those of the part."""
    buffers = {**BUFFERS, "high": buffer(4, inside=("a", 4))}
    high = Use("high", IN, at(ARENA, 12), 4)
    assert wrong(buffers, [X, WRITE_A], [high, RESULT]) == []
    found = wrong(buffers, [X, WRITE_A], [replace(high, address=at(ARENA, 10)), RESULT])
    assert found == [elsewhere(1, "high", "arena0 from byte 12 on", "arena0 from byte 10 on")]
    found = wrong(buffers, [X, replace(high, role=OUT), replace(WRITE_A, address=at(ARENA, 4))], [READ_A, RESULT])
    assert found[0] == elsewhere(0, "a", "arena0 from byte 8 on", "arena0 from byte 4 on")


def test_a_buffer_that_is_a_part_of_itself() -> None:
    buffers = {**BUFFERS, "a": buffer(8, inside=("b", 0)), "b": buffer(8, inside=("a", 0))}
    (found,) = wrong(buffers, [Y, WRITE_A])
    assert found.startswith("a buffer that is a part of itself; found ")
    chain = {"a": buffer(8, inside=("b", 0)), "b": buffer(8, inside=("x", 0)), "x": buffer(8, INPUT)}
    assert wrong(chain, [replace(READ_A, address=at(INPUT))]) == [], "as many steps as there are others"


# In place -------------------------------------------------------------------------------------------------------------

STATES = {
    **BUFFERS,
    "s": buffer(8, STATE),
    "t": buffer(8, STATE, previous="s"),
    "u": buffer(8, STATE, previous="t"),
}


def update(value: str) -> Use:
    return Use(value, INOUT, at(STATE), 8, count=2)


def test_an_update_in_place_takes_the_version_before() -> None:
    assert wrong(STATES, [X, update("t")], [Y, update("u"), RESULT]) == []
    assert wrong(STATES, [X, update("u")], [Y, RESULT], [update("t")])[:1] == [
        strange(0, "u", "t", "bytes 0..8 of state0 hold 's'")
    ]
    assert wrong(STATES, [X, update("t")], [Y, update("t"), RESULT])[:1] == [
        strange(1, "t", "s", "bytes 0..8 of state0 hold 't'")
    ]


def test_the_version_before_is_gone_where_it_was_overwritten() -> None:
    old = Use("s", IN, at(STATE), 8)
    assert wrong(STATES, [old, update("t")], [X, update("u"), RESULT]) == []
    new = replace(old, value="t")
    assert wrong(STATES, [old, update("t")], [new, update("u"), RESULT]) == []
    found = wrong(STATES, [X, update("t")], [old, update("u"), RESULT])
    assert found == [strange(1, "s", "s", "bytes 0..8 of state0 hold 't'")], "all of it, whatever was stored"


def test_an_update_of_what_has_no_version_before_takes_its_own() -> None:
    again = replace(READ_A, role=INOUT)
    assert wrong(BUFFERS, [X, WRITE_A], [Y, again], [READ_A, RESULT]) == []
    assert wrong(BUFFERS, [Y, again], [READ_A, RESULT]) == [
        strange(0, "a", "a", "bytes 8..16 of arena0 hold 'nothing'")
    ]


# What is left ---------------------------------------------------------------------------------------------------------


def test_results_are_there_in_the_end() -> None:
    at_output = "output0@0"
    assert wrong(BUFFERS, [X, Y]) == [lost(at_output, "out", "bytes 0..8 hold 'nothing'")]
    half = replace(RESULT, count=4)
    assert wrong(BUFFERS, [X, half]) == [lost(at_output, "out", "bytes 4..8 hold 'nothing'")]
    over = Use("a", OUT, at(OUTPUT), 2)
    assert wrong(BUFFERS, [X, RESULT], [Y, over]) == [lost(at_output, "out", "bytes 0..2 hold 'a'")]
    over_input = Use("b", OUT, at(INPUT), 8)
    assert wrong(BUFFERS, [X, RESULT], [Y, over_input]) == [], "an input is nobody's in the end"


def test_the_last_version_of_a_state_is_there_in_the_end() -> None:
    assert wrong(STATES, [X, RESULT]) == [lost("state0@0", "u", "bytes 0..8 hold 's'")]
    assert wrong(STATES, [X, update("t"), RESULT]) == [lost("state0@0", "u", "bytes 0..8 hold 't'")]
    constant = {**BUFFERS, "s": buffer(8, STATE)}
    over = Use("a", OUT, at(STATE), 8)
    assert wrong(constant, [X, RESULT], [over]) == [], "what has no version is nobody's in the end"


# Runs of bytes --------------------------------------------------------------------------------------------------------

MATRIX = TensorType(DType.F32, (MAX_RUNS + 1, 4))


def pointwise(rows: int) -> Body:
    """Columns 1 and 2 of so many rows of operand 0, to columns 0 and 1 of operand 1."""
    load, store = ProgramInput(0, DType.F32, (4, 1), 1), ProgramOutput(0, 1, (4, 1))
    operands = (Operand(IN, MATRIX), Operand(OUT, MATRIX))
    return Body(None, (), operands, (), (), (), PointwiseProgram((rows, 2), (load,), (), (store,)))


def test_runs_that_a_program_touches() -> None:
    body = pointwise(3)
    assert list(read_runs(body, 0)) == [(4, 12), (20, 28), (36, 44)]
    assert list(written_runs(body, 1)) == [(0, 8), (16, 24), (32, 40)]
    assert list(read_runs(body, 1)) == list(written_runs(body, 0)) == []
    everywhere = (Operand(IN, MATRIX), Operand(INOUT, MATRIX))
    assert list(written_runs(replace(body, operands=everywhere), 1)) == [(0, MATRIX.nbytes)]


def test_runs_that_an_anchor_touches() -> None:
    body = pointwise(2)
    view = View(0, (2,), (4,), 3)
    anchored = replace(body, op="sum", anchor_inputs=(view, None, body.epilogue), epilogue=pointwise(1).epilogue)
    assert list(read_runs(anchored, 0)) == [(4, 12), (12, 16), (28, 32), (4, 12), (20, 28)]
    assert list(written_runs(anchored, 1)) == [(0, 8), (0, 8), (16, 24)]
    assert list(read_runs(anchored, 1)) == list(written_runs(anchored, 0)) == []


def test_very_many_runs_are_taken_by_their_bounds() -> None:
    assert len(list(read_runs(pointwise(MAX_RUNS), 0))) == MAX_RUNS == 4096
    assert list(read_runs(pointwise(MAX_RUNS + 1), 0)) == [(4, MAX_RUNS * 16 + 12)]
    assert list(written_runs(pointwise(MAX_RUNS + 1), 1)) == [(0, MAX_RUNS * 16 + 8)]


def test_owners_against_a_byte_array() -> None:
    rng = np.random.default_rng(0)
    owners, truth = ByteOwners(), np.zeros(64, np.int64)
    for step in range(1, 400):
        start, stop = sorted(int(v) for v in rng.choice(65, 2, replace=False))
        if rng.random() < 0.6:
            owners.claim(start, stop, str(step))
            truth[start:stop] = step
        name = int(rng.choice(truth))
        found = np.zeros(64, bool)
        for low, high, who in owners.strangers(start, stop, str(name) if name else ""):
            assert start <= low < high <= stop
            assert set(truth[low:high]) == {int(who or 0)}
            assert not found[low:high].any()
            found[low:high] = True
        assert np.array_equal(found[start:stop], truth[start:stop] != name)
