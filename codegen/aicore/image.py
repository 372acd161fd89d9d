"""From schedule and plan to the accelerator's program: kernels by role, the launches around them, one ELF file.

Model: a kernel function per distinct (kernel id, body, tiling, role), named by its hash and shared by all
sub-operators that are equal; the program calls them. Objects are cached by their text. The layout of the code is the
order in which it runs: start code, kernels by first use, launches; what only a launch of single sub-operators needs
comes last. Launches stand behind the kernels so that stubs in them (`preload`), which are planned on the program
linked without them, move no kernel; by how much they move the launches' own code is estimated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from superkernel.codegen.aicore.boot import FENCE, MAIN, START, TRAP, boot_object
from superkernel.codegen.aicore.code_choice import CodeChoice, CodeOptions, settle
from superkernel.codegen.aicore.emission import KernelCode, emit_kernel, emitter_of
from superkernel.codegen.aicore.footprint import footprints
from superkernel.codegen.aicore.layer import WAIT_FUNCTION
from superkernel.codegen.aicore.linking import ElfSegment, Image, LinkLayout, link
from superkernel.codegen.aicore.lower import compile_modules
from superkernel.codegen.aicore.memory_map import PARAMETERS_BYTE, STACK_BYTES, MemoryMap, SpaceAddresses
from superkernel.codegen.aicore.program import emit_program, emit_singles
from superkernel.codegen.aicore.program_spec import KernelCall, ProgramSpec, launch_name, ranges_of
from superkernel.codegen.cache import ObjectCache
from superkernel.core.errors import UnsupportedError
from superkernel.scheduler.aicore.schedule import AicoreSchedule
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.scheduler.schedule import Space
from superkernel.scheduler.symbols import made_from, symbol_of
from superkernel.scheduler.tiling import Pack, pack_bytes
from superkernel.sync.aicore.plan import AicorePlan, CoreKind
from superkernel.target import certificate_note, launch_note, note
from superkernel.target.aicore import AicoreTarget

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Contents:
    """What memory holds at an address at the start: `value`, C-ordered, or, of `nbytes`, what `pack` makes of it, which
    engines alone read."""

    address: int
    value: NDArray[Any]
    nbytes: int
    pack: Pack | None = None

    @cached_property
    def data(self) -> NDArray[np.uint8]:
        """The bytes. Packed when somebody asks, and kept: packed constants are as large as the model."""
        return pack_bytes(self.pack, self.value)


@dataclass(frozen=True)
class AicoreImage:
    """A linked program with everything that its memory must hold at the start. `data`: constants and unit ranges.
    `symbols[i]`: the kernel functions of sub-operator i by role."""

    image: Image
    addresses: SpaceAddresses
    data: tuple[Contents, ...]
    symbols: tuple[dict[CoreRole, str], ...]
    calls: tuple[KernelCall | None, ...]
    host_calls: tuple[int, ...]
    between: tuple[int | None, ...]  # behind each launch but the last: what NumPy computes, or nothing
    code: CodeChoice
    ir_texts: dict[str, str] = field(default_factory=dict)

    @cached_property
    def elf(self) -> bytes:
        """The program as an ELF file: what the simulator and an emulator load."""
        return self.image.elf()

    def whole_elf(self, certificate: bytes) -> bytes:
        """The program and its data (constants, unit ranges) in one file, sealed with the note of its certificate.
        Inputs, outputs, arena are not in it."""
        extra = tuple(ElfSegment(p.address, p.data.tobytes(), "rw-", p.nbytes) for p in self.data if p.nbytes)
        notes = (*self.image.notes, (certificate_note.SECTION, certificate))
        return certificate_note.sealed(replace(self.image, segments=(*self.image.segments, *extra), notes=notes).elf())

    @cached_property
    def commands(self) -> dict[str, frozenset[str]]:
        """The engine commands that each kernel function issues, by symbol."""
        return {code.symbol: code.commands for c in self.calls if c is not None for code in c.codes.values()}

    @property
    def launches(self) -> int:
        """Launches of the fused kernel: one per scope, and one more behind each sub-operator without a kernel."""
        return len(self.between) + 1


@dataclass
class AicoreImageBuilder:
    """Builds one image. `kernels`: code and text by what they were made from, which builders may share."""

    schedule: AicoreSchedule
    plan: AicorePlan
    target: AicoreTarget
    addresses: SpaceAddresses
    cache: ObjectCache
    code: CodeOptions
    progress: Progress | None = None
    kernels: dict[tuple[str, CoreRole], tuple[KernelCode, str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict, init=False)

    @cached_property
    def busy(self) -> list[set[int]]:
        """Cores with units, by sub-operator."""
        found: list[set[int]] = [set() for _ in self.schedule.subops]
        for task in self.schedule.tasks:
            found[task.subop].add(task.core)
        return found

    def build(self, values: Mapping[str, NDArray[Any]]) -> AicoreImage:
        """Compile (or load) and link everything. `values`: the graph's constants by name."""
        rows = zip(self.schedule.subops, self.schedule.tilings, strict=True)
        calls = tuple(self._call(i) for i in range(len(self.schedule.subops)))
        private_bytes = MemoryMap.of(self.target).private_bytes
        linked, choice = self._settle(
            ProgramSpec(self.plan, calls, private_bytes, self.addresses.start(Space.CONSTANT))
        )
        return AicoreImage(
            replace(linked, notes=self._notes(calls)),
            self.addresses,
            (*self._constants(values), *self._parameters(calls)),
            tuple({} if c is None else {r: k.symbol for r, k in c.codes.items()} for c in calls),
            calls,
            tuple(s.index for s, t in rows if not isinstance(t, AicoreTiling)),
            self.plan.between,
            choice,
            dict(self.texts),
        )

    def _notes(self, calls: tuple[KernelCall | None, ...]) -> tuple[tuple[str, bytes], ...]:
        """What the file says of itself: its target, and the launches that run it."""
        launches: list[list[int]] = [[] for _ in range(len(self.plan.between) + 1)]
        for index, number in self.plan.launch_of.items():
            if calls[index] is not None:
                launches[number].append(index)
        table = launch_note.LaunchNote(tuple(map(tuple, launches)), tuple(sub.name for sub in self.schedule.subops))
        return (note.SECTION, note.note_bytes(self.target)), (launch_note.SECTION, table.note_bytes())

    def _settle(self, spec: ProgramSpec) -> tuple[Image, CodeChoice]:
        """Link without stubs and copies, plan them on what came out, and link what was planned."""
        self.texts["singles"] = self._singles(spec)
        kernels = compile_modules(list(self.texts.values()), self.cache, self._report)
        names = ["start", *self.texts, "program"]

        def build(choice: CodeChoice) -> tuple[bytes, Image]:
            self.texts["program"] = emit_program(replace(spec, stubs=choice.stubs), self.target)
            (program,) = compile_modules([self.texts["program"]], self.cache)
            return program, self._link([*kernels, program], names, choice.copies, spec.calls)

        first = CodeChoice.first(self.code)
        program, image = build(first)
        choice = settle(
            lambda stubs: footprints(image, program, self.plan, spec.calls, self.target.icache.line_bytes, stubs),
            self.code,
            self.target,
        )
        if (choice.stubs, choice.copies) != (first.stubs, first.copies):
            image = build(choice)[1]
        return image, choice

    def _singles(self, spec: ProgramSpec) -> str:
        """IR text of the launches of one sub-operator each."""
        return emit_singles(spec, self.target)

    def _link(self, objects: list[bytes], names: list[str], copies: int, calls: tuple[KernelCall | None, ...]) -> Image:
        harts = MemoryMap.of(self.target).harts
        order, launches = self._order(calls), self._launches()
        layout = LinkLayout.of(self.target, order=order, copies=copies, entered_cold=launches)
        if self.code.func_align:
            layout = replace(layout, func_align=self.code.func_align)
        return link([boot_object(self.target, harts=harts, copies=copies), *objects], layout, names)

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("compiling kernels", done, total)

    # Kernels ----------------------------------------------------------------------------------------------------------

    def _call(self, index: int) -> KernelCall | None:
        tiling = self.schedule.tilings[index]
        if not isinstance(tiling, AicoreTiling) or tiling.units == 0:
            return None
        codes = {role: self._code(index, role) for role in tiling.roles()}
        return KernelCall(
            codes,
            tuple(self.addresses.of(address) for address in self.schedule.addresses[index]),
            self.addresses.start(Space.SCRATCH) + self.schedule.workspaces.offset(index, 0),
            0 if tiling.barriers else self.schedule.workspaces.stride,
            self._everywhere(index, tiling),
            tiling.barriers,
            {k: c.stride for c in self.schedule.copies for i, k in c.uses if i == index},
        )

    def _everywhere(self, index: int, tiling: AicoreTiling) -> bool:
        """Whether every core of the kernel's types has units."""
        busy, roles = self.busy[index], tiling.roles()
        kinds = {CoreKind.CUBE if role.is_cube else CoreKind.VECTOR for role in roles}
        return all(busy.issuperset(self.plan.cores(kind)) for kind in kinds)

    def _code(self, index: int, role: CoreRole) -> KernelCode:
        """The kernel function of a role, emitted once for equal sub-operators of all programs that share kernels."""
        sub, tiling = self.schedule.subops[index], self.schedule.tilings[index]
        assert isinstance(tiling, AicoreTiling)
        text = made_from(sub, tiling, role.value)
        if (text, role) not in self.kernels:
            symbol = symbol_of(sub, tiling, role.value)
            module = ir.Module(name=symbol)
            code = emit_kernel(module, symbol, emitter_of(sub.kernel), sub.body, tiling, role, self.target)
            self.kernels[text, role] = code, str(module)
        found, ir_text = self.kernels[text, role]
        self.texts[found.symbol] = ir_text
        return found

    def _order(self, calls: tuple[KernelCall | None, ...]) -> list[str]:
        """Symbols in the order in which a fused launch needs them."""
        order = [START, TRAP, MAIN, WAIT_FUNCTION, FENCE]
        for call in calls:
            if call is not None:
                order += [code.symbol for code in call.codes.values()]
        return list(dict.fromkeys([*order, *self._launches()]))

    def _launches(self) -> list[str]:
        """Symbols of the fused launches."""
        parts = len(self.plan.between) + 1
        return [launch_name(number, kind) for number in range(parts) for kind in self.plan.programs]

    # Data -------------------------------------------------------------------------------------------------------------

    def _constants(self, values: Mapping[str, NDArray[Any]]) -> list[Contents]:
        base = self.addresses.start(Space.CONSTANT)
        return [Contents(base + c.offset, values[c.value], c.nbytes, c.pack) for c in self.schedule.constants]

    def _parameters(self, calls: tuple[KernelCall | None, ...]) -> list[Contents]:
        """Each core's unit ranges, as they stand in its private memory."""
        memory = MemoryMap.of(self.target)
        tables = ranges_of(self.plan, calls)
        room = memory.private_bytes - PARAMETERS_BYTE - STACK_BYTES
        longest = max(tables.values(), key=len)
        if 8 * len(longest) > room:
            raise UnsupportedError(
                f"too little private memory for the ranges of {len(longest)} sub-operators",
                location="target field 'control.private_bytes'",
                expected=f"at least {memory.private_bytes - room + 8 * len(longest)} bytes",
                found=memory.private_bytes,
                hint="a target file with more private memory per core",
            )
        rows = {core: [(0, 0)] * len(tables[self.plan.kind(core)]) for core in range(self.plan.harts)}
        for task in self.schedule.tasks:
            table = tables[self.plan.kind(task.core)]
            if task.subop in table:
                rows[task.core][table[task.subop]] = (task.begin, task.end)
        found = []
        for core, row in rows.items():
            packed = b"".join(struct.pack("<II", *pair) for pair in row)
            if packed:
                place = memory.private(core) + PARAMETERS_BYTE
                found.append(Contents(place, np.frombuffer(packed, np.uint8), len(packed)))
        return found
