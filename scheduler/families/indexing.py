"""host.index: gathers by element and by tuple, scatters, one_hot, topk, resize. How each is cut.

Gathers are cut as their epilogue is (see lookup); one_hot and resize by output rows; topk by rows of the data (see
rowspace). A scatter is one unit: its updates apply in order, anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from superkernel.core.errors import InternalError
from superkernel.core.tensor import full_box
from superkernel.ir.body import Body
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, memory_ns
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.families.lookup import LookupTiling
from superkernel.scheduler.families.movement import OutputRowsTiling, tile_lookup
from superkernel.scheduler.families.rowops import integer, space_of
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.scheduler.families.rowtiling import RowTiling
from superkernel.scheduler.families.rowwise import block_of
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.cpu import CpuTarget


@dataclass(frozen=True)
class WholeTiling(HostTiling):
    """One unit: everything is read, all results are written. The result is built in scratch."""

    results: int
    scratch: int

    @property
    def units(self) -> int:
        return 1 if self.results else 0

    @property
    def scratch_bytes(self) -> int:
        return self.scratch

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        for program in (*(slot_program(body, k) for k in range(len(body.anchor_inputs))), body.epilogue):
            if program is not None:
                found.program(program, full_box(program.shape))
        return found.result()

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        if begin >= end:
            return 0.0
        traffic = sum(o.type.nbytes for o in body.operands) + 2 * self.scratch
        updates = body.anchor_input_types[1]
        return CALL_NS + memory_ns(traffic, traffic, target) + 3.0 * (updates.size if updates is not None else 0)


class IndexFamily(KernelFamily[CpuTarget]):
    """Moves whose paths are data."""

    any_view = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        op, out = str(body.op), body.anchor_outputs[0]
        if op in ("gather_elements", "gather_nd"):
            return (LookupTiling(tile_lookup(body, target)),)
        if op in ("scatter_elements", "scatter_nd"):
            return (WholeTiling(out.size, -(-out.nbytes // 64) * 64),)
        if op in ("one_hot", "resize"):
            return (OutputRowsTiling(out.shape or (1,), (), (), 0, 8.0 if op == "one_hot" else 60.0),)
        if op == "topk":
            space, k = space_of(body), integer(body.attr["k"])
            block = block_of(space, target, 1)
            return (RowTiling(prod(space.outer) if k else 0, space.inner, block, 0, 6.0 * max(1, k), k),)
        raise InternalError("not an indexing operator", location=op)


KERNELS = (
    HostKernelDef(
        id="host.index",
        ops=("gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "one_hot", "topk", "resize"),
        family=IndexFamily(),
        emitter="indexing",
        micro="index",
    ),
)
