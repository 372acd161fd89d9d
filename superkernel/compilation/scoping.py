"""Scopes by name: which nodes the option `scopes` puts into which scope.

Model: an entry "scope:pattern" takes the nodes whose name matches the pattern (fnmatch), or begins with it up to the
end of a word ("layer1" means layer1, layer1/add and layer1.q, not layer10). The first entry that takes a node decides;
nodes that none takes keep their own scope. So the particular stands ahead of the general: "head:out", "body:*".

Invariant: no entry is without effect. One that takes no node is refused, and so is one whose nodes all belong to other
scopes already. Where two entries of different scopes share nodes and neither contains the other, order alone decides,
which is said (ScopeWarning). A host has no use for scopes, but holds them to the same rules: an option that is wrong
for every target is not to wait for an accelerator to be found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.core.warn import warn
from superkernel.ir.graph import Graph

_NAMED = 4  # nodes that a warning names


class ScopeWarning(UserWarning):
    """Two entries of the option `scopes` share nodes, and their order decides."""


@dataclass(frozen=True)
class _Entry:
    """An entry, the nodes its pattern takes, and those of them that no entry ahead of it takes."""

    scope: str
    pattern: str
    taken: frozenset[str]
    own: frozenset[str]

    def __str__(self) -> str:
        return f"{self.scope}:{self.pattern}"


def with_scopes(graph: Graph, scopes: Sequence[str]) -> Graph:
    """The graph with scopes set. Raises InputError with all entries that put no node into their scope; warns, at the
    line that compiles, of pairs whose order alone decides."""
    if not scopes:
        return graph
    entries = _checked(graph, scopes)
    scope_of = {name: entry.scope for entry in entries for name in entry.own}
    nodes = tuple(replace(node, scope=scope_of.get(node.name, node.scope)) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _checked(graph: Graph, scopes: Sequence[str]) -> list[_Entry]:
    """What each entry takes of a graph. Raises InputError with all that put no node into their scope."""
    entries: list[_Entry] = []
    left = frozenset(node.name for node in graph.nodes)
    for text in scopes:
        scope, pattern = text.split(":", 1)
        taken = frozenset(node.name for node in graph.nodes if _takes(pattern, node.name))
        entries.append(_Entry(scope, pattern, taken, taken & left))
        left -= taken
    raise_all(InputError, list(_violations(graph, entries)))
    for number, entry in enumerate(entries):
        for first in entries[:number]:
            shared = first.taken & entry.taken
            if shared and first.scope != entry.scope and not (first.taken <= entry.taken):
                warn(
                    f"option 'scopes': {_listed(graph, shared)} matched by {str(first)!r} and by {str(entry)!r}: the "
                    f"first decides, scope {first.scope!r} (hint: patterns that share no node, or the particular ahead "
                    "of the general, say what is meant)",
                    ScopeWarning,
                )
    return entries


def _violations(graph: Graph, entries: Sequence[_Entry]) -> Iterator[Violation]:
    for number, entry in enumerate(entries):
        where = f"option 'scopes', entry {str(entry)!r}"
        if not entry.taken:
            yield Violation(
                "no node of the scope", where, "a pattern or prefix of node names", repr(entry.pattern),
                hint="`superkernel inspect MODEL --stage graph` shows the names",
            )  # fmt: skip
        elif not entry.own and any(e.scope != entry.scope and e.own & entry.taken for e in entries[:number]):
            takers = [str(e) for e in entries[:number] if e.own & entry.taken]
            yield Violation(
                "all its nodes belong to other scopes already", where, "a node that no entry ahead of it takes",
                f"{_listed(graph, entry.taken)} taken by {', '.join(map(repr, takers))}",
                hint="the first entry that takes a node decides: move the particular ahead of the general",
            )  # fmt: skip


def _listed(graph: Graph, names: frozenset[str]) -> str:
    """Some of the nodes, in the graph's order."""
    ordered = [node.name for node in graph.nodes if node.name in names]
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    verb = "is" if len(ordered) == 1 else "are"
    return f"{', '.join(map(repr, ordered[:_NAMED]))}{more} {verb}"


def _takes(pattern: str, name: str) -> bool:
    if fnmatchcase(name, pattern):
        return True
    rest = name.removeprefix(pattern)
    return rest != name and not rest[0].isalnum()
