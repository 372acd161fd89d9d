"""Small accelerator schedules, made by hand and at random: kernels of any type on a few buffers of the arena."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Region, TensorType
from superkernel.ir.body import Body, Operand, PointwiseProgram, Role, SubOperator
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.aicore.place import ranges
from superkernel.scheduler.aicore.schedule import AicoreSchedule, Workspaces
from superkernel.scheduler.aicore.streams import SlotRange
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.hostcall import HostCallTiling
from superkernel.scheduler.schedule import Copies, MemoryAccess, MemoryAddress, Space, Task
from superkernel.scheduler.tiling import Access, Tiling
from superkernel.target.aicore import AicoreTarget, load_target

CUBE, VECTOR, MIX, AICPU = (
    AicoreKernelType.CUBE, AicoreKernelType.VECTOR, AicoreKernelType.MIX_1_2, AicoreKernelType.AICPU
)  # fmt: skip
MINI = load_target("mini")
BLOCK = 64  # bytes per unit
PITCH = 4096  # bytes from buffer to buffer


@dataclass(frozen=True)
class _Tiling(AicoreTiling):
    kind: AicoreKernelType
    count: int
    barrier_count: int = 0

    @property
    def kernel_type(self) -> AicoreKernelType:
        return self.kind

    @property
    def units(self) -> int:
        return self.count

    @property
    def barriers(self) -> int:
        return self.barrier_count

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return ()

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return float(end - begin)


@dataclass(frozen=True)
class BufferOp:
    """A sub-operator: reads buffers (whole, or the own units), writes one buffer unit by unit. `kind` None: computed by
    NumPy; `first`: the first slot of its ranges, `slots`: how many, 0: all; `barriers`: of its cores, inside."""

    kind: AicoreKernelType | None
    units: int
    reads: tuple[tuple[int, bool], ...]  # buffer, whole
    writes: int
    barriers: int = 0
    first: int = 0
    slots: int = 0


def schedule_of(ops: Sequence[BufferOp], target: AicoreTarget = MINI) -> AicoreSchedule:
    """Buffer b lies at b * PITCH of the arena; unit u owns BLOCK bytes of each buffer that is not read as a whole. In
    a MIX kernel the first vector core of a group writes."""
    cores = Cores(target)
    subops: list[SubOperator] = []
    tilings: list[Tiling] = []
    tasks: list[Task] = []
    kind = TensorType(DType.I8, (PITCH,))
    for index, op in enumerate(ops):
        operands = [*(Operand(Role.INPUT, kind) for _ in op.reads), Operand(Role.OUTPUT, kind)]
        body = Body(None, (), tuple(operands), (), (), (), PointwiseProgram((1,), (), (), ()))
        subops.append(SubOperator(index, f"op{index}", body, (), (f"op{index}",), "aicore.test"))
        tiling = HostCallTiling() if op.kind is None else _Tiling(op.kind, op.units, op.barriers)
        tilings.append(tiling)
        site = SlotRange(op.first, min(op.slots, op.units)) if op.slots else None
        for core, begin, end, role in ranges(tiling, cores, site):
            if op.kind is None:
                end = op.units
            own = Region(begin * BLOCK, (end - begin) * BLOCK)
            accesses = [
                MemoryAccess(Space.ARENA, 0, False, ((Region(0, PITCH) if whole else own).shifted(b * PITCH),), n)
                for n, (b, whole) in enumerate(op.reads)
            ]
            if op.kind is None or not op.kind.is_mix or role is CoreRole.VECTOR0:
                accesses.append(MemoryAccess(Space.ARENA, 0, True, (own.shifted(op.writes * PITCH),), len(op.reads)))
            tasks.append(Task(len(tasks), index, core, begin, end, tuple(accesses)))
    addresses = tuple(tuple(MemoryAddress(Space.ARENA, 0, 0) for _ in s.body.operands) for s in subops)
    spaces = Workspaces(0, cores.total, (None,) * len(ops))
    return AicoreSchedule(
        cores.total, tuple(subops), tuple(tilings), addresses, tuple(tasks), (), 1 << 16, 0, (), spaces
    )


def random_ops(
    rng: random.Random, count: int, kinds: Sequence[AicoreKernelType] = (CUBE, VECTOR, MIX), buffers: int = 6
) -> list[BufferOp]:
    """Operators of all kinds that read one to three buffers and write another."""
    ops = []
    for _ in range(count):
        reads = tuple((rng.randrange(buffers), rng.random() < 0.4) for _ in range(rng.randint(1, 3)))
        free = sorted({*range(buffers)} - {b for b, _ in reads})
        ops.append(BufferOp(rng.choice(kinds), rng.choice([1, 2, 3, 4, 16]), reads, rng.choice(free)))
    return ops


def chain(*kinds: AicoreKernelType, whole: bool = False) -> list[BufferOp]:
    """Each reads what the one before it wrote: the own units, or everything."""
    return [BufferOp(kind, 16, ((i, whole),), i + 1) for i, kind in enumerate(kinds)]


def small_target(vectors: int = 1, groups: int = 1, **fields: int) -> AicoreTarget:
    """Groups of a cube core and so many vector cores; `fields` of `sync` by name."""
    cores = {"groups": groups, "cube_cores": groups, "vector_cores": groups * vectors}
    changes = {f"device.{name}": value for name, value in (cores | {"vector_cores_per_group": vectors}).items()}
    return MINI.replaced({**changes, **{f"sync.{name}": value for name, value in fields.items()}})


def copied(ops: Sequence[BufferOp], target: AicoreTarget, copies_of: int) -> AicoreSchedule:
    """A schedule in which each group computes operator `copies_of` for itself: all units, on its first vector core; who
    reads it reads the copy of the own group."""
    schedule, cores = schedule_of(ops, target), Cores(target)
    buffer, stride = ops[copies_of].writes, PITCH // 2
    tasks: list[Task] = []
    uses: dict[tuple[int, int], None] = {(copies_of, len(ops[copies_of].reads)): None}
    units = ops[copies_of].units
    for task in schedule.tasks:
        if task.subop == copies_of:
            if any(t.subop == copies_of for t in tasks):
                continue
            for group in range(cores.groups):
                core = cores.core(VECTOR, group * (cores.vector // cores.groups), CoreRole.VECTOR0)
                rows = [
                    replace(a, regions=(Region(buffer * PITCH + group * stride, units * BLOCK),)) if a.write
                    else replace(a, regions=(Region(ops[copies_of].reads[a.operand or 0][0] * PITCH, units * BLOCK),))
                    for a in task.accesses
                ]  # fmt: skip
                tasks.append(Task(len(tasks), copies_of, core, 0, units, tuple(rows)))
            continue
        rows = []
        for access in task.accesses:
            reads = ops[task.subop].reads
            operand = access.operand or 0
            if task.subop > copies_of and operand < len(reads) and reads[operand][0] == buffer:
                uses[task.subop, operand] = None
                base = buffer * PITCH + cores.group(task.core) * stride
                own = Region(task.begin * BLOCK, (task.end - task.begin) * BLOCK)
                region = Region(0, units * BLOCK) if reads[operand][1] else own
                access = replace(access, regions=(region.shifted(base),))
            rows.append(access)
        tasks.append(replace(task, index=len(tasks), accesses=tuple(rows)))
    found = Copies(copies_of, tuple(uses), stride, cores.groups)
    return replace(schedule, tasks=tuple(tasks), copies=(found,))
