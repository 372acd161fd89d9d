"""`superkernel.jit`: a Python function over arrays, traced once per types and shapes of its arguments.

Model: a call's arguments, containers opened, are arrays, which become inputs, and everything else, which the function
sees as it is. The function is run with handles in the arrays' places and builds a graph; its kernel is kept with the
arguments' structure, types, shapes and other values as the key. What the function does beside computing happens when
it is traced, arrays that it finds outside of its arguments become constants.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial, update_wrapper
from os import PathLike
from typing import Any, overload

import numpy as np

from superkernel.adaptors.kept import Kept
from superkernel.api import compile as compile_graph
from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SuperKernelError
from superkernel.core.option import HOST
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.runtime.kernel import Kernel
from superkernel.target.base import Target


@overload
def jit(function: Callable[..., Any]) -> TracedFunction: ...
@overload
def jit(
    *,
    target: str | PathLike[str] | Target = ...,
    threads: int | None = ...,
    options: Options | Mapping[str, Any] | None = ...,
) -> Callable[[Callable[..., Any]], TracedFunction]: ...
@overload
def jit(
    function: Callable[..., Any],
    *,
    target: str | PathLike[str] | Target = ...,
    threads: int | None = ...,
    options: Options | Mapping[str, Any] | None = ...,
) -> TracedFunction: ...
def jit(
    function: Callable[..., Any] | None = None,
    *,
    target: str | PathLike[str] | Target = HOST,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
) -> Any:
    """A function over arrays as one that runs a kernel: a decorator, with or without arguments.

    function: of arrays (NumPy's, torch's, anything with `__dlpack__`), tuples, lists and mappings of them, and of other
        values, which are fixed in its kernel; these must be hashable. Inside, arrays are handles: operators of Python,
        NumPy's functions (`np.exp(x)`), methods of `x.builder` for every operator. It returns a handle, or a tuple,
        list or mapping of handles and other values.
    target, threads, options: as of `compile`.

    Calls raise what `compile` and kernels raise, InputError for values that are not hashable, and what the function
    raises."""
    if function is None:
        return partial(jit, target=target, threads=threads, options=options)
    return TracedFunction(function, target, threads, options)


class TracedFunction:
    """A function with its kernels. Several threads may call it."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[..., Any],
        target: str | PathLike[str] | Target,
        threads: int | None,
        options: Options | Mapping[str, Any] | None,
    ) -> None:
        if not callable(function):
            raise InputError("not a function", expected="of arrays", found=type(function).__name__)
        update_wrapper(self, function)
        try:
            self._function, self._signature = function, inspect.signature(function)
        except ValueError as error:
            hint = "call it in a function of your own"
            raise InputError("a function that does not say what it takes", found=str(error), hint=hint) from error
        self._compile = partial(compile_graph, target=target, threads=threads, options=options)
        self._kernels: Kept[tuple[Kernel, Any]] = Kept()

    def __reduce__(self) -> str:
        """As functions are pickled and copied: by name."""
        return str(getattr(self, "__qualname__", repr(self._function)))

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        if _has_handle((args, named)):  # called by a function that is traced: a part of it
            return self._function(*args, **named)
        arrays, kernel, results = self._found(args, named)
        computed = kernel(*arrays)
        return _closed(results, computed if isinstance(computed, tuple) else (computed,))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance is the first argument, fixed in the kernel."""
        return self if instance is None else partial(self, instance)

    def kernel(self, /, *args: Any, **named: Any) -> Kernel:
        """The kernel that a call with these arguments runs, to report, explain or save."""
        return self._found(args, named)[1]

    def graph(self, /, *args: Any, **named: Any) -> Graph:
        """The graph that the function builds of these arguments."""
        return self._traced(self._opened(args, named)[0])[0]

    def _found(self, args: Any, named: Any) -> tuple[list[Any], Kernel, Any]:
        given, arrays = self._opened(args, named)
        return arrays, *self._kernels.get(_key(given), partial(self._made, given))

    def _made(self, given: Any) -> tuple[Kernel, Any]:
        graph, results = self._traced(given)
        return self._compile(graph), results

    def _opened(self, args: Any, named: Any) -> tuple[Any, list[Any]]:
        """The arguments with `_Input`s in place of arrays, and the arrays."""
        bound = self._signature.bind(*args, **named)
        numpys_own = type(_innermost(self._function)).__module__ == np.__name__
        if not numpys_own:  # whose defaults are not always accepted
            bound.apply_defaults()
        arrays: dict[str, Any] = {}
        return _opened(dict(bound.arguments), "", arrays), list(arrays.values())

    def _traced(self, given: Any) -> tuple[Graph, Any]:
        """The graph, and the results with numbers of outputs in place of handles."""
        builder = GraphBuilder(getattr(self._function, "__name__", "function").strip("<>"))
        bound = inspect.BoundArguments(self._signature, OrderedDict(_with_handles(given, builder)))
        outputs: list[Tensor] = []
        results = _numbered(self._function(*bound.args, **bound.kwargs), outputs)
        if not outputs:
            hint = "what is not computed from its arrays needs no kernel"
            raise InputError("the function returns nothing that it computes", location=builder.name, hint=hint)
        for tensor in outputs:
            builder.output(builder.apply("identity", (tensor,), stem="output")[0])
        return builder.graph(), results


def _innermost(function: Any) -> Any:
    """What a partial application, perhaps of another one, calls in the end."""
    return _innermost(function.func) if isinstance(function, partial) else function


class _Input:
    """An array among the arguments: its name as an input, type and shape. Raises InputError."""

    def __init__(self, name: str, array: Any) -> None:
        try:
            self.name, self.dtype, self.shape = name, DType.of(_dtype(array)), tuple(map(int, array.shape))
        except SuperKernelError as error:
            raise InputError(violations=[v.within(f"argument {name!r}") for v in error.violations]) from error


class _Output(int):
    """The number of an output in the place where the function returns it."""


def _dtype(array: Any) -> Any:
    kind = array.dtype
    return str(kind).removeprefix("torch.") if type(kind).__module__ == "torch" else kind


def _is_array(value: Any) -> bool:
    is_memory = hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    return is_memory and not isinstance(value, type) and hasattr(value, "shape") and hasattr(value, "dtype")


def _opened(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    if _is_array(value):
        while name in arrays:  # "x_0" and the first of "x"
            name += "_"
        arrays[name] = value
        return _Input(name, value)
    inner = f"{name}_" if name else ""
    if isinstance(value, Mapping):
        return {key: _opened(item, f"{inner}{key}", arrays) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", range(len(value)))
        items = [_opened(item, f"{inner}{i}", arrays) for i, item in zip(names, value, strict=True)]
        return _sequence(value, items)
    return value


def _sequence(like: Any, items: Iterable[Any]) -> Any:
    """A list, a tuple or a named tuple, as the other one is."""
    if isinstance(like, list):
        return list(items)
    return type(like)(*items) if hasattr(like, "_fields") else tuple(items)


def _has_handle(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_handle, value.values()))
    return any(map(_has_handle, value)) if isinstance(value, (tuple, list)) else isinstance(value, Tensor)


def _key(given: Any) -> Any:
    """What a kernel is found by. Raises InputError."""
    if isinstance(given, _Input):
        return _Input, given.dtype, given.shape
    if isinstance(given, dict):
        return dict, tuple((key, _key(item)) for key, item in given.items())
    if isinstance(given, (tuple, list)):
        return type(given), tuple(map(_key, given))
    try:
        hash(given)
    except TypeError as error:
        hint = "give an array, or what is hashable: a number, a text, a frozen dataclass"
        raise InputError("an argument that is fixed must be hashable", found=type(given).__name__, hint=hint) from error
    return type(given), float.hex(given) if isinstance(given, float) else given  # zeros have signs


def _with_handles(given: Any, builder: GraphBuilder) -> Any:
    if isinstance(given, _Input):
        return builder.input(given.name, given.shape, given.dtype)
    if isinstance(given, dict):
        return {key: _with_handles(item, builder) for key, item in given.items()}
    if isinstance(given, (tuple, list)):
        return _sequence(given, (_with_handles(item, builder) for item in given))
    return given


def _numbered(value: Any, outputs: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        outputs.append(value)
        return _Output(len(outputs) - 1)
    if isinstance(value, Mapping):
        return {key: _numbered(item, outputs) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return _sequence(value, [_numbered(item, outputs) for item in value])
    return value.copy() if isinstance(value, np.ndarray) else value


def _closed(results: Any, computed: tuple[Any, ...]) -> Any:
    if isinstance(results, _Output):
        return computed[results]
    if isinstance(results, dict):
        return {key: _closed(item, computed) for key, item in results.items()}
    if isinstance(results, (tuple, list)):
        return _sequence(results, (_closed(item, computed) for item in results))
    return results.copy() if isinstance(results, np.ndarray) else results
