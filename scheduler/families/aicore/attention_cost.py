"""What a tiling of attention takes: bytes of every local memory, and cycles of every engine.

Model: `ub_buffers`, `l1_buffers`, ... name every buffer of the kernel with its size and its slots; the emitter makes
exactly these. A step is as long as its slowest engine (`step_cycles`); a range is its steps, and once the way of a tile
through the group: scores, weights, sums, each a hop from core to core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.attention_tiling import (
    F32_BYTES,
    AttentionTiling,
    Stack,
    mask_form,
)
from superkernel.scheduler.families.aicore.cube import cube_cycles, fix_cycles
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.tilecode import Home, TileCode, TileSize
from superkernel.scheduler.families.attention import AttentionForm, attention_form
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Local

POSITION, HEAD, DEPTH = 2, 1, 3  # dimensions of the result
L0_SLOTS = 2
Buffers = Mapping[str, tuple[int, int]]  # name -> (bytes, slots)


def epilogue_code(body: Body, tiling: AttentionTiling) -> TileCode:
    """The program behind the anchor, on tiles of a lane's rows. Raises UnsupportedError."""
    dtypes = tuple(body.operands[o.target].type.dtype for o in body.epilogue.outputs)
    row = HEAD if tiling.stack is Stack.HEADS else POSITION
    return lower(body.epilogue, dtypes, row, DEPTH, anchors=(DType.F32,))


def hides_by_position(form: AttentionForm) -> bool:
    """Whether the causal limit differs between the rows of a head."""
    return form.causal and form.queries > 1


def is_contiguous(form: AttentionForm, which: str) -> bool:
    """Whether the rows of keys or values follow one another without a gap."""
    view = form.k if which == "k" else form.v
    return view.shape[2] == 1 or view.strides[2] == view.shape[3]


def row_pitch(form: AttentionForm, which: str, item: int, block: int) -> int:
    """Bytes from row to row of keys or values in L1."""
    size = (form.depth if which == "k" else form.value_depth) * item
    return size if is_contiguous(form, which) else ceil_to(size, block)


def query_pitch(form: AttentionForm, item: int, block: int) -> int:
    """Bytes from row to row of queries in L1."""
    return ceil_to(form.depth * item, block)


def l1_buffers(form: AttentionForm, t: AttentionTiling, block: int) -> Buffers:
    """`stream`: keys or values; `query`: a slot of that stream where units have one block, else kept for the unit."""
    widest = max(row_pitch(form, "k", t.item, block), row_pitch(form, "v", t.item, block))
    return {
        "stream": (ceil_to(t.keys * widest, block), t.slots),
        "query": (t.rows * query_pitch(form, t.item, block), t.slots if t.blocks == 1 else 1),
        "weights": (t.rows * ceil_to(t.keys * t.item, block), 1),
    }


def cube_buffers(form: AttentionForm, t: AttentionTiling, target: AicoreTarget) -> dict[Local, Buffers]:
    """Of L0A, L0B and L0C."""
    block, m = target.memory.block_bytes, target.cube.m
    rows, depths = ceil_to(t.rows, m), ceil_to(t.score_depth * t.item, block)
    weights = ceil_to(t.value_keys * t.item, block)
    sums = rows * ceil_to(t.value_depth, target.cube.n) * F32_BYTES
    scores = rows * ceil_to(t.score_keys, target.cube.n) * F32_BYTES
    right = max(ceil_to(t.score_keys, m) * depths, ceil_to(t.value_depth, m) * weights)
    return {
        Local.L0A: {"left": (rows * max(depths, weights), L0_SLOTS)},
        Local.L0B: {"right": (right, L0_SLOTS)},
        Local.L0C: {"scores": (scores, t.score_slots), "sums": (sums, 1)},
    }


def ub_buffers(body: Body, t: AttentionTiling, block: int) -> Buffers:
    """What a lane has in UB, the buffers of its epilogue aside."""
    form, mask, rows = attention_form(body), mask_form(body, t), t.lane_rows
    vector, wide = ceil_to(rows * F32_BYTES, block), ceil_to(t.keys * F32_BYTES, block)
    sums = rows * ceil_to(t.value_depth * F32_BYTES, block)
    found = {
        "scores": (rows * wide, t.ub_slots),
        "weights": (rows * ceil_to(t.keys * t.item, block), 1),
        "sums": (sums, 1),
        "result": (sums, 1),
        "statistics": (vector * (3 + 2 * (t.skew + 1)), 1),
    }
    if t.blocks > 1:
        found["total"] = (sums, 1)
    if hides_by_position(form):
        found["pattern"] = (rows * ceil_to(t.keys * 2, block), 1)
        found["hidden"] = (rows * ceil_to(t.keys, block), 1)
    if mask is not None:
        lines = rows if mask.per_row or not mask.per_key else 1
        found["mask"] = (lines * (ceil_to(t.keys * mask.dtype.itemsize, block) if mask.per_key else block), 1)
        if mask.dtype is not DType.F32 and not (mask.is_bool and mask.per_key):
            found["mask32"] = (lines * (wide if mask.per_key else block), 1)
    return found


def overflows(body: Body, t: AttentionTiling, target: AicoreTarget) -> list[str]:
    """The memories that the tiling does not fit into, as fields of the target."""
    form, block = attention_form(body), target.memory.block_bytes
    code, size = epilogue_code(body, t), TileSize(t.lane_rows, t.value_depth, block)
    behind = sum(
        ceil_to(size.nbytes(r), block) for r in code.registers if r.home in (Home.INPUT, Home.OUTPUT)
    ) + ceil_to(code.temporaries(size)[1], block)
    memories = {Local.L1: l1_buffers(form, t, block), **cube_buffers(form, t, target)}
    needs = {m: sum(_slots(b)) for m, b in memories.items()}
    needs[Local.UB] = behind + sum(_slots(ub_buffers(body, t, block)))
    return [m.size_path for m, need in needs.items() if need > int(str(target.value(m.size_path)))]


def _slots(buffers: Buffers) -> Iterator[int]:
    for nbytes, slots in buffers.values():
        yield ceil_to(nbytes, 1024 if nbytes >= 1024 else 32) * slots


# Cycles ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def step_cycles(body: Body, t: AttentionTiling, keys: int, target: AicoreTarget) -> dict[str, int]:
    """Cycles of each engine for a step of `keys` keys."""
    form, dtype = attention_form(body), body.anchor_outputs[0].dtype
    keys = max(1, keys)
    return {**_cube_cycles(form, t, keys, dtype, target), **_lane_cycles(body, form, t, keys, target)}


def _load(path: str, rows: int, row_bytes: int, stride_bytes: int, target: AicoreTarget) -> int:
    """Of a transfer from global memory; a stride of `row_bytes` is one run."""
    if stride_bytes == row_bytes or rows == 1:
        return target.dma.startup_cycles + target.transfer_cycles(path, rows * row_bytes)
    beats = target.global_transfer_cycles(path, rows * row_bytes, stride_bytes)
    return target.dma.startup_cycles + beats + (rows - 1) * target.dma.row_cycles


def _cube_cycles(
    form: AttentionForm, t: AttentionTiling, keys: int, dtype: DType, target: AicoreTarget
) -> dict[str, int]:
    path, rows = "rates.gm_to_l1_gb_per_s", t.rows
    load = sum(_load(path, keys, v.shape[3] * t.item, v.strides[2] * t.item, target) for v in (form.k, form.v))
    load += _load(path, rows, keys * t.item, t.weight_pitch, target)
    step = form.q.strides[1] if t.stack is Stack.HEADS else form.q.strides[2]
    load += _load(path, rows, form.depth * t.item, step * t.item, target) // t.blocks
    feed = multiply = fix = 0
    for at in range(0, keys, t.score_keys):
        n = min(t.score_keys, keys - at)
        for depth in range(0, form.depth, t.score_depth):
            k = min(t.score_depth, form.depth - depth)
            feed += _feed("l0a", rows, k * t.item, target) + _feed("l0b", n, k * t.item, target)
            multiply += cube_cycles(rows, n, k, dtype, target)
        fix += fix_cycles(rows, n, F32_BYTES, t.score_pitch, target)
    if t.score_slots == 1:  # the next tile of scores waits for the one that is being sent
        tiles = -(-keys // t.score_keys)
        fix += (tiles - 1) * (multiply // tiles + 2 * target.queue.flag_cycles)
    for at in range(0, keys, t.value_keys):
        k = min(t.value_keys, keys - at)
        feed += _feed("l0a", rows, k * t.item, target) + _feed("l0b", t.value_depth, k * t.item, target)
        multiply += cube_cycles(rows, t.value_depth, k, dtype, target)
    fix += fix_cycles(rows, t.value_depth, F32_BYTES, t.sum_pitch, target)
    if t.slots < 3:  # the next keys wait for a slot that is being read
        load += feed // 2
    return {"mte2": load, "mte1": feed, "m": multiply, "fix": fix}


def _feed(memory: str, lines: int, depth_bytes: int, target: AicoreTarget) -> int:
    size = ceil_to(lines, target.cube.m) * ceil_to(depth_bytes, target.memory.block_bytes)
    return target.dma.local_startup_cycles + target.transfer_cycles(f"rates.l1_to_{memory}_gb_per_s", size)


def _lane_cycles(
    body: Body, form: AttentionForm, t: AttentionTiling, keys: int, target: AicoreTarget
) -> dict[str, int]:
    v, rows = target.vector, t.lane_rows
    plain = v.startup_cycles + rows * -(-keys // v.lanes_32bit)
    special = v.startup_cycles + rows * -(-keys // v.lanes_special)
    passes = 2 + (4 if form.softcap else 0) + (2 if form.mask is not None else 0)
    reductions = 2 * (plain + rows * v.reduce_tail_cycles)
    deep = v.startup_cycles + rows * -(-t.value_depth // v.lanes_32bit)
    code, size = epilogue_code(body, t), TileSize(rows, t.value_depth, target.memory.block_bytes)
    last = code.vector_cycles(size.rows, size.cols, target) + deep
    work = passes * plain + (3 if form.softcap else 1) * special + reductions + 6 * (v.startup_cycles + 1)
    work += (2 * deep if t.blocks > 1 else 0) + last // t.blocks
    path = "rates.gm_to_ub_gb_per_s"
    load = _load(path, rows, keys * F32_BYTES, t.score_pitch, target)
    load += _load(path, rows, t.value_depth * F32_BYTES, t.sum_pitch, target)
    mask = mask_form(body, t)
    if mask is not None:
        load += _load(path, rows if mask.per_row else 1, keys * mask.dtype.itemsize, mask.row_stride_bytes, target)
    load += code.load_cycles(size.rows, size.cols, target) // t.blocks
    store = _load("rates.ub_to_gm_gb_per_s", rows, keys * t.item, t.weight_pitch, target)
    store += code.store_cycles(size.rows, size.cols, target) // t.blocks
    return {"vector mte2": load, "v": work, "mte3": store}


def way_cycles(body: Body, t: AttentionTiling, target: AicoreTarget) -> int:
    """From the first load of a lone step until its result is stored: engine after engine, and a hop per channel."""
    form = attention_form(body)
    return sum(step_cycles(body, t, min(t.keys, form.keys), target).values()) + 3 * target.cycles(target.sync.group_ns)


def range_cycles(t: AttentionTiling, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
    """Of units [begin, end)."""
    if begin >= end:
        return 0.0
    per_block = _block_cycles(body, t, target)
    count = len(per_block)

    def ahead(units: int) -> float:
        whole, rest = divmod(units, count)
        return whole * sum(per_block) + sum(per_block[:rest])

    one = per_block[begin % count]
    return max(0.0, way_cycles(body, t, target) - one) + ahead(end) - ahead(begin)


@lru_cache(maxsize=1024)
def _block_cycles(body: Body, t: AttentionTiling, target: AicoreTarget) -> tuple[float, ...]:
    """Of a unit by its block of positions, in the steady state."""
    form, found = attention_form(body), []
    for block in range(t.position_blocks):
        whole, rest = divmod(max(1, t.visible(form, block)), t.keys)
        cycles = whole * max(step_cycles(body, t, t.keys, target).values()) if whole else 0
        found.append(float(cycles + (max(step_cycles(body, t, rest, target).values()) if rest else 0)))
    return tuple(found)
