"""Code for direct convolution: patches, register tiles over output channels x positions, epilogue row by row.

Model, per block of output positions (and group): copy the patch, then per tile of output channels: for every vector
tile of the block's span run over input channels and taps with the sums in registers, park the results in scratch as
[channel][position with the patch's pitch], and send each output row through the epilogue. Positions of the pitch that
are no output are computed and dropped.

Scratch: [accumulated tile][patch][slack of one vector tile].
"""

from __future__ import annotations

from dataclasses import replace

from llvmlite import ir

from superkernel.codegen.host.builder import I32, I64, Index, KernelBuilder
from superkernel.codegen.host.gemm_core import Tile, Values, fold, multiply_add, store_tile, zero
from superkernel.codegen.host.loops import each_group, strips
from superkernel.codegen.host.patches import PatchCopier
from superkernel.codegen.host.program import ProgramEmitter, load_bias
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.conv import PIXELS, ConvTiling
from superkernel.scheduler.families.conv_form import Patch, conv_form, patch_of
from superkernel.scheduler.families.matmul_form import view_of


class ConvEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: ConvTiling) -> None:
        self.kb, self.body, self.t, self.form = kb, body, tiling, conv_form(body)
        self.patch: Patch = patch_of(self.form, tiling.rows, tiling.columns)
        self.patch_at = kb.offset(kb.scratch, tiling.tile_bytes)
        self.epilogue = ProgramEmitter(kb, self.form.epilogue)
        weights = view_of(body, 1)
        dtype = body.operands[weights.operand].type.dtype
        self.w_dtype = DType.F32 if tiling.packed else dtype
        self.weights = kb.at(kb.operands[weights.operand], 0 if tiling.packed else weights.offset, self.w_dtype)
        self.copier = PatchCopier(kb, self.form, self.patch, moving=tiling.column_blocks > 1)
        self.table: ir.Value | None = None

    def emit(self) -> None:
        """The whole function."""
        kb, t = self.kb, self.t
        if t.axis == PIXELS:
            with kb.loop(kb.begin, kb.end, name="unit") as unit:
                image, block = kb.div(unit, t.blocks), kb.rem(unit, t.blocks)
                with kb.loop(0, t.groups, name="group") as group:
                    self._block(image, group, block, 0, t.channel_tiles)
            return
        with (
            each_group(kb, t.channel_tiles, "group") as (group, low, high),
            kb.loop(0, t.blocks, name="block") as block,
        ):
            self._block(kb.div(group, t.groups), kb.rem(group, t.groups), block, low, high)

    def _block(self, image: Index, group: Index, block: Index, low: Index, high: Index) -> None:
        """All work on one block of positions for channel tiles [low, high) of a group."""
        kb, t, form = self.kb, self.t, self.form
        row0 = kb.mul(kb.div(block, t.column_blocks), t.rows)
        column0: Index = 0
        if t.column_blocks > 1:
            column0 = kb.minimum(kb.mul(kb.rem(block, t.column_blocks), t.columns), form.out_width - t.columns)
        first = kb.mul(group, form.channels)
        if t.in_place:
            s = form.x_strides
            at = kb.add(kb.add(form.x_offset, kb.mul(image, s[0])), kb.add(kb.mul(first, s[1]), column0))
            source, channel = kb.at(kb.operands[form.operand], at, DType.F32), s[1]
        else:
            self.copier.copy(self.patch_at, image, first, form.channels, row0, column0)
            source, channel = self.patch_at, self.patch.channel
        size = form.channels * form.taps * t.tile_rows
        with kb.loop(low, high, name="channels") as tile:
            index = kb.mul(kb.add(kb.mul(group, t.channel_tiles), tile), size)
            self._accumulate(source, channel, kb.at(self.weights, index, self.w_dtype))
            out = kb.add(kb.mul(group, form.out_channels), kb.mul(tile, t.tile_rows))
            rows: Index = t.tile_rows
            if form.out_channels % t.tile_rows:
                rows = kb.minimum(kb.sub(form.out_channels, kb.mul(tile, t.tile_rows)), t.tile_rows)
            with kb.loop(0, rows, name="channel") as row:
                self._store_channel(image, kb.add(out, row), row, row0, block)

    # Sums -----------------------------------------------------------------------------------------------------------

    def _accumulate(self, source: ir.Value, channel: int, weights: ir.Value) -> None:
        """All positions of the block for one tile of output channels, parked in scratch."""
        kb, t = self.kb, self.t
        vectors = t.pitch // t.lanes
        whole, rest = vectors // t.vectors, vectors % t.vectors
        tile = Tile(t.tile_rows, t.vectors, t.lanes, DType.F32)
        with kb.loop(0, whole, name="tile") as index:
            at = kb.mul(index, tile.columns)
            self._tile(tile, source, channel, weights, kb.minimum(at, t.span - tile.columns) if t.in_place else at)
        if rest:
            tail = replace(tile, vectors=rest)
            at_tail = whole * tile.columns
            self._tile(tail, source, channel, weights, min(at_tail, t.span - tail.columns) if t.in_place else at_tail)

    def _tile(self, tile: Tile, source: ir.Value, channel: int, weights: ir.Value, at: Index) -> None:
        kb, form = self.kb, self.form
        start = kb.at(source, at, DType.F32)
        per_channel = form.taps * tile.rows
        state = [zero(DType.F32, tile.lanes)] * (tile.rows * tile.vectors)

        def step(x: ir.Value, w: ir.Value, values: Values) -> Values:
            vectors = [kb.load(x, v * tile.lanes, DType.F32, tile.lanes) for v in range(tile.vectors)]
            for row in range(tile.rows):
                weight = kb.splat(kb.load(w, row, self.w_dtype), tile.lanes)
                for v, vector in enumerate(vectors):
                    i = row * tile.vectors + v
                    values[i] = multiply_add(kb, weight, vector, values[i], DType.F32)
            return values

        # Taps are walked by a table of offsets: as fast as unrolled code, which would be taps times as long.
        def one_channel(c: Index, values: Values) -> Values:
            x = kb.at(start, kb.mul(c, channel), DType.F32)
            w = kb.at(weights, kb.mul(c, per_channel), self.w_dtype)
            if form.taps == 1:
                return step(x, w, values)

            def one_tap(tap: Index, inner: Values) -> Values:
                address = kb.at(self._offsets(), tap, DType.I32)
                offset = kb.b.sext(kb.b.load(address, typ=I32, align=4), I64)
                return step(kb.at(x, offset, DType.F32), kb.at(w, kb.mul(tap, tile.rows), self.w_dtype), inner)

            return fold(kb, 0, form.taps, 1, values, one_tap)

        flat = fold(kb, 0, form.channels, 1, state, one_channel)
        results = tile.rows_of(flat)
        store_tile(kb, tile, results, kb.at(kb.scratch, at, DType.F32), self.t.pitch)

    def _offsets(self) -> ir.Value:
        """The table of tap offsets as a constant of the module."""
        if self.table is None:
            self.table = self.kb.table("taps", self.patch.offsets, DType.I32)
        return self.table

    # Epilogue -------------------------------------------------------------------------------------------------------

    def _store_channel(self, image: Index, channel: Index, row: Index, row0: Index, block: Index) -> None:
        """One output channel of the block: bias, epilogue, stores."""
        kb, t, form = self.kb, self.t, self.form
        base = kb.mul(row, t.pitch)
        bias = load_bias(kb, self.body, channel)
        last = form.out_width - (t.column_blocks - 1) * t.columns  # columns of the last block
        rows: Index = t.rows
        if form.out_height % t.rows:
            rows = kb.minimum(kb.sub(form.out_height, row0), t.rows)
        with kb.loop(0, rows, name="out_row") as r:
            coords = [image, channel, kb.add(row0, r), 0] if form.spatial == 2 else [image, channel, 0]
            program = self.epilogue.row(coords)

            def segment(column: Index, skip: int, width: int, r: Index = r) -> None:
                start = kb.add(kb.add(base, kb.mul(r, self.patch.pitch)), skip)

                def part(at: Index, lanes: int) -> None:
                    value = kb.load(kb.scratch, kb.add(start, at), DType.F32, lanes)
                    if bias is not None:
                        value = kb.b.fadd(value, kb.splat(bias, lanes))
                    program.eval(kb.add(column, at), lanes, [value])

                strips(kb, width, t.lanes, part)

            if t.column_blocks == 1:
                segment(0, 0, t.columns)
            elif last == t.columns:
                segment(kb.mul(kb.rem(block, t.column_blocks), t.columns), 0, t.columns)
            else:
                index = kb.rem(block, t.column_blocks)
                is_last = kb.compare("==", index, t.column_blocks - 1)
                with kb.b.if_else(is_last) as (then, otherwise):
                    with then:
                        segment(form.out_width - last, t.columns - last, last)
                    with otherwise:
                        segment(kb.mul(index, t.columns), 0, t.columns)


def emit(kb: KernelBuilder, body: Body, tiling: ConvTiling) -> None:
    """Emit a direct convolution."""
    ConvEmitter(kb, body, tiling).emit()
