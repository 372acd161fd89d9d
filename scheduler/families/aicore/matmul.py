"""Which cuts of a matrix product are worth trying, and the best division of L1 for each.

Model: tile sizes are those that cut rows and columns evenly; shapes are ranked by a quick bound, and for the best of
them the division of L1 between the kept and the streamed factor is searched by what it costs. A target too small for a
single step is refused by the field that is too small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product as pairs
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.registry.predicates import Reason, one_of, within
from superkernel.registry.rounding import EXACT, PRODUCT_SUMS
from superkernel.scheduler.families.aicore.base import AicoreTiling, check_group, mixes
from superkernel.scheduler.families.aicore.cube import DepthCut, FactorLayout, chunk_bytes
from superkernel.scheduler.families.aicore.kernel import FLOATS, AicoreKernelDef
from superkernel.scheduler.families.aicore.matmul_form import CubeProduct, product_of
from superkernel.scheduler.families.aicore.matmul_split import split_candidates
from superkernel.scheduler.families.aicore.matmul_tiling import (
    LANES,
    LEFT,
    RIGHT,
    STRIDE_MAX,
    MatmulTiling,
    cycles_of,
    fix_of,
    layout_of,
)
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.aicore import AicoreTarget

LINES_MAX = 2048  # of a tile
GROUPS_MAX = 12
DETAILED = 16  # tile shapes whose division of L1 is searched
RETURNED = 4
STAGGERS = (1, 2)  # panels that begin with the same tile
WATCHED = 12  # tiles of each core
SPLIT_GAIN = 0.97  # what passes must save at least: they need a large workspace, and the vector cores


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

    def leads(tiling: MatmulTiling) -> bool:
        constant = (product.left if tiling.kept == LEFT else product.right).constant
        return constant or tiling.panel_follows(constant)

    if not found:
        step = f"{target.cube.m} x {target.cube.k_f16} x {target.cube.n}"
        fields = [f"memory.{name}_bytes" for name in ("l1", "l0a", "l0b", "l0c")]
        raise UnsupportedError(
            "no step of a matrix product fits into the cube core's memories",
            location=", ".join(fields),
            expected=f"room for one of {step} in each, its operands in L1",
            found=", ".join(str(target.value(field)) for field in fields),
            hint="a target with larger memories",
        )
    # Of equals, one whose weights stand ahead of all else in the kernel.
    best = sorted(found, key=lambda t: (found[t], not leads(t)))
    distinct = {(t.kept, t.rows, t.columns): t for t in reversed(best)}
    chosen = [t for t in best if distinct[t.kept, t.rows, t.columns] is t][:RETURNED]
    split = _split(body, target, cores, found[best[0]])
    return (*split, *(_spread(t, product, cores) for t in chosen))


def _split(body: Body, target: AicoreTarget, cores: int, least: float) -> tuple[MatmulTiling, ...]:
    """The best cut of the depth into passes, where it is clearly better than what takes `least` cycles."""
    found = {t: t.cost_cycles(body, 0, -(-t.units // cores), target) for t in split_candidates(body, target)}
    best = min(found, key=lambda t: found[t], default=None)
    return () if best is None or found[best] > SPLIT_GAIN * least else (best,)


def _spread(tiling: MatmulTiling, product: CubeProduct, cores: int) -> MatmulTiling:
    """Tiles and groups with which panels begin, such that cores work on different ones at a time. Those that read the
    same columns, or the same depths, want the same banks of L2 where rows are a power of two apart. What is packed
    lies in all banks."""
    groups, count, panels = tiling.cut.groups, tiling.panel_tiles, tiling.panels
    active = min(cores, tiling.units)
    ranges = [(core * tiling.units // active, (core + 1) * tiling.units // active) for core in range(active)]
    steps = range(min(WATCHED, max((end - begin for begin, end in ranges), default=0)))
    at_once = [[divmod(begin + i, count) for begin, end in ranges if begin + i < end] for i in steps]

    def crowd(place: Callable[[int, int], int]) -> int:
        return sum(n * n for units in at_once for n in Counter(place(*unit) for unit in units).values())

    def tiles(stagger: int) -> int:
        return crowd(lambda panel, position: (position + panel % panels // stagger) % count)

    def depths(drift: int) -> int:
        return crowd(lambda panel, position: (panel * drift - position) % groups)

    streamed = product.right if tiling.kept == LEFT else product.left
    staggers = (1,) if streamed.constant or count == 1 or panels == 1 else STAGGERS
    drifts = range(1, groups + 1) if groups > 1 else (1,)
    return replace(tiling, stagger=min(staggers, key=tiles), drift=min(drifts, key=depths))


def _sizes(total: int, unit: int, cores: int) -> list[int]:
    """Tile sizes that cut a dimension evenly, largest first; near ones are left out unless they count cores."""
    found: list[int] = []
    pieces, total = 1, max(1, total)
    while pieces <= -(-total // unit):
        size = ceil_to(-(-total // pieces), unit)
        even = cores % pieces == 0 or pieces % cores == 0
        if size <= LINES_MAX and (not found or size <= found[-1] * 0.9 or (even and size < found[-1])):
            found.append(size)
        if size == unit:
            break
        pieces = max(pieces + 1, -(-total // size))
    return found or [unit]


def _shapes(product: CubeProduct, body: Body, target: AicoreTarget) -> list[tuple[int, int, int]]:
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
            fix = target.dma.store_startup_cycles + 2 * rows * columns / 37
            time = share * max(work + (fix if sums == 1 else 0), least + alone / 2, fix) + alone
            scored.append((time, rows, columns, sums))
    return [s[1:] for s in sorted(scored)[:DETAILED]]


def _divisions(
    rows: int, columns: int, sums: int, product: CubeProduct, body: Body, target: AicoreTarget
) -> Iterator[MatmulTiling]:
    """The best division of L1 for a tile shape and each side that may be kept."""
    units = -(-product.batch * -(-product.rows // rows) * -(-product.columns // columns) // target.device.cube_cores)
    for kept in (LEFT, RIGHT):
        found = _tilings(rows, columns, sums, kept, product, body, target)
        best = min(found, key=lambda t: cycles_of(t, body, units, target), default=None)
        if best is not None:
            yield best


def _tilings(
    rows: int, columns: int, sums: int, kept: str, product: CubeProduct, body: Body, target: AicoreTarget
) -> Iterator[MatmulTiling]:
    blank = MatmulTiling(
        kept, rows, columns, DepthCut(product.depth, 1, 1, 1), 1, sums, 1, _lanes(body, target),
        product.batch if product.rows and product.columns else 0, max(1, -(-product.rows // rows)),
        max(1, -(-product.columns // columns)), target.memory.block_bytes, target.cube.m,
    )  # fmt: skip
    for halves in (1, 2) if sums == 1 and max(rows, columns) >= 2 * max(target.cube.m, target.cube.n) else (1,):
        halved = replace(blank, halves=halves)
        if halves * prod(halved.part) * 4 > target.memory.l0c_bytes:
            continue  # a first half that is the larger one
        for group, slots, chunk_max in _groups(halved, product, body, target):
            for cut in _cuts(halved, group, chunk_max, product, target):
                yield replace(halved, cut=cut, kept_slots=slots)


def _lanes(body: Body, target: AicoreTarget) -> int:
    """Vector cores of a group that take part."""
    if fix_of(body) is not None:
        return 0
    check_group(target, LANES, "the vector cores cannot finish a product")
    return int(target.device.vector_cores_per_group)


def _groups(
    tiling: MatmulTiling, product: CubeProduct, body: Body, target: AicoreTarget
) -> Iterator[tuple[int, int, int]]:
    """Divisions of L1: (depth of the kept factor's groups, its slots, largest depth of the streamed one's chunks)."""
    item, depth, unit = product.dtype.itemsize, product.depth, _depth_unit(product, target)
    memory = target.memory
    left, right = (product.left, tiling.rows, product.rows), (product.right, tiling.columns, product.columns)
    sides = (left, right) if tiling.kept == LEFT else (right, left)
    layouts = [layout_of(side, depth, item) for side, *_ in sides]
    if layouts[0] is None or layouts[1] is None:
        return
    weights_wait = layouts[0] is not FactorLayout.PACKED and layouts[1] is FactorLayout.PACKED
    fix = fix_of(body)
    free = memory.l1_bytes - 2 * len(fix.vectors if fix else ()) * ceil_to(tiling.columns * 4, memory.block_bytes)
    align = max(unit, target.dma.aligned_bytes // item)
    one = chunk_bytes(layouts[1], item, sides[1][1], unit, memory.block_bytes, target.cube.m)
    panels = tiling.batch * tiling.panels
    for groups in range(1, GROUPS_MAX + 1):
        even = -(-depth // groups)
        group = ceil_to(even, align if groups > 1 and even >= align else unit)
        if groups > 1 and -(-depth // group) != groups:
            continue
        held = chunk_bytes(layouts[0], item, sides[0][1], min(group, depth), memory.block_bytes, target.cube.m)
        for slots in (1, 2) if groups == 1 and panels > 1 else (1,):
            chunk_max = (free - slots * held) // 2 // one * unit
            if chunk_max >= unit:
                yield group, slots, min(chunk_max, group)
        if groups == 1 and panels == 1 and weights_wait and 2 * held <= free:
            return  # two chunks of weights are loaded while the kernel waits for its only panel


def _cuts(
    tiling: MatmulTiling, group: int, chunk_max: int, product: CubeProduct, target: AicoreTarget
) -> Iterator[DepthCut]:
    """Chunks as large as they may be, or of about equal size; steps of about equal size."""
    depth, unit, item = product.depth, _depth_unit(product, target), product.dtype.itemsize
    rows, columns = tiling.part
    memory = target.memory
    step_max = min(memory.l0a_bytes // 2 // (rows * item), memory.l0b_bytes // 2 // (columns * item)) // unit * unit
    if step_max == 0:
        return
    whole = min(group, depth)
    align = max(unit, target.dma.aligned_bytes // item)
    even = ceil_to(-(-whole // -(-whole // chunk_max)), unit)
    chunks = {even, chunk_max}
    chunks |= {ceil_to(even, to) for to in (step_max, align) if to < even and ceil_to(even, to) <= chunk_max}
    for chunk in sorted(chunks):
        step = ceil_to(-(-chunk // -(-chunk // step_max)), unit)
        for size in {min(step, step_max), min(step_max, ceil_to(chunk, unit))}:
            yield DepthCut(depth, group, chunk, size)


def _depth_unit(product: CubeProduct, target: AicoreTarget) -> int:
    """Depths come in multiples of a fractal's."""
    return target.memory.block_bytes // product.dtype.itemsize


class MatmulFamily(KernelFamily[AicoreTarget]):
    """`aicore.matmul`: constant or computed factors, one matrix or a batch of them, f16, bf16, f32 and i8."""

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        """Matrices with elements side by side along either of their axes."""
        rank = len(view.shape)
        if view.is_dense or rank == 0 or slot > 1:
            return view.is_dense
        inner = [(s, d) for s, d in zip(view.strides[-2:], view.shape[-2:], strict=True) if d > 1]
        fits = all(0 <= s * dtype.itemsize <= STRIDE_MAX for s, _ in inner)
        return fits and (not inner or any(s == 1 for s, _ in inner))

    def accepts_epilogue(self, kernel: str, target: AicoreTarget) -> bool:
        return mixes(target, LANES)

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:

        return candidates(body, target)


_FLOATS = AicoreKernelDef(
    id="aicore.matmul",
    ops=("matmul",),
    family=MatmulFamily(),
    emitter="matmul",
    micro="gemm",
    core_type="mix",
    dtypes=FLOATS,
    others=(None,),
    limits=(within(Reason.SHAPE, "k", 1),),
    stepped=True,
    deep=True,
    rounding=PRODUCT_SUMS,
)
KERNELS = (
    _FLOATS,
    replace(
        _FLOATS,
        id="aicore.matmul.i8",  # sums of i32, exact modulo 2^32
        ops=("matmul", "matmul_integer"),
        modifier="i8",
        dtypes=frozenset({DType.I8}),
        limits=(
            *_FLOATS.limits,
            one_of(Reason.ATTRIBUTE, "in2.dtype", None),  # no zero points
            one_of(Reason.ATTRIBUTE, "in3.dtype", None),
        ),
        rounding=EXACT,
    ),
)
