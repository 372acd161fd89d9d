"""Kernels of channels-last images: results, declared accesses, independence of the split, and what Winograd convolution
costs in accuracy."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from anchor_bodies import AnchorCase, anchor_case
from conv_cases import DIRECT, WINOGRAD_CASES
from kernel_check import check_body
from pool_cases import WINDOWED

from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.conv import CHANNELS, PIXELS, ConvTiling
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling
from superkernel.scheduler.families.packing import PackTaps
from superkernel.scheduler.families.winograd import POINTS, PackWinograd, even_polynomial, filter_matrix

F32, F64, F16, BF16 = (DType.of(n) for n in ("f32", "f64", "f16", "bf16"))
NHWC, DEPTHWISE, POOL = "host.conv.nhwc", "host.conv.depthwise_nhwc", "host.pool_nhwc"
WINOGRAD = ("host.conv.winograd2", "host.conv.winograd4")
ERROR_EPSILONS = {"host.conv.nhwc": 3.0, "host.conv.winograd2": 3.0, "host.conv.winograd4": 8.0}
"""Largest error in units of 2^-23 times the largest sum of |x| |w| near an output, as docs/numerics.md states it."""


def last(rank: int) -> dict[int, tuple[int, ...]]:
    """Slot 0 channels last."""
    return {0: (0, *range(2, rank), 1)}


@pytest.mark.parametrize("turned", [False, True], ids=["row_major", "channels_last"])
@pytest.mark.parametrize(("x", "w", "attrs"), DIRECT, ids=str)
def test_direct(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], turned: bool) -> None:
    slots = [(x, F32), (w, F32), ((w[0],), F32)]
    anchor_case("conv", attrs, slots, constants=[1, 2], layouts=last(len(x)) if turned else None).check(NHWC)


@pytest.mark.parametrize("w", [(40, 6, 3, 3), (12, 6, 1, 1)], ids=str)
@pytest.mark.parametrize("epilogue", ["mixed", "sliced"])
def test_epilogues(w: tuple[int, ...], epilogue: str) -> None:
    case = anchor_case("conv", {}, [((2, 6, 10, 13), F32), (w, F32)], constants=[1], epilogue=epilogue, bias_axis=1)
    case.check(NHWC)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 6, 10, 13), (12, 6, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((1, 6, 10, 13), (12, 6, 1, 1), {}),
        ((1, 4, 600), (5, 4, 3), {"pads": (1, 1)}),
    ],
    ids=str,
)
def test_prologue_and_narrow_types(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    anchor_case("conv", attrs, [(x, F32), (w, F32)], constants=[1], prologue=0).check(NHWC)
    for dtype, tol in ((F16, 4e-3), (BF16, 4e-2)):
        anchor_case("conv", attrs, [(x, dtype), (w, dtype)], constants=[1], layouts=last(len(x))).check(NHWC, tol)


@pytest.mark.parametrize(
    ("kernel", "x", "w", "attrs", "extra"),
    [
        (NHWC, (2, 6, 11, 13), (200, 6, 3, 3), {"pads": (1, 1, 1, 1)}, {"epilogue": "mixed"}),
        (NHWC, (1, 20, 14, 14), (200, 20, 1, 1), {}, {}),
        (NHWC, (2, 8, 9, 10), (300, 4, 3, 3), {"strides": (2, 2), "groups": 2}, {}),
        (NHWC, (1, 6, 10, 13), (200, 6, 3, 3), {"pads": (1, 1, 1, 1)}, {"prologue": 0}),
        (NHWC, (1, 5, 4, 7, 6), (200, 5, 3, 3, 3), {"pads": (1,) * 6}, {}),
        ("host.conv.nhwc_bf16", (1, 8, 10, 9), (200, 8, 3, 3), {"pads": (1, 1, 1, 1)}, {}),
        ("host.conv.winograd2", (2, 9, 21, 13), (200, 9, 3, 3), {"pads": (1, 1, 1, 1)}, {"epilogue": "mixed"}),
        ("host.conv.winograd4", (1, 9, 29, 13), (200, 9, 3, 3), {"pads": (1, 1, 1, 1)}, {}),
    ],
    ids=str,
)
def test_channels_of_bands_of_lines(
    kernel: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], extra: dict[str, Any]
) -> None:
    """What they touch, and the bits of all other cuts; the last band may be shorter."""
    case = anchor_case("conv", attrs, [(x, F32), (w, F32)], constants=[1], layouts=last(len(x)), bias_axis=1, **extra)
    cpu = replace(detect_cpu(), cores=16)
    found = [t for t in family_of(kernel).tilings(kernel, case.body, cpu) if isinstance(t, ConvTiling)]
    found = [next(t for t in found if t.bands == bands) for bands in (1, 2, 4)]
    one = [t for t in family_of(kernel).tilings(kernel, case.body, detect_cpu()) if isinstance(t, ConvTiling)]
    assert {t.bands for t in one} == {1}
    tol = 0.1 if kernel.endswith("bf16") else 1e-4
    check_body(kernel, case.body, case.arrays, case.expected, tilings=found, tol=tol, tier=cpu.tier, splits=4)
    for tiling in found:
        parts = [tiling.cost_ns(case.body, tiling.units * i // 4, tiling.units * (i + 1) // 4, cpu) for i in range(4)]
        assert max(parts) < tiling.cost_ns(case.body, 0, tiling.units, cpu)


def test_layouts_give_the_same_bits() -> None:
    """The order of additions does not depend on how the input lies."""
    found = []
    for layouts in (None, last(4)):
        case = anchor_case(
            "conv", {"pads": (1, 1, 1, 1)}, [((1, 5, 9, 10), F32), ((20, 5, 3, 3), F32)], constants=[1], layouts=layouts
        )
        found.append(_run(NHWC, case))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("filters", "groups"), [(24, 1), (50, 2), (36, 2)])
def test_half_a_last_vector_gives_the_same_bits(filters: int, groups: int) -> None:
    """Filters that fill a half of the last vector at most, against the same ones among as many as fill it."""
    rng = np.random.default_rng(filters)
    x = rng.standard_normal((1, 6 * groups, 5, 10)).astype(np.float32)
    each = filters // groups
    weights = rng.standard_normal((groups, -(-each // 16) * 16, 6, 3, 3)).astype(np.float32)
    found = []
    for count in (each, weights.shape[1]):
        w = np.ascontiguousarray(weights[:, :count]).reshape(-1, 6, 3, 3)
        case = anchor_case("conv", {"pads": (1, 1, 1, 1), "groups": groups}, [x, w], constants=[1], layouts=last(4))
        found.append(_run(NHWC, case).reshape(groups, count, 5, 10)[:, :each])
    np.testing.assert_array_equal(*found)


def test_half_a_last_vector_goes_through_an_epilogue() -> None:
    slots = [((1, 3, 4, 10), F32), ((24, 3, 1, 1), F32)]
    case = anchor_case("conv", {}, slots, constants=[1], layouts=last(4), epilogue="mixed")
    case.check(NHWC, every_tier=True)


def _run(kernel: str, case: AnchorCase, index: int = 0) -> Any:
    cpu = detect_cpu()
    tiling = family_of(kernel).tilings(kernel, case.body, cpu)[index]
    out = next(iter(case.expected))
    kind = case.body.operands[out].type
    arrays = [np.zeros(kind.shape, kind.dtype.numpy) if a is None else a for a in case.arrays]
    StandaloneKernel(kernel, case.body, tiling, cpu).run(arrays)
    return arrays[out]


# Winograd convolution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", WINOGRAD)
@pytest.mark.parametrize(("x", "filters", "pad"), WINOGRAD_CASES, ids=str)
def test_winograd(kernel: str, x: tuple[int, ...], filters: int, pad: int) -> None:
    slots = [(x, F32), ((filters, x[1], 3, 3), F32), ((filters,), F32)]
    case = anchor_case("conv", {"pads": (pad,) * 4}, slots, constants=[1, 2], layouts=last(4))
    case.check(kernel, 5e-5)  # of values up to 20; the exact bound is the next test's


@pytest.mark.parametrize("kernel", WINOGRAD)
def test_winograd_with_epilogue_and_prologue(kernel: str) -> None:
    slots = [((1, 6, 10, 13), F32), ((12, 6, 3, 3), F32)]
    attrs = {"pads": (1, 1, 1, 1)}
    anchor_case("conv", attrs, slots, constants=[1], epilogue="mixed", bias_axis=1).check(kernel, 5e-5)
    anchor_case("conv", attrs, slots, constants=[1], prologue=0).check(kernel, 5e-5)


@pytest.mark.parametrize("kernel", [NHWC, *WINOGRAD])
@pytest.mark.parametrize(("channels", "positive"), [(3, True), (64, False), (256, True)])
def test_error_stays_within_the_stated_bound(kernel: str, channels: int, positive: bool) -> None:
    """Against f64, relative to what the sums are made of: with Winograd convolution also those of outputs near by."""
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((1, channels, 16, 16)).astype(np.float32)
    x = np.maximum(x, 0) if positive else x
    w = rng.standard_normal((16, channels, 3, 3)).astype(np.float32)
    attrs = {"pads": (1, 1, 1, 1)}
    got = _run(kernel, anchor_case("conv", attrs, [x, w], constants=[1]))
    exact, magnitude = (
        next(iter(anchor_case("conv", attrs, [a.astype(np.float64), b.astype(np.float64)]).expected.values()))
        for a, b in ((x, w), (np.abs(x), np.abs(w)))
    )
    worst = float(np.max(np.abs(got - exact)) / np.max(magnitude)) * 2.0**23
    assert worst < ERROR_EPSILONS[kernel]


@pytest.mark.parametrize("m", [2, 4])
def test_transforms_are_exact_in_rationals(m: int) -> None:
    """A' [(G g) (B' d)] is the correlation of d with g, for the matrices as they stand."""
    points = [Fraction(0), *(s * p for p in POINTS[m] for s in (1, -1))]
    d, g = [Fraction(k * k - 3 * k + 1) for k in range(m + 2)], [Fraction(2), Fraction(-5), Fraction(3)]
    whole = even_polynomial(m)
    transformed = [sum(c * d[2 * k] for k, c in enumerate(whole))]
    for i, p in enumerate(POINTS[m]):
        rest = even_polynomial(m, i)
        even, odd = (sum(c * d[2 * k + at] for k, c in enumerate(rest)) for at in (2, 1))
        transformed += [even + p * odd, even - p * odd]
    transformed.append(sum(c * d[2 * k + 1] for k, c in enumerate(whole)))
    products = [
        v * sum(a * b for a, b in zip(row, g, strict=True))
        for v, row in zip(transformed, filter_matrix(m), strict=True)
    ]
    for i in range(m):
        got = sum(p**i * v for p, v in zip(points, products, strict=False)) + (products[-1] if i == m - 1 else 0)
        assert got == sum(d[i + k] * g[k] for k in range(3))


def test_winograd_refuses_what_it_is_not_for() -> None:
    for w, attrs in (((4, 2, 3, 3), {"strides": (2, 2)}), ((4, 2, 5, 5), {}), ((4, 1, 3, 3), {"groups": 2})):
        body = anchor_case("conv", attrs, [((1, 2, 9, 9), F32), (w, F32)], constants=[1]).body
        with pytest.raises(UnsupportedError, match=r"host\.conv\.winograd"):
            family_of(WINOGRAD[0]).tilings(WINOGRAD[0], body, detect_cpu())


# Depthwise, pools -----------------------------------------------------------------------------------------------------

DEPTHWISE_CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 8, 12, 13), (3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 37, 12, 13), (3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 16, 9, 40), (3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 16, 3, 3), (3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 16, 9, 23), (5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 1)}),
    ((1, 5, 60), (3,), {"pads": (1, 1)}),
    ((1, 5, 9, 30), (2, 13), {"pads": (1, 4, 1, 6)}),
    ((1, 5, 9, 30), (2, 3), {"dilations": (2, 3), "pads": (1, 4, 1, 6)}),
    ((0, 5, 9, 9), (3, 3), {}),
]


@pytest.mark.parametrize("epilogue", ["store", "mixed"])
@pytest.mark.parametrize(("x", "kernel", "attrs"), DEPTHWISE_CASES, ids=str)
def test_depthwise(x: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], epilogue: str) -> None:
    channels = x[1]
    slots = [(x, F32), ((channels, 1, *kernel), F32), ((channels,), F32)]
    case = anchor_case(
        "conv",
        {**attrs, "groups": channels},
        slots,
        constants=[1, 2],
        layouts=last(len(x)),
        epilogue=epilogue,
        bias_axis=1,
    )
    case.check(DEPTHWISE)


@pytest.mark.parametrize(("op", "x", "attrs"), [c for c in WINDOWED if c[0] != "lp_pool"], ids=str)
@pytest.mark.parametrize("channels", [3, 37])
def test_pools(op: str, x: tuple[int, ...], attrs: dict[str, Any], channels: int) -> None:
    shape = (x[0], channels, *x[2:])
    anchor_case(op, attrs, [(shape, F32)], layouts=last(len(x)), epilogue="mixed", bias_axis=1).check(POOL)
    anchor_case(op, attrs, [(shape, F32)]).check(POOL)


@pytest.mark.parametrize("op", ["global_avg_pool", "global_max_pool"])
@pytest.mark.parametrize("x", [(2, 3, 7, 7), (1, 3, 133), (1, 20, 1, 200), (0, 3, 4, 4), (1, 70, 5, 6)], ids=str)
def test_global_pools(op: str, x: tuple[int, ...]) -> None:
    anchor_case(op, {}, [(x, F32)], layouts=last(len(x)), epilogue="mixed", bias_axis=1).check(POOL)


def test_narrow_types_through_windows() -> None:
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    anchor_case("max_pool", attrs, [((2, 20, 9, 11), F16)], layouts=last(4)).check(POOL, 0)
    slots = [((1, 20, 9, 11), F16), ((20, 1, 3, 3), F16)]
    anchor_case("conv", {"groups": 20}, slots, constants=[1], layouts=last(4)).check(DEPTHWISE, 4e-3)


def test_nan_and_infinity_reach_the_maximum() -> None:
    x = np.arange(128, dtype=np.float32).reshape(1, 2, 8, 8)
    x[0, 0, 2, 2], x[0, 1, 6, 6], x[0, 0, :2, :2] = np.nan, np.inf, -np.inf
    for kernel in ((2, 2), (3, 3)):
        anchor_case("max_pool", {"kernel": kernel, "strides": (2, 2)}, [x], layouts=last(4)).check(POOL, 0)


def test_windows_refuse_what_they_are_not_for() -> None:
    body = anchor_case("max_pool", {"kernel": (2, 2)}, [((1, 2, 9, 9), F64)]).body
    with pytest.raises(UnsupportedError, match=r"host\.pool"):
        family_of(POOL).tilings(POOL, body, detect_cpu())


# Cuts and packs -------------------------------------------------------------------------------------------------------


def test_pointwise_convolutions_read_in_place_along_both_axes() -> None:
    body = anchor_case(
        "conv", {}, [((1, 128, 14, 14), F32), ((40, 128, 1, 1), F32)], constants=[1], layouts=last(4)
    ).body
    tilings = family_of(NHWC).tilings(NHWC, body, detect_cpu())
    assert all(isinstance(t, NhwcTiling) and t.in_place for t in tilings)
    assert {t.axis for t in tilings if isinstance(t, NhwcTiling)} == {PIXELS, CHANNELS}


def test_pack_taps() -> None:
    weights = np.arange(12, dtype=np.float32).reshape(3, 2, 1, 2)
    packed = PackTaps(1, 3, (2, 1, 2), (4, 2, 2, 1), 0, 2).apply(weights)
    assert packed.shape == (1, 2, 2, 2, 2)  # group, panel, tap, channel, row
    np.testing.assert_array_equal(packed[0, 0, 1], weights[:2, :, 0, 1].T)
    np.testing.assert_array_equal(packed[0, 1, :, :, 1], 0)


@pytest.mark.parametrize("m", [2, 4])
def test_pack_winograd(m: int) -> None:
    weights = np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3)
    pack = PackWinograd(m, 3, (2, 3, 3), (18, 9, 3, 1), 0, 2)
    packed = pack.apply(weights)
    assert packed.shape == (2, (m + 2) ** 2, 2, 2)  # panel, plane, channel, row
    g = np.array([[float(c) for c in row] for row in filter_matrix(m)])
    want = g @ weights[2, 1].astype(np.float64) @ g.T
    np.testing.assert_allclose(packed[1, :, 1, 0], want.reshape(-1), rtol=1e-6)
    np.testing.assert_array_equal(packed[1, :, :, 1], 0)
    from superkernel.core.tensor import TensorType

    assert pack.packed_bytes(TensorType(F32, weights.shape)) == packed.nbytes
