"""Convolutions, transposed convolutions, and the integer ones."""

from __future__ import annotations

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers


def window(call: OnnxCall, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """strides, dilations and pads of a sliding window, auto_pad resolved."""
    rank = len(kernel)
    strides = tuple(call.attr("strides") or (1,) * rank)
    dilations = tuple(call.attr("dilations") or (1,) * rank)
    pads = tuple(call.attr("pads") or (0,) * (2 * rank))
    auto = call.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        begins, ends = [], []
        for extent, size, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
            total = max(0, (-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1 - extent)
            less, more = total // 2, total - total // 2
            begins.append(less if auto == "SAME_UPPER" else more)
            ends.append(more if auto == "SAME_UPPER" else less)
        pads = (*begins, *ends)
    elif auto == "VALID":
        pads = (0,) * (2 * rank)
    return {"strides": strides, "dilations": dilations, "pads": pads}


def emit_conv(call: OnnxCall, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """The node's convolution of these operands."""
    geometry = window(call, x.shape[2:], w.shape[2:])
    return call.emit("conv", x, w, bias, groups=call.attr("group", 1), **geometry)


@lowers("Conv")
def conv(call: OnnxCall) -> Tensor:
    return emit_conv(call, call.input(0), call.input(1), call.optional(2))


@lowers("ConvTranspose")
def conv_transpose(call: OnnxCall) -> Tensor:
    x, w = call.input(0), call.input(1)
    rank = x.rank - 2
    strides = tuple(call.attr("strides") or (1,) * rank)
    dilations = tuple(call.attr("dilations") or (1,) * rank)
    extra = list(call.attr("output_padding") or (0,) * rank)
    pads = list(call.attr("pads") or (0,) * (2 * rank))
    shape = call.attr("output_shape")
    auto = call.attr("auto_pad", "NOTSET")
    if shape is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        target = (
            list(shape)[-rank:] if shape is not None else [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
        )
        for i in range(rank):
            full = (x.shape[2 + i] - 1) * strides[i] + (w.shape[2 + i] - 1) * dilations[i] + 1
            total = full + extra[i] - target[i]
            if total < 0:
                extra[i], total = extra[i] - total, 0
            less = total // 2
            begin = total - less if auto == "SAME_LOWER" or (shape is not None and auto != "SAME_UPPER") else less
            pads[i], pads[rank + i] = begin, total - begin
    options = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": extra}
    return call.emit("conv_transpose", x, w, call.optional(2), groups=call.attr("group", 1), **options)


def integer_conv(call: OnnxCall, x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None) -> Tensor:
    """The exact integer convolution as f32 or, where sums may leave the exactly representable range, f64."""
    taps = w.type.size // w.shape[0]
    wide = DType.F32 if taps * 255 * 255 < 1 << 24 else DType.F64

    def centred(value: Tensor, zero: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        value = call.cast(value, wide)
        if zero is None:
            return value
        zero = call.cast(zero, wide)
        return call.emit("sub", value, call.reshape(zero, () if zero.type.size == 1 else shape))

    a = centred(x, x_zero, ())
    return emit_conv(call, a, centred(w, w_zero, (w.shape[0],) + (1,) * (w.rank - 1)), None)


@lowers("ConvInteger")
def conv_integer(call: OnnxCall) -> Tensor:
    y = integer_conv(call, call.input(0), call.optional(2), call.input(1), call.optional(3))
    return call.cast(y, DType.I32)
