"""From what a user passes to what a kernel reads: dense arrays of exactly the declared types.

Results are NumPy arrays, or tensors of torch where an input is one.

Accepted: NumPy arrays, anything with `__dlpack__`, `__array_interface__` or `__array__`, and (nested) Python numbers.
Arrays must have the declared dtype: a silent conversion would hide mistakes. Python numbers take the declared dtype
where the value allows it. An array that is not C-contiguous, or not in the machine's byte order, is copied; nothing
is ever written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SuperKernelError, Violation, raise_all
from superkernel.core.tensor import TensorType

Array = NDArray[Any]


def bind_arguments(types: Mapping[str, object], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and named arguments by input name, as a Python call would bind them. Raises InputError with all
    problems."""
    names = list(types)
    wrong: list[Violation] = []
    if len(args) > len(names):
        wrong.append(Violation("too many inputs", expected=f"{len(names)} ({', '.join(names)})", found=str(len(args))))
    bound: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if name not in types:
            wrong.append(Violation(f"unknown input {name!r}", hint=f"the inputs are {', '.join(names) or 'none'}"))
        elif name in bound:
            wrong.append(Violation("given twice, by position and by name", f"input {name!r}"))
        else:
            bound[name] = value
    wrong += [Violation("missing", f"input {name!r}", expected=str(types[name])) for name in names if name not in bound]
    raise_all(InputError, wrong)
    return bound


def inputs_given(
    inputs: Mapping[str, Any] | Sequence[Any] | None, named: Mapping[str, Any]
) -> Mapping[str, Any] | Sequence[Any] | None:
    """What the caller gave, in one argument or by keyword. Raises InputError where it is both."""
    if named and inputs is not None:
        hint = "one mapping with all of them, or all by keyword"
        raise InputError("inputs given twice, as an argument and by keyword", found=", ".join(named), hint=hint)
    return named or inputs


def inputs_listed(types: Mapping[str, object], inputs: Any) -> dict[str, Any]:
    """What was given as one argument, by input name. Raises InputError."""
    if inputs is None:
        inputs = {}
    if isinstance(inputs, Mapping):
        return bind_arguments(types, (), inputs)
    if isinstance(inputs, (np.ndarray, str, bytes)) or not isinstance(inputs, Sequence):
        raise InputError("inputs are not a mapping", expected="{name: array} or a list", found=type(inputs).__name__)
    return bind_arguments(types, inputs, {})


def shape_of(value: Any, kind: object, where: str) -> tuple[int, ...]:
    """The extents of an input, whatever it is. Raises InputError on what has none."""
    try:
        shape: tuple[Any, ...] = tuple(np.shape(value))
        if all(isinstance(extent, int) for extent in shape):
            return shape
        found = f"a shape {shape!r}"
    except Exception as error:  # a foreign object's own code
        found = f"{type(value).__name__}: {error}"
    raise InputError("not an array", location=where, expected=str(kind), found=found)


def as_inputs(types: Mapping[str, TensorType], given: Mapping[str, Any]) -> dict[str, Array]:
    """One dense array per input. Raises InputError with all problems."""
    return converted("input", types, given, as_dense)


def converted(
    what: str, types: Mapping[str, TensorType], given: Mapping[str, Any], convert: Callable[[Any, TensorType], Array]
) -> dict[str, Array]:
    """One array per name, made by `convert`, whose errors have no location. Raises InputError with all problems;
    `what` the names are of: inputs, outputs."""
    wrong: list[Violation] = []
    arrays: dict[str, Array] = {}
    for name, kind in types.items():
        try:
            arrays[name] = convert(given[name], kind)
        except SuperKernelError as error:
            wrong.append(replace(error.violations[0], location=f"{what} {name!r}"))
    raise_all(InputError, wrong)
    return arrays


def as_dense(value: Any, kind: TensorType) -> Array:
    """`value` as a C-contiguous array of exactly `kind`. Raises InputError without location."""
    array = value if isinstance(value, np.ndarray) else _foreign(value, kind)
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise InputError("a masked array", expected=str(kind), hint="say what masked elements are with .filled(value)")
    if array.shape != kind.shape:
        raise InputError("wrong shape", expected=str(kind), found=f"{array.dtype}{list(array.shape)}")
    want = kind.dtype.numpy
    if array.dtype != want:
        if array.dtype.newbyteorder("=") == want:
            return array.astype(want)
        raise InputError(
            "wrong element type",
            expected=str(kind),
            found=f"{array.dtype}{list(array.shape)}",
            hint=f"convert with .astype({str(want)!r}) if that is meant",
        )
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, order="C", copy=True).reshape(kind.shape)


def results_like(given: Sequence[Any], outputs: Sequence[Array]) -> list[Any]:
    """Outputs as tensors of torch, which share their memory, where one of the inputs is one; else as they are."""
    if not any(map(is_torch, given)):
        return list(outputs)
    from superkernel.frontends.torch.types import array_tensor

    return [array_tensor(array) for array in outputs]


def is_torch(value: Any) -> bool:
    """Whether it is a tensor of torch, or of a subclass."""
    return any(c.__name__ == "Tensor" and c.__module__ == "torch" for c in type(value).__mro__)


def _foreign(value: Any, kind: TensorType) -> Array:
    """An array of something that is not one. What the foreign object's own code raises becomes an InputError."""
    if is_torch(value):
        from superkernel.frontends.torch.types import require_no_derivative

        require_no_derivative(value)
    try:
        if isinstance(value, np.generic) or hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if is_torch(value):
            from superkernel.frontends.torch.types import is_unknown_to_numpy, require_memory, tensor_array

            if is_unknown_to_numpy(value):
                return tensor_array(value, "")
            require_memory(value, "")
            value = value.resolve_neg()  # DLPack does not know of views that negate
        has_array = hasattr(value, "__array__")
        is_known = kind.dtype.stored is kind.dtype.numpy  # to NumPy's reading of DLPack
        if hasattr(value, "__dlpack__") and (is_known or not has_array):
            return np.from_dlpack(value)
        if has_array:
            return np.asarray(value)
    except Exception as error:
        form, found = f"{type(value).__module__}.{type(value).__qualname__}", f"{type(error).__name__}: {error}"
        needs_detach = getattr(value, "requires_grad", False)
        hint = "call .detach() on it" if needs_detach else "it must be a tensor in CPU memory"
        raise InputError(
            f"the {form} cannot be read as an array", expected=str(kind), found=found, hint=hint
        ) from error
    return _numbers(value, kind)


def _numbers(value: Any, kind: TensorType) -> Array:
    """Python numbers, taken as the declared dtype where no value changes its meaning."""
    try:
        loose = np.asarray(value)
    except ValueError as error:
        raise InputError("not a rectangular array", expected=str(kind), found=type(value).__name__) from error
    ranks = {"b": 0, "u": 1, "i": 1, "f": 2}
    rank = ranks.get(loose.dtype.kind)
    want = 0 if kind.dtype is DType.BOOL else 1 if kind.dtype.is_integer else 2
    if loose.size == 0 and loose.shape == kind.shape:
        return np.empty(kind.shape, kind.dtype.numpy)
    if rank is None or rank > want or (want != 0 and rank == 0):
        raise InputError(
            "not numbers of the declared type", expected=str(kind), found=f"{type(value).__name__} of {loose.dtype}"
        )
    typed = loose.astype(kind.dtype.numpy)
    if kind.dtype.is_integer and not np.array_equal(typed, loose):
        misfit = loose[typed != loose].flat[0]
        raise InputError("a number does not fit the declared type", expected=str(kind), found=str(misfit))
    return typed
