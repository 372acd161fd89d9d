"""aicore.matmul: matrix products on the cube core, and what follows them in FIX or on the vector cores.

Model (see the family for tiles, panels, groups, chunks and steps): two cursors walk over the same chunks. The one ahead
loads the streamed factor, a chunk ahead of the other, which feeds the cube; both go tile by tile, group by group, chunk
by chunk. Queues, from MTE2 to FIX:

    chunks   MTE2 -> MTE1   the streamed factor, two slots
    panel    MTE2 -> MTE1   the kept factor: a whole panel, or a group of its depth
    steps    MTE1 -> M      both factors in L0, two slots
    sums     M    -> FIX    tiles in L0C
    vectors  MTE2 -> FIX    what FIX multiplies with and adds, per column of a tile

A MIX kernel's FIX stores tiles into the group's channel; the vector side is in `matmul_epilogue`.

Constants are loaded ahead of what others produce: chunks of weights before the panel is waited for, a panel of weights
before the first chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from superkernel.codegen.aicore.channel import Channel
from superkernel.codegen.aicore.commands import Address, OperandValue
from superkernel.codegen.aicore.kernels.cube import FactorCode, Steps, locate
from superkernel.codegen.aicore.kernels.matmul_epilogue import emit_lane
from superkernel.codegen.aicore.kernels.matmul_split import emit_split
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number, Variable
from superkernel.codegen.aicore.stream import Stream, StreamBuffer
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cube import FactorLayout
from superkernel.scheduler.families.aicore.matmul_form import product_of
from superkernel.scheduler.families.aicore.matmul_split import SplitTiling
from superkernel.scheduler.families.aicore.matmul_tiling import CHANNEL_SLOTS, LEFT, MatmulTiling, factors, fix_of
from superkernel.target.engines import Engine, Local

NOTHING = -1  # no panel is in L1
Span: TypeAlias = "tuple[Number, Number]"  # first and count


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function for the role at hand."""
    assert isinstance(tiling, MatmulTiling)
    if isinstance(tiling, SplitTiling):
        emit_split(kb, body, tiling)
    elif kb.role.is_cube:
        _Cube(kb, body, tiling).emit()
    else:
        emit_lane(kb, body, tiling)


class _Tile(NamedTuple):
    """What is known of a tile: the number of its panel over all batches, the group that it begins with, where it lies
    in the result (in tiles), and the bytes from each operand's start to it."""

    panel: Variable
    start: Variable
    kept: Variable
    streamed: Variable
    row: Variable
    column: Variable
    out: Variable


class _Cube:
    """The cube core's function."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: MatmulTiling) -> None:
        self.kb, self.body, self.tiling, self.cut = kb, body, tiling, tiling.cut
        self.product = product_of(body)
        self.left, self.right = (FactorCode(kb, f) for f in factors(self.product, tiling))
        by_left = tiling.kept == LEFT
        self.kept, self.streamed = (self.left, self.right) if by_left else (self.right, self.left)
        self.kept_side = self.product.left if by_left else self.product.right
        self.streamed_side = self.product.right if by_left else self.product.left
        self.fix = None if tiling.mix else fix_of(body)
        self._streams()
        self.now, self.next = (_Tile(*(kb.variable(0) for _ in _Tile._fields)) for _ in range(2))
        self.unit, self.held, self.coming = kb.variable(kb.begin), kb.variable(NOTHING), kb.variable(NOTHING)
        self.group, self.chunk = kb.variable(0), kb.variable(0)
        self.constant = self.kept.factor.layout is FactorLayout.PACKED
        self.ahead = tiling.kept_slots == 2
        self.late = tiling.panel_follows(self.constant)
        self.channel = None
        if tiling.mix:
            self.channel = Channel(kb, tiling.slot_bytes, kb.end - kb.begin, to_vector=True, depth=CHANNEL_SLOTS)

    def _streams(self) -> None:
        kb, tiling = self.kb, self.tiling
        self.chunks = Stream(kb, "chunks", Engine.MTE2, Engine.MTE1, 2)
        self.chunk_buffer = self.chunks.buffer(Local.L1, self.streamed.factor.resident_bytes, "chunk")
        self.panel = Stream(kb, "panel", Engine.MTE2, Engine.MTE1, tiling.kept_slots)
        self.panel_buffer = self.panel.buffer(Local.L1, self.kept.factor.resident_bytes, "panel")
        rows, columns = tiling.part
        accumulator = self.product.accumulator
        self.steps = Steps(kb, self.left, self.right, rows, columns, self.cut.step, accumulator)
        self.sums = Stream(kb, "sums", Engine.M, Engine.FIX, max(tiling.sums, tiling.halves))
        self.sums_buffer = self.sums.buffer(Local.L0C, rows * columns * 4, "sums")
        self.vectors: Stream | None = None
        self.vector_buffers: list[StreamBuffer] = []
        if self.fix is not None and self.fix.vectors:
            self.vectors = Stream(kb, "vectors", Engine.MTE2, Engine.FIX, 2)
            self.vector_buffers = [
                self.vectors.buffer(Local.L1, tiling.columns * 4, f"vector{i}", top=True)
                for i in range(len(self.fix.vectors))
            ]

    # The loops --------------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        kb = self.kb
        with kb.when(kb.compare("<", kb.begin, kb.end)):
            self._begin_tile()
            if self.constant and not self.ahead:
                self._go_on()
                self._hold(self._group_of(0, self.now))
            self._load_ahead()
            with kb.loop(kb.begin, kb.end):
                self._go_on()
                self._emit_tile()
            self.panel.end_drain()

    def _go_on(self) -> None:
        """To the tile that the cursor ahead is at."""
        for now, following in zip(self.now, self.next, strict=True):
            now.set(following.get())

    def _emit_tile(self) -> None:
        kb, cut = self.kb, self.cut
        if self.tiling.halves == 1:
            self.sums.begin_fill()
        if self.vectors is not None:
            self._load_vectors()
        if self.ahead:
            self._take_panel()
        with kb.loop(0, cut.groups) as group:
            place = self._group_of(group, self.now)
            if not self.ahead and not self.late:
                self._hold(place)
            with kb.loop(0, self._chunks_of(place)) as chunk:
                self._look_ahead()
                if self.late:
                    self._hold(place)
                self.chunks.begin_drain()
                self._multiply(group, place, chunk)
                self.chunks.end_drain()
        if self.tiling.halves == 1:
            self.sums.end_fill()
        self._store()

    def _multiply(self, group: Number, place: Number, chunk: Number) -> None:
        """The steps of a chunk, for each half of the tile."""
        kb = self.kb
        with self._parts() as (rows, columns):
            if self.tiling.halves > 1:
                with kb.when(kb.compare("==", group + chunk, 0)):
                    self.sums.begin_fill()
            self._steps(group, place, chunk, rows, columns)
            if self.tiling.halves > 1:
                left = (self.cut.groups - 1) - group + (self._chunks_of(place) - 1) - chunk
                with kb.when(kb.compare("==", left, 0)):
                    self.sums.end_fill()

    @contextmanager
    def _parts(self) -> Iterator[tuple[Span, Span]]:
        """For each half of the tile that is not empty: (first row, rows) and (first column, columns)."""
        kb, tiling = self.kb, self.tiling
        rows, columns = self.left.lines_of(self.now.row.get()), self.right.lines_of(self.now.column.get())
        if tiling.halves == 1:
            yield (0, rows), (0, columns)
            return
        by_columns = tiling.halves_columns
        size, lines = (tiling.part[1], columns) if by_columns else (tiling.part[0], rows)
        with kb.loop(0, tiling.halves) as half:
            first = half * size
            with kb.when(True if isinstance(lines, int) and lines > size else kb.compare("<", first, lines)):
                self.sums.select(half)
                count = size if lines == 2 * size else kb.minimum(lines - first, size)
                yield ((0, rows), (first, count)) if by_columns else ((first, count), (0, columns))

    def _steps(self, group: Number, place: Number, chunk: Number, rows: Span, columns: Span) -> None:
        kb, cut = self.kb, self.cut
        _, depths = self._chunk_span(place, chunk)
        in_panel = chunk * cut.chunk
        even = isinstance(depths, int) and depths % cut.step == 0
        tall, wide = self.left.lines_of(self.now.row.get()), self.right.lines_of(self.now.column.get())
        with kb.loop(0, depths, cut.step) as at, kb.turn(self.steps.ring):
            count = cut.step if even else kb.minimum(depths - at, cut.step)
            sides = (self.left, self.steps.a, tall, rows), (self.right, self.steps.b, wide, columns)
            for code, buffer, lines, part in sides:
                if code is self.kept:
                    code.feed(buffer, self.panel_buffer.outlet, lines, in_panel + at, count, part)
                else:
                    code.feed(buffer, self.chunk_buffer.outlet, lines, at, count, part)
            self.steps.multiply(self.sums_buffer.inlet, rows[1], columns[1], count, group + chunk + at)

    # Depth ------------------------------------------------------------------------------------------------------------

    def _group_of(self, group: Number, tile: _Tile) -> Number:
        """Which group a tile has at a place: all of them in turn, from its first one on."""
        kb, groups = self.kb, self.cut.groups
        if groups == 1 or self.tiling.units == 1:
            return group
        place = tile.start.get() + group
        return kb.select(kb.compare(">=", place, groups), place - groups, place)

    def _chunks_of(self, group: Number) -> Number:
        kb, cut = self.kb, self.cut
        whole, last = cut.chunks(0), cut.chunks(cut.groups - 1)
        return whole if whole == last else kb.select(kb.compare("==", group, cut.groups - 1), last, whole)

    def _group_depths(self, group: Number) -> Number:
        cut = self.cut
        if cut.depth % cut.group == 0:
            return cut.group
        return self.kb.minimum(cut.depth - group * cut.group, cut.group)

    def _chunk_span(self, group: Number, chunk: Number) -> tuple[Number, Number]:
        """First depth and depths of a chunk."""
        cut = self.cut
        inside = self._group_depths(group)
        first = group * cut.group + chunk * cut.chunk
        if isinstance(inside, int) and inside % cut.chunk == 0:
            return first, cut.chunk
        return first, self.kb.minimum(inside - chunk * cut.chunk, cut.chunk)

    # The cursor ahead -------------------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """To the next chunk, and load it."""
        kb, cut = self.kb, self.cut
        if len(cut.chunk_list) == 1:
            self.unit.add(1)
            with kb.when(kb.compare("<", self.unit.get(), kb.end)):
                self._begin_tile()
                self._load_ahead()
            return
        self.chunk.add(1)
        here = self._group_of(self.group.get(), self.next)
        with kb.when(kb.compare("==", self.chunk.get(), self._chunks_of(here))):
            self.chunk.set(0)
            self.group.add(1)
            with kb.when(kb.compare("==", self.group.get(), cut.groups)):
                self.group.set(0)
                self.unit.add(1)
                with kb.when(kb.compare("<", self.unit.get(), kb.end)):
                    self._begin_tile()
        with kb.when(kb.compare("<", self.unit.get(), kb.end)):
            self._load_ahead()

    def _load_ahead(self) -> None:
        """The chunk that the cursor is at, and its panel if that is another one; what is constant goes first."""
        if self.ahead and self.constant:
            self._load_next_panel()
        self._load_chunk()
        if self.ahead and not self.constant:
            self._load_next_panel()

    def _load_next_panel(self) -> None:
        kb, panel = self.kb, self.next.panel.get()
        with kb.when(kb.compare("!=", panel, self.coming.get())):
            self._load_panel(self.next, 0)
            self.coming.set(panel)

    def _load_chunk(self) -> None:
        group, chunk = (0, 0) if len(self.cut.chunk_list) == 1 else (self.group.get(), self.chunk.get())
        place = self._group_of(group, self.next) if self.cut.groups > 1 else 0
        first, depths = self._chunk_span(place, chunk)
        tile = self.next.row if self.streamed is self.left else self.next.column
        with self.chunks.fill():
            self.streamed.load(
                self.chunk_buffer.inlet, self.next.streamed.get(), self.streamed.lines_of(tile.get()), first, depths
            )

    def _begin_tile(self) -> None:
        """Where the tile of unit `unit` lies."""
        kb, tiling, product, tile = self.kb, self.tiling, self.product, self.next
        panel, position, batch, row, column = locate(kb, tiling, product.batch_dims, self.unit.get())
        if self.cut.groups > 1 and tiling.units > 1:
            tile.start.set((panel * tiling.drift + position * (self.cut.groups - 1)) % self.cut.groups)
        tile.row.set(row)
        tile.column.set(column)
        kept, streamed = (row, column) if tiling.kept == LEFT else (column, row)
        dims = product.batch_dims
        tile.streamed.set(self.streamed.tile_offset(batch, dims, self.streamed_side.batch, streamed))
        tile.kept.set(self.kept.tile_offset(batch, dims, self.kept_side.batch, kept))
        if self.fix is not None:
            out = product.program.outputs[0]
            item = self.body.operands[out.target].type.dtype.itemsize
            place: Number = out.offset
            for index, stride in zip(batch, out.strides[:-2], strict=True):
                place = place + index * stride
            place = place + row * (tiling.rows * out.strides[-2]) + column * (tiling.columns * out.strides[-1])
            tile.out.set(place * item)
        tile.panel.set(panel)

    # The kept factor --------------------------------------------------------------------------------------------------

    def _load_panel(self, tile: _Tile, group: Number) -> None:
        line = tile.row if self.kept is self.left else tile.column
        lines, depths = self.kept.lines_of(line.get()), self._group_depths(group)
        with self.panel.fill():
            self.kept.load(self.panel_buffer.inlet, tile.kept.get(), lines, group * self.cut.group, depths)

    def _hold(self, group: Number) -> None:
        """Have a group of the tile's panel in L1, where the last one was."""
        kb = self.kb
        wanted = self.now.panel.get() * self.cut.groups + group
        with kb.when(kb.compare("!=", self.held.get(), wanted)):
            self._release()
            self._load_panel(self.now, group)
            self.panel.begin_drain()
            self.held.set(wanted)

    def _take_panel(self) -> None:
        """Go on to the panel that was loaded ahead, if the tile has another one."""
        kb = self.kb
        with kb.when(kb.compare("!=", self.held.get(), self.now.panel.get())):
            self._release()
            self.panel.begin_drain()
            self.held.set(self.now.panel.get())

    def _release(self) -> None:
        with self.kb.when(self.kb.compare("!=", self.held.get(), NOTHING)):
            self.panel.end_drain()

    # Out --------------------------------------------------------------------------------------------------------------

    def _load_vectors(self) -> None:
        assert self.vectors is not None
        assert self.fix is not None
        columns, column = self.right.lines_of(self.now.column.get()), self.now.column.get()
        with self.vectors.fill():
            for buffer, vector in zip(self.vector_buffers, self.fix.vectors, strict=True):
                src = self.kb.operand(vector.operand, column * (self.tiling.columns * 4))
                self.kb.issue("gm_to_l1", dst=buffer.inlet, src=src, bytes=columns * 4)

    def _store(self) -> None:
        """The tile of sums to the result, or to the vector cores."""
        kb, product = self.kb, self.product
        if self.channel is not None:
            pitch = self.tiling.columns * 4
            with self.channel.turn() as slot, self._parts() as (rows, columns), self.sums.drain():
                dst = slot.at(rows[0] * pitch + columns[0] * 4).rows(pitch)
                self._fix(dst, product.accumulator, rows[1], columns[1])
            return
        out = product.program.outputs[0]
        kind = self.body.operands[out.target].type.dtype
        if self.vectors is not None:
            self.vectors.begin_drain()
        with self._parts() as (rows, columns), self.sums.drain():
            place = rows[0] * (out.strides[-2] * kind.itemsize) + columns[0] * (out.strides[-1] * kind.itemsize)
            dst = kb.operand(out.target, self.now.out.get() + place).rows(out.strides[-2] * kind.itemsize)
            self._fix(dst, kind, rows[1], columns[1], **self._stages(columns[0]))
        if self.vectors is not None:
            self.vectors.end_drain()

    def _stages(self, column: Number) -> dict[str, OperandValue]:
        """What FIX does to the sums, from a column of the tile on."""
        fix, stages = self.fix, dict[str, OperandValue]()
        assert fix is not None
        if fix.factor != 1.0:
            stages.update(scale="tensor", scale_value=fix.factor)
        if fix.activation != "none":
            stages.update(activation=fix.activation, low=fix.low, high=fix.high)
        names = [n for n, v in (("scale", fix.scale), ("bias", fix.bias)) if v is not None]
        for name, buffer in zip(names, self.vector_buffers, strict=True):
            stages.update({name: "channel", f"{name}_src": buffer.outlet.at(column * 4)})
        return stages

    def _fix(self, dst: Address, kind: DType, m: Number, n: Number, **stages: OperandValue) -> None:
        source = self.product.accumulator
        self.kb.issue("l0c_to_gm", source, kind, src=self.sums_buffer.outlet, dst=dst, m=m, n=n, **stages)
