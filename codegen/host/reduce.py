"""host.reduce: sums, products, extremes and norms over any set of axes; the arg-reductions and scans are in `scan`.

Model: one visit of the row (`RowWalk.reduce`) with one accumulator, a final formula, and the epilogue once per row.
`reduce_log_sum_exp` takes two visits: the greatest element first. Sums of long rows are formed in blocks, so that the
error grows with the block count and not with the row.

Integers reduce in their own type and wrap; bool has max (any) and min (all). Over an empty row the result is the
identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from superkernel.codegen.host import scan, vecmath
from superkernel.codegen.host.builder import KernelBuilder, compute_dtype
from superkernel.codegen.host.program import input_type
from superkernel.codegen.host.rows import Accumulator, RowWalk, accumulator, each_unit, greatest_number
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.rowtiling import RowTiling

UNROLL = 4


@dataclass(slots=True)
class Reduction:
    """An accumulator, what is done to each element before, and to the result after."""

    accumulator: Accumulator
    before: Callable[[Expr], Expr]
    after: Callable[[Expr], Expr]


def _keep(x: Expr) -> Expr:
    return x


def _square(x: Expr) -> Expr:
    return x * x


def _reduction(kb: KernelBuilder, op: str, dtype: DType, count: int) -> Reduction:
    """The reduction an operator is, over rows of `count`."""
    kind = {"reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}.get(op, "sum")
    before = {"reduce_l2": _square, "reduce_sum_square": _square}.get(op, _keep)
    if op == "reduce_l1":
        before = (lambda x: x.abs()) if dtype.is_signed else _keep
    after: dict[str, Callable[[Expr], Expr]] = {
        "reduce_mean": lambda x: x / float(count),
        "reduce_l2": lambda x: x.sqrt(),
        "reduce_log_sum": lambda x: Expr(kb, vecmath.apply(kb, "log", x.v)),
    }
    return Reduction(accumulator(kb, dtype, kind), before, after.get(op, _keep))


def _reduce(kb: KernelBuilder, op: str, dtype: DType, walk: RowWalk) -> None:
    if op == "reduce_log_sum_exp":
        walk.emit_once(_log_sum_exp(kb, dtype, walk))
        return
    found = _reduction(kb, op, dtype, walk.space.row_size)
    merge = found.accumulator.merge
    (value,) = walk.reduce(
        (0,),
        [found.accumulator],
        lambda p, a: [merge(a[0], found.before(p.read(0, store=True)))],
        unroll=UNROLL,
        blocks=dtype.is_float,
    )
    walk.emit_once(found.after(value))


def _log_sum_exp(kb: KernelBuilder, dtype: DType, walk: RowWalk) -> Expr:
    """log(sum of exp(x - top)) + top, top 0 where the greatest is infinite."""
    extreme = greatest_number(kb, dtype)  # what is NaN makes the sum NaN
    (greatest,) = walk.reduce((0,), [extreme], lambda p, a: [extreme.merge(a[0], p.read(0))], unroll=UNROLL)
    top = (greatest.abs() < float("inf")).choose(greatest, greatest.const(0.0))

    def visit(p, a):  # type: ignore[no-untyped-def]
        x = p.read(0) - walk.spread(top, p.lanes)
        return [a[0] + Expr(kb, vecmath.apply(kb, "exp", x.v))]

    (total,) = walk.reduce((0,), [accumulator(kb, dtype, "sum")], visit, blocks=True)
    return Expr(kb, vecmath.apply(kb, "log", total.v)) + top


def emit(kb: KernelBuilder, body: Body, tiling: RowTiling) -> None:
    """Write the kernel."""
    op, space, dtype = str(body.op), tiling.space(body), compute_dtype(input_type(body).dtype)
    if op in ("argmax", "argmin"):
        last = bool(body.attr["select_last_index"])
        each_unit(kb, space, tiling, lambda walk: scan.arg_reduce(kb, walk, dtype, op == "argmax", last))
    elif op == "cumsum":
        exclusive = bool(body.attr["exclusive"])
        each_unit(kb, space, tiling, lambda walk: scan.running_sum(kb, walk, dtype, exclusive))
    else:
        each_unit(kb, space, tiling, lambda walk: _reduce(kb, op, dtype, walk))
