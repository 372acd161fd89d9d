"""Symbols of objects that go into a library: other names for some, and none that another library sees.

Model: code, constants and relocations of an object stay as they are, byte for byte; its table of names is written
again behind its end, longer, and all symbols that it defines for other objects become hidden, which binds them inside
the library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from io import BytesIO

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_HIDDEN = 2  # visibilities: default, internal, hidden, protected
_LOCAL, _WEAK, _UNIQUE = 0, 2, 10  # bindings
_PLACES = {64: (24, "<QQ", 4), 32: (16, "<II", 12)}
"""By class: in a section's header where the place of its contents stands, and behind it their size; in a symbol where
its binding stands, and behind it its visibility."""


def hidden(data: bytes, names: Mapping[str, str]) -> bytes:
    """The object with all symbols that it defines hidden, and some names changed. Symbols that were to be unique
    in a process become weak: they are the library's own."""
    made, elf = bytearray(data), ELFFile(BytesIO(data))
    place, words, info = _PLACES[elf.elfclass]
    for table in elf.iter_sections():
        if not isinstance(table, SymbolTableSection):
            continue
        strings = elf.get_section(table["sh_link"])
        text = bytearray(strings.data())
        for index, symbol in enumerate(table.iter_symbols()):
            at = table["sh_offset"] + index * table["sh_entsize"]
            binding = made[at + info] >> 4
            if binding == _LOCAL:
                continue
            if symbol["st_shndx"] != "SHN_UNDEF":
                made[at + info + 1] = made[at + info + 1] & ~3 | _HIDDEN
            if binding == _UNIQUE:
                made[at + info] = made[at + info] & 15 | _WEAK << 4
            if symbol.name in names:
                struct.pack_into("<I", made, at, len(text))
                text += names[symbol.name].encode() + b"\0"
        header = elf["e_shoff"] + table["sh_link"] * elf["e_shentsize"]
        struct.pack_into(words, made, header + place, len(made), len(text))
        made += text
    return bytes(made)


def defined(data: bytes) -> Iterator[str]:
    """The symbols that an object defines for others."""
    for table in ELFFile(BytesIO(data)).iter_sections():
        if isinstance(table, SymbolTableSection):
            for symbol in table.iter_symbols():
                if symbol["st_info"]["bind"] != "STB_LOCAL" and symbol["st_shndx"] != "SHN_UNDEF":
                    yield symbol.name
