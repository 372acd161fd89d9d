"""Reductions of a whole tensor over all vector cores: chunks, a barrier, the rest (families/aicore/barrier_reduce)."""

from __future__ import annotations

from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.barrier_reduce import BEFORE, NUMBER_BYTES, BarrierReduceTiling
from superkernel.scheduler.families.aicore.lowering import bits_of
from superkernel.target.engines import Local

F32 = DType.F32
REDUCE = {"max": "v_reduce_max", "min": "v_reduce_min"}


def emit_barrier_reduce(kb: KernelBuilder, body: Body, tiling: BarrierReduceTiling) -> None:
    """The kernel's function."""
    operand, offset = tiling.source
    source = body.operands[operand].type.dtype
    ring = kb.ring("chunk", 2)
    raw = kb.buffer(ring, Local.UB, tiling.chunk * source.itemsize, "raw")
    wide = raw if source is F32 else kb.buffer(ring, Local.UB, tiling.chunk * F32.itemsize, "wide")
    one = kb.buffer(ring, Local.UB, NUMBER_BYTES, "one")
    with kb.loop(kb.begin, kb.end) as unit, kb.turn(ring):
        count = kb.minimum(tiling.elements - unit * tiling.chunk, tiling.chunk)
        first = (unit * tiling.chunk + offset) * source.itemsize
        kb.issue("gm_to_ub", dst=raw, src=kb.operand(operand, first), bytes=count * source.itemsize)
        if wide is not raw:
            kb.issue("v_cast", source, F32, dst=wide, src=raw, rows=1, cols=count)
        _before(kb, tiling.kind, wide, count)
        _reduce(kb, tiling.kind, one, wide, count)
        kb.issue("ub_to_gm", dst=kb.scratch(unit * NUMBER_BYTES), src=one, bytes=NUMBER_BYTES)
    kb.meet()
    with kb.when(kb.compare("==", kb.begin, 0)):
        _rest(kb, body, tiling)


def _rest(kb: KernelBuilder, body: Body, tiling: BarrierReduceTiling) -> None:
    """The chunks' numbers to the result."""
    units = tiling.units
    ring = kb.ring("rest", 1)
    numbers = kb.buffer(ring, Local.UB, units * NUMBER_BYTES, "numbers")
    total = kb.buffer(ring, Local.UB, NUMBER_BYTES, "total")
    narrow = [kb.buffer(ring, Local.UB, NUMBER_BYTES, f"narrow{n}") for n in range(len(tiling.targets))]
    with kb.turn(ring):
        kb.issue("gm_to_ub", dst=numbers, src=kb.scratch(0), bytes=units * NUMBER_BYTES)
        _reduce(kb, tiling.kind, total, numbers, units)
        if tiling.kind == "mean":
            value = bits_of(1.0 / tiling.elements, F32)
            kb.issue("v_muls", F32, dst=total, src=total, rows=1, cols=1, value=value)
        for (operand, offset), room in zip(tiling.targets, narrow, strict=True):
            dtype = body.operands[operand].type.dtype
            if dtype is not F32:
                kb.issue("v_cast", F32, dtype, dst=room, src=total, rows=1, cols=1)
            result = total if dtype is F32 else room
            kb.issue("ub_to_gm", dst=kb.operand(operand, offset * dtype.itemsize), src=result, bytes=dtype.itemsize)


def _before(kb: KernelBuilder, kind: str, data: Buffer, count: Number) -> None:
    command = BEFORE[kind]
    if command == "v_mul":
        kb.issue(command, F32, dst=data, a=data, b=data, rows=1, cols=count)
    elif command is not None:
        kb.issue(command, F32, dst=data, src=data, rows=1, cols=count)


def _reduce(kb: KernelBuilder, kind: str, dst: Buffer, src: Buffer, count: Number) -> None:
    kb.issue(REDUCE.get(kind, "v_sum"), F32, dst=dst, src=src, rows=1, cols=count, scope="whole")
