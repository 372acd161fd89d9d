"""Planning for the CPU at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from superkernel.backends.host.regions import (
    COUNTER_BYTES,
    constants_bytes,
    raise_flash,
    raise_tcm,
    tcm_bytes,
    workspace_left,
)
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

    counter_bytes: ClassVar[int] = COUNTER_BYTES

    def lowered(self, graph: Graph) -> Graph:
        return SinkTilings(lambda x, w: host_cut(self.job.target.tier)).apply(graph)

    def place(self, graph: Graph, grouping: Grouping, dumps: Mapping[str, int]) -> Scheduled:
        job = self.job
        schedule = place(
            grouping, graph, job.target, job.cores, job.options, workspace_max=self.chooser.policy.workspace_max
        )
        return Scheduled(graph, grouping, schedule, dumps)

    def fits(self, scheduled: Scheduled) -> bool:
        """Working memory gives way to values, then packed constants to smaller ones: by the kernel that loses the least
        time for what it saves."""
        schedule, regions = scheduled.schedule, self.job.target.regions()
        tcm, flash = regions.get("tcm"), regions.get("flash")
        if tcm is not None and tcm_bytes(schedule, self.counter_bytes) > tcm:
            left = workspace_left(schedule, tcm, self.counter_bytes)
            if left < 0:
                raise_tcm(schedule, tcm, self.counter_bytes)
            self.chooser.narrow(left)
            return False
        if flash is not None and constants_bytes(schedule) > flash:
            found = [(sub, self.chooser.smaller(sub.body)) for sub in schedule.subops]
            smaller = [(each.lost_ns / each.saved_bytes, sub.index, each) for sub, each in found if each is not None]
            if not smaller:
                raise_flash(schedule, flash)
            _, index, best = min(smaller, key=lambda row: row[:2])
            self.chooser.pack_less(schedule.subops[index].body, best.constant_bytes)
            return False
        return True

    def plan(self, scheduled: Scheduled) -> Planned[Plan]:
        options, target = self.job.options, self.job.target
        plan = plan_sync(scheduled.schedule, sync=options.sync_level, handover_ns=target.handover_ns)
        return Planned(**vars(scheduled), plan=plan)

    def estimated_ns(self, planned: Planned[Plan]) -> tuple[float, tuple[float, ...]]:
        job, schedule = self.job, planned.schedule
        total = predicted_ns(planned.grouping, job.target, job.cores, job.options, self.chooser.policy.workspace_max)
        return total, tuple(longest_ns(schedule, i, job.target) for i in range(len(schedule.subops)))
