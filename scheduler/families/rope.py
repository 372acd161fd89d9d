"""host.rope: rotary position embedding; a unit is one (batch, head, position) row of the output.

Code is shared by all numbers of positions and batches: positions lie inside heads as a rule, so that coordinates are
counted, and strides of what lies outside are read from the table of sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.kernel import INDEX_TYPES, HostKernelDef, HostTiling
from superkernel.scheduler.families.movement import OutputRowsTiling
from superkernel.scheduler.families.open_extents import OPEN, Extents, Marks, opened
from superkernel.scheduler.families.pointwise import SHARED_ELEMENTS
from superkernel.scheduler.tiling import KernelFamily, Representative
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

_POSITION = 3  # the slot of what says where a sequence begins


@dataclass(frozen=True)
class RopeTiling(OutputRowsTiling):
    """See the module docstring."""

    def representative(self, body: Body, target: Target) -> Representative | None:
        """Batches and positions are open."""
        batch, _, positions, _ = self.shape
        if not 1 < positions < OPEN or prod(self.shape) < SHARED_ELEMENTS:
            return None
        marks = Marks()
        extent, batches = marks.of(positions), OPEN if batch > 1 else batch
        inputs: dict[int, Extents] = {0: {0: batches, 2: extent}}
        for slot, kind in enumerate(body.anchor_input_types[1:], 1):
            if kind is None or (slot < _POSITION and has_position(body)):  # tables are read as a whole then
                continue
            lead, rows = (0, 1) if slot == _POSITION else (kind.rank - 4, kind.rank - 2)
            wanted = {lead: (batch, batches), rows: (positions, extent)}
            inputs[slot] = {
                axis: new
                for axis, (old, new) in wanted.items()
                if 0 <= axis < kind.rank and kind.shape[axis] == old > 1
            }
        wide = opened(body, inputs[0], inputs)
        sources = list(wide.anchor_inputs)
        for slot in inputs:
            source = sources[slot]
            if source is not None:
                sources[slot] = marks.walked(source, range(len(source.shape) - (1 if slot == _POSITION else 2)))
        wide = replace(wide, anchor_inputs=tuple(sources), epilogue=marks.walked(wide.epilogue, (0, 1)))
        return Representative(wide, replace(self, shape=wide.anchor_outputs[0].shape), marks.sizes)


def has_position(body: Body) -> bool:
    """Whether it is data where sequences begin."""
    return len(body.anchor_inputs) > _POSITION and body.anchor_inputs[_POSITION] is not None


class RopeFamily(KernelFamily[CpuTarget]):
    """Tables with a row per position are read in full where the position is data."""

    any_view = True
    prologue_slots = (0,)

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        return (RopeTiling(body.anchor_outputs[0].shape, (0,), () if has_position(body) else (1, 2), 0, 8.0),)


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
