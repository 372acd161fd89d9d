"""aicore.grouped_matmul: a cube core multiplies the tiles that the table says are its slot's.

Model: the control unit reads a tile's words, then issues what `aicore.matmul` would for it: chunks of both factors into
L1 (two slots), steps into L0 (two slots), sums into L0C, FIX stores them. All of a unit's numbers come from the table:
the kernel waits for it first. Weights are loaded ahead of rows: once the table says which expert's they are, they are
on their way while the rows are not there yet.
"""

from __future__ import annotations

from superkernel.codegen.aicore.kernels.cube import FactorCode, Steps
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, View
from superkernel.ops.grouped import BOUNDS_WORD, TILE_WORDS
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.grouped import CHUNKS, GroupedTiling, factors
from superkernel.scheduler.families.grouped import TABLE, W, product_table, view_of
from superkernel.target.engines import Local

_CLEARED = (DType.I64, DType.I32, DType.I16)  # the widest store that fits


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The cube core's function."""
    assert isinstance(tiling, GroupedTiling)
    kernel = _Grouped(kb, body, tiling)
    with kb.loop(kb.begin, kb.end) as slot:
        kernel.slot(slot)


class _Grouped:
    """See the module docstring."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: GroupedTiling) -> None:
        self.kb, self.body, self.tiling, self.table = kb, body, tiling, product_table(body)
        left, right = factors(body, tiling)
        self.left, self.right = FactorCode(kb, left), FactorCode(kb, right)
        self.item, self.dtype = left.item, left.dtype
        self.words: View = view_of(body, TABLE)
        self.outs = body.epilogue.outputs
        self.chunks, rows, columns = kb.ring("chunks", CHUNKS), tiling.rows, tiling.columns
        self.steps = Steps(kb, self.left, self.right, rows, columns, tiling.cut.step, DType.F32)
        self.sums = kb.ring("sums", tiling.sums)
        self.x = kb.buffer(self.chunks, Local.L1, left.resident_bytes, "x")
        self.w = kb.buffer(self.chunks, Local.L1, right.resident_bytes, "w")
        self.c = kb.buffer(self.sums, Local.L0C, tiling.rows * tiling.columns * DType.F32.itemsize, "c")

    def slot(self, slot: Number) -> None:
        """All units of a slot, then its rows to clear."""
        kb, table = self.kb, self.table
        kb.acquire(self.words.operand)
        first, last = (self._word(slot + (BOUNDS_WORD + more)) for more in (0, 1))
        with kb.loop(first, last) as unit:
            tile, column = unit // table.columns, unit % table.columns
            at = tile * TILE_WORDS + table.tiles_word
            expert, row, rows = (self._word(at + place) for place in range(3))
            self._tile(expert, row, rows, column)
        first, last = (self._word(slot + (table.cleared_word + more)) for more in (0, 1))
        with kb.loop(first, last) as row:
            self._clear(row)

    def _word(self, number: Number) -> Number:
        place = (number + self.words.offset) * DType.I32.itemsize
        return self.kb.load(self.kb.operand(self.words.operand, place), DType.I32)

    def _tile(self, expert: Number, row: Number, rows: Number, column: Number) -> None:
        kb, cut = self.kb, self.tiling.cut
        x = self.left.factor
        columns = self.right.lines_of(column)
        at_x = row * (x.line_stride * x.item) + x.offset * x.item
        stride = view_of(self.body, W).strides[0]
        at_w = self.right.tile_offset([expert], (self.table.experts,), (stride,), column)
        count = len(cut.chunk_list)
        with kb.turn(self.sums):
            with kb.loop(0, count) as chunk:
                first = chunk * cut.chunk
                even = count * cut.chunk == cut.depth
                depths = cut.chunk if even else kb.minimum(cut.depth - first, cut.chunk)
                with kb.turn(self.chunks):
                    self.right.load(self.w, at_w, columns, first, depths)
                    self.left.load(self.x, at_x, rows, first, depths)
                    self._steps(rows, columns, chunk, depths)
            self._store(row, rows, column, columns)

    def _steps(self, rows: Number, columns: Number, chunk: Number, depths: Number) -> None:
        kb, cut = self.kb, self.tiling.cut
        even = isinstance(depths, int) and depths % cut.step == 0
        with kb.loop(0, depths, cut.step) as at, kb.turn(self.steps.ring):
            count = cut.step if even else kb.minimum(depths - at, cut.step)
            self.left.feed(self.steps.a, self.x, rows, at, count)
            self.right.feed(self.steps.b, self.w, columns, at, count)
            self.steps.multiply(self.c, rows, columns, count, chunk + at)

    def _store(self, row: Number, rows: Number, column: Number, columns: Number) -> None:
        kb = self.kb
        for out in self.outs:
            line = out.strides[0] * self.item
            place = row * line + column * (self.tiling.columns * self.item) + out.offset * self.item
            dst = kb.operand(out.target, place).rows(line)
            kb.issue("l0c_to_gm", DType.F32, self.dtype, src=self.c, dst=dst, m=rows, n=columns)

    def _clear(self, row: Number) -> None:
        """Zeros, as wide as they fit."""
        kb, columns = self.kb, self.body.anchor_outputs[0].shape[1]
        for out in self.outs:
            line, start = columns * self.item, out.offset * self.item
            kind = next(k for k in _CLEARED if line % k.itemsize == 0 and start % k.itemsize == 0)
            with kb.loop(0, line, kind.itemsize) as at:
                kb.store(kb.operand(out.target, row * line + at + start), 0, kind)
