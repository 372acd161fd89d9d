"""What a call costs beside the computing: a kernel of 16 elements, called in every way there is.

    python bench/overhead.py [--cores N] [--json]

    bare         a pybind11 function that takes an array and returns a new one of its size, and does nothing else
    kernel(x)    arguments checked, output made, launched
    run_bound    launched on bound buffers (`Kernel.bind`)
    C function   the same from a loop in C: no Python at all
    launch       the runtime's own launch from Python, `_core.Kernel.run(io)`, for comparison

The bare function and the loop in C are compiled on the spot (g++, pybind11); where that cannot be done they are left
out. The bare call goes through pybind11's dispatcher, which kernel(x) does not: it stands for an ordinary binding, and
is not a lower bound.

Ways alternate in slices far shorter than the system's time slice: a slice that is preempted counts as some milliseconds
more, and ways with long slices would be hit more often than those with short ones. Figures are medians over slices with
their 95 % interval, the Python loop (some 10 ns) included; the ratio of kernel(x) to bare is taken round by round.

So small a graph runs on one core whatever the number of threads; `--cores 2` takes a larger one (64 x 64) without
placement by cost, so that each launch truly is a hand-over to another thread and back. Its computing is then included,
and the ratio to the bare call, which hands over nothing, says less.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from stats import estimate, ratio

import superkernel as sk

CALLS = 300  # per slice: below 0.1 ms for most ways
BARE, CALL, BOUND, FUNCTION, LAUNCH = "bare", "kernel(x)", "run_bound", "C function", "launch"

SOURCE = """
#include <pybind11/numpy.h>
#include <superkernel_call.h>
namespace py = pybind11;

PYBIND11_MODULE(overhead_bare, m) {
  m.def("bare", [](const py::array_t<float, py::array::c_style>& x) {
    return py::array_t<float>({x.shape(0), x.shape(1)});
  });
  m.def("loop", [](std::uintptr_t function, std::uintptr_t self, int count) {
    int wrong = 0;
    for (int i = 0; i < count; ++i) {
      wrong += reinterpret_cast<SkCallFunction>(function)(reinterpret_cast<void*>(self)) != SK_CALL_OK;
    }
    return wrong;
  });
}
"""


def compile_bare(folder: Path) -> Any:
    """The module of SOURCE, None where it cannot be compiled here."""
    compiler = shutil.which("g++")
    if compiler is None or importlib.util.find_spec("pybind11") is None:
        return None
    import pybind11

    source, module = folder / "bare.cpp", folder / f"overhead_bare{sysconfig.get_config_var('EXT_SUFFIX')}"
    source.write_text(SOURCE)
    header = Path(__file__).parents[1] / "csrc" / "include"
    includes = [f"-I{path}" for path in (pybind11.get_include(), sysconfig.get_paths()["include"], header)]
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
    command = [compiler, *flags, *includes, str(source), "-o", str(module)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"no bare function: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    spec = importlib.util.spec_from_file_location("overhead_bare", module)
    if spec is None or spec.loader is None:
        return None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def slice_ns(call: Callable[..., Any], *args: Any) -> float:
    """ns per call of a slice."""
    start = time.perf_counter_ns()
    for _ in repeat(None, CALLS):
        call(*args)
    return (time.perf_counter_ns() - start) / CALLS


def ways(cores: int, bare: Any) -> dict[str, Callable[[], float]]:
    """What measures one slice of each way."""
    shape = (4, 4) if cores == 1 else (64, 64)
    b = sk.GraphBuilder("tiny")
    b.output(b.relu(b.input("x", shape, "f32")), name="y")
    kernel = sk.compile(b.graph(), threads=cores, options={"cost_placement": cores == 1})
    used = kernel._compiled.executable.core.cores
    if used != cores:
        raise RuntimeError(f"the kernel was meant to run on {cores} cores, it runs on {used}")
    x = np.zeros(shape, np.float32)
    bound = kernel.bind(x)
    core, io = kernel._compiled.executable.core, [x, bound.outputs["y"]]

    def loop() -> float:
        start = time.perf_counter_ns()
        if bare.loop(bound.function_address, bound.self_address, CALLS):
            raise RuntimeError("a launch failed")
        return (time.perf_counter_ns() - start) / CALLS

    found: dict[str, Callable[[], float]] = {BARE: lambda: slice_ns(bare.bare, x)} if bare is not None else {}
    found[CALL] = lambda: slice_ns(kernel, x)
    found[BOUND] = lambda: slice_ns(kernel.run_bound)
    if bare is not None:
        found[FUNCTION] = loop
    found[LAUNCH] = lambda: slice_ns(core.run, io)
    return found


def measure(cores: int, rounds: int) -> dict[str, Any]:
    """Per way [median, low, high] in ns and the least slice; and the ratio of kernel(x) to the bare call."""
    with tempfile.TemporaryDirectory(prefix="superkernel-") as folder:
        measured = ways(cores, compile_bare(Path(folder)))
        slices: dict[str, list[float]] = {name: [] for name in measured}
        for number in range(-20, rounds):
            order = list(measured) if number % 2 else list(reversed(measured))
            for name in order:
                ns = measured[name]()
                if number >= 0:
                    slices[name].append(ns)
    figures: dict[str, Any] = {"cores": cores, "rounds": rounds, "ways": {}}
    for name, samples in slices.items():
        e = estimate(samples)
        figures["ways"][name] = {"ns": [e.median, e.low, e.high], "least_ns": min(samples)}
    if BARE in slices:
        times = ratio(slices[CALL], slices[BARE])
        figures["call_per_bare"] = [times.median, times.low, times.high]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=601)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(args.cores, args.rounds)
    if args.json:
        print(json.dumps(figures, indent=2))
        return 0
    for name, way in figures["ways"].items():
        median, low, high = way["ns"]
        print(f"{name:12s} {median:6.0f} ns  [{low:.0f}, {high:.0f}]  least {way['least_ns']:.0f}")
    if "call_per_bare" in figures:
        median, low, high = figures["call_per_bare"]
        print(f"kernel(x) takes {median:.2f} [{low:.2f}, {high:.2f}] times the bare call")
    return 0


if __name__ == "__main__":
    sys.exit(main())
