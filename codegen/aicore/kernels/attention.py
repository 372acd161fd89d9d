"""aicore.attention: a cube core and its vector cores, each with its side. The parts are told in
families/aicore/attention_tiling; the sides are `attention_cube` and `attention_vector`."""

from __future__ import annotations

from superkernel.codegen.aicore.kernels.attention_cube import CubeSide
from superkernel.codegen.aicore.kernels.attention_vector import VectorSide
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.ops.ragged import BOUNDS_WORD, PART_BITS
from superkernel.scheduler.families.aicore.attention_tiling import AttentionTiling, RaggedTiling, table_view
from superkernel.scheduler.families.aicore.base import AicoreTiling


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """Write the kernel of a role."""
    if not isinstance(tiling, AttentionTiling):
        raise InternalError("not a tiling of attention", location=str(body.op), found=type(tiling).__name__)
    if isinstance(tiling, RaggedTiling):
        _partition(kb, body, tiling)
    side = CubeSide(kb, body, tiling) if kb.role.is_cube else VectorSide(kb, body, tiling)
    side.emit()


def _partition(kb: KernelBuilder, body: Body, tiling: RaggedTiling) -> None:
    """The range becomes that of units: what the table gives to the slots of the range."""
    view = table_view(body)
    assert view is not None
    each = tiling.work // tiling.batch
    kb.acquire(view.operand)

    def bound(slot: Number) -> Number:
        place = (slot + (BOUNDS_WORD + view.offset)) * DType.I32.itemsize
        return (kb.load(kb.operand(view.operand, place), DType.I32) * each) >> PART_BITS

    kb.begin, kb.end = bound(kb.begin), bound(kb.end)
