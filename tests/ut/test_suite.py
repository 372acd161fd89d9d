"""The tests themselves: what they share lies in modules that hold no tests, and every module has one name."""

from __future__ import annotations

import ast
import os
from collections import Counter
from pathlib import Path

import pytest
import soak
from seeds import VARIABLE, run_seed, seeds

TESTS = Path(__file__).resolve().parents[1]
MODULES = sorted(TESTS.rglob("*.py"))


def imported(text: str) -> set[str]:
    """Every module that a source names in an import, at any depth, programs in its strings included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                found |= imported(node.value)
            except SyntaxError:
                continue  # prose
    return found


def misplaced(text: str) -> list[str]:
    """Imports that no module of the tests may have: of a test module, or of a helper under a second name."""
    return sorted(n for n in imported(text) if n.split(".")[0] in ("tests", "conftest") or n.startswith("test_"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_module_imports_from_a_test_module(path: Path) -> None:
    assert not misplaced(path.read_text("utf-8"))


@pytest.mark.parametrize("module", ["test_api", "tests.models"])
@pytest.mark.parametrize("text", ["from @ import x", "def f():\n    import @", "CODE = 'import sys\\nfrom @ import x'"])
def test_such_an_import_is_found(text: str, module: str) -> None:
    assert misplaced(text.replace("@", module))
    assert not misplaced(text.replace("@", "models"))


def test_module_names_are_unique() -> None:
    """Folders of tests are no packages: two modules of one name would shadow each other."""
    benchmarks = TESTS.parent / "bench"
    loose = [path for path in MODULES if not (path.parent / "__init__.py").exists()]
    names = Counter(path.name for path in (*loose, *benchmarks.glob("*.py")))
    assert {"conftest.py", "run.py"} <= set(names)
    assert not [name for name, count in names.items() if count > 1]


def test_seeds_are_past_ones_fixed_ones_and_the_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "5")
    first = seeds(3, new=2, past=(77,))
    assert first[:4] == [77, 0, 1, 2]
    assert len(first) == 6
    assert first == seeds(3, new=2, past=(77,))
    monkeypatch.setenv(VARIABLE, "6")
    assert first != seeds(3, new=2, past=(77,))
    monkeypatch.delenv(VARIABLE)
    drawn = run_seed()
    assert drawn == run_seed() == int(os.environ[VARIABLE])


def test_what_is_drawn_is_in_order_and_other_runs_draw_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, found = ["a", "b", "c", "d"], set()
    monkeypatch.setattr(soak, "enabled", False)
    for seed in range(40):
        monkeypatch.setenv(VARIABLE, str(seed))
        drawn = soak.drawn(cases, 2)
        assert drawn == sorted(drawn) == soak.drawn(cases, 2)
        assert len(set(drawn)) == 2
        found |= {tuple(drawn)}
    assert len(found) == 6
    monkeypatch.setattr(soak, "enabled", True)
    assert soak.drawn(cases, 2) == cases


def test_one_in_so_many_is_chosen_and_other_runs_choose_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names, found = [f"case {i}" for i in range(200)], []
    monkeypatch.setattr(soak, "enabled", False)
    for seed in range(30):
        monkeypatch.setenv(VARIABLE, str(seed))
        found.append({name for name in names if soak.chosen(name, 8)})
        assert 5 <= len(found[-1]) <= 50
        assert found[-1] == {name for name in names if soak.chosen(name, 8)}
    assert len(set().union(*found)) > 180
    monkeypatch.setattr(soak, "enabled", True)
    assert all(soak.chosen(name, 8) for name in names)


def test_what_is_not_quick_is_there() -> None:
    """A line about a file or function that is gone would hide nothing, and mislead."""
    for line in (TESTS / "not_quick.txt").read_text("utf-8").splitlines():
        name, _, function = line.split("#")[0].strip().partition("::")
        assert not name or (TESTS / name).is_file(), line
        assert not function or f"def {function}(" in (TESTS / name).read_text("utf-8"), line
