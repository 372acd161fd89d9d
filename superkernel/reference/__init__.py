"""Evaluate a graph with the NumPy references of the operator table: the measure every kernel is held against.

Model: nodes run in graph order. Each computes in float64 inside; its outputs are then rounded to their declared types,
as a kernel that stores them does. With `wide` floats stay float64 between nodes (integers and bools keep their types),
which gives the value that all roundings deviate from. Intermediate values are dropped after their last reader.

Invariant: nothing here imports a kernel, the scheduler or the code generator; neither inputs nor states are changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from superkernel.core.errors import GraphError, InputError, InternalError, Violation, raise_all
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, check_arguments, type_of_array
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.common import is_float
from superkernel.ops.opdef import Array, Attrs, OpDef, as_array
from superkernel.ops.table import find_op, suggest_ops


class Evaluation(dict[str, Array]):
    """value name -> array, of the graph's outputs and the values kept. `states` holds every state's next contents."""

    def __init__(self, values: Mapping[str, Array], states: Mapping[str, Array]) -> None:
        super().__init__(values)
        self.states: dict[str, Array] = dict(states)


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Any],
    states: Mapping[str, Any] | None = None,
    *,
    wide: bool = False,
    keep: Iterable[str] = (),
    whole: bool = False,
) -> Evaluation:
    """Run the graph once.

    Outputs whose extents are data are as long as the data has them, or, `whole`, as there is room for.
    `inputs`: an array for every graph input, of its exact shape and type (Python numbers and lists are converted;
    with `wide` any float type will do). `states`: contents of states that differ from the initial
    ones. `keep`: more values to return. The results are arrays of their own. Raises InputError with every input, state
    or kept name that is wrong, InternalError where a reference contradicts the declared types.
    """
    wanted = dict.fromkeys([*graph.outputs, *keep])
    values = _start_values(graph, inputs, states or {}, wanted, wide)
    last_use = _last_uses(graph, [*wanted, *graph.updates.values()])
    for position, node in enumerate(graph.nodes):
        arrays = [None if name is None else values[name] for name in node.inputs]
        results = run_reference(graph.definition(node), arrays, node.attrs, graph.output_types(node), wide, node.name)
        values.update(zip(node.outputs, results, strict=True))
        for name in (*node.inputs, *node.outputs):
            if name is not None and last_use.get(name, -1) <= position:
                values.pop(name, None)
    after = {state: np.array(values[graph.updates.get(state, state)]) for state in graph.states}
    if whole:
        return Evaluation({name: np.array(values[name]) for name in wanted}, after)
    return Evaluation({name: np.array(values[name][_counting(graph, name, values)]) for name in wanted}, after)


def _counting(graph: Graph, name: str, values: Mapping[str, Array]) -> tuple[slice, ...]:
    """Of each axis of an output what counts."""
    counts = {axis: int(values[count]) for axis, count in graph.extents.get(name, ())}
    return tuple(slice(counts.get(axis)) for axis in range(graph.types[name].rank))


def apply(
    name: str, inputs: Sequence[Any], attrs: Mapping[str, Any] | None = None, *, wide: bool = False
) -> list[Array]:
    """One operator on arrays (None = absent optional input), checked like a graph node. Raises GraphError."""
    definition = find_op(name)
    if definition is None:
        raise GraphError(
            f"unknown operator {name!r}", hint=f"did you mean {', '.join(suggest_ops(name)) or 'another'}?"
        )
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    types = [None if x is None else type_of_array(x) for x in arrays]
    check_arguments(definition, types)
    complete = canonical_attrs(definition, attrs or {})
    return list(run_reference(definition, arrays, complete, definition.infer(types, complete), wide))


def run_reference(
    definition: OpDef,
    arrays: Sequence[Array | None],
    attrs: Attrs,
    outputs: tuple[TensorType, ...],
    wide: bool = False,
    where: str = "",
) -> tuple[Array, ...]:
    """One operator's outputs, rounded to `outputs` (with `wide`: floats as float64). Types and attributes are legal."""
    with np.errstate(all="ignore"):
        found = definition.reference(arrays, attrs, outputs)
        if len(found) != len(outputs):
            raise InternalError("wrong number of results", location=where, expected=len(outputs), found=len(found))
        return tuple(_rounded(a, kind, wide, where) for a, kind in zip(found, outputs, strict=True))


def _rounded(values: Array, kind: TensorType, wide: bool, where: str) -> Array:
    """A reference's result in its declared type, or as float64."""
    values = np.asarray(values)
    if values.shape != kind.shape or (is_float(values) and not kind.dtype.is_float):
        found = f"{values.dtype}{list(values.shape)}"
        raise InternalError("a reference contradicts the declared type", location=where, expected=kind, found=found)
    if wide and kind.dtype.is_float:
        return values.astype(np.float64, copy=False)
    return as_array(values, kind.dtype)


def _last_uses(graph: Graph, kept: Iterable[str]) -> dict[str, int]:
    """value -> position of its last reader; past the end for values that are kept and for states."""
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs if name is not None}
    last.update(dict.fromkeys((*kept, *graph.states), len(graph.nodes)))
    return last


def _start_values(
    graph: Graph, inputs: Mapping[str, Any], states: Mapping[str, Any], wanted: Iterable[str], wide: bool
) -> dict[str, Array]:
    """Inputs, constants and states as arrays; raises InputError with everything that is wrong."""
    wrong: list[Violation] = []
    values: dict[str, Array] = dict(graph.constants)
    for name, kind in graph.inputs.items():
        if name in inputs:
            values[name] = _bound(f"input {name!r}", inputs[name], kind, wide, wrong)
        else:
            wrong.append(Violation("missing", f"input {name!r}", str(kind)))
    for name in graph.states:
        given = states.get(name, graph.states[name])
        values[name] = _bound(f"state {name!r}", given, graph.types[name], wide, wrong)
    for group, known, label in ((inputs, graph.inputs, "input"), (states, graph.states, "state")):
        for name in group:
            if name not in known:
                wrong.append(Violation("unknown", f"{label} {name!r}", ", ".join(known) or "none"))
    for name in wanted:
        if name not in graph.types:
            wrong.append(Violation(f"no value is called {name!r}", "keep"))
    raise_all(InputError, wrong)
    if wide:
        return {name: a.astype(np.float64) if is_float(a) else a for name, a in values.items()}
    return values


def _bound(where: str, given: Any, kind: TensorType, wide: bool, wrong: list[Violation]) -> Array:
    """`given` as an array of `kind`. Arrays must have its type; Python numbers and lists take it."""
    array = np.asarray(given)
    typed = isinstance(given, (np.ndarray, np.generic))
    same = array.dtype == kind.dtype.numpy or (wide and kind.dtype.is_float and is_float(array))
    if array.shape != kind.shape or (typed and not same):
        wrong.append(Violation("wrong type", where, str(kind), f"{array.dtype}{list(array.shape)}"))
        return array
    return array if same else as_array(array, kind.dtype)


__all__ = ["Evaluation", "apply", "evaluate", "run_reference"]
