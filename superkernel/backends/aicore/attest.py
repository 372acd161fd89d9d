"""The program that runs is what is verified: what the linked code was seen to do, proved in place of the plan.

Model: the recorder (csrc/sim/device/program_recorder.h) runs the code of each hart and says which kernels it calls with
which arguments, where it signals and waits, and which accesses to global memory its engines are told, behind which
waits. `sync/aicore/verify_program.py` makes that a plan again, with the accesses that the tilings tell for the units
and addresses really passed; the memory's check and the verifier then judge it as they judge the planner's. The plan at
hand says which sub-operator a call is meant to be, and nothing else.

The whole program is run twice on one memory where its harts count words up: what the first run leaves is what the
second one finds.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.compiled import AicorePlanned
from superkernel.backends.attested import digest, wrong_constants
from superkernel.backends.fallback import compute
from superkernel.codegen.aicore.image import AicoreImage, Contents
from superkernel.codegen.aicore.wait_entries import ENTRIES, ENTRY_BITS, ENTRY_FLAG, KIND_BITS
from superkernel.core.errors import VerificationError, Violation, raise_all
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, View
from superkernel.ops.grouped import TILINGS
from superkernel.scheduler.aicore.place import WORKSPACE
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.scheduler.memory_check import check_memory
from superkernel.scheduler.schedule import MemoryAccess, MemoryAddress, Space, Task
from superkernel.scheduler.symbols import symbol_of
from superkernel.scheduler.tiling import Access
from superkernel.sim.recording import NOTHING, DeclaredRow, ProgramRecording, RecordedHart, StepKind
from superkernel.sync.aicore.plan import AICPU, AicorePlan, CoreKind, Mode
from superkernel.sync.aicore.verify import AicoreCertificate, verify_aicore
from superkernel.sync.aicore.verify_program import rebuild
from superkernel.sync.aicore.verify_seen import (
    AwaitWord,
    Called,
    Count,
    Fetch,
    Returned,
    Seen,
    SetFlag,
    Shape,
    TakeFlag,
    Use,
)
from superkernel.sync.verify import Emitted
from superkernel.target.aicore import AicoreTarget

RUNS = 2  # of a program whose harts count words up: the second finds what the first left
_MODES = {0: Mode.TYPE, 1: Mode.GROUP, 2: Mode.ALL, 3: Mode.ACROSS, 4: Mode.PAIR}  # of `cross_set`
_ADD = 1  # of `notify`
_LEADING = 5  # arguments ahead of the masks: begin, end, core, scratch, entries


def attest(planned: AicorePlanned, image: AicoreImage, target: AicoreTarget) -> AicoreCertificate:
    """The certificate of a linked program. Raises VerificationError with everything that is wrong."""
    program = _Program(planned, image, target)
    counts = any(event.mode is Mode.NOTIFY for event in planned.plan.events) or any(planned.plan.service)
    left: dict[int, int] = {}
    plans: list[AicorePlan] = []
    for run in range(1, RUNS + 1 if counts else 2):
        lines = program.record()
        plan, wrong = rebuild(lines, program.tasks, program.shape, planned.plan, run, left)
        raise_all(VerificationError, [*program.wrong, *wrong])
        plans.append(plan)
    schedule = planned.schedule
    addresses = tuple(program.addresses.get(sub.index, schedule.addresses[sub.index]) for sub in schedule.subops)
    raise_all(VerificationError, list(wrong_constants(schedule, planned.grouping.constants, addresses)))
    check_memory(schedule.subops, addresses, schedule.buffers)
    plan, *later = plans
    found = verify_aicore(plan, planned.units)
    for other in later:
        if other != plan:
            verify_aicore(other, planned.units)
    emitted = Emitted(
        program=digest(map(str, (plan, *plan.tasks))),
        addresses=digest(map(repr, addresses)),
        accesses=digest(map(str, plan.tasks)),
        objects=hashlib.sha256(image.elf).hexdigest(),
    )
    return replace(found, emitted=emitted)


class _Program:
    """A linked program and what it was seen to do: `tasks` with the units, addresses and accesses of their calls,
    `addresses` of operands (of the first group's copy) by sub-operator."""

    def __init__(self, planned: AicorePlanned, image: AicoreImage, target: AicoreTarget) -> None:
        self.schedule, self.plan, self.image = planned.schedule, planned.plan, image
        self.tasks: list[Task] = list(planned.plan.tasks)
        self.addresses: dict[int, tuple[MemoryAddress, ...]] = {}
        self.wrong: list[Violation] = []
        self.shape = Shape(
            self.plan.cube_cores, self.plan.vector_cores, self.plan.groups, AICPU in self.plan.programs,
            self.plan.flags, int(target.sync.flag_count_max),
        )  # fmt: skip
        self._strides = {(i, k): c.stride for c in self.schedule.copies for i, k in c.uses}
        rows = ((start, *key) for key, start in image.addresses.starts.items())
        self._starts = sorted(rows, key=lambda row: row[0])
        self._relative: dict[tuple[int, int, int, CoreRole], tuple[Access, ...]] = {}
        self._workspaces: dict[int, dict[int, int]] = {}
        self._names: list[str] = []
        functions = []
        arguments = self._kernels()
        for symbol in image.image.symbols:
            name = symbol.name.partition(".copy")[0]
            if name in arguments and symbol.kind == "function":
                self._names.append(name)
                functions.append((symbol.address, arguments[name]))
        self.recording = ProgramRecording(target, image.elf, functions, [*image.data, *self._samples()])
        self._called: dict[int, list[Task]] = {}
        self._meant = self._tasks_of_cores()

    def _kernels(self) -> dict[str, int]:
        """Number of arguments by name of a kernel function."""
        found = {}
        for sub, tiling in zip(self.schedule.subops, self.schedule.tilings, strict=True):
            if not isinstance(tiling, AicoreTiling):
                continue
            for role in tiling.roles():
                waits = len(tiling.dependent_operands(sub.body)) + bool(tiling.scratch_bytes)
                found[symbol_of(sub, tiling, role.value)] = _LEADING + waits + len(sub.body.operands)
        return found

    def _samples(self) -> Iterator[Contents]:
        """Data that tilings depend on, shared evenly, and the tables that it makes, where they will be: so every core
        has its share."""
        for sub, addresses in zip(self.schedule.subops, self.schedule.addresses, strict=True):
            if sub.body.op in TILINGS:
                buffers = [np.zeros(operand.type.size, operand.type.dtype.numpy) for operand in sub.body.operands]
                _fill_evenly(sub.body, buffers)
                compute(sub.body, buffers, sub.name)
                for address, buffer in zip(addresses, buffers, strict=True):
                    yield Contents(self.image.addresses.of(address), buffer, buffer.nbytes)

    def _tasks_of_cores(self) -> list[list[Task]]:
        """What each hart is to call, in order."""
        tilings = self.schedule.tilings
        found: list[list[Task]] = [[] for _ in range(self.plan.harts)]
        for task in self.plan.tasks:
            if isinstance(tilings[task.subop], AicoreTiling):
                found[task.core].append(task)
        return found

    # A run ------------------------------------------------------------------------------------------------------------

    def record(self) -> list[list[list[Seen]]]:
        """One run of all launches: what each hart did, by launch."""
        self._called = {hart: [] for hart in range(len(self._meant))}
        lines = []
        for launch in range(self.image.launches):
            before = {hart: len(tasks) for hart, tasks in self._called.items()}
            try:
                harts = self.recording.launch(launch, self._on_call)
            except VerificationError as error:
                raise VerificationError(violations=(*self.wrong, *error.violations)) from error
            lines.append([self._line(hart, row, before.get(hart, 0)) for hart, row in enumerate(harts)])
        for hart, tasks in self._called.items():
            if len(tasks) < len(self._meant[hart]):
                missing = self._meant[hart][len(tasks)]
                self._say("calls are left out", f"core {hart}", f"task {missing.index} (sub-operator {missing.subop})")
        return lines

    def _line(self, hart: int, row: RecordedHart, before: int) -> list[Seen]:
        uses: dict[int, dict[int, Use]] = {}
        for call, operand, waits, fenced in row.uses.view(np.uint64).tolist():
            operand -= (operand >> 63) << 64
            own = uses.setdefault(call, {})
            known = own.get(operand, Use(None, None))
            own[operand] = Use(_least(known.waits, waits), _least(known.fenced, fenced))
        found: list[Seen] = []
        calls = 0
        for step in row.steps.tolist():
            match StepKind(step[0]):
                case StepKind.CALL:
                    tasks = self._called.get(hart, ())
                    if before + calls < len(tasks):
                        task, own = tasks[before + calls], uses.get(calls, {})
                        told = self._told(task, row.arguments[calls], own)
                        found.append(Called(task, calls, {**own, **told[0]}, told[1]))
                    calls += 1
                case StepKind.RETURNED:
                    found.append(Returned())
                case StepKind.CROSS_SET:
                    if step[3] not in _MODES:
                        self._say("a signal to single cores", f"hart {hart}, flag {step[2]}")
                    found.append(SetFlag(step[2], _MODES.get(step[3], Mode.TYPE), step[4]))
                case StepKind.CROSS_WAIT:
                    found.append(TakeFlag(step[1]))
                case StepKind.NOTIFY:
                    found.append(Count(step[2], step[3], step[4] == _ADD, step[5]))
                case StepKind.WAIT_MEMORY:
                    found.append(AwaitWord(step[1], step[2]))
                case StepKind.PREFETCH:
                    found.append(Fetch(step[1] - self.image.addresses.start(Space.CONSTANT), step[2]))
        return found

    def _told(
        self, task: Task, arguments: tuple[int, ...], uses: Mapping[int, Use]
    ) -> tuple[dict[int, Use], dict[int, list[int]]]:
        """Of operands that were not touched, the fence and the flags that the kernel was told to wait for."""
        tiling, body = self.schedule.tilings[task.subop], self.schedule.subops[task.subop].body
        assert isinstance(tiling, AicoreTiling)
        fences: dict[int, Use] = {}
        flags: dict[int, list[int]] = {}
        waits = (*tiling.dependent_operands(body), *([WORKSPACE] if tiling.scratch_bytes else []))
        for operand, mask in zip(waits, arguments[_LEADING:], strict=False):
            if uses.get(operand, Use(0, 0)).waits is not None:
                continue
            entries = [arguments[4] >> ENTRY_BITS * n & (1 << ENTRY_BITS) - 1 for n in range(ENTRIES) if mask >> n & 1]
            kinds = [(entry & (1 << KIND_BITS) - 1, entry >> KIND_BITS) for entry in entries]
            flags[operand] = [flag for kind, flag in kinds if kind == ENTRY_FLAG]
            if any(kind != ENTRY_FLAG for kind, _ in kinds):
                fences[operand] = Use(None, NOTHING)
        return fences, flags

    # A call -----------------------------------------------------------------------------------------------------------

    def _on_call(self, hart: int, function: int, arguments: tuple[int, ...]) -> Sequence[DeclaredRow]:
        """The n-th call of a hart is its n-th task, if it is of that kernel. What it may touch."""
        number = len(self._called.get(hart, ()))
        if hart >= len(self._meant) or number >= len(self._meant[hart]):
            self._say("a call is invented", f"hart {hart}", "none", self._names[function])
            return ()
        meant = self._meant[hart][number]
        where = (
            f"core {hart}, task {meant.index} (sub-operator {meant.subop}, {self.schedule.subops[meant.subop].name})"
        )
        tiling = self.schedule.tilings[meant.subop]
        assert isinstance(tiling, AicoreTiling)
        role = self._role(hart, tiling)
        task = self._task(meant, tiling, role, arguments, where)
        wanted = "none" if role is None else symbol_of(self.schedule.subops[meant.subop], tiling, role.value)
        if self._names[function] != wanted:
            self._say("not its kernel", where, wanted, self._names[function])
            task = None
        self._called[hart].append(task or meant)
        if task is None:
            return ()
        self.tasks[meant.index] = task
        return list(self._declared(task))

    def _role(self, hart: int, tiling: AicoreTiling) -> CoreRole | None:
        """What a hart is in a kernel of several cores."""
        kind = self.plan.kind(hart)
        if kind is AICPU:
            return CoreRole.AICPU if CoreRole.AICPU in tiling.roles() else None
        roles = [r for r in tiling.roles() if (r.is_cube if kind is CoreKind.CUBE else r.is_vector)]
        per_group = max(1, len(self.plan.cores(kind)) // self.plan.groups)
        lane = (hart - self.plan.cores(kind).start) % per_group
        return next((role for role in roles if len(roles) == 1 or role.lane == lane), None)

    def _task(
        self, meant: Task, tiling: AicoreTiling, role: CoreRole | None, arguments: tuple[int, ...], where: str
    ) -> Task | None:
        """The task that a call is; None: none that there could be."""
        begin, end, core, scratch = arguments[:4]
        operands = self.schedule.subops[meant.subop].body.operands
        if role is None or not 0 <= begin < end <= tiling.units:
            self._say("units that there are not", where, f"of {tiling.units}", f"{begin}..{end}")
            return None
        own = meant.core - self.plan.cores(self.plan.kind(meant.core)).start
        if core != own:
            self._say("a core gets another one's number", where, str(own), str(core))
        addresses: list[MemoryAddress] = []
        for k, address in enumerate(arguments[len(arguments) - len(operands) :]):
            nbytes = operands[k].type.nbytes
            place = self._place(address) if nbytes else self.schedule.addresses[meant.subop][k]
            if place is None:
                self._say("an operand lies nowhere", f"{where}, operand {k}", found=hex(address))
                return None
            addresses.append(place)
        self._keep_addresses(meant, addresses, where)
        key = (meant.subop, begin, end, role)
        if key not in self._relative:
            body = self.schedule.subops[meant.subop].body
            self._relative[key] = tuple(tiling.role_accesses(body, begin, end, role))
        accesses = tuple(
            MemoryAccess(
                addresses[a.operand].space, addresses[a.operand].slot, a.write,
                tuple(region.shifted(addresses[a.operand].offset) for region in a.regions), a.operand,
                tiling.dynamically_partitioned and a.write,
            )
            for a in self._relative[key]
        )  # fmt: skip
        if tiling.scratch_bytes:
            accesses += self._workspace(meant, tiling, scratch, where)
        return replace(meant, begin=begin, end=end, accesses=accesses)

    def _keep_addresses(self, meant: Task, found: Sequence[MemoryAddress], where: str) -> None:
        """All calls of a sub-operator have the same operands, but for what groups have copies of."""
        group = self.plan.group(meant.core) if meant.core < self.plan.total else 0
        strides = (group * self._strides.get((meant.subop, k), 0) for k in range(len(found)))
        first = tuple(replace(a, offset=a.offset - s) for a, s in zip(found, strides, strict=True))
        if self.addresses.setdefault(meant.subop, first) != first:
            self._say("the calls of a sub-operator do not agree on its operands", where)

    def _workspace(self, meant: Task, tiling: AicoreTiling, scratch: int, where: str) -> tuple[MemoryAccess, ...]:
        """A core's workspace, or its group's: nobody else's in this sub-operator, unless all share one."""
        place = self._place(scratch)
        nbytes = self.schedule.scratch_bytes
        if place is None or place.space is not Space.SCRATCH or place.offset + tiling.scratch_bytes > nbytes:
            self._say("not a workspace", where, f"{tiling.scratch_bytes} bytes of {nbytes}", hex(scratch))
            return ()
        if tiling.barriers:
            owner = 0
        else:
            owner = self.plan.group(meant.core) if len(tiling.roles()) > 1 else meant.core
        known = self._workspaces.setdefault(meant.subop, {})
        if known.setdefault(owner, place.offset) != place.offset or any(
            abs(offset - place.offset) < tiling.scratch_bytes for other, offset in known.items() if other != owner
        ):
            self._say("not its own workspace", where, found=str(place))
        region = Region(place.offset, tiling.scratch_bytes)
        return (MemoryAccess(Space.SCRATCH, 0, True, (region,), WORKSPACE),)

    def _declared(self, task: Task) -> Iterator[DeclaredRow]:
        for access in task.accesses:
            start = self.image.addresses.start(access.space, access.slot)
            operand = WORKSPACE if access.operand is None else access.operand
            for region in access.regions:
                row = (start + region.start, region.length, region.stride, region.count)
                yield (operand, access.write, *row)
                if access.space is Space.SCRATCH:
                    yield (operand, False, *row)

    def _place(self, address: int) -> MemoryAddress | None:
        """What lies at an address."""
        at = bisect_right(self._starts, address, key=lambda row: row[0]) - 1
        if at < 0 or address >= self.image.addresses.end:
            return None
        start, space, slot = self._starts[at]
        return MemoryAddress(space, slot, address - start)

    def _say(self, message: str, where: str, expected: str = "", found: str = "") -> None:
        self.wrong.append(Violation(message, where, expected, found))


def _fill_evenly(body: Body, buffers: Sequence[NDArray[Any]]) -> None:
    """What a tiling is computed from: rows shared evenly among experts, or batches of full length."""
    view, kind = body.anchor_inputs[0], body.anchor_input_types[0]
    assert isinstance(view, View)
    assert kind is not None
    (count,) = kind.shape
    whole = body.attr.get("rows")
    if isinstance(whole, int):
        shared = np.diff(np.arange(count + 1) * whole // count)
    else:
        shared = np.full(count, body.attr["keys"])
    buffers[view.operand][view.offset + np.arange(count) * view.strides[0]] = shared


def _least(known: int | None, found: int) -> int | None:
    if found == NOTHING:
        return known
    return found if known is None else min(known, found)
