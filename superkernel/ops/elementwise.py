"""The uniform pointwise operators, unary and binary, as compact rows.

Model: a row is a name, the element types it takes, a formula on float64 arrays, and, where integers need another one,
a formula on integer arrays that wraps in its own type; then its traits (`Traits`, `OpDef`). Shapes and cost follow from
the broadcast rule. The accelerator's vector engine computes a row in all of its types that the engine does arithmetic
in, unless the row says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, broadcast_shape, is_float, present, require_same_dtype, to_f64
from superkernel.ops.numeric import erf, gelu, int_div, int_mod, shift, sigmoid, softplus
from superkernel.ops.opdef import (
    ANY,
    BOOLS,
    FLOATS,
    INTS,
    MOVED,
    NUMERIC,
    SIGNED_INTS,
    VECTOR_ARITHMETIC,
    VECTOR_COMPARABLE,
    VECTOR_FLOATS,
    ArgDef,
    Array,
    Arrays,
    AttrDef,
    Attrs,
    Conversions,
    Family,
    InferFn,
    OpDef,
    Outputs,
    ReferenceFn,
    Traits,
    Types,
    per_element,
)

Formula = Callable[..., Array]  # of the inputs, and the attributes in the order of the row

ONE = 1.5  # the weight of an operator that is an instruction or two


def pointwise_row(
    name: str,
    doc: str,
    args: tuple[ArgDef, ...],
    attrs: tuple[AttrDef, ...],
    infer: InferFn,
    reference: ReferenceFn,
    flops: int,
    traits: Traits,
    **columns: Any,
) -> OpDef:
    """A row whose cost follows from the broadcast rule. `columns`: those of `OpDef` that have defaults."""
    return OpDef(
        name, Family.POINTWISE, doc, args, attrs, infer, reference, per_element(flops), traits=traits, **columns
    )


def _vector(dtypes: frozenset[DType], given: frozenset[DType] | str | None, out: DType | None) -> Conversions | str:
    """The vector engine's column of a uniform row."""
    if isinstance(given, str):
        return given
    chosen = dtypes & VECTOR_ARITHMETIC if given is None else given
    return {d: frozenset({out or d}) for d in chosen}


# Unary.


def _unary(
    name: str,
    doc: str,
    formula: Formula,
    *,
    weight: float = ONE,
    dtypes: frozenset[DType] = FLOATS,
    attrs: tuple[AttrDef, ...] = (),
    out: DType | None = None,
    flops: int = 1,
    vector: frozenset[DType] | str | None = None,
    costly: bool = False,
    domain: tuple[float, float] = (-3.0, 3.0),
    **columns: Any,
) -> OpDef:
    def infer(inputs: Types, attrs: Attrs) -> Outputs:
        x = present(inputs, 0)
        return (TensorType(out or x.dtype, x.shape),)

    def reference(inputs: Arrays, given: Attrs, outputs: Outputs) -> tuple[Array, ...]:
        x, values = present(inputs, 0), [given[a.name] for a in attrs]
        if is_float(x):
            return (np.asarray(formula(to_f64(x), *values)),)
        return (np.asarray(formula(x, *values)).astype(outputs[0].dtype.numpy),)

    traits = Traits(weight=weight, vector=_vector(dtypes, vector, out), costly=costly, domain=domain)
    return pointwise_row(name, doc, (ArgDef("x", dtypes),), attrs, infer, reference, flops, traits, **columns)


def _costly(name: str, doc: str, formula: Formula, weight: float, **columns: Any) -> OpDef:
    return _unary(name, doc, formula, weight=weight, costly=True, **columns)


def _alpha(default: float) -> tuple[AttrDef, ...]:
    return (attr("alpha", default),)


def _elu(x: Array, alpha: float, scale: float = 1.0) -> Array:
    """scale * (x where positive, else alpha * (exp(x) - 1))."""
    result: Array = scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))
    return result


def _celu(x: Array, alpha: float) -> Array:
    result: Array = np.maximum(x, 0.0) + np.minimum(0.0, alpha * np.expm1(x / alpha))
    return result


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    result: Array = np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0.0))
    return result


def _isinf(x: Array, negative: bool, positive: bool) -> Array:
    result: Array = (np.isposinf(x) & positive) | (np.isneginf(x) & negative)
    return result


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0.0, 1.0)


_UNARY = (
    _unary("identity", "x.", lambda x: x, weight=0.0, dtypes=MOVED, flops=0, vector=frozenset(DType), onnx="Identity"),
    _unary("abs", "|x|.", np.abs, dtypes=NUMERIC, onnx="Abs"),
    _unary("neg", "-x.", np.negative, dtypes=FLOATS | SIGNED_INTS, onnx="Neg"),
    _unary("sign", "-1, 0 or 1 by the sign of x.", np.sign, dtypes=NUMERIC, discontinuous=True, onnx="Sign"),
    _unary("square", "x^2.", np.square, dtypes=NUMERIC, torch="square"),
    _unary("relu", "max(x, 0).", lambda x: np.maximum(x, x.dtype.type(0)), dtypes=NUMERIC, onnx="Relu", torch="relu"),
    _unary("floor", "The greatest whole number <= x.", np.floor, discontinuous=True, onnx="Floor"),
    _unary("ceil", "The least whole number >= x.", np.ceil, discontinuous=True, onnx="Ceil"),
    _unary("round", "The nearest whole number, halves to even.", np.rint, discontinuous=True, onnx="Round"),
    _unary("trunc", "x without its fraction.", np.trunc, discontinuous=True),
    _costly("sqrt", "Square root.", np.sqrt, 8.0, domain=(0.0, 9.0), onnx="Sqrt", torch="sqrt"),
    _costly("rsqrt", "1 / sqrt(x).", lambda x: 1.0 / np.sqrt(x), 6.0, flops=2, domain=(0.1, 9.0), torch="rsqrt"),
    _costly("reciprocal", "1 / x.", lambda x: 1.0 / x, 8.0, domain=(0.2, 4.0), onnx="Reciprocal", torch="reciprocal"),
    _costly("exp", "e^x.", np.exp, 22.0, onnx="Exp", torch="exp"),
    _costly("expm1", "e^x - 1, exact near 0.", np.expm1, 22.0, torch="expm1"),
    _costly("log", "Natural logarithm.", np.log, 28.0, domain=(0.05, 9.0), onnx="Log", torch="log"),
    _costly("log1p", "log(1 + x), exact near 0.", np.log1p, 28.0, domain=(-0.9, 9.0), torch="log1p"),
    _costly("sin", "Sine.", np.sin, 40.0, onnx="Sin", torch="sin"),
    _costly("cos", "Cosine.", np.cos, 40.0, onnx="Cos", torch="cos"),
    _costly("tan", "Tangent.", np.tan, 40.0, domain=(-1.4, 1.4), onnx="Tan", torch="tan"),
    _costly("asin", "Inverse sine.", np.arcsin, 28.0, domain=(-1.0, 1.0), onnx="Asin", torch="asin"),
    _costly("acos", "Inverse cosine.", np.arccos, 28.0, domain=(-1.0, 1.0), onnx="Acos", torch="acos"),
    _costly("atan", "Inverse tangent.", np.arctan, 28.0, onnx="Atan", torch="atan"),
    _costly("sinh", "Hyperbolic sine.", np.sinh, 50.0, onnx="Sinh", torch="sinh"),
    _costly("cosh", "Hyperbolic cosine.", np.cosh, 50.0, onnx="Cosh", torch="cosh"),
    _costly("tanh", "Hyperbolic tangent.", np.tanh, 30.0, onnx="Tanh", torch="tanh"),
    _costly("asinh", "Inverse hyperbolic sine.", np.arcsinh, 50.0, onnx="Asinh", torch="asinh"),
    _costly("acosh", "Inverse hyperbolic cosine.", np.arccosh, 50.0, domain=(1.0, 9.0), onnx="Acosh", torch="acosh"),
    _costly("atanh", "Inverse hyperbolic tangent.", np.arctanh, 50.0, domain=(-0.9, 0.9), onnx="Atanh", torch="atanh"),
    _costly("erf", "Error function.", erf, 30.0, onnx="Erf", torch="erf"),
    _costly("sigmoid", "1 / (1 + e^-x).", sigmoid, 30.0, flops=3, onnx="Sigmoid", torch="sigmoid"),
    _unary(
        "hard_swish",
        "x * clip(x / 6 + 1/2, 0, 1).",
        lambda x: x * (np.clip(x + 3.0, 0.0, 6.0) / 6.0),
        flops=4,
        weight=6.0,
        onnx="HardSwish",
        torch="hardswish",
    ),
    _costly(
        "mish", "x * tanh(softplus(x)).", lambda x: x * np.tanh(softplus(x)), 30.0, flops=5, onnx="Mish", torch="mish"
    ),
    _costly("softplus", "log(1 + e^x).", softplus, 50.0, flops=3, onnx="Softplus"),
    _costly("softsign", "x / (1 + |x|).", lambda x: x / (1.0 + np.abs(x)), 8.0, flops=3, onnx="Softsign"),
    _costly("silu", "x * sigmoid(x).", lambda x: x * sigmoid(x), 30.0, flops=4, torch="silu"),
    _unary(
        "leaky_relu",
        "x where positive, else alpha * x.",
        lambda x, alpha: np.where(x >= 0, x, alpha * x),
        attrs=_alpha(0.01),
        flops=2,
        onnx="LeakyRelu",
    ),
    _unary(
        "elu",
        "x where positive, else alpha * (e^x - 1).",
        _elu,
        attrs=_alpha(1.0),
        flops=3,
        costly=True,
        weight=22.0,
        onnx="Elu",
    ),
    _unary(
        "selu",
        "gamma * (x where positive, else alpha * (e^x - 1)).",
        _elu,
        attrs=(attr("alpha", 1.67326319217681884765625), attr("gamma", 1.05070102214813232421875)),
        flops=4,
        costly=True,
        weight=6.0,
        onnx="Selu",
    ),
    _unary(
        "celu",
        "max(x, 0) + min(0, alpha * (e^(x / alpha) - 1)).",
        _celu,
        attrs=_alpha(1.0),
        flops=6,
        costly=True,
        weight=22.0,
        onnx="Celu",
    ),
    _unary(
        "hard_sigmoid",
        "clip(alpha * x + beta, 0, 1).",
        _hard_sigmoid,
        attrs=(attr("alpha", 0.2), attr("beta", 0.5)),
        flops=4,
        weight=6.0,
        onnx="HardSigmoid",
    ),
    _unary(
        "gelu",
        "x * Phi(x), Phi the normal distribution; or its tanh approximation.",
        gelu,
        attrs=(attr("approximate", "none", choices=("none", "tanh")),),
        flops=5,
        costly=True,
        weight=30.0,
        onnx="Gelu",
    ),
    _unary(
        "thresholded_relu",
        "x where x > alpha, else 0, for NaN too.",
        lambda x, alpha: np.where(x > alpha, x, 0.0),
        attrs=_alpha(1.0),
        discontinuous=True,
        onnx="ThresholdedRelu",
    ),
    _unary(
        "shrink",
        "x + bias where x < -lambd, x - bias where x > lambd, else 0, for NaN too.",
        _shrink,
        attrs=(attr("bias", 0.0), attr("lambd", 0.5)),
        flops=3,
        discontinuous=True,
        onnx="Shrink",
    ),
    _unary("logical_not", "not x.", np.logical_not, dtypes=BOOLS, onnx="Not"),
    _unary("bitwise_not", "Every bit flipped.", np.invert, dtypes=INTS, onnx="BitwiseNot"),
    _unary("isnan", "True where x is NaN.", np.isnan, out=DType.BOOL, discontinuous=True, onnx="IsNaN"),
    _unary(
        "isinf",
        "True where x is infinite, of the signs asked for.",
        _isinf,
        attrs=(attr("detect_negative", True), attr("detect_positive", True)),
        out=DType.BOOL,
        discontinuous=True,
        onnx="IsInf",
    ),
)


# Binary.


def _binary(
    name: str,
    doc: str,
    formula: Formula,
    *,
    weight: float = ONE,
    dtypes: frozenset[DType] = NUMERIC,
    integer: Formula | None = None,
    attrs: tuple[AttrDef, ...] = (),
    out: DType | None = None,
    vector: frozenset[DType] | str | None = None,
    constant: str = "",
    costly: bool = False,
    names: tuple[str, str] = ("a", "b"),
    **columns: Any,
) -> OpDef:
    args = (ArgDef(names[0], dtypes), ArgDef(names[1], dtypes))

    def infer(inputs: Types, attrs: Attrs) -> Outputs:
        dtype = require_same_dtype(inputs, args)
        shape = broadcast_shape([present(inputs, 0).shape, present(inputs, 1).shape])
        return (TensorType(out or dtype, shape),)

    def reference(inputs: Arrays, given: Attrs, outputs: Outputs) -> tuple[Array, ...]:
        a, b = present(inputs, 0), present(inputs, 1)
        values = [given[attr.name] for attr in attrs]
        if is_float(a):
            return (np.asarray(formula(to_f64(a), to_f64(b), *values)),)
        return (np.asarray((integer or formula)(a, b, *values)).astype(outputs[0].dtype.numpy),)

    traits = Traits(weight=weight, vector=_vector(dtypes, vector, out), constant=constant, costly=costly)
    return pointwise_row(name, doc, args, attrs, infer, reference, 1, traits, **columns)


_FMOD = (attr("fmod", False, "the remainder takes the sign of a (C's fmod) instead of b's"),)


def _compare(name: str, doc: str, function: Callable[[Array, Array], Array], **columns: Any) -> OpDef:
    return _binary(name, doc, function, out=DType.BOOL, discontinuous=True, **columns)


_ORDERED: dict[str, Any] = {"vector": VECTOR_COMPARABLE - BOOLS}
_EQUAL: dict[str, Any] = {"dtypes": ANY, "vector": VECTOR_COMPARABLE}
_LOGIC: dict[str, Any] = {"dtypes": BOOLS}
_BITS: dict[str, Any] = {"dtypes": INTS}
_SHIFT: dict[str, Any] = {"dtypes": INTS, "constant": "count"}

_BINARY = (
    _binary("add", "a + b.", np.add, commutative=True, onnx="Add"),
    _binary("sub", "a - b.", np.subtract, onnx="Sub"),
    _binary("mul", "a * b.", np.multiply, commutative=True, onnx="Mul"),
    _binary(
        "div",
        "a / b; integers truncate toward zero, a zero divisor gives 0.",
        np.divide,
        integer=int_div,
        weight=8.0,
        costly=True,
        vector=VECTOR_FLOATS,
        onnx="Div",
    ),
    _binary("minimum", "The lesser; NaN if either is.", np.minimum, commutative=True),
    _binary("maximum", "The greater; NaN if either is.", np.maximum, commutative=True),
    _binary(
        "mod",
        "The remainder of a / b; an integer divisor 0 gives 0.",
        lambda a, b, fmod: np.fmod(a, b) if fmod else np.remainder(a, b),
        integer=int_mod,
        attrs=_FMOD,
        weight=20.0,
        costly=True,
        vector="no command divides with a remainder, and a quotient in f32 is too short for an exact one",
        discontinuous=True,
        onnx="Mod",
    ),
    _binary(
        "atan2",
        "The angle of the point (x, y), from -pi to pi; zeros count by their signs.",
        np.arctan2,
        dtypes=FLOATS,
        weight=45.0,
        costly=True,
        names=("y", "x"),
        discontinuous=True,
        torch="atan2",
    ),
    _compare("equal", "a == b.", np.equal, **_EQUAL, onnx="Equal"),
    _compare("not_equal", "a != b.", np.not_equal, **_EQUAL),
    _compare("less", "a < b.", np.less, **_ORDERED, onnx="Less"),
    _compare("less_equal", "a <= b.", np.less_equal, **_ORDERED, onnx="LessOrEqual"),
    _compare("greater", "a > b.", np.greater, **_ORDERED, onnx="Greater"),
    _compare("greater_equal", "a >= b.", np.greater_equal, **_ORDERED, onnx="GreaterOrEqual"),
    _binary("logical_and", "a and b.", np.logical_and, **_LOGIC, commutative=True, onnx="And"),
    _binary("logical_or", "a or b.", np.logical_or, **_LOGIC, commutative=True, onnx="Or"),
    _binary("logical_xor", "a differs from b.", np.logical_xor, **_LOGIC, onnx="Xor"),
    _binary("bitwise_and", "Bits set in both.", np.bitwise_and, **_BITS, onnx="BitwiseAnd"),
    _binary("bitwise_or", "Bits set in either.", np.bitwise_or, **_BITS, onnx="BitwiseOr"),
    _binary("bitwise_xor", "Bits that differ.", np.bitwise_xor, **_BITS, onnx="BitwiseXor"),
    _binary("shift_left", "a * 2^b; all bits out where b < 0 or b >= width.", lambda a, b: shift(a, b, True), **_SHIFT),
    _binary(
        "shift_right",
        "floor(a / 2^b), arithmetic for signed types; all bits out where b < 0 or b >= width.",
        lambda a, b: shift(a, b, False),
        **_SHIFT,
    ),
)


OPS: tuple[OpDef, ...] = (*_UNARY, *_BINARY)
