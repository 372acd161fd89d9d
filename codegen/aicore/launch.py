"""One launch on one type of core: a straight line of the plan's steps around calls of kernels, as LLVM IR.

Ahead of each kernel, at the entry of its sub-operator, may stand a *stub* (`preload`): prefetches of code, one line
each. The first one stands at the entry of the launch. Where buffers of successive kernels overlap in local memory, the
engines that touch them meet between the two.

The progress marker says where a core is: sub-operator * 4 + phase. The number behind the last sub-operator stands for
the launch itself: phase 1 when it begins, 3 when the core is done with it. What lies outside (start code, the count
of harts at the end) belongs to the launch's cost, `dispatch.launch_ns`.

Invariants: all cores of a type pass the same signals and awaits, with work or without. A launch ends with all engines
drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llvmlite import ir

from superkernel.codegen.aicore.commands import SCRATCH
from superkernel.codegen.aicore.emission import KernelCode, LocalUse
from superkernel.codegen.aicore.layer import FENCE_FUNCTION, LOCAL_FENCE, WAIT_FUNCTION, barrier_flag
from superkernel.codegen.aicore.memory_events import MemoryEvents
from superkernel.codegen.aicore.memory_map import MARKER_WORD, PARAMETERS_BYTE
from superkernel.codegen.aicore.program_spec import (
    PHASE_BEHIND,
    PHASE_BODY,
    PHASE_ENTRY,
    CodeLine,
    KernelCall,
    ProgramSpec,
    runs_on,
)
from superkernel.codegen.aicore.scalar import I64, PTR, VOID, declare
from superkernel.codegen.aicore.service_program import emit_notify
from superkernel.codegen.aicore.statements import define, issue, store, word
from superkernel.codegen.aicore.wait_entries import Waits, wait_entries
from superkernel.scheduler.families.aicore.base import CoreRole
from superkernel.sync.aicore.plan import AICPU, Await, CoreKind, Drain, Event, HartKind, Mode, Notify, Run, Signal, Step
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Engine, command

OFFSET_BYTES = 32  # `prefetch.i` takes offsets in steps of this
OFFSET_BROKEN = 4064  # LLVM 22 makes this offset of a prefetch 2016 + 2048, and stops because 2048 has 13 bits
STORE_ENGINE: dict[HartKind, Engine] = {CoreKind.CUBE: Engine.FIX, CoreKind.VECTOR: Engine.MTE3}


class Launch:
    """One straight line of steps for one type of core: `void name(core, private)`."""

    def __init__(
        self,
        module: ir.Module,
        spec: ProgramSpec,
        target: AicoreTarget,
        kind: HartKind,
        name: str,
        table: Mapping[int, int],
    ) -> None:
        self.module, self.spec, self.target, self.kind, self.table = module, spec, target, kind, table
        self.function, self.b = define(module, name, 2)
        self.core, self.private = self.function.args
        plan = spec.plan
        per_group = max(1, len(plan.cores(kind)) // plan.groups)
        self.group = self.b.udiv(self.core, word(per_group))
        self.lane = self.b.urem(self.core, word(per_group))
        self.stubs = spec.stubs.get(name, ())
        self.runs = 0
        self.pending: dict[LocalUse, set[Engine]] = {}  # buffers of earlier kernels, and engines that waited for all
        self.words = MemoryEvents(module, self.b, plan, self.private, target)

    def emit(self, steps: Iterable[Step], *, ends_run: bool = False) -> ir.Function:
        """The function of a launch's steps. `ends_run`: no launch follows, so the exit stands behind them."""
        outside = len(self.spec.calls)
        self._mark(outside, PHASE_ENTRY)
        self._stub()
        steps = list(steps)
        credits = self._credits(steps)
        for source, later, flag in credits:
            issue(self.b, self.target, command("set_flag", engine=source, peer=later.title, flag=flag))
        for step in steps:
            if isinstance(step, Run):
                self._run(step)
            elif isinstance(step, Await):
                self._await(self.spec.plan.events[step.event])
            elif isinstance(step, Signal):
                self._signal(self.spec.plan.events[step.event])
            elif isinstance(step, Notify):
                assert isinstance(self.kind, CoreKind)
                emit_notify(self.module, self.b, self.kind, self.core, self.private, self.target)
            elif isinstance(step, Drain):
                self._drain()
        for source, later, flag in credits:
            issue(self.b, self.target, command("wait_flag", engine=later, peer=source.title, flag=flag))
        self._drain()
        if ends_run:
            self.words.end_run()
        self._mark(outside, PHASE_BEHIND)
        self.b.ret_void()
        return self.function

    def _credits(self, steps: Sequence[Step]) -> list[tuple[Engine, Engine, int]]:
        """The flags that stand at 1 ahead of every kernel, for as long as the launch lasts."""
        codes = [
            code
            for step in steps
            if isinstance(step, Run) and (call := self.spec.calls[step.subop]) is not None
            for role, code in call.codes.items()
            if runs_on(role, self.kind)
        ]
        found = {credit for code in codes for credit in code.credits}
        return sorted(found, key=lambda c: (c[0].value, c[1].value, c[2]))

    def _drain(self) -> None:
        """All that was begun is done; an aicpu hart has begun nothing but its own stores."""
        if self.kind is AICPU:
            self._call(FENCE_FUNCTION, [])
        else:
            issue(self.b, self.target, command("drain"))

    def _signal(self, event: Event) -> None:
        engine = STORE_ENGINE.get(self.kind, Engine.CONTROL)
        if event.mode is Mode.NOTIFY:
            self.words.signal(event, engine)
        else:
            issue(self.b, self.target, command("cross_set", engine=engine, flag=event.flag, mode=event.mode.value))

    def _await(self, event: Event) -> None:
        if event.mode is Mode.NOTIFY:
            self.words.wait(event)
            return
        issue(self.b, self.target, command("cross_wait", flag=event.flag))

    def _mark(self, subop: int, phase: int) -> None:
        at = self.b.add(self.private, word(8 * MARKER_WORD))
        store(self.b, at, word(subop * 4 + phase))

    def _call(self, name: str, arguments: Sequence[ir.Value]) -> None:
        self.b.call(declare(self.module, name, len(arguments)), arguments)

    def _run(self, step: Run) -> None:
        call = self.spec.calls[step.subop]
        if call is None:
            for event in {e: None for wait in step.waits for e in wait.events}:
                self._await(self.spec.plan.events[event])
            return
        roles = [role for role in call.codes if runs_on(role, self.kind)]
        waits = self._waits(step, call.codes[roles[0]])
        self._mark(step.subop, PHASE_ENTRY)
        if self.runs:
            self._stub()
        self.runs += 1
        for entry in waits.early:
            self._call(WAIT_FUNCTION, [word(1), word(entry)])
        at = self.b.add(self.private, word(PARAMETERS_BYTE + 8 * self.table[step.subop]))
        pair = self.b.load(self.b.inttoptr(at, PTR), typ=I64, align=8)
        begin = self.b.and_(pair, word(0xFFFFFFFF))
        end = self.b.lshr(pair, word(32))
        busy = self.b.icmp_unsigned("<", begin, end)
        if waits.flags or step.barriers:
            with self.b.if_else(busy) as (then, otherwise):
                with then:
                    self._kernel(step.subop, call, roles, waits, begin, end)
                with otherwise:
                    if waits.flags:
                        self._call(WAIT_FUNCTION, [word(waits.flags), word(waits.entries)])
                    self._join_barriers(step.barriers)
        else:
            with self.b.if_then(busy):
                self._kernel(step.subop, call, roles, waits, begin, end)
        self._settle(call, roles)
        self._mark(step.subop, PHASE_BEHIND)

    def _waits(self, step: Run, code: KernelCode) -> Waits:
        if self.kind is AICPU:  # nothing waits inside its kernels, and its own stores are behind a fence
            return Waits(0, {}, 0, ())
        return wait_entries(self.spec.plan, step, code, STORE_ENGINE[self.kind])

    def _join_barriers(self, barriers: int) -> None:
        """A core without units at the barriers of those that have some."""
        for _ in range(barriers):
            flag = barrier_flag(self.target)
            issue(self.b, self.target, command("cross_set", engine=Engine.CONTROL, flag=flag, mode="type"))
            issue(self.b, self.target, command("cross_wait", flag=flag))

    def _stub(self) -> None:
        """Prefetch what the plan says for the kernel that comes next."""
        lines = self.stubs[self.runs] if self.runs < len(self.stubs) else ()
        self._prefetch([line for line in lines if line.lane is None])
        for lane in sorted({line.lane for line in lines if line.lane is not None}):
            with self.b.if_then(self.b.icmp_unsigned("==", self.lane, word(lane))):
                self._prefetch([line for line in lines if line.lane == lane])

    def _prefetch(self, lines: Sequence[CodeLine]) -> None:
        kind = ir.FunctionType(VOID, [PTR, *[ir.IntType(32)] * 3])
        prefetch = self.module.globals.get("llvm.prefetch.p0") or ir.Function(self.module, kind, "llvm.prefetch.p0")
        read, keep, instructions = (ir.Constant(ir.IntType(32), n) for n in (0, 3, 0))
        for line in lines:
            if line.offset == OFFSET_BROKEN:  # only where lines are so short that it has no other name
                continue
            if line.symbol == FENCE_FUNCTION:  # all others are called, and so declared, in this module
                declare(self.module, line.symbol, 0)
            address = ir.FormattedConstant(PTR, f'getelementptr (i8, ptr @"{line.symbol}", i64 {line.offset})')
            self.b.call(prefetch, [address, read, keep, instructions])

    def _kernel(
        self, subop: int, call: KernelCall, roles: Sequence[CoreRole], waits: Waits, begin: ir.Value, end: ir.Value
    ) -> None:
        """Local memory is fenced, then the kernel of the core's role is called."""
        # The two engines meet, always in the same roles: with a flag in one direction only, a second fence could set it
        # before an engine that lags has taken it for the first.
        pairs = {tuple(sorted(pair, key=lambda e: e.value)) for pair in self._local_fences(call, roles)}
        for first, second in sorted(pairs, key=lambda pair: (pair[0].value, pair[1].value)):
            for name, engine, peer in (
                ("set_flag", first, second),
                ("wait_flag", second, first),
                ("set_flag", second, first),
                ("wait_flag", first, second),
            ):
                issue(self.b, self.target, command(name, engine=engine, peer=peer.title, flag=LOCAL_FENCE))
        self._mark(subop, PHASE_BODY)
        code = call.codes[roles[0]]
        owner = self.group if len(call.codes) > 1 else self.core
        shift = 0 if len(call.codes) > 1 or self.kind is CoreKind.CUBE else self.spec.plan.cube_cores
        scratch: ir.Value = word(call.scratch)
        if SCRATCH in code.waits:
            scratch = self.b.add(
                word(call.scratch + shift * call.scratch_stride), self.b.mul(owner, word(call.scratch_stride))
            )
        arguments = [
            begin, end, self.core, scratch, word(waits.entries),
            *(word(waits.masks.get(o, 0)) for o in code.waits),
            *(self._address(address, call.strides.get(k, 0)) for k, address in enumerate(call.addresses)),
        ]  # fmt: skip
        if len(roles) == 1:
            self._call(code.symbol, arguments)
            return
        first = self.b.icmp_unsigned("==", self.lane, word(roles[0].lane))
        with self.b.if_else(first) as (then, otherwise):
            with then:
                self._call(call.codes[roles[0]].symbol, arguments)
            with otherwise:
                self._call(call.codes[roles[1]].symbol, arguments)

    def _address(self, address: int, stride: int) -> ir.Value:
        """Of an operand; groups that have copies of their own find theirs `stride` bytes further each."""
        if not stride:
            return word(address)
        return self.b.add(word(address), self.b.mul(self.group, word(stride)))

    # Local memory between kernels -------------------------------------------------------------------------------------

    def _local_fences(self, call: KernelCall, roles: Sequence[CoreRole]) -> list[tuple[Engine, Engine]]:
        """Pairs (engine of an earlier kernel, engine of this one that must wait for it)."""
        needed: dict[tuple[Engine, Engine], None] = {}
        for role in roles:
            for use in call.codes[role].uses:
                for old, waited in self.pending.items():
                    if old.memory is not use.memory or old.end <= use.begin or use.end <= old.begin:
                        continue
                    for engine in old.engines:
                        if engine is not use.first and use.first not in waited:
                            needed.setdefault((engine, use.first))
        return sorted(needed, key=lambda pair: (pair[0].value, pair[1].value))

    def _settle(self, call: KernelCall, roles: Sequence[CoreRole]) -> None:
        """Remember this kernel's buffers. Where every core ran it, its engines have waited for the earlier ones."""
        if call.everywhere:
            fenced = {later for _, later in self._local_fences(call, roles)}
            for waited in self.pending.values():
                waited |= fenced
        for role in roles:
            for use in call.codes[role].uses:
                self.pending[use] = set()
