"""The attention kernel: results, declared accesses and independence of the split, on every tier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case
from attention_cases import SHAPES, Sizes, slots_of

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.ir.body import View
from superkernel.scheduler.families import family_of

F32, F16, BF16, BOOL = (DType.of(n) for n in ("f32", "f16", "bf16", "bool"))
KERNEL = "host.attention"


@pytest.mark.parametrize(("sizes", "attrs"), SHAPES, ids=str)
def test_shapes(sizes: Sizes, attrs: dict[str, Any]) -> None:
    anchor_case("attention", attrs, slots_of(sizes)).check(KERNEL)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "attrs"), SHAPES, ids=str)
def test_every_tier(sizes: Sizes, attrs: dict[str, Any]) -> None:
    mask = np.random.default_rng(1).standard_normal((sizes[3], sizes[4])).astype(np.float32)
    anchor_case("attention", attrs, [*slots_of(sizes), mask]).check(KERNEL, every_tier=True)


@pytest.mark.parametrize("dtype", [F32, BOOL])
@pytest.mark.parametrize("shape", [(2, 1, 5, 70), (1, 3, 1, 70), (5, 1), (70,), (2, 3, 5, 70)], ids=str)
def test_masks(shape: tuple[int, ...], dtype: DType) -> None:
    rng = np.random.default_rng(3)
    noise = rng.standard_normal(shape).astype(np.float32)
    mask = noise > -0.3 if dtype is BOOL else np.where(noise > 1, np.float32(-np.inf), noise)
    anchor_case("attention", {}, [*slots_of((2, 3, 3, 5, 70, 8, 9)), mask]).check(KERNEL)


@pytest.mark.parametrize("length", [np.array(200), np.array([3], np.int32), np.array([0]), np.array([999])], ids=str)
def test_lengths(length: np.ndarray[Any, Any]) -> None:
    slots = [*slots_of((1, 4, 2, 2, 210, 16, 16)), None, length]
    anchor_case("attention", {"causal": True}, slots).check(KERNEL)


def test_length_per_batch_with_a_mask() -> None:
    mask = np.random.default_rng(0).random((3, 1, 4, 50)) < 0.5
    slots = [*slots_of((3, 2, 1, 4, 50, 16, 16)), mask, np.array([50, 0, 7])]
    anchor_case("attention", {}, slots).check(KERNEL)


def test_rows_without_visible_keys_are_zero() -> None:
    mask = np.ones((6, 20), np.bool_)
    mask[2] = False
    case = anchor_case("attention", {}, [*slots_of((1, 1, 1, 6, 20, 8, 8)), mask])
    assert not case.expected[4][0, 0, 2].any()
    case.check(KERNEL)


@pytest.mark.parametrize("queries", [1, 3])
def test_what_lies_beyond_the_length_is_never_used(queries: int) -> None:
    """A cache may hold anything behind its valid rows, even NaN."""
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((1, 2, 90, 16)).astype(np.float32) for _ in range(2))
    k[:, :, 37:], v[:, :, 37:] = np.nan, np.nan
    q = rng.standard_normal((1, 4, queries, 16)).astype(np.float32)
    case = anchor_case("attention", {"causal": True}, [q, k, v, None, np.array(37)])
    assert not np.isnan(case.expected[4]).any()
    case.check(KERNEL)


@pytest.mark.parametrize("queries", [1, 20])
def test_views_of_sequence_major_tensors(queries: int) -> None:
    """[batch, sequence, head, depth] operands, no copies; a store into the same layout."""
    layouts = dict.fromkeys(range(3), (0, 2, 1, 3))
    case = anchor_case("attention", {}, slots_of((2, 4, 2, queries, 33, 16, 16)), layouts=layouts, epilogue="mixed")
    family = family_of(KERNEL)
    for slot, view in enumerate(case.body.anchor_inputs[:3]):
        assert isinstance(view, View)
        assert family.accepts_view(KERNEL, "attention", slot, view, F32)
    case.check(KERNEL)


def test_keys_with_scattered_elements_are_not_accepted() -> None:
    body = anchor_case("attention", {}, slots_of((1, 1, 1, 4, 5, 6, 7)), layouts={1: (0, 1, 3, 2)}).body
    view = body.anchor_inputs[1]
    assert isinstance(view, View)
    assert not family_of(KERNEL).accepts_view(KERNEL, "attention", 1, view, F32)


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize(("dtype", "tol"), [(F16, 3e-3), (BF16, 3e-2)])
def test_half_precision(dtype: DType, tol: float, queries: int) -> None:
    anchor_case("attention", {}, slots_of((1, 2, 1, queries, 40, 20, 16), dtype)).check(KERNEL, tol)


def test_large_scores_do_not_overflow() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 5, 8)).astype(np.float32) for _ in range(3))
    anchor_case("attention", {"scale": 1.0}, [q * 100, k * 100, v]).check(KERNEL, 1e-4)


def test_causal_blocks_cost_what_they_see() -> None:
    body = anchor_case("attention", {"causal": True}, slots_of((1, 2, 2, 512, 512, 32, 32))).body
    cpu = detect_cpu()
    tiling = family_of(KERNEL).tilings(KERNEL, body, cpu)[0]
    first, second = (
        tiling.cost_ns(body, 0, tiling.units // 4, cpu),
        tiling.cost_ns(body, tiling.units // 4, tiling.units // 2, cpu),
    )
    assert second > 1.5 * first
