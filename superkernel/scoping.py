"""Scopes by name: which nodes the option `scopes` puts into which scope.

Model: an entry "scope:pattern" takes the nodes whose name matches the pattern (fnmatch), or begins with it up to the
end of a word ("layer1" means layer1, layer1/add and layer1.q, not layer10). The first entry that takes a node decides;
nodes that none takes keep their own scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from superkernel.errors import InputError, Violation, raise_all
from superkernel.graph import Graph


def with_scopes(graph: Graph, scopes: Sequence[str]) -> Graph:
    """The graph with scopes set. Raises InputError where an entry takes no node."""
    if not scopes:
        return graph
    entries = [tuple(entry.split(":", 1)) for entry in scopes]
    used = {pattern for _, pattern in entries for node in graph.nodes if _takes(pattern, node.name)}
    raise_all(
        InputError,
        [
            Violation(
                "no node of the scope", "option 'scopes'", "a pattern or prefix of node names", repr(pattern),
                hint="`superkernel inspect MODEL --stage graph` shows the names",
            )
            for _, pattern in entries
            if pattern not in used
        ],
    )  # fmt: skip
    nodes = tuple(
        replace(node, scope=next((s for s, pattern in entries if _takes(pattern, node.name)), node.scope))
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _takes(pattern: str, name: str) -> bool:
    if fnmatchcase(name, pattern):
        return True
    rest = name.removeprefix(pattern)
    return rest != name and not rest[0].isalnum()
