"""The invariants of ARCHITECTURE.md that a machine can check: who imports whom, and where a library may appear."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("core", "scheduler", "sync", "codegen", "driver")
CORE = {"core", "ir", "ops", "registry", "target"}
ENTRANCES = {"transforms", "frontends", "builder", "reference"}  # into a Graph: core only, imported by the driver


def _modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder, prefix in (
        ("superkernel", "superkernel"),
        ("scheduler", "superkernel.scheduler"),
        ("sync", "superkernel.sync"),
        ("codegen", "superkernel.codegen"),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "superkernel" and parts[0] in ("scheduler", "sync", "codegen"):
                continue
            found[".".join((prefix, *parts)).removesuffix(".__init__")] = path
    return found


def _imports(path: Path) -> set[str]:
    """Modules that a file imports at run time (an `if TYPE_CHECKING` block does not count)."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _layer(module: str) -> str:
    parts = module.split(".")
    if len(parts) < 2:
        return "driver"
    if parts[1] in ("scheduler", "sync", "codegen"):
        return parts[1]
    if parts[1] in CORE:
        return "core"
    return "entrance" if parts[1] in ENTRANCES or parts[1].startswith("builder") else "driver"


def test_imports_point_downwards() -> None:
    allowed = {
        "core": {"core"},
        "entrance": {"core", "entrance"},
        "scheduler": {"core", "scheduler"},
        "sync": {"core", "scheduler", "sync"},
        "codegen": {"core", "scheduler", "sync", "codegen"},
        "driver": {"core", "entrance", "scheduler", "sync", "codegen", "driver"},
    }
    modules = _modules()
    wrong = [
        f"{module} ({_layer(module)}) imports {name} ({_layer(name)})"
        for module, path in modules.items()
        for name in _imports(path)
        if name in modules and name != "superkernel" and _layer(name) not in allowed[_layer(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_compilations_know_nothing_of_what_is_asked_of_them() -> None:
    face = ("superkernel.analysis", "superkernel.cli", "superkernel.runtime.kernel", "superkernel.api")
    wrong = [
        f"{module} imports {name}"
        for module, path in _modules().items()
        if module.startswith("superkernel.compilation")
        for name in _imports(path)
        if name.startswith(face)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("library", "layers"),
    [("llvmlite", {"codegen"}), ("onnx", {"entrance"}), ("rich", {"driver"})],
)
def test_libraries_stay_where_they_belong(library: str, layers: set[str]) -> None:
    wrong = [
        module
        for module, path in _modules().items()
        if any(name.split(".")[0] == library for name in _imports(path)) and _layer(module) not in layers
    ]
    assert not wrong, wrong


PLANNING = re.compile(
    r"superkernel\.(sync\.(aicore\.)?(planner|hazards|forms|clocks|launching|harts|events|lacking|notes)"
    r"|scheduler\.(aicore\.)?(place|group|memory|cost|streams|launches))\b"
)


@pytest.mark.parametrize("verifier", ["superkernel.sync.verify", "superkernel.sync.aicore.verify"])
def test_the_verifier_knows_nothing_of_the_planner(verifier: str) -> None:
    """Neither it nor a module of this layer that it imports, or that those import."""
    modules = _modules()
    reached, left = {verifier}, [verifier]
    while left:
        found = {n for n in _imports(modules[left.pop()]) if n in modules and n.startswith("superkernel.sync.")}
        left += found - reached
        reached |= found
    assert not [m for m in reached if PLANNING.match(m)]
    assert not [(m, n) for m in reached for n in _imports(modules[m]) if PLANNING.match(n)]


def test_the_reference_never_calls_a_kernel() -> None:
    modules = _modules()
    for module, path in modules.items():
        if module == "superkernel.reference" or module.startswith("superkernel.ops."):
            assert not [n for n in _imports(path) if n.startswith(("superkernel.codegen", "superkernel._core"))], module


def test_pybind11_in_bindings_only() -> None:
    sources = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".cpp", ".h", ".hpp", ".inl")]
    users = {p.relative_to(ROOT / "csrc") for p in sources if "pybind11" in p.read_text()}
    assert users == {p.relative_to(ROOT / "csrc") for p in (ROOT / "csrc").glob("bindings*")}


def test_environment_is_read_in_two_places() -> None:
    readers = {m for m, p in _modules().items() if re.search(r"os\.environ|getenv", p.read_text())}
    assert readers <= {"superkernel.core.settings", "superkernel.codegen.host.features"}


def test_import_is_light() -> None:
    """`import superkernel` loads neither LLVM nor NumPy-heavy parts nor ONNX."""
    code = "import sys, superkernel; print([m for m in ('llvmlite', 'onnx', 'networkx', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_installs_a_top_level_sync() -> None:
    for name in ("scheduler", "sync", "codegen"):
        assert (ROOT / "superkernel" / name).is_symlink()
        assert (ROOT / "superkernel" / name).resolve() == ROOT / name
