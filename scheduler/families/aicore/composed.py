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
import operator
from collections.abc import Callable, Sequence

from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore.lowering import TileExpr, maximum, minimum, where

F32, I32 = DType.F32, DType.I32

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


def exp(x: TileExpr) -> TileExpr:
    """e^x."""
    return x.unary("v_exp")


def ln(x: TileExpr) -> TileExpr:
    """The natural logarithm."""
    return x.unary("v_ln")


def sqrt(x: TileExpr) -> TileExpr:
    """The square root."""
    return x.unary("v_sqrt")


def relu(x: TileExpr) -> TileExpr:
    """max(x, 0)."""
    return x.unary("v_relu")


def polynomial(x: TileExpr, factors: Sequence[float]) -> TileExpr:
    """factors[0] + factors[1] x + ..."""
    total = x * factors[-1] + factors[-2]
    for factor in reversed(factors[:-2]):
        total = total * x + factor
    return total


def odd(x: TileExpr, factors: Sequence[float], limit: float = math.inf) -> TileExpr:
    """x times a polynomial in x^2 (at most `limit`)."""
    square = x * x
    return polynomial(square if limit == math.inf else minimum(square, limit), factors) * x


def one_minus_two_over(power: TileExpr) -> TileExpr:
    """tanh(power / 2)."""
    return 1 / (exp(power) + 1.0) * -2.0 + 1.0


def _phi(short: bool, scale: float) -> tuple[list[float], float]:
    """The polynomial of logit(Phi(scale x)), and its limit for x^2."""
    factors = PHI_SHORT if short else PHI
    limit = PHI_SHORT_LIMIT / (scale * scale) if short else math.inf
    return [f * scale ** (2 * k + 1) for k, f in enumerate(factors)], limit


def erf(x: TileExpr, short: bool) -> TileExpr:
    """As the tanh of an odd polynomial; `short`: one of fewer terms, for f16."""
    return one_minus_two_over(odd(x, *_phi(short, math.sqrt(2.0))))


def gelu(x: TileExpr, short: bool, approximate: bool) -> TileExpr:
    """x Phi(x) = x / (1 + e^-logit(Phi(x)))."""
    factors, limit = (list(GELU_TANH), math.inf) if approximate else _phi(short, 1.0)
    return x / (exp(odd(x, [-f for f in factors], limit)) + 1.0)


def mish(x: TileExpr) -> TileExpr:
    """With u = e^x: x (u^2 + 2u) / (u^2 + 2u + 2); from 20 on the factor is 1."""
    u = exp(minimum(x, 20.0))
    top = (u + 2.0) * u
    return x * (top / (top + 2.0))


def hard_sigmoid(x: TileExpr, alpha: float, beta: float) -> TileExpr:
    """alpha x + beta, bounded to [0, 1]."""
    return minimum(maximum(x * alpha + beta, 0.0), 1.0)


def elu(x: TileExpr, alpha: float, scale: float) -> TileExpr:
    """scale (x where positive, else alpha (e^x - 1))."""
    below = (exp(minimum(x, 0.0)) - 1.0) * (alpha * scale)
    return (relu(x) if scale == 1.0 else relu(x) * scale) + below


def celu(x: TileExpr, alpha: float) -> TileExpr:
    """max(x, 0) + min(0, alpha (e^(x / alpha) - 1))."""
    below = minimum((exp(x * (1.0 / alpha)) - 1.0) * alpha, 0.0)
    return relu(x) + below


def expm1(x: TileExpr) -> TileExpr:
    """e^x - 1; below 0.3 in magnitude as a polynomial, where the difference would cancel."""
    near = polynomial(x, (1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720)) * x
    far = exp(x) - 1.0
    return where(abs(x) < 0.3, near, far)


def log1p(x: TileExpr) -> TileExpr:
    """Near 0 2 atanh(x / (x + 2)), elsewhere ln(1 + x)."""
    near = odd(x / (x + 2.0), (2.0, 2 / 3, 2 / 5, 2 / 7, 2 / 9))
    far = ln(x + 1.0)
    return where(abs(x) < 0.4, near, far)


def half_exponents(x: TileExpr) -> tuple[TileExpr, TileExpr]:
    """e^x / 2 and e^-x / 2, each e^(|x| / 2) squared, so that it overflows no sooner than sinh or cosh."""
    half, other = exp(x * 0.5), exp(x * -0.5)
    return half * 0.5 * half, other * 0.5 * other


def with_sign_of(magnitude: TileExpr, x: TileExpr) -> TileExpr:
    """The magnitude, negated where x is negative."""
    return where(x < 0.0, -magnitude, magnitude)


def asinh(x: TileExpr) -> TileExpr:
    """ln(|x| + sqrt(x^2 + 1)) as log1p, large numbers by ln(|x|) + ln 2."""
    size = abs(x)
    square = size * size
    root = sqrt(square + 1.0)
    inner = size + square / (root + 1.0)
    big = ln(size) + math.log(2.0)
    return with_sign_of(where(size < 1e10, log1p(inner), big), x)


def acosh(x: TileExpr) -> TileExpr:
    """From log1p of x - 1; beyond 1e10, where a square would overflow, ln 2x."""
    below = x - 1.0
    root = sqrt(below * (x + 1.0))
    big = ln(x) + math.log(2.0)
    return where(x > 1e10, big, log1p(below + root))


def atan(x: TileExpr) -> TileExpr:
    """|x| above tan(3 pi / 8) by pi/2 - atan(1 / x), above tan(pi / 8) by pi/4 + atan((x - 1) / (x + 1))."""
    size = abs(x)
    far, middle = (size > math.tan(t) for t in (3 * math.pi / 8, math.pi / 8))
    turned = (size - 1.0) / (size + 1.0)
    inverse = -(1 / size)
    argument = where(far, inverse, where(middle, turned, size))
    quarter = x.like(math.pi / 4)
    start = where(far, x.like(math.pi / 2), where(middle, quarter, 0.0))
    return with_sign_of(odd(argument, ATAN) + start, x)


def atan2(y: TileExpr, x: TileExpr) -> TileExpr:
    """The shorter of |x| and |y| over the longer, 0 and 1 where that is 0/0 or infinity over itself; its arc tangent,
    mirrored into the quadrant by the signs."""
    height, width = abs(y), abs(x)
    short, long = minimum(height, width), maximum(height, width)
    ratio = where(short.compare("ne", math.inf), short / long, 1.0)
    angle = atan(where(long.compare("ne", 0.0), ratio, 0.0))
    angle = where(height > width, math.pi / 2 - angle, angle)
    angle = where(sign_bit(x), math.pi - angle, angle)
    return where(sign_bit(y), -angle, angle)


def sign_bit(x: TileExpr) -> TileExpr:
    """A mask of what carries a minus: zeros too. The sign is shifted over all bits, which are read as an integer's."""
    e = x.e
    return TileExpr(e, e.step("v_shr", x.layout, I32, (I32,), {"src": x.register}, shift=31)) < 0


def asin(x: TileExpr) -> TileExpr:
    """atan(x / sqrt((1 - x)(1 + x)))."""
    return atan(x / sqrt((1.0 - x) * (x + 1.0)))


def _quarter_turns(x: TileExpr) -> tuple[TileExpr, TileExpr]:
    """x less the nearest multiple of pi/2, and that multiple as i32."""
    count = (x * (2 / math.pi)).cast(F32)
    rest = x
    for part in HALF_PI_PARTS:
        rest = rest + count * -part
    return rest, count.cast(I32)


def _sine_of(rest: TileExpr, turns: TileExpr) -> TileExpr:
    """sin(rest + turns pi/2): sine or cosine of the rest, negated in the second half turn."""
    square = rest * rest
    sine = polynomial(square, SIN) * rest
    cosine = polynomial(square, COS)
    value = where(turns.binary("v_and", turns.like(1)).compare("ne", 0), cosine, sine)
    return where(turns.binary("v_and", turns.like(2)).compare("ne", 0), -value, value)


def cos(x: TileExpr) -> TileExpr:
    """The sine one quarter turn on."""
    rest, turns = _quarter_turns(x)
    return _sine_of(rest, turns + 1)


def tan(x: TileExpr) -> TileExpr:
    """Sine by cosine of the same quarter turn."""
    rest, turns = _quarter_turns(x)
    return _sine_of(rest, turns) / _sine_of(rest, turns + 1)


PLAIN: dict[str, Callable[..., TileExpr]] = {
    "sigmoid": lambda x: 1 / (exp(x * -1.0) + 1.0),  # where that overflows, 1 / inf is the right 0
    "silu": lambda x: x / (exp(x * -1.0) + 1.0),
    "tanh": lambda x: one_minus_two_over(x * 2.0),
    "softplus": lambda x: ln(exp(-abs(x)) + 1.0) + relu(x),
    "softsign": lambda x: x / (abs(x) + 1.0),
    "hard_swish": lambda x: minimum(maximum(x + 3.0, 0.0), 6.0) * (1 / 6) * x,  # x + 3 is exact near -3
    "sinh": lambda x: operator.sub(*half_exponents(x)),
    "cosh": lambda x: operator.add(*half_exponents(x)),
    "atanh": lambda x: log1p(x * 2.0 / (1.0 - x)) * 0.5,
    "acos": lambda x: math.pi / 2 - asin(x),
    "sin": lambda x: _sine_of(*_quarter_turns(x)),
    **{f.__name__: f for f in (mish, expm1, log1p, asinh, acosh, atan, atan2, asin, cos, tan)},
}
"""Operators without attributes as functions of their operands in f32."""
