"""Constants of convolutions in the order in which the accelerator's kernels load them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.core.tensor import TensorType
from superkernel.ops.opdef import Array
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
        flat = np.ascontiguousarray(array).reshape(-1)
        steps = tuple(s * flat.itemsize for s in self.strides)
        weights = np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, steps, writeable=False)
        channels, taps = self.shape[1], int(np.prod(self.shape[2:]))
        source = weights.reshape(self.groups, self.merged, self.out, channels, taps).transpose(0, 1, 2, 4, 3)
        wide = np.zeros((self.groups, self.merged, self.out, taps, self.padded), flat.dtype)
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
        return np.concatenate(parts) if parts else np.zeros(0, flat.dtype)

    def packed_bytes(self, kind: TensorType) -> int:
        return self.groups * self.merged * self.out * self.cuts[-1] * kind.dtype.itemsize


@dataclass(frozen=True)
class PackChannelVector(Pack):
    """A value per output channel as f32, the channels of each (merged) group padded to whole blocks."""

    groups: int
    out: int
    padded: int
    offset: int
    stride: int

    def apply(self, array: Array) -> Array:
        flat = np.ascontiguousarray(array).reshape(-1)
        count = self.groups * self.out
        found = np.broadcast_to(flat[self.offset : self.offset + 1], (count,)) if self.stride == 0 else (
            flat[self.offset : self.offset + (count - 1) * self.stride + 1 : self.stride]
        )  # fmt: skip
        wide = np.zeros((self.groups, self.padded), np.float32)
        wide[:, : self.out] = found.astype(np.float32).reshape(self.groups, self.out)
        return wide
