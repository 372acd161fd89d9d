"""Convolutions in int8 over images that lie channels last: results, accesses, splits, packs, the stated error.

Model: `conv_int8_model` rounds inputs and filters as the kernel does, and convolves in float64; what is left is the
rounding of f32 sums. Where both scales are 1 nothing is rounded: results are those of integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import AnchorCase, anchor_case
from conv_cases import DIRECT, last, run
from conv_int8_model import convolve, expected_conv, two_dimensional
from kernel_check import check_body, tiers
from numpy.typing import NDArray
from seeds import seeds

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import INT8
from superkernel.ir.body import Role
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.conv import CHANNELS, PIXELS
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.conv_nhwc import NhwcFamily
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling
from superkernel.scheduler.families.packing import PackTaps
from superkernel.scheduler.tiling import pack_bytes

Array = NDArray[Any]
Shape = tuple[int, ...]
F32 = DType.F32
KERNEL = "host.conv.nhwc_int8"
ERROR = 2.0**-7
"""Of a product, as docs/numerics.md states it: times depth, largest |x| of the rows under the window, largest |w|."""


def random_case(x: Shape, w: Shape, attrs: dict[str, Any], seed: int = 0, **how: Any) -> tuple[AnchorCase, Array]:
    """A convolution of random numbers with a bias, and what it is held to."""
    rng = np.random.default_rng([seed, *x, *w])
    image, filters = (rng.standard_normal(s).astype(np.float32) for s in (x, w))
    bias = rng.standard_normal(w[0]).astype(np.float32)
    case = anchor_case("conv", attrs, [image, filters, bias], constants=[1, 2], **how)
    want = expected_conv(image, filters, attrs) if image.size else np.zeros(next(iter(case.expected.values())).shape)
    return case, want + bias.reshape(-1, *[1] * (len(x) - 2))


def check(case: AnchorCase, want: Array, tier: str, tol: float = 1e-5) -> None:
    """One tiling per unit axis."""
    output = next(i for i, o in enumerate(case.body.operands) if o.role is Role.OUTPUT)
    axes: dict[str, NhwcTiling] = {}
    for tiling in family_of(KERNEL).tilings(KERNEL, case.body, detect_cpu(tier)):
        assert isinstance(tiling, NhwcTiling)
        axes.setdefault(tiling.axis, tiling)
    for tiling in axes.values():
        check_body(KERNEL, case.body, case.arrays, {output: want}, tilings=[tiling], tol=tol, tier=tier, splits=2)


def tier_of(number: int) -> str:
    return tiers()[number % len(tiers())]


@pytest.mark.parametrize("turned", [True, False], ids=["channels_last", "row_major"])
@pytest.mark.parametrize(("x", "w", "attrs"), DIRECT, ids=str)
def test_direct(x: Shape, w: Shape, attrs: dict[str, Any], turned: bool) -> None:
    case, want = random_case(x, w, attrs, layouts=last(len(x)) if turned else None)
    check(case, want, tier_of(sum(x) + turned))


def drawn(seed: int) -> tuple[Shape, Shape, dict[str, Any]]:
    """A convolution of random shape and attributes that has outputs."""
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 1, 2, 3]))
    channels, filters = groups * int(rng.integers(1, 20)), groups * int(rng.integers(1, 40))
    window, strides, dilations = (tuple(map(int, rng.integers(1, top, 2))) for top in (5, 4, 3))
    pads = tuple(int(rng.integers(0, k + 1)) for k in window * 2)
    least = [
        max(1, (k - 1) * d + 1 - pads[i] - pads[i + 2]) for i, (k, d) in enumerate(zip(window, dilations, strict=True))
    ]
    size = tuple(int(n + rng.integers(0, 20)) for n in least)
    attrs = {"pads": pads, "strides": strides, "dilations": dilations, "groups": groups}
    return (int(rng.integers(1, 3)), channels, *size), (filters, channels // groups, *window), attrs


@pytest.mark.parametrize("seed", seeds(16))
def test_random_shapes(seed: int) -> None:
    x, w, attrs = drawn(seed)
    case, want = random_case(x, w, attrs, seed, layouts=last(4) if seed % 4 else None)
    check(case, want, tier_of(seed))


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("seed", range(3))
def test_sums_of_integers_are_exact(seed: int, tier: str) -> None:
    """Rows from -z to 255 - z and filters up to 127: both scales are 1, and the bits are those of integers, the zero
    point taken off under the window and at the padding."""
    rng = np.random.default_rng(seed)
    stride, (height, width) = 1 + seed % 2, rng.integers(6, 20, 2)
    channels, filters, side = (int(rng.integers(low, high)) for low, high in ((1, 70), (1, 50), (2, 5)))
    attrs: dict[str, Any] = {"pads": tuple(map(int, rng.integers(0, side, 4))), "strides": (stride, stride)}
    zero_point = rng.integers(0, 256, (1, 1, height, 1))
    image = rng.integers(0, 256, (1, channels, height, width))
    image[:, 0, :, 0], image[:, -1, :, 1] = 0, 255
    image = (image - zero_point).astype(np.int64)
    weights = rng.integers(-127, 128, (filters, channels, side, side))
    weights[:, 0, 0, 0] = 127
    slots = [image.astype(np.float32), weights.astype(np.float32)]
    case = anchor_case("conv", attrs, slots, constants=[1], layouts=last(4))
    x, w, full = two_dimensional(image, weights.astype(np.int64), attrs)
    want = convolve(x, w, full)
    assert np.abs(want).max() < 2**24
    np.testing.assert_array_equal(run(KERNEL, case, tier), want)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_images_as_they_come_in(channels: int) -> None:
    """Few channels, columns inside: interleaved in registers, a vector and a rest of columns."""
    case, want = random_case((1, channels, 9, 37), (6, channels, 5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 2)})
    check(case, want, tier_of(channels))


def codes(x: Shape, w: Shape) -> list[Array]:
    """An image and filters that bytes hold: multiples of 1/128, the ends of the range in every row and filter."""
    rng = np.random.default_rng([*x, *w])
    image, filters = rng.integers(-100, 156, x), rng.integers(-127, 128, w)
    image[:, 0, :, 0], image[:, -1, :, 1], filters[:, 0, 0, 0] = -100, 155, 127
    return [image.astype(np.float32) / np.float32(128), filters.astype(np.float32) / np.float32(128)]


@pytest.mark.parametrize("w", [(40, 6, 3, 3), (12, 6, 1, 1)], ids=str)
@pytest.mark.parametrize("epilogue", ["mixed", "sliced"])
def test_epilogues(w: Shape, epilogue: str) -> None:
    slots = codes((2, 6, 10, 13), w)
    anchor_case("conv", {}, slots, constants=[1], epilogue=epilogue, bias_axis=1).check(KERNEL)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("window", [1, 3])
def test_prologues(window: int, strides: tuple[int, int]) -> None:
    slots = [((1, 6, 10, 13), F32), ((12, 6, window, window), F32)]
    anchor_case("conv", {"strides": strides}, slots, constants=[1], prologue=0).check(KERNEL, 0.15)


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("channels", [3, 64, 256])
def test_error_bounds(channels: int, tier: str) -> None:
    """What docs/numerics.md states, over rows and filters of very different sizes."""
    rng = np.random.default_rng(channels)
    x = (rng.standard_normal((1, channels, 8, 9)) * 10.0 ** rng.integers(-3, 3, (1, 1, 8, 1))).astype(np.float32)
    w = (rng.standard_normal((16, channels, 3, 3)) * 10.0 ** rng.integers(-3, 3, (16, 1, 1, 1))).astype(np.float32)
    attrs = {"pads": (1, 1, 1, 1)}
    got = run(KERNEL, anchor_case("conv", attrs, [x, w], constants=[1], layouts=last(4)), tier)
    exact = convolve(*two_dimensional(x.astype(np.float64), w.astype(np.float64), attrs))
    rows = np.pad(np.abs(x).max(axis=(1, 3)), ((0, 0), (1, 1)))  # of the padding too
    largest = np.max([rows[:, i : i + 8] for i in range(3)], axis=0)[:, None, :, None]
    scale = 9 * channels * largest * np.abs(w).max(axis=(1, 2, 3))[:, None, None]
    assert (np.abs(got - exact) <= ERROR * scale).all()


def test_zeros() -> None:
    """No scale divides by zero; zeros give zeros."""
    x, w = np.zeros((1, 5, 6, 7), np.float32), np.zeros((9, 5, 3, 3), np.float32)
    for image, filters in ((x, w + 1), (x + 1, w)):
        got = run(KERNEL, anchor_case("conv", {}, [image, filters], constants=[1], layouts=last(4)))
        np.testing.assert_array_equal(got, 0.0)


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize(
    ("special", "place"), [(np.nan, (0, 0, 4, 0)), (np.inf, (0, 1, 4, 6)), (-np.inf, (0, 2, 4, 40))]
)
def test_what_is_not_finite_stays_so(special: float, place: Shape, tier: str) -> None:
    """In all results of the windows over its row; the others are none the worse. At both ends of a row, and between."""
    x, w = np.ones((1, 3, 9, 41), np.float32), np.ones((17, 3, 3, 3), np.float32)
    x[place] = special
    got = run(KERNEL, anchor_case("conv", {}, [x, w], constants=[1], layouts=last(4)), tier)
    assert not np.isfinite(got[0][:, [2, 3, 4]]).any()
    np.testing.assert_allclose(got[0][:, [0, 1, 5, 6]], 27.0, rtol=1e-6)


@pytest.mark.parametrize("tier", tiers())
def test_layouts_give_the_same_bits(tier: str) -> None:
    x, w, attrs = (1, 3, 11, 40), (20, 3, 3, 3), {"pads": (1, 1, 1, 1)}
    here, there = (run(KERNEL, random_case(x, w, attrs, layouts=how)[0], tier) for how in (None, last(4)))
    np.testing.assert_array_equal(here, there)


def test_bits_do_not_depend_on_the_cut() -> None:
    """Lines, panels and tiles of every shape give the same."""
    case, _ = random_case((1, 24, 15, 17), (70, 24, 3, 3), {"pads": (1, 1, 1, 1)}, layouts=last(4))
    family, cpu = family_of(KERNEL), detect_cpu()
    assert isinstance(family, NhwcFamily)
    form, lanes = conv_form(case.body), cpu.vector_bytes // 4
    first = run(KERNEL, case)
    output = next(iter(case.expected))
    for axis in (PIXELS, CHANNELS):
        for positions, vectors in ((1, 1), (5, 2), (4, 3)):
            tiling = family.tiling(form, axis, (positions, vectors, lanes), cpu)
            check_body(KERNEL, case.body, case.arrays, {output: first}, tilings=[tiling], tol=0.0, tier=cpu.tier)


def test_pack_bytes() -> None:
    """Two filters of three channels, two rows, one column, in panels of four."""
    weights = np.array([[[1, -127], [2, 3], [4, 5]], [[0, 0], [1, 2], [0, 0]]], np.float32)[..., None]
    packed = pack_bytes(PackTaps(1, 2, (3, 2, 1), (6, 2, 1, 1), 0, 4, INT8, 1), weights).view(np.int8)
    words, behind = packed[: 2 * 4 * 4].reshape(2, 4, 4), packed[2 * 4 * 4 :]
    np.testing.assert_array_equal(words[:, 0], [[1, 2, 4, 0], [-127, 3, 5, 0]])
    np.testing.assert_array_equal(words[:, 1], [[0, 64, 0, 0], [0, 127, 0, 0]])  # 63.5 goes to the even one
    np.testing.assert_array_equal(words[:, 2:], 0)
    np.testing.assert_array_equal(behind[:32].view(np.int32).reshape(2, 4), [[7, 64, 0, 0], [-119, 127, 0, 0]])
    np.testing.assert_array_equal(behind[32:].view(np.float32), np.array([1, 2 / 127, 0, 0], np.float32))


@pytest.mark.parametrize(("x", "w", "attrs"), DIRECT, ids=str)
def test_packed_sizes_are_told_ahead(x: Shape, w: Shape, attrs: dict[str, Any]) -> None:
    case = random_case(x, w, attrs, layouts=last(len(x)))[0]
    for tier in tiers():
        for tiling in family_of(KERNEL).tilings(KERNEL, case.body, detect_cpu(tier)):
            for operand, pack in tiling.packs(case.body).items():
                assert pack.packed_bytes(case.body.operands[operand].type) == pack_bytes(pack, case.arrays[1]).nbytes  # type: ignore[arg-type]


def test_what_is_not_f32_is_refused() -> None:
    body = anchor_case("conv", {}, [((1, 4, 9, 9), DType.F16), ((4, 4, 3, 3), DType.F16)], constants=[1]).body
    with pytest.raises(UnsupportedError, match="f32, with constant weights"):
        family_of(KERNEL).tilings(KERNEL, body, detect_cpu())
