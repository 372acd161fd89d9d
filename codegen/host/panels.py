"""Copies of the right factor of a product into a panel in scratch: element (k, column) at panel[k * width + column].

Three ways, by the strides of the source: contiguous columns are copied as vectors, contiguous depth is transposed in
registers, square by square, anything else is copied element by element. All convert to the accumulator's type.

Invariants: nothing beyond the last column or depth index is read; lanes of the panel beyond the last column hold zeros
or repeat the last column (their results are never stored).
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.host.builder import I8, Index, KernelBuilder
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.gemm_core import Tile, zero
from superkernel.codegen.host.shuffle import resize, transpose
from superkernel.core.dtypes import DType
from superkernel.scheduler.families.matmul_form import Factor


def copy_panel(
    kb: KernelBuilder,
    tile: Tile,
    base: ir.Value,
    source: Factor,
    depth: int,
    columns: int,
    first: Index,
    panel: ir.Value,
    zeros: list[ir.Value] | None,
) -> None:
    """Columns [first, first + tile.columns) of the source matrix at `base`, at most up to `columns`, minus the zero
    points."""

    def rows(start: Index, width: int) -> None:
        with kb.loop(0, depth, name="k") as k:
            at = kb.add(kb.mul(k, source.depth), start)
            for v in range(tile.vectors):
                lanes = max(0, min(tile.lanes, width - v * tile.lanes))
                to = kb.add(kb.mul(k, tile.columns), v * tile.lanes)
                kb.store(zero(tile.acc, tile.lanes), panel, to, tile.acc) if lanes < tile.lanes else None
                if lanes:
                    value = kb.load(base, kb.add(at, v * tile.lanes), source.dtype, lanes)
                    kb.store(convert(kb, value, source.dtype, tile.acc), panel, to, tile.acc)

    if source.line == 1:
        _columns(kb, tile.columns, columns, first, rows)
    elif source.depth == 1 and tile.lanes > 1:
        copy_transposed(kb, tile, base, source.dtype, source.line, depth, columns, first, panel)
    else:
        with kb.loop(0, depth, name="k") as k, kb.loop(0, tile.columns, name="column") as column:
            from_column = kb.minimum(kb.add(first, column), columns - 1)
            at = kb.add(kb.mul(k, source.depth), kb.mul(from_column, source.line))
            value = convert(kb, kb.load(base, at, source.dtype), source.dtype, tile.acc)
            kb.store(value, panel, kb.add(kb.mul(k, tile.columns), column), tile.acc)
    if zeros is None:
        return
    with kb.loop(0, depth, name="k") as k:
        for v, zero_point in enumerate(zeros):
            at = kb.add(kb.mul(k, tile.columns), v * tile.lanes)
            kb.store(kb.b.sub(kb.load(panel, at, tile.acc, tile.lanes), zero_point), panel, at, tile.acc)


def _columns(kb: KernelBuilder, width: int, columns: int, first: Index, rows: Callable[[Index, int], None]) -> None:
    """`rows(first, count)`, where `count` is `width` or what is left of all columns."""
    tail = columns % width
    if tail == 0:
        rows(first, width)
    elif isinstance(first, int):
        rows(first, min(width, columns - first))
    elif columns < width:
        rows(0, columns)
    else:
        with kb.b.if_else(kb.compare("<=", first, columns - width)) as (then, otherwise):
            with then:
                rows(first, width)
            with otherwise:
                rows(columns - tail, tail)


def copy_transposed(
    kb: KernelBuilder,
    tile: Tile,
    base: ir.Value,
    dtype: DType,
    line: Index,
    depth: int,
    limit: Index,
    first: Index,
    panel: ir.Value,
    ahead: int = 0,
) -> None:
    """As `copy_panel` for a source whose depth is contiguous: column c at base[c * line]. Columns from `limit` on
    repeat the last one. `ahead`: fetch the cache lines of the columns that many further on (for sources that are
    streamed from memory)."""
    lanes = tile.lanes
    stop = kb.minimum(kb.sub(limit, first), tile.columns)
    with kb.loop(0, stop, lanes, name="group") as group:
        start = kb.add(first, group)
        exact = isinstance(limit, int) and limit % tile.columns == 0
        last = kb.sub(limit, 1)
        offsets = [
            kb.mul(kb.add(start, i) if exact else kb.minimum(kb.add(start, i), last), line) for i in range(lanes)
        ]

        if ahead:  # row after row, the order that memory likes
            with kb.loop(0, lanes, name="ahead") as row, kb.loop(0, depth * dtype.itemsize, 64, name="line") as at:
                column = kb.mul(kb.add(kb.add(start, ahead), row), line)
                index = kb.add(kb.mul(column, dtype.itemsize), at)
                kb.prefetch(kb.b.gep(base, [kb.i64(index)], source_etype=I8), locality=2)

        def square(k: Index, width: int, offsets: list[Index] = offsets, group: Index = group) -> None:
            rows = [
                resize(kb, convert(kb, kb.load(base, kb.add(o, k), dtype, width), dtype, tile.acc), lanes)
                for o in offsets
            ]
            for i, value in enumerate(transpose(kb, rows)[:width]):
                kb.store(value, panel, kb.add(kb.mul(kb.add(k, i), tile.columns), group), tile.acc)

        whole = depth - depth % lanes
        with kb.loop(0, whole, lanes, name="k") as k:
            square(k, lanes)
        if depth > whole:
            square(whole, depth - whole)
