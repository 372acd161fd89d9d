"""Anchors that look elements up by index tensors: gather, gather_elements, gather_nd.

Model: all three read, at output coordinates c, the element of x at offset + sum(c[d] * strides[d]) + sum(index_k(c) *
jump_k), where index_k is an affine view of the index tensor over the output's space. A `LookupPlan` holds these views
as programs over one canonical space, in step with the epilogue.

Indices from the end are wrapped and then clamped into 0 .. extent - 1: nothing is ever read out of bounds. Which
elements of x are read is data: declared is all that may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superkernel.core.errors import InternalError
from superkernel.core.tensor import Box
from superkernel.ir.body import Body, PointwiseProgram, ProgramInput, ProgramOutput, View
from superkernel.ir.collapse import canonical_together
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.kernel import HostTiling
from superkernel.scheduler.families.open_extents import opened
from superkernel.scheduler.families.pointwise import PointwiseTiling
from superkernel.scheduler.families.rowops import integer
from superkernel.scheduler.tiling import Access, Representative
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget


@dataclass(frozen=True)
class LookupPlan:
    """See the module docstring. `base` and `indices` are loads over the epilogue's space; `extents` and `jumps` per
    index."""

    base: PointwiseProgram
    indices: tuple[PointwiseProgram, ...]
    extents: tuple[int, ...]
    jumps: tuple[int, ...]
    epilogue: PointwiseProgram

    def accesses(self, body: Body, boxes: Sequence[Box]) -> tuple[Access, ...]:
        """What boxes of the space read and write."""
        found, x = AccessSet(body), self.base.inputs[0]
        free = tuple((0, extent) for extent in self.extents)
        for box in boxes:
            found.view(x.source, (*box, *free), (*x.strides, *self.jumps), x.offset)
        for program in (*self.indices, self.epilogue):
            found.program(program, *boxes)
        return found.result()


def _load(
    view: View, body: Body, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> PointwiseProgram:
    kind = body.anchor_input_types[slot]
    assert kind is not None
    item = ProgramInput(view.operand, kind.dtype, strides, view.offset + offset)
    return PointwiseProgram(shape, (item,), (), (ProgramOutput(0, -1),))


@lru_cache(maxsize=1024)
def lookup_plan(body: Body) -> LookupPlan:
    """The plan of a gather. Raises InternalError for another operator or for inputs that are no views."""
    x, index = body.anchor_inputs[:2]
    if not isinstance(x, View) or not isinstance(index, View):
        raise InternalError("gathers take views", location=str(body.op))
    shape = body.anchor_outputs[0].shape
    zero = (0,) * len(index.shape)
    if body.op == "gather":
        axis = integer(body.attr["axis"]) % len(x.shape)
        base = (*x.strides[:axis], *zero, *x.strides[axis + 1 :])
        views = [((0,) * axis + index.strides + (0,) * (len(x.shape) - axis - 1), 0, axis)]
    elif body.op == "gather_elements":
        axis = integer(body.attr["axis"]) % len(x.shape)
        base = tuple(0 if d == axis else s for d, s in enumerate(x.strides))
        views = [(index.strides, 0, axis)]
    elif body.op == "gather_nd":
        batch, width = integer(body.attr["batch_dims"]), index.shape[-1]
        lead, rest = len(index.shape) - 1, x.strides[batch + width :]
        base = (*x.strides[:batch], *(0,) * (lead - batch), *rest)
        views = [(index.strides[:-1] + (0,) * len(rest), k * index.strides[-1], batch + k) for k in range(width)]
    else:
        raise InternalError("not a gather", location=str(body.op))
    loads = [_load(index, body, 1, shape, strides, offset) for strides, offset, _ in views]
    epilogue, moved, *indices = canonical_together([body.epilogue, _load(x, body, 0, shape, base, 0), *loads])
    axes = [axis for _, _, axis in views]
    return LookupPlan(
        moved, tuple(indices), tuple(x.shape[a] for a in axes), tuple(x.strides[a] for a in axes), epilogue
    )


@dataclass(frozen=True)
class LookupTiling(HostTiling):
    """Cut as the epilogue alone would be."""

    part: PointwiseTiling

    @property
    def units(self) -> int:
        return self.part.units

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        plan = lookup_plan(body)
        return plan.accesses(body, self.part.boxes(plan.epilogue, begin, end))

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        plan = lookup_plan(body)
        space = lookup_space(plan)
        fixed = all(not p.inputs[0].strides or p.inputs[0].strides[-1] == 0 for p in plan.indices)
        return (1.2 if fixed else 6.0) * self.part.program_ns(body, space, begin, end, target)

    def representative(self, body: Body, target: Target) -> Representative | None:
        """Of the indices of a gather the outermost dimension is open."""
        kind = body.anchor_input_types[0]
        if body.op != "gather" or kind is None:
            return None
        plan = lookup_plan(body)
        found = self.part.opened(plan.epilogue, target)
        axis = next((d for d, extent in enumerate(body.anchor_outputs[0].shape) if extent > 1), -1)
        of_indices = axis - integer(body.attr["axis"]) % kind.rank
        index = body.anchor_inputs[1]
        assert isinstance(index, View)
        if found is None or len(plan.epilogue.shape) != 2 or not 0 <= of_indices < len(index.shape):
            return None
        part, program, sizes = found
        shape = program.shape
        wide = opened(body, {axis: shape[0]}, {1: {of_indices: shape[0]}})
        programs = [replace(each, shape=shape) for each in (plan.base, *plan.indices, plan.epilogue)]
        base, *indices, epilogue = programs
        if lookup_plan(wide) != replace(plan, base=base, indices=tuple(indices), epilogue=epilogue):
            return None
        return Representative(wide, replace(self, part=part), sizes)


def lookup_space(plan: LookupPlan) -> PointwiseProgram:
    """The epilogue as a tiling sees it, the anchor's loads counted as inputs."""
    loads = (plan.base.inputs[0], *(p.inputs[0] for p in plan.indices))
    # Without instructions no number but an input's has a meaning: outputs name the first, which is the anchor's result.
    stores = tuple(replace(o, value=0) for o in plan.epilogue.outputs)
    return replace(plan.epilogue, inputs=(*plan.epilogue.inputs, *loads), instructions=(), outputs=stores)
