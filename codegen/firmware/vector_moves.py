"""The vector engine beyond single elements: reductions, casts, broadcasts, transposes, gathers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I32, I64, Number, Scalar
from superkernel.codegen.firmware.code import F32, Code, Operands, scalar
from superkernel.codegen.firmware.commands import (
    CommandSet,
    by_item,
    by_types,
    elements_of,
    item_bits,
    load_lane,
    store_lane,
)
from superkernel.codegen.firmware.floats import (
    FLOAT_TYPES,
    bounded,
    canonical,
    emit_round_f32,
    emit_round_integer,
    emit_whole,
    extreme,
    is_nan,
    narrow,
    to_integer,
)
from superkernel.codegen.firmware.memory import Failure
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget

COMMANDS = CommandSet()
PARTIAL_SUMS = 64
_ROW, _COLUMN, _WHOLE = range(3)


def emit_helpers(module: ir.Module) -> None:
    """The functions that casts call for every element."""
    emit_whole(module, "fw_whole")
    for dtype in (DType.F16, DType.BF16):
        emit_round_f32(module, f"fw_round_{dtype}", dtype)
    for dtype in (DType.F32, DType.F16):
        emit_round_integer(module, f"fw_integer_{dtype}", dtype)


# Reductions -----------------------------------------------------------------------------------------------------------


class _Groups:
    """What becomes one element: `count` groups, each of outer x inner elements."""

    def __init__(self, c: Code, o: Operands, item: int) -> None:
        rows, cols, stride, scope = o["rows"], o["cols"], o["src_stride"], o["scope"]
        by_row, by_column = c.compare("==", scope, _ROW), c.compare("==", scope, _COLUMN)

        def pick(row: Number, column: Number, whole: Number) -> Scalar:
            return c.choose(by_row, row, c.choose(by_column, column, whole))

        self.c = c
        self.count = pick(rows, cols, 1)
        self.step = pick(stride, item, 0)
        self.outer, self.outer_step = pick(1, rows, rows), pick(0, stride, stride)
        self.inner, self.inner_step = pick(cols, 1, cols), pick(item, 0, item)

    @contextmanager
    def elements(self, base: Number) -> Iterator[tuple[Scalar, Scalar]]:
        """Address and number of each element of a group."""
        number = self.c.variable()
        with self.c.loop(self.outer) as i, self.c.loop(self.inner) as j:
            yield scalar(base + i * self.outer_step + j * self.inner_step), number.get()
            number.add(1)


@COMMANDS.of("v_sum")
def _sum(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")
    with c.b.goto_entry_block():
        sums = c.num(c.b.ptrtoint(c.b.alloca(ir.ArrayType(I32, PARTIAL_SUMS)), I64))

    def elements(dtype: DType) -> None:
        kind = F32 if dtype in FLOAT_TYPES else I32

        def add(place: Number, value: ir.Value) -> None:
            old = c.load(place, kind)
            c.store(c.b.fadd(old, value) if kind == F32 else c.b.add(old, value), place)

        groups = _Groups(c, o, dtype.itemsize)
        with c.loop(groups.count) as g:
            with c.loop(PARTIAL_SUMS) as p:
                c.store_number(0, sums + p * 4, 32)
            with groups.elements(source + g * groups.step) as (at, number):
                add(sums + (number % PARTIAL_SUMS) * 4, load_lane(c, at, dtype))
            for half in (32, 16, 8, 4, 2, 1):
                with c.loop(half) as p:
                    add(sums + p * 4, c.load(sums + (p + half) * 4, kind))
            store_lane(c, c.load(sums, kind), to + g * dtype.itemsize, dtype)

    by_types(c, o, elements)


@COMMANDS.of("v_reduce_max", "v_reduce_min")
def _reduce(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")
    largest = o.spec.name == "v_reduce_max"

    def elements(dtype: DType) -> None:
        kind = F32 if dtype in FLOAT_TYPES else I32
        with c.b.goto_entry_block():
            best = c.b.alloca(kind)
        groups = _Groups(c, o, dtype.itemsize)
        with c.loop(groups.count) as g:
            base = source + g * groups.step
            first = load_lane(c, base, dtype)
            c.b.store(canonical(c.b, first) if kind == F32 else first, best)
            with groups.elements(base) as (at, _):
                c.b.store(extreme(c, c.b.load(best, typ=kind), load_lane(c, at, dtype), largest=largest), best)
            store_lane(c, c.b.load(best, typ=kind), to + g * dtype.itemsize, dtype)

    by_types(c, o, elements)


@COMMANDS.of("v_argmax", "v_argmin")
def _arg_reduce(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")
    relation = ">" if o.spec.name == "v_argmax" else "<"

    def elements(dtype: DType) -> None:
        kind = F32 if dtype in FLOAT_TYPES else I32
        with c.b.goto_entry_block():
            best = c.b.alloca(kind)
        with c.loop(o["rows"]) as r:
            row = source + r * o["src_stride"]
            place = c.variable()
            c.b.store(load_lane(c, row, dtype), best)
            with c.loop(o["cols"], 1) as j:
                x, old = load_lane(c, row + j * dtype.itemsize, dtype), c.b.load(best, typ=kind)
                if kind == F32:
                    beyond = c.b.or_(c.b.fcmp_ordered(relation, x, old), is_nan(c.b, x))
                    taken = c.b.and_(beyond, c.b.not_(is_nan(c.b, old)))
                else:
                    taken = c.b.icmp_signed(relation, x, old)
                c.b.store(c.b.select(taken, x, old), best)
                place.set(c.choose(taken, j, place.get()))
            c.store_number(place.get(), to + r * 4, 32)

    by_types(c, o, elements)


# Casts ----------------------------------------------------------------------------------------------------------------


@COMMANDS.by_types("v_cast")
def _cast(c: Code, o: Operands, source: DType, to: DType) -> None:
    with elements_of(c, o, "dst", "src") as (j, (out, row)):
        x = load_lane(c, row + j * source.itemsize, source)
        c.store(_converted(c, x, source, to, o["rounding"]), out + j * to.itemsize)


def _f32_of(c: Code, number: Scalar) -> ir.Value:
    return c.b.bitcast(c.b.trunc(number.value, I32), F32)


def _bits_of(c: Code, x: ir.Value) -> Scalar:
    return c.num(c.b.zext(c.b.bitcast(x, I32), I64))


def _converted(c: Code, x: ir.Value, source: DType, to: DType, direction: Scalar) -> ir.Value:
    b, kind = c.b, ir.IntType(8 * to.itemsize)
    if source in FLOAT_TYPES and to in FLOAT_TYPES:
        if source is to:
            # f16 has all whole numbers that rounding f16 gives.
            return narrow(c, _f32_of(c, c.call("fw_whole", _bits_of(c, x), direction, result=True)), to)
        if to is DType.F32:
            return b.bitcast(canonical(b, x), I32)
        return b.trunc(c.call(f"fw_round_{to}", _bits_of(c, x), direction, result=True).value, kind)
    if source in FLOAT_TYPES:
        whole = c.call("fw_whole", _bits_of(c, x), direction, result=True)
        return b.trunc(to_integer(c, _f32_of(c, whole), to), kind)
    wide = b.zext(x, I64) if source is DType.U8 else b.sext(x, I64)
    if to in FLOAT_TYPES:
        return b.trunc(c.call(f"fw_integer_{to}", c.num(wide), direction, result=True).value, kind)
    return b.trunc(bounded(c, wide, to), kind)


# Moving ---------------------------------------------------------------------------------------------------------------


@COMMANDS.of("v_broadcast")
def _broadcast(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")
    by_row = c.compare("==", o["form"], 0)

    def elements(item: int) -> None:
        row_step, column_step = c.choose(by_row, 0, item), c.choose(by_row, item, 0)
        with c.loop(o["rows"]) as r:
            row, base = to + r * o["dst_stride"], source + r * row_step
            with c.loop(o["cols"]) as j:
                c.store(c.load(base + j * column_step, ir.IntType(8 * item)), row + j * item)

    by_item(c, o, elements)


@COMMANDS.by_item("v_duplicate")
def _duplicate(c: Code, o: Operands, item: int) -> None:
    number = item_bits(c, o["value"], item)
    with elements_of(c, o, "dst") as (j, (to,)):
        c.store(number, to + j * item)


@COMMANDS.of("v_iota")
def _iota(c: Code, o: Operands, target: AicoreTarget) -> None:
    to = o.at("dst")
    start, step = c.b.trunc(o["start"].value, I32), c.b.trunc(o["step"].value, I32)

    def elements(dtype: DType) -> None:
        with c.loop(o["cols"]) as i:
            number = c.b.trunc(i.value, I32)
            if dtype is DType.F32:
                scaled = c.b.fmul(c.b.uitofp(number, F32), c.b.bitcast(step, F32))
                lane = c.b.fadd(c.b.bitcast(start, F32), scaled)
            else:
                lane = c.b.add(start, c.b.mul(number, step))
            store_lane(c, lane, to + i * dtype.itemsize, dtype)

    by_types(c, o, elements)


@COMMANDS.of("v_transpose")
def _transpose(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")

    def elements(item: int) -> None:
        with c.loop(o["rows"]) as r, c.loop(o["cols"]) as j:
            element = c.load(source + r * o["src_stride"] + j * item, ir.IntType(8 * item))
            c.store(element, to + j * o["dst_stride"] + r * item)

    by_item(c, o, elements)


@COMMANDS.of("v_gather", "v_scatter")
def _indexed(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source, offsets = o.at("dst"), o.at("src"), o.at("offsets")
    gathers = o.spec.name == "v_gather"

    def elements(item: int) -> None:
        kind = ir.IntType(8 * item)
        with c.loop(o["cols"]) as i:
            offset = c.load_number(offsets + i * 4, 32)
            wrong = c.b.or_(c.compare("!=", offset % item, 0), c.compare(">", offset + item, o["table_bytes"]))
            with c.when(wrong):
                c.fail(Failure.OFFSET, o.doorbell, offset)
            place, line = (source, to) if gathers else (to, source)
            if gathers:
                c.store(c.load(place + offset, kind), line + i * item)
            else:
                c.store(c.load(line + i * item, kind), place + offset)

    by_item(c, o, elements)
