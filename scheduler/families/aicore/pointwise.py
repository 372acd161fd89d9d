"""aicore.pointwise: programs without an anchor on vector cores, pure copies and transpositions among them.

See `cuts` for how the space is cut and `tilecode` for what a tile is. Copies have no vector commands: their tiles go
from MTE2 to MTE3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ir.collapse import canonical
from superkernel.ops.opdef import Family as OpFamily
from superkernel.registry.predicates import Among, Clause, Reason
from superkernel.registry.requirement import POINTWISE
from superkernel.registry.vector_ops import VECTOR_OPS, Computable
from superkernel.scheduler.families.aicore.base import VectorTiling
from superkernel.scheduler.families.aicore.cuts import Cut, code_of, cut_program, output_types, plain
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.pointwise import program_accesses
from superkernel.scheduler.kerneldef import ops_of
from superkernel.scheduler.tiling import Access, KernelFamily, Tiling
from superkernel.target.aicore import AicoreTarget

CALL_CYCLES = 40  # entering, leaving, decoding a range


@lru_cache(maxsize=1024)
def program_of(body: Body) -> PointwiseProgram:
    """The program that is cut and emitted."""
    return plain(canonical(body.epilogue))


@dataclass(frozen=True)
class PointwiseTiling(VectorTiling):
    """One cut of the body's program."""

    cut: Cut

    @property
    def units(self) -> int:
        return self.cut.units

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return program_accesses(body, program_of(body), self.cut.boxes(begin, end) if begin < end else [])

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        program = program_of(body)
        code = code_of(self.cut, program, output_types(body, program))
        return CALL_CYCLES + self.cut.cycles(program, code, begin, end, target)


class PointwiseFamily(KernelFamily):
    """Pure pointwise work and copies."""

    def tilings(self, kernel: str, body: Body, target: object) -> Sequence[Tiling]:
        assert isinstance(target, AicoreTarget)
        program = program_of(body)
        return (PointwiseTiling(cut_program(program, output_types(body, program), target)),)


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
