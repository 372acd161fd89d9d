"""What docs/reliability.md says is checked has a test that breaks it: its table names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = 11  # T1 to T11
TEST = re.compile(r"`(test_\w+)?(?:\[(\w+)(?:\.\.\.)?\])?`")
FILE = re.compile(r"`(tests/\w+/\w+\.py)`")


def rows(page: str) -> list[list[str]]:
    """Of the table "Checked or trusted": number, assumption, host, accelerator."""
    table = page.split("\n## Checked or trusted\n")[1].split("\n## ")[0]
    return [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| T")]


def wrong_names(row: list[str], sources: dict[str, str]) -> list[str]:
    """Files and tests that a row names and that are not there: functions in the files that the row names, or that its
    column names in the first place, faults that are parameters as functions there. `sources`: by file."""
    text = " ".join(row)
    files = FILE.findall(text)
    wrong = [file for file in files if file not in sources]
    here = "\n".join(sources.get(file, "") for file in files)
    everywhere = "\n".join(sources.values())
    for test, fault in TEST.findall(text):
        source = here if f"def {test}(" in here else everywhere
        if test and f"def {test}(" not in source:
            wrong.append(test)
        if fault and f"def {fault}(" not in source:
            wrong.append(f"{test}[{fault}]")
    return wrong


def test_each_row_names_tests_that_are_there() -> None:
    found = rows((ROOT / "docs" / "reliability.md").read_text())
    assert [row[0].strip() for row in found] == [f"T{n}" for n in range(1, ROWS + 1)]
    sources = {p.relative_to(ROOT).as_posix(): p.read_text() for p in (ROOT / "tests").rglob("*.py")}
    for row in found:
        assert len(row) == 4, row[0]
        assert wrong_names(row, sources) == [], row[0]
        for cell in row[2:]:
            named = any(test for test, _ in TEST.findall(cell)) or bool(FILE.findall(cell))
            said = re.search(r"\btrusted\b|there are none|plans are not kept|^as T6", cell)
            assert named or said, f"{row[0]}: neither a test nor why there is none: {cell}"
            assert named or "checked" not in cell, f"{row[0]}: checked by nothing: {cell}"


def test_names_that_are_not_there_are_found() -> None:
    sources = {"tests/ut/test_a.py": "def fault() -> None:\n    ...\ndef test_one(fault: int) -> None:\n    ...\n"}
    right = ["T1", "what", "checked: `test_one[fault...]`, `[fault]` in `tests/ut/test_a.py`", "trusted"]
    assert wrong_names(right, sources) == []
    wrong = ["T1", "what", "`test_two`, `test_one[other]`, `[gone]` in `tests/ut/test_b.py`", "`test_one`"]
    assert wrong_names(wrong, sources) == ["tests/ut/test_b.py", "test_two", "test_one[other]", "[gone]"]


def test_the_table_is_read() -> None:
    page = "\n## Checked or trusted\n\n| | a | b | c |\n|---|---|---|---|\n| T1 | x | y | z |\n\n## More\n| T2 | n |\n"
    assert [[cell.strip() for cell in row] for row in rows(page)] == [["T1", "x", "y", "z"]]
