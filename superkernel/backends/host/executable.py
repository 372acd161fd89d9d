"""The host executor: a loaded image bound to the runtime, ready to launch.

It owns the executable code, the packed constants, and the runtime's kernel object (arena, scratch, progress
counters). Sub-operators without a kernel come back here from inside the launch, on worker 0, and are computed by the
NumPy reference on the very buffers of the fused kernel.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.backends.host.hang import Waiting, who_waits
from superkernel.codegen.host.image import HostImage
from superkernel.core import settings
from superkernel.core.errors import WatchdogError
from superkernel.core.tensor import TensorType
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.sync.plan import Plan

if TYPE_CHECKING:
    from superkernel.backends.host.delays import DelayedProgram

Array = NDArray[Any]
T = TypeVar("T")


class HostExecutable:
    """One compiled program on this machine. Thread-safe: launches take turns. Also in a forked child, whatever other
    threads were doing. `stepwise`: as proved (`Certificate`); the runtime may then launch it so beside busy
    neighbours. `workspace`: what launches borrow arena and scratch from, for whatever runs there next; None: they are
    this program's own."""

    def __init__(
        self,
        image: HostImage,
        schedule: Schedule,
        plan: Plan,
        watchdog_ms: float = 0.0,
        *,
        stepwise: bool = False,
        workspace: _core.Workspace | None = None,
    ) -> None:
        self.image, self.schedule, self.plan, self.workspace = image, schedule, plan, workspace
        self.watchdog_ns = round(watchdog_ms * 1e6)
        calls = bool(image.host_calls or image.checked)
        self._lock = threading.RLock() if calls else None  # a signal handler may come into a launch of its own thread
        if calls:
            _calling.add(self)
        self._io: Sequence[Array] = ()
        self._one_late = threading.Lock()
        self._delayed: DelayedProgram | None = None
        code = image.code
        self._known = _core.KnownCode(self._names()) if settings.crash_reports() else None
        self._kernel = _core.Kernel(
            entry=code.address("sk_entry"),
            single=code.address("sk_single"),
            profiled=code.address("sk_profiled"),
            cores=image.cores,
            arena_bytes=image.arena_bytes,
            scratch_bytes=image.scratch_bytes,
            constants=image.constants.own,
            shared=image.constants.shared,
            io_count=image.io_count,
            sets=list(image.spec.sets),
            subops=image.spec.subops,
            events_words=image.spec.events_words,
            host_call=self._host_call if calls else None,
            workspace=workspace,
            stepwise=stepwise,
        )

    def _names(self) -> list[tuple[int, int, str, bool]]:
        """What a crash in this code is told by: addresses, the text, whether it is a task's function."""
        subops = self.schedule.subops
        tasks = {
            f"task_{number}": f"sub-operator {task.subop} ({subops[task.subop].name!r}) on core {task.core}"
            for number, task in enumerate(self.image.spec.tasks)
        }
        return [
            (begin, begin + nbytes, tasks.get(name, name), name in tasks)
            for name, begin, nbytes in self.image.code.functions()
        ]

    @property
    def core(self) -> _core.Kernel:
        """The runtime's kernel, for callers that prepare their arguments themselves."""
        return self._kernel

    @property
    def calls_python(self) -> bool:
        """True where a launch needs this object: sub-operators on the reference, or that it explains."""
        return self._lock is not None

    def explained(self, error: BaseException) -> BaseException:
        """What a failed launch of `core` says to the user."""
        if not isinstance(error, WatchdogError):
            return error
        stuck = self._stuck(error)
        if stuck is not error:
            stuck.__cause__ = error
        return stuck

    def run(self, io: Sequence[Array]) -> None:
        """One launch on the arrays of the io table: inputs, outputs, states. Raises WatchdogError."""
        self._with_io(io, lambda: self._kernel.run(io, self.watchdog_ns))

    def run_late(self, io: Sequence[Array], seed: int) -> None:
        """One launch on the same, with cores that are late where the seed says so (`turns.py`). Raises WatchdogError
        where no core can go on."""
        from superkernel.backends.host.delays import DelayedProgram  # which LLVM comes with

        with self._one_late:
            if self._delayed is None:
                self._delayed = DelayedProgram(self.image, self.schedule, self.plan)
            self._delayed.run(io, seed)

    def profile(
        self, io: Sequence[Array], rounds: int, warmup: int, *, settle: bool, single: bool
    ) -> _core.ProfileRows:
        """Plain, profiled and, with `single`, one-by-one launches in turn: see `_core.Kernel.profile`."""
        return self._with_io(io, lambda: self._kernel.profile(io, rounds, warmup, settle, single))

    def count(self, io: Sequence[Array], launches: int) -> NDArray[np.int64]:
        """What the CPU counts over launches back to back: see `_core.Kernel.count`."""
        return self._with_io(io, lambda: self._kernel.count(io, launches))

    def time(self, io: Sequence[Array], rounds: int, warmup: int) -> NDArray[np.int64]:
        """Fused launches: ns of each."""
        return self._with_io(io, lambda: self._kernel.time(io, rounds, warmup))

    def run_single(self, io: Sequence[Array]) -> NDArray[np.int64]:
        """The sub-operators one by one with a join between: ns of each."""
        return self._with_io(io, lambda: self._kernel.run_single(io))

    def _with_io(self, io: Sequence[Array], launch: Callable[[], T]) -> T:
        if self._lock is None:
            return self._launch(launch)
        with self._lock:
            before, self._io = self._io, io
            try:
                return self._launch(launch)
            finally:
                self._io = before

    def _launch(self, launch: Callable[[], T]) -> T:
        try:
            return launch()
        except WatchdogError as error:
            raise self._stuck(error) from error

    def _stuck(self, error: WatchdogError) -> WatchdogError:
        """Who waited for whom, from what the runtime saw."""
        details = self._kernel.last_abort()
        if details is None or not details["waits"]:
            return error
        message = f"the kernel did not finish within the watchdog time of {self.watchdog_ns / 1e6:g} ms"
        if details["reason"] == "deadlock":
            message = "no core can go on"
        waits = Waiting.of(details, self.image.spec.sets)
        return WatchdogError(violations=who_waits(message, waits, self.plan, self.schedule))

    # Sub-operators on the reference -----------------------------------------------------------------------------------

    def _host_call(self, index: int) -> None:
        """Compute one sub-operator with NumPy, in place of a kernel, or after one that found its data out of range."""
        from superkernel.backends.fallback import compute  # with all of the reference: few kernels need it

        sub = self.schedule.subops[index]
        operands = zip(self.schedule.addresses[index], sub.body.operands, strict=True)
        compute(sub.body, [self._buffer(address, operand.type) for address, operand in operands], sub.name)

    def _buffer(self, address: MemoryAddress, kind: TensorType) -> Array:
        """The memory of an operand as a flat array."""
        if address.space is Space.ARENA:
            raw = self._kernel.arena()
        elif address.space is Space.CONSTANT:
            return self.image.constants.at(address.offset)[: kind.nbytes].view(kind.dtype.numpy)
        else:
            raw = self._io[self.image.io_slot(address)].reshape(-1).view(np.uint8)
        return raw[address.offset : address.offset + kind.nbytes].view(kind.dtype.numpy)


_calling: WeakSet[HostExecutable] = WeakSet()  # those with a lock


def _leave_others_behind() -> None:
    """In a forked child: the threads that held the locks are not there any more."""
    for executable in _calling:
        executable._lock = threading.RLock()


os.register_at_fork(after_in_child=_leave_others_behind)
