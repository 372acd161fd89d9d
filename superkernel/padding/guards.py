"""Guards: what stands in the padding of an operand is replaced, on the way to one operator, by what changes nothing.

Model: an operator that takes elements of an axis together is right about a padded axis if the padding holds the
identity of what it does: 0 for sums and products, 1 for products of all, the least value for extremes and softmax. A
guard says so of one operand and axis: elements from the `count`-th on are to be replaced. One that counts places from
the end of an axis is right if the padding lies in front: then elements are to be moved. Padding must lie behind the end
of the axis. How many count is known with each call only, so the guarded graph has further inputs: bool [extent], of
which the first elements are True. Axes of one extent share an input if they grow together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node


class Fill(Enum):
    """What a guard puts in the place of padding; or `FRONT`, where it only moves it to the front of the axis."""

    FRONT = "moved to the front"
    ZERO = "0"
    ONE = "1"
    LEAST = "the least value"
    GREATEST = "the greatest value"

    def of(self, dtype: DType) -> float | int | bool:
        """The value in a type of elements; infinite where the type has infinities. Not of `FRONT`."""
        if self in (Fill.ZERO, Fill.ONE):
            return int(self is Fill.ONE)
        greatest = self is Fill.GREATEST
        if dtype.is_float:
            return np.inf if greatest else -np.inf
        if dtype is DType.BOOL:
            return greatest
        limits = np.iinfo(dtype.numpy)
        return int(limits.max if greatest else limits.min)


@dataclass(frozen=True, slots=True)
class Guard:
    """Of an operand of a node: along `axis`, counted from the end, elements from the `count`-th of `extent` on become
    `fill`. An operand that is left out, a mask, becomes which elements count."""

    operand: int
    axis: int
    extent: int
    count: int
    fill: Fill


Guards: TypeAlias = Mapping[str, tuple[Guard, ...]]
"""By node of the padded graph."""
Place: TypeAlias = tuple[str, int, int]
"""Node, operand, axis."""


def places_of(guards: Guards) -> dict[Place, Guard]:
    """Each guard by where it stands."""
    return {(node, each.operand, each.axis): each for node, some in guards.items() for each in some}


def guarded(padded: Graph, guards: Guards) -> tuple[Graph, dict[Place, str]]:
    """The graph of the larger sizes with its guards, and by place the input that says which elements count."""
    if not guards:
        return padded, {}
    editor = _Guarding(padded)
    nodes: list[Node] = []
    for node in padded.nodes:
        operands = [*node.inputs]
        for guard in guards.get(node.name, ()):
            operands += [None] * (guard.operand + 1 - len(operands))
            operands[guard.operand] = editor.guard(node, operands[guard.operand], guard)
        nodes += [*editor.taken(), replace(node, inputs=tuple(operands))]
    return padded.rebuilt(nodes, inputs=editor.inputs, constants=editor.constants), editor.asked


class _Guarding:
    def __init__(self, graph: Graph) -> None:
        self.inputs, self.constants = dict(graph.inputs), dict(graph.constants)
        self.types = dict(graph.types)
        self.asked: dict[Place, str] = {}
        self.nodes: list[Node] = []
        self.counts: dict[tuple[int, int], str] = {}  # extent, how many count -> input
        self.shaped: dict[tuple[str, int], str] = {}  # input, axes behind -> value
        self.places: dict[str, str] = {}  # input -> where each element goes, with the padding in front
        self.made: dict[tuple[str, str, int, Fill], str] = {}

    def taken(self) -> list[Node]:
        """What was put in since last asked."""
        nodes, self.nodes = self.nodes, []
        return nodes

    def guard(self, node: Node, value: str | None, guard: Guard) -> str:
        """The value as the node is to read it."""
        which = self.which(node, guard)
        if value is None:
            return self.beside(which, guard, node)
        key = (value, which, guard.axis, guard.fill)
        if key not in self.made:
            replaced = self.moved if guard.fill is Fill.FRONT else self.replaced
            self.made[key] = replaced(node, value, which, guard)
        return self.made[key]

    def emit(self, near: Node, op: str, inputs: tuple[str, ...], name: str, **attrs: Any) -> str:
        self.nodes.append(Node(name, op, inputs, (name,), attrs, scope=near.scope))
        return name

    def replaced(self, node: Node, value: str, which: str, guard: Guard) -> str:
        dtype = self.types[value].dtype
        fill = f"{guard.fill.value} {dtype.value}"
        self.constants[fill] = np.array(guard.fill.of(dtype), dtype.numpy)
        name = self.name(value)
        return self.emit(node, "where", (self.beside(which, guard, node), value, fill), name)

    def moved(self, node: Node, value: str, which: str, guard: Guard) -> str:
        """Element i of n is element i + count, modulo n."""
        if which not in self.places:
            numbers, extent = f"0 to {guard.extent}", f"{guard.extent} i64"
            self.constants[numbers] = np.arange(guard.extent)
            self.constants[extent] = np.array(guard.extent)
            number = self.emit(node, "cast", (which,), f"{which}, as numbers", dtype=DType.I64)
            count = self.emit(node, "reduce_sum", (number,), f"{which}, how many", axes=(0,), keepdims=True)
            further = self.emit(node, "add", (numbers, count), f"{which}, further on")
            self.places[which] = self.emit(node, "mod", (further, extent), f"{which}, in front")
        axis = self.types[value].rank + guard.axis
        return self.emit(node, "gather", (value, self.places[which]), self.name(value), axis=axis)

    def name(self, value: str) -> str:
        """For what a guard makes of a value."""
        name = f"guarded {value} {len(self.made)}"
        self.types[name] = self.types[value]
        return name

    def which(self, node: Node, guard: Guard) -> str:
        """The input that says which elements count."""
        growing = guard.extent, guard.count
        if growing not in self.counts:
            others = sum(extent == guard.extent for extent, _ in self.counts)
            self.counts[growing] = f"which of {guard.extent} count" + (f" ({others + 1})" if others else "")
        name = self.asked[node.name, guard.operand, guard.axis] = self.counts[growing]
        self.inputs[name] = TensorType(DType.BOOL, (guard.extent,))
        return name

    def beside(self, which: str, guard: Guard, near: Node) -> str:
        """The input with as many axes behind as the guarded axis has."""
        behind = -1 - guard.axis
        if behind == 0:
            return which
        if (which, behind) not in self.shaped:
            shape = (guard.extent, *(1,) * behind)
            self.shaped[which, behind] = self.emit(near, "reshape", (which,), f"{which}, {behind} axes", shape=shape)
        return self.shaped[which, behind]
