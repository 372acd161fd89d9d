"""Writing LLVM IR for the firmware: functions of 64-bit numbers with loops, conditions and typed memory accesses.

Model: a `Code` is one function under construction. Addresses and counts are `Number`s (codegen/aicore/scalar.py),
elements are plain LLVM values. Accesses claim the element's natural alignment: the emulated harts carry out unaligned
ones too, and a claim of less would be compiled into single bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I64, PTR, Number, Scalar, Variable, declare, ir_of
from superkernel.codegen.firmware.memory import STATE
from superkernel.target.engines.layout import DOORBELL, WINDOW_WORDS, layout
from superkernel.target.engines.table import spec_of

F32, F64 = ir.FloatType(), ir.DoubleType()


def scalar(number: Number) -> Scalar:
    """A number that is in a register for certain."""
    assert isinstance(number, Scalar)
    return number


class Code:
    """See the module docstring. `state` is the first argument: the hart's state."""

    def __init__(self, module: ir.Module, name: str, arguments: int, *, result: bool = False) -> None:
        self.module = module
        self.function = declare(module, name, arguments, result=result)
        self.function.attributes.add("nounwind")
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.args = [Scalar(self.b, a) for a in self.function.args]

    # Numbers ----------------------------------------------------------------------------------------------------------

    def num(self, value: ir.Value) -> Scalar:
        """A 64-bit value with arithmetic."""
        return Scalar(self.b, value)

    def variable(self, initial: Number = 0) -> Variable:
        """A register that changes, on the stack."""
        return Variable(self.b, initial)

    def compare(self, relation: str, left: Number, right: Number) -> ir.Value:
        """Unsigned comparison: an i1."""
        return self.b.icmp_unsigned(relation, ir_of(left), ir_of(right))

    def choose(self, condition: ir.Value, left: Number, right: Number) -> Scalar:
        """`left` where the condition (i1) holds, else `right`."""
        return self.num(self.b.select(condition, ir_of(left), ir_of(right)))

    def least(self, left: Number, right: Number) -> Number:
        """The smaller one, signed; a plain int where both are."""
        if isinstance(left, int) and isinstance(right, int):
            return min(left, right)
        return self.choose(self.compare("<", left, right), left, right)

    def ceil_div(self, number: Number, step: int) -> Number:
        """`number` / `step`, rounded up; neither is negative."""
        return (number + (step - 1)) // step

    # Memory -----------------------------------------------------------------------------------------------------------

    def pointer(self, address: Number) -> ir.Value:
        """An address as LLVM's pointer."""
        return self.b.inttoptr(ir_of(address), PTR)

    def load(self, address: Number, kind: ir.Type) -> ir.Value:
        """A value of LLVM type `kind` from an address aligned to its size."""
        return self.b.load(self.pointer(address), typ=kind, align=_bytes(kind))

    def store(self, value: ir.Value, address: Number) -> None:
        """A value of any LLVM type to an address aligned to its size."""
        self.b.store(value, self.pointer(address), align=_bytes(value.type))

    def load_number(self, address: Number, bits: int = 64) -> Scalar:
        """An unsigned integer of memory."""
        value = self.load(address, ir.IntType(bits))
        return self.num(value if bits == 64 else self.b.zext(value, I64))

    def store_number(self, value: Number, address: Number, bits: int = 64) -> None:
        """The low `bits` of a number to an address aligned to them."""
        word = ir_of(value)
        self.store(word if bits == 64 else self.b.trunc(word, ir.IntType(bits)), address)

    def get(self, name: str) -> Scalar:
        """A word of the hart's state."""
        return self.load_number(self.args[0] + STATE[name])

    def put(self, name: str, value: Number) -> None:
        """Sets a word of this hart's state."""
        self.store_number(value, self.args[0] + STATE[name])

    def fence(self) -> None:
        """All accesses before come ahead of all behind, for every hart."""
        self.b.fence("seq_cst")

    # Control flow -----------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, count: Number, start: Number = 0) -> Iterator[Scalar]:
        """start, start + 1, ... below count."""
        at = self.variable(start)
        with self.loop_while(lambda: self.compare("<", at.get(), count)):
            yield at.get()
            at.add(1)

    @contextmanager
    def loop_while(self, condition: Callable[[], ir.Value]) -> Iterator[None]:
        """What is emitted inside runs as long as the condition, computed anew each time, holds."""
        head, body, end = (self.function.append_basic_block(n) for n in ("head", "body", "end"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(condition(), body, end)
        self.b.position_at_end(body)
        yield
        if not self.b.block.is_terminated:
            self.b.branch(head)
        self.b.position_at_end(end)

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        """What is emitted inside runs where the condition (i1) holds."""
        with self.b.if_then(condition):
            yield

    @contextmanager
    def either(self, condition: ir.Value) -> Iterator[tuple[Any, Any]]:
        """Two blocks to emit into: for the condition, and for its opposite."""
        with self.b.if_else(condition) as both:
            yield both

    def switch(self, value: Number, cases: Mapping[int, Callable[[], None]], default: Callable[[], None]) -> None:
        """Run the case of a value."""
        other, end = (self.function.append_basic_block(n) for n in ("other", "end"))
        chosen = self.b.switch(ir_of(value), other)
        for number, emit in [*cases.items(), (None, default)]:
            block = other if number is None else self.function.append_basic_block(f"case{number}")
            if number is not None:
                chosen.add_case(ir.Constant(I64, number), block)
            self.b.position_at_end(block)
            emit()
            if not self.b.block.is_terminated:
                self.b.branch(end)
        self.b.position_at_end(end)

    def call(self, name: str, *arguments: Number, result: bool = False) -> Scalar:
        """Call a function of 64-bit numbers."""
        function = declare(self.module, name, len(arguments), result=result)
        return self.num(self.b.call(function, [ir_of(a) for a in arguments]))

    def fail(self, kind: int, a: Number = 0, b: Number = 0) -> None:
        """End the machine."""
        self.call("fw_fail", self.args[0], kind, a, b)

    def ret(self, value: Number | None = None) -> None:
        """Leaves the function; None: it returns nothing."""
        if value is None:
            self.b.ret_void()
        else:
            self.b.ret(ir_of(value))

    def intrinsic(self, name: str, kind: ir.Type, *arguments: ir.Value, suffix: Sequence[ir.Type] = ()) -> ir.Value:
        """Call an LLVM intrinsic with a result of a type."""
        shown = ".".join(_suffix(t) for t in (suffix or (kind,)))
        full = f"{name}.{shown}"
        known = self.module.globals.get(full)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(kind, [a.type for a in arguments]), full)
        return self.b.call(known, list(arguments))


def _bytes(kind: ir.Type) -> int:
    if isinstance(kind, ir.IntType):
        return max(1, int(kind.width) // 8)
    return 4 if kind == F32 else 8


def _suffix(kind: ir.Type) -> str:
    if kind == F32:
        return "f32"
    return "f64" if kind == F64 else f"i{kind.width}"


class Operands:
    """A command's operands, taken out of its words. `record` is the address of a queued command, or of the window
    itself (`in_window`), where nothing can change before the command is done."""

    def __init__(self, c: Code, name: str, record: Number, *, in_window: bool = False) -> None:
        self.c, self.spec, self.record, self.in_window = c, spec_of(name), record, in_window
        self._slots = {slot.operand: slot for slot in layout(self.spec)}
        self._words: dict[int, Scalar] = {}
        self._numbers: dict[str, Scalar] = {}
        for slot in self._slots.values():  # at the start of the function, where the loads stand ahead of every use
            self[slot.operand]
        self.doorbell = self.word(DOORBELL)

    def word(self, number: int) -> Scalar:
        """A word of the command, loaded once per function."""
        if number not in self._words:
            place = 8 * number if self.in_window else 8 * ((number + 1) % WINDOW_WORDS)
            self._words[number] = self.c.load_number(self.record + place)
        return self._words[number]

    def __getitem__(self, name: str) -> Scalar:
        if name not in self._numbers:
            slot = self._slots[name]
            value = (self.word(slot.word) >> slot.shift) & ((1 << slot.bits) - 1)
            assert isinstance(value, Scalar)
            self._numbers[name] = value
        return self._numbers[name]

    def at(self, name: str) -> Number:
        """The address in the emulator's memory of an address operand."""
        memory = self.spec.operand(name).memory
        return self[name] if memory is None else self.c.get(memory.value) + self[name]

    @property
    def types(self) -> Scalar:
        """The codes of both element types."""
        value = (self.doorbell >> 8) & 0xFF
        assert isinstance(value, Scalar)
        return value
