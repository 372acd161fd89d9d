"""Arg-reductions and running sums over rows (see rows for the walk).

arg_reduce: each lane keeps its best value and where it was; the lanes of a row are then compared one by one, equal values by index, so the
result is the first (or last) index of the extreme, NaN counting as the most extreme, as NumPy has it.

running_sum: in column mode a plain running sum per lane; in row mode the prefix sums of a vector are formed by log2(lanes) shifted additions and
the total before it is added.
"""

from __future__ import annotations

from superkernel.codegen.host.builder import I32, I64, KernelBuilder, ir, vector_type
from superkernel.codegen.host.rows import Accumulator, Point, RowWalk
from superkernel.codegen.host.vecexpr import Expr
from superkernel.dtypes import DType


def _better(new: Expr, old: Expr, greatest: bool, ties: bool, signed: bool) -> Expr:
    """Mask: `new` is more extreme than `old`, or (with `ties`) as extreme."""
    op = (">" if greatest else "<") + ("=" if ties else "")
    mask = new.compare(op, old, signed)
    if not new.is_float:
        return mask
    new_nan, old_nan = new.is_nan(), old.is_nan()
    return mask | (new_nan if ties else new_nan & old_nan.invert())


def _lane_numbers(kb: KernelBuilder, lanes: int, number: ir.Type) -> Expr:
    """0, 1, 2, ... as integers of a type."""
    kind = vector_type(number, lanes)
    return Expr(kb, ir.Constant(kind, list(range(lanes)) if lanes > 1 else 0))


def arg_reduce(kb: KernelBuilder, walk: RowWalk, dtype: DType, greatest: bool, last: bool) -> None:
    """Emit one unit of argmax or argmin. Indices are kept in 32 bits where rows are that short."""
    number = I64 if walk.space.row_size >= 2**31 else I32
    signed = dtype.is_signed

    def step(p: Point, best: list[Expr]) -> list[Expr]:
        x = p.read(0, store=True)
        at = p.position if isinstance(p.position, ir.Value) else kb.i64(p.position)
        scalar = at if number is I64 else kb.b.trunc(at, number)
        index = Expr(kb, kb.splat(scalar, p.lanes))
        if not walk.is_column:
            index = index + _lane_numbers(kb, p.lanes, number)
        value, where, seen = best
        first = seen.equals(0)
        take = _better(x, value, greatest, last, signed) | first
        return [take.choose(x, value), take.choose(index, where), seen.const(1)]

    def lanes_of(kind: ir.Type):  # type: ignore[no-untyped-def]
        return lambda lanes: ir.Constant(vector_type(kind, lanes), [0] * lanes if lanes > 1 else 0)

    def unused(a: Expr, b: Expr) -> Expr:
        return a

    element = DType.BOOL if dtype is DType.BOOL else dtype
    plain = [
        Accumulator(lambda lanes: kb.const(0, element, lanes), unused, lambda v: v),
        Accumulator(lanes_of(number), unused, lambda v: v),
        Accumulator(lanes_of(ir.IntType(8)), unused, lambda v: v),
    ]
    parts = walk.visit_with((0,), plain, step)
    if walk.is_column:
        _, where, _ = parts["column"]
        walk.emit_once(where.to_int(64))
        return
    best: tuple[Expr, Expr] | None = None
    for values, places, _ in parts.values():
        for lane in range(values.lanes):
            value, place = _lane(kb, values, lane), _lane(kb, places, lane)
            if best is None:
                best = value, place
                continue
            better = _better(value, best[0], greatest, False, signed)
            worse = _better(best[0], value, greatest, False, signed)
            nearer = place.compare(">" if last else "<", best[1])
            take = better | (worse.invert() & nearer)
            best = take.choose(value, best[0]), take.choose(place, best[1])
    if best is not None:
        walk.emit_once(best[1].to_int(64))


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
