"""The vector cores' role in convolutions whose epilogue FIX cannot do: see scheduler/families/aicore/conv_mix.

Model: the cube core sends a tile of f32 sums per unit; each vector core goes through its half of the lines, runs the
epilogue's program on tiles in UB and stores the results.
"""

from __future__ import annotations

from superkernel.codegen.aicore.channel import Channel
from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.kernels.conv_units import Unit, unit_of
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.conv_form import cube_conv
from superkernel.scheduler.families.aicore.conv_mix import SLOTS, lane_form
from superkernel.scheduler.families.aicore.conv_tiling import ConvTiling
from superkernel.scheduler.families.aicore.tilecode import Home, Register, TileLayout
from superkernel.target.engines import Local


def result_channel(kb: KernelBuilder, tiling: ConvTiling) -> Channel:
    """From the cube core to the vector cores, a tile of sums per unit."""
    return Channel(kb, tiling.slot_bytes, kb.end - kb.begin, to_vector=True)


def emit_lane(kb: KernelBuilder, body: Body, tiling: ConvTiling) -> None:
    """All units of the range, this core's half of each."""
    lane, channel = _Lane(kb, body, tiling), result_channel(kb, tiling)
    conv = cube_conv(body)
    with kb.loop(kb.begin, kb.end) as number:
        unit = unit_of(kb, conv, tiling, number // tiling.inner, number % tiling.inner)
        if lane.is_one_tile:
            lane.whole_half(unit, channel)
        else:
            with channel.turn() as slot:
                lane.half(unit, slot)


class _Lane:
    def __init__(self, kb: KernelBuilder, body: Body, tiling: ConvTiling) -> None:
        self.kb, self.tiling, self.conv = kb, tiling, cube_conv(body)
        form = lane_form(body, self.conv.epilogue, tiling.framed)
        assert form is not None
        self.form = form
        size = self.form.size(tiling.lane_rows, tiling.channels, kb.target.memory.block_bytes)
        inputs, outputs = kb.ring("in", SLOTS), kb.ring("out", SLOTS)
        sums = Register(TileLayout.MATRIX, self.form.sums, Home.ANCHOR)
        self.sums = kb.buffer(inputs, Local.UB, size.nbytes(sums), "sums").rows(size.pitch(sums))
        self.tile = TileProgram(kb, self.form.program, self.form.code, size, inputs, outputs, anchors=[self.sums])
        self.rings = (inputs, *(r for r in self.tile.rings if r is not inputs))

    @property
    def is_one_tile(self) -> bool:
        """Whether this core's half of every unit is one tile, and never empty."""
        tiling, least = self.tiling, self.conv.out_height - (self.tiling.row_blocks - 1) * self.tiling.rows
        return self.form.merged and tiling.lane_rows >= (tiling.positions + 1) // 2 and least * tiling.columns >= 2

    def whole_half(self, unit: Unit, channel: Channel) -> None:
        """This core's lines in one tile: what does not come from the cube core is loaded while waiting for that."""
        first, last = self._mine(unit.rows * self.tiling.columns)
        with self.kb.turn(*self.rings):
            place = self._place(unit, 0, unit.row * self.conv.out_width + first)
            self.tile.load(place, last - first, unit.channels)
            with channel.turn() as slot:
                self._load_sums(slot, first, last - first, unit)
            self.tile.compute(last - first, unit.channels)
            self.tile.store(place, last - first, unit.channels)

    def half(self, unit: Unit, slot: Address) -> None:
        """This core's lines of a unit."""
        kb, tiling, conv = self.kb, self.tiling, self.conv
        if self.form.merged:
            first, last = self._mine(unit.rows * tiling.columns)
            self._lines(unit, slot, first, last, unit.row * conv.out_width, 0)
            return
        first, last = self._mine(unit.rows)
        with kb.loop(first, last) as line:
            self._lines(unit, slot, 0, unit.columns, unit.column, line)

    def _mine(self, lines: Number) -> tuple[Number, Number]:
        middle = (lines + 1) // 2
        return (middle, lines) if self.kb.role.lane else (0, middle)

    def _lines(self, unit: Unit, slot: Address, first: Number, last: Number, position: Number, line: Number) -> None:
        """Positions [first, last) of a line, tile by tile; `position`: of the line's first one in the program."""
        kb, tiling = self.kb, self.tiling
        with kb.loop(first, last, tiling.lane_rows) as at, kb.turn(*self.rings):
            rows = kb.minimum(tiling.lane_rows, last - at)
            place = self._place(unit, line, position + at)
            self.tile.load(place, rows, unit.channels)
            self._load_sums(slot, line * tiling.columns + at, rows, unit)
            self.tile.compute(rows, unit.channels)
            self.tile.store(place, rows, unit.channels)

    def _place(self, unit: Unit, line: Number, position: Number) -> tuple[Number, ...]:
        """Coordinates of a tile's first element in the program."""
        channel = unit.group * self.conv.out_channels + unit.channel
        lines = () if self.form.merged else (unit.row + line,)
        return (unit.image, channel, *lines, position)

    def _load_sums(self, slot: Address, first: Number, rows: Number, unit: Unit) -> None:
        """Lines of the cube core's tile, from `first` on."""
        width = self.tiling.channels * 4
        self.kb.load_rows(self.sums, slot.at(first * width).rows(width), self.form.sums, rows, unit.channels)
