"""Elementwise operators."""

from __future__ import annotations

from functools import reduce

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import MICROSOFT, lowers
from superkernel.frontends.onnx.types import element_type
from superkernel.frontends.powers import ROUNDING, power_of_two


@lowers("BitShift")
def bit_shift(call: OnnxCall) -> Tensor:
    direction = call.required("direction")
    return call.emit("shift_left" if direction == "LEFT" else "shift_right", call.input(0), call.input(1))


@lowers("Max", "Min", "Sum", "Mean")
def variadic(call: OnnxCall) -> Tensor:
    op = {"Max": "maximum", "Min": "minimum", "Sum": "add", "Mean": "add"}[call.op]
    operands = [call.input(i) for i in range(len(call.inputs))]
    if len(operands) == 1:
        return call.emit("identity", operands[0])
    total = reduce(lambda a, b: call.emit(op, a, b), operands)
    return call.emit("div", total, call.like(len(operands), total)) if call.op == "Mean" else total


@lowers("Clip")
def clip(call: OnnxCall) -> Tensor:
    x = call.input(0)
    if call.opset >= 11:
        low, high = (_scalar(call, call.optional(i)) for i in (1, 2))
    else:
        low, high = (call.like(call.attr(n), x) if n in call.attrs else None for n in ("min", "max"))
    return call.emit("identity", x) if low is None and high is None else call.emit("clip", x, low, high)


def _scalar(call: OnnxCall, bound: Tensor | None) -> Tensor | None:
    return None if bound is None else call.reshape(bound, ())


@lowers("Swish")
@lowers("QuickGelu", domain=MICROSOFT)
def swish(call: OnnxCall) -> Tensor:
    x, alpha = call.input(0), call.attr("alpha", 1.0 if call.op == "Swish" else 1.702)
    if alpha == 1.0:
        return call.emit("silu", x)
    return call.emit("mul", x, call.emit("sigmoid", call.emit("mul", x, call.like(alpha, x))))


@lowers("Cast")
def cast(call: OnnxCall) -> Tensor:
    return _cast(call, element_type(call.required("to"), call.where))


@lowers("CastLike")
def cast_like(call: OnnxCall) -> Tensor:
    return _cast(call, call.input(1).dtype)


def _cast(call: OnnxCall, dtype: DType) -> Tensor:
    x = call.input(0)
    if x.dtype is dtype:
        return call.emit("identity", x)
    saturate = bool(call.attr("saturate", 1))
    if dtype is DType.F8E8M0FNU:
        mode = call.attr("round_mode", "up")
        if mode not in ROUNDING:
            raise call.contradiction("unknown round_mode", expected=", ".join(ROUNDING), found=mode)
        return power_of_two(call, x, mode, saturate)
    wraps = dtype.is_small and dtype.is_integer
    return call.emit("cast", x, dtype=dtype, saturate=saturate and not wraps)


@lowers("BitCast")
def bit_cast(call: OnnxCall) -> Tensor:
    x, dtype = call.input(0), element_type(call.required("to"), call.where)
    return call.emit("identity", x) if x.dtype is dtype else call.emit("bitcast", x, dtype=dtype)


@lowers("Dropout")
def dropout(call: OnnxCall) -> list[Tensor | None]:
    """Inference: the input itself, and a mask that keeps everything."""
    x = call.input(0)
    if call.has(2) and bool(call.static_scalar(2)) and not (call.has(1) and float(call.static(1)) == 0.0):
        raise call.unsupported("training mode draws random numbers", hint="export the model for inference")
    mask_type = np.bool_ if call.opset >= 10 else x.dtype.numpy
    mask = call.constant(np.ones(x.shape, mask_type)) if call.wants(1) else None
    return [call.emit("identity", x), mask]
