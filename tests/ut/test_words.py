"""Names and texts keep to the words of docs/glossary.md: no retired word, and each word of its own told once."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = "docs/glossary.md"
TEXTS = (".py", ".md", ".cpp", ".h", ".toml", ".txt", ".yml", ".html")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")  # of snake_case and CamelCase


def _rows(heading: str) -> list[tuple[str, str]]:
    """The two columns of the table behind a heading."""
    _, _, text = (ROOT / GLOSSARY).read_text().partition(f"# {heading}\n")
    text = re.split(r"^#", text, flags=re.M)[0]
    cells = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")]
    return [(left.strip(), right.strip()) for left, right in cells[1:]]


@cache
def _texts() -> dict[str, str]:
    """All text files that the project keeps, without the glossary and what it forbids."""
    kept = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    names = [n for n in kept.stdout.decode().split("\0") if n.endswith(TEXTS) and n != GLOSSARY]
    return {name: path.read_text() for name in names if (path := ROOT / name).is_file()}


def _parts(name: str) -> str:
    """A name's words in lower case, one blank around each: `PackTaps_2` is ` pack taps 2 `."""
    return f" {' '.join(_PARTS.findall(name)).lower()} "


def _bound(tree: ast.AST) -> Iterator[str]:
    """All names that a module binds."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def retired_names(name: str, text: str, retired: list[str]) -> list[str]:
    """Names with retired words in them that a Python file binds, its own among them."""
    likely = [word for word in retired if re.search(word.replace("_", "_?"), f"{name} {text}", re.I)]
    if not likely:
        return []
    bound = [Path(name).stem, *_bound(ast.parse(text))]
    return sorted({f"{name}: {b} ({w})" for b in bound for w in likely if _parts(w) in _parts(b)})


def retired_phrases(name: str, text: str, retired: list[str]) -> list[str]:
    """Retired phrases in a text, over ends of lines and the marks of comments too."""
    if not any(phrase.split()[0].lower() in text.lower() for phrase in retired):
        return []
    plain = re.sub(r"\s+(?:(?:#|//|\*)\s+)?", " ", text)
    return [f"{name}: {p}" for p in retired if re.search(rf"\b{re.escape(p)}\b", plain, re.I)]


def _retired() -> tuple[list[str], list[str]]:
    words = [word for word, _ in _rows("Retired words")]
    return [w.strip("`") for w in words if w.startswith("`")], [w for w in words if not w.startswith("`")]


def test_names_are_free_of_retired_words() -> None:
    names, _ = _retired()
    found = [f for name, text in _texts().items() if name.endswith(".py") for f in retired_names(name, text, names)]
    assert not found, "\n".join(found)


def test_texts_are_free_of_retired_phrases() -> None:
    _, phrases = _retired()
    found = [f for name, text in _texts().items() for f in retired_phrases(name, text, phrases)]
    assert not found, "\n".join(found)


def test_retired_words_are_found_wherever_they_stand() -> None:
    source = "class HotPotato:\n    cold: int\ndef f(hot_potatoes, a): a.b_hot_potato = 1\nimport hot_potato as z\n"
    assert retired_names("x/hot_potato.py", source, ["hot_potato", "cold", "f_g"]) == [
        "x/hot_potato.py: HotPotato (hot_potato)",
        "x/hot_potato.py: b_hot_potato (hot_potato)",
        "x/hot_potato.py: cold (cold)",
        "x/hot_potato.py: hot_potato (hot_potato)",
    ]
    assert retired_phrases("x.py", "# it is a Hot\n    # potato again", ["hot potato", "potat"]) == ["x.py: hot potato"]


def test_the_glossary_is_in_order_and_says_something_of_each_word() -> None:
    words = _rows("Glossary")
    assert [w.casefold() for w, _ in words] == sorted({w.casefold() for w, _ in words})
    assert all(len(meaning.split()) >= 5 and meaning.endswith(".") for _, meaning in words)
    retired = _rows("Retired words")
    assert len(dict(retired)) == len(retired)
    assert all(instead for _, instead in retired)
    assert not {w for w, _ in words} & {w.strip("`") for w, _ in retired}


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_prose_fits_120_columns(name: str) -> None:
    """A row of a table is one line whatever its length."""
    lines = (ROOT / name).read_text().splitlines()
    assert [n for n, line in enumerate(lines, 1) if len(line) > 120 and not line.startswith("|")] == []
