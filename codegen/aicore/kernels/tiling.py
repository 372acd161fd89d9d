"""aicore.tiling: the host's tiling code on an aicpu hart.

Model: as `aicore.scalar`, but the hart has no engines to wait for. Where the table says that its data is out of range
the program ends: nobody may work by such a table, and nobody waits for it for ever.
"""

from __future__ import annotations

from superkernel.codegen.aicore.boot import EXIT_DATA
from superkernel.codegen.aicore.kernels.scalar import ControlBuilder
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Scalar
from superkernel.codegen.host.grouped import emit_table
from superkernel.ir.body import Body
from superkernel.ops.grouped import FINE
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.tiling import TableTiling


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The hart's function."""
    assert isinstance(tiling, TableTiling)
    kb.acquire(*kb.wait_operands)
    with kb.when(kb.compare("<", kb.begin, kb.end)):
        control = ControlBuilder(kb, len(body.operands), tiling.inner.units, tiling.width)
        status = emit_table(control, body)
        with kb.when(kb.compare("!=", Scalar(kb.b, status), FINE)):
            kb.end_program(EXIT_DATA)
