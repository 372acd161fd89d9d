"""aicore.matmul with its depth in passes: the cube core leaves partial sums in the workspace, vector cores add them.

Model (see the family for blocks, passes, stages, the window): the cube core goes block by block, stage by stage, pass
by pass, tile by tile, piece by piece. A cursor is a chunk ahead and loads. Queues, from MTE2 to FIX:

    chunks   MTE2 -> MTE1   the streamed factor of a piece; between them parts of the kept one's window
    steps    MTE1 -> M      both factors in L0, two slots
    sums     M    -> FIX    tiles in L0C

The window has no flags of its own. A part is loaded behind a chunk's load, so that it is there when the next chunk is;
its place is free because that chunk's slot is: whoever freed the slot had used the place for the last time before
(`SplitTiling.loads`). The channel to the vector cores has a slot per tile of a block: the cube core waits for a slot in
a stage's first pass and gives it away in the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from superkernel.codegen.aicore.channel import Channel
from superkernel.codegen.aicore.kernels.cube import FactorCode, Steps, locate
from superkernel.codegen.aicore.kernels.matmul_epilogue import piece, share
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number, Variable
from superkernel.codegen.aicore.stream import Stream
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.matmul_split import CHUNK_SLOTS, SplitTiling
from superkernel.scheduler.families.aicore.matmul_tiling import LEFT, factors, lane_code, lane_size
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.engines import Engine, Local


def emit_split(kb: KernelBuilder, body: Body, tiling: SplitTiling) -> None:
    """The function of the role at hand."""
    if kb.role.is_cube:
        _Cube(kb, body, tiling).emit()
    else:
        _Lane(kb, body, tiling).emit()


@dataclass(frozen=True)
class _Ahead:
    """The cursor ahead: the unit, pass, tile and piece of the chunk that was loaded last; the block's panel and first
    streamed tile, the bytes to them; whether the block is the first of its panel here, and whether it is the last."""

    unit: Variable
    turn: Variable
    tile: Variable
    number: Variable
    panel: Variable
    first: Variable
    kept: Variable
    streamed: Variable
    ends: Variable  # bit 0: first, bit 1: last


class _Cube:
    """The cube core's function."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: SplitTiling) -> None:
        self.kb, self.tiling, self.cut = kb, tiling, tiling.cut
        self.product = tiling.product(body)
        self.left, self.right = (FactorCode(kb, f) for f in factors(self.product, tiling))
        by_left = tiling.kept == LEFT
        self.kept, self.streamed = (self.left, self.right) if by_left else (self.right, self.left)
        sides = (self.product.left, self.product.right)
        self.kept_side, self.streamed_side = sides if by_left else sides[::-1]
        self._streams()
        # Cursors: the tile that is computed, the chunk that is loaded, the part that is loaded with it.
        self.panel, self.first, self.leaves, self.left_tiles = (kb.variable(0) for _ in range(4))
        self.next = _Ahead(kb.variable(kb.begin), *(kb.variable(0) for _ in range(8)))
        self.part, self.slot, self.head = (kb.variable(0) for _ in range(3))
        turns = (kb.end - kb.begin) * tiling.handed
        self.channel = Channel(kb, tiling.turn_bytes, turns, to_vector=True, depth=tiling.block)

    def _streams(self) -> None:
        kb, tiling = self.kb, self.tiling
        self.chunks = Stream(kb, "chunks", Engine.MTE2, Engine.MTE1, CHUNK_SLOTS)
        self.chunk_buffer = self.chunks.buffer(Local.L1, self.streamed.factor.resident_bytes, "chunk")
        self.part_bytes = ceil_to(self.kept.factor.resident_bytes, tiling.block_bytes)
        self.window = self.chunks.lasting(Local.L1, tiling.held_parts * self.part_bytes, "window")
        rows, columns, accumulator = tiling.rows, tiling.columns, self.product.accumulator
        self.steps = Steps(kb, self.left, self.right, rows, columns, self.cut.step, accumulator)
        self.sums = Stream(kb, "sums", Engine.M, Engine.FIX, tiling.sums)
        self.sums_buffer = self.sums.buffer(Local.L0C, rows * columns * 4, "sums")

    def emit(self) -> None:
        kb, tiling = self.kb, self.tiling
        with kb.when(kb.compare("<", kb.begin, kb.end)):
            self._locate()
            self._load_chunk()
            with kb.loop(kb.begin, kb.end) as unit:
                self.panel.set(self.next.panel.get())
                self.first.set(self.next.first.get())
                self.leaves.set(self.next.ends.get() >> 1)
                self.left_tiles.set(self.cut.groups * tiling.block)
                with kb.loop(0, tiling.stages) as stage:
                    count = piece(kb, self.cut.groups - stage * tiling.stage, tiling.stage)
                    with kb.loop(0, count) as turn, kb.loop(0, tiling.block) as tile:
                        self._wait_for_slot(turn, unit - kb.begin + stage)
                        self._emit_tile(turn, tile)
                        self._move_window(tile)
                        with kb.when(kb.compare("==", turn, count - 1)):
                            self.channel.send()

    def _is(self, relation: str, a: Number, b: Number) -> Number:
        """1 or 0."""
        return self.kb.select(self.kb.compare(relation, a, b), 1, 0)

    def _wait_for_slot(self, turn: Number, before: Number) -> None:
        """In the first pass of a stage, until the vector cores have read what the stage before left in the slot."""
        with self.kb.when(self.kb.compare("==", turn, 0)), self.kb.when(self.kb.compare("!=", before, 0)):
            self.channel.await_slot()

    def _emit_tile(self, turn: Number, tile: Number) -> None:
        """A tile over the depth of a pass, piece by piece; the oldest piece of the window comes first."""
        kb, tiling = self.kb, self.tiling
        panel, streamed = self.panel.get(), self.first.get() + tile
        row, column = (panel, streamed) if tiling.kept == LEFT else (streamed, panel)
        lines = self.left.lines_of(row), self.right.lines_of(column)
        with self.sums.fill(), kb.loop(0, tiling.pieces) as number:
            self._look_ahead()
            with self.chunks.drain(), kb.loop(0, tiling.parts) as part:
                self._steps(number, part, lines)
        with self.sums.drain():
            kind, slot = self.product.accumulator, tile * tiling.turn_bytes + pass_offset(tiling, turn)
            dst = kb.scratch(slot).rows(pass_pitch(tiling))
            kb.issue("l0c_to_gm", kind, kind, src=self.sums_buffer.outlet, dst=dst, m=lines[0], n=lines[1])

    def _steps(self, number: Number, part: Number, lines: tuple[Number, Number]) -> None:
        """What a part of the kept factor gives to a tile."""
        kb, cut, tiling = self.kb, self.cut, self.tiling
        place = number * tiling.parts + part
        kept = self.window.outlet.at((self.head.get() + place) % tiling.held_parts * self.part_bytes)
        with kb.loop(0, tiling.kept_depth, cut.step) as at, kb.turn(self.steps.ring):
            for code, buffer, count in zip((self.left, self.right), (self.steps.a, self.steps.b), lines, strict=True):
                if code is self.kept:
                    code.feed(buffer, kept, count, at, cut.step)
                else:
                    chunk = self.chunk_buffer.outlet.at(0)
                    code.feed(buffer, chunk, count, part * tiling.kept_depth + at, cut.step)
            self.steps.multiply(self.sums_buffer.inlet, *lines, cut.step, place + at)

    def _move_window(self, tile: Number) -> None:
        """By a piece when so many tiles are done; past all of it with the last one of a panel."""
        tiling = self.tiling
        self.left_tiles.add(-1)
        leaves = self.leaves.get() * self._is("==", self.left_tiles.get(), 0)
        moves = self._is("==", (tile + 1) % tiling.hop, 0)
        by = (moves + leaves * (tiling.pieces - 1)) * tiling.parts
        self.head.set((self.head.get() + by) % tiling.held_parts)

    # Loads ------------------------------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """To the next chunk, and load it."""
        kb, tiling, ahead = self.kb, self.tiling, self.next
        with (
            self._wrap(ahead.number, tiling.pieces),
            self._wrap(ahead.tile, tiling.block),
            self._wrap(ahead.turn, self.cut.groups),
        ):
            ahead.unit.add(1)
            self._locate()
        with kb.when(kb.compare("<", ahead.unit.get(), kb.end)):
            self._load_chunk()

    @contextmanager
    def _wrap(self, counter: Variable, extent: int) -> Iterator[None]:
        """Count up; what is inside happens where the counter begins anew."""
        counter.add(1)
        with self.kb.when(self.kb.compare("==", counter.get(), extent)):
            counter.set(0)
            yield

    def _locate(self) -> None:
        """Where the block of the cursor's unit lies (behind the last one: somewhere)."""
        kb, tiling, dims, ahead = self.kb, self.tiling, self.product.batch_dims, self.next
        unit = ahead.unit.get()
        _, position, batch, row, column = locate(kb, tiling, dims, unit)
        panel, block = (row, column) if tiling.kept == LEFT else (column, row)
        ahead.panel.set(panel)
        ahead.first.set(block * tiling.block)
        ahead.kept.set(self.kept.tile_offset(batch, dims, self.kept_side.batch, panel))
        ahead.streamed.set(self.streamed.tile_offset(batch, dims, self.streamed_side.batch, block * tiling.block))
        first = kb.minimum(self._is("==", position, 0) + self._is("==", unit, kb.begin), 1)
        last = kb.minimum(self._is("==", position, tiling.panel_tiles - 1) + self._is("==", unit + 1, kb.end), 1)
        ahead.ends.set(last * 2 + first)
        with kb.when(kb.compare("!=", first, 0)):
            self.part.set(0)

    def _depth(self, number: Number) -> Number:
        """First depth of a piece, counted from the one that the panel begins with."""
        return (self.next.panel.get() * self.tiling.drift + number) % self.tiling.all_pieces * self.cut.chunk

    def _load_chunk(self) -> None:
        """The chunk that the cursor is at, and the parts whose turn it is."""
        code, ahead, tiling = self.streamed, self.next, self.tiling
        tile = ahead.tile.get()
        number = ahead.turn.get() * tiling.pieces + tile // tiling.hop + ahead.number.get()
        with self.chunks.fill():
            self._load_first()
            code.load(
                self.chunk_buffer.inlet, ahead.streamed.get() + tile * code.tile_bytes,
                code.lines_of(ahead.first.get() + tile), self._depth(number), self.cut.chunk,
            )  # fmt: skip
        self._load_parts()

    def _load_first(self) -> None:
        """The first window of a panel comes ahead of the chunks of its first tile, piece by piece, as the window of the
        panel before is given up."""
        ahead, tiling = self.next, self.tiling
        here = (ahead.turn.get() * tiling.block + ahead.tile.get()) * tiling.pieces + ahead.number.get()
        comes = (ahead.ends.get() & 1) * self._is("<", here, tiling.pieces)
        with self.kb.when(self.kb.compare("!=", comes, 0)):
            if tiling.pieces < CHUNK_SLOTS:  # the chunk's slot was free before the piece's place is
                self.kb.order(Engine.MTE1, Engine.MTE2)
            with self.kb.loop(0, tiling.parts):
                self._load_part()

    def _load_parts(self) -> None:
        """What is needed with the next chunk or later: what `loads` says. In its last period before another panel the
        window takes nothing in."""
        kb, tiling, ahead = self.kb, self.tiling, self.next
        here = (ahead.tile.get() % tiling.hop) * tiling.pieces + ahead.number.get()
        period = ahead.turn.get() * tiling.pieces + ahead.tile.get() // tiling.hop
        begins = (ahead.ends.get() & 1) * self._is("==", period, 0)
        leaves = (ahead.ends.get() >> 1) * self._is("==", period, tiling.all_pieces - 1)
        chunks = tiling.hop * tiling.pieces
        due: Number = 0
        for at in tiling.loads:
            due = due + self._is("==", here, at % chunks) * (1 - (begins if at >= chunks else leaves))
        with kb.loop(0, due):
            self._load_part()

    def _load_part(self) -> None:
        tiling, ahead, part = self.tiling, self.next, self.part.get()
        depth = self._depth(part // tiling.parts) + part % tiling.parts * tiling.kept_depth
        place = self.window.inlet.at(self.slot.get() * self.part_bytes)
        self.kept.load(place, ahead.kept.get(), self.kept.lines_of(ahead.panel.get()), depth, tiling.kept_depth)
        self.part.add(1)
        self.slot.set((self.slot.get() + 1) % tiling.held_parts)


class _Lane:
    """The function of a vector core: its share of every tile's sums, then the epilogue."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: SplitTiling) -> None:
        self.kb, self.tiling, self.product = kb, tiling, tiling.product(body)
        code, self.size = lane_code(body, tiling.turns), lane_size(body, tiling, kb.target)
        self.kind = self.product.accumulator
        pitch = ceil_to(self.size.cols * self.kind.itemsize, self.size.block_bytes)
        self.sums, self.parts = kb.ring("sums", 2), kb.ring("parts", 2)
        self.anchor = kb.buffer(self.sums, Local.UB, self.size.rows * pitch, "sums").rows(pitch)
        self.part = kb.buffer(self.parts, Local.UB, self.size.rows * pitch, "part").rows(pitch)
        rings = kb.in_and_out(2)
        self.tile = TileProgram(kb, self.product.program, code, self.size, *rings, anchors=(self.anchor,))
        turns = (kb.end - kb.begin) * tiling.handed
        self.channel = Channel(kb, tiling.turn_bytes, turns, to_vector=True, depth=tiling.block)

    def emit(self) -> None:
        kb, tiling, product = self.kb, self.tiling, self.product
        with kb.loop(kb.begin, kb.end) as unit:
            _, _, batch, row, column = locate(kb, tiling, product.batch_dims, unit)
            with kb.loop(0, tiling.stages) as stage:
                if tiling.stages > 1:  # this core reads what it stored in the stage before
                    kb.order(Engine.MTE3, Engine.MTE2)
                with kb.loop(0, tiling.block) as tile, self.channel.turn():
                    if tiling.kept == LEFT:
                        self._tile(stage, tile, batch, row, column * tiling.block + tile)
                    else:
                        self._tile(stage, tile, batch, row * tiling.block + tile, column)

    def _tile(self, stage: Number, tile: Number, batch: list[Number], row: Number, column: Number) -> None:
        kb, tiling, product, size = self.kb, self.tiling, self.product, self.size
        (first, last), (left, right) = share(kb, tiling, row, column, product.rows, product.columns)
        with (
            kb.loop(first, last, size.rows) as top,
            kb.loop(left, right, size.cols) as side,
            kb.turn(self.sums, *self.tile.rings),
        ):
            height, width = piece(kb, last - top, size.rows), piece(kb, right - side, size.cols)
            inside = top * (tiling.columns * 4) + side * 4
            self._add(stage, tile, top, side, height, width)
            place = [*batch, row * tiling.rows + top, column * tiling.columns + side]
            last = kb.compare("==", stage, tiling.stages - 1)
            # Each a node of its own: buffers go from engine to engine between them.
            with kb.when(last):
                self.tile.load(place, height, width)
            with kb.when(last):
                self.tile.compute(height, width)
            with kb.when(last):
                self.tile.store(place, height, width)
            with kb.when(kb.compare("!=", stage, tiling.stages - 1)):
                dst = kb.scratch(self._kept_sums(tile) + inside).rows(tiling.columns * 4)
                kb.store_rows(dst, self.anchor, height, width * 4)

    def _kept_sums(self, tile: Number) -> Number:
        return tile * self.tiling.slot_bytes + self.tiling.sums_start

    def _add(self, stage: Number, tile: Number, top: Number, side: Number, height: Number, width: Number) -> None:
        """The sums of the stages before and of this one's passes."""
        kb, tiling = self.kb, self.tiling
        slot, wide, pitch = tile * tiling.turn_bytes, pass_pitch(tiling), tiling.columns * 4
        is_first = kb.compare("==", stage, 0)
        start = kb.select(is_first, slot + top * wide, self._kept_sums(tile) + top * pitch)
        begin = kb.select(is_first, 1, 0)
        src = kb.scratch(start + side * 4).rows(kb.select(is_first, wide, pitch))
        kb.load_rows(self.anchor, src, self.kind, height, width)
        count = piece(kb, tiling.cut.groups - stage * tiling.stage, tiling.stage)
        with kb.loop(begin, count) as number, kb.turn(self.parts):
            src = kb.scratch(slot + pass_offset(tiling, number) + top * wide + side * 4).rows(wide)
            kb.load_rows(self.part, src, self.kind, height, width)
            kb.issue("v_add", self.kind, dst=self.anchor, a=self.anchor, b=self.part, rows=height, cols=width)


def pass_pitch(tiling: SplitTiling) -> int:
    """Bytes from row to row of a pass's partial sums."""
    return tiling.abreast * tiling.columns * 4


def pass_offset(tiling: SplitTiling, number: Number) -> Number:
    """Where the partial sums of a pass lie among those of a tile and stage."""
    count = tiling.abreast
    if count == 1:
        return number * tiling.slot_bytes
    return number // count * (count * tiling.slot_bytes) + number % count * (tiling.columns * 4)
