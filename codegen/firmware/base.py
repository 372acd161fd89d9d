"""What all parts of the firmware's queue code share: where words lie, how a command is kept, how the machine ends.

Model: a part is a class that emits functions into the module of the queues. Positions in the log (`Emulator.log`) are
addresses of records; 0 where nothing is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I64, Number, Scalar
from superkernel.codegen.firmware.code import Code, scalar
from superkernel.codegen.firmware.memory import (
    CONFIG,
    ENGINES,
    FAILURE_EXIT,
    FLAG_IDS,
    FLAGS,
    QUEUE_ENDS,
    QUEUES,
    RECORD_BYTES,
    FirmwareMap,
)
from superkernel.target.engines.layout import DOORBELL
from superkernel.target.engines.table import command_table

SOFTWARE, TIMER = 1 << 3, 1 << 7  # interrupts, as bits of mie
OPCODES = {name: spec.opcode for name, spec in command_table().items()}


Method = TypeVar("Method", bound=Callable[..., None])


def function(*, result: bool = False) -> Callable[[Method], Method]:
    """Marks a method of a part that emits the inside of the function `fw_<name>`: it gets the code under construction
    and the function's arguments, 64-bit numbers. `result`: the function has one."""

    def mark(method: Method) -> Method:
        method.result = result  # type: ignore[attr-defined]
        return method

    return mark


class FirmwarePart:
    """Emits functions into a module for a target; `fw_fail` is the one that all parts call."""

    def __init__(self, module: ir.Module, places: FirmwareMap) -> None:
        self.module, self.places, self.target = module, places, places.target

    def emit(self) -> None:
        """Defines the part's functions, in their order: each calls those before it."""
        for name, method in vars(type(self)).items():
            if hasattr(method, "result"):
                c = Code(self.module, f"fw_{name}", method.__code__.co_argcount - 2, result=method.result)
                method(self, c, *c.args)
                if not c.b.block.is_terminated:
                    c.ret()

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

    def _queued_log(self, c: Code, engine: Number, number: Number) -> Number:
        """Where the position in the log of a queued command is kept."""
        depth = self.places.depth
        return c.args[0] + self.places.logged + (engine * depth + number % depth) * 8

    def _stamp(self, c: Code, logged: Number, word: int) -> None:
        """Keep in the log that something happens now, in the order of all harts."""
        with c.when(c.compare("!=", logged, 0)):
            one, sequence = ir.Constant(I64, 1), c.pointer(self.places.config + CONFIG["sequence"])
            c.store_number(c.num(c.b.atomic_rmw("add", sequence, one, "seq_cst")) + 1, logged + word)

    def _random(self, c: Code) -> Scalar:
        """The next of the hart's random bytes (xorshift64)."""
        x = c.get("random")
        for places in (13, -7, 17):
            x = scalar(x ^ (x << places if places > 0 else x >> -places))
        c.put("random", x)
        return scalar((x >> 32) & 0xFF)

    def _atomic(self, c: Code, address: Number) -> Scalar:
        return c.num(c.b.load_atomic(c.pointer(address), "seq_cst", 8, typ=I64))

    # Ends -------------------------------------------------------------------------------------------------------------

    @function()
    def fail(self, c: Code, state: Scalar, kind: Scalar, a: Scalar, b: Scalar) -> None:
        """The first failure is kept, the machine ends."""
        config = self.places.config
        zero = ir.Constant(I64, 0)
        claimed = c.b.cmpxchg(c.pointer(config + CONFIG["failure"]), zero, kind.value, "seq_cst", "seq_cst")
        with c.when(c.b.extract_value(claimed, 1)):
            c.store_number(c.get("hart"), config + CONFIG["failed_hart"])
            c.store_number(a, config + CONFIG["failure_a"])
            c.store_number(b, config + CONFIG["failure_b"])
            c.fence()
            c.call("fw_exit", FAILURE_EXIT << 16 | 0x3333)
        with c.loop_while(lambda: ir.Constant(ir.IntType(1), 1)):
            c.call("fw_sleep", 0)
        c.b.unreachable()

    def _waits(self, c: Code, kind: int, what: Number, value: Number = 0) -> None:
        """Say in the state what the control unit waits for."""
        c.put("wait_what", what)
        c.put("wait_value", value)
        c.put("wait_kind", kind)

    # Commands ---------------------------------------------------------------------------------------------------------

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
