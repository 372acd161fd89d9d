"""The simulator against QEMU: the same bytes, random instructions, all registers compared. Skipped without QEMU.

The program loads random registers, executes a few random instructions, stores every register and the flags, and starts
over, some hundred times. In half of the programs some instructions are loads, stores and atomics on the row that the
registers came from, loads and stores at any alignment. `pytest --sequences N` tries N sequences.

QEMU's memory is a file; the program ends there by a store to the test device, which the
simulator never reaches, because tohost has ended it before.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from rv64_asm import (
    AMO,
    CODE,
    DATA,
    EXIT,
    I_TYPE,
    PROLOGUE,
    S_TYPE,
    TABLE,
    amo,
    code_bytes,
    csr,
    elf,
    i,
    jal,
    lui,
    mv,
    r,
    s,
)

from superkernel._core import sim_expand_compressed, sim_instructions
from superkernel.sim import Machine

QEMU = shutil.which("qemu-system-riscv64")
BLOCKS, BLOCK = 400, 6
SHARDS = 4
ROW = 512  # bytes of a row of registers: x at 0, f0 to f30 at 256, the flags at 504
RESULTS = 4 << 20  # where the rows of results start, from the rows of operands
MEMORY = 1 << 24
OPTIONS = ["-cpu", "rv64", "-bios", "none", "-display", "none", "-serial", "none", "-monitor", "none"]
KEPT_X = (5, 6, 7, *range(12, 32))
INTERESTING = [
    0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 0x3FF0000000000000, 0xBFF8000000000000, 0x7FF0000000000000,
    0x7FF8000000000000, 0x7FF0000000000001, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF,
    0xFFFFFFFF3F800000, 0xFFFFFFFF00000001,
    0xFFFFFFFF7F800000, 0xFFFFFFFF7FC00000, 0xFFFFFFFFFF7FFFFF, 0xFFFFFFFF80000000, 0x43E0000000000000,
    0xC1E0000000200000,
]  # fmt: skip


def random_word(generator: random.Random) -> int | None:
    """A random instruction that only touches registers x5 to x7, x12 to x31 and f; None where the draw was not one."""
    name, mask, match, operands = generator.choice(ROWS)
    word = match | generator.getrandbits(32) & ~mask
    if "m" in operands and (word >> 12 & 7) in (5, 6):
        return None
    if name in ("fcvt.d.s", "fcvt.d.w", "fcvt.d.wu"):
        word &= ~(7 << 12)
    fields = {"d": word >> 7 & 31, "s": word >> 15 & 31, "t": word >> 20 & 31}
    allowed = all(fields[letter] in KEPT_X for letter in operands if letter in fields)
    return word if allowed else None


def usable(row: tuple[str, int, int, str]) -> bool:
    """Neither memory nor jumps nor anything privileged."""
    name, _, _, operands = row
    return operands != "" and not set("(paE") & set(operands) and name not in ("auipc", "fence")


MEMORY_NAMES = [n for n in I_TYPE if n[0] in "lf"] + list(S_TYPE) + [n for n in AMO if n not in ("lr", "sc")] + ["pair"]
ROWS = [row for row in sim_instructions() if usable(row)]


def random_compressed(generator: random.Random) -> int | None:
    half = generator.getrandbits(16)
    word = sim_expand_compressed(half) if half & 3 != 3 else 0
    opcode, rd, rs1, rs2 = word & 0x7F, word >> 7 & 31, word >> 15 & 31, word >> 20 & 31
    if opcode not in (0x13, 0x1B, 0x33, 0x3B, 0x37) or rd not in KEPT_X:
        return None
    if (rs1 not in KEPT_X and rs1 != 0 and opcode != 0x37) or (opcode in (0x33, 0x3B) and rs2 not in KEPT_X):
        return None
    return half


def state_moves(load: bool, row: int) -> list[int]:
    """All registers from or to 0(row)."""
    x = [(i("ld", n, row, 8 * k) if load else s("sd", n, row, 8 * k)) for k, n in enumerate(KEPT_X)]
    f = [(i("fld", n, row, 256 + 8 * n) if load else s("fsd", n, row, 256 + 8 * n)) for n in range(31)]
    return x + f


def random_memory(generator: random.Random) -> list[int]:
    """A load, store or atomic on the operands' row, or a pair of lr and sc."""
    name = generator.choice(MEMORY_NAMES)
    x, y = generator.choice(KEPT_X), generator.choice(KEPT_X)
    if name == "pair":
        width = generator.choice("wd")
        return [amo("lr", width, x, 0, 10, generator.randrange(4)), amo("sc", width, y, x, 10, generator.randrange(4))]
    if name in AMO:
        return [amo(name, generator.choice("wd"), x, y, 10, generator.randrange(4))]
    register = generator.randrange(31) if name.startswith("f") else x
    place = generator.randrange(0, ROW - 8)
    return [s(name, register, 10, place) if name in S_TYPE else i(name, register, 10, place)]


def program(seed: int, memory: bool) -> bytes:
    generator = random.Random(seed)
    words: list[int | bytes] = [i("addi", 10, 8, TABLE), lui(11, RESULTS >> 12), r("add", 11, 11, 10)]
    for _ in range(BLOCKS):
        words += state_moves(True, 10)
        words.append(csr("csrrwi", 0, 3, 0))
        words.append(csr("csrrwi", 0, 2, generator.randrange(5)))
        chosen = 0
        while chosen < BLOCK:
            if memory and generator.random() < 0.5:
                words += random_memory(generator)
                chosen += 1
                continue
            draw = random_word if generator.random() < 0.8 else random_compressed
            if (word := draw(generator)) is not None:
                words.append(word)
                chosen += 1
        words += [*state_moves(False, 11), csr("csrrs", 5, 3, 0), s("sd", 5, 11, ROW - 8)]
        words += [i("addi", 10, 10, ROW), i("addi", 11, 11, ROW)]
    finish = [lui(5, 0x100), lui(6, 5), i("addi", 6, 6, 0x555), s("sw", 6, 5, 0), jal(0, 0)]
    code = code_bytes([*PROLOGUE, *words, mv(0, 0), *EXIT, *finish])
    values = [generator.getrandbits(64) for _ in range(64 * BLOCKS)]
    for n in generator.sample(range(len(values)), len(values) // 2):
        values[n] = generator.choice(INTERESTING)
    return elf(code, bytes(TABLE) + struct.pack(f"<{64 * BLOCKS}Q", *values))


def on_qemu(machine: Machine, path: Path) -> bytes:
    """Runs what stands in the machine's memory, before it has run itself; returns QEMU's memory afterwards."""
    path.write_bytes(machine.read(CODE, MEMORY))
    assert QEMU is not None
    backend = f"memory-backend-file,id=ram0,size={MEMORY},mem-path={path},share=on"
    done = subprocess.run(
        [QEMU, "-M", "virt,memory-backend=ram0", "-object", backend, "-m", f"{MEMORY >> 20}M", *OPTIONS],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return path.read_bytes()


@pytest.mark.skipif(QEMU is None, reason="no qemu-system-riscv64")
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_instructions_agree_with_qemu(
    shard: int, memory: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    programs = -(-int(request.config.getoption("--sequences")) // (BLOCKS * SHARDS * 2))
    for seed in range(shard, programs * SHARDS, SHARDS):
        _compare(seed, memory, tmp_path / "ram")


def _compare(seed: int, memory: bool, path: Path) -> None:
    machine = Machine(program(seed, memory), memory_bytes=MEMORY)
    operands, results, size = DATA + TABLE, DATA + TABLE + RESULTS, ROW * BLOCKS
    given = machine.read(operands, size)
    theirs = on_qemu(machine, path)
    assert machine.run(10_000_000) == "exited", machine.hart(0)
    ours = machine.read(results, size)
    for block in range(BLOCKS):
        at = ROW * block
        expected = theirs[results - CODE + at :][:ROW]
        assert any(expected)
        found = ours[at : at + ROW]
        assert struct.unpack("<64Q", found) == struct.unpack("<64Q", expected), f"seed {seed}, block {block}"
    left = theirs[operands - CODE :][:size]
    assert machine.read(operands, size) == left, f"seed {seed}"
    assert (left != given) is memory
