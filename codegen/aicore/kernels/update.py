"""aicore.kv_update: the cache's copy where the result is not the cache itself, then the new rows at their position."""

from __future__ import annotations

from functools import partial

from superkernel.codegen.aicore.kernels.pointwise import emit_tiles
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import SLOTS, Cut, code_of, output_types
from superkernel.scheduler.families.aicore.update import CopyPart, UpdateTiling, spare_rows
from superkernel.scheduler.families.rowspace import slot_program


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function."""
    assert isinstance(tiling, UpdateTiling)
    parts = tiling.parts(body)
    tiles = [_make(kb, body, part, cut, k) for k, (part, cut) in enumerate(parts)]
    start = _position(kb, body) if tiling.rows.units else 0
    for tile, (part, cut) in zip(tiles, parts, strict=True):
        _emit_part(kb, tile, part, cut, cut.units // tiling.pairs, start)


def _make(kb: KernelBuilder, body: Body, part: CopyPart, cut: Cut, number: int) -> TileProgram:
    code = code_of(cut, part.program, output_types(body, part.program))
    return TileProgram(kb, part.program, code, cut.size(kb.target), *kb.in_and_out(SLOTS, number))


def _position(kb: KernelBuilder, body: Body) -> Number:
    """The first row to write, read by the control unit and clamped."""
    program = slot_program(body, 2)
    assert program is not None
    item = program.inputs[0]
    read = kb.load(kb.operand(item.source, item.offset * item.dtype.itemsize), item.dtype)
    return kb.minimum(kb.maximum(read, 0), spare_rows(body))


def _emit_part(kb: KernelBuilder, tile: TileProgram, part: CopyPart, cut: Cut, each: int, start: Number) -> None:
    """The units of a range's pairs."""
    inputs = {k: start * step for k, step in enumerate(part.input_steps) if step}
    outputs = {k: start * step for k, step in enumerate(part.output_steps) if step}
    emit_tiles(kb, cut, kb.begin * each, kb.end * each, tile.rings, partial(tile.run, shifts=inputs, stores=outputs))
