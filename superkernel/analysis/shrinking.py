"""The smallest graph that still shows something.

Model: delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002) over the
nodes: groups of them are left out, halves first, single ones last; what they computed becomes an input. Then sizes:
every dimension of one length is cut to a smaller one wherever it stands, data and attributes included. Graphs that do
not hold together are no candidates. Both are repeated until nothing can be left out or cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import GraphError
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node

TRIES_MAX = 500


def shrunk(graph: Graph, shows: Callable[[Graph], bool], tries_max: int = TRIES_MAX) -> Graph:
    """The smallest graph found for which `shows` is true, as it must be for `graph`; it is asked `tries_max` times."""
    search = _Search(graph, shows, tries_max)
    while search.leave_out_nodes() or search.cut_sizes():
        pass
    return search.graph


class _Search:
    def __init__(self, graph: Graph, shows: Callable[[Graph], bool], tries_left: int) -> None:
        self.graph, self.shows, self.tries_left = graph, shows, tries_left

    def take(self, candidate: Graph | None) -> bool:
        """Whether a candidate shows it; it is the graph then."""
        if candidate is None or self.tries_left == 0:
            return False
        self.tries_left -= 1
        if not self.shows(candidate):
            return False
        self.graph = candidate
        return True

    def leave_out_nodes(self) -> bool:
        """Whether nodes could be left out, ever smaller groups of them."""
        before, size = len(self.graph.nodes), len(self.graph.nodes) // 2
        while size:
            at = 0
            while at < len(self.graph.nodes) > 1:
                nodes = self.graph.nodes
                if not self.take(part_of(self.graph, (*nodes[:at], *nodes[at + size :]))):
                    at += size
            size //= 2
        return len(self.graph.nodes) < before

    def cut_sizes(self) -> bool:
        """Whether a dimension could be cut."""
        return any(self.take(candidate) for candidate in self._cut())

    def _cut(self) -> Iterator[Graph | None]:
        given = [*self.graph.inputs, *self.graph.constants, *self.graph.states]
        sizes = {size for name in given for size in self.graph.types[name].shape if size > 1}
        for size in sorted(sizes, reverse=True):
            for smaller in sorted({1, 2, size // 4, size // 2, size - 1} - {0, size}):
                if smaller < size:
                    yield resized(self.graph, size, smaller)


def part_of(graph: Graph, nodes: Sequence[Node]) -> Graph | None:
    """The graph of some of its nodes: what others computed is an input, what nobody else reads is an output. None
    where there are none."""
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    updates = {state: value for state, value in graph.updates.items() if value in made}
    outputs = [value for value in graph.outputs if value in made]
    ends = [value for node in nodes for value in node.outputs if value not in read and value not in updates.values()]
    outputs += [value for value in ends if value not in outputs]
    outputs = outputs or list(dict.fromkeys(updates.values()))
    if not nodes or not outputs:
        return None
    states = {name: array for name, array in graph.states.items() if name in read or name in updates}
    constants = {name: array for name, array in graph.constants.items() if name in read}
    inputs = {value: graph.types[value] for value in read if value not in {*made, *states, *constants}}
    return _built(graph, nodes, inputs=inputs, constants=constants, states=states, updates=updates, outputs=outputs)


def resized(graph: Graph, size: int, smaller: int) -> Graph | None:
    """The graph with each dimension of `size` cut to `smaller`, data and numbers of attributes included; None where
    that does not hold together."""

    def dim(each: Any) -> Any:
        return smaller if type(each) is int and each == size else each

    def attribute(value: Any) -> Any:
        return tuple(map(dim, value)) if isinstance(value, (tuple, list)) else dim(value)

    def cut(array: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(array[tuple(slice(dim(extent)) for extent in array.shape)])

    nodes = [
        Node(n.name, n.op, n.inputs, n.outputs, {k: attribute(v) for k, v in n.attrs.items()}, n.kernel_type, n.stream)
        for n in graph.nodes
    ]
    inputs = {name: TensorType(kind.dtype, tuple(map(dim, kind.shape))) for name, kind in graph.inputs.items()}
    arrays: list[Mapping[str, NDArray[Any]]] = [
        {name: cut(array) for name, array in given.items()} for given in (graph.constants, graph.states)
    ]
    return _built(graph, nodes, inputs=inputs, constants=arrays[0], states=arrays[1])


def _built(graph: Graph, nodes: Sequence[Node], **changes: Any) -> Graph | None:
    try:
        return graph.rebuilt(nodes, **changes)
    except GraphError:
        return None
