"""Convolutions, transposed convolutions, and the integer ones."""

from __future__ import annotations

from superkernel.builder.tensor import Tensor
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers


def window(call: OnnxCall, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """strides, dilations and pads of a sliding window, auto_pad resolved."""
    rank = len(kernel)
    strides = tuple(call.attr("strides") or (1,) * rank)
    dilations = tuple(call.attr("dilations") or (1,) * rank)
    pads = tuple(call.attr("pads") or (0,) * (2 * rank))
    auto = call.attr("auto_pad", "NOTSET")
    if {len(spatial), len(strides), len(dilations), len(pads) / 2} != {rank}:
        found = f"{rank} of the kernel, {len(strides)} strides, {len(dilations)} dilations, {len(pads)} pads"
        raise call.contradiction("a window of another number of axes", expected=len(spatial), found=found)
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


def integer_conv(
    call: OnnxCall, x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """The node's convolution of bytes, + an i32 bias per channel, in i32. Zero points known to be 0 are none."""
    zeros = [None if zero is None or is_zero(zero) else zero for zero in (x_zero, w_zero)]
    if zeros[0] is not None:
        zeros[0] = call.reshape(zeros[0], ())
    if zeros[1] is not None and zeros[1].type.size == 1:
        zeros[1] = call.reshape(zeros[1], ())
    geometry = window(call, x.shape[2:], w.shape[2:])
    return call.emit("conv_integer", x, w, bias, *zeros, groups=call.attr("group", 1), **geometry)


def is_zero(zero: Tensor) -> bool:
    """Whether a zero point is known to be 0: symmetric quantisation has such for form's sake."""
    return zero.value.data is not None and not zero.value.data.any()


@lowers("ConvInteger")
def conv_integer(call: OnnxCall) -> Tensor:
    return integer_conv(call, call.input(0), call.optional(2), call.input(1), call.optional(3))
