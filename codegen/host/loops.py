"""Loop shapes that kernels share: vector loops with exact tails, walks over flattened outer dimensions.

Invariant: a tail is computed with a vector of exactly the remaining width; nothing beyond a range is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from llvmlite import ir

from superkernel.codegen.host.builder import I64, Index, KernelBuilder
from superkernel.ops.windows import Window
from superkernel.scheduler.families.conv import ConvTiling
from superkernel.scheduler.families.open_extents import MARKS

Body = Callable[[Index, int], object]


def vector_loop(kb: KernelBuilder, extent: int, lanes: int, body: Body, name: str = "v") -> None:
    """`body(position, width)` over [0, extent): full vectors in a loop, then one narrower vector."""
    full = extent // lanes * lanes
    if full:
        with kb.loop(0, full, lanes, name=name) as position:
            body(position, lanes)
    if extent > full:
        body(full, extent - full)


strips = partial(vector_loop, name="strip")
"""A vector loop of a part of a kernel."""


def vector_range(
    kb: KernelBuilder, start: Index, stop: Index, extent: Index, tail: int, lanes: int, body: Body
) -> None:
    """`body` over [start, stop) where `start` is a multiple of `lanes` and `stop` is one or is `extent`, the end of
    all, of which `tail` positions fill no vector."""
    full = kb.sub(extent, tail)
    if full != 0:
        with kb.loop(start, kb.minimum(stop, full), lanes, name="v") as position:
            body(position, lanes)
    if tail:
        with kb.when(kb.b.and_(kb.compare("<=", start, full), kb.compare(">", stop, full))):
            body(full, tail)


def split_index(kb: KernelBuilder, index: Index, shape: Sequence[int]) -> list[Index]:
    """Coordinates of a flattened row-major index."""
    coords: list[Index] = []
    for extent in map(kb.known, reversed(shape[1:])):
        coords.append(kb.rem(index, extent))
        index = kb.div(index, extent)
    if shape:
        coords.append(index)
    return coords[::-1]


@contextmanager
def each_row(kb: KernelBuilder, begin: Index, end: Index, shape: Sequence[int]) -> Iterator[list[Index]]:
    """Every flattened index of [begin, end) over `shape`, as coordinates. Where extents are marks, coordinates are
    counted on: a division by what is not known takes as long as a short row."""
    if all(extent < MARKS for extent in shape):
        with kb.loop(begin, end, name="row") as row:
            yield split_index(kb, row, shape)
        return
    at = [kb.carry(I64, kb.i64(first)) for first in split_index(kb, begin, shape)]
    with kb.loop(begin, end, name="row"):
        yield [coordinate.get() for coordinate in at]
        step: ir.Value = ir.Constant(I64, 1)
        for extent, coordinate in zip(map(kb.known, shape[:0:-1]), at[:0:-1], strict=True):
            after = kb.i64(kb.add(coordinate.get(), step))
            full = kb.compare(">=", after, extent)
            coordinate.set(kb.b.select(full, ir.Constant(I64, 0), after))
            step = kb.b.zext(full, I64)
        at[0].set(kb.i64(kb.add(at[0].get(), step)))


@contextmanager
def repeated(kb: KernelBuilder, name: str) -> Iterator[Callable[[ir.Value], None]]:
    """A loop that ends where what it yields, called at any place inside, is given a true i1."""
    head, after = (kb.function.append_basic_block(f"{name}.{part}") for part in ("head", "after"))
    kb.b.branch(head)
    kb.b.position_at_end(head)

    def leave(condition: ir.Value) -> None:
        further = kb.function.append_basic_block(f"{name}.on")
        kb.b.cbranch(condition, after, further)
        kb.b.position_at_end(further)

    yield leave
    kb.b.branch(head)
    kb.b.position_at_end(after)


def taps_inside(kb: KernelBuilder, window: Window, start: Index, end: int) -> tuple[Index, Index]:
    """[low, high) of the taps of a window that lie in [0, end), its first one being at `start`; high may be below
    low."""
    d = window.dilation
    low, high = (
        kb.minimum(kb.div(kb.add(kb.maximum(kb.sub(edge, start), 0), d - 1), d), window.kernel) for edge in (0, end)
    )
    return low, high


@contextmanager
def each_group(kb: KernelBuilder, per: Index, name: str) -> Iterator[tuple[Index, Index, Index]]:
    """The groups of `per` units that the kernel's range touches: (group, first, last) of the units in it."""
    with kb.loop(kb.div(kb.begin, per), kb.div(kb.add(kb.end, kb.sub(per, 1)), per), name=name) as group:
        low = kb.maximum(kb.sub(kb.begin, kb.mul(group, per)), 0)
        yield group, low, kb.minimum(kb.sub(kb.end, kb.mul(group, per)), per)


def band_of(kb: KernelBuilder, tiling: ConvTiling, index: Index) -> tuple[Index, tuple[Index, Index]]:
    """Of a band of all images' and groups': which image and group that is, and the band's blocks."""
    if tiling.bands == 1:
        return index, (0, tiling.blocks)
    first = kb.mul(kb.rem(index, tiling.bands), tiling.band_blocks)
    return kb.div(index, tiling.bands), (first, kb.minimum(kb.add(first, tiling.band_blocks), tiling.blocks))
