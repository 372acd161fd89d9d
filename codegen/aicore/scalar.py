"""Scalar code of the control unit: 64-bit numbers, loops, conditions.

Model: a `Number` is a Python int (folded while emitting) or a `Scalar`, a value in a register. Scalars are unsigned in
comparison and division unless a name says otherwise: they count things and address bytes. A `Flow` is a function in the
making: what is emitted is a tree of *nodes*, numbered in the order of emission: commands, loops and conditions. What
depends on a number that is known while emitting is decided then, not by the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, Union

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
PTR, VOID = ir.PointerType(), ir.VoidType()

Number: TypeAlias = Union[int, "Scalar"]
MASK64 = (1 << 64) - 1


class Scalar:
    """A 64-bit value in a register, with the operators of arithmetic. Python ints mix in."""

    __slots__ = ("b", "value")

    def __init__(self, b: ir.IRBuilder, value: ir.Value) -> None:
        self.b, self.value = b, value

    def _of(self, value: ir.Value) -> Scalar:
        return Scalar(self.b, value)

    def __add__(self, other: Number) -> Number:
        return self if isinstance(other, int) and other == 0 else self._of(self.b.add(self.value, ir_of(other)))

    __radd__ = __add__

    def __sub__(self, other: Number) -> Number:
        return self if isinstance(other, int) and other == 0 else self._of(self.b.sub(self.value, ir_of(other)))

    def __rsub__(self, other: Number) -> Number:
        return self._of(self.b.sub(ir_of(other), self.value))

    def __mul__(self, other: Number) -> Number:
        if isinstance(other, int) and other in (0, 1):
            return self if other else 0
        return self._of(self.b.mul(self.value, ir_of(other)))

    __rmul__ = __mul__

    def __floordiv__(self, other: Number) -> Number:
        return self if isinstance(other, int) and other == 1 else self._of(self.b.udiv(self.value, ir_of(other)))

    def __mod__(self, other: Number) -> Number:
        return 0 if isinstance(other, int) and other == 1 else self._of(self.b.urem(self.value, ir_of(other)))

    def __lshift__(self, places: int) -> Number:
        return self if places == 0 else self._of(self.b.shl(self.value, ir.Constant(I64, places)))

    def __rshift__(self, places: int) -> Number:
        return self if places == 0 else self._of(self.b.lshr(self.value, ir.Constant(I64, places)))

    def __and__(self, other: Number) -> Number:
        return self._of(self.b.and_(self.value, ir_of(other)))

    def __or__(self, other: Number) -> Number:
        return self if isinstance(other, int) and other == 0 else self._of(self.b.or_(self.value, ir_of(other)))

    __ror__ = __or__

    def __xor__(self, other: Number) -> Number:
        return self._of(self.b.xor(self.value, ir_of(other)))

    def __repr__(self) -> str:
        return f"Scalar({self.value})"


def ir_of(number: Number) -> ir.Value:
    """The LLVM value of a number."""
    return ir.Constant(I64, number) if isinstance(number, int) else number.value


class _Volatile:
    """An access that LLVM must neither drop, merge nor move across another one: llvmlite has no word for it."""

    def descr(self, buf: list[str]) -> None:
        mine: list[str] = []
        super().descr(mine)  # type: ignore[misc]
        buf.append("".join(mine).replace(f"{self.opname} ", f"{self.opname} volatile ", 1))  # type: ignore[attr-defined]


class _VolatileStore(_Volatile, ir.instructions.StoreInstr):  # type: ignore[misc]
    pass


class _VolatileLoad(_Volatile, ir.instructions.LoadInstr):  # type: ignore[misc]
    pass


def store_volatile(b: ir.IRBuilder, value: Number, address: Number, kind: ir.IntType = I64) -> None:
    """Store the low bits of a number at an address of a device or of memory that others look at, in program order."""
    pointer = b.inttoptr(ir_of(address), PTR)
    bits = ir_of(value)
    store = _VolatileStore(b.block, bits if kind == I64 else b.trunc(bits, kind), pointer)
    store.align = kind.width // 8
    b._insert(store)


def load_volatile(b: ir.IRBuilder, address: Number, kind: ir.IntType) -> ir.Value:
    """Load an integer in program order with other such accesses."""
    load = _VolatileLoad(b.block, b.inttoptr(ir_of(address), PTR), typ=kind)
    load.align = kind.width // 8
    b._insert(load)
    return load


class Variable:
    """A register that changes: `get`, `set`, `add`."""

    __slots__ = ("b", "slot")

    def __init__(self, b: ir.IRBuilder, initial: Number) -> None:
        self.b = b
        with b.goto_entry_block():
            self.slot = b.alloca(I64)
        self.set(initial)

    def get(self) -> Scalar:
        """What it holds here."""
        return Scalar(self.b, self.b.load(self.slot))

    def set(self, value: Number) -> None:
        """It holds `value` from here on."""
        self.b.store(ir_of(value), self.slot)

    def add(self, value: Number) -> None:
        """It holds `value` more from here on."""
        self.set(self.get() + value)


def declare(module: ir.Module, name: str, arguments: int, *, result: bool = False) -> ir.Function:
    """A function of 64-bit numbers, known to the module from here on."""
    kind = ir.FunctionType(I64 if result else VOID, [I64] * arguments)
    return module.globals.get(name) or ir.Function(module, kind, name)


class Flow:
    """A function in the making. `b`: LLVM's builder, at the place where the next command goes."""

    def __init__(self, module: ir.Module, symbol: str, count: int) -> None:
        """`count`: arguments, all i64."""
        self.module, self.symbol = module, symbol
        self.nodes = 0
        self._around: list[int] = []  # loops and conditions that are open
        self.function = ir.Function(module, ir.FunctionType(VOID, [I64] * count), symbol)
        self.function.attributes.add("nounwind")
        set.add(self.function.attributes, '"no-builtins"')
        self.function.section = f".text.{symbol}"
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))

    def _ahead_of(self, node: int) -> None:
        """What stands ahead of a node."""

    def _behind(self, node: int) -> None:
        """What stands behind a node."""

    @contextmanager
    def _node(self, inner: bool = False) -> Iterator[None]:
        """A node; `inner`: others may lie in it."""
        number = self.nodes
        self.nodes += 1
        self._ahead_of(number)
        if inner:
            self._around.append(number)
        yield
        if inner:
            self._around.pop()
        self._behind(number)

    @contextmanager
    def loop(self, begin: Number, end: Number, step: int = 1) -> Iterator[Number]:
        """`for i in range(begin, end, step)`. A range known to have one trip emits no loop."""
        if isinstance(begin, int) and isinstance(end, int) and begin < end <= begin + step:
            yield begin
            return
        with self._node(inner=True):
            head, inside, after = (self.function.append_basic_block(n) for n in ("head", "body", "after"))
            before = self.b.block
            self.b.branch(head)
            self.b.position_at_end(head)
            index = self.b.phi(I64)
            index.add_incoming(ir_of(begin), before)
            self.b.cbranch(self.b.icmp_signed("<", index, ir_of(end)), inside, after)
            self.b.position_at_end(inside)
            yield Scalar(self.b, index)
            index.add_incoming(self.b.add(index, ir_of(step)), self.b.block)
            self.b.branch(head)
            self.b.position_at_end(after)

    @contextmanager
    def when(self, condition: ir.Value | bool) -> Iterator[None]:
        """`if condition:`. A Python truth value decides while emitting (False: the body is emitted but dead)."""
        if condition is True:
            yield
            return
        value = ir.Constant(I1, 0) if condition is False else condition
        with self._node(inner=True), self.b.if_then(value):
            yield

    def compare(self, relation: str, a: Number, b: Number) -> ir.Value | bool:
        """Signed comparison: a truth value of Python where both are known, else an i1 for `when`."""
        if isinstance(a, int) and isinstance(b, int):
            return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[relation]
        return self.b.icmp_signed(relation, ir_of(a), ir_of(b))

    def select(self, condition: ir.Value | bool, a: Number, b: Number) -> Number:
        """a where the condition holds, else b."""
        if isinstance(condition, bool):
            return a if condition else b
        return Scalar(self.b, self.b.select(condition, ir_of(a), ir_of(b)))

    def minimum(self, a: Number, b: Number) -> Number:
        """The smaller one, signed; a plain int where both are."""
        return min(a, b) if isinstance(a, int) and isinstance(b, int) else self.select(self.compare("<", a, b), a, b)

    def maximum(self, a: Number, b: Number) -> Number:
        """The larger one, signed; a plain int where both are."""
        return max(a, b) if isinstance(a, int) and isinstance(b, int) else self.select(self.compare(">", a, b), a, b)

    def variable(self, initial: Number = 0) -> Variable:
        """A register that changes."""
        return Variable(self.b, initial)

    def _call(self, name: str, *arguments: Scalar) -> None:
        self.b.call(declare(self.module, name, len(arguments)), [a.value for a in arguments])
