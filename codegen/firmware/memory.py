"""Where the firmware and everything it keeps lie in an emulator's memory.

    ram_address      code and constants of the firmware; its last page is the *configuration*      FIRMWARE_BYTES
    ...              the accelerator's global memory, as on the simulator
    ram end          shared counters of the cross-core flags, SDMA's queue, a *state* per hart, local memories, scratch
                     memories of the cube cores, a log per hart
    top              the emulator's device tree

Model: an emulator gets more memory than the target has, so that nothing the firmware keeps takes room from the model.
The emulator's device tree lies at the top of its memory or at the end of the map's window, whatever is lower: what the
firmware keeps lies wholly ahead of it or wholly behind it.
The configuration is written by the host ahead of the start; so are the words of a state that say who the hart is.
A state begins with the frame of the last trap (x registers, f registers), then named words, the windows of the
register page, heads and tails of the queues, the flags between engines, the queues, and the stack. A log has a record
per doorbell, in the order of the program: when the command began and ended in an order over all harts (0: not yet), its
engine, the progress marker, the pc, how many commands for order came before it and itself, doorbell and operand words.

Invariant: nothing here depends on a program; the same firmware object serves every program of a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

from superkernel.codegen.aicore.memory_map import FIRMWARE_BYTES, TOP_BYTES, WINDOW_BYTES, MemoryMap
from superkernel.core.errors import UnsupportedError, Violation, raise_all
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines.layout import WINDOW_WORDS
from superkernel.target.engines.model import CoreType, Engine, Local

PAGE_BYTES: Final = 4096
ENGINES: Final = len(Engine)
RECORD_BYTES: Final = 64  # a queued command: the doorbell, then operand words 0 to 6
LOG_BYTES: Final = 4 << 20  # of a hart's log
LOG: Final = {name: 8 * at for at, name in enumerate(("begin", "end", "engine", "marker", "pc", "order", "command"))}
LOG_RECORD_BYTES: Final = LOG["command"] + RECORD_BYTES
FLAG_IDS: Final = 64  # what the commands' field can name
STACK_BYTES: Final = 32 << 10
CONFIG_BYTES: Final = PAGE_BYTES
MODES: Final = 5  # counted kinds of cross-core signals: type, group, all, across, pair

# Words of the configuration page.
CONFIG: Final = {
    name: 8 * at
    for at, name in enumerate(
        ("entry", "firmware_word", "states", "state_stride", "harts", "cores", "cubes", "vectors", "group_cubes",
         "group_vectors", "shared", "bench_table", "bench_count", "failure", "failed_hart", "failure_a",
         "failure_b", "sdma_lock", "sdma_taken", "sdma_put", "skip_hart", "skip_number", "skip_partner", "skip_flag",
         "pass_number", "sequence")
    )
}  # fmt: skip

FRAME_X: Final = 0
FRAME_F: Final = 256
_WORDS: Final = 512
STATE: Final = {
    name: _WORDS + 8 * at
    for at, name in enumerate(
        ("fcsr", "mepc", "mcause", "mtval", "stack", "hart", "is_cube", "engines", "active", "waiting", "wait_kind",
         "wait_what", "wait_value", "last_flag", "commands", "inexact", "orderings",
         "timing", "pause", "patience", "log", "log_end", "logged", "random", *(f"bias{e}" for e in range(ENGINES)),
         *(f"pending{e}" for e in range(ENGINES)), *(m.value for m in Local), "scratch")
    )
}  # fmt: skip
WINDOWS: Final = 1024
QUEUE_ENDS: Final = WINDOWS + ENGINES * WINDOW_WORDS * 8  # per engine: commands taken out so far, put in so far
FLAGS: Final = QUEUE_ENDS + ENGINES * 16  # a byte per (setter, waiter, flag)
USED: Final = FLAGS + ENGINES * ENGINES * FLAG_IDS  # 1 where a flag was ever set
QUEUES: Final = USED + ENGINES * ENGINES * FLAG_IDS
assert max(STATE.values()) < WINDOWS

TIMINGS: Final = ("now", "late", "random")
Wait = IntEnum("Wait", "NOTHING CROSS MEMORY FLAG DRAIN QUEUE", start=0)  # what a control unit waits for

# Why the firmware ends the machine; the exit status is FAILURE_EXIT.
FAILURE_EXIT: Final = 9
FAILURES: Final = {
    1: ("trap", "an exception in the program"),
    2: ("firmware_trap", "an exception in the firmware itself"),
    3: ("undefined_command", "an access to the register page that is no aligned 8-byte store into a window"),
    4: ("undefined_command", "a doorbell whose opcode or element types mean nothing"),
    5: ("not_on_core", "a command for an engine that the core has not"),
    6: ("flag_overflow", "an engine's flag set more often than it can hold"),
    7: ("cross_overflow", "a cross-core flag's count above its largest"),
    8: ("deadlock", "the control unit waits for engines that wait for it or for each other"),
    9: ("bad_offset", "v_gather or v_scatter beyond its table"),
}
Failure = IntEnum("Failure", "TRAP FIRMWARE STORE COMMAND ENGINE FLAG CROSS DEADLOCK OFFSET")

CUBE_MEMORIES: Final = (Local.L1, Local.L0A, Local.L0B, Local.L0C)


def _up(number: int, step: int = PAGE_BYTES) -> int:
    return -(-number // step) * step


@dataclass(frozen=True)
class FirmwareMap:
    """The addresses for one target."""

    target: AicoreTarget

    def __post_init__(self) -> None:
        raise_all(UnsupportedError, self._violations())

    def _violations(self) -> list[Violation]:
        """What keeps the emulated machine `virt` from standing for the target."""
        places = self.target.map
        needed = {
            "page_address": 0x0800_0000,
            "ram_address": 0x8000_0000,
            "clint_address": 0x0200_0000,
            "exit_address": 0x0010_0000,
        }
        found = []
        for name, value in needed.items():
            got = getattr(places, name)
            if got != value:
                hint = "the emulated machine has its devices at fixed addresses"
                found.append(
                    Violation("not where the emulator has it", f"map.{name}", f"{value:#x}", f"{got:#x}", hint)
                )
        return found

    @cached_property
    def memory(self) -> MemoryMap:
        """The map of the program under it."""
        return MemoryMap.of(self.target)

    @property
    def config(self) -> int:
        """Address of the configuration, which the firmware's code must not reach."""
        return self.memory.ram_address + FIRMWARE_BYTES - CONFIG_BYTES

    @property
    def depth(self) -> int:
        """Commands that a queue takes."""
        return self.target.queue.depth_commands

    @property
    def logged(self) -> int:
        """Where in a state the positions in the log of queued commands are."""
        return QUEUES + ENGINES * self.depth * RECORD_BYTES

    @property
    def state_bytes(self) -> int:
        """Of one hart: its state, queues and stack."""
        return _up(self.logged + ENGINES * self.depth * 8 + STACK_BYTES)

    @cached_property
    def shared(self) -> int:
        """Counters of cross-core flags: (5 modes, mask, taken) x core x flag, 8 bytes each."""
        window = self.memory.ram_address + WINDOW_BYTES
        start = _up(self.memory.ram_address + self.memory.ram_bytes)
        return max(start, window) if start + self.kept_bytes + 2 * TOP_BYTES > window else start

    @property
    def kept_bytes(self) -> int:
        """All that the firmware keeps behind the target's memory."""
        memories = sum(_up(self.size_of(m)) for hart in range(self.memory.harts) for m in self._memories_of(hart))
        scratch = self.target.device.cube_cores * _up(self.scratch_bytes)
        return self.shared_bytes + self.memory.harts * (self.state_bytes + LOG_BYTES) + memories + scratch

    @property
    def _counters_bytes(self) -> int:
        return _up((MODES + 2) * self.target.cores * FLAG_IDS * 8)

    @property
    def shared_bytes(self) -> int:
        """Of what all harts share: counters, and the queue of SDMA."""
        return self._counters_bytes + _up(self.depth * (RECORD_BYTES + 8))

    @property
    def sdma_ring(self) -> int:
        """The shared queue: per command its record and its position in the log."""
        return self.shared + self._counters_bytes

    @property
    def states(self) -> int:
        """Where the states of the harts begin."""
        return self.shared + self.shared_bytes

    def state(self, hart: int) -> int:
        """Where the state of a hart begins."""
        return self.states + hart * self.state_bytes

    def core_type(self, hart: int) -> CoreType:
        """What a hart controls: cube cores are numbered first, then vector cores; aicpu harts stand behind them."""
        if hart >= self.target.cores:
            return CoreType.AICPU
        return CoreType.AIC if hart < self.target.device.cube_cores else CoreType.AIV

    def size_of(self, memory: Local) -> int:
        """Bytes of a local memory."""
        size = self.target.value(memory.size_path)
        assert isinstance(size, int)
        return size

    @property
    def scratch_bytes(self) -> int:
        """Both operands of a product as 4-byte elements."""
        return 4 * (self.size_of(Local.L0A) + self.size_of(Local.L0B))

    def _memories_of(self, hart: int) -> tuple[Local, ...]:
        return {CoreType.AIC: CUBE_MEMORIES, CoreType.AIV: (Local.UB,), CoreType.AICPU: ()}[self.core_type(hart)]

    @cached_property
    def locals(self) -> tuple[dict[Local, int], ...]:
        """The addresses of each hart's local memories."""
        at = self.state(self.memory.harts)
        found = []
        for hart in range(self.memory.harts):
            row = {}
            for name in self._memories_of(hart):
                row[name] = at
                at += _up(self.size_of(name))
            found.append(row)
        return tuple(found)

    @cached_property
    def scratch(self) -> int:
        """Where the cube cores' scratch memories begin, one behind the other."""
        ends = [a + _up(self.size_of(m)) for row in self.locals for m, a in row.items()]
        return max(ends, default=self.state(self.memory.harts))

    @property
    def scratch_step(self) -> int:
        """From one cube core's scratch memory to the next one's."""
        return _up(self.scratch_bytes)

    def log(self, hart: int) -> int:
        """Address of a hart's log."""
        return self.end - (self.memory.harts - hart) * LOG_BYTES

    @property
    def end(self) -> int:
        """The first address behind all that the firmware keeps."""
        return self.shared + self.kept_bytes

    @property
    def ram_bytes(self) -> int:
        """Memory the emulated machine needs."""
        return _up(self.end - self.memory.ram_address + TOP_BYTES, 2 << 20) + TOP_BYTES
