"""aicore.gather: rows of a table by index, one transfer per row.

Model: the control unit reads an index, wraps and clamps it (see `scheduler.families.lookup`) and has MTE2 copy the row
it names into the tile; what follows is the epilogue on the tile. The plan's space gets, where an index moves along its
last dimension, a further dimension of one element, so that there always is a row of elements side by side: then a
transfer brings one element, which is slow, and `cost_cycles` says so.

Which rows are read is data: declared is all that may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, PointwiseProgram, Role, View
from superkernel.ir.collapse import walked
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.aicore.base import AicoreTiling, VectorTiling
from superkernel.scheduler.families.aicore.cuts import SLOTS, Cut, output_types, ub_bytes
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.kernel import INDEX_TYPES, AicoreKernelDef
from superkernel.scheduler.families.aicore.lowering import engine_type
from superkernel.scheduler.families.aicore.pointwise import CALL_CYCLES
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.tilecode import COUNT_MAX, Register, TileCode, TileLayout
from superkernel.scheduler.families.aicore.tilecode import Home as TileHome
from superkernel.scheduler.families.lookup import LookupPlan, lookup_plan
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.aicore import AicoreTarget

ROWS_MAX = 256  # of a tile: its first transfer is out before the last index is read
INDEX_CYCLES = 20  # wrapping, clamping and the transfer's words, beside the load


@dataclass(frozen=True)
class RowPlan(LookupPlan):
    """A gather whose columns `col` lie side by side; `row` -1: one row."""

    row: int
    col: int


@lru_cache(maxsize=1024)
def row_plan(body: Body) -> RowPlan:
    """The plan of a body."""
    plan = lookup_plan(body)
    rank, walk = len(plan.epilogue.shape), plan.base.inputs[0].strides
    fit = [d for d in range(rank) if walk[d] == 1 and all(p.inputs[0].strides[d] == 0 for p in plan.indices)]
    if not fit:
        epilogue, base = _with_column(plan.epilogue, 1), _with_column(plan.base, 1)
        plan = replace(plan, epilogue=epilogue, base=base, indices=tuple(_with_column(p, 0) for p in plan.indices))
        fit, rank = [rank], rank + 1
    others = [d for d in range(rank) if d != fit[-1]]
    row = max(others, key=lambda d: (plan.epilogue.shape[d], d), default=-1)
    return RowPlan(plan.base, plan.indices, plan.extents, plan.jumps, plan.epilogue, row, fit[-1])


def _with_column(program: PointwiseProgram, stride: int) -> PointwiseProgram:
    """The program with a last dimension of one element."""
    return walked(program, (*program.shape, 1), lambda strides: (*strides, stride))


def gather_code(body: Body) -> TileCode:
    """The epilogue's tile code; the gathered rows are the anchor's tile."""
    plan = row_plan(body)
    return lower(plan.epilogue, output_types(body, plan.epilogue), plan.row, plan.col, anchors=(anchor_type(body),))


def anchor_type(body: Body) -> DType:
    """The element type under which engines know the table's elements."""
    return engine_type(row_plan(body).base.inputs[0].dtype)


@dataclass(frozen=True)
class GatherTiling(VectorTiling):
    """Tiles of rows; the cut's running dimension is the row."""

    cut: Cut

    @property
    def units(self) -> int:
        return self.cut.units

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return row_plan(body).accesses(body, self.cut.boxes(begin, end) if begin < end else ())

    def moved_bytes(self, body: Body) -> tuple[int, int]:
        """Rows as they come out: the table is not read as a whole."""
        written = sum(o.type.nbytes for o in body.operands if o.role is Role.OUTPUT)
        return written, written

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        code, plan = gather_code(body), row_plan(body)
        rows = sum(prod(b - a for d, (a, b) in enumerate(box) if d != plan.col) for box in self.cut.boxes(begin, end))
        item = anchor_type(body).itemsize
        transfer = target.move_cycles("rates.gm_to_ub_gb_per_s", 1, self.cut.block * item)
        index = len(plan.indices) * (target.control.global_load_cycles + INDEX_CYCLES)
        return CALL_CYCLES + rows * max(transfer, index) + self.cut.cycles(plan.epilogue, code, begin, end, target)


class GatherFamily(KernelFamily[AicoreTarget]):
    """Embedding rows, and the slices that an index tensor names."""

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        plan = row_plan(body)
        shape = plan.epilogue.shape
        if 0 in shape or 0 in plan.extents:
            return (GatherTiling(Cut(shape if 0 in shape else (*shape[:-1], 0), plan.row, plan.col, 1, 1, 1)),)
        code, width = gather_code(body), shape[plan.col]
        columns = min(width, COUNT_MAX)
        while columns:
            cut = Cut(shape, plan.row, plan.col, 1, 1, columns)
            rows = _rows(cut, code, body, target)
            if rows >= min(4, cut.extent) or (rows and columns <= 256):
                return (GatherTiling(replace(cut, tile=rows)),)
            columns //= 2
        raise UnsupportedError("no tile of the gather fits", location="memory.ub_bytes", found=target.memory.ub_bytes)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        return slot == 1 or view.is_dense or (bool(view.strides) and view.strides[-1] == 1)


def gathered_bytes(cut: Cut, body: Body, target: AicoreTarget) -> int:
    """Bytes of the gathered rows in one slot."""
    size = cut.size(target)
    layout = TileLayout.MATRIX if cut.row >= 0 and cut.shape[cut.row] != 1 else TileLayout.ROW
    return ceil_to(size.nbytes(Register(layout, anchor_type(body), TileHome.ANCHOR)), target.memory.block_bytes)


def _rows(cut: Cut, code: TileCode, body: Body, target: AicoreTarget) -> int:
    """The rows of the largest tile; 0: not one fits."""
    rows = min(cut.extent, ROWS_MAX)
    while rows:
        tried = replace(cut, tile=rows)
        if ub_bytes(tried, code, target) + SLOTS * gathered_bytes(tried, body, target) <= target.memory.ub_bytes:
            return rows
        rows //= 2
    return 0


FAMILY = GatherFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.gather",
        ops=("gather",),
        family=FAMILY,
        emitter="gather",
        micro="move",
        modifier="gather",
        limits=(one_of(Reason.DTYPE, "in1.dtype", *INDEX_TYPES),),
        rounding=EXACT,
    ),
)
