"""Rules of operators that move elements, look them up or go by their places."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from superkernel.ops.common import get, get_ints
from superkernel.ops.views import slice_ranges
from superkernel.padding.guards import Fill, Guard
from superkernel.padding.padded import PaddedNode, PaddedResult, PaddedValue, guard, refuse, rest_whole, whole_axes
from superkernel.padding.places import Places, coalesced, reshaped, unmoved


def reshape(step: PaddedNode) -> PaddedResult:
    """Axes that are padded stay axes of their own, or are cut where their places allow it."""
    x = step.input(0)
    found = reshaped(x.places, x.padded, step.outputs[0].shape, step.padded_outputs[0].shape)
    if found is None:
        refuse("it joins a padded axis with others, so that elements come to lie in other places")
    return PaddedResult([tuple(found)])


def transpose(step: PaddedNode) -> PaddedResult:
    """Places go with their axes."""
    step.same_attrs()
    x = step.input(0)
    perm = get_ints(step.attrs, "perm") or tuple(reversed(range(x.rank)))
    return PaddedResult([tuple(x.places[axis] for axis in perm)])


def slice(step: PaddedNode) -> PaddedResult:
    """The same elements from the front, or from the end of both."""
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


def split(step: PaddedNode) -> PaddedResult:
    """Parts of the same sizes from the front; the last takes what is left."""
    x = step.input(0)
    axis = step.axis(x.rank)
    sizes, padded = get_ints(step.attrs, "sizes"), get_ints(step.padded_attrs, "sizes")
    same = sizes[:-1] == padded[:-1] and step.attrs["axis"] == step.padded_attrs["axis"]
    if not same or not x.is_unmoved(axis):
        refuse("it cuts a padded axis at places that change with the sizes")
    return PaddedResult([(*x.places[:axis], unmoved(size), *x.places[axis + 1 :]) for size in sizes])


def concat(step: PaddedNode) -> PaddedResult:
    """Only the last operand may be padded along the axis."""
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


def pad(step: PaddedNode) -> PaddedResult:
    """Elements in front of an axis, or taken from it, leave padding behind its end."""
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


def tile(step: PaddedNode) -> PaddedResult:
    """Each repetition has padding of its own."""
    x = step.input(0)
    found = []
    times = zip(get_ints(step.attrs, "repeats"), get_ints(step.padded_attrs, "repeats"), strict=True)
    for axis, (count, padded) in enumerate(times):
        if count > padded:
            refuse("an extent shrinks where sizes grow")
        found.append(coalesced([(count, x.padded[axis]), *x.places[axis]]))
    return PaddedResult([tuple(found)])


_LOOKS_UP = "looks up elements of an axis by an index that may be in the padding"


def _within(x: PaddedValue, axis: int, indices: PaddedValue, known: NDArray[Any] | None) -> None:
    """Refuse where indices along an axis need not be those of elements, counted from the front. `known`: their values,
    where they are constant."""
    inside = known is not None and known.size > 0 and known.min() >= 0 and known.max() < x.shape[axis]
    if indices.below is not None and not indices.headed:
        inside = inside or indices.below <= x.shape[axis]
    if not ((inside or 0 in indices.shape) and x.is_unmoved(axis)):
        whole_axes(x, [axis], _LOOKS_UP)


def leaves_first(step: PaddedNode) -> bool:
    """Whether a slice is without the first row, in either graph."""
    x = step.input(0)
    taken = slice_ranges(x.shape, step.attrs)[0], slice_ranges(x.padded, step.padded_attrs)[0]
    return all(0 not in rows for rows in taken)


def gather(step: PaddedNode) -> PaddedResult:
    """Indices from the end look into an axis whose padding is moved to its front."""
    step.same_attrs()
    x, indices = step.input(0), step.input(1)
    axis, known = step.axis(x.rank), indices.constant
    guards: tuple[Guard, ...] = ()
    if known is not None and known.size and -x.shape[axis] <= known.min() and known.max() < 0:  # all from the end
        guards = guard(step, 0, axis, Fill.FRONT, _LOOKS_UP)
    else:
        _within(x, axis, indices, known)
    return PaddedResult([(*x.places[:axis], *indices.places, *x.places[axis + 1 :])], guards)


def gather_elements(step: PaddedNode) -> PaddedResult:
    """Along the other axes an index stands where the element does."""
    step.same_attrs()
    x, indices = step.input(0), step.input(1)
    axis = step.axis(x.rank)
    _within(x, axis, indices, indices.constant)
    for other in range(x.rank):
        same = x.places[other] == indices.places[other] or (x.is_unmoved(other) and indices.is_unmoved(other))
        if other != axis and not same:
            refuse("its operands are padded in different places")
    return PaddedResult([indices.places])


def gather_nd(step: PaddedNode) -> PaddedResult:
    """Each number of an index looks into an axis of its own."""
    step.same_attrs()
    x, indices, batch = step.input(0), step.input(1), get(step.attrs, "batch_dims", int)
    whole_axes(indices, [-1], "takes numbers of an axis as one index")
    width = indices.shape[-1]
    for at in range(width):
        _within(x, batch + at, indices, None if indices.constant is None else indices.constant[..., at])
    if x.places[:batch] != indices.places[:batch]:
        refuse("its operands are padded in different places")
    return PaddedResult([(*indices.places[:-1], *x.places[batch + width :])])


def scatter(step: PaddedNode) -> PaddedResult:
    """What stands in the padding of indices is written behind the end. Updates stand where their indices do."""
    step.same_attrs()
    x, indices, updates = (step.input(operand) for operand in range(3))
    known = indices.constant
    if step.definition.name == "scatter_nd":
        whole_axes(indices, [-1], "takes numbers of an axis as one index")
        named = [(at, None if known is None else known[..., at]) for at in range(indices.shape[-1])]
        free, places = list(range(indices.rank - 1)), (*indices.places[:-1], *x.places[len(named) :])
    else:
        axis = step.axis(x.rank)
        named, places = [(axis, known)], indices.places
        others = [a for a in range(x.rank) if a != axis and x.places[a] != indices.places[a]]
        if not all(map(x.is_unmoved, others)):
            refuse("its operands are padded in different places")
        free = [axis, *others]
    for axis, values in named:
        _within(x, axis, indices, values)
    guards = tuple(each for axis in free for each in guard(step, 1, axis, Fill.BEHIND, "writes along an axis"))
    if guards and not named:
        refuse("it writes to all, wherever its indices stand")
    if updates.places != places:
        refuse("its operands are padded in different places")
    return PaddedResult([x.places], guards)


def triangle(step: PaddedNode) -> PaddedResult:
    """By the places of the last two axes."""
    step.same_attrs()
    x = step.input(0)
    for axis in (-2, -1):
        if not x.is_unmoved(axis):
            whole_axes(x, [axis], "goes by the place in an axis")
    return PaddedResult([x.places])


def one_hot(step: PaddedNode) -> PaddedResult:
    """An axis more, of values."""
    step.same_attrs()
    rest_whole(step)
    x, rank = step.input(0), step.outputs[0].rank
    axis = step.axis(rank)
    return PaddedResult([(*x.places[:axis], unmoved(step.outputs[0].shape[axis]), *x.places[axis:])])
