"""aicore.movement: the pieces of a concat, pad or tile, one behind the other.

All pieces of a kind (copies, others) share one buffer per ring, so that the rings' flags are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.codegen.aicore.kernels.pointwise import emit_cut
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Ring
from superkernel.codegen.aicore.tileprogram import Pool, TileProgram
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import SLOTS, Cut, code_of, output_types
from superkernel.scheduler.families.aicore.movement import PiecesTiling, programs_of
from superkernel.scheduler.families.aicore.tilecode import Home, TileCode
from superkernel.target.engines import Local


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function."""
    assert isinstance(tiling, PiecesTiling)
    programs = programs_of(body)
    codes = [code_of(cut, p, output_types(body, p)) for cut, p in zip(tiling.cuts, programs, strict=True)]
    kinds = {staged: _Kind(kb, tiling.cuts, codes, staged) for staged in (False, True)}
    for cut, code, program, base in zip(tiling.cuts, codes, programs, tiling.bases, strict=True):
        kind = kinds[cut.staged]
        tile = TileProgram(kb, program, code, cut.size(kb.target), kind.inputs, kind.outputs, pool=kind.pool)
        first, last = kb.maximum(kb.begin - base, 0), kb.minimum(kb.end - base, cut.units)
        with kb.when(kb.compare("<", first, last)):
            emit_cut(kb, tile, cut, first, last)


class _Kind:
    """Rings and buffers of the pieces that copy, or of the others."""

    def __init__(self, kb: KernelBuilder, cuts: Sequence[Cut], codes: Sequence[TileCode], staged: bool) -> None:
        name = "staged" if staged else "copied"
        self.inputs, self.outputs = kb.ring(f"{name} in", SLOTS), kb.ring(f"{name} out", SLOTS)
        pairs = [(code, cut.size(kb.target)) for cut, code in zip(cuts, codes, strict=True) if cut.staged == staged]

        def room(ring: Ring, home: Home, top: bool) -> Buffer | None:
            nbytes = max((code.home_bytes(home, size) for code, size in pairs), default=0)
            return kb.buffer(ring, Local.UB, nbytes, f"{name} {home.value}", top=top) if nbytes else None

        temporary = max((code.temporaries(size)[1] for code, size in pairs), default=0)
        self.pool = Pool(
            room(self.inputs, Home.INPUT, False),
            room(self.outputs, Home.OUTPUT, True),
            kb.fixed(Local.UB, temporary, f"{name} temporaries") if temporary else None,
        )
