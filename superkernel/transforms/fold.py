"""Constant folding: nodes that read only constants, by the operators' NumPy references, and nodes whose results have
no elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.ir.graph import Graph
from superkernel.reference.folding import fold_node
from superkernel.transforms.editor import Editor


@dataclass(frozen=True)
class FoldConstants:
    """A result larger than what it is computed from is only kept up to `grow_bytes_max`: an expanded constant or a
    dequantised weight costs more to read from memory than to compute."""

    grow_bytes_max: int = 1 << 16
    kept: frozenset[str] = frozenset()
    """Operators that stay."""

    def apply(self, graph: Graph) -> Graph:
        editor = Editor.of(graph)
        types, constants = editor.types, editor.constants
        for node in editor.walk():
            if types[node.outputs[0]].size and not all(v is None or v in constants for v in node.inputs):
                continue  # nearly all nodes
            kinds = tuple(types[out] for out in node.outputs)
            if all(kind.size == 0 for kind in kinds):
                editor.fold(node, tuple(np.empty(kind.shape, kind.dtype.numpy) for kind in kinds))
                continue
            if node.op in self.kept or not all(value is None or value in constants for value in node.inputs):
                continue
            read = sum(editor.type(value).nbytes for value in node.inputs if value is not None)
            if sum(kind.nbytes for kind in kinds) > max(read, self.grow_bytes_max):
                continue
            operands = [None if value is None else editor.constants[value] for value in node.inputs]
            editor.fold(node, fold_node(node.op, operands, node.attrs, kinds))
        return editor.finish()
