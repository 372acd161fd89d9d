"""host.concat, host.pad, host.tile: pieces that are pointwise programs; host.gather: lookups; trilu: rows with a part
zeroed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from superkernel.codegen.host.builder import PTR, Index, KernelBuilder
from superkernel.codegen.host.lookup import emit_lookup, positions
from superkernel.codegen.host.loops import each_row, vector_loop
from superkernel.codegen.host.pointwise import emit_program
from superkernel.codegen.host.program import ProgramEmitter, input_program
from superkernel.codegen.host.vecexpr import Expr
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.scheduler.families.lookup import LookupTiling, lookup_plan
from superkernel.scheduler.families.movement import OutputRowsTiling
from superkernel.scheduler.families.pieces import PiecesTiling, pieces_of
from superkernel.scheduler.families.pointwise import PointwiseTiling
from superkernel.scheduler.families.rowops import integer

_PIECES_WORTH_A_LOOP, _PIECES_PER_LOOP = 16, 256  # the tables of a loop lie on the stack


def emit(kb: KernelBuilder, body: Body, tiling: LookupTiling | PiecesTiling | OutputRowsTiling) -> None:
    """Write the kernel."""
    if isinstance(tiling, LookupTiling):
        emit_lookup(kb, lookup_plan(body), tiling.part)
    elif isinstance(tiling, PiecesTiling):
        _emit_pieces(kb, body, tiling)
    else:
        _emit_trilu(kb, body, tiling)


def _emit_pieces(kb: KernelBuilder, body: Body, tiling: PiecesTiling) -> None:
    base, count = 0, len(body.operands)
    pieces = zip(pieces_of(body), tiling.parts, strict=True)
    for (common, part), group in groupby(pieces, lambda piece: (_anywhere(piece[0], count), piece[1])):
        programs = [program for program, _ in group]
        for at in range(0, len(programs), _PIECES_PER_LOOP):
            some = programs[at : at + _PIECES_PER_LOOP]
            if len(some) < _PIECES_WORTH_A_LOOP:
                for k, program in enumerate(some):
                    _emit_piece(kb, program, part, base + k * part.units)
            else:
                _emit_alike(kb, body, common, some, part, base)
            base += len(some) * part.units


def _emit_piece(kb: KernelBuilder, program: PointwiseProgram, part: PointwiseTiling, base: Index) -> None:
    """The piece whose first unit is `base`."""
    begin = kb.maximum(kb.sub(kb.begin, base), 0)
    end = kb.minimum(kb.sub(kb.end, base), part.units)
    with kb.when(kb.compare("<", begin, end)):
        emit_program(kb, program, part, begin, end)


def _anywhere(program: PointwiseProgram, count: int) -> PointwiseProgram:
    """The program on operands behind the `count` ones that there are, each input and output at the start of its own:
    equal for pieces that differ in their places alone."""
    inputs = [replace(item, source=count + k, offset=0) for k, item in enumerate(program.inputs)]
    first = count + len(inputs)
    outputs = [replace(item, target=first + k, offset=0) for k, item in enumerate(program.outputs)]
    return replace(program, inputs=tuple(inputs), outputs=tuple(outputs))


def _emit_alike(
    kb: KernelBuilder,
    body: Body,
    common: PointwiseProgram,
    programs: Sequence[PointwiseProgram],
    part: PointwiseTiling,
    base: int,
) -> None:
    """Pieces that differ in their places alone, by a loop over tables of addresses."""
    operands = kb.operands
    tables = [kb.stack(8 * len(programs)) for _ in (*common.inputs, *common.outputs)]
    for k, program in enumerate(programs):
        places = [(i.source, i.offset) for i in program.inputs] + [(o.target, o.offset) for o in program.outputs]
        for table, (operand, offset) in zip(tables, places, strict=True):
            address = kb.at(operands[operand], offset, body.operands[operand].type.dtype)
            kb.b.store(address, kb.offset(table, 8 * k), align=8)
    first, last = (kb.maximum(kb.sub(unit, base), 0) for unit in (kb.begin, kb.end))
    stop = kb.minimum(kb.div(kb.add(last, part.units - 1), part.units), len(programs))
    with kb.loop(kb.div(first, part.units), stop, name="piece") as k:
        places_here = [kb.b.load(kb.offset(table, kb.mul(k, 8)), typ=PTR, align=8) for table in tables]
        kb.operands = (*operands, *places_here)
        _emit_piece(kb, common, part, kb.add(kb.mul(k, part.units), base))
    kb.operands = operands


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
