"""Products of bf16 factors by the CPU's own instructions: pairs of them, and tiles.

Of small whole numbers, so that every sum is exact in f32 and a result is rounded once: bit for bit what the reference
gives, whatever the cut. Of any numbers within the rounding of f32 sums and of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import AnchorCase, Slot, anchor_case
from kernel_check import check_body, tiers
from numpy.typing import NDArray

import superkernel as sk
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.core.dtypes import DType
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.target.cpu import EMULATED_TILES

Array = NDArray[Any]
BF16 = DType.BF16
PAIRS, TILES = ("host.matmul.pairs", "host.matmul.gemv_pairs"), "host.matmul.pairs_tiles"
NATIVE = [tier for tier in tiers() if detect_cpu(tier).has("avx512bf16")]
EMULATED = [f"{tier}+{EMULATED_TILES}" for tier in tiers() if tier != "plain"]
RUNS = [(kernel, tier) for kernel in PAIRS for tier in NATIVE] + [(TILES, tier) for tier in EMULATED]

pytestmark = pytest.mark.skipif(not RUNS, reason="no instructions for pairs of bf16, and none to emulate tiles with")

SHAPES = [
    ((1, 1), (1, 1)),
    ((1, 512), (512, 130)),
    ((4, 77), (77, 40)),
    ((37, 45), (45, 83)),
    ((2, 3, 19, 33), (33, 65)),
    ((2, 1, 8, 35), (1, 3, 35, 30)),
    ((29, 1), (1, 31)),
    ((300, 600), (600, 20)),
]


def whole(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(BF16.numpy)


def check(kernel: str, tier: str, case: AnchorCase, tol: float = 0) -> None:
    rounded = {operand: want.astype(BF16.numpy) for operand, want in case.expected.items()}
    check_body(kernel, case.body, case.arrays, rounded, tol=tol, tier=tier, splits=2)


@pytest.mark.parametrize(("kernel", "tier"), RUNS)
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_products_of_whole_numbers_are_exact(a: tuple[int, ...], b: tuple[int, ...], kernel: str, tier: str) -> None:
    check(kernel, tier, anchor_case("matmul", {}, [whole(a, 1), whole(b, 2)], constants=[1]))


@pytest.mark.parametrize(("kernel", "tier"), RUNS)
@pytest.mark.parametrize("turned", ["trans_a", "trans_b"])
def test_turned_factors(turned: str, kernel: str, tier: str) -> None:
    a, b = ((33, 9), (33, 65)) if turned == "trans_a" else ((9, 33), (65, 33))
    check(kernel, tier, anchor_case("matmul", {turned: True}, [whole(a, 1), whole(b, 2)], constants=[1]))


@pytest.mark.parametrize(("kernel", "tier"), RUNS)
@pytest.mark.parametrize("store", ["mixed", "sliced"])
def test_prologues_and_epilogues(store: str, kernel: str, tier: str) -> None:
    slots: list[Slot] = [((2, 9, 24), BF16), ((24, 37), BF16)]
    check(kernel, tier, anchor_case("matmul", {}, slots, constants=[1], prologue=0, epilogue=store), tol=0.03)


def product(kernel: str, tier: str, x: Array, w: Array) -> Array:
    case, cpu = anchor_case("matmul", {}, [x, w], constants=[1]), detect_cpu(tier)
    tiling = family_of(kernel).tilings(kernel, case.body, cpu)[0]
    found = np.zeros((len(x), w.shape[1]), BF16.numpy)
    StandaloneKernel(kernel, case.body, tiling, cpu).run([x, w, found])
    return found


@pytest.mark.parametrize(("kernel", "tier"), RUNS)
def test_errors_are_those_of_f32_sums(kernel: str, tier: str) -> None:
    """And of one rounding of the result, over rows and columns of very different sizes."""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((24, 512)) * 10.0 ** rng.integers(-6, 6, (24, 1))).astype(BF16.numpy)
    w = (rng.standard_normal((512, 40)) * 10.0 ** rng.integers(-6, 6, (1, 40))).astype(BF16.numpy)
    found = product(kernel, tier, x, w).astype(float)
    x64, w64 = x.astype(float), w.astype(float)
    exact = x64 @ w64
    assert (np.abs(found - exact) <= 2.0**-8 * np.abs(exact) + 2.0**-18 * (np.abs(x64) @ np.abs(w64))).all()


@pytest.mark.parametrize(("kernel", "tier"), RUNS)
def test_what_is_no_number_stays_in_its_row(kernel: str, tier: str) -> None:
    x, w = whole((20, 41), 1), whole((41, 30), 2)
    want = x.astype(float) @ w.astype(float)
    x[3, 7], x[5, 40] = np.nan, np.inf
    found, rows = product(kernel, tier, x, w).astype(float), [i for i in range(20) if i not in (3, 5)]
    assert np.isnan(found[3]).all()
    assert not np.isfinite(found[5][w[40].astype(float) != 0]).any()
    np.testing.assert_allclose(found[rows], want[rows], rtol=2.0**-8)


def weights_graph(rows: int, dtype: str) -> sk.Graph:
    b = sk.GraphBuilder("weights")
    x = b.input("x", (rows, 96), dtype)
    b.output(b.matmul(x, b.constant(whole((96, 160), 3).astype(DType(dtype).numpy))), name="y")
    return b.graph()


@pytest.mark.skipif(not detect_cpu().has("avx512bf16"), reason="no instructions for pairs of bf16")
@pytest.mark.parametrize("rows", [1, 33])
def test_they_are_chosen_where_factors_are_bf16(rows: int) -> None:
    """With no precision allowed, and for no other type."""
    kernel = sk.compile(weights_graph(rows, "bf16"), threads=1)
    assert kernel.explain(0).kernel in (*PAIRS, TILES)
    x = whole((rows, 96), 4)
    found = np.asarray(kernel(x)).astype(float)
    np.testing.assert_array_equal(found, (x.astype(float) @ whole((96, 160), 3).astype(float)).astype(BF16.numpy))
    for dtype in ("f32", "f16"):
        other = sk.compile(weights_graph(rows, dtype), threads=1)
        assert other.explain(0).kernel not in (*PAIRS, TILES)


def test_others_than_bf16_are_refused() -> None:
    for kernel in (*PAIRS, TILES):
        (row,) = HOST_KERNELS.kernels[kernel].rows()
        assert row.input_dtypes == (frozenset({BF16}), frozenset({BF16}))
