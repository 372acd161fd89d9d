"""Words, stores, commands and functions of the program around the kernels, as LLVM IR.

The launches, the service hart's functions and `sk_main` are written with these. Kernels are not: they have `Commands`.
"""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I64, Scalar, declare, store_volatile
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Command
from superkernel.target.engines.encoding import stores
from superkernel.target.engines.layout import layout, word_offset

LINE_BYTES = 512  # of L2


def word(value: int) -> ir.Constant:
    """A 64-bit constant."""
    return ir.Constant(I64, value)


def store(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Writes a 64-bit value to an address, in program order with other such writes."""
    store_volatile(b, Scalar(b, value), Scalar(b, address))


def issue(b: ir.IRBuilder, target: AicoreTarget, made: Command, values: Mapping[str, ir.Value] | None = None) -> None:
    """The stores that issue a command, with some operands, 0 in `made`, from registers."""
    base, values = target.map.page_address, values or {}
    slots = [slot for slot in layout(made.spec) if slot.operand in values]
    for address, constant in stores(made, target):
        value: ir.Value = word(constant)
        for slot in slots:
            if base + word_offset(made.engine, slot.word) == address:
                value = b.or_(value, b.shl(values[slot.operand], word(slot.shift)))
        store(b, word(address), value)


def line_address(module: ir.Module, b: ir.IRBuilder, table: str, lines: int, number: int) -> ir.Value:
    """The address of a line in a table of words, one on each line of L2; `lines` in all, 0 at first."""
    words = module.globals.get(table)
    if words is None:
        kind = ir.ArrayType(I64, lines * LINE_BYTES // 8)
        words = ir.GlobalVariable(module, kind, table)
        words.initializer = ir.Constant(kind, [0] * kind.count)
        words.section, words.align = f".data.{table}", LINE_BYTES
    return b.add(b.ptrtoint(words, I64), word(number * LINE_BYTES))


def define(module: ir.Module, name: str, arguments: int) -> tuple[ir.Function, ir.IRBuilder]:
    """Its beginning, and a builder that stands there."""
    function = declare(module, name, arguments)
    function.attributes.add("nounwind")
    function.attributes.add("noinline")  # every part keeps its name and its place in the layout
    function.section = f".text.{name}"
    return function, ir.IRBuilder(function.append_basic_block("entry"))
