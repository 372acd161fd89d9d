"""aicore.pointwise: programs without an anchor on vector cores, pure copies and transpositions among them.

See `cuts` for how the space is cut and `tilecode` for what a tile is. Copies have no vector commands: their tiles go
from MTE2 to MTE3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ir.collapse import canonical
from superkernel.ops.opdef import Family as OpFamily
from superkernel.registry.predicates import Among, Clause, Reason
from superkernel.registry.requirement import POINTWISE
from superkernel.registry.vector_ops import VECTOR_OPS, Computable
from superkernel.scheduler.families.aicore.base import AicoreTiling, VectorTiling
from superkernel.scheduler.families.aicore.cuts import Cut, code_of, cut_program, output_types, plain, program_bytes
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.kerneldef import ops_of
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.aicore import AicoreTarget

CALL_CYCLES = 40  # entering, leaving, decoding a range


@lru_cache(maxsize=1024)
def program_of(body: Body) -> PointwiseProgram:
    """The program that is cut and emitted."""
    return plain(canonical(body.epilogue))


@dataclass(frozen=True)
class ProgramsTiling(VectorTiling):
    """Programs one behind the other, a cut for each; units are numbered through."""

    cuts: tuple[Cut, ...]

    @abstractmethod
    def programs(self, body: Body) -> Sequence[PointwiseProgram]:
        """What is cut."""

    @property
    def units(self) -> int:
        return sum(c.units for c in self.cuts)

    @property
    def bases(self) -> tuple[int, ...]:
        """The first unit of each program."""
        return (0, *accumulate(c.units for c in self.cuts))[:-1]

    def ranges(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(program, its first unit, end) of every program that a range takes in."""
        for k, (cut, base) in enumerate(zip(self.cuts, self.bases, strict=True)):
            first, last = max(begin - base, 0), min(end - base, cut.units)
            if first < last:
                yield k, first, last

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found, programs = AccessSet(body), self.programs(body)
        for k, first, last in self.ranges(begin, end):
            found.program(programs[k], *self.cuts[k].boxes(first, last))
        return found.result()

    def moved_bytes(self, body: Body) -> tuple[int, int]:
        moved = [program_bytes(body, p) for p in self.programs(body)]
        return sum(read for read, _ in moved), sum(written for _, written in moved)

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        parts = self.ranges(begin, end)
        return sum((CALL_CYCLES + self.program_cycles(body, k, a, b, target) for k, a, b in parts), 0.0)

    def program_cycles(self, body: Body, k: int, begin: int, end: int, target: AicoreTarget) -> float:
        """Cycles of units [begin, end) of a program."""
        program, cut = self.programs(body)[k], self.cuts[k]
        return cut.cycles(program, code_of(cut, program, output_types(body, program)), begin, end, target)


@dataclass(frozen=True)
class PointwiseTiling(ProgramsTiling):
    """One cut of the body's program."""

    def programs(self, body: Body) -> Sequence[PointwiseProgram]:
        return (program_of(body),)


class PointwiseFamily(KernelFamily[AicoreTarget]):
    """Pure pointwise work and copies."""

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        program = program_of(body)
        return (PointwiseTiling((cut_program(program, output_types(body, program), target),)),)


FAMILY = PointwiseFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.pointwise",  # programs compute in the vector engine's types; a copy is of any type
        ops=(POINTWISE, *sorted(VECTOR_OPS), *ops_of(OpFamily.VIEW, OpFamily.RESHAPE)),
        family=FAMILY,
        emitter="pointwise",
        micro="vprogram",
        limits=(
            Clause(Reason.DTYPE, "program.steps", Computable()),
            Clause(Reason.ACTIVATION, "program", Among(VECTOR_OPS)),
        ),
    ),
)
