"""What kernels of images that lie channels last see of a convolution: runs of its window, and the patches of its input
that they copy. See `nhwc_tiling` for the terms."""

from __future__ import annotations

from dataclasses import dataclass, replace

from superkernel.core.dtypes import DType
from superkernel.core.formats import (
    NumberFormat,
)
from superkernel.ir.body import Body
from superkernel.ops.windows import Window
from superkernel.scheduler.families.conv_form import ConvForm, conv_form

HEAD_BYTES = 64
"""Of a patch row of integers, ahead of its first column: f32 scale, i32 zero point."""


@dataclass(frozen=True)
class Walk:
    """Strides, in elements, of what a register tile reads: from image row to row, column to column, channel to
    channel, depth to depth of the window."""

    row: int
    column: int
    channel: int
    depth: int = 0


def form_for(number: NumberFormat, body: Body) -> ConvForm:
    """A convolution as kernels of a format compute it."""
    if not number.is_reduced:
        return conv_form(body)
    return rowed(body) if number.scales_rows else met_inputs(conv_form(body))


def runs_of(form: ConvForm, number: NumberFormat) -> tuple[int, int]:
    """How many runs a window has, and their length."""
    joined = _joined_columns(form)
    return form.taps // joined, patch_channels(form, number) * joined


def patch_channels(form: ConvForm, number: NumberFormat) -> int:
    """Channels of a group in a patch: where a run of floats would end within a word of a tile, behind which there need
    not be a number, one more, of zeros."""
    if number.tiled and number.rows.is_float and form.channels * _joined_columns(form) % number.step:
        return -(-form.channels // number.step) * number.step
    return form.channels


def _joined_columns(form: ConvForm) -> int:
    """Columns of the window that lie side by side."""
    return form.kernel[1] if form.dilations[1] == 1 else 1


def met_inputs(form: ConvForm) -> ConvForm:
    """A convolution of one tap over the inputs that it meets: without strides."""
    if form.taps > 1 or form.prologue is not None or form.pads != (0, 0):
        return form
    image, channel, row, column = form.x_strides
    strides = (image, channel, row * form.strides[0], column * form.strides[1])
    height, width = (-(-n // s) for n, s in zip((form.height, form.width), form.strides, strict=True))
    return replace(form, strides=(1, 1), height=height, width=width, x_strides=strides)


def rowed(body: Body) -> ConvForm:
    """The convolution as its kernel computes it: as `met_inputs`, but images have the rows that they came with. The
    programs' coordinates stay what they are."""
    form, x = met_inputs(conv_form(body)), body.anchor_input_types[0]
    assert x is not None
    if x.rank != 4 or form.spatial != 1 or form.prologue is not None:
        return form
    height, width = x.shape[2:]
    image, channel, _, column = form.x_strides
    strides = (image, channel, width * column, column)
    return replace(form, height=height, width=width, out_height=height, out_width=width, x_strides=strides)


def is_dense(form: ConvForm) -> bool:
    """True where the columns and channels of an input row are one run of f32 in memory."""
    _, channel, _, column = form.x_strides
    plain = form.prologue is None and form.dtype is DType.F32
    return plain and channel == 1 and (column == form.channels or form.width == 1)


def reads_in_place(form: ConvForm) -> bool:
    """True where every tap of every output that is not left out lies inside an input that needs no conversion."""
    last = tuple(
        (size - 1) * stride - pad + (kernel - 1) * dilation
        for size, stride, pad, kernel, dilation in zip(
            (form.out_height, form.out_width), form.strides, form.pads, form.kernel, form.dilations, strict=True
        )
    )
    inside = last[0] < form.height and last[1] < form.width
    as_stored = form.dtype is DType.F32 or _has_whole_words(form)
    return form.prologue is None and as_stored and form.pads == (0, 0) and inside


def _has_whole_words(form: ConvForm) -> bool:
    """Whether what a window's row meets of an image of unsigned bytes is one run of whole words, at all its depths."""
    _, channel, _, column = form.x_strides
    in_one_piece = channel == 1 and (column == form.channels or form.kernel[1] == 1)
    return form.dtype is DType.U8 and in_one_piece and form.channels % 4 == 0 and form.depth.reads_inside


def always_meets(window: Window) -> bool:
    """Whether each output of a window meets inputs, not padding alone."""
    return all(first < last for first, last in (window.reads(at, at + 1) for at in range(window.size)))


def channels_inside_patch(form: ConvForm) -> bool:
    """Whether patches have channels inside: computed inputs, and inputs that lie so."""
    return form.prologue is not None or form.x_strides[1] == 1 or form.x_strides[3] != 1 or form.width == 1


def patch_extent(form: ConvForm, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the patch of a block, at each depth of the window."""
    high, wide = (
        (count - 1) * stride + (kernel - 1) * dilation + 1
        for count, stride, kernel, dilation in zip(
            (rows, columns), form.strides, form.kernel, form.dilations, strict=True
        )
    )
    return high, wide


def patch_row_bytes(form: ConvForm, wide: int) -> int:
    """Of a patch row of so many columns of integers, its head included."""
    return -(-(HEAD_BYTES + wide * form.channels) // 64) * 64


def patch_walk(form: ConvForm, rows: int, columns: int, number: NumberFormat) -> Walk:
    """Strides inside the patch of blocks with so many rows and columns, in items of the format (bytes of integers)."""
    high, wide = patch_extent(form, rows, columns)
    channels = patch_channels(form, number)
    row = patch_row_bytes(form, wide) if number.scales_rows else wide * channels
    inside = number.is_reduced or channels_inside_patch(form)
    return Walk(row, channels if inside else 1, 1 if inside else wide, high * row)
