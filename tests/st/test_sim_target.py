"""`superkernel sim run --target`: accelerator programs from files, and plain programs on one of its cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import pytest
from rv64_link import executable

import superkernel as sk

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
    assert len(data["cores"]) == 7


def test_another_target_is_refused_or_stopped(program: Path) -> None:
    """A program for 6 cores on a device of 72: the others sleep, and the kernel's flags wait for cores that it has
    not."""
    result = run(str(program), "--target", "a3")
    assert result.returncode in (2, 15), result.stdout
    assert "deadlock" in result.stdout + result.stderr or "FAIL" in result.stdout or "error" in result.stderr


def test_a_plain_program_runs_on_one_core(tmp_path: Path) -> None:
    path = tmp_path / "pass.elf"
    path.write_bytes(executable(PASSES))
    result = run(str(path), "--target", "mini")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("PASS: the program exited with success")


def test_unknown_targets_and_files_are_told(program: Path) -> None:
    assert run(str(program), "--target", "a9").returncode == 2
    assert run("/nowhere.elf", "--target", "mini").returncode == 2
