"""Planning for the accelerator: precision is lowered, launches are planned, weights get a schedule."""

from __future__ import annotations

from collections.abc import Mapping

from superkernel.backends.aicore.compiled import LOWERED, AicorePlanned, AicoreScheduled
from superkernel.backends.aicore.shared import Shared
from superkernel.codegen.aicore.weight_prefetch import plan_weight_prefetch, with_prefetch
from superkernel.compilation.compiled import Job
from superkernel.compilation.planner import Planner
from superkernel.ir.graph import Graph
from superkernel.scheduler.aicore.launches import ScopePart, by_scope, work_ns
from superkernel.scheduler.aicore.place import place_aicore
from superkernel.scheduler.families.aicore.grouped import grouped_cut
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.sync.aicore.launching import plan_launches
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.target.aicore import AicoreTarget
from superkernel.transforms import simplify
from superkernel.transforms.precision import lower_precision
from superkernel.transforms.tilings import SinkTilings


class AicorePlanner(Planner[AicoreTarget, AicoreScheduled, AicorePlanned]):
    """See the module docstring."""

    def __init__(self, job: Job[AicoreTarget], kernels: KernelTable[AicoreTarget], shared: Shared) -> None:
        super().__init__(job, kernels)
        self.shared = shared

    def lowered(self, graph: Graph) -> Graph:
        options, target = self.job.options, self.job.target
        if options.precision != "f32":
            graph = lower_precision(graph, LOWERED[options.precision], narrow_states=True)
            if options.simplify:
                graph = simplify(graph, target.computes_integers, target.signed_integers)
        slots = int(target.device.groups)
        return SinkTilings(lambda x, w: grouped_cut(x, w, target), slots).apply(graph)

    def ordered(self, grouping: Grouping) -> Grouping:
        return by_scope(grouping)

    def place(
        self, graph: Graph, grouping: Grouping, dumps: Mapping[str, int], fixed: frozenset[int] = frozenset()
    ) -> AicoreScheduled:
        """`fixed`: sub-operators whose ranges stay where they are whatever `locality` would gain."""
        options = self.job.options
        schedule = place_aicore(
            grouping, self.job.target, streams=options.streams, locality=options.locality, fixed=fixed,
            workspace_max=self.chooser.policy.max_workspace_bytes,
        )  # fmt: skip
        return AicoreScheduled(graph, grouping, schedule, dumps)

    def plan(self, scheduled: AicoreScheduled) -> AicorePlanned:
        """What turns out to run in launches of its own has no flag to save: it is placed again where it was before
        `locality`."""
        fixed = frozenset[int]()
        while True:
            plan, parts = self._launches(scheduled)
            alone = {i for part in parts if not part.fused or len(part.subops) == 1 for i in part.subops}
            if not alone & scheduled.schedule.rematerialised:
                break
            fixed |= alone
            scheduled = self.place(scheduled.graph, scheduled.grouping, scheduled.dumps, fixed)
        strength = self.job.options.weight_strength
        weights = plan_weight_prefetch(scheduled.schedule, plan, self.job.target, strength)
        return AicorePlanned(
            scheduled.graph, scheduled.grouping, scheduled.schedule, scheduled.dumps,
            plan=with_prefetch(plan, weights), parts=parts, weights=weights,
        )  # fmt: skip

    def estimated_ns(self, planned: AicorePlanned) -> tuple[float, tuple[float, ...]]:
        found = [p.predicted.fused_ns if p.fused else p.predicted.single_ns for p in planned.parts if p.predicted]
        schedule, target = planned.schedule, self.job.target
        return sum(found), tuple(work_ns(schedule, i, target) for i in range(len(schedule.subops)))

    def _launches(self, scheduled: AicoreScheduled) -> tuple[AicorePlan, tuple[ScopePart, ...]]:
        """The plan of a schedule, and the launches that share it."""
        schedule, options = scheduled.schedule, self.job.options
        code_bytes = [self.chooser.code_bytes(sub.kernel) for sub in schedule.subops]
        return plan_launches(
            schedule, self.job.target, sync=options.sync_level, early_start=options.starts_early,
            launches=options.launches, strict=options.strict_scope, code_bytes=code_bytes.__getitem__,
            conflicts=self.shared.conflicts(schedule),
        )  # fmt: skip
