"""The invariants of ARCHITECTURE.md that a machine can check: who imports whom, and where a library may appear."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from code_map import DOCUMENT, ROOT, Imports, Row, between_rows, circles, drawn, faults, read_imports, read_rows


@cache
def sources() -> Imports:
    return read_imports(ROOT)


@cache
def code_map() -> list[Row]:
    return read_rows(DOCUMENT.read_text())


def test_sources_keep_to_the_code_map() -> None:
    found = faults(sources(), code_map())
    assert not found, "\n".join(found)


def test_no_file_imports_another_in_a_circle() -> None:
    found = circles(sources())
    assert not found, "\n".join(map(str, found))


def test_no_row_imports_another_in_a_circle() -> None:
    assert not circles(between_rows(sources(), code_map()))


def test_the_picture_shows_the_sources() -> None:
    text = DOCUMENT.read_text()
    assert text == drawn(text, sources()), "draw it anew: python tests/code_map.py"


def planted(root: Path, files: dict[str, str]) -> Imports:
    for name, text in files.items():
        path = root / "superkernel" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_imports(root)


@pytest.mark.parametrize(
    "back",
    [
        "from superkernel.low.a import x",
        "import superkernel.low.a",
        "from superkernel.low import a",
        "def f():\n    from superkernel.low.a import x",
        "if TYPE_CHECKING:\n    from superkernel.low.a import x",
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, back: str) -> None:
    away = "from superkernel.low.b import y"
    imports = planted(
        tmp_path, {"low/__init__": "", "low/a": away, "low/b": "from superkernel.high import z", "high": back}
    )
    assert circles(imports) == [["high", "low/a", "low/b"]]
    assert circles(between_rows(imports, [Row(("low",), ()), Row(("high",), ())])) == [["high", "low"]]
    assert not circles(planted(tmp_path, {"high": "from superkernel import _core"}))


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (Row(("high",), ("low", "rich")), None),
        (Row(("hi*",), ("low/a", "rich")), None),
        (Row(("high",), ("rich",)), "high imports low/a, which its row `high` does not allow"),
        (Row(("high",), ("low",)), "high imports rich, which its row `high` does not allow"),
        (Row(("high", "higher"), ("low", "rich")), "`higher` names nothing"),
        (Row(("high",), ("low", "rich", "llvmlite")), "row `high` allows `llvmlite`, which it never imports"),
        (Row(("low/a",), ()), "no row of the code map names high"),
    ],
)
def test_a_planted_wrong_direction_is_found(tmp_path: Path, row: Row, fault: str | None) -> None:
    imports = planted(
        tmp_path, {"low/a": "import json, numpy.linalg", "high": "import rich\nfrom superkernel.low.a import x"}
    )
    found = faults(imports, [Row(("low",), ()), row])
    assert fault in found if fault else not found


PLANNING = re.compile(
    "sync/(aicore/)?(planner|hazards|launching|harts|events|unsatisfied|notes)$"
    "|scheduler/(aicore/)?(place|group|memory|cost|streams|launches)$"
)


@pytest.mark.parametrize("verifier", ["sync/verify", "sync/aicore/verify"])
def test_the_verifier_knows_nothing_of_the_planner(verifier: str) -> None:
    """Neither it nor anything that it imports, or that those import."""
    reached, left = {verifier}, [verifier]
    while left:
        found = sources().get(left.pop(), frozenset()) - reached
        left += found
        reached |= found
    assert not [m for m in reached if PLANNING.match(m)]
    assert [m for m in sources() if PLANNING.match(m)]


def test_the_reference_never_calls_a_kernel() -> None:
    for name, imports in sources().items():
        if name.startswith(("reference/", "ops/")):
            assert not [n for n in imports if n.startswith(("codegen/", "scheduler/", "_core"))], name


def test_environment_is_read_in_two_places() -> None:
    users = [n for n, imports in sources().items() if "os" in imports]
    readers = {n for n in users if re.search(r"os\.environ|getenv", (ROOT / "superkernel" / f"{n}.py").read_text())}
    assert readers == {"core/settings", "codegen/host/features"}


def test_import_is_light() -> None:
    """`import superkernel` loads neither LLVM nor NumPy-heavy parts nor ONNX."""
    code = "import sys, superkernel; print([m for m in ('llvmlite', 'onnx', 'networkx', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_installs_a_top_level_sync() -> None:
    for name in ("scheduler", "sync", "codegen"):
        assert (ROOT / "superkernel" / name).is_symlink()
        assert (ROOT / "superkernel" / name).resolve() == ROOT / name
