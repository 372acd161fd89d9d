"""Whether a graph of larger sizes computes, from padded inputs, what the graph of the sizes asked for computes.

Model: the two graphs are walked side by side. Of each value it is established where its elements lie in its padded
counterpart (`places.py`), node by node, by what the operator says (`rules.py`). The claim about a value: each element
is computed from equal elements in the same way as the one at its place, whatever the padding of inputs holds. For
inputs it holds by the way they are padded, behind the end of each axis; for constants and states their bytes are
compared; of results it must follow that every element lies where it would without padding. Where an operator takes
elements of a padded axis together, the claim holds if the padding it sees is replaced first (`guards.py`). A value of
which the claim is not known is no error before a result needs it: the error then names the node where it was lost
first.

It takes no time that grows with the tensors, constants that are not the same arrays aside, so it is made anew for every
choice of sizes.

What it does not say: that sums are added up in the same order. That is the kernels' business, whose code goes by the
same blocks for all sizes (docs/shapes.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.arrays import same_contents
from superkernel.core.errors import UnsupportedError, Violation, raise_all
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.gathering import INDEX
from superkernel.padding.guards import Guard, Guards
from superkernel.padding.padded import PaddedNode, PaddedValue
from superkernel.padding.places import unmoved
from superkernel.padding.rules import apply_rule

Numbers: TypeAlias = dict[str, NDArray[Any]]
"""What constants of a padded graph are in the other one, where something is computed from them."""
_NUMBERS_MAX = 16
_EXACT = 1 << 24
"""Whole numbers up to it are floats."""


def proved(graph: Graph, padded: Graph, *, empty: bool = False, numbers: Numbers | None = None) -> Guards:
    """Holds where it returns: results of `padded`, with inputs padded behind the end of each axis, begin with those of
    `graph`, if it is guarded as it says. Raises UnsupportedError with every result of which this is not known.
    `empty`: with guards that do for padded axes without a single element, too. `numbers`: constants of a few whole
    numbers each may be others; all such come in here."""
    if not are_alike(graph, padded):
        found = f"{len(graph.nodes)} and {len(padded.nodes)} nodes"
        what = "the graph is another one for other sizes"
        expected = "the same operators, inputs, states and outputs"
        raise UnsupportedError(what, location=f"graph {graph.name!r}", expected=expected, found=found)
    return _Proof(graph, padded, empty, numbers).guards()


def are_alike(graph: Graph, padded: Graph) -> bool:
    """Whether two graphs have the same operators, inputs, states and outputs, but for types and attributes."""
    return _outline(graph) == _outline(padded)


def _outline(graph: Graph) -> list[object]:
    nodes = [(node.op, len(node.inputs), len(node.outputs)) for node in graph.nodes]
    return [nodes, list(graph.inputs), sorted(graph.states), len(graph.outputs)]


class _Proof:
    def __init__(self, graph: Graph, padded: Graph, empty: bool, numbers: Numbers | None) -> None:
        self.graph, self.padded, self.empty, self.numbers = graph, padded, empty, numbers
        self.contents: Numbers = {}
        self.counterparts = {name: name for name in (*graph.inputs, *graph.states)}
        self.known: dict[str, PaddedValue] = {}
        self.lost: dict[str, Violation] = {}
        self.found: dict[str, tuple[Guard, ...]] = {}
        self.constants: dict[tuple[str, str], PaddedValue | Violation] = {}

    def guards(self) -> Guards:
        for name, kind in self.graph.inputs.items():
            self.begin(name, kind, self.padded.inputs[name])
        for name in self.graph.states:
            self.begin_state(name)
        for node, other in zip(self.graph.nodes, self.padded.nodes, strict=True):
            self.visit(node, other)
        wrong = [self.checked(*both) for both in zip(self.graph.outputs, self.padded.outputs, strict=True)]
        for state in self.graph.states:
            wrong.append(self.checked(*(g.updates.get(state, state) for g in (self.graph, self.padded)), whole=True))
        raise_all(UnsupportedError, list(dict.fromkeys(each for each in wrong if each is not None)))
        return self.found

    def begin(self, name: str, kind: TensorType, padded: TensorType) -> None:
        pair = _behind(kind, padded)
        if pair is None:
            what = "an input that cannot be padded behind its end"
            self.lost[name] = Violation(what, f"input {name!r}", f"{kind} or more", str(padded))
        else:
            self.known[name] = pair

    def begin_state(self, name: str) -> None:
        kind, padded = self.graph.types[name], self.padded.types[name]
        if kind == padded:
            self.known[name] = PaddedValue(kind.shape, kind.shape, tuple(map(unmoved, kind.shape)))
        else:
            what = "a state whose type depends on the sizes"
            self.lost[name] = Violation(what, f"state {name!r}", str(kind), str(padded))

    def visit(self, node: Node, other: Node) -> None:
        self.counterparts.update(zip(node.outputs, other.outputs, strict=True))
        where = f"node {node.name!r} ({node.op})"
        kinds, padded_kinds = self.graph.output_types(node), self.padded.output_types(other)
        if all(kind.size == 0 for kind in kinds):
            for value, kind, padded in zip(node.outputs, kinds, padded_kinds, strict=True):
                self.begin(value, kind, padded)
            return
        operands: list[PaddedValue | None] = []
        for mine, theirs in zip(node.inputs, other.inputs, strict=True):
            found = self.operand(mine, theirs, where)
            if isinstance(found, Violation):
                self.lost.update(dict.fromkeys(node.outputs, found))
                return
            operands.append(found)
        definition = self.graph.definition(node)
        try:
            if [(k.dtype, k.rank) for k in kinds] != [(k.dtype, k.rank) for k in padded_kinds]:
                raise UnsupportedError("the type of its results changes with the sizes")
            result = apply_rule(PaddedNode(definition, tuple(operands), node.attrs, other.attrs, kinds, padded_kinds))
        except UnsupportedError as error:
            self.lost.update(dict.fromkeys(node.outputs, error.violations[0].within(where)))
            return
        if result.guards:
            self.found[other.name] = result.guards
        for value, kind, padded, places in zip(node.outputs, kinds, padded_kinds, result.places, strict=True):
            below = result.below if kind.dtype in INDEX else None  # of topk, not its values
            zero = None if self.empty else result.zero  # a softmax of nothing is NaN
            self.known[value] = PaddedValue(
                kind.shape, padded.shape, places, zero=zero, below=below, headed=result.headed
            )

    def operand(self, name: str | None, padded: str | None, where: str) -> PaddedValue | Violation | None:
        """What is known of an operand; a violation where it is not the same in both graphs."""
        if name is None or padded is None:
            return None if name is padded else Violation("an operand is there for some sizes only", where)
        if name in self.graph.constants and padded in self.padded.constants:
            if (name, padded) not in self.constants:
                self.constants[name, padded] = self.constant(name, padded)
            return self.constants[name, padded]
        if self.counterparts.get(name) != padded:
            return Violation("it reads another value for other sizes", where, str(padded), name)
        return self.lost.get(name) or self.known[name]

    def constant(self, name: str, padded: str) -> PaddedValue | Violation:
        small, large = self.graph.constants[name], self.padded.constants[padded]
        pair = _behind(self.graph.types[name], self.padded.types[padded])
        changes = pair is None or not _begins_with(large, small)
        if self.numbers is not None and pair is not None:
            if not same_contents(self.contents.setdefault(padded, small), small):
                return Violation("a constant that stands for several", f"constant {name!r}")
            if _are_numbers(small, large):
                self.numbers[padded] = small
                if changes:
                    return pair
        if changes or pair is None:
            return Violation("a constant that changes with the sizes", f"constant {name!r}")
        return replace(pair, constant=small)

    def checked(self, name: str, padded: str, *, whole: bool = False) -> Violation | None:
        """What is wrong with a result or, `whole`, with a state's next contents."""
        found = self.operand(name, padded, f"output {name!r}")
        if not isinstance(found, PaddedValue):
            return found
        if whole and not found.all_whole:
            return Violation("a state takes up what may be padding", f"value {name!r}")
        if not all(map(found.is_unmoved, range(found.rank))):
            return Violation("its elements lie between those of the padding", f"output {name!r}")
        return None


def _behind(kind: TensorType, padded: TensorType) -> PaddedValue | None:
    """Of a tensor that is padded behind the end of each axis; None where it is not."""
    if (kind.dtype, kind.rank) != (padded.dtype, padded.rank):
        return None
    if any(a > b for a, b in zip(kind.shape, padded.shape, strict=True)):
        return None
    return PaddedValue(kind.shape, padded.shape, tuple(map(unmoved, kind.shape)))


def _are_numbers(*arrays: NDArray[Any]) -> bool:
    """Whether arrays of one shape hold a few whole numbers that are exact in their type."""
    if len({array.shape for array in arrays}) > 1 or arrays[0].size > _NUMBERS_MAX:
        return False
    if arrays[0].dtype not in (np.int64, np.int32, np.float32, np.float64):
        return False
    return all(bool(np.isfinite(a).all() and (a == np.floor(a)).all() and (abs(a) < _EXACT).all()) for a in arrays)


def _begins_with(large: NDArray[Any], small: NDArray[Any]) -> bool:
    """Arrays of one object, as constants of all sizes mostly are, are not read."""
    return same_contents(small, large if small.shape == large.shape else large[tuple(map(slice, small.shape))])
