"""Scalar code of the control unit: 64-bit numbers, loops, conditions.

Model: a `Number` is a Python int (folded while emitting) or a `Scalar`, a value in a register. Scalars are unsigned in
comparison and division unless a name says otherwise: they count things and address bytes.
"""

from __future__ import annotations

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


class Variable:
    """A register that changes: `get`, `set`, `add`."""

    __slots__ = ("b", "slot")

    def __init__(self, b: ir.IRBuilder, initial: Number) -> None:
        self.b = b
        with b.goto_entry_block():
            self.slot = b.alloca(I64)
        self.set(initial)

    def get(self) -> Scalar:
        return Scalar(self.b, self.b.load(self.slot))

    def set(self, value: Number) -> None:
        self.b.store(ir_of(value), self.slot)

    def add(self, value: Number) -> None:
        self.set(self.get() + value)
