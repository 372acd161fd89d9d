"""Common subexpressions: the same operator on the same inputs is computed once; equal small constants become one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from superkernel.ir.graph import Graph
from superkernel.transforms.editor import Editor


@dataclass(frozen=True)
class ShareSubexpressions:
    """Nodes are merged in one scope, stream and kernel type. Constants above `constant_bytes_max` are left alone."""

    constant_bytes_max: int = 4096

    def apply(self, graph: Graph) -> Graph:
        editor = Editor.of(graph)
        self._share_constants(editor)
        seen: dict[Hashable, tuple[str, ...]] = {}
        for node in editor.walk():
            attrs = str(sorted((k, v) for k, v in node.attrs.items() if v is not None)) if node.attrs else ""
            key = (node.op, node.inputs, attrs, node.scope, node.stream, node.kernel_type)
            earlier = seen.setdefault(key, node.outputs)
            if earlier != node.outputs and all(out not in editor.outputs for out in node.outputs):
                for mine, theirs in zip(node.outputs, earlier, strict=True):
                    if editor.readers.get(mine) or editor.is_kept(mine):
                        editor.alias(mine, theirs)
        return editor.finish()

    def _share_constants(self, editor: Editor) -> None:
        seen: dict[Hashable, str] = {}
        for name, array in list(editor.constants.items()):
            if array.nbytes > self.constant_bytes_max or name in editor.outputs:
                continue
            first = seen.setdefault((editor.type(name), array.tobytes()), name)
            if first == name:
                continue
            for reader in list(editor.readers.get(name, {})):
                node = editor.nodes[reader]
                editor.set_inputs(node, [first if v == name else v for v in node.inputs])
