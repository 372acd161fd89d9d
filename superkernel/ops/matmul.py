"""Matrix products: matmul (NumPy's batching), gemm, matmul_integer.

Model: every product is [..., m, k] x [..., k, n] after `orient` has put a missing row or column dimension in and noted
which axes are swapped in memory; shapes and cost are stated once on that form. 8-bit integers accumulate in i32 and
wrap; wider ones wrap in their own type.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import (
    attr,
    broadcast_shape,
    get,
    optional,
    present,
    require,
    require_broadcast_to,
    require_rank,
    require_same_dtype,
    slot,
    to_f64,
)
from superkernel.ops.opdef import BYTES, FLOATS, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types

WIDE_INTS = frozenset({DType.I32, DType.I64, DType.U32, DType.U64})


@dataclass(frozen=True)
class Product:
    """A matrix product in general form. `vector_a`: a is 1-D, there is no row dimension; `vector_b`: no column one."""

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    vector_a: bool
    vector_b: bool
    swap_a: bool
    swap_b: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return self.batch + (() if self.vector_a else (self.m,)) + (() if self.vector_b else (self.n,))

    @property
    def turned(self) -> bool:
        """Whether kernels compute the transpose, a matrix times a column: vectors then run over what is long."""
        return self.n == 1 and self.m > 1


def orient(a: TensorType, b: TensorType, swap_a: bool, swap_b: bool) -> Product:
    """The general form of a x b. Raises GraphError where the shapes do not multiply."""
    require_rank(a, 1, None, "input 0 (a)")
    require_rank(b, 1, None, "input 1 (b)")
    require(a.rank > 1 or not swap_a, "a vector has no axes to swap", "rank >= 2 with trans_a", a, "input 0 (a)")
    require(b.rank > 1 or not swap_b, "a vector has no axes to swap", "rank >= 2 with trans_b", b, "input 1 (b)")
    rows = a.shape[-2:] if a.rank > 1 else (1, a.shape[0])
    columns = b.shape[-2:] if b.rank > 1 else (b.shape[0], 1)
    m, k = reversed(rows) if swap_a else rows
    other, n = reversed(columns) if swap_b else columns
    if k != other:
        require(False, "inner dimensions differ", f"{k} (from a {a})", f"{other} (from b {b})", "input 1 (b)")
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]])
    return Product(batch, m, k, n, a.rank == 1, b.rank == 1, swap_a, swap_b)


def _multiply(a: Array, b: Array, form: Product) -> Array:
    """a x b in float64, exact for 8-bit integers (sums far below 2^53); wider integers as they are, modulo 2^width."""
    left, right = (a, b) if a.dtype.kind in "iu" and a.dtype.itemsize >= 4 else (to_f64(a), to_f64(b))
    product: Array = np.matmul(
        left.swapaxes(-1, -2) if form.swap_a else left, right.swapaxes(-1, -2) if form.swap_b else right
    )
    return product


def _as_i32(values: Array) -> Array:
    """Exact float64 sums as i32, wrapped."""
    return values.astype(np.int64).astype(np.int32)


# matmul

_FACTORS = FLOATS | BYTES | WIDE_INTS
_MATMUL_ARGS = (ArgDef("a", _FACTORS), ArgDef("b", _FACTORS))


def matmul_form(a: TensorType, b: TensorType, attrs: Attrs) -> Product:
    """The general form of a legal matmul, matmul_integer or gemm."""
    return orient(a, b, *(name in attrs and get(attrs, name, bool) for name in ("trans_a", "trans_b")))


def _matmul_infer(inputs: Types, attrs: Attrs) -> Outputs:
    a, b = present(inputs, 0), present(inputs, 1)
    if a.dtype in BYTES:
        require(b.dtype in BYTES, "element types do not multiply", "i8 or u8, as a", b.dtype, slot(_MATMUL_ARGS, 1))
    else:
        require_same_dtype(inputs, _MATMUL_ARGS)
    return (TensorType(DType.I32 if a.dtype in BYTES else a.dtype, matmul_form(a, b, attrs).shape),)


def _form_of(inputs: Types, attrs: Attrs) -> Product:
    return matmul_form(present(inputs, 0), present(inputs, 1), attrs)


def _array_type(values: Array) -> TensorType:
    """Shape of an array; the element type plays no part in the form."""
    return TensorType(DType.F64, tuple(int(d) for d in values.shape))


def _matmul_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    a, b = present(inputs, 0), present(inputs, 1)
    product = _multiply(a, b, matmul_form(_array_type(a), _array_type(b), attrs))
    return (_as_i32(product) if outputs[0].dtype is DType.I32 else np.asarray(product),)


def _matmul_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return 2 * outputs[0].size * _form_of(inputs, attrs).k


# gemm

_GEMM_ARGS = (
    ArgDef("a", FLOATS, doc="[m, k], or [k, m] with trans_a"),
    ArgDef("b", FLOATS, doc="[k, n], or [n, k] with trans_b"),
    ArgDef("c", FLOATS, optional=True, doc="broadcasts to [m, n]"),
)


def _gemm_infer(inputs: Types, attrs: Attrs) -> Outputs:
    dtype = require_same_dtype(inputs, _GEMM_ARGS)
    for i in range(2):
        require_rank(present(inputs, i), 2, 2, slot(_GEMM_ARGS, i))
    shape = _form_of(inputs, attrs).shape
    c = optional(inputs, 2)
    if c is not None:
        require_broadcast_to(c, shape, slot(_GEMM_ARGS, 2))
    return (TensorType(dtype, shape),)


def _gemm_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    a, b, c = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
    product = get(attrs, "alpha", float) * _multiply(a, b, matmul_form(_array_type(a), _array_type(b), attrs))
    beta = get(attrs, "beta", float)
    return (product if c is None or beta == 0.0 else product + beta * to_f64(c),)


def _gemm_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    extra = 1 if optional(inputs, 2) is None else 3
    return _matmul_flops(inputs, outputs, attrs) + extra * outputs[0].size


# matmul_integer

_INTEGER_ARGS = (
    ArgDef("a", BYTES),
    ArgDef("b", BYTES),
    ArgDef("a_zero", BYTES, optional=True, doc="of a's type: one value, [m], or [..., m, 1]"),
    ArgDef("b_zero", BYTES, optional=True, doc="of b's type: one value, [n], or [..., 1, n]"),
)


def _zero_shape(inputs: Types, form: Product, which: int) -> tuple[int, ...] | None:
    """The shape in which zero point `which` broadcasts to its operand (vectors as matrices). None where absent."""
    zero, operand = optional(inputs, 2 + which), present(inputs, which)
    if zero is None:
        return None
    where = slot(_INTEGER_ARGS, 2 + which)
    require(zero.dtype is operand.dtype, "element types differ", operand.dtype, zero.dtype, where)
    extent = form.m if which == 0 else form.n
    if zero.size == 1 and zero.rank <= max(1, operand.rank):
        return (1,)
    if zero.rank == 1:
        require(zero.shape == (extent,), "wrong shape", f"[1] or [{extent}]", list(zero.shape), where)
        return (extent, 1) if which == 0 else (1, extent)
    wanted = (*operand.shape[:-2], *((extent, 1) if which == 0 else (1, extent)))
    require(zero.shape == wanted, "wrong shape", list(wanted), list(zero.shape), where)
    return wanted


def _integer_infer(inputs: Types, attrs: Attrs) -> Outputs:
    form = _form_of(inputs, attrs)
    for which in range(2):
        _zero_shape(inputs, form, which)
    return (TensorType(DType.I32, form.shape),)


def _integer_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    a, b = present(inputs, 0), present(inputs, 1)
    types = [None if v is None else TensorType(DType.U8, tuple(v.shape)) for v in inputs]
    form = matmul_form(_array_type(a), _array_type(b), attrs)
    sides = []
    for which, values in enumerate((a, b)):
        shape, zero = _zero_shape(types, form, which), optional(inputs, 2 + which)
        wide = to_f64(values)
        if shape is not None and zero is not None:
            column = (-1, 1) if which else (1, -1)
            matrix = wide.reshape(column) if values.ndim == 1 else wide
            wide = (matrix - to_f64(zero).reshape(shape)).reshape(values.shape)
        sides.append(wide)
    return (_as_i32(np.asarray(_multiply(sides[0], sides[1], form))),)


def _integer_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    form = _form_of(inputs, attrs)
    zeros = sum(prod(k.shape) for i, k in enumerate(inputs[:2]) if k is not None and optional(inputs, 2 + i))
    return 2 * outputs[0].size * form.k + zeros


_TRANS = (
    attr("trans_a", False, "a's last two axes are swapped in memory"),
    attr("trans_b", False, "b's last two axes are swapped in memory"),
)

OPS: tuple[OpDef, ...] = (
    OpDef(
        "matmul",
        Family.MATMUL,
        "a x b with NumPy's batching; i8 and u8 (also mixed) accumulate in i32, wider integers modulo 2^width.",
        _MATMUL_ARGS,
        _TRANS,
        _matmul_infer,
        _matmul_reference,
        _matmul_flops,
    ),
    OpDef(
        "gemm",
        Family.MATMUL,
        "alpha * a x b + beta * c; without c where beta is 0.",
        _GEMM_ARGS,
        (attr("alpha", 1.0), attr("beta", 1.0), *_TRANS),
        _gemm_infer,
        _gemm_reference,
        _gemm_flops,
    ),
    OpDef(
        "matmul_integer",
        Family.MATMUL,
        "(a - a_zero) x (b - b_zero) in i32.",
        _INTEGER_ARGS,
        (),
        _integer_infer,
        _integer_reference,
        _integer_flops,
    ),
)
