"""Pointwise operators as vector commands: the table of what `lowering` does with each instruction.

Model: `lower(program, ...)` is the entry. A handler gets the instruction at its place and returns an `TileExpr`,
whose element type is that of the new value's first form. An instruction with constant arguments only is folded by the
operator's own reference.
"""

from __future__ import annotations

import math
import operator
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
    InstructionSite,
    LoweredValue,
    ProgramLowering,
    TileExpr,
    engine_type,
    is_exact,
    maximum,
    minimum,
    unsupported,
    where,
)
from superkernel.scheduler.families.aicore.tilecode import TileCode, TileLayout

F32, F16, U8 = DType.F32, DType.F16, DType.U8
POWER_MAX = 64  # whole exponents up to here are multiplications
Handler = Callable[[InstructionSite], TileExpr]


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
    made = handler(InstructionSite(e, instruction, number))
    return LoweredValue(instruction.dtype, None, {made.dtype: made.register})


def _folded(e: ProgramLowering, instruction: Instruction) -> float:
    """An instruction of constants, by the operator's reference."""
    definition = op_table()[instruction.op]
    arrays = [
        np.asarray(e.values[a].const).astype(e.values[a].dtype.numpy) if a >= 0 else None for a in instruction.args
    ]
    (found,) = definition.reference(arrays, dict(instruction.attrs), (TensorType(instruction.dtype, ()),))
    value: float = np.asarray(found).astype(instruction.dtype.numpy).item()
    return float(value) if instruction.dtype.is_float else value


# Handlers


def _command(command: str, exact: bool) -> Handler:
    return lambda s: s.x(exact).unary(command)


def _rounded(direction: str) -> Handler:
    def handler(s: InstructionSite) -> TileExpr:
        x = s.x(exact=True)
        return x.cast(x.dtype, direction)

    return handler


def _plain(function: Callable[..., TileExpr]) -> Handler:
    return lambda s: function(*(s.wide(k) for k in range(len(s.args))))


def _two(function: Callable[..., TileExpr], exact: bool = False) -> Handler:
    """Of two operands, of which one may be a number; a number comes second where the function does not care."""

    def handler(s: InstructionSite) -> TileExpr:
        a, b = s.given(exact)
        return function(b, a) if exact and not isinstance(a, TileExpr) else function(a, b)

    return handler


def _square(s: InstructionSite) -> TileExpr:
    x = s.x()
    return x * x


def _sign(s: InstructionSite) -> TileExpr:
    """1 above 0, -1 below, else x itself (0, NaN)."""
    x = s.x(exact=True)
    above, below = x > 0, x < 0
    return where(above, 1, where(below, -1, x))


def _comparison(predicate: str) -> Handler:
    flipped = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}

    def handler(s: InstructionSite) -> TileExpr:
        if s.dtype is DType.BOOL:
            differs = _differs(s.form(0, U8), s.form(1, U8))
            return _inverted(differs) if predicate == "eq" else differs
        a, b = s.given(exact=True)
        if isinstance(a, TileExpr):
            return a.compare(predicate, b)
        assert isinstance(b, TileExpr)
        return b.compare(flipped.get(predicate, predicate), a)

    return handler


def _inverted(mask: TileExpr) -> TileExpr:
    return where(mask, mask.like(0), 1)


def _differs(a: TileExpr, b: TileExpr) -> TileExpr:
    return where(a, _inverted(b), b)


def _logical(function: Callable[[TileExpr, TileExpr], TileExpr]) -> Handler:
    return lambda s: function(s.form(0, U8), s.form(1, U8))


def _bitwise(command: str) -> Handler:
    def handler(s: InstructionSite) -> TileExpr:
        a, b = (x if isinstance(x, TileExpr) else _one(s, x) for x in s.given())
        return a.binary(command, b)

    return handler


def _one(s: InstructionSite, value: float) -> TileExpr:
    """A number in the type of the arguments, once."""
    return TileExpr(s.e, s.e.constant(value, s.dtype, TileLayout.SCALAR))


def _shift(command: str) -> Handler:
    def handler(s: InstructionSite) -> TileExpr:
        places = s.const(1)
        if places is None:
            raise unsupported(s.instruction, "shifts by computed numbers of places are not supported")
        x, width = s.form(0, s.dtype), 8 * s.dtype.itemsize
        if 0 <= places < width:
            return x.unary(command, shift=int(places))
        return x.unary(command, shift=width - 1) if command == "v_shr" else x * 0

    return handler


def _where(s: InstructionSite) -> TileExpr:
    mask, branches = s.form(0, U8), s.args[1:]
    kind = s.e.program.dtype_of(branches[0])
    own = engine_type(kind)
    dtype = own if not kind.is_float or all(s.e.has(a, own) for a in branches) else F32
    a, b = s.operand(1, dtype), s.operand(2, dtype)
    if not isinstance(a, TileExpr) and not isinstance(b, TileExpr):
        a = TileExpr(s.e, s.e.constant(a, dtype, mask.layout))
    return where(mask, a, b)


def _clip(s: InstructionSite) -> TileExpr:
    dtype = s.compute_type(True, [a for a in s.args if a >= 0])
    result = s.form(0, dtype)
    for place, bound in enumerate((maximum, minimum), 1):
        if s.has(place):
            result = bound(result, s.operand(place, dtype))
    return result


def _prelu(s: InstructionSite) -> TileExpr:
    """max(x, 0) + slope min(x, 0)."""
    x = s.wide()
    scaled = minimum(x, 0.0) * s.operand(1)
    return where(x < 0.0, scaled, x)


def _leaky(s: InstructionSite) -> TileExpr:
    """v_leaky multiplies at 0 as well, where the sign does not matter."""
    x = s.x() if is_exact(s.attr("alpha"), F16) else s.wide()
    return x.scalar("v_leaky", s.attr("alpha"))


def _pow(s: InstructionSite) -> TileExpr:
    exponent = s.const(1)
    if exponent is None:
        raise unsupported(s.instruction, "powers with computed exponents are not supported")
    x, b = s.wide(), float(exponent)
    if b == 0.0:
        return x.like(1.0)
    named = {0.5: "v_sqrt", -0.5: "v_rsqrt", -1.0: "v_reciprocal"}
    if b in named:
        return x.unary(named[b])
    if b == math.floor(b) and abs(b) <= POWER_MAX:
        power = _whole_power(x, int(abs(b)))
        return power if b > 0 else 1 / power
    return composed.exp(composed.ln(x) * b)


def _whole_power(x: TileExpr, n: int) -> TileExpr:
    result, square = None, x
    while n:
        if n & 1:
            result = square if result is None else result * square
        n >>= 1
        if n:
            square = square * square
    assert result is not None
    return result


def _threshold(s: InstructionSite) -> TileExpr:
    x = s.x(exact=True) if is_exact(s.attr("alpha"), F16) else s.wide()
    return where(x > s.attr("alpha"), x, 0.0)


def _shrink(s: InstructionSite) -> TileExpr:
    x, bias, limit = s.wide(), s.attr("bias"), s.attr("lambd")
    low, high = x < -limit, x > limit
    return where(low, x + bias, where(high, x - bias, 0.0))


def _isnan(s: InstructionSite) -> TileExpr:
    x = s.x(exact=True)
    return x.compare("ne", x)


def _isinf(s: InstructionSite) -> TileExpr:
    x = s.x(exact=True)
    signs = [sign for name, sign in (("detect_positive", 1), ("detect_negative", -1)) if s.instruction.attr(name)]
    found = [x.compare("eq", sign * math.inf) for sign in signs]
    if not found:
        return TileExpr(s.e, s.e.constant(0, U8, x.layout))
    return found[0] if len(found) == 1 else where(found[0], found[0], found[1])


_HANDLERS: dict[str, Handler] = {
    **{name: _plain(function) for name, function in composed.PLAIN.items()},
    **{f: _command(c, False) for f, c in (("exp", "v_exp"), ("log", "v_ln"), ("sqrt", "v_sqrt"), ("rsqrt", "v_rsqrt"))},
    "reciprocal": _command("v_reciprocal", False),
    **{f: _command(f"v_{f}", True) for f in ("abs", "neg", "relu")},
    **{direction: _rounded(direction) for direction in ("floor", "ceil", "trunc")},
    "round": _rounded("nearest_even"),
    "sign": _sign,
    "square": _square,
    "add": _two(operator.add),
    "mul": _two(operator.mul),
    "minimum": _two(minimum, True),
    "maximum": _two(maximum, True),
    "sub": _two(operator.sub),
    "div": _two(operator.truediv),
    "pow": _pow,
    "prelu": _prelu,
    "leaky_relu": _leaky,
    "elu": lambda s: composed.elu(s.wide(), s.attr("alpha"), 1.0),
    "selu": lambda s: composed.elu(s.wide(), s.attr("alpha"), s.attr("gamma")),
    "celu": lambda s: composed.celu(s.wide(), s.attr("alpha")),
    "hard_sigmoid": lambda s: composed.hard_sigmoid(s.wide(), s.attr("alpha"), s.attr("beta")),
    "thresholded_relu": _threshold,
    "shrink": _shrink,
    "erf": lambda s: composed.erf(s.wide(), s.short),
    "gelu": lambda s: composed.gelu(s.wide(), s.short, s.instruction.attr("approximate") == "tanh"),
    "isnan": _isnan,
    "isinf": _isinf,
    **{
        op: _comparison(p)
        for op, p in (
            ("equal", "eq"), ("not_equal", "ne"), ("less", "lt"), ("less_equal", "le"), ("greater", "gt"),
            ("greater_equal", "ge"),
        )
    },
    "logical_and": _logical(lambda a, b: where(a, b, 0)),
    "logical_or": _logical(lambda a, b: where(a, a, b)),
    "logical_xor": _logical(_differs),
    "logical_not": lambda s: _inverted(s.x()),
    **{f"bitwise_{op}": _bitwise(f"v_{op}") for op in ("and", "or", "xor")},
    "bitwise_not": lambda s: s.x().unary("v_not"),
    "shift_left": _shift("v_shl"),
    "shift_right": _shift("v_shr"),
    "where": _where,
    "clip": _clip,
    "cast": conversions.cast,
    "quantize": conversions.quantize,
    "dequantize": conversions.dequantize,
}  # fmt: skip
