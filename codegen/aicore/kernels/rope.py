"""aicore.rope: the pairs' program, tables found by position, and the elements that do not turn."""

from __future__ import annotations

from superkernel.body import Body
from superkernel.codegen.aicore.kernels.pointwise import emit_cut, emit_tiles
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram, place
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import SLOTS, code_of, output_types
from superkernel.scheduler.families.aicore.rope import RopePlan, RopeTiling, rope_plan
from superkernel.scheduler.families.rowspace import slot_program


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function."""
    assert isinstance(tiling, RopeTiling)
    if tiling.units == 0:
        return
    plan = rope_plan(body)
    for program, cut, base in tiling.parts(body):
        code = code_of(cut, program, output_types(body, program))
        inputs, outputs = kb.ring(f"in{base}", SLOTS), kb.ring(f"out{base}", SLOTS)
        tile = TileProgram(kb, program, code, cut.size(kb.target), inputs, outputs, resident=cut.resident)
        first: Number = kb.begin
        last: Number = kb.end
        if tiling.tail is not None:
            first, last = kb.maximum(kb.begin - base, 0), kb.minimum(kb.end - base, cut.units)
        with kb.when(True if tiling.tail is None else kb.compare("<", first, last)):
            if base == 0 and plan.has_position:
                work = _Positioned(kb, body, plan, tile)
                emit_tiles(kb, cut, first, last, tile.rings, work.tile)
            else:
                emit_cut(kb, tile, cut, first, last)


class _Positioned:
    """Tiles whose tables' rows are found by the position."""

    def __init__(self, kb: KernelBuilder, body: Body, plan: RopePlan, program: TileProgram) -> None:
        self.kb, self.plan, self.program = kb, plan, program
        self.places = plan.pairs.shape[2]
        table, position = slot_program(body, 1), slot_program(body, 3)
        assert table is not None
        assert position is not None
        self.last = table.shape[0] - 1
        self.step = table.inputs[0].strides[0]
        self.shape, self.position = position.shape, position.inputs[0]
        # One position for all is read once.
        self.start = self._read([0] * len(self.shape)) if not self.shape or self.shape == (1,) else None

    def _read(self, at: list[Number]) -> Number:
        item = self.position
        start = place(item.offset, item.strides, at)
        return self.kb.load(self.kb.operand(item.source, start * item.dtype.itemsize), item.dtype)

    def _row(self, at: list[Number], r: Number) -> Number:
        """The table's row for row r of a tile."""
        kb, batch, s = self.kb, at[0], at[2] + r
        if len(self.shape) == 2:
            row = self._read([batch, s])
        else:
            row = (self.start if self.start is not None else self._read([batch])) + s
        return kb.minimum(kb.maximum(row, 0), self.last)

    def tile(self, at: list[Number], rows: Number, cols: Number) -> None:
        """One tile."""
        self._tables(at, rows, cols)
        self.program.load(at, rows, cols, but=self.plan.tables)
        self.program.compute(rows, cols)
        self.program.store(at, rows, cols)

    def _tables(self, at: list[Number], rows: Number, cols: Number) -> None:
        kb, loads = self.kb, [x for x in self.program.code.loads if x.input in self.plan.tables]
        zero: list[Number] = [0, 0, 0, at[3]]
        if self.places == 1:
            row = self._row(at, 0)
            for load in loads:
                self.program.load_one(load, zero, 1, cols, row * self.step)
        elif len(self.shape) == 2:
            self._row_by_row(at, rows, cols)
        else:
            first, last = self._row(at, 0), self._row(at, rows - 1)
            whole = kb.compare("==", last - first, rows - 1)  # no row is clamped
            with kb.when(whole):
                for load in loads:
                    self.program.load_one(load, zero, rows, cols, first * self.step)
            with kb.when(kb.compare("!=", last - first, rows - 1)):
                self._row_by_row(at, rows, cols)

    def _row_by_row(self, at: list[Number], rows: Number, cols: Number) -> None:
        kb = self.kb
        with kb.loop(0, rows) as r:
            row = self._row(at, r)
            for number in self.plan.tables:
                self.program.load_row(number, r, [0, 0, 0, at[3]], cols, row * self.step)


EMIT = {"aicore.rope": emit}
