"""Cycles of the cube kernels of convolutions, engine by engine, from the target's figures.

Model: the engines of a core run side by side; a range takes as long as the busiest of them, after the loads that must
come first and before the store that must come last. Each figure follows the cycle formula of its command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore.conv_form import CubeConv, Load
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.aicore import AicoreTarget

if TYPE_CHECKING:
    from superkernel.scheduler.families.aicore.conv_tiling import ConvTiling

_CALL_CYCLES = 200.0  # entering the kernel, its first instructions
_DRAIN_CYCLES = 60.0  # flags from engine to engine until the pipeline is full
_MIX_CYCLES = 600.0  # a tile's way through the workspace


@dataclass(frozen=True)
class UnitCycles:
    """Engine by engine, for a unit of full size: loading an image, weights ahead of it, weights behind it, MTE1, M,
    FIX."""

    image: float
    head: float
    rest: float
    mte1: float
    cube: float
    fix: float


def unit_cycles(tiling: ConvTiling, conv: CubeConv, target: AicoreTarget) -> UnitCycles:
    """See UnitCycles."""
    item, cube, dma = conv.item, target.cube, target.dma
    m, n = ceil_to(tiling.positions, cube.m), ceil_to(min(tiling.channels, conv.out_channels), cube.n)
    wide = min(tiling.channels, conv.out_channels)
    steps = -(-tiling.depth // tiling.step) + (1 if tiling.head and tiling.streams else 0)
    depth = {DType.F32: cube.k_f32}.get(conv.dtype, cube.k_f16)
    left = target.transfer_cycles("rates.l1_to_l0a_gb_per_s", m * tiling.depth * item)
    right = target.transfer_cycles("rates.l1_to_l0b_gb_per_s", n * tiling.depth * item)
    product = (m // cube.m) * (n // cube.n) * -(-tiling.depth // depth)

    def weights(length: int) -> float:
        if not length:
            return 0.0
        return dma.startup_cycles + target.global_transfer_cycles("rates.gm_to_l1_gb_per_s", wide * length * item, 32)

    streamed = tiling.depth - tiling.head
    whole, tail = divmod(streamed, tiling.chunk)
    return UnitCycles(
        _image_cycles(tiling, conv, target),
        weights(tiling.head),
        whole * weights(tiling.chunk) + weights(tail),
        steps * 2 * dma.local_startup_cycles + left + right,
        steps * cube.startup_cycles + product,
        _store_cycles(tiling, conv, wide, target),
    )


def _image_cycles(tiling: ConvTiling, conv: CubeConv, target: AicoreTarget) -> float:
    dma, row_bytes = target.dma, conv.row_stride * conv.item
    high = tiling.image_bytes // (tiling.image_width * tiling.pixel_channels * conv.item)
    size = high * tiling.image_width * conv.channels * conv.item
    commands, rows, address = 1, 0, row_bytes
    if tiling.load is Load.ROWS:
        rows = high
    elif tiling.load is Load.PIXELS:
        rows, address = high * tiling.image_width, conv.pixel_step * conv.item
        commands = 1 if conv.evenly_spaced and tiling.column_blocks == 1 else high
    beats = target.global_transfer_cycles("rates.gm_to_l1_gb_per_s", size, address)
    return commands * dma.startup_cycles + beats + rows * dma.row_cycles


def _store_cycles(tiling: ConvTiling, conv: CubeConv, wide: int, target: AicoreTarget) -> float:
    dma = target.dma
    item = conv.item if tiling.fix else 4
    rows = tiling.rows * min(tiling.columns, conv.out_width)
    commands = tiling.rows if tiling.framed and tiling.fix else 1
    address = conv.out_channels * conv.groups * item if tiling.fix else wide * item
    beats = target.global_transfer_cycles("rates.l0c_to_gm_gb_per_s", rows * wide * item, address)
    return commands * dma.startup_cycles + beats + rows * dma.row_cycles


def _first_unit(tiling: ConvTiling, one: UnitCycles, target: AicoreTarget) -> float:
    """Until the sums of the first unit are done: parts of the depth are multiplied as they arrive. The head is loaded
    while the kernel waits for its image, which takes a signal between cores at least."""
    compute = max(one.mte1, one.cube) / tiling.depth
    loaded, done = max(0.0, one.head - target.cycles(target.sync.core_full_ns)) + one.image, 0.0
    if tiling.head:
        done = loaded + compute * tiling.head
    streamed = tiling.depth - tiling.head
    for begin in range(0, streamed, tiling.chunk):
        length = min(tiling.chunk, streamed - begin)
        loaded += one.rest * length / streamed
        done = max(done, loaded) + compute * length
    return done


def range_cycles(tiling: ConvTiling, conv: CubeConv, units: int, target: AicoreTarget) -> float:
    """Cycles of one core (MIX: group) for a range of that many units."""
    if units <= 0:
        return 0.0
    one = unit_cycles(tiling, conv, target)
    held = -(-units // max(1, tiling.inner))
    images = held if tiling.hold == "image" else units
    heads = held if tiling.hold == "weights" else units
    compute = max(one.mte1, one.cube)
    later = (images - 1) * one.image + (heads - 1) * one.head + (units - 1) * one.rest
    serial = one.fix if tiling.slots[3] == 1 else 0.0  # sums are stored before the next ones begin
    inside = max(later, (units - 1) * (compute + serial), (units - 1) * one.fix)
    if tiling.slots[0] == 1 and tiling.hold != "image":  # the next image waits for this one's last use
        inside = max(inside, (units - 1) * (one.image + compute))
    if tiling.head and tiling.slots[1] == 1:  # and so does the next head
        inside = max(inside, (heads - 1) * (one.head + compute))
    last = one.fix + (0.0 if tiling.fix else _MIX_CYCLES)
    return _CALL_CYCLES + _DRAIN_CYCLES + _first_unit(tiling, one, target) + inside + last
