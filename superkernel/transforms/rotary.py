"""Rotary position embedding written out: x * cos + rotate_half(x) * sin.

Recognised, for x of rank 4, or 3 as of a batch of one: the sum of two products in any order, with rotate_half a
concatenation of -x[.., h:] and x[.., :h] (slices, or a split in two), and tables of the whole width whose halves are
equal, of which `rope` reads one. Halves are equal where they are constants with the same contents, one value twice in a
concatenation, or came of such values element by element, by a change of shape that keeps the last axis, or by taking
rows. Also recognised: the two halves written out, concat(a * cos - b * sin, b * cos + a * sin), and, for rank 4,
elements behind the turned ones that a concatenation puts back (`rotary_dim`).

Numbers: the same products and sums in the same order, but `rope` may round once where the written form rounds each
product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from superkernel.ir.graph import Graph, Node
from superkernel.ops.views import slice_ranges
from superkernel.transforms.cleanup import perm_of
from superkernel.transforms.editor import Editor

_ELEMENTWISE = frozenset({"cos", "sin", "cast", "neg", "mul", "add", "sub", "div"})
_RANK = 4  # of `rope`
_RANKS = (3, 4)


@dataclass(frozen=True)
class FuseRotary:
    """One pass over x instead of a copy with its halves exchanged."""

    def apply(self, graph: Graph) -> Graph:
        editor = Editor.of(graph)
        tables = _Tables(editor)
        for node in editor.walk(("add", "concat")):
            if node.op == "add":
                _fuse_rotated(editor, tables, node)
            else:
                _fuse_halves(editor, node)
        for node in editor.walk(("concat",)):
            _join_rest(editor, node)
        return editor.finish()


def _fuse_rotated(editor: Editor, tables: _Tables, node: Node) -> None:
    first, second = (editor.inner(value, "mul") for value in node.inputs)
    if first is None or second is None:
        return
    for plain, turned in ((first, second), (second, first)):
        for rotated, sin in _orders(turned):
            x = _rotated(editor, rotated)
            if x is None or x not in plain.inputs or editor.type(x) != editor.type(node.outputs[0]):
                continue
            cos = plain.inputs[1 - plain.inputs.index(x)]
            width = editor.type(x).shape[-1]
            if cos is not None and tables.are_doubled((cos, sin), width):
                _emit(editor, x, [tables.half(value) for value in (cos, sin)], node)
            return


def _orders(product: Node) -> list[tuple[str, str]]:
    """The two inputs of a node, in both orders."""
    left, right = product.inputs
    assert left is not None
    assert right is not None
    return [(left, right), (right, left)]


def _emit(editor: Editor, x: str, tables: Sequence[str | None], node: Node) -> None:
    """`rope` in place of the node; x and tables take the rank that it wants."""
    whole = editor.type(x).shape
    inputs = [x]
    for table in tables:
        if table is None:
            return
        shape = editor.type(table).shape
        wanted = shape if len(shape) in (2, _RANK) else (*(1,) * (_RANK - len(shape)), *shape)
        inputs.append(table if wanted == shape else _reshaped(editor, table, wanted, node))
    if len(whole) == _RANK:
        editor.emit("rope", inputs, {}, node, node.outputs[0])
        return
    inputs[0] = _reshaped(editor, x, (1, *whole), node)
    turned = editor.emit("rope", inputs, {}, node)
    if turned is not None:
        editor.emit("reshape", (turned,), {"shape": whole}, node, node.outputs[0])


def _reshaped(editor: Editor, value: str, shape: tuple[int, ...], near: Node) -> str:
    array = editor.array(value)
    if array is not None:
        return editor.constant(array.reshape(shape), f"{near.name}/table")
    result = editor.emit("reshape", (value,), {"shape": shape}, near)
    assert result is not None
    return result


def _rotated(editor: Editor, value: str) -> str | None:
    """x of rotate_half(x)."""
    node = editor.inner(value, "concat")
    if node is None or len(node.inputs) != 2 or editor.type(value).rank not in _RANKS or not _along_last(editor, node):
        return None
    return _whole(editor, node.inputs[1], _negated(editor, node.inputs[0]))


def _negated(editor: Editor, value: str | None) -> str | None:
    """x of -x or x * -1."""
    node = editor.inner(value, "neg", "mul")
    if node is None or node.op == "neg":
        return None if node is None else node.inputs[0]
    left, right = node.inputs
    if editor.scalar(right) == -1.0:
        return left
    return right if editor.scalar(left) == -1.0 else None


def _along_last(editor: Editor, node: Node) -> bool:
    """True of a concatenation or split along the last axis."""
    rank = editor.type(node.outputs[0]).rank
    return rank > 0 and int(node.attrs["axis"]) % rank == rank - 1  # type: ignore[arg-type]


def _part(editor: Editor, value: str | None) -> tuple[str, range] | None:
    """What a value is a part of, and which elements of its last axis, where it has all of the other axes."""
    node = None if value is None else editor.producer.get(value)
    if node is None or value is None or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    if node.op == "slice":
        shape = editor.type(source).shape
        *others, last = slice_ranges(shape, node.attrs)
        whole = all(taken == range(d) for taken, d in zip(others, shape, strict=False))
        return (source, last) if whole and last.step == 1 else None
    if node.op == "split" and _along_last(editor, node):
        widths = [editor.type(v).shape[-1] for v in node.outputs]
        start = sum(widths[: node.outputs.index(value)])
        return source, range(start, start + editor.type(value).shape[-1])
    return None


def _fuse_halves(editor: Editor, node: Node) -> None:
    """concat(a * cos - b * sin, b * cos + a * sin) with a and b the halves of x."""
    if len(node.inputs) != 2 or editor.type(node.outputs[0]).rank not in _RANKS or not _along_last(editor, node):
        return
    left, right = editor.inner(node.inputs[0], "sub"), editor.inner(node.inputs[1], "add")
    if left is None or right is None:
        return
    products = [editor.inner(value, "mul") for value in (*left.inputs, *right.inputs)]
    if None in products:
        return
    a_cos, b_sin, *others = (p for p in products if p is not None)
    found = [frozenset(p.inputs) for p in others]
    for a, cos in _orders(a_cos):
        for b, sin in _orders(b_sin):
            x = _whole(editor, a, b)
            wanted = [frozenset((b, cos)), frozenset((a, sin))]
            if x is not None and found in (wanted, wanted[::-1]) and _are_rows(editor, (cos, sin), x):
                _emit(editor, x, (cos, sin), node)
                return


def _whole(editor: Editor, first: str | None, second: str | None) -> str | None:
    """The value that two values are the first and the second half of."""
    parts = _part(editor, first), _part(editor, second)
    if parts[0] is None or parts[1] is None or parts[0][0] != parts[1][0]:
        return None
    x = parts[0][0]
    width = editor.type(x).shape[-1]
    halves = range(width // 2), range(width // 2, width)
    return x if width > 0 and width % 2 == 0 and (parts[0][1], parts[1][1]) == halves else None


def _are_rows(editor: Editor, tables: Sequence[str], x: str) -> bool:
    """True of two tables that have an element per pair of x."""
    kinds = [editor.type(table) for table in tables]
    return kinds[0] == kinds[1] and kinds[0].shape[-1:] == (editor.type(x).shape[-1] // 2,)


def _join_rest(editor: Editor, node: Node) -> None:
    """concat(rope(x[.., :r]), x[.., r:]) turns the first r elements of x."""
    if len(node.inputs) != 2 or not _along_last(editor, node):
        return
    turned = editor.inner(node.inputs[0], "rope")
    if turned is None or turned.attrs["interleaved"] or turned.attrs["rotary_dim"]:
        return
    first, rest = _part(editor, turned.inputs[0]), _part(editor, node.inputs[1])
    if first is None or rest is None or first[0] != rest[0]:
        return
    width = editor.type(first[0]).shape[-1]
    count = len(first[1])
    if (first[1], rest[1]) == (range(count), range(count, width)):
        attrs = {**turned.attrs, "rotary_dim": count}
        editor.emit("rope", (first[0], *turned.inputs[1:]), attrs, node, node.outputs[0])


@dataclass
class _Tables:
    """The first halves of tables whose halves are equal, by the name of the table, so that layers share them."""

    editor: Editor
    known: dict[str, str] = field(default_factory=dict)

    def are_doubled(self, values: Sequence[str], width: int) -> bool:
        """True where the halves of each value are known to be equal, and all are of one type."""
        kinds = {self.editor.type(value) for value in values}
        return len(kinds) == 1 and all(self._is_doubled(value, width) for value in values)

    def _is_doubled(self, value: str, width: int) -> bool:
        editor, shape = self.editor, self.editor.type(value).shape
        if value in self.known:
            return True
        if not shape or shape[-1] != width:
            return False
        array = editor.array(value)
        if array is not None:
            return bool(np.array_equal(array[..., : width // 2], array[..., width // 2 :]))
        node = editor.producer.get(value)
        if node is None:
            return False
        if node.op == "concat":
            return len(node.inputs) == 2 and node.inputs[0] == node.inputs[1] and _along_last(editor, node)
        if node.op in _ELEMENTWISE:
            return all(v is not None and (_is_even(editor, v) or self._is_doubled(v, width)) for v in node.inputs)
        source = node.inputs[0]
        return source is not None and _keeps_rows(editor, node) and self._is_doubled(source, width)

    def half(self, value: str) -> str | None:
        """The first half of a doubled value: made as the value is, of halves."""
        if value not in self.known:
            found = self._made(value)
            if found is None:
                return None
            self.known[value] = found
        return self.known[value]

    def _made(self, value: str) -> str | None:
        editor, shape = self.editor, self.editor.type(value).shape
        half = shape[-1] // 2
        array = editor.array(value)
        if array is not None:
            return editor.constant(np.ascontiguousarray(array[..., :half]), f"{value}/half")
        node = editor.producer[value]
        if node.op == "concat":
            return node.inputs[0]
        attrs = dict(node.attrs)
        if node.op in ("reshape", "expand"):
            attrs["shape"] = (*shape[:-1], half)
        if node.op in _ELEMENTWISE:
            inputs = [v if v is None or _is_even(editor, v) else self.half(v) for v in node.inputs]
        else:
            inputs = [self.half(node.inputs[0] or ""), *node.inputs[1:]]
        return None if None in inputs else editor.emit(node.op, inputs, attrs, node)


def _is_even(editor: Editor, value: str) -> bool:
    """True of an operand that has one element for all of a row."""
    return editor.type(value).shape[-1:] in ((), (1,))


def _keeps_rows(editor: Editor, node: Node) -> bool:
    """True where every row of the result along the last axis is a row of the first input."""
    source, result = editor.type(node.inputs[0] or ""), editor.type(node.outputs[0])
    if source.rank == 0 or result.rank == 0 or source.shape[-1] != result.shape[-1]:
        return False
    if node.op in ("reshape", "expand"):
        return True
    if node.op == "transpose":
        return perm_of(node, source.rank)[-1] == source.rank - 1
    if node.op == "gather":
        return int(node.attrs["axis"]) % source.rank != source.rank - 1  # type: ignore[arg-type]
    return node.op == "slice" and slice_ranges(source.shape, node.attrs)[-1] == range(source.shape[-1])
