"""Where operands stand in the words of the register page.

Model: each engine has a window of 16 words of 8 bytes in the page, at 128 x its number. Words 0 to 14 hold operands and
keep what was stored in them until the next store: a loop that changes one operand stores that word and the doorbell.
Word 15 is the doorbell: its store issues the command with what the operand words hold at that moment. Its low 16 bits
are the opcode (bits 0-7), the first element type (8-11) and the second (12-15); operands follow.

Operands are placed in the order of the table, each in the first word that has room above what is there already: the
doorbell first, then words 0, 1, ... No operand straddles words. Bits that no operand has are 0, else the command is
refused. Operand words that a command does not have are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from superkernel.target.engines.model import OPCODE_BITS, TYPE_BITS, CommandSpec, Engine

WORD_BYTES = 8
WINDOW_WORDS = 16
WINDOW_BYTES = WORD_BYTES * WINDOW_WORDS
DOORBELL = WINDOW_WORDS - 1
HEADER_BITS = OPCODE_BITS + 2 * TYPE_BITS
WINDOWS_BYTES = WINDOW_BYTES * len(Engine)  # what of the page is used; a store behind it is an undefined command


@dataclass(frozen=True, slots=True)
class OperandSlot:
    """An operand's place: word number in the window, lowest bit, width."""

    operand: str
    word: int
    shift: int
    bits: int


@cache
def layout(spec: CommandSpec) -> tuple[OperandSlot, ...]:
    """The places of a command's operands, in the order of the table."""
    used = {DOORBELL: HEADER_BITS}
    slots = []
    for operand in spec.operands:
        for word in (DOORBELL, *range(DOORBELL)):
            shift = used.get(word, 0)
            if shift + operand.bits <= 8 * WORD_BYTES:
                used[word] = shift + operand.bits
                slots.append(OperandSlot(operand.name, word, shift, operand.bits))
                break
        else:
            raise ValueError(f"{spec.name}: no room for {operand.name}")
    return tuple(slots)


@cache
def operand_words(spec: CommandSpec) -> int:
    """How many operand words a command has; they are words 0 to this number - 1."""
    return max((slot.word + 1 for slot in layout(spec) if slot.word != DOORBELL), default=0)


def word_offset(engine: Engine, word: int) -> int:
    """Bytes from the start of the register page to a word of an engine's window."""
    return engine.value * WINDOW_BYTES + word * WORD_BYTES
