"""Operators that make tensors of numbers alone: torch itself computes them, here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from superkernel.builder.tensor import Tensor
from superkernel.frontends.emitter import FOLD_LIMIT_BYTES
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.numbers import is_computed
from superkernel.frontends.torch.registry import Lowered, lowers
from superkernel.frontends.torch.types import tensor_array

_ENDS = ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@lowers(
    "arange", "eye", "fft_fftfreq", "fft_rfftfreq", "linspace", "logspace", "tril_indices", "triu_indices",
    *(f"{name}_window" for name in ("hann", "hamming", "blackman", "bartlett", "kaiser")),
)  # fmt: skip
def computed(call: TorchCall) -> Lowered:
    if any(map(is_computed, call.raw.values())):  # ends of linspace and logspace: all else refuses them
        return spaced(call)
    made = call.node.target(*call.node.args, **{**call.node.kwargs, "device": "cpu"})
    return call.constant(tensor_array(made, call.where))


@lowers(*(f"{op}.{kinds}" for op in ("linspace", "logspace") for kinds in _ENDS))
def spaced(call: TorchCall) -> Tensor:
    """Between tensors of one element: from the nearer end, as torch counts."""
    if not call.dtype.is_float:
        raise call.unsupported("integers between ends that are tensors are not supported", found=call.dtype)
    start, end = (call.reshape(call.operand(name), ()) for name in ("start", "end"))
    (steps,) = call.shape
    step = call.emit("div", call.emit("sub", end, start), call.like(max(steps - 1, 1), start))
    place = np.arange(steps)
    up, down = (call.constant(n.astype(call.dtype.numpy)) for n in (place, place[::-1]))
    first = call.emit("add", start, call.emit("mul", up, step))
    last = call.emit("sub", end, call.emit("mul", down, step))
    y = call.emit("where", call.constant(place < max(steps // 2, 1)), first, last)
    return y if call.op == "linspace" else call.emit("pow", call.like(float(call.get("base", 10.0)), y), y)


@lowers(
    "full", "full_like", "new_full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_empty", "zeros_like",
    "ones_like", "empty_like", "fill", "new_empty_strided", "empty_strided", "empty_permuted", "scalar_tensor",
)  # fmt: skip
def filled(call: TorchCall) -> Tensor:
    """One element broadcast. What torch leaves undefined is zero."""
    value: Any = call.get("fill_value", call.get("value", call.get("s")))
    if value is None:
        value = 1 if "ones" in call.op else 0
    if isinstance(value, Tensor):
        return call.expand(call.cast(value, call.dtype), call.shape)
    one = np.full((), value, call.dtype.numpy)
    if one.nbytes * int(np.prod(call.shape)) <= FOLD_LIMIT_BYTES:
        return call.constant(np.broadcast_to(one, call.shape))
    return call.expand(call.constant(one), call.shape)


@lowers("one_hot")
def one_hot(call: TorchCall) -> Tensor:
    depth = call.shape[-1]
    values = call.constant(torch.tensor([0, 1]).numpy())
    return call.emit("one_hot", call.tensor("self"), values, depth=depth, axis=-1)
