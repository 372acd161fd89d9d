"""Matrices of a model as they are stored: what a linear layer multiplies with, and what tokens are looked up in.

Model: a matrix is [outputs, inputs]. *Dense* ones are arrays, perhaps mapped from a file; *coded* ones are codes of 4
or 8 bits with a scale, and perhaps an offset, per block of neighbours along the inputs. Either says how a graph
multiplies with it and how it takes rows of it; nothing is converted ahead of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder, Tensor
from superkernel.core.dtypes import DType

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dense:
    """A float matrix [outputs, inputs], stored so or, where `transposed`, as [inputs, outputs]."""

    array: Array
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs, inputs."""
        rows, columns = self.array.shape
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def dtype(self) -> DType:
        """What products with it are computed in."""
        return DType.of(self.array.dtype)

    @property
    def nbytes(self) -> int:
        """As stored."""
        return int(self.array.nbytes)

    def product(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """x [..., inputs] times the matrix, [..., outputs], in x's element type."""
        return b.matmul(x, constant(b, self.array, x.dtype), trans_b=not self.transposed)

    def rows(self, b: GraphBuilder, indices: Tensor, dtype: DType) -> Tensor:
        """Rows of a matrix that is not transposed: [tokens, inputs] of type `dtype`."""
        taken = b.gather(b.constant(self.array, copy=False), indices, axis=0)
        return taken if taken.dtype is dtype else b.cast(taken, dtype)

    def parts(self, *sizes: int) -> list[Dense]:
        """The matrix cut along its outputs."""
        return [Dense(self.array[:, c] if self.transposed else self.array[c], self.transposed) for c in cuts(sizes)]

    def dense(self) -> Array:
        """[outputs, inputs]."""
        return self.array.T if self.transposed else self.array


@dataclass(frozen=True, eq=False)
class Coded:
    """A matrix [outputs, inputs] in codes: (code - zero) * scale + offset, by blocks of `block` inputs.

    codes: i8 [outputs, inputs] of 8 bits; u8 [outputs, inputs / 2] of 4 bits, the even input in the lower half.
    scale, offset: f32 or f16, as they were stored, [outputs, inputs / block]."""

    codes: Array
    scale: Array
    offset: Array | None
    bits: int
    block: int
    zero: int = 0

    dtype = DType.F32
    """What products with it are computed in."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs, inputs."""
        return self.codes.shape[0], self.codes.shape[1] * 8 // self.bits

    @property
    def nbytes(self) -> int:
        """As stored here."""
        return int(self.codes.nbytes + self.scale.nbytes + (0 if self.offset is None else self.offset.nbytes))

    def product(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """x [..., inputs] times the matrix, [..., outputs]. x may be rounded to 8 bits, with a scale per block: what
        files of codes are meant for, and llama.cpp always does."""
        offset = None if self.offset is None else b.constant(self.offset, copy=False)
        codes, scale = b.constant(self.codes, copy=False), b.constant(self.scale, copy=False)
        return b.block_matmul(x, codes, scale, offset, bits=self.bits, block=self.block, zero=self.zero, x_bits=8)

    def rows(self, b: GraphBuilder, indices: Tensor, dtype: DType) -> Tensor:
        """Rows of the matrix, decoded when they are taken: [tokens, inputs] of type `dtype`."""
        tokens, (_, inputs) = indices.shape[0], self.shape
        codes = b.gather(b.constant(self.codes, copy=False), indices, axis=0)
        if self.bits == 4:
            whole = b.cast(codes, DType.I32)
            halves = [b.bitwise_and(whole, 15), b.shift_right(whole, 4)]
            codes = b.concat(*(h.reshape(tokens, inputs // 2, 1) for h in halves), axis=2)
        values = b.cast(codes, DType.F32).reshape(tokens, inputs // self.block, self.block)
        if self.zero:
            values = values - float(self.zero)

        def of_blocks(array: Array) -> Tensor:
            taken = b.gather(b.constant(array, copy=False), indices, axis=0).reshape(tokens, inputs // self.block, 1)
            return taken if taken.dtype is DType.F32 else b.cast(taken, DType.F32)

        values = values * of_blocks(self.scale)
        if self.offset is not None:
            values = values + of_blocks(self.offset)
        flat = values.reshape(tokens, inputs)
        return flat if dtype is DType.F32 else b.cast(flat, dtype)

    def parts(self, *sizes: int) -> list[Coded]:
        """The matrix cut along its outputs."""
        offset = self.offset
        return [
            replace(self, codes=self.codes[c], scale=self.scale[c], offset=None if offset is None else offset[c])
            for c in cuts(sizes)
        ]

    def dense(self) -> Array:
        """[outputs, inputs], decoded to f32."""
        codes = self.codes
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(self.shape)
        values = (codes.astype(np.float32) - self.zero).reshape(self.shape[0], -1, self.block)
        values *= self.scale[:, :, None]
        if self.offset is not None:
            values += self.offset[:, :, None]
        return values.reshape(self.shape)


Matrix: TypeAlias = Dense | Coded


def constant(b: GraphBuilder, array: Array, dtype: DType) -> Tensor:
    """An array as a constant of the graph, used where it lies if it has the type already."""
    return b.constant(array if array.dtype == dtype.numpy else array.astype(dtype.numpy), copy=False)


def cuts(sizes: Sequence[int]) -> Iterator[slice]:
    """Ranges of these sizes, one behind the other."""
    end = 0
    for size in sizes:
        yield slice(end, end + size)
        end += size
