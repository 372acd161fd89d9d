"""aicore.grouped_matmul: products of rows grouped by expert on cube cores, partitioned at run time.

Model: one unit per cube core, a *slot* of the table that `tile_groups` has computed (ops/grouped.py): which tiles of
rows and blocks of columns are a slot's stands there. A tile's rows of x and its expert's columns come into L1 chunk by
chunk of the depth, into L0 in steps; FIX stores the sums. Rows that belong to nobody are cleared by the control units.

Invariants: which core has which tile is known at run time only, so each declares all of the result
(`dynamically_partitioned`); what a tile's numbers are depends on its rows and its expert alone: slots and cores change
no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Region, TensorType
from superkernel.ir.body import Body, Role, View
from superkernel.ops.grouped import GroupTable
from superkernel.registry.predicates import Reason, one_of, within
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling
from superkernel.scheduler.families.aicore.cube import (
    CubeFactor,
    DepthCut,
    FactorLayout,
    chunk_bytes,
    cube_cycles,
    fix_cycles,
)
from superkernel.scheduler.families.aicore.kernel import FLOATS, INDEX_TYPES, TABLE_TYPES, AicoreKernelDef
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.grouped import W, X, product_table, read_rows, view_of
from superkernel.scheduler.tiling import Access, KernelFamily, Pack
from superkernel.target.aicore import AicoreTarget

ROWS_MAX, COLUMNS_MAX, COLUMNS_MIN = 128, 256, 64
UNITS_PER_CORE = 2  # that a cut aims at, so that cores can share them evenly
CHUNKS = 2  # slots of L1
TILE_WORDS_READ = 3  # per unit by the control unit, each a trip to global memory
UNIT_CONTROL, STEP_CONTROL = 200, 70  # cycles of the control unit


@dataclass(frozen=True)
class GroupedTiling(AicoreTiling):
    """See the module docstring. `rows`, `columns` of a tile at most; `sums`: tiles that L0C holds."""

    engines_write_all: ClassVar[bool] = False  # of each core; all together do
    dynamically_partitioned: ClassVar[bool] = True
    rows: int
    columns: int
    cut: DepthCut
    sums: int
    slots: int
    block_bytes: int
    line_block: int

    @property
    def kernel_type(self) -> AicoreKernelType:
        return AicoreKernelType.CUBE

    @property
    def units(self) -> int:
        return self.slots

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        read_rows(found, body)
        w = view_of(body, W)
        kind, pack = body.operands[w.operand].type, self.packs(body).get(w.operand)
        found.add(w.operand, False, (Region(0, kind.nbytes if pack is None else pack.packed_bytes(kind)),))
        extents = body.anchor_outputs[0].shape
        for out in body.epilogue.outputs:
            found.view(out.target, tuple((0, n) for n in extents), out.strides, out.offset, write=True)
        return found.result()

    def packs(self, body: Body) -> Mapping[int, Pack]:
        right = factors(body, self)[1]
        if right.layout is not FactorLayout.PACKED:
            return {}
        w = view_of(body, W)
        return {w.operand: right.pack(w.shape[:1], w.strides[:1])}

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        """Of a slot, if rows are spread evenly over the experts."""
        table = product_table(body)
        tiles = max(1, -(-table.rows // table.tile), min(table.experts, table.rows))
        rows = -(-table.rows // tiles)
        left, right = factors(body, self)
        cube = move = 0
        for _, depths in self.cut.chunk_list:
            move += left.load_cycles(rows, depths, target) + right.load_cycles(self.columns, depths, target)
        for _, depths in self.cut.step_list:
            feed = left.feed_cycles(rows, depths, target) + right.feed_cycles(self.columns, depths, target)
            cube += max(feed, cube_cycles(rows, self.columns, depths, left.dtype, target))
        fix = fix_cycles(rows, self.columns, left.item, right.lines * left.item, target)
        control = UNIT_CONTROL + len(self.cut.step_list) * STEP_CONTROL
        control += TILE_WORDS_READ * int(target.control.global_load_cycles)
        units = -(-tiles * table.columns // table.slots) * (end - begin)
        return units * max(cube, move, fix, control) + min(cube, move) + fix


@lru_cache(maxsize=1024)
def factors(body: Body, tiling: GroupedTiling) -> tuple[CubeFactor, CubeFactor]:
    """Rows of x, and columns of an expert's matrix. Only the depth, strides and layout of `lines` count for x: how many
    there are, the table says."""
    x, w, cut = view_of(body, X), view_of(body, W), tiling.cut
    kind = body.anchor_input_types[X]
    assert kind is not None
    layout = FactorLayout.PACKED if is_constant(body) else FactorLayout.DEPTHS
    columns = body.anchor_outputs[0].shape[1]
    resident = min(cut.chunk, cut.depth)
    blocks = (tiling.block_bytes, tiling.line_block)
    left = CubeFactor(
        x.operand, kind.dtype, FactorLayout.LINES, True, tiling.rows, tiling.rows, x.strides[0], 1, x.offset, cut,
        resident, *blocks,
    )  # fmt: skip
    right = CubeFactor(
        w.operand, kind.dtype, layout, False, columns, tiling.columns, 1, w.strides[1], w.offset, cut, resident, *blocks
    )
    return left, right


def is_constant(body: Body) -> bool:
    """Whether w is a constant that nothing else of the body reads, and may be packed."""
    operand = view_of(body, W).operand
    views = [v.operand for v in body.anchor_inputs if isinstance(v, View)]
    return body.operands[operand].role is Role.CONSTANT and views.count(operand) == 1


def grouped_cut(x: TensorType, w: TensorType, target: AicoreTarget) -> tuple[int, int, int]:
    """Rows of a tile, blocks of columns, slots: as many blocks as give each core some units even if every expert has
    one tile only, of at least COLUMNS_MIN columns."""
    slots, step = int(target.device.cube_cores), int(target.cube.n)
    rows = min(_rows_max(target), ceil_to(max(1, x.shape[0]), int(target.cube.m)))
    tiles = max(1, w.shape[0], -(-x.shape[0] // rows))
    wanted = -(-UNITS_PER_CORE * slots // tiles)
    width = max(ceil_to(-(-max(1, w.shape[2]) // wanted), step), COLUMNS_MIN)
    width = min(width, COLUMNS_MAX, _columns_max(rows, target))
    return rows, max(1, -(-w.shape[2] // width)), slots


def _rows_max(target: AicoreTarget) -> int:
    """Rows whose step is no more than half of L0A, and whose tile leaves room for columns."""
    memory, step = target.memory, int(target.cube.m)
    most = min(ROWS_MAX, memory.l0a_bytes // (2 * memory.block_bytes), memory.l0c_bytes // (4 * int(target.cube.n)))
    return max(step, most // step * step)


def _columns_max(rows: int, target: AicoreTarget) -> int:
    memory, step = target.memory, int(target.cube.n)
    most = min(memory.l0c_bytes // (4 * rows), memory.l0b_bytes // (2 * memory.block_bytes))
    return max(step, most // step * step)


def cut_of(table: GroupTable, body: Body, target: AicoreTarget) -> GroupedTiling:
    """The tiling of a cut. Raises UnsupportedError where the target's memories are too small for a step."""
    kind, memory = body.anchor_input_types[X], target.memory
    assert kind is not None
    item, depth, columns = kind.dtype.itemsize, max(1, kind.shape[1]), body.anchor_outputs[0].shape[1]
    block = ceil_to(-(-max(1, columns) // table.columns), int(target.cube.n))
    unit = memory.block_bytes // item
    layout = FactorLayout.PACKED if is_constant(body) else FactorLayout.DEPTHS
    step = min(memory.l0a_bytes // table.tile, memory.l0b_bytes // block) // (2 * item) // unit * unit
    one = chunk_bytes(FactorLayout.LINES, item, table.tile, unit, memory.block_bytes, int(target.cube.m))
    one += chunk_bytes(layout, item, block, unit, memory.block_bytes, int(target.cube.m))
    chunk = memory.l1_bytes // (CHUNKS * one) * unit
    if not step or not chunk or 4 * table.tile * block > memory.l0c_bytes:
        raise UnsupportedError(
            "no step of a grouped product fits into the cube core's memories",
            location="memory.l1_bytes, memory.l0a_bytes, memory.l0b_bytes, memory.l0c_bytes",
            found=f"{memory.l1_bytes}, {memory.l0a_bytes}, {memory.l0b_bytes}, {memory.l0c_bytes}",
            hint="a target with larger memories",
        )
    whole = ceil_to(depth, unit)
    chunk = ceil_to(-(-whole // -(-whole // min(chunk, whole))), unit)
    step = min(step, chunk)
    sums = 2 if 8 * table.tile * block <= memory.l0c_bytes else 1
    cut = DepthCut(depth, chunk * -(-whole // chunk), chunk, step)
    slots = table.slots if body.anchor_outputs[0].size else 0
    return GroupedTiling(table.tile, block, cut, sums, slots, int(memory.block_bytes), int(target.cube.m))


class GroupedFamily(KernelFamily[AicoreTarget]):
    """`aicore.grouped_matmul`: f16, bf16 and f32; no epilogue."""

    stores_only = True

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        return (cut_of(product_table(body), body, target),)


FAMILY = GroupedFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.grouped_matmul",
        ops=("grouped_matmul",),
        family=FAMILY,
        emitter="grouped",
        micro="gemm",
        modifier="grouped",
        core_type="aic",
        dtypes=FLOATS,
        others=(None, INDEX_TYPES, TABLE_TYPES),
        limits=(within(Reason.SHAPE, "k", 1), one_of(Reason.DTYPE, "in3.dtype", DType.I32)),
        stepped=True,
        deep=True,
        rounding=PRODUCT_SUMS,
    ),
)
