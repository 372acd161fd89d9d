"""A launch whose cores take turns: the entries of an image run as they are, on a thread per core, one at a time.

Model: a core hands its turn on where it has to wait, where it ends, and, with a seed, ahead of each kernel (behind the
waits for it) and behind each kernel (ahead of its set). There it may be late, and whoever is earliest goes on. Time is
counted in kernels and not measured: a seed gives the same order of events every time, on any machine, however busy, and
every order that the waits allow is one that some delays give.

The entries are the very code of a normal launch: they are loaded once more, and where they call a kernel they come to a
function that tells that it begins, calls the kernel, and tells that it ends.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.host.hang import Waiting
from superkernel.codegen.host import abi
from superkernel.codegen.host.image import HostImage
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.target.cpu import CpuTarget

Array = NDArray[Any]

DELAY_BITS_MAX = 15
"""The longest delay is a little less than 2 to this power, in kernels."""
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
WAIT_SLOW = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int32
)
HOST_CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
TOLD = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)


def hooked_entries(
    image: HostImage, kernels: Mapping[str, tuple[int, int]], begin: Any, end: Any, cpu: CpuTarget
) -> LoadedCode:
    """The entries of an image, loaded so that they tell of kernels: `begin` and `end` (TOLD) get a kernel's number and
    its units. `kernels`: symbol -> address of the code to call, number of operands."""
    told = [ctypes.cast(f, ctypes.c_void_p).value for f in (begin, end)]
    lines: list[str] = []
    for number, (symbol, (address, operands)) in enumerate(kernels.items()):
        kinds = [*["ptr"] * (operands + 1), "i64", "i64"]
        names = [f"{kind} %a{i}" for i, kind in enumerate(kinds)]
        units = f"(i32 {number}, {names[-2]}, {names[-1]})"
        lines += [
            f"define void @{symbol}({', '.join(names)}) {{",
            f"  %begin = inttoptr i64 {told[0]} to ptr",
            f"  call void %begin{units}",
            f"  %kernel = inttoptr i64 {address} to ptr",
            f"  call void %kernel({', '.join(names)})",
            f"  %end = inttoptr i64 {told[1]} to ptr",
            f"  call void %end{units}",
            "  ret void",
            "}",
        ]
    entries = [data for key, data in image.objects.items() if not key.startswith("kernel ")]
    return LoadedCode([compile_ir("\n".join(lines), cpu), *entries])


def context_of(**fields: int) -> Array:
    """An SkContext of these fields, zero in all others; waits ask the runtime at once."""
    context = np.zeros(abi.CONTEXT_BYTES, np.uint8)
    for name, value in fields.items():
        context[abi.OFFSET[name] :][:8].view(np.uint64)[0] = value
    context[abi.OFFSET["spin_limit"] :][:4].view(np.uint32)[0] = 1
    return context


class Delays:
    """When each core is where it is: how late it gets at a step of its way is drawn by a hash of seed, core and step.
    Of the cores a quarter is never late, a quarter always, the others now and then. Seed 0: nobody is."""

    def __init__(self, seed: int, cores: int) -> None:
        self.seed = seed
        self.times, self.steps = [0] * cores, [0] * cores
        drawn = [self._drawn(core, 0) for core in range(cores)]
        self.chances = [(0, 256)[d % 4] if d % 4 < 2 else d // 4 % 256 for d in drawn]

    def _drawn(self, core: int, step: int) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self.seed} {core} {step}".encode(), digest_size=8).digest(), "little")

    def pause(self, core: int) -> None:
        """The core takes a step, and its time."""
        self.steps[core] += 1
        self.times[core] += 1
        drawn = self._drawn(core, self.steps[core])
        if self.seed and drawn % 256 < self.chances[core]:
            bits = drawn // 256 % (DELAY_BITS_MAX + 1)
            self.times[core] += drawn // 4096 % (1 << bits)

    def meet(self, core: int, other: int) -> None:
        """The core has waited for another one."""
        self.times[core] = max(self.times[core], self.times[other])

    def earliest(self, cores: Sequence[int]) -> int:
        """Who goes on."""
        return min(cores, key=lambda core: (self.times[core], core))


class Turns:
    """One launch. Subclasses say when a wait is over, and what is to be done on the way; all but `launch` is called by
    the core whose turn it is."""

    def __init__(self, cores: int, seed: int) -> None:
        self.cores = cores
        self.delays = Delays(seed, cores)
        self.turn = 0
        self.stopped = False
        self.error: BaseException | None = None
        self._go = [threading.Semaphore(0) for _ in range(cores)]
        self._finished = [False] * cores
        self._blocked: list[Waiting | None] = [None] * cores

    def released(self, waiting: Waiting) -> bool:
        """Whether the set that a core waits for was made."""
        raise NotImplementedError

    def deadlock(self, waits: list[Waiting]) -> None:
        """No core can go on."""
        raise NotImplementedError

    def leave(self, core: int, status: int) -> None:
        """A core's entry came to its end."""

    def launch(self, entry: Any, contexts: Sequence[Array]) -> None:
        """Run all cores to their ends; what they raised is in `error`."""
        threads = [threading.Thread(target=self._core, args=(c, entry, context)) for c, context in enumerate(contexts)]
        for thread in threads:
            thread.start()
        self._go[self.turn].release()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: nothing may go on behind it
            self.stopped = True
            for thread in threads:
                thread.join()
            raise

    def _core(self, core: int, entry: Any, context: Array) -> None:
        self._go[core].acquire()
        status = entry(context.ctypes.data, core)
        self.guarded(lambda: self.leave(core, status))
        self._finished[core] = True
        self._hand_on()

    def guarded(self, step: Callable[[], object]) -> bool:
        """Whether a step went well. C code that calls it would lose what it raises: the launch ends with that."""
        try:
            step()
        except BaseException as error:
            self.error, self.stopped = self.error or error, True
            return False
        return True

    def pause(self) -> None:
        """The core may be late here."""
        if self.delays.seed:
            self.delays.pause(self.turn)
            self._hand_on()

    def wait(self, waiting: Waiting) -> bool:
        """The core waits. False where the launch ends."""
        core = waiting.core
        self._blocked[core] = waiting
        if not self._is_able(core):
            self._hand_on()
            self.delays.meet(core, waiting.producer)
        self._blocked[core] = None
        return not self.stopped

    def _is_able(self, core: int) -> bool:
        waiting = self._blocked[core]
        return self.stopped or waiting is None or self.released(waiting)

    def _hand_on(self) -> None:
        """The turn goes to the earliest core that can go on; if there is none, all give up. Returns where it has come
        back, or the core has ended."""
        core = self.turn
        left = [core for core, finished in enumerate(self._finished) if not finished]
        able = [core for core in left if self._is_able(core)]
        if left and not able:
            waits = [waiting for core in left if (waiting := self._blocked[core]) is not None]
            self.guarded(lambda: self.deadlock(waits))
            self.stopped, able = True, left
        if not able:
            return
        self.turn = self.delays.earliest(able)
        if self.turn != core:
            self._go[self.turn].release()
            if not self._finished[core]:
                self._go[core].acquire()
