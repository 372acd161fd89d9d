"""host.pointwise: programs without an anchor. How their iteration space is cut.

Model: the program's space is brought to canonical form (see collapse): outer dimensions walked as `rows` and one
inner dimension of `inner` elements. A unit is either a `chunk` of one row (long rows, or one dimension only) or
`rows_per_unit` whole rows (short rows). Where an input's elements lie side by side along another dimension than the
stores' (a transposition), the unit is instead a block of `lanes` x `inner` elements in that dimension (`plane`): the
kernel then loads vectors along it and turns square tiles in registers, or interleaves them where the last dimension is
short (`narrow`).

Code is shared by all extents of outer dimensions, and by all lengths of a single row that end with the same part of a
vector.

Invariant: chunk and rows_per_unit do not depend on how many cores there are; a row or chunk is computed the same way
in whichever unit it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Box
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ir.collapse import canonical, runs_of_range
from superkernel.ops.opdef import Family as OpFamily
from superkernel.registry.predicates import Reason, one_of, within
from superkernel.registry.requirement import POINTWISE
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, elements_ns, memory_ns, program_traffic, program_weight
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.families.open_extents import OPEN, Marks, open_operands
from superkernel.scheduler.kerneldef import ops_of
from superkernel.scheduler.tiling import Access, KernelFamily, Representative
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

UNIT_ELEMENTS = 512  # a unit of at least this many elements: overhead stays small, eight cores can share a few thousand
SHARED_ELEMENTS = 2 * UNIT_ELEMENTS  # from so many on it does not matter that a size is read from a table
LINE_BYTES = 64
PLANE_WEIGHT = 6.0  # shuffles and further loads and stores per vector of a turned tile
NARROW_WEIGHT = 2.0  # of an interleaved one
SIDE_MAX = 16  # of a square tile
NARROW_MAX = 8  # positions of the last dimension that are interleaved
NARROW_BLOCK = 256  # positions of the plane dimension that are a unit then


@dataclass(frozen=True)
class PointwiseTiling(HostTiling):
    """See the module docstring. `plane` is the dimension of the canonical program whose blocks of `block` are the
    units' rows, -1 without; `narrow`: so many of its positions are interleaved at once, 0 for square tiles."""

    rows: int  # product of the outer dimensions (with a plane: of all but the plane and the last)
    inner: int  # extent of the last dimension (1 at rank 0)
    rows_per_unit: int
    chunk: int
    plane: int = -1
    block: int = 1
    plane_extent: int = 1
    narrow: int = 0

    @property
    def chunks(self) -> int:
        """Pieces a row is cut into."""
        return -(-self.inner // self.chunk) if self.inner else 0

    @property
    def blocks(self) -> int:
        """Blocks of the plane dimension."""
        return -(-self.plane_extent // self.block)

    @property
    def units(self) -> int:
        if self.plane >= 0:
            return self.rows * self.blocks
        return -(-self.rows // self.rows_per_unit) * self.chunks

    def boxes(self, program: PointwiseProgram, begin: int, end: int) -> list[Box]:
        """The coordinates of the canonical program that units [begin, end) cover."""
        if begin >= end:
            return []
        shape = program.shape
        if not shape:
            return [()]
        if self.plane >= 0:
            return self._plane_boxes(shape, begin, end)
        if self.chunks == 1:
            stop = min(self.rows, end * self.rows_per_unit)
            outer = runs_of_range(shape[:-1], begin * self.rows_per_unit, stop)
            return [(*box, (0, self.inner)) for box in outer]
        boxes: list[Box] = []
        for rows, pieces in ((box[:-1], box[-1]) for box in runs_of_range((*shape[:-1], self.chunks), begin, end)):
            boxes.append((*rows, (pieces[0] * self.chunk, min(self.inner, pieces[1] * self.chunk))))
        return boxes

    def _plane_boxes(self, shape: tuple[int, ...], begin: int, end: int) -> list[Box]:
        others = shape[: self.plane] + shape[self.plane + 1 : -1]
        boxes: list[Box] = []
        for box in runs_of_range((*others, self.blocks), begin, end):
            *rest, (first, last) = box
            part = (first * self.block, min(self.plane_extent, last * self.block))
            boxes.append((*rest[: self.plane], part, *rest[self.plane :], (0, self.inner)))
        return boxes

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        program = canonical(body.epilogue)
        found = AccessSet(body)
        found.program(program, *self.boxes(program, begin, end))
        return found.result()

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        return self.program_ns(body, canonical(body.epilogue), begin, end, target)

    def program_ns(self, body: Body, program: PointwiseProgram, begin: int, end: int, target: CpuTarget) -> float:
        """Time of units [begin, end) of a program that this tiling cuts."""
        if begin >= end:
            return 0.0
        size = prod(program.shape)
        count = size * (end - begin) / max(1, self.units)
        item = widest_item(program)
        extra = (
            (NARROW_WEIGHT if self.narrow else PLANE_WEIGHT)
            if self.plane >= 0
            else _gather_weight(program, target, item)
        )
        work = elements_ns(count, program_weight(program) + extra, target, item)
        rows = count / max(1, min(self.inner, self.chunk))
        traffic = program_traffic(program, [o.type.dtype.itemsize for o in body.operands])
        return CALL_NS + rows * 1.5 + max(work, memory_ns(traffic * count / max(1, size), traffic, target))

    def align(self, body: Body, unit: int) -> int:
        """Whole cache lines of the first output per core where units are shorter."""
        outputs = [o for o in canonical(body.epilogue).outputs if o.target >= 0]
        if self.plane >= 0 or not outputs:
            return unit
        unit_bytes = self.inner * self.rows_per_unit * body.operands[outputs[0].target].type.dtype.itemsize
        per_line = max(1, LINE_BYTES // max(1, unit_bytes))
        return min(self.units, round(unit / per_line) * per_line)

    def representative(self, body: Body, target: Target) -> Representative | None:
        """All but the last dimension are open, and a dimension alone."""
        program = canonical(body.epilogue)
        found = self.opened(program, target) if body.op is None else None
        if found is None:
            return None
        tiling, wide, sizes = found
        if canonical(wide) != wide:
            return None
        return Representative(replace(body, operands=open_operands(body), epilogue=wide), tiling, sizes)

    def opened(
        self, program: PointwiseProgram, target: Target
    ) -> tuple[PointwiseTiling, PointwiseProgram, Mapping[str, int]] | None:
        """For other extents of a canonical program: tiling and program, and the sizes that the code reads. None where
        each extent has code of its own."""
        shape = program.shape
        if self.plane >= 0 or prod(shape) < SHARED_ELEMENTS or not shape:
            return None
        if len(shape) == 1:
            if self.chunks <= 1 or not isinstance(target, CpuTarget):
                return None
            extent = OPEN + (self.inner - OPEN) % max(1, target.vector_bytes // widest_item(program))
            tiling = replace(self, inner=extent, chunk=UNIT_ELEMENTS)
            return tiling, replace(program, shape=(extent,)), {"inner": self.inner, "chunk": self.chunk}
        tiling, marks = replace(self, rows=OPEN), Marks()
        if len(shape) > 2:  # extents of what lies inside are divided by, and strides go by them
            extents = tuple(map(marks.of, shape[1:-1]))
            wide = marks.walked(program, range(len(shape) - 1))
            wide = replace(wide, shape=(OPEN, *extents, shape[-1]))
        else:
            wide = replace(program, shape=(OPEN, shape[-1]))
        if self.chunks > 1:
            return tiling, wide, marks.sizes
        rows = {"rows": self.rows, "rows_per_unit": self.rows_per_unit}
        return replace(tiling, rows_per_unit=OPEN), wide, {**rows, **marks.sizes}


def widest_item(program: PointwiseProgram) -> int:
    """Bytes of the widest number the program computes with."""
    dtypes = [i.dtype for i in program.inputs] + [i.dtype for i in program.instructions]
    return max((4 if d in (DType.F16, DType.BF16) else d.itemsize for d in dtypes), default=1)


def _gather_weight(program: PointwiseProgram, target: CpuTarget, item: int) -> float:
    """Extra instructions per vector for operands that are not contiguous along the last dimension."""
    if not program.shape:
        return 0.0
    lanes = max(1, target.vector_bytes // item)
    strides = [i.strides[-1] for i in program.inputs if i.source >= 0]
    strides += [o.strides[-1] for o in program.outputs if o.target >= 0]
    return sum(2.0 * lanes for s in strides if abs(s) > 4)


def find_plane(program: PointwiseProgram) -> int:
    """The dimension along which an input is contiguous that is strided along the last one, if a transposition pays;
    else -1."""
    shape = program.shape
    if len(shape) < 2 or shape[-1] < 2 or any(o.strides[-1] != 1 for o in program.outputs if o.target >= 0):
        return -1
    for item in program.inputs:
        if item.source >= 0 and abs(item.strides[-1]) > 1:
            for dim in range(len(shape) - 1):
                if item.strides[dim] == 1 and shape[dim] >= 4 and (shape[-1] >= 4 or interleaves(program, dim)):
                    return dim
    return -1


def interleaves(program: PointwiseProgram, plane: int) -> bool:
    """Whether the program only copies, and what it stores along the plane and the last dimension lies side by side."""
    if program.instructions or len(program.inputs) != 1 or len(program.outputs) != 1:
        return False
    (item,), (out,), inner = program.inputs, program.outputs, program.shape[-1]
    stored = out.target >= 0 and (out.strides[plane], out.strides[-1]) == (inner, 1)
    return stored and item.source >= 0 and item.strides[plane] == 1 and 2 <= inner <= NARROW_MAX


class PointwiseFamily(KernelFamily[CpuTarget]):
    """Pure pointwise work and copies; transpositions among them."""

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        return (tile_program(body, canonical(body.epilogue), target),)


def tile_program(body: Body, program: PointwiseProgram, target: CpuTarget) -> PointwiseTiling:
    """How a canonical program over the body's operands is cut."""
    shape = program.shape
    lanes = max(1, target.vector_bytes // widest_item(program))
    inner = shape[-1] if shape else 1
    rows = prod(shape[:-1]) if shape else 1
    if 0 in shape:
        return PointwiseTiling(0, 0, 1, 1)
    plane = find_plane(program)
    if plane >= 0:
        extent = shape[plane]
        side = min(SIDE_MAX, lanes)
        if inner < side and interleaves(program, plane):
            narrow = 1 << (min(side, extent).bit_length() - 1)
            return PointwiseTiling(rows // extent, inner, 1, inner, plane, min(NARROW_BLOCK, extent), extent, narrow)
        stored = next(o.target for o in program.outputs if o.target >= 0)
        block = max(lanes, LINE_BYTES // body.operands[stored].type.dtype.itemsize)
        return PointwiseTiling(rows // extent, inner, 1, inner, plane, min(block, extent), extent)
    if inner >= 2 * UNIT_ELEMENTS:
        chunk = UNIT_ELEMENTS * max(1, min(8, inner // (16 * UNIT_ELEMENTS)))
        if rows >= 16 and inner <= 8 * UNIT_ELEMENTS:
            chunk = inner
        return PointwiseTiling(rows, inner, 1, chunk)
    if rows == 1:
        return PointwiseTiling(1, inner, 1, UNIT_ELEMENTS if inner > UNIT_ELEMENTS else max(1, inner))
    return PointwiseTiling(rows, inner, max(1, min(UNIT_ELEMENTS // inner, -(-rows // 2))), inner)


FAMILY = PointwiseFamily()

KERNELS = (
    HostKernelDef(
        id="host.pointwise",  # programs take views in, so they copy too
        ops=(POINTWISE, *ops_of(OpFamily.POINTWISE), *ops_of(OpFamily.VIEW, OpFamily.RESHAPE)),
        family=FAMILY,
        emitter="pointwise",
        micro="vprogram",
    ),
    HostKernelDef(
        id="host.transpose",  # copies that change the last dimension, plane by plane
        ops=(POINTWISE, "transpose"),
        family=FAMILY,
        emitter="pointwise",
        micro="move",
        modifier="transpose",
        limits=(one_of(Reason.LAYOUT, "copy", True), within(Reason.STRIDE, "inner_stride", 2)),
        rounding=EXACT,
    ),
)
