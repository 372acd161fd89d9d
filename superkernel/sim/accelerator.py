"""Runs an accelerator program from a file to its end: `superkernel sim run PROGRAM.elf --target a3`.

Model: a file that `Kernel.save` wrote is whole: code, constants and unit ranges. Inputs are zero unless something was
written to them, so this is for timing and for looking at a program, not for results. A program with `tohost` is no
accelerator program: it runs on one plain core with the target's memory (4 GiB of it at most) and the instruction cache
of its cube cores.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superkernel.core.errors import SimulationError
from superkernel.core.files import ELF_MAGIC
from superkernel.sim.device import INSTRUCTIONS_MAX, Device
from superkernel.sim.machine import CacheGeometry, read_program
from superkernel.sim.program import ProgramResult, run_program

if TYPE_CHECKING:
    from superkernel.sim.counters import LaunchResult
    from superkernel.target.aicore import AicoreTarget

PLAIN_MEMORY_MAX = 4 << 30
FAILED_STATUS = 15
"""Exit status of an accelerator program that the simulator stopped; 10 to 14 are those of plain programs."""


@dataclass(frozen=True, slots=True)
class AcceleratorResult:
    """How an accelerator program ended: its counters, or why it was stopped."""

    launch: LaunchResult | None
    problem: str

    @property
    def succeeded(self) -> bool:
        """Whether the launch came to its end."""
        return self.launch is not None

    @property
    def exit_status(self) -> int:
        """For the shell."""
        return 0 if self.succeeded else FAILED_STATUS

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        if self.launch is None:
            return {"succeeded": False, "problem": self.problem}
        return {"succeeded": True, **dataclasses.asdict(dataclasses.replace(self.launch, trace=b""))}

    def head(self) -> str:
        """How it ended, in one line."""
        launch = self.launch
        if launch is None:
            return "FAIL: " + " ".join(self.problem.split())
        return f"PASS: {launch.cycles} cycles, {launch.time_ns / 1000:.2f} us, {launch.instructions} instructions"

    def text(self) -> str:
        """For a terminal."""
        if self.launch is None:
            return f"FAIL: {self.problem}"
        lines = [self.head()]
        for core in self.launch.cores:
            busy = ", ".join(f"{n} {e.busy}" for n, e in core.engines.items() if e.busy)
            lines.append(
                f"core {core.core} ({core.type}): {core.instructions} instructions, {core.control.misses} instruction "
                f"misses" + (f", busy cycles {busy}" if busy else "")
            )
        return "\n".join(lines)


def is_accelerator_program(data: bytes) -> bool:
    """Whether a file is for the harts of an accelerator: they have private memories, and nobody ends through tohost."""
    return data.startswith(ELF_MAGIC) and b"sk_private" in data and b"tohost" not in data


def run_on_target(
    program: Path, target: AicoreTarget, *, harts: int = 1, max_instructions: int | None = None
) -> AcceleratorResult | ProgramResult:
    """Run a program on a target; `harts` is for plain programs. Raises FileFormatError, InputError."""
    data = read_program(program)
    if b"tohost" in data:
        icache = target.icache
        return run_program(
            data,
            harts=harts,
            max_instructions=max_instructions,
            memory_base=target.map.ram_address,
            memory_bytes=min(target.map.ram_bytes, PLAIN_MEMORY_MAX),
            icache=CacheGeometry(icache.cube_bytes, icache.line_bytes, icache.ways, icache.miss_latency_cycles),
        )
    device = Device(target, data, unwritten=False, max_instructions=max_instructions or INSTRUCTIONS_MAX)
    try:
        return AcceleratorResult(device.launch(), "")
    except SimulationError as error:
        return AcceleratorResult(None, str(error))
