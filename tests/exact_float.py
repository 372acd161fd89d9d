"""An oracle for floating-point arithmetic: exact rational numbers, rounded once, with RISC-V's flags.

Written from the definitions of IEEE 754 on `fractions.Fraction`, with no bit tricks: slow, and as different as possible
from the simulator's arithmetic. A value is its bit pattern. Rounding modes are the numbers of the rm field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

NX, UF, OF, DZ, NV = 1, 2, 4, 8, 16
RNE, RTZ, RDN, RUP, RMM = range(5)


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.fraction_bits)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def nan(self) -> int:
        return self.infinity | 1 << (self.fraction_bits - 1)

    def is_nan(self, a: int) -> bool:
        return a & ~self.sign > self.infinity

    def is_signaling(self, a: int) -> bool:
        return self.is_nan(a) and not a >> (self.fraction_bits - 1) & 1

    def is_infinite(self, a: int) -> bool:
        return a & ~self.sign == self.infinity

    def is_zero(self, a: int) -> bool:
        return a & ~self.sign == 0

    def negative(self, a: int) -> bool:
        return bool(a & self.sign)

    def value(self, a: int) -> Fraction:
        """Of a finite number."""
        field = a >> self.fraction_bits & ((1 << self.exponent_bits) - 1)
        fraction = a & ((1 << self.fraction_bits) - 1)
        if field == 0:
            magnitude = Fraction(fraction) * Fraction(2) ** (1 - self.bias - self.fraction_bits)
        else:
            scale = Fraction(2) ** (field - self.bias - self.fraction_bits)
            magnitude = (fraction + (1 << self.fraction_bits)) * scale
        return -magnitude if self.negative(a) else magnitude


SINGLE = Format(8, 23)
DOUBLE = Format(11, 52)


def round_integer(x: Fraction, mode: int) -> int:
    """An integer next to x, by the rounding mode; the sign of x counts."""
    low = math.floor(x)
    rest = x - low
    if rest == 0:
        return low
    if mode == RDN:
        return low
    if mode == RUP:
        return low + 1
    if mode == RTZ:
        return low if x > 0 else low + 1
    if rest != Fraction(1, 2):
        return low if rest < Fraction(1, 2) else low + 1
    if mode == RNE:
        return low if low % 2 == 0 else low + 1
    return low + 1 if x > 0 else low  # RMM: away from zero


def exponent_of(x: Fraction) -> int:
    """floor(log2(x)) for positive x."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if x >= Fraction(2) ** guess else guess - 1


def round_to(x: Fraction, fmt: Format, mode: int) -> tuple[int, int]:
    """Bits and flags of a nonzero number rounded to the format."""
    sign = fmt.sign if x < 0 else 0
    smallest = 1 - fmt.bias
    exponent = max(exponent_of(abs(x)), smallest)
    unit = Fraction(2) ** (exponent - fmt.fraction_bits)
    rounded = round_integer(x / unit, mode) * unit
    flags = 0 if rounded == x else NX
    largest = (2 - Fraction(1, 1 << fmt.fraction_bits)) * Fraction(2) ** fmt.bias
    if abs(rounded) > largest:
        up = mode in (RNE, RMM) or (mode == RUP and x > 0) or (mode == RDN and x < 0)
        return sign | (fmt.infinity if up else fmt.infinity - 1), OF | NX
    # Tiny after rounding: as if the exponent had no lower limit.
    free_unit = Fraction(2) ** (exponent_of(abs(x)) - fmt.fraction_bits)
    if flags and abs(round_integer(x / free_unit, mode) * free_unit) < Fraction(2) ** smallest:
        flags |= UF
    return sign | encode(abs(rounded), fmt), flags


def encode(x: Fraction, fmt: Format) -> int:
    """Bits of a representable number that is not negative."""
    if x == 0:
        return 0
    exponent = max(exponent_of(x), 1 - fmt.bias)
    units = x / Fraction(2) ** (exponent - fmt.fraction_bits)
    assert units.denominator == 1
    if units < 1 << fmt.fraction_bits:
        return int(units)
    return (exponent + fmt.bias - 1 << fmt.fraction_bits) + int(units)


def nan_result(fmt: Format, *operands: int) -> tuple[int, int] | None:
    if not any(map(fmt.is_nan, operands)):
        return None
    return fmt.nan, NV if any(map(fmt.is_signaling, operands)) else 0


def add(a: int, b: int, fmt: Format, mode: int) -> tuple[int, int]:
    if (nan := nan_result(fmt, a, b)) is not None:
        return nan
    if fmt.is_infinite(a) or fmt.is_infinite(b):
        if fmt.is_infinite(a) and fmt.is_infinite(b) and a != b:
            return fmt.nan, NV
        return (a if fmt.is_infinite(a) else b), 0
    return rounded_sum(fmt.value(a), fmt.value(b), fmt.negative(a), fmt.negative(b), fmt, mode)


def rounded_sum(x: Fraction, y: Fraction, minus_x: bool, minus_y: bool, fmt: Format, mode: int) -> tuple[int, int]:
    if x + y != 0:
        return round_to(x + y, fmt, mode)
    if x == 0 and minus_x == minus_y:  # two zeros of one sign
        return (fmt.sign if minus_x else 0), 0
    return (fmt.sign if mode == RDN else 0), 0


def mul(a: int, b: int, fmt: Format, mode: int) -> tuple[int, int]:
    if (nan := nan_result(fmt, a, b)) is not None:
        return nan
    sign = (a ^ b) & fmt.sign
    if fmt.is_infinite(a) or fmt.is_infinite(b):
        return (fmt.nan, NV) if fmt.is_zero(a) or fmt.is_zero(b) else (sign | fmt.infinity, 0)
    product = fmt.value(a) * fmt.value(b)
    return (sign, 0) if product == 0 else round_to(product, fmt, mode)


def div(a: int, b: int, fmt: Format, mode: int) -> tuple[int, int]:
    if (nan := nan_result(fmt, a, b)) is not None:
        return nan
    sign = (a ^ b) & fmt.sign
    if fmt.is_infinite(a):
        return (fmt.nan, NV) if fmt.is_infinite(b) else (sign | fmt.infinity, 0)
    if fmt.is_infinite(b):
        return sign, 0
    if fmt.is_zero(b):
        return (fmt.nan, NV) if fmt.is_zero(a) else (sign | fmt.infinity, DZ)
    return (sign, 0) if fmt.is_zero(a) else round_to(fmt.value(a) / fmt.value(b), fmt, mode)


def sqrt(a: int, fmt: Format, mode: int) -> tuple[int, int]:
    if (nan := nan_result(fmt, a)) is not None:
        return nan
    if fmt.is_zero(a):
        return a, 0
    if fmt.negative(a):
        return fmt.nan, NV
    if fmt.is_infinite(a):
        return a, 0
    # 200 bits of the root; what is left, however small, as another bit that cannot be a half of anything.
    shift = 2 * (200 - exponent_of(fmt.value(a)) // 2)
    scaled = fmt.value(a) * Fraction(2) ** shift
    root = math.isqrt(math.floor(scaled))
    exact = Fraction(root) if root * root == scaled else Fraction(2 * root + 1, 2)
    return round_to(exact / Fraction(2) ** (shift // 2), fmt, mode)


def fma(a: int, b: int, c: int, fmt: Format, mode: int) -> tuple[int, int]:
    invalid = (fmt.is_infinite(a) and fmt.is_zero(b)) or (fmt.is_zero(a) and fmt.is_infinite(b))
    if (nan := nan_result(fmt, a, b, c)) is not None:
        return nan[0], nan[1] | (NV if invalid else 0)
    if invalid:
        return fmt.nan, NV
    sign = (a ^ b) & fmt.sign
    if fmt.is_infinite(a) or fmt.is_infinite(b):
        if fmt.is_infinite(c) and c & fmt.sign != sign:
            return fmt.nan, NV
        return sign | fmt.infinity, 0
    if fmt.is_infinite(c):
        return c, 0
    return rounded_sum(fmt.value(a) * fmt.value(b), fmt.value(c), bool(sign), fmt.negative(c), fmt, mode)


def to_integer(a: int, width: int, signed: bool, fmt: Format, mode: int) -> tuple[int, int]:
    """As a 64-bit register value: 32-bit results are sign-extended."""
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    if fmt.is_nan(a) or fmt.is_infinite(a):
        number, flags = (low if fmt.is_infinite(a) and fmt.negative(a) else high), NV
    else:
        exact = fmt.value(a)
        number = round_integer(exact, mode)
        flags = 0 if number == exact else NX
        if not low <= number <= high:
            number, flags = (low if number < low else high), NV
    if width == 32:
        number = (number + (1 << 31)) % (1 << 32) - (1 << 31)
    return number % (1 << 64), flags


def from_integer(x: int, fmt: Format, mode: int) -> tuple[int, int]:
    return (0, 0) if x == 0 else round_to(Fraction(x), fmt, mode)


def convert(a: int, source: Format, fmt: Format, mode: int) -> tuple[int, int]:
    if source.is_nan(a):
        return fmt.nan, NV if source.is_signaling(a) else 0
    sign = fmt.sign if source.negative(a) else 0
    if source.is_infinite(a):
        return sign | fmt.infinity, 0
    return (sign, 0) if source.is_zero(a) else round_to(source.value(a), fmt, mode)
