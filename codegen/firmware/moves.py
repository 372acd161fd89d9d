"""Transfers between global and local memory: copies, padded rows, fills, accumulators on their way out."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I32, Number, Scalar
from superkernel.codegen.firmware.code import F32, Code, Operands
from superkernel.codegen.firmware.commands import (
    CommandSet,
    by_item,
    by_types,
    copy_bytes,
    fill_items,
    item_bits,
    store_lane,
)
from superkernel.codegen.firmware.floats import above_zero, canonical, is_nan, to_integer
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget

COMMANDS = CommandSet()


@COMMANDS.of("gm_to_l1", "gm_to_ub", "ub_to_gm", "l1_to_l0a_raw", "l1_to_l0b_raw", "sdma_copy")
def _copy(c: Code, o: Operands, target: AicoreTarget) -> None:
    copy_bytes(c, o.at("dst"), o.at("src"), o["bytes"])


@COMMANDS.of("sdma_prefetch")
def _prefetch(c: Code, o: Operands, target: AicoreTarget) -> None:
    """A hint: there is no cache to bring anything into."""


@COMMANDS.of("ub_to_gm_2d")
def _store_rows(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")
    with c.loop(o["rows"]) as r:
        copy_bytes(c, to + r * o["dst_stride"], source + r * o["src_stride"], o["row_bytes"])


@COMMANDS.of("gm_to_l1_2d", "gm_to_ub_2d")
def _load_rows(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")

    def rows(item: int) -> None:
        pad = item_bits(c, o["pad"], item)
        with c.loop(o["rows"]) as r:
            row = to + r * o["dst_stride"]
            inside = row + o["left"] * item
            behind = inside + o["cols"] * item
            fill_items(c, row, o["left"], pad, item)
            copy_bytes(c, inside, source + r * o["src_stride"], o["cols"] * item)
            fill_items(c, behind, o["right"], pad, item)

    by_item(c, o, rows)


@COMMANDS.of("l1_fill", "ub_fill")
def _fill(c: Code, o: Operands, target: AicoreTarget) -> None:
    to = o.at("dst")
    by_item(c, o, lambda item: fill_items(c, to, o["count"], item_bits(c, o["value"], item), item))


def _float_of(c: Code, bits: Scalar) -> ir.Value:
    return c.b.bitcast(c.b.trunc(bits.value, I32), F32)


def _fixing(c: Code, o: Operands) -> Callable[[ir.Value, Scalar], ir.Value]:
    """What l0c_to_gm does with one accumulator of a column: scale, bias and activation."""
    b = c.b
    factors, summands = o.at("scale_src"), o.at("bias_src")
    factor, low, high = (_float_of(c, o[n]) for n in ("scale_value", "low", "high"))

    def apply(x: ir.Value, column: Scalar) -> ir.Value:
        bits = c.variable(c.num(b.zext(b.bitcast(x, I32), ir.IntType(64))))

        def keep(value: ir.Value) -> None:
            bits.set(c.num(b.zext(b.bitcast(value, I32), ir.IntType(64))))

        def now() -> ir.Value:
            return _float_of(c, bits.get())

        with c.when(c.compare("==", o["scale"], 1)):
            keep(b.fmul(now(), factor))
        with c.when(c.compare("==", o["scale"], 2)):
            keep(b.fmul(now(), c.load(factors + column * 4, F32)))
        with c.when(c.compare("==", o["bias"], 1)):
            keep(b.fadd(now(), c.load(summands + column * 4, F32)))
        with c.when(c.compare("==", o["activation"], 1)):
            kept = b.or_(above_zero(c, now()), is_nan(b, now()))
            keep(b.select(kept, now(), ir.Constant(F32, 0.0)))
        with c.when(c.compare("==", o["activation"], 2)):
            keep(b.select(above_zero(c, now()), now(), b.fmul(now(), low)))
        with c.when(c.compare("==", o["activation"], 3)):
            x = now()
            upper = b.select(b.fcmp_ordered(">", x, high), high, x)
            keep(b.select(b.fcmp_ordered("<", x, low), low, upper))
        return now()

    return apply


def _store_fixed(c: Code, x: ir.Value, address: Number, dtype: DType) -> None:
    if dtype.is_integer:
        whole = to_integer(c, c.intrinsic("llvm.roundeven", F32, x), dtype)
        c.store(c.b.trunc(whole, ir.IntType(8 * dtype.itemsize)), address)
    else:
        store_lane(c, canonical(c.b, x), address, dtype)


@COMMANDS.of("l0c_to_gm")
def _accumulators_out(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")
    cube = target.cube
    fix = _fixing(c, o)
    across = c.ceil_div(o["n"], cube.n)

    def elements(kind: DType, dtype: DType) -> None:
        with c.loop(o["m"]) as i, c.loop(o["n"]) as j:
            block = (i // cube.m) * across + j // cube.n
            at = source + block * target.memory.accumulator_bytes + ((i % cube.m) * cube.n + j % cube.n) * 4
            place = to + i * o["dst_stride"] + j * dtype.itemsize
            raw = c.load(at, I32)
            if kind is DType.I32 and dtype is DType.I32:
                c.store(raw, place)
            else:
                x = c.b.sitofp(raw, F32) if kind is DType.I32 else c.b.bitcast(raw, F32)
                _store_fixed(c, fix(x, j), place, dtype)

    by_types(c, o, elements)
