"""What an emitted program was seen to do, as the plan that it is: for the verifier, in place of the one it came from.

Model: per worker a straight line of calls, waits and sets, with the addresses and units that kernels were really called
with (csrc/runtime/recorder.h). The n-th call of a worker is held against the n-th task that the plan gives it, which
says no more than which sub-operator is meant; kernel, addresses, units, waits and sets are the program's. What a call
reads and writes is asked of its tiling anew. It checks:

 P1  each worker calls as many kernels as it has tasks, each the one of its sub-operator;
 P2  all calls of a sub-operator have the same addresses; scratch memory is the worker's own, and large enough;
 P3  every access lies inside the memory that it hangs on;
 P4  no call writes bytes of one operand that it also touches as another one, but element by element in place.

The plan that comes out is for `verify` (V1 to V8), its addresses for the check of the memory.

Architecture invariant: imports plain data types only, nothing of the planner, nothing of code generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from superkernel.core.errors import Violation
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space, Task, absolute
from superkernel.sync.plan import Plan, Set, Step, TaskStep, Wait
from superkernel.sync.verify_tasks import overlapping_regions


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel that was called. `scratch` lies in the space of that name, its slot the worker that owns it."""

    symbol: str
    addresses: tuple[MemoryAddress | None, ...]  # None: hangs on nothing
    scratch: MemoryAddress | None
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class HostCall:
    """A sub-operator that the reference was asked for."""

    subop: int


Event: TypeAlias = Call | HostCall | Wait | Set
Program: TypeAlias = Sequence[Sequence[Event]]
"""Per worker. The sub-operator of a wait is not known to it."""


@dataclass(frozen=True)
class Rebuilt:
    """A program as a plan, and where the operands of each sub-operator are."""

    plan: Plan
    addresses: tuple[tuple[MemoryAddress, ...], ...]
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
    return Rebuilt(Plan(tuple(tasks), tuple(programs), sets, (), ()), addresses, tuple(found.wrong))


def _steps(events: Sequence[Event], own: Sequence[Task]) -> tuple[Step, ...]:
    """The events as steps; a wait belongs to the boundary of the task behind it."""
    coming = iter(own)
    ahead = next(coming, None)
    steps: list[Step] = []
    for event in events:
        if isinstance(event, Set):
            steps.append(event)
        elif isinstance(event, Wait):
            steps.append(replace(event, subop=-1 if ahead is None else ahead.subop))
        elif ahead is not None:
            steps.append(TaskStep(ahead.index))
            ahead = next(coming, None)
    return tuple(steps)


class _Found:
    """Calls held against what they should be."""

    def __init__(
        self, schedule: Schedule, sizes: Mapping[tuple[Space, int], int], symbols: Sequence[str | None]
    ) -> None:
        self.schedule, self.sizes, self.symbols = schedule, sizes, symbols
        self.addresses: dict[int, tuple[MemoryAddress, ...]] = {}
        self.wrong: list[Violation] = []
        self._accesses: dict[tuple[str, int, int], tuple[Any, ...]] = {}

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
        addresses = tuple(a for a in event.addresses if a is not None)
        if len(addresses) != len(event.addresses):
            self.say("an operand lies nowhere", where, found=str(event.addresses.index(None)))
            return meant
        if self.addresses.setdefault(meant.subop, addresses) != addresses:
            self.say("the calls of a sub-operator do not agree on its operands", where)
        needs = self.schedule.tilings[meant.subop].scratch_bytes
        if (
            event.scratch != MemoryAddress(Space.SCRATCH, meant.core, 0)
            or needs > self.sizes[Space.SCRATCH, meant.core]
        ):
            self.say("not its own scratch memory", where, f"{needs} bytes", str(event.scratch))
        return self._with_accesses(meant, event.begin, event.end, addresses, where)

    def _with_accesses(
        self, meant: Task, begin: int, end: int, addresses: tuple[MemoryAddress, ...], where: str
    ) -> Task:
        tiling = self.schedule.tilings[meant.subop]
        if not 0 <= begin < end <= tiling.units:
            self.say("units that there are not", where, f"of {tiling.units}", f"{begin}..{end}")
            return meant
        accesses = absolute(self._relative(meant.subop, begin, end), addresses)
        for access in accesses:
            size = self.sizes.get((access.space, access.slot), 0)
            if any(region.start < 0 or region.stop > size for region in access.regions):
                self.say("reaches behind its memory", where, f"{size} bytes", str(access))
        return Task(meant.index, meant.subop, meant.core, begin, end, accesses)

    def _relative(self, subop: int, begin: int, end: int) -> tuple[Any, ...]:
        """What units touch of their operands. A kernel's name tells its body and tiling."""
        body, tiling, symbol = self.schedule.subops[subop].body, self.schedule.tilings[subop], self.symbols[subop]
        if symbol is None:
            return tiling.accesses(body, begin, end)
        key = (symbol, begin, end)
        if key not in self._accesses:
            self._accesses[key] = tiling.accesses(body, begin, end)
        return self._accesses[key]

    def check_operands(self, subop: int, tasks: Sequence[Task]) -> None:
        """P4."""
        addresses = self.addresses.get(subop)
        pairs = list(self._overlapping(subop)) if addresses is not None else []
        if not pairs or addresses is None:
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
