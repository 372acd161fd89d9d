"""Sub-operators that run on the NumPy reference: one unit, the whole of every operand, always on core 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from superkernel.core.tensor import Region
from superkernel.ir.body import Body, Role
from superkernel.ops.table import op_table
from superkernel.registry.names import KernelName, format_name
from superkernel.registry.records import Capability, Determinism, Estimate, KernelRole
from superkernel.registry.requirement import POINTWISE
from superkernel.registry.rounding import REFERENCE_ROUNDED
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.scheduler.tiling import Access, CostedTiling, KernelFamily
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

HOST_REFERENCE = "host.reference"
HOST_CALL_NS = 30_000.0  # taking the interpreter's lock and NumPy's own overhead
_BYTES_PER_NS = 0.5


@dataclass(frozen=True)
class HostCallTiling(CostedTiling[Target]):
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

    def cost_ns(self, body: Body, begin: int, end: int, target: Target) -> float:
        return HOST_CALL_NS + sum(o.type.nbytes for o in body.operands) / _BYTES_PER_NS


class HostCallFamily(KernelFamily[Target]):
    """Anything, uncut."""

    def tilings(self, kernel: str, body: Body, target: Target) -> Sequence[HostCallTiling]:
        return (HostCallTiling(),)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceKernel(KernelDef[Target]):
    """NumPy on the machine that drives `device`: for every operator, correct, slow, and taken only where nothing else
    is eligible."""

    device: str

    @staticmethod
    def on(device: str) -> ReferenceKernel:
        """The reference of a device; one that is no CPU has its operands brought to it and back."""
        return ReferenceKernel(
            id=HOST_REFERENCE,
            ops=(POINTWISE, *op_table()),
            family=HostCallFamily(),
            emitter="",
            micro="reference",
            modifier="" if device == CpuTarget.kind else device,
            role=KernelRole.REFERENCE,
            rounding=REFERENCE_ROUNDED,
            code_bytes=256,
            device=device,
        )

    def estimate(self, body: Body, target: Target, workspace_max: int | None = None) -> Estimate:
        """NumPy allocates every operand in float64."""
        nbytes = sum(o.type.nbytes for o in body.operands)
        return Estimate(HOST_CALL_NS + nbytes / _BYTES_PER_NS, {"host": 2 * nbytes})

    def rows(self) -> Iterable[Capability]:
        words = ("scalar", "numpy", *([self.modifier] if self.modifier else []))
        yield Capability(
            id=self.id,
            kernel=self.id,
            ops=self.ops,
            name=format_name(KernelName("sk", ("xx",), self.micro, words)),
            role=self.role,
            device=self.device,
            determinism=Determinism.RUN_TO_RUN,  # sums of the machine's BLAS, in an order of its own
            numeric=self.rounding.numeric,
            error_ulps=self.rounding.error_ulps,
            code_bytes=self.code_bytes,
        )
