"""What a tiling of attention takes of every local memory.

Model: `ub_buffers`, `l1_buffers`, ... name every buffer of the kernel with its size in bytes and its slots; the emitter
makes exactly these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.attention_tiling import F32_BYTES, AttentionTiling, epilogue_code, mask_form
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.tilecode import Home, TileSize
from superkernel.scheduler.families.attention import AttentionForm, attention_form
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Local

L0_SLOTS = 2
Buffers = Mapping[str, tuple[int, int]]  # name -> (bytes, slots)


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
