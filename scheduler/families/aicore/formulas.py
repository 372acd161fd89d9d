"""Pointwise operators as vector commands: the table of what `lowering` does with each instruction.

Model: `lower(program, ...)` is the entry. A handler gets the instruction and its arguments' SSA numbers and returns a
register, whose element type is that of the new value's first form. Constants come as `Const`; an instruction with
constant arguments only is folded by the operator's own reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Instruction, PointwiseProgram
from superkernel.ops.table import op_table
from superkernel.registry.vector_ops import why_not
from superkernel.scheduler.families.aicore import composed, conversions
from superkernel.scheduler.families.aicore.lowering import (
    Const,
    LoweredValue,
    ProgramLowering,
    engine_type,
    is_exact,
    unsupported,
)
from superkernel.scheduler.families.aicore.site import InstructionSite
from superkernel.scheduler.families.aicore.tilecode import TileCode, TileLayout

F32, F16, I32, I16, U8 = DType.F32, DType.F16, DType.I32, DType.I16, DType.U8
Argument = int | Const
POWER_MAX = 64  # whole exponents up to here are multiplications


Handler = Callable[[InstructionSite], int]


def lower(
    program: PointwiseProgram,
    dtypes: Sequence[DType],
    row: int,
    col: int,
    *,
    anchors: Sequence[DType] = (),
    anchor_layout: TileLayout | None = None,
    deliver: DType | None = None,
    staged: bool = False,
) -> TileCode:
    """Tile code of a program. `dtypes`: element type of each output's operand; `row`, `col`: the dimensions that are a
    tile's rows and columns (row -1: tiles of one row); `anchors`: in which type the anchor's results arrive, and
    `anchor_layout` in which layout (by default an element each); `deliver`: the type of what feeds the anchor;
    `staged`: whether inputs that are stored as they are go through the vector engine like all others.

    Raises UnsupportedError where the vector engine does not compute an operator of that type."""
    return _lower(program, tuple(dtypes), row, col, tuple(anchors), anchor_layout, deliver, staged)


@lru_cache(maxsize=1024)
def _lower(
    program: PointwiseProgram,
    dtypes: tuple[DType, ...],
    row: int,
    col: int,
    anchors: tuple[DType, ...],
    anchor_layout: TileLayout | None,
    deliver: DType | None,
    staged: bool,
) -> TileCode:
    e = ProgramLowering(program, row, col, anchors, anchor_layout, staged)
    first = len(program.inputs)
    for k, instruction in enumerate(program.instructions):
        e.values.append(_value(e, instruction, first + k))
    return e.finish(dtypes, deliver)


def _value(e: ProgramLowering, instruction: Instruction, number: int) -> LoweredValue:
    if instruction.op == "constant":
        value = instruction.attr("value")
        assert isinstance(value, (int, float))
        return LoweredValue(instruction.dtype, value)
    given = [a for a in instruction.args if a >= 0]
    if given and all(e.values[a].const is not None for a in given):
        return LoweredValue(instruction.dtype, _folded(e, instruction))
    own = e.program.dtype_of(given[0]) if given else None
    if instruction.op == "identity" or (instruction.op == "cast" and instruction.dtype is own):
        source = e.values[instruction.args[0]]
        if not source.forms:
            e.form(instruction.args[0], engine_type(source.dtype))
        return LoweredValue(instruction.dtype, None, source.forms)
    handler = _HANDLERS.get(instruction.op)
    kind = e.program.dtype_of(instruction.args[op_table()[instruction.op].typed_by])
    if reason := why_not(instruction.op, kind):
        raise unsupported(instruction, f"the vector engine does not compute it: {reason}")
    if handler is None:
        raise InternalError("the operator table promises what has no lowering", location=instruction.op)
    register = handler(InstructionSite(e, instruction, number))
    return LoweredValue(instruction.dtype, None, {e.dtype(register): register})


def _folded(e: ProgramLowering, instruction: Instruction) -> float | int | bool:
    """An instruction of constants, by the operator's reference."""
    definition = op_table()[instruction.op]
    arrays = [
        np.asarray(e.values[a].const).astype(e.values[a].dtype.numpy) if a >= 0 else None for a in instruction.args
    ]
    (found,) = definition.reference(arrays, dict(instruction.attrs), (TensorType(instruction.dtype, ()),))
    value: float | int | bool = np.asarray(found).astype(instruction.dtype.numpy).item()
    return float(value) if instruction.dtype.is_float else value


# Handlers


def _command(command: str, exact: bool) -> Handler:
    return lambda s: s.e.unary(command, s.x(exact))


def _rounded(direction: str) -> Handler:
    def handler(s: InstructionSite) -> int:
        x = s.x(exact=True)
        return s.e.cast(x, s.e.dtype(x), direction)

    return handler


def _plain(function: composed.Function) -> Handler:
    return lambda s: function(s.e, *(s.wide(k) for k in range(len(s.args))))


def _two(matrix: str, scalar: str, exact: bool) -> Handler:
    """A commutative operator with a form for constants."""

    def handler(s: InstructionSite) -> int:
        a, b = s.given(exact)
        if isinstance(a, Const):
            a, b = b, a
        assert isinstance(a, int)
        return s.e.scalar(scalar, a, b.value) if isinstance(b, Const) else s.e.binary(matrix, a, b)

    return handler


def _sub(s: InstructionSite) -> int:
    a, b = s.given()
    if isinstance(a, Const):
        assert isinstance(b, int)
        return s.e.scalar("v_rsubs", b, a.value)
    if isinstance(b, Const):
        return s.e.scalar("v_adds", a, -b.value)
    return s.e.binary("v_sub", a, b)


def _div(s: InstructionSite) -> int:
    a, b = s.given()
    if isinstance(b, Const):
        assert isinstance(a, int)
        value = float(b.value)
        mantissa, exponent = math.frexp(value) if value and math.isfinite(value) else (0.0, 0)
        if abs(mantissa) == 0.5 and abs(exponent) < 14:  # a power of two: its inverse is exact
            return s.e.scalar("v_muls", a, 1.0 / value)
        return s.e.binary("v_div", a, s.e.constant(value, s.e.dtype(a), s.e.layout(a)))
    if isinstance(a, Const):
        if a.value == 1:
            return s.e.unary("v_reciprocal", b)
        a = s.e.constant(a.value, s.e.dtype(b), s.e.layout(b))
    return s.e.binary("v_div", a, b)


def _square(s: InstructionSite) -> int:
    x = s.x()
    return s.e.binary("v_mul", x, x)


def _sign(s: InstructionSite) -> int:
    """1 above 0, -1 below, else x itself (0, NaN)."""
    x = s.x(exact=True)
    above, below = (s.e.compare(p, x, Const(0)) for p in ("gt", "lt"))
    lesser = s.e.select(below, Const(-1), x)
    return s.e.select(above, Const(1), lesser)


def _comparison(predicate: str) -> Handler:
    turned = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}

    def handler(s: InstructionSite) -> int:
        if s.dtype is DType.BOOL:
            differs = _differs(s.e, *(s.e.form(a, U8) for a in s.args))
            return _inverted(s.e, differs) if predicate == "eq" else differs
        a, b = s.given(exact=True)
        if isinstance(a, Const):
            assert isinstance(b, int)
            return s.e.compare(turned.get(predicate, predicate), b, a)
        return s.e.compare(predicate, a, b)

    return handler


def _inverted(e: ProgramLowering, mask: int) -> int:
    return e.select(mask, e.constant(0, U8, e.layout(mask)), Const(1))


def _differs(e: ProgramLowering, a: int, b: int) -> int:
    return e.select(a, _inverted(e, b), b)


def _logical(op: str) -> Handler:
    def handler(s: InstructionSite) -> int:
        a, b = (s.e.form(x, U8) for x in s.args)
        if op == "and":
            return s.e.select(a, b, Const(0))
        return s.e.select(a, a, b) if op == "or" else _differs(s.e, a, b)

    return handler


def _bitwise(command: str) -> Handler:
    def handler(s: InstructionSite) -> int:
        a, b = s.given()
        dtype = s.dtype
        first, second = (s.e.constant(x.value, dtype, TileLayout.SCALAR) if isinstance(x, Const) else x for x in (a, b))
        return s.e.binary(command, first, second)

    return handler


def _shift(command: str) -> Handler:
    def handler(s: InstructionSite) -> int:
        places = s.e.values[s.args[1]].const
        if places is None:
            raise unsupported(s.instruction, "shifts by computed numbers of places are not supported")
        x, width = s.e.form(s.args[0], s.dtype), 8 * s.dtype.itemsize
        if 0 <= places < width:
            return s.e.shift(command, x, int(places))
        if command == "v_shr":
            return s.e.shift(command, x, width - 1)
        return s.e.scalar("v_muls", x, 0)

    return handler


def _where(s: InstructionSite) -> int:
    mask = s.e.form(s.args[0], U8)
    branches = s.args[1:]
    kind = s.e.program.dtype_of(branches[0])
    own = engine_type(kind)
    if not kind.is_float or all(s.e.has(a, own) for a in branches):
        dtype = own
    else:
        dtype = F32
    chosen: list[Argument] = []
    for a in branches:
        const = s.e.values[a].const
        chosen.append(Const(const) if const is not None else s.e.form(a, dtype))
    if all(isinstance(c, Const) for c in chosen):
        first = chosen[0]
        assert isinstance(first, Const)
        chosen[0] = s.e.constant(first.value, dtype, s.e.layout(mask))
    return s.e.select(mask, chosen[0], chosen[1])


def _clip(s: InstructionSite) -> int:
    present = [a for a in s.args if a >= 0]
    dtype = s.compute_type(True, present)
    result = s.e.form(s.args[0], dtype)
    for place, (matrix, scalar) in enumerate((("v_max", "v_maxs"), ("v_min", "v_mins")), 1):
        if len(s.args) > place and s.args[place] >= 0:
            const = s.e.values[s.args[place]].const
            if const is not None:
                result = s.e.scalar(scalar, result, const)
            else:
                result = s.e.binary(matrix, result, s.e.form(s.args[place], dtype))
    return result


def _prelu(s: InstructionSite) -> int:
    """max(x, 0) + slope min(x, 0)."""
    x = s.wide()
    slope = s.e.values[s.args[1]].const
    below = s.e.scalar("v_mins", x, 0.0)
    scaled = s.e.binary("v_mul", below, s.wide(1)) if slope is None else s.e.scalar("v_muls", below, slope)
    return s.e.select(s.e.compare("lt", x, Const(0.0)), scaled, x)


def _leaky(s: InstructionSite) -> int:
    """v_leaky multiplies at 0 as well, where the sign does not matter."""
    x = s.x() if is_exact(s.attr("alpha"), F16) else s.wide()
    return s.e.scalar("v_leaky", x, s.attr("alpha"))


def _pow(s: InstructionSite) -> int:
    exponent = s.e.values[s.args[1]].const
    if exponent is None:
        raise unsupported(s.instruction, "powers with computed exponents are not supported")
    e, x, b = s.e, s.wide(), float(exponent)
    if b == 0.0:
        return e.constant(1.0, F32, e.layout(x))
    named = {0.5: "v_sqrt", -0.5: "v_rsqrt", -1.0: "v_reciprocal"}
    if b in named:
        return e.unary(named[b], x)
    if b == math.floor(b) and abs(b) <= POWER_MAX:
        power = _whole_power(e, x, int(abs(b)))
        return power if b > 0 else e.unary("v_reciprocal", power)
    return e.unary("v_exp", e.scalar("v_muls", e.unary("v_ln", x), b))


def _whole_power(e: ProgramLowering, x: int, n: int) -> int:
    result, square = -1, x
    while n:
        if n & 1:
            result = square if result < 0 else e.binary("v_mul", result, square)
        n >>= 1
        if n:
            square = e.binary("v_mul", square, square)
    return result


def _erf(s: InstructionSite) -> int:
    return composed.erf(s.e, s.wide(), s.short)


def _gelu(s: InstructionSite) -> int:
    return composed.gelu(s.e, s.wide(), s.short, s.instruction.attr("approximate") == "tanh")


def _threshold(s: InstructionSite) -> int:
    x = s.x(exact=True) if is_exact(s.attr("alpha"), F16) else s.wide()
    low = s.e.compare("le", x, Const(s.attr("alpha")))
    return s.e.select(low, s.e.constant(0.0, s.e.dtype(x), s.e.layout(x)), x)


def _shrink(s: InstructionSite) -> int:
    e, x, bias, limit = s.e, s.wide(), s.attr("bias"), s.attr("lambd")
    low, high = e.compare("lt", x, Const(-limit)), e.compare("gt", x, Const(limit))
    other = e.select(e.compare("ne", x, x), x, Const(0.0))
    above = e.select(high, e.scalar("v_adds", x, -bias), other)
    return e.select(low, e.scalar("v_adds", x, bias), above)


def _isnan(s: InstructionSite) -> int:
    x = s.x(exact=True)
    return s.e.compare("ne", x, x)


def _isinf(s: InstructionSite) -> int:
    x = s.x(exact=True)
    found = [
        s.e.compare("eq", x, Const(sign * math.inf))
        for name, sign in (("detect_positive", 1), ("detect_negative", -1))
        if s.instruction.attr(name)
    ]
    if not found:
        return s.e.constant(0, U8, s.e.layout(x))
    return found[0] if len(found) == 1 else s.e.select(found[0], found[0], found[1])


_HANDLERS: dict[str, Handler] = {
    **{name: _plain(function) for name, function in composed.PLAIN.items()},
    **{f: _command(c, False) for f, c in (("exp", "v_exp"), ("log", "v_ln"), ("sqrt", "v_sqrt"), ("rsqrt", "v_rsqrt"))},
    "reciprocal": _command("v_reciprocal", False),
    **{f: _command(f"v_{f}", True) for f in ("abs", "neg", "relu")},
    **{direction: _rounded(direction) for direction in ("floor", "ceil", "trunc")},
    "round": _rounded("nearest_even"),
    "sign": _sign,
    "square": _square,
    "add": _two("v_add", "v_adds", False),
    "mul": _two("v_mul", "v_muls", False),
    "minimum": _two("v_min", "v_mins", True),
    "maximum": _two("v_max", "v_maxs", True),
    "sub": _sub,
    "div": _div,
    "pow": _pow,
    "prelu": _prelu,
    "leaky_relu": _leaky,
    "elu": lambda s: composed.elu(s.e, s.wide(), s.attr("alpha"), 1.0),
    "selu": lambda s: composed.elu(s.e, s.wide(), s.attr("alpha"), s.attr("gamma")),
    "celu": lambda s: composed.celu(s.e, s.wide(), s.attr("alpha")),
    "hard_sigmoid": lambda s: composed.hard_sigmoid(s.e, s.wide(), s.attr("alpha"), s.attr("beta")),
    "thresholded_relu": _threshold,
    "shrink": _shrink,
    "erf": _erf,
    "gelu": _gelu,
    "isnan": _isnan,
    "isinf": _isinf,
    **{
        op: _comparison(p)
        for op, p in (
            ("equal", "eq"), ("not_equal", "ne"), ("less", "lt"), ("less_equal", "le"), ("greater", "gt"),
            ("greater_equal", "ge"),
        )
    },
    **{f"logical_{op}": _logical(op) for op in ("and", "or", "xor")},
    "logical_not": lambda s: _inverted(s.e, s.x()),
    **{f"bitwise_{op}": _bitwise(f"v_{op}") for op in ("and", "or", "xor")},
    "bitwise_not": lambda s: s.e.unary("v_not", s.x()),
    "shift_left": _shift("v_shl"),
    "shift_right": _shift("v_shr"),
    "where": _where,
    "clip": _clip,
    "cast": conversions.cast,
    "quantize": conversions.quantize,
    "dequantize": conversions.dequantize,
}  # fmt: skip
