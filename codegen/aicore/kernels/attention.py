"""aicore.attention: a cube core and its vector cores, each with its side. The parts are told in
families/aicore/attention_tiling; the sides are `attention_cube` and `attention_vector`."""

from __future__ import annotations

from superkernel.body import Body
from superkernel.codegen.aicore.kernels.attention_cube import CubeSide
from superkernel.codegen.aicore.kernels.attention_vector import VectorSide
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.errors import InternalError
from superkernel.scheduler.families.aicore.attention_tiling import AttentionTiling
from superkernel.scheduler.families.aicore.base import AicoreTiling


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """Write the kernel of a role."""
    if not isinstance(tiling, AttentionTiling):
        raise InternalError("not a tiling of attention", location=str(body.op), found=type(tiling).__name__)
    if tiling.units == 0:
        return
    side = CubeSide(kb, body, tiling) if kb.role.is_cube else VectorSide(kb, body, tiling)
    side.emit()


EMIT = {"aicore.attention": emit}
