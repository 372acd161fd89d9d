"""What the vector cores of a group do with a convolution's tiles of sums.

Model: a tile lies in the workspace, a row of channels per output position. Each vector core takes half of a tile's
lines: of its positions, where the tile is one run of them and the epilogue walks rows and columns of the result as one
dimension (`merged`); of its output rows otherwise, position by position inside. It goes through its lines in tiles of
`rows` positions that fit UB.

Invariant: the halves of a tile are disjoint and cover it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ir.collapse import merge_dims, regroup, walks_of
from superkernel.scheduler.families.aicore.conv_fix import CHANNEL
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.rounding import largest
from superkernel.scheduler.families.aicore.tilecode import Home, Register, TileCode, TileLayout, TileSize

LANES = 2
SLOTS = 2  # of the rings in UB
_ROWS_MAX = 1024


@dataclass(frozen=True)
class LaneForm:
    """The epilogue as the vector cores run it. `position`: its dimension that a tile's rows walk."""

    program: PointwiseProgram
    code: TileCode
    merged: bool
    sums: DType

    @property
    def position(self) -> int:
        """Dimension of the program's space that output positions are."""
        return len(self.program.shape) - 1

    def size(self, rows: int, channels: int, block_bytes: int) -> TileSize:
        """Of a tile."""
        return TileSize(rows, channels, block_bytes)

    def ub_bytes(self, size: TileSize) -> int:
        """Bytes of UB that tiles of that size take."""
        sums = size.nbytes(Register(TileLayout.MATRIX, self.sums, Home.ANCHOR))
        turning = sums + self.code.home_bytes(Home.INPUT, size) + self.code.home_bytes(Home.OUTPUT, size)
        return SLOTS * turning + self.code.temporaries(size)[1]

    def rows(self, positions: int, channels: int, ub_bytes: int, block_bytes: int) -> int:
        """Positions of the largest tile that fits; 0: none."""
        most = min(positions, _ROWS_MAX)
        return largest(most, lambda rows: self.ub_bytes(self.size(rows, channels, block_bytes)) <= ub_bytes)


@lru_cache(maxsize=1024)
def lane_form(body: Body, epilogue: PointwiseProgram, framed: bool) -> LaneForm | None:
    """The form of a convolution's epilogue for blocks of positions that are `framed`, or runs; None where the epilogue
    does not walk those as one dimension. Raises UnsupportedError where the vector engine does not compute it."""
    program, merged = epilogue, len(epilogue.shape) == 3
    if not merged and not framed:
        groups = merge_dims(program.shape, walks_of(program), (1, 2))
        if groups != ((0,), (1,), (2, 3)):
            return None
        program, merged = regroup(program, groups), True
    kinds = tuple(body.operands[o.target].type.dtype for o in program.outputs)
    sums = DType.I32 if body.anchor_outputs[0].dtype is DType.I32 else DType.F32
    code = lower(program, kinds, len(program.shape) - 1, CHANNEL, anchors=(sums,))
    return LaneForm(program, code, merged, sums)
