"""Tile code: a pointwise program as vector commands on one tile of rows x cols elements in UB.

Model: registers are tiles in UB, written once. A register has a layout: a value per element (MATRIX), per column
(ROW), per row (COLUMN), or one (SCALAR), so that what is broadcast is computed once and not once per element. `loads`
bring inputs into registers, `steps` are commands of the vector engine, `stores` take registers to global memory.
Elements that do not lie side by side in global memory arrive, or leave, TURNED (rows of the tile's columns) or SPREAD
(an element per block of UB) and are set right by transposing commands among the steps.

Everything here is independent of the tile's size; `temporaries`, `input_bytes`, ... say what a size costs. Lowering
is in `lowering`, the emitter of tile code in codegen/aicore/tileprogram.py.

Invariants: steps are in SSA order; a step's operands have its destination's layout or one that broadcasts to it; a
register that is stored or loaded is never overwritten.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.aicore import AicoreTarget

Count = TypeVar("Count")
COUNT_MAX = 65535  # rows and columns of a command
SPECIAL = frozenset({"v_exp", "v_ln", "v_sqrt", "v_rsqrt", "v_reciprocal", "v_div"})


class TileLayout(Enum):
    """How a tile's values lie in UB; rows start at multiples of the block."""

    SCALAR = "scalar"
    ROW = "row"
    COLUMN = "column"
    MATRIX = "matrix"
    TURNED = "turned"
    SPREAD_ROW = "spread row"
    SPREAD_COLUMN = "spread column"
    SPREAD = "spread"

    def join(self, other: TileLayout) -> TileLayout:
        """The layout of what is computed from both."""
        if self is other or other is TileLayout.SCALAR:
            return self
        return other if self is TileLayout.SCALAR else TileLayout.MATRIX

    def extents(self, rows: Count, cols: Count) -> tuple[Count | int, Count | int, Count | int]:
        """Of a tile: pieces, lines of each, elements of a line."""
        match self:
            case TileLayout.MATRIX:
                return 1, rows, cols
            case TileLayout.TURNED:
                return 1, cols, rows
            case TileLayout.ROW:
                return 1, 1, cols
            case TileLayout.COLUMN:
                return 1, 1, rows
            case TileLayout.SPREAD_ROW:
                return 1, cols, 1
            case TileLayout.SPREAD_COLUMN:
                return 1, rows, 1
            case TileLayout.SPREAD:
                return rows, cols, 1
            case TileLayout.SCALAR:
                return 1, 1, 1


class Home(Enum):
    """Whose memory a register is in."""

    INPUT = "input"
    TEMPORARY = "temporary"
    OUTPUT = "output"
    ANCHOR = "anchor"  # the caller's tile


@dataclass(frozen=True)
class Register:
    """`dtype` is an element type of the engines. `number`: of the input, the output, or the anchor's result."""

    layout: TileLayout
    dtype: DType
    home: Home
    number: int = -1


@dataclass(frozen=True)
class TileCommand:
    """A vector command. `operands`: name of the command's operand -> register; `params`: its further operands."""

    command: str
    types: tuple[DType, ...]
    dst: int
    operands: tuple[tuple[str, int], ...]
    params: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True)
class TileLoad:
    """An input of the program to a register. Strides are in elements of the register's type, `scale` of which make an
    element of the operand; `shift` is the first of them that is read (the halves of 64-bit integers)."""

    input: int
    register: int
    row_stride: int
    col_stride: int
    scale: int = 1
    shift: int = 0


@dataclass(frozen=True)
class TileStore:
    """A register to an output of the program; `layout`: of what is written (a ROW may be stored to all rows)."""

    output: int
    register: int
    layout: TileLayout
    row_stride: int
    col_stride: int


@dataclass(frozen=True)
class TileSize:
    """Rows and columns of the largest tile, and the block of UB."""

    rows: int
    cols: int
    block_bytes: int

    def pitch(self, register: Register) -> int:
        """Bytes from row to row of a register."""
        return ceil_to(register.layout.extents(self.rows, self.cols)[2] * register.dtype.itemsize, self.block_bytes)

    def nbytes(self, register: Register) -> int:
        """Bytes of a register."""
        pieces, lines, _ = register.layout.extents(self.rows, self.cols)
        return pieces * lines * self.pitch(register)


@dataclass(frozen=True)
class TileCode:
    """See the module docstring. `results`: the registers of outputs that feed the anchor, by output."""

    registers: tuple[Register, ...]
    loads: tuple[TileLoad, ...]
    steps: tuple[TileCommand, ...]
    stores: tuple[TileStore, ...]
    results: tuple[tuple[int, int], ...]

    @cached_property
    def last_use(self) -> Mapping[int, int]:
        """The last step that reads each register; results and stored ones are read behind all steps."""
        last = {r: k for k, step in enumerate(self.steps) for _, r in step.operands}
        last.update({s.register: len(self.steps) for s in self.stores})
        last.update({r: len(self.steps) for _, r in self.results})
        return last

    def of_home(self, home: Home) -> tuple[int, ...]:
        """The registers of a home, in order."""
        return tuple(r for r, register in enumerate(self.registers) if register.home is home)

    def home_bytes(self, home: Home, size: TileSize, among: Iterable[int] | None = None) -> int:
        """Bytes of one slot of the registers of a home."""
        chosen = self.of_home(home) if among is None else among
        return sum(size.nbytes(self.registers[r]) for r in chosen if self.registers[r].home is home)

    def temporaries(self, size: TileSize) -> tuple[dict[int, int], int]:
        """Where each temporary lies, and the bytes of all: registers whose lives do not meet share memory, and a
        command may write over an operand that dies in it if the two are alike."""
        places: dict[int, int] = {}
        living: dict[int, tuple[int, int]] = {}  # register -> [begin, end)
        peak = 0
        for k, step in enumerate(self.steps):
            if self.registers[step.dst].home is not Home.TEMPORARY:
                continue
            dying = [r for _, r in step.operands if r in living and self.last_use.get(r) == k]
            heir = next((r for r in dying if self._may_replace(step, r)), None)
            if heir is not None:
                begin, end = living.pop(heir)
            else:
                begin = _first_gap(living.values(), size.nbytes(self.registers[step.dst]))
                end = begin + size.nbytes(self.registers[step.dst])
            for r in [r for r in living if self.last_use.get(r, -1) <= k]:
                del living[r]
            places[step.dst] = begin
            living[step.dst] = (begin, end)
            peak = max(peak, end)
        return places, peak

    def _may_replace(self, step: TileCommand, operand: int) -> bool:
        """Whether the destination may be the operand's own bytes."""
        mine, its = self.registers[step.dst], self.registers[operand]
        if step.command in ("v_cmp", "v_cmps", "v_transpose", "v_broadcast", "v_gather"):
            return False
        return mine.layout is its.layout and mine.dtype.itemsize == its.dtype.itemsize

    def vector_cycles(self, rows: int, cols: int, target: AicoreTarget) -> int:
        """Cycles of the vector engine for one tile."""
        return sum(self._step_cycles(step, rows, cols, target) for step in self.steps)

    def _step_cycles(self, step: TileCommand, rows: int, cols: int, target: AicoreTarget) -> int:
        v = target.vector
        lanes = v.lanes_32bit if max(t.itemsize for t in step.types) == 4 else v.lanes_16bit
        if step.command == "v_transpose":
            count, m, n = self.transposition(step, rows, cols)
            return count * (v.startup_cycles + -(-m // 16) * -(-n // 16) * -(-256 // lanes))
        layout = self.registers[step.dst].layout
        whole = layout in (TileLayout.MATRIX, TileLayout.ROW, TileLayout.COLUMN)
        _, m, n = layout.extents(rows, cols) if whole else (1, 1, 1)
        if self.is_packed(step, TileSize(rows, cols, target.memory.block_bytes)):
            m, n = 1, rows * cols
        return v.startup_cycles + m * -(-n // (v.lanes_special if step.command in SPECIAL else lanes))

    def is_packed(self, step: TileCommand, size: TileSize) -> bool:
        """Whether a step on whole rows of the largest tile may take all rows as one long row: no register has bytes
        between its rows, none is broadcast."""
        registers = [self.registers[r] for r in (step.dst, *(r for _, r in step.operands))]
        return (
            size.rows * size.cols <= COUNT_MAX
            and step.command not in ("v_transpose", "v_broadcast", "v_iota", "v_gather")
            and all(r.layout is TileLayout.MATRIX and size.pitch(r) == size.cols * r.dtype.itemsize for r in registers)
        )

    def transposition(
        self, step: TileCommand, rows: Count, cols: Count
    ) -> tuple[Count | int, Count | int, Count | int]:
        """How many commands a transposing step is, and the rows and columns that each reads."""
        source, result = (self.registers[r].layout for r in (step.operands[0][1], step.dst))
        return (rows, 1, cols) if result is TileLayout.SPREAD else source.extents(rows, cols)

    def move_cycles(
        self,
        moves: Iterable[TileLoad] | Iterable[TileStore],
        rows: int,
        cols: int,
        target: AicoreTarget,
        unaligned: Container[int] = (),
    ) -> int:
        """Cycles of MTE2 for some loads of one tile, or of MTE3 for some stores; `unaligned`: inputs or outputs that
        transfers do not find at full alignment. Rows that lie one behind the other, there and in UB, are one run."""
        total = 0
        for move in moves:
            register = self.registers[move.register]
            if isinstance(move, TileStore):
                path, layout, number = "rates.ub_to_gm_gb_per_s", move.layout, move.output
            else:
                path, layout, number = "rates.gm_to_ub_gb_per_s", register.layout, move.input
            item, whole = register.dtype.itemsize, cols * register.dtype.itemsize % target.memory.block_bytes == 0
            is_run = layout is TileLayout.MATRIX and move.row_stride == cols and whole
            pieces, lines, elements = layout.extents(*((1, rows * cols) if is_run else (rows, cols)))
            total += pieces * target.move_cycles(path, lines, elements * item, 1 if number in unaligned else 0)
        return total


def _first_gap(taken: Iterable[tuple[int, int]], nbytes: int) -> int:
    """The lowest place for so many bytes."""
    place = 0
    for begin, end in sorted(taken):
        if place + nbytes <= begin:
            break
        place = max(place, end)
    return place
