"""The program around the kernels: what each type of core runs from start to end, as LLVM IR.

Model: `sk_main(hart)` reads the launch number from the hart's private memory and runs that launch: number k < SINGLE
is the k-th part of the fused kernel (one, unless sub-operators without a kernel or scopes split it), number SINGLE + i
is sub-operator i alone. A launch is one function per core type, a straight line of the plan's steps. The units of each
core stand in its private memory, two 32-bit numbers per sub-operator that its type runs; everything else is a constant
in the code, which all cores of a type share.

A kernel gets up to four *wait entries* and, for each operand, a mask of those it needs; `sk_wait` executes them where
the kernel first touches the operand. An entry is a kind in its low bits and its operands above: take a cross-core
flag, or let one engine wait for another. What is left over stands in front of the kernel.

Ahead of each kernel, at the entry of its sub-operator, may stand a *stub* (`preload`): prefetches of code, one line
each. The first one stands at the entry of the launch.

The progress marker says where a core is: sub-operator * 4 + phase. The number behind the last sub-operator stands for
the launch itself: phase 1 when it begins, 3 when the core is done with it. What lies outside (start code, the count
of harts at the end) belongs to the launch's cost, `dispatch.launch_ns`.

Invariants: all cores of a type pass the same signals and awaits, with work or without. A launch ends with all engines
drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llvmlite import ir

from superkernel.codegen.aicore.channel import meeting_flag
from superkernel.codegen.aicore.commands import SCRATCH
from superkernel.codegen.aicore.layer import (
    FENCE_FUNCTION,
    LOCAL_FENCE,
    STORE_FENCE,
    WAIT_FUNCTION,
    KernelCode,
    LocalUse,
)
from superkernel.codegen.aicore.memory_events import MemoryEvents
from superkernel.codegen.aicore.memory_map import LAUNCH_WORD, MARKER_WORD, PARAMETERS_BYTE
from superkernel.codegen.aicore.scalar import I64, PTR, VOID, Scalar, load_volatile, store_volatile
from superkernel.codegen.aicore.service_program import emit_notify, emit_services
from superkernel.errors import InternalError
from superkernel.scheduler.families.aicore.base import Role
from superkernel.sync.aicore.plan import (
    AICPU,
    AicorePlan,
    Await,
    CoreKind,
    Cut,
    Drain,
    Event,
    HartKind,
    Mode,
    OperandWait,
    Pause,
    Run,
    Signal,
    Step,
)
from superkernel.sync.aicore.service import Notify
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Command, Engine, command
from superkernel.target.engines.encoding import stores
from superkernel.target.engines.layout import DOORBELL, WINDOW_BYTES, word_offset

OFFSET_BYTES = 32  # `prefetch.i` takes offsets in steps of this
OFFSET_BROKEN = 4064  # LLVM 22 makes this offset of a prefetch 2016 + 2048, and stops because 2048 has 13 bits
SINGLE = 1 << 20  # launch number of sub-operator 0 alone
USUAL = 1 << 16  # how much more often the fused kernel is launched: the compiler tests for it first
ENTRY_FLAG, ENTRY_ORDER, ENTRY_DRAIN = 1, 2, 3
ENTRY_BITS, KIND_BITS, ENGINE_BITS, ENTRIES = 15, 2, 4, 4
PEER_BITS = 3  # of the operand `peer`
PHASE_ENTRY, PHASE_BODY, PHASE_BEHIND = 1, 2, 3  # 0: nothing marked yet
STORE_ENGINE: dict[HartKind, Engine] = {CoreKind.CUBE: Engine.FIX, CoreKind.VECTOR: Engine.MTE3}


@dataclass(frozen=True)
class KernelCall:
    """A sub-operator's kernel by role, the addresses of its operands, and where its workspaces are: `scratch` for core
    number 0 of those that own one, `scratch_stride` further for each next one."""

    codes: Mapping[Role, KernelCode]
    addresses: tuple[int, ...]
    scratch: int
    scratch_stride: int
    everywhere: bool  # every core of its types has units
    meetings: int = 0  # of all cores of its type, inside


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of code: it holds the byte `offset` behind a function's start. `lane`: only cores of that number within
    their group run it; None: all of the type."""

    symbol: str
    offset: int
    lane: int | None = None


@dataclass(frozen=True)
class ProgramSpec:
    """Everything the program is made from. `calls[i]` None: a fallback, or no units at all. `stubs`: of a launch, the
    lines to prefetch ahead of its first, second... kernel."""

    plan: AicorePlan
    calls: tuple[KernelCall | None, ...]
    private_bytes: int
    constants: int  # their address
    stubs: Mapping[str, Sequence[Sequence[CodeLine]]] = field(default_factory=dict)


_Need = tuple[int, int | None]
"""A wait entry, and the event that it takes (None: an order between engines of the core itself)."""


@dataclass(frozen=True)
class _Waits:
    """What a kernel is to wait for: `entries`, packed; per operand the `masks` of those it needs; which of them are
    `flags`, that a core without units must take too; and entries that must stand ahead of the kernel."""

    entries: int
    masks: dict[int, int]
    flags: int
    early: tuple[int, ...]


def ranges_of(plan: AicorePlan, calls: Sequence[KernelCall | None]) -> dict[HartKind, dict[int, int]]:
    """Number in the table of unit ranges of each sub-operator, by type."""
    found: dict[HartKind, dict[int, int]] = {}
    for kind, program in plan.programs.items():
        runs = [s.subop for s in program if isinstance(s, Run) and calls[s.subop] is not None]
        found[kind] = {subop: at for at, subop in enumerate(runs)}
    return found


def parts_of(program: Sequence[Step]) -> list[list[Step]]:
    """The launches of a fused program: split where sub-operators run elsewhere, and where the plan cuts."""
    parts: list[list[Step]] = [[]]
    for step in program:
        if isinstance(step, (Pause, Cut)):
            parts.append([])
        else:
            parts[-1].append(step)
    return parts


def launch_name(part: int, kind: HartKind) -> str:
    """The function of a part of the fused kernel on a type of core."""
    return f"sk_fused{part}_{kind.value}"


def emit_program(spec: ProgramSpec, target: AicoreTarget) -> str:
    """IR text of the fused launches, the wait function and `sk_main`."""
    module = ir.Module(name="program")
    _emit_wait(module, target)
    fused: dict[HartKind, list[ir.Function]] = {}
    singles: dict[HartKind, dict[int, ir.Function]] = {}
    tables = ranges_of(spec.plan, spec.calls)
    for kind in spec.plan.programs:
        parts = parts_of(spec.plan.programs[kind])
        fused[kind] = [
            _Launch(module, spec, target, kind, launch_name(number, kind), tables[kind]).emit(
                steps, ends_run=number == len(parts) - 1
            )
            for number, steps in enumerate(parts)
        ]
        singles[kind] = {subop: _function(module, _single_name(subop, kind), 2) for subop in tables[kind]}
    launches = [parts_of(spec.plan.programs[kind]) for kind in CoreKind]
    notified = [
        {kind: sum(isinstance(s, Notify) for s in steps) for kind, steps in zip(CoreKind, rows, strict=True)}
        for rows in zip(*launches, strict=True)
    ]
    services = emit_services(module, spec.plan, spec.constants, notified, target)
    _emit_main(module, spec, fused, singles, services)
    return str(module)


def emit_singles(spec: ProgramSpec, target: AicoreTarget) -> str:
    """IR text of the launches of one sub-operator each. A module of their own: stubs change nothing in it."""
    module = ir.Module(name="singles")
    for kind, table in ranges_of(spec.plan, spec.calls).items():
        for subop in table:
            _Launch(module, spec, target, kind, _single_name(subop, kind), table).emit(
                [Run(subop, feeds=call.meetings if (call := spec.calls[subop]) is not None else 0)]
            )
    return str(module)


def runs_on(role: Role, kind: HartKind) -> bool:
    """Whether harts of a type have a role."""
    if kind is AICPU:
        return role is Role.AICPU
    return role.is_cube if kind is CoreKind.CUBE else role.is_vector


def _single_name(subop: int, kind: HartKind) -> str:
    return f"sk_single{subop}_{kind.value}"


def _function(module: ir.Module, name: str, arguments: int) -> ir.Function:
    known = module.globals.get(name)
    if known is None:
        known = ir.Function(module, ir.FunctionType(VOID, [I64] * arguments), name)
    return known


def _define(module: ir.Module, name: str, arguments: int) -> tuple[ir.Function, ir.IRBuilder]:
    function = _function(module, name, arguments)
    function.attributes.add("nounwind")
    function.attributes.add("noinline")  # every part keeps its name and its place in the layout
    function.section = f".text.{name}"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _word(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def _store(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    store_volatile(b, Scalar(b, value), Scalar(b, address))


def _issue(b: ir.IRBuilder, target: AicoreTarget, made: Command) -> None:
    for address, word in stores(made, target):
        _store(b, _word(address), _word(word))


def _emit_main(
    module: ir.Module,
    spec: ProgramSpec,
    fused: Mapping[HartKind, Sequence[ir.Function]],
    singles: Mapping[HartKind, Mapping[int, ir.Function]],
    services: Mapping[int, ir.Function],
) -> None:
    """`sk_main(hart)`: the launch that the private memory asks for, for this type of core; behind the cores the hart
    that computes tilings, where the plan has one, and the service hart."""
    function, b = _define(module, "sk_main", 1)
    hart = function.args[0]
    base = ir.GlobalVariable(module, ir.IntType(8), "sk_private")
    address = b.ptrtoint(base, I64)
    private = b.add(address, b.mul(hart, _word(spec.private_bytes)))
    number = load_volatile(b, Scalar(b, b.add(private, _word(8 * LAUNCH_WORD))), I64)
    idle = function.append_basic_block("idle")
    ir.IRBuilder(idle).ret_void()
    cube, other, vector = (function.append_basic_block(n) for n in ("cube", "other", "vector"))
    b.cbranch(b.icmp_unsigned("<", hart, _word(spec.plan.cube_cores)), cube, other)
    b.position_at_end(other)
    service = _emit_service_cases(function, private, number, idle, services) if services else idle
    beyond = function.append_basic_block("beyond")
    b.cbranch(b.icmp_unsigned("<", hart, _word(spec.plan.total)), vector, beyond)
    blocks: dict[HartKind, ir.Block] = {CoreKind.CUBE: cube, CoreKind.VECTOR: vector}
    b.position_at_end(beyond)
    if AICPU in fused:
        tiling, beyond = (function.append_basic_block(n) for n in ("tiling", "behind"))
        b.cbranch(b.icmp_unsigned("==", hart, _word(spec.plan.total)), tiling, beyond)
        blocks[AICPU] = tiling
        b.position_at_end(beyond)
    b.cbranch(b.icmp_unsigned("==", hart, _word(spec.plan.harts)), service, idle)
    for kind in fused:
        b.position_at_end(blocks[kind])
        first = spec.plan.cores(kind).start
        core = b.sub(hart, _word(first)) if first else hart
        cases = b.switch(number, idle)
        numbered = [*enumerate(fused[kind]), *((SINGLE + i, f) for i, f in singles[kind].items())]
        for value, launch in numbered:
            here = function.append_basic_block(launch.name)
            cases.add_case(_word(value), here)
            inner = ir.IRBuilder(here)
            inner.call(launch, [core, private], tail=True)
            inner.ret_void()
        cases.set_weights([1, *(USUAL if value < SINGLE else 1 for value, _ in numbered)])


def _emit_service_cases(
    function: ir.Function, private: ir.Value, number: ir.Value, idle: ir.Block, services: Mapping[int, ir.Function]
) -> ir.Block:
    """The service hart's launch."""
    block = function.append_basic_block("service")
    cases = ir.IRBuilder(block).switch(number, idle)
    for launch, called in services.items():
        here = function.append_basic_block(called.name)
        cases.add_case(_word(launch), here)
        inner = ir.IRBuilder(here)
        inner.call(called, [private], tail=True)
        inner.ret_void()
    return block


class _Launch:
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
        self.function, self.b = _define(module, name, 2)
        self.core, self.private = self.function.args
        plan = spec.plan
        per_group = max(1, len(plan.cores(kind)) // plan.groups)
        self.group = self.b.udiv(self.core, _word(per_group))
        self.lane = self.b.urem(self.core, _word(per_group))
        self.stubs = spec.stubs.get(name, ())
        self.runs = 0
        self.pending: dict[LocalUse, set[Engine]] = {}  # buffers of earlier kernels, and engines that waited for all
        self.words = MemoryEvents(module, self.b, plan, self.private, target)

    def emit(self, steps: Iterable[Step], *, ends_run: bool = False) -> ir.Function:
        outside = len(self.spec.calls)
        self._mark(outside, PHASE_ENTRY)
        self._stub()
        steps = list(steps)
        credits = self._credits(steps)
        for source, later, flag in credits:
            _issue(self.b, self.target, command("set_flag", engine=source, peer=later.title, flag=flag))
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
            _issue(self.b, self.target, command("wait_flag", engine=later, peer=source.title, flag=flag))
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
            _issue(self.b, self.target, command("drain"))

    def _signal(self, event: Event) -> None:
        engine = STORE_ENGINE.get(self.kind, Engine.CONTROL)
        if event.mode is Mode.NOTIFY:
            self.words.signal(event, engine)
        else:
            _issue(self.b, self.target, command("cross_set", engine=engine, flag=event.flag, mode=event.mode.value))

    def _await(self, event: Event) -> None:
        if event.mode is Mode.NOTIFY:
            self.words.wait(event)
            return
        _issue(self.b, self.target, command("cross_wait", flag=event.flag))

    def _mark(self, subop: int, phase: int) -> None:
        at = self.b.add(self.private, _word(8 * MARKER_WORD))
        _store(self.b, at, _word(subop * 4 + phase))

    def _call(self, name: str, arguments: Sequence[ir.Value]) -> None:
        self.b.call(_function(self.module, name, len(arguments)), arguments)

    def _run(self, step: Run) -> None:
        call = self.spec.calls[step.subop]
        if call is None:
            for event in {e: None for wait in step.waits for e in wait.events}:
                self._await(self.spec.plan.events[event])
            return
        roles = [role for role in call.codes if runs_on(role, self.kind)]
        # On the aicpu hart nothing waits inside a kernel, and its own stores are behind a fence.
        waits = _Waits(0, {}, 0, ()) if self.kind is AICPU else self._wait_entries(step, call, call.codes[roles[0]])
        self._mark(step.subop, PHASE_ENTRY)
        if self.runs:
            self._stub()
        self.runs += 1
        for entry in waits.early:
            self._call(WAIT_FUNCTION, [_word(1), _word(entry)])
        at = self.b.add(self.private, _word(PARAMETERS_BYTE + 8 * self.table[step.subop]))
        pair = self.b.load(self.b.inttoptr(at, PTR), typ=I64, align=8)
        begin = self.b.and_(pair, _word(0xFFFFFFFF))
        end = self.b.lshr(pair, _word(32))
        busy = self.b.icmp_unsigned("<", begin, end)
        if waits.flags or step.feeds:
            with self.b.if_else(busy) as (then, otherwise):
                with then:
                    self._kernel(step.subop, call, roles, waits, begin, end)
                with otherwise:
                    if waits.flags:
                        self._call(WAIT_FUNCTION, [_word(waits.flags), _word(waits.entries)])
                    self._feed(step.feeds)
        else:
            with self.b.if_then(busy):
                self._kernel(step.subop, call, roles, waits, begin, end)
        self._settle(call, roles)
        self._mark(step.subop, PHASE_BEHIND)

    def _feed(self, meetings: int) -> None:
        """A core without units at the meetings of those that have some."""
        for _ in range(meetings):
            flag = meeting_flag(self.target)
            _issue(self.b, self.target, command("cross_set", engine=Engine.CONTROL, flag=flag, mode="type"))
            _issue(self.b, self.target, command("cross_wait", flag=flag))

    def _stub(self) -> None:
        """Prefetch what the plan says for the kernel that comes next."""
        lines = self.stubs[self.runs] if self.runs < len(self.stubs) else ()
        self._prefetch([line for line in lines if line.lane is None])
        for lane in sorted({line.lane for line in lines if line.lane is not None}):
            with self.b.if_then(self.b.icmp_unsigned("==", self.lane, _word(lane))):
                self._prefetch([line for line in lines if line.lane == lane])

    def _prefetch(self, lines: Sequence[CodeLine]) -> None:
        kind = ir.FunctionType(VOID, [PTR, *[ir.IntType(32)] * 3])
        prefetch = self.module.globals.get("llvm.prefetch.p0") or ir.Function(self.module, kind, "llvm.prefetch.p0")
        read, keep, instructions = (ir.Constant(ir.IntType(32), n) for n in (0, 3, 0))
        for line in lines:
            if line.offset == OFFSET_BROKEN:  # only where lines are so short that it has no other name
                continue
            if line.symbol == FENCE_FUNCTION:  # all others are called, and so declared, in this module
                _function(self.module, line.symbol, 0)
            address = ir.FormattedConstant(PTR, f'getelementptr (i8, ptr @"{line.symbol}", i64 {line.offset})')
            self.b.call(prefetch, [address, read, keep, instructions])

    def _kernel(
        self,
        subop: int,
        call: KernelCall,
        roles: Sequence[Role],
        waits: _Waits,
        begin: ir.Value,
        end: ir.Value,
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
                _issue(self.b, self.target, command(name, engine=engine, peer=peer.title, flag=LOCAL_FENCE))
        self._mark(subop, PHASE_BODY)
        code = call.codes[roles[0]]
        owner = self.group if len(call.codes) > 1 else self.core
        shift = 0 if len(call.codes) > 1 or self.kind is CoreKind.CUBE else self.spec.plan.cube_cores
        scratch: ir.Value = _word(call.scratch)
        if SCRATCH in code.waits:
            scratch = self.b.add(
                _word(call.scratch + shift * call.scratch_stride), self.b.mul(owner, _word(call.scratch_stride))
            )
        arguments = [
            begin, end, self.core, scratch, _word(waits.entries),
            *(_word(waits.masks.get(o, 0)) for o in code.waits),
            *(_word(a) for a in call.addresses),
        ]  # fmt: skip
        if len(roles) == 1:
            self._call(code.symbol, arguments)
            return
        first = self.b.icmp_unsigned("==", self.lane, _word(roles[0].lane))
        with self.b.if_else(first) as (then, otherwise):
            with then:
                self._call(call.codes[roles[0]].symbol, arguments)
            with otherwise:
                self._call(call.codes[roles[1]].symbol, arguments)

    # Waits ------------------------------------------------------------------------------------------------------------

    def _wait_entries(self, step: Run, call: KernelCall, code: KernelCode) -> _Waits:
        """The entries of a call, and of each operand a mask of those it needs. What does not fit is waited for ahead of
        the kernel. Two events may have the same flag: it is waited for once for each."""
        numbers: dict[_Need, int] = {}
        masks: dict[int, int] = {}
        early: list[_Need] = []
        source = STORE_ENGINE[self.kind].value
        # The plan's fences are for loads by MTE2; what the control unit reads itself waits for the core's own stores.
        own = [OperandWait(o, (), True) for o in sorted(code.scalar) if o in code.waits]
        for wait in (*step.waits, *own):
            needed: list[_Need] = [(ENTRY_FLAG | self.spec.plan.events[e].flag << KIND_BITS, e) for e in wait.events]
            if wait.fence:
                # A drain: a flag from an engine to the control unit takes far longer (sync.engine_register_ns).
                if wait.operand in code.scalar:
                    needed.append((ENTRY_DRAIN | 1 << source + KIND_BITS, None))
                else:
                    order = ENTRY_ORDER | source << KIND_BITS | Engine.MTE2.value << KIND_BITS + ENGINE_BITS
                    needed.append((order, None))
            for need in needed:
                number = numbers.get(need, len(numbers))
                if need in early or number == ENTRIES or wait.operand not in code.waits:
                    early += [need] if need not in early else []
                    continue
                numbers[need] = number
                masks[wait.operand] = masks.get(wait.operand, 0) | 1 << number
        kept = {n: need[0] for need, n in numbers.items() if need not in early}
        for operand in masks:
            masks[operand] &= sum(1 << n for n in kept)
        packed = sum(entry << ENTRY_BITS * n for n, entry in kept.items())
        flags = sum(1 << n for n, entry in kept.items() if entry & (1 << KIND_BITS) - 1 == ENTRY_FLAG)
        return _Waits(packed, masks, flags, tuple(entry for entry, _ in early))

    # Local memory between kernels -------------------------------------------------------------------------------------

    def _local_fences(self, call: KernelCall, roles: Sequence[Role]) -> list[tuple[Engine, Engine]]:
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

    def _settle(self, call: KernelCall, roles: Sequence[Role]) -> None:
        """Remember this kernel's buffers. Where every core ran it, its engines have waited for the earlier ones."""
        if call.everywhere:
            fenced = {later for _, later in self._local_fences(call, roles)}
            for waited in self.pending.values():
                waited |= fenced
        for role in roles:
            for use in call.codes[role].uses:
                self.pending[use] = set()


def _emit_wait(module: ir.Module, target: AicoreTarget) -> None:
    """`sk_wait(mask, entries)`: the entries that the mask names, one after the other."""
    function, b = _define(module, WAIT_FUNCTION, 2)
    page = target.map.page_address
    waiting = command("cross_wait", flag=0)
    set_word, wait_word = (
        command(n, engine=Engine.MTE2, peer="mte3", flag=STORE_FENCE) for n in ("set_flag", "wait_flag")
    )
    names = ("head", "test", "named", "flag", "order", "drain", "after", "done")
    head, test, named, flag, order, drain, after, done = (function.append_basic_block(n) for n in names)
    b.branch(head)
    b.position_at_end(head)
    mask, entries = b.phi(I64), b.phi(I64)
    mask.add_incoming(function.args[0], function.entry_basic_block)
    entries.add_incoming(function.args[1], function.entry_basic_block)
    b.cbranch(b.icmp_unsigned("==", mask, _word(0)), done, test)
    b.position_at_end(test)
    b.cbranch(b.icmp_unsigned("!=", b.and_(mask, _word(1)), _word(0)), named, after)
    b.position_at_end(named)
    entry = b.and_(entries, _word((1 << ENTRY_BITS) - 1))
    cases = b.switch(b.and_(entry, _word((1 << KIND_BITS) - 1)), flag)
    cases.add_case(_word(ENTRY_ORDER), order)
    cases.add_case(_word(ENTRY_DRAIN), drain)
    b.position_at_end(flag)
    (address, doorbell), shift = stores(waiting, target)[-1], _shift_of("cross_wait", "flag")
    _store(b, _word(address), b.or_(_word(doorbell), b.shl(b.lshr(entry, _word(KIND_BITS)), _word(shift))))
    b.branch(after)
    b.position_at_end(order)
    engine_mask = _word((1 << ENGINE_BITS) - 1)
    source = b.and_(b.lshr(entry, _word(KIND_BITS)), engine_mask)
    later = b.and_(b.lshr(entry, _word(KIND_BITS + ENGINE_BITS)), engine_mask)
    for engine, peer, made in ((source, later, set_word), (later, source, wait_word)):
        bell = b.add(_word(page + word_offset(Engine(0), DOORBELL)), b.mul(engine, _word(WINDOW_BYTES)))
        at = _shift_of(made.name, "peer")
        base = stores(made, target)[-1][1] & ~(((1 << PEER_BITS) - 1) << at)
        _store(b, bell, b.or_(_word(base), b.shl(peer, _word(at))))
    b.branch(after)
    b.position_at_end(drain)
    (address, doorbell), shift = stores(command("drain", engines=1), target)[-1], _shift_of("drain", "engines")
    engines = b.lshr(entry, _word(KIND_BITS))
    _store(b, _word(address), b.or_(_word(doorbell & ~(1 << shift)), b.shl(engines, _word(shift))))
    b.branch(after)
    b.position_at_end(after)
    mask.add_incoming(b.lshr(mask, _word(1)), after)
    entries.add_incoming(b.lshr(entries, _word(ENTRY_BITS)), after)
    b.branch(head)
    b.position_at_end(done)
    b.ret_void()


def _shift_of(name: str, operand: str) -> int:
    from superkernel.target.engines.layout import layout
    from superkernel.target.engines.table import spec_of

    for slot in layout(spec_of(name)):
        if slot.operand == operand and slot.word == DOORBELL:
            return slot.shift
    raise InternalError(f"{name}: {operand} is not in the doorbell")
