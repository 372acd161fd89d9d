"""Cost estimates shared by the kernel families: how long instructions and memory take on one core.

Figures are starting points, in full-width vector instructions per element operation; they need only rank tilings and
tell work that is worth sharing between cores from work that is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TypeVar

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ops.table import traits_of
from superkernel.scheduler.tiling import CostedTiling
from superkernel.target.cpu import CpuTarget

CostedT = TypeVar("CostedT", bound=CostedTiling[CpuTarget])

MANY_CORES = 4
"""From more cores on cuts are looked for that these share well, whatever they cost one core."""
CALL_NS = 20.0  # entering a kernel function, setting up loops
BF16_WEIGHT = 8.0  # rounding a vector to bf16 by integer arithmetic
L2, L3, MEMORY = "l2", "l3", "memory"
KEPT_SHARE = 0.75  # of a cache that a program's constants may fill and still all be there at the next launch


def program_weight(program: PointwiseProgram) -> float:
    """Vector instructions per vector of positions: loads, stores, arithmetic."""
    weight = float(len(program.inputs) + sum(1 for o in program.outputs if o.target >= 0))
    rounds = [o for o in program.outputs if o.target >= 0 and program.dtype_of(o.value) is DType.BF16]
    weight += BF16_WEIGHT * len(rounds)
    for instruction in program.instructions:
        weight += traits_of(instruction.op).weight * (2.0 if instruction.dtype is DType.F64 else 1.0)
    return weight


def program_traffic(program: PointwiseProgram, itemsizes: Sequence[int]) -> float:
    """Bytes that a program reads and writes over its whole space, broadcasts counted once. `itemsizes` by operand."""
    walks = [(i.source, i.strides) for i in program.inputs if i.source >= 0]
    walks += [(o.target, o.strides) for o in program.outputs if o.target >= 0]
    return float(
        sum(
            itemsizes[operand] * prod(d for d, s in zip(program.shape, strides, strict=True) if s)
            for operand, strides in walks
        )
    )


def band_counts(rows: int, target: CpuTarget) -> Iterator[int]:
    """How many bands of so many rows (or blocks of them) are worth a look where both they and what is beside them are
    shared: fewer than cores."""
    bands = 2
    while bands < min(target.cores, rows + 1):
        yield bands
        bands *= 2


def best_whole_and_shared(body: Body, found: Sequence[CostedT], target: CpuTarget) -> list[CostedT]:
    """Of some cuts the fastest on one core, and where there are many cores the one whose first share is."""
    if not found:
        return []
    best = [min(found, key=lambda t: t.cost_ns(body, 0, t.units, target))]
    if target.cores > MANY_CORES:
        best.append(min(found, key=lambda t: t.cost_ns(body, 0, -(-t.units // target.cores), target)))
    return list(dict.fromkeys(best))


def vector_ns(target: CpuTarget) -> float:
    """Time of one vector instruction in a throughput-bound loop (a multiply-add is 2 flops per f32 lane)."""
    return 2.0 * (target.vector_bytes // 4) / target.flops_per_ns


def elements_ns(count: float, weight: float, target: CpuTarget, dtype_bytes: int = 4) -> float:
    """Time of `count` elements at `weight` instructions per vector."""
    lanes = max(1, target.vector_bytes // max(1, dtype_bytes))
    return count / lanes * weight * vector_ns(target)


def memory_ns(nbytes: float, footprint: float, target: CpuTarget) -> float:
    """Time to move `nbytes` where the sub-operator's whole data is `footprint` bytes: L2, L3 or memory speed."""
    if footprint <= target.l2_bytes:
        return nbytes / target.l2_bytes_per_ns
    if footprint <= target.l3_bytes:
        return nbytes / target.l3_bytes_per_ns
    return nbytes / target.dram_bytes_per_ns


def constants_ns(
    first: float,
    again: float,
    size: float,
    sharers: float,
    target: CpuTarget,
    speeds: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Time of a core to read `first` bytes of constants of `size` bytes in all where a launch finds them, and `again`
    bytes a second time. `sharers`: how many of the cores that read them read each byte; `speeds`: of this reading, per
    level, of plain reads."""
    sharers = min(sharers, target.readers)
    level = _constants_level(size, sharers, target)
    rate = _constants_rate(level, sharers, target) * speeds.get(level, 1.0)
    return first / rate + again / (target.l2_bytes_per_ns if size < target.l2_bytes // 2 else rate)


def _constants_level(size: float, sharers: float, target: CpuTarget) -> str:
    """Where constants are found: in the nearest caches that keep every constant of the program from launch to launch.
    A second-level cache keeps those of its core, as many as if all constants were shared out so."""
    part, streamed = sharers / target.readers, max(size, target.constants_bytes)
    if size * part < target.l2_bytes // 2 and streamed * part <= KEPT_SHARE * target.l2_bytes:
        return L2
    return L3 if size < target.l3_bytes // 2 and streamed <= KEPT_SHARE * target.l3_bytes else MEMORY


def _constants_rate(level: str, sharers: float, target: CpuTarget) -> float:
    """Bytes per ns of a core that reads constants found there. What several read alike comes once for all of them: at
    most as fast as where all cores read the same."""
    if level == L2:
        return target.l2_bytes_per_ns
    own, same = target.l3_bytes_per_ns, target.l3_same_bytes_per_ns
    if level == MEMORY:
        own, same = target.dram_bytes_per_ns, target.dram_same_bytes_per_ns
    return own if sharers <= 1 else min(same, sharers * own)
