"""host.rope: rotary position embedding; a unit is one (batch, head, position) row of the output."""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.kernel import INDEX_TYPES, HostKernelDef, HostTiling
from superkernel.scheduler.families.movement import OutputRowsTiling
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.cpu import CpuTarget


class RopeFamily(KernelFamily[CpuTarget]):
    """Tables with a row per position are read in full where the position is data."""

    any_view = True
    prologue_slots = (0,)

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        has_position = len(body.anchor_inputs) > 3 and body.anchor_inputs[3] is not None
        return (OutputRowsTiling(body.anchor_outputs[0].shape, (0,), () if has_position else (1, 2), 0, 8.0),)


KERNELS = (
    HostKernelDef(
        id="host.rope",
        ops=("rope",),
        family=RopeFamily(),
        emitter="rope",
        micro="rope",
        dtypes=frozenset({DType.F32, DType.F16, DType.BF16}),
        typed=True,
        others=(None, None, INDEX_TYPES),
    ),
)
