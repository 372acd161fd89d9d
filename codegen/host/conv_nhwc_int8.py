"""Code for convolutions in int8 over images that lie channels last.

Model: see scheduler/families/conv_nhwc_int8. The loops are those of `conv_nhwc`; a register tile holds the i32 sums of
one row of the window, which begin as what the row's zero point adds, taken off. At the row's end they are scaled and
added to the sums in f32, which lie where the finished tile is parked; windows of one row need none of that.

Scratch: [parked register tile][patch of bytes][f32 row that is being turned into bytes].
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from superkernel.codegen.host.arithmetic import arithmetic_of, multiply
from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.conv_nhwc import NhwcEmitter
from superkernel.codegen.host.conv_nhwc_reduced import InterleavingCopier
from superkernel.codegen.host.gemm_core import Tile, Values, store_tile, strips, zero
from superkernel.codegen.host.patch_nhwc import NhwcPatchCopier
from superkernel.codegen.host.quantise import codes_of, put_codes
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.families.conv_nhwc import Walk
from superkernel.scheduler.families.conv_nhwc_int8 import HEAD_BYTES, Int8NhwcTiling
from superkernel.scheduler.families.conv_nhwc_reduced import runs_of
from superkernel.scheduler.tiling import Tiling

_UNROLLED_ROWS = 3  # of a window, written out
_BLANK_BYTES = 64  # of padding, stored at once


class BytePatchCopier(InterleavingCopier):
    """Turns input rows into bytes. `stage`: where a row is put together that is not in one piece."""

    def __init__(self, kb: KernelBuilder, form: ConvForm, walk: Walk, wide: int, stage: ir.Value | None) -> None:
        super().__init__(kb, form, walk, wide)
        self.stage = stage

    def _inside(
        self, to: ir.Value, at: Index, source: tuple[Index, Index, Index, Index], ends: tuple[Index, Index, Index]
    ) -> None:
        kb, channels = self.kb, self.form.channels
        low, stop, wide = ends
        assert isinstance(low, int)
        assert isinstance(stop, int)
        assert isinstance(wide, int)
        row = kb.offset(to, at)
        values = self._row(source, low, stop)
        count = (stop - low) * channels
        codes = codes_of(kb, values, count, self.lanes)
        kb.store(codes.scale, row, 0, DType.F32)
        kb.store(codes.zero_point, row, 1, DType.I32)
        data = kb.offset(row, HEAD_BYTES)
        put_codes(kb, values, count, self.lanes, codes, [kb.offset(data, low * channels)])
        byte = kb.b.trunc(codes.zero_point, ir.IntType(8))
        for first, last in ((0, low), (stop, wide)):
            here = kb.offset(data, first * channels)
            strips(
                kb,
                (last - first) * channels,
                _BLANK_BYTES,
                lambda i, n, here=here: kb.store(kb.splat(byte, n), here, i, DType.I8),  # type: ignore[misc]
            )

    def _row(self, source: tuple[Index, Index, Index, Index], low: int, stop: int) -> ir.Value:
        """Where columns [low, stop) of an input row are, channels inside."""
        kb, form = self.kb, self.form
        image, channel, line, left = source
        if self.stage is not None:
            self._line(self.stage, 0, image, channel, line, left, low, stop)
            return kb.at(self.stage, low * form.channels, DType.F32)
        s = form.x_strides
        at = kb.add(kb.add(form.x_offset, kb.mul(image, s[0])), kb.mul(channel, s[1]))
        at = kb.add(kb.add(at, kb.mul(line, s[2])), kb.mul(kb.add(left, low), s[3]))
        return kb.at(kb.operands[form.operand], at, DType.F32)

    def _outside(self, to: ir.Value, at: Index, wide: Index) -> None:
        """Whatever its bytes are: they count nothing."""
        self.kb.store(self.kb.const(0.0, DType.F32), self.kb.offset(to, at), 0, DType.F32)
        self.kb.store(self.kb.const(0, DType.I32), self.kb.offset(to, at), 1, DType.I32)


class Int8NhwcEmitter(NhwcEmitter):
    """Writes the kernel of one body and tiling in int8."""

    t: Int8NhwcTiling
    item = DType.I8

    def __init__(self, kb: KernelBuilder, body: Body, tiling: Int8NhwcTiling) -> None:
        self.stage = None
        if tiling.staged:
            self.stage = kb.offset(kb.scratch, tiling.tile_bytes + tiling.patch_bytes)
        super().__init__(kb, body, tiling)
        self.lines_in_row = False  # one line

    def _walk(self, columns: int) -> Walk:
        return Walk(self.t.row_bytes, self.form.channels, 1)

    def _copier(self, wide: int) -> NhwcPatchCopier:
        return BytePatchCopier(self.kb, self.form, self.walk, wide, self.stage)

    def _panel(
        self, source: ir.Value, image: Index, group: Index, lines: tuple[Index, Index], panel: Index, width: int
    ) -> None:
        kb, t, form = self.kb, self.t, self.form
        weights, channel = self._start_of_panel(group, panel)
        vectors = -(-width // t.lanes)
        whole, rest = divmod(form.out_width, t.positions)
        step = form.channels * form.strides[1]

        def tile(positions: int, head: ir.Value, row: Index, column: Index) -> None:
            shape = Tile(positions, vectors, t.lanes, DType.F32)
            results = self._sums(shape, head, kb.mul(column, step), weights)
            place = (row, column) if form.spatial == 2 else (0, kb.add(kb.mul(row, form.out_width), column))
            self._store(shape, results, self.stores.coords(image, *place), channel, width)

        first, last = lines
        with kb.loop(first, last, name="row") as row:
            head = kb.offset(source, kb.mul(kb.sub(row, first), self.walk.row * form.strides[0]))
            with kb.loop(0, whole, name="tile") as number:
                tile(t.positions, head, row, kb.mul(number, t.positions))
            if rest:
                tile(rest, head, row, whole * t.positions)

    def _sums(self, tile: Tile, head: ir.Value, first: Index, weights: ir.Value) -> list[Values]:
        """A register tile whose first input is byte `first` of the patch rows from `head` on."""
        kb, t, form = self.kb, self.t, self.form
        height = form.kernel[0]
        behind = kb.at(weights, t.steps(form) * t.tile_rows, DType.I32)
        per_row = t.steps(form) // height * t.tile_rows

        def scaled(line: Index) -> list[list[ir.Value]]:
            """Sums over one row of the window, in f32, and the row's scale in all lanes."""
            row = kb.offset(head, kb.mul(line, self.walk.row * form.dilations[0]))
            sums = kb.at(behind, kb.mul(line, t.tile_rows), DType.I32)
            zero_point = kb.splat(kb.b.neg(kb.load(row, 1, DType.I32)), tile.lanes)
            begin = [
                kb.b.mul(zero_point, kb.load(sums, v * tile.lanes, DType.I32, tile.lanes)) for v in range(tile.vectors)
            ]
            data = kb.offset(kb.offset(row, HEAD_BYTES), first)
            found = self._row_sums(tile, data, kb.at(weights, kb.mul(line, per_row), DType.I32), begin)
            scale = kb.splat(kb.load(row, 0, DType.F32), tile.lanes)
            return [[kb.b.sitofp(value, scale.type) for value in found], [scale]]

        size = tile.rows * tile.vectors
        places = [r * tile.columns + v * tile.lanes for r in range(tile.rows) for v in range(tile.vectors)]
        if height <= _UNROLLED_ROWS:
            flat: Values = []
            for line in range(height):
                values, (scale,) = scaled(line)
                if line:
                    flat = [kb.load(kb.scratch, at, DType.F32, tile.lanes) for at in places]
                flat = [
                    kb.fma(value, scale, flat[i]) if flat else kb.b.fmul(value, scale) for i, value in enumerate(values)
                ]
                if line < height - 1:
                    for value, at in zip(flat, places, strict=True):
                        kb.store(value, kb.scratch, at, DType.F32)
        else:
            nothing = [[zero(DType.F32, tile.lanes)] * tile.vectors] * tile.rows
            store_tile(kb, tile, nothing, kb.scratch, tile.columns)
            with kb.loop(0, height, name="line") as line:
                values, (scale,) = scaled(line)
                for value, at in zip(values, places, strict=True):
                    total = kb.load(kb.scratch, at, DType.F32, tile.lanes)
                    kb.store(kb.fma(value, scale, total), kb.scratch, at, DType.F32)
            flat = [kb.load(kb.scratch, at, DType.F32, tile.lanes) for at in places]
        scales = kb.at(behind, height * t.tile_rows, DType.F32)
        own = [kb.load(scales, v * tile.lanes, DType.F32, tile.lanes) for v in range(tile.vectors)]
        flat = [kb.b.fmul(flat[i], own[i % tile.vectors]) for i in range(size)]
        return [flat[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]

    def _row_sums(self, tile: Tile, data: ir.Value, weights: ir.Value, begin: Sequence[ir.Value]) -> Values:
        """i32 sums over one row of the window, on top of `begin` (per vector)."""
        kb, t, form = self.kb, self.t, self.form
        count, run = runs_of(form)
        nest = [(count // form.kernel[0], form.channels * form.dilations[1])] if count > form.kernel[0] else []
        position = form.channels * form.strides[1]
        arithmetic = arithmetic_of(kb, t.format)
        rows = multiply(arithmetic, tile, nest, (run, 1), position, data, weights, t.tile_rows, begin)
        return [value for row in rows for value in row]


def emit_conv_nhwc_int8(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
    """Emit a convolution in int8 over channels-last images."""
    if not isinstance(tiling, Int8NhwcTiling):
        raise InternalError("wrong tiling for a convolution in int8", found=type(tiling).__name__)
    Int8NhwcEmitter(kb, body, tiling).emit()


emit = emit_conv_nhwc_int8
