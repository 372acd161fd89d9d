"""The control unit's part of a kernel: its function, loops and conditions, and numbers.

Model: what is emitted is a tree of *nodes*, numbered in the order of emission: commands, loops and conditions. A number
that is known while emitting stays a Python integer; what depends on one is decided then, not by the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from superkernel.codegen.aicore.scalar import I1, I64, VOID, Number, Scalar, Variable, ir_of
from superkernel.codegen.aicore.statements import declare


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
