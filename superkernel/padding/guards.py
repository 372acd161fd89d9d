"""Guards: what stands in the padding of an operand is replaced, on the way to one operator, by what changes nothing.

Model: an operator that takes elements of an axis together is right about a padded axis if the padding holds the
identity of what it does: 0 for sums and products, 1 for products of all, the least value for extremes and softmax. A
guard says so of one operand and axis: elements from the `count`-th on are to be replaced. One that counts places from
the end of an axis is right if the padding lies in front: then elements are to be moved. A mean becomes a sum, divided
by how many elements count, in the type in which kernels add up and divide. A scatter has one slice more to write to,
for what stands in the padding, which is then left out. Padding must lie behind the end of the axis. How many count is
known with each call only, so the guarded graph has further inputs: bool [extent], of which the first elements are True.
Axes of one extent share an input if they grow together, for all sizes of which there are guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Any, TypeAlias

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.common import get
from superkernel.ops.reduce import reduced_axes


class Fill(Enum):
    """What a guard puts in the place of padding; or `FRONT`, where it only moves it to the front of the axis."""

    FRONT = "moved to the front"
    ZERO = "0"
    UNCOUNTED = "0, which no mean counts"
    ONE = "1"
    LEAST = "the least value"
    GREATEST = "the greatest value"
    NAN = "no number"
    BEHIND = "a place behind the end"

    def of(self, dtype: DType) -> float | int | bool:
        """The value in a type of elements; infinite where the type has infinities. Not of `FRONT`."""
        if self in (Fill.ZERO, Fill.UNCOUNTED, Fill.ONE):
            return int(self is Fill.ONE)
        if self is Fill.NAN:
            return np.nan
        greatest = self in (Fill.GREATEST, Fill.BEHIND)
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


def guarded(padded: Graph, *samples: Guards) -> tuple[Graph, dict[Place, str]]:
    """The graph of the larger sizes with all guards that some smaller ones need, and by place the input that says which
    elements count."""
    needed: dict[str, dict[Place, Guard]] = {}
    for guards in samples:
        for place, guard in places_of(guards).items():
            needed.setdefault(place[0], {}).setdefault(place, guard)
    if not needed:
        return padded, {}
    editor = _Guarding(padded, samples)
    nodes: list[Node] = []
    for node in padded.nodes:
        operands, some = [*node.inputs], needed.get(node.name, {}).values()
        if any(guard.fill is Fill.BEHIND for guard in some):
            operands[1] = editor.counted_from_front(node)
        for guard in some:
            operands += [None] * (guard.operand + 1 - len(operands))
            operands[guard.operand] = editor.guard(node, operands[guard.operand], guard)
        done = replace(node, inputs=tuple(operands))
        averaged = [guard for guard in some if guard.fill is Fill.UNCOUNTED]
        if averaged:
            done = editor.mean(done, averaged)
        if any(guard.fill is Fill.BEHIND for guard in some):
            done = editor.scatter(done)
        nodes += [*editor.taken(), done]
    return padded.rebuilt(nodes, inputs=editor.inputs, constants=editor.constants), editor.asked


class _Guarding:
    def __init__(self, graph: Graph, samples: Sequence[Guards]) -> None:
        self.inputs, self.constants = dict(graph.inputs), dict(graph.constants)
        self.types = dict(graph.types)
        self.samples = [places_of(guards) for guards in samples]
        self.asked: dict[Place, str] = {}
        self.nodes: list[Node] = []
        self.counts: dict[tuple[int | None, ...], str] = {}  # extent, how many count in each sample -> input
        self.shaped: dict[tuple[str, int], str] = {}  # input, axes behind -> value
        self.numbers: dict[str, str] = {}  # input -> how many count
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
            further = self.emit(node, "add", (numbers, self.number(node, which)), f"{which}, further on")
            self.places[which] = self.emit(node, "mod", (further, extent), f"{which}, in front")
        axis = self.types[value].rank + guard.axis
        return self.emit(node, "gather", (value, self.places[which]), self.name(value), axis=axis)

    def number(self, node: Node, which: str) -> str:
        """How many count, i64 []."""
        if which not in self.numbers:
            number = self.emit(node, "cast", (which,), f"{which}, as numbers", dtype=DType.I64)
            self.numbers[which] = self.emit(
                node, "reduce_sum", (number,), f"{which}, how many", axes=(0,), keepdims=False
            )
        return self.numbers[which]

    def mean(self, node: Node, guards: Sequence[Guard]) -> Node:
        """The last node of those that compute the mean of what counts. Sums are f32 at least, as kernels hold them."""
        (value,) = node.inputs
        assert value is not None
        kind = self.types[value]
        wide = kind.dtype if kind.dtype is DType.F64 else DType.F32
        spatial = tuple(range(2, kind.rank))
        axes = reduced_axes(node.attrs, kind.rank) if "axes" in node.attrs else spatial  # of a global pool
        padded = {kind.rank + guard.axis for guard in guards}
        others = f"{node.name}, others"
        self.constants[others] = np.array(prod(kind.shape[axis] for axis in axes if axis not in padded))
        count = others
        for step, guard in enumerate(guards):
            factors = count, self.number(node, self.which(node, guard))
            count = self.emit(node, "mul", factors, f"{node.name}, count {step}")
        by = self.emit(node, "cast", (count,), f"{node.name}, count", dtype=wide)
        if kind.dtype is not wide:
            value = self.emit(node, "cast", (value,), f"{node.name}, wide", dtype=wide)
        keepdims = node.attrs.get("keepdims", True)
        total = self.emit(node, "reduce_sum", (value,), f"{node.name}, sum", axes=axes, keepdims=keepdims)
        if kind.dtype is wide:
            return replace(node, op="div", inputs=(total, by), attrs={})
        mean = self.emit(node, "div", (total, by), f"{node.name}, mean")
        return replace(node, op="cast", inputs=(mean,), attrs={"dtype": kind.dtype})

    def counted_from_front(self, node: Node) -> str:
        """The indices of a scatter as its kernels read them."""
        value, indices = node.inputs[:2]
        assert value is not None
        assert indices is not None
        dtype, shape = self.types[indices].dtype, self.types[value].shape
        extents = (
            shape[get(node.attrs, "axis", int)] if "axis" in node.attrs else shape[: self.types[indices].shape[-1]]
        )
        none, behind, last = (f"{node.name}, {what}" for what in ("none", "extents", "last"))
        for name, number in ((none, 0), (behind, extents), (last, np.subtract(extents, 1))):
            self.constants[name] = np.asarray(number, dtype.numpy)
        is_behind = self.emit(node, "less", (indices, none), f"{node.name}, from the end")
        turned = self.emit(node, "add", (indices, behind), f"{node.name}, turned")
        front = self.emit(node, "where", (is_behind, turned, indices), f"{node.name}, from the front")
        least = self.emit(node, "maximum", (front, none), f"{node.name}, at least 0")
        made = self.emit(node, "minimum", (least, last), f"{node.name}, within")
        self.types[made] = self.types[indices]
        return made

    def scatter(self, node: Node) -> Node:
        """The last node of those that write to what has a slice more behind its end, which is then left out: there goes
        what is named by an index behind the end."""
        value = node.inputs[0]
        assert value is not None
        kind = self.types[value]
        axis = get(node.attrs, "axis", int) % kind.rank if "axis" in node.attrs else 0
        cut = {"starts": (0,), "axes": (axis,), "steps": (1,)}
        behind = self.emit(node, "slice", (value,), f"{node.name}, behind the end", **cut, ends=(1,))
        longer = self.emit(node, "concat", (value, behind), f"{node.name}, longer", axis=axis)
        operands = (longer, *(operand for operand in node.inputs[1:] if operand is not None))
        written = self.emit(node, node.op, operands, f"{node.name}, written", **node.attrs)
        return replace(node, op="slice", inputs=(written,), attrs={**cut, "ends": (kind.shape[axis],)})

    def name(self, value: str) -> str:
        """For what a guard makes of a value."""
        name = f"guarded {value} {len(self.made)}"
        self.types[name] = self.types[value]
        return name

    def which(self, node: Node, guard: Guard) -> str:
        """The input that says which elements count."""
        place = node.name, guard.operand, guard.axis
        found = [sample.get(place) for sample in self.samples]
        growing = guard.extent, *(None if each is None else each.count for each in found)
        if growing not in self.counts:
            others = sum(extent == guard.extent for extent, *_ in self.counts)
            self.counts[growing] = f"which of {guard.extent} count" + (f" ({others + 1})" if others else "")
        name = self.asked[place] = self.counts[growing]
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
