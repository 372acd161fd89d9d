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
product is large along all its sides (`split_candidates`). `transposed`: the kernel computes the transposed product,
and the vector cores turn it: then the right factor can be kept, and go through the faster path into L0.

Invariants: a tile's partial sums are those of its passes, each from +0, in an order that its place alone says: any
split of the units gives the same bits. Passes are equally deep, blocks equally large, a pass has three pieces or more.

Cost: a tile takes, per pass, what its busiest engine needs: MTE2 for its chunks and its share of what the window of
the kept factor takes in, the cube or MTE1 for its steps, FIX for its partial sums, a vector core for its share of
adding them. Few transfers are ahead, and all engines but the cube's use L2, so that none reaches what it could alone:
`CROWDED`, measured on the simulated device: 1.2 from L2, 1.3 and more from HBM. At the beginning a window is loaded, at
the end vector cores finish a tile.

Tried are factors of two bytes; and products so large that every core has several blocks and several passes: reading
from HBM for the first time, and the vector cores' last tile, are lost there. Where L2 has no room for both
factors, passes read from HBM again what the kernel without them reads once (6144^3: 21 % more cycles). An epilogue
beside the adding makes vector cores use L2 so much that nothing is gained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product as combinations
from math import gcd
from typing import ClassVar

from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Box
from superkernel.ir.body import Body, Role
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES, mixes
from superkernel.scheduler.families.aicore.cube import DepthCut, FactorLayout, chunk_bytes, cube_cycles, fix_cycles
from superkernel.scheduler.families.aicore.matmul_form import CubeProduct, product_of, turned
from superkernel.scheduler.families.aicore.matmul_tiling import LEFT, MatmulTiling, Span, factors, lane_size, layout_of
from superkernel.target.aicore import AicoreTarget

CHUNK_SLOTS = 4  # chunks that L1 holds; at most 2 less than twice the pieces of a pass
CROWDED = 1.2
KEPT, STREAMED = (256, 192, 128), (64, 80, 96, 128)  # lines of a tile
PIECES = (3, 4)
BLOCK_MAX = 14  # tiles: a flag counts what vector cores have not read yet
STAGE_MAX = 4
SUMS = 2  # tiles in L0C
PARTS = 1  # in one transfer: start-ups cost more than what a part could come earlier
CHUNK_LINE_BYTES = 512
WORKSPACE_SHARE = 2  # of L2: one in so many
ITEM = 2
BLOCKS_MIN, PASSES_MIN = 2, 4


@dataclass(frozen=True)
class SplitTiling(MatmulTiling):
    """See the module docstring. `cut`: its groups are the passes, a chunk is a piece of one. `parts`: transfers in
    which a piece of the kept factor comes; `spare`: parts that L1 holds beyond the window."""

    missed: ClassVar[frozenset[Role]] = frozenset()

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
        """Number of stages that the passes over the depth make."""
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

    def tiles(self, product: CubeProduct, begin: int, end: int) -> Iterator[tuple[Box, Span, Span]]:
        for batch, rows, columns in super().tiles(product, begin, end):
            if self.kept == LEFT:
                yield batch, rows, (columns[0] * self.block, columns[1] * self.block)
            else:
                yield batch, (rows[0] * self.block, rows[1] * self.block), columns

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:

        return cycles_of(self, body, end - begin, target)


# Cost -----------------------------------------------------------------------------------------------------------------


def cycles_of(tiling: SplitTiling, body: Body, units: int, target: AicoreTarget) -> float:
    """Cycles of one core (group) for so many units."""
    if not units:
        return 0.0
    piece, turn, last = _figures(tiling, body, target)
    return tiling.pieces * piece + units * tiling.cut.groups * tiling.block * turn + last


@lru_cache(maxsize=4096)
def _figures(tiling: SplitTiling, body: Body, target: AicoreTarget) -> tuple[float, float, float]:
    """Cycles to load a piece of the window; of a tile and pass; of a vector core for the last tile."""
    product, cut = tiling.product(body), tiling.cut
    left, right = factors(product, tiling)
    kept, streamed = (left, right) if tiling.kept == LEFT else (right, left)
    m, n = tiling.rows, tiling.columns
    kept_lines, streamed_lines = (m, n) if tiling.kept == LEFT else (n, m)
    piece = tiling.parts * kept.load_cycles(kept_lines, tiling.kept_depth, target)
    chunk = streamed.load_cycles(streamed_lines, cut.chunk, target)
    mte2 = tiling.pieces * chunk + piece / tiling.hop
    steps = cut.group // cut.step
    feed = left.feed_cycles(m, cut.step, target) + right.feed_cycles(n, cut.step, target)
    cube = steps * max(cube_cycles(m, n, cut.step, product.dtype, target), feed)
    fix = fix_cycles(m, n, 4, 0, target)
    read = target.move_cycles("rates.gm_to_ub_gb_per_s", 1, m * n * 4 // tiling.lanes)
    vector = read * (1 + (tiling.stages > 1) / tiling.stage)
    return piece, CROWDED * max(mte2, cube, fix, vector), read * (tiling.stage + 2)


# Search ---------------------------------------------------------------------------------------------------------------


def split_candidates(body: Body, target: AicoreTarget) -> Iterator[SplitTiling]:
    """Cuts into passes that fit, none where they do not pay. What is kept goes into L0A, which is filled faster."""
    found = product_of(body)
    if not found.program.is_store_only or not mixes(target, (2,)):
        return
    if found.dtype.itemsize != ITEM or not found.rows * found.columns * found.batch:
        return
    if found.batch * (found.rows + found.columns) * found.depth * ITEM > target.l2_room_bytes:
        return
    for transposed in (True, False):
        product = turned(found) if transposed else found
        held, moved = (layout_of(side, product.depth, ITEM) for side in (product.left, product.right))
        if held is None or moved is None:
            return
        for rows, columns, pieces in combinations(KEPT, STREAMED, PIECES):
            tiling = _cut(product, (rows, columns), pieces, (held, moved), transposed, target)
            if tiling is None or tiling.units < BLOCKS_MIN * target.device.cube_cores:
                continue
            try:
                lane_size(body, tiling, target)
            except UnsupportedError:
                return
            yield tiling


def _cut(
    product: CubeProduct, tile: tuple[int, int], pieces: int, layouts: tuple[FactorLayout, FactorLayout],
    transposed: bool, target: AicoreTarget,
) -> SplitTiling | None:  # fmt: skip
    """Tiles of that size in passes of so many pieces; None where something does not fit or is not even."""
    (rows, columns), memory, lines = tile, target.memory, target.cube.m
    if rows > product.rows or columns > product.columns or SUMS * rows * columns * 4 > memory.l0c_bytes:
        return None
    chunk = CHUNK_LINE_BYTES // ITEM
    group, deep = pieces * chunk, chunk // PARTS
    unit = memory.block_bytes // ITEM
    step_max = min(memory.l0a_bytes // (2 * rows * ITEM), memory.l0b_bytes // (2 * columns * ITEM), deep)
    steps = [step for step in range(unit, step_max + 1, unit) if deep % step == 0]
    tiles = -(-product.columns // columns)
    blocks = [count for count in range(pieces, BLOCK_MAX + 1, pieces) if tiles % count == 0]
    part = chunk_bytes(layouts[0], ITEM, rows, deep, memory.block_bytes, lines)
    chunks = CHUNK_SLOTS * chunk_bytes(layouts[1], ITEM, columns, chunk, memory.block_bytes, lines)
    spare = min(PARTS, (memory.l1_bytes - chunks) // part - pieces * PARTS)
    groups = product.depth // group
    if product.depth % group or groups < PASSES_MIN or not steps or not blocks or spare < 0:
        return None
    tiling = SplitTiling(
        LEFT, rows, columns, DepthCut(product.depth, group, chunk, steps[-1]), 1, SUMS, 1, 2, product.batch,
        -(-product.rows // rows), tiles, memory.block_bytes, lines, drift=_drift(product.depth // chunk),
        block=blocks[-1], parts=PARTS, spare=spare, transposed=transposed,
    )  # fmt: skip
    room = target.l2_room_bytes // WORKSPACE_SHARE // target.device.groups
    fitting = [t for t in (replace(tiling, stage=s) for s in range(1, STAGE_MAX + 1)) if t.scratch_bytes <= room]
    return fitting[-1] if fitting else None


def _drift(pieces: int) -> int:
    """Pieces between those with which neighbouring panels begin: about half of all, and such that many panels follow
    one another before two begin with the same."""
    return next(count for count in range(pieces // 2 + 1, pieces + 2) if gcd(count, pieces) == 1)
