"""aicore.norm, aicore.softmax, aicore.reduce, aicore.scan: statistics or running sums over rows on a vector core,
then pointwise.

The geometry is in families/aicore/rows, the walk in `row_task`, the mathematics in `row_formulas`.
"""

from __future__ import annotations

from superkernel.codegen.aicore.kernels.barrier_reduce import emit_barrier_reduce
from superkernel.codegen.aicore.kernels.row_formulas import FORMULAS, reduction
from superkernel.codegen.aicore.kernels.row_task import RowTask
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.barrier_reduce import BarrierReduceTiling
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.row_modes import is_reduction
from superkernel.scheduler.families.aicore.rows import RowsTiling


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """Write the kernel."""
    if isinstance(tiling, BarrierReduceTiling):
        emit_barrier_reduce(kb, body, tiling)
        return
    formula = reduction if is_reduction(body) else FORMULAS.get(body.op or "")
    if not isinstance(tiling, RowsTiling) or formula is None:
        raise InternalError("not a row-wise body", location=str(body.op), found=type(tiling).__name__)
    if tiling.units == 0:
        return
    task = RowTask(kb, body, tiling)
    with task.constants():
        formula(task)
