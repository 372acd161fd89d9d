"""Anchors that are a few copies: concat, pad, tile. Each piece is a pointwise program of its own over a box of the
output.

Model: the epilogue is run over disjoint boxes that cover the output; in each box the anchor's result is a plain load
(or a constant), so the box is a pointwise program without an anchor (`feed`). Units are numbered through the pieces,
one piece behind the other, each cut as pointwise programs are. Nothing of a copy's shape, strides or epilogue is
special here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from superkernel.core.errors import InternalError
from superkernel.ir.body import Body, Instruction, PointwiseProgram
from superkernel.ir.collapse import canonical, feed, restrict, walked
from superkernel.ops.movement import pad_sources
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS
from superkernel.scheduler.families.kernel import HostTiling
from superkernel.scheduler.families.pointwise import PointwiseTiling, tile_program
from superkernel.scheduler.families.rowops import integer, real
from superkernel.scheduler.families.rowspace import input_program, remap, split_dim
from superkernel.scheduler.tiling import Access
from superkernel.target.cpu import CpuTarget


@lru_cache(maxsize=1024)
def pieces_of(body: Body) -> tuple[PointwiseProgram, ...]:
    """The copies of a body, canonical, empty ones left out. Raises InternalError for another operator."""
    makers = {"concat": _concat, "pad": _pad, "tile": _tile}
    maker = makers.get(str(body.op))
    if maker is None:
        raise InternalError("not an operator made of copies", location=str(body.op))
    return tuple(canonical(p) for p in maker(body) if 0 not in p.shape)


def _concat(body: Body) -> Iterator[PointwiseProgram]:
    shape = body.anchor_outputs[0].shape
    axis = integer(body.attr["axis"]) % len(shape)
    start = 0
    for k in range(len(body.anchor_inputs)):
        source = input_program(body, k)
        stop = start + source.shape[axis]
        box = tuple((start, stop) if d == axis else (0, extent) for d, extent in enumerate(shape))
        yield feed(restrict(body.epilogue, box), source)
        start = stop


def _tile(body: Body) -> Iterator[PointwiseProgram]:
    """One piece: a repeated axis is two, the outer of which does not move the input."""
    source, repeats, epilogue = input_program(body, 0), body.attr["repeats"], body.epilogue
    assert isinstance(repeats, tuple)
    dims: list[int | None] = []
    for d, (count, extent) in enumerate(zip(repeats, source.shape, strict=True)):
        if count != 1 and extent > 1:
            epilogue = split_dim(epilogue, len(dims), extent)
            dims.append(None)
        dims.append(d)
    yield feed(epilogue, remap(source, epilogue.shape, dims))


@dataclass(frozen=True, slots=True)
class _Span:
    """Output indices [start, stop) of an axis that read input indices first, first + step, ...; None: the fill."""

    start: int
    stop: int
    first: int | None
    step: int


def _pad(body: Body) -> Iterator[PointwiseProgram]:
    source, pads, mode = input_program(body, 0), body.attr["pads"], str(body.attr["mode"])
    assert isinstance(pads, tuple)
    rank = len(source.shape)
    spans = [_axis_spans(source.shape[d], int(pads[d]), int(pads[rank + d]), mode) for d in range(rank)]
    kind = body.anchor_outputs[0].dtype
    fill = Instruction("constant", (), kind, (("value", real(body.attr["value"])),))
    for combination in product(*spans):
        inner = restrict(body.epilogue, tuple((s.start, s.stop) for s in combination))
        if any(s.first is None for s in combination):
            yield feed(inner, fill)
        else:
            yield feed(inner, _walk(source, combination))


def _walk(source: PointwiseProgram, spans: Sequence[_Span]) -> PointwiseProgram:
    """The input read along spans of its axes."""
    return walked(
        source,
        [s.stop - s.start for s in spans],
        lambda strides: tuple(stride * s.step for stride, s in zip(strides, spans, strict=True)),
        lambda strides: sum(stride * (s.first or 0) for stride, s in zip(strides, spans, strict=True)),
    )


def _axis_spans(extent: int, begin: int, end: int, mode: str) -> list[_Span]:
    """The index map of a padded axis (see the operator) as runs of steps 1, -1 or 0."""
    if mode == "constant":
        kept, before, behind = extent + min(begin, 0) + min(end, 0), max(begin, 0), max(end, 0)
        ends = ((0, before), (before + kept, before + kept + behind)) if kept else ((0, before + behind),)
        spans = [_Span(start, stop, None, 0) for start, stop in ends]
        spans.insert(1, _Span(before, before + kept, max(0, -begin), int(kept > 1)))
        return [s for s in spans if s.stop > s.start]
    sources = pad_sources(extent, begin, end, mode)
    steps = np.diff(sources)
    steps[abs(steps) > 1] = 2  # joins nothing
    turns = np.flatnonzero(np.diff(steps)) + 1  # where a step is another than the one before
    found: list[_Span] = []
    position = 0
    while position < len(sources):
        step = int(steps[position]) if position < len(steps) else 2
        turn = np.searchsorted(turns, position, side="right")
        run = int(turns[turn]) if turn < len(turns) else len(steps)
        stop = position + 1 if step == 2 else run + 1
        found.append(_Span(position, stop, int(sources[position]), 0 if step == 2 else step))
        position = stop
    return found


@dataclass(frozen=True)
class PiecesTiling(HostTiling):
    """One tiling per piece, units numbered through."""

    parts: tuple[PointwiseTiling, ...]

    @property
    def units(self) -> int:
        return sum(p.units for p in self.parts)

    def ranges(self, begin: int, end: int) -> Iterator[tuple[int, PointwiseTiling, int, int]]:
        """(piece, its tiling, its first unit, end) of every piece that a range takes in."""
        base = 0
        for k, part in enumerate(self.parts):
            first, last = max(begin - base, 0), min(end - base, part.units)
            if first < last:
                yield k, part, first, last
            base += part.units

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        programs, found = pieces_of(body), AccessSet(body)
        for k, part, first, last in self.ranges(begin, end):
            found.program(programs[k], *part.boxes(programs[k], first, last))
        return found.result()

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        programs = pieces_of(body)
        parts = self.ranges(begin, end)
        total = sum(part.program_ns(body, programs[k], first, last, target) - CALL_NS for k, part, first, last in parts)
        return total + CALL_NS if end > begin else 0.0


def tile_pieces(body: Body, target: CpuTarget) -> PiecesTiling:
    """Each piece cut as a pointwise program."""
    return PiecesTiling(tuple(tile_program(body, p, target) for p in pieces_of(body)))
