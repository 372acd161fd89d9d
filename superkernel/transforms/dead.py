"""Dead code: nodes whose values nobody needs."""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.ir.graph import Graph


@dataclass(frozen=True)
class RemoveDead:
    """Inputs and states always stay: they are the graph's signature. Constants go where `constants` says so."""

    constants: bool = True

    def apply(self, graph: Graph) -> Graph:
        needed: set[str | None] = {*graph.outputs, *graph.updates.values()}
        kept = []
        for node in reversed(graph.nodes):
            if not needed.isdisjoint(node.outputs):
                kept.append(node)
                needed.update(node.inputs)
        constants = {k: v for k, v in graph.constants.items() if k in needed or not self.constants}
        if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
            return graph
        return graph.rebuilt(kept[::-1], constants=constants)
