"""host.pointwise and host.transpose: a program over its whole space, without an anchor.

Model: see `PointwiseTiling`. Rows or chunks of the canonical program are evaluated in vector loops. Where the tiling
has a plane, inputs that are contiguous along it are loaded as vectors along the plane dimension, a square of them is
transposed in registers, and the program then runs on rows of that square.
"""

from __future__ import annotations

from collections.abc import Callable

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.loops import each_row, split_index, vector_loop, vector_range
from superkernel.codegen.host.plane import emit_plane
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ir.collapse import canonical
from superkernel.scheduler.families.pointwise import PointwiseTiling


def emit(kb: KernelBuilder, body: Body, tiling: PointwiseTiling) -> None:
    """Write the kernel."""
    emit_program(kb, canonical(body.epilogue), tiling, kb.begin, kb.end)


def emit_program(
    kb: KernelBuilder, program: PointwiseProgram, tiling: PointwiseTiling, begin: Index, end: Index
) -> None:
    """Units [begin, end) of a canonical program."""
    if tiling.units == 0:
        return
    emitter = ProgramEmitter(kb, program)
    if tiling.plane >= 0:
        emit_plane(kb, emitter, tiling, begin, end)
    else:
        each_position(kb, program.shape, emitter.lanes, tiling, begin, end, lambda coords: emitter.row(coords).eval)


def each_position(
    kb: KernelBuilder,
    shape: tuple[int, ...],
    lanes: int,
    tiling: PointwiseTiling,
    begin: Index,
    end: Index,
    row: Callable[[list[Index]], Callable[[Index, int], object]],
) -> None:
    """`row(coords)(position, width)` over units [begin, end): whole rows, or pieces of them. The last coordinate that
    `row` gets is 0. With one row the range of units is one range of positions."""
    if not shape:
        with kb.loop(begin, end):
            row([])(0, 1)
        return
    inner = tiling.inner
    if tiling.chunks <= 1:
        step = kb.size("rows_per_unit", tiling.rows_per_unit)
        stop = kb.minimum(kb.mul(end, step), kb.size("rows", tiling.rows))
        with each_row(kb, kb.mul(begin, step), stop, shape[:-1]) as outer:
            vector_loop(kb, inner, lanes, row([*outer, 0]))
    elif tiling.rows == 1:
        chunk, extent = kb.size("chunk", tiling.chunk), kb.size("inner", inner)
        stop = kb.minimum(kb.mul(end, chunk), extent)
        vector_range(kb, kb.mul(begin, chunk), stop, extent, inner % lanes, lanes, row([0] * len(shape)))
    else:
        with kb.loop(begin, end, name="unit") as unit:
            outer = split_index(kb, kb.div(unit, tiling.chunks), shape[:-1])
            start: Index = kb.mul(kb.rem(unit, tiling.chunks), tiling.chunk)
            stop = kb.minimum(kb.add(start, tiling.chunk), inner)
            vector_range(kb, start, stop, inner, inner % lanes, lanes, row([*outer, 0]))
