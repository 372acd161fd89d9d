"""A simulated RV64GC machine with a program in it.

Model: `Machine` loads a static ELF executable, all harts start at its entry in machine mode with their number in a0.
`run` executes until the program ends (see `Machine.run`) or a number of instructions has passed. Registers and memory
can be looked at between runs.

Invariants: the same file and parameters give the same run, instruction by instruction. A bad file or parameter raises
before anything runs; whatever a program does is a way for it to end, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from superkernel import _core
from superkernel.core.errors import FileFormatError, InputError
from superkernel.core.files import is_file

UNLIMITED = 2**63 - 1
FILE_BYTES_MAX = 1 << 30
"""Larger files are refused before they are read."""

End = Literal["exited", "limit", "asleep", "trap_loop", "bad_request"]


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """An instruction cache per hart: set-associative with least recently used replacement. Sizes in bytes."""

    size: int
    line: int = 128
    ways: int = 4
    miss_cycles: int = 150

    @classmethod
    def parse(cls, text: str) -> CacheGeometry:
        """From "SIZE[,LINE[,WAYS[,MISS_CYCLES]]]". Raises InputError."""
        words = text.split(",")
        if not 1 <= len(words) <= 4 or not all(word.strip().isascii() and word.strip().isdigit() for word in words):
            raise InputError(
                "not a cache geometry",
                location="icache",
                expected="SIZE[,LINE[,WAYS[,MISS_CYCLES]]], decimal",
                found=repr(text),
            )
        return cls(*map(int, words))


@dataclass(frozen=True, slots=True)
class HartState:
    """Registers and counts of one hart. `f` holds bit patterns, `fcsr` the rounding mode and flags."""

    x: tuple[int, ...]
    f: tuple[int, ...]
    pc: int
    mode: Literal["M", "U"]
    asleep: bool
    fcsr: int
    mcause: int
    mepc: int
    mtval: int
    mtvec: int
    retired: int
    traps: int
    cycles: int
    icache: _core.SimCacheStats


class Machine:
    """Memory, harts and a loaded program.

    `program` is the path of an ELF file or its bytes. `memory_bytes` 0 stands for what the program needs and 16 MiB
    more; it is rounded up to pages of 4096 bytes. `quantum` is the number of instructions that a hart executes before
    the next one has its turn. Raises FileFormatError (not a loadable program), InputError (an impossible parameter),
    MachineError (not enough memory).
    """

    def __init__(
        self,
        program: str | Path | bytes,
        *,
        harts: int = 1,
        memory_base: int = 0x80000000,
        memory_bytes: int = 0,
        quantum: int = 10_000,
        icache: CacheGeometry | None = None,
    ) -> None:
        geometry = icache or CacheGeometry(0)
        place = "" if isinstance(program, bytes) else f"file {str(program)!r}"
        try:
            self._machine = _core.SimMachine(
                program if isinstance(program, bytes) else read_program(Path(program)),
                harts=_checked("harts", harts, 32),
                memory_base=_checked("memory_base", memory_base, 64),
                memory_bytes=_checked("memory_bytes", memory_bytes, 64),
                quantum=_checked("quantum", quantum, 64),
                icache=(
                    _checked("icache.size", geometry.size, 32),
                    _checked("icache.line", geometry.line, 32),
                    _checked("icache.ways", geometry.ways, 32),
                    _checked("icache.miss_cycles", geometry.miss_cycles, 32),
                ),
            )
        except FileFormatError as error:
            first = error.violations[0]
            location = ", ".join(filter(None, (place, first.location)))
            raise FileFormatError(
                first.message, location=location, expected=first.expected, found=first.found, hint=first.hint
            ) from error
        self.harts = harts

    def run(self, max_instructions: int = UNLIMITED) -> End:
        """Executes up to about `max_instructions` more, over all harts together: a turn ends at a taken jump only.

        Returns how the run stands: "exited" (the program wrote its end to tohost: `exit_code`), "limit" (it can be
        continued), "asleep" (all harts in wfi, and no interrupt can come), "trap_loop" (hart `end_hart` trapped, and
        its handler cannot be executed: mcause, mepc and mtval of the hart tell the first trap), "bad_request" (tohost
        holds `exit_code`, which asks for no service there is). Ctrl-C interrupts.
        """
        return self._machine.run(_checked("max_instructions", max_instructions, 64))

    def hart(self, number: int = 0) -> HartState:
        """The state of a hart. Raises InputError where there is none of that number."""
        state = self._machine.hart(_checked("hart", number, 32))
        return HartState(**{**state, "x": tuple(state["x"]), "f": tuple(state["f"])})  # type: ignore[arg-type]

    def read(self, address: int, count: int) -> bytes:
        """Bytes of memory. Raises InputError for a range outside."""
        return self._machine.read(_checked("address", address, 64), _checked("count", count, 64))

    def write(self, address: int, data: bytes) -> None:
        """Replaces bytes of memory; harts see them as after a fence.i. Raises InputError for a range outside."""
        self._machine.write(_checked("address", address, 64), data)

    def console(self) -> bytes:
        """What the program has printed since the last call."""
        return self._machine.console()

    @property
    def exit_code(self) -> int:
        """What the program handed to tohost; see `run` for when it means something."""
        return self._machine.exit_code

    @property
    def end_hart(self) -> int:
        """The hart that ended the run."""
        return self._machine.end_hart

    @property
    def executed(self) -> int:
        """Instructions and traps of all harts together."""
        return self._machine.executed


def _checked(name: str, value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise InputError("out of range", location=name, expected=f"0 to 2^{bits} - 1", found=value)
    return value


def read_program(path: Path) -> bytes:
    """The bytes of a program's file. Raises FileFormatError, InputError."""
    try:
        size = path.stat().st_size
        if not is_file(path) or size > FILE_BYTES_MAX:
            found = f"{size} bytes" if is_file(path) else "something else"
            raise FileFormatError(
                "not a program", location=f"file {str(path)!r}", expected="a file below 1 GiB", found=found
            )
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the program: {error.strerror}", location=str(path)) from error
