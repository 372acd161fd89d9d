"""What a backend has for planning: from a graph to tasks on cores and what orders them. Emits nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from superkernel.compilation.choice import KernelChooser
from superkernel.compilation.compiled import Job, Planned, Scheduled
from superkernel.ir.graph import Graph
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.target.base import Target

TargetT = TypeVar("TargetT", bound=Target)
ScheduledT = TypeVar("ScheduledT", bound=Scheduled)
PlannedT = TypeVar("PlannedT", bound="Planned[Any]")


class Planner(ABC, Generic[TargetT, ScheduledT, PlannedT]):
    """Plans one job. `chooser` gives each body its kernel, and remembers why."""

    def __init__(self, job: Job[TargetT], kernels: KernelTable[TargetT]) -> None:
        self.job, self.kernels = job, kernels
        self.chooser = KernelChooser(job.target, job.options, kernels.registry)

    def lowered(self, graph: Graph) -> Graph:
        """The simplified graph as this kind of target computes it: with less precision, say."""
        return graph

    def ordered(self, grouping: Grouping) -> Grouping:
        """The sub-operators in the order in which they are placed."""
        return grouping

    @abstractmethod
    def place(self, graph: Graph, grouping: Grouping, dumps: Mapping[str, int]) -> ScheduledT:
        """Ranges of work on cores, and memory. Raises CannotCut where a kernel turns out not to do for a body; it is
        called again with another one."""

    def fits(self, scheduled: ScheduledT) -> bool:
        """Whether a schedule fits the memories of the target; where it does not, the chooser is told what to keep to,
        and the graph is grouped again. Raises WorkspaceError where that does not help."""
        return True

    @abstractmethod
    def plan(self, scheduled: ScheduledT) -> PlannedT:
        """What orders the tasks of a schedule."""

    def estimated_ns(self, planned: PlannedT) -> tuple[float, tuple[float, ...]] | None:
        """What a run takes by the estimates that the plan was made by, and the longest range of each sub-operator.
        None: this kind of target estimates no times."""
        return None


AnyPlanner: TypeAlias = Planner[TargetT, Any, PlannedT]
