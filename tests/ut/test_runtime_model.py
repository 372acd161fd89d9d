"""The host's runtime under the C++ memory model: its own sources on the threads of csrc/tests/model/explorer.h."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
FLAGS = (
    "-std=c++20",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
    f"-I{CSRC}",
    f"-I{CSRC / 'include'}",
)
WALKS = 4000

# What small programs cover of all sites; their executions are few enough to be had for each site.
WEAKENED = (
    ("one_launch_fence", 0),
    ("parts_apart", 0),
    ("kernel_run", 0),
    ("two_callers", WALKS),
    ("steps_twice", WALKS),
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="the explorer's threads are written for x86-64",
)


def compiled(out: Path, *sources: str) -> Path:
    """The program of these sources of csrc/, with the explorer."""
    files = [str(CSRC / source) for source in ("tests/model/explorer.cpp", *sources)]
    seam = '-DSK_PLATFORM="tests/model/platform.h"'
    subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, seam, *files, "-o", str(out)], check=True)
    return out


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = ("tests/model/runtime.cpp", "runtime/memory.cpp", "runtime/hardware_counters.cpp")
    return compiled(tmp_path_factory.mktemp("model") / "runtime", *sources)


def output(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_explorer_finds_what_the_memory_model_allows_and_nothing_else(tmp_path: Path) -> None:
    text = output(compiled(tmp_path / "litmus", "tests/model/litmus.cpp"))
    assert text.count(" ok ") == 22


@pytest.mark.parametrize("seed", seeds(1))
def test_no_execution_of_the_runtime_goes_wrong(runtime: Path, seed: int) -> None:
    programs = dict(line.split() for line in output(runtime, "list").splitlines())
    assert list(programs.values()).count("all") >= 7
    for name, how in programs.items():
        if how == "all" and seed != 0:
            continue  # they are all there are
        if how == "all":
            assert "all there are" in output(runtime, "run", name)
        else:
            output(runtime, "run", name, str(WALKS), str(seed))


def test_every_ordering_of_the_runtime_is_needed(runtime: Path) -> None:
    """Made weaker one at a time: races, lost wake-ups and hangs show; so a fault of this kind would have been found."""
    missed: dict[str, set[str]] = {}
    for name, walks in WEAKENED:
        for line in output(runtime, "weaken", name, str(walks)).splitlines():
            site, _, what = line.partition(": ")
            missed.setdefault(site, set()).add(what)
    sites = {site for site in missed if not site.startswith("runtime.cpp")}
    assert any(site.endswith("fence") for site in sites)
    assert any("barrier" in site for site in sites)
    assert len(sites) >= 14
    assert not {site: what for site, what in missed.items() if what == {"not missed"}}
