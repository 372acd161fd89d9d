"""How often plans for a machine read its weights, from the plans alone: neither the machine nor its CPU is needed.

    python bench/reads.py [--profile tests/machines/xeon-16.json] [--cores 2,4,16] [--only 'encoder*'] [--json]

Per workload and number of cores: bytes of constants that all tasks read, per byte of constants that a sub-operator
reads (tables of gathers apart, of which it reads some rows). 1 is the least; where every core reads all weights it is
the number of cores. `shared`: without what cores find in their own second-level caches, where all that they read of
constants fits from launch to launch. Beside it waits, and the time by the cost model.

Where weights are read more than 1.3 times: what the least reading would cost. Of each sub-operator's partitions the
fastest and those that read less are taken, so that in all no byte is read more than 1.3 times and the sum of the times
grows least (a time per byte that is not read decides, the same for all). `at least`: the plan's time with what the
longest ranges take longer then; what more waiting comes to is not in it. In brackets how often they still read, where
no partitions read less.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import workloads

from superkernel.backends.host.planner import HostPlanner
from superkernel.compilation.compiled import Job
from superkernel.compilation.planning import plan_graph
from superkernel.compilation.stages import Stages
from superkernel.core.options import Options
from superkernel.core.tensor import Region
from superkernel.ir.body import Role, SubOperator
from superkernel.ir.graph import Graph
from superkernel.scheduler.cost import CostBook, Partition
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.families.costing import KEPT_SHARE
from superkernel.scheduler.place import predicted_ns, streamed_bytes
from superkernel.scheduler.schedule import Schedule, Space, Task
from superkernel.scheduler.tiling import CostedTiling
from superkernel.target.cpu import AVX2, AVX512, CpuTarget, cpu_target
from superkernel.target.machine import load_profile

PROFILE = Path(__file__).parents[1] / "tests" / "machines" / "xeon-16.json"
CORES = (2, 4, 8, 16)
TIMES_MOST = 1.3


@dataclass(frozen=True)
class Reads:
    """Of a plan: bytes that tasks read of constants, those from caches or memory that cores share, and of how many
    different ones; waits; the cost model's time; the same, at least, and how often bytes are read, of partitions that
    read little."""

    read_bytes: int
    shared_bytes: int
    constant_bytes: int
    waits: int
    predicted_ns: float
    sparing_ns: float
    sparing_times: float

    @property
    def times(self) -> float:
        """How often each byte is read; 1 where there is none."""
        return self.read_bytes / self.constant_bytes if self.constant_bytes else 1.0

    @property
    def shared_times(self) -> float:
        """The same of what cores share."""
        return self.shared_bytes / self.constant_bytes if self.constant_bytes else 0.0

    def to_json(self) -> dict[str, float]:
        """Plain data: how often each byte is read, MB of them, waits, predicted us."""
        return {
            "times": round(self.times, 2),
            "shared_times": round(self.shared_times, 2),
            "mb": round(self.constant_bytes / 2**20, 1),
            "waits": self.waits,
            "predicted_us": round(self.predicted_ns / 1e3, 1),
            "sparing_us": round(self.sparing_ns / 1e3, 1),
            "sparing_times": round(self.sparing_times, 2),
        }

    def __str__(self) -> str:
        read = f"{self.times:5.2f} x, shared {self.shared_times:5.2f} x"
        text = f"{read}, {self.waits:5} waits, {self.predicted_ns / 1e3:9.1f} us"
        if self.times <= TIMES_MOST:
            return text
        return f"{text} (at {self.sparing_times:.2f} x at least {self.sparing_ns / 1e3:.1f})"


def profile_target(profile: str | Path) -> CpuTarget:
    """A machine of a profile's file, with the instruction sets that most servers have."""
    features = (*AVX2, *AVX512, "avx512vnni", "avx512bf16")
    return cpu_target("x86_64-unknown-linux-gnu", "avx512", features, load_profile(profile))


def plan_reads(graph: Graph, target: CpuTarget, cores: int) -> Reads:
    """Plans a graph for so many cores of a target and counts."""
    job = Job(graph, target, cores, Options())
    planned = plan_graph(Stages(frozenset()), job, HostPlanner(job, HOST_KERNELS))
    schedule, predicted = planned.schedule, predicted_ns(planned.grouping, target, cores, job.options)
    streaming = replace(target, constants_bytes=streamed_bytes(planned.grouping))
    read, constants = constant_reads(schedule)
    longer, spared = sparing(schedule, CostBook(streaming, cores, family_of), TIMES_MOST)
    shared = shared_reads(schedule, target)
    return Reads(read, shared, constants, planned.plan.waits, predicted, predicted + longer, spared)


def constant_reads(schedule: Schedule) -> tuple[int, int]:
    """Bytes of constants that all tasks read, and that each sub-operator does, whoever reads them."""
    read, spans = 0, defaultdict[int, list[tuple[int, int]]](list)
    for task in schedule.tasks:
        nbytes, found = _constants(schedule, task)
        read += nbytes
        spans[task.subop] += found
    return read, sum(map(covered, spans.values()))


def shared_reads(schedule: Schedule, target: CpuTarget) -> int:
    """Bytes of constants that tasks read which their core's second-level cache does not keep."""
    read, spans = defaultdict[int, int](int), defaultdict[int, list[tuple[int, int]]](list)
    for task in schedule.tasks:
        nbytes, found = _constants(schedule, task)
        read[task.core] += nbytes
        spans[task.core] += found
    return sum(n for core, n in read.items() if covered(spans[core]) > KEPT_SHARE * target.l2_bytes)


def sparing(schedule: Schedule, book: CostBook, times: float) -> tuple[float, float]:
    """By how many ns the longest ranges of a schedule's sub-operators together take longer, at least, where none of
    their constants is read more than so often in all, and how often they are then."""
    choices, constants = [], 0
    for sub, tiling in zip(schedule.subops, schedule.tilings, strict=True):
        spans = [(t.begin, t.end) for t in schedule.tasks if t.subop == sub.index]
        if sub.body.op == "gather" or not spans or not isinstance(tiling, CostedTiling):
            continue
        own = book.cut(sub, tiling, [spans[0][0], *(end for _, end in spans)])
        least, taken = _excess(book, sub, own)
        constants += least
        if taken == 0:
            continue
        others = [book.partition(sub, t, n) for t in book.tilings(sub) for n in book.counts if n <= max(1, t.units)]
        rows = {(max(0.0, p.longest_ns - own.longest_ns), _excess(book, sub, p)[1]) for p in others}
        choices.append(sorted({(0.0, taken), *rows}))
    most = (times - 1.0) * constants

    def at(price: float) -> tuple[float, int]:
        """ns and bytes read again, where such a byte costs so much."""
        taken = [min(rows, key=lambda row: (row[0] + price * row[1], row[1])) for rows in choices]
        return sum(ns for ns, _ in taken), sum(n for _, n in taken)

    low, high = 1e-6, 1e6  # ns per byte
    if at(low)[1] <= most:
        high = low
    for _ in range(50):
        price = (low * high) ** 0.5
        low, high = (low, price) if at(price)[1] <= most else (price, high)
    longer, again = at(high)
    return longer, 1.0 + again / constants if constants else 1.0


def _excess(book: CostBook, sub: SubOperator, partition: Partition) -> tuple[int, int]:
    """Bytes of constants that a partition reads, and those that it reads once more."""
    read, spans = 0, defaultdict[int, list[tuple[int, int]]](list)
    for part in partition.ranges:
        for access in book.accesses(sub.body, partition.tiling, part):
            if sub.body.operands[access.operand].role is Role.CONSTANT:
                read += sum(region.nbytes for region in access.regions)
                spans[access.operand] += _spans(access.regions)
    least = sum(map(covered, spans.values()))
    return least, read - least


def _constants(schedule: Schedule, task: Task) -> tuple[int, list[tuple[int, int]]]:
    """Bytes of constants that a task reads, and where they lie; of gathers none."""
    if schedule.subops[task.subop].body.op == "gather":
        return 0, []
    regions = [r for a in task.accesses if a.space is Space.CONSTANT for r in a.regions]
    return sum(r.nbytes for r in regions), _spans(regions)


def _spans(regions: Iterable[Region]) -> list[tuple[int, int]]:
    """Their runs."""
    return [(s, s + r.length) for r in regions for s in (r.start + i * r.stride for i in range(r.count))]


def covered(spans: list[tuple[int, int]]) -> int:
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
            for cores, row in rows.items():
                print(f"{workload.name:20} {row.constant_bytes / 2**20:7.1f} MB  {cores:3} cores  {row}", flush=True)
    if args.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
