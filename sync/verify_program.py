"""What an emitted program was seen to do, as the plan that it is: for the verifier, in place of the one it came from.

Model: per worker a straight line of calls, waits and sets, with the addresses and units that kernels were really called
with (csrc/runtime/recorder.h). The n-th call of a worker is held against the n-th task that the plan gives it, which
says no more than which sub-operator is meant; kernel, addresses, units, waits and sets are the program's. What a call
reads and writes is asked of its tiling anew. It checks:

 P1  each worker calls as many kernels as it has tasks, each the one of its sub-operator;
 P2  all calls of a sub-operator have the same addresses; scratch memory is the worker's own, and large enough;
 P3  every access lies inside the memory that it hangs on;
 P4  no call writes bytes of one operand that it also touches as another one, but element by element in place.

The plan that comes out is for `verify` (V1 to V8), its addresses for the check of the memory. A task of it that is as
it was meant is that very object: whoever compares the plans is soon done.

Architecture invariant: imports plain data types only, nothing of the planner, nothing of code generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from superkernel.core.errors import Violation
from superkernel.core.frozen import frozen
from superkernel.scheduler.schedule import MemoryAccess, MemoryAddress, Schedule, Space, Task, absolute
from superkernel.scheduler.tiling import Access
from superkernel.sync.plan import Plan, Set, Step, TaskStep, Wait
from superkernel.sync.verify_tasks import overlapping_regions


@frozen()
class Call:
    """A kernel that was called. `scratch` lies in the space of that name, its slot the worker that owns it."""

    symbol: str
    addresses: tuple[MemoryAddress | None, ...]  # None: hangs on nothing
    scratch: MemoryAddress | None
    begin: int
    end: int


@frozen()
class HostCall:
    """A sub-operator that the reference was asked for."""

    subop: int


Event: TypeAlias = Call | HostCall | Wait | Set
Program: TypeAlias = Sequence[Sequence[Event]]
"""Per worker. The sub-operator of a wait is not known to it."""


@dataclass(frozen=True)
class Rebuilt:
    """A program as a plan, where the operands of each sub-operator are, and what its units touch of them: by kernel,
    first unit, and the one behind the last."""

    plan: Plan
    addresses: tuple[tuple[MemoryAddress, ...], ...]
    touched: Mapping[tuple[str, int, int], tuple[Access, ...]]
    wrong: tuple[Violation, ...]


def rebuild(
    program: Program,
    schedule: Schedule,
    meant: Sequence[Task],
    symbols: Sequence[str | None],
    sizes: Mapping[tuple[Space, int], int],
) -> Rebuilt:
    """The plan that a program is. `meant`: the tasks it should be; `symbols`: the kernel of each sub-operator, None:
    the reference; `sizes`: bytes of each space and slot, of scratch memory those of a worker."""
    found = _Found(schedule, sizes, symbols)
    tasks = list(meant)
    programs: list[tuple[Step, ...]] = []
    of_core: list[list[Task]] = [[] for _ in program]
    for task in meant:
        of_core[task.core].append(task)
    for core, (events, own) in enumerate(zip(program, of_core, strict=True)):
        calls = [event for event in events if isinstance(event, (Call, HostCall))]
        if len(calls) != len(own):
            found.say("calls are left out or invented", f"core {core}", str(len(own)), str(len(calls)))
        for task, event in zip(own, calls, strict=False):
            tasks[task.index] = found.task(task, event)
        programs.append(_steps(events, own))
    sets = tuple(sum(isinstance(step, Set) for step in steps) for steps in programs)
    of_subop: dict[int, list[Task]] = {}
    for task in tasks:
        of_subop.setdefault(task.subop, []).append(task)
    for subop, parts in of_subop.items():
        found.check_operands(subop, parts)
    addresses = tuple(found.addresses.get(sub.index, schedule.addresses[sub.index]) for sub in schedule.subops)
    return Rebuilt(Plan(tuple(tasks), tuple(programs), sets, (), ()), addresses, found.touched, tuple(found.wrong))


def _steps(events: Sequence[Event], own: Sequence[Task]) -> tuple[Step, ...]:
    """The events as steps; a wait belongs to the boundary of the task behind it."""
    coming = iter(own)
    ahead = next(coming, None)
    steps: list[Step] = []
    for event in events:
        if isinstance(event, Set):
            steps.append(event)
        elif isinstance(event, Wait):
            steps.append(Wait(event.producer, event.count, -1 if ahead is None else ahead.subop, event.index))
        elif ahead is not None:
            steps.append(TaskStep(ahead.index))
            ahead = next(coming, None)
    return tuple(steps)


def _are(accesses: Sequence[MemoryAccess], relative: Sequence[Access], addresses: Sequence[MemoryAddress]) -> bool:
    """Whether accesses are what `absolute` makes of the relative ones."""
    if len(accesses) != len(relative):
        return False
    for access, own in zip(accesses, relative, strict=True):
        at = addresses[own.operand]
        if (access.space, access.slot, access.write) != (at.space, at.slot, own.write):
            return False
        if len(access.regions) != len(own.regions):
            return False
        for region, part in zip(access.regions, own.regions, strict=True):
            if region.start != part.start + at.offset or region.length != part.length:
                return False
            if region.stride != part.stride or region.count != part.count:
                return False
    return True


class _Found:
    """Calls held against what they should be."""

    def __init__(
        self, schedule: Schedule, sizes: Mapping[tuple[Space, int], int], symbols: Sequence[str | None]
    ) -> None:
        self.schedule, self.sizes, self.symbols = schedule, sizes, symbols
        self.addresses: dict[int, tuple[MemoryAddress, ...]] = {}
        self.wrong: list[Violation] = []
        self.touched: dict[tuple[str, int, int], tuple[Access, ...]] = {}
        self._bounds: dict[tuple[str, int, int], tuple[tuple[int, int], ...]] = {}

    def say(self, message: str, where: str, expected: str = "", found: str = "") -> None:
        self.wrong.append(Violation(message, where, expected, found))

    def task(self, meant: Task, event: Call | HostCall) -> Task:
        """The task that a call is."""
        where = f"core {meant.core}, task {meant.index} (sub-operator {meant.subop})"
        wanted = self.symbols[meant.subop]
        if isinstance(event, HostCall):
            if wanted is not None or event.subop != meant.subop:
                self.say("not its kernel", where, wanted or f"host call {meant.subop}", f"host call {event.subop}")
            tiling = self.schedule.tilings[meant.subop]
            return self._with_accesses(meant, 0, tiling.units, self.schedule.addresses[meant.subop], where)
        if event.symbol != wanted:
            self.say("not its kernel", where, str(wanted), event.symbol)
            return meant
        addresses = self._addresses(meant.subop, event.addresses, where)
        needs = self.schedule.tilings[meant.subop].scratch_bytes
        if (
            event.scratch != MemoryAddress(Space.SCRATCH, meant.core, 0)
            or needs > self.sizes[Space.SCRATCH, meant.core]
        ):
            self.say("not its own scratch memory", where, f"{needs} bytes", str(event.scratch))
        return meant if addresses is None else self._with_accesses(meant, event.begin, event.end, addresses, where)

    def _addresses(
        self, subop: int, found: tuple[MemoryAddress | None, ...], where: str
    ) -> tuple[MemoryAddress, ...] | None:
        """Those of a call; None: an operand has none."""
        known = self.addresses.get(subop)
        if known == found:
            return known
        addresses = tuple([a for a in found if a is not None])
        if len(addresses) != len(found):
            self.say("an operand lies nowhere", where, found=str(found.index(None)))
            return None
        if known is not None:
            self.say("the calls of a sub-operator do not agree on its operands", where)
        self.addresses.setdefault(subop, addresses)
        return addresses

    def _with_accesses(
        self, meant: Task, begin: int, end: int, addresses: tuple[MemoryAddress, ...], where: str
    ) -> Task:
        tiling = self.schedule.tilings[meant.subop]
        if not 0 <= begin < end <= tiling.units:
            self.say("units that there are not", where, f"of {tiling.units}", f"{begin}..{end}")
            return meant
        relative, sizes = self._relative(meant.subop, begin, end), self.sizes
        for access, (low, high) in zip(relative, self._bounds[self._key(meant.subop, begin, end)], strict=True):
            at = addresses[access.operand]
            size, offset = sizes.get((at.space, at.slot), 0), at.offset
            if offset + low < 0 or offset + high > size:
                self.say("reaches behind its memory", where, f"{size} bytes", str(*absolute([access], addresses)))
        if (begin, end) == (meant.begin, meant.end) and _are(meant.accesses, relative, addresses):
            return meant
        return Task(meant.index, meant.subop, meant.core, begin, end, absolute(relative, addresses))

    def _key(self, subop: int, begin: int, end: int) -> tuple[str, int, int]:
        """A kernel's name tells its body and tiling."""
        return self.symbols[subop] or f"host call {subop}", begin, end

    def _relative(self, subop: int, begin: int, end: int) -> tuple[Access, ...]:
        """What units touch of their operands."""
        key = self._key(subop, begin, end)
        found = self.touched.get(key)
        if found is None:
            found = self.schedule.tilings[subop].accesses(self.schedule.subops[subop].body, begin, end)
            self.touched[key] = found
            self._bounds[key] = tuple(
                (min((r.start for r in a.regions), default=0), max((r.stop for r in a.regions), default=0))
                for a in found
            )
        return found

    def check_operands(self, subop: int, tasks: Sequence[Task]) -> None:
        """P4."""
        addresses = self.addresses.get(subop)
        if addresses is None:
            return
        pairs = list(self._overlapping(subop))
        if not pairs:
            return
        for task in tasks:
            relative = self._relative(subop, task.begin, task.end)
            placed = list(zip(relative, absolute(relative, addresses), strict=True))
            for source, target in pairs:
                touched = [a.regions for r, a in placed if r.operand == source]
                written = [a.regions for r, a in placed if r.operand == target and r.write]
                if any(overlapping_regions(a, b) for a in touched for b in written):
                    self.say(
                        "overwrites one operand while it works on another",
                        f"core {task.core}, task {task.index} (sub-operator {subop})",
                        found=f"operands {source} at {addresses[source]} and {target} at {addresses[target]}",
                    )

    def _overlapping(self, subop: int) -> Iterator[tuple[int, int]]:
        """Pairs of operands, the second one written, that have addresses in common and are not walked alike."""
        sub, addresses = self.schedule.subops[subop], self.addresses[subop]
        operands = sub.body.operands
        for target, at in enumerate(addresses):
            if operands[target].role.value not in ("out", "inout"):
                continue
            for source, other in enumerate(addresses):
                if source == target or (other.space, other.slot) != (at.space, at.slot):
                    continue
                apart = (
                    other.offset + operands[source].type.nbytes <= at.offset
                    or at.offset + operands[target].type.nbytes <= other.offset
                )
                if not apart and not (other == at and self._in_place(subop, source, target)):
                    yield source, target

    def _in_place(self, subop: int, source: int, target: int) -> bool:
        """Whether each element is read of the one operand just where it is then written of the other."""
        body = self.schedule.subops[subop].body
        sizes = {body.operands[i].type.dtype.itemsize for i in (source, target)}
        walks = {(i.strides, i.offset) for i in body.epilogue.inputs if i.source == source}
        walks |= {(o.strides, o.offset) for o in body.epilogue.outputs if o.target == target}
        stored = any(o.target == source for o in body.epilogue.outputs)
        return body.op is None and len(sizes) == 1 and len(walks) == 1 and not stored
