"""Normalisations, inference only."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


def _first_axis(call: TorchCall, x: Tensor) -> int:
    return x.rank - len(call.ints("normalized_shape"))


def _per_channel(call: TorchCall, name: str, number: float, x: Tensor) -> Tensor:
    """A vector over the channels; where it is absent, of one number."""
    given = call.optional(name)
    return call.constant(np.full(x.shape[1], number, x.dtype.numpy)) if given is None else call.cast(given, x.dtype)


@lowers("layer_norm", "native_layer_norm")
def layer_norm(call: TorchCall) -> list[Tensor | None]:
    if call.wants(1) or call.wants(2):
        raise call.unsupported("only the first output of a normalisation is offered")
    x, scale, bias = call.tensor("input"), call.optional("weight"), call.optional("bias")
    if scale is None and bias is not None:
        scale = call.constant(np.ones(bias.shape, bias.dtype.numpy))
    return [call.emit("layer_norm", x, scale, bias, axis=_first_axis(call, x), epsilon=float(call.args["eps"]))]


@lowers("rms_norm", "_fused_rms_norm")
def rms_norm(call: TorchCall) -> list[Tensor | None]:
    if call.wants(1):
        raise call.unsupported("only the first output of a normalisation is offered")
    x = call.tensor("input")
    default = {DType.F64: 2.0**-52, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}.get(x.dtype, 2.0**-23)
    epsilon = float(call.get("eps", default))
    scale = call.optional("weight")
    scale = scale if scale is None else call.cast(scale, x.dtype)
    return [call.emit("rms_norm", x, scale, axis=_first_axis(call, x), epsilon=epsilon)]


@lowers("group_norm", "native_group_norm")
def group_norm(call: TorchCall) -> list[Tensor | None]:
    if call.wants(1) or call.wants(2):
        raise call.unsupported("only the first output of a normalisation is offered")
    x = call.tensor("input")
    groups = int(call.get("num_groups", call.get("group")))
    scale, bias = _per_channel(call, "weight", 1.0, x), _per_channel(call, "bias", 0.0, x)
    return [call.emit("group_norm", x, scale, bias, groups=groups, epsilon=float(call.args["eps"]))]


@lowers("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit")
def batch_norm(call: TorchCall) -> list[Tensor | None]:
    x = call.tensor("input")
    if not call.get("training", False):
        return [_given_statistics(call, x)]
    if call.optional("running_mean") is not None:
        raise call.unsupported("statistics that are kept up to date are not supported", hint="batch norms in eval mode")
    return [_own_statistics(call, x)]


def _own_statistics(call: TorchCall, x: Tensor) -> Tensor:
    """With mean and variance of each channel of x itself, as weights are standardised."""
    axes = tuple(a for a in range(x.rank) if a != 1)
    centred = call.emit("sub", x, call.emit("reduce_mean", x, axes=axes, keepdims=True))
    variance = call.emit("reduce_mean", call.emit("mul", centred, centred), axes=axes, keepdims=True)
    spread = call.emit("sqrt", call.emit("add", variance, call.like(float(call.args["eps"]), x)))
    along = (1, x.shape[1]) + (1,) * (x.rank - 2)
    scale, bias = (call.reshape(_per_channel(call, n, v, x), along) for n, v in (("weight", 1.0), ("bias", 0.0)))
    return call.emit("add", call.emit("mul", call.emit("div", centred, spread), scale), bias)


def _given_statistics(call: TorchCall, x: Tensor) -> Tensor:
    scale, bias = _per_channel(call, "weight", 1.0, x), _per_channel(call, "bias", 0.0, x)
    mean, variance = _per_channel(call, "running_mean", 0.0, x), _per_channel(call, "running_var", 1.0, x)
    return call.emit("batch_norm", x, scale, bias, mean, variance, epsilon=float(call.args["eps"]))


@lowers("instance_norm")
def instance_norm(call: TorchCall) -> Tensor:
    x = call.tensor("input")
    if not call.get("use_input_stats", True):
        return _given_statistics(call, x)
    scale, bias = _per_channel(call, "weight", 1.0, x), _per_channel(call, "bias", 0.0, x)
    return call.emit("instance_norm", x, scale, bias, epsilon=float(call.args["eps"]))
