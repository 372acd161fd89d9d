"""Einsum."""

from __future__ import annotations

from superkernel.builder.einsum import einsum
from superkernel.builder.tensor import Tensor
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers


@lowers("Einsum")
def lower_einsum(call: OnnxCall) -> Tensor:
    return einsum(call, str(call.required("equation")), [call.input(i) for i in range(len(call.inputs))])
