"""host.nonzero, host.non_max_suppression: how many results there are is data. How they are cut.

Each is one unit: where a result stands hangs on how many were found before it. Inputs are read through any view; all of
the result is written, zeros behind what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.core.tensor import full_box
from superkernel.ir.body import Body, View
from superkernel.ops.counting import COMPARED
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, memory_ns
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.families.rowops import integer
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.cpu import CpuTarget

EDGES = 5  # numbers that are kept of a box
_LOOK_NS, _FOUND_NS, _PAIRS_NS = 0.1, 20.0, 4.0  # of an element, of what is found, of a vector of pairs


def view_of(body: Body, slot: int) -> View:
    """An input, as it lies in memory."""
    found = body.anchor_inputs[slot]
    if not isinstance(found, View):
        raise InternalError("an input that is not read from memory", location=str(body.op), found=slot)
    return found


@dataclass(frozen=True)
class CountingTiling(HostTiling):
    """One unit. `boxes`: candidates of a class, each an i32 of scratch; `kept`: of these at most, as edges behind, in
    vectors of `lanes`."""

    looks: int
    found: int
    boxes: int = 0
    kept: int = 0
    lanes: int = 1

    @property
    def units(self) -> int:
        return 1

    @property
    def heap_bytes(self) -> int:
        """Of the candidates: whole cache lines."""
        return -(-self.boxes * DType.I32.itemsize // 64) * 64

    @property
    def kept_rounded(self) -> int:
        """Whole vectors of boxes."""
        return -(-self.kept // self.lanes) * self.lanes

    @property
    def scratch_bytes(self) -> int:
        return self.heap_bytes + self.kept_rounded * EDGES * DType.F32.itemsize

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        for view in (view_of(body, slot) for slot in range(len(body.anchor_inputs))):
            found.view(view.operand, full_box(view.shape), view.strides, view.offset)
        for out in body.epilogue.outputs:
            found.view(out.target, full_box(body.anchor_outputs[0].shape), out.strides, out.offset, write=True)
        return found.result()

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        if begin >= end:
            return 0.0
        traffic = sum(o.type.nbytes for o in body.operands)
        work = self.looks * _LOOK_NS + self.found * (_FOUND_NS + self.kept_rounded / self.lanes * _PAIRS_NS)
        return CALL_NS + memory_ns(traffic, traffic, target) + work


class CountingFamily(KernelFamily[CpuTarget]):
    """See the module docstring."""

    any_view = True
    stores_only = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        shape, size = view_of(body, len(body.anchor_inputs) - 1).shape, integer(body.attr["size"])
        if body.op == "nonzero":
            return (CountingTiling(prod(shape), size),)
        kept, lanes = min(integer(body.attr["limit"]), shape[2]), target.vector_bytes // DType.F32.itemsize
        return (CountingTiling(prod(shape), size, shape[2], kept, lanes),)


FAMILY = CountingFamily()

KERNELS = (
    HostKernelDef(
        id="host.nonzero",
        ops=("nonzero",),
        family=FAMILY,
        emitter="counting",
        micro="index",
        modifier="nonzero",
        rounding=EXACT,
        code_bytes=1024,
    ),
    HostKernelDef(
        id="host.non_max_suppression",
        ops=("non_max_suppression",),
        family=FAMILY,
        emitter="counting",
        micro="index",
        modifier="suppression",
        dtypes=COMPARED,
        others=(COMPARED,),
        rounding=EXACT,
        code_bytes=4096,
    ),
)
