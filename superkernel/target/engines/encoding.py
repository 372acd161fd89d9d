"""Commands as words of the register page and back.

Invariant: `decode(encode(c), c.engine) == c` for every command that `command` makes; words that no command encodes to
are refused, each for what is wrong with it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.target.engines.command import Command, range_text
from superkernel.target.engines.layout import DOORBELL, HEADER_BITS, WORD_BYTES, layout, operand_words, word_offset
from superkernel.target.engines.model import OPCODE_BITS, TYPE_BITS, TYPE_CODES, CommandSpec, Engine, Kind
from superkernel.target.engines.table import by_opcode

if TYPE_CHECKING:
    from superkernel.target.aicore import AicoreTarget

_TYPES = {code: dtype for dtype, code in TYPE_CODES.items()}
_WORD_MAX = (1 << 8 * WORD_BYTES) - 1


def encode(command: Command) -> tuple[int, ...]:
    """The operand words 0, 1, ... and, last, the doorbell."""
    spec = command.spec
    words = [0] * (operand_words(spec) + 1)
    words[-1] = spec.opcode
    for place, dtype in enumerate(command.types):
        words[-1] |= TYPE_CODES[dtype] << OPCODE_BITS + TYPE_BITS * place
    for slot, bits in zip(layout(spec), command.operands, strict=True):
        words[-1 if slot.word == DOORBELL else slot.word] |= bits << slot.shift
    return tuple(words)


def stores(command: Command, target: AicoreTarget) -> tuple[tuple[int, int], ...]:
    """The 8-byte stores that issue a command: (address, value) each, the doorbell last."""
    words = encode(command)
    numbers = (*range(len(words) - 1), DOORBELL)
    base = target.map.page_address
    return tuple((base + word_offset(command.engine, n), w) for n, w in zip(numbers, words, strict=True))


def decode(words: tuple[int, ...], engine: Engine) -> Command:
    """The command of operand words and doorbell in an engine's window. Raises InputError."""
    where = f"doorbell of {engine.title}"
    if not words or any(not 0 <= word <= _WORD_MAX for word in words):
        raise InputError("not words of 8 bytes", location=where, found=repr(words))
    doorbell = words[-1]
    spec = by_opcode().get(doorbell & (1 << OPCODE_BITS) - 1)
    if spec is None:
        raise InputError("undefined command", location=where, found=f"opcode {doorbell & 0xFF:#04x}")
    if engine not in spec.engines:
        expected = ", ".join(e.title for e in spec.engines)
        raise InputError(f"{spec.name} is not a command of this engine", location=where, expected=expected)
    if len(words) != operand_words(spec) + 1:
        expected = f"{operand_words(spec)} and the doorbell"
        raise InputError(f"wrong number of words for {spec.name}", location=where, expected=expected, found=len(words))
    found: list[Violation] = []
    types = _decode_types(spec, doorbell, where, found)
    operands = _decode_operands(spec, words, types, where, found)
    raise_all(InputError, found)
    return Command(spec.name, engine, types, operands)


def _decode_types(spec: CommandSpec, doorbell: int, where: str, found: list[Violation]) -> tuple[DType, ...]:
    mask = (1 << TYPE_BITS) - 1
    codes = [doorbell >> OPCODE_BITS + TYPE_BITS * place & mask for place in range(2)]
    count = len(spec.type_names)
    types = tuple(_TYPES[c] for c in codes[:count] if c in _TYPES)
    if types not in spec.types or any(codes[count:]):
        found.append(Violation(f"element types that {spec.name} has not", where, found=f"codes {codes}"))
        return spec.types[0]
    return types


def _decode_operands(
    spec: CommandSpec, words: tuple[int, ...], types: tuple[DType, ...], where: str, found: list[Violation]
) -> tuple[int, ...]:
    """Every operand's bits; ranges and unused bits are checked as `command` does."""
    left = list(words)
    left[-1] &= ~((1 << HEADER_BITS) - 1)
    operands = []
    for slot, operand in zip(layout(spec), spec.operands, strict=True):
        word = -1 if slot.word == DOORBELL else slot.word
        mask = (1 << slot.bits) - 1
        bits = words[word] >> slot.shift & mask
        left[word] &= ~(mask << slot.shift)
        high = operand.high
        if operand.kind is Kind.ELEMENT:
            high = (1 << 8 * types[operand.element_slot].itemsize) - 1
        value = struct.unpack("<f", struct.pack("<I", bits))[0] if operand.kind is Kind.FLOAT else 0.0
        if not operand.low <= bits <= high or value != value:
            place = f"{where}, {spec.name}, operand {operand.name!r}"
            found.append(Violation("out of range", place, range_text(operand), str(bits)))
        operands.append(bits)
    if any(left):
        shown = ", ".join(f"{word:#x}" for word in left)
        found.append(Violation(f"bits set that {spec.name} has not", where, found=shown))
    return tuple(operands)
