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
from superkernel.codegen.host.vecexpr import Expr
from superkernel.dtypes import DType
from superkernel.errors import InternalError


@dataclass(frozen=True, slots=True)
class Order:
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


def _lane_numbers(kb: KernelBuilder, lanes: int, number: ir.Type) -> Expr:
    """0, 1, 2, ... as integers of a type."""
    kind = vector_type(number, lanes)
    return Expr(kb, ir.Constant(kind, list(range(lanes)) if lanes > 1 else 0))


def row_index(kb: KernelBuilder, walk: RowWalk, p: Point, number: ir.Type) -> Expr:
    """The positions along the row of a point's lanes, as integers of a type."""
    at = kb.i64(p.position)
    index = Expr(kb, kb.splat(at if number is I64 else kb.b.trunc(at, number), p.lanes))
    return index if walk.is_column else index + _lane_numbers(kb, p.lanes, number)


def arg_reduce(kb: KernelBuilder, walk: RowWalk, dtype: DType, greatest: bool, last: bool) -> None:
    """Emit one unit of argmax or argmin. Indices are kept in 32 bits where rows are that short."""
    number = I64 if walk.space.row_size >= 2**31 else I32
    order = Order(greatest, dtype.is_signed)

    def step(p: Point, best: list[Expr]) -> list[Expr]:
        x, index = p.read(0, store=True), row_index(kb, walk, p, number)
        value, where, seen = best
        take = order.better(x, value, last) | seen.equals(0)
        return [take.choose(x, value), take.choose(index, where), seen.const(1)]

    parts = walk.visit_with((0,), extreme_accumulators(kb, dtype, number), step)
    _, where = best_of_lanes(kb, walk, parts, order, last)
    walk.emit_once(where.to_int(64))


def extreme_accumulators(kb: KernelBuilder, dtype: DType, number: ir.Type) -> list[Accumulator]:
    """A value, its index, and whether there is one yet: per lane, joined by `best_of_lanes` and not by merging."""

    def zeros(kind: ir.Type) -> Callable[[int], ir.Value]:
        return lambda lanes: ir.Constant(vector_type(kind, lanes), [0] * lanes if lanes > 1 else 0)

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
    order: Order,
    last: bool = False,
) -> tuple[Expr, Expr]:
    """(value, index) of each row, from what its lanes found; equal values by index. Lanes that found nothing do not
    count."""
    if walk.is_column:
        value, where, _ = parts["column"]
        return value, where
    best: tuple[Expr, Expr, Expr] | None = None
    for values, places, found in parts.values():
        for lane in range(values.lanes):
            value, place, seen = (_lane(kb, v, lane) for v in (values, places, found))
            if best is None:
                best = value, place, seen
                continue
            better, worse = order.better(value, best[0]), order.better(best[0], value)
            nearer = place.compare(">" if last else "<", best[1])
            take = (seen.compare("!=", 0)) & (better | (worse.invert() & nearer) | best[2].equals(0))
            best = take.choose(value, best[0]), take.choose(place, best[1]), seen | best[2]
    if best is None:
        raise InternalError("a row without elements has no extreme")
    return best[0], best[1]


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
