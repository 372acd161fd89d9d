"""aicore.rope: the pairs' program, tables found by position, and the elements that do not turn."""

from __future__ import annotations

from collections.abc import Collection

from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.kernels.pointwise import emit_cut, emit_tiles
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part, Ring
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import NOT_PLACED, Placed, TileProgram, place
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import SLOTS, Cut, code_of, output_types
from superkernel.scheduler.families.aicore.rope import OFFSET_BYTES, WIDE, RopePlan, RopeTiling, rope_plan
from superkernel.scheduler.families.aicore.tilecode import Home
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.target.engines import Local


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function."""
    assert isinstance(tiling, RopeTiling)
    plan = rope_plan(body)
    for program, cut, base in zip(plan.programs, tiling.cuts, tiling.bases, strict=True):
        first: Number = kb.begin
        last: Number = kb.end
        if plan.tail is not None:
            first, last = kb.maximum(kb.begin - base, 0), kb.minimum(kb.end - base, cut.units)
        inputs, outputs = kb.ring(f"in{base}", SLOTS), kb.ring(f"out{base}", SLOTS)
        with kb.when(True if plan.tail is None else kb.compare("<", first, last)):
            if base == 0 and (plan.has_position or tiling.is_wide):
                pairs = _Pairs(kb, body, plan, tiling, inputs, outputs)
                emit_tiles(kb, cut, first, last, pairs.rings, pairs.tile)
                continue
            code = code_of(cut, program, output_types(body, program))
            tile = TileProgram(kb, program, code, cut.size(kb.target), inputs, outputs, resident=cut.resident)
            emit_cut(kb, tile, cut, first, last)


class _Pairs:
    """Tiles of pairs whose tables are found by a position, or whose elements travel together, or both."""

    def __init__(
        self, kb: KernelBuilder, body: Body, plan: RopePlan, tiling: RopeTiling, inputs: Ring, outputs: Ring
    ) -> None:
        cut, program = tiling.cuts[0], plan.shown if tiling.is_wide else plan.pairs
        dtypes = output_types(body, plan.pairs)
        self.wide = _Wide(kb, plan, cut, dtypes[0], inputs, outputs) if tiling.is_wide else None
        placed = self.wide.placed if self.wide else NOT_PLACED
        code = code_of(cut, program, dtypes)
        self.program = TileProgram(kb, program, code, cut.size(kb.target), inputs, outputs, placed=placed)
        self.rings = (inputs, outputs) if self.wide else self.program.rings
        self.positions = _Positions(kb, body, plan, self.program) if plan.has_position else None
        self.tables = plan.tables if plan.has_position else ()

    def tile(self, at: list[Number], rows: Number, cols: Number) -> None:
        """One tile."""
        apart: Collection[int] = WIDE if self.wide else ()
        if self.positions:
            self.positions.load(at, rows, cols)
        if self.wide:
            self.wide.load(at, rows)
        self.program.load(at, rows, cols, but=(*self.tables, *apart))
        if self.wide:
            self.wide.split(rows)
        self.program.compute(rows, cols)
        if self.wide:
            self.wide.join(rows)
            self.wide.store(at, rows)
        self.program.store(at, rows, cols, but=apart)


class _Wide:
    """Both elements of the pairs in one buffer: halves of its rows, or neighbours that are gathered and scattered."""

    def __init__(self, kb: KernelBuilder, plan: RopePlan, cut: Cut, out: DType, inputs: Ring, outputs: Ring) -> None:
        self.kb, self.plan, self.half, self.row = kb, plan, cut.block, cut.row
        self.dtypes = (plan.pairs.inputs[0].dtype, out)
        pairs = cut.tile * cut.block
        self.source = kb.buffer(inputs, Local.UB, 2 * pairs * self.dtypes[0].itemsize, "pairs")
        self.result = kb.buffer(outputs, Local.UB, 2 * pairs * out.itemsize, "turned", top=True)
        self.placed: Placed = {}
        self._offsets: list[Buffer] = []
        apart: dict[tuple[Home, int], Part] = {}
        for home, buffer, dtype in ((Home.INPUT, self.source, self.dtypes[0]), (Home.OUTPUT, self.result, out)):
            width = self.half * dtype.itemsize
            for k in WIDE:
                if plan.interleaved:
                    own = kb.fixed(Local.UB, pairs * dtype.itemsize, f"{home.value} {k}")
                    apart[home, k] = own.rows(width)
                else:
                    apart[home, k] = buffer.at(k * width).rows(2 * width)
        self.placed = apart
        if plan.interleaved:
            self._offsets = [self._make_offsets(k, pairs) for k in WIDE]

    def _make_offsets(self, k: int, pairs: int) -> Buffer:
        """Byte offsets of the pairs' element k."""
        made, item = self.kb.fixed(Local.UB, pairs * OFFSET_BYTES, f"offsets {k}"), self.dtypes[0].itemsize
        self.kb.issue("v_iota", DType.I32, dst=made, cols=pairs, start=k * item, step=2 * item)
        return made

    def load(self, at: list[Number], rows: Number) -> None:
        """Whole rows of x."""
        walk, dtype = self.plan.pairs.inputs[0], self.dtypes[0]
        item = dtype.itemsize
        source = self.kb.operand(walk.source, place(walk.offset, walk.strides, [*at[:-1], 0]) * item)
        stride, width = walk.strides[self.row] * item, 2 * self.half
        dense = stride == width * item or self.plan.pairs.shape[self.row] == 1
        self.kb.load_rows(self.source.rows(width * item), source.rows(stride), dtype, rows, width, dense)

    def split(self, rows: Number) -> None:
        """Neighbours apart."""
        for k, offsets in enumerate(self._offsets):
            self._permute("v_gather", self.placed[Home.INPUT, k], self.source, offsets, rows, self.dtypes[0])

    def join(self, rows: Number) -> None:
        """Neighbours together."""
        for k, offsets in enumerate(self._offsets):
            self._permute("v_scatter", self.result, self.placed[Home.OUTPUT, k], offsets, rows, self.dtypes[1])

    def _permute(
        self, name: str, dst: Buffer | Part, src: Buffer | Part, offsets: Buffer, rows: Number, dtype: DType
    ) -> None:
        cols, nbytes = rows * self.half, rows * (2 * self.half * dtype.itemsize)
        self.kb.issue(name, dtype, dst=dst, src=src, offsets=offsets, cols=cols, table_bytes=nbytes)

    def store(self, at: list[Number], rows: Number) -> None:
        """Whole rows of the result."""
        walk, item = self.plan.pairs.outputs[0], self.dtypes[1].itemsize
        target: Address = self.kb.operand(walk.target, place(walk.offset, walk.strides, [*at[:-1], 0]) * item)
        stride, width = walk.strides[self.row] * item, 2 * self.half * item
        dense = stride == width or self.plan.pairs.shape[self.row] == 1
        self.kb.store_rows(target.rows(stride), self.result.rows(width), rows, width, dense)


class _Positions:
    """Tables' rows by position, read by the control unit."""

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

    def load(self, at: list[Number], rows: Number, cols: Number) -> None:
        """The tables' part of a tile: in one piece where no row of it is clamped."""
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
            with kb.when(kb.compare("==", last - first, rows - 1)):
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
