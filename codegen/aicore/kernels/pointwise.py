"""aicore.pointwise: the loop around the tiles of a cut program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Ring
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import SLOTS, Cut, code_of, output_types
from superkernel.scheduler.families.aicore.pointwise import PointwiseTiling, program_of

Work: TypeAlias = Callable[[list[Number], Number, Number], None]


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function."""
    assert isinstance(tiling, PointwiseTiling)
    (cut,) = tiling.cuts
    program = program_of(body)
    code = code_of(cut, program, output_types(body, program))
    tile = TileProgram(kb, program, code, cut.size(kb.target), *kb.in_and_out(SLOTS), resident=cut.resident)
    emit_cut(kb, tile, cut, kb.begin, kb.end)


def emit_cut(kb: KernelBuilder, tile: TileProgram, cut: Cut, begin: Number, end: Number) -> None:
    """Units [begin, end) of a cut program."""
    if cut.resident:
        with kb.when(kb.compare("<", begin, end)):
            tile.load_resident([0] * len(cut.shape), 1, cut.shape[cut.col])
    emit_tiles(kb, cut, begin, end, tile.rings, tile.run)


def emit_tiles(kb: KernelBuilder, cut: Cut, begin: Number, end: Number, rings: Sequence[Ring], work: Work) -> None:
    """The loops around the tiles of units [begin, end): `work` gets where a tile begins, its rows and its columns."""
    if cut.groups == 1:
        _emit_runs(kb, cut, [0] * len(cut.shape), begin, end, rings, work)
        return
    with kb.loop(begin // cut.runs, (end + (cut.runs - 1)) // cut.runs) as group:
        first = kb.maximum(begin - group * cut.runs, 0)
        last = kb.minimum(end - group * cut.runs, cut.runs)
        _emit_runs(kb, cut, _coordinates(cut, group), first, last, rings, work)


def _coordinates(cut: Cut, group: Number) -> list[Number]:
    """Where a group's tiles begin."""
    at: list[Number] = [0] * len(cut.shape)
    rest = group
    if cut.blocks > 1:
        at[cut.col] = rest % cut.blocks * cut.block
        rest = rest // cut.blocks
    for dim in reversed(cut.outer):
        if cut.shape[dim] > 1:
            at[dim] = rest % cut.shape[dim]
            rest = rest // cut.shape[dim]
    return at


def _emit_runs(
    kb: KernelBuilder, cut: Cut, at: list[Number], first: Number, last: Number, rings: Sequence[Ring], work: Work
) -> None:
    """Runs [first, last) of a group, tile by tile."""
    running = cut.row if cut.row >= 0 else cut.col
    stop = kb.minimum(last * cut.unit, cut.extent)
    with kb.loop(first * cut.unit, stop, cut.tile) as start, kb.turn(*rings):
        place = [start if d == running else c for d, c in enumerate(at)]
        count = kb.minimum(stop - start, cut.tile)
        rows, cols = (1, count) if cut.row < 0 else (count, _width(kb, cut, at))
        work(place, rows, cols)


def _width(kb: KernelBuilder, cut: Cut, at: list[Number]) -> Number:
    """Columns of a group's block."""
    width = cut.shape[cut.col]
    return cut.block if width % cut.block == 0 else kb.minimum(width - at[cut.col], cut.block)
