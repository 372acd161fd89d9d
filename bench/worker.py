"""The process of one measurement: loads one workload in one runner, then times slices of calls when asked to.

    python bench/worker.py WORKLOAD RUNNER THREADS OUTPUTS.npz

Protocol: one JSON value per line. It writes {"ready": ...} once the workload is loaded and its outputs are written to
OUTPUTS.npz, or {"error": ...} and ends. Then it reads {"seconds": s, "calls_max": n, "gap_s": g} and answers with
{"ns": [...]}, until its input ends. What libraries print goes to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

WARMUP_SECONDS = 0.02
WARMUP_CALLS_MAX = 200


def time_calls(call: Callable[[], object], seconds: float, calls_max: int, gap_s: float = 0.0) -> NDArray[np.int64]:
    """ns of each call, at least one; with a gap the caller sleeps between calls, as a program that serves requests."""
    now, sleep = time.perf_counter_ns, time.sleep
    end = now() + int(WARMUP_SECONDS * 1e9)
    for _ in range(WARMUP_CALLS_MAX):
        call()
        if now() > end:
            break
    times = np.empty(calls_max, np.int64)
    end = now() + int(seconds * 1e9)
    count = 0
    while count < calls_max:
        if gap_s:
            sleep(gap_s)
        start = now()
        call()
        stop = now()
        times[count] = stop - start
        count += 1
        if stop > end:
            break
    return times[:count]


def load(workload_name: str, peer_name: str, threads: int, path: str) -> tuple[Callable[[], object], dict[str, Any]]:
    """Load, run once, write the outputs; the call and what there is to say about it."""
    from peers import PEERS, Task, import_peer
    from workloads import WORKLOADS, make_inputs

    workload, peer = WORKLOADS[workload_name], PEERS[peer_name]
    import_peer(peer)
    graph = workload.graph()
    task = Task(workload, graph, make_inputs(graph), peer.threads or threads)
    start = time.perf_counter()
    runner = peer.load(task)
    outputs = runner.outputs()
    seconds = time.perf_counter() - start
    arrays: dict[str, Any] = {f"output_{i}": outputs[name] for i, name in enumerate(graph.outputs)}
    np.savez(path, **arrays)
    return runner.call, {"load_s": seconds, "facts": dict(runner.facts)}


def main(arguments: list[str]) -> int:
    workload, peer, threads, path = arguments
    cpus = sorted(os.sched_getaffinity(0))[: int(threads)]
    os.sched_setaffinity(0, cpus)
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")

    try:
        call, facts = load(workload, peer, int(threads), path)
    except Exception as error:  # every failure of a peer is a line of the table, not the end of the run
        lines = str(error).strip().splitlines() or [""]
        say({"error": f"{type(error).__name__}: {lines[0][:200]}"})
        return 1
    gc.collect()
    gc.disable()
    say({"ready": facts})
    for line in sys.stdin:
        request = json.loads(line)
        times = time_calls(call, request["seconds"], request["calls_max"], request.get("gap_s", 0.0))
        say({"ns": times.tolist()})
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # thread pools of some libraries do not end cleanly
