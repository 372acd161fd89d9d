"""Weights of convolutions that come from behind the second-level cache: what is fetched, pieces of panels, and that
neither changes a bit."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
from anchor_bodies import AnchorCase, anchor_case
from conv_cases import last
from kernel_check import check_body, tiers

from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling
from superkernel.scheduler.families.winograd import WinogradTiling
from superkernel.target.cpu import AVX2, AVX512, cpu_target

NHWC, WINOGRAD = "host.conv.nhwc", "host.conv.winograd2"
SAME = {"pads": (1, 1, 1, 1)}
TARGET = cpu_target("x86_64-unknown-linux-gnu", "avx512", AVX2 + AVX512)


def conv(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> AnchorCase:
    slots = [(x, DType.F32), (w, DType.F32), ((w[0],), DType.F32)]
    return anchor_case("conv", attrs, slots, constants=[1, 2], layouts=last(len(x)), epilogue="mixed", bias_axis=1)


def first(kernel: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> tuple[Any, int]:
    """The first tiling, and how many prefetches stand in its code."""
    body = conv(x, w, attrs).body
    tiling = family_of(kernel).tilings(kernel, body, TARGET)[0]
    return tiling, emit_ir(kernel, body, tiling, TARGET).count('call void @"llvm.prefetch')


@pytest.mark.parametrize(
    ("x", "w", "attrs", "pieces", "fetches"),
    [
        ((1, 64, 14, 14), (64, 64, 3, 3), SAME, False, False),  # 147 KB
        ((1, 256, 14, 14), (1024, 256, 1, 1), {}, False, True),  # panels of 64 KB
        ((1, 2048, 7, 7), (512, 2048, 1, 1), {}, True, True),
        ((1, 512, 14, 14), (512, 512, 3, 3), {**SAME, "strides": (2, 2)}, True, True),
        ((1, 2048, 1, 1), (1000, 2048, 1, 1), {}, False, False),  # one tile per panel
    ],
    ids=str,
)
def test_weights_from_afar_are_fetched_and_large_panels_cut(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], pieces: bool, fetches: bool
) -> None:
    tiling, prefetches = first(NHWC, x, w, attrs)
    assert isinstance(tiling, NhwcTiling)
    assert (tiling.pieces > 0) == pieces
    assert (prefetches > 0) == fetches == (tiling.sharers > 0)
    if pieces:
        assert 4 * w[1] * w[2] * w[3] * tiling.tile_rows / tiling.pieces <= TARGET.l2_bytes / 4


@pytest.mark.parametrize(("channels", "fetches"), [(16, False), (256, True)])
def test_winograd_fetches_the_next_plane(channels: int, fetches: bool) -> None:
    tiling, prefetches = first(WINOGRAD, (1, channels, 14, 14), (channels, channels, 3, 3), SAME)
    assert isinstance(tiling, WinogradTiling)
    assert (prefetches > 0) == fetches == (tiling.sharers > 0)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 12, 7, 10), (40, 12, 3, 3), {**SAME, "strides": (2, 1)}),
        ((1, 12, 9, 11), (20, 12, 2, 3), {"dilations": (2, 1)}),
        ((1, 12, 6, 9), (70, 12, 1, 1), {}),
        ((1, 12, 5, 4, 6), (20, 12, 3, 2, 2), {}),
    ],
    ids=str,
)
def test_pieces_and_fetches_change_no_bit(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    case = conv(x, w, attrs)
    for tier in tiers():
        found = family_of(NHWC).tilings(NHWC, case.body, detect_cpu(tier))
        for made in {t.axis: t for t in found if isinstance(t, NhwcTiling)}.values():
            tilings = [replace(made, pieces=n * prod(w[2:]), sharers=s) for n, s in ((0, 0), (0, 2), (1, 4), (2, 1))]
            check_body(NHWC, case.body, case.arrays, case.expected, tilings=tilings, tier=tier, tol=2e-5, splits=2)


def test_fetching_changes_no_bit_of_winograd() -> None:
    case = conv((1, 12, 9, 10), (36, 12, 3, 3), SAME)
    made = family_of(WINOGRAD).tilings(WINOGRAD, case.body, detect_cpu(""))[0]
    assert isinstance(made, WinogradTiling)
    tilings = [replace(made, sharers=sharers) for sharers in (0, 2, 8)]
    check_body(WINOGRAD, case.body, case.arrays, case.expected, tilings=tilings, tier=detect_cpu("").tier, tol=2e-5)
