"""Code for attention in bf16: the loops of `attention`, both products over words of two values.

Model: see scheduler/families/attention_reduced. Probabilities take the place of their scores: as bf16 they need the
first half of it, which is written behind what is still to be read.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.host.arithmetic import Bf16Arithmetic, multiply
from superkernel.codegen.host.attention import AttentionEmitter
from superkernel.codegen.host.builder import I16, I32, Index, KernelBuilder, vector_type
from superkernel.codegen.host.gemm_core import Tile, Values, fold, zero
from superkernel.codegen.host.shuffle import permute, resize, transpose
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.attention_reduced import NarrowAttentionTiling
from superkernel.scheduler.tiling import Tiling

_F32 = DType.F32


class NarrowAttentionEmitter(AttentionEmitter):
    """Writes the kernel of one body and tiling in bf16."""

    t: NarrowAttentionTiling

    def __init__(self, kb: KernelBuilder, body: Body, tiling: NarrowAttentionTiling) -> None:
        super().__init__(kb, body, tiling)
        self.bf16 = Bf16Arithmetic(kb, tiling.format)

    def _keep_query(self, value: ir.Value, at: Index) -> None:
        self.bf16.store(value, self.at["query"], at)

    def _copy_keys(self, source: ir.Value, key: Index, limit: Index) -> None:
        """Squares of as many keys as words, transposed; lanes beyond the last key repeat it."""
        kb, t, form = self.kb, self.t, self.form
        line, words = form.k.strides[2], -(-form.depth // 2)
        stop = kb.minimum(kb.sub(limit, key), t.keys)
        with kb.loop(0, stop, t.lanes, name="group") as group:
            first, last = kb.add(key, group), kb.sub(limit, 1)
            rows = [kb.mul(kb.minimum(kb.add(first, i), last), line) for i in range(t.lanes)]
            for word in range(0, words, t.lanes):
                count = min(2 * t.lanes, form.depth - 2 * word)
                parts = [self._words(kb.load(source, kb.add(row, 2 * word), _F32, count)) for row in rows]
                for i, value in enumerate(transpose(kb, parts)[: -(-count // 2)]):
                    kb.b.store(value, kb.at(self.at["panel"], kb.add((word + i) * t.keys, group), _F32), align=4)

    def _words(self, value: ir.Value) -> ir.Value:
        """Neighbours as words of bf16, a whole vector of them, zeros behind."""
        kb, lanes = self.kb, self.t.lanes
        bits = self.bf16.bits(value)
        have = bits.type.count if isinstance(bits.type, ir.VectorType) else 1
        if have < 2 * lanes:
            nothing = ir.Constant(ir.VectorType(I16, 2 * lanes), None)
            wide = resize(kb, bits, 2 * lanes)
            bits = permute(kb, wide, nothing, [i if i < have else 2 * lanes for i in range(2 * lanes)])
        return kb.b.bitcast(bits, ir.VectorType(I32, lanes))

    def _copy_values(self, values: ir.Value, count: Index) -> ir.Value:
        """Pairs of keys side by side; the partner of a last key without one is 0."""
        kb = self.kb
        with kb.loop(0, kb.div(count, 2), name="pair") as pair:
            self._copy_pair(values, pair, alone=False)
        with kb.when(kb.compare("==", kb.rem(count, 2), 1)):
            self._copy_pair(values, kb.div(count, 2), alone=True)
        return self.at["values"]

    def _copy_pair(self, values: ir.Value, pair: Index, *, alone: bool) -> None:
        kb, t, form = self.kb, self.t, self.form
        line = form.v.strides[2]
        early = kb.mul(pair, 2 * line)
        for column in range(0, form.value_depth, t.lanes):
            lanes = min(t.lanes, form.value_depth - column)
            kind = vector_type(I32, lanes)
            word = kb.b.zext(self.bf16.bits(kb.load(values, kb.add(early, column), _F32, lanes)), kind)
            if not alone:
                late = self.bf16.bits(kb.load(values, kb.add(kb.add(early, line), column), _F32, lanes))
                word = kb.b.or_(word, kb.b.shl(kb.b.zext(late, kind), kb.const(16, DType.I32, lanes)))
            to = kb.at(self.at["values"], kb.add(kb.mul(pair, t.value_pitch), column), _F32)
            kb.b.store(resize(kb, word, t.lanes), to, align=4)

    def _score_tile(self, tile: Tile, query: Index, column: Index) -> list[Values]:
        kb, t = self.kb, self.t
        queries = kb.at(self.at["query"], query, self.bf16.item)
        panel = kb.at(self.at["panel"], column, _F32)
        return multiply(self.bf16, tile, (), (self.form.depth, 1), t.query_pitch, queries, panel, t.keys)

    def _keep_probabilities(self, power: ir.Value, scores: ir.Value, column: Index) -> ir.Value:
        return self.bf16.store(power, scores, column)

    def _mix_tile(self, tile: Tile, count: Index, values: ir.Value, column: Index, last: int) -> list[Values]:
        kb, t = self.kb, self.t
        line = t.keys * 4 // self.bf16.item.itemsize  # from row to row of the probabilities

        def step(k: Index, sums: Values) -> Values:
            at = kb.add(kb.mul(k, t.value_pitch), column)
            vectors = [self.bf16.weights(values, kb.add(at, v * t.lanes), t.lanes) for v in range(tile.vectors)]
            found = list(sums)
            for row in range(tile.rows):
                left = self.bf16.spread(self.bf16.row(self.at["scores"], kb.add(kb.mul(k, 2), row * line)), t.lanes)
                for v, right in enumerate(vectors):
                    i = row * tile.vectors + v
                    found[i] = self.bf16.multiply_add(found[i], left, right)
            return found

        pairs = kb.div(kb.add(count, 1), 2)
        flat = fold(kb, 0, pairs, 1, [zero(_F32, t.lanes)] * (tile.rows * tile.vectors), step)
        return [flat[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]


def emit_attention_narrow(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
    """Emit attention in bf16."""
    if not isinstance(tiling, NarrowAttentionTiling):
        raise InternalError("wrong tiling for attention in bf16", found=type(tiling).__name__)
    NarrowAttentionEmitter(kb, body, tiling).emit()


emit = emit_attention_narrow
