"""What a rule is given, an operator applied to tensors and to their padded counterparts, and what it answers; and what
rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from numpy.typing import NDArray

from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.ops.common import axis_of, get
from superkernel.ops.opdef import Attrs, OpDef
from superkernel.padding.guards import Fill, Guard
from superkernel.padding.places import Places, unmoved

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PaddedValue:
    """A tensor and the padded one: extents of both and, per axis, where the elements lie. `constant`: its contents,
    where they are known. `zero`: an axis in whose padding it is 0, or NaN where all before it is. `below`: its elements
    are whole numbers from 0 on, below that; `headed`: but for those of the first row."""

    shape: Shape
    padded: Shape
    places: tuple[Places, ...]
    constant: NDArray[Any] | None = None
    zero: int | None = None
    below: int | None = None
    headed: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def is_whole(self, axis: int) -> bool:
        """Whether the axis has no padding."""
        extent = self.shape[axis]
        return extent == self.padded[axis] and self.places[axis] == unmoved(extent)

    def is_unmoved(self, axis: int) -> bool:
        """Whether padding, if any, lies behind the end of the axis."""
        return self.places[axis] == unmoved(self.shape[axis])

    @property
    def all_whole(self) -> bool:
        """Whether nothing of it is padded."""
        return all(self.is_whole(axis) for axis in range(self.rank))

    @property
    def is_single(self) -> bool:
        """Whether it is one value, in both."""
        return all(extent == 1 for extent in (*self.shape, *self.padded))

    def axes(self, *chosen: int) -> PaddedValue:
        """Of some axes, in this order: what an operator asks of them alone."""
        shape, padded = tuple(self.shape[a] for a in chosen), tuple(self.padded[a] for a in chosen)
        return PaddedValue(shape, padded, tuple(self.places[a] for a in chosen))


@dataclass(frozen=True, slots=True)
class PaddedNode:
    """A node of both graphs. Attributes and results' types: of the graph, and of the padded one."""

    definition: OpDef
    inputs: tuple[PaddedValue | None, ...]
    attrs: Attrs
    padded_attrs: Attrs
    outputs: tuple[TensorType, ...]
    padded_outputs: tuple[TensorType, ...]

    def input(self, index: int) -> PaddedValue:
        """One that must be there."""
        found = self.inputs[index]
        assert found is not None
        return found

    def optional(self, index: int) -> PaddedValue | None:
        """One that need not be there."""
        return self.inputs[index] if index < len(self.inputs) else None

    def same_attrs(self, *but: str) -> None:
        """Refuse where attributes hang on the sizes, but for some."""
        for name, value in self.attrs.items():
            if name not in but and value != self.padded_attrs[name]:
                refuse(f"attribute {name!r} changes with the sizes", f"{self.padded_attrs[name]!r}", f"{value!r}")

    def axis(self, rank: int) -> int:
        """The attribute `axis`, counted from the front."""
        return axis_of(get(self.attrs, "axis", int), rank)


@dataclass(frozen=True, slots=True)
class PaddedResult:
    """Places of each result, per axis, and what they rest on. `zero`, `below`: of each result, as of `PaddedValue`."""

    places: list[tuple[Places, ...]]
    guards: tuple[Guard, ...] = ()
    zero: int | None = None
    below: int | None = None
    headed: bool = False


Rule: TypeAlias = Callable[[PaddedNode], PaddedResult]


def refuse(reason: str, expected: str = "", found: str = "") -> NoReturn:
    """What makes results differ, in plain words."""
    raise UnsupportedError(reason, expected=expected, found=found)


def whole_axes(pair: PaddedValue, axes: Collection[int], what: str) -> None:
    """Refuse where one of the axes is padded. `what` the operator does along it."""
    for axis in axes:
        if not pair.is_whole(axis):
            found = f"{pair.shape[axis]} padded to {pair.padded[axis]}"
            refuse(f"it {what}, and that axis is padded", f"axis {axis % pair.rank} as it is", found)


def guard(step: PaddedNode, operand: int, axis: int, fill: Fill, what: str) -> tuple[Guard, ...]:
    """The guard that an operand needs along an axis, if it is padded. Refuse where padding does not lie behind the end,
    and of constants, which kernels pack. `what` the operator does along it."""
    pair = step.input(operand)
    axis %= pair.rank
    if pair.is_whole(axis):
        return ()
    if not pair.is_unmoved(axis) or pair.constant is not None:
        whole_axes(pair, [axis], what)
    return (Guard(operand, axis - pair.rank, pair.padded[axis], pair.shape[axis], fill),)


def broadcast_places(pairs: Sequence[PaddedValue | None], shape: Shape, padded: Shape) -> tuple[Places, ...]:
    """Of what is broadcast to a shape, in both graphs."""
    found = []
    for back in range(len(shape), 0, -1):
        extents = shape[-back], padded[-back]
        places: Places | None = None
        for pair in pairs:
            if pair is None or pair.rank < back or (pair.shape[-back], pair.padded[-back]) == (1, 1):
                continue
            if (pair.shape[-back], pair.padded[-back]) != extents:
                refuse("an operand is repeated along an axis for some sizes only")
            if places is not None and places != pair.places[-back]:
                refuse("its operands are padded in different places")
            places = pair.places[-back]
        if places is None and extents[0] > extents[1]:
            refuse("an extent shrinks where sizes grow", f"at least {extents[0]}", str(extents[1]))
        found.append(unmoved(extents[0]) if places is None else places)
    return tuple(found)


def broadcast_result(step: PaddedNode, pairs: Sequence[PaddedValue | None]) -> PaddedResult:
    """One result, whose axes are those that the operands broadcast to."""
    return PaddedResult([broadcast_places(pairs, step.outputs[0].shape, step.padded_outputs[0].shape)])


def whole_operands(step: PaddedNode) -> PaddedResult:
    """Any operator: the same function of the same operands."""
    step.same_attrs()
    for pair in step.inputs:
        if pair is not None:
            whole_axes(pair, range(pair.rank), "may mix all elements of its operands")
    return PaddedResult([tuple(map(unmoved, kind.shape)) for kind in step.outputs])


def rest_whole(step: PaddedNode, first: int = 1) -> None:
    """Refuse where an operand from `first` on is padded."""
    for pair in step.inputs[first:]:
        if pair is not None:
            whole_axes(pair, range(pair.rank), "gives what every result is computed with")


def apart(step: PaddedNode, mixed: Collection[int], what: str, *, drops: bool = False) -> PaddedResult:
    """Along some axes of the first operand each element stands for itself, along the others they are mixed. `drops`:
    the results do not have the mixed axes."""
    x = step.input(0)
    whole_axes(x, mixed, what)
    kept = [axis for axis in range(x.rank) if not (drops and axis in mixed)]
    found = []
    for kind, padded in zip(step.outputs, step.padded_outputs, strict=True):
        for axis, extent, padded_extent in zip(kept, kind.shape, padded.shape, strict=True):
            expected = (extent, extent) if axis in mixed else (x.shape[axis], x.padded[axis])
            if (extent, padded_extent) != expected:
                refuse("its results' extents change with the sizes")
        found.append(tuple(unmoved(n) if a in mixed else x.places[a] for a, n in zip(kept, kind.shape, strict=True)))
    return PaddedResult(found)


def apart_shape(step: PaddedNode, free: int, what: str) -> PaddedResult:
    """As `apart`: the first `free` axes stand for themselves, the others may have other extents in the result."""
    x, kind = step.input(0), step.outputs[0]
    whole_axes(x, range(free, x.rank), what)
    return PaddedResult([(*x.places[:free], *map(unmoved, kind.shape[free:]))])
