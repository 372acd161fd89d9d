"""Loads and stores of a row kernel's tiles: any affine walk over global memory against a tile in UB.

Model: element (r, c) of a tile lies at `address` + r x p_step + c x q_step bytes. Walks that are contiguous along c are
one transfer (one run of bytes where rows follow one another on both sides). Walks that are contiguous along r are
moved as the turned tile and turned in UB. Others move element by element, each to a block of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.kernels.row_tiles import RowTile
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer
from superkernel.core.dtypes import DType

BITS = {1: DType.U8, 2: DType.U16, 4: DType.U32}


@dataclass(frozen=True, eq=False)
class TileStrides:
    """Where a tile's elements lie in global memory; steps in bytes."""

    address: Address
    p_step: int
    q_step: int


class Mover:
    """Transfers of tiles of one element size. `turned`: a buffer for turned tiles, in the ring of the tile."""

    def __init__(self, kb: KernelBuilder, item: int, turned: Buffer | None, turned_stride: int) -> None:
        self.kb, self.item, self.turned, self.turned_stride = kb, item, turned, turned_stride
        self.dtype = BITS[item]

    def load(self, tile: RowTile, walk: TileStrides) -> None:
        """Fill the tile."""
        self._move(tile, walk, False)

    def store(self, tile: RowTile, walk: TileStrides) -> None:
        """Write the tile."""
        self._move(tile, walk, True)

    def _move(self, tile: RowTile, walk: TileStrides, stores: bool) -> None:
        kb, item, block = self.kb, self.item, self.kb.target.memory.block_bytes
        if walk.q_step == item or tile.m == 1:
            self._move_rows(tile, walk, stores)
            return
        assert self.turned is not None
        if walk.p_step == item or tile.n == 1:
            across = RowTile(self.turned.rows(self.turned_stride), tile.m, tile.n)
            for turns in (stores, not stores):
                if turns:
                    self._turn(tile, across, stores)
                else:
                    self._move_rows(across, TileStrides(walk.address, walk.q_step, walk.p_step), stores)
            return
        for turns in (stores, not stores):
            with kb.loop(0, tile.n) as row:  # one row after the other, its elements a block apart
                start = walk.address if turns else walk.address.at(row * walk.p_step)
                across = RowTile(self.turned.rows(block).at(row * tile.m * block), tile.m, 1)
                if turns:
                    self._turn(RowTile(tile.part.at(row * tile.stride), 1, tile.m), across, stores)
                else:
                    self._move_rows(across, TileStrides(start, walk.q_step, item), stores)

    def _move_rows(self, tile: RowTile, walk: TileStrides, stores: bool) -> None:
        outside = walk.address.rows(walk.p_step)
        dense = tile.n == 1 or (tile.dense and walk.p_step == tile.stride)
        if stores:
            self.kb.store_rows(outside, tile.part, tile.n, tile.m * self.item, dense)
        else:
            self.kb.load_rows(tile.part, outside, self.dtype, tile.n, tile.m, dense)

    def _turn(self, tile: RowTile, across: RowTile, stores: bool) -> None:
        dst, src = (across, tile) if stores else (tile, across)
        self.kb.issue("v_transpose", self.dtype, dst=dst.part, src=src.part, rows=src.n, cols=src.m)
