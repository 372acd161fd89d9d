"""Where sources ask which kind of target, tiling or compilation they have before them.

Only the rooms of a kind may: everybody else asks the object itself, or its backend. A test for the base class of all
kinds (is this a target at all?) tells no kinds apart and is nobody's business.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("superkernel", "scheduler", "sync", "codegen")
BASES = ("Target", "Tiling", "CostedTiling", "Compilation", "Kernel", "Executable", "Backend", "Planner")
"""Classes whose subclasses belong to kinds of targets."""
BACKENDS = tuple(f"superkernel/backends/{name}/" for name in ("host", "microcontroller", "aicore"))
CODE = tuple(f"codegen/{name}/" for name in ("host", "microcontroller", "aicore"))
ROOMS = (*BACKENDS, *CODE, "scheduler/families/", "scheduler/aicore/", "sync/aicore/")
"""Where a kind of target is at home: with it alone, nothing else can be."""


def read_sources(root: Path) -> dict[str, ast.Module]:
    """All sources by path."""
    found = [p for folder in SOURCES for p in sorted((root / folder).rglob("*.py"))]
    return {p.relative_to(root).as_posix(): ast.parse(p.read_text()) for p in found}


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """What tests ask about, of all that a walk over a source meets: one walk for all questions."""
    asked_about = (ast.ClassDef, ast.arguments, ast.Call, ast.Compare, ast.MatchClass)
    return tuple(node for node in ast.walk(tree) if isinstance(node, asked_about))


def kinds(sources: Mapping[str, ast.Module]) -> frozenset[str]:
    """Names of all classes that belong to one kind of target: those of its backend, subclasses of `BASES`, and of
    these. Names that several classes share count where one of them belongs to a kind."""
    classes = [(p, node) for p, tree in sources.items() for node in nodes(tree) if isinstance(node, ast.ClassDef)]
    found = {node.name for path, node in classes if path.startswith(BACKENDS)}
    while more := {n.name for _, n in classes if {_name(b) for b in n.bases} & (found | {*BASES})} - found:
        found |= more
    return frozenset(found - {*BASES})


def asked(sources: Mapping[str, ast.Module]) -> list[str]:
    """path:line and name of every test for a kind outside the rooms."""
    names = kinds(sources)
    return [
        f"{path}:{node.lineno} {name}"
        for path, tree in sources.items()
        if not path.startswith(ROOMS)
        for node, name in _tests(tree)
        if name in names
    ]


def unknown_targets(sources: Mapping[str, ast.Module]) -> list[str]:
    """path:line of every parameter `target` whose annotation says nothing."""
    return [
        f"{path}:{each.lineno}"
        for path, tree in sources.items()
        for node in nodes(tree)
        if isinstance(node, ast.arguments)
        for each in (*node.posonlyargs, *node.args, *node.kwonlyargs)
        if each.arg == "target" and each.annotation is not None and _name(each.annotation) in ("Any", "object")
    ]


def _tests(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.pattern, str]]:
    """Names of classes that are tested for: in `isinstance` and `issubclass`, behind `type(x) is`, by `case`."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and _name(node.func) in ("isinstance", "issubclass") and len(node.args) > 1:
            yield from ((node, _name(each)) for each in ast.walk(node.args[1]) if isinstance(each, ast.expr))
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Call) and _name(node.left.func) == "type":
            yield from ((node, _name(each)) for each in node.comparators)
        elif isinstance(node, ast.MatchClass):
            yield node, _name(node.cls)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
