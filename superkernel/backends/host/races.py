"""A run that is watched: `debug="races"`.

Model: the entries of the image, the very code of a normal launch, run with cores that take turns (`turns.py`); the
kernels are compiled once more, so that they record what they touch (`codegen/host/recording.py`). What the emitted code
does is held against three things:

 - *declarations*: a task touches nothing but the bytes that the plan says it does;
 - *happens-before*: of two tasks of different cores that touch a byte, one of them writing it, the second knows of the
   first, and they come in the order of the schedule, which is the meaning of the program;
 - *definedness*: what is read of workspaces and outputs was written in this launch.

Happens-before is derived from what the code executes, not from the plan. A core's vector clock says how many sets of
each core it knows of. Each core has progress counters of its own, in which it finds its own sets and nothing else: so
each wait that is not implied by an earlier one comes to `wait_slow`, which waits until the producer has made that set,
joins the clock that the producer had then, and enters the count awaited, never more, into the waiter's counter. What a
run finds so does not depend on timing: a wait that is not there is reported even where the cores happened to meet.

Bytes are followed one by one: which task wrote it last, and which task of each core read it last.

Constants are given; scratch is a core's own. Sub-operators on the reference count as accesses of what they declare.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.fallback import compute
from superkernel.backends.host.executable import HostExecutable
from superkernel.backends.host.hang import Waiting, who_waits
from superkernel.backends.host.turns import ENTRY, HOST_CALL, TOLD, WAIT_SLOW, Turns, context_of, hooked_entries
from superkernel.codegen.host import abi
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.image import HostImage
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.recording import (
    PAGE_BYTES,
    READ,
    SPANNED,
    WRITTEN,
    MemoryWindow,
    compile_recorded,
    recordable,
)
from superkernel.core.counted import counted
from superkernel.core.errors import RaceError, Violation
from superkernel.core.tensor import TensorType
from superkernel.scheduler.schedule import MemoryAccess, MemoryAddress, Schedule, Space, Task
from superkernel.sync.plan import Hazard, Plan, TaskStep
from superkernel.target.cpu import CpuTarget

Array = NDArray[Any]

FINDINGS_MAX = 20
_GUARD_BYTES = 4096  # between any two blocks of the window: an access beyond one meets nothing of another
_TURNED = {Hazard.RAW: Hazard.WAR, Hazard.WAR: Hazard.RAW, Hazard.WAW: Hazard.WAW}


class RaceExecutable(HostExecutable):
    """As `HostExecutable`; runs are watched, measurements are of the plain code."""

    def __init__(self, image: HostImage, schedule: Schedule, plan: Plan, cpu: CpuTarget, watchdog_ms: float) -> None:
        super().__init__(image, schedule, plan, watchdog_ms)
        self.cpu = cpu
        self._one = threading.Lock()
        self._program: _Program | None = None

    @property
    def calls_python(self) -> bool:
        return True

    def run(self, io: Sequence[Array]) -> None:
        """One watched run. Raises RaceError with all that it found; what NumPy's part raises."""
        self.run_late(io, 0)

    def run_late(self, io: Sequence[Array], seed: int) -> None:
        """One watched run with delays."""
        with self._one:
            if self._program is None:
                self._program = _Program(self.image, self.schedule, self.plan, self.cpu, [a.nbytes for a in io])
            self._program.run(io, seed)


class _Layout:
    """Where the window has what: the blocks of all spaces."""

    def __init__(self, image: HostImage, schedule: Schedule, io_bytes: Sequence[int]) -> None:
        self.image = image
        constants = image.constants
        shared = [len(memory) for memory in constants.shared]
        blocks = [image.arena_bytes, len(constants.own), *io_bytes, *shared, image.scratch_bytes * schedule.cores]
        self.starts: list[int] = []
        at = _GUARD_BYTES
        for nbytes in blocks:
            self.starts.append(at)
            at += -(-nbytes // _GUARD_BYTES) * _GUARD_BYTES + _GUARD_BYTES
        self.nbytes = at
        self.arena, self.constants, *self.table, self.scratch = self.starts
        self.io, self.shared = self.table[: len(io_bytes)], self.table[len(io_bytes) :]
        outputs = range(image.io_slots[Space.OUTPUT], image.io_slots[Space.STATE])
        io = [
            (start, start + n, slot not in outputs)
            for slot, (start, n) in enumerate(zip(self.io, io_bytes, strict=True))
        ]
        self.followed = [(self.arena, self.arena + image.arena_bytes, False), *io]

    def named(self, byte: int) -> str:
        """A byte that belongs to no operand."""
        block = max((n for n, start in enumerate(self.starts) if start <= byte), default=0)
        names = ["arena", "constants", *(f"io slot {n}" for n in range(len(self.table))), "scratch"]
        return f"{names[block]}, byte {byte - self.starts[block]}"

    def place(self, space: Space, slot: int, offset: int) -> int:
        """Where a byte of a space is."""
        if space is Space.ARENA:
            return self.arena + offset
        if space is Space.CONSTANT:
            block, offset = self.image.constants.places.find(offset)
            return (self.constants if block is None else self.shared[block]) + offset
        return self.io[self.image.io_slots[space] + slot] + offset


class _Program:
    """The recorded kernels of an image, their window, and the shadow of a run."""

    def __init__(
        self, image: HostImage, schedule: Schedule, plan: Plan, cpu: CpuTarget, io_bytes: Sequence[int]
    ) -> None:
        self.image, self.schedule, self.plan = image, schedule, plan
        self.layout = _Layout(image, schedule, io_bytes)
        self.window = MemoryWindow(self.layout.nbytes)
        self.watch: _Watch | None = None
        kernels = {
            symbol: (sub, tiling)
            for symbol, sub, tiling in zip(image.symbols, schedule.subops, schedule.tilings, strict=True)
            if symbol is not None
        }
        self.symbols = list(kernels)
        self.begin, self.end = TOLD(self._begin), TOLD(self._end)
        texts = [
            emit_ir(sub.kernel, sub.body, t, recordable(cpu), f"{symbol}.recorded")
            for symbol, (sub, t) in kernels.items()
        ]
        self.recorded = LoadedCode([compile_recorded(text, cpu, self.window) for text in texts])
        hooked = {
            symbol: (self.recorded.address(f"{symbol}.recorded"), len(sub.body.operands))
            for symbol, (sub, _) in kernels.items()
        }
        self.code = hooked_entries(image, hooked, self.begin, self.end, cpu)
        self.entry = ENTRY(self.code.address("sk_entry"))

    def _begin(self, number: int, begin: int, end: int) -> None:
        if (watch := self.watch) is not None:
            watch.guarded(lambda: watch.begin(self.symbols[number], begin, end))

    def _end(self, *_: int) -> None:
        if (watch := self.watch) is not None:
            watch.guarded(watch.end)

    def run(self, io: Sequence[Array], seed: int) -> None:
        """One watched run on the arrays of the io table."""
        layout, memory = self.layout, self.window.memory
        memory[:] = 0
        constants = self.image.constants
        for start, block in zip((layout.constants, *layout.shared), (constants.own, *constants.shared), strict=True):
            memory[start:][: len(block)] = block
        places = [memory[start:][: array.nbytes] for start, array in zip(layout.io, io, strict=True)]
        for place, array in zip(places, io, strict=True):
            place[:] = _bytes(array)
        self.watch = _Watch(self, seed)
        try:
            self.watch.run()
        finally:
            self.watch = None
        first = self.image.io_slots[Space.OUTPUT]
        for place, array in zip(places[first:], io[first:], strict=True):
            array[...] = place.view(array.dtype).reshape(array.shape)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class _Watch(Turns):
    """One launch. Tasks and what is known of them: by number, the index plus one; 0 is no task."""

    def __init__(self, program: _Program, seed: int) -> None:
        super().__init__(program.plan.cores, seed)
        self.program, self.layout, self.window = program, program.layout, program.window
        self.image, self.schedule, self.plan = program.image, program.schedule, program.plan
        cores, tasks = self.cores, self.plan.tasks
        self.findings: list[Violation] = []
        self.races: set[tuple[Hazard, int, int]] = set()  # kind, earlier task, later task
        self.undefined: dict[int, Violation] = {}  # what tasks read that nobody had written
        # Synchronisation, by core.
        self.flags = [np.zeros(cores * abi.FLAG_STRIDE, np.uint64) for _ in range(cores)]
        self.clocks = np.zeros((cores, cores), np.int64)
        self.sets: list[list[Array]] = [[self.clocks[0].copy()] for _ in range(cores)]
        self.left = [[s.task for s in steps if isinstance(s, TaskStep)][::-1] for steps in self.plan.programs]
        self.task: Task | None = None
        # Bytes.
        self.owner = np.array([0, *(t.core for t in tasks)])
        self.release = np.full(len(tasks) + 1, -1)  # the set behind a task that was run
        self.writer = np.zeros(self.layout.nbytes, np.int32)
        self.readers = [np.zeros(self.layout.nbytes, np.int32) for _ in range(cores)]
        self.declared = np.zeros(self.layout.nbytes, np.uint8)

    def run(self) -> None:
        """Run all cores. Raises RaceError, and what the reference raised."""
        self.window.clear()
        wait, call = WAIT_SLOW(self._wait), HOST_CALL(self._host_call)
        base, layout = self.window.memory.ctypes.data, self.layout
        io = np.array([base + start for start in layout.table], np.uint64)
        contexts = [
            context_of(
                arena=base + layout.arena,
                constants=base + layout.constants,
                io=io.ctypes.data,
                flags=flags.ctypes.data,
                scratch=base + layout.scratch,
                scratch_stride=self.image.scratch_bytes,
                wait_slow=ctypes.cast(wait, ctypes.c_void_p).value or 0,
                host_call=ctypes.cast(call, ctypes.c_void_p).value or 0,
            )
            for flags in self.flags
        ]
        self.launch(self.program.entry, contexts)
        raced = {later for _, _, later in self.races}  # they may have come too early
        undefined = [violation for task, violation in self.undefined.items() if task not in raced]
        if found := [*self.findings, *undefined]:
            raise RaceError(violations=found) from self.error
        if self.error is not None:
            raise self.error

    def leave(self, core: int, _: int) -> None:
        self._publish(core)
        if self.left[core] and not self.stopped:
            names = ", ".join(self._name(self.plan.tasks[n]) for n in self.left[core][::-1])
            self._find("tasks of the plan are not run", f"core {core}", names, "the end of its entry")

    def released(self, waiting: Waiting) -> bool:
        return len(self.sets[waiting.producer]) > waiting.count

    def deadlock(self, waits: list[Waiting]) -> None:
        self.findings += who_waits("deadlock: no core can go on", waits, self.plan, self.schedule)

    def _wait(self, _: int, core: int, producer: int, threshold: int, index: int) -> int:
        """The code waits for a count that it has not seen."""
        if not self.guarded(lambda: self._publish(core)):
            return 1
        if not self.wait(Waiting(core, index, producer, threshold, len(self.sets[producer]) - 1)):
            return 1
        self.clocks[core] = np.maximum(self.clocks[core], self.sets[producer][threshold])
        self.flags[core][producer * abi.FLAG_STRIDE] = threshold
        return 0

    def _publish(self, core: int) -> None:
        """Sets that the core made since it was looked at last: nothing came to its knowledge in between."""
        for count in range(len(self.sets[core]), int(self.flags[core][core * abi.FLAG_STRIDE]) + 1):
            self.clocks[core, core] = count
            self.sets[core].append(self.clocks[core].copy())

    # Tasks ------------------------------------------------------------------------------------------------------------

    def begin(self, symbol: str, begin: int, end: int) -> None:
        """A kernel function was called."""
        self._pause()
        self._next(lambda task: (self.image.symbols[task.subop], task.begin, task.end), (symbol, begin, end))

    def _next(self, identity: Callable[[Task], Any], found: Any) -> None:
        """The core comes to its next task, which is known by `found`."""
        core = self.turn
        self._publish(core)
        self.task = self.plan.tasks[self.left[core].pop()] if self.left[core] else None
        wanted = self.task and identity(self.task)
        if wanted != found:
            self._find("another task is run than the plan says", f"core {core}", wanted, found)
            self.task = None

    def end(self) -> None:
        """It returned."""
        if self.task is not None:
            self._check(self.task)
        self.window.clear()
        self._pause()

    def _pause(self) -> None:
        self._publish(self.turn)
        self.pause()

    def _host_call(self, _: int, index: int) -> int:
        """NumPy computes a sub-operator, or says what a kernel found out of range."""
        return 0 if self.guarded(lambda: self._compute(index)) else 1

    def _compute(self, index: int) -> None:
        sub = self.schedule.subops[index]
        if index in self.image.host_calls:
            self._pause()
            self._next(lambda task: task.subop, index)
            for access in self.task.accesses if self.task else ():
                self._mark(self.window.shadow, access, WRITTEN if access.write else READ)
                for region in access.regions:
                    start = self.layout.place(access.space, access.slot, region.start)
                    pages = slice(start // PAGE_BYTES, (start + region.stop - region.start - 1) // PAGE_BYTES + 1)
                    self.window.page_touched[pages] = 1
            self.end()
        operands = zip(self.schedule.addresses[index], sub.body.operands, strict=True)
        compute(sub.body, [self._array(address, operand.type) for address, operand in operands], sub.name)

    def _array(self, address: MemoryAddress, kind: TensorType) -> Array:
        start = self.layout.place(address.space, address.slot, address.offset)
        return self.window.memory[start:][: kind.nbytes].view(kind.dtype.numpy)

    def _mark(self, mask: Array, access: MemoryAccess, bit: int) -> None:
        for region in access.regions:
            start = self.layout.place(access.space, access.slot, region.start)
            shape, strides = (region.count, region.length), (region.stride, 1)
            np.lib.stride_tricks.as_strided(mask[start:], shape, strides)[...] |= bit

    def _check(self, task: Task) -> None:
        """Hold what a task touched to its declaration and to what others touched, then keep it."""
        own = self.layout.scratch + task.core * self.image.scratch_bytes
        declared = self.declared
        declared[own:][: self.image.scratch_bytes] = READ | WRITTEN
        for access in task.accesses:
            self._mark(declared, access, WRITTEN if access.write else READ)
        if self.window.outside[0]:
            found = f"{counted(self.window.outside[0], 'access')}"
            self._find("access outside of all memory", self._name(task), "the sub-operator's operands", found)
        number = task.index + 1
        known = self.clocks[task.core][self.owner] >= self.release
        before = (self.release >= 0) & (np.arange(len(self.release)) < number)
        ordered = before & (known | (self.owner == task.core))
        ordered[0] = True
        self.release[number] = len(self.sets[task.core])
        for start, stop in self.window.touched():
            shadow, told = self.window.shadow[start:stop], declared[start:stop]
            for bit, what in ((WRITTEN, "undeclared store"), (READ, "undeclared load")):
                wrong = np.flatnonzero(shadow & ~told & bit)
                if wrong.size:
                    where = self._name(task, start + int(wrong[0]))
                    self._find(what, where, "what its tiling declares", f"{wrong.size} bytes that it does not")
            for low, high, given in self.layout.followed:
                part = slice(max(start, low), min(stop, high))
                if part.start < part.stop:
                    self._follow(task, part, given, ordered)
        for access in task.accesses:
            self._clear(access)
        declared[own:][: self.image.scratch_bytes] = 0

    def _clear(self, access: MemoryAccess) -> None:
        for region in access.regions:
            start = self.layout.place(access.space, access.slot, region.start)
            self.declared[start : start + region.stop - region.start] = 0

    def _follow(self, task: Task, part: slice, given: bool, ordered: Array) -> None:
        """Conflicts of a task in a stretch of memory. `given`: what was there before the launch may be read."""
        shadow, declared = self.window.shadow[part], self.declared[part]
        reads = np.flatnonzero((shadow & (READ | SPANNED) != 0) & (declared & READ != 0)) + part.start
        writes = np.flatnonzero(shadow & WRITTEN) + part.start
        writers = self.writer[reads]
        self._conflict(task, Hazard.RAW, reads, writers, ordered)
        undefined = reads[writers == 0]
        if undefined.size and not given:
            where = self._name(task, int(undefined[0]))
            found = f"{undefined.size} others"
            wrong = Violation("read before anybody wrote it", where, "bytes written in this launch", found)
            self.undefined.setdefault(task.index, wrong)
        self._conflict(task, Hazard.WAW, writes, self.writer[writes], ordered)
        for readers in self.readers:
            self._conflict(task, Hazard.WAR, writes, readers[writes], ordered)
        self.readers[task.core][reads] = task.index + 1
        self.writer[writes] = task.index + 1

    def _conflict(self, task: Task, hazard: Hazard, places: Array, others: Array, ordered: Array) -> None:
        for number in np.unique(others[~ordered[others]]).tolist():
            other, place = self.plan.tasks[number - 1], int(places[np.argmax(others == number)])
            if other.index < task.index:
                self._race(hazard, other, task, place)
            else:  # the later one came first
                self._race(_TURNED[hazard], task, other, place)

    def _race(self, hazard: Hazard, earlier: Task, later: Task, place: int) -> None:
        """Two tasks in the schedule's order."""
        if (hazard, earlier.index, later.index) in self.races:
            return
        self.races.add((hazard, earlier.index, later.index))
        count = self.release[earlier.index + 1]
        wait = f"core {later.core} waits for set {count} of core {earlier.core} ahead of it"
        does = "reads" if hazard is Hazard.WAR else "writes"
        found = f"no such wait, but {self._name(earlier)} {does} it"
        self._find(f"race, {hazard.value}", self._name(later, place), wait, found)

    # Words ------------------------------------------------------------------------------------------------------------

    def _find(self, message: str, location: str, expected: object, found: object) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Violation(message, location, str(expected), str(found)))

    def _name(self, task: Task, byte: int | None = None) -> str:
        """A task, and the element of its operand that a byte of the window belongs to."""
        sub = self.schedule.subops[task.subop]
        name = f"sub-operator {sub.index} ({sub.name!r}), core {task.core}, units {task.begin}..{task.end}"
        if byte is None:
            return name
        for k, (address, operand) in enumerate(
            zip(self.schedule.addresses[task.subop], sub.body.operands, strict=True)
        ):
            offset = byte - self.layout.place(address.space, address.slot, address.offset)
            if 0 <= offset < operand.type.nbytes:
                element = np.unravel_index(offset // operand.type.dtype.itemsize, operand.type.shape or (1,))
                return f"{name}, operand {k} ({operand.role.value}), element {[int(i) for i in element]}"
        return f"{name}, {self.layout.named(byte)}"
