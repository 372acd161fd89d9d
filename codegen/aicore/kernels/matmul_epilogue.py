"""The vector cores' part of a MIX product: each takes its half of every tile of sums from the group's channel, runs the
epilogue on it, some rows at a time, and stores."""

from __future__ import annotations

from superkernel.codegen.aicore.channel import Channel
from superkernel.codegen.aicore.kernels.cube import lines_of, locate
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.matmul_form import product_of
from superkernel.scheduler.families.aicore.matmul_tiling import CHANNEL_SLOTS, MatmulTiling, lane_code, lane_size
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.engines import Local


def emit_lane(kb: KernelBuilder, body: Body, tiling: MatmulTiling) -> None:
    """The function of one lane."""
    product = product_of(body)
    code, size = lane_code(body), lane_size(body, tiling, kb.target)
    sums = kb.ring("sums", 2)
    pitch = ceil_to(size.cols * product.accumulator.itemsize, size.block_bytes)
    anchor = kb.buffer(sums, Local.UB, size.rows * pitch, "sums").rows(pitch)
    tile = TileProgram(kb, product.program, code, size, *kb.in_and_out(2), anchors=(anchor,))
    channel = Channel(kb, tiling.slot_bytes, kb.end - kb.begin, to_vector=True, depth=CHANNEL_SLOTS)
    with kb.loop(kb.begin, kb.end) as unit:
        _, _, batch, row, column = locate(kb, tiling, product.batch_dims, unit)
        (first, last), (left, right) = share(kb, tiling, row, column, product.rows, product.columns)
        with (
            channel.turn() as slot,
            kb.loop(first, last, size.rows) as top,
            kb.loop(left, right, size.cols) as side,
            kb.turn(sums, *tile.rings),
        ):
            height, width = piece(kb, last - top, size.rows), piece(kb, right - side, size.cols)
            src = slot.at(top * (tiling.columns * 4) + side * 4).rows(tiling.columns * 4)
            kb.load_rows(anchor, src, product.accumulator, height, width)
            tile.run([*batch, row * tiling.rows + top, column * tiling.columns + side], height, width)


def piece(kb: KernelBuilder, left: Number, size: int) -> Number:
    """What is left, at most `size`."""
    return left if isinstance(left, int) and left <= size else kb.minimum(left, size)


def share(
    kb: KernelBuilder, tiling: MatmulTiling, row: Number, column: Number, rows: int, columns: int
) -> tuple[tuple[Number, Number], tuple[Number, Number]]:
    """The lane's rows and columns within a tile."""
    height, width = lines_of(kb, rows, tiling.rows, row), lines_of(kb, columns, tiling.columns, column)
    first = kb.role.lane == 0
    if tiling.lanes == 1:
        return (0, height), (0, width)
    if tiling.halves_rows:
        half = (height + 1) >> 1
        return ((0, half) if first else (half, height)), (0, width)
    half = kb.minimum(width, tiling.column_half)
    return (0, height), ((0, half) if first else (half, width))
