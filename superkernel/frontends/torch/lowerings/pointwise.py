"""Elementwise operators. torch's type promotion is written out as casts: operands take the type that torch computes
in."""

from __future__ import annotations

import numpy as np

from superkernel.builder.logarithms import logarithm
from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import Number, TorchCall
from superkernel.frontends.torch.registry import lowers
from superkernel.ops.table import op_table

_SAME = {row.torch: row for row in op_table().values() if row.torch}


@lowers(*_SAME)
def same(call: TorchCall) -> Tensor:
    """An operator of the table under torch's name."""
    row = _SAME[call.op]
    return call.emit(row.name, *(call.operand(name) for name in ("self", "other")[: len(row.args)]))


@lowers("ceil", "floor", "round.default", "trunc")
def whole(call: TorchCall) -> Tensor:
    """Integers are left as they are."""
    x = call.operand("self")
    return call.emit(call.op, x) if x.dtype.is_float else x


@lowers("abs")
def magnitude(call: TorchCall) -> Tensor:
    x = call.operand("self")
    return x if x.dtype is DType.BOOL else call.emit("abs", x)


@lowers("sgn", "sign")
def sign(call: TorchCall) -> Tensor:
    """To torch, what is no number has the sign 0."""
    x = call.operand("self")
    if x.dtype is DType.BOOL:
        return x
    if not x.dtype.is_float:
        return call.emit("sign", x)
    zero = call.like(0.0, x)
    return call.emit("where", call.emit("isnan", x), zero, call.emit("sign", x))


@lowers("neg")
def neg(call: TorchCall) -> Tensor:
    x = call.operand("self")
    return call.emit("neg", x) if x.dtype.is_signed else call.emit("sub", call.like(0, x), x)


@lowers("bitwise_not")
def bitwise_not(call: TorchCall) -> Tensor:
    x = call.operand("self")
    return call.emit("logical_not" if x.dtype is DType.BOOL else "bitwise_not", x)


@lowers("round.decimals")
def round_to_decimals(call: TorchCall) -> Tensor:
    x, decimals = call.operand("self"), int(call.get("decimals", 0))
    if not x.dtype.is_float:
        raise call.unsupported("integers cannot be rounded to decimals", found=x.dtype)
    factor = call.like(10.0 ** abs(decimals), x)
    there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
    return call.emit(back, call.emit("round", call.emit(there, x, factor)), factor)


@lowers("exp2")
def exp2(call: TorchCall) -> Tensor:
    x = call.operand("self")
    return call.emit("pow", call.like(2.0, x), x)


@lowers("log2", "log10")
def other_logarithm(call: TorchCall) -> Tensor:
    return logarithm(call, call.operand("self"), 2.0 if call.op == "log2" else 10.0)


@lowers("isnan", "isinf", "isfinite")
def classify(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    if not x.dtype.is_float:
        return call.expand(call.constant(np.asarray(call.op == "isfinite")), x.shape)
    if call.op != "isfinite":
        return call.emit(call.op, x)
    return call.emit("logical_not", call.emit("logical_or", call.emit("isnan", x), call.emit("isinf", x)))


@lowers("logical_not")
def logical_not(call: TorchCall) -> Tensor:
    return call.emit("logical_not", truth(call, call.tensor("self")))


def truth(call: TorchCall, x: Tensor) -> Tensor:
    """Where x is not zero."""
    return x if x.dtype is DType.BOOL else call.emit("not_equal", x, call.like(0, x))


# -- activations


@lowers("gelu")
def gelu(call: TorchCall) -> Tensor:
    return call.emit("gelu", call.tensor("self"), approximate=call.get("approximate", "none"))


@lowers("leaky_relu")
def leaky_relu(call: TorchCall) -> Tensor:
    return call.emit("leaky_relu", call.tensor("self"), alpha=float(call.get("negative_slope", 0.01)))


@lowers("rrelu", "rrelu_with_noise", "rrelu_with_noise_functional")
def random_leaky_relu(call: TorchCall) -> list[Tensor | None]:
    """Outside of training the slope is the middle of what it is drawn from."""
    if call.get("training", False):
        raise call.unsupported("training mode draws random numbers", hint="export after module.eval()")
    slope = (float(call.get("lower", 1 / 8)) + float(call.get("upper", 1 / 3))) / 2
    y = call.emit("leaky_relu", call.tensor("self"), alpha=slope)
    return [y, call.tensor("noise")] if call.op.endswith("functional") else [y]


@lowers("elu")
def elu(call: TorchCall) -> Tensor:
    x, alpha, scale, inner = call.tensor("self"), *(float(call.get(n, 1)) for n in ("alpha", "scale", "input_scale"))
    if inner != 1.0:  # only the negative side is scaled before the exponential
        bent = call.emit("expm1", call.emit("mul", x, call.like(inner, x)))
        bent = call.emit("mul", bent, call.like(alpha, x))
        y = call.emit("where", call.emit("greater", x, call.like(0, x)), x, bent)
    else:
        y = call.emit("elu", x, alpha=alpha)
    return y if scale == 1.0 else call.emit("mul", y, call.like(scale, y))


@lowers("celu")
def celu(call: TorchCall) -> Tensor:
    return call.emit("celu", call.tensor("self"), alpha=float(call.get("alpha", 1)))


@lowers("selu")
def selu(call: TorchCall) -> Tensor:
    return call.emit("selu", call.tensor("self"), alpha=1.6732632423543772, gamma=1.0507009873554805)


@lowers("softplus")
def softplus(call: TorchCall) -> Tensor:
    """Beyond the threshold it is the identity, which is what it rounds to there unless the threshold is low."""
    x, beta, threshold = call.tensor("self"), float(call.get("beta", 1)), float(call.get("threshold", 20))
    scaled = x if beta == 1.0 else call.emit("mul", x, call.like(beta, x))
    y = call.emit("softplus", scaled)
    y = y if beta == 1.0 else call.emit("div", y, call.like(beta, y))
    if threshold >= 20 and x.dtype is not DType.F64:
        return y
    return call.emit("where", call.emit("greater", scaled, call.like(threshold, x)), x, y)


@lowers("log_sigmoid")
def log_sigmoid(call: TorchCall) -> Tensor:
    return call.emit("neg", call.emit("softplus", call.emit("neg", call.tensor("self"))))


@lowers("hardsigmoid")
def hard_sigmoid(call: TorchCall) -> Tensor:
    return call.emit("hard_sigmoid", call.tensor("self"), alpha=1 / 6, beta=0.5)


@lowers("hardtanh", "relu6")
def hard_tanh(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    low, high = (0, 6) if call.op == "relu6" else (call.args["min_val"], call.args["max_val"])
    return call.emit("clip", x, call.like(low, x), call.like(high, x))


@lowers("hardshrink", "softshrink")
def shrink(call: TorchCall) -> Tensor:
    """NaN stays NaN, other than the table's `shrink` of it."""
    x, bound = call.tensor("self"), float(call.get("lambd", 0.5))
    if call.op == "softshrink":
        return call.emit("sub", x, call.emit("clip", x, call.like(-bound, x), call.like(bound, x)))
    inside = call.emit("less_equal", call.emit("abs", x), call.like(bound, x))
    return call.emit("where", inside, call.like(0.0, x), x)


@lowers("threshold")
def threshold(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    below = call.emit("less_equal", x, call.like(call.args["threshold"], x))
    return call.emit("where", below, call.like(call.args["value"], x), x)


@lowers("prelu", "_prelu_kernel")
def prelu(call: TorchCall) -> Tensor:
    x, slope = call.tensor("self"), call.tensor("weight")
    if slope.rank == 1 and x.rank > 2:
        slope = call.reshape(slope, (slope.shape[0],) + (1,) * (x.rank - 2))
    return call.emit("prelu", x, slope)


@lowers("glu")
def glu(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    axis = call.axis("dim", x.rank, -1)
    half = x.shape[axis] // 2
    gate = call.emit("sigmoid", call.slice(x, axis, half, 2 * half))
    return call.emit("mul", call.slice(x, axis, 0, half), gate)


# -- arithmetic


@lowers("add", "sub", "rsub")
def additive(call: TorchCall) -> Tensor:
    a, b, alpha = call.operand("self"), call.operand("other"), call.get("alpha", 1)
    if call.op == "rsub":
        a, b = b, a
        a, b, alpha = (a, b, alpha) if alpha == 1 else (a, call.emit("mul", b, call.like(alpha, b)), 1)
    if alpha != 1:
        b = call.emit("mul", b, call.like(alpha, b))
    if a.dtype is DType.BOOL:
        return call.emit("logical_or", a, b)
    return call.emit("add" if call.op == "add" else "sub", a, b)


@lowers("mul")
def mul(call: TorchCall) -> Tensor:
    kind = call.holding(call.dtype, "self", "other")
    a, b = call.operand("self", kind), call.operand("other", kind)
    return call.cast(call.emit("logical_and" if a.dtype is DType.BOOL else "mul", a, b), call.dtype)


@lowers("div", "true_divide", "divide", "floor_divide")
def div(call: TorchCall) -> Tensor:
    kind = call.holding(call.dtype, "self", "other")
    a, b = call.operand("self", kind), call.operand("other", kind)
    quotient = divided(call, a, b, "floor" if call.op == "floor_divide" else call.get("rounding_mode"))
    return call.cast(quotient, call.dtype)


def divided(call: TorchCall, a: Tensor, b: Tensor, rounding: str | None) -> Tensor:
    """a / b as it is, or rounded ("trunc", "floor")."""
    if rounding is None or (rounding == "trunc" and not a.dtype.is_float):
        return call.emit("div", a, b)
    if a.dtype.is_float and rounding == "trunc":
        return call.emit("trunc", call.emit("div", a, b))
    return _floor_division(call, a, b)


def _floor_division(call: TorchCall, a: Tensor, b: Tensor) -> Tensor:
    """As Python's. With the rest that has the sign of `a`, a - rest is no further from 0 than `a`, so integers do not
    overflow; of floats (a - rest) / b is a whole number up to one rounding, where a / b may round up to the next."""
    zero = call.like(0, a)
    rest = call.emit("mod", a, b, fmod=True)
    whole = call.emit("div", call.emit("sub", a, rest), b)
    if a.dtype.is_float:
        whole = call.emit("round", whole)
    apart = call.emit("not_equal", call.emit("less", b, zero), call.emit("less", rest, zero))
    below = call.emit("logical_and", call.emit("not_equal", rest, zero), apart)
    whole = call.emit("where", below, call.emit("sub", whole, call.like(1, a)), whole)
    if not a.dtype.is_float:
        return whole
    return call.emit("where", call.emit("equal", b, zero), call.emit("div", a, b), whole)


@lowers("remainder", "fmod")
def remainder(call: TorchCall) -> Tensor:
    return call.emit("mod", call.operand("self"), call.operand("other"), fmod=call.op == "fmod")


@lowers("pow")
def power(call: TorchCall) -> Tensor:
    exponent = call.args["exponent"]
    x = call.operand("self")
    simple = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if not isinstance(exponent, Tensor) and exponent in simple and (x.dtype.is_float or exponent == 2):
        return call.emit(simple[exponent], x)
    return call.emit("pow", x, call.operand("exponent"))


@lowers("minimum", "maximum", "min.other", "max.other")
def extremum(call: TorchCall) -> Tensor:
    a, b = call.operand("self"), call.operand("other")
    least = call.op in ("minimum", "min")
    if a.dtype is DType.BOOL:
        return call.emit("logical_and" if least else "logical_or", a, b)
    return call.emit("minimum" if least else "maximum", a, b)


@lowers(*(form.format(word) for form in ("logical_{}", "bitwise_{}", "__{}__") for word in ("and", "or", "xor")))
def logic(call: TorchCall) -> Tensor:
    word = call.op.strip("_").rpartition("_")[2]
    if call.op.startswith("logical"):
        pair = [truth(call, call.tensor(n)) for n in ("self", "other")]
        return call.emit(f"logical_{word}", *pair)
    a, b = call.operand("self"), call.operand("other")
    return call.emit(f"{'logical' if a.dtype is DType.BOOL else 'bitwise'}_{word}", a, b)


@lowers("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
def shift(call: TorchCall) -> Tensor:
    op = "shift_left" if call.op in ("bitwise_left_shift", "__lshift__") else "shift_right"
    return call.emit(op, call.operand("self"), call.operand("other"))


_COMPARE = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


@lowers(*_COMPARE)
def compare(call: TorchCall) -> Tensor:
    kind = call.promoted("self", "other")
    if kind is DType.BOOL and call.op not in ("eq", "ne"):
        kind = DType.U8
    return call.emit(_COMPARE[call.op], call.operand("self", kind), call.operand("other", kind))


# -- choice


@lowers("where")
def where(call: TorchCall) -> Tensor:
    condition = truth(call, call.tensor("condition"))
    return call.emit("where", condition, call.operand("self"), call.operand("other"))


@lowers("masked_fill")
def masked_fill(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    filled = call.emit("where", call.tensor("mask"), call.operand("value"), x)
    return call.expand(filled, call.shape)


@lowers("clamp", "clip", "clamp_min", "clamp_max")
def clamp(call: TorchCall) -> Tensor:
    """Bounds may be tensors of any broadcastable shape, which `clip` does not take."""
    x = call.operand("self")
    low, high = call.args.get("min"), call.args.get("max")
    if any(isinstance(b, Tensor) for b in (low, high)):
        if low is not None:
            x = call.emit("maximum", x, call.typed(low, x.dtype))
        return x if high is None else call.emit("minimum", x, call.typed(high, x.dtype))
    return call.emit("clip", x, *(None if b is None else _bound(call, b, x.dtype) for b in (low, high)))


def _bound(call: TorchCall, number: Number, dtype: DType) -> Tensor:
    """A bound in the element type; beyond its range the nearest value in it."""
    if not dtype.is_float:
        limits = np.iinfo(dtype.numpy)
        number = min(max(number, limits.min), limits.max)
    return call.typed(number, dtype)
