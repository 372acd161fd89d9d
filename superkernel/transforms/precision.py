"""Narrow floats: every f32 value becomes f16 or bf16 in memory.

Model: constants are converted once, values by computing them in the narrow type. At the border nothing changes: inputs
and outputs keep their types, with a cast behind the input and in front of the output; casts are pointwise and join
what reads or computes the value. Integers, bools and f64 are left alone, attributes (an epsilon) keep their f32 value.

A finite constant beyond the narrow range becomes the largest finite number, not infinity: a mask of -3.4e38 stays a
mask, and two masks that cancel do not make NaN. Values that a run computes or gets are not bounded so.

States keep their type too, unless `narrow_states` asks for it: what is written to one is cast up, what is read from it
cast down, and updates in place (KV caches) stay in place, in the state's type. The price is a pass over the whole state
for every value read from it in every run; `PrecisionLowering.state_bytes` says how many bytes. With `narrow_states` the
states of the graph are themselves narrow: half the memory, no pass, another interface.

What lies between integers keeps f32: values that are quantised, or that integers alone lead to and that leave as
outputs, as far back as pointwise operators, averages and sums of whole numbers go. A sum of 32 bits has no room in f16,
and an integer must not hang on how a value ahead of it was stored. So do values whose bits are read or given.

`error_bound` is what a lowered graph may differ by: roundings are independent, so errors add like random steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from superkernel.core.counted import counted
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.transforms.selections import selections

NARROW_TYPES = (DType.F16, DType.BF16)
_FINFO: Any = ml_dtypes.finfo  # NumPy's, and bf16's too; it carries no types


@dataclass(frozen=True)
class PrecisionLowering:
    """The narrow graph, and what narrowing did. Numbers of elements: `saturated` constants were finite and beyond the
    range, `vanished` ones not 0 and became 0. `casts`: nodes added at borders. `state_bytes`: bytes that one run moves
    to cast states, reading and writing."""

    graph: Graph
    constants: int
    saturated: int
    vanished: int
    casts: int
    state_bytes: int

    def __str__(self) -> str:
        return (
            f"{counted(self.constants, 'constant')} narrowed ({self.saturated} elements saturated, "
            f"{self.vanished} vanished), {self.casts} casts at borders, {self.state_bytes} bytes per run to cast states"
        )


def lower_precision(graph: Graph, dtype: DType = DType.F16, *, narrow_states: bool = False) -> Graph:
    """The graph with `dtype` for f32; itself where nothing is f32. Raises InputError on a type that is not narrower."""
    return lowering_of(graph, dtype, narrow_states=narrow_states).graph


def lowering_of(graph: Graph, dtype: DType = DType.F16, *, narrow_states: bool = False) -> PrecisionLowering:
    """`lower_precision` with an account of what it did."""
    if dtype not in NARROW_TYPES:
        raise InputError("not a narrow float type", expected=" | ".join(map(str, NARROW_TYPES)), found=str(dtype))
    if all(kind.dtype is not DType.F32 for kind in graph.types.values()):
        return PrecisionLowering(graph, 0, 0, 0, 0, 0)
    return _Lowerer(graph, dtype, narrow_states).run()


def narrowed(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The array in a narrow type, rounded to nearest even; finite numbers stay finite."""
    largest = float(_FINFO(dtype.numpy).max)
    with np.errstate(over="ignore"):
        found = np.asarray(array).astype(dtype.numpy)
    endless = ~np.isfinite(found.astype(np.float32))
    if not endless.any():
        return found
    beyond = np.isfinite(array) & endless
    return np.where(beyond, np.copysign(largest, array), found).astype(dtype.numpy).reshape(np.shape(array))


def error_bound(graph: Graph, dtype: DType = DType.F16) -> float | None:
    """Error of the lowered graph's outputs that is to be expected at most, relative to the largest magnitude in an
    output: 2 u sqrt(d), u the unit roundoff (2^-11 for f16, 2^-8 for bf16), d the longest chain of operators that
    round. Twice the roundoff, because what an operator reads is rounded as well as what it gives. Holds for networks
    whose operators do not amplify errors (normalised layers, residual sums); the encoder, image networks and decoder of
    the tests show 0.03 to 0.37 of it. None where no such bound can be: outputs hang on `selections`."""
    return None if selections(graph) else chain_bound(graph, dtype)


def chain_bound(graph: Graph, dtype: DType = DType.F16) -> float:
    """What `error_bound` is without selections: all that can be said of how far values are off ahead of them."""
    depth: dict[str, int] = {}
    for node in graph.nodes:
        rounds = graph.definition(node).family not in (Family.RESHAPE, Family.VIEW)
        reached = max((depth.get(v, 0) for v in node.inputs if v is not None), default=0) + rounds
        depth.update(dict.fromkeys(node.outputs, reached))
    return float(_FINFO(dtype.numpy).eps) * sqrt(max(1, *(depth.get(v, 0) for v in graph.outputs)))


_BETWEEN = frozenset({Family.POINTWISE, Family.RESHAPE, Family.VIEW, Family.POOL})


def between_integers(graph: Graph) -> frozenset[str]:
    """Names of the nodes whose f32 values stay f32, see the module docstring."""
    integral: set[str] = set()  # f32 values that integers alone lead to
    for node in graph.nodes:
        given = [v for v in node.inputs if v is not None and graph.types[v].dtype.is_float and v not in graph.constants]
        first = node.inputs[0] if node.inputs else None
        made = first is not None and not graph.types[first].dtype.is_float and node.op in ("dequantize", "cast")
        if made or (given and integral.issuperset(given) and graph.definition(node).family in _BETWEEN):
            integral.update(v for v in node.outputs if graph.types[v].dtype is DType.F32)
    wanted = {v for v in graph.outputs if v in integral}
    found: set[str] = set()
    for node in reversed(graph.nodes):
        whole = node.op in ("conv", "matmul") and all(r.op == "round" for r in graph.consumers.get(node.outputs[0], ()))
        passes = graph.definition(node).family in _BETWEEN or whole or node.op == "softmax_integer"
        reads = node.op in ("quantize", "bitcast") or _is_whole_sum(graph, node)
        if reads or (passes and not wanted.isdisjoint(node.outputs)):
            found.add(node.name)
            wanted.update(v for v in node.inputs if v is not None)
    return frozenset(found)


def _is_whole_sum(graph: Graph, node: Node) -> bool:
    """Whether a node makes integers of a convolution's sums that were rounded to whole numbers."""
    rounded = graph.producers.get(node.inputs[0] or "") if node.op == "cast" else None
    sums = graph.producers.get(rounded.inputs[0] or "") if rounded is not None and rounded.op == "round" else None
    return sums is not None and sums.op == "conv" and graph.types[node.outputs[0]].dtype.is_integer


class _Lowerer:
    """One lowering. A value is narrow, wide (still f32) or neither (not f32); `narrow` and `wide` give its name in
    either type, casting where it has only the other one."""

    def __init__(self, graph: Graph, dtype: DType, narrow_states: bool) -> None:
        self.graph, self.dtype, self.narrow_states = graph, dtype, narrow_states
        self.kept = {*graph.outputs, *(() if narrow_states else graph.updates.values())}
        self.exact = between_integers(graph)
        self.wide_constants = {
            v for node in graph.nodes if node.name in self.exact for v in node.inputs if v in graph.constants
        }
        self.nodes: list[Node] = []
        self.constants = dict(graph.constants)
        self.states = dict(graph.states)
        self.narrow_names: dict[str, str] = {}
        self.wide_names: dict[str, str] = {v: v for v in graph.inputs if self._is_f32(v)}
        self.names = {*graph.types, *(node.name for node in graph.nodes)}
        self.saturated = self.vanished = self.converted = self.casts = self.state_bytes = 0

    def _is_f32(self, value: str) -> bool:
        return self.graph.types[value].dtype is DType.F32

    def run(self) -> PrecisionLowering:
        self._constants_and_states()
        for node in self.graph.nodes:
            if node.name in self.exact or self._updates_wide_state(node):
                self._keep(node)
            else:
                self._lower(node)
        updates = {s: self._update(s, v) for s, v in self.graph.updates.items()}
        graph = self.graph.rebuilt(self.nodes, constants=self.constants, states=self.states, updates=updates)
        return PrecisionLowering(graph, self.converted, self.saturated, self.vanished, self.casts, self.state_bytes)

    def _constants_and_states(self) -> None:
        for name, array in self.graph.constants.items():
            if not self._is_f32(name):
                continue
            if name in self.wide_constants and all(n.name in self.exact for n in self.graph.consumers.get(name, ())):
                self.wide_names[name] = name
                continue
            found = self._converted(array)
            if name in self.kept or name in self.wide_constants:  # the caller, a state or a reader gets it as it is
                self.wide_names[name] = name
                self.narrow_names[name] = self._fresh(name)
                self.constants[self.narrow_names[name]] = found
            else:
                self.narrow_names[name] = name
                self.constants[name] = found
        for name, array in self.graph.states.items():
            if not self._is_f32(name):
                continue
            if self.narrow_states:
                self.narrow_names[name] = name
                self.states[name] = self._converted(array)
            else:
                self.wide_names[name] = name

    def _converted(self, array: NDArray[Any]) -> NDArray[Any]:
        found = narrowed(array, self.dtype)
        largest = float(_FINFO(self.dtype.numpy).max)
        self.converted += 1
        self.saturated += int(np.count_nonzero(np.isfinite(array) & (np.abs(array) > largest)))
        self.vanished += int(np.count_nonzero((array != 0) & (found == 0)))
        return found

    def _updates_wide_state(self, node: Node) -> bool:
        """True of an update in place of a state, or of an earlier update of one, that stays f32."""
        source = node.inputs[0] if node.inputs else None
        if self.narrow_states or source is None or self.graph.definition(node).family is not Family.UPDATE:
            return False
        return source in self.wide_names and (source in self.graph.states or source not in self.narrow_names)

    def _keep(self, node: Node) -> None:
        inputs = tuple(None if v is None else self.wide(v, node) if self._is_f32(v) else v for v in node.inputs)
        self.nodes.append(replace(node, inputs=inputs))
        self.wide_names.update({v: v for v in node.outputs if self._is_f32(v)})

    def _lower(self, node: Node) -> None:
        inputs = tuple(None if v is None else self.narrow(v, node) if self._is_f32(v) else v for v in node.inputs)
        attrs: Mapping[str, Any] = node.attrs
        if node.op == "cast" and attrs.get("dtype") is DType.F32:
            attrs = {**attrs, "dtype": self.dtype}
        outputs = []
        for value in node.outputs:
            name = value
            if self._is_f32(value):
                name = self.narrow_names[value] = self._fresh(value) if value in self.kept else value
            outputs.append(name)
        self.nodes.append(replace(node, inputs=inputs, outputs=tuple(outputs), attrs=attrs))
        for value in node.outputs:
            if value in self.graph.outputs and self._is_f32(value):
                self.wide(value, node)

    def narrow(self, value: str, near: Node) -> str:
        """The value's name in the narrow type, for the reader `near`."""
        if value not in self.narrow_names:
            self.narrow_names[value] = self._cast(value, self._fresh(value), self.dtype, near)
            if value in self.graph.states or self._from_state(value):
                self.state_bytes += self._cast_bytes(self.graph.types[value])
        return self.narrow_names[value]

    def wide(self, value: str, near: Node) -> str:
        """The value's name in f32."""
        if value not in self.wide_names:
            name = value if value in self.kept else self._fresh(value)
            self.wide_names[value] = self._cast(self.narrow_names[value], name, DType.F32, near)
        return self.wide_names[value]

    def _update(self, state: str, value: str) -> str:
        """What a state becomes, in its type."""
        if not self._is_f32(value):
            return value
        near = self.graph.producers.get(value)
        if self.narrow_states:
            return self.narrow_names.get(value) or self.narrow(value, near or self.graph.nodes[0])
        if value not in self.wide_names:
            assert near is not None, value
            self.state_bytes += self._cast_bytes(self.graph.types[value])
            return self.wide(value, near)
        return self.wide_names[value]

    def _from_state(self, value: str) -> bool:
        """True of a wide result of an update in place."""
        return value in self.graph.producers and value in self.wide_names

    def _cast_bytes(self, kind: TensorType) -> int:
        return kind.size * (DType.F32.itemsize + self.dtype.itemsize)

    def _cast(self, source: str, name: str, dtype: DType, near: Node) -> str:
        label = self._fresh(f"{near.name}/cast")
        attrs = {"dtype": dtype}
        self.nodes.append(Node(label, "cast", (source,), (name,), attrs, stream=near.stream, scope=near.scope))
        self.casts += 1
        return name

    def _fresh(self, stem: str) -> str:
        name, count = f"{stem}.{self.dtype}", 1
        while name in self.names:
            name, count = f"{stem}.{self.dtype}.{count}", count + 1
        self.names.add(name)
        return name
