"""Which cuts of a product's depth into passes are worth trying.

Tried are factors of two bytes; and products so large that every core has several blocks and several passes: reading
from HBM for the first time, and the vector cores' last tile, are lost there. Where rows begin in few banks of L2, the
kernel without passes keeps its cores further apart. An epilogue beside the adding makes vector cores use L2 so much
that nothing is gained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product as combinations
from math import gcd

from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import mixes
from superkernel.scheduler.families.aicore.cube import Cut, Layout, chunk_bytes
from superkernel.scheduler.families.aicore.matmul import LEFT, layout_of
from superkernel.scheduler.families.aicore.matmul_form import Product, Side, product_of, turned
from superkernel.scheduler.families.aicore.matmul_lane import lane_size
from superkernel.scheduler.families.aicore.matmul_split import CHUNK_SLOTS, SplitTiling
from superkernel.target.aicore import AicoreTarget

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
BANKS_SHARE = 8


def split_candidates(body: Body, target: AicoreTarget) -> Iterator[SplitTiling]:
    """Cuts into passes that fit, none where they do not pay. What is kept goes into L0A, which is filled faster."""
    found = product_of(body)
    if not found.program.is_store_only or not mixes(target, (2,)):
        return
    if found.dtype.itemsize != ITEM or not found.rows * found.columns * found.batch:
        return
    for transposed in (True, False):
        product = turned(found) if transposed else found
        sides = (product.left, product.rows), (product.right, product.columns)
        held, moved = (layout_of(side, extent, product.depth, ITEM) for side, extent in sides)
        if held is None or moved is None:
            return
        if not _spreads(product.left if moved is Layout.PACKED else product.right, target):
            continue
        for rows, columns, pieces in combinations(KEPT, STREAMED, PIECES):
            tiling = _cut(product, (rows, columns), pieces, (held, moved), transposed, target)
            if tiling is None or tiling.units < BLOCKS_MIN * target.device.cube_cores:
                continue
            try:
                lane_size(body, tiling, target)
            except UnsupportedError:
                return
            yield tiling


def _spreads(side: Side, target: AicoreTarget) -> bool:
    """Whether a factor's rows begin in enough banks of L2 and channels of HBM: the streamed one's, or the other one's
    where that is packed and lies in all of them."""
    lines = max(side.line, side.depth) * ITEM // target.l2.line_bytes
    return gcd(lines, target.l2.banks) <= target.l2.banks // BANKS_SHARE


def _cut(
    product: Product, tile: tuple[int, int], pieces: int, layouts: tuple[Layout, Layout], transposed: bool,
    target: AicoreTarget,
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
        LEFT, rows, columns, Cut(product.depth, group, chunk, steps[-1]), 1, SUMS, 1, 2, product.batch,
        -(-product.rows // rows), tiles, memory.block_bytes, lines, drift=_drift(product.depth // chunk),
        block=blocks[-1], parts=PARTS, spare=spare, transposed=transposed,
    )  # fmt: skip
    room = target.l2.capacity_bytes // WORKSPACE_SHARE // target.device.groups
    fitting = [t for t in (replace(tiling, stage=s) for s in range(1, STAGE_MAX + 1)) if t.scratch_bytes <= room]
    return fitting[-1] if fitting else None


def _drift(pieces: int) -> int:
    """Pieces between those with which neighbouring panels begin: about half of all, and such that many panels follow
    one another before two begin with the same."""
    return next(count for count in range(pieces // 2 + 1, pieces + 2) if gcd(count, pieces) == 1)
