"""The taps of a window along one axis, combined for many outputs by one command each.

Model: outputs and inputs are parts of UB with a pitch; an output's input under a tap is
output x stride + tap x dilation - padding. A tap that some outputs have in the padding is combined over the others
only; the first two taps that all outputs have inside begin the combination, which else begins as its identity. The
order depends on the window alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import lt
from typing import cast

from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Part
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.ops.windows import Window


@contextmanager
def overlap(kb: KernelBuilder, low: int, high: int, start: Number, count: Number) -> Iterator[tuple[Number, Number]]:
    """Those of so many places that lie in [low, high): first and count; nothing where there are none."""
    first, stop = kb.maximum(start, low), kb.minimum(start + count, high)
    with kb.when(kb.compare("<", first, stop)):
        yield first, stop - first


@dataclass(frozen=True, eq=False)
class Taps:
    """Commands in one element type. `identity`: the bits of what changes nothing."""

    kb: KernelBuilder
    work: DType
    combine: str
    identity: int

    def fill(self, dst: Part, count: Number, lanes: Number) -> None:
        """Rows of the identity."""
        self.kb.issue("v_duplicate", self.work, dst=dst, rows=count, cols=lanes, value=self.identity)

    def begin(
        self, window: Window, dst: Part, start: Number, count: Number, origin: Number, src: Part, lanes: Number
    ) -> list[int]:
        """Begin a combination with the first taps that all outputs have inside; the taps that are left, without those
        that no output has."""
        full = [tap for tap in range(window.kernel) if window.taps(tap) == (0, window.size)][:2]
        places = [self.source(window, tap, start, origin, src) for tap in full]
        if len(full) == 2:
            self.onto(dst, places[0], places[1], count, lanes)
        elif full:
            self.kb.issue("v_copy", self.work, dst=dst, src=places[0], rows=count, cols=lanes)
        else:
            self.fill(dst, count, lanes)
        return [tap for tap in range(window.kernel) if tap not in full and lt(*window.taps(tap))]

    def source(self, window: Window, tap: int, first: Number, origin: Number, src: Part) -> Part:
        """What output `first` and those behind it have under a tap, in the slab that begins at input `origin`."""
        pitch = cast("int", src.pitch)
        place = first * window.stride + (tap * window.dilation - window.begin) - origin
        return src.at(place * pitch).rows(window.stride * pitch)

    @contextmanager
    def inside(self, window: Window, tap: int, start: Number, count: Number) -> Iterator[tuple[Number, Number]]:
        """The outputs of a block that have a tap inside the input: first and count; nothing where there are none."""
        if window.taps(tap) == (0, window.size):
            yield start, count
            return
        with overlap(self.kb, *window.taps(tap), start, count) as found:
            yield found

    def onto(self, dst: Part, a: Part, b: Part, count: Number, lanes: Number) -> None:
        """dst = a combined with b."""
        self.kb.issue(self.combine, self.work, dst=dst, a=a, b=b, rows=count, cols=lanes)
