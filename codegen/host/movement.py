"""host.concat, host.pad, host.tile: pieces that are pointwise programs; host.gather: lookups; trilu: rows with a part
zeroed."""

from __future__ import annotations

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.lookup import emit_lookup, positions
from superkernel.codegen.host.loops import each_row, vector_loop
from superkernel.codegen.host.pointwise import emit_program
from superkernel.codegen.host.program import ProgramEmitter, input_program
from superkernel.codegen.host.vecexpr import Expr
from superkernel.ir.body import Body
from superkernel.scheduler.families.lookup import LookupTiling, lookup_plan
from superkernel.scheduler.families.movement import OutputRowsTiling
from superkernel.scheduler.families.pieces import PiecesTiling, pieces_of
from superkernel.scheduler.families.rowops import integer


def emit(kb: KernelBuilder, body: Body, tiling: LookupTiling | PiecesTiling | OutputRowsTiling) -> None:
    """Write the kernel."""
    if isinstance(tiling, LookupTiling):
        emit_lookup(kb, lookup_plan(body), tiling.part)
    elif isinstance(tiling, PiecesTiling):
        _emit_pieces(kb, body, tiling)
    else:
        _emit_trilu(kb, body, tiling)


def _emit_pieces(kb: KernelBuilder, body: Body, tiling: PiecesTiling) -> None:
    base = 0
    for program, part in zip(pieces_of(body), tiling.parts, strict=True):
        begin = kb.maximum(kb.sub(kb.begin, base), 0)
        end = kb.minimum(kb.sub(kb.end, base), part.units)
        with kb.when(kb.compare("<", begin, end)):
            emit_program(kb, program, part, begin, end)
        base += part.units


def _emit_trilu(kb: KernelBuilder, body: Body, tiling: OutputRowsTiling) -> None:
    """Elements with column - row >= k (upper) or <= k are kept."""
    data, epilogue = input_program(kb, body, 0), ProgramEmitter(kb, body.epilogue)
    diagonal, upper = integer(body.attr["k"]), bool(body.attr["upper"])
    lanes = min(data.lanes, epilogue.lanes)
    with each_row(kb, kb.begin, kb.end, tiling.shape[:-1]) as outer:
        rows, results = data.row([*outer, 0]), epilogue.row([*outer, 0])
        limit = kb.i64(kb.add(outer[-1], diagonal))

        def visit(position: Index, width: int) -> None:
            (x,) = rows.eval(position, width)
            column = positions(kb, position, width)
            kept = column.compare(">=" if upper else "<=", Expr(kb, kb.splat(limit, width)))
            value = Expr(kb, x)
            results.eval(position, width, [kept.choose(value, value.const(0)).v])

        vector_loop(kb, tiling.shape[-1], lanes, visit)
