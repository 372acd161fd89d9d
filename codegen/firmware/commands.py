"""Registering the firmware's commands, and the loops that most of them share.

A command is a function `fw_do_<name>(state, record)`. `@command_code("v_add", ...)` says what emits its inside; the
emitter gets the function under construction and the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from llvmlite import ir

from superkernel.codegen.aicore.scalar import Number, Scalar
from superkernel.codegen.firmware.code import Code, Operands
from superkernel.codegen.firmware.floats import bits_type, narrow, widen
from superkernel.codegen.firmware.memory import Failure
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines.model import TYPE_CODES

EmitCommand: TypeAlias = Callable[[Code, Operands, AicoreTarget], None]
EmitElements: TypeAlias = Callable[..., None]  # code, operands, element types or an element's bytes
_SYMBOL = "fw_do_"


def symbol_of(name: str) -> str:
    """The function of a command."""
    return _SYMBOL + name


class CommandSet:
    """The commands of one module of the firmware."""

    def __init__(self) -> None:
        self.emitters: dict[str, EmitCommand] = {}

    def of(self, *names: str) -> Callable[[EmitCommand], EmitCommand]:
        """Says which commands an emitter writes."""

        def register(emit: EmitCommand) -> EmitCommand:
            for name in names:
                assert name not in self.emitters, name
                self.emitters[name] = emit
            return emit

        return register

    def by_types(self, *names: str) -> Callable[[EmitElements], EmitElements]:
        """Says which commands an emitter writes that is called for each legal combination of element types."""
        return self._each(by_types, names)

    def by_item(self, *names: str) -> Callable[[EmitElements], EmitElements]:
        """The same for each size that elements can have."""
        return self._each(by_item, names)

    def _each(self, by: Callable[..., None], names: Sequence[str]) -> Callable[[EmitElements], EmitElements]:
        def register(emit: EmitElements) -> EmitElements:
            self.of(*names)(lambda c, o, target: by(c, o, partial(emit, c, o)))
            return emit

        return register

    def emit(self, module: ir.Module, target: AicoreTarget, held: Container[str]) -> None:
        """Write the functions of the commands that are `held`."""
        for name, emit in self.emitters.items():
            if name not in held:
                continue
            c = Code(module, symbol_of(name), 2)
            emit(c, Operands(c, name, c.args[1]), target)
            c.ret()


def codes_of(types: Sequence[DType]) -> int:
    """Both type codes as they stand in the doorbell."""
    return sum(TYPE_CODES[t] << 4 * place for place, t in enumerate(types))


def by_types(c: Code, o: Operands, emit: Callable[..., None]) -> None:
    """`emit(*types)` for each legal combination of element types."""
    cases = {codes_of(types): lambda types=types: emit(*types) for types in o.spec.types}
    c.switch(o.types, cases, lambda: c.fail(Failure.COMMAND, o.doorbell))


def by_item(c: Code, o: Operands, emit: Callable[[int], None]) -> None:
    """`emit(bytes)` for each size that elements can have, for commands that only move them."""
    size = c.variable()
    for item in (1, 2, 4):
        codes = [codes_of(types) for types in o.spec.types if types[0].itemsize == item]
        for code in codes:
            size.set(c.choose(c.compare("==", o.types, code), item, size.get()))
    items = sorted({types[0].itemsize for types in o.spec.types})
    cases = {item: lambda item=item: emit(item) for item in items}
    c.switch(size.get(), cases, lambda: c.fail(Failure.COMMAND, o.doorbell))


def load_lane(c: Code, address: Number, dtype: DType) -> ir.Value:
    """An element as a lane: floats as f32, integers widened."""
    return widen(c, c.load(address, bits_type(dtype)), dtype)


def store_lane(c: Code, lane: ir.Value, address: Number, dtype: DType) -> None:
    """A lane as an element: floats rounded to nearest even, integers modulo their width."""
    c.store(narrow(c, lane, dtype), address)


def lane_of_operand(c: Code, bits: Scalar, dtype: DType) -> ir.Value:
    """The lane of an element that stands in the command."""
    return widen(c, c.b.trunc(bits.value, bits_type(dtype)), dtype)


@contextmanager
def elements_of(c: Code, o: Operands, *names: str) -> Iterator[tuple[Scalar, list[Number]]]:
    """A loop over the elements of a matrix command: the column, and the addresses of the row in each address operand,
    which has a stride."""
    bases = [(o.at(name), o[f"{name}_stride"]) for name in names]
    with c.loop(o["rows"]) as row:
        rows = [base + row * stride for base, stride in bases]
        with c.loop(o["cols"]) as column:
            yield column, rows


def copy_bytes(c: Code, to: Number, source: Number, count: Number) -> None:
    """Eight bytes at a time, then single ones."""
    words = count // 8
    with c.loop(words) as n:
        c.store_number(c.load_number(source + n * 8), to + n * 8)
    with c.loop(count, words * 8) as n:
        c.store_number(c.load_number(source + n, 8), to + n, 8)


def fill_items(c: Code, to: Number, count: Number, bits: ir.Value, item: int) -> None:
    """`count` elements of one value."""
    with c.loop(count) as n:
        c.store(bits, to + n * item)


def zero_bytes(c: Code, to: Number, count: Number) -> None:
    """Zeros; the count is a multiple of 8."""
    with c.loop(count // 8) as n:
        c.store_number(0, to + n * 8)


def item_bits(c: Code, bits: Scalar, item: int) -> ir.Value:
    """The low `item` bytes of an operand."""
    return c.b.trunc(bits.value, ir.IntType(8 * item))
