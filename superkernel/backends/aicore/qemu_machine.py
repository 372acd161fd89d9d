"""The emulated machine and its launches.

Model: each launch is one start of the emulator; memory (`qemu_memory`) stays, local memories, flags and queues start
afresh. Local memories start as bytes 0xff (not-a-numbers), so that what nobody loaded shows.

A launch ends by the program's store to the exit device, by a failure that the firmware reports, by this process when it
sees that all harts wait or have ended and no condition holds (`is_stuck`: nothing can happen any more, however long one
waits), or by the watchdog. Left over commands and flags at the end are an error, as on the simulator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from superkernel.backends.aicore import qemu_report
from superkernel.backends.aicore.qemu_memory import UNWRITTEN, EmulatedMemory
from superkernel.backends.aicore.qemu_process import Ended, find_qemu, start
from superkernel.backends.aicore.qemu_schedule import AT_ONCE, WATCHDOG_S, EngineSchedule
from superkernel.codegen.aicore.boot import DONE, EXIT_DATA, EXIT_SUCCESS, EXIT_TRAP, FIRMWARE
from superkernel.codegen.aicore.memory_map import CAUSE_WORD, LAUNCH_WORD, MARKER_WORD
from superkernel.codegen.firmware.memory import CONFIG, ENGINES, FAILURE_EXIT, FLAG_IDS, LOG_BYTES, STATE, TIMINGS, Wait
from superkernel.core.errors import MachineError, SimulationError, WatchdogError
from superkernel.target.engines.model import ENGINES_OF, CoreType, Engine, Local

_BIASES = (0, 0, 24, 128, 240, 256)  # chances in 256 of an engine's first command to leave, timing `random`
_ALWAYS = 256
_FORWARDS = (Engine.MTE2, Engine.MTE1, Engine.M, Engine.V, Engine.FIX, Engine.MTE3)  # the way of the data
_TICKS_PER_US = 10
_WATCHED: Final = ("waiting", "wait_kind", "wait_what", "wait_value", "orderings", "commands")


@dataclass
class Emulator(EmulatedMemory):
    """The machine: memory with a program and the firmware in it, and its launches.

    `log` keeps every command (`qemu_log`); `arguments`, `files`: what else the emulator is started with. Use as a
    context manager, or call `close`.
    """

    log: bool = False
    arguments: tuple[str, ...] = ()
    files: tuple[int, ...] = ()

    # Launching --------------------------------------------------------------------------------------------------------

    def launch(self, number: int = 0, schedule: EngineSchedule = AT_ONCE) -> None:
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
        schedule = EngineSchedule(watchdog_s=watchdog_s)
        self._configure(bench_table=table, bench_count=count)
        self._finish(self._start(1, watchdog_s), schedule)

    def _prepare(self, schedule: EngineSchedule) -> None:
        """Nobody has signalled, queues are empty, local memories hold what no program wrote."""
        places = self.places
        self.write(places.shared, bytes(places.shared_bytes))
        for hart in range(places.memory.harts):
            self.write(places.state(hart), bytes(places.state_bytes))
            for local, address in places.locals[hart].items():
                self.write(address, bytes([UNWRITTEN]) * places.size_of(local))
            self._describe(hart, schedule)

    def _describe(self, hart: int, schedule: EngineSchedule) -> None:
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
        self._prepare(EngineSchedule())
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
            if kind not in (Wait.CROSS, Wait.MEMORY):
                return False
            if self.counts(hart)[what] > 0 if kind == Wait.CROSS else self.word(what) >= value:
                return False
        return before == self._look()

    def _look(self) -> list[tuple[int, ...]]:
        return [tuple(self.state_word(h, n) for n in _WATCHED) for h in range(self.places.memory.harts)]

    # Ends -------------------------------------------------------------------------------------------------------------

    def _finish(self, ended: Ended, schedule: EngineSchedule) -> None:
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


def _faulty(schedule: EngineSchedule) -> dict[str, int]:
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
