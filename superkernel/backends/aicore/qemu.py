"""The emulator executor: the same bytes as on the simulator, on the harts of `qemu-system-riscv64 -M virt`.

Model: `qemu_machine.Emulator` is the machine, `qemu_schedule.Schedule` says how a run is to go, `qemu_process` starts
and watches the emulator, `qemu_report` says what went wrong. The firmware (codegen/firmware) carries the engine
commands out. Here a compiled program is run: memory filled, launches, sub-operators without a kernel between them,
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.qemu_counts import Counting, HartCounts, plugin_path
from superkernel.backends.aicore.qemu_log import Logged, read_log
from superkernel.backends.aicore.qemu_machine import Emulator
from superkernel.backends.aicore.qemu_process import find_qemu
from superkernel.backends.aicore.qemu_schedule import AT_ONCE, EngineSchedule
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.firmware.image import Firmware, build_firmware
from superkernel.core import settings
from superkernel.core.errors import SimulationError
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines.model import Engine

Array = NDArray[Any]


@dataclass(frozen=True)
class QemuRun:
    """Engine commands that moved or computed something, per hart, all launches together; `inexact` of them all may
    differ from the simulator's in the last place (exp, ln). `orderings`: commands for order, per hart. `flags`: those
    between engines that the last launch set, per hart. `logs`, `counts`: per launch and hart, where asked for."""

    commands: tuple[int, ...]
    orderings: tuple[int, ...]
    inexact: int
    flags: tuple[tuple[tuple[Engine, Engine, int], ...], ...]
    logs: tuple[tuple[tuple[Logged, ...], ...], ...] = ()
    counts: tuple[tuple[HartCounts, ...], ...] = ()


@cache
def _firmware(target: AicoreTarget, _cache: str, commands: frozenset[str] | None) -> Firmware:
    return build_firmware(target, ObjectCache(settings.cache_directory()), commands)


def firmware_of(target: AicoreTarget, commands: frozenset[str] | None = None) -> Firmware:
    """The firmware of a target, made once per process and kept in the object cache; with those engine commands alone
    that are named."""
    return _firmware(target, str(settings.cache_directory()), commands)


class QemuExecutable:
    """A compiled program on the emulator. `io` tables are inputs, outputs, states, as on the host. `selective`: its
    firmware holds the engine commands that the program's kernels issue, and no others."""

    def __init__(self, program: SimExecutable, *, selective: bool = False) -> None:
        self.program = program
        issued = frozenset[str]().union(*program.image.commands.values()) if selective else None
        self.firmware = partial(firmware_of, program.target, issued)

    def run(
        self, io: Sequence[Array], schedule: EngineSchedule = AT_ONCE, *, log: bool = False, count: bool = False
    ) -> QemuRun:
        """One fused run: outputs and states are written in place; `log` keeps all commands, `count` counts instructions
        where the plugin for that can be loaded. Raises MachineError where there is no emulator."""
        program = self.program
        image, target = program.image, program.target
        names = [sub.name for sub in program.schedule.subops]
        find_qemu()
        with ExitStack() as stack:
            machine = stack.enter_context(Emulator(target, image.image, self.firmware(), names, log))
            counting = None
            if count and (plugin := plugin_path()) is not None:
                counting = stack.enter_context(Counting(image.image, target, machine.places.memory.harts, plugin))
                machine.arguments, machine.files = counting.arguments, (counting.file,)
            machine.forget(image.addresses.begin, image.addresses.end)
            program.fill(machine, io)
            harts = range(machine.places.memory.harts)
            totals, inexact = np.zeros((2, len(harts)), np.int64), 0
            logs, counts = [], []
            for number in range(image.launches):
                self._launch(machine, number, schedule)
                totals += [[machine.state_word(hart, n) for hart in harts] for n in ("commands", "orderings")]
                inexact += sum(machine.state_word(hart, "inexact") for hart in harts)
                if log:
                    logs.append(read_log(machine))
                if counting is not None:
                    counts.append(counting.take())
                if number < len(image.between) and (call := image.between[number]) is not None:
                    program.host_call(machine, call)
            program.collect(machine, io)
            flags = tuple(tuple(machine.flags_used(hart)) for hart in harts)
        commands, orderings = (tuple(row) for row in totals.tolist())
        return QemuRun(commands, orderings, inexact, flags, tuple(logs), tuple(counts))

    def _launch(self, machine: Emulator, number: int, schedule: EngineSchedule) -> None:
        try:
            machine.launch(number, schedule)
        except SimulationError as error:
            if error.kind == "program_failed":
                self.program.report_data_error(machine, error)
            raise
