"""`superkernel sim run --target`: accelerator programs from files, and plain programs on one of its cores."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
from rv64_link import executable

import superkernel as sk
from superkernel.backends.aicore.compatibility import check_compatible
from superkernel.target.aicore import load_target
from superkernel.target.note import RELIED_ON, note_bytes, noted_target
from superkernel.target.sections import all_fields

MINI = load_target("mini")
PASSES = """
define void @main(i64 %hart, ptr %results) {
  ret void
}
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "superkernel", "sim", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sim") / "mlp.elf"
    sk.compile(models.mlp(batch=4), target="mini").save(path)
    return path


def test_a_saved_kernel_runs(program: Path) -> None:
    result = run(str(program), "--target", "mini")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("PASS: ")
    assert "core 5 (aiv)" in result.stdout
    data: dict[str, Any] = json.loads(run(str(program), "--target", "mini", "--json").stdout)
    assert data["succeeded"]
    assert data["cycles"] > 1000
    assert len(data["launches"]) == 1
    assert len(data["launches"][0]["cores"]) == 7


def test_a_program_knows_its_target(program: Path) -> None:
    own = noted_target(program.read_bytes())
    assert own == load_target("mini")
    assert run(str(program)).stdout == run(str(program), "--target", "mini").stdout


def test_another_target_is_refused_by_what_the_program_relies_on(program: Path) -> None:
    result = run(str(program), "--target", "a3")
    assert result.returncode == 2, result.stdout
    for path in ("device.groups", "device.cube_cores", "device.vector_cores", "map.ram_bytes", "sync.point_to_point"):
        assert f"a program for another target: {path}; expected {MINI.value(path)!r}" in result.stderr
    assert "l2.capacity_bytes" not in result.stderr


def test_the_memory_map_tells_targets_apart_where_there_is_no_note(program: Path) -> None:
    data = program.read_bytes().replace(b".note.superkernel.target", b".note.superkernel.nobody")
    assert noted_target(data) is None
    check_compatible(data, MINI, "p")
    with pytest.raises(sk.InputError, match="private memories at") as caught:
        check_compatible(data, load_target("a3"), "p")
    assert "symbol 'sk_private'" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"sync.core_full_ns": 2000, "rates.scale": 1.05, "l2.capacity_bytes": 8 << 20}, []),
        ({"sync.flags_per_core": 32, "memory.ub_bytes": 256 << 10}, []),
        ({"sync.flags_per_core": 8, "queue.flag_ids": 4}, ["queue.flag_ids", "sync.flags_per_core"]),
        ({"sync.point_to_point": False, "device.clock_mhz": 1000}, ["sync.point_to_point"]),
    ],
)
def test_times_may_differ_and_capacities_be_larger(program: Path, values: dict[str, Any], wrong: list[str]) -> None:
    other = MINI.replaced(values)
    if not wrong:
        check_compatible(program.read_bytes(), other, "p")
        return
    with pytest.raises(sk.InputError) as caught:
        check_compatible(program.read_bytes(), other, "p")
    assert [v.message for v in caught.value.violations] == [f"a program for another target: {path}" for path in wrong]
    assert {v.location for v in caught.value.violations} == {"file 'p', section '.note.superkernel.target'"}


def test_every_field_that_is_no_time_is_relied_on() -> None:
    """A field that is new has to be put on one side."""
    of_time = {"icache", "l2", "hbm", "rates", "dma", "vector", "dispatch", "sdma"}
    left = {p for p in all_fields() if p not in RELIED_ON and p.split(".")[0] not in of_time}
    assert not [p for p in left if not p.endswith(("_cycles", "_ns", "_mhz", "queue.depth_commands"))]
    assert {*RELIED_ON} <= {*all_fields()}


@pytest.mark.parametrize(
    ("inject", "message"),
    [
        (lambda note: note.replace(b"SuperKernel", b"SomebodyEls"), "not a note of this version"),
        (lambda note: note[:4] + b"\xff\xff\xff\x7f" + note[8:], "not a note of this version"),
        (lambda note: note.replace(b"groups", b"gruops"), "gruops"),
        (lambda note: note[:40] + b"\xff" + note[41:], "not a text"),
    ],
)
def test_a_note_that_cannot_be_read_is_told(
    program: Path, inject: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    data, note = program.read_bytes(), note_bytes(MINI)
    assert data.count(note) == 1
    path = tmp_path / "faulty.elf"
    path.write_bytes(data.replace(note, inject(note)))
    with pytest.raises(sk.FileFormatError, match=message):
        noted_target(path.read_bytes())
    result = run(str(path))
    assert result.returncode == 2
    assert message in result.stderr


def test_a_plain_program_runs_on_one_core(tmp_path: Path) -> None:
    path = tmp_path / "pass.elf"
    path.write_bytes(executable(PASSES))
    result = run(str(path), "--target", "mini")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("PASS: the program exited with success")


def test_unknown_targets_and_files_are_told(program: Path) -> None:
    assert run(str(program), "--target", "a9").returncode == 2
    assert run("/nowhere.elf", "--target", "mini").returncode == 2
