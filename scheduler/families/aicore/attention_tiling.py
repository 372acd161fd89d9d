"""How attention is cut for the accelerator: blocks of query rows, blocks of keys, and the bytes each core touches.

Model: a unit is a block of query rows of one key/value head: a rectangle of query heads x positions, stacked as rows.
A group runs it together. Keys are walked in blocks of `keys` with an online softmax: the cube core makes the scores
(rows x keys, f32, scaled on the way), the vector cores, each for half of the rows, make weights of them, the cube core
multiplies these with the values, the vector cores rescale and add up. Three channels carry the tiles: scores, weights,
sums. *Steps* are the blocks of keys of all units, one after the other; the cube core is `skew` steps ahead with scores.

    ROWS    one head, some positions; a lane takes the first or the second half of the positions
    PAIR    two heads, all positions; a lane takes a head
    HEADS   some heads of one position (decoding); a lane takes the first or the second half of the heads

Of ragged attention (`RaggedTiling`) a range is a slot of the table that `tile_lengths` has computed: which units it
has, the table says.

Local memory: `ub_buffers`, `l1_buffers`, ... name every buffer of the kernel with its size in bytes and its slots; the
emitter makes exactly these.

Invariants: the reduction over keys is never split over units; what a row computes depends on its place and on the
tiling alone. A lane's rows are a rectangle with one dimension that moves: `Rows`.

Cost: a step is as long as its slowest engine (`step_cycles`); a range is its steps, and once the rest of the way of a
tile through the group: scores, weights, sums, each a hop from core to core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES, AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.families.aicore.cube import cube_cycles, fix_cycles
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.tilecode import Home, TileCode, TileSize
from superkernel.scheduler.families.attention import AttentionForm, Span, attention_form
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.tiling import Access
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Local

TABLE = 5  # input slot
F32_BYTES = 4
L0_SLOTS = 2
Buffers = Mapping[str, tuple[int, int]]  # name -> (bytes, slots)
WEIGHT_SLOTS, SUM_SLOTS = 2, 2  # of the channels
POSITION, HEAD, DEPTH = 2, 1, 3  # dimensions of the result


class Stack(Enum):
    """What the rows of a unit are, see the module docstring."""

    ROWS = "rows"
    PAIR = "pair"
    HEADS = "heads"


@dataclass(frozen=True)
class Rows:
    """Query rows of one (batch, key/value head), or of several alike: spans of batches, heads and positions."""

    batch: Span
    heads: Span
    positions: Span


@dataclass(frozen=True)
class AttentionTiling(AicoreTiling):
    """See the module docstring. `heads` x `positions`: rows of a unit; `keys`: of a block; `blocks`: most blocks of a
    unit; `piece`: keys of a block that L1 takes at a time; `part`: rows of a lane that UB takes at a time;
    `score_rows`, `score_keys`, `score_depth`, `value_keys`: what one command of the cube takes of rows, keys and depth
    for scores, and of keys for sums; `slots`: pieces of keys or values in L1; `score_slots`: tiles of scores in L0C,
    `ub_slots`: in UB."""

    stack: Stack
    batch: int
    kv_heads: int
    head_blocks: int
    position_blocks: int
    heads: int
    positions: int
    lanes: int
    keys: int
    blocks: int
    piece: int
    part: int
    score_rows: int
    score_keys: int
    score_depth: int
    value_keys: int
    slots: int
    score_slots: int
    ub_slots: int
    skew: int
    item: int
    value_depth: int

    @property
    def units(self) -> int:
        return self.batch * self.kv_heads * self.head_blocks * self.position_blocks

    @property
    def kernel_type(self) -> AicoreKernelType:
        return AicoreKernelType.MIX_1_2 if self.lanes == 2 else AicoreKernelType.MIX_1_1

    @property
    def rows(self) -> int:
        """Rows of a unit, but for the last ones."""
        return self.heads * self.positions

    @property
    def lane_rows(self) -> int:
        """Rows of a lane."""
        return -(-self.rows // self.lanes)

    @property
    def lone_pieces(self) -> bool:
        """Whether a unit's keys come in one piece: its queries come with them then."""
        return self.blocks == 1 and self.piece == self.keys

    # Workspace --------------------------------------------------------------------------------------------------------

    @property
    def score_pitch(self) -> int:
        """Bytes from row to row of scores in the workspace."""
        return ceil_to(self.keys * F32_BYTES, CHANNEL_ALIGN_BYTES)

    @property
    def weight_pitch(self) -> int:
        """Bytes from row to row of weights."""
        return ceil_to(self.keys * self.item, CHANNEL_ALIGN_BYTES)

    @property
    def sum_pitch(self) -> int:
        """Bytes from row to row of sums."""
        return ceil_to(self.value_depth * F32_BYTES, CHANNEL_ALIGN_BYTES)

    @property
    def scratch_bytes(self) -> int:
        slots = (self.skew + 1, self.score_pitch), (WEIGHT_SLOTS, self.weight_pitch), (SUM_SLOTS, self.sum_pitch)
        return self.rows * sum(count * pitch for count, pitch in slots)

    # What is touched --------------------------------------------------------------------------------------------------

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = attention_form(body), AccessSet(body)
        self._cube(found, form, begin, end)
        for rows in self._all_rows(form, begin, end):
            form.touch_results(found, body, rows.batch, rows.heads, rows.positions)
        return found.result()

    def role_accesses(self, body: Body, begin: int, end: int, role: CoreRole) -> tuple[Access, ...]:
        form, found = attention_form(body), AccessSet(body)
        if role.is_cube:
            self._cube(found, form, begin, end)
        else:
            for rows in self._all_rows(form, begin, end, role.lane):
                form.touch_results(found, body, rows.batch, rows.heads, rows.positions)
            for batch, _, _, _ in self._boxes(begin, end):
                form.touch_length(found, batch)
        return found.result()

    def _boxes(self, begin: int, end: int) -> Iterator[tuple[Span, ...]]:
        """Spans of batches, key/value heads, blocks of heads and blocks of positions."""
        shape = (self.batch, self.kv_heads, self.head_blocks, self.position_blocks)
        for box in runs_of_range(shape, begin, end):
            yield tuple(box)

    def _cube(self, found: AccessSet, form: AttentionForm, begin: int, end: int) -> None:
        for batch, kv, heads, blocks in self._boxes(begin, end):
            for rows in self._rows_of(form, batch, kv, heads, blocks):
                form.touch_queries(found, rows.batch, rows.heads, rows.positions)
            form.touch_keys(found, batch, kv, self.visible(form, blocks[1] - 1))

    def _all_rows(self, form: AttentionForm, begin: int, end: int, lane: int = -1) -> Iterator[Rows]:
        for batch, kv, heads, blocks in self._boxes(begin, end):
            yield from self._rows_of(form, batch, kv, heads, blocks, lane)

    def _rows_of(
        self, form: AttentionForm, batch: Span, kv: Span, heads: Span, blocks: Span, lane: int = -1
    ) -> Iterator[Rows]:
        """The rows of a box of units; `lane`: those of one lane."""
        whole = (heads[0] * self.heads, min(heads[1] * self.heads, form.group))
        positions = (blocks[0] * self.positions, min(blocks[1] * self.positions, form.queries))
        if lane < 0 and whole == (0, form.group):
            yield Rows(batch, (kv[0] * form.group, kv[1] * form.group), positions)
            return
        for number in range(*kv):
            first = number * form.group
            if lane < 0 or self.lanes == 1:
                yield Rows(batch, (first + whole[0], first + whole[1]), positions)
            elif self.stack is Stack.ROWS:
                for block in range(*blocks):
                    start = block * self.positions
                    own = _half(start, min(start + self.positions, form.queries), lane, self.lane_rows)
                    yield from _some(batch, (first + whole[0], first + whole[1]), own)
            else:
                each = 1 if self.stack is Stack.PAIR else self.lane_rows
                for block in range(*heads):
                    start = first + block * self.heads
                    own = _half(start, min(start + self.heads, first + form.group), lane, each)
                    yield from _some(batch, own, positions)

    def visible(self, form: AttentionForm, block: int) -> int:
        """Keys that the rows of a block of positions may read."""
        return form.visible((block + 1) * self.positions) if self.stack is Stack.ROWS else form.keys

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:

        return range_cycles(self, body, begin, end, target)


@dataclass(frozen=True)
class RaggedTiling(AttentionTiling):
    """Partitioned at run time, to `slots` groups: each declares what all of them touch."""

    engines_write_all: ClassVar[bool] = False
    dynamically_partitioned: ClassVar[bool] = True
    partition_slots: int

    @property
    def work(self) -> int:
        """Units that are divided."""
        return super().units

    @property
    def units(self) -> int:
        return self.partition_slots if self.work else 0

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        if begin >= end:
            return ()
        return (table_access(body), *super().accesses(body, 0, self.work))

    def role_accesses(self, body: Body, begin: int, end: int, role: CoreRole) -> tuple[Access, ...]:
        if begin >= end:
            return ()
        return (table_access(body), *super().role_accesses(body, 0, self.work, role))

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """Of an even share; lengths are not known."""
        share = -(-self.work // max(1, self.partition_slots)) * (end - begin)
        return super().cost_cycles(body, 0, min(share, self.work), target)


def table_access(body: Body) -> Access:
    """All of the table is read."""
    view = table_view(body)
    assert view is not None
    size = body.operands[view.operand].type.dtype.itemsize
    return Access(view.operand, False, (Region(view.offset * size, view.shape[0] * size),))


def table_view(body: Body) -> View | None:
    """The table of ragged attention; None where a body has none."""
    found = body.anchor_inputs[TABLE] if len(body.anchor_inputs) > TABLE else None
    return found if isinstance(found, View) else None


def _half(start: int, stop: int, lane: int, each: int) -> Span:
    return min(start + lane * each, stop), min(start + (lane + 1) * each, stop)


def _some(batch: Span, heads: Span, positions: Span) -> Iterator[Rows]:
    if heads[0] < heads[1] and positions[0] < positions[1]:
        yield Rows(batch, heads, positions)


@dataclass(frozen=True)
class MaskForm:
    """The mask as a lane reads it: bytes from row to row (0: one row for all) and whether it differs by key."""

    dtype: DType
    row_stride_bytes: int
    per_key: bool

    @property
    def per_row(self) -> bool:
        """Whether it differs from query to query."""
        return self.row_stride_bytes > 0

    @property
    def is_bool(self) -> bool:
        """Whether it says which keys are seen, instead of being added to scores."""
        return self.dtype is DType.BOOL


def mask_form(body: Body, tiling: AttentionTiling) -> MaskForm | None:
    """How the mask of a body is read; None where there is none."""
    form = attention_form(body)
    if form.mask is None:
        return None
    dtype = body.operands[form.mask.operand].type.dtype
    strides = form.mask_strides
    step = strides[1] if tiling.stack is Stack.HEADS else strides[2]
    return MaskForm(dtype, step * dtype.itemsize if tiling.lane_rows > 1 else 0, strides[3] != 0)


# Local memory ---------------------------------------------------------------------------------------------------------


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
    """`stream`: keys or values; `query`: a slot of that stream where units have one piece, else kept for the unit."""
    widest = max(row_pitch(form, "k", t.item, block), row_pitch(form, "v", t.item, block))
    return {
        "stream": (ceil_to(t.piece * widest, block), t.slots),
        "query": (t.rows * query_pitch(form, t.item, block), t.slots if t.lone_pieces else 1),
        "weights": (t.rows * ceil_to(t.piece * t.item, block), 1),
    }


def cube_buffers(form: AttentionForm, t: AttentionTiling, target: AicoreTarget) -> dict[Local, Buffers]:
    """Of L0A, L0B and L0C."""
    block, m = target.memory.block_bytes, target.cube.m
    rows, tile, depths = ceil_to(t.rows, m), ceil_to(t.score_rows, m), ceil_to(t.score_depth * t.item, block)
    weights = ceil_to(t.value_keys * t.item, block)
    sums = rows * ceil_to(t.value_depth, target.cube.n) * F32_BYTES
    scores = tile * ceil_to(t.score_keys, target.cube.n) * F32_BYTES
    right = max(ceil_to(t.score_keys, m) * depths, ceil_to(t.value_depth, m) * weights)
    return {
        Local.L0A: {"left": (max(tile * depths, rows * weights), L0_SLOTS)},
        Local.L0B: {"right": (right, L0_SLOTS)},
        Local.L0C: {"scores": (scores, t.score_slots), "sums": (sums, 1)},
    }


def ub_buffers(body: Body, t: AttentionTiling, block: int) -> Buffers:
    """What a lane has in UB, the buffers of its epilogue aside."""
    form, mask, rows = attention_form(body), mask_form(body, t), t.part
    vector, wide = ceil_to(t.lane_rows * F32_BYTES, block), ceil_to(t.keys * F32_BYTES, block)
    sums = t.lane_rows * ceil_to(t.value_depth * F32_BYTES, block)
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
    form = attention_form(body)
    memories = {Local.L1: l1_buffers(form, t, target.memory.block_bytes), **cube_buffers(form, t, target)}
    full = [m for m, b in memories.items() if sum(_slots(b)) > _capacity(m, target)]
    return [m.size_path for m in (*full, *([Local.UB] if ub_overflows(body, t, target) else []))]


def ub_overflows(body: Body, t: AttentionTiling, target: AicoreTarget) -> bool:
    """Whether UB is too small for it."""
    block = target.memory.block_bytes
    code, size = epilogue_code(body, t), TileSize(t.lane_rows, t.value_depth, block)
    behind = sum(
        ceil_to(size.nbytes(r), block) for r in code.registers if r.home in (Home.INPUT, Home.OUTPUT)
    ) + ceil_to(code.temporaries(size)[1], block)
    return behind + sum(_slots(ub_buffers(body, t, block))) > _capacity(Local.UB, target)


def _capacity(memory: Local, target: AicoreTarget) -> int:
    return int(str(target.value(memory.size_path)))


def crowds_l2(t: AttentionTiling, target: AicoreTarget) -> bool:
    """Whether the workspaces of all groups leave less than half of L2 to what is read."""
    room = target.l2.capacity_bytes * target.l2.usable_percent // 100
    return 2 * target.device.groups * t.scratch_bytes > room


def _slots(buffers: Buffers) -> Iterator[int]:
    for nbytes, slots in buffers.values():
        yield ceil_to(nbytes, 1024 if nbytes >= 1024 else 32) * slots


# Cost -----------------------------------------------------------------------------------------------------------------


def epilogue_code(body: Body, tiling: AttentionTiling) -> TileCode:
    """The program behind the anchor, on tiles of a lane's rows. Raises UnsupportedError."""
    dtypes = tuple(body.operands[o.target].type.dtype for o in body.epilogue.outputs)
    row = HEAD if tiling.stack is Stack.HEADS else POSITION
    return lower(body.epilogue, dtypes, row, DEPTH, anchors=(DType.F32,))


@lru_cache(maxsize=4096)
def step_cycles(body: Body, t: AttentionTiling, keys: int, target: AicoreTarget) -> dict[str, int]:
    """Cycles of each engine for a step of `keys` keys."""
    form, dtype = attention_form(body), body.anchor_outputs[0].dtype
    keys = max(1, keys)
    return {**_cube_cycles(form, t, keys, dtype, target), **_lane_cycles(body, form, t, keys, target)}


def _load(path: str, rows: int, row_bytes: int, stride_bytes: int, target: AicoreTarget) -> int:
    """Of a transfer from global memory; a stride of `row_bytes` is one run."""
    if stride_bytes == row_bytes or rows == 1:
        return target.move_cycles(path, 1, rows * row_bytes)
    return target.move_cycles(path, rows, row_bytes, stride_bytes)


def _cube_cycles(
    form: AttentionForm, t: AttentionTiling, keys: int, dtype: DType, target: AicoreTarget
) -> dict[str, int]:
    path, rows = "rates.gm_to_l1_gb_per_s", t.rows
    step = form.q.strides[1] if t.stack is Stack.HEADS else form.q.strides[2]
    load = _load(path, rows, form.depth * t.item, step * t.item, target) // t.blocks
    feed = multiply = fix = tiles = scoring = 0
    depths = _cuts(form.depth, t.score_depth)
    for piece, pieces in _cuts(keys, t.piece):
        one = sum(_load(path, piece, v.shape[3] * t.item, v.strides[2] * t.item, target) for v in (form.k, form.v))
        load += pieces * (one + _load(path, rows, piece * t.item, t.weight_pitch, target))
        for n, columns in _cuts(piece, t.score_keys):
            feed += pieces * columns * sum(count * _feed("l0b", n, k * t.item, target) for k, count in depths)
            for m, parts in _cuts(rows, t.score_rows):
                here = pieces * columns * parts
                feed += here * sum(count * _feed("l0a", m, k * t.item, target) for k, count in depths)
                scoring += here * sum(count * cube_cycles(m, n, k, dtype, target) for k, count in depths)
                fix += here * fix_cycles(m, n, F32_BYTES, t.score_pitch, target)
                tiles += here
        for k, count in _cuts(piece, t.value_keys):
            left, right = _feed("l0a", rows, k * t.item, target), _feed("l0b", t.value_depth, k * t.item, target)
            feed += pieces * count * (left + right)
            multiply += pieces * count * cube_cycles(rows, t.value_depth, k, dtype, target)
    if t.score_slots == 1:  # the next tile of scores waits for the one that is being sent
        fix += (tiles - 1) * (scoring // tiles + 2 * target.queue.flag_cycles)
    fix += fix_cycles(rows, t.value_depth, F32_BYTES, t.sum_pitch, target)
    if t.slots < 3:  # the next keys wait for a slot that is being read
        load += feed // 2
    return {"mte2": load, "mte1": feed, "m": multiply + scoring, "fix": fix}


def _cuts(extent: int, step: int) -> list[tuple[int, int]]:
    """Sizes of the parts of an extent, and how many there are of each: of `step`, and what is left."""
    whole, rest = divmod(extent, step)
    return [(size, count) for size, count in ((step, whole), (rest, 1)) if size and count]


def _feed(memory: str, lines: int, depth_bytes: int, target: AicoreTarget) -> int:
    size = ceil_to(lines, target.cube.m) * ceil_to(depth_bytes, target.memory.block_bytes)
    return target.dma.local_startup_cycles + target.transfer_cycles(f"rates.l1_to_{memory}_gb_per_s", size)


def _lane_cycles(
    body: Body, form: AttentionForm, t: AttentionTiling, keys: int, target: AicoreTarget
) -> dict[str, int]:
    v, rows = target.vector, t.lane_rows
    cuts = _cuts(rows, t.part)
    parts = sum(count for _, count in cuts)
    plain = parts * v.startup_cycles + rows * -(-keys // v.lanes_32bit)
    special = parts * v.startup_cycles + rows * -(-keys // v.lanes_special)
    passes = 2 + (4 if form.softcap else 0) + (2 if form.mask is not None else 0)
    reductions = 2 * (plain + rows * v.reduce_tail_cycles)
    deep = v.startup_cycles + rows * -(-t.value_depth // v.lanes_32bit)
    code, size = epilogue_code(body, t), TileSize(rows, t.value_depth, target.memory.block_bytes)
    last = code.vector_cycles(size.rows, size.cols, target) + deep
    work = passes * plain + (3 if form.softcap else 1) * special + reductions + 6 * parts * (v.startup_cycles + 1)
    work += (2 * deep if t.blocks > 1 else 0) + last // t.blocks
    path = "rates.gm_to_ub_gb_per_s"
    load = sum(count * _load(path, part, keys * F32_BYTES, t.score_pitch, target) for part, count in cuts)
    load += _load(path, rows, t.value_depth * F32_BYTES, t.sum_pitch, target)
    mask = mask_form(body, t)
    if mask is not None:
        row_bytes, stride = keys * mask.dtype.itemsize, mask.row_stride_bytes
        load += sum(c * _load(path, part if mask.per_row else 1, row_bytes, stride, target) for part, c in cuts)
    load += code.move_cycles(code.loads, size.rows, size.cols, target) // t.blocks
    path = "rates.ub_to_gm_gb_per_s"
    store = sum(count * _load(path, part, keys * t.item, t.weight_pitch, target) for part, count in cuts)
    store += code.move_cycles(code.stores, size.rows, size.cols, target) // t.blocks
    found = {"vector mte2": load, "v": work, "mte3": store}
    if parts > 1 and t.ub_slots == 1:  # the next part waits until this one has been worked on
        found["lane"] = load + work
    return found


def way_cycles(body: Body, t: AttentionTiling, target: AicoreTarget) -> int:
    """From the first load of a lone step until its result is stored: engine after engine, and a hop per channel."""
    form = attention_form(body)
    engines = step_cycles(body, t, min(t.keys, form.keys), target)
    return sum(cycles for name, cycles in engines.items() if name != "lane") + 3 * target.cycles(target.sync.group_ns)


def rough_cycles(body: Body, t: AttentionTiling, target: AicoreTarget) -> float:
    """Of the group with most units, as if each saw all keys."""
    steps = -(-t.units // target.device.groups) * -(-attention_form(body).keys // t.keys)
    return way_cycles(body, t, target) + steps * max(step_cycles(body, t, t.keys, target).values())


def longest_cycles(body: Body, t: AttentionTiling, target: AicoreTarget) -> float:
    """Of the group that takes longest, all of them sharing the units; of each of its steps three hops more, which the
    slowest engine hides in part: short steps take longer than their slowest engine by 300 to 1200 cycles."""
    shares = min(target.device.groups, t.units)
    bounds = [t.units * slot // shares for slot in range(shares + 1)] if shares else [0, 0]
    steps = max(end - begin for begin, end in pairwise(bounds)) * t.blocks
    longest = max(t.cost_cycles(body, begin, end, target) for begin, end in pairwise(bounds))
    return longest + steps * 3 * target.cycles(target.sync.group_ns)


def range_cycles(t: AttentionTiling, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
    """Of units [begin, end)."""
    if begin >= end:
        return 0.0
    per_block = _block_cycles(body, t, target)
    count = len(per_block)

    def ahead(units: int) -> float:
        whole, rest = divmod(units, count)
        return whole * sum(per_block) + sum(per_block[:rest])

    one = max(step_cycles(body, t, min(t.keys, attention_form(body).keys), target).values())
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
