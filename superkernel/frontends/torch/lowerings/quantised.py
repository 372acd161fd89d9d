"""The operators that torch's quantised exports are written in (library `quantized_decomposed`): values become codes and
codes values, per tensor or per channel, with parameters that are constants or, where the model quantises dynamically,
computed.

A range of codes that is narrower than their type is held behind `quantize`. torch multiplies by the reciprocal of a
scale where `quantize` divides: codes may differ by one where a value lies halfway between two.
"""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers
from superkernel.frontends.torch.types import element_type

_LIBRARY = "quantized_decomposed"
_CODES = frozenset({DType.I8, DType.U8, DType.I16, DType.U16, DType.I32})


@lowers(f"{_LIBRARY}.quantize_per_tensor", f"{_LIBRARY}.quantize_per_channel")
def quantize(call: TorchCall) -> Tensor:
    x, codes = call.tensor("input"), _codes_type(call)
    scale, zero = _parameters(call, x.rank, codes)
    found = call.emit("quantize", call.cast(x, DType.F32), scale, zero, dtype=codes)
    info = np.iinfo(codes.numpy)
    low, high = (call.args[f"quant_{end}"] for end in ("min", "max"))
    if not isinstance(low, int) or not isinstance(high, int):
        raise call.unsupported("bounds of codes must be numbers")
    if low > info.min:
        found = call.emit("maximum", found, call.typed(low, codes))
    return call.emit("minimum", found, call.typed(high, codes)) if high < info.max else found


@lowers(f"{_LIBRARY}.dequantize_per_tensor", f"{_LIBRARY}.dequantize_per_channel")
def dequantize(call: TorchCall) -> Tensor:
    x = call.tensor("input")
    if x.dtype not in _CODES:
        raise call.unsupported("not a type of codes", expected=", ".join(sorted(map(str, _CODES))), found=str(x.dtype))
    return call.cast(call.emit("dequantize", x, *_parameters(call, x.rank, x.dtype)), call.dtype)


@lowers(f"{_LIBRARY}.choose_qparams")
def choose_parameters(call: TorchCall) -> list[Tensor | None]:
    """Scale and zero point such that the codes from quant_min to quant_max span all values and zero."""
    x = call.cast(call.tensor("input"), DType.F32)
    low, high, zero = int(call.args["quant_min"]), int(call.args["quant_max"]), call.like(0.0, x)
    least = call.emit("minimum", call.emit("reduce_min", x, axes=(), keepdims=False), zero)
    most = call.emit("maximum", call.emit("reduce_max", x, axes=(), keepdims=False), zero)
    span = call.emit("div", call.emit("sub", most, least), call.like(float(high - low), x))
    scale = call.emit("maximum", span, call.like(float(call.args["eps"]), x))
    steps = call.emit("round", call.emit("div", least, scale))
    point = call.emit("clip", call.emit("sub", call.like(float(low), x), steps), *(call.like(float(v), x)
                      for v in (low, high)))  # fmt: skip
    kinds = [element_type(value.dtype, call.where) for value in call.values]
    shapes = [tuple(int(d) for d in value.shape) for value in call.values]
    return [call.reshape(call.cast(v, k), s) for v, k, s in zip((scale, point), kinds, shapes, strict=True)]


def _codes_type(call: TorchCall) -> DType:
    if call.dtype not in _CODES:
        expected = ", ".join(sorted(map(str, _CODES)))
        raise call.unsupported("not a type of codes", expected=expected, found=str(call.dtype))
    return call.dtype


def _parameters(call: TorchCall, rank: int, codes: DType) -> tuple[Tensor, Tensor]:
    """Scale in f32 and zero point in the codes' type, along the channels' axis where there is one."""
    names = ("scales", "zero_points") if call.op.endswith("per_channel") else ("scale", "zero_point")
    scale, zero = (call.get(name, 0) for name in names)
    found = (call.typed(scale, DType.F32), call.typed(zero, codes))
    if names[0] == "scale":
        return found[0], found[1]
    axis = call.axis("axis", rank)
    shape = tuple(-1 if d == axis else 1 for d in range(rank))
    scales, zeros = (call.reshape(t, shape) if t.rank else t for t in found)
    return scales, zeros
