"""Vector rearrangements that several kernels need: square transposition, lane selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from llvmlite import ir

from superkernel.codegen.host.builder import I32, I64, Index, KernelBuilder

T = TypeVar("T")
Join = Callable[[T, T, list[int], list[int]], T]


def permute(kb: KernelBuilder, a: ir.Value, b: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """The selected lanes of a (numbers from 0) and b (numbers from the lane count of a)."""
    return kb.b.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def resize(kb: KernelBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """The first `lanes` lanes, or the value with undefined lanes added; scalars count as one lane."""
    if not isinstance(value.type, ir.VectorType):
        if lanes == 1:
            return value
        return kb.b.insert_element(
            ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(I32, 0)
        )
    have = value.type.count
    if have == lanes:
        return value
    if lanes == 1:
        return kb.b.extract_element(value, ir.Constant(I32, 0))
    return kb.pick(value, [i if i < have else 0 for i in range(lanes)])  # llvmlite takes no undefined lane


def transpose(kb: KernelBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """A square of n vectors of n lanes (n a power of two), transposed in log2(n) rounds of two-source shuffles."""
    n = len(rows)
    values = list(rows)
    width = 1
    while width < n:
        low = [i if i // width % 2 == 0 else n + i - width for i in range(n)]
        high = [i + width if i // width % 2 == 0 else n + i for i in range(n)]
        following = list(values)
        for i in range(n):
            if i // width % 2 == 0:
                a, b = values[i], values[i + width]
                following[i], following[i + width] = permute(kb, a, b, low), permute(kb, a, b, high)
        values, width = following, width * 2
    return values


def lane_sums(kb: KernelBuilder, lanes: int, rows: Callable[[int], Sequence[ir.Value]]) -> list[ir.Value]:
    """The sums over the lanes of `lanes` vectors, that of number i in lane i; of several sets of vectors at a time:
    `rows(i)` gives number i of each. Two vectors become one, of the halves of both added up, until one is left."""

    def combined(first: int, count: int, leaf: Callable[[int], list[T]], join: Join[T]) -> list[T]:
        if count == 1:
            return leaf(first)
        left, right = (combined(at, count // 2, leaf, join) for at in (first, first + count // 2))
        low = _first_halves(lanes, 2 * lanes // count)
        high = [i + lanes // count for i in low]
        return [join(a, b, low, high) for a, b in zip(left, right, strict=True)]

    # Where each vector's sum would come to lie, were they taken in order.
    (order,) = combined(0, lanes, lambda i: [[i] * lanes], lambda a, b, low, _: [[*a, *b][i] for i in low])
    number = {vector: lane for lane, vector in enumerate(order)}

    def add(a: ir.Value, b: ir.Value, low: list[int], high: list[int]) -> ir.Value:
        return kb.b.fadd(permute(kb, a, b, low), permute(kb, a, b, high))

    return combined(0, lanes, lambda i: list(rows(number[i])), add)


def _first_halves(lanes: int, span: int) -> list[int]:
    """Lanes of two vectors that are first in spans of so many; by quarters of vectors where these hold whole spans, as
    shuffles that cross them take longer."""
    unit = min(4, lanes) if span <= 4 else lanes
    starts = (begin + own for at in range(0, lanes, unit) for begin in (at, lanes + at) for own in range(0, unit, span))
    return [start + i for start in starts for i in range(span // 2)]


def larger(kb: KernelBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """a where a > b, else b: one instruction on most CPUs, unlike a maximum that must propagate NaN from both sides."""
    return kb.b.select(kb.b.fcmp_ordered(">", a, b), a, b)


def lane_mask(kb: KernelBuilder, count: Index, lanes: int) -> ir.Value:
    """i1 per lane: lane number < count (count may be negative or beyond the lanes)."""
    numbers = ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))
    return kb.b.icmp_signed("<", numbers, kb.splat(kb.i64(count), lanes))
