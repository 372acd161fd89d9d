"""Code for convolutions of any rank and type, forward and transposed: one output row at a time, accumulated in
scratch.

Model, per output row: for every input channel and tap whose input row exists, a scaled copy of the input row is added
to the accumulated row, over the range of columns where tap and input overlap (known when compiling, so there are no
masks). A transposed convolution scatters: the accumulated row is split by stride phase so that neighbouring inputs are
neighbouring sums; a last pass interleaves the phases.

Scratch: [accumulated row, phases one after another][interleaved row].
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.gemm_core import as_result, multiply_add, zero
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.program import ProgramEmitter, load_bias
from superkernel.ir.body import Body
from superkernel.scheduler.families.conv_generic import VolumeTiling, volume_form


class VolumeEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: VolumeTiling) -> None:
        self.kb, self.body, self.t, self.form = kb, body, tiling, volume_form(body)
        self.epilogue = ProgramEmitter(kb, body.epilogue)
        self.dtype = body.operands[self.form.x.operand].type.dtype
        self.w_dtype = body.operands[self.form.w.operand].type.dtype
        self.phases = self.form.strides[2] if self.form.transposed else 1
        self.phase_pitch = tiling.row // self.phases
        self.joined = kb.at(kb.scratch, tiling.row, tiling.acc)

    def emit(self) -> None:
        """The whole function."""
        kb, t, form = self.kb, self.t, self.form
        with kb.loop(kb.begin, kb.end, name="unit") as unit:
            plane, depth = kb.div(unit, t.depth), kb.rem(unit, t.depth)
            image, channel = kb.div(plane, t.channels), kb.rem(plane, t.channels)
            bias = load_bias(kb, self.body, channel)
            with kb.loop(0, form.out_size[1], name="out_row") as row:
                self._clear()
                self._sum(image, channel, depth, row)
                self._store(image, channel, depth, row, bias)

    def _clear(self) -> None:
        kb, t = self.kb, self.t
        with kb.loop(0, t.row - t.row % t.lanes, t.lanes, name="clear") as at:
            kb.store(zero(t.acc, t.lanes), kb.scratch, at, t.acc)
        if t.row % t.lanes:
            kb.store(zero(t.acc, t.row % t.lanes), kb.scratch, t.row - t.row % t.lanes, t.acc)

    def _sum(self, image: Index, channel: Index, depth: Index, row: Index) -> None:
        """All channels and taps of one output row."""
        kb, form = self.kb, self.form
        group, local = kb.div(channel, form.out_channels), kb.rem(channel, form.out_channels)
        first = kb.mul(group, form.channels)
        xs, ws = form.x_strides, form.w_strides
        x0 = kb.element(form.x.offset, (image, first), xs)
        if form.transposed:
            w0 = kb.element(form.w.offset, (first, local), ws)
        else:
            w0 = kb.add(form.w.offset, kb.mul(channel, ws[0]))
        w_step = ws[0] if form.transposed else ws[1]
        with kb.loop(0, form.channels, name="channel") as c, kb.loop(0, form.kernel[0], name="tap_depth") as i:
            at_depth, deep = self._source(0, depth, i)
            with kb.when(deep), kb.loop(0, form.kernel[1], name="tap_row") as j:
                at_row, high = self._source(1, row, j)
                with kb.when(high):
                    x = kb.add(kb.add(x0, kb.mul(c, xs[1])), kb.add(kb.mul(at_depth, xs[2]), kb.mul(at_row, xs[3])))
                    w = kb.add(kb.add(w0, kb.mul(c, w_step)), kb.add(kb.mul(i, ws[2]), kb.mul(j, ws[3])))
                    for k in range(form.kernel[2]):
                        self._add_row(x, kb.add(w, k * ws[4]), k)

    def _source(self, axis: int, out: Index, tap: Index) -> tuple[Index, ir.Value]:
        """The input position that a tap reads for an output position, and whether it exists."""
        kb, form = self.kb, self.form
        stride, dilation, pad, size = form.strides[axis], form.dilations[axis], form.pads[axis], form.size[axis]
        if not form.transposed:
            at = kb.sub(kb.add(kb.mul(out, stride), kb.mul(tap, dilation)), pad)
            return at, kb.b.icmp_unsigned("<", kb.i64(at), kb.i64(size))
        shifted = kb.i64(kb.sub(kb.add(out, pad), kb.mul(tap, dilation)))
        at = kb.b.sdiv(shifted, kb.i64(stride))
        exact = kb.b.icmp_signed("==", kb.b.mul(at, kb.i64(stride)), shifted)
        inside = kb.b.icmp_unsigned("<", at, kb.i64(size))
        return at, kb.b.and_(exact, inside)

    def _add_row(self, x: Index, w: Index, tap: int) -> None:
        """Add weight * input row over the columns that this tap reaches."""
        kb, t, form = self.kb, self.t, self.form
        stride, shift = form.strides[2], tap * form.dilations[2] - form.pads[2]
        width, out = form.size[2], form.out_size[2]
        if form.transposed:  # output column i * stride + shift
            low, high = max(0, -(shift // stride)), min(width, -(-(out - shift) // stride))
            target = (shift % stride) * self.phase_pitch + shift // stride
            step, from_shift = 1, 0
        else:  # input column o * stride + shift
            low, high = max(0, -(shift // stride)), min(out, -(-(width - shift) // stride))
            target, step, from_shift = 0, stride, shift
        if high <= low:
            return
        scalar = convert(kb, kb.load(kb.operands[form.w.operand], w, self.w_dtype), self.w_dtype, t.acc)

        def part(at: Index, lanes: int) -> None:
            column = kb.add(kb.mul(kb.add(at, low), step), from_shift)
            index = kb.add(x, kb.mul(column, form.x_strides[4]))
            value = kb.load(kb.operands[form.x.operand], index, self.dtype, lanes, form.x_strides[4] * step)
            to = kb.add(at, low + target)
            total = multiply_add(
                kb,
                kb.splat(scalar, lanes),
                convert(kb, value, self.dtype, t.acc),
                kb.load(kb.scratch, to, t.acc, lanes),
                t.acc,
            )
            kb.store(total, kb.scratch, to, t.acc)

        strips(kb, high - low, t.lanes, part)

    def _store(self, image: Index, channel: Index, depth: Index, row: Index, bias: ir.Value | None) -> None:
        """One accumulated row through the epilogue."""
        kb, t, form = self.kb, self.t, self.form
        source = kb.scratch
        out = form.out_size[2]
        if self.phases > 1:
            source = self.joined
            for phase in range(min(self.phases, out)):
                count = -(-(out - phase) // self.phases)
                with kb.loop(0, count, name="join") as at:
                    value = kb.load(kb.scratch, kb.add(at, phase * self.phase_pitch), t.acc)
                    kb.store(value, source, kb.add(kb.mul(at, self.phases), phase), t.acc)
        coords = [image, channel, *[depth, row, 0][3 - form.spatial :]]
        program = self.epilogue.row(coords)
        dtype = self.body.anchor_outputs[0].dtype

        def part(at: Index, lanes: int) -> None:
            value = kb.load(source, at, t.acc, lanes)
            if bias is not None:
                value = kb.b.fadd(value, kb.splat(convert(kb, bias, self.dtype, t.acc), lanes))
            program.eval(at, lanes, [as_result(kb, value, t.acc, dtype)])

        strips(kb, out, t.lanes, part)


def emit(kb: KernelBuilder, body: Body, tiling: VolumeTiling) -> None:
    """Emit a convolution of any kind."""
    VolumeEmitter(kb, body, tiling).emit()
