"""Nodes that change nothing, and chains of re-indexing nodes that are one."""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.ir.graph import Graph, Node
from superkernel.transforms.base import NodePass
from superkernel.transforms.editor import Editor

_MAY_BE_IDENTITIES = frozenset(
    ("identity", "cast", "reshape", "expand", "concat", "slice", "tile", "pad", "transpose", "mul", "div")
)


@dataclass(frozen=True)
class RemoveIdentities:
    """Only what is the identity on every bit: x + 0 is not (it turns -0 into 0)."""

    def apply(self, graph: Graph) -> Graph:
        editor = Editor.of(graph)
        for node in editor.walk(_MAY_BE_IDENTITIES):
            source = _same_as(editor, node)
            if source is not None:
                editor.alias(node.outputs[0], source)
        return editor.finish()


def _same_as(editor: Editor, node: Node) -> str | None:
    """The input that the node's only output always equals, or None."""
    first = node.inputs[0] if node.inputs else None
    if first is None or len(node.outputs) != 1:
        return None
    same_type = editor.type(first) == editor.type(node.outputs[0])
    if node.op in ("identity", "cast", "reshape", "expand"):
        return first if same_type else None
    if node.op == "concat" and len(node.inputs) == 1:
        return first
    if node.op in ("slice", "tile", "pad"):
        moves = (
            (node.op == "slice" and any(s < 0 for s in node.attrs["steps"] or ()))  # type: ignore[union-attr, operator]
            or (node.op == "pad" and any(node.attrs["pads"]))  # type: ignore[arg-type]
        )
        return first if same_type and not moves else None
    if node.op == "transpose":
        return first if perm_of(node, editor.type(first).rank) == tuple(range(editor.type(first).rank)) else None
    if node.op in ("mul", "div") and editor.scalar(node.inputs[1]) == 1.0 and same_type:
        return first
    if node.op == "mul" and editor.scalar(first) == 1.0:
        other = node.inputs[1]
        return other if other is not None and editor.type(other) == editor.type(node.outputs[0]) else None
    return None


def perm_of(node: Node, rank: int) -> tuple[int, ...]:
    """A transpose's permutation, non-negative; an empty one reverses the axes."""
    perm: tuple[int, ...] = tuple(node.attrs["perm"] or ())  # type: ignore[arg-type]
    return tuple(p % rank for p in perm) if perm else tuple(range(rank))[::-1]


def _producer(editor: Editor, value: str | None, op: str) -> Node | None:
    node = None if value is None else editor.producer.get(value)
    return node if node is not None and node.op == op else None


def _merge_reshape(editor: Editor, node: Node) -> None:
    inner = _producer(editor, node.inputs[0], "reshape")
    if inner is not None:
        editor.set_inputs(node, inner.inputs, {"shape": editor.type(node.outputs[0]).shape})


def _merge_transpose(editor: Editor, node: Node) -> None:
    rank = editor.type(node.outputs[0]).rank
    perm = perm_of(node, rank)
    inner = _producer(editor, node.inputs[0], "transpose")
    if inner is not None:
        first = perm_of(inner, rank)
        perm = tuple(first[p] for p in perm)
        node = editor.set_inputs(node, inner.inputs, {**node.attrs, "perm": perm})
    source = node.inputs[0]
    assert source is not None
    shape = editor.type(source).shape
    moved = [p for p in perm if shape[p] != 1]
    if moved == sorted(moved) and perm != tuple(range(rank)):
        output = node.outputs[0]
        if editor.emit("reshape", (source,), {"shape": editor.type(output).shape}, node, output) is not None:
            _merge_reshape(editor, editor.producer[output])


def _fold_into_matmul(editor: Editor, node: Node) -> None:
    """A transpose of an operand's last two axes becomes the flag, also where others read the transposed value."""
    for slot, flag in enumerate(("trans_a", "trans_b")):
        inner = _producer(editor, node.inputs[slot], "transpose")
        if inner is None:
            continue
        rank = editor.type(inner.outputs[0]).rank
        if rank >= 2 and perm_of(inner, rank) == (*range(rank - 2), rank - 1, rank - 2):
            inputs = list(node.inputs)
            inputs[slot] = inner.inputs[0]
            node = editor.set_inputs(node, inputs, {**node.attrs, flag: not node.attrs[flag]})


class MergeReindexing(NodePass):
    """reshape of reshape, transpose of transpose, a transpose that moves only axes of size one, transpose into a
    product's flags."""

    rules = ({"reshape": _merge_reshape, "transpose": _merge_transpose, "matmul": _fold_into_matmul},)
