"""host.pointwise and host.transpose: a program over its whole space, without an anchor.

Model: see `PointwiseTiling`. Rows or chunks of the canonical program are evaluated in vector loops. Where the tiling
has a plane, inputs that are contiguous along it are loaded as vectors along the plane dimension, a square of them is
transposed in registers, and the program then runs on rows of that square.
"""

from __future__ import annotations

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
    elif tiling.chunks > 1:
        _emit_chunks(kb, emitter, tiling, begin, end)
    else:
        _emit_rows(kb, emitter, tiling, begin, end)


def _emit_rows(kb: KernelBuilder, emitter: ProgramEmitter, tiling: PointwiseTiling, begin: Index, end: Index) -> None:
    """Whole rows."""
    shape = emitter.program.shape
    if not shape:
        with kb.loop(begin, end):
            emitter.eval_store((), 1)
        return
    step = tiling.rows_per_unit
    stop = kb.minimum(kb.mul(end, step), tiling.rows)
    with each_row(kb, kb.mul(begin, step), stop, shape[:-1]) as outer:
        row = emitter.row([*outer, 0])
        vector_loop(kb, tiling.inner, emitter.lanes, row.eval)


def _emit_chunks(kb: KernelBuilder, emitter: ProgramEmitter, tiling: PointwiseTiling, begin: Index, end: Index) -> None:
    """Pieces of rows. With one row the range of units is one range of positions."""
    shape, chunk, inner = emitter.program.shape, tiling.chunk, tiling.inner
    if tiling.rows == 1:
        row = emitter.row([0] * len(shape))
        stop = kb.minimum(kb.mul(end, chunk), inner)
        vector_range(kb, kb.mul(begin, chunk), stop, inner, emitter.lanes, row.eval)
        return
    with kb.loop(begin, end, name="unit") as unit:
        outer = split_index(kb, kb.div(unit, tiling.chunks), shape[:-1])
        start: Index = kb.mul(kb.rem(unit, tiling.chunks), chunk)
        row = emitter.row([*outer, 0])
        stop = kb.minimum(kb.add(start, chunk), inner)
        vector_range(kb, start, stop, inner, emitter.lanes, row.eval)
