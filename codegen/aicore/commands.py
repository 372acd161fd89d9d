"""Commands as words: what stores of the control unit tell an engine, and where their operands lie.

Model: a command is a handful of 64-bit words in the engine's window of the register page (`target.engines.layout`), the
doorbell last. An operand is a number, a choice, a place in local memory (`rings`) or in global memory (`Address`).
Numbers that are known are checked against the command's table while emitting.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from llvmlite import ir

from superkernel.codegen.aicore.rings import Buffer, Part
from superkernel.codegen.aicore.scalar import Flow, Number, load_volatile, store_volatile
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import CommandSpec, Engine, command
from superkernel.target.engines.layout import DOORBELL, layout, word_offset
from superkernel.target.engines.model import OPCODE_BITS, TYPE_BITS, TYPE_CODES, CommandOperand, Kind

SCRATCH = -1  # operand number of the workspace


@dataclass(frozen=True, eq=False)
class Address:
    """A place in global memory: bytes from the start of an operand (SCRATCH: of the workspace). `pitch`: see `Part`."""

    operand: int
    offset: Number
    pitch: Number | None = None

    def at(self, offset: Number) -> Address:
        """Further on."""
        return Address(self.operand, self.offset + offset, self.pitch)

    def rows(self, pitch: Number) -> Address:
        """The same place, rows being so far apart."""
        return Address(self.operand, self.offset, pitch)


OperandValue: TypeAlias = "Number | float | str | Buffer | Part | Address"


class Commands(Flow):
    """A function that issues commands."""

    def __init__(self, module: ir.Module, symbol: str, count: int, target: AicoreTarget) -> None:
        super().__init__(module, symbol, count)
        self.target = target
        self._scratch: Number = 0
        self._operands: Sequence[Number] = ()
        self.issued: set[str] = set()

    def _global(self, address: Address) -> Number:
        base = self._scratch if address.operand == SCRATCH else self._operands[address.operand]
        return base + address.offset

    def _store_words(
        self, spec: CommandSpec, engine: Engine, types: tuple[DType, ...], given: dict[str, OperandValue]
    ) -> None:
        """The stores that issue a command, the doorbell last."""
        self._check(spec, engine, types, given)
        self.issued.add(spec.name)
        words: dict[int, Number] = {DOORBELL: spec.opcode}
        for place, dtype in enumerate(types):
            words[DOORBELL] |= TYPE_CODES[dtype] << OPCODE_BITS + TYPE_BITS * place
        for slot, operand in zip(layout(spec), spec.operands, strict=True):
            bits = self._bits(operand, given)
            shifted = bits << slot.shift
            words[slot.word] = words.get(slot.word, 0) | shifted
        page = self.target.map.page_address
        for number in sorted(words):
            self._put(page + word_offset(engine, number), words[number])

    def _put(self, address: int, word: Number) -> None:
        """A store into the register page."""
        store_volatile(self.b, word, address)

    def _get(self, address: Number, kind: ir.Type) -> ir.Value:
        """A load from global memory that the compiler may not move."""
        return load_volatile(self.b, address, kind)

    def _set(self, address: Number, value: Number, kind: ir.IntType) -> None:
        """A store to global memory."""
        store_volatile(self.b, value, address, kind)

    def _check(
        self, spec: CommandSpec, engine: Engine, types: tuple[DType, ...], given: dict[str, OperandValue]
    ) -> None:
        """Names, types, engine and the numbers that are known, by the checks of the table."""
        static: dict[str, int | float | str] = {}
        for operand in spec.operands:
            value = given.get(operand.name, operand.default)
            if operand.name in given and isinstance(value, (int, float, str)):
                static[operand.name] = value
            elif operand.name in given and operand.kind is Kind.CHOICE:
                static[operand.name] = operand.choices[0]
            elif operand.name in given:
                static[operand.name] = max(operand.low, 0)
        static.update({name: 0 for name in given if name not in static})  # unknown names are told by `command`
        command(spec.name, engine=engine, types=types, **static)

    def _bits(self, operand: CommandOperand, given: dict[str, OperandValue]) -> Number:
        if operand.name not in given:
            return operand.default or 0
        value = given[operand.name]
        if isinstance(value, Buffer):
            value = Part(value, 0)
        if isinstance(value, Part):
            buffer = value.buffer
            slot = buffer.ring.slot
            start: Number = buffer.start if slot is None else slot.get() * buffer.stride + buffer.start
            return start + value.offset
        if isinstance(value, Address):
            return self._global(value)
        if operand.kind is Kind.CHOICE and isinstance(value, str):
            return operand.choices.index(value)
        if operand.kind is Kind.FLOAT and isinstance(value, (int, float)):
            return cast("int", struct.unpack("<I", struct.pack("<f", float(value)))[0])
        return cast("Number", value)
