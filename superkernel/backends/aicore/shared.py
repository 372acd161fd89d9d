"""What the programs of one graph on one target have in common, whatever their options of synchronisation and of code.

Whoever compiles a graph under many options hands one `Shared` to all of these compilations: kernels are emitted once
per distinct (kernel, body, tiling, role), and the conflicts of a schedule are found once. A single compilation has one
of its own.

Invariant: a program does not depend on what its `Shared` has seen before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from superkernel.codegen.aicore.emission import KernelCode
from superkernel.scheduler.families.aicore.base import CoreRole
from superkernel.scheduler.schedule import Schedule
from superkernel.sync.hazards import FoundConflicts, find_all

SCHEDULES_KEPT = 2  # conflicts of large schedules take tens of megabytes


@dataclass
class Shared:
    """See the module docstring. `kernels`: emitted code and its IR text, by what it was made from."""

    kernels: dict[tuple[str, CoreRole], tuple[KernelCode, str]] = field(default_factory=dict)
    found: list[tuple[Schedule, FoundConflicts]] = field(default_factory=list)

    def conflicts(self, schedule: Schedule) -> FoundConflicts:
        """Conflicts of the tasks of a schedule; of the last few schedules they are kept."""
        for known, conflicts in self.found:
            if known is schedule:
                return conflicts
        conflicts = find_all(schedule.tasks)
        self.found = [*self.found[1 - SCHEDULES_KEPT :], (schedule, conflicts)]
        return conflicts
