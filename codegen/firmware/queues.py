"""Queues, flags and waits: when the firmware carries a command out.

Model. A doorbell to an engine puts the command into the engine's queue of its hart. Three timings say when it leaves:

- now: as soon as nothing it waits for is missing;
- late: when it must, and not before: another engine's `wait_flag`, the control unit's `wait_flag` or `drain`, a full
  queue, and a signal to other cores (`cross_set`, `notify`) ahead of a wait of this control unit for other cores;
- random: between the two, by chances per engine that the host draws from a seed.

What must happen is asked for (`fw_force`): the queue's first command is carried out, and if that is a `wait_flag`, the
engine that sets the flag is asked first, and so on. Engines nobody asks for stand still, so a forgotten wait reads what
was there before.

Cross-core flags need no lock: every core counts its own signals, and a core's count of a flag is computed from what
all have counted: the least of a type (or of all), the sum or the least within a group, what single targets were
sent, less what was taken. A waiting hart says so, looks once more, and sleeps until another hart's interrupt.

Invariants: a hart writes its own state and signal counters only; only `mask` signals and `notify add` are atomic
additions to words of others. Interrupts are enabled while a hart sleeps, and at no other time.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I64, Number, Scalar, Variable, ir_of
from superkernel.codegen.firmware.code import Code, Operands, scalar
from superkernel.codegen.firmware.commands import symbol_of
from superkernel.codegen.firmware.memory import (
    CONFIG,
    ENGINES,
    FAIL_COMMAND,
    FAIL_CROSS,
    FAIL_DEADLOCK,
    FAIL_ENGINE,
    FAIL_FIRMWARE,
    FAIL_FLAG,
    FAIL_STORE,
    FAIL_TRAP,
    FAILURE_EXIT,
    FLAG_IDS,
    FLAGS,
    FRAME_X,
    MODES,
    QUEUE_ENDS,
    QUEUES,
    RECORD_BYTES,
    STATE,
    USED,
    WAIT_CROSS,
    WAIT_DRAIN,
    WAIT_FLAG,
    WAIT_MEMORY,
    WAIT_NOTHING,
    WAIT_QUEUE,
    WINDOWS,
    FirmwareMap,
)
from superkernel.target.engines.layout import DOORBELL, WINDOW_BYTES, WINDOWS_BYTES, layout
from superkernel.target.engines.model import Engine
from superkernel.target.engines.table import command_table, spec_of

QUEUED = (Engine.MTE2, Engine.MTE1, Engine.M, Engine.FIX, Engine.V, Engine.MTE3)
_BACKWARDS = (Engine.MTE3, Engine.FIX, Engine.V, Engine.M, Engine.MTE1, Engine.MTE2)
_STORE_ACCESS_FAULT, _SOFTWARE, _TIMER = 7, 1 << 3, 1 << 7
_OP = {name: spec.opcode for name, spec in command_table().items()}
_ORDERING = ("set_flag", "wait_flag", "barrier", "drain", "cross_set", "cross_wait", "notify", "wait_memory")
_PLACES = {slot.operand: slot for slot in layout(command_table()["set_flag"])}  # as in wait_flag, in the doorbell
_PEER_SHIFT, _FLAG_SHIFT = _PLACES["peer"].shift, _PLACES["flag"].shift
POLL_TICKS = 1000  # 100 us: how often a waiting hart looks at a word that no command wrote


class QueueCode:
    """Emits the functions of this module for a target."""

    def __init__(self, module: ir.Module, places: FirmwareMap) -> None:
        self.module, self.places, self.target = module, places, places.target

    def emit(self) -> None:
        self._fail()
        self._execute()
        self._ready()
        self._leave()
        self._force()
        self._pump()
        self._publish()
        self._wake()
        self._signal()
        self._notify()
        self._count()
        self._cross_wait()
        self._wait_memory()
        self._control()
        self._doorbell()
        self._trap()
        self._bench()

    # Words ------------------------------------------------------------------------------------------------------------

    def _code(self, name: str, arguments: int, *, result: bool = False) -> Code:
        return Code(self.module, name, arguments, result=result)

    def _config(self, c: Code, name: str) -> Scalar:
        return c.load_number(self.places.config + CONFIG[name])

    def _ends(self, c: Code, engine: Number) -> tuple[Number, Number]:
        """Addresses of the numbers of commands taken out and put in."""
        at = c.args[0] + QUEUE_ENDS + engine * 16
        return at, at + 8

    def _record(self, c: Code, engine: Number, number: Number) -> Number:
        depth = self.places.depth
        return c.args[0] + QUEUES + (engine * depth + number % depth) * RECORD_BYTES

    def _flag(self, c: Code, setter: Number, waiter: Number, flag: Number) -> Number:
        return c.args[0] + FLAGS + (setter * ENGINES + waiter) * FLAG_IDS + flag

    def _empty(self, c: Code, engine: Number) -> ir.Value:
        taken, put = self._ends(c, engine)
        return c.compare("==", c.load_number(taken), c.load_number(put))

    def _shared(self, c: Code, kind: Number, core: Number, flag: Number) -> Number:
        """The counter of (mode, core, flag); kind MODES: signals to single cores, MODES + 1: signals taken."""
        return self.places.shared + ((kind * self.target.cores + core) * FLAG_IDS + flag) * 8

    def _atomic(self, c: Code, address: Number) -> Scalar:
        return c.num(c.b.load_atomic(c.pointer(address), "seq_cst", 8, typ=I64))

    # Ends -------------------------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        """`fw_fail(state, kind, a, b)`: the first failure is kept, the machine ends."""
        c = self._code("fw_fail", 4)
        config = self.places.config
        zero, kind = ir.Constant(I64, 0), c.args[1].value
        claimed = c.b.cmpxchg(c.pointer(config + CONFIG["failure"]), zero, kind, "seq_cst", "seq_cst")
        with c.when(c.b.extract_value(claimed, 1)):
            c.store_number(c.get("hart"), config + CONFIG["failed_hart"])
            c.store_number(c.args[2], config + CONFIG["failure_a"])
            c.store_number(c.args[3], config + CONFIG["failure_b"])
            c.fence()
            c.call("fw_exit", FAILURE_EXIT << 16 | 0x3333)
        with c.loop_while(lambda: ir.Constant(ir.IntType(1), 1)):
            c.call("fw_sleep", 0)
        c.b.unreachable()

    # Executing --------------------------------------------------------------------------------------------------------

    def _execute(self) -> None:
        """`fw_execute(state, record)`: carry out one command that moves or computes."""
        c = self._code("fw_execute", 2)
        record = c.args[1]
        opcode = c.load_number(record) & 0xFF
        c.put("commands", c.get("commands") + 1)

        def case(name: str) -> None:
            if spec_of(name).ulp:
                c.put("inexact", c.get("inexact") + 1)
            c.call(symbol_of(name), c.args[0], record)

        cases = {op: lambda name=name: case(name) for name, op in _OP.items() if name not in _ORDERING}
        c.switch(opcode, cases, lambda: c.fail(FAIL_COMMAND, c.load_number(record)))
        c.ret()

    def _ready(self) -> None:
        """`fw_ready(state, engine)`: whether the queue's first command can be carried out without asking anybody."""
        c = self._code("fw_ready", 2, result=True)
        engine = c.args[1]
        with c.when(self._empty(c, engine)):
            c.ret(0)
        record = self._record(c, engine, c.load_number(self._ends(c, engine)[0]))
        with c.when(c.compare("!=", c.load_number(record) & 0xFF, _OP["wait_flag"])):
            c.ret(1)
        o = Operands(c, "wait_flag", record)
        count = c.load_number(self._flag(c, o["peer"], engine, o["flag"]), 8)
        c.ret(c.num(c.b.zext(c.compare("!=", count, 0), I64)))

    def _leave(self) -> None:
        """`fw_leave(state, engine)`: carry out the queue's first command, which is ready."""
        c = self._code("fw_leave", 2)
        state, engine = c.args
        taken = self._ends(c, engine)[0]
        number = c.load_number(taken)
        record = self._record(c, engine, number)
        self._ordering(c, engine, record, lambda: c.call("fw_execute", state, record))
        c.store_number(number + 1, taken)
        c.ret()

    def _ordering(self, c: Code, engine: Scalar, record: Number, other: object) -> None:
        """Carry out a command that an engine has for order, or another one."""
        assert callable(other)
        state = c.args[0]

        def published(name: str) -> None:
            c.call("fw_signal" if name == "cross_set" else "fw_notify", state, record)
            pending = state + STATE["pending0"] + engine * 8
            c.store_number(c.load_number(pending) - 1, pending)

        def take() -> None:
            o = Operands(c, "wait_flag", record)
            flag = self._flag(c, o["peer"], engine, o["flag"])
            c.store_number(c.load_number(flag, 8) - 1, flag, 8)

        cases = {
            _OP["set_flag"]: lambda: self._set(c, engine, Operands(c, "set_flag", record)),
            _OP["wait_flag"]: take,
            _OP["barrier"]: lambda: None,
            _OP["cross_set"]: lambda: published("cross_set"),
            _OP["notify"]: lambda: published("notify"),
        }
        c.switch(c.load_number(record) & 0xFF, cases, other)

    def _set(self, c: Code, engine: Number, o: Operands) -> None:
        flag = self._flag(c, engine, o["peer"], o["flag"])
        count = c.load_number(flag, 8)
        with c.when(c.compare(">=", count, self.target.queue.flag_count_max)):
            c.fail(FAIL_FLAG, engine, o["peer"] << 8 | o["flag"])
        c.store_number(count + 1, flag, 8)
        c.store_number(1, flag + (USED - FLAGS), 8)

    def _force(self) -> None:
        """`fw_force(state, engine, asked)`: carry out the first command, whatever that needs. 0 where that cannot be;
        `asked` has a bit for each engine that waits for this one."""
        c = self._code("fw_force", 3, result=True)
        state, engine, asked = c.args
        with c.when(self._empty(c, engine)):
            c.ret(0)
        record = self._record(c, engine, c.load_number(self._ends(c, engine)[0]))
        with c.when(c.compare("==", c.load_number(record) & 0xFF, _OP["wait_flag"])):
            o = Operands(c, "wait_flag", record)
            peer, flag = o["peer"], self._flag(c, o["peer"], engine, o["flag"])
            asked = scalar(asked | c.num(c.b.shl(ir.Constant(I64, 1), engine.value)))
            with c.loop_while(lambda: c.compare("==", c.load_number(flag, 8), 0)):
                bit = c.num(c.b.lshr(ir_of(asked), peer.value)) & 1
                with c.when(c.b.or_(c.compare("==", peer, 0), c.compare("!=", bit, 0))):
                    c.ret(0)
                with c.when(c.compare("==", c.call("fw_force", state, peer, asked, result=True), 0)):
                    c.ret(0)
        c.call("fw_leave", state, engine)
        c.ret(1)

    def _random(self, c: Code) -> Scalar:
        """The next of the hart's random bytes (xorshift64)."""
        x = c.get("random")
        for places in (13, -7, 17):
            x = scalar(x ^ (x << places if places > 0 else x >> -places))
        c.put("random", x)
        return scalar((x >> 32) & 0xFF)

    def _pump(self) -> None:
        """`fw_pump(state)`: carry out what the timing wants carried out by now."""
        c = self._code("fw_pump", 1)
        state = c.args[0]
        timing = self._config(c, "timing")

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
        c.ret()

    def _publish(self) -> None:
        """`fw_publish(state)`: carry out queued signals to other cores, as far as they can be."""
        c = self._code("fw_publish", 1)
        state = c.args[0]
        for engine in QUEUED:
            going = c.variable(1)

            def more(e: Engine = engine, going: Variable = going) -> ir.Value:
                waits = c.compare("!=", c.get(f"pending{e.value}"), 0)
                return c.b.and_(waits, c.compare("!=", going.get(), 0))

            with c.loop_while(more):
                going.set(c.call("fw_force", state, engine.value, 0, result=True))
        c.ret()

    # Between cores ----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """`fw_wake()`: an interrupt to every hart that waits."""
        c = self._code("fw_wake", 1)
        c.fence()
        with c.loop(self._config(c, "harts")) as hart:
            other = self.places.states + hart * self.places.state_bytes
            with c.when(c.compare("!=", self._atomic(c, other + STATE["waiting"]), 0)):
                c.call("fw_poke", self.target.map.clint_address + hart * 4, 1)
        c.ret()

    def _signal(self) -> None:
        """`fw_signal(state, record)`: a cross_set."""
        c = self._code("fw_signal", 2)
        state, record = c.args
        o = Operands(c, "cross_set", record)
        core, one = c.get("hart"), ir.Constant(I64, 1)
        c.fence()
        with c.either(c.compare("==", o["mode"], MODES)) as (single, counted):
            with single, c.loop(32) as bit, c.when(c.compare("!=", c.num(c.b.lshr(o["mask"].value, bit.value)) & 1, 0)):
                place = self._shared(c, MODES, o["first_core"] + bit, o["flag"])
                c.b.atomic_rmw("add", c.pointer(place), one, "seq_cst")
            with counted:
                c.b.atomic_rmw("add", c.pointer(self._shared(c, o["mode"], core, o["flag"])), one, "seq_cst")
        c.call("fw_wake", state)
        c.ret()

    def _notify(self) -> None:
        """`fw_notify(state, record)`."""
        c = self._code("fw_notify", 2)
        state, record = c.args
        o = Operands(c, "notify", record)
        place = c.pointer(o["address"])
        c.fence()
        with c.either(c.compare("==", o["mode"], 0)) as (store, add):
            with store:
                c.b.atomic_rmw("xchg", place, o["value"].value, "seq_cst")
            with add:
                c.b.atomic_rmw("add", place, o["value"].value, "seq_cst")
        c.call("fw_wake", state)
        c.ret()

    def _count(self) -> None:
        """`fw_count(state, flag)`: this core's count of a cross-core flag."""
        c = self._code("fw_count", 2, result=True)
        flag = c.args[1]
        core, is_cube = c.get("hart"), c.compare("!=", c.get("is_cube"), 0)
        cubes, cores = self._config(c, "cubes"), self._config(c, "cores")
        group_cubes, group_vectors = self._config(c, "group_cubes"), self._config(c, "group_vectors")
        group = c.choose(is_cube, core // group_cubes, scalar(core - cubes) // group_vectors)
        first_cube, first_vector = group * group_cubes, cubes + group * group_vectors

        def over(mode: int, begin: Number, end: Number, *, adds: bool) -> Scalar:
            """The sum, or the least, of the counters of cores begin to end - 1."""
            found = c.variable(0 if adds else (1 << 63))
            with c.loop(end, begin) as other:
                count = self._atomic(c, self._shared(c, mode, other, flag))
                found.set(found.get() + count if adds else c.least(found.get(), count))
            return found.get()

        own_type = over(0, c.choose(is_cube, 0, cubes), c.choose(is_cube, cubes, cores), adds=False)
        everybody = over(2, 0, cores, adds=False)
        of_cubes = over(1, first_cube, first_cube + group_cubes, adds=True)
        of_vectors = over(1, first_vector, first_vector + group_vectors, adds=False)
        total = own_type + everybody + c.choose(is_cube, of_vectors, of_cubes)
        total = total + self._atomic(c, self._shared(c, MODES, core, flag))
        c.ret(total - c.load_number(self._shared(c, MODES + 1, core, flag)))

    def _sleep_until(self, c: Code, holds: object, interrupts: int, *, timer: bool = False) -> None:
        """Sleep until a condition holds: it is looked at after this hart has said that it waits."""
        assert callable(holds)
        clint, hart = self.target.map.clint_address, c.get("hart")
        waiting = c.pointer(c.args[0] + STATE["waiting"])
        with c.loop_while(lambda: c.b.not_(holds())):
            c.b.atomic_rmw("xchg", waiting, ir.Constant(I64, 1), "seq_cst")
            c.call("fw_poke", clint + hart * 4, 0)
            c.fence()
            with c.when(c.b.not_(holds())):
                if timer:
                    c.call("fw_alarm", clint + 0x4000 + hart * 8, clint + 0xBFF8, POLL_TICKS)
                c.call("fw_sleep", interrupts)
        c.b.atomic_rmw("xchg", waiting, ir.Constant(I64, 0), "seq_cst")
        c.fence()

    def _waits(self, c: Code, kind: int, what: Number, value: Number = 0) -> None:
        """Say in the state what the control unit waits for."""
        c.put("wait_what", what)
        c.put("wait_value", value)
        c.put("wait_kind", kind)

    def _cross_wait(self) -> None:
        """`fw_cross_wait(state, flag)`."""
        c = self._code("fw_cross_wait", 2)
        state, flag = c.args
        c.put("last_flag", flag)
        self._waits(c, WAIT_CROSS, flag)
        c.call("fw_publish", state)

        def holds() -> ir.Value:
            return c.compare("!=", c.call("fw_count", state, flag, result=True), 0)

        self._sleep_until(c, holds, _SOFTWARE)
        with c.when(c.compare(">", c.call("fw_count", state, flag, result=True), self.target.sync.flag_count_max)):
            c.fail(FAIL_CROSS, flag)
        taken = self._shared(c, MODES + 1, c.get("hart"), flag)
        c.store_number(c.load_number(taken) + 1, taken)
        c.put("wait_kind", WAIT_NOTHING)
        c.ret()

    def _wait_memory(self) -> None:
        """`fw_wait_memory(state, address, value)`: others may write the word by plain stores, so a timer wakes too."""
        c = self._code("fw_wait_memory", 3)
        state, address, value = c.args
        self._waits(c, WAIT_MEMORY, address, value)
        c.call("fw_publish", state)
        self._sleep_until(c, lambda: c.compare(">=", self._atomic(c, address), value), _SOFTWARE | _TIMER, timer=True)
        c.put("wait_kind", WAIT_NOTHING)
        c.ret()

    # The control unit -------------------------------------------------------------------------------------------------

    def _must(self, c: Code, engine: Number, kind: int) -> None:
        """Carry out an engine's first command; a deadlock where that cannot be."""
        with c.when(c.compare("==", c.call("fw_force", c.args[0], engine, 0, result=True), 0)):
            c.fail(FAIL_DEADLOCK, kind, engine)

    def _control(self) -> None:
        """`fw_control(state, window)`: a command of the control unit itself."""
        c = self._code("fw_control", 2)
        state, window = c.args
        doorbell = c.load_number(window + 8 * DOORBELL)

        def operands(name: str) -> Operands:
            return Operands(c, name, window, in_window=True)

        def wait_flag() -> None:
            o = operands("wait_flag")
            flag = self._flag(c, o["peer"], 0, o["flag"])
            self._waits(c, WAIT_FLAG, o["peer"], o["flag"])
            with c.loop_while(lambda: c.compare("==", c.load_number(flag, 8), 0)):
                self._must(c, o["peer"], WAIT_FLAG)
            c.store_number(c.load_number(flag, 8) - 1, flag, 8)

        def busy(engine: Engine) -> ir.Value:
            return c.b.not_(self._empty(c, engine.value))

        def drain() -> None:
            o = operands("drain")
            self._waits(c, WAIT_DRAIN, o["engines"])
            for engine in _BACKWARDS:
                wanted = c.compare("!=", o["engines"] & (1 << engine.value), 0)
                with c.when(wanted), c.loop_while(partial(busy, engine)):
                    self._must(c, engine.value, WAIT_DRAIN)
            c.fence()

        def with_record(function: str) -> None:
            record = self._gathered(c, window)
            c.call(function, state, record)

        def wait_memory() -> None:
            o = operands("wait_memory")
            c.call("fw_wait_memory", state, o["address"], o["value"])

        cases = {
            "set_flag": lambda: self._set(c, 0, operands("set_flag")),
            "wait_flag": wait_flag,
            "drain": drain,
            "cross_set": lambda: with_record("fw_signal"),
            "cross_wait": lambda: _ignore(c.call("fw_cross_wait", state, operands("cross_wait")["flag"])),
            "notify": lambda: with_record("fw_notify"),
            "wait_memory": wait_memory,
        }
        c.switch(doorbell & 0xFF, {_OP[n]: f for n, f in cases.items()}, lambda: c.fail(FAIL_COMMAND, doorbell))
        c.put("wait_kind", WAIT_NOTHING)
        c.ret()

    def _gathered(self, c: Code, window: Number) -> Scalar:
        """A window's words as a record on the stack."""
        with c.b.goto_entry_block():
            record = c.num(c.b.ptrtoint(c.b.alloca(ir.ArrayType(I64, RECORD_BYTES // 8)), I64))
        self._copy_record(c, window, record)
        return record

    def _copy_record(self, c: Code, window: Number, record: Number) -> None:
        c.store_number(c.load_number(window + 8 * DOORBELL), record)
        for word in range(RECORD_BYTES // 8 - 1):
            c.store_number(c.load_number(window + 8 * word), record + 8 * (word + 1))

    def _doorbell(self) -> None:
        """`fw_doorbell(state, engine)`: the window's words are a command."""
        c = self._code("fw_doorbell", 2)
        state, engine = c.args
        window = state + WINDOWS + engine * WINDOW_BYTES
        has = c.num(c.b.lshr(c.get("engines").value, engine.value)) & 1
        with c.when(c.compare("==", has, 0)):
            c.fail(FAIL_ENGINE, engine, c.load_number(window + 8 * DOORBELL))
        with c.when(self._left_out(c, engine, c.load_number(window + 8 * DOORBELL))):
            c.ret()
        cases = {Engine.CONTROL.value: lambda: _ignore(c.call("fw_control", state, window)),
                 Engine.SDMA.value: lambda: self._shared_engine(c, window)}  # fmt: skip
        c.switch(engine, cases, lambda: self._enqueue(c, engine, window))
        c.call("fw_pump", state)
        c.ret()

    def _left_out(self, c: Code, engine: Scalar, doorbell: Scalar) -> ir.Value:
        """Whether the host wants this command left out: the hart's n-th that sets or takes a flag, or one of a flag
        between engines that is to be forgotten altogether."""
        b, number, opcode = c.b, c.get("orderings"), doorbell & 0xFF
        sets, takes = (c.compare("==", opcode, _OP[name]) for name in ("set_flag", "wait_flag"))
        orders = b.or_(sets, takes)
        for name in ("cross_set", "cross_wait"):
            orders = b.or_(orders, c.compare("==", opcode, _OP[name]))
        c.put("orderings", number + c.num(b.zext(orders, I64)))
        peer, flag = scalar(doorbell >> _PEER_SHIFT) & ENGINES - 1, scalar(doorbell >> _FLAG_SHIFT) & FLAG_IDS - 1
        key = c.choose(sets, engine * ENGINES + peer, peer * ENGINES + engine) * FLAG_IDS + flag + 1
        forgotten = b.and_(b.or_(sets, takes), c.compare("==", self._config(c, "skip_flag"), key))
        left_out = b.or_(b.and_(orders, c.compare("==", self._config(c, "skip_number"), number)), forgotten)
        return b.and_(left_out, c.compare("==", self._config(c, "skip_hart"), c.get("hart") + 1))

    def _shared_engine(self, c: Code, window: Number) -> None:
        """SDMA, one for all harts: commands are carried out at once, one after the other."""
        lock = c.pointer(self.places.config + CONFIG["sdma_lock"])
        one, zero = ir.Constant(I64, 1), ir.Constant(I64, 0)
        taken = lambda: c.b.icmp_unsigned("!=", c.b.atomic_rmw("xchg", lock, one, "seq_cst"), zero)  # noqa: E731
        with c.loop_while(taken):
            pass
        record = self._gathered(c, window)
        is_notify = c.compare("==", c.load_number(record) & 0xFF, _OP["notify"])
        with c.either(is_notify) as (notify, other):
            with notify:
                c.call("fw_notify", c.args[0], record)
            with other:
                c.call("fw_execute", c.args[0], record)
        c.b.atomic_rmw("xchg", lock, zero, "seq_cst")

    def _enqueue(self, c: Code, engine: Scalar, window: Number) -> None:
        taken, put = self._ends(c, engine)
        number = c.load_number(put)
        with c.when(c.compare(">=", number - c.load_number(taken), self.places.depth)):
            self._waits(c, WAIT_QUEUE, engine)
            self._must(c, engine, WAIT_QUEUE)
            c.put("wait_kind", WAIT_NOTHING)
        record = self._record(c, engine, number)
        self._copy_record(c, window, record)
        opcode = c.load_number(record) & 0xFF
        signals = c.b.or_(c.compare("==", opcode, _OP["cross_set"]), c.compare("==", opcode, _OP["notify"]))
        pending = c.args[0] + STATE["pending0"] + engine * 8
        c.store_number(c.load_number(pending) + c.num(c.b.zext(signals, I64)), pending)
        c.store_number(number + 1, put)

    # Traps ------------------------------------------------------------------------------------------------------------

    def _trap(self) -> None:
        """`fw_trap(state, mepc, mcause, mtval)`: a store to the register page; the address behind it."""
        c = self._code("fw_trap", 4, result=True)
        state, pc, cause, address = c.args
        for name, value in (("mcause", cause), ("mtval", address)):
            c.put(name, value)
        with c.when(c.compare("!=", c.get("active"), 0)):
            c.fail(FAIL_FIRMWARE, cause, pc)
        c.put("mepc", pc)
        c.put("active", 1)
        offset = address - self.target.map.page_address
        in_page = c.compare("<", offset, self.target.map.page_bytes)
        with c.when(c.b.not_(in_page)):
            c.fail(FAIL_TRAP, cause, address)
        aligned = c.compare("==", offset & 7, 0)
        legal = c.b.and_(aligned, c.compare("<", offset, WINDOWS_BYTES))
        with c.when(c.b.not_(c.b.and_(legal, c.compare("==", cause, _STORE_ACCESS_FAULT)))):
            c.fail(FAIL_STORE, cause, address)
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
            c.fail(FAIL_STORE, word, pc)
        return register, length

    # Commands from a table --------------------------------------------------------------------------------------------

    def _bench(self) -> None:
        """`fw_bench(state)`: carry out the commands of a table, and copy away what each has written."""
        c = self._code("fw_bench", 1)
        with c.loop(self._config(c, "bench_count")) as n:
            entry = self._config(c, "bench_table") + n * BENCH_ENTRY_BYTES
            c.call("fw_execute", c.args[0], entry)
            start, rows, row_bytes, stride, out = (c.load_number(entry + RECORD_BYTES + 8 * word) for word in range(5))
            with c.loop(rows) as r, c.loop(row_bytes) as at:
                c.store_number(c.load_number(start + r * stride + at, 8), out + r * row_bytes + at, 8)
        c.fence()
        c.call("fw_exit", 0x5555)
        c.ret()


BENCH_ENTRY_BYTES = 128


def _ignore(_: Scalar) -> None:
    """A call whose result nobody wants."""
