"""How often plans for a machine read its weights, from the plans alone: neither the machine nor its CPU is needed.

    python bench/reads.py [--profile tests/machines/xeon-16.json] [--cores 2,4,16] [--only 'encoder*'] [--json]

Per workload and number of cores: bytes of constants that all tasks read, per byte of constants that a sub-operator
reads (tables of gathers apart, of which it reads some rows). 1 is the least; where every core reads all weights it is
the number of cores. Beside it waits, and the time by the cost model.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workloads

from superkernel.backends.host.planner import HostPlanner
from superkernel.compilation.compiled import Job
from superkernel.compilation.planning import plan_graph
from superkernel.compilation.stages import Stages
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.place import predicted_ns
from superkernel.scheduler.schedule import Schedule, Space
from superkernel.target.cpu import AVX2, AVX512, CpuTarget, cpu_target
from superkernel.target.machine import load_profile

PROFILE = Path(__file__).parents[1] / "tests" / "machines" / "xeon-16.json"
CORES = (2, 4, 8, 16)


@dataclass(frozen=True)
class Reads:
    """Of a plan: bytes that tasks read of constants, and of how many different ones; waits; the cost model's time."""

    read_bytes: int
    constant_bytes: int
    waits: int
    predicted_ns: float

    @property
    def times(self) -> float:
        """How often each byte is read; 1 where there is none."""
        return self.read_bytes / self.constant_bytes if self.constant_bytes else 1.0

    def to_json(self) -> dict[str, float]:
        """Plain data: how often each byte is read, MB of them, waits, predicted us."""
        mb, us = self.constant_bytes / 2**20, self.predicted_ns / 1e3
        return {"times": round(self.times, 2), "mb": round(mb, 1), "waits": self.waits, "predicted_us": round(us, 1)}


def profile_target(profile: str | Path) -> CpuTarget:
    """A machine of a profile's file, with the instruction sets that most servers have."""
    features = (*AVX2, *AVX512, "avx512vnni", "avx512bf16")
    return cpu_target("x86_64-unknown-linux-gnu", "avx512", features, load_profile(profile))


def plan_reads(graph: Graph, target: CpuTarget, cores: int) -> Reads:
    """Plans a graph for so many cores of a target and counts."""
    job = Job(graph, target, cores, Options())
    planned = plan_graph(Stages(frozenset()), job, HostPlanner(job, HOST_KERNELS))
    predicted = predicted_ns(planned.grouping, target, cores, job.options)
    return Reads(*constant_reads(planned.schedule), planned.plan.waits, predicted)


def constant_reads(schedule: Schedule) -> tuple[int, int]:
    """Bytes of constants that all tasks read, and that each sub-operator does, whoever reads them."""
    read, spans = 0, defaultdict[int, list[tuple[int, int]]](list)
    for task in schedule.tasks:
        if schedule.subops[task.subop].body.op == "gather":
            continue
        for access in task.accesses:
            if access.space is Space.CONSTANT:
                for region in access.regions:
                    read += region.nbytes
                    starts = (region.start + i * region.stride for i in range(region.count))
                    spans[task.subop] += ((start, start + region.length) for start in starts)
    return read, sum(map(_covered, spans.values()))


def _covered(spans: list[tuple[int, int]]) -> int:
    """Bytes that intervals cover."""
    total, end = 0, 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default=str(PROFILE), help="of the machine (default: 16 cores)")
    parser.add_argument("--cores", default=",".join(map(str, CORES)), help="numbers of cores")
    parser.add_argument("--only", help="workloads, comma-separated patterns")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    args = parser.parse_args()
    target = profile_target(args.profile)
    counts = [int(count) for count in args.cores.split(",")]
    found: dict[str, dict[int, Any]] = {}
    for workload in workloads.choose(args.only):
        graph = workload.graph()
        rows = {cores: plan_reads(graph, target, cores) for cores in counts}
        found[workload.name] = {cores: row.to_json() for cores, row in rows.items()}
        if not args.json:
            row = "  ".join(f"{r.times:5.2f} x ({r.waits} waits, {r.predicted_ns / 1e3:.0f} us)" for r in rows.values())
            print(f"{workload.name:28} {rows[counts[0]].constant_bytes / 2**20:8.1f} MB  {row}", flush=True)
    if args.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
