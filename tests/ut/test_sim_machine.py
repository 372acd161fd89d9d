"""The simulated machine from inside: traps, control registers, privilege, compressed execution, interrupts, time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from rv64_asm import (
    CODE,
    DATA,
    EBREAK,
    ECALL,
    EXIT,
    FENCE_I,
    MASK64,
    MRET,
    PROLOGUE,
    TABLE,
    WFI,
    amo,
    amocas,
    auipc,
    b,
    code_bytes,
    csr,
    elf,
    f,
    i,
    jal,
    lui,
    mv,
    r,
    s,
    shift,
    simple_elf,
)

from superkernel.sim import Machine

MSTATUS, MISA, MIE, MTVEC, MCOUNTEREN, MCOUNTINHIBIT = 0x300, 0x301, 0x304, 0x305, 0x306, 0x320
MSCRATCH, MEPC, MCAUSE, MTVAL, MIP, MCYCLE, MINSTRET, MHARTID = 0x340, 0x341, 0x342, 0x343, 0x344, 0xB00, 0xB02, 0xF14
CYCLE, TIME, INSTRET = 0xC00, 0xC01, 0xC02
FCSR = 3
CLINT = 0x02000000
MIE_BIT, MPIE_BIT, MPP, FS, MPRV, SD = 1 << 3, 1 << 7, 3 << 11, 3 << 13, 1 << 17, 1 << 63


def words_of(machine: Machine, count: int, offset: int = TABLE) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", machine.read(DATA + offset, 8 * count))


def run(program: bytes, **options: Any) -> Machine:
    machine = Machine(program, **options)
    end = machine.run(5_000_000)
    assert (end, machine.exit_code) == ("exited", 0), (end, machine.hart(0))
    return machine


def trapping(words: Sequence[int | bytes], data: bytes = bytes(64)) -> bytes:
    """A program whose trap handler stores mcause, mepc, mtval and mstatus at the data's table and exits."""
    handler = [
        csr("csrrs", 5, MCAUSE, 0), s("sd", 5, 8, TABLE), csr("csrrs", 5, MEPC, 0), s("sd", 5, 8, TABLE + 8),
        csr("csrrs", 5, MTVAL, 0), s("sd", 5, 8, TABLE + 16), csr("csrrs", 5, MSTATUS, 0), s("sd", 5, 8, TABLE + 24),
        *EXIT,
    ]  # fmt: skip
    head = [
        *PROLOGUE,
        auipc(5, 0),
        i("addi", 5, 5, 16),
        csr("csrrw", 0, MTVEC, 5),
        jal(0, 4 * len(handler) + 4),
        *handler,
    ]
    return elf(code_bytes([*head, *words, *EXIT]), bytes(TABLE) + data)


BODY = CODE + 4 * (len(PROLOGUE) + 4 + 10)  # where the words of `trapping` start


def trap(words: Sequence[int | bytes]) -> tuple[int, int, int]:
    """mcause, mepc relative to the words' start, mtval."""
    cause, epc, value, _ = words_of(run(trapping(words)), 4)
    return cause, epc - BODY, value


NO_MEMORY = [lui(6, 0x10000)]  # x6 = 0x10000000: nothing there


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([ECALL], (11, 0, 0)),
        ([EBREAK], (3, 0, BODY)),
        ([mv(0, 0), 0x9002], (3, 4, BODY + 4)),  # c.ebreak
        ([0xFFFFFFFF], (2, 0, 0xFFFFFFFF)),
        ([b"\0\0"], (2, 0, 0)),
        ([b"\x00\x80"], (2, 0, 0x8000)),  # a reserved compressed instruction: mtval holds 16 bits
        ([mv(0, 0), csr("csrrs", 5, 0x180, 0)], (2, 4, 0x180022F3 & ~0xF80 | 5 << 7)),  # satp
        ([csr("csrrw", 5, MHARTID, 0)], (2, 0, MHARTID << 20 | 1 << 12 | 5 << 7 | 0x73)),  # read-only
        ([*NO_MEMORY, i("ld", 5, 6, 8)], (5, 4, 0x10000008)),
        ([*NO_MEMORY, i("lbu", 5, 6, -1)], (5, 4, 0x0FFFFFFF)),
        ([*NO_MEMORY, s("sb", 5, 6, 1)], (7, 4, 0x10000001)),
        ([*NO_MEMORY, amo("lr", "w", 5, 0, 6)], (5, 4, 0x10000000)),
        ([*NO_MEMORY, amo("amoadd", "d", 5, 5, 6)], (7, 4, 0x10000000)),
        ([*NO_MEMORY, amo("sc", "w", 5, 5, 6)], (7, 4, 0x10000000)),
        ([i("addi", 6, 8, 2), amo("lr", "w", 5, 0, 6)], (4, 4, DATA + 2)),
        ([i("addi", 6, 8, 4), amo("lr", "d", 5, 0, 6)], (4, 4, DATA + 4)),
        ([i("addi", 6, 8, 4), amo("sc", "d", 5, 0, 6)], (6, 4, DATA + 4)),
        ([i("addi", 6, 8, 1), amo("amoswap", "w", 5, 5, 6)], (6, 4, DATA + 1)),
        ([i("addi", 6, 8, 8), amocas("q", 4, 2, 6)], (6, 4, DATA + 8)),
        ([i("addi", 6, 8, 4), amocas("d", 5, 5, 6)], (6, 4, DATA + 4)),
        ([*NO_MEMORY, amocas("q", 4, 2, 6)], (7, 4, 0x10000000)),
        ([amocas("q", 5, 2, 8)], (2, 0, amocas("q", 5, 2, 8))),  # an odd register
        ([*NO_MEMORY, i("jalr", 1, 6, 3)], (1, 0x10000002 - BODY, 0x10000002)),
        ([lui(6, 0x80000), jal(0, -0x10000)], (1, 4 - 0x10000, BODY + 4 - 0x10000)),  # a direct jump to before memory
        ([i("addi", 6, 0, 1), b("bne", 6, 0, -4094)], (1, 4 - 4094, BODY + 4 - 4094)),
    ],
)
def test_exceptions(words: list[int | bytes], expected: tuple[int, int, int]) -> None:
    assert trap(words) == expected


def test_untaken_branches_out_of_memory_do_nothing() -> None:
    words = [b(name, 0, 0, -4094) for name in ("bne", "blt", "bltu")]
    run(simple_elf(words))


def test_running_off_the_end_of_memory() -> None:
    """The fetch behind the last instruction faults; a 4-byte instruction across the end faults in its second half."""
    for tail, offset, fault in ((code_bytes([mv(5, 6)]), -4, 0), (b"\x13\0", -2, 0), (b"\x01\0", -2, 0)):
        end = 0x80000000 + (1 << 22)
        program = trapping(
            [lui(6, end >> 12), shift("slli", 6, 6, 32), shift("srli", 6, 6, 32), i("jalr", 0, 6, offset)]
        )
        machine = Machine(program, memory_bytes=1 << 22)
        machine.write(end + offset, tail)
        assert machine.run(1000) == "exited"
        cause, epc, value, _ = words_of(machine, 4)
        assert cause == 1
        assert value == end + fault
        assert epc == (end - 2 if tail == b"\x13\0" else end)


def test_a_trap_saves_and_mret_restores_the_interrupt_enable() -> None:
    status = words_of(run(trapping([csr("csrrsi", 0, MSTATUS, 8), ECALL])), 4)[3]
    assert status & (MIE_BIT | MPIE_BIT | MPP) == MPIE_BIT | MPP
    words = [
        lui(5, 2), i("addi", 5, 5, -0x800), csr("csrrw", 0, MSTATUS, 5),  # MPP = 3, MPIE = 0
        csr("csrrsi", 0, MSTATUS, 8), auipc(5, 0), i("addi", 5, 5, 16), csr("csrrw", 0, MEPC, 5), MRET,
        csr("csrrs", 6, MSTATUS, 0), s("sd", 6, 8, TABLE),
    ]  # fmt: skip
    (status,) = words_of(run(simple_elf(words, bytes(8))), 1)
    assert status & (MIE_BIT | MPIE_BIT | MPP) == MPIE_BIT  # MIE from MPIE, MPIE set, MPP least privileged


def to_user(words: Sequence[int | bytes]) -> list[int | bytes]:
    """Drops to U mode, with MPRV set, in front of the words."""
    return [
        lui(5, 0x20), csr("csrrw", 0, MSTATUS, 5), auipc(5, 0), i("addi", 5, 5, 16), csr("csrrw", 0, MEPC, 5), MRET,
        *words,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ([ECALL], 8), ([MRET], 2), ([csr("csrrs", 5, MSTATUS, 0)], 2), ([csr("csrrs", 5, CYCLE, 0)], 2),
        ([csr("csrrs", 5, TIME, 0)], 2),
        ([f("fadd", "d", 1, 1, 1)], 2), ([i("fld", 1, 8, 0)], 2), ([s("fsw", 1, 8, 0)], 2),
        ([csr("csrrs", 5, FCSR, 0)], 2),
        ([i("ld", 5, 8, 0), s("sd", 5, 8, 56), EBREAK], 3),
    ],
)  # fmt: skip
def test_user_mode(words: list[int | bytes], cause: int) -> None:
    """Traps to M mode; FS is off here, so floating point is illegal as well. Memory may be used."""
    got, epc, _, status = words_of(run(trapping(to_user(words))), 4)
    assert (got, epc) == (cause, BODY + 24 + 4 * (len(words) - 1))
    assert status & (MPP | MPRV) == 0  # came from U; mret to U cleared MPRV


def test_user_mode_reads_counters_that_machine_mode_opens() -> None:
    words = to_user([csr("csrrs", 6, CYCLE, 0), csr("csrrs", 6, INSTRET, 0), csr("csrrs", 6, TIME, 0), ECALL])
    cause = words_of(run(trapping([csr("csrrwi", 0, MCOUNTEREN, 7), *words])), 1)[0]
    assert cause == 8


def write_then_read(number: int, value: int) -> int:
    words = [i("ld", 5, 8, TABLE), csr("csrrw", 0, number, 5), csr("csrrs", 6, number, 0), s("sd", 6, 8, TABLE + 8)]
    return words_of(run(simple_elf(words, struct.pack("<QQ", value, 0))), 1, TABLE + 8)[0]


@pytest.mark.parametrize(
    ("number", "value", "expected"),
    [
        (MSCRATCH, MASK64, MASK64), (MEPC, MASK64, MASK64 - 1), (MCAUSE, 1 << 63 | 7, 1 << 63 | 7), (MTVAL, 5, 5),
        (MTVEC, 0x80000103, 0x80000101), (MTVEC, 0x80000102, 0x80000100), (MIE, MASK64, 0x888), (MIP, MASK64, 0),
        (MCOUNTEREN, MASK64, 7),
        (MCOUNTINHIBIT, MASK64, 5), (MISA, 0, 2 << 62 | sum(1 << "ABCDEFGHIJKLMNOPQRSTU".index(c) for c in "IMAFDCU")),
        (MSTATUS, MASK64, SD | 2 << 32 | 1 << 21 | MPRV | FS | MPP | MPIE_BIT | MIE_BIT), (MSTATUS, 1 << 11, 2 << 32),
        (0x3A0, MASK64, 0), (0x3B0, MASK64, 0), (0x3EF, MASK64, 0), (0xB03, MASK64, 0), (0x323, MASK64, 0),
        (0x30A, MASK64, 1), (0x7A0, MASK64, 0), (0x7A1, MASK64, 0), (0x7A4, MASK64, 0),
        (FCSR, MASK64, 0xFF), (2, MASK64, 7), (1, MASK64, 31),
    ],
)  # fmt: skip
def test_what_registers_keep(number: int, value: int, expected: int) -> None:
    assert write_then_read(number, value) == expected


@pytest.mark.parametrize("number", [0x180, 0x100, 0x302, 0x303, 0x7A5, 0x3A1, 0x310, 0xC80, 0x000, 0x5C0])
def test_registers_that_do_not_exist(number: int) -> None:
    assert trap([csr("csrrs", 5, number, 0)])[0] == 2


def test_csr_instructions_return_the_old_value_and_combine() -> None:
    words: list[int | bytes] = [i("addi", 5, 0, 0b1100), csr("csrrw", 6, MSCRATCH, 5)]
    for n, word in enumerate([
        csr("csrrs", 6, MSCRATCH, 0), csr("csrrsi", 6, MSCRATCH, 3), csr("csrrci", 6, MSCRATCH, 5),
        csr("csrrc", 6, MSCRATCH, 5),
        csr("csrrwi", 6, MSCRATCH, 31), csr("csrrs", 6, MHARTID, 0), csr("csrrs", 6, MSCRATCH, 0),
    ]):  # fmt: skip
        words += [word, s("sd", 6, 8, TABLE + 8 * n)]
    assert words_of(run(simple_elf(words, bytes(64))), 7) == (0b1100, 0b1100, 0b1111, 0b1010, 0b0010, 0, 31)


def test_counters_count_write_and_stop() -> None:
    words = [
        csr("csrrs", 5, MINSTRET, 0), mv(0, 0), 0x0001, csr("csrrs", 6, MINSTRET, 0), r("sub", 6, 6, 5),
        s("sd", 6, 8, TABLE),
        csr("csrrwi", 0, MINSTRET, 9), csr("csrrs", 6, MINSTRET, 0), s("sd", 6, 8, TABLE + 8),
        csr("csrrwi", 0, MCYCLE, 3), mv(0, 0), csr("csrrs", 6, MCYCLE, 0), s("sd", 6, 8, TABLE + 16),
        csr("csrrwi", 0, MCOUNTINHIBIT, 4), csr("csrrs", 5, MINSTRET, 0), mv(0, 0), csr("csrrs", 6, MINSTRET, 0),
        r("sub", 6, 6, 5),
        s("sd", 6, 8, TABLE + 24),
        csr("csrrwi", 0, MCOUNTINHIBIT, 0), csr("csrrs", 6, MINSTRET, 0), r("sub", 6, 6, 5), s("sd", 6, 8, TABLE + 32),
    ]  # fmt: skip
    assert words_of(run(simple_elf(words, bytes(64))), 5) == (3, 9, 4, 0, 0)


def test_compressed_code_runs() -> None:
    """c.li a0,-3; c.addi a0,5; c.mv a2,a0; c.add a2,a0; c.sdsp/c.ldsp; c.beqz over an illegal halfword; c.jalr."""
    words: list[int | bytes] = [
        i("addi", 2, 8, TABLE), 0x5575, 0x0515, 0x862A, 0x962A, 0xE032, 0x6682, 0x4701, 0xC311, b"\0\0", 0x4785,
        auipc(5, 0), i("addi", 5, 5, 10), 0x9282, 0x0001, s("sd", 1, 8, TABLE + 8), s("sd", 13, 8, TABLE + 16),
        s("sd", 15, 8, TABLE + 24),
    ]  # fmt: skip
    got = words_of(run(simple_elf(words, bytes(64))), 4)
    link = CODE + 4 * len(PROLOGUE) + 4 + 2 * 10 + 8 + 2
    assert got == (4, link, 4, 1)


def test_self_modifying_code_needs_and_gets_a_fence() -> None:
    patch = i("addi", 6, 0, 77)
    words = [
        i("lw", 5, 8, TABLE + 16), i("addi", 12, 0, 2), auipc(7, 0), i("addi", 6, 0, 11),
         # patched the second time round
        s("sd", 6, 8, TABLE), b("beq", 6, 13, 20), s("sw", 5, 7, 4), FENCE_I, i("addi", 13, 0, 77), jal(0, -24),
    ]  # fmt: skip
    assert words_of(run(simple_elf(words, struct.pack("<QQQ", 0, 0, patch))), 1) == (77,)


def test_vectored_and_direct_software_interrupts() -> None:
    """A hart interrupts itself through the CLINT; vectored, cause 3 lands at base + 12."""
    for vectored in (0, 1):
        handler = [jal(0, 16), EBREAK, EBREAK, jal(0, 8), jal(0, 8), i("addi", 14, 14, 1), i("addi", 14, 14, 1)]
        finish = [csr("csrrs", 5, MCAUSE, 0), s("sd", 5, 8, TABLE), s("sd", 14, 8, TABLE + 8), *EXIT]
        table = [*handler, *finish]
        head = [
            *PROLOGUE,
            auipc(5, 0),
            i("addi", 5, 5, 16 + vectored),
            csr("csrrw", 0, MTVEC, 5),
            jal(0, 4 * len(table) + 4),
        ]
        body = [
            i("addi", 14, 0, 0), lui(6, CLINT >> 12), i("addi", 7, 0, 1), s("sw", 7, 6, 0),
            i("lw", 15, 6, 0), csr("csrrwi", 0, MIE, 8), csr("csrrsi", 0, MSTATUS, 8), jal(0, 0),
        ]  # fmt: skip
        machine = run(elf(code_bytes([*head, *table, *body]), bytes(TABLE + 64)))
        assert words_of(machine, 2) == (1 << 63 | 3, 2 if vectored else 1)


def test_a_timer_wakes_a_sleeping_hart() -> None:
    """wfi with nobody awake: time jumps to the timer; mtime is then at least what was asked for."""
    words = [
        lui(6, 0x2004), lui(7, 0x200C), i("lw", 5, 7, -8), lui(5, 0x10000), s("sd", 5, 6, 0),  # mtimecmp = 0x10000000
        shift("slli", 11, 17, 7), i("addi", 11, 0, 0x80), csr("csrrw", 0, MIE, 11), WFI,
        i("ld", 12, 7, -8), s("sd", 12, 8, TABLE), csr("csrrs", 13, MIP, 0), s("sd", 13, 8, TABLE + 8),
    ]  # fmt: skip
    machine = run(simple_elf(words, bytes(64)))
    time, pending = words_of(machine, 2)
    assert 0x10000000 <= time < 0x10000000 + 20000
    assert pending == 0x80
    assert machine.executed < 100


def test_everybody_asleep_is_an_end() -> None:
    machine = Machine(simple_elf([WFI]), harts=3)
    assert machine.run() == "asleep"
    assert all(machine.hart(n).asleep for n in range(3))


@pytest.mark.parametrize(
    ("words", "cause", "value"), [([b"\0\0"], 2, 0), ([ECALL], 11, 0), ([*NO_MEMORY, i("ld", 5, 6, 0)], 5, 0x10000000)]
)
def test_a_trap_without_a_handler_is_an_end(words: list[int | bytes], cause: int, value: int) -> None:
    machine = Machine(simple_elf(words))
    assert machine.run() == "trap_loop"
    state = machine.hart(0)
    assert (state.mcause, state.mtval, state.mepc) == (cause, value, CODE + 4 * (len(PROLOGUE) + len(words) - 1))


def test_an_illegal_handler_is_an_end_that_names_the_first_trap() -> None:
    words = [csr("csrrw", 0, MTVEC, 8), ECALL]
    machine = Machine(simple_elf(words, bytes(64)))
    assert machine.run() == "trap_loop"
    assert machine.hart(0).mcause == 11


def test_boot_code_that_finds_out_by_trapping_what_there_is() -> None:
    """As the public instruction tests start: every doubtful register is written with mtvec behind the write."""
    probes: list[int] = []
    for number in (0x744, 0x180, 0x3B0, 0x3A0, 0x302, 0x303):  # mnstatus, satp, pmpaddr0, pmpcfg0, medeleg, mideleg
        probes += [auipc(5, 0), i("addi", 5, 5, 16), csr("csrrw", 0, MTVEC, 5), csr("csrrwi", 0, number, 31)]
    handler = [csr("csrrs", 30, MCAUSE, 0), s("sw", 3, 8, 0), s("sw", 0, 8, 4), jal(0, -8)]
    to_test = [csr("csrrwi", 0, MSTATUS, 0), lui(10, 2), csr("csrrs", 0, MSTATUS, 10), csr("csrrwi", 0, FCSR, 0)]
    to_test += [auipc(5, 0), i("addi", 5, 5, 16), csr("csrrw", 0, MEPC, 5), MRET]
    test = [f("fadd", "s", 1, 1, 1), i("addi", 3, 0, 1), ECALL, 0xC0001073]
    vector = [auipc(5, 0), i("addi", 5, 5, 16), csr("csrrw", 0, MTVEC, 5), jal(0, 4 * len(handler) + 4), *handler]
    machine = Machine(elf(code_bytes([auipc(8, (DATA - CODE) >> 12), *probes, *vector, *to_test, *test])))
    assert (machine.run(1000), machine.exit_code) == ("exited", 0)
    state = machine.hart(0)
    assert (state.x[30], state.traps, state.mode) == (8, 5, "M")
