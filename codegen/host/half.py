"""f16 to f32 and back by integer arithmetic, for CPUs without conversion instructions (LLVM would call a library
there).

Works on scalars and vectors of bits; denormals, infinities and NaN included; rounding is to nearest, ties to even.
"""

from __future__ import annotations

from llvmlite import ir

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


def _of(element: ir.Type, like: ir.Type) -> ir.Type:
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def _const(element: ir.Type, value: float, like: ir.Type) -> ir.Constant:
    return ir.Constant(_of(element, like), value)


def widen_half(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Half floats as floats: the magnitude's bits, shifted, are the number over 2^112."""
    kind = value.type

    def number(v: int) -> ir.Constant:
        return _const(_I32, v, kind)

    bits = b.zext(b.bitcast(value, _of(_I16, kind)), _of(_I32, kind))
    sign = b.shl(b.and_(bits, number(0x8000)), number(16))
    magnitude = b.shl(b.and_(bits, number(0x7FFF)), number(13))
    scaled = b.fmul(b.bitcast(magnitude, _of(_F32, kind)), _const(_F32, 2.0**112, kind))
    special = b.icmp_unsigned(">=", magnitude, number(0x7C00 << 13))
    full = b.select(special, b.or_(magnitude, number(0x7F800000)), b.bitcast(scaled, _of(_I32, kind)))
    return b.bitcast(b.or_(full, sign), _of(_F32, kind))


def narrow_half(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Floats rounded to half floats."""
    kind = value.type

    def number(v: int) -> ir.Constant:
        return _const(_I32, v, kind)

    bits = b.bitcast(value, _of(_I32, kind))
    magnitude = b.and_(bits, number(0x7FFFFFFF))
    sign = b.lshr(b.and_(bits, number(0x80000000)), number(16))
    odd = b.and_(b.lshr(magnitude, number(13)), number(1))
    normal = b.lshr(
        b.add(b.add(magnitude, number((112 << 23) * -1 & 0xFFFFFFFF)), b.add(odd, number(0xFFF))), number(13)
    )
    shifted = b.fadd(b.bitcast(magnitude, _of(_F32, kind)), _const(_F32, 0.5, kind))  # rounds to multiples of 2^-24
    small = b.sub(b.bitcast(shifted, _of(_I32, kind)), number(0x3F000000))
    result = b.select(b.icmp_unsigned("<", magnitude, number(113 << 23)), small, normal)
    large = b.select(b.icmp_unsigned(">", magnitude, number(0x7F800000)), number(0x7E00), number(0x7C00))
    result = b.select(b.icmp_unsigned(">=", magnitude, number(143 << 23)), large, result)
    return b.bitcast(b.trunc(b.or_(result, sign), _of(_I16, kind)), _of(ir.HalfType(), kind))
