"""How matrix products are cut for the accelerator: tiles of the result, panels that stay in L1, and the bytes of each.

Model: a unit is one tile of `rows` x `columns` of one batch. One factor is *kept*: its tile (a panel) stays in L1 while
the tiles of the other one, the *streamed* factor, come past it; units are numbered panel by panel, so that a contiguous
range shares panels. Where a panel is too deep for L1 it is kept in groups of its depth: each tile goes through all
groups in turn and begins with the one that the tile ahead ended with, so that the group which is there is used by two
tiles. Panel p begins with streamed tile p // `stagger`, not 0, and with group p x `drift`: cores that begin with
different panels then read different tiles and depths, and not all the same banks of L2 at once.

Epilogues: what FIX can do on the way (`conv_fix`), the cube core does alone (FIX). Everything else is MIX: tiles of
sums go through the group's workspace, each vector core of the group takes half of each tile (of its rows, or of its
columns where there are few rows) and runs the program on it.

Invariants: the depth is never split over units, and the order in which a tile's depth is walked depends on the unit's
number alone: any split of the units gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Box, Region, regions_of_box
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.ir.collapse import runs_of_range
from superkernel.registry.models import cube
from superkernel.registry.predicates import Reason, within
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES, AicoreTiling, KernelType, Role, mixes
from superkernel.scheduler.families.aicore.conv_fix import FixForm, fix_form
from superkernel.scheduler.families.aicore.cube import (
    Cut,
    Factor,
    Layout,
    PackFactor,
    PackVector,
    packed_batch_strides,
)
from superkernel.scheduler.families.aicore.kernel import FLOATS, AicoreKernel
from superkernel.scheduler.families.aicore.matmul_form import Product, Side, product_of, turned
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.tiling import Access, Family, Pack, Tiling
from superkernel.target.aicore import AicoreTarget

LEFT, RIGHT = "left", "right"
LANES = (1, 2)  # vector cores of a group that can share tiles
CHANNEL_SLOTS = 2
STRIDE_MAX = (1 << 32) - 1  # bytes, of a row in global memory
Span = tuple[int, int]


@dataclass(frozen=True)
class MatmulTiling(AicoreTiling):
    """See the module docstring. `cut`: the depth in groups of the kept factor, chunks of the streamed one, and steps of
    the cube; `kept_slots`: panels that L1 holds; `sums`: tiles that L0C holds; `halves`: 2 where the cube works on the
    two halves of a tile one after the other, chunk by chunk, so that one is stored while it works on the other;
    `lanes`: vector cores that take part, 0 where FIX does the epilogue."""

    kept: str
    rows: int
    columns: int
    cut: Cut
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
        return self.lanes > 0

    @property
    def kernel_type(self) -> KernelType:
        return (KernelType.CUBE, KernelType.MIX_1_1, KernelType.MIX_1_2)[self.lanes]

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

    def product(self, body: Body) -> Product:
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

    def tiles(self, product: Product, begin: int, end: int) -> Iterator[tuple[Box, Span, Span]]:
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

    def role_accesses(self, body: Body, begin: int, end: int, role: Role) -> tuple[Access, ...]:
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

    def _span(self, tiles: Span, side: str, product: Product) -> Span:
        size, extent = (self.rows, product.rows) if side == LEFT else (self.columns, product.columns)
        return tiles[0] * size, min(tiles[1] * size, extent)

    def _epilogue(self, found: AccessSet, product: Product, begin: int, end: int) -> None:
        for batch, row_tiles, column_tiles in self.tiles(product, begin, end):
            box = (*batch, self._span(row_tiles, LEFT, product), self._span(column_tiles, RIGHT, product))
            found.program(product.program, box)

    def _lane(self, found: AccessSet, product: Product, begin: int, end: int, lane: int) -> None:
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
            if factor.layout is not Layout.PACKED:
                continue
            kept = [(d, s) for d, s in zip(product.batch_dims, side.batch, strict=True) if s]
            found[side.operand] = PackFactor(
                tuple(d for d, _ in kept), tuple(s for _, s in kept), factor.lines, factor.line_stride,
                factor.depth_stride, factor.offset, factor.tile, self.cut, self.block_bytes // factor.item,
                self.line_block,
            )  # fmt: skip
        fix = None if self.mix else fix_of(body)
        for vector in fix.vectors if fix is not None else ():
            found[vector.operand] = PackVector(vector.offset, vector.stride, product.columns)
        return found

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        from superkernel.scheduler.families.aicore.matmul_cost import cycles_of

        return cycles_of(self, body, end - begin, target)


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


def _reads(found: AccessSet, product: Product, side: Side, factor: Factor, batch: Box, lines: Span) -> None:
    if factor.layout is not Layout.PACKED:
        strides = (*side.batch, side.line, side.depth)
        found.view(side.operand, (*batch, lines, (0, product.depth)), strides, side.offset)
        return
    line_bytes = factor.padded_depth * factor.item
    span = (lines[0] * line_bytes, min(ceil_to(lines[1], factor.line_block) * line_bytes, factor.packed_matrix_bytes))
    steps = packed_batch_strides(product.batch_dims, side.batch)
    strides = (*(s * factor.packed_matrix_bytes for s in steps), 1)
    found.add(side.operand, False, regions_of_box((*batch, span), strides, 1))


def layout_of(side: Side, lines: int, depth: int, item: int) -> Layout | None:
    """How a factor is read; None where the engines cannot read it without a copy."""
    if side.constant:
        return Layout.PACKED
    if not (0 <= side.line * item <= STRIDE_MAX and 0 <= side.depth * item <= STRIDE_MAX):
        return None
    if side.depth == 1 or depth == 1:
        return Layout.LINES if side.line != 1 or depth > 1 else Layout.DEPTHS
    return Layout.DEPTHS if side.line == 1 or (lines == 1 and side.depth * item <= STRIDE_MAX) else None


@lru_cache(maxsize=1024)
def factors(product: Product, tiling: MatmulTiling) -> tuple[Factor, Factor]:
    """Left and right as the kernel reads them."""

    def made(side: Side, is_left: bool) -> Factor:
        lines, tile = (product.rows, tiling.rows) if is_left else (product.columns, tiling.columns)
        layout = layout_of(side, lines, product.depth, product.dtype.itemsize)
        assert layout is not None, "the family refuses such views"
        kept = is_left == (tiling.kept == LEFT)
        return Factor(
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
    return fix_form(body, _columns_second(program))


def _columns_second(program: PointwiseProgram) -> PointwiseProgram:
    """The program with its last dimension moved to where `fix_form` expects channels."""
    rank = len(program.shape)
    order = (0, rank - 1, *range(1, rank - 1))

    def walk(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[d] for d in order)

    return replace(
        program,
        shape=walk(program.shape),
        inputs=tuple(replace(i, strides=walk(i.strides)) if i.source >= 0 else i for i in program.inputs),
        outputs=tuple(replace(o, strides=walk(o.strides)) if o.target >= 0 else o for o in program.outputs),
    )


class MatmulFamily(Family):
    """`aicore.matmul`: constant or computed factors, one matrix or a batch of them, f16, bf16, f32 and i8."""

    kernels: tuple[str, ...] = ("aicore.matmul",)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        """Matrices with elements side by side along either of their axes."""
        rank = len(view.shape)
        if view.is_dense or rank == 0 or slot > 1:
            return view.is_dense
        inner = [(s, d) for s, d in zip(view.strides[-2:], view.shape[-2:], strict=True) if d > 1]
        fits = all(0 <= s * dtype.itemsize <= STRIDE_MAX for s, _ in inner)
        return fits and (not inner or any(s == 1 for s, _ in inner))

    def accepts_epilogue(self, kernel: str, target: object) -> bool:
        return not isinstance(target, AicoreTarget) or mixes(target, LANES)

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[Tiling]:
        from superkernel.scheduler.families.aicore.matmul_search import candidates

        return candidates(body, target)


FAMILY = MatmulFamily()

KERNELS = (
    AicoreKernel(
        id="aicore.matmul",
        ops=("matmul",),
        family=FAMILY,
        emitter="matmul",
        micro="gemm",
        core_type="mix",
        dtypes=FLOATS,
        others=(None,),
        limits=(within(Reason.SHAPE, "k", 1),),
        stepped=True,
        deep=True,
        cost=cube,
        rounding=PRODUCT_SUMS,
    ),
)
