"""The uniform pointwise operators, unary and binary, as compact rows.

Model: a row is a name, the element types it takes, a formula on float64 arrays, and, where integers need another one,
a formula on integer arrays that wraps in its own type. Shapes, access and cost follow from the broadcast rule, so
rows hold nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Box, TensorType
from superkernel.ops.common import array as nth
from superkernel.ops.common import (
    bool_attr,
    box_broadcast,
    broadcast_shape,
    float_attr,
    get_bool,
    get_float,
    get_str,
    is_float,
    present,
    require_same_dtype,
    str_attr,
    to_f64,
)
from superkernel.ops.numeric import erf, gelu, int_div, int_mod, shift, sigmoid, softplus
from superkernel.ops.opdef import (
    ANY,
    BOOLS,
    FLOATS,
    INTS,
    NUMERIC,
    SIGNED_INTS,
    AccessFn,
    ArgDef,
    Array,
    Arrays,
    AttrDef,
    Attrs,
    Family,
    FlopsFn,
    InferFn,
    OpDef,
    Outputs,
    ReferenceFn,
    Types,
)

Formula = Callable[[Array, Attrs], Array]
Formula2 = Callable[[Array, Array, Attrs], Array]


def _access(inputs: Types, outputs: Outputs, attrs: Attrs, index: int, box: Box) -> tuple[Box | None, ...]:
    return tuple(None if kind is None else box_broadcast(kind.shape, box) for kind in inputs)


def _flops(per_element: int) -> FlopsFn:
    return lambda inputs, outputs, attrs: per_element * outputs[0].size


def pointwise_row(
    name: str,
    doc: str,
    args: tuple[ArgDef, ...],
    attrs: tuple[AttrDef, ...],
    infer: InferFn,
    reference: ReferenceFn,
    flops: int,
    access: AccessFn = _access,
) -> OpDef:
    return OpDef(name, Family.POINTWISE, doc, args, attrs, infer, reference, access, _flops(flops))


# Unary.


def _unary(
    name: str,
    doc: str,
    formula: Formula,
    *,
    dtypes: frozenset[DType] = FLOATS,
    integer: Formula | None = None,
    attrs: tuple[AttrDef, ...] = (),
    out: DType | None = None,
    flops: int = 1,
) -> OpDef:
    def infer(inputs: Types, attrs: Attrs) -> Outputs:
        x = present(inputs, 0)
        return (TensorType(out or x.dtype, x.shape),)

    def reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
        x = nth(inputs, 0)
        with np.errstate(all="ignore"):
            if is_float(x):
                return (np.asarray(formula(to_f64(x), attrs)),)
            return (np.asarray((integer or formula)(x, attrs)).astype(outputs[0].dtype.numpy),)

    return pointwise_row(name, doc, (ArgDef("x", dtypes),), attrs, infer, reference, flops)


def _alpha(default: float) -> tuple[AttrDef, ...]:
    return (float_attr("alpha", default),)


def _elu(x: Array, alpha: float, scale: float = 1.0) -> Array:
    """scale * (x where positive, else alpha * (exp(x) - 1))."""
    result: Array = scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))
    return result


def _celu(x: Array, alpha: float) -> Array:
    result: Array = np.maximum(x, 0.0) + np.minimum(0.0, alpha * np.expm1(x / alpha))
    return result


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    result: Array = np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, np.where(np.isnan(x), x, 0.0)))
    return result


def _isinf(x: Array, a: Attrs) -> Array:
    negative, positive = get_bool(a, "detect_negative"), get_bool(a, "detect_positive")
    result: Array = (np.isposinf(x) & positive) | (np.isneginf(x) & negative)
    return result


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0.0, 1.0)


def _plain(function: Callable[[Array], Array]) -> Formula:
    return lambda x, attrs: function(x)


_SIMPLE: tuple[tuple[str, str, Callable[[Array], Array], int], ...] = (
    ("floor", "The greatest whole number <= x.", np.floor, 1),
    ("ceil", "The least whole number >= x.", np.ceil, 1),
    ("round", "The nearest whole number, halves to even.", np.rint, 1),
    ("trunc", "x without its fraction.", np.trunc, 1),
    ("sqrt", "Square root.", np.sqrt, 1),
    ("rsqrt", "1 / sqrt(x).", lambda x: 1.0 / np.sqrt(x), 2),
    ("reciprocal", "1 / x.", lambda x: 1.0 / x, 1),
    ("exp", "e^x.", np.exp, 1),
    ("expm1", "e^x - 1, exact near 0.", np.expm1, 1),
    ("log", "Natural logarithm.", np.log, 1),
    ("log1p", "log(1 + x), exact near 0.", np.log1p, 1),
    ("sin", "Sine.", np.sin, 1),
    ("cos", "Cosine.", np.cos, 1),
    ("tan", "Tangent.", np.tan, 1),
    ("asin", "Inverse sine.", np.arcsin, 1),
    ("acos", "Inverse cosine.", np.arccos, 1),
    ("atan", "Inverse tangent.", np.arctan, 1),
    ("sinh", "Hyperbolic sine.", np.sinh, 1),
    ("cosh", "Hyperbolic cosine.", np.cosh, 1),
    ("tanh", "Hyperbolic tangent.", np.tanh, 1),
    ("asinh", "Inverse hyperbolic sine.", np.arcsinh, 1),
    ("acosh", "Inverse hyperbolic cosine.", np.arccosh, 1),
    ("atanh", "Inverse hyperbolic tangent.", np.arctanh, 1),
    ("erf", "Error function.", erf, 1),
    ("sigmoid", "1 / (1 + e^-x).", sigmoid, 3),
    ("hard_swish", "x * clip(x / 6 + 1/2, 0, 1).", lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), 4),
    ("mish", "x * tanh(softplus(x)).", lambda x: x * np.tanh(softplus(x)), 5),
    ("softplus", "log(1 + e^x).", softplus, 3),
    ("softsign", "x / (1 + |x|).", lambda x: x / (1.0 + np.abs(x)), 3),
    ("silu", "x * sigmoid(x).", lambda x: x * sigmoid(x), 4),
)

_UNARY = (
    _unary("identity", "x.", _plain(lambda x: x), dtypes=ANY, flops=0),
    _unary("abs", "|x|.", _plain(np.abs), dtypes=NUMERIC),
    _unary("neg", "-x.", _plain(np.negative), dtypes=FLOATS | SIGNED_INTS),
    _unary("sign", "-1, 0 or 1 by the sign of x.", _plain(np.sign), dtypes=NUMERIC),
    _unary("square", "x^2.", _plain(np.square), dtypes=NUMERIC),
    _unary("relu", "max(x, 0).", _plain(lambda x: np.maximum(x, x.dtype.type(0))), dtypes=NUMERIC),
    *(_unary(name, doc, _plain(function), flops=flops) for name, doc, function, flops in _SIMPLE),
    _unary(
        "leaky_relu",
        "x where positive, else alpha * x.",
        lambda x, a: np.where(x >= 0, x, get_float(a, "alpha") * x),
        attrs=_alpha(0.01),
        flops=2,
    ),
    _unary(
        "elu",
        "x where positive, else alpha * (e^x - 1).",
        lambda x, a: _elu(x, get_float(a, "alpha")),
        attrs=_alpha(1.0),
        flops=3,
    ),
    _unary(
        "selu",
        "gamma * (x where positive, else alpha * (e^x - 1)).",
        lambda x, a: _elu(x, get_float(a, "alpha"), get_float(a, "gamma")),
        attrs=(float_attr("alpha", 1.67326319217681884765625), float_attr("gamma", 1.05070102214813232421875)),
        flops=4,
    ),
    _unary(
        "celu",
        "max(x, 0) + min(0, alpha * (e^(x / alpha) - 1)).",
        lambda x, a: _celu(x, get_float(a, "alpha")),
        attrs=_alpha(1.0),
        flops=6,
    ),
    _unary(
        "hard_sigmoid",
        "clip(alpha * x + beta, 0, 1).",
        lambda x, a: _hard_sigmoid(x, get_float(a, "alpha"), get_float(a, "beta")),
        attrs=(float_attr("alpha", 0.2), float_attr("beta", 0.5)),
        flops=4,
    ),
    _unary(
        "gelu",
        "x * Phi(x), Phi the normal distribution; or its tanh approximation.",
        lambda x, a: gelu(x, get_str(a, "approximate")),
        attrs=(str_attr("approximate", "none", ("none", "tanh")),),
        flops=5,
    ),
    _unary(
        "thresholded_relu",
        "x where x > alpha, else 0.",
        lambda x, a: np.where((x > get_float(a, "alpha")) | np.isnan(x), x, 0.0),
        attrs=_alpha(1.0),
    ),
    _unary(
        "shrink",
        "x + bias where x < -lambd, x - bias where x > lambd, else 0.",
        lambda x, a: _shrink(x, get_float(a, "bias"), get_float(a, "lambd")),
        attrs=(float_attr("bias", 0.0), float_attr("lambd", 0.5)),
        flops=3,
    ),
    _unary("logical_not", "not x.", _plain(np.logical_not), dtypes=BOOLS),
    _unary("bitwise_not", "Every bit flipped.", _plain(np.invert), dtypes=INTS),
    _unary("isnan", "True where x is NaN.", _plain(np.isnan), out=DType.BOOL),
    _unary(
        "isinf",
        "True where x is infinite, of the signs asked for.",
        _isinf,
        attrs=(bool_attr("detect_negative", True), bool_attr("detect_positive", True)),
        out=DType.BOOL,
    ),
)


# Binary.


def _binary(
    name: str,
    doc: str,
    formula: Formula2,
    *,
    dtypes: frozenset[DType] = NUMERIC,
    integer: Formula2 | None = None,
    attrs: tuple[AttrDef, ...] = (),
    out: DType | None = None,
    flops: int = 1,
) -> OpDef:
    args = (ArgDef("a", dtypes), ArgDef("b", dtypes))

    def infer(inputs: Types, attrs: Attrs) -> Outputs:
        dtype = require_same_dtype(inputs, args)
        shape = broadcast_shape([present(inputs, 0).shape, present(inputs, 1).shape])
        return (TensorType(out or dtype, shape),)

    def reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
        a, b = nth(inputs, 0), nth(inputs, 1)
        with np.errstate(all="ignore"):
            if is_float(a):
                return (np.asarray(formula(to_f64(a), to_f64(b), attrs)),)
            return (np.asarray((integer or formula)(a, b, attrs)).astype(outputs[0].dtype.numpy),)

    return pointwise_row(name, doc, args, attrs, infer, reference, flops)


def _plain2(function: Callable[[Array, Array], Array]) -> Formula2:
    return lambda a, b, attrs: function(a, b)


def _mod(a: Array, b: Array, attrs: Attrs) -> Array:
    result: Array = np.fmod(a, b) if get_bool(attrs, "fmod") else np.remainder(a, b)
    return result


_FMOD = (bool_attr("fmod", False, "the remainder takes the sign of a (C's fmod) instead of b's"),)


def _compare(name: str, doc: str, function: Callable[[Array, Array], Array], dtypes: frozenset[DType]) -> OpDef:
    return _binary(name, doc, _plain2(function), dtypes=dtypes, out=DType.BOOL)


def _logic(name: str, doc: str, function: Callable[[Array, Array], Array], dtypes: frozenset[DType]) -> OpDef:
    return _binary(name, doc, _plain2(function), dtypes=dtypes)


_BINARY = (
    _binary("add", "a + b.", _plain2(np.add)),
    _binary("sub", "a - b.", _plain2(np.subtract)),
    _binary("mul", "a * b.", _plain2(np.multiply)),
    _binary(
        "div",
        "a / b; integers truncate toward zero, a zero divisor gives 0.",
        _plain2(np.divide),
        integer=_plain2(int_div),
    ),
    _binary("minimum", "The lesser; NaN if either is.", _plain2(np.minimum)),
    _binary("maximum", "The greater; NaN if either is.", _plain2(np.maximum)),
    _binary(
        "mod",
        "The remainder of a / b; an integer divisor 0 gives 0.",
        _mod,
        integer=lambda a, b, attrs: int_mod(a, b, get_bool(attrs, "fmod")),
        attrs=_FMOD,
    ),
    _compare("equal", "a == b.", np.equal, ANY),
    _compare("not_equal", "a != b.", np.not_equal, ANY),
    _compare("less", "a < b.", np.less, NUMERIC),
    _compare("less_equal", "a <= b.", np.less_equal, NUMERIC),
    _compare("greater", "a > b.", np.greater, NUMERIC),
    _compare("greater_equal", "a >= b.", np.greater_equal, NUMERIC),
    _logic("logical_and", "a and b.", np.logical_and, BOOLS),
    _logic("logical_or", "a or b.", np.logical_or, BOOLS),
    _logic("logical_xor", "a differs from b.", np.logical_xor, BOOLS),
    _logic("bitwise_and", "Bits set in both.", np.bitwise_and, INTS),
    _logic("bitwise_or", "Bits set in either.", np.bitwise_or, INTS),
    _logic("bitwise_xor", "Bits that differ.", np.bitwise_xor, INTS),
    _logic("shift_left", "a * 2^b; all bits out where b < 0 or b >= width.", lambda a, b: shift(a, b, True), INTS),
    _logic(
        "shift_right",
        "floor(a / 2^b), arithmetic for signed types; all bits out where b < 0 or b >= width.",
        lambda a, b: shift(a, b, False),
        INTS,
    ),
)


OPS: tuple[OpDef, ...] = (*_UNARY, *_BINARY)
