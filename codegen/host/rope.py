"""host.rope: pairs (a, b) of a row become (a cos - b sin, b cos + a sin).

Model: the two halves are read as two vectors and written as two; interleaved pairs are read as one vector of twice
the width, whose neighbours are swapped by a shuffle while each cosine and sine is doubled. Elements behind the
rotated ones are copied. With a position input the tables' row is found at run time, clamped to the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder, compute_dtype
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.loops import each_row, vector_loop
from superkernel.codegen.host.program import ProgramEmitter, ProgramRow, input_program, input_type
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.movement import OutputRowsTiling
from superkernel.scheduler.families.rowops import integer
from superkernel.scheduler.families.rowspace import slot_program


@dataclass(slots=True)
class _Rows:
    """The rows one unit works on."""

    kb: KernelBuilder
    x: ProgramRow
    cos: ProgramRow
    sin: ProgramRow
    result: ProgramRow

    def halves(self, half: int, position: Index, lanes: int) -> None:
        behind = self.kb.add(position, half)
        a, b = self._read(self.x, position, lanes), self._read(self.x, behind, lanes)
        c, s = self._read(self.cos, position, lanes), self._read(self.sin, position, lanes)
        self.result.eval(position, lanes, [(a * c - b * s).v])
        self.result.eval(behind, lanes, [(b * c + a * s).v])

    def neighbours(self, pair: Index, lanes: int) -> None:
        kb, width = self.kb, 2 * lanes
        position = kb.mul(pair, 2)
        x = self._read(self.x, position, width)
        c, s = (self._doubled(self._read(r, pair, lanes)) for r in (self.cos, self.sin))
        swapped = Expr(kb, kb.pick(x.v, [i ^ 1 for i in range(width)])) * s
        sign = Expr(kb, ir.Constant(x.v.type, [-1.0, 1.0] * lanes))
        self.result.eval(position, width, [(x * c + swapped * sign).v])

    def copy(self, start: int, position: Index, lanes: int) -> None:
        at = self.kb.add(position, start)
        self.result.eval(at, lanes, [self._read(self.x, at, lanes).v])

    def _read(self, row: ProgramRow, position: Index, lanes: int) -> Expr:
        return Expr(self.kb, row.eval(position, lanes)[0])

    def _doubled(self, x: Expr) -> Expr:
        if x.lanes == 1:
            return Expr(self.kb, self.kb.splat(x.v, 2))
        return Expr(self.kb, self.kb.pick(x.v, [i // 2 for i in range(2 * x.lanes)]))


def _table_row(kb: KernelBuilder, body: Body, outer: Sequence[Index]) -> list[Index]:
    """Coordinates of a table's row (its last coordinate left 0) for output row (b, h, s)."""
    kind, (batch, _, row) = input_type(body, 1), outer
    if slot_program(body, 3) is None:
        lead = 4 - kind.rank
        coords: list[Index] = [*outer, 0][lead:]
        return [
            0 if d == 1 and i < kind.rank - 1 else c for i, (c, d) in enumerate(zip(coords, kind.shape, strict=True))
        ]
    position = input_program(kb, body, 3)
    shape = position.program.shape
    at: list[Index] = [[], [batch if shape != (1,) else 0], [batch, row]][len(shape)]
    (value,) = position.eval(at, 1)
    index: Index = convert(kb, value, position.program.inputs[0].dtype, DType.I64)
    if len(shape) < 2:
        index = kb.add(index, row)
    return [kb.minimum(kb.maximum(index, 0), kind.shape[0] - 1), 0]


def emit(kb: KernelBuilder, body: Body, tiling: OutputRowsTiling) -> None:
    """Write the kernel."""
    x, cos, sin = (input_program(kb, body, slot) for slot in range(3))
    epilogue = ProgramEmitter(kb, body.epilogue)
    kind = body.anchor_outputs[0]
    depth = kind.shape[3]
    width = integer(body.attr["rotary_dim"]) or depth
    lanes = max(1, kb.cpu.vector_bytes // compute_dtype(kind.dtype).itemsize)
    with each_row(kb, kb.begin, kb.end, tiling.shape[:-1]) as outer:
        table = _table_row(kb, body, outer)
        rows = _Rows(kb, x.row([*outer, 0]), cos.row(table), sin.row(table), epilogue.row([*outer, 0]))
        if body.attr["interleaved"]:
            vector_loop(kb, width // 2, max(1, lanes // 2), rows.neighbours)
        else:
            vector_loop(kb, width // 2, lanes, lambda p, n: rows.halves(width // 2, p, n))
        vector_loop(kb, depth - width, lanes, lambda p, n: rows.copy(width, p, n))
