"""Tiles and vectors of a row kernel in UB, and the vector commands on them.

Model: a `RowTile` is n rows of m numbers, rows `stride` bytes apart. A `TileVector` goes with a tile: one number per
column (ROW), per row (COLUMN) or one in all (ONE). `Ops` issues commands on them in the type of the work (f32 for
floats). Reductions over tile rows take one tree per row (`v_sum`), or fold the columns to 64, turn the tile and reduce
its columns: cheaper for short rows, where the tree's tail is most of the work.

Invariant: the order in which the numbers of a row are combined depends on the shape of the tile alone, not on the
row's place in it nor on how many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

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
    """`dense`: rows follow one another without a gap, so that commands may take them as one row."""

    part: Part
    stride: int
    n: Number
    m: Number
    dense: bool

    def columns(self, first: int, count: int, item: int) -> RowTile:
        """Some columns; `first` x `item` must be a multiple of a block."""
        return RowTile(self.part.at(first * item), self.stride, self.n, count, False)

    def rows(self, first: int, count: int) -> RowTile:
        """Some rows."""
        return replace(self, part=self.part.at(first * self.stride), n=count)

    def of(self, part: Part | Buffer) -> RowTile:
        """A tile of the same shape elsewhere."""
        return replace(self, part=part.at(0))


@dataclass(frozen=True, eq=False)
class TileVector:
    """`step`: bytes from number to number; a ROW's follow one another."""

    part: Part
    form: VectorForm
    count: Number
    step: int

    def of(self, part: Part | Buffer) -> TileVector:
        """A vector of the same shape elsewhere, its numbers as far apart."""
        return replace(self, part=part.at(0))


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

    # Tiles ------------------------------------------------------------------------------------------------------------

    def unary(self, name: str, dst: RowTile, src: RowTile, **extra: float | int) -> None:
        """dst = f(src)."""
        self._flat(name, (self.dtype,), dst, {"src": src}, extra)

    def cast(self, dst: RowTile, src: RowTile, source: DType, target: DType) -> None:
        """dst = src in another type."""
        self._flat("v_cast", (source, target), dst, {"src": src}, {})

    def binary(self, name: str, dst: RowTile, a: RowTile, b: RowTile | TileVector) -> None:
        """dst = a op b; a vector is repeated over the tile."""
        if isinstance(b, RowTile):
            self._flat(name, (self.dtype,), dst, {"a": a, "b": b}, {})
            return
        column = b.form is not VectorForm.ROW
        form: dict[str, Any] = (
            {"b_form": "column", "b_stride": b.step if b.form is VectorForm.COLUMN else 0} if column else {}
        )
        self.kb.issue(
            name, types=(self.dtype,), dst=dst.part, a=a.part, b=b.part, rows=a.n, cols=a.m, dst_stride=dst.stride,
            a_stride=a.stride, **form,
        )  # fmt: skip

    def _flat(
        self,
        name: str,
        types: tuple[DType, ...],
        dst: RowTile,
        sources: dict[str, RowTile],
        extra: dict[str, float | int],
    ) -> None:
        tiles = [dst, *sources.values()]
        parts: dict[str, Any] = {**extra, **{key: tile.part for key, tile in sources.items()}}
        first = next(iter(sources.values()))
        if all(t.dense for t in tiles):
            self.kb.issue(name, types=types, dst=dst.part, rows=1, cols=first.n * first.m, **parts)
            return
        strides: dict[str, Any] = {f"{key}_stride": tile.stride for key, tile in sources.items()}
        self.kb.issue(
            name, types=types, dst=dst.part, rows=first.n, cols=first.m, dst_stride=dst.stride, **strides, **parts,
        )  # fmt: skip

    def fill(self, dst: RowTile, bits: int) -> None:
        """Every element of the tile, gaps aside, from the bits of a number."""
        self.kb.issue(
            "v_duplicate", types=(self.dtype,), dst=dst.part, rows=dst.n, cols=dst.m, dst_stride=dst.stride, value=bits
        )

    # Vectors ----------------------------------------------------------------------------------------------------------

    def vector(self, name: str, dst: TileVector, src: TileVector, **extra: Any) -> None:
        """dst = f(src), number by number."""
        self.kb.issue(
            name, types=(self.dtype,), dst=dst.part, src=src.part, **_walk(src, dst_stride=dst, src_stride=src), **extra
        )

    def vectors(self, name: str, dst: TileVector, a: TileVector, b: TileVector) -> None:
        """dst = a op b, number by number."""
        walk = _walk(a, dst_stride=dst, a_stride=a, b_stride=b)
        self.kb.issue(name, types=(self.dtype,), dst=dst.part, a=a.part, b=b.part, **walk)

    def scaled(self, dst: TileVector, src: TileVector, factor: TileVector) -> None:
        """dst = src * factor, one number."""
        walk = _walk(src, dst_stride=dst, a_stride=src)
        self.kb.issue("v_mul", types=(self.dtype,), dst=dst.part, a=src.part, b=factor.part, b_form="column", **walk)

    def cast_vector(self, dst: TileVector, src: TileVector, source: DType, target: DType) -> None:
        """dst = src in another type."""
        walk = _walk(src, dst_stride=dst, src_stride=src)
        self.kb.issue("v_cast", types=(source, target), dst=dst.part, src=src.part, **walk)

    def fill_vector(self, dst: TileVector, bits: int) -> None:
        """Every number of the vector."""
        self.kb.issue("v_duplicate", types=(self.dtype,), dst=dst.part, rows=1, cols=dst.count, value=bits)

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
        self.kb.issue(
            REDUCE[kind], types=(self.dtype,), dst=dst.part, src=src.part, rows=src.n, cols=src.m,
            src_stride=src.stride, scope=scope,
        )  # fmt: skip

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
        turned = RowTile(self.scratch.at(self.turned_at), p16 * self.item, src.m, src.n, False)
        self.kb.issue(
            "v_transpose", types=(self.dtype,), dst=turned.part, src=src.part, rows=src.n, cols=src.m,
            dst_stride=turned.stride, src_stride=src.stride,
        )  # fmt: skip
        return turned

    def _product(self, dst: TileVector, src: RowTile) -> None:
        """There is no command: halves are multiplied until one row of them is left."""
        if dst.form is not VectorForm.ROW:
            if dst.form is VectorForm.ONE:
                src = self._one_row("v_mul", src)
            src = self._turned(self._halved_columns(src))
        current = self._one_row("v_mul", src)
        self.kb.issue("v_copy", types=(self.dtype,), dst=dst.part, src=current.part, rows=1, cols=dst.count)

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


def _walk(first: TileVector, **vectors: TileVector) -> dict[str, Any]:
    """Rows, columns and strides of a command on vectors: numbers that are blocks apart are rows of one."""
    if all(v.step < BLOCK_BYTES_MIN for v in vectors.values()):
        return {"rows": 1, "cols": first.count}
    return {"rows": first.count, "cols": 1, **{name: v.step for name, v in vectors.items()}}
