"""Sources whose sizes are named: what a graph is for given sizes, and how the shapes of its inputs follow from them.

An ONNX model declares its symbolic dimensions, a torch program with dynamic shapes has symbols for them. A function of
the sizes is asked at two points per dimension: the extent of every axis must grow by the same amount with each step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.core.option import did_you_mean
from superkernel.frontends import load_graph
from superkernel.frontends.dynamic_axes import Axis, DynamicInput, Ranges
from superkernel.frontends.torch import is_torch_source, load_torch_for_sizes
from superkernel.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class DynamicSource:
    """A graph for each choice of sizes."""

    ranges: Ranges
    inputs: Mapping[str, DynamicInput]
    load: Callable[[Mapping[str, int]], Graph]
    """The graph for sizes by dimension. Raises as `load_graph` does."""


def dynamic_source(
    source: object,
    ranges: Ranges,
    *,
    constants: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dynamic_shapes: object = None,
) -> DynamicSource:
    """`source`: a path to an .onnx or .pt2 file, an `onnx.ModelProto` or its bytes, a torch module or exported program,
    or a function that takes sizes by keyword and returns any source of a graph. Raises InputError (dimensions that it
    does not have, or that no input tells), and what `load_graph` raises."""
    is_torch = is_torch_source(source) or (isinstance(source, (str, Path)) and Path(source).suffix == ".pt2")
    for name, given in (("example_inputs", example_inputs), ("dynamic_shapes", dynamic_shapes)):
        if given is not None and not is_torch:
            raise InputError(f"{name} only apply to torch modules and programs", location=name)
    if constants and is_torch:
        raise InputError("constants only apply to ONNX models", hint="make them buffers of the module")
    is_proto = type(source).__name__ == "ModelProto" and type(source).__module__.startswith("onnx")
    if is_torch:
        inputs, load = load_torch_for_sizes(
            source, ranges, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes
        )
        found = DynamicSource(ranges, inputs, load)
    elif is_proto or isinstance(source, (str, Path, bytes)):
        found = _of_onnx(source, ranges, constants)
    elif callable(source):
        if constants:
            raise InputError("constants only apply to ONNX models", hint="the function may make them constants itself")
        found = _of_function(source, ranges)
    else:
        expected = "an ONNX model, a torch module or program, or a function of the sizes that returns a graph"
        raise InputError("not a source with named sizes", expected=expected, found=type(source).__name__)
    told = {
        name for kind in found.inputs.values() for axis in kind.axes if len(axis.factors) == 1 for name in axis.factors
    }
    untold = [name for name, (low, high) in ranges.items() if low < high and name not in told]
    what = "no input's extent tells the size"
    raise_all(InputError, [Violation(what, f"dimension {name!r}", hint="fix it: (n, n)") for name in untold])
    return found


def _of_onnx(source: Any, ranges: Ranges, constants: Mapping[str, Any] | None) -> DynamicSource:
    from superkernel.frontends.onnx import declared_inputs, load_onnx, own_model

    model = own_model(source)
    declared = {name: kind for name, kind in declared_inputs(model).items() if name not in (constants or {})}
    names = {d for _, shape in declared.values() for d in shape if isinstance(d, str)}
    wrong = [
        Violation(f"the model has no dimension {n!r}", expected=", ".join(sorted(names)), hint=did_you_mean([n], names))
        for n in ranges
        if n not in names
    ]
    wrong += [
        Violation("a dimension without a range", f"dimension {n!r}", "(least, largest)", "none")
        for n in sorted(names - ranges.keys())
    ]
    raise_all(InputError, wrong)
    axes = {
        name: DynamicInput(dtype, tuple(Axis(0, {d: 1}) if isinstance(d, str) else Axis(d, {}) for d in shape))
        for name, (dtype, shape) in declared.items()
    }
    read: dict[str, NDArray[Any]] = {}
    return DynamicSource(ranges, axes, lambda sizes: load_onnx(model, dims=sizes, constants=constants, read=read))


def _of_function(function: Callable[..., object], ranges: Ranges) -> DynamicSource:
    _check_parameters(function, ranges)

    def load(sizes: Mapping[str, int]) -> Graph:
        return load_graph(function(**sizes))

    least = {name: low for name, (low, _) in ranges.items()}
    first = load(least)
    steps = {name: load({**least, name: low + 1}) for name, (low, high) in ranges.items() if low < high}
    inputs = {}
    for name, kind in first.inputs.items():
        for dimension, other in steps.items():
            there = other.inputs.get(name)
            if there is None or there.dtype is not kind.dtype or there.rank != kind.rank:
                found = f"{there} for {dimension}={least[dimension] + 1}"
                raise InputError("the input's type changes", location=f"input {name!r}", expected=kind, found=found)
        axes = []
        for axis, extent in enumerate(kind.shape):
            grown = {d: g.inputs[name].shape[axis] - extent for d, g in steps.items()}
            factors = {d: growth for d, growth in grown.items() if growth}
            axes.append(Axis(extent - sum(f * least[d] for d, f in factors.items()), factors))
        inputs[name] = DynamicInput(kind.dtype, tuple(axes))
    return DynamicSource(ranges, inputs, load)


def _check_parameters(function: Callable[..., object], ranges: Ranges) -> None:
    """Raises InputError where the function does not take the dimensions by keyword. What has no signature may."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**dict.fromkeys(ranges, 0))
    except TypeError as error:
        what = "a function that does not take the dimensions by keyword"
        expected = f"parameters {', '.join(map(str, ranges)) or 'none'}"
        raise InputError(what, location="source", expected=expected, found=f"{signature}: {error}") from error


def sizes_of(source: DynamicSource, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The size of every dimension that the shapes of inputs tell. Raises InputError with all that contradicts."""
    sizes = {name: low for name, (low, high) in source.ranges.items() if low == high}
    wrong: list[Violation] = []
    for name, axis, extent, where in _axes(source, shapes, wrong):
        (factor,) = axis.factors.values()
        size, rest = divmod(extent - axis.offset, factor)
        low, high = source.ranges[name]
        if rest:
            wrong.append(Violation("not an extent of this form", where, str(axis), str(extent)))
        elif not low <= size <= high:
            wrong.append(Violation(f"dimension {name!r} out of its range", where, f"{low} to {high}", str(size)))
        elif sizes.setdefault(name, size) != size:
            wrong.append(Violation(f"two sizes of dimension {name!r}", where, str(sizes[name]), str(size)))
    raise_all(InputError, wrong)
    return sizes


def _axes(
    source: DynamicSource, shapes: Mapping[str, tuple[int, ...]], wrong: list[Violation]
) -> Iterator[tuple[str, Axis, int, str]]:
    """Every axis that one dimension decides: the dimension, the axis, its extent, its place."""
    for given, shape in shapes.items():
        kind = source.inputs[given]
        if len(shape) != len(kind.axes):
            wrong.append(Violation("wrong shape", f"input {given!r}", str(kind), str(list(shape))))
            continue
        for index, (axis, extent) in enumerate(zip(kind.axes, shape, strict=True)):
            if len(axis.factors) == 1:
                yield next(iter(axis.factors)), axis, extent, f"input {given!r}, axis {index}"
