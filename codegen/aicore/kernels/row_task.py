"""How a row kernel walks over its units, and what UB holds meanwhile (see families/aicore/rows for the geometry).

Model: a formula (`rows`) is a few *passes* over a unit's row: `reduce` combines what a function makes of the
data into one number per row, `result` stores what a function makes of it. In a resident tiling the tile is loaded
once, and functions may work in place on it; in a streaming one every pass loads the chunks again. Loads of further
inputs (scale, bias) that no unit changes are issued ahead of everything else.

A `Chunk` is a tile's place in the row space (see families/aicore/row_modes). In the modes LINES and POINTS a tile is up
to p neighbouring units; in COLUMNS and WHOLE a unit is one tile, or several chunks.

Buffers: data and further inputs in the ring `in`, results in the ring `out`; what only the vector engine uses
(the data as f32, a temporary tile, statistics) once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from superkernel.codegen.aicore.kernels.row_tiles import COMBINE, Ops, RowTile, TileVector, VectorForm
from superkernel.codegen.aicore.kernels.row_transfer import Mover, TileStrides
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part, Ring
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.scheduler.families.aicore.lowering import engine_type
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.row_buffers import (
    STATISTICS,
    RowBuffers,
    code_before,
    code_behind,
    spans_rows,
    turn_stride,
)
from superkernel.scheduler.families.aicore.row_modes import RowMode, is_reduction, result_extents, tile_dims, work_of
from superkernel.scheduler.families.aicore.rows import RowsTiling
from superkernel.scheduler.families.aicore.tilecode import Home, TileSize
from superkernel.scheduler.families.rowops import space_of
from superkernel.target.engines import Local

Prepare = Callable[[RowTile], RowTile]


def coordinates(number: Number, extents: Sequence[int]) -> list[Number]:
    """Of a row-major number over some dimensions."""
    at: list[Number] = [0] * len(extents)
    moving = [d for d, extent in enumerate(extents) if extent > 1]
    for d in reversed(moving):
        at[d] = number if d == moving[0] else number % extents[d]
        number = number if d == moving[0] else number // extents[d]
    return at


class Scope(Enum):
    """When a further input is loaded."""

    ONCE = "once"
    UNIT = "unit"
    CHUNK = "chunk"  # with the data


@dataclass(eq=False)
class Param:
    """A further input. `raw`: as loaded; `value`: in the type of the work, the same where no cast is needed. As rows
    these are numbers of a vector, a block or an item apart."""

    program: PointwiseProgram
    dtype: DType
    form: VectorForm | None  # None: a tile
    scope: Scope
    spans: bool  # all of P is held, though a chunk has a part of it
    raw: Part
    value: Part


@dataclass(frozen=True, eq=False)
class Chunk:
    """A tile's place in the row space: where it begins in every dimension, and its extents."""

    at: tuple[Number, ...]
    n: Number
    m: Number


class RowTask:
    """See the module docstring. `unit`: the open unit, or tile of units."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: RowsTiling) -> None:
        self.kb, self.body, self.tiling = kb, body, tiling
        self.space = space_of(body)
        self.shape = self.space.epilogue.shape
        self.pd, self.qd = tile_dims(self.space)
        self.unit: Chunk | None = None
        kind = body.anchor_input_types[0]
        assert kind is not None
        self.dtype, self.work = engine_type(kind.dtype), work_of(body)
        self.casts = self.dtype is not self.work
        self.item, self.work_item = self.dtype.itemsize, self.work.itemsize
        self.block = kb.target.memory.block_bytes
        self.reduces = is_reduction(body)
        self._allocate()
        self._x: RowTile | None = None

    # Memory -----------------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        kb, t, need = self.kb, self.tiling, self.tiling.buffers(self.body, self.block)
        self.ring_in, self.ring_once, self.ring_unit = kb.ring("in", t.depth), kb.ring("once", 1), kb.ring("unit", 1)
        self.raw = kb.buffer(self.ring_in, Local.UB, need.raw, "raw") if need.raw else None
        turned = kb.buffer(self.ring_in, Local.UB, need.turned_in, "turned") if need.turned_in else None
        self.mover_in = Mover(kb, self.item, turned, turn_stride(t.p, self.item, self.block))
        self.params = {
            k: self._param(k, p, need.param(k)) for k, p in enumerate(self.space.programs[:-1]) if k and p is not None
        }
        self.x_buffer = kb.fixed(Local.UB, need.work, "x") if need.work else self.raw
        scratch = kb.fixed(Local.UB, need.scratch, "scratch") if need.scratch else None
        self.ops = Ops(kb, self.work, scratch, need.turned_at, t.fold)
        self.spare = kb.fixed(Local.UB, need.spare, "spare") if need.spare else None
        self.stats = [kb.fixed(Local.UB, need.statistic, f"s{i}") for i in range(STATISTICS)]
        self.ring_out, self.ring_before = kb.ring("out", t.depth), kb.ring("before", t.depth)
        self.before, self.behind = self._before(), None
        self.outs: list[tuple[Buffer, Mover]] = []
        if code_behind(self.body) is None:
            self._allocate_outs(need)
        else:
            self.taken = kb.buffer(self.ring_out, Local.UB, need.taken, "taken", top=True) if need.taken else None
            self.behind = self._behind()

    def _allocate_outs(self, need: RowBuffers) -> None:
        kb = self.kb
        for k, out in enumerate(self.space.epilogue.outputs):
            item = self.body.operands[out.target].type.dtype.itemsize
            buffer = kb.buffer(self.ring_out, Local.UB, need.out[k], f"out{k}", top=True)
            size = need.turned_out[k]
            across = kb.buffer(self.ring_out, Local.UB, size, f"across{k}", top=True) if size else None
            rows = 1 if self.reduces else self.tiling.p
            self.outs.append((buffer, Mover(kb, item, across, turn_stride(rows, item, self.block))))

    def _before(self) -> TileProgram | None:
        code = code_before(self.body)
        if code is None:
            return None
        size = TileSize(self.tiling.p, self.tiling.q, self.block)
        return TileProgram(self.kb, self.space.data, code, size, self.ring_in, self.ring_before)

    def _behind(self) -> TileProgram:
        """The program that takes the results: the first statistic, or the data, changed in place; or a copy of them
        that it stores."""
        code = code_behind(self.body)
        assert code is not None
        if self.taken is not None:
            anchor = self.taken.rows(0 if self.reduces else self.tiling.stride * self.work_item)
        elif self.reduces:
            anchor = self.stats[0].rows(0)
        elif self.before is not None:
            anchor = self.before.result(self._fed)
        else:
            assert self.x_buffer is not None
            anchor = self.x_buffer.rows(self.tiling.stride * self.work_item)
        size = TileSize(*result_extents(self.body, self.tiling.p, self.tiling.q), self.block)
        return TileProgram(self.kb, self.space.epilogue, code, size, self.ring_in, self.ring_out, anchors=[anchor])

    @property
    def _fed(self) -> int:
        """Which output of the program in front is the data."""
        return next(k for k, out in enumerate(self.space.data.outputs) if out.target < 0)

    @property
    def _rings(self) -> tuple[Ring, ...]:
        """What a load of data takes turns of."""
        stores = self.before is not None and self.before.code.of_home(Home.OUTPUT)
        return (self.ring_in, self.ring_before) if stores else (self.ring_in,)

    def _param(self, k: int, program: PointwiseProgram, size: tuple[int, int]) -> Param:
        """Buffers of a further input of `size` bytes: as loaded, in the type of the work."""
        walk, load = program.inputs[0].strides, program.inputs[0]
        along_p, along_q = self.pd >= 0 and walk[self.pd] != 0, walk[self.qd] != 0
        form = {
            (True, True): None, (True, False): VectorForm.COLUMN, (False, True): VectorForm.ROW,
            (False, False): VectorForm.ONE,
        }[along_p, along_q]  # fmt: skip
        item = load.dtype.itemsize
        spread = form is VectorForm.COLUMN and walk[self.pd] != 1
        spans = spans_rows(self.body, program)
        scope = self._scope(walk, spans)
        rings = {Scope.ONCE: self.ring_once, Scope.UNIT: self.ring_unit, Scope.CHUNK: self.ring_in}
        raw = self.kb.buffer(rings[scope], Local.UB, size[0], f"p{k}")
        cast = load.dtype is not self.work
        value = self.kb.fixed(Local.UB, size[1], f"v{k}") if cast else raw
        step, value_step = (self.block, self.block) if spread else (item, self.work_item)
        return Param(program, load.dtype, form, scope, spans, raw.rows(step), value.rows(value_step))

    def _scope(self, walk: Sequence[int], spans: bool) -> Scope:
        """When an input that moves so must be loaded."""
        moving = {d for d, s in enumerate(walk) if s and self.shape[d] > 1}
        covered = {d for d in (self.pd, self.qd) if self._covers(d) or (spans and d == self.pd)}
        if moving <= covered:
            return Scope.ONCE
        outer = len(self.space.outer)
        streaming = set() if self.tiling.resident else set(range(outer, outer + len(self.space.row))) - covered
        return Scope.CHUNK if self.tiling.resident or moving & streaming else Scope.UNIT

    def _covers(self, dim: int) -> bool:
        """Whether every tile has all of a dimension."""
        if dim < 0:
            return True
        t = self.tiling
        if dim == self.qd:
            return t.q >= self.shape[dim]
        return t.mode in (RowMode.COLUMNS, RowMode.WHOLE) and t.p >= self.shape[dim]

    # Places -----------------------------------------------------------------------------------------------------------

    def _walk(self, operand: int, strides: Sequence[int], offset: int, chunk: Chunk) -> TileStrides:
        item = self.body.operands[operand].type.dtype.itemsize
        place: Number = offset * item
        for start, stride in zip(chunk.at, strides, strict=True):
            place = place + start * (stride * item)
        p_step = strides[self.pd] * item if self.pd >= 0 else item
        return TileStrides(self.kb.operand(operand, place), p_step, strides[self.qd] * item)

    def _tile(self, buffer: Buffer, item: int, chunk: Chunk) -> RowTile:
        whole = self.tiling.stride == self.tiling.q and chunk.m == self.tiling.q
        return RowTile(buffer.rows(self.tiling.stride * item), chunk.n, chunk.m, whole)

    def _lines(self, stack: ExitStack) -> Chunk:
        """Up to p neighbouring units along P."""
        kb, p = self.kb, self.tiling.p
        outer = self.space.outer
        at: list[Number] = [0] * len(self.shape)
        width = self.tiling.q if self.tiling.resident else self.shape[self.qd]
        if prod(outer[:-1]) == 1:
            first = stack.enter_context(kb.loop(kb.begin, kb.end, p))
            count: Number = 1 if p == 1 else kb.minimum(kb.end - first, p)
            if outer:
                at[self.pd] = first
            return Chunk(tuple(at), count, width)
        extent = outer[-1]
        lead = stack.enter_context(kb.loop(kb.begin // extent, (kb.end + (extent - 1)) // extent))
        start = lead * extent
        low, high = kb.maximum(kb.begin, start), kb.minimum(kb.end, start + extent)
        first = stack.enter_context(kb.loop(low, high, p))
        at[: len(outer) - 1] = coordinates(lead, outer[:-1])
        at[self.pd] = first - start
        return Chunk(tuple(at), 1 if p == 1 else kb.minimum(high - first, p), width)

    def _single(self, stack: ExitStack) -> Chunk:
        """One unit: all of the row, a block of the inner axis."""
        kb, t = self.kb, self.tiling
        at: list[Number] = [0] * len(self.shape)
        number: Number = stack.enter_context(kb.loop(kb.begin, kb.end))
        width: Number = self.shape[self.qd]
        if t.blocks > 1:
            at[self.qd] = (number % t.blocks) * t.q
            number = number // t.blocks
            width = t.q if t.inner % t.q == 0 else kb.minimum(t.inner - at[self.qd], t.q)
        at[: len(self.space.outer)] = coordinates(number, self.space.outer)
        return Chunk(tuple(at), self.shape[self.pd] if t.mode is not RowMode.POINTS else 1, width)

    @contextmanager
    def _chunks(self) -> Iterator[Chunk]:
        """The chunks of the unit's row."""
        assert self.unit is not None
        kb, t, unit = self.kb, self.tiling, self.unit
        at, n, m = list(unit.at), unit.n, unit.m
        with ExitStack() as stack:
            if t.mode is not RowMode.POINTS:
                first = len(self.space.outer)
                for d in range(first, first + len(self.space.row)):
                    if d in (self.pd, self.qd):
                        continue
                    at[d] = stack.enter_context(kb.loop(0, self.shape[d]))
                if t.mode in (RowMode.COLUMNS, RowMode.WHOLE):
                    at[self.pd], n = self._part(stack, self.pd, t.p)
                if t.mode in (RowMode.LINES, RowMode.WHOLE):
                    at[self.qd], m = self._part(stack, self.qd, t.q)
            yield Chunk(tuple(at), n, m)

    def _part(self, stack: ExitStack, dim: int, size: int) -> tuple[Number, Number]:
        """A loop over parts of a dimension: start and extent."""
        extent = self.shape[dim]
        start = stack.enter_context(self.kb.loop(0, extent, size))
        return start, size if extent % size == 0 else self.kb.minimum(extent - start, size)

    # Passes -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def units(self) -> Iterator[None]:
        """The units of the call's range, or tiles of them."""
        with ExitStack() as stack:
            t = self.tiling
            by_lines = t.mode is RowMode.LINES or (t.mode is RowMode.POINTS and t.blocks == 1)
            self.unit = self._lines(stack) if by_lines else self._single(stack)
            if self.tiling.resident and self.space.row_size:
                stack.enter_context(self.kb.turn(*self._rings))
                self._x = self._load(self.unit, results=True)
            yield
        self.unit = self._x = None

    @contextmanager
    def constants(self) -> Iterator[None]:
        """With the further inputs that are the same for all units."""
        with self.kb.turn(self.ring_once):
            whole = self.shape[self.pd] if self.pd >= 0 else 1
            self._load_params(Scope.ONCE, Chunk((0,) * len(self.shape), whole, self.shape[self.qd]))
            yield

    def _load_params(self, scope: Scope, chunk: Chunk) -> None:
        chosen = [p for p in self.params.values() if p.scope is scope]
        for param in chosen:
            self._load_param(param, chunk)
        for param in chosen:
            self._cast_param(param, chunk)

    def _load(self, chunk: Chunk, results: bool) -> RowTile:
        """The data of a chunk in the type of the work; where results follow, what else they need."""
        load, raw = self.space.data.inputs[0], None
        if self.before is not None:
            self.before.load(chunk.at, chunk.n, chunk.m)
        else:
            assert self.raw is not None
            raw = self._tile(self.raw, self.item, chunk)
            self.mover_in.load(raw, self._walk(load.source, load.strides, load.offset, chunk))
        moved = [p for p in self.params.values() if results and p.scope is Scope.CHUNK]
        for param in moved:
            self._load_param(param, chunk)
        if self.behind is not None and results:
            self.behind.load(chunk.at, *self._extents(chunk))
        for param in moved:
            self._cast_param(param, chunk)
        if self.before is not None:
            return self._evaluate(self.before, chunk)
        assert raw is not None
        assert self.x_buffer is not None
        if not self.casts:
            return raw
        x = self._tile(self.x_buffer, self.work_item, chunk)
        self.ops.cast(x, raw, self.dtype, self.work)
        return x

    def _evaluate(self, before: TileProgram, chunk: Chunk) -> RowTile:
        """The data that a program yields."""
        before.compute(chunk.n, chunk.m)
        before.store(chunk.at, chunk.n, chunk.m)
        q = self.tiling.q
        pitch = ceil_to(q * self.work_item, self.block)
        dense = pitch == q * self.work_item and chunk.m == q
        return RowTile(before.result(self._fed).rows(pitch), chunk.n, chunk.m, dense)

    def _extents(self, chunk: Chunk) -> tuple[Number, Number]:
        """Rows and columns of a chunk's results."""
        if not self.reduces:
            return chunk.n, chunk.m
        return 1, {RowMode.LINES: chunk.n, RowMode.COLUMNS: chunk.m}.get(self.tiling.mode, 1)

    def _load_param(self, param: Param, chunk: Chunk) -> None:
        load, item = param.program.inputs[0], param.dtype.itemsize
        walk = self._walk(load.source, load.strides, load.offset, chunk)
        mover = Mover(self.kb, item, None, 0)
        if param.form is None:
            mover.load(self._tile(param.raw.buffer, item, chunk), walk)
            return
        count = {VectorForm.ROW: chunk.m, VectorForm.COLUMN: chunk.n, VectorForm.ONE: 1}[param.form]
        if param.raw.pitch != item:
            mover.load(RowTile(param.raw, count, 1), walk)
            return
        step = walk.q_step if param.form is VectorForm.ROW else item
        mover.load(RowTile(param.raw.rows(0), 1, count), TileStrides(walk.address, 0, step))

    def _cast_param(self, param: Param, chunk: Chunk) -> None:
        if param.raw.buffer is param.value.buffer:
            return
        value = self._param_value(param, chunk)
        raw: RowTile | TileVector = self._tile(param.raw.buffer, param.dtype.itemsize, chunk)
        if isinstance(value, TileVector):
            raw = TileVector(param.raw, value.form, value.count)
        self.ops.cast(value, raw, param.dtype, self.work)

    def _param_value(self, param: Param, chunk: Chunk) -> RowTile | TileVector:
        if param.form is None:
            return self._tile(param.value.buffer, self.work_item, chunk)
        count = {VectorForm.ROW: chunk.m, VectorForm.COLUMN: chunk.n, VectorForm.ONE: 1}[param.form]
        return TileVector(param.value, param.form, count)

    def param(self, k: int, like: RowTile) -> RowTile | TileVector | None:
        """A further input for a tile, None if it is absent."""
        if k not in self.params:
            return None
        value = self._param_value(self.params[k], Chunk((), like.n, like.m))
        return self._of_chunk(k, value) if isinstance(value, TileVector) else value

    def whole_param(self, k: int) -> TileVector | None:
        """A further input for all of the unit; None where it is loaded with each chunk, or is a tile."""
        param = self.params.get(k)
        if param is None or self.unit is None or param.form is None:
            return None
        if param.scope is Scope.CHUNK and not self.tiling.resident:
            return None
        value = self._param_value(param, self.unit)
        return value if isinstance(value, TileVector) else None

    def spare_like(self, value: TileVector) -> TileVector:
        """Room for a vector of the shape of a further input."""
        assert self.spare is not None
        step = self.block if value.step >= self.block else self.work_item
        return TileVector(self.spare.rows(step), value.form, value.count)

    def spare_of(self, k: int, like: RowTile) -> TileVector:
        """The tile's part of a vector that was put there for all of the unit."""
        value = self.param(k, like)
        assert isinstance(value, TileVector)
        return self._of_chunk(k, self.spare_like(value))

    def _of_chunk(self, k: int, value: TileVector) -> TileVector:
        """A chunk's part of a vector that spans all of P."""
        if not self.params[k].spans or self.tiling.resident:
            return value
        return replace(value, part=value.part.at(self._chunk.at[self.pd] * value.step))

    def statistic(self, number: int) -> TileVector:
        """Room for one number per row of the unit."""
        assert self.unit is not None
        form, count = {
            RowMode.LINES: (VectorForm.COLUMN, self.unit.n), RowMode.COLUMNS: (VectorForm.ROW, self.unit.m),
        }.get(self.tiling.mode, (VectorForm.ONE, 1))  # fmt: skip
        return TileVector(self.stats[number].rows(self.work_item), form, count)

    def each(self, visit: Callable[[RowTile], None], results: bool = False) -> None:
        """Visit the data: the resident tile, or chunk after chunk."""
        if self._x is not None:
            visit(self._x)
            return
        with self._chunks() as chunk, self.kb.turn(*self._rings):
            self._chunk = chunk
            visit(self._load(chunk, results))

    def reduce(self, kind: str, dst: TileVector, prepare: Prepare, identity_bits: int, part: TileVector) -> None:
        """Combine what `prepare` makes of the data; `part` is room for a chunk's share."""
        if self._x is not None:
            self.ops.reduce(kind, dst, prepare(self._x))
            return
        self.ops.fill(dst, identity_bits)

        def visit(x: RowTile) -> None:
            self.ops.reduce(kind, part, prepare(x))
            self.ops.binary(COMBINE[kind], dst, dst, part)

        self.each(visit)

    def results(self, compute: Callable[[RowTile, RowTile], None], prepare: Callable[[], None] = lambda: None) -> None:
        """Store what `compute(dst, x)` makes of the data; dst may be x itself. `prepare`: once ahead of it, when the
        further inputs of the unit are there."""

        def visit(x: RowTile) -> None:
            chunk = self.unit if self._x is not None else self._chunk
            assert chunk is not None
            with self.kb.turn(self.ring_out):
                if self.behind is not None:
                    y = x if self.taken is None else self._tile(self.taken, self.work_item, chunk)
                    compute(y, x)
                    self.behind.compute(chunk.n, chunk.m)
                    self.behind.store(chunk.at, chunk.n, chunk.m)
                    return
                direct = len(self.outs) == 1 and self._out_dtype(0) is self.work
                y = self._tile(self.outs[0][0], self.work_item, chunk) if direct else x
                compute(y, x)
                self._store(y, chunk, direct)

        with ExitStack() as stack:
            if any(p.scope is Scope.UNIT for p in self.params.values()):
                assert self.unit is not None
                stack.enter_context(self.kb.turn(self.ring_unit))
                self._load_params(Scope.UNIT, self.unit)
            prepare()
            self.each(visit, results=True)

    def _out_dtype(self, k: int) -> DType:
        return engine_type(self.body.operands[self.space.epilogue.outputs[k].target].type.dtype)

    def _store(self, y: RowTile, chunk: Chunk, direct: bool) -> None:
        tiles = []
        for k, (buffer, _) in enumerate(self.outs):
            tile = self._tile(buffer, self._out_dtype(k).itemsize, chunk)
            if not direct:
                self._convert(tile, y, self._out_dtype(k))
            tiles.append(tile)
        for (_, mover), tile, out in zip(self.outs, tiles, self.space.epilogue.outputs, strict=True):
            mover.store(tile, self._walk(out.target, out.strides, out.offset, chunk))

    def _convert(self, dst: RowTile | TileVector, src: RowTile | TileVector, dtype: DType) -> None:
        """dst = src in the type of a result."""
        if dtype is self.work:
            self.ops.unary("v_copy", dst, src)
        else:
            self.ops.cast(dst, src, self.work, dtype)

    def emit_vector(self, value: TileVector) -> None:
        """Store one number per row of the unit."""
        assert self.unit is not None
        if self.behind is not None:
            assert value.part.buffer is self.stats[0]
            self._emit_through(self.behind, self.unit, value)
            return
        axis = {VectorForm.COLUMN: self.pd, VectorForm.ROW: self.qd, VectorForm.ONE: -1}[value.form]
        with self.kb.turn(self.ring_out):
            tiles = []
            for k, (buffer, _) in enumerate(self.outs):
                dtype = self._out_dtype(k)
                self._convert(TileVector(buffer.rows(dtype.itemsize), value.form, value.count), value, dtype)
                tiles.append(RowTile(buffer.rows(0), 1, value.count))
            for (_, mover), tile, out in zip(self.outs, tiles, self.space.epilogue.outputs, strict=True):
                walk = self._walk(out.target, out.strides, out.offset, self.unit)
                item = self.body.operands[out.target].type.dtype.itemsize
                step = out.strides[axis] * item if axis >= 0 else item
                mover.store(tile, TileStrides(walk.address, item, step))

    def _emit_through(self, behind: TileProgram, unit: Chunk, value: TileVector) -> None:
        """Store what a program makes of the results."""
        extents = self._extents(unit)
        with ExitStack() as stack:
            if self._x is None:
                stack.enter_context(self.kb.turn(self.ring_in))
                behind.load(unit.at, *extents)
            stack.enter_context(self.kb.turn(self.ring_out))
            if self.taken is not None:
                self.ops.unary("v_copy", value.of(self.taken), value)
            behind.compute(*extents)
            behind.store(unit.at, *extents)
