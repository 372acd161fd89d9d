"""Trigonometric functions and their inverses on explicit vectors (part of the vector mathematics, see vecmath).

Reduction by multiples of pi/2 in three parts, in f64 for both types: for f32 that leaves more bits than the result
has up to 2^40.
"""

from __future__ import annotations

from collections.abc import Callable

from superkernel.codegen.host import vecmath_data as data
from superkernel.codegen.host.vecexpr import Expr, polynomial

_MAGIC = 1.5 * 2.0**52


def _reduce(x: Expr) -> tuple[Expr, Expr]:
    """(quadrant bits, r) in f64 with x = n pi/2 + r, |r| <= pi/4; the lowest two bits of `quadrant` are n mod 4. NaN
    from 2^50 on."""
    t = x.fma(data.TWO_OVER_PI, _MAGIC)
    n = t - _MAGIC
    first, second, third = data.PIO2
    r = n.fma(-third, n.fma(-second, n.fma(-first, x)))
    return t.bits(), (x.abs() < 2.0**50).choose(r, x.const(float("nan")))


def _sin_cos(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(quadrant bits, sin r, cos r) in the type of x."""
    quadrant, r = _reduce(x.to_float(True))
    r = r.to_float(x.is_double)
    if not x.is_double:
        quadrant = quadrant.to_int(32)
    z = r * r
    sine = (z * r).fma(polynomial(z, data.SIN_F64 if x.is_double else data.SIN_F32), r)
    cosine = (z * z).fma(polynomial(z, data.COS_F64 if x.is_double else data.COS_F32), z.fma(-0.5, 1.0))
    return quadrant, sine, cosine


def _odd(quadrant: Expr) -> Expr:
    return (quadrant & 1).compare("!=", 0)


def _negate_where_bit_two(value: Expr, quadrant: Expr) -> Expr:
    """Flip the sign where n mod 4 is 2 or 3."""
    width = 64 if value.is_double else 32
    return (value.bits() ^ ((quadrant & 2) << (width - 2))).as_float()


def sin(x: Expr) -> Expr:
    """Of any finite x, argument reduced exactly; keeps -0."""
    quadrant, sine, cosine = _sin_cos(x)
    value = _negate_where_bit_two(_odd(quadrant).choose(cosine, sine), quadrant)
    return x.equals(0.0).choose(x, value)


def cos(x: Expr) -> Expr:
    """Of any finite x, argument reduced exactly."""
    quadrant, sine, cosine = _sin_cos(x)
    return _negate_where_bit_two(_odd(quadrant).choose(sine, cosine), quadrant + 1)


def tan(x: Expr) -> Expr:
    """Of any finite x, argument reduced exactly; keeps -0."""
    quadrant, sine, cosine = _sin_cos(x)
    odd = _odd(quadrant)
    value = odd.choose(-cosine, sine) / odd.choose(sine, cosine)
    return x.equals(0.0).choose(x, value)


def atan(x: Expr) -> Expr:
    """Three intervals by the tangents of pi/8 and 3 pi/8, one division for all."""
    size = x.abs()
    far, middle = size > 2.414213562373095, size > 0.41421356237309503
    top = far.choose(size.const(-1.0), middle.choose(size - 1.0, size))
    bottom = far.choose(size, middle.choose(size + 1.0, size.const(1.0)))
    base = far.choose(size.const(data.PI_2), middle.choose(size.const(data.PI_2 / 2), size.const(0.0)))
    low = far.choose(size.const(data.PI_2_LOW), middle.choose(size.const(data.PI_2_LOW / 2), size.const(0.0)))
    return _angle(top, bottom, base, low).copysign(x)


def _angle(top: Expr, bottom: Expr, base: Expr, low: Expr) -> Expr:
    """base + low + atan(top / bottom), the quotient at most tan(pi/8)."""
    r = top / bottom
    z = r * r
    p = polynomial(z, data.ATAN_F64 if top.is_double else data.ATAN_F32)
    if not top.is_double:
        low = low.const(0.0)
    return base + (r + (z * r).fma(p, low))


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle between the longer side and the diagonal, mirrored into the quadrant. The sides are |x| and |y|, with
    1 for infinite ones and 0 beside them, and quartered where their sum might overflow; one division."""
    height, width = y.abs(), x.abs()
    steep = height > width
    short, long = steep.choose(width, height), steep.choose(height, width)
    endless = long.equals(float("inf"))
    unit = short.equals(float("inf")).choose(short.const(1.0), short.const(0.0))
    short, long = endless.choose(unit, short), endless.choose(long.const(1.0), long)
    factor = (long > (2.0**1022 if y.is_double else 2.0**126)).choose(long.const(0.25), long.const(1.0))
    short, long = short * factor, long * factor
    middle = short > long * 0.41421356237309503
    top = middle.choose(short - long, short)
    bottom = middle.choose(short + long, long.equals(0.0).choose(long.const(1.0), long))
    base = middle.choose(long.const(data.PI_2 / 2), long.const(0.0))
    low = middle.choose(long.const(data.PI_2_LOW / 2), long.const(0.0))
    angle = _angle(top, bottom, base, low)
    angle = steep.choose(data.PI_2 - (angle - data.PI_2_LOW), angle)
    angle = (x.bits() < 0).choose(2 * data.PI_2 - (angle - 2 * data.PI_2_LOW), angle)
    return x.is_nan().choose(x, y.is_nan().choose(y, angle.copysign(y)))


def _asin_core(size: Expr) -> tuple[Expr, Expr]:
    """(mask of size > 1/2, asin of the reduced argument): sqrt((1 - size)/2) above 1/2, else `size`."""
    big = size > 0.5
    z = big.choose((1.0 - size) * 0.5, size * size)
    r = big.choose(z.sqrt(), size)
    p = polynomial(z, data.ASIN_F64 if size.is_double else data.ASIN_F32)
    return big, (z * r).fma(p, r)


def asin(x: Expr) -> Expr:
    """NaN outside [-1, 1]; keeps -0."""
    big, value = _asin_core(x.abs())
    return big.choose(data.PI_2 - (value + value - data.PI_2_LOW), value).copysign(x)


def acos(x: Expr) -> Expr:
    """NaN outside [-1, 1]."""
    big, value = _asin_core(x.abs())
    twice = value + value
    outer = (x < 0.0).choose(2 * data.PI_2 - (twice - 2 * data.PI_2_LOW), twice)
    return big.choose(outer, data.PI_2 - (value.copysign(x) - data.PI_2_LOW))


FUNCTIONS: dict[str, Callable[..., Expr]] = {f.__name__: f for f in (sin, cos, tan, asin, acos, atan, atan2)}
