"""Element formulas of the reference that NumPy does not offer, and exact integer division, power and shifts.

Model: every function takes and returns whole arrays. Floats arrive as float64. Integers arrive in their own type and
leave in it: they wrap, as the kernels do, and never pass through float64 (which cannot hold 64-bit values).
"""

from __future__ import annotations

from functools import cache
from math import erf as scalar_erf
from math import erfc as scalar_erfc
from math import exp as scalar_exp
from math import pi, sqrt

import numpy as np

from superkernel.ops.opdef import Array

_NODES_PER_UNIT = 64
_ERF_LIMIT = 6.0  # erf(6) rounds to 1 in float64
_TERMS = 9  # at most 1/128 from a node: the first term left out is below 1e-20


@cache
def _erf_coefficients() -> Array:
    """Taylor coefficients of erf at each node, row n the n-th: derivatives of exp(-x^2) are Hermite polynomials."""
    count = int(_ERF_LIMIT * _NODES_PER_UNIT) + 1
    table = np.zeros((_TERMS, count))
    for i in range(count):
        x = i / _NODES_PER_UNIT
        scale, below, here = 2.0 / sqrt(pi) * scalar_exp(-x * x), 0.0, 1.0
        table[0, i] = scalar_erf(x)
        for n in range(1, _TERMS):
            scale /= n
            table[n, i] = scale * here * (-1.0 if n % 2 == 0 else 1.0)
            below, here = here, 2.0 * x * here - 2.0 * (n - 1) * below
    return table


def erf(x: Array) -> Array:
    """The error function to a few units in the last place."""
    table = _erf_coefficients()
    magnitude = np.minimum(np.abs(np.nan_to_num(x, nan=0.0)), _ERF_LIMIT)
    node = np.rint(magnitude * _NODES_PER_UNIT).astype(np.int64)
    step = magnitude - node / _NODES_PER_UNIT
    total = table[-1][node]
    for row in table[-2::-1]:
        total = total * step + row[node]
    result: Array = np.where(np.isnan(x), x, np.copysign(total, x))
    return result


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow and without loss for very negative x."""
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1.0 / (1.0 + small), np.where(np.isnan(x), x, small / (1.0 + small)))
    return result


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    result: Array = np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
    return result


def gelu(x: Array, approximate: str) -> Array:
    """x * Phi(x), or its tanh approximation."""
    if approximate == "tanh":  # (1 + tanh u) / 2 is sigmoid(2u), which does not cancel
        inner: Array = x * sigmoid(2.0 * sqrt(2.0 / pi) * (x + 0.044715 * x**3))
        return inner
    double = np.asarray(1.0 + erf(x / sqrt(2.0)))
    is_tail = np.asarray(x < -1.0)  # where that cancels
    double[is_tail] = [scalar_erfc(-v / sqrt(2.0)) for v in np.asarray(x)[is_tail].tolist()]
    result: Array = 0.5 * x * double
    return result


def int_div(a: Array, b: Array) -> Array:
    """Integer quotient truncated toward zero; a zero divisor gives 0, and the least value / -1 wraps to itself."""
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    divisor = np.where(zero, np.ones_like(b), b)
    quotient = np.floor_divide(a, divisor)
    inexact = quotient * divisor != a
    negative = (a < 0) != (divisor < 0)
    # The least value / -1 overflows and keeps its (wrapped) quotient: the product wraps to `a`, so it counts as exact.
    result: Array = np.where(zero, np.zeros_like(a), quotient + (inexact & negative).astype(a.dtype))
    return result.astype(a.dtype)


def int_mod(a: Array, b: Array, fmod: bool) -> Array:
    """Integer remainder, sign of the divisor (or of the dividend with `fmod`); a zero divisor gives 0."""
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    divisor = np.where(zero, np.ones_like(b), b)
    remainder = np.fmod(a, divisor) if fmod else np.remainder(a, divisor)
    result: Array = np.where(zero, np.zeros_like(a), remainder)
    return result.astype(a.dtype)


def int_pow(base: Array, exponent: Array) -> Array:
    """Integer power that wraps; a negative exponent gives the quotient 1 / base^-exponent truncated (0 for base 0)."""
    base, exponent = np.broadcast_arrays(base, exponent)
    wide = np.uint64 if base.dtype.kind == "u" else np.int64
    factor, result = base.astype(wide), np.ones(base.shape, wide)
    left = np.where(exponent < 0, np.zeros_like(exponent), exponent).astype(np.uint64)
    while left.any():
        result = np.where(left & np.uint64(1) != 0, result * factor, result)
        factor, left = factor * factor, left >> np.uint64(1)
    odd = exponent & np.ones_like(exponent) != 0
    if base.dtype.kind == "u":
        inverse = (base == 1).astype(wide)
    else:
        inverse = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0)).astype(wide)
    chosen: Array = np.where(exponent < 0, inverse, result)
    return chosen.astype(base.dtype)


def shift(a: Array, b: Array, left: bool) -> Array:
    """Bit shift, arithmetic to the right for signed types; an amount outside 0 .. width - 1 shifts everything out."""
    a, b = np.broadcast_arrays(a, b)
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    amount = np.where(inside, b, np.zeros_like(b))
    moved = np.left_shift(a, amount) if left else np.right_shift(a, amount)
    out = np.zeros_like(a) if left else np.where(a < 0, ~np.zeros_like(a), np.zeros_like(a))
    result: Array = np.where(inside, moved, out)
    return result.astype(a.dtype)
