"""Small floats and integers (see `core/dtypes.py`) as the numbers they stand for, and back, in registers.

Model: in memory and in registers alike an element is a byte, its code. `opened` makes f32 of floats, i8 or u8 of
integers; `closed` makes codes of those, rounded to nearest, halves to even (of f8e8m0fnu up). A float that the type
does not reach becomes its end (`saturate`), else infinity or NaN; NaN stays NaN, or 0 where the type has none; integers
wrap.

Formulas: a normal number's code is the f32's bits less the lowest ones, with another offset of the exponent; a
subnormal one is a whole number of least steps, which adding 2^23 of them rounds to. No f32 subnormals are computed
with, but for the least number of f8e8m0fnu.
"""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType

_MANTISSA, _BIAS = 23, 127  # of f32
_INFINITY, _NAN = 0x7F800000, 0x7FC00000


@dataclass(frozen=True)
class _Format:
    """`mantissa`: bits of it; `bias`: of the exponent; `sign`: that bit, 0 where there is none; `last`: the code of the
    greatest number; `beyond`: of what is greater; `nan`: of NaN. Where that is the sign bit alone, zero has no sign."""

    mantissa: int
    bias: int
    sign: int
    last: int
    beyond: int
    nan: int

    @property
    def least_step(self) -> float:
        """Between subnormal numbers."""
        return 2.0 ** (1 - self.bias - self.mantissa)


_FORMATS = {
    DType.F8E4M3FN: _Format(3, 7, 0x80, 0x7E, 0x7F, 0x7F),
    DType.F8E4M3FNUZ: _Format(3, 8, 0x80, 0x7F, 0x80, 0x80),
    DType.F8E5M2: _Format(2, 15, 0x80, 0x7B, 0x7C, 0x7E),
    DType.F8E5M2FNUZ: _Format(2, 16, 0x80, 0x7F, 0x80, 0x80),
    DType.F8E8M0FNU: _Format(0, 127, 0, 0xFE, 0xFF, 0xFF),
    DType.F6E2M3FN: _Format(3, 1, 0x20, 0x1F, 0x1F, 0x0),
    DType.F6E3M2FN: _Format(2, 3, 0x20, 0x1F, 0x1F, 0x0),
    DType.F4E2M1FN: _Format(1, 1, 0x8, 0x7, 0x7, 0x0),
}


def opened(code: Expr, dtype: DType) -> tuple[Expr, DType]:
    """What codes of a small type stand for, and the type that they are then of."""
    if dtype.is_integer:
        spare = 8 - dtype.bits
        high = code << spare
        return (high.sar(spare), DType.I8) if dtype.is_signed else (high.shr(spare), DType.U8)
    shape, wide = _FORMATS[dtype], code.to_int(32, signed=False)
    if dtype is DType.F8E8M0FNU:
        bits = wide.equals(0).choose(wide.const(1 << (_MANTISSA - 1)), wide << _MANTISSA)
        return wide.equals(shape.nan).choose(wide.const(_NAN), bits).as_float(), DType.F32
    size = wide & (shape.sign - 1)
    steps = size.to_float(False, signed=True) * shape.least_step
    offset = (_BIAS - shape.bias) << _MANTISSA
    normal = (size << (_MANTISSA - shape.mantissa)) + offset
    bits = size.compare("<", 1 << shape.mantissa).choose(steps.bits(), normal)
    if shape.beyond == 0x7C:
        bits = size.compare(">=", shape.beyond).choose((size << (_MANTISSA - shape.mantissa)) | _INFINITY, bits)
    elif shape.nan > shape.last:
        bits = (wide if shape.nan == shape.sign else size).equals(shape.nan).choose(bits.const(_NAN), bits)
    sign = (wide & shape.sign) << (32 - dtype.bits)
    return (bits | sign).as_float(), DType.F32


def closed(x: Expr, dtype: DType, saturate: bool) -> Expr:
    """Codes of a small type: of f32, or of bytes for one of integers."""
    if dtype.is_integer:
        return x & ((1 << dtype.bits) - 1)
    shape = _FORMATS[dtype]
    if dtype is DType.F8E8M0FNU:
        return _exponents(x, shape, saturate)
    all_bits = x.bits()
    bits = all_bits & 0x7FFFFFFF
    shift = _MANTISSA - shape.mantissa
    odd = bits.shr(shift) & 1
    normal = (bits + odd + ((1 << (shift - 1)) - 1)).shr(shift) - ((_BIAS - shape.bias) << shape.mantissa)
    half = shape.least_step * 2.0**_MANTISSA
    steps = (x.abs() + half).bits() - x.const(half).bits()
    code = (x.abs() < 2.0 ** (1 - shape.bias)).choose(steps, normal)
    end = shape.last if saturate else shape.beyond
    code = code.compare(">", shape.last).choose(code.const(end), code)
    code = x.is_nan().choose(code.const(shape.nan), code)
    signed = code | (all_bits.shr(31) << (dtype.bits - 1))
    if shape.nan == shape.sign:  # zero has no sign
        signed = code.equals(0).choose(code, signed)
    return signed.to_int(8)


def _exponents(x: Expr, shape: _Format, saturate: bool) -> Expr:
    """Codes of f8e8m0fnu: powers of two, without a sign or zero; halves become the greater one."""
    bits = x.bits()
    half = bits.compare("<", 1 << _MANTISSA).choose(bits.const(1 << (_MANTISSA - 2)), bits.const(1 << (_MANTISSA - 1)))
    code = (bits + half).shr(_MANTISSA)
    code = code.compare(">", shape.last).choose(code.const(shape.last if saturate else shape.beyond), code)
    code = bits.compare("<=", 0).choose(code.const(0 if saturate else shape.nan), code)
    return x.is_nan().choose(code.const(shape.nan), code).to_int(8)
