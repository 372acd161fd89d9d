"""The start code: its encoder against the disassembler, and what harts do, on the simulator and on QEMU."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from superkernel._core import sim_disassemble
from superkernel.codegen.aicore.boot import (
    A0,
    EXIT_SUCCESS,
    EXIT_TRAP,
    SET,
    SHARED,
    SP,
    T0,
    T1,
    T2,
    WRITE,
    BootSpec,
    Encoder,
    boot_object,
    encode_boot,
)
from superkernel.codegen.aicore.linking import Image, LinkLayout, link
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.codegen.aicore.memory_map import CAUSE_WORD, MemoryMap
from superkernel.core.errors import InternalError, LinkError
from superkernel.sim import Machine
from superkernel.target.aicore import load_target

CODE, PRIVATE, TOHOST, OUT, PRIVATE_BYTES = 0x8000_0000, 0x8020_0000, 0x8040_0000, 0x8050_0000, 4096
QEMU = shutil.which("qemu-system-riscv64")

REPORT = f"""
@sk_private = external global i8
declare ptr @llvm.stacksave()
define i64 @here() noinline {{
  ret i64 ptrtoint (ptr @here to i64)
}}
define void @sk_main(i64 %hart) {{
  %row = shl i64 %hart, 5
  %at = add i64 %row, {OUT}
  %p = inttoptr i64 %at to ptr
  %where = call i64 @here()
  store i64 %where, ptr %p
  %s = call ptr @llvm.stacksave()
  %p1 = getelementptr i64, ptr %p, i64 1
  store ptr %s, ptr %p1
  %f = uitofp i64 %hart to double
  %half = fdiv double %f, 2.0
  %p2 = getelementptr i64, ptr %p, i64 2
  store double %half, ptr %p2
  %p3 = getelementptr i64, ptr %p, i64 3
  store i64 1, ptr %p3
  ret void
}}
"""
FAULT = """
define void @sk_main(i64 %hart) {
  %bad = load volatile i64, ptr inttoptr (i64 134217728 to ptr)
  ret void
}
"""


def program(main: str, copy_of: Sequence[int], *, copies: int = 1, exit_address: int = TOHOST) -> Image:
    spec = BootSpec(copy_of=copy_of, private_bytes=PRIVATE_BYTES, exit_address=exit_address)
    layout = LinkLayout(
        code_address=CODE,
        copies=copies,
        shared=SHARED,
        absolute={"sk_private": PRIVATE, "tohost": TOHOST},
    )
    return link([encode_boot(spec), compile_rv64(main)], layout, ["boot", "main"])


def run(image: Image, harts: int, *, firmware: int = 0, quantum: int = 10_000) -> Machine:
    machine = Machine(image.elf(), harts=harts, memory_bytes=8 << 20, quantum=quantum)
    machine.write(image.symbol("sk_firmware").address, struct.pack("<Q", firmware))
    assert machine.run(1_000_000) == "exited"
    return machine


def ended_with(machine: Machine) -> int:
    """The word stored at the exit address: tohost hands over all but its lowest bit."""
    return machine.exit_code << 1 | 1


# ---- the encoder


def test_instructions_read_back() -> None:
    e = Encoder()
    e.addi(T0, SP, -2048)
    e.slli(T1, T2, 63)
    e.ld(A0, 2047, T0)
    e.jalr(1, T2)
    e.store(1, T0, -1, T1)
    e.store(4, T0, 0, T1)
    e.store(8, T0, -2048, T1)
    e.add(T0, T1, T2)
    e.mul(T0, T1, T2)
    e.csr(WRITE, 0, 0x340, T0)
    e.csr(SET, 0, 0x300, T0)
    e.csr(SET, T0, 0x342, 0)
    e.amoadd_d_aqrl(T0, T1, T2)
    assert [sim_disassemble(word) for word in e.words] == [
        "addi x5,x2,-2048", "slli x6,x7,0x3f", "ld x10,2047(x5)", "jalr x1,0(x7)", "sb x5,-1(x6)", "sw x5,0(x6)",
        "sd x5,-2048(x6)", "add x5,x6,x7", "mul x5,x6,x7", "csrrw x0,0x340,x5", "csrrs x0,0x300,x5",
        "csrrs x5,0x342,x0", "amoadd.d.aqrl x5,x6,(x7)",
    ]  # fmt: skip


@pytest.mark.parametrize("word", [-1, 1 << 32, (1 << 32) + 3, 0x10, 0x4501, 0x8082])
def test_what_is_no_instruction_of_four_bytes_is_refused(word: int) -> None:
    """Too large, or with the lowest bits of a compressed one."""
    with pytest.raises(AssertionError):
        Encoder().word(word)
    for right in (0x00000003, 0xFFFFFFFF):
        Encoder().word(right)


def test_jumps_find_their_labels() -> None:
    e = Encoder()
    e.branch(1, T0, T1, "end")
    e.label("middle")
    for _ in range(300):
        e.addi(0, 0, 0)
    e.jump("middle")
    e.branch(7, T0, T1, "middle")
    e.label("end")
    words = struct.unpack(f"<{len(e.words)}I", e.code())
    assert sim_disassemble(words[0], 0x1000) == f"bne x5,x6,{0x1000 + 4 * 303:#x}"
    assert sim_disassemble(words[301], 0x1000 + 4 * 301) == "jal x0,0x1004"
    assert sim_disassemble(words[302], 0x1000 + 4 * 302) == "bgeu x5,x6,0x1004"


def test_constants_of_any_size() -> None:
    rng = random.Random(5)
    values = [0, 1, 2047, 2048, 4095, 0x7FF, 0x800, 0x7FFFF7FF, 0x7FFFF800, 0x7FFFFFFF, 1 << 31, (1 << 63) - 1]
    values += [rng.getrandbits(rng.randrange(1, 64)) for _ in range(300)]
    e = Encoder()
    for value in values:
        start = len(e.words)
        e.li(T0, value)
        assert evaluate(e.words[start:]) == value, hex(value)


def evaluate(words: Sequence[int]) -> int:
    """T0 behind lui, addi, addiw and slli, by the words of the specification."""
    x = 0
    for word in words:
        immediate = (word >> 20 ^ 0x800) - 0x800
        opcode, base = word & 0x7F, x if word >> 15 & 31 else 0
        if opcode == 0x37:
            x = ((word & 0xFFFFF000) ^ 1 << 31) - (1 << 31)
        elif opcode == 0x1B:
            x = ((base + immediate & 0xFFFFFFFF) ^ 1 << 31) - (1 << 31)
        elif word >> 12 & 7 == 1:
            x = base << (word >> 20 & 63)
        else:
            assert opcode == 0x13
            x = base + immediate
        x &= (1 << 64) - 1
    return x


# ---- harts


@pytest.mark.parametrize("quantum", [1, 10_000])
@pytest.mark.parametrize(("copies", "copy_of"), [(1, [0] * 3), (2, [0, 1, 0, 1]), (4, [3, 1, 0, 2, 2, 0, 1, 3])])
def test_every_hart_runs_its_copy_on_its_stack(copies: int, copy_of: list[int], quantum: int) -> None:
    image = program(REPORT, copy_of, copies=copies)
    machine = run(image, len(copy_of), quantum=quantum)
    assert ended_with(machine) == EXIT_SUCCESS
    for hart, copy in enumerate(copy_of):
        where, stack, half, done = struct.unpack("<QQdQ", machine.read(OUT + 32 * hart, 32))
        assert where == image.symbol(f"here.copy{copy}" if copy else "here").address
        top = PRIVATE + (hart + 1) * PRIVATE_BYTES
        assert top - 256 < stack <= top - 16
        assert stack % 16 == 0
        assert (half, done) == (hart / 2, 1)
        state = machine.hart(hart)
        assert (state.x[3], state.x[4]) == (0, 0)
        assert state.mtvec == image.symbol("sk_trap").address
    assert machine.read(image.symbol("sk_done").address, 8) == bytes(8)  # ready for the next launch


def test_harts_that_the_program_does_not_know_sleep() -> None:
    machine = run(program(REPORT, [0, 0]), 4, quantum=1)
    assert ended_with(machine) == EXIT_SUCCESS
    assert struct.unpack("<Q", machine.read(OUT + 32 * 2 + 24, 8)) == (0,)
    assert machine.hart(3).asleep


def test_a_missing_hart_is_waited_for() -> None:
    machine = Machine(program(REPORT, [0, 0, 0]).elf(), harts=2, memory_bytes=8 << 20)
    assert machine.run(1_000_000) == "asleep"


def test_a_trap_leaves_its_cause_and_ends_the_machine() -> None:
    image = program(FAULT, [0, 0])
    machine = run(image, 2)
    assert ended_with(machine) == EXIT_TRAP
    hart = machine.end_hart
    assert struct.unpack("<Q", machine.read(PRIVATE + hart * PRIVATE_BYTES + 8 * CAUSE_WORD, 8)) == (5,)


def test_a_firmware_keeps_its_trap_handler() -> None:
    machine = run(program(REPORT, [0]), 1, firmware=1)
    assert ended_with(machine) == EXIT_SUCCESS
    assert machine.hart(0).mtvec == 0


def test_the_start_of_a_target() -> None:
    target = load_target("mini")
    memory = MemoryMap.of(target)
    image = link(
        [boot_object(target, harts=memory.harts, copies=2), compile_rv64(REPORT)], LinkLayout.of(target, copies=2)
    )
    assert image.symbol("sk_start").address == image.entry == memory.code_address
    assert image.symbol("sk_private").address == memory.private_address
    assert "sk_start.copy1" not in {s.name for s in image.symbols}
    table = next(row for row in image.rows if row.section == ".rodata.sk_mains")
    segment = next(s for s in image.segments if s.address <= table.address < s.address + len(s.data))
    mains = struct.unpack_from(f"<{memory.harts}Q", segment.data, table.address - segment.address)
    names = ["sk_main", "sk_main.copy1"]
    assert list(mains) == [image.symbol(names[hart % 2]).address for hart in range(memory.harts)]


def test_missing_main_and_missing_copy_are_named() -> None:
    with pytest.raises(LinkError, match=r"'sk_main.copy0' is not defined"):
        program("define void @main() {\n ret void\n}\n", [0])
    with pytest.raises(LinkError, match=r"'sk_main.copy2' is not defined.*the layout has 2 copies"):
        program(REPORT, [0, 2], copies=2)


def test_an_impossible_start_is_refused() -> None:
    good = BootSpec(copy_of=[0], private_bytes=4096, exit_address=1 << 20)
    for change in ({"copy_of": []}, {"copy_of": [-1]}, {"private_bytes": 40}, {"exit_address": 1 << 60}):
        with pytest.raises(InternalError, match=next(iter(change))):
            replace(good, **change)


@pytest.mark.skipif(QEMU is None, reason="qemu-system-riscv64 is not installed")
@pytest.mark.parametrize(("main", "status"), [(REPORT, 0), (FAULT, 1)])
def test_qemu_runs_the_same_bytes(tmp_path: Path, main: str, status: int) -> None:
    image = program(main, [0, 1], copies=2, exit_address=0x100000)
    file = tmp_path / "program.elf"
    file.write_bytes(image.elf())
    machine = ["-M", "virt", "-cpu", "rv64", "-smp", "2", "-m", "128M", "-bios", "none", "-display", "none"]
    command = [str(QEMU), *machine, "-serial", "none", "-monitor", "none", "-kernel", str(file)]
    assert subprocess.run(command, timeout=120, check=False).returncode == status
