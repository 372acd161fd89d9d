"""The cube core's inside: L1 into L0A and L0B, images into rows of a product, products into L0C.

Products first spread both operands as 4-byte elements over the hart's scratch memory, row by row, so that the inner
loop walks two straight lines. The order of an accumulator's steps is what the command says: ascending k, each fused.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I32, Number, Scalar, Variable
from superkernel.codegen.firmware.code import F32, Code, Operands, scalar
from superkernel.codegen.firmware.commands import CommandSet, by_item, by_types, item_bits, load_lane, zero_bytes
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines.model import Local

COMMANDS = CommandSet()
COLUMNS_AT_ONCE = 4


class _Fractals:
    """Places in L0A or L0B for rows of k elements of `item` bytes."""

    def __init__(self, c: Code, target: AicoreTarget, k: Number, item: int) -> None:
        self.c, self.target, self.item = c, target, item
        self.across = c.ceil_div(k * item, target.memory.block_bytes)

    def total(self, rows: Number) -> Number:
        """Bytes of all fractals."""
        return self.c.ceil_div(rows, self.target.cube.m) * self.across * self.target.memory.fractal_bytes

    def row(self, base: Number, row: Number) -> Number:
        """The address of a row in the first of its fractals."""
        m, memory = self.target.cube.m, self.target.memory
        return base + (row // m) * self.across * memory.fractal_bytes + (row % m) * memory.block_bytes

    def column(self, column: Number) -> Number:
        """What an element's column adds to the address of its row."""
        memory, at = self.target.memory, column * self.item
        return (at // memory.block_bytes) * memory.fractal_bytes + at % memory.block_bytes


@COMMANDS.of("l1_to_l0a", "l1_to_l0b")
def _load(c: Code, o: Operands, target: AicoreTarget) -> None:
    memory = o.spec.operand("dst").memory
    rows, k = o["m" if memory is Local.L0A else "n"], o["k"]
    to, source, stride = o.at("dst"), o.at("src"), o["src_stride"]
    # Row i of the fractals is a line in L1, or column i of it.
    by_line = c.compare("==", o["transpose"], 0 if memory is Local.L0A else 1)

    def move(item: int) -> None:
        fractals = _Fractals(c, target, k, item)
        zero_bytes(c, to, fractals.total(rows))
        row_step, column_step = c.choose(by_line, stride, item), c.choose(by_line, item, stride)
        with c.loop(rows) as i:
            row, line = fractals.row(to, i), source + i * row_step
            with c.loop(k) as j:
                c.store_number(c.load_number(line + j * column_step, 8 * item), row + fractals.column(j), 8 * item)

    by_item(c, o, move)


@COMMANDS.of("l1_im2col")
def _im2col(c: Code, o: Operands, target: AicoreTarget) -> None:
    to, source = o.at("dst"), o.at("src")
    m, k, channels, width = o["m"], o["k"], o["channels"], o["width"]

    def pixels(item: int) -> None:
        fractals = _Fractals(c, target, k, item)
        pad = item_bits(c, o["pad"], item)
        zero_bytes(c, to, fractals.total(m))
        with c.loop(m) as i:
            position = scalar(o["m_first"] + i)
            top = (position // o["out_width"]) * o["stride_h"] - o["pad_top"]
            left = (position % o["out_width"]) * o["stride_w"] - o["pad_left"]
            row = fractals.row(to, i)
            channel = c.variable(o["k_first"] % channels)
            across = c.variable(scalar(o["k_first"] // channels) % o["kernel_w"])
            down = c.variable(o["k_first"] // (channels * o["kernel_w"]))
            with c.loop(k) as j:
                y, x = top + down.get() * o["dilation_h"], left + across.get() * o["dilation_w"]
                # Coordinates below 0 are huge unsigned numbers.
                inside = c.b.and_(
                    c.compare("<", down.get(), o["kernel_h"]),
                    c.b.and_(c.compare("<", y, o["height"]), c.compare("<", x, width)),
                )
                place = row + fractals.column(j)
                with c.either(inside) as (then, otherwise):
                    with then:
                        pixel = (y * width + x) * channels + channel.get()
                        c.store(c.load(source + pixel * item, ir.IntType(8 * item)), place)
                    with otherwise:
                        c.store(pad, place)
                _next(c, channel, channels, lambda: _next(c, across, o["kernel_w"], lambda: down.add(1)))

    by_item(c, o, pixels)


def _next(c: Code, digit: Variable, limit: Scalar, carry: Callable[[], None]) -> None:
    """Count a digit up; at its limit it starts over and carries."""
    digit.add(1)
    with c.when(c.compare("==", digit.get(), limit)):
        digit.set(0)
        carry()


@COMMANDS.of("mmad")
def _product(c: Code, o: Operands, target: AicoreTarget) -> None:
    m, n, k = o["m"], o["n"], o["k"]
    left, right, sums = o.at("a"), o.at("b"), o.at("c")
    spread_a = c.get("scratch")
    spread_b = spread_a + m * k * 4
    cube, block_bytes = target.cube, target.memory.accumulator_bytes
    blocks = c.ceil_div(m, cube.m) * c.ceil_div(n, cube.n)
    with c.when(c.compare("==", o["mode"], 0)):
        zero_bytes(c, sums, blocks * block_bytes)

    def spread(source: DType, accumulator: DType) -> None:
        for base, to, rows in ((left, spread_a, m), (right, spread_b, n)):
            fractals = _Fractals(c, target, k, source.itemsize)
            with c.loop(rows) as i:
                row, line = fractals.row(base, i), to + i * k * 4
                with c.loop(k) as j:
                    c.store(load_lane(c, row + fractals.column(j), source), line + j * 4)

    by_types(c, o, spread)

    def accumulator(i: Number, j: Number) -> Number:
        block = (i // cube.m) * c.ceil_div(n, cube.n) + j // cube.n
        return sums + block * block_bytes + ((i % cube.m) * cube.n + j % cube.n) * 4

    def run(kind: ir.Type) -> None:
        with c.loop(m) as i:
            line = spread_a + i * k * 4
            whole = n // COLUMNS_AT_ONCE
            with c.loop(whole) as group:
                columns = [group * COLUMNS_AT_ONCE + extra for extra in range(COLUMNS_AT_ONCE)]
                _dot(c, kind, line, [spread_b + j * k * 4 for j in columns], [accumulator(i, j) for j in columns], k)
            with c.loop(n, whole * COLUMNS_AT_ONCE) as j:
                _dot(c, kind, line, [spread_b + j * k * 4], [accumulator(i, j)], k)

    integers = c.compare("==", o.types, (4 << 4) | 6)
    with c.either(integers) as (then, otherwise):
        with then:
            run(I32)
        with otherwise:
            run(F32)


def _dot(c: Code, kind: ir.Type, line: Number, columns: list[Number], places: list[Number], k: Number) -> None:
    """Each accumulator takes its k steps."""
    b = c.b
    with b.goto_entry_block():
        sums = [b.alloca(kind) for _ in places]
    for slot, place in zip(sums, places, strict=True):
        b.store(c.load(place, kind), slot)
    with c.loop(k) as step:
        x = c.load(line + step * 4, kind)
        for slot, column in zip(sums, columns, strict=True):
            y, old = c.load(column + step * 4, kind), b.load(slot, typ=kind)
            b.store(b.add(old, b.mul(x, y)) if kind == I32 else c.intrinsic("llvm.fma", F32, x, y, old), slot)
    for slot, place in zip(sums, places, strict=True):
        c.store(b.load(slot, typ=kind), place)
