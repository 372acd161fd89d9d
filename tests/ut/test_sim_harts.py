"""The simulated machine from outside: the host interface, several harts, the instruction cache, parameters."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from rv64_asm import (
    DATA,
    EXIT,
    PAUSE,
    PROLOGUE,
    TABLE,
    WFI,
    amo,
    auipc,
    b,
    code_bytes,
    csr,
    elf,
    i,
    jal,
    lui,
    mv,
    s,
    simple_elf,
)

from superkernel.core.errors import InputError
from superkernel.sim import CacheGeometry, Machine

MIE, MHARTID = 0x304, 0xF14
CLINT = 0x02000000
NO_MEMORY = [lui(6, 0x10000)]  # x6 = 0x10000000: nothing there


def words_of(machine: Machine, count: int, offset: int = TABLE) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", machine.read(DATA + offset, 8 * count))


def run(program: bytes, **options: Any) -> Machine:
    machine = Machine(program, **options)
    end = machine.run(5_000_000)
    assert (end, machine.exit_code) == ("exited", 0), (end, machine.hart(0))
    return machine


# ---- the host interface


@pytest.mark.parametrize(
    ("word", "end", "code"), [(1, "exited", 0), (7, "exited", 3), (5 << 56 | 1, "bad_request", 5 << 56 | 1)]
)
def test_tohost(word: int, end: str, code: int) -> None:
    words = [i("ld", 5, 8, TABLE), s("sd", 5, 8, 0)]
    machine = Machine(simple_elf(words, struct.pack("<Q", word)))
    assert machine.run() == end
    assert machine.exit_code == code


def test_tohost_by_halves_as_the_public_tests_write_it() -> None:
    machine = Machine(simple_elf([i("addi", 3, 0, 1), s("sw", 3, 8, 0), s("sw", 0, 8, 4), jal(0, -8)]))
    assert (machine.run(), machine.exit_code) == ("exited", 0)


def test_console_and_system_calls() -> None:
    text = b"hello\n"
    data = (
        struct.pack("<QQQQ", 64, 1, DATA + TABLE + 64, len(text))
        + bytes(32)
        + text
        + bytes(2)
        + struct.pack("<Q", 0x0101 << 48 | 33)
    )
    words = [
        i("addi", 5, 8, TABLE), s("sd", 5, 8, 0),  # write
        i("ld", 6, 8, 0), i("ld", 7, 8, TABLE), s("sd", 6, 8, TABLE + 16), s("sd", 7, 8, TABLE + 24),
        i("ld", 5, 8, TABLE + 72), s("sd", 5, 8, 0),  # putchar
    ]  # fmt: skip
    machine = run(simple_elf(words, data))
    assert machine.console() == b"hello\n!"
    assert machine.console() == b""
    assert words_of(machine, 2, TABLE + 16) == (0, len(text))  # tohost cleared, the result in the block


def test_a_system_call_outside_memory_is_refused() -> None:
    machine = Machine(simple_elf([lui(5, 0x10000), s("sd", 5, 8, 0)]))
    assert (machine.run(), machine.exit_code) == ("bad_request", 0x10000000)


# ---- harts


def counting(per_hart: int, harts: int, how: str) -> bytes:
    """Every hart adds `per_hart` times to one counter; hart 0 waits for all and exits."""
    conditional = [amo("lr", "d", 13, 0, 12), i("addi", 13, 13, 1), amo("sc", "d", 14, 13, 12), b("bne", 14, 0, -12)]
    add = [i("addi", 13, 0, 1), amo("amoadd", "d", 0, 13, 12)] if how == "amo" else conditional
    loop = [*add, i("addi", 15, 15, -1)]
    target = per_hart * harts
    words = [
        mv(20, 10), i("addi", 12, 8, TABLE), i("addi", 15, 0, per_hart), *loop, b("bne", 15, 0, -4 * len(loop)),
        lui(16, (target + 0x800) >> 12), i("addi", 16, 16, (target + 0x800) % 4096 - 0x800), b("beq", 20, 0, 8),
        jal(0, 0),
        i("ld", 13, 12, 0), PAUSE, b("bne", 13, 16, -8),
    ]  # fmt: skip
    return simple_elf(words, bytes(64))


@pytest.mark.parametrize("how", ["amo", "lr/sc"])
@pytest.mark.parametrize("quantum", [1, 2, 3, 7, 100, 10_000])
def test_atomic_counting_is_exact_for_every_quantum(how: str, quantum: int) -> None:
    machine = Machine(counting(500, 4, how), harts=4, quantum=quantum)
    assert machine.run(3_000_000) == "exited"
    assert words_of(machine, 1) == (2000,)


def observed(machine: Machine) -> tuple[object, ...]:
    return (machine.executed, *(machine.hart(n) for n in range(machine.harts)), machine.read(DATA, 256))


def test_runs_repeat_and_do_not_depend_on_how_they_are_cut() -> None:
    program = counting(300, 3, "lr/sc")
    geometry = CacheGeometry(1024, 32, 2, 20)
    states = []
    for piece in (10**9, 10**9, 1, 17, 1000):
        machine = Machine(program, harts=3, quantum=50, icache=geometry)
        while machine.run(piece) == "limit":
            pass
        states.append(observed(machine))
    assert all(state == states[0] for state in states)


def test_harts_know_their_numbers_and_wake_each_other() -> None:
    """Hart 0 interrupts hart 1, which sleeps; hart 1 writes its number and exits."""
    words = [
        lui(6, CLINT >> 12), i("addi", 7, 0, 1), b("bne", 10, 0, 16),
        s("sw", 7, 6, 4), WFI, jal(0, -4),
        csr("csrrwi", 0, MIE, 8), WFI, csr("csrrs", 5, MHARTID, 0), s("sd", 5, 8, TABLE), s("sd", 10, 8, TABLE + 8),
    ]  # fmt: skip
    machine = run(simple_elf(words, bytes(64)), harts=2)
    assert words_of(machine, 2) == (1, 1)
    assert machine.end_hart == 1


def test_a_reservation_does_not_survive_other_harts_turns() -> None:
    """Hart 0 holds a reservation for a thousand jumps while hart 1 stores: its sc must fail."""
    spin = [i("addi", 15, 0, 1000), i("addi", 15, 15, -1), b("bne", 15, 0, -4)]
    words = [
        i("addi", 12, 8, TABLE), b("bne", 10, 0, 4 * (len(spin) + 5)), amo("lr", "d", 13, 0, 12), *spin,
        amo("sc", "d", 14, 13, 12), s("sd", 14, 8, TABLE + 8), jal(0, 12), s("sd", 10, 12, 0), jal(0, 0),
    ]  # fmt: skip
    machine = run(simple_elf(words, bytes(64)), harts=2, quantum=100)
    assert words_of(machine, 2) == (1, 1)


# ---- the instruction cache


def straight_line(bytes_: int, rounds: int) -> bytes:
    """`rounds` passes over `bytes_` of nops, 64-byte aligned."""
    count = bytes_ // 4 - 2
    prologue = [*PROLOGUE, i("addi", 15, 0, rounds)]
    pad = [mv(0, 0)] * (16 - len(prologue))
    body = [mv(0, 0)] * count + [i("addi", 15, 15, -1)]
    back = [b("bne", 15, 0, -4 * len(body))] if bytes_ < 4096 else [b("beq", 15, 0, 8), jal(0, -4 * len(body) - 4)]
    return elf(code_bytes([*prologue, *pad, *body, *back, *EXIT]), bytes(TABLE))


def test_cache_misses_are_what_the_geometry_says() -> None:
    """Code that fits misses once per line; cyclic code one line too long for LRU misses always."""
    lines = 64
    fitting = Machine(straight_line(64 * 60, 5), icache=CacheGeometry(64 * lines, 64, 4, 10))
    assert fitting.run() == "exited"
    state = fitting.hart(0)
    assert state.icache["misses"] == state.icache["cold_misses"] == 62
    assert state.cycles == state.retired + 62 * 10
    thrashing = Machine(straight_line(64 * 60, 5), icache=CacheGeometry(64 * 16, 64, 16, 10))
    assert thrashing.run() == "exited"
    state = thrashing.hart(0)
    assert state.icache["accesses"] == state.icache["misses"] == 1 + 5 * 60 + 1
    assert state.icache["cold_misses"] == 62


def test_the_least_recently_used_line_goes() -> None:
    """Lines A B A C A in one set of two ways: A was used last before C came, so B goes and A stays."""
    a = [*PROLOGUE, jal(0, 52), jal(0, 112), *EXIT]  # A: jumps at 12 and 16, the end at 20
    words = [*a, *[0x00100073] * (16 - len(a)), jal(0, -48), *[0x00100073] * 15, jal(0, -108)]
    machine = Machine(elf(code_bytes(words)), icache=CacheGeometry(128, 64, 2, 10))
    assert machine.run(100) == "exited"
    counts = machine.hart(0).icache
    assert (counts["accesses"], counts["misses"]) == (5, 3)


def test_an_instruction_across_two_lines_needs_both() -> None:
    """A 4-byte jump whose second half begins line 1, into line 3."""
    code = code_bytes([*PROLOGUE, *[mv(0, 0)] * 12, 0x0001, jal(0, 128 - 62 + 64)]) + bytes(62) + bytes(64)
    program = elf(code + code_bytes(EXIT), bytes(TABLE))
    machine = Machine(program, icache=CacheGeometry(4096, 64, 4, 10))
    assert machine.run(100) == "exited", machine.hart(0)
    assert machine.hart(0).icache["accesses"] == 3


def test_prefetched_lines_are_hits_or_late() -> None:
    ahead = 0x00006013 | 5 << 15 | 4 << 25  # prefetch.i 128(x5)
    for wait, late in ((100, 0), (3, 1)):
        words = [
            auipc(5, 0),
            ahead,
            *[i("addi", 6, 0, 0)] * 2,
            i("addi", 15, 0, wait),
            i("addi", 15, 15, -1),
            b("bne", 15, 0, -4),
        ]
        machine = Machine(simple_elf([*words, *[mv(0, 0)] * 40]), icache=CacheGeometry(4096, 128, 4, 60))
        assert machine.run() == "exited"
        counts = machine.hart(0).icache
        assert (counts["misses"], counts["prefetches"], counts["prefetches_late"]) == (1, 1, late)


def test_a_prefetch_of_nowhere_is_nothing() -> None:
    for base in (0, 0x10000000, (1 << 64) - 64):
        words = [i("ld", 5, 8, TABLE), 0x00006013 | 5 << 15]  # prefetch.i 0(x5)
        machine = Machine(simple_elf(words, struct.pack("<Q", base)), icache=CacheGeometry(4096, 128, 4, 60))
        assert machine.run() == "exited"
        assert machine.hart(0).icache["prefetches"] == 0


def test_timing_does_not_change_what_is_executed() -> None:
    program = counting(100, 1, "lr/sc")
    plain, timed = Machine(program), Machine(program, icache=CacheGeometry(256, 32, 2, 99))
    assert plain.run() == timed.run() == "exited"
    assert plain.hart(0).x == timed.hart(0).x
    assert plain.hart(0).retired == timed.hart(0).retired


# ---- parameters


@pytest.mark.parametrize(
    "options",
    [
        {"harts": 0}, {"harts": 5000}, {"harts": -1}, {"quantum": 0}, {"memory_base": 1 << 52},
        {"memory_base": 0x80000001},
        {"memory_bytes": 1 << 40}, {"icache": CacheGeometry(1000)},
        {"icache": CacheGeometry(1 << 28, 8)}, {"icache": CacheGeometry(1024, 3)},
        {"icache": CacheGeometry(1024, 64, 0)},
    ],
)  # fmt: skip
def test_impossible_parameters(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Machine(simple_elf([]), **options)


def test_memory_from_outside() -> None:
    machine = Machine(simple_elf([]))
    with pytest.raises(InputError):
        machine.read(DATA - (1 << 30), 4)
    with pytest.raises(InputError):
        machine.read(DATA, 1 << 40)
    with pytest.raises(InputError):
        machine.hart(1)
