"""The benchmark: every workload in every runner, side by side, checked, with the machine's limits.

    python bench/run.py [--quick] [--workloads 'mlp-*,decode-small'] [--runners superkernel,jax] [--threads 2]
                        [--rounds 15] [--seconds 0.15] [--out FILE.json] [--docs] [--verdict]

Model: one process per measurement (`worker.py`), pinned to the first `--threads` CPUs. All processes of a workload live
side by side, but only the one whose turn it is runs: the others are stopped (SIGSTOP), spinning thread pools
included. A round gives every runner one slice of calls, in an order drawn anew each round; slices begin with calls that
do not count, and are taken again where the CPUs were no cores of their own (`cores.py`). Before any timing each
runner's outputs are compared with the float64 reference; a runner whose outputs are off is not timed.

Two controls say how far the figures can be trusted: `superkernel-again` is ours in a second process (what differs from
ours is noise), and the share of CPU time that other programs used meanwhile.

The end says which targets each workload keeps (`verdict.py`); with `--verdict` a miss is also the exit status.

Writes JSON (`document.py` makes table, plot and page of it, `compare.py` compares two).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boundary
import document
import machine
import numpy as np
from cores import OwnCores
from peers import BF16, INT8, OURS, PEERS, Peer, thread_environment
from stats import ratio, summary
from workloads import Workload, choose, make_inputs

from superkernel.ir.graph import Graph
from superkernel.reference import evaluate

HERE = Path(__file__).resolve().parent
SCHEMA = "superkernel.bench/1"
ERROR_MAX = {"f32": 1e-4, BF16: 5e-2, INT8: 0.2}  # of the largest value of an output
CALLS_MAX = 2000
READS = ""  # in the place of a runner: reads of memory
GAP_S = 0.005


class WorkerError(Exception):
    """What a worker said, or that it said nothing."""


class Worker:
    """A process of one measurement; stopped except while it loads or runs a slice."""

    def __init__(self, workload: Workload, peer: Peer, threads: int, outputs: Path) -> None:
        command = [sys.executable, str(HERE / "worker.py"), workload.name, peer.name, str(threads), str(outputs)]
        environment = {**os.environ, **thread_environment(peer.threads or threads)}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self.buffer = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process with those it started (compilers); their group is its own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def ready(self, seconds_max: float) -> dict[str, Any]:
        """Wait until it is loaded, then stop it."""
        message = self._read(seconds_max)
        if "error" in message:
            raise WorkerError(message["error"])
        self._signal(signal.SIGSTOP)
        return dict(message["ready"])

    def slice(self, seconds: float, calls_max: int, gap_s: float, seconds_max: float) -> tuple[list[float], float]:
        """ns of its calls, and the CPU seconds that it used."""
        assert self.process.stdin is not None
        request = {"seconds": seconds, "calls_max": calls_max, "gap_s": gap_s}
        before = machine.process_seconds(self.process.pid)
        self._signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        message = self._read(seconds_max)
        self._signal(signal.SIGSTOP)
        return message["ns"], machine.process_seconds(self.process.pid) - before

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def _read(self, seconds_max: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        end = time.monotonic() + seconds_max
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise WorkerError(f"no answer within {seconds_max:.0f} s")
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                raise WorkerError(f"ended with status {self.process.wait()}")
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        return dict(json.loads(line))


def largest_error(path: Path, graph: Graph, expected: Mapping[str, Any]) -> float:
    """Largest difference of any output, relative to the output's largest value."""
    worst = 0.0
    with np.load(path) as found:
        for i, name in enumerate(graph.outputs):
            wanted, got = expected[name], found[f"output_{i}"]
            if got.shape != wanted.shape:
                return float("inf")
            error = np.abs(got.astype(np.float64) - wanted).max() / max(float(np.abs(wanted).max()), 1e-30)
            worst = max(worst, float(error) if np.isfinite(error) else float("inf"))
    return worst


class Session:
    """One workload: its workers, what they measured, who else was busy."""

    def __init__(self, workload: Workload, args: argparse.Namespace, stack: ExitStack) -> None:
        self.workload, self.args, self.stack = workload, args, stack
        self.graph = workload.graph()
        self.inputs = make_inputs(self.graph)
        self.rows: dict[str, dict[str, Any]] = {}
        self.workers: dict[str, Worker] = {}
        self.slices: dict[str, list[list[float]]] = {}
        self.nbytes = machine.bytes_moved(self.graph, self.inputs)
        self.reads: dict[int, list[float]] = {cores: [] for cores in sorted({1, args.threads})}
        self.spaced: dict[str, list[float]] = {}
        self.cores = OwnCores(args.threads)

    def load(self, peers: Sequence[Peer], directory: Path) -> None:
        """Start, load and check one runner after the other."""
        expected = evaluate(self.graph, self.inputs, wide=True)
        for peer in peers:
            row = self.rows[peer.name] = {"precision": peer.precision}
            if not peer.installed:
                row.update(status="absent", reason=f"{peer.package} is not installed")
            elif not peer.takes(self.workload):
                row.update(status="not applicable")
            else:
                self._load(peer, row, directory / f"{peer.name}.npz", expected)
            show(f"    {peer.name:<20} {row.get('reason') or row['status']}")

    def _load(self, peer: Peer, row: dict[str, Any], path: Path, expected: Mapping[str, Any]) -> None:
        worker = self.stack.enter_context(Worker(self.workload, peer, self.args.threads, path))
        try:
            facts = worker.ready(self.args.load_seconds)
        except WorkerError as error:
            worker.__exit__()
            row.update(status="failed", reason=str(error))
            return
        off = largest_error(path, self.graph, expected)
        path.unlink()
        row.update(facts, error=off)
        if off <= ERROR_MAX[INT8 if self.workload.quantised else peer.precision]:
            row["status"] = "ok"
            self.workers[peer.name] = worker
        else:
            worker.__exit__()
            row.update(status="wrong", reason=f"outputs are off by {off:.1e}")

    def measure(self, rng: random.Random) -> None:
        """The rounds: every runner's slice, and plain reads of as many bytes. A runner that does not answer is out from
        then on."""
        self.slices = {name: [] for name in self.workers}
        started, busy, here = time.monotonic(), machine.busy_seconds(), machine.process_seconds(os.getpid())
        own = 0.0
        for _ in range(self.args.rounds):
            order = [*self.workers, READS]
            rng.shuffle(order)
            for name in order:
                if name == READS:
                    for cores, gb_per_s in self.cores.measure(self._read).items():
                        self.reads[cores].append(gb_per_s)
                else:
                    own += self._slice(name, 0.0)
        own += machine.process_seconds(os.getpid()) - here
        wall = time.monotonic() - started
        others = max(0.0, machine.busy_seconds() - busy - own) / (wall * machine.describe()["cpus"])
        self.others_share = min(1.0, others)
        if self.args.spaced:
            for name in list(self.workers):
                self._slice(name, GAP_S)

    def _read(self) -> dict[int, float]:
        """Bandwidth by number of cores."""
        return {cores: machine.read_gb_per_s(self.nbytes, cores) for cores in self.reads}

    def _slice(self, name: str, gap_s: float) -> float:
        """Take one; the CPU seconds that the runner used, attempts that do not count included."""
        calls = 40 if gap_s else CALLS_MAX
        seconds = self.args.seconds * (4 if gap_s else 1)
        used = 0.0

        def take() -> list[float]:
            nonlocal used
            times, more = self.workers[name].slice(seconds, calls, gap_s, self.args.load_seconds)
            used += more
            return times

        try:
            times = self.cores.measure(take)
        except WorkerError as error:
            self.rows[name].update(status="failed", reason=str(error))
            del self.workers[name], self.slices[name]
            return used
        if gap_s:
            self.spaced[name] = times
        else:
            self.slices[name].append(times)
        return used

    def result(self, limits: machine.Limits) -> dict[str, Any]:
        """Everything about the workload, plain data."""
        ours = [float(np.median(s)) for s in self.slices.get(OURS, [])]
        for name, slices in self.slices.items():
            row = self.rows[name]
            row.update(summary(slices))
            if name in self.spaced:
                row["spaced_median_ns"] = float(np.median(self.spaced[name]))
            if ours:
                times = ratio(row["slice_medians_ns"], ours)
                row["times_ours"] = [times.median, times.low, times.high]
        return {
            "name": self.workload.name,
            "group": self.workload.group,
            "dispatch_bound": self.workload.dispatch_bound,
            "nodes": len(self.graph.nodes),
            "limit": machine.lower_bound(
                self.graph, self.inputs, limits, {cores: float(np.median(g)) for cores, g in self.reads.items()}
            ),
            "others_cpu_share": self.others_share,
            "slices": {"taken": self.cores.taken, "repeated": self.cores.repeated},
            "runners": self.rows,
        }


def show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def versions(peers: Sequence[Peer]) -> dict[str, str]:
    found = {peer.package: peer.version for peer in peers}
    return {**found, "llvmlite": version("llvmlite"), "numpy": version("numpy")}


def run(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """The whole benchmark as plain data."""
    peers = [PEERS[name] for name in args.runners]
    rng = random.Random(0)
    limits = machine.measure(args.threads)
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command,
        "started_utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "settings": {n: getattr(args, n) for n in ("threads", "rounds", "seconds", "quick")},
        "machine": machine.describe(),
        "versions": versions(peers),
        "limits": limits.to_json(),
        "boundary": boundary.measure(*((7, 100) if args.quick else (15, 200))),
        "workloads": [],
    }
    for workload in args.workloads:
        if workload.missing():
            show(f"{workload.name}: left out, {', '.join(workload.missing())} not installed")
            results["workloads"].append({"name": workload.name, "absent": workload.missing()})
            continue
        show(workload.name)
        with ExitStack() as stack, tempfile.TemporaryDirectory() as directory:
            session = Session(workload, args, stack)
            session.load(peers, Path(directory))
            session.measure(rng)
            results["workloads"].append(session.result(limits))
        write(args.out, results)
    return results


def write(path: Path, results: Mapping[str, Any]) -> None:
    """Whole or not at all, after every workload: an interrupted run keeps what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.replace(path)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few short rounds: to try the benchmark, not to judge by")
    parser.add_argument("--workloads", help="comma-separated names or patterns (default: all that are not quantised)")
    parser.add_argument("--runners", help="comma-separated names (default: all): " + ", ".join(PEERS))
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))))
    parser.add_argument("--rounds", type=int, help="slices per runner (15; quick: 6)")
    parser.add_argument("--seconds", type=float, help="per slice (0.15; quick: 0.04)")
    parser.add_argument("--spaced", action="store_true", help="also time calls that are 5 ms apart")
    parser.add_argument("--load-seconds", type=float, help="how long a runner may take to load (900; quick: 180)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "latest.json")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.{json,svg,md} as well")
    parser.add_argument("--verdict", action="store_true", help="end with status 1 where a target is missed")
    args = parser.parse_args(arguments)
    args.rounds = args.rounds or (6 if args.quick else 15)
    args.seconds = args.seconds or (0.04 if args.quick else 0.15)
    args.load_seconds = args.load_seconds or (180 if args.quick else 900)
    names = list(PEERS) if args.runners is None else [name.strip() for name in args.runners.split(",")]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        parser.error(f"unknown runner {', '.join(unknown)}; there are {', '.join(PEERS)}")
    args.runners = names if OURS in names else [OURS, *names]
    try:
        args.workloads = choose(args.workloads)
    except ValueError as error:
        parser.error(str(error))
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    args = parse(given)
    results = run(args, shlex.join(["python", "bench/run.py", *given]))
    write(args.out, results)
    print(document.terminal(results))
    if args.docs:
        document.write_docs(results)
    return int(args.verdict and any(v.misses for v in document.verdicts(results)))


if __name__ == "__main__":
    sys.exit(main())
