"""Quantisation: QuantizeLinear, DequantizeLinear and the operators on quantised operands."""

from __future__ import annotations

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.lowerings.conv import integer_conv, is_zero
from superkernel.frontends.onnx.lowerings.matmul import zero_point
from superkernel.frontends.onnx.registry import lowers
from superkernel.frontends.onnx.types import element_type


def spread(call: OnnxCall, parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """A scale or zero point so that it broadcasts against `x`: per tensor, per axis, or per block along the axis."""
    if parameter is None or parameter.type.size == 1:
        return None if parameter is None else call.reshape(parameter, ())
    axis = call.axis(call.attr("axis", 1), x.rank)
    block = call.attr("block_size", 0)
    if block:
        call.require_rank(parameter, x.rank, x.rank)
        shape = parameter.shape
        repeated = call.reshape(parameter, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        repeated = call.expand(repeated, (*shape[: axis + 1], block, *shape[axis + 1 :]))
        wide = call.reshape(repeated, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
        if wide.shape == x.shape:
            return wide
        return call.emit("slice", wide, starts=[0], ends=[x.shape[axis]], axes=[axis], steps=[1])
    if parameter.rank != 1:
        return parameter
    return call.reshape(parameter, [parameter.shape[0] if i == axis else 1 for i in range(x.rank)])


def quantize(call: OnnxCall, x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """`quantize` with the scale in x's element type. Small integers are cut from bytes; small floats are quotients,
    which nothing rounds before."""
    if scale.dtype is not x.dtype:
        x, scale = (call.cast(t, DType.F32) for t in (x, scale))
    if not dtype.is_small:
        return call.emit("quantize", x, scale, zero, dtype=dtype)
    if dtype.is_float:
        quotient = call.emit("div", x, scale)
        if zero is not None and not is_zero(zero):
            quotient = call.emit("add", quotient, call.cast(zero, quotient.dtype))
        return call.emit("cast", quotient, dtype=dtype, saturate=bool(call.attr("saturate", 1)))
    codes = call.emit("quantize", x, scale, None if zero is None else whole(call, zero), dtype=byte_of(dtype))
    low, high = dtype.limits
    return call.cast(call.emit("clip", codes, call.like(low, codes), call.like(high, codes)), dtype)


def byte_of(dtype: DType) -> DType:
    """The type of whole bytes that holds a small integer."""
    return DType.I8 if dtype.is_signed else DType.U8


def whole(call: OnnxCall, codes: Tensor) -> Tensor:
    """Small integers as bytes; others as they are."""
    is_part = codes.dtype.is_small and codes.dtype.is_integer
    return call.cast(codes, byte_of(codes.dtype)) if is_part else codes


@lowers("QuantizeLinear")
def quantize_linear(call: OnnxCall) -> Tensor:
    x, zero = call.input(0), call.optional(2)
    wanted = call.attr("output_dtype", 0)
    dtype = zero.dtype if zero is not None else element_type(wanted, call.where) if wanted else DType.U8
    if not x.dtype.is_float:
        x = call.cast(x, DType.F32)
    scale = spread(call, call.input(1), x)
    assert scale is not None
    return quantize(call, x, scale, spread(call, zero, x), dtype)


def by_blocks(call: OnnxCall, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor | None:
    """Values that share scales in blocks along an axis: dequantised with that axis taken apart, so that scales need no
    copies. None where blocks do not divide it."""
    block = call.attr("block_size", 0)
    axis = call.axis(call.attr("axis", 1), x.rank) if block else 0
    if block:
        call.require_rank(scale, x.rank, x.rank)
    if not block or x.shape[axis] != block * scale.shape[axis]:
        return None
    apart = (*x.shape[:axis], scale.shape[axis], block, *x.shape[axis + 1 :])

    def once(parameter: Tensor) -> Tensor:
        return call.reshape(parameter, (*parameter.shape[: axis + 1], 1, *parameter.shape[axis + 1 :]))

    y = dequantize(call, call.reshape(x, apart), once(scale), None if zero is None else once(zero))
    return call.emit("reshape", y, shape=x.shape)


def dequantize(call: OnnxCall, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """(x - zero) * scale in the scale's element type."""
    if not x.dtype.is_float:
        return call.emit("dequantize", whole(call, x), scale, None if zero is None else whole(call, zero))
    value = call.cast(x, scale.dtype)
    if zero is not None and not is_zero(zero):
        value = call.emit("sub", value, call.cast(zero, scale.dtype))
    return call.emit("mul", value, scale)


@lowers("DequantizeLinear")
def dequantize_linear(call: OnnxCall) -> Tensor:
    x, scale, zero = call.input(0), call.input(1), call.optional(2)
    code = call.attr("output_dtype", 0)
    wanted = element_type(code, call.where) if code else scale.dtype
    if scale.dtype.is_small:
        scale = call.cast(scale, wanted)
    y = by_blocks(call, x, scale, zero)
    if y is None:
        spread_scale = spread(call, scale, x)
        assert spread_scale is not None
        y = dequantize(call, x, spread_scale, spread(call, zero, x))
    return call.cast(y, wanted)


@lowers("QLinearMatMul")
def qlinear_matmul(call: OnnxCall) -> Tensor:
    """y = quantize((a - za)(b - zb) sa sb): the integer product exactly, one rounding at the end."""
    a, sa, _, b, sb, _, sy, zy = (call.input(i) for i in range(8))
    product = call.emit("matmul_integer", a, b, zero_point(call, 2, a, -2), zero_point(call, 5, b, -1))
    left = call.reshape(sa, (sa.shape[0], 1)) if sa.type.size > 1 and sa.rank == 1 else _scalar(call, sa)
    right = call.reshape(sb, (1, sb.shape[0])) if sb.type.size > 1 and sb.rank == 1 else _scalar(call, sb)
    factor = call.emit("mul", call.cast(left, DType.F32), call.cast(right, DType.F32))
    real = call.emit("mul", call.cast(product, DType.F32), factor)
    return quantize(call, real, call.cast(_scalar(call, sy), DType.F32), _scalar(call, zy), zy.dtype)


def _scalar(call: OnnxCall, tensor: Tensor) -> Tensor:
    return call.reshape(tensor, ()) if tensor.type.size == 1 else tensor


@lowers("QLinearConv")
def qlinear_conv(call: OnnxCall) -> Tensor:
    x, sx, zx, w, sw, zw, sy, zy = (call.input(i) for i in range(8))
    total = integer_conv(call, x, zx, w, zw, call.optional(8))
    per_channel = (1, w.shape[0]) + (1,) * (x.rank - 2)
    factor = call.emit("mul", _scalar(call, sx), _scalar(call, sw))
    factor = call.reshape(factor, per_channel) if factor.type.size > 1 else factor
    real = call.emit("mul", call.cast(total, DType.F32), call.cast(factor, DType.F32))
    return quantize(call, real, _scalar(call, sy), _scalar(call, zy), zy.dtype)
