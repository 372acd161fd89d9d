"""NumPy's functions on handles: `np.exp(x)`, `np.sum(x, axis=1)`, as operators of the table.

Ufuncs are operators by their names; of the other functions those are here that one operator, or a few, express. The
arguments of NumPy that ask for another memory or another element type (`out`, `where`, `dtype`, ...) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import pi, prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from superkernel.builder.einsum import einsum
from superkernel.builder.logarithms import logarithm
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, UnsupportedError
from superkernel.ops.table import op_table

_FINFO: Any = ml_dtypes.finfo  # NumPy's, and bf16's too; it carries no types
Handle: TypeAlias = Any
"""A `Tensor`, whose file imports this one."""

_ALIASES = {
    np.subtract: "sub",
    np.multiply: "mul",
    np.negative: "neg",
    np.positive: "identity",
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
    op, composed = _ufuncs().get(ufunc), _COMPOSED.get(ufunc)
    if not (op or composed) or method != "__call__" or named:
        found = f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method}({', '.join(named)})"
        raise _unsupported(found)
    tensor = _tensor_among(inputs)
    if composed:
        return composed(tensor, *inputs)
    return _apply(tensor, _LOGICAL.get(ufunc, op) if tensor.dtype is DType.BOOL else op, *inputs)


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
    hint = "// rounds down, x.builder.div toward zero; .astype() makes floats of integers"
    return _apply(_float("/", tensor, hint), "div", a, b)


def floor_quotient(tensor: Handle, a: Any, b: Any) -> Handle:
    """a // b, of which `tensor` is one, rounded down; of floats with the exact remainder, as Python and NumPy do it; an
    integer divisor 0 gives 0."""
    rest = _apply(tensor, "mod", a, b, fmod=True)
    if not _is_tensor(b):
        b = tensor.builder.constant(b, tensor.dtype if isinstance(b, (int, float)) else None)
    is_below = _apply(tensor, "logical_and", rest != 0, _apply(tensor, "logical_xor", rest < 0, b < 0))
    if not tensor.dtype.is_float:
        down = _apply(tensor, "div", a, b)
        return _apply(tensor, "where", is_below, down - 1, down) if tensor.dtype.is_signed else down
    whole = _apply(tensor, "round", _apply(tensor, "div", _apply(tensor, "sub", a, rest), b))
    is_defined = b != 0.0
    return _apply(tensor, "where", is_defined, _apply(tensor, "where", is_below, whole - 1.0, whole), a / b)


def power(tensor: Handle, a: Any, b: Any) -> Handle:
    """a ** b, of which `tensor` is one. Raises GraphError where they are of two types, which NumPy would make one, and
    on negative numbers as exponents of integers."""
    types = {DType.of(v.dtype) for v in (a, b) if hasattr(v, "dtype") and not isinstance(v, float)}
    if len(types) > 1:
        found, hint = ", ".join(sorted(map(str, types))), "say which with .astype(); x.builder.pow takes two"
        raise GraphError("** of two element types", location=f"value {tensor.name!r}", found=found, hint=hint)
    if not tensor.dtype.is_float and isinstance(b, int) and b < 0:
        hint = ".astype() makes floats of integers"
        raise GraphError("a negative power of integers", location=f"value {tensor.name!r}", found=str(b), hint=hint)
    return _apply(tensor, "pow", a, b)


def _finite(tensor: Handle, a: Handle) -> Handle:
    return _apply(a, "logical_not", _apply(a, "logical_or", _apply(a, "isnan", a), _apply(a, "isinf", a)))


def _logarithm(base: float) -> Callable[..., Handle]:
    return lambda tensor, a: logarithm(_Writer(a), _float("log", a, ".astype() makes floats of integers"), base)


def _scaled(factor: float) -> Callable[..., Handle]:
    return lambda tensor, a: _float("an angle", tensor, ".astype() makes floats of integers") * factor


def _numbered(op: str) -> Callable[..., Handle]:
    """The greater or lesser of two, of which what is no number is none."""

    def chosen(tensor: Handle, a: Any, b: Any) -> Handle:
        best, pair = _apply(tensor, op, a, b), [_beside(v, tensor) for v in (a, b)]
        for one, other in (pair, pair[::-1]) if tensor.dtype.is_float else ():
            best = _apply(tensor, "where", _apply(one, "isnan", one), other, best)
        return best

    return chosen


_COMPOSED: Mapping[Any, Callable[..., Handle]] = {
    np.log2: _logarithm(2.0),
    np.log10: _logarithm(10.0),
    np.exp2: lambda tensor, a: 2.0 ** _float("exp2", tensor, ".astype() makes floats of integers"),
    np.degrees: _scaled(180 / pi),
    np.rad2deg: _scaled(180 / pi),
    np.radians: _scaled(pi / 180),
    np.deg2rad: _scaled(pi / 180),
    np.fmax: _numbered("maximum"),
    np.fmin: _numbered("minimum"),
    np.true_divide: quotient,
    np.floor_divide: floor_quotient,
    np.power: power,
    np.fabs: lambda tensor, a: _apply(_float("fabs", tensor, "np.abs takes integers"), "abs", a),
    np.fmod: lambda tensor, a, b: _apply(tensor, "mod", a, b, fmod=True),
    np.isfinite: _finite,
}


def _apply(tensor: Handle, op: str | None, *operands: Any, **attrs: object) -> Handle:
    return tensor.builder.apply(op, operands, attrs)[0]


def _float(what: str, tensor: Handle, hint: str) -> Handle:
    """`tensor`. Raises GraphError where it is not of floats."""
    if not tensor.dtype.is_float:
        place, found = f"value {tensor.name!r}", str(tensor.dtype)
        raise GraphError(f"{what} is of floats", location=place, expected="floats", found=found, hint=hint)
    return tensor


def _unsupported(found: str) -> UnsupportedError:
    names = ", ".join(sorted({f.__name__ for f in (*_ufuncs(), *_COMPOSED, *_FUNCTIONS)}))
    hint = f"there are {names}; every operator of docs/operators.md is a method of x.builder"
    return UnsupportedError("NumPy's function has no operator", found=found, hint=hint)


def _is_tensor(value: Any) -> bool:
    return type(value).__name__ == "Tensor" and hasattr(value, "builder")


def _tensor_among(values: Sequence[Any]) -> Handle:
    return next(v for v in values if _is_tensor(v))


def _handle(value: Any, tensor: Handle) -> Handle:
    """What stands beside a handle as one, of the type that it has as an array."""
    return value if _is_tensor(value) else tensor.builder.constant(np.asarray(value))


def _beside(value: Any, tensor: Handle) -> Handle:
    """As `_handle`, but numbers are of the handle's type."""
    return tensor.builder.constant(value, tensor.dtype) if isinstance(value, (int, float)) else _handle(value, tensor)


def _axes(axis: Any) -> tuple[int, ...]:
    return () if axis is None else tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


def _places(axis: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the start. Raises GraphError."""
    axes = _axes(axis)
    wrong = [i for i in axes if not -rank <= i < rank]
    if wrong or len({i % rank for i in axes}) < len(axes):
        found = ", ".join(map(str, wrong or axes))
        raise GraphError("not axes of an array", expected=f"different ones within -{rank}..{rank - 1}", found=found)
    return tuple(int(i) % rank for i in axes)


def _only_place(axis: Any, rank: int) -> int:
    """An axis counted from the start. Raises GraphError."""
    if not isinstance(axis, (int, np.integer)):
        raise GraphError("not an axis", expected="an integer", found=repr(axis))
    return _places(axis, rank)[0]


def _reduction(op: str) -> Callable[..., Handle]:
    def reduce(a: Handle, axis: Any = None, *, keepdims: bool = False) -> Handle:
        return reduced(op, a, axis, keepdims)

    return reduce


def _summable(a: Handle) -> Handle:
    """In the element type in which NumPy adds and multiplies: floats' own, else 64 bits."""
    if a.dtype.is_float:
        return a
    return a.astype(DType.I64 if a.dtype.is_signed or a.dtype is DType.BOOL else DType.U64)


def reduced(op: str, a: Handle, axis: Any, keepdims: bool) -> Handle:
    """A reduction in the element type that NumPy gives it: sums and products of integers and truth values are of 64
    bits, means of them f64. Raises GraphError, also where the greatest or least of nothing is asked for."""
    if op == "reduce_mean" and not a.dtype.is_float:
        a = a.astype(DType.F64)
    elif op in ("reduce_sum", "reduce_prod"):
        a = _summable(a)
    if axis is not None and not _axes(axis):
        return a
    bytes_ = a.astype(DType.U8) if a.dtype is DType.BOOL else a  # of truth values there are no kernels
    result = _apply(a, op, bytes_, axes=_axes(axis), keepdims=bool(keepdims)).astype(a.dtype)
    if not a.size and result.size and op in ("reduce_max", "reduce_min"):
        raise GraphError("no element to choose from", location=f"value {a.name!r}", found=str(a.type))
    return result


def _truth(op: str) -> Callable[..., Handle]:
    def reduce(a: Handle, axis: Any = None, *, keepdims: bool = False) -> Handle:
        is_true = a if a.dtype is DType.BOOL else a != 0
        if axis is not None and not _axes(axis):
            return is_true
        bytes_ = is_true.astype(DType.U8)
        return _apply(a, op, bytes_, axes=_axes(axis), keepdims=bool(keepdims)).astype(DType.BOOL)

    return reduce


def _variance(a: Handle, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Handle:
    a = a if a.dtype.is_float else a.astype(DType.F64)
    from_mean = a - reduced("reduce_mean", a, axis, True)
    count = prod(a.shape[i] for i in (range(a.rank) if axis is None else _places(axis, a.rank)))
    return reduced("reduce_sum", from_mean * from_mean, axis, keepdims) / float(max(count - ddof, 0))


def _deviation(a: Handle, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Handle:
    return _apply(a, "sqrt", _variance(a, axis, ddof=ddof, keepdims=keepdims))


def _norm(x: Handle, *, axis: Any = None, keepdims: bool = False) -> Handle:
    a = x if x.dtype.is_float else x.astype(DType.F64)
    if len(_axes(axis)) > 2:
        raise GraphError("a norm along more than two axes", found=str(axis))
    return _apply(a, "reduce_l2", a, axes=_axes(axis), keepdims=bool(keepdims))


def _average(a: Handle, axis: Any = None, weights: Any = None, *, keepdims: bool = False) -> Handle:
    if weights is None:
        return reduced("reduce_mean", a, axis, keepdims)
    tensor = _tensor_among((a, weights))
    a, weights = _handle(a, tensor), _handle(weights, tensor)
    if weights.rank == 1 < a.rank:
        place = _only_place(axis, a.rank)
        weights = weights.reshape(tuple(weights.size if i == place else 1 for i in range(a.rank)))
    whole = _apply(tensor, "expand", weights, shape=a.shape)
    return reduced("reduce_sum", a * weights, axis, keepdims) / reduced("reduce_sum", whole, axis, keepdims)


def _range(a: Handle, axis: Any = None, *, keepdims: bool = False) -> Handle:
    return reduced("reduce_max", a, axis, keepdims) - reduced("reduce_min", a, axis, keepdims)


def _known_sum(a: Handle, axis: Any = None, *, keepdims: bool = False) -> Handle:
    known = _apply(a, "where", _apply(a, "isnan", a), 0.0, a) if a.dtype.is_float else a
    return reduced("reduce_sum", known, axis, keepdims)


def _count(a: Handle, axis: Any = None, *, keepdims: bool = False) -> Handle:
    return reduced("reduce_sum", a if a.dtype is DType.BOOL else a != 0, axis, keepdims)


def _median(a: Handle, axis: int | None = None, *, keepdims: bool = False) -> Handle:
    values = _flat(a if a.dtype.is_float else a.astype(DType.F64), axis)
    place = _only_place(0 if axis is None else axis, values.rank)
    extent, before = values.shape[place], (slice(None),) * place
    if not extent:
        raise GraphError("no element to choose from", location=f"value {a.name!r}", found=str(a.type))
    middle = _sorted(0)(values, place)[(*before, slice((extent - 1) // 2, extent // 2 + 1))]
    found = reduced("reduce_mean", middle, place, True) if extent % 2 == 0 else middle
    unknown = _apply(values, "isnan", reduced("reduce_max", values, place, True))
    found = _apply(values, "where", unknown, float("nan"), found)
    if axis is None:
        return found.reshape((1,) * a.rank if keepdims else ())
    return found if keepdims else _without_axes(found, place)


def _close(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Handle:
    tensor = _tensor_among((a, b))
    tensor = tensor if tensor.dtype.is_float else tensor.astype(DType.F64)
    one, other = (v if v.dtype.is_float else v.astype(DType.F64) for v in (_beside(v, tensor) for v in (a, b)))
    distance = _apply(tensor, "abs", _apply(tensor, "sub", one, other))
    near = distance <= _apply(tensor, "abs", other) * rtol + atol
    close = _apply(tensor, "equal", one, other) | (near & _finite(tensor, other))
    if equal_nan:
        close = close | (_apply(one, "isnan", one) & _apply(other, "isnan", other))
    return close


def _numbers(
    x: Handle, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Handle:
    del copy
    if not x.dtype.is_float:
        return x
    largest = float(_FINFO(x.dtype.numpy).max)
    found = _apply(x, "where", _apply(x, "isnan", x), nan, x)
    for end, given, limit in ((np.inf, posinf, largest), (-np.inf, neginf, -largest)):
        found = _apply(x, "where", _apply(x, "equal", x, end), limit if given is None else given, found)
    return found


def _rolled(a: Handle, shift: int | Sequence[int], axis: Any = None) -> Handle:
    if axis is None:
        return _rolled(_flat(a, None), sum(_axes(shift)), 0).reshape(a.shape)
    axes, shifts = np.broadcast_arrays(_axes(axis), _axes(shift))
    for place, by in zip((_only_place(int(i), a.rank) for i in axes), shifts.tolist(), strict=True):
        cut = a.shape[place] - by % max(a.shape[place], 1)
        before = (slice(None),) * place
        if cut % max(a.shape[place], 1):
            a = _joined([a[(*before, slice(cut, None))], a[(*before, slice(None, cut))]], place)
    return a


def _place(op: str) -> Callable[..., Handle]:
    def place(a: Handle, axis: int | None = None, *, keepdims: bool = False) -> Handle:
        flat = _flat(a.astype(DType.U8) if a.dtype is DType.BOOL else a, axis)
        at = _only_place(0 if axis is None else axis, flat.rank)
        found = _apply(a, op, flat, axis=at, keepdims=bool(keepdims))
        return found.reshape((1,) * a.rank) if axis is None and keepdims else found

    return place


def _flat(a: Handle, axis: int | None) -> Handle:
    return a.reshape((a.size,)) if axis is None else a


def _running_sum(a: Handle, axis: int | None = None) -> Handle:
    flat = _flat(_summable(a), axis)
    return _apply(a, "cumsum", flat, axis=_only_place(0 if axis is None else axis, flat.rank))


def _sorted(output: int) -> Callable[..., Handle]:
    """Of the elements and their places in order, the one or the other; of equal ones the first is first."""

    def sort(a: Handle, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None) -> Handle:
        del kind, stable
        flat, at = _flat(a, axis), -1 if axis is None else axis
        place = _only_place(at, flat.rank)
        return a.builder.apply("topk", (flat,), {"k": flat.shape[place], "axis": place, "largest": False})[output]

    return sort


def _joined(parts: Sequence[Any], axis: int | None = 0) -> Handle:
    tensor = _tensor_among(parts)
    if axis is None:
        parts = [_flat(_handle(p, tensor), None) for p in parts]
    return _apply(tensor, "concat", *parts, axis=0 if axis is None else axis)


def _stacked(parts: Sequence[Any], axis: int = 0) -> Handle:
    tensor = _tensor_among(parts)
    handles = [_handle(p, tensor) for p in parts]
    place = _only_place(axis, handles[0].rank + 1)
    return _joined([_with_axis(h, place) for h in handles], place)


def _stacked_rows(parts: Sequence[Any]) -> Handle:
    tensor = _tensor_among(parts)
    handles = [_handle(p, tensor) for p in parts]
    return _joined([p if p.rank > 1 else p.reshape((1, p.size)) for p in handles])


def _side_by_side(parts: Sequence[Any]) -> Handle:
    tensor = _tensor_among(parts)
    handles = [_handle(p, tensor) for p in parts]
    handles = [p if p.rank else p.reshape((1,)) for p in handles]
    return _joined(handles, 1 if handles[0].rank > 1 else 0)


def _with_axis(a: Handle, axis: int | Sequence[int]) -> Handle:
    added = _places(axis, a.rank + len(_axes(axis)))
    extents = iter(a.shape)
    return a.reshape(tuple(1 if i in added else next(extents) for i in range(a.rank + len(added))))


def _without_axes(a: Handle, axis: Any = None) -> Handle:
    axes = [i for i, n in enumerate(a.shape) if n == 1] if axis is None else _places(axis, a.rank)
    wrong = [i for i in axes if a.shape[i] != 1]
    if wrong:
        raise GraphError("an axis of more than one element", location=f"axis {wrong[0]}", found=str(a.type))
    return a.reshape(tuple(n for i, n in enumerate(a.shape) if i not in axes))


def _transposed(a: Handle, axes: Sequence[int] | None = None) -> Handle:
    return a.transpose() if axes is None else a.transpose(_places(tuple(axes), a.rank))


def _swapped(a: Handle, axis1: int, axis2: int) -> Handle:
    order = list(range(a.rank))
    one, other = _only_place(axis1, a.rank), _only_place(axis2, a.rank)
    order[one], order[other] = order[other], order[one]
    return a.transpose(order)


def _moved(a: Handle, source: Any, destination: Any) -> Handle:
    taken, put = _places(source, a.rank), _places(destination, a.rank)
    if len(taken) != len(put):
        raise GraphError("not as many places as axes", expected=str(len(taken)), found=str(len(put)))
    order = [i for i in range(a.rank) if i not in taken]
    for to, from_ in sorted(zip(put, taken, strict=True)):
        order.insert(to, from_)
    return a.transpose(order)


def _flipped(m: Handle, axis: Any = None) -> Handle:
    axes = range(m.rank) if axis is None else _places(axis, m.rank)
    return m[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(m.rank))]


def _chosen(condition: Any, x: Any, y: Any) -> Handle:
    tensor = _tensor_among((x, y, condition))
    if not _is_tensor(x) and not _is_tensor(y):
        kind = np.result_type(x, y)
        x, y = np.asarray(x, kind), np.asarray(y, kind)
    return _apply(tensor, "where", condition, x, y)


def _clipped(a: Any, a_min: Any = None, a_max: Any = None, **named: Any) -> Handle:
    low, high = named.pop("min", a_min), named.pop("max", a_max)
    if named:
        raise TypeError(f"unexpected {', '.join(named)}")
    a = _handle(a, _tensor_among((a, low, high)))
    for bound, op in ((low, "maximum"), (high, "minimum")):
        a = a if bound is None else _apply(a, op, a, bound)
    return a


def _broadcast(array: Handle, shape: int | Sequence[int]) -> Handle:
    result = _apply(array, "expand", array, shape=_axes(shape))
    if result.shape != _axes(shape):
        raise GraphError("does not broadcast", expected=str(_axes(shape)), found=str(array.type))
    return result


def _product(a: Any, b: Any) -> Handle:
    tensor = _tensor_among((a, b))
    one, other = _handle(a, tensor), _handle(b, tensor)
    if not one.rank or not other.rank:
        return one * other
    if one.rank > 1 and other.rank > 2:
        hint = "np.matmul, whose leading axes go together"
        raise UnsupportedError("numpy.dot of more than two axes", found=f"{one.type}, {other.type}", hint=hint)
    return one @ other


def _outer(a: Any, b: Any) -> Handle:
    tensor = _tensor_among((a, b))
    one, other = _handle(a, tensor), _handle(b, tensor)
    return one.reshape((one.size, 1)) * other.reshape((1, other.size))


class _Writer:
    """Of operators, for `einsum`."""

    where = "numpy.einsum"

    def __init__(self, tensor: Handle) -> None:
        self._tensor = tensor

    def emit(self, op: str, *inputs: Handle, **attrs: Any) -> Handle:
        return _apply(self._tensor, op, *inputs, **attrs)

    def reshape(self, x: Handle, shape: Sequence[int]) -> Handle:
        return x if x.shape == tuple(shape) else x.reshape(tuple(shape))

    def transpose(self, x: Handle, perm: Sequence[int]) -> Handle:
        return x if tuple(perm) == tuple(range(x.rank)) else x.transpose(tuple(perm))

    def expand(self, x: Handle, shape: Sequence[int]) -> Handle:
        return x if x.shape == tuple(shape) else self.emit("expand", x, shape=tuple(shape))


def _einstein_sum(subscripts: str, *operands: Any, optimize: Any = None) -> Handle:
    del optimize  # the order stands in the terms
    if not isinstance(subscripts, str):
        raise _unsupported("numpy.einsum of lists of places")
    tensor = _tensor_among(operands)
    handles = [_handle(x, tensor) for x in operands]
    try:
        np.einsum_path(subscripts, *(np.broadcast_to(np.float32(0), h.shape) for h in handles))
    except ValueError as error:
        raise GraphError("terms and operands do not fit", location="numpy.einsum", found=str(error)) from error
    return einsum(_Writer(tensor), subscripts, handles).astype(tensor.dtype)


def _rounded(a: Handle, decimals: int = 0) -> Handle:
    if not a.dtype.is_float:
        raise _unsupported(f"numpy.round of {a.dtype}")
    if decimals < 0:
        return _apply(a, "round", a / 10.0**-decimals) * 10.0**-decimals
    return _apply(a, "round", a * 10.0**decimals) / 10.0**decimals if decimals else _apply(a, "round", a)


def _taken(a: Any, indices: Any, axis: int | None = None) -> Handle:
    tensor = _tensor_among((a, indices))
    flat = _flat(a if _is_tensor(a) else tensor.builder.constant(a), axis)
    place = _only_place(0 if axis is None else axis, flat.rank)
    if not _is_tensor(indices):
        indices, extent = np.asarray(indices, np.int64), flat.shape[place]
        if not ((indices >= -extent) & (indices < extent)).all():
            raise GraphError("index out of range", location=f"axis {place}", expected=f"-{extent}..{extent - 1}")
    return _apply(tensor, "gather", flat, indices, axis=place)


def _taken_along(arr: Any, indices: Any, axis: int = -1) -> Handle:
    place = _only_place(axis, arr.ndim)
    return _apply(_tensor_among((arr, indices)), "gather_elements", arr, indices, axis=place)


def _repeated(a: Handle, repeats: int, axis: int | None = None) -> Handle:
    flat = _flat(a, axis)
    place = _only_place(0 if axis is None else axis, flat.rank)
    return _taken(flat, np.repeat(np.arange(flat.shape[place]), repeats), place)


def _tiled(A: Handle, reps: int | Sequence[int]) -> Handle:
    counts = _axes(reps)
    a = A.reshape((1,) * (len(counts) - A.rank) + A.shape)
    return _apply(a, "tile", a, repeats=(1,) * (a.rank - len(counts)) + counts)


def _padded(array: Handle, pad_width: Any, mode: str = "constant", *, constant_values: float = 0) -> Handle:
    given = np.asarray(pad_width, np.int64)
    if (given < 0).any() or (array.rank == 0 and given.size):
        raise GraphError("not widths of padding", expected=f"none below 0, of {array.rank} axes", found=str(pad_width))
    widths = np.broadcast_to(given, (array.rank, 2))
    attrs = {"pads": widths.T.reshape(-1).tolist(), "mode": mode, "value": float(constant_values)}
    return array.builder.apply("pad", (array,), attrs)[0]


def _parts(ary: Handle, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Handle]:
    place = _only_place(axis, ary.rank)
    extent, cuts = ary.shape[place], indices_or_sections
    if isinstance(cuts, (int, np.integer)):
        if cuts < 1 or extent % cuts:
            raise GraphError("not equal parts", location=f"axis {place}", expected=f"a divisor of {extent}", found=cuts)
        cuts = range(extent // int(cuts), extent, extent // int(cuts)) if extent else [0] * (int(cuts) - 1)
    ends = [None, *map(int, cuts), None]
    return [ary[(slice(None),) * place + (slice(*two),)] for two in pairwise(ends)]


def _differences(a: Handle, *, axis: int = -1) -> Handle:
    place = _only_place(axis, a.rank)
    before = (slice(None),) * place
    after, front = a[(*before, slice(1, None))], a[(*before, slice(None, -1))]
    return after ^ front if a.dtype is DType.BOOL else after - front


def _triangle(upper: bool) -> Callable[..., Handle]:
    return lambda m, k=0: _apply(m, "trilu", m, upper=upper, k=int(k))


def _filled(a: Handle, fill_value: Any) -> Any:
    return np.full(a.shape, fill_value, a.dtype.numpy)


_FUNCTIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    np.sum: _reduction("reduce_sum"),
    np.prod: _reduction("reduce_prod"),
    np.mean: _reduction("reduce_mean"),
    np.max: _reduction("reduce_max"),
    np.amax: _reduction("reduce_max"),
    np.min: _reduction("reduce_min"),
    np.amin: _reduction("reduce_min"),
    np.any: _truth("reduce_max"),
    np.all: _truth("reduce_min"),
    np.var: _variance,
    np.std: _deviation,
    np.linalg.norm: _norm,
    np.average: _average,
    np.median: _median,
    np.ptp: _range,
    np.nansum: _known_sum,
    np.count_nonzero: _count,
    np.nan_to_num: _numbers,
    np.isclose: _close,
    np.allclose: lambda *given, **named: _truth("reduce_min")(_close(*given, **named)),
    np.fix: lambda x: _apply(x, "trunc", x) if x.dtype.is_float else x,
    np.roll: _rolled,
    np.argmax: _place("argmax"),
    np.argmin: _place("argmin"),
    np.cumsum: _running_sum,
    np.sort: _sorted(0),
    np.argsort: _sorted(1),
    np.diff: _differences,
    np.reshape: lambda a, shape: a.reshape(shape),
    np.ravel: lambda a: _flat(a, None),
    np.transpose: _transposed,
    np.swapaxes: _swapped,
    np.moveaxis: _moved,
    np.expand_dims: _with_axis,
    np.squeeze: _without_axes,
    np.flip: _flipped,
    np.flipud: lambda m: _flipped(m, 0),
    np.fliplr: lambda m: _flipped(m, 1),
    np.concatenate: _joined,
    np.stack: _stacked,
    np.vstack: _stacked_rows,
    np.hstack: _side_by_side,
    np.split: _parts,
    np.tile: _tiled,
    np.repeat: _repeated,
    np.pad: _padded,
    np.take: _taken,
    np.take_along_axis: _taken_along,
    np.triu: _triangle(True),
    np.tril: _triangle(False),
    np.where: _chosen,
    np.clip: _clipped,
    np.broadcast_to: _broadcast,
    np.dot: _product,
    np.outer: _outer,
    np.einsum: _einstein_sum,
    np.round: _rounded,
    np.copy: lambda a: a,
    np.zeros_like: lambda a: _filled(a, 0),
    np.ones_like: lambda a: _filled(a, 1),
    np.full_like: _filled,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.rank,
    np.size: lambda a: a.size,
}
