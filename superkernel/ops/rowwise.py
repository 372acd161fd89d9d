"""Softmax and normalisations: statistics over a row, then pointwise. And batch_norm, whose statistics are inputs.

Model: variances are those of the whole row (divided by the count, not count - 1), computed about the mean. Scale and
bias have x's element type. Every element of a row needs all of it: the access box spans the normalised axes.
"""

from __future__ import annotations

import numpy as np

from superkernel.core.tensor import Box, TensorType
from superkernel.ops.common import (
    array,
    axis_of,
    box_broadcast,
    box_with,
    float_attr,
    get_float,
    get_int,
    int_attr,
    optional_array,
    present,
    require,
    require_broadcast_to,
    require_rank,
    require_same_dtype,
    require_shape,
    slot,
    to_f64,
)
from superkernel.ops.opdef import (
    FLOATS,
    AccessFn,
    ArgDef,
    Array,
    Arrays,
    AttrDef,
    Attrs,
    Boxes,
    Family,
    FlopsFn,
    InferFn,
    OpDef,
    Outputs,
    ReferenceFn,
    Types,
)

_X = ArgDef("x", FLOATS)


def _per_element(flops: int) -> FlopsFn:
    return lambda inputs, outputs, attrs: flops * outputs[0].size


def _row(
    name: str,
    doc: str,
    args: tuple[ArgDef, ...],
    attrs: tuple[AttrDef, ...],
    infer: InferFn,
    reference: ReferenceFn,
    access: AccessFn,
    flops: int,
    family: Family = Family.ROWWISE,
) -> OpDef:
    return OpDef(name, family, doc, args, attrs, infer, reference, access, _per_element(flops))


def _epsilon(attrs: Attrs) -> float:
    epsilon = get_float(attrs, "epsilon")
    require(0.0 <= epsilon < float("inf"), "bad epsilon", "finite, 0 or more", epsilon)
    return epsilon


# softmax, log_softmax, lp_norm: along one axis


def _axis_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    axis_of(get_int(attrs, "axis"), x.rank)
    return (x,)


def _axis_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    axis = axis_of(get_int(attrs, "axis"), len(box))
    return (box_with(box, {axis: (0, outputs[0].shape[axis])}),)


def _shifted(x: Array, axis: int) -> Array:
    """x less the greatest of its row."""
    return x if x.size == 0 else x - x.max(axis=axis, keepdims=True)


def _softmax_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, axis = to_f64(array(inputs, 0)), get_int(attrs, "axis")
    with np.errstate(all="ignore"):
        power = np.exp(_shifted(x, axis))
        return (power / power.sum(axis=axis, keepdims=True),)


def _log_softmax_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, axis = to_f64(array(inputs, 0)), get_int(attrs, "axis")
    with np.errstate(all="ignore"):
        shifted = _shifted(x, axis)
        return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)


def _lp_norm_infer(inputs: Types, attrs: Attrs) -> Outputs:
    require(get_int(attrs, "p") in (1, 2), "bad p", "1 or 2", get_int(attrs, "p"))
    return _axis_infer(inputs, attrs)


def _lp_norm_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, axis = to_f64(array(inputs, 0)), get_int(attrs, "axis")
    with np.errstate(all="ignore"):
        if get_int(attrs, "p") == 1:
            norm = np.abs(x).sum(axis=axis, keepdims=True)
        else:
            norm = np.sqrt((x * x).sum(axis=axis, keepdims=True))
        return (np.where(norm == 0.0, 0.0, x / norm),)


# layer_norm, rms_norm: over axis .. end

_LAYER_ARGS = (
    _X,
    ArgDef("scale", FLOATS, optional=True, doc="broadcasts to x"),
    ArgDef("bias", FLOATS, optional=True, doc="broadcasts to x"),
)


def _tail_infer(inputs: Types, attrs: Attrs) -> Outputs:
    require_same_dtype(inputs, _LAYER_ARGS)
    x = present(inputs, 0)
    axis_of(get_int(attrs, "axis"), x.rank)
    _epsilon(attrs)
    for index, kind in enumerate(inputs):
        if index and kind is not None:
            require_broadcast_to(kind, x.shape, slot(_LAYER_ARGS, index))
    return (x,)


def _tail_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    axis = axis_of(get_int(attrs, "axis"), len(box))
    x_box = (*box[:axis], *((0, d) for d in outputs[0].shape[axis:]))
    return x_box, *(None if k is None else box_broadcast(k.shape, box) for k in inputs[1:])


def _affine(x: Array, scale: Array | None, bias: Array | None) -> Array:
    """x * scale + bias with either left out."""
    scaled = x if scale is None else x * to_f64(scale)
    return scaled if bias is None else scaled + to_f64(bias)


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over `axes`."""
    if x.size == 0:
        return x
    centred = x - x.mean(axis=axes, keepdims=True)
    result: Array = centred / np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)
    return result


def _layer_norm_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(array(inputs, 0))
    axes = tuple(range(axis_of(get_int(attrs, "axis"), x.ndim), x.ndim))
    with np.errstate(all="ignore"):
        normal = _normalised(x, axes, _epsilon(attrs))
        return (_affine(normal, optional_array(inputs, 1), optional_array(inputs, 2)),)


def _rms_norm_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(array(inputs, 0))
    axes = tuple(range(axis_of(get_int(attrs, "axis"), x.ndim), x.ndim))
    if x.size == 0:
        return (x,)
    with np.errstate(all="ignore"):
        normal = x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + _epsilon(attrs))
        return (_affine(normal, optional_array(inputs, 1), None),)


# group_norm, instance_norm, batch_norm: per channel scale and bias, channels on axis 1

_CHANNEL_ARGS = (
    ArgDef("x", FLOATS, doc="[N, C, ...]"),
    ArgDef("scale", FLOATS, doc="[C]"),
    ArgDef("bias", FLOATS, doc="[C]"),
)
_BATCH_ARGS = (*_CHANNEL_ARGS, ArgDef("mean", FLOATS, doc="[C]"), ArgDef("var", FLOATS, doc="[C]"))


def _channel_checks(inputs: Types, args: tuple[ArgDef, ...]) -> TensorType:
    """x is [N, C, ...] and the others are [C]; returns x."""
    x = present(inputs, 0)
    require_same_dtype(inputs, args)
    require_rank(x, 2, None, slot(args, 0))
    for index in range(1, len(args)):
        require_shape(present(inputs, index), (x.shape[1],), slot(args, index))
    return x


def _over_channels(values: Array, rank: int) -> Array:
    """A [C] vector shaped to broadcast along axis 1."""
    return to_f64(values).reshape(-1, *(1,) * (rank - 2))


def _group_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, groups = _channel_checks(inputs, _CHANNEL_ARGS), get_int(attrs, "groups")
    divides = groups > 0 and x.shape[1] % groups == 0
    require(divides, "groups does not divide the channels", f"a divisor of {x.shape[1]}", groups, "attribute 'groups'")
    _epsilon(attrs)
    return (x,)


def _grouped(x: Array, groups: int, inputs: Arrays, epsilon: float) -> Array:
    """Each group of channels of each sample normalised over all its elements, then scale and bias."""
    with np.errstate(all="ignore"):
        split = x.reshape(x.shape[0], groups, -1) if x.size else x.reshape(x.shape[0], groups, 0)
        normal = _normalised(split, (2,), epsilon).reshape(x.shape)
        return normal * _over_channels(array(inputs, 1), x.ndim) + _over_channels(array(inputs, 2), x.ndim)


def _group_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(array(inputs, 0))
    return (_grouped(x, get_int(attrs, "groups"), inputs, _epsilon(attrs)) if x.size else x,)


def _instance_infer(inputs: Types, attrs: Attrs) -> Outputs:
    _epsilon(attrs)
    return (_channel_checks(inputs, _CHANNEL_ARGS),)


def _instance_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(array(inputs, 0))
    return (_grouped(x, x.shape[1], inputs, _epsilon(attrs)) if x.size else x,)


def _spatial_access(outputs: Outputs, box: Box, channels: tuple[int, int]) -> Boxes:
    x_box = (box[0], channels, *((0, d) for d in outputs[0].shape[2:]))
    return x_box, (box[1],), (box[1],)


def _group_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    width = max(1, outputs[0].shape[1] // get_int(attrs, "groups"))
    start, stop = box[1]
    return _spatial_access(outputs, box, (start // width * width, -(-stop // width) * width))


def _instance_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    return _spatial_access(outputs, box, box[1])


def _batch_infer(inputs: Types, attrs: Attrs) -> Outputs:
    _epsilon(attrs)
    return (_channel_checks(inputs, _BATCH_ARGS),)


def _batch_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(array(inputs, 0))
    scale, bias, mean, var = (_over_channels(array(inputs, i), x.ndim) for i in range(1, 5))
    with np.errstate(all="ignore"):
        return ((x - mean) / np.sqrt(var + _epsilon(attrs)) * scale + bias,)


def _batch_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    return box, *(((box[1],),) * 4)


# lrn


def lrn_window(attrs: Attrs) -> tuple[int, int]:
    """How many channels before and behind its own an element's sum takes in."""
    size = get_int(attrs, "size")
    return (size - 1) // 2, size // 2


def _lrn_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, size = present(inputs, 0), get_int(attrs, "size")
    require_rank(x, 2, None, slot((_X,), 0))
    require(size > 0, "bad size", "1 or more", size, "attribute 'size'")
    return (x,)


def _lrn_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(array(inputs, 0))
    before, behind = lrn_window(attrs)
    squares = x * x
    total = np.zeros_like(x)
    channels = x.shape[1]
    for offset in range(max(-before, 1 - channels), min(behind, channels - 1) + 1):
        first, last = max(0, -offset), channels - max(0, offset)
        total[:, first:last] += squares[:, first + offset : last + offset]
    with np.errstate(all="ignore"):
        base = get_float(attrs, "bias") + get_float(attrs, "alpha") / get_int(attrs, "size") * total
        return (x / base ** get_float(attrs, "beta"),)


def _lrn_access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> Boxes:
    before, behind = lrn_window(attrs)
    start, stop = box[1]
    return (box_with(box, {1: (max(0, start - before), min(outputs[0].shape[1], stop + behind))}),)


def _lrn_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return outputs[0].size * (2 * min(get_int(attrs, "size"), max(1, outputs[0].shape[1])) + 4)


_EPSILON = float_attr("epsilon", 1e-5)
_AXIS = int_attr("axis", -1)
_TAIL_AXIS = int_attr("axis", -1, "first of the normalised axes: all from it to the last")

OPS: tuple[OpDef, ...] = (
    _row(
        "softmax",
        "e^x / sum of e^x along an axis.",
        (_X,),
        (_AXIS,),
        _axis_infer,
        _softmax_reference,
        _axis_access,
        5,
    ),
    _row(
        "log_softmax",
        "x - log(sum of e^x) along an axis.",
        (_X,),
        (_AXIS,),
        _axis_infer,
        _log_softmax_reference,
        _axis_access,
        5,
    ),
    _row(
        "layer_norm",
        "(x - mean) / sqrt(variance + epsilon) * scale + bias over axis .. end.",
        _LAYER_ARGS,
        (_TAIL_AXIS, _EPSILON),
        _tail_infer,
        _layer_norm_reference,
        _tail_access,
        7,
    ),
    _row(
        "rms_norm",
        "x / sqrt(mean of x^2 + epsilon) * scale over axis .. end.",
        _LAYER_ARGS[:2],
        (_TAIL_AXIS, _EPSILON),
        _tail_infer,
        _rms_norm_reference,
        _tail_access,
        4,
    ),
    _row(
        "group_norm",
        "(x - mean) / sqrt(variance + epsilon) over each group of channels, * scale + bias per channel.",
        _CHANNEL_ARGS,
        (int_attr("groups"), _EPSILON),
        _group_infer,
        _group_reference,
        _group_access,
        7,
    ),
    _row(
        "instance_norm",
        "(x - mean) / sqrt(variance + epsilon) over each channel, * scale + bias per channel.",
        _CHANNEL_ARGS,
        (_EPSILON,),
        _instance_infer,
        _instance_reference,
        _instance_access,
        7,
    ),
    _row(
        "lp_norm",
        "x / (sum of |x|^p)^(1/p) along an axis; 0 where the sum is 0.",
        (_X,),
        (_AXIS, int_attr("p", 2)),
        _lp_norm_infer,
        _lp_norm_reference,
        _axis_access,
        3,
    ),
    OpDef(
        "lrn",
        Family.ROWWISE,
        "x / (bias + alpha / size * sum of x^2 over size neighbouring channels)^beta.",
        (ArgDef("x", FLOATS, doc="[N, C, ...]"),),
        (int_attr("size"), float_attr("alpha", 1e-4), float_attr("beta", 0.75), float_attr("bias", 1.0)),
        _lrn_infer,
        _lrn_reference,
        _lrn_access,
        _lrn_flops,
    ),
    _row(
        "batch_norm",
        "(x - mean) / sqrt(var + epsilon) * scale + bias per channel, statistics given (inference).",
        _BATCH_ARGS,
        (_EPSILON,),
        _batch_infer,
        _batch_reference,
        _batch_access,
        4,
        Family.OTHER,
    ),
)
