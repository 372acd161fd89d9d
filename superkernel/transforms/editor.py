"""A graph under rewriting.

Model: nodes by name with a position key, plus who produces and who reads each value, all kept current by every edit. A
rewrite gives its result under the name of the value it replaces, so outputs, updates and readers need no renaming;
`alias` is for results that already exist. `finish` removes what became dead and builds the checked Graph.

Invariant: types of values never change under a name; `emit` refuses a result whose type differs from the value it is
to replace.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import SuperKernelError
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node, inferred_types, type_of_array
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.table import find_op
from superkernel.transforms.dead import RemoveDead


class _Idle(threading.local):
    """An editor whose graph a pass left as it was, for the next pass of this thread; `kept`: whether there is one."""

    kept = False
    editor: Editor | None = None


_idle = _Idle()


@contextmanager
def kept_editors() -> Iterator[None]:
    """Passes that are applied inside, one after the other, share an editor as long as none of them changes anything."""
    before = _idle.kept
    _idle.kept = True
    try:
        yield
    finally:
        _idle.kept, _idle.editor = before, None


class Editor:
    """Mutable view of a Graph."""

    @staticmethod
    def of(graph: Graph) -> Editor:
        """One that nobody has edited yet."""
        found, _idle.editor = _idle.editor, None
        return found if found is not None and found.graph is graph else Editor(graph)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = dict(graph.constants)
        self.updates = dict(graph.updates)
        self.outputs = graph.outputs
        self.types = dict(graph.types)
        self.nodes: dict[str, Node] = {}
        self.position: dict[str, tuple[int, int]] = {}
        self.producer: dict[str, Node] = {}
        self.readers: dict[str, dict[str, int]] = {}  # value -> reading node -> number of slots
        self.changes = 0
        self._is_as_made = True  # but for `changes`
        self._names = {*graph.types, *(node.name for node in graph.nodes)}
        self._sequence = 0
        for index, node in enumerate(graph.nodes):  # as `_insert` does: each pass goes through all nodes here
            name = node.name
            self.nodes[name], self.position[name] = node, (index, 0)
            for value in node.outputs:
                self.producer[value] = node
            for read in node.inputs:
                if read is not None:
                    readers = self.readers.get(read)
                    if readers is None:
                        self.readers[read] = {name: 1}
                    else:
                        readers[name] = readers.get(name, 0) + 1

    # -- questions

    def is_kept(self, value: str) -> bool:
        """True of graph outputs and of what states are updated with: their values must go on existing."""
        return value in self.outputs or value in self.updates.values()

    def only_reader(self, value: str) -> Node | None:
        """The one node that reads the value, in one slot, where nobody else needs it."""
        readers = self.readers.get(value, {})
        if len(readers) != 1 or self.is_kept(value):
            return None
        (name, slots), *_ = readers.items()
        return self.nodes[name] if slots == 1 else None

    def inner(self, value: str | None, *ops: str) -> Node | None:
        """The value's producer where it is one of `ops` and only one node reads it: one that a pattern may swallow."""
        node = None if value is None else self.producer.get(value)
        if node is None or value is None or node.op not in ops or self.only_reader(value) is None:
            return None
        return node

    def array(self, value: str | None) -> NDArray[Any] | None:
        """A constant's contents, or None."""
        return None if value is None else self.constants.get(value)

    def scalar(self, value: str | None) -> float | None:
        """The number in a constant of one element, or None."""
        array = self.array(value)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def type(self, value: str) -> TensorType:
        """Type of a value, old or new; KeyError for none."""
        return self.types[value]

    def walk(self, ops: Container[str] | None = None, *, backwards: bool = False) -> Iterator[Node]:
        """The nodes that there are now, by position, each as it is at its turn, but for those removed till then; with
        `ops`, those that are one of these by then."""
        if self._is_as_made and not self.changes:  # in order
            names = list(self.nodes)[:: -1 if backwards else 1]
        else:
            names = sorted(self.nodes, key=self.position.__getitem__, reverse=backwards)
        for name in names:
            node = self.nodes.get(name)
            if node is not None and (ops is None or node.op in ops):
                yield node

    # -- edits

    def constant(self, array: Any, stem: str) -> str:
        """Adds a constant; `stem` begins its name."""
        self._is_as_made = False
        name = self._fresh(stem)
        self.constants[name] = np.asarray(array)
        self.types[name] = type_of_array(self.constants[name])
        return name

    def emit(
        self, op: str, inputs: Sequence[str | None], attrs: Mapping[str, Any], near: Node, output: str | None = None
    ) -> str | None:
        """A new node with one output beside `near`, from which it takes stream, scope and kernel type. With `output`,
        it replaces the producer of that value. None, and no change, where the operator does not accept this or gives
        another type than `output` has."""
        definition = find_op(op)
        assert definition is not None, op
        dropped: Sequence[str | None] = ()
        try:
            complete = canonical_attrs(definition, attrs)
            kinds = tuple([None if v is None else self.types[v] for v in inputs])
            (result,) = inferred_types(op, kinds, tuple(complete.items()))
        except SuperKernelError:
            return None
        if output is not None:
            old = self.producer[output]
            if self.types[output] != result or len(old.outputs) != 1:
                return None
            name, position, dropped = old.name, self.position[old.name], old.inputs
            self.remove(old)
        else:
            self._sequence += 1
            name, position = self._fresh(f"{near.name}/{op}"), (self.position[near.name][0], self._sequence - (1 << 30))
            output = name
        node = Node(name, op, tuple(inputs), (output,), complete, near.kernel_type, near.stream, near.scope)
        self.types[output] = result
        self._insert(node, position)
        self.changes += 1
        self._prune(dropped)
        return output

    def set_inputs(self, node: Node, inputs: Sequence[str | None], attrs: Mapping[str, Any] | None = None) -> Node:
        """The node with other inputs (and attributes) of the same types in effect."""
        position = self.position[node.name]
        self.remove(node)
        changed = replace(node, inputs=tuple(inputs), attrs=node.attrs if attrs is None else attrs)
        self._insert(changed, position)
        self.changes += 1
        self._prune(node.inputs)
        return changed

    def remove(self, node: Node) -> None:
        """Takes the node out; its values are without producer until something gives them again."""
        self._is_as_made = False
        del self.nodes[node.name], self.position[node.name]
        for value in node.inputs:
            if value is not None:
                readers = self.readers[value]
                readers[node.name] -= 1
                if not readers[node.name]:
                    del readers[node.name]
        for value in node.outputs:
            self.producer.pop(value, None)

    def alias(self, old: str, new: str) -> bool:
        """Everybody who reads `old` reads `new`. Where `old` must go on existing as an output, `new` takes over its
        name if it can; False, and no change, where it cannot."""
        if self.types[old] != self.types[new]:
            return False
        if old in self.outputs:
            return self._take_over(old, new)
        for name in list(self.readers.get(old, {})):
            node = self.nodes[name]
            self.set_inputs(node, [new if v == old else v for v in node.inputs])
        self.updates = {state: new if value == old else value for state, value in self.updates.items()}
        self._prune([old])
        self.changes += 1
        return True

    def _take_over(self, old: str, new: str) -> bool:
        """The producer of `new` gives it under the name `old`."""
        source = self.producer.get(new)
        if source is None or new in self.outputs:
            return False
        gone = self.producer[old]
        self.remove(gone)
        position = self.position[source.name]
        self.remove(source)
        self._insert(replace(source, outputs=tuple(old if o == new else o for o in source.outputs)), position)
        for name in list(self.readers.get(new, {})):
            node = self.nodes[name]
            self.set_inputs(node, [old if v == new else v for v in node.inputs])
        self.updates = {state: old if value == new else value for state, value in self.updates.items()}
        self._prune(gone.inputs)
        self.changes += 1
        return True

    def fold(self, node: Node, arrays: Sequence[NDArray[Any]]) -> None:
        """The node's outputs become constants of the same names."""
        self.remove(node)
        for value, array in zip(node.outputs, arrays, strict=True):
            self.constants[value] = array
        self._prune(node.inputs)
        self.changes += 1

    def finish(self) -> Graph:
        """The rewritten graph, or the very graph it came from where nothing changed."""
        if not self.changes:
            if _idle.kept and self._is_as_made:
                _idle.editor = self
            return self.graph
        return RemoveDead().apply(
            self.graph.rebuilt(self.walk(), constants=self.constants, updates=self.updates, outputs=self.outputs)
        )

    def _prune(self, values: Sequence[str | None]) -> None:
        """Removes producers of values that nobody reads any more, and so on up: patterns must not see dead readers."""
        todo = list(values)
        while todo:
            value = todo.pop()
            node = None if value is None else self.producer.get(value)
            if node is not None and not any(self.readers.get(o) or self.is_kept(o) for o in node.outputs):
                self.remove(node)
                todo += node.inputs

    def _insert(self, node: Node, position: tuple[int, int]) -> None:
        self.nodes[node.name] = node
        self.position[node.name] = position
        self.producer.update(dict.fromkeys(node.outputs, node))
        for value in node.inputs:
            if value is not None:
                readers = self.readers.setdefault(value, {})
                readers[node.name] = readers.get(node.name, 0) + 1

    def _fresh(self, stem: str) -> str:
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name
