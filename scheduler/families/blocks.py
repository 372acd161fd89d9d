"""Products with weights quantised in blocks (ops/blocks.py): how they are cut, packed and read.

Model: the cut is that of matrix products (`matmul`). Codes are packed for panels of columns: words of 32 bits, eight
codes of 4 bits that follow one another along the depth, [panels][words][panel], or bytes [panels][depth][panel]; scales
and offsets, as what they are stored as, [panels][blocks][panel]. Two ways from there:

- few rows (`gemv`): the codes stream past once, are unpacked in registers and multiplied as whole numbers; the sum of a
  block takes its scale, and the offset times the sum of the block's x;
- more rows (`gemm`): a panel is unpacked into scratch as f32, which the rows share, and multiplied as any panel.

Invariants: as of matrix products; x and weights meet in f32, codes are never rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Box, TensorType, regions_of_box, strided_view
from superkernel.ir.body import Body, Role, View
from superkernel.ops.blocks import Blocks, blocks_of
from superkernel.ops.opdef import BYTES, VECTOR_FLOATS, Array
from superkernel.registry.predicates import Reason, within
from superkernel.registry.records import Transform
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, vector_ns
from superkernel.scheduler.families.kernel import CONSTANT_WEIGHT, TIER_FEATURES, HostKernelDef, HostTiling
from superkernel.scheduler.families.matmul import (
    COLUMNS,
    COPY,
    GEMM_TILES,
    PACKED,
    ROWS,
    MatmulFamily,
    MatmulTiling,
    PackPanels,
    make_tiling,
    stores_prologue,
    tile_shapes,
)
from superkernel.scheduler.families.matmul_form import MatmulForm, form_of
from superkernel.scheduler.tiling import Pack
from superkernel.target.cpu import CpuTarget

X, CODES, SCALE, OFFSET = range(4)  # input slots
WORD_CODES = 8  # of 4 bits
ROWS_MAX = 6
"""Rows up to which codes are unpacked where they are multiplied."""

_UNPACK = {("avx512", 4): 1.2, ("avx512", 8): 1.2, ("avx2", 4): 2.0, ("avx2", 8): 1.2}
_UNPACK_PLAIN = 4.0
_BLOCK_WORK = 2.0  # vectors' instructions behind a block


@dataclass(frozen=True)
class PackWords(Pack):
    """Codes of 4 bits [columns, bytes] as words [panels][words][panel], zeros behind the depth and the columns."""

    depth: int
    columns: int
    row_bytes: int
    offset: int
    panel: int

    def apply(self, array: Array) -> Array:
        words, panels = -(-self.depth // WORD_CODES), -(-self.columns // self.panel)
        padded = np.zeros((panels * self.panel, words * 4), np.uint8)
        shape = (self.columns, -(-self.depth // 2))
        padded[: self.columns, : shape[1]] = strided_view(array, shape, (self.row_bytes, 1), self.offset)
        return np.ascontiguousarray(padded.view("<u4").reshape(panels, self.panel, words).swapaxes(1, 2))

    def packed_bytes(self, kind: TensorType) -> int:
        return -(-self.columns // self.panel) * self.panel * -(-self.depth // WORD_CODES) * 4


@dataclass(frozen=True, kw_only=True)
class BlockTiling(MatmulTiling):
    """A cut of such a product. `right`: PACKED where codes are multiplied from the stream, COPY where a panel is
    unpacked first. `signed`: codes are i8. `scales`: the type of scales, and of offsets where there are any."""

    bits: int
    block_depth: int
    zero: int
    signed: bool
    scales: DType
    offsets: bool

    @property
    def stored(self) -> Blocks:
        """The weights in terms of the operator."""
        return Blocks(self.bits, self.block_depth, self.zero, self.panels * self.panel, self.depth)

    @property
    def step(self) -> int:
        """Codes of a column that are read at a time."""
        return WORD_CODES if self.bits == 4 else 1

    @property
    def step_items(self) -> DType:
        """As what they are read, one per column."""
        return DType.U32 if self.bits == 4 else DType.I8

    @property
    def codes_bytes(self) -> int:
        """Of a packed panel of codes."""
        return -(-self.depth // self.step) * self.panel * self.step_items.itemsize

    @property
    def scales_bytes(self) -> int:
        """Of a packed panel of scales, or of offsets."""
        return self.stored.count * self.panel * self.scales.itemsize

    @property
    def sums_bytes(self) -> int:
        """Scratch for the sums of x by row and block, whole cache lines."""
        kept = self.offsets and self.right == PACKED
        return -(-self.tile_rows * self.stored.count * 4 // 64) * 64 if kept else 0

    @property
    def scratch_bytes(self) -> int:
        return super().scratch_bytes + self.sums_bytes

    def panel_bytes(self, form: MatmulForm) -> int:
        return self.codes_bytes + self.scales_bytes * (1 + self.offsets)

    def _weights(self, found: AccessSet, body: Body, batch: Box, columns: tuple[int, int]) -> None:
        first, last = columns[0] // self.panel, -(-columns[1] // self.panel)
        for operand, size in self.packed_operands(body):
            found.add(operand, False, regions_of_box(((first * size, last * size),), (1,), 1))

    def packed_operands(self, body: Body) -> list[tuple[int, int]]:
        """Operands of the weights, with the bytes of a panel of each."""
        slots = [(CODES, self.codes_bytes), (SCALE, self.scales_bytes)]
        if self.offsets:
            slots.append((OFFSET, self.scales_bytes))
        return [(operand_of(body, slot).operand, size) for slot, size in slots]

    def packs(self, body: Body) -> Mapping[int, Pack]:
        form, found = form_of(body), dict[int, Pack]()
        codes, blocks = operand_of(body, CODES), self.stored
        if self.bits == 4:
            pack: Pack = PackWords(self.depth, form.columns, blocks.row_bytes, codes.offset, self.panel)
        else:
            pack = PackPanels((), (), self.depth, form.columns, 1, self.depth, codes.offset, self.panel)
        found[codes.operand] = pack
        for slot in (SCALE, OFFSET)[: 1 + self.offsets]:
            view = operand_of(body, slot)
            count = blocks.count
            found[view.operand] = PackPanels((), (), count, form.columns, 1, count, view.offset, self.panel)
        return found

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        if begin >= end:
            return 0.0
        form, one = form_of(body), vector_ns(target)
        share = (end - begin) / max(1, self.units)
        unpack = _UNPACK.get((target.tier, self.bits), _UNPACK_PLAIN) + _BLOCK_WORK / self.block_depth
        vectors = self.batch * self.panels * self.vectors * self.depth
        if self.right == COPY:
            every = share if self.axis == COLUMNS or self.batch > 1 else 1.0
            times = max(1.0, self.row_tiles / self.block)
            return super().cost_ns(body, begin, end, target) + every * times * vectors * (unpack + 1.0) * one
        work = vectors * (unpack + self.tile_rows) * one
        tiles = self.batch * self.panels * 12.0
        copy = form.batch * form.rows * self.depth / 8.0 if self.left == COPY or self.offsets else 0.0
        return CALL_NS + max(share * work, share * self._stream_ns(form, target)) + share * tiles + copy

    def _copy_ns(self, form: MatmulForm, share: float, target: CpuTarget) -> float:
        """Of the rows; `cost_ns` knows what unpacking takes."""
        if self.left != COPY:
            return 0.0
        part = share if self.axis == ROWS or form.batch > 1 else 1.0
        return form.batch * form.rows * form.depth * part / 8.0


def operand_of(body: Body, slot: int) -> View:
    """A constant of the weights."""
    found = body.anchor_inputs[slot]
    assert isinstance(found, View)
    return found


class BlockFamily(MatmulFamily):
    """Products with weights in blocks, all constant."""

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        return slot == X or view.is_dense

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return slot == X

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        _require_constants(kernel, body)
        form, unpacked = form_of(body), kernel == "host.block_matmul.gemm"
        x, codes, scale = body.anchor_input_types[X], body.anchor_input_types[CODES], body.anchor_input_types[SCALE]
        assert x is not None
        assert codes is not None
        assert scale is not None
        stored = blocks_of(x, codes, body.attr)
        depth = min(stored.block, stored.depth)
        if depth < stored.depth and depth % WORD_CODES:
            raise UnsupportedError(
                "blocks of the weights end inside a word", location=f"kernel {kernel!r}",
                expected=f"a multiple of {WORD_CODES}", found=stored.block,
            )  # fmt: skip
        offset = body.anchor_inputs[OFFSET] if len(body.anchor_inputs) > OFFSET else None
        own = {
            "bits": stored.bits, "block_depth": max(1, depth), "zero": stored.zero, "signed": codes.dtype is DType.I8,
            "scales": scale.dtype, "offsets": offset is not None,
        }  # fmt: skip
        right = COPY if unpacked else PACKED
        shapes = tile_shapes(form, right, target)[:1] if unpacked else [_gemv_shape(form, target)]
        found = []
        for rows, vectors in shapes:
            for axis in (COLUMNS, ROWS):
                if axis == COLUMNS or (unpacked and (form.rows > rows or form.batch > 1)):
                    made = make_tiling(body, axis, rows, vectors, right, target)
                    found.append(_with_blocks(made, own))
        if stores_prologue(form):
            found = [t for t in found if t.axis == ROWS] or found[:1]
        return sorted(found, key=lambda t: t.cost_ns(body, 0, t.units, target))


def _gemv_shape(form: MatmulForm, target: CpuTarget) -> tuple[int, int]:
    """Rows and vectors of the register tile: sums of a block and of all blocks, both."""
    lanes, rows = target.lanes(form.acc), min(max(1, form.rows), ROWS_MAX)
    vectors = max(1, min(4 if rows <= 2 else 2, target.vector_registers * 3 // 4 // (2 * rows)))
    return rows, max(1, min(vectors, -(-form.columns // lanes)))


def _with_blocks(tiling: MatmulTiling, own: Mapping[str, object]) -> BlockTiling:
    """A cut of a product as one of these."""
    plain = replace(tiling, phases=1) if tiling.right == PACKED else tiling
    return BlockTiling(**{f.name: getattr(plain, f.name) for f in fields(plain)}, **own)  # type: ignore[arg-type]


def _require_constants(kernel: str, body: Body) -> None:
    """Raises UnsupportedError where the weights are not constants of this product alone."""
    programs = [body.epilogue, *(s for s in body.anchor_inputs[:1] if s is not None and not isinstance(s, View))]
    read = {i.source for program in programs for i in program.inputs}
    for source in body.anchor_inputs[1:]:
        if source is None:
            continue
        constant = isinstance(source, View) and body.operands[source.operand].role is Role.CONSTANT
        if not constant or (isinstance(source, View) and (source.operand in read or not source.is_dense)):
            raise UnsupportedError(
                "weights in blocks must be constants that nothing else reads", location=f"kernel {kernel!r}"
            )


_GEMM = HostKernelDef(
    id="host.block_matmul.gemm",
    ops=("block_matmul",),
    family=BlockFamily(),
    emitter="blocks",
    micro="gemm",
    modifier="blocks",
    dtypes=VECTOR_FLOATS,
    typed=True,
    others=(BYTES, VECTOR_FLOATS),
    limits=(CONSTANT_WEIGHT,),
    tiles=GEMM_TILES,
    transforms=(Transform("pack", 1, True),),
    rounding=PRODUCT_SUMS,
    code_bytes=10240,
)
KERNELS = (
    _GEMM,
    replace(
        _GEMM,
        id="host.block_matmul.gemv",
        micro="gemv",
        limits=(CONSTANT_WEIGHT, within(Reason.SHAPE, "m", 1, ROWS_MAX)),
        tiles=dict.fromkeys(TIER_FEATURES, (1, 4)),
        code_bytes=8192,
    ),
)
