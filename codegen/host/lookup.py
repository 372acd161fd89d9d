"""Emitting gathers: elements of x at places that index tensors name (the model is `LookupPlan`).

Where no index moves along the last dimension a row is found once and read as vectors; else every lane has an address
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from superkernel.codegen.host.builder import I32, I64, Index, KernelBuilder, storage_type, vector_type
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.pointwise import each_position
from superkernel.codegen.host.program import ProgramEmitter, ProgramRow
from superkernel.codegen.host.vecexpr import Expr, lane_numbers
from superkernel.core.dtypes import DType
from superkernel.scheduler.families.lookup import LookupPlan
from superkernel.scheduler.families.pointwise import PointwiseTiling


def bounded(kb: KernelBuilder, value: ir.Value, dtype: DType, extent: int) -> Expr:
    """An index as i64, wrapped where negative, then clamped to 0 .. extent - 1."""
    index = Expr(kb, convert(kb, value, dtype, DType.I64))
    wrapped = (index < 0).choose(index + extent, index)
    return wrapped.clamp_low(0).clamp_high(max(extent - 1, 0))


def load_lanes(kb: KernelBuilder, base: ir.Value, offsets: ir.Value, dtype: DType) -> ir.Value:
    """One element per lane, at element offsets from `base`, in compute form."""
    if not isinstance(offsets.type, ir.VectorType):
        return kb.load(base, offsets, dtype)
    lanes = offsets.type.count
    value: ir.Value = ir.Constant(vector_type(storage_type(dtype), lanes), ir.Undefined)
    for lane in range(lanes):
        place = kb.b.extract_element(offsets, ir.Constant(I32, lane))
        value = kb.b.insert_element(value, kb.load_raw(base, place, dtype), ir.Constant(I32, lane))
    return kb.widen(value, dtype)


def positions(kb: KernelBuilder, first: Index, lanes: int, step: int = 1) -> Expr:
    """first, first + step, first + 2*step, ... as i64."""
    return Expr(kb, kb.splat(kb.i64(first), lanes)) + lane_numbers(kb, lanes, I64, step)


class _Lookup:
    """One row of the plan's space: bases and index rows, then values at positions."""

    def __init__(
        self, kb: KernelBuilder, plan: LookupPlan, indices: Sequence[ProgramRow], outer: Sequence[Index]
    ) -> None:
        self.kb, self.plan, self.indices = kb, plan, indices
        self.item = plan.base.inputs[0]
        self.base = kb.element(self.item.offset, outer, self.item.strides)
        self.stride = self.item.strides[-1] if self.item.strides else 0
        self.is_fixed = all(not p.inputs[0].strides or p.inputs[0].strides[-1] == 0 for p in plan.indices)
        if self.is_fixed:
            for k in range(len(indices)):
                self.base = kb.add(self.base, kb.mul(self._index(k, 0, 1).v, plan.jumps[k]))

    def _index(self, k: int, position: Index, lanes: int) -> Expr:
        (value,) = self.indices[k].eval(position, lanes, store=False)
        return bounded(self.kb, value, self.plan.indices[k].inputs[0].dtype, self.plan.extents[k])

    def value(self, position: Index, lanes: int) -> ir.Value:
        kb, pointer = self.kb, self.kb.operands[self.item.source]
        along = kb.add(self.base, kb.mul(position, self.stride))
        if self.is_fixed:
            return kb.load(pointer, along, self.item.dtype, lanes, self.stride)
        offsets = positions(kb, along, lanes, self.stride)
        for k, jump in enumerate(self.plan.jumps):
            offsets = offsets + self._index(k, position, lanes) * jump
        return load_lanes(kb, pointer, offsets.v, self.item.dtype)


def emit_lookup(kb: KernelBuilder, plan: LookupPlan, tiling: PointwiseTiling) -> None:
    """The whole kernel."""
    epilogue = ProgramEmitter(kb, plan.epilogue)
    loads = [ProgramEmitter(kb, p) for p in plan.indices]

    def row(coords: list[Index]) -> Callable[[Index, int], object]:
        lookup = _Lookup(kb, plan, [e.row(coords) for e in loads], coords[:-1])
        result = epilogue.row(coords)
        return lambda position, lanes: result.eval(position, lanes, [lookup.value(position, lanes)])

    each_position(kb, plan.epilogue.shape, epilogue.lanes, tiling, kb.begin, kb.end, row)
