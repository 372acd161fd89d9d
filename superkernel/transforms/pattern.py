"""Patterns over the expression that computes a value.

Model: a pattern is a tree; matching binds names to values and collects the nodes inside. A name that occurs twice must
bind the same value, so patterns over shared values (x * sigmoid(x)) are trees too. Operands of commutative operators
match in either order. A match counts only if it is closed: no value inside, other than the root's, is read from
outside, is an output or updates a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superkernel.core.frozen import frozen
from superkernel.ir.graph import Node
from superkernel.ops.table import op_table
from superkernel.transforms.editor import Editor


@frozen()
class Match:
    """Values by name, and the nodes inside by name."""

    values: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def get(self, name: str) -> str | None:
        """A bound value, or None."""
        return self.values.get(name)


class Pattern:
    """Base of the pattern classes."""

    def find(self, editor: Editor, value: str, match: Match) -> Iterator[Match]:
        """Every way in which the pattern matches the value, given what is bound already."""
        raise NotImplementedError

    def begins_at(self, op: str) -> bool:
        """Whether it may match what an operator computes."""
        return True


@dataclass(frozen=True)
class Var(Pattern):
    """Any value, or with `constant` any constant."""

    name: str
    constant: bool = False

    def find(self, editor: Editor, value: str, match: Match) -> Iterator[Match]:
        bound = match.values.get(self.name)
        if bound == value or (bound is None and (not self.constant or value in editor.constants)):
            yield match if bound is not None else Match({**match.values, self.name: value}, match.nodes)


@dataclass(frozen=True)
class Number(Pattern):
    """A constant of one element: near `value`, or any with `name` to bind it."""

    value: float | None = None
    name: str = ""
    rtol: float = 1e-6

    def find(self, editor: Editor, value: str, match: Match) -> Iterator[Match]:
        found = editor.scalar(value)
        if found is None or (self.value is not None and not np.isclose(found, self.value, rtol=self.rtol, atol=0.0)):
            return
        yield Match({**match.values, self.name: value}, match.nodes) if self.name else match


def near(value: float) -> Number:
    """An irrational constant: exporters write sqrt(2/pi) and its kin with as few as four digits, or in f16."""
    return Number(value, rtol=1e-3)


@dataclass(frozen=True)
class Op(Pattern):
    """One operator (or one of several) over patterns for its first inputs; further inputs must be absent."""

    ops: str | tuple[str, ...]
    args: tuple[Pattern, ...]
    where: Callable[[Node, Editor], bool] | None = None
    name: str = ""

    def begins_at(self, op: str) -> bool:
        return op == self.ops if isinstance(self.ops, str) else op in self.ops

    def find(self, editor: Editor, value: str, match: Match) -> Iterator[Match]:
        node = editor.producer.get(value)
        wanted = (self.ops,) if isinstance(self.ops, str) else self.ops
        if node is None or node.op not in wanted or len(node.outputs) != 1:
            return
        if any(v is not None for v in node.inputs[len(self.args) :]) or len(node.inputs) < len(self.args):
            return
        if self.where is not None and not self.where(node, editor):
            return
        inside = Match(match.values, {**match.nodes, node.name: node})
        if self.name:
            if inside.values.get(self.name, value) != value:
                return
            inside = Match({**inside.values, self.name: value}, inside.nodes)
        orders = [self.args]
        if len(self.args) == 2 and op_table()[node.op].commutative:
            orders.append(self.args[::-1])
        for order in orders:
            yield from self._arguments(editor, node, order, 0, inside)

    def _arguments(
        self, editor: Editor, node: Node, order: tuple[Pattern, ...], slot: int, match: Match
    ) -> Iterator[Match]:
        if slot == len(order):
            yield match
            return
        value = node.inputs[slot]
        if value is not None:
            for partial in order[slot].find(editor, value, match):
                yield from self._arguments(editor, node, order, slot + 1, partial)


@dataclass(frozen=True)
class Alt(Pattern):
    """Any of several patterns."""

    options: tuple[Pattern, ...]

    def begins_at(self, op: str) -> bool:
        return any(option.begins_at(op) for option in self.options)

    def find(self, editor: Editor, value: str, match: Match) -> Iterator[Match]:
        for option in self.options:
            yield from option.find(editor, value, match)


def op(
    ops: str | tuple[str, ...], *args: Pattern, where: Callable[[Node, Editor], bool] | None = None, name: str = ""
) -> Op:
    """Short for Op."""
    return Op(ops, args, where, name)


def alt(*options: Pattern) -> Alt:
    """Short for Alt."""
    return Alt(options)


def product(a: Pattern, b: Pattern, c: Pattern) -> Alt:
    """a * b * c in any association and order."""
    return alt(op("mul", op("mul", a, b), c), op("mul", op("mul", a, c), b), op("mul", op("mul", b, c), a))


def closed(editor: Editor, match: Match, root: Node) -> bool:
    """True where nothing but the root's value is needed outside the match."""
    inside = match.nodes.keys()
    for name, node in match.nodes.items():
        if name == root.name:
            continue
        for value in node.outputs:
            if editor.is_kept(value) or not editor.readers.get(value, {}).keys() <= inside:
                return False
    return True


def first_match(editor: Editor, pattern: Pattern, root: Node) -> Match | None:
    """The first closed match at the root's value."""
    for match in pattern.find(editor, root.outputs[0], Match()):
        if closed(editor, match, root):
            return match
    return None


Rewrite = Callable[[Editor, Node, Match], bool]


def rewrite_all(editor: Editor, rules: tuple[tuple[Pattern, Rewrite], ...]) -> None:
    """Applies the rules at every node, last nodes first (so that the largest expression wins), until none applies."""
    by_op: dict[str, list[tuple[Pattern, Rewrite]]] = {}
    progress: Any = True
    while progress:
        progress = False
        for node in editor.walk(backwards=True):
            if len(node.outputs) != 1:
                continue
            if node.op not in by_op:
                by_op[node.op] = [rule for rule in rules if rule[0].begins_at(node.op)]
            for pattern, rewrite in by_op[node.op]:
                match = first_match(editor, pattern, node)
                if match is not None and rewrite(editor, node, match):
                    progress = True
                    break
