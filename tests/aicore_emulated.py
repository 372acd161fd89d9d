"""Kernels of the accelerator's unit tests as whole programs, on the simulated device and on the emulator.

Model: `Alone` is a program of one sub-operator, made by the stages behind grouping: placed on all cores of the
target, planned, verified, linked. Constants are packed as the tiling wants them, inputs stand in buffers of inputs,
operands that are written in part or in place in buffers of states, so that what nobody writes is compared too. The
simulator runs it with all of its checks (races, declared regions, unwritten reads). The emulator runs the same bytes,
commands as late as legal, or at random as well. All of that has to give the bytes that the kernel's function gave
when it was called for all units at once; only where exp or ln ran may the emulator differ, by what the test allows.

`CHOICE` is `pytest --emulator`: `none`; `sample`, one program in `SAMPLED` (by a hash, so that it is the same ones in
whatever order tests run); `late` and `random`, all programs. `TALLY` counts what was compared, for the summary.
"""

from __future__ import annotations

import shutil
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.qemu import QemuExecutable
from superkernel.backends.aicore.qemu_process import PROGRAM
from superkernel.backends.aicore.qemu_schedule import EngineSchedule
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.image import AicoreImageBuilder
from superkernel.codegen.aicore.memory_map import map_addresses
from superkernel.codegen.cache import ObjectCache
from superkernel.core import settings
from superkernel.core.options import Options
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, Role, SubOperator
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.aicore.place import place_aicore
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.grouping import Grouping, ValueBuffer
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.aicore.verify import verify_aicore
from superkernel.target.aicore import AicoreTarget

Array = NDArray[Any]
CHOICES: Final = ("none", "sample", "late", "random")
SAMPLED: Final = 64  # one program in so many
CANARY: Final = 0xA5
WATCHDOG_S: Final = 60.0
CHOICE = ["sample"]
TALLY: Counter[str] = Counter()


class _Only:
    """A family that offers one tiling."""

    def __init__(self, tiling: AicoreTiling) -> None:
        self.tiling = tiling

    def tilings(self, *_: object) -> Sequence[AicoreTiling]:
        return [self.tiling]


class Alone:
    """The program of one body. `whole`: operands of which every byte is written; `arrays`: what operands hold before
    it runs."""

    def __init__(
        self,
        kernel: str,
        body: Body,
        tiling: AicoreTiling,
        target: AicoreTarget,
        arrays: Sequence[Array],
        whole: Sequence[int],
    ) -> None:
        packs, slots = tiling.packs(body), Counter[Space]()
        names = tuple(f"o{k}" for k in range(len(body.operands)))
        self.addresses: list[MemoryAddress] = []
        types: dict[Space, list[TensorType]] = {Space.INPUT: [], Space.OUTPUT: [], Space.STATE: []}
        for k, operand in enumerate(body.operands):
            written = operand.role in (Role.OUTPUT, Role.INOUT)
            space = Space.OUTPUT if k in whole else Space.STATE if written else Space.INPUT
            space = Space.CONSTANT if operand.role is Role.CONSTANT or k in packs else space
            self.addresses.append(MemoryAddress(space, 0 if space is Space.CONSTANT else slots[space], 0))
            slots[space] += 1
            types.setdefault(space, []).append(operand.type)
        buffers = {n: ValueBuffer(o.type, h) for n, o, h in zip(names, body.operands, self.addresses, strict=True)}
        self.arrays = [self._start(k, body, arrays[k]) for k in range(len(names))]
        constants = {
            n: a for n, a, h in zip(names, self.arrays, self.addresses, strict=True) if h.space is Space.CONSTANT
        }
        grouping = Grouping((SubOperator(0, "alone", body, names, ("alone",), kernel),), buffers, constants, ())
        schedule = place_aicore(grouping, target, lambda _: _Only(tiling), "off")  # type: ignore[arg-type,return-value]
        plan = plan_aicore(schedule, target)
        verify_aicore(plan, {0: tiling.units})
        io = [types[space] for space in (Space.INPUT, Space.OUTPUT, Space.STATE)]
        addresses = map_addresses(schedule, target, *io)
        options = Options()
        code = CodeOptions(options.func_align, options.split, options.preload)
        cache = ObjectCache(settings.cache_directory())
        image = AicoreImageBuilder(schedule, plan, target, addresses, cache, code).build(constants)
        self.program = SimExecutable(image, schedule, target, len(io[0]), len(io[1]))
        self.emulator = QemuExecutable(self.program)

    def _start(self, k: int, body: Body, array: Array) -> Array:
        if body.operands[k].role is not Role.OUTPUT:
            return array
        return np.full(array.nbytes, CANARY, np.uint8).view(array.dtype).reshape(array.shape)

    def _tables(self) -> tuple[list[Array], dict[int, Array]]:
        """Fresh arrays in the order of a run, and which of them are what operands that are written will hold."""
        found: dict[int, Array] = {}
        io: list[Array] = []
        for space in (Space.INPUT, Space.OUTPUT, Space.STATE):
            for k, address in enumerate(self.addresses):
                if address.space is space:
                    io.append(self.arrays[k].copy())
                    if space is not Space.INPUT:
                        found[k] = io[-1]
        return io, found

    def simulate(self) -> dict[int, Array]:
        """What operands hold behind a run on the simulator."""
        io, found = self._tables()
        self.program.simulate(io)
        return found

    def emulate(self, schedule: EngineSchedule) -> tuple[dict[int, Array], int]:
        """The same on the emulator, and how many of its commands may differ in the last place."""
        io, found = self._tables()
        return found, self.emulator.run(io, schedule).inexact


def chosen(kernel: str, body: Body, tiling: AicoreTiling, target: AicoreTarget) -> bool:
    """Whether a program is to run on the emulator. Without the emulator a sample is left out."""
    if CHOICE[0] == "none" or not tiling.units:
        return False
    if CHOICE[0] != "sample":
        return True
    text = f"{kernel} {body!r} {tiling!r} {target.name}"
    return zlib.crc32(text.encode()) % SAMPLED == 0 and shutil.which(PROGRAM) is not None


def check_emulated(
    kernel: str,
    body: Body,
    tiling: AicoreTiling,
    target: AicoreTarget,
    arrays: Sequence[Array],
    masks: Sequence[Array],
    expected: Mapping[int, Array],
    near: Mapping[int, float],
) -> None:
    """`masks`: the bytes of each operand that are declared as written; `expected`: what written operands hold behind
    the kernel's function (bytes outside the masks aside); `near`: what an operand may be off by where exp or ln ran."""
    from kernel_check import compare

    began = time.perf_counter()
    if tiling.kernel_type.on_aicpu and Cores(target).slots(tiling.kernel_type) == 0:
        TALLY["left out"] += 1  # no hart that could run it
        return
    whole = [k for k, o in enumerate(body.operands) if o.role is Role.OUTPUT and masks[k].all()]
    alone = Alone(kernel, body, tiling, target, arrays, whole)
    where = f"{kernel}, {tiling}, {target.name}"
    simulated = alone.simulate()
    for k, got in simulated.items():
        _same(got, _kept(alone.arrays[k], expected[k], masks[k]), f"{where}, operand {k}, simulator against function")
    schedules = [EngineSchedule("late", watchdog_s=WATCHDOG_S)]
    if CHOICE[0] == "random":
        schedules.append(EngineSchedule("random", zlib.crc32(where.encode()), WATCHDOG_S))
    TALLY["programs"] += 1
    TALLY[f"kernel {kernel}"] += 1
    for schedule in schedules:
        emulated, inexact = alone.emulate(schedule)
        TALLY["runs"] += 1
        equal = all(emulated[k].tobytes() == simulated[k].tobytes() for k in emulated)
        TALLY["equal" if equal else "close" if inexact else "different"] += 1
        for k, got in emulated.items():
            here = f"{where}, operand {k}, emulator {schedule}"
            if not inexact:
                _same(got, simulated[k], here)
            elif not equal:
                rest = ~masks[k]
                assert (_bytes(got)[rest] == _bytes(simulated[k])[rest]).all(), f"{here}: undeclared write"
                touched = _elements(masks[k], got.dtype.itemsize)
                compare(got.reshape(-1)[touched], simulated[k].reshape(-1)[touched], near.get(k, 0.0), here)
    TALLY["ms"] += round(1000 * (time.perf_counter() - began))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _elements(mask: Array, size: int) -> Array:
    return np.asarray(mask.reshape(-1, size).any(1))


def _kept(before: Array, after: Array, mask: Array) -> Array:
    """The array after a run that wrote the bytes of a mask."""
    return np.where(mask, _bytes(after), _bytes(before)).view(before.dtype).reshape(before.shape)


def _same(got: Array, want: Array, where: str) -> None:
    wrong = _bytes(got) != _bytes(want)
    if not wrong.any():
        return
    at = int(np.argmax(wrong)) // got.dtype.itemsize
    a, b = got.reshape(-1)[at], want.reshape(-1)[at]
    elements = int(_elements(wrong, got.dtype.itemsize).sum())
    raise AssertionError(f"{where}: {elements} of {got.size} differ, first at {at}: {a!r}, want {b!r}")


def summary(total: Mapping[str, int]) -> str:
    """A tally in words."""
    counts = ", ".join(f"{total.get(name, 0)} {name}" for name in ("equal", "close", "different", "left out"))
    kernels = ", ".join(f"{n.split()[1]} {c}" for n, c in sorted(total.items()) if n.startswith("kernel "))
    seconds = total.get("ms", 0) / 1000
    programs, runs = total.get("programs", 0), total.get("runs", 0)
    return f"emulator: {programs} programs, {runs} runs: {counts}; {seconds:.0f} s ({kernels})"
