"""Short forms for the rows of the command table."""

from __future__ import annotations

from superkernel.target.engines.model import GLOBAL_BITS, LOCAL_BITS, CommandAccess, CommandOperand, Kind, Local

GM_MAX = (1 << GLOBAL_BITS) - 1
LOCAL_MAX = (1 << LOCAL_BITS) - 1
COUNT_MAX = (1 << 16) - 1


def gm(name: str, doc: str, align: str = "") -> CommandOperand:
    """An address in global memory."""
    return CommandOperand(name, Kind.GLOBAL, GLOBAL_BITS, doc, high=GM_MAX, align=align)


def local(
    name: str, memory: Local, doc: str, *, align: str | None = None, default: int | None = None
) -> CommandOperand:
    """A byte offset in a local memory, aligned as the memory asks unless told."""
    align = memory.align_path if align is None else align
    return CommandOperand(
        name, Kind.LOCAL, LOCAL_BITS, doc, high=LOCAL_MAX, memory=memory, align=align, default=default
    )


def ub(name: str, doc: str, *, align: str | None = None) -> CommandOperand:
    """An address in UB; `align`: expression of the field that it is a multiple of."""
    return local(name, Local.UB, doc, align=align)


def count(name: str, doc: str, *, bits: int = 16, low: int = 1, default: int | None = None) -> CommandOperand:
    """An unsigned number of things, at least `low`."""
    return CommandOperand(name, Kind.COUNT, bits, doc, low=low, high=(1 << bits) - 1, default=default)


def size(name: str, doc: str, *, bits: int = LOCAL_BITS + 1, align: str = "") -> CommandOperand:
    """A positive number of bytes, up to a whole local memory unless told."""
    high = 1 << LOCAL_BITS if bits == LOCAL_BITS + 1 else (1 << bits) - 1
    return CommandOperand(name, Kind.BYTES, bits, doc, low=1, high=high, align=align)


def stride(name: str, doc: str, *, bits: int = LOCAL_BITS, align: str = "memory.block_bytes") -> CommandOperand:
    """Bytes from one row to the next; not looked at with one row."""
    return CommandOperand(name, Kind.STRIDE, bits, doc, high=(1 << bits) - 1, default=0, align=align)


def number(
    name: str, doc: str, *, bits: int, low: int = 0, high: int | None = None, default: int | None = None
) -> CommandOperand:
    """An unsigned number of `bits`, bounded to [low, high]."""
    top = (1 << bits) - 1 if high is None else high
    return CommandOperand(name, Kind.NUMBER, bits, doc, low=low, high=top, default=default)


def real(name: str, doc: str, default: int = 0) -> CommandOperand:
    """An f32 in the command itself; `default` as bits."""
    return CommandOperand(name, Kind.FLOAT, 32, doc, high=(1 << 32) - 1, default=default)


def element(name: str, doc: str, *, slot: int = 0, default: int | None = None) -> CommandOperand:
    """The bits of one element, in the low bits of the field; the bits above its size are 0."""
    return CommandOperand(name, Kind.ELEMENT, 32, doc, high=(1 << 32) - 1, element_slot=slot, default=default)


def choice(name: str, doc: str, *choices: str, default: int | None = 0) -> CommandOperand:
    """One of names, as its position; `default` None: it must be given."""
    bits = max(1, (len(choices) - 1).bit_length())
    return CommandOperand(name, Kind.CHOICE, bits, doc, high=len(choices) - 1, choices=choices, default=default)


def reads(operand: str, row_bytes: str, rows: str = "1", step: str = "0", when: str = "1") -> CommandAccess:
    """Bytes read at an operand; all arguments are expressions over the command's operands."""
    return CommandAccess(operand, False, rows, row_bytes, step, when)


def writes(operand: str, row_bytes: str, rows: str = "1", step: str = "0") -> CommandAccess:
    """Bytes written at an operand; all arguments are expressions over the command's operands."""
    return CommandAccess(operand, True, rows, row_bytes, step)
