"""The normal form of a matrix product on the accelerator: batches of rows x depth times depth x columns, with the
epilogue over [*batch, row, column].

Model: dimensions ahead of the columns are merged into rows as far as *everything* walks them as one: the left factor,
the right one (not at all), and whatever the epilogue reads and writes; so a tile of rows is one affine piece of each.
The other dimensions are batches. Where the epilogue stores columns side by side along the rows (a transposed result),
left and right change places: the cube does not care, its two operands have the same layout.

Invariant: strides are in elements; a factor that is broadcast over a batch has stride 0 there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import row_major_strides
from superkernel.ir.body import Body, PointwiseProgram, Role
from superkernel.ir.collapse import merge_dims, merged_strides, permuted, regroup, walked, walks_of
from superkernel.scheduler.families.matmul_form import Factor, MatmulForm, form_of

ACCUMULATORS = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.F32: DType.F32, DType.I8: DType.I32}


@dataclass(frozen=True)
class Side:
    """A factor: `lines` (rows of the left one, columns of the right one) x depth."""

    operand: int
    batch: tuple[int, ...]
    line: int
    depth: int
    offset: int
    constant: bool


@dataclass(frozen=True)
class CubeProduct:
    """See the module docstring. `program`: the epilogue over [*batch_dims, rows, columns]."""

    batch_dims: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    left: Side
    right: Side
    dtype: DType
    program: PointwiseProgram

    @property
    def batch(self) -> int:
        """Number of products."""
        return prod(self.batch_dims)

    @property
    def accumulator(self) -> DType:
        """Element type of the sums in L0C."""
        return ACCUMULATORS[self.dtype]


@lru_cache(maxsize=1024)
def product_of(body: Body) -> CubeProduct:
    """The normal form of a body. Raises UnsupportedError on what the cube cannot multiply."""
    form = form_of(body)
    _check(form, body)
    dims = (*form.batch_dims, *form.row_dims)
    inner = row_major_strides(form.row_dims)
    left = (*form.left.batch, *(form.left.line * s for s in inner))
    right = (*form.right.batch, *(0 for _ in form.row_dims))
    program = _columns_last(body.epilogue, form.column_axis)
    walks = [left, right, *(w[:-1] for w in walks_of(program))]
    groups = merge_dims(dims, walks)
    if groups and merged_strides(dims, right, groups)[-1] != 0:
        groups = (*groups, ())  # the last dimension is a batch: one row
    if not groups:
        groups = ((),)
    made = CubeProduct(
        tuple(prod(dims[d] for d in g) for g in groups[:-1]),
        prod(dims[d] for d in groups[-1]),
        form.columns,
        form.depth,
        _side(body, form.left, merged_strides(dims, left, groups)),
        replace(_side(body, form.right, merged_strides(dims, right, groups)), line=form.right.line),
        form.left.dtype,
        regroup(program, (*groups, (len(dims),))),
    )
    return turned(made) if _stores_down(made) else made


def _check(form: MatmulForm, body: Body) -> None:
    left, right = form.left, form.right
    if left.program is not None or right.program is not None:
        raise UnsupportedError("the cube reads its factors from global memory", found="a prologue")
    if (form.left_zero, form.right_zero) != (None, None):
        raise UnsupportedError("the cube subtracts no zero points", location="a_zero, b_zero", expected="none")
    if left.dtype is not right.dtype or left.dtype not in ACCUMULATORS or body.op == "conv":
        raise UnsupportedError(
            "element types that the cube does not multiply",
            expected=", ".join(str(t) for t in ACCUMULATORS),
            found=f"{left.dtype} and {right.dtype} in {body.op}",
        )
    if form.depth == 0:
        raise UnsupportedError("a product of depth 0", location="depth", expected="at least 1", found="0")


def _side(body: Body, factor: Factor, strides: tuple[int, ...]) -> Side:
    """The factor over merged dimensions; the last stride is along its rows."""
    programs = [body.epilogue]
    readers = [i.source for p in programs for i in p.inputs].count(factor.operand)
    views = [getattr(v, "operand", None) for v in body.anchor_inputs].count(factor.operand)
    constant = body.operands[factor.operand].role is Role.CONSTANT and readers + views == 1
    return Side(factor.operand, strides[:-1], strides[-1], factor.depth, factor.offset, constant)


def _columns_last(program: PointwiseProgram, axis: int) -> PointwiseProgram:
    """The program with the column dimension last; a new one of extent 1 where `axis` is -1."""
    if axis < 0:
        return walked(program, (*program.shape, 1), lambda strides: (*strides, 0))
    return permuted(program, [*(d for d in range(len(program.shape)) if d != axis), axis])


def _stores_down(product: CubeProduct) -> bool:
    """True where every store has its elements side by side down the rows, not along the columns."""
    stores = [o.strides for o in product.program.outputs if o.target >= 0]
    return product.columns > 1 and product.rows > 1 and all(s[-2] == 1 and s[-1] != 1 for s in stores)


@lru_cache(maxsize=1024)
def turned(product: CubeProduct) -> CubeProduct:
    """The transposed product."""
    rank = len(product.program.shape)
    return replace(
        product,
        rows=product.columns,
        columns=product.rows,
        left=product.right,
        right=product.left,
        program=permuted(product.program, (*range(rank - 2), rank - 1, rank - 2)),
    )
