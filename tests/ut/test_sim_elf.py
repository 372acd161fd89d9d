"""The simulator's ELF reader: what it takes, what it refuses and why, and that no damaged file does harm."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from rv64_asm import CODE, DATA, EXIT, PROLOGUE, code_bytes, elf, i, jal, s, simple_elf

from superkernel.core.errors import FileFormatError, InputError, SuperKernelError, UserError
from superkernel.sim import Machine

GOOD = simple_elf([i("addi", 5, 0, 1)])
SECTIONS = struct.unpack_from("<Q", GOOD, 40)[0]
SYMBOLS_HEADER = SECTIONS + 64
PH0, PH1 = 64, 64 + 56


def patched(*changes: tuple[int, str, int]) -> bytes:
    file = bytearray(GOOD)
    for offset, code, value in changes:
        struct.pack_into("<" + code, file, offset, value)
    return bytes(file)


def test_a_good_file_runs_from_bytes_and_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "program.elf"
    path.write_bytes(GOOD)
    for program in (GOOD, path, str(path)):
        machine = Machine(program)
        assert (machine.run(100), machine.exit_code) == ("exited", 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([(0, "B", 0)], "not an ELF file"),
        ([(4, "B", 1)], "not a 64-bit ELF file"),
        ([(5, "B", 2)], "not little-endian"),
        ([(6, "B", 0)], "unknown ELF version"),
        ([(18, "H", 62)], "not for RISC-V"),
        ([(16, "H", 1)], "objects must be linked first"),
        ([(48, "I", 8)], "calling convention"),
        ([(24, "Q", CODE + 1)], "entry is not aligned"),
        ([(24, "Q", 0x1000)], "entry lies outside memory"),
        ([(56, "H", 0)], "no program headers"),
        ([(54, "H", 32)], "unknown size"),
        ([(32, "Q", 1 << 63)], "beyond the end of the file"),
        ([(32, "Q", len(GOOD) - 10)], "beyond the end of the file"),
        ([(56, "H", 0xFFFF)], "beyond the end of the file"),
        ([(PH0, "I", 3)], "dynamic linker"),
        ([(PH0, "I", 0), (PH1, "I", 0)], "no loadable segment"),
        ([(PH0 + 8, "Q", (1 << 64) - 8)], "beyond the end of the file"),
        ([(PH0 + 32, "Q", (1 << 64) - 1)], "beyond the end of the file"),
        ([(PH0 + 40, "Q", 1)], "smaller in memory"),
        ([(PH0 + 24, "Q", (1 << 64) - 4)], "wraps around"),
        ([(PH0 + 24, "Q", DATA)], "overlap"),
        ([(PH0 + 24, "Q", 0x1000)], "outside memory"),
        ([(PH1 + 40, "Q", 1 << 60)], "outside memory"),
        ([(58, "H", 1)], "section headers of an unknown size"),
        ([(40, "Q", 1 << 62)], "section headers reach beyond"),
        ([(SYMBOLS_HEADER + 24, "Q", 1 << 62)], "symbol table reaches beyond"),
        ([(SYMBOLS_HEADER + 40, "I", 77)], "names no string table"),
        ([(SYMBOLS_HEADER + 56, "Q", 16)], "symbols of an unknown size"),
        ([(SYMBOLS_HEADER + 64 + 24, "Q", 1 << 62)], "string table reaches beyond"),
    ],
)
def test_bad_fields_are_told(changes: list[tuple[int, str, int]], words: str) -> None:
    with pytest.raises(FileFormatError, match=words) as caught:
        Machine(patched(*changes))
    assert caught.value.violations[0].location


def test_the_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "odd.elf"
    path.write_bytes(b"no elf")
    with pytest.raises(FileFormatError, match=r"odd\.elf"):
        Machine(path)
    with pytest.raises(InputError, match="absent"):
        Machine(tmp_path / "absent")
    with pytest.raises(UserError):
        Machine(tmp_path)


def test_tohost_outside_memory_is_refused() -> None:
    symbols = struct.unpack_from("<Q", GOOD, SYMBOLS_HEADER + 24)[0]
    with pytest.raises(FileFormatError, match="tohost"):
        Machine(patched((symbols + 24 + 8, "Q", 0x1000)))


def test_a_section_called_tohost_serves_where_the_symbol_is_missing() -> None:
    file = bytearray(GOOD)
    file[file.index(b"\0tohost\0") : file.index(b"\0tohost\0") + 8] = b"\0nobody\0"
    names = len(file)
    file += b"\0.tohost\0"
    strings_header = SECTIONS + 128
    struct.pack_into("<Q", file, strings_header + 24, names)
    struct.pack_into("<Q", file, strings_header + 32, 9)
    struct.pack_into("<H", file, 62, 2)
    last = SECTIONS  # the null section plays the part
    struct.pack_into("<I", file, last, 1)
    struct.pack_into("<Q", file, last + 16, DATA)
    machine = Machine(bytes(file))
    assert machine.run(100) == "exited"


def test_a_program_without_tohost_runs_until_its_limit() -> None:
    machine = Machine(elf(code_bytes([*PROLOGUE, *EXIT, jal(0, 0)]), tohost=False))
    assert machine.run(1000) == "limit"
    assert machine.executed >= 1000


def test_memory_behind_the_file_part_is_zero_and_writable() -> None:
    program = elf(code_bytes([*PROLOGUE, i("ld", 5, 8, 2040), s("sd", 5, 8, 64), *EXIT]), b"\xff" * 128)
    machine = Machine(program)
    assert machine.run(100) == "exited"
    assert machine.read(DATA + 64, 8) == bytes(8)


def test_truncated_files_are_refused() -> None:
    """The last section header only looks complete when it is: every proper prefix is refused."""
    for length in range(len(GOOD)):
        with pytest.raises(FileFormatError):
            Machine(GOOD[:length])


def test_damaged_files_do_no_harm() -> None:
    """Random bytes in headers, symbols and code: refused with a type, or run to some end within the limit."""
    generator = random.Random(11)
    places = [*range(64 + 112), *range(len(GOOD) - 450, len(GOOD))]
    outcomes = {"refused": 0, "ran": 0}
    for _ in range(3000):
        file = bytearray(GOOD)
        for _ in range(generator.randint(1, 4)):
            file[generator.choice(places)] = generator.choice([0, 1, 0x7F, 0x80, 0xFF, generator.getrandbits(8)])
        try:
            machine = Machine(bytes(file), memory_bytes=1 << 22)
        except SuperKernelError:
            outcomes["refused"] += 1
        else:
            machine.run(200)
            outcomes["ran"] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_random_code_always_comes_to_an_end() -> None:
    """Garbage as code, with several harts: some end within the limit, and the machine stays usable."""
    generator = random.Random(12)
    ends = set()
    for _ in range(300):
        machine = Machine(
            elf(code_bytes(PROLOGUE) + generator.randbytes(400)), harts=generator.randint(1, 3), quantum=7
        )
        ends.add(machine.run(500))
        assert len(machine.read(CODE, 16)) == 16
    assert "trap_loop" in ends
