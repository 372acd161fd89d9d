"""host.softmax, host.norm, host.lrn: statistics over rows, then pointwise, with prologue and epilogue.

Model: every operator is two or three visits of a row (`RowWalk`): statistics about the data, then results. Data that
a prologue computes, or that is walked across, is kept in scratch after the first visit, where also the prologue's
further outputs are stored; other data is read again, from L1 for rows that fit. Variances are formed about the mean in
a visit of their own, so nothing cancels.

Numbers: f32 for f16, bf16 and f32 data, f64 for f64; each sum is spread over all lanes of up to four vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from superkernel.codegen.host import vecmath
from superkernel.codegen.host.builder import KernelBuilder, compute_dtype
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.program import input_type
from superkernel.codegen.host.rows import Accumulator, Point, RowWalk, accumulator, each_unit, greatest_number
from superkernel.codegen.host.vecexpr import Expr, rounded
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.rowops import integer, real
from superkernel.scheduler.families.rowtiling import RowTiling
from superkernel.scheduler.families.rowwise import keeps_row

SUM_UNROLL = 4


@dataclass(slots=True)
class FormulaContext:
    """What a formula needs to know."""

    kb: KernelBuilder
    body: Body
    walk: RowWalk
    dtype: DType  # of the statistics: f32 or f64
    keeps: bool

    def math(self, name: str, value: Expr) -> Expr:
        """A function of `vecmath`, element by element."""
        return Expr(self.kb, vecmath.apply(self.kb, name, value.v))

    def first(self, point: Point) -> Expr:
        """The data at the first visit."""
        x = point.read(0, store=True)
        if self.keeps:
            point.save(x, self.dtype)
        return x

    def again(self, point: Point) -> Expr:
        """The data at a later visit."""
        return point.saved(self.dtype) if self.keeps else point.read(0)

    @property
    def later(self) -> tuple[int, ...]:
        """Slots that a later visit reads for the data."""
        return () if self.keeps else (0,)

    def read(self, point: Point, slot: int) -> Expr:
        """Another input, in the statistics' type."""
        dtype = compute_dtype(input_type(self.body, slot).dtype)
        return Expr(self.kb, convert(self.kb, point.read(slot).v, dtype, self.dtype))

    def sum(self) -> Accumulator:
        """A new sum over the row, in the order that does not depend on the cut."""
        return accumulator(self.kb, self.dtype, "sum")


def _softmax(t: FormulaContext) -> None:
    w = t.walk
    greatest = greatest_number(t.kb, t.dtype)  # what is NaN makes the sum NaN
    (top,) = w.reduce((0,), [greatest], lambda p, a: [greatest.merge(a[0], t.first(p))], unroll=SUM_UNROLL)

    whole = t.body.op == "softmax_integer"

    def power(p: Point, a: list[Expr]) -> list[Expr]:
        x = t.again(p) - w.spread(top, p.lanes)
        e = t.math("exp", x * float(np.float32(real(t.body.attr["scale"]))) if whole else x)
        if whole:
            e = rounded(e * float(integer(t.body.attr["grid"])), "roundeven")
        if t.body.op != "log_softmax":
            p.save(e, t.dtype)
        return [a[0] + e]

    (total,) = w.reduce(t.later, [t.sum()], power)
    if t.body.op != "log_softmax":
        factor = 1.0 / total
        w.each((-1,), lambda p: p.emit(p.saved(t.dtype) * w.spread(factor, p.lanes)))
        return
    log_total = t.math("log", total)
    w.each((*t.later, -1), lambda p: p.emit((t.again(p) - w.spread(top, p.lanes)) - w.spread(log_total, p.lanes)))


def _norm(t: FormulaContext) -> None:
    """layer_norm, group_norm, instance_norm, rms_norm."""
    w, op = t.walk, t.body.op
    count, epsilon = float(w.space.row_size), real(t.body.attr["epsilon"])
    mean: Expr | None = None
    if op == "rms_norm":
        (squares,) = w.reduce((0,), [t.sum()], lambda p, a: [_plus_square(a[0], t.first(p))], unroll=SUM_UNROLL)
    else:
        (total,) = w.reduce((0,), [t.sum()], lambda p, a: [a[0] + t.first(p)], unroll=SUM_UNROLL)
        mean = centre = total / count
        (squares,) = w.reduce(
            t.later,
            [t.sum()],
            lambda p, a: [_plus_square(a[0], t.again(p) - w.spread(centre, p.lanes))],
            unroll=SUM_UNROLL,
        )
    factor = 1.0 / (squares / count + epsilon).sqrt()
    extra = [k for k in (1, 2) if w.has(k)]

    def result(p: Point) -> None:
        x = t.again(p)
        y = (x if mean is None else x - w.spread(mean, p.lanes)) * w.spread(factor, p.lanes)
        if 1 in extra:
            scale = t.read(p, 1)
            y = y.fma(scale, t.read(p, 2)) if 2 in extra else y * scale
        elif 2 in extra:
            y = y + t.read(p, 2)
        p.emit(y)

    w.each((*t.later, *extra, -1), result)


def _plus_square(total: Expr, x: Expr) -> Expr:
    return x.fma(x, total)


def _lp_norm(t: FormulaContext) -> None:
    w = t.walk
    if integer(t.body.attr["p"]) == 1:
        (norm,) = w.reduce((0,), [t.sum()], lambda p, a: [a[0] + t.first(p).abs()], unroll=SUM_UNROLL)
    else:
        (squares,) = w.reduce((0,), [t.sum()], lambda p, a: [_plus_square(a[0], t.first(p))], unroll=SUM_UNROLL)
        norm = squares.sqrt()
    empty = norm.equals(0.0)
    safe = empty.choose(norm.const(1.0), norm)  # all of the row is 0 there: 0 / 1

    def result(p: Point) -> None:
        x = t.again(p)
        y = x / w.spread(safe, p.lanes)
        p.emit(w.spread(empty, p.lanes).choose(x.const(0.0), y))

    w.each((*t.later, -1), result)


def _batch_norm(t: FormulaContext) -> None:
    """Statistics are inputs: one visit."""
    epsilon = real(t.body.attr["epsilon"])

    def result(p: Point) -> None:
        scale, bias, mean, var = (t.read(p, k) for k in range(1, 5))
        factor = scale / (var + epsilon).sqrt()
        p.emit((p.read(0, store=True) - mean).fma(factor, bias))

    t.walk.each((0, 1, 2, 3, 4, -1), result)


def _lrn(t: FormulaContext) -> None:
    """Squares of the channels in scratch, zeros before and behind them; each result sums a window of it."""
    w, kb = t.walk, t.kb
    size = integer(t.body.attr["size"])
    alpha, beta, bias = (real(t.body.attr[n]) for n in ("alpha", "beta", "bias"))
    step = w.width if w.is_column else 1
    before = (size - 1) // 2 * step
    total = w.space.row_size * step
    for start, count in ((0, before), (before + total, size // 2 * step)):
        with kb.loop(start, start + count, step, name="edge") as i:
            kb.store(kb.const(0.0, t.dtype, step), kb.scratch, i, t.dtype)

    def square(p: Point) -> None:
        x = p.read(0, store=True)
        kb.store((x * x).v, kb.scratch, kb.add(p.index, before), t.dtype)

    w.each((0,), square)

    def result(p: Point) -> None:
        window = kb.carry(kb.const(0.0, t.dtype, p.lanes).type, kb.const(0.0, t.dtype, p.lanes))
        with kb.loop(0, size * step, step, name="window") as k:
            part = kb.load(kb.scratch, kb.add(p.index, k), t.dtype, p.lanes)
            window.set((Expr(kb, window.get()) + Expr(kb, part)).v)
        base = Expr(kb, window.get()).fma(alpha / size, bias)
        p.emit(_divide_by_power(t, p.read(0), base, beta))

    w.each((0, -1), result)


def _divide_by_power(t: FormulaContext, x: Expr, base: Expr, beta: float) -> Expr:
    """x / base^beta."""
    if beta == 0.75:
        root = base.sqrt()
        return x / (root * root.sqrt())
    if beta in (0.5, 1.0):
        return x / (base if beta == 1.0 else base.sqrt())
    return x * t.math("exp", t.math("log", base) * -beta)


_FORMULAS: dict[str, Callable[[FormulaContext], None]] = {
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_integer": _softmax,
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "instance_norm"), _norm),
    "lp_norm": _lp_norm,
    "batch_norm": _batch_norm,
    "lrn": _lrn,
}


def emit(kb: KernelBuilder, body: Body, tiling: RowTiling) -> None:
    """Write the kernel. Raises InternalError for an operator without a formula."""
    formula = _FORMULAS.get(str(body.op))
    if formula is None:
        raise InternalError("row-wise operator without a formula", location=str(body.op))
    space, dtype = tiling.space(body), compute_dtype(input_type(body).dtype)
    keeps = body.op not in ("batch_norm", "lrn") and (tiling.is_across or keeps_row(body, space))
    each_unit(kb, space, tiling, lambda walk: formula(FormulaContext(kb, body, walk, dtype, keeps)))
