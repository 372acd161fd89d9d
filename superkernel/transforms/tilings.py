"""Tiling sinking: tilings that depend on what the graph computes become operators of their own.

Model: a grouped product's pieces of work follow from its counts, which are data. This pass puts a `tile_groups` ahead
of each such product, shared where cuts are equal; what computes it is then decided as for any operator: on the
accelerator an aicpu hart, beside the cores, told by words in memory when the counts are there; on the host a worker.

Ragged attention is divided likewise, by a `tile_lengths`.

`TilingCut` says how fine: it depends on the target, on shapes and on nothing else. `slots`: shares of attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node
from superkernel.transforms.editor import Editor


class TilingCut(Protocol):
    """How a target cuts a product of x by w."""

    def __call__(self, x: TensorType, w: TensorType) -> tuple[int, int, int]:
        """Rows of a tile, blocks of columns, shares of the units."""
        ...


@dataclass(frozen=True)
class SinkTilings:
    """The pass for one target."""

    cut: TilingCut
    slots: int = 1

    def apply(self, graph: Graph) -> Graph:
        if graph.ops.isdisjoint(("grouped_matmul", "attention")):
            return graph
        editor = Editor.of(graph)
        tables: dict[tuple[str, int], str] = {}
        made: dict[tuple[str, int, tuple[int, int, int]], str] = {}
        for node in editor.walk(("grouped_matmul", "attention")):
            if node.op == "grouped_matmul" and (len(node.inputs) < 4 or node.inputs[3] is None):
                self._sink(editor, node, made)
            elif node.op == "attention" and node.attrs.get("ragged") and (len(node.inputs) < 6 or not node.inputs[5]):
                self._sink_lengths(editor, node, tables)
        return editor.finish()

    def _sink(self, editor: Editor, node: Node, made: dict[tuple[str, int, tuple[int, int, int]], str]) -> None:
        x, w, counts = node.inputs[:3]
        assert x is not None
        assert w is not None
        assert counts is not None
        kinds = editor.type(x), editor.type(w)
        cut = self.cut(*kinds)
        rows = kinds[0].shape[0]
        table = made.get((counts, rows, cut))
        if table is None:
            tile, columns, slots = cut
            attrs = {"rows": rows, "tile": tile, "columns": columns, "slots": slots}
            table = editor.emit("tile_groups", (counts,), attrs, node)
            assert table is not None, node.name
            made[counts, rows, cut] = table
        editor.set_inputs(node, (x, w, counts, table), {**node.attrs, "cut": cut})

    def _sink_lengths(self, editor: Editor, node: Node, tables: dict[tuple[str, int], str]) -> None:
        keys, lengths = node.inputs[1], node.inputs[4]
        assert keys is not None
        assert lengths is not None
        count = editor.type(keys).shape[2]
        table = tables.get((lengths, count))
        if table is None:
            table = editor.emit("tile_lengths", (lengths,), {"keys": count, "slots": self.slots}, node)
            assert table is not None, node.name
            tables[lengths, count] = table
        editor.set_inputs(node, (*node.inputs[:5], table))
