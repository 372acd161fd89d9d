"""What a matrix product prefetches of its packed right factor, beyond what the hardware does by itself.

Model: the hardware runs ahead of a panel that is read from end to end, and fast enough for the last-level cache:
prefetches there only take a third of its rate. Three cases are left. Where a launch reads far more constants than any
cache keeps, a panel is fetched a fixed distance ahead. Where more rows are multiplied by each vector of a panel that
comes from behind the second-level cache (`streamed`), the hardware sees a line of it only now and then: lines are asked
for a fixed time ahead, that is a number of multiply-adds, by every row tile: the last one so has the beginning of the
next panel fetched. And where several row tiles walk a panel one after the other, the first of them waits for memory
while the others find the panel near: they fetch the next panel together, each its part, so that memory is busy all the
time.

Invariant: prefetches change no result; addresses beyond a factor's end are harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir

from superkernel.codegen.host.builder import I8, Index, KernelBuilder
from superkernel.scheduler.families.matmul_form import MatmulForm
from superkernel.scheduler.families.matmul_tiling import LINE_BYTES, MatmulTiling

AHEAD_BYTES = 4096
AHEAD_FMAS = 2048  # multiply-adds of vectors: about half a microsecond

Step = Callable[[Index], None]


@dataclass(frozen=True, slots=True)
class Panel:
    """Where the depth loop finds the right factor: element (k, column) at base[k * pitch + column]. `ahead`: what the
    loop is to fetch of the next panel, None where it fetches nothing of it."""

    base: ir.Value
    pitch: Index
    copied: bool
    ahead: ir.Value | None = None


def with_next(kb: KernelBuilder, t: MatmulTiling, form: MatmulForm, source: Panel, panel: Index, stop: Index) -> Panel:
    """The panel with the next one as `ahead`, where its row tiles should fetch that; behind the last panel of a range
    comes itself, near already."""
    if not t.fetches_next(form, kb.cpu.l2_bytes):
        return source
    has_next = kb.compare("<", kb.add(panel, 1), stop)
    step = kb.b.select(has_next, kb.i64(t.panel_bytes(form)), kb.i64(0))
    return replace(source, ahead=kb.offset(source.base, step))


def with_next_piece(
    kb: KernelBuilder,
    t: MatmulTiling,
    form: MatmulForm,
    source: Panel,
    first: Index,
    panels: tuple[Index, Index, Index],
) -> Panel:
    """As `with_next` for the piece of a panel from depth `first` on: the same piece of the group's next panel, behind
    the last one the next piece of the first, behind the last piece the next group. `panels`: this one, the group's."""
    if not t.fetches_next(form, kb.cpu.l2_bytes):
        return source
    (panel, begin, end), size = panels, t.panel_bytes(form)
    back = kb.mul(kb.sub(kb.add(begin, 1), end), size)
    step = t.step_bytes(form)
    is_last = kb.compare(">=", kb.add(first, t.piece), t.depth)
    over = kb.b.select(is_last, kb.i64(kb.sub(size, kb.mul(first, step))), kb.i64(kb.add(back, t.piece * step)))
    has_next = kb.compare("<", kb.add(panel, 1), end)
    return replace(source, ahead=kb.offset(source.base, kb.b.select(has_next, kb.i64(size), over)))


def part_of_next(kb: KernelBuilder, t: MatmulTiling, form: MatmulForm, source: Panel, tile: Index) -> Panel:
    """The panel as a row tile of a block sees it: `ahead` is its own part of the next one."""
    if source.ahead is None:
        return source
    part = kb.size("part", t.part_bytes(form))
    return replace(source, ahead=kb.offset(source.ahead, kb.mul(tile, part)))


def prefetch(kb: KernelBuilder, t: MatmulTiling, source: Panel, row: int) -> Step | None:
    """What each step of the depth loop fetches, None where it fetches nothing. `row`: bytes of the panel per step."""
    lines = -(-row * t.phases // LINE_BYTES)
    if t.streamed:
        steps = AHEAD_FMAS // (t.tile_rows * t.vectors)
        ahead = -(-steps * row // LINE_BYTES) * LINE_BYTES
        return _lines(kb, kb.offset(source.base, ahead), row, lines, locality=2)
    if source.ahead is not None:  # a line that two steps touch is asked for twice
        step = kb.size("part_step", t.part_step_bytes(row))
        return _lines(kb, source.ahead, step, t.part_lines(row), locality=2)
    if t.far and t.band_tiles == 1:
        return _lines(kb, kb.offset(source.base, AHEAD_BYTES), row, lines, locality=3)
    return None


def _lines(kb: KernelBuilder, base: ir.Value, step: Index, lines: int, locality: int) -> Step:
    """So many lines per step, from `step` bytes per step of the depth on."""

    def before(k: Index) -> None:
        here = kb.offset(base, kb.mul(k, step))
        for line in range(lines):
            kb.prefetch(kb.b.gep(here, [kb.i64(line * LINE_BYTES)], source_etype=I8), locality=locality)

    return before
