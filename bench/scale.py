"""How cores are used: numbers of threads, busy neighbours, gaps between calls; plans for machines that are not here.

    python bench/scale.py [table] [neighbours] [gaps] [plans]   (default: all)
                          [--threads 1,2,4,8,16] [--workloads 'mlp-*,encoder-64'] [--runners onnxruntime,openvino]
                          [--rounds 8] [--seconds 0.1] [--neighbours 0,1,4] [--cores 4,8,16,32,64] [--out FILE.json]

    table       every workload and number of threads that the machine has CPUs for, ours against the others: medians and
                99th percentiles of a call, in us
    neighbours  the same calls on all threads beside programs that spin on the same CPUs, in multiples of the quiet
                median
    gaps        a relu on all threads, called after random gaps: median, 99th percentile, and the CPU time that is used
                once nobody calls any more
    plans       by the profiles in tests/machines, for numbers of cores: how often plans read each byte of weights,
                waits, predicted times, and what reading less would cost (`reads.py`); nothing is run

Processes, slices, checks against float64 and rivals are those of `run.py`. What takes turns is compared: runners within
a round, and beside neighbours each number of them within a round as well.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import machine
import numpy as np
import reads
import run
from numpy.typing import NDArray
from peers import OURS, PEERS
from stats import geometric_mean, summary
from workloads import Workload, choose

PARTS = ("table", "neighbours", "gaps", "plans")
WORKLOADS = (
    "chain64-w2048,mlp-1024,mlp-2048,decode-small,decode-medium,encoder-16,encoder-64,encoder-256,light-squeezenet,"
    "light-resnet50"
)
NEIGHBOURED = "encoder-64"
RIVALS = "onnxruntime-bound,openvino"
GAPS_S = (1e-6, 1e-2)  # least and largest, drawn evenly on a scale of ratios
CALLS = 2_000
IDLE_AFTER_S, IDLE_S = 0.02, 0.5  # when nobody calls any more: from when on, and for how long, CPU time is counted
PROFILES = Path(__file__).parents[1] / "tests" / "machines"

Rows = dict[str, dict[str, Any]]


def table(args: argparse.Namespace) -> dict[str, dict[int, Rows]]:
    """Per workload and number of threads the summary of each runner."""
    found: dict[str, dict[int, Rows]] = {}
    for workload in args.workloads:
        for threads in args.threads:
            with _loaded(workload, threads, args) as session:
                session.measure(random.Random(0))
                rows = found.setdefault(workload.name, {})[threads] = _summaries(session.slices)
            print(f"{workload.name:20} {threads:3} threads  {compared(rows)}", flush=True)
    for threads in args.threads:
        gains = [gain for rows in found.values() if (gain := times_faster(rows[threads])) is not None]
        if gains:
            mean = geometric_mean(gains)
            print(f"{threads} threads: {mean:.2f} times as fast as the best rival, at least {min(gains):.2f}")
    return found


def compared(rows: Rows) -> str:
    """Ours, the best rival and their ratio, and the same of the 99th percentiles."""
    text = f"ours {_us(rows.get(OURS), 'median_ns')} us, p99 {_us(rows.get(OURS), 'p99_ns')}"
    rival = best_rival(rows)
    if rival is None or OURS not in rows:
        return text
    tail = min(row["p99_ns"] for name, row in rows.items() if name != OURS)
    text += f"; {rival} {_us(rows[rival], 'median_ns')}, best p99 {tail / 1e3:.1f}"
    return f"{text}; {times_faster(rows):.2f} times as fast"


def best_rival(rows: Rows) -> str | None:
    """The other runner with the shortest median."""
    return min((name for name in rows if name != OURS), key=lambda name: rows[name]["median_ns"], default=None)


def times_faster(rows: Rows) -> float | None:
    """The best rival's median over ours."""
    rival = best_rival(rows)
    return None if rival is None or OURS not in rows else rows[rival]["median_ns"] / rows[OURS]["median_ns"]


def _us(row: Mapping[str, Any] | None, field: str) -> str:
    return "failed" if row is None else f"{row[field] / 1e3:.1f}"


@contextmanager
def _loaded(workload: Workload, threads: int, args: argparse.Namespace) -> Iterator[run.Session]:
    """A workload in all runners, checked."""
    chosen = argparse.Namespace(**{**vars(args), "threads": threads, "spaced": False})
    with ExitStack() as stack, tempfile.TemporaryDirectory() as directory:
        session = run.Session(workload, chosen, stack)
        session.load([PEERS[name] for name in args.runners], Path(directory))
        yield session


def _summaries(slices: Mapping[str, Sequence[Sequence[float]]]) -> Rows:
    return {name: summary(found) for name, found in slices.items() if found}


def neighbours(args: argparse.Namespace) -> dict[int, Rows]:
    """Per number of spinning programs the summary of each runner, on all threads."""
    threads = max(args.threads)
    taken: dict[int, dict[str, list[list[float]]]] = {count: {} for count in args.neighbours}
    with _loaded(choose(args.neighboured)[0], threads, args) as session:
        for _ in range(args.rounds):
            for count in args.neighbours:
                with spinning(count, threads):
                    for name, worker in session.workers.items():
                        calls, _ = worker.slice(args.seconds, run.CALLS_MAX, 0.0, args.load_seconds)
                        taken[count].setdefault(name, []).append(calls)
    found = {count: _summaries(slices) for count, slices in taken.items()}
    quiet = found[min(args.neighbours)]
    for count, rows in found.items():
        for name, row in rows.items():
            times = f"{row['median_ns'] / quiet[name]['median_ns']:.2f} times the quiet median"
            print(f"{count} neighbours  {name:20} {_us(row, 'median_ns'):>10} us, p99 {_us(row, 'p99_ns')}: {times}")
    return found


@contextmanager
def spinning(count: int, threads: int) -> Iterator[None]:
    """Beside so many programs that spin, each on any of the CPUs that runners use."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    code = f"import os\nos.sched_setaffinity(0, {cpus})\nprint(flush=True)\nwhile True: pass"
    programs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for program in programs:
            assert program.stdout is not None
            program.stdout.readline()  # it spins from now on
        yield
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def gaps(args: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Per number of threads: median and 99th percentile of a call in ns, and CPUs in use once nobody calls."""
    from superkernel import GraphBuilder, compile

    found = {}
    for threads in args.threads:
        builder = GraphBuilder("relu")
        builder.output(builder.relu(builder.input("x", (threads, 1 << 14))))
        kernel = compile(builder.graph(), threads=threads, options={"cost_placement": False})
        kernel.bind(np.ones((threads, 1 << 14), np.float32))
        times = timed_with_gaps(kernel.run_bound, CALLS, random.Random(0))
        time.sleep(IDLE_AFTER_S)
        before = time.process_time()
        time.sleep(IDLE_S)
        busy = (time.process_time() - before) / IDLE_S
        median, p99 = float(np.median(times)), float(np.percentile(times, 99))
        found[threads] = {"median_ns": median, "p99_ns": p99, "idle_cpus": busy}
        print(
            f"relu on {threads:3} threads, gaps of 1 us to 10 ms: median {median / 1e3:.1f} us, p99 {p99 / 1e3:.1f} us "
            f"({p99 / median:.1f} times); afterwards {busy:.3f} CPUs in use"
        )
    return found


def timed_with_gaps(call: Any, calls: int, rng: random.Random) -> NDArray[np.int64]:
    """ns of each call; between two of them the caller spins, so that what is measured is not its own waking."""
    low, high = map(np.log, GAPS_S)
    now, times = time.perf_counter_ns, np.empty(calls, np.int64)
    for _ in range(100):
        call()
    for i in range(calls):
        end = now() + int(np.exp(rng.uniform(low, high)) * 1e9)
        while now() < end:
            pass
        start = now()
        call()
        times[i] = now() - start
    return times


def plans(args: argparse.Namespace) -> dict[str, dict[str, dict[int, dict[str, float]]]]:
    """Per profile, workload and number of cores."""
    found: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for path in sorted(PROFILES.glob("*.json")):
        target = reads.profile_target(path)
        counts = [cores for cores in args.cores if cores <= len(target.profile.core_of)]
        for workload in args.workloads if counts else ():
            graph = workload.graph()
            rows = found.setdefault(path.stem, {}).setdefault(workload.name, {})
            for cores in counts:
                row = reads.plan_reads(graph, target, cores)
                rows[cores] = row.to_json()
                print(f"{path.stem:14} {workload.name:20} {cores:3} cores  weights read {row}", flush=True)
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    cpus = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--threads", help="numbers of them (default: 1, 2, 4, ... as there are CPUs)")
    parser.add_argument("--workloads", default=WORKLOADS, help="comma-separated names or patterns")
    parser.add_argument("--neighboured", default=NEIGHBOURED, help="the workload beside which programs spin")
    parser.add_argument("--runners", default=RIVALS, help="beside ours")
    parser.add_argument("--neighbours", default="0,1,4", help="numbers of spinning programs, the quiet one first")
    parser.add_argument("--cores", default="4,8,16,32,64", help="of plans")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.1, help="per slice")
    parser.add_argument("--load-seconds", type=float, default=900.0)
    parser.add_argument("--out", type=Path, help="write what was found here, as JSON")
    args = parser.parse_args(arguments)
    args.parts = args.parts or list(PARTS)
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    args.runners = [OURS, *(name for name in args.runners.split(",") if name and name != OURS)]
    if unknown := [name for name in args.runners if name not in PEERS]:
        parser.error(f"unknown runner {', '.join(unknown)}; there are {', '.join(PEERS)}")
    usual = [1 << i for i in range(7) if 1 << i <= cpus]
    try:
        args.threads = _numbers(args.threads) if args.threads else usual
        args.neighbours, args.cores = _numbers(args.neighbours), _numbers(args.cores)
        args.workloads = choose(args.workloads)
        choose(args.neighboured)
    except ValueError as error:
        parser.error(str(error))
    if max(args.threads) > cpus:
        parser.error(f"there are {cpus} CPUs")
    return args


def _numbers(text: str) -> list[int]:
    return sorted({int(word) for word in text.split(",")})


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    makers = {"table": table, "neighbours": neighbours, "gaps": gaps, "plans": plans}
    found = {part: makers[part](args) for part in args.parts}
    if args.out is not None:
        settings = {"rounds": args.rounds, "seconds": args.seconds, "threads": args.threads}
        data = {"schema": "superkernel.scale/1", "machine": machine.describe(), "settings": settings, **found}
        run.write(args.out, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
