"""The graph of sub-operators: validated, typed, in topological order, immutable.

Model: values (named tensors) and nodes (operator applications). A value is an input, a constant, a state (persistent
tensor that a run may update) or the output of exactly one node. `Graph.build` is the only way to make one: it checks
everything, reports all violations at once, sorts the nodes topologically (stable: by given order among the ready
ones) and infers every type.

Invariant: in a `Graph` every name resolves, every type is known, attributes are complete and canonical (defaults
filled in), the node order is a topological order. Nothing downstream checks these again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.arrays import are_many, constant_array
from superkernel.core.counted import counted
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, SuperKernelError, Violation, raise_all
from superkernel.core.frozen import frozen
from superkernel.core.tensor import TensorType
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import Attrs, AttrValue, OpDef
from superkernel.ops.table import find_op, suggest_ops

VALUE_BYTES_MAX = 1 << 47  # what a process can address

Extents: TypeAlias = Mapping[str, tuple[tuple[int, str], ...]]
"""Of outputs whose extents are data: axis, and the value, i64 [], that says how many elements along it count."""


class KernelType(Enum):
    """Which core types a sub-operator runs on (cube AIC, vector AIV, mixed with a ratio). The host has one type and
    ignores it."""

    AIC_ONLY = "AIC_ONLY"
    AIV_ONLY = "AIV_ONLY"
    MIX_AIC_1_0 = "MIX_AIC_1_0"
    MIX_AIV_1_0 = "MIX_AIV_1_0"
    MIX_AIC_1_1 = "MIX_AIC_1_1"
    MIX_AIC_1_2 = "MIX_AIC_1_2"


@frozen()
class Node:
    """One operator application. `inputs` are value names, None where an optional input is absent."""

    name: str
    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)
    kernel_type: KernelType | None = None
    stream: int | str | None = None
    scope: str | None = None

    def __str__(self) -> str:
        attrs = ", ".join(f"{k}={v!r}" for k, v in sorted(self.attrs.items()))
        ins = ", ".join("_" if i is None else i for i in self.inputs)
        return f"{', '.join(self.outputs)} = {self.op}({ins}){{{attrs}}}  # {self.name}"


@dataclass(frozen=True)
class Graph:
    """A whole computation. Build with `Graph.build`; `types` has every value's type."""

    name: str
    inputs: Mapping[str, TensorType]
    constants: Mapping[str, NDArray[Any]]
    states: Mapping[str, NDArray[Any]]  # initial contents
    updates: Mapping[str, str]  # state name -> value that becomes its next contents
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    extents: Extents = field(default_factory=dict)

    @cached_property
    def returned(self) -> tuple[str, ...]:
        """The outputs without those that only say how much of others counts, which are the last ones."""
        counts = {count for row in self.extents.values() for _, count in row}
        return tuple(name for name in self.outputs if name not in counts)

    @cached_property
    def ops(self) -> frozenset[str]:
        """Names of the operators that it applies."""
        return frozenset(node.op for node in self.nodes)

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """value name -> the node that computes it (node outputs only)."""
        return {out: node for node in self.nodes for out in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """value name -> nodes that read it, in node order (absent where none)."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name is not None:
                    found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def definition(self, node: Node) -> OpDef:
        """The node's row in the operator table."""
        found = find_op(node.op)
        assert found is not None, node.op
        return found

    def input_types(self, node: Node) -> tuple[TensorType | None, ...]:
        """Types of what a node reads, in the order of its inputs; None where an optional one is left out."""
        return tuple(None if i is None else self.types[i] for i in node.inputs)

    def output_types(self, node: Node) -> tuple[TensorType, ...]:
        """Types of what a node computes, in the order of its outputs."""
        return tuple(self.types[o] for o in node.outputs)

    def __str__(self) -> str:
        lines = [f"graph {self.name!r}"]
        lines += [f"  input {name}: {t}" for name, t in self.inputs.items()]
        lines += [f"  constant {name}: {self.types[name]}" for name in self.constants]
        lines += [f"  state {name}: {self.types[name]} <- {self.updates.get(name, name)}" for name in self.states]
        lines += [f"  {node}  : {', '.join(map(str, self.output_types(node)))}" for node in self.nodes]
        counted_by = [
            f"  extent {axis} of {name} <- {count}" for name, row in self.extents.items() for axis, count in row
        ]
        return "\n".join([*lines, f"  output {', '.join(self.outputs)}", *counted_by])

    def __repr__(self) -> str:
        """One line: constants may be millions of numbers. `str` shows the nodes."""
        ins = ", ".join(f"{name}: {t}" for name, t in self.inputs.items())
        outs = ", ".join(f"{name}: {self.types[name]}" for name in self.outputs)
        return f"<superkernel.Graph {self.name!r} ({ins}) -> ({outs}), {counted(len(self.nodes), 'node')}>"

    @staticmethod
    def build(
        *,
        name: str = "graph",
        inputs: Mapping[str, TensorType],
        nodes: Iterable[Node],
        outputs: Sequence[str],
        constants: Mapping[str, Any] | None = None,
        states: Mapping[str, Any] | None = None,
        updates: Mapping[str, str] | None = None,
        copy: bool | None = None,
        inferred: Mapping[str, TensorType] | None = None,
        extents: Extents | None = None,
    ) -> Graph:
        """Check, sort, infer. Raises GraphError with every violation found.

        `extents`: of outputs along whose axes only the first elements count, by axis the value that says how many. Such
        values are outputs too, behind the others; kernels return as many elements as they say, and not the values.

        Arrays of constants and states are copied where anybody may still write to them; read-only ones are used where
        they lie. Where copies would take more than 256 MiB, arrays above 1 MiB are made read-only instead: a write to
        them raises ValueError. With `copy` True all are copied, with False none, and nobody may write to them.

        `inferred`: types of values whose nodes are complete, with canonical attributes, and were typed by the
        operators' own rules already, as a builder does at each call: they are not typed again."""
        if isinstance(outputs, str):
            raise GraphError("outputs is one text", expected="a sequence of value names", found=repr(outputs))
        arrays, initial = constants or {}, states or {}
        return _Build(
            name, dict(inputs), list(nodes), tuple(outputs), arrays, initial, updates or {}, copy, inferred or {},
            extents or {},
        ).graph()  # fmt: skip

    def rebuilt(self, nodes: Iterable[Node], **changes: Any) -> Graph:
        """The graph of other nodes and what else `changes` says, as `build` takes it; arrays stay where they lie."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return Graph.build(nodes=nodes, copy=False, **{**kept, **changes})


_KEPT = ("name", "inputs", "constants", "states", "updates", "outputs", "extents")


class _Build:
    """The steps of `Graph.build`; each adds to `wrong` and stops the build where the next step would make no sense."""

    def __init__(
        self,
        name: str,
        inputs: dict[str, TensorType],
        nodes: list[Node],
        outputs: tuple[str, ...],
        constants: Mapping[str, Any],
        states: Mapping[str, Any],
        updates: Mapping[str, str],
        copy: bool | None,
        inferred: Mapping[str, TensorType],
        extents: Extents,
    ) -> None:
        self.inferred, self.extents = inferred, extents
        counts = dict.fromkeys(count for row in extents.values() for _, count in row)
        self.name, self.inputs, self.nodes = name, inputs, nodes
        self.outputs = (*(value for value in outputs if value not in counts), *counts)
        self.wrong: list[Violation] = []
        self.constants = self.arrays(constants, "constant", copy)
        self.states = self.arrays(states, "state", copy)
        self.updates = dict(updates)
        self.types: dict[str, TensorType] = {}

    def graph(self) -> Graph:
        self.check_names()
        self.check_references()
        raise_all(GraphError, self.wrong)
        order = self.sort()
        typed = [self.infer(node) for node in order]
        self.check_updates()
        self.check_extents()
        raise_all(GraphError, self.wrong)
        nodes = tuple(node for node in typed if node is not None)
        return Graph(
            self.name, self.inputs, self.constants, self.states, self.updates, nodes, self.outputs, self.types,
            self.extents,
        )  # fmt: skip

    def arrays(self, given: Mapping[str, Any], label: str, copy: bool | None) -> dict[str, NDArray[Any]]:
        """Constant data; where there is something wrong with it, a number that stands for it."""
        found: dict[str, NDArray[Any]] = {}
        freeze = copy is None and are_many(given.values())
        for name, value in given.items():
            try:
                found[name] = constant_array(value, copy=copy is not False, freeze=freeze)
            except SuperKernelError as error:
                self.wrong += [
                    Violation(v.message, f"{label} {name!r}", v.expected, v.found, v.hint) for v in error.violations
                ]
                found[name] = np.zeros(())
        return found

    def check_names(self) -> None:
        if not self.outputs:
            self.wrong.append(Violation("the graph has no output", hint="name at least one value as output"))
        seen: dict[str, str] = {}

        def claim(value: str, owner: str) -> None:
            if value in seen:
                self.wrong.append(
                    Violation(
                        f"duplicate name {value!r}", owner, found=f"also defined by {seen[value]}", hint="rename one"
                    )
                )
            elif not isinstance(value, str):
                self.wrong.append(Violation("a value's name is not text", owner, "str", repr(value)))
            elif not value:
                self.wrong.append(Violation("a value has an empty name", owner))
            seen.setdefault(value, owner)

        for key, kind in self.inputs.items():
            claim(key, f"input {key!r}")
            if not isinstance(kind, TensorType):
                self.wrong.append(Violation("not a type", f"input {key!r}", "a TensorType", repr(kind)))
                continue
            self.types[key] = kind
            if not all(isinstance(d, int) for d in kind.shape):
                self.wrong.append(Violation("a dimension is not an integer", f"input {key!r}", found=str(kind)))
            elif any(d < 0 for d in kind.shape):
                self.wrong.append(Violation("negative dimension", f"input {key!r}", found=str(kind)))
            else:
                self.wrong += check_size(kind, f"input {key!r}")
        for group, label in ((self.constants, "constant"), (self.states, "state")):
            for key, array in group.items():
                claim(key, f"{label} {key!r}")
                self.types[key] = type_of_array(array)
        node_names: set[str] = set()
        for node in self.nodes:
            if node.name in node_names:
                self.wrong.append(Violation(f"duplicate node name {node.name!r}", hint="node names are unique"))
            node_names.add(node.name)
            for out in node.outputs:
                claim(out, f"node {node.name!r}")
        self.known = seen

    def check_references(self) -> None:
        for node in self.nodes:
            where = f"node {node.name!r}"
            if find_op(node.op) is None:
                near = suggest_ops(node.op)
                hint = f"did you mean {', '.join(near)}?" if near else "see `superkernel.ops.table` for the list"
                self.wrong.append(Violation(f"unknown operator {node.op!r}", where, hint=hint))
            for slot, value in enumerate(node.inputs):
                if value is not None and value not in self.known:
                    self.wrong.append(Violation(f"input {slot} names an unknown value {value!r}", where))
        for value in self.outputs:
            if value not in self.known:
                self.wrong.append(Violation(f"the output {value!r} is not a value of the graph"))
        for state, value in self.updates.items():
            if state not in self.states:
                self.wrong.append(Violation(f"update of an unknown state {state!r}"))
            if value not in self.known:
                self.wrong.append(Violation(f"the update of state {state!r} names an unknown value {value!r}"))

    def sort(self) -> list[Node]:
        """Kahn's algorithm, smallest given position first; raises with the nodes of one cycle. What is in an order
        already stays as it is."""
        if self.is_sorted():
            return self.nodes
        producer = {out: i for i, node in enumerate(self.nodes) for out in node.outputs}
        waiting = [0] * len(self.nodes)
        users: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            sources = {producer[v] for v in node.inputs if v is not None and v in producer}
            waiting[i] = len(sources)
            for s in sources:
                users[s].append(i)
        ready = [i for i, count in enumerate(waiting) if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            i = heapq.heappop(ready)
            order.append(self.nodes[i])
            for u in users[i]:
                waiting[u] -= 1
                if waiting[u] == 0:
                    heapq.heappush(ready, u)
        if len(order) < len(self.nodes):
            stuck = [i for i, count in enumerate(waiting) if count > 0]
            cycle = " -> ".join(self.nodes[i].name for i in self.one_cycle(stuck, producer))
            raise GraphError(
                "the graph has a cycle", location=cycle, hint="use a state for values carried between runs"
            )
        return order

    def is_sorted(self) -> bool:
        """Whether each node reads only what nodes ahead of it compute, or none does."""
        coming = {out for node in self.nodes for out in node.outputs}
        for node in self.nodes:
            if not coming.isdisjoint(node.inputs):
                return False
            coming.difference_update(node.outputs)
        return True

    def one_cycle(self, stuck: list[int], producer: Mapping[str, int]) -> list[int]:
        inside = set(stuck)
        path: list[int] = []
        at = stuck[0]
        while at not in path:
            path.append(at)
            at = next(producer[v] for v in self.nodes[at].inputs if v is not None and producer.get(v, -1) in inside)
        return [*path[path.index(at) :][::-1], path[-1]]

    def infer(self, node: Node) -> Node | None:
        definition = find_op(node.op)
        assert definition is not None
        if any(v is not None and v not in self.types for v in node.inputs):
            return None  # an earlier node already failed; its error is the one to read
        if node.outputs and all(value in self.inferred for value in node.outputs):
            for value in node.outputs:
                kind = self.types[value] = self.inferred[value]
                if kind.nbytes > VALUE_BYTES_MAX:
                    self.wrong += check_size(kind, f"node {node.name!r} ({node.op})")
            return node
        where = f"node {node.name!r} ({node.op})"
        inputs = [None if v is None else self.types[v] for v in node.inputs]
        try:
            attrs = canonical_attrs(definition, node.attrs)
            outputs = inferred_types(node.op, tuple(inputs), tuple(attrs.items()))
            if len(outputs) != len(node.outputs):
                raise GraphError("wrong number of outputs", expected=len(outputs), found=len(node.outputs))
        except SuperKernelError as error:
            self.wrong += [v.within(where) for v in error.violations]
            return None
        self.wrong += [v for kind in outputs for v in check_size(kind, where)]
        self.types.update(zip(node.outputs, outputs, strict=True))
        return Node(node.name, node.op, node.inputs, node.outputs, attrs, node.kernel_type, node.stream, node.scope)

    def check_updates(self) -> None:
        for state, value in self.updates.items():
            have, want = self.types.get(value), self.types.get(state)
            if have is not None and want is not None and have != want:
                self.wrong.append(
                    Violation(f"the update of state {state!r} has another type", expected=str(want), found=str(have))
                )

    def check_extents(self) -> None:
        for name, row in self.extents.items():
            where = f"extents of output {name!r}"
            if name not in self.outputs:
                self.wrong.append(Violation("not an output of the graph", where))
                continue
            axes = [axis for axis, _ in row]
            rank = self.types[name].rank if name in self.types else None
            if rank is not None and (len(set(axes)) < len(axes) or not all(0 <= axis < rank for axis in axes)):
                self.wrong.append(Violation("not axes of the output", where, f"each once, 0 to {rank - 1}", str(axes)))
            for _, count in row:
                kind = self.types.get(count)
                if kind is not None and (kind.dtype is not DType.I64 or kind.shape):
                    self.wrong.append(Violation("not a count of elements", where, "i64[]", f"{count!r}: {kind}"))


@lru_cache(maxsize=1024)  # equal layers ask the same
def inferred_types(
    op: str, inputs: tuple[TensorType | None, ...], attrs: tuple[tuple[str, AttrValue], ...]
) -> tuple[TensorType, ...]:
    """Types of what an operator of the table computes. `attrs`: canonical. Raises GraphError on what it does not
    accept."""
    definition = find_op(op)
    assert definition is not None, op
    check_arguments(definition, inputs)
    return tuple(definition.infer(inputs, dict(attrs)))


def check_arguments(definition: OpDef, inputs: Sequence[TensorType | None]) -> None:
    """Number, presence and dtypes of the inputs against the operator's slots. Raises GraphError with all violations."""
    wrong: list[Violation] = []
    args = definition.args
    variadic = bool(args) and args[-1].variadic
    least = sum(1 for a in args if not a.optional)
    if len(inputs) < least or (len(inputs) > len(args) and not variadic):
        most = "any number" if variadic else str(len(args))
        raise GraphError("wrong number of inputs", expected=f"{least} to {most}", found=len(inputs))
    for slot, kind in enumerate(inputs):
        arg = args[min(slot, len(args) - 1)]
        if kind is None:
            if not arg.optional:
                wrong.append(Violation("a required input is absent", f"input {slot} ({arg.name})"))
        elif kind.dtype not in arg.dtypes:
            names = ", ".join(sorted(d.value for d in arg.dtypes))
            wrong.append(Violation("element type not accepted", f"input {slot} ({arg.name})", names, str(kind)))
    raise_all(GraphError, wrong)


def check_size(kind: TensorType, where: str) -> list[Violation]:
    """A violation where no process could hold the value: offsets and sizes are 64-bit everywhere behind the graph."""
    if kind.nbytes <= VALUE_BYTES_MAX:
        return []
    return [Violation("a value is too large to be addressed", where, f"at most {VALUE_BYTES_MAX} bytes", str(kind))]


def type_of_array(array: NDArray[Any]) -> TensorType:
    """The TensorType of a NumPy array. Raises UserError on an element type that is not supported."""
    return _array_type(array.dtype, array.shape)


@lru_cache(maxsize=1024)
def _array_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> TensorType:
    return TensorType(DType.of(dtype), tuple(int(d) for d in shape))
