"""What a tiling for the accelerator says beyond a tiling for the host: which cores run it, and with what memory.

Model: the work units of a sub-operator are divided into contiguous ranges. A CUBE kernel runs a range on one cube
core, a VECTOR kernel on one vector core. A MIX kernel runs a range on one *group*: the cube core and both its vector
cores execute the same range together, each in its role, exchanging tiles through the group's workspace. An AICPU
kernel is scalar code that an aicpu hart runs beside the cores: it computes other kernels' tilings at run time.

Invariant: what `role_accesses` says of the roles of one range, taken together, is `accesses`; writes of two roles of
one range are disjoint.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, Role
from superkernel.scheduler.tiling import Access, CostedTiling
from superkernel.target.aicore import AicoreTarget

CHANNEL_ALIGN_BYTES = 512
"""Slots of channels in the workspace of a MIX kernel start at multiples of it: lines of L2."""


CHANNEL_FLAGS = 4
"""Cross-core flags of channels, the last ones of a core. The one ahead of them is the barriers' (`barriers`): a core
that is ahead may use a channel's flag while others still wait at a barrier."""


class AicoreKernelType(Enum):
    """Which cores a kernel needs; the value is the graph's `kernel_type` attribute (AICPU: none of them)."""

    CUBE = "AIC_ONLY"
    VECTOR = "AIV_ONLY"
    MIX_1_0 = "MIX_AIC_1_0"  # a group's cube core alone
    MIX_0_1 = "MIX_AIV_1_0"  # the first vector core of a group alone
    MIX_1_1 = "MIX_AIC_1_1"
    MIX_1_2 = "MIX_AIC_1_2"
    AICPU = "AICPU"

    @property
    def is_mix(self) -> bool:
        """Whether ranges are divided to groups."""
        return self.name.startswith("MIX")

    @property
    def on_aicpu(self) -> bool:
        """Whether it runs beside the cores, on an aicpu hart."""
        return self is AicoreKernelType.AICPU

    @property
    def uses_cube(self) -> bool:
        """Whether cube cores take part."""
        return self not in (AicoreKernelType.VECTOR, AicoreKernelType.MIX_0_1, AicoreKernelType.AICPU)

    @property
    def uses_vector(self) -> bool:
        """Whether vector cores take part."""
        return self not in (AicoreKernelType.CUBE, AicoreKernelType.MIX_1_0, AicoreKernelType.AICPU)

    @property
    def by_groups(self) -> AicoreKernelType | None:
        """The type that runs the same kernel on one core of each group; None: there is none."""
        return {AicoreKernelType.CUBE: AicoreKernelType.MIX_1_0, AicoreKernelType.VECTOR: AicoreKernelType.MIX_0_1}.get(
            self
        )


def check_group(target: AicoreTarget, lanes: Sequence[int], what: str) -> None:
    """Raises UnsupportedError where the target's groups are not one cube core and one of `lanes` vector cores: flags of
    a group count all its cores."""
    device = target.device
    if not mixes(target, lanes):
        raise UnsupportedError(
            f"{what} on groups of this shape",
            location="device.cube_cores_per_group, device.vector_cores_per_group",
            expected=f"1 and {' or '.join(map(str, lanes))}",
            found=f"{device.cube_cores_per_group} and {device.vector_cores_per_group}",
        )


def mixes(target: AicoreTarget, lanes: Sequence[int]) -> bool:
    """Whether the groups are such that a MIX kernel for that many vector cores can run."""
    return target.device.cube_cores_per_group == 1 and target.device.vector_cores_per_group in lanes


class CoreRole(Enum):
    """What a core is within a range: the cube core, or the vector core of a lane of the group; or an aicpu hart."""

    CUBE = "cube"
    VECTOR0 = "vector0"
    VECTOR1 = "vector1"
    AICPU = "aicpu"

    @property
    def lane(self) -> int:
        """Number of the vector core within its group; 0 for the cube core."""
        return 1 if self is CoreRole.VECTOR1 else 0

    @property
    def is_cube(self) -> bool:
        """Whether it multiplies."""
        return self is CoreRole.CUBE

    @property
    def is_vector(self) -> bool:
        """Whether it is one of a group's vector cores."""
        return self in (CoreRole.VECTOR0, CoreRole.VECTOR1)


MIX_ROLES = (CoreRole.CUBE, CoreRole.VECTOR0, CoreRole.VECTOR1)


def streaming_cycles(read_bytes: int, written_bytes: int, target: AicoreTarget) -> float:
    """Least cycles in which all vector cores together read and write so much: reads and writes at `l2.vector_gb_per_s`
    each, both together at `l2.aggregate_gb_per_s`, and where L2 has no room for them at what HBM gives."""
    both = read_bytes + written_bytes
    rates = [(max(read_bytes, written_bytes), target.l2.vector_gb_per_s), (both, target.l2.aggregate_gb_per_s)]
    if both > target.l2_room_bytes:
        rates.append((both, target.hbm_gb_per_s))
    return max(nbytes / target.bytes_per_cycle(rate) for nbytes, rate in rates)


@dataclass(frozen=True)
class AicoreTiling(CostedTiling[AicoreTarget]):
    """See the module docstring. `scratch_bytes`: workspace in global memory per group (MIX) or per core. `launched`:
    the type that the ranges are divided by, where it is not the kernel's own (`AicoreKernelType.by_groups`).
    `engines_write_all`: engines write every byte that is declared as written (the simulator counts them).
    `missed`: what `cost_cycles` takes from HBM, in equal shares to those who read it; all else is in L2.
    `dynamically_partitioned`: what each range writes is known at run time only: all declare all, and a table says whose
    is which."""

    engines_write_all: ClassVar[bool] = True
    dynamically_partitioned: ClassVar[bool] = False
    missed: ClassVar[frozenset[Role]] = frozenset()
    launched: AicoreKernelType | None = field(default=None, kw_only=True, repr=False)  # the kernel's code is the same

    @property
    @abstractmethod
    def kernel_type(self) -> AicoreKernelType:
        """Which cores run a range."""

    @property
    def crosses(self) -> bool:
        """Whether cores of a range, or ranges, signal one another inside the kernel: it has cross-core flags."""
        return len(self.roles()) > 1 or self.barriers > 0

    @property
    def barriers(self) -> int:
        """How often all cores of the kernel's type meet inside it (`KernelBuilder.meet`): all of the device, so that
        the program joins the barriers on cores without units. Its ranges share one workspace."""
        return 0

    @property
    def launch_type(self) -> AicoreKernelType:
        """The type that the ranges are divided by."""
        return self.launched or self.kernel_type

    def roles(self) -> tuple[CoreRole, ...]:
        """The roles of a range."""
        if self.kernel_type in (AicoreKernelType.CUBE, AicoreKernelType.MIX_1_0):
            return (CoreRole.CUBE,)
        if self.kernel_type in (AicoreKernelType.VECTOR, AicoreKernelType.MIX_0_1):
            return (CoreRole.VECTOR0,)
        if self.kernel_type is AicoreKernelType.AICPU:
            return (CoreRole.AICPU,)
        return MIX_ROLES if self.kernel_type is AicoreKernelType.MIX_1_2 else MIX_ROLES[:2]

    def role_accesses(self, body: Body, begin: int, end: int, role: CoreRole) -> tuple[Access, ...]:
        """What one role of a range reads and writes in global memory, workspace aside. MIX kernels override it."""
        return self.accesses(body, begin, end)

    def dependent_operands(self, body: Body) -> tuple[int, ...]:
        """Operands that the kernel waits for through `KernelBuilder.acquire`: all that are not constants."""
        return tuple(i for i, o in enumerate(body.operands) if o.role is not Role.CONSTANT)

    @abstractmethod
    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """Estimated cycles of one core (or group) that has global memory for itself, for the range, without
        synchronisation."""

    def lead_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """Of `cost_cycles`, the loads of constants that a range begins with, ahead of all that others produce: what
        Early-Start hides behind a flag on its way. Here the range's share of the constants' bytes."""
        constants = sum(o.type.nbytes for o in body.operands if o.role is Role.CONSTANT)
        return constants * (end - begin) / max(1, self.units) / target.hbm.core_bytes_per_cycle

    def moved_bytes(self, body: Body) -> tuple[int, int]:
        """What all units together read and write in global memory, each byte once: all of the operands, but for what
        is rewritten in place."""
        sizes = {role: sum(o.type.nbytes for o in body.operands if o.role is role) for role in Role}
        return sizes[Role.INPUT] + sizes[Role.CONSTANT], sizes[Role.OUTPUT]

    def contended_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """Estimated cycles for the range where as many others of its size run at the same time as the device has cores
        and the work has units: `cost_cycles`, or what they all together take to read and write (`streaming_cycles`)."""
        alone = self.cost_cycles(body, begin, end, target)
        if begin >= end or self.roles() != (CoreRole.VECTOR0,):
            return alone
        device = target.device
        cores = device.groups if self.launch_type.is_mix else device.vector_cores
        at_once = min(1.0, cores * (end - begin) / self.units)
        return max(alone, at_once * streaming_cycles(*self.moved_bytes(body), target))

    def ranked_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """What tilings of a family are ranked by, in cycles: `contended_cycles`, or those where what the device is in
        when the range runs is not known yet."""
        return self.contended_cycles(body, begin, end, target)

    def cost_ns(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """`contended_cycles` as time."""
        return self.contended_cycles(body, begin, end, target) * 1000 / target.device.clock_mhz


@dataclass(frozen=True)
class VectorTiling(AicoreTiling):
    """Of a kernel that needs vector cores alone."""

    @property
    def kernel_type(self) -> AicoreKernelType:
        return AicoreKernelType.VECTOR
