"""A vector core's share of a MIX product: its code, and how much of a tile it takes at a time.

Model: a lane has half the rows of a tile, or half its columns where there are few rows. It takes pieces of `rows` x
`cols` that fit into UB: two slots each for sums, inputs and outputs, temporaries once.
"""

from __future__ import annotations

from functools import lru_cache

from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.cuts import output_types
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.matmul_form import product_of, turned
from superkernel.scheduler.families.aicore.matmul_tiling import MatmulTiling
from superkernel.scheduler.families.aicore.rounding import ceil_to, largest
from superkernel.scheduler.families.aicore.tilecode import Home, TileCode, TileSize
from superkernel.target.aicore import AicoreTarget

SLOTS = 2
PIECE_ROWS = 16  # below that, narrower pieces are tried first: commands and transfers cost per command


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
    return SLOTS * moved + code.temporaries(size)[1] + slack
