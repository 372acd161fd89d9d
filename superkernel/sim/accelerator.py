"""Runs an accelerator program from a file to its end: `superkernel sim run PROGRAM.elf --target a3`.

Model: a file that `Kernel.save` wrote is whole: code, constants, unit ranges, and a table of the launches that run it,
in order, on one memory (`target/launch_note.py`). Inputs are zero unless something was written to them, so this is for
timing and for looking at a program, not for results. A program with `tohost` is no accelerator program: it runs on one
plain core with the target's memory (4 GiB of it at most) and the instruction cache of its cube cores.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superkernel.core.counted import counted
from superkernel.core.errors import SimulationError
from superkernel.core.files import ELF_MAGIC
from superkernel.sim.counters import PHASES
from superkernel.sim.device import INSTRUCTIONS_MAX, Device, Mode
from superkernel.sim.machine import CacheGeometry
from superkernel.sim.program import ProgramResult, run_program

if TYPE_CHECKING:
    from superkernel.sim.counters import LaunchResult
    from superkernel.target.aicore import AicoreTarget
    from superkernel.target.launch_note import LaunchNote

PLAIN_MEMORY_MAX = 4 << 30
BODY = PHASES.index("body")
FAILED_STATUS = 15
"""Exit status of an accelerator program that the simulator stopped; 10 to 14 are those of plain programs."""


@dataclass(frozen=True, slots=True)
class AcceleratorResult:
    """How an accelerator program ended: the counters of its launches, and why it was stopped where it was; `mode`: what
    was simulated. In mode "functional" there are no cycles. `data_dependent`: names of sub-operators whose cycles may
    depend on data that mode "timing" does not compute."""

    launches: tuple[LaunchResult, ...]
    names: tuple[str, ...]  # of the launches: what runs in them
    problem: str = ""
    mode: Mode = "both"
    data_dependent: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether all launches came to their end."""
        return not self.problem

    @property
    def exit_status(self) -> int:
        """For the shell."""
        return 0 if self.succeeded else FAILED_STATUS

    @property
    def instructions(self) -> int:
        """Of all launches and control units."""
        return sum(launch.instructions for launch in self.launches)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        if self.problem:
            return {"succeeded": False, "simulation": self.mode, "problem": self.problem}
        counts = {"simulation": self.mode, "instructions": self.instructions}
        if self.mode == "functional":
            return {"succeeded": True, **counts}
        return {
            "succeeded": True,
            **counts,
            **{name: sum(getattr(each, name) for each in self.launches) for name in ("cycles", "time_ns")},
            "data_dependent": list(self.data_dependent),
            "launches": [_plain(each) for each in self.launches],
        }

    def head(self) -> str:
        """How it ended, in one line."""
        if self.problem:
            return "FAIL: " + " ".join(self.problem.split())
        number = len(self.launches)
        head = f"{counted(number, 'launch')}, " if number > 1 else ""
        cycles, time_ns = sum(each.cycles for each in self.launches), sum(each.time_ns for each in self.launches)
        times = "" if self.mode == "functional" else f"{cycles} cycles, {time_ns / 1000:.2f} us, "
        only = "" if self.mode == "both" else f" ({self.mode} only)"
        return f"PASS: {head}{times}{self.instructions} instructions{only}"

    def text(self) -> str:
        """For a terminal."""
        if self.problem:
            return f"FAIL: {self.problem}"
        lines = [self.head()]
        if self.data_dependent:
            lines.append(f"no data was computed, on which cycles may depend in: {', '.join(self.data_dependent)}")
        if self.mode == "functional":
            return "\n".join(lines)
        if len(self.launches) > 1:
            lines += [
                f"launch {number} ({name}): {each.cycles} cycles, {each.instructions} instructions"
                for number, (name, each) in enumerate(zip(self.names, self.launches, strict=True))
            ]
        for cores in zip(*(each.cores for each in self.launches), strict=True):
            cycles: Counter[str] = Counter()
            for core in cores:
                cycles.update({name: engine.busy for name, engine in core.engines.items() if engine.busy})
            busy = ", ".join(f"{name} {count}" for name, count in cycles.items())
            lines.append(
                f"core {cores[0].core} ({cores[0].type}): {sum(core.instructions for core in cores)} instructions, "
                f"{sum(core.control.misses for core in cores)} instruction misses"
                + (f", busy cycles {busy}" if busy else "")
            )
        return "\n".join(lines)


def _plain(launch: LaunchResult) -> dict[str, Any]:
    """A launch's counters as plain data, without the split by marker and without its trace."""
    found = dataclasses.asdict(dataclasses.replace(launch, trace=b""))
    for core in found["cores"]:
        del core["table"]
    return found


def is_accelerator_program(data: bytes) -> bool:
    """Whether a file is for the harts of an accelerator: they have private memories, and nobody ends through tohost."""
    return data.startswith(ELF_MAGIC) and b"sk_private" in data and not ends_through_tohost(data)


def ends_through_tohost(data: bytes) -> bool:
    """Whether a file is a plain program."""
    return b"tohost" in data


def run_on_one_core(
    data: bytes,
    target: AicoreTarget,
    *,
    harts: int = 1,
    max_instructions: int | None = None,
    limit_s: float = math.inf,
) -> ProgramResult:
    """Run a plain program on a core of a target, as `run_program` does. Raises FileFormatError, InputError."""
    icache = target.icache
    return run_program(
        data,
        harts=harts,
        max_instructions=max_instructions,
        limit_s=limit_s,
        memory_base=target.map.ram_address,
        memory_bytes=min(target.map.ram_bytes, PLAIN_MEMORY_MAX),
        icache=CacheGeometry(icache.cube_bytes, icache.line_bytes, icache.ways, icache.miss_latency_cycles),
    )


def run_launches(
    data: bytes,
    target: AicoreTarget,
    table: LaunchNote,
    *,
    max_instructions: int | None = None,
    limit_s: float = math.inf,
    delays: int = 0,
    mode: Mode = "both",
) -> AcceleratorResult:
    """Run the launches of a program; each may execute `max_instructions`, all together take `limit_s`; `delays` and
    `mode` as in `Device`; for timing only races are not checked. Raises FileFormatError, InputError."""
    limit, end_s = max_instructions or INSTRUCTIONS_MAX, time.monotonic() + limit_s
    device = Device(
        target, data, mode=mode, races=mode != "timing", unwritten=False, max_instructions=limit, delays=delays,
        names=table.names,
    )  # fmt: skip
    names = tuple(", ".join(table.names[n] for n in row) for row in table.launches)
    done: list[LaunchResult] = []
    for number, row in enumerate(table.launches):
        try:
            done.append(device.launch(number=number, limit_s=max(0, end_s - time.monotonic())))
        except SimulationError as error:
            problem = str(error)
        else:
            entered = {n for core in done[-1].cores for n in core.table.bytes_written(BODY)}
            left_out = [table.names[n] for n in row if n not in entered]
            problem = f"the launch ended, and no core ran {', '.join(map(repr, left_out))}" if left_out else ""
        if problem:
            where = f"launch {number} of {len(table.launches)}: " if len(table.launches) > 1 else ""
            return AcceleratorResult(tuple(done), names, where + problem, mode)
    dependent = sorted({index for launch in done for index in launch.data_dependent})
    named = tuple(table.names[n] if n < len(table.names) else f"sub-operator {n}" for n in dependent)
    return AcceleratorResult(tuple(done), names, "", mode, named)
