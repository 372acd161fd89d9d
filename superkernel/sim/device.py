"""The simulated accelerator: an ELF image on the cores, engines and memory of an `AicoreTarget`, in cycles.

Model: all harts start at the image's entry with their number in a0 and end with the store of 0x5555 to the exit address
by the last of them. The image's symbol `sk_private` names the harts' private memories; word 0 of each is the progress
marker (sub-operator * 4 + phase) to which everything is attributed, word 2 the launch's number. Memory and what is in
L2 stay from launch to launch; local memories, flags and queues start empty. docs/simulator.md has the whole model.

Invariants: the same program, data and target give the same result and the same trace, byte for byte, whatever `step`.
Whatever a program does wrong raises `SimulationError` with one of FAILURE_KINDS; the device can be launched again.
"""

from __future__ import annotations

import bisect
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from superkernel import _core
from superkernel.core.errors import FileFormatError, InputError, MachineError, SimulationError, Violation, raise_all
from superkernel.sim.counters import PHASES, LaunchResult, launch_result
from superkernel.target.sections import all_fields

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from superkernel.target.aicore import AicoreTarget

Mode = Literal["both", "timing", "functional"]
MODES: tuple[Mode, ...] = get_args(Mode)
Range = tuple[int, int]

FAILURE_KINDS: dict[str, str] = {
    "undefined_command": "a doorbell whose opcode, types or bits mean nothing, or a store to the page off its windows",
    "bad_operand": "a number out of its range, or one that contradicts another",
    "misaligned": "an address that is not aligned",
    "out_of_range": "an address outside its local memory",
    "unmapped": "an address where there is nothing",
    "illegal_overlap": "a command writes bytes that it reads",
    "self_overlap": "rows that a command writes share bytes",
    "not_on_core": "a command for an engine that the core has not",
    "bad_offset": "v_gather or v_scatter beyond its table",
    "unwritten_local_read": "a read of local memory that was never written",
    "unwritten_global_read": "a read of global memory that was never written",
    "unfinished": "a program ends, and a sub-operator did not run or did not write what it declares on some core",
    "unwritten_output": "a program ends, and bytes of an output were never written",
    "foreign_private": "an access to a private memory by anybody but its control unit",
    "code_write": "a write to the program's code",
    "undeclared_access": "an access outside the declared regions of its sub-operator and core",
    "race": "two conflicting accesses that nothing orders",
    "flag_overflow": "an engine's flag set more often than it can hold",
    "cross_overflow": "a cross-core flag's count above its largest",
    "deadlock": "every core waits or has ended",
    "no_exit": "all control units sleep, and the program has not ended",
    "undrained": "the program ends while engines still have commands",
    "leftover_flag": "the program ends while flags are still set",
    "bad_marker": "a progress marker that is none",
    "bad_exit": "a store to the exit address that means nothing",
    "program_failed": "the program reports a failure",
    "trap": "an exception in the program",
    "instruction_limit": "more instructions than the launch may execute",
    "time_limit": "more time than the simulation of the launch may take",
}
"""What `SimulationError.kind` can be."""

INSTRUCTIONS_MAX = 20_000_000_000
STEP = 4096


@dataclass(frozen=True, slots=True)
class _Image:
    """What is used of an ELF file."""

    entry: int
    segments: tuple[tuple[int, int, bytes, bool, bool], ...]  # address, bytes, data, writable, executable
    private_address: int | None
    names: tuple[str, ...]
    starts: tuple[int, ...]

    def symbol(self, address: int) -> str:
        """`name+0x10` of the function that holds an address; empty where none does."""
        place = bisect.bisect_right(self.starts, address) - 1
        return f"{self.names[place]}+{address - self.starts[place]:#x}" if place >= 0 else ""


class Device:
    """An accelerator with a program in it.

    `program` is a static RV64 ELF executable. `mode`: "both"; "timing": engines compute no data, control units do, and
    a result says where these read what engines did not compute (`LaunchResult.data_dependent`); "functional": data in a
    legal order, cycles mean nothing. `races` switches race detection, `unwritten` the check of
    reads of global memory that nobody wrote, `flags` the check that no flag is set at the end; `trace` keeps an event
    trace (`trace.py`). `step` is how many instructions a core may run ahead at a time; results do not depend on it.
    `time_control` measures the simulator itself: `control_ns`. `names` are the sub-operators', for messages.
    `delays` is a seed: engines and signals between cores are late then, at random, which no right program minds.

    Raises FileFormatError (not a loadable program), InputError (a program that does not fit the target, an impossible
    parameter), MachineError (not enough memory).
    """

    def __init__(
        self,
        target: AicoreTarget,
        program: bytes,
        *,
        mode: Mode = "both",
        races: bool = True,
        unwritten: bool = True,
        flags: bool = True,
        trace: bool = False,
        step: int = STEP,
        max_instructions: int = INSTRUCTIONS_MAX,
        time_control: bool = False,
        delays: int = 0,
        names: Sequence[str] = (),
    ) -> None:
        if mode not in MODES:
            raise InputError("no such mode", location="mode", expected=", ".join(MODES), found=repr(mode))
        if not 0 <= delays < 2**32:
            raise InputError("out of range", location="delays", expected="0 to 2^32 - 1", found=delays)
        if not 1 <= step < 2**31 or not 1 <= max_instructions < 2**62:
            raise InputError(
                "out of range",
                location="step, max_instructions",
                expected="at least 1",
                found=f"{step}, {max_instructions}",
            )
        self.target, self.mode, self._names = target, mode, names
        self.harts = target.cores + target.device.aicpu_harts
        self._image = read_program(program)
        raise_all(InputError, _misplaced(self._image, target, self.harts))
        self._trace = trace
        options = {
            "timed": mode != "functional",
            "data": mode != "timing",
            "races": races,
            "unwritten": unwritten,
            "flags": flags,
            "trace": trace,
            "time_control": time_control,
            "step": step,
            "instructions_max": max_instructions,
        }
        try:
            self._device = _core.SimDevice(
                {path: target.value(path) for path in all_fields()},
                self._image.entry,
                self._image.private_address,
                list(self._image.segments),
                options,
                delays,
            )
        except MemoryError as error:
            raise MachineError(
                "not enough memory for the device's global memory and what lies in L2",
                location="map.ram_bytes, l2.capacity_bytes",
                found=f"{target.map.ram_bytes}, {target.l2.capacity_bytes} bytes",
            ) from error

    def write(self, address: int, data: Buffer) -> None:
        """Replaces bytes of global memory, which count as written then. Raises InputError for a range outside."""
        view = memoryview(data).cast("B")
        self._check(address, len(view))
        self._device.write(address, view)

    def reserve(self, address: int, count: int) -> None:
        """Counts bytes of global memory as written whose data nobody says, in mode "timing": what a control unit reads
        of them is `LaunchResult.data_dependent`. Raises InputError for a range outside."""
        self._check(address, count)
        self._device.reserve(address, count)

    def read(self, address: int, count: int) -> bytes:
        """Bytes of global memory. Raises InputError for a range outside."""
        self._check(address, count)
        return self._device.read(address, count)

    def first_unwritten(self, address: int, count: int) -> int | None:
        """The first byte of a range of global memory that nobody wrote: neither `write` nor any launch so far."""
        self._check(address, count)
        first = self._device.first_unwritten(address, count)
        return first if first < address + count else None

    def declare(
        self, sub_operator: int, core: int, *, reads: Iterable[Range] = (), writes: Iterable[Range] = ()
    ) -> None:
        """What a sub-operator may read and write in global memory on one core: ranges [begin, end).

        Once anything is declared every access of engines and control units is held against the declarations of its
        sub-operator and core. Free are: private memory, reads of segments that the program cannot write, ranges of
        `declare_scratch`, and words of notify, wait_memory and atomics. Declarations add up and hold for all launches.
        """
        if not 0 <= sub_operator < 2**28 or not 0 <= core < self.harts:
            raise InputError(
                "no such place",
                location="declare",
                expected=f"sub-operator 0 to 2^28 - 1, core 0 to {self.harts - 1}",
                found=f"sub-operator {sub_operator}, core {core}",
            )
        for is_write, ranges in ((False, reads), (True, writes)):
            checked = self._checked(ranges)
            if checked:
                self._device.declare(sub_operator, core, is_write, checked)

    def declare_scratch(self, ranges: Iterable[Range]) -> None:
        """Ranges of global memory that every sub-operator may use."""
        for begin, end in self._checked(ranges):
            self._device.declare_scratch(begin, end)

    def warm_l2(self, address: int, count: int) -> None:
        """Puts a range of global memory into L2 before a launch. Otherwise L2 holds what earlier launches left."""
        self._check(address, count)
        self._device.warm(address, count)

    def forget_l2(self) -> None:
        """Empties L2."""
        self._device.forget_l2()

    def launch(self, *, number: int = 0, cold: bool = True, limit_s: float = math.inf) -> LaunchResult:
        """Runs the program from its entry to its end. `cold`: with empty instruction caches. Ctrl-C interrupts, and
        what takes longer on this machine than `limit_s` is stopped.

        Raises SimulationError for whatever the program does wrong.
        """
        if not 0 <= number < 2**64:
            raise InputError("out of range", location="number", expected="0 to 2^64 - 1", found=number)
        if self._device.launch(number, cold, limit_s) == "failed":
            raise self._error()
        trace = self._device.trace() if self._trace else b""
        return launch_result(self._device.results(), self.target.device.clock_mhz, trace)

    @property
    def retired(self) -> int:
        """Instructions of the last launch, of all harts together, however it ended."""
        return self._device.retired

    @property
    def control_ns(self) -> int:
        """With `time_control`: nanoseconds of the host that the last launch spent in executing the harts' instructions,
        without what the device did for them. Measured, so the one number here that differs from run to run."""
        return self._device.control_time()[0]

    @property
    def control_slices(self) -> int:
        """With `time_control`: how often a hart was let run until it asked for something."""
        return self._device.control_time()[1]

    def _checked(self, ranges: Iterable[Range]) -> list[Range]:
        found = list(ranges)
        lowest, highest = self.target.map.ram_address, self.target.map.ram_address + self.target.map.ram_bytes
        if not all(lowest <= begin <= end <= highest for begin, end in found):
            for begin, end in found:
                self._check(begin, end - begin)
        return found

    def _check(self, address: int, count: int) -> None:
        begin, end = self.target.map.ram_address, self.target.map.ram_address + self.target.map.ram_bytes
        if count < 0 or not begin <= address <= end - count:
            raise InputError(
                "outside the device's global memory",
                location=f"address {address:#x}",
                expected=f"{begin:#x} to {end:#x}",
                found=f"{count} bytes",
            )

    def _error(self) -> SimulationError:
        failure = self._device.failure()
        marker, core = failure["marker"], failure["core"]
        phase = PHASES[marker % 4]
        places = [f"core {core} ({self._type(core)})", self._named(f"sub-operator {marker // 4} ({phase})")]
        if failure["pc"]:
            places.append(self._named(f"pc {failure['pc']:#x}"))
        places.append(f"cycle {failure['cycle']}")
        if failure["command"]:
            places.append(f"command `{failure['command']}`")
        first = Violation(failure["message"], ", ".join(places), failure["expected"], failure["found"], failure["hint"])
        return SimulationError(
            kind=failure["kind"], violations=(first, *(Violation(self._named(line)) for line in failure["details"]))
        )

    def _named(self, text: str) -> str:
        """A text with the names of sub-operators behind their numbers, and of functions behind places in the code."""

        def name_of(found: re.Match[str]) -> str:
            number = int(found[1])
            return f"{found[0]} {self._names[number]!r}" if number < len(self._names) else found[0]

        def place_of(found: re.Match[str]) -> str:
            symbol = self._image.symbol(int(found[1], 16))
            return f"{found[0]} <{symbol}>" if symbol else found[0]

        return re.sub(r"\bpc (0x[0-9a-f]+)", place_of, re.sub(r"sub-operator (\d+)", name_of, text))

    def _type(self, core: int) -> str:
        if core >= self.target.cores:
            return "aicpu"
        return "aic" if self.target.is_cube(core) else "aiv"


def read_program(program: bytes) -> _Image:
    """What is used of an ELF file. Raises FileFormatError on what is no program."""
    try:
        elf = ELFFile(io.BytesIO(program))
        if elf.elfclass != 64 or not elf.little_endian or elf["e_machine"] != "EM_RISCV":
            raise FileFormatError(
                "not a program for the accelerator",
                location="ELF header",
                expected="a little-endian ELF64 file for RISC-V",
                found=f"ELF{elf.elfclass}, {elf['e_machine']}",
            )
        segments = tuple(
            (s["p_paddr"], s["p_memsz"], s.data(), bool(s["p_flags"] & 2), bool(s["p_flags"] & 1))
            for s in elf.iter_segments("PT_LOAD")
            if s["p_memsz"]
        )
        symbols = [
            (symbol["st_value"], symbol.name, symbol["st_info"]["type"])
            for section in elf.iter_sections()
            if isinstance(section, SymbolTableSection)
            for symbol in section.iter_symbols()
            if symbol.name
        ]
        entry = elf["e_entry"]
    except (ELFError, ValueError, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise FileFormatError(f"not a loadable program: {error}", location="ELF file") from error
    private = next((value for value, name, _ in symbols if name == "sk_private"), None)
    functions = sorted({(value, name) for value, name, kind in symbols if kind == "STT_FUNC"})
    return _Image(entry, segments, private, tuple(n for _, n in functions), tuple(v for v, _ in functions))


def _misplaced(image: _Image, target: AicoreTarget, harts: int) -> list[Violation]:
    """What of an image does not fit the target's memory."""
    begin, end = target.map.ram_address, target.map.ram_address + target.map.ram_bytes
    memory = f"within {begin:#x} to {end:#x}"
    wrong = [
        Violation("a segment lies outside global memory", "PT_LOAD", memory, f"{address:#x} + {size:#x}")
        for address, size, data, _, _ in image.segments
        if not begin <= address <= end - size or len(data) > size
    ]
    code = [(address, address + size) for address, size, _, _, executable in image.segments if executable]
    if not any(first <= image.entry < last for first, last in code):
        wrong.append(Violation("the entry is not in an executable segment", "e_entry", "", f"{image.entry:#x}"))
    private = image.private_address
    if private is not None:
        size = harts * target.control.private_bytes
        if not begin <= private <= end - size or private % 8:
            wrong.append(
                Violation("the private memories do not fit", "sk_private", memory, f"{private:#x} + {size:#x}")
            )
        elif any(first < private + size and private < last for first, last in code):
            wrong.append(Violation("the private memories overlap the code", "sk_private", "", f"{private:#x}"))
    return wrong


__all__ = ["FAILURE_KINDS", "Device", "LaunchResult", "Mode"]
