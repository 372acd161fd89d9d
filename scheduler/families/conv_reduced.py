"""How 1 x 1 convolutions of images that lie channels last are cut where less precision is allowed.

Model: without strides and padding such a convolution is a matrix product: rows are the pixels of all images, depths the
channels, columns the filters; `pointwise_form` is that product, and the cuts are those of narrow products
(`matmul_reduced`). The bias is added in front of the epilogue.

Invariant: pixels walk on evenly from image to image, so that a row's place is its number times one stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.scheduler.families.conv_form import window_attr
from superkernel.scheduler.families.matmul_form import Factor, MatmulForm
from superkernel.scheduler.families.matmul_reduced import CONV_FORMATS, NarrowFamily
from superkernel.scheduler.tiling import Tiling
from superkernel.target.cpu import CpuTarget


def pixel_stride(view: View) -> int | None:
    """Elements from one pixel to the next, over rows and images too; None where they do not walk on evenly."""
    dims, strides = (view.shape[0], *view.shape[2:]), (view.strides[0], *view.strides[2:])
    walked = [(d, s) for d, s in zip(dims, strides, strict=True) if d > 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(walked)):
        return None
    return walked[-1][1] if walked else max(1, view.shape[1])


def is_pointwise(body: Body) -> bool:
    """True of a convolution of f32 images that is one matrix product."""
    x, w = body.anchor_input_types[0], body.anchor_input_types[1]
    sources = body.anchor_inputs
    if body.op != "conv" or x is None or w is None or x.rank < 3 or x.dtype is not DType.F32:
        return False
    if not all(isinstance(s, View) for s in sources[:2]) or not isinstance(sources[0], View):
        return False
    if len(sources) > 2 and sources[2] is not None and not isinstance(sources[2], View):
        return False
    rank = x.rank - 2
    ones = prod(w.shape[2:]) == 1 and all(s == 1 for s in window_attr(body, "strides", rank, 1))
    plain = not any(window_attr(body, "pads", 2 * rank, 0)) and body.attr.get("groups", 1) == 1
    same = x.shape[2:] == body.anchor_outputs[0].shape[2:]
    return ones and plain and same and sources[0].strides[1] == 1 and pixel_stride(sources[0]) is not None


def pointwise_form(body: Body) -> MatmulForm:
    """The matrix product that a convolution is. Raises UnsupportedError where it is none."""
    if not is_pointwise(body):
        raise UnsupportedError("not one matrix product", location="conv", expected="1 x 1, channels last, no padding")
    x, w, output = body.anchor_inputs[0], body.anchor_inputs[1], body.anchor_outputs[0]
    assert isinstance(x, View)
    assert isinstance(w, View)
    rows = (output.shape[0], *output.shape[2:])
    line = pixel_stride(x)
    assert line is not None
    left = Factor(0, DType.F32, x.operand, (), line, x.strides[1], x.offset, None, x.shape, False)
    right = Factor(1, DType.F32, w.operand, (), w.strides[0], w.strides[1], w.offset, None, w.shape, True)
    has_bias = len(body.anchor_inputs) > 2 and body.anchor_inputs[2] is not None
    return MatmulForm(
        (), rows, prod(rows), w.shape[0], x.shape[1], left, right, DType.F32, 1, output.rank, 0, None, None,
        2 if has_bias else None,
    )  # fmt: skip


class NarrowConvFamily(NarrowFamily):
    """1 x 1 convolutions with constant weights in a narrow format."""

    kernels = tuple(CONV_FORMATS)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        return slot in (1, 2) or (slot == 0 and view.strides[1] == 1 and pixel_stride(view) is not None)

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return False

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[Tiling]:
        pointwise_form(body)
        return super().tilings(kernel, body, target)


FAMILY = NarrowConvFamily()
