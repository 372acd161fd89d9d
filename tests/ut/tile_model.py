"""What AMX's products of tiles compute, by the manual's words: bit for bit, in NumPy and in exact rational numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from exact_float import RNE, SINGLE, UF, add, fma
from numpy.typing import NDArray

Array = NDArray[Any]
PAIRS = 16  # a product of tiles takes

_SMALLEST = 1 << 23  # bits of the smallest normal number


def product_of_bytes(sums: Array, rows: Array, words: Array) -> Array:
    """i32 sums [m, n] + u8 rows [m, 4 k] times words of i8 weights [k, 4 n], modulo 2^32."""
    k, columns = words.shape[0], words.shape[1] // 4
    weights = words.reshape(k, columns, 4).transpose(0, 2, 1).reshape(4 * k, columns).astype(np.int64)
    return (sums.astype(np.int64) + rows.astype(np.int64) @ weights).astype(np.int32)


def product_of_bf16(sums: Array, rows: Array, words: Array) -> Array:
    """f32 sums [m, n] + bf16 rows [m, 2 k] times words of bf16 weights [k, 2 n]; all as bits."""
    found = np.empty(sums.shape, np.uint32)
    for m, n in np.ndindex(*sums.shape):
        parts = [0, 0]
        for k in range(words.shape[0]):
            for half in (0, 1):
                a, w = int(rows[m, 2 * k + half]) << 16, int(words[k, 2 * n + half]) << 16
                parts[half] = _kept(fma(_taken(a), _taken(w), parts[half], SINGLE, RNE))
        added = _kept(add(parts[0], parts[1], SINGLE, RNE))
        found[m, n] = _kept(add(_taken(int(sums[m, n])), added, SINGLE, RNE))
    return found


def _taken(bits: int) -> int:
    """A factor or term: 0 where it is denormal."""
    return bits if bits & ~SINGLE.sign >= _SMALLEST else bits & SINGLE.sign


def _kept(result: tuple[int, int]) -> int:
    """A result: 0 where it was tiny before its last bits were rounded off."""
    bits, flags = result
    return bits & SINGLE.sign if flags & UF else _taken(bits)


def matmul_bf16(a: Array, b: Array) -> Array:
    """f32 [.., m, k] x [.., k, n], rounded to bf16 and multiplied in tiles: numbers that stay far from the smallest and
    largest, so that sums in 64 bits of fraction are exact."""
    steps, pad = -(-a.shape[-1] // (2 * PAIRS)), -a.shape[-1] % (2 * PAIRS)
    wide = [np.concatenate([x, np.zeros((*x.shape[:-1], pad))], axis=-1) for x in (a, np.swapaxes(b, -1, -2))]
    rows, columns = (x.reshape(*x.shape[:-1], steps, PAIRS, 2).astype(np.longdouble) for x in wide)
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*shape, a.shape[-2], b.shape[-1]), np.float32)
    for step in range(steps):
        halves = np.zeros((2, *total.shape), np.float32)
        for k in range(PAIRS):
            for half in (0, 1):
                x, w = rows[..., step, k, half], columns[..., step, k, half]
                halves[half] = (x[..., :, None] * w[..., None, :] + halves[half].astype(np.longdouble)).astype(
                    np.float32
                )
        total = total + (halves[0] + halves[1])
    return total
