"""Where the tile of a unit lies: what both sides of a matrix product compute at run time."""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.scheduler.families.aicore.matmul_tiling import LEFT, MatmulTiling


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
