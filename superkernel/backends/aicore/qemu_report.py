"""What became of a launch on the emulator, in words: failures, harts that wait for ever, what was left behind."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from superkernel.codegen.aicore.memory_map import MARKER_WORD
from superkernel.codegen.firmware.memory import (
    CONFIG,
    ENGINES,
    FAILURES,
    FLAG_IDS,
    QUEUE_ENDS,
    QUEUES,
    RECORD_BYTES,
    Failure,
    Wait,
)
from superkernel.core.counted import counted
from superkernel.core.errors import SimulationError, SuperKernelError, Violation
from superkernel.target.engines import Engine, decode
from superkernel.target.engines.layout import operand_words
from superkernel.target.engines.table import by_opcode

if TYPE_CHECKING:
    from superkernel.backends.aicore.qemu_memory import EmulatedMemory
    from superkernel.backends.aicore.qemu_schedule import EngineSchedule

_PHASES = ("not begun", "waiting", "in its body", "behind it")


def left_over(machine: EmulatedMemory, hart: int) -> list[Violation]:
    """Commands and flags that a program must not leave behind."""
    found = [
        Violation("the program ends while an engine has commands", f"{_hart(machine, hart)}, {e.title}", found=text)
        for e in Engine
        if (text := _queue(machine, hart, e))
    ]
    for setter, waiter, flag in machine.flags_set(hart):
        place = f"{_hart(machine, hart)}, flag ({setter.title}, {waiter.title}, {flag})"
        found.append(Violation("the program ends while a flag is set", place))
    if hart < machine.target.cores:
        counts = machine.counts(hart)
        for flag in np.flatnonzero(counts).tolist():
            place = f"{_hart(machine, hart)}, cross-core flag {flag}"
            found.append(Violation("the program ends while a flag is set", place, "0", str(counts[flag])))
    return found


def _hart(machine: EmulatedMemory, hart: int) -> str:
    return f"core {hart} ({machine.places.core_type(hart).value})"


def _queue(machine: EmulatedMemory, hart: int, engine: Engine) -> str:
    """What an engine still has to do: a number and the first command; empty where nothing."""
    state = machine.places.state(hart)
    taken, put = struct.unpack("<QQ", machine.read(state + QUEUE_ENDS + 16 * engine.value, 16))
    if taken == put:
        return ""
    at = state + QUEUES + (engine.value * machine.places.depth + taken % machine.places.depth) * RECORD_BYTES
    words = struct.unpack(f"<{RECORD_BYTES // 8}Q", machine.read(at, RECORD_BYTES))
    return f"{counted(put - taken, 'command')}, first `{_command(words, engine)}`"


def _place(machine: EmulatedMemory, hart: int) -> str:
    """A hart's sub-operator, phase and pc."""
    marker = machine.word(machine.places.memory.private(hart) + 8 * MARKER_WORD)
    subop = marker // 4
    name = f" {machine.names[subop]!r}" if subop < len(machine.names) else ""
    pc = machine.state_word(hart, "mepc")
    return f"sub-operator {subop}{name} ({_PHASES[marker % 4]}), pc {pc:#x}{_symbol(machine, pc)}"


def _symbol(machine: EmulatedMemory, pc: int) -> str:
    image = machine.program
    if image is None:
        return ""
    functions = sorted((s.address, s.name, s.size) for s in image.symbols if s.kind == "function")
    at = bisect.bisect_right(functions, (pc, chr(0x10FFFF), 0)) - 1
    if at < 0 or pc >= functions[at][0] + functions[at][2]:
        return ""
    return f" <{functions[at][1]}+{pc - functions[at][0]:#x}>"


def _wait(machine: EmulatedMemory, hart: int) -> str:
    kind, what, value = (machine.state_word(hart, n) for n in ("wait_kind", "wait_what", "wait_value"))
    last = machine.state_word(hart, "last_flag")
    texts: dict[int, str] = {
        Wait.CROSS: f"waits for cross-core flag {what}{_setters(machine, hart, what)}",
        Wait.MEMORY: f"waits for the word at {what:#x} to be at least {value}",
        Wait.FLAG: f"waits for flag {value} of {_engine(what)}",
        Wait.DRAIN: "drains its engines",
        Wait.QUEUE: f"waits for room in the queue of {_engine(what)}",
    }
    return texts.get(kind, f"waits for nothing; last cross-core flag waited for: {last}")


def _setters(machine: EmulatedMemory, hart: int, flag: int) -> str:
    """Who has not signalled a flag that a core waits for."""
    lacking = machine.lacking(hart, flag) if hart < machine.target.cores and flag < FLAG_IDS else {}
    if not lacking:
        return ", of which no core has begun another signal"
    return "".join(
        f", which in mode {mode} lacks {', '.join(_hart(machine, core) for core in cores)}"
        for mode, cores in lacking.items()
    )


def stuck(machine: EmulatedMemory, schedule: EngineSchedule, *, forever: bool) -> list[Violation]:
    """What every hart is at."""
    message = f"the emulated kernel did not end within {schedule.watchdog_s:g} s"
    if forever:
        message = "every hart of the emulated kernel waits or has ended, and nothing can wake one"
    found = [Violation(f"{message}, timing {schedule}")]
    for hart in range(machine.places.memory.harts):
        queues = [f"{e.title}: {text}" for e in Engine if (text := _queue(machine, hart, e))]
        place = f"{_hart(machine, hart)}, {_place(machine, hart)}"
        found.append(Violation(_wait(machine, hart), place, found="; ".join(queues)))
    return found


def failure(machine: EmulatedMemory) -> SimulationError:
    """The error that the firmware left in its memory, with hart and sub-operator."""
    config = machine.places.config
    number, hart, a, b = (
        machine.word(config + CONFIG[n]) for n in ("failure", "failed_hart", "failure_a", "failure_b")
    )
    kind, message = FAILURES.get(number, ("program_failed", f"failure {number}"))
    found = f"{a:#x}, {b:#x}"
    if number == Failure.FLAG:
        found = f"flag ({_engine(a)}, {_engine(b >> 8)}, {b & 0xFF})"
    elif number == Failure.CROSS:
        found = f"flag {a}"
    elif number == Failure.DEADLOCK:
        queues = [f"{e.title}: {text}" for e in Engine if (text := _queue(machine, hart, e))]
        found = f"{_wait(machine, hart)}; " + "; ".join(queues)
    elif number == Failure.COMMAND:
        found = f"doorbell {a:#x}"
    elif number == Failure.ENGINE:
        found = f"{_engine(a)}, doorbell {b:#x}"
    return SimulationError(message, kind=kind, location=f"{_hart(machine, hart)}, {_place(machine, hart)}", found=found)


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
