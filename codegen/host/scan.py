"""Arg-reductions and running sums over rows (see rows for the walk).

arg_reduce: each lane keeps its best value and where it was; the lanes of a row are then compared one by one, equal
values by index, so the result is the first (or last) index of the extreme, NaN counting as the most extreme, as NumPy
has it.

running_sum: in column mode a plain running sum per lane; in row mode the prefix sums of a vector are formed by
log2(lanes) shifted additions and the total before it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.host.builder import I8, I32, I64, KernelBuilder, vector_type
from superkernel.codegen.host.rows import Accumulator, Point, RowWalk
from superkernel.codegen.host.vecexpr import Expr, lane_numbers
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError


@dataclass(frozen=True, slots=True)
class ExtremeOrder:
    """What counts as more extreme: the greatest or least; `signed` for integers; NaN before or behind all numbers."""

    greatest: bool
    signed: bool
    nan_first: bool = True

    def better(self, new: Expr, old: Expr, ties: bool = False) -> Expr:
        """Mask: `new` is more extreme than `old`, or (with `ties`) as extreme."""
        op = (">" if self.greatest else "<") + ("=" if ties else "")
        mask = new.compare(op, old, self.signed)
        if not new.is_float:
            return mask
        ahead, behind = (new.is_nan(), old.is_nan()) if self.nan_first else (old.is_nan(), new.is_nan())
        return mask | (ahead if ties else ahead & behind.invert())

    def before(self, a: Expr, a_at: Expr, b: Expr, b_at: Expr) -> Expr:
        """Mask: (a, a_at) comes before (b, b_at), equal values by rising index."""
        return self.better(a, b) | (self.better(b, a).invert() & (a_at < b_at))


def row_index(kb: KernelBuilder, walk: RowWalk, p: Point, number: ir.Type) -> Expr:
    """The positions along the row of a point's lanes, as integers of a type."""
    at = kb.i64(p.position)
    index = Expr(kb, kb.splat(at if number is I64 else kb.b.trunc(at, number), p.lanes))
    return index if walk.is_column else index + lane_numbers(kb, p.lanes, number)


def arg_reduce(kb: KernelBuilder, walk: RowWalk, dtype: DType, greatest: bool, last: bool) -> None:
    """Emit one unit of argmax or argmin. Indices are kept in 32 bits where rows are that short."""
    number = I64 if walk.space.row_size >= 2**31 else I32
    order = ExtremeOrder(greatest, dtype.is_signed)

    def step(p: Point, best: list[Expr]) -> list[Expr]:
        x, index = p.read(0, store=True), row_index(kb, walk, p, number)
        value, where, seen = best
        take = order.better(x, value, last) | seen.equals(0)
        return [take.choose(x, value), take.choose(index, where), seen.const(1)]

    parts = walk.visit_with((0,), extreme_accumulators(kb, dtype, number), step, unroll=2)
    _, where = best_of_lanes(kb, walk, parts, order, last)
    walk.emit_once(where.to_int(64))


def extreme_accumulators(kb: KernelBuilder, dtype: DType, number: ir.Type) -> list[Accumulator]:
    """A value, its index, and whether there is one yet: per lane, joined by `best_of_lanes` and not by merging."""

    def zeros(kind: ir.Type) -> Callable[[int], ir.Value]:
        return lambda lanes: ir.Constant(vector_type(kind, lanes), 0)

    def unused(a: Expr, b: Expr) -> Expr:
        return a

    return [
        Accumulator(lambda lanes: kb.const(0, dtype, lanes), unused, lambda v: v),
        Accumulator(zeros(number), unused, lambda v: v),
        Accumulator(zeros(I8), unused, lambda v: v),
    ]


def best_of_lanes(
    kb: KernelBuilder,
    walk: RowWalk,
    parts: Mapping[str | int, Sequence[Expr]],
    order: ExtremeOrder,
    last: bool = False,
) -> tuple[Expr, Expr]:
    """(value, index) of each row, from what its lanes found; equal values by index. Lanes that found
    nothing do not count."""
    if walk.is_column:
        value, where, _ = parts["column"]
        return value, where
    mains = [list(found) for site, found in parts.items() if site != "tail"]
    best = mains[0] if mains else None
    for found in mains[1:]:
        best = _best_of_two(order, last, best or found, found)
    scalars = [_best_lane(kb, order, last, found) for found in (best, parts.get("tail")) if found is not None]
    if not scalars:
        raise InternalError("a row without elements has no extreme")
    value, where, _ = scalars[0] if len(scalars) == 1 else _best_of_two(order, last, scalars[0], scalars[1])
    return value, where


def _best_of_two(order: ExtremeOrder, last: bool, a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    """Lane-wise the better of two (value, index, found)."""
    better, worse = order.better(b[0], a[0]), order.better(a[0], b[0])
    nearer = b[1].compare(">" if last else "<", a[1])
    none = a[2].equals(0)
    take = b[2].compare("!=", 0) & (better | (worse.invert() & nearer) | none)
    return [take.choose(y, x) for x, y in zip(a, b, strict=True)]


def _best_lane(kb: KernelBuilder, order: ExtremeOrder, last: bool, found: Sequence[Expr]) -> list[Expr]:
    """Halve until one lane is left; an odd lane is joined at the end."""
    spare: list[Expr] | None = None
    while found[0].lanes > 1:
        lanes = found[0].lanes
        half = lanes // 2
        if lanes % 2:
            odd = [_lane(kb, v, lanes - 1) for v in found]
            spare = odd if spare is None else _best_of_two(order, last, spare, odd)
        low, high = ([_part(kb, v, start, half) for v in found] for start in (0, half))
        found = _best_of_two(order, last, low, high)
    return list(found) if spare is None else _best_of_two(order, last, found, spare)


def _part(kb: KernelBuilder, vector: Expr, start: int, count: int) -> Expr:
    if count == 1:
        return _lane(kb, vector, start)
    return Expr(kb, kb.pick(vector.v, range(start, start + count)))


def _lane(kb: KernelBuilder, vector: Expr, lane: int) -> Expr:
    if vector.lanes == 1:
        return vector
    return Expr(kb, kb.b.extract_element(vector.v, ir.Constant(I32, lane)))


def running_sum(kb: KernelBuilder, walk: RowWalk, dtype: DType, exclusive: bool) -> None:
    """Emit one unit of cumsum."""
    width = max(1, walk.width)
    total = kb.carry(kb.const(0, dtype, width).type, kb.const(0, dtype, width))

    def visit(p: Point) -> None:
        x = p.read(0, store=True)
        before = Expr(kb, total.get())
        if walk.is_column or p.lanes == 1:
            total.set((before + x).v)
            p.emit(before if exclusive else before + x)
            return
        sums = _prefix_sums(kb, x, dtype)
        base = walk.spread(before, p.lanes)
        total.set((before + _lane(kb, sums, p.lanes - 1)).v)
        p.emit(base + (_shifted(kb, sums, 1, dtype) if exclusive else sums))

    walk.each((0, -1), visit)


def _shifted(kb: KernelBuilder, x: Expr, by: int, dtype: DType) -> Expr:
    """Lane i holds lane i - by; zeros come in."""
    zeros = kb.const(0, dtype, x.lanes)
    mask = [x.lanes + i - by if i >= by else 0 for i in range(x.lanes)]
    return Expr(kb, kb.b.shuffle_vector(zeros, x.v, ir.Constant(ir.VectorType(I32, x.lanes), mask)))


def _prefix_sums(kb: KernelBuilder, x: Expr, dtype: DType) -> Expr:
    step = 1
    while step < x.lanes:
        x = x + _shifted(kb, x, step, dtype)
        step *= 2
    return x
