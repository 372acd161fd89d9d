"""Matrix products."""

from __future__ import annotations

from superkernel.builder.tensor import Tensor
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.lowerings.conv import is_zero
from superkernel.frontends.onnx.registry import lowers


@lowers("MatMulInteger")
def matmul_integer(call: OnnxCall) -> Tensor:
    a, b = call.input(0), call.input(1)
    return call.emit("matmul_integer", a, b, zero_point(call, 2, a, -2), zero_point(call, 3, b, -1))


def zero_point(call: OnnxCall, slot: int, operand: Tensor, axis: int) -> Tensor | None:
    """An optional zero point, broadcastable to the operand: a scalar, or one per row (axis -2) or column (axis -1). One
    that is known to be 0 is none: symmetric quantisation has them for form's sake."""
    zero = call.optional(slot)
    if zero is not None and is_zero(zero):
        return None
    if zero is None or zero.type.size == 1:
        return None if zero is None else call.reshape(zero, ())
    if zero.rank == 1:
        return call.reshape(zero, (zero.shape[0], 1) if axis == -2 else (1, zero.shape[0]))
    return zero
