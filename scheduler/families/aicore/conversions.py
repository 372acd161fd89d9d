"""Conversions between element types as vector commands: cast, quantize, dequantize."""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.registry.vector_ops import STEPS
from superkernel.scheduler.families.aicore.lowering import Const, engine_type, unsupported
from superkernel.scheduler.families.aicore.site import InstructionSite

F32, F16, I32, I16 = DType.F32, DType.F16, DType.I32, DType.I16


def cast(s: InstructionSite) -> int:
    """Register of the argument in the instruction's type, by way of others where no command converts directly. Raises
    UnsupportedError."""
    source, wanted = s.dtype, s.instruction.dtype
    if ("cast", source, wanted) not in STEPS:
        raise unsupported(s.instruction, f"the vector engine does not convert {source}")
    if source is DType.I64:
        return _cast_of_words(s)
    if wanted is DType.BOOL:
        x = s.e.form(s.args[0], F16) if source.itemsize == 1 else s.x(exact=True)
        return s.e.compare("ne", x, Const(0))
    if wanted.is_float:
        own = engine_type(wanted)
        if s.e.has(s.args[0], own) or (source.itemsize == 1 and wanted is F16):
            return s.e.form(s.args[0], own)
        return s.wide()
    if source.is_float:
        if not s.instruction.attr("saturate"):
            raise unsupported(s.instruction, "casts of floats to integers that wrap are not supported")
        x = s.x(exact=True)
        return s.e.cast(x, wanted, "trunc")
    return _between_integers(s, s.e.form(s.args[0], engine_type(source)), wanted)


def _between_integers(s: InstructionSite, x: int, wanted: DType) -> int:
    """Modulo 2^(width): the places above are shifted out, then the conversions, which bound, change nothing."""
    e, dtype = s.e, s.e.dtype(x)
    if dtype is engine_type(wanted):
        return x
    if dtype.itemsize < wanted.itemsize:
        if wanted is I16:
            return e.cast(e.cast(x, F16), I16)
        return e.cast(x, I32)
    if dtype.itemsize == 1:  # a truth value to a byte
        return e.cast(e.cast(x, F16), wanted)
    places = 8 * (dtype.itemsize - wanted.itemsize)
    low = e.shift("v_shr", e.shift("v_shl", x, places), places)
    if wanted is I16:
        return e.cast(low, I16)
    return e.cast(e.cast(low, F16 if dtype is I16 else F32), wanted)


def _cast_of_words(s: InstructionSite) -> int:
    """i64 from its two halves; as a float high x 2^32 + low, the low half taken as unsigned."""
    e, number, wanted = s.e, s.args[0], s.instruction.dtype
    if number >= len(e.program.inputs) or e.program.inputs[number].source < 0:
        raise unsupported(s.instruction, "only an i64 input can be converted")
    low = e.load(number, I32, 2, 0)
    if wanted is I32:
        return low
    high = e.load(number, I32, 2, 1)
    if wanted is DType.BOOL:
        return e.compare("ne", e.binary("v_or", low, high), Const(0))
    upper = e.scalar("v_muls", e.cast(high, F32), 2.0**32)
    lower = e.cast(low, F32)
    unsigned = e.select(e.compare("lt", low, Const(0)), e.scalar("v_adds", lower, 2.0**32), lower)
    # Small negative numbers have high = -1: taken together exactly, where the float path would round the low half.
    small = e.compare("eq", high, e.shift("v_shr", low, 31))
    return e.select(small, lower, e.binary("v_add", upper, unsigned))


def quantize(s: InstructionSite) -> int:
    """round(x / scale) + zero point; the last conversion bounds."""
    e, wanted = s.e, s.instruction.dtype
    if ("quantize", s.dtype, wanted) not in STEPS:
        raise unsupported(s.instruction, f"the vector engine has no {wanted}")
    scale = e.values[s.args[1]].const
    x = s.wide()
    divisor = e.constant(scale, F32, e.layout(x)) if scale is not None else s.wide(1)
    steps = e.cast(e.binary("v_div", x, divisor), F32)
    if len(s.args) > 2 and s.args[2] >= 0:
        zero = e.values[s.args[2]].const
        steps = e.scalar("v_adds", steps, zero) if zero is not None else e.binary("v_add", steps, s.wide(2))
    return e.cast(steps, wanted)


def dequantize(s: InstructionSite) -> int:
    """(x - zero point) * scale, in the wide type."""
    e, x = s.e, s.wide()
    if len(s.args) > 2 and s.args[2] >= 0:
        zero = e.values[s.args[2]].const
        x = e.scalar("v_adds", x, -zero) if zero is not None else e.binary("v_sub", x, s.wide(2))
    scale = e.values[s.args[1]].const
    return e.scalar("v_muls", x, scale) if scale is not None else e.binary("v_mul", x, s.wide(1))
