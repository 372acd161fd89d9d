"""How rows of positions are cut into lines of equal length, so that two and four cores get even shares."""

from __future__ import annotations

from typing import Any

import pytest
from anchor_bodies import anchor_case
from conv_cases import last, rounded_case
from kernel_check import check_body

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, View
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.conv import PIXELS
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.conv_nhwc import NhwcFamily
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling
from superkernel.scheduler.tiling import Tiling
from superkernel.target.cpu import cpu_target

F32 = DType.F32
NHWC = "host.conv.nhwc"
EVEN = [
    ((1, 20, 8, 8), (64, 20, 1, 1), {}),  # halves of four tiles of 7 and one of 4
    ((2, 9, 5, 5), (70, 9, 1, 1), {}),  # the last line is shorter and ends in another tile
    ((1, 16, 23, 11), (24, 16, 1, 1), {}),  # many lines; the last one ends where a tile does
    ((1, 12, 75), (96, 6, 3), {"pads": (1, 1), "groups": 2}),  # by way of the patch
]


@pytest.mark.parametrize("kernel", [NHWC, "host.conv.nhwc_bf16"])
@pytest.mark.parametrize(("x", "w", "attrs"), EVEN, ids=str)
def test_lines_of_equal_length(kernel: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    case = rounded_case(x, w, attrs)
    form = conv_form(case.body)
    family, cpu = family_of(kernel), detect_cpu()
    assert isinstance(family, NhwcFamily)
    tilings = [family.tiling(form, PIXELS, (7, 1, cpu.vector_bytes // 4), cpu, pieces) for pieces in (2, 4)]
    assert any(t.columns % t.positions and t.column_blocks > 1 for t in tilings), "lines end within a tile"
    for tiling in tilings:
        check_body(kernel, case.body, case.arrays, case.expected, tilings=[tiling], tol=2e-5, tier=cpu.tier)


@pytest.mark.parametrize(("side", "channels", "filters"), [(8, 256, 256), (13, 512, 1000), (7, 96, 320), (55, 128, 16)])
def test_two_and_four_cores_get_even_shares(side: int, channels: int, filters: int) -> None:
    """What a core writes says how many positions it has."""
    slots = [((1, channels, side, side), F32), ((filters, channels, 1, 1), F32)]
    body = anchor_case("conv", {}, slots, constants=[1], layouts=last(4)).body
    tilings = family_of(NHWC).tilings(NHWC, body, cpu_target("x86_64-unknown-linux-gnu", "avx512", set()))
    for cores in (2, 4):
        longest = min(
            max(written(tiling, body, tiling.units * i // cores, tiling.units * (i + 1) // cores) for i in range(cores))
            for tiling in tilings
        )
        assert longest <= 1.02 * filters * -(-side * side // cores)


def written(tiling: Tiling, body: Body, begin: int, end: int) -> float:
    """Elements that units [begin, end) write."""
    accesses = tiling.accesses(body, begin, end)
    return sum(r.nbytes for a in accesses if a.write for r in a.regions) / 4


def test_a_share_reads_what_it_computes_from() -> None:
    """No position of a neighbour's: between pointwise convolutions cut alike nobody waits."""
    slots = [((1, 64, 13, 13), F32), ((64, 64, 1, 1), F32)]
    body = anchor_case("conv", {}, slots, constants=[1], layouts=last(4)).body
    view = body.anchor_inputs[0]
    assert isinstance(view, View)
    for tiling in family_of(NHWC).tilings(NHWC, body, detect_cpu()):
        assert isinstance(tiling, NhwcTiling)
        if tiling.axis == PIXELS:
            for unit in range(tiling.units):
                reads = [a for a in tiling.accesses(body, unit, unit + 1) if a.operand == view.operand and not a.write]
                read = sum(r.nbytes for a in reads for r in a.regions) / 4
                assert read == written(tiling, body, unit, unit + 1), "as many channels out as in"
