"""What the rows of the operator table share: typed attribute access, shape checks with full errors, arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError
from superkernel.core.tensor import TensorType
from superkernel.ops.opdef import ArgDef, Array, AttrDef, AttrKind, Attrs, AttrValue, Types

Shape = tuple[int, ...]
_KINDS = {int: AttrKind.INT, float: AttrKind.FLOAT, bool: AttrKind.BOOL, str: AttrKind.STR, tuple: AttrKind.INTS}
Scalar = TypeVar("Scalar", int, float, bool, str)
Operand = TypeVar("Operand", TensorType, Array)
_BF16 = np.dtype(ml_dtypes.bfloat16)
_FINFO: Any = ml_dtypes.finfo  # NumPy's, and those of its other types too; it carries no types


# Attributes: the values are canonical (attributes.py), so a wrong type here is a slip in the table itself.


def get(attrs: Attrs, name: str, kind: type[Scalar]) -> Scalar:
    """An attribute that validation has made an int, a float, a bool or a text."""
    value = attrs[name]
    if kind is float and isinstance(value, int):
        value = float(value)
    assert isinstance(value, kind), (name, value)
    return value


def get_ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """An attribute that validation has made a tuple of ints."""
    value = attrs[name]
    assert isinstance(value, tuple), (name, value)
    return tuple(int(v) for v in value)


def get_floats(attrs: Attrs, name: str) -> tuple[float, ...]:
    """An attribute that validation has made a tuple of numbers."""
    value = attrs[name]
    assert isinstance(value, tuple), (name, value)
    return tuple(float(v) for v in value)


def attr(
    name: str, default: AttrValue | type[int] | type[tuple[int, ...]], doc: str = "", *, choices: tuple[str, ...] = ()
) -> AttrDef:
    """An attribute of the type of its default; a type in place of a default: it must be given. A tuple: of integers."""
    if isinstance(default, type):
        return AttrDef(name, _KINDS[default], doc=doc)
    return AttrDef(name, _KINDS[type(default)], default, doc, choices)


# Checks. Each raises GraphError without node location; the graph adds it.


def slot(args: Sequence[ArgDef], index: int) -> str:
    """How errors name input `index`."""
    return f"input {index} ({args[min(index, len(args) - 1)].name})"


def present(inputs: Sequence[Operand | None], index: int) -> Operand:
    """Input `index`, type or array, which `check_arguments` has found present."""
    found = inputs[index]
    assert found is not None
    return found


def optional(inputs: Sequence[Operand | None], index: int) -> Operand | None:
    """Input `index`, None where absent or not given."""
    return inputs[index] if index < len(inputs) else None


def require(condition: bool, message: str, expected: object, found: object, where: str = "", hint: str = "") -> None:
    """Raise GraphError unless `condition`."""
    if not condition:
        raise GraphError(message, location=where, expected=expected, found=found, hint=hint)


def require_rank(kind: TensorType, least: int, most: int | None, where: str) -> None:
    """`least` <= rank <= `most` (None: no upper bound)."""
    if least <= kind.rank and (most is None or kind.rank <= most):
        return  # said first: every node of a graph is asked, and texts take longer
    if most is None:
        require(False, "rank too small", f"rank >= {least}", kind, where)
    wanted = f"rank {least}" if least == most else f"rank {least} to {most}"
    require(False, "wrong rank", wanted, kind, where)


def require_shape(kind: TensorType, shape: Shape, where: str) -> None:
    """Raises GraphError, with both shapes, where a tensor's is not `shape`."""
    require(kind.shape == shape, "wrong shape", list(shape), list(kind.shape), where)


def require_same_dtype(inputs: Types, args: Sequence[ArgDef], first: int = 0) -> DType:
    """All present inputs from `first` on have one dtype, which is returned."""
    wanted = present(inputs, first).dtype
    for index, kind in enumerate(inputs):
        if index > first and kind is not None:
            where = slot(args, index)
            hint = "insert a cast"
            require(kind.dtype is wanted, "element types differ", wanted, kind.dtype, where, hint)
    return wanted


def axis_of(axis: int, rank: int, name: str = "axis") -> int:
    """`axis` counted from the front. Raises GraphError where it is out of range."""
    in_range = f"{-rank} to {rank - 1}" if rank else "no axis of a scalar"
    require(-rank <= axis < rank, f"{name} is out of range", in_range, axis)
    return axis % rank


def axes_of(axes: Sequence[int], rank: int, name: str = "axes") -> tuple[int, ...]:
    """Distinct axes counted from the front, in the given order."""
    found = tuple(axis_of(a, rank, name) for a in axes)
    require(len(set(found)) == len(found), f"{name} has a repeated axis", "distinct axes", list(axes))
    return found


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcast of the shapes. Raises GraphError naming all of them."""
    if shapes and all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        found = " and ".join(str(list(s)) for s in shapes)
        expected = "equal extents, or 1, counted from the last axis"
        raise GraphError("shapes do not broadcast", expected=expected, found=found) from error


def require_broadcast_to(kind: TensorType, shape: Shape, where: str) -> None:
    """`kind` broadcasts to exactly `shape`."""
    padded = (1,) * (len(shape) - kind.rank) + kind.shape
    if padded == shape:
        return
    fits = len(padded) == len(shape) and all(d in (1, e) for d, e in zip(padded, shape, strict=True))
    require(fits, "shape does not broadcast", f"broadcastable to {list(shape)}", list(kind.shape), where)


# Reference arithmetic.


def is_float(values: Array) -> bool:
    """True of every floating-point array, bf16 too (NumPy counts it as a void type)."""
    return values.dtype.kind == "f" or values.dtype == _BF16


def widen(values: Array) -> Array:
    """Floats as float64; integers and bools as they are."""
    return values.astype(np.float64) if is_float(values) and values.dtype != np.float64 else values


def to_f64(values: Array) -> Array:
    """Any array as float64."""
    return values if values.dtype == np.float64 else values.astype(np.float64)


def saturate(values: Array, dtype: DType) -> Array:
    """float64 `values` cut to whole numbers inside the range of integer `dtype`; NaN gives 0."""
    low, high = dtype.limits
    whole = np.trunc(np.where(np.isnan(values), 0.0, values))
    # float(high) may round up to 2**63 or 2**64, which the conversion cannot take: set those elements apart.
    above, below = whole >= float(high), whole <= float(low)
    inside = np.where(above | below, 0.0, whole).astype(dtype.numpy)
    result: Array = np.where(above, dtype.numpy.type(high), np.where(below, dtype.numpy.type(low), inside))
    return result


def small_elements(values: Array, dtype: DType, is_saturated: bool) -> Array:
    """Numbers as elements of a small type. Of a float, what it does not reach becomes its end, else infinity or NaN;
    NaN becomes 0 where it has none. Of an integer, floats are truncated and cut to its range, else numbers wrap."""
    if dtype.is_integer:
        if is_float(values):
            values = saturate(values, dtype if is_saturated else DType.I64)
        return values.astype(np.int8).astype(dtype.numpy)
    values = to_f64(values).astype(np.float32)
    ends = _FINFO(dtype.numpy)
    if is_saturated:
        values = np.clip(values, float(ends.min), float(ends.max))
    if dtype is DType.F8E8M0FNU:
        values = _nearest_power(values)
    elif dtype.bits < 8:
        values = np.where(np.isnan(values), np.copysign(0.0, values), values)
    return values.astype(dtype.numpy)


def _nearest_power(values: Array) -> Array:
    """Powers of two from 2^-127 on, halves to the greater one; NaN of what is not positive."""
    fractions, exponents = np.frexp(np.maximum(values, np.float32(2.0**-127)))
    powers: Array = np.ldexp(np.float32(1), exponents - 1 + (fractions >= 0.75))
    return np.where(np.isinf(values), values, np.where(values > 0, powers, np.float32(np.nan)))
