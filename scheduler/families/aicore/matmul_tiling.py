"""How matrix products are cut for the accelerator: tiles of the result, panels that stay in L1, and the bytes of each.

Model: a unit is one tile of `rows` x `columns` of one batch. One factor is *kept*: its tile (a panel) stays in L1 while
the tiles of the other one, the *streamed* factor, come past it; units are numbered panel by panel, so that a contiguous
range shares panels. Where a panel is too deep for L1 it is kept in groups of its depth: each tile goes through all
groups in turn and begins with the one that the tile ahead ended with, so that the group which is there is used by two
tiles. Panel p begins with streamed tile p // `stagger`, not 0, and with group p x `drift`: cores that begin with
different panels then read different tiles and depths, and not all the same banks of L2 at once.

Epilogues: what FIX can do on the way (`conv_fix`), the cube core does alone (FIX). Everything else is MIX: tiles of
sums go through the group's workspace, each vector core of the group takes half of each tile (of its rows, or of its
columns where there are few rows) and runs the program on it, in pieces of rows x columns that fit into UB: two slots
each for sums, inputs and outputs, temporaries once.

Invariants: the depth is never split over units, and the order in which a tile's depth is walked depends on the unit's
number alone: any split of the units gives the same bits.

Cost: the kernel's order of loads, steps and stores is played through, chunk by chunk, with one time per engine: MTE2
fills the slots of L1, MTE1 and the cube work chunks off together, FIX stores tiles; a slot is filled again when it has
been worked off. A few tiles are played, the others take as long as the later ones of these. What MTE2 needs is what
is short: hence large tiles, and few and large transfers, because each costs a start-up.

Everything comes from HBM once, at the rate of misses of whoever reads it first, or of those who do at the same time.

Not in it: banks and channels that others are at, the wait for what others produce.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Box, Region, regions_of_box
from superkernel.ir.body import Body, PointwiseProgram, Role
from superkernel.ir.collapse import permuted, runs_of_range
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES, AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.families.aicore.conv_fix import FixForm, fix_form
from superkernel.scheduler.families.aicore.cube import (
    CubeFactor,
    DepthCut,
    FactorLayout,
    FirstReads,
    cube_cycles,
    fix_cycles,
    packed_batch_strides,
)
from superkernel.scheduler.families.aicore.cuts import output_types
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.matmul_form import CubeProduct, Side, product_of, turned
from superkernel.scheduler.families.aicore.packs import PackVector
from superkernel.scheduler.families.aicore.rounding import ceil_to, largest
from superkernel.scheduler.families.aicore.tilecode import Home, TileCode, TileSize
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.tiling import Access, Pack
from superkernel.target.aicore import AicoreTarget

LEFT, RIGHT = "left", "right"
LANES = (1, 2)  # vector cores of a group that can share tiles
CHANNEL_SLOTS = 2
STRIDE_MAX = (1 << 32) - 1  # bytes, of a row in global memory
Span = tuple[int, int]
LANE_SLOTS = 2  # of sums, inputs and outputs in a vector core
PIECE_ROWS = 16  # below that, narrower pieces are tried first: commands and transfers cost per command
PLAYED_MIN, PLAYED_MAX = 4, 9  # tiles
# Cycles of the control unit for a step, a chunk and a tile.
STEP_CONTROL, CHUNK_CONTROL, TILE_CONTROL = 70, 60, 200


@dataclass(frozen=True)
class MatmulTiling(AicoreTiling):
    """See the module docstring. `cut`: the depth in groups of the kept factor, chunks of the streamed one, and steps of
    the cube; `kept_slots`: panels that L1 holds; `sums`: tiles that L0C holds; `halves`: 2 where the cube works on the
    two halves of a tile one after the other, chunk by chunk, so that one is stored while it works on the other;
    `lanes`: vector cores that take part, 0 where FIX does the epilogue."""

    missed: ClassVar[frozenset[Role]] = frozenset({Role.INPUT, Role.CONSTANT})

    kept: str
    rows: int
    columns: int
    cut: DepthCut
    kept_slots: int
    sums: int
    halves: int
    lanes: int
    batch: int
    row_tiles: int
    column_tiles: int
    block_bytes: int
    line_block: int
    drift: int = 1
    stagger: int = 1

    @property
    def part(self) -> tuple[int, int]:
        """Rows and columns of a tile's first half, the longer side being halved; of the tile where it has no halves."""
        if self.halves == 1:
            return self.rows, self.columns
        if self.halves_columns:
            return self.rows, ceil_to(-(-self.columns // 2), self.line_block)
        return ceil_to(-(-self.rows // 2), self.line_block), self.columns

    @property
    def halves_columns(self) -> bool:
        """Which side is halved: the longer one."""
        return self.columns >= self.rows

    @property
    def units(self) -> int:
        return self.batch * self.row_tiles * self.column_tiles

    @property
    def mix(self) -> bool:
        """Whether vector cores take part, with the epilogue."""
        return self.lanes > 0

    @property
    def kernel_type(self) -> AicoreKernelType:
        return (AicoreKernelType.CUBE, AicoreKernelType.MIX_1_1, AicoreKernelType.MIX_1_2)[self.lanes]

    @property
    def panels(self) -> int:
        """Panels of a batch."""
        return self.row_tiles if self.kept == LEFT else self.column_tiles

    @property
    def panel_tiles(self) -> int:
        """Units of a panel."""
        return self.column_tiles if self.kept == LEFT else self.row_tiles

    @property
    def slot_bytes(self) -> int:
        """A tile of sums in the workspace."""
        return ceil_to(self.rows * self.columns * 4, CHANNEL_ALIGN_BYTES)

    @property
    def scratch_bytes(self) -> int:
        return CHANNEL_SLOTS * self.slot_bytes if self.mix else 0

    @property
    def turns(self) -> bool:
        """Whether the kernel computes the transposed product."""
        return False

    def product(self, body: Body) -> CubeProduct:
        """The product as the kernel computes it."""
        return turned(product_of(body)) if self.turns else product_of(body)

    @property
    def lane_tiles(self) -> int:
        """Pieces of sums that a vector core has in UB at a time (each twice)."""
        return 1

    @property
    def kept_depth(self) -> int:
        """Depth of what one slot in L1 holds of the kept factor."""
        return self.cut.group

    # Which part of the result ---------------------------------------------------------------------------------------

    def tiles(self, product: CubeProduct, begin: int, end: int) -> Iterator[tuple[Box, Span, Span]]:
        """(batch box, rows, columns) in tiles, of what units [begin, end) compute."""
        count = self.panel_tiles
        for box in runs_of_range((*product.batch_dims, self.panels, count), begin, end):
            batch, panels, (first, last) = box[:-2], box[-2], box[-1]
            spans: list[Span] = [(first, last)]
            if last - first < count:
                start = (first + panels[0] // self.stagger) % count
                stop = start + last - first
                spans = [(start, min(stop, count)), *([(0, stop - count)] if stop > count else [])]
            for span in spans:
                yield (batch, panels, span) if self.kept == LEFT else (batch, span, panels)

    def split(self, rows: int, columns: int) -> tuple[tuple[Span, Span], tuple[Span, Span]]:
        """(rows, columns) of the lanes of a MIX tile that has so many."""
        if self.lanes == 1:
            return ((0, rows), (0, columns)), ((rows, rows), (columns, columns))
        if self.halves_rows:
            half = -(-rows // 2)
            return ((0, half), (0, columns)), ((half, rows), (0, columns))
        half = min(columns, self.column_half)
        return ((0, rows), (0, half)), ((0, rows), (half, columns))

    @property
    def halves_rows(self) -> bool:
        """Whether the lanes of a MIX tile share its rows; its columns otherwise."""
        return self.rows > self.line_block

    @property
    def column_half(self) -> int:
        """Columns of the first lane where the lanes share the columns."""
        return ceil_to(-(-self.columns // 2), self.line_block)

    # What is touched ------------------------------------------------------------------------------------------------

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        self._cube(found, body, begin, end)
        if self.mix:
            self._epilogue(found, self.product(body), begin, end)
        return found.result()

    def role_accesses(self, body: Body, begin: int, end: int, role: CoreRole) -> tuple[Access, ...]:
        found = AccessSet(body)
        if role.is_cube:
            self._cube(found, body, begin, end)
        else:
            self._lane(found, self.product(body), begin, end, role.lane)
        return found.result()

    def _cube(self, found: AccessSet, body: Body, begin: int, end: int) -> None:
        """The factors; for FIX also what it adds and stores."""
        product = self.product(body)
        left, right = factors(product, self)
        fix = None if self.mix else fix_of(body)
        for batch, row_tiles, column_tiles in self.tiles(product, begin, end):
            rows, columns = self._span(row_tiles, LEFT, product), self._span(column_tiles, RIGHT, product)
            _reads(found, product, product.left, left, batch, rows)
            _reads(found, product, product.right, right, batch, columns)
            if fix is not None:
                for vector in fix.vectors:
                    found.add(vector.operand, False, _run(columns))
                found.program(_stores(product.program), (*batch, rows, columns))

    def _span(self, tiles: Span, side: str, product: CubeProduct) -> Span:
        size, extent = (self.rows, product.rows) if side == LEFT else (self.columns, product.columns)
        return tiles[0] * size, min(tiles[1] * size, extent)

    def _epilogue(self, found: AccessSet, product: CubeProduct, begin: int, end: int) -> None:
        for batch, row_tiles, column_tiles in self.tiles(product, begin, end):
            box = (*batch, self._span(row_tiles, LEFT, product), self._span(column_tiles, RIGHT, product))
            found.program(product.program, box)

    def _lane(self, found: AccessSet, product: CubeProduct, begin: int, end: int, lane: int) -> None:
        """What a vector core does of each tile."""
        for batch, row_tiles, column_tiles in self.tiles(product, begin, end):
            for i in range(*row_tiles):
                rows = self._span((i, i + 1), LEFT, product)
                if self.halves_rows:
                    own = self.split(rows[1] - rows[0], 0)[lane][0]
                    box = (*batch, _shifted(own, rows[0]), self._span(column_tiles, RIGHT, product))
                    _program(found, product.program, box)
                    continue
                for j in range(*column_tiles):
                    columns = self._span((j, j + 1), RIGHT, product)
                    own = self.split(0, columns[1] - columns[0])[lane][1]
                    _program(found, product.program, (*batch, rows, _shifted(own, columns[0])))

    def packs(self, body: Body) -> Mapping[int, Pack]:
        product = self.product(body)
        found: dict[int, Pack] = {}
        for side, factor in zip((product.left, product.right), factors(product, self), strict=True):
            if factor.layout is not FactorLayout.PACKED:
                continue
            kept = [(d, s) for d, s in zip(product.batch_dims, side.batch, strict=True) if s]
            found[side.operand] = factor.pack(tuple(d for d, _ in kept), tuple(s for _, s in kept))
        fix = None if self.mix else fix_of(body)
        for vector in fix.vectors if fix is not None else ():
            found[vector.operand] = PackVector(vector.offset, vector.stride, product.columns)
        return found

    def panel_follows(self, constant: bool) -> bool:
        """Whether the panel (`constant`: of weights) is loaded behind the first chunks: it is the only one, and others
        produce it."""
        return not constant and self.cut.groups == self.kept_slots == self.batch * self.panels == 1

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return cycles_of(self, body, end - begin, target)

    def lead_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        product, figures = self.product(body), _figures(self, body, target)
        kept, streamed = (product.left, product.right) if self.kept == LEFT else (product.right, product.left)
        if begin >= end or not (kept.constant or streamed.constant):
            return 0.0
        if kept.constant:
            return figures.groups[0]
        return sum(load for load, _ in figures.chunks[0][: 2 if self.panel_follows(constant=False) else 1])


def _run(columns: Span) -> tuple[Region, ...]:
    """f32 numbers of a packed vector."""
    return regions_of_box((columns,), (1,), 4)


def _shifted(span: Span, start: int) -> Span:
    return span[0] + start, span[1] + start


def _program(found: AccessSet, program: PointwiseProgram, box: Box) -> None:
    if all(a < b for a, b in box):
        found.program(program, box)


def _stores(program: PointwiseProgram) -> PointwiseProgram:
    """The program without what it reads."""
    return PointwiseProgram(program.shape, (), (), program.outputs)


def _reads(found: AccessSet, product: CubeProduct, side: Side, factor: CubeFactor, batch: Box, lines: Span) -> None:
    if factor.layout is not FactorLayout.PACKED:
        strides = (*side.batch, side.line, side.depth)
        found.view(side.operand, (*batch, lines, (0, product.depth)), strides, side.offset)
        return
    line_bytes = factor.padded_depth * factor.item
    span = (lines[0] * line_bytes, min(ceil_to(lines[1], factor.line_block) * line_bytes, factor.packed_matrix_bytes))
    steps = packed_batch_strides(product.batch_dims, side.batch)
    strides = (*(s * factor.packed_matrix_bytes for s in steps), 1)
    found.add(side.operand, False, regions_of_box((*batch, span), strides, 1))


def layout_of(side: Side, depth: int, item: int) -> FactorLayout | None:
    """How a factor is read; None where the engines cannot read it without a copy."""
    if side.constant:
        return FactorLayout.PACKED
    if not (0 <= side.line * item <= STRIDE_MAX and 0 <= side.depth * item <= STRIDE_MAX):
        return None
    if side.depth == 1 or depth == 1:
        return FactorLayout.LINES if side.line != 1 or depth > 1 else FactorLayout.DEPTHS
    return FactorLayout.DEPTHS if side.line == 1 else None


@lru_cache(maxsize=1024)
def factors(product: CubeProduct, tiling: MatmulTiling) -> tuple[CubeFactor, CubeFactor]:
    """Left and right as the kernel reads them."""

    def made(side: Side, is_left: bool) -> CubeFactor:
        lines, tile = (product.rows, tiling.rows) if is_left else (product.columns, tiling.columns)
        layout = layout_of(side, product.depth, product.dtype.itemsize)
        assert layout is not None, "the family refuses such views"
        kept = is_left == (tiling.kept == LEFT)
        return CubeFactor(
            side.operand, product.dtype, layout, is_left, lines, tile, side.line, side.depth, side.offset, tiling.cut,
            min(tiling.kept_depth if kept else tiling.cut.chunk, product.depth), tiling.block_bytes, tiling.line_block,
        )  # fmt: skip

    return made(product.left, True), made(product.right, False)


@lru_cache(maxsize=1024)
def fix_of(body: Body) -> FixForm | None:
    """How FIX does the epilogue, None where vector cores must. Its strides are not those of the product's program."""
    product = product_of(body)
    program = product.program
    if len(program.outputs) != 1 or program.outputs[0].target < 0:
        return None
    out = program.outputs[0]
    if (product.columns > 1 and out.strides[-1] != 1) or not 0 <= out.strides[-2] * 4 <= STRIDE_MAX:
        return None
    if product.accumulator is DType.I32:
        plain = program.is_store_only and body.operands[out.target].type.dtype is DType.I32
        return FixForm(out.target, out.strides, out.offset) if plain else None
    rank = len(program.shape)
    return fix_form(body, permuted(program, (0, rank - 1, *range(1, rank - 1))))  # columns are its channels


# A vector core's share ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def lane_code(body: Body, turns: bool = False) -> TileCode:
    """The epilogue as tile code; `turns`: of the transposed product. Raises UnsupportedError where the vector engine
    cannot do it."""
    product = turned(product_of(body)) if turns else product_of(body)
    program = product.program
    rank = len(program.shape)
    types = output_types(body, program)
    return lower(program, types, rank - 2, rank - 1, anchors=(product.accumulator,))


@lru_cache(maxsize=1024)
def lane_size(body: Body, tiling: MatmulTiling, target: AicoreTarget) -> TileSize:
    """The largest piece that fits into UB: the whole width, if a few rows of it fit, else part of it."""
    code, block = lane_code(body, tiling.turns), target.memory.block_bytes
    tiles, capacity = tiling.lane_tiles, target.memory.ub_bytes
    (_, height), (_, width) = tiling.split(tiling.rows, tiling.columns)[0]
    best: TileSize | None = None

    def most_rows(width: int) -> int:
        return largest(height, lambda rows: lane_bytes(code, TileSize(rows, width, block), tiles) <= capacity)

    while True:
        rows = most_rows(width)
        if rows and (best is None or rows * width > best.rows * best.cols or best.rows < min(PIECE_ROWS, height)):
            best = TileSize(rows, width, block)
        if (best is not None and best.rows >= min(PIECE_ROWS, height)) or width <= tiling.line_block:
            break
        width = ceil_to(width // 2, tiling.line_block)
    if best is None:
        raise UnsupportedError(
            "the epilogue of a matrix product does not fit into a vector core",
            location="memory.ub_bytes",
            found=f"{target.memory.ub_bytes}",
        )
    return best


def lane_bytes(code: TileCode, size: TileSize, tiles: int = 1) -> int:
    """UB that a piece needs. `tiles`: of sums."""
    sums = tiles * size.rows * ceil_to(size.cols * 4, size.block_bytes)
    moved = sums + code.home_bytes(Home.INPUT, size) + code.home_bytes(Home.OUTPUT, size)
    # Buffers begin at whole blocks.
    slack = size.block_bytes * (1 + tiles + len(code.registers))
    return LANE_SLOTS * moved + code.temporaries(size)[1] + slack


# Cost -----------------------------------------------------------------------------------------------------------------


def cycles_of(tiling: MatmulTiling, body: Body, units: int, target: AicoreTarget) -> float:
    """Cycles of one core (group) for so many units, where all have as many."""
    figures = _figures(tiling, body, target)
    played = min(units, max(PLAYED_MIN, min(PLAYED_MAX, 2 * tiling.panel_tiles)))
    begin = _most_panels(units, tiling.units, target.device.cube_cores, tiling.panel_tiles)
    player = _Player(figures, tiling, begin)
    ends = [player.tile(unit, unit == begin + played - 1) for unit in range(begin, begin + played)]
    total = ends[-1] if ends else 0.0
    if units > played:
        half = played // 2
        total += (units - played) * (ends[-1] - ends[half - 1]) / (played - half)
    return max(total, units * max(figures.control, figures.vector)) + (figures.vector if units else 0.0)


@lru_cache(maxsize=4096)
def _most_panels(units: int, total: int, cores: int, panel_tiles: int) -> int:
    """The first unit, within its panel, of the range of so many that touches most panels, in an even split of all."""
    if not units:
        return 0
    ranges = cores if -(-total // cores) == units else -(-total // units)
    bounds = [(i * total // ranges, (i + 1) * total // ranges) for i in range(ranges)]
    longest = [begin % panel_tiles for begin, end in bounds if end - begin == units]
    return max(longest, key=lambda begin: (begin + units - 1) // panel_tiles, default=0)


@dataclass(frozen=True)
class _Figures:
    """Cycles: `groups` to load each group of the kept factor; of each group, by chunk: (load, cube and MTE1 for a half
    of the tile); `fix` for a half, `vector` for what a vector core does of a tile."""

    groups: tuple[int, ...]
    chunks: tuple[tuple[tuple[int, int], ...], ...]
    vectors: int
    fix: int
    vector: float
    control: int
    constant: bool  # the kept factor


@lru_cache(maxsize=4096)
def _figures(tiling: MatmulTiling, body: Body, target: AicoreTarget) -> _Figures:
    product, cut = product_of(body), tiling.cut
    left, right = factors(product, tiling)
    kept, streamed = (left, right) if tiling.kept == LEFT else (right, left)
    m, n = min(tiling.rows, product.rows), min(tiling.columns, product.columns)
    kept_lines, streamed_lines = (m, n) if tiling.kept == LEFT else (n, m)
    part = min(m, tiling.part[0]), min(n, tiling.part[1])

    @lru_cache
    def step(depths: int) -> tuple[int, int]:
        feed = left.feed_cycles(part[0], depths, target) + right.feed_cycles(part[1], depths, target)
        return cube_cycles(*part, depths, product.dtype, target), feed

    @lru_cache
    def chunk(depths: int) -> tuple[int, int]:
        whole, rest = divmod(depths, cut.step)
        cube, feed = (whole * a + (b if rest else 0) for a, b in zip(step(cut.step), step(rest or 1), strict=True))
        return streamed.load_cycles(streamed_lines, depths, target, first_streamed), max(cube, feed)

    first_kept, first_streamed = _first_reads(
        min(target.device.cube_cores, tiling.units), tiling.batch, tiling.panels, tiling.panel_tiles, cut.groups,
        tiling.drift, tiling.stagger,
    )  # fmt: skip
    depths = [min(cut.group, cut.depth - at) for at in range(0, cut.depth, cut.group)]
    chunks = tuple(tuple(chunk(min(cut.chunk, d - at)) for at in range(0, d, cut.chunk)) for d in depths)
    count = sum(map(len, chunks))
    control = tiling.halves * -(-cut.depth // cut.step) * STEP_CONTROL + count * CHUNK_CONTROL + TILE_CONTROL
    loads = tuple(kept.load_cycles(kept_lines, d, target, first_kept) for d in depths)
    vectors, fix, vector = _store_cycles(tiling, body, *part, target)
    return _Figures(loads, chunks, vectors, fix, vector, control, kept.layout is FactorLayout.PACKED)


@lru_cache(maxsize=4096)
def _first_reads(
    cores: int, batch: int, panels: int, tiles: int, groups: int, drift: int, stagger: int
) -> tuple[FirstReads, FirstReads]:
    """Of the kept and of the streamed factor, where all cores begin at one time and go on in step: their loads, a group
    of the depth of a tile at a time."""
    units = batch * panels * tiles
    share = -(-units // max(1, cores))
    unit = np.minimum(np.arange(cores)[:, None] * units // max(1, cores) + np.arange(share), max(0, units - 1))
    panel, position = np.divmod(unit, tiles)
    start = (panel * drift + position * (groups - 1)) % groups
    group = (start[..., None] + np.arange(groups)) % groups
    tile = panel // panels * tiles + (position + panel % panels // stagger) % tiles
    step = np.broadcast_to(np.arange(share * groups).reshape(share, groups), group.shape)
    loads = np.ones(group.shape, bool)  # of the kept factor: a tile begins with the group that the one ahead ended with
    loads[:, 1:, 0] = panel[:, 1:] != panel[:, :-1]
    kept = _first_of((panel[..., None] * groups + group)[loads], step[loads])
    return kept, _first_of((tile[..., None] * groups + group).ravel(), step.ravel())


def _first_of(loaded: NDArray[np.int64], step: NDArray[np.int64]) -> FirstReads:
    """Of loads at those steps, by what is loaded."""
    if not loaded.size:
        return FirstReads(1.0, 1.0, 1.0)
    never = step.max() + 1
    first = np.full(loaded.max() + 1, never)
    np.minimum.at(first, loaded, step)
    firsts, read = int((first[loaded] == step).sum()), np.bincount(first)[:never]
    return FirstReads(firsts / loaded.size, firsts / int(read.sum()), int(read.max()))


def _store_cycles(tiling: MatmulTiling, body: Body, m: int, n: int, target: AicoreTarget) -> tuple[int, int, float]:
    """Cycles of FIX's vectors for a tile, of FIX for m x n, and of a vector core's share of a tile."""
    product = product_of(body)
    if not tiling.mix:
        out = product.program.outputs[0]
        item = body.operands[out.target].type.dtype.itemsize
        count = len(fix.vectors) if (fix := fix_of(body)) is not None else 0
        one = target.move_cycles("rates.gm_to_l1_gb_per_s", 1, tiling.columns * 4)
        return count * one, fix_cycles(m, n, item, out.strides[-2] * item, target), 0.0
    half = m * n * tiling.halves // tiling.lanes
    program = product.program
    moved = sum(body.operands[i.source].type.dtype.itemsize for i in program.inputs if i.source >= 0 and i.strides[-1])
    loads = target.transfer_cycles("rates.gm_to_ub_gb_per_s", half * (4 + moved))
    computed = half / target.vector.lanes_32bit * max(1, 3 * len(program.instructions))
    start = (2 + len(program.inputs)) * target.dma.startup_cycles
    return 0, fix_cycles(m, n, 4, 0, target), start + max(loads, computed)


class _Player:
    """Times of the engines, in the order in which the kernel issues its commands."""

    def __init__(self, figures: _Figures, tiling: MatmulTiling, begin: int) -> None:
        self.figures, self.tiling = figures, tiling
        self.mte2 = self.cube = self.fix = self.panel = 0.0
        self.ready: list[float] = []  # chunks in L1, not yet worked off
        self.free = [0.0, 0.0]  # when the chunk slots are worked off, oldest first
        self.stored = [0.0] * max(tiling.sums, tiling.halves)
        self.held: tuple[int, int] | None = None
        self.ahead, self.late = tiling.kept_slots == 2, tiling.panel_follows(figures.constant)
        self.coming, self.coming_ready = -1, 0.0
        self.worked = [0.0, 0.0]  # when the panels of two slots are worked off
        group = self._order(begin)[0][0]
        if figures.constant and not self.ahead:
            self._hold(0, group)
        self._load(begin, group, 0)

    def _load(self, unit: int, group: int, chunk: int) -> None:
        self.mte2 = max(self.mte2, self.free.pop(0)) + self.figures.chunks[group][chunk][0]
        self.ready.append(self.mte2)
        if self.ahead and unit // self.tiling.panel_tiles != self.coming:
            self.coming = unit // self.tiling.panel_tiles
            self.mte2 = max(self.mte2, self.worked.pop(0)) + self.figures.groups[0]
            self.coming_ready = self.mte2

    def _hold(self, panel: int, group: int) -> None:
        if self.held != (panel, group):
            self.mte2 = max(self.mte2, self.cube) + self.figures.groups[group]
            self.panel, self.held = self.mte2, (panel, group)

    def tile(self, unit: int, last: bool) -> float:
        """Play a tile: when it is stored."""
        figures, panel = self.figures, unit // self.tiling.panel_tiles
        order = self._order(unit)
        self.mte2 += figures.vectors
        if self.ahead and self.held != (panel, 0):
            if self.held is not None:
                self.worked.append(self.cube)
            self.panel, self.held = self.coming_ready, (panel, 0)
        for place, (group, chunk) in enumerate(order):
            if not self.ahead and not self.late:
                self._hold(panel, group)
            if place + 1 < len(order):
                self._load(unit, *order[place + 1])
            elif not last:
                self._load(unit + 1, *self._order(unit + 1)[0])
            if self.late:
                self._hold(panel, group)
            self.cube = max(self.cube, self.ready.pop(0), self.panel)
            for _ in range(self.tiling.halves):
                if place == 0:
                    self.cube = max(self.cube, self.stored.pop(0))
                self.cube += figures.chunks[group][chunk][1]
                if place + 1 == len(order):
                    self.fix = max(self.fix, self.cube) + figures.fix
                    self.stored.append(self.fix)
            self.free.append(self.cube)
        return self.fix

    def _order(self, unit: int) -> list[tuple[int, int]]:
        """(group, chunk) of a tile: it begins with the group that the tile ahead ended with."""
        count = len(self.figures.groups)
        panel, position = divmod(unit, self.tiling.panel_tiles)
        start = (panel * self.tiling.drift + position * (count - 1)) % count
        groups = [(start + i) % count for i in range(count)]
        return [(g, c) for g in groups for c in range(len(self.figures.chunks[g]))]
