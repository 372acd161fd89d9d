"""Copies the input of some output rows and columns to scratch, with zeros for the padding: in f32 in the order of the
input, channels inside or columns inside; in reduced precision channels inside, in whatever order they lie. Inputs with
columns inside and few channels (those that a network begins with) are copied a vector of columns of all channels at a
time then, interleaved in registers.

Invariant: nothing outside the input is read; what no output of the rows and columns asked for needs is not written.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.host.arithmetic import Arithmetic
from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.codegen.host.quantise import codes_of, put_codes
from superkernel.codegen.host.shuffle import permute
from superkernel.core.dtypes import DType
from superkernel.core.formats import F32
from superkernel.ops.windows import ONE
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.families.nhwc_form import HEAD_BYTES, Walk

_INTERLEAVED_MOST = 4  # channels
_BLANK_BYTES = 64  # of padding, stored at once

Place = tuple[Index, Index, Index, Index, Index]
"""A row of the input: image, channel, depth, line, and the column that the patch's first one is."""


class NhwcPatchCopier:
    """Emits the copy for one form, in items of `arithmetic`. `walk`: strides in the patch; `wide`: its columns."""

    pads_depth = False
    """Whether depths that are wanted may lie in the padding."""

    def __init__(self, arithmetic: Arithmetic, form: ConvForm, walk: Walk, wide: int) -> None:
        self.kb, self.arithmetic, self.form, self.walk, self.wide = arithmetic.kb, arithmetic, form, walk, wide
        kb, self.interleaves = arithmetic.kb, arithmetic.format.is_reduced
        self.lanes = max(1, kb.cpu.vector_bytes // 4)
        self.program = ProgramEmitter(kb, form.prologue) if form.prologue is not None else None

    def copy(
        self,
        to: ir.Value,
        image: Index,
        channel: Index,
        rows: tuple[Index, Index],
        columns: tuple[Index, Index],
        depths: tuple[Index, Index, Index] = (0, 0, 1),
    ) -> None:
        """The input of (first output row, count) x (first output column, count), one group's channels from `channel`
        on, at `depths`: where the window's first one is, and the range of its depths that are wanted. A first column
        other than 0 needs one output row."""
        kb, form = self.kb, self.form
        reach = [(k - 1) * d + 1 for k, d in zip(form.kernel, form.dilations, strict=True)]
        high = kb.add(kb.mul(kb.sub(rows[1], 1), form.strides[0]), reach[0])
        wide = kb.add(kb.mul(kb.sub(columns[1], 1), form.strides[1]), reach[1])
        top = kb.sub(kb.mul(rows[0], form.strides[0]), form.pads[0])
        left = kb.sub(kb.mul(columns[0], form.strides[1]), form.pads[1])
        low = kb.minimum(kb.maximum(kb.sub(0, left), 0), wide)
        stop = kb.maximum(kb.minimum(kb.sub(form.width, left), wide), low)
        start, first, last = depths
        with kb.loop(first, last, name="patch_depth") as d, kb.loop(0, high, name="patch_row") as r:
            depth, line = kb.add(start, kb.mul(d, form.depth.dilation)), kb.add(top, r)
            at = kb.add(kb.mul(kb.sub(d, first), self.walk.depth), kb.mul(r, self.walk.row))
            inside = kb.b.icmp_unsigned("<", kb.i64(line), kb.i64(form.height))
            if self.pads_depth and form.depth != ONE:
                inside = kb.b.and_(inside, kb.b.icmp_unsigned("<", kb.i64(depth), kb.i64(form.depth.extent)))
            with kb.b.if_else(inside) as (then, otherwise):
                with then:
                    self._inside(to, at, (image, channel, depth, line, left), (low, stop, wide))
                with otherwise:
                    self._outside(to, at, wide)

    def _inside(self, to: ir.Value, at: Index, source: Place, ends: tuple[Index, Index, Index]) -> None:
        """A row of the patch that is one of the input, whose columns begin and end at `ends` among all."""
        low, stop, wide = ends
        self._blank(to, at, 0, low)
        self._line(to, at, source, low, stop)
        self._blank(to, at, stop, wide)

    def _outside(self, to: ir.Value, at: Index, wide: Index) -> None:
        """A row of the padding."""
        self._blank(to, at, 0, wide)

    def _line(self, to: ir.Value, at: Index, source: Place, low: Index, stop: Index) -> None:
        """Patch columns [low, stop) of one input row."""
        kb, form, walk, s = self.kb, self.form, self.walk, self.form.x_strides
        image, channel, depth, line, left = source
        few_planes = form.prologue is None and s[3] == 1 and s[1] != 1 and 1 < form.channels <= _INTERLEAVED_MOST
        if self.interleaves and few_planes and self.lanes > 1:
            first = kb.add(self._row_start(source), left)
            self._span(low, stop, lambda column, lanes: self._interleaved(to, at, first, column, lanes))
            return
        if walk.channel == 1:
            with kb.loop(low, stop, name="column") as column:
                load = self._channels(source, kb.add(left, column))
                start = kb.add(at, kb.mul(column, walk.column))
                strips(
                    kb,
                    form.channels,
                    self.lanes,
                    lambda c, n: self._store(load(c, n), to, kb.add(start, c)),
                )
                for c in range(form.channels, walk.column):
                    self._store(self._nothing(1), to, kb.add(start, c))
            return
        base = kb.operands[form.operand]
        with kb.loop(0, form.channels, name="channel") as c:
            first = kb.add(self._row_start((image, kb.add(channel, c), depth, line, left)), kb.mul(left, s[3]))
            start = kb.add(at, kb.mul(c, walk.channel))

            def move(column: Index, lanes: int, first: Index = first, start: Index = start) -> None:
                value = kb.load(base, kb.add(first, kb.mul(column, s[3])), form.dtype, lanes, s[3])
                self._store(value, to, kb.add(start, column))

            self._span(low, stop, move)

    def _interleaved(self, to: ir.Value, at: Index, first: Index, column: Index, lanes: int) -> None:
        """So many columns of all channels, from a row's `column` on."""
        kb, form = self.kb, self.form
        base, plane = kb.operands[form.operand], form.x_strides[1]
        planes = [
            self.arithmetic.rounded(kb.load(base, kb.add(kb.add(first, c * plane), column), form.dtype, lanes))
            for c in range(form.channels)
        ]
        planes += [ir.Constant(planes[0].type, None)] * (self.walk.column - form.channels)
        start = kb.add(at, kb.mul(column, self.walk.column))
        for i, part in enumerate(interleaved(kb, planes)):
            self.arithmetic.put(part, to, kb.add(start, i * lanes))

    def _store(self, value: ir.Value, to: ir.Value, at: Index) -> None:
        """Elements of the patch from `at` on."""
        self.arithmetic.store(value, to, at)

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

    def _row_start(self, source: Place) -> Index:
        """The input element at column 0 of a row."""
        s = self.form.x_strides
        return self.kb.element(self.form.x_offset, source[:4], (s[0], s[1], self.form.x_depth, s[2]))

    def _channels(self, source: Place, column: Index) -> Callable[[Index, int], ir.Value]:
        """Channels of one input position."""
        kb, form = self.kb, self.form
        image, channel, depth, line, _ = source
        if self.program is not None:
            row = self.program.row([image, 0, *(depth, line, column)[3 - form.spatial :]], axis=1)
            return lambda c, n: row.eval(kb.add(channel, c), n, store=False)[0]
        s = form.x_strides
        at = kb.add(self._row_start(source), kb.mul(column, s[3]))
        base = kb.operands[form.operand]
        return lambda c, n: kb.load(base, kb.add(at, kb.mul(c, s[1])), form.dtype, n, s[1])

    def _blank(self, to: ir.Value, at: Index, low: Index, stop: Index) -> None:
        """Zeros in patch columns [low, stop) of a row."""
        kb, form, walk = self.kb, self.form, self.walk
        if isinstance(low, int) and isinstance(stop, int) and low >= stop:
            return

        def zeros(start: Index) -> Callable[[Index, int], None]:
            return lambda i, n: self._store(self._nothing(n), to, kb.add(start, i))

        if walk.channel == 1:
            with kb.loop(low, stop, name="column") as column:
                channels = max(form.channels, walk.column)
                strips(kb, channels, self.lanes, zeros(kb.add(at, kb.mul(column, walk.column))))
            return
        with kb.loop(0, form.channels, name="channel") as c:
            self._span(low, stop, zeros(kb.add(at, kb.mul(c, walk.channel))))

    def _nothing(self, lanes: int) -> ir.Value:
        """What padding holds."""
        return self.kb.const(0.0, DType.F32, lanes)


class IntegerPatchCopier(NhwcPatchCopier):
    """Copies images of bytes. `zero_point`: what padding holds, in the image's type; None: 0."""

    pads_depth = True

    def __init__(
        self, arithmetic: Arithmetic, form: ConvForm, walk: Walk, wide: int, zero_point: ir.Value | None
    ) -> None:
        super().__init__(arithmetic, form, walk, wide)
        self.zero_point = zero_point
        if self.program is None:
            self.lanes = max(1, self.kb.cpu.vector_bytes)

    def _nothing(self, lanes: int) -> ir.Value:
        if self.zero_point is None:
            return self.kb.const(0, DType.U8, lanes)
        return self.kb.splat(self.zero_point, lanes)


class BytePatchCopier(NhwcPatchCopier):
    """Turns input rows of f32 values into bytes. `stage`: where a row is put together that is not in one piece."""

    def __init__(self, kb: KernelBuilder, form: ConvForm, walk: Walk, wide: int, stage: ir.Value | None) -> None:
        super().__init__(Arithmetic(kb, F32), form, walk, wide)
        self.interleaves, self.stage = True, stage

    def _inside(self, to: ir.Value, at: Index, source: Place, ends: tuple[Index, Index, Index]) -> None:
        kb, channels = self.kb, self.form.channels
        low, stop, wide = ends
        assert isinstance(low, int)
        assert isinstance(stop, int)
        assert isinstance(wide, int)
        row = kb.offset(to, at)
        values = self._row(source, low, stop)
        count = (stop - low) * channels
        codes = codes_of(kb, values, count, self.lanes)
        kb.store(codes.scale, row, 0, DType.F32)
        kb.store(codes.zero_point, row, 1, DType.I32)
        data = kb.offset(row, HEAD_BYTES)
        put_codes(kb, values, count, self.lanes, codes, [kb.offset(data, low * channels)])
        byte = kb.b.trunc(codes.zero_point, ir.IntType(8))
        for first, last in ((0, low), (stop, wide)):
            here = kb.offset(data, first * channels)
            strips(
                kb,
                (last - first) * channels,
                _BLANK_BYTES,
                lambda i, n, here=here: kb.store(kb.splat(byte, n), here, i, DType.I8),  # type: ignore[misc]
            )

    def _row(self, source: Place, low: int, stop: int) -> ir.Value:
        """Where columns [low, stop) of an input row are, channels inside."""
        kb, form = self.kb, self.form
        if self.stage is not None:
            self._line(self.stage, 0, source, low, stop)
            return kb.at(self.stage, low * form.channels, DType.F32)
        at = kb.add(self._row_start(source), kb.mul(kb.add(source[-1], low), form.x_strides[3]))
        return kb.at(kb.operands[form.operand], at, DType.F32)

    def _outside(self, to: ir.Value, at: Index, wide: Index) -> None:
        """Whatever its bytes are: they count nothing."""
        self.kb.store(self.kb.const(0.0, DType.F32), self.kb.offset(to, at), 0, DType.F32)
        self.kb.store(self.kb.const(0, DType.I32), self.kb.offset(to, at), 1, DType.I32)


def interleaved(kb: KernelBuilder, planes: list[ir.Value]) -> list[ir.Value]:
    """The first elements of all planes, then the second, ...: as many vectors as there are planes."""
    if not isinstance(planes[0].type, ir.VectorType):
        return planes
    count, lanes = len(planes), planes[0].type.count
    found = []
    for start in range(0, count * lanes, lanes):
        places = [divmod(start + i, count) for i in range(lanes)]  # element, plane
        part = planes[0]
        for c, plane in enumerate(planes):
            kept = [lanes + k if of == c else i for i, (k, of) in enumerate(places)]
            part = permute(kb, part, plane, [k if of == 0 else 0 for k, of in places] if c == 0 else kept)
        found.append(part)
    return found
