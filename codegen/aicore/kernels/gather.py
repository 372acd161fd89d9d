"""aicore.gather: indices by the control unit, rows by MTE2, the epilogue on the tile."""

from __future__ import annotations

from superkernel.codegen.aicore.kernels.pointwise import emit_tiles
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram, place
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import SLOTS
from superkernel.scheduler.families.aicore.gather import (
    GatherTiling,
    RowPlan,
    anchor_type,
    gather_code,
    gathered_bytes,
    row_plan,
)
from superkernel.target.engines import Local


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function."""
    assert isinstance(tiling, GatherTiling)
    plan, cut, item = row_plan(body), tiling.cut, anchor_type(body).itemsize
    inputs, outputs = kb.ring("in", SLOTS), kb.ring("out", SLOTS)
    nbytes = gathered_bytes(cut, body, kb.target)
    pitch = nbytes // cut.tile if cut.row >= 0 else 0
    gathered = kb.buffer(inputs, Local.UB, nbytes, "gathered").rows(pitch)
    size = cut.size(kb.target)
    tile = TileProgram(kb, plan.epilogue, gather_code(body), size, inputs, outputs, anchors=(gathered,))
    rings = tuple(dict.fromkeys((inputs, *tile.rings)))

    def work(at: list[Number], rows: Number, cols: Number) -> None:
        with kb.loop(0, rows) as r:
            here = [c + r if d == plan.row else c for d, c in enumerate(at)]
            source = kb.operand(plan.base.inputs[0].source, _row_start(kb, plan, here) * item)
            kb.issue("gm_to_ub", dst=gathered.at(r * pitch), src=source, bytes=cols * item)
        tile.run(at, rows, cols)

    emit_tiles(kb, cut, kb.begin, kb.end, rings, work)


def _row_start(kb: KernelBuilder, plan: RowPlan, at: list[Number]) -> Number:
    """The element of the table at which the row for a coordinate begins."""
    table = plan.base.inputs[0]
    start = place(table.offset, table.strides, at)
    for program, extent, jump in zip(plan.indices, plan.extents, plan.jumps, strict=True):
        item = program.inputs[0]
        address = kb.operand(item.source, place(item.offset, item.strides, at) * item.dtype.itemsize)
        index: Number = kb.load(address, item.dtype)
        wrapped = kb.select(kb.compare("<", index, 0), index + extent, index)
        start = start + kb.minimum(kb.maximum(wrapped, 0), extent - 1) * jump
    return start
