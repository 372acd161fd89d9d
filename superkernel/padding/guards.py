"""Guards: what stands in the padding of an operand is replaced, on the way to one operator, by what changes nothing.

Model: an operator that takes elements of an axis together is right about a padded axis if the padding holds the
identity of what it does: 0 for sums and products, 1 for products of all, the least value for extremes and softmax. A
guard says so of one operand and axis: elements from the `count`-th on are to be replaced. Padding must lie behind the
end of the axis. How many count is known with each call only, so the guarded graph has further inputs: bool [extent], of
which the first elements are True. Axes of one extent share an input if they grow together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node


class Fill(Enum):
    """What a guard puts in the place of padding."""

    ZERO = "0"
    ONE = "1"
    LEAST = "the least value"
    GREATEST = "the greatest value"

    def of(self, dtype: DType) -> float | int | bool:
        """The value in a type of elements; infinite where the type has infinities."""
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
    `fill`. Of an operand that is left out, a mask: it becomes which elements count."""

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
        self.dtypes = {name: kind.dtype for name, kind in graph.types.items()}
        self.asked: dict[Place, str] = {}
        self.nodes: list[Node] = []
        self.counts: dict[tuple[int, int], str] = {}  # extent, how many count -> input
        self.shaped: dict[tuple[str, int], str] = {}  # input, axes behind -> value
        self.made: dict[tuple[str, str, Fill], str] = {}  # value, which of it count -> guarded

    def taken(self) -> list[Node]:
        """What was put in since last asked."""
        nodes, self.nodes = self.nodes, []
        return nodes

    def guard(self, node: Node, value: str | None, guard: Guard) -> str:
        """The value as the node is to read it."""
        counts = self.count(node, guard)
        if value is None:
            return counts
        made = self.made.get((value, counts, guard.fill))
        if made is None:
            dtype = self.dtypes[value]
            fill = f"{guard.fill.value} {dtype.value}"
            self.constants[fill] = np.array(guard.fill.of(dtype), dtype.numpy)
            made = self.made[value, counts, guard.fill] = f"guarded {value} {len(self.made)}"
            self.dtypes[made] = dtype
            self.nodes.append(Node(made, "where", (counts, value, fill), (made,), scope=node.scope))
        return made

    def count(self, node: Node, guard: Guard) -> str:
        """Which elements count, with as many axes behind as the guarded axis has."""
        growing = guard.extent, guard.count
        if growing not in self.counts:
            others = sum(extent == guard.extent for extent, _ in self.counts)
            self.counts[growing] = f"which of {guard.extent} count" + (f" ({others + 1})" if others else "")
        name = self.asked[node.name, guard.operand, guard.axis] = self.counts[growing]
        self.inputs[name] = TensorType(DType.BOOL, (guard.extent,))
        behind = -1 - guard.axis
        if behind == 0:
            return name
        if (name, behind) not in self.shaped:
            shaped = self.shaped[name, behind] = f"{name}, {behind} axes"
            shape = {"shape": (guard.extent, *(1,) * behind)}
            self.nodes.append(Node(shaped, "reshape", (name,), (shaped,), shape, scope=node.scope))
        return self.shaped[name, behind]
