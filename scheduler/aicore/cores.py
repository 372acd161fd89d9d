"""The cores of the accelerator: numbered as harts, cube cores first, then vector cores, those of a group next to one
another; an aicpu hart for tilings stands behind them."""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling, CoreRole
from superkernel.target.aicore import AicoreTarget


@dataclass(frozen=True)
class Cores:
    """The cores of a target by type and group."""

    target: AicoreTarget

    @property
    def cube(self) -> int:
        """Number of cube cores, over all groups."""
        return int(self.target.device.cube_cores)

    @property
    def vector(self) -> int:
        """Number of vector cores, over all groups."""
        return int(self.target.device.vector_cores)

    @property
    def total(self) -> int:
        """Number of cores of both types."""
        return self.cube + self.vector

    @property
    def groups(self) -> int:
        """Number of groups that share out the cores evenly."""
        return int(self.target.device.groups)

    @property
    def harts(self) -> int:
        """Cores, and an aicpu hart for tilings where the target has one."""
        return self.total + min(1, int(self.target.device.aicpu_harts))

    def group(self, core: int) -> int:
        """The group of a core."""
        if core < self.cube:
            return core // (self.cube // self.groups)
        return (core - self.cube) // (self.vector // self.groups)

    def slots(self, kind: AicoreKernelType) -> int:
        """How many ranges a kernel of the type can have."""
        if kind is AicoreKernelType.AICPU:
            return self.harts - self.total
        return {AicoreKernelType.CUBE: self.cube, AicoreKernelType.VECTOR: self.vector}.get(kind, self.groups)

    def core(self, kind: AicoreKernelType, slot: int, role: CoreRole) -> int:
        """The core of a role of range number `slot`."""
        if kind is AicoreKernelType.CUBE:
            return slot
        if role is CoreRole.CUBE:
            return slot * (self.cube // self.groups)
        if kind is AicoreKernelType.AICPU:
            return self.total + slot
        if kind is AicoreKernelType.VECTOR:
            return self.cube + slot
        return self.cube + slot * (self.vector // self.groups) + role.lane


def owner(tiling: AicoreTiling, core: int, cores: Cores) -> int:
    """The core whose workspace a core uses: its own; in a MIX kernel that of its group's cube core; where cores meet
    inside, they share the first one."""
    if tiling.barriers:
        return 0
    if len(tiling.roles()) > 1 and core >= cores.cube:
        return (core - cores.cube) // (cores.vector // cores.groups)
    return core
