"""How a pointwise program without an anchor is cut into tiles on vector cores.

Model: of the program's dimensions one is the tile's columns, another one its rows (or none: tiles of one row); the rest
are outer. A range of units is walked along the *running* dimension (the rows; without them the columns) in tiles of at
most `tile`; a `unit` is the grain of ranges along it. With rows, columns come in blocks of `block`. Units are numbered
outer dimensions first, then blocks, then the running dimension, so that neighbours join into one tile.

`cut_program` tries the dimensions and sizes. Of those whose longest range is about as short as any, by the target's
figures, it takes the one with least work in all.
Nothing depends on how many cores there are in the end: a tile's elements are computed the same in whichever tile.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Box
from superkernel.ir.body import Body, PointwiseProgram, ProgramInput, ProgramOutput
from superkernel.ir.collapse import runs_of_range, walked
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.rounding import ceil_to, largest
from superkernel.scheduler.families.aicore.tilecode import COUNT_MAX, Home, TileCode, TileLayout, TileSize
from superkernel.target.aicore import AicoreTarget

SLOTS = 2
GRAIN_ELEMENTS = 256  # 512 bytes of f16: the transfers of ranges begin on full alignment
GRAIN_ROWS = 16  # of transposed tiles: whole blocks of the transposing command
UNITS_PER_CORE = 64
NEAR = 1.1  # as quick as the quickest cut: fewer cores, which have less to agree on, do it as well
BLOCKS = (4096, 1024, 512, 256, 128, 64)


@dataclass(frozen=True)
class Cut:
    """See the module docstring. `row` -1: tiles of one row. `resident`: inputs that stay in UB."""

    shape: tuple[int, ...]
    row: int
    col: int
    unit: int
    tile: int
    block: int
    resident: tuple[int, ...] = ()
    staged: bool = False

    @property
    def extent(self) -> int:
        """Of the running dimension."""
        return self.shape[self.row] if self.row >= 0 else self.shape[self.col]

    @property
    def runs(self) -> int:
        """Units along the running dimension."""
        return -(-self.extent // self.unit)

    @property
    def blocks(self) -> int:
        """Blocks along the columns."""
        return -(-self.shape[self.col] // self.block) if self.row >= 0 else 1

    @property
    def outer(self) -> tuple[int, ...]:
        """The dimensions that tiles do not have."""
        return tuple(d for d in range(len(self.shape)) if d not in (self.row, self.col))

    @property
    def groups(self) -> int:
        """How often the running dimension is walked."""
        return prod(self.shape[d] for d in self.outer) * self.blocks

    @property
    def units(self) -> int:
        """Work units; 0 where there are no elements."""
        return 0 if 0 in self.shape else self.groups * self.runs

    def size(self, target: AicoreTarget) -> TileSize:
        """The largest tile."""
        rows, cols = (self.tile, self.block) if self.row >= 0 else (1, self.tile)
        return TileSize(rows, cols, target.memory.block_bytes)

    def boxes(self, begin: int, end: int) -> list[Box]:
        """The coordinates of units [begin, end)."""
        found: list[Box] = []
        for *outer, blocks, runs in runs_of_range(
            (*(self.shape[d] for d in self.outer), self.blocks, self.runs), begin, end
        ):
            spans = dict(zip(self.outer, outer, strict=True))
            along = (runs[0] * self.unit, min(runs[1] * self.unit, self.extent))
            if self.row >= 0:
                spans[self.row] = along
                spans[self.col] = (blocks[0] * self.block, min(blocks[1] * self.block, self.shape[self.col]))
            else:
                spans[self.col] = along
            found.append(tuple(spans[d] for d in range(len(self.shape))))
        return found

    def cycles(
        self,
        program: PointwiseProgram,
        code: TileCode,
        begin: int,
        end: int,
        target: AicoreTarget,
        but: Container[int] = (),
        extra: Callable[[int], tuple[int, int, int]] | None = None,
    ) -> float:
        """Estimated cycles of one core: the slowest engine's time, and the others' for one tile. `but`: inputs and
        outputs that the kernel moves itself, in the cycles that `extra` says of a tile (MTE2, V, MTE3)."""
        slowest = rest = 0.0
        dtypes = [program.dtype_of(o.value) for o in program.outputs]
        poor_in = {k for k, i in enumerate(program.inputs) if not self._is_aligned(i, i.dtype.itemsize, target)}
        poor_out = {k for k, o in enumerate(program.outputs) if not self._is_aligned(o, dtypes[k].itemsize, target)}
        for count, rows, cols in self._tiles(begin, end):
            loads = [x for x in code.loads if x.input not in self.resident and x.input not in but]
            stores = [x for x in code.stores if x.output not in but]
            busy = (
                code.move_cycles(loads, rows, cols, target, poor_in), code.vector_cycles(rows, cols, target),
                code.move_cycles(stores, rows, cols, target, poor_out),
            )  # fmt: skip
            if extra is not None:
                busy = (busy[0] + extra(rows)[0], busy[1] + extra(rows)[1], busy[2] + extra(rows)[2])
            slowest += count * max(busy)
            rest = max(rest, sum(busy) - max(busy))
        stays = [x for x in code.loads if x.input in self.resident]
        return slowest + rest + code.move_cycles(stays, 1, min(self.block, COUNT_MAX), target)

    def _is_aligned(self, walk: ProgramInput | ProgramOutput, item: int, target: AicoreTarget) -> bool:
        """Whether all tiles begin, and all their lines, on full alignment in global memory."""
        if not walk.strides:
            return True
        running = self.row if self.row >= 0 else self.col
        steps = [walk.offset, *(walk.strides[d] for d in self.outer if self.shape[d] > 1)]
        if self.extent > self.tile:
            steps.append(walk.strides[running] * self.tile)
        if self.blocks > 1:
            steps.append(walk.strides[self.col] * self.block)
        if self.row >= 0:
            row, col = walk.strides[self.row], walk.strides[self.col]
            steps.append(row if col in (0, 1) else col)
        return all(step * item % target.dma.aligned_bytes == 0 for step in steps)

    def _tiles(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(how many, rows, columns) of the tiles of a range, blocks at the edge taken as whole."""
        first, last = begin // self.runs, -(-end // self.runs)
        cols = min(self.block, self.shape[self.col])
        for group_begin, group_end, times in _groups(begin, end, first, last, self.runs):
            length = min(group_end * self.unit, self.extent) - group_begin * self.unit
            for count, size in ((length // self.tile, self.tile), (1, length % self.tile)):
                if count and size:
                    yield count * times, *((size, cols) if self.row >= 0 else (1, size))


def _groups(begin: int, end: int, first: int, last: int, runs: int) -> Iterator[tuple[int, int, int]]:
    """(first run, end, how often) of what a range takes of each group."""
    if last - first <= 1:
        if begin < end:
            yield begin - first * runs, end - first * runs, 1
        return
    yield begin - first * runs, runs, 1
    if last - first > 2:
        yield 0, runs, last - first - 2
    yield 0, end - (last - 1) * runs, 1


def plain(program: PointwiseProgram) -> PointwiseProgram:
    """The program with at least one dimension."""
    return program if program.shape else walked(program, (1,), lambda strides: (0,))


def output_types(body: Body, program: PointwiseProgram) -> tuple[DType, ...]:
    """The element type of each output's operand."""
    return tuple(
        body.operands[o.target].type.dtype if o.target >= 0 else program.dtype_of(o.value) for o in program.outputs
    )


def program_bytes(body: Body, program: PointwiseProgram) -> tuple[int, int]:
    """What a program reads and writes in global memory, each element of a walk once."""

    def moved(operand: int, strides: Sequence[int]) -> int:
        elements = prod(n for n, s in zip(program.shape, strides, strict=True) if s)
        return elements * body.operands[operand].type.dtype.itemsize

    read = sum(moved(i.source, i.strides) for i in program.inputs if i.source >= 0)
    return read, sum(moved(o.target, o.strides) for o in program.outputs if o.target >= 0)


def code_of(cut: Cut, program: PointwiseProgram, dtypes: Sequence[DType]) -> TileCode:
    """The tile code of a program that is cut so."""
    return lower(program, dtypes, cut.row, cut.col, staged=cut.staged)


@dataclass(frozen=True)
class Terms:
    """What a cut must keep to. `ub_bytes`: of UB, 0: all; `pooled`: nothing stays in UB from tile to tile, because
    other programs use the same memory; `staged`: as in `lower`; `copies`: no vector commands; `rows`, `cols`:
    dimensions to choose from (None: any); `unit`: the grain of ranges (0: any)."""

    ub_bytes: int = 0
    pooled: bool = False
    staged: bool = False
    copies: bool = False
    rows: tuple[int, ...] | None = None
    cols: tuple[int, ...] | None = None
    unit: int = 0


FREE = Terms()


@lru_cache(maxsize=4096)
def cut_program(program: PointwiseProgram, dtypes: tuple[DType, ...], target: AicoreTarget, terms: Terms = FREE) -> Cut:
    """The quickest cut of a canonical program (with `plain`). Raises UnsupportedError where the vector engine does not
    compute it, or where UB is too small."""
    rank = len(program.shape)
    if 0 in program.shape:
        return Cut(program.shape, -1, rank - 1, 1, 1, 1)
    walks = [i.strides for i in program.inputs] + [o.strides for o in program.outputs]
    columns = terms.cols or [d for d in range(rank) if d == rank - 1 or any(w[d] == 1 for w in walks)]
    lines = terms.rows or (-1, *range(rank))
    found: list[tuple[float, float, Cut]] = []
    failure: UnsupportedError | None = None
    for col in columns:
        for row in (d for d in lines if d != col):
            try:
                code = lower(program, dtypes, row, col, staged=terms.staged)
            except UnsupportedError as error:
                failure = failure or error
                continue
            if terms.copies and code.steps:
                continue
            for cut in _sizes(program, code, row, col, target, terms):
                share = -(-cut.units // target.device.vector_cores)
                cycles = cut.cycles(program, code, 0, share, target)
                found.append((cycles, cycles * cut.units / share, cut))
    if not found:
        raise failure or UnsupportedError(
            "no tile of the program fits", location="memory.ub_bytes", found=target.memory.ub_bytes
        )
    least = min(cycles for cycles, _, _ in found)
    quick = [(work, cut) for cycles, work, cut in found if cycles <= NEAR * least]
    return min(quick, key=lambda pair: pair[0])[1]


def _sizes(
    program: PointwiseProgram, code: TileCode, row: int, col: int, target: AicoreTarget, terms: Terms
) -> Iterator[Cut]:
    """Cuts along these dimensions: the largest tile that fits, and smaller ones."""
    shape, width = program.shape, program.shape[col]
    turned = any(
        r.layout not in (TileLayout.ROW, TileLayout.MATRIX, TileLayout.SCALAR, TileLayout.COLUMN)
        for r in code.registers
    )
    extent = shape[row] if row >= 0 else width
    grain = (GRAIN_ROWS if turned else 1) if row >= 0 else GRAIN_ELEMENTS
    for block in [b for b in (width, *BLOCKS) if b <= min(width, COUNT_MAX)] if row >= 0 else [1]:
        cut = Cut(shape, row, col, grain, 1, block, staged=terms.staged)
        others = cut.groups * extent
        unit = grain * max(1, others // (grain * UNITS_PER_CORE * target.device.vector_cores))
        stays = () if terms.pooled else _resident(program, code, cut)
        cut = replace(cut, unit=terms.unit or min(unit, extent), resident=stays)
        most = _largest(cut, code, target, terms.ub_bytes or target.memory.ub_bytes)
        tile = even_tile(extent, most, max(grain, GRAIN_ROWS))
        while tile >= min(cut.unit, most) and tile:
            yield replace(cut, tile=tile)
            tile = tile // 2 // grain * grain


def even_tile(extent: int, most: int, grain: int) -> int:
    """The least tile that covers the extent in as few pieces as the largest one does."""
    if not most:
        return 0
    return min(most, ceil_to(-(-extent // -(-extent // most)), grain)) if most >= grain else most


def _resident(program: PointwiseProgram, code: TileCode, cut: Cut) -> tuple[int, ...]:
    """Inputs that are the same for every tile."""
    running = cut.row if cut.row >= 0 else cut.col
    moving = {d for d in (*cut.outer, running, *([cut.col] * (cut.blocks > 1))) if cut.shape[d] > 1}
    stored = {s.register for s in code.stores}
    return tuple(
        sorted({
            x.input for x in code.loads
            if x.register not in stored and all(program.inputs[x.input].strides[d] == 0 for d in moving)
        })
    )  # fmt: skip


def _largest(cut: Cut, code: TileCode, target: AicoreTarget, limit_bytes: int) -> int:
    """The largest tile that fits in UB with two slots, a multiple of the unit's grain where it does not cover all;
    0: none."""
    most = largest(
        min(cut.extent, COUNT_MAX), lambda tile: ub_bytes(replace(cut, tile=tile), code, target) <= limit_bytes
    )
    if most < cut.extent:
        for grain in (cut.unit, GRAIN_ELEMENTS if cut.row < 0 else GRAIN_ROWS):
            if most >= grain:
                return most // grain * grain
    return most


def ub_bytes(cut: Cut, code: TileCode, target: AicoreTarget) -> int:
    """Bytes of UB for the largest tile."""
    size = cut.size(target)
    inputs = code.of_home(Home.INPUT)
    stays = [r for r in inputs if code.registers[r].number in cut.resident]
    turning = [r for r in (*inputs, *code.of_home(Home.OUTPUT)) if r not in stays]
    temporaries = code.temporaries(size)[1]
    return (
        SLOTS * sum(size.nbytes(code.registers[r]) for r in turning)
        + temporaries
        + sum(size.nbytes(code.registers[r]) for r in stays)
    )
