"""The program of an object file, read back: what `sk_run` will do, out of the bytes that are linked.

Model: the table (`codegen/microcontroller/program.py` describes it) is found by its symbol; its words are those of the
section; a kernel's word is nothing but a relocation, against the kernel's symbol. What comes out is for
`sync/verify_program.py`. Nothing is shared with what writes tables.

Invariant: a table that is not whole, or holds anything else, is a VerificationError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from superkernel.backends.attested import digest
from superkernel.backends.host.attest import Recorded
from superkernel.core.errors import VerificationError
from superkernel.ir.graph import Graph
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.sync.verify_program import Call

_TABLE = "sk_table"
_ARM, _ABS32 = "EM_ARM", 2  # ELF for the Arm architecture, 4.6.1: R_ARM_ABS32
_SEEN = "as its object's table has it"


def read_back(data: bytes, bases: Sequence[tuple[Space, int]], working: range) -> Recorded:
    """The program of an object. `bases`: what the numbers of bases stand for; `working`: the bytes of the arena that
    are working memory, at the beginning of which the program must put it. Raises VerificationError."""
    words, kernels = _table(data)
    numbers = iter(range(len(words)))

    def take() -> int:
        at = next(numbers, None)
        if at is None or at in kernels:
            raise _wrong("the table ends early, or has an address for a number", at)
        return words[at]

    scratch_at = take()
    scratch = MemoryAddress(Space.SCRATCH, 0, 0) if scratch_at == working.start else None
    calls: list[Call] = []
    while (at := next(numbers, None)) is not None and at in kernels:
        if words[at]:
            raise _wrong("an address that is not a kernel's first", at)
        begin, end, count = take(), take(), take()
        operands = tuple(_address(take(), take(), bases, at) for _ in range(count))
        calls.append(Call(kernels[at], operands, scratch, begin, end))
    if at != len(words) - 1 or words[at]:
        raise _wrong("the table does not end where it should", at)
    return Recorded((calls,), digest(map(repr, [scratch_at, *calls])), _SEEN)


def bases_of(graph: Graph) -> list[tuple[Space, int]]:
    """What the numbers of bases stand for: the arena, the constants, what is the caller's."""
    parts = ((Space.INPUT, graph.inputs), (Space.OUTPUT, graph.outputs), (Space.STATE, graph.states))
    caller = [(space, slot) for space, part in parts for slot in range(len(part))]
    return [(Space.ARENA, 0), (Space.CONSTANT, 0), *caller]


def _address(number: int, offset: int, bases: Sequence[tuple[Space, int]], at: int) -> MemoryAddress:
    if number >= len(bases):
        raise _wrong(f"no base {number}", at)
    return MemoryAddress(*bases[number], offset)


def _table(data: bytes) -> tuple[tuple[int, ...], Mapping[int, str]]:
    """Its words, and by number the symbols of those that are relocated."""
    elf = ELFFile(BytesIO(data))
    if elf["e_machine"] != _ARM or elf.elfclass != 32 or not elf.little_endian:
        raise VerificationError("no object of a microcontroller", found=str(elf["e_machine"]))
    symbols, number, start, size = _place(elf, _TABLE)
    contents = elf.get_section(number).data()[start : start + size]
    kernels = {}
    for offset, kind, name in _relocations(elf, number, symbols):
        if start <= offset < start + size:
            if kind != _ABS32 or (offset - start) % 4 or not name:
                raise _wrong(f"a relocation of kind {kind}", (offset - start) // 4)
            kernels[(offset - start) // 4] = name
    if size % 4 or len(contents) != size:
        raise VerificationError("a table of no whole words", found=f"{size} bytes")
    return struct.unpack(f"<{size // 4}I", contents), kernels


def bytes_of(data: bytes, symbol: str) -> bytes:
    """What a symbol of an object stands for, before anything is relocated. Raises VerificationError."""
    elf = ELFFile(BytesIO(data))
    _, number, start, size = _place(elf, symbol)
    return bytes(elf.get_section(number).data()[start : start + size])


def _place(elf: ELFFile, symbol: str) -> tuple[SymbolTableSection, int, int, int]:
    """The table of symbols, and of one of them its section, where it begins there, and its bytes."""
    symbols = next(s for s in elf.iter_sections() if isinstance(s, SymbolTableSection))
    found = [s for s in symbols.iter_symbols() if s.name == symbol and s["st_shndx"] != "SHN_UNDEF"]
    if len(found) != 1:
        raise VerificationError("an object does not define its symbol once", location=symbol, found=str(len(found)))
    return symbols, found[0]["st_shndx"], found[0]["st_value"], found[0]["st_size"]


def _relocations(elf: ELFFile, number: int, symbols: SymbolTableSection) -> Iterator[tuple[int, int, str]]:
    """(offset, kind, symbol) of each that changes a section."""
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection) and section["sh_info"] == number:
            for each in section.iter_relocations():
                name = symbols.get_symbol(each["r_info_sym"]).name
                yield each["r_offset"], each["r_info_type"], name


def _wrong(message: str, at: int | None) -> VerificationError:
    return VerificationError(f"not a program: {message}", location=f"word {at} of {_TABLE}")
