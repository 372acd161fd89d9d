"""Compile time and memory of large graphs, cold and from the cache.

    python bench/compile_time.py [--json] [--nodes 1000]
    python bench/compile_time.py --odd [PATTERN] [--json]
    python bench/compile_time.py --step [LAYERS] [--json]

Two graphs of 1,000 sub-operators (unfused: one node each): `equal`, 250 transformer-like blocks of one shape, whose
kernels are shared; `distinct`, blocks of 50 different widths. Each is compiled in a process of its own, first with an
empty cache, then again.

`--odd`: graphs of one operator of an odd shape each (`odd_shapes.py`), without a cache, in one process: seconds, bytes
of code and tables, memory that the process has taken until then.

`--step`: one decode step of a Llama-like model with f16 weights, 16 layers of 2048 (1.1 billion weights), on a3,
without a cache: CPU seconds (helper processes included) of compiling, and of simulating the run in each mode, the most
memory that the process has held until then, what the weights are of it, and the time of each stage.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


def build(nodes: int, widths: int) -> Any:
    """Blocks matmul, softmax, layer norm, matmul: about `nodes` sub-operators."""
    import superkernel as sk

    rng = np.random.default_rng(0)
    b = sk.GraphBuilder(f"blocks-{widths}")
    h = b.input("x", (16, 64), "f32")

    def weight(*shape: int) -> Any:
        return b.constant(rng.standard_normal(shape, dtype=np.float32) / 8)

    for i in range(nodes // 4):
        width = 64 + i % widths
        y = b.softmax(b.matmul(h, weight(64, width)), axis=-1)
        y = b.layer_norm(y, weight(width), weight(width), axis=-1, epsilon=1e-5)
        h = b.relu(b.matmul(y, weight(width, 64)))
    b.output(h)
    return b.graph()


def compile_once(nodes: int, widths: int) -> dict[str, Any]:
    """Compile in this process: seconds (passed, and of CPU), sub-operators, distinct kernels, peak memory."""
    import superkernel as sk

    graph = build(nodes, widths)
    start, busy = time.perf_counter(), cpu_seconds()
    kernel = sk.compile(graph, threads=2)
    seconds, busy = time.perf_counter() - start, cpu_seconds() - busy
    summary = kernel.summary()
    return {
        "seconds": seconds,
        "cpu_seconds": busy,
        "sub_operators": summary["sub_operators"],
        "distinct_kernels": summary["distinct_kernels"],
        "from_cache": summary["from_cache"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_odd(pattern: str) -> dict[str, dict[str, Any]]:
    """Each odd graph whose name matches, compiled cold."""
    os.environ["SK_CACHE_DIR"] = ""
    from odd_shapes import odd_shapes

    import superkernel as sk

    sk.compile(build(4, 1), threads=2)  # modules are imported, helpers have started
    figures = {}
    for name, make in odd_shapes().items():
        if not fnmatch.fnmatch(name, pattern):
            continue
        graph = make()
        start = time.perf_counter()
        summary = sk.compile(graph, threads=2).summary()
        figures[name] = {
            "seconds": time.perf_counter() - start,
            "distinct_kernels": summary["distinct_kernels"],
            "code_bytes": summary["code_bytes"],
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    return figures


STEP = {"width": 2048, "heads": 32, "kv_heads": 8, "inner": 8192, "vocabulary": 32000, "positions": 1024}
STEP_LAYERS = 16
STEP_GOALS = {"compile": (20.0, 4000.0), "timing": (3.0, None)}  # CPU seconds, MB


def measure_step(layers: int) -> list[dict[str, Any]]:
    """A row for the graph, for compiling, and for each mode of the simulator."""
    os.environ["SK_CACHE_DIR"] = ""
    import workloads

    import superkernel as sk
    from superkernel.backends.aicore.compiled import AicoreCompiled
    from superkernel.sim.device import MODES

    def row(what: str, begin: float, **more: Any) -> dict[str, Any]:
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"what": what, "cpu_seconds": cpu_seconds() - begin, "peak_mb": peak_mb, **more}

    sk.compile(build(4, 1), target="a3")  # modules are imported, helpers have started
    begin = cpu_seconds()
    graph = workloads.decode_step(layers, **STEP, dtype=np.float16)
    weights_mb = sum(array.nbytes for array in graph.constants.values()) / 1e6
    rows = [row("graph", begin, weights_mb=weights_mb)]
    begin = cpu_seconds()
    kernel = sk.compile(graph, target="a3")
    summary = kernel.summary()
    stages = {name: round(ms / 1000, 2) for name, ms in summary["stage_ms"].items()}
    rows.append(row("compile", begin, sub_operators=summary["sub_operators"], stage_seconds=stages))
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    io = kernel._io(list(workloads.make_inputs(graph).values()))
    for mode in sorted(MODES, key=lambda mode: mode != "timing"):  # what comes later holds more memory
        begin = cpu_seconds()
        with kernel._kept_states():
            run = compiled.executable.simulate(io, mode=mode, races=mode == "both")
        cycles = None if mode == "functional" else sum(launch.cycles for launch in run.launches)
        rows.append(row(mode, begin, cycles=cycles, instructions=sum(launch.instructions for launch in run.launches)))
        del run
    return rows


def cpu_seconds() -> float:
    """Of this process and of its children, helper processes that wait for further jobs included."""
    seconds, ticks = sum(os.times()[:4]), os.sysconf("SC_CLK_TCK")
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text().split():
            with suppress(OSError):  # it has just ended
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                seconds += (int(fields[11]) + int(fields[12])) / ticks
    return seconds


def measure(nodes: int) -> dict[str, Any]:
    """Cold and warm, each in a fresh process."""
    figures: dict[str, Any] = {}
    for name, widths in (("equal", 1), ("distinct", 50)):
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, __file__, "--one", str(widths), "--nodes", str(nodes)]
            environment = {**os.environ, "SK_CACHE_DIR": cache}
            for state in ("cold", "warm"):
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                figures[f"{name} {state}"] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--one", type=int, metavar="WIDTHS", help=argparse.SUPPRESS)
    parser.add_argument("--odd", nargs="?", const="*", metavar="PATTERN", help="one operator of an odd shape each")
    text = "a decode step of a language model on a3, and its simulation"
    parser.add_argument("--step", nargs="?", const=STEP_LAYERS, type=int, metavar="LAYERS", help=text)
    args = parser.parse_args()
    if args.step is not None:
        for row in measure_step(args.step):
            if args.json:
                print(json.dumps(row), flush=True)
                continue
            what, seconds, peak_mb = row.pop("what"), row.pop("cpu_seconds"), row.pop("peak_mb")
            goals = STEP_GOALS.get(what, ()) if args.step == STEP_LAYERS else ()
            goal = ", ".join(f"{most:g} {unit}" for most, unit in zip(goals, ("s", "MB"), strict=False) if most)
            more = ", ".join(f"{name} {value}" for name, value in row.items() if value is not None)
            said = f"goal {goal}; " if goal else ""
            print(f"{what:<12} {seconds:6.2f} s of CPU, peak {peak_mb:6.0f} MB  {said}{more}", flush=True)
        return 0
    if args.one is not None:
        print(json.dumps(compile_once(args.nodes, args.one)))
        return 0
    figures = measure(args.nodes) if args.odd is None else measure_odd(args.odd)
    if args.json:
        print(json.dumps(figures, indent=2))
        return 0
    for name, row in figures.items():
        code = f"{row['code_bytes']:>9} bytes" if "code_bytes" in row else f"{row['sub_operators']:>5} sub-operators"
        kernels = f"{row['distinct_kernels']:>4} kernels"
        print(f"{row['seconds']:6.2f} s, {code}, {kernels}, peak {row['peak_mb']:5.0f} MB  {name}")
    if args.odd is not None:
        slowest = max(figures, key=lambda name: figures[name]["seconds"], default="nothing")
        print(f"{len(figures)} graphs; the slowest: {slowest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
