"""Functions that the vector engine has no command for, composed from those it has, in f32.

Errors are absolute, or relative where the result is above 1, as far as the text does not say otherwise; exp and ln of
the engine are within an ulp.

    normal distribution   a sigmoid of an odd polynomial: 7e-8 (degree 13), 3.1e-5 (degree 5, for f16 results)
    tanh, erf             1 - 2 / (e^y + 1): 2e-7 (erf for f16 results 6.2e-5)
    expm1, log1p          a polynomial near 0, so relative 1e-6
    sin, cos, tan         a quarter turn is taken off in three parts: 3e-7 up to |x| = 1e5, growing with |x| beyond
    asin, acos, atan      2e-7 from two reductions and a polynomial; atan2 4e-7
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore.lowering import Const, ProgramLowering

F32, I32 = DType.F32, DType.I32
Function = Callable[..., int]  # of the lowering and registers of f32

# logit(Phi(x)) / x as polynomials in x^2, fitted for the least greatest error of max(1, |x|) Phi(x).
PHI = (
    1.5957690617202245, 0.07266759375786569, -6.572204972566847e-05, -0.00011061823947003845, 7.955725501526552e-06,
    -2.6794708477571624e-07, 3.6349966644625786e-09,
)  # fmt: skip
PHI_SHORT = (1.5952551983306635, 0.0738510861327246, -0.0006823486934844169)
PHI_SHORT_LIMIT = 30.0  # of x^2: beyond it the short polynomial turns down, and Phi is 0 or 1
GELU_TANH = (2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715)
ATAN = (1.0, -0.333329491539, 0.199777106478, -0.138776856032, 8.05374449538e-2)  # |x| <= tan(pi / 8)
SIN = (1.0, -1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)  # |x| <= pi / 4
COS = (1.0, -0.5, 4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
HALF_PI_PARTS = (1.5703125, 4.837512969970703e-4, 7.549789948768648e-8)


def polynomial(e: ProgramLowering, x: int, factors: Sequence[float]) -> int:
    """factors[0] + factors[1] x + ..."""
    total = e.scalar("v_adds", e.scalar("v_muls", x, factors[-1]), factors[-2])
    for factor in reversed(factors[:-2]):
        total = e.scalar("v_adds", e.binary("v_mul", total, x), factor)
    return total


def odd(e: ProgramLowering, x: int, factors: Sequence[float], limit: float = math.inf) -> int:
    """x times a polynomial in x^2 (at most `limit`)."""
    square = e.binary("v_mul", x, x)
    if limit < math.inf:
        square = e.scalar("v_mins", square, limit)
    return e.binary("v_mul", polynomial(e, square, factors), x)


def exp_of_negated(e: ProgramLowering, x: int) -> int:
    """e^-x."""
    return e.unary("v_exp", e.scalar("v_muls", x, -1.0))


def over_one_plus_exp(e: ProgramLowering, x: int, power: int) -> int:
    """x / (1 + e^power)."""
    return e.binary("v_div", x, e.scalar("v_adds", e.unary("v_exp", power), 1.0))


def sigmoid(e: ProgramLowering, x: int) -> int:
    """1 / (1 + e^-x); where that overflows, 1 / inf is the right 0."""
    return e.unary("v_reciprocal", e.scalar("v_adds", exp_of_negated(e, x), 1.0))


def silu(e: ProgramLowering, x: int) -> int:
    """x / (1 + e^-x)."""
    return over_one_plus_exp(e, x, e.scalar("v_muls", x, -1.0))


def one_minus_two_over(e: ProgramLowering, power: int) -> int:
    """tanh(power / 2)."""
    denominator = e.scalar("v_adds", e.unary("v_exp", power), 1.0)
    return e.scalar("v_adds", e.scalar("v_muls", e.unary("v_reciprocal", denominator), -2.0), 1.0)


def tanh(e: ProgramLowering, x: int) -> int:
    """1 - 2 / (e^2x + 1)."""
    return one_minus_two_over(e, e.scalar("v_muls", x, 2.0))


def _phi(short: bool, scale: float) -> tuple[list[float], float]:
    """The polynomial of logit(Phi(scale x)), and its limit for x^2."""
    factors = PHI_SHORT if short else PHI
    limit = PHI_SHORT_LIMIT / (scale * scale) if short else math.inf
    return [f * scale ** (2 * k + 1) for k, f in enumerate(factors)], limit


def erf(e: ProgramLowering, x: int, short: bool) -> int:
    """As the tanh of an odd polynomial; `short`: one of fewer terms, for f16."""
    factors, limit = _phi(short, math.sqrt(2.0))
    return one_minus_two_over(e, odd(e, x, factors, limit))


def gelu(e: ProgramLowering, x: int, short: bool, approximate: bool) -> int:
    """x Phi(x) = x / (1 + e^-logit(Phi(x)))."""
    factors, limit = (list(GELU_TANH), math.inf) if approximate else _phi(short, 1.0)
    return over_one_plus_exp(e, x, odd(e, x, [-f for f in factors], limit))


def softplus(e: ProgramLowering, x: int) -> int:
    """max(x, 0) + ln(1 + e^-|x|)."""
    small = e.unary("v_exp", e.unary("v_neg", e.unary("v_abs", x)))
    return e.binary("v_add", e.unary("v_ln", e.scalar("v_adds", small, 1.0)), e.unary("v_relu", x))


def softsign(e: ProgramLowering, x: int) -> int:
    """x / (1 + abs(x))."""
    return e.binary("v_div", x, e.scalar("v_adds", e.unary("v_abs", x), 1.0))


def mish(e: ProgramLowering, x: int) -> int:
    """With u = e^x: x (u^2 + 2u) / (u^2 + 2u + 2); from 20 on the factor is 1."""
    u = e.unary("v_exp", e.scalar("v_mins", x, 20.0))
    top = e.binary("v_mul", e.scalar("v_adds", u, 2.0), u)
    return e.binary("v_mul", x, e.binary("v_div", top, e.scalar("v_adds", top, 2.0)))


def hard_sigmoid(e: ProgramLowering, x: int, alpha: float, beta: float) -> int:
    """alpha x + beta, bounded to [0, 1]."""
    line = e.scalar("v_adds", e.scalar("v_muls", x, alpha), beta)
    return e.scalar("v_mins", e.scalar("v_maxs", line, 0.0), 1.0)


def hard_swish(e: ProgramLowering, x: int) -> int:
    """x times hard_sigmoid of 1/6 and 1/2."""
    return e.binary("v_mul", hard_sigmoid(e, x, 1 / 6, 0.5), x)


def expm1_below(e: ProgramLowering, x: int, alpha: float) -> int:
    """alpha (e^min(x, 0) - 1)."""
    below = e.unary("v_exp", e.scalar("v_mins", x, 0.0))
    return e.scalar("v_muls", e.scalar("v_adds", below, -1.0), alpha)


def elu(e: ProgramLowering, x: int, alpha: float, scale: float) -> int:
    """scale (x where positive, else alpha (e^x - 1))."""
    below = expm1_below(e, x, alpha * scale)
    above = e.unary("v_relu", x)
    return e.binary("v_add", above if scale == 1.0 else e.scalar("v_muls", above, scale), below)


def celu(e: ProgramLowering, x: int, alpha: float) -> int:
    """max(x, 0) + min(0, alpha (e^(x / alpha) - 1))."""
    inner = e.scalar("v_adds", e.unary("v_exp", e.scalar("v_muls", x, 1.0 / alpha)), -1.0)
    below = e.scalar("v_mins", e.scalar("v_muls", inner, alpha), 0.0)
    return e.binary("v_add", e.unary("v_relu", x), below)


def expm1(e: ProgramLowering, x: int) -> int:
    """e^x - 1; below 0.3 in magnitude as a polynomial, where the difference would cancel."""
    near = e.binary("v_mul", polynomial(e, x, (1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720)), x)
    far = e.scalar("v_adds", e.unary("v_exp", x), -1.0)
    return e.select(e.compare("lt", e.unary("v_abs", x), Const(0.3)), near, far)


def log1p(e: ProgramLowering, x: int) -> int:
    """Near 0 2 atanh(x / (x + 2)), elsewhere ln(1 + x)."""
    ratio = e.binary("v_div", x, e.scalar("v_adds", x, 2.0))
    near = odd(e, ratio, (2.0, 2 / 3, 2 / 5, 2 / 7, 2 / 9))
    far = e.unary("v_ln", e.scalar("v_adds", x, 1.0))
    return e.select(e.compare("lt", e.unary("v_abs", x), Const(0.4)), near, far)


def sinh(e: ProgramLowering, x: int) -> int:
    """(e^x - e^-x) / 2; each half of e^(|x| / 2) squared, so that it overflows no sooner than the result."""
    return _half_exponents(e, x, "v_sub")


def cosh(e: ProgramLowering, x: int) -> int:
    """(e^x + e^-x) / 2."""
    return _half_exponents(e, x, "v_add")


def _half_exponents(e: ProgramLowering, x: int, command: str) -> int:
    half = e.unary("v_exp", e.scalar("v_muls", x, 0.5))
    other = e.unary("v_exp", e.scalar("v_muls", x, -0.5))
    terms = [e.binary("v_mul", e.scalar("v_muls", h, 0.5), h) for h in (half, other)]
    return e.binary(command, *terms)


def with_sign_of(e: ProgramLowering, magnitude: int, x: int) -> int:
    """The magnitude, negated where x is negative."""
    return e.select(e.compare("lt", x, Const(0.0)), e.unary("v_neg", magnitude), magnitude)


def asinh(e: ProgramLowering, x: int) -> int:
    """ln(|x| + sqrt(x^2 + 1)) as log1p, large numbers by ln(|x|) + ln 2."""
    size = e.unary("v_abs", x)
    square = e.binary("v_mul", size, size)
    root = e.unary("v_sqrt", e.scalar("v_adds", square, 1.0))
    inner = e.binary("v_add", size, e.binary("v_div", square, e.scalar("v_adds", root, 1.0)))
    big = e.scalar("v_adds", e.unary("v_ln", size), math.log(2.0))
    return with_sign_of(e, e.select(e.compare("lt", size, Const(1e10)), log1p(e, inner), big), x)


def acosh(e: ProgramLowering, x: int) -> int:
    """From log1p of x - 1; beyond 1e10, where a square would overflow, ln 2x."""
    below = e.scalar("v_adds", x, -1.0)
    root = e.unary("v_sqrt", e.binary("v_mul", below, e.scalar("v_adds", x, 1.0)))
    big = e.scalar("v_adds", e.unary("v_ln", x), math.log(2.0))
    return e.select(e.compare("gt", x, Const(1e10)), big, log1p(e, e.binary("v_add", below, root)))


def atanh(e: ProgramLowering, x: int) -> int:
    """log1p(2x / (1 - x)) / 2."""
    ratio = e.binary("v_div", e.scalar("v_muls", x, 2.0), e.scalar("v_rsubs", x, 1.0))
    return e.scalar("v_muls", log1p(e, ratio), 0.5)


def atan(e: ProgramLowering, x: int) -> int:
    """|x| above tan(3 pi / 8) by pi/2 - atan(1 / x), above tan(pi / 8) by pi/4 + atan((x - 1) / (x + 1))."""
    size = e.unary("v_abs", x)
    far, middle = (e.compare("gt", size, Const(t)) for t in (math.tan(3 * math.pi / 8), math.tan(math.pi / 8)))
    turned = e.binary("v_div", e.scalar("v_adds", size, -1.0), e.scalar("v_adds", size, 1.0))
    inverse = e.unary("v_neg", e.unary("v_reciprocal", size))
    argument = e.select(far, inverse, e.select(middle, turned, size))
    quarter = e.constant(math.pi / 4, F32, e.layout(x))
    start = e.select(far, e.constant(math.pi / 2, F32, e.layout(x)), e.select(middle, quarter, Const(0.0)))
    return with_sign_of(e, e.binary("v_add", odd(e, argument, ATAN), start), x)


def atan2(e: ProgramLowering, y: int, x: int) -> int:
    """The shorter of |x| and |y| over the longer, 0 and 1 where that is 0/0 or infinity over itself; its arc tangent,
    mirrored into the quadrant by the signs."""
    height, width = e.unary("v_abs", y), e.unary("v_abs", x)
    short, long = e.binary("v_min", height, width), e.binary("v_max", height, width)
    ratio = e.select(e.compare("ne", short, Const(math.inf)), e.binary("v_div", short, long), Const(1.0))
    ratio = e.select(e.compare("ne", long, Const(0.0)), ratio, Const(0.0))
    angle = atan(e, ratio)
    angle = e.select(e.compare("gt", height, width), e.scalar("v_rsubs", angle, math.pi / 2), angle)
    angle = e.select(sign_bit(e, x), e.scalar("v_rsubs", angle, math.pi), angle)
    return e.select(sign_bit(e, y), e.unary("v_neg", angle), angle)


def sign_bit(e: ProgramLowering, x: int) -> int:
    """A mask of what carries a minus: zeros too. The sign is shifted over all bits, which are read as an integer's."""
    spread = e.step("v_shr", e.layout(x), I32, (I32,), {"src": x}, shift=31)
    return e.compare("lt", spread, Const(0))


def asin(e: ProgramLowering, x: int) -> int:
    """atan(x / sqrt((1 - x)(1 + x)))."""
    product = e.binary("v_mul", e.scalar("v_rsubs", x, 1.0), e.scalar("v_adds", x, 1.0))
    return atan(e, e.binary("v_div", x, e.unary("v_sqrt", product)))


def acos(e: ProgramLowering, x: int) -> int:
    """pi / 2 - asin x."""
    return e.scalar("v_rsubs", asin(e, x), math.pi / 2)


def _quarter_turns(e: ProgramLowering, x: int) -> tuple[int, int]:
    """x less the nearest multiple of pi/2, and that multiple as i32."""
    count = e.cast(e.scalar("v_muls", x, 2 / math.pi), F32)
    rest = x
    for part in HALF_PI_PARTS:
        rest = e.binary("v_add", rest, e.scalar("v_muls", count, -part))
    return rest, e.cast(count, I32)


def _sine_of(e: ProgramLowering, rest: int, turns: int) -> int:
    """sin(rest + turns pi/2): sine or cosine of the rest, negated in the second half turn."""
    square = e.binary("v_mul", rest, rest)
    sine = e.binary("v_mul", polynomial(e, square, SIN), rest)
    cosine = polynomial(e, square, COS)
    one = e.constant(1, I32, e.layout(turns))
    swap = e.compare("ne", e.binary("v_and", turns, one), Const(0))
    value = e.select(swap, cosine, sine)
    two = e.constant(2, I32, e.layout(turns))
    return e.select(e.compare("ne", e.binary("v_and", turns, two), Const(0)), e.unary("v_neg", value), value)


def sin(e: ProgramLowering, x: int) -> int:
    """From x less whole quarter turns."""
    return _sine_of(e, *_quarter_turns(e, x))


def cos(e: ProgramLowering, x: int) -> int:
    """The sine one quarter turn on."""
    rest, turns = _quarter_turns(e, x)
    return _sine_of(e, rest, e.scalar("v_adds", turns, 1))


def tan(e: ProgramLowering, x: int) -> int:
    """Sine by cosine of the same quarter turn."""
    rest, turns = _quarter_turns(e, x)
    return e.binary("v_div", _sine_of(e, rest, turns), _sine_of(e, rest, e.scalar("v_adds", turns, 1)))


PLAIN: dict[str, Function] = {
    f.__name__: f for f in (
        sigmoid, silu, tanh, softplus, softsign, mish, hard_swish, expm1, log1p, sinh, cosh, asinh, acosh, atanh, atan,
        atan2, asin, acos, sin, cos, tan,
    )
}  # fmt: skip
"""Operators without attributes as functions of their operands in f32."""
