"""What hides keys from queries: the mask operand and the causal limit, on a tile of scores.

Model: a boolean mask selects between the score and -inf, a float one is added. A mask that is the same for all rows is
loaded once per step, as one row; one that is the same for all keys is a number per row, a block of UB apart (booleans
become ln: 0 or -inf). The causal limit is a pattern made once: column - row; a key is hidden where that is above the
distance of the tile's corner from the diagonal. Tiles that lie below the diagonal are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from superkernel.codegen.aicore.kernels.attention_steps import Cursor, UnitCoordinates
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Part, Ring
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.attention_tiling import (
    AttentionTiling,
    Stack,
    hides_by_position,
    mask_form,
)
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.attention import attention_form
from superkernel.target.engines import Local

F32, I16, U8 = DType.F32, DType.I16, DType.U8
MINUS_INFINITY_BITS = 0xFF800000
I16_MASK, I16_MAX = 0xFFFF, 32767


class Masking:
    """See the module docstring. `scores`: the tile."""

    def __init__(
        self, kb: KernelBuilder, body: Body, tiling: AttentionTiling, sizes: Mapping[str, tuple[int, int]], scores: Part
    ) -> None:
        self.kb, self.tiling, self.scores = kb, tiling, scores
        self.form, self.mask = attention_form(body), mask_form(body, tiling)
        block, mask = kb.target.memory.block_bytes, self.mask
        self.causal = hides_by_position(self.form)
        self.rings: tuple[Ring, ...] = ()
        if self.causal:
            pitch = ceil_to(tiling.keys * I16.itemsize, block)
            self.pattern = kb.fixed(Local.UB, sizes["pattern"][0], "pattern").rows(pitch)
            self.hidden = kb.fixed(Local.UB, sizes["hidden"][0], "hidden").rows(ceil_to(tiling.keys, block))
        if mask is not None:
            self.rings = (kb.ring("mask", 1),)
            pitch = ceil_to(tiling.keys * mask.dtype.itemsize, block) if mask.per_key else block
            self.given = self.added = kb.buffer(self.rings[0], Local.UB, sizes["mask"][0], "mask").rows(pitch)
            if "mask32" in sizes:
                wide = kb.fixed(Local.UB, sizes["mask32"][0], "mask32")
                self.added = wide.rows(cast("int", scores.pitch) if mask.per_key else block)

    def prepare(self) -> None:
        """The causal pattern."""
        if not self.causal:
            return
        with self.kb.loop(0, self.tiling.part) as row:
            self.kb.issue(
                "v_iota", I16, dst=self.pattern.at(row * cast("int", self.pattern.pitch)), cols=self.tiling.keys,
                start=(0 - row) & I16_MASK, step=1,
            )  # fmt: skip

    def note(self, place: UnitCoordinates, length: Number) -> dict[str, Number]:
        """`limit`: the last key that the lane's first row sees; `mask`: where the lane's mask begins, in bytes."""
        form, t, lane = self.form, self.tiling, self.kb.role.lane
        shift = lane * t.lane_rows
        found: dict[str, Number] = {}
        if self.causal:
            found["limit"] = place.position + length + ((shift if t.stack is Stack.ROWS else 0) - form.queries)
        if self.mask is not None and form.mask is not None:
            batch, head, position, _ = (s * self.mask.dtype.itemsize for s in form.mask_strides)
            start = place.batch * batch + place.head * head + place.position * position
            step = {Stack.ROWS: position * shift, Stack.PAIR: head * lane, Stack.HEADS: head * shift}[t.stack]
            found["mask"] = start + (step + form.mask.offset * self.mask.dtype.itemsize)
        return found

    def load(self, cursor: Cursor, first: Number, rows: Number, keys: Number) -> None:
        """The step's part of the mask operand; `first`: the first of the lane's rows."""
        mask, kb, view = self.mask, self.kb, self.form.mask
        if mask is None or view is None or not self.form.keys:
            return
        item = mask.dtype.itemsize
        offset = cursor["mask"] + (cursor.block * (self.tiling.keys * item) if mask.per_key else 0)
        src = kb.operand(view.operand, offset + first * mask.row_stride_bytes)
        if mask.per_key and not mask.per_row:
            kb.issue("gm_to_ub", dst=self.given, src=src, bytes=keys * item)
            return
        dtype, cols = U8 if mask.is_bool else mask.dtype, keys if mask.per_key else 1
        kb.load_rows(self.given, src.rows(mask.row_stride_bytes), dtype, rows, cols)

    def apply(self, cursor: Cursor, first: Number, rows: Number, keys: Number) -> None:
        """Hide what is hidden from rows, `first` being the first of them."""
        if self.mask is not None and self.form.keys:
            if self.mask.is_bool and self.mask.per_key:
                self._select(self.given if self.mask.per_row else self.given.rows(0), rows, keys)
            else:
                self._add(rows, keys)
        if self.causal:
            self._limit(cursor["limit"] + first - cursor.block * self.tiling.keys, rows, keys)

    def _select(self, mask: Part, rows: Number, keys: Number) -> None:
        scores, value = self.scores, MINUS_INFINITY_BITS
        self.kb.issue("v_selects", F32, dst=scores, src=scores, mask=mask, rows=rows, cols=keys, value=value)

    def _add(self, rows: Number, keys: Number) -> None:
        """A float mask, or a boolean one per row."""
        kb, mask = self.kb, self.mask
        assert mask is not None
        one = mask.per_key and not mask.per_row
        lines = 1 if one else rows
        cols, added = keys if mask.per_key else 1, self.added
        if added is not self.given:
            source = U8 if mask.is_bool else mask.dtype
            kb.issue("v_cast", source, F32, dst=added, src=self.given, rows=lines, cols=cols)
        if mask.is_bool:
            kb.issue("v_ln", F32, dst=added, src=added, rows=lines, cols=1)
        form, b = "matrix" if mask.per_key else "column", added.rows(0) if one else added
        kb.issue("v_add", F32, dst=self.scores, a=self.scores, b=b, b_form=form, rows=rows, cols=keys)

    def _limit(self, limit: Number, rows: Number, keys: Number) -> None:
        """`limit`: the last key that the first row sees."""
        kb = self.kb
        with kb.when(kb.compare(">", keys - 1, limit)):
            bounded = kb.minimum(kb.maximum(limit, -I16_MAX), I16_MAX)
            kb.issue(
                "v_cmps", I16, dst=self.hidden, src=self.pattern, rows=rows, cols=keys, predicate="le",
                value=bounded & I16_MASK,
            )  # fmt: skip
            self._select(self.hidden, rows, keys)
