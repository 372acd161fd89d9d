"""Code for matrix products: the loops around the register tile, the copies of the factors, and the epilogue of each
tile.

Model, per batch and per block of row tiles: copy the left factor's rows where the tiling says so; then per panel: copy
the panel where the tiling says so; then per row tile: run the depth loop in registers, park the tile in scratch, and
walk it row by row through the epilogue program. The scratch tile stays in the first-level cache; it keeps the
epilogue's code out of the unrolled tile. Where the depth is walked in pieces, the sums of a group of panels are parked
there from piece to piece, all 0 at first; behind the last piece a tile walks through the epilogue.

In reduced precision rows are copied as words, and a step of the depth loop multiplies one word per row by a vector of
words (`arithmetic`):

- bf16: both products of a pair are added to an f32 sum. Without the CPU's own instruction the pair is taken apart into
  two f32 values by shifts, and the row's copy holds rounded f32 values: the same numbers, multiplied one by one.
- two bf16 parts: three such products.
- bytes: rows are unsigned, 0 of a row is its zero point. The sum of products is exact in 32 bits; what the zero point
  adds is known from the sum of the weights, and taken off before the two scales are put on.
- 16 bits in two bytes: two such sums, of high and of low bytes.
- in tiles (`tiles`): the CPU multiplies 16 rows by 16 columns of so many words at a time, and leaves the sums of all
  rows and columns of a register tile in scratch; scales are put on there.
- bytes as weights only: the column's scale is put on the finished sum.

Scratch: [tile, or those of a group of panels][left copy: rows x pitch][right panel: depth x panel][f32 row that is
being turned into integers].

Invariant: as of all tiles, the operations behind a result depend on the depth and the tile's shape only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llvmlite import ir

from superkernel.codegen.host import streaming
from superkernel.codegen.host.arithmetic import Operand, arithmetic_of, stored_zero_point
from superkernel.codegen.host.builder import I32, Index, KernelBuilder, register_type
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.gemm_core import Tile, Values, accumulate, as_result, load_tile, store_tile, zero
from superkernel.codegen.host.loops import each_group, split_index, strips
from superkernel.codegen.host.panels import copy_panel
from superkernel.codegen.host.program import ProgramEmitter, load_per_column
from superkernel.codegen.host.quantise import codes_of, put_codes
from superkernel.codegen.host.streaming import Panel
from superkernel.codegen.host.tile_product import TileProduct
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.scheduler.families.matmul_form import Factor, MatmulForm, form_of, view_of
from superkernel.scheduler.families.matmul_tiling import COPY, PACKED, ROWS, TILES, MatmulTiling, packed_batch_strides

Range = tuple[Index, Index]


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of a tile: `line` elements apart, their elements `depth` apart, from `origin` on. Row `first` of the
    product is the tile's first one; rows `skip` to `stop` of the tile are stored."""

    origin: ir.Value
    line: int
    depth: int
    first: Index
    skip: Index
    stop: Index


class MatmulEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: MatmulTiling) -> None:
        self.kb, self.body, self.t, self.form = kb, body, tiling, form_of(body)
        self.rows, self.row_tiles = kb.size("rows", self.form.rows), kb.size("row_tiles", tiling.row_tiles)
        self.block, self.group = kb.size("block", tiling.block), kb.size("group", tiling.group)
        self.tile = Tile(tiling.tile_rows, tiling.vectors, tiling.lanes, tiling.acc, tiling.phases)
        self.left_copy = kb.offset(kb.scratch, tiling.parked_bytes)
        self.right_copy = kb.offset(kb.scratch, tiling.parked_bytes + tiling.left_bytes)
        self.row = kb.offset(kb.scratch, tiling.scratch_bytes - 4 * tiling.staged) if tiling.staged else kb.scratch
        self.epilogue = ProgramEmitter(kb, body.epilogue)
        self.arithmetic = arithmetic_of(kb, tiling.format)
        self.arithmetic.signed = self.form.left.dtype is DType.I8
        self.tiles: TileProduct | None = None
        if tiling.format.tiled:
            panel, rows = tiling.words * tiling.panel * tiling.format.word_bytes, tiling.tile_rows * tiling.left_pitch
            passing = panel + rows * tiling.acc.itemsize > kb.cpu.l1_bytes
            self.tiles = TileProduct(kb, tiling.format, tiling.tile_rows, tiling.panel, passing=passing)

    # Loops ----------------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        """The whole function."""
        if self.tiles is None:
            self._batches()
            return
        self.tiles.registers.configure()
        self._batches()
        self.tiles.registers.release()

    def _batches(self) -> None:
        kb, t = self.kb, self.t
        whole: Range = (0, self.row_tiles)
        if t.axis == TILES:
            stop = kb.div(kb.add(kb.end, kb.sub(self.row_tiles, 1)), self.row_tiles)
            with each_group(kb, self.row_tiles, "panel") as (panel, low, high):
                self._at_once([0] * len(self.form.batch_dims), (low, high), panel, stop)
        elif t.bands > 1:
            count = kb.size("band_tiles", t.band_tiles)
            with each_group(kb, t.panels, "band") as (band, low, high):
                first = kb.mul(band, count)
                tiles = (first, kb.minimum(kb.add(first, count), self.row_tiles))
                self._batch([0] * len(self.form.batch_dims), tiles, (low, high))
        elif t.batch == 1:
            self._batch([0] * len(self.form.batch_dims), whole, (kb.begin, kb.end))
        else:
            with each_group(kb, t.per_batch, "batch") as (batch, low, high):
                self._batch(_split(kb, batch, self.form.batch_dims), whole, (low, high))

    def _batch(self, batch: list[Index], tiles: Range, units: Range) -> None:
        """Units of a batch: row tiles, or panels of some row tiles."""
        kb, t = self.kb, self.t
        panels = units
        if t.axis == ROWS:
            tiles, panels = units, (0, t.panels)
        with kb.loop(*tiles, step=self.block, name="block") as block:
            rows = (block, kb.minimum(kb.add(block, self.block), tiles[1]))
            if t.left == COPY:
                self._copy_left(batch, *rows)
            self._prepare(batch, *rows)
            if t.piece:
                with kb.loop(*panels, step=self.group, name="group") as group:
                    self._in_pieces(batch, rows, (group, kb.minimum(kb.add(group, self.group), panels[1])))
            else:
                with kb.loop(*panels, name="panel") as panel:
                    self._at_once(batch, rows, panel, panels[1])

    def _prepare(self, batch: list[Index], block: Index, block_end: Index) -> None:
        """What else the products of a block of row tiles need to be computed first."""

    def _at_once(self, batch: list[Index], rows: Range, panel: Index, stop: Index) -> None:
        """The row tiles of one panel, each over its whole depth."""
        kb, t = self.kb, self.t
        source = self._panel(batch, panel)
        source = streaming.with_next(kb, t, self.form, source, panel, stop)
        zeros = self._right_zero(batch, panel) if not source.copied else None
        with kb.loop(*rows, name="tile") as row_tile:
            part = streaming.part_of_next(kb, t, self.form, source, kb.sub(row_tile, rows[0]))
            lines = self._lines(batch, rows[0], row_tile)
            if self.tiles is not None:
                self._in_tiles(self.tiles, lines, part)
            else:
                store_tile(kb, self.tile, self._results(lines, part, zeros), kb.scratch, t.panel)
            self._finish_tile(batch, lines, panel, kb.scratch)

    def _in_tiles(self, tiles: TileProduct, lines: Lines, source: Panel) -> None:
        """The results of a tile, parked in scratch."""
        kb, t = self.kb, self.t
        tiles.start()
        tiles.add(lines.origin, lines.line * t.acc.itemsize, source.base, t.words)
        tiles.store(kb.scratch)
        if not (t.format.is_integral or t.format.scales_weights):
            return
        behind = kb.offset(source.base, t.words * t.panel * t.format.word_bytes)
        tile = replace(self.tile, rows=1, acc=DType.I32)
        with kb.loop(lines.skip, lines.stop, name="row") as row:
            sums = kb.at(kb.scratch, kb.mul(row, t.panel), DType.I32)
            results = load_tile(kb, tile, sums, t.panel)
            if t.format.is_integral:
                results = self._centred(results, behind)
            else:
                own = kb.at(lines.origin, kb.mul(row, lines.line), t.acc)
                results = [self._scaled(results, own, behind)]
            store_tile(kb, replace(tile, acc=t.acc), results, sums, t.panel)

    def _in_pieces(self, batch: list[Index], rows: Range, panels: Range) -> None:
        """The row tiles of a group of panels, piece of the depth after piece."""
        kb, t = self.kb, self.t
        tile = t.tile_bytes // t.acc.itemsize
        parked = kb.mul(kb.sub(panels[1], panels[0]), kb.mul(self.block, tile))
        with kb.loop(0, parked, t.lanes, name="clear") as at:
            kb.store(zero(t.acc, t.lanes), kb.scratch, at, t.acc)
        with kb.loop(0, t.depth, t.piece, name="piece") as first, kb.loop(*panels, name="panel") as panel:
            depth = kb.minimum(kb.sub(t.depth, first), t.piece)
            source = self._panel(batch, panel)
            source = replace(source, base=kb.offset(source.base, kb.mul(first, t.step_bytes(self.form))))
            source = streaming.with_next_piece(kb, t, self.form, source, first, (panel, *panels))
            with kb.loop(*rows, name="tile") as row_tile:
                index = kb.sub(row_tile, rows[0])
                part = streaming.part_of_next(kb, t, self.form, source, index)
                lines = self._lines(batch, rows[0], row_tile)
                here = replace(lines, origin=kb.at(lines.origin, kb.mul(first, lines.depth), t.acc))
                place = kb.add(kb.mul(kb.sub(panel, panels[0]), self.block), index)
                sums = kb.offset(kb.scratch, kb.mul(place, t.tile_bytes))
                results = self._results(here, part, None, depth, load_tile(kb, self.tile, sums, t.panel))
                store_tile(kb, self.tile, results, sums, t.panel)
                with kb.when(kb.compare(">=", kb.add(first, t.piece), t.depth)):
                    self._finish_tile(batch, lines, panel, sums)

    def _lines(self, batch: list[Index], block: Index, row_tile: Index) -> Lines:
        """Where a row tile finds its rows, and which of its results are new."""
        kb, t, form = self.kb, self.t, self.form
        first = kb.mul(row_tile, t.tile_rows)
        if t.left == COPY:
            at = kb.mul(kb.mul(kb.sub(row_tile, block), t.tile_rows), t.left_pitch)
            rows = kb.minimum(kb.sub(self.rows, first), t.tile_rows) if self._has_short_tile else t.tile_rows
            return Lines(kb.at(self.left_copy, at, t.acc), t.left_pitch, 1, first, 0, rows)
        skip: Index = 0
        if self._has_short_tile:
            start = kb.minimum(first, kb.sub(self.rows, t.tile_rows))
            skip, first = kb.sub(first, start), start
        at = kb.add(self._batch_offset(form.left, batch), kb.mul(first, form.left.line))
        origin = kb.at(kb.operands[form.left.operand], at, t.acc)
        return Lines(origin, form.left.line, form.left.depth, first, skip, t.tile_rows)

    @property
    def _has_short_tile(self) -> bool:
        """Whether the last row tile may have fewer rows than all others."""
        return not isinstance(self.rows, int) or self.rows % self.t.tile_rows > 0

    def _finish_tile(self, batch: list[Index], lines: Lines, panel: Index, tile: ir.Value) -> None:
        """The results parked at `tile` through the epilogue."""
        kb = self.kb
        with kb.loop(lines.skip, lines.stop, name="row") as row:
            coords = [*batch, *_split(kb, kb.add(lines.first, row), self.form.row_dims)]
            self._store_row(coords, row, panel, tile)

    def _results(
        self,
        lines: Lines,
        source: Panel,
        zeros: list[ir.Value] | None,
        steps: Index | None = None,
        start: list[Values] | None = None,
    ) -> list[Values]:
        """The depth loop of one tile, over all its steps or so many, from `start` on."""
        kb, t, number, arithmetic = self.kb, self.t, self.t.format, self.arithmetic
        origin, line, depth = lines.origin, lines.line, lines.depth
        sums = number.row_parts if number.scales_rows else 1  # of a result
        items = t.acc.itemsize // number.item.itemsize

        def left(index: int, k: Index) -> list[Operand]:
            row, part = divmod(index, sums)
            parts = [part] if sums > 1 else range(number.row_parts)
            first = kb.mul(k, number.step * depth)
            words = (arithmetic.row(origin, kb.add(first, items * (row * line + p * t.plane))) for p in parts)
            return [arithmetic.spread(word, t.lanes) for word in words]

        def dot(total: ir.Value, row: list[Operand], weights: list[Operand]) -> ir.Value:
            for i, j in number.products:
                total = arithmetic.multiply_add(total, row[i], weights[j])
            return total

        tile = replace(self.tile, rows=t.tile_rows * sums, acc=number.sums)
        ahead = streaming.prefetch(kb, t, source, t.step_bytes(self.form))
        right, count = self._right(source, zeros), t.words if steps is None else steps
        results = accumulate(kb, tile, count, left, right, ahead, dot, start=start)
        behind = kb.offset(source.base, t.words * t.panel * number.word_bytes)
        if number.is_integral:
            return self._centred(results, behind)
        if not number.scales_weights:
            return results
        return [
            self._scaled(results[row * sums : (row + 1) * sums], kb.at(origin, row * line, t.acc), behind)
            for row in range(t.tile_rows)
        ]

    def _centred(self, results: list[Values], behind: ir.Value) -> list[Values]:
        """Sums of bytes without what the rows' zero point adds."""
        kb, t, slot = self.kb, self.t, self.form.left_zero
        if slot is None and self.arithmetic.zero_is_nothing:
            return results
        dtype, own = self.form.left.dtype, None
        if slot is not None:
            view = view_of(self.body, slot)
            own = kb.load(kb.operands[view.operand], view.offset, dtype)
        zeros = kb.splat(self.arithmetic.met(stored_zero_point(kb, own, dtype)), t.lanes)
        added = [kb.b.mul(zeros, kb.load(behind, v * t.lanes, DType.I32, t.lanes)) for v in range(t.vectors)]
        return [[kb.b.sub(value, part) for value, part in zip(row, added, strict=True)] for row in results]

    def _scaled(self, sums: list[Values], row: ir.Value, behind: ir.Value) -> Values:
        """The sums of a row (of its high and of its low bytes) in f32: its zero point off, scales on."""
        kb, t = self.kb, self.t
        plane, byte = t.plane * len(sums), kb.const(8, DType.I32, t.lanes)
        row_scale = row_zero = None
        if t.format.scales_rows:
            row_scale = kb.splat(kb.load(row, plane, DType.F32), t.lanes)
            row_zero = kb.splat(kb.load(row, plane + 1, DType.I32), t.lanes)
        found = []
        for v in range(t.vectors):
            scale = kb.load(behind, v * t.lanes, DType.F32, t.lanes)
            values = [part[v] for part in sums]
            if row_zero is not None:
                total = kb.load(behind, t.panel + v * t.lanes, DType.I32, t.lanes)
                zeros = [row_zero]
                if len(sums) == 2:
                    zeros = [kb.b.lshr(row_zero, byte), kb.b.and_(row_zero, kb.const(255, DType.I32, t.lanes))]
                exact = (
                    kb.b.sub(s, kb.b.mul(self.arithmetic.met(z), total)) for s, z in zip(values, zeros, strict=True)
                )
                values = [kb.b.sitofp(value, scale.type) for value in exact]
            whole = values[0]
            if len(values) == 2:
                whole = kb.fma(values[0], kb.const(256.0, DType.F32, t.lanes), values[1])
            found.append(kb.b.fmul(whole, scale if row_scale is None else kb.b.fmul(scale, row_scale)))
        return found

    def _right(self, source: Panel, zeros: list[ir.Value] | None) -> Callable[[Index, int], list[Operand]]:
        """The depth loop's loader of right vectors, part by part."""
        kb, t, arithmetic, parts = self.kb, self.t, self.arithmetic, self.t.format.weight_parts

        def words(k: Index, v: int) -> list[Operand]:
            first = kb.mul(k, parts * t.panel)
            return [
                arithmetic.weights(source.base, kb.add(first, p * t.panel + v * t.lanes), t.lanes) for p in range(parts)
            ]

        dtype = t.acc if source.copied else self.form.right.dtype

        def converted(k: Index, v: int) -> list[Operand]:
            value = kb.load(source.base, kb.add(kb.mul(k, source.pitch), v * t.lanes), dtype, t.lanes)
            value = convert(kb, value, dtype, t.acc)
            return [[value if zeros is None else kb.b.sub(value, zeros[v])]]

        return words if t.format.is_reduced else converted

    # Right factor ---------------------------------------------------------------------------------------------------

    def _panel(self, batch: list[Index], panel: Index) -> Panel:
        """The panel in the form that the depth loop reads."""
        kb, t, form = self.kb, self.t, self.form
        right = form.right
        if t.right == PACKED:
            matrix = kb.element(0, batch, packed_batch_strides(form))
            at = kb.mul(kb.add(kb.mul(matrix, t.panels), panel), t.panel_bytes(form))
            return Panel(kb.offset(kb.operands[right.operand], at), t.panel, False)
        if t.right == COPY:
            self._copy_right(batch, panel)
            return Panel(self.right_copy, t.panel, True)
        at = kb.add(self._batch_offset(right, batch), kb.mul(panel, t.panel))
        base = kb.at(kb.operands[right.operand], at, right.dtype)
        if not t.tail_columns:
            return Panel(base, right.depth, False)
        is_last = kb.compare("==", panel, t.panels - 1)
        with kb.when(is_last):
            self._copy_right(batch, t.panels - 1)
        pitch = kb.b.select(is_last, kb.i64(t.panel), kb.i64(right.depth))
        return Panel(kb.b.select(is_last, self.right_copy, base), pitch, False)

    def _copy_right(self, batch: list[Index], panel: Index) -> None:
        kb, t, form = self.kb, self.t, self.form
        right = form.right
        first = kb.mul(panel, t.panel)
        if right.program is not None:
            self._copy_right_program(right.program, batch, panel)
            return
        base = kb.at(kb.operands[right.operand], self._batch_offset(right, batch), right.dtype)
        zeros = self._right_zero(batch, panel)
        copy_panel(kb, self.tile, base, right, form.depth, form.columns, first, self.right_copy, zeros)

    def _copy_right_program(self, program: PointwiseProgram, batch: list[Index], panel: Index) -> None:
        """The panel out of a prologue; lanes beyond the last column are zero."""
        kb, t, form = self.kb, self.t, self.form
        evaluator = ProgramEmitter(kb, program)
        axis = _line_axis(form.right)

        def vector(k: Index, column: Index, to: Index, lanes: int) -> None:
            coords = _slot_coords(form.right, batch, column, k)
            value = convert(kb, evaluator.eval(coords, lanes, axis=axis)[0], form.right.dtype, t.acc)
            kb.store(value, self.right_copy, kb.add(kb.mul(k, t.panel), to), t.acc)

        with kb.loop(0, form.depth, name="k") as k, self._vectors_of_row(panel) as (column, to, lanes):
            vector(k, column, to, lanes)

        def tail(column: Index, to: Index, lanes: int) -> None:
            with kb.loop(0, form.depth, name="k") as k:
                vector(k, column, to, lanes)

        self._tail_of_row(panel, tail)

    def _right_zero(self, batch: list[Index], panel: Index) -> list[ir.Value] | None:
        """The zero points of a panel's columns as accumulator vectors, None where there are none."""
        kb, t, form = self.kb, self.t, self.form
        if form.right_zero is None:
            return None
        view = view_of(self.body, form.right_zero)
        dtype = self.body.operands[view.operand].type.dtype
        source = kb.operands[view.operand]
        found = []
        for v in range(t.vectors):
            if max(view.shape, default=1) == 1:
                raw = kb.splat(kb.load(source, view.offset, dtype), t.lanes)
            else:
                raw = ir.Constant(register_type(dtype, t.lanes), ir.Undefined)
                for lane in range(t.lanes):
                    column = kb.minimum(kb.add(kb.mul(panel, t.panel), v * t.lanes + lane), form.columns - 1)
                    one = kb.load(source, _zero_at(kb, form.right, view, batch, column), dtype)
                    raw = kb.b.insert_element(raw, one, ir.Constant(I32, lane)) if t.lanes > 1 else one
            found.append(convert(kb, raw, dtype, t.acc))
        return found

    # Left factor ----------------------------------------------------------------------------------------------------

    def _copy_left(self, batch: list[Index], block: Index, block_end: Index) -> None:
        """The rows of a block into scratch, as accumulators, zero points subtracted."""
        kb, t, form = self.kb, self.t, self.form
        first = kb.mul(block, t.tile_rows)
        last = kb.minimum(kb.mul(block_end, t.tile_rows), self.rows)
        program = form.left.program
        evaluator = ProgramEmitter(kb, program) if program is not None else None
        axis = _depth_axis(form.left)
        with kb.loop(first, last, name="row") as row:
            to = kb.mul(kb.sub(row, first), t.left_pitch)
            outer = [*batch, *_split(kb, row, form.row_dims)]
            at = kb.add(self._batch_offset(form.left, batch), kb.mul(row, form.left.line))
            zero = None if t.format.is_integral else self._left_zero(outer)

            def part(k: Index, lanes: int) -> None:
                if evaluator is not None:
                    value = evaluator.eval(_left_coords(form, outer, k), lanes, axis=axis, store=True)[0]
                else:
                    source = kb.operands[form.left.operand]
                    index = kb.add(at, kb.mul(k, form.left.depth))
                    value = kb.load(source, index, form.left.dtype, lanes, form.left.depth)
                if not t.format.is_integral:
                    value = convert(kb, value, form.left.dtype, t.acc)
                if zero is not None:
                    value = kb.b.sub(value, kb.splat(zero, lanes))
                self._keep(value, to, k)

            raw = t.format.is_integral and evaluator is None
            strips(kb, form.depth, kb.cpu.vector_bytes if raw else t.lanes, part)
            self._finish_row(to)

    def _keep(self, value: ir.Value, row: Index, k: Index) -> None:
        """Elements of the left factor from depth `k` on into its copy, whose row begins at `row`. Of two parts the low
        one of an infinity or NaN is 0, the high one says it all."""
        kb, t = self.kb, self.t
        if t.staged:
            kb.store(value, self.row, k, DType.F32)
            return
        if not t.format.copies_rows:
            kb.store(value, self.left_copy, kb.add(row, k), t.acc)
            return
        at = kb.at(self.left_copy, row, t.acc)
        kept = self.arithmetic.store(value, at, k)
        if t.format.row_parts > 1:
            rest = kb.b.fsub(value, kept)
            rest = kb.b.select(kb.b.fcmp_ordered("ord", rest, rest), rest, ir.Constant(rest.type, None))
            self.arithmetic.store(rest, kb.at(at, t.plane, t.acc), k)

    def _finish_row(self, row: Index) -> None:
        """What is to be done behind the last element of a row of the copy."""
        t = self.t
        if t.staged:
            self._quantise_row(self.kb.at(self.left_copy, row, DType.F32))
        elif not t.format.is_integral:  # bytes may be any: their weights are 0
            gap = t.words * t.format.step - t.depth
            strips(self.kb, gap, t.lanes, lambda k, n: self._keep(zero(DType.F32, n), row, self.kb.add(k, t.depth)))

    def _quantise_row(self, row: ir.Value) -> None:
        """The row in `self.row` as unsigned bytes: 0 is always one of the numbers, so that padding adds nothing."""
        kb, t = self.kb, self.t

        def clear(at: Index, lanes: int) -> None:
            kb.store(zero(DType.F32, lanes), self.row, kb.add(at, t.depth), DType.F32)

        strips(kb, t.staged - t.depth, t.lanes, clear)
        codes = codes_of(kb, self.row, t.staged, t.lanes, 256**t.format.row_parts - 1)
        planes = [kb.offset(row, part * t.plane * 4) for part in range(t.format.row_parts)]
        put_codes(kb, self.row, -(-t.words * 4 // t.lanes) * t.lanes, t.lanes, codes, planes)
        kb.store(codes.scale, row, t.plane * t.format.row_parts, DType.F32)
        kb.store(codes.zero_point, row, t.plane * t.format.row_parts + 1, DType.I32)

    def _left_zero(self, coords: list[Index]) -> ir.Value | None:
        """The zero point of a row; `coords` are the batch coordinates and the row."""
        kb, form = self.kb, self.form
        if form.left_zero is None:
            return None
        view = view_of(self.body, form.left_zero)
        dtype = self.body.operands[view.operand].type.dtype
        row = coords[-1] if form.row_dims else 0
        batch = coords[:-1] if form.row_dims else coords
        at = _zero_at(kb, form.left, view, batch, row)
        return convert(kb, kb.load(kb.operands[view.operand], at, dtype), dtype, self.t.acc)

    def _batch_offset(self, factor: Factor, batch: list[Index]) -> Index:
        kb = self.kb
        return kb.element(factor.offset, batch, factor.batch)

    # Epilogue -------------------------------------------------------------------------------------------------------

    def _store_row(self, coords: list[Index], row: Index, panel: Index, tile: ir.Value) -> None:
        """One row of a parked tile through the epilogue."""
        kb, t = self.kb, self.t
        dtype = self.body.anchor_outputs[0].dtype
        where = list(coords)
        if self.form.column_axis >= 0:
            where.insert(self.form.column_axis, 0)
        program = self.epilogue.row(where, max(self.form.column_axis, -1))

        def store(column: Index, at: Index, lanes: int) -> None:
            value = kb.load(tile, kb.add(kb.mul(row, t.panel), at), t.acc, lanes)
            program.eval(column, lanes, [self._with_bias(as_result(kb, value, t.acc, dtype), column, lanes)])

        with self._vectors_of_row(panel) as (column, at, lanes):
            store(column, at, lanes)
        self._tail_of_row(panel, store)

    def _with_bias(self, value: ir.Value, column: Index, lanes: int) -> ir.Value:
        """Plus the term of each column, where there is one."""
        if self.form.bias is None:
            return value
        return self.kb.b.fadd(value, load_per_column(self.kb, self.body, self.form.bias, column, lanes))

    @contextmanager
    def _vectors_of_row(self, panel: Index) -> Iterator[tuple[Index, Index, int]]:
        """Loop over the full vectors of a panel's row: (column, offset in the panel, lanes)."""
        kb, t = self.kb, self.t
        first = kb.mul(panel, t.panel)
        stop: Index = t.panel
        if t.tail_columns:
            whole = t.tail_columns // t.lanes * t.lanes
            if t.panels == 1:
                stop = whole
            else:
                stop = kb.b.select(kb.compare("==", panel, t.panels - 1), kb.i64(whole), kb.i64(t.panel))
        with kb.loop(0, stop, t.lanes, name="vector") as at:
            yield kb.add(first, at), at, t.lanes

    def _tail_of_row(self, panel: Index, store: Callable[[Index, Index, int], None]) -> None:
        """The last columns that fill no vector, at their exact width."""
        kb, t = self.kb, self.t
        rest = t.tail_columns % t.lanes
        if rest == 0:
            return
        whole = t.tail_columns - rest
        last = t.panels - 1
        if t.panels == 1:
            store(whole, whole, rest)
            return
        with kb.when(kb.compare("==", panel, last)):
            store(last * t.panel + whole, whole, rest)


def _split(kb: KernelBuilder, index: Index, dims: tuple[int, ...]) -> list[Index]:
    """Coordinates of a row-major linear index, 0 where an extent is 1."""
    return [0 if extent == 1 else at for at, extent in zip(split_index(kb, index, dims), dims, strict=True)]


def _slot_coords(factor: Factor, outer: list[Index], line: Index, depth: Index) -> list[Index]:
    """Coordinates in the factor's input slot; `outer` are the output's batch coordinates."""
    if len(factor.shape) == 1:
        return [depth]
    own = [0 if d == 1 else c for d, c in zip(factor.shape[-3::-1], reversed(outer), strict=False)][::-1]
    return [*own, depth, line] if factor.transposed == (factor.slot == 0) else [*own, line, depth]


def _zero_at(kb: KernelBuilder, factor: Factor, view: View, batch: list[Index], line: Index) -> Index:
    """Element of a zero point that belongs to a row or column: one value, one per line, or one per batch and line."""
    at: Index = view.offset
    rank = len(view.shape)
    if rank == 1:
        return kb.add(at, kb.mul(line, view.strides[0])) if view.shape[0] > 1 else at
    if rank == 0:
        return at
    axis = rank - 2 if factor.slot == 0 else rank - 1
    if view.shape[axis] > 1:
        at = kb.add(at, kb.mul(line, view.strides[axis]))
    for extent, stride, coordinate in zip(view.shape[-3::-1], view.strides[-3::-1], reversed(batch), strict=False):
        if extent > 1:
            at = kb.add(at, kb.mul(coordinate, stride))
    return at


def _left_coords(form: MatmulForm, outer: list[Index], depth: Index) -> list[Index]:
    """Slot coordinates of the left factor; `outer` ends with the row where the slot has one."""
    if len(form.left.shape) == 1:
        return [depth]
    return _slot_coords(form.left, outer[:-1], outer[-1], depth)


def _depth_axis(factor: Factor) -> int:
    return -2 if len(factor.shape) > 1 and factor.transposed == (factor.slot == 0) else -1


def _line_axis(factor: Factor) -> int:
    return -1 if factor.transposed == (factor.slot == 0) else -2


def emit(kb: KernelBuilder, body: Body, tiling: MatmulTiling) -> None:
    """Emit the kernel of a matrix product."""
    MatmulEmitter(kb, body, tiling).emit()
