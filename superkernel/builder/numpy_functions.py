"""NumPy's functions on handles: `np.exp(x)`, `np.sum(x, axis=1)`, as operators of the table.

Ufuncs are operators by their names; of the other functions those are here that one operator, or a few, express. The
arguments of NumPy that ask for another memory or another element type (`out`, `where`, `dtype`, ...) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, UnsupportedError
from superkernel.ops.table import op_table

Handle: TypeAlias = Any
"""A `Tensor`, whose file imports this one."""

_ALIASES = {
    np.subtract: "sub",
    np.multiply: "mul",
    np.negative: "neg",
    np.fabs: "abs",
    np.rint: "round",
    np.left_shift: "shift_left",
    np.right_shift: "shift_right",
}
_LOGICAL = {np.bitwise_and: "logical_and", np.bitwise_or: "logical_or", np.bitwise_xor: "logical_xor",
            np.invert: "logical_not"}  # fmt: skip


@cache
def _ufuncs() -> Mapping[Any, str]:
    """Ufunc -> operator."""
    same = {f: name for name in op_table() if isinstance(f := getattr(np, name, None), np.ufunc)}
    return {**same, **_ALIASES}


def apply_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Handle:
    """What a ufunc is on operands of which one is a handle. Raises UnsupportedError, and what the operator raises."""
    op = _ufuncs().get(ufunc)
    if (op is None and ufunc not in _QUOTIENTS) or method != "__call__" or named:
        found = f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method}({', '.join(named)})"
        raise _unsupported(found)
    tensor = next(t for t in inputs if _is_tensor(t))
    if ufunc in _QUOTIENTS:
        return _QUOTIENTS[ufunc](tensor, *inputs)
    if tensor.dtype is DType.BOOL:
        op = _LOGICAL.get(ufunc, op)
    return tensor.builder.apply(op, tuple(inputs))[0]


def apply_function(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What a function of NumPy is on arguments among which is a handle. Raises UnsupportedError, and what operators
    raise."""
    found = _FUNCTIONS.get(function)
    if found is None:
        raise _unsupported(f"numpy.{function.__name__}")
    try:
        return found(*args, **named)
    except TypeError as error:  # an argument that it does not have
        raise _unsupported(f"numpy.{function.__name__}: {error}") from error


def quotient(tensor: Handle, a: Any, b: Any) -> Handle:
    """a / b, of which `tensor` is one. Raises GraphError on integers, whose quotients are not integers."""
    if not tensor.dtype.is_float:
        hint = "// rounds down, x.builder.div toward zero; .astype() makes floats of integers"
        found = str(tensor.dtype)
        raise GraphError("/ is of floats", location=f"value {tensor.name!r}", expected="floats", found=found, hint=hint)
    return tensor.builder.apply("div", (a, b))[0]


def floor_quotient(tensor: Handle, a: Any, b: Any) -> Handle:
    """a // b, of which `tensor` is one, rounded down; of floats with the exact remainder, as Python and NumPy do it; an
    integer divisor 0 gives 0."""

    def apply(op: str, *operands: Any, **attrs: object) -> Handle:
        return tensor.builder.apply(op, operands, attrs)[0]

    if not tensor.dtype.is_float:
        return apply("div", apply("sub", a, apply("mod", a, b)), b)
    if not _is_tensor(b):
        b = tensor.builder.constant(b, tensor.dtype if isinstance(b, (int, float)) else None)
    rest = apply("mod", a, b, fmod=True)
    whole = apply("round", apply("div", apply("sub", a, rest), b))
    is_below = apply("logical_and", rest != 0.0, apply("logical_xor", rest < 0.0, b < 0.0))
    return apply("where", b == 0.0, apply("div", a, b), apply("where", is_below, whole - 1.0, whole))


_QUOTIENTS = {np.true_divide: quotient, np.floor_divide: floor_quotient}


def _unsupported(found: str) -> UnsupportedError:
    names = ", ".join(sorted({f.__name__ for f in (*_ufuncs(), *_QUOTIENTS, *_FUNCTIONS)}))
    hint = f"there are {names}; every operator of docs/operators.md is a method of x.builder"
    return UnsupportedError("NumPy's function has no operator", found=found, hint=hint)


def _is_tensor(value: Any) -> bool:
    return type(value).__name__ == "Tensor" and hasattr(value, "builder")


def _axes(axis: Any) -> tuple[int, ...]:
    return () if axis is None else tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


def _reduction(op: str) -> Callable[..., Handle]:
    def reduce(a: Handle, axis: Any = None, *, keepdims: bool = False) -> Handle:
        attrs = {"axes": _axes(axis), "keepdims": bool(keepdims)}
        return a.builder.apply(op, (a,), attrs)[0]

    return reduce


def _place(op: str) -> Callable[..., Handle]:
    def place(a: Handle, axis: int | None = None, *, keepdims: bool = False) -> Handle:
        flat = a.reshape(-1) if axis is None else a
        attrs = {"axis": 0 if axis is None else axis, "keepdims": bool(keepdims)}
        return a.builder.apply(op, (flat,), attrs)[0]

    return place


def _joined(parts: Sequence[Any], axis: int = 0) -> Handle:
    tensor = next(t for t in parts if _is_tensor(t))
    return tensor.builder.apply("concat", tuple(parts), {"axis": axis})[0]


def _stacked(parts: Sequence[Any], axis: int = 0) -> Handle:
    return _joined([_with_axis(p, axis) for p in parts], axis)


def _with_axis(a: Any, axis: int) -> Any:
    shape = list(a.shape)
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 1)
    return a.reshape(tuple(shape))


def _without_axes(a: Handle, axis: Any = None) -> Handle:
    axes = [i for i, n in enumerate(a.shape) if n == 1] if axis is None else [i % a.rank for i in _axes(axis)]
    return a.reshape(tuple(n for i, n in enumerate(a.shape) if i not in axes))


def _transposed(a: Handle, axes: Sequence[int] | None = None) -> Handle:
    return a.transpose(*([] if axes is None else [i % a.rank for i in axes]))


def _swapped(a: Handle, axis1: int, axis2: int) -> Handle:
    order = list(range(a.rank))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return a.transpose(*order)


def _chosen(condition: Any, x: Any, y: Any) -> Handle:
    tensor = next(t for t in (x, y, condition) if _is_tensor(t))
    return tensor.builder.apply("where", (condition, x, y))[0]


def _clipped(a: Handle, a_min: Any = None, a_max: Any = None) -> Handle:
    for bound, op in ((a_min, "maximum"), (a_max, "minimum")):
        a = a if bound is None else a.builder.apply(op, (a, bound))[0]
    return a


def _broadcast(array: Handle, shape: int | Sequence[int]) -> Handle:
    return array.builder.apply("expand", (array,), {"shape": _axes(shape)})[0]


def _filled(value: float) -> Callable[..., Any]:
    return lambda a: np.full(a.shape, value, a.dtype.numpy)


_FUNCTIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    np.sum: _reduction("reduce_sum"),
    np.prod: _reduction("reduce_prod"),
    np.mean: _reduction("reduce_mean"),
    np.max: _reduction("reduce_max"),
    np.amax: _reduction("reduce_max"),
    np.min: _reduction("reduce_min"),
    np.amin: _reduction("reduce_min"),
    np.argmax: _place("argmax"),
    np.argmin: _place("argmin"),
    np.reshape: lambda a, shape: a.reshape(shape),
    np.transpose: _transposed,
    np.swapaxes: _swapped,
    np.expand_dims: _with_axis,
    np.squeeze: _without_axes,
    np.concatenate: _joined,
    np.stack: _stacked,
    np.where: _chosen,
    np.clip: _clipped,
    np.broadcast_to: _broadcast,
    np.dot: lambda a, b: a @ b,
    np.round: lambda a: a.builder.apply("round", (a,))[0],
    np.zeros_like: _filled(0),
    np.ones_like: _filled(1),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.rank,
}
