"""Depthwise convolutions on the vector cores: see scheduler/families/aicore/depthwise.

Model: a unit's pixels lie in UB row by row, the channels of its block side by side; so do its sums. A vector command
adds one tap to one output row: the pixels that the row's outputs meet there are `stride` pixels apart, the filter's
row of channels is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.codegen.aicore.kernels.conv_units import split
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, View
from superkernel.scheduler.families.aicore.conv_fix import slot_bias
from superkernel.scheduler.families.aicore.conv_mix import SLOTS
from superkernel.scheduler.families.aicore.depthwise import DepthwiseTiling, lanes_of
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.target.engines import Local

F32 = DType.F32
_UNROLLED = 5  # taps of a filter row whose bounds are known while emitting


@dataclass(frozen=True)
class _Axis:
    """Rows or columns of a unit: outputs, input positions in UB, and the padding ahead of those."""

    begin: Number
    outputs: Number
    first: Number
    inputs: Number
    pad: Number


class DepthwiseKernel:
    """The kernel of one body: see the module docstring."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: DepthwiseTiling) -> None:
        self.kb, self.body, self.tiling, self.form = kb, body, tiling, conv_form(body)
        form, view = self.form, body.anchor_inputs[1]
        assert isinstance(view, View)
        self.weights, self.bias = view.operand, slot_bias(body)
        self.item = form.dtype.itemsize
        pixels, positions = tiling.image[0] * tiling.image[1], tiling.rows * tiling.columns
        self.lanes = lanes_of(body, tiling.merged)
        self.filters, self.inputs, outputs = kb.ring("filters", SLOTS), kb.ring("in", SLOTS), kb.ring("out", SLOTS)
        self.taps = kb.buffer(self.filters, Local.UB, form.taps * tiling.fold * tiling.channels * 4, "taps")
        self.summands = kb.buffer(self.filters, Local.UB, tiling.channels * 4, "bias")
        self.pixels = kb.buffer(self.inputs, Local.UB, pixels * tiling.channels * self.item, "pixels")
        self.wide = self.pixels
        if form.dtype is not DType.F32:
            self.wide = kb.fixed(Local.UB, pixels * tiling.channels * 4, "wide")
        self.pitch = tiling.channels * 4
        whole = kb.ring("sums", 1)  # of a unit: they may be stored as they are
        self.sums = kb.buffer(whole, Local.UB, positions * tiling.channels * 4, "sums").rows(self.pitch)
        size = self.lanes.size(positions, tiling.channels, kb.target.memory.block_bytes)
        program, code = self.lanes.program, self.lanes.code
        self.tile = TileProgram(kb, program, code, size, self.inputs, outputs, anchors=[self.sums])
        self.rings = (self.inputs, whole, *(r for r in self.tile.rings if r is not self.inputs))

    def emit(self) -> None:
        """All units of the range."""
        kb, tiling = self.kb, self.tiling
        inner = tiling.units // tiling.channel_blocks
        first = kb.begin // inner
        last = kb.select(kb.compare("<", kb.begin, kb.end), (kb.end + (inner - 1)) // inner, first)
        with kb.loop(first, last) as block, kb.turn(self.filters):
            begin = block * tiling.channels
            even = tiling.channel_blocks * tiling.channels == self.form.groups
            channels = tiling.channels if even else kb.minimum(tiling.channels, self.form.groups - begin)
            self._load_filter(block)
            low = kb.maximum(kb.begin - block * inner, 0)
            with kb.loop(low, kb.minimum(kb.end - block * inner, inner)) as place, kb.turn(*self.rings):
                self._unit(place, begin, channels)

    def _load_filter(self, block: Number) -> None:
        kb, width = self.kb, self.tiling.channels * 4
        size = self.form.taps * self.tiling.fold * width
        kb.issue("gm_to_ub", dst=self.taps, src=kb.operand(self.weights, block * size), bytes=size)
        if self.bias is not None:
            kb.issue("gm_to_ub", dst=self.summands, src=kb.operand(self.bias.operand, block * width), bytes=width)

    def _unit(self, place: Number, channel: Number, channels: Number) -> None:
        kb, tiling = self.kb, self.tiling
        image, row, column = split(place, tiling.places)
        rows = self._axis(0, row, tiling.row_blocks)
        columns = self._axis(1, column, tiling.column_blocks)
        at = self._coordinates(image, channel, rows, columns)
        positions = rows.outputs * columns.outputs
        self._load(image, rows, columns, channel, channels)
        self.tile.load(at, positions, channels)
        if self.wide is not self.pixels:
            self._widen(rows, columns, channels)
        if self.bias is not None:
            form = "row"
            kb.issue("v_broadcast", F32, dst=self.sums, src=self.summands, rows=positions, cols=channels, form=form)
        else:
            kb.issue("v_duplicate", F32, dst=self.sums, rows=positions, cols=channels, value=0)
        self._add_taps(rows, columns, channels)
        self.tile.compute(positions, channels)
        self.tile.store(at, positions, channels)

    def _widen(self, rows: _Axis, columns: _Axis, channels: Number) -> None:
        lines, width = rows.inputs * columns.inputs, channels
        factor: Number = 1
        if self.tiling.fold > 1:  # rows of pixels without gaps
            lines, width, factor = rows.inputs, columns.inputs * self.tiling.channels, columns.inputs
        dst, src = self.wide.rows(factor * self.pitch), self.pixels.rows(factor * (self.tiling.channels * self.item))
        self.kb.issue("v_cast", self.form.dtype, F32, dst=dst, src=src, rows=lines, cols=width)

    def _coordinates(self, image: Number, channel: Number, rows: _Axis, columns: _Axis) -> tuple[Number, ...]:
        """Of the unit's first result in the program's space."""
        if not self.tiling.merged:
            return (image, channel, rows.begin, columns.begin)
        return (image, channel, rows.begin * self.form.out_width + columns.begin)

    def _axis(self, axis: int, block: Number, blocks: int) -> _Axis:
        kb, form, size = self.kb, self.form, (self.tiling.rows, self.tiling.columns)[axis]
        extent, outputs = ((form.height, form.out_height), (form.width, form.out_width))[axis]
        stride, pad = form.strides[axis], form.pads[axis]
        begin = block * size
        count: Number = size if size * blocks == outputs else kb.minimum(size, outputs - begin)
        if blocks == 1 and axis == 1:
            return _Axis(0, count, 0, extent, pad)
        low = begin * stride - pad
        high = low + (count - 1) * stride + ((form.kernel[axis] - 1) * form.dilations[axis] + 1)
        first = kb.minimum(kb.maximum(low, 0), extent - 1)
        last = kb.maximum(kb.minimum(high, extent), first + 1)
        return _Axis(begin, count, first, last - first, first - low)

    # Pixels -----------------------------------------------------------------------------------------------------------

    def _load(self, image: Number, rows: _Axis, columns: _Axis, channel: Number, channels: Number) -> None:
        kb, form = self.kb, self.form
        outer, _, down, across = form.x_strides
        start = image * outer + rows.first * down + columns.first * across + channel + form.x_offset
        whole = self.tiling.column_blocks == 1
        width = form.width * form.groups
        pitch = self.tiling.channels * self.item
        if whole and self.tiling.channels == form.groups == across and (form.height == 1 or down == width):
            source = kb.operand(form.operand, start * self.item)
            kb.issue("gm_to_ub", dst=self.pixels, src=source, bytes=rows.inputs * (width * self.item))
        elif whole and (form.height == 1 or down == form.width * across):
            self._matrix(self.pixels, start, rows.inputs * form.width, channels, across)
        else:
            with kb.loop(0, rows.inputs) as row:
                part = self.pixels.at(row * columns.inputs * pitch)
                self._matrix(part, start + row * down, columns.inputs, channels, across)

    def _matrix(self, dst: Buffer | Part, start: Number, pixels: Number, channels: Number, step: int) -> None:
        src = self.kb.operand(self.form.operand, start * self.item).rows(step * self.item)
        self.kb.load_rows(dst.rows(self.tiling.channels * self.item), src, self.form.dtype, pixels, channels)

    # Taps -------------------------------------------------------------------------------------------------------------

    def _add_taps(self, rows: _Axis, columns: _Axis, channels: Number) -> None:
        kb, form = self.kb, self.form
        with kb.loop(0, form.kernel[0]) as down, kb.loop(0, rows.outputs) as row:
            line = row * form.strides[0] + down * form.dilations[0] - rows.pad
            with kb.when(kb.compare(">=", line, 0)), kb.when(kb.compare("<", line, rows.inputs)):
                if form.kernel[1] <= _UNROLLED:
                    for across in range(form.kernel[1]):
                        self._add_tap(columns, row, line, down, across, channels)
                else:
                    with kb.loop(0, form.kernel[1]) as tap:
                        self._add_tap(columns, row, line, down, tap, channels)

    def _add_tap(
        self, columns: _Axis, row: Number, line: Number, down: Number, across: Number, channels: Number
    ) -> None:
        """One tap for the outputs of a row whose pixel there lies in the image."""
        kb, form, stride = self.kb, self.form, self.form.strides[1]
        shift = across * form.dilations[1] - columns.pad  # of output 0's pixel
        first = (kb.maximum(0 - shift, 0) + (stride - 1)) // stride
        last = kb.minimum(columns.outputs, (kb.maximum(columns.inputs - shift, 0) + (stride - 1)) // stride)
        some = kb.compare("<", first, last)
        if some is False:
            return
        with kb.when(some):
            if self.tiling.fold == 1:
                self._multiply(columns, row, line, first, last - first, 1, channels, (down, across), shift)
                return
            fold = self.tiling.fold
            whole = (last - first) // fold
            rest = (last - first) % fold
            wide = self.tiling.channels * fold
            for begin, rows, pixels, cols, there in (
                (first, whole, fold, wide, kb.compare(">", whole, 0)),
                (first + whole * fold, 1, fold, rest * self.tiling.channels, kb.compare(">", rest, 0)),
            ):
                if there is not False:
                    with kb.when(there):
                        self._multiply(columns, row, line, begin, rows, pixels, cols, (down, across), shift)

    def _multiply(
        self, columns: _Axis, row: Number, line: Number, first: Number, rows: Number, pixels: int, cols: Number,
        tap: tuple[Number, Number], shift: Number,
    ) -> None:  # fmt: skip
        """Rows of so many pixels, from output `first` of a row on."""
        form, pitch, stride = self.form, self.pitch, self.form.strides[1]
        pixel = line * columns.inputs + first * stride + shift
        dst = self.sums.at((row * columns.outputs + first) * pitch).rows(pixels * pitch)
        a = self.wide.at(pixel * pitch).rows(pixels * stride * pitch)
        b = self.taps.at((tap[0] * form.kernel[1] + tap[1]) * (self.tiling.fold * pitch))
        self.kb.issue("v_fma", F32, dst=dst, a=a, b=b, rows=rows, cols=cols)
