"""host.index: gathers by element and tuple (see lookup), scatters (see scatter), topk, one_hot, resize.

topk: one visit of the row per result, each finding the most extreme element behind the one found before in the order
(value, then index), as an arg-reduction with a mask. Work grows with k times the row; nothing is sorted or stored.

resize: the index map of every axis is a table in the code; rows are interpolated lane by lane, one term per corner of
the cell.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from superkernel.codegen.host.builder import I32, I64, Index, KernelBuilder, compute_dtype, vector_type
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.lookup import emit_lookup, load_lanes, positions
from superkernel.codegen.host.loops import each_row, vector_loop
from superkernel.codegen.host.program import ProgramEmitter, input_program, input_type
from superkernel.codegen.host.rows import Point, RowWalk, each_unit
from superkernel.codegen.host.scan import ExtremeOrder, best_of_lanes, extreme_accumulators, row_index
from superkernel.codegen.host.scatter import emit_scatter
from superkernel.codegen.host.vecexpr import Expr, lane_numbers, rounded
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.ops.resizing import axis_plans
from superkernel.scheduler.families.indexing import WholeTiling
from superkernel.scheduler.families.lookup import LookupTiling, lookup_plan
from superkernel.scheduler.families.movement import OutputRowsTiling
from superkernel.scheduler.families.rowops import integer
from superkernel.scheduler.families.rowtiling import RowTiling


def emit(kb: KernelBuilder, body: Body, tiling: LookupTiling | WholeTiling | RowTiling | OutputRowsTiling) -> None:
    """Write the kernel."""
    if isinstance(tiling, LookupTiling):
        emit_lookup(kb, lookup_plan(body), tiling.part)
    elif isinstance(tiling, WholeTiling):
        emit_scatter(kb, body)
    elif isinstance(tiling, RowTiling):
        _emit_topk(kb, body, tiling)
    elif body.op == "one_hot":
        _emit_one_hot(kb, body)
    elif body.op == "resize":
        _emit_resize(kb, body)
    else:
        raise InternalError("not an indexing body", location=str(body.op), found=type(tiling).__name__)


# topk -----------------------------------------------------------------------------------------------------------------


def _emit_topk(kb: KernelBuilder, body: Body, tiling: RowTiling) -> None:
    dtype, greatest = compute_dtype(input_type(body).dtype), bool(body.attr["largest"])
    each_unit(kb, tiling.space(body), tiling, lambda walk: _topk(kb, walk, dtype, greatest, tiling.results))


def _topk(kb: KernelBuilder, walk: RowWalk, dtype: DType, greatest: bool, k: int) -> None:
    """One unit. The previous result is carried as (value, index), index -1 at first: everything is behind it."""
    number = I64 if walk.space.row_size >= 2**31 else I32
    width = max(1, walk.width)
    value = kb.carry(kb.const(0, dtype, width).type, kb.const(0, dtype, width))
    none = ir.Constant(vector_type(number, width), -1)
    place = kb.carry(none.type, none)

    order = ExtremeOrder(
        greatest, dtype.is_signed, nan_first=greatest
    )  # a NaN is greater than all numbers, as in a sort
    accumulators = extreme_accumulators(kb, dtype, number)
    with kb.loop(0, k, name="rank") as rank:
        last_value, last_place = Expr(kb, value.get()), Expr(kb, place.get())

        def step(p: Point, best: list[Expr]) -> list[Expr]:
            x, index = p.read(0), row_index(kb, walk, p, number)
            before = walk.spread(last_value, p.lanes), walk.spread(last_place, p.lanes)
            behind = order.before(*before, x, index) | (before[1] < 0)
            kept, where, seen = best
            first = seen.equals(0)
            take = behind & (order.before(x, index, kept, where) | first)
            return [take.choose(x, kept), take.choose(index, where), behind.choose(seen.const(1), seen)]

        parts = walk.visit_with((0,), accumulators, step)
        found, where = best_of_lanes(kb, walk, parts, order)
        value.set(found.v)
        place.set(where.v)
        walk.emit_at([rank], found, where.to_int(64))


# one_hot --------------------------------------------------------------------------------------------------------------


def _emit_one_hot(kb: KernelBuilder, body: Body) -> None:
    """Every element: is the index at its place, wrapped once, the element's level?"""
    shape, kind = body.anchor_outputs[0].shape, input_type(body)
    axis, depth = integer(body.attr["axis"]) % len(shape), shape[integer(body.attr["axis"]) % len(shape)]
    indices, values = input_program(kb, body, 0), input_program(kb, body, 1)
    epilogue = ProgramEmitter(kb, body.epilogue)
    off, on = (values.eval([i], 1)[0] for i in (0, 1))
    last = len(shape) - 1
    work = DType.F64 if kind.dtype.is_float else DType.I64
    with each_row(kb, kb.begin, kb.end, shape[:-1]) as outer:
        coords: list[Index] = [*outer, 0]
        rest = coords[:axis] + coords[axis + 1 :]
        row = epilogue.row(coords)

        def visit(position: Index, lanes: int) -> None:
            here = rest if axis == last else [*rest[:-1], position]
            read = indices.eval(here, 1 if axis == last else lanes)[0]
            if axis == last:
                read = kb.splat(read, lanes)
            index = Expr(kb, convert(kb, read, compute_dtype(kind.dtype), work))
            if index.is_float:
                index = rounded(index, "trunc")
            if kind.dtype.is_signed:
                index = (index < 0).choose(index + depth, index)
            if axis == last:
                level = positions(kb, position, lanes)
            else:
                level = Expr(kb, kb.splat(kb.i64(outer[axis]), lanes))
            same = index.equals(level.to_float(True) if index.is_float else level)
            result = same.choose(Expr(kb, kb.splat(on, lanes)), Expr(kb, kb.splat(off, lanes)))
            row.eval(position, lanes, [result.v])

        vector_loop(kb, shape[-1], max(1, kb.cpu.vector_bytes // 8), visit)


# resize ---------------------------------------------------------------------------------------------------------------


class _Table:
    """A constant array of the module."""

    def __init__(self, kb: KernelBuilder, name: str, values: NDArray[Any], dtype: DType) -> None:
        self.kb, self.dtype = kb, dtype
        self.pointer = kb.opaque(kb.table(name, values, dtype))

    def at(self, position: Index, lanes: int) -> Expr:
        return Expr(self.kb, self.kb.load(self.pointer, position, self.dtype, lanes))


class _Corner:
    """An end of the cell that an output index of an axis lies in: its element's offset in the input and its weight.
    `step`: from the elements of the table on, to the next one at most `last`."""

    def __init__(self, offsets: _Table, weights: _Table | None = None, step: int = 0, last: int = 0) -> None:
        self._offsets, self.weights, self._step, self._last = offsets, weights, step, last

    def offset(self, position: Index, lanes: int) -> Expr:
        first = self._offsets.at(position, lanes).to_int(64)
        if self._step == 0:
            return first
        following = first + self._step
        return following.clamp_high(self._last) if self._step > 0 else following.clamp_low(self._last)


def _emit_resize(kb: KernelBuilder, body: Body) -> None:
    kind, program = input_type(body), input_program(kb, body, 0).program
    if program.instructions:
        raise InternalError("resize takes a view")
    item, shape = program.inputs[0], body.anchor_outputs[0].shape
    linear = body.attr["mode"] == "linear"
    work = DType.F64 if kind.dtype is DType.F64 or kind.dtype.is_integer else DType.F32  # integers truncate: exactly
    ends: list[list[_Corner] | None] = []  # per axis
    for d, plan in enumerate(axis_plans(kind.shape, body.attr)):
        if plan is None:
            ends.append(None)
            continue
        step, last = item.strides[d], (kind.shape[d] - 1) * item.strides[d]
        low = _Table(kb, f"low{d}", plan.low * step, DType.I32 if abs(last) < 1 << 31 else DType.I64)
        if not linear:
            ends.append([_Corner(low)])
            continue
        upper = np.asarray(plan.weight, np.float64)
        weights = [_Table(kb, f"{name}{d}", w, work) for name, w in (("lower", 1.0 - upper), ("upper", upper))]
        ends.append([_Corner(low, weights[0]), _Corner(low, weights[1], step, last)])
    epilogue = ProgramEmitter(kb, body.epilogue)
    lanes = max(1, kb.cpu.vector_bytes // 8)
    with each_row(kb, kb.begin, kb.end, shape[:-1]) as outer:
        row = epilogue.row([*outer, 0] if shape else [])

        def visit(position: Index, width: int) -> None:
            value = _resized(kb, ends, item, [*outer, position], width, work, kind.dtype)
            row.eval(position, width, [value])

        vector_loop(kb, shape[-1] if shape else 1, lanes, visit)


def _resized(kb, ends, item, coords, lanes: int, work: DType, dtype: DType) -> ir.Value:  # type: ignore[no-untyped-def]
    """The sum over the cell's corners of element times weight; without weights the one element."""
    total: Expr | None = None
    last = len(item.strides) - 1
    for terms in product(*((None,) if axis is None else axis for axis in ends)):
        base: Index = item.offset
        spread: Expr | None = None
        weight: Expr | None = None
        for d, term in enumerate(terms):
            if term is None:
                if d == last:
                    spread = lane_numbers(kb, lanes, I64, item.strides[d])
                base = kb.add(base, kb.mul(coords[d], item.strides[d]))
                continue
            if d == last:
                spread = term.offset(coords[d], lanes)
            else:
                base = kb.add(base, term.offset(coords[d], 1).v)
            if term.weights is not None:
                part = term.weights.at(coords[d], lanes if d == last else 1)
                part = part if d == last else Expr(kb, kb.splat(part.v, lanes))
                weight = part if weight is None else weight * part
        place = Expr(kb, kb.splat(kb.i64(base), lanes))
        raw = load_lanes(kb, kb.operands[item.source], (place if spread is None else place + spread).v, dtype)
        if weight is None:
            return raw
        term_value = Expr(kb, convert(kb, raw, compute_dtype(dtype), work)) * weight
        total = term_value if total is None else total + term_value
    if total is None:
        raise InternalError("resize without terms")
    return convert(kb, total.v, work, compute_dtype(dtype))
