"""Constants in the order in which the accelerator's kernels load them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, strided_view
from superkernel.ops.opdef import Array
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.tiling import Pack


@dataclass(frozen=True)
class PackCubeFilters(Pack):
    """Weights [out channels, channels, taps..] (a strided view) for products of depth taps x channels.

    Per (merged) group, chunk by chunk of the depth; a chunk holds its elements of one output channel side by side, so
    that the chunk of any run of output channels is one transfer. Chunks are bounded by `cuts`; elements of other groups
    in a merged one, and of padded channels, are zero.
    """

    groups: int
    merged: int
    out: int  # per group of the operator
    shape: tuple[int, ...]  # of the view
    strides: tuple[int, ...]
    offset: int
    padded: int  # channels of a merged group, padded
    cuts: tuple[int, ...]  # 0, ..., depth

    def apply(self, array: Array) -> Array:
        weights = strided_view(array, self.shape, self.strides, self.offset)
        channels, taps = self.shape[1], int(np.prod(self.shape[2:]))
        source = weights.reshape(self.groups, self.merged, self.out, channels, taps).transpose(0, 1, 2, 4, 3)
        wide = np.zeros((self.groups, self.merged, self.out, taps, self.padded), array.dtype)
        for part in range(self.merged):
            wide[:, part, :, :, part * channels : (part + 1) * channels] = source[:, part]
        rows = wide.reshape(self.groups, self.merged * self.out, taps * self.padded)
        depth = self.cuts[-1]
        if depth > rows.shape[2]:
            rows = np.concatenate([rows, np.zeros((*rows.shape[:2], depth - rows.shape[2]), rows.dtype)], axis=2)
        parts = [
            rows[group, :, begin:end].reshape(-1)
            for group in range(self.groups)
            for begin, end in zip(self.cuts, self.cuts[1:], strict=False)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, array.dtype)

    def packed_bytes(self, kind: TensorType) -> int:
        return self.groups * self.merged * self.out * self.cuts[-1] * kind.dtype.itemsize


@dataclass(frozen=True)
class PackVector(Pack):
    """`groups` times `count` numbers of a constant, `stride` apart (0: one repeated), in f32; those of each group are
    followed by zeros up to `padded`."""

    offset: int
    stride: int
    count: int
    padded: int = 0
    groups: int = 1

    def apply(self, array: Array) -> Array:
        found = strided_view(array, (self.groups * self.count,), (self.stride,), self.offset).astype(np.float32)
        wide = np.zeros((self.groups, max(self.padded, self.count)), np.float32)
        wide[:, : self.count] = found.reshape(self.groups, self.count)
        return wide

    def packed_bytes(self, kind: TensorType) -> int:
        return self.groups * max(self.padded, self.count) * DType.F32.itemsize


@dataclass(frozen=True)
class PackDepthwiseTaps(Pack):
    """Filters [channels, 1, taps..] as [blocks of channels][taps][copies][channels] in f32, zero-padded."""

    channels: int
    taps: int
    block: int
    strides: tuple[int, ...]
    offset: int
    shape: tuple[int, ...]
    copies: int

    def apply(self, array: Array) -> Array:
        source = strided_view(array, self.shape, self.strides, self.offset)
        count = -(-self.channels // self.block)
        packed = np.zeros((self.taps, count * self.block), np.float32)
        packed[:, : self.channels] = source.reshape(self.channels, self.taps).astype(np.float32).T
        blocks = packed.reshape(self.taps, count, 1, self.block).transpose(1, 0, 2, 3)
        return np.repeat(blocks, self.copies, axis=2)

    def packed_bytes(self, kind: TensorType) -> int:
        return ceil_to(self.channels, self.block) * self.taps * self.copies * DType.F32.itemsize
