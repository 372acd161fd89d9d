"""Rows are divided evenly, beginning with another core for each sub-operator; waits are the host planner's."""

from __future__ import annotations

from collections.abc import Mapping

from superkernel.compilation.compiled import Planned, Scheduled
from superkernel.compilation.planner import Planner
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import SubOperator
from superkernel.ir.graph import Graph
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.memory import plan_memory
from superkernel.scheduler.memory_check import check_memory
from superkernel.scheduler.schedule import Schedule, Task, absolute
from superkernel.scheduler.tiling import CannotCut, Tiling
from superkernel.sync.plan import Plan
from superkernel.sync.planner import plan_sync
from toy_target.target import ToyTarget


class ToyPlanner(Planner[ToyTarget, Scheduled, Planned[Plan]]):
    """See the module docstring."""

    def place(self, graph: Graph, grouping: Grouping, dumps: Mapping[str, int]) -> Scheduled:
        tilings = tuple(map(self._cut, grouping.subops))
        memory = plan_memory(grouping.subops, tilings, grouping.buffers, grouping.constants)
        check_memory(grouping.subops, memory.addresses, grouping.buffers)
        tasks: list[Task] = []
        for sub, tiling, addresses in zip(grouping.subops, tilings, memory.addresses, strict=True):
            count = min(self.job.cores, tiling.units)
            for part in range(count):
                begin, end = part * tiling.units // count, (part + 1) * tiling.units // count
                core = (sub.index + part) % self.job.cores
                accesses = absolute(tiling.accesses(sub.body, begin, end), addresses)
                tasks.append(Task(len(tasks), sub.index, core, begin, end, accesses))
        schedule = Schedule(
            self.job.cores,
            grouping.subops,
            tilings,
            memory.addresses,
            tuple(tasks),
            memory.constants,
            memory.arena_bytes,
            0,
            (),
        )
        return Scheduled(graph, grouping, schedule, dumps)

    def _cut(self, sub: SubOperator) -> Tiling:
        try:
            return self.kernels.family_of(sub.kernel).tilings(sub.kernel, sub.body, self.job.target)[0]
        except UnsupportedError as error:
            raise CannotCut(sub, error) from error

    def plan(self, scheduled: Scheduled) -> Planned[Plan]:
        options = self.job.options
        plan = plan_sync(scheduled.schedule, sync=options.sync_level, handover_ns=self.job.target.tick_ns)
        return Planned(**vars(scheduled), plan=plan)
