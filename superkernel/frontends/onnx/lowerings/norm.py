"""Softmax and the normalisations."""

from __future__ import annotations

from math import prod

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import MICROSOFT, lowers


@lowers("Softmax", "LogSoftmax")
def softmax(call: OnnxCall) -> Tensor:
    """Since operator set 13 along one axis; before, over everything from the axis on."""
    x = call.input(0)
    op = "softmax" if call.op == "Softmax" else "log_softmax"
    if call.opset >= 13:
        return call.emit(op, x, axis=call.attr("axis", -1))
    axis = call.axis(call.attr("axis", 1), x.rank)
    if axis == x.rank - 1 or prod(x.shape[axis + 1 :]) == 1:
        return call.emit(op, x, axis=axis)
    flat = call.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return call.emit("reshape", call.emit(op, flat, axis=1), shape=x.shape)


@lowers("LayerNormalization")
@lowers("LayerNormalization", domain=MICROSOFT)
def layer_normalization(call: OnnxCall) -> list[Tensor | None]:
    x, axis, epsilon = call.input(0), call.attr("axis", -1), call.attr("epsilon", 1e-5)
    y = call.emit("layer_norm", x, call.optional(1), call.optional(2), axis=axis, epsilon=epsilon)
    mean = inverse = None
    if call.wants(1) or call.wants(2):
        found = row_statistics(call, x, call.axis(axis, x.rank), epsilon)
        mean, inverse = (call.cast(value, DType.F32) for value in found)  # in the standard of no other type
    return [y, mean, inverse]


def row_statistics(call: OnnxCall, x: Tensor, axis: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(variance + epsilon) over the axes from `axis` on, in at least f32."""
    wide = x if x.dtype is DType.F64 else call.cast(x, DType.F32)
    axes = tuple(range(axis, x.rank))
    mean = call.emit("reduce_mean", wide, axes=axes, keepdims=True)
    centred = call.emit("sub", wide, mean)
    variance = call.emit("reduce_mean", call.emit("square", centred), axes=axes, keepdims=True)
    return mean, call.emit("rsqrt", call.emit("add", variance, call.like(epsilon, variance)))


@lowers("GroupNormalization")
def group_normalization(call: OnnxCall) -> Tensor:
    """Before operator set 21 scale and bias are per group, since then per channel."""
    x, groups = call.input(0), call.required("num_groups")
    call.require_rank(x, 2)
    channels = x.shape[1]

    def per_channel(value: Tensor) -> Tensor:
        if value.shape == (channels,):
            return value
        spread = call.expand(call.reshape(value, (groups, 1)), (groups, channels // groups))
        return call.reshape(spread, (channels,))

    scale, bias = per_channel(call.input(1)), per_channel(call.input(2))
    return call.emit("group_norm", x, scale, bias, groups=groups, epsilon=call.attr("epsilon", 1e-5))


@lowers("MeanVarianceNormalization")
def mean_variance_normalization(call: OnnxCall) -> Tensor:
    x, axes = call.input(0), tuple(call.attr("axes") or (0, 2, 3))
    centred = call.emit("sub", x, call.emit("reduce_mean", x, axes=axes, keepdims=True))
    variance = call.emit("reduce_mean", call.emit("square", centred), axes=axes, keepdims=True)
    deviation = call.emit("sqrt", variance)
    return call.emit("div", centred, call.emit("add", deviation, call.like(1e-9, deviation)))


@lowers("BatchNormalization")
def batch_normalization(call: OnnxCall) -> list[Tensor | None]:
    x, scale, bias, mean, variance = (call.input(i) for i in range(5))
    epsilon = call.attr("epsilon", 1e-5)
    if call.attr("spatial", 1) == 0:
        raise call.unsupported("only per-channel statistics are supported", expected="spatial=1", found="spatial=0")
    if not call.attr("training_mode", 0):
        if any(call.wants(i) for i in range(1, len(call.node.output))):
            raise call.unsupported("statistics are only computed in training mode")
        return [call.emit("batch_norm", x, scale, bias, mean, variance, epsilon=epsilon)]
    axes = (0, *range(2, x.rank))
    wide = call.cast(x, mean.dtype)
    now = call.emit("reduce_mean", wide, axes=axes, keepdims=True)
    spread = call.emit("reduce_mean", call.emit("square", call.emit("sub", wide, now)), axes=axes, keepdims=True)
    now, spread = call.reshape(now, mean.shape), call.reshape(spread, mean.shape)
    momentum = call.attr("momentum", 0.9)

    def running(old: Tensor, new: Tensor) -> Tensor:
        kept = call.emit("mul", old, call.like(momentum, old))
        return call.emit("add", kept, call.emit("mul", new, call.like(1.0 - momentum, new)))

    y = call.emit("batch_norm", x, scale, bias, now, spread, epsilon=epsilon)
    return [y, running(mean, now), running(variance, spread)]
