"""Matrix products whose depth is cut into passes: the partial sums of several tiles wait in the workspace.

Model: a unit is a *block* of `block` tiles, side by side along the streamed factor, of one panel of the kept one. In a
*pass* every tile of the block is multiplied over as much depth as L1 holds of the kept factor (`cut.group`), and FIX
stores its partial sums, in f32, to the workspace. The vector cores add: a *stage* is `stage` passes; at its end they
sum a tile's partial sums, onto what the stages before left in the workspace, and keep the result there, or run the
epilogue on it in the last one. While they add, the cube goes on.

What L1 holds of the kept factor is a *window* of so many *pieces*. It does not stand still for a pass: after `hop`
tiles it moves on by a piece, round and round the depth, so that it has moved by all of itself when the last tile of a
pass is done. The tiles of a pass are therefore multiplied over different depths, and what MTE2 loads is spread evenly.

Rows of partial sums that are shorter than a line of L2 (256 bytes of 64 columns) would begin off lines, which costs FIX
and the vector cores 30 % of their rates. So passes of a tile lie `abreast`: a row of one beside the same row of the
next, in a line; those that begin a line are as fast as may be.

MTE2, which is what large products lack, moves half as much; FIX, L2 and the vector cores do more. It pays where a
product is large along all its sides (`matmul_split_search`). `transposed`: the kernel computes the transposed product,
and the vector cores turn it: then the right factor can be kept, and go through the faster path into L0.

Invariants: a tile's partial sums are those of its passes, each from +0, in an order that its place alone says: any
split of the units gives the same bits. Passes are equally deep, blocks equally large, a pass has three pieces or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from superkernel.core.tensor import Box
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES
from superkernel.scheduler.families.aicore.matmul import LEFT, MatmulTiling, Span
from superkernel.scheduler.families.aicore.matmul_form import Product
from superkernel.target.aicore import AicoreTarget

CHUNK_SLOTS = 4  # chunks that L1 holds; at most 2 less than twice the pieces of a pass


@dataclass(frozen=True)
class SplitTiling(MatmulTiling):
    """See the module docstring. `cut`: its groups are the passes, a chunk is a piece of one. `parts`: transfers in
    which a piece of the kept factor comes; `spare`: parts that L1 holds beyond the window."""

    block: int = 1
    stage: int = 1
    parts: int = 1
    spare: int = 0
    transposed: bool = False

    @property
    def units(self) -> int:
        return self.batch * self.panels * self.panel_tiles

    @property
    def panel_tiles(self) -> int:
        """Units of a panel: blocks."""
        return super().panel_tiles // self.block

    @property
    def stages(self) -> int:
        return -(-self.cut.groups // self.stage)

    @property
    def handed(self) -> int:
        """Tiles that a unit gives to the vector cores, counted once per stage."""
        return self.stages * self.block

    @property
    def turns(self) -> bool:
        return self.transposed

    @property
    def pieces(self) -> int:
        """Pieces of the window."""
        return self.cut.group // self.cut.chunk

    @property
    def all_pieces(self) -> int:
        """Pieces of a panel."""
        return self.cut.depth // self.cut.chunk

    @property
    def hop(self) -> int:
        """Tiles after which the window moves on by a piece."""
        return self.block // self.pieces

    @property
    def kept_depth(self) -> int:
        """Depth of a part."""
        return self.cut.chunk // self.parts

    @property
    def held_parts(self) -> int:
        """Parts that L1 holds."""
        return self.pieces * self.parts + self.spare

    @property
    def loads(self) -> tuple[int, ...]:
        """With which chunk each part of the next piece is loaded, counted from the first one after the window moved:
        early those that find a spare place, the others when the oldest piece of the window is not needed any more: when
        the slot is loaded whose chunk was used with it last; at the latest ahead of the chunk that needs them."""
        chunks = self.hop * self.pieces
        early = [1 + i * (chunks - self.pieces) // max(1, self.spare) for i in range(min(self.spare, self.parts))]
        first, last = chunks - self.pieces + CHUNK_SLOTS, chunks + self.pieces - 2
        late = self.parts - len(early)
        return (*early, *(first + i * (last - first + 1) // late for i in range(late)))

    @property
    def lane_tiles(self) -> int:
        return 2

    @property
    def turn_bytes(self) -> int:
        """The partial sums of one tile and stage in the workspace."""
        return self.stage * self.slot_bytes

    @property
    def abreast(self) -> int:
        """Passes of a stage whose partial sums share lines; 1 where they do not fill them."""
        count = max(1, CHANNEL_ALIGN_BYTES // (self.columns * 4))
        fills = count * self.columns * 4 == CHANNEL_ALIGN_BYTES and self.stage % count == 0
        return count if fills and self.slot_bytes == self.rows * self.columns * 4 else 1

    @property
    def sums_start(self) -> int:
        """Where in the workspace the sums of the stages before lie, a tile behind the other."""
        return self.block * self.turn_bytes

    @property
    def scratch_bytes(self) -> int:
        return self.sums_start + (self.block * self.slot_bytes if self.stages > 1 else 0)

    def tiles(self, product: Product, begin: int, end: int) -> Iterator[tuple[Box, Span, Span]]:
        for batch, rows, columns in super().tiles(product, begin, end):
            if self.kept == LEFT:
                yield batch, rows, (columns[0] * self.block, columns[1] * self.block)
            else:
                yield batch, (rows[0] * self.block, rows[1] * self.block), columns

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        from superkernel.scheduler.families.aicore.matmul_split_cost import cycles_of

        return cycles_of(self, body, end - begin, target)
