"""The simulator is a function: one fused program gives the same trace, byte for byte, and the same outputs, on every
run, whatever `step` is, in another process, and from a simulator that another compiler built.

The last one compiles csrc with clang++ (skipped where there is none) and keeps the module under the user's cache
directory, named by the sources' contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
from aicore_systems import Workbench, digest, fused_model, random_model
from seeds import seeds

from superkernel.sim.device import Device, LaunchResult
from superkernel.sim.trace import RECORD, records

ROOT = Path(__file__).resolve().parents[2]
STEPS = (1, 97, 1 << 20)
RUNS = 20
BUILD_SECONDS_MAX = 1800
KEPT_MODULES = 3

_CHILD = """
import hashlib, importlib.util, json, pickle, sys
module, recording = sys.argv[1:]
if module:
    spec = importlib.util.spec_from_file_location("superkernel._core", module)
    core = importlib.util.module_from_spec(spec)
    sys.modules["superkernel._core"] = core
    spec.loader.exec_module(core)
    import superkernel
    superkernel._core = core
from superkernel.sim import device
from superkernel.target.aicore import load_target
with open(recording, "rb") as file:
    elf, calls, reads = pickle.load(file)
made = device.Device(load_target("mini"), elf, trace=True)
for name, arguments, options in calls:
    result = getattr(made, name)(*arguments, **options)
outputs = hashlib.sha256(b"".join(made.read(address, count) for address, count in reads)).hexdigest()
trace = hashlib.sha256(result.trace).hexdigest()
print(json.dumps({"core": device._core.__file__, "trace": trace, "outputs": outputs, "cycles": str(result.cycles)}))
"""


class _Recording(Device):
    """A device that keeps what it is asked, to be asked again elsewhere: there, nothing is compiled anew."""

    def __init__(self, target: Any, program: bytes, **options: Any) -> None:
        super().__init__(target, program, **options)
        self.program = program
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.reads: list[tuple[int, int]] = []

    def write(self, address: int, data: Any) -> None:
        self.calls.append(("write", (address, bytes(data)), {}))
        super().write(address, data)

    def declare(self, sub_operator: int, core: int, **ranges: Any) -> None:
        self.calls.append(("declare", (sub_operator, core), ranges))
        super().declare(sub_operator, core, **ranges)

    def declare_scratch(self, ranges: Any) -> None:
        self.calls.append(("declare_scratch", (list(ranges),), {}))
        super().declare_scratch(self.calls[-1][1][0])

    def launch(self, **options: Any) -> LaunchResult:
        self.calls.append(("launch", (), options))
        return super().launch(**options)

    def read(self, address: int, count: int) -> bytes:
        self.reads.append((address, count))
        return super().read(address, count)


def _recording(bench: Workbench, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A run of the model into a file, and its digest."""
    with monkeypatch.context() as patch:
        patch.setattr("superkernel.backends.aicore.executable.Device", _Recording)
        run = bench.run(trace=True)
    device = run.device
    assert isinstance(device, _Recording)
    path.write_bytes(pickle.dumps((device.program, device.calls, device.reads)))
    return digest(run, bench.results(run))


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench.of(fused_model())


@pytest.fixture(scope="module")
def expected(bench: Workbench) -> dict[str, str]:
    run = bench.run(trace=True)
    return digest(run, bench.results(run))


def test_the_trace_tells_of_every_core(bench: Workbench) -> None:
    """The bytes that are compared below hold something: each core's control unit, engines and cross-core flags."""
    rows = records(bench.run(trace=True).launches[0].trace)
    assert rows.dtype == RECORD
    assert set(range(bench.compiled.plan.total)) <= set(rows["core"].tolist())
    kinds = set(rows["kind"].tolist())
    assert {1, 2, 3, 4, 5, 6} <= kinds, kinds
    assert (rows["end"] >= rows["begin"]).all()


@pytest.mark.parametrize("run", range(RUNS))
def test_every_run_is_the_same(run: int, bench: Workbench, expected: dict[str, str]) -> None:
    found = bench.run(trace=True)
    assert digest(found, bench.results(found)) == expected


@pytest.mark.parametrize("step", STEPS)
def test_the_step_does_not_matter(step: int, bench: Workbench, expected: dict[str, str]) -> None:
    found = bench.run(trace=True, step=step)
    assert digest(found, bench.results(found)) == expected


@pytest.mark.parametrize("seed", seeds(4))
def test_the_step_does_not_matter_to_random_models(seed: int) -> None:
    bench = Workbench.of(random_model(seed))
    found = []
    for step in STEPS:
        run = bench.run(trace=True, step=step)
        found.append(digest(run, bench.results(run)))
    assert found.count(found[0]) == len(found)


def test_a_device_launched_again_does_the_same(bench: Workbench) -> None:
    """What earlier launches left in a device is memory and L2: with L2 emptied, a launch repeats."""
    device = bench.run(trace=True).device
    device.forget_l2()
    first = device.launch(number=0)
    device.forget_l2()
    again = device.launch(number=0)
    assert first.trace == again.trace
    assert first.cycles == again.cycles


def test_modes_agree(bench: Workbench, expected: dict[str, str]) -> None:
    """Timing does not depend on data here, and data not on timing."""
    timing = bench.run(trace=True, mode="timing")
    assert digest(timing, [])["trace"] == expected["trace"]
    functional = bench.run(mode="functional")
    assert bench.results(functional) == bench.healthy
    unchecked = bench.run(trace=True, races=False, unwritten=False)
    assert digest(unchecked, bench.results(unchecked)) == expected


def test_another_input_gives_another_digest(bench: Workbench, expected: dict[str, str]) -> None:
    """A digest that could not differ would prove nothing."""
    kept = bench.io[0].copy()
    try:
        bench.io[0][...] = kept + np.float32(1)
        run = bench.run(trace=True)
        found = digest(run, bench.results(run))
    finally:
        bench.io[0][...] = kept
    assert found["outputs"] != expected["outputs"]
    assert found["trace"] == expected["trace"]


def test_another_process_does_the_same(bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _recording(bench, tmp_path / "run", monkeypatch)
    found = _child("", tmp_path / "run")
    assert {k: found[k] for k in expected} == expected


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(BUILD_SECONDS_MAX + 120)
def test_another_compiler_does_the_same(bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _clang_module()
    for model in (bench, Workbench.of(random_model(0)), Workbench.of(random_model(5))):
        expected = _recording(model, tmp_path / "run", monkeypatch)
        found = _child(str(module), tmp_path / "run")
        assert Path(found["core"]) == module
        assert {k: found[k] for k in expected} == expected


def _child(module: str, recording: Path) -> dict[str, str]:
    """The digest of a recorded run, from another process with the simulator of `module` ("": the installed one)."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, module, str(recording)], capture_output=True, text=True, timeout=120,
        check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


# The module of another compiler -----------------------------------------------------------------------------------


def _clang_module() -> Path:
    """The extension module as clang++ builds it: kept by the contents of what it is made from."""
    clang, cmake = shutil.which("clang++"), _tool("cmake")
    if clang is None or cmake is None:
        pytest.skip(f"no {'clang++' if clang is None else 'cmake'}")
    pybind11 = pytest.importorskip("pybind11")
    version = subprocess.run([clang, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    key = hashlib.sha256(f"{version}{sys.version}{pybind11.__version__}".encode())
    for path in [ROOT / "CMakeLists.txt", *sorted(p for p in (ROOT / "csrc").rglob("*") if p.is_file())]:
        key.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    home = platformdirs.user_cache_path("superkernel") / "clang-modules"
    kept = home / key.hexdigest()[:24]
    found = sorted(kept.glob("_core*.so"))
    if found:
        os.utime(kept)
        return found[0]
    work = home / f"{kept.name}.{os.getpid()}"
    try:
        _build(cmake, clang, str(pybind11.get_cmake_dir()), work)
        made = next(work.glob("_core*.so"))
        kept.mkdir(parents=True, exist_ok=True)
        os.replace(made, kept / made.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    finished = [p for p in home.iterdir() if "." not in p.name]  # others may be at work
    for old in sorted(finished, key=lambda p: p.stat().st_mtime)[:-KEPT_MODULES]:
        shutil.rmtree(old, ignore_errors=True)
    return kept / made.name


def _build(cmake: str, clang: str, pybind11: str, work: Path) -> None:
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if (ninja := _tool("ninja")) else []
    configure = [
        cmake, "-S", str(ROOT), "-B", str(work), *generator, f"-DCMAKE_CXX_COMPILER={clang}",
        "-DCMAKE_BUILD_TYPE=Release", "-DPYBIND11_FINDPYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11}",
    ]  # fmt: skip
    for step in (configure, [cmake, "--build", str(work), "--parallel", str(os.cpu_count() or 1)]):
        done = subprocess.run(step, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def _tool(name: str) -> str | None:
    """A program beside the interpreter, or on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)
