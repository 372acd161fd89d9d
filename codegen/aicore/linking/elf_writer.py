"""Writes ELF64 files for RISC-V: executables with segments, and relocatable objects.

Model: header, program headers, contents, symbol table, relocations, string tables, section headers. Contents of a
segment stand at an offset that agrees with its address modulo a page. Sections of an executable are views into its
segments; those of an object hold bytes of their own. Fields as in the System V ABI, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

EM_RISCV, ET_REL, ET_EXEC = 243, 1, 2
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOTE, _NOBITS = 1, 2, 3, 4, 7, 8
_PAGE = 4096
_SECTION_FLAGS = {"r-x": 2 | 4, "r--": 2, "rw-": 2 | 1}
_SEGMENT_FLAGS = {"r-x": 5, "r--": 4, "rw-": 6}
_SYMBOL_KINDS = {"none": 0, "object": 1, "function": 2}
_SECTION_ABSOLUTE = 0xFFF1


@dataclass(frozen=True, slots=True)
class ElfSegment:
    """What a loader copies: bytes at an address, then zeros up to `memory_bytes`; `flags` r-x, r-- or rw-."""

    address: int
    data: bytes
    flags: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class OutputSection:
    """A named stretch of a segment."""

    name: str
    address: int
    size: int
    flags: str
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class OutputSymbol:
    """`section`: number in the list of sections; None: an absolute symbol, -1: an undefined one (objects only)."""

    name: str
    value: int
    size: int
    kind: str
    local: bool
    section: int | None


@dataclass(frozen=True, slots=True)
class ObjectSection:
    """A section of a relocatable object; relocations as (offset, kind, symbol number in the list, addend)."""

    name: str
    data: bytes
    flags: str
    align: int
    relocations: Sequence[tuple[int, int, int, int]] = ()


class _Strings:
    """A string table under construction."""

    def __init__(self) -> None:
        self.data = bytearray(1)
        self._known = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._known[text]


class _File:
    """Contents and section headers of a file; `finish` puts the headers in."""

    def __init__(self, program_headers: int) -> None:
        self.data = bytearray(64 + 56 * program_headers)
        self.names = _Strings()
        self.headers: list[bytes] = [bytes(64)]

    def align(self, align: int, remainder: int = 0) -> int:
        """Pads until the length is `remainder` modulo `align`; returns it."""
        self.data += bytes((remainder - len(self.data)) % align)
        return len(self.data)

    def header(
        self, name: str, kind: int, flags: int, address: int, offset: int, size: int, *,
        link: int = 0, info: int = 0, align: int = 1, entry: int = 0,
    ) -> None:  # fmt: skip
        row = (self.names.add(name), kind, flags, address, offset, size, link, info, align, entry)
        self.headers.append(struct.pack("<IIQQQQIIQQ", *row))

    def symbols(self, symbols: Sequence[OutputSymbol]) -> list[int]:
        """Writes the symbol table and its strings; returns the number of each symbol. Local ones come first."""
        order = sorted(range(len(symbols)), key=lambda n: not symbols[n].local)
        strings = _Strings()
        rows = [bytes(24)]
        number = [0] * len(symbols)
        for n in order:
            s = symbols[n]
            number[n] = len(rows)
            section = _SECTION_ABSOLUTE if s.section is None else s.section + 1
            info = (0 if s.local else 1) << 4 | _SYMBOL_KINDS[s.kind]
            rows.append(struct.pack("<IBBHQQ", strings.add(s.name), info, 0, section, s.value, s.size))
        start = self.align(8)
        self.data += b"".join(rows)
        count_local = 1 + sum(s.local for s in symbols)
        link = len(self.headers) + 1
        self.header(".symtab", _SYMTAB, 0, 0, start, 24 * len(rows), link=link, info=count_local, align=8, entry=24)
        self.header(".strtab", _STRTAB, 0, 0, len(self.data), len(strings.data))
        self.data += strings.data
        return number

    def finish(self, kind: int, entry: int, flags: int, program: Sequence[bytes]) -> bytes:
        self.names.add(".shstrtab")
        offset = len(self.data)
        self.header(".shstrtab", _STRTAB, 0, 0, offset, len(self.names.data))
        self.data += self.names.data
        table = self.align(8)
        self.data += b"".join(self.headers)
        identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
        where = (64 if program else 0, table, flags, 64, 56 if program else 0, len(program), 64, len(self.headers))
        head = identity + struct.pack("<HHIQQQIHHHHHH", kind, EM_RISCV, 1, entry, *where, len(self.headers) - 1)
        self.data[: 64 + 56 * len(program)] = head + b"".join(program)
        return bytes(self.data)


def write_elf(
    segments: Sequence[ElfSegment],
    sections: Sequence[OutputSection],
    symbols: Sequence[OutputSymbol],
    *,
    entry: int,
    flags: int,
    notes: Sequence[tuple[str, bytes]] = (),
) -> bytes:
    """An executable. Every section lies inside one segment; notes (section, contents) are not loaded."""
    file = _File(len(segments))
    program: list[bytes] = []
    offsets: list[int] = []
    for segment in segments:
        offset = file.align(_PAGE, segment.address % _PAGE)
        offsets.append(offset)
        file.data += segment.data
        address, size = segment.address, len(segment.data)
        row = (1, _SEGMENT_FLAGS[segment.flags], offset, address, address, size, segment.memory_bytes, _PAGE)
        program.append(struct.pack("<IIQQQQQQ", *row))
    for section in sections:
        offset = next(
            at + section.address - s.address
            for at, s in zip(offsets, segments, strict=True)
            if s.address <= section.address and section.address + section.size <= s.address + s.memory_bytes
        )
        kind = _NOBITS if section.zeros else _PROGBITS
        align = min(_PAGE, section.address & -section.address)
        flag_bits = _SECTION_FLAGS[section.flags]
        file.header(section.name, kind, flag_bits, section.address, offset, section.size, align=align)
    for name, contents in notes:
        offset = file.align(4)
        file.data += contents
        file.header(name, _NOTE, 0, 0, offset, len(contents), align=4)
    file.symbols(symbols)
    return file.finish(ET_EXEC, entry, flags, program)


def write_object(sections: Sequence[ObjectSection], symbols: Sequence[OutputSymbol], *, flags: int) -> bytes:
    """A relocatable object. Symbol values are offsets in their sections."""
    file = _File(0)
    for section in sections:
        offset = file.align(section.align)
        file.data += section.data
        flag_bits = _SECTION_FLAGS[section.flags]
        file.header(section.name, _PROGBITS, flag_bits, 0, offset, len(section.data), align=section.align)
    number = file.symbols(symbols)
    symbol_table = len(sections) + 1
    for n, section in enumerate(sections):
        if not section.relocations:
            continue
        start = file.align(8)
        for offset, kind, symbol, addend in section.relocations:
            file.data += struct.pack("<QQq", offset, number[symbol] << 32 | kind, addend)
        size = 24 * len(section.relocations)
        name = f".rela{section.name}"
        file.header(name, _RELA, 0x40, 0, start, size, link=symbol_table, info=n + 1, align=8, entry=24)
    return file.finish(ET_REL, 0, flags, [])
