"""Code for convolutions over images that lie channels last: register tiles of neighbouring positions x output channels.

Model: see scheduler/families/conv_nhwc. Per tile a nest of loops over kernel rows, kernel columns and channels; each
step loads the panel's vectors of weights and one input element per position, broadcast; in reduced precision words, run
by run. Results go through the epilogue along the channels: from registers where it is small, else by way of scratch, so
that its code stands once.

In int8 a register tile holds the i32 sums of one row of the window, which begin as what the row's zero point adds,
taken off. At the row's end they are scaled and added to the sums in f32, which lie where the finished tile is parked;
windows of one row need none of that.

Where a panel is taken in pieces, the sums of all tiles are parked from piece to piece, all 0 at first; behind the last
piece they go through the epilogue.

Rows of the window that lie in the padding are left out of sums of bytes whose zero point is 0.

In tiles a run is walked 16 words at a time (`tile_product`); rows of the CPU's tiles are positions, whose runs overlap
in the patch, of one line or of some lines one below the other, with what lies between short ones. Sums of bytes begin
as what the zero point adds, taken off. All register tiles have the same shape: the last ones of a row and of an image
read what lies behind the patch, and drop what comes of it.

Scratch: [parked register tile][parked sums: positions x channels of a panel][patch][f32 row that is being turned into
bytes].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from llvmlite import ir

from superkernel.codegen.host.arithmetic import Ahead, arithmetic_of, multiply, stored_zero_point
from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.channel_stores import ChannelStores
from superkernel.codegen.host.gemm_core import Tile, Values, store_tile, zero
from superkernel.codegen.host.loops import band_of, each_group, taps_inside
from superkernel.codegen.host.patch_nhwc import BytePatchCopier, IntegerPatchCopier, NhwcPatchCopier
from superkernel.codegen.host.tile_product import TileProduct
from superkernel.core.dtypes import DType
from superkernel.core.formats import TILE_ROWS
from superkernel.ir.body import Body
from superkernel.ops.windows import ONE, Window
from superkernel.scheduler.families.conv import PIXELS
from superkernel.scheduler.families.matmul_form import view_of
from superkernel.scheduler.families.nhwc_form import HEAD_BYTES, Walk, patch_extent, patch_walk, runs_of
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling

_UNROLLED_ROWS = 3  # of a window in int8, written out

TileAt = Callable[[int, ir.Value, Index, Index, Index], None]  # (positions, start, first item from it, row, column)


def _merged(nest: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
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


class NhwcEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: NhwcTiling) -> None:
        self.kb, self.body, self.t, self.form = kb, body, tiling, tiling.form_of(body)
        self.weights = kb.operands[view_of(body, 1).operand]
        self.stores = ChannelStores(kb, body, self.form)
        self.arithmetic, self.item = arithmetic_of(kb, tiling.format), tiling.format.item
        self.arithmetic.signed = self.form.dtype is DType.I8
        stage = kb.offset(kb.scratch, tiling.tile_bytes + tiling.patch_bytes) if tiling.staged else None
        self.sums = kb.offset(kb.scratch, tiling.finished_bytes)
        self.patch = kb.offset(kb.scratch, tiling.tile_bytes)
        form, t = self.form, tiling
        self.depths: tuple[Index, Index, Index] = (0, 0, 1)
        kernel, stride, dilation, pad = (pair[0] for pair in (form.kernel, form.strides, form.dilations, form.pads))
        self.rows = Window(form.height, kernel, stride, dilation, pad, 0, form.out_height)
        self.run_words = -(-runs_of(form, t.format)[1] // t.format.step)
        self.tiles, self.begin = None, None
        if t.format.tiled:
            tail = self.run_words % TILE_ROWS
            passing = 4 * t.filter_elements(form) + t.register_tile_inputs(form) > kb.cpu.l1_bytes
            self.tiles = TileProduct(
                kb, t.format, t.tile_height, t.tile_rows, lines=t.tile_lines // t.joined, tail=tail, passing=passing
            )
            self.begin = None if t.format.rows.is_float else kb.stack(4 * t.tile_rows)
        self.lines_in_row = form.out_height == 1 and not t.format.scales_rows
        if t.in_place:
            s = form.x_strides
            self.walk = Walk(s[2], s[3], s[1], form.x_depth * form.depth.dilation)
        else:
            rows, columns = 1 if self.lines_in_row else t.lines, form.out_width
            columns = min(columns, t.columns * t.lines) if self.lines_in_row else columns
            self.walk, wide = patch_walk(form, rows, columns, t.format), patch_extent(form, 1, columns)[1]
            self.copier = NhwcPatchCopier(self.arithmetic, form, self.walk, wide)
            if t.format.is_integral:
                self.copier = IntegerPatchCopier(self.arithmetic, form, self.walk, wide, self._zero_point())
            elif t.format.scales_rows:
                self.copier = BytePatchCopier(kb, form, self.walk, wide, stage)

    def emit(self) -> None:
        """The whole function."""
        if self.tiles is None:
            self._units()
            return
        self.tiles.registers.configure()
        self._units()
        self.tiles.registers.release()

    def _units(self) -> None:
        kb, t = self.kb, self.t
        if t.axis == PIXELS:
            groups = each_group(kb, t.blocks, "image")
            with groups as (image, low, high), kb.loop(0, t.groups, name="group") as group:
                self.depths = self._depths(image)
                self._lines(image, group, low, high, 0, t.channel_tiles)
            return
        with each_group(kb, t.channel_tiles, "group") as (group, low, high):
            outer, lines = band_of(kb, t, group)
            image = kb.div(outer, t.groups)
            self.depths = self._depths(image)
            self._lines(image, kb.rem(outer, t.groups), *lines, low, high)

    def _depths(self, plane: Index) -> tuple[Index, Index, Index]:
        """Where the first of an output plane's depths is, and the range of them that counts: those inside the image;
        of bytes all, as what padding adds is taken off their sums."""
        kb, window = self.kb, self.form.depth
        start = kb.sub(kb.mul(kb.rem(plane, window.size), window.stride), window.begin)
        if self.t.format.is_integral or window.reads_inside:
            return start, 0, window.kernel
        low, high = taps_inside(kb, window, start, window.extent)
        return start, low, kb.maximum(low, high)

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
            at = kb.add(form.x_offset, kb.mul(kb.div(image, form.depth.size), s[0]))
            at = kb.add(at, kb.add(kb.mul(channel, s[1]), kb.mul(row, s[2] * form.strides[0])))
            start, low, _ = self.depths
            at = kb.add(at, kb.mul(kb.add(start, kb.mul(low, form.depth.dilation)), form.x_depth))
            return kb.at(kb.operands[form.operand], kb.add(at, kb.mul(column, s[3] * form.strides[1])), self.item)
        if self.lines_in_row:
            columns = kb.minimum(kb.sub(form.out_width, column), kb.mul(kb.sub(stop, line), self.t.columns))
            block = (0, 1), (column, columns)
        else:
            block = (row, kb.sub(stop, line)), (0, form.out_width)
        self.copier.copy(self.patch, kb.div(image, form.depth.size), channel, *block, self.depths)
        return self.patch

    def _panel(
        self, source: ir.Value, image: Index, group: Index, lines: tuple[Index, Index], panel: Index, width: int
    ) -> None:
        """One panel of `width` output channels for some lines."""
        kb, t, form = self.kb, self.t, self.form
        weights, channel = self._start_of_panel(group, panel)
        vectors = -(-width // t.lanes)

        def shape(positions: int) -> Tile:
            return Tile(positions, vectors, t.lanes, t.format.results, last=t.last_lanes(width))

        def finish(tile: Tile, results: list[Values], row: Index, column: Index) -> None:
            self.stores.put_tile(tile, results, self._coords(image, row, column), channel, width)

        def in_tiles(positions: int, start: ir.Value, item: Index, row: Index, column: Index) -> None:
            if t.format.scales_rows:
                self._rows_in_tiles(start, item, weights)
            else:
                self._sum_in_tiles(kb.at(start, item, self.item), weights)
            tile = shape(positions)
            with kb.loop(0, kb.minimum(kb.sub(lines[1], row), t.tile_lines), name="line") as line:
                at = kb.mul(kb.div(line, t.joined), t.tile_height)
                at = kb.mul(kb.add(at, kb.mul(kb.rem(line, t.joined), t.line_gap)), t.tile_rows)
                coords = self._coords(image, kb.add(row, line), column)
                self.stores.put_parked(tile, t.tile_rows, coords, channel, width, at)

        def whole(positions: int, start: ir.Value, item: Index, row: Index, column: Index) -> None:
            tile, place = shape(positions), self._place(lines[0], row, column)
            ahead = self._ahead(weights, 4 * t.filter_elements(form), place)
            finish(tile, self._products(tile, start, item, row, weights, ahead), row, column)

        if not t.pieces:
            self._each_tile(source, lines, whole if self.tiles is None else in_tiles)
            return
        self._clear_sums()
        each = t.pieces // form.depth.kernel
        first, end = (kb.mul(depth, each) for depth in self.depths[1:])
        with kb.loop(first, end, name="piece") as piece:
            size = t.filter_elements(form) // t.pieces
            part = kb.at(weights, kb.mul(piece, size), DType.F32)

            def some(positions: int, start: ir.Value, item: Index, row: Index, column: Index) -> None:
                tile, place = shape(positions), self._place(lines[0], row, column)
                sums = kb.at(self.sums, kb.mul(place, t.tile_rows), DType.F32)
                ahead = self._ahead(part, 4 * size, place)
                results = self._piece(tile, kb.at(start, item, self.item), part, piece, sums, ahead)
                is_last = kb.compare("==", piece, kb.sub(end, 1))
                with kb.when(kb.b.not_(is_last)):
                    for at, value in zip(self._sum_places(tile), chain.from_iterable(results), strict=True):
                        kb.store(value, sums, at, DType.F32)
                with kb.when(is_last):
                    finish(tile, results, row, column)

            self._each_tile(source, lines, some)

    def _place(self, line: Index, row: Index, column: Index) -> Index:
        """Which position of the lines from `line` on one is."""
        kb = self.kb
        if self.lines_in_row:
            return kb.sub(column, kb.mul(line, self.t.columns))
        return kb.add(kb.mul(kb.sub(row, line), self.form.out_width), column)

    def _ahead(self, weights: ir.Value, size: int, place: Index) -> Ahead | None:
        """What the tile at a position fetches of the weights that follow on `size` bytes of them."""
        kb, t = self.kb, self.t
        if not t.sharers:
            return None
        index = kb.minimum(kb.div(place, t.positions), t.sharers - 1)
        return Ahead(kb.offset(weights, kb.add(kb.mul(index, size // t.sharers), size)), t.sharers)

    def _clear_sums(self) -> None:
        kb, t = self.kb, self.t
        with kb.loop(0, t.open_positions * t.tile_rows, t.lanes, name="clear") as at:
            kb.store(zero(DType.F32, t.lanes), self.sums, at, DType.F32)

    def _sum_places(self, tile: Tile) -> list[int]:
        """Where the parked sums of a tile are, in elements, one position after the other."""
        return [r * self.t.tile_rows + v * tile.lanes for r in range(tile.rows) for v in range(tile.vectors)]

    def _piece(
        self, tile: Tile, source: ir.Value, weights: ir.Value, piece: Index, sums: ir.Value, ahead: Ahead | None
    ) -> list[Values]:
        """The sums of a tile, whose first input is at `source`, with those of one piece of the weights."""
        kb, t, form, walk = self.kb, self.t, self.form, self.walk
        parts = t.pieces // form.taps
        tap, part, depth = kb.div(piece, parts), kb.rem(piece, parts), form.channels // parts
        at = self._line_start(kb.div(tap, form.kernel[1]))
        at = kb.add(at, kb.mul(kb.rem(tap, form.kernel[1]), walk.column * form.dilations[1]))
        here = kb.at(source, kb.add(at, kb.mul(part, depth * walk.channel)), self.item)
        kb.forget_vectors()
        start = [
            kb.load(sums, at, DType.F32, lanes)
            for at, lanes in zip(self._sum_places(tile), tile.widths * tile.rows, strict=True)
        ]
        run, position = (depth, walk.channel), walk.column * form.strides[1]
        return multiply(self.arithmetic, tile, (), run, position, here, weights, t.tile_rows, start=start, ahead=ahead)

    def _line_start(self, line: Index) -> Index:
        """From a position's first input to the first one under a row of the window, in items."""
        kb, form, walk = self.kb, self.form, self.walk
        depth, row = kb.div(line, form.kernel[0]), kb.rem(line, form.kernel[0])
        at = kb.mul(kb.sub(depth, self.depths[1]), walk.depth)
        return kb.add(at, kb.mul(row, walk.row * form.dilations[0]))

    def _window_lines(self) -> tuple[Index, Index]:
        """The rows of the window that count."""
        first, end = (self.kb.mul(depth, self.form.kernel[0]) for depth in self.depths[1:])
        return first, end

    def _each_tile(self, source: ir.Value, lines: tuple[Index, Index], tile: TileAt) -> None:
        """All register tiles of some lines."""
        kb, t, form = self.kb, self.t, self.form
        whole, rest = divmod(form.out_width, t.positions)
        first, last = lines
        step = self.walk.column * form.strides[1]
        if self.lines_in_row:
            self._lines_in_row(source, lines, step, tile)
            return
        with kb.loop(first, last, t.tile_lines, name="row") as row:
            at = kb.at(source, kb.mul(kb.sub(row, first), self.walk.row * form.strides[0]), self.item)
            with kb.loop(0, whole, name="tile") as index:
                column = kb.mul(index, t.positions)
                tile(t.positions, at, kb.mul(column, step), row, column)
            if rest:
                tile(rest, at, whole * t.positions * step, row, whole * t.positions)

    def _coords(self, image: Index, row: Index, column: Index) -> list[Index]:
        """The epilogue's coordinates of an output position: where it joins rows and columns, those of its row too."""
        if self.t.format.scales_rows and self.form.spatial == 1:
            column = self.kb.add(self.kb.mul(row, self.form.out_width), column)
        return self.stores.coords(image, row, column)

    def _lines_in_row(self, source: ir.Value, lines: tuple[Index, Index], step: int, tile: TileAt) -> None:
        """All tiles of lines of one row, whose first input is at `source`; `step`: from position to position."""
        kb, t, (first, last) = self.kb, self.t, lines
        start = kb.mul(first, t.columns)

        def one(positions: int, column: Index) -> None:
            tile(positions, source, kb.mul(kb.sub(column, start), step), 0, column)

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

    def _products(
        self, tile: Tile, start: ir.Value, item: Index, row: Index, weights: ir.Value, ahead: Ahead | None
    ) -> list[Values]:
        """The sums of one register tile, of an output row, whose first input is so many items from `start`."""
        kb, t, form, walk = self.kb, self.t, self.form, self.walk
        kb.forget_vectors()
        if t.format.scales_rows:
            return self._sums_of_rows(tile, start, item, weights)
        source, position = kb.at(start, item, self.item), walk.column * form.strides[1]
        _, first, end = self.depths
        weights = kb.at(weights, kb.mul(first, t.steps(form) // form.depth.kernel * t.tile_rows), DType.F32)
        depths = [] if (first, end) == (0, 1) else [(kb.sub(end, first), walk.depth)]
        rows, column = (form.kernel[0], walk.row * form.dilations[0]), walk.column * form.dilations[1]
        if t.format.is_reduced:
            count, length = runs_of(form, t.format)
            begin = self._begin(tile, weights) if t.format.is_integral else ()
            nest: list[tuple[Index, int]] = [*depths, rows] if rows[0] > 1 else [*depths]
            if self._skips_padding():
                low, high = self._rows_inside(row)
                source = kb.at(source, kb.mul(low, rows[1]), self.item)
                weights = kb.at(weights, kb.mul(low, t.steps(form) // form.lines * t.tile_rows), DType.F32)
                nest = [(kb.sub(high, low), rows[1])]
            if count > form.lines:
                nest.append((count // form.lines, column))
            return multiply(
                self.arithmetic, tile, nest, (length, 1), position, source, weights, t.tile_rows, begin, ahead=ahead
            )
        loops = _merged((rows, (form.kernel[1], column), (form.channels, walk.channel))) or [(1, 1)]
        nest, last = [*depths, *loops[:-1]], loops[-1]
        return multiply(self.arithmetic, tile, nest, last, position, source, weights, t.tile_rows, ahead=ahead)

    def _skips_padding(self) -> bool:
        """Whether rows of the window that lie in the padding are left out: those of bytes that add nothing to their
        sums."""
        form = self.form
        nothing = self.arithmetic.zero_is_nothing and self.body.anchor_inputs[3:4] in ((), (None,))
        return self.t.format.is_integral and nothing and form.depth == ONE and not self.rows.reads_inside

    def _rows_inside(self, row: Index) -> tuple[Index, Index]:
        """The rows of the window of an output row that lie inside the image."""
        kb, window = self.kb, self.rows
        start = kb.sub(kb.mul(row, window.stride), window.begin)
        low, high = taps_inside(kb, window, start, window.extent)
        return low, kb.maximum(low, high)

    def _sum_in_tiles(self, source: ir.Value, weights: ir.Value) -> None:
        """The sums of one register tile, whose first input is at `source`, parked in scratch."""
        kb, t, tiles = self.kb, self.t, self.tiles
        assert tiles is not None
        begin = self._begin(Tile(1, t.vectors, t.lanes, DType.I32), weights) if t.format.is_integral else []
        self._start_tiles(begin)
        with kb.loop(*self._window_lines(), name="row") as row:
            self._add_row(kb.at(source, self._line_start(row), self.item), weights, row)
        tiles.store(kb.scratch)

    def _start_tiles(self, begin: Sequence[ir.Value]) -> None:
        """The sums of all positions from 0 on, or from those vectors."""
        assert self.tiles is not None
        for v, value in enumerate(begin):
            self.kb.store(value, self.begin, v * self.t.lanes, DType.I32)
        self.tiles.start(self.begin if begin else None)

    def _add_row(self, source: ir.Value, weights: ir.Value, row: Index) -> None:
        """The products of a row of the window, whose inputs of the first position begin at `source`."""
        kb, t, form, walk, tiles = self.kb, self.t, self.form, self.walk, self.tiles
        assert tiles is not None
        count, run = runs_of(form, t.format)
        each, size = count // form.lines, t.format.words(run) * t.tile_rows
        pitch = walk.column * form.strides[1] * self.item.itemsize
        line_pitch = t.joined * walk.row * form.strides[0] * self.item.itemsize
        with kb.loop(0, each, name="run") as index:
            here = kb.at(source, kb.mul(index, walk.column * form.dilations[1]), self.item)
            own = kb.at(weights, kb.mul(kb.add(kb.mul(row, each), index), size), DType.I32)
            tiles.add(here, pitch, own, self.run_words, line_pitch)

    def _rows_in_tiles(self, head: ir.Value, first: Index, weights: ir.Value) -> None:
        """The sums of one register tile whose first input is byte `first` of the patch rows from `head` on, parked in
        scratch."""
        kb, t, form, tiles = self.kb, self.t, self.form, self.tiles
        assert tiles is not None
        behind, size = kb.at(weights, t.steps(form) * t.tile_rows, DType.I32), t.positions * t.tile_rows
        with kb.loop(0, size, t.lanes, name="clear") as at:
            kb.store(zero(DType.F32, t.lanes), kb.scratch, at, DType.F32)
        with kb.loop(*self._window_lines(), name="line") as line:
            row = kb.offset(head, self._line_start(line))
            sums, zeros = kb.mul(line, t.tile_rows), kb.splat(kb.b.neg(kb.load(row, 1, DType.I32)), t.lanes)
            self._start_tiles(
                [
                    kb.b.mul(zeros, kb.load(behind, kb.add(sums, v * t.lanes), DType.I32, t.lanes))
                    for v in range(t.vectors)
                ]
            )
            self._add_row(kb.offset(kb.offset(row, HEAD_BYTES), first), weights, line)
            tiles.store(self.sums)
            scale = kb.splat(kb.load(row, 0, DType.F32), t.lanes)
            with kb.loop(0, size, t.lanes, name="scale") as at:
                value = kb.b.sitofp(kb.load(self.sums, at, DType.I32, t.lanes), scale.type)
                total = kb.fma(value, scale, kb.load(kb.scratch, at, DType.F32, t.lanes))
                kb.store(total, kb.scratch, at, DType.F32)
        scales = kb.at(behind, form.lines * t.tile_rows, DType.F32)
        with kb.loop(0, t.positions, name="position") as r:
            for v in range(t.vectors):
                at = kb.add(kb.mul(r, t.tile_rows), v * t.lanes)
                own = kb.load(scales, v * t.lanes, DType.F32, t.lanes)
                kb.store(kb.b.fmul(kb.load(kb.scratch, at, DType.F32, t.lanes), own), kb.scratch, at, DType.F32)

    def _zero_point(self) -> ir.Value | None:
        """The zero point of an image of bytes, in its own type; None where it is 0."""
        slots = self.body.anchor_inputs
        if len(slots) < 4 or slots[3] is None:
            return None
        view = view_of(self.body, 3)
        return self.kb.load(self.kb.operands[view.operand], view.offset, self.body.operands[view.operand].type.dtype)

    def _begin(self, tile: Tile, weights: ir.Value) -> list[ir.Value]:
        """What sums of bytes start from, per vector: what the zero point adds, taken off."""
        kb, t, zero_point = self.kb, self.t, self._zero_point()
        if zero_point is None and self.arithmetic.zero_is_nothing:
            return []
        behind = kb.at(weights, t.steps(self.form) * t.tile_rows, DType.I32)
        whole = self.arithmetic.met(stored_zero_point(kb, zero_point, self.form.dtype))
        zeros = kb.splat(kb.b.neg(whole), tile.lanes)
        return [kb.b.mul(zeros, kb.load(behind, v * tile.lanes, DType.I32, tile.lanes)) for v in range(tile.vectors)]

    def _sums_of_rows(self, tile: Tile, head: ir.Value, first: Index, weights: ir.Value) -> list[Values]:
        """A register tile whose first input is byte `first` of the patch rows from `head` on."""
        kb, t, form = self.kb, self.t, self.form
        height, lines = form.lines, self._window_lines()
        behind = kb.at(weights, t.steps(form) * t.tile_rows, DType.I32)
        per_row = t.steps(form) // height * t.tile_rows

        def scaled(line: Index) -> list[list[ir.Value]]:
            """Sums over one row of the window, in f32, and the row's scale in all lanes."""
            row = kb.offset(head, self._line_start(line))
            sums = kb.at(behind, kb.mul(line, t.tile_rows), DType.I32)
            zero_point = kb.splat(kb.b.neg(self.arithmetic.met(kb.load(row, 1, DType.I32))), tile.lanes)
            begin = [
                kb.b.mul(zero_point, kb.load(sums, v * tile.lanes, DType.I32, tile.lanes)) for v in range(tile.vectors)
            ]
            data = kb.offset(kb.offset(row, HEAD_BYTES), first)
            found = self._row_sums(tile, data, kb.at(weights, kb.mul(line, per_row), DType.I32), begin)
            scale = kb.splat(kb.load(row, 0, DType.F32), tile.lanes)
            return [[kb.b.sitofp(value, scale.type) for value in found], [scale]]

        size = tile.rows * tile.vectors
        places = [r * tile.columns + v * tile.lanes for r in range(tile.rows) for v in range(tile.vectors)]
        if height <= _UNROLLED_ROWS and lines == (0, height):
            flat: Values = []
            for line in range(height):
                values, (scale,) = scaled(line)
                if line:
                    flat = [kb.load(kb.scratch, at, DType.F32, tile.lanes) for at in places]
                # Added to 0: sums of what lies outside are any number times 0, whose sign would show.
                start = zero(DType.F32, tile.lanes)
                flat = [kb.fma(value, scale, flat[i] if flat else start) for i, value in enumerate(values)]
                if line < height - 1:
                    for value, at in zip(flat, places, strict=True):
                        kb.store(value, kb.scratch, at, DType.F32)
        else:
            nothing = [[zero(DType.F32, tile.lanes)] * tile.vectors] * tile.rows
            store_tile(kb, tile, nothing, kb.scratch, tile.columns)
            with kb.loop(*lines, name="line") as line:
                values, (scale,) = scaled(line)
                for value, at in zip(values, places, strict=True):
                    total = kb.load(kb.scratch, at, DType.F32, tile.lanes)
                    kb.store(kb.fma(value, scale, total), kb.scratch, at, DType.F32)
            flat = [kb.load(kb.scratch, at, DType.F32, tile.lanes) for at in places]
        scales = kb.at(behind, height * t.tile_rows, DType.F32)
        own = [kb.load(scales, v * tile.lanes, DType.F32, tile.lanes) for v in range(tile.vectors)]
        flat = [kb.b.fmul(flat[i], own[i % tile.vectors]) for i in range(size)]
        return tile.rows_of(flat)

    def _row_sums(self, tile: Tile, data: ir.Value, weights: ir.Value, begin: Sequence[ir.Value]) -> Values:
        """i32 sums over one row of the window, on top of `begin` (per vector)."""
        t, form = self.t, self.form
        count, run = runs_of(form, t.format)
        nest = [(count // form.lines, form.channels * form.dilations[1])] if count > form.lines else []
        position = form.channels * form.strides[1]
        rows = multiply(self.arithmetic, tile, nest, (run, 1), position, data, weights, t.tile_rows, begin)
        return [value for row in rows for value in row]


def emit(kb: KernelBuilder, body: Body, tiling: NhwcTiling) -> None:
    """Emit a convolution over channels-last images."""
    NhwcEmitter(kb, body, tiling).emit()
