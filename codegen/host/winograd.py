"""Code for Winograd convolution: transform of inputs, products, transform of outputs.

Model: see scheduler/families/winograd. All three stages work on vectors of channels, which lie side by side everywhere.
In reduced precision transformed inputs are rounded where they are stored, once for all filters.

Scratch: [outputs of one square][transformed inputs: t * t planes of square x channel][products: t * t planes of
square x panel]; the padded patch lies where the products come later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fractions import Fraction

from llvmlite import ir

from superkernel.codegen.host.arithmetic import Ahead, Arithmetic, arithmetic_of, multiply
from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.channel_stores import ChannelStores
from superkernel.codegen.host.gemm_core import Tile, Values, store_tile
from superkernel.codegen.host.loops import band_of, each_group, strips
from superkernel.codegen.host.patch_nhwc import NhwcPatchCopier
from superkernel.core.dtypes import DType
from superkernel.core.formats import F32
from superkernel.ir.body import Body
from superkernel.scheduler.families.conv import PIXELS
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.matmul_form import view_of
from superkernel.scheduler.families.nhwc_form import Walk
from superkernel.scheduler.families.winograd import POINTS, WinogradTiling, even_polynomial


class WinogradEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: WinogradTiling) -> None:
        self.kb, self.t, self.form = kb, tiling, conv_form(body)
        self.weights = kb.operands[view_of(body, 1).operand]
        self.stores = ChannelStores(kb, body, self.form)
        self.stores.inline &= tiling.m == 2  # code for 16 outputs takes longer to compile than it gains
        t, self.arithmetic, self.item = tiling, arithmetic_of(kb, tiling.format), tiling.format.item
        planes = t.side * t.side
        self.inputs = kb.offset(kb.scratch, 4 * t.parked)
        self.products = kb.offset(self.inputs, t.item_bytes * planes * t.input_plane)
        wide = t.square_columns * t.m + 2
        self.walk = Walk(wide * self.form.channels, self.form.channels, 1)
        self.copier = NhwcPatchCopier(Arithmetic(kb, F32), self.form, self.walk, wide)

    def emit(self) -> None:
        """The whole function."""
        kb, t = self.kb, self.t
        per = t.blocks if t.axis == PIXELS else t.channel_tiles
        with each_group(kb, per, "image") as (group, low, high):
            if t.axis == PIXELS:
                self._lines(group, (low, high), (0, t.channel_tiles))
            else:
                image, lines = band_of(kb, t, group)
                self._lines(image, lines, (low, high))

    def _lines(self, image: Index, lines: tuple[Index, Index], panels: tuple[Index, Index]) -> None:
        kb, t = self.kb, self.t
        short = self.form.out_channels % t.tile_rows
        full = t.channel_tiles - (short != 0)
        with kb.loop(*lines, t.lines, name="lines") as line:
            count = kb.sub(kb.minimum(kb.add(line, t.lines), lines[1]), line)
            rows = kb.mul(count, t.rows)  # lines are whole: what lies below the image is zero and not stored
            self.copier.copy(self.products, image, 0, (kb.mul(line, t.rows), rows), (0, t.square_columns * t.m))
            self._transform_inputs(kb.mul(count, t.square_rows))
            with kb.loop(panels[0], kb.minimum(panels[1], full), name="panel") as panel:
                self._panel(image, line, count, panel, t.tile_rows)
            if short:
                with kb.when(kb.b.and_(kb.compare("<=", panels[0], full), kb.compare(">", panels[1], full))):
                    self._panel(image, line, count, full, short)

    def _transform_inputs(self, square_rows: Index) -> None:
        """B' D B of every square, for every vector of channels."""
        kb, t, walk = self.kb, self.t, self.walk
        with (
            kb.loop(0, square_rows, name="square_row") as row,
            kb.loop(0, t.square_columns, name="square_column") as column,
        ):
            corner = kb.add(kb.mul(row, t.m * walk.row), kb.mul(column, t.m * walk.column))
            square = kb.add(kb.mul(row, t.square_columns), column)
            to = kb.mul(square, t.channels)

            def part(channel: Index, lanes: int, corner: Index = corner, to: Index = to) -> None:
                source = kb.at(self.products, kb.add(corner, channel), DType.F32)
                target = kb.at(self.inputs, kb.add(to, channel), self.item)
                columns = []
                for j in range(t.side):
                    at = [i * walk.row + j * walk.column for i in range(t.side)]
                    columns.append(input_transform(kb, t.m, [kb.load(source, a, DType.F32, lanes) for a in at]))
                for i in range(t.side):
                    for j, value in enumerate(input_transform(kb, t.m, [c[i] for c in columns])):
                        self.arithmetic.store(value, target, (i * t.side + j) * t.input_plane)

            strips(kb, t.channels, t.lanes, part)

    def _products(self, tile: Tile, source: ir.Value, weights: ir.Value, index: Index) -> list[Values]:
        """The sums over the channels of a register tile, the so-manieth of its plane, whose first input is at
        `source`."""
        kb, t, run, ahead = self.kb, self.t, (self.t.channels, 1), None
        if t.sharers:  # planes follow one another, and so do panels
            size = 4 * t.steps * t.tile_rows
            part = kb.mul(kb.minimum(index, t.sharers - 1), size // t.sharers)
            ahead = Ahead(kb.offset(weights, kb.add(part, size)), t.sharers)
        return multiply(self.arithmetic, tile, (), run, t.channels, source, weights, t.tile_rows, ahead=ahead)

    def _panel(self, image: Index, line: Index, count: Index, panel: Index, width: int) -> None:
        """`width` output channels of some lines: products, then outputs."""
        kb, t = self.kb, self.t
        vectors = -(-width // t.lanes)
        size = t.steps * t.tile_rows
        weights = kb.at(self.weights, kb.mul(panel, t.side * t.side * size), DType.F32)
        whole, rest = divmod(t.squares, t.positions)
        with kb.loop(0, t.side * t.side, name="plane") as plane:
            slab = kb.at(weights, kb.mul(plane, size), DType.F32)
            source = kb.at(self.inputs, kb.mul(plane, t.input_plane), self.item)
            target = kb.at(self.products, kb.mul(plane, t.output_plane), DType.F32)

            def tile(positions: int, square: Index, index: Index) -> None:
                shape = Tile(positions, vectors, t.lanes, DType.F32)
                results = self._products(shape, kb.at(source, kb.mul(square, t.channels), self.item), slab, index)
                store_tile(kb, shape, results, kb.at(target, kb.mul(square, t.tile_rows), DType.F32), t.tile_rows)

            with kb.loop(0, count, name="line") as index:
                first, before = kb.mul(index, t.squares), kb.mul(index, -(-t.squares // t.positions))
                with kb.loop(0, whole, name="tile") as number:
                    tile(t.positions, kb.add(first, kb.mul(number, t.positions)), kb.add(before, number))
                if rest:
                    tile(rest, kb.add(first, whole * t.positions), kb.add(before, whole))
        self._transform_outputs(image, line, kb.mul(count, t.square_rows), kb.mul(panel, t.tile_rows), width)

    def _transform_outputs(self, image: Index, line: Index, square_rows: Index, channel: Index, width: int) -> None:
        """A' M A of every square, through the epilogue."""
        kb, t = self.kb, self.t
        first = kb.mul(line, t.rows)
        with (
            kb.loop(0, square_rows, name="square_row") as row,
            kb.loop(0, t.square_columns, name="square_column") as column,
        ):
            square = kb.add(kb.mul(row, t.square_columns), column)
            at_row, at_column = kb.add(first, kb.mul(row, t.m)), kb.mul(column, t.m)
            start = kb.mul(square, t.tile_rows)

            def part(
                v: Index, lanes: int, start: Index = start, at_row: Index = at_row, at_column: Index = at_column
            ) -> None:
                source = kb.at(self.products, kb.add(start, v), DType.F32)
                rows = []
                for i in range(t.side):
                    planes = [(i * t.side + j) * t.output_plane for j in range(t.side)]
                    rows.append(output_transform(kb, t.m, [kb.load(source, a, DType.F32, lanes) for a in planes]))
                columns = [output_transform(kb, t.m, [r[j] for r in rows]) for j in range(t.m)]
                results = [[columns[j][i] for j in range(t.m)] for i in range(t.m)]
                self._store(image, (at_row, at_column), kb.add(channel, v), results)

            strips(kb, width, t.lanes, part)

    def _store(self, image: Index, at: tuple[Index, Index], channel: Index, results: Sequence[Values]) -> None:
        """The outputs of one square for one vector of channels, where they lie inside the image."""
        kb, t, form = self.kb, self.t, self.form
        high = None if form.out_height % t.rows == 0 else form.out_height
        wide = None if form.out_width % t.m == 0 else form.out_width
        if self.stores.inline:
            for i, row in enumerate(results):
                with _where(kb, kb.add(at[0], i), high if i or t.square_rows > 1 else None):
                    for j, value in enumerate(row):
                        with _where(kb, kb.add(at[1], j), wide if j else None):
                            self.stores.put([image, 0, kb.add(at[0], i), kb.add(at[1], j)], channel, [value])
            return
        lanes = results[0][0].type.count if isinstance(results[0][0].type, ir.VectorType) else 1
        for i, row in enumerate(results):
            for j, value in enumerate(row):
                kb.store(value, kb.scratch, (i * t.m + j) * t.lanes, DType.F32)
        rows: Index = t.m if high is None else kb.maximum(kb.minimum(kb.sub(high, at[0]), t.m), 0)
        columns: Index = t.m if wide is None else kb.minimum(kb.sub(wide, at[1]), t.m)
        with kb.loop(0, rows, name="i") as i, kb.loop(0, columns, name="j") as j:
            index = kb.mul(kb.add(kb.mul(i, t.m), j), t.lanes)
            value = kb.load(kb.scratch, index, DType.F32, lanes)
            self.stores.put([image, 0, kb.add(at[0], i), kb.add(at[1], j)], channel, [value])


@contextmanager
def _where(kb: KernelBuilder, index: Index, limit: int | None) -> Iterator[None]:
    """`if index < limit:`; without a limit, always."""
    with nullcontext() if limit is None else kb.when(kb.compare("<", index, limit)):
        yield


# Transforms -----------------------------------------------------------------------------------------------------------


def input_transform(kb: KernelBuilder, m: int, d: Sequence[ir.Value]) -> Values:
    """B' times a column of m + 2 values: at each point the rest of the polynomial that vanishes at all the others."""
    whole = even_polynomial(m)
    rows = [_sum(kb, whole, d[::2])]
    for k, p in enumerate(POINTS[m]):
        rest = even_polynomial(m, k)
        even, odd = _sum(kb, rest, d[2::2]), _sum(kb, rest, d[1 : m + 1 : 2])
        rows += [_plus(kb, even, p, odd), _plus(kb, even, -p, odd)]
    return [*rows, _sum(kb, whole, d[1::2])]


def output_transform(kb: KernelBuilder, m: int, values: Sequence[ir.Value]) -> Values:
    """A' times a column of m + 2 values: value i is the sum of the points' i-th powers."""
    first, *pairs, last = values
    sums = [kb.b.fadd(pairs[2 * k], pairs[2 * k + 1]) for k in range(len(POINTS[m]))]
    differences = [kb.b.fsub(pairs[2 * k], pairs[2 * k + 1]) for k in range(len(POINTS[m]))]
    found = []
    for power in range(m):
        total: ir.Value | None = first if power == 0 else None
        for p, value in zip(POINTS[m], differences if power % 2 else sums, strict=True):
            total = _scaled(kb, p**power, value) if total is None else _plus(kb, total, p**power, value)
        assert total is not None
        found.append(kb.b.fadd(total, last) if power == m - 1 else total)
    return found


def _sum(kb: KernelBuilder, factors: Sequence[Fraction], values: Sequence[ir.Value]) -> ir.Value:
    """Sum of factor times value; the last factor is 1."""
    total = values[len(factors) - 1]
    for factor, value in zip(factors[:-1], values, strict=False):
        total = _plus(kb, total, factor, value)
    return total


def _plus(kb: KernelBuilder, total: ir.Value, factor: Fraction, value: ir.Value) -> ir.Value:
    if factor == 1:
        return kb.b.fadd(total, value)
    if factor == -1:
        return kb.b.fsub(total, value)
    return kb.fma(_constant(kb, factor, value), value, total)


def _scaled(kb: KernelBuilder, factor: Fraction, value: ir.Value) -> ir.Value:
    return value if factor == 1 else kb.b.fmul(_constant(kb, factor, value), value)


def _constant(kb: KernelBuilder, factor: Fraction, like: ir.Value) -> ir.Value:
    lanes = like.type.count if isinstance(like.type, ir.VectorType) else 1
    return kb.const(float(factor), DType.F32, lanes)


def emit(kb: KernelBuilder, body: Body, tiling: WinogradTiling) -> None:
    """Emit a convolution by the Winograd algorithm."""
    WinogradEmitter(kb, body, tiling).emit()
