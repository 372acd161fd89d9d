"""Code for products with weights quantised in blocks (the model is scheduler/families/blocks.py's).

Model: loops, copies of rows and epilogue are those of matrix products. From the stream, a step of the depth loop reads
a word of eight codes per column and turns each code into the f32 number (code - zero): by a shift and a table of
sixteen in a register where the CPU looks lanes up (which ignores higher bits), else in the mantissa of a power of two
whose last bits count as units, off which that power and the zero are taken, exactly. The sums of a block are kept
apart; behind it they are multiplied by the scales and added to the sums of all blocks, offsets times the sum of the
block's x as well.

Where x are whole numbers, words are taken apart into vectors of bytes that are multiplied by fours of x's bytes (of 16
bits: of its high and of its low bytes), exactly in i32, and the block's sums become f32 under the product of both
scales. A number of x that is not finite makes the scale of its block so, and with it every result of the row.

Scratch: [tile][left copy][right panel as f32][sums of x: rows x blocks], or [tile][rows as whole numbers][an f32 row].

Invariant: the operations behind a result depend on the depth, the block and the tile's shape only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from llvmlite import ir

from superkernel.codegen.host.builder import I8, I32, Index, KernelBuilder
from superkernel.codegen.host.gemm_core import Values, fold, zero
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.matmul import Lines, MatmulEmitter
from superkernel.codegen.host.quantise import nearest
from superkernel.codegen.host.streaming import Panel
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.blocks import BLOCK_WORDS, WORD_CODES, BlockTiling
from superkernel.scheduler.families.matmul_tiling import COLUMNS, COPY

_LARGEST = {1: 127, 2: 127 * 256 + 127}  # whole number whose bytes, so many, are all signed ones
_SMALLEST = 2.0**-100  # largest number of a block that is not taken for 0: what others become must be finite
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of codes in the bytes of a word's even and odd nibbles
_UNROLLED_WORDS = 8  # of a block
_UNROLLED_STEPS = {4: 4, 8: 16}  # of a block, by bits of a code
_LINE_BYTES = 64
_AHEAD_BYTES = 8192  # two pages: the hardware, which has two streams to follow, begins each page anew
_MANTISSA_BITS = 23
_CODES_IN_PLACE = 5  # codes of 4 bits that lie in the mantissa as they are


class BlockEmitter(MatmulEmitter):
    """Writes the kernel of one body and tiling."""

    t: BlockTiling

    def __init__(self, kb: KernelBuilder, body: Body, tiling: BlockTiling) -> None:
        super().__init__(kb, body, tiling)
        self.sums = kb.offset(kb.scratch, tiling.scratch_bytes - tiling.sums_bytes)
        self.fetches = tiling.far and tiling.band_tiles == 1  # else other rows have brought it near

    # Weights --------------------------------------------------------------------------------------------------------

    def _panel(self, batch: list[Index], panel: Index) -> Panel:
        kb, t = self.kb, self.t
        bases = [kb.offset(kb.operands[operand], kb.mul(panel, size)) for operand, size in t.packed_operands(self.body)]
        self.codes, self.scales, self.offsets = [*bases, None][:3]
        if self.fetches:
            stop = kb.end if t.axis == COLUMNS and t.batch == 1 else t.panels
            self.last = kb.sub(kb.mul(kb.sub(stop, panel), t.codes_bytes), t.panel * t.step_items.itemsize)
        if t.right == COPY:
            self._unpack_panel()
            return Panel(self.right_copy, t.panel, True)
        return Panel(self.codes, t.panel, False)

    def _numbers(self, step: Index, count: int) -> Iterator[Values]:
        """(code - zero) as f32, vector by vector of the panel, of each of the `count` codes of a step."""
        kb, t = self.kb, self.t
        at = kb.mul(step, t.panel)
        raw = [kb.load(self.codes, kb.add(at, v * t.lanes), t.step_items, t.lanes) for v in range(t.vectors)]
        for code in range(count):
            yield [self._number(word, code) for word in raw]

    def _number(self, word: ir.Value, code: int) -> ir.Value:
        kb, b, t = self.kb, self.kb.b, self.t
        if t.bits == 8:
            return self._float(b.sext(word, _vector(I32, t.lanes)))
        if kb.cpu.tier == "avx512":
            low, kind = b.lshr(word, kb.const(4 * code, DType.I32, t.lanes)), ir.VectorType(ir.FloatType(), 16)
            table = ir.Constant(kind, [float(number - t.zero) for number in range(16)])
            look_up = kb.intrinsic("llvm.x86.avx512.permvar.sf.512", kind, [kind, low.type])
            return b.call(look_up, [table, low])
        if code >= _CODES_IN_PLACE:
            word, code = b.lshr(word, kb.const(4 * _CODES_IN_PLACE, DType.I32, t.lanes)), code - _CODES_IN_PLACE
        one = 2.0 ** (_MANTISSA_BITS - 4 * code)  # the number whose mantissa counts these bits as units
        bits = int(np.float32(one).view(np.uint32))
        low = b.and_(word, kb.const(15 << 4 * code, DType.I32, t.lanes))
        number = b.bitcast(b.or_(low, kb.const(bits, DType.I32, t.lanes)), _vector(ir.FloatType(), t.lanes))
        return b.fsub(number, kb.const(one + t.zero, DType.F32, t.lanes))

    def _float(self, code: ir.Value) -> ir.Value:
        kb, t = self.kb, self.t
        if t.zero:
            code = kb.b.sub(code, kb.const(t.zero, DType.I32, t.lanes))
        return kb.b.sitofp(code, _vector(ir.FloatType(), t.lanes))

    def _of_block(self, base: ir.Value, block: Index) -> Values:
        """Scales or offsets of a block, vector by vector."""
        kb, t = self.kb, self.t
        at = kb.mul(block, t.panel)
        return [kb.load(base, kb.add(at, v * t.lanes), t.scales, t.lanes) for v in range(t.vectors)]

    # From the stream ------------------------------------------------------------------------------------------------

    def _prepare(self, batch: list[Index], block: Index, block_end: Index) -> None:
        """The sums of x by row and block, where offsets are to be multiplied by them."""
        kb, t = self.kb, self.t
        if not t.sums_bytes:
            return
        lines, count = self._lines(batch, block, block), t.stored.count
        whole = t.depth // t.block_depth

        def total(row: Index, index: Index, items: int) -> None:
            first = kb.add(kb.mul(row, lines.line), kb.mul(index, t.block_depth * lines.depth))

            def load(at: Index, lanes: int) -> ir.Value:
                return kb.load(lines.origin, kb.add(first, kb.mul(at, lines.depth)), t.acc, lanes, lines.depth)

            full = items // t.lanes * t.lanes
            start = [zero(t.acc, t.lanes)]
            (value,) = fold(kb, 0, full, t.lanes, start, lambda at, state: [kb.b.fadd(state[0], load(at, t.lanes))])
            found = kb.reduce_lanes("fadd", value)
            if items > full:
                found = kb.b.fadd(found, kb.reduce_lanes("fadd", load(full, items - full)))
            kb.store(found, self.sums, kb.add(kb.mul(row, count), index), DType.F32)

        with kb.loop(0, t.tile_rows, name="row") as row:
            with kb.loop(0, whole, name="block") as index:
                total(row, index, t.block_depth)
            if count > whole:
                total(row, whole, t.depth - whole * t.block_depth)

    def _results(
        self,
        lines: Lines,
        source: Panel,
        zeros: list[ir.Value] | None,
        steps: Index | None = None,
        start: list[Values] | None = None,
    ) -> list[Values]:
        t = self.t
        if t.right == COPY:
            return super()._results(lines, source, zeros, steps, start)
        block = self._integer_block if t.format.is_reduced else self._block
        self.kb.forget_vectors()
        totals = [zero(t.acc, t.lanes)] * (t.tile_rows * t.vectors)
        return self.tile.rows_of(self._each_block(totals, lambda i, items, state: block(lines, i, items, state)))

    def _each_block(self, state: Values, block: Callable[[Index, int, Values], Values]) -> Values:
        """`state = block(index, codes in it, state)` for every block, the last one perhaps shorter."""
        t = self.t
        whole = t.depth // t.block_depth
        state = fold(self.kb, 0, whole, 1, state, lambda i, values: block(i, t.block_depth, values))
        return block(whole, t.depth - whole * t.block_depth, state) if t.stored.count > whole else state

    # Whole numbers --------------------------------------------------------------------------------------------------

    def _finish_row(self, row: Index) -> None:
        """The row in `self.row` as whole numbers, block by block."""
        t = self.t
        if not t.format.is_reduced:
            super()._finish_row(row)
            return
        kb = self.kb

        def clear(at: Index, lanes: int) -> None:
            kb.store(zero(DType.F32, lanes), self.row, kb.add(at, t.depth), DType.F32)

        strips(kb, t.staged - t.depth, t.lanes, clear)
        with kb.loop(0, t.stored.count, name="block") as block:
            self._put_block(kb.at(self.left_copy, row, DType.F32), block)

    def _put_block(self, copy: ir.Value, block: Index) -> None:
        kb, b, t = self.kb, self.kb.b, self.t
        width = t.lanes if t.span % t.lanes == 0 and t.lanes >= WORD_CODES else WORD_CODES
        first = kb.mul(block, t.span)

        def look(at: Index, state: Values) -> Values:
            value = kb.load(self.row, kb.add(first, at), DType.F32, width)
            size = b.bitcast(kb.call_float("llvm.fabs", value), state[0].type)
            return [b.select(b.icmp_signed(">", size, state[0]), size, state[0])]

        (bits,) = fold(kb, 0, t.span, width, [zero(DType.I32, width)], look)
        largest = b.bitcast(kb.reduce_lanes("smax", bits), ir.FloatType())
        limit, none = ir.Constant(largest.type, float(_LARGEST[t.format.row_parts])), ir.Constant(largest.type, 0.0)
        is_some = b.fcmp_ordered(">", largest, ir.Constant(largest.type, _SMALLEST))
        inverse = b.select(is_some, b.fdiv(limit, largest), none)
        order = [i + j for i in range(0, width, WORD_CODES) for j in _ORDER] if t.bits == 4 else list(range(width))

        def put(at: Index, state: Values) -> Values:
            value = kb.load(self.row, kb.add(first, at), DType.F32, width)
            code = nearest(kb, b.fmul(value, kb.splat(inverse, width)), kb.const(0, DType.I32, width))
            parts = [code]
            if t.format.row_parts == 2:
                low = b.ashr(b.shl(code, kb.const(24, DType.I32, width)), kb.const(24, DType.I32, width))
                parts = [b.ashr(b.sub(code, low), kb.const(8, DType.I32, width)), low]
            for plane, part in enumerate(parts):
                octets = kb.pick(b.trunc(part, ir.VectorType(I8, width)), order)
                to = kb.at(copy, kb.add(kb.add(first, at), 4 * plane * t.plane), DType.I8)
                b.store(octets, to, align=1)
            return [b.add(kept, part) for kept, part in zip(state, parts, strict=True)]

        sums = fold(kb, 0, t.span, width, [zero(DType.I32, width)] * t.format.row_parts, put)
        words, scale = self._words(block), b.fdiv(largest, limit)
        kb.store(scale, copy, words, DType.F32)
        total: ir.Value = ir.Constant(I32, 0)
        for plane, part in enumerate(sums):
            own = kb.reduce_lanes("add", part)
            kb.store(b.mul(own, ir.Constant(I32, self._shift() - t.zero)), copy, kb.add(words, 1 + plane), DType.I32)
            total = b.add(b.shl(total, ir.Constant(I32, 8)), own)
        kb.store(b.fmul(b.sitofp(total, scale.type), scale), copy, kb.add(words, 3), DType.F32)

    def _words(self, block: Index) -> Index:
        """Where a row's copy has what belongs to a block."""
        return self.kb.add(self.kb.mul(block, BLOCK_WORDS), self.t.format.row_parts * self.t.plane)

    def _integer_block(self, lines: Lines, block: Index, items: int, totals: Values) -> Values:
        """As `_block`, x being whole numbers."""
        kb, t, planes = self.kb, self.t, self.t.format.row_parts
        sums, words = self._sums_of_block(lines, block, items), self._words(block)
        scales = self._of_block(self.scales, block)
        offsets = None if self.offsets is None else self._of_block(self.offsets, block)
        found = []
        for row in range(t.tile_rows):
            own = kb.at(lines.origin, row * lines.line, t.acc)
            scale = kb.splat(kb.load(own, words, DType.F32), t.lanes)
            for v in range(t.vectors):
                i = row * t.vectors + v
                whole, *low = (kb.b.sitofp(part, scale.type) for part in sums[planes * i : planes * (i + 1)])
                if low:
                    whole = kb.fma(whole, kb.const(256.0, DType.F32, t.lanes), low[0])
                value = kb.fma(whole, kb.b.fmul(scale, scales[v]), totals[i])
                if offsets is not None:
                    x_sum = kb.splat(kb.load(own, kb.add(words, 3), DType.F32), t.lanes)
                    value = kb.fma(x_sum, offsets[v], value)
                found.append(value)
        return found

    def _sums_of_block(self, lines: Lines, block: Index, items: int) -> Values:
        """In i32, by row, vector and part of x."""
        kb, t = self.kb, self.t
        first, planes = kb.mul(block, t.span // t.step), t.format.row_parts
        rows = [kb.at(lines.origin, row * lines.line, t.acc) for row in range(t.tile_rows)]
        words = self._words(block)
        octets = 8 // t.bits  # vectors of bytes in a vector of words

        def beginning(row: int, plane: int) -> ir.Value:
            return kb.splat(kb.load(rows[row], kb.add(words, 1 + plane), DType.I32), t.lanes)

        sums = [beginning(r, p) for r in range(t.tile_rows) for _ in range(t.vectors) for p in range(planes)]

        def step(index: Index, state: Values) -> Values:
            at = kb.add(first, index)
            self._fetch(at)
            raw = [
                kb.load(self.codes, kb.add(kb.mul(at, t.panel), v * t.lanes), DType.I32, t.lanes)
                for v in range(t.vectors)
            ]
            found = list(state)
            for part in range(octets):
                codes = [self._octets(word, part) for word in raw]
                for row in range(t.tile_rows):
                    for plane in range(planes):
                        place = kb.add(kb.add(kb.mul(at, octets), part), plane * t.plane)
                        x = kb.splat(kb.load(rows[row], place, DType.I32), t.lanes)
                        for v, code in enumerate(codes):
                            i = (row * t.vectors + v) * planes + plane
                            found[i] = self.arithmetic.multiply_add(found[i], [code], [x])
            return found

        steps, unrolled = -(-items // t.step), _UNROLLED_WORDS
        if steps <= unrolled:
            for index in range(steps):
                sums = step(index, sums)
        else:
            sums = fold(kb, 0, steps, 1, sums, step)
        return sums

    def _shift(self) -> int:
        """What codes are multiplied smaller by than they are; those of 4 bits are bytes of either kind."""
        return self.arithmetic.shift if self.t.bits == 8 else 0

    def _octets(self, word: ir.Value, part: int) -> ir.Value:
        """The codes of a word as bytes; of 4 bits the even ones, then the odd ones."""
        kb, b, t = self.kb, self.kb.b, self.t
        if t.bits == 8:
            return self.arithmetic.less_shift(word)
        if part:
            word = b.lshr(word, kb.const(4, DType.I32, t.lanes))
        return b.and_(word, kb.const(0x0F0F0F0F, DType.I32, t.lanes))

    # Numbers in f32 -------------------------------------------------------------------------------------------------

    def _block(self, lines: Lines, block: Index, items: int, totals: Values) -> Values:
        """The sums with those of a block of so many codes."""
        kb, t = self.kb, self.t
        first = kb.mul(block, -(-t.block_depth // t.step))
        sums = [zero(t.acc, t.lanes)] * len(totals)
        full, rest = divmod(items, t.step)

        def step(index: Index, state: Values, count: int = t.step) -> Values:
            at = kb.add(first, index)
            self._fetch(at)
            k = kb.mul(kb.mul(at, t.step), lines.depth)
            found = list(state)
            for code, numbers in enumerate(self._numbers(at, count)):
                for row in range(t.tile_rows):
                    place = kb.add(kb.add(k, code * lines.depth), row * lines.line)
                    x = kb.splat(kb.load(lines.origin, place, t.acc), t.lanes)
                    for v, number in enumerate(numbers):
                        i = row * t.vectors + v
                        found[i] = kb.fma(x, number, found[i])
            return found

        unrolled = _UNROLLED_STEPS[t.bits]
        if full <= unrolled:
            for index in range(full):
                sums = step(index, sums)
        else:
            many = full - full % unrolled

            def several(index: Index, state: Values) -> Values:
                for i in range(unrolled):
                    state = step(kb.add(index, i), state)
                return state

            sums = fold(kb, 0, many, unrolled, sums, several)
            for index in range(many, full):
                sums = step(index, sums)
        if rest:
            sums = step(full, sums, rest)
        scales = self._of_block(self.scales, block)
        found = [kb.fma(value, scales[i % t.vectors], totals[i]) for i, value in enumerate(sums)]
        if self.offsets is None:
            return found
        offsets = self._of_block(self.offsets, block)
        for row in range(t.tile_rows):
            total = kb.splat(kb.load(self.sums, kb.add(row * t.stored.count, block), DType.F32), t.lanes)
            for v, offset in enumerate(offsets):
                i = row * t.vectors + v
                found[i] = kb.fma(total, offset, found[i])
        return found

    def _fetch(self, step: Index) -> None:
        """Asks for what a later step reads, but for nothing behind the range's last panel."""
        kb, t = self.kb, self.t
        if not self.fetches:
            return
        size = t.panel * t.step_items.itemsize
        there = kb.offset(self.codes, kb.minimum(kb.add(kb.mul(step, size), _AHEAD_BYTES), self.last))
        for line in range(0, size, _LINE_BYTES):
            kb.prefetch(kb.b.gep(there, [kb.i64(line)], source_etype=I8))

    # Unpacked -------------------------------------------------------------------------------------------------------

    def _unpack_panel(self) -> None:
        """The panel's weights as f32 in scratch."""
        kb, t = self.kb, self.t
        whole = t.depth // t.block_depth
        with kb.loop(0, whole, name="block") as block:
            self._unpack_block(block, t.block_depth)
        if t.stored.count > whole:
            self._unpack_block(whole, t.depth - whole * t.block_depth)

    def _unpack_block(self, block: Index, items: int) -> None:
        kb, t = self.kb, self.t
        scales = self._of_block(self.scales, block)
        offsets = None if self.offsets is None else self._of_block(self.offsets, block)
        first = kb.mul(block, -(-t.block_depth // t.step))

        def step(index: Index, count: int) -> None:
            at = kb.add(first, index)
            for code, numbers in enumerate(self._numbers(at, count)):
                to = kb.mul(kb.add(kb.mul(at, t.step), code), t.panel)
                for v, number in enumerate(numbers):
                    value = kb.b.fmul(number, scales[v]) if offsets is None else kb.fma(number, scales[v], offsets[v])
                    kb.store(value, self.right_copy, kb.add(to, v * t.lanes), t.acc)

        full, rest = divmod(items, t.step)
        with kb.loop(0, full, name="step") as index:
            step(index, t.step)
        if rest:
            step(full, rest)


def _vector(element: ir.Type, lanes: int) -> ir.Type:
    return element if lanes == 1 else ir.VectorType(element, lanes)


def emit(kb: KernelBuilder, body: Body, tiling: BlockTiling) -> None:
    """Emit the kernel of a product with weights in blocks."""
    BlockEmitter(kb, body, tiling).emit()
