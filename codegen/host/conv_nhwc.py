"""Code for convolutions over images that lie channels last: register tiles of neighbouring positions x output channels.

Model: see scheduler/families/conv_nhwc. Per tile a nest of loops over kernel rows, kernel columns and channels; each
step loads the panel's vectors of weights and one input element per position, broadcast. Results go through the epilogue
along the channels: from registers where it is small, else by way of scratch, so that its code stands once.

Scratch: [parked register tile][patch].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.gemm_core import (
    Tile,
    Values,
    fold,
    load_again,
    multiply_add,
    store_tile,
    strips,
    vectors_kept,
    zero,
)
from superkernel.codegen.host.patch_nhwc import NhwcPatchCopier
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.scheduler.families.conv import PIXELS
from superkernel.scheduler.families.conv_nhwc import NhwcTiling, Walk, last_lanes, patch_extent, patch_walk
from superkernel.scheduler.families.costing import program_weight
from superkernel.scheduler.tiling import Tiling

_UNROLLED_STEPS = 4  # channels whose steps are written out
_INLINE_WEIGHT = 8.0  # heaviest epilogue that is repeated for every vector of a register tile

TileAt = Callable[[int, ir.Value, Index, Index], None]  # (positions, first input, row, column)
Nest = Sequence[tuple[int, int]]  # loops from outside in: extent, distance between the inputs of two turns


def multiply_nest(
    kb: KernelBuilder, tile: Tile, nest: Nest, position: int, source: ir.Value, weights: ir.Value, panel: int
) -> list[Values]:
    """Results[position][vector]: sums over a nest of loops of source[r * position + ...] * weights[step * panel + ...].
    The steps' weights follow one another."""

    def step(x: ir.Value, w: ir.Value, values: Values) -> Values:
        near = [kb.load(w, v * tile.lanes, DType.F32, widths[v]) for v in range(kept)]
        for r in range(tile.rows):
            scalar = kb.load(x, r * position, DType.F32)
            splats = {lanes: kb.splat(scalar, lanes) for lanes in dict.fromkeys(widths)}
            far = (load_again(kb, w, v * tile.lanes, DType.F32, widths[v]) for v in range(kept, tile.vectors))
            for v, vector in enumerate(chain(near, far)):
                i = r * tile.vectors + v
                values[i] = multiply_add(kb, splats[widths[v]], vector, values[i], DType.F32)
        return values

    def level(depth: int, x: ir.Value, w: ir.Value, values: Values) -> Values:
        if depth == len(loops):
            return step(x, w, values)
        extent, distance = loops[depth]
        steps = panel
        for inner, _ in loops[depth + 1 :]:
            steps *= inner

        def turn(i: Index, state: Values) -> Values:
            at_x, at_w = kb.at(x, kb.mul(i, distance), DType.F32), kb.at(w, kb.mul(i, steps), DType.F32)
            return level(depth + 1, at_x, at_w, state)

        if depth == len(loops) - 1 and extent <= _UNROLLED_STEPS:
            for i in range(extent):
                values = turn(i, values)
            return values
        return fold(kb, 0, extent, 1, values, turn)

    loops, kept, widths = _merged(nest), vectors_kept(tile, kb.cpu), tile.widths
    flat = level(0, source, weights, [zero(DType.F32, lanes) for lanes in widths] * tile.rows)
    return [flat[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]


def _merged(nest: Nest) -> list[tuple[int, int]]:
    """The nest without loops of one turn, and with those joined that walk on where the inner one ends."""
    loops: list[tuple[int, int]] = []
    for extent, distance in nest:
        if extent == 1:
            continue
        if loops and loops[-1][1] == extent * distance:
            loops[-1] = (loops[-1][0] * extent, distance)
        else:
            loops.append((extent, distance))
    return loops


class HasEpilogue(Protocol):
    """What a form says of its results: the program behind them, and over how many spatial dimensions it goes."""

    @property
    def epilogue(self) -> PointwiseProgram: ...
    @property
    def spatial(self) -> int: ...


class ChannelStores:
    """Sends vectors along the channels of one position through bias and epilogue. `coords` gives the program's
    coordinates of a position; channels are its dimension 1."""

    def __init__(self, kb: KernelBuilder, body: Body, form: HasEpilogue) -> None:
        self.kb, self.body, self.form = kb, body, form
        self.epilogue = ProgramEmitter(kb, form.epilogue, kb.operands)
        self.inline = program_weight(form.epilogue) <= _INLINE_WEIGHT

    def coords(self, image: Index, row: Index, column: Index) -> list[Index]:
        """The program's coordinates of an output position."""
        return [image, 0, row, column] if self.form.spatial == 2 else [image, 0, column]

    def put(self, coords: Sequence[Index], channel: Index, values: Sequence[ir.Value]) -> None:
        """Vectors side by side from `channel` on, of one position."""
        row = self.epilogue.row(coords, axis=1)
        for value in values:
            lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
            bias = self._bias(channel, lanes)
            row.eval(channel, lanes, [value if bias is None else self.kb.b.fadd(value, bias)])
            channel = self.kb.add(channel, lanes)

    def _bias(self, channel: Index, lanes: int) -> ir.Value | None:
        kb = self.kb
        bias = self.body.anchor_inputs[2] if len(self.body.anchor_inputs) > 2 else None
        if bias is None:
            return None
        if not isinstance(bias, View):
            raise InternalError("a bias must be a view of an operand", found=type(bias).__name__)
        dtype, stride = self.body.operands[bias.operand].type.dtype, bias.strides[0]
        at = kb.add(bias.offset, kb.mul(channel, stride))
        return kb.load(kb.operands[bias.operand], at, dtype, lanes, stride)


class NhwcEmitter:
    """Writes the kernel of one body and tiling. `item`: how the inputs of a register tile lie in memory."""

    item = DType.F32

    def __init__(self, kb: KernelBuilder, body: Body, tiling: NhwcTiling) -> None:
        self.kb, self.t, self.form = kb, tiling, tiling.form_of(body)
        weights = body.anchor_inputs[1]
        assert isinstance(weights, View)
        self.weights = kb.operands[weights.operand]
        self.stores = ChannelStores(kb, body, self.form)
        self.patch = kb.offset(kb.scratch, tiling.tile_bytes)
        self.lines_in_row = self.form.out_height == 1
        form, t = self.form, tiling
        if t.in_place:
            self.walk = Walk(form.x_strides[2], form.x_strides[3], form.x_strides[1])
        else:
            most = t.columns * t.lines if self.lines_in_row else form.out_width
            columns = min(form.out_width, most)
            self.walk = self._walk(columns)
            self.copier = self._copier(patch_extent(form, 1, columns)[1])

    def _walk(self, columns: int) -> Walk:
        """Strides in the patch of so many output columns."""
        return patch_walk(self.form, columns)

    def _copier(self, wide: int) -> NhwcPatchCopier:
        """What fills the patch, of so many columns."""
        return NhwcPatchCopier(self.kb, self.form, self.walk, wide)

    def emit(self) -> None:
        """The whole function."""
        kb, t = self.kb, self.t
        if t.units == 0:
            return
        if t.axis == PIXELS:
            count = t.blocks
            with kb.loop(kb.div(kb.begin, count), kb.div(kb.add(kb.end, count - 1), count), name="image") as image:
                low = kb.maximum(kb.sub(kb.begin, kb.mul(image, count)), 0)
                high = kb.minimum(kb.sub(kb.end, kb.mul(image, count)), count)
                with kb.loop(0, t.groups, name="group") as group:
                    self._lines(image, group, low, high, 0, t.channel_tiles)
            return
        per = t.channel_tiles
        with kb.loop(kb.div(kb.begin, per), kb.div(kb.add(kb.end, per - 1), per), name="group") as group:
            low = kb.maximum(kb.sub(kb.begin, kb.mul(group, per)), 0)
            high = kb.minimum(kb.sub(kb.end, kb.mul(group, per)), per)
            self._lines(kb.div(group, t.groups), kb.rem(group, t.groups), 0, t.blocks, low, high)

    def _lines(self, image: Index, group: Index, first: Index, last: Index, low: Index, high: Index) -> None:
        """Lines [first, last) of an image and group, panels [low, high)."""
        kb, t = self.kb, self.t
        with kb.loop(first, last, t.lines, name="lines") as line:
            stop = kb.minimum(kb.add(line, t.lines), last)
            source = self._source(image, group, line, stop)
            full = t.channel_tiles - self._has_short_panel()
            with kb.loop(low, kb.minimum(high, full), name="panel") as panel:
                self._panel(source, image, group, (line, stop), panel, t.tile_rows)
            if self._has_short_panel():
                with kb.when(kb.b.and_(kb.compare("<=", low, full), kb.compare(">", high, full))):
                    self._panel(source, image, group, (line, stop), full, self.form.out_channels % t.tile_rows)

    def _start_of_panel(self, group: Index, panel: Index) -> tuple[ir.Value, Index]:
        """Where a panel's weights are, and its first output channel."""
        kb, t, form = self.kb, self.t, self.form
        index = kb.add(kb.mul(group, t.channel_tiles), panel)
        weights = kb.at(self.weights, kb.mul(index, t.filter_elements(form)), DType.F32)
        return weights, kb.add(kb.mul(group, form.out_channels), kb.mul(panel, t.tile_rows))

    def _has_short_panel(self) -> bool:
        """True where the last panel has fewer channels than the others."""
        return self.form.out_channels % self.t.tile_rows != 0

    def _source(self, image: Index, group: Index, line: Index, stop: Index) -> ir.Value:
        """Where the input element of the first output of `line`, first tap and channel, is."""
        kb, form = self.kb, self.form
        channel = kb.mul(group, form.channels)
        row, column = (0, kb.mul(line, self.t.columns)) if self.lines_in_row else (line, 0)
        if self.t.in_place:
            s = form.x_strides
            at = kb.add(kb.add(form.x_offset, kb.mul(image, s[0])), kb.mul(channel, s[1]))
            at = kb.add(at, kb.mul(row, s[2] * form.strides[0]))
            return kb.at(kb.operands[form.operand], kb.add(at, kb.mul(column, s[3] * form.strides[1])), DType.F32)
        if self.lines_in_row:
            columns = kb.minimum(kb.sub(form.out_width, column), kb.mul(kb.sub(stop, line), self.t.columns))
            self.copier.copy(self.patch, image, channel, (0, 1), (column, columns))
        else:
            self.copier.copy(self.patch, image, channel, (row, kb.sub(stop, line)), (0, form.out_width))
        return self.patch

    def _panel(
        self, source: ir.Value, image: Index, group: Index, lines: tuple[Index, Index], panel: Index, width: int
    ) -> None:
        """One panel of `width` output channels for some lines."""
        kb, t, form = self.kb, self.t, self.form
        weights, channel = self._start_of_panel(group, panel)
        vectors = -(-width // t.lanes)
        whole, rest = divmod(form.out_width, t.positions)
        first, last = lines

        def tile(positions: int, at: ir.Value, row: Index, column: Index) -> None:
            shape = Tile(positions, vectors, t.lanes, DType.F32, last=last_lanes(width, t.lanes))
            results = self._products(shape, at, weights)
            self._store(shape, results, self.stores.coords(image, row, column), channel, width)

        step = self.walk.column * form.strides[1]
        if self.lines_in_row:
            self._lines_in_row(source, lines, step, tile)
            return
        with kb.loop(first, last, name="row") as row:
            at = kb.at(source, kb.mul(kb.sub(row, first), self.walk.row * form.strides[0]), self.item)
            with kb.loop(0, whole, name="tile") as index:
                column = kb.mul(index, t.positions)
                tile(t.positions, kb.at(at, kb.mul(column, step), self.item), row, column)
            if rest:
                tile(rest, kb.at(at, whole * t.positions * step, self.item), row, whole * t.positions)

    def _lines_in_row(self, source: ir.Value, lines: tuple[Index, Index], step: int, tile: TileAt) -> None:
        """All tiles of lines of one row, whose first input is at `source`; `step`: from position to position."""
        kb, t, (first, last) = self.kb, self.t, lines
        start = kb.mul(first, t.columns)

        def one(positions: int, column: Index) -> None:
            tile(positions, kb.at(source, kb.mul(kb.sub(column, start), step), self.item), 0, column)

        if t.blocks == 1 or t.columns % t.positions == 0:  # lines follow one another tile by tile
            whole, rest = divmod(self.form.out_width, t.positions)
            stop = kb.minimum(kb.mul(last, t.columns), whole * t.positions)
            with kb.loop(start, stop, t.positions, name="tile") as column:
                one(t.positions, column)
            if rest:
                with kb.when(kb.compare("==", last, t.blocks)):
                    one(rest, whole * t.positions)
            return
        columns, columns_last = t.line_columns(self.form)
        rests = columns % t.positions, columns_last % t.positions
        with kb.loop(first, last, name="line") as line:
            at = kb.mul(line, t.columns)
            end = kb.minimum(kb.add(at, columns - rests[0]), self.form.out_width - rests[1])
            with kb.loop(at, end, t.positions, name="tile") as column:
                one(t.positions, column)
            if rests[0] == rests[1]:
                one(rests[0], end)
            else:
                for rest, of in zip(rests, ("<", "=="), strict=True):
                    if rest:
                        with kb.when(kb.compare(of, line, t.blocks - 1)):
                            one(rest, end)

    def _products(self, tile: Tile, source: ir.Value, weights: ir.Value) -> list[Values]:
        """The sums of one register tile whose first input is at `source`."""
        form, walk = self.form, self.walk
        nest = (
            (form.kernel[0], walk.row * form.dilations[0]),
            (form.kernel[1], walk.column * form.dilations[1]),
            (form.channels, walk.channel),
        )
        position = walk.column * form.strides[1]
        return multiply_nest(self.kb, tile, nest, position, source, weights, self.t.tile_rows)

    def _store(self, tile: Tile, results: list[Values], coords: list[Index], channel: Index, width: int) -> None:
        """A register tile through the epilogue: `width` channels of each position."""
        store_positions(self.kb, self.stores, tile, results, coords, channel, width)


def store_positions(
    kb: KernelBuilder,
    stores: ChannelStores,
    tile: Tile,
    results: list[Values],
    coords: list[Index],
    channel: Index,
    width: int,
) -> None:
    """Results[position][vector] through the epilogue, `width` channels of positions that are neighbours along the last
    coordinate. Scratch starts with room for the tile."""
    if stores.inline:
        for r, vectors in enumerate(results):
            place = [*coords[:-1], kb.add(coords[-1], r)]
            stores.put(place, channel, _cut(kb, vectors, tile.lanes, width))
        return
    store_tile(kb, tile, results, kb.scratch, tile.columns)
    with kb.loop(0, tile.rows, name="position") as r:
        place = [*coords[:-1], kb.add(coords[-1], r)]
        start = kb.mul(r, tile.columns)

        def part(at: Index, lanes: int, start: Index = start, place: list[Index] = place) -> None:
            value = kb.load(kb.scratch, kb.add(start, at), DType.F32, lanes)
            stores.put(place, kb.add(channel, at), [value])

        strips(kb, width, tile.lanes, part)


def _cut(kb: KernelBuilder, vectors: Values, lanes: int, width: int) -> Values:
    """The vectors that hold the first `width` elements, the last one cut to its part."""
    whole, rest = divmod(width, lanes)
    found = list(vectors[:whole])
    if rest:
        last = vectors[whole]
        zero_index = ir.Constant(ir.IntType(32), 0)
        found.append(kb.pick(last, range(rest)) if rest > 1 else kb.b.extract_element(last, zero_index))
    return found


def emit(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
    """Emit a convolution over channels-last images."""
    if not isinstance(tiling, NhwcTiling):
        raise InternalError("wrong tiling for a convolution", found=type(tiling).__name__)
    NhwcEmitter(kb, body, tiling).emit()
