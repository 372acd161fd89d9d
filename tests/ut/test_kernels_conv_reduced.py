"""Convolutions in bf16 over images that lie channels last: results, accesses, splits, packs, the stated error.

Model: as of products (`test_kernels_reduced`): rounding of the factors first, then a convolution in float64; what is
left is the rounding of f32 sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case
from conv_cases import DIRECT, WINOGRAD_CASES, last, rounded_case, run
from kernel_check import tiers

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import BF16
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.nhwc_form import met_inputs, runs_of
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling
from superkernel.scheduler.families.packing import PackTaps
from superkernel.scheduler.tiling import pack_bytes
from superkernel.target.cpu import cpu_target

F32 = DType.F32
NHWC = "host.conv.nhwc_bf16"
SQUARES = "host.conv.winograd2_bf16"
ERRORS = {NHWC: 2.0**-7.9, SQUARES: 2.0**-7}
"""Largest error relative to the sum of |x| |w| behind an output (Winograd convolution: the largest near by), as
docs/numerics.md states it."""


@pytest.mark.parametrize("turned", [True, False], ids=["channels_last", "row_major"])
@pytest.mark.parametrize(("x", "w", "attrs"), DIRECT, ids=str)
def test_direct(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], turned: bool) -> None:
    rounded_case(x, w, attrs, turned).check(NHWC, 1e-4)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_images_as_they_come_in(channels: int) -> None:
    """Few channels, columns inside: interleaved in registers, a vector and a rest of columns."""
    attrs = {"pads": (2, 2, 2, 2), "strides": (2, 2)}
    rounded_case((1, channels, 9, 37), (6, channels, 5, 5), attrs, turned=False).check(NHWC, 1e-4)


@pytest.mark.parametrize("kernel", [NHWC, "host.conv.nhwc"])
def test_a_tap_with_strides_that_ends_in_the_padding(kernel: str) -> None:
    rounded_case((1, 6, 10, 7), (21, 2, 1, 1), {"pads": (0, 0, 2, 3), "strides": (3, 3), "groups": 3}).check(
        kernel, 1e-4
    )


@pytest.mark.parametrize("w", [(40, 6, 3, 3), (12, 6, 1, 1)], ids=str)
@pytest.mark.parametrize("epilogue", ["mixed", "sliced"])
def test_epilogues(w: tuple[int, ...], epilogue: str) -> None:
    """Held to the exact result: a tolerance as wide as the format's error, accesses and splits as strict as ever."""
    slots = [((2, 6, 10, 13), F32), (w, F32)]
    anchor_case("conv", {}, slots, constants=[1], epilogue=epilogue, bias_axis=1).check(NHWC, 0.15)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("window", [1, 3])
def test_prologues(window: int, strides: tuple[int, int]) -> None:
    slots = [((1, 6, 10, 13), F32), ((12, 6, window, window), F32)]
    anchor_case("conv", {"strides": strides}, slots, constants=[1], prologue=0).check(NHWC, 0.1)


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("kernel", ERRORS)
@pytest.mark.parametrize("channels", [3, 64, 256])
def test_error_bounds(kernel: str, channels: int, tier: str) -> None:
    """What docs/numerics.md states, over channels and filters of very different sizes."""
    rng = np.random.default_rng(channels)
    x = (rng.standard_normal((1, channels, 8, 9)) * 10.0 ** rng.integers(-3, 3, (1, channels, 1, 1))).astype(np.float32)
    w = (rng.standard_normal((16, channels, 3, 3)) * 10.0 ** rng.integers(-3, 3, (16, 1, 1, 1))).astype(np.float32)
    attrs = {"pads": (1, 1, 1, 1)}
    got = run(kernel, anchor_case("conv", attrs, [x, w], constants=[1], layouts=last(4)), tier)
    exact, magnitude = (
        next(iter(anchor_case("conv", attrs, [a.astype(np.float64), b.astype(np.float64)]).expected.values()))
        for a, b in ((x, w), (np.abs(x), np.abs(w)))
    )
    if kernel == SQUARES:
        magnitude = magnitude.max(axis=(2, 3), keepdims=True)
    assert (np.abs(got - exact) <= ERRORS[kernel] * magnitude).all()


@pytest.mark.parametrize(("x", "filters", "pad"), WINOGRAD_CASES, ids=str)
def test_minimal_filtering(x: tuple[int, ...], filters: int, pad: int) -> None:
    """Of integers whose transforms bf16 holds: the result is exact."""
    rng = np.random.default_rng(filters)
    image = rng.integers(-8, 9, x).astype(np.float32)
    w = 4 * rng.integers(-2, 3, (filters, x[1], 3, 3)).astype(np.float32)
    slots: list[Any] = [image, w, ((filters,), F32)]
    anchor_case("conv", {"pads": (pad,) * 4}, slots, constants=[1, 2], layouts=last(4)).check(SQUARES, 1e-5)


def test_minimal_filtering_with_epilogue_and_prologue() -> None:
    slots, attrs = [((1, 7, 10, 13), F32), ((12, 7, 3, 3), F32)], {"pads": (1, 1, 1, 1)}
    anchor_case("conv", attrs, slots, constants=[1], epilogue="mixed", bias_axis=1).check(SQUARES, 0.15)
    anchor_case("conv", attrs, slots, constants=[1], prologue=0).check(SQUARES, 0.1)


def test_minimal_filtering_magnifies_rounding_little() -> None:
    """Root of the mean square of the error against that of a direct convolution's."""
    rng, roots = np.random.default_rng(0), {}
    x = rng.standard_normal((1, 64, 16, 16)).astype(np.float32)
    case = anchor_case("conv", {"pads": (1, 1, 1, 1)}, [x, ((16, 64, 3, 3), F32)], constants=[1], layouts=last(4))
    (exact,) = case.expected.values()
    for kernel in ERRORS:
        roots[kernel] = float(np.sqrt(np.mean((run(kernel, case) - exact) ** 2)))
    assert roots[SQUARES] < 1.8 * roots[NHWC]


@pytest.mark.parametrize("tier", tiers())
def test_layouts_give_the_same_bits(tier: str) -> None:
    x, w, attrs = (1, 3, 11, 40), (20, 3, 3, 3), {"pads": (1, 1, 1, 1)}
    here, there = (run(NHWC, rounded_case(x, w, attrs, turned), tier) for turned in (False, True))
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("kernel", ERRORS)
def test_what_is_not_finite_stays_so(kernel: str, special: float) -> None:
    """And outputs whose windows it is not under are none the worse, also behind runs of odd length."""
    x, w = np.ones((1, 3, 9, 12), np.float32), np.ones((17, 3, 3, 3), np.float32)
    x[0, :, 4, 6] = special
    got = run(kernel, anchor_case("conv", {}, [x, w], constants=[1], layouts=last(4)))
    near = np.zeros((7, 10), bool)
    near[2:5, 4:7] = True
    assert not np.isfinite(got[0][:, near]).any()
    if kernel == SQUARES:  # all outputs of the squares that read it
        near[2:6, 4:8] = True
    np.testing.assert_array_equal(got[0][:, ~near], 27.0)


def test_pack_runs() -> None:
    weights = np.arange(18, dtype=np.float32).reshape(2, 3, 1, 3)
    pack = PackTaps(1, 2, (3, 1, 3), (9, 3, 3, 1), 0, 4, BF16, 3)
    packed = pack_bytes(pack, weights).view(DType.BF16.numpy).astype(np.float32).reshape(5, 4, 2)
    run_of_first = weights[0, :, 0].T.reshape(-1)  # column by column, channels inside
    np.testing.assert_array_equal(packed[:, 0].reshape(-1), [*run_of_first, 0])
    np.testing.assert_array_equal(packed[:, 2:], 0)


PACKED = [(NHWC, *case) for case in DIRECT] + [(SQUARES, (1, 7, 9, 9), (40, 7, 3, 3), {})]


@pytest.mark.parametrize(("kernel", "x", "w", "attrs"), PACKED, ids=str)
def test_packed_sizes_are_told_ahead(
    kernel: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    case = rounded_case(x, w, attrs)
    for tier in tiers():
        for tiling in family_of(kernel).tilings(kernel, case.body, detect_cpu(tier)):
            for operand, pack in tiling.packs(case.body).items():
                assert pack.packed_bytes(case.body.operands[operand].type) == pack_bytes(pack, case.arrays[1]).nbytes  # type: ignore[arg-type]


def test_runs_join_columns_and_channels() -> None:
    form = conv_form(rounded_case((1, 3, 9, 9), (4, 3, 3, 5), {}).body)
    assert runs_of(form, BF16) == (3, 15)
    dilated = conv_form(rounded_case((1, 3, 9, 9), (4, 3, 3, 2), {"dilations": (1, 2)}).body)
    assert runs_of(dilated, BF16) == (6, 3)


def test_a_tap_with_strides_copies_what_it_meets() -> None:
    body = rounded_case((1, 64, 28, 28), (32, 64, 1, 1), {"strides": (2, 2)}).body
    assert met_inputs(conv_form(body)).strides == (1, 1)
    for tiling in family_of(NHWC).tilings(NHWC, body, detect_cpu()):
        assert isinstance(tiling, NhwcTiling)
        assert tiling.patch_elements <= 14 * 14 * 64


def test_weights_are_half_as_large() -> None:
    body = rounded_case((1, 64, 14, 14), (64, 64, 3, 3), {}).body
    cpu = cpu_target("x86_64-unknown-linux-gnu", "avx512", {"avx512bf16"})
    tiling = family_of(NHWC).tilings(NHWC, body, cpu)[0]
    assert [p.packed_bytes(body.operands[k].type) for k, p in tiling.packs(body).items()] == [64 * 64 * 9 * 2]


def test_what_is_not_f32_is_refused() -> None:
    body = anchor_case("conv", {}, [((1, 4, 9, 9), DType.F16), ((4, 4, 3, 3), DType.F16)], constants=[1]).body
    with pytest.raises(UnsupportedError, match="f32, with constant weights"):
        family_of(NHWC).tilings(NHWC, body, detect_cpu())
