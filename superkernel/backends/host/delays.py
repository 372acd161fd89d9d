"""A run on the host whose cores are late where a seed says so (`turns.py`), which no right program minds.

Model: the kernels are those of the image, on memory of the run's own in which nobody has written yet: workspaces,
outputs and scratch hold 0xff bytes, which are NaN as numbers. So a value that is read before it is written shows, even
where it is the one that the run before left there. Whatever wait is missing, some order of tasks that the others allow
goes wrong; seeds try such orders.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.fallback import compute
from superkernel.backends.host.hang import Waiting, who_waits
from superkernel.backends.host.turns import ENTRY, HOST_CALL, TOLD, WAIT_SLOW, Turns, context_of, hooked_entries
from superkernel.codegen.host import abi
from superkernel.codegen.host.constants import aligned_bytes
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.image import HostImage
from superkernel.core.errors import InternalError, WatchdogError
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.sync.plan import Plan

Array = NDArray[Any]

_UNWRITTEN = 0xFF
_ALIGNMENT = 128  # of arena and scratch, as the runtime's


class DelayedProgram:
    """An image whose entries tell of its kernels, and the memory that its runs work on. One run at a time."""

    def __init__(self, image: HostImage, schedule: Schedule, plan: Plan) -> None:
        self.image, self.schedule, self.plan = image, schedule, plan
        self.scratch_stride = -(-image.scratch_bytes // _ALIGNMENT) * _ALIGNMENT
        self.arena, self.scratch = (
            aligned_bytes(n, _ALIGNMENT) for n in (image.arena_bytes, self.scratch_stride * image.cores)
        )
        self.launch: _Launch | None = None
        kernels = {
            symbol: (image.code.address(symbol), len(sub.body.operands))
            for symbol, sub in zip(image.symbols, schedule.subops, strict=True)
            if symbol is not None
        }
        self._told = TOLD(self._pause)
        self._code = hooked_entries(image, kernels, self._told, self._told, detect_cpu())
        self._entry = ENTRY(self._code.address("sk_entry"))

    def _pause(self, *_: int) -> None:
        if self.launch is not None:
            self.launch.guarded(self.launch.pause)

    def run(self, io: Sequence[Array], seed: int) -> None:
        """One run on the arrays of the io table: inputs, outputs, states. Raises WatchdogError where no core can go on,
        and what NumPy's part raises."""
        outputs = io[self.image.io_slots[Space.OUTPUT] : self.image.io_slots[Space.STATE]]
        for array in (self.arena, self.scratch, *outputs):
            array.reshape(-1).view(np.uint8)[:] = _UNWRITTEN
        self.launch = _Launch(self, io, seed)
        try:
            self.launch.run(self._entry)
        finally:
            self.launch = None


class _Launch(Turns):
    def __init__(self, program: DelayedProgram, io: Sequence[Array], seed: int) -> None:
        super().__init__(program.image.cores, seed)
        self.program, self.image, self.io = program, program.image, io
        self.flags = np.zeros(self.cores * abi.FLAG_STRIDE, np.uint64)

    def run(self, entry: Any) -> None:
        """Raises what went wrong."""
        wait, call = WAIT_SLOW(self._wait), HOST_CALL(self._host_call)
        io = np.array([array.ctypes.data for array in (*self.io, *self.image.constants.shared)], np.uint64)
        context = context_of(
            arena=self.program.arena.ctypes.data,
            constants=self.image.constants.own.ctypes.data,
            io=io.ctypes.data,
            flags=self.flags.ctypes.data,
            scratch=self.program.scratch.ctypes.data,
            scratch_stride=self.program.scratch_stride,
            wait_slow=ctypes.cast(wait, ctypes.c_void_p).value or 0,
            host_call=ctypes.cast(call, ctypes.c_void_p).value or 0,
        )
        self.launch(entry, [context] * self.cores)
        if self.error is not None:
            raise self.error

    def released(self, waiting: Waiting) -> bool:
        return self._reached(waiting.producer) >= waiting.count

    def _reached(self, core: int) -> int:
        return int(self.flags[core * abi.FLAG_STRIDE])

    def deadlock(self, waits: list[Waiting]) -> None:
        message = "no core can go on"
        raise WatchdogError(violations=who_waits(message, waits, self.program.plan, self.program.schedule))

    def leave(self, core: int, status: int) -> None:
        if status and not self.stopped:
            raise InternalError("the kernel's entry reports a failure without a cause", location=f"core {core}")

    def _wait(self, _: int, core: int, producer: int, threshold: int, index: int) -> int:
        return 0 if self.wait(Waiting(core, index, producer, threshold, self._reached(producer))) else 1

    def _host_call(self, _: int, index: int) -> int:
        """NumPy computes a sub-operator, or says what a kernel found out of range."""

        def step() -> None:
            sub = self.program.schedule.subops[index]
            operands = zip(self.program.schedule.addresses[index], sub.body.operands, strict=True)
            self.pause()
            compute(sub.body, [self._buffer(a, o.type.nbytes).view(o.type.dtype.numpy) for a, o in operands], sub.name)
            self.pause()

        return 0 if self.guarded(step) else 1

    def _buffer(self, address: MemoryAddress, nbytes: int) -> Array:
        if address.space is Space.ARENA:
            raw = self.program.arena
        elif address.space is Space.CONSTANT:
            return self.image.constants.at(address.offset)[:nbytes]
        else:
            raw = self.io[self.image.io_slot(address)].reshape(-1).view(np.uint8)
        return raw[address.offset : address.offset + nbytes]
