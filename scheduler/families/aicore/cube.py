"""What kernels on the cube share: how a factor comes from global memory through L1 into L0A or L0B, what is packed when
compiling, and what that costs.

Model: a factor is `lines` (rows of the left factor, columns of the right one) x depth; L0A and L0B hold both alike. It
is cut into tiles of lines; a tile comes into L1 in *chunks* of its depth, one transfer each, and goes on into L0 in
*steps* of a chunk's depth. Three layouts in global memory:

    PACKED   a constant, laid out when compiling as the steps want it: a chunk is one run of bytes, so is a step
    LINES    elements of a line side by side: in L1 a row per line
    DEPTHS   elements of one depth side by side: in L1 a row per depth

Chunks are `chunk` deep, and grouped: a new group begins at every multiple of `group` (which need not be a multiple of
`chunk`). Steps are `step` deep, counted from the chunk's start.

Invariant: the depths of groups, chunks and steps are multiples of a fractal's, but for the last one of the factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import gcd, prod

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, strided_view
from superkernel.ops.opdef import Array
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.tiling import Pack
from superkernel.target.aicore import AicoreTarget


class FactorLayout(Enum):
    """How a factor lies in global memory, see the module docstring."""

    PACKED = "packed"
    LINES = "lines"
    DEPTHS = "depths"


@dataclass(frozen=True)
class DepthCut:
    """How a factor of `depth` is cut along it; all in elements."""

    depth: int
    group: int
    chunk: int
    step: int

    @property
    def groups(self) -> int:
        """Groups along the depth, the last one perhaps smaller."""
        return -(-self.depth // self.group)

    def chunks(self, group: int) -> int:
        """Chunks of a group."""
        return -(-min(self.group, self.depth - group * self.group) // self.chunk)

    @property
    def chunk_list(self) -> tuple[tuple[int, int], ...]:
        """(first depth, depths) of every chunk."""
        found = []
        for first in range(0, self.depth, self.group):
            end = min(first + self.group, self.depth)
            found += [(at, min(self.chunk, end - at)) for at in range(first, end, self.chunk)]
        return tuple(found)

    @property
    def step_list(self) -> tuple[tuple[int, int], ...]:
        """(first depth, depths) of every step."""
        return tuple(
            (at, min(self.step, first + count - at))
            for first, count in self.chunk_list
            for at in range(first, first + count, self.step)
        )


@dataclass(frozen=True)
class FirstReads:
    """How a core's loads of a factor meet those of others: the `part` of its loads that nobody did before, so that the
    bytes come from HBM; the cores that do one of them at the same time; how many different ones are done at a time."""

    part: float
    sharers: float
    at_once: float


@dataclass(frozen=True)
class CubeFactor:
    """One operand of the cube as its kernel reads it. Strides, offset and extents in elements. `tile`: lines of a
    tile; `resident`: depth of what L1 holds of it at a time."""

    operand: int
    dtype: DType
    layout: FactorLayout
    is_left: bool
    lines: int
    tile: int
    line_stride: int
    depth_stride: int
    offset: int
    cut: DepthCut
    resident: int
    block_bytes: int
    line_block: int  # lines of a fractal: cube.m

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def padded_depth(self) -> int:
        """Depth of the packed form."""
        return ceil_to(self.cut.depth, self.block_bytes // self.item)

    @property
    def packed_matrix_bytes(self) -> int:
        """The packed form of one batch."""
        return ceil_to(self.lines, self.line_block) * self.padded_depth * self.item

    @property
    def pitch(self) -> int:
        """Bytes from row to row in L1 (LINES and DEPTHS)."""
        cols = self.resident if self.layout is FactorLayout.LINES else self.tile
        return ceil_to(cols * self.item, self.block_bytes)

    @property
    def is_run(self) -> bool:
        """True where a chunk is one run of bytes that lies in L1 as it does in global memory."""
        if self.layout is FactorLayout.PACKED:
            return True
        if self.layout is FactorLayout.LINES:
            whole = self.resident >= self.cut.depth and self.line_stride == self.cut.depth
            return whole and self.pitch == self.cut.depth * self.item
        whole = self.tile >= self.lines and self.depth_stride == self.lines
        return whole and self.pitch == self.lines * self.item

    @property
    def resident_bytes(self) -> int:
        """What one slot in L1 takes."""
        return chunk_bytes(self.layout, self.item, self.tile, self.resident, self.block_bytes, self.line_block)

    def pack(self, batch_dims: tuple[int, ...], batch_strides: tuple[int, ...]) -> PackFactor:
        """How a constant of so many batches is laid out for it."""
        return PackFactor(
            batch_dims, batch_strides, self.lines, self.line_stride, self.depth_stride, self.offset, self.tile,
            self.cut, self.block_bytes // self.item, self.line_block,
        )  # fmt: skip

    def load_cycles(self, lines: int, depths: int, target: AicoreTarget, first: FirstReads | None = None) -> int:
        """Cycles of MTE2 for a chunk, the mean of those that L2 has and of those that nobody read before."""
        row, rows = depths * self.item, lines
        stride = self.line_stride
        if self.layout is FactorLayout.DEPTHS:
            row, rows, stride = lines * self.item, depths, self.depth_stride
        if self.layout is FactorLayout.PACKED:
            row, rows = ceil_to(lines, self.line_block) * ceil_to(depths * self.item, self.block_bytes), 1
        if self.is_run:
            row, rows = row * rows, 1
        aligned = (stride if rows > 1 else 0) | (0 if self.layout is FactorLayout.PACKED else self.offset)
        aligned |= self.resident if self.layout is FactorLayout.LINES and self.resident < self.cut.depth else 0
        path = "rates.gm_to_l1_gb_per_s"
        beats = target.global_transfer_cycles(path, row * rows, aligned * self.item)
        if self.layout is FactorLayout.DEPTHS and self.tile < self.lines:
            # Of tiles side by side, one in so many begins at such an address.
            every = target.dma.aligned_bytes // gcd(self.tile * self.item, target.dma.aligned_bytes)
            poor = target.global_transfer_cycles(path, row * rows, 1)
            beats += (poor - beats) * (every - 1) // every
        beats += (rows - 1) * target.dma.row_cycles
        if first is None:
            return target.dma.startup_cycles + beats
        size, beside = self._missed(row, rows, target.l2.line_bytes)
        missed = target.missed_cycles(beats, size, first.sharers * beside, first.at_once / beside)
        return target.dma.startup_cycles + beats + round(first.part * (missed - beats))

    def _missed(self, row_bytes: int, rows: int, line_bytes: int) -> tuple[int, float]:
        """Bytes of the lines that rows lie in, and how many cores with tiles side by side want such a line at the same
        time. With groups of depths, neighbours are at different ones, and who comes first fetches whole lines."""
        if self.layout is not FactorLayout.DEPTHS or self.tile >= self.lines:
            return rows * row_bytes, 1.0
        if self.cut.groups == 1:
            whole = ceil_to(row_bytes, line_bytes)
            lines = rows * min(self.depth_stride * self.item or whole, whole)  # one depth alone has no stride
            return lines, min(lines / (rows * row_bytes), -(-self.lines // self.tile))
        pieces = 1 + (row_bytes - gcd(self.tile * self.item, line_bytes)) / line_bytes
        return rows * max(row_bytes, int(pieces * min(line_bytes, max(line_bytes / self.cut.groups, row_bytes)))), 1.0

    def feed_cycles(self, lines: int, depths: int, target: AicoreTarget) -> int:
        """Cycles of MTE1 for a step."""
        path = "rates.l1_to_l0a_gb_per_s" if self.is_left else "rates.l1_to_l0b_gb_per_s"
        size = ceil_to(lines, self.line_block) * ceil_to(depths * self.item, self.block_bytes)
        return target.dma.local_startup_cycles + target.transfer_cycles(path, size)


def chunk_bytes(layout: FactorLayout, item: int, lines: int, depths: int, block: int, line_block: int) -> int:
    """Bytes in L1 of a chunk of a factor."""
    if layout is FactorLayout.LINES:
        return lines * ceil_to(depths * item, block)
    if layout is FactorLayout.DEPTHS:
        return depths * ceil_to(lines * item, block)
    return ceil_to(lines, line_block) * ceil_to(depths * item, block)


@dataclass(frozen=True)
class PackFactor(Pack):
    """A constant factor [batch.., lines, depth] (a strided view) as [batch][tile][step][line block][fractal], a fractal
    being `line_block` lines of `block` elements of depth, zero-padded."""

    batch_dims: tuple[int, ...]
    batch_strides: tuple[int, ...]
    lines: int
    line_stride: int
    depth_stride: int
    offset: int
    tile: int
    cut: DepthCut
    block: int
    line_block: int

    def apply(self, array: Array) -> Array:
        depth = self.cut.depth
        shape, strides = (*self.batch_dims, self.lines, depth), (self.line_stride, self.depth_stride)
        view = strided_view(array, shape, (*self.batch_strides, *strides), self.offset)
        whole = (prod(self.batch_dims), ceil_to(self.lines, self.line_block), ceil_to(depth, self.block))
        padded = np.zeros(whole, array.dtype)
        padded[:, : self.lines, :depth] = view.reshape(whole[0], self.lines, depth)
        parts = []
        for matrix in padded:
            for first in range(0, len(matrix), self.tile):
                tile = matrix[first : first + self.tile]
                for at, count in self.cut.step_list:
                    step = tile[:, at : at + ceil_to(count, self.block)]
                    blocks = step.reshape(-1, self.line_block, step.shape[1] // self.block, self.block)
                    parts.append(blocks.transpose(0, 2, 1, 3).reshape(-1))
        return np.concatenate(parts) if parts else np.zeros(0, array.dtype)

    def packed_bytes(self, kind: TensorType) -> int:
        padded = ceil_to(self.lines, self.line_block) * ceil_to(self.cut.depth, self.block)
        return prod(self.batch_dims) * padded * kind.dtype.itemsize


def packed_batch_strides(dims: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Per batch dimension, how many packed matrices one step walks (0 where the factor is broadcast)."""
    steps, step = [], 1
    for extent, stride in zip(reversed(dims), reversed(strides), strict=True):
        steps.append(step if stride else 0)
        step *= extent if stride else 1
    return tuple(reversed(steps))


def cube_cycles(m: int, n: int, k: int, dtype: DType, target: AicoreTarget) -> int:
    """Cycles of one `mmad`."""
    cube = target.cube
    deep = {DType.F32: cube.k_f32, DType.I8: cube.k_i8}.get(dtype, cube.k_f16)
    return cube.startup_cycles + -(-m // cube.m) * -(-n // cube.n) * -(-k // deep)


def fix_cycles(m: int, n: int, item: int, stride_bytes: int, target: AicoreTarget) -> int:
    """Cycles of one `l0c_to_gm`."""
    return target.move_cycles("rates.l0c_to_gm_gb_per_s", m, n * item, stride_bytes if m > 1 else 0)
