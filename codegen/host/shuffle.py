"""Vector rearrangements that several kernels need: square transposition, lane selection."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from superkernel.codegen.host.builder import I32, I64, Index, KernelBuilder


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


def larger(kb: KernelBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """a where a > b, else b: one instruction on most CPUs, unlike a maximum that must propagate NaN from both sides."""
    return kb.b.select(kb.b.fcmp_ordered(">", a, b), a, b)


def lane_mask(kb: KernelBuilder, count: Index, lanes: int) -> ir.Value:
    """i1 per lane: lane number < count (count may be negative or beyond the lanes)."""
    numbers = ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))
    return kb.b.icmp_signed("<", numbers, kb.splat(kb.i64(count), lanes))
