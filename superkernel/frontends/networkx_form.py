"""networkx graphs as `Graph` and back; docs/graph-format.md describes the form for users.

Model: a node of the networkx graph is a sub-operator, an input, a constant, a state or an output mark; an edge says
which output of its source feeds which input of its target. Node names are `str()` of the keys. A node with one output
has a value of its own name; output i of a node with several is `name:i`, unless attribute `outputs` gives the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any

from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, InputError, SuperKernelError, Violation, raise_all
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, KernelType, Node
from superkernel.ops.table import find_op

if TYPE_CHECKING:
    import networkx as nx

SPECIAL = ("input", "constant", "state", "output")
OUTPUTS_MAX = 64  # of a node whose operator does not say
INPUTS_MAX = 64  # slots that may be skipped
_RESERVED = frozenset({"op", "attrs", "kernel_type", "stream", "scope", "outputs"})


def from_networkx(source: Any, *, copy: bool | None = None) -> Graph:
    """A DiGraph or MultiDiGraph as a Graph; `Graph.build` says what `copy` means for its arrays. Raises GraphError with
    every violation."""
    if not source.is_directed():
        raise InputError(
            "the networkx graph must be directed", expected="DiGraph or MultiDiGraph", found=type(source).__name__
        )
    return _Reader(source).graph(copy)


class _Reader:
    def __init__(self, source: nx.DiGraph[Any]) -> None:
        self.source = source
        self.wrong: list[Violation] = []
        self.inputs: dict[str, TensorType] = {}
        self.constants: dict[str, Any] = {}
        self.states: dict[str, Any] = {}
        self.updates: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.output_marks: list[tuple[str, Any]] = []
        self.extents: dict[str, tuple[tuple[int, str], ...]] = {}
        self.names: dict[Any, str] = {}

    def graph(self, copy: bool | None) -> Graph:
        self.read_names()
        raise_all(GraphError, self.wrong)
        for key, data in self.source.nodes(data=True):
            self.read_node(key, data)
        outputs = self.read_outputs()
        raise_all(GraphError, self.wrong)
        meta = self.source.graph
        return Graph.build(
            name=str(meta.get("name") or "graph"),
            inputs=self.inputs,
            constants=self.constants,
            states=self.states,
            updates=self.updates,
            nodes=self.nodes,
            outputs=outputs,
            copy=copy,
            extents=self.extents,
        )

    def complain(self, where: str, message: str, **details: object) -> None:
        self.wrong.append(Violation(message, where, **{k: str(v) for k, v in details.items()}))

    def read_names(self) -> None:
        seen: dict[str, Any] = {}
        for key in self.source.nodes:
            name = str(key)
            if name in seen:
                self.complain(f"node {name!r}", "two node keys read the same", found=f"{seen[name]!r} and {key!r}")
            seen[name] = key
            self.names[key] = name

    def read_node(self, key: Any, data: Mapping[str, Any]) -> None:
        name = self.names[key]
        where = f"node {name!r}"
        op = data.get("op")
        if not isinstance(op, str):
            self.complain(where, "attribute 'op' is missing", expected="an operator's name", found=repr(op))
            return
        try:
            if op == "input":
                self.inputs[name] = TensorType(DType.of(self.need(data, "dtype")), self.shape(self.need(data, "shape")))
            elif op == "constant":
                self.constants[name] = self.need(data, "value")
            elif op == "state":
                self.states[name] = self.need(data, "value")
                if data.get("update") is not None:
                    self.updates[name] = str(data["update"])
            elif op == "output":
                self.output_marks.append((name, key))
            else:
                self.nodes.append(self.operator(key, name, op, data))
        except SuperKernelError as error:
            self.wrong += [v.within(where) for v in error.violations]
        if op in ("input", "constant", "state") and self.source.in_degree(key):
            self.complain(
                where, f"an edge leads into {op} {name!r}", hint="states are updated by their attribute 'update'"
            )

    @staticmethod
    def need(data: Mapping[str, Any], field: str) -> Any:
        if data.get(field) is None:
            raise GraphError(f"attribute {field!r} is missing")
        return data[field]

    @staticmethod
    def shape(value: Any) -> tuple[int, ...]:
        try:
            dims = tuple(int(d) for d in value)
        except (TypeError, ValueError) as error:
            raise GraphError("attribute 'shape' is not a shape", expected="integers", found=repr(value)) from error
        if dims != tuple(value) or any(d < 0 for d in dims):
            raise GraphError("attribute 'shape' is not a shape", expected="integers >= 0", found=repr(value))
        return dims

    def operator(self, key: Any, name: str, op: str, data: Mapping[str, Any]) -> Node:
        attrs = {k: v for k, v in data.items() if k not in _RESERVED}
        nested = self.nested(data)
        both = sorted(attrs.keys() & nested.keys())
        if both:
            raise GraphError("attributes given twice", found=", ".join(both))
        kind = data.get("kernel_type")
        if kind is not None and not isinstance(kind, KernelType):
            try:
                kind = KernelType(kind)
            except ValueError as error:
                expected = ", ".join(k.value for k in KernelType)
                raise GraphError("unknown kernel_type", expected=expected, found=repr(kind)) from error
        stream = data.get("stream")
        if stream is not None and (isinstance(stream, bool) or not isinstance(stream, (int, str))):
            raise GraphError("stream must be an integer or a text", found=repr(stream))
        scope = data.get("scope")
        if scope is not None and not isinstance(scope, str):
            raise GraphError("scope must be a text", found=repr(scope))
        outputs = self.value_names(key, op, data)
        return Node(name, op, self.operands(key, op), outputs, {**attrs, **nested}, kind, stream, scope)

    def value_names(self, key: Any, op: str, data: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of a node's values: given, or counted from the operator's attributes and the edges that leave it."""
        name = self.names[key]
        given = data.get("outputs")
        if given is not None:
            if not isinstance(given, (list, tuple)):
                raise GraphError("attribute 'outputs' is not a list", expected="value names", found=repr(given))
            return tuple(str(o) for o in given)
        highest = max(
            (self.index(d, "output_index", 0) for _, _, d in self.source.out_edges(key, data=True)), default=0
        )
        attrs = {**data, **self.nested(data)}
        sizes = attrs.get("sizes")
        count = 2 if op == "topk" else len(sizes) if op == "split" and isinstance(sizes, Sized) else 1
        if highest >= max(count, OUTPUTS_MAX):
            raise GraphError("output_index out of range", expected=f"below {max(count, OUTPUTS_MAX)}", found=highest)
        count = max(count, highest + 1)
        return (name,) if count == 1 else tuple(f"{name}:{i}" for i in range(count))

    @staticmethod
    def nested(data: Mapping[str, Any]) -> Mapping[str, Any]:
        found = data.get("attrs")
        if not isinstance(found, Mapping | None):
            raise GraphError("attribute 'attrs' is not a mapping", expected="names to values", found=repr(found))
        return found or {}

    @staticmethod
    def index(data: Mapping[str, Any], field: str, default: int) -> int:
        value = data.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise GraphError(f"edge attribute {field!r} must be an integer >= 0", found=repr(value))
        return value

    def operands(self, key: Any, op: str) -> tuple[str | None, ...]:
        edges = list(self.source.in_edges(key, data=True))
        slots: dict[int, str] = {}
        for source, _, data in edges:
            if "input_index" not in data and len(edges) > 1:
                edge = f"edge {self.names[source]!r} -> {self.names[key]!r}"
                raise GraphError("input_index is required where a node has several inputs", location=edge)
            slot = self.index(data, "input_index", 0)
            if slot in slots:
                raise GraphError(f"two edges feed input {slot}", found=f"{slots[slot]!r} and {self.names[source]!r}")
            slots[slot] = self.value(source, self.index(data, "output_index", 0))
        most = 1 + max(slots, default=-1)
        definition = find_op(op)
        variadic = definition is not None and bool(definition.args) and definition.args[-1].variadic
        if definition is not None and not variadic and most > len(definition.args):
            raise GraphError("input_index out of range", expected=f"below {len(definition.args)}", found=most - 1)
        if most > max(len(edges), INPUTS_MAX):
            raise GraphError("input_index out of range", expected=f"below {len(edges)}", found=most - 1)
        return tuple(slots.get(i) for i in range(most))

    def value(self, key: Any, index: int) -> str:
        data = self.source.nodes[key]
        op = data.get("op")
        if op == "output":
            raise GraphError("an output node feeds nothing", found=self.names[key])
        names = (self.names[key],) if op in SPECIAL else self.value_names(key, str(op), data)
        if index >= len(names):
            raise GraphError(
                "output_index out of range",
                location=f"value {self.names[key]!r}",
                expected=f"below {len(names)}",
                found=index,
            )
        return names[index]

    def read_outputs(self) -> list[str]:
        """The values that output nodes mark, else the values of operators that feed nothing."""
        if self.output_marks:
            found = []
            for name, key in self.output_marks:
                edges = list(self.source.in_edges(key, data=True))
                if len(edges) != 1:
                    self.complain(f"output {name!r}", "an output has exactly one edge", expected=1, found=len(edges))
                    continue
                source, _, data = edges[0]
                try:
                    found.append(self.value(source, self.index(data, "output_index", 0)))
                    self.read_extents(found[-1], self.source.nodes[key].get("extents"))
                except SuperKernelError as error:
                    self.wrong += [
                        Violation(v.message, f"output {name!r}", v.expected, v.found) for v in error.violations
                    ]
            return found
        used = {v for node in self.nodes for v in node.inputs} | set(self.updates.values())
        return [out for node in self.nodes for out in node.outputs if out not in used]

    def read_extents(self, value: str, given: Any) -> None:
        """Attribute `extents` of an output: pairs of an axis and the name of the value that counts along it."""
        if given is None:
            return
        rows = given if isinstance(given, list | tuple) else [given]
        if not all(isinstance(row, list | tuple) and [type(item) for item in row] == [int, str] for row in rows):
            raise GraphError("attribute 'extents' is not read", expected="[[axis, value], ...]", found=repr(given))
        self.extents[value] = tuple((axis, count) for axis, count in rows)


def to_networkx(graph: Graph) -> nx.MultiDiGraph[Any]:
    """The graph as a MultiDiGraph that `from_networkx` reads back to an equal Graph."""
    import networkx as nx

    result: nx.MultiDiGraph[Any] = nx.MultiDiGraph(name=graph.name)
    origin: dict[str, tuple[str, int]] = {}
    taken = {node.name for node in graph.nodes}
    for name, kind in graph.inputs.items():
        result.add_node(name, op="input", dtype=kind.dtype.value, shape=kind.shape)
    for name, array in graph.constants.items():
        result.add_node(name, op="constant", value=array)
    for name, array in graph.states.items():
        result.add_node(
            name, op="state", value=array, **({"update": graph.updates[name]} if name in graph.updates else {})
        )
    for name in [*graph.inputs, *graph.constants, *graph.states]:
        if name in taken:
            raise GraphError(f"a node and a value share the name {name!r}", hint="rename the node")
        origin[name] = (name, 0)
        taken.add(name)
    for node in graph.nodes:
        extra = {k: v for k, v in (("stream", node.stream), ("scope", node.scope)) if v is not None}
        if node.kernel_type is not None:
            extra["kernel_type"] = node.kernel_type.value
        attrs = {k: v.value if isinstance(v, DType) else v for k, v in node.attrs.items()}
        result.add_node(node.name, op=node.op, attrs=attrs, outputs=node.outputs, **extra)
        origin.update({out: (node.name, i) for i, out in enumerate(node.outputs)})
    for node in graph.nodes:
        for slot, value in enumerate(node.inputs):
            if value is not None:
                source, index = origin[value]
                result.add_edge(source, node.name, output_index=index, input_index=slot)
    for position, value in enumerate(graph.outputs):
        mark = f"output:{position}"
        while mark in taken:
            mark += "'"
        taken.add(mark)
        row = graph.extents.get(value)
        result.add_node(mark, op="output", **({} if row is None else {"extents": row}))
        source, index = origin[value]
        result.add_edge(source, mark, output_index=index)
    return result
