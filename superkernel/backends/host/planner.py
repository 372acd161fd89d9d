"""Planning for the CPU at hand."""

from __future__ import annotations

from collections.abc import Mapping

from superkernel.compilation.compiled import Planned, Scheduled
from superkernel.compilation.planner import Planner
from superkernel.ir.graph import Graph
from superkernel.scheduler.families.grouped import host_cut
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.place import longest_ns, place, predicted_ns
from superkernel.sync.plan import Plan
from superkernel.sync.planner import plan_sync
from superkernel.target.cpu import CpuTarget
from superkernel.transforms.tilings import SinkTilings


class HostPlanner(Planner[CpuTarget, Scheduled, Planned[Plan]]):
    """See the module docstring."""

    def lowered(self, graph: Graph) -> Graph:
        return SinkTilings(lambda x, w: host_cut(self.job.target.tier)).apply(graph)

    def place(self, graph: Graph, grouping: Grouping, dumps: Mapping[str, int]) -> Scheduled:
        job = self.job
        return Scheduled(graph, grouping, place(grouping, graph, job.target, job.cores, job.options), dumps)

    def plan(self, scheduled: Scheduled) -> Planned[Plan]:
        options, target = self.job.options, self.job.target
        plan = plan_sync(scheduled.schedule, sync=options.sync_level, handover_ns=target.handover_ns)
        return Planned(**vars(scheduled), plan=plan)

    def estimated_ns(self, planned: Planned[Plan]) -> tuple[float, tuple[float, ...]]:
        job, schedule = self.job, planned.schedule
        total = predicted_ns(planned.grouping, job.target, job.cores, job.options)
        return total, tuple(longest_ns(schedule, i, job.target) for i in range(len(schedule.subops)))
