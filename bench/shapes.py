"""Many lengths through one kernel object: an encoder whose sequence length is drawn anew at each call.

    python bench/shapes.py [--quick] [--json] [--calls 1000] [--longest 512] [--layers 6] [--width 384] [--heads 12]

`new length`: time from a call with a length that was not met to its result: *cold* with an empty cache of compiled code
and plans, which is what one length costs once per machine; *again* in another process, which finds both there; `cpu` is
the calling thread's own time. *Late*: of the second half of the lengths that are new, which find the code of the first;
`objects` is how many objects LLVM compiled per length there (lengths share code), `over` the calling thread's time
beyond that of the next call with the same length, which is what the length costs for being new.
`equal`: each result against the one of a kernel compiled for that length alone, in a third process; a result is known
by the SHA-256 of its bytes. `latency`: of a length that was met, the object against the kernel of that length alone, in
turns, medians of slices; the ratio is the median over lengths. `held`: bytes of the object with all its kernels,
against the sum of what each kernel holds alone.

`bucket`: the same through an object with buckets (powers of two) that were compiled ahead. `new_length`: time to the
first result of a new length, `over` the calling thread's time beyond that of the next call with it: writing the
length's graph and proving it; `exact` the same without buckets, where the code of these lengths' tiles is known from
the first half of the lengths. `latency_ratio`: of a length that was met, in its bucket against its own kernel;
`whole_ratio` of the lengths of buckets, where nothing is padded and the ratio is what guards cost. `equal`: the share
of lengths whose results have the same bits, and `apart` the largest difference of the others, relative to the largest
value.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROUNDS, SLICE_NS = 7, 4_000_000
COMPARED = 12  # lengths whose latency is compared
IN_BUCKETS = 24  # lengths that are run in buckets too
THREADS = 2


@dataclass(frozen=True)
class Model:
    """An encoder with post-norm layers on embeddings [1, tokens, width]; weights are made once, and read-only."""

    layers: int
    width: int
    heads: int

    def weights(self) -> dict[str, Array]:
        """By name, [inputs, outputs]; vectors have one row."""
        rng, width = np.random.default_rng(0), self.width
        made: dict[str, Array] = {}
        for i in range(self.layers):
            for name, rows, columns in (
                *((n, width, width) for n in "qkvo"),
                ("up", width, 4 * width),
                ("down", 4 * width, width),
            ):
                made[f"{i}.{name}"] = rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(rows))
                made[f"{i}.{name}.bias"] = np.float32(0.1) * rng.standard_normal(columns, np.float32)
            for name in ("norm1", "norm2"):
                made[f"{i}.{name}"] = 1 + np.float32(0.1) * rng.standard_normal(width, np.float32)
        for array in made.values():
            array.flags.writeable = False
        return made

    def source(self) -> Any:
        """The graph as a function of the length."""
        import superkernel as sk

        weights, heads, size = self.weights(), self.heads, self.width // self.heads

        def encoder(tokens: int) -> sk.GraphBuilder:
            b = sk.GraphBuilder("encoder")
            x = b.input("x", (1, tokens, self.width))

            def dense(value: Any, name: str) -> Any:
                return value @ b.constant(weights[name]) + b.constant(weights[f"{name}.bias"])

            for i in range(self.layers):
                q, k, v = (
                    dense(x, f"{i}.{name}").reshape(1, tokens, heads, size).transpose(0, 2, 1, 3) for name in "qkv"
                )
                mixed = b.attention(q, k, v).transpose(0, 2, 1, 3).reshape(1, tokens, self.width)
                x = b.rms_norm(dense(mixed, f"{i}.o") + x, b.constant(weights[f"{i}.norm1"]), epsilon=1e-5)
                inner = dense(b.gelu(dense(x, f"{i}.up")), f"{i}.down")
                x = b.rms_norm(inner + x, b.constant(weights[f"{i}.norm2"]), epsilon=1e-5)
            b.output(x, name="y")
            return b

        return encoder

    def given(self, tokens: int) -> Array:
        """The input of a length."""
        return np.random.default_rng(tokens).standard_normal((1, tokens, self.width), np.float32)


def late(figures: list[Any]) -> list[Any]:
    """The second half."""
    return figures[len(figures) // 2 :]


def digest(array: Array) -> str:
    """What a result is known by."""
    return hashlib.sha256(array.tobytes()).hexdigest()


def dynamic(model: Model, lengths: list[int], longest: int) -> dict[str, Any]:
    """All calls through one object: results, times of new lengths in ms, bytes."""
    import superkernel as sk
    from superkernel.codegen import processes

    kernel = sk.compile_dynamic(model.source(), {"tokens": (1, longest)}, threads=THREADS)
    kernel.kernels_max = len(lengths)
    compiled: list[Any] = []
    run_jobs = processes.run_jobs

    def counted(work: Any, jobs: Any, *args: Any, **named: Any) -> list[bytes]:
        compiled.extend(jobs)
        return run_jobs(work, jobs, *args, **named)

    processes.run_jobs = counted
    results: dict[int, str] = {}
    new_ms, new_cpu_ms, new_over_ms, new_objects = [], [], [], []
    for tokens in lengths:
        x, met = model.given(tokens), tokens in results
        del compiled[:]
        start, start_cpu = perf_counter_ns(), thread_time_ns()
        y = kernel(x)
        if not met:
            new_ms.append((perf_counter_ns() - start) / 1e6)
            new_cpu_ms.append((thread_time_ns() - start_cpu) / 1e6)
            start_cpu = thread_time_ns()
            kernel(x)
            new_over_ms.append(new_cpu_ms[-1] - (thread_time_ns() - start_cpu) / 1e6)
            new_objects.append(len(compiled))
        if results.setdefault(tokens, digest(y)) != digest(y):
            raise SystemExit(f"two results of length {tokens}")
    alone = sum(sum(kernel.at(tokens=tokens).held().values()) for tokens in results)
    new = {"new_ms": new_ms, "new_cpu_ms": new_cpu_ms, "new_over_ms": new_over_ms, "new_objects": new_objects}
    figures = {**new, "held": kernel.held_bytes, "held_alone": alone}
    return {"results": results, **figures}


def fresh(model: Model, lengths: list[int]) -> dict[str, Any]:
    """Each length compiled for itself alone, and nothing kept of it."""
    import superkernel as sk

    source = model.source()
    return {
        "results": {
            tokens: digest(sk.compile(source(tokens), threads=THREADS)(model.given(tokens)))
            for tokens in dict.fromkeys(lengths)
        }
    }


def latency(model: Model, lengths: list[int], longest: int) -> dict[str, Any]:
    """ns of a call of the object and of the kernel of that length alone, by length."""
    import superkernel as sk

    source = model.source()
    kernel = sk.compile_dynamic(source, {"tokens": (1, longest)}, threads=THREADS)
    kernel.kernels_max = COMPARED
    found = {}
    for tokens in list(dict.fromkeys(lengths))[:COMPARED]:
        x, alone = model.given(tokens), sk.compile(source(tokens), threads=THREADS)
        found[tokens] = list(_in_turn(kernel, alone, x))
    return {"latency": found}


def in_buckets(model: Model, lengths: list[int], longest: int) -> dict[str, Any]:
    """ms of first calls with a length, in buckets and without, of the second half of the lengths; ns of later ones."""
    import superkernel as sk

    source, dims = model.source(), {"tokens": (1, longest)}
    sizes = [1 << power for power in range(4, longest.bit_length()) if 1 << power < longest] + [longest]
    kernel = sk.compile_dynamic(source, dims, threads=THREADS, buckets={"tokens": sizes})
    exact = sk.compile_dynamic(source, dims, threads=THREADS)
    kernel.prepare(*({"tokens": size} for size in sizes))
    found: dict[str, list[float]] = {name: [] for name in ("new_ms", "over_ms", "exact_ms", "ratio", "whole", "apart")}
    chosen = list(dict.fromkeys(lengths))[:IN_BUCKETS]
    for place, tokens in enumerate(chosen):
        x = model.given(tokens)
        ours, new_ms, over_ms = _first(kernel, x)
        theirs, exact_ms, _ = _first(exact, x)
        found["apart"].append(float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
        if place >= len(chosen) // 2:
            in_bucket, alone = _in_turn(kernel, exact, x)
            for name, figure in (("new_ms", new_ms), ("over_ms", over_ms), ("exact_ms", exact_ms)):
                found[name].append(figure)
            found["ratio"].append(in_bucket / alone)
    for size in sizes:
        in_bucket, alone = _in_turn(kernel, exact, model.given(size))
        found["whole"].append(in_bucket / alone)
    return {"buckets": found}


def _in_turn(ours: Any, theirs: Any, x: Array) -> tuple[float, float]:
    """ns of each, median of slices."""
    one, other = zip(*([_slice(call, x) for call in (ours, theirs)] for _ in range(ROUNDS)), strict=True)
    return median(one), median(other)


def _first(kernel: Any, x: Array) -> tuple[Array, float, float]:
    """The result, ms until it was there, and ms of the calling thread beyond those of the next call."""
    gc.collect()
    sleep(0.2)  # what earlier calls left to be done in the background
    start, start_cpu = perf_counter_ns(), thread_time_ns()
    result: Array = kernel(x)
    new, new_cpu = perf_counter_ns() - start, thread_time_ns() - start_cpu
    start_cpu = thread_time_ns()
    kernel(x)
    return result, new / 1e6, (new_cpu - (thread_time_ns() - start_cpu)) / 1e6


def _slice(call: Any, x: Array) -> float:
    """Median ns of calls back to back for a while."""
    times, end = [], perf_counter_ns() + SLICE_NS
    while not times or perf_counter_ns() < end:
        start = perf_counter_ns()
        call(x)
        times.append(perf_counter_ns() - start)
    return median(times)


def in_process(part: str, asked: argparse.Namespace, cache: str) -> dict[str, Any]:
    """A part's figures, from a process of its own."""
    command = [sys.executable, __file__, "--part", part]
    for name in ("calls", "longest", "layers", "width", "heads"):
        command += [f"--{name}", str(getattr(asked, name))]
    environment = {**os.environ, "SK_CACHE_DIR": cache}
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def main() -> int:
    """Print the figures; 1 where results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 calls of up to 48 tokens, 2 layers of 96")
    parser.add_argument("--json", action="store_true")
    for name, default in (("calls", 1000), ("longest", 512), ("layers", 6), ("width", 384), ("heads", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--part", choices=("dynamic", "fresh", "latency", "buckets"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.quick:
        asked.calls, asked.longest, asked.layers, asked.width, asked.heads = 12, 48, 2, 96, 4
    model = Model(asked.layers, asked.width, asked.heads)
    lengths = [int(n) for n in np.random.default_rng(1).integers(1, asked.longest + 1, asked.calls)]
    if asked.part:
        parts = {
            "dynamic": lambda: dynamic(model, lengths, asked.longest),
            "fresh": lambda: fresh(model, lengths),
            "latency": lambda: latency(model, lengths, asked.longest),
            "buckets": lambda: in_buckets(model, lengths, asked.longest),
        }
        print(json.dumps(parts[asked.part]()))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        cold = in_process("dynamic", asked, cache)
        again = in_process("dynamic", asked, cache)
        alone = in_process("fresh", asked, cache)["results"]
        times = in_process("latency", asked, cache)["latency"]
        padded = in_process("buckets", asked, cache)["buckets"]
    equal = sum(cold["results"][n] == again["results"][n] == result for n, result in alone.items())
    figures = {
        "calls": asked.calls,
        "lengths": len(alone),
        "equal": equal,
        "new_length_cold_ms": median(cold["new_ms"][1:]),
        "new_length_late_cpu_ms": median(late(cold["new_cpu_ms"])),
        "new_length_late_over_cpu_ms": median(late(cold["new_over_ms"])),
        "new_length_late_objects": mean(late(cold["new_objects"])),
        "new_length_again_ms": median(again["new_ms"][1:]),
        "new_length_again_cpu_ms": median(again["new_cpu_ms"][1:]),
        "latency_ratio": median(ours / theirs for ours, theirs in times.values()),
        "held_bytes": cold["held"],
        "held_alone_bytes": cold["held_alone"],
        "bucket_new_length_ms": median(padded["new_ms"]),
        "bucket_new_length_most_ms": max(padded["new_ms"]),
        "bucket_new_length_over_cpu_ms": median(padded["over_ms"]),
        "bucket_new_length_exact_ms": median(padded["exact_ms"]),
        "bucket_latency_ratio": median(padded["ratio"]),
        "bucket_whole_ratio": median(padded["whole"]),
        "bucket_equal": sum(apart == 0 for apart in padded["apart"]) / len(padded["apart"]),
        "bucket_apart": max(padded["apart"]),
    }
    if asked.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:30} {value:,.4g}" for name, value in figures.items()))
    return 0 if equal == len(alone) else 1


if __name__ == "__main__":
    sys.exit(main())
