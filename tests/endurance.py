"""Long runs in a process of their own: what the process holds must not grow, and every result must be right.

    python tests/endurance.py compilations 10000
    python tests/endurance.py launches 1000000

Compilations: host and accelerator, graphs never seen before, seen in this process, and from the cache; saved kernels;
graphs that are refused. Launches: kernels of one to three cores and of many sub-operators, shared by eight threads, by
call, by `run`, bound, and through the C function; each result is compared bit for bit with the first one for its
inputs, which is the reference's. Threads and handles must be those of the first quarter; mappings and memory must not
have grown since by more than the heap's own ups and downs. Prints what it measured; ends with status 1 where something
is wrong.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import models
import numpy as np
from numpy.typing import NDArray

import superkernel as sk
import superkernel._core
from superkernel.reference import evaluate

GROWTH_MAX = {"threads": 0, "handles": 0, "mappings": 16, "resident_bytes": 8 << 20}
THREADS = 8
INPUTS = 4  # per kernel
UNCACHED = sk.Options(cache=False)


@dataclass(frozen=True)
class Held:
    """What this process has, apart from objects that wait for the collector."""

    threads: int
    handles: int
    mappings: int
    resident_bytes: int

    @staticmethod
    def now() -> Held:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        mappings = Path("/proc/self/maps").read_text().count("\n")
        return Held(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), mappings, resident)

    def growth_since(self, early: Held) -> list[str]:
        """What has grown, as text."""
        before, now = asdict(early), asdict(self)
        return [
            f"{what}: {before[what]}, then {now[what]}" for what in now if now[what] - before[what] > GROWTH_MAX[what]
        ]


# Compilations ---------------------------------------------------------------------------------------------------------


def chain(rows: int, columns: int) -> sk.Graph:
    """Two softmax of rows, each behind a sum."""
    b = sk.GraphBuilder(f"chain{rows}x{columns}")
    h = b.input("x", (rows, columns))
    for i in range(2):
        h = b.softmax(b.relu(h) + float(i), axis=-1)
    b.output(h, name="y")
    return b.graph()


def run(kernel: sk.Kernel) -> None:
    """Once, with zeros."""
    kernel(*(np.zeros(t.shape, t.dtype.numpy) for t in kernel.inputs.values()))


def refused(number: int) -> None:
    """A compilation that fails late: a worker would wait for ever."""
    b = sk.GraphBuilder(f"refused{number}")
    b.output(b.cumsum(b.input("x", (3, 4 + number), "f32"), axis=0), name="y")
    try:
        sk.compile(b.graph(), threads=2, options={"fallback": "forbid", "deny": ("host.*",)})
    except sk.SuperKernelError:
        return
    raise AssertionError("a graph without kernels was compiled")


def compilations(count: int) -> list[str]:
    """So many, in turn of each kind; what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "kernel.skm"
        sk.compile(models.transformer(tokens=8, width=32, heads=2), threads=2).save(saved)
        kinds: list[Callable[[int], object]] = [
            lambda i: run(sk.compile(chain(3 + i // 499, 16 + i % 499), threads=2, options=UNCACHED)),
            lambda i: run(sk.compile(chain(64, 48), threads=2, options=UNCACHED)),
            lambda i: run(sk.compile(models.mlp((8 + i // 499, 8 + i % 499, 4)), threads=2, options=UNCACHED)),
            lambda i: run(sk.compile(chain(8 + i % 8, 32), threads=2)),
            lambda i: run(sk.load(saved)),
            lambda i: sk.compile(chain(3 + i // 499, 16 + i % 499), target="mini", options=UNCACHED),
            refused,
        ]
        return watched(count, lambda i: kinds[i % len(kinds)](i))


def watched(count: int, work: Callable[[int], object]) -> list[str]:
    """Does it so often; what has grown since the first quarter."""
    early = Held.now()
    for i in range(count):
        if i % -(-count // 20) == 0:
            now = Held.now()
            early = now if i <= count // 4 else early
            print(i, now, flush=True)
        work(i)
    print(count, Held.now())
    return Held.now().growth_since(early)


# Launches -------------------------------------------------------------------------------------------------------------


@dataclass
class Shared:
    """A kernel that all threads run, with inputs and their results."""

    kernel: Any
    inputs: list[list[NDArray[Any]]]
    results: list[list[bytes]]

    @staticmethod
    def of(graph: sk.Graph, cores: int) -> Shared:
        kernel = sk.compile(graph, threads=cores, options={"cost_placement": False})
        rng = np.random.default_rng(0)
        given, results = [], []
        for _ in range(INPUTS):
            arrays = [rng.standard_normal(t.shape).astype(t.dtype.numpy) for t in kernel.inputs.values()]
            found = list(kernel.run(arrays).outputs.values())
            want = evaluate(graph, dict(zip(kernel.inputs, arrays, strict=True)))
            for value, array in zip(graph.outputs, found, strict=True):
                np.testing.assert_allclose(array, want[value], rtol=1e-3, atol=1e-4)
            given.append(arrays)
            results.append([array.tobytes() for array in found])
        return Shared(kernel, given, results)


class Caller:
    """What one thread does: launches by all ways there are."""

    def __init__(self, kernels: list[Shared], seed: int) -> None:
        self.kernels, self.random, self.wrong = kernels, random.Random(seed), 0
        self.bound = [shared.kernel.bind(*map(np.copy, shared.inputs[0])) for shared in kernels]

    def launch(self) -> None:
        """One launch and the comparison of its results."""
        which = self.random.randrange(len(self.kernels))
        shared, bound = self.kernels[which], self.bound[which]
        case, way = self.random.randrange(INPUTS), self.random.randrange(8)
        arrays = shared.inputs[case]
        if way == 0:
            found = list(shared.kernel.run(arrays).outputs.values())
        elif way < 4:
            result = shared.kernel(*arrays)
            found = list(result) if isinstance(result, tuple) else [result]
        else:
            for to, array in zip(bound.inputs.values(), arrays, strict=True):
                to[...] = array
            found = list(bound.outputs.values())
            for array in found:
                array.view(np.uint8).fill(0xA5)
            if way == 4:
                self.wrong += bound.function(bound.self_address) != 0
            else:
                bound.run()
        self.wrong += [array.tobytes() for array in found] != shared.results[case]


def launches(count: int) -> list[str]:
    """So many, from all threads together; what is wrong."""
    kernels = [
        Shared.of(models.mlp((16, 24, 8)), 1),
        Shared.of(chain(24, 32), 2),
        Shared.of(models.transformer(tokens=8, width=32, heads=2), 2),
        Shared.of(chain(16, 16), 3),
        Shared.of(models.transformer(layers=1, tokens=8, width=16, heads=1), 1),
    ]
    callers = [Caller(kernels, seed) for seed in range(THREADS)]
    quarters = threading.Barrier(THREADS + 1)
    errors: list[BaseException] = []

    def work(caller: Caller) -> None:
        try:
            for _ in range(4):
                for _ in range(count // 4 // THREADS):
                    caller.launch()
                quarters.wait()
                quarters.wait()
        except BaseException as error:
            errors.append(error)
            quarters.abort()

    threads = [threading.Thread(target=work, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    held: list[Held] = []
    try:
        for _ in range(4):
            quarters.wait()
            held.append(Held.now())
            print(held[-1], flush=True)
            quarters.wait()
    except threading.BrokenBarrierError:
        pass
    for thread in threads:
        thread.join()
    wrong = [
        f"{type(error).__name__}: {error}" for error in errors if not isinstance(error, threading.BrokenBarrierError)
    ]
    wrong += [f"caller {i}: {caller.wrong} wrong results" for i, caller in enumerate(callers) if caller.wrong]
    return [*wrong, *(held[-1].growth_since(held[0]) if len(held) == 4 else [])]


def main() -> int:
    """See the module docstring."""
    kind, count = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore", sk._core.OversubscriptionWarning)
    start = time.process_time()
    wrong = {"compilations": compilations, "launches": launches}[kind](count)
    print(f"{count} {kind}, {time.process_time() - start:.0f} s of CPU time")
    print("\n".join(wrong) or "nothing grew, nothing was wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
