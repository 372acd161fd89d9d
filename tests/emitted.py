"""What code generation makes, as text: a row for each kernel, program and table, of sizes and digests.

Code is looked at as emitters write it: LLVM's words ahead of its passes, machine code only where it is written without
LLVM. Names that are made of digests of what they stand for are numbered, constants have contents of their own. So the
texts depend neither on the CPU at hand nor on LLVM, only on the sources, and on the words of llvmlite's builder.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from image_nets import NETS
from llvmlite import ir
from numpy.typing import NDArray
from operator_cases import Case, cases
from plan_cases import (
    ACCELERATORS,
    GRAPHS,
    SMALL_TYPES,
    TARGETS,
    kernels_of,
    planned_graph,
    problems,
    small_problems,
    tilings,
    tilings_of,
    without_names,
)
from plan_draws import EDGES, MACHINES, drawn_problems
from plan_surroundings import surrounded, turned
from random_graphs import random_graph as small_graph
from random_models import random_graph

from superkernel.codegen.aicore.boot import boot_object
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.emission import emit_kernel, emitter_of
from superkernel.codegen.aicore.image import AicoreImageBuilder
from superkernel.codegen.aicore.memory_map import MemoryMap, map_addresses
from superkernel.codegen.aicore.program import emit_program, emit_singles
from superkernel.codegen.aicore.program_spec import CodeLine, ProgramSpec, launch_name, parts_of
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.firmware.boot import firmware_boot_object
from superkernel.codegen.firmware.image import firmware_texts
from superkernel.codegen.firmware.memory import FirmwareMap
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.entry import emit_entries, emit_waits
from superkernel.codegen.host.entry_spec import EntrySpec
from superkernel.codegen.host.entry_x86 import entries_object
from superkernel.codegen.host.image import ImageBuilder
from superkernel.codegen.microcontroller.image import ProgramBuilder
from superkernel.codegen.microcontroller.program import TableCall, TableSpec
from superkernel.codegen.microcontroller.program import emit_program as emit_table
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.options import Options
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, Role
from superkernel.ir.graph import Graph, Node
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.table import op_table
from superkernel.registry.records import Policy
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.winograd import PackWinograd
from superkernel.scheduler.schedule import Space
from superkernel.scheduler.tiling import Access, Pack, pack_bytes
from superkernel.sync.aicore.plan import Run

TILINGS_MAX = 3  # of a kernel
DRAWN = 280  # problems on CPUs with small caches
PACKED_MAX = 1 << 16  # elements of a constant
CALLED = re.compile(r"(?:^|= )(?:tail )?call ")
DIGESTS = re.compile(r"_[0-9a-f]{16,20}\b")
WITH_WEIGHTS = ("matmul", "gemm", "conv", "conv_integer", "conv_transpose", "matmul_integer", "block_matmul")
KERNELS_ON = ("avx512", "tiles", "plain", "neon", "cortex-m55", "a3", "scarce")
SMALL_ON: Mapping[str, tuple[DType, ...]] = {
    "avx512": SMALL_TYPES,
    "plain": (DType.F32, DType.I8),
    "neon": SMALL_TYPES[:1],
    "a3": (DType.F16, DType.F32, DType.I32),
    "scarce": (DType.F16,),
}


def digest(data: str | bytes) -> str:
    """What tells contents from one another."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:12]


def code_row(text: str) -> str:
    """Of IR: instructions, calls, stores, digest."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    counts = len(lines), sum(bool(CALLED.search(s)) for s in lines), sum(s.startswith("store ") for s in lines)
    return f"{' '.join(map(str, counts))} {digest(text)}"


def numbered(text: str) -> str:
    """Each digest at the end of a name replaced by the number of its first occurrence."""
    known: dict[str, str] = {}
    return DIGESTS.sub(lambda found: known.setdefault(found[0], f"_{len(known)}"), text)


def contents(kind: TensorType) -> NDArray[Any]:
    """Small whole numbers, which every format holds and no sum rounds."""
    values = np.arange(kind.size) * 7 % 13 - (0 if kind.dtype.numpy.kind == "u" else 6)
    return values.astype(kind.dtype.numpy).reshape(kind.shape)


def packed(packs: Iterable[tuple[Pack | None, TensorType]]) -> str:
    """Digests of packed constants; of those that are large, or whose packing rounds, of how they are packed."""
    found = []
    for pack, kind in packs:
        told = f"{pack} {kind}"
        if kind.size <= PACKED_MAX and not isinstance(pack, PackWinograd):
            told += digest(pack_bytes(pack, contents(kind)).tobytes())
        found.append(told)
    return digest("\n".join(found)) if found else "-"


def _some(found: Sequence[Any], count: int) -> Iterator[Any]:
    """So many, the first and the last among them, evenly apart."""
    places = {n * (len(found) - 1) // max(1, count - 1) for n in range(count)} if found else ()
    return (found[n] for n in sorted(places))


def _by_kernel(text: str, policy: Policy, target: Any) -> Iterator[tuple[str, Body, Any]]:
    """Some tilings of each kernel; in the order of their text, which no estimate changes."""
    of_kernel: dict[str, dict[str, tuple[Body, Any]]] = {}
    for kernel, body, tiling in tilings(text, policy, target):
        if getattr(target, "emulates_tiles", False) and not kernel.endswith("tiles"):
            continue  # they are as where there are no tiles
        of_kernel.setdefault(kernel, {})[str(tiling)] = body, tiling
    for kernel, found in sorted(of_kernel.items()):
        yield from ((kernel, *found[name]) for name in _some(sorted(found), TILINGS_MAX))


def _packs(body: Body, tiling: Any) -> Iterator[tuple[Pack | None, TensorType]]:
    constants = {k: o.type for k, o in enumerate(body.operands) if o.role is Role.CONSTANT}
    return ((pack, constants[k]) for k, pack in sorted(tiling.packs(body).items()) if k in constants)


def _places(accesses: Iterable[Access]) -> str:
    return str([(a.operand, a.write, [(r.start, r.length, r.stride, r.count) for r in a.regions]) for a in accesses])


def touched(body: Body, tiling: Any, target: Any) -> str:
    """A digest of what a tiling says that ranges of its units touch, where they may be cut, and whose code it has."""
    units = tiling.units
    spans = [(units // 3, units // 2 + 1), (units // 2, units // 2)]
    told = [_places(tiling.accesses(body, begin, end)) for begin, end in spans if end <= units]
    if isinstance(tiling, AicoreTiling):
        told += [_places(tiling.role_accesses(body, 0, units, role)) for role in tiling.roles()]
        told += [str(tiling.dependent_operands(body))]
    else:
        told += [str(tiling.representative(body, target))]
    told += [str(tiling.align(body, at)) for at in (0, units // 5, units // 2, units)]
    return digest("\n".join((*told, str(tiling.scratch_bytes))))


def kernels(name: str) -> str:
    """Of each problem the code of kernels that a target could take, in some tilings: of IR instructions, calls, stores
    and digest, then digests of packed constants and of what ranges touch; of an accelerator's, each role's."""
    target: Any = TARGETS[name]()
    lines = []
    for text, policy in (*problems(name), *small_problems(SMALL_ON.get(name, ()), images_last=name in ACCELERATORS)):
        lines.append(f"{text} {policy.precision}")
        found: dict[str, list[str]] = {}
        for kernel, body, tiling in _by_kernel(text, policy, target):
            constants = f"{packed(_packs(body, tiling))} {touched(body, tiling, target)}"
            if target.core_types:
                rows = [f"{_of_role(kernel, body, tiling, role, target)} {role.value} " for role in tiling.roles()]
            else:
                rows = [code_row(emit_ir(kernel, body, tiling, target)) + " "]
            for row in rows:
                found.setdefault(f"{row}{constants} {without_names(tiling)}", []).append(kernel)
        lines += [f"  {row} {' '.join(names)}" for row, names in found.items()]
    return "\n".join(lines) + "\n"


def fused(name: str) -> str:
    """The same of what an accelerator's kernels may have around them, in the tiling that is tried first, with what that
    is estimated to take."""
    target: Any = TARGETS[name]()
    lines = []
    small = small_problems(SMALL_ON[name], images_last=True)
    for text, policy in (*problems(name), *(row for row in small if not row[0].startswith("attention"))):
        for kernel, plain in kernels_of(text, policy, target):
            for how, body in surrounded(kernel, plain, target) if kernel != "aicore.scalar" else ():
                with suppress(UnsupportedError):
                    tiling: Any = next(iter(tilings_of(kernel, body, target)))
                    cost = f"{tiling.cost_ns(body, 0, tiling.units, target):.4g}"
                    told = f"{packed(_packs(body, tiling))} {touched(body, tiling, target)} {without_names(tiling)}"
                    lines.append(f"{text} {kernel}, {how}: {cost} {told}")
                    lines += [f"  {_of_role(kernel, body, tiling, r, target)} {r.value}" for r in tiling.roles()]
    return "\n".join(lines) + "\n"


def drawn_kernels() -> str:
    """Of each problem drawn one kernel in one tiling: what `kernels` says of it. Of every other one with something
    around it, where it takes that, or with an input in another layout; of `EDGES` with all of these."""
    machines = {name: made() for name, made in MACHINES.items()}
    lines = []
    for number, (name, text, policy) in enumerate(drawn_problems(DRAWN)):
        target = machines[name]
        found = {(kernel, str(tiling)): (body, tiling) for kernel, body, tiling in tilings(text, policy, target)}
        if not found:  # the NumPy reference's
            continue
        kernel, told = sorted(found)[number * 7 % len(found)]
        body, tiling = found[kernel, told]
        others = [*surrounded(kernel, body, target), *turned(kernel, body)] if number % 2 else []
        if number >= 2 * len(EDGES):
            others = others[number // 2 % len(others) :][:1] if others else []
        lines.append(f"{name} {text} {policy.precision}")
        for how, around in others or [("", body)]:
            if how:
                tiling = next(iter(tilings_of(kernel, around, target)))
                lines.append(f" {how}: {tiling.cost_ns(around, 0, tiling.units, target):.4g}")
            constants = f"{packed(_packs(around, tiling))} {touched(around, tiling, target)}"
            row = code_row(emit_ir(kernel, around, tiling, target))
            lines.append(f"  {row} {constants} {without_names(tiling)} {kernel}")
    return "\n".join(lines) + "\n"


def _of_role(kernel: str, body: Body, tiling: Any, role: Any, target: Any) -> str:
    """Code of a role, and what the program around it is told."""
    module = ir.Module(name="kernel")
    told = emit_kernel(module, "kernel", emitter_of(kernel), body, tiling, role, target)
    said = replace(told, scalar=frozenset(), commands=frozenset()), sorted(told.scalar), sorted(told.commands)
    return f"{code_row(str(module))} {digest(repr(said))}"


# Programs -------------------------------------------------------------------------------------------------------------


def _models(count: int, operators: int) -> Iterator[tuple[str, Graph]]:
    """The models; so many random ones and the networks of images; some instances of every operator as models."""
    yield from ((name, make()) for name, make in (*GRAPHS.items(), *(NETS.items() if count else ())))
    for seed in range(count):
        yield f"random {seed}", random_graph(random.Random(seed))
    for seed in range(count // 2):
        yield f"small {seed}", small_graph(seed)
    for op in op_table() if operators else ():
        found = [case for case in cases(op) if all(x is None or x.size for x in case.inputs)]
        for case in _some(found, operators):
            yield str(case), _graph_of(case)


def _graph_of(case: Case) -> Graph:
    """The graph of one operator; weights, which are all inputs behind the first of anchors with more, are constants."""
    arrays = {f"x{n}": x for n, x in enumerate(case.inputs) if x is not None}
    weights = {n: x for n, x in arrays.items() if case.op in WITH_WEIGHTS and n != "x0"}
    kinds = {n: TensorType(DType.of(x.dtype), x.shape) for n, x in arrays.items() if n not in weights}
    inputs = tuple(None if x is None else f"x{n}" for n, x in enumerate(case.inputs))
    definition = op_table()[case.op]
    types = [None if x is None else TensorType(DType.of(x.dtype), x.shape) for x in case.inputs]
    count = len(definition.infer(types, canonical_attrs(definition, case.attrs)))
    outputs = tuple(f"y{n}" for n in range(count))
    node = Node("op", case.op, inputs, outputs, case.attrs)
    return Graph.build(inputs=kinds, nodes=[node], outputs=outputs, constants=weights)


def _short(symbols: Iterable[str | None]) -> dict[str | None, str | None]:
    """Of each symbol one that has no digest."""
    return {s: s and DIGESTS.sub(f"_{n}", s) for n, s in enumerate(dict.fromkeys(symbols))}


class _HostProgram(ImageBuilder):
    """What an image is made of, before it is compiled."""

    def rows(self) -> Iterator[str]:
        """Of entries, then of kernels."""
        keys, symbols = self._kernel_keys()
        yield f"  {self.of_entries(self._entry_spec(symbols))}"
        yield from self.of_kernels(keys)

    def of_entries(self, spec: EntrySpec) -> str:
        """The entries in LLVM's words, and those of x86, which are written without it."""
        short = _short(task.symbol for task in spec.tasks)
        spec = replace(spec, tasks=tuple(replace(task, symbol=short[task.symbol]) for task in spec.tasks))
        written = digest(entries_object(spec))
        return f"{code_row(emit_entries(spec, self.cpu))} {written} entries, {digest(str(spec))} plan"

    def of_kernels(self, keys: Mapping[Any, Any]) -> Iterator[str]:
        """Each kernel's code."""
        for key in sorted(keys, key=str):
            sub, tiling = keys[key]
            yield f"  {code_row(_ir(key.text, sub.kernel, sub.body, tiling, self.cpu))} {sub.kernel}"


_known: dict[tuple[str, Any], str] = {}


def _ir(text: str, kernel: str, body: Body, tiling: Any, cpu: Any) -> str:
    """Of a kernel whose text determines its code on a CPU."""
    if (text, cpu) not in _known:
        _known[text, cpu] = emit_ir(kernel, body, tiling, cpu)
    return _known[text, cpu]


def _of_constants(made: Any) -> str:
    """What constants are packed into, and where they lie."""
    slots, arrays = made.schedule.constants, made.grouping.constants
    kinds = [TensorType(DType.of(arrays[c.value].dtype), arrays[c.value].shape) for c in slots]
    places = "\n".join(f"{c.value} {c.offset} {c.nbytes}" for c in slots)
    return f"{packed((c.pack, kind) for c, kind in zip(slots, kinds, strict=True))} {digest(places)} constants"


def _parts(name: str, made: Any) -> tuple[Any, ...]:
    """What an image is built from."""
    return made.schedule, made.plan, _cpu(name), ObjectCache(None)


def _counts(made: Any) -> dict[str, Any]:
    return {name: len(getattr(made.graph, name)) for name in ("inputs", "outputs", "states")}


def host_programs(name: str, count: int, operators: int = 0, precision: str = "auto") -> str:
    """Of each model: entries, also with nothing fetched ahead of waits, kernels, constants."""
    lines = [f"{code_row(emit_waits(_cpu(name)))} waits"]
    for model, graph in _models(count, operators):
        made = planned_graph(graph, name, Options(precision=precision))  # type: ignore[arg-type]
        builders = [_HostProgram(*_parts(name, made), **_counts(made), prefetch=prefetch) for prefetch in (False, True)]
        lines += [f"model {model}", next(builders[0].rows()), *builders[1].rows(), f"  {_of_constants(made)}"]
    return "\n".join(lines) + "\n"


class _Microcontroller(ProgramBuilder, _HostProgram):
    def table(self, graph: Graph) -> Iterator[str]:
        """The rows of the program, then of its kernels."""
        keys, symbols = self._kernel_keys()
        short = _short(symbols)
        calls = [
            TableCall(str(short[symbols[t.subop]]), self.schedule.addresses[t.subop], t.begin, t.end)
            for t in self.plan.tasks
        ]
        inputs, outputs, states = (
            tuple(graph.types[name] for name in names) for names in (graph.inputs, graph.outputs, graph.states)
        )
        arena = max(64, self.schedule.arena_bytes)
        spec = TableSpec(tuple(calls), inputs, outputs, states, arena + self.schedule.scratch_bytes, arena)
        yield f"  {code_row(emit_table(spec))} program"
        yield from self.of_kernels(keys)


def microcontroller_programs(name: str, count: int, operators: int = 0) -> str:
    """Of each model: the program that walks its table, kernels, constants."""
    lines = []
    for model, graph in _models(count, operators):
        made = planned_graph(graph, name)
        builder = _Microcontroller(*_parts(name, made), **_counts(made), prefetch=False)
        lines += [f"model {model}", *builder.table(made.graph), f"  {_of_constants(made)}"]
    return "\n".join(lines) + "\n"


class _AicoreProgram(AicoreImageBuilder):
    def rows(self) -> Iterator[str]:
        """The programs, without and with lines of code that are fetched ahead, then kernels and unit ranges."""
        calls = tuple(self._call(i) for i in range(len(self.schedule.subops)))
        private_bytes, start = MemoryMap.of(self.target).private_bytes, self.addresses.start(Space.CONSTANT)
        spec = ProgramSpec(self.plan, calls, private_bytes, start)
        for what, each in (("program", spec), ("with stubs", replace(spec, stubs=self._stubs(calls)))):
            yield f"  {code_row(numbered(emit_program(each, self.target)))} {what}"
        yield f"  {code_row(numbered(emit_singles(spec, self.target)))} singles"
        yield f"  {digest(str(self.addresses))} {digest(repr(self._notes(calls)))} {self._ranges(calls)} data"
        for index, call in enumerate(calls):
            for role, code in call.codes.items() if call is not None else ():
                text = self.texts[code.symbol].replace(code.symbol, "kernel")
                yield f"  {code_row(text)} {self.schedule.subops[index].kernel} {role.value}"

    def _ranges(self, calls: Any) -> str:
        return digest("".join(f"{c.address} {c.data.tobytes().hex()}\n" for c in self._parameters(calls)))

    def _stubs(self, calls: Any) -> dict[str, list[list[CodeLine]]]:
        """Ahead of each kernel two lines of it, one of them for a single lane."""
        found = {}
        for kind, program in self.plan.programs.items():
            for number, steps in enumerate(parts_of(program)):
                runs = [calls[s.subop] for s in steps if isinstance(s, Run)]
                symbols = [next(iter(call.codes.values())).symbol for call in runs if call is not None]
                lane = 0 if kind.value == "vector" else None
                found[launch_name(number, kind)] = [[CodeLine(s, 0), CodeLine(s, 64, lane)] for s in symbols]
        return found


def aicore_programs(name: str, count: int, operators: int = 0, **options: Any) -> str:
    """Of each model: programs, tables, kernels, constants."""
    shared: dict[Any, Any] = {}
    lines = []
    for model, graph in _models(count, operators):
        made = planned_graph(graph, name, Options(**options))
        types, states = ([made.graph.types[v] for v in names] for names in (made.graph.outputs, made.graph.states))
        addresses = map_addresses(made.schedule, _cpu(name), list(made.graph.inputs.values()), types, states)
        builder = _AicoreProgram(
            made.schedule, made.plan, _cpu(name), addresses, ObjectCache(None), CodeOptions(), None, shared
        )
        lines += [f"model {model}", *builder.rows(), f"  {_of_constants(made)}"]
    return "\n".join(lines) + "\n"


def firmware(names: Sequence[str]) -> str:
    """Of each target the code that starts programs and the firmware, then each function of the firmware, and where its
    data lies."""
    lines = []
    for name in names:
        places = FirmwareMap(_cpu(name))
        boots = boot_object(_cpu(name), harts=5, copies=2), firmware_boot_object(places)
        lines.append(f"{name} boot {' '.join(map(digest, boots))}")
        numbers = {key: getattr(places, key) for key, kind in vars(FirmwareMap).items() if isinstance(kind, property)}
        lines += [f"{name} {key} {value}" for key, value in sorted(numbers.items()) if isinstance(value, int)]
        for part, text in firmware_texts(_cpu(name)).items():
            lines.append(f"{name} {part} {code_row(text)}")
            for function in re.findall(r"^define [^\n]*@.*?^}", text, re.MULTILINE | re.DOTALL):
                found = re.search(r'@"?([\w.]+)', function)
                assert found is not None
                lines.append(f"  {code_row(function)} {found[1]}")
    return "\n".join(lines) + "\n"


@cache
def _cpu(name: str) -> Any:
    return TARGETS[name]()


TEXTS: Mapping[str, Callable[[], str]] = {
    **{f"kernels-{name}": partial(kernels, name) for name in KERNELS_ON},
    "fused-scarce": partial(fused, "scarce"),
    "kernels-drawn": drawn_kernels,
    "programs-avx512": partial(host_programs, "avx512", 50, 3),
    "programs-avx2": partial(host_programs, "avx2", 0, 0, "int8"),
    "programs-tiles": partial(host_programs, "tiles", 20, 0, "bf16"),
    "programs-plain": partial(host_programs, "plain", 20),
    "programs-cortex-m55": partial(microcontroller_programs, "cortex-m55", 20),
    "programs-mini": partial(aicore_programs, "mini", 12, 1, weight_prefetch="max"),
    "programs-a3": partial(aicore_programs, "a3", 0, early_start=False, sync="type-range"),
    "firmware": partial(firmware, ("mini", "a3")),
}
