"""What the linker takes from a relocatable RV64 object: loaded sections, symbols, relocations.

Model: an object is read once into `ObjectFile`. Its loaded sections become `LinkPiece`s, the units of placement: code,
constants (read-only), data, zero-filled data. Symbols and relocations are arrays, because a program has tens of
thousands of them; relocations name their piece and their symbol by number within the object.

Left out: sections that are not loaded, notes, and unwinding tables (nothing here unwinds). Relocations of those go
with them. Invariant: every number in an `ObjectFile` is in range; bytes that are no such object raise LinkError.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile
from numpy.typing import NDArray

from superkernel.core.errors import LinkError

SYMBOL_DTYPE = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
RELA_DTYPE = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])

UNDEFINED, ABSOLUTE, COMMON, EXTENDED, RESERVED = 0, 0xFFF1, 0xFFF2, 0xFFFF, 0xFF00  # section numbers of symbols
LOCAL, GLOBAL, WEAK = 0, 1, 2  # bindings
FLAG_RVC, FLAG_DOUBLE_FLOAT, FLAG_EMBEDDED = 1, 4, 8  # e_flags
FLAGS_FLOAT = 6
OBJECTS_KEPT = 256  # read objects, of a few kilobytes each: those of a large program
SIZE_MAX = 1 << 40  # of a section in memory: larger ones are mistakes, and sums of sizes stay within 63 bits
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400  # section flags

Array = NDArray[Any]


class PieceKind(Enum):
    """What a loaded section holds; the order is the order in memory."""

    CODE = "code"
    CONSTANT = "constant"
    DATA = "data"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class LinkPiece:
    """A loaded section. `data` is empty where the kind is ZERO."""

    object: str
    name: str
    kind: PieceKind
    align: int
    size: int
    data: bytes


@dataclass(frozen=True)
class ObjectFile:
    """An object as read. `symbol_piece`: number of the symbol's piece, -1 where its section is not a piece."""

    name: str
    pieces: tuple[LinkPiece, ...]
    symbols: Array  # SYMBOL_DTYPE
    symbol_names: tuple[str, ...]
    symbol_piece: NDArray[np.int64]
    relocations: Array  # RELA_DTYPE
    relocation_piece: NDArray[np.int64]


def read_object(data: bytes, name: str) -> ObjectFile:
    """Raises LinkError where the bytes are not a relocatable RV64 object with the LP64D convention."""
    try:
        return _read(data, name)
    except LinkError:
        raise
    except Exception as error:  # the ELF library has no one error of its own for what can be wrong with bytes
        raise LinkError(
            "not a readable object file", location=f"object {name!r}", found=f"{type(error).__name__}: {error}"
        ) from error


@lru_cache(maxsize=OBJECTS_KEPT)
def _read(data: bytes, name: str) -> ObjectFile:
    """Kept, because programs are linked several times, and most of their objects are the same each time."""
    elf = ELFFile(io.BytesIO(data))
    _check_header(elf, name)
    sections = list(elf.iter_sections())
    pieces: list[LinkPiece] = []
    piece_of = np.full(max(len(sections), 1), -1, np.int64)
    for number, section in enumerate(sections):
        piece = _piece(section.header, section.name, data, name)
        if piece is not None:
            piece_of[number] = len(pieces)
            pieces.append(piece)
    symbols, names = _symbols(sections, data, name)
    inside = (symbols["section"] != UNDEFINED) & (symbols["section"] < RESERVED)
    if (symbols["section"][inside] >= len(sections)).any():
        raise LinkError("a symbol names a section that there is not", location=f"object {name!r}")
    symbol_piece = np.where(inside, piece_of[np.where(inside, symbols["section"], 0)], -1)
    parts, owners = [np.empty(0, RELA_DTYPE)], [np.empty(0, np.int64)]
    for section in sections:
        if section["sh_type"] not in ("SHT_RELA", "SHT_REL"):
            continue
        piece_number = int(piece_of[section["sh_info"]])
        if piece_number < 0:
            continue
        if section["sh_type"] == "SHT_REL":
            raise LinkError("relocations without addends", location=f"object {name!r}, section {section.name!r}")
        rows = _table(section.header, data, RELA_DTYPE, f"object {name!r}, section {section.name!r}")
        parts.append(rows)
        owners.append(np.full(len(rows), piece_number, np.int64))
    relocations = np.concatenate(parts)
    if len(relocations) and int((relocations["info"] >> np.uint64(32)).max()) >= len(symbols):
        raise LinkError("a relocation names a symbol that there is not", location=f"object {name!r}")
    relocation_piece = np.concatenate(owners)
    for array in (symbol_piece, relocations, relocation_piece):
        array.flags.writeable = False
    return ObjectFile(name, tuple(pieces), symbols, names, symbol_piece, relocations, relocation_piece)


def _check_header(elf: ELFFile, name: str) -> None:
    place = f"object {name!r}"
    found = (elf.elfclass, elf.little_endian, elf["e_machine"], elf["e_type"])
    if found != (64, True, "EM_RISCV", "ET_REL"):
        raise LinkError(
            "not an object for this target",
            location=place,
            expected="64-bit, little-endian, EM_RISCV, ET_REL",
            found=f"{found[0]}-bit, {'little' if found[1] else 'big'}-endian, {found[2]}, {found[3]}",
        )
    flags = elf["e_flags"]
    if flags & FLAGS_FLOAT != FLAG_DOUBLE_FLOAT or flags & FLAG_EMBEDDED:
        raise LinkError(
            "made for another calling convention", location=place, expected="lp64d", found=f"e_flags {flags:#x}"
        )


def _piece(header: Any, section_name: str, data: bytes, name: str) -> LinkPiece | None:
    flags, size, align = header["sh_flags"], header["sh_size"], max(1, header["sh_addralign"])
    kind_name = header["sh_type"]
    if not flags & _ALLOC or kind_name == "SHT_NOTE" or section_name.startswith(".eh_frame"):
        return None
    place = f"object {name!r}, section {section_name!r}"
    zero = kind_name == "SHT_NOBITS"
    start = header["sh_offset"]
    if align & (align - 1) or align > 1 << 20 or size > SIZE_MAX or (not zero and start + size > len(data)):
        raise LinkError(
            "a section of impossible size or alignment", location=place, found=f"{size} bytes, alignment {align}"
        )
    if flags & _TLS:
        raise LinkError("thread-local data", location=place, hint="there are no threads here: keep it per hart")
    if flags & _EXECUTE:
        kind = PieceKind.CODE
    elif zero:
        kind = PieceKind.ZERO
    else:
        kind = PieceKind.DATA if flags & _WRITE else PieceKind.CONSTANT
    if kind is PieceKind.CODE and (zero or flags & _WRITE):
        raise LinkError("code that can be written", location=place)
    return LinkPiece(name, section_name, kind, align, size, b"" if zero else bytes(data[start : start + size]))


def _table(header: Any, data: bytes, dtype: np.dtype[Any], place: str) -> Array:
    start, size = header["sh_offset"], header["sh_size"]
    if header["sh_entsize"] != dtype.itemsize or size % dtype.itemsize or start + size > len(data):
        raise LinkError("a table of impossible size", location=place, found=f"{size} bytes at {start}")
    return np.frombuffer(data, dtype, size // dtype.itemsize, start)


def _symbols(sections: list[Any], data: bytes, name: str) -> tuple[Array, tuple[str, ...]]:
    tables = [section for section in sections if section["sh_type"] == "SHT_SYMTAB"]
    if not tables:
        return np.empty(0, SYMBOL_DTYPE), ()
    place = f"object {name!r}, section {tables[0].name!r}"
    symbols = _table(tables[0].header, data, SYMBOL_DTYPE, place)
    text = sections[tables[0]["sh_link"]].data()
    if (symbols["section"] == EXTENDED).any():
        raise LinkError("more sections than symbols can name", location=place, hint="cut the module into several")
    if len(symbols) and int(symbols["name"].max()) >= len(text):
        raise LinkError("a symbol's name lies outside the string table", location=place)
    names = tuple(text[at : text.index(b"\0", at)].decode() for at in symbols["name"].tolist())
    return symbols, names
