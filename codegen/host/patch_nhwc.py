"""Copies the input of some output rows and columns to scratch, in f32, with zeros for the padding; in the order of the
input: channels inside, or columns inside.

Invariant: nothing outside the input is read; what no output of the rows and columns asked for needs is not written.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.gemm_core import strips
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.core.dtypes import DType
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.families.conv_nhwc import Walk

Piece = Callable[[Index, Index, int], ir.Value]  # (column, channel, lanes) -> values


class NhwcPatchCopier:
    """Emits the copy for one form. `walk`: strides in the patch; `wide`: its columns."""

    def __init__(self, kb: KernelBuilder, form: ConvForm, walk: Walk, wide: int) -> None:
        self.kb, self.form, self.walk, self.wide = kb, form, walk, wide
        self.lanes = max(1, kb.cpu.vector_bytes // 4)
        self.program = ProgramEmitter(kb, form.prologue, kb.operands) if form.prologue is not None else None

    def copy(
        self,
        to: ir.Value,
        image: Index,
        channel: Index,
        rows: tuple[Index, Index],
        columns: tuple[Index, Index],
    ) -> None:
        """The input of (first output row, count) x (first output column, count), one group's channels from `channel`
        on. A first column other than 0 needs one output row."""
        kb, form = self.kb, self.form
        reach = [(k - 1) * d + 1 for k, d in zip(form.kernel, form.dilations, strict=True)]
        high = kb.add(kb.mul(kb.sub(rows[1], 1), form.strides[0]), reach[0])
        wide = kb.add(kb.mul(kb.sub(columns[1], 1), form.strides[1]), reach[1])
        top = kb.sub(kb.mul(rows[0], form.strides[0]), form.pads[0])
        left = kb.sub(kb.mul(columns[0], form.strides[1]), form.pads[1])
        low = kb.minimum(kb.maximum(kb.sub(0, left), 0), wide)
        stop = kb.maximum(kb.minimum(kb.sub(form.width, left), wide), low)
        with kb.loop(0, high, name="patch_row") as r:
            line = kb.add(top, r)
            at = kb.mul(r, self.walk.row)
            inside = kb.b.icmp_unsigned("<", kb.i64(line), kb.i64(form.height))
            with kb.b.if_else(inside) as (then, otherwise):
                with then:
                    self._inside(to, at, (image, channel, line, left), (low, stop, wide))
                with otherwise:
                    self._outside(to, at, wide)

    def _inside(
        self, to: ir.Value, at: Index, source: tuple[Index, Index, Index, Index], ends: tuple[Index, Index, Index]
    ) -> None:
        """A row of the patch that is one of the input: (image, channel, line, first column), and where the input's
        columns begin and end among all."""
        low, stop, wide = ends
        self._blank(to, at, 0, low)
        self._line(to, at, *source, low, stop)
        self._blank(to, at, stop, wide)

    def _outside(self, to: ir.Value, at: Index, wide: Index) -> None:
        """A row of the padding."""
        self._blank(to, at, 0, wide)

    def _line(
        self,
        to: ir.Value,
        at: Index,
        image: Index,
        channel: Index,
        line: Index,
        left: Index,
        low: Index,
        stop: Index,
    ) -> None:
        """Patch columns [low, stop) of one input row; patch column c is input column left + c."""
        kb, form, walk = self.kb, self.form, self.walk
        if walk.channel == 1:
            with kb.loop(low, stop, name="column") as column:
                load = self._channels(image, channel, line, kb.add(left, column))
                start = kb.add(at, kb.mul(column, walk.column))
                strips(
                    kb,
                    form.channels,
                    self.lanes,
                    lambda c, n: self._store(load(c, n), to, kb.add(start, c)),
                )
            return
        base = kb.operands[form.operand]
        s = form.x_strides
        with kb.loop(0, form.channels, name="channel") as c:
            source = kb.add(kb.add(form.x_offset, kb.mul(image, s[0])), kb.mul(kb.add(channel, c), s[1]))
            source = kb.add(kb.add(source, kb.mul(line, s[2])), kb.mul(left, s[3]))
            start = kb.add(at, kb.mul(c, walk.channel))

            def move(column: Index, lanes: int, source: Index = source, start: Index = start) -> None:
                value = kb.load(base, kb.add(source, kb.mul(column, s[3])), form.dtype, lanes, s[3])
                self._store(value, to, kb.add(start, column))

            self._span(low, stop, move)

    def _store(self, value: ir.Value, to: ir.Value, at: Index) -> None:
        """Elements of the patch from `at` on."""
        self.kb.store(value, to, at, DType.F32)

    def _span(self, low: Index, stop: Index, move: Callable[[Index, int], None]) -> None:
        """`move` over [low, stop): full vectors, then the rest one by one (exactly, where it is known)."""
        kb = self.kb
        if isinstance(low, int) and isinstance(stop, int):
            strips(kb, stop - low, self.lanes, lambda at, n: move(kb.add(low, at), n))
            return
        full = kb.add(low, kb.mul(kb.div(kb.sub(stop, low), self.lanes), self.lanes))
        with kb.loop(low, full, self.lanes, name="vector") as at:
            move(at, self.lanes)
        with kb.loop(full, stop, name="rest") as at:
            move(at, 1)

    def _channels(self, image: Index, channel: Index, line: Index, column: Index) -> Callable[[Index, int], ir.Value]:
        """Channels of one input position."""
        kb, form = self.kb, self.form
        if self.program is not None:
            coords = [image, 0, line, column] if form.spatial == 2 else [image, 0, column]
            row = self.program.row(coords, axis=1)
            return lambda c, n: row.eval(kb.add(channel, c), n, store=False)[0]
        s = form.x_strides
        at = kb.add(kb.add(form.x_offset, kb.mul(image, s[0])), kb.mul(channel, s[1]))
        at = kb.add(kb.add(at, kb.mul(line, s[2])), kb.mul(column, s[3]))
        base = kb.operands[form.operand]
        return lambda c, n: kb.load(base, kb.add(at, kb.mul(c, s[1])), form.dtype, n, s[1])

    def _blank(self, to: ir.Value, at: Index, low: Index, stop: Index) -> None:
        """Zeros in patch columns [low, stop) of a row."""
        kb, form, walk = self.kb, self.form, self.walk
        if isinstance(low, int) and isinstance(stop, int) and low >= stop:
            return

        def zeros(start: Index) -> Callable[[Index, int], None]:
            return lambda i, n: self._store(kb.const(0.0, DType.F32, n), to, kb.add(start, i))

        if walk.channel == 1:
            with kb.loop(low, stop, name="column") as column:
                strips(kb, form.channels, self.lanes, zeros(kb.add(at, kb.mul(column, walk.column))))
            return
        with kb.loop(0, form.channels, name="channel") as c:
            self._span(low, stop, zeros(kb.add(at, kb.mul(c, walk.channel))))
