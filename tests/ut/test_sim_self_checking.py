"""Self-checking programs as instruction test suites build them: probes for registers that may be absent, the test in
user mode, its number in gp, and an ecall to a handler that writes tohost in halves, for ever."""

from __future__ import annotations

import pytest
from rv64_asm import CODE, DATA, ECALL, MRET, amo, auipc, b, code_bytes, csr, elf, i, jal, lui, mv, r, s

from superkernel.sim import ProgramResult, run_program

GP, T0, T5, T6, A0, A1 = 3, 5, 30, 31, 10, 11
MSTATUS, MIE, MTVEC, MEPC, MCAUSE, MHARTID, FCSR = 0x300, 0x304, 0x305, 0x341, 0x342, 0xF14, 0x003
ABSENT = (0x744, 0x180, 0x302, 0x303, 0x105, 0x680)
"""mnstatus, satp, medeleg, mideleg, stvec, hgatp: a program must get past them."""
PRESENT = (0x3B0, 0x3A0)
"""pmpaddr0 and pmpcfg0, which take nothing."""
UNEXPECTED = 1337
"""What the handler marks gp with."""

HANDLER = [
    csr("csrrs", T5, MCAUSE, 0),
    i("addi", T6, 0, 8), b("beq", T5, T6, 8),  # a call from user mode: gp is the word
    i("ori", GP, GP, UNEXPECTED),
    auipc(T5, (DATA - CODE) >> 12), i("addi", T5, T5, -5 * 4), s("sw", GP, T5, 0), s("sw", 0, T5, 4), jal(0, -16),
]  # fmt: skip


def address(register: int, distance: int) -> list[int]:
    """The address `distance` bytes from the first of these instructions."""
    return [auipc(register, 0), i("addi", register, register, distance)]


def program(body: list[int]) -> bytes:
    """The frame around a body that leaves the word for tohost in gp."""
    words = [jal(0, 4 * (1 + len(HANDLER))), *HANDLER]
    words += [csr("csrrs", A0, MHARTID, 0), b("bne", A0, 0, 0)]  # the other harts spin
    for number in (*ABSENT, *PRESENT):  # a trap goes where the code goes on anyway
        words += [*address(T0, 16), csr("csrrw", 0, MTVEC, T0), csr("csrrwi", 0, number, 1)]
    words += [*address(T0, 4 - 4 * len(words)), csr("csrrw", 0, MTVEC, T0), csr("csrrwi", 0, MIE, 0)]
    words += [csr("csrrwi", 0, MSTATUS, 0), lui(T0, 2), csr("csrrs", 0, MSTATUS, T0), csr("csrrwi", 0, FCSR, 0)]
    words += [*address(T0, 16), csr("csrrw", 0, MEPC, T0), MRET]
    return elf(code_bytes([*words, *body, ECALL]), bytes(64))


def run(body: list[int], harts: int = 1) -> ProgramResult:
    return run_program(program(body), harts=harts, max_instructions=1_000_000)


@pytest.mark.parametrize("harts", [1, 2, 64])
def test_success(harts: int) -> None:
    result = run([i("addi", GP, 0, 1)], harts)
    assert (result.succeeded, result.exit_status) == (True, 0)
    assert [hart.traps for hart in result.harts] == [len(ABSENT) + 1] + [0] * (harts - 1)
    assert result.harts[0].instructions < 100  # the first half of the word ends the run


@pytest.mark.parametrize("harts", [1, 3])
def test_the_number_of_the_test_that_failed(harts: int) -> None:
    result = run([i("addi", GP, 0, 2 * 47 + 1)], harts)
    assert (result.succeeded, result.exit_code, result.exit_status) == (False, 47, 10)
    assert "failure 47" in result.text()


@pytest.mark.parametrize("word", [0, csr("csrrs", A0, MHARTID, 0), MRET])  # the last two are not for user mode
def test_an_exception_that_nobody_expects(word: int) -> None:
    result = run([i("addi", GP, 0, 6), word])
    assert (result.end, result.exit_code) == ("exited", (6 | UNEXPECTED) >> 1)


def test_user_mode_has_memory_atomics_and_floating_point() -> None:
    body = [
        i("addi", GP, 0, 2 * 2 + 1), i("addi", T0, 0, 1), i("addi", T6, 0, 31), r("sll", T0, T0, T6),
        lui(T6, (DATA - CODE) >> 12), r("add", T0, T0, T6), i("addi", T0, T0, 32),  # behind tohost
        i("addi", A0, 0, 21), amo("amoadd", "w", 0, A0, T0), i("flw", 1, T0, 0), s("fsw", 1, T0, 9),
        i("lw", A1, T0, 9), b("bne", A0, A1, 8), i("addi", GP, 0, 1), mv(0, 0),
    ]  # fmt: skip
    assert run(body).succeeded
