"""host.reduce, host.argreduce, host.cumsum: how reductions and scans are cut. See rowspace for the geometry: a unit
is one result (or a block of neighbouring results, where the data is contiguous along a kept dimension); a reduction
is never shared by two units.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from superkernel.ir.body import Body
from superkernel.ops.opdef import NUMERIC
from superkernel.ops.opdef import Family as OpFamily
from superkernel.registry.rounding import EXACT, ROW_SUMS, Rounding
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.families.rowops import space_of
from superkernel.scheduler.families.rowtiling import RowTiling
from superkernel.scheduler.families.rowwise import block_of
from superkernel.scheduler.kerneldef import ops_of
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.cpu import CpuTarget


class ReduceFamily(KernelFamily[CpuTarget]):
    """Reductions over any axes, arg-reductions and running sums over one."""

    any_view = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        space = space_of(body)
        block = block_of(space, target, 4 if kernel == "host.reduce" else 1)
        outer = prod(space.outer)
        if kernel == "host.cumsum" and 0 in space.row:
            outer = 0
        work = {"host.reduce": 1.0, "host.argreduce": 6.0, "host.cumsum": 14.0}[kernel]
        if body.op == "reduce_log_sum_exp":
            work += 20.0
        return (RowTiling(outer, space.inner, block, 0, work),)

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return op != "reduce_log_sum_exp"


FAMILY = ReduceFamily()


def _kernel(name: str, ops: tuple[str, ...], rounding: Rounding) -> HostKernelDef:
    return HostKernelDef(
        id=f"host.{name}",
        ops=ops,
        family=FAMILY,
        emitter="reduce",
        micro=name,
        dtypes=NUMERIC,
        rounding=rounding,
    )


KERNELS = (
    _kernel("reduce", tuple(n for n in ops_of(OpFamily.REDUCE) if n.startswith("reduce_")), ROW_SUMS),
    _kernel("argreduce", ("argmax", "argmin"), EXACT),
    _kernel("cumsum", ("cumsum",), ROW_SUMS),
)
