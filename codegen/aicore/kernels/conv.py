"""Convolutions on the cube: image rows and weights to L1, patches by `l1_im2col`, products into L0C, FIX to memory.

Model: see scheduler/families/aicore/conv_tiling. The cube core's code is one loop over what a range holds in L1 and one
inside over the units; a unit is head, image, chunks, store. Ahead of the first touch of the image everything that does
not depend on it has been issued. Positions are counted in the unit's own frame; image coordinates are clipped to what
lies in L1, padding is the im2col command's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from superkernel.codegen.aicore.commands import OperandValue
from superkernel.codegen.aicore.kernels.conv_lanes import emit_lane, result_channel
from superkernel.codegen.aicore.kernels.conv_units import Unit, unit_of
from superkernel.codegen.aicore.kernels.cube import multiply
from superkernel.codegen.aicore.kernels.depthwise import DepthwiseKernel
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body, View
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.conv_fix import ChannelVector, slot_bias
from superkernel.scheduler.families.aicore.conv_form import ImageLoad, cube_conv
from superkernel.scheduler.families.aicore.conv_tiling import (
    BIAS_STEP,
    IMAGE,
    STEP,
    WEIGHTS,
    ConvTiling,
    conv_fix,
    vector_packs,
)
from superkernel.scheduler.families.aicore.depthwise import DepthwiseTiling
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.engines import Local


@dataclass(frozen=True)
class ImageWindow:
    """What of the image lies in L1."""

    top: Number  # first row
    left: Number
    rows: Number
    columns: Number
    pad_top: Number
    pad_left: Number
    first: Number  # position of the unit's first one in the coordinates of the im2col command


class CubeKernel:
    """The cube core's role."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: ConvTiling) -> None:
        self.kb, self.body, self.tiling, self.conv = kb, body, tiling, cube_conv(body)
        item = self.conv.item
        view = body.anchor_inputs[1]
        assert isinstance(view, View)
        self.weights = view.operand
        image, head, chunk, sums = tiling.slots
        row = tiling.channels * item
        self.vectors = self._vectors()
        self.image_ring, self.head_ring = kb.ring("image", image), kb.ring("head", head)
        self.chunk_ring, self.step_ring, self.sum_ring = kb.ring("chunk", chunk), kb.ring("step"), kb.ring("sums", sums)
        self.image = kb.buffer(self.image_ring, Local.L1, tiling.image_bytes, "image")
        if tiling.head:
            self.head = kb.buffer(self.head_ring, Local.L1, row * tiling.head, "head")
        if tiling.streams:
            self.chunk = kb.buffer(self.chunk_ring, Local.L1, row * tiling.chunk, "chunk")
        m, n = ceil_to(tiling.positions, STEP), ceil_to(tiling.channels, STEP)
        self.left = kb.buffer(self.step_ring, Local.L0A, m * tiling.step * item, "left")
        self.right = kb.buffer(self.step_ring, Local.L0B, n * tiling.step * item, "right")
        self.sums = kb.buffer(self.sum_ring, Local.L0C, m * n * 4, "sums")
        if not tiling.fix:
            self.channel = result_channel(kb, tiling)

    def _vectors(self) -> Mapping[int, Buffer]:
        """Bias and scale come once and stay."""
        found: dict[int, Buffer] = {}
        for operand, pack in vector_packs(self.body, self.conv, self.tiling.fix).items():
            size = pack.packed_bytes(self.body.operands[operand].type)
            found[operand] = self.kb.fixed(Local.L1, size, f"vector{operand}", top=True)
            self.kb.issue("gm_to_l1", dst=found[operand], src=self.kb.operand(operand), bytes=size)
        return found

    # Loops ------------------------------------------------------------------------------------------------------------

    def emit(self, store: Callable[[Unit], None]) -> None:
        """All units of the range; `store` is told each finished one."""
        kb, tiling = self.kb, self.tiling
        inner = tiling.inner
        first = kb.begin // inner
        last = kb.select(kb.compare("<", kb.begin, kb.end), (kb.end + (inner - 1)) // inner, first)
        with kb.loop(first, last) as outer:
            low = kb.maximum(kb.begin - outer * inner, 0)
            high = kb.minimum(kb.end - outer * inner, inner)
            with ExitStack() as held:
                if tiling.hold == WEIGHTS:
                    held.enter_context(kb.turn(self.head_ring))
                    self._load_weights(self._unit(outer, 0), self.head, 0, tiling.head)
                elif tiling.hold == IMAGE:
                    held.enter_context(kb.turn(self.image_ring))
                    self._load_image(self._unit(outer, 0))
                with kb.loop(low, high) as place:
                    self._one(self._unit(outer, place), store)

    def _one(self, unit: Unit, store: Callable[[Unit], None]) -> None:
        kb, tiling = self.kb, self.tiling
        with ExitStack() as stack:
            if tiling.head and tiling.hold != WEIGHTS:
                stack.enter_context(kb.turn(self.head_ring))
                self._load_weights(unit, self.head, 0, tiling.head)
            if tiling.hold != IMAGE:
                stack.enter_context(kb.turn(self.image_ring))
                self._load_image(unit)
            stack.enter_context(kb.turn(self.sum_ring))
            if tiling.head:
                self._steps(unit, self.head, 0, tiling.head)
            if tiling.streams:
                self._stream(unit)
            store(unit)

    def _unit(self, outer: Number, inner: Number) -> Unit:
        return unit_of(self.kb, self.conv, self.tiling, outer, inner)

    # Loads ------------------------------------------------------------------------------------------------------------

    def _load_weights(self, unit: Unit, target: Buffer, begin: Number, length: Number) -> None:
        conv, tiling = self.conv, self.tiling
        start = (unit.group * tiling.depth + begin) * conv.out_channels + unit.channel * length
        source = self.kb.operand(self.weights, start * conv.item)
        self.kb.issue("gm_to_l1", dst=target, src=source, bytes=unit.channels * length * conv.item)

    def window(self, unit: Unit) -> ImageWindow:
        """The rows and columns of the image that a unit's patches come from."""
        conv, tiling = self.conv, self.tiling
        top, rows, pad_top, shift = self._axis(0, unit.row, unit.rows, tiling.row_blocks)
        if tiling.column_blocks == 1:
            return ImageWindow(top, 0, rows, conv.width, pad_top, conv.pads[1], shift * tiling.columns)
        left, columns, pad_left, _ = self._axis(1, unit.column, tiling.columns, tiling.column_blocks)
        return ImageWindow(top, left, rows, columns, pad_top, pad_left, shift * tiling.columns)

    def _axis(self, axis: int, begin: Number, count: Number, blocks: int) -> tuple[Number, Number, Number, Number]:
        """First row, rows, padding ahead of them, and the output row that the command counts as the unit's first."""
        kb, conv = self.kb, self.conv
        stride, pad, extent = conv.strides[axis], conv.pads[axis], (conv.height, conv.width)[axis]
        low = begin * stride - pad
        high = low + (count - 1) * stride + ((conv.kernel[axis] - 1) * conv.dilations[axis] + 1)
        first = low if pad == 0 else kb.maximum(low, 0)
        size = (self.tiling.rows, self.tiling.columns)[axis]
        shift: Number = 0
        if (blocks - 1) * size * stride - pad > extent - 1:  # a block may begin behind the image
            first = kb.minimum(first, extent - 1)
            shift = (kb.maximum(low - first, 0) + (stride - 1)) // stride
        last = kb.maximum(kb.minimum(high, extent), first + 1)
        return first, last - first, first + shift * stride - low, shift

    def _load_image(self, unit: Unit) -> None:
        kb, conv, item = self.kb, self.conv, self.conv.item
        window = self.window(unit)
        start = unit.image * conv.image_stride + window.top * conv.row_stride + conv.offset
        start = start + window.left * conv.pixel_stride + unit.group * conv.channels
        if self.tiling.load is ImageLoad.FLAT:
            size = window.rows * (conv.width * conv.channels * item)
            kb.issue("gm_to_l1", dst=self.image, src=kb.operand(conv.operand, start * item), bytes=size)
        elif self.tiling.load is ImageLoad.ROWS:
            columns = window.columns * conv.channels
            self._matrix(self.image, start, window.rows, columns, conv.row_stride, columns * item, 0)
        else:
            self._load_pixels(window, start)

    def _load_pixels(self, window: ImageWindow, start: Number) -> None:
        kb, conv, pixel = self.kb, self.conv, self.tiling.pixel_channels
        right, pitch = pixel - conv.channels, pixel * conv.item
        if self.tiling.column_blocks == 1 and conv.evenly_spaced:
            count = window.rows * conv.width
            self._matrix(self.image, start, count, conv.channels, conv.pixel_step, pitch, right)
            return
        with kb.loop(0, window.rows) as row:
            target = self.image.at(row * window.columns * pitch)
            source = start + row * conv.row_stride
            self._matrix(target, source, window.columns, conv.channels, conv.pixel_stride, pitch, right)

    def _matrix(
        self, dst: Buffer | Part, start: Number, rows: Number, cols: Number, step: int, pitch: Number, right: int
    ) -> None:
        conv = self.conv
        src = self.kb.operand(conv.operand, start * conv.item).rows(step * conv.item)
        self.kb.load_rows(dst.rows(pitch), src, conv.dtype, rows, cols, right=right)

    # Products ---------------------------------------------------------------------------------------------------------

    def _stream(self, unit: Unit) -> None:
        kb, tiling = self.kb, self.tiling
        with kb.loop(tiling.head, tiling.depth, tiling.chunk) as begin, kb.turn(self.chunk_ring):
            even = (tiling.depth - tiling.head) % tiling.chunk == 0
            length = tiling.chunk if even else kb.minimum(tiling.chunk, tiling.depth - begin)
            self._load_weights(unit, self.chunk, begin, length)
            self._steps(unit, self.chunk, begin, length)

    def _steps(self, unit: Unit, weights: Buffer, begin: Number, length: Number) -> None:
        """Products over a part of the depth whose weights are in L1."""
        kb, conv, tiling, item = self.kb, self.conv, self.tiling, self.conv.item
        window = self.window(unit)
        positions = unit.rows * tiling.columns
        with kb.loop(0, length, tiling.step) as at, kb.turn(self.step_ring):
            even = isinstance(length, int) and length % tiling.step == 0
            depth = tiling.step if even else kb.minimum(tiling.step, length - at)
            first = begin + at
            mode = kb.select(kb.compare("==", first, 0), 0, 1)
            kb.issue(
                "l1_im2col", conv.dtype, dst=self.left, src=self.image, m=positions, k=depth,
                m_first=window.first, k_first=first, height=window.rows, width=window.columns,
                channels=tiling.pixel_channels, out_width=tiling.columns, kernel_h=conv.kernel[0],
                kernel_w=conv.kernel[1], stride_h=conv.strides[0], stride_w=conv.strides[1],
                dilation_h=conv.dilations[0], dilation_w=conv.dilations[1], pad_top=window.pad_top,
                pad_left=window.pad_left, **({"pad": conv.padding & 0xFF} if conv.padding else {}),
            )  # fmt: skip
            src, n = weights.at(at * item).rows(length * item), unit.channels
            kb.issue("l1_to_l0b", conv.dtype, dst=self.right, src=src, n=n, k=depth, transpose="yes")
            multiply(kb, (conv.dtype, conv.accumulator), self.sums, self.left, self.right, (positions, n, depth), mode)

    # Stores -----------------------------------------------------------------------------------------------------------

    def store_result(self, unit: Unit) -> None:
        """FIX writes the unit's results where they belong."""
        kb, conv, tiling, fix = self.kb, self.conv, self.tiling, conv_fix(self.body)
        assert fix is not None
        kind = self.body.operands[fix.target].type.dtype
        row, column = (fix.strides[d] if d >= 0 else 0 for d in conv.spatial)
        channel = unit.group * conv.out_channels + unit.channel
        start = unit.image * fix.strides[0] + channel * fix.strides[1] + unit.row * row + unit.column * column
        start = (start + fix.offset) * kind.itemsize
        if not tiling.framed:
            step = row if conv.out_width == 1 else column
            self._fix(unit, self.sums, start, unit.rows * tiling.columns, step)
            return
        blocks = (unit.channels + (STEP - 1)) // STEP
        with kb.loop(0, unit.rows) as line:
            tile = self.sums.at(line * (tiling.columns // STEP) * blocks * (STEP * STEP * 4))
            self._fix(unit, tile, start + line * (row * kind.itemsize), unit.columns, column)

    def _fix(self, unit: Unit, source: Buffer | Part, start: Number, rows: Number, step: int) -> None:
        fix = conv_fix(self.body)
        assert fix is not None
        kind = self.body.operands[fix.target].type.dtype
        more: dict[str, OperandValue] = {"activation": fix.activation}
        if fix.scale is not None:
            more |= {"scale": "channel", "scale_src": self._vector(unit, fix.scale)}
        elif fix.factor != 1.0:
            more |= {"scale": "tensor", "scale_value": fix.factor}
        if fix.bias is not None:
            more |= {"bias": "channel", "bias_src": self._vector(unit, fix.bias)}
        if fix.activation in ("leaky", "clip"):
            more |= {"low": fix.low, "high": fix.high}
        dst = self.kb.operand(fix.target, start).rows(step * kind.itemsize)
        self.kb.issue("l0c_to_gm", self.conv.accumulator, kind, src=source, dst=dst, m=rows, n=unit.channels, **more)

    def _vector(self, unit: Unit, vector: ChannelVector) -> Part:
        """A unit's part of a vector in L1."""
        padded = ceil_to(self.conv.out_channels, BIAS_STEP)
        return self.vectors[vector.operand].at((unit.group * padded + unit.channel) * 4)

    def send_result(self, unit: Unit) -> None:
        """FIX writes the sums for the vector cores, a row of `channels` per position, the convolution's bias added."""
        bias = slot_bias(self.body)
        more: dict[str, OperandValue] = {}
        if bias is not None:
            more = {"bias": "channel", "bias_src": self._vector(unit, bias)}
        with self.channel.turn() as slot:
            m, kind, dst = unit.rows * self.tiling.columns, self.conv.accumulator, slot.rows(self.tiling.channels * 4)
            self.kb.issue("l0c_to_gm", kind, kind, src=self.sums, dst=dst, m=m, n=unit.channels, **more)


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel function of one role."""
    if isinstance(tiling, DepthwiseTiling):
        DepthwiseKernel(kb, body, tiling).emit()
        return
    if not isinstance(tiling, ConvTiling):
        raise InternalError(f"not a convolution's tiling: {tiling}", location=kb.symbol)
    if not kb.role.is_cube:
        emit_lane(kb, body, tiling)
        return
    kernel = CubeKernel(kb, body, tiling)
    kernel.emit(kernel.store_result if tiling.fix else kernel.send_result)
