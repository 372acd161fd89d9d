"""Every public name says what it is for, and no two public classes share a name.

Public is what has no leading underscore: classes and functions of modules, methods and properties of public classes.
Not asked: overloads, setters, attributes of a protocol (properties without a body), methods that a base class or a
protocol of the project says, and lowerings of frontends, whose decorator names the foreign operators that they lower.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TWINS = (("scheduler/families/", "scheduler/families/aicore/"), ("codegen/host/", "codegen/aicore/"))
SAID_ELSEWHERE = {"overload", "setter", "lowers", "lowers_complex"}  # decorators


@cache
def _modules() -> dict[str, ast.Module]:
    folders = ("superkernel", "scheduler", "sync", "codegen")
    paths = sorted(p for f in folders for p in (ROOT / f).rglob("*.py") if not p.parent.is_symlink())
    linked = ("superkernel/scheduler/", "superkernel/sync/", "superkernel/codegen/")
    names = {p.relative_to(ROOT).as_posix(): p for p in paths}
    return {name: ast.parse(path.read_text()) for name, path in names.items() if not name.startswith(linked)}


def _name(node: ast.expr) -> str:
    """The last name of what a decorator or a base is written as."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_stub(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Whether a body is `...` alone."""
    first = node.body[0]
    return len(node.body) == 1 and isinstance(first, ast.Expr) and ast.unparse(first) == "..."


class Classes:
    """Bases and documented methods of all classes, by name."""

    def __init__(self, modules: dict[str, ast.Module]) -> None:
        self.bases: dict[str, set[str]] = defaultdict(set)
        self.methods: dict[str, set[str]] = defaultdict(set)
        self.documented: dict[str, set[str]] = defaultdict(set)
        self.protocols: set[str] = set()
        for tree in modules.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
                    self.bases[node.name] |= {_name(b) for b in node.bases}
                    self.methods[node.name] |= {m.name for m in methods}
                    self.documented[node.name] |= {m.name for m in methods if ast.get_docstring(m)}
        self.protocols = {c for c, bases in self.bases.items() if "Protocol" in bases and self.methods[c]}

    def says(self, owner: str, method: str) -> bool:
        """Whether a base of a class, or a protocol that it has all methods of, documents a method."""
        seen, todo = {owner}, [*self.bases[owner]]
        todo += [p for p in self.protocols if self.methods[p] <= self.methods[owner]]
        while todo:
            base = todo.pop()
            if base in seen:
                continue
            seen.add(base)
            if method in self.documented[base]:
                return True
            todo += self.bases.get(base, ())
        return False


def undocumented(modules: dict[str, ast.Module]) -> Iterator[str]:
    """Public names without a docstring, as file: name."""
    classes = Classes(modules)

    def public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
        for node in body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
                continue
            decorators = {_name(d) for d in node.decorator_list}
            if SAID_ELSEWHERE & decorators or ("property" in decorators and _is_stub(node)):
                continue
            yield node

    for file, tree in modules.items():
        if tree.body and not ast.get_docstring(tree):
            yield f"{file}: module"
        for node in public(tree.body):
            if not ast.get_docstring(node):
                yield f"{file}: {node.name}"
            for method in public(node.body) if isinstance(node, ast.ClassDef) else ():
                if not ast.get_docstring(method) and not classes.says(node.name, method.name):
                    yield f"{file}: {node.name}.{method.name}"


def shared_names(modules: dict[str, ast.Module]) -> Iterator[str]:
    """Names of several public classes. The host's and the accelerator's half of one thing may share theirs."""
    found: dict[str, list[str]] = defaultdict(list)
    for file, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(file)
    for name, files in found.items():
        kinds = sorted(files, key=lambda f: "aicore" in f)
        twins = len(kinds) == 2 and any(
            kinds[0].startswith(host) and "aicore" not in kinds[0] and kinds[1].startswith(aicore)
            for host, aicore in TWINS
        )
        if len(files) > 1 and not twins:
            yield f"{name}: {', '.join(files)}"


def test_every_public_name_has_a_docstring() -> None:
    found = list(undocumented(_modules()))
    assert not found, "\n".join(found)


def test_no_two_public_classes_share_a_name() -> None:
    found = list(shared_names(_modules()))
    assert not found, "\n".join(found)


def test_what_says_nothing_is_found() -> None:
    source = (
        "'''M.'''\nclass P(Protocol):\n '''P.'''\n def apply(self): '''A.'''\n"
        "class Q:\n def apply(self): ...\n def other(self): ...\n@lowers('Abs')\ndef f(): ...\ndef _g(): ...\n"
    )
    modules = {"a.py": ast.parse(source), "b.py": ast.parse("class Q(P):\n '''Q.'''\n def apply(self): ...\n")}
    assert list(undocumented(modules)) == ["a.py: Q", "a.py: Q.other", "b.py: module"]
    assert list(shared_names(modules)) == ["Q: a.py, b.py"]
    both = ["scheduler/families/x.py", "scheduler/families/aicore/y.py"]
    assert list(shared_names({file: ast.parse("class Q: ...") for file in both})) == []
