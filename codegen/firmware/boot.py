"""The firmware's start and trap entry, as hand-encoded instructions, and the few that LLVM has no name for.

What a hart does at `fw_start` (a0 = its number): harts beyond the configuration's number sleep; mscratch = its state,
mtvec = `fw_entry`, no interrupt enabled, floating point on; with a table of commands it carries those out, else it sets
the program's `sk_firmware` and jumps to the program's entry.

`fw_entry` keeps every register in the state, calls `fw_trap` on the firmware's stack, puts the registers back and goes
on behind the store that trapped. The flags of floating point start each trap with `inexact` set, which is what lets an
emulator use the host's arithmetic, and are put back as well.

`fw_sleep(interrupts)` enables them, sleeps, disables them. `fw_poke(address, word)` is a 4-byte store to a device
between fences. `fw_alarm(compare, time, ticks)` sets the timer. `fw_exit(word)` ends the machine.
"""

from __future__ import annotations

from typing import Final

from superkernel.codegen.aicore.boot import A0, GP, RA, SP, T0, T1, T2, TP, ZERO, Encoder
from superkernel.codegen.aicore.linking.elf_writer import ObjectSection, OutputSymbol, write_object
from superkernel.codegen.aicore.linking.objects import FLAG_DOUBLE_FLOAT, FLAG_RVC
from superkernel.codegen.aicore.linking.relocations import NUMBERS
from superkernel.codegen.firmware.memory import CONFIG, FRAME_F, FRAME_X, STATE, FirmwareMap

START, ENTRY = "fw_start", "fw_entry"
A1, A2, A3 = 11, 12, 13
_FCSR, _MSTATUS, _MIE, _MTVEC, _MSCRATCH, _MEPC, _MCAUSE, _MTVAL = 3, 0x300, 0x304, 0x305, 0x340, 0x341, 0x342, 0x343
_FLOAT_DIRTY = 3 << 13
_WFI, _RET, _MRET, _FENCE_ALL = 0x10500073, 0x00008067, 0x30200073, 0x0FF0000F
_INEXACT: Final = 1


class _Encoder(Encoder):
    """With the instructions that only a trap handler needs."""

    def float_store(self, rs2: int, offset: int, rs1: int) -> None:
        self.word((offset >> 5 & 0x7F) << 25 | rs2 << 20 | rs1 << 15 | 3 << 12 | (offset & 31) << 7 | 0x27)

    def float_load(self, rd: int, offset: int, rs1: int) -> None:
        self.word((offset & 0xFFF) << 20 | rs1 << 15 | 3 << 12 | rd << 7 | 0x07)

    def csr_swap(self, rd: int, number: int, rs1: int) -> None:
        self.word(number << 20 | rs1 << 15 | 1 << 12 | rd << 7 | 0x73)

    def csr_clear(self, number: int, rs1: int) -> None:
        self.word(number << 20 | rs1 << 15 | 3 << 12 | 0x73)

    def move(self, rd: int, rs1: int) -> None:
        self.addi(rd, rs1, 0)

    def call(self, symbol: str) -> None:
        self.load_address(T2, symbol)
        self.jalr(RA, T2)


def firmware_boot_object(places: FirmwareMap) -> bytes:
    """The object of everything in this file."""
    parts = {
        START: _start(places),
        ENTRY: _entry(),
        "fw_exit": _exit(places),
        "fw_sleep": _sleep(),
        "fw_poke": _poke(),
        "fw_alarm": _alarm(),
    }
    names: dict[str, OutputSymbol] = {}
    for n, (name, part) in enumerate(parts.items()):
        names[name] = OutputSymbol(name, 0, part.at, "function", False, n)
        for label, at in part.labels.items():
            if label.startswith(".Lhigh"):
                names[f"{n}{label}"] = OutputSymbol(label, at, 0, "none", True, n)
    for part in parts.values():
        for _, _, symbol in part.references:
            if not symbol.startswith(".L") and symbol not in names:
                names[symbol] = OutputSymbol(symbol, 0, 0, "none", False, -1)
    number = {name: n for n, name in enumerate(names)}
    sections = []
    for n, (name, part) in enumerate(parts.items()):
        references = [
            (at, NUMBERS[kind], number[f"{n}{symbol}" if symbol.startswith(".L") else symbol], 0)
            for at, kind, symbol in part.references
        ]
        sections.append(ObjectSection(f".text.{name}", part.code(), "r-x", 4, references))
    return write_object(sections, list(names.values()), flags=FLAG_RVC | FLAG_DOUBLE_FLOAT)


def _start(places: FirmwareMap) -> _Encoder:
    e = _Encoder()
    e.li(T0, places.config)
    e.ld(T1, CONFIG["harts"], T0)
    e.branch(7, A0, T1, "sleep")
    e.ld(T1, CONFIG["states"], T0)
    e.ld(T2, CONFIG["state_stride"], T0)
    e.mul(T2, T2, A0)
    e.add(T1, T1, T2)
    e.csr_write(_MSCRATCH, T1)
    e.load_address(T2, ENTRY)
    e.csr_write(_MTVEC, T2)
    e.csr_write(_MIE, ZERO)
    e.li(T2, _FLOAT_DIRTY)
    e.csr_set(_MSTATUS, T2)
    e.ld(T2, CONFIG["bench_count"], T0)
    e.branch(1, T2, ZERO, "bench")
    e.ld(T1, CONFIG["firmware_word"], T0)
    e.addi(T2, ZERO, 1)
    e.store(8, T2, 0, T1)
    e.word(_FENCE_ALL)
    e.ld(T2, CONFIG["entry"], T0)
    e.jalr(ZERO, T2)
    e.label("bench")
    e.ld(SP, STATE["stack"], T1)
    e.csr_write(_FCSR, ZERO)
    e.addi(GP, ZERO, 0)
    e.addi(TP, ZERO, 0)
    e.move(A0, T1)
    e.call("fw_bench")
    e.label("sleep")
    e.word(_WFI)
    e.jump("sleep")
    return e


def _entry() -> _Encoder:
    """mtvec's two low bits are a mode: the section's alignment of 4 keeps them clear."""
    e = _Encoder()
    e.csr_swap(T0, _MSCRATCH, T0)  # t0: the state
    others = [x for x in range(1, 32) if x != T0]
    for x in others:
        e.store(8, x, FRAME_X + 8 * x, T0)
    e.csr_swap(T1, _MSCRATCH, T0)
    e.store(8, T1, FRAME_X + 8 * T0, T0)
    for f in range(32):
        e.float_store(f, FRAME_F + 8 * f, T0)
    e.csr_read(T1, _FCSR)
    e.store(8, T1, STATE["fcsr"], T0)
    e.addi(T1, ZERO, _INEXACT)
    e.csr_write(_FCSR, T1)
    e.move(A0, T0)
    e.csr_read(A1, _MEPC)
    e.csr_read(A2, _MCAUSE)
    e.csr_read(A3, _MTVAL)
    e.ld(SP, STATE["stack"], T0)
    e.call("fw_trap")
    e.csr_write(_MEPC, A0)
    e.csr_read(T0, _MSCRATCH)
    e.ld(T1, STATE["fcsr"], T0)
    e.csr_write(_FCSR, T1)
    for f in range(32):
        e.float_load(f, FRAME_F + 8 * f, T0)
    for x in (*others, T0):
        e.ld(x, FRAME_X + 8 * x, T0)
    e.word(_MRET)
    return e


def _exit(places: FirmwareMap) -> _Encoder:
    e = _Encoder()
    e.word(_FENCE_ALL)
    e.li(T0, places.target.map.exit_address)
    e.store(4, A0, 0, T0)
    e.label("sleep")
    e.word(_WFI)
    e.jump("sleep")
    return e


def _sleep() -> _Encoder:
    e = _Encoder()
    e.word(_FENCE_ALL)
    e.csr_set(_MIE, A0)
    e.word(_WFI)
    e.csr_clear(_MIE, A0)
    e.word(_FENCE_ALL)
    e.word(_RET)
    return e


def _poke() -> _Encoder:
    e = _Encoder()
    e.word(_FENCE_ALL)
    e.store(4, A1, 0, A0)
    e.word(_FENCE_ALL)
    e.word(_RET)
    return e


def _alarm() -> _Encoder:
    e = _Encoder()
    e.ld(T0, 0, A1)
    e.add(T0, T0, A2)
    e.store(8, T0, 0, A0)
    e.word(_RET)
    return e
