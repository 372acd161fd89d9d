"""aicore.norm, aicore.softmax, aicore.reduce: how row-wise operators are cut for a vector core.

Model: a body is brought into a row space (outer x row x inner, see families/rowspace); a *tile* covers two of its
dimensions, P (tile rows) and Q (along which memory is contiguous), the others are looped over:

| mode    | where                          | P               | Q             | statistics are          |
|---------|--------------------------------|-----------------|---------------|-------------------------|
| LINES   | contiguous along the row       | the last outer  | the row       | one per tile row        |
| COLUMNS | contiguous along a kept axis   | the last row    | that axis     | one per tile column     |
| WHOLE   | a row of two or more dimensions| the last but one| the last row  | one for all of the tile |
| POINTS  | statistics are given           | the last outer  | the last axis | the element itself      |

A tiling is `resident` where a unit's row lies in UB as one tile; else the row streams through UB in chunks, once per
pass. Units are those of the host's `RowTiling`: an outer index, or a block of the inner axis of one.

Invariants: a row is never shared by two units; what a chunk is depends on the tiling only, so results do not depend on
how units are dealt out. Sizes come from the target; a target too small for one block of a row is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod

from superkernel.body import Body, PointwiseProgram, View
from superkernel.dtypes import DType
from superkernel.errors import UnsupportedError
from superkernel.scheduler.families.aicore.base import AicoreTiling, KernelType
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.tilecode import Home, TileCode, TileSize
from superkernel.scheduler.families.rowops import space_of
from superkernel.scheduler.families.rowspace import RowSpace, RowTiling
from superkernel.scheduler.tiling import Access, Family
from superkernel.target.aicore import AicoreTarget

NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "lp_norm")
SOFTMAXES = ("softmax", "log_softmax")
FLOATS = (DType.F32, DType.F16, DType.BF16)
# Element types by operator: what the registry offers.
REDUCE_DTYPES: dict[str, tuple[DType, ...]] = {
    **dict.fromkeys(("reduce_mean", "reduce_l2", "reduce_log_sum", "reduce_log_sum_exp"), FLOATS),
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_l1", "reduce_sum_square"), (*FLOATS, DType.I32, DType.I16)),
    **dict.fromkeys(
        ("reduce_max", "reduce_min"), (*FLOATS, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL)
    ),
}  # fmt: skip
STATISTICS = 6  # vectors of one number per tile row or column
FOLD_COLUMNS = 64  # columns to which rows are folded before they are turned
TILE_BYTES_MAX = 32 * 1024  # a longer transfer gains nothing and delays the first result


BATCH_NORM_PROGRAMS = 6  # five inputs and the epilogue: statistics are among the inputs
COUNT_MAX = 65535  # of a command's columns


class Mode(Enum):
    """See the module docstring."""

    LINES = "lines"
    COLUMNS = "columns"
    WHOLE = "whole"
    POINTS = "points"


def mode_of(space: RowSpace) -> Mode:
    """How a space is tiled."""
    has_inner = len(space.outer) + len(space.row) < len(space.epilogue.shape)
    if has_inner:
        return Mode.POINTS if len(space.programs) == BATCH_NORM_PROGRAMS else Mode.COLUMNS
    return Mode.LINES if len(space.row) == 1 else Mode.WHOLE


def tile_dims(space: RowSpace) -> tuple[int, int]:
    """The dimensions P and Q; -1 for a P that does not exist."""
    mode, rank, outer = mode_of(space), len(space.epilogue.shape), len(space.outer)
    if mode in (Mode.LINES, Mode.POINTS):
        return outer - 1, rank - 1
    return rank - 2, rank - 1


@lru_cache(maxsize=4096)
def is_reduction(body: Body) -> bool:
    """Whether there is one result per row."""
    return (body.op or "").startswith("reduce_")


def work_of(body: Body) -> DType:
    """The type a kernel computes in: f32 for floats, but extremes of f16 are exact in f16; bytes fit into f16."""
    kind = body.anchor_input_types[0]
    assert kind is not None
    if kind.dtype is DType.F16 and body.op in ("reduce_max", "reduce_min"):
        return DType.F16
    if kind.dtype in FLOATS:
        return DType.F32
    return DType.F16 if kind.dtype.itemsize == 1 else kind.dtype


@dataclass(frozen=True)
class RowsTiling(AicoreTiling):
    """See the module docstring. Tiles are at most `p` x `q` elements, rows `stride` elements apart in UB; `fold`: sums
    over tile rows by folding and turning instead of one tree per row; `depth`: slots of the rings."""

    mode: Mode
    p: int
    q: int
    stride: int
    resident: bool
    fold: bool
    depth: int
    outer: int  # product of the outer dimensions
    inner: int  # extent of the blocked axis, 1 without
    block: int

    @property
    def kernel_type(self) -> KernelType:
        return KernelType.VECTOR

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


def _passes(body: Body) -> tuple[float, float, int]:
    """Vector passes over the data at full rate, reductions among them, and passes that a streaming kernel loads."""
    special = 2.0
    table = {
        "softmax": (5 + special, 2, 2),
        "log_softmax": (5 + special, 2, 2),
        "layer_norm": (8.0, 2, 3),
        "rms_norm": (5.0, 1, 2),
        "group_norm": (7.0, 2, 3),
        "instance_norm": (7.0, 2, 3),
        "lp_norm": (4.0, 1, 2),
        "batch_norm": (4.0, 0, 1),
        "reduce_log_sum_exp": (4 + special, 2, 2),
    }
    return table.get(body.op or "", (2.0, 1, 1))


def _cost(tiling: RowsTiling, body: Body, units: int, target: AicoreTarget) -> float:
    """The slowest engine's cycles, and what the first load and the last store add."""
    space = space_of(body)
    vector, dma = target.vector, target.dma
    kind = body.anchor_input_types[0]
    assert kind is not None
    passes, reductions, loads = _passes(body)
    elements = prod(space.data.shape) / max(1, tiling.units) * units
    tile = min(elements, tiling.p * tiling.q)
    tiles = max(1.0, elements / max(1, tile))
    rows = elements / max(1, tiling.q)
    lanes = vector.lanes_32bit
    beats = rows * -(-tiling.q // lanes) * passes
    if tiling.mode is Mode.LINES and not tiling.fold:
        beats += rows * reductions * vector.reduce_tail_cycles
    commands = 2 + passes + 5 * reductions
    for code in (code_before(body), code_behind(body)):
        beats += 0 if code is None else tiles * code.vector_cycles(min(tiling.p, int(rows) + 1), tiling.q, target)
    work = beats + tiles * commands * vector.startup_cycles
    again = 1 if tiling.resident else loads
    load_one = dma.startup_cycles + target.transfer_cycles("rates.gm_to_ub_gb_per_s", int(tile * kind.dtype.itemsize))
    out = body.anchor_outputs[0].nbytes / max(1, tiling.units) * units
    stores = tiles * dma.startup_cycles + target.transfer_cycles("rates.ub_to_gm_gb_per_s", int(out))
    slowest = max(work, tiles * again * load_one, stores)
    return slowest + load_one + (work / tiles if tiles > 1 else work) + dma.startup_cycles


@dataclass(frozen=True)
class Buffers:
    """Bytes of UB that a tiling takes. `raw`, `turned_in` and `params` in every slot of the input ring, `out` and
    `turned_out` (by output) in every slot of the output ring; the rest once. A parameter has its bytes as loaded and
    in the type of the work (0 where that is the same)."""

    raw: int
    turned_in: int
    params: tuple[tuple[int, tuple[int, int]], ...]
    work: int
    scratch: int
    turned_at: int  # where the turned rows begin in scratch
    statistic: int
    out: tuple[int, ...]
    turned_out: tuple[int, ...]
    spare: int  # a vector like a further input
    before: tuple[int, int, int]  # of the program that yields the data: input ring, its own output ring, once
    behind: tuple[int, int]  # of the program that takes the results: input ring, once
    taken: int  # the results that a program stores as they are, in every slot of the output ring

    def param(self, slot: int) -> tuple[int, int]:
        """Of one further input."""
        return dict(self.params)[slot]

    def total(self, depth: int, block: int) -> int:
        """All of them, each rounded up to a block."""
        slots = [self.raw, self.turned_in, *(raw for _, (raw, _) in self.params), *self.out, *self.turned_out]
        slots += [*self.before[:2], self.behind[0], self.taken]
        once = [self.before[2], self.behind[1], *(value for _, (_, value) in self.params), self.work, self.scratch, self.spare, *[self.statistic] * STATISTICS]
        return sum(-(-n // block) * block for n in slots * depth + once)


def buffers_of(body: Body, tiling: RowsTiling, block: int) -> Buffers:
    """What a kernel allocates; `block`: `memory.block_bytes`."""
    return _buffers(body, tiling.p, tiling.q, tiling.stride, tiling.fold, block)


def turn_stride(p: int, item: int, block: int) -> int:
    """Bytes from row to row of a turned tile of p columns."""
    return -(-p * item // block) * block


def _turn_bytes(strides: tuple[int, ...], p_dim: int, q_dim: int, p: int, q: int, item: int, block: int) -> int:
    """Room to turn a tile that is not contiguous along Q in global memory."""
    if q == 1 or strides[q_dim] == 1:
        return 0
    along = strides[p_dim] if p_dim >= 0 else 1
    return q * turn_stride(p, item, block) if along == 1 or p == 1 else p * q * block


@lru_cache(maxsize=65536)
def _buffers(body: Body, p: int, q: int, stride: int, fold: bool, block: int) -> Buffers:
    space = space_of(body)
    kind = body.anchor_input_types[0]
    assert kind is not None
    p_dim, q_dim = tile_dims(space)
    item, work, p16 = kind.dtype.itemsize, work_of(body).itemsize, -(-p // 16) * 16
    casts = work_of(body) is not kind.dtype
    before, behind = code_before(body), code_behind(body)
    walk = space.data.inputs[0].strides if before is None else ()
    params, spare = [], 0
    for slot, program in enumerate(space.programs[1:-1], 1):
        if program is not None:
            count, spread = _param_size(program, p_dim, q_dim, p, q, p * stride)
            dtype = program.inputs[0].dtype
            both = [count * (block if spread else t.itemsize) for t in (dtype, work_of(body))]
            spare = max(spare, both[1]) if count < p * stride or p * stride == 1 else spare
            params.append((slot, (both[0], both[1] if dtype is not work_of(body) else 0)))
    product = body.op == "reduce_prod"
    temporary = p * stride * work if fold or product or body.op not in _IN_PLACE else 0
    turned = p16 * FOLD_COLUMNS * work if fold or product else 0
    mode = mode_of(space)
    numbers = {Mode.LINES: p, Mode.COLUMNS: q, Mode.WHOLE: 1, Mode.POINTS: 1}[mode]
    along = {Mode.LINES: p_dim, Mode.COLUMNS: q_dim}.get(mode, -1)
    out, turned_out = [], []
    for result in space.epilogue.outputs if behind is None else ():
        size = body.operands[result.target].type.dtype.itemsize
        if is_reduction(body):
            steps = (0, result.strides[along] if along >= 0 else 1)
            out.append(numbers * size)
            turned_out.append(_turn_bytes(steps, 0, 1, 1, numbers, size, block))
        else:
            out.append(p * stride * size)
            turned_out.append(_turn_bytes(result.strides, p_dim, q_dim, p, q, size, block))
    size_before, size_behind = TileSize(p, q, block), TileSize(*result_extents(body, p, q), block)
    if behind is not None:
        out.append(_home_bytes(behind, Home.OUTPUT, size_behind, block))
    return Buffers(
        p * stride * item if before is None else 0,
        _turn_bytes(walk, p_dim, q_dim, p, q, item, block) if walk else 0, tuple(params),
        p * stride * work if casts and before is None else 0, temporary + turned, temporary, numbers * work, tuple(out),
        tuple(turned_out), spare,
        (0, 0, 0) if before is None else (
            _home_bytes(before, Home.INPUT, size_before, block), _home_bytes(before, Home.OUTPUT, size_before, block),
            before.temporaries(size_before)[1],
        ),
        (0, 0) if behind is None else (
            _home_bytes(behind, Home.INPUT, size_behind, block), behind.temporaries(size_behind)[1]
        ),
        (numbers if is_reduction(body) else p * stride) * work if stores_results(body) else 0,
    )  # fmt: skip


def _home_bytes(code: TileCode, home: Home, size: TileSize, block: int) -> int:
    """Bytes of the registers of a home, each in whole blocks."""
    return sum(-(-size.nbytes(code.registers[r]) // block) * block for r in code.of_home(home))


@lru_cache(maxsize=4096)
def code_before(body: Body) -> TileCode | None:
    """The tile code of the program that yields the data; None for a plain load."""
    program = space_of(body).data
    if not program.instructions and len(program.outputs) == len(program.inputs) == 1:
        return None
    dtypes = tuple(_stored_dtype(body, o.target, work_of(body)) for o in program.outputs)
    return lower(program, dtypes, *tile_dims(space_of(body)), deliver=work_of(body))


@lru_cache(maxsize=4096)
def code_behind(body: Body) -> TileCode | None:
    """The tile code of the program that takes the results; None for plain stores."""
    program = space_of(body).epilogue
    if not program.instructions and len(program.inputs) == 1:
        return None
    work = work_of(body)
    dtypes = tuple(_stored_dtype(body, o.target, work) for o in program.outputs)
    return lower(program, dtypes, *result_dims(body), anchors=(work,))


def stores_results(body: Body) -> bool:
    """Whether the program that takes the results stores them from where it finds them."""
    code = code_behind(body)
    return code is not None and any(code.registers[s.register].home is Home.ANCHOR for s in code.stores)


def _stored_dtype(body: Body, operand: int, otherwise: DType) -> DType:
    return body.operands[operand].type.dtype if operand >= 0 else otherwise


def result_dims(body: Body) -> tuple[int, int]:
    """The dimensions along which results lie as rows and columns of a tile; -1: one row."""
    space = space_of(body)
    p_dim, q_dim = tile_dims(space)
    if not is_reduction(body):
        return p_dim, q_dim
    return -1, p_dim if mode_of(space) is Mode.LINES and p_dim >= 0 else q_dim


def result_extents(body: Body, p: int, q: int) -> tuple[int, int]:
    """Rows and columns of the results of a p x q tile."""
    if not is_reduction(body):
        return p, q
    return 1, {Mode.LINES: p, Mode.COLUMNS: q}.get(mode_of(space_of(body)), 1)


# Operators that change the data in place and need no temporary tile, unless rows are folded.
_IN_PLACE = ("softmax", "batch_norm", *(f"reduce_{n}" for n in (
    "sum", "mean", "max", "min", "l1", "l2", "log_sum", "log_sum_exp", "sum_square")))  # fmt: skip


def _param_size(
    program: PointwiseProgram, p_dim: int, q_dim: int, p: int, q: int, tile: int
) -> tuple[int, bool]:
    """Numbers of a further input that go with a tile, and whether each lies in a block of its own."""
    walk = program.inputs[0].strides
    along_p, along_q = p_dim >= 0 and walk[p_dim] != 0, walk[q_dim] != 0
    if along_q and walk[q_dim] != 1:
        raise UnsupportedError(
            "a further input of a row kernel is not contiguous along the tile", location=f"strides {walk}",
            expected="stride 1", found=walk[q_dim], hint="store the data in row-major order",
        )  # fmt: skip
    if along_p and along_q:
        return tile, False
    return (p, walk[p_dim] != 1) if along_p else (q, False) if along_q else (1, False)


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
        return -(-q // self.pad) * self.pad

    def bytes(self, p: int, q: int, depth: int, fold: bool) -> int:
        """All buffers."""
        block = self.target.memory.block_bytes
        return _buffers(self.body, p, q, self.stride(q), fold, block).total(depth, block)


def _fold_pays(p: int, q: int, target: AicoreTarget) -> bool:
    """Whether folding and turning p rows of q elements is quicker than a tree per row."""
    start, tail, lanes = target.vector.startup_cycles, target.vector.reduce_tail_cycles, target.vector.lanes_32bit
    steps = max(0, (-(-q // FOLD_COLUMNS) - 1)).bit_length()
    width = min(q, FOLD_COLUMNS)
    folded = p * max(0, -(-q // lanes) - 1) + (steps + 2) * start
    folded += -(-p // 16) * -(-width // 16) * (256 // lanes) + width * -(-p // lanes) + tail
    return folded < start + p * (-(-q // lanes) + tail)


class RowsFamily(Family):
    """Softmax, normalisations and reductions on a vector core."""

    kernels = ("aicore.norm", "aicore.softmax", "aicore.reduce")

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[RowsTiling]:
        space = space_of(body)
        budget = _Budget(body, target)
        pd, qd = tile_dims(space)
        shape = space.epilogue.shape
        p_extent, q_extent = (max(1, shape[pd]) if pd >= 0 else 1), max(1, shape[qd])
        if mode_of(space) in (Mode.LINES, Mode.POINTS):
            return (_lines(budget, p_extent, q_extent),)
        if mode_of(space) is Mode.WHOLE:
            return (_whole(budget, p_extent, q_extent),)
        return tuple(_columns(budget, p_extent, q_extent))

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        if slot:
            return view.is_dense
        moving = [s for s, d in zip(view.strides, view.shape, strict=True) if d > 1]
        return all(s > 0 for s in moving) and min(moving, default=1) == 1

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return slot == 0

    def prologue_may_store(self, kernel: str, op: str, slot: int) -> bool:
        """Rows that stream store the same bytes again with every pass."""
        return kernel != "aicore.reduce"


def _capacity(budget: _Budget) -> int:
    return budget.target.memory.ub_bytes


def _largest(budget: _Budget, p_max: int, q: int, depth: int, fold: bool) -> int:
    """The most tile rows of q elements that fit, 0 for none."""
    low, high = 0, p_max
    limit = max(1, TILE_BYTES_MAX // (budget.stride(q) * budget.item))
    high = min(high, limit, COUNT_MAX // budget.stride(q))
    while low < high:
        middle = (low + high + 1) // 2
        if budget.bytes(middle, q, depth, fold) <= _capacity(budget):
            low = middle
        else:
            high = middle - 1
    return low


def _widest(budget: _Budget, p: int, q_max: int, depth: int) -> int:
    """The longest chunk of tile rows, in whole 512-byte blocks."""
    step = 512 // budget.item
    q = min(q_max, TILE_BYTES_MAX // budget.item // p // step * step) or step
    while q > step and budget.bytes(p, q, depth, False) > _capacity(budget):
        q -= step
    if budget.bytes(p, q, depth, False) > _capacity(budget):
        raise UnsupportedError(
            "the unified buffer is too small for a row kernel",
            location="memory.ub_bytes",
            expected=f"at least {budget.bytes(p, q, depth, False)} bytes",
            found=_capacity(budget),
        )
    return q


def _tiling(
    budget: _Budget, p: int, q: int, *, resident: bool, fold: bool = False, depth: int = 2, block: int = 1
) -> RowsTiling:
    space = budget.space
    inner = space.inner if mode_of(space) in (Mode.COLUMNS, Mode.POINTS) else 1
    outer = prod(space.outer)
    if not is_reduction(budget.body) and space.row_size == 0:
        outer = 0
    return RowsTiling(
        mode_of(space), p, q, budget.stride(q), resident, fold, depth, outer, max(inner, 1) if inner else 0, block
    )  # fmt: skip


def _lines(budget: _Budget, p_extent: int, q_extent: int) -> RowsTiling:
    """Many rows per tile; a row that does not fit streams through one tile row."""
    points = mode_of(budget.space) is Mode.POINTS
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
    """Blocks of the inner axis: as wide as fits, and narrower ones for more cores."""
    found: dict[RowsTiling, None] = {}
    rows = prod(budget.space.row[:-1])
    step = 512 // budget.item
    widths = dict.fromkeys(min(q_extent, w) for w in (8 * step, 4 * step, 2 * step, step))
    for q in widths:
        if rows == 1:
            for depth in (2, 1):
                if budget.bytes(p_extent, q, depth, False) <= _capacity(budget):
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
