"""Matrix products of rows grouped by expert, and the tiling of such a product: what a mixture of experts needs.

Model: the rows of x stand sorted by expert, `counts[e]` of them belong to expert e; they are data, computed in the
graph. Which piece of work is where is therefore known at run time only: `tile_groups` computes it, from the counts
alone, as a table that the product's kernel reads (tiling sinking). Passes put that operator in; graphs need not.

The table is i32 words:

    0 status       0 fine, 1 a negative count, 2 counts that add up to more than there are rows
    1 where        of what is wrong: the expert
    2 found        its count, cut to 32 bits
    3 tiles        number of tiles of rows
    4 units        slots + 1 bounds: slot s has units [bound s, bound s + 1); a unit is a tile x a block of columns
      cleared      slots + 1 bounds: slot s clears rows [bound s, bound s + 1), which belong to no expert
      tiles        one row of four words per tile: expert, first row, rows, 0; zeros behind the last

Invariant: a tile lies in one expert's rows; units are numbered tile by tile; nothing but the bounds depends on `slots`.
Counts out of range are an error (DataError) wherever the table is made: nothing is clamped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import DataError
from superkernel.core.tensor import TensorType
from superkernel.ops.common import (
    attr,
    get,
    get_ints,
    optional,
    present,
    require,
    require_rank,
    require_same_dtype,
    require_shape,
    slot,
    to_f64,
)
from superkernel.ops.opdef import FLOATS, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types

TILINGS = ("tile_groups", "tile_lengths")
"""Operators that compute tilings; the first word of what they make tells whether their data is in range."""

FINE, NEGATIVE, TOO_MANY = 0, 1, 2
STATUS_WORD, WHERE_WORD, FOUND_WORD, TILES_WORD, BOUNDS_WORD = 0, 1, 2, 3, 4
TILE_WORDS = 4
_COUNTS = frozenset({DType.I64, DType.I32})
_TABLE = frozenset({DType.I32})


@dataclass(frozen=True)
class GroupTable:
    """Where what stands in the table of so many experts and rows, in words."""

    experts: int
    rows: int
    tile: int
    columns: int
    slots: int

    @property
    def cleared_word(self) -> int:
        """First bound of the rows to clear."""
        return BOUNDS_WORD + self.slots + 1

    @property
    def tiles_word(self) -> int:
        """First word of the tiles: a multiple of `TILE_WORDS`."""
        return -(-(self.cleared_word + self.slots + 1) // TILE_WORDS) * TILE_WORDS

    @property
    def tiles_max(self) -> int:
        """Tiles at most: every expert may have one that is not full."""
        return (self.rows + self.experts * (self.tile - 1)) // self.tile if self.rows else 0

    @property
    def words(self) -> int:
        """Size of the table, 32-bit words."""
        return self.tiles_word + self.tiles_max * TILE_WORDS

    def made(self, counts: Array) -> Array:
        """The table of some counts. Raises DataError."""
        check_counts(counts, self.rows)
        words = np.zeros(self.words, np.int32)
        tiles, first = [], 0
        for expert, count in enumerate(counts.tolist()):
            for at in range(0, count, self.tile):
                tiles.append((expert, first + at, min(self.tile, count - at), 0))
            first += count
        share = np.arange(self.slots + 1)
        words[TILES_WORD] = len(tiles)
        words[BOUNDS_WORD : self.cleared_word] = share * (len(tiles) * self.columns) // self.slots
        words[self.cleared_word : self.cleared_word + self.slots + 1] = (
            first + share * (self.rows - first) // self.slots
        )
        words[self.tiles_word : self.tiles_word + len(tiles) * TILE_WORDS] = np.array(tiles, np.int32).reshape(-1)
        return words


def check_counts(counts: Array, rows: int) -> None:
    """Raises DataError unless counts are 0 or more and add up to `rows` at most."""
    total = 0
    for expert, count in enumerate(counts.tolist()):
        if count < 0:
            raise DataError(
                "a negative number of rows", location=f"counts[{expert}]", expected="0 or more", found=count
            )
        total += count
        if total > rows:
            raise DataError(
                "more rows are counted than there are", location=f"counts[{expert}]",
                expected=f"at most {rows} in all", found=f"{total} up to expert {expert}",
            )  # fmt: skip


# grouped_matmul

_ARGS = (
    ArgDef("x", FLOATS, doc="[T, K], rows sorted by expert"),
    ArgDef("w", FLOATS, doc="[E, K, N], a matrix per expert"),
    ArgDef("counts", _COUNTS, doc="[E], rows of each expert; they add up to T at most"),
    ArgDef("tiling", _TABLE, optional=True, doc="of tile_groups for these counts; put in by the compiler"),
)


def table_of(inputs: Types, attrs: Attrs) -> GroupTable:
    """The layout of a product's table, as its attribute `cut` says."""
    x, w = present(inputs, 0), present(inputs, 1)
    tile, columns, slots = get_ints(attrs, "cut")
    return GroupTable(w.shape[0], x.shape[0], tile, columns, slots)


def _matmul_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, w, counts, tiling = present(inputs, 0), present(inputs, 1), present(inputs, 2), optional(inputs, 3)
    require_rank(x, 2, 2, slot(_ARGS, 0))
    require_rank(w, 3, 3, slot(_ARGS, 1))
    require_same_dtype(inputs[:2], _ARGS)
    require(x.shape[1] == w.shape[1], "inner dimensions differ", f"{x.shape[1]} (from x {x})", w, slot(_ARGS, 1))
    require_shape(counts, (w.shape[0],), slot(_ARGS, 2))
    cut = get_ints(attrs, "cut")
    require(len(cut) == (3 if tiling else 0), "the tiling needs its cut", "3 numbers with a tiling, none without", cut)
    if tiling is not None:
        require(min(cut) > 0, "a cut without extent", "numbers above 0", cut, "attribute 'cut'")
        require_shape(tiling, (table_of(inputs, attrs).words,), slot(_ARGS, 3))
    return (TensorType(x.dtype, (x.shape[0], w.shape[2])),)


def _matmul_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    """What the table says is not looked at: it follows from the counts."""
    x, w, counts = to_f64(present(inputs, 0)), to_f64(present(inputs, 1)), present(inputs, 2)
    check_counts(counts, len(x))
    result = np.zeros(outputs[0].shape)
    first = 0
    for matrix, count in zip(w, counts.tolist(), strict=True):
        result[first : first + count] = x[first : first + count] @ matrix
        first += count
    return (result,)


def _matmul_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    """Of as many rows as there may be."""
    return 2 * outputs[0].size * present(inputs, 0).shape[1]


# tile_groups

_TILE_ARGS = (ArgDef("counts", _COUNTS, doc="[E], rows of each expert"),)


def group_table(counts: TensorType, attrs: Attrs) -> GroupTable:
    """The layout that the attributes ask for."""
    names = ("rows", "tile", "columns", "slots")
    return GroupTable(counts.shape[0], *(get(attrs, name, int) for name in names))


def _tile_infer(inputs: Types, attrs: Attrs) -> Outputs:
    counts = present(inputs, 0)
    require_rank(counts, 1, 1, slot(_TILE_ARGS, 0))
    for name, least in (("rows", 0), ("tile", 1), ("columns", 1), ("slots", 1)):
        value = get(attrs, name, int)
        require(least <= value < 1 << 24, "out of range", f"{least} to {(1 << 24) - 1}", value, f"attribute {name!r}")
    table = group_table(counts, attrs)
    units = table.tiles_max * table.columns * table.slots
    require(units < 1 << 31, "the table's numbers need more than 31 bits", "tiles x columns x slots below 2^31", units)
    return (TensorType(DType.I32, (table.words,)),)


def _tile_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    counts = present(inputs, 0)
    kind = TensorType(DType.of(counts.dtype), counts.shape)
    return (group_table(kind, attrs).made(counts),)


OPS: tuple[OpDef, ...] = (
    OpDef(
        "grouped_matmul",
        Family.OTHER,
        "Row t of x times the matrix of its expert; rows behind the last expert's are 0. Bad counts are an error.",
        _ARGS,
        (attr("cut", (), "tile, columns, slots of the tiling; none without one"),),
        _matmul_infer,
        _matmul_reference,
        _matmul_flops,
    ),
    OpDef(
        "tile_groups",
        Family.OTHER,
        "The tiling of a grouped product as a table: which rows of which expert each piece of work is, and whose.",
        _TILE_ARGS,
        (
            attr("rows", int, "of the product, T"),
            attr("tile", int, "rows of a tile at most"),
            attr("columns", 1, "blocks of columns; a unit is a tile x one of them"),
            attr("slots", 1, "how many shares the units are divided into"),
        ),
        _tile_infer,
        _tile_reference,
    ),
)
