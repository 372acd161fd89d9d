"""Sub-operators onto the accelerator's cores.

Model: each sub-operator is cut for all cores of its type (MIX: for all groups), in contiguous ranges of nearly equal
size, or for a share of them where streams run side by side: `streams` decides on that, and on the order. What may
overlap else is not decided here: cores of the two types run on their own, and wait only where bytes conflict. Of the
tilings that a family offers, the one whose longest range is shortest is taken. A sub-operator with fewer units than
cores goes where it is done first by estimate: behind its producer on the same cores, which costs no synchronisation, or
beside others on cores that are idle. Then `locality` gives groups what their own cores read, where that is sooner.

Cores are numbered as harts: cube cores first, then vector cores, those of a group next to one another. A MIX range is
one task on each core of its group. Kernels with a workspace get one per core (MIX: per group, that of its cube core),
in two sets used in rotation, so that a kernel need not wait for the one before it to be done with its own.

Invariants: tasks stand in one global order, a topological order of the sub-operators; memory is planned, accesses are
absolute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from superkernel.core.errors import InternalError, UnsupportedError
from superkernel.core.tensor import Region
from superkernel.ir.body import SubOperator
from superkernel.scheduler.aicore.cores import Cores, owner
from superkernel.scheduler.aicore.locality import AUTO as LOCAL
from superkernel.scheduler.aicore.locality import Rematerialised, rematerialise
from superkernel.scheduler.aicore.schedule import AicoreSchedule, Workspaces
from superkernel.scheduler.aicore.streams import AUTO, SlotRange, arrange
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.memory import plan_memory
from superkernel.scheduler.memory_check import check_memory
from superkernel.scheduler.schedule import MemoryAccess, MemoryAddress, Space, Task, absolute
from superkernel.scheduler.tiling import Access, CannotCut, KernelFamily, Tiling, raise_workspace, within_workspace
from superkernel.target.aicore import AicoreTarget

ALIGN_BYTES = 512
WORKSPACE_SETS = 2
WORKSPACE = -1  # the workspace as an operand


def place_aicore(
    grouping: Grouping,
    target: AicoreTarget,
    families: Callable[[str], KernelFamily[AicoreTarget]] = family_of,
    streams: str = AUTO,
    locality: str = LOCAL,
    fixed: Collection[int] = (),
    workspace_max: int | None = None,
) -> AicoreSchedule:
    """Place a grouping on a target. `streams`: "off" keeps the order of the grouping; `locality`: "off" leaves ranges
    where they are; those of sub-operators `fixed`, in launches of their own, always stay; `workspace_max`: bytes that a
    kernel may use per core or group. Raises MachineError, UnsupportedError where kernels cannot be cut for it."""
    cores = Cores(target)
    cut = [_tiling(sub, target, cores, families, workspace_max) for sub in grouping.subops]
    arranged = arrange(grouping, [tiling for tiling, _ in cut], target, cores, streams)
    subops = tuple(replace(grouping.subops[i], index=at) for at, i in enumerate(arranged.order))
    tilings: list[Tiling] = [cut[i][0] for i in arranged.order]
    spans = [ranges(tiling, cores, arranged.sites[i]) for tiling, i in zip(tilings, arranged.order, strict=True)]
    local = Rematerialised(subops, grouping.buffers, tuple(map(tuple, spans)), (), {})
    if locality == LOCAL:
        local = rematerialise(subops, tilings, spans, grouping.buffers, cores, target, fixed)
    subops, buffers = local.subops, local.buffers
    said = [(cut[i][1], arranged.notes[i], local.notes.get(at, "")) for at, i in enumerate(arranged.order)]
    touched, roomy = arranged.touched(subops, buffers), target.l2_room_bytes // 2
    memory = plan_memory(subops, tilings, buffers, grouping.constants, touched, roomy if touched else 0, ALIGN_BYTES)
    check_memory(subops, memory.addresses, buffers)
    own = {use: copies.stride for copies in local.copies for use in copies.uses}
    spaces = _workspaces(tilings, cores)
    tasks: list[Task] = []
    for sub, tiling, addresses in zip(subops, tilings, memory.addresses, strict=True):
        for core, begin, end, role in local.spans[sub.index]:
            if isinstance(tiling, AicoreTiling):
                accesses = _of_operands(tiling.role_accesses(sub.body, begin, end, role), addresses)
                accesses = tuple(_of_group(a, own.get((sub.index, a.operand or 0), 0), core, cores) for a in accesses)
                if tiling.dynamically_partitioned:
                    accesses = tuple(replace(a, dynamically_partitioned=a.write) for a in accesses)
                accesses += _workspace_access(spaces, sub.index, tiling, core, role, cores)
            else:
                accesses = absolute(tiling.accesses(sub.body, begin, end), addresses)
            tasks.append(Task(len(tasks), sub.index, core, begin, end, accesses))
    return AicoreSchedule(
        cores.harts if any(_on_aicpu(t) for t in tilings) else cores.total,
        subops,
        tuple(tilings),
        memory.addresses,
        tuple(tasks),
        memory.constants,
        memory.arena_bytes,
        spaces.nbytes,
        tuple("; ".join(filter(None, row)) for row in said),
        spaces,
        local.copies,
        arranged.tried,
        frozenset(local.notes),
        buffers,
    )


def _on_aicpu(tiling: Tiling) -> bool:
    return isinstance(tiling, AicoreTiling) and tiling.kernel_type.on_aicpu


def ranges(tiling: Tiling, cores: Cores, site: SlotRange | None = None) -> list[tuple[int, int, int, CoreRole]]:
    """(core, begin, end, role) of every task of a sub-operator at a site; None: as many ranges as can be, from the
    first slot on. A fallback runs on no core: it is told as core 0."""
    if not isinstance(tiling, AicoreTiling):
        return [(0, 0, tiling.units, CoreRole.CUBE)] if tiling.units else []
    kind = tiling.launch_type
    site = site or SlotRange(0, min(cores.slots(kind), tiling.units))
    count, first = site.count, site.first
    found = []
    for slot in range(count):
        begin, end = slot * tiling.units // count, (slot + 1) * tiling.units // count
        found += [(cores.core(kind, first + slot, role), begin, end, role) for role in tiling.roles()]
    return found


def _tiling(
    sub: SubOperator,
    target: AicoreTarget,
    cores: Cores,
    families: Callable[[str], KernelFamily[AicoreTarget]],
    workspace_max: int | None,
) -> tuple[Tiling, str]:
    """The best tiling of a sub-operator, and why."""
    try:
        family = families(sub.kernel)
        cuts = family.tilings(sub.kernel, sub.body, target)
        if sub.kernel_type == AicoreKernelType.MIX_1_1.value and target.device.vector_cores_per_group > 1:
            cuts = [*cuts, *family.tilings(sub.kernel, sub.body, _one_vector_core(target))]
    except UnsupportedError as error:
        raise CannotCut(sub, error) from error
    fitting = within_workspace(cuts, workspace_max)
    if cuts and not fitting:
        raise_workspace(sub, cuts, workspace_max)
    cuts = fitting
    offered = [tiling for tiling in cuts if isinstance(tiling, AicoreTiling)]
    if cuts and not offered:
        return cuts[0], "no kernel: NumPy between two launches"
    best, best_cycles, longest = None, (0.0, 0.0), 0.0
    for tiling in offered if sub.kernel_type is None else _of_type(sub, offered):
        spans = {(begin, end) for _, begin, end, role in ranges(tiling, cores) if role is tiling.roles()[0]}
        ranked = max((tiling.ranked_cycles(sub.body, *span, target) for span in spans), default=0.0)
        alone = max((tiling.cost_cycles(sub.body, *span, target) for span in spans), default=0.0)
        if best is None or (ranked, alone) < best_cycles:
            best, best_cycles = tiling, (ranked, alone)
            longest = max((tiling.contended_cycles(sub.body, *span, target) for span in spans), default=0.0)
    if best is None:
        raise InternalError("the family offers no tiling", location=sub.name, found=sub.kernel)
    used = min(cores.slots(best.launch_type), best.units)
    what = "groups" if best.launch_type.is_mix else "harts" if best.kernel_type.on_aicpu else "cores"
    return best, f"{best.launch_type.value} on {used} {what}, {best.units} units, about {longest:.0f} cycles"


def _one_vector_core(target: AicoreTarget) -> AicoreTarget:
    """The target as a kernel sees it that leaves all vector cores of a group but the first alone."""
    groups = target.device.groups
    return target.replaced({"device.vector_cores_per_group": 1, "device.vector_cores": groups})


def _of_type(sub: SubOperator, offered: Sequence[AicoreTiling]) -> list[AicoreTiling]:
    """The tilings that run as the type that the node names. Raises UnsupportedError where there is none."""
    wanted = sub.kernel_type
    found = [t for t in offered if t.kernel_type.value == wanted]
    for tiling in offered:
        other = tiling.kernel_type.by_groups
        if other is not None and other.value == wanted:
            found.append(replace(tiling, launched=other))
    if not found:
        kinds = [k for t in offered for k in (t.kernel_type, t.kernel_type.by_groups) if k is not None]
        raise UnsupportedError(
            "the kernel does not run as the kernel type that the node names",
            location=f"node {sub.name!r}, kernel {sub.kernel}",
            expected=" or ".join(dict.fromkeys(k.value for k in kinds)),
            found=str(wanted),
            hint="without kernel_type the compiler chooses",
        )
    return found


def _of_operands(accesses: Sequence[Access], addresses: Sequence[MemoryAddress]) -> tuple[MemoryAccess, ...]:
    found = absolute(accesses, addresses)
    return tuple(replace(a, operand=b.operand) for a, b in zip(found, accesses, strict=True))


def _of_group(access: MemoryAccess, stride: int, core: int, cores: Cores) -> MemoryAccess:
    """In the copy of the core's group, copies `stride` bytes apart; 0: there is one for all."""
    if not stride:
        return access
    return replace(access, regions=tuple(r.shifted(cores.group(core) * stride) for r in access.regions))


def _workspaces(tilings: Sequence[Tiling], cores: Cores) -> Workspaces:
    stride, following = 0, 0
    sets: list[int | None] = []
    for tiling in tilings:
        if not tiling.scratch_bytes:
            sets.append(None)
            continue
        stride = max(stride, -(-tiling.scratch_bytes // ALIGN_BYTES) * ALIGN_BYTES)
        sets.append(following)
        following = (following + 1) % WORKSPACE_SETS
    return Workspaces(stride, cores.total, tuple(sets))


def _workspace_access(
    spaces: Workspaces, subop: int, tiling: AicoreTiling, core: int, role: CoreRole, cores: Cores
) -> tuple[MemoryAccess, ...]:
    """Everybody in a range may write the workspace: within a range its kernel keeps order itself."""
    if spaces.sets[subop] is None:
        return ()
    core = owner(tiling, core, cores)
    region = Region(spaces.offset(subop, core), tiling.scratch_bytes)
    return (MemoryAccess(Space.SCRATCH, 0, True, (region,), WORKSPACE),)
