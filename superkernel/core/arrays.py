"""Constant data: from what a user gives to dense arrays that nobody writes to any more.

Model: `constant_array` gives a C-ordered, read-only array in the machine's byte order, of a supported element type.
What would lose something (masks, imaginary parts, fractions, numbers beyond the range of integers) is refused. Rounding
to a float is not: it is what an element type asks for.

Invariant: memory that somebody may still write to is copied, or made read-only, unless the caller has promised
otherwise.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SuperKernelError

_HINTS = {
    "c": "real and imaginary parts are two tensors",
    "V": "each field is a tensor of its own",
    "O": "numbers of one type: np.array(values, dtype)",
    "M": "take the difference to some time, in a unit, as a number",
    "m": "divide it by a unit",
    "f": "convert it with .astype('float64')",
}
_NUMBERS = "fiub"

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_SAMPLES = 256
INTERNED_BYTES_MIN = 1 << 14
_interned: weakref.WeakValueDictionary[tuple[object, ...], NDArray[Any]] = weakref.WeakValueDictionary()
_known: weakref.WeakValueDictionary[int, NDArray[Any]] = weakref.WeakValueDictionary()  # the same, by identity
_Remembered = dict[int, tuple[weakref.ref[NDArray[Any]], bytes]]
"""Something about arrays that are immutable, by id, gone with the array."""
_digests: _Remembered = {}
_samples: _Remembered = {}

COPIED_BYTES_MAX = 256 << 20  # of a graph's constants; with more, only small ones are copied
SMALL_BYTES_MAX = 1 << 20


def are_many(values: Iterable[Any]) -> bool:
    """True of arrays that take too much memory to hold them twice; what nobody can write to does not count."""
    arrays = [v for v in values if isinstance(v, np.ndarray) and not _is_frozen(v)]
    return sum(a.nbytes for a in arrays) > COPIED_BYTES_MAX


def constant_array(value: Any, dtype: DType | None = None, *, copy: bool = True, freeze: bool = False) -> NDArray[Any]:
    """`value` as constant data, of type `dtype` where that is given. A read-only array whose memory nobody else may
    write to either is used where it lies; without `copy` any other is, too, where it needs no conversion. With `freeze`
    a large one is made read-only instead of copied. Raises InputError without location."""
    array = _as_array(value)
    kind = _kind(array, dtype, value)
    if array.dtype == kind.numpy and array.flags.c_contiguous and array.flags.aligned:
        large = freeze and array.nbytes > SMALL_BYTES_MAX
        if not copy or _is_frozen(array) or (large and _froze(array)):
            return _read_only(array)
    elif array.dtype != kind.numpy:
        _check_values(array, kind)
    result = np.empty(array.shape, kind.numpy)
    with np.errstate(all="ignore"):
        result[...] = array
    result.flags.writeable = False
    return result


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself where it is read-only already: who knows it by identity goes on to."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _as_array(value: Any) -> NDArray[Any]:
    """Anything array-like as an array, subclasses of arrays as plain ones."""
    if type(value) is np.ndarray:
        return value
    if np.ma.is_masked(value):
        raise InputError("a masked array", hint="say what masked elements are with .filled(value)")
    if hasattr(value, "toarray") and not isinstance(value, np.ndarray):
        raise InputError("not a dense array", found=type(value).__name__, hint="call .toarray()")
    try:
        return np.asarray(value)
    except Exception as error:  # whatever the foreign object's own code raises
        form = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InputError(
            "cannot be read as an array",
            found=f"{form}: {error}"[:200],
            hint="give a rectangular NumPy array of numbers",
        ) from error


def _kind(array: NDArray[Any], dtype: DType | None, value: Any) -> DType:
    """The element type that the data is to have."""
    source = array.dtype
    is_number = source.kind in _NUMBERS or source.type.__module__ == ml_dtypes.bfloat16.__module__
    if dtype is not None and is_number:
        return dtype
    try:
        found = DType.of(source)
    except SuperKernelError as error:
        expected, hint = error.violations[0].expected, _HINTS.get(source.kind, "")
        if isinstance(value, int):
            wanted = str(dtype or DType.I64)
            raise InputError("a number does not fit the element type", expected=wanted, found=str(value)) from error
        if source.kind == "O" and array.ndim == 0:
            raise InputError("not an array of numbers", found=type(value).__name__) from error
        raise InputError("element type is not supported", expected=expected, found=str(source), hint=hint) from error
    return dtype or found


def _check_values(array: NDArray[Any], kind: DType) -> None:
    """Raises InputError where a number is no element of an integer type, or no truth value."""
    if kind.is_float or array.dtype.newbyteorder("=") == kind.numpy:
        return
    with np.errstate(all="ignore"):
        kept = array.astype(kind.numpy).astype(array.dtype) == array
    if array.dtype.kind in "iu" and not kind.is_float and kind is not DType.BOOL:  # -1 comes back from u64, too
        low, high = kind.limits
        kept = (array >= low) & (array <= high)
    if not kept.all():
        misfit = array[~kept].flat[0]
        raise InputError("a number does not fit the element type", expected=str(kind), found=str(misfit))


def _froze(array: NDArray[Any]) -> bool:
    """Makes an array and all that it is a view of read-only; False, and no change, where it is a view of what is no
    array."""
    holders: list[NDArray[Any]] = []
    holder: Any = array
    while isinstance(holder, np.ndarray):
        holders.append(holder)
        holder = holder.base
    if holder is None:
        for found in holders:
            found.flags.writeable = False
    return holder is None


def _is_frozen(array: NDArray[Any]) -> bool:
    """True where neither the array nor one that it is a view of may be written to."""
    holder: Any = array
    while isinstance(holder, np.ndarray):
        if holder.flags.writeable:
            return False
        holder = holder.base
    try:
        return holder is None or memoryview(holder).readonly
    except TypeError:  # no buffer: whose memory it is has said that it is read-only
        return True


def same_contents(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays have the same type, shape and bytes; -0 is not 0, and a NaN is itself."""
    if one is other:
        return True
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left, right = np.ascontiguousarray(one), np.ascontiguousarray(other)
    return bool(_memcmp(left.ctypes.data, right.ctypes.data, left.nbytes) == 0)


def owners(arrays: Iterable[NDArray[Any]]) -> dict[Hashable, int]:
    """The memory that arrays lie in: by what has it, its bytes."""
    found = [array.base if isinstance(array.base, np.ndarray) else array for array in arrays]
    return {array.ctypes.data: array.nbytes for array in found}


def is_immutable(array: NDArray[Any]) -> bool:
    """Whether an array's contents will stay what they are: it and all that it is a view of is read-only, and in the end
    NumPy's own memory, or bytes. Others (a tensor's memory, a mapped file) may be written to by ways that are not seen
    here."""
    holder: Any = array
    while isinstance(holder, np.ndarray):
        if holder.flags.writeable:
            return False
        holder = holder.base
    return holder is None or isinstance(holder, bytes)


def interned(array: NDArray[Any]) -> NDArray[Any]:
    """An immutable array of the same contents that somebody has already, where one is known; else the array itself,
    known from now on if it is immutable. Small ones are not worth it."""
    if array.nbytes <= INTERNED_BYTES_MIN or _known.get(id(array)) is array:
        return array
    key = array.dtype, array.shape, samples(array)
    found = _interned.get(key)
    if found is not None and same_contents(found, array):
        return found
    if is_immutable(array):
        _interned[key] = _known[id(array)] = array
    return array


def samples(array: NDArray[Any]) -> bytes:
    """Some of an array's bytes, which tell it from most others of its type. Those of an immutable array are remembered
    as long as it lives."""
    return _remembered(_samples, array, _taken_samples)


def _taken_samples(array: NDArray[Any]) -> bytes:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat[:: max(1, len(flat) // _SAMPLES) | 1].tobytes()


def contents_digest(array: NDArray[Any]) -> bytes:
    """SHA-256 of an array's elements in C order. That of an immutable array is remembered as long as it lives."""
    return _remembered(_digests, array, _taken_digest)


def _taken_digest(array: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def _remembered(kept: _Remembered, array: NDArray[Any], taken: Callable[[NDArray[Any]], bytes]) -> bytes:
    at = id(array)
    known = kept.get(at)
    if known is not None and known[0]() is array:  # of one that is gone, where Ctrl-C came while it was taken out
        return known[1]
    found = taken(array)
    if is_immutable(array):
        kept[at] = weakref.ref(array, lambda _: kept.pop(at, None)), found
    return found


class NamedArrays(Mapping[str, NDArray[Any]]):
    """Live arrays by name: their contents may be written, the names stand. A deep copy is a snapshot."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return repr(self._arrays)
