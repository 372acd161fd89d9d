"""aicore.norm, aicore.softmax, aicore.reduce, aicore.scan: statistics or running sums over rows on a vector core, then
pointwise. What they compute, in passes over a `RowTask`, which walks; the geometry is in families/aicore/rows.

Numbers: statistics of floats are f32. Variances are formed about the mean in a pass of their own, so nothing cancels.
Exponentials are taken of differences to the greatest element; where a row streams, the greatest so far, the sum being
scaled when it changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from superkernel.codegen.aicore.kernels.barrier_reduce import emit_barrier_reduce
from superkernel.codegen.aicore.kernels.row_task import RowTask
from superkernel.codegen.aicore.kernels.row_tiles import RowTile, TileVector, VectorForm
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.barrier_reduce import BarrierReduceTiling
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.lowering import bits_of
from superkernel.scheduler.families.aicore.row_modes import RowMode, is_reduction
from superkernel.scheduler.families.aicore.rows import RowsTiling
from superkernel.scheduler.families.rowops import integer, real

LOWEST_F32 = -3.4028234663852886e38
_TO_WHOLE = 1.5 * 2.0**23  # what added leaves no bits of less than 1 of numbers below 2^22


def _keep(x: RowTile) -> RowTile:
    return x


def _square(t: RowTask) -> Callable[[RowTile], RowTile]:
    def prepare(x: RowTile) -> RowTile:
        y = t.ops.temporary(x)
        t.ops.binary("v_mul", y, x, x)
        return y

    return prepare


# Softmax


def softmax(t: RowTask) -> None:
    """softmax and log_softmax."""
    with t.units():
        ops, log = t.ops, t.body.op == "log_softmax"
        top, total = t.statistic(0), t.statistic(1)
        if t.tiling.resident:
            t.reduce("max", top, _keep, 0, top)

            def power(x: RowTile) -> RowTile:
                ops.binary("v_sub", x, x, top)
                y = ops.temporary(x) if log else x
                ops.unary("v_exp", y, x)
                return y

            t.reduce("sum", total, power, 0, total)
        else:
            _running_softmax(t, top, total)
        ops.unary("v_ln" if log else "v_reciprocal", total, total)

        def result(y: RowTile, x: RowTile) -> None:
            if not t.tiling.resident:
                ops.binary("v_sub", x, x, top)
                if not log:
                    ops.unary("v_exp", x, x)
            ops.binary("v_sub" if log else "v_mul", y, x, total)

        t.results(result)


def softmax_integer(t: RowTask) -> None:
    """Exponentials as whole numbers, whose sum is exact: none of the order in which chunks are walked."""
    scale, grid = (
        bits_of(real(t.body.attr["scale"]), DType.F32),
        bits_of(float(integer(t.body.attr["grid"])), DType.F32),
    )
    with t.units():
        ops, top, total = t.ops, t.statistic(0), t.statistic(1)
        part = top if t.tiling.resident else t.statistic(2)
        t.reduce("max", top, _keep, bits_of(LOWEST_F32, DType.F32), part)

        def power(x: RowTile) -> RowTile:
            ops.binary("v_sub", x, x, top)
            ops.unary("v_muls", x, x, value=scale)
            ops.unary("v_exp", x, x)
            ops.unary("v_muls", x, x, value=grid)
            for sign in (1.0, -1.0):
                ops.unary("v_adds", x, x, value=bits_of(sign * _TO_WHOLE, DType.F32))
            return x

        t.reduce("sum", total, power, 0, total if t.tiling.resident else part)
        ops.unary("v_reciprocal", total, total)

        def result(y: RowTile, x: RowTile) -> None:
            ops.binary("v_mul", y, x if t.tiling.resident else power(x), total)

        t.results(result)


def _running_softmax(t: RowTask, top: TileVector, total: TileVector) -> None:
    """The greatest element and the sum of powers relative to it, chunk by chunk."""
    ops, part, old = t.ops, t.statistic(2), t.statistic(3)
    ops.fill(top, bits_of(LOWEST_F32, DType.F32))  # not -inf: inf - inf is none
    ops.fill(total, 0)

    def visit(x: RowTile) -> None:
        ops.reduce("max", part, x)
        ops.unary("v_copy", old, top)
        ops.binary("v_max", top, top, part)
        ops.binary("v_sub", old, old, top)
        ops.unary("v_exp", old, old)
        ops.binary("v_mul", total, total, old)
        ops.binary("v_sub", x, x, top)
        ops.unary("v_exp", x, x)
        ops.reduce("sum", part, x)
        ops.binary("v_add", total, total, part)

    t.each(visit)


# Norms


def norm(t: RowTask) -> None:
    """layer_norm, group_norm, instance_norm, rms_norm."""
    count, epsilon = t.space.row_size, real(t.body.attr["epsilon"])
    ops = t.ops
    with t.units():
        mean, factor, part = t.statistic(0), t.statistic(1), t.statistic(2)
        centred = t.body.op != "rms_norm"
        if centred:
            t.reduce("sum", mean, _keep, 0, part)
            ops.unary("v_muls", mean, mean, value=bits_of(1.0 / count, DType.F32))

        def squares(x: RowTile) -> RowTile:
            if centred:
                ops.binary("v_sub", x, x, mean)
            return _square(t)(x)

        t.reduce("sum", factor, squares, 0, part)
        ops.unary("v_muls", factor, factor, value=bits_of(1.0 / count, DType.F32))
        ops.unary("v_adds", factor, factor, value=bits_of(epsilon, DType.F32))
        ops.unary("v_rsqrt", factor, factor)

        scaled, prepare = _scaled(t, factor)

        def result(y: RowTile, x: RowTile) -> None:
            if centred and not t.tiling.resident:
                ops.binary("v_sub", x, x, mean)
            scaled(y, x)

        t.results(result, prepare)


def _joins(scale: TileVector, factor: TileVector) -> bool:
    """Whether scale and factor are one vector: a pass less over the data."""
    return factor.form is VectorForm.ONE or scale.form is factor.form is VectorForm.ROW


def _join(t: RowTask, scale: TileVector, factor: TileVector) -> TileVector:
    both = t.spare_like(scale)
    if factor.form is VectorForm.ONE:
        t.ops.scaled(both, scale, factor)
    else:
        t.ops.binary("v_mul", both, scale, factor)
    return both


def _scaled(t: RowTask, factor: TileVector) -> tuple[Callable[[RowTile, RowTile], None], Callable[[], None]]:
    """y = x * factor * scale + bias, as what `RowTask.results` takes; x may have been changed in front."""
    ops, whole = t.ops, t.whole_param(1)
    joined = whole is not None and _joins(whole, factor)

    def prepare() -> None:
        if joined:
            assert whole is not None
            _join(t, whole, factor)

    def compute(y: RowTile, x: RowTile) -> None:
        scale, bias = t.param(1, x), t.param(2, x)
        if joined:
            ops.binary("v_mul", y, x, t.spare_of(1, x))
        elif isinstance(scale, TileVector) and _joins(scale, factor):
            ops.binary("v_mul", y, x, _join(t, scale, factor))
        else:
            ops.binary("v_mul", y, x, factor)
            if scale is not None:
                ops.binary("v_mul", y, y, scale)
        if bias is not None:
            ops.binary("v_add", y, y, bias)

    return compute, prepare


def lp_norm(t: RowTask) -> None:
    """x / norm, 0 where the norm is 0."""
    ops = t.ops
    with t.units():
        total, part, mask = t.statistic(0), t.statistic(2), t.statistic(3)
        if integer(t.body.attr["p"]) == 1:

            def magnitude(x: RowTile) -> RowTile:
                y = ops.temporary(x)
                ops.unary("v_abs", y, x)
                return y

            t.reduce("sum", total, magnitude, 0, part)
        else:
            t.reduce("sum", total, _square(t), 0, part)
            ops.unary("v_sqrt", total, total)
        # Where the norm is 0 the row is: x / 1 is 0 there too.
        _keep_where(t, total, total, mask, "ne", 0.0, 1.0)
        t.results(lambda y, x: ops.binary("v_div", y, x, total))


def _keep_where(
    t: RowTask, dst: TileVector, tested: TileVector, mask: TileVector, predicate: str, than: float, otherwise: float
) -> None:
    """dst becomes a number where not `tested predicate than`. `mask`: room for bytes."""
    kb, dtype, bits = t.kb, t.ops.dtype, bits_of(than, t.ops.dtype)
    room, x, count = mask.part.flat, tested.part.flat, tested.count
    kb.issue("v_cmps", dtype, dst=room, src=x, cols=count, predicate=predicate, value=bits)
    value, here = bits_of(otherwise, dtype), dst.part.flat
    kb.issue("v_selects", dtype, dst=here, src=here, mask=room, cols=count, value=value)


def batch_norm(t: RowTask) -> None:
    """(x - mean) / sqrt(var + epsilon) * scale + bias with statistics given."""
    ops, epsilon = t.ops, real(t.body.attr["epsilon"])
    with t.units():

        def result(y: RowTile, x: RowTile) -> None:
            scale, bias, mean, var = (t.param(k, x) for k in range(1, 5))
            assert isinstance(var, TileVector)
            assert isinstance(scale, TileVector)
            assert bias is not None
            assert mean is not None
            factor = t.spare_like(var)
            ops.unary("v_adds", factor, var, value=bits_of(epsilon, DType.F32))
            ops.unary("v_sqrt", factor, factor)
            ops.binary("v_div", factor, scale, factor)
            ops.binary("v_sub", y, x, mean)
            ops.binary("v_mul", y, y, factor)
            ops.binary("v_add", y, y, bias)

        t.results(result)


# Reductions


def reduction(t: RowTask) -> None:
    """All of reduce_*."""
    op = t.body.op or ""
    with t.units():
        total, part = t.statistic(0), t.statistic(2)
        if op == "reduce_log_sum_exp":
            _log_sum_exp(t)
            return
        kind = {"reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}.get(op, "sum")
        identity = bits_of(_identity(kind, t.dtype), t.work)
        if t.space.row_size == 0:
            t.ops.fill(total, identity)
        else:
            t.reduce(kind, total, _before(t), identity, part)
        _after(t, total)
        t.emit_vector(total)


def _identity(kind: str, dtype: DType) -> float:
    if kind in ("sum", "prod"):
        return float(kind == "prod")
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    bits = 8 * dtype.itemsize
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
    return low if kind == "max" else high


def _before(t: RowTask) -> Callable[[RowTile], RowTile]:
    """What is done to each element, in place."""
    op, ops = t.body.op, t.ops

    def prepare(x: RowTile) -> RowTile:
        if op == "reduce_l1":
            ops.unary("v_abs", x, x)
        elif op in ("reduce_l2", "reduce_sum_square"):
            ops.binary("v_mul", x, x, x)
        elif op == "reduce_prod":
            return _product_tile(t, x)
        return x

    return prepare


def _product_tile(t: RowTask, x: RowTile) -> RowTile:
    """A copy that may be destroyed, of known extents: what is missing is 1."""
    assert t.ops.scratch is not None
    p, q, lines = t.tiling.p, t.tiling.q, t.tiling.mode is RowMode.LINES
    full = RowTile(t.ops.scratch.rows(t.tiling.stride * t.work_item), x.n if lines else p, q)
    if not isinstance(x.m, int) or not (lines or isinstance(x.n, int)) or x.m != q:
        t.ops.fill(full, bits_of(1.0, t.work))
    t.ops.unary("v_copy", RowTile(full.part, x.n, x.m), x)
    return full


def _after(t: RowTask, total: TileVector) -> None:
    op, ops = t.body.op, t.ops
    if op == "reduce_mean":
        ops.unary(
            "v_muls", total, total, value=bits_of(1.0 / t.space.row_size if t.space.row_size else math.nan, DType.F32)
        )
    elif op == "reduce_l2":
        ops.unary("v_sqrt", total, total)
    elif op == "reduce_log_sum":
        ops.unary("v_ln", total, total)


def _log_sum_exp(t: RowTask) -> None:
    """log(sum of exp(x - top)) + top; top is 0 where the greatest is infinite or NaN."""
    ops = t.ops
    top, total, part, size = t.statistic(0), t.statistic(1), t.statistic(2), t.statistic(3)
    if t.space.row_size == 0:
        ops.fill(top, bits_of(-math.inf, t.work))
        t.emit_vector(top)
        return
    t.reduce("max", top, _keep, bits_of(-math.inf, t.work), part)
    ops.unary("v_abs", part, top)
    _keep_where(t, top, part, size, "lt", math.inf, 0.0)

    def power(x: RowTile) -> RowTile:
        ops.binary("v_sub", x, x, top)
        ops.unary("v_exp", x, x)
        return x

    t.reduce("sum", total, power, 0, part)
    ops.unary("v_ln", total, total)
    ops.binary("v_add", top, total, top)
    t.emit_vector(top)


# Running sums


def running_sum(t: RowTask) -> None:
    """cumsum down the rows of a resident tile, in log2(rows) passes: each adds the rows 1, 2, 4, ... above."""
    ops, rows = t.ops, t.tiling.p
    exclusive = bool(t.body.attr["exclusive"])

    def result(y: RowTile, x: RowTile) -> None:
        now, other = x, ops.temporary(x)
        step = 1
        while step < rows:
            ops.unary("v_copy", other.rows(0, step), now.rows(0, step))
            ops.binary("v_add", other.rows(step, rows - step), now.rows(step, rows - step), now.rows(0, rows - step))
            now, other = other, now
            step *= 2
        if not exclusive:
            if now is not y:
                ops.unary("v_copy", y, now)
            return
        if now is y:  # rows move down: not within one tile
            ops.unary("v_copy", other, now)
            now = other
        ops.fill(y.rows(0, 1), 0)
        if rows > 1:
            ops.unary("v_copy", y.rows(1, rows - 1), now.rows(0, rows - 1))

    with t.units():
        t.results(result)


FORMULAS: dict[str, Callable[[RowTask], None]] = {
    **dict.fromkeys(("softmax", "log_softmax"), softmax),
    "softmax_integer": softmax_integer,
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "instance_norm"), norm),
    "lp_norm": lp_norm,
    "batch_norm": batch_norm,
    "cumsum": running_sum,
}


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """Write the kernel."""
    if isinstance(tiling, BarrierReduceTiling):
        emit_barrier_reduce(kb, body, tiling)
        return
    formula = reduction if is_reduction(body) else FORMULAS.get(body.op or "")
    if not isinstance(tiling, RowsTiling) or formula is None:
        raise InternalError("not a row-wise body", location=str(body.op), found=type(tiling).__name__)
    task = RowTask(kb, body, tiling)
    with task.constants():
        formula(task)
