"""The emulator's log: every engine command of a launch, in the order of the program, and when it was carried out.

Model: the firmware keeps a record per doorbell and hart; `begin` and `end` count, over all harts, what began or ended.
Commands for order (ORDERING) are numbered per hart as `qemu_schedule.Fault` numbers them.

Invariant: which commands a hart issues, and in which order, depends on the program alone; the numbers `begin` and `end`
are one legal order of this run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from superkernel.codegen.firmware.memory import LOG, LOG_BYTES, LOG_RECORD_BYTES, RECORD_BYTES
from superkernel.core.errors import UnsupportedError
from superkernel.target.engines import Command, Engine, decode
from superkernel.target.engines.layout import operand_words
from superkernel.target.engines.table import by_opcode

if TYPE_CHECKING:
    from superkernel.backends.aicore.qemu_machine import Emulator

ORDERING: Final = ("set_flag", "wait_flag", "drain", "cross_set", "cross_wait", "notify", "wait_memory")
RECORDS_MAX: Final = LOG_BYTES // LOG_RECORD_BYTES
_WORD = 8


@dataclass(frozen=True, slots=True)
class Logged:
    """A command of a hart. `order`: its number among the hart's commands for order, -1 where it is none; `begin`,
    `end`: when it was carried out, 0 where it never was; `marker`: sub-operator * 4 + phase; `pc`: of the doorbell's
    store."""

    hart: int
    index: int
    command: Command
    order: int
    begin: int
    end: int
    marker: int
    pc: int

    @property
    def engine(self) -> Engine:
        """Whose queue the command goes to."""
        return self.command.engine

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"core {self.hart}, sub-operator {self.marker // 4}, pc {self.pc:#x}"


def read_log(machine: Emulator) -> tuple[tuple[Logged, ...], ...]:
    """The log of the last launch, per hart. Raises UnsupportedError where a hart has issued more than a log holds."""
    return tuple(_of_hart(machine, hart) for hart in range(machine.places.memory.harts))


def _of_hart(machine: Emulator, hart: int) -> tuple[Logged, ...]:
    count = machine.state_word(hart, "logged")
    if count > RECORDS_MAX:
        raise UnsupportedError(
            "the program issues more commands than the emulator's log holds", location=f"core {hart}",
            expected=f"at most {RECORDS_MAX}", found=str(count),
        )  # fmt: skip
    raw = machine.read(machine.places.log(hart), count * LOG_RECORD_BYTES)
    rows = np.frombuffer(raw, "<u8").reshape(count, LOG_RECORD_BYTES // _WORD)
    return tuple(_logged(hart, index, row.tolist()) for index, row in enumerate(rows))


def _logged(hart: int, index: int, row: list[int]) -> Logged:
    words = {name: row[at // _WORD] for name, at in LOG.items()}
    first = LOG["command"] // _WORD
    doorbell, *operands = row[first : first + RECORD_BYTES // _WORD]
    spec = by_opcode()[doorbell & 0xFF]
    command = decode((*operands[: operand_words(spec)], doorbell), Engine(words["engine"]))
    order = words["order"] - 1 if command.name in ORDERING else -1
    return Logged(hart, index, command, order, words["begin"], words["end"], words["marker"], words["pc"])
