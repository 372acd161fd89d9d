"""Small accelerator schedules made by hand and by seed: kernels of any type on a few buffers of the arena."""

from __future__ import annotations

import random
from dataclasses import dataclass

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Region, TensorType
from superkernel.ir.body import Body, Operand, PointwiseProgram, SubOperator
from superkernel.ir.body import Role as Use
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.aicore.place import ranges
from superkernel.scheduler.aicore.schedule import AicoreSchedule, Workspaces
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.schedule import MemoryAccess, MemoryAddress, Space, Task
from superkernel.scheduler.tiling import Access
from superkernel.target.aicore import AicoreTarget, load_target

CUBE, VECTOR, MIX = AicoreKernelType.CUBE, AicoreKernelType.VECTOR, AicoreKernelType.MIX_1_2
MINI = load_target("mini")
BLOCK = 64  # bytes per unit in these tests


@dataclass(frozen=True)
class _Tiling(AicoreTiling):
    kind: AicoreKernelType
    count: int

    @property
    def kernel_type(self) -> AicoreKernelType:
        return self.kind

    @property
    def units(self) -> int:
        return self.count

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return ()

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return float(end - begin)


@dataclass(frozen=True)
class Op:
    """A sub-operator of a test: reads buffers (whole, or the own units), writes one buffer unit by unit."""

    kind: AicoreKernelType
    units: int
    reads: tuple[tuple[int, bool], ...]  # buffer, whole
    writes: int


def schedule_of(ops: list[Op], target: AicoreTarget = MINI) -> AicoreSchedule:
    """Buffer b lies at b * 4096 of the arena; unit u owns BLOCK bytes of each buffer that is not read as a whole."""
    cores = Cores(target)
    subops, tilings, tasks = [], [], []
    kind = TensorType(DType.I8, (4096,))
    for index, op in enumerate(ops):
        operands = [*(Operand(Use.INPUT, kind) for _ in op.reads), Operand(Use.OUTPUT, kind)]
        body = Body(None, (), tuple(operands), (), (), (), PointwiseProgram((1,), (), (), ()))
        subops.append(SubOperator(index, f"op{index}", body, (), (f"op{index}",), "aicore.test"))
        tiling = _Tiling(op.kind, op.units)
        tilings.append(tiling)
        for core, begin, end, role in ranges(tiling, cores):
            own = [Region(begin * BLOCK, (end - begin) * BLOCK)]
            accesses = [
                MemoryAccess(Space.ARENA, 0, False, (Region(b * 4096, 4096) if whole else own[0].shifted(b * 4096),), n)
                for n, (b, whole) in enumerate(op.reads)
            ]
            if not op.kind.is_mix or role is CoreRole.VECTOR0:
                accesses.append(MemoryAccess(Space.ARENA, 0, True, (own[0].shifted(op.writes * 4096),), len(op.reads)))
            tasks.append(Task(len(tasks), index, core, begin, end, tuple(accesses)))
    addresses = tuple(tuple(MemoryAddress(Space.ARENA, 0, 0) for _ in s.body.operands) for s in subops)
    spaces = Workspaces(0, cores.total, (None,) * len(ops))
    return AicoreSchedule(
        cores.total, tuple(subops), tuple(tilings), addresses, tuple(tasks), (), 1 << 16, 0, (), spaces
    )


def random_ops(rng: random.Random, count: int) -> list[Op]:
    """Operators of all types that read one to three of six buffers and write another."""
    kinds = [AicoreKernelType.CUBE, AicoreKernelType.VECTOR, AicoreKernelType.MIX_1_2]
    ops = []
    for _ in range(count):
        reads = tuple((rng.randrange(6), rng.random() < 0.4) for _ in range(rng.randint(1, 3)))
        free = sorted({*range(6)} - {b for b, _ in reads})
        ops.append(Op(rng.choice(kinds), rng.choice([1, 2, 3, 4, 16]), reads, rng.choice(free)))
    return ops


def chain(*kinds: AicoreKernelType, whole: bool = False) -> list[Op]:
    """Each reads what the one before it wrote: the own units, or everything."""
    return [Op(kind, 16, ((i, whole),), i + 1) for i, kind in enumerate(kinds)]
