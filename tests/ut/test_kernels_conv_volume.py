"""Convolutions in three dimensions over images that lie channels last, in every number format, depthwise ones, and
pools: results, accesses, splits, and the depths that lie in the padding.

Model: the operator table's reference. In bf16 inputs and filters are numbers that bf16 holds; for int8
`conv_int8_model` rounds them first.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from anchor_bodies import AnchorCase, anchor_case
from conv_cases import last, rounded_case, run
from conv_int8_model import expected_volume
from kernel_check import check_body, tiers
from numpy.typing import NDArray
from seeds import seeds

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import BYTES, INT8
from superkernel.ir.body import Body
from superkernel.ops.windows import Window
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.nhwc_form import always_meets
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling, nhwc_tiling

Array = NDArray[Any]
Shape = tuple[int, ...]
F32 = DType.F32
NHWC, IN_BF16, IN_INT8, OF_BYTES = (f"host.conv.{name}" for name in ("nhwc", "nhwc_bf16", "nhwc_int8", "bytes"))

CASES: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((1, 3, 4, 9, 11), (5, 3, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    ((2, 6, 5, 7, 8), (33, 6, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1), "strides": (2, 2, 2)}),
    ((2, 8, 5, 4, 6), (20, 8, 3, 1, 1), {"pads": (1, 0, 0, 1, 0, 0)}),
    ((1, 8, 3, 6, 7), (20, 8, 1, 3, 3), {"pads": (0, 1, 1, 0, 1, 1)}),
    ((2, 8, 4, 6, 6), (12, 8, 1, 1, 1), {"strides": (2, 2, 2)}),
    ((1, 4, 7, 8, 9), (6, 2, 2, 3, 2), {"groups": 2, "dilations": (3, 1, 2), "pads": (2, 1, 0, 3, 1, 1)}),
    ((1, 3, 2, 1, 30), (4, 3, 5, 1, 3), {"pads": (4, 0, 1, 4, 0, 1)}),
    ((1, 2, 2, 5, 5), (3, 2, 1, 2, 2), {"pads": (1, 0, 0, 2, 0, 0)}),  # planes of padding alone
    ((1, 2, 3, 5, 5), (3, 2, 2, 2, 2), {"pads": (5, 0, 0, 5, 0, 0), "dilations": (2, 1, 1)}),
    ((1, 5, 3, 4, 4), (3, 5, 3, 4, 4), {}),
    ((0, 3, 4, 5, 5), (4, 3, 3, 3, 3), {}),
]


def in_int8(x: Shape, w: Shape, attrs: dict[str, Any], seed: int = 0) -> tuple[AnchorCase, Array]:
    """A convolution of random numbers, and what it is held to."""
    rng = np.random.default_rng([seed, *x, *w])
    image, filters = (rng.standard_normal(s).astype(np.float32) for s in (x, w))
    case = anchor_case("conv", attrs, [image, filters], constants=[1], layouts=last(5) if seed % 2 else None)
    (none,) = case.expected.values()
    return case, expected_volume(image, filters, attrs) if image.size else none


@pytest.mark.parametrize("turned", [True, False], ids=["channels_last", "row_major"])
@pytest.mark.parametrize(("x", "w", "attrs"), CASES, ids=str)
def test_direct(x: Shape, w: Shape, attrs: dict[str, Any], turned: bool) -> None:
    rounded_case(x, w, attrs, turned).check(NHWC, 1e-4)
    rounded_case(x, w, attrs, not turned).check(IN_BF16, 1e-4)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_in_int8(number: int) -> None:
    x, w, attrs = CASES[number]
    case, want = in_int8(x, w, attrs, number)
    replace(case, expected=dict.fromkeys(case.expected, want)).check(IN_INT8, 1e-5)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_of_bytes(number: int) -> None:
    """With either sign, with and without a zero point."""
    x, w, attrs = CASES[number]
    rng, kind = np.random.default_rng(number), DType.of("u8" if number % 2 else "i8").numpy
    image, zero_point = rng.integers(0, 128, x).astype(kind), np.array([7], kind) if number % 3 else None
    filters = rng.integers(-128, 128, w).astype(np.int8)
    slots: list[Any] = [image, filters, None, zero_point]
    anchor_case("conv_integer", attrs, slots, constants=[1, 3], layouts=last(5)).check(OF_BYTES, 0.0)


POOLS: list[tuple[str, Shape, dict[str, Any]]] = [
    ("max_pool", (1, 20, 5, 7, 9), {"kernel": (2, 3, 3), "strides": (2, 2, 2), "pads": (0, 1, 1, 1, 1, 1)}),
    ("max_pool", (2, 5, 4, 6, 30), {"kernel": (3, 1, 2), "pads": (1, 0, 0, 1, 0, 0)}),
    ("avg_pool", (1, 17, 5, 7, 9), {"kernel": (3, 2, 3), "strides": (2, 2, 1), "pads": (1, 1, 1, 1, 1, 1)}),
    ("avg_pool", (1, 8, 4, 5, 6), {"kernel": (2, 2, 2), "pads": (1, 0, 0, 1, 1, 1), "count_include_pad": True}),
    ("global_avg_pool", (2, 40, 3, 5, 7), {}),
    ("global_max_pool", (1, 7, 2, 3, 5), {}),
]


@pytest.mark.parametrize(("op", "x", "attrs"), POOLS, ids=str)
def test_pools(op: str, x: Shape, attrs: dict[str, Any]) -> None:
    for epilogue in ("store", "mixed"):
        case = anchor_case(op, attrs, [(x, F32)], layouts=last(5), epilogue=epilogue, bias_axis=1)
        case.check("host.pool_nhwc")


def test_pools_over_views() -> None:
    """Planes that do not follow one another: half the columns of an image."""
    for order in ((0, 3, 2, 4, 1), (0, 4, 2, 3, 1), None):
        for op, attrs in (("max_pool", {"kernel": (2, 2, 2)}), ("global_avg_pool", {})):
            layouts = {0: order} if order else None
            anchor_case(op, attrs, [((1, 6, 3, 4, 5), F32)], layouts=layouts).check("host.pool_nhwc")


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 9, 4, 6, 7), (9, 1, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1), "groups": 9}),
        ((2, 33, 5, 4, 8), (33, 1, 3, 2, 2), {"strides": (2, 1, 2), "dilations": (1, 2, 1), "groups": 33}),
        ((1, 16, 3, 5, 30), (16, 1, 2, 1, 13), {"pads": (1, 0, 6, 1, 0, 6), "groups": 16}),
    ],
    ids=str,
)
def test_depthwise(x: Shape, w: Shape, attrs: dict[str, Any]) -> None:
    case = anchor_case(
        "conv", attrs, [(x, F32), (w, F32)], constants=[1], layouts=last(5), epilogue="mixed", bias_axis=1
    )
    case.check("host.conv.depthwise_nhwc")


def drawn(seed: int) -> tuple[Shape, Shape, dict[str, Any]]:
    """A convolution of random shape and attributes that has outputs."""
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 2, 3]))
    channels, filters = groups * int(rng.integers(1, 20)), groups * int(rng.integers(1, 40))
    window, strides, dilations = (tuple(map(int, rng.integers(1, top, 3))) for top in (4, 4, 3))
    pads = tuple(int(rng.integers(0, k + 2)) for k in window * 2)
    least = [
        max(1, (k - 1) * d + 1 - pads[i] - pads[i + 3]) for i, (k, d) in enumerate(zip(window, dilations, strict=True))
    ]
    size = tuple(int(n + rng.integers(0, 8)) for n in least)
    attrs = {"pads": pads, "strides": strides, "dilations": dilations, "groups": groups}
    return (int(rng.integers(1, 3)), channels, *size), (filters, channels // groups, *window), attrs


@pytest.mark.parametrize("seed", seeds(6, past=(395815577, 657188114)))
def test_random_shapes(seed: int) -> None:
    x, w, attrs = drawn(seed)
    kernel = (NHWC, IN_BF16)[seed % 2]
    rounded_case(x, w, attrs, seed % 4 < 2).check(kernel, 1e-4)
    case, want = in_int8(x, w, attrs, seed)
    replace(case, expected=dict.fromkeys(case.expected, want)).check(IN_INT8, 1e-5)


@pytest.mark.parametrize("kernel", [NHWC, IN_BF16])
@pytest.mark.parametrize("w", [(40, 6, 3, 3, 3), (12, 6, 1, 1, 1)], ids=str)
def test_epilogues_and_prologues(kernel: str, w: Shape) -> None:
    """Held to the exact result: a tolerance as wide as the format's error, accesses and splits as strict as ever."""
    tol = 2e-5 if kernel == NHWC else 0.15
    slots = [((2, 6, 4, 5, 6), F32), (w, F32)]
    for epilogue in ("mixed", "sliced"):
        anchor_case("conv", {}, slots, constants=[1], epilogue=epilogue, bias_axis=1).check(kernel, tol)
    attrs = {"pads": tuple(k // 2 for k in w[2:]) * 2}
    anchor_case("conv", attrs, slots, constants=[1], prologue=0).check(kernel, tol)


@pytest.mark.parametrize(("dtype", "tol"), [(DType.F16, 4e-3), (DType.BF16, 4e-2)])
def test_half_precision(dtype: DType, tol: float) -> None:
    slots = [((1, 6, 3, 5, 6), dtype), ((12, 6, 3, 3, 3), dtype), ((12,), dtype)]
    anchor_case("conv", {"pads": (1,) * 6}, slots, constants=[1, 2], layouts=last(5)).check(NHWC, tol)


@pytest.mark.parametrize("tier", tiers())
def test_depths_in_the_padding_are_left_out(tier: str) -> None:
    """Weights that only they would meet may be anything; a float kernel that multiplied them by 0 would give NaN."""
    filters = np.ones((17, 4, 3, 1, 1), np.float32)
    filters[:, :, 0] = np.inf
    image = np.ones((1, 4, 2, 3, 5), np.float32)
    attrs = {"pads": (1, 0, 0, 1, 0, 0), "strides": (2, 1, 1)}
    for layouts in (last(5), None):
        got = run(NHWC, anchor_case("conv", attrs, [image, filters], constants=[1], layouts=layouts), tier)
        np.testing.assert_array_equal(got, np.full((1, 17, 1, 3, 5), 8.0))


def test_panels_in_pieces() -> None:
    """A panel that would fill the second-level cache, in pieces of one tap and some channels: the same results; planes
    that may meet nothing are computed in whole panels."""
    cpu = detect_cpu()
    small = replace(cpu, l2_bytes=1 << 18)
    case = rounded_case((1, 256, 2, 4, 4), (16, 256, 3, 3, 3), {"pads": (1,) * 6})
    tilings = [t for t in family_of(NHWC).tilings(NHWC, case.body, small) if isinstance(t, NhwcTiling) and t.pieces]
    assert tilings
    check_body(NHWC, case.body, case.arrays, case.expected, tilings=tilings, tol=1e-3, tier=cpu.tier, splits=2)
    body = rounded_case((1, 256, 2, 4, 4), (16, 256, 3, 3, 3), {"pads": (3, 1, 1, 3, 1, 1)}).body
    assert not any(t.pieces for t in family_of(NHWC).tilings(NHWC, body, small) if isinstance(t, NhwcTiling))


def test_windows_that_meet_padding_alone() -> None:
    assert always_meets(Window(4, 3, 1, 1, 1, 1, 4))
    assert not always_meets(Window(4, 1, 1, 1, 1, 1, 6))
    assert Window(4, 3, 1, 1, 0, 0, 2).reads_inside
    assert not Window(4, 3, 1, 1, 0, 1, 3).reads_inside


def test_what_outputs_read_is_found_by_outputs_or_by_taps() -> None:
    """Whichever are fewer: a window may be as large as anything that a file says."""
    for extent, kernel, stride, dilation, begin in product((1, 5, 9), (1, 2, 4, 7), (1, 3), (1, 2, 5), (0, 2, 6)):
        window = Window(extent, kernel, stride, dilation, begin, 0, 6)
        for start, stop in ((0, 1), (0, 6), (2, 5), (5, 6)):
            read = [o * stride + t * dilation - begin for o in range(start, stop) for t in range(kernel)]
            inside = [position for position in read if 0 <= position < extent]
            expected = (min(inside), max(inside) + 1) if inside else (0, 0)
            assert window.reads(start, stop) == expected
    assert Window(2**40, 2**40, 1, 1, 0, 0, 1).reads(0, 1) == (0, 2**40)


def test_inputs_with_padded_depths_are_read_in_place() -> None:
    body = rounded_case((1, 8, 4, 6, 6), (16, 8, 3, 1, 1), {"pads": (1, 0, 0, 1, 0, 0)}).body
    for tiling in family_of(NHWC).tilings(NHWC, body, detect_cpu()):
        assert isinstance(tiling, NhwcTiling)
        assert tiling.in_place
        assert tiling.images == 4


@pytest.mark.parametrize("number", [INT8, BYTES])
def test_patches_hold_all_depths(number: Any) -> None:
    form = conv_form(rounded_case((1, 8, 4, 6, 6), (16, 8, 3, 3, 3), {"pads": (1,) * 6}).body)
    one = conv_form(rounded_case((1, 8, 1, 6, 6), (16, 8, 1, 3, 3), {"pads": (0, 1, 1, 0, 1, 1)}).body)
    shape = (2, 1, 16)
    deep, flat = (nhwc_tiling(f, "channels", shape, detect_cpu(), number, 0, 1) for f in (form, one))
    assert deep.lines == flat.lines
    assert deep.patch_elements == 3 * flat.patch_elements


def test_four_dimensions_are_refused() -> None:
    def body(rank: int) -> Body:
        slots = [((1, 2, *(3,) * rank), F32), ((2, 2, *(1,) * rank), F32)]
        return anchor_case("conv", {}, slots, constants=[1]).body

    assert family_of(NHWC).tilings(NHWC, body(3), detect_cpu())
    with pytest.raises(UnsupportedError, match="not a convolution that this kernel computes"):
        family_of("host.conv.igemm").tilings("host.conv.igemm", body(3), detect_cpu())
