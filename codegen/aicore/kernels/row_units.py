"""Where a row kernel's tiles lie: its units, the chunks of their rows, and addresses in global memory.

Model: see families/aicore/row_modes. A `Chunk` is a tile's place in the row space. In the modes LINES and POINTS a tile
is up to p neighbouring units; in COLUMNS and WHOLE a unit is one tile, or several chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from superkernel.codegen.aicore.kernels.row_tiles import RowTile
from superkernel.codegen.aicore.kernels.row_transfer import TileStrides
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer
from superkernel.codegen.aicore.scalar import Number
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.row_modes import RowMode, tile_dims
from superkernel.scheduler.families.aicore.rows import RowsTiling
from superkernel.scheduler.families.rowops import space_of


@dataclass(frozen=True, eq=False)
class Chunk:
    """A tile's place in the row space: where it begins in every dimension, and its extents."""

    at: tuple[Number, ...]
    n: Number
    m: Number


class Units:
    """Places of the tiles of one kernel. `unit`: the open unit, or tile of units."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: RowsTiling) -> None:
        self.kb, self.body, self.tiling = kb, body, tiling
        self.space = space_of(body)
        self.shape = self.space.epilogue.shape
        self.pd, self.qd = tile_dims(self.space)
        self.unit: Chunk | None = None

    def _walk(self, operand: int, strides: Sequence[int], offset: int, chunk: Chunk) -> TileStrides:
        item = self.body.operands[operand].type.dtype.itemsize
        place: Number = offset * item
        for start, stride in zip(chunk.at, strides, strict=True):
            place = place + start * (stride * item)
        p_step = strides[self.pd] * item if self.pd >= 0 else item
        return TileStrides(self.kb.operand(operand, place), p_step, strides[self.qd] * item)

    def _tile(self, buffer: Buffer, item: int, chunk: Chunk) -> RowTile:
        whole = self.tiling.stride == self.tiling.q and chunk.m == self.tiling.q
        return RowTile(buffer.rows(self.tiling.stride * item), chunk.n, chunk.m, whole)

    def _next_unit(self, stack: ExitStack) -> Chunk:
        """The loop over the call's range: a unit, or a tile of them."""
        return self._lines(stack) if self._by_lines() else self._single(stack)

    def _by_lines(self) -> bool:
        return self.tiling.mode is RowMode.LINES or (self.tiling.mode is RowMode.POINTS and self.tiling.blocks == 1)

    def _lines(self, stack: ExitStack) -> Chunk:
        """Up to p neighbouring units along P."""
        kb, p = self.kb, self.tiling.p
        outer = self.space.outer
        at: list[Number] = [0] * len(self.shape)
        width = self.tiling.q if self.tiling.resident else self.shape[self.qd]
        if prod(outer[:-1]) == 1:
            first = stack.enter_context(kb.loop(kb.begin, kb.end, p))
            count: Number = 1 if p == 1 else kb.minimum(kb.end - first, p)
            if outer:
                at[self.pd] = first
            return Chunk(tuple(at), count, width)
        extent = outer[-1]
        lead = stack.enter_context(kb.loop(kb.begin // extent, (kb.end + (extent - 1)) // extent))
        start = lead * extent
        low, high = kb.maximum(kb.begin, start), kb.minimum(kb.end, start + extent)
        first = stack.enter_context(kb.loop(low, high, p))
        self._decode(at, lead, range(len(outer) - 1))
        at[self.pd] = first - start
        return Chunk(tuple(at), 1 if p == 1 else kb.minimum(high - first, p), width)

    def _single(self, stack: ExitStack) -> Chunk:
        """One unit: all of the row, a block of the inner axis."""
        kb, t = self.kb, self.tiling
        at: list[Number] = [0] * len(self.shape)
        number: Number = stack.enter_context(kb.loop(kb.begin, kb.end))
        width: Number = self.shape[self.qd]
        if t.blocks > 1:
            at[self.qd] = (number % t.blocks) * t.q
            number = number // t.blocks
            width = t.q if t.inner % t.q == 0 else kb.minimum(t.inner - at[self.qd], t.q)
        self._decode(at, number, range(len(self.space.outer)))
        return Chunk(tuple(at), self.shape[self.pd] if t.mode is not RowMode.POINTS else 1, width)

    def _decode(self, at: list[Number], number: Number, dims: range) -> None:
        """Coordinates of a row-major number over some dimensions."""
        moving = [d for d in dims if self.shape[d] > 1]
        for d in reversed(moving):
            at[d] = number if d == moving[0] else number % self.shape[d]
            number = number if d == moving[0] else number // self.shape[d]

    @contextmanager
    def _chunks(self) -> Iterator[Chunk]:
        """The chunks of the unit's row."""
        assert self.unit is not None
        kb, t, unit = self.kb, self.tiling, self.unit
        at, n, m = list(unit.at), unit.n, unit.m
        with ExitStack() as stack:
            if t.mode is not RowMode.POINTS:
                first = len(self.space.outer)
                for d in range(first, first + len(self.space.row)):
                    if d in (self.pd, self.qd):
                        continue
                    at[d] = stack.enter_context(kb.loop(0, self.shape[d]))
                if t.mode in (RowMode.COLUMNS, RowMode.WHOLE):
                    at[self.pd], n = self._part(stack, self.pd, t.p)
                if t.mode in (RowMode.LINES, RowMode.WHOLE):
                    at[self.qd], m = self._part(stack, self.qd, t.q)
            yield Chunk(tuple(at), n, m)

    def _part(self, stack: ExitStack, dim: int, size: int) -> tuple[Number, Number]:
        """A loop over parts of a dimension: start and extent."""
        extent = self.shape[dim]
        start = stack.enter_context(self.kb.loop(0, extent, size))
        return start, size if extent % size == 0 else self.kb.minimum(extent - start, size)
