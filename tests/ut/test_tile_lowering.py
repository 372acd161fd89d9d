"""What of a pointwise program becomes a command: broadcasts stay as small as commands take them, whichever side they
stand on."""

from __future__ import annotations

from itertools import product

import pytest

from superkernel.core.dtypes import DType
from superkernel.ir.body import PointwiseProgram, ProgramInput
from superkernel.scheduler.families.aicore.lowering import COMMUTATIVE, ProgramLowering, TileExpr
from superkernel.scheduler.families.aicore.tilecode import TileLayout

STRIDES = {
    TileLayout.MATRIX: (16, 1),
    TileLayout.ROW: (0, 1),
    TileLayout.COLUMN: (1, 0),
    TileLayout.SCALAR: (0, 0),
}
JOINED = {
    frozenset({TileLayout.COLUMN, TileLayout.ROW}): TileLayout.MATRIX,
    **{frozenset({TileLayout.SCALAR, other}): other for other in STRIDES},
    **{frozenset({TileLayout.MATRIX, other}): TileLayout.MATRIX for other in STRIDES},
}


def lowering(left: TileLayout, right: TileLayout) -> tuple[ProgramLowering, TileExpr, TileExpr]:
    """Of a tile of 8 x 16, with two inputs."""
    inputs = tuple(ProgramInput(n, DType.F32, STRIDES[layout]) for n, layout in enumerate((left, right)))
    made = ProgramLowering(PointwiseProgram((8, 16), inputs, (), ()), 0, 1)
    a, b = (TileExpr(made, made.form(n, DType.F32)) for n in range(2))
    assert (a.layout, b.layout) == (left, right)
    return made, a, b


@pytest.mark.parametrize("command", ["v_add", "v_max", "v_sub", "v_div"])
@pytest.mark.parametrize(("left", "right"), list(product(STRIDES, STRIDES)), ids=str)
def test_as_few_broadcasts_as_a_command_needs(command: str, left: TileLayout, right: TileLayout) -> None:
    """A command reads its first operand at the result's layout: as it is, or a row for all rows. The second one may be
    a column (of one element for each row) as well, and what is on which side is free where operands may be
    exchanged."""
    made, a, b = lowering(left, right)
    result = a.binary(command, b)
    layout = JOINED.get(frozenset({left, right}), left)
    assert result.layout is layout

    def repeats(own: TileLayout) -> bool:
        return own is layout or (own is TileLayout.ROW and layout is TileLayout.MATRIX)

    orders = [(left, right), (right, left)] if command in COMMUTATIVE else [(left, right)]
    assert len(made.steps) == 1 + min(int(not repeats(first)) for first, _ in orders)
    last = made.steps[-1]
    operands, parameters = dict(last.operands), dict(last.params)
    assert repeats(made.layout(operands["a"]))
    assert parameters["b_form"] == ("matrix" if repeats(made.layout(operands["b"])) else "column")
    if command not in COMMUTATIVE:
        assert operands["b"] == b.register
    assert [step.command for step in made.steps[:-1]] == ["v_broadcast"] * (len(made.steps) - 1)


def test_a_register_is_broadcast_once() -> None:
    made, row, column = lowering(TileLayout.ROW, TileLayout.COLUMN)
    for _ in range(3):
        column.binary("v_sub", row)
    assert [step.command for step in made.steps] == ["v_broadcast", "v_sub", "v_sub", "v_sub"]


def test_a_number_is_made_once_per_layout_that_has_it() -> None:
    """A row serves a matrix."""
    made, matrix, row = lowering(TileLayout.MATRIX, TileLayout.ROW)
    first, again, other = matrix.like(2.0), row.like(2.0), row.like(3.0)
    assert first.register == again.register != other.register
    assert first.layout is TileLayout.ROW
    assert [step.command for step in made.steps] == ["v_duplicate", "v_duplicate"]
