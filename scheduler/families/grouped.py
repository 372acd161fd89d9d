"""Products of rows grouped by expert, and their tilings, on the host.

Model: a unit of the product is one panel of columns, for all rows of all experts: which rows are whose stands in the
table that `tile_groups` has computed, tile by tile (see ops/grouped.py). A constant w is packed as the panels of all
experts; another one is copied panel by panel into scratch. A tiling is one unit of a few scalar loops.

Invariants: the depth is never split; declared is all that may be touched, whatever the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.core.tensor import full_box, regions_of_box
from superkernel.ir.body import Body, Role, View
from superkernel.ops.grouped import TILINGS, GroupTable, group_table, table_of
from superkernel.ops.opdef import FLOATS
from superkernel.ops.ragged import LengthTable, length_table, table_words
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.rounding import EXACT, PRODUCT_SUMS
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, memory_ns
from superkernel.scheduler.families.kernel import INDEX_TYPES, TABLE_TYPES, HostKernelDef, HostTiling
from superkernel.scheduler.families.packing import PackPanels
from superkernel.scheduler.tiling import Access, KernelFamily, Pack
from superkernel.target.cpu import CpuTarget

TILE_ROWS, TILE_VECTORS = {"avx512": 8, "avx2": 4, "plain": 4}, {"avx512": 3, "avx2": 2, "plain": 2}
X, W, COUNTS, TABLE = range(4)  # input slots
_TILE_NS = 12.0
_ROW_NS = 2.0  # of a tiling, per expert and tile


def product_table(body: Body) -> GroupTable:
    """The layout of the table that a product reads."""
    return table_of(body.anchor_input_types, body.attr)


def tiling_table(body: Body) -> GroupTable:
    """The layout of the table that a tiling makes."""
    counts = body.anchor_input_types[0]
    assert counts is not None
    return group_table(counts, body.attr)


def lengths_table(body: Body) -> LengthTable:
    """What a table of lengths is made from."""
    lengths = body.anchor_input_types[0]
    assert lengths is not None
    return length_table(lengths, body.attr)


def view_of(body: Body, slot: int) -> View:
    """An input, which is dense."""
    found = body.anchor_inputs[slot]
    if not isinstance(found, View):
        raise InternalError("a grouped product reads its inputs from memory", location=str(body.op), found=slot)
    return found


def read_rows(found: AccessSet, body: Body) -> None:
    """All rows, and the table that says whose they are."""
    for view in (view_of(body, X), view_of(body, TABLE)):
        found.view(view.operand, full_box(view.shape), view.strides, view.offset)


def output_operands(body: Body) -> list[int]:
    """Where results go: the kernels take no epilogue, but several operands may have the same result."""
    return [o.target for o in body.epilogue.outputs]


@dataclass(frozen=True)
class GroupedTiling(HostTiling):
    """See the module docstring."""

    tile_rows: int
    vectors: int
    lanes: int
    acc: DType
    packed: bool
    experts: int
    rows: int
    depth: int
    columns: int
    narrow: bool  # rows of x are widened in scratch

    def named(self, body: Body) -> tuple[str, Mapping[str, int]]:
        return "", {"mr": self.tile_rows, "nr": self.vectors * self.lanes}

    @property
    def panel(self) -> int:
        """Columns that a register tile computes at a time."""
        return self.vectors * self.lanes

    @property
    def units(self) -> int:
        return -(-self.columns // self.panel) if self.rows else 0

    @property
    def tile_bytes(self) -> int:
        """Scratch for one tile's results."""
        return self.tile_rows * self.panel * self.acc.itemsize

    @property
    def left_bytes(self) -> int:
        """Scratch for the widened rows of a tile, whole cache lines; 0 where rows are read as they lie."""
        return -(-self.tile_rows * self.depth * self.acc.itemsize // 64) * 64 if self.narrow else 0

    @property
    def scratch_bytes(self) -> int:
        copied = 0 if self.packed else self.depth * self.panel * self.acc.itemsize
        return self.tile_bytes + self.left_bytes + copied

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        columns = (begin * self.panel, min(end * self.panel, self.columns))
        read_rows(found, body)
        w = view_of(body, W)
        if self.packed:
            size = self.depth * self.panel * body.operands[w.operand].type.dtype.itemsize
            box = ((0, self.experts), (begin * size, end * size))
            found.add(w.operand, False, regions_of_box(box, (self.units * size, 1), 1) if size else ())
        else:
            found.view(w.operand, ((0, self.experts), (0, self.depth), columns), w.strides, w.offset)
        for out in body.epilogue.outputs:
            found.view(out.target, ((0, self.rows), columns), out.strides, out.offset, write=True)
        return found.result()

    def packs(self, body: Body) -> Mapping[int, Pack]:
        if not self.packed:
            return {}
        w = view_of(body, W)
        pack = PackPanels(
            (self.experts,), (w.strides[0],), self.depth, self.columns, w.strides[1], w.strides[2], w.offset, self.panel
        )
        return {w.operand: pack}

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        if begin >= end:
            return 0.0
        tiles = self.rows / self.tile_rows + self.experts / 2
        flops = 2.0 * tiles * self.tile_rows * self.depth * self.panel * (end - begin)
        weights = self.experts * self.depth * self.panel * (end - begin) * self.acc.itemsize
        return CALL_NS + flops / target.flops_per_ns + memory_ns(weights, weights, target) + tiles * _TILE_NS


@dataclass(frozen=True)
class TableTiling(HostTiling):
    """A table of either kind: one unit. `count`: numbers that it is made from; `words` of it."""

    count: int
    words: int
    work: int

    @property
    def units(self) -> int:
        return 1

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        view = view_of(body, 0)
        found.view(view.operand, ((0, self.count),), view.strides, view.offset)
        for out in body.epilogue.outputs:
            found.view(out.target, ((0, self.words),), out.strides, out.offset, write=True)
        return found.result()

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        return CALL_NS + self.work * _ROW_NS if begin < end else 0.0


def table_tiling(body: Body) -> TableTiling:
    """Of a body that computes a table."""
    if body.op == "tile_lengths":
        lengths = lengths_table(body)
        return TableTiling(lengths.batches, table_words(lengths.slots), 2 * lengths.batches + lengths.slots)
    table = tiling_table(body)
    return TableTiling(table.experts, table.words, table.experts + table.tiles_max + table.slots)


class GroupedFamily(KernelFamily[CpuTarget]):
    """Grouped products, and the tables that depend on data."""

    stores_only = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        if kernel == "host.tiling":
            return (table_tiling(body),)
        x, w = body.anchor_input_types[X], body.anchor_input_types[W]
        assert x is not None
        assert w is not None
        acc = DType.F64 if x.dtype is DType.F64 else DType.F32
        lanes = target.vector_bytes // acc.itemsize
        rows = min(TILE_ROWS[target.tier], product_table(body).tile)
        packed = body.operands[view_of(body, W).operand].role is Role.CONSTANT
        made = GroupedTiling(
            rows, TILE_VECTORS[target.tier], lanes, acc, packed, w.shape[0], x.shape[0], x.shape[1], w.shape[2],
            x.dtype is not acc,
        )  # fmt: skip
        return (made,)


def host_cut(tier: str) -> tuple[int, int, int]:
    """Rows of a tile, blocks of columns, slots: panels are the units here, and each goes through all tiles."""
    return TILE_ROWS[tier], 1, 1


FAMILY = GroupedFamily()

KERNELS = (
    HostKernelDef(
        id="host.grouped_matmul",
        ops=("grouped_matmul",),
        family=FAMILY,
        emitter="grouped",
        micro="gemm",
        modifier="grouped",
        dtypes=FLOATS,
        typed=True,
        others=(None, INDEX_TYPES, TABLE_TYPES),
        limits=(one_of(Reason.DTYPE, "in3.dtype", DType.I32),),
        tiles={tier: (rows, TILE_VECTORS[tier]) for tier, rows in TILE_ROWS.items()},
        rounding=PRODUCT_SUMS,
        code_bytes=8192,
    ),
    HostKernelDef(
        id="host.tiling",
        ops=TILINGS,
        family=FAMILY,
        emitter="grouped",
        micro="index",
        modifier="tiling",
        rounding=EXACT,
        code_bytes=1024,
    ),
)
