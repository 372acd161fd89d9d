"""Planning, the same for every kind of target: from a graph to tasks on cores and what orders them. Emits nothing.

simplify -> lower -> group (registry chooses kernels) -> place (with memory) -> plan sync
"""

from __future__ import annotations

from typing import Any

from superkernel.compilation.choice import ChoiceOfAll
from superkernel.compilation.compiled import Job
from superkernel.compilation.dumps import with_dumps
from superkernel.compilation.planner import PlannedT, Planner, ScheduledT, TargetT
from superkernel.compilation.stages import Stages
from superkernel.core.errors import DeadlineError, UnsupportedError
from superkernel.ir.body import Body
from superkernel.ir.graph import Graph
from superkernel.scheduler.group import group
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.layout import storage_policy
from superkernel.scheduler.tiling import CannotCut
from superkernel.transforms import simplify

_LONGEST = 3  # sub-operators that an error names


def plan_graph(run: Stages, job: Job[TargetT], planner: Planner[TargetT, ScheduledT, PlannedT]) -> PlannedT:
    """Plan a job. Raises UnsupportedError."""
    with run.stage("simplify"):
        graph = job.source
        if job.options.simplify:
            graph = simplify(graph, job.target.computes_integers, job.target.signed_integers)
    with run.stage("lower"):
        graph = planner.lowered(graph)
    run.dump("simplified", graph)
    planned = plan_schedule(run, planner, _schedule(run, graph, planner))
    if not isinstance(job.options.deadline_us, str):
        _require_in_time(planner, planned, job.options.deadline_us)
    return planned


def _require_in_time(planner: Planner[TargetT, Any, PlannedT], planned: PlannedT, deadline_us: float) -> None:
    """Raises DeadlineError, UnsupportedError where the kind of target estimates no times."""
    where, expected = "option 'deadline_us'", f"at most {deadline_us:g} us"
    estimate = planner.estimated_ns(planned)
    if estimate is None:
        raise UnsupportedError("targets of this kind estimate no times", location=where, expected="'any'")
    total_us, subops = estimate[0] / 1e3, planned.schedule.subops
    if total_us <= deadline_us:
        return
    times = sorted(zip(estimate[1], subops, strict=True), key=lambda each: -each[0])[:_LONGEST]
    longest = ", ".join(f"{sub.name} {ns / 1e3:.1f} us ({sub.kernel})" for ns, sub in times)
    raise DeadlineError(
        "a run takes longer than it may, by estimate",
        location=where,
        expected=expected,
        found=f"{total_us:.1f} us; longest: {longest}",
        hint="more cores, less precision, or a later deadline",
    )


def plan_schedule(run: Stages, planner: Planner[Any, ScheduledT, PlannedT], scheduled: ScheduledT) -> PlannedT:
    """The plan of a schedule."""
    with run.stage("sync"):
        planned = planner.plan(scheduled)
    run.dump("plan", planned.plan)
    return planned


def _schedule(run: Stages, graph: Graph, planner: Planner[TargetT, ScheduledT, Any]) -> ScheduledT:
    """Group and place; again with another kernel where one turns out not to do, or all of them not to fit: once for
    each, at most."""
    while True:
        with run.stage("group"):
            grouped, grouping, dumps = _grouped(graph, planner)
            if planner.chooser.refuse_unlisted(grouping.subops):
                continue
        run.dump("subops", grouping)
        try:
            with run.stage("place"):
                scheduled = planner.place(grouped, grouping, dumps)
        except CannotCut as found:
            planner.chooser.refuse(found.sub.body, found.error)
        else:
            if not planner.fits(scheduled):
                continue
            run.dump("schedule", scheduled.schedule)
            return scheduled


def _grouped(graph: Graph, planner: Planner[TargetT, Any, Any]) -> tuple[Graph, Grouping, dict[str, int]]:
    """The graph, with the values of option `dump` as outputs, its sub-operators, and the outputs' numbers by name."""
    target, options, choose = planner.job.target, planner.job.options, ChoiceOfAll(planner.chooser)
    layout = storage_policy(graph, choose, target, options)
    kernels = planner.kernels

    def name_of(kernel: str, body: Body) -> str:
        return kernels.name_of(kernel, body, target)

    grouping = group(graph, choose, target, options, kernels.family_of, layout, name_of)
    choose.raise_unsupported(grouping.subops)
    dumps: dict[str, int] = {}
    if options.dump:
        graph, dumps = with_dumps(graph, grouping.subops, options.dump)
        grouping = group(graph, choose, target, options, kernels.family_of, layout, name_of)
    return graph, planner.ordered(grouping), dumps
