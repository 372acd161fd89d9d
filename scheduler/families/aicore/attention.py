"""aicore.attention: the search for block sizes.

Model: a few numbers of rows per unit, and for each the block of keys whose longest group takes least, among those that
fit into every local memory. Larger blocks of keys make fewer partial sums; what limits them is room for the workspace
in L2, and that few steps hide little of the way of a tile through the group. See `attention_tiling` for how the parts
work together and for the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.ops.ragged import slots_of
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.aicore.attention_tiling import (
    F32_BYTES,
    L0_SLOTS,
    AttentionTiling,
    RaggedTiling,
    Stack,
    crowds_l2,
    longest_cycles,
    overflows,
    rough_cycles,
    table_view,
    ub_overflows,
)
from superkernel.scheduler.families.aicore.base import AicoreTiling, check_group
from superkernel.scheduler.families.aicore.kernel import FLOATS, INDEX_TYPES, TABLE_TYPES, AicoreKernelDef
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.attention import AttentionForm, attention_form
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.aicore import AicoreTarget

_ROWS = (64, 128, 32, 16)  # of a unit, at most
_KEYS = (2048, 1024, 768, 512, 384, 256, 128, 64, 32, 16)  # of a block, at most
_PIECES = (512, 256, 128)  # of a block that does not fit into L1
# Rows of a tile of scores, 0 for all of a unit's, and tiles in L0C. With few rows, keys are many: transfers have fewer
# and longer rows.
_SCORE_TILES = ((0, 2), (0, 1), (48, 2), (32, 3), (32, 2), (64, 2))
_FINALISTS = 12  # of those with equal rows, by a rough estimate: the others are not estimated unit by unit
_SKEW = 2  # steps that scores are ahead of sums: hides the way through the vector cores
_RESERVED_FLAGS = 3  # per pair of engines, see the kernel layer
_STRIDE_MAX_BYTES = (1 << 32) - 1
_DEPTH_MAX = 4096


class AttentionFamily(KernelFamily[AicoreTarget]):
    """`aicore.attention`: any mask, length, causal limit and grouping; f16, bf16 and f32."""

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        """Elements of a row side by side, rows anywhere ahead: heads inside of tokens, caches."""
        moving = [s for s, d in zip(view.strides, view.shape, strict=True) if d > 1]
        if any(not 0 <= s * dtype.itemsize <= _STRIDE_MAX_BYTES for s in moving):
            return False
        return slot == 4 or not view.shape or view.shape[-1] <= 1 or view.strides[-1] == 1

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        """Best estimate first. Raises UnsupportedError where no block fits."""
        form = attention_form(body)
        check_group(target, (1, 2), "attention does not run")
        if not 0 < form.depth <= _DEPTH_MAX and form.rows:
            raise UnsupportedError("bad depth of heads", expected=f"1 to {_DEPTH_MAX}", found=form.depth)
        found = _search(body, target)
        if not found:
            least = _least(body, target)
            raise UnsupportedError(
                "no block of attention fits into local memory",
                location=", ".join(f"target field {field!r}" for field in overflows(body, least, target)),
                found=f"{form.depth} x {form.value_depth} deep",
                hint="use smaller heads or a target with larger memories",
            )
        table = table_view(body)
        return found if table is None else tuple(_ragged(t, slots_of(table.shape[0])) for t in found)


@lru_cache(maxsize=1024)
def _search(body: Body, target: AicoreTarget) -> tuple[AttentionTiling, ...]:
    form = attention_form(body)
    fitting = [[t for t in of_rows(body, form, r, target) if not overflows(body, t, target)] for r in _ROWS]
    roomy = [[t for t in tilings if not crowds_l2(t, target)] for tilings in fitting]
    best: list[tuple[float, AttentionTiling]] = []
    for tilings in roomy if any(roomy) else fitting:
        if len(tilings) > _FINALISTS:
            tilings.sort(key=lambda t: rough_cycles(body, t, target))
        if tilings:
            taken = min(tilings[:_FINALISTS], key=lambda t: longest_cycles(body, t, target))
            best.append((taken.cost_cycles(body, 0, taken.units, target), taken))
    best.sort(key=lambda pair: pair[0])
    return tuple(dict.fromkeys(t for _, t in best))


def _ragged(tiling: AttentionTiling, slots: int) -> RaggedTiling:
    return RaggedTiling(**{f.name: getattr(tiling, f.name) for f in fields(tiling)}, partition_slots=slots)


def _least(body: Body, target: AicoreTarget) -> AttentionTiling:
    return list(of_rows(body, attention_form(body), min(_ROWS), target))[-1]


def of_rows(body: Body, form: AttentionForm, rows: int, target: AicoreTarget) -> Iterator[AttentionTiling]:
    """Tilings with at most so many rows, the largest blocks of keys first."""
    step = target.cube.m
    lanes = target.device.vector_cores_per_group
    stack, heads, positions = _stacked(form, rows, lanes)
    most = ceil_to(max(1, form.keys), step)
    for keys in dict.fromkeys(min(most, k) for k in _KEYS):
        blocks = max(1, -(-form.keys // keys))
        even = ceil_to(-(-max(1, form.keys) // blocks), step)
        base = AttentionTiling(
            stack=stack, batch=form.batch if form.rows and form.value_depth else 0,
            kv_heads=form.kv_heads, head_blocks=-(-form.group // max(1, heads)),
            position_blocks=-(-form.queries // max(1, positions)), heads=heads, positions=positions,
            lanes=lanes, keys=min(keys, even) if _aligned(even, target) else keys, blocks=blocks, piece=0, part=0,
            score_rows=0, score_keys=0, score_depth=0, value_keys=0, slots=0, score_slots=1, ub_slots=1, skew=_SKEW,
            item=body.anchor_outputs[0].dtype.itemsize, value_depth=form.value_depth,
        )  # fmt: skip
        base = replace(base, piece=base.keys, part=base.lane_rows, score_rows=base.rows)
        for ub_slots in (2, 1):
            parted = _parted(body, replace(base, ub_slots=ub_slots), target)
            for piece in dict.fromkeys(min(base.keys, p) for p in (base.keys, *_PIECES)):
                for score_rows, score_slots in _SCORE_TILES:
                    if score_rows < base.rows or not score_rows:
                        given = replace(
                            parted, piece=piece, score_rows=score_rows or base.rows, score_slots=score_slots
                        )
                        yield from _fed(body, form, target, given)


def _parted(body: Body, t: AttentionTiling, target: AicoreTarget) -> AttentionTiling:
    """With as many rows at a time as UB holds: all of a lane's, or a number whose statistics are aligned."""
    step = target.memory.block_bytes // F32_BYTES
    parts = [t.lane_rows, *(p for p in (64, 32, 16, 8) if p < t.lane_rows and p % step == 0)]
    for part in parts:
        made = replace(t, part=part)
        if not ub_overflows(body, made, target):
            return made
    return t


def _aligned(keys: int, target: AicoreTarget) -> bool:
    """Whether rows of scores of a step are aligned for full rate."""
    return keys * F32_BYTES % target.dma.aligned_bytes == 0


def _stacked(form: AttentionForm, rows: int, lanes: int) -> tuple[Stack, int, int]:
    """How rows are made of heads and positions, evenly where there are several units."""
    if form.queries <= 1:
        return Stack.HEADS, _even(form.group, rows), max(1, form.queries)
    if lanes == 2 and form.group % 2 == 0 and form.group and 2 * form.queries <= rows:
        return Stack.PAIR, 2, form.queries
    return Stack.ROWS, 1, _even(form.queries, rows)


def _even(extent: int, most: int) -> int:
    parts = max(1, -(-extent // most))
    return max(1, -(-extent // parts))


def _fed(body: Body, form: AttentionForm, target: AicoreTarget, base: AttentionTiling) -> Iterator[AttentionTiling]:
    """The tiling with what the cube takes at a time, as much as its memories hold."""
    memory, step = target.memory, target.cube.m
    block = memory.block_bytes // base.item  # depth of a fractal
    rows, tile = ceil_to(base.rows, step), ceil_to(base.score_rows, step)
    sums = rows * ceil_to(max(1, base.value_depth), target.cube.n) * F32_BYTES
    room = (memory.l0c_bytes - sums) // (base.score_slots * tile * F32_BYTES) // step * step
    left = memory.l0a_bytes // L0_SLOTS // (rows * base.item) // block * block
    values = memory.l0b_bytes // L0_SLOTS // (ceil_to(max(1, base.value_depth), step) * base.item) // block * block
    depth = min(left, ceil_to(max(1, form.depth), block))
    if min(room, left, values, depth) <= 0:
        room = left = values = depth = max(step, block)  # the smallest: `overflows` says what is too small
    right = memory.l0b_bytes // L0_SLOTS // (depth * base.item) // step * step
    while right < min(step * 4, base.keys) and depth > block:
        depth = ceil_to(depth // 2, block)
        right = memory.l0b_bytes // L0_SLOTS // (depth * base.item) // step * step
    if base.score_rows < base.rows and depth < form.depth:
        return  # the keys of a tile stay in L0B, all of their depth
    score_keys = min(max(step, min(room, right)), ceil_to(base.piece, step))
    full = target.dma.aligned_bytes // F32_BYTES
    if full < score_keys < base.piece:
        score_keys = score_keys // full * full
    value_keys = min(left, values, ceil_to(base.piece, block))
    ids = target.queue.flag_ids - _RESERVED_FLAGS - 1 - (not base.lone_pieces)
    for slots in range(min(4, ids), 1, -1):
        made = replace(base, score_keys=score_keys, score_depth=depth, value_keys=max(block, value_keys), slots=slots)
        if slots == 2 or not overflows(body, made, target):
            yield made
            return
    raise UnsupportedError(
        "too few flags between engines", location="target field 'queue.flag_ids'",
        expected=f"at least {_RESERVED_FLAGS + 4}", found=target.queue.flag_ids,
    )  # fmt: skip


FAMILY = AttentionFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.attention",
        ops=("attention",),
        family=FAMILY,
        emitter="attention",
        micro="attention",
        core_type="mix",
        dtypes=FLOATS,
        others=(None, None, FLOATS | {DType.BOOL}, INDEX_TYPES, TABLE_TYPES),
        limits=(one_of(Reason.DEVICE, "aicore.group", (1, 1), (1, 2)),),
        stepped=True,
        rounding=PRODUCT_SUMS,
        code_bytes=8192,
    ),
)
