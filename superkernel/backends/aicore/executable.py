"""The simulator executor: a linked program on a simulated accelerator.

A run makes a device, fills its memory (program, constants, unit ranges, inputs, states), performs the launches of the
fused kernel, and reads outputs and states back. Between two launches stands a sub-operator without a kernel, computed
by the NumPy reference on the device's memory. What a kernel declared to touch is declared to the device: an access
outside is an error, as are races, unwritten reads and deadlocks.

The baseline is the same sub-operators launched one by one on the same device: each with a cold instruction cache and
with the target's launch cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.finished import check_finished
from superkernel.backends.fallback import compute
from superkernel.codegen.aicore.boot import DONE, FIRMWARE
from superkernel.codegen.aicore.image import AicoreImage
from superkernel.codegen.aicore.program_spec import SINGLE
from superkernel.core.errors import DataError, SimulationError, UnsupportedError, Violation
from superkernel.core.options import SIMULATION_LIMIT_S
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, Role
from superkernel.ops.grouped import STATUS_WORD, TILINGS
from superkernel.scheduler.schedule import Schedule, Space
from superkernel.sim.counters import LaunchResult
from superkernel.sim.device import Device, Mode
from superkernel.target.aicore import AicoreTarget

Array = NDArray[Any]


class GlobalMemory(Protocol):
    """What has the device's memory: a simulated device, or an emulated machine."""

    def write(self, address: int, data: bytes | memoryview, /) -> None:
        """Bytes to an absolute address; they count as written from then on."""

    def read(self, address: int, count: int, /) -> bytes:
        """`count` bytes from an absolute address."""

    def first_unwritten(self, address: int, count: int, /) -> int | None:
        """The first of `count` bytes that nobody has written; None where all are."""


@dataclass(frozen=True, slots=True)
class NumPyCall:
    """A sub-operator that NumPy computed behind a launch (-1: ahead of all), and the us that it took here."""

    launch: int
    subop: int
    us: float


@dataclass(frozen=True)
class SimRun:
    """The launches of one run; `device` for whoever wants its trace; `between`: what NumPy computed. `needed_data`:
    sub-operators for which a run for timing had to compute data, as tilings depend on it."""

    launches: tuple[LaunchResult, ...]
    device: Device
    between: tuple[NumPyCall, ...] = ()
    needed_data: tuple[int, ...] = ()

    @property
    def data_dependent(self) -> tuple[int, ...]:
        """Sub-operators whose time may depend on data that the run did not compute."""
        return tuple(sorted({index for launch in self.launches for index in launch.data_dependent}))

    def timed_without_data(self, names: Sequence[str]) -> str:
        """What its times, simulated for timing only, are to be taken for; `names` of sub-operators."""

        def said(numbers: Sequence[int]) -> str:
            return ", ".join(names[number] for number in numbers)

        if self.needed_data:
            return f"simulated for timing, with data, as tilings depend on it: {said(self.needed_data)}"
        if self.data_dependent:
            return (
                "simulated for timing only: no data was computed, on which cycles may depend in: "
                f"{said(self.data_dependent)}"
            )
        return "simulated for timing only"

    @property
    def numpy_us(self) -> float:
        """What NumPy took in between, on this machine."""
        return sum(call.us for call in self.between)


class SimExecutable:
    """One compiled program, to be run on simulated devices, each time for `limit_s` at most. `io` tables are inputs,
    outputs, states, as on the host. `mode`: what kernels' own runs simulate, the option `simulation`."""

    def __init__(
        self,
        image: AicoreImage,
        schedule: Schedule,
        target: AicoreTarget,
        inputs: int,
        outputs: int,
        limit_s: float = SIMULATION_LIMIT_S,
        mode: Mode = "both",
    ) -> None:
        self.limit_s, self.mode = limit_s, mode
        self.clock_ns: Callable[[], int] = time.perf_counter_ns
        self.image, self.schedule, self.target = image, schedule, target
        self.slots = {Space.INPUT: 0, Space.OUTPUT: inputs, Space.STATE: inputs + outputs}

    def run(self, io: Sequence[Array]) -> None:
        """One fused run: outputs and states are written in place. Raises UnsupportedError where the mode computes
        none."""
        self.require_data()
        self.simulate(io, mode=self.mode)

    def require_data(self) -> None:
        """Raises UnsupportedError where runs compute no outputs."""
        if self.mode == "timing":
            raise UnsupportedError(
                "a simulation for timing only computes no outputs",
                location="option 'simulation'",
                expected="'both' or 'functional'",
                found=repr(self.mode),
                hint="report(), time(), trace() and critical() say how long it takes",
            )

    def require_times(self) -> None:
        """Raises UnsupportedError where runs have no cycles."""
        if self.mode == "functional":
            raise UnsupportedError(
                "a simulation of the function only has no cycles",
                location="option 'simulation'",
                expected="'both' or 'timing'",
                found=repr(self.mode),
                hint="calls and run() compute outputs",
            )

    def simulate(
        self,
        io: Sequence[Array],
        *,
        mode: Mode = "both",
        single: bool = False,
        trace: bool = False,
        warm: bool = False,
        numpy_trials: int = 1,
        **options: Any,
    ) -> SimRun:
        """A run: fused, or with `single` one launch per sub-operator; with `warm` the second of two on one device, so
        that L2 holds what the first one left (instruction caches are cold at every launch). Mode `timing` computes data
        where tilings depend on it (`SimRun.needed_data`), and else packs and writes no constants that engines alone
        read. Raises DataError where such data is out of range, SimulationError, of kind
        `time_limit` where all of it takes longer than `limit_s`. `numpy_trials`: as in `host_call`."""
        needed_data = tuple(self._tilings()) if mode == "timing" else ()
        if needed_data:
            mode = "both"
            options = {"races": False, **options}
        names = [sub.name for sub in self.schedule.subops]
        device = Device(self.target, self.image.elf, mode=mode, trace=trace, names=names, **options)
        self._declare(device)
        end_s = time.monotonic() + self.limit_s
        for _ in range(2 if warm else 1):
            self.fill(device, io, device.reserve if mode == "timing" else None)
            launches, between = self._launches(device, single, end_s, numpy_trials)
        check_finished(self.schedule, launches, counted=mode != "functional")
        if mode != "timing":
            self.collect(device, io)
        return SimRun(tuple(launches), device, tuple(between), needed_data)

    def _launches(
        self, device: Device, single: bool, end_s: float, numpy_trials: int
    ) -> tuple[list[LaunchResult], list[NumPyCall]]:
        """One run on a filled device."""
        launches: list[LaunchResult] = []
        between: list[NumPyCall] = []
        calls = set(self.image.host_calls)
        if single:
            for sub in self.schedule.subops:
                if sub.index in calls:
                    us = self._host_call(device, sub.index, numpy_trials)
                    between.append(NumPyCall(len(launches) - 1, sub.index, us))
                elif self.image.calls[sub.index] is not None:
                    launches.append(self._launch(device, SINGLE + sub.index, end_s))
        else:
            for number in range(self.image.launches):
                launches.append(self._launch(device, number, end_s))
                if number < len(self.image.between) and (call := self.image.between[number]) is not None:
                    between.append(NumPyCall(number, call, self._host_call(device, call, numpy_trials)))
        return launches, between

    def _launch(self, device: Device, number: int, end_s: float) -> LaunchResult:
        try:
            return device.launch(number=number, cold=True, limit_s=max(0, end_s - time.monotonic()))
        except SimulationError as error:
            if error.kind == "program_failed":
                self.report_data_error(device, error)
            raise

    def _tilings(self) -> list[int]:
        """Sub-operators that compute tilings."""
        return [sub.index for sub in self.schedule.subops if sub.body.op in TILINGS]

    def report_data_error(self, memory: GlobalMemory, error: SimulationError) -> None:
        """After a program that ended itself: raises DataError where a table says that its data was out of range."""
        for index in self._tilings():
            body = self.schedule.subops[index].body
            out = body.epilogue.outputs[0]
            address = self.image.addresses.of(self.schedule.addresses[index][out.target])
            if any(memory.read(address + 4 * (out.offset + STATUS_WORD), 4)):
                try:
                    self.host_call(memory, index)
                except DataError as told:
                    raise told from error

    # Memory -----------------------------------------------------------------------------------------------------------

    def fill(
        self, device: GlobalMemory, io: Sequence[Array], reserve: Callable[[int, int], None] | None = None
    ) -> None:
        """Constants, unit ranges, inputs and states into a device's memory. `reserve`: told, in place of writing, of
        addresses and sizes of what engines alone read."""
        for part in self.image.data:
            if reserve is not None and part.pack is not None:
                reserve(part.address, part.nbytes)
            else:
                device.write(part.address, part.data.data)
        for space in (Space.INPUT, Space.STATE):
            for slot, array in self._arrays(io, space):
                device.write(self.image.addresses.start(space, slot), np.ascontiguousarray(array).tobytes())

    def _arrays(self, io: Sequence[Array], space: Space) -> list[tuple[int, Array]]:
        ends = {Space.INPUT: Space.OUTPUT, Space.OUTPUT: Space.STATE}
        first = self.slots[space]
        stop = self.slots[ends[space]] if space in ends else len(io)
        return [(i - first, io[i]) for i in range(first, stop)]

    def collect(self, device: GlobalMemory, io: Sequence[Array]) -> None:
        """Outputs and states out of it."""
        for space in (Space.OUTPUT, Space.STATE):
            for slot, array in self._arrays(io, space):
                address = self.image.addresses.start(space, slot)
                if (first := device.first_unwritten(address, array.nbytes)) is not None:
                    raise _unwritten(slot, first - address, array.nbytes)
                raw = device.read(address, array.nbytes)
                array.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8)

    def _declare(self, device: Device) -> None:
        """Tell the device what each sub-operator may touch on each core."""
        for task in self.schedule.tasks:
            reads: list[tuple[int, int]] = []
            writes: list[tuple[int, int]] = []
            for access in task.accesses:
                start = self.image.addresses.start(access.space, access.slot)
                runs = [(start + a, start + b) for r in access.regions for a, b in _runs(r)]
                (writes if access.write else reads).extend(runs)
                if access.space is Space.SCRATCH:
                    reads.extend(runs)
            device.declare(task.subop, task.core, reads=reads, writes=writes)
        words = [self.image.image.symbol(name).address for name in (DONE, FIRMWARE)]
        device.declare_scratch([(word, word + 8) for word in words])

    # Sub-operators on the reference -----------------------------------------------------------------------------------

    def _host_call(self, device: Device, index: int, trials: int) -> float:
        """The same between launches of a run: where engines compute no data, what follows from data is none."""
        us = self.host_call(device, index, trials)
        if device.mode == "timing":
            for address, operand in zip(
                self.schedule.addresses[index], self.schedule.subops[index].body.operands, strict=True
            ):
                if operand.role in (Role.OUTPUT, Role.INOUT):
                    device.reserve(self.image.addresses.of(address), operand.type.nbytes)
        return us

    def host_call(self, device: GlobalMemory, index: int, trials: int = 1) -> float:
        """Compute one sub-operator with NumPy on the device's memory: the us that it took on this machine, without the
        way of its operands; the median of several trials, which end early where they take long."""
        sub = self.schedule.subops[index]
        body = sub.body
        addresses = [self.image.addresses.of(address) for address in self.schedule.addresses[index]]
        buffers = [
            np.frombuffer(bytearray(device.read(a, o.type.nbytes)), o.type.dtype.numpy)
            for a, o in zip(addresses, body.operands, strict=True)
        ]
        took: list[float] = []
        while len(took) < trials - 1 and sum(took) < TRIALS_US_MAX:
            took.append(self._computed(body, [buffer.copy() for buffer in buffers], sub.name))
        took.append(self._computed(body, buffers, sub.name))
        for address, buffer, operand in zip(addresses, buffers, body.operands, strict=True):
            if operand.role in (Role.OUTPUT, Role.INOUT):
                device.write(address, buffer.tobytes())
        return median(took)

    def _computed(self, body: Body, buffers: Sequence[Array], name: str) -> float:
        """us."""
        begin = self.clock_ns()
        compute(body, buffers, name)
        return (self.clock_ns() - begin) / 1000


def _unwritten(slot: int, offset: int, nbytes: int) -> SimulationError:
    """States are written before the launch, so that this is an output."""
    message = "a program ends, and bytes of an output were never written"
    violation = Violation(message, f"output {slot}", f"{nbytes} bytes written", f"byte {offset} is not")
    return SimulationError(kind="unwritten_output", violations=(violation,))


RUNS_MAX = 4096
TRIALS_US_MAX = 50_000.0


def _runs(region: Region) -> list[tuple[int, int]]:
    """A region as runs of bytes; very many short ones as their hull."""
    if region.count > RUNS_MAX or region.stride == region.length:
        return [(region.start, region.stop)]
    return [
        (region.start + i * region.stride, region.start + i * region.stride + region.length)
        for i in range(region.count)
    ]
