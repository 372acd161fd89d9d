"""The fused kernel's entries as machine code of x86-64: what `entry.py` says in LLVM's words, said directly.

The entries are long, straight and new with each plan; their patterns are three. LLVM takes longer for them than all of
planning does, so for this CPU they are written as bytes. What they do is what `entry.py` describes, and is recorded and
verified like any other program's (`backends/host/attest.py`), whichever of the two wrote it.

Order in memory: a set is a store and a wait's look a load, which x86 carries out as release and acquire; there is no
compiler here that could move others across them.

Where things are, in a core's function: RBX the context, R12 the counters, R13 the epoch, R15 what this core's counter
had reached before this launch, R14 the time stamps of a profiled one. Waits that are not passed at once stand behind
the function's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from superkernel.codegen.host import abi
from superkernel.codegen.host.entry import prefetch_lines, wait_runs
from superkernel.codegen.host.entry_spec import BasePointer, EntrySpec, Location, SetCount, TaskSpec, WaitFor
from superkernel.codegen.host.x86_code import (
    JAE,
    JB,
    JE,
    JNE,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    RAX,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    RSP,
    Written,
    X86Code,
    fits,
)

_ARGUMENTS = (RDI, RSI, RDX, RCX, R8, R9)
_OFFSETS = {space: abi.OFFSET[space.value] for space in BasePointer}
_BASES = {BasePointer.ARENA: R10, BasePointer.CONSTANTS: R11}
_KEPT = (RBX, R12, R13, R14, R15)
_FLAG_BYTES = 8 * abi.FLAG_STRIDE
_LARGEST = (1 << 31) - 1


def entries_object(spec: EntrySpec) -> bytes:
    """The object with the three entries."""
    code = X86Code()
    _dispatch(code, "sk_entry", "core", len(spec.programs))
    _dispatch(code, "sk_profiled", "profiled", len(spec.programs))
    _tasks(code, spec.tasks)
    for core in range(len(spec.programs)):
        plain = _Core(code, spec, core, profiled=False)
        plain.write()
        _Core(code, spec, core, profiled=True, plain=plain).write()
    _single(code, spec)
    return code.object()


def _dispatch(code: X86Code, name: str, kind: str, cores: int) -> None:
    """`name(ctx, core)`: go to the core's own function."""
    code.begin(name)
    for core in range(cores):
        code.compare_number(RSI, core)
        code.jump(f"{kind}_{core}", JE)
    code.number(RAX, 0)
    code.back()
    code.end(name, seen=True)


def _single(code: X86Code, spec: EntrySpec) -> None:
    """`sk_single(ctx, core, subop)`: the tasks of one sub-operator that are this core's, through a table of where their
    functions begin; `sk_entry` begins at 0, so 0 is none."""
    cores = len(spec.programs)
    table = [0] * max(1, spec.subops * cores)
    for index, task in enumerate(spec.tasks):
        table[task.subop * cores + task.core] = code.place(f"task_{index}")
    code.begin("sk_single")
    code.compare_number(RSI, cores)
    code.jump("none", JAE)
    code.product_32(RAX, RDX, cores)
    code.add_32(RAX, RSI)
    code.shift_left(RAX, 2)
    code.address_of_table(R10, table)
    code.add(R10, RAX)
    code.load_32(RAX, R10, 0)
    code.test(RAX)
    code.jump("none", JE)
    code.address_of(R10, "sk_entry")
    code.add(RAX, R10)
    code.jump_to(RAX)
    code.label("none")
    code.number(RAX, 0)
    code.back()
    code.end("sk_single", seen=True)


def _locate(code: X86Code, to: int, context: int, place: Location) -> None:
    """The address of an operand, from the context on."""
    if place.space is BasePointer.IO:
        code.load(to, context, _OFFSETS[BasePointer.IO])
        code.load(to, to, 8 * place.slot)
    else:
        code.load(to, context, _OFFSETS[place.space])
    _add_offset(code, to, place.offset)


def _add_offset(code: X86Code, to: int, offset: int) -> None:
    while not fits(offset):
        code.add_number(to, _LARGEST)
        offset -= _LARGEST
    if offset:
        code.add_number(to, offset)


def _tasks(code: X86Code, tasks: Sequence[TaskSpec]) -> None:
    """A function for each task. Those whose operands hang on the same base pointers differ in numbers."""
    known: dict[tuple[tuple[BasePointer, bool], ...], _Places] = {}  # the first of each kind
    operands: dict[int, tuple[tuple[tuple[BasePointer, bool], ...], list[int]] | None] = {}  # tasks share them
    for index, task in enumerate(tasks):
        name = f"task_{index}"
        if id(task.operands) not in operands:
            operands[id(task.operands)] = _numbers(task)
        small = operands[id(task.operands)]
        if small is None or task.end > _LARGEST:
            _task(code, name, task)
            continue
        kind, numbers = small
        of = known.get(kind)
        if of is None:
            places = _task(code, name, task)
            known[kind] = _Places(code.written, places)
            continue
        own = dict(zip(of.places, (*numbers, task.core, task.begin, task.end), strict=True))
        code.repeat(name, of.written, own, task.symbol)


def _numbers(task: TaskSpec) -> tuple[tuple[tuple[BasePointer, bool], ...], list[int]] | None:
    """The kind of a task, and the numbers of its operands in the order of `_task`. None: it is like no other, as it
    jumps, calls the runtime, or has large numbers."""
    if task.symbol is None or task.checked is not None or not all(fits(place.offset) for place in task.operands):
        return None
    kind, numbers = [], list[int]()
    for place in task.operands:
        through_table = place.space is BasePointer.IO
        kind.append((place.space, through_table and place.offset != 0))
        if through_table:
            numbers.append(8 * place.slot)
        if not through_table or place.offset:
            numbers.append(place.offset)
    return tuple(kind), numbers


class _Places(NamedTuple):
    """A task that was written, and where its code has the numbers of its operands, of its core and of its units."""

    written: Written
    places: Sequence[int]


def _task(code: X86Code, name: str, task: TaskSpec) -> list[int]:
    """The call of a kernel, or of the runtime for a sub-operator without one. Where it has the numbers of the task."""
    code.begin(name)
    if task.symbol is None:
        code.number(RSI, task.subop)
        code.load(RAX, RDI, abi.OFFSET["host_call"])
        code.jump_to(RAX)
        code.end(name)
        return []
    if task.checked is not None:
        code.push(RBX)
        code.move(RBX, RDI)
    count = len(task.operands) + 3
    room = _aligned_room(count, pushed=task.checked is not None)
    if room:
        code.add_number(RSP, -room)
    spaces = [place.space for place in task.operands]
    for space, base in _BASES.items():
        if space in spaces:
            code.load(base, RDI, _OFFSETS[space])
    own: dict[int, list[int]] = {}
    for number in range(len(_ARGUMENTS), count):
        own[number] = _argument(code, RAX, task, number)
        code.store(RSP, 8 * (number - len(_ARGUMENTS)), RAX)
    for number in (*range(1, min(count, len(_ARGUMENTS))), 0):
        own[number] = _argument(code, _ARGUMENTS[number] if number else RAX, task, number)
    code.move(RDI, RAX)
    code.call_outside(task.symbol)
    if room:
        code.add_number(RSP, room)
    if task.checked is not None:
        _leave_unless_fine(code, name, task.subop, task.operands[task.checked])
    code.number(RAX, 0)
    code.back()
    code.end(name)
    return [place for number in range(count) for place in own[number]]


def _leave_unless_fine(code: X86Code, name: str, subop: int, checked: Location) -> None:
    """What follows a kernel that says whether its data was in range."""
    _locate(code, RAX, RBX, checked)
    code.load_32(RAX, RAX, 0)
    code.test(RAX)
    code.jump(f"{name}.fine", JE)
    code.move(RDI, RBX)
    code.number(RSI, subop)
    code.call_memory(RBX, abi.OFFSET["host_call"])
    code.number(RAX, 1)
    code.pop(RBX)
    code.back()
    code.label(f"{name}.fine")
    code.pop(RBX)


def _aligned_room(arguments: int, *, pushed: bool) -> int:
    """Stack for arguments that have no register, so that it stands at a multiple of 16 where the kernel is called."""
    room = 8 * max(0, arguments - len(_ARGUMENTS))
    return room + (room + 8 + 8 * pushed) % 16


def _argument(code: X86Code, to: int, task: TaskSpec, number: int) -> list[int]:
    """An argument of a kernel: an operand, scratch, the first unit, the one behind the last. RDI: the context. Where
    its numbers stand that are the task's."""
    count = len(task.operands)
    if number < count:
        place = task.operands[number]
        base = _BASES.get(place.space)
        if base is not None:
            code.address(to, base, place.offset)
            return [len(code.data) - 4]
        code.load(to, RDI, _OFFSETS[BasePointer.IO])
        code.load(to, to, 8 * place.slot)
        at = len(code.data) - 4
        _add_offset(code, to, place.offset)
        return [at, len(code.data) - 4] if place.offset else [at]
    if number == count:
        code.load(to, RDI, abi.OFFSET["scratch_stride"])
        code.product(to, to, task.core)
        at = len(code.data) - 4
        code.add_memory(to, RDI, abi.OFFSET["scratch"])
        return [at]
    unit = task.begin if number == count + 1 else task.end
    if unit <= _LARGEST:
        return [code.number_32(to, unit)]
    code.number(to, unit)
    return []


def _written(write: Callable[[X86Code], None]) -> bytes:
    """Instructions that stand in many places, as bytes."""
    code = X86Code()
    write(code)
    return bytes(code.data)


def _stamp(code: X86Code) -> None:
    code.clock()
    code.store(R14, 0, RAX)


def _weights(code: X86Code) -> None:
    code.store(RSP, 0, RAX)
    code.store_number(RSP, 8, 0)


def _flag(code: X86Code) -> None:
    code.move(RDI, RBX)
    code.address(RSI, R12, 0)


def _waited(code: X86Code) -> None:
    code.add_number(RSP, 16)
    code.test(RAX)


_STAMP, _WEIGHTS, _FLAG = (
    _written(write)[:-4] for write in (_stamp, _weights, _flag)
)  # but for the number they end in
_CONTEXT, _WAITED = _written(lambda code: code.move(RDI, RBX)), _written(_waited)


class _Core:
    """A core's straight line of steps, plain or with a time stamp ahead of the first and behind every step."""

    def __init__(
        self, code: X86Code, spec: EntrySpec, core: int, *, profiled: bool, plain: _Core | None = None
    ) -> None:
        self.code, self.spec, self.core, self.profiled, self.plain = code, spec, core, profiled, plain
        self.name = f"{'profiled' if profiled else 'core'}_{core}"
        self.late: list[tuple[int, WaitFor]] = []  # waits that are not passed at once, by step
        self.late_at = code.here(), code.here()  # what they take
        self._looks: dict[int, tuple[bytes, bytes]] = {}

    def write(self) -> None:
        """The whole function."""
        code, spec = self.code, self.spec
        code.begin(self.name)
        for register in _KEPT:
            code.push(register)
        code.move(RBX, RDI)
        code.load(R13, RBX, abi.OFFSET["epoch"])
        code.load(R12, RBX, abi.OFFSET["flags"])
        code.product(R15, R13, spec.sets[self.core])
        if self.profiled:
            code.load(RAX, RBX, abi.OFFSET["events_stride"])
            code.product(RAX, RAX, 8 * self.core)
            code.load(R14, RBX, abi.OFFSET["events"])
            code.add(R14, RAX)
        stamps = self.profiled
        if stamps:
            self._stamp(0)
        program = spec.programs[self.core]
        runs = {run.start: run for run in wait_runs(program)}
        n = 0
        while n < len(program):
            step = program[n]
            if n in runs:
                self._waits(n, [w for w in program[n : runs[n].stop] if isinstance(w, WaitFor)])
                n = runs[n].stop
                continue
            if isinstance(step, SetCount):
                code.address(RAX, R15, step.count)
                code.store(R12, _FLAG_BYTES * self.core, RAX)
            elif isinstance(step, WaitFor):
                self._wait(n, step)
            else:
                code.data += _CONTEXT
                code.call(f"task_{step.task}")
                if spec.tasks[step.task].may_fail:
                    self._leave_unless_0()
            if stamps:
                self._stamp(n + 1)
            n += 1
        code.number(RAX, 0)
        code.label(f"{self.name}.leave")
        for register in reversed(_KEPT):
            code.pop(register)
        code.back()
        start = code.here()
        if self.plain is not None and self.plain.late == self.late:
            code.copy(*self.plain.late_at, self.plain.name, self.name)
        else:
            for n, step in self.late:
                self._late(n, step)
        self.late_at = start, code.here()
        code.label(f"{self.name}.failed")
        code.number(RAX, 1)
        code.jump(f"{self.name}.leave")
        code.end(self.name)

    def _stamp(self, index: int) -> None:
        self.code.ending_in(_STAMP, 8 * index)

    def _leave_unless_0(self) -> None:
        self.code.test(RAX)
        self.code.jump(f"{self.name}.failed", JNE)

    def _wait(self, n: int, step: WaitFor) -> None:
        """A look at the counter; the rest stands behind the function."""
        code, look = self.code, self._looks.get(step.producer)
        if look is None:
            look = self._looks[step.producer] = self._look(step.producer)
        code.ending_in(look[0], step.count)
        code.data += look[1]
        code.jump(f"{self.name}.{n}.spin", JB)
        code.label(f"{self.name}.{n}.go")
        self.late.append((n, step))

    def _look(self, producer: int) -> tuple[bytes, bytes]:
        """What stands around the number that is the count of a wait: RDX is what the counter had reached before this
        launch; it is held against the counter."""
        before, behind = X86Code(), X86Code()
        before.product(RDX, R13, self.spec.sets[producer])
        before.add_number(RDX, 0)
        behind.compare_memory(R12, _FLAG_BYTES * producer, RDX)
        return bytes(before.data[:-4]), bytes(behind.data)

    def _late(self, n: int, step: WaitFor) -> None:
        """Fetch what is handed over, then spin in `sk_wait`. RDX is the count that is awaited."""
        code = self.code
        code.label(f"{self.name}.{n}.spin")
        known: tuple[BasePointer, int] | None = None
        for line in step.data:
            if (line.space, line.slot) != known:
                known = (line.space, line.slot)
                _locate(code, RSI, RBX, Location(line.space, 0, line.slot))
            if fits(line.offset):
                code.prefetch(RSI, line.offset)
            else:
                code.address(RAX, RSI, line.offset)
                code.prefetch(RAX, 0)
        code.add_number(RSP, -16)
        _locate(code, RAX, RBX, step.weights)
        code.ending_in(_WEIGHTS, prefetch_lines(step))
        code.ending_in(_FLAG, _FLAG_BYTES * step.producer)
        for register, number in ((RCX, self.core), (R8, step.producer), (R9, step.wait)):
            code.number(register, number)
        code.call_outside("sk_wait")
        code.data += _WAITED
        code.jump(f"{self.name}.failed", JNE)
        code.jump(f"{self.name}.{n}.go")

    def _waits(self, n: int, waits: Sequence[WaitFor]) -> None:
        """A run of waits, from a table."""
        code, sets = self.code, self.spec.sets
        code.add_number(RSP, -16)
        if self.profiled:
            code.address(RAX, R14, 8 * (n + 1))
        else:
            code.number(RAX, 0)
        code.store(RSP, 0, RAX)
        _locate(code, R8, RBX, waits[0].weights)
        code.number(R9, prefetch_lines(waits[0]))
        code.move(RDI, RBX)
        code.address_of_table(RSI, [part for w in waits for part in (w.producer, w.count, sets[w.producer], w.wait)])
        code.number(RDX, len(waits))
        code.number(RCX, self.core)
        code.call_outside("sk_wait_many")
        code.add_number(RSP, 16)
        self._leave_unless_0()
