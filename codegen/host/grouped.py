"""Code for products of rows grouped by expert (the model is ops/grouped.py's), and for tables that depend on data.

A tiling is scalar code; the accelerator's aicpu hart runs the same (`codegen/aicore/kernels/tiling.py`).

Scratch of a product: [tile][rows of x as accumulators][panel of w].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from superkernel.codegen.host.builder import I32, I64, Index, KernelBuilder
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.gemm_core import Tile, accumulate, fold, store_tile
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.panels import copy_panel
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.ops.grouped import (
    BOUNDS_WORD,
    FINE,
    FOUND_WORD,
    NEGATIVE,
    STATUS_WORD,
    TILE_WORDS,
    TILES_WORD,
    TOO_MANY,
    WHERE_WORD,
)
from superkernel.ops.ragged import PART_BITS
from superkernel.scheduler.families.grouped import (
    TABLE,
    GroupedTiling,
    TableTiling,
    W,
    X,
    lengths_table,
    output_operands,
    product_table,
    tiling_table,
    view_of,
)
from superkernel.scheduler.families.matmul_form import Factor

COPIED_MAX, SIDE_BY_SIDE = 64, 8


def emit(kb: KernelBuilder, body: Body, tiling: GroupedTiling | TableTiling) -> None:
    """Write the kernel."""
    if isinstance(tiling, GroupedTiling):
        _Product(kb, body, tiling).emit()
        return
    with kb.when(kb.compare("<", kb.begin, kb.end)):
        emit_table(kb, body)


def emit_table(kb: KernelBuilder, body: Body) -> ir.Value:
    """A table of either kind; the status as an i64."""
    return LengthsCode(kb, body).emit() if body.op == "tile_lengths" else GroupsCode(kb, body).emit()


# Tables -----------------------------------------------------------------------------------------------------------


class _Code:
    """What makes a table out of `count` numbers."""

    def __init__(self, kb: KernelBuilder, body: Body, count: int) -> None:
        self.kb, self.count = kb, count
        view = view_of(body, 0)
        self.numbers, self.stride, self.first = kb.operands[view.operand], view.strides[0], view.offset
        self.dtype = body.operands[view.operand].type.dtype
        self.outs = [(kb.operands[o.target], o.offset) for o in body.epilogue.outputs]
        self.copied = self._copied() if count <= COPIED_MAX else None

    def _copied(self) -> ir.Value:
        """The numbers on the stack: loads side by side, so that a control unit waits for one trip, not for each."""
        kb = self.kb
        stack = kb.stack(max(1, self.count) * DType.I64.itemsize)
        for first in range(0, self.count, SIDE_BY_SIDE):
            group = range(first, min(first + SIDE_BY_SIDE, self.count))
            for number, value in zip(group, [self._load(n) for n in group], strict=True):
                kb.store(value, stack, number, DType.I64)
        return stack

    def _number(self, index: Index) -> ir.Value:
        return self._load(index) if self.copied is None else self.kb.load(self.copied, index, DType.I64)

    def _load(self, index: Index) -> ir.Value:
        kb = self.kb
        value = kb.load(self.numbers, kb.add(kb.mul(index, self.stride), self.first), self.dtype)
        return value if self.dtype is DType.I64 else kb.b.sext(value, I64)

    def _put(self, word: Index, value: Index) -> None:
        kb = self.kb
        for base, offset in self.outs:
            kb.store(kb.b.trunc(kb.i64(value), I32), base, kb.add(word, offset), DType.I32)

    def _put_status(self, status: ir.Value, where: ir.Value, found: ir.Value) -> ir.Value:
        """The head of the table; True where nothing is wrong."""
        for word, value in ((STATUS_WORD, status), (WHERE_WORD, where), (FOUND_WORD, found)):
            self._put(word, value)
        return self.kb.compare("==", status, FINE)

    def _first_wrong(self, state: list[ir.Value], index: Index, own: ir.Value, found: ir.Value) -> list[ir.Value]:
        """Status, place and number with one more looked at, whose own status is `own`."""
        kb, b = self.kb, self.kb.b
        status, where, what = state[:3]
        first = b.and_(b.icmp_signed("==", status, kb.i64(FINE)), b.icmp_signed("!=", own, kb.i64(FINE)))
        return [b.select(first, own, status), b.select(first, kb.i64(index), where), b.select(first, found, what)]


class LengthsCode(_Code):
    """The table of a padded batch: lengths are checked, their costs added up, then the bounds that lie in each batch
    are computed."""

    def __init__(self, kb: KernelBuilder, body: Body) -> None:
        self.table = lengths_table(body)
        super().__init__(kb, body, self.table.batches)

    def emit(self) -> ir.Value:
        """Everything; returns the status, an i64."""
        kb = self.kb
        status, where, found, whole = fold(kb, 0, self.count, 1, [kb.i64(0)] * 4, self._check)
        fine = self._put_status(status, where, found)
        self._put(TILES_WORD, 0)
        limit = kb.b.select(fine, kb.i64(self.count), kb.i64(0))
        self.whole = kb.b.select(fine, whole, kb.i64(1))
        fold(kb, 0, limit, 1, [kb.i64(0), kb.i64(0)], self._batch)
        with kb.loop(0, kb.b.select(fine, kb.i64(0), kb.i64(self.table.slots + 1)), name="none") as slot:
            self._put(kb.add(slot, BOUNDS_WORD), 0)
        return status

    def _cost(self, length: ir.Value) -> ir.Value:
        return self.kb.i64(self.kb.add(length, self.table.fixed))

    def _check(self, batch: Index, state: list[ir.Value]) -> list[ir.Value]:
        kb, b = self.kb, self.kb.b
        length = self._number(batch)
        negative, long = kb.compare("<", length, 0), kb.compare(">", length, self.table.keys)
        own = b.select(negative, kb.i64(NEGATIVE), b.select(long, kb.i64(TOO_MANY), kb.i64(FINE)))
        return [*self._first_wrong(state, batch, own, length), b.add(state[3], self._cost(length))]

    def _batch(self, batch: Index, state: list[ir.Value]) -> list[ir.Value]:
        """The bounds from `place` on that lie in a batch; `before` it others cost so much."""
        kb, b, slots = self.kb, self.kb.b, self.table.slots
        before, place = state
        cost = self._cost(self._number(batch))
        after = b.add(before, cost)
        stop = b.add(b.udiv(kb.i64(kb.mul(after, slots)), self.whole), kb.i64(1))
        start, span = kb.i64(kb.mul(before, slots)), kb.i64(kb.mul(cost, slots))
        with kb.loop(place, stop, name="bound") as number:
            part = b.shl(b.sub(b.mul(kb.i64(number), self.whole), start), kb.i64(PART_BITS))
            whole = b.shl(kb.i64(batch), kb.i64(PART_BITS))
            self._put(kb.add(number, BOUNDS_WORD), b.add(whole, b.udiv(part, span)))
        return [after, kb.i64(kb.maximum(place, stop))]


class GroupsCode(_Code):
    """The table of a grouped product: counts are checked and added up, tiles are listed, units and rows to clear are
    divided."""

    def __init__(self, kb: KernelBuilder, body: Body) -> None:
        self.table = tiling_table(body)
        super().__init__(kb, body, self.table.experts)

    def emit(self) -> ir.Value:
        """Everything; returns the status, an i64."""
        kb, table = self.kb, self.table
        status, where, found = self._checked()
        fine = self._put_status(status, where, found)
        limit = kb.b.select(fine, kb.i64(table.experts), kb.i64(0))
        tiles, rows = fold(kb, 0, limit, 1, [kb.i64(0), kb.i64(0)], self._expert)
        left = kb.b.select(fine, kb.i64(kb.sub(table.rows, rows)), kb.i64(0))
        self._put(TILES_WORD, tiles)
        with kb.loop(0, table.slots + 1, name="slot") as slot:
            self._put(kb.add(slot, BOUNDS_WORD), kb.div(kb.mul(kb.mul(tiles, table.columns), slot), table.slots))
            self._put(kb.add(slot, table.cleared_word), kb.add(rows, kb.div(kb.mul(left, slot), table.slots)))
        with kb.loop(table.cleared_word + table.slots + 1, table.tiles_word, name="gap") as word:
            self._put(word, 0)
        begin = kb.add(kb.mul(tiles, TILE_WORDS), table.tiles_word)
        with kb.loop(begin, table.words, name="rest") as word:
            self._put(word, 0)
        return status

    def _checked(self) -> list[ir.Value]:
        """Status, expert and count of the first that is wrong."""
        kb, b = self.kb, self.kb.b

        def step(expert: Index, state: list[ir.Value]) -> list[ir.Value]:
            total = state[3]
            count = self._number(expert)
            negative = b.icmp_signed("<", count, kb.i64(0))
            many = b.icmp_signed(">", count, b.sub(kb.i64(self.table.rows), total))
            own = b.select(negative, kb.i64(NEGATIVE), b.select(many, kb.i64(TOO_MANY), kb.i64(FINE)))
            status, where, found = self._first_wrong(state, expert, own, count)
            added = b.select(b.icmp_signed("==", status, kb.i64(FINE)), count, kb.i64(0))
            return [status, where, found, b.add(total, added)]

        return fold(kb, 0, self.table.experts, 1, [kb.i64(0)] * 4, step)[:3]

    def _expert(self, expert: Index, state: list[ir.Value]) -> list[ir.Value]:
        """The tiles of an expert."""
        kb, table = self.kb, self.table
        tiles, first = state
        count = self._number(expert)
        with kb.loop(0, count, table.tile, name="tile") as at:
            number = kb.add(tiles, kb.div(at, table.tile))
            word = kb.add(kb.mul(number, TILE_WORDS), table.tiles_word)
            rows = kb.minimum(kb.sub(count, at), table.tile)
            for place, value in enumerate((expert, kb.add(first, at), rows, 0)):
                self._put(kb.add(word, place), value)
        more = kb.div(kb.add(count, table.tile - 1), table.tile)
        return [kb.i64(kb.add(tiles, more)), kb.i64(kb.add(first, count))]


# The product ----------------------------------------------------------------------------------------------------------


class _Product:
    """Panel by panel, tile by tile; then the rows that belong to nobody."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: GroupedTiling) -> None:
        self.kb, self.body, self.t, self.table = kb, body, tiling, product_table(body)
        self.tile = Tile(tiling.tile_rows, tiling.vectors, tiling.lanes, tiling.acc)
        self.left_copy = kb.offset(kb.scratch, tiling.tile_bytes)
        self.right_copy = kb.offset(kb.scratch, tiling.tile_bytes + tiling.left_bytes)
        self.x, self.w, words = (view_of(body, slot) for slot in (X, W, TABLE))
        self.words = kb.at(kb.operands[words.operand], words.offset, DType.I32)
        self.dtype = body.operands[self.x.operand].type.dtype
        self.outs = [
            (kb.operands[o], p.offset) for o, p in zip(output_operands(body), body.epilogue.outputs, strict=True)
        ]
        self.tail = tiling.columns % tiling.panel

    def emit(self) -> None:
        kb, table = self.kb, self.table
        tiles = self._word(TILES_WORD)
        first = self._word(table.cleared_word)
        held = kb.carry(I64)
        with kb.loop(kb.begin, kb.end, name="panel") as panel:
            held.set(kb.i64(-1))
            with kb.loop(0, tiles, name="tile") as tile:
                at = kb.add(kb.mul(tile, TILE_WORDS), table.tiles_word)
                expert, row, rows = (self._word(kb.add(at, place)) for place in range(3))
                if not self.t.packed:
                    with kb.when(kb.compare("!=", expert, held.get())):
                        self._copy_right(expert, panel)
                        held.set(expert)
                with kb.loop(0, rows, self.t.tile_rows, name="part") as part:
                    self._tile(expert, kb.add(row, part), kb.minimum(kb.sub(rows, part), self.t.tile_rows), panel)
            with kb.loop(first, self.t.rows, name="cleared") as row:
                self._each_vector(panel, partial(self._clear, row))

    def _word(self, number: Index) -> ir.Value:
        return self.kb.b.sext(self.kb.load(self.words, number, DType.I32), I64)

    def _tile(self, expert: Index, first: Index, rows: Index, panel: Index) -> None:
        kb, t = self.kb, self.t
        origin = kb.at(kb.operands[self.x.operand], kb.add(kb.mul(first, t.depth), self.x.offset), self.dtype)
        if t.narrow:
            self._widen(origin, rows)
        source, dtype = (self.left_copy, t.acc) if t.narrow else (origin, self.dtype)
        lines = [
            kb.at(source, kb.mul(kb.minimum(row, kb.sub(rows, 1)) if row else 0, t.depth), dtype)
            for row in range(t.tile_rows)
        ]
        if t.packed:
            index = kb.add(kb.mul(expert, t.units), panel)
            base, kind = kb.at(kb.operands[self.w.operand], kb.mul(index, t.depth * t.panel), self.dtype), self.dtype
        else:
            base, kind = self.right_copy, t.acc

        def right(k: Index, v: int) -> ir.Value:
            value = kb.load(base, kb.add(kb.mul(k, t.panel), v * t.lanes), kind, t.lanes)
            return convert(kb, value, kind, t.acc)

        results = accumulate(kb, self.tile, t.depth, lambda row, k: kb.load(lines[row], k, t.acc), right)
        store_tile(kb, self.tile, results, kb.scratch, t.panel)
        with kb.loop(0, rows, name="row") as row:

            def store(column: Index, at: Index, lanes: int) -> None:
                value = kb.load(kb.scratch, kb.add(kb.mul(row, t.panel), at), t.acc, lanes)
                self._store(value, kb.add(first, row), column)

            self._each_vector(panel, store)

    def _widen(self, origin: ir.Value, rows: Index) -> None:
        kb, t = self.kb, self.t
        with kb.loop(0, rows, name="wide") as row:
            at = kb.mul(row, t.depth)

            def part(k: Index, lanes: int) -> None:
                value = convert(kb, kb.load(origin, kb.add(at, k), self.dtype, lanes), self.dtype, t.acc)
                kb.store(value, self.left_copy, kb.add(at, k), t.acc)

            strips(kb, t.depth, t.lanes, part)

    def _copy_right(self, expert: Index, panel: Index) -> None:
        kb, t = self.kb, self.t
        matrix = kb.add(kb.mul(expert, t.depth * t.columns), self.w.offset)
        base = kb.at(kb.operands[self.w.operand], matrix, self.dtype)
        shape = (t.depth, t.columns)
        factor = Factor(W, self.dtype, self.w.operand, (), 1, t.columns, 0, None, shape, False)
        copy_panel(kb, self.tile, base, factor, t.depth, t.columns, kb.mul(panel, t.panel), self.right_copy, None)

    def _clear(self, row: Index, column: Index, at: Index, lanes: int) -> None:
        self._store(self.kb.const(0.0, self.t.acc, lanes), row, column)

    def _store(self, value: ir.Value, row: Index, column: Index) -> None:
        kb = self.kb
        for base, offset in self.outs:
            kb.store(value, base, kb.add(kb.add(kb.mul(row, self.t.columns), column), offset), self.dtype)

    def _each_vector(self, panel: Index, visit: Callable[[Index, Index, int], None]) -> None:
        """(column, offset in the panel, lanes) of the vectors of a panel's row, the last ones at their exact width."""
        kb, t = self.kb, self.t
        first, last = kb.mul(panel, t.panel), t.units - 1
        whole = self.tail // t.lanes * t.lanes
        stop: Index = t.panel
        if self.tail:
            stop = kb.b.select(kb.compare("==", panel, last), kb.i64(whole), kb.i64(t.panel))
        with kb.loop(0, stop, t.lanes, name="vector") as at:
            visit(kb.add(first, at), at, t.lanes)
        if self.tail > whole:
            with kb.when(kb.compare("==", panel, last)):
                visit(last * t.panel + whole, whole, self.tail - whole)
