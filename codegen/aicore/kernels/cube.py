"""What kernels on the cube share: bringing a chunk of a factor into L1 and a step of it into L0A or L0B, multiplying,
and where the tile of a unit lies.

Model: see `scheduler/families/aicore/cube.py`. A tile's place in global memory is `tile_offset`; a chunk begins at a
depth of that tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.codegen.aicore.commands import OperandValue
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore.cube import CubeFactor, FactorLayout, packed_batch_strides
from superkernel.scheduler.families.aicore.matmul_tiling import LEFT, MatmulTiling
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.engines import Local


def block_up(value: Number, unit: int) -> Number:
    """Rounded up to a multiple of a power of two."""
    if isinstance(value, int):
        return ceil_to(value, unit)
    places = unit.bit_length() - 1
    return ((value + (unit - 1)) >> places) << places


class FactorCode:
    """Commands that move one factor. `depth_unit`: elements of depth in a fractal."""

    def __init__(self, kb: KernelBuilder, factor: CubeFactor) -> None:
        self.kb, self.factor = kb, factor
        self.depth_unit = factor.block_bytes // factor.item

    def lines_of(self, tile: Number) -> Number:
        """Lines of a tile: fewer in the last one."""
        f = self.factor
        if f.lines % f.tile == 0:
            return f.tile
        return self.kb.minimum(f.tile, f.lines - tile * f.tile)

    def tile_offset(self, batch: Sequence[Number], dims: Sequence[int], strides: Sequence[int], tile: Number) -> Number:
        """Bytes from the operand's start to a tile; `batch`: a coordinate per batch dimension."""
        f = self.factor
        if f.layout is FactorLayout.PACKED:
            steps = packed_batch_strides(dims, strides)
            line = f.padded_depth * f.item
            place: Number = tile * (f.tile * line)
            for index, step in zip(batch, steps, strict=True):
                place = place + index * (step * f.packed_matrix_bytes)
            return place
        place = tile * (f.tile * f.line_stride * f.item) + f.offset * f.item
        for index, stride in zip(batch, strides, strict=True):
            place = place + index * (stride * f.item)
        return place

    @property
    def tile_bytes(self) -> int:
        """Bytes from a tile to the next."""
        f = self.factor
        return f.tile * f.item * (f.padded_depth if f.layout is FactorLayout.PACKED else f.line_stride)

    def load(self, dst: Buffer | Part, tile_offset: Number, lines: Number, depth: Number, depths: Number) -> None:
        """A chunk of a tile, `depths` deep from `depth` on, into L1."""
        kb, f = self.kb, self.factor
        if f.layout is FactorLayout.PACKED:
            row = block_up(lines, f.line_block) * f.item
            src = kb.operand(f.operand, tile_offset + depth * row)
            kb.issue("gm_to_l1", dst=dst, src=src, bytes=block_up(depths, self.depth_unit) * row)
            return
        stride, rows, cols = (
            (f.line_stride, lines, depths) if f.layout is FactorLayout.LINES else (f.depth_stride, depths, lines)
        )
        step = 1 if f.layout is FactorLayout.LINES else f.depth_stride
        src = kb.operand(f.operand, tile_offset + depth * (step * f.item))
        if f.is_run:
            kb.issue("gm_to_l1", dst=dst, src=src, bytes=rows * cols * f.item)
        else:
            kb.load_rows(dst.rows(f.pitch), src.rows(stride * f.item), f.dtype, rows, cols)

    def feed(
        self, dst: Buffer, chunk: Buffer | Part, lines: Number, depth: Number, depths: Number,
        part: tuple[Number, Number] | None = None,
    ) -> None:  # fmt: skip
        """A step of a chunk, `depths` deep from `depth` of the chunk on, into L0. `lines`: of the chunk; `part`: the
        first line and the number of those that are wanted, where not all are."""
        kb, f = self.kb, self.factor
        memory, extent = ("l0a", "m") if f.is_left else ("l0b", "n")
        first, count = part or (0, lines)
        if f.layout is FactorLayout.PACKED:
            deep = block_up(depths, self.depth_unit) * f.item
            start = depth * (block_up(lines, f.line_block) * f.item) + first * deep
            nbytes = block_up(count, f.line_block) * deep
            kb.issue(f"l1_to_{memory}_raw", dst=dst, src=chunk.at(start), bytes=nbytes)
            return
        by_lines = f.layout is FactorLayout.LINES
        along, across = (f.item, f.pitch) if by_lines else (f.pitch, f.item)
        operands: dict[str, OperandValue] = {extent: count, "k": depths}
        operands["src"] = chunk.rows(f.pitch).at(depth * along + first * across)
        operands["transpose"] = "no" if by_lines == f.is_left else "yes"
        kb.issue(f"l1_to_{memory}", f.dtype, dst=dst, **operands)


class Steps:
    """Both factors of a step in L0A and L0B, two slots, for tiles of so many rows and columns."""

    def __init__(
        self, kb: KernelBuilder, left: FactorCode, right: FactorCode, rows: int, columns: int, depth: int,
        accumulator: DType,
    ) -> None:  # fmt: skip
        f = left.factor
        self.kb, self.types, self.ring = kb, (f.dtype, accumulator), kb.ring("steps", 2)
        step = ceil_to(depth * f.item, f.block_bytes)
        self.a = kb.buffer(self.ring, Local.L0A, ceil_to(rows, f.line_block) * step, "a")
        self.b = kb.buffer(self.ring, Local.L0B, ceil_to(columns, f.line_block) * step, "b")

    def multiply(self, sums: Buffer, m: Number, n: Number, k: Number, before: Number) -> None:
        """sums += a x b, from 0 where nothing of the depth lies `before`."""
        mode = self.kb.select(self.kb.compare("!=", before, 0), 1, 0)
        multiply(self.kb, self.types, sums, self.a, self.b, (m, n, k), mode)


def multiply(
    kb: KernelBuilder, types: tuple[DType, DType], sums: Buffer, a: Buffer, b: Buffer,
    shape: tuple[Number, Number, Number], mode: Number,
) -> None:  # fmt: skip
    """sums += a x b where `mode` is 1, sums = a x b where it is 0. `shape`: m, n, k."""
    m, n, k = shape
    chosen = ("init", "accumulate")[mode] if isinstance(mode, int) else mode
    kb.issue("mmad", *types, c=sums, a=a, b=b, m=m, n=n, k=k, mode=chosen)


def lines_of(kb: KernelBuilder, extent: int, size: int, tile: Number) -> Number:
    """Rows or columns of a tile: fewer in the last one."""
    return size if extent % size == 0 else kb.minimum(extent - tile * size, size)


def locate(
    kb: KernelBuilder, tiling: MatmulTiling, batch_dims: Sequence[int], unit: Number
) -> tuple[Number, Number, list[Number], Number, Number]:
    """(panel over all batches, the unit's position among the panel's, batch coordinates, row and column tile)."""
    count, batched = tiling.panel_tiles, tiling.batch > 1
    panel: Number = unit // count if batched or tiling.panels > 1 else 0
    position = unit - panel * count if count > 1 else 0
    inner: Number = 0
    if tiling.panels > 1:
        inner = panel % tiling.panels if batched else panel
    rest = panel // tiling.panels if batched else 0
    batch: list[Number] = []
    for extent in reversed(batch_dims):
        batch.insert(0, rest % extent)
        rest = rest // extent
    other = (position + inner // tiling.stagger) % count
    row, column = (inner, other) if tiling.kept == LEFT else (other, inner)
    return panel, position, batch, row, column
