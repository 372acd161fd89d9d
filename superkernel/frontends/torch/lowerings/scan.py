"""Running products, extrema and sums of exponentials: scans that the table has no operator for."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends import scans
from superkernel.frontends.scans import Parts, scanned
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


@lowers("cumprod")
def running_product(call: TorchCall) -> Tensor:
    """In a wider type, as torch computes it."""
    x = call.operand("self")
    return x if x.rank == 0 else scans.running_product(call, x, call.axis("dim", x.rank))


@lowers("cummax", "cummin")
def running_extremum(call: TorchCall) -> list[Tensor | None]:
    """The last of equal elements; what is no number is taken, and stays."""
    x = call.tensor("self")
    if x.rank == 0:
        return [x, call.constant(np.int64(0))]
    axis = call.axis("dim", x.rank)
    order = "greater_equal" if call.op == "cummax" else "less_equal"
    places = np.arange(x.shape[axis]).reshape([-1 if d == axis else 1 for d in range(x.rank)])
    parts = [call.cast(x, DType.U8) if x.dtype is DType.BOOL else x]
    if call.wants(1):
        parts.append(call.expand(call.constant(places), x.shape))

    def combine(before: Parts, behind: Parts) -> Parts:
        taken = call.emit(order, behind[0], before[0])
        if x.dtype.is_float:
            taken = call.emit("logical_or", taken, call.emit("isnan", behind[0]))
        return [call.emit("where", taken, b, a) for a, b in zip(before, behind, strict=True)]

    values, *found = scanned(call, parts, axis, combine)
    return [call.cast(values, x.dtype), found[0] if found else None]


@lowers("logcumsumexp")
def running_log_sum_exp(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    if x.rank == 0:
        return x

    def combine(before: Parts, behind: Parts) -> Parts:
        high, low = (call.emit(op, before[0], behind[0]) for op in ("maximum", "minimum"))
        zero = call.like(0.0, high)  # the difference of equal ones, of infinities too
        apart = call.emit("where", call.emit("equal", high, low), zero, call.emit("sub", low, high))
        return [call.emit("add", high, call.emit("log1p", call.emit("exp", apart)))]

    wide = call.cast(x, DType.F32) if x.dtype in (DType.F16, DType.BF16) else x
    (y,) = scanned(call, [wide], call.axis("dim", x.rank), combine)
    return call.cast(y, x.dtype)
