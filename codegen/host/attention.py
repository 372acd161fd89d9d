"""Code for attention: blocks of queries against blocks of keys, with an online softmax.

Model, per block of stacked query rows: copy the scaled queries to scratch; per block of keys: transpose the keys into
a panel, then per register tile of rows: scores = queries x panel (few rows: dot products with the keys as they lie,
`lanes` keys at a time, whose sums over lanes are taken together), the row-wise online softmax (running maximum `top`,
running sum `weight`), and total = total * correction + probabilities x values with the values read in place; at the
end each row's total / weight goes through the epilogue. Keys at or beyond a row's limit, or masked, get the score -inf
and so the probability 0; values of keys beyond the block's limit are never multiplied, so that whatever a cache holds
there, even NaN, cannot reach a result. A row without visible keys is 0.

Scratch: see AttentionTiling.offsets.
"""

from __future__ import annotations

from dataclasses import replace

from llvmlite import ir

from superkernel.codegen.host import vecmath
from superkernel.codegen.host.arithmetic import arithmetic_of, multiply
from superkernel.codegen.host.builder import I1, I8, I32, I64, Index, KernelBuilder, storage_type
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.gemm_core import Tile, Values, accumulate, fold, store_tile
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.panels import copy_transposed
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.codegen.host.shuffle import lane_mask, lane_sums, larger, resize
from superkernel.codegen.host.word_panels import copy_row_pairs, copy_words_transposed
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.attention import AttentionTiling, attention_form

_F32 = DType.F32
_MINUS_INFINITY = float("-inf")
_STREAMED_ROWS = 8  # up to here keys are fetched ahead: they are read once and arithmetic does not hide memory
_COLUMNS_AHEAD = 32
_VALUES_AHEAD = 32


class AttentionEmitter:
    """Writes the kernel of one body and tiling."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: AttentionTiling) -> None:
        self.kb, self.body, self.t, self.form = kb, body, tiling, attention_form(body)
        self.epilogue = ProgramEmitter(kb, body.epilogue)
        self.one_block = self.form.keys <= tiling.keys  # then nothing must be corrected
        self.arithmetic = arithmetic_of(kb, tiling.format)
        self.at = {
            name: kb.offset(kb.scratch, kb.size(name, start)) for name, start in tiling.offsets.items() if name != "end"
        }
        self.keys, self.queries = kb.size("keys", self.form.keys), kb.size("queries", self.form.queries)
        self.rows, self.blocks = kb.size("rows", self.form.rows), kb.size("blocks", tiling.blocks)
        self.block_rows = kb.size("block_rows", tiling.block_rows)
        self.padded_rows = kb.size("padded_rows", tiling.padded_rows)
        self.outer = {(slot, axis): kb.size(f"{slot}.{axis}", n) for slot, axis, n in self.form.outer_strides()}

    def emit(self) -> None:
        """The whole function."""
        kb, t, form = self.kb, self.t, self.form
        with kb.loop(kb.begin, kb.end, name="unit") as unit:
            outer, block = kb.div(unit, self.blocks), kb.rem(unit, self.blocks)
            batch, head = kb.div(outer, t.kv_heads), kb.rem(outer, t.kv_heads)
            first = kb.mul(block, self.block_rows)
            count = self.block_rows
            if not isinstance(count, int) or form.rows % count:
                count = kb.minimum(kb.sub(self.rows, first), count)
            valid = self._valid(batch)
            limit = self._block_limit(first, count, valid)
            self._start(batch, head, first, count)
            if self._streams() and not t.format.is_reduced:
                self._fetch_values(self._base(2, batch, head))
            with kb.loop(0, limit, t.keys, name="keys") as key:
                self._keys(batch, head, first, key, limit, valid)
            with kb.loop(0, count, name="row") as row:
                self._finish(batch, head, kb.add(first, row), row)

    @property
    def _whole_vectors(self) -> bool:
        """Whether all keys fill whole vectors."""
        return isinstance(self.keys, int) and self.keys % self.t.lanes == 0

    def _origin(self, slot: int, offset: int, batch: Index, head: Index) -> Index:
        """The element of an input at which a batch's head begins."""
        kb = self.kb
        at: Index = offset
        for axis, coordinate in enumerate((batch, head)):
            at = kb.add(at, kb.mul(coordinate, self.outer.get((slot, axis), 0)))
        return at

    # Limits ---------------------------------------------------------------------------------------------------------

    def _valid(self, batch: Index) -> Index:
        """How many keys a batch has, 0 to keys."""
        kb, form = self.kb, self.form
        if form.length is None:
            return self.keys
        view = form.length
        dtype = self.body.operands[view.operand].type.dtype
        many = bool(view.shape) and view.shape[0] > 1
        at = kb.add(view.offset, kb.mul(batch, view.strides[0])) if many else view.offset
        value = kb.load(kb.operands[view.operand], at, dtype)
        value = kb.b.sext(value, I64) if dtype.itemsize < 8 else value
        return kb.maximum(kb.minimum(value, self.keys), 0)

    def _position(self, row: Index, head: Index = 0) -> tuple[Index, Index]:
        """(query head, query position) of a stacked row; without the head of keys, the query head in its group."""
        kb, form = self.kb, self.form
        inner, query = (0, row) if form.group == 1 else (kb.div(row, self.queries), kb.rem(row, self.queries))
        return kb.add(kb.mul(head, form.group), inner), query

    def _row_limit(self, query: Index, valid: Index) -> Index:
        """Keys a query may see."""
        kb, form = self.kb, self.form
        if not form.causal:
            return valid
        return kb.minimum(valid, kb.add(kb.add(query, 1), kb.sub(valid, self.queries)))

    def _block_limit(self, first: Index, count: Index, valid: Index) -> Index:
        """Keys that some row of the block may see."""
        kb, form = self.kb, self.form
        if not form.causal:
            return valid
        head, _ = self._position(first)
        last_head, last = self._position(kb.sub(kb.add(first, count), 1))
        if form.group == 1:
            return kb.maximum(self._row_limit(last, valid), 0)
        same = kb.compare("==", head, last_head)
        furthest = kb.b.select(same, kb.i64(last), kb.i64(kb.sub(self.queries, 1)))
        return kb.maximum(self._row_limit(furthest, valid), 0)

    # Start and end --------------------------------------------------------------------------------------------------

    def _start(self, batch: Index, head: Index, first: Index, count: Index) -> None:
        """Scaled queries to scratch; empty totals."""
        kb, t, form = self.kb, self.t, self.form
        q = form.q
        dtype = self.body.operands[q.operand].type.dtype
        with kb.loop(0, count, name="row") as row:
            heads, query = self._position(kb.add(first, row), head)
            at = kb.add(self._origin(0, q.offset, batch, heads), kb.mul(query, q.strides[2]))

            def part(column: Index, lanes: int, at: Index = at, row: Index = row) -> None:
                index = kb.add(at, kb.mul(column, q.strides[3]))
                value = kb.load(kb.operands[q.operand], index, dtype, lanes, q.strides[3])
                value = kb.b.fmul(convert(kb, value, dtype, _F32), kb.const(form.scale, _F32, lanes))
                self.arithmetic.store(value, self.at["query"], kb.add(kb.mul(row, t.query_pitch), column))

            strips(kb, form.depth, t.lanes, part)
        with kb.loop(0, kb.mul(self.padded_rows, t.value_pitch), t.lanes, name="clear") as at:
            kb.store(kb.const(0.0, _F32, t.lanes), self.at["total"], at, _F32)
        with kb.loop(0, self.padded_rows, name="clear") as row:
            kb.store(kb.const(_MINUS_INFINITY, _F32), self.at["top"], row, _F32)
            kb.store(kb.const(0.0, _F32), self.at["weight"], row, _F32)

    def _finish(self, batch: Index, head: Index, stacked: Index, row: Index) -> None:
        """total / weight of a row through the epilogue."""
        kb, t, form = self.kb, self.t, self.form
        heads, query = self._position(stacked, head)
        program = self.epilogue.row([batch, heads, query, 0])
        weight = kb.load(self.at["weight"], row, _F32)
        empty = kb.b.fcmp_ordered("==", weight, kb.const(0.0, _F32))
        factor = kb.b.fdiv(kb.const(1.0, _F32), kb.b.select(empty, kb.const(1.0, _F32), weight))

        def part(column: Index, lanes: int) -> None:
            value = kb.load(self.at["total"], kb.add(kb.mul(row, t.value_pitch), column), _F32, lanes)
            program.eval(column, lanes, [kb.b.fmul(value, kb.splat(factor, lanes))])

        strips(kb, form.value_depth, t.lanes, part)

    # Blocks of keys -------------------------------------------------------------------------------------------------

    def _base(self, slot: int, batch: Index, head: Index) -> ir.Value:
        view = self.form.k if slot == 1 else self.form.v
        kb = self.kb
        at = self._origin(slot, view.offset, batch, head)
        return kb.at(kb.operands[view.operand], at, self.body.operands[view.operand].type.dtype)

    def _keys(self, batch: Index, head: Index, first: Index, key: Index, limit: Index, valid: Index) -> None:
        """One block of keys against all rows of the block."""
        kb, t, form = self.kb, self.t, self.form
        keys, count = self._base(1, batch, head), kb.minimum(kb.sub(limit, key), t.keys)
        if not t.dots:
            self._copy_keys(keys, key, limit)
        values = kb.at(
            self._base(2, batch, head), kb.mul(key, form.v.strides[2]), self.body.operands[form.v.operand].type.dtype
        )
        values = self._copy_values(values, count)
        with kb.loop(0, self.padded_rows, t.tile_rows, name="tile") as tile_row:
            if t.dots:
                self._dots(keys, key, count)
            else:
                self._scores(tile_row)
            # of all rows first one, then the other: no row waits for its own maximum alone
            with kb.loop(0, t.tile_rows, name="row") as row:
                at = kb.add(tile_row, row)
                stacked = kb.minimum(kb.add(first, at), kb.sub(self.rows, 1))
                self._find_top(batch, head, stacked, row, at, key, count, valid)
            if not self.one_block:
                self._correct(tile_row)
            with kb.loop(0, t.tile_rows, name="row") as row:
                self._exponentiate(row, kb.add(tile_row, row), count)
            self._mix(tile_row, count, values)

    def _copy_keys(self, source: ir.Value, key: Index, limit: Index) -> None:
        """Keys from `key` on into the panel, transposed."""
        kb, t, form = self.kb, self.t, self.form
        line, panel = form.k.strides[2], self.at["panel"]
        dtype = self.body.operands[form.k.operand].type.dtype
        if t.format.is_reduced:
            keys = (key, limit)
            copy_words_transposed(self.arithmetic, source, dtype, line, form.depth, keys, panel, t.keys, t.lanes)
            return
        panel_tile = Tile(1, t.keys // t.lanes, t.lanes, _F32)
        ahead = _COLUMNS_AHEAD if self._streams() else 0
        copy_transposed(kb, panel_tile, source, dtype, line, form.depth, limit, key, panel, ahead)

    def _copy_values(self, values: ir.Value, count: Index) -> ir.Value:
        """Where `_mix` finds the block's values: as words in scratch, else where they are."""
        t, form = self.t, self.form
        if not t.format.is_reduced:
            return values
        line, copy, dtype = form.v.strides[2], self.at["values"], self.body.operands[form.v.operand].type.dtype
        copy_row_pairs(self.arithmetic, values, dtype, line, form.value_depth, count, copy, t.value_pitch, t.lanes)
        return copy

    def _streams(self) -> bool:
        """True where keys and values are read once, straight from memory, and must be fetched ahead."""
        return self.t.padded_rows <= _STREAMED_ROWS

    def _scores(self, tile_row: Index) -> None:
        """Queries x panel of one register tile of rows, parked in scratch."""
        kb, t = self.kb, self.t
        tile = Tile(t.tile_rows, t.vectors, t.lanes, _F32)
        with kb.loop(0, t.keys, tile.columns, name="columns") as column:
            results = self._score_tile(tile, kb.mul(tile_row, t.query_pitch), column)
            store_tile(kb, tile, results, kb.at(self.at["scores"], column, _F32), t.keys)

    def _score_tile(self, tile: Tile, query: Index, column: Index) -> list[Values]:
        """Scores of the rows whose queries start at element `query`, of keys from `column` on."""
        kb, t, form = self.kb, self.t, self.form
        queries = kb.at(self.at["query"], query, t.format.item)
        if t.format.is_reduced:
            panel = kb.at(self.at["panel"], column, _F32)
            return multiply(self.arithmetic, tile, (), (form.depth, 1), t.query_pitch, queries, panel, t.keys)
        phases = 1
        while phases < 4 and t.tile_rows * t.vectors * phases * 2 <= 16 and form.depth >= 8 * phases:
            phases *= 2
        return accumulate(
            kb,
            replace(tile, phases=phases),
            form.depth,
            lambda row, k: kb.load(queries, kb.add(k, row * t.query_pitch), _F32),
            lambda k, v: kb.load(
                self.at["panel"], kb.add(kb.add(kb.mul(k, t.keys), column), v * t.lanes), _F32, t.lanes
            ),
        )

    def _dots(self, keys: ir.Value, key: Index, count: Index) -> None:
        """Scores of all rows with `count` keys from `key` on; behind the last one it is taken again."""
        kb, t, form = self.kb, self.t, self.form
        line, dtype = form.k.strides[2], self.body.operands[form.k.operand].type.dtype
        queries = [
            [
                self._part(self.at["query"], row * t.query_pitch, column, _F32)
                for column in range(0, form.depth, t.lanes)
            ]
            for row in range(t.tile_rows)
        ]
        with kb.loop(0, count, t.lanes, name="columns") as first:

            def products(index: int) -> Values:
                self._fetch_row(keys, kb.add(kb.add(key, first), index + _COLUMNS_AHEAD), line, form.depth, dtype)
                at = kb.mul(kb.add(key, kb.minimum(kb.add(first, index), kb.sub(count, 1))), line)
                sums: Values = [kb.const(0.0, _F32, t.lanes)] * t.tile_rows
                for part, column in enumerate(range(0, form.depth, t.lanes)):
                    value = self._part(keys, at, column, dtype)
                    sums = [kb.fma(own[part], value, total) for own, total in zip(queries, sums, strict=True)]
                return sums

            for row, scores in enumerate(lane_sums(kb, t.lanes, products)):
                kb.store(scores, self.at["scores"], kb.add(first, row * t.keys), _F32)

    def _part(self, source: ir.Value, at: Index, column: int, dtype: DType) -> ir.Value:
        """A vector of elements of a row of the depth that begins at `at`, zeros behind its end."""
        kb, t = self.kb, self.t
        lanes = min(t.lanes, self.form.depth - column)
        value = convert(kb, kb.load(source, kb.add(at, column), dtype, lanes), dtype, _F32)
        if lanes == t.lanes:
            return value
        kept = ir.Constant(ir.VectorType(I1, t.lanes), [lane < lanes for lane in range(t.lanes)])
        return kb.b.select(kept, resize(kb, value, t.lanes), kb.const(0.0, _F32, t.lanes))

    def _find_top(
        self, batch: Index, head: Index, stacked: Index, row: Index, at: Index, key: Index, count: Index, valid: Index
    ) -> None:
        """The scores of one row as softmax takes them, and their maximum; updates top, correction is what it was."""
        kb, t, form = self.kb, self.t, self.form
        heads, query = self._position(stacked, head)
        scores = kb.at(self.at["scores"], kb.mul(row, t.keys), _F32)
        row_limit = kb.sub(self._row_limit(query, valid), key)
        always = not form.causal and form.length is None and self._whole_vectors
        mask_at: Index = 0
        if form.mask is not None:
            inner = kb.add(kb.mul(query, self.outer.get((3, 2), 0)), kb.mul(key, form.mask_strides[3]))
            mask_at = kb.add(self._origin(3, form.mask.offset, batch, heads), inner)

        def find_top(column: Index, state: list[ir.Value]) -> list[ir.Value]:
            value = self._capped(kb.load(scores, column, _F32, t.lanes))
            if form.mask is not None:
                value = self._masked(value, mask_at, key, column)
            if not always:
                visible = lane_mask(kb, kb.sub(row_limit, column), t.lanes)
                value = kb.b.select(visible, value, kb.const(_MINUS_INFINITY, _F32, t.lanes))
            kb.store(value, scores, column, _F32)
            return [larger(kb, value, state[0])]

        start = kb.const(_MINUS_INFINITY, _F32, t.lanes)
        found = fold(kb, 0, count, t.lanes, [start], find_top)[0]
        top = kb.reduce_tree(found, lambda a, b: larger(kb, a, b))
        if not self.one_block:
            before = kb.load(self.at["top"], at, _F32)
            top = larger(kb, top, before)
            kb.store(before, self.at["correction"], at, _F32)
        kb.store(top, self.at["top"], at, _F32)

    def _correct(self, tile_row: Index) -> None:
        """Corrections of a tile's rows, from the maxima before and now; of rows behind the tile nothing sensible."""
        kb, t = self.kb, self.t
        with kb.loop(tile_row, kb.add(tile_row, t.tile_rows), t.lanes, name="row") as at:
            before, top = (kb.load(self.at[name], at, _F32, t.lanes) for name in ("correction", "top"))
            power = vecmath.apply(kb, "exp", kb.b.fsub(before, self._pivot(top)))
            kb.store(power, self.at["correction"], at, _F32)

    def _pivot(self, top: ir.Value) -> ir.Value:
        """What scores are taken relative to: their maximum, 0 where all are hidden."""
        kb, lanes = self.kb, self.t.lanes if isinstance(top.type, ir.VectorType) else 1
        hidden = kb.b.fcmp_ordered("==", top, kb.const(_MINUS_INFINITY, _F32, lanes))
        return kb.b.select(hidden, kb.const(0.0, _F32, lanes), top)

    def _exponentiate(self, row: Index, at: Index, count: Index) -> None:
        """Scores of one row to probabilities relative to the maximum; updates weight."""
        kb, t = self.kb, self.t
        scores = kb.at(self.at["scores"], kb.mul(row, t.keys), _F32)
        pivot = kb.splat(self._pivot(kb.load(self.at["top"], at, _F32)), t.lanes)

        def exponentiate(column: Index, state: list[ir.Value]) -> list[ir.Value]:
            power = vecmath.apply(kb, "exp", kb.b.fsub(kb.load(scores, column, _F32, t.lanes), pivot))
            return [kb.b.fadd(state[0], self.arithmetic.store(power, scores, column))]

        sums = fold(kb, 0, count, t.lanes, [kb.const(0.0, _F32, t.lanes)], exponentiate)[0]
        weight = kb.reduce_lanes("fadd", sums)
        if not self.one_block:
            correction = kb.load(self.at["correction"], at, _F32)
            weight = kb.fma(kb.load(self.at["weight"], at, _F32), correction, weight)
        kb.store(weight, self.at["weight"], at, _F32)

    def _capped(self, value: ir.Value) -> ir.Value:
        """softcap * tanh(value / softcap)."""
        kb, cap = self.kb, self.form.softcap
        if cap == 0.0:
            return value
        limit = kb.const(cap, _F32, self.t.lanes)
        return kb.b.fmul(vecmath.apply(kb, "tanh", kb.b.fdiv(value, limit)), limit)

    def _masked(self, value: ir.Value, base: Index, key: Index, column: Index) -> ir.Value:
        """Add a float mask, or hide what a bool mask does not keep."""
        kb, t, form = self.kb, self.t, self.form
        assert form.mask is not None
        dtype = self.body.operands[form.mask.operand].type.dtype
        mask = self._load_mask(base, key, column, dtype)
        nothing = kb.const(_MINUS_INFINITY, _F32, t.lanes)
        if dtype is DType.BOOL:
            return kb.b.select(mask, value, nothing)
        if dtype is DType.F64:
            mask = kb.b.fptrunc(mask, ir.VectorType(ir.FloatType(), t.lanes))
        hidden = kb.b.fcmp_ordered("==", mask, nothing)
        return kb.b.select(hidden, nothing, kb.b.fadd(value, mask))

    def _load_mask(self, base: Index, key: Index, column: Index, dtype: DType) -> ir.Value:
        """The mask of `lanes` keys; lanes beyond the last key repeat it (their keys are hidden anyway)."""
        kb, t, form = self.kb, self.t, self.form
        assert form.mask is not None
        source, stride = kb.operands[form.mask.operand], form.mask_strides[3]
        if stride == 0:
            return kb.splat(kb.load(source, base, dtype), t.lanes)
        at = kb.add(base, kb.mul(column, stride))
        first, kind = kb.add(key, column), ir.VectorType(storage_type(dtype), t.lanes)

        def lane_by_lane() -> ir.Value:
            value: ir.Value = ir.Constant(kind, ir.Undefined)
            for lane in range(t.lanes):
                within = kb.minimum(lane, kb.sub(kb.sub(self.keys, 1), first))
                one = kb.load_raw(source, kb.add(at, kb.mul(within, stride)), dtype)
                value = kb.b.insert_element(value, one, ir.Constant(I32, lane))
            return value

        if stride != 1:
            return kb.widen(lane_by_lane(), dtype)
        if self._whole_vectors:
            return kb.load(source, at, dtype, t.lanes)
        result = kb.carry(kind)
        with kb.b.if_else(kb.compare("<=", first, kb.sub(self.keys, t.lanes))) as (then, otherwise):
            with then:
                result.set(kb.load_raw(source, at, dtype, t.lanes))
            with otherwise:
                result.set(lane_by_lane())
        return kb.widen(result.get(), dtype)

    def _mix(self, tile_row: Index, count: Index, values: ir.Value) -> None:
        """total = total * correction + probabilities x values, for one register tile of rows."""
        kb, t, form = self.kb, self.t, self.form
        vectors = t.value_pitch // t.lanes
        width = min(vectors, max(t.vectors, 24 // t.tile_rows) if t.lanes > 8 else t.vectors)

        def columns(column: Index, many: int, last: int) -> None:
            tile = Tile(t.tile_rows, many, t.lanes, _F32)
            results = self._mix_tile(tile, count, values, column, last)
            for row, vectors_of_row in enumerate(results):
                at = kb.add(kb.mul(kb.add(tile_row, row), t.value_pitch), column)
                correction = None if self.one_block else kb.load(self.at["correction"], kb.add(tile_row, row), _F32)
                for v, value in enumerate(vectors_of_row):
                    place = kb.add(at, v * t.lanes)
                    if correction is not None:
                        old = kb.load(self.at["total"], place, _F32, t.lanes)
                        value = kb.fma(old, kb.splat(correction, t.lanes), value)
                    kb.store(value, self.at["total"], place, _F32)

        exact = form.value_depth % t.lanes or t.lanes
        whole = vectors // width if exact == t.lanes else (vectors - 1) // width
        with kb.loop(0, whole * width * t.lanes, width * t.lanes, name="columns") as column:
            columns(column, width, t.lanes)
        if vectors > whole * width:
            columns(whole * width * t.lanes, vectors - whole * width, exact)

    def _mix_tile(self, tile: Tile, count: Index, values: ir.Value, column: Index, last: int) -> list[Values]:
        """Probabilities x values of columns from `column` on, `last` of them in the last vector."""
        kb, t, form = self.kb, self.t, self.form
        if t.format.is_reduced:
            return self._mix_words(tile, count, values, column)
        dtype = self.body.operands[form.v.operand].type.dtype

        def fetch(k: Index) -> None:
            self._fetch_row(values, kb.add(k, _VALUES_AHEAD), form.v.strides[2], form.value_depth, dtype)

        def right(k: Index, v: int) -> ir.Value:
            lanes = last if v == tile.vectors - 1 else t.lanes
            at = kb.add(kb.add(kb.mul(k, form.v.strides[2]), column), v * t.lanes)
            value = convert(kb, kb.load(values, at, dtype, lanes), dtype, _F32)
            return resize(kb, value, t.lanes)

        return accumulate(
            kb,
            tile,
            count,
            lambda row, k: kb.load(self.at["scores"], kb.add(k, row * t.keys), _F32),
            right,
            fetch if self._streams() else None,
        )

    def _fetch_values(self, values: ir.Value) -> None:
        """Asks for the first values, while their keys are multiplied."""
        form = self.form
        dtype = self.body.operands[form.v.operand].type.dtype
        with self.kb.loop(0, _VALUES_AHEAD, name="row") as row:
            self._fetch_row(values, row, form.v.strides[2], form.value_depth, dtype)

    def _fetch_row(self, source: ir.Value, row: Index, line: Index, depth: int, dtype: DType) -> None:
        """Asks for a row of keys or values."""
        kb = self.kb
        here = kb.at(source, kb.mul(row, line), dtype)
        for at in range(0, depth * dtype.itemsize, 64):
            kb.prefetch(kb.b.gep(here, [kb.i64(at)], source_etype=I8), locality=2)

    def _mix_words(self, tile: Tile, count: Index, values: ir.Value, column: Index) -> list[Values]:
        """As `_mix_tile` where values are copied as words. Probabilities took the place of their scores: as bf16 they
        need the first half of it, which was written behind what was still to be read."""
        kb, t, arithmetic = self.kb, self.t, self.arithmetic
        line = t.keys * 4 // arithmetic.item.itemsize  # from row to row of the probabilities

        def left(row: int, k: Index) -> list[ir.Value]:
            return arithmetic.spread(
                arithmetic.row(self.at["scores"], kb.add(kb.mul(k, t.format.step), row * line)), t.lanes
            )

        def right(k: Index, v: int) -> list[ir.Value]:
            at = kb.add(kb.mul(k, t.value_pitch), column)
            return arithmetic.weights(values, kb.add(at, v * t.lanes), t.lanes)

        pairs = kb.div(kb.add(count, 1), t.format.step)
        return accumulate(kb, tile, pairs, left, right, dot=arithmetic.multiply_add, alone=False)


def emit(kb: KernelBuilder, body: Body, tiling: AttentionTiling) -> None:
    """Emit an attention kernel."""
    AttentionEmitter(kb, body, tiling).emit()
