"""Tiles and vectors of a row kernel in UB, and the vector commands on them.

Model: a `RowTile` is n rows of m numbers, rows `stride` bytes apart. A `TileVector` goes with a tile: one number per
column (ROW), per row (COLUMN) or one in all (ONE). `Ops` issues commands on them in the type of the work (f32 for
floats). Reductions over tile rows take one tree per row (`v_sum`), or fold the columns to 64, turn the tile and reduce
its columns: cheaper for short rows, where the tree's tail is most of the work.

Invariant: the order in which the numbers of a row are combined depends on the shape of the tile alone, not on the
row's place in it nor on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, cast

from superkernel.codegen.aicore.commands import OperandValue
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore.row_buffers import FOLD_COLUMNS

COMBINE = {"sum": "v_add", "max": "v_max", "min": "v_min", "prod": "v_mul"}
BLOCK_BYTES_MIN = 8  # `memory.block_bytes` is no less, and no number wider than half of it
REDUCE = {"sum": "v_sum", "max": "v_reduce_max", "min": "v_reduce_min"}


class VectorForm(Enum):
    """How a vector goes with a tile."""

    ROW = "row"
    COLUMN = "column"
    ONE = "one"


@dataclass(frozen=True, eq=False)
class RowTile:
    """`part` says the rows' distance; `dense`: they follow one another without a gap, so that commands may take them as
    one row."""

    part: Part
    n: Number
    m: Number
    dense: bool = False

    @property
    def stride(self) -> int:
        """Bytes from row to row."""
        return cast("int", self.part.pitch)

    def columns(self, first: int, count: int, item: int) -> RowTile:
        """Some columns; `first` x `item` must be a multiple of a block."""
        return RowTile(self.part.at(first * item), self.n, count)

    def rows(self, first: int, count: int) -> RowTile:
        """Some rows."""
        return replace(self, part=self.part.at(first * self.stride), n=count)

    def of(self, buffer: Buffer) -> RowTile:
        """A tile of the same shape elsewhere."""
        return replace(self, part=buffer.rows(self.stride))


@dataclass(frozen=True, eq=False)
class TileVector:
    """`part` says the distance from number to number; a ROW's follow one another."""

    part: Part
    form: VectorForm
    count: Number

    @property
    def step(self) -> int:
        """Bytes from number to number."""
        return cast("int", self.part.pitch)

    @property
    def tile(self) -> RowTile:
        """A number per row, or all in one row where they follow one another."""
        return RowTile(self.part, self.count, 1, self.step < BLOCK_BYTES_MIN)

    def of(self, buffer: Buffer) -> TileVector:
        """A vector of the same shape elsewhere, its numbers as far apart."""
        return replace(self, part=buffer.rows(self.step))


Elements: TypeAlias = RowTile | TileVector


class Ops:
    """Commands in one element type. `scratch`: a temporary tile, then FOLD_COLUMNS turned rows where rows are folded;
    `turned_at`: where those begin."""

    def __init__(self, kb: KernelBuilder, dtype: DType, scratch: Buffer | None, turned_at: int, fold: bool) -> None:
        self.kb, self.dtype, self.scratch, self.turned_at, self.fold = kb, dtype, scratch, turned_at, fold

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def block(self) -> int:
        """Bytes that local addresses are multiples of."""
        return self.kb.target.memory.block_bytes

    def temporary(self, like: RowTile) -> RowTile:
        """The temporary tile."""
        assert self.scratch is not None
        return like.of(self.scratch)

    # Element by element -----------------------------------------------------------------------------------------------

    def unary(self, name: str, dst: Elements, src: Elements, **extra: int) -> None:
        """dst = f(src)."""
        self._issue(name, (self.dtype,), dst, extra, src=src)

    def cast(self, dst: Elements, src: Elements, source: DType, target: DType) -> None:
        """dst = src in another type."""
        self._issue("v_cast", (source, target), dst, {}, src=src)

    def binary(self, name: str, dst: Elements, a: Elements, b: Elements) -> None:
        """dst = a op b; a vector is repeated over a tile."""
        if isinstance(a, TileVector) or isinstance(b, RowTile):
            self._issue(name, (self.dtype,), dst, {}, a=a, b=b)
            return
        assert isinstance(dst, RowTile)
        form = "matrix" if b.form is VectorForm.ROW else "column"
        spread = b.part if b.form is VectorForm.COLUMN else b.part.rows(0)
        self.kb.issue(name, self.dtype, dst=dst.part, a=a.part, b=spread, b_form=form, rows=a.n, cols=a.m)

    def scaled(self, dst: TileVector, src: TileVector, factor: TileVector) -> None:
        """dst = src * factor, one number."""
        self._issue("v_mul", (self.dtype,), dst, {"b": factor.part.rows(0), "b_form": "column"}, a=src)

    def _issue(
        self, name: str, types: tuple[DType, ...], dst: Elements, extra: Mapping[str, OperandValue], **sources: Elements
    ) -> None:
        """A command on places of one shape: on one row where all of them are dense."""
        tiles = {key: t.tile if isinstance(t, TileVector) else t for key, t in {**sources, "dst": dst}.items()}
        first = next(iter(tiles.values()))
        if all(t.dense for t in tiles.values()):
            parts = {key: t.part.flat for key, t in tiles.items()}
            self.kb.issue(name, *types, rows=1, cols=first.n * first.m, **parts, **extra)
        else:
            parts = {key: t.part for key, t in tiles.items()}
            self.kb.issue(name, *types, rows=first.n, cols=first.m, **parts, **extra)

    def fill(self, dst: Elements, bits: int) -> None:
        """Every element, gaps aside, from the bits of a number."""
        if isinstance(dst, TileVector):
            self.kb.issue("v_duplicate", self.dtype, dst=dst.part.flat, rows=1, cols=dst.count, value=bits)
        else:
            self.kb.issue("v_duplicate", self.dtype, dst=dst.part, rows=dst.n, cols=dst.m, value=bits)

    # Reductions -------------------------------------------------------------------------------------------------------

    def reduce(self, kind: str, dst: TileVector, src: RowTile) -> None:
        """One number per what `dst` has numbers for. May destroy `src` where it is the temporary tile; a product
        always does."""
        if kind == "prod":
            self._product(dst, src)
        elif dst.form is VectorForm.COLUMN and self.fold:
            folded = self._folded(kind, src)
            turned = self._turned(folded)
            self._reduce(kind, dst, turned, "column")
        else:
            scope = {VectorForm.COLUMN: "row", VectorForm.ROW: "column", VectorForm.ONE: "whole"}[dst.form]
            self._reduce(kind, dst, src, scope)

    def _reduce(self, kind: str, dst: TileVector, src: RowTile, scope: str) -> None:
        self.kb.issue(REDUCE[kind], self.dtype, dst=dst.part, src=src.part, rows=src.n, cols=src.m, scope=scope)

    def _folded(self, kind: str, src: RowTile) -> RowTile:
        """At most FOLD_COLUMNS columns whose combination is that of all; in the temporary tile."""
        assert isinstance(src.m, int)
        assert self.scratch is not None
        width, current = src.m, src
        while width > FOLD_COLUMNS:
            half = -(-width // (2 * FOLD_COLUMNS)) * FOLD_COLUMNS
            rest = width - half
            into = current if current.part.buffer is self.scratch else self.temporary(current)
            low, high = current.columns(0, rest, self.item), current.columns(half, rest, self.item)
            if into is not current and rest < half:
                kept = rest * self.item // self.block * self.block // self.item  # from the block that rest is in
                count = half - kept
                self.unary("v_copy", into.columns(kept, count, self.item), current.columns(kept, count, self.item))
            self.binary(COMBINE[kind], into.columns(0, rest, self.item), low, high)
            current, width = into.columns(0, half, self.item), half
        return current

    def _turned(self, src: RowTile, p: int = 0) -> RowTile:
        """Rows as columns, behind the temporary tile."""
        assert isinstance(src.m, int)
        assert self.scratch is not None
        p16 = p or (self.scratch.nbytes - self.turned_at) // (FOLD_COLUMNS * self.item)
        turned = RowTile(self.scratch.at(self.turned_at).rows(p16 * self.item), src.m, src.n)
        self.kb.issue("v_transpose", self.dtype, dst=turned.part, src=src.part, rows=src.n, cols=src.m)
        return turned

    def _product(self, dst: TileVector, src: RowTile) -> None:
        """There is no command: halves are multiplied until one row of them is left."""
        if dst.form is not VectorForm.ROW:
            if dst.form is VectorForm.ONE:
                src = self._one_row("v_mul", src)
            src = self._turned(self._halved_columns(src))
        current = self._one_row("v_mul", src)
        self.kb.issue("v_copy", self.dtype, dst=dst.part.rows(0), src=current.part.rows(0), rows=1, cols=dst.count)

    def _halved_columns(self, src: RowTile) -> RowTile:
        """In place: columns multiplied until FOLD_COLUMNS or fewer are left."""
        assert isinstance(src.m, int)
        while src.m > FOLD_COLUMNS:
            half = -(-src.m // (2 * FOLD_COLUMNS)) * FOLD_COLUMNS
            rest = src.m - half
            low = src.columns(0, rest, self.item)
            self.binary("v_mul", low, low, src.columns(half, rest, self.item))
            src = src.columns(0, half, self.item)
            assert isinstance(src.m, int)
        return src

    def _one_row(self, name: str, src: RowTile) -> RowTile:
        """In place: rows combined until one is left."""
        assert isinstance(src.n, int)
        while src.n > 1:
            half = (src.n + 1) // 2
            low = src.rows(0, src.n - half)
            self.binary(name, low, low, src.rows(half, src.n - half))
            src = src.rows(0, half)
            assert isinstance(src.n, int)
        return src
