"""The schedule on the accelerator: beside what every schedule has, the workspaces of kernels, copies, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.schedule import Copies, Schedule


@dataclass(frozen=True)
class Workspaces:
    """Which workspace each sub-operator's cores have: `sets[i]` is None or the set; `stride` bytes each."""

    stride: int
    cores: int
    sets: tuple[int | None, ...]

    def offset(self, subop: int, core: int) -> int:
        """Byte offset of the workspace of a core (MIX: of the group's cube core) in a sub-operator."""
        chosen = self.sets[subop]
        return 0 if chosen is None else (chosen * self.cores + core) * self.stride

    @property
    def nbytes(self) -> int:
        """All of them."""
        used = [s for s in self.sets if s is not None]
        return (max(used) + 1) * self.cores * self.stride if used else 0


@dataclass(frozen=True)
class AicoreSchedule(Schedule):
    """`arrangements`: (name, estimated cycles) of those tried, the chosen one first; `rematerialised`: sub-operators
    whose ranges follow those of their readers; `copies`: of values that groups then compute each for itself;
    `buffers`: what the sub-operators' values name, copies included."""

    workspaces: Workspaces
    copies: tuple[Copies, ...] = ()
    arrangements: tuple[tuple[str, float], ...] = ()
    rematerialised: frozenset[int] = frozenset()
    buffers: Mapping[str, ValueBuffer] = field(default_factory=dict)

    def remarks(self) -> list[str]:
        return list(map(str, self.copies))
