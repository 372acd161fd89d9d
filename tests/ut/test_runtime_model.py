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

# What small programs cover of all sites; their executions are few enough to be had for each site. The quickest first:
# where one shows what a site is for, those behind it are not asked again.
WEAKENED = (
    ("one_launch_fence", 0),
    ("parts_apart", WALKS),
    ("two_callers", WALKS),
    ("steps_twice", WALKS),
    ("kernel_run", WALKS),
    ("two_borrowers", 0),
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="the explorer's threads are written for x86-64",
)


def compiled(out: Path, *files: str | Path, link: bool = True) -> Path:
    """The program of these files, sources of csrc/ or objects; or the object of one."""
    seam = '-DSK_PLATFORM="tests/model/platform.h"'
    words = [*([] if link else ["-c"]), *(str(CSRC / file) for file in files), "-o", str(out)]
    subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, seam, *words], check=True)
    return out


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("model") / "explorer.o", "tests/model/explorer.cpp", link=False)


@pytest.fixture(scope="module")
def runtime(explorer: Path) -> Path:
    sources = ("tests/model/runtime.cpp", "runtime/memory.cpp", "runtime/hardware_counters.cpp")
    return compiled(explorer.with_name("runtime"), explorer, *sources)


def output(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_explorer_finds_what_the_memory_model_allows_and_nothing_else(explorer: Path, tmp_path: Path) -> None:
    text = output(compiled(tmp_path / "litmus", explorer, "tests/model/litmus.cpp"))
    assert text.count(" ok ") == 23


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
    met: set[str] = set()
    needed: set[str] = set()
    for name, walks in WEAKENED:
        for line in output(runtime, "weaken", name, str(walks), "1", *needed).splitlines():
            site, _, what = line.partition(": ")
            met.add(site)
            needed.update([site] if what != "not missed" else [])
    sites = {site for site in met if not site.startswith("runtime.cpp")}
    assert any(site.endswith("fence") for site in sites)
    assert any("barrier" in site for site in sites)
    assert len(sites) >= 14
    assert not met - needed
