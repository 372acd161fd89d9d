"""Buckets: kernels of larger sizes that run calls of smaller ones, where that is proved to change nothing.

Model: a dimension may have a list of sizes. A call whose sizes there is no kernel for is run by that of the least
listed sizes that hold them: inputs are padded behind the end of each axis, results are cut. Dimensions without a list,
and sizes beyond the last one listed, stay what they are. For every choice of sizes the graph is written, not compiled,
and held against the bucket's (`padding.proof`) before the first result is returned.

Padding holds zeros. Results do not hang on that: it keeps numbers in range for operators that would complain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import InternalError, MachineError, SuperKernelError, UnsupportedError, Violation
from superkernel.core.tensor import TensorType
from superkernel.frontends.dynamic import DynamicSource
from superkernel.ir.graph import Graph
from superkernel.padding.guards import Guards, guarded, places_of
from superkernel.padding.proof import proved
from superkernel.runtime.inputs import as_inputs, results_like
from superkernel.runtime.result import RunReport, RunResult

Array = NDArray[Any]
Sizes: TypeAlias = tuple[int, ...]
"""Of all dimensions, in their order."""
BucketSizes = Mapping[str, Sequence[int]]
"""Dimension -> rising sizes."""
FITS_MAX = 4096  # sizes of which the proof is kept; then anew


@dataclass(frozen=True, slots=True)
class Fit:
    """Sizes that a bucket was proved for: types of inputs, shapes of results, and how many elements count, by the input
    of the bucket's graph that says so."""

    inputs: Mapping[str, TensorType]
    outputs: tuple[tuple[int, ...], ...]
    counts: Mapping[str, int]


class Bucket:
    """The sizes that a kernel is compiled for, its graph as loaded, and what is needed to run smaller sizes in it.
    `least`: the smallest sizes that it is for. Raises UnsupportedError where padding may change results, MachineError
    without memory for its inputs; what a foreign function raises."""

    def __init__(self, source: DynamicSource, sizes: Sizes, least: Sizes, graph: Graph) -> None:
        if graph.extents:
            raise UnsupportedError(
                "buckets of a graph whose results' extents are data", location=f"graph {graph.name!r}"
            )
        self.sizes = sizes
        self._source = source
        self._graph = graph
        self.graph, self._asked = guarded(graph, *(self._samples(least) if least != sizes else ()))
        self._fits: dict[Sizes, Fit] = {}
        self._buffers = {name: _zeros(kind, name) for name, kind in self.graph.inputs.items()}
        self._filled: Sizes = ()  # what the buffers hold
        self._lock = Lock()  # of the buffers

    def _samples(self, least: Sizes) -> Iterator[Guards]:
        """What is guarded for the least sizes, which must be proved, and for others: of the least some values may be
        empty, and two dimensions the same. Sizes without a graph are none, nor are others without a proof: calls of
        them say so."""
        smallest = _loaded(self._source, least)
        if smallest is not None:
            yield self._proved(smallest, least)
        most = tuple(max(low, size - 1) for low, size in zip(least, self.sizes, strict=True))
        chosen = [most, *((*most[:axis], low, *most[axis + 1 :]) for axis, low in enumerate(least))]
        for sizes in dict.fromkeys(chosen):
            if sizes not in (least, self.sizes):
                with suppress(Exception):  # of a foreign function, for sizes that nobody asked for
                    yield self._proved(self._load(sizes), sizes)

    @property
    def is_guarded(self) -> bool:
        """Whether its graph has further inputs, so that no other call can use its kernel."""
        return bool(self._asked)

    @property
    def nbytes(self) -> int:
        """Of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def fit(self, sizes: Sizes) -> Fit:
        """How calls of these sizes are run. Raises UnsupportedError where padding may change results; what loading
        raises."""
        found = self._fits.get(sizes)
        if found is None:
            found = self._fit(sizes)
            self._fits = {**self._fits, sizes: found} if len(self._fits) < FITS_MAX else {sizes: found}
        return found

    def _fit(self, sizes: Sizes) -> Fit:
        graph = self._graph if sizes == self.sizes else self._load(sizes)
        guards = places_of(self._proved(graph, sizes))
        counts: dict[str, int] = {}
        wrong: list[Violation] = []
        for place, name in self._asked.items():
            count = guards[place].count if place in guards else self.graph.inputs[name].shape[0]
            if counts.setdefault(name, count) != count:
                expected = f"{counts[name]} elements that count"
                what = "axes that grow together for some sizes only"
                wrong.append(Violation(what, f"node {place[0]!r}", expected, str(count)))
        for place in guards:
            if place not in self._asked:
                wrong.append(Violation("an axis that is padded for some sizes only", f"node {place[0]!r}"))
        if wrong:
            raise self._refusal(wrong, sizes)
        return Fit(graph.inputs, tuple(graph.types[name].shape for name in graph.outputs), counts)

    def _load(self, sizes: Sizes) -> Graph:
        return _load(self._source, sizes)

    def _proved(self, graph: Graph, sizes: Sizes) -> Guards:
        try:
            return proved(graph, self._graph)
        except UnsupportedError as error:
            raise self._refusal(error.violations, sizes) from error

    def _refusal(self, violations: Sequence[Violation], sizes: Sizes) -> UnsupportedError:
        return _refusal(self._source, violations, sizes, self.sizes)

    def call(self, kernel: Callable[..., Any], fit: Fit, sizes: Sizes, given: Mapping[str, Any]) -> Any:
        """Results as the kernel of these sizes returns them. Raises as it does."""
        arrays = as_inputs(fit.inputs, given)
        with self._lock:
            results = kernel(*self._padded(fit, sizes, arrays).values())
        listed = [results] if len(fit.outputs) == 1 else results
        cut = results_like(list(given.values()), list(map(_cut, listed, fit.outputs)))
        return cut[0] if len(cut) == 1 else tuple(cut)

    def run(self, kernel: Any, fit: Fit, sizes: Sizes, given: Mapping[str, Any]) -> RunResult[RunReport]:
        """As `call`, by name."""
        arrays = as_inputs(fit.inputs, given)
        with self._lock:
            result: RunResult[RunReport] = kernel.run(self._padded(fit, sizes, arrays))
        cut = map(_cut, result.outputs.values(), fit.outputs)
        return replace(result, outputs=dict(zip(result.outputs, cut, strict=True)))

    def _padded(self, fit: Fit, sizes: Sizes, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The buffers, with the arrays in them."""
        if sizes != self._filled:
            self._filled = ()  # if this is interrupted, nobody knows what they hold
            for name, buffer in self._buffers.items():
                buffer[...] = 0
                if name in fit.counts:
                    buffer[: fit.counts[name]] = True
            self._filled = sizes
        for name, array in arrays.items():
            self._buffers[name][tuple(map(slice, array.shape))] = array
        return self._buffers


class Buckets:
    """All buckets of a source. `listed`: sizes by dimension, as checked. Raises UnsupportedError where padding a
    dimension may change results; what a foreign function raises. A dimension that cannot grow without another has no
    sample: calls tell."""

    def __init__(self, source: DynamicSource, listed: BucketSizes) -> None:
        self._source, self._listed = source, listed
        self._made: dict[Sizes, Bucket] = {}
        least = tuple(low for low, _ in source.ranges.values())
        for axis, (name, (low, _)) in enumerate(source.ranges.items()):
            larger = [size for size in listed.get(name, ()) if size > low]
            sample = (*least[:axis], *larger[:1], *least[axis + 1 :])
            graph = _loaded(source, sample) if larger else None
            if graph is not None:
                Bucket(source, sample, least, graph)

    def holding(self, sizes: Sizes) -> Sizes | None:
        """The sizes of the bucket for calls of given ones; None where no dimension has one."""
        found = [
            min((each for each in self._listed.get(name, ()) if each >= size), default=None)
            for name, size in zip(self._source.ranges, sizes, strict=True)
        ]
        if all(each is None for each in found):
            return None
        return tuple(size if each is None else each for size, each in zip(sizes, found, strict=True))

    def at(self, sizes: Sizes, asked: Sizes) -> Bucket:
        """The bucket of these sizes, for a call of `asked` ones. Raises as it does, UnsupportedError where only the
        call's own sizes have a graph, and what loading these raises."""
        found = self._made.get(sizes)
        if found is None:
            graph = self._graph(sizes, asked)
            found = self._made[sizes] = Bucket(self._source, sizes, self._least(sizes), graph)
        return found

    def _graph(self, sizes: Sizes, asked: Sizes) -> Graph:
        try:
            return _load(self._source, sizes)
        except SuperKernelError as error:
            if asked == sizes:
                raise
            _load(self._source, asked)
            raise _refusal(self._source, error.violations, asked, sizes) from error

    def _least(self, sizes: Sizes) -> Sizes:
        """The smallest sizes that a bucket is for."""
        found = []
        for (name, (low, _)), size in zip(self._source.ranges.items(), sizes, strict=True):
            listed = self._listed.get(name, ())
            smaller = [each for each in listed if each < size]
            found.append(size if size not in listed else max(low, smaller[-1] + 1) if smaller else low)
        return tuple(found)

    def forget(self, sizes: Sizes) -> None:
        """Let go of the bucket, whose kernel is gone."""
        self._made.pop(sizes, None)

    @property
    def nbytes(self) -> int:
        """Of the buffers of all buckets that there are."""
        return sum(bucket.nbytes for bucket in list(self._made.values()))


def _load(source: DynamicSource, sizes: Sizes) -> Graph:
    return source.load(dict(zip(source.ranges, sizes, strict=True)))


def _loaded(source: DynamicSource, sizes: Sizes) -> Graph | None:
    """The graph for sizes that nobody asked for; None where there is none."""
    try:
        return _load(source, sizes)
    except SuperKernelError:
        return None


def _refusal(source: DynamicSource, violations: Sequence[Violation], sizes: Sizes, larger: Sizes) -> UnsupportedError:
    dims = [dim for dim in zip(source.ranges, sizes, larger, strict=True) if dim[1] != dim[2]]
    names = " or ".join(repr(name) for name, _, _ in dims)
    padded = ", ".join(f"{name} {size} padded to {bucket}" for name, size, bucket in dims)
    hint = f"leave {names} out of buckets ({padded})"
    return UnsupportedError("padding may change results", violations=[replace(v, hint=hint) for v in violations])


def _zeros(kind: TensorType, name: str) -> Array:
    try:
        return np.zeros(kind.shape, kind.dtype.numpy)
    except MemoryError as error:
        what, where = "not enough memory for a padded input", f"input {name!r}"
        raise MachineError(what, location=where, found=str(kind), hint="a smaller bucket") from error


def _cut(array: Array, shape: tuple[int, ...]) -> Array:
    """The beginning of each axis, dense."""
    if array.ndim != len(shape):
        raise InternalError("a result of another rank", expected=list(shape), found=list(array.shape))
    return np.ascontiguousarray(array[tuple(map(slice, shape))]).reshape(shape)
