"""Traps: what a store to the register page means, and commands of the control unit itself.

Model: every trap is a store of an 8-byte word into a window of the register page, kept in the hart's copy of it;
anything else ends the machine. A store to a window's last word is a doorbell: the command is logged, if the host wants
a log, left out, if the host wants that, and carried out or queued.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from superkernel.codegen.aicore.memory_map import MARKER_WORD
from superkernel.codegen.aicore.scalar import I64, Number, Scalar
from superkernel.codegen.firmware.base import OPCODES, FirmwarePart, function
from superkernel.codegen.firmware.code import Code, Operands, scalar
from superkernel.codegen.firmware.memory import (
    ENGINES,
    FLAG_IDS,
    FRAME_X,
    LOG,
    LOG_RECORD_BYTES,
    RECORD_BYTES,
    STATE,
    WINDOWS,
    Failure,
    Wait,
)
from superkernel.target.engines.layout import DOORBELL, WINDOW_BYTES, WINDOWS_BYTES, layout
from superkernel.target.engines.model import Engine
from superkernel.target.engines.table import command_table

_BACKWARDS = (Engine.MTE3, Engine.FIX, Engine.V, Engine.M, Engine.MTE1, Engine.MTE2)
_STORE_ACCESS_FAULT = 7
_PLACES = {slot.operand: slot for slot in layout(command_table()["set_flag"])}  # as in wait_flag, in the doorbell
_PEER_SHIFT, _FLAG_SHIFT = _PLACES["peer"].shift, _PLACES["flag"].shift
BENCH_ENTRY_BYTES = 128


class TrapCode(FirmwarePart):
    """The functions behind the trap entry."""

    # The control unit -------------------------------------------------------------------------------------------------

    def _must(self, c: Code, engine: Number, kind: int) -> None:
        """Carry out an engine's first command; a deadlock where that cannot be."""
        with c.when(c.compare("==", c.call("fw_force", c.args[0], engine, 0, result=True), 0)):
            c.fail(Failure.DEADLOCK, kind, engine)

    @function()
    def control(self, c: Code, state: Scalar, window: Scalar) -> None:
        """A command of the control unit itself."""
        doorbell = c.load_number(window + 8 * DOORBELL)

        def set_flag() -> None:
            o = operands("set_flag")
            c.call("fw_set", state, 0, o["peer"], o["flag"])

        def cross_wait() -> None:
            c.call("fw_cross_wait", state, operands("cross_wait")["flag"])

        def operands(name: str) -> Operands:
            return Operands(c, name, window, in_window=True)

        def wait_flag() -> None:
            o = operands("wait_flag")
            flag = self._flag(c, o["peer"], 0, o["flag"])
            self._waits(c, Wait.FLAG, o["peer"], o["flag"])
            with c.loop_while(lambda: c.compare("==", c.load_number(flag, 8), 0)):
                self._must(c, o["peer"], Wait.FLAG)
            c.store_number(c.load_number(flag, 8) - 1, flag, 8)

        def busy(engine: Engine) -> ir.Value:
            return c.b.not_(self._empty(c, engine.value))

        def drain() -> None:
            o = operands("drain")
            self._waits(c, Wait.DRAIN, o["engines"])
            for engine in _BACKWARDS:
                wanted = c.compare("!=", o["engines"] & (1 << engine.value), 0)
                with c.when(wanted), c.loop_while(partial(busy, engine)):
                    self._must(c, engine.value, Wait.DRAIN)
            c.fence()

        def with_record(function: str) -> None:
            record = self._gathered(c, window)
            c.call(function, state, record)

        def wait_memory() -> None:
            o = operands("wait_memory")
            c.call("fw_wait_memory", state, o["address"], o["value"])

        cases = {
            "set_flag": set_flag,
            "wait_flag": wait_flag,
            "drain": drain,
            "cross_set": lambda: with_record("fw_signal"),
            "cross_wait": cross_wait,
            "notify": lambda: with_record("fw_notify"),
            "wait_memory": wait_memory,
        }
        c.switch(doorbell & 0xFF, {OPCODES[n]: f for n, f in cases.items()}, lambda: c.fail(Failure.COMMAND, doorbell))
        c.put("wait_kind", Wait.NOTHING)

    @function()
    def doorbell(self, c: Code, state: Scalar, engine: Scalar) -> None:
        """The window's words are a command."""
        window = state + WINDOWS + engine * WINDOW_BYTES
        has = c.num(c.b.lshr(c.get("engines").value, engine.value)) & 1
        with c.when(c.compare("==", has, 0)):
            c.fail(Failure.ENGINE, engine, c.load_number(window + 8 * DOORBELL))
        with c.when(self._left_out(c, engine, c.load_number(window + 8 * DOORBELL))):
            c.ret()
        logged = c.call("fw_log", state, engine, window, result=True)

        def control() -> None:
            self._stamp(c, logged, LOG["begin"])
            c.call("fw_control", state, window)
            self._stamp(c, logged, LOG["end"])

        def shared() -> None:
            c.call("fw_sdma_doorbell", state, self._gathered(c, window), logged)

        cases = {Engine.CONTROL.value: control, Engine.SDMA.value: shared}
        c.switch(engine, cases, lambda: self._enqueue(c, engine, window, logged))
        c.call("fw_pump", state)

    def _left_out(self, c: Code, engine: Scalar, doorbell: Scalar) -> ir.Value:
        """Whether the host wants this command left out: one of two numbers of the hart's commands for order, or one of
        a flag between engines that is to be forgotten altogether."""
        b, number, opcode = c.b, c.get("orderings"), doorbell & 0xFF
        sets, takes = (c.compare("==", opcode, OPCODES[name]) for name in ("set_flag", "wait_flag"))
        orders = b.or_(sets, takes)
        for name in ("drain", "cross_set", "cross_wait", "notify", "wait_memory"):
            orders = b.or_(orders, c.compare("==", opcode, OPCODES[name]))
        c.put("orderings", number + c.num(b.zext(orders, I64)))
        peer, flag = scalar(doorbell >> _PEER_SHIFT) & ENGINES - 1, scalar(doorbell >> _FLAG_SHIFT) & FLAG_IDS - 1
        key = c.choose(sets, engine * ENGINES + peer, peer * ENGINES + engine) * FLAG_IDS + flag + 1
        forgotten = b.and_(b.or_(sets, takes), c.compare("==", self._config(c, "skip_flag"), key))
        named = (c.compare("==", self._config(c, name), number + 1) for name in ("skip_number", "skip_partner"))
        left_out = b.or_(b.and_(orders, b.or_(*named)), forgotten)
        return b.and_(left_out, c.compare("==", self._config(c, "skip_hart"), c.get("hart") + 1))

    def _enqueue(self, c: Code, engine: Scalar, window: Number, logged: Number) -> None:
        taken, put = self._ends(c, engine)
        number = c.load_number(put)
        with c.when(c.compare(">=", number - c.load_number(taken), self.places.depth)):
            self._waits(c, Wait.QUEUE, engine)
            self._must(c, engine, Wait.QUEUE)
            c.put("wait_kind", Wait.NOTHING)
        record = self._record(c, engine, number)
        self._copy_record(c, window, record)
        c.store_number(logged, self._queued_log(c, engine, number))
        opcode = c.load_number(record) & 0xFF
        signals = c.b.or_(c.compare("==", opcode, OPCODES["cross_set"]), c.compare("==", opcode, OPCODES["notify"]))
        pending = c.args[0] + STATE["pending0"] + engine * 8
        c.store_number(c.load_number(pending) + c.num(c.b.zext(signals, I64)), pending)
        c.store_number(number + 1, put)

    @function(result=True)
    def log(self, c: Code, state: Scalar, engine: Scalar, window: Scalar) -> None:
        """The next record of the hart's log, filled in, or 0."""
        record = c.get("log")
        with c.when(c.compare("==", record, 0)):
            c.ret(0)
        c.put("logged", c.get("logged") + 1)
        with c.when(c.compare(">", record + LOG_RECORD_BYTES, c.get("log_end"))):
            c.ret(0)
        c.put("log", record + LOG_RECORD_BYTES)
        memory = self.places.memory
        marker = memory.private_address + 8 * MARKER_WORD + c.get("hart") * memory.private_bytes
        words: dict[str, Number] = {
            "begin": 0, "end": 0, "engine": engine, "marker": c.load_number(marker), "pc": c.get("mepc"),
            "order": c.get("orderings"),
        }  # fmt: skip
        for name, value in words.items():
            c.store_number(value, record + LOG[name])
        self._copy_record(c, window, record + LOG["command"])
        c.ret(record)

    # Traps ------------------------------------------------------------------------------------------------------------

    @function(result=True)
    def trap(self, c: Code, state: Scalar, pc: Scalar, cause: Scalar, address: Scalar) -> None:
        """A store to the register page; the address behind it."""
        for name, value in (("mcause", cause), ("mtval", address)):
            c.put(name, value)
        with c.when(c.compare("!=", c.get("active"), 0)):
            c.fail(Failure.FIRMWARE, cause, pc)
        c.put("mepc", pc)
        c.put("active", 1)
        offset = address - self.target.map.page_address
        in_page = c.compare("<", offset, self.target.map.page_bytes)
        with c.when(c.b.not_(in_page)):
            c.fail(Failure.TRAP, cause, address)
        aligned = c.compare("==", offset & 7, 0)
        legal = c.b.and_(aligned, c.compare("<", offset, WINDOWS_BYTES))
        with c.when(c.b.not_(c.b.and_(legal, c.compare("==", cause, _STORE_ACCESS_FAULT)))):
            c.fail(Failure.STORE, cause, address)
        register, length = self._stored(c, pc)
        value = c.load_number(state + FRAME_X + register * 8)
        c.store_number(value, state + WINDOWS + offset)
        with c.when(c.compare("==", offset & WINDOW_BYTES - 1, 8 * DOORBELL)):
            c.call("fw_doorbell", state, offset // WINDOW_BYTES)
        c.put("active", 0)
        c.ret(pc + length)

    def _stored(self, c: Code, pc: Number) -> tuple[Scalar, Scalar]:
        """Register and length of the 8-byte store at an address: sd, c.sd or c.sdsp."""
        low = c.load_number(pc, 16)
        word = low | c.load_number(pc + 2, 16) << 16
        forms = (  # mask, match, bits of the register, its base, length
            (0x707F, 0x3023, word >> 20 & 31, 0, 4),
            (0xE003, 0xE000, low >> 2 & 7, 8, 2),
            (0xE003, 0xE002, low >> 2 & 31, 0, 2),
        )
        register, length = c.num(ir.Constant(I64, 0)), c.num(ir.Constant(I64, 0))
        for mask, match, number, base, size in forms:
            found = c.compare("==", word & mask, match)
            register, length = c.choose(found, number + base, register), c.choose(found, size, length)
        with c.when(c.compare("==", length, 0)):
            c.fail(Failure.STORE, word, pc)
        return register, length

    # Commands from a table --------------------------------------------------------------------------------------------

    @function()
    def bench(self, c: Code, state: Scalar) -> None:
        """Carry out the commands of a table, and copy away what each has written."""
        with c.loop(self._config(c, "bench_count")) as n:
            entry = self._config(c, "bench_table") + n * BENCH_ENTRY_BYTES
            c.call("fw_execute", state, entry)
            start, rows, row_bytes, stride, out = (c.load_number(entry + RECORD_BYTES + 8 * word) for word in range(5))
            with c.loop(rows) as r, c.loop(row_bytes) as at:
                c.store_number(c.load_number(start + r * stride + at, 8), out + r * row_bytes + at, 8)
        c.fence()
        c.call("fw_exit", 0x5555)
