"""What hides keys from queries: the mask operand and the causal limit, on a tile of scores.

Model: a boolean mask selects between the score and -inf, a float one is added. A mask that is the same for all rows is
loaded once per step, as one row; one that is the same for all keys is a number per row, a block of UB apart (booleans
become ln: 0 or -inf). The causal limit is a pattern made once: column - row; a key is hidden where that is above the
distance of the tile's corner from the diagonal. Tiles that lie below the diagonal are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping

from superkernel.codegen.aicore.kernels.attention_steps import Cursor, UnitCoordinates
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Ring
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.attention_buffers import hides_by_position
from superkernel.scheduler.families.aicore.attention_tiling import AttentionTiling, Stack, mask_form
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.attention import attention_form
from superkernel.target.engines import Local

F32, I16, U8 = DType.F32, DType.I16, DType.U8
MINUS_INFINITY_BITS = 0xFF800000
I16_MASK, I16_MAX = 0xFFFF, 32767


class Masking:
    """See the module docstring. `scores`: the tile, rows `pitch` bytes apart."""

    def __init__(
        self, kb: KernelBuilder, body: Body, tiling: AttentionTiling, sizes: Mapping[str, tuple[int, int]],
        scores: Buffer, pitch: int,
    ) -> None:  # fmt: skip
        self.kb, self.tiling, self.scores, self.pitch = kb, tiling, scores, pitch
        self.form, self.mask = attention_form(body), mask_form(body, tiling)
        self.block = kb.target.memory.block_bytes
        self.causal = hides_by_position(self.form)
        self.rings: tuple[Ring, ...] = ()
        if self.causal:
            self.pattern = kb.fixed(Local.UB, sizes["pattern"][0], "pattern")
            self.hidden = kb.fixed(Local.UB, sizes["hidden"][0], "hidden")
        if self.mask is not None:
            self.rings = (kb.ring("mask", 1),)
            self.given = kb.buffer(self.rings[0], Local.UB, sizes["mask"][0], "mask")
            self.wide = kb.fixed(Local.UB, sizes["mask32"][0], "mask32") if "mask32" in sizes else None

    @property
    def _pattern_pitch(self) -> int:
        return ceil_to(self.tiling.keys * I16.itemsize, self.block)

    @property
    def _hidden_pitch(self) -> int:
        return ceil_to(self.tiling.keys, self.block)

    def prepare(self) -> None:
        """The causal pattern."""
        if not self.causal:
            return
        with self.kb.loop(0, self.tiling.lane_rows) as row:
            self.kb.issue(
                "v_iota", types=(I16,), dst=self.pattern.at(row * self._pattern_pitch), cols=self.tiling.keys,
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

    def load(self, cursor: Cursor, rows: Number, keys: Number) -> None:
        """The step's part of the mask operand."""
        mask, kb, view = self.mask, self.kb, self.form.mask
        if mask is None or view is None or not self.form.keys:
            return
        item = mask.dtype.itemsize
        offset = cursor["mask"] + (cursor.block * (self.tiling.keys * item) if mask.per_key else 0)
        src = kb.operand(view.operand, offset)
        if mask.per_key and not mask.per_row:
            kb.issue("gm_to_ub", dst=self.given, src=src, bytes=keys * item)
            return
        kb.issue(
            "gm_to_ub_2d", types=(U8 if mask.is_bool else mask.dtype,), dst=self.given, src=src, rows=rows,
            cols=keys if mask.per_key else 1, dst_stride=self._given_pitch, src_stride=mask.row_stride_bytes,
        )  # fmt: skip

    @property
    def _given_pitch(self) -> int:
        assert self.mask is not None
        return ceil_to(self.tiling.keys * self.mask.dtype.itemsize, self.block) if self.mask.per_key else self.block

    def apply(self, cursor: Cursor, rows: Number, keys: Number) -> None:
        """Hide what is hidden."""
        if self.mask is not None and self.form.keys:
            if self.mask.is_bool and self.mask.per_key:
                self._select(self.given, self._given_pitch if self.mask.per_row else 0, rows, keys)
            else:
                self._add(rows, keys)
        if self.causal:
            self._limit(cursor, rows, keys)

    def _select(self, mask: Buffer, stride: int, rows: Number, keys: Number) -> None:
        self.kb.issue(
            "v_selects", types=(F32,), dst=self.scores, src=self.scores, mask=mask, rows=rows, cols=keys,
            dst_stride=self.pitch, src_stride=self.pitch, mask_stride=stride, value=MINUS_INFINITY_BITS,
        )  # fmt: skip

    def _add(self, rows: Number, keys: Number) -> None:
        """A float mask, or a boolean one per row."""
        kb, mask = self.kb, self.mask
        assert mask is not None
        lines = rows if mask.per_row or not mask.per_key else 1
        cols = keys if mask.per_key else 1
        added, pitch = self.given, self._given_pitch
        if self.wide is not None:
            pitch = self.pitch if mask.per_key else self.block
            kb.issue(
                "v_cast", types=(U8 if mask.is_bool else mask.dtype, F32), dst=self.wide, src=self.given, rows=lines,
                cols=cols, dst_stride=pitch, src_stride=self._given_pitch,
            )  # fmt: skip
            added = self.wide
        if mask.is_bool:
            kb.issue("v_ln", types=(F32,), dst=added, src=added, rows=lines, cols=1, dst_stride=pitch, src_stride=pitch)
        kb.issue(
            "v_add", types=(F32,), dst=self.scores, a=self.scores, b=added, rows=rows, cols=keys, dst_stride=self.pitch,
            a_stride=self.pitch, b_form="matrix" if mask.per_key else "column",
            b_stride=pitch if mask.per_row or not mask.per_key else 0,
        )  # fmt: skip

    def _limit(self, cursor: Cursor, rows: Number, keys: Number) -> None:
        kb = self.kb
        limit = cursor["limit"] - cursor.block * self.tiling.keys
        with kb.when(kb.compare(">", keys - 1, limit)):
            bounded = kb.minimum(kb.maximum(limit, -I16_MAX), I16_MAX)
            kb.issue(
                "v_cmps", types=(I16,), dst=self.hidden, src=self.pattern, rows=rows, cols=keys, predicate="le",
                dst_stride=self._hidden_pitch, src_stride=self._pattern_pitch, value=bounded & I16_MASK,
            )  # fmt: skip
            self._select(self.hidden, self._hidden_pitch, rows, keys)
