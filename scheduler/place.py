"""Sub-operators onto cores: how many cores each takes, which, and in what global order.

Model: list scheduling. Among the sub-operators whose predecessors are placed, the one with the longest path to the
end goes first. It takes the partition (tiling x number of cores x cores) with the earliest estimated finish, where
waiting for data of other cores is part of the estimate; small work therefore stays on the core that has its inputs,
row-wise chains keep their partition, and independent branches go side by side where that beats splitting each of
them. Of hyperthreads of one core the first takes part, where not all do. With one core nothing is reordered. A range
can start when its core is free and when everything it reads has been written; what another core wrote costs a handover
(one flag, as fast as that pair of cores is: a cluster's or a socket's own cores hand over sooner) and, per cache line,
the trip between two L2 caches.

Invariants: deterministic; the global order is a topological order of all reads, writes and overwrites, and of the
streams that nodes name; each sub-operator has at most one task per core; a host call runs on core 0. Memory is planned
from the resulting order, then accesses become absolute. Whether it was planned well is asked where a plan is read, and
of the program that was emitted (`memory_check.py`), not here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superkernel.core.options import Options
from superkernel.ir.body import Role, SubOperator
from superkernel.ir.graph import Graph
from superkernel.scheduler.cost import CostBook, OperandBytes, Partition, Range
from superkernel.scheduler.dependences import VectorClock, issued
from superkernel.scheduler.families import family_of
from superkernel.scheduler.grouping import Grouping, view_chain
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.memory import MIXED, BufferUse, MemoryPlan, plan_memory
from superkernel.scheduler.schedule import Schedule, Task, absolute
from superkernel.scheduler.tiling import CostedTiling, KernelFamily
from superkernel.target.cpu import CpuTarget

# A wait costs more than the bare flag: the first lines of data are cold, and no core is quite as far as estimated.
HANDOVER_FACTOR = 1.5
WORTH_CORES = 0.95  # more cores must bring the whole at least below this share of one core's time
SIDE_GAIN = 0.9  # side by side must be so much better: split work often needs no exchange at all with what follows
LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one sub-operator runs: `cores[i]` executes `partition.ranges[i]`."""

    partition: Partition
    cores: tuple[int, ...]
    finish_ns: float
    reason: str


def place(
    grouping: Grouping,
    graph: Graph,
    target: CpuTarget,
    cores: int,
    options: Options | None = None,
    families: Callable[[str], KernelFamily[CpuTarget]] = family_of,
    workspace_max: int | None = None,
) -> Schedule:
    """Place the sub-operators of a grouping on `cores` cores (1 to 64), with kernels that keep to a limit of working
    memory in bytes on each."""
    placer, order = _placed(grouping, target, cores, options or Options(), families, workspace_max)
    subops = tuple(
        sub if sub.index == at else replace(sub, index=at) for at, sub in enumerate(grouping.subops[i] for i in order)
    )
    rows = [placer.placed[i] for i in order]
    tilings = tuple(p.partition.tiling for p in rows)
    touched = placer.touched(order) if placer.cores > 1 else None
    memory = plan_memory(subops, tilings, grouping.buffers, grouping.constants, touched, target.l2_bytes // 2)
    return Schedule(
        max(
            (c + 1 for row in rows for c in row.cores), default=1
        ),  # workers that would have nothing to do are not asked
        subops,
        tilings,
        memory.addresses,
        _tasks(subops, rows, memory, placer.book),
        memory.constants,
        memory.arena_bytes,
        max((t.scratch_bytes for t in tilings), default=0),
        tuple(p.reason for p in rows),
    )


def predicted_ns(
    grouping: Grouping,
    target: CpuTarget,
    cores: int,
    options: Options | None = None,
    workspace_max: int | None = None,
) -> float:
    """What a launch of the schedule that `place` makes takes, by estimate."""
    return _placed(grouping, target, cores, options or Options(), family_of, workspace_max)[0].makespan_ns()


def longest_ns(schedule: Schedule, index: int, target: CpuTarget) -> float:
    """What the longest range of a sub-operator takes, by its family's estimate."""
    body, tiling = schedule.subops[index].body, schedule.tilings[index]
    if not isinstance(tiling, CostedTiling):
        return 0.0
    spans = {(t.begin, t.end) for t in schedule.tasks if t.subop == index}
    return max((tiling.cost_ns(body, *span, target) for span in spans), default=0.0)


def _placed(
    grouping: Grouping,
    target: CpuTarget,
    cores: int,
    options: Options,
    families: Callable[[str], KernelFamily[CpuTarget]],
    workspace: int | None,
) -> tuple[_Placer, list[int]]:
    """All sub-operators placed, and their global order: on one core where more of them gain nothing."""
    target = replace(target, constants_bytes=streamed_bytes(grouping))
    placer = _Placer(grouping, CostBook(target, cores, families, workspace), options)
    order = placer.run()
    if cores > 1 and options.cost_placement and placer.makespan_ns() > WORTH_CORES * placer.alone_ns():
        placer = _Placer(grouping, CostBook(target, 1, families, workspace), options)
        order = placer.run()
    return placer, order


def streamed_bytes(grouping: Grouping) -> int:
    """Constants that a launch reads as a whole: all but the tables of gathers."""
    names = {
        name
        for sub in grouping.subops
        if sub.body.op != "gather"
        for name, operand in zip(sub.values, sub.body.operands, strict=True)
        if operand.role is Role.CONSTANT
    }
    return sum(grouping.constants[name].nbytes for name in names)


def _tasks(
    subops: Sequence[SubOperator], rows: Sequence[Placement], memory: MemoryPlan, book: CostBook
) -> tuple[Task, ...]:
    tasks: list[Task] = []
    for sub, row, addresses in zip(subops, rows, memory.addresses, strict=True):
        for core, part in zip(row.cores, row.partition.ranges, strict=True):
            accesses = absolute(book.accesses(sub.body, row.partition.tiling, part), addresses)
            tasks.append(Task(len(tasks), sub.index, core, *part, accesses))
    return tuple(tasks)


@dataclass(frozen=True, slots=True)
class Written:
    """A part of a buffer that a core has written, and when."""

    core: int
    position: int  # of the sub-operator in the global order
    finish_ns: float
    extent: OperandBytes
    stored: int  # bytes of the extent, at most


Source = tuple[Written, int]
"""What is read of a part that a core has written, and how many bytes, roughly."""


class _Placer:
    """The list scheduler's state."""

    def __init__(self, grouping: Grouping, book: CostBook, options: Options) -> None:
        self.grouping, self.book, self.options = grouping, book, options
        self.subops = grouping.subops
        self.cores = book.cores
        self.handover_ns = HANDOVER_FACTOR * book.target.handover_ns
        rows = book.target.handovers_ns(self.cores)
        self.handovers_ns = [[HANDOVER_FACTOR * ns for ns in row] for row in rows]
        # Another core than the caller's own is started and joined: a flag there and a flag back.
        self.free = [0.0, *(2 * ns for ns in self.handovers_ns[0][1:])]
        self.known = VectorClock(self.cores)
        self.written: dict[str, list[Written]] = {}
        self.before = issued(grouping)
        self.placed: dict[int, Placement] = {}
        self._sources: dict[tuple[int, int, Range], list[Source]] = {}  # of ranges of what is to be placed next

    def run(self) -> list[int]:
        """The global order; `placed` then has every placement."""
        if self.cores == 1 or not self.options.cost_placement:
            order = list(range(len(self.subops)))
            for i in order:
                self._commit(i, self._only_choice(i))
            return order
        after: list[list[int]] = [[] for _ in self.subops]
        missing = [len(b) for b in self.before]
        for i, earlier in enumerate(self.before):
            for e in earlier:
                after[e].append(i)
        rank = self._ranks(after)
        ready = [(-rank[i], i) for i, n in enumerate(missing) if n == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            _, i = heapq.heappop(ready)
            self._commit(i, self._choose(i, [j for _, j in heapq.nsmallest(self.cores - 1, ready)]))
            order.append(i)
            for j in after[i]:
                missing[j] -= 1
                if missing[j] == 0:
                    heapq.heappush(ready, (-rank[j], j))
        return order

    def _ranks(self, after: Sequence[Sequence[int]]) -> list[float]:
        """Longest path to the end, each sub-operator at its best time."""
        rank = [0.0] * len(self.subops)
        for i in range(len(self.subops) - 1, -1, -1):
            own = min(p.longest_ns for p in self.book.partitions(self.subops[i]))
            rank[i] = own + max((rank[j] for j in after[i]), default=0.0)
        return rank

    def _only_choice(self, i: int) -> Placement:
        """Without a cost model: every sub-operator on all cores (with one core: the best tiling for it)."""
        sub = self.subops[i]
        partition = self.book.partitions(sub)[0] if self.cores == 1 else self.book.widest(sub)
        cores = tuple(range(len(partition.ranges)))
        return Placement(
            partition,
            cores,
            self._finish(i, partition, cores),
            "cost placement is off" if self.cores > 1 else "one core",
        )

    def _choose(self, i: int, rivals: Sequence[int]) -> Placement:
        """The placement with the earliest estimated finish; on one core where ready rivals can use the others
        better."""
        sub = self.subops[i]
        partitions = self.book.partitions(sub)
        singles = [self._single(i, partitions[0])]
        if len(partitions) == 1:
            return singles[0]
        if rivals and self._side_by_side(i, rivals):
            return replace(singles[0], reason="side by side with independent sub-operators")
        tried = singles
        soonest = min(self.free)
        for partition in sorted(partitions[1:], key=lambda p: p.longest_ns):
            least = min(t.finish_ns for t in tried)
            if soonest + partition.longest_ns < least:  # else it cannot win
                choices = self._cores_for(i, partition)
                tried += [Placement(partition, cores, self._finish(i, partition, cores), "") for cores in choices]
        best = min(tried, key=lambda p: (p.finish_ns, len(p.cores)))
        others = [p.finish_ns for p in tried if len(p.cores) != len(best.cores)]
        count = "one core" if len(best.cores) == 1 else f"{len(best.cores)} cores"
        gain = (
            f"{min(others) - best.finish_ns:.0f} ns sooner than the next choice" if others else "nothing else is sooner"
        )
        return Placement(best.partition, best.cores, best.finish_ns, f"{count}: {gain}")

    def _single(self, i: int, partition: Partition) -> Placement:
        if self.subops[i].kernel == HOST_REFERENCE:
            return Placement(partition, (0,), self._finish(i, partition, (0,)), "host call")
        if not partition.ranges:
            return Placement(partition, (), max(self.free), "nothing to do")
        options = sorted({min(self.book.apart, key=lambda c: (self.free[c], c)), *self._owners(i)})
        finish_ns, best = min((self._finish(i, partition, (c,)), c) for c in options)
        return Placement(partition, (best,), finish_ns, "one core: too small to share")

    def _owners(self, i: int) -> list[int]:
        """Cores that wrote what the sub-operator reads, the largest shares first; a few of them."""
        sub = self.subops[i]
        share: dict[int, int] = {}
        for name, operand in zip(sub.values, sub.body.operands, strict=True):
            if operand.role in (Role.INPUT, Role.INOUT):
                for part in self.written.get(name, ()):
                    share[part.core] = share.get(part.core, 0) + part.extent.high - part.extent.low
        return sorted(share, key=lambda c: (-share[c], c))[:3]

    def _cores_for(self, i: int, partition: Partition) -> list[tuple[int, ...]]:
        """All cores in order, or as many as a partition takes: those that are free first, and for each range, where
        that is another core, the one that wrote most of what it reads."""
        count = len(partition.ranges)
        if count == self.cores:
            return [tuple(range(count))]
        first = sorted(self.book.apart, key=lambda c: (self.free[c], c))
        idle = tuple(sorted(first[:count]))
        owners: list[int] = []
        for part in partition.ranges:
            share = self._shares(i, partition, part)
            mine = [c for c in sorted(share, key=lambda c: (-share[c], c)) if c in self.book.apart and c not in owners]
            owners.append(mine[0] if mine else -1)
        if all(owner < 0 for owner in owners):
            return [idle]
        rest = iter(c for c in first if c not in owners)
        near = tuple(owner if owner >= 0 else next(rest) for owner in owners)
        return [idle] if near == idle else [near, idle]

    def _shares(self, i: int, partition: Partition, part: Range) -> dict[int, int]:
        """Of what a range reads, how many bytes each core wrote, roughly."""
        share: dict[int, int] = {}
        for source, count in self._sources_of(i, partition, part):
            share[source.core] = share.get(source.core, 0) + count
        return share

    def _side_by_side(self, i: int, rivals: Sequence[int]) -> bool:
        """True where the ready sub-operators, one core each, are done before they are when each is split over all
        cores."""
        single, split = [], 0.0
        for j in (i, *rivals):
            partitions = self.book.partitions(self.subops[j])
            single.append(partitions[0].longest_ns)
            best = min(partitions, key=lambda p: p.longest_ns)
            split += best.longest_ns + (self.handover_ns if len(best.ranges) > 1 else 0.0)
        return max(max(single), sum(single) / self.cores) < SIDE_GAIN * split

    def _finish(self, i: int, partition: Partition, cores: Sequence[int]) -> float:
        """When the last range is done, by estimate."""
        return max((t for t in self._finish_times(i, partition, cores)), default=max(self.free))

    def _finish_times(self, i: int, partition: Partition, cores: Sequence[int]) -> list[float]:
        times = []
        for core, part, work in zip(cores, partition.ranges, partition.work_ns, strict=True):
            start, moved, handovers_ns = self.free[core], 0, self.handovers_ns[core]
            for source, count in self._sources_of(i, partition, part):
                if source.core != core:
                    start = max(start, source.finish_ns + handovers_ns[source.core])
                    moved += min(count, source.stored)
            times.append(start + work + moved / LINE_BYTES * self.book.target.line_ns)
        return times

    def _commit(self, i: int, placement: Placement) -> None:
        """Take the placement: cores are busy, buffers written."""
        sub, partition = self.subops[i], placement.partition
        position = len(self.placed)
        times = self._finish_times(i, partition, placement.cores)
        records: dict[str, list[Written]] = {}
        for core, part, finish in zip(placement.cores, partition.ranges, times, strict=True):
            self.free[core] = finish
            if self.cores > 1:
                sources = self._sources_of(i, partition, part)
                self.known.run(position, core, ((s.position, s.core) for s, _ in sources if s.core != core))
            stored = partition.tiling.stored_bytes(sub.body, *part)
            for access in self.book.accesses(sub.body, partition.tiling, part):
                if access.write:
                    for name, _, offset in view_chain(self.grouping.buffers, sub.values[access.operand]):
                        extent = self.book.extent(access, offset)
                        most = extent.nbytes if stored is None else stored
                        record = Written(core, position, finish, extent, most)
                        records.setdefault(name, []).append(record)
        for name, parts in records.items():
            self.written.setdefault(name, []).extend(parts)
        self.placed[i] = placement
        self._sources.clear()

    def _sources_of(self, i: int, partition: Partition, part: Range) -> list[Source]:
        """What a range reads of what has been written, read by read. Asked for each core that may take the range."""
        key = (i, id(partition), part)  # of partitions that are held until one of them is taken
        found = self._sources.get(key)
        if found is None:
            sub, shared_bytes = self.subops[i], self.book.shared_bytes
            found = self._sources[key] = []
            for read in self.book.reads(sub.body, partition.tiling, part):
                low, high = read.low, read.high
                for source in self.written.get(sub.values[read.operand], ()):
                    extent = source.extent
                    if extent.low < high and low < extent.high and (count := shared_bytes(read, extent)):
                        found.append((source, count))
        return found

    def makespan_ns(self) -> float:
        """When everything is done and joined, by estimate."""
        used = {core for p in self.placed.values() for core in p.cores}
        return max((self.free[c] + (self.handovers_ns[c][0] if c else 0.0) for c in used), default=0.0)

    def alone_ns(self) -> float:
        """The same on one core."""
        return sum(self.book.partitions(sub)[0].longest_ns for sub in self.subops)

    def touched(self, order: Sequence[int]) -> dict[str, BufferUse]:
        """For every buffer with a place of its own who touches it last, and what its first writers know by then."""
        found: dict[str, BufferUse] = {}
        seen: set[str] = set()
        for position, i in enumerate(order):
            cores = self.placed[i].cores
            for value in self.subops[i].values:
                *_, (name, _, _) = view_chain(self.grouping.buffers, value)
                ready = self.known.at(position, cores) if value not in seen else None
                seen.add(value)
                row = found.get(name)
                if row is None:
                    parts = ((w.core, w.extent) for w in self.written.get(name, ()))
                    runs = dict.fromkeys((e.low, e.high, writer if e.is_run else MIXED) for writer, e in parts)
                    row = found[name] = BufferUse({}, ready or [], tuple(runs))
                elif ready is not None:  # the first use of another part of it
                    row = found[name] = BufferUse(row.last, list(map(min, row.ready, ready)), row.runs)
                for core in cores:
                    row.last[core] = position
        return found
