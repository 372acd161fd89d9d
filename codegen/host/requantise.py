"""`quantize` to bytes with a scale and a zero point that are known: what ends nearly every sub-operator of a quantised
model, without a division.

Model: x / s, rounded to f32, decides which integer is nearest. With r = 1/s and y = x r, y + (x - y s) r is that
quotient but for its last place at most (Markstein's correction), which matters where x is a few places from the tie
between two integers alone. There are as many ties as codes, so `exact_reciprocal` tries all floats near every one of
them; a scale for which one of them differs is divided by. x is clamped to the codes' range first, so nothing
overflows, and adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.host.quantise import MAGIC
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType

_EXPONENTS = 2.0**-60, 2.0**60  # scales in which nothing below is subnormal
_PLACES = 6  # floats on each side of a tie that are tried

Floats = NDArray[np.float32]


@lru_cache(maxsize=4096)
def exact_reciprocal(scale: float, low: int, high: int) -> float | None:
    """1/scale in f32, where the quotient's nearest integer follows from it for all values of f32 whose code is in
    [low, high], None where it does not."""
    s = np.float32(scale)
    if not _EXPONENTS[0] <= s <= _EXPONENTS[1]:
        return None
    r = np.float32(1.0) / s
    tie = ((np.arange(low, high) + 0.5) * np.float64(s)).astype(np.float32)
    below, above = [tie], [tie]
    for _ in range(_PLACES):
        below.append(np.nextafter(below[-1], np.float32(-np.inf)))
        above.append(np.nextafter(above[-1], np.float32(np.inf)))
    x = np.concatenate([*below, *above[1:]])
    y = x * r
    rest = _fused(-y, s, x)
    return float(r) if np.array_equal(np.rint(_fused(rest, r, y)), np.rint(x / s)) else None


def _fused(a: Floats, b: np.float32, c: Floats) -> Floats:
    """a*b + c of f32, rounded once: products of two f32 are whole in f64, and sums in an extended type."""
    wide = np.longdouble
    return (a.astype(wide) * wide(b) + c.astype(wide)).astype(np.float32)


def requantise(x: Expr, scale: float, zero_point: int, dtype: DType) -> Expr | None:
    """saturate(round(x / scale) + zero_point) of f32 as bytes, None where the division is needed. NaN gives 0."""
    low, high = (limit - zero_point for limit in dtype.limits)
    reciprocal = exact_reciprocal(scale, low, high) if dtype.itemsize == 1 else None
    if reciprocal is None:
        return None
    s = np.float32(scale)
    if dtype.is_signed:  # a lesser NaN is the lowest code, which is 0 of unsigned ones alone
        x = x.is_nan().choose(x.const(float(np.float32(-zero_point) * s)), x)
    x = (x > float(np.float32(low) * s)).choose(x, x.const(float(np.float32(low) * s)))
    x = (x < float(np.float32(high) * s)).choose(x, x.const(float(np.float32(high) * s)))
    if reciprocal != 1.0:
        quotient = x * reciprocal
        x = (-quotient).fma(float(s), x).fma(reciprocal, quotient)
    shifted = x + MAGIC
    codes = (shifted.bits() + zero_point).to_int(8)
    codes.whole = shifted, zero_point
    return codes


def dequantised(codes: Expr, scale: float, zero_point: int) -> Expr | None:
    """(code - zero point) * scale in f32 of codes that `requantise` has just left: without a way through bytes. None of
    others."""
    if codes.whole is None:
        return None
    shifted, added = codes.whole
    steps = shifted - MAGIC
    return (steps if added == zero_point else steps + float(added - zero_point)) * float(np.float32(scale))
