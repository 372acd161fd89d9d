"""`superkernel sim run`: programs of the accelerator and plain ones, one and several."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from rv64_asm import EXIT, PROLOGUE, code_bytes, elf, i, jal, s, simple_elf

import superkernel as sk
from superkernel.cli import main
from superkernel.sim import run_program
from superkernel.target.certificate_note import sealed
from superkernel.target.note import SECTION

FAILURE = simple_elf([i("addi", 9, 0, 2 * 7 + 1), s("sd", 9, 8, 0)])
"""Reports failure 7."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    b = sk.GraphBuilder("small")
    b.output(b.relu(b.input("x", (64, 64))), "y")
    path: Path = tmp_path_factory.mktemp("program") / "small.elf"
    sk.compile(b.graph(), target="mini").save(path)
    return str(path)


def test_it_runs_on_its_target(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", program, "--target", "mini"]) == 0
    assert capsys.readouterr().out.startswith("PASS: ")


def test_it_runs_on_the_target_that_it_names(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", program]) == 0
    assert capsys.readouterr().out.startswith("PASS: ")


def test_it_is_refused_where_nobody_names_a_target(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would wait for its engines for ever."""
    path = tmp_path / "nameless.elf"
    path.write_bytes(Path(program).read_bytes().replace(SECTION.encode(), b".note.of.somebody.else"[: len(SECTION)]))
    assert main(["sim", "run", str(path)]) == 2
    assert "--target" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--harts", "2"], ["--memory", "4096"], ["--memory-base", "0"], ["--quantum", "9"], ["--icache", "4096"]]
)
def test_what_the_target_says_cannot_be_given(
    words: list[str], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "run", program, "--target", "mini", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_another_target_stops_it(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", program, "--target", "a3"]) == 2
    assert "without --target it runs on what it was compiled for" in capsys.readouterr().err


def test_a_damaged_program_ends_in_bounded_time(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With who is where and who waits for whom, by name; a plain one as well."""
    data = Path(program).read_bytes()
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".text.sk_fused0_cube")
    assert section is not None
    endless = patched(data, section["sh_offset"], jal(0, 0))
    (damaged := tmp_path / "damaged.elf").write_bytes(endless)
    assert main(["sim", "run", str(damaged), "--time-limit", "0.2"]) == 2, "its bytes are not those of its certificate"
    damaged.write_bytes(sealed(endless))
    capsys.readouterr()
    assert main(["sim", "run", str(damaged), "--time-limit", "0.2"]) == 15
    out = capsys.readouterr().out
    assert re.search(r"core 0 .* its control unit runs at pc 0x\w+ <sk_fused0_cube\+0x0>", out), out
    (damaged := tmp_path / "plain.elf").write_bytes(simple_elf([jal(0, 0)]))
    assert main(["sim", "run", str(damaged), "--time-limit", "0.2"]) == 11
    assert "the limit of instructions or time was reached" in capsys.readouterr().out
    assert main(["sim", "run", str(damaged), "--time-limit", "0"]) == 2


def test_delays_are_for_accelerators(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for words in ([], ["--delays", "5"], ["--delays", "5"]):
        assert main(["sim", "run", program, *words]) == 0
        lines.append(capsys.readouterr().out.splitlines()[0])
    assert lines[1] == lines[2] != lines[0]
    (plain := tmp_path / "plain.elf").write_bytes(simple_elf([]))
    for words in ([], ["--target", "mini"]):
        assert main(["sim", "run", str(plain), "--delays", "5", *words]) == 2


def patched(data: bytes, at: int, word: int) -> bytes:
    return data[:at] + word.to_bytes(4, "little") + data[at + 4 :]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two programs that pass, one that fails, a text beside them, and an ELF file of 32 bits."""
    (tmp_path / "b-passes").write_bytes(simple_elf([i("addi", 5, 0, 1)]))
    (tmp_path / "a-passes").write_bytes(simple_elf([]))
    (tmp_path / "c-fails").write_bytes(FAILURE)
    (tmp_path / "c-fails.dump").write_text("its disassembly")
    return tmp_path


def test_several_programs_have_a_line_each(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(directory / name) for name in ("b-passes", "c-fails", "a-passes")]
    assert main(["sim", "run", *names]) == 10
    assert capsys.readouterr().out.splitlines() == [
        f"PASS {names[0]}: the program exited with success",
        f"FAIL {names[1]}: the program exited with failure 7",
        f"PASS {names[2]}: the program exited with success",
        "3 programs: 2 passed, 1 failed",
    ]
    assert main(["sim", "run", names[0], names[2]]) == 0


def test_a_directory_stands_for_its_elf_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", str(directory), "--json"]) == 10
    data = json.loads(capsys.readouterr().out)
    assert [Path(each["program"]).name for each in data["programs"]] == ["a-passes", "b-passes", "c-fails"]
    assert [each["exit_status"] for each in data["programs"]] == [0, 0, 10]
    assert data["programs"][2]["exit_code"] == 7
    assert (data["passed"], data["failed"]) == (2, 1)


def test_what_cannot_be_run_does_not_hold_up_the_others(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = bytearray(simple_elf([]))
    small[4] = 1  # 32 bits
    (directory / "b-other").write_bytes(small)
    (directory / "d.elf").write_text("called a program, and none")
    assert main(["sim", "run", str(directory)]) == 2
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["PASS", "ERROR", "PASS", "FAIL", "ERROR", "5"]
    assert "not a 64-bit ELF file" in lines[1]
    assert "tohost" not in err  # what is no program is not warned of


def test_a_directory_without_programs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("nothing to run")
    assert main(["sim", "run", str(tmp_path)]) == 2
    assert "no program in the directory" in capsys.readouterr().err


def test_a_program_without_tohost_is_told_of() -> None:
    """It cannot say that it succeeded, so a run without a limit may never end."""
    file = elf(code_bytes([*PROLOGUE, *EXIT, 0x10500073, jal(0, -4)]), tohost=False)  # wfi, for ever
    file = file.replace(b"tohost", b"others")
    with pytest.warns(UserWarning, match="tohost"):
        assert run_program(file).end == "asleep"
    assert run_program(file, max_instructions=100).end == "asleep"
