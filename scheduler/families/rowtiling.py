"""How row-wise operators are cut on the host.

A unit is one outer index (with all of the row), or, with an inner dimension, `block` inner positions of one outer
index. Short rows may be walked across: the last outer dimension is taken as the inner one, so that each lane is a row
of its own and no statistic is put together from lanes; elements are then loaded and stored one by one.

Invariant: a row is never shared by two units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Box
from superkernel.ir.body import Body
from superkernel.ir.collapse import runs_of_range, walks_of
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, elements_ns, memory_ns, program_traffic, program_weight
from superkernel.scheduler.families.kernel import HostTiling
from superkernel.scheduler.families.open_extents import OPEN, open_axis, opened
from superkernel.scheduler.families.pointwise import LINE_BYTES
from superkernel.scheduler.families.rowops import ALONG_AXIS, OVER_TAIL, space_of
from superkernel.scheduler.families.rowspace import RowSpace, remap
from superkernel.scheduler.tiling import Access, Representative
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

LANE_NS = 0.25  # an element that goes into a vector, or out of one, by itself


def across(space: RowSpace) -> RowSpace:
    """A space without an inner dimension, with its last outer one as that."""
    count = len(space.outer) - 1
    dims = [*range(count), *range(count + 1, count + 1 + len(space.row)), count]
    shape = tuple(space.epilogue.shape[d] for d in dims)
    programs = tuple(None if p is None else remap(p, shape, dims) for p in space.programs)
    return RowSpace(space.outer[:-1], space.row, space.outer[-1], programs)


@dataclass(frozen=True)
class RowTiling(HostTiling):
    """Units of a row space; `scratch` as in `Tiling`; `work` vector instructions per vector of data beside the
    programs'; `results` per row where they are fewer than its elements (topk), -1: as the epilogue's own strides have
    it; `unit_ns` what a unit takes beside its elements; `is_across`: see the module docstring."""

    outer: int
    inner: int
    block: int
    scratch: int
    work: float
    results: int = -1
    unit_ns: float = 6.0
    is_across: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of the inner dimension."""
        return -(-self.inner // self.block) if self.inner else 0

    @property
    def units(self) -> int:
        return self.outer * self.blocks

    @property
    def scratch_bytes(self) -> int:
        return self.scratch

    def space(self, body: Body) -> RowSpace:
        """The body's row space: by operator, found where the family is defined."""
        space = space_of(body)
        return across(space) if self.is_across else space

    def boxes(self, space: RowSpace, begin: int, end: int) -> list[Box]:
        """Coordinates of the row space that units [begin, end) cover."""
        rows = tuple((0, d) for d in space.row)
        if len(space.outer) + len(space.row) == len(space.epilogue.shape):
            return [(*box, *rows) for box in runs_of_range(space.outer, begin, end)]
        boxes: list[Box] = []
        for box in runs_of_range((*space.outer, self.blocks), begin, end):
            first, last = box[-1]
            boxes.append((*box[:-1], *rows, (first * self.block, min(self.inner, last * self.block))))
        return boxes

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        space, found = self.space(body), AccessSet(body)
        boxes = self.boxes(space, begin, end)
        for program in space.programs[:-1]:
            if program is not None:
                found.program(program, *boxes)
        found.program(space.epilogue, *(self._result_box(space, box) for box in boxes))
        return found.result()

    def _result_box(self, space: RowSpace, box: Box) -> Box:
        """The epilogue's part of a box: a reduction over nothing still has a result, topk has fewer than the row."""
        first, last = len(space.outer), len(space.outer) + len(space.row)
        if self.results >= 0:
            return (*box[:first], (0, self.results), *box[last:])
        return tuple((a, max(b, a + 1)) for a, b in box)

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        if begin >= end:
            return 0.0
        space = self.space(body)
        share = (end - begin) / self.units
        data = prod(space.data.shape) * share
        weight = self.work + sum(program_weight(p) for p in space.programs[:-1] if p is not None)
        results = prod(o.size for o in body.anchor_outputs[:1]) * share
        item = 8 if space.data.inputs and space.data.inputs[0].dtype is DType.F64 else 4
        work = elements_ns(data, weight, target, item)
        work += elements_ns(results, program_weight(space.epilogue), target, item)
        sizes = [o.type.dtype.itemsize for o in body.operands]
        traffic = sum(program_traffic(p, sizes) for p in space.programs if p is not None)
        moved = max(work, memory_ns(traffic * share, traffic, target))
        return CALL_NS + (end - begin) * self.unit_ns + moved + share * LANE_NS * self._by_lane(space)

    def _by_lane(self, space: RowSpace) -> int:
        """Elements that are loaded or stored one by one."""
        if not self.is_across:
            return 0
        walks = [walk for p in space.programs if p is not None for walk in walks_of(p)]
        return prod(space.data.shape) * sum(abs(walk[-1]) > 1 for walk in walks)

    def representative(self, body: Body, target: Target) -> Representative | None:
        """The outermost dimension is open: how many rows there are, no code asks."""
        if body.op not in (*ALONG_AXIS, *OVER_TAIL) or self.is_across or self.inner != 1:
            return None
        axis, space = open_axis(body, (0,)), space_of(body)
        if axis is None or not space.outer or len(space.epilogue.shape) > len(space.outer) + len(space.row):
            return None
        wide = opened(body, {axis: OPEN}, {0: {axis: OPEN}})
        open_space = space_of(wide)
        if (open_space.outer[1:], open_space.row, open_space.inner) != (space.outer[1:], space.row, 1):
            return None
        return Representative(wide, replace(self, outer=prod(open_space.outer)), {})

    def align(self, body: Body, unit: int) -> int:
        """Whole cache lines of results per core where a unit writes less than one."""
        size = body.anchor_outputs[0].nbytes // max(1, self.units)
        if not 0 < size < LINE_BYTES:
            return unit
        per_line = LINE_BYTES // size
        return min(self.units, round(unit / per_line) * per_line)
