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
        self.types = (BITS[item],)

    def load(self, tile: RowTile, walk: TileStrides) -> None:
        """Fill the tile."""
        kb, item = self.kb, self.item
        if walk.q_step == item or (isinstance(tile.m, int) and tile.m == 1):
            self._load_rows(tile, walk)
            return
        assert self.turned is not None
        if walk.p_step == item or (isinstance(tile.n, int) and tile.n == 1):
            across = RowTile(self.turned.at(0), self.turned_stride, tile.m, tile.n, False)
            self._load_rows(across, TileStrides(walk.address, walk.q_step, walk.p_step))
            self._turn(tile, across)
            return
        with kb.loop(0, tile.n) as row:  # one row after the other, its elements a block apart
            start = walk.address.at(row * walk.p_step)
            place = self.turned.at(row * tile.m * kb.target.memory.block_bytes)
            across = RowTile(place, kb.target.memory.block_bytes, tile.m, 1, False)
            self._load_rows(across, TileStrides(start, walk.q_step, item))
        with kb.loop(0, tile.n) as row:
            place = self.turned.at(row * tile.m * kb.target.memory.block_bytes)
            across = RowTile(place, kb.target.memory.block_bytes, tile.m, 1, False)
            self._turn(RowTile(tile.part.at(row * tile.stride), tile.stride, 1, tile.m, False), across)

    def _load_rows(self, tile: RowTile, walk: TileStrides) -> None:
        kb, item = self.kb, self.item
        if isinstance(tile.n, int) and tile.n == 1:
            kb.issue("gm_to_ub", dst=tile.part, src=walk.address, bytes=tile.m * item)
        elif tile.dense and walk.p_step == tile.stride:
            kb.issue("gm_to_ub", dst=tile.part, src=walk.address, bytes=tile.n * tile.stride)
        else:
            kb.issue(
                "gm_to_ub_2d", types=self.types, dst=tile.part, src=walk.address, rows=tile.n, cols=tile.m,
                dst_stride=tile.stride, src_stride=walk.p_step,
            )  # fmt: skip

    def store(self, tile: RowTile, walk: TileStrides) -> None:
        """Write the tile."""
        kb, item = self.kb, self.item
        if walk.q_step == item or (isinstance(tile.m, int) and tile.m == 1):
            self._store_rows(tile, walk)
            return
        assert self.turned is not None
        if walk.p_step == item or (isinstance(tile.n, int) and tile.n == 1):
            across = RowTile(self.turned.at(0), self.turned_stride, tile.m, tile.n, False)
            self._turn(across, tile)
            self._store_rows(across, TileStrides(walk.address, walk.q_step, walk.p_step))
            return
        block = kb.target.memory.block_bytes
        with kb.loop(0, tile.n) as row:
            across = RowTile(self.turned.at(row * tile.m * block), block, tile.m, 1, False)
            self._turn(across, RowTile(tile.part.at(row * tile.stride), tile.stride, 1, tile.m, False))
        with kb.loop(0, tile.n) as row:
            across = RowTile(self.turned.at(row * tile.m * block), block, tile.m, 1, False)
            self._store_rows(across, TileStrides(walk.address.at(row * walk.p_step), walk.q_step, item))

    def _store_rows(self, tile: RowTile, walk: TileStrides) -> None:
        kb, item = self.kb, self.item
        if isinstance(tile.n, int) and tile.n == 1:
            kb.issue("ub_to_gm", dst=walk.address, src=tile.part, bytes=tile.m * item)
        elif tile.dense and walk.p_step == tile.stride:
            kb.issue("ub_to_gm", dst=walk.address, src=tile.part, bytes=tile.n * tile.stride)
        else:
            kb.issue(
                "ub_to_gm_2d", dst=walk.address, src=tile.part, rows=tile.n, row_bytes=tile.m * item,
                dst_stride=walk.p_step, src_stride=tile.stride,
            )  # fmt: skip

    def _turn(self, dst: RowTile, src: RowTile) -> None:
        self.kb.issue(
            "v_transpose", types=self.types, dst=dst.part, src=src.part, rows=src.n, cols=src.m,
            dst_stride=dst.stride, src_stride=src.stride,
        )  # fmt: skip
