"""How matrix products are cut: row tiles or column panels, packed weights, and the bytes each piece touches.

Model: the result is a grid of register tiles, `tile_rows` x `panel` columns. The unit axis is either *rows* (one unit
= one row of tiles of one batch, all columns) or *columns* (one unit = one panel of one batch, all rows). Many cores
share an only product in two dimensions: columns are cut in *bands* of row tiles, band by band, so that a core reads
some of the rows and some of the panels, which are read once per band in all; or the axis is *tiles* (one unit = one
register tile, panel by panel), so that shares are even and two neighbours read one panel. A constant right factor is
packed when compiling into panels [batch][columns/panel][depth][panel], zero-padded; a computed one is copied panel by
panel into scratch, or read in place where it is used too seldom to pay for the copy. The left factor is read in place
unless a prologue, another dtype or the cache asks for a copy in scratch. 1 x 1 convolutions of images that lie channels
last are such products too (`matmul_form`).

With a constant right factor the product may be computed in a number format of reduced precision. A packed panel then
holds words, [words][parts][panel] of them, and behind these per column an f32 scale and the i32 sum of the bytes where
the format has them; rows are copied as words, those of integers with a scale and a zero point of their own. With few
rows, int8 weights stream past in a quarter of the time: rows of 16 bits then, or f32, cost nothing and hardly an error.

A format in tiles has register tiles of up to four of the CPU's tiles of results: 32 x 32, or 16 x 64 of few rows.
Packed panels are the same words, up to a multiple of 16 of them per column, so that 16 words of 16 columns are a tile
of weights; what a row's copy is filled up with is multiplied by weights of 0.

Where a block of rows is too deep to stay in the second-level cache beside the panels, the depth is walked in *pieces*:
a group of panels takes its piece of all rows of the block, the sums of all their tiles are parked meanwhile.

Invariants: the sum behind a result is added up in the order of the depth, in pieces or not; a last tile that would
stand out is moved up and only its new rows are stored. A row's copy depends on that row only, so results do not depend
on how the work is split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from superkernel.core import formats
from superkernel.core.dtypes import DType
from superkernel.core.formats import TILE_ROWS, NumberFormat
from superkernel.core.tensor import Box, regions_of_box
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import L3, MEMORY, constants_ns, memory_ns
from superkernel.scheduler.families.kernel import (
    HostTiling,
)
from superkernel.scheduler.families.matmul_form import Factor, MatmulForm, form_of
from superkernel.scheduler.families.open_extents import OPEN, open_axis, opened, with_extents
from superkernel.scheduler.families.packing import PackPanels
from superkernel.scheduler.tiling import Access, Pack, Representative
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

ROWS, COLUMNS, TILES = "rows", "columns", "tiles"
PACKED, IN_PLACE, COPY = "packed", "in_place", "copy"

# Register tiles (rows, vectors) that measured best, widest left factor reuse first.
REGISTER_TILES = {
    "avx512": ((14, 2), (8, 3), (6, 4)),
    "avx2": ((6, 2), (4, 2)),
    "plain": ((6, 2), (4, 2)),
    "small": ((3, 2), (6, 1)),
}

TOGETHER = 0.75
"""Of the second-level cache, what a block of rows and two panels may fill."""
_BESIDE = 0.2  # of the shorter one, of arithmetic and what is fetched ahead for it, adds to the time of both
_SHARERS_MAX = 64  # row tiles that fetch the next panel together; more of them hide its way from memory without that
LINE_BYTES = 64
_STREAMED_TILES = 4  # row tiles up to which streamed panels are fetched a fixed time ahead
GEMV_ROWS = 6  # up to here the weights are streamed, not reused
_CALL_NS = 30.0
_STREAM_SPEEDS: tuple[Mapping[str, float], ...] = ({}, {L3: 1.2, MEMORY: 1.2})  # of packed panels; of few rows
_NEAR_SHARE = 0.25  # of it: so many constants the second-level caches keep, more or less
_GONE_SHARE = 3  # times the last-level cache: of so many constants none is there any more
_NEAR_ROWS = 0.4  # of the second-level cache that a block of rows may fill
_PARKED = 0.2  # of it: the sums of a group of panels
_PIECE_MIN = 256  # steps of the depth for which a tile's sums are worth reading and parking again
_WIDENING = 1.0  # of a multiply-add's time: to make accumulators of a vector of other elements
_TILE_NS = 12.0  # storing a tile and starting the depth loop


@dataclass(frozen=True)
class MatmulTiling(HostTiling):
    """One cut of a matrix product, see the module docstring. `block` row tiles share one copy of the left factor."""

    axis: str
    tile_rows: int
    vectors: int
    lanes: int
    phases: int
    left: str
    right: str
    block: int
    batch: int
    row_tiles: int
    panels: int
    depth: int
    tail_columns: int  # columns of the last panel, 0 where it is full
    format: NumberFormat = formats.F32
    far: bool = False  # packed panels come from so far away that they are fetched ahead
    streamed: bool = False  # packed panels come from behind the second-level cache beside much arithmetic: likewise
    piece: int = 0  # steps of the depth in a piece, 0 where it is walked as a whole
    group: int = 1  # panels whose sums are parked from piece to piece
    bands: int = 1  # that columns are cut in, of an only product

    def named(self, body: Body) -> tuple[str, Mapping[str, int]]:
        return "", {"mr": self.tile_rows, "nr": self.panel}

    @cached_property
    def panel(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @cached_property
    def per_batch(self) -> int:
        """Units per product of the batch."""
        if self.axis == TILES:
            return self.row_tiles * self.panels
        return self.row_tiles if self.axis == ROWS else self.bands * self.panels

    @cached_property
    def band_tiles(self) -> int:
        """Row tiles of a band; the last one may have fewer."""
        return -(-self.row_tiles // self.bands)

    @cached_property
    def units(self) -> int:
        return self.batch * self.per_batch

    @property
    def acc(self) -> DType:
        """The type of finished sums."""
        return self.format.results

    @property
    def words(self) -> int:
        """Steps of the depth loop."""
        return self.format.words(self.depth)

    @property
    def plane(self) -> int:
        """Accumulators in the space of one part of a row's copy; bytes are stored as whole vectors."""
        items = self.words * self.format.step
        if self.format.scales_rows:
            items = -(-items // self.lanes) * self.lanes
        return items * self.format.item.itemsize // self.acc.itemsize

    @property
    def left_pitch(self) -> int:
        """Accumulators between rows of the left factor's copy, a row's scale and zero point included: odd multiples of
        a cache line, so that rows spread over the sets."""
        line = 64 // self.acc.itemsize
        own = self.plane * self.format.row_parts + (2 if self.format.scales_rows else 0)
        return (-(-own // line) | 1) * line

    @property
    def staged(self) -> int:
        """f32 elements of the row that is being turned into integers, in whole vectors of words."""
        vector = self.format.step * self.lanes
        return -(-self.words * self.format.step // vector) * vector if self.format.scales_rows else 0

    @property
    def tile_bytes(self) -> int:
        """Scratch for one tile's results, whole cache lines."""
        return -(-self.tile_rows * self.panel * self.acc.itemsize // 64) * 64

    @property
    def parked_bytes(self) -> int:
        """Scratch for the results of all tiles that are open at a time."""
        return self.tile_bytes * (self.block * self.group if self.piece else 1)

    @property
    def left_bytes(self) -> int:
        """Scratch for a block's copy of the left factor; 0 where it is read in place."""
        rows = self.block * self.tile_rows
        return rows * self.left_pitch * self.acc.itemsize if self.left == COPY else 0

    @cached_property  # asked for every task
    def scratch_bytes(self) -> int:
        return (
            self.parked_bytes
            + self.left_bytes
            + (self.depth * self.panel * self.acc.itemsize if self.copies_panels else 0)
            + 4 * self.staged
        )

    def part_bytes(self, form: MatmulForm) -> int:
        """Each row tile's part of the next panel, or of the next piece of one."""
        return -(-(self.piece * self.step_bytes(form) if self.piece else self.panel_bytes(form)) // self.sharers)

    def part_step_bytes(self, row: int) -> int:
        """What it fetches of that per step of the depth, whose row of the panel has so many bytes."""
        return row // self.sharers

    def part_lines(self, row: int) -> int:
        """The same in cache lines, of as many steps as there are phases."""
        return self._lines_of(row, self.block)

    def _lines_of(self, row: int, block: int) -> int:
        """The same of a block of so many row tiles."""
        return -(-(row // min(block, self.band_tiles)) * self.phases // LINE_BYTES)

    def representative(self, body: Body, target: Target) -> Representative | None:
        """Rows are open: those of all row tiles of a size, and how many of them share a panel."""
        form = form_of(body)
        rows = form.rows > self.tile_rows and self.band_tiles > 1 and not form.batch_dims and self.batch == 1
        plain = self.right == PACKED and not self.staged and form.left_zero is None and form.right_zero is None
        if body.op != "matmul" or not rows or not plain or form.column_axis != len(form.row_dims):
            return None
        axis = open_axis(body, (form.left.slot,))
        if axis is None or axis == form.column_axis:
            return None
        extents = {axis: OPEN}
        wide = opened(body, extents, {form.left.slot: extents})
        assert isinstance(target, CpuTarget)
        row, block, group = self.step_bytes(form), OPEN, self.group
        if self.fetches_next(form, target.l2_bytes):  # of those that fetch as many lines, the fewest
            lines = self.part_lines(row)
            block = next(b for b in range(2, _SHARERS_MAX + 1) if self._lines_of(row, b) == lines)
        if self.piece:
            group = OPEN
        tiling = replace(self, row_tiles=OPEN, block=block, group=group, bands=min(self.bands, 2))
        sizes = {"rows": form.rows, "row_tiles": self.row_tiles, "block": self.block, "group": self.group}
        sizes["band_tiles"] = self.band_tiles
        sizes |= {"part": self.part_bytes(form), "part_step": self.part_step_bytes(row)}
        row_dims = with_extents(form.row_dims, extents)
        left = replace(form.left, shape=form_of(wide).left.shape, program=form_of(wide).left.program)
        if form_of(wide) != replace(form, row_dims=row_dims, rows=prod(row_dims), left=left):
            return None
        return Representative(wide, tiling, sizes)

    @property
    def copies_panels(self) -> bool:
        """True where panels of the right factor (or only the last, partial one) are copied into scratch."""
        return self.right == COPY or (self.right == IN_PLACE and self.tail_columns > 0)

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = form_of(body), AccessSet(body)
        outer = {ROWS: 1, COLUMNS: self.bands, TILES: self.panels}[self.axis]
        for box in runs_of_range((*form.batch_dims, outer, self.per_batch // outer), begin, end):
            batch, tiles, panels = box[:-2], (0, self.row_tiles), (0, self.panels)
            if self.axis == ROWS:
                tiles = box[-1]
            elif self.axis == TILES:
                panels, tiles = box[-2:]
            else:
                tiles, panels = (box[-2][0] * self.band_tiles, box[-2][1] * self.band_tiles), box[-1]
            rows = (tiles[0] * self.tile_rows, min(tiles[1] * self.tile_rows, form.rows))
            columns = (panels[0] * self.panel, min(panels[1] * self.panel, form.columns))
            self._factor(found, form, form.left, batch, (self._first_row(form, rows[0]), rows[1]))
            self._weights(found, body, batch, columns)
            for row_box in runs_of_range(form.row_dims, *rows):
                found.program(body.epilogue, output_box(form, batch, row_box, columns))
        for slot in (form.left_zero, form.right_zero, form.bias):
            source = body.anchor_inputs[slot] if slot is not None else None
            if isinstance(source, View):
                found.add(source.operand, False, source.regions(body.operands[source.operand].type.dtype.itemsize))
        return found.result()

    def _first_row(self, form: MatmulForm, row: int) -> int:
        """The first row that a range starting at `row` reads: the last tile moves up where it reads in place."""
        return max(0, min(row, form.rows - self.tile_rows)) if self.left == IN_PLACE else row

    def _factor(self, found: AccessSet, form: MatmulForm, factor: Factor, batch: Box, lines: tuple[int, int]) -> None:
        depth = (0, form.depth)
        if factor.program is None:
            strides = (*factor.batch, factor.line, factor.depth)
            found.view(factor.operand, (*batch, lines, depth), strides, factor.offset)
            return
        if len(factor.shape) == 1:
            found.program(factor.program, (depth,))
            return
        is_left = factor is form.left
        parts = runs_of_range(form.row_dims, *lines) if is_left else [(lines,)]
        for part in parts:
            outer, line = (*batch, *part[:-1]), part[-1]
            own = tuple((0, 1) if d == 1 else r for d, r in zip(factor.shape[-3::-1], reversed(outer), strict=False))[
                ::-1
            ]
            found.program(
                factor.program, (*own, depth, line) if self._depth_first(factor, is_left) else (*own, line, depth)
            )

    @staticmethod
    def _depth_first(factor: Factor, is_left: bool) -> bool:
        """True where the slot's last dimension is the line (rows or columns) and not the depth."""
        return factor.transposed == (factor.slot == 0)

    def panel_bytes(self, form: MatmulForm) -> int:
        """Size of one packed panel of the right factor."""
        if self.format.is_reduced:
            return self.format.panel_bytes(form.depth, self.panel)
        return form.depth * self.step_bytes(form)

    def step_bytes(self, form: MatmulForm) -> int:
        """Bytes of a packed panel that a step of the depth loop reads."""
        return self.panel * (self.format.word_bytes if self.format.is_reduced else form.right.dtype.itemsize)

    def _weights(self, found: AccessSet, body: Body, batch: Box, columns: tuple[int, int]) -> None:
        """What some columns read of the right factor."""
        form = form_of(body)
        if self.right == PACKED:
            self._packed(found, form, batch, columns)
        else:
            self._factor(found, form, form.right, batch, columns)

    def _packed(self, found: AccessSet, form: MatmulForm, batch: Box, columns: tuple[int, int]) -> None:
        size = self.panel_bytes(form)
        first, last = columns[0] // self.panel, -(-columns[1] // self.panel)
        steps = packed_batch_strides(form)
        box = (*batch, (first * size, last * size))
        strides = (*(s * self.panels * size for s in steps), 1)
        found.add(form.right.operand, False, regions_of_box(box, strides, 1))

    def packs(self, body: Body) -> Mapping[int, Pack]:
        if self.right != PACKED:
            return {}
        form = form_of(body)
        right = form.right
        kept = [(d, s) for d, s in zip(form.batch_dims, right.batch, strict=True) if s]
        dims, strides = tuple(d for d, _ in kept), tuple(s for _, s in kept)
        pack = PackPanels(
            dims, strides, form.depth, form.columns, right.depth, right.line, right.offset, self.panel, self.format
        )
        return {right.operand: pack}

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = form_of(body)
        share = self._share(begin, end)
        rows = self.row_tiles * self.tile_rows
        speed = target.flops_per_ns * self.format.speed
        fill = min(1.0, self.tile_rows * self.vectors * self.phases / 8)
        depth = self.depth
        if self.format.tiled:  # whole tiles; with fewer rows than a tile has, loads of the others take the time
            depth, fill = self.words * self.format.step, min(1.0, self.tile_rows / TILE_ROWS)
        compute = 2.0 * self.batch * rows * self.panels * self.panel * depth / (speed * fill * 0.97)
        if self.right != COPY and not self.format.is_reduced and form.right.dtype is not self.acc:
            compute *= 1.0 + _WIDENING / self.tile_rows
        tiles = self.batch * self.row_tiles * self.panels * _TILE_NS * (1 + self.tile_rows * self.vectors / 16)
        ahead = self.fetches_next(form, target.l2_bytes)
        streamed = share
        if self.axis == TILES and self.units:
            streamed = (-(-end // self.row_tiles) - begin // self.row_tiles) / self.panels
        work = self._beside_stream(
            share * compute, streamed, self._stream_ns(form, target, self._passes(streamed)), ahead=ahead
        )
        return _CALL_NS + work + share * tiles + self._copy_ns(form, share, target)

    @property
    def sharers(self) -> int:
        """Row tiles that walk a panel one after the other."""
        return min(self.block, self.band_tiles)

    def fetches_next(self, form: MatmulForm, l2_bytes: int) -> bool:
        """Whether they fetch the next panel together, each its part."""
        rows = self.sharers * self.tile_rows * form.depth * self.acc.itemsize
        fits = self.piece > 0 or 2 * self.panel_bytes(form) + rows <= TOGETHER * l2_bytes
        asks = self.right == PACKED and not self.streamed and not self.format.tiled
        return asks and 1 < self.sharers <= _SHARERS_MAX and fits

    def rows_stay_near(self, target: CpuTarget) -> bool:
        """Whether all rows, read in place, stay in the second-level cache beside panels."""
        return self.row_tiles * self.tile_rows * self.depth * self.acc.itemsize <= _NEAR_ROWS * target.l2_bytes

    def _share(self, begin: int, end: int) -> float:
        """Of the register tiles, those of a range; a last band may have fewer."""
        if self.row_tiles % self.bands == 0:
            return (end - begin) / max(1, self.units)
        last = (self.bands - 1) * self.panels
        short = max(0, end - last) - max(0, begin - last)
        missing = short * (self.bands * self.band_tiles - self.row_tiles)
        return ((end - begin) * self.band_tiles - missing) / (self.row_tiles * self.panels)

    def _beside_stream(self, work: float, share: float, stream: float, *, ahead: bool = False) -> float:
        """Time of arithmetic with the right factor coming near beside it: under all row tiles of a block, which fetch
        the next panel, or, where none does and of the first panel, under the first one alone: the others find it near.
        Ranges of rows need every panel, whatever their share. `stream`: of all passes."""
        if self.right != PACKED:
            return max(work, share * stream)
        passes, whole = self._passes(share), self._reads_all
        first, stream = work * passes / self._tiles(share), stream * (1.0 if whole else self.bands * share)
        waiting = work - first + max(first, stream)
        panels = max(1.0, self.panels * (1.0 if whole else self.bands * share))
        beside = max(work, stream) + _BESIDE * min(work, stream)
        return min(waiting, waiting / panels + beside * (1.0 - 1.0 / panels)) if ahead else waiting

    @property
    def _reads_all(self) -> bool:
        """Whether each range needs every panel."""
        return self.axis == ROWS and self.batch == 1

    def _tiles(self, share: float) -> float:
        """Row tiles that a share of the work walks a panel with."""
        return max(1.0, self.band_tiles * (share if self._reads_all else 1.0))

    def _passes(self, share: float) -> float:
        """How often the packed panels of a share of the work pass by."""
        return max(1.0, self._tiles(share) / self.block) if self.right == PACKED else 1.0

    def _stream_ns(self, form: MatmulForm, target: CpuTarget, passes: float) -> float:
        """Time to bring the right factor near so often; packed panels are one long stream, faster than plain reads.
        Constants come from where the program's are kept, however small the factor."""
        size = self.panel_bytes(form) * self.panels * self.batch
        if self.right != PACKED:
            return memory_ns(size, 2 * size, target)
        sharers = target.readers if self.axis == ROWS else self.bands
        return constants_ns(size, (passes - 1.0) * size, size, sharers, target, _STREAM_SPEEDS[self.band_tiles == 1])

    def _copy_ns(self, form: MatmulForm, share: float, target: CpuTarget) -> float:
        """Copies that a core makes for its range: what lies across the unit axis is copied by every core."""
        total = 0.0
        if self.left == COPY:
            part = share if self.axis == ROWS or form.batch > 1 else max(share, 1.0 / self.bands)
            total += form.batch * form.rows * form.depth * part / self.format.copied_per_ns
        if self.right == COPY:
            times = max(1.0, self.row_tiles * (share if self.axis == ROWS and form.batch == 1 else 1.0) / self.block)
            part = share if self.axis == COLUMNS or form.batch > 1 else 1.0
            vectorised = form.right.line == 1 or form.right.program is not None
            total += (
                form.batch
                * form.columns
                * form.depth
                * part
                * times
                / (8 if vectorised else 4 if form.right.depth == 1 else 1)
            )
        return total


def packed_batch_strides(form: MatmulForm) -> tuple[int, ...]:
    """Per batch dimension, how many packed matrices one step walks (0 where the right factor is broadcast)."""
    steps, step = [], 1
    for extent, stride in zip(reversed(form.batch_dims), reversed(form.right.batch), strict=True):
        steps.append(step if stride else 0)
        step *= extent if stride else 1
    return tuple(reversed(steps))


def output_box(form: MatmulForm, batch: Box, rows: Box, columns: tuple[int, int]) -> Box:
    """The box in the anchor's output shape."""
    box = [*batch, *rows]
    if form.column_axis >= 0:
        box.insert(form.column_axis, columns)
    return tuple(box)


def left_mode(form: MatmulForm) -> str:
    """The left factor is read in place where its elements are already accumulators."""
    plain = form.left.program is None and form.left.dtype is form.acc and form.left_zero is None
    return IN_PLACE if plain else COPY


def make_tiling(
    body: Body,
    axis: str,
    rows: int,
    vectors: int,
    right: str,
    target: CpuTarget,
    number: NumberFormat | None = None,
    bands: int = 1,
) -> MatmulTiling:
    """A tiling with register tiles of at most `rows` rows (fewer where that fills the last one, or all bands, better).
    `number`: the reduced precision, None without."""
    form = form_of(body)
    number = number or formats.elements(form.acc)
    lanes = max(1, target.vector_bytes // form.acc.itemsize)
    tiles = max(1, -(-form.rows // rows // bands) * bands)
    tile_rows = max(1, -(-form.rows // tiles))
    tiles = -(-form.rows // tile_rows)
    band = -(-tiles // bands)  # tiles that go together at most
    phases = 1
    while phases < 8 and tile_rows * vectors * phases * 2 <= min(16, target.vector_registers // 2):
        phases *= 2
    if number.tiled or number.words(form.depth) < 4 * phases:
        phases = 1
    panels = -(-form.columns // (vectors * lanes))
    row_bytes = max(1, form.depth) * form.acc.itemsize * tile_rows
    near = int(target.l2_bytes * _NEAR_ROWS)
    block = max(1, min(band, near // row_bytes))
    if right == COPY and left_mode(form) == IN_PLACE:
        block = max(1, band)  # copying a panel once is worth more than keeping the rows near
    crowded = tile_rows > REGISTER_TILES[target.register_tier][0][0] and is_crowded(form)  # of a tall tile
    packed_share = 1.0
    if number.is_reduced:
        packed_share = number.panel_bytes(form.depth, 1) / max(1, form.right.dtype.itemsize * form.depth)
    made = MatmulTiling(
        axis,
        tile_rows,
        vectors,
        lanes,
        phases,
        COPY if crowded or number.copies_rows else left_mode(form),
        right,
        block,
        form.batch if form.columns and form.rows else 0,
        tiles,
        panels,
        form.depth,
        form.columns % (vectors * lanes),
        number,
        right == PACKED and is_far(form, target, packed_share),
        right == PACKED and not number.is_reduced and tiles <= _STREAMED_TILES and is_streamed(form, target),
        bands=bands,
    )
    if number.is_reduced and made.left == COPY:
        row_bytes = made.left_pitch * form.acc.itemsize * tile_rows
        made = replace(made, block=max(1, min(band, near // row_bytes)))
    return in_pieces(made, target)


def in_pieces(tiling: MatmulTiling, target: CpuTarget) -> MatmulTiling:
    """The tiling with its depth cut into pieces, where its rows are read in place and do not stay near as a whole, or
    not beside two panels."""
    t, near = tiling, int(target.l2_bytes * _NEAR_ROWS)
    plain = t.left == IN_PLACE and t.right == PACKED and t.phases == 1 and not t.format.is_reduced
    step = t.tile_rows * t.acc.itemsize
    beside = t.depth * (t.band_tiles * step + 2 * t.panel * t.acc.itemsize) <= TOGETHER * target.l2_bytes
    if not plain or t.streamed or t.band_tiles == 1 or (t.block == t.band_tiles and beside):
        return t
    block = min(t.band_tiles, near // (step * _PIECE_MIN))
    if block < t.block or t.depth < 2 * _PIECE_MIN:
        return t
    pieces = max(2, -(-t.depth // (near // (step * block))))
    piece = -(-t.depth // pieces // 16) * 16
    group = max(1, min(t.panels, int(target.l2_bytes * _PARKED) // (block * t.tile_bytes)))
    return replace(t, block=block, piece=piece, group=group)


def is_streamed(form: MatmulForm, target: CpuTarget) -> bool:
    """True where constants come from behind the second-level caches, and rows are so many that arithmetic takes longer
    than that: they must come early, not fast."""
    return form.rows > GEMV_ROWS and is_large(form, target)


def is_large(form: MatmulForm, target: CpuTarget) -> bool:
    """True where constants are more than the second-level caches keep."""
    return _constants_bytes(form, target) > _NEAR_SHARE * target.l3_bytes


def is_crowded(form: MatmulForm) -> bool:
    """True where all rows of the left factor lie in the same set of the first-level cache, which keeps eight lines."""
    return left_mode(form) == IN_PLACE and form.left.line * form.acc.itemsize % 4096 == 0


def is_far(form: MatmulForm, target: CpuTarget, packed_share: float = 1.0) -> bool:
    """True where constants, packed to a share of their size, are so many that no cache keeps any of them."""
    return packed_share * _constants_bytes(form, target) > _GONE_SHARE * target.l3_bytes


def _constants_bytes(form: MatmulForm, target: CpuTarget) -> int:
    """Of the program; at least those of the right factor."""
    return max(target.constants_bytes, form.batch * form.depth * form.columns * form.right.dtype.itemsize)
