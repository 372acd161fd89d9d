"""Who may import whom, as the code map of ARCHITECTURE.md says, and who does, as the sources say.

`python tests/code_map.py` draws the picture of the packages in ARCHITECTURE.md anew.

Every import counts: at the top, inside functions, under `if TYPE_CHECKING`; the includes of C++ too. What is loaded by
a computed name with `import_module` (kernel families, emitters, names of the public interface) does not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "ARCHITECTURE.md"
ANYWHERE = {"numpy", "ml_dtypes", *sys.stdlib_module_names}
MARK = "<!-- drawn by tests/code_map.py -->\n"

Imports = dict[str, frozenset[str]]
"""What each file imports: files by path below `superkernel/` without suffix (`csrc/` with it), libraries by name."""


@dataclass(frozen=True)
class Row:
    """One row of the code map: some files, and what they may import besides one another."""

    names: tuple[str, ...]
    allowed: tuple[str, ...]


def read_imports(root: Path) -> Imports:
    """The imports of all sources below `root/superkernel` (through its links) and `root/csrc`."""
    package = root / "superkernel"
    files = {p.relative_to(package).with_suffix("").as_posix(): p for p in _below(package) if p.suffix == ".py"}
    imports = {name: frozenset(_of_python(path.read_text(), files.keys())) for name, path in files.items()}
    sources = [p for p in _below(root / "csrc") if p.suffix in (".cpp", ".h", ".inl", ".inc")]
    return imports | {p.relative_to(root).as_posix(): frozenset(_of_cpp(p.read_text())) for p in sources}


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield from _below(path) if path.is_dir() else [path]


def _of_python(text: str, files: Iterable[str]) -> Iterator[str]:
    for node in _statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
        else:
            continue
        for module, name in names:
            first, *rest = module.split(".")
            if first != "superkernel":
                yield first  # a library; nothing for a relative import, which no row allows
            elif [*rest, name][0] == "_core":
                yield "_core"  # the extension: a leaf
            else:
                ends = ([name], [name, "__init__"], [], ["__init__"])
                yield next(p for p in ("/".join([*rest, *end]) for end in ends) if p in files)


def _statements(body: Iterable[Any]) -> Iterator[Any]:
    """Statements and what is nested in them; expressions, which import nothing, are not walked."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, part, ()))


def _of_cpp(text: str) -> Iterator[str]:
    for kind, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)', text, re.MULTILINE):
        if kind == '"':
            yield f"csrc/{name}"
        elif name.startswith("pybind11"):
            yield "pybind11"


def read_rows(text: str) -> list[Row]:
    """The rows of the code map in ARCHITECTURE.md: names of its first column, and of its last."""
    table = text.split("\n## Code map\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return [Row(tuple(re.findall("`([^`]+)`", c[0])), tuple(re.findall("`([^`]+)`", c[-1]))) for c in cells]


def _covers(name: str, file: str) -> bool:
    return file == name or file.startswith(name.removesuffix("*") if name.endswith("*") else name + "/")


def row_of(file: str, rows: list[Row]) -> Row | None:
    """The row that names a file, its folder, or how its path starts (`verify*`): the longest such name decides."""
    found = [(len(name), row) for row in rows for name in row.names if _covers(name, file)]
    return max(found, key=lambda item: item[0])[1] if found else None


def faults(imports: Imports, rows: list[Row]) -> list[str]:
    """Files that no row names, imports that no row allows, and rows that name or allow what does not exist."""
    homes = {file: row_of(file, rows) for file in imports}
    found = [f"no row of the code map names {file}" for file, row in homes.items() if row is None]
    used: set[tuple[Row, str]] = set()
    for file, row in homes.items():
        if row is None:
            continue
        for other in sorted(imports[file] - ANYWHERE):
            if row is homes.get(other):
                continue
            names = [name for name in row.allowed if _covers(name, other)]
            used |= {(row, name) for name in names}
            if not names:
                found.append(f"{file} imports {other}, which its row `{row.names[0]}` does not allow")
    for row in rows:
        found += [
            f"`{n}` names nothing" for n in row.names if not any(_covers(n, f) for f, r in homes.items() if r is row)
        ]
        found += [
            f"row `{row.names[0]}` allows `{n}`, which it never imports" for n in row.allowed if (row, n) not in used
        ]
    return found


def circles(imports: Imports) -> list[list[str]]:
    """Groups of files that import one another, directly or through others."""
    graph = nx.DiGraph((file, other) for file, others in imports.items() for other in others if other != file)
    return sorted(sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1)


def between_rows(imports: Imports, rows: list[Row]) -> Imports:
    """The imports of files as imports of rows, by the first name of each row."""
    homes = {file: row.names[0] for file in imports if (row := row_of(file, rows))}
    found: dict[str, set[str]] = {row.names[0]: set() for row in rows}
    for file, home in homes.items():
        found[home] |= {homes[other] for other in imports[file] if homes.get(other, home) != home}
    return {name: frozenset(others) for name, others in found.items()}


def picture(imports: Imports, rows: list[Row]) -> str:
    """The rows as a mermaid graph; an arrow that a chain of others implies is left out."""
    graph = nx.DiGraph((name, other) for name, others in between_rows(imports, rows).items() for other in others)
    arrows = sorted(nx.transitive_reduction(graph).edges)
    return "\n".join(("```mermaid", "graph TD", *(f"    {a} --> {b}" for a, b in arrows), "```", ""))


def drawn(text: str, imports: Imports) -> str:
    """The text of ARCHITECTURE.md with its picture drawn anew."""
    before, _, after = text.split(MARK)
    return MARK.join((before, picture(imports, read_rows(text)), after))


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text(), read_imports(ROOT)))
