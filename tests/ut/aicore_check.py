"""The test of every accelerator kernel: does it compute the reference, and does it touch exactly what its tiling
declares?

The kernel function is compiled for this machine with the stores to the register page turned into calls; commands are
carried out one by one, in program order, by the simulator's functional half, as are the control unit's own loads and
stores, with the fences and the drain that they need. MIX kernels run their roles in threads that meet in cross-core
flags. Checked: (a) the result of a whole run and of random splits, bit by bit the same; (b) global memory outside the
declared reads may hold anything, outside the declared writes nothing changes, all declared writes are written (by one
of the ranges, where they are partitioned at run time); (c) engine flags end as they began, cross-core flags at 0.
Timing and flag order are the simulator's to check.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from aicore_emulated import check_emulated, chosen
from kernel_check import GUARD, compare, mark
from llvmlite import ir
from numpy.typing import NDArray

from superkernel import _core
from superkernel.codegen.aicore.emission import emit_kernel, emitter_of
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import I64, VOID, Number, ir_of
from superkernel.ir.body import Body
from superkernel.ir.body import Role as Use
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.scheduler.tiling import pack_bytes
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Engine
from superkernel.target.engines.encoding import decode
from superkernel.target.engines.layout import DOORBELL, WINDOW_BYTES, operand_words
from superkernel.target.engines.table import by_opcode

Array = NDArray[Any]
Reference = Callable[[list[Array]], Mapping[int, Array]] | Mapping[int, Array]
TIMEOUT_S = 60.0


class _CallingBuilder(KernelBuilder):
    """Stores to the register page, loads and stores of the control unit become calls."""

    def _put(self, address: int, word: Number) -> None:
        self._out("test_store", VOID, (ir.Constant(I64, address), ir_of(word)))

    def _get(self, address: Number, kind: ir.Type) -> ir.Value:
        value = self._out("test_load", I64, (ir_of(address), ir.Constant(I64, kind.width // 8)))
        return value if kind == I64 else self.b.trunc(value, kind)

    def _set(self, address: Number, value: Number, kind: ir.Type) -> None:
        self._out("test_write", VOID, (ir_of(address), ir_of(value), ir.Constant(I64, kind.width // 8)))

    def _out(self, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [I64] * len(arguments)), name)
        return self.b.call(known, arguments)


@dataclass
class _Group:
    """What the roles of one range share: global memory and cross-core flags."""

    memory: bytearray
    flags: Counter[tuple[str, int]] = field(default_factory=Counter)
    half: Counter[tuple[str, int]] = field(default_factory=Counter)
    meet: threading.Condition = field(default_factory=threading.Condition)
    failure: BaseException | None = None

    def cross_set(self, role: CoreRole, flag: int, roles: Sequence[CoreRole]) -> None:
        with self.meet:
            vectors = [r for r in roles if not r.is_cube]
            if role.is_cube:
                for r in vectors:
                    self.flags[r.value, flag] += 1
            else:
                self.half[role.value, flag] += 1
                if all(self.half[r.value, flag] for r in vectors):
                    for r in vectors:
                        self.half[r.value, flag] -= 1
                    self.flags["cube", flag] += 1
            assert max(self.flags.values(), default=0) <= 15, "cross-core flag above 15"
            self.meet.notify_all()

    def barrier_all(self, role: CoreRole, flag: int) -> None:
        """All other ranges have come to the barrier before: what they left is in the workspace."""
        with self.meet:
            self.flags[role.value, flag] += 1

    def cross_wait(self, role: CoreRole, flag: int) -> None:
        with self.meet:
            ready = self.meet.wait_for(lambda: self.failure or self.flags[role.value, flag] > 0, TIMEOUT_S)
            if self.failure:
                raise RuntimeError("another role failed") from self.failure
            assert ready, f"{role.value} waits for flag {flag} for ever"
            self.flags[role.value, flag] -= 1


class _Core:
    """One role of one range: carries out the commands that its control code issues."""

    def __init__(self, kernel: CompiledKernel, role: CoreRole, group: _Group) -> None:
        self.kernel, self.role, self.group = kernel, role, group
        self.bench = _core.EngineBench(kernel.target_fields)
        self.windows = {e: [0] * (DOORBELL + 1) for e in Engine}
        self.flags: Counter[tuple[str, str, int]] = Counter(kernel.credits[role])
        self.commands: list[Any] = []
        self.failure: BaseException | None = None
        # Of the control unit's stores: may they start (an aicpu hart has no engines to drain), are they visible.
        self.drained, self.fenced = role is CoreRole.AICPU, True
        self.ordered = False  # its loads: behind what it waited for

    def store(self, address: int, word: int) -> None:
        if self.failure:
            return
        try:
            offset = address - self.kernel.target.map.page_address
            engine, number = Engine(offset // WINDOW_BYTES), offset % WINDOW_BYTES // 8
            self.windows[engine][number] = word & (1 << 64) - 1
            if number == DOORBELL:
                self._ring(engine)
        except BaseException as error:  # a callback from C cannot raise
            self.failure = error
            with self.group.meet:
                self.group.failure = self.group.failure or error
                self.group.meet.notify_all()

    def waited(self) -> None:
        self.ordered = False

    def fence(self) -> None:
        self.ordered = self.fenced = True

    def load(self, address: int, count: int) -> int:
        at = address - self.kernel.base
        if not self.ordered or not 0 <= at <= len(self.group.memory) - count or at % count:
            why = "not aligned or outside memory" if self.ordered else "with no fence behind a wait"
            self.failure = self.failure or AssertionError(f"the control unit loads from {address:#x}: {why}")
            return 0
        return int.from_bytes(self.group.memory[at : at + count], "little")

    def write(self, address: int, value: int, count: int) -> None:
        at = address - self.kernel.base
        inside = 0 <= at <= len(self.group.memory) - count and at % count == 0
        if self.drained and inside:
            self.group.memory[at : at + count] = (value & (1 << 8 * count) - 1).to_bytes(count, "little")
            self.fenced = False
        else:
            why = "not aligned or outside memory" if self.drained else "ahead of the drain of the core's engines"
            self.failure = self.failure or AssertionError(f"the control unit stores to {address:#x}: {why}")

    def _ring(self, engine: Engine) -> None:
        words = self.windows[engine]
        spec = by_opcode()[words[DOORBELL] & 0xFF]
        command = decode((*words[: operand_words(spec)], words[DOORBELL]), engine)
        self.commands.append(command)
        name = command.name
        if name in ("set_flag", "wait_flag"):
            peer, flag = str(command.operand("peer")), int(command.operand("flag"))
            pair = (engine.title, peer, flag) if name == "set_flag" else (peer, engine.title, flag)
            assert flag < self.kernel.target.queue.flag_ids, f"no such flag: {command}"
            self.flags[pair] += 1 if name == "set_flag" else -1
            assert 0 <= self.flags[pair] <= 1, f"flag {pair} is {self.flags[pair]} after {command}"
        elif name == "cross_set":
            if self.kernel.tiling.barriers:
                assert command.operand("mode") == "type", command
                self.group.barrier_all(self.role, int(command.operand("flag")))
            else:
                assert command.operand("mode") == "group", command
                self.group.cross_set(self.role, int(command.operand("flag")), self.kernel.tiling.roles())
        elif name == "cross_wait":
            self.group.cross_wait(self.role, int(command.operand("flag")))
        elif name == "drain":
            self.drained = True
        elif name != "barrier":
            core = "aic" if self.role.is_cube else "aiv"
            given = (*words[: operand_words(spec)], words[DOORBELL])
            wrong = self.bench.execute(engine.title, core, given, self.group.memory)
            assert wrong is None, f"{wrong}: {command}"

    def check_end(self, where: str) -> None:
        if self.failure:
            raise AssertionError(f"{where}, {self.role.value}: {self.failure}") from self.failure
        assert self.fenced, f"{where}, {self.role.value}: no fence behind the control unit's last store"
        left = {k: v for k, v in self.flags.items() if v != self.kernel.credits[self.role][k]}
        assert not left, f"{where}, {self.role.value}: flags left {left}"


class CompiledKernel:
    """A kernel's functions, compiled for this machine. `commands`: of the last run, by role."""

    def __init__(self, kernel: str, body: Body, tiling: AicoreTiling, target: AicoreTarget) -> None:
        self.body, self.tiling, self.target, self.base = body, tiling, target, target.map.ram_address
        self.target_fields = {
            f"{section}.{name}": target.value(f"{section}.{name}")
            for section, name in (path.split(".") for path, _ in target.origins)
        }
        self.commands: dict[CoreRole, list[Any]] = {}
        self.credits: dict[CoreRole, Counter[tuple[str, str, int]]] = {}
        self._engines: dict[CoreRole, Any] = {}
        self._calls: dict[CoreRole, Any] = {}
        self._current = threading.local()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._store = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)(
            lambda a, w: self._current.core.store(a, w)
        )
        self._load = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)(
            lambda a, n: self._current.core.load(a, n)
        )
        self._write = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)(
            lambda a, v, n: self._current.core.write(a, v, n)
        )
        self._fence = ctypes.CFUNCTYPE(None)(lambda: self._current.core.fence())
        self._wait = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(lambda word: self._current.core.waited())
        for role in tiling.roles():
            self._compile(kernel, role)

    def _compile(self, kernel: str, role: CoreRole) -> None:
        module = ir.Module(name="kernel")
        code = emit_kernel(
            module, "kernel", emitter_of(kernel), self.body, self.tiling, role, self.target, _CallingBuilder
        )
        self.waits = len(code.waits)
        self.credits[role] = Counter({(s.title, t.title, n): 1 for s, t, n in code.credits})
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=0)
        engine = llvm.create_mcjit_compiler(parsed, machine)
        for name, function in (
            ("test_store", self._store),
            ("test_load", self._load),
            ("sk_wait", self._wait),
            ("test_write", self._write),
            ("sk_fence", self._fence),
        ):
            if name in module.globals:
                engine.add_global_mapping(parsed.get_function(name), ctypes.cast(function, ctypes.c_void_p).value or 0)
        engine.finalize_object()
        self._engines[role] = engine
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * (5 + self.waits + len(self.body.operands)))
        self._calls[role] = kind(engine.get_function_address("kernel"))

    def run(self, memory: bytearray, addresses: Sequence[int], scratch: int, begin: int, end: int) -> None:
        """Run a range, all roles."""
        group = _Group(memory)
        cores = [_Core(self, role, group) for role in self.tiling.roles()]

        def work(core: _Core) -> None:
            self._current.core = core
            number = core.role.lane
            self._calls[core.role](begin, end, number, scratch, 0, *[1] * self.waits, *addresses)

        threads = [threading.Thread(target=work, args=(core,)) for core in cores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        where = f"{self.tiling}, units {begin}..{end}"
        for core in sorted(cores, key=lambda c: isinstance(c.failure, RuntimeError)):
            core.check_end(where)
        assert not any(group.flags.values()), f"{where}: cross-core flags left {dict(group.flags)}"
        self.commands = {core.role: core.commands for core in cores}


def check_aicore(
    kernel: str,
    body: Body,
    arrays: Sequence[Array | None],
    reference: Reference,
    *,
    tiling: AicoreTiling | None = None,
    tol: float | Mapping[int, float] = 2e-3,
    target: str | AicoreTarget = "mini",
    splits: int = 2,
    seed: int = 0,
    exact_writes: bool = True,
) -> list[AicoreTiling]:
    """See the module docstring; arguments as `kernel_check.check_body`. Returns the tilings checked."""
    device = load_target(target) if isinstance(target, str) else target
    given = [
        np.zeros(o.type.shape, o.type.dtype.numpy)
        if a is None
        else np.ascontiguousarray(a, o.type.dtype.numpy).reshape(o.type.shape)
        for a, o in zip(arrays, body.operands, strict=True)
    ]
    expected = reference(given) if callable(reference) else reference
    tilings: Sequence[Any] = [tiling] if tiling else list(family_of(kernel).tilings(kernel, body, device))
    assert tilings, "no tiling"
    for candidate in tilings:
        run = _Check(kernel, body, candidate, given, device)
        run.whole(expected, tol)
        run.ranges(random.Random(seed), splits, exact_writes)
        if chosen(kernel, body, candidate, device):
            run.emulated(kernel, given, device, tol)
        assert candidate.cost_cycles(body, 0, candidate.units, device) >= 0
    return list(tilings)


class _Check:
    def __init__(
        self, kernel: str, body: Body, tiling: AicoreTiling, arrays: list[Array], target: AicoreTarget
    ) -> None:
        self.body, self.tiling = body, tiling
        packs = tiling.packs(body)
        self.packed = [pack_bytes(packs.get(k), a) for k, a in enumerate(arrays)]
        self.kernel = CompiledKernel(kernel, body, tiling, target)
        self.where = f"{kernel}, {tiling}"
        self.offsets: list[int] = []
        at = 0
        for p in self.packed:
            at += GUARD
            at = -(-at // 512) * 512
            self.offsets.append(at)
            at += len(p) + GUARD
        self.scratch = -(-at // 512) * 512
        self.total = self.scratch + tiling.scratch_bytes + GUARD
        self.full = bytearray()
        self._declared(0, tiling.units, write=False)
        self.full = self._execute(0, tiling.units, 0x00, None)

    def _execute(self, begin: int, end: int, canary: int, poison: tuple[int, list[Array]] | None) -> bytearray:
        """Memory behind a run of a range. `poison`: a byte, and which bytes of each operand are not overwritten with
        it: those whose reads are declared."""
        memory = bytearray([canary]) * self.total
        fill, reads = poison or (0, [])
        for k, operand in enumerate(self.body.operands):
            if operand.role is Use.OUTPUT:
                continue
            data = self.packed[k].copy()
            if poison and operand.role is not Use.INOUT:
                data[~reads[k]] = fill & 1 if operand.type.dtype.name == "BOOL" else fill
            memory[self.offsets[k] : self.offsets[k] + len(data)] = data.tobytes()
        if self.tiling.barriers and self.full:
            workspace = slice(self.scratch, self.scratch + self.tiling.scratch_bytes)
            memory[workspace] = self.full[workspace]
        addresses = [self.kernel.base + o for o in self.offsets]
        self.kernel.run(memory, addresses, self.kernel.base + self.scratch, begin, end)
        return memory

    def _declared(self, begin: int, end: int, write: bool) -> list[Array]:
        masks = [np.zeros(len(p), bool) for p in self.packed]
        roles = [self.tiling.role_accesses(self.body, begin, end, role) for role in self.tiling.roles()]
        for access in self.tiling.accesses(self.body, begin, end):
            if access.write == write:
                for region in access.regions:
                    mark(masks[access.operand], region)
        of_roles = [np.zeros(len(p), np.int8) for p in self.packed]
        for accesses in roles:
            for access in accesses:
                if access.write == write:
                    mask = np.zeros(len(self.packed[access.operand]), bool)
                    for region in access.regions:
                        mark(mask, region)
                    of_roles[access.operand] += mask
        for mask, count in zip(masks, of_roles, strict=True):
            assert (mask == (count > 0)).all(), f"{self.where}: accesses of the roles are not those of the range"
            assert not write or (count <= 1).all(), f"{self.where}: two roles write the same bytes"
        return masks

    def _operand(self, memory: bytearray, k: int) -> Array:
        return np.frombuffer(memory, np.uint8, len(self.packed[k]), self.offsets[k])

    def whole(self, expected: Mapping[int, Array], tol: float | Mapping[int, float]) -> None:
        for k, want in expected.items():
            operand = self.body.operands[k]
            got = self._operand(self.full, k).view(operand.type.dtype.numpy).reshape(operand.type.shape)
            limit = tol[k] if isinstance(tol, Mapping) else tol
            compare(got, np.asarray(want).reshape(operand.type.shape), limit, f"{self.where}, operand {k}")

    def emulated(
        self, kernel: str, arrays: list[Array], target: AicoreTarget, tol: float | Mapping[int, float]
    ) -> None:
        """The same as whole programs (`aicore_emulated`)."""
        written = {k: o for k, o in enumerate(self.body.operands) if o.role in (Use.OUTPUT, Use.INOUT)}
        expected = {k: self._operand(self.full, k) for k in written}
        near = {k: tol.get(k, 0.0) if isinstance(tol, Mapping) else tol for k in written}
        masks = self._declared(0, self.tiling.units, write=True)
        check_emulated(kernel, self.body, self.tiling, target, arrays, masks, expected, near)

    def ranges(self, rng: random.Random, splits: int, exact_writes: bool) -> None:
        units = self.tiling.units
        for count in range(2, 2 + splits):
            cuts = sorted(rng.randint(0, units) for _ in range(count - 1))
            written = [np.zeros(len(p), np.int8) for p in self.packed]
            for begin, end in zip([0, *cuts], [*cuts, units], strict=True):
                for total, mask in zip(written, self._range(begin, end, exact_writes), strict=True):
                    total += mask
            for k, operand in enumerate(self.body.operands):
                if self.tiling.dynamically_partitioned and operand.role is Use.OUTPUT:
                    assert (written[k] == 1).all(), f"{self.where}: operand {k} is not partitioned byte by byte"

    def _range(self, begin: int, end: int, exact_writes: bool) -> list[Array]:
        """Which bytes were written: those that are the same whatever was there before."""
        where = f"{self.where}, units {begin}..{end}"
        reads, writes = (self._declared(begin, end, write=write) for write in (False, True))
        found: list[list[Array]] = []
        for canary, fill in ((0xA5, 0xFF), (0x5A, 0x7F)):
            memory = self._execute(begin, end, canary, (fill, reads))
            inside = np.zeros(self.total, bool)
            for k, operand in enumerate(self.body.operands):
                at = self.offsets[k]
                got, inout = self._operand(memory, k), operand.role is Use.INOUT
                inside[at : at + len(got)] = True
                if operand.role not in (Use.OUTPUT, Use.INOUT):
                    assert not writes[k].any(), f"{where}: an input is declared written"
                    continue
                before = self.packed[k] if inout else np.uint8(canary)
                changed = (got != before) & ~writes[k]
                assert not changed.any(), f"{where}: undeclared write to operand {k}, byte {np.argmax(changed)}"
                if self.tiling.dynamically_partitioned:
                    self._same(got, k, got != canary, where)
                elif not inout or exact_writes:
                    self._same(got, k, writes[k], where)
            found.append([self._operand(memory, k).copy() for k in range(len(self.packed))])
            inside[self.scratch : self.scratch + self.tiling.scratch_bytes] = True
            outside = np.frombuffer(memory, np.uint8)[~inside]
            assert (outside == canary).all(), f"{where}: written outside all operands"
        return [a == b for a, b in zip(*found, strict=True)]

    def _same(self, got: Array, k: int, mask: Array, where: str) -> None:
        want = self._operand(self.full, k)
        wrong = (got != want) & mask
        dtype = self.body.operands[k].type.dtype
        if wrong.any() and dtype.is_float:
            a, b = (x.view(dtype.numpy).astype(np.float64) for x in (got, want))
            wrong &= ~np.repeat(np.isnan(a) & np.isnan(b), dtype.itemsize)
        assert not wrong.any(), f"{where}: operand {k} differs from the full run at byte {np.argmax(wrong)}"
