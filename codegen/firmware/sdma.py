"""SDMA: one queue for all harts.

Model: the queue is a ring of records in shared memory under a lock. A doorbell adds to it; commands leave in their
order, carried out by whichever hart has a reason, by the timing of that hart:

- now: behind every doorbell, all of them;
- late: one by one while a hart waits for a word in memory that does not hold yet, and one where the ring is full;
- random: behind a doorbell, as long as the hart's luck lasts.

Invariant: whoever holds the lock waits for nobody.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I64, Number, Scalar
from superkernel.codegen.firmware.base import OPCODES, FirmwarePart, function
from superkernel.codegen.firmware.code import Code
from superkernel.codegen.firmware.memory import CONFIG, LOG, RECORD_BYTES
from superkernel.target.engines.model import Engine


class SdmaCode(FirmwarePart):
    """The functions of the shared engine."""

    def _lock(self, c: Code) -> None:
        lock, one = c.pointer(self.places.config + CONFIG["sdma_lock"]), ir.Constant(I64, 1)
        taken = lambda: c.b.icmp_unsigned("!=", c.b.atomic_rmw("xchg", lock, one, "seq_cst"), ir.Constant(I64, 0))  # noqa: E731
        with c.loop_while(taken):
            pass

    def _unlock(self, c: Code) -> None:
        lock = c.pointer(self.places.config + CONFIG["sdma_lock"])
        c.b.atomic_rmw("xchg", lock, ir.Constant(I64, 0), "seq_cst")

    def _number(self, name: str) -> int:
        return self.places.config + CONFIG[name]

    def _slot(self, number: Number) -> Number:
        return self.places.sdma_ring + number % self.places.depth * (RECORD_BYTES + 8)

    @function(result=True)
    def sdma_first(self, c: Code, state: Scalar) -> None:
        """Carry the first command out; 0 where there is none. Under the lock."""
        number = c.load_number(self._number("sdma_taken"))
        with c.when(c.compare("==", number, c.load_number(self._number("sdma_put")))):
            c.ret(0)
        record = self._slot(number)
        logged = c.load_number(record + RECORD_BYTES)
        self._stamp(c, logged, LOG["begin"])
        is_notify = c.compare("==", c.load_number(record) & 0xFF, OPCODES["notify"])
        with c.either(is_notify) as (notify, other):
            with notify:
                c.call("fw_notify", state, record)
            with other:
                c.call("fw_execute", state, record)
        self._stamp(c, logged, LOG["end"])
        c.store_number(number + 1, self._number("sdma_taken"))
        c.ret(1)

    @function(result=True)
    def sdma(self, c: Code, state: Scalar) -> None:
        """The same, with the lock."""
        self._lock(c)
        done = c.call("fw_sdma_first", state, result=True)
        self._unlock(c)
        c.ret(done)

    @function()
    def sdma_doorbell(self, c: Code, state: Scalar, record: Scalar, logged: Scalar) -> None:
        """Put a command into the queue."""
        self._lock(c)
        put = c.load_number(self._number("sdma_put"))
        with c.when(c.compare(">=", put - c.load_number(self._number("sdma_taken")), self.places.depth)):
            c.call("fw_sdma_first", state, result=True)
        slot = self._slot(put)
        for word in range(RECORD_BYTES // 8):
            c.store_number(c.load_number(record + 8 * word), slot + 8 * word)
        c.store_number(logged, slot + RECORD_BYTES)
        c.store_number(put + 1, self._number("sdma_put"))
        going = c.variable(1)

        def lucky() -> ir.Value:
            wanted = c.compare("<", self._random(c), c.get(f"bias{Engine.SDMA.value}"))
            return c.b.and_(c.compare("!=", going.get(), 0), wanted)

        def first() -> Scalar:
            return c.call("fw_sdma_first", state, result=True)

        def now() -> None:
            with c.loop_while(lambda: c.compare("!=", first(), 0)):
                pass

        def random() -> None:
            with c.loop_while(lucky):
                going.set(first())

        c.switch(c.get("timing"), {0: now, 2: random}, lambda: None)
        self._unlock(c)
