"""aicore.movement: concat, pad and tile as pieces, each a pointwise program over a box of the output.

Model: the pieces are the host's (`scheduler.families.pieces`). Pieces that only copy go from MTE2 to MTE3; the others
(fills, prologues and epilogues with arithmetic, transpositions) go through the vector engine. The two kinds have
memory of their own, which all pieces of a kind share: `budgets` divides UB. Units are numbered through the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import Terms, cut_program, output_types, plain
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.aicore.pointwise import ProgramsTiling
from superkernel.scheduler.families.pieces import pieces_of
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.aicore import AicoreTarget


@lru_cache(maxsize=1024)
def programs_of(body: Body) -> tuple[PointwiseProgram, ...]:
    """The pieces as they are cut and emitted."""
    return tuple(plain(p) for p in pieces_of(body))


@dataclass(frozen=True)
class PiecesTiling(ProgramsTiling):
    """One cut per piece; a staged one goes through the vector engine."""

    def programs(self, body: Body) -> Sequence[PointwiseProgram]:
        return programs_of(body)


class MovementFamily(KernelFamily[AicoreTarget]):
    """Copies that are no single affine view."""

    any_view = True

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        programs = programs_of(body)
        copies = [_is_copy(body, p, target) for p in programs]
        rooms = budgets(copies, target)
        cuts = []
        for program, is_copy in zip(programs, copies, strict=True):
            terms = Terms(rooms[is_copy], pooled=True, staged=not is_copy, copies=is_copy)
            cuts.append(cut_program(program, output_types(body, program), target, terms))
        return (PiecesTiling(tuple(cuts)),)

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return op == "concat"


def budgets(copies: Sequence[bool], target: AicoreTarget) -> dict[bool, int]:
    """Bytes of UB for pieces that copy (True) and for the others: half each where there are both."""
    total: int = target.memory.ub_bytes
    both = any(copies) and not all(copies)
    share = total // 2 // target.memory.block_bytes * target.memory.block_bytes if both else total
    return {True: share, False: share}


def _is_copy(body: Body, program: PointwiseProgram, target: AicoreTarget) -> bool:
    """Whether the piece can do without vector commands."""
    try:
        cut_program(program, output_types(body, program), target, Terms(pooled=True, copies=True))
    except UnsupportedError:
        return False
    return True


FAMILY = MovementFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.movement",
        ops=("concat", "pad", "tile"),
        family=FAMILY,
        emitter="movement",
        micro="move",
        modifier="concat",
        rounding=EXACT,
    ),
)
