"""The machine's own limits, measured now, and how near two plain workloads come to them.

    python bench/limits.py [--json] [--quick]

FMA peak of one core (f32), read bandwidth of one and of two cores, core-to-core hand-over; then a 1024x1024x1024 f32
matrix product on one and two cores against the peak, and a 4096x4096 f32 matrix-vector product against the bandwidth,
and against itself in a process that gets no huge pages (Linux). Limit and workload are measured in turn, several times,
because the machine's speed drifts: the figure is the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import machine
import numpy as np

import superkernel as sk

N = 1024
GEMV = 4096
BANDWIDTH_BYTES = GEMV * GEMV * 4
PR_SET_THP_DISABLE = 41  # <linux/prctl.h>


def matmul_kernel(threads: int) -> sk.Kernel:
    """x f32[N, N] times a constant f32[N, N]."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("matmul")
    x = b.input("x", (N, N), "f32")
    b.output(b.matmul(x, b.constant(rng.standard_normal((N, N), dtype=np.float32), name="w")), name="y")
    return sk.compile(b.graph(), threads=threads)


def gemv_kernel(threads: int) -> sk.Kernel:
    """x f32[1, GEMV] times a constant f32[GEMV, GEMV]: 64 MiB of weights, more than the caches hold."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("gemv")
    x = b.input("x", (1, GEMV), "f32")
    b.output(b.matmul(x, b.constant(rng.standard_normal((GEMV, GEMV), dtype=np.float32), name="w")), name="y")
    return sk.compile(b.graph(), threads=threads)


def median_ns(kernel: sk.Kernel, rounds: int) -> float:
    """Median launch time on random inputs."""
    return float(np.median(kernel.time(rounds=rounds)))


def ratios(limit: Callable[[], float], work: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """Medians of limit, of work, and of work/limit pair by pair."""
    pairs = [(limit(), work()) for _ in range(rounds)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


class SmallPages:
    """The matrix-vector product on one core in a process of its own, without huge pages."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--small-pages"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def gb_per_s(self) -> float:
        """Measured now; raises ValueError where the system cannot switch huge pages off."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __enter__(self) -> SmallPages:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def serve_small_pages() -> int:
    """The other side of `SmallPages`: a figure per line that is read."""
    if ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        return 1
    kernel = gemv_kernel(1)
    for _ in sys.stdin:
        print(BANDWIDTH_BYTES / median_ns(kernel, 7), flush=True)
    return 0


def huge_page_gain(kernel: sk.Kernel, rounds: int) -> float | None:
    """Speed with huge pages over speed without; None where that cannot be measured."""
    try:
        with SmallPages() as small:
            return ratios(small.gb_per_s, lambda: BANDWIDTH_BYTES / median_ns(kernel, 7), rounds)[2]
    except (ValueError, OSError):
        return None


def measure(rounds: int) -> dict[str, Any]:
    """All figures, plain data."""
    flops, weights = 2 * N**3, GEMV * GEMV * 4
    one, two, narrow, wide = matmul_kernel(1), matmul_kernel(2), gemv_kernel(1), gemv_kernel(2)
    peak, gflops_1, share = ratios(machine.fma_peak_gflops, lambda: flops / median_ns(one, 7), rounds)
    _, gflops_2, scaling = ratios(lambda: flops / median_ns(one, 5), lambda: flops / median_ns(two, 5), rounds)
    read_1, gemv_1, gemv_share_1 = ratios(
        lambda: machine.read_gb_per_s(BANDWIDTH_BYTES, 1), lambda: weights / median_ns(narrow, 7), rounds
    )
    read_2, gemv_2, gemv_share_2 = ratios(
        lambda: machine.read_gb_per_s(BANDWIDTH_BYTES, 2), lambda: weights / median_ns(wide, 7), rounds
    )
    return {
        "fma_peak_gflops_per_core": peak,
        "read_gb_per_s": {"1 core": read_1, "2 cores": read_2},
        "core_to_core_ns": machine.core_to_core_ns(),
        "matmul_1024": {"gflops_1": gflops_1, "share_of_peak_1": share, "gflops_2": gflops_2, "scaling_2": scaling},
        "gemv_4096": {
            "gb_per_s_1": gemv_1,
            "share_of_read_1": gemv_share_1,
            "gb_per_s_2": gemv_2,
            "share_of_read_2": gemv_share_2,
            "huge_pages_gain_1": huge_page_gain(narrow, rounds),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--small-pages", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.small_pages:
        return serve_small_pages()
    figures = measure(3 if args.quick else 9)
    if args.json:
        print(json.dumps(figures, indent=2))
        return 0
    mm, mv = figures["matmul_1024"], figures["gemv_4096"]
    read = figures["read_gb_per_s"]
    print(f"FMA peak f32, one core:        {figures['fma_peak_gflops_per_core']:7.1f} GFLOP/s")
    print(f"read bandwidth over 64 MiB:    {read['1 core']:7.1f} GB/s one core, {read['2 cores']:.1f} GB/s two")
    print(f"core-to-core hand-over:        {figures['core_to_core_ns']:7.1f} ns")
    print(f"matmul 1024^3 f32, one core:   {mm['gflops_1']:7.1f} GFLOP/s = {mm['share_of_peak_1']:.0%} of peak")
    print(f"matmul 1024^3 f32, two cores:  {mm['gflops_2']:7.1f} GFLOP/s = {mm['scaling_2']:.2f}x one core")
    print(
        f"gemv 4096^2 f32, one core:     {mv['gb_per_s_1']:7.1f} GB/s = {mv['share_of_read_1']:.0%} of read bandwidth"
    )
    if (gain := mv["huge_pages_gain_1"]) is not None:
        print(f"the same without huge pages:   {mv['gb_per_s_1'] / gain:7.1f} GB/s; huge pages make it {gain:.2f}x")
    print(
        f"gemv 4096^2 f32, two cores:    {mv['gb_per_s_2']:7.1f} GB/s = {mv['share_of_read_2']:.0%} of read bandwidth"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
