"""The start code of an accelerator program, as a relocatable object of hand-encoded instructions.

LLVM can assemble nothing for this target under llvmlite, and what a core does before it has a stack cannot be said in
IR: so a small encoder stands here, for the two dozen instructions this needs.

What a hart does at `sk_start` (a0 = its number; machine mode; interrupts off, as after reset):

1. harts beyond the program's number go to sleep;
2. the floating-point unit on, its modes and flags cleared; gp = tp = 0;
3. sp = the end of its private memory, less 16 bytes, aligned to 16;
4. unless `sk_firmware` holds something but 0 (then a firmware takes the traps): mscratch = its private memory,
   mtvec = `sk_trap`;
5. calls `sk_main(hart)` of its copy of the code, found in a table by hart number;
6. `fence rw, rw`, adds 1 to `sk_done`; the last hart to come sets `sk_done` back to 0, for the next launch, and stores
   EXIT_SUCCESS to the exit address; everybody sleeps.

`sk_fence` is `fence iorw, iorw`, which LLVM has no name for: what the control unit loads behind it is ordered behind a
wait on the register page ahead of it.

`sk_trap` stores mcause to the hart's private memory, stores EXIT_TRAP to the exit address and sleeps.

Invariants: nothing is written but private memory, `sk_done` and the exit address. The caller defines `sk_main` (an
object) and `sk_private` (an absolute symbol); `sk_start`, `sk_trap` and `sk_fence` are to be shared by all copies
(`SHARED`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from superkernel.codegen.aicore.linking.elf_writer import ObjectSection, OutputSymbol, write_object
from superkernel.codegen.aicore.linking.objects import FLAG_DOUBLE_FLOAT, FLAG_RVC
from superkernel.codegen.aicore.linking.relocations import NUMBERS
from superkernel.codegen.aicore.memory_map import CAUSE_WORD
from superkernel.core.errors import InternalError, Violation, raise_all
from superkernel.target.aicore import AicoreTarget

START, TRAP, MAIN, DONE, FIRMWARE, PRIVATE = "sk_start", "sk_trap", "sk_main", "sk_done", "sk_firmware", "sk_private"
FENCE: Final = "sk_fence"
SHARED: Final = (START, TRAP, FENCE)
EXIT_SUCCESS: Final = 0x5555
EXIT_TRAP: Final = 1 << 16 | 0x3333
EXIT_DATA: Final = 2 << 16 | 0x3333  # data is out of the range that a tiling demands
HARTS_MAX: Final = 1 << 16
LINE_BYTES: Final = 512  # `sk_done` is written by all harts: nothing else shares its line

ZERO, RA, SP, GP, TP, T0, T1, T2, A0, T3 = 0, 1, 2, 3, 4, 5, 6, 7, 10, 28
WRITE, SET, CLEAR = 1, 2, 3  # what `Encoder.csr` does
_FCSR, _MSTATUS, _MTVEC, _MSCRATCH, _MCAUSE = 0x003, 0x300, 0x305, 0x340, 0x342
_FLOAT_DIRTY = 3 << 13  # mstatus.FS
_WFI, _FENCE_RW_RW, _FENCE_ALL, _RET = 0x10500073, 0x0330000F, 0x0FF0000F, 0x00008067


@dataclass(frozen=True, kw_only=True)
class BootSpec:
    """`copy_of[hart]` is the copy of the code that a hart runs; its length is the number of harts."""

    copy_of: Sequence[int]
    private_bytes: int
    exit_address: int

    def __post_init__(self) -> None:
        found = []
        if not 1 <= len(self.copy_of) <= HARTS_MAX:
            found.append(Violation("number of harts", "copy_of", f"1 to {HARTS_MAX}", str(len(self.copy_of))))
        if any(copy < 0 for copy in self.copy_of):
            found.append(Violation("a negative copy", "copy_of", "0 or more", str(min(self.copy_of))))
        if not 64 <= self.private_bytes < 1 << 31 or self.private_bytes % 16:
            expected = "a multiple of 16 from 64 on"
            found.append(Violation("size of private memory", "private_bytes", expected, str(self.private_bytes)))
        if not 0 <= self.exit_address < 1 << 56:
            found.append(Violation("exit address", "exit_address", "56 bits", f"{self.exit_address:#x}"))
        raise_all(InternalError, found)

    @classmethod
    def of(cls, target: AicoreTarget, copy_of: Sequence[int]) -> BootSpec:
        """For a target."""
        return cls(copy_of=copy_of, private_bytes=target.control.private_bytes, exit_address=target.map.exit_address)


class Encoder:
    """Instructions with labels and references to symbols. Registers by number, distances in bytes."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.references: list[tuple[int, str, str]] = []  # offset, relocation, symbol
        self.labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    @property
    def at(self) -> int:
        """Offset of the next instruction."""
        return 4 * len(self.words)

    def label(self, name: str) -> None:
        """Names the next instruction."""
        assert name not in self.labels, name
        self.labels[name] = self.at

    def word(self, word: int) -> None:
        """An instruction as it stands."""
        assert 0 <= word < 1 << 32, hex(word)
        assert word & 3 == 3, hex(word)
        self.words.append(word)

    def i(self, opcode: int, funct3: int, rd: int, rs1: int, immediate: int) -> None:
        """The I format: immediate from -2048 to 2047."""
        assert -2048 <= immediate < 2048, immediate
        self.word((immediate & 0xFFF) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode)

    def addi(self, rd: int, rs1: int, immediate: int) -> None:
        """rd = rs1 + immediate (12 bits, signed)."""
        self.i(0x13, 0, rd, rs1, immediate)

    def slli(self, rd: int, rs1: int, amount: int) -> None:
        """rd = rs1 << amount."""
        assert 0 <= amount < 64
        self.i(0x13, 1, rd, rs1, amount)

    def ld(self, rd: int, offset: int, rs1: int) -> None:
        """rd = the 8 bytes at rs1 + offset (12 bits, signed)."""
        self.i(0x03, 3, rd, rs1, offset)

    def jalr(self, rd: int, rs1: int) -> None:
        """Jumps to the address in rs1; rd gets the one behind this instruction."""
        self.i(0x67, 0, rd, rs1, 0)

    def store(self, size_bytes: int, rs2: int, offset: int, rs1: int, opcode: int = 0x23) -> None:
        """Stores the low bytes (1, 2, 4 or 8) of rs2."""
        assert -2048 <= offset < 2048
        self.r(opcode, size_bytes.bit_length() - 1, offset >> 5 & 0x7F, offset & 31, rs1, rs2)

    def r(self, opcode: int, funct3: int, funct7: int, rd: int, rs1: int, rs2: int) -> None:
        """The R format."""
        self.word(funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode)

    def add(self, rd: int, rs1: int, rs2: int) -> None:
        """rd = rs1 + rs2, modulo 2^64."""
        self.r(0x33, 0, 0, rd, rs1, rs2)

    def mul(self, rd: int, rs1: int, rs2: int) -> None:
        """rd = rs1 * rs2, modulo 2^64."""
        self.r(0x33, 0, 1, rd, rs1, rs2)

    def li(self, rd: int, value: int) -> None:
        """Any constant of 0 to 2^63 - 1: lui and addiw up to 31 bits, else the upper part, shifted, plus 11 bits."""
        assert 0 <= value < 1 << 63
        if value < 2048:
            self.addi(rd, ZERO, value)
        elif value < 1 << 31:
            low = (value & 0xFFF ^ 0x800) - 0x800
            self.word((value - low >> 12 & 0xFFFFF) << 12 | rd << 7 | 0x37)
            self.i(0x1B, 0, rd, rd, low)  # addiw: right for 0x7ffff800 and up, too
        else:
            self.li(rd, value >> 11)
            self.slli(rd, rd, 11)
            self.addi(rd, rd, value & 0x7FF)

    def csr(self, how: int, rd: int, number: int, rs1: int) -> None:
        """rd = control register `number`, which is then rs1 (WRITE), or loses or gets its bits (CLEAR, SET)."""
        self.word(number << 20 | rs1 << 15 | how << 12 | rd << 7 | 0x73)

    def amoadd_d_aqrl(self, rd: int, rs2: int, rs1: int) -> None:
        """Adds rs2 to the 8 bytes at rs1 in one step, acquire and release; rd = what was there."""
        self.r(0x2F, 3, 3, rd, rs1, rs2)

    def branch(self, funct3: int, rs1: int, rs2: int, label: str) -> None:
        """0 beq, 1 bne, 4 blt, 5 bge, 6 bltu, 7 bgeu."""
        self._jumps.append((self.at, label))
        self.word(rs2 << 20 | rs1 << 15 | funct3 << 12 | 0x63)

    def jump(self, label: str) -> None:
        """Goes on at a label, which may be placed later."""
        self._jumps.append((self.at, label))
        self.word(0x6F)

    def load_address(self, rd: int, symbol: str) -> None:
        """auipc and addi; the second instruction's relocation names the first by a label."""
        here = f".Lhigh{self.at}"
        self.label(here)
        self.references.append((self.at, "PCREL_HI20", symbol))
        self.word(rd << 7 | 0x17)
        self.references.append((self.at, "PCREL_LO12_I", here))
        self.addi(rd, rd, 0)

    def code(self) -> bytes:
        """The bytes, labels resolved."""
        words = list(self.words)
        for at, label in self._jumps:
            distance = self.labels[label] - at
            if words[at // 4] & 0x7F == 0x63:
                assert -4096 <= distance < 4096
                high = (distance >> 12 & 1) << 31 | (distance >> 5 & 0x3F) << 25
                words[at // 4] |= high | (distance >> 1 & 15) << 8 | (distance >> 11 & 1) << 7
            else:
                assert -(1 << 20) <= distance < 1 << 20
                high = (distance >> 20 & 1) << 31 | (distance >> 1 & 0x3FF) << 21 | (distance >> 11 & 1) << 20
                words[at // 4] |= high | distance & 0xFF000
        return struct.pack(f"<{len(words)}I", *words)


@dataclass(frozen=True)
class Datum:
    """A symbol's `size` bytes and what stands behind them in its section, with references as an `Encoder` has them."""

    size: int
    data: bytes
    flags: str = "rw-"
    align: int = 8
    local: bool = False
    references: Sequence[tuple[int, str, str]] = ()


def write_parts(parts: Mapping[str, Encoder | Datum]) -> bytes:
    """An object of functions and data by symbol, each in a section of its own; what they refer to and do not define is
    undefined."""
    symbols: dict[str, OutputSymbol] = {}
    for n, (name, part) in enumerate(parts.items()):
        if isinstance(part, Datum):
            symbols[name] = OutputSymbol(name, 0, part.size, "object", part.local, n)
        else:
            symbols[name] = OutputSymbol(name, 0, part.at, "function", False, n)
    for n, part in enumerate(parts.values()):
        for label, at in part.labels.items() if isinstance(part, Encoder) else ():
            if label.startswith(".Lhigh"):
                symbols[f"{n}{label}"] = OutputSymbol(label, at, 0, "none", True, n)
    for _, _, symbol in (row for part in parts.values() for row in part.references):
        if not symbol.startswith(".L"):
            symbols.setdefault(symbol, OutputSymbol(symbol, 0, 0, "none", False, -1))
    number = {name: n for n, name in enumerate(symbols)}
    sections = []
    for n, (name, part) in enumerate(parts.items()):
        rows = [
            (at, NUMBERS[kind], number[f"{n}{symbol}" if symbol.startswith(".L") else symbol], 0)
            for at, kind, symbol in part.references
        ]
        if isinstance(part, Encoder):
            sections.append(ObjectSection(f".text.{name}", part.code(), "r-x", 4, rows))
        else:
            title = ".rodata" if part.flags == "r--" else ".data"
            sections.append(ObjectSection(f"{title}.{name}", part.data, part.flags, part.align, rows))
    return write_object(sections, list(symbols.values()), flags=FLAG_RVC | FLAG_DOUBLE_FLOAT)


def boot_object(target: AicoreTarget, *, harts: int, copies: int = 1) -> bytes:
    """The start code for a target: hart h runs copy h mod `copies`, which gives every copy as many cube cores and as
    many vector cores as can be (cores of one type are numbered in a row, and run the same functions at a time)."""
    return encode_boot(BootSpec.of(target, [hart % copies for hart in range(harts)]))


def encode_boot(spec: BootSpec) -> bytes:
    """The object with `sk_start`, `sk_trap`, `sk_fence`, `sk_done` and `sk_firmware`."""
    fence = Encoder()
    fence.word(_FENCE_ALL)
    fence.word(_RET)
    mains = [(8 * hart, "64", f"{MAIN}.copy{copy}") for hart, copy in enumerate(spec.copy_of)]
    return write_parts(
        {
            START: _start(spec),
            TRAP: _trap(spec),
            "sk_mains": Datum(8 * len(mains), bytes(8 * len(mains)), "r--", local=True, references=mains),
            DONE: Datum(8, bytes(LINE_BYTES), align=LINE_BYTES),
            FIRMWARE: Datum(8, bytes(8)),
            FENCE: fence,
        }
    )


def _start(spec: BootSpec) -> Encoder:
    e = Encoder()
    e.li(T0, len(spec.copy_of))
    e.branch(7, A0, T0, "sleep")  # harts that the program does not know
    e.li(T0, _FLOAT_DIRTY)
    e.csr(SET, ZERO, _MSTATUS, T0)
    e.csr(WRITE, ZERO, _FCSR, ZERO)
    e.addi(GP, ZERO, 0)
    e.addi(TP, ZERO, 0)
    e.load_address(T1, PRIVATE)
    e.li(T0, spec.private_bytes)
    e.mul(T2, A0, T0)
    e.add(T1, T1, T2)  # the hart's private memory
    e.add(SP, T1, T0)
    e.addi(SP, SP, -16)
    e.i(0x13, 7, SP, SP, -16)  # andi
    e.load_address(T2, FIRMWARE)
    e.ld(T2, 0, T2)
    e.branch(1, T2, ZERO, "call")
    e.csr(WRITE, ZERO, _MSCRATCH, T1)
    e.load_address(T2, TRAP)
    e.csr(WRITE, ZERO, _MTVEC, T2)
    e.label("call")
    e.load_address(T2, "sk_mains")
    e.slli(T3, A0, 3)
    e.add(T2, T2, T3)
    e.ld(T2, 0, T2)
    e.jalr(RA, T2)
    e.word(_FENCE_RW_RW)
    e.load_address(T1, DONE)
    e.addi(T2, ZERO, 1)
    e.amoadd_d_aqrl(T2, T2, T1)
    e.li(T0, len(spec.copy_of) - 1)
    e.branch(1, T2, T0, "sleep")
    e.store(8, ZERO, 0, T1)
    e.word(_FENCE_RW_RW)
    _exit(e, EXIT_SUCCESS, spec.exit_address)
    return e


def _trap(spec: BootSpec) -> Encoder:
    """mtvec's two low bits are a mode: the section's alignment of 4 keeps them clear."""
    e = Encoder()
    e.csr(SET, T1, _MSCRATCH, ZERO)
    e.csr(SET, T2, _MCAUSE, ZERO)
    e.store(8, T2, 8 * CAUSE_WORD, T1)
    e.word(_FENCE_RW_RW)
    _exit(e, EXIT_TRAP, spec.exit_address)
    return e


def _exit(e: Encoder, value: int, address: int) -> None:
    e.li(T0, value)
    e.li(T1, address)
    e.store(4, T0, 0, T1)
    e.label("sleep")
    e.word(_WFI)
    e.jump("sleep")
