"""Numbers as powers of two (f8e8m0fnu) by the exponents of their f32's, as ONNX and torch round them: without the sign,
and of 0 the least one."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import Emitter

_MANTISSA, _INFINITE, _NORMAL = 23, 0x7F800000, 0x00800000
ROUNDING = {"up": (0x7FFFFF, 0x7FFFFF), "nearest": (0x3FFFFF, 0x400000), "down": (0, 0)}
"""What is added to an f32's bits before the mantissa is cut off: below 2^-126, and from there on."""


def power_of_two(call: Emitter, x: Tensor, rounding: str, saturate: bool) -> Tensor:
    """`x` as f8e8m0fnu. `saturate`: what rounds beyond the greatest power becomes it, else NaN; infinity is NaN."""

    def number(value: int) -> Tensor:
        return call.constant(np.int32(value))

    bits = call.emit("bitcast", call.cast(x, DType.F32), dtype=DType.I32)
    size = call.emit("minimum", call.emit("bitwise_and", bits, number(0x7FFFFFFF)), number(_INFINITE))
    below, above = map(number, ROUNDING[rounding])
    added = call.emit("where", call.emit("less", size, number(_NORMAL)), below, above)
    code = call.emit("shift_right", call.emit("add", size, added), number(_MANTISSA))
    if saturate:
        cut = call.emit("minimum", code, number(0xFE))
        code = call.emit("where", call.emit("equal", size, number(_INFINITE)), code, cut)
    return call.emit("bitcast", call.cast(code, DType.U8), dtype=DType.F8E8M0FNU)
