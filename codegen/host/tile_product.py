"""The sums of a register tile as a grid of the CPU's tiles: what matrix products and convolutions in tiles share.

Model: a grid of up to four tiles of sums, `rows` x `columns`, stays in registers while the depth is walked, 16 words of
it at a time: the tiles of those rows and of those weights are loaded, each of the one is multiplied by each of the
other. What is left of a run of words, `tail` of them, has tiles of its own, so that nothing behind a run is read; then
there are fewer registers for the others, and rows are loaded again for each tile of weights.

Rows lie on *lines*, each line's the same distance apart. Tiles of rows are equally tall. Where that does not come out
even the last one of a line is moved up: some rows are computed twice, to the same bits.

Registers: sums, then rows, then weights, then rows and weights of a tail.

Nothing is fetched ahead: a step asks for 64 cache lines in the time of 64 cycles of arithmetic, and more requests than
that keep the hardware from running ahead of the panel by itself. A panel that does not stay in the first-level cache
until it is walked again is read past it (`passing`), so that rows stay there.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.tiles import TILE_REGISTERS, TileShape, tiles_of
from superkernel.core.formats import TILE_BYTES, TILE_ROWS, NumberFormat

_WORD_BYTES = 4


class TileProduct:
    """Sums of `lines` times `rows` by `columns` (a multiple of 16) in a format. `tail`: words of a run beyond a
    multiple of 16. `passing`: see the module docstring."""

    def __init__(
        self,
        kb: KernelBuilder,
        number: NumberFormat,
        rows: int,
        columns: int,
        *,
        lines: int = 1,
        tail: int = 0,
        passing: bool = False,
    ) -> None:
        self.kb, self.format, self.panel, self.tail, self.passing = kb, number, columns, tail, passing
        self.rows, each = rows, -(-rows // TILE_ROWS)
        height, count = -(-rows // each), lines * each
        self.starts = [(line, min(i * height, rows - height)) for line in range(lines) for i in range(each)]
        self.columns = columns // TILE_ROWS
        sums = [TileShape(height)] * (count * self.columns)
        self.held = 1 if tail else min(count, TILE_REGISTERS - len(sums) - 1)  # tiles of rows in registers at a time
        held = [TileShape(height)] * self.held
        ends = [TileShape(height, tail * _WORD_BYTES), TileShape(tail)] if tail else []
        free = TILE_REGISTERS - len(sums) - len(held) - len(ends)
        weights = [TileShape(TILE_ROWS)] * min(self.columns, free)
        self.first_row, self.first_weights = len(sums), len(sums) + len(held)
        self.first_end = self.first_weights + len(weights)
        self.registers = tiles_of(kb, [*sums, *held, *weights, *ends])

    def start(self, begin: ir.Value | None = None) -> None:
        """Sums from 0 on, or in every row from those at `begin` on."""
        for i in range(len(self.starts)):
            for j in range(self.columns):
                if begin is None:
                    self.registers.clear(i * self.columns + j)
                else:
                    self.registers.load(i * self.columns + j, self.kb.offset(begin, j * TILE_BYTES), 0)

    def add(self, rows: ir.Value, pitch: int, weights: ir.Value, words: int, line_pitch: int = 0) -> None:
        """The products of a run of words of rows, `pitch` bytes apart, on lines `line_pitch` bytes apart, and of the
        panel's words."""
        kb, panel, pitches = self.kb, self.panel * _WORD_BYTES, (line_pitch, pitch)
        assert words % TILE_ROWS == self.tail
        with kb.loop(0, words // TILE_ROWS, name="k") as k:
            here = kb.offset(weights, kb.mul(k, TILE_ROWS * panel))
            self._step(kb.offset(rows, kb.mul(k, TILE_BYTES)), pitches, here, self.first_row, self.first_weights)
        if self.tail:
            whole = words // TILE_ROWS
            here = kb.offset(weights, whole * TILE_ROWS * panel)
            self._step(kb.offset(rows, whole * TILE_BYTES), pitches, here, self.first_end, self.first_end + 1)

    def store(self, results: ir.Value) -> None:
        """The sums as rows of `columns` numbers, line after line."""
        panel = self.panel * _WORD_BYTES
        for i, (line, start) in enumerate(self.starts):
            for j in range(self.columns):
                at = (line * self.rows + start) * panel + j * TILE_BYTES
                self.registers.store(i * self.columns + j, self.kb.offset(results, at), panel)

    def _step(self, rows: ir.Value, pitches: tuple[int, int], weights: ir.Value, row: int, weight: int) -> None:
        """The products of one step. `pitches`: of lines and rows; `row`, `weight`: the first registers of either."""
        kb, registers = self.kb, self.registers
        count, loaded = len(self.starts), 1 if row == self.first_end else self.first_end - self.first_weights

        def load(i: int) -> None:
            at = sum(start * pitch for start, pitch in zip(self.starts[i], pitches, strict=True))
            registers.load(row + i % self.held, kb.offset(rows, at), pitches[1])

        if self.held == count:
            for i in range(count):
                load(i)
        for j in range(self.columns):
            own = weight + j % loaded
            registers.load(own, kb.offset(weights, j * TILE_BYTES), self.panel * _WORD_BYTES, self.passing)
            for i in range(count):
                if self.held < count:
                    load(i)
                registers.multiply_add(self.format, i * self.columns + j, row + i % self.held, own)
