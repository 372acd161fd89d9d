"""The emulator executor: the same bytes as on the simulator, on the harts of `qemu-system-riscv64 -M virt`.

Model: the machine's memory is an anonymous file that this process maps: program, firmware, constants, unit ranges and
inputs are written into it, outputs and states read out of it. Each launch is one start of the emulator; memory stays,
local memories, flags and queues start afresh. The firmware (codegen/firmware) carries the engine commands out, in one
of three timings. Local memories start as bytes 0xff (not-a-numbers), so that what nobody loaded shows.

A launch ends by the program's store to the exit device, by a failure that the firmware reports, or by the watchdog,
which ends the emulator and says of every hart where it is and what it waits for. Left over commands and flags at the
end are an error, as on the simulator.
"""

from __future__ import annotations

import bisect
import mmap
import os
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from superkernel import settings
from superkernel.codegen.aicore.boot import DONE, EXIT_SUCCESS, EXIT_TRAP, FIRMWARE
from superkernel.codegen.aicore.linking import Image
from superkernel.codegen.aicore.memory_map import CAUSE_WORD, LAUNCH_WORD, MARKER_WORD
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.firmware.image import Firmware, build_firmware
from superkernel.codegen.firmware.memory import (
    CONFIG,
    ENGINES,
    FAIL_COMMAND,
    FAIL_CROSS,
    FAIL_DEADLOCK,
    FAIL_ENGINE,
    FAIL_FLAG,
    FAILURE_EXIT,
    FAILURES,
    FLAG_IDS,
    FLAGS,
    QUEUE_ENDS,
    QUEUES,
    RECORD_BYTES,
    STATE,
    TIMINGS,
    USED,
    WAIT_CROSS,
    WAIT_DRAIN,
    WAIT_FLAG,
    WAIT_MEMORY,
    WAIT_QUEUE,
)
from superkernel.errors import InputError, MachineError, SimulationError, SuperKernelError, Violation, WatchdogError
from superkernel.executors.sim import SimExecutable
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import CoreType, Engine, decode
from superkernel.target.engines.layout import operand_words
from superkernel.target.engines.model import ENGINES_OF, Local
from superkernel.target.engines.table import by_opcode

Array = NDArray[Any]
Timing = Literal["now", "late", "random"]

PROGRAM: Final = "qemu-system-riscv64"
VERSION_MIN: Final = (7, 0)
WATCHDOG_S: Final = 120.0
_PHASES = ("not begun", "waiting", "in its body", "behind it")
_BIASES = (0, 0, 24, 128, 240, 256)  # chances in 256 of an engine's first command to leave, timing `random`
_FORWARDS = (Engine.MTE2, Engine.MTE1, Engine.M, Engine.V, Engine.FIX, Engine.MTE3)  # the way of the data
_UNWRITTEN = 0xFF
_NOTHING = (1 << 64) - 1


@cache
def find_qemu() -> str:
    """The emulator's path. Raises MachineError where there is none, or one that is too old."""
    hint = "install it: on Debian and Ubuntu the package qemu-system-misc"
    path = shutil.which(PROGRAM)
    if path is None:
        raise MachineError("the emulator is not installed", location="PATH", expected=PROGRAM, hint=hint)
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"the emulator does not start: {error}", location=path, hint=hint) from error
    found = re.search(r"version (\d+)\.(\d+)", said.stdout)
    if said.returncode or found is None:
        raise MachineError(
            "the emulator does not tell its version", location=path, found=said.stderr.strip(), hint=hint
        )
    if (int(found[1]), int(found[2])) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        raise MachineError("the emulator is too old", location=path, expected=f"{wanted} or newer", found=found[0])
    return path


@dataclass(frozen=True)
class Schedule:
    """When commands leave their queues; `seed` draws the chances of `random`. `watchdog_s`: wall-clock of a launch.

    For tests of what tests notice: `leave_out` (core, n) drops the core's n-th command that sets or takes a flag (from
    0, in each launch), `forget` (core, setter, waiter, flag) all commands of a flag between two engines."""

    timing: Timing = "now"
    seed: int = 0
    watchdog_s: float = WATCHDOG_S
    leave_out: tuple[int, int] | None = None
    forget: tuple[int, Engine, Engine, int] | None = None

    def __post_init__(self) -> None:
        if self.timing not in TIMINGS:
            raise InputError("no such timing", expected=", ".join(TIMINGS), found=repr(self.timing))
        if not 0 < self.watchdog_s < 1e6 or not 0 <= self.seed < 1 << 63:
            raise InputError(
                "out of range", location="watchdog_s, seed", expected="above 0; from 0 to 2^63 - 1",
                found=f"{self.watchdog_s}, {self.seed}",
            )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.timing}:{self.seed}" if self.timing == "random" else self.timing


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


@dataclass
class Emulator:
    """The machine: memory with a program and the firmware in it, and its launches.

    `names` are the sub-operators' names, for reports. Use as a context manager, or call `close`.
    """

    target: AicoreTarget
    program: Image | None
    firmware: Firmware
    names: Sequence[str] = ()
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

    def launch(self, number: int = 0, schedule: Schedule = Schedule()) -> None:
        """Run the program's launch `number`. Raises SimulationError with what the firmware found, WatchdogError."""
        assert self.program is not None
        self._prepare(schedule)
        memory = self.places.memory
        for hart in range(memory.harts):
            for word in (MARKER_WORD, CAUSE_WORD):
                self.write_word(memory.private(hart) + 8 * word, 0)
            self.write_word(memory.private(hart) + 8 * LAUNCH_WORD, number)
        self.write_word(self.program.symbol(DONE).address, 0)
        hart, skipped = schedule.leave_out or (-1, _NOTHING)
        forgotten = 0
        if schedule.forget:
            hart, setter, waiter, flag = schedule.forget
            forgotten = (setter.value * ENGINES + waiter.value) * FLAG_IDS + flag + 1
        self._configure(
            entry=self.program.entry,
            firmware_word=self.program.symbol(FIRMWARE).address,
            skip_hart=hart + 1,
            skip_number=skipped,
            skip_flag=forgotten,
        )
        self._finish(*self._start(memory.harts, schedule.watchdog_s), schedule)

    def execute(self, table: int, count: int, watchdog_s: float = WATCHDOG_S) -> None:
        """Carry out `count` single commands of a table in memory (queues.py: `fw_bench`) on hart 0, which has all
        local memories there are: those of hart 0 and the unified buffer of the first vector core."""
        schedule = Schedule(watchdog_s=watchdog_s)
        self._configure(bench_table=table, bench_count=count)
        self._finish(*self._start(1, watchdog_s), schedule)

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
        words = {
            "hart": hart,
            "stack": places.state(hart) + places.state_bytes,
            "is_cube": int(kind is CoreType.AIC),
            "engines": sum(1 << e.value for e in ENGINES_OF[kind]),
            "random": draw.getrandbits(63) | 1,
            **{f"bias{engine.value}": chance for engine, chance in _chances(draw).items()},
            **{local.value: address for local, address in places.locals[hart].items()},
        }
        if kind is CoreType.AIC:
            step = places.end - places.scratch
            words["scratch"] = places.scratch + hart * (step // self.target.device.cube_cores)
        for name, value in words.items():
            self.write_word(places.state(hart) + STATE[name], value)
        self.write_word(places.config + CONFIG["timing"], TIMINGS.index(schedule.timing))

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
            "timing": self.word(places.config + CONFIG["timing"]),
            **words,
        }
        for name, at in CONFIG.items():
            self.write_word(places.config + at, known.get(name, 0))

    def _start(self, harts: int, watchdog_s: float) -> tuple[int | None, str]:
        """Run the emulator: its exit status (None: the watchdog ended it) and what it said."""
        size = f"{self.places.ram_bytes >> 10}K"
        backend = f"memory-backend-file,id=ram0,size={size},mem-path=/proc/self/fd/{self._file},share=on"
        words = [
            find_qemu(), "-M", "virt,memory-backend=ram0", "-object", backend, "-m", size, "-cpu", "rv64",
            "-smp", str(harts), "-accel", "tcg,thread=multi", "-bios", "none", "-display", "none", "-serial", "none",
            "-monitor", "none", "-nodefaults",
        ]  # fmt: skip
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                pass_fds=[self._file],
            )  # fmt: skip
        except OSError as error:
            raise MachineError(f"the emulator does not start: {error}", location=words[0]) from error
        try:
            _, said = process.communicate(timeout=watchdog_s)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    # Ends -------------------------------------------------------------------------------------------------------------

    def _finish(self, status: int | None, said: str, schedule: Schedule) -> None:
        if status is None:
            raise WatchdogError(violations=self._stuck(schedule))
        if status == FAILURE_EXIT and self.word(self.places.config + CONFIG["failure"]):
            raise self._failure()
        if status == EXIT_TRAP >> 16:
            raise SimulationError("an exception in the program", kind="trap", location="the emulated machine")
        if status:
            raise MachineError(
                "the emulator failed", location=find_qemu(), expected=f"exit word {EXIT_SUCCESS:#x}",
                found=f"exit status {status}: {said.strip()}",
            )  # fmt: skip
        left = [v for hart in range(self.places.memory.harts) for v in self._left_over(hart)]
        if left:
            raise SimulationError(kind="leftover_flag" if "flag" in left[0].message else "undrained", violations=left)

    def flags_used(self, hart: int) -> list[tuple[Engine, Engine, int]]:
        """The flags between engines that the hart's program sets: setter, waiter, number."""
        used = self.read(self.places.state(hart) + USED, ENGINES * ENGINES * FLAG_IDS)
        places = np.flatnonzero(np.frombuffer(used, np.uint8)).tolist()
        return [(Engine(p // FLAG_IDS // ENGINES), Engine(p // FLAG_IDS % ENGINES), p % FLAG_IDS) for p in places]

    def _left_over(self, hart: int) -> list[Violation]:
        """Commands and flags that a program must not leave behind."""
        found = [
            Violation("the program ends while an engine has commands", f"{self._hart(hart)}, {e.title}", found=text)
            for e in Engine
            if (text := self._queue(hart, e))
        ]
        flags = self.read(self.places.state(hart) + FLAGS, ENGINES * ENGINES * FLAG_IDS)
        for at in np.flatnonzero(np.frombuffer(flags, np.uint8)).tolist():
            setter, waiter = (Engine(at // FLAG_IDS // ENGINES), Engine(at // FLAG_IDS % ENGINES))
            place = f"{self._hart(hart)}, flag ({setter.title}, {waiter.title}, {at % FLAG_IDS})"
            found.append(Violation("the program ends while a flag is set", place))
        return found

    def _hart(self, hart: int) -> str:
        return f"core {hart} ({self.places.core_type(hart).value})"

    def _queue(self, hart: int, engine: Engine) -> str:
        """What an engine still has to do: a number and the first command; empty where nothing."""
        state = self.places.state(hart)
        taken, put = struct.unpack("<QQ", self.read(state + QUEUE_ENDS + 16 * engine.value, 16))
        if taken == put:
            return ""
        at = state + QUEUES + (engine.value * self.places.depth + taken % self.places.depth) * RECORD_BYTES
        words = struct.unpack(f"<{RECORD_BYTES // 8}Q", self.read(at, RECORD_BYTES))
        return f"{put - taken} commands, first `{_command(words, engine)}`"

    def _place(self, hart: int) -> str:
        """A hart's sub-operator, phase and pc."""
        marker = self.word(self.places.memory.private(hart) + 8 * MARKER_WORD)
        subop = marker // 4
        name = f" {self.names[subop]!r}" if subop < len(self.names) else ""
        pc = self.state_word(hart, "mepc")
        return f"sub-operator {subop}{name} ({_PHASES[marker % 4]}), pc {pc:#x}{self._symbol(pc)}"

    def _symbol(self, pc: int) -> str:
        image = self.program
        if image is None:
            return ""
        functions = sorted((s.address, s.name, s.size) for s in image.symbols if s.kind == "function")
        at = bisect.bisect_right(functions, (pc, chr(0x10FFFF), 0)) - 1
        if at < 0 or pc >= functions[at][0] + functions[at][2]:
            return ""
        return f" <{functions[at][1]}+{pc - functions[at][0]:#x}>"

    def _wait(self, hart: int) -> str:
        kind, what, value = (self.state_word(hart, n) for n in ("wait_kind", "wait_what", "wait_value"))
        last = self.state_word(hart, "last_flag")
        texts = {
            WAIT_CROSS: f"waits for cross-core flag {what}",
            WAIT_MEMORY: f"waits for the word at {what:#x} to be at least {value}",
            WAIT_FLAG: f"waits for flag {value} of {_engine(what)}",
            WAIT_DRAIN: "drains its engines",
            WAIT_QUEUE: f"waits for room in the queue of {_engine(what)}",
        }
        return texts.get(kind, f"waits for nothing; last cross-core flag waited for: {last}")

    def _stuck(self, schedule: Schedule) -> list[Violation]:
        """What every hart is at."""
        found = [Violation(f"the emulated kernel did not end within {schedule.watchdog_s:g} s, timing {schedule}")]
        for hart in range(self.places.memory.harts):
            queues = [f"{e.title}: {text}" for e in Engine if (text := self._queue(hart, e))]
            place = f"{self._hart(hart)}, {self._place(hart)}"
            found.append(Violation(self._wait(hart), place, found="; ".join(queues)))
        return found

    def _failure(self) -> SimulationError:
        config = self.places.config
        number, hart, a, b = (
            self.word(config + CONFIG[n]) for n in ("failure", "failed_hart", "failure_a", "failure_b")
        )
        kind, message = FAILURES.get(number, ("program_failed", f"failure {number}"))
        found = f"{a:#x}, {b:#x}"
        if number == FAIL_FLAG:
            found = f"flag ({_engine(a)}, {_engine(b >> 8)}, {b & 0xFF})"
        elif number == FAIL_CROSS:
            found = f"flag {a}"
        elif number == FAIL_DEADLOCK:
            queues = [f"{e.title}: {text}" for e in Engine if (text := self._queue(hart, e))]
            found = f"{self._wait(hart)}; " + "; ".join(queues)
        elif number == FAIL_COMMAND:
            found = f"doorbell {a:#x}"
        elif number == FAIL_ENGINE:
            found = f"{_engine(a)}, doorbell {b:#x}"
        return SimulationError(message, kind=kind, location=f"{self._hart(hart)}, {self._place(hart)}", found=found)


def _chances(draw: random.Random) -> dict[Engine, int]:
    """How eager each engine of a hart is, timing `random`. For one half of the harts those that fill memory are at
    least as eager as those that empty it, which is what a forgotten wait for a free slot needs to show."""
    chances = [draw.choice(_BIASES) for _ in _FORWARDS]
    if draw.random() < 0.5:
        chances.sort(reverse=True)
    return dict(zip(_FORWARDS, chances, strict=True))


def _engine(number: int) -> str:
    return Engine(number).title if number < ENGINES else str(number)


def _command(words: Sequence[int], engine: Engine) -> str:
    """A queued command as text."""
    spec = by_opcode().get(words[0] & 0xFF)
    if spec is None:
        return f"{words[0]:#x}"
    try:
        return str(decode((*words[1 : 1 + operand_words(spec)], words[0]), engine))
    except SuperKernelError:
        return f"{spec.name} {words[0]:#x}"


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

    def run(self, io: Sequence[Array], schedule: Schedule = Schedule()) -> QemuRun:
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


__all__ = ["Emulator", "QemuExecutable", "QemuRun", "Schedule", "find_qemu", "firmware_of"]
