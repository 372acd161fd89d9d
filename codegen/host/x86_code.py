"""Machine code of x86-64, written directly: the few instructions that entries of a fused kernel are made of, and the
relocatable object around them.

Model: `X86Code` is one section of code that grows at its end. Jumps and calls inside it are filled in when it is
finished; what lies outside (functions of other objects, tables in read-only memory) becomes relocations. Registers are
numbered as the CPU numbers them. Encodings: Intel's Software Developer's Manual, volume 2; objects: System V ABI, AMD64
supplement, chapter 4.

Every operand in memory is base + 32-bit displacement; displacements and immediates beyond 32 bits take a register more.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

RAX, RCX, RDX, RBX, RSP, RSI, RDI = 0, 1, 2, 3, 4, 6, 7
R8, R9, R10, R11, R12, R13, R14, R15 = range(8, 16)
JB, JAE, JE, JNE = 0x82, 0x83, 0x84, 0x85  # conditions, as the second byte of a jump

_ALIGN = 16
_PC32, _PLT32 = 2, 4  # kinds of relocations
_CLOCK = b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0"  # RDTSC; SHL RDX, 32; OR RAX, RDX
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")


def fits(value: int) -> bool:
    """Whether a displacement or an immediate has room in an instruction."""
    return -(1 << 31) <= value < 1 << 31


@cache
def _with_memory(opcode: bytes, register: int, base: int, wide: int) -> bytes:
    """An instruction up to the displacement of its operand in memory."""
    prefix = wide | register >> 3 << 2 | base >> 3
    head = (bytes((0x40 | prefix,)) if prefix else b"") + opcode + bytes((0x80 | (register & 7) << 3 | base & 7,))
    return head + (b"\x24" if base & 7 == RSP else b"")


@cache
def _with_register(opcode: bytes, register: int, other: int, wide: int) -> bytes:
    """An instruction of two registers."""
    prefix = wide | register >> 3 << 2 | other >> 3
    return (bytes((0x40 | prefix,)) if prefix else b"") + opcode + bytes((0xC0 | (register & 7) << 3 | other & 7,))


class Written(NamedTuple):
    """A function that was written: its bytes, and its calls outside."""

    start: int
    stop: int
    calls: Sequence[tuple[int, str]]


class Here(NamedTuple):
    """A place in code: what there is ahead of it."""

    bytes: int
    labels: int
    jumps: int
    calls: int


class X86Code:
    """See the module docstring."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.functions: list[tuple[str, bool, int, int]] = []  # name, seen by others, begin, bytes
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []
        self._calls: list[tuple[int, str]] = []  # of functions outside
        self._tables: list[tuple[int, int]] = []  # place, offset in read-only memory
        self.constants = bytearray()
        self._calls_before = 0  # ahead of the present function
        self.written = Written(0, 0, [])  # the last one

    # Functions and labels ---------------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """A function begins."""
        self.data += b"\xcc" * (-len(self.data) % _ALIGN)
        self.label(name)
        self._calls_before = len(self._calls)

    def end(self, name: str, *, seen: bool = False) -> None:
        """It ends here. `seen`: other objects may refer to it."""
        start = self._labels[name]
        self.functions.append((name, seen, start, len(self.data) - start))
        self.written = Written(start, len(self.data), self._calls[self._calls_before :])

    def label(self, name: str) -> None:
        """What jumps and calls name."""
        self._labels[name] = len(self.data)

    def place(self, name: str) -> int:
        """Where a label is, in bytes from the section's begin."""
        return self._labels[name]

    def repeat(self, name: str, of: Written, numbers: Mapping[int, int], callee: str | None = None) -> None:
        """A function as one that was written before, but for some 32-bit numbers, by their places there, and for what
        it calls outside. That one has no labels inside."""
        self.begin(name)
        shift = len(self.data) - of.start
        self.data += self.data[of.start : of.stop]
        for place, number in numbers.items():
            _I32.pack_into(self.data, place + shift, number)
        self._calls += [(place + shift, callee or symbol) for place, symbol in of.calls]
        self.functions.append((name, False, of.start + shift, of.stop - of.start))

    def here(self) -> Here:
        """The present place, where a part that is copied begins or ends."""
        return Here(len(self.data), len(self._labels), len(self._jumps), len(self._calls))

    def copy(self, start: Here, stop: Here, old: str, new: str) -> None:
        """A part once more, with `new` in the place of the beginning `old` of all its labels. It has no tables."""
        shift = len(self.data) - start.bytes
        self.data += self.data[start.bytes : stop.bytes]
        labels = list(islice(self._labels.items(), start.labels, stop.labels))
        self._labels |= {new + label.removeprefix(old): place + shift for label, place in labels}
        jumps, calls = self._jumps[start.jumps : stop.jumps], self._calls[start.calls : stop.calls]
        self._jumps += [(place + shift, new + label.removeprefix(old)) for place, label in jumps]
        self._calls += [(place + shift, symbol) for place, symbol in calls]

    # Instructions -----------------------------------------------------------------------------------------------------

    def _memory(self, opcode: bytes, register: int, base: int, offset: int, wide: int = 8) -> None:
        """An instruction with a register, or a digit, and an operand in memory."""
        self.data += _with_memory(opcode, register, base, wide) + _I32.pack(offset)

    def _registers(self, opcode: bytes, register: int, other: int, wide: int = 8) -> None:
        """An instruction with a register, or a digit, and another register."""
        self.data += _with_register(opcode, register, other, wide)

    def ending_in(self, instructions: bytes, number: int) -> None:
        """Instructions that were written before but for the number of 32 bits that they end in."""
        self.data += instructions + _I32.pack(number)

    def load(self, to: int, base: int, offset: int) -> None:
        """64 bits from memory."""
        self._memory(b"\x8b", to, base, offset)

    def load_32(self, to: int, base: int, offset: int) -> None:
        """32 bits from memory, zeros above."""
        self._memory(b"\x8b", to, base, offset, wide=0)

    def store(self, base: int, offset: int, value: int) -> None:
        """64 bits of a register to memory."""
        self._memory(b"\x89", value, base, offset)

    def store_number(self, base: int, offset: int, number: int) -> None:
        """A number of 32 bits, with its sign, as 64 bits to memory."""
        self._memory(b"\xc7", 0, base, offset)
        self.data += _I32.pack(number)

    def address(self, to: int, base: int, offset: int) -> None:
        """to = base + offset."""
        if fits(offset):
            self._memory(b"\x8d", to, base, offset)
            return
        assert to != base
        self.number(to, offset)
        self._registers(b"\x01", base, to)

    def move(self, to: int, source: int) -> None:
        """to = source."""
        self._registers(b"\x89", source, to)

    def number(self, to: int, value: int) -> None:
        """to = a number of 64 bits."""
        if value == 0:
            self._registers(b"\x31", to, to, wide=0)
        elif 0 < value < 1 << 31:
            self.number_32(to, value)
        else:
            self.data += bytes((0x48 | to >> 3, 0xB8 | to & 7)) + _I64.pack(value)

    def number_32(self, to: int, value: int) -> int:
        """to = a number of 31 bits; where it stands."""
        self.data += (b"\x41" if to >> 3 else b"") + bytes((0xB8 | to & 7,)) + _I32.pack(value)
        return len(self.data) - 4

    def product(self, to: int, source: int, factor: int) -> None:
        """to = source * factor."""
        self._registers(b"\x69", to, source)
        self.data += _I32.pack(factor)

    def add_number(self, to: int, value: int) -> None:
        """to += a number of 32 bits."""
        self._registers(b"\x81", 0, to)
        self.data += _I32.pack(value)

    def add(self, to: int, source: int) -> None:
        """to += source."""
        self._registers(b"\x01", source, to)

    def add_memory(self, to: int, base: int, offset: int) -> None:
        """to += 64 bits of memory."""
        self._memory(b"\x03", to, base, offset)

    def shift_left(self, to: int, bits: int) -> None:
        """to <<= bits."""
        self._registers(b"\xc1", 4, to)
        self.data.append(bits)

    def compare_memory(self, base: int, offset: int, value: int) -> None:
        """Flags of 64 bits of memory against a register."""
        self._memory(b"\x39", value, base, offset)

    def compare_number(self, register: int, number: int) -> None:
        """Flags of 32 bits of a register against a number."""
        self._registers(b"\x81", 7, register, wide=0)
        self.data += _I32.pack(number)

    def test(self, register: int) -> None:
        """Flags of 32 bits of a register against 0."""
        self._registers(b"\x85", register, register, wide=0)

    def product_32(self, to: int, source: int, factor: int) -> None:
        """The lower 32 bits of a product, zeros above."""
        self._registers(b"\x69", to, source, wide=0)
        self.data += _I32.pack(factor)

    def add_32(self, to: int, source: int) -> None:
        """32 bits, zeros above."""
        self._registers(b"\x01", source, to, wide=0)

    def prefetch(self, base: int, offset: int) -> None:
        """Bring a line near, past the first-level cache: PREFETCHT2."""
        self._memory(b"\x0f\x18", 3, base, offset, wide=0)

    def push(self, register: int) -> None:
        """Onto the stack."""
        self.data += (b"\x41" if register >> 3 else b"") + bytes((0x50 | register & 7,))

    def pop(self, register: int) -> None:
        """Off the stack."""
        self.data += (b"\x41" if register >> 3 else b"") + bytes((0x58 | register & 7,))

    def clock(self) -> None:
        """The CPU's counter in RAX; RDX is lost."""
        self.data += _CLOCK

    def back(self) -> None:
        """Return."""
        self.data += b"\xc3"

    # Jumps and calls --------------------------------------------------------------------------------------------------

    def jump(self, label: str, condition: int | None = None) -> None:
        """To a label of this section."""
        self.data += b"\xe9" if condition is None else bytes((0x0F, condition))
        self._jumps.append((len(self.data), label))
        self.data += b"\0\0\0\0"

    def jump_to(self, register: int) -> None:
        """To an address in a register."""
        self._registers(b"\xff", 4, register, wide=0)

    def call(self, label: str) -> None:
        """A function of this section."""
        self.data += b"\xe8"
        self._jumps.append((len(self.data), label))
        self.data += b"\0\0\0\0"

    def call_outside(self, symbol: str) -> None:
        """A function of another object."""
        self.data += b"\xe8"
        self._calls.append((len(self.data), symbol))
        self.data += b"\0\0\0\0"

    def call_memory(self, base: int, offset: int) -> None:
        """A function whose address lies in memory."""
        self._memory(b"\xff", 2, base, offset, wide=0)

    def address_of(self, to: int, label: str) -> None:
        """The address of a label of this section."""
        self.data += bytes((0x48 | to >> 3 << 2, 0x8D, 0x05 | (to & 7) << 3))
        self._jumps.append((len(self.data), label))
        self.data += b"\0\0\0\0"

    def address_of_table(self, to: int, numbers: Sequence[int]) -> None:
        """The address of a table of 32-bit numbers in read-only memory."""
        self.data += bytes((0x48 | to >> 3 << 2, 0x8D, 0x05 | (to & 7) << 3))
        self._tables.append((len(self.data), len(self.constants)))
        self.data += b"\0\0\0\0"
        self.constants += struct.pack(f"<{len(numbers)}i", *numbers)

    # The object -------------------------------------------------------------------------------------------------------

    def object(self) -> bytes:
        """A relocatable object of all functions."""
        for place, label in self._jumps:
            _I32.pack_into(self.data, place, self._labels[label] - place - 4)
        names = ["", *(name for name, *_ in self.functions), *dict.fromkeys(symbol for _, symbol in self._calls)]
        strings, at = bytearray(), dict[str, int]()
        for name in names:
            at[name] = len(strings)
            strings += name.encode() + b"\0"
        rows = [_SYMBOL.pack(0, 0, 0, 0, 0, 0), _SYMBOL.pack(0, 3, 0, 2, 0, 0)]  # none, the tables
        ordered = sorted(self.functions, key=lambda row: row[1])  # those that others see come last
        rows += [_SYMBOL.pack(at[name], seen << 4 | 2, 0, 1, *where) for name, seen, *where in ordered]
        local = 2 + sum(not seen for _, seen, *_ in ordered)
        outside: dict[str, int] = {}
        for _, symbol in self._calls:
            if symbol not in outside:
                outside[symbol] = len(rows)
                rows.append(_SYMBOL.pack(at[symbol], 1 << 4, 0, 0, 0, 0))
        relocations = [_RELOCATION.pack(place, _PC32, 1, offset - 4) for place, offset in self._tables]
        relocations += [_RELOCATION.pack(place, _PLT32, outside[symbol], -4) for place, symbol in self._calls]
        return _object(
            {
                ".text": (1, 6, _ALIGN, 0, 0, bytes(self.data)),
                ".rodata": (1, 2, _ALIGN, 0, 0, bytes(self.constants)),
                ".symtab": (2, 0, 8, 4, local, b"".join(rows)),
                ".strtab": (3, 0, 1, 0, 0, bytes(strings)),
                ".rela.text": (4, 0, 8, 3, 1, b"".join(relocations)),
            }
        )


def _object(sections: Mapping[str, tuple[int, int, int, int, int, bytes]]) -> bytes:
    """An ELF64 object of sections: type, flags, alignment, link, info and contents of each, in their order."""
    names, at = bytearray(b"\0"), dict[str, int]()
    for name in (*sections, ".shstrtab"):
        at[name] = len(names)
        names += name.encode() + b"\0"
    body, rows = bytearray(64), [bytes(64)]
    entry_bytes = {2: 24, 4: 24}
    for name, (kind, flags, align, link, info, data) in {
        **sections,
        ".shstrtab": (3, 0, 1, 0, 0, bytes(names)),
    }.items():
        body += bytes(-len(body) % align)
        row = (at[name], kind, flags, 0, len(body), len(data), link, info, align, entry_bytes.get(kind, 0))
        rows.append(struct.pack("<IIQQQQIIQQ", *row))
        body += data
    body += bytes(-len(body) % 8)
    head = struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, len(body), 0, 64, 0, 0, 64, len(rows), len(rows) - 1)
    body[:64] = b"\x7fELF\x02\x01\x01" + bytes(9) + head
    return bytes(body) + b"".join(rows)
