"""What is generated from the command table is up to date, and the C++ header means what the table means."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from engine_command_cases import random_command

from superkernel.core.errors import MachineError
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Command, encode, footprint
from superkernel.target.engines.document import commands
from superkernel.target.engines.formula import evaluate
from superkernel.target.engines.generate import HEADER, PAGE, page
from superkernel.target.engines.header import header
from superkernel.target.engines.table import command_table
from superkernel.target.sections import all_fields

HINT = "run `python -m superkernel.target.engines.generate`"
PROBE = Path(__file__).with_name("engine_commands_probe.cpp")


def test_the_header_is_up_to_date() -> None:
    assert HEADER.read_text(encoding="utf-8") == header(), HINT


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, HINT


def test_a_changed_page_is_fixed_and_a_lost_marker_is_refused() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text.replace("| `clock_mhz` | 1850 P", "| `clock_mhz` | 1900 P")) == text
    with pytest.raises(MachineError, match="marker"):
        page(text.replace("<!-- end generated: presets -->", ""))


def test_the_page_has_every_field_and_command() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for spec in all_fields().values():
        assert f"| `{spec.name}` |" in text, spec.path
    chapter = commands()
    for row in command_table().values():
        head = f"#### `{row.name}` (0x{row.opcode:02x})"
        assert chapter.count(head) == 1
        section = chapter.split(head)[1].split("\n#### ")[0]
        assert row.semantics in section
        assert all(f"| `{o.name}` |" in section for o in row.operands)


def test_the_pages_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, str(PAGE), "exec"), {})
    assert "0x80002f8 <- " in capsys.readouterr().out


def test_the_pages_target_is_legal(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    (tmp_path / "my.toml").write_text(text)
    target = load_target(tmp_path / "my.toml")
    assert (target.cores, target.range_of("sync.group_ns")) == (120, (100, 400))


def expected(one: Command, target: AicoreTarget) -> str:
    """The line that the probe prints for a command."""
    spec, numbers = one.spec, one.numbers
    times = (evaluate(text, spec, numbers, one.types, target) for text in (spec.start_up, spec.beats, spec.visible))
    words = [str(spec.opcode), *(f"{name}={number}" for name, number in numbers.items())]
    words.append("times=" + ",".join(map(str, times)))
    words += [f"{t.operand}:{int(t.writes)},{t.rows},{t.row_bytes},{t.stride}" for t in footprint(one, target)]
    return " ".join(words)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_header_compiles_and_agrees(tmp_path: Path) -> None:
    """Five random commands of each row: operands, times and footprints from C++ are those from Python."""
    probe = tmp_path / "probe"
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]
    built = subprocess.run(["g++", *flags, str(PROBE), "-o", str(probe)], capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr
    target = load_target("mini").replaced({"rates.scale": 1.07, "dma.unaligned_loss_percent": 12.5})
    rng = random.Random(11)
    cases = [random_command(name, rng) for name in command_table() for _ in range(5)]
    lines = [
        f"{path} {target.value(path):d}"
        for path, s in all_fields().items()
        if s.element in (int, bool) and not s.is_list
    ]
    lines += [f"{path} {target.value(path)!r}" for path, s in all_fields().items() if s.kind is float]
    lines.append("-")
    for one in cases:
        words = encode(one)
        lines.append(" ".join(map(str, (one.spec.opcode, len(words) - 1, *words))))
    ran = subprocess.run([str(probe)], input="\n".join(lines), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [expected(one, target) for one in cases]
