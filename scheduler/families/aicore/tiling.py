"""aicore.tiling: tilings that depend on what the graph computes, computed by an aicpu hart (tiling sinking).

Model: scalar code, the host's own, in one unit. It waits for what it reads and is waited for like any kernel, through
words in memory. Data out of range ends the program with EXIT_DATA; the table says what is wrong.

Invariants: no engine, no local memory, no workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.ir.body import Body
from superkernel.ops.grouped import TILINGS
from superkernel.registry.predicates import Reason, within
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.aicore.scalar import CALL_CYCLES, INSTRUCTION_CYCLES, ScalarTiling
from superkernel.scheduler.families.grouped import TableTiling as HostTiling
from superkernel.scheduler.families.grouped import table_tiling
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.aicore import AicoreTarget

HOST_KERNEL = "host.tiling"
SIDE_BY_SIDE = 8  # counts, see `codegen/host/grouped.py`
_WORK_INSTRUCTIONS = 12.0  # for an expert or a tile


@dataclass(frozen=True)
class TableTiling(ScalarTiling):
    """See the module docstring."""

    @property
    def kernel_type(self) -> AicoreKernelType:
        return AicoreKernelType.AICPU

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """Counts are read some side by side; the table is written word by word."""
        if begin >= end:
            return 0.0
        assert isinstance(self.inner, HostTiling)
        control, words = target.control, body.anchor_outputs[0].size
        each = -(-self.inner.count // SIDE_BY_SIDE) * control.global_load_cycles + control.global_store_cycles * words
        return CALL_CYCLES + each + INSTRUCTION_CYCLES * _WORK_INSTRUCTIONS * self.inner.work


class TilingFamily(KernelFamily[AicoreTarget]):
    """Tables that depend on data."""

    stores_only = True

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        return (TableTiling(HOST_KERNEL, table_tiling(body), 1, 4),)


FAMILY = TilingFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.tiling",
        ops=TILINGS,
        family=FAMILY,
        emitter="tiling",
        micro="index",
        modifier="tiling",
        core_type="aicpu",
        limits=(within(Reason.DEVICE, "aicore.aicpu_harts", 1),),
        rounding=EXACT,
        code_bytes=1024,
    ),
)
