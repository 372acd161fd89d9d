"""Sliding windows: what convolutions and pools share (extents, strides, padding, which inputs a window reads).

Model: along one spatial axis output o reads the positions o*stride + t*dilation - pad_begin for t in 0 .. kernel-1;
those outside the input are padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from superkernel.ops.common import get_ints, require
from superkernel.ops.opdef import Attrs


@dataclass(frozen=True)
class Window:
    """The window along one spatial axis: input extent, kernel, stride, dilation, padding, and the output extent."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    size: int

    @property
    def reach(self) -> int:
        """From a window's first position to one past its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def reads_inside(self) -> bool:
        """Whether no output reads padding."""
        return self.begin == 0 and (self.size - 1) * self.stride + self.reach <= self.extent

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """The smallest interval of inputs that outputs start..stop-1 read; (0, 0) where they read padding only."""
        outputs, taps = (range(max(0, start), min(stop, self.size)), self.stride), (range(self.kernel), self.dilation)
        (few, step), (many, pace) = sorted((outputs, taps), key=lambda walked: len(walked[0]))
        low, high = self.extent, 0
        for at in few:  # of the others, those that lead inside are a range
            base = at * step - self.begin
            first, last = max(many.start, -(base // pace)), min(many.stop - 1, (self.extent - 1 - base) // pace)
            if first <= last:
                low, high = min(low, base + first * pace), max(high, base + last * pace + 1)
        return (low, high) if low < high else (0, 0)

    def taps(self, tap: int) -> tuple[int, int]:
        """The outputs whose position under `tap` lies inside the input: start, stop (empty where start >= stop)."""
        offset = tap * self.dilation - self.begin
        first = max(0, -(offset // self.stride))
        last = min(self.size, (self.extent - 1 - offset) // self.stride + 1)
        return first, last

    def source(self, tap: int, first: int, last: int) -> slice:
        """The inputs that outputs first..last-1 (of `taps`, not empty) read under `tap`."""
        offset = tap * self.dilation - self.begin
        return slice(first * self.stride + offset, (last - 1) * self.stride + offset + 1, self.stride)


ONE = Window(1, 1, 1, 1, 0, 0, 1)
"""Of an axis that there is none of."""


def spatial(attrs: Attrs, name: str, rank: int, default: int, least: int) -> tuple[int, ...]:
    """A per-axis attribute: `default` where empty, checked for length and least value."""
    values = get_ints(attrs, name) or (default,) * rank
    require(len(values) == rank, f"{name} has the wrong length", f"{rank}, one per spatial axis", len(values))
    require(min(values, default=least) >= least, f"bad {name}", f"{least} or more", list(values))
    return values


def paddings(attrs: Attrs, rank: int) -> list[tuple[int, int]]:
    """(begin, end) per spatial axis."""
    pads = get_ints(attrs, "pads") or (0,) * (2 * rank)
    require(len(pads) == 2 * rank, "pads has the wrong length", f"{2 * rank} (begins, then ends)", len(pads))
    require(min(pads, default=0) >= 0, "negative pads", "0 or more", list(pads), hint="crop with a slice")
    return list(zip(pads[:rank], pads[rank:], strict=True))


def windows(
    extents: Sequence[int], kernel: Sequence[int], attrs: Attrs, *, dilated: bool = True, ceil_mode: bool = False
) -> tuple[Window, ...]:
    """One Window per spatial axis, from strides, dilations (where `dilated`) and pads. Raises GraphError where a window
    does not fit into the padded input."""
    rank = len(extents)
    strides = spatial(attrs, "strides", rank, 1, 1)
    dilations = spatial(attrs, "dilations", rank, 1, 1) if dilated else (1,) * rank
    found = []
    for axis, (begin, end) in enumerate(paddings(attrs, rank)):
        extent, stride, dilation = extents[axis], strides[axis], dilations[axis]
        padded, reach = extent + begin + end, (kernel[axis] - 1) * dilation + 1
        require(reach <= padded, f"the window does not fit on spatial axis {axis}", f"at most {padded}", reach)
        size = (padded - reach) // stride + 1
        if ceil_mode and (padded - reach) % stride and size * stride < extent + begin:
            size += 1  # a last window over the edge, unless it would start in the end padding
        found.append(Window(extent, kernel[axis], stride, dilation, begin, end, size))
    return tuple(found)


def window_taps(axes: Sequence[Window]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """Every tap of an N-dimensional window that meets the input: tap, the outputs it serves, the inputs they read."""
    for tap in product(*(range(w.kernel) for w in axes)):
        spans = [w.taps(t) for w, t in zip(axes, tap, strict=True)]
        if all(first < last for first, last in spans):
            sources = tuple(w.source(t, *s) for w, t, s in zip(axes, tap, spans, strict=True))
            yield tap, tuple(slice(*s) for s in spans), sources


def trailing(where: tuple[slice, ...] | tuple[int, ...]) -> Any:
    """The index that applies `where` to the last axes (Any: NumPy's stubs have no type for it)."""
    return (..., *where)
