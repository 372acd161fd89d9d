"""aicore.movement: concat, pad and tile as pieces, each a pointwise program over a box of the output.

Model: the pieces are the host's (`scheduler.families.pieces`). Pieces that only copy go from MTE2 to MTE3; the others
(fills, prologues and epilogues with arithmetic, transpositions) go through the vector engine. The two kinds have
memory of their own, which all pieces of a kind share: `budgets` divides UB. Units are numbered through the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.aicore.base import VectorTiling
from superkernel.scheduler.families.aicore.cuts import Cut, Terms, code_of, cut_program, output_types, plain
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.aicore.pointwise import CALL_CYCLES
from superkernel.scheduler.families.pieces import pieces_of
from superkernel.scheduler.families.pointwise import accesses_of, program_accesses
from superkernel.scheduler.tiling import Access, KernelFamily, Tiling
from superkernel.target.aicore import AicoreTarget


@lru_cache(maxsize=1024)
def programs_of(body: Body) -> tuple[PointwiseProgram, ...]:
    """The pieces as they are cut and emitted."""
    return tuple(plain(p) for p in pieces_of(body))


@dataclass(frozen=True)
class PiecesTiling(VectorTiling):
    """One cut per piece; a staged one goes through the vector engine."""

    cuts: tuple[Cut, ...]

    @property
    def units(self) -> int:
        return sum(c.units for c in self.cuts)

    def bases(self) -> list[int]:
        """The first unit of each piece."""
        found = [0]
        for cut in self.cuts:
            found.append(found[-1] + cut.units)
        return found[:-1]

    def _ranges(self, begin: int, end: int) -> Iterator[tuple[int, Cut, int, int]]:
        """(piece, its cut, its first unit, end) of every piece that a range takes in."""
        for k, (cut, base) in enumerate(zip(self.cuts, self.bases(), strict=True)):
            first, last = max(begin - base, 0), min(end - base, cut.units)
            if first < last:
                yield k, cut, first, last

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        reads: dict[int, list[Region]] = {}
        writes: dict[int, list[Region]] = {}
        programs = programs_of(body)
        for k, cut, first, last in self._ranges(begin, end):
            for access in program_accesses(body, programs[k], cut.boxes(first, last)):
                (writes if access.write else reads).setdefault(access.operand, []).extend(access.regions)
        return accesses_of(reads, writes)

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        total, programs = 0.0, programs_of(body)
        for k, cut, first, last in self._ranges(begin, end):
            code = code_of(cut, programs[k], output_types(body, programs[k]))
            total += CALL_CYCLES + cut.cycles(programs[k], code, first, last, target)
        return total


class MovementFamily(KernelFamily):
    """Copies that are no single affine view."""

    def tilings(self, kernel: str, body: Body, target: object) -> Sequence[Tiling]:
        assert isinstance(target, AicoreTarget)
        programs = programs_of(body)
        copies = [_is_copy(body, p, target) for p in programs]
        rooms = budgets(copies, target)
        cuts = []
        for program, is_copy in zip(programs, copies, strict=True):
            terms = Terms(rooms[is_copy], pooled=True, staged=not is_copy, copies=is_copy)
            cuts.append(cut_program(program, output_types(body, program), target, terms))
        return (PiecesTiling(tuple(cuts)),)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        return True

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
