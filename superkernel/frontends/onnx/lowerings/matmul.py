"""Matrix products, those with weights quantised in blocks among them, and determinants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.determinants import determinant
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.lowerings.conv import is_zero
from superkernel.frontends.onnx.registry import lowers

_WORD_CODES = 8  # kernels read so many codes at a time: blocks are whole numbers of them
_NIBBLES = 16


@lowers("MatMul")
def matmul(call: OnnxCall) -> Tensor:
    x, w = call.input(0), call.input(1)
    product = _of_dequantised(call, x, w)
    return call.emit("matmul", x, w) if product is None else product


def _of_dequantised(call: OnnxCall, x: Tensor, w: Tensor) -> Tensor | None:
    """The product with constants [K, N] that are dequantised in blocks along K (`quant.by_blocks`), None where w is
    something else."""
    moved = w.value.record
    made = moved.inputs[0].record if moved is not None and moved.op == "reshape" else None
    if made is None or made.op != "dequantize" or w.rank != 2 or x.dtype not in (DType.F32, DType.F16, DType.BF16):
        return None
    codes, scale, zero = (None if v is None else v.data for v in (*made.inputs, None)[:3])
    computed = len(made.inputs) > 2 and made.inputs[2] is not None and zero is None
    if codes is None or scale is None or computed or codes.ndim != 3 or scale.dtype == np.float64:
        return None
    if codes.dtype not in (np.int8, np.uint8):
        return None
    blocks, block, columns = codes.shape
    if scale.shape != (blocks, 1, columns) or block % _WORD_CODES or (zero is not None and zero.shape != scale.shape):
        return None
    numbers = codes.reshape(-1, columns).T
    low, high = (int(f(numbers)) for f in (np.min, np.max)) if numbers.size else (0, 0)
    middle = _NIBBLES // 2 if low < 0 else 0
    bits = 4 if low + middle >= 0 and high + middle < _NIBBLES else 8
    if bits == 4:
        nibbles = (numbers + middle).astype(np.uint8)
        numbers = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    middle = middle if bits == 4 else 0
    zeros = None if zero is None else zero[:, 0].T.astype(np.float32)
    return block_product(call, x, numbers, scale[:, 0].T, zeros, bits=bits, block=block, middle=middle)


def block_product(
    call: OnnxCall,
    x: Tensor,
    codes: NDArray[np.uint8 | np.int8],
    scale: NDArray[np.floating],
    zeros: NDArray[np.float32] | None,
    *,
    bits: int,
    block: int,
    middle: int,
    x_bits: int = 0,
) -> Tensor:
    """x times the transpose of (codes - middle - zeros) * scale, `block_matmul`'s codes [N, bytes], the others [N, K /
    block]. Zero points that differ are offsets, in f32 as their products with scales of 16 bits have more of them."""
    offset = None
    if zeros is not None and zeros.size and (np.any(zeros != zeros.flat[0]) or zeros.flat[0] % 1):
        scale = scale.astype(np.float32)
        offset = call.constant(np.ascontiguousarray(-zeros * scale))
    elif zeros is not None and zeros.size:
        middle += int(zeros.flat[0])
    weights = (call.constant(np.ascontiguousarray(part)) for part in (codes, scale))
    return call.emit("block_matmul", x, *weights, offset, bits=bits, block=block, zero=middle, x_bits=x_bits)


@lowers("MatMulInteger")
def matmul_integer(call: OnnxCall) -> Tensor:
    a, b = call.input(0), call.input(1)
    return call.emit("matmul_integer", a, b, zero_point(call, 2, a, -2), zero_point(call, 3, b, -1))


def zero_point(call: OnnxCall, slot: int, operand: Tensor, axis: int) -> Tensor | None:
    """An optional zero point, broadcastable to the operand: a scalar, or one per row (axis -2) or column (axis -1). One
    that is known to be 0 is none: symmetric quantisation has them for form's sake."""
    zero = call.optional(slot)
    if zero is not None and is_zero(zero):
        return None
    if zero is None or zero.type.size == 1:
        return None if zero is None else call.reshape(zero, ())
    if zero.rank == 1:
        return call.reshape(zero, (zero.shape[0], 1) if axis == -2 else (1, zero.shape[0]))
    return zero


@lowers("Det")
def det(call: OnnxCall) -> Tensor:
    x = call.input(0)
    call.require_rank(x, 2)
    if x.shape[-1] != x.shape[-2]:
        raise call.contradiction("not square matrices", found=x.type)
    return determinant(call, x)
