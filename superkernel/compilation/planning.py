"""Planning for the host: from a graph to tasks on cores and the waits between them. Emits nothing.

simplify -> group (registry chooses kernels) -> place (with memory) -> plan sync
"""

from __future__ import annotations

from superkernel.compilation.choice import KernelChooser
from superkernel.compilation.dumps import with_dumps
from superkernel.compilation.planned import Planned
from superkernel.compilation.stages import Stages
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.scheduler.families.grouped import host_cut
from superkernel.scheduler.group import group
from superkernel.scheduler.layout import storage_policy
from superkernel.scheduler.place import place
from superkernel.sync.planner import plan_sync
from superkernel.target.cpu import CpuTarget
from superkernel.transforms import simplify
from superkernel.transforms.tilings import SinkTilings


def plan_graph(run: Stages, source: Graph, cpu: CpuTarget, cores: int, options: Options) -> Planned:
    """Plan a graph on `cores` cores. Raises UnsupportedError."""
    chooser = KernelChooser(cpu, options)
    with run.stage("simplify"):
        graph = simplify(source) if options.simplify else source
        graph = SinkTilings(lambda x, w: host_cut(cpu.tier)).apply(graph)
    run.dump("simplified", graph)
    with run.stage("group"):
        layout = storage_policy(graph, chooser.choose, cpu, options)
        grouping = group(graph, chooser.choose, cpu, options, storage=layout)
        dumps: dict[str, int] = {}
        if options.dump:
            graph, dumps = with_dumps(graph, grouping.subops, options.dump)
            grouping = group(graph, chooser.choose, cpu, options, storage=layout)
    run.dump("subops", grouping)
    with run.stage("place"):
        schedule = place(grouping, graph, cpu, cores, options)
    run.dump("schedule", schedule)
    with run.stage("sync"):
        plan = plan_sync(schedule, sync=options.sync_level, handover_ns=cpu.handover_ns)
    run.dump("plan", plan)
    return Planned(graph, grouping, schedule, plan, dumps)
