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

from superkernel.codegen.aicore.boot import (
    A0,
    CLEAR,
    GP,
    RA,
    SET,
    SP,
    T0,
    T1,
    T2,
    TP,
    WRITE,
    ZERO,
    Encoder,
    write_parts,
)
from superkernel.codegen.firmware.memory import CONFIG, FRAME_F, FRAME_X, STATE, FirmwareMap

START, ENTRY = "fw_start", "fw_entry"
A1, A2, A3 = 11, 12, 13
_FCSR, _MSTATUS, _MIE, _MTVEC, _MSCRATCH, _MEPC, _MCAUSE, _MTVAL = 3, 0x300, 0x304, 0x305, 0x340, 0x341, 0x342, 0x343
_FLOAT_DIRTY = 3 << 13
_WFI, _RET, _MRET, _FENCE_ALL = 0x10500073, 0x00008067, 0x30200073, 0x0FF0000F
_INEXACT: Final = 1
_FLD, _FSD = 0x07, 0x27


class _Encoder(Encoder):
    """With what only the firmware needs."""

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
    return write_parts(parts)


def _start(places: FirmwareMap) -> _Encoder:
    e = _Encoder()
    e.li(T0, places.config)
    e.ld(T1, CONFIG["harts"], T0)
    e.branch(7, A0, T1, "sleep")
    e.ld(T1, CONFIG["states"], T0)
    e.ld(T2, CONFIG["state_stride"], T0)
    e.mul(T2, T2, A0)
    e.add(T1, T1, T2)
    e.csr(WRITE, ZERO, _MSCRATCH, T1)
    e.load_address(T2, ENTRY)
    e.csr(WRITE, ZERO, _MTVEC, T2)
    e.csr(WRITE, ZERO, _MIE, ZERO)
    e.li(T2, _FLOAT_DIRTY)
    e.csr(SET, ZERO, _MSTATUS, T2)
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
    e.csr(WRITE, ZERO, _FCSR, ZERO)
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
    e.csr(WRITE, T0, _MSCRATCH, T0)  # t0: the state
    others = [x for x in range(1, 32) if x != T0]
    for x in others:
        e.store(8, x, FRAME_X + 8 * x, T0)
    e.csr(WRITE, T1, _MSCRATCH, T0)
    e.store(8, T1, FRAME_X + 8 * T0, T0)
    for f in range(32):
        e.store(8, f, FRAME_F + 8 * f, T0, _FSD)
    e.csr(SET, T1, _FCSR, ZERO)
    e.store(8, T1, STATE["fcsr"], T0)
    e.addi(T1, ZERO, _INEXACT)
    e.csr(WRITE, ZERO, _FCSR, T1)
    e.move(A0, T0)
    e.csr(SET, A1, _MEPC, ZERO)
    e.csr(SET, A2, _MCAUSE, ZERO)
    e.csr(SET, A3, _MTVAL, ZERO)
    e.ld(SP, STATE["stack"], T0)
    e.call("fw_trap")
    e.csr(WRITE, ZERO, _MEPC, A0)
    e.csr(SET, T0, _MSCRATCH, ZERO)
    e.ld(T1, STATE["fcsr"], T0)
    e.csr(WRITE, ZERO, _FCSR, T1)
    for f in range(32):
        e.i(_FLD, 3, f, T0, FRAME_F + 8 * f)
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
    e.csr(SET, ZERO, _MIE, A0)
    e.word(_WFI)
    e.csr(CLEAR, ZERO, _MIE, A0)
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
