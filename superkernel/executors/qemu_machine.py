"""The emulated machine: its memory, with a program and the firmware in it, and its launches.

Model: the machine's memory is an anonymous file that this process maps: program, firmware, constants, unit ranges and
inputs are written into it, outputs and states read out of it. Each launch is one start of the emulator; memory stays,
local memories, flags and queues start afresh. Local memories start as bytes 0xff (not-a-numbers), so that what nobody
loaded shows.

A launch ends by the program's store to the exit device, by a failure that the firmware reports, by this process when it
sees that all harts wait or have ended and no condition holds (`is_stuck`: nothing can happen any more, however long one
waits), or by the watchdog. Left over commands and flags at the end are an error, as on the simulator.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.aicore.boot import DONE, EXIT_DATA, EXIT_SUCCESS, EXIT_TRAP, FIRMWARE
from superkernel.codegen.aicore.linking import Image
from superkernel.codegen.aicore.memory_map import CAUSE_WORD, LAUNCH_WORD, MARKER_WORD
from superkernel.codegen.firmware.image import Firmware
from superkernel.codegen.firmware.memory import (
    CONFIG,
    ENGINES,
    FAILURE_EXIT,
    FLAG_IDS,
    LOG_BYTES,
    MODES,
    STATE,
    TIMINGS,
    USED,
    WAIT_CROSS,
    WAIT_MEMORY,
)
from superkernel.errors import MachineError, SimulationError, WatchdogError
from superkernel.executors import qemu_report
from superkernel.executors.qemu_process import Ended, find_qemu, start
from superkernel.executors.qemu_schedule import AT_ONCE, WATCHDOG_S, Schedule
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines.model import ENGINES_OF, CoreType, Engine, Local

_BIASES = (0, 0, 24, 128, 240, 256)  # chances in 256 of an engine's first command to leave, timing `random`
_ALWAYS = 256
_FORWARDS = (Engine.MTE2, Engine.MTE1, Engine.M, Engine.V, Engine.FIX, Engine.MTE3)  # the way of the data
_UNWRITTEN = 0xFF
_TICKS_PER_US = 10
_WATCHED: Final = ("waiting", "wait_kind", "wait_what", "wait_value", "orderings", "commands")


@dataclass
class Emulator:
    """The machine: memory with a program and the firmware in it, and its launches.

    `names` are the sub-operators' names, for reports; `log` keeps every command (`qemu_log`). Use as a context manager,
    or call `close`.
    """

    target: AicoreTarget
    program: Image | None
    firmware: Firmware
    names: Sequence[str] = ()
    log: bool = False
    arguments: tuple[str, ...] = ()
    files: tuple[int, ...] = ()
    _map: mmap.mmap = field(init=False, repr=False)
    _file: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.places = self.firmware.places
        size = self.places.ram_bytes
        try:
            self._file = os.memfd_create("superkernel-qemu", os.MFD_CLOEXEC)
            os.ftruncate(self._file, size)
            self._map = mmap.mmap(self._file, size)
        except OSError as error:
            raise MachineError(f"no memory for the emulated machine: {error}", expected=f"{size} bytes") from error
        for image in (self.firmware.image, *((self.program,) if self.program else ())):
            for segment in image.segments:
                self.write(segment.address, segment.data)

    def __enter__(self) -> Emulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()
        os.close(self._file)

    # Memory -----------------------------------------------------------------------------------------------------------

    def write(self, address: int, data: bytes) -> None:
        """Replace bytes of memory."""
        at = address - self.places.memory.ram_address
        assert 0 <= at <= len(self._map) - len(data), hex(address)
        self._map[at : at + len(data)] = data

    def read(self, address: int, count: int) -> bytes:
        """Bytes of memory."""
        at = address - self.places.memory.ram_address
        assert 0 <= at <= len(self._map) - count, hex(address)
        return self._map[at : at + count]

    def first_unwritten(self, address: int, count: int) -> int | None:
        """None: an emulated machine keeps no account of what was written."""
        return None

    def forget(self, begin: int, end: int) -> None:
        """Fill memory with what no program wrote."""
        self.write(begin, bytes([_UNWRITTEN]) * (end - begin))

    def word(self, address: int) -> int:
        """An 8-byte word."""
        value: int = struct.unpack("<Q", self.read(address, 8))[0]
        return value

    def write_word(self, address: int, value: int) -> None:
        self.write(address, struct.pack("<Q", value & (1 << 64) - 1))

    def state_word(self, hart: int, name: str) -> int:
        """A word that the firmware keeps of a hart."""
        return self.word(self.places.state(hart) + STATE[name])

    # Launching --------------------------------------------------------------------------------------------------------

    def launch(self, number: int = 0, schedule: Schedule = AT_ONCE) -> None:
        """Run the program's launch `number`. Raises SimulationError with what the firmware found, WatchdogError."""
        assert self.program is not None
        self._prepare(schedule)
        memory = self.places.memory
        for hart in range(memory.harts):
            for word in (MARKER_WORD, CAUSE_WORD):
                self.write_word(memory.private(hart) + 8 * word, 0)
            self.write_word(memory.private(hart) + 8 * LAUNCH_WORD, number)
        self.write_word(self.program.symbol(DONE).address, 0)
        self._configure(
            entry=self.program.entry,
            firmware_word=self.program.symbol(FIRMWARE).address,
            **_faulty(schedule),
        )
        self._finish(self._start(memory.harts, schedule.watchdog_s), schedule)

    def execute(self, table: int, count: int, watchdog_s: float = WATCHDOG_S) -> None:
        """Carry out `count` single commands of a table in memory (queues.py: `fw_bench`) on hart 0, which has all
        local memories there are: those of hart 0 and the unified buffer of the first vector core."""
        schedule = Schedule(watchdog_s=watchdog_s)
        self._configure(bench_table=table, bench_count=count)
        self._finish(self._start(1, watchdog_s), schedule)

    def _prepare(self, schedule: Schedule) -> None:
        """Nobody has signalled, queues are empty, local memories hold what no program wrote."""
        places = self.places
        self.write(places.shared, bytes(places.shared_bytes))
        for hart in range(places.memory.harts):
            self.write(places.state(hart), bytes(places.state_bytes))
            for local, address in places.locals[hart].items():
                self.write(address, bytes([_UNWRITTEN]) * places.size_of(local))
            self._describe(hart, schedule)

    def _describe(self, hart: int, schedule: Schedule) -> None:
        """Tell a hart who it is."""
        places = self.places
        kind = places.core_type(hart)
        draw = random.Random(f"{schedule.seed} {hart}")
        eager = {engine: _ALWAYS for who, engine in schedule.eager if who == hart}
        timing = "random" if eager else schedule.timing
        words = {
            "hart": hart,
            "stack": places.state(hart) + places.state_bytes,
            "is_cube": int(kind is CoreType.AIC),
            "engines": sum(1 << e.value for e in ENGINES_OF[kind]),
            "timing": TIMINGS.index(timing),
            "patience": _TICKS_PER_US * schedule.patience_us * (hart in schedule.patient),
            "pause": _TICKS_PER_US * schedule.pause_us * (hart in schedule.slow),
            "random": draw.getrandbits(63) | 1,
            **{f"bias{engine.value}": chance for engine, chance in (eager or _chances(draw)).items()},
            **{local.value: address for local, address in places.locals[hart].items()},
        }
        if self.log:
            words |= {"log": places.log(hart), "log_end": places.log(hart) + LOG_BYTES}
        if kind is CoreType.AIC:
            step = places.scratch_step
            words["scratch"] = places.scratch + hart * step
        for name, value in words.items():
            self.write_word(places.state(hart) + STATE[name], value)

    def prepare_bench(self) -> dict[Local, int]:
        """Hart 0 with every kind of local memory; their addresses."""
        self._prepare(Schedule())
        locals_ = dict(self.places.locals[0])
        locals_ |= self.places.locals[self.target.device.cube_cores]
        self.write_word(self.places.state(0) + STATE["ub"], locals_[Local.UB])
        return locals_

    def _configure(self, **words: int) -> None:
        device, places = self.target.device, self.places
        known = {
            "states": places.states,
            "state_stride": places.state_bytes,
            "harts": places.memory.harts,
            "cores": self.target.cores,
            "cubes": device.cube_cores,
            "vectors": device.vector_cores,
            "group_cubes": device.cube_cores_per_group,
            "group_vectors": device.vector_cores_per_group,
            "shared": places.shared,
            **words,
        }
        for name, at in CONFIG.items():
            self.write_word(places.config + at, known.get(name, 0))

    def _start(self, harts: int, watchdog_s: float) -> Ended:
        size = f"{self.places.ram_bytes >> 10}K"
        backend = f"memory-backend-file,id=ram0,size={size},mem-path=/proc/self/fd/{self._file},share=on"
        words = [
            "-M", "virt,memory-backend=ram0", "-object", backend, "-m", size, "-cpu", "rv64",
            "-smp", str(harts), "-accel", "tcg,thread=multi", "-bios", "none", "-display", "none", "-serial", "none",
            "-monitor", "none", "-nodefaults", *self.arguments,
        ]  # fmt: skip
        return start(words, [self._file, *self.files], watchdog_s, self.is_stuck)

    # Cross-core flags -------------------------------------------------------------------------------------------------

    def counts(self, hart: int) -> NDArray[np.int64]:
        """A core's counts of all cross-core flags, from what all cores have counted."""
        device, cubes = self.target.device, self.target.device.cube_cores
        shape = (MODES + 2, self.target.cores, FLAG_IDS)
        counters = np.frombuffer(self.read(self.places.shared, int(np.prod(shape)) * 8), "<i8").reshape(shape)
        if hart < cubes:
            of_type = counters[0, :cubes].min(0)
            first = cubes + hart // device.cube_cores_per_group * device.vector_cores_per_group
            of_group = counters[1, first : first + device.vector_cores_per_group].min(0)
        else:
            of_type = counters[0, cubes:].min(0)
            first = (hart - cubes) // device.vector_cores_per_group * device.cube_cores_per_group
            of_group = counters[1, first : first + device.cube_cores_per_group].sum(0)
        signalled = of_type + of_group + counters[2].min(0) + counters[MODES, hart]
        return np.asarray(signalled - counters[MODES + 1, hart], np.int64)

    def is_stuck(self) -> bool:
        """Whether every hart waits or has ended, and no condition holds: then none ever goes on. A hart that waits
        changes nothing that others see, so that two equal looks, around the conditions, are one."""
        if self.program is None:
            return False
        before = self._look()
        waiting = {hart: row for hart, row in enumerate(before) if row[0] == 1}
        ended = self.word(self.program.symbol(DONE).address)
        shared = [self.word(self.places.config + CONFIG[name]) for name in ("sdma_taken", "sdma_put")]
        if not waiting or len(waiting) + ended < len(before) or shared[0] != shared[1]:
            return False
        for hart, (_, kind, what, value, *_) in waiting.items():
            if kind not in (WAIT_CROSS, WAIT_MEMORY):
                return False
            if self.counts(hart)[what] > 0 if kind == WAIT_CROSS else self.word(what) >= value:
                return False
        return before == self._look()

    def _look(self) -> list[tuple[int, ...]]:
        return [tuple(self.state_word(h, n) for n in _WATCHED) for h in range(self.places.memory.harts)]

    # Ends -------------------------------------------------------------------------------------------------------------

    def _finish(self, ended: Ended, schedule: Schedule) -> None:
        if ended.status is None:
            raise WatchdogError(violations=qemu_report.stuck(self, schedule, forever=ended.stuck))
        if ended.status == FAILURE_EXIT and self.word(self.places.config + CONFIG["failure"]):
            raise qemu_report.failure(self)
        if ended.status == EXIT_DATA >> 16:
            found = "data out of the range of a tiling"
            raise SimulationError("the program says that it failed", kind="program_failed", found=found)
        if ended.status == EXIT_TRAP >> 16:
            raise SimulationError("an exception in the program", kind="trap", location="the emulated machine")
        if ended.status:
            raise MachineError(
                "the emulator failed", location=find_qemu(), expected=f"exit word {EXIT_SUCCESS:#x}",
                found=f"exit status {ended.status}: {ended.said.strip()}",
            )  # fmt: skip
        left = [v for hart in range(self.places.memory.harts) for v in qemu_report.left_over(self, hart)]
        if left:
            raise SimulationError(kind="leftover_flag" if "flag" in left[0].message else "undrained", violations=left)

    def flags_used(self, hart: int) -> list[tuple[Engine, Engine, int]]:
        """The flags between engines that the hart's program sets: setter, waiter, number."""
        used = self.read(self.places.state(hart) + USED, ENGINES * ENGINES * FLAG_IDS)
        places = np.flatnonzero(np.frombuffer(used, np.uint8)).tolist()
        return [(Engine(p // FLAG_IDS // ENGINES), Engine(p // FLAG_IDS % ENGINES), p % FLAG_IDS) for p in places]


def _faulty(schedule: Schedule) -> dict[str, int]:
    """The words of the configuration that say what is wrong on purpose. Numbers of commands count from 1 there."""
    fault = schedule.fault
    if fault is None:
        return {}
    words = {"skip_hart": fault.hart + 1}
    words |= dict(zip(("skip_number", "skip_partner"), (n + 1 for n in fault.leave_out), strict=False))
    if fault.unwaited is not None:
        words["pass_number"] = fault.unwaited + 1
    if fault.forget:
        setter, waiter, flag = fault.forget
        words["skip_flag"] = (setter.value * ENGINES + waiter.value) * FLAG_IDS + flag + 1
    return words


def _chances(draw: random.Random) -> dict[Engine, int]:
    """How eager each engine of a hart is, timing `random`. For one half of the harts those that fill memory are at
    least as eager as those that empty it, which is what a forgotten wait for a free slot needs to show."""
    chances = [draw.choice(_BIASES) for _ in _FORWARDS]
    if draw.random() < 0.5:
        chances.sort(reverse=True)
    return {**dict(zip(_FORWARDS, chances, strict=True)), Engine.SDMA: draw.choice(_BIASES[:-1])}
