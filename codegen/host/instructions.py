"""How each pointwise operator becomes vector code: operator name -> formula.

Model: a function of `vecmath` that has an operator's name is its formula; the others are here. A formula gets a
`Context` (the instruction, its operands' dtypes, the constants among them) and its operands as `Expr`s in compute form,
and returns the result in compute form of the instruction's dtype. Operand values that the mathematics leaves open are
defined here and never trap: integer division or remainder by zero gives 0, the smallest integer divided by -1 wraps to
itself, a shift by the width or more (or by a negative count) shifts everything out, an integer to a negative power is 0
unless the base is 1 or -1. Minimum, maximum, relu and clip keep NaN. The floating-point remainder is exact for
quotients below 2^52 (f32 with FMA: below 2^80).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superkernel.codegen.host import vecmath
from superkernel.codegen.host.builder import KernelBuilder, compute_dtype, storage_type, vector_type
from superkernel.codegen.host.convert import convert, float_to_integer
from superkernel.codegen.host.requantise import dequantised, requantise
from superkernel.codegen.host.small import opened
from superkernel.codegen.host.vecexpr import Expr, rounded
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Instruction
from superkernel.ops.opdef import AttrValue
from superkernel.ops.table import find_op


@dataclass(slots=True)
class Context:
    """What a formula may ask about its instruction."""

    kb: KernelBuilder
    op: str
    dtype: DType  # of the result
    attrs: dict[str, AttrValue]
    dtypes: tuple[DType | None, ...]  # of the operands; None where absent
    constants: tuple[AttrValue, ...]  # the operand's number where it is a `constant`, else None

    def number(self, name: str) -> float:
        """An attribute as a float; InternalError where it is no number."""
        value = self.attrs[name]
        if not isinstance(value, (int, float)):
            raise InternalError(f"attribute {name!r} is not a number", location=self.op, found=value)
        return float(value)

    def signed(self) -> bool:
        """Whether the first operand is compared and divided as signed."""
        first = self.dtypes[0]
        return first is not None and first.is_signed

    def math(self, name: str, *args: Expr) -> Expr:
        """A function of `vecmath`, element by element."""
        return Expr(self.kb, vecmath.apply(self.kb, name, *(a.v for a in args)))

    def scale_and_zero(self) -> tuple[float, int] | None:
        """Those of a quantisation, where they are constants."""
        known = [n for n in self.constants[1:] if isinstance(n, (int, float))]
        if not known or len(known) < len(self.constants) - 1:
            return None
        return float(known[0]), int(known[1]) if len(known) > 1 else 0

    def fused(self) -> bool:
        """Whether multiply-adds round once."""
        return self.kb.fuses

    def convert(self, x: Expr, source: DType | None, target: DType, saturate: bool = True) -> Expr:
        """`x`, which holds a `source`, as a `target`; InternalError where the operand is absent."""
        if source is None:
            raise InternalError("conversion of an absent operand", location=self.op)
        return Expr(self.kb, convert(self.kb, x.v, source, target, saturate))


Formula = Callable[..., Expr]


def emit_instruction(
    kb: KernelBuilder,
    instruction: Instruction,
    operands: Sequence[Expr | None],
    dtypes: Sequence[DType | None],
    constants: Sequence[AttrValue],
) -> Expr:
    """Vector code of one instruction. Raises InternalError for an operator without a formula."""
    formula = FORMULAS.get(instruction.op)
    if formula is None:
        raise InternalError("pointwise operator without a formula", location=instruction.op)
    context = Context(kb, instruction.op, instruction.dtype, dict(instruction.attrs), tuple(dtypes), tuple(constants))
    return formula(context, *operands)


# Arithmetic -----------------------------------------------------------------------------------------------------------


def _division(c: Context, a: Expr, b: Expr) -> Expr:
    if a.is_float:
        return a / b
    quotient = _quotient(c, a, b)
    return b.equals(0).choose(quotient.const(0), quotient)


def _quotient(c: Context, a: Expr, b: Expr) -> Expr:
    """Integer quotient towards zero; some value, but no trap, where b is 0. Up to 32 bits through floating point,
    which is exact."""
    signed, width = c.signed(), a.element.width
    if width < 64:
        double = width == 32
        q = a.to_float(double, signed) / b.equals(0).choose(b.const(1), b).to_float(double, signed)
        return q.to_int(64 if double else 32).to_int(width)
    unsafe = b.equals(0)
    if signed:
        unsafe = unsafe | (b.equals(-1) & a.equals(-(1 << 63)))
    safe = unsafe.choose(b.const(1), b)
    return a.new((c.kb.b.sdiv if signed else c.kb.b.udiv)(a.v, safe.v))


def _modulo(c: Context, a: Expr, b: Expr) -> Expr:
    if a.is_float:
        return _float_modulo(c, a, b)
    r = a - _quotient(c, a, b) * b
    if c.signed() and not c.attrs.get("fmod", False):
        wrong_side = r.compare("!=", 0) & ((r ^ b) < 0)
        r = wrong_side.choose(r + b, r)
    return b.equals(0).choose(r.const(0), r)


def _float_modulo(c: Context, a: Expr, b: Expr) -> Expr:
    """Subtract the divisor trunc(a/b) times; in f64, where the error of a huge quotient takes a second and third
    round."""
    x, y = a.to_float(True).abs(), b.to_float(True).abs()
    r = x
    for _ in range(1 if a.is_double else 2):
        q = rounded(r / y, "trunc")
        r = (-q).fma(y, r).abs() if a.is_double else (-q).fma(y, r)
    r = (r < 0.0).choose(r + y, r)
    r = (r >= y).choose(r - y, r)
    r = (x < y).choose(x, r)
    value = r.to_float(a.is_double).copysign(a)
    if not c.attrs.get("fmod", False):
        wrong_side = value.compare("!=", 0.0) & ((value.bits() ^ b.bits()) < 0)
        value = wrong_side.choose(value + b, value)
        value = value.equals(0.0).choose(value.copysign(b), value)
    return value


def _clip(c: Context, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    for op, bound in ((">", low), ("<", high)):
        if bound is not None:
            best = bound.compare(op, x, c.signed()).choose(bound, x)
            x = bound.is_nan().choose(bound, best) if x.is_float else best
    return x


def _sign(c: Context, x: Expr) -> Expr:
    if x.is_float:
        return ((x < 0.0) | (x > 0.0)).choose(x.const(1.0).copysign(x), x + 0.0)  # of -0 it is 0
    if not c.signed():
        return x.compare("!=", 0).choose(x.const(1), x.const(0))
    return (x > 0).choose(x.const(1), x.sar(x.element.width - 1))


_EXPONENTS_BEYOND_F32 = frozenset({DType.F64, DType.I64, DType.I32, DType.U64, DType.U32})


def _power(c: Context, a: Expr, b: Expr) -> Expr:
    first, second = c.dtypes
    fixed = c.constants[1]
    special = _FIXED_FLOAT_POWERS if a.is_float else _FIXED_POWERS
    if isinstance(fixed, (int, float)) and fixed in special:
        return special[fixed](a)
    if a.is_float:
        work = compute_dtype(c.dtype)
        if work is DType.F32 and second is not None and second in _EXPONENTS_BEYOND_F32:
            work = DType.F64
        power = c.math("pow", c.convert(a, compute_dtype(c.dtype), work), c.convert(b, second, work))
        return c.convert(power, work, compute_dtype(c.dtype))
    if second is not None and second.is_float:
        exponent = c.convert(b, second, DType.F64)
        wide = c.math("pow", c.convert(a, first, DType.F64), exponent)
        # A whole power of a whole number is whole: the last bits of the logarithm must not truncate 729 to 728.
        whole = exponent.equals(rounded(exponent, "floor")) & (exponent >= 0.0)
        return float_to_integer(whole.choose(rounded(wide, "roundeven"), wide), c.dtype)
    return _integer_power(c, a, c.convert(b, second, c.dtype))


def _root(a: Expr) -> Expr:
    """pow(a, 1/2): of -0 it is +0 and of -infinity +infinity, other than sqrt."""
    root = (a + 0.0).sqrt()
    return a.equals(float("-inf")).choose(a.const(float("inf")), root)


def _fourth_power(a: Expr) -> Expr:
    square = a * a
    return square * square


_FIXED_POWERS: dict[float, Callable[[Expr], Expr]] = {1: lambda a: a, 2: lambda a: a * a, 3: lambda a: a * a * a}
_FIXED_FLOAT_POWERS: dict[float, Callable[[Expr], Expr]] = {
    **_FIXED_POWERS,
    4: _fourth_power,
    -1: lambda a: 1.0 / a,
    -2: lambda a: 1.0 / (a * a),
    0.5: _root,
    -0.5: lambda a: 1.0 / _root(a),
}
"""Powers cheaper than by logarithm, with pow's results for every base."""


def _integer_power(c: Context, a: Expr, b: Expr) -> Expr:
    """Square and multiply over the exponent's bits, modulo 2^width."""
    kb, width = c.kb, a.element.width
    product, base, rest = (kb.carry(a.v.type, v.v) for v in (a.const(1), a, b))
    with kb.loop(0, width, name="bit"):
        e, factor, so_far = Expr(kb, rest.get()), Expr(kb, base.get()), Expr(kb, product.get())
        product.set((e & 1).compare("!=", 0).choose(so_far * factor, so_far).v)
        base.set((factor * factor).v)
        rest.set(e.shr(1).v)
    value = Expr(kb, product.get())
    if not (c.dtypes[1] is not None and c.dtypes[1].is_signed and c.signed()):
        return value
    unit = a.equals(1) | a.equals(-1)  # the loop has taken b modulo 2^width: its parity is right
    return ((b < 0) & unit.invert()).choose(value.const(0), value)


# Bits and logic -------------------------------------------------------------------------------------------------------


def _shift_left(c: Context, a: Expr, b: Expr) -> Expr:
    width = a.element.width
    inside = b.compare("<", width, signed=False)
    return inside.choose(a << inside.choose(b, b.const(0)), a.const(0))


def _shift_right(c: Context, a: Expr, b: Expr) -> Expr:
    width = a.element.width
    inside = b.compare("<", width, signed=False)
    if c.signed():
        return a.sar(inside.choose(b, b.const(width - 1)))
    return inside.choose(a.shr(inside.choose(b, b.const(0))), a.const(0))


def _isinf(c: Context, x: Expr) -> Expr:
    infinity = float("inf")
    positive, negative = bool(c.attrs.get("detect_positive", True)), bool(c.attrs.get("detect_negative", True))
    if positive and negative:
        return x.abs().equals(infinity)
    if positive or negative:
        return x.equals(infinity if positive else -infinity)
    return x.compare("<", x)


# Activations ----------------------------------------------------------------------------------------------------------


def _gelu(c: Context, x: Expr) -> Expr:
    if c.attrs.get("approximate", "none") != "tanh":
        return c.math("gelu", x)
    u = x * (x * x).fma(2 * math.sqrt(2 / math.pi) * 0.044715, 2 * math.sqrt(2 / math.pi))
    return x * c.math("sigmoid", u)  # (1 + tanh u)/2 is sigmoid(2u): no cancellation on the negative side


def _softplus(c: Context, x: Expr) -> Expr:
    return x.clamp_low(0.0) + c.math("log1p", c.math("exp", -x.abs()))


def _mish(c: Context, x: Expr) -> Expr:
    """tanh(log(1 + e)) is w / (w + 2) with w = e^2 + 2e."""
    e = c.math("exp", x.clamp_high(20.0))
    w = e * (e + 2.0)
    return (x > 20.0).choose(x, x * (w / (w + 2.0)))


def _celu(c: Context, x: Expr) -> Expr:
    alpha = c.number("alpha")
    return (x < 0.0).choose(c.math("expm1", x / alpha) * alpha, x)


def _selu(c: Context, x: Expr) -> Expr:
    alpha, gamma = c.number("alpha"), c.number("gamma")
    return (x < 0.0).choose(c.math("expm1", x) * (alpha * gamma), x * gamma)


def _shrink(c: Context, x: Expr) -> Expr:
    bias, limit = c.number("bias"), c.number("lambd")
    return (x < -limit).choose(x + bias, (x > limit).choose(x - bias, x.const(0.0)))


# Quantisation ---------------------------------------------------------------------------------------------------------


def _quantize(c: Context, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
    first, second, third = (*c.dtypes, None, None)[:3]
    known = c.scale_and_zero()
    if first is DType.F32 and second is DType.F32 and known is not None and c.fused():
        codes = requantise(x, *known, c.dtype)
        if codes is not None:
            return codes
    double = c.dtype.itemsize == 4
    work = DType.F64 if double or first is DType.F64 else DType.F32
    value = rounded(c.convert(x, first, work) / c.convert(scale, second, work), "roundeven")
    if zero is not None:
        value = value + c.convert(zero, third, work)
    low, high = c.dtype.limits
    value = value.is_nan().choose(value.const(0.0), value).clamp_low(float(low)).clamp_high(float(high))
    return float_to_integer(value, c.dtype)


def _cast(c: Context, x: Expr) -> Expr:
    source, target, saturate = c.dtypes[0], c.dtype, bool(c.attrs.get("saturate", True))
    if source is not None and source.is_small and source is not target:
        x, source = opened(x, source)
    if not x.is_float or target.is_float or target in (DType.BOOL, DType.I64) or saturate:
        return c.convert(x, source, target, saturate)
    wrapped = c.convert(c.convert(x, source, DType.I64), DType.I64, target)
    return (x < 0.0).choose(wrapped, c.convert(x, source, target)) if target is DType.U64 else wrapped


def _bitcast(c: Context, x: Expr) -> Expr:
    """As bits lie in memory."""
    first, target = c.dtypes[0], c.dtype
    if first is None:
        raise InternalError("bits of an absent operand", location=c.op)
    raw = c.kb.narrow(x.v, first)
    return Expr(c.kb, c.kb.widen(c.kb.b.bitcast(raw, vector_type(storage_type(target), x.lanes)), target))


def _dequantize(c: Context, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
    first, second, third = (*c.dtypes, None, None)[:3]
    known = c.scale_and_zero()
    if c.dtype is DType.F32 and second is DType.F32 and known is not None:
        value = dequantised(x, *known)
        if value is not None:
            return value
    work = DType.F64 if c.dtype is DType.F64 else DType.F32
    if zero is not None and first is not None and first.is_integer:
        wide = DType.I32 if first.itemsize < 4 else DType.I64
        x, first = c.convert(x, first, wide) - c.convert(zero, third, wide), wide
    return c.convert(x, first, work) * c.convert(scale, second, work)


_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc"}

FORMULAS: dict[str, Formula] = {
    **{name: lambda c, *operands, name=name: c.math(name, *operands) for name in vecmath.FUNCTIONS if find_op(name)},
    **{name: lambda c, x, mode=mode: rounded(x, mode) if x.is_float else x for name, mode in _ROUNDINGS.items()},
    **{name: lambda c, a, b, op=op: a.compare(op, b, c.signed()) for name, op in _COMPARISONS.items()},
    "identity": lambda c, x: x,
    "abs": lambda c, x: x.abs() if x.is_float or c.signed() else x,
    "neg": lambda c, x: -x,
    "sign": _sign,
    "sqrt": lambda c, x: x.sqrt(),
    "rsqrt": lambda c, x: 1.0 / x.sqrt(),
    "reciprocal": lambda c, x: 1.0 / x,
    "square": lambda c, x: x * x,
    "relu": lambda c, x: x.compare("<", 0, c.signed()).choose(x.const(0), x),
    "leaky_relu": lambda c, x: (x < 0.0).choose(x * c.number("alpha"), x),
    "elu": lambda c, x: (x < 0.0).choose(c.math("expm1", x) * c.number("alpha"), x),
    "selu": _selu,
    "celu": _celu,
    "hard_sigmoid": lambda c, x: x.fma(c.number("alpha"), c.number("beta")).clamp_low(0.0).clamp_high(1.0),
    "hard_swish": lambda c, x: x * ((x + 3.0).clamp_low(0.0).clamp_high(6.0) * (1 / 6)),  # x + 3 is exact near -3
    "mish": _mish,
    "softplus": _softplus,
    "softsign": lambda c, x: x / (x.abs() + 1.0),
    "silu": lambda c, x: x * c.math("sigmoid", x),
    "gelu": _gelu,
    "thresholded_relu": lambda c, x: (x > c.number("alpha")).choose(x, x.const(0.0)),
    "shrink": _shrink,
    "logical_not": lambda c, x: x.invert(),
    "bitwise_not": lambda c, x: x.invert(),
    "isnan": lambda c, x: x.is_nan(),
    "isinf": _isinf,
    "cast": _cast,
    "bitcast": _bitcast,
    "add": lambda c, a, b: a + b,
    "sub": lambda c, a, b: a - b,
    "mul": lambda c, a, b: a * b,
    "div": _division,
    "pow": _power,
    "minimum": lambda c, a, b: a.extreme("<", b, c.signed()),
    "maximum": lambda c, a, b: a.extreme(">", b, c.signed()),
    "mod": _modulo,
    "prelu": lambda c, x, slope: x.compare("<", 0, c.signed()).choose(x * slope, x),
    **{name: lambda c, a, b: a & b for name in ("logical_and", "bitwise_and")},
    **{name: lambda c, a, b: a | b for name in ("logical_or", "bitwise_or")},
    **{name: lambda c, a, b: a ^ b for name in ("logical_xor", "bitwise_xor")},
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "where": lambda c, condition, a, b: condition.choose(a, b),
    "clip": _clip,
    "quantize": _quantize,
    "dequantize": _dequantize,
}
