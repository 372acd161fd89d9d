"""Runs a bare-metal program to its end and says how it went: the command `superkernel sim run`.

Model: the program decides between success and failure by what it writes to tohost (1: success, (n << 1) | 1: failure
n). Everything else that can stop it is a failure of the program as well, with an exit status of its own and the text of
why.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superkernel.core.errors import InputError
from superkernel.core.warn import warn
from superkernel.sim.machine import UNLIMITED, CacheGeometry, End, HartState, Machine, read_program

if TYPE_CHECKING:
    from superkernel._core import SimCacheStats

EXIT_STATUS: dict[End, int] = {"exited": 10, "limit": 11, "asleep": 12, "trap_loop": 13, "bad_request": 14}
"""Exit status of programs that did not succeed; "exited" is a failure that the program itself reports."""

PIECE = 50_000_000
"""Instructions between looks at the clock."""

CAUSES = {
    1: "instruction access fault",
    2: "illegal instruction",
    3: "breakpoint",
    4: "misaligned lr",
    5: "load access fault",
    6: "misaligned store-conditional or atomic",
    7: "store access fault",
    8: "environment call from U mode",
    11: "environment call from M mode",
}


@dataclass(frozen=True, slots=True)
class HartSummary:
    """What one hart did: instructions retired, traps taken, cycles by the timing model, cache counts if modelled."""

    hart: int
    pc: int
    asleep: bool
    instructions: int
    traps: int
    cycles: int
    icache: SimCacheStats | None


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended. `exit_code` is what it handed to tohost, None where it did not come to that."""

    end: End
    exit_code: int | None
    reason: str
    console: str
    harts: tuple[HartSummary, ...]

    @property
    def succeeded(self) -> bool:
        """Whether it exited, and with 0."""
        return self.end == "exited" and self.exit_code == 0

    @property
    def exit_status(self) -> int:
        """For the shell: 0 success, else EXIT_STATUS, which the package's own errors (1 to 4) keep clear of."""
        return 0 if self.succeeded else EXIT_STATUS[self.end]

    def to_json(self) -> dict[str, Any]:
        """All fields with `succeeded`, as values that JSON can say."""
        return {
            **dataclasses.asdict(self),
            "succeeded": self.succeeded,
            "harts": [dataclasses.asdict(h) for h in self.harts],
        }

    def head(self) -> str:
        """What the program printed, and in the last line how it ended."""
        lines = [self.console.rstrip("\n")] if self.console else []
        lines.append(("PASS: " if self.succeeded else "FAIL: ") + self.reason)
        return "\n".join(lines)

    def text(self) -> str:
        """For a terminal."""
        lines = [self.head()]
        for hart in self.harts:
            line = f"hart {hart.hart}: {hart.instructions} instructions, {hart.traps} traps, {hart.cycles} cycles"
            if hart.icache is not None:
                line += f", {hart.icache['misses']} of {hart.icache['accesses']} line fetches missed"
            lines.append(line)
        return "\n".join(lines)


def run_program(
    program: str | Path | bytes,
    *,
    harts: int = 1,
    max_instructions: int | None = None,
    limit_s: float = math.inf,
    memory_base: int = 0x80000000,
    memory_bytes: int = 0,
    quantum: int = 10_000,
    icache: CacheGeometry | None = None,
) -> ProgramResult:
    """Loads and runs a program, for `limit_s` seconds at most; else parameters and errors as those of `Machine`."""
    if max_instructions is not None and not 0 < max_instructions < UNLIMITED:
        raise InputError("out of range", location="max_instructions", expected="at least 1", found=max_instructions)
    data = program if isinstance(program, bytes) else read_program(Path(program))
    machine = Machine(
        program, harts=harts, memory_base=memory_base, memory_bytes=memory_bytes, quantum=quantum, icache=icache
    )
    if max_instructions is None and b"tohost" not in data:
        warn("the program has no tohost: it cannot report an end, and may run for ever")
    end, end_s = machine.run(min(max_instructions or UNLIMITED, PIECE)), time.monotonic() + limit_s
    while end == "limit" and (left := (max_instructions or UNLIMITED) - machine.executed) > 0:
        if time.monotonic() > end_s:
            break
        end = machine.run(min(left, PIECE))
    states = [machine.hart(number) for number in range(harts)]
    return ProgramResult(
        end,
        machine.exit_code if end == "exited" else None,
        _reason(end, machine, states),
        machine.console().decode("utf-8", "replace"),
        tuple(_summary(number, state, icache) for number, state in enumerate(states)),
    )


def _summary(number: int, state: HartState, icache: CacheGeometry | None) -> HartSummary:
    counts = None if icache is None else state.icache
    return HartSummary(number, state.pc, state.asleep, state.retired, state.traps, state.cycles, counts)


def _reason(end: End, machine: Machine, states: list[HartState]) -> str:
    if end == "exited":
        code = machine.exit_code
        return "the program exited with success" if code == 0 else f"the program exited with failure {code}"
    if end == "limit":
        places = ", ".join(f"{state.pc:#x}" for state in states[:4]) + (", ..." if len(states) > 4 else "")
        return f"the limit of instructions or time was reached; the harts are at {places}"
    if end == "asleep":
        return "all harts sleep in wfi, and no interrupt can come"
    if end == "bad_request":
        return f"tohost holds {machine.exit_code:#x}, which asks for no service there is"
    state = states[machine.end_hart]
    cause = CAUSES.get(state.mcause, f"cause {state.mcause:#x}")
    return (
        f"hart {machine.end_hart}: {cause} at {state.mepc:#x} (mtval {state.mtval:#x}), "
        f"and the trap handler {state.mtvec:#x} cannot be executed"
    )
