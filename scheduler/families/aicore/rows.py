"""aicore.norm, aicore.softmax, aicore.reduce, aicore.scan: how row-wise operators are cut for a vector core.

Model: a body is brought into a row space (outer x row x inner, see families/rowspace); a *tile* covers two of its
dimensions, P and Q, the others are looped over (`row_modes`).

A tiling is `resident` where a unit's row lies in UB as one tile; else the row streams through UB in chunks, once per
pass. Units are those of the host's `RowTiling`: an outer index, or a block of the inner axis of one.

Invariants: a row is never shared by two units; what a chunk is depends on the tiling only, so results do not depend on
how units are divided. Sizes come from the target; a target too small for one block of a row is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.ops.opdef import Family as OpFamily
from superkernel.registry.predicates import Clause, Facts, FactValue, Reason, Test, one_of
from superkernel.registry.rounding import EXACT, ROW_SUMS
from superkernel.scheduler.families.aicore.barrier_reduce import barrier_reduce_tiling
from superkernel.scheduler.families.aicore.base import AicoreTiling, VectorTiling
from superkernel.scheduler.families.aicore.kernel import BYTES, FLOATS, INTEGERS, AicoreKernelDef
from superkernel.scheduler.families.aicore.rounding import ceil_to, largest
from superkernel.scheduler.families.aicore.row_buffers import (
    FOLD_COLUMNS,
    RowBuffers,
    buffers_of,
    code_before,
    code_behind,
)
from superkernel.scheduler.families.aicore.row_modes import RowMode, is_reduction, mode_of, tile_dims, work_of
from superkernel.scheduler.families.aicore.tilecode import COUNT_MAX
from superkernel.scheduler.families.rowops import space_of
from superkernel.scheduler.families.rowtiling import RowTiling
from superkernel.scheduler.kerneldef import ops_of
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.aicore import AicoreTarget

TILE_BYTES_MAX = 32 * 1024  # a longer transfer gains nothing and delays the first result


@dataclass(frozen=True)
class RowsTiling(VectorTiling):
    """See the module docstring. Tiles are at most `p` x `q` elements, rows `stride` elements apart in UB; `fold`: sums
    over tile rows by folding and turning instead of one tree per row; `depth`: slots of the rings."""

    mode: RowMode
    p: int
    q: int
    stride: int
    resident: bool
    fold: bool
    depth: int
    outer: int  # product of the outer dimensions
    inner: int  # extent of the blocked axis, 1 without
    block: int

    def buffers(self, body: Body, block: int) -> RowBuffers:
        """What the kernel allocates; `block`: `memory.block_bytes`."""
        return buffers_of(body, self.p, self.q, self.stride, self.fold, block)

    @property
    def blocks(self) -> int:
        """Units per outer index."""
        return -(-self.inner // self.block)

    @property
    def units(self) -> int:
        return self.outer * self.blocks

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return RowTiling(self.outer, self.inner, self.block, 0, 0.0).accesses(body, begin, end)

    def align(self, body: Body, unit: int) -> int:
        """Whole blocks of full-rate alignment per core where a unit writes less than one."""
        size = body.anchor_outputs[0].nbytes // max(1, self.units)
        if not 0 < size < 512 or 512 % size or self.units < 4 * (512 // size):
            return unit
        per_block = 512 // size
        return min(self.units, round(unit / per_block) * per_block)

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        return _cost(self, body, end - begin, target)


@dataclass(frozen=True)
class _Work:
    """Passes of the vector engine at full rate over resident data (exponentials count twice) and over data that
    streams, reductions along rows among them, and how often streaming data is loaded."""

    resident: float
    streaming: float
    reductions: int
    loads: int


_WORK: dict[str, _Work] = {
    "softmax": _Work(8, 12, 2, 2),
    "log_softmax": _Work(8, 10, 2, 2),
    "layer_norm": _Work(9, 12, 2, 3),
    "rms_norm": _Work(6, 7, 1, 2),
    "group_norm": _Work(9, 11, 2, 3),
    "instance_norm": _Work(9, 11, 2, 3),
    "lp_norm": _Work(6, 7, 1, 2),
    "batch_norm": _Work(5, 5, 0, 1),
    "reduce_log_sum_exp": _Work(6, 7, 2, 2),
    "cumsum": _Work(12, 12, 0, 1),
}


def _cost(tiling: RowsTiling, body: Body, units: int, target: AicoreTarget) -> float:
    """The slowest engine's cycles, and what the first load and the last store add."""
    space = space_of(body)
    vector, dma = target.vector, target.dma
    kind = body.anchor_input_types[0]
    assert kind is not None
    work_of_op = _WORK.get(body.op or "", _Work(2, 2, 1, 1))
    passes = work_of_op.resident if tiling.resident else work_of_op.streaming
    reductions, loads = work_of_op.reductions, work_of_op.loads
    elements = prod(space.data.shape) / max(1, tiling.units) * units
    tile = min(elements, tiling.p * tiling.q)
    tiles = max(1.0, elements / max(1, tile))
    rows = elements / max(1, tiling.q)
    lanes = vector.lanes_32bit
    beats = rows * -(-tiling.q // lanes) * passes
    if tiling.mode is RowMode.LINES and not tiling.fold:
        beats += rows * reductions * vector.reduce_tail_cycles
    commands = 2 + passes + (7 if tiling.fold else 3) * reductions
    for code in (code_before(body), code_behind(body)):
        beats += 0 if code is None else tiles * code.vector_cycles(min(tiling.p, int(rows) + 1), tiling.q, target)
    work = beats + tiles * commands * vector.startup_cycles
    again = 1 if tiling.resident else loads
    load_one: float = target.move_cycles("rates.gm_to_ub_gb_per_s", 1, int(tile * kind.dtype.itemsize))
    out = body.anchor_outputs[0].nbytes / max(1, tiling.units) * units
    stores: float = tiles * dma.startup_cycles + target.transfer_cycles("rates.ub_to_gm_gb_per_s", int(out))
    pieces_in, pieces_out = _pieces(tiling, body, elements)
    load_one += pieces_in / tiles * dma.row_cycles
    stores += pieces_out * dma.row_cycles
    slowest = max(work, tiles * again * load_one, stores)
    return slowest + load_one + (work / tiles if tiles > 1 else work) + dma.startup_cycles


def _pieces(tiling: RowsTiling, body: Body, elements: float) -> tuple[float, float]:
    """Runs of bytes that loads and stores of so many elements are made of, where a tile is not one."""
    space = space_of(body)
    _, q_dim = tile_dims(space)
    gaps = tiling.stride != tiling.q or tiling.q < space.data.shape[q_dim]
    straight, turned = elements / tiling.q if gaps else 0.0, elements / tiling.p
    loads = [i.strides[q_dim] for i in space.data.inputs if i.source >= 0]
    stores = [] if is_reduction(body) else [o.strides[q_dim] for o in space.epilogue.outputs]
    pieces_in = sum(straight if s in (0, 1) else turned for s in loads)
    return pieces_in, sum(straight if s in (0, 1) else turned for s in stores)


class _Budget:
    """What fits into UB."""

    def __init__(self, body: Body, target: AicoreTarget) -> None:
        kind = body.anchor_input_types[0]
        assert kind is not None
        self.body, self.space, self.target = body, space_of(body), target
        self.item = kind.dtype.itemsize
        outs = [body.operands[o.target].type.dtype.itemsize for o in self.space.epilogue.outputs]
        narrowest = min([self.item, work_of(body).itemsize, *([] if is_reduction(body) else outs)])
        self.pad = target.memory.block_bytes // narrowest

    def stride(self, q: int) -> int:
        """Elements from tile row to tile row."""
        return ceil_to(q, self.pad)

    def bytes(self, p: int, q: int, depth: int, fold: bool = False) -> int:
        """All buffers."""
        block = self.target.memory.block_bytes
        return buffers_of(self.body, p, q, self.stride(q), fold, block).total(depth, block)

    def fits(self, p: int, q: int, depth: int, fold: bool = False) -> bool:
        """Whether they do."""
        return self.bytes(p, q, depth, fold) <= self.target.memory.ub_bytes


def _fold_pays(p: int, q: int, target: AicoreTarget) -> bool:
    """Whether folding and turning p rows of q elements is quicker than a tree per row."""
    start, tail, lanes = target.vector.startup_cycles, target.vector.reduce_tail_cycles, target.vector.lanes_32bit
    steps = max(0, (-(-q // FOLD_COLUMNS) - 1)).bit_length()
    width = min(q, FOLD_COLUMNS)
    folded = p * max(0, -(-q // lanes) - 1) + (steps + 2) * start
    folded += -(-p // 16) * -(-width // 16) * (256 // lanes) + width * -(-p // lanes) + tail
    return folded < start + p * (-(-q // lanes) + tail)


class RowsFamily(KernelFamily[AicoreTarget]):
    """Softmax, normalisations, reductions and running sums on a vector core."""

    prologue_slots = (0,)

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        """One way to cut rows; for the sum of a whole tensor also one over all cores, which meet. Running sums go down
        the rows of tiles that hold all of them."""
        if kernel == "aicore.scan":
            return _scans(self.by_rows(body, target), body)
        alone, together = self.by_rows(body, target), barrier_reduce_tiling(body, target)
        return alone if together is None else (*alone, together)

    def by_rows(self, body: Body, target: AicoreTarget) -> Sequence[RowsTiling]:
        """Rows on cores that know nothing of one another."""
        space = space_of(body)
        budget = _Budget(body, target)
        pd, qd = tile_dims(space)
        shape = space.epilogue.shape
        p_extent, q_extent = (max(1, shape[pd]) if pd >= 0 else 1), max(1, shape[qd])
        if mode_of(space) in (RowMode.LINES, RowMode.POINTS):
            return (_lines(budget, p_extent, q_extent),)
        if mode_of(space) is RowMode.WHOLE:
            return (_whole(budget, p_extent, q_extent),)
        return tuple(_columns(budget, p_extent, q_extent))

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        if slot:
            return view.is_dense
        moving = [s for s, d in zip(view.strides, view.shape, strict=True) if d > 1]
        return all(s > 0 for s in moving) and min(moving, default=1) == 1

    def prologue_may_store(self, kernel: str, op: str, slot: int) -> bool:
        """Rows that stream store the same bytes again with every pass."""
        return kernel != "aicore.reduce"


def _scans(offered: Sequence[RowsTiling], body: Body) -> Sequence[RowsTiling]:
    found = [t for t in offered if t.mode is RowMode.COLUMNS and t.resident]
    if not found:
        space = space_of(body)
        raise UnsupportedError(
            "a running sum that goes along lines of memory, or whose rows do not fit into UB together",
            location="operator 'cumsum'",
            expected="an axis ahead of the last, short enough for memory.ub_bytes",
            found=f"{space.row_size} rows of {space.inner}",
        )
    return found


def _largest(budget: _Budget, p_max: int, q: int, depth: int, fold: bool) -> int:
    """The most tile rows of q elements that fit, 0 for none."""
    limit = max(1, TILE_BYTES_MAX // (budget.stride(q) * budget.item))
    most = min(p_max, limit, COUNT_MAX // budget.stride(q))
    return largest(most, lambda p: budget.fits(p, q, depth, fold))


def _widest(budget: _Budget, p: int, q_max: int, depth: int) -> int:
    """The longest chunk of tile rows, in whole 512-byte blocks."""
    step = 512 // budget.item
    q = min(q_max, TILE_BYTES_MAX // budget.item // p // step * step) or step
    while q > step and not budget.fits(p, q, depth):
        q -= step
    if not budget.fits(p, q, depth):
        raise UnsupportedError(
            "the unified buffer is too small for a row kernel",
            location="memory.ub_bytes",
            expected=f"at least {budget.bytes(p, q, depth)} bytes",
            found=budget.target.memory.ub_bytes,
        )
    return q


def _tiling(
    budget: _Budget, p: int, q: int, *, resident: bool, fold: bool = False, depth: int = 2, block: int = 1
) -> RowsTiling:
    space = budget.space
    inner = space.inner if mode_of(space) in (RowMode.COLUMNS, RowMode.POINTS) else 1
    outer = prod(space.outer)
    if not is_reduction(budget.body) and space.row_size == 0:
        outer = 0
    return RowsTiling(
        mode_of(space), p, q, budget.stride(q), resident, fold, depth, outer, max(inner, 1) if inner else 0, block
    )  # fmt: skip


def _lines(budget: _Budget, p_extent: int, q_extent: int) -> RowsTiling:
    """Many rows per tile; a row that does not fit streams through one tile row."""
    points = mode_of(budget.space) is RowMode.POINTS
    for depth in (2, 1):
        p = _largest(budget, p_extent, q_extent, depth, True)
        fold = p > 0 and _fold_pays(p, q_extent, budget.target) and not points
        if not fold:
            p = _largest(budget, p_extent, q_extent, depth, False)
        if p:
            return _tiling(
                budget, p, q_extent, resident=True, fold=fold, depth=depth, block=q_extent if points else 1
            )  # fmt: skip
    q = _widest(budget, 1, q_extent, 2)
    return _tiling(budget, 1, q, resident=points, block=q if points else 1)


def _whole(budget: _Budget, p_extent: int, q_extent: int) -> RowsTiling:
    rows = prod(budget.space.row[:-2])
    for depth in (2, 1):
        p = _largest(budget, p_extent, q_extent, depth, False)
        if p == p_extent and rows == 1:
            return _tiling(budget, p, q_extent, resident=True, depth=depth)
    p = _largest(budget, p_extent, q_extent, 2, False)
    if p:
        return _tiling(budget, p, q_extent, resident=False)
    return _tiling(budget, 1, _widest(budget, 1, q_extent, 2), resident=False)


def _columns(budget: _Budget, p_extent: int, q_extent: int) -> list[RowsTiling]:
    """Blocks of the inner axis: wide ones, and narrower ones that fit or are for more cores."""
    found: dict[RowsTiling, None] = {}
    rows = prod(budget.space.row[:-1])
    step = 512 // budget.item
    widths = dict.fromkeys(min(q_extent, w) for w in (8 * step, 4 * step, 2 * step, step, step // 2, step // 4))
    for q in widths:
        if rows == 1:
            for depth in (2, 1):
                if budget.fits(p_extent, q, depth):
                    found[_tiling(budget, p_extent, q, resident=True, depth=depth, block=q)] = None
                    break
    for q in widths:
        p = _largest(budget, p_extent, q, 2, False)
        if p and not any(t.q == q for t in found):
            found[_tiling(budget, p, q, resident=False, block=q)] = None
    if not found:
        _widest(budget, 1, step, 2)  # refuses
    return list(found)


FAMILY = RowsFamily()


@dataclass(frozen=True, slots=True)
class AheadOfLast(Test):
    """An axis with others behind it: vectors lie along those."""

    def holds(self, value: FactValue, facts: Facts) -> bool:
        rank = facts["rank"]
        return isinstance(value, int) and isinstance(rank, int) and value % max(1, rank) < rank - 1

    def required(self, facts: Facts) -> str:
        return "an axis ahead of the last"

    def witness(self, value: FactValue, facts: Facts) -> FactValue:
        return 0


_REDUCTIONS = tuple(name for name in ops_of(OpFamily.REDUCE) if name.startswith("reduce_"))
_EXTREMES = ("reduce_max", "reduce_min")

KERNELS = (
    AicoreKernelDef(
        id="aicore.norm",
        ops=("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "lp_norm"),
        family=FAMILY,
        emitter="rows",
        micro="norm",
        dtypes=FLOATS,
        rounding=ROW_SUMS,
    ),
    AicoreKernelDef(
        id="aicore.softmax",
        ops=("softmax", "log_softmax"),
        family=FAMILY,
        emitter="rows",
        micro="softmax",
        dtypes=FLOATS,
        rounding=ROW_SUMS,
    ),
    AicoreKernelDef(
        id="aicore.reduce",  # floats in f32, integers in their own type, bytes in f16
        ops=_REDUCTIONS,
        family=FAMILY,
        emitter="rows",
        micro="reduce",
        dtypes=FLOATS,
        exact={
            INTEGERS: ("reduce_sum", "reduce_prod", "reduce_l1", "reduce_sum_square", *_EXTREMES),
            BYTES | {DType.BOOL}: _EXTREMES,
        },
        rounding=ROW_SUMS,
    ),
    AicoreKernelDef(
        id="aicore.scan",
        ops=("cumsum",),
        family=FAMILY,
        emitter="rows",
        micro="cumsum",
        dtypes=frozenset({DType.I32}),
        limits=(
            Clause(Reason.SHAPE, "attr.axis", AheadOfLast()),
            one_of(Reason.ATTRIBUTE, "attr.reverse", False),
        ),
        rounding=EXACT,
    ),
)
