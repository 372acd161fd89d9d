"""How weights are packed in a number format: columns of f32 values as words, with what stands behind them; as panels of
a matrix product and as taps of a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.formats import F32, NumberFormat
from superkernel.core.tensor import TensorType, strided_view
from superkernel.ops.opdef import Array
from superkernel.scheduler.tiling import Pack


def words_of(values: Array, number: NumberFormat) -> Array:
    """[..., depth, columns] as [..., words, columns, step], zeros behind the depth."""
    *outer, depth, columns = values.shape
    if gap := -depth % number.grain:
        values = np.concatenate([values, np.zeros((*outer, gap, columns), values.dtype)], axis=-2)
    return values.reshape(*outer, -1, number.step, columns).swapaxes(-1, -2)


def encoded(values: Array, number: NumberFormat) -> Array:
    """f32 [..., depth, columns] as words of floats: bytes [..., words, parts, columns, bytes of a word]."""
    wide = words_of(values, number)
    parts = []
    for _ in range(number.weight_parts):
        parts.append(wide.astype(number.weights.numpy))
        wide = wide - parts[-1].astype(np.float32)
    return np.ascontiguousarray(np.stack(parts, axis=-3)).view(np.uint8)


def signed_bytes(values: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """f32 values as i8, and the f32 scale that they share along `axis`."""
    scale = (np.abs(values).max(axis=axis).astype(np.float32) / np.float32(127)).astype(np.float32)
    divisor = np.expand_dims(np.where(scale > 0, scale, np.float32(1)), axis)
    return np.clip(np.rint(values / divisor), -127, 127).astype(DType.I8.numpy), scale


def bytes_of(array: Array, outer: int) -> Array:
    """The bytes of an array behind its first `outer` dimensions."""
    return np.ascontiguousarray(array).reshape(*array.shape[:outer], -1).view(np.uint8)


@dataclass(frozen=True)
class PackPanels(Pack):
    """Weights [batch.., depth, columns] (a strided view of the constant) as panels [batch][panels][depth][panel],
    zero-padded; in a reduced format as words, see `matmul_tiling`."""

    batch_dims: tuple[int, ...]
    batch_strides: tuple[int, ...]
    depth: int
    columns: int
    depth_stride: int
    column_stride: int
    offset: int
    panel: int
    format: NumberFormat = F32

    def apply(self, array: Array) -> Array:
        if not self.format.is_reduced:
            return self._panels(array)
        if self.format.is_integral:
            codes = self._panels(array)
            if not codes.size:
                return np.zeros(0, np.uint8)
            blocks = [words_of(codes, self.format), codes.sum(axis=2, dtype=np.int32)]
            return np.concatenate([bytes_of(block, 2) for block in blocks], axis=2)
        panels = self._panels(np.asarray(array, np.float32))
        if not panels.size:
            return np.zeros(0, np.uint8)
        if not self.format.scales_weights:
            return encoded(panels, self.format)
        codes, scale = signed_bytes(panels, axis=2)
        blocks = [words_of(codes, self.format), scale]
        if self.format.scales_rows:
            blocks.append(codes.sum(axis=2, dtype=np.int32))
        return np.concatenate([bytes_of(block, 2) for block in blocks], axis=2)

    def packed_bytes(self, kind: TensorType) -> int:
        matrices = prod(self.batch_dims) if self.columns and self.depth else 0
        reduced = self.format.is_reduced
        each = (
            self.format.panel_bytes(self.depth, self.panel)
            if reduced
            else self.depth * self.panel * kind.dtype.itemsize
        )
        return matrices * -(-self.columns // self.panel) * each

    def _panels(self, array: Array) -> Array:
        """[batch][panels][depth][panel] of the array's element type."""
        shape = (*self.batch_dims, self.depth, self.columns)
        if 0 in shape:
            return np.zeros(0, array.dtype)
        source = strided_view(array, shape, (*self.batch_strides, self.depth_stride, self.column_stride), self.offset)
        source = source.reshape(-1, self.depth, self.columns)
        panels = -(-self.columns // self.panel)
        packed = np.zeros((source.shape[0], panels, self.depth, self.panel), array.dtype)
        whole = self.columns // self.panel
        if whole:
            cut = source[:, :, : whole * self.panel].reshape(source.shape[0], self.depth, whole, self.panel)
            packed[:, :whole] = cut.transpose(0, 2, 1, 3)
        if panels > whole:
            packed[:, whole, :, : self.columns - whole * self.panel] = source[:, :, whole * self.panel :]
        return packed


@dataclass(frozen=True)
class PackTaps(Pack):
    """Weights [groups * out, channels, taps..] (a strided view; of one dimension of taps: one row) as
    [groups][panels][taps][channels][rows], zero-padded, f32; in a reduced format as words, `run` taps side by side of
    `channels` each, see `nhwc_tiling`."""

    groups: int
    out: int
    depth: tuple[int, ...]  # channels and kernel extents
    strides: tuple[int, ...]
    offset: int
    rows: int
    format: NumberFormat = F32
    run: int = 1
    channels: int = 0  # those that weights have not are zeros; 0: as many as they have

    def apply(self, array: Array) -> Array:
        taps = self._taps(array)
        if not self.format.is_reduced:
            return taps
        if not taps.size:
            return np.zeros(self.packed_bytes(None), np.uint8)
        runs = taps.reshape(*taps.shape[:2], -1, self.run * taps.shape[3], self.rows)
        if self.format.is_integral:
            codes = runs.astype(self.format.weights.numpy)
            blocks = [words_of(codes, self.format), codes.sum(axis=(2, 3), dtype=np.int32)]
            return np.concatenate([bytes_of(block, 2) for block in blocks], axis=2)
        if not self.format.scales_weights:
            return encoded(runs, self.format)
        codes, scale = signed_bytes(runs, axis=(2, 3))
        sums = codes.reshape(*taps.shape[:2], self._lines, -1, self.rows).sum(axis=3, dtype=np.int32)
        blocks = [words_of(codes, self.format), sums, scale]
        return np.concatenate([bytes_of(block, 2) for block in blocks], axis=2)

    def packed_bytes(self, kind: TensorType | None) -> int:
        panels, runs = -(-self.out // self.rows), prod(self.depth[1:]) // self.run
        nbytes = runs * self.format.words(self.run * self._channels) * self.format.word_bytes
        if self.format.scales_rows:
            nbytes += 4 * (self._lines + 1)
        elif self.format.is_integral:
            nbytes += 4
        return self.groups * panels * self.rows * nbytes

    @property
    def _lines(self) -> int:
        """Rows of the window."""
        return prod(self.depth[1:-1])

    @property
    def _channels(self) -> int:
        return max(self.channels, self.depth[0])

    def _taps(self, array: Array) -> Array:
        """[groups][panels][taps][channels][rows] in f32."""
        filters = strided_view(array, (self.groups * self.out, *self.depth), self.strides, self.offset)
        panels = -(-self.out // self.rows)
        channels, taps = self.depth[0], prod(self.depth[1:])
        packed = np.zeros((self.groups, panels * self.rows, taps, self._channels), np.float32)
        own = filters.reshape(self.groups, self.out, channels, taps).transpose(0, 1, 3, 2)
        packed[:, : self.out, :, :channels] = own
        return packed.reshape(self.groups, panels, self.rows, taps, -1).transpose(0, 1, 3, 4, 2)
