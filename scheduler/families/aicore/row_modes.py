"""The geometry of row-wise operators on a vector core: which dimensions a tile has.

Model: a body is brought into a row space (outer x row x inner, see families/rowspace); a *tile* covers two of its
dimensions, P (tile rows) and Q (along which memory is contiguous), the others are looped over:

| mode    | where                          | P               | Q             | statistics are          |
|---------|--------------------------------|-----------------|---------------|-------------------------|
| LINES   | contiguous along the row       | the last outer  | the row       | one per tile row        |
| COLUMNS | contiguous along a kept axis   | the last row    | that axis     | one per tile column     |
| WHOLE   | a row of two or more dimensions| the last but one| the last row  | one for all of the tile |
| POINTS  | statistics are given           | the last outer  | the last axis | the element itself      |
"""

from __future__ import annotations

from enum import Enum

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.kernel import FLOATS
from superkernel.scheduler.families.rowops import space_of
from superkernel.scheduler.families.rowspace import RowSpace

BATCH_NORM_PROGRAMS = 6  # five inputs and the epilogue: statistics are among the inputs


class RowMode(Enum):
    """See the module docstring."""

    LINES = "lines"
    COLUMNS = "columns"
    WHOLE = "whole"
    POINTS = "points"


def mode_of(space: RowSpace) -> RowMode:
    """How a space is tiled."""
    has_inner = len(space.outer) + len(space.row) < len(space.epilogue.shape)
    if has_inner:
        return RowMode.POINTS if len(space.programs) == BATCH_NORM_PROGRAMS else RowMode.COLUMNS
    return RowMode.LINES if len(space.row) == 1 else RowMode.WHOLE


def tile_dims(space: RowSpace) -> tuple[int, int]:
    """The dimensions P and Q; -1 for a P that does not exist."""
    mode, rank, outer = mode_of(space), len(space.epilogue.shape), len(space.outer)
    if mode in (RowMode.LINES, RowMode.POINTS):
        return outer - 1, rank - 1
    return rank - 2, rank - 1


def is_reduction(body: Body) -> bool:
    """Whether there is one result per row."""
    return (body.op or "").startswith("reduce_")


def work_of(body: Body) -> DType:
    """The type a kernel computes in: f32 for floats, but extremes of f16 are exact in f16; bytes fit into f16."""
    kind = body.anchor_input_types[0]
    assert kind is not None
    if kind.dtype is DType.F16 and body.op in ("reduce_max", "reduce_min"):
        return DType.F16
    if kind.dtype in FLOATS:
        return DType.F32
    return DType.F16 if kind.dtype.itemsize == 1 else kind.dtype


def result_dims(body: Body) -> tuple[int, int]:
    """The dimensions along which results lie as rows and columns of a tile; -1: one row."""
    space = space_of(body)
    p_dim, q_dim = tile_dims(space)
    if not is_reduction(body):
        return p_dim, q_dim
    return -1, p_dim if mode_of(space) is RowMode.LINES and p_dim >= 0 else q_dim


def result_extents(body: Body, p: int, q: int) -> tuple[int, int]:
    """Rows and columns of the results of a p x q tile."""
    if not is_reduction(body):
        return p, q
    return 1, {RowMode.LINES: p, RowMode.COLUMNS: q}.get(mode_of(space_of(body)), 1)
