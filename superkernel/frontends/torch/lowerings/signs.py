"""Functions of two numbers that tell signs of zeros, infinities and what is no number apart.

No operator sees the sign of what is no number: it counts as positive.
"""

from __future__ import annotations

import math

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


def _is_negative(call: TorchCall, x: Tensor) -> Tensor:
    """The sign bit of numbers, zeros included."""
    zero = call.like(0.0, x)
    return call.emit("logical_or", call.emit("less", x, zero), call.emit("less", call.emit("reciprocal", x), zero))


@lowers("signbit")
def sign_bit(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    if x.dtype.is_float:
        return _is_negative(call, x)
    if not x.dtype.is_signed:
        return call.expand(call.constant(np.asarray(False)), x.shape)
    return call.emit("less", x, call.like(0, x))


@lowers("copysign")
def copy_sign(call: TorchCall) -> Tensor:
    size, sign = call.emit("abs", call.operand("self")), call.operand("other")
    return call.emit("where", _is_negative(call, sign), call.emit("neg", size), size)


@lowers("hypot")
def hypotenuse(call: TorchCall) -> Tensor:
    """With the longer side taken out, so that no square overflows; 16-bit sides are squared as 32-bit ones."""
    sides = [call.operand(n) for n in ("self", "other")]
    kind = sides[0].dtype
    a, b = (call.emit("abs", call.cast(s, DType.F64 if kind is DType.F64 else DType.F32)) for s in sides)
    zero, infinity = call.like(0.0, a), call.like(math.inf, a)
    high, low = call.emit("maximum", a, b), call.emit("minimum", a, b)
    ratio = call.emit("where", call.emit("equal", high, zero), zero, call.emit("div", low, high))
    root = call.emit("sqrt", call.emit("add", call.emit("square", ratio), call.like(1.0, a)))
    endless = call.emit("logical_or", call.emit("isinf", a), call.emit("isinf", b))  # whatever the other is
    return call.cast(call.emit("where", endless, infinity, call.emit("mul", high, root)), kind)


@lowers("fmax", "fmin")
def extremum_of_numbers(call: TorchCall) -> Tensor:
    a, b = call.operand("self"), call.operand("other")
    if a.dtype is DType.BOOL:
        return call.emit("logical_or" if call.op == "fmax" else "logical_and", a, b)
    y = call.emit("maximum" if call.op == "fmax" else "minimum", a, b)
    if not a.dtype.is_float:
        return y
    return call.emit("where", call.emit("isnan", a), b, call.emit("where", call.emit("isnan", b), a, y))
