"""What a matrix product prefetches of its packed right factor, beyond what the hardware does by itself.

Model: the hardware runs ahead of a panel that is read from end to end, and fast enough for the last-level cache where
little is computed with it: prefetches there only take a third of its rate. Two cases are left. Where a launch reads far
more constants than any cache keeps, a panel is fetched a fixed distance ahead. And where many rows are multiplied by
each vector of a panel that comes from behind the second-level cache, the hardware sees a line of it only now and then:
there a line is asked for the same time ahead, whatever the shape of the tile, that is a number of multiply-adds. Every
row tile asks, also those that find the panel near: the last one so has the beginning of the next panel fetched.

Invariant: prefetches change no result; addresses beyond a factor's end are harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.host.builder import I8, Index, KernelBuilder
from superkernel.scheduler.families.matmul import MatmulTiling

AHEAD_BYTES = 4096
AHEAD_FMAS = 2048  # vectors of multiply-adds: about half a microsecond
_LINE_BYTES = 64

Step = Callable[[Index], None]


@dataclass(frozen=True, slots=True)
class Panel:
    """Where the depth loop finds the right factor: element (k, column) at base[k * pitch + column]."""

    base: ir.Value
    pitch: Index
    copied: bool


def prefetch(kb: KernelBuilder, t: MatmulTiling, source: Panel, row: int) -> Step | None:
    """What each step of the depth loop fetches, None where it fetches nothing. `row`: bytes of the panel per step."""
    if t.streamed:
        steps = AHEAD_FMAS // (t.tile_rows * t.vectors)
        ahead = -(-steps * row // _LINE_BYTES) * _LINE_BYTES
        return _lines(kb, kb.offset(source.base, ahead), row, t.phases, locality=2)
    if t.far and t.row_tiles == 1:
        return _lines(kb, kb.offset(source.base, AHEAD_BYTES), row, t.phases, locality=3)
    return None


def _lines(kb: KernelBuilder, base: ir.Value, step: int, steps: int, locality: int) -> Step:
    def before(k: Index) -> None:
        here = kb.offset(base, kb.mul(k, step))
        for line in range(0, step * steps, _LINE_BYTES):
            kb.prefetch(kb.b.gep(here, [kb.i64(line)], source_etype=I8), locality=locality)

    return before
