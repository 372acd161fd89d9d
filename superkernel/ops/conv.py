"""Convolutions, of bytes too, and transposed convolutions over 1 to 3 spatial axes, with groups.

Model: x is [N, C, spatial...], w is [M, C/groups, kernel...] (transposed: [C, M/groups, kernel...]). The reference
adds up one matrix product per kernel tap over a strided view of the input: no unfolded copy, so models of real size
stay usable.
"""

from __future__ import annotations

from math import prod

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import (
    attr,
    get,
    optional,
    present,
    require,
    require_rank,
    require_same_dtype,
    require_shape,
    slot,
    to_f64,
)
from superkernel.ops.opdef import BYTES, FLOATS, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types
from superkernel.ops.windows import Window, paddings, spatial, trailing, window_taps, windows

_CONV_ARGS = (
    ArgDef("x", FLOATS, doc="[N, C, 1 to 3 spatial axes]"),
    ArgDef("w", FLOATS, doc="[M, C/groups, kernel]"),
    ArgDef("b", FLOATS, optional=True, doc="[M]"),
)


def _checked(inputs: Types, attrs: Attrs, args: tuple[ArgDef, ...]) -> tuple[TensorType, TensorType, int]:
    """x, w and groups, after what both kinds of convolution demand of them."""
    require_same_dtype(inputs, args)
    x, w, groups = present(inputs, 0), present(inputs, 1), get(attrs, "groups", int)
    require_rank(x, 3, 5, slot(args, 0))
    require_rank(w, x.rank, x.rank, slot(args, 1))
    require(groups > 0, "bad groups", "1 or more", groups, "attribute 'groups'")
    require(x.shape[1] % groups == 0, "groups does not divide the input channels", f"a divisor of {x.shape[1]}", groups)
    require(min(w.shape[2:]) > 0, "empty kernel", "extents of 1 or more", list(w.shape[2:]), slot(args, 1))
    return x, w, groups


def conv_windows(x: TensorType, w: TensorType, attrs: Attrs) -> tuple[Window, ...]:
    """The window of each spatial axis."""
    return windows(x.shape[2:], w.shape[2:], attrs)


def _conv_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, w, groups = _checked(inputs, attrs, _CONV_ARGS)
    channels = w.shape[0]
    require(channels % groups == 0, "groups does not divide the output channels", f"a divisor of {channels}", groups)
    require_shape(w, (w.shape[0], x.shape[1] // groups, *w.shape[2:]), slot(_CONV_ARGS, 1))
    b = optional(inputs, 2)
    if b is not None:
        require_shape(b, (w.shape[0],), slot(_CONV_ARGS, 2))
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *(v.size for v in conv_windows(x, w, attrs)))),)


def _type(values: Array, outputs: Outputs) -> TensorType:
    return TensorType(outputs[0].dtype, tuple(int(d) for d in values.shape))


def _with_bias(out: Array, bias: Array | None) -> Array:
    return out if bias is None else out + to_f64(bias).reshape(-1, *(1,) * (out.ndim - 2))


def _conv_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, w = to_f64(present(inputs, 0)), to_f64(present(inputs, 1))
    axes = conv_windows(_type(x, outputs), _type(w, outputs), attrs)
    batch, groups, space = x.shape[0], get(attrs, "groups", int), x.shape[2:]
    inner, outer = w.shape[1], w.shape[0] // groups
    data = x.reshape(batch, groups, inner, *space)
    weight = w.reshape(groups, outer, inner, *w.shape[2:])
    out = np.zeros((batch, groups, outer, *(a.size for a in axes)))
    for tap, targets, sources in window_taps(axes):
        part, factor = data[trailing(sources)], weight[trailing(tap)]
        count = prod(part.shape[3:])
        if inner == 1 or count == 0:
            value = factor.reshape(groups, outer, *(1,) * len(axes)) * part if inner == 1 else 0.0
        else:
            value = np.matmul(factor, part.reshape(batch, groups, inner, count))
            value = value.reshape(batch, groups, outer, *part.shape[3:])
        out[trailing(targets)] += value
    return (_with_bias(out.reshape(outputs[0].shape), optional(inputs, 2)),)


def _conv_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    bias = 0 if optional(inputs, 2) is None else outputs[0].size
    return 2 * outputs[0].size * prod(present(inputs, 1).shape[1:]) + bias


# conv_integer

_CONV_INTEGER_ARGS = (
    ArgDef("x", BYTES, doc="[N, C, 1 to 3 spatial axes]"),
    ArgDef("w", BYTES, doc="[M, C/groups, kernel]"),
    ArgDef("b", frozenset({DType.I32}), optional=True, doc="[M]"),
    ArgDef("x_zero", BYTES, optional=True, doc="of x's type: one value"),
    ArgDef("w_zero", BYTES, optional=True, doc="of w's type: one value, or [M]"),
)


def _conv_integer_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, w = present(inputs, 0), present(inputs, 1)
    wide = [TensorType(DType.F32, k.shape) for k in (x, w)]
    b = optional(inputs, 2)
    wide += [TensorType(DType.F32, b.shape)] if b is not None else []
    for which, operand in enumerate((x, w)):
        zero, where = optional(inputs, 3 + which), slot(_CONV_INTEGER_ARGS, 3 + which)
        if zero is not None:
            require(zero.dtype is operand.dtype, "element types differ", operand.dtype, zero.dtype, where)
            fits = zero.size == 1 or (which == 1 and zero.shape == (w.shape[0],))
            wanted = "one value" if which == 0 else f"one value or [{w.shape[0]}]"
            require(fits, "wrong shape", wanted, list(zero.shape), where)
    return (TensorType(DType.I32, _conv_infer(wide, attrs)[0].shape),)


def _conv_integer_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    """Sums in float64, exact far below 2^53; in i32 they wrap."""
    centred = []
    for which in range(2):
        values, zero = to_f64(present(inputs, which)), optional(inputs, 3 + which)
        if zero is not None:
            values = values - to_f64(zero).reshape(-1, *(1,) * (values.ndim - 1))
        centred.append(values)
    padding = get(attrs, "padding", int)
    if padding:
        begins_ends = paddings(attrs, centred[0].ndim - 2)
        centred[0] = np.pad(centred[0], ((0, 0), (0, 0), *begins_ends), constant_values=float(padding))
        attrs = {**attrs, "pads": ()}
    (sums,) = _conv_reference((*centred, optional(inputs, 2)), attrs, outputs)
    return (sums.astype(np.int64).astype(np.int32),)


# conv_transpose: output position = i*stride + t*dilation - pad_begin

_TRANSPOSE_ARGS = (
    ArgDef("x", FLOATS, doc="[N, C, 1 to 3 spatial axes]"),
    ArgDef("w", FLOATS, doc="[C, M/groups, kernel]"),
    ArgDef("b", FLOATS, optional=True, doc="[M]"),
)


def transpose_windows(x: TensorType, w: TensorType, attrs: Attrs) -> tuple[Window, ...]:
    """The windows of the convolution that this one transposes: their outputs are our inputs and the other way round."""
    rank = x.rank - 2
    strides, dilations = spatial(attrs, "strides", rank, 1, 1), spatial(attrs, "dilations", rank, 1, 1)
    extra = spatial(attrs, "output_padding", rank, 0, 0)
    found = []
    for axis, (begin, end) in enumerate(paddings(attrs, rank)):
        size, kernel, stride, dilation = x.shape[2 + axis], w.shape[2 + axis], strides[axis], dilations[axis]
        limit = max(stride, dilation)
        short = f"below {limit} (stride or dilation)"
        require(extra[axis] < limit, "output_padding is too large", short, extra[axis], "attribute 'output_padding'")
        extent = (size - 1) * stride + (kernel - 1) * dilation + 1 + extra[axis] - begin - end if size else 0
        require(extent >= 0, f"pads crop more than spatial axis {axis} has", "an extent of 0 or more", extent)
        found.append(Window(extent, kernel, stride, dilation, begin, end, size))
    return tuple(found)


def _transpose_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, w, groups = _checked(inputs, attrs, _TRANSPOSE_ARGS)
    require_shape(w, (x.shape[1], *w.shape[1:]), slot(_TRANSPOSE_ARGS, 1))
    channels = w.shape[1] * groups
    b = optional(inputs, 2)
    if b is not None:
        require_shape(b, (channels,), slot(_TRANSPOSE_ARGS, 2))
    return (TensorType(x.dtype, (x.shape[0], channels, *(v.extent for v in transpose_windows(x, w, attrs)))),)


def _transpose_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, w = to_f64(present(inputs, 0)), to_f64(present(inputs, 1))
    axes = transpose_windows(_type(x, outputs), _type(w, outputs), attrs)
    batch, groups, space = x.shape[0], get(attrs, "groups", int), x.shape[2:]
    inner, outer = x.shape[1] // groups, w.shape[1]
    data = x.reshape(batch, groups, inner, prod(space))
    weight = w.reshape(groups, inner, outer, *w.shape[2:])
    out = np.zeros((batch, groups, outer, *outputs[0].shape[2:]))
    for tap, read, written in window_taps(axes):
        spread = np.matmul(weight[trailing(tap)].swapaxes(1, 2), data).reshape(batch, groups, outer, *space)
        out[trailing(written)] += spread[trailing(read)]
    return (_with_bias(out.reshape(outputs[0].shape), optional(inputs, 2)),)


def _transpose_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    bias = 0 if optional(inputs, 2) is None else outputs[0].size
    return 2 * present(inputs, 0).size * prod(present(inputs, 1).shape[1:]) + bias


_ATTRS = (
    attr("strides", (), "one per spatial axis; empty: all 1"),
    attr("dilations", (), "one per spatial axis; empty: all 1"),
    attr("pads", (), "begins of the spatial axes, then ends; empty: none"),
)
_GROUPS = attr("groups", 1, "channels are split into this many independent convolutions")

OPS: tuple[OpDef, ...] = (
    OpDef(
        "conv",
        Family.CONV,
        "Cross-correlation of x with w, + b per channel.",
        _CONV_ARGS,
        (*_ATTRS, _GROUPS),
        _conv_infer,
        _conv_reference,
        _conv_flops,
    ),
    OpDef(
        "conv_integer",
        Family.CONV,
        "Cross-correlation of x - x_zero with w - w_zero, + b per channel, in i32.",
        _CONV_INTEGER_ARGS,
        (*_ATTRS, _GROUPS, attr("padding", 0, "what x - x_zero is in padding")),
        _conv_integer_infer,
        _conv_integer_reference,
        _conv_flops,
    ),
    OpDef(
        "conv_transpose",
        Family.CONV,
        "The transpose (gradient) of conv: every input element spreads over a window of outputs, + b per channel.",
        _TRANSPOSE_ARGS,
        (*_ATTRS, attr("output_padding", (), "extends the end of each spatial axis; empty: none"), _GROUPS),
        _transpose_infer,
        _transpose_reference,
        _transpose_flops,
    ),
)
