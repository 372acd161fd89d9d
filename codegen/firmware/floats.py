"""Numbers of the engine commands: what an element is in a register, and every rounding, as IR.

Model: a *lane* is what commands compute with: f32 for f32, f16 and bf16, i32 (sign or zero extended) for integers.
Conversions work on bits, so that no rounding mode and no instruction beyond RV64GC is needed. RV64's own arithmetic
rounds to nearest even and makes every NaN the canonical one, as the commands want it; what copies a NaN on its way
canonicalises it here.

`exp` and `ln` compute in f64 and round once to f32: within an ulp with room to spare.
"""

from __future__ import annotations

import math

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I1, I16, I32, I64, Scalar
from superkernel.codegen.firmware.code import F32, F64, Code, scalar
from superkernel.core.dtypes import DType

FLOAT_TYPES = (DType.F32, DType.F16, DType.BF16)
NAN_BITS = 0x7FC00000
BOUNDS = {
    DType.I32: (-(1 << 31), (1 << 31) - 1),
    DType.I16: (-(1 << 15), (1 << 15) - 1),
    DType.I8: (-128, 127),
    DType.U8: (0, 255),
}
_EXP_TERMS, _LN_TERMS = 13, 11


def const(value: int, kind: ir.Type = I32) -> ir.Constant:
    """An integer constant of type `kind`."""
    return ir.Constant(kind, value)


def f32_const(bits: int, b: ir.IRBuilder) -> ir.Value:
    """The float with these bits, so that no text form rounds it."""
    return b.bitcast(const(bits), F32)


def real(value: float) -> ir.Constant:
    """An f64 constant."""
    return ir.Constant(F64, value)


def is_nan(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """i1: whether a float, quiet or signalling, is not a number."""
    return b.fcmp_unordered("uno", x, x)


def canonical(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """x, a NaN as the canonical one."""
    return b.select(is_nan(b, x), f32_const(NAN_BITS, b), x)


# Between lanes and memory ---------------------------------------------------------------------------------------------


def widen(c: Code, bits: ir.Value, dtype: DType) -> ir.Value:
    """The lane of an element's bits (an integer of its width)."""
    b = c.b
    if dtype is DType.F32:
        return b.bitcast(bits, F32)
    if dtype is DType.F16:
        return _f16_to_f32(b, b.zext(bits, I32))
    if dtype is DType.BF16:
        return b.bitcast(b.shl(b.zext(bits, I32), const(16)), F32)
    if dtype.itemsize == 4:
        return bits
    return b.zext(bits, I32) if dtype in (DType.U8, DType.U16) else b.sext(bits, I32)


def narrow(c: Code, lane: ir.Value, dtype: DType) -> ir.Value:
    """The bits of a lane: floats rounded to nearest even, NaN canonical; integers modulo their width."""
    b = c.b
    if dtype is DType.F32:
        return b.bitcast(lane, I32)
    if dtype is DType.F16:
        return b.trunc(_f32_to_f16(b, b.bitcast(lane, I32)), I16)
    if dtype is DType.BF16:
        return b.trunc(_f32_to_bf16(b, b.bitcast(lane, I32)), I16)
    return lane if dtype.itemsize == 4 else b.trunc(lane, ir.IntType(8 * dtype.itemsize))


def bits_type(dtype: DType) -> ir.IntType:
    """The integer as wide as an element."""
    return ir.IntType(8 * dtype.itemsize)


def _f16_to_f32(b: ir.IRBuilder, h: ir.Value) -> ir.Value:
    sign = b.shl(b.and_(h, const(0x8000)), const(16))
    size = b.and_(h, const(0x7FFF))
    moved = b.shl(size, const(13))
    normal = b.add(moved, const(112 << 23))
    special = b.add(moved, const(224 << 23))  # exponent 31 becomes 255
    small = b.bitcast(b.fmul(b.uitofp(size, F32), ir.Constant(F32, 2.0**-24)), I32)
    value = b.select(b.icmp_unsigned("<", size, const(0x400)), small, normal)
    value = b.select(b.icmp_unsigned(">=", size, const(0x7C00)), special, value)
    return b.bitcast(b.or_(value, sign), F32)


def _f32_to_f16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """To nearest even."""
    sign = b.and_(b.lshr(x, const(16)), const(0x8000))
    size = b.and_(x, const(0x7FFFFFFF))
    odd = b.and_(b.lshr(size, const(13)), const(1))
    normal = b.lshr(b.add(b.sub(size, const(112 << 23)), b.add(const(0xFFF), odd)), const(13))
    half = ir.Constant(F32, 0.5)  # its last place is the smallest f16: the sum rounds to a multiple of it
    small = b.sub(b.bitcast(b.fadd(b.bitcast(size, F32), half), I32), const(126 << 23))
    value = b.select(b.icmp_unsigned("<", size, const(113 << 23)), small, normal)
    value = b.select(b.icmp_unsigned(">=", size, const(143 << 23)), const(0x7C00), value)
    value = b.or_(value, sign)
    return b.select(b.icmp_unsigned(">", size, const(0x7F800000)), const(0x7E00), value)


def _f32_to_bf16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """To nearest even."""
    odd = b.and_(b.lshr(x, const(16)), const(1))
    value = b.lshr(b.add(x, b.add(const(0x7FFF), odd)), const(16))
    nan = b.icmp_unsigned(">", b.and_(x, const(0x7FFFFFFF)), const(0x7F800000))
    return b.select(nan, const(0x7FC0), value)


# Comparison -----------------------------------------------------------------------------------------------------------


def extreme(c: Code, a: ir.Value, other: ir.Value, *, largest: bool) -> ir.Value:
    """max or min of two lanes: NaN where one is NaN; -0 is less than +0."""
    b = c.b
    if a.type == I32:
        return b.select(b.icmp_signed(">" if largest else "<", a, other), a, other)
    first, second = b.bitcast(a, I32), b.bitcast(other, I32)
    zeros = b.bitcast(b.and_(first, second) if largest else b.or_(first, second), F32)
    taken = b.select(b.fcmp_ordered(">" if largest else "<", a, other), a, other)
    taken = b.select(b.fcmp_ordered("==", a, other), zeros, taken)  # equal bits but for zeros
    return b.select(b.fcmp_unordered("uno", a, other), f32_const(NAN_BITS, b), taken)


def above_zero(c: Code, x: ir.Value) -> ir.Value:
    """i1: whether an i32 (signed) or f32 is greater than zero; NaN is not."""
    if x.type == I32:
        return c.b.icmp_signed(">", x, const(0))
    return c.b.fcmp_ordered(">", x, ir.Constant(F32, 0.0))


# Rounding in a direction ----------------------------------------------------------------------------------------------


def round_up(c: Code, direction: Scalar, negative: ir.Value, kept: Scalar, rest: Scalar, half: Scalar) -> Scalar:
    """1 where the kept bits of a size take another one for the `rest` that is cut off, else 0."""
    b = c.b
    odd = c.compare("!=", kept & 1, 0)
    above, tie, some = (c.compare(r, rest, v) for r, v in ((">", half), ("==", half), ("!=", 0)))
    cases = (b.or_(above, b.and_(tie, odd)), b.and_(some, negative), b.and_(some, b.not_(negative)),
             const(0, I1), b.or_(above, tie))  # fmt: skip
    chosen = cases[0]
    for number, case in list(enumerate(cases))[1:]:
        chosen = b.select(c.compare("==", direction, number), case, chosen)
    return c.num(b.zext(chosen, I64))


def emit_round_f32(module: ir.Module, name: str, dtype: DType) -> None:
    """`name(bits of an f32, direction)`: the bits of the f16 or bf16 in that direction."""
    c = Code(module, name, 2, result=True)
    bits, direction = c.args
    size, sign = bits & 0x7FFFFFFF, bits >> 31
    negative = c.compare("!=", sign, 0)
    with c.when(c.compare(">", size, 0x7F800000)):
        c.ret(0x7E00 if dtype is DType.F16 else 0x7FC0)
    with c.when(c.compare("==", size, 0x7F800000)):
        infinite = 0x7C00 if dtype is DType.F16 else 0x7F80
        c.ret(sign << 15 | infinite)
    if dtype is DType.BF16:
        kept, rest, half = scalar(size >> 16), scalar(size & 0xFFFF), c.num(const(0x8000, I64))
    else:
        exponent, fraction = size >> 23, size & 0x7FFFFF
        full = c.choose(c.compare("==", exponent, 0), fraction, fraction | 0x800000)
        small = c.compare("<", size, 113 << 23)
        places = c.least(126 - exponent, 31)  # of a subnormal result, in units of 2^-24
        shift = c.choose(small, places, 13)
        source = c.choose(small, full, size - (112 << 23))
        cut = c.num(c.b.shl(const(1, I64), shift.value))
        kept = c.num(c.b.lshr(source.value, shift.value))
        rest, half = scalar(source & (cut - 1)), scalar(cut >> 1)
        large = c.compare(">=", size, 143 << 23)
        kept, rest = c.choose(large, 0x7BFF, kept), c.choose(large, 0xFFFFFF, rest)
    c.ret(sign << 15 | kept + round_up(c, direction, negative, kept, rest, half))


def emit_round_integer(module: ir.Module, name: str, dtype: DType) -> None:
    """`name(signed integer, direction)`: the bits of the f32 or f16."""
    c = Code(module, name, 2, result=True)
    value, direction = c.args
    with c.when(c.compare("==", value, 0)):
        c.ret(0)
    negative = c.b.icmp_signed("<", value.value, const(0, I64))
    size = c.choose(negative, 0 - value, value)
    lead = c.num(c.intrinsic("llvm.ctlz", I64, size.value, const(1, I1)))
    full = c.num(c.b.shl(size.value, lead.value))
    fraction, bias, top = (23, 127, 255) if dtype is DType.F32 else (10, 15, 31)
    cut = 63 - fraction
    rest = scalar(full & ((1 << cut) - 1))
    exponent = (63 + bias - 1) - lead  # one less: the leading bit of `kept` adds it
    found = scalar((scalar(exponent) << fraction) + (full >> cut))
    large = c.compare(">=", exponent, top - 1)
    found, rest = c.choose(large, (top << fraction) - 1, found), c.choose(large, (1 << cut) - 1, rest)
    rounded = found + round_up(c, direction, negative, found, rest, c.num(const(1 << cut - 1, I64)))
    sign = c.num(c.b.zext(negative, I64)) << (31 if dtype is DType.F32 else 15)
    c.ret(rounded | sign)


def emit_whole(module: ir.Module, name: str) -> None:
    """`name(bits of an f32, direction)`: the bits of the whole number in that direction, NaN canonical."""
    c = Code(module, name, 2, result=True)
    bits, direction = c.args
    x = c.b.bitcast(c.b.trunc(bits.value, I32), F32)
    names = ("llvm.roundeven", "llvm.floor", "llvm.ceil", "llvm.trunc", "llvm.round")

    def case(intrinsic: str) -> None:
        rounded = canonical(c.b, c.intrinsic(intrinsic, F32, x))
        c.b.ret(c.b.zext(c.b.bitcast(rounded, I32), I64))

    c.switch(direction, {n: lambda i=i: case(i) for n, i in enumerate(names)}, lambda: c.ret(NAN_BITS))  # type: ignore[misc]
    c.b.unreachable()


def bounded(c: Code, number: ir.Value, dtype: DType) -> ir.Value:
    """A signed i64, bounded by the range of an integer type, as an i64."""
    low, high = BOUNDS[dtype]
    for name, bound in (("llvm.smax", low), ("llvm.smin", high)):
        number = c.intrinsic(name, I64, number, const(bound, I64))
    return number


def to_integer(c: Code, whole: ir.Value, dtype: DType) -> ir.Value:
    """A whole f32 as an i64, bounded; NaN gives 0."""
    return bounded(c, c.intrinsic("llvm.fptosi.sat", I64, whole, suffix=(I64, F32)), dtype)


# Functions ------------------------------------------------------------------------------------------------------------


def exp(c: Code, x: ir.Value) -> ir.Value:
    """e^x of an f32 lane: 2^k e^r with |r| <= ln(2) / 2, e^r by its series."""
    b = c.b
    wide = b.fpext(x, F64)
    for relation, bound in ((">", 100.0), ("<", -120.0)):
        wide = b.select(b.fcmp_ordered(relation, wide, real(bound)), real(bound), wide)
    wide = b.select(is_nan(b, x), real(0.0), wide)
    k = c.intrinsic("llvm.roundeven", F64, b.fmul(wide, real(1 / math.log(2))))
    r = c.intrinsic("llvm.fma", F64, k, real(-math.log(2)), wide)
    p: ir.Value = real(1 / math.factorial(_EXP_TERMS))
    for n in reversed(range(_EXP_TERMS)):
        p = c.intrinsic("llvm.fma", F64, p, r, real(1 / math.factorial(n)))
    scale = b.bitcast(b.shl(b.add(b.fptosi(k, I64), const(1023, I64)), const(52, I64)), F64)
    return b.select(is_nan(b, x), f32_const(NAN_BITS, b), b.fptrunc(b.fmul(p, scale), F32))


def ln(c: Code, x: ir.Value) -> ir.Value:
    """Natural logarithm of an f32 lane: e ln 2 + 2 artanh((m - 1) / (m + 1)), m between sqrt(1/2) and sqrt(2)."""
    b = c.b
    bits = b.bitcast(b.fpext(x, F64), I64)
    e = b.sub(b.and_(b.lshr(bits, const(52, I64)), const(2047, I64)), const(1023, I64))
    m = b.bitcast(b.or_(b.and_(bits, const((1 << 52) - 1, I64)), const(1023 << 52, I64)), F64)
    large = b.fcmp_ordered(">", m, real(math.sqrt(2)))
    m = b.select(large, b.fmul(m, real(0.5)), m)
    e = b.add(e, b.zext(large, I64))
    s = b.fdiv(b.fsub(m, real(1.0)), b.fadd(m, real(1.0)))
    z = b.fmul(s, s)
    p: ir.Value = real(2 / (2 * _LN_TERMS + 1))
    for n in reversed(range(_LN_TERMS)):
        p = c.intrinsic("llvm.fma", F64, p, z, real(2 / (2 * n + 1)))
    result = c.intrinsic("llvm.fma", F64, b.sitofp(e, F64), real(math.log(2)), b.fmul(p, s))
    found = b.fptrunc(result, F32)
    zero, infinite = ir.Constant(F32, 0.0), f32_const(0x7F800000, b)
    found = b.select(b.fcmp_ordered("==", x, infinite), infinite, found)
    found = b.select(b.fcmp_ordered("==", x, zero), f32_const(0xFF800000, b), found)
    invalid = b.or_(b.fcmp_ordered("<", x, zero), is_nan(b, x))
    return b.select(invalid, f32_const(NAN_BITS, b), found)
