"""Which bodies families of the host say that they serve, and small predicates on their forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plan_cases import TARGETS

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, PointwiseProgram, ProgramInput, ProgramOutput
from superkernel.ops.windows import Window
from superkernel.registry.records import Policy
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families import family_of, nhwc_form
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.pointwise import find_plane, interleaves


def body(text: str) -> Body:
    found = body_of(parse_requirement(text, TARGETS["avx512"](), Policy()))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("conv_integer(u8[1,8,9,9], const i8[16,8,3,3])", True),
        ("conv_integer(i8[1,8,9], const i8[16,8,3])", True),
        ("conv_integer(u8[1,8,4,9,9], const i8[16,8,3,3,3], _, u8[])", True),
        ("conv_integer(u8[1,8,9,9], i8[16,8,3,3])", False),
        ("conv_integer(u8[1,8,9,9], const u8[16,8,3,3])", False),
        ("conv_integer(u8[1,8,9,9], const i8[16,8,3,3], _, u8[], i8[])", False),
        ("conv(f32[1,8,9,9], const f32[16,8,3,3])", False),
    ],
)
def test_convolutions_of_bytes(text: str, served: bool) -> None:
    family: Any = family_of("host.conv.bytes")
    assert family.serves(body(text)) == served


def test_weights_that_are_computed_are_not_served() -> None:
    plain = body("conv_integer(u8[1,8,9,9], const i8[16,8,3,3])")
    program = PointwiseProgram(
        (16, 8, 3, 3), (ProgramInput(1, DType.I8, (72, 9, 3, 1)),), (), (ProgramOutput(0, -1, ()),)
    )
    family: Any = family_of("host.conv.bytes")
    slots = (plain.anchor_inputs[0], program, *plain.anchor_inputs[2:])
    assert not family.serves(replace(plain, anchor_inputs=slots))


def form(text: str = "", size: str = "9,9", layout: str = "channels_last") -> Any:
    return conv_form(body(f"conv(f32[1,8,{size}], const f32[16,8,3,3]; {text}layout={layout})"))


def test_patches_have_channels_inside_unless_only_pixels_lie_side_by_side() -> None:
    rows = form(layout="row_major")
    assert not nhwc_form.channels_inside_patch(rows)
    assert nhwc_form.channels_inside_patch(form())
    assert nhwc_form.channels_inside_patch(replace(rows, x_strides=(648, 81, 18, 2)))
    assert nhwc_form.channels_inside_patch(replace(rows, width=1))


def test_taps_inside_the_image_are_read_where_they_lie() -> None:
    assert nhwc_form.reads_in_place(form())
    assert not nhwc_form.reads_in_place(form("pads=(0,1,0,1), "))
    assert not nhwc_form.reads_in_place(form("pads=(1,0,1,0), "))
    assert not nhwc_form.reads_in_place(replace(form(), height=8))
    assert not nhwc_form.reads_in_place(replace(form(), width=8))


def walks(strides: tuple[int, ...], out: tuple[int, ...], shape: tuple[int, ...] = (5, 6)) -> PointwiseProgram:
    return PointwiseProgram(shape, (ProgramInput(0, DType.F32, strides),), (), (ProgramOutput(0, 1, out),))


def test_a_plane_is_turned_where_an_input_is_contiguous_along_another_dimension() -> None:
    assert find_plane(walks((1, 5), (6, 1))) == 0
    assert find_plane(walks((6, 1), (6, 1))) == -1
    assert find_plane(walks((1, 5), (1, 5))) == -1  # stored across: nothing to turn
    assert find_plane(walks((1, 3), (6, 1), (3, 6))) == -1  # too few
    assert find_plane(walks((1, 4), (6, 1), (4, 6))) == 0
    assert find_plane(walks((30, 1, 5), (30, 6, 1), (4, 5, 6))) == 1
    assert find_plane(walks((1, 7), (1, 1), (7, 1))) == -1
    assert find_plane(walks((5,), (1,), (6,))) == -1


def test_few_columns_are_interleaved_where_they_are_only_copied() -> None:
    assert find_plane(walks((1, 9), (3, 1), (9, 3))) == 0
    assert interleaves(walks((1, 9), (3, 1), (9, 3)), 0)
    assert not interleaves(walks((1, 9), (4, 1), (9, 3)), 0)
    assert find_plane(walks((1, 9), (4, 1), (9, 3))) == -1
    assert find_plane(walks((1, 9), (4, 1), (9, 4))) == 0


@pytest.mark.parametrize(
    ("window", "meets"),
    [
        (Window(extent=3, kernel=1, stride=1, dilation=1, begin=1, end=0, size=4), False),
        (Window(extent=3, kernel=1, stride=1, dilation=1, begin=0, end=1, size=4), False),
        (Window(extent=3, kernel=2, stride=1, dilation=1, begin=1, end=1, size=4), True),
        (Window(extent=3, kernel=2, stride=1, dilation=3, begin=3, end=3, size=6), True),
        (Window(extent=1, kernel=3, stride=2, dilation=2, begin=3, end=3, size=2), False),
    ],
)
def test_windows_that_meet_inputs_everywhere(window: Window, meets: bool) -> None:
    assert nhwc_form.always_meets(window) == meets
