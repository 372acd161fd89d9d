"""What the kernels of row-wise operators hold in UB, byte by byte: the tilings are fitted with it, and the emitters
allocate by it.

Model: see `RowBuffers`. Data that is not contiguous along the tile's rows passes through a turned tile; a program in
front of the operator, or behind it, is tile code (`tilecode`) with registers of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.row_modes import (
    RowMode,
    is_reduction,
    mode_of,
    result_dims,
    result_extents,
    tile_dims,
    work_of,
)
from superkernel.scheduler.families.aicore.tilecode import Home, TileCode, TileSize
from superkernel.scheduler.families.rowops import space_of

STATISTICS = 6  # vectors of one number per tile row or column
PARAM_ROWS_MAX = 2048  # of a further input that is held for all tile rows at once
FOLD_COLUMNS = 64  # columns to which rows are folded before they are turned
# Operators that change the data in place and need no temporary tile, unless rows are folded.
_IN_PLACE = ("softmax", "softmax_integer", "batch_norm", *(f"reduce_{n}" for n in (
    "sum", "mean", "max", "min", "l1", "l2", "log_sum", "log_sum_exp", "sum_square")))  # fmt: skip


@dataclass(frozen=True)
class RowBuffers:
    """Bytes of UB that a tiling takes. `raw`, `turned_in` and `params` in every slot of the input ring, `out` and
    `turned_out` (by output) in every slot of the output ring; the rest once. A parameter has its bytes as loaded and
    in the type of the work (0 where that is the same)."""

    raw: int
    turned_in: int
    params: tuple[tuple[int, tuple[int, int]], ...]
    work: int
    scratch: int
    turned_at: int  # where the turned rows begin in scratch
    statistic: int
    out: tuple[int, ...]
    turned_out: tuple[int, ...]
    spare: int  # a vector like a further input
    before: tuple[int, int, int]  # of the program that yields the data: input ring, its own output ring, once
    behind: tuple[int, int]  # of the program that takes the results: input ring, once
    taken: int  # the results that a program stores as they are, in every slot of the output ring

    def param(self, slot: int) -> tuple[int, int]:
        """Of one further input."""
        return dict(self.params)[slot]

    def total(self, depth: int, block: int) -> int:
        """All of them, each rounded up to a block."""
        slots = [self.raw, self.turned_in, *(raw for _, (raw, _) in self.params), *self.out, *self.turned_out]
        slots += [*self.before[:2], self.behind[0], self.taken]
        once = [
            self.before[2],
            self.behind[1],
            *(value for _, (_, value) in self.params),
            self.work,
            self.scratch,
            self.spare,
            *[self.statistic] * STATISTICS,
        ]
        return sum(ceil_to(n, block) for n in slots * depth + once)


def turn_stride(p: int, item: int, block: int) -> int:
    """Bytes from row to row of a turned tile of p columns."""
    return ceil_to(p * item, block)


def _turn_bytes(strides: tuple[int, ...], p_dim: int, q_dim: int, p: int, q: int, item: int, block: int) -> int:
    """Room to turn a tile that is not contiguous along Q in global memory."""
    if q == 1 or strides[q_dim] == 1:
        return 0
    along = strides[p_dim] if p_dim >= 0 else 1
    return q * turn_stride(p, item, block) if along == 1 or p == 1 else p * q * block


@lru_cache(maxsize=2048)
def buffers_of(body: Body, p: int, q: int, stride: int, fold: bool, block: int) -> RowBuffers:
    """What a kernel allocates for tiles of p rows of q elements, `stride` apart; `block`: `memory.block_bytes`."""
    space = space_of(body)
    kind = body.anchor_input_types[0]
    assert kind is not None
    p_dim, q_dim = tile_dims(space)
    item, work, p16 = kind.dtype.itemsize, work_of(body).itemsize, ceil_to(p, 16)
    casts = work_of(body) is not kind.dtype
    before, behind = code_before(body), code_behind(body)
    walk = space.data.inputs[0].strides if before is None else ()
    params, spare = [], 0
    for slot, program in enumerate(space.programs[1:-1], 1):
        if program is not None:
            rows = space.data.shape[p_dim] if spans_rows(body, program) else p
            count, spread = _param_size(program, p_dim, q_dim, rows, q, p * stride)
            dtype = program.inputs[0].dtype
            both = [count * (block if spread else t.itemsize) for t in (dtype, work_of(body))]
            spare = max(spare, both[1]) if count < p * stride or p * stride == 1 else spare
            params.append((slot, (both[0], both[1] if dtype is not work_of(body) else 0)))
    product = body.op == "reduce_prod"
    temporary = p * stride * work if fold or product or body.op not in _IN_PLACE else 0
    turned = p16 * FOLD_COLUMNS * work if fold or product else 0
    mode = mode_of(space)
    numbers = {RowMode.LINES: p, RowMode.COLUMNS: q, RowMode.WHOLE: 1, RowMode.POINTS: 1}[mode]
    along = {RowMode.LINES: p_dim, RowMode.COLUMNS: q_dim}.get(mode, -1)
    out, turned_out = [], []
    for result in space.epilogue.outputs if behind is None else ():
        size = body.operands[result.target].type.dtype.itemsize
        if is_reduction(body):
            steps = (0, result.strides[along] if along >= 0 else 1)
            out.append(numbers * size)
            turned_out.append(_turn_bytes(steps, 0, 1, 1, numbers, size, block))
        else:
            out.append(p * stride * size)
            turned_out.append(_turn_bytes(result.strides, p_dim, q_dim, p, q, size, block))
    size_before, size_behind = TileSize(p, q, block), TileSize(*result_extents(body, p, q), block)
    if behind is not None:
        out.append(behind.home_bytes(Home.OUTPUT, size_behind))
    return RowBuffers(
        p * stride * item if before is None else 0,
        _turn_bytes(walk, p_dim, q_dim, p, q, item, block) if walk else 0, tuple(params),
        p * stride * work if casts and before is None else 0, temporary + turned, temporary, numbers * work, tuple(out),
        tuple(turned_out), spare,
        (0, 0, 0) if before is None else (
            before.home_bytes(Home.INPUT, size_before), before.home_bytes(Home.OUTPUT, size_before),
            before.temporaries(size_before)[1],
        ),
        (0, 0) if behind is None else (
            behind.home_bytes(Home.INPUT, size_behind), behind.temporaries(size_behind)[1]
        ),
        (numbers if is_reduction(body) else p * stride) * work if stores_results(body) else 0,
    )  # fmt: skip


@lru_cache(maxsize=512)
def code_before(body: Body) -> TileCode | None:
    """The tile code of the program that yields the data; None for a plain load."""
    program = space_of(body).data
    if not program.instructions and len(program.outputs) == len(program.inputs) == 1:
        return None
    dtypes = tuple(_stored_dtype(body, o.target, work_of(body)) for o in program.outputs)
    return lower(program, dtypes, *tile_dims(space_of(body)), deliver=work_of(body))


@lru_cache(maxsize=512)
def code_behind(body: Body) -> TileCode | None:
    """The tile code of the program that takes the results; None for plain stores."""
    program = space_of(body).epilogue
    if not program.instructions and len(program.inputs) == 1:
        return None
    work = work_of(body)
    dtypes = tuple(_stored_dtype(body, o.target, work) for o in program.outputs)
    return lower(program, dtypes, *result_dims(body), anchors=(work,))


def stores_results(body: Body) -> bool:
    """Whether the program that takes the results stores them from where it finds them."""
    code = code_behind(body)
    return code is not None and any(code.registers[s.register].home is Home.ANCHOR for s in code.stores)


def _stored_dtype(body: Body, operand: int, otherwise: DType) -> DType:
    return body.operands[operand].type.dtype if operand >= 0 else otherwise


def spans_rows(body: Body, program: PointwiseProgram) -> bool:
    """Whether a further input is held for all of P, though tiles may have a part of it: one number per tile row, of a
    row that streams."""
    space = space_of(body)
    p_dim, q_dim = tile_dims(space)
    walk = program.inputs[0].strides
    column = p_dim >= 0 and walk[p_dim] != 0 and walk[q_dim] == 0
    return column and mode_of(space) in (RowMode.COLUMNS, RowMode.WHOLE) and space.data.shape[p_dim] <= PARAM_ROWS_MAX


def _param_size(program: PointwiseProgram, p_dim: int, q_dim: int, p: int, q: int, tile: int) -> tuple[int, bool]:
    """Numbers of a further input that go with a tile, and whether each lies in a block of its own."""
    walk = program.inputs[0].strides
    along_p, along_q = p_dim >= 0 and walk[p_dim] != 0, walk[q_dim] != 0
    if along_q and walk[q_dim] != 1:
        raise UnsupportedError(
            "a further input of a row kernel is not contiguous along the tile", location=f"strides {walk}",
            expected="stride 1", found=walk[q_dim], hint="store the data in row-major order",
        )  # fmt: skip
    if along_p and along_q:
        return tile, False
    return (p, walk[p_dim] != 1) if along_p else (q, False) if along_q else (1, False)
