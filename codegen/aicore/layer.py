"""The kernel-writing layer: kernels for the accelerator as straightforward tile programs.

A kernel says which buffers it has and issues commands on them, in program order, as if each command finished before
the next began. What makes that fast and right is derived: which engine queue a command goes to, the flags between the
queues (`rings`), double buffering (the slots of a ring), the waits for what other cores produce (ahead of the first
command that touches an operand), the set behind the last store (the program's, not the kernel's). No kernel contains
a flag, a drain or a wait.

    def emit(kb, body, tiling):
        ring = kb.ring("tile", depth=2)
        x, y = kb.buffer(ring, Local.UB, 8192), kb.buffer(ring, Local.UB, 8192, top=True)
        with kb.loop(kb.begin, kb.end) as unit, kb.turn(ring):
            kb.issue("gm_to_ub", dst=x, src=kb.operand(0, unit * 8192), bytes=8192)
            kb.issue("v_exp", DType.F32, dst=y, src=x, cols=2048)
            kb.issue("ub_to_gm", dst=kb.operand(1, unit * 8192), src=y, bytes=8192)

A kernel function is `void name(begin, end, core, scratch, entries, masks..., operands...)`, all i64: the range of
work units, the core's number within its type, its workspace in global memory, what there is to wait for, per
dependent operand which of it, one address per operand. Each entry is executed once, ahead of the first access that
needs it. It does not drain: its last commands are still running when it returns.

Invariants: an emitter is run twice (`emission`) and must take the same path both times. Flags end as they began. What a
kernel leaves in its queues is ordered against the next kernel's local memory by `LocalUse` (see `launch`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from typing import cast

from llvmlite import ir

from superkernel.codegen.aicore.commands import SCRATCH, Address, Commands, OperandValue
from superkernel.codegen.aicore.rings import Buffer, FlagPlan, FlagUse, Part, Ring, Touch
from superkernel.codegen.aicore.scalar import I8, I16, I32, I64, MASK64, Number, Scalar, Variable, ir_of
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import CHANNEL_FLAGS, AicoreTiling, CoreRole
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import CommandSpec, Engine, Local, spec_of

# Flags per pair of engines that no ring has: a core's stores ahead of its loads, a kernel's own `order`, local memory
# between kernels.
STORE_FENCE, OWN_FENCE, LOCAL_FENCE = 0, 1, 2
RESERVED_FLAGS = 3
WAIT_FUNCTION, FENCE_FUNCTION = "sk_wait", "sk_fence"
_BITS: dict[int, ir.IntType] = {1: I8, 2: I16, 4: I32, 8: I64}


def barrier_flag(target: AicoreTarget) -> int:
    """The flag of barriers inside kernels: a kernel has the last flags for its channels, the plan has the others."""
    return int(target.sync.flags_per_core) - 1 - CHANNEL_FLAGS


class KernelBuilder(Commands):
    """See the module docstring. `begin`, `end`: the range of units; `core`: number within the type; `b`: LLVM's."""

    def __init__(
        self,
        module: ir.Module,
        symbol: str,
        body: Body,
        tiling: AicoreTiling,
        role: CoreRole,
        target: AicoreTarget,
        plan: FlagPlan | None,
        single: Container[int] = (),
    ) -> None:
        waits = (*tiling.dependent_operands(body), *([SCRATCH] if tiling.scratch_bytes else []))
        count = len(body.operands)
        super().__init__(module, symbol, 5 + len(waits) + count, target)
        self.role, self.roles = role, tiling.roles()
        self.touches: list[Touch] = []
        self.turns: list[Ring] = []
        self.streams: list[Ring] = []
        self._plan, self._single = plan, single
        self._rings: list[Ring] = []
        self._channels: list[int] = []  # where in the workspace each ends
        self._taken: dict[Local, tuple[int, int]] = {}
        self._open: list[tuple[Ring, int, int]] = []  # ring, turn site, number of nodes around it
        self.scalar: set[int] = set()
        self._stored = False  # the control unit stores itself
        self._loads_ordered = False  # a fence stands behind every wait
        self._whole: dict[Ring, ExitStack] = {}
        self.wait_operands = waits
        args = [Scalar(self.b, a) for a in self.function.args]
        self.begin: Number
        self.end: Number
        self.begin, self.end, self.core, self._scratch = args[:4]
        self._entries, masks = args[4], args[5 : 5 + len(waits)]
        self._masks = dict(zip(waits, masks, strict=True))
        pending: Number = 0
        for mask in masks:
            pending = mask | pending
        self._pending = Variable(self.b, pending)
        self._operands = args[5 + len(waits) :]
        self._unsettled = Variable(self.b, 1)

    # Memory -----------------------------------------------------------------------------------------------------------

    def ring(self, name: str, depth: int = 2) -> Ring:
        """Slots for buffers that are used in turns: `with kb.turn(ring):`. One slot where flags are short."""
        number = len(self._rings)
        ring = Ring(name, number, 1 if number in self._single else depth)
        if ring.depth > 1:
            ring.slot = Variable(self.b, 0)
        self._rings.append(ring)
        return ring

    def in_and_out(self, depth: int, number: int | str = "") -> tuple[Ring, Ring]:
        """The rings of what tiles are loaded into and stored from."""
        return self.ring(f"in{number}", depth), self.ring(f"out{number}", depth)

    def ends(self, name: str, engines: tuple[Engine, Engine], depth: int) -> tuple[Ring, Ring]:
        """The rings of a stream's two ends (`Stream`)."""
        number = len(self._rings)
        ends = (Ring(name, number, depth, engines=engines), Ring(f"{name} drained", number + 1, depth, engines=engines))
        for ring in ends if depth > 1 else ():
            ring.slot = Variable(self.b, 0)
        self._rings += ends
        self.streams.append(ends[0])
        return ends

    def stream_flag(self, name: str, ring: Ring, of: Ring, *, full: bool) -> None:
        """A set or wait, for the slot of a stream's end `of`, of the flag that it is full, or free. `ring`: the filling
        end. Nothing while flags are not known yet."""
        if self._plan is not None:
            use = self._plan.streams[ring.number][0 if full else 1]
            self._flag_of(name, use, of)

    def buffer(
        self, ring: Ring, memory: Local, nbytes: int, name: str = "", *, top: bool = False, align: int = 0
    ) -> Buffer:
        """Bytes of a local memory in every slot of a ring, from its bottom up, or from its top down. Raises
        InternalError where the memory is full: the tiling promised too much."""
        step = max(align, {Local.L0A: 512, Local.L0B: 512, Local.L0C: 1024}.get(memory, 32), self._alignment(memory))
        stride = ceil_to(nbytes, step)
        low, high = self._taken.get(memory, (0, self.capacity(memory)))
        size = stride * ring.depth
        start = (high - size) // step * step if top else ceil_to(low, step)
        if start < low or start + size > high:
            raise InternalError(
                f"{memory.value} is full", location=f"{self.symbol}: {ring.name}.{name}", expected=f"{size} bytes",
                found=f"{high - low} free of {self.capacity(memory)}",
            )  # fmt: skip
        self._taken[memory] = (low, start) if top else (start + size, high)
        made = Buffer(ring, name or f"b{len(ring.buffers)}", memory, start, nbytes, stride)
        ring.buffers.append(made)
        return made

    def fixed(self, memory: Local, nbytes: int, name: str = "", *, top: bool = False) -> Buffer:
        """One buffer for the whole kernel (constants that stay, temporaries of one engine)."""
        ring = self.ring(name or f"fixed{len(self._rings)}", 1)
        made = self.buffer(ring, memory, nbytes, name, top=top)
        self._whole[ring] = ExitStack()
        self._whole[ring].enter_context(self.turn(ring))
        return made

    def capacity(self, memory: Local) -> int:
        """Bytes of a local memory."""
        return cast("int", self.target.value(memory.size_path))

    def _alignment(self, memory: Local) -> int:
        return cast("int", self.target.value(memory.align_path))

    def take_channel(self, nbytes: int) -> tuple[int, int]:
        """A cross-core flag and a stretch of the workspace for a channel (`Channel`): (flag, offset)."""
        number = len(self._channels)
        if number == CHANNEL_FLAGS:
            raise InternalError(f"more than {CHANNEL_FLAGS} channels", location=self.symbol)
        start = self._channels[-1] if self._channels else 0
        self._channels.append(start + nbytes)
        return int(self.target.sync.flags_per_core) - 1 - number, start

    def operand(self, index: int, offset: Number = 0) -> Address:
        """A byte of an operand in global memory."""
        return Address(index, offset)

    def scratch(self, offset: Number = 0) -> Address:
        """A byte of the workspace (per core, or per group for MIX)."""
        return Address(SCRATCH, offset)

    # Structure --------------------------------------------------------------------------------------------------------

    @contextmanager
    def turn(self, *rings: Ring) -> Iterator[None]:
        """One turn of the rings: their buffers mean the current slots. The next turn has the next slots."""
        for ring in rings:
            if ring.open:
                raise InternalError(f"ring {ring.name!r} is in a turn already", location=self.symbol)
            ring.open = True
            self._open.append((ring, len(self.turns), len(self._around)))
            self.turns.append(ring)
        yield
        for ring in rings:
            ring.open = False
            self._open = [entry for entry in self._open if entry[0] is not ring]
            self.advance(ring)

    def advance(self, ring: Ring) -> None:
        """The buffers of a ring mean its next slots from here on."""
        if ring.slot is None:
            return
        following = ring.slot.get() + 1
        if ring.depth & (ring.depth - 1) == 0:
            ring.slot.set(following & (ring.depth - 1))
        else:
            ring.slot.set(self.select(self.b.icmp_unsigned("==", ir_of(following), ir_of(ring.depth)), 0, following))

    # Commands ---------------------------------------------------------------------------------------------------------

    def issue(self, name: str, *types: DType, **operands: OperandValue) -> None:
        """One command of the table (superkernel.target.engines). Operands: numbers, floats and choices as there;
        a local address is a Buffer or Part, a global one an Address or a number; a shape may be computed at run
        time, and so may a choice (its number). Operands with defaults may be left out, and strides where the addresses
        say them."""
        self.issue_on(spec_of(name).engines[0], name, *types, **operands)

    def issue_on(self, engine: Engine, name: str, *types: DType, **operands: OperandValue) -> None:
        """The same for a command that several engines have."""
        spec = spec_of(name)
        for operand in spec.operands:
            given = operands.get(operand.name.removesuffix("_stride"))
            if isinstance(given, (Part, Address)) and given.pitch is not None and operand.name.endswith("_stride"):
                operands.setdefault(operand.name, given.pitch)
        with self._node():
            self._note(spec, engine, operands)
            self._acquire(operands)
            self._store_words(spec, engine, types, operands)
            self._order_loads_behind(engine)

    def load_rows(
        self, dst: Buffer | Part, src: Address, dtype: DType, rows: Number, cols: Number, dense: bool = False,
        **pad: OperandValue,
    ) -> None:  # fmt: skip
        """Rows from global memory into UB or L1; `dense`: they follow one another without gaps on both sides."""
        memory = (dst.buffer if isinstance(dst, Part) else dst).memory
        name = "gm_to_l1" if memory is Local.L1 else "gm_to_ub"
        if dense:
            self.issue(name, dst=dst, src=src, bytes=rows * (cols * dtype.itemsize))
        else:
            self.issue(f"{name}_2d", dtype, dst=dst, src=src, rows=rows, cols=cols, **pad)

    def store_rows(
        self, dst: Address, src: Buffer | Part, rows: Number, row_bytes: Number, dense: bool = False
    ) -> None:
        """Rows from UB to global memory; `dense`: see `load_rows`."""
        if dense:
            self.issue("ub_to_gm", dst=dst, src=src, bytes=rows * row_bytes)
        else:
            self.issue("ub_to_gm_2d", dst=dst, src=src, rows=rows, row_bytes=row_bytes)

    def order(self, before: Engine, after: Engine) -> None:
        """What `after` is told from here on starts when what `before` was told so far is done. For data that a kernel
        sends through global memory to itself; buffers need no such thing. `before` goes on when `after` has come so
        far: it could else order again while `after` still has to take this flag."""
        with self._node():
            for source, target in ((before, after), (after, before)):
                self._flag("set_flag", source, target, OWN_FENCE)
                self._flag("wait_flag", source, target, OWN_FENCE)
            self._order_loads_behind(after)

    def meet(self) -> None:
        """All cores of the type are here, and what they stored before is visible (`AicoreTiling.barriers`)."""
        flag = barrier_flag(self.target)
        self.issue_on(Engine.MTE3, "cross_set", flag=flag, mode="type")
        self.issue("cross_wait", flag=flag)

    def load(self, address: Address, dtype: DType) -> Scalar:
        """An element of global memory, read by the control unit (slow: a whole trip): an integer, sign- or
        zero-extended; of a float its bits."""
        with self._node():
            self.scalar.add(address.operand)
            self._acquire({"src": address})
            kind = _BITS[dtype.itemsize]
            value = self._get(self._global(address), kind)
            if kind is I64:
                return Scalar(self.b, value)
            signed = dtype in (DType.I8, DType.I16, DType.I32)
            return Scalar(self.b, self.b.sext(value, I64) if signed else self.b.zext(value, I64))

    def store(self, address: Address, value: Number, dtype: DType) -> None:
        """An element of global memory, written by the control unit: an integer, of a float its bits. The first store
        waits for this core's engines, which may still use what lay there; all is visible to them and to other cores
        when the kernel ends, not earlier."""
        with self._node():
            self._stored = True
            self._acquire({"dst": address})
            with self.b.if_then(self.b.icmp_unsigned("!=", self._unsettled.get().value, ir_of(0)), likely=False):
                self._settle()
            self._set(self._global(address), value, _BITS[dtype.itemsize])

    def acquire(self, *operands: int, stores: bool = False) -> None:
        """Wait here, and not where they are first touched, for what the operands depend on; `stores`: for this core's
        engines too. Loops of loads and stores behind it then hold nothing else."""
        with self._node():
            for operand in operands:
                self._acquire({"src": Address(operand, 0)})
                if not self._around:  # everything behind it is behind the wait
                    self._masks.pop(operand, None)
            if stores:
                self._settle()
                self._order_loads_behind(Engine.CONTROL)

    def end_program(self, value: int) -> None:
        """Store to the exit address: the program ends here, for all cores."""
        with self._node():
            self._call(FENCE_FUNCTION)
            self._set(self.target.map.exit_address, value, I32)

    def order_loads(self) -> None:
        """The control unit's loads are ordered behind what was waited for: by a fence here, for waits ahead of the
        kernel, and one behind every wait in it."""
        self._loads_ordered = True
        self._call(FENCE_FUNCTION)

    def _order_loads_behind(self, engine: Engine) -> None:
        """What the control unit itself waited for is ahead of its loads."""
        if self._loads_ordered and engine is Engine.CONTROL:
            self._call(FENCE_FUNCTION)

    def _settle(self) -> None:
        if self.role is CoreRole.AICPU:  # no engine works for it
            return
        self._store_words(spec_of("drain"), Engine.CONTROL, (), {})
        self._order_loads_behind(Engine.CONTROL)
        self._unsettled.set(0)

    # What is derived --------------------------------------------------------------------------------------------------

    def _ahead_of(self, node: int) -> None:
        for use in self._plan.waits.get(node, ()) if self._plan else ():
            self._flag_of("wait_flag", use, self._rings[use.ring])

    def _behind(self, node: int) -> None:
        for use in self._plan.sets.get(node, ()) if self._plan else ():
            self._flag_of("set_flag", use, self._rings[use.ring])

    def _flag_of(self, name: str, use: FlagUse, ring: Ring) -> None:
        base = use.base + RESERVED_FLAGS
        self._flag(name, use.source, use.target, base if ring.slot is None else ring.slot.get() + base)

    def _flag(self, name: str, source: Engine, target: Engine, flag: Number) -> None:
        engine, peer = (source, target) if name == "set_flag" else (target, source)
        self._store_words(spec_of(name), engine, (), {"peer": peer.title, "flag": flag})

    def _note(self, spec: CommandSpec, engine: Engine, operands: dict[str, OperandValue]) -> None:
        """Remember what a command touches."""
        for access in spec.accesses:
            given = operands.get(access.operand)
            buffer = given.buffer if isinstance(given, Part) else given
            if not isinstance(buffer, Buffer):
                continue
            if buffer.memory is not spec.operand(access.operand).memory:
                raise InternalError(
                    f"{spec.name}: {access.operand} is in the wrong memory", location=self.symbol, found=buffer.name
                )
            if buffer.ring.engines is not None:
                if engine not in buffer.ring.engines:
                    raise InternalError(
                        f"{engine.title} is neither end of stream {buffer.ring.name!r}", location=self.symbol
                    )
                self.touches.append(Touch(-1, buffer.alias or buffer, engine, self.nodes - 1))
                continue
            here = [entry for entry in self._open if entry[0] is buffer.ring]
            if not here:
                raise InternalError(f"buffer {buffer.name!r} is used outside a turn", location=self.symbol)
            _, turn, depth = here[0]
            node = self._around[depth] if len(self._around) > depth else self.nodes - 1
            self.touches.append(Touch(turn, buffer, engine, node))

    def _acquire(self, operands: dict[str, OperandValue]) -> None:
        """Ahead of the first command that touches an operand which others produce (or still read): wait for them."""
        for given in operands.values():
            if isinstance(given, Address) and given.operand in self._masks:
                self._wait_for(self._masks[given.operand])

    def _wait_for(self, mask: Number) -> None:
        """Execute the wait entries of a mask that nothing has executed yet."""
        left = self._pending.get() & mask
        with self.b.if_then(self.b.icmp_unsigned("!=", ir_of(left), ir_of(0)), likely=False):
            self._call(WAIT_FUNCTION, cast("Scalar", left), self._entries)
            self._order_loads_behind(Engine.CONTROL)
            self._pending.set(self._pending.get() ^ left)

    # End --------------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait for what nothing has waited for, and return."""
        for stack in self._whole.values():
            stack.close()
        self._wait_for(MASK64)  # an operand that this range never touched: others count on the wait
        if self._stored:
            self._call(FENCE_FUNCTION)
        self.b.ret_void()
