"""Between cores: signals, notified words, and how a hart waits for them.

Cross-core flags need no lock: every core counts its own signals, and what a core was signalled is computed from what
all have counted: the least of its type, of the other, or of all, the sum or the least within a group, what single
targets were sent. A waiting hart says so, looks once more, and sleeps until another hart's interrupt.

Invariants: a hart writes its own signal counters only; only `mask` signals and `notify add` are atomic additions to
words of others. Interrupts are enabled while a hart sleeps, and at no other time. Where all harts wait or have
ended and no condition holds, nothing can ever happen again: the host looks for that (backends/aicore/qemu_machine.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I64, Number, Scalar
from superkernel.codegen.firmware.base import SOFTWARE, TIMER, FirmwarePart, function
from superkernel.codegen.firmware.code import Code, Operands, scalar
from superkernel.codegen.firmware.memory import MODES, STATE, Failure, Wait

POLL_TICKS = 1000  # 100 us: how often a waiting hart looks at a word that no command wrote
PATIENT = 2  # a hart's `waiting` while it has not yet given up; 1 when only others can help
_MTIMECMP, _MTIME = 0x4000, 0xBFF8
Condition: TypeAlias = Callable[[], ir.Value]


class SignalCode(FirmwarePart):
    """The functions between cores."""

    @function()
    def wake(self, c: Code, state: Scalar) -> None:
        """An interrupt to every hart that waits."""
        c.fence()
        with c.loop(self._config(c, "harts")) as hart:
            other = self.places.states + hart * self.places.state_bytes
            with c.when(c.compare("!=", self._atomic(c, other + STATE["waiting"]), 0)):
                c.call("fw_poke", self.target.map.clint_address + hart * 4, 1)

    @function()
    def signal(self, c: Code, state: Scalar, record: Scalar) -> None:
        """A cross_set."""
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

    @function()
    def notify(self, c: Code, state: Scalar, record: Scalar) -> None:
        """A notify."""
        o = Operands(c, "notify", record)
        place = c.pointer(o["address"])
        c.fence()
        with c.either(c.compare("==", o["mode"], 0)) as (store, add):
            with store:
                c.b.atomic_rmw("xchg", place, o["value"].value, "seq_cst")
            with add:
                c.b.atomic_rmw("add", place, o["value"].value, "seq_cst")
        c.call("fw_wake", state)

    @function(result=True)
    def count(self, c: Code, state: Scalar, flag: Scalar) -> None:
        """How often this core was signalled; its count is that, less what it took."""
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
        other_type = over(3, c.choose(is_cube, cubes, 0), c.choose(is_cube, cores, cubes), adds=False)
        everybody = over(2, 0, cores, adds=False)
        of_cubes = over(1, first_cube, first_cube + group_cubes, adds=True)
        of_vectors = over(1, first_vector, first_vector + group_vectors, adds=False)
        partner, first = c.choose(is_cube, first_vector, first_cube), c.choose(is_cube, first_cube, first_vector)
        paired = c.choose(c.compare("==", core, first), self._atomic(c, self._shared(c, 4, partner, flag)), 0)
        total = paired + own_type + other_type + everybody + c.choose(is_cube, of_vectors, of_cubes)
        total = total + self._atomic(c, self._shared(c, MODES, core, flag))
        c.ret(total)

    @function()
    def pause(self, c: Code, state: Scalar) -> None:
        """Sleep for the hart's `pause`."""
        self._alarm(c, c.get("pause"))
        c.call("fw_sleep", TIMER)

    def _alarm(self, c: Code, ticks: Number) -> None:
        clint = self.target.map.clint_address
        c.call("fw_alarm", clint + _MTIMECMP + c.get("hart") * 8, clint + _MTIME, ticks)

    def _publish_until(self, c: Code, holds: Condition) -> None:
        """Carry out queued signals, one after the other, while a condition does not hold: others may wait for them. A
        hart that has patience gives the others time ahead of each."""
        going = c.variable(1)
        with c.loop_while(lambda: c.b.and_(c.b.not_(holds()), c.compare("!=", going.get(), 0))):
            self._be_patient(c, holds)
            with c.either(holds()) as (done, still):
                with done:
                    going.set(0)
                with still:
                    going.set(c.call("fw_publish", c.args[0], result=True))

    def _be_patient(self, c: Code, holds: Condition) -> None:
        """Sleep until a condition holds, but no longer than the hart's patience."""
        clint, waiting = self.target.map.clint_address, c.pointer(c.args[0] + STATE["waiting"])

        def now() -> Scalar:
            return c.load_number(clint + _MTIME)

        with c.when(c.compare("!=", c.get("patience"), 0)):
            end = now() + c.get("patience")
            with c.loop_while(lambda: c.b.and_(c.b.not_(holds()), c.compare("<", now(), end))):
                c.b.atomic_rmw("xchg", waiting, ir.Constant(I64, PATIENT), "seq_cst")
                c.call("fw_poke", clint + c.get("hart") * 4, 0)
                c.fence()
                with c.when(c.b.not_(holds())):
                    self._alarm(c, c.get("patience"))
                    c.call("fw_sleep", SOFTWARE | TIMER)
            c.b.atomic_rmw("xchg", waiting, ir.Constant(I64, 0), "seq_cst")

    def _sleep_until(self, c: Code, holds: Condition, interrupts: int, *, timer: bool = False) -> None:
        """Sleep until a condition holds: it is looked at after this hart has said that it waits."""
        clint, hart = self.target.map.clint_address, c.get("hart")
        waiting = c.pointer(c.args[0] + STATE["waiting"])
        with c.loop_while(lambda: c.b.not_(holds())):
            c.b.atomic_rmw("xchg", waiting, ir.Constant(I64, 1), "seq_cst")
            c.call("fw_poke", clint + hart * 4, 0)
            c.fence()
            with c.when(c.b.not_(holds())):
                if timer:
                    self._alarm(c, POLL_TICKS)
                c.call("fw_sleep", interrupts)
        c.b.atomic_rmw("xchg", waiting, ir.Constant(I64, 0), "seq_cst")
        c.fence()

    @function()
    def cross_wait(self, c: Code, state: Scalar, flag: Scalar) -> None:
        """Wait for a cross-core flag, and take it."""
        c.put("last_flag", flag)
        taken = self._shared(c, MODES + 1, c.get("hart"), flag)
        with c.when(self._unwaited(c)):
            c.store_number(c.load_number(taken) + 1, taken)
            c.ret()
        self._waits(c, Wait.CROSS, flag)

        def holds() -> ir.Value:
            return c.compare(">", c.call("fw_count", state, flag, result=True), c.load_number(taken))

        self._publish_until(c, holds)
        self._sleep_until(c, holds, SOFTWARE)
        count = c.call("fw_count", state, flag, result=True) - c.load_number(taken)
        with c.when(c.compare(">", count, self.target.sync.flag_count_max)):
            c.fail(Failure.CROSS, flag)
        c.store_number(c.load_number(taken) + 1, taken)
        c.put("wait_kind", Wait.NOTHING)

    def _unwaited(self, c: Code) -> ir.Value:
        """Whether the host wants this command not to wait: the hart's n-th for order."""
        number = c.compare("==", self._config(c, "pass_number"), c.get("orderings"))
        return c.b.and_(number, c.compare("==", self._config(c, "skip_hart"), c.get("hart") + 1))

    @function(result=True)
    def reached(self, c: Code, state: Scalar, address: Scalar, value: Scalar) -> None:
        """Whether a word is large enough; what SDMA has to do for that is done."""
        going = c.variable(1)
        with c.loop_while(lambda: c.compare("!=", going.get(), 0)):
            with c.when(c.compare(">=", self._atomic(c, address), value)):
                c.ret(1)
            going.set(c.call("fw_sdma", state, result=True))
        c.ret(0)

    @function()
    def wait_memory(self, c: Code, state: Scalar, address: Scalar, value: Scalar) -> None:
        """Others may write the word by plain stores, so a timer wakes too."""
        self._waits(c, Wait.MEMORY, address, value)

        def holds() -> ir.Value:
            return c.compare("!=", c.call("fw_reached", state, address, value, result=True), 0)

        self._publish_until(c, holds)
        self._sleep_until(c, holds, SOFTWARE | TIMER, timer=True)
        c.put("wait_kind", Wait.NOTHING)
