"""A C++ core that is older than its sources is noticed where it is loaded."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from superkernel import _core
from superkernel.core.version import StaleCoreWarning, check_core, core_digest

ROOT = Path(__file__).parents[2]


def checkout(root: Path) -> Path:
    """A small one, with sources of tests that are not the core's; its core, built from it."""
    for name in ("sim/a.cpp", "sim/a.h", "b.cpp", "tests/t.cpp", "qemu/q.cpp", "sim/notes.txt"):
        path = root / "csrc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "CMakeLists.txt").touch()
    core = root / "core.so"
    core.touch()
    dated(root, core, -10)
    return core


def dated(root: Path, core: Path, seconds: float) -> None:
    """Gives everything below `root` a time stamp that lies so far behind the core's, or ahead of it."""
    when = core.stat().st_mtime + seconds
    for place, _, files in os.walk(root):
        for path in (Path(place), *(Path(place, name) for name in files)):
            if path != core:
                os.utime(path, (when, when))


def is_stale(root: Path, core: Path, digest: str) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_core(str(core), digest, str(root))
    assert all(w.category is StaleCoreWarning and "make build" in str(w.message) for w in caught)
    return bool(caught)


def test_the_build_and_python_have_one_digest() -> None:
    assert core_digest(str(ROOT)) == _core.SOURCES_DIGEST, "run `make build`"


def test_a_core_of_its_sources_is_fine(tmp_path: Path) -> None:
    core = checkout(tmp_path)
    digest = core_digest(str(tmp_path))
    assert not is_stale(tmp_path, core, digest)
    dated(tmp_path, core, 10)  # touched, and the same
    assert not is_stale(tmp_path, core, digest)


@pytest.mark.parametrize("name", ["sim/a.cpp", "sim/a.h", "sim/new.h", "new/c.cpp"])
def test_a_source_that_changed_or_came_is_noticed(name: str, tmp_path: Path) -> None:
    core = checkout(tmp_path)
    digest = core_digest(str(tmp_path))
    path = tmp_path / "csrc" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("Another")
    os.utime(path, (core.stat().st_mtime + 5,) * 2)
    assert is_stale(tmp_path, core, digest)


def test_a_source_that_went_is_noticed(tmp_path: Path) -> None:
    core = checkout(tmp_path)
    digest = core_digest(str(tmp_path))
    (tmp_path / "csrc/sim/a.h").unlink()
    os.utime(tmp_path / "csrc/sim", (core.stat().st_mtime + 5,) * 2)
    assert is_stale(tmp_path, core, digest)


@pytest.mark.parametrize("name", ["tests/t.cpp", "qemu/q.cpp", "sim/notes.txt"])
def test_what_the_core_is_not_made_of_does_not_count(name: str, tmp_path: Path) -> None:
    core = checkout(tmp_path)
    digest = core_digest(str(tmp_path))
    (tmp_path / "csrc" / name).write_text("Another")
    dated(tmp_path, core, 10)
    assert not is_stale(tmp_path, core, digest)


def test_without_sources_nothing_is_said(tmp_path: Path) -> None:
    """As where a wheel was installed."""
    core = checkout(tmp_path)
    dated(tmp_path, core, 10)
    (tmp_path / "CMakeLists.txt").unlink()
    assert not is_stale(tmp_path, core, "")
    assert not is_stale(tmp_path / "none", core, "")
