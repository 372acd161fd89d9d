"""Sub-operators that run on the NumPy reference: one unit, the whole of every operand, always on core 0."""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.core.tensor import Region
from superkernel.ir.body import Body, Role
from superkernel.scheduler.tiling import Access, Tiling
from superkernel.target.cpu import CpuTarget

HOST_REFERENCE = "host.reference"
HOST_CALL_NS = 30_000.0  # taking the interpreter's lock and NumPy's own overhead
_BYTES_PER_NS = 0.5


@dataclass(frozen=True)
class HostCallTiling(Tiling):
    """See the module docstring."""

    @property
    def units(self) -> int:
        return 1

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        if begin >= end:
            return ()
        found = []
        for i, operand in enumerate(body.operands):
            if operand.type.nbytes:
                whole = (Region(0, operand.type.nbytes),)
                if operand.role is not Role.OUTPUT:
                    found.append(Access(i, False, whole))
                if operand.role in (Role.OUTPUT, Role.INOUT):
                    found.append(Access(i, True, whole))
        return tuple(found)

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        return HOST_CALL_NS + sum(o.type.nbytes for o in body.operands) / _BYTES_PER_NS
