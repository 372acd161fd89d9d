"""Mutants of the checkers' own code: each differs from the checker in one place, and tests notice."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest


def test_each_mutant_is_another_program_that_parses() -> None:
    original = ast.unparse(ast.parse((mutants.ROOT / "sync/verify_tasks.py").read_text()))
    made = list(mutants.mutants("sync/verify_tasks.py"))
    assert len({mutant.source for mutant in made}) > 50
    assert all(mutant.source != original for mutant in made)
    assert any(mutant.what == "a.start >= b.stop -> a.start > b.stop" for mutant in made)


@pytest.mark.parametrize("file", mutants.CHECKERS)
def test_checkers_and_the_tests_beside_them_are_there(file: str) -> None:
    assert (mutants.ROOT / file).is_file()
    assert all((mutants.ROOT / test).is_file() for test in mutants.CHECKERS[file])


def test_a_mutant_that_tests_pass_is_alive_and_one_that_they_fail_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checker.py").write_text("LIMIT = 3\n")
    (tmp_path / "test_checker.py").write_text("def test_it():\n    import checker\n    assert checker.LIMIT < 5\n")
    monkeypatch.setattr(mutants, "CHECKERS", {"checker.py": ("test_checker.py",)})
    for value, alive in ((4, True), (5, False)):
        mutant = mutants.Mutant("checker.py", 1, "LIMIT = 3", f"3 -> {value}", f"LIMIT = {value}\n")
        assert mutants.survives(mutant, tmp_path) is alive
    assert (tmp_path / "checker.py").read_text() == "LIMIT = 3\n"
