"""A vector core's side of attention: weights from scores, then sums over the blocks of keys.

Model: of each step this core has the rows of its lane. `_weigh` takes `part` of them at a time and makes
exp(score - top) of a block, top being the largest score of the row so far; `_gather` adds the block's sums to the
total, both brought to the newest top by `correction`. `_weigh` is `skew` steps ahead of `_gather`: what the second
needs of the first (correction, the block's sum of weights) waits in slots. Only the vector engine touches statistics,
so they need no flags.

Hidden keys have the score -inf; top starts at a finite floor, so that a row that sees nothing has weights of 0 and a
sum of 0, and gives 0.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.aicore.kernels.attention_mask import Masking
from superkernel.codegen.aicore.kernels.attention_steps import Channels, Cursor, UnitCoordinates, UnitSteps
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Part, Ring
from superkernel.codegen.aicore.scalar import Number, Variable
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.attention_tiling import (
    F32_BYTES,
    AttentionTiling,
    Buffers,
    Stack,
    epilogue_code,
    ub_buffers,
)
from superkernel.scheduler.families.aicore.lowering import bits_of
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.tilecode import TileSize
from superkernel.target.engines import Local

F32 = DType.F32
FLOOR, TINY = -3.0e38, 1.0e-30


class VectorSide:
    """See the module docstring."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: AttentionTiling) -> None:
        self.kb, self.tiling = kb, tiling
        self.walk = UnitSteps(kb, body, tiling)
        self.form, self.dtype = self.walk.form, body.anchor_outputs[0].dtype
        block, rows = kb.target.memory.block_bytes, tiling.lane_rows
        self.first_row = kb.role.lane * rows
        self.vector_bytes = ceil_to(rows * F32_BYTES, block)
        self.channels = Channels.of(kb, tiling, self.walk.steps)
        sizes = ub_buffers(body, tiling, block)
        self._buffers(sizes, body)
        self.masking = Masking(kb, body, tiling, sizes, self.scores)
        self.ahead, self.behind = Cursor(self.walk, self.masking.note), Cursor(self.walk, self._result_start)
        self.made, self.used = kb.variable(0), kb.variable(0)  # slots of statistics

    def _result_start(self, place: UnitCoordinates, length: Number) -> dict[str, Number]:
        """Where in the result the lane's rows of a unit begin."""
        lane, t = self.kb.role.lane, self.tiling
        rows = t.stack is Stack.ROWS
        head = place.head if rows else place.head + lane * (1 if t.stack is Stack.PAIR else t.lane_rows)
        position = place.position + lane * t.lane_rows if rows else place.position
        return {"batch": place.batch, "head": head, "position": position}

    def _buffers(self, sizes: Buffers, body: Body) -> None:
        kb, t, block = self.kb, self.tiling, self.kb.target.memory.block_bytes

        def ring(name: str, row_bytes: int, top: bool = False) -> tuple[Ring, Part]:
            nbytes, slots = sizes[name]
            made = kb.ring(name, slots)
            return made, kb.buffer(made, Local.UB, nbytes, name, top=top).rows(ceil_to(row_bytes, block))

        sum_bytes = t.value_depth * F32_BYTES
        self.score_ring, self.scores = ring("scores", t.keys * F32_BYTES)
        self.sum_ring, self.sums = ring("sums", sum_bytes)
        self.weight_ring, self.weights = ring("weights", t.keys * t.item, top=True)
        self.result_ring, self.result = ring("result", sum_bytes, top=True)
        pitch = ceil_to(sum_bytes, block)
        self.total = kb.fixed(Local.UB, sizes["total"][0], "total").rows(pitch) if t.blocks > 1 else None
        self.statistics = kb.fixed(Local.UB, sizes["statistics"][0], "statistics")
        size = TileSize(t.lane_rows, t.value_depth, block)
        anchor = self.result.rows(pitch if t.lane_rows > 1 else 0)
        code = epilogue_code(body, t)
        self.tile = TileProgram(kb, body.epilogue, code, size, *kb.in_and_out(1), anchors=[anchor])

    # Statistics: a number per row each; top, the block's top, the sum of weights, then per slot correction and sum.

    def _vector(self, number: Number) -> Part:
        return self.statistics.at(number * self.vector_bytes)

    def _slot(self, which: Variable, number: int) -> Part:
        return self._vector(which.get() * 2 + (3 + number))

    def _turn_slot(self, which: Variable) -> None:
        following = which.get() + 1
        which.set(self.kb.select(self.kb.compare("==", following, self.tiling.skew + 1), 0, following))

    # Steps ------------------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        """The softmax of each step, and `skew` steps later its share of the sums."""
        kb, skew, steps = self.kb, self.tiling.skew, self.walk.steps
        self.masking.prepare()
        self.ahead.start()
        self.behind.start()
        with kb.loop(0, steps + skew) as step:
            with kb.when(kb.compare("<", step, steps)):
                self._weigh()
                self.ahead.advance()
            with kb.when(kb.compare(">=", step, skew)):
                self._gather()
                self.behind.advance()

    def _rows(self, cursor: Cursor) -> tuple[Number, ir.Value | bool]:
        """This core's rows of a unit, and whether it has any: if not, its commands are not reached."""
        kb = self.kb
        rows = kb.minimum(cursor["rows"] - self.first_row, self.tiling.lane_rows)
        some = kb.compare(">", rows, 0)
        return (1 if some is False else rows), some

    def _weigh(self) -> None:
        kb, t, cursor = self.kb, self.tiling, self.ahead
        (own, some), keys = self._rows(cursor), cursor.keys
        scores, weights = self.channels.scores, self.channels.weights
        with kb.loop(0, kb.maximum(own, 1) if t.part < t.lane_rows else 1, t.part) as first:
            rows = kb.minimum(own - first, t.part)
            opens, closes = kb.compare("==", first, 0), True if first == 0 else kb.compare(">=", first + t.part, own)
            with kb.turn(self.score_ring, self.weight_ring, *self.masking.rings):
                with kb.when(some):
                    self.masking.load(cursor, first, rows, keys)
                with kb.when(opens):
                    scores.begin()
                with kb.when(some):
                    src = scores.slot.at((first + self.first_row) * t.score_pitch).rows(t.score_pitch)
                    kb.load_rows(self.scores, src, F32, rows, keys)
                with kb.when(closes):
                    scores.end()
                with kb.when(some):
                    self._cap(rows, keys)
                    self.masking.apply(cursor, first, rows, keys)
                    self._exponentials(cursor, first, rows, keys)
                with kb.when(opens):
                    weights.begin()
                with kb.when(some):
                    dst = weights.slot.at((first + self.first_row) * t.weight_pitch).rows(t.weight_pitch)
                    kb.store_rows(dst, self.weights, rows, keys * t.item)
                with kb.when(closes):
                    weights.end()
        self._turn_slot(self.made)

    def _on_scores(self, name: str, rows: Number, keys: Number, **extra: int) -> None:
        """scores = f(scores)."""
        self.kb.issue(name, F32, dst=self.scores, src=self.scores, rows=rows, cols=keys, **extra)

    def _cap(self, rows: Number, keys: Number) -> None:
        """cap x tanh(score / cap) = cap - 2 cap / (exp(2 score / cap) + 1); the factor 2 / cap is in the scores."""
        cap = self.form.softcap
        if not cap:
            return
        self._on_scores("v_exp", rows, keys)
        self._on_scores("v_adds", rows, keys, value=bits_of(1.0, F32))
        self._on_scores("v_reciprocal", rows, keys)
        self._on_scores("v_muls", rows, keys, value=bits_of(-2 * cap, F32))
        self._on_scores("v_adds", rows, keys, value=bits_of(cap, F32))

    def _exponentials(self, cursor: Cursor, first: Number, rows: Number, keys: Number) -> None:
        """Weights of rows, `first` being the first of them, and what the total needs to know of them."""
        kb, t = self.kb, self.tiling
        shape: dict[str, Number] = {"rows": rows, "cols": keys}
        top, new, correction, weight_sum = (
            numbers.at(first * F32_BYTES)
            for numbers in (self._vector(0), self._vector(1), self._slot(self.made, 0), self._slot(self.made, 1))
        )
        kb.issue("v_reduce_max", F32, dst=new, src=self.scores, scope="row", **shape)
        if t.blocks == 1:
            kb.issue("v_maxs", F32, dst=new, src=new, cols=rows, value=bits_of(FLOOR, F32))
        else:
            with kb.when(cursor.is_first):
                kb.issue("v_duplicate", F32, dst=top, cols=rows, value=bits_of(FLOOR, F32))
            kb.issue("v_max", F32, dst=new, a=new, b=top, cols=rows)
            kb.issue("v_sub", F32, dst=correction, a=top, b=new, cols=rows)
            kb.issue("v_exp", F32, dst=correction, src=correction, cols=rows)
            kb.issue("v_copy", F32, dst=top, src=new, cols=rows)
        kb.issue("v_sub", F32, dst=self.scores, a=self.scores, b=new.rows(F32_BYTES), b_form="column", **shape)
        narrow = self.dtype is not F32
        weights = self.scores if narrow else self.weights
        kb.issue("v_exp", F32, dst=weights, src=self.scores, **shape)
        if narrow:
            kb.issue("v_cast", F32, self.dtype, dst=self.weights, src=self.scores, **shape)
        kb.issue("v_sum", F32, dst=weight_sum, src=weights, scope="row", **shape)

    def _gather(self) -> None:
        kb, t, cursor = self.kb, self.tiling, self.behind
        (rows, some), depth = self._rows(cursor), self.form.value_depth
        with kb.turn(self.sum_ring):
            with self.channels.sums.turn() as slot, kb.when(some):
                kb.load_rows(self.sums, slot.at(self.first_row * t.sum_pitch).rows(t.sum_pitch), F32, rows, depth)
            if t.blocks > 1:
                with kb.when(some):
                    self._add(cursor, rows)
            with kb.when(cursor.is_last):
                self._finish(cursor, rows, some)
        self._turn_slot(self.used)

    def _add(self, cursor: Cursor, rows: Number) -> None:
        """The block's sums to the total, as the newest top has them."""
        kb, total = self.kb, self.total
        shape: dict[str, Number] = {"rows": rows, "cols": self.form.value_depth}
        correction, weight_sum, weight_total = self._slot(self.used, 0), self._slot(self.used, 1), self._vector(2)
        assert total is not None
        with kb.when(cursor.is_first):
            kb.issue("v_copy", F32, dst=weight_total, src=weight_sum, cols=rows)
            kb.issue("v_copy", F32, dst=total, src=self.sums, **shape)
        with kb.when(kb.compare("!=", cursor.block, 0)):
            kb.issue("v_mul", F32, dst=weight_total, a=weight_total, b=correction, cols=rows)
            kb.issue("v_add", F32, dst=weight_total, a=weight_total, b=weight_sum, cols=rows)
            kb.issue("v_mul", F32, dst=total, a=total, b=correction.rows(F32_BYTES), b_form="column", **shape)
            kb.issue("v_add", F32, dst=total, a=total, b=self.sums, **shape)

    def _finish(self, cursor: Cursor, rows: Number, some: ir.Value | bool) -> None:
        """The unit's rows: total / sum of weights, through the epilogue."""
        kb, depth = self.kb, self.form.value_depth
        at = (cursor["batch"], cursor["head"], cursor["position"], 0)
        weight_total = self._slot(self.used, 1) if self.total is None else self._vector(2)
        with kb.turn(self.result_ring, *self.tile.rings):
            with kb.when(some):
                self.tile.load(at, rows, depth)
            with kb.when(some):
                kb.issue("v_maxs", F32, dst=weight_total, src=weight_total, cols=rows, value=bits_of(TINY, F32))
                a, b = self.total or self.sums, weight_total.rows(F32_BYTES)
                kb.issue("v_div", F32, dst=self.result, a=a, b=b, b_form="column", rows=rows, cols=depth)
                self.tile.compute(rows, depth)
            with kb.when(some):
                self.tile.store(at, rows, depth)
