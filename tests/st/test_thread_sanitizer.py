"""The emitted code itself under the thread sanitizer: entries and kernels of fused graphs, on the real runtime.

Model: LLVM's passes have run; then every load and store of the module gets a call of the sanitizer ahead of it, and
every atomic one, with the ordering that stands there, is made by the sanitizer. What is compiled from that is linked
with the runtime and a C++ driver, all under the sanitizer, which then knows every access and every order there is;
waits and sets are late at random. A program must be silent and give the reference's results. One that lacks a wait, or
whose waits or sets order nothing, must not be silent: else the sanitizer did not look.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.backends.host.compiled import HostCompiled
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.entry import emit_entries, emit_waits
from superkernel.codegen.host.entry_spec import EntrySpec, WaitFor
from superkernel.codegen.host.lower import machine_of
from superkernel.codegen.host.recording import ACCESS, OTHER_ACCESS, type_bytes
from superkernel.codegen.llvm import optimised, parsed
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.cpu import CpuTarget

CSRC = Path(__file__).parents[2] / "csrc"
CXX = os.environ.get("CXX", "g++")
# The fences that the sanitizer does not model (-Wno-tsan) order wake-ups only, never data.
FLAGS = ("-std=c++20", "-O1", "-fsanitize=thread", "-Wno-tsan", f"-I{CSRC}", f"-I{CSRC / 'include'}")
RUNTIME = ("clock", "cpu", "hardware_counters", "kernel", "memory", "platform", "pool")
NOT_RANDOM = ("setarch", "-R")  # the sanitizer's shadow wants addresses where they were
RACE = 66
LAUNCHES = 20
LAUNCHES_TO_BE_SEEN = 2000  # by luck a launch is ordered by other waits; it ends with the first report
TIMEOUT_S = 300


@cache
def missing() -> str:
    """Why the tests cannot run here, if they cannot."""
    for tool in (CXX, "setarch"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/empty"
        source = b"int main() { return 0; }"
        made = subprocess.run(
            [CXX, "-fsanitize=thread", "-xc++", "-", "-o", program], input=source, capture_output=True
        )
        if made.returncode or subprocess.run([*NOT_RANDOM, program], capture_output=True).returncode:
            return "the thread sanitizer does not work here"
    return ""


@pytest.fixture(autouse=True)
def _needs_tools() -> None:
    if reason := missing():
        pytest.skip(reason)


# Emitted code ---------------------------------------------------------------------------------------------------------

ORDERS = {"unordered": 0, "monotonic": 0, "acquire": 2, "release": 3, "acq_rel": 4, "seq_cst": 5}
ATOMIC_LOAD = re.compile(r"  (%\S+) = load atomic i64, ptr (\S+) (\w+), align 8")
ATOMIC_STORE = re.compile(r"  store atomic i64 (\S+), ptr (\S+) (\w+), align 8")
DECLARED = """
declare void @sk_delay()
declare void @__tsan_read_range(ptr, i64)
declare void @__tsan_write_range(ptr, i64)
declare i64 @__tsan_atomic64_load(ptr, i32)
declare void @__tsan_atomic64_store(ptr, i64, i32)
"""


def sanitized(text: str) -> str:
    """A module as LLVM prints it, its accesses told to the sanitizer, or made by it."""
    lines: list[str] = []
    for line in text.splitlines():
        if found := ATOMIC_LOAD.match(line):
            value, pointer, order = found.groups()
            lines.append("  call void @sk_delay()")
            line = f"  {value} = call i64 @__tsan_atomic64_load(ptr {pointer}, i32 {ORDERS[order]})"
        elif found := ATOMIC_STORE.match(line):
            value, pointer, order = found.groups()
            lines.append("  call void @sk_delay()")
            line = f"  call void @__tsan_atomic64_store(ptr {pointer}, i64 {value}, i32 {ORDERS[order]})"
        elif found := ACCESS.match(line):
            kind, what, pointer = found.groups()
            name = "write" if kind == "store" else "read"
            lines.append(f"  call void @__tsan_{name}_range(ptr {pointer}, i64 {type_bytes(what)})")
        else:
            assert not OTHER_ACCESS.search(line), line
            assert "@llvm.mem" not in line, line
        lines.append(line)
    return "\n".join(lines) + DECLARED


def compiled(text: str, cpu: CpuTarget, level: int = 2) -> bytes:
    machine = machine_of(cpu, level)
    opened = machine.open()
    return bytes(opened.emit_object(parsed(sanitized(str(optimised(text, machine, opened))), cpu.triple, opened)))


# Programs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Objects of runtime and driver."""
    folder = tmp_path_factory.mktemp("driver")
    sources = [CSRC / f"runtime/{name}.cpp" for name in RUNTIME]
    command = [CXX, *FLAGS, "-c", *map(str, sources), str(CSRC / "tests/sanitized_kernel.cpp")]
    subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S)
    return [str(path) for path in folder.glob("*.o")]


@dataclass
class Sanitized:
    """A graph's kernels, sanitized; its entries are made anew for each run."""

    made: HostCompiled
    driver: Sequence[str]
    folder: Path

    def __post_init__(self) -> None:
        schedule, image = self.made.schedule, self.made.image
        found = zip(schedule.subops, schedule.tilings, image.symbols, strict=True)
        kernels = {symbol: (s, t) for s, t, symbol in found if symbol is not None}
        self.objects: list[str] = []
        for symbol, (sub, tiling) in kernels.items():
            text = emit_ir(sub.kernel, sub.body, tiling, self.made.target, symbol)
            self.objects.append(self._object(symbol, text))

    def _object(self, name: str, text: str, level: int = 2) -> str:
        path = self.folder / f"{name}.o"
        path.write_bytes(compiled(text, self.made.target, level))
        return str(path)

    def run(
        self, spec: EntrySpec, launches: int, change: Callable[[str], str] = lambda text: text
    ) -> subprocess.CompletedProcess[bytes]:
        """The program with these entries, whose text may be changed."""
        image, graph = self.made.image, self.made.graph
        assert not image.constants.shared, "which the program would have to be given"
        entries = self._object("entries", change(emit_entries(spec, self.made.target)), 0)
        waits = self._object("waits", change(emit_waits(self.made.target)))
        program = str(self.folder / "program")
        link = [CXX, "-fsanitize=thread", *self.driver, *self.objects, entries, waits, "-o", program, "-lpthread"]
        subprocess.run(link, check=True, timeout=TIMEOUT_S)
        given = [*random_inputs(graph.inputs, 0).values()]
        outputs, states = [graph.types[value] for value in graph.outputs], self.initial_states()
        sizes = [*(a.nbytes for a in given), *(t.nbytes for t in outputs), *(s.nbytes for s in states.values())]
        memory = [image.arena_bytes, image.constants.own.nbytes, image.scratch_bytes]
        words = [image.cores, launches, *memory, len(given), len(outputs), len(states), *sizes]
        data = b"".join(np.ascontiguousarray(a).tobytes() for a in (*given, *states.values(), image.constants.own))
        options = {"TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}"}
        return subprocess.run(
            [*NOT_RANDOM, program, *map(str, words)],
            input=data,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=os.environ | options,
        )

    def initial_states(self) -> dict[str, NDArray[Any]]:
        return {name: np.asarray(array) for name, array in self.made.graph.states.items()}

    def check_results(self, data: bytes) -> None:
        """Against the reference, which runs as often."""
        graph, states = self.made.graph, self.initial_states()
        given = random_inputs(graph.inputs, 0)
        for _ in range(LAUNCHES):
            want = evaluate(graph, given, states)
            states = dict(want.states)
        at = 0
        for expected in [*(want[value] for value in graph.outputs), *states.values()]:
            part = np.frombuffer(data, expected.dtype, expected.size, at).reshape(expected.shape)
            np.testing.assert_allclose(part, expected, rtol=1e-3, atol=1e-4)
            at += expected.nbytes
        assert at == len(data)


def chain() -> sk.Graph:
    """Products of rows, with a softmax between, cut differently: rows pass between cores at their borders."""
    b = sk.GraphBuilder("chain")
    rng = np.random.default_rng(0)
    x = b.input("x", (40, 64))
    w = b.constant(rng.standard_normal((64, 64)).astype(np.float32) / 8)
    y = b.softmax(b.gelu(x @ w), axis=1)
    b.output(b.relu((y + x) @ w), "y")
    return b.graph()


def exchange() -> sk.Graph:
    """Rows, columns, rows: every core needs what all others made, twice."""
    b = sk.GraphBuilder("exchange")
    x = b.input("x", (64, 96))
    y = b.softmax(x, axis=1)
    for _ in range(2):
        y = b.softmax(b.relu(y.transpose(1, 0)), axis=1)
    b.output(y, "y")
    return b.graph()


def branches() -> sk.Graph:
    """Two products side by side; their columns are summed, their rows joined."""
    b = sk.GraphBuilder("branches")
    rng = np.random.default_rng(0)
    x = b.input("x", (96, 64))
    w, v = (b.constant(rng.standard_normal((64, 64)).astype(np.float32) / 8) for _ in range(2))
    left, right = b.softmax(x @ w, axis=1), b.softmax(x @ v, axis=1)
    b.output(b.softmax((left + right).transpose(1, 0), axis=1), "y")
    b.output(b.reduce_sum(left, axes=(0,)), "z")
    return b.graph()


GRAPHS: dict[str, Callable[[], sk.Graph]] = {
    "chain": chain,
    "exchange": exchange,
    "branches": branches,
    "transformer": lambda: models.transformer(tokens=16, width=32, heads=2),
    "decode_step": models.decode_step,
}


def program(name: str, cores: int, driver: Sequence[str], folder: Path) -> Sanitized:
    kernel = sk.compile(GRAPHS[name](), threads=cores, options={"fallback": "forbid", "cost_placement": False})
    made = kernel._compiled
    assert isinstance(made, HostCompiled)
    return Sanitized(made, driver, folder)


@pytest.mark.parametrize(("name", "cores"), [(name, 2) for name in GRAPHS] + [("exchange", 5), ("transformer", 3)])
@pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")
def test_emitted_programs_have_no_races(name: str, cores: int, driver: list[str], tmp_path: Path) -> None:
    made = program(name, cores, driver, tmp_path)
    assert made.made.plan.waits >= 2, "nobody waits"
    done = made.run(made.made.image.spec, LAUNCHES)
    assert done.returncode == 0, done.stderr.decode()
    made.check_results(done.stdout)


# What must not be silent ----------------------------------------------------------------------------------------------


def without(spec: EntrySpec, wait: int) -> EntrySpec:
    """The entries but for one wait."""

    def kept(steps: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(s for s in steps if not isinstance(s, WaitFor) or s.wait != wait)

    return replace(spec, programs=tuple(map(kept, spec.programs)))


def reports_race(done: subprocess.CompletedProcess[bytes]) -> bool:
    return done.returncode == RACE and b"WARNING: ThreadSanitizer: data race" in done.stderr


def test_each_wait_that_is_left_out_is_a_race(driver: list[str], tmp_path: Path) -> None:
    made = program("exchange", 2, driver, tmp_path)
    spec = made.made.image.spec
    waits = [step.wait for steps in spec.programs for step in steps if isinstance(step, WaitFor)]
    assert len(waits) >= 3
    for wait in waits:
        done = made.run(without(spec, wait), LAUNCHES_TO_BE_SEEN)
        assert reports_race(done), f"wait {wait}: {done.returncode}\n{done.stderr.decode()}"


@pytest.mark.parametrize("order", ["acquire", "release"])
def test_waits_that_do_not_acquire_and_sets_that_do_not_release_are_races(
    order: str, driver: list[str], tmp_path: Path
) -> None:
    made = program("exchange", 2, driver, tmp_path)
    done = made.run(made.made.image.spec, LAUNCHES_TO_BE_SEEN, lambda text: text.replace(f" {order}, ", " monotonic, "))
    assert reports_race(done), f"{done.returncode}\n{done.stderr.decode()}"
