"""The normal form of convolutions on the cube: a matrix product over image patches that lie channels last.

Model: the image is [images, height, width, channels] with the channels of a pixel side by side. One-dimensional
convolutions, and pointwise ones whose pixels lie evenly spaced, have width 1: any run of positions is a block then.
Groups narrower than a transfer wants are merged, their weights laid out block-diagonally. A pointwise convolution with
strides reads a thinner image without strides.

The product's depth counts filter row, filter column, channel, as `l1_im2col` does. Images arrive in L1 in one of three
ways: FLAT (rows follow one another in global memory), ROWS (one row of pixels is contiguous) or PIXELS (each pixel
alone, its channels padded to whole blocks with zeros).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, PointwiseProgram, Role, View
from superkernel.ops.common import get
from superkernel.scheduler.families.aicore.matmul_form import ACCUMULATORS
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.conv_form import conv_form

TYPES = frozenset(ACCUMULATORS)
KERNEL_MAX, PAD_MAX, STRIDE_MAX = 255, 255, 63  # what l1_im2col takes
_GROUP_BYTES = 64  # of a pixel: less than that per group is merged


class ImageLoad(Enum):
    """How image rows come to L1, see the module docstring."""

    FLAT = "flat"
    ROWS = "rows"
    PIXELS = "pixels"


@dataclass(frozen=True)
class CubeConv:
    """See the module docstring. Strides in elements; `channels` and `out_channels` are per (merged) group."""

    dtype: DType
    images: int
    groups: int
    merged: int  # groups of the operator in one of ours
    channels: int
    height: int
    width: int
    out_channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]
    operand: int
    offset: int
    image_stride: int
    row_stride: int
    pixel_stride: int
    epilogue: PointwiseProgram  # over [images, all out channels] + spatial
    spatial: tuple[int, int]  # dimensions of the epilogue that are our rows and columns; -1: none
    padding: int  # what the image is outside, of bytes

    @property
    def pixels(self) -> int:
        """Output positions per image."""
        return self.out_height * self.out_width

    @property
    def item(self) -> int:
        """Bytes of an element of the image."""
        return self.dtype.itemsize

    @property
    def accumulator(self) -> DType:
        """Element type of the sums in L0C."""
        return ACCUMULATORS[self.dtype]

    def padded_channels(self, block_bytes: int) -> int:
        """Channels of a pixel in L1 where each is padded to whole blocks."""
        step = block_bytes // self.item
        return ceil_to(self.channels, step)

    @property
    def rows_flat(self) -> bool:
        """Whole rows follow one another without gaps."""
        return self.line_dense and (self.height == 1 or self.row_stride == self.width * self.channels)

    @property
    def line_dense(self) -> bool:
        """The pixels of one row follow one another without gaps."""
        return self.width == 1 or self.pixel_stride == self.channels

    @property
    def evenly_spaced(self) -> bool:
        """All pixels of an image have the same distance, in order."""
        return self.width == 1 or self.height == 1 or self.row_stride == self.width * self.pixel_stride

    @property
    def pixel_step(self) -> int:
        """Elements from pixel to pixel where they are evenly spaced."""
        return self.row_stride if self.width == 1 else self.pixel_stride


def unsupported(what: str, expected: str, found: object) -> UnsupportedError:
    """A convolution that this kernel does not compute."""
    return UnsupportedError(what, location="aicore.conv", expected=expected, found=str(found))


def _is_constant(body: Body, slot: int) -> bool:
    """Whether an input is absent, or known when compiling."""
    view = body.anchor_inputs[slot] if slot < len(body.anchor_inputs) else None
    return view is None or (isinstance(view, View) and body.operands[view.operand].role is Role.CONSTANT)


def _require(body: Body) -> None:
    x = body.anchor_input_types[0]
    wanted = frozenset({DType.I8}) if body.op == "conv_integer" else TYPES - {DType.I8}
    if body.op not in ("conv", "conv_integer") or x is None or x.rank not in (3, 4) or x.dtype not in wanted:
        expected = f"conv or conv_integer in one or two dimensions of {', '.join(sorted(map(str, wanted)))}"
        raise unsupported("not a convolution on the cube", expected, x)
    w = body.anchor_input_types[1]
    if body.op == "conv_integer" and (w is None or w.dtype is not DType.I8 or any(body.anchor_inputs[2:])):
        raise unsupported("integers that are not signed bytes alone", "i8 and i8, no bias and no zero points", w)
    if not _is_constant(body, 1):
        raise unsupported("weights that are not constant", "constant weights", "weights that others compute")
    if not isinstance(body.anchor_inputs[0], View):
        raise unsupported("a prologue in front of a convolution", "x in memory", "a program")
    if not _is_constant(body, 2):
        raise unsupported("a bias that is not constant", "a constant bias", "a bias that others compute")


@lru_cache(maxsize=1024)
def cube_conv(body: Body) -> CubeConv:
    """The normal form of a `conv` body. Raises UnsupportedError where there is none."""
    _require(body)
    form = conv_form(body)
    _, channel_stride, row, pixel = form.x_strides
    height, width, out_height, out_width = form.height, form.width, form.out_height, form.out_width
    kernel, strides, dilations, pads = form.kernel, form.strides, form.dilations, form.pads
    spatial = (2, 3)
    total = form.channels * form.groups
    if total > 1 and channel_stride != 1:
        raise unsupported("an image that does not lie channels last", "channel stride 1", form.x_strides)
    if form.spatial == 1:  # one dimension: down, so that any run of positions is a block
        height, width, out_height, out_width = width, 1, out_width, 1
        kernel, strides, dilations, pads = (_turned(v) for v in (kernel, strides, dilations, pads))
        row, pixel, spatial = pixel, total, (2, -1)
    merged = _merged(form.groups, form.channels, body)
    if kernel == (1, 1) and pads == (0, 0) and strides != (1, 1) and form.channels * merged * 2 >= _GROUP_BYTES:
        row, pixel = row * strides[0], pixel * strides[1]
        height, width, strides = out_height, out_width, (1, 1)
    _check_window(kernel, strides, dilations, pads)
    return CubeConv(
        form.dtype, form.images, form.groups // merged, merged, form.channels * merged, height, width,
        form.out_channels * merged, out_height, out_width, kernel, strides, dilations, pads, form.operand,
        form.x_offset, form.x_strides[0], row, pixel, form.epilogue, spatial,
        get(body.attr, "padding", int) if body.op == "conv_integer" else 0,
    )  # fmt: skip


def _turned(pair: tuple[int, int]) -> tuple[int, int]:
    return (pair[1], pair[0])


def _merged(groups: int, channels: int, body: Body) -> int:
    """How many groups become one: the least divisor that makes a pixel of a group long enough to be transferred."""
    x = body.anchor_input_types[0]
    assert x is not None
    wanted = _GROUP_BYTES // x.dtype.itemsize
    return next((d for d in range(1, groups + 1) if groups % d == 0 and d * channels >= wanted), max(1, groups))


def _check_window(
    kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int]
) -> None:
    for name, pair, most in (
        ("kernel", kernel, KERNEL_MAX),
        ("strides", strides, STRIDE_MAX),
        ("dilations", dilations, KERNEL_MAX),
        ("pads", pads, PAD_MAX),
    ):
        if max(pair) > most:
            raise unsupported(f"{name} beyond the im2col command", f"at most {most}", pair)
