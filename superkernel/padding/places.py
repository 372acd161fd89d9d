"""Where the elements of a tensor lie in the padded tensor that stands for it.

Model: along each axis the places are an injection of 0 .. extent-1 into the axis of the padded tensor, as `Places`:
digits (extent, stride) of a mixed radix, outermost first; place = sum of digit * stride. An axis that is padded behind
its end has the one digit (extent, 1); the merged axes of [batch, seq], seq padded to 8, have (batch, 8), (seq, 1).

Invariant: no digit has the extent 1, and neighbours that are one digit stand as one; so equal injections are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Places: TypeAlias = tuple[tuple[int, int], ...]


def coalesced(digits: Iterable[tuple[int, int]]) -> Places:
    """The same injection with as few digits as there can be."""
    found: list[tuple[int, int]] = []
    for extent, stride in digits:
        if found and found[-1][1] == extent * stride:
            found[-1] = (found[-1][0] * extent, stride)
        elif extent != 1:
            found.append((extent, stride))
    return tuple(found)


def unmoved(extent: int) -> Places:
    """Every element where it was: padding, if any, lies behind the end."""
    return () if extent == 1 else ((extent, 1),)


def reshaped(
    axes: Sequence[Places], padded: Sequence[int], shape: Sequence[int], padded_shape: Sequence[int]
) -> list[Places] | None:
    """Places per axis after both tensors were reshaped: one with places `axes` in extents `padded` to `shape`, the
    padded one to `padded_shape`. None where they are no injection per axis. No extent is 0."""
    left: list[tuple[int, int]] = []
    stride = 1
    for places, extent in zip(reversed(axes), reversed(padded), strict=True):
        left = [(count, step * stride) for count, step in places] + left
        stride *= extent
    left = list(coalesced(left))
    found: list[Places] = []
    stride = 1
    for extent, padded_extent in zip(reversed(shape), reversed(padded_shape), strict=True):
        digits: list[tuple[int, int]] = []
        need = extent
        while need > 1:
            count, step = left.pop()
            if count > need and count % need == 0:
                left.append((count // need, step * need))
                count = need
            if need % count or step % stride:
                return None
            digits.insert(0, (count, step // stride))
            need //= count
        if sum((count - 1) * step for count, step in digits) >= padded_extent:
            return None
        found.insert(0, coalesced(digits))
        stride *= padded_extent
    return found
