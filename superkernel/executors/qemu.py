"""The emulator executor: the same bytes as on the simulator, on the harts of `qemu-system-riscv64 -M virt`.

Model: `qemu_machine.Emulator` is the machine, `qemu_schedule.Schedule` says how a run is to go, `qemu_process` starts
and watches the emulator, `qemu_report` says what went wrong. The firmware (codegen/firmware) carries the engine
commands out. Here a compiled program is run: memory filled, launches, sub-operators without a kernel between them,
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel import settings
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.firmware.image import Firmware, build_firmware
from superkernel.executors.qemu_machine import Emulator
from superkernel.executors.qemu_process import PROGRAM, find_qemu
from superkernel.executors.qemu_schedule import AT_ONCE, Fault, Schedule, Timing
from superkernel.executors.sim import SimExecutable
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines.model import Engine

Array = NDArray[Any]


@dataclass(frozen=True)
class QemuRun:
    """Engine commands that moved or computed something, per hart, all launches together; `inexact` of them all may
    differ from the simulator's in the last place (exp, ln). `orderings`: commands that set or take flags, per hart."""

    commands: tuple[int, ...]
    orderings: tuple[int, ...]
    inexact: int
    flags: tuple[
        tuple[tuple[Engine, Engine, int], ...], ...
    ]  # those between engines that the last launch set, per hart


@cache
def _firmware(target: AicoreTarget, _cache: str) -> Firmware:
    return build_firmware(target, ObjectCache(settings.cache_directory()))


def firmware_of(target: AicoreTarget) -> Firmware:
    """The firmware of a target, made once per process and kept in the object cache."""
    return _firmware(target, str(settings.cache_directory()))


class QemuExecutable:
    """A compiled program on the emulator. `io` tables are inputs, outputs, states, as on the host."""

    def __init__(self, program: SimExecutable) -> None:
        self.program = program

    def run(self, io: Sequence[Array], schedule: Schedule = AT_ONCE) -> QemuRun:
        """One fused run: outputs and states are written in place. Raises MachineError where there is no emulator."""
        program = self.program
        image, target = program.image, program.target
        names = [sub.name for sub in program.schedule.subops]
        find_qemu()
        with Emulator(target, image.image, firmware_of(target), names) as machine:
            machine.forget(image.addresses.begin, image.addresses.end)
            program.fill(machine, io)
            harts = range(machine.places.memory.harts)
            counts, inexact = np.zeros((2, len(harts)), np.int64), 0
            for number in range(image.launches):
                machine.launch(number, schedule)
                counts += [[machine.state_word(hart, n) for hart in harts] for n in ("commands", "orderings")]
                inexact += sum(machine.state_word(hart, "inexact") for hart in harts)
                if number < len(image.between) and (call := image.between[number]) is not None:
                    program.host_call(machine, call)
            program.collect(machine, io)
            flags = tuple(tuple(machine.flags_used(hart)) for hart in harts)
        return QemuRun(tuple(counts[0].tolist()), tuple(counts[1].tolist()), inexact, flags)


__all__ = [
    "PROGRAM", "Emulator", "Fault", "QemuExecutable", "QemuRun", "Schedule", "Timing", "find_qemu", "firmware_of",
]  # fmt: skip
