"""What tests of planner and verifier ask of plans and accesses."""

from __future__ import annotations

from superkernel.scheduler.schedule import MemoryAccess, Schedule
from superkernel.sync.plan import Plan
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import check


def bytes_of(access: MemoryAccess) -> set[int]:
    """The bytes that an access touches."""
    return {r.start + i * r.stride + j for r in access.regions for i in range(r.count) for j in range(r.length)}


def is_accepted(plan: Plan) -> bool:
    return not check(plan)[0]


def minimal(schedule: Schedule) -> Plan:
    return plan_sync(schedule)
