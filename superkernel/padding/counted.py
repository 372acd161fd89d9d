"""Graphs of which some sizes are data: written for the most that there can be, told how much counts.

Model: a *found size* is the extent of what an operator of `ops/counting.py` finds. A frontend writes the graph for any
choice of these sizes that somebody claims; the one for the largest is what is compiled. It is held against those for
some smaller choices (`proof.py`), for which the operator is claimed to find just as much: so each element that counts
is computed from what counts alone. Where that needs guards, how many elements count is `scale` times a found size and
`offset`, as it is for all choices that were tried, and at most the whole extent: the graph computes it. So it does for
extents of outputs, which it names.

What it does not say: that a choice that was not tried would not need another guard. Choices are picked so that sizes
are told apart, and differ in steps: one element, few, all but a few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.arrays import same_contents
from superkernel.core.dtypes import DType
from superkernel.core.errors import SuperKernelError, UnsupportedError, Violation
from superkernel.ir.graph import Graph, Node
from superkernel.padding.guards import Guard, Guards, Place, guarded, places_of
from superkernel.padding.proof import Numbers, are_alike, proved

Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Counted:
    """A graph for a choice of found sizes. `tables`: of each, the value that begins with how many were found, which is
    not there where no result needs it. `sizes`: that the graph was written for, which are smaller than those asked for
    where no more can be found. `branches`: which way was gone where a model asks, in order."""

    graph: Graph
    tables: tuple[str, ...]
    sizes: Sizes
    branches: tuple[bool, ...] = ()


Write: TypeAlias = Callable[[Sizes], Counted]
"""Writes the graph for sizes asked for."""


def counted(largest: Counted, write: Write) -> Graph:
    """The largest graph, with guards and the extents of its outputs. Raises UnsupportedError where its results may hang
    on what does not count."""
    samples, empty = list(_samples(largest, write)), list(_empty(largest, write))
    numbers: list[Numbers] = [{} for _ in range(len(samples) + len(empty))]
    guards = [proved(a.graph, largest.graph, empty=True, numbers=n) for a, n in zip(samples, numbers, strict=False)]
    places = [places_of(each) for each in guards]
    nothing = [_guards_of_nothing(*both, largest) for both in zip(empty, numbers[len(samples) :], strict=True)]
    usual = {place for each in places for place in each}
    further = [_by_node({place: guard for place, guard in each.items() if place not in usual}) for each in nothing]
    graph, asked = guarded(largest.graph, *guards, *further)
    found = _Extents(largest, [*samples, *empty], graph)
    for place, name in asked.items():
        extent = graph.inputs[name].shape[0]
        counts = [each[place].count if place in each else extent for each in places]
        others = [_count_of_nothing(place, extent, *both, largest) for both in zip(nothing, empty, strict=True)]
        found.guard(name, found.count([*counts, *others], extent, f"node {place[0]!r}"))
    for name in dict.fromkeys(name for each in numbers for name in each):
        constant = largest.graph.constants[name]
        if all(same_contents(each.get(name, constant), constant) for each in numbers):
            continue
        if not any(_are_nothing(each, largest) for each in (*samples, *empty)):
            raise UnsupportedError("a number that hangs on how much is found", location=f"constant {name!r}")
        found.number_of(name, [each.get(name) for each in numbers])
    for position, name in enumerate(largest.graph.outputs):
        shapes = [each.graph.types[each.graph.outputs[position]].shape for each in (*samples, *empty)]
        for axis, extent in enumerate(largest.graph.types[name].shape):
            if any(shape[axis] != extent for shape in shapes):
                count = found.count([shape[axis] for shape in shapes], extent, f"output {name!r}")
                found.output(name, axis, count)
    return found.graph()


def _samples(largest: Counted, write: Write) -> Iterable[Counted]:
    """Graphs for smaller choices of sizes, each once. Sizes found later may be of what was found before, or more."""
    most, count = largest.sizes, len(largest.sizes)
    behind = range(count, 0, -1)
    choices = [
        tuple(number + 1 for number in behind),
        tuple(2 * number + 5 for number in behind),
        tuple(max(size - number, 1) for size, number in zip(most, range(1, count + 1), strict=True)),
        tuple(number + 1 for number in reversed(behind)),
        (1,) * count,
        *([(0,) * count] if max(most) == 1 else []),
    ]
    met: set[Sizes] = {most}
    for choice in choices:
        asked = tuple(map(min, choice, most))
        if asked in met:
            continue
        try:
            sample = _as_many(write(asked), largest)
        except SuperKernelError as error:
            wrong = [Violation(v.message, v.location, v.expected, v.found, _hint(asked)) for v in error.violations]
            raise UnsupportedError(violations=wrong) from error
        yield sample
        met |= {asked, sample.sizes}


def _empty(largest: Counted, write: Write) -> Iterable[Counted]:
    """Graphs for nothing, or for nothing of some sizes. Raises UnsupportedError where a model asks whether anything is
    found at all. One that has no graph for nothing has no results that could be others; one that has another, as empty
    tensors are left out, must go no other way."""
    count = len(largest.sizes)
    met: set[Sizes] = {largest.sizes}
    some = [tuple(3 * (number % 2 == odd) for number in range(count)) for odd in (0, 1)]
    for choice in ((0,) * count, *(some if count > 1 else [])):
        try:
            empty = write(tuple(map(min, choice, largest.sizes)))
        except SuperKernelError:
            continue
        if _as_many(empty, largest).branches != largest.branches:
            where = f"graph {largest.graph.name!r}"
            raise UnsupportedError("another way is gone where nothing is found", location=where)
        if empty.sizes not in met:
            yield empty
        met.add(empty.sizes)


def _as_many(sample: Counted, largest: Counted) -> Counted:
    """The sample. Raises UnsupportedError where it finds more things, or fewer."""
    if len(sample.sizes) != len(largest.sizes):
        raise UnsupportedError("what is found hangs on how much is found", location=f"graph {sample.graph.name!r}")
    return sample


def _are_nothing(sample: Counted, largest: Counted) -> bool:
    """Whether it is the graph for nothing at all, and like the largest."""
    return not any(sample.sizes) and are_alike(sample.graph, largest.graph)


def _guards_of_nothing(empty: Counted, numbers: Numbers, largest: Counted) -> Mapping[Place, Guard]:
    """What must be guarded where nothing is found, as far as the graph is like the largest."""
    if are_alike(empty.graph, largest.graph):
        return places_of(proved(empty.graph, largest.graph, empty=True, numbers=numbers))
    ranks = [[each.graph.types[name].rank for name in each.graph.outputs] for each in (empty, largest)]
    if ranks[0] != ranks[1]:
        raise UnsupportedError("results are others where nothing is found", location=f"graph {empty.graph.name!r}")
    return {}


def _count_of_nothing(
    place: Place, extent: int, guards: Mapping[Place, Guard], empty: Counted, largest: Counted
) -> int | None:
    """How many elements a guard lets through where nothing is found; None where that is not known, as for an operator
    that has no results then."""
    if place in guards:
        return guards[place].count
    if not are_alike(empty.graph, largest.graph):
        return None
    position = next(at for at, node in enumerate(largest.graph.nodes) if node.name == place[0])
    kinds = empty.graph.output_types(empty.graph.nodes[position])
    return extent if any(kind.size for kind in kinds) else None


def _by_node(places: Mapping[Place, Guard]) -> Guards:
    """Guards by the node that they stand in front of."""
    nodes = dict.fromkeys(place[0] for place in places)
    return {node: tuple(guard for place, guard in places.items() if place[0] == node) for node in nodes}


def _hint(sizes: Sizes) -> str:
    return f"so it is where the data decides for {', '.join(map(str, sizes))}; sizes that are data must do for any"


@dataclass(frozen=True, slots=True)
class _Count:
    """How many elements of an extent count: scale * the found size + offset, at least none and at most all."""

    size: int
    scale: int
    offset: int
    extent: int

    def of(self, found: int) -> int:
        """For a found size."""
        return min(max(self.scale * found + self.offset, 0), self.extent)


class _Extents:
    """Puts into a graph what counts elements. `graph`: the largest one, guarded."""

    def __init__(self, largest: Counted, samples: Sequence[Counted], graph: Graph) -> None:
        self.largest, self.samples, self.guarded = largest, samples, graph
        self.nodes: list[Node] = []
        self.constants = dict(graph.constants)
        self.guards: dict[str, _Count] = {}
        self.values: dict[_Count, str] = {}
        self.extents: dict[str, tuple[tuple[int, str], ...]] = {}
        self.taken = {*graph.types, *(node.name for node in graph.nodes)}

    def count(self, counts: Sequence[int | None], extent: int, where: str) -> _Count:
        """What grows as an extent has been seen to in the samples, where it has. Raises UnsupportedError."""
        found = [each for size in range(len(self.largest.sizes)) if (each := self._growth(size, counts, extent))]
        if len(found) != 1 or not self._is_seen(found[0], counts):
            several = "several sizes that are data" if len(found) > 1 else "no one size that is data"
            shown = ", ".join(str(each) for each in counts if each is not None)
            raise UnsupportedError(f"an extent that grows as {several}", location=where, found=f"{shown} of {extent}")
        return found[0]

    def _growth(self, size: int, counts: Sequence[int | None], extent: int) -> _Count | None:
        most = self.largest.sizes[size]
        steps = [(each.sizes[size], n) for each, n in zip(self.samples, counts, strict=True) if n is not None]
        none = max([0, *(at for at, n in steps if n == 0)])
        seen = {at: n for at, n in steps if 0 < n < extent} or {none: 0}
        low, high = min(seen), max(seen)
        if high == most:
            return None
        rise, run = (extent - seen[high], most - high) if low == high else (seen[high] - seen[low], high - low)
        scale = max(rise // run, 1)
        found = _Count(size, scale, seen[low] - scale * low, extent)
        return found if all(found.of(n) == here for n, here in [*steps, (most, extent)]) else None

    def _is_seen(self, count: _Count, counts: Sequence[int | None]) -> bool:
        """Whether it has been seen where an extent begins to grow, and that it does so evenly, or all there is."""
        steps = [(each.sizes[count.size], n) for each, n in zip(self.samples, counts, strict=True) if n is not None]
        inside = {at for at, n in steps if 0 < n < count.extent}
        most = self.largest.sizes[count.size]
        smaller = {at for at, _ in steps if at < most}
        return count.offset >= 0 or len(inside) > 1 or len(smaller) == most

    def guard(self, name: str, count: _Count) -> None:
        """The input that says which elements count of an extent."""
        if self.guards.setdefault(name, count) != count:
            raise UnsupportedError("axes that grow together for some sizes only", location=f"value {name!r}")

    def number_of(self, name: str, contents: Sequence[NDArray[Any] | None]) -> None:
        """A constant that is computed instead: `contents` of it in the samples, where they are known."""
        largest = self.constants.pop(name)
        parts = []
        for position, most in enumerate(largest.ravel().tolist()):
            counts = [None if other is None else int(other.flat[position]) for other in contents]
            if all(count is None or count == most for count in counts):
                value = self.number(int(most))
            else:
                value = self.value(self.count(counts, int(most), f"constant {name!r}"))
            parts.append(self.emit("reshape", (value,), f"{name} {position}", shape=(1,)))
        whole = parts[0] if len(parts) == 1 else self.emit("concat", tuple(parts), f"{name} numbers", axis=0)
        shaped = self.emit("reshape", (whole,), f"{name} shaped", shape=largest.shape)
        self.nodes.append(Node(name, "cast", (shaped,), (name,), {"dtype": DType.of(largest.dtype)}))

    def output(self, name: str, axis: int, count: _Count) -> None:
        """An output of which so many elements count."""
        self.extents[name] = (*self.extents.get(name, ()), (axis, self.value(count)))

    def value(self, count: _Count) -> str:
        """How many elements count, i64 []."""
        if count not in self.values:
            table = self.largest.tables[count.size]
            if table not in self.largest.graph.types:
                raise UnsupportedError("an extent is found by what no result needs", location=f"value {table!r}")
            rows = self.emit("reshape", (table,), f"{table} flat", shape=(self.largest.graph.types[table].size,))
            first = self.emit("slice", (rows,), f"{table} first", starts=(0,), ends=(1,))
            value = self.emit("reshape", (first,), f"{table} count", shape=())
            if count.scale != 1:
                value = self.emit("mul", (value, self.number(count.scale)), f"{value}, {count.scale} times")
            if count.offset:
                value = self.emit("add", (value, self.number(count.offset)), f"{value}, {count.offset} more")
            if count.offset < 0:
                value = self.emit("maximum", (value, self.number(0)), f"{value}, at least 0")
            if count.scale * self.largest.sizes[count.size] + count.offset > count.extent:
                value = self.emit("minimum", (value, self.number(count.extent)), f"{value}, at most {count.extent}")
            self.values[count] = value
        return self.values[count]

    def number(self, number: int) -> str:
        """A constant, i64 []."""
        return self.constant(f"{number} i64", np.array(number))

    def constant(self, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
        fresh = self.fresh(name)
        self.constants[fresh] = array
        return fresh

    def emit(self, op: str, inputs: tuple[str, ...], name: str, **attrs: object) -> str:
        """One more node, and its value."""
        fresh = self.fresh(name)
        self.nodes.append(Node(fresh, op, inputs, (fresh,), attrs))  # type: ignore[arg-type]
        return fresh

    def fresh(self, name: str) -> str:
        """The name, or one like it that is free."""
        found, number = name, 1
        while found in self.taken:
            number += 1
            found = f"{name} ({number})"
        self.taken.add(found)
        return found

    def graph(self) -> Graph:
        """The whole."""
        for name, count in self.guards.items():
            places = self.constant(f"0 to {count.extent}", np.arange(count.extent))
            self.nodes.append(Node(name, "less", (places, self.value(count)), (name,)))
        inputs: Mapping[str, object] = {n: t for n, t in self.guarded.inputs.items() if n not in self.guards}
        return self.guarded.rebuilt(
            [*self.guarded.nodes, *self.nodes], inputs=inputs, constants=self.constants, extents=self.extents
        )
