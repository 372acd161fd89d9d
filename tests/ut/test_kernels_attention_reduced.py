"""Attention in bf16: results, declared accesses and independence of the split, on every tier; the stated error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case
from attention_cases import SHAPES, Sizes, slots_of
from kernel_check import tiers
from narrow_model import bf16
from numpy.typing import NDArray

from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.scheduler.families import family_of

Array = NDArray[Any]
KERNEL = "host.attention.bf16"
KERNELS = {KERNEL: DType.F32, "host.attention.pairs": DType.BF16}
"""Kernels, and the type of their factors."""
TOLERANCE = 2e-2  # of values up to 3: probabilities are rounded too


def factors(sizes: Sizes, seed: int = 0, dtype: DType = DType.F32) -> list[Array]:
    """Queries, keys and values that bf16 holds (queries also where their scale is a power of two)."""
    rng = np.random.default_rng(seed)
    return [bf16(rng.standard_normal(shape)).astype(dtype.numpy) for shape, _ in slots_of(sizes)]  # type: ignore[misc]


def run(arrays: list[Array | None], attrs: dict[str, Any], tier: str) -> Array:
    case, cpu = anchor_case("attention", attrs, arrays), detect_cpu(tier)
    out = next(iter(case.expected))
    given = [np.zeros(case.body.operands[out].type.shape, np.float32) if a is None else a for a in case.arrays]
    StandaloneKernel(KERNEL, case.body, family_of(KERNEL).tilings(KERNEL, case.body, cpu)[0], cpu).run(given)
    return given[out]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("sizes", "attrs"), SHAPES, ids=str)
def test_shapes(sizes: Sizes, attrs: dict[str, Any], kernel: str) -> None:
    anchor_case("attention", attrs, factors(sizes, dtype=KERNELS[kernel])).check(kernel, TOLERANCE, every_tier=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("boolean", [False, True])
def test_masks(boolean: bool, kernel: str) -> None:
    noise = np.random.default_rng(3).standard_normal((5, 70)).astype(np.float32)
    mask = noise > -0.3 if boolean else np.where(noise > 1, np.float32(-np.inf), noise).astype(KERNELS[kernel].numpy)
    given = factors((2, 3, 3, 5, 70, 8, 9), dtype=KERNELS[kernel])
    anchor_case("attention", {}, [*given, mask]).check(kernel, TOLERANCE)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("length", [200, 37, 1, 0], ids=str)
def test_lengths(length: int, kernel: str) -> None:
    """Of even and odd numbers of keys; a cache may hold anything behind its valid rows, even NaN."""
    q, k, v = factors((1, 4, 2, 9, 210, 16, 16), dtype=KERNELS[kernel])
    k[:, :, length:], v[:, :, length:] = np.nan, np.nan
    case = anchor_case("attention", {"causal": True}, [q, k, v, None, np.array(length)])
    assert not any(np.isnan(want).any() for want in case.expected.values())
    case.check(kernel, TOLERANCE)


def test_rows_without_visible_keys_are_zero() -> None:
    mask = np.ones((6, 21), np.bool_)
    mask[2] = False
    case = anchor_case("attention", {}, [*factors((1, 1, 1, 6, 21, 8, 8)), mask])
    got = run([a for a in case.arrays if a is not None], {}, tiers()[0])
    assert not got[0, 0, 2].any()
    case.check(KERNEL, TOLERANCE)


@pytest.mark.parametrize("kernel", KERNELS)
def test_views_of_sequence_major_tensors(kernel: str) -> None:
    layouts = dict.fromkeys(range(3), (0, 2, 1, 3))
    slots = slots_of((2, 4, 2, 20, 33, 16, 16), KERNELS[kernel])
    anchor_case("attention", {}, slots, layouts=layouts, epilogue="mixed").check(kernel, 0.1)


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("depth", [32, 64])
def test_error_bounds(depth: int, tier: str) -> None:
    """What docs/numerics.md states: scores are off as products are, results by what that does to probabilities."""
    rng = np.random.default_rng(depth)
    q, k, v = (rng.standard_normal((1, 2, n, depth)).astype(np.float32) for n in (24, 150, 150))
    got = run([q, k, v], {}, tier)
    wide = [a.astype(np.float64) for a in (q, k, v)]
    scores, magnitude = (a @ b.swapaxes(-1, -2) / depth**0.5 for a, b in (wide[:2], [np.abs(a) for a in wide[:2]]))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    off = 2.0**-7.9 * magnitude.max(axis=-1, keepdims=True)  # of a score
    bound = (np.expm1(2 * off) + 2.0**-7) * (shares @ np.abs(wide[2]))
    error = np.abs(got - shares @ wide[2])
    assert (error <= bound).all()
    assert error.max() <= 2.0**-7 * np.abs(wide[2]).max()


def test_probabilities_add_up_to_one() -> None:
    """Values that are all the same come out as they are: the sum is of the rounded probabilities."""
    q, k, _ = factors((1, 1, 1, 20, 77, 16, 16))
    got = run([q, k, np.full((1, 1, 77, 16), 1.5, np.float32)], {}, tiers()[0])
    np.testing.assert_allclose(got, 1.5, rtol=1e-6)


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS.items())
def test_other_types_are_refused(kernel: str, dtype: DType) -> None:
    body = anchor_case("attention", {}, slots_of((1, 1, 1, 4, 5, 6, 7), DType.F16)).body
    with pytest.raises(UnsupportedError, match=f"of {dtype.value}"):
        family_of(kernel).tilings(kernel, body, detect_cpu())
