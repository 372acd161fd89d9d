"""Products with weights that are quantised in blocks: codes of 4 or 8 bits, a scale and perhaps an offset per block.

Model: the weights are [N, K], the output's columns outside, as files of quantised language models store them; `block`
neighbours along K share a scale. Codes of 4 bits lie two in a byte, the lower nibble at the even k. Formats of files
are this one: Q4_0 (zero 8), Q8_0 (i8), Q4_K (offset -dmin * m), MatMulNBits (a zero point per block z as
offset -z * scale).

Invariant: codes, scales and offsets are what they are stored as; no other rounding than that of f32 sums, but where a
graph says of x that it may be rounded (`x_bits`), or the policy does. The reference never does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError
from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, get, optional, present, require, require_rank, require_shape, slot, to_f64
from superkernel.ops.opdef import BYTES, VECTOR_FLOATS, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types

CODE_BITS = (4, 8)

_ARGS = (
    ArgDef("x", VECTOR_FLOATS, doc="[..., K]"),
    ArgDef("codes", BYTES, doc="[N, ceil(K * bits / 8)]; bits 4: u8, the lower nibble at the even k; bits 8: i8 or u8"),
    ArgDef("scale", VECTOR_FLOATS, doc="[N, ceil(K / block)]"),
    ArgDef("offset", VECTOR_FLOATS, optional=True, doc="of scale's type and shape; none: 0"),
)


@dataclass(frozen=True)
class Blocks:
    """How weights [columns, depth] are stored. `zero`: the code that stands for the offset alone."""

    bits: int
    block: int
    zero: int
    columns: int
    depth: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a column's codes."""
        return -(-self.depth * self.bits // 8)

    @property
    def count(self) -> int:
        """Blocks of a column; the last one may be shorter."""
        return -(-self.depth // self.block)

    def numbers(self, codes: Array) -> Array:
        """Stored codes [N, bytes] as numbers [N, depth], zero off, as i16."""
        if self.bits == 8:
            wide = codes.astype(np.int16)
        else:
            wide = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)[:, : self.depth].astype(np.int16)
        return wide - np.int16(self.zero)

    def weights(self, codes: Array, scale: Array, offset: Array | None) -> Array:
        """[N, depth] in float64."""

        def spread(values: Array) -> Array:
            return np.repeat(to_f64(values), self.block, axis=1)[:, : self.depth]

        product: Array = self.numbers(codes) * spread(scale)
        return product if offset is None else product + spread(offset)


def blocks_of(x: TensorType, codes: TensorType, attrs: Attrs) -> Blocks:
    """How a product's weights are stored."""
    bits, block, zero = (get(attrs, name, int) for name in ("bits", "block", "zero"))
    return Blocks(bits, block, zero, codes.shape[0], x.shape[-1])


def _infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, codes, scale, offset = present(inputs, 0), present(inputs, 1), present(inputs, 2), optional(inputs, 3)
    require_rank(x, 1, None, slot(_ARGS, 0))
    require_rank(codes, 2, 2, slot(_ARGS, 1))
    blocks = blocks_of(x, codes, attrs)
    require(blocks.bits in CODE_BITS, "no such codes", "4 or 8", blocks.bits, "attribute 'bits'")
    require(get(attrs, "x_bits", int) in (0, 8), "no such x", "0 or 8", attrs["x_bits"], "attribute 'x_bits'")
    require(blocks.block >= 1, "a block without weights", "1 or more", blocks.block, "attribute 'block'")
    is_signed = codes.dtype is DType.I8
    if blocks.bits == 4 and is_signed:
        raise GraphError("two codes in a signed byte", location=slot(_ARGS, 1), expected=DType.U8, found=codes.dtype)
    low, high = (-128, 127) if is_signed else (0, 2**blocks.bits - 1)
    require(low <= blocks.zero <= high, "no code", f"{low} to {high}", blocks.zero, "attribute 'zero'")
    require_shape(codes, (blocks.columns, blocks.row_bytes), slot(_ARGS, 1))
    for at, kind in ((2, scale), (3, offset)):
        if kind is not None:
            require_shape(kind, (blocks.columns, blocks.count), slot(_ARGS, at))
            require(kind.dtype is scale.dtype, "element types differ", scale.dtype, kind.dtype, slot(_ARGS, at))
    return (TensorType(x.dtype, (*x.shape[:-1], blocks.columns)),)


def _reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, codes, scale = present(inputs, 0), present(inputs, 1), present(inputs, 2)
    bits, block, zero = (get(attrs, name, int) for name in ("bits", "block", "zero"))
    weights = Blocks(bits, block, zero, codes.shape[0], x.shape[-1]).weights(codes, scale, optional(inputs, 3))
    return (np.asarray(to_f64(x) @ weights.T),)


def _flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return 2 * outputs[0].size * present(inputs, 0).shape[-1]


OPS: tuple[OpDef, ...] = (
    OpDef(
        "block_matmul",
        Family.MATMUL,
        "x times the transpose of W, W[n, k] = (codes[n, k] - zero) * scale[n, k // block] + offset[n, k // block].",
        _ARGS,
        (
            attr("bits", int, "of a code: 4, two in a byte, or 8"),
            attr("block", int, "neighbours along K that share a scale"),
            attr("zero", 0, "the code of the offset alone"),
            attr("x_bits", 0, "8: x may be rounded to so many, with a scale per block; 0: not for the operator's sake"),
        ),
        _infer,
        _reference,
        _flops,
    ),
)
