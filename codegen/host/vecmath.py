"""Elementary functions on explicit vectors of f32 and f64: exp, log, tanh, erf and what is built from them.

Model: every function takes a value (scalar or vector of float/double) and returns one of the same type, NaN for NaN,
with the limits and signed zeros of the C library. No tables, no branches, no library calls: range reduction, a
minimax polynomial, reassembly by exponent bits. `apply(kb, name, *args)` is the entry; each function becomes one
(inlined) function of the module per type.

Largest errors in units in the last place, f32 and f64 alike, on tiers with FMA (one more without), asserted by tests
over dense samples: log 1, exp 1.5, expm1 and log1p 2, sigmoid 2.5, tan 5, gelu 3 above -1 (5e-8 below), all others 3.
Powers of f32 are computed in f64 and within 1; powers of f64 are within 1.5, but carry some 2^-57 times the exponent
besides, 45 ulp where it is in the hundreds, and whole powers of 2 are exact. Denormal arguments and results are treated
as any other number. sin, cos and tan keep this up to |x| = 2^30, lose accuracy gradually beyond and give NaN from 2^50
on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.host import vecmath_data as data
from superkernel.codegen.host import vectrig
from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.vecexpr import Expr, outlined, polynomial, rounded

# exp ------------------------------------------------------------------------------------------------------------------


def _magic(x: Expr) -> float:
    """Adding it rounds to an integer that then stands in the lowest bits."""
    return 1.5 * 2.0**52 if x.is_double else 1.5 * 2.0**23


def _exp_reduce(x: Expr, low_part: Expr | None = None) -> tuple[Expr, Expr, Expr]:
    """(t, n, q): n = round(x / ln 2), t the magic sum that holds n in its low bits, q = expm1(x - n ln 2), of x and a
    low part that x cannot hold."""
    magic = _magic(x)
    t = x.fma(data.LOG2E, magic)
    n = t - magic
    high, low = data.LN2_F64 if x.is_double else data.LN2_F32
    r = n.fma(-low, n.fma(-high, x))
    r = r if low_part is None else r + low_part
    p = polynomial(r, data.EXP_F64 if x.is_double else data.EXP_F32)
    return t, n, (r * r).fma(p, r)


def _power_of_two(n: Expr, is_double: bool) -> Expr:
    """2^n for the n in the low bits of integers (of a magic sum's bits, too); n must give a normal number."""
    shift, bias = (52, 1023) if is_double else (23, 127)
    return ((n + bias) << shift).as_float()


def exp_scaled(x: Expr, halvings: int = 0) -> Expr:
    """exp(x) / 2^halvings over the whole range, gradual underflow and overflow to infinity included."""
    return _exp_up_to(x.clamp_high(711.5 if x.is_double else 90.0), halvings)


def _exp_up_to(x: Expr, halvings: int = 0, low_part: Expr | None = None) -> Expr:
    """exp_scaled of x that is no further above 0 than where the result overflows."""
    t, n, q = _exp_reduce(x.clamp_low(-746.0 if x.is_double else -104.5), low_part)
    if x.has_scale:
        return (q + 1.0).scale(n - float(halvings) if halvings else n)
    whole = t.bits() - t.const(_magic(x)).bits() - halvings
    half = whole.sar(1)
    first = _power_of_two(half, x.is_double)
    second = _power_of_two(whole - half, x.is_double)
    return first.fma(q, first) * second


def exp(x: Expr) -> Expr:
    """e^x; 0 and infinity where that underflows or overflows."""
    return exp_scaled(x)


def exp_moderate(x: Expr) -> Expr:
    """exp(x) where the caller knows that the result is neither denormal nor infinite: one scaling less."""
    t, _, q = _exp_reduce(x)
    scale = _power_of_two(t.bits(), x.is_double)
    return scale.fma(q, scale)


def expm1(x: Expr) -> Expr:
    """e^x - 1 without cancellation near 0."""
    low, high = (-40.0, 710.0) if x.is_double else (-20.0, 89.0)
    bounded = x.clamp_low(low).clamp_high(high)
    t, _, q = _exp_reduce(bounded)
    scale = _power_of_two((t - 1.0).bits(), x.is_double)  # 2^(n-1): 2^n itself may overflow where the result does not
    value = scale.fma(q, scale - 0.5) * 2.0
    tiny = x.const(2.0**-60 if x.is_double else 2.0**-30)
    return (x.abs() < tiny).choose(x, value)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), from e^-abs(x), which cannot overflow."""
    e = _exp_up_to(-x.abs())
    return (x < 0.0).choose(e, e.const(1.0)) / (e + 1.0)


def tanh(x: Expr) -> Expr:
    """expm1(2|x|) / (expm1(2|x|) + 2): no cancellation anywhere, one division."""
    size = x.abs().clamp_high(20.0 if x.is_double else 9.5)
    t, _, q = _exp_reduce(size + size)
    scale = _power_of_two(t.bits(), x.is_double)
    e = scale.fma(q, scale - 1.0)
    return (e / (e + 2.0)).copysign(x)


def sinh(x: Expr) -> Expr:
    """From expm1 below 1, where e^x - e^-x would cancel."""
    size = x.abs()
    e = expm1(size.clamp_high(1.0))
    near = (e + e / (e + 1.0)) * 0.5
    big = exp_scaled(size, halvings=1)
    return (size < 1.0).choose(near, big - 0.25 / big).copysign(x)


def cosh(x: Expr) -> Expr:
    """From e^abs(x) / 2, which overflows where the result does and not before."""
    big = exp_scaled(x.abs(), halvings=1)
    return big + 0.25 / big


# log ------------------------------------------------------------------------------------------------------------------


def _split_exponent(x: Expr) -> tuple[Expr, Expr]:
    """(e, m): x = m * 2^e with sqrt(1/2) <= m < sqrt(2), for positive normal x; e as a float."""
    shift, middle = (52, 0x3FE6A09E667F3BCD) if x.is_double else (23, 0x3F3504F3)
    bits = x.bits()
    e = (bits - middle).sar(shift)
    return e.to_float(x.is_double), (bits - (e << shift)).as_float()


def _log_assemble(e: Expr, f: Expr) -> Expr:
    """e ln 2 + log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    if f.is_double:
        high, low = data.LN2_F64
        s = f / (f + 2.0)
        z = s * s
        half = f * f * 0.5
        tail = s.fma(half + z * polynomial(z, data.LOG_F64), e * low) - half
        return e.fma(high, f + tail) if f.kb.cpu.tier != "plain" else e * high + (f + tail)
    high, low = data.LN2_F32
    square = f * f
    tail = (square * f).fma(polynomial(f, data.LOG_F32), square.fma(-0.5, e * low))
    return e.fma(high, f + tail)


def _log_limits(x: Expr, value: Expr) -> Expr:
    """Infinity and NaN pass; 0 gives -infinity, below NaN."""
    value = (x < float("inf")).choose(value, x)
    value = x.equals(0.0).choose(x.const(float("-inf")), value)
    return (x < 0.0).choose(x.const(float("nan")), value)


def log(x: Expr) -> Expr:
    """The natural logarithm, denormal numbers included; -inf at 0, NaN below."""
    smallest, factor = (2.0**-1022, 54.0) if x.is_double else (2.0**-126, 25.0)
    denormal = x < smallest
    e, m = _split_exponent(denormal.choose(x * 2.0**factor, x))
    e = e - denormal.choose(x.const(factor), x.const(0.0))
    return _log_limits(x, _log_assemble(e, m - 1.0))


def _product_error(a: Expr, b: Expr, product: Expr) -> Expr:
    """a b less the product as it was rounded, of f64."""
    if a.kb.fuses:
        return a.fma(b, -product)
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return (a_high * b_high - product) + a_high * b_low + a_low * b_high + a_low * b_low


def _halves(x: Expr) -> tuple[Expr, Expr]:
    """f64 as a sum of two whose products are exact (Dekker)."""
    spread = x * (2.0**27 + 1)
    high = spread - (spread - x)
    return high, x - high


def _log_in_two(x: Expr) -> tuple[Expr, Expr]:
    """The logarithm of f64 as a sum: its own 53 bits, and what they leave out to some 2^-58."""
    denormal = x < 2.0**-1022
    e, m = _split_exponent(denormal.choose(x * 2.0**54, x))
    e = e - denormal.choose(x.const(54.0), x.const(0.0))
    f = m - 1.0
    high, low = data.LN2_F64
    s = f / (f + 2.0)
    z = s * s
    square = f * f
    half, half_low = square * 0.5, _product_error(f, f, square) * 0.5
    near = f - half
    rest = (f - near) - half + s.fma(half + z * polynomial(z, data.LOG_F64), e.fma(low, -half_low))
    whole = e * high  # exact
    total = whole + near
    rest = rest + ((whole - total) + near)
    value = total + rest
    lost = (total - value) + rest
    limited = _log_limits(x, value)
    return limited, (limited.abs() < float("inf")).choose(lost, x.const(0.0))


def log1p(x: Expr) -> Expr:
    """log of u = 1 + x rounded, with what the rounding lost put back into the fraction."""
    u = x + 1.0
    lost = (x.abs() < 1.0).choose(x - (u - 1.0), 1.0 - (u - x))
    e, m = _split_exponent(u)
    shift, bias = (52, 1023) if x.is_double else (23, 127)
    exponent = e.clamp_high(100.0).to_int(64 if x.is_double else 32)  # u is far above its lost part there
    unscale = ((bias - exponent) << shift).as_float()
    f = e.equals(0.0).choose(x, lost.fma(unscale, m - 1.0))
    value = _log_limits(u, _log_assemble(e, f))
    return x.equals(0.0).choose(x, value)


def asinh(x: Expr) -> Expr:
    """From log1p; beyond what a square can hold, from log."""
    size = x.abs()
    limit = 2.0**28 if x.is_double else 2.0**14
    square = size * size
    near = log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    far = log(size) + data.LN2
    return (size > limit).choose(far, near).copysign(x)


def acosh(x: Expr) -> Expr:
    """From log1p of x - 1; NaN below 1."""
    limit = 2.0**28 if x.is_double else 2.0**14
    t = x - 1.0
    near = log1p(t + t.fma(t, t + t).sqrt())
    value = (x > limit).choose(log(x) + data.LN2, near)
    return (x < 1.0).choose(x.const(float("nan")), value)


def atanh(x: Expr) -> Expr:
    """From log1p of 2x / (1 - x); infinite at -1 and 1, NaN outside."""
    size = x.abs()
    return (log1p((size + size) / (1.0 - size)) * 0.5).copysign(x)


# erf ------------------------------------------------------------------------------------------------------------------


def erf(x: Expr) -> Expr:
    """A polynomial near 0, from erfc's beyond."""
    size = x.abs()
    z = size * size
    if x.is_double:
        small = size * polynomial(z, data.ERF_SMALL_F64)
        a = size.clamp_high(6.0)
        complement = exp_moderate(-(a * a)) * polynomial((a - 2.0) / (a + 2.0), data.ERFCX_F64)
    else:
        small = size * polynomial(z, data.ERF_SMALL_F32)
        complement = exp_moderate(-polynomial(size.clamp_high(4.0), data.ERFC_LOG_F32))
    return (size < 1.0).choose(small, 1.0 - complement).copysign(x)


def gelu(x: Expr) -> Expr:
    """x times the normal distribution up to x. Of f32 without cancellation: max(x, 0) less what |x| times the tail
    beyond |x| is, half of erfc(|x| / sqrt(2))."""
    if x.is_double:
        half = x * 0.5
        return half.fma(erf(x * math.sqrt(0.5)), half)
    below = (-x.abs()).clamp_low(-14.4)  # the tail is 0 there
    erfc = _exp_up_to(below * polynomial(below, data.GELU_LOG_F32))
    return (x.clamp_high(below) * 0.5).fma(erfc, x.clamp_low(0.0))


# pow ------------------------------------------------------------------------------------------------------------------


def power(x: Expr, y: Expr) -> Expr:
    """x^y as C's pow; f32 through f64, f64 with a logarithm in two parts."""
    if not x.is_double:
        x, y = x.to_float(True), y.to_float(True)
        size = x.abs()
        return _signed_power(x, y, size, exp(y * log(size))).to_float(False)
    size = x.abs()
    logarithm, rest = _log_in_two(size)
    product = y * logarithm
    low_part = _product_error(y, logarithm, product) + y * rest
    low_part = (low_part.abs() < 1.0).choose(low_part, product.const(0.0))  # where the product is infinite it is NaN
    return _signed_power(x, y, size, _exp_up_to(product.clamp_high(711.5), low_part=low_part))


def _signed_power(x: Expr, y: Expr, size: Expr, value: Expr) -> Expr:
    """x^y of f64, of which `size` is |x| and `value` |x|^y but where that is 1 by definition."""
    whole = rounded(y, "trunc")
    half = whole * 0.5
    integral = whole.equals(y)
    odd = integral & (rounded(half, "trunc").compare("!=", half))
    negative = x.bits() < 0
    value = (negative & odd).choose(-value, value)
    infinite = y.abs().equals(float("inf"))
    undefined = (x < 0.0) & (size < float("inf")) & integral.invert() & infinite.invert()
    value = undefined.choose(x.const(float("nan")), value)
    one = x.equals(1.0) | y.equals(0.0) | (size.equals(1.0) & infinite)
    return one.choose(x.const(1.0), value)


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **{
        f.__name__: f
        for f in (exp, exp_moderate, expm1, log, log1p, sigmoid, tanh, sinh, cosh, asinh, acosh, atanh, erf, gelu)
    },
    "pow": power,
    **vectrig.FUNCTIONS,
}


def apply(kb: KernelBuilder, name: str, *args: ir.Value) -> ir.Value:
    """The elementary function `name` of values in f32 or f64 (scalars or vectors of equal type)."""
    return outlined(kb, name, FUNCTIONS[name], *args)
