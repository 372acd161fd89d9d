"""What a product whose depth is cut into passes costs one core.

Model: a tile takes, per pass, what its busiest engine needs: MTE2 for its chunks and its share of what the window of
the kept factor takes in, the cube or MTE1 for its steps, FIX for its partial sums, a vector core for its share of
adding them. Few transfers are ahead, and all engines but the cube's use L2, so that none reaches what it could alone:
`CROWDED`, measured on the simulated device: 1.2 from L2, 1.3 and more from HBM. At the beginning a window is loaded, at
the end vector cores finish a tile.
"""

from __future__ import annotations

from functools import lru_cache

from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.cube import cube_cycles, fix_cycles
from superkernel.scheduler.families.aicore.matmul import LEFT, factors
from superkernel.scheduler.families.aicore.matmul_split import SplitTiling
from superkernel.target.aicore import AicoreTarget

CROWDED = 1.2


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
    read = target.dma.startup_cycles + target.transfer_cycles("rates.gm_to_ub_gb_per_s", m * n * 4 // tiling.lanes)
    vector = read * (1 + (tiling.stages > 1) / tiling.stage)
    return piece, CROWDED * max(mte2, cube, fix, vector), read * (tiling.stage + 2)
