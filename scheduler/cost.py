"""What a sub-operator costs on so many cores by itself: candidate partitions, their work and what their ranges read.

Model: a `Partition` is a tiling with one contiguous unit range per core that takes part. Figures come from `CpuTarget`,
those of caches and memory that cores share as they are while all of the partition's cores read; they rank choices, no
correctness rests on them. Cores here are workers: where several are hyperthreads of one core, either the first of each
take part, or all, and then those of one core share its arithmetic and its second-level cache. What waiting for other
cores costs is for `place` to say.

Of tilings of a sub-operator that were measured, the one that the model likes best keeps its modelled time, and the
others have times in the measured proportion to it: measuring decides among tilings, while work stays in balance with
waiting, whose price is the model's.

Accesses and costs are asked of the tiling once per distinct (body, tiling, range): equal layers of a model cost
nothing the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from superkernel.ir.body import Body, SubOperator
from superkernel.scheduler.tiling import Access, CostedTiling, KernelFamily, Tiling, raise_workspace, within_workspace
from superkernel.scheduler.timed import measured_share
from superkernel.target.cpu import CpuTarget
from superkernel.target.timings import settled_ns

MAX_TILINGS = 12  # candidates looked at per sub-operator, best guesses first
MAX_RIVALS = 3  # partitions kept per number of cores...
RIVAL_FACTOR = 1.5  # ...if they are no slower than this beside the best
MIN_GAIN = 0.9  # more cores are looked at only where the work itself gets at least so much shorter

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Partition:
    """`ranges[i]` of the units goes to the i-th participating core; `work_ns[i]` is its own time, waiting apart;
    `longest_ns`: the time of the core with most to do, 0 without cores."""

    tiling: CostedTiling[CpuTarget]
    ranges: tuple[Range, ...]
    work_ns: tuple[float, ...]
    longest_ns: float


@dataclass(slots=True)
class CostBook:
    """Remembers tilings, partitions and accesses per distinct body."""

    target: CpuTarget
    cores: int
    families: Callable[[str], KernelFamily[CpuTarget]]
    workspace_max: int | None = None  # bytes that a kernel may use on one core
    apart: tuple[int, ...] = ()  # the first worker of each core
    _crowded: frozenset[int] = frozenset()  # workers that share their core
    _tilings: dict[tuple[str, int], tuple[CostedTiling[CpuTarget], ...]] = field(default_factory=dict)
    _partitions: dict[tuple[str, int], list[Partition]] = field(default_factory=dict)
    _accesses: dict[tuple[int, int, int, int], tuple[Access, ...]] = field(default_factory=dict)
    _reading: dict[int, CpuTarget] = field(default_factory=dict)
    _shares: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    _alive: list[object] = field(default_factory=list)  # ids stay valid as long as their objects are held

    def __post_init__(self) -> None:
        known = self.target.profile.core_of[: self.cores]
        self.apart = (*(known.index(core) for core in dict.fromkeys(known)), *range(len(known), self.cores))
        self.target = replace(self.target, cores=len(self.apart))
        self._crowded = frozenset(i for i, core in enumerate(known) if known.count(core) > 1)

    @property
    def counts(self) -> list[int]:
        """Numbers of cores that are looked at beside one: 2, 4, 8, ..., all physical cores and all cores."""
        apart = len(self.apart)
        return sorted({*(1 << i for i in range(1, apart.bit_length())), apart, self.cores} - {1})

    def tilings(self, sub: SubOperator) -> tuple[CostedTiling[CpuTarget], ...]:
        """Candidate tilings, at least one. Raises CannotCut where none keeps to the limit of working memory."""
        key = (sub.kernel, id(sub.body))
        found = self._tilings.get(key)
        if found is None:
            self._alive.append(sub.body)
            offered = self.families(sub.kernel).tilings(sub.kernel, sub.body, self.target)
            fitting = within_workspace(offered, self.workspace_max)
            if not fitting:
                raise_workspace(sub, offered, self.workspace_max)
            found = self._tilings[key] = tuple(fitting)[:MAX_TILINGS]
        return found

    def partitions(self, sub: SubOperator) -> list[Partition]:
        """Partitions worth a look: the best on one core first, then per number of cores the best few, where more
        cores help."""
        key = (sub.kernel, id(sub.body))
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = self._candidates(sub)
        return found

    def widest(self, sub: SubOperator) -> Partition:
        """The best partition on as many cores as have work."""
        tried = [self.partition(sub, t, min(self.cores, t.units)) for t in self.tilings(sub)]
        return min(tried, key=lambda p: p.longest_ns)

    def _candidates(self, sub: SubOperator) -> list[Partition]:
        tilings = self.tilings(sub)
        best = min((self.partition(sub, t, 1) for t in tilings), key=lambda p: p.longest_ns)
        found, shortest = [best], best.longest_ns
        for cores in self.counts:
            wide = [self.partition(sub, t, min(cores, t.units)) for t in tilings]
            wide = [p for p in wide if len(p.ranges) <= len(self.apart) or len(p.ranges) == self.cores]
            gains = sorted((p for p in wide if p.longest_ns < MIN_GAIN * shortest), key=lambda p: p.longest_ns)
            if gains:  # the runners-up may hand over less: rows need no exchange where columns do
                found += [p for p in gains[:MAX_RIVALS] if p.longest_ns < RIVAL_FACTOR * gains[0].longest_ns]
                shortest = gains[0].longest_ns
        return found

    def partition(self, sub: SubOperator, tiling: CostedTiling[CpuTarget], parts: int) -> Partition:
        """Equal contiguous parts of the units, boundaries where the tiling wants them."""
        cuts = {0, tiling.units}
        cuts |= {min(max(tiling.align(sub.body, tiling.units * i // parts), 0), tiling.units) for i in range(1, parts)}
        return self.cut(sub, tiling, sorted(cuts))

    def cut(self, sub: SubOperator, tiling: CostedTiling[CpuTarget], cuts: Sequence[int]) -> Partition:
        """The partition with the given boundaries."""
        ranges = tuple((a, b) for a, b in pairwise(cuts) if a < b)
        target = self._reading.get(len(ranges))
        if target is None:
            target = self._reading[len(ranges)] = self.target.reading(max(1, len(ranges)))
        share, slow = self._share(sub, tiling), target
        if len(ranges) > len(self.apart):
            slow = replace(target, flops_per_ns=target.flops_per_ns / 2, l2_bytes_per_ns=target.l2_bytes_per_ns / 2)
        targets = [slow if core in self._crowded else target for core in range(len(ranges))]
        work = tuple(share * tiling.cost_ns(sub.body, *p, on) for p, on in zip(ranges, targets, strict=True))
        return Partition(tiling, ranges, work, max(work, default=0.0))

    def _share(self, sub: SubOperator, tiling: CostedTiling[CpuTarget]) -> float:
        """What its modelled times are to be multiplied by: see the module docstring."""
        key = (sub.kernel, id(sub.body))
        found = self._shares.get(key)
        if found is None:
            found = self._shares[key] = self._shares_of(sub)
        return found.get(id(tiling), 1.0)

    def _shares_of(self, sub: SubOperator) -> dict[int, float]:
        """Per tiling that was measured, by identity."""
        measured = [
            (tiling.cost_ns(sub.body, 0, tiling.units, self.target), share, id(tiling))
            for tiling in self.tilings(sub)
            if (share := measured_share(sub.kernel, sub.body, tiling, self.target)) is not None
        ]
        if not measured:
            return {}
        usual_ns, usual, liked = min(measured)
        found = {at: settled_ns(ns * share, usual_ns * usual) / (ns * usual) for ns, share, at in measured}
        return {**found, liked: 1.0}

    def accesses(self, body: Body, tiling: Tiling, part: Range) -> tuple[Access, ...]:
        """What the range reads and writes, relative to the operands' starts."""
        key = (id(body), id(tiling), *part)
        found = self._accesses.get(key)
        if found is None:
            self._alive.append(tiling)
            found = self._accesses[key] = tuple(a for a in tiling.accesses(body, *part) if a.regions)
        return found
