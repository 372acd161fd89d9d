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
from dataclasses import dataclass, replace
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.ops.opdef import Family as OpFamily
from superkernel.registry.predicates import Clause, Facts, FactValue, Reason, Test, one_of
from superkernel.registry.rounding import EXACT, ROW_SUMS
from superkernel.scheduler.families.aicore.barrier_reduce import barrier_reduce_tiling
from superkernel.scheduler.families.aicore.base import AicoreTiling, VectorTiling
from superkernel.scheduler.families.aicore.cuts import program_bytes
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

    def moved_bytes(self, body: Body) -> tuple[int, int]:
        read, _ = program_bytes(body, space_of(body).data)
        return read, super().moved_bytes(body)[1]

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
    "softmax_integer": _Work(12, 18, 2, 3),
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
    stores: float = tiles * dma.store_startup_cycles + target.transfer_cycles("rates.ub_to_gm_gb_per_s", int(out))
    pieces_in, pieces_out = _pieces(tiling, body, elements)
    load_one += pieces_in / tiles * dma.row_cycles
    stores += pieces_out * dma.row_cycles
    slowest = max(work, tiles * again * load_one, stores)
    return slowest + load_one + (work / tiles if tiles > 1 else work) + dma.store_startup_cycles


def _pieces(tiling: RowsTiling, body: Body, elements: float) -> tuple[float, float]:
    """Runs of bytes that loads and stores of so many elements are made of, where a tile is not one."""
    space = space_of(body)
    _, q_dim = tile_dims(space)
    gaps = tiling.stride != tiling.q or tiling.q < space.data.shape[q_dim]
    straight, turned = elements / tiling.q if gaps else 0.0, elements / tiling.p
    loads = [i.strides[q_dim] for i in space.data.inputs if i.source >= 0]
    stores = [] if is_reduction(body) else [o.strides[q_dim] for o in space.epilogue.outputs]
    pieces_in = sum(straight if s in (0, 1) else turned for s in loads)
    return pieces_in, sum(straight if s == 1 else turned for s in stores)


class _Search:
    """Cuts whose buffers fit into UB. `p`, `q`: extents of a tile's dimensions."""

    def __init__(self, body: Body, target: AicoreTarget) -> None:
        kind = body.anchor_input_types[0]
        assert kind is not None
        self.body, self.space, self.target = body, space_of(body), target
        self.mode, self.item = mode_of(self.space), kind.dtype.itemsize
        outs = [body.operands[o.target].type.dtype.itemsize for o in self.space.epilogue.outputs]
        narrowest = min([self.item, work_of(body).itemsize, *([] if is_reduction(body) else outs)])
        self.pad, self.step = target.memory.block_bytes // narrowest, 512 // self.item
        (p_dim, q_dim), shape = tile_dims(self.space), self.space.epilogue.shape
        self.p, self.q = max(1, shape[p_dim]) if p_dim >= 0 else 1, max(1, shape[q_dim])

    def run(self) -> Sequence[RowsTiling]:
        """Never empty. Raises UnsupportedError where not even a block of a row fits."""
        if self.mode in (RowMode.LINES, RowMode.POINTS):
            return (self._lines(),)
        return (self._whole(),) if self.mode is RowMode.WHOLE else tuple(self._columns())

    def _stride(self, q: int) -> int:
        """Elements from tile row to tile row."""
        return ceil_to(q, self.pad)

    def _bytes(self, p: int, q: int, depth: int, fold: bool) -> int:
        block = self.target.memory.block_bytes
        return buffers_of(self.body, p, q, self._stride(q), fold, block).total(depth, block)

    def _fits(self, p: int, q: int, depth: int = 2, fold: bool = False) -> bool:
        return self._bytes(p, q, depth, fold) <= self.target.memory.ub_bytes

    def _rows(self, q: int, depth: int = 2, fold: bool = False) -> int:
        """The most tile rows of q elements that fit, 0 for none."""
        limit = max(1, TILE_BYTES_MAX // (self._stride(q) * self.item))
        most = min(self.p, limit, COUNT_MAX // self._stride(q))
        return largest(most, lambda p: self._fits(p, q, depth, fold))

    def _chunk(self, q_max: int) -> int:
        """The longest chunk of a row, in whole 512-byte blocks."""
        q = min(q_max, TILE_BYTES_MAX // self.item // self.step * self.step) or self.step
        while q > self.step and not self._fits(1, q):
            q -= self.step
        if not self._fits(1, q):
            raise UnsupportedError(
                "the unified buffer is too small for a row kernel",
                location="memory.ub_bytes",
                expected=f"at least {self._bytes(1, q, 2, False)} bytes",
                found=self.target.memory.ub_bytes,
            )
        return q

    def _tiling(
        self, p: int, q: int, *, resident: bool, fold: bool = False, depth: int = 2, block: int = 1
    ) -> RowsTiling:
        inner = self.space.inner if self.mode in (RowMode.COLUMNS, RowMode.POINTS) else 1
        is_empty = not is_reduction(self.body) and self.space.row_size == 0
        outer = 0 if is_empty else prod(self.space.outer)
        return RowsTiling(self.mode, p, q, self._stride(q), resident, fold, depth, outer, inner, block)

    def _lines(self) -> RowsTiling:
        """Many rows per tile; a row that does not fit streams through one tile row."""
        points = self.mode is RowMode.POINTS
        for depth in (2, 1):
            p = self._rows(self.q, depth, True)
            fold = p > 0 and _fold_pays(p, self.q, self.target) and not points
            p = p if fold else self._rows(self.q, depth)
            if p:
                block = self.q if points else 1
                return self._tiling(p, self.q, resident=True, fold=fold, depth=depth, block=block)
        q = self._chunk(self.q)
        return self._tiling(1, q, resident=points, block=q if points else 1)

    def _whole(self) -> RowsTiling:
        for depth in (2, 1) if prod(self.space.row[:-2]) == 1 else ():
            if self._rows(self.q, depth) == self.p:
                return self._tiling(self.p, self.q, resident=True, depth=depth)
        p = self._rows(self.q)
        return self._tiling(p or 1, self.q if p else self._chunk(self.q), resident=False)

    def _columns(self) -> list[RowsTiling]:
        """Blocks of the inner axis: wide ones, and narrower ones that fit or are for more cores."""
        found: list[RowsTiling] = []
        widths = dict.fromkeys(min(self.q, self.step * n // 4) for n in (32, 16, 8, 4, 2, 1))
        for q in widths if prod(self.space.row[:-1]) == 1 else ():
            depth = next((n for n in (2, 1) if self._fits(self.p, q, n)), 0)
            found += [self._tiling(self.p, q, resident=True, depth=depth, block=q)] if depth else []
        for q in widths:
            p = self._rows(q)
            if p and not any(t.q == q for t in found):
                found.append(self._tiling(p, q, resident=False, block=q))
        if not found:
            self._chunk(self.step)  # refuses
        return found


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
        return _Search(body, target).run()

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


FAMILY = RowsFamily()


@dataclass(frozen=True, slots=True)
class AheadOfLast(Test):
    """An axis with others behind it: vectors lie along those."""

    def holds(self, value: FactValue, facts: Facts) -> bool:
        rank = facts["rank"]
        assert isinstance(rank, int)
        return isinstance(value, int) and value % rank < rank - 1

    def required(self, facts: Facts) -> str:
        return "an axis ahead of the last"


_REDUCTIONS = tuple(name for name in ops_of(OpFamily.REDUCE) if name.startswith("reduce_"))
_EXTREMES = ("reduce_max", "reduce_min")

_NORM = AicoreKernelDef(
    id="aicore.norm",
    ops=("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "lp_norm"),
    family=FAMILY,
    emitter="rows",
    micro="norm",
    dtypes=FLOATS,
    rounding=ROW_SUMS,
)
KERNELS = (
    _NORM,
    replace(_NORM, id="aicore.softmax", ops=("softmax", "log_softmax", "softmax_integer"), micro="softmax"),
    replace(
        _NORM,
        id="aicore.reduce",  # floats in f32, integers in their own type, bytes in f16
        ops=_REDUCTIONS,
        micro="reduce",
        exact={
            INTEGERS: ("reduce_sum", "reduce_prod", "reduce_l1", "reduce_sum_square", *_EXTREMES),
            BYTES | {DType.BOOL}: _EXTREMES,
        },
    ),
    replace(
        _NORM,
        id="aicore.scan",
        ops=("cumsum",),
        micro="cumsum",
        dtypes=frozenset({DType.I32}),
        limits=(Clause(Reason.SHAPE, "attr.axis", AheadOfLast()), one_of(Reason.ATTRIBUTE, "attr.reverse", False)),
        rounding=EXACT,
    ),
)
