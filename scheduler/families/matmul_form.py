"""The normal form of a matrix product: what `matmul` and `matmul_integer` bodies have in common, whatever their ranks
and transpositions.

Model: result[batch, row, column] = sum over depth of left[batch, row, depth] * right[batch, depth, column]. `columns`
is the vector axis. Left and right are the operator's `a` and `b`; they change places where `b` has one column (a
matrix times a vector), so that the long axis is the vector axis. Batch dimensions that only the left factor has become
rows where its strides allow. A 1 x 1 convolution of images that lie channels last, without strides and padding, is a
product too: rows are the pixels of all images, depths the channels, columns the filters (`pointwise_form`).

Invariants: for every coordinate, `row_coords` + the column at `column_axis` is the coordinate in the anchor's output
shape; factor strides are in elements; a broadcast dimension has stride 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError, UnsupportedError
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.ops.common import get
from superkernel.ops.conv import conv_windows
from superkernel.ops.matmul import matmul_form


@dataclass(frozen=True)
class Factor:
    """One side of the product. `operand` is -1 where a prologue program makes the values (then the strides mean
    nothing). `line` is the stride along rows (left) or columns (right), `batch` has one stride per batch dimension of
    the form."""

    slot: int
    dtype: DType
    operand: int
    batch: tuple[int, ...]
    line: int
    depth: int
    offset: int
    program: PointwiseProgram | None
    shape: tuple[int, ...]  # of the input slot
    transposed: bool  # the slot's last dimension is not the one a plain a[.., m, k] or b[.., k, n] has


@dataclass(frozen=True)
class MatmulForm:
    """See the module docstring. `batch_dims` are looped over; `row_dims` multiply to `rows`."""

    batch_dims: tuple[int, ...]
    row_dims: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    left: Factor
    right: Factor
    acc: DType
    column_axis: int  # position of the column in the output coordinates; -1: the output has no such dimension
    batch_rank: int  # batch dimensions of the output
    left_zero: int | None  # input slots of the zero points (matmul_integer)
    right_zero: int | None
    bias: int | None = None  # input slot of a term per column (1 x 1 convolutions)

    @property
    def batch(self) -> int:
        """Number of batches that are looped over."""
        return prod(self.batch_dims)

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products."""
        return 2 * self.batch * self.rows * self.columns * self.depth


def accumulator(dtype: DType, output: DType) -> DType:
    """f16 and bf16 are summed in f32, integers in the output's type (at least 32 bits wide)."""
    if dtype is DType.F64:
        return DType.F64
    if dtype.is_float:
        return DType.F32
    return output if output.itemsize >= 4 else DType.I32


@lru_cache(maxsize=1024)
def form_of(body: Body) -> MatmulForm:
    """The normal form of a body whose anchor is a matrix product, or a convolution that is one. Raises InternalError on
    another anchor, UnsupportedError on another convolution."""
    if body.op == "conv":
        return pointwise_form(body)
    if body.op == "block_matmul":
        return _block_form(body)
    if body.op not in ("matmul", "matmul_integer"):
        raise InternalError("not a matrix product", found=str(body.op))
    types = body.anchor_input_types
    a_type, b_type = types[0], types[1]
    assert a_type is not None
    assert b_type is not None
    output, product = body.anchor_outputs[0], matmul_form(a_type, b_type, body.attr)
    batch_dims, m, n = product.batch, product.m, product.n
    left = _factor(body, 0, batch_dims, product.swap_a, line_first=True)
    right = _factor(body, 1, batch_dims, product.swap_b, line_first=False)
    zeros = [i if len(types) > i and types[i] is not None else None for i in (2, 3)]
    row_dims: tuple[int, ...] = () if product.vector_a else (m,)
    column_axis = -1 if product.vector_b else output.rank - 1
    if product.turned:
        left, right, zeros = right, left, zeros[::-1]
        column_axis = len(batch_dims)
        row_dims, m, n = (() if product.vector_b else (1,)), 1, m
    batch_rank = len(batch_dims)
    merge = column_axis in (-1, output.rank - 1) and _can_merge(left, right, batch_dims, m, row_dims)
    if merge:
        row_dims, m, batch_dims = (*batch_dims, *row_dims), prod(batch_dims) * m, ()
        left, right = replace(left, batch=(), line=_merged_line(left, row_dims)), replace(right, batch=())
    acc = accumulator(left.dtype, output.dtype)
    return MatmulForm(batch_dims, row_dims, m, n, product.k, left, right, acc, column_axis, batch_rank, *zeros)


def _block_form(body: Body) -> MatmulForm:
    """A product with weights in blocks: the right factor is the codes [columns, bytes], for whoever unpacks them."""
    x, codes, view = body.anchor_input_types[0], body.anchor_input_types[1], view_of(body, 1)
    assert x is not None
    assert codes is not None
    batch_dims, row_dims, columns = x.shape[:-2], x.shape[-2:-1], codes.shape[0]
    left = _factor(body, 0, batch_dims, False, line_first=True)
    none = tuple(0 for _ in batch_dims)
    right = Factor(1, codes.dtype, view.operand, none, view.strides[0], 1, view.offset, None, codes.shape, True)
    rows = prod(row_dims)
    batch_rank = len(batch_dims)
    if _can_merge(left, right, batch_dims, rows, row_dims):
        row_dims, rows, batch_dims = (*batch_dims, *row_dims), prod(batch_dims) * rows, ()
        left, right = replace(left, batch=(), line=_merged_line(left, row_dims)), replace(right, batch=())
    return MatmulForm(
        batch_dims, row_dims, rows, columns, x.shape[-1], left, right, DType.F32, len(x.shape) - 1, batch_rank,
        None, None,
    )  # fmt: skip


def _factor(body: Body, slot: int, batch_dims: Sequence[int], transposed: bool, line_first: bool) -> Factor:
    """The factor in an input slot: strides seen from the form's dimensions."""
    kind, source = body.anchor_input_types[slot], body.anchor_inputs[slot]
    assert kind is not None
    assert source is not None
    if isinstance(source, PointwiseProgram):
        flags = tuple(1 for _ in batch_dims)
        return Factor(slot, kind.dtype, -1, flags, 1, 1, 0, source, kind.shape, transposed)
    strides = source.strides
    if kind.rank == 1:
        return Factor(
            slot,
            kind.dtype,
            source.operand,
            tuple(0 for _ in batch_dims),
            0,
            strides[0],
            source.offset,
            None,
            kind.shape,
            False,
        )
    line, depth = (strides[-2], strides[-1]) if line_first != transposed else (strides[-1], strides[-2])
    own = kind.rank - 2
    batch = tuple(
        0
        if i < len(batch_dims) - own or kind.shape[i - len(batch_dims) + own] == 1
        else strides[i - len(batch_dims) + own]
        for i in range(len(batch_dims))
    )
    return Factor(slot, kind.dtype, source.operand, batch, line, depth, source.offset, None, kind.shape, transposed)


def _can_merge(left: Factor, right: Factor, batch_dims: Sequence[int], rows: int, row_dims: Sequence[int]) -> bool:
    """True where all batch dimensions walk on like rows: the right factor has none and the left one's strides chain."""
    if (
        not batch_dims
        or right.program is not None
        or any(s for s, d in zip(right.batch, batch_dims, strict=True) if d > 1)
    ):
        return False
    if left.program is not None:
        return True
    dims, strides = [*batch_dims, rows], [*left.batch, left.line]
    if not row_dims:
        dims, strides = list(batch_dims), list(left.batch)
    walked = [(d, s) for d, s in zip(dims, strides, strict=True) if d > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(walked))


def _merged_line(left: Factor, row_dims: Sequence[int]) -> int:
    """Stride of merged rows: that of the last dimension with more than one element."""
    for extent, stride in zip(reversed(row_dims), reversed((*left.batch, left.line)), strict=True):
        if extent > 1:
            return stride
    return left.line


def view_of(body: Body, slot: int) -> View:
    """The view in an input slot. Raises InternalError where there is none."""
    source = body.anchor_inputs[slot]
    if not isinstance(source, View):
        raise InternalError(f"input slot {slot} is not a view", found=type(source).__name__)
    return source


def pixel_stride(view: View) -> int | None:
    """Elements from one pixel to the next, over rows and images too; None where they do not walk on evenly."""
    dims, strides = (view.shape[0], *view.shape[2:]), (view.strides[0], *view.strides[2:])
    walked = [(d, s) for d, s in zip(dims, strides, strict=True) if d > 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(walked)):
        return None
    return walked[-1][1] if walked else max(1, view.shape[1])


def is_pointwise(body: Body) -> bool:
    """True of a convolution of f32 images that is one matrix product."""
    if body.op != "conv":
        return False
    x, w = body.anchor_input_types[0], body.anchor_input_types[1]
    assert x is not None
    assert w is not None
    source, *others = body.anchor_inputs
    if x.dtype is not DType.F32 or not isinstance(source, View):
        return False
    if not all(other is None or isinstance(other, View) for other in others):
        return False
    plain = all(v.kernel == v.stride == 1 and v.begin == v.end == 0 for v in conv_windows(x, w, body.attr))
    one = plain and get(body.attr, "groups", int) == 1
    return one and source.strides[1] == 1 and pixel_stride(source) is not None


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
        (), rows, prod(rows), w.shape[0], x.shape[1], left, right, DType.F32, 1, 0, None, None,
        2 if has_bias else None,
    )  # fmt: skip
