"""Values that a fused run hands out beside its outputs: option `dump`.

Model: each name in the option is a node, a value, a sub-operator, or a pattern (fnmatch) of sub-operators' names. The
values meant become outputs of the graph that is compiled, behind its own ones. So they are stored by the kernels that
compute them, or copied where they lie in memory that others share, and no launch is split. What a sub-operator keeps
in registers can be named as a node too: it is stored then, which changes that kernel.

Names are those of the graph behind simplification and lowering (`superkernel inspect MODEL --stage simplified`); values
have the type that they are computed with.

Invariant: the graph's own outputs keep their places and names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.ir.body import Role, SubOperator
from superkernel.ir.graph import Graph

_WILD = frozenset("*?[")


def with_dumps(graph: Graph, subops: Sequence[SubOperator], names: Sequence[str]) -> tuple[Graph, dict[str, int]]:
    """The graph with the values behind `names` as further outputs, and the output number of each, by name: the name
    given, or the value's where several are meant. Raises InputError with all names that mean nothing."""
    outputs = list(graph.outputs)
    slots: dict[str, int] = {}
    wrong: list[Violation] = []
    for name in names:
        for shown, value in _meant(graph, subops, name, wrong):
            if value not in outputs:
                outputs.append(value)
            slots[shown] = outputs.index(value)
    raise_all(InputError, wrong)
    return replace(graph, outputs=tuple(outputs)), slots


def stored_values(graph: Graph, sub: SubOperator) -> tuple[str, ...]:
    """The graph's values that a sub-operator writes to memory."""
    written = [
        value
        for value, operand in zip(sub.values, sub.body.operands, strict=True)
        if operand.role in (Role.OUTPUT, Role.INOUT) and value in graph.producers
    ]
    if written:
        return tuple(dict.fromkeys(written))
    nodes = {node.name: node for node in graph.nodes}
    return nodes[sub.nodes[-1]].outputs if sub.nodes else ()


def _meant(graph: Graph, subops: Sequence[SubOperator], name: str, wrong: list[Violation]) -> list[tuple[str, str]]:
    """(name, value) of everything that a name means."""
    if _WILD & set(name):
        matching = [sub for sub in subops if fnmatchcase(sub.name, name)]
        values = [v for sub in matching for v in stored_values(graph, sub)]  # none where they only copy to outputs
        if not matching:
            wrong.append(Violation("no sub-operator matches", "option 'dump'", _known(subops), repr(name)))
        return [(value, value) for value in dict.fromkeys(values)]
    found: tuple[str, ...] = ()
    for sub in subops:
        if sub.name == name:
            found = stored_values(graph, sub)
    if not found:
        found = next((node.outputs for node in graph.nodes if node.name == name), ())
    if not found and name in graph.producers:
        found = (name,)
    if not found:
        hint = "`superkernel inspect MODEL --stage simplified` shows what is left of the graph"
        wrong.append(Violation("no such node or value", "option 'dump'", _known(subops), repr(name), hint))
    return [(name if len(found) == 1 else value, value) for value in found]


def _known(subops: Sequence[SubOperator]) -> str:
    listed = ", ".join(sub.name for sub in subops[:8])
    return listed + (f" and {len(subops) - 8} more" if len(subops) > 8 else "")
