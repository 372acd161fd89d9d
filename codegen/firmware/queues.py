"""Queues and flags: when the firmware carries a command out.

Model. A doorbell to an engine puts the command into the engine's queue of its hart. Three timings, which each hart has
of its own, say when it leaves:

- now: as soon as nothing it waits for is missing;
- late: when it must, and not before: another engine's `wait_flag`, the control unit's `wait_flag` or `drain`, a full
  queue, and a signal to other cores (`cross_set`, `notify`) while this control unit waits for other cores;
- random: between the two, by chances per engine that the host draws from a seed, or says.

What must happen is asked for (`fw_force`): the queue's first command is carried out, and if that is a `wait_flag`, the
engine that sets the flag is asked first, and so on. Engines nobody asks for stand still, so a forgotten wait reads what
was there before. A hart may be told to pause ahead of each command that reaches global memory (`pause`).

Invariant: a hart writes its own state only.
"""

from __future__ import annotations

from collections.abc import Collection

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I64, Number, Scalar, Variable, ir_of
from superkernel.codegen.firmware.base import OPCODES, FirmwarePart, function
from superkernel.codegen.firmware.code import Code, Operands, scalar
from superkernel.codegen.firmware.commands import symbol_of
from superkernel.codegen.firmware.memory import FLAGS, LOG, STATE, USED, Failure, FirmwareMap
from superkernel.target.engines.model import Engine
from superkernel.target.engines.table import spec_of

QUEUED = (Engine.MTE2, Engine.MTE1, Engine.M, Engine.FIX, Engine.V, Engine.MTE3)
_MOVERS = sum(1 << engine.value for engine in (Engine.MTE2, Engine.FIX, Engine.MTE3))
ORDERING = ("set_flag", "wait_flag", "barrier", "drain", "cross_set", "cross_wait", "notify", "wait_memory")


class QueueCode(FirmwarePart):
    """The functions around queues. `held`: the commands that move or compute and have a function; others are failures
    of kind COMMAND."""

    def __init__(self, module: ir.Module, places: FirmwareMap, held: Collection[str]) -> None:
        super().__init__(module, places)
        self.held = held

    # Executing --------------------------------------------------------------------------------------------------------

    @function()
    def execute(self, c: Code, state: Scalar, record: Scalar) -> None:
        """Carry out one command that moves or computes."""
        opcode = c.load_number(record) & 0xFF
        c.put("commands", c.get("commands") + 1)

        def case(name: str) -> None:
            if spec_of(name).ulp:
                c.put("inexact", c.get("inexact") + 1)
            c.call(symbol_of(name), state, record)

        cases = {OPCODES[name]: lambda name=name: case(name) for name in sorted(self.held)}
        c.switch(opcode, cases, lambda: c.fail(Failure.COMMAND, c.load_number(record)))

    @function(result=True)
    def ready(self, c: Code, state: Scalar, engine: Scalar) -> None:
        """Whether the queue's first command can be carried out without asking anybody."""
        with c.when(self._empty(c, engine)):
            c.ret(0)
        record = self._record(c, engine, c.load_number(self._ends(c, engine)[0]))
        with c.when(c.compare("!=", c.load_number(record) & 0xFF, OPCODES["wait_flag"])):
            c.ret(1)
        o = Operands(c, "wait_flag", record)
        count = c.load_number(self._flag(c, o["peer"], engine, o["flag"]), 8)
        c.ret(c.num(c.b.zext(c.compare("!=", count, 0), I64)))

    @function()
    def set(self, c: Code, state: Scalar, engine: Scalar, peer: Scalar, number: Scalar) -> None:
        """A set_flag takes effect."""
        flag = self._flag(c, engine, peer, number)
        count = c.load_number(flag, 8)
        with c.when(c.compare(">=", count, self.target.queue.flag_count_max)):
            c.fail(Failure.FLAG, engine, peer << 8 | number)
        c.store_number(count + 1, flag, 8)
        c.store_number(1, flag + (USED - FLAGS), 8)

    @function()
    def leave(self, c: Code, state: Scalar, engine: Scalar) -> None:
        """Carry out the queue's first command, which is ready."""
        taken = self._ends(c, engine)[0]
        number = c.load_number(taken)
        record, logged = self._record(c, engine, number), c.load_number(self._queued_log(c, engine, number))
        moves = c.num(c.b.lshr(ir.Constant(I64, _MOVERS), engine.value)) & 1
        with c.when(c.compare("!=", moves * c.get("pause"), 0)):
            c.call("fw_pause", state)
        self._stamp(c, logged, LOG["begin"])
        self._ordering(c, engine, record, lambda: c.call("fw_execute", state, record))
        self._stamp(c, logged, LOG["end"])
        c.store_number(number + 1, taken)

    def _ordering(self, c: Code, engine: Scalar, record: Number, other: object) -> None:
        """Carry out a command that an engine has for order, or another one."""
        assert callable(other)
        state = c.args[0]

        def published(name: str) -> None:
            c.call("fw_signal" if name == "cross_set" else "fw_notify", state, record)
            pending = state + STATE["pending0"] + engine * 8
            c.store_number(c.load_number(pending) - 1, pending)

        def sets() -> None:
            o = Operands(c, "set_flag", record)
            c.call("fw_set", state, engine, o["peer"], o["flag"])

        def take() -> None:
            o = Operands(c, "wait_flag", record)
            flag = self._flag(c, o["peer"], engine, o["flag"])
            c.store_number(c.load_number(flag, 8) - 1, flag, 8)

        cases = {
            OPCODES["set_flag"]: sets,
            OPCODES["wait_flag"]: take,
            OPCODES["barrier"]: lambda: None,
            OPCODES["cross_set"]: lambda: published("cross_set"),
            OPCODES["notify"]: lambda: published("notify"),
        }
        c.switch(c.load_number(record) & 0xFF, cases, other)

    @function(result=True)
    def force(self, c: Code, state: Scalar, engine: Scalar, asked: Scalar) -> None:
        """Carry out the first command, whatever that needs. 0 where that cannot be;
        `asked` has a bit for each engine that waits for this one."""
        with c.when(self._empty(c, engine)):
            c.ret(0)
        number = c.load_number(self._ends(c, engine)[0])
        record = self._record(c, engine, number)
        with c.when(c.compare("==", c.load_number(record) & 0xFF, OPCODES["wait_flag"])):
            o = Operands(c, "wait_flag", record)
            peer, flag = o["peer"], self._flag(c, o["peer"], engine, o["flag"])
            asked = scalar(asked | c.num(c.b.shl(ir.Constant(I64, 1), engine.value)))
            with c.loop_while(lambda: c.compare("==", c.load_number(flag, 8), 0)):
                bit = c.num(c.b.lshr(ir_of(asked), peer.value)) & 1
                with c.when(c.b.or_(c.compare("==", peer, 0), c.compare("!=", bit, 0))):
                    c.ret(0)
                with c.when(c.compare("==", c.call("fw_force", state, peer, asked, result=True), 0)):
                    c.ret(0)
                with c.when(c.compare("!=", c.load_number(self._ends(c, engine)[0]), number)):
                    c.ret(1)  # an eager engine, which has gone on by itself
        c.call("fw_leave", state, engine)
        c.call("fw_pump", state)
        c.ret(1)

    @function()
    def pump(self, c: Code, state: Scalar) -> None:
        """Carry out what the timing wants carried out by now."""
        timing = c.get("timing")

        def now() -> None:
            going = c.variable(1)
            with c.loop_while(lambda: c.compare("!=", going.get(), 0)):
                going.set(0)
                for engine in QUEUED:
                    ready = lambda e=engine: c.compare("!=", c.call("fw_ready", state, e.value, result=True), 0)  # noqa: E731
                    with c.loop_while(ready):
                        c.call("fw_leave", state, engine.value)
                        going.set(1)

        def random() -> None:
            for engine in QUEUED:
                going = c.variable(1)

                def lucky(e: Engine = engine, going: Variable = going) -> ir.Value:
                    ready = c.call("fw_ready", state, e.value, result=True)
                    chance = c.get(f"bias{e.value}")
                    wanted = c.compare("<", self._random(c), chance)
                    return c.b.and_(c.compare("!=", ready, 0), wanted)

                with c.loop_while(lucky):
                    c.call("fw_leave", state, engine.value)

        c.switch(timing, {0: now, 2: random}, lambda: None)

    @function(result=True)
    def publish(self, c: Code, state: Scalar) -> None:
        """Carry out one queued signal to other cores; 0 where none can be."""
        for engine in QUEUED:
            going = c.variable(1)
            pending = c.get(f"pending{engine.value}")

            def more(e: Engine = engine, going: Variable = going, pending: Scalar = pending) -> ir.Value:
                same = c.compare("==", c.get(f"pending{e.value}"), pending)
                return c.b.and_(same, c.compare("!=", going.get(), 0))

            with c.when(c.compare("!=", pending, 0)):
                with c.loop_while(more):
                    going.set(c.call("fw_force", state, engine.value, 0, result=True))
                with c.when(c.compare("!=", going.get(), 0)):
                    c.ret(1)
        c.ret(0)
