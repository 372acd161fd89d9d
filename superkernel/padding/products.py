"""Rules of products, attention and rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from superkernel.ops.common import get
from superkernel.padding.guards import Fill, Guard
from superkernel.padding.padded import (
    PaddedNode,
    PaddedResult,
    PaddedValue,
    apart_shape,
    broadcast_places,
    broadcast_result,
    guard,
    refuse,
    rest_whole,
    whole_axes,
    whole_operands,
)

_SUMS = "adds up products along an axis"


def product(step: PaddedNode) -> PaddedResult:
    """matmul, gemm, matmul_integer: rows of a, columns of b."""
    step.same_attrs()
    a, b = step.input(0), step.input(1)
    swapped = [name in step.attrs and get(step.attrs, name, bool) for name in ("trans_a", "trans_b")]
    row, inner_a = (-1, -2) if swapped[0] else (-2, -1)
    column, inner_b = (-2, -1) if swapped[1] else (-1, -2)
    summed = (inner_a if a.rank > 1 else 0) % a.rank, (inner_b if b.rank > 1 else 0) % b.rank
    guards: list[Guard] = []
    for index, (pair, axis) in enumerate(zip((a, b), summed, strict=True)):
        if step.definition.name == "matmul_integer":  # its zero is the zero point
            whole_axes(pair, [axis], _SUMS)
        elif pair.zero != axis:
            guards += guard(step, index, axis, Fill.ZERO, _SUMS)
        elif not pair.is_unmoved(axis):
            whole_axes(pair, [axis], _SUMS)
    kind, padded = step.outputs[0].shape, step.padded_outputs[0].shape
    ends = [*([a.places[row]] if a.rank > 1 else []), *([b.places[column]] if b.rank > 1 else [])]
    batch = len(kind) - len(ends)
    factors = [pair.axes(*range(max(0, pair.rank - 2))) for pair in (a, b)]
    product = PaddedValue(kind, padded, (*broadcast_places(factors, kind[:batch], padded[:batch]), *ends))
    if step.definition.name == "gemm":
        return replace(broadcast_result(step, [product, step.optional(2)]), guards=tuple(guards))
    for index, zero in enumerate(step.inputs[2:]):
        if zero is not None and not zero.is_single:
            whole_axes(zero, range(zero.rank), "has zero points along an axis")
            whole_axes(step.input(index), range(step.input(index).rank), "has zero points along an axis")
    return PaddedResult([product.places], tuple(guards))


def rows(step: PaddedNode) -> PaddedResult:
    """block_matmul: rows of the first factor."""
    step.same_attrs()
    rest_whole(step)
    x = step.input(0)
    return apart_shape(step, x.rank - 1, _SUMS)


def attention(step: PaddedNode) -> PaddedResult:
    """Queries for themselves; keys behind the end are hidden, and their values made 0."""
    q, k, v = (step.input(i) for i in range(3))
    mask, length = step.optional(3), step.optional(4)
    if get(step.attrs, "ragged", bool) or step.optional(5) is not None:
        return whole_operands(step)
    step.same_attrs()
    for pair in (q, k):
        whole_axes(pair, [1, 3], "adds up products over an axis of heads")
    whole_axes(v, [1], "shares an axis of heads")
    batch = broadcast_places([q.axes(0), k.axes(0), v.axes(0)], q.shape[:1], q.padded[:1])
    if length is not None and not length.is_single and length.places != batch:
        refuse("its lengths are padded in other places than its batch")
    guards: tuple[Guard, ...] = ()
    causal = get(step.attrs, "causal", bool)
    if k.is_whole(2) and v.is_whole(2):
        if causal:
            whole_axes(q, [2], "lets a query see keys by its distance from the last one")
    else:
        if not (k.is_unmoved(2) and v.is_unmoved(2)):
            whole_axes(k, [2], "lets each query see all keys")
            whole_axes(v, [2], "lets each query see all keys")
        ahead = k.shape[2] - q.shape[2], k.padded[2] - q.padded[2]
        if causal and (length is not None or not q.is_unmoved(2) or ahead[0] != ahead[1]):
            found = f"{k.shape[2]} padded to {k.padded[2]}"
            refuse("it lets a query see keys by its distance from the last one", "as many keys behind it", found)
        hidden = () if causal else (Guard(3, -1, k.padded[2], k.shape[2], Fill.LEAST),)
        guards = (*guard(step, 2, 2, Fill.ZERO, "mixes values"), *hidden)
    if mask is not None:
        scores = PaddedValue(
            (*q.shape[:3], k.shape[2]), (*q.padded[:3], k.padded[2]), (batch[0], q.places[1], q.places[2], k.places[2])
        )
        broadcast_places([scores, mask], scores.shape, scores.padded)
    return PaddedResult([(batch[0], q.places[1], q.places[2], v.places[3])], guards)


def rope(step: PaddedNode) -> PaddedResult:
    """Rows for themselves, by their positions."""
    step.same_attrs()
    x, position = step.input(0), step.optional(3)
    tables = [step.input(1), step.input(2)]
    whole_axes(x, [3], "turns pairs of elements of an axis")
    if position is None:
        for table in tables:
            whole_axes(table, [-1], "turns pairs of elements of an axis")
        rows = [pair.axes(*range(pair.rank - 1)) for pair in (x, *tables)]
        return PaddedResult([(*broadcast_places(rows, x.shape[:3], x.padded[:3]), x.places[3])])
    for table in tables:
        whole_axes(table, [0, 1], "looks up elements of an axis by an index that may be in the padding")
    if position.rank < 2 and not x.is_unmoved(2):
        whole_axes(x, [2], "counts positions along an axis")
    if not position.is_single and position.places != tuple(x.places[axis] for axis in (0, 2)[: position.rank]):
        refuse("its positions are padded in other places than its rows")
    return PaddedResult([x.places])
