"""The machine: what it is, what it can do, how busy others keep it, and how fast a workload could be on it at best.

Lower bound of a workload: the best over the number of cores it may use (one, or all) of

    max(bytes / read bandwidth, operations / FMA peak, exchanges x core-to-core hand-over)

- bytes: weights (of a table only the rows that are read), inputs, outputs, and the part of the caches that is visible,
  each once. The bandwidth is that of plain reads of as many bytes, measured in turn with the workload: small ones stay
  in caches between calls, and how much of the last cache other programs leave changes from second to second.
- operations: of the graph after its transforms, a multiply-add counted as two, a transcendental as one (too low).
- exchanges: matrix products and convolutions that depend on one another, less one. Between two of them cores exchange
  what they computed; one core alone exchanges nothing. A plan that splits two products so that they need one exchange
  could beat this term.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from superkernel import _core
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.transforms import simplify

BYTES_MIN = 16 << 10  # bandwidth over less is not measurable


def describe() -> dict[str, Any]:
    """What the machine is; nothing that names it."""
    info = Path("/proc/cpuinfo").read_text()
    lines = (line.partition(":") for line in info.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in lines if value}
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd")
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "vector": [flag for flag in wanted if flag in flags],
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "virtual": "hypervisor" in flags,
        "os": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class Limits:
    """What `threads` cores can do, measured now."""

    threads: int
    fma_peak_gflops: float  # of one core
    core_to_core_ns: float  # one way

    def to_json(self) -> dict[str, Any]:
        levels = {"L1": 32 << 10, "L2": 512 << 10, "L3": 8 << 20, "memory": 128 << 20}
        bandwidth = {
            name: {str(n): max(read_gb_per_s(size * n, n) for _ in range(5)) for n in {1, self.threads}}
            for name, size in levels.items()
        }
        return {**asdict(self), "read_gb_per_s": bandwidth}


@cache
def probe() -> _core.Probe:
    """Of this process; its threads sleep while nothing is measured."""
    return _core.Probe(_core.allowed_cpus())


def fma_peak_gflops() -> float:
    """f32 multiply-adds of one core, an FMA counted as two."""
    return max(probe().rate(kind) for kind in ("avx512", "avx2", "plain"))


def core_to_core_ns() -> float:
    """One-way hand-over of a flag between two cores; NaN on one CPU."""
    return probe().handover_ns() if probe().cores > 1 else math.nan


def measure(threads: int) -> Limits:
    """Median of several peaks: the machine's speed drifts."""
    peaks = [fma_peak_gflops() for _ in range(5)]
    hand_over = [core_to_core_ns() for _ in range(5)]
    return Limits(threads, float(np.median(peaks)), float(np.median(hand_over)))


def read_gb_per_s(nbytes: int, threads: int) -> float:
    """Bandwidth of `threads` cores that read `nbytes` together, again and again: the best of a few short trials."""
    return probe().read(max(nbytes, BYTES_MIN) // threads, threads)


def bytes_moved(graph: Graph, inputs: Mapping[str, Any]) -> int:
    """What the lower bound counts as bytes."""
    simple = simplify(graph)
    return traffic_bytes(simple, _visible_share(simple, inputs))


def lower_bound(
    graph: Graph, inputs: Mapping[str, Any], limits: Limits, read_gb_per_s: Mapping[int, float]
) -> dict[str, Any]:
    """The terms and the bound, in ns; `limited_by` names the greatest term, `one_core_ns` is the bound on one core.
    `read_gb_per_s`: over `bytes_moved`, by number of cores."""
    simple = simplify(graph, quantised=True)
    share = _visible_share(simple, inputs)
    nbytes = traffic_bytes(simple, share)
    flops = sum(_flops(simple, node, share) for node in simple.nodes if not _of_integers(simple, node))
    exchanges = max(0, _depth(simple) - 1)
    best: dict[str, Any] = {}
    one_core_ns = 0.0
    for cores in sorted({1, limits.threads}):
        terms = {
            "bytes": nbytes / read_gb_per_s[cores],
            "flops": flops / (limits.fma_peak_gflops * cores),
            "exchanges": exchanges * limits.core_to_core_ns if cores > 1 else 0.0,
        }
        bound = max(terms.values())
        one_core_ns = one_core_ns or bound
        if not best or bound < best["ns"]:
            best = {"ns": bound, "cores": cores, "limited_by": max(terms, key=lambda t: terms[t]), "terms_ns": terms}
    return {
        **best,
        "one_core_ns": one_core_ns,
        "bytes": nbytes,
        "read_gb_per_s": {str(cores): gb_per_s for cores, gb_per_s in read_gb_per_s.items()},
        "flops": flops,
        "exchanges": exchanges,
    }


def _visible_share(graph: Graph, inputs: Mapping[str, Any]) -> float:
    """How much of the caches a step sees."""
    if "position" not in inputs or not graph.states:
        return 1.0
    positions = next(iter(graph.states.values())).shape[2]
    return float((int(inputs["position"][0]) + 1) / positions)


def _of_integers(graph: Graph, node: Node) -> bool:
    """Sums of integers are counted nowhere: how many a core adds at most is not measured here."""
    return not graph.output_types(node)[0].dtype.is_float


def _flops(graph: Graph, node: Node, share: float) -> float:
    count = graph.definition(node).flops(graph.input_types(node), graph.output_types(node), node.attrs)
    bounded = node.op == "attention" and len(node.inputs) > 4 and node.inputs[4] is not None
    return count * share if bounded else count


def traffic_bytes(graph: Graph, share: float) -> int:
    """What has to be read or written once, at least."""
    total = sum(kind.nbytes for kind in graph.inputs.values())
    total += sum(graph.types[name].nbytes for name in graph.outputs)
    total += int(share * sum(array.nbytes for array in graph.states.values()))
    for name, array in graph.constants.items():
        reads = [
            graph.types[node.outputs[0]].nbytes if _is_table(node, name) else array.nbytes
            for node in graph.consumers.get(name, ())
        ]
        total += min(array.nbytes, max(reads, default=0))
    return total


def _is_table(node: Node, name: str) -> bool:
    return (node.op == "gather" and node.inputs[0] == name) or (node.op == "rope" and name in node.inputs[1:3])


def _depth(graph: Graph) -> int:
    """Products and convolutions (not depthwise ones) on the longest path."""
    depth: dict[str, int] = {}
    for node in graph.nodes:
        family = graph.definition(node).family
        counts = family is Family.MATMUL or (family is Family.CONV and node.attrs["groups"] == 1)
        below = max((depth.get(i, 0) for i in node.inputs if i is not None), default=0)
        depth.update(dict.fromkeys(node.outputs, below + counts))
    return max((depth.get(name, 0) for name in graph.outputs), default=0)


# Who else is busy -----------------------------------------------------------------------------------------------------


def busy_seconds() -> float:
    """CPU time that anybody used since boot, time stolen by the hypervisor included."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """CPU time of a process with its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
