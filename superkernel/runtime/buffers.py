"""Memory of the caller's own that launches read and write in place: of bound kernels, and of `out=`.

Invariant: what a launch writes (outputs, states) overlaps nothing else that it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import type_of_array
from superkernel.runtime.inputs import converted, is_torch

Array = NDArray[Any]


def checked_inputs(types: Mapping[str, TensorType], given: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays to bind, one per input. Raises InputError with all problems."""
    return converted("input", types, given, partial(_buffer, writes=False))


def checked_outputs(types: Mapping[str, TensorType], given: Mapping[str, Any] | None) -> dict[str, Array]:
    """The arrays to bind, one per output; new ones, 64-byte aligned, where none is given. Raises InputError with all
    problems, MachineError."""
    if not isinstance(given, Mapping | None):
        raise InputError("outputs are not a mapping", expected="{name: array}", found=type(given).__name__)
    given = given or {}
    hint = f"the outputs are {', '.join(types)}"
    raise_all(InputError, [Violation(f"unknown output {name!r}", hint=hint) for name in given if name not in types])
    asked = {name: kind for name, kind in types.items() if name in given}
    arrays = converted("output", asked, given, partial(_buffer, writes=True))
    return {name: arrays[name] if name in arrays else _new_array(kind) for name, kind in types.items()}


def outputs_in(types: Mapping[str, TensorType], out: Any) -> dict[str, Array]:
    """The memory that `out=` gives: an array for a single output, a tuple or list of one per output, or a mapping by
    name; new arrays for outputs that it leaves out. Raises InputError, MachineError."""
    if isinstance(out, Mapping):
        return checked_outputs(types, out)
    listed = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(listed) != len(types):
        expected = f"{len(types)} ({', '.join(types)})"
        raise InputError("not an array per output", location="out", expected=expected, found=str(len(listed)))
    return checked_outputs(types, dict(zip(types, listed, strict=True)))


def put_results(results: Mapping[str, Array], out: Any) -> Any:
    """`out` with the results in it, which lie elsewhere. Raises InputError."""
    for name, array in outputs_in({name: type_of_array(array) for name, array in results.items()}, out).items():
        array[...] = results[name]
    return out


def check_aliasing(inputs: Mapping[str, Array], outputs: Mapping[str, Array], states: Mapping[str, Array]) -> None:
    """Raises InputError where an array that a launch writes shares memory with another that it uses."""
    named = [
        *((f"input {name!r}", array, False) for name, array in inputs.items()),
        *((f"output {name!r}", array, True) for name, array in outputs.items()),
        *((f"state {name!r}", array, True) for name, array in states.items()),
    ]
    # Dense arrays: sorted by address, neighbours tell, but for arrays inside a long one, which `reach` remembers.
    spans = sorted(
        ((start := a.__array_interface__["data"][0], start + a.nbytes, label, w) for label, a, w in named if a.nbytes),
        key=lambda span: span[:2],
    )
    wrong: list[Violation] = []
    reach: tuple[int, str] = (0, "")  # the furthest end so far, and whose
    reach_written: tuple[int, str] = (0, "")
    for start, end, label, written in spans:
        other_end, other = reach if written else reach_written
        if start < other_end:
            hint = "give an array of its own"
            wrong.append(Violation("shares memory with what a launch writes", f"{other} and {label}", hint=hint))
        reach = max(reach, (end, label))
        if written:
            reach_written = max(reach_written, (end, label))
    raise_all(InputError, wrong)


def _buffer(value: Any, kind: TensorType, *, writes: bool) -> Array:
    """`value` as it is, where a launch can use its memory. Raises InputError without location."""
    array = value if isinstance(value, np.ndarray) else _shared(value)
    if array is None or isinstance(array, np.ma.MaskedArray):
        hint = "an array, or what shares its memory by __dlpack__ or __array_interface__"
        raise InputError("no memory to bind", expected=str(kind), found=type(value).__name__, hint=hint)
    if array.dtype != kind.dtype.numpy or array.shape != kind.shape:
        raise InputError("wrong type", expected=str(kind), found=f"{array.dtype}{list(array.shape)}")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise InputError("not dense", expected="C order, aligned", found=f"strides {array.strides}")
    if writes and not array.flags.writeable:
        raise InputError("read-only", expected="a writeable array")
    return array


def _shared(value: Any) -> Array | None:
    """An array on the memory of a foreign tensor; None where it has none to share."""
    if isinstance(value, np.generic):
        return None
    try:
        if hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if is_torch(value):
            from superkernel.frontends.torch import types

            types.require_no_derivative(value)
            types.require_memory(value, "")
            if value.is_neg():
                raise InputError("its memory holds the negated elements", hint="call .resolve_neg() on it")
            if types.is_unknown_to_numpy(value) and value.is_contiguous():
                return types.tensor_array(value, "")
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else None
    except InputError:
        raise
    except Exception as error:  # whatever the foreign object's own code raises
        found = f"{type(error).__name__}: {error}"
        hint = "call .detach() on it" if getattr(value, "requires_grad", False) else "it must be in CPU memory"
        raise InputError("cannot be read as an array", found=found, hint=hint) from error


def _new_array(kind: TensorType) -> Array:
    return _core.alloc_aligned(kind.nbytes).view(kind.dtype.numpy).reshape(kind.shape)
