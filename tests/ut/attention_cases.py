"""Sizes of attention that the tests of its kernels share."""

from __future__ import annotations

from typing import Any

from anchor_bodies import Slot

from superkernel.core.dtypes import DType

Sizes = tuple[int, int, int, int, int, int, int]


def slots_of(sizes: Sizes, dtype: DType = DType.F32) -> list[Slot]:
    """q, k and v for (batch, query heads, key heads, queries, keys, depth, value depth)."""
    b, hq, hkv, sq, skv, d, dv = sizes
    return [((b, hq, sq, d), dtype), ((b, hkv, skv, d), dtype), ((b, hkv, skv, dv), dtype)]


SHAPES: list[tuple[Sizes, dict[str, Any]]] = [
    ((1, 2, 2, 33, 33, 16, 16), {}),
    ((2, 4, 2, 17, 150, 20, 24), {"causal": True}),
    ((1, 2, 2, 80, 64, 16, 16), {"causal": True}),
    ((1, 6, 2, 30, 31, 8, 5), {"causal": True, "scale": 0.3}),
    ((1, 8, 2, 1, 300, 64, 64), {}),
    ((1, 3, 1, 1, 70, 20, 9), {}),
    ((2, 4, 2, 2, 37, 33, 16), {"causal": True}),
    ((1, 1, 1, 1, 1, 1, 1), {}),
    ((1, 2, 1, 9, 40, 17, 33), {"softcap": 3.0}),
    ((0, 2, 2, 3, 4, 5, 6), {}),
    ((1, 2, 2, 3, 0, 5, 6), {}),
]
