"""Products with weights quantised in blocks (ops/blocks.py): how they are cut, packed and read.

Model: the cut is that of matrix products (`matmul`). Codes are packed for panels of columns: words of 32 bits, eight
codes of 4 bits that follow one another along the depth, [panels][words][panel], or bytes [panels][depth][panel]; scales
and offsets, as what they are stored as, [panels][blocks][panel]. Two ways from there:

- few rows (`gemv`): the codes stream past once, are unpacked in registers and multiplied as whole numbers; the sum of a
  block takes its scale, and the offset times the sum of the block's x;
- more rows (`gemm`): a panel is unpacked into scratch as f32, which the rows share, and multiplied as any panel.

Where int8 is allowed, by the policy or by the operator itself, rows are turned into whole numbers, block by block with
a scale each: of 8 bits, or few rows of 16 bits, as signed high and low bytes. Codes of 4 bits as bytes, or of 8 bits as
unsigned ones, are multiplied by these in fours, with sums in i32 that begin with what the zero takes off.

A row's copy is then, in bytes: [bytes], or [high bytes][low bytes], in the order in which words bring their codes ([0,
2, 4, 6, 1, 3, 5, 7] of 4 bits), zeros up to whole blocks; per block the f32 scale, two i32 beginnings of sums (high,
low; one of bytes alone), and the f32 sum of x as rounded, which offsets are multiplied by.

Invariants: as of matrix products; codes are never rounded, and without such a policy x meets them in f32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from superkernel.core import formats
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
from superkernel.scheduler.families.kernel import (
    CONSTANT_WEIGHT,
    TIER_FEATURES,
    HostKernelDef,
    HostTiling,
    ReducedKernelDef,
)
from superkernel.scheduler.families.matmul import GEMM_TILES, INT8_DEPTHS, MatmulFamily, stores_prologue, tile_shapes
from superkernel.scheduler.families.matmul_form import MatmulForm, form_of
from superkernel.scheduler.families.matmul_tiling import (
    COLUMNS,
    COPY,
    PACKED,
    ROWS,
    MatmulTiling,
    is_large,
    make_tiling,
)
from superkernel.scheduler.families.packing import PackPanels
from superkernel.scheduler.tiling import Pack
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

X, CODES, SCALE, OFFSET = range(4)  # input slots
WORD_CODES, BYTE_CODES = 8, 4
"""Codes of 4 and of 8 bits in a word."""

BLOCK_WORDS = 4
"""Words behind a row of whole numbers, per block: see the module docstring."""

SIGN = 128
_BYTE_TILES = {"avx512": (3, 4), "avx2": (2, 2), "plain": (2, 2), "small": (1, 2)}
"""Rows and vectors of a register tile of bytes, whose sums of a block and of all are registers. As wide for one row as
for many: both take the same packed weights."""

ROWS_MAX = 6
"""Rows up to which codes are unpacked where they are multiplied."""

_UNPACK = {("avx512", 4): 1.2, ("avx512", 8): 1.2, ("avx2", 4): 2.0, ("avx2", 8): 1.2}
_UNPACK_PLAIN = 4.0
_EMULATED = 0.15  # dot products in the time of a multiply-add, where the CPU has none
_BESIDE = 0.25  # of the arithmetic, what counts beside a stream too: that may be much faster than plain reads are
_BLOCK_WORK = 2.0  # vectors' instructions behind a block


@dataclass(frozen=True)
class PackCodes(Pack):
    """Codes [columns, bytes] as [panels][steps][panel] of a step's codes of a column, zeros behind columns and depth.
    `flip`: of 8 bits, the bit that tells signed from unsigned ones, where they change."""

    bits: int
    depth: int
    columns: int
    step: int
    flip: int
    offset: int
    panel: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a column's codes, as stored."""
        return -(-self.depth * self.bits // 8)

    def apply(self, array: Array) -> Array:
        item = self.step * self.bits // 8
        steps, panels = -(-self.depth // self.step), -(-self.columns // self.panel)
        padded = np.zeros((panels * self.panel, steps * item), np.uint8)
        stored = strided_view(array, (self.columns, self.row_bytes), (self.row_bytes, 1), self.offset).view(np.uint8)
        padded[: self.columns, : self.row_bytes] = stored ^ np.uint8(self.flip) if self.flip else stored
        items = padded.view(f"<u{item}").reshape(panels, self.panel, steps)
        return np.ascontiguousarray(items.swapaxes(1, 2))

    def packed_bytes(self, kind: TensorType) -> int:
        columns = -(-self.columns // self.panel) * self.panel
        return columns * -(-self.depth // self.step) * self.step * self.bits // 8


@dataclass(frozen=True, kw_only=True)
class BlockTiling(MatmulTiling):
    """A cut of such a product. `right`: PACKED where codes are multiplied from the stream, COPY where a panel is
    unpacked first. `zero`: of codes as they are packed. `flip`: of packing. `scales`: the type of scales, and of
    offsets where there are any."""

    bits: int
    block_depth: int
    zero: int
    flip: int
    scales: DType
    offsets: bool

    @property
    def stored(self) -> Blocks:
        """The weights in terms of the operator."""
        return Blocks(self.bits, self.block_depth, self.zero, self.panels * self.panel, self.depth)

    @property
    def step(self) -> int:
        """Codes of a column that are read at a time."""
        return WORD_CODES if self.bits == 4 else BYTE_CODES if self.format.is_reduced else 1

    @property
    def step_items(self) -> DType:
        """As what they are read, one per column."""
        return DType.I8 if self.step == 1 else DType.I32

    @property
    def span(self) -> int:
        """Places of a block in a copy of a row as whole numbers."""
        return -(-self.block_depth // WORD_CODES) * WORD_CODES

    @property
    def plane(self) -> int:
        """Accumulators in the space of the high or the low bytes of a row."""
        return self.stored.count * self.span // 4 if self.format.is_reduced else super().plane

    @property
    def left_pitch(self) -> int:
        if not self.format.is_reduced:
            return super().left_pitch
        return (-(-(self.format.row_parts * self.plane + BLOCK_WORDS * self.stored.count) // 16) | 1) * 16

    @property
    def staged(self) -> int:
        return -(-self.stored.count * self.span // self.lanes) * self.lanes if self.format.is_reduced else 0

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
        kept = self.offsets and self.right == PACKED and not self.format.is_reduced
        return -(-self.tile_rows * self.stored.count * 4 // 64) * 64 if kept else 0

    @property
    def scratch_bytes(self) -> int:
        return super().scratch_bytes + self.sums_bytes

    def representative(self, body: Body, target: Target) -> None:
        return None

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
        codes, count = operand_of(body, CODES), self.stored.count
        found[codes.operand] = PackCodes(
            self.bits, self.depth, form.columns, self.step, self.flip, codes.offset, self.panel
        )
        for slot in (SCALE, OFFSET)[: 1 + self.offsets]:
            view = operand_of(body, slot)
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
        if self.format.is_reduced:
            speed = self.format.native_rate if self.format.native else _EMULATED
            dots = self.format.row_parts * self.tile_rows / 4 / speed
            behind = (4.0 + 4.0 * self.tile_rows) / self.block_depth
            work = self.row_tiles * vectors * ((self.bits == 4) * 0.4 + dots + behind) * one
        tiles = self.batch * self.row_tiles * self.panels * (8.0 + 4.0 * self.tile_rows)
        elements = form.batch * form.rows * self.depth * (share if self.axis == ROWS or self.batch > 1 else 1.0)
        copy = elements / self.format.copied_per_ns if self.left == COPY or self.offsets else 0.0
        stream = self._stream_ns(form, target, self._passes(share))
        both = self._beside_stream(share * work, share, stream) + _BESIDE * share * min(work, stream)
        return CALL_NS + both + share * tiles + copy

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
        number = self.format_on(target) if self.numbers else None
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
        signed = codes.dtype is DType.I8
        flip = SIGN if stored.bits == 8 and signed == (number is not None) else 0
        own = {
            "bits": stored.bits, "block_depth": max(1, depth), "scales": scale.dtype, "offsets": offset is not None,
            "zero": stored.zero + (0 if not flip else SIGN if signed else -SIGN), "flip": flip,
        }  # fmt: skip
        right = COPY if unpacked else PACKED
        parts = 1 if number is None else number.row_parts
        if unpacked:
            shapes = tile_shapes(form, right, target)[:1]
        elif number == formats.BLOCKS8.on(target.has):
            shapes = [_byte_shape(form, target)]
        else:
            shapes = [_gemv_shape(form, target, parts)]
        found = []
        for rows, vectors in shapes:
            for axis in (COLUMNS, ROWS):
                if axis == COLUMNS or form.rows > rows or (form.batch > 1 and right == COPY):
                    made = make_tiling(body, axis, rows, vectors, right, target, number)
                    if number is not None:  # of 8 bits the hardware keeps up by itself
                        made = replace(made, far=stored.bits == 4 and is_large(form, target))
                    found.append(_with_blocks(made, own))
        if stores_prologue(form):
            found = [t for t in found if t.axis == ROWS] or found[:1]
        return sorted(found, key=lambda t: t.cost_ns(body, 0, t.units, target))


def _gemv_shape(form: MatmulForm, target: CpuTarget, parts: int) -> tuple[int, int]:
    """Rows and vectors of the register tile: sums of a block, of each part of x, and of all blocks."""
    lanes, rows = target.lanes(form.acc), min(max(1, form.rows), ROWS_MAX)
    vectors = max(1, min(4 if rows <= 2 else 2, target.vector_registers * 3 // 4 // ((1 + parts) * rows)))
    return rows, max(1, min(vectors, -(-form.columns // lanes)))


def _byte_shape(form: MatmulForm, target: CpuTarget) -> tuple[int, int]:
    rows, vectors = _BYTE_TILES[target.register_tier]
    return rows, max(1, min(vectors, -(-form.columns // target.lanes(form.acc))))


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
    ReducedKernelDef(
        id="host.block_matmul.gemv_int8",
        ops=("block_matmul",),
        family=BlockFamily(formats.BLOCKS),
        emitter="blocks",
        micro="gemv",
        modifier="blocks",
        others=(BYTES, VECTOR_FLOATS),
        limits=(within(Reason.SHAPE, "m", 1, ROWS_MAX), INT8_DEPTHS),
        tiles=dict.fromkeys(TIER_FEATURES, (1, 4)),
        weights_as="xx",
        allowed_by="x.precision",
        code_bytes=8192,
    ),
    ReducedKernelDef(
        id="host.block_matmul.int8",
        ops=("block_matmul",),
        family=BlockFamily(formats.BLOCKS8),
        emitter="blocks",
        micro="gemm",
        modifier="blocks",
        others=(BYTES, VECTOR_FLOATS),
        limits=(INT8_DEPTHS,),
        tiles=_BYTE_TILES,
        weights_as="xx",
        allowed_by="x.precision",
        code_bytes=8192,
    ),
)
