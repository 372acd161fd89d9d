"""Softmax and normalisations: statistics over a row, then pointwise. And batch_norm, whose statistics are inputs.

Model: variances are those of the whole row (divided by the count, not count - 1), computed about the mean. Scale and
bias have x's element type.
"""

from __future__ import annotations

import numpy as np

from superkernel.core.tensor import TensorType
from superkernel.ops.common import (
    attr,
    axis_of,
    get,
    optional,
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
    ArgDef,
    Array,
    Arrays,
    AttrDef,
    Attrs,
    Family,
    InferFn,
    OpDef,
    Outputs,
    ReferenceFn,
    Types,
    per_element,
)

_X = ArgDef("x", FLOATS)


def _row(
    name: str,
    doc: str,
    args: tuple[ArgDef, ...],
    attrs: tuple[AttrDef, ...],
    infer: InferFn,
    reference: ReferenceFn,
    flops: int,
    family: Family = Family.ROWWISE,
) -> OpDef:
    return OpDef(name, family, doc, args, attrs, infer, reference, per_element(flops))


def _epsilon(attrs: Attrs) -> float:
    epsilon = get(attrs, "epsilon", float)
    require(0.0 <= epsilon < float("inf"), "bad epsilon", "finite, 0 or more", epsilon)
    return epsilon


# softmax, log_softmax, lp_norm: along one axis


def _axis_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    axis_of(get(attrs, "axis", int), x.rank)
    return (x,)


def _shifted(x: Array, axis: int) -> Array:
    """x less the greatest of its row."""
    return x if x.size == 0 else x - x.max(axis=axis, keepdims=True)


def _softmax_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, axis = to_f64(present(inputs, 0)), get(attrs, "axis", int)
    power = np.exp(_shifted(x, axis))
    return (power / power.sum(axis=axis, keepdims=True),)


def _log_softmax_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, axis = to_f64(present(inputs, 0)), get(attrs, "axis", int)
    shifted = _shifted(x, axis)
    return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)


_SUM_MAX, _GRID_MAX = 1 << 24, 1 << 22  # sums of whole numbers that are exact in f32, in any order; see `grid_max`


def grid_max(row: int) -> int:
    """The largest `grid` of a softmax_integer over rows so long: their sums are exact in f32, and numbers become whole
    when 1.5 * 2^23 is added."""
    return min(_GRID_MAX, _SUM_MAX // max(1, row))


def _softmax_integer_infer(inputs: Types, attrs: Attrs) -> Outputs:
    (result,) = _axis_infer(inputs, attrs)
    grid, row = get(attrs, "grid", int), result.shape[axis_of(get(attrs, "axis", int), result.rank)]
    require(0 < grid <= grid_max(row), "bad grid", f"1 to {grid_max(row)}", grid, "attribute 'grid'")
    return (result,)


def _softmax_integer_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, axis = to_f64(present(inputs, 0)), get(attrs, "axis", int)
    power = np.rint(np.exp(_shifted(x, axis) * np.float32(get(attrs, "scale", float))) * get(attrs, "grid", int))
    return (power / power.sum(axis=axis, keepdims=True),)


def _lp_norm_infer(inputs: Types, attrs: Attrs) -> Outputs:
    require(get(attrs, "p", int) in (1, 2), "bad p", "1 or 2", get(attrs, "p", int))
    return _axis_infer(inputs, attrs)


def _lp_norm_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, axis = to_f64(present(inputs, 0)), get(attrs, "axis", int)
    if get(attrs, "p", int) == 1:
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
    axis_of(get(attrs, "axis", int), x.rank)
    _epsilon(attrs)
    for index, kind in enumerate(inputs):
        if index and kind is not None:
            require_broadcast_to(kind, x.shape, slot(_LAYER_ARGS, index))
    return (x,)


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
    x = to_f64(present(inputs, 0))
    axes = tuple(range(axis_of(get(attrs, "axis", int), x.ndim), x.ndim))
    normal = _normalised(x, axes, _epsilon(attrs))
    return (_affine(normal, optional(inputs, 1), optional(inputs, 2)),)


def _rms_norm_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(present(inputs, 0))
    axes = tuple(range(axis_of(get(attrs, "axis", int), x.ndim), x.ndim))
    if x.size == 0:
        return (x,)
    normal = x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + _epsilon(attrs))
    return (_affine(normal, optional(inputs, 1), None),)


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
    x, groups = _channel_checks(inputs, _CHANNEL_ARGS), get(attrs, "groups", int)
    divides = groups > 0 and x.shape[1] % groups == 0
    require(divides, "groups does not divide the channels", f"a divisor of {x.shape[1]}", groups, "attribute 'groups'")
    _epsilon(attrs)
    return (x,)


def _grouped(x: Array, groups: int, inputs: Arrays, epsilon: float) -> Array:
    """Each group of channels of each sample normalised over all its elements, then scale and bias."""
    split = x.reshape(x.shape[0], groups, -1) if x.size else x.reshape(x.shape[0], groups, 0)
    normal = _normalised(split, (2,), epsilon).reshape(x.shape)
    return normal * _over_channels(present(inputs, 1), x.ndim) + _over_channels(present(inputs, 2), x.ndim)


def _group_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(present(inputs, 0))
    return (_grouped(x, get(attrs, "groups", int), inputs, _epsilon(attrs)) if x.size else x,)


def _instance_infer(inputs: Types, attrs: Attrs) -> Outputs:
    _epsilon(attrs)
    return (_channel_checks(inputs, _CHANNEL_ARGS),)


def _instance_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(present(inputs, 0))
    return (_grouped(x, x.shape[1], inputs, _epsilon(attrs)) if x.size else x,)


def _batch_infer(inputs: Types, attrs: Attrs) -> Outputs:
    _epsilon(attrs)
    return (_channel_checks(inputs, _BATCH_ARGS),)


def _batch_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(present(inputs, 0))
    scale, bias, mean, var = (_over_channels(present(inputs, i), x.ndim) for i in range(1, 5))
    return ((x - mean) / np.sqrt(var + _epsilon(attrs)) * scale + bias,)


# lrn


def _lrn_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, size = present(inputs, 0), get(attrs, "size", int)
    require_rank(x, 2, None, slot((_X,), 0))
    require(size > 0, "bad size", "1 or more", size, "attribute 'size'")
    return (x,)


def _lrn_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = to_f64(present(inputs, 0))
    size = get(attrs, "size", int)
    before, behind = (size - 1) // 2, size // 2  # channels on either side that an element's sum takes in
    squares = x * x
    total = np.zeros_like(x)
    channels = x.shape[1]
    for offset in range(max(-before, 1 - channels), min(behind, channels - 1) + 1):
        first, last = max(0, -offset), channels - max(0, offset)
        total[:, first:last] += squares[:, first + offset : last + offset]
    base = get(attrs, "bias", float) + get(attrs, "alpha", float) / size * total
    return (x / base ** get(attrs, "beta", float),)


def _lrn_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return outputs[0].size * (2 * min(get(attrs, "size", int), max(1, outputs[0].shape[1])) + 4)


_EPSILON = attr("epsilon", 1e-5)
_AXIS = attr("axis", -1)
_TAIL_AXIS = attr("axis", -1, "first of the normalised axes: all from it to the last")

OPS: tuple[OpDef, ...] = (
    _row("softmax", "e^x / sum of e^x along an axis.", (_X,), (_AXIS,), _axis_infer, _softmax_reference, 5),
    _row("log_softmax", "x - log(sum of e^x) along an axis.", (_X,), (_AXIS,), _axis_infer, _log_softmax_reference, 5),
    _row(
        "softmax_integer",
        "p / sum of p along an axis, p = round(e^((x - greatest x) * scale) * grid), sums exact.",
        (_X,),
        (_AXIS, attr("scale", 1.0), attr("grid", int)),
        _softmax_integer_infer,
        _softmax_integer_reference,
        8,
    ),
    _row(
        "layer_norm",
        "(x - mean) / sqrt(variance + epsilon) * scale + bias over axis .. end.",
        _LAYER_ARGS,
        (_TAIL_AXIS, _EPSILON),
        _tail_infer,
        _layer_norm_reference,
        7,
    ),
    _row(
        "rms_norm",
        "x / sqrt(mean of x^2 + epsilon) * scale over axis .. end.",
        _LAYER_ARGS[:2],
        (_TAIL_AXIS, _EPSILON),
        _tail_infer,
        _rms_norm_reference,
        4,
    ),
    _row(
        "group_norm",
        "(x - mean) / sqrt(variance + epsilon) over each group of channels, * scale + bias per channel.",
        _CHANNEL_ARGS,
        (attr("groups", int), _EPSILON),
        _group_infer,
        _group_reference,
        7,
    ),
    _row(
        "instance_norm",
        "(x - mean) / sqrt(variance + epsilon) over each channel, * scale + bias per channel.",
        _CHANNEL_ARGS,
        (_EPSILON,),
        _instance_infer,
        _instance_reference,
        7,
    ),
    _row(
        "lp_norm",
        "x / (sum of |x|^p)^(1/p) along an axis; 0 where the sum is 0.",
        (_X,),
        (_AXIS, attr("p", 2)),
        _lp_norm_infer,
        _lp_norm_reference,
        3,
    ),
    OpDef(
        "lrn",
        Family.ROWWISE,
        "x / (bias + alpha / size * sum of x^2 over size neighbouring channels)^beta.",
        (ArgDef("x", FLOATS, doc="[N, C, ...]"),),
        (attr("size", int), attr("alpha", 1e-4), attr("beta", 0.75), attr("bias", 1.0)),
        _lrn_infer,
        _lrn_reference,
        _lrn_flops,
    ),
    _row(
        "batch_norm",
        "(x - mean) / sqrt(var + epsilon) * scale + bias per channel, statistics given (inference).",
        _BATCH_ARGS,
        (_EPSILON,),
        _batch_infer,
        _batch_reference,
        4,
        Family.OTHER,
    ),
)
