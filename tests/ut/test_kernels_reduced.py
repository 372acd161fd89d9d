"""Matrix products in narrow formats: held to a model of their rounding, against declared accesses, on every tier.

Model: `expected_product` rounds the factors as the format says and multiplies them in float64; what is left is the
rounding of f32 sums. The distance of the model itself to the exact product is what docs/numerics.md states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import AnchorCase, anchor_case
from kernel_check import check_body, tiers
from numpy.typing import NDArray

from superkernel.body import Role
from superkernel.codegen.host.features import detect_cpu
from superkernel.dtypes import DType
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.matmul_reduced import (
    BF16,
    BF16X3,
    FORMATS,
    INT8,
    INT8X2,
    WEIGHTS8,
    NarrowTiling,
    format_of,
)
from superkernel.target.cpu import CpuTarget

Array = NDArray[Any]
F32 = DType.F32
KERNELS = tuple(FORMATS)

# Error of a result, relative to the sum of |x| |w| behind it (INT8: to the largest |x| and |w| times the depth).
BOUNDS = {BF16: 2.0**-7.9, BF16X3: 2.0**-15.5, INT8: 2.0**-7, INT8X2: 2.0**-8, WEIGHTS8: 2.0**-8}


def bf16(x: Array) -> Array:
    return x.astype(np.float32).astype(DType.BF16.numpy).astype(np.float64)


def weights8(w: Array) -> Array:
    """Columns of signed bytes with a scale, widened again."""
    largest = np.abs(w).max(axis=-2, keepdims=True) if w.shape[-2] else np.zeros((1, w.shape[-1]))
    scale = (largest.astype(np.float32) / np.float32(127)).astype(np.float64)
    safe = np.where(scale > 0, scale, 1.0)
    return np.clip(np.rint(w / safe), -127, 127) * scale


def rows_of_codes(x: Array, largest: int) -> Array:
    """Rows of unsigned integers with a scale and a zero point, widened again."""
    low = np.minimum(x.min(axis=-1, keepdims=True, initial=0.0), 0.0)
    high = np.maximum(x.max(axis=-1, keepdims=True, initial=0.0), 0.0)
    width = (high - low).astype(np.float32)
    inverse = np.float32(largest) / np.where(width > 0, width, np.float32(1))
    start = np.rint((-low).astype(np.float32) * inverse)
    code = np.clip(np.rint(x.astype(np.float32) * inverse) + start, 0, largest)
    return (code - start) * (width / np.float32(largest)).astype(np.float64)


def expected_product(a: Array, b: Array, form: str) -> Array:
    """What a format computes but for the rounding of sums."""
    if form == BF16:
        return np.matmul(bf16(a), bf16(b))
    if form == BF16X3:
        (ah, al), (bh, bl) = ((bf16(x), bf16(x - bf16(x))) for x in (a, b))
        return np.matmul(ah, bh) + np.matmul(ah, bl) + np.matmul(al, bh)
    rows = {INT8: rows_of_codes(a, 255), INT8X2: rows_of_codes(a, 65535)}.get(form, a)
    return np.matmul(rows, weights8(b))


def narrow_case(a: tuple[int, ...], b: tuple[int, ...], seed: int = 0, **how: Any) -> tuple[AnchorCase, Array, Array]:
    """A case with its factors as matrices."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(a).astype(np.float32), rng.standard_normal(b).astype(np.float32)
    return anchor_case("matmul", how, [x, w], constants=[1]), x, w


def tilings_of(kernel: str, case: AnchorCase, cpu: CpuTarget) -> list[NarrowTiling]:
    found = family_of(kernel).tilings(kernel, case.body, cpu)
    return [t for t in found if isinstance(t, NarrowTiling)]


def check(kernel: str, case: AnchorCase, want: Array, tier: str, tol: float = 2e-5) -> None:
    """One tiling per unit axis."""
    output = next(i for i, o in enumerate(case.body.operands) if o.role is Role.OUTPUT)
    axes = {t.axis: t for t in reversed(tilings_of(kernel, case, detect_cpu(tier)))}
    for tiling in axes.values():
        check_body(kernel, case.body, case.arrays, {output: want}, tiling=tiling, tol=tol, tier=tier, splits=2)


SHAPES = [
    ((1, 1), (1, 1)),
    ((37, 45), (45, 83)),
    ((3, 130), (130, 17)),
    ((2, 3, 19, 33), (33, 65)),
    ((29, 1), (1, 31)),
    ((47,), (47, 50)),
]


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_products(kernel: str, a: tuple[int, ...], b: tuple[int, ...], tier: str) -> None:
    case, x, w = narrow_case(a, b)
    form = format_of(kernel, detect_cpu(tier))
    check(kernel, case, expected_product(x.astype(float), w.astype(float), form), tier, tol=1e-4)
