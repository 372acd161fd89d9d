"""Object files made executable: a small linker, and the code that it loads.

Model: the sections of all objects lie in one range of memory, code ahead of constants, so that distances between them
are those of their sizes and cannot overflow whatever else the process has mapped. Every symbol is defined by one of
the objects: generated code calls nobody outside (a test of all kernels says so), which leaves no stubs or tables of
addresses to make.

Invariants: no object bytes are loaded that were not made here or verified by the cache; what this linker does not know
(sections that are written, relocations of other kinds, a second definition) is an InternalError, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from mmap import PAGESIZE
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.host.executable_memory import ExecutableMemory
from superkernel.core.errors import InternalError, UnsupportedError

Array = NDArray[Any]

_X86_64, _AARCH64 = 62, 183
_SECTION = np.dtype(
    {
        "names": ("name", "type", "flags", "offset", "size", "link", "info", "alignment"),
        "formats": ("<u4", "<u4", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8"),
        "offsets": (0, 4, 8, 24, 32, 40, 44, 48),
        "itemsize": 64,
    }
)


class _Section(NamedTuple):
    """A row of the table of sections: the fields of `_SECTION`."""

    name: int
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_SYMBOLS, _RELOCATIONS, _UNWIND = 2, 4, 0x70000001  # types of sections
_WRITTEN, _IN_MEMORY, _CODE = 1, 2, 4  # flags of sections
_NOBITS = 8
_FUNCTION = 2  # a type of symbols


@dataclass(frozen=True)
class _Field:
    """What one kind of relocation puts where: `bits` of a value (0: the word), without its `shift` lowest, at bit `at`
    of a word of `nbytes`. `value`: the address, its 12 lowest bits, its distance from the place, that of the pages."""

    nbytes: int
    value: str = "distance"
    bits: int = 0
    shift: int = 0
    at: int = 0


def _low(shift: int) -> _Field:
    return _Field(4, "low", bits=12 - shift, shift=shift, at=10)


_FIELDS = {
    # System V ABI, AMD64 supplement, table 4.9: 64, PC32, PLT32 (calls reach their target directly here), PC64
    (_X86_64, 1): _Field(8, "address"),
    (_X86_64, 2): _Field(4),
    (_X86_64, 4): _Field(4),
    (_X86_64, 24): _Field(8),
    # ELF for the Arm 64-bit Architecture, 5.7: ABS64, PREL64, PREL32, ADR_PREL_PG_HI21, JUMP26, CALL26; ADD and
    # LDST8, 16, 32, 64, 128 with ABS_LO12_NC
    (_AARCH64, 257): _Field(8, "address"),
    (_AARCH64, 260): _Field(8),
    (_AARCH64, 261): _Field(4),
    (_AARCH64, 275): _Field(4, "pages", bits=21, shift=12, at=5),
    (_AARCH64, 282): _Field(4, bits=26, shift=2),
    (_AARCH64, 283): _Field(4, bits=26, shift=2),
    **{(_AARCH64, kind): _low(shift) for kind, shift in ((277, 0), (278, 0), (284, 1), (285, 2), (286, 3), (299, 4))},
}


@dataclass
class _Object:
    """An object as read; `place`: per section, its offset in the image, -1 where it takes no memory."""

    data: bytes
    machine: int
    sections: list[_Section]
    symbols: Array
    names: tuple[str, ...]  # of symbols that other objects see, "" for others
    place: NDArray[np.int64]
    strings: int  # where the symbols' names begin

    def defined(self) -> list[tuple[str, int]]:
        """The symbols that others see, with their offsets in the image."""
        where = self.symbols["section"]
        return [
            (name, int(self.place[where[i]] + self.symbols["value"][i]))
            for i, name in enumerate(self.names)
            if name and where[i]
        ]

    def functions(self) -> list[tuple[str, int, int]]:
        """All functions, those that others do not see as well: name, offset in the image, bytes."""
        rows = self.symbols[self.symbols["info"] & 15 == _FUNCTION]
        offsets = self.place[rows["section"]] + rows["value"].astype(np.int64)
        names = (rows["name"].astype(np.int64) + self.strings).tolist()
        found = []
        for begin, offset, nbytes in zip(names, offsets.tolist(), rows["size"].tolist(), strict=True):
            name = self.data[begin : self.data.index(b"\0", begin)].decode()
            found.append((name, offset, nbytes))
        return found


def memory_bytes(data: bytes) -> int:
    """What an object's code and constants take where they are linked, without what places them."""
    return sum(section.size for section in _read(data).sections if _is_placed(section))


def _is_placed(section: _Section) -> bool:
    return bool(section.flags & _IN_MEMORY) and section.type != _UNWIND


def _read(data: bytes) -> _Object:
    header = np.frombuffer(data, "<u2", 32)
    if data[:6] != b"\x7fELF\x02\x01" or header[8] != 1:
        raise ValueError("no relocatable ELF64 object")
    (start,) = np.frombuffer(data, "<u8", 1, 40)
    sections = [_Section(*row) for row in np.frombuffer(data, _SECTION, int(header[30]), int(start)).tolist()]
    symbols, names, strings = np.zeros(0, _SYMBOL), [""], 0
    for table in (section for section in sections if section.type == _SYMBOLS):
        symbols = np.frombuffer(data, _SYMBOL, table.size // _SYMBOL.itemsize, table.offset)
        strings = sections[table.link].offset
        names = [""] * len(symbols)
        for i in np.flatnonzero(symbols["info"] >> 4).tolist():  # not local
            begin = strings + int(symbols["name"][i])
            names[i] = data[begin : data.index(b"\0", begin)].decode()
    return _Object(data, int(header[9]), sections, symbols, tuple(names), np.full(len(sections), -1, np.int64), strings)


def _section_name(found: _Object, index: int) -> str:
    names = found.sections[np.frombuffer(found.data, "<u2", 32)[31]].offset
    begin = names + found.sections[index].name
    return found.data[begin : found.data.index(b"\0", begin)].decode()


def _lay_out(objects: list[_Object]) -> tuple[int, int]:
    """Gives sections their places. The bytes of code and of all, in whole pages."""
    at, code_bytes = 0, 0
    for of_code in (True, False):
        for found in objects:
            for i, section in enumerate(found.sections):
                if not _is_placed(section) or bool(section.flags & _CODE) is not of_code:
                    continue
                written = section.flags & _WRITTEN and _section_name(found, i) != ".data.rel.ro"
                if section.type == _NOBITS or written:
                    raise InternalError("generated code has a section that is written", found=_section_name(found, i))
                at += -at % max(1, section.alignment)
                found.place[i] = at
                at += section.size
        at += -at % PAGESIZE
        code_bytes = at if of_code else code_bytes
    return code_bytes, at


def _relocate(image: NDArray[np.uint8], base: int, objects: list[_Object], targets: NDArray[np.int64]) -> None:
    """Fills in what code and constants know of addresses. `targets`: offsets of the symbols of all objects."""
    found: list[tuple[Array, int, int]] = []  # rows, where what they fill in begins, the first symbol of their object
    symbols = 0
    for of in objects:
        for section in of.sections:
            if section.type == _RELOCATIONS and of.place[section.info] >= 0:
                rows = np.frombuffer(of.data, _RELOCATION, section.size // _RELOCATION.itemsize, section.offset)
                found.append((rows, int(of.place[section.info]), symbols))
        symbols += len(of.symbols)
    if not found:
        return
    rows = np.concatenate([part for part, _, _ in found])
    counts = [len(part) for part, _, _ in found]
    start, first = (np.repeat([row[n] for row in found], counts) for n in (1, 2))
    places = base + start + rows["offset"].astype(np.int64)
    values = base + targets[rows["symbol"] + first] + rows["addend"]
    for kind in sorted(set(rows["kind"].tolist())):
        field = _FIELDS.get((objects[0].machine, kind))
        if field is None:
            raise InternalError("the loader does not know this kind of relocation", found=kind)
        of_kind = rows["kind"] == kind
        place, value = places[of_kind], values[of_kind]
        if field.value == "distance":
            value = value - place
        elif field.value == "pages":
            value = (value & ~0xFFF) - (place & ~0xFFF)
        elif field.value == "low":
            value = value & 0xFFF
        _insert(image, place - base, value >> field.shift, field)


def _insert(image: NDArray[np.uint8], at: NDArray[np.int64], value: NDArray[np.int64], field: _Field) -> None:
    """Writes values into words."""
    spare = 64 - (field.bits or 8 * field.nbytes)
    if field.value in ("distance", "pages") and np.any(value != value << spare >> spare):
        raise UnsupportedError(
            "the code of this graph is too large", found=f"{len(image)} bytes", hint="compile it as several graphs"
        )
    lanes = at[:, None] + np.arange(field.nbytes)
    if field.bits:
        words = np.ascontiguousarray(image[lanes]).view("<u4")[:, 0].astype(np.int64)
        if field.value == "pages":  # ADRP has the two lowest bits apart
            words, value, spare = words | (value & 3) << 29, value >> 2, spare + 2
        value = words | (value & ((1 << 64 - spare) - 1)) << field.at
    image[lanes] = value.astype("<i8")[:, None].view(np.uint8)[:, : field.nbytes]


def _targets(objects: list[_Object], names: dict[str, int]) -> NDArray[np.int64]:
    """The offsets of the symbols of all objects, one object after the other."""
    symbols, places = (np.concatenate([getattr(found, name) for found in objects]) for name in ("symbols", "place"))
    counts, sections = [len(found.symbols) for found in objects], [len(found.place) for found in objects]
    where = symbols["section"].astype(np.int64)
    inside = (where > 0) & (where < np.repeat(sections, counts))
    where += np.repeat(np.cumsum(sections) - sections, counts)
    targets = np.where(inside, places[np.where(inside, where, 0)] + symbols["value"].astype(np.int64), 0)
    seen = [name for found in objects for name in found.names]
    for i in np.flatnonzero(symbols["section"] == 0).tolist():
        if seen[i]:
            targets[i] = names[seen[i]]
    return targets


def _link(objects: list[_Object], nbytes: int, base: int, names: dict[str, int]) -> bytes:
    """The image for an address."""
    image = np.zeros(nbytes, np.uint8)
    for found in objects:
        for place, section in zip(found.place.tolist(), found.sections, strict=True):
            if place >= 0:
                part = np.frombuffer(found.data, np.uint8, section.size, section.offset)
                image[place : place + section.size] = part
    _relocate(image, base, objects, _targets(objects, names))
    return image.tobytes()


class LoadedCode:
    """Object files in executable memory. Raises MachineError where the process may have none."""

    def __init__(self, objects: Iterable[bytes]) -> None:
        try:
            read = [_read(data) for data in objects]
            code_bytes, nbytes = _lay_out(read)
            self._offsets: dict[str, int] = {}
            for name, offset in (symbol for found in read for symbol in found.defined()):
                if self._offsets.setdefault(name, offset) != offset:
                    raise InternalError("two objects define the same symbol", found=name)
            missing = {name for found in read for name in found.names if name and name not in self._offsets}
            if missing:
                raise InternalError(
                    "generated code needs symbols that nobody defines", found=", ".join(sorted(missing))
                )
            self._memory = ExecutableMemory(
                nbytes, code_bytes, lambda address: _link(read, nbytes, address, self._offsets)
            )
            self._functions = [row for found in read for row in found.functions()]
        except (ValueError, IndexError) as error:
            raise InternalError(f"an object file cannot be read: {error}") from error

    def functions(self) -> list[tuple[str, int, int]]:
        """Names of all functions, with their addresses and bytes."""
        return [(name, self._memory.address + offset, nbytes) for name, offset, nbytes in self._functions]

    def address(self, symbol: str) -> int:
        """Address of a function. Raises InternalError where there is none."""
        if symbol not in self._offsets:
            raise InternalError(f"the compiled image has no symbol {symbol!r}")
        return self._memory.address + self._offsets[symbol]
