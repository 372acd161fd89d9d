"""How matrix products of f32 values are cut where less precision is allowed: narrow weights, narrow copies of rows.

Model: the cuts of `matmul`, with a constant right factor packed in one of five *formats*, the panels each on their own:

- BF16: [pairs][columns][2] bf16, pairs of neighbouring depths side by side, rows copied as bf16;
- BF16X3: as BF16, each value in two parts, high and low: [pairs][high, low][columns][2]; rows copied as two parts too;
- INT8: [fours][columns][4] signed bytes, then an f32 scale and the i32 sum of the bytes per column; rows copied as
  unsigned bytes with a scale and a zero point of their own;
- INT8X2: weights as INT8; rows copied as 16 unsigned bits, high bytes and low bytes apart: for few rows, whose weights
  stream past in a quarter of the time, with hardly more error than f32 rows;
- WEIGHTS8: [depth][columns] signed bytes, then an f32 scale per column; rows stay f32 (few of them: no copy pays).

`native`: the CPU multiplies the format itself. Without, the same numbers are multiplied as f32 or 16-bit integers.

Invariants: depths are padded with zeros to whole words; a row's copy depends on that row only, so results do not
depend on how the work is split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body
from superkernel.ops.opdef import Array
from superkernel.scheduler.families.matmul import (
    COLUMNS,
    COPY,
    PACKED,
    ROWS,
    MatmulFamily,
    MatmulTiling,
    PackPanels,
    is_far,
    is_packable,
    left_mode,
    make_tiling,
    stores_prologue,
    tile_shapes,
)
from superkernel.scheduler.families.matmul_form import MatmulForm, form_of
from superkernel.scheduler.tiling import Pack, Tiling
from superkernel.target.cpu import CpuTarget

BF16, BF16X3, INT8, INT8X2, WEIGHTS8 = "bf16", "bf16x3", "int8", "int8x2", "weights8"

FORMATS: Mapping[str, tuple[str, str]] = {
    "host.matmul.bf16": (BF16, BF16),
    "host.matmul.gemv_bf16": (BF16, BF16),
    "host.matmul.tf32": (BF16X3, BF16X3),
    "host.matmul.int8": (INT8, INT8),
    "host.matmul.gemv_int8": (INT8X2, WEIGHTS8),
}
"""Kernel id -> format where the CPU multiplies it itself, and where it does not."""

CONV_FORMATS: Mapping[str, tuple[str, str]] = {"host.conv.bf16": (BF16, BF16), "host.conv.int8": (INT8, INT8)}
"""The same of 1 x 1 convolutions (`conv_reduced`)."""

INT8_DEPTH_MAX = 1 << 16
"""Longest sum of products of bytes that surely fits into 32 bits, zero points included."""

_WORD = {BF16: 2, BF16X3: 2, INT8: 4, INT8X2: 4, WEIGHTS8: 1}
_FEATURE = {BF16: "avx512bf16", BF16X3: "avx512bf16", INT8: "avx512vnni", INT8X2: "avx512vnni"}
# Multiply-adds per f32 multiply-add, of the CPU's own instructions and without them.
_NATIVE_RATE = {BF16: 2.0, BF16X3: 0.66, INT8: 3.6, INT8X2: 2.0, WEIGHTS8: 0.4}
_PLAIN_RATE = {BF16: 0.85, BF16X3: 0.3, INT8: 0.8, INT8X2: 0.4, WEIGHTS8: 0.4}
_COPIED_PER_NS = {BF16: 8.0, BF16X3: 4.0, INT8: 3.0, INT8X2: 2.0, WEIGHTS8: 8.0}


def depth_step(form: str) -> int:
    """Depths that one word of 32 bits (WEIGHTS8: one step) holds."""
    return _WORD[form]


def format_of(kernel: str, target: CpuTarget) -> str:
    """The format of a kernel on a CPU."""
    native, plain = FORMATS[kernel] if kernel in FORMATS else CONV_FORMATS[kernel]
    return native if is_native(native, target) else plain


def is_native(form: str, target: CpuTarget) -> bool:
    """Whether the CPU multiplies a format itself."""
    return form in _FEATURE and target.tier == "avx512" and target.has(_FEATURE[form])


def plain_rate(form: str) -> float:
    """Multiply-adds per f32 multiply-add where the CPU does not multiply a format itself."""
    return _PLAIN_RATE[form]


@dataclass(frozen=True)
class PackNarrow(Pack):
    """Panels of f32 weights in a format, see the module docstring."""

    panels: PackPanels
    format: str

    def apply(self, array: Array) -> Array:
        wide = self.panels.apply(np.asarray(array, np.float32))
        if not wide.size:
            return np.zeros(0, np.uint8)
        matrices, panels, depth, columns = wide.shape
        step = depth_step(self.format)
        if depth % step:
            wide = np.concatenate([wide, np.zeros((matrices, panels, -depth % step, columns), np.float32)], axis=2)
        wide = wide.reshape(matrices, panels, -1, step, columns).swapaxes(-1, -2)
        if self.format in (BF16, BF16X3):
            parts = [wide.astype(DType.BF16.numpy)]
            if self.format == BF16X3:
                parts.append((wide - parts[0].astype(np.float32)).astype(DType.BF16.numpy))
            return np.ascontiguousarray(np.stack(parts, axis=3)).view(np.uint8)
        return _quantised(wide, sums=self.format != WEIGHTS8)

    def packed_bytes(self, kind: TensorType) -> int:
        p = self.panels
        matrices = int(np.prod(p.batch_dims, dtype=np.int64)) if p.columns and p.depth else 0
        return matrices * -(-p.columns // p.panel) * packed_panel_bytes(self.format, p.depth, p.panel)


def _quantised(wide: Array, *, sums: bool) -> Array:
    """Words [matrices, panels, words, columns, step] as bytes with a scale per column, and the sums of the bytes."""
    matrices, panels = wide.shape[:2]
    largest = np.abs(wide).max(axis=(2, 4)).astype(np.float32)
    scale = (largest / np.float32(127)).astype(np.float32)
    divisor = np.where(scale > 0, scale, np.float32(1))[:, :, None, :, None]
    narrow = np.clip(np.rint(wide / divisor), -127, 127).astype(np.int8)
    blocks = [narrow.reshape(matrices, panels, -1).view(np.uint8), scale.view(np.uint8).reshape(matrices, panels, -1)]
    if sums:
        total = narrow.sum(axis=(2, 4), dtype=np.int32)
        blocks.append(np.ascontiguousarray(total).view(np.uint8).reshape(matrices, panels, -1))
    return np.concatenate(blocks, axis=2)


def packed_panel_bytes(form: str, depth: int, columns: int) -> int:
    """Size of one panel in a format."""
    words = -(-depth // depth_step(form))
    if form == WEIGHTS8:
        return depth * columns + 4 * columns
    return words * columns * 4 * (2 if form == BF16X3 else 1) + (8 * columns if form in (INT8, INT8X2) else 0)


@dataclass(frozen=True)
class NarrowTiling(MatmulTiling):
    """A cut of a matrix product in a narrow format."""

    format: str = BF16
    native: bool = False

    @property
    def words(self) -> int:
        """Steps of the depth loop: packed words along the depth."""
        return -(-self.depth // depth_step(self.format))

    @property
    def parts(self) -> int:
        """Parts in which a row is copied."""
        return 2 if self.format in (BF16X3, INT8X2) else 1

    @property
    def is_bytes(self) -> bool:
        """True where rows are copied as bytes."""
        return self.format in (INT8, INT8X2)

    @property
    def plane(self) -> int:
        """32-bit words of one part of a row's copy."""
        if self.is_bytes:  # whole vectors of bytes are stored
            return -(-self.words * 4 // self.lanes) * self.lanes // 4
        unpacked = self.format in (BF16, BF16X3) and not self.native
        return self.words * (2 if unpacked else 1)

    @property
    def left_pitch(self) -> int:
        """As of f32 rows, in words of 32 bits."""
        if self.format == WEIGHTS8:
            return MatmulTiling.left_pitch.fget(self)  # type: ignore[attr-defined, no-any-return]
        words = self.plane * self.parts + (2 if self.is_bytes else 0)
        return (-(-words // 16) | 1) * 16

    @property
    def row_words(self) -> int:
        """f32 elements of the row that is being quantised, padded to whole vectors of words."""
        return -(-self.depth // (4 * self.lanes)) * 4 * self.lanes if self.is_bytes else 0

    @property
    def scratch_bytes(self) -> int:
        return self.tile_bytes + -(-self.left_bytes // 64) * 64 + 4 * self.row_words

    def panel_bytes(self, form: MatmulForm) -> int:
        return packed_panel_bytes(self.format, form.depth, self.panel)

    def packs(self, body: Body) -> Mapping[int, Pack]:
        return {
            operand: PackNarrow(pack, self.format)
            for operand, pack in super().packs(body).items()
            if isinstance(pack, PackPanels)
        }

    def _flops_per_ns(self, target: CpuTarget) -> float:
        return target.flops_per_ns * (_NATIVE_RATE if self.native else _PLAIN_RATE)[self.format]

    def _copy_ns(self, form: MatmulForm, share: float, target: CpuTarget) -> float:
        if self.left != COPY:
            return 0.0
        part = share if self.axis == ROWS or form.batch > 1 else 1.0
        return form.batch * form.rows * form.depth * part / _COPIED_PER_NS[self.format]


class NarrowFamily(MatmulFamily):
    """f32 products with a constant right factor in a narrow format."""

    kernels = tuple(FORMATS)

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[Tiling]:
        form, name = form_of(body), format_of(kernel, target)
        if not is_packable(body, form):
            raise UnsupportedError(
                "narrow products need a constant factor that nothing else reads", location=f"kernel {kernel!r}"
            )
        shapes = tile_shapes(form, PACKED, target)
        found = [
            _narrow(make_tiling(body, axis, rows, vectors, PACKED, target), form, name, target)
            for rows, vectors in shapes
            for axis in (COLUMNS, ROWS)
            if axis == COLUMNS or form.rows > rows or form.batch > 1
        ]
        if stores_prologue(form):
            by_rows = make_tiling(body, ROWS, *shapes[0], PACKED, target)
            found = [t for t in found if t.axis == ROWS] or [_narrow(by_rows, form, name, target)]
        everything = max(1, min(t.units for t in found))
        return sorted(found, key=lambda t: (t.cost_ns(body, 0, t.units, target), everything))


def _narrow(base: MatmulTiling, form: MatmulForm, name: str, target: CpuTarget) -> NarrowTiling:
    """A tiling of f32 rows as one of a format, as many rows to a block as stay near."""
    given = {f.name: getattr(base, f.name) for f in fields(MatmulTiling)}
    given["left"] = left_mode(form) if name == WEIGHTS8 else COPY
    given["streamed"] = False
    given["far"] = is_far(form, target, packed_panel_bytes(name, base.depth, 1) / max(1, 4 * base.depth))
    if name != WEIGHTS8 and -(-base.depth // depth_step(name)) < 4 * base.phases:
        given["phases"] = 1
    made = NarrowTiling(**given, format=name, native=is_native(name, target))
    if made.left != COPY:
        return made
    row_bytes = made.tile_rows * made.left_pitch * 4
    block = max(1, min(made.row_tiles, target.l2_bytes * 2 // 5 // row_bytes))
    return NarrowTiling(**{**given, "block": block}, format=name, native=made.native)


FAMILY = NarrowFamily()
