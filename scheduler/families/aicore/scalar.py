"""aicore.scalar: small work that the vector engine has no commands for, done by one control unit: integers of 64 bits,
f64, divisions and remainders of integers, running sums, searches, scattered moves.

Model: a control unit is a CPU without vectors, so the families of the host cut and compute for it: the tiling here is
a host family's, all of it one unit. A load is a whole trip to global memory; what is spread over several *lanes* is
loaded together, so that the trips overlap. Code grows with the lanes, so that long programs have fewer.

Invariants: one unit on one vector core; no local memory, no engine. The registry limits the number of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from superkernel.body import Body, PointwiseProgram, View
from superkernel.dtypes import DType
from superkernel.errors import InternalError
from superkernel.scheduler.families import family_of as host_family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling, KernelType
from superkernel.scheduler.families.costing import program_weight
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.scheduler.tiling import Access, Family, Tiling
from superkernel.target.aicore import AicoreTarget
from superkernel.target.cpu import CpuTarget

CALL_CYCLES = 60  # entering, leaving, the fences
LANES = 4  # of 8 bytes: loads that are on their way together
LONG_PROGRAM = 24.0  # instructions per element above which one lane is enough
REGION = "riscv64-unknown-elf"

_INDEXING = ("gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "one_hot", "topk")
_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "l1", "l2", "log_sum", "log_sum_exp", "sum_square")
HOST_KERNELS: dict[str, str] = {
    "concat": "host.concat",
    "pad": "host.pad",
    "trilu": "host.pad",
    "tile": "host.tile",
    "gather": "host.gather",
    **dict.fromkeys(_INDEXING, "host.index"),
    **dict.fromkeys((f"reduce_{name}" for name in _REDUCTIONS), "host.reduce"),
    **dict.fromkeys(("argmax", "argmin"), "host.argreduce"),
    "cumsum": "host.cumsum",
}
"""The host kernel that computes an anchor; pure programs are host.pointwise's."""


@cache
def control_unit(lanes: int) -> CpuTarget:
    """A control unit as the host's families and emitters see CPUs."""
    return CpuTarget(
        triple=REGION, tier="plain", features="", vector_bytes=8 * lanes, vector_registers=32, l1_bytes=0, l2_bytes=0,
        l3_bytes=0, flops_per_ns=1.0,
    )  # fmt: skip


def host_kernel(op: str | None) -> str:
    """The host kernel for an anchor, or for none. Raises InternalError where there is none."""
    found = "host.pointwise" if op is None else HOST_KERNELS.get(op)
    if found is None:
        raise InternalError("no operator of the control unit", location=str(op))
    return found


@dataclass(frozen=True)
class ScalarTiling(AicoreTiling):
    """Everything in one unit; `inner` is how the host's kernel would cut it."""

    kernel: str
    inner: Tiling
    lanes: int

    @property
    def kernel_type(self) -> KernelType:
        return KernelType.VECTOR

    @property
    def units(self) -> int:
        return 1 if self.inner.units else 0

    @property
    def scratch_bytes(self) -> int:
        return self.inner.scratch_bytes

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return self.inner.accesses(body, 0, self.inner.units) if begin < end else ()

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        control = target.control
        per_load = control.global_load_cycles / self.lanes
        cycles = 2.0 * self.scratch_bytes / 8 * (per_load + control.global_store_cycles)
        for program in programs_of(body):
            count = 1
            for extent in program.shape:
                count *= extent
            loads = sum(1 for i in program.inputs if i.source >= 0)
            stores = sum(1 for o in program.outputs if o.target >= 0)
            cycles += count * (loads * per_load + stores * control.global_store_cycles + program_weight(program))
        return CALL_CYCLES + cycles


def programs_of(body: Body) -> list[PointwiseProgram]:
    """What is evaluated: one program per input slot of the anchor, and the epilogue."""
    slots = [slot_program(body, k) for k in range(len(body.anchor_inputs))]
    return [*(p for p in slots if p is not None), body.epilogue]


class ScalarFamily(Family):
    """What is left over, where it is small."""

    kernels = ("aicore.scalar",)

    def tilings(self, kernel: str, body: Body, target: object) -> Sequence[Tiling]:
        assert isinstance(target, AicoreTarget)
        name = host_kernel(body.op)
        weight = sum(program_weight(p) for p in programs_of(body))
        lanes = 1 if weight > LONG_PROGRAM or body.op in HOST_KERNELS else LANES
        inner = host_family_of(name).tilings(name, body, control_unit(lanes))[0]
        return (ScalarTiling(name, inner, lanes),)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        name = host_kernel(op)
        return host_family_of(name).accepts_view(name, op, slot, view, dtype)

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        name = host_kernel(op)
        return host_family_of(name).accepts_prologue(name, op, slot)


FAMILY = ScalarFamily()
