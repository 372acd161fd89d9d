"""aicore.tiling: the host's tiling code on an aicpu hart.

Model: as `aicore.scalar`, but the hart has no engines to wait for. Where the table says that its data is out of range
the program ends: nobody may work by such a table, and nobody waits for it for ever.
"""

from __future__ import annotations

from superkernel.body import Body
from superkernel.codegen.aicore.boot import EXIT_DATA
from superkernel.codegen.aicore.kernels.scalar import ControlBuilder
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.host.emitters import emitter_of as host_emitter_of
from superkernel.dtypes import DType
from superkernel.ops.grouped import FINE, STATUS_WORD
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.tiling import TableTiling


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The hart's function."""
    assert isinstance(tiling, TableTiling)
    kb.acquire(*kb.wait_operands)
    with kb.when(kb.compare("<", kb.begin, kb.end)):
        control = ControlBuilder(kb, len(body.operands), tiling.inner.units, tiling.width)
        host_emitter_of(tiling.kernel)(control, body, tiling.inner)
        out = body.epilogue.outputs[0]
        status = kb.load(kb.operand(out.target, (out.offset + STATUS_WORD) * DType.I32.itemsize), DType.I32)
        with kb.when(kb.compare("!=", status, FINE)):
            kb.end_program(EXIT_DATA)


EMIT = {"aicore.tiling": emit}
