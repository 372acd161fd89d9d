"""From scopes to launches: the plan with all parts fused, what it predicts for each, and the plan as decided."""

from __future__ import annotations

from collections.abc import Callable

from superkernel.scheduler.aicore.launches import ScopePart, cuts_of, decide, parts_of, predict
from superkernel.scheduler.aicore.schedule import AicoreSchedule
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.hazards import FoundConflicts, find_all
from superkernel.target.aicore import AicoreTarget


def plan_launches(
    schedule: AicoreSchedule,
    target: AicoreTarget,
    *,
    sync: str,
    early_start: bool,
    launches: str,
    strict: str,
    code_bytes: Callable[[int], int],
    conflicts: FoundConflicts | None = None,
) -> tuple[AicorePlan, tuple[ScopePart, ...]]:
    """The plan and its parts. `launches`, `strict`: the options `launches` and `strict_scope`; `code_bytes`: of a
    sub-operator's kernel; `conflicts`: of the schedule's tasks, where they are known. Raises UnsupportedError as
    `parts_of` and `plan_aicore`."""
    parts = parts_of(schedule, strict)
    if conflicts is None:
        conflicts = find_all(schedule.tasks)
    plan = plan_aicore(schedule, target, sync=sync, early_start=early_start, cuts=cuts_of(parts), conflicts=conflicts)
    costs = {b.subop: b.cost_ns for b in plan.boundaries}
    decided = tuple(
        decide(part, launches, predict(part, schedule, target, lambda i: costs[i], code_bytes, early_start))
        for part in parts
    )
    if cuts_of(decided) != cuts_of(parts):
        plan = plan_aicore(
            schedule, target, sync=sync, early_start=early_start, cuts=cuts_of(decided), conflicts=conflicts
        )
    return plan, decided
