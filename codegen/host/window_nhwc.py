"""Code for depthwise convolutions and pools over images that lie channels last.

Model: see scheduler/families/window_nhwc. A tile of neighbouring output columns is one vector of channels each, held in
registers while the kernel rows that lie inside the image go by; a row's inputs are loaded once per tile. Tiles whose
windows lie inside the image share their code, the others have their own.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder, mangle
from superkernel.codegen.host.channel_stores import ChannelStores
from superkernel.codegen.host.gemm_core import Values, fold
from superkernel.codegen.host.loops import taps_inside, vector_loop
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.ops.opdef import BYTES
from superkernel.ops.pool import window_counts
from superkernel.ops.windows import Window
from superkernel.scheduler.families.conv import PIXELS
from superkernel.scheduler.families.matmul_form import view_of
from superkernel.scheduler.families.pool import GLOBAL
from superkernel.scheduler.families.window_nhwc import MAXIMA, WindowTiling, unrolled_taps, window_form

_F32 = DType.F32
_EDGES_MAX = 4  # tiles that reach over an edge of the image and have code of their own


class WindowEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: WindowTiling) -> None:
        self.kb, self.body, self.t, self.form = kb, body, tiling, window_form(body)
        self.stores = ChannelStores(kb, body, self.form)
        self.is_max = body.op in MAXIMA
        self.weights = kb.operands[view_of(body, 1).operand] if body.op == "conv" else None
        self.source = kb.operands[self.form.operand]
        self.tables: dict[str, ir.Value] = {}
        edges = [c for c in self._whole_tiles() if not self._always_inside(c, tiling.tile)]
        self.written_out = unrolled_taps(self.form) and len(edges) <= _EDGES_MAX

    def emit(self) -> None:
        """The whole function."""
        kb, t = self.kb, self.t
        per = t.rows if t.axis == PIXELS else t.blocks
        with kb.loop(kb.begin, kb.end, name="unit") as unit:
            image, part = kb.div(unit, per), kb.rem(unit, per)
            if t.axis == PIXELS:
                self._row(image, part, 0, t.channels)
                return
            first = kb.mul(part, t.block)
            if t.channels % t.block == 0:
                self._rows(image, first, t.block)
                return
            with kb.b.if_else(kb.compare("<", part, t.blocks - 1)) as (then, otherwise):
                with then:
                    if t.blocks > 1:
                        self._rows(image, first, t.block)
                with otherwise:
                    self._rows(image, (t.blocks - 1) * t.block, t.channels % t.block)

    def _rows(self, image: Index, first: Index, count: int) -> None:
        """All output rows of `count` channels."""
        if self.body.op in GLOBAL:
            vector_loop(self.kb, count, self.t.lanes, lambda c, n: self._global(image, self.kb.add(first, c), n))
            return
        with self.kb.loop(0, self.form.rows.size, name="row") as row:
            self._row(image, row, first, count)

    def _row(self, image: Index, row: Index, first: Index, count: int) -> None:
        """One output row of `count` channels: tiles of columns, those of one code in a loop."""
        kb, t, wide = self.kb, self.t, self.form.columns
        taps = self._kernel_rows(row)
        starts = range(0, wide.size, t.tile)
        inside = [c for c in self._whole_tiles() if not self.written_out or self._always_inside(c, t.tile)]

        def tile(column: Index, size: int) -> None:
            def part(c: Index, lanes: int) -> None:
                self._tile(image, (row, taps), column, size, kb.add(first, c), lanes)

            vector_loop(kb, count, t.lanes, part)

        for column in starts:
            if not inside or column not in inside:
                tile(column, min(t.tile, wide.size - column))
        if inside:
            with kb.loop(inside[0], inside[-1] + 1, t.tile, name="tile") as column:
                tile(column, t.tile)

    def _whole_tiles(self) -> range:
        """The first columns of tiles that are no remainder."""
        wide, tile = self.form.columns, self.t.tile
        return range(0, wide.size - wide.size % tile, tile)

    def _always_inside(self, column: int, size: int) -> bool:
        """True where no window of these columns reaches over an edge of the image."""
        wide = self.form.columns
        low = column * wide.stride - wide.begin
        high = (column + size - 1) * wide.stride - wide.begin + wide.reach
        return low >= 0 and high <= wide.extent

    def _kernel_rows(self, row: Index) -> tuple[Index, Index]:
        """The range of kernel rows of an output row that lie inside the image."""
        kb, high = self.kb, self.form.rows
        if high.reads_inside:
            return 0, high.kernel
        start = kb.sub(kb.mul(row, high.stride), high.begin)
        low, above = taps_inside(kb, high, start, high.extent)
        return low, kb.maximum(above, low)

    # Tiles ----------------------------------------------------------------------------------------------------------

    def _tile(
        self,
        image: Index,
        rows: tuple[Index, tuple[Index, Index]],
        column: Index,
        size: int,
        channel: Index,
        lanes: int,
    ) -> None:
        """`size` output columns from `column` on, one vector of channels."""
        kb, form = self.kb, self.form
        row, taps = rows
        wide, high = form.columns, form.rows
        base, depths = self._start_of_plane(image, channel)
        line0 = kb.sub(kb.mul(row, high.stride), high.begin)
        column0 = kb.sub(kb.mul(column, wide.stride), wide.begin)

        def start(depth: Index, i: Index) -> Index:
            at = kb.add(base, kb.mul(depth, form.depth.dilation * form.x_depth))
            return kb.add(at, self._row_start(line0, i, column0))

        def one_row(depth: Index, i: Index, state: Values) -> Values:
            at = start(depth, i)
            weights = kb.mul(kb.add(kb.mul(depth, high.kernel), i), wide.kernel)
            if self.written_out:
                return self._unrolled(at, weights, column, channel, lanes, state)
            return self._looped(at, weights, column0, channel, lanes, state)

        if self.is_max and self.written_out:
            results = self._maxima(start, (depths, taps), column, size, lanes)
        else:
            results = self._folded(depths, taps, [self._neutral(lanes)] * size, one_row)
        for q, value in enumerate(results):
            place = self.stores.coords(image, row, kb.add(column, q))
            self.stores.put(place, channel, [self._finish(value, (image, row, kb.add(column, q)), lanes)])

    def _start_of_plane(self, plane: Index, channel: Index) -> tuple[Index, tuple[Index, Index]]:
        """The element of a channel where the first of an output plane's depths is, and the range of them that lie
        inside the image."""
        kb, form, window = self.kb, self.form, self.form.depth
        start = kb.sub(kb.mul(kb.rem(plane, window.size), window.stride), window.begin)
        s = form.x_strides
        base = kb.element(form.x_offset, (kb.div(plane, window.size), channel, start), (s[0], s[1], form.x_depth))
        if window.reads_inside:
            return base, (0, window.kernel)
        low, above = taps_inside(kb, window, start, window.extent)
        return base, (low, kb.maximum(above, low))

    def _folded(
        self,
        depths: tuple[Index, Index],
        taps: tuple[Index, Index],
        state: Values,
        one_row: Callable[[Index, Index, Values], Values],
    ) -> Values:
        """`one_row` over the rows of a window, of all its depths."""
        return fold(
            self.kb,
            *depths,
            1,
            state,
            lambda depth, outer: fold(self.kb, *taps, 1, outer, lambda i, inner: one_row(depth, i, inner)),
        )

    def _row_start(self, line0: Index, tap: Index, column0: Index) -> Index:
        """Element offset of the inputs under a kernel row."""
        kb, s = self.kb, self.form.x_strides
        line = kb.add(line0, kb.mul(tap, self.form.rows.dilation))
        return kb.add(kb.mul(line, s[2]), kb.mul(column0, s[3]))

    def _maxima(
        self,
        start: Callable[[Index, Index], Index],
        taps: tuple[tuple[Index, Index], tuple[Index, Index]],
        column: Index,
        size: int,
        lanes: int,
    ) -> Values:
        """Maxima of neighbouring windows: down each input column first, which they share, then across."""
        wide = self.form.columns
        offsets = [[q * wide.stride + t * wide.dilation for t in range(wide.kernel)] for q in range(size)]
        if isinstance(column, int):
            first = column * wide.stride - wide.begin
            offsets = [[o for o in window if 0 <= first + o < wide.extent] for window in offsets]
        used = sorted({o for window in offsets for o in window})

        def one_row(depth: Index, tap: Index, state: Values) -> Values:
            at = start(depth, tap)
            found = []
            for value, offset in zip(state, used, strict=True):
                found.append(self._combine(value, self._input(at, offset, lanes), None))
            return found

        highest = dict(zip(used, self._folded(*taps, [self._neutral(lanes)] * len(used), one_row), strict=True))
        results = []
        for window in offsets:
            total = highest[window[0]] if window else self._neutral(lanes)
            for offset in window[1:]:
                total = self._combine(total, highest[offset], None)
            results.append(total)
        return results

    def _unrolled(self, at: Index, weights: Index, column: Index, channel: Index, lanes: int, state: Values) -> Values:
        """One kernel row, its columns written out; columns known to lie in the padding are left out."""
        kb, wide = self.kb, self.form.columns
        inputs: dict[int, ir.Value] = {}
        values = list(state)
        for tap in range(wide.kernel):
            filters = self._filter(kb.add(weights, tap), channel, lanes)
            for q in range(len(values)):
                offset = q * wide.stride + tap * wide.dilation
                if isinstance(column, int) and not 0 <= column * wide.stride - wide.begin + offset < wide.extent:
                    continue
                if offset not in inputs:
                    inputs[offset] = self._input(at, offset, lanes)
                values[q] = self._combine(values[q], inputs[offset], filters)
        return values

    def _looped(self, at: Index, weights: Index, column0: Index, channel: Index, lanes: int, state: Values) -> Values:
        """One kernel row as a loop over its columns, for each output column apart."""
        kb, wide = self.kb, self.form.columns
        found = []
        for q, value in enumerate(state):
            start = kb.add(column0, q * wide.stride)
            taps = taps_inside(kb, wide, start, wide.extent)

            def step(tap: Index, inner: Values, q: int = q) -> Values:
                offset = kb.add(q * wide.stride, kb.mul(tap, wide.dilation))
                x = self._input(at, offset, lanes)
                return [self._combine(inner[0], x, self._filter(kb.add(weights, tap), channel, lanes))]

            found.append(fold(kb, *taps, 1, [value], step)[0])
        return found

    def _global(self, image: Index, channel: Index, lanes: int) -> None:
        """One vector of channels over the whole plane: four partial results, joined in a fixed order."""
        kb, form = self.kb, self.form
        s, deep, high, wide = form.x_strides, form.depth.extent, form.rows.extent, form.columns.extent
        base = kb.element(form.x_offset, (image, channel), s)
        count = deep * high * wide
        if s[2] == wide * s[3] or high == 1:
            high, wide = 1, high * wide
        if high == 1 and (form.x_depth == wide * s[3] or deep == 1):
            deep, wide = 1, deep * wide
        whole = wide - wide % 4

        def load(line: Index, column: Index) -> ir.Value:
            index = kb.add(base, kb.add(kb.mul(kb.rem(line, high), s[2]), kb.mul(column, s[3])))
            index = kb.add(index, kb.mul(kb.div(line, high), form.x_depth))
            return kb.load(self.source, index, form.dtype, lanes, s[1])

        def one_line(line: Index, state: Values) -> Values:
            def four(column: Index, inner: Values) -> Values:
                return [self._combine(v, load(line, kb.add(column, i)), None) for i, v in enumerate(inner)]

            state = fold(kb, 0, whole, 4, state, four)
            rest = [self._combine(state[i], load(line, whole + i), None) for i in range(wide - whole)]
            return [*rest, *state[len(rest) :]]

        parts = fold(kb, 0, deep * high, 1, [self._neutral(lanes)] * 4, one_line)
        total = self._combine(self._combine(parts[0], parts[1], None), self._combine(parts[2], parts[3], None), None)
        if not self.is_max:
            total = kb.b.fdiv(total, kb.const(float(count), _F32, lanes))
        self.stores.put(self.stores.coords(image, 0, 0), channel, [total])

    # Elementary -----------------------------------------------------------------------------------------------------

    def _input(self, at: Index, offset: Index, lanes: int) -> ir.Value:
        """Channels of the input column that is `offset` from element `at`."""
        index = self.kb.element(at, (offset,), self.form.x_strides[3:])
        return self.kb.load(self.source, index, self.form.dtype, lanes, self.form.x_strides[1])

    def _neutral(self, lanes: int) -> ir.Value:
        if self.form.dtype in BYTES:
            return self.kb.const(self.form.dtype.limits[0], self.form.dtype, lanes)
        return self.kb.const(float("-inf") if self.is_max else 0.0, _F32, lanes)

    def _combine(self, total: ir.Value, x: ir.Value, filters: ir.Value | None) -> ir.Value:
        kb = self.kb
        if filters is not None:
            return kb.fma(x, filters, total)
        if not self.is_max:
            return kb.b.fadd(total, x)
        if self.form.dtype in BYTES:
            compare = kb.b.icmp_signed if self.form.dtype.is_signed else kb.b.icmp_unsigned
            return kb.b.select(compare(">", total, x), total, x)
        function = kb.intrinsic(f"llvm.maximum.{mangle(x.type)}", x.type, [x.type] * 2)
        return kb.b.call(function, [total, x], fastmath=("nsz",))  # NaN is kept; the sign of a zero is nobody's

    def _filter(self, tap: Index, channel: Index, lanes: int) -> ir.Value | None:
        """The filters' values at a tap, None of pools."""
        if self.weights is None:
            return None
        index = self.kb.add(self.kb.mul(tap, self.t.channels), channel)
        return self.kb.load(self.weights, index, _F32, lanes)

    def _finish(self, value: ir.Value, place: tuple[Index, Index, Index], lanes: int) -> ir.Value:
        """Of a plane, row and column. Averages are divided by the number of inputs that count."""
        if self.body.op != "avg_pool":
            return value
        kb = self.kb
        plane, row, column = place
        count = kb.b.fmul(self._count("rows", self.form.rows, row), self._count("columns", self.form.columns, column))
        if self.form.spatial == 3:
            depth = kb.rem(plane, self.form.depth.size)
            count = kb.b.fmul(count, self._count("depths", self.form.depth, depth))
        return kb.b.fdiv(value, kb.splat(count, lanes))

    def _count(self, name: str, window: Window, at: Index) -> ir.Value:
        """How many positions count at an output row or column, at least 1, from a table."""
        include = bool(self.body.attr.get("count_include_pad", False))
        numbers = [float(max(1, c)) for c in window_counts(window, include)]
        if len(set(numbers)) == 1:
            return self.kb.const(numbers[0], _F32)
        if isinstance(at, int):
            return self.kb.const(numbers[at], _F32)
        if name not in self.tables:
            self.tables[name] = self.kb.table(name, numbers, _F32)
        return self.kb.load(self.tables[name], at, _F32)


def emit(kb: KernelBuilder, body: Body, tiling: WindowTiling) -> None:
    """Emit a depthwise convolution or a pool over channels-last images."""
    WindowEmitter(kb, body, tiling).emit()
