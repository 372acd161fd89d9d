"""Code for pools: per output row, combine the input rows under the window into one padded row, then its columns.

Model: `combine` is max or a sum of terms (the value, or |value|^p). The padded row in scratch holds the neutral
element where padding is; its edges are filled once per call. Averages divide by a row count known per output row times
a column count from a table; global pools run over the plane with several accumulators.

Scratch: [padded row].
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.host import vecmath
from superkernel.codegen.host.builder import Index, KernelBuilder, storage_type
from superkernel.codegen.host.gemm_core import fold
from superkernel.codegen.host.loops import strips, taps_inside
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.ir.body import Body
from superkernel.ops.pool import window_counts
from superkernel.ops.windows import Window
from superkernel.scheduler.families.pool import GLOBAL, PoolTiling, pool_form

_UNROLLED_COLUMNS = 8


class PoolEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: PoolTiling) -> None:
        self.kb, self.body, self.t, self.form = kb, body, tiling, pool_form(body)
        self.epilogue = ProgramEmitter(kb, body.epilogue)
        self.is_max = body.op in ("max_pool", "global_max_pool")
        power = body.attr.get("p")
        self.power = power if isinstance(power, int) else 0
        self.counts: ir.Value | None = None

    def emit(self) -> None:
        """The whole function."""
        kb, t, form = self.kb, self.t, self.form
        if self.body.op not in GLOBAL:
            self._fill_edges()
        with kb.loop(kb.begin, kb.end, name="unit") as unit:
            plane, block = kb.div(unit, t.row_blocks), kb.rem(unit, t.row_blocks)
            image, channel = kb.div(plane, form.channels), kb.rem(plane, form.channels)
            base = kb.element(form.x.offset, (image, channel), form.strides)
            if self.body.op in GLOBAL:
                self._global(image, channel, base)
            else:
                first = kb.mul(block, t.block_rows)
                self._rows(image, channel, base, first, kb.minimum(kb.add(first, t.block_rows), t.rows))

    def _rows(self, image: Index, channel: Index, base: Index, first: Index, last: Index) -> None:
        kb, form = self.kb, self.form
        with kb.loop(first, last, name="row") as row:
            depth, line = kb.div(row, form.windows[1].size), kb.rem(row, form.windows[1].size)
            self._combine_rows(base, depth, line)
            self._store_row(image, channel, depth, line)

    # Elementary ------------------------------------------------------------------------------------------------------

    def _neutral(self, lanes: int) -> ir.Value:
        acc = self.form.acc
        if not self.is_max:
            return self.kb.const(0, acc, lanes)
        if acc.is_float:
            return self.kb.const(float("-inf"), acc, lanes)
        bits = 8 * acc.itemsize
        return self.kb.const(-(1 << (bits - 1)) if acc.is_signed else 0, acc, lanes)

    def _combine(self, a: ir.Value, b: ir.Value) -> ir.Value:
        kb, acc = self.kb, self.form.acc
        if not self.is_max:
            return kb.b.fadd(a, b)
        if acc.is_float:
            return kb.call_float("llvm.maximum", a, b)
        compare = kb.b.icmp_signed if acc.is_signed else kb.b.icmp_unsigned
        return kb.b.select(compare(">", a, b), a, b)

    def _term(self, value: ir.Value) -> ir.Value:
        """What an element contributes to a sum."""
        if not self.power:
            return value
        kb = self.kb
        magnitude = kb.call_float("llvm.fabs", value)
        term = magnitude
        for _ in range(self.power - 1):
            term = kb.b.fmul(term, magnitude)
        return term

    def _root(self, total: ir.Value, lanes: int) -> ir.Value:
        """total ** (1/p)."""
        kb = self.kb
        if self.power == 1:
            return total
        if self.power == 2:
            return kb.call_float("llvm.sqrt", total)
        return vecmath.apply(kb, "pow", total, kb.const(1.0 / self.power, self.form.acc, lanes))

    # Windows --------------------------------------------------------------------------------------------------------

    def _fill_edges(self) -> None:
        kb, t, wide = self.kb, self.t, self.form.windows[2]
        for low, high in ((0, wide.begin), (wide.begin + wide.extent, t.row)):
            with kb.loop(low, high, name="edge") as at:
                kb.store(self._neutral(1), kb.scratch, at, t.acc)

    def _taps(self, window: Window, out: Index, limit: int | None = None) -> tuple[Index, Index]:
        """The range of taps of an output position that lie inside the input; with `limit`, inside [0, limit) of the
        padded one."""
        kb = self.kb
        start = kb.mul(out, window.stride) if limit is not None else kb.sub(kb.mul(out, window.stride), window.begin)
        end = window.extent if limit is None else limit
        if window.begin == 0 and (window.size - 1) * window.stride + window.reach <= end:
            return 0, window.kernel
        return taps_inside(kb, window, start, end)

    def _combine_rows(self, base: Index, depth: Index, line: Index) -> None:
        """All input rows under the window, column by column, into the padded row."""
        kb, t, form = self.kb, self.t, self.form
        deep, high, wide = form.windows
        s = form.strides
        depths, lines = self._taps(deep, depth), self._taps(high, line)
        first_depth = kb.sub(kb.mul(depth, deep.stride), deep.begin)
        first_line = kb.sub(kb.mul(line, high.stride), high.begin)
        source = kb.operands[form.x.operand]

        def part(column: Index, lanes: int) -> None:
            def one_depth(i: Index, state: list[ir.Value]) -> list[ir.Value]:
                at = kb.add(
                    kb.add(base, kb.mul(column, s[4])), kb.mul(kb.add(first_depth, kb.mul(i, deep.dilation)), s[2])
                )

                def one_line(j: Index, inner: list[ir.Value]) -> list[ir.Value]:
                    index = kb.add(at, kb.mul(kb.add(first_line, kb.mul(j, high.dilation)), s[3]))
                    value = self._term(kb.load(source, index, form.dtype, lanes, s[4]))
                    return [self._combine(inner[0], value)]

                return fold(kb, *lines, 1, state, one_line)

            total = fold(kb, *depths, 1, [self._neutral(lanes)], one_depth)[0]
            kb.store(total, kb.scratch, kb.add(column, wide.begin), t.acc)

        strips(self.kb, wide.extent, self.t.lanes, part)

    def _store_row(self, image: Index, channel: Index, depth: Index, line: Index) -> None:
        """The windows of the combined row, finished and through the epilogue."""
        kb, t, form = self.kb, self.t, self.form
        wide = form.windows[2]
        coords = [image, channel, *[depth, line, 0][3 - form.spatial :]]
        program = self.epilogue.row(coords)
        rows = self._row_count(depth, line)

        def part(at: Index, lanes: int) -> None:
            first = kb.mul(at, wide.stride)

            def tap(k: Index, state: list[ir.Value]) -> list[ir.Value]:
                index = kb.add(first, kb.mul(k, wide.dilation))
                return [self._combine(state[0], kb.load(kb.scratch, index, t.acc, lanes, wide.stride))]

            value = kb.load(kb.scratch, first, t.acc, lanes, wide.stride)
            if wide.kernel <= _UNROLLED_COLUMNS:
                for k in range(1, wide.kernel):
                    value = tap(k, [value])[0]
            else:
                value = fold(kb, 1, wide.kernel, 1, [value], tap)[0]
            program.eval(at, lanes, [self._finish(value, rows, at, lanes)])

        strips(self.kb, wide.size, self.t.lanes, part)

    def _finish(self, total: ir.Value, rows: ir.Value | None, at: Index, lanes: int) -> ir.Value:
        if self.power:
            return self._root(total, lanes)
        if rows is None:
            return total
        kb = self.kb
        columns = kb.load(self._column_counts(), at, self.form.acc, lanes)
        return kb.b.fdiv(total, kb.b.fmul(kb.splat(rows, lanes), columns))

    def _includes_pad(self) -> bool:
        return bool(self.body.attr.get("count_include_pad", False))

    def _row_count(self, depth: Index, line: Index) -> ir.Value | None:
        """How many rows an average divides by, at least 1; None for other pools."""
        if self.body.op != "avg_pool":
            return None
        kb, form = self.kb, self.form
        count: Index = 1
        for window, out in ((form.windows[0], depth), (form.windows[1], line)):
            limit = window.begin + window.extent + window.end if self._includes_pad() else None
            low, high = self._taps(window, out, limit)
            count = kb.mul(count, kb.maximum(kb.sub(high, low), 1))
        return kb.b.sitofp(kb.i64(count), storage_type(form.acc))

    def _column_counts(self) -> ir.Value:
        """A constant table: columns that count, per output column."""
        if self.counts is None:
            window = self.form.windows[2]
            numbers = [float(max(1, c)) for c in window_counts(window, self._includes_pad())]
            self.counts = self.kb.table("counts", numbers, self.form.acc)
        return self.counts

    # Global ---------------------------------------------------------------------------------------------------------

    def _global(self, image: Index, channel: Index, base: Index) -> None:
        """One plane to one value: a vector of partial results, joined in a fixed order."""
        kb, t, form = self.kb, self.t, self.form
        deep, high, wide = (w.extent for w in form.windows)
        s = form.strides
        if s[3] == wide * s[4] and s[2] in (0, high * wide * s[4]):  # one run
            deep, high, wide = 1, 1, deep * high * wide
        lanes, source = t.lanes, kb.operands[form.x.operand]
        whole = wide // (4 * lanes) * 4 * lanes

        def line(index: Index, state: list[ir.Value]) -> list[ir.Value]:
            d, r = kb.div(index, high), kb.rem(index, high)
            at = kb.add(base, kb.add(kb.mul(d, s[2]), kb.mul(r, s[3])))

            def load(column: Index, width: int) -> ir.Value:
                return kb.load(source, kb.add(at, kb.mul(column, s[4])), form.dtype, width, s[4])

            def step(column: Index, inner: list[ir.Value]) -> list[ir.Value]:
                return [self._combine(v, load(kb.add(column, i * lanes), lanes)) for i, v in enumerate(inner)]

            state = [*fold(kb, 0, whole, 4 * lanes, state[:4], step), state[4]]
            for n, column in enumerate(range(whole, wide - lanes + 1, lanes)):
                state[n] = self._combine(state[n], load(column, lanes))
            rest = wide % lanes
            if rest:
                state[4] = self._combine(state[4], self._reduce(load(wide - rest, rest)))
            return state

        start = [self._neutral(lanes)] * 4 + [self._neutral(1)]
        state = fold(kb, 0, deep * high, 1, start, line)
        vector = self._combine(self._combine(state[0], state[1]), self._combine(state[2], state[3]))
        total = self._combine(self._reduce(vector), state[4])
        if not self.is_max:
            total = kb.b.fdiv(total, kb.const(float(deep * high * wide), form.acc))
        coords = [image, channel, *([0] * form.spatial)]
        self.epilogue.row(coords).eval(0, 1, [total])

    def _reduce(self, value: ir.Value) -> ir.Value:
        acc = self.form.acc
        if not self.is_max:
            return self.kb.reduce_lanes("fadd", value)
        return self.kb.reduce_lanes("fmax" if acc.is_float else "smax" if acc.is_signed else "umax", value)


def emit(kb: KernelBuilder, body: Body, tiling: PoolTiling) -> None:
    """Emit a pool."""
    PoolEmitter(kb, body, tiling).emit()
