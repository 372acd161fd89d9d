"""From schedule and plan to what goes into a microcontroller's memory: kernel objects, the program's object, constants.

Model: kernels are the host's, translated for the core; each is an object of its own, which the cache keeps. What they
call that no object defines is what compilers call by themselves (`RUNTIME_FUNCTIONS`): every toolchain for these cores
brings it, and whoever links has it.

Invariant: an object that calls anything else, or has memory that is written, is an InternalError, never left to a
firmware's linker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from numpy.typing import NDArray

from superkernel.codegen.host.constants import HostConstants
from superkernel.codegen.host.image import HOST_CALL, ImageBuilder
from superkernel.codegen.microcontroller.program import (
    ARENA_ALIGN_BYTES,
    RESET,
    RUN,
    TABLE,
    TableCall,
    TableSpec,
    emit_program,
)
from superkernel.core.errors import InternalError, UnsupportedError, Violation, raise_all
from superkernel.core.tensor import TensorType
from superkernel.core.version import sources_digest
from superkernel.ops.grouped import TILINGS
from superkernel.sync.plan import TaskStep

RUNTIME_FUNCTIONS = re.compile(r"__aeabi_\w+|mem(cpy|set|move)|(ceil|floor|trunc|rint|nearbyint|roundeven|fma)f?")
"""What objects may leave to the linker: the run-time ABI of the Arm architecture (libgcc, compiler-rt), and functions
of the C library that have no state."""
_WRITTEN, _IN_MEMORY = 1, 2  # flags of sections


@dataclass
class MicrocontrollerImage:
    """What is linked into a firmware. `objects`: cache key -> object; the last is the program's. `needs`: functions
    that they leave to the linker."""

    spec: TableSpec
    constants: HostConstants
    symbols: tuple[str | None, ...]  # per sub-operator
    objects: Mapping[str, bytes]
    from_cache: bool
    scratch_bytes: int
    values_bytes: int
    needs: tuple[str, ...]
    cores: int = 1
    host_calls: tuple[int, ...] = ()
    ir_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def arena_bytes(self) -> int:
        """Of values; what a caller gives has working memory behind them."""
        return self.values_bytes

    @property
    def program(self) -> bytes:
        """The object with the table and what walks it."""
        return list(self.objects.values())[-1]

    @property
    def working(self) -> range:
        """Working memory: bytes of what the caller gives."""
        return range(self.values_bytes, self.spec.arena_bytes)

    @property
    def code_bytes(self) -> int:
        """Of kernels and program, with the constants in their code."""
        return sum(map(memory_bytes, self.objects.values()))


class ProgramBuilder(ImageBuilder):
    """Builds one image of one core's plan."""

    def program(
        self,
        values: Mapping[str, NDArray[Any]],
        inputs: tuple[TensorType, ...],
        outputs: tuple[TensorType, ...],
        states: tuple[TensorType, ...],
    ) -> MicrocontrollerImage:
        """Compile (or load) everything. `values`: the graph's constants by name. Raises UnsupportedError where a kernel
        may find data out of range, which nobody could tell."""
        schedule = self.schedule
        found = [s for s in schedule.subops if s.body.op in TILINGS or s.kernel == HOST_CALL]
        raise_all(
            UnsupportedError,
            [Violation("not on a microcontroller", f"sub-operator {s.name!r}", found=str(s.body.op)) for s in found],
        )
        keys, symbols = self._kernel_keys()
        calls = []
        for step in self.plan.programs[0]:
            if not isinstance(step, TaskStep):
                continue
            task = self.plan.tasks[step.task]
            symbol = symbols[task.subop]
            assert symbol is not None
            calls.append(TableCall(symbol, schedule.addresses[task.subop], task.begin, task.end))
        arena = max(ARENA_ALIGN_BYTES, -(-schedule.arena_bytes // ARENA_ALIGN_BYTES) * ARENA_ALIGN_BYTES)
        scratch = -(-schedule.scratch_bytes // ARENA_ALIGN_BYTES) * ARENA_ALIGN_BYTES
        spec = TableSpec(tuple(calls), inputs, outputs, states, arena + scratch, arena)
        objects = self._kernel_objects(keys)
        objects |= self._program_object(spec)
        written = [key.partition(" ")[0] for key, data in objects.items() if _written_bytes(data)]
        if written:
            raise InternalError("code for a microcontroller has memory that is written", found=", ".join(written))
        needs = sorted({name for data in objects.values() for name in undefined(data)} - {*_defined(objects)})
        return MicrocontrollerImage(
            spec, HostConstants(schedule.constants, values), symbols, objects, self.compiled == 0,
            schedule.scratch_bytes, arena, tuple(_checked(needs)), ir_texts=self.ir_texts,
        )  # fmt: skip

    def _program_object(self, spec: TableSpec) -> dict[str, bytes]:
        from superkernel.codegen.host.lower import machine_of
        from superkernel.codegen.llvm import compile_text
        from superkernel.codegen.processes import run_jobs

        key = f"program {self._stamp} {sources_digest('codegen/microcontroller')}\n{spec}"
        data = self.cache.get(key)
        if self.keep_ir or data is None:
            text = emit_program(spec)
            self.ir_texts["program"] = text
            (data,) = run_jobs(partial(compile_text, machine=machine_of(self.cpu)), [text])
            self.compiled += 1
            self.cache.put(key, data)
        return {key: data}


def memory_bytes(data: bytes) -> int:
    """What an object takes in memory."""
    return sum(s["sh_size"] for s in ELFFile(BytesIO(data)).iter_sections() if s["sh_flags"] & _IN_MEMORY)


def _written_bytes(data: bytes) -> int:
    both = _WRITTEN | _IN_MEMORY
    return sum(s["sh_size"] for s in ELFFile(BytesIO(data)).iter_sections() if s["sh_flags"] & both == both)


def undefined(data: bytes) -> list[str]:
    """The symbols that an object wants from others."""
    tables = [s for s in ELFFile(BytesIO(data)).iter_sections() if isinstance(s, SymbolTableSection)]
    return [s.name for table in tables for s in table.iter_symbols() if s.name and s["st_shndx"] == "SHN_UNDEF"]


def _defined(objects: Mapping[str, bytes]) -> list[str]:
    found = [RUN, RESET, TABLE]
    for data in objects.values():
        for table in ELFFile(BytesIO(data)).iter_sections():
            if isinstance(table, SymbolTableSection):
                found += [s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"]
    return found


def _checked(needs: list[str]) -> list[str]:
    ours = ("sk_constants", "sk_initial", "__aeabi_unwind_cpp_pr0")
    strange = [name for name in needs if not RUNTIME_FUNCTIONS.fullmatch(name) and name not in ours]
    if strange:
        raise InternalError("code for a microcontroller calls what no firmware has", found=", ".join(strange))
    return [name for name in needs if name not in ours]
