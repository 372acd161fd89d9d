"""What operators do to the places of elements: one rule per operator or family.

Model: an operator is applied twice, to tensors and to their padded counterparts. Its inputs are `PaddedValue`s: it is
known that each element of the tensor equals the one at its place in the padded tensor, whatever the rest holds. A rule
says where the elements of the results lie, or raises UnsupportedError, in plain words, where they need not be the same.
It may go by what results are computed from, never by what padding holds.

An operator without a rule of its own is the same function of the same operands where nothing is padded; else it is
refused. That is right for whatever operator comes.

Operators that take elements of an axis together ask for *guards* where it is padded: what the padding holds is made the
identity of what they do (`guards.py`). So attention hides the keys in the padding, and makes their values 0 as well: a
weight of 0 hides a value only if that is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

from numpy.typing import NDArray

from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.ops.common import axis_of, get, get_floats, get_ints
from superkernel.ops.opdef import Attrs, Family, OpDef
from superkernel.ops.pool import pool_windows
from superkernel.ops.reduce import reduced_axes
from superkernel.ops.views import slice_ranges
from superkernel.padding.guards import Fill, Guard
from superkernel.padding.places import Places, coalesced, reshaped, unmoved

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PaddedValue:
    """A tensor and the padded one: extents of both and, per axis, where the elements lie. `constant`: its contents,
    where they are known. `zero`: an axis in whose padding it is 0, or NaN where all before it is."""

    shape: Shape
    padded: Shape
    places: tuple[Places, ...]
    constant: NDArray[Any] | None = None
    zero: int | None = None

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
    """Places of each result, per axis, and what they rest on. `zero`: of each result, as of `PaddedValue`."""

    places: list[tuple[Places, ...]]
    guards: tuple[Guard, ...] = ()
    zero: int | None = None


Rule: TypeAlias = Callable[[PaddedNode], PaddedResult]


def refuse(reason: str, expected: str = "", found: str = "") -> NoReturn:
    """What makes results differ, in plain words."""
    raise UnsupportedError(reason, expected=expected, found=found)


def apply_rule(step: PaddedNode) -> PaddedResult:
    """Where the results' elements lie. Raises UnsupportedError, without location."""
    definition = step.definition
    rule = _RULES.get(definition.name) or _FAMILIES.get(definition.family, _whole)
    return rule(step)


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


def _places(pairs: Sequence[PaddedValue | None], shape: Shape, padded: Shape) -> tuple[Places, ...]:
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


def _result(step: PaddedNode, pairs: Sequence[PaddedValue | None]) -> PaddedResult:
    """One result, whose axes are those that the operands broadcast to."""
    return PaddedResult([_places(pairs, step.outputs[0].shape, step.padded_outputs[0].shape)])


def _whole(step: PaddedNode) -> PaddedResult:
    """Any operator: the same function of the same operands."""
    step.same_attrs()
    for pair in step.inputs:
        if pair is not None:
            whole_axes(pair, range(pair.rank), "may mix all elements of its operands")
    return PaddedResult([tuple(map(unmoved, kind.shape)) for kind in step.outputs])


def _rest_whole(step: PaddedNode, first: int = 1) -> None:
    for pair in step.inputs[first:]:
        if pair is not None:
            whole_axes(pair, range(pair.rank), "gives what every result is computed with")


def _pointwise(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    return _result(step, step.inputs)


# Along some axes of the first operand each element stands for itself, along the others they are mixed


def _apart(step: PaddedNode, mixed: Collection[int], what: str, *, drops: bool = False) -> PaddedResult:
    """`drops`: the results do not have the mixed axes."""
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


_LINE = "takes all elements of a line together"


def _line(step: PaddedNode) -> PaddedResult:
    """Along one axis, with no value that changes nothing."""
    step.same_attrs()
    return _apart(step, {step.axis(step.input(0).rank)}, _LINE)


def _topk(step: PaddedNode) -> PaddedResult:
    """Of equal values the first is found first: one that does not lie in the padding. No value is behind a NaN where
    the smallest are asked for."""
    step.same_attrs()
    x, axis = step.input(0), step.axis(step.input(0).rank)
    if not get(step.attrs, "largest", bool):
        return _line(step)
    guards = guard(step, 0, axis, Fill.LEAST, _LINE)
    places = (*x.places[:axis], unmoved(step.outputs[0].shape[axis]), *x.places[axis + 1 :])
    return PaddedResult([places, places], guards)


def _lp_norm(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    x = step.input(0)
    return PaddedResult([x.places], guard(step, 0, step.axis(x.rank), Fill.ZERO, _LINE))


def _softmax(step: PaddedNode) -> PaddedResult:
    """Of the least value, the exponential is 0; so is the share."""
    step.same_attrs()
    x = step.input(0)
    axis = step.axis(x.rank)
    guards = guard(step, 0, axis, Fill.LEAST, _LINE)
    return PaddedResult([x.places], guards, axis if guards and step.definition.name == "softmax" else None)


_IDENTITIES = {
    **dict.fromkeys(("sum", "l1", "l2", "sum_square", "log_sum"), Fill.ZERO),
    **dict.fromkeys(("max", "log_sum_exp"), Fill.LEAST),
    "min": Fill.GREATEST,
    "prod": Fill.ONE,
    "mean": Fill.UNCOUNTED,
}


def _reduced(step: PaddedNode) -> PaddedResult:
    """Also argmax and argmin, which find what comes first: that does not lie in the padding."""
    step.same_attrs()
    x, name, what = step.input(0), step.definition.name, "reduces an axis"
    drops = not step.attrs["keepdims"]
    if "axes" in step.attrs:
        axes, fill = reduced_axes(step.attrs, x.rank), _IDENTITIES.get(name.removeprefix("reduce_"))
    else:
        axes, fill = (step.axis(x.rank),), Fill.LEAST if name == "argmax" else Fill.GREATEST
        if get(step.attrs, "select_last_index", bool):
            fill = None
    if fill is None:
        return _apart(step, axes, what, drops=drops)
    guards = tuple(each for axis in axes for each in guard(step, 0, axis, fill, what))
    kept = [() if axis in axes else x.places[axis] for axis in range(x.rank) if not (drops and axis in axes)]
    return PaddedResult([tuple(kept)], guards)


def _scan(step: PaddedNode) -> PaddedResult:
    x, axis = step.input(0), step.axis(step.input(0).rank)
    step.same_attrs()
    what = "sums along an axis"
    guards: tuple[Guard, ...] = ()
    if get(step.attrs, "reverse", bool):
        guards = guard(step, 0, axis, Fill.ZERO, what)
    elif not x.is_unmoved(axis):
        whole_axes(x, [axis], what)
    return PaddedResult([x.places], guards)


def _tail(step: PaddedNode) -> PaddedResult:
    """Norms over an axis and all behind it; scale and bias are broadcast."""
    step.same_attrs()
    x = step.input(0)
    whole_axes(x, range(step.axis(x.rank), x.rank), "normalises over an axis")
    return _result(step, step.inputs)


def _samples(step: PaddedNode) -> PaddedResult:
    """Samples, along the first axis, for themselves: convolutions, norms of groups of channels."""
    step.same_attrs()
    _rest_whole(step)
    return _apart_shape(step, 1, "takes neighbours along an axis together")


def _convolved(step: PaddedNode) -> PaddedResult:
    """A convolution reads zeros behind the end of an image anyway; of a transposed one they add nothing."""
    step.same_attrs()
    _rest_whole(step)
    return _windows(step, 1, Fill.ZERO)


def _largest(step: PaddedNode) -> PaddedResult:
    """max_pool, which sees nothing behind the end of an image; that of the whole image."""
    step.same_attrs()
    return _windows(step, 2, Fill.LEAST)


def _summed(step: PaddedNode) -> PaddedResult:
    """lp_pool: sums of powers, which are not divided."""
    step.same_attrs()
    return _windows(step, 2, Fill.ZERO)


def _averaged(step: PaddedNode) -> PaddedResult:
    """avg_pool: each window is divided by as many elements as in the padded image, where none hangs over its end."""
    step.same_attrs()
    x, windows = step.input(0), pool_windows(step.input(0).shape, step.attrs)
    counts_pads, hangs_over = (get(step.attrs, name, bool) for name in ("count_include_pad", "ceil_mode"))
    for axis, window in enumerate(windows, start=2):
        if hangs_over or (window.end > 0 and not counts_pads):
            whole_axes(x, [axis], "may divide by fewer elements at the end of an axis")
    found = _windows(step, 2, Fill.ZERO)
    return replace(found, guards=tuple(each for each in found.guards if windows[each.axis].end > 0))


def _mean_of_all(step: PaddedNode) -> PaddedResult:
    """global_avg_pool"""
    return _windows(step, 2, Fill.UNCOUNTED)


def _windows(step: PaddedNode, free: int, fill: Fill) -> PaddedResult:
    """Windows along the axes behind channels, of which each result is one; the first `free` axes, for themselves."""
    x, what = step.input(0), "takes neighbours along an axis together"
    whole_axes(x, range(free, 2), what)
    guards = tuple(each for axis in range(2, x.rank) for each in guard(step, 0, axis, fill, what))
    shapes = step.outputs[0].shape, step.padded_outputs[0].shape
    if any(a > b for a, b in zip(*shapes, strict=True)):
        refuse("an extent shrinks where sizes grow")
    return PaddedResult([(*x.places[:free], *map(unmoved, shapes[0][free:]))], guards)


def _apart_shape(step: PaddedNode, free: int, what: str) -> PaddedResult:
    """As `_apart`: the first `free` axes stand for themselves, the others may have other extents in the result."""
    x, kind = step.input(0), step.outputs[0]
    whole_axes(x, range(free, x.rank), what)
    return PaddedResult([(*x.places[:free], *map(unmoved, kind.shape[free:]))])


def _channels(step: PaddedNode) -> PaddedResult:
    """batch_norm, lrn: all axes but that of channels for themselves."""
    step.same_attrs()
    _rest_whole(step)
    return _apart(step, {1}, "has parameters per channel, or takes channels together,")


def _resized(step: PaddedNode) -> PaddedResult:
    step.same_attrs("sizes")
    x = step.input(0)
    scales = get_floats(step.attrs, "scales") or (1.0,) * x.rank
    kept = [
        extents == (x.shape[axis], x.padded[axis]) and scales[axis] == 1.0
        for axis, extents in enumerate(zip(step.outputs[0].shape, step.padded_outputs[0].shape, strict=True))
    ]
    whole_axes(x, [axis for axis in range(x.rank) if not kept[axis]], "interpolates along an axis")
    sizes = get_ints(step.attrs, "sizes")
    if any(a != b for a, b, keep in zip(sizes, step.padded_outputs[0].shape, kept, strict=True) if not keep):
        refuse("its results' extents change with the sizes")
    return PaddedResult([tuple(x.places[a] if keep else unmoved(sizes[a]) for a, keep in enumerate(kept))])


# Elements that move


def _reshape(step: PaddedNode) -> PaddedResult:
    x = step.input(0)
    found = reshaped(x.places, x.padded, step.outputs[0].shape, step.padded_outputs[0].shape)
    if found is None:
        refuse("it joins a padded axis with others, so that elements come to lie in other places")
    return PaddedResult([tuple(found)])


def _transpose(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    x = step.input(0)
    perm = get_ints(step.attrs, "perm") or tuple(reversed(range(x.rank)))
    return PaddedResult([tuple(x.places[axis] for axis in perm)])


def _slice(step: PaddedNode) -> PaddedResult:
    x = step.input(0)
    what = "cuts a padded axis at places that change with the sizes"
    found: list[Places] = []
    guards: list[Guard] = []
    taken = zip(slice_ranges(x.shape, step.attrs), slice_ranges(x.padded, step.padded_attrs), strict=True)
    for axis, (here, padded) in enumerate(taken):
        extent = x.shape[axis]
        if (here, padded) == (range(extent), range(x.padded[axis])):
            found.append(x.places[axis])
            continue
        if here.step != padded.step or len(here) > len(padded):
            refuse(f"it {what}")
        if here.start != padded.start:  # as far from the end, perhaps
            if extent - here.start != x.padded[axis] - padded.start:
                refuse(f"it {what}")
            guards += guard(step, 0, axis, Fill.FRONT, what)
        elif not x.is_unmoved(axis):
            whole_axes(x, [axis], what)
        found.append(unmoved(len(here)))
    return PaddedResult([tuple(found)], tuple(guards))


def _split(step: PaddedNode) -> PaddedResult:
    x = step.input(0)
    axis = step.axis(x.rank)
    sizes, padded = get_ints(step.attrs, "sizes"), get_ints(step.padded_attrs, "sizes")
    same = sizes[:-1] == padded[:-1] and step.attrs["axis"] == step.padded_attrs["axis"]
    if not same or not x.is_unmoved(axis):
        refuse("it cuts a padded axis at places that change with the sizes")
    return PaddedResult([(*x.places[:axis], unmoved(size), *x.places[axis + 1 :]) for size in sizes])


def _concat(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    pairs = [pair for pair in step.inputs if pair is not None]
    first = pairs[0]
    axis = step.axis(first.rank)
    for pair in pairs:
        if any(pair.places[a] != first.places[a] for a in range(first.rank) if a != axis):
            refuse("its operands are padded in different places")
    for pair in pairs[:-1]:
        whole_axes(pair, [axis], "puts elements behind an axis")
    if not pairs[-1].is_unmoved(axis):
        refuse("it puts elements behind an axis")
    places = list(first.places)
    places[axis] = unmoved(step.outputs[0].shape[axis])
    return PaddedResult([tuple(places)])


def _pad(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    x, pads = step.input(0), get_ints(step.attrs, "pads")
    found = []
    for axis, (begin, end) in enumerate(zip(pads[: x.rank], pads[x.rank :], strict=True)):
        if (begin, end) == (0, 0):
            found.append(x.places[axis])
            continue
        if end > 0 or step.attrs["mode"] != "constant" or not x.is_unmoved(axis):
            whole_axes(x, [axis], "puts elements behind an axis")
        found.append(unmoved(step.outputs[0].shape[axis]))
    return PaddedResult([tuple(found)])


def _tile(step: PaddedNode) -> PaddedResult:
    x = step.input(0)
    found = []
    times = zip(get_ints(step.attrs, "repeats"), get_ints(step.padded_attrs, "repeats"), strict=True)
    for axis, (count, padded) in enumerate(times):
        if count > padded:
            refuse("an extent shrinks where sizes grow")
        found.append(coalesced([(count, x.padded[axis]), *x.places[axis]]))
    return PaddedResult([tuple(found)])


_LOOKS_UP = "looks up elements of an axis by an index that may be in the padding"


def _within(x: PaddedValue, axis: int, indices: NDArray[Any] | None) -> None:
    """Refuse where indices along an axis need not be known to be those of elements, counted from the front."""
    known = indices is not None and indices.size > 0 and indices.min() >= 0 and indices.max() < x.shape[axis]
    if not (known and x.is_unmoved(axis)):
        whole_axes(x, [axis], _LOOKS_UP)


def _gather(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    x, indices = step.input(0), step.input(1)
    axis, known = step.axis(x.rank), indices.constant
    guards: tuple[Guard, ...] = ()
    if known is not None and known.size and -x.shape[axis] <= known.min() and known.max() < 0:  # all from the end
        guards = guard(step, 0, axis, Fill.FRONT, _LOOKS_UP)
    else:
        _within(x, axis, known)
    return PaddedResult([(*x.places[:axis], *indices.places, *x.places[axis + 1 :])], guards)


def _gather_elements(step: PaddedNode) -> PaddedResult:
    """Along the other axes an index stands where the element does."""
    step.same_attrs()
    x, indices = step.input(0), step.input(1)
    axis = step.axis(x.rank)
    _within(x, axis, indices.constant)
    for other in range(x.rank):
        same = x.places[other] == indices.places[other] or (x.is_unmoved(other) and indices.is_unmoved(other))
        if other != axis and not same:
            refuse("its operands are padded in different places")
    return PaddedResult([indices.places])


def _gather_nd(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    x, indices, batch = step.input(0), step.input(1), get(step.attrs, "batch_dims", int)
    whole_axes(indices, [-1], "takes numbers of an axis as one index")
    width = indices.shape[-1]
    for at in range(width):
        _within(x, batch + at, None if indices.constant is None else indices.constant[..., at])
    if x.places[:batch] != indices.places[:batch]:
        refuse("its operands are padded in different places")
    return PaddedResult([(*indices.places[:-1], *x.places[batch + width :])])


def _triangle(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    x = step.input(0)
    for axis in (-2, -1):
        if not x.is_unmoved(axis):
            whole_axes(x, [axis], "goes by the place in an axis")
    return PaddedResult([x.places])


def _one_hot(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    _rest_whole(step)
    x, rank = step.input(0), step.outputs[0].rank
    axis = step.axis(rank)
    return PaddedResult([(*x.places[:axis], unmoved(step.outputs[0].shape[axis]), *x.places[axis:])])


# Products, attention, rotary embedding

_SUMS = "adds up products along an axis"


def _product(step: PaddedNode) -> PaddedResult:
    """matmul, gemm, matmul_integer: rows of a, columns of b."""
    step.same_attrs()
    a, b = step.input(0), step.input(1)
    swapped = [name in step.attrs and get(step.attrs, name, bool) for name in ("trans_a", "trans_b")]
    row, inner_a = (-1, -2) if swapped[0] else (-2, -1)
    column, inner_b = (-2, -1) if swapped[1] else (-1, -2)
    summed = (inner_a if a.rank > 1 else 0) % a.rank, (inner_b if b.rank > 1 else 0) % b.rank
    guards: list[Guard] = []
    for index, (pair, axis) in enumerate(zip((a, b), summed, strict=True)):
        if step.definition.name == "matmul_integer":  # its zero is the zero point
            whole_axes(pair, [axis], _SUMS)
        elif pair.zero != axis:
            guards += guard(step, index, axis, Fill.ZERO, _SUMS)
        elif not pair.is_unmoved(axis):
            whole_axes(pair, [axis], _SUMS)
    kind, padded = step.outputs[0].shape, step.padded_outputs[0].shape
    ends = [*([a.places[row]] if a.rank > 1 else []), *([b.places[column]] if b.rank > 1 else [])]
    batch = len(kind) - len(ends)
    factors = [pair.axes(*range(max(0, pair.rank - 2))) for pair in (a, b)]
    product = PaddedValue(kind, padded, (*_places(factors, kind[:batch], padded[:batch]), *ends))
    if step.definition.name == "gemm":
        return replace(_result(step, [product, step.optional(2)]), guards=tuple(guards))
    for index, zero in enumerate(step.inputs[2:]):
        if zero is not None and not zero.is_single:
            whole_axes(zero, range(zero.rank), "has zero points along an axis")
            whole_axes(step.input(index), range(step.input(index).rank), "has zero points along an axis")
    return PaddedResult([product.places], tuple(guards))


def _rows(step: PaddedNode) -> PaddedResult:
    """block_matmul: rows of the first factor."""
    step.same_attrs()
    _rest_whole(step)
    x = step.input(0)
    return _apart_shape(step, x.rank - 1, _SUMS)


def _attention(step: PaddedNode) -> PaddedResult:
    q, k, v = (step.input(i) for i in range(3))
    mask, length = step.optional(3), step.optional(4)
    if get(step.attrs, "ragged", bool) or step.optional(5) is not None:
        return _whole(step)
    step.same_attrs()
    for pair in (q, k):
        whole_axes(pair, [1, 3], "adds up products over an axis of heads")
    whole_axes(v, [1], "shares an axis of heads")
    batch = _places([q.axes(0), k.axes(0), v.axes(0)], q.shape[:1], q.padded[:1])
    if length is not None and not length.is_single and length.places != batch:
        refuse("its lengths are padded in other places than its batch")
    guards: tuple[Guard, ...] = ()
    causal = get(step.attrs, "causal", bool)
    if k.is_whole(2) and v.is_whole(2):
        if causal:
            whole_axes(q, [2], "lets a query see keys by its distance from the last one")
    else:
        if not (k.is_unmoved(2) and v.is_unmoved(2)):
            whole_axes(k, [2], "lets each query see all keys")
            whole_axes(v, [2], "lets each query see all keys")
        ahead = k.shape[2] - q.shape[2], k.padded[2] - q.padded[2]
        if causal and (length is not None or not q.is_unmoved(2) or ahead[0] != ahead[1]):
            found = f"{k.shape[2]} padded to {k.padded[2]}"
            refuse("it lets a query see keys by its distance from the last one", "as many keys behind it", found)
        hidden = () if causal else (Guard(3, -1, k.padded[2], k.shape[2], Fill.LEAST),)
        guards = (*guard(step, 2, 2, Fill.ZERO, "mixes values"), *hidden)
    if mask is not None:
        scores = PaddedValue(
            (*q.shape[:3], k.shape[2]), (*q.padded[:3], k.padded[2]), (batch[0], q.places[1], q.places[2], k.places[2])
        )
        _places([scores, mask], scores.shape, scores.padded)
    return PaddedResult([(batch[0], q.places[1], q.places[2], v.places[3])], guards)


def _rope(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    x, position = step.input(0), step.optional(3)
    tables = [step.input(1), step.input(2)]
    whole_axes(x, [3], "turns pairs of elements of an axis")
    if position is None:
        for table in tables:
            whole_axes(table, [-1], "turns pairs of elements of an axis")
        rows = [pair.axes(*range(pair.rank - 1)) for pair in (x, *tables)]
        return PaddedResult([(*_places(rows, x.shape[:3], x.padded[:3]), x.places[3])])
    for table in tables:
        whole_axes(table, [0, 1], "looks up elements of an axis by an index that may be in the padding")
    if position.rank < 2 and not x.is_unmoved(2):
        whole_axes(x, [2], "counts positions along an axis")
    if not position.is_single and position.places != tuple(x.places[axis] for axis in (0, 2)[: position.rank]):
        refuse("its positions are padded in other places than its rows")
    return PaddedResult([x.places])


_FAMILIES: Mapping[Family, Rule] = {
    Family.POINTWISE: _pointwise,
    Family.RESHAPE: _reshape,
    Family.REDUCE: _reduced,
    Family.CONV: _samples,
}
_RULES: Mapping[str, Rule] = {
    "conv": _convolved,
    "conv_transpose": _convolved,
    "max_pool": _largest,
    "global_max_pool": _largest,
    "lp_pool": _summed,
    "avg_pool": _averaged,
    "global_avg_pool": _mean_of_all,
    "transpose": _transpose,
    "slice": _slice,
    "split": _split,
    "expand": lambda step: _result(step, step.inputs),
    "concat": _concat,
    "pad": _pad,
    "tile": _tile,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "trilu": _triangle,
    "one_hot": _one_hot,
    "resize": _resized,
    "topk": _topk,
    "cumsum": _scan,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_integer": _line,
    "lp_norm": _lp_norm,
    "layer_norm": _tail,
    "rms_norm": _tail,
    "group_norm": _samples,
    "instance_norm": _samples,
    "batch_norm": _channels,
    "lrn": _channels,
    "matmul": _product,
    "gemm": _product,
    "matmul_integer": _product,
    "block_matmul": _rows,
    "attention": _attention,
    "rope": _rope,
}
