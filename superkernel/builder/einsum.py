"""Einsum as products of two operands at a time: transposes, reshapes and one matmul each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol, TypeVar

from superkernel.core.errors import FileFormatError
from superkernel.core.tensor import TensorType


class _Operand(Protocol):
    """What is asked of a handle."""

    @property
    def type(self) -> TensorType:
        """Element type and shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Static."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""


T = TypeVar("T", bound=_Operand)


class Writer(Protocol[T]):
    """What writes the operators; `where` is their place in errors."""

    where: str

    def emit(self, op: str, *inputs: T, **attrs: Any) -> T:
        """An operator of the table with one output."""

    def reshape(self, x: T, shape: Sequence[int]) -> T:
        """`x` in another shape."""

    def transpose(self, x: T, perm: Sequence[int]) -> T:
        """`x` with permuted axes."""

    def expand(self, x: T, shape: Sequence[int]) -> T:
        """`x` broadcast to `shape`."""


_SPARE = [chr(c) for c in range(0x3B1, 0x3B1 + 24)]  # labels for the dimensions that an ellipsis stands for


def einsum(call: Writer[T], equation: str, operands: Sequence[T]) -> T:
    """The operators of one Einstein sum. Raises FileFormatError where terms and operands do not fit."""
    labels, result = _parse(call, equation.replace(" ", ""), operands)
    pairs = [_diagonal(call, x, names) for x, names in zip(operands, labels, strict=True)]
    while len(pairs) > 1:
        (a, left), (b, right) = pairs[:2]
        needed = set(result).union(*(names for _, names in pairs[2:]))
        pairs[:2] = [_contract(call, a, left, b, right, needed)]
    x, names = pairs[0]
    x, names = _sum_out(call, x, names, set(result))
    return call.emit("transpose", x, perm=[names.index(c) for c in result]) if result else call.emit("identity", x)


def _parse(call: Writer[T], equation: str, operands: Sequence[T]) -> tuple[list[str], str]:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise FileFormatError("one term per operand", location=call.where, expected=len(operands), found=equation)
    hidden = ""
    labels = []
    for term, x in zip(terms, operands, strict=True):
        count = x.rank - len(term.replace("...", ""))
        if count < 0 or (count and "..." not in term):
            raise FileFormatError(
                "the term has another rank than the operand", location=call.where, found=f"{term!r} of {x.type}"
            )
        spare = "".join(_SPARE[:count][::-1])  # an ellipsis aligns at its last dimension
        hidden = spare if len(spare) > len(hidden) else hidden
        labels.append(term.replace("...", spare))
    if not arrow:
        every = "".join(labels)
        right = "..." + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in hidden))
    return labels, right.replace("...", hidden)


def _diagonal(call: Writer[T], x: T, names: str) -> tuple[T, str]:
    """Repeated labels within one term become the diagonal: every (n+1)-th element of the flattened axes."""
    for c in dict.fromkeys(names):
        while names.count(c) > 1:
            i = names.index(c)
            j = names.index(c, i + 1)
            order = [k for k in range(len(names)) if k not in (i, j)] + [i, j]
            n = x.shape[i]
            x = call.transpose(x, order)
            rest = x.shape[:-2]
            x = call.reshape(x, (*rest, n * n))
            x = call.emit("slice", x, starts=[0], ends=[n * n], axes=[len(rest)], steps=[n + 1])
            names = "".join(names[k] for k in order[:-1])
    return x, names


def _sum_out(call: Writer[T], x: T, names: str, keep: set[str]) -> tuple[T, str]:
    gone = [i for i, c in enumerate(names) if c not in keep]
    if not gone:
        return x, names
    return call.emit("reduce_sum", x, axes=gone, keepdims=False), "".join(c for c in names if c in keep)


def _contract(call: Writer[T], a: T, left: str, b: T, right: str, needed: set[str]) -> tuple[T, str]:
    """a and b into one operand: batch labels in both and needed, summed labels in both and not needed."""
    a, left = _sum_out(call, a, left, needed | set(right))
    b, right = _sum_out(call, b, right, needed | set(left))
    size = {**dict(zip(left, a.shape, strict=True))}
    for c, extent in zip(right, b.shape, strict=True):
        size[c] = extent if size.get(c, 1) == 1 else size[c]
    batch = [c for c in left if c in right and c in needed]
    inner = [c for c in left if c in right and c not in needed]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]

    def matrix(x: T, names: str, outer: list[str], last: list[str]) -> T:
        order = [*batch, *outer, *last]
        x = call.transpose(x, [names.index(c) for c in order])
        x = call.expand(x, [size[c] for c in order])
        return call.reshape(
            x, (prod(size[c] for c in batch), prod(size[c] for c in outer), prod(size[c] for c in last))
        )

    product = call.emit("matmul", matrix(a, left, rows, inner), matrix(b, right, inner, columns))
    order = [*batch, *rows, *columns]
    return call.reshape(product, [size[c] for c in order]), "".join(order)
