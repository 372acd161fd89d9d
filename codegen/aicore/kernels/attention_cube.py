"""The cube core's side of attention: scores = q k^T, then sums = weights v.

Model: keys and values come into L1 through one stream, in the order in which they are used: the keys of step t, the
values of step t - skew, the keys of step t + 1, ...; where blocks come in pieces, a piece of each in turn, and the
first keys of step t + 1 with the last piece of either. Each is issued ahead of the wait for the weights that come back,
so that MTE2 has work meanwhile. Queries come with the keys where units have one piece of keys, else they stay for the
unit.

Invariant: a load that waits for a slot of the stream waits for products that are issued ahead of it.
"""

from __future__ import annotations

from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.kernels.attention_steps import Channels, Cursor, UnitCoordinates, UnitSteps
from superkernel.codegen.aicore.kernels.cube import multiply
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part
from superkernel.codegen.aicore.scalar import Number, Variable
from superkernel.codegen.aicore.stream import Stream, StreamBuffer
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, View
from superkernel.scheduler.families.aicore.attention_tiling import (
    F32_BYTES,
    L0_SLOTS,
    AttentionTiling,
    Buffers,
    Stack,
    cube_buffers,
    l1_buffers,
    query_pitch,
    row_pitch,
)
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.engines import Engine, Local

F32 = DType.F32


def _offset(view: View, item: int, *coordinates: Number) -> Number:
    total: Number = view.offset * item
    for stride, coordinate in zip(view.strides, coordinates, strict=False):
        total = coordinate * (stride * item) + total
    return total


class CubeSide:
    """See the module docstring."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: AttentionTiling) -> None:
        self.kb, self.tiling = kb, tiling
        self.walk = UnitSteps(kb, body, tiling)
        self.form, self.dtype = self.walk.form, body.anchor_outputs[0].dtype
        block, item = kb.target.memory.block_bytes, tiling.item
        self.query_pitch = query_pitch(self.form, item, block)
        self.weight_pitch = ceil_to(tiling.piece * item, block)
        self.key_pitch, self.value_pitch = (row_pitch(self.form, w, item, block) for w in "kv")
        self.channels = Channels.of(kb, tiling, self.walk.steps)
        self._buffers(l1_buffers(self.form, tiling, block))
        self.keys = Cursor(self.walk, self._starts, tiling.piece)
        self.values = Cursor(self.walk, self._value_start, tiling.piece)
        self.held: dict[str, Variable] = {}  # of the piece whose keys were loaded last
        self.known: dict[str, int] = {}  # of it as well: what is the same for all

    def _starts(self, place: UnitCoordinates, length: Number) -> dict[str, Number]:
        """Where keys and queries of a unit begin, in bytes."""
        form, item = self.form, self.tiling.item
        return {
            "queries": _offset(form.q, item, place.batch, place.head, place.position),
            "keys": _offset(form.k, item, place.batch, place.kv_head, 0),
        }

    def _value_start(self, place: UnitCoordinates, length: Number) -> dict[str, Number]:
        """Where values of a unit begin, in bytes."""
        return {"values": _offset(self.form.v, self.tiling.item, place.batch, place.kv_head, 0)}

    def _buffers(self, sizes: Buffers) -> None:
        kb, t = self.kb, self.tiling
        l0 = cube_buffers(self.form, t, kb.target)
        self.stream = Stream(kb, "keys and values", Engine.MTE2, Engine.MTE1, t.slots)
        self.tile: StreamBuffer = self.stream.buffer(Local.L1, sizes["stream"][0], "tile")
        self.unit = self.stream if t.lone_pieces else Stream(kb, "queries", Engine.MTE2, Engine.MTE1, 1)
        self.queries = self.unit.buffer(Local.L1, sizes["query"][0], "queries")
        self.weight_ring, self.left_ring = kb.ring("weights", 1), kb.ring("left", L0_SLOTS)
        self.right_ring = self.left_ring if t.score_rows == t.rows else kb.ring("right", L0_SLOTS)
        self.feed = tuple(dict.fromkeys((self.left_ring, self.right_ring)))
        self.weights = kb.buffer(self.weight_ring, Local.L1, sizes["weights"][0], "weights").rows(self.weight_pitch)
        self.left = kb.buffer(self.left_ring, Local.L0A, l0[Local.L0A]["left"][0], "left")
        self.right = kb.buffer(self.right_ring, Local.L0B, l0[Local.L0B]["right"][0], "right")
        self.score_ring, self.sum_stream = kb.ring("scores", t.score_slots), Stream(kb, "sums", Engine.M, Engine.FIX, 1)
        self.scores = kb.buffer(self.score_ring, Local.L0C, l0[Local.L0C]["scores"][0], "scores")
        self.sums: StreamBuffer = self.sum_stream.buffer(Local.L0C, l0[Local.L0C]["sums"][0], "sums")

    def emit(self) -> None:
        """Both products of each step, `skew` steps apart, so that the softmax between them has time; piece by piece in
        turns, so that FIX has scores to send while the cube is at sums."""
        kb, t, skew, steps = self.kb, self.tiling, self.tiling.skew, self.walk.steps
        self.keys.start()
        self.values.start()
        with kb.when(kb.compare("<", kb.begin, kb.end)):
            self._load_keys()
        with kb.loop(0, steps + skew) as step:
            more = kb.select(kb.compare("<", step + 1, steps), 1, 0)
            scored = kb.select(kb.compare("<", step, steps), self._held("pieces"), 0)
            summed = kb.select(kb.compare(">=", step, skew), self.values.pieces, 0)
            count = kb.maximum(scored, summed) if t.piece < t.keys else 1
            with kb.loop(0, count) as piece:
                with kb.when(kb.compare("<", piece, scored)):
                    self._score()
                with kb.when(kb.compare("<", piece, summed)):
                    self._load_values()
                further = kb.select(kb.compare("<", piece + 1, scored), 1, 0)
                further = kb.select(kb.compare("==", piece + 1, count), more, further)
                with kb.when(kb.compare("==", further, 1)):
                    self._load_keys()
                with kb.when(kb.compare("<", piece, summed)):
                    self._sum()
                    self.values.advance()

    # Loads ------------------------------------------------------------------------------------------------------------

    def _load_keys(self) -> None:
        """The next piece of keys, queries ahead of a unit's first ones."""
        kb, cursor, form = self.kb, self.keys, self.form
        if self.unit is not self.stream:
            with kb.when(cursor.is_first), kb.when(cursor.opens), self.unit.fill():
                self._load_queries(self.queries.inlet)
        with self.stream.fill():
            if self.unit is self.stream:
                self._load_queries(self.queries.inlet)
            self._load_rows(self.tile.inlet, form.k, cursor, cursor["keys"], self.key_pitch)
        for name, value in (
            ("rows", cursor["rows"]), ("keys", cursor.keys), ("at", cursor.first_key), ("piece", cursor.piece),
            ("pieces", cursor.pieces), ("first", kb.select(cursor.is_first, 1, 0)),
            ("last", kb.select(cursor.is_last, 1, 0)),
        ):  # fmt: skip
            if isinstance(value, int):
                self.known[name] = value
                continue
            if name not in self.held:
                self.held[name] = kb.variable(0)
            self.held[name].set(value)
        cursor.advance()

    def _held(self, name: str) -> Number:
        """Of the piece whose keys were loaded last."""
        return self.known[name] if name in self.known else self.held[name].get()

    def _load_queries(self, dst: Buffer) -> None:
        form, t, kb = self.form, self.tiling, self.kb
        place, step = self.keys["queries"], form.q.strides[1 if t.stack is Stack.HEADS else 2]
        if t.stack is not Stack.PAIR or form.q.strides[1] == form.queries * step:
            self._copy(dst, form.q, place, self.keys["rows"], step, self.query_pitch)
            return
        with kb.loop(0, t.heads) as head:
            part = dst.rows(self.query_pitch).at(head * (t.positions * self.query_pitch))
            src = kb.operand(form.q.operand, place + head * (form.q.strides[1] * t.item))
            kb.load_rows(part, src.rows(step * t.item if t.positions > 1 else 0), self.dtype, t.positions, form.depth)

    def _load_values(self) -> None:
        with self.stream.fill():
            self._load_rows(self.tile.inlet, self.form.v, self.values, self.values["values"], self.value_pitch)

    def _load_rows(self, dst: Buffer, view: View, cursor: Cursor, place: Number, pitch: int) -> None:
        """A block of keys or values; zeros where the unit sees none."""
        kb, t, visible = self.kb, self.tiling, cursor["visible"]
        some = kb.compare(">", visible, 0)
        if some is not False:
            with kb.when(some):
                offset = place + (cursor.block * t.keys + cursor.first_key) * (view.strides[2] * t.item)
                self._copy(dst, view, offset, cursor.keys, view.strides[2], pitch)
        if some is not True:
            with kb.when(kb.compare("==", visible, 0)):
                kb.issue("l1_fill", self.dtype, dst=dst, count=pitch // t.item, value=0)

    def _copy(self, dst: Buffer, view: View, offset: Number, rows: Number, step: int, pitch: int) -> None:
        """Rows of a view, `step` elements apart, as they lie in L1."""
        item, width = self.tiling.item, view.shape[3]
        dense = (isinstance(rows, int) and rows == 1) or (step == width and pitch == width * item)
        src = self.kb.operand(view.operand, offset).rows(step * item)
        self.kb.load_rows(dst.rows(pitch), src, self.dtype, rows, width, dense)

    # Products ---------------------------------------------------------------------------------------------------------

    def _score(self) -> None:
        """Scores of the piece whose keys were loaded last."""
        kb, t = self.kb, self.tiling
        keys, piece = self._held("keys"), self._held("piece")
        rows = self.keys["rows"] if isinstance(self.keys["rows"], int) else self._held("rows")
        opens, closes = kb.compare("==", piece, 0), kb.compare("==", piece + 1, self._held("pieces"))
        first, last = (kb.compare("==", self._held(name), 1) for name in ("first", "last"))
        own = self.unit is not self.stream
        with kb.when(opens):
            self.channels.scores.begin()
        slot = self.channels.scores.slot.at(self._held("at") * F32_BYTES)
        if own:
            with kb.when(first), kb.when(opens):
                self.unit.begin_drain()
        self.stream.begin_drain()
        with kb.loop(0, keys if t.piece > t.score_keys else 1, t.score_keys) as at:
            columns = kb.minimum(t.score_keys, keys - at)
            dst = slot.at(at * F32_BYTES).rows(t.score_pitch)
            if t.score_rows < t.rows:
                self._score_by_rows(dst, at, rows, columns)
            else:
                self._score_by_depth(dst, at, rows, columns)
        self.stream.end_drain()
        if own:
            with kb.when(last), kb.when(closes):
                self.unit.end_drain()
        with kb.when(closes):
            self.channels.scores.end()

    def _score_by_depth(self, dst: Address, at: Number, rows: Number, columns: Number) -> None:
        """A tile of scores with all rows."""
        kb, t, form = self.kb, self.tiling, self.form
        with kb.turn(self.score_ring):
            with kb.loop(0, form.depth, t.score_depth) as depth:
                k = kb.minimum(t.score_depth, form.depth - depth) if form.depth % t.score_depth else t.score_depth
                right = self.tile.outlet.rows(self.key_pitch).at(at * self.key_pitch + depth * t.item)
                left = self.queries.outlet.rows(self.query_pitch).at(depth * t.item)
                with kb.turn(*self.feed):
                    self._feed_left(left, rows, k)
                    self._feed_right(right, columns, k)
                    self._multiply(self.scores, (rows, columns, k), depth)
            self._send(self.scores, dst, rows, columns, scale="tensor", scale_value=self._scale())

    def _score_by_rows(self, dst: Address, at: Number, rows: Number, columns: Number) -> None:
        """Tiles of scores with some rows each: the keys stay in L0B for all of them."""
        kb, t, form = self.kb, self.tiling, self.form
        with kb.turn(self.right_ring):
            self._feed_right(self.tile.outlet.rows(self.key_pitch).at(at * self.key_pitch), columns, form.depth)
            with kb.loop(0, rows, t.score_rows) as row, kb.turn(self.score_ring):
                some = kb.minimum(t.score_rows, rows - row)
                with kb.turn(self.left_ring):
                    left = self.queries.outlet.rows(self.query_pitch).at(row * self.query_pitch)
                    self._feed_left(left, some, form.depth)
                    self._multiply(self.scores, (some, columns, form.depth), 0)
                tile = dst.at(row * t.score_pitch)
                self._send(self.scores, tile, some, columns, scale="tensor", scale_value=self._scale())

    def _scale(self) -> float:
        """On the way out; with a soft cap, what the exponential in tanh takes."""
        form = self.form
        return form.scale * 2 / form.softcap if form.softcap else form.scale

    def _sum(self) -> None:
        """Weights x values of the piece of the values' cursor."""
        kb, t, form, cursor = self.kb, self.tiling, self.form, self.values
        rows, keys, first = cursor["rows"], cursor.keys, cursor.first_key
        weights, sums = self.channels.weights, self.channels.sums
        with kb.turn(self.weight_ring):
            with kb.when(cursor.opens):
                weights.begin()
            src = weights.slot.at(first * t.item).rows(t.weight_pitch)
            kb.load_rows(self.weights, src, self.dtype, rows, keys)
            with kb.when(cursor.closes):
                weights.end()
            with kb.when(cursor.opens):
                sums.begin()
                self.sum_stream.begin_fill()
            self.stream.begin_drain()
            with kb.loop(0, keys if t.piece > t.value_keys else 1, t.value_keys) as at:
                k = kb.minimum(t.value_keys, keys - at)
                with kb.turn(*self.feed):
                    self._feed_left(self.weights.at(at * t.item), rows, k)
                    right = self.tile.outlet.rows(self.value_pitch).at(at * self.value_pitch)
                    self._feed_right(right, form.value_depth, k, transpose="no")
                    self._multiply(self.sums.inlet, (rows, form.value_depth, k), first + at)
            self.stream.end_drain()
            with kb.when(cursor.closes):
                self.sum_stream.end_fill()
                with self.sum_stream.drain():
                    self._send(self.sums.outlet, sums.slot.rows(t.sum_pitch), rows, form.value_depth)
                sums.end()

    def _feed_left(self, src: Part, rows: Number, k: Number) -> None:
        self.kb.issue("l1_to_l0a", self.dtype, dst=self.left, src=src, m=rows, k=k)

    def _feed_right(self, src: Part, columns: Number, k: Number, transpose: str = "yes") -> None:
        """`transpose`: no, where it lies in L1 as k rows."""
        self.kb.issue("l1_to_l0b", self.dtype, dst=self.right, src=src, n=columns, k=k, transpose=transpose)

    def _multiply(self, dst: Buffer, shape: tuple[Number, Number, Number], first: Number) -> None:
        """dst += left x right, from 0 where `first` is 0."""
        multiply(self.kb, (self.dtype, F32), dst, self.left, self.right, shape, self.kb.minimum(first, 1))

    def _send(self, src: Buffer, slot: Address, rows: Number, columns: Number, **scale: float | str) -> None:
        self.kb.issue("l0c_to_gm", F32, F32, src=src, dst=slot, m=rows, n=columns, **scale)
