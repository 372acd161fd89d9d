"""Integer instructions of the simulator: every one, on corner cases and random operands, against Python's integers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

import pytest
from rv64_asm import (
    AMO,
    DATA,
    EBREAK,
    MASK64,
    PROLOGUE,
    R_TYPE,
    SHIFTS,
    TABLE,
    amo,
    amocas,
    auipc,
    b,
    code_bytes,
    elf,
    i,
    jal,
    lui,
    mv,
    r,
    s,
    shift,
    simple_elf,
    table_elf,
    table_results,
)

from superkernel.sim import Machine

CORNERS = [
    0, 1, 2, 3, 31, 32, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF,
    0x100000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0x8000000000000001, 0xFFFFFFFF7FFFFFFF, 0xFFFFFFFF80000000,
    MASK64 - 1, MASK64,
]  # fmt: skip


def s64(x: int) -> int:
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


def s32(x: int) -> int:
    return (x + (1 << 31)) % (1 << 32) - (1 << 31)


def truncating(a: int, b: int) -> tuple[int, int]:
    """Quotient towards zero and remainder with the dividend's sign."""
    q = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return q, a - q * b


def divided(a: int, b: int) -> int:
    return -1 if b == 0 else truncating(a, b)[0]


def left_over(a: int, b: int) -> int:
    return a if b == 0 else truncating(a, b)[1]


def word(x: int) -> int:
    return x % (1 << 32)


MEANING: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "sll": lambda a, b: a << b % 64,
    "slt": lambda a, b: s64(a) < s64(b),
    "sltu": lambda a, b: a < b,
    "xor": lambda a, b: a ^ b,
    "srl": lambda a, b: a >> b % 64,
    "sra": lambda a, b: s64(a) >> b % 64,
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "addw": lambda a, b: s32(a + b),
    "subw": lambda a, b: s32(a - b),
    "sllw": lambda a, b: s32(a << b % 32),
    "srlw": lambda a, b: s32(word(a) >> b % 32),
    "sraw": lambda a, b: s32(a) >> b % 32,
    "mul": lambda a, b: a * b,
    "mulh": lambda a, b: s64(a) * s64(b) >> 64,
    "mulhsu": lambda a, b: s64(a) * b >> 64,
    "mulhu": lambda a, b: a * b >> 64,
    "div": lambda a, b: divided(s64(a), s64(b)),
    "divu": lambda a, b: divided(a, b),
    "rem": lambda a, b: left_over(s64(a), s64(b)),
    "remu": lambda a, b: left_over(a, b),
    "mulw": lambda a, b: s32(a * b),
    "divw": lambda a, b: s32(divided(s32(a), s32(b))),
    "divuw": lambda a, b: s32(divided(word(a), word(b))),
    "remw": lambda a, b: s32(left_over(s32(a), s32(b))),
    "remuw": lambda a, b: s32(left_over(word(a), word(b))),
}

IMMEDIATE: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, k: a + k,
    "slti": lambda a, k: s64(a) < k,
    "sltiu": lambda a, k: a < k % (1 << 64),
    "xori": lambda a, k: a ^ k,
    "ori": lambda a, k: a | k,
    "andi": lambda a, k: a & k,
    "addiw": lambda a, k: s32(a + k),
}

SHIFTED: dict[str, Callable[[int, int], int]] = {
    "slli": lambda a, k: a << k,
    "srli": lambda a, k: a >> k,
    "srai": lambda a, k: s64(a) >> k,
    "slliw": lambda a, k: s32(a << k),
    "srliw": lambda a, k: s32(word(a) >> k),
    "sraiw": lambda a, k: s32(a) >> k,
}


def run(program: bytes, *, harts: int = 1) -> Machine:
    machine = Machine(program, harts=harts)
    end = machine.run(10_000_000)
    assert (end, machine.exit_code) == ("exited", 0), (end, machine.hart(0))
    return machine


def results(program: bytes, rows: Sequence[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    stride = 8 * (len(rows[0]) + count)
    return table_results(run(program).read(DATA + TABLE, stride * len(rows)), rows, count)


def operand_pairs() -> list[tuple[int, int]]:
    generator = random.Random(1)
    pairs = [(a, b) for a in CORNERS for b in CORNERS]
    return pairs + [(generator.getrandbits(64), generator.getrandbits(64)) for _ in range(50)]


@pytest.mark.parametrize("name", R_TYPE)
def test_register_operations(name: str) -> None:
    """rd apart from its sources, rd = rs1, rd = rs2, and rd = x0."""
    pairs = operand_pairs()
    body = [
        i("ld", 12, 10, 0), i("ld", 13, 10, 8),
        r(name, 14, 12, 13), s("sd", 14, 10, 16),
        r(name, 0, 12, 13), s("sd", 0, 10, 24),
        mv(15, 13), r(name, 15, 12, 15), s("sd", 15, 10, 32),
        r(name, 12, 12, 13), s("sd", 12, 10, 40),
    ]  # fmt: skip
    for (a, c), got in zip(pairs, results(table_elf(body, pairs, 4), pairs, 4), strict=True):
        expected = MEANING[name](a, c) & MASK64
        assert got == (expected, 0, expected, expected), (name, hex(a), hex(c))


@pytest.mark.parametrize("name", IMMEDIATE)
def test_immediate_operations(name: str) -> None:
    immediates = [-2048, -2047, -1, 0, 1, 5, 1023, 2046, 2047]
    rows = [(a,) for a in CORNERS]
    body = [i("ld", 12, 10, 0)]
    for n, k in enumerate(immediates):
        body += [i(name, 13, 12, k), s("sd", 13, 10, 8 + 8 * n)]
    for (a,), got in zip(rows, results(table_elf(body, rows, len(immediates)), rows, len(immediates)), strict=True):
        assert got == tuple(IMMEDIATE[name](a, k) & MASK64 for k in immediates), hex(a)


@pytest.mark.parametrize("name", SHIFTS)
def test_immediate_shifts(name: str) -> None:
    amounts = range(1 << SHIFTS[name][3])
    rows = [(a,) for a in CORNERS]
    body = [i("ld", 12, 10, 0)]
    for n in amounts:
        body += [shift(name, 13, 12, n), s("sd", 13, 10, 8 + 8 * n)]
    for (a,), got in zip(rows, results(table_elf(body, rows, len(amounts)), rows, len(amounts)), strict=True):
        assert got == tuple(SHIFTED[name](a, n) & MASK64 for n in amounts), hex(a)


def test_upper_immediates() -> None:
    uppers = [0, 1, 0x7FFFF, 0x80000, 0xFFFFF, 0x12345]
    words: list[int | bytes] = []
    for n, upper in enumerate(uppers):
        words += [lui(12, upper), s("sd", 12, 8, TABLE + 16 * n), auipc(12, upper), s("sd", 12, 8, TABLE + 16 * n + 8)]
    machine = run(simple_elf(words, bytes(16 * len(uppers))))
    got = struct.unpack(f"<{2 * len(uppers)}Q", machine.read(DATA + TABLE, 16 * len(uppers)))
    for n, upper in enumerate(uppers):
        pc = 0x80000000 + 4 * (3 + 4 * n + 2)
        assert got[2 * n] == s32(upper << 12) & MASK64
        assert got[2 * n + 1] == (pc + s32(upper << 12)) & MASK64


LOADS = {
    "lb": (1, True),
    "lh": (2, True),
    "lw": (4, True),
    "ld": (8, True),
    "lbu": (1, False),
    "lhu": (2, False),
    "lwu": (4, False),
}
STORES = {"sb": 1, "sh": 2, "sw": 4, "sd": 8}


@pytest.mark.parametrize("name", LOADS)
def test_loads_of_every_alignment(name: str) -> None:
    size, signed = LOADS[name]
    source = random.Random(2).randbytes(32)
    words: list[int | bytes] = [i("addi", 12, 8, TABLE + 8)]
    for n in range(16):
        words += [i(name, 13, 12, n - 8), s("sd", 13, 8, TABLE + 32 + 8 * n)]
    machine = run(simple_elf(words, source + bytes(128)))
    got = struct.unpack("<16Q", machine.read(DATA + TABLE + 32, 128))
    expected = tuple(int.from_bytes(source[n : n + size], "little", signed=signed) & MASK64 for n in range(16))
    assert got == expected


@pytest.mark.parametrize("name", STORES)
def test_stores_of_every_alignment(name: str) -> None:
    size, value = STORES[name], 0x8877665544332211
    for n in range(9):
        words = [i("ld", 12, 8, TABLE), i("addi", 13, 8, TABLE + 24), s(name, 12, 13, n - 8)]
        machine = run(simple_elf(words, struct.pack("<Q", value) + b"\xee" * 32))
        expected = bytearray(b"\xee" * 32)
        expected[8 + n : 8 + n + size] = value.to_bytes(8, "little")[:size]
        assert machine.read(DATA + TABLE + 8, 32) == bytes(expected)


CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "beq": lambda a, c: a == c,
    "bne": lambda a, c: a != c,
    "blt": lambda a, c: s64(a) < s64(c),
    "bge": lambda a, c: s64(a) >= s64(c),
    "bltu": lambda a, c: a < c,
    "bgeu": lambda a, c: a >= c,
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_branches_forwards_and_backwards(name: str) -> None:
    pairs = [(a, c) for a in CORNERS for c in CORNERS]
    body = [
        i("ld", 12, 10, 0), i("ld", 13, 10, 8), i("addi", 14, 0, 0), i("addi", 15, 0, 0),
        b(name, 12, 13, 8), i("addi", 14, 14, 1),  # skipped where taken
        jal(0, 12), i("addi", 15, 15, 1), jal(0, 12),  # the backward target: taken once
        b(name, 12, 13, -8), i("addi", 15, 15, 4),
        s("sd", 14, 10, 16), s("sd", 15, 10, 24),
    ]  # fmt: skip
    for (a, c), got in zip(pairs, results(table_elf(body, pairs, 2), pairs, 2), strict=True):
        taken = CONDITIONS[name](a, c)
        assert got == ((0, 1) if taken else (1, 4)), (hex(a), hex(c))


def test_jumps_link_and_drop_the_low_bit() -> None:
    words: list[int | bytes] = [
        jal(12, 8), EBREAK,  # 0x0c
        auipc(13, 0), i("jalr", 14, 13, 13), EBREAK,  # 0x14, jumps to 0x14 + 12
        auipc(15, 0), i("jalr", 15, 15, 13), EBREAK,  # rd = rs1, to 0x20 + 12 whatever bit 0
        s("sd", 12, 8, TABLE), s("sd", 13, 8, TABLE + 8), s("sd", 14, 8, TABLE + 16), s("sd", 15, 8, TABLE + 24),
    ]  # fmt: skip
    machine = run(simple_elf(words, bytes(32)))
    got = struct.unpack("<4Q", machine.read(DATA + TABLE, 32))
    assert got == (0x80000010, 0x80000014, 0x8000001C, 0x80000028)


def test_longest_jumps() -> None:
    """jal reaches nearly 1 MiB both ways; ebreak, without a handler, would end the run."""
    far = (1 << 20) - 2
    code = bytearray(far + 64)
    start = code_bytes(PROLOGUE)
    code[: len(start)] = start
    at = len(start)
    code[at : at + 4] = code_bytes([jal(12, far - at)])
    code[far : far + 4] = code_bytes([jal(13, at + 4 - far)])
    tail = code_bytes([s("sd", 12, 8, TABLE), s("sd", 13, 8, TABLE + 8), i("addi", 9, 0, 1), s("sd", 9, 8, 0)])
    code[at + 4 : at + 4 + len(tail)] = tail
    machine = run(elf(bytes(code), bytes(TABLE + 16)))
    assert struct.unpack("<2Q", machine.read(DATA + TABLE, 16)) == (0x80000000 + at + 4, 0x80000000 + far + 4)


ATOMIC: dict[str, Callable[[int, int, int], int]] = {  # of memory, operand, width
    "amoswap": lambda m, x, w: x,
    "amoadd": lambda m, x, w: m + x,
    "amoxor": lambda m, x, w: m ^ x,
    "amoand": lambda m, x, w: m & x,
    "amoor": lambda m, x, w: m | x,
    "amomin": lambda m, x, w: min(m, x, key=lambda v: (v + (1 << (w - 1))) % (1 << w)),
    "amomax": lambda m, x, w: max(m, x, key=lambda v: (v + (1 << (w - 1))) % (1 << w)),
    "amominu": lambda m, x, w: min(m, x),
    "amomaxu": lambda m, x, w: max(m, x),
}


@pytest.mark.parametrize("width", ["w", "d"])
@pytest.mark.parametrize("name", ATOMIC)
def test_atomics(name: str, width: str) -> None:
    bits = 32 if width == "w" else 64
    pairs = [(a, c) for a in CORNERS for c in CORNERS]
    body = [
        i("ld", 12, 10, 8),
        mv(13, 10),
        amo(name, width, 14, 12, 13, order=3),
        s("sd", 14, 10, 16),
    ]
    program = table_elf(body, pairs, 1)
    memory = run(program).read(DATA + TABLE, 24 * len(pairs))
    for n, (m, x) in enumerate(pairs):
        stored, _, old = struct.unpack_from("<3Q", memory, 24 * n)
        low, operand = m % (1 << bits), x % (1 << bits)
        new = ATOMIC[name](low, operand, bits) % (1 << bits)
        assert stored == (m >> bits << bits | new), (name, hex(m), hex(x))
        assert old == (s32(m) & MASK64 if width == "w" else m)
    assert set(AMO) == {*ATOMIC, "lr", "sc"}


@pytest.mark.parametrize("width", ["w", "d"])
@pytest.mark.parametrize("order", range(4))
def test_compare_and_swap(width: str, order: int) -> None:
    bits = 32 if width == "w" else 64
    values = [0, 5, 0x80000000, 0x5_80000000, 0xFFFFFFFF_80000000, MASK64]
    rows = [(m, expected, x) for m in values for expected in values for x in (7, 0xFFFFFFFF_7FFFFFFF)]
    body = [
        i("ld", 14, 10, 8), i("ld", 12, 10, 16), mv(13, 10),
        amocas(width, 14, 12, 13, order), s("sd", 14, 10, 24),
    ]  # fmt: skip
    memory = run(table_elf(body, rows, 1)).read(DATA + TABLE, 32 * len(rows))
    for n, (m, expected, x) in enumerate(rows):
        stored, _, _, old = struct.unpack_from("<4Q", memory, 32 * n)
        equal = m % (1 << bits) == expected % (1 << bits)
        new = m >> bits << bits | x % (1 << bits)
        assert stored == (new if equal else m), (hex(m), hex(expected))
        assert old == (s32(m) & MASK64 if width == "w" else m)


def test_compare_and_swap_pairs() -> None:
    values = [0, 1, MASK64]
    rows = [(low, high, a, b) for low in values for high in values for a in values for b in values]
    body = [
        i("ld", 14, 10, 16), i("ld", 15, 10, 24), i("addi", 20, 0, 77), i("addi", 21, 0, -78), mv(13, 10),
        amocas("q", 14, 20, 13), s("sd", 14, 10, 32), s("sd", 15, 10, 40),
    ]  # fmt: skip
    memory = run(table_elf(body, rows, 2)).read(DATA + TABLE, 48 * len(rows))
    for n, row in enumerate(rows):
        found, expected = row[:2], row[2:]
        swapped = (77, MASK64 - 77) if found == expected else found
        assert struct.unpack_from("<6Q", memory, 48 * n) == (*swapped, *expected, *found)


def test_pairs_at_x0_are_zero_and_take_no_result() -> None:
    words: list[int | bytes] = [
        i("addi", 1, 0, 9), i("addi", 12, 8, TABLE), i("addi", 14, 0, 3), i("addi", 15, 0, 4),
        amocas("q", 0, 14, 12),  # memory is zero: swapped
        amocas("q", 0, 0, 12),  # now it is not: left
        s("sd", 1, 8, TABLE + 16),
        amocas("q", 14, 0, 12),  # zero for what x14 and x15 hold
        amocas("w", 0, 1, 12), s("sd", 0, 8, TABLE + 24),
    ]  # fmt: skip
    machine = run(simple_elf(words, bytes(32)))
    assert struct.unpack("<4Q", machine.read(DATA + TABLE, 32)) == (9, 0, 9, 0)
    assert machine.hart().x[14:16] == (3, 4)


@pytest.mark.parametrize("width", ["w", "d"])
def test_load_reserved_and_store_conditional(width: str) -> None:
    words: list[int | bytes] = [
        i("addi", 12, 8, TABLE), i("addi", 13, 0, -5), i("addi", 20, 8, TABLE + 64),
        amo("sc", width, 14, 13, 12), s("sd", 14, 8, TABLE + 16),  # without a reservation: fails, stores nothing
        amo("lr", width, 15, 0, 12), s("sd", 15, 8, TABLE + 24),
        amo("sc", width, 14, 13, 12), s("sd", 14, 8, TABLE + 32),  # succeeds
        amo("sc", width, 14, 15, 12), s("sd", 14, 8, TABLE + 40),  # the reservation is gone
        amo("lr", width, 15, 0, 12), amo("sc", width, 14, 13, 20), s("sd", 14, 8, TABLE + 48),  # another address
    ]  # fmt: skip
    machine = run(simple_elf(words, struct.pack("<QQ", 0x89ABCDEF_81234567, 0) + bytes(96)))
    first, _, *rest = struct.unpack("<7Q", machine.read(DATA + TABLE, 56))
    old = s32(0x81234567) & MASK64 if width == "w" else 0x89ABCDEF_81234567
    assert rest == [1, old, 0, 1, 1]
    assert first == (0x89ABCDEF_FFFFFFFB if width == "w" else MASK64 - 4)
