"""What all tests share: seeds, a cache of their own, and a hint where the extension module is missing."""

from __future__ import annotations

import gc
import os
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import aicore_emulated
import hypothesis.core
import numpy as np
import pytest
import soak
from browser import Browser
from hypothesis import HealthCheck, settings
from seeds import VARIABLE, run_seed

if TYPE_CHECKING:
    from superkernel.codegen.llvm import LlvmTarget
    from superkernel.target.cpu import CpuTarget

SEED = 20240229

# Hypothesis leaves no files: what failed once is an example in the test; slow draws mean a busy machine.
settings.register_profile("superkernel", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("superkernel")


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 (tests that use the old interface by way of a library)


os.environ["XDG_DATA_HOME"] = str(Path(tempfile.gettempdir()) / f"superkernel-tests-{os.getuid()}")
"""Nothing of the user's is written."""
os.environ["SK_MACHINE"] = str(Path(__file__).parent / "machines" / "two-cores.json")
"""Which kernels and tilings are tested does not depend on the machine."""


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that gives every test the same numbers on every run."""
    return np.random.default_rng(SEED)


@pytest.fixture
def without_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU at hand where the system grants no tiles (AMX): what is chosen is the same on CPUs with and without. Its
    cache is its own, since caches keep what the CPU can do."""
    from superkernel.codegen.host import features

    monkeypatch.setattr(features, "may_use_tiles", lambda: False)
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path / "without tiles"))
    features.forget_cpu()
    yield
    features.forget_cpu()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled objects of tests neither come from nor go to the user's cache; the processes of one run share them."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    before = os.environ.get("SK_CACHE_DIR")
    os.environ["SK_CACHE_DIR"] = str(directory)
    yield
    if before is None:
        del os.environ["SK_CACHE_DIR"]
    else:
        os.environ["SK_CACHE_DIR"] = before


OPTIMISED_ONE_IN = 4


@pytest.fixture
def mostly_translated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the host are translated as they were emitted: LLVM's passes are most of what compiling takes, and
    change no bit. One test in a few, as the run's seed draws them, has what users have; in a soak run all of them."""
    if soak.chosen(request.node.nodeid, OPTIMISED_ONE_IN):
        return
    from superkernel.codegen.host import lower

    def machine_of(cpu: CpuTarget, level: int = 0) -> LlvmTarget:
        return of_level(cpu, level)

    of_level = lower.machine_of
    monkeypatch.setattr(lower, "machine_of", machine_of)
    monkeypatch.setenv("SK_CACHE_DIR", os.environ["SK_CACHE_DIR"] + "-translated")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """torch.compile without graphs of other tests; warnings of the backend are errors unless a test expects them."""
    import torch

    from superkernel import dynamo

    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", dynamo.EagerWarning)
        yield


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium for all tests of a process; each opens a tab of its own."""
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@cache
def _not_quick() -> set[str]:
    """Files and functions that `--quick` leaves out: see the list's own head."""
    lines = (Path(__file__).parent / "not_quick.txt").read_text("utf-8").splitlines()
    return {f"tests/{line.split('#')[0].strip()}" for line in lines if line.split("#")[0].strip()}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What cannot be asked for is not even imported: with `--quick`, what is listed as slow; with `-m serial`, files
    without such tests."""
    if not collection_path.is_file():
        return None
    quick = config.getoption("--quick") and str(collection_path.relative_to(config.rootpath)) in _not_quick()
    parallel = config.option.markexpr == "serial" and "pytest.mark.serial" not in collection_path.read_text("utf-8")
    return True if quick or parallel else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: the garbage collector need not look for them, now or later. Nor need it look
    at every 700 new objects: what writes IR makes a hundred thousand, and took a quarter longer for that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--quick`, neither slow nor serial tests, nor listed functions."""
    if not config.getoption("--quick"):
        return
    listed = _not_quick()
    left = [
        item
        for item in items
        if {"slow", "serial"}.isdisjoint(mark.name for mark in item.iter_markers())
        and item.nodeid.split("[")[0] not in listed
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
    items[:] = left


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests that take no time: see tests/not_quick.txt")
    parser.addoption("--soak", action="store_true", help="costly checks of everything, not of a sample")
    parser.addoption("--graphs", default="300", help="random graphs to try (default 300)")
    parser.addoption("--sequences", default="3200", help="random instruction sequences against QEMU (default 3200)")
    parser.addoption("--combinations", default="12", help="combinations of options per model (default 12)")
    parser.addoption("--mutants", default="40", help="mutants of synchronisation on the emulator (default 40)")
    parser.addoption("--plain", default="10", help="runs on the emulator without a mutant (default 10)")
    parser.addoption(
        "--emulator",
        choices=aicore_emulated.CHOICES,
        default="sample",
        help="programs of the accelerator's unit tests that run on the emulator too: none, a sample, or all of them, "
        "commands as late as legal or at random as well (default sample)",
    )


def pytest_configure(config: pytest.Config) -> None:
    soak.enabled = config.getoption("--soak")
    try:
        import superkernel._core  # noqa: F401
    except ImportError as error:
        raise pytest.UsageError(f"superkernel._core cannot be imported ({error}); run `make build` first") from error
    if config.getoption("--hypothesis-seed") is None:
        hypothesis.core.global_force_seed = run_seed()  # type: ignore[assignment]
    aicore_emulated.CHOICE[0] = config.getoption("--emulator")
    if getattr(config.option, "numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read by the processes that run the tests
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        from superkernel.codegen import processes

        processes.helpers_max = 1  # other tests have the other CPUs


@pytest.fixture(autouse=True)
def _tally(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """What a test compared on the emulator is a property of its report, which reaches the summary from any process."""
    aicore_emulated.TALLY.clear()
    yield
    if aicore_emulated.TALLY:
        record_property("emulated", dict(aicore_emulated.TALLY))


def how_to_repeat() -> str:
    """The words that name the run's seed."""
    return f"random tests draw from {VARIABLE}={run_seed()}: set it to repeat them"


def pytest_report_header() -> str:
    """Shown ahead of the tests."""
    return how_to_repeat()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How to repeat a failure of a random test; how many programs ran on the emulator beside the simulator."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(how_to_repeat())
    reports = [report for rows in terminalreporter.stats.values() for report in rows]
    total: Counter[str] = Counter()
    for report in reports:
        if getattr(report, "when", None) == "teardown":
            total.update(dict(report.user_properties).get("emulated", {}))
    if total:
        terminalreporter.write_line(aicore_emulated.summary(total))
