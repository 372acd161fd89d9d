"""From schedule and plan to a loaded image: one kernel function per distinct body, three entries, packed constants.

Model: an object per distinct (kernel id, body, tiling), with one function named by its hash, which sub-operators,
graphs and options share; the entries' object holds what is particular to the plan. All are cached by everything that
determines them: IR-relevant data, CPU target, versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import llvmlite
from numpy.typing import NDArray

from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.constants import ConstantPlaces, HostConstants
from superkernel.codegen.host.entry_spec import BasePointer as BaseSpace
from superkernel.codegen.host.entry_spec import EntrySpec, Location, RunTask, SetCount, Step, TaskSpec, WaitFor
from superkernel.codegen.host.entry_x86 import entries_object
from superkernel.codegen.host.handover import Handovers
from superkernel.codegen.host.loader import LoadedCode, memory_bytes
from superkernel.codegen.host.shared_code import marks, own_object
from superkernel.core.version import __version__, sources_digest
from superkernel.ir.body import Body, SubOperator
from superkernel.ops.grouped import TILINGS
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.scheduler.symbols import made_from, symbol_of
from superkernel.scheduler.tiling import Tiling
from superkernel.sync.plan import Plan, Set, TaskStep
from superkernel.target.cpu import CpuTarget
from superkernel.target.timings import NO_TIMINGS

HOST_CALL = "host.reference"
GENERATOR = (
    "codegen/llvm.py",
    "codegen/host",
    "core",
    "ir",
    "ops",
    "scheduler/families",
    "scheduler/symbols.py",
    "scheduler/tiling.py",
    "target",
)
"""The sources that decide what is emitted for a body."""
PREFETCH_BYTES_MAX = 256 * 1024
KERNELS_WORTH_A_HELPER = 16  # in the time of ten it starts

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class KernelKey:
    """What a kernel function is made from, on any CPU; equal keys share code."""

    kernel: str
    text: str
    symbol: str

    @staticmethod
    def of(sub: SubOperator, tiling: Tiling) -> KernelKey:
        """The key of a sub-operator's kernel, cut so."""
        return KernelKey(sub.kernel, made_from(sub, tiling), symbol_of(sub, tiling))


@dataclass(frozen=True)
class KernelSource:
    """What an object is compiled from: `text` determines it on any one CPU. `sizes`: those that are filled into a copy
    of it, where kernels share it (`shared_code.py`)."""

    kernel: str
    body: Body
    tiling: Tiling
    text: str
    symbol: str
    sizes: Mapping[str, int] | None

    @staticmethod
    def of(key: KernelKey, sub: SubOperator, tiling: Tiling, cpu: CpuTarget) -> KernelSource:
        """Where the object of a key comes from."""
        found = tiling.representative(sub.body, cpu)
        if found is None:
            return KernelSource(key.kernel, sub.body, tiling, key.text, key.symbol, None)
        general = KernelKey.of(replace(sub, body=found.body), found.tiling)
        text = f"{general.text}\n{' '.join(found.sizes)}"
        return KernelSource(key.kernel, found.body, found.tiling, text, general.symbol, found.sizes)

    def own_object(self, compiled: bytes, symbol: str) -> bytes:
        """The object of the kernel of that symbol."""
        return compiled if self.sizes is None else own_object(compiled, self.symbol, symbol, self.sizes)


@dataclass
class HostImage:
    """Executable code, constants and sizes; what the host executor binds to the runtime."""

    cores: int
    spec: EntrySpec
    code: LoadedCode
    constants: HostConstants
    arena_bytes: int
    scratch_bytes: int
    io_slots: Mapping[Space, int]  # first slot of each space in the io table
    io_count: int
    host_calls: tuple[int, ...]  # sub-operators that run on the reference
    checked: tuple[int, ...]  # those that may find data out of range: the reference says how
    symbols: tuple[str | None, ...]  # per sub-operator
    objects: Mapping[str, bytes]  # cache key -> object
    from_cache: bool
    ir_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def code_bytes(self) -> int:
        """Of kernels and entries, with the constants in their code."""
        return sum(map(memory_bytes, self.objects.values()))

    def io_slot(self, address: MemoryAddress) -> int:
        """The io table's slot of an input, output or state."""
        return self.io_slots[address.space] + address.slot


class ImageBuilder:
    """Builds one image. `keep_ir` also keeps the IR text of what was compiled (SK_DUMP=ir); `later` takes what need not
    be done before the image runs: keeping its entries in the cache, which no other image has."""

    def __init__(
        self,
        schedule: Schedule,
        plan: Plan,
        cpu: CpuTarget,
        cache: ObjectCache,
        *,
        inputs: int,
        outputs: int,
        states: int,
        prefetch: bool = True,
        progress: Progress | None = None,
        keep_ir: bool = False,
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.schedule, self.plan, self.cpu, self.cache = schedule, plan, cpu, cache
        self.slots = {Space.INPUT: 0, Space.OUTPUT: inputs, Space.STATE: inputs + outputs}
        self.io_count = inputs + outputs + states
        self.places = ConstantPlaces(schedule.constants)
        self.prefetch, self.progress, self.keep_ir, self.later = prefetch, progress, keep_ir, later
        self.ir_texts: dict[str, str] = {}
        self.compiled = 0

    def build(self, values: Mapping[str, NDArray[Any]]) -> HostImage:
        """Compile (or load) and place everything. `values`: the graph's constants by name."""
        keys, symbols = self._kernel_keys()
        spec = self._entry_spec(symbols)
        objects = self._objects(keys, spec)
        calls = tuple(s.index for s in self.schedule.subops if s.kernel == HOST_CALL)
        return HostImage(
            cores=self.schedule.cores,
            spec=spec,
            code=LoadedCode(objects.values()),
            constants=HostConstants(self.schedule.constants, values),
            arena_bytes=max(64, self.schedule.arena_bytes),
            scratch_bytes=max(64, self.schedule.scratch_bytes),
            io_slots=self.slots,
            io_count=self.io_count,
            host_calls=calls,
            checked=tuple(s.index for s in self.schedule.subops if _checked_operand(s) is not None),
            symbols=symbols,
            objects=objects,
            from_cache=self.compiled == 0,
            ir_texts=self.ir_texts,
        )

    # Kernels ----------------------------------------------------------------------------------------------------------

    def _kernel_keys(self) -> tuple[dict[KernelKey, tuple[SubOperator, Tiling]], tuple[str | None, ...]]:
        """Distinct kernels with one example each, and the symbol of every sub-operator."""
        known: dict[tuple[str, int, int], KernelKey] = {}
        keys: dict[KernelKey, tuple[SubOperator, Tiling]] = {}
        symbols: list[str | None] = []
        for sub, tiling in zip(self.schedule.subops, self.schedule.tilings, strict=True):
            if sub.kernel == HOST_CALL or tiling.units == 0:
                symbols.append(None)
                continue
            identity = (sub.kernel, id(sub.body), id(tiling))
            key = known.get(identity)
            if key is None:
                key = known[identity] = KernelKey.of(sub, tiling)
                keys.setdefault(key, (sub, tiling))
            symbols.append(key.symbol)
        return keys, tuple(symbols)

    @cached_property
    def _stamp(self) -> str:
        """What decides, beside a kernel's own text, what an object becomes."""
        cpu = replace(self.cpu, timings=NO_TIMINGS)  # which decide what is emitted, not how
        return f"{__version__} {sources_digest(*GENERATOR)} {llvmlite.__version__} {cpu!r}"

    def _objects(self, keys: Mapping[KernelKey, tuple[SubOperator, Tiling]], spec: EntrySpec) -> dict[str, bytes]:
        """All object code by cache key: kernels in the order of their symbols, then the entries."""
        return {**self._kernel_objects(keys), **self._entry_objects(spec)}

    def _kernel_objects(self, keys: Mapping[KernelKey, tuple[SubOperator, Tiling]]) -> dict[str, bytes]:
        """Those of the kernels."""
        stamp = f"kernel {self._stamp}"

        def named(made: KernelKey | KernelSource) -> str:
            return f"{stamp}{HOST_KERNELS.sources_of(made.kernel)}\n{made.text}"

        sources = {key: KernelSource.of(key, *keys[key], self.cpu) for key in sorted(keys, key=lambda k: k.symbol)}
        names = {key: (named(key), named(source)) for key, source in sources.items()}
        common = {shared: self.cache.get(shared) for _, shared in names.values()}
        objects: dict[str, bytes | None] = {}
        parts: dict[str, KernelSource] = {}
        for key, (own, shared) in names.items():  # a saved kernel has its own ones
            objects[own] = self.cache.get(own) if own != shared and common[shared] is None else None
            if self.keep_ir or objects[own] is None:
                parts.setdefault(shared, sources[key])
        compiled = {name: common[name] for name in parts}
        if self.keep_ir or None in compiled.values():
            self._compile_kernels(parts, compiled)
        for key, (own, shared) in names.items():
            data = compiled.get(shared)
            if data is not None:
                objects[own] = sources[key].own_object(data, key.symbol)
        return {key: data for key, data in objects.items() if data is not None}

    def _entry_objects(self, spec: EntrySpec) -> dict[str, bytes]:
        """Those of waits and entries. What is written without LLVM is not cached: that would take longer."""
        waits = f"waits {self._stamp}"
        if writes_entries(self.cpu):
            written = entries_object(spec)
            own: dict[str, bytes | None] = {f"entries {hashlib.sha256(written).hexdigest()}": written}
        else:
            entries = f"entries {self._stamp}\n{spec}"
            own = {entries: self.cache.get(entries)}
        objects = {waits: self.cache.get(waits), **own}
        for name, found in objects.items():
            if found is None or self.keep_ir:
                self._compile_entries(name, spec, objects)
        return {key: data for key, data in objects.items() if data is not None}

    def _compile_entries(self, key: str, spec: EntrySpec, objects: dict[str, bytes | None]) -> None:
        """The object of the entries, or that of their waits. `ir_texts` has both in LLVM's words."""
        from superkernel.codegen.host.entry import emit_entries, emit_waits
        from superkernel.codegen.host.lower import machine_of
        from superkernel.codegen.llvm import compile_text
        from superkernel.codegen.processes import run_jobs

        name = key.partition(" ")[0]
        text, level = (emit_waits(self.cpu), 2) if name == "waits" else (emit_entries(spec, self.cpu), 0)
        if self.keep_ir:
            self.ir_texts[name] = text
        if objects[key] is None:
            self._report("compiling entries", 0, 1)
            (data,) = run_jobs(partial(compile_text, machine=machine_of(self.cpu, level)), [text])
            self._keep(key, data, objects)

    def _compile_kernels(
        self,
        parts: Mapping[str, KernelSource],
        objects: dict[str, bytes | None],
    ) -> None:
        """Fill in the objects that are missing."""
        from superkernel.codegen.host.emitters import emit_shared
        from superkernel.codegen.host.lower import machine_of
        from superkernel.codegen.llvm import compile_text
        from superkernel.codegen.processes import run_jobs

        def emitted(source: KernelSource) -> str:
            table = None if source.sizes is None else marks(source.symbol, source.sizes)
            return emit_shared(source.kernel, source.body, source.tiling, self.cpu, source.symbol, table)

        if self.keep_ir:
            self.ir_texts |= {source.symbol: emitted(source) for source in parts.values()}
        missing = [name for name, data in objects.items() if data is None]
        made = run_jobs(
            partial(compile_text, machine=machine_of(self.cpu)),
            [parts[name] for name in missing],
            lambda done: self._report("compiling kernels", done, len(missing)),
            prepare=emitted,
            jobs_per_child=KERNELS_WORTH_A_HELPER,
        )
        for name, data in zip(missing, made, strict=True):
            self._keep(name, data, objects)

    def _keep(self, key: str, data: bytes, objects: dict[str, bytes | None]) -> None:
        self.compiled += 1
        if self.later is not None and key.startswith("entries "):
            self.later(partial(self.cache.put, key, data))
        else:
            self.cache.put(key, data)
        objects[key] = data

    def _report(self, text: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(text, done, total)

    # Entries ----------------------------------------------------------------------------------------------------------

    def _entry_spec(self, symbols: Sequence[str | None]) -> EntrySpec:
        operands = tuple(
            () if symbol is None else tuple(map(self._location, row))
            for symbol, row in zip(symbols, self.schedule.addresses, strict=True)
        )
        checked = tuple(map(_checked_operand, self.schedule.subops))
        tasks = tuple(
            TaskSpec(t.subop, t.core, symbols[t.subop], operands[t.subop], t.begin, t.end, checked[t.subop])
            for t in self.plan.tasks
        )
        handovers = Handovers(self.plan) if self.prefetch else None
        programs = tuple(self._steps(program, handovers) for program in self.plan.programs)
        return EntrySpec(tasks, programs, self.plan.sets, len(self.schedule.subops))

    def _location(self, address: MemoryAddress) -> Location:
        if address.space is Space.ARENA:
            return Location(BaseSpace.ARENA, address.offset)
        if address.space is Space.CONSTANT:
            block, offset = self.places.find(address.offset)
            if block is None:
                return Location(BaseSpace.CONSTANTS, offset)
            return Location(BaseSpace.IO, offset, self.io_count + block)
        return Location(BaseSpace.IO, address.offset, self.slots[address.space] + address.slot)

    def _steps(self, program: Sequence[Any], handovers: Handovers | None) -> tuple[Step, ...]:
        """Waits look ahead to the body behind them: its constants and what it is handed are what they prefetch."""
        steps: list[Step] = []
        bodies = [step.task for step in program if isinstance(step, TaskStep)]
        passed = 0
        for step in program:
            if isinstance(step, TaskStep):
                passed += 1
                steps.append(RunTask(step.task))
            elif isinstance(step, Set):
                steps.append(SetCount(step.count))
            else:
                coming = bodies[passed] if passed < len(bodies) else None
                if handovers is None or coming is None:
                    steps.append(WaitFor(step.producer, step.count, step.index))
                    continue
                lines = (MemoryAddress(*line) for line in handovers.lines(step, coming))
                data = tuple(map(self._location, lines))
                start, nbytes = prefetched(self.plan, coming)
                weights = self._location(MemoryAddress(Space.CONSTANT, 0, start))
                steps.append(WaitFor(step.producer, step.count, step.index, weights, nbytes, data))
        return tuple(steps)


def writes_entries(cpu: CpuTarget) -> bool:
    """Whether the entries are written as machine code (`entry_x86.py`), and not by LLVM."""
    return cpu.triple.startswith("x86_64")


def _checked_operand(sub: SubOperator) -> int | None:
    """Where a kernel stores whether its data was in range."""
    return sub.body.epilogue.outputs[0].target if sub.body.op in TILINGS and sub.kernel != HOST_CALL else None


def prefetched(plan: Plan, task: int) -> tuple[int, int]:
    """(offset, bytes) of what a worker that waits ahead of a task prefetches: the longest run of constants that the
    task reads, its first PREFETCH_BYTES_MAX bytes."""
    runs = [
        (region.nbytes, region.start)
        for access in plan.tasks[task].accesses
        if access.space is Space.CONSTANT
        for region in access.regions
    ]
    if not runs:
        return (0, 0)
    nbytes, start = max(runs)
    return (start, min(nbytes, PREFETCH_BYTES_MAX))
