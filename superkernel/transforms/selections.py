"""Operators that turn a small error into a large one: they select, count or jump, and rounding may tip them over.

Model: a value is *inexact* where narrowing or a rounding operator stands between it and the graph's inputs; integers
and bools are exact until a selection makes them from an inexact float. A selection is listed where it sees an inexact
float and its result reaches an output or a state. What is continuous is not listed, however it is made: `relu`, `clip`,
the largest of several, the values (not the places) of `topk`.
"""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family

_NEVER_ROUND = (Family.RESHAPE, Family.VIEW)


def selections(graph: Graph) -> tuple[str, ...]:
    """The selections of a graph that is to be lowered, as "node (operator)", in the graph's order."""
    inexact = {v for v in (*graph.inputs, *graph.constants, *graph.states) if graph.types[v].dtype is DType.F32}
    found: list[Node] = []
    for node in graph.nodes:
        given = [v for v in node.inputs if v is not None]
        if _jumps(graph, node) and any(v in inexact for v in given):
            found.append(node)
        rounds = graph.definition(node).family not in _NEVER_ROUND
        tainted = any(v in inexact for v in given)
        inexact.update(v for v in node.outputs if graph.types[v].dtype.is_float and (rounds or tainted))
    needed = _needed(graph)
    return tuple(f"{node.name} ({node.op})" for node in found if not needed.isdisjoint(node.outputs))


def no_bound(found: tuple[str, ...]) -> str:
    """Why there is no bound of errors, in words."""
    listed = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    return f"no bound of errors: results hang on {listed}"


def _jumps(graph: Graph, node: Node) -> bool:
    if node.op == "topk":
        return bool(graph.consumers.get(node.outputs[-1])) or node.outputs[-1] in graph.outputs
    if node.op == "cast":
        return not graph.types[node.outputs[0]].dtype.is_float
    return graph.definition(node).discontinuous


def _needed(graph: Graph) -> set[str]:
    """Values that outputs and states depend on."""
    needed = {*graph.outputs, *graph.updates.values()}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(v for v in node.inputs if v is not None)
    return needed
