"""Which cuts of a matrix product are worth trying, and the best division of L1 for each.

Model: tile sizes are those that cut rows and columns evenly; shapes are ranked by a quick bound, and for the best of
them the division of L1 between the kept and the streamed factor is searched by what it costs (`matmul_cost`). A target
too small for a single step is refused by the field that is too small.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product as pairs

from superkernel.body import Body
from superkernel.errors import UnsupportedError
from superkernel.scheduler.families.aicore.cube import Cut, ceil_to, chunk_bytes
from superkernel.scheduler.families.aicore.matmul import LEFT, RIGHT, MatmulTiling, fix_of, layout_of
from superkernel.scheduler.families.aicore.matmul_cost import cycles_of
from superkernel.scheduler.families.aicore.matmul_form import Product, product_of
from superkernel.target.aicore import AicoreTarget

LINES_MAX = 2048  # of a tile
GROUPS_MAX = 12
DETAILED = 16  # tile shapes whose division of L1 is searched
RETURNED = 4


@lru_cache(maxsize=256)
def candidates(body: Body, target: AicoreTarget) -> tuple[MatmulTiling, ...]:
    """Cuts worth weighing, the quickest on all cores first."""
    product = product_of(body)
    found: dict[MatmulTiling, float] = {}
    cores = target.device.cube_cores
    for shape in _shapes(product, body, target):
        for tiling in _divisions(*shape, product, body, target):
            units = -(-tiling.units // cores)
            found[tiling] = cycles_of(tiling, body, units, target)
    if not found:
        raise UnsupportedError(
            "no step of a matrix product fits into the cube core's memories",
            location="memory.l1_bytes",
            found=f"{target.memory.l1_bytes}",
            hint="memory.l0a_bytes, l0b_bytes and l0c_bytes count, too",
        )
    best = sorted(found, key=lambda t: found[t])
    distinct = {(t.kept, t.rows, t.columns): t for t in reversed(best)}
    return tuple(t for t in best if distinct[t.kept, t.rows, t.columns] is t)[:RETURNED]


def _sizes(total: int, unit: int, cores: int) -> list[int]:
    """Tile sizes that cut a dimension evenly, largest first; near ones are left out unless they count cores."""
    found: list[int] = []
    pieces = 1
    while pieces <= max(1, -(-total // unit)):
        size = ceil_to(-(-total // pieces), unit)
        even = cores % pieces == 0 or pieces % cores == 0
        if size <= LINES_MAX and (not found or size <= found[-1] * 0.9 or (even and size < found[-1])):
            found.append(size)
        if size == unit:
            break
        pieces = max(pieces + 1, -(-total // size))
    return found or [unit]


def _shapes(product: Product, body: Body, target: AicoreTarget) -> list[tuple[int, int, int]]:
    """(rows, columns, sums) that fit into L0C, by a quick bound."""
    cube, cores = target.cube, target.device.cube_cores
    unit = max(cube.m, cube.n)
    speed = cube.m * cube.n * cube.k_f16 // (4 if product.dtype.itemsize == 4 else 1)
    rate = 1e6 / target.transfer_cycles("rates.gm_to_l1_gb_per_s", 10**6)
    scored = []
    for rows, columns in pairs(_sizes(product.rows, unit, cores), _sizes(product.columns, unit, cores)):
        for sums in (1, 2):
            if rows * columns * 4 * sums > target.memory.l0c_bytes:
                continue
            tiles = product.batch * -(-product.rows // rows) * -(-product.columns // columns)
            share = -(-tiles // cores)
            work = rows * columns * product.depth / speed
            item = product.dtype.itemsize
            moved = min(rows, columns), max(rows, columns)
            least = moved[1] * product.depth * item / rate
            alone = moved[0] * product.depth * item / rate
            fix = target.dma.startup_cycles + 2 * rows * columns / 37
            time = share * max(work + (fix if sums == 1 else 0), least + alone / 2, fix) + alone
            scored.append((time, rows, columns, sums))
    return [s[1:] for s in sorted(scored)[:DETAILED]]


def _divisions(
    rows: int, columns: int, sums: int, product: Product, body: Body, target: AicoreTarget
) -> Iterator[MatmulTiling]:
    """The best division of L1 for a tile shape and each side that may be kept."""
    cores = target.device.cube_cores
    for kept in (LEFT, RIGHT):
        best: tuple[float, MatmulTiling] | None = None
        for cut, slots in _cuts(rows, columns, kept, product, body, target):
            tiling = MatmulTiling(
                kept, rows, columns, cut, slots, sums, fix_of(body) is None,
                product.batch if product.rows and product.columns else 0, max(1, -(-product.rows // rows)),
                max(1, -(-product.columns // columns)), target.memory.block_bytes, target.cube.m,
            )  # fmt: skip
            time = cycles_of(tiling, body, -(-tiling.units // cores), target)
            if best is None or time < best[0]:
                best = (time, tiling)
        if best is not None:
            yield best[1]


def _cuts(
    rows: int, columns: int, kept: str, product: Product, body: Body, target: AicoreTarget
) -> Iterator[tuple[Cut, int]]:
    """Divisions of L1 and the depth: (cut, slots of the kept factor)."""
    item, memory, depth = product.dtype.itemsize, target.memory, product.depth
    unit = _depth_unit(product, target)
    step_max = min(
        memory.l0a_bytes // 2 // (rows * item), memory.l0b_bytes // 2 // (columns * item), ceil_to(depth, unit)
    ) // unit * unit  # fmt: skip
    if step_max == 0:
        return
    sides = {LEFT: (product.left, rows, product.rows), RIGHT: (product.right, columns, product.columns)}
    side, lines, extent = sides[kept]
    other, other_lines, other_extent = sides[RIGHT if kept == LEFT else LEFT]
    layout = layout_of(side, extent, depth, item)
    other_layout = layout_of(other, other_extent, depth, item)
    if layout is None or other_layout is None:
        return
    block, line_block = memory.block_bytes, target.cube.m
    vectors = fix_of(body)
    free = memory.l1_bytes - 2 * len(vectors.vectors if vectors else ()) * ceil_to(columns * 4, block)
    align = max(unit, target.dma.aligned_bytes // item)
    for groups in range(1, GROUPS_MAX + 1):
        even = -(-depth // groups)
        group = depth if groups == 1 else ceil_to(even, align if even >= align else unit)
        if groups > 1 and (group >= depth or -(-depth // group) != groups):
            continue
        group = ceil_to(group, unit)
        held = chunk_bytes(layout, item, lines, min(group, depth), block, line_block)
        one = chunk_bytes(other_layout, item, other_lines, unit, block, line_block)
        for slots in (1, 2) if groups == 1 else (1,):
            chunk_max = (free - slots * held) // 2 // one * unit
            if chunk_max < unit:
                continue
            yield _even_cut(depth, group, min(chunk_max, group), step_max, unit, align), slots


def _even_cut(depth: int, group: int, chunk_max: int, step_max: int, unit: int, align: int) -> Cut:
    """Chunks and steps of about equal size within their limits."""
    whole = min(group, depth)
    chunk = ceil_to(-(-whole // -(-whole // chunk_max)), unit)
    for even in (step_max, align):
        if even < chunk and ceil_to(chunk, even) <= chunk_max:
            chunk = ceil_to(chunk, even)
    step = min(step_max, ceil_to(-(-chunk // -(-chunk // step_max)), unit))
    return Cut(depth, group, chunk, step)


def _depth_unit(product: Product, target: AicoreTarget) -> int:
    """Depths come in multiples of a fractal's."""
    return target.memory.block_bytes // product.dtype.itemsize


def with_tile(
    body: Body, target: AicoreTarget, rows: int, columns: int, kept: str = LEFT, sums: int = 1
) -> MatmulTiling:
    """The tiling with a given tile. Raises UnsupportedError where it does not fit."""
    for tiling in _divisions(rows, columns, sums, product_of(body), body, target):
        if tiling.kept == kept:
            return tiling
    raise UnsupportedError("the tile does not fit", location="memory.l1_bytes", found=f"{rows} x {columns}")
