"""Rules of operators that find as many things as the data has: padding is not to be found."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from superkernel.padding.guards import Fill, Guard
from superkernel.padding.padded import PaddedNode, PaddedResult, guard, refuse, whole_axes
from superkernel.padding.places import unmoved

_COUNTS = "counts elements along an axis"


def nonzero(step: PaddedNode) -> PaddedResult:
    """Zeros are not found. Behind the first axis padding would change what others are called."""
    x = step.input(0)
    whole_axes(x, range(1, x.rank), _COUNTS)
    guards = guard(step, 0, 0, Fill.ZERO, _COUNTS) if x.rank else ()
    return replace(_found(step, guards), below=prod(x.shape), headed=True)


def suppression(step: PaddedNode) -> PaddedResult:
    """Boxes whose score is no number are not selected; nor are, where boxes must exceed a score, those of the least.
    Nor do they suppress others."""
    step.same_attrs("size", "limit")
    boxes, scores = step.input(0), step.input(1)
    guards: tuple[Guard, ...] = ()
    fill = Fill.NAN if step.attrs["score_threshold"] is None else Fill.LEAST
    for axis in range(scores.rank):
        guards += guard(step, 1, axis, fill, "selects along an axis")
    if boxes.places[:2] != (scores.places[0], scores.places[2]):
        refuse("its boxes and scores are padded in different places")
    limits = (step.attrs["limit"], step.padded_attrs["limit"])
    if limits[0] != limits[1] and limits != (scores.shape[2], scores.padded[2]):
        refuse("attribute 'limit' changes with the sizes")
    return replace(_found(step, guards), below=max(scores.shape), headed=True)


def _found(step: PaddedNode, guards: tuple[Guard, ...]) -> PaddedResult:
    """What is found is the same, from the front; there is room for more."""
    if step.outputs[0].shape[0] > step.padded_outputs[0].shape[0]:
        refuse("there is less room for more", str(step.padded_outputs[0]), str(step.outputs[0]))
    return PaddedResult([tuple(map(unmoved, step.outputs[0].shape))], guards)
