"""The simulator against QEMU: the same bytes, random instructions, all registers compared. Skipped without QEMU.

The program loads random registers, executes a few random instructions, stores every register and the flags, and starts
over, some hundred times. QEMU's memory is a file; the program ends there by a store to the test device, which the
simulator never reaches, because tohost has ended it before.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from rv64_asm import CODE, DATA, EXIT, PROLOGUE, TABLE, code_bytes, csr, elf, i, jal, lui, mv, r, s

from superkernel._core import sim_expand_compressed, sim_instructions
from superkernel.sim import Machine

QEMU = shutil.which("qemu-system-riscv64")
BLOCKS, BLOCK = 400, 6
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


def program(seed: int) -> bytes:
    generator = random.Random(seed)
    words: list[int | bytes] = [i("addi", 10, 8, TABLE), lui(11, RESULTS >> 12), r("add", 11, 11, 10)]
    for _ in range(BLOCKS):
        words += state_moves(True, 10)
        words.append(csr("csrrwi", 0, 3, 0))
        words.append(csr("csrrwi", 0, 2, generator.randrange(5)))
        chosen = 0
        while chosen < BLOCK:
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
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return path.read_bytes()


@pytest.mark.skipif(QEMU is None, reason="no qemu-system-riscv64")
@pytest.mark.parametrize("seed", range(4))
def test_random_instructions_agree_with_qemu(seed: int, tmp_path: Path) -> None:
    machine = Machine(program(seed), memory_bytes=MEMORY)
    theirs = on_qemu(machine, tmp_path / "ram")
    assert machine.run(10_000_000) == "exited", machine.hart(0)
    start = DATA + TABLE + RESULTS
    ours = machine.read(start, ROW * BLOCKS)
    for block in range(BLOCKS):
        at = ROW * block
        expected = theirs[start - CODE + at :][:ROW]
        assert any(expected)
        assert struct.unpack("<64Q", ours[at : at + ROW]) == struct.unpack("<64Q", expected), f"block {block}"
