"""Sub-operators onto cores: how many cores each takes, which, and in what global order.

Model: list scheduling. Among the sub-operators whose predecessors are placed, the one with the longest path to the
end goes first. It takes the partition (tiling x number of cores x cores) with the earliest estimated finish, where
waiting for data of other cores is part of the estimate; small work therefore stays on the core that has its inputs,
row-wise chains keep their partition, and independent branches go side by side where that beats splitting each of
them. Of hyperthreads of one core the first takes part, where not all do. With one core nothing is reordered. A range
can start when its core is free and when everything it reads has been written; what another core wrote costs a handover
(one flag, as fast as that pair of cores is: a cluster's or a socket's own cores hand over sooner) and, per cache line,
the trip between two L2 caches. The search itself is csrc/scheduler/list_scheduler.h.

Invariants: deterministic; the global order is a topological order of all reads, writes and overwrites, and of the
streams that nodes name; each sub-operator has at most one task per core; a host call runs on core 0. Memory is planned
from the resulting order, then accesses become absolute. Whether it was planned well is asked where a plan is read, and
of the program that was emitted (`memory_check.py`), not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superkernel import _core
from superkernel.core.options import Options
from superkernel.ir.body import Body, Role, SubOperator
from superkernel.ir.graph import Graph
from superkernel.scheduler.cost import CostBook, Partition
from superkernel.scheduler.dependences import issued
from superkernel.scheduler.families import family_of
from superkernel.scheduler.grouping import Grouping, view_chain
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.memory import BufferUse, MemoryPlan, plan_memory
from superkernel.scheduler.schedule import Schedule, Task, absolute
from superkernel.scheduler.tiling import Access, CostedTiling, KernelFamily
from superkernel.target.cpu import CpuTarget

# A wait costs more than the bare flag: the first lines of data are cold, and no core is quite as far as estimated.
HANDOVER_FACTOR = 1.5
WORTH_CORES = 0.95  # more cores must bring the whole at least below this share of one core's time


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
    touched = placer.touched(order) if placer.book.cores > 1 else None
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


class _Placer:
    """The list scheduler of a grouping (csrc/scheduler/list_scheduler.h), with the partitions behind its numbers."""

    def __init__(self, grouping: Grouping, book: CostBook, options: Options) -> None:
        self.grouping, self.book = grouping, book
        self.placed: dict[int, Placement] = {}
        self._chosen = book.cores > 1 and options.cost_placement
        self._works: list[tuple[Body, list[Partition]]] = []  # equal ones of several sub-operators once
        self._work_of: list[int] = []
        self._numbers: dict[str, int] = {}  # of buffers
        self._scheduler = _core.ListScheduler(
            self._rows(),
            [[(p.work_ns, p.longest_ns) for p in partitions] for _, partitions in self._works],
            _accesses_of(self._works, book),
            [[HANDOVER_FACTOR * ns for ns in row] for row in book.target.handovers_ns(book.cores)],
            HANDOVER_FACTOR * book.target.handover_ns,
            book.target.line_ns,
            book.apart,
        )

    def _rows(self) -> list[_core.ScheduledSubOp]:
        """The sub-operators by numbers; works and buffers get theirs here."""
        numbers, buffers = self._numbers, self.grouping.buffers
        known: dict[tuple[str, int], int] = {}
        chains: dict[str, list[tuple[int, int]]] = {}
        rows: list[_core.ScheduledSubOp] = []
        for sub, before in zip(self.grouping.subops, issued(self.grouping), strict=True):
            work = known.setdefault((sub.kernel, id(sub.body)), len(self._works))
            if work == len(self._works):
                self._works.append((sub.body, self._partitions(sub)))
            self._work_of.append(work)
            for value in sub.values:
                if value not in chains:
                    chain = view_chain(buffers, value)
                    chains[value] = [(numbers.setdefault(name, len(numbers)), offset) for name, _, offset in chain]
            inputs = [i for i, o in enumerate(sub.body.operands) if o.role in (Role.INPUT, Role.INOUT)]
            operands = [chains[value] for value in sub.values]
            rows.append((work, operands, inputs, list(before), sub.kernel == HOST_REFERENCE))
        return rows

    def _partitions(self, sub: SubOperator) -> list[Partition]:
        """Those to choose from. Without a cost model there is one, on all cores; with one core the best for it."""
        return self.book.partitions(sub) if self._chosen or self.book.cores == 1 else [self.book.widest(sub)]

    def run(self) -> list[int]:
        """The global order; `placed` then has every placement."""
        if self._chosen:
            order = self._scheduler.run()
        else:
            order = self._scheduler.run_in_order("cost placement is off" if self.book.cores > 1 else "one core")
        for i, (partition, cores, finish_ns, reason) in enumerate(self._scheduler.placements()):
            self.placed[i] = Placement(self._works[self._work_of[i]][1][partition], cores, finish_ns, reason)
        return order

    def makespan_ns(self) -> float:
        """When everything is done and joined, by estimate."""
        return self._scheduler.makespan_ns()

    def alone_ns(self) -> float:
        """The same on one core."""
        return sum(self.book.partitions(sub)[0].longest_ns for sub in self.grouping.subops)

    def touched(self, order: Sequence[int]) -> dict[str, BufferUse]:
        """For every buffer with a place of its own who touches it last, and what its first writers know by then."""
        names = list(self._numbers)
        return {
            names[buffer]: BufferUse(last, ready, runs, apart)
            for buffer, last, ready, runs, apart in self._scheduler.touched(order)
        }


def _accesses_of(works: Sequence[tuple[Body, Sequence[Partition]]], book: CostBook) -> _core.AccessesOf:
    """What the list scheduler asks: accesses of a range, but for reads of constants, and how many bytes it stores."""

    def accesses(work: int, number: int, at: int) -> tuple[list[Access], int | None]:
        body, partitions = works[work]
        tiling, part = partitions[number].tiling, partitions[number].ranges[at]
        found = book.accesses(body, tiling, part)
        varying = [a for a in found if a.write or body.operands[a.operand].role is not Role.CONSTANT]
        return varying, tiling.stored_bytes(body, *part)

    return accesses
