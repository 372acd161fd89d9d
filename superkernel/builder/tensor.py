"""Tensor handles of a GraphBuilder: `.shape`, `.dtype`, arithmetic, comparison, slicing.

Every operator of Python that has one meaning for arrays is one operator of the table. `==` of two handles stays
identity (they are dictionary keys, and looked for in lists), of a handle and a number or an array it compares elements;
`equal` and `not_equal` always do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.numpy_functions import apply_function, apply_ufunc, floor_quotient, power, quotient, reduced
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, InputError, UnsupportedError
from superkernel.core.tensor import TensorType

TensorLike: TypeAlias = "Tensor | bool | int | float | NDArray[Any]"
_Index: TypeAlias = int | slice | EllipsisType | None


@dataclass(slots=True, eq=False)
class Value:
    """What a handle stands for; `record` is the producing node, `data` a constant's contents, `initial` a state's."""

    name: str
    type: TensorType
    data: NDArray[Any] | None = None
    initial: NDArray[Any] | None = None
    named: bool = False
    record: Any = None


class Builder(Protocol):
    """What a handle needs of its builder (builder.GraphBuilder): operators by name."""

    def apply(
        self, op: str, inputs: Sequence[TensorLike | None], attrs: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, ...]:
        """One node; a handle per output. Raises as the operator's shape inference does."""


def _operator(op: str, *, swap: bool = False) -> Callable[[Tensor, TensorLike], Tensor]:
    """The method of an operator of Python that is one of the table; `swap`: of the reflected one."""

    def method(tensor: Tensor, other: TensorLike) -> Tensor:
        return tensor.builder.apply(op, (other, tensor) if swap else (tensor, other))[0]

    return method


def _composed(
    function: Callable[[Tensor, TensorLike, TensorLike], Tensor], *, swap: bool = False
) -> Callable[[Tensor, TensorLike], Tensor]:
    """As `_operator`, for what is more than an operator of the table."""

    def method(tensor: Tensor, other: TensorLike) -> Tensor:
        return function(tensor, other, tensor) if swap else function(tensor, tensor, other)

    return method


def _bitwise(word: str) -> Callable[[Tensor, TensorLike], Tensor]:
    """As `_operator`, by whether the tensor holds truth values."""

    def method(tensor: Tensor, other: TensorLike) -> Tensor:
        kind = "logical" if tensor.dtype is DType.BOOL else "bitwise"
        return tensor.builder.apply(f"{kind}_{word}", (tensor, other))[0]

    return method


def _comparison(op: str) -> Callable[[Tensor, object], Any]:
    """As `_operator` with numbers and arrays; all else is left to Python, which goes by identity."""
    compare: Callable[[Tensor, Any], Tensor] = _operator(op)

    def method(tensor: Tensor, other: object) -> Any:
        is_data = isinstance(other, (bool, int, float, np.ndarray, np.generic))
        return compare(tensor, other) if is_data else NotImplemented

    return method


def _function(name: str) -> Callable[..., Any]:
    """The method of arrays that is the function of NumPy of this name."""

    def method(tensor: Tensor, *args: Any, **named: Any) -> Any:
        return apply_function(getattr(np, name), (tensor, *args), named)

    return method


class Tensor:
    """A value of a graph under construction."""

    __slots__ = ("builder", "value")
    __array_priority__ = 1000  # array + Tensor asks the Tensor first

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder, self.value = builder, value

    @property
    def name(self) -> str:
        """The value's name in the graph."""
        return self.value.name

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self.value.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Static; () for a scalar."""
        return self.value.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.value.type.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions; `ndim`, as NumPy calls it, as well."""
        return len(self.value.type.shape)

    ndim = rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.value.type.size

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}: {self.type})"

    def __bool__(self) -> bool:
        raise InputError("a Tensor has no truth value while the graph is built", location=f"value {self.name!r}")

    def __float__(self) -> NoReturn:
        raise InputError("a Tensor is no number while the graph is built", location=f"value {self.name!r}")

    __int__ = __float__

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __len__(self) -> int:
        if not self.shape:
            raise InputError("a scalar has no length", location=f"value {self.name!r}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        """The rows along axis 0; without it Python would count indices up until one is out of range."""
        return (self[i] for i in range(len(self)))

    if not TYPE_CHECKING:  # for a type checker it would make a Tensor something that NumPy can compute with

        def __array__(self, *_: Any, **__: Any) -> NoReturn:
            hint = "give tensors one by one: concat(x, y), not concat([x, y]); index arrays by builder.gather(array, x)"
            raise InputError("a Tensor is not constant data", location=f"value {self.name!r}", hint=hint)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        """NumPy's ufuncs, also where an array stands on the left of an operator."""
        return apply_ufunc(ufunc, method, inputs, named)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """NumPy's other functions, as far as operators express them."""
        return apply_function(function, args, named)

    __add__, __radd__ = _operator("add"), _operator("add", swap=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swap=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swap=True)
    __truediv__, __rtruediv__ = _composed(quotient), _composed(quotient, swap=True)
    __floordiv__, __rfloordiv__ = _composed(floor_quotient), _composed(floor_quotient, swap=True)
    __pow__, __rpow__ = _composed(power), _composed(power, swap=True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", swap=True)
    __mod__, __rmod__ = _operator("mod"), _operator("mod", swap=True)
    __lshift__, __rlshift__ = _operator("shift_left"), _operator("shift_left", swap=True)
    __rshift__, __rrshift__ = _operator("shift_right"), _operator("shift_right", swap=True)
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("less", "less_equal", "greater", "greater_equal"))
    __eq__, __ne__ = _comparison("equal"), _comparison("not_equal")
    __hash__ = object.__hash__
    __and__, __or__, __xor__ = map(_bitwise, ("and", "or", "xor"))
    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Tensor:
        return self.builder.apply("logical_not" if self.dtype is DType.BOOL else "bitwise_not", (self,))[0]

    def __pos__(self) -> Tensor:
        return self

    def __neg__(self) -> Tensor:
        return self.builder.apply("neg", (self,))[0]

    def __abs__(self) -> Tensor:
        return self.builder.apply("abs", (self,))[0]

    def equal(self, other: TensorLike) -> Tensor:
        """Elementwise ==."""
        return self.builder.apply("equal", (self, other))[0]

    def not_equal(self, other: TensorLike) -> Tensor:
        """Elementwise !=."""
        return self.builder.apply("not_equal", (self, other))[0]

    def astype(self, dtype: object, copy: bool = True) -> Tensor:
        """Cast; the tensor itself where it already has the element type. Texts are names of `DType`: "i8" has 8 bits.
        `copy` says nothing here."""
        del copy
        kind = DType.of(dtype)
        return self if kind is self.dtype else self.builder.apply("cast", (self,), {"dtype": kind})[0]

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """`t.reshape(2, -1)` or `t.reshape((2, -1))`."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
        return self.builder.apply("reshape", (self,), {"shape": tuple(sizes)})[0]

    def transpose(self, *perm: int | Sequence[int]) -> Tensor:
        """`t.transpose(1, 0)` or `t.transpose((1, 0))`: permutes the axes; reverses them without arguments."""
        order = perm[0] if len(perm) == 1 and not isinstance(perm[0], int) else perm or tuple(range(self.rank))[::-1]
        return self.builder.apply("transpose", (self,), {"perm": order})[0]

    @property
    def T(self) -> Tensor:
        """The last two axes swapped; `mT`, as NumPy calls it, as well."""
        if self.rank < 2:
            raise GraphError("needs two axes", location=f"value {self.name!r}", expected="rank >= 2", found=self.rank)
        axes = list(range(self.rank))
        axes[-2:] = axes[:-3:-1]
        return self.transpose(*axes)

    mT = T

    def sum(self, *axes: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Sum over `axes`, or `axis` as NumPy has it (all without either); of integers and truth values in 64 bits."""
        return self._reduced("sum", axes, axis, keepdims)

    def mean(self, *axes: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Mean, f64 of what are no floats; axes as of `sum`."""
        return self._reduced("mean", axes, axis, keepdims)

    def max(self, *axes: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Maximum; axes as of `sum`."""
        return self._reduced("max", axes, axis, keepdims)

    def min(self, *axes: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Minimum; axes as of `sum`."""
        return self._reduced("min", axes, axis, keepdims)

    def _reduced(self, kind: str, axes: Sequence[Any], axis: int | Sequence[int] | None, keepdims: bool) -> Tensor:
        if axes and axis is not None:
            raise InputError("axes given twice", location=f"value {self.name!r}", expected="axis or positions")
        chosen = axis if not axes else axes[0] if len(axes) == 1 else axes
        result: Tensor = reduced(f"reduce_{kind}", self, chosen, keepdims)
        return result

    prod, any, all, var, std = map(_function, ("prod", "any", "all", "var", "std"))
    argmax, argmin, argsort, cumsum = map(_function, ("argmax", "argmin", "argsort", "cumsum"))
    ravel, squeeze, swapaxes, copy = map(_function, ("ravel", "squeeze", "swapaxes", "copy"))
    clip, dot, repeat, round, take = map(_function, ("clip", "dot", "repeat", "round", "take"))
    flatten = ravel

    def __getitem__(self, index: Any) -> Tensor:
        """Basic NumPy indexing: integers, slices, Ellipsis and None; one integer Tensor gathers along axis 0."""
        if isinstance(index, Tensor) and index.dtype is DType.BOOL:
            what = "a mask as an index: how many elements it takes is data"
            hint = "np.where keeps the shape; b.nonzero finds places (docs/shapes.md#sizes-that-data-decides)"
            raise UnsupportedError(what, location=f"value {index.name!r}", hint=hint)
        if isinstance(index, Tensor):
            return self.builder.apply("gather", (self, index), {"axis": 0})[0]
        return _basic_index(self, index if isinstance(index, tuple) else (index,))

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        hint = "a new one has other elements: np.where, np.concatenate, x.builder.scatter_nd"
        raise InputError("a Tensor is not written to", location=f"value {self.name!r}", hint=hint)


def _basic_index(tensor: Tensor, index: tuple[_Index, ...]) -> Tensor:
    """One slice for all slices and integers, one reshape for dropped and added axes."""
    starts: list[int] = []
    ends: list[int] = []
    axes: list[int] = []
    steps: list[int] = []
    shape: list[int] = []
    axis = 0
    for item in _expand_ellipsis(tensor, index):
        if item is None:
            shape.append(1)
            continue
        extent = tensor.shape[axis]
        if isinstance(item, slice):
            start, stop, step = item.indices(extent)
            length = len(range(start, stop, step))
            if (start, stop, step) != (0, extent, 1):
                # A negative step that runs off the front ends at -1, which as an end means the last element: below
                # -extent it does not.
                starts, ends = [*starts, start], [*ends, stop if stop >= 0 else -extent - 1]
                axes, steps = [*axes, axis], [*steps, step]
            shape.append(length)
        else:
            at = int(item) + extent if item < 0 else int(item)
            if not 0 <= at < extent:
                raise GraphError(
                    "index out of range", location=f"axis {axis}", expected=f"-{extent}..{extent - 1}", found=item
                )
            starts, ends, axes, steps = [*starts, at], [*ends, at + 1], [*axes, axis], [*steps, 1]
        axis += 1
    result = tensor
    if axes:
        attrs = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
        result = tensor.builder.apply("slice", (tensor,), attrs)[0]
    return result if result.shape == tuple(shape) else result.reshape(shape)


def _expand_ellipsis(tensor: Tensor, index: tuple[_Index, ...]) -> list[int | slice | None]:
    for item in index:
        if not (item is None or item is ... or isinstance(item, (int, np.integer, slice))) or isinstance(item, bool):
            found, hint = type(item).__name__, "np.take takes arrays of indices, np.where one of truth values"
            raise InputError("not an index", expected="integers, slices, None, ...", found=found, hint=hint)
    places = [i for i, item in enumerate(index) if item is ...]
    used = sum(1 for item in index if item is not None and item is not ...)
    if len(places) > 1 or used > tensor.rank:
        raise GraphError(
            "too many indices", location=f"value {tensor.name!r}", expected=f"at most {tensor.rank}", found=used
        )
    at = places[0] if places else len(index)
    middle: list[int | slice | None] = [slice(None)] * (tensor.rank - used)
    before = [item for item in index[:at] if item is not ...]
    after = [item for item in index[at:] if item is not ...]
    return [*before, *middle, *after]
