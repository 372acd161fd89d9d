"""What a pass is, and the two kinds that most are: rules for single nodes, and rules for patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from superkernel.ir.graph import Graph, Node
from superkernel.transforms.editor import Editor
from superkernel.transforms.pattern import Pattern, Rewrite, rewrite_all

NodeRule = Callable[[Editor, Node], object]


class Pass(Protocol):
    """graph -> graph. The result computes the same outputs under the same names from the same inputs and states; a
    pass that finds nothing to do returns the very graph it got. Options are fields of a frozen dataclass."""

    def apply(self, graph: Graph) -> Graph:
        """The rewritten graph."""
        ...


class NodePass:
    """Walks through the nodes, once per entry of `rules` (operator -> what is done to its nodes)."""

    rules: ClassVar[tuple[Mapping[str, NodeRule], ...]]

    def apply(self, graph: Graph) -> Graph:
        if all(graph.ops.isdisjoint(rules) for rules in self.rules):
            return graph
        editor = Editor.of(graph)
        for rules in self.rules:
            for node in editor.walk(rules):
                rules[node.op](editor, node)
        return editor.finish()


class PatternPass:
    """Applies rules for patterns until none applies."""

    rules: ClassVar[tuple[tuple[Pattern, Rewrite], ...]]

    def apply(self, graph: Graph) -> Graph:
        if not any(pattern.begins_at(op) for pattern, _ in self.rules for op in graph.ops):
            return graph
        editor = Editor.of(graph)
        rewrite_all(editor, self.rules)
        return editor.finish()
