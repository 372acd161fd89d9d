"""The vector engine, element by element: arithmetic, functions, comparison, selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I8, I32
from superkernel.codegen.firmware.code import F32, Code, Operands
from superkernel.codegen.firmware.commands import (
    CommandSet,
    by_types,
    elements_of,
    item_bits,
    lane_of_operand,
    load_lane,
    store_lane,
)
from superkernel.codegen.firmware.floats import above_zero, canonical, const, exp, extreme, is_nan, ln
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget

COMMANDS = CommandSet()
Lane: TypeAlias = ir.Value
# What becomes of lanes x, y and the destination's own: floats are f32, integers i32.
Formula: TypeAlias = Callable[[Code, Lane, Lane, Lane], Lane]


def _is_float(x: Lane) -> bool:
    return bool(x.type == F32)


def _add(c: Code, x: Lane, y: Lane, d: Lane) -> Lane:
    return c.b.fadd(x, y) if _is_float(x) else c.b.add(x, y)


def _sub(c: Code, x: Lane, y: Lane, d: Lane) -> Lane:
    return c.b.fsub(x, y) if _is_float(x) else c.b.sub(x, y)


def _mul(c: Code, x: Lane, y: Lane, d: Lane) -> Lane:
    return c.b.fmul(x, y) if _is_float(x) else c.b.mul(x, y)


def _fma(c: Code, x: Lane, y: Lane, d: Lane) -> Lane:
    return c.intrinsic("llvm.fma", F32, x, y, d)


def _leaky(c: Code, x: Lane, y: Lane, d: Lane) -> Lane:
    return c.b.select(above_zero(c, x), x, c.b.fmul(x, y))


def _relu(c: Code, x: Lane, y: Lane, d: Lane) -> Lane:
    if not _is_float(x):
        return c.b.select(above_zero(c, x), x, const(0))
    kept = c.b.or_(above_zero(c, x), is_nan(c.b, x))
    return c.b.select(kept, canonical(c.b, x), ir.Constant(F32, 0.0))


def _sqrt(c: Code, x: Lane) -> Lane:
    return c.intrinsic("llvm.sqrt", F32, x)


_ONE = ir.Constant(F32, 1.0)

BINARY: dict[str, Formula] = {
    "v_add": _add,
    "v_sub": _sub,
    "v_mul": _mul,
    "v_div": lambda c, x, y, d: c.b.fdiv(x, y),
    "v_max": lambda c, x, y, d: extreme(c, x, y, largest=True),
    "v_min": lambda c, x, y, d: extreme(c, x, y, largest=False),
    "v_fma": _fma,
    "v_and": lambda c, x, y, d: c.b.and_(x, y),
    "v_or": lambda c, x, y, d: c.b.or_(x, y),
    "v_xor": lambda c, x, y, d: c.b.xor(x, y),
}
UNARY: dict[str, Formula] = {  # y: the command's number, if it has one
    "v_adds": _add,
    "v_muls": _mul,
    "v_maxs": BINARY["v_max"],
    "v_mins": BINARY["v_min"],
    "v_rsubs": lambda c, x, y, d: _sub(c, y, x, d),
    "v_axpy": _fma,
    "v_leaky": _leaky,
    "v_shl": lambda c, x, y, d: c.b.shl(x, y),
    "v_shr": lambda c, x, y, d: c.b.ashr(x, y),
    "v_relu": _relu,
    "v_not": lambda c, x, y, d: c.b.not_(x),
    "v_exp": lambda c, x, y, d: exp(c, x),
    "v_ln": lambda c, x, y, d: ln(c, x),
    "v_sqrt": lambda c, x, y, d: _sqrt(c, x),
    "v_rsqrt": lambda c, x, y, d: c.b.fdiv(_ONE, _sqrt(c, x)),
    "v_reciprocal": lambda c, x, y, d: c.b.fdiv(_ONE, x),
}


@COMMANDS.by_types(*BINARY)
def _binary(c: Code, o: Operands, dtype: DType) -> None:
    formula = BINARY[o.spec.name]
    item = dtype.itemsize
    step = c.choose(c.compare("==", o["b_form"], 1), 0, item)
    with elements_of(c, o, "dst", "a", "b") as (j, (to, a, b)):
        x, y = load_lane(c, a + j * item, dtype), load_lane(c, b + j * step, dtype)
        old = load_lane(c, to + j * item, dtype) if o.spec.name == "v_fma" else x
        store_lane(c, formula(c, x, y, old), to + j * item, dtype)


@COMMANDS.by_types(*UNARY)
def _unary(c: Code, o: Operands, dtype: DType) -> None:
    name, formula = o.spec.name, UNARY[o.spec.name]
    extra = {operand.name for operand in o.spec.operands}
    item = dtype.itemsize
    number: Lane | None = None
    if "value" in extra:
        number = lane_of_operand(c, o["value"], dtype)
    elif "shift" in extra:
        number = c.b.trunc(o["shift"].value, I32)
    with elements_of(c, o, "dst", "src") as (j, (to, source)):
        x = load_lane(c, source + j * item, dtype)
        old = load_lane(c, to + j * item, dtype) if name == "v_axpy" else x
        store_lane(c, formula(c, x, x if number is None else number, old), to + j * item, dtype)


@COMMANDS.by_types("v_abs", "v_neg")
def _sign(c: Code, o: Operands, dtype: DType) -> None:
    """Floats by their sign bit, NaN too; integers modulo their width."""
    is_abs = o.spec.name == "v_abs"
    item = dtype.itemsize
    kind = ir.IntType(8 * item)
    top = ir.Constant(kind, 1 << 8 * item - 1)
    with elements_of(c, o, "dst", "src") as (j, (to, source)):
        x = c.load(source + j * item, kind)
        if dtype in (DType.F32, DType.F16):
            found = c.b.and_(x, c.b.not_(top)) if is_abs else c.b.xor(x, top)
        else:
            found = c.b.neg(x)
            if is_abs:
                found = c.b.select(c.b.icmp_signed("<", x, ir.Constant(kind, 0)), found, x)
        c.store(found, to + j * item)


@COMMANDS.by_item("v_copy")
def _copy(c: Code, o: Operands, item: int) -> None:
    kind = ir.IntType(8 * item)
    with elements_of(c, o, "dst", "src") as (j, (to, source)):
        c.store(c.load(source + j * item, kind), to + j * item)


# Of less, equal, greater, unordered (bits 0 to 3): which make each predicate hold.
_HOLDS = (0b0010, 0b1101, 0b0001, 0b0011, 0b0100, 0b0110)  # eq, ne, lt, le, gt, ge


def _relation(c: Code, x: Lane, y: Lane, holds: ir.Value) -> ir.Value:
    """1 where the relation of x and y is one of `holds`, else 0: an i8."""
    b = c.b
    if _is_float(x):
        tests = [b.fcmp_ordered(r, x, y) for r in ("<", "==", ">")] + [b.fcmp_unordered("uno", x, y)]
    else:
        tests = [b.icmp_signed(r, x, y) for r in ("<", "==", ">")]
    found: ir.Value = const(0)
    for bit, test in enumerate(tests):
        found = b.or_(found, b.shl(b.zext(test, I32), const(bit)))
    met = b.icmp_unsigned("!=", b.and_(found, holds), const(0))
    return b.zext(met, I8)


def _holds(c: Code, o: Operands) -> ir.Value:
    found: ir.Value = const(_HOLDS[0])
    for number, mask in enumerate(_HOLDS):
        found = c.b.select(c.compare("==", o["predicate"], number), const(mask), found)
    return found


@COMMANDS.of("v_cmp", "v_cmps")
def _compare(c: Code, o: Operands, target: AicoreTarget) -> None:
    """Two matrices, or one and the command's number."""
    holds, with_number = _holds(c, o), o.spec.name == "v_cmps"

    def elements(dtype: DType) -> None:
        item = dtype.itemsize
        number = lane_of_operand(c, o["value"], dtype) if with_number else None
        with elements_of(c, o, "dst", *(("src",) if with_number else ("a", "b"))) as (j, (to, a, *b)):
            x = load_lane(c, a + j * item, dtype)
            y = load_lane(c, b[0] + j * item, dtype) if number is None else number
            c.store(_relation(c, x, y, holds), to + j)

    by_types(c, o, elements)


@COMMANDS.by_item("v_select", "v_selects")
def _select(c: Code, o: Operands, item: int) -> None:
    """Of two matrices, or of one and the command's number."""
    with_number = o.spec.name == "v_selects"
    kind = ir.IntType(8 * item)
    number = item_bits(c, o["value"], item) if with_number else None
    names = ("src", "mask") if with_number else ("a", "b", "mask")
    with elements_of(c, o, "dst", *names) as (j, (to, a, *b, mask)):
        taken = c.compare("!=", c.load_number(mask + j, 8), 0)
        x = c.load(a + j * item, kind)
        y = c.load(b[0] + j * item, kind) if number is None else number
        c.store(c.b.select(taken, x, y), to + j * item)
