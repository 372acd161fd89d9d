"""How depthwise convolutions are cut for the vector cores: a filter of its own per channel, vectors along channels.

Model: a unit is a block of output positions times a block of channels; units of one block of channels follow one
another and share its filter, which lies in UB in f32. The block's input pixels are loaded, widened to f32, and
multiplied and added tap by tap, a row of the output at a time; taps outside the image are left out. What follows runs
as a pointwise program on the tile of sums. Blocks are whole output rows, or part of one row.

Invariant: a sum starts from the bias and takes its taps row by row of the filter, whatever the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.scheduler.families.aicore.base import VectorTiling
from superkernel.scheduler.families.aicore.conv_fix import slot_bias
from superkernel.scheduler.families.aicore.conv_mix import SLOTS, LaneForm, lane_form
from superkernel.scheduler.families.aicore.conv_tiling import window, window_extent
from superkernel.scheduler.families.aicore.packs import PackDepthwiseTaps, PackVector
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.aicore.tilecode import COUNT_MAX, Home
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.conv_form import ConvForm, conv_form
from superkernel.scheduler.tiling import Access, Pack
from superkernel.target.aicore import AicoreTarget

_CHANNELS = (64, 128, 192, 256, 384, 512, 1024)
_ROWS = (1, 2, 3, 4, 6, 8, 14, 16, 28, 32, 56)
_COLUMNS = (16, 32, 64, 128, 256, 512)
_STEP = 16  # channels of a block of UB at 16 bits
_FILTER_BYTES = 24576  # of copies of a filter
_CALL_CYCLES = 200.0


@dataclass(frozen=True)
class DepthwiseTiling(VectorTiling):
    """One cut, see the module docstring. `image`: the most input rows and columns of a block. `fold`:
    pixels that a vector command takes as one row, so that few channels fill its lanes (strides across are 1 then)."""

    images: int
    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    channels: int
    channel_blocks: int
    image: tuple[int, int]
    merged: bool
    fold: int = 1

    @property
    def places(self) -> tuple[int, int, int]:
        """Units per block of channels: images, blocks of rows, blocks of columns."""
        return (self.images, self.row_blocks, self.column_blocks)

    @property
    def units(self) -> int:
        return self.channel_blocks * prod(self.places)

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = conv_form(body), AccessSet(body)
        weights, bias = body.anchor_inputs[1], slot_bias(body)
        assert isinstance(weights, View)
        size = self.channels * form.taps * self.fold * 4
        for block, image, rows, columns in runs_of_range((self.channel_blocks, *self.places), begin, end):
            channels = (block[0] * self.channels, min(block[1] * self.channels, form.groups))
            low = (rows[0] * self.rows, min(rows[1] * self.rows, form.out_height))
            across = (columns[0] * self.columns, min(columns[1] * self.columns, form.out_width))
            down = window(form, 0, low)
            wide = (0, form.width) if self.column_blocks == 1 else window(form, 1, across)
            found.view(form.operand, (image, channels, down, wide), form.x_strides, form.x_offset)
            found.add(weights.operand, False, (Region(block[0] * size, (block[1] - block[0]) * size),))
            if bias is not None:
                found.add(bias.operand, False, (Region(channels[0] * 4, (block[1] - block[0]) * self.channels * 4),))
            found.program(form.epilogue, (image, channels, low, across)[: len(form.epilogue.shape)] if form.spatial == 2
                          else (image, channels, across))  # fmt: skip
        return found.result()

    def packs(self, body: Body) -> Mapping[int, Pack]:
        form, view, bias = conv_form(body), body.anchor_inputs[1], slot_bias(body)
        assert isinstance(view, View)
        taps = PackDepthwiseTaps(
            form.groups, form.taps, self.channels, view.strides, view.offset, view.shape, self.fold
        )
        packs: dict[int, Pack] = {view.operand: taps}
        if bias is not None:
            padded = self.channel_blocks * self.channels
            packs[bias.operand] = PackVector(bias.offset, bias.stride, form.groups, padded)
        return packs

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        form = conv_form(body)
        blocks = (end - 1) // prod(self.places) - begin // prod(self.places) + 1
        return range_cycles(self, form, lanes_of(body, self.merged), end - begin, blocks, target)


def serves(body: Body) -> bool:
    """True of those convolutions on the cube that are depthwise: one input and one output channel per group."""
    form = conv_form(body)
    return (
        body.op == "conv" and form.channels == form.out_channels == 1 and form.groups > 1 and min(form.x_strides) >= 0
    )


@lru_cache(maxsize=1024)
def lanes_of(body: Body, merged: bool) -> LaneForm:
    """The program behind the sums."""
    form = lane_form(body, conv_form(body).epilogue, not merged)
    assert form is not None
    return form


def tilings(body: Body, target: AicoreTarget) -> list[DepthwiseTiling]:
    """Cuts, cheapest first for an even split over the device's vector cores; empty where none fits."""
    form, cores = conv_form(body), int(target.device.vector_cores)
    found: dict[DepthwiseTiling, float] = {}
    for tiling in _cuts(body, form, target):
        share = -(-tiling.units // cores)
        blocks = min(tiling.channel_blocks, -(-share // prod(tiling.places)) + 1)
        found[tiling] = range_cycles(tiling, form, lanes_of(body, tiling.merged), share, blocks, target)
    return sorted(found, key=lambda t: found[t])


def _cuts(body: Body, form: ConvForm, target: AicoreTarget) -> Iterator[DepthwiseTiling]:
    try:
        merged = lane_form(body, form.epilogue, False) is not None
        lanes = lanes_of(body, merged)
    except UnsupportedError:
        return
    high, wide = form.out_height, form.out_width
    shapes = [(-(-high // -(-high // r)), wide) for r in _ROWS if r <= high and (merged or r == 1)]
    shapes += [(1, c) for c in _COLUMNS if c < wide]
    whole = ceil_to(form.groups, _STEP)
    for channels in sorted({min(c, whole) for c in _CHANNELS}):
        for rows, columns in dict.fromkeys(shapes):
            across = form.width if columns == wide else window_extent(form, 1, columns)
            image = (window_extent(form, 0, rows), across)
            tiling = DepthwiseTiling(
                form.images, rows, columns, -(-high // rows), -(-wide // columns), channels,
                -(-form.groups // channels), image, merged, fold_of(form, channels, columns, image[1], target),
            )  # fmt: skip
            if ub_bytes(tiling, form, lanes, target) <= target.memory.ub_bytes and prod(image) <= COUNT_MAX:
                yield tiling


def fold_of(form: ConvForm, channels: int, columns: int, width: int, target: AicoreTarget) -> int:
    """Pixels that fill whole vectors together; 1 where pixels cannot be walked as one row."""
    lanes = int(target.vector.lanes_32bit)
    fold = lanes // gcd(lanes, channels)
    if form.strides[1] > 1 or channels != form.groups or fold > columns or width * channels > COUNT_MAX:
        return 1
    return fold if form.taps * fold * channels * 4 <= _FILTER_BYTES else 1


def ub_bytes(tiling: DepthwiseTiling, form: ConvForm, lanes: LaneForm, target: AicoreTarget) -> int:
    """Bytes of UB that a cut takes."""
    pixels, positions = prod(tiling.image), tiling.rows * tiling.columns
    size = lanes.size(positions, tiling.channels, target.memory.block_bytes)
    widened = 0 if form.dtype is DType.F32 else pixels * tiling.channels * 4
    turning = pixels * tiling.channels * form.dtype.itemsize
    turning += (form.taps * tiling.fold + 1) * tiling.channels * 4
    turning += lanes.code.home_bytes(Home.INPUT, size) + lanes.code.home_bytes(Home.OUTPUT, size)
    return SLOTS * turning + widened + positions * tiling.channels * 4 + lanes.code.temporaries(size)[1] + 64 * 32


def range_cycles(
    tiling: DepthwiseTiling, form: ConvForm, lanes: LaneForm, units: int, blocks: int, target: AicoreTarget
) -> float:
    """Cycles of a core for `units` units that lie in so many blocks of channels."""
    v, dma = target.vector, target.dma
    channels = min(tiling.channels, form.groups)
    vectors = -(-channels // v.lanes_32bit)
    pixels, positions = prod(tiling.image), tiling.rows * tiling.columns
    line = tiling.columns * vectors + v.startup_cycles
    flat = pixels * vectors
    if tiling.fold > 1:
        line = -(-tiling.columns * channels // v.lanes_32bit) + 2 * v.startup_cycles
        flat = -(-pixels * channels // v.lanes_32bit)
    taps = form.taps * tiling.rows * line
    widen = 0 if form.dtype is DType.F32 else flat + v.startup_cycles
    vector = taps + widen + positions * vectors + v.startup_cycles
    vector += lanes.code.vector_cycles(positions, channels, target)
    size = pixels * channels * form.dtype.itemsize
    across, down = form.x_strides[3], form.x_strides[2]
    evenly = tiling.column_blocks == 1 and (form.height == 1 or down == form.width * across)
    dense = evenly and channels == form.groups == across
    address = channels * form.dtype.itemsize
    load = (1 if evenly else tiling.image[0]) * dma.startup_cycles
    load += target.global_transfer_cycles("rates.gm_to_ub_gb_per_s", size, address)
    load += 0 if dense else pixels * dma.row_cycles
    load += lanes.code.move_cycles(lanes.code.loads, positions, channels, target)
    store = lanes.code.move_cycles(lanes.code.stores, positions, channels, target)
    constants = 2 * dma.startup_cycles + target.transfer_cycles(
        "rates.gm_to_ub_gb_per_s", (form.taps * tiling.fold + 1) * channels * 4
    )
    return _CALL_CYCLES + blocks * constants + load + store + max(units * vector, (units - 1) * max(load, store))
