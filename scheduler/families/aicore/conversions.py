"""Conversions between element types as vector commands: cast, quantize, dequantize."""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.registry.vector_ops import STEPS
from superkernel.scheduler.families.aicore.lowering import InstructionSite, TileExpr, engine_type, unsupported, where

F32, F16, I32, I16 = DType.F32, DType.F16, DType.I32, DType.I16


def cast(s: InstructionSite) -> TileExpr:
    """The argument in the instruction's type, by way of others where no command converts directly. Raises
    UnsupportedError."""
    source, wanted = s.dtype, s.instruction.dtype
    if ("cast", source, wanted) not in STEPS:
        raise unsupported(s.instruction, f"the vector engine does not convert {source}")
    if source is DType.I64:
        return _cast_of_words(s)
    if wanted is DType.BOOL:
        x = s.form(0, F16) if source.itemsize == 1 else s.x(exact=True)
        return x.compare("ne", 0)
    if wanted.is_float:
        own = engine_type(wanted)
        if s.e.has(s.args[0], own) or (source.itemsize == 1 and wanted is F16):
            return s.form(0, own)
        return s.wide()
    if source.is_float:
        if not s.instruction.attr("saturate"):
            raise unsupported(s.instruction, "casts of floats to integers that wrap are not supported")
        return s.x(exact=True).cast(wanted, "trunc")
    return _between_integers(s.form(0, engine_type(source)), wanted)


def _between_integers(x: TileExpr, wanted: DType) -> TileExpr:
    """Modulo 2^(width): the places above are shifted out, then the conversions, which bound, change nothing."""
    dtype = x.dtype
    if dtype is engine_type(wanted):
        return x
    if dtype.itemsize < wanted.itemsize:
        return x.cast(F16).cast(I16) if wanted is I16 else x.cast(I32)
    if dtype.itemsize == 1:  # a truth value to a byte
        return x.cast(F16).cast(wanted)
    places = 8 * (dtype.itemsize - wanted.itemsize)
    low = x.unary("v_shl", shift=places).unary("v_shr", shift=places)
    return low.cast(I16) if wanted is I16 else low.cast(F16 if dtype is I16 else F32).cast(wanted)


def _cast_of_words(s: InstructionSite) -> TileExpr:
    """i64 from its two halves; as a float high x 2^32 + low, the low half taken as unsigned."""
    e, number, wanted = s.e, s.args[0], s.instruction.dtype
    if number >= len(e.program.inputs) or e.program.inputs[number].source < 0:
        raise unsupported(s.instruction, "only an i64 input can be converted")
    low = TileExpr(e, e.load(number, I32, 2, 0))
    if wanted is I32:
        return low
    high = TileExpr(e, e.load(number, I32, 2, 1))
    if wanted is DType.BOOL:
        return low.binary("v_or", high).compare("ne", 0)
    upper = high.cast(F32) * 2.0**32
    lower = low.cast(F32)
    unsigned = where(low < 0, lower + 2.0**32, lower)
    # Small negative numbers have high = -1: taken together exactly, where the float path would round the low half.
    small = high.compare("eq", low.unary("v_shr", shift=31))
    return where(small, lower, upper + unsigned)


def quantize(s: InstructionSite) -> TileExpr:
    """round(x / scale) + zero point; the last conversion bounds."""
    wanted = s.instruction.dtype
    if ("quantize", s.dtype, wanted) not in STEPS:
        raise unsupported(s.instruction, f"the vector engine has no {wanted}")
    x, scale = s.wide(), s.operand(1)
    steps = (x / (scale if isinstance(scale, TileExpr) else x.like(scale))).cast(F32, "nearest_even")
    return (steps + s.operand(2) if s.has(2) else steps).cast(wanted)


def dequantize(s: InstructionSite) -> TileExpr:
    """(x - zero point) * scale, in the wide type."""
    x = s.wide()
    return (x - s.operand(2) if s.has(2) else x) * s.operand(1)
