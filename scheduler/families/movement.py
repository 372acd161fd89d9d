"""host.concat, host.pad, host.tile, host.gather: how copies that are no single view are cut. See pieces and lookup
for the models.

host.pad also serves `trilu`, whose rows are copied with a part of each replaced by zeros (see the emitter); a unit is
a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from superkernel.core.tensor import Box
from superkernel.ir.body import Body
from superkernel.ir.collapse import runs_of_range
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, elements_ns, memory_ns, program_weight
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.families.lookup import LookupTiling, lookup_plan
from superkernel.scheduler.families.pieces import tile_pieces
from superkernel.scheduler.families.pointwise import PointwiseTiling, tile_program
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.cpu import CpuTarget


@dataclass(frozen=True)
class OutputRowsTiling(HostTiling):
    """A unit is one row of the anchor's output (all but the last dimension flattened). Slots listed in `aligned` have
    the output's shape and are read at the row's place; those in `leading` broadcast against all but the last
    dimension of it; the others may be read anywhere."""

    shape: tuple[int, ...]
    aligned: tuple[int, ...]
    leading: tuple[int, ...] = ()
    scratch: int = 0
    work: float = 4.0

    @property
    def units(self) -> int:
        return 0 if 0 in self.shape else prod(self.shape[:-1])

    @property
    def scratch_bytes(self) -> int:
        return self.scratch

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        boxes = [(*box, *((0, d) for d in self.shape[-1:])) for box in runs_of_range(self.shape[:-1], begin, end)]
        found.program(body.epilogue, *boxes)
        for slot in range(len(body.anchor_inputs)):
            program = slot_program(body, slot)
            if program is not None:
                found.program(program, *self._slot_boxes(slot, program.shape, boxes))
        return found.result()

    def _slot_boxes(self, slot: int, shape: tuple[int, ...], boxes: list[Box]) -> list[Box]:
        """The parts of an input that output boxes need."""
        if slot in self.aligned:
            return boxes
        if slot not in self.leading:
            return [tuple((0, d) for d in shape)]
        lead = len(self.shape) - len(shape)
        return [
            (*((0, 1) if d == 1 else span for d, span in zip(shape[:-1], box[lead:], strict=False)), (0, shape[-1]))
            for box in boxes
        ]

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        if begin >= end:
            return 0.0
        share = (end - begin) / self.units
        count = prod(self.shape) * share
        traffic = 2 * body.anchor_outputs[0].nbytes
        work = elements_ns(count, self.work + program_weight(body.epilogue), target)
        return CALL_NS + (end - begin) * 4.0 + max(work, memory_ns(traffic * share, traffic, target))


class MovementFamily(KernelFamily[CpuTarget]):
    """Copies that are no single affine view."""

    any_view = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        if body.op == "gather":
            return (LookupTiling(tile_lookup(body, target)),)
        if body.op == "trilu":
            return (OutputRowsTiling(body.anchor_outputs[0].shape, (0,)),)
        return (tile_pieces(body, target),)

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return op in ("concat", "trilu")


def tile_lookup(body: Body, target: CpuTarget) -> PointwiseTiling:
    """The epilogue's own cut; planes make no sense where rows are looked up."""
    from dataclasses import replace

    program = lookup_plan(body).epilogue
    part = tile_program(body, program, target)
    if part.plane < 0:
        return part
    rows = prod(program.shape[:-1])
    return replace(part, rows=rows, chunk=program.shape[-1], plane=-1, block=1, plane_extent=1)


FAMILY = MovementFamily()


def _kernel(name: str, *ops: str) -> HostKernelDef:
    """Of copies that are no single affine view; it works on bytes, so element types do not matter."""
    return HostKernelDef(
        id=f"host.{name}", ops=ops, family=FAMILY, emitter="movement", micro="move", modifier=name, rounding=EXACT
    )


KERNELS = (
    _kernel("concat", "concat"),
    _kernel("pad", "pad", "trilu"),
    _kernel("tile", "tile"),
    _kernel("gather", "gather"),
)
