"""Conversions between element types in registers (compute form), with the semantics of ONNX casts made total.

Float to integer truncates; values out of range saturate and NaN gives 0. Float to bool is `!= 0` (NaN is true).
Integer to narrower integer wraps (keeps low bits). To f16 and bf16 the value is rounded to nearest even at the cast,
though it stays in f32 in registers; from f64 it is rounded once (through f32 rounded to odd). Small types are opened
and closed around that (`small.py`).

Invariant: no operand value gives undefined behaviour, and no conversion calls a library function.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.small import closed, opened
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType


def convert(kb: KernelBuilder, value: ir.Value, source: DType, target: DType, saturate: bool = True) -> ir.Value:
    """`value` of dtype `source` as `target`, both in compute form. `saturate`: a float beyond a small one becomes its
    end, else infinity or NaN."""
    if source is target:
        return value
    x = Expr(kb, value)
    if source.is_small:
        x, source = opened(x, source)
    if target.is_small and target.is_float:
        return closed(Expr(kb, convert(kb, x.v, source, DType.F32)), target, saturate).v
    if source is target:
        return x.v
    if target is DType.BOOL:
        return x.compare("!=", 0).v
    if target.is_float:
        return _to_float(x, source, target)
    if source.is_float:
        return float_to_integer(x, target).v
    if target.is_small:
        return closed(x.to_int(8), target, saturate).v
    return x.to_int(8 * target.itemsize, signed=source.is_signed and source is not DType.BOOL).v


def _to_float(x: Expr, source: DType, target: DType) -> ir.Value:
    if target is DType.F64:
        return x.to_float(True, signed=source.is_signed).v
    if target is DType.F32:
        return x.to_float(False, signed=source.is_signed).v
    if source in (DType.F64, DType.I64, DType.U64, DType.I32, DType.U32):
        narrow = _round_to_odd(x.to_float(True, signed=source.is_signed))
    else:
        narrow = x.to_float(False, signed=source.is_signed)
    return x.kb.widen(x.kb.narrow(narrow.v, target), target)


def _round_to_odd(x: Expr) -> Expr:
    """f64 to f32 so that a second rounding to a narrower type is right: inexact results get an odd last bit."""
    near = x.to_float(False)
    back = near.to_float(True)
    bits = near.bits()
    beyond = (back.abs() > x.abs()).to_int(
        32
    )  # rounded away from zero: the truncated number is one step nearer to zero
    inexact = (back.compare("!=", x) & x.is_nan().invert() & (x.abs() < float("inf"))).to_int(32)
    return ((bits - beyond) | inexact).as_float()


def float_to_integer(x: Expr, target: DType) -> Expr:
    """Truncation with saturation; NaN gives 0."""
    low, high = target.limits
    bits = 8 * target.itemsize
    wide = bits == 64 or (bits == 32 and not x.is_double)
    if not wide:  # both limits are exact in the float type: clamp, then convert through i32 (i64 for u32)
        kept = (x.is_nan()).choose(x.const(0.0), x.clamp_low(float(low)).clamp_high(float(high)))
        whole = kept.to_int(64 if target is DType.U32 else 32).to_int(bits)
        return closed(whole, target, True) if target.is_small else whole
    kept = (x.compare(">=", float(low)) & x.compare("<", float(high + 1))).choose(x, x.const(0.0))
    value = kept.to_int(bits, signed=target.is_signed)
    value = (x >= float(high + 1)).choose(value.const(high), value)
    return (x < float(low)).choose(value.const(low), value)
