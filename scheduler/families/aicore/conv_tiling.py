"""How convolutions are cut for the accelerator: implicit matrix products on the cube.

Model: a unit is a tile of sums that fits L0C: a block of output positions (`rows` x `columns` of one image) times a
block of `channels` output channels of one group. Units are numbered so that a contiguous range keeps what is expensive
in L1: with hold WEIGHTS all positions of one block of channels follow one another, with hold IMAGE all blocks of
channels of one block of positions; with NOTHING each unit loads both. The depth of the product is cut in a `head`,
loaded as a whole ahead of the image (it does not depend on anyone, so it runs while the kernel waits for the image),
and chunks that stream through a ring behind it.

Blocks of positions are whole rows, one run of output positions, wherever output pixels are evenly spaced; else they
are `framed`: rows of a multiple of the cube's step, each stored by itself.

What FIX cannot do with the sums (`conv_fix`) the vector cores of the group do (MIX): the tile goes through the
workspace in f32.

Invariant: the order of additions behind a sum is that of the depth, whatever the cut.

Cost: the engines of a core run side by side; a range takes as long as the busiest of them, after the loads that must
come first and before the store that must come last. Each figure follows the cycle formula of its command. The image is
in L2, where others have just written it; weights come from HBM once, and whoever reads a block of them first waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import gcd, prod
from typing import ClassVar

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Box, Region
from superkernel.ir.body import Body, Role, View
from superkernel.ir.collapse import runs_of_range
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES, AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.families.aicore.conv_fix import FixForm, fix_form, slot_bias
from superkernel.scheduler.families.aicore.conv_form import CubeConv, ImageLoad, cube_conv
from superkernel.scheduler.families.aicore.conv_mix import lane_form
from superkernel.scheduler.families.aicore.cube import FirstReads
from superkernel.scheduler.families.aicore.packs import PackCubeFilters, PackVector
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.tiling import Access, Pack
from superkernel.target.aicore import AicoreTarget

WEIGHTS, IMAGE, NOTHING = "weights", "image", "nothing"
STEP = 16  # rows and columns of a fractal
BIAS_STEP = 8  # f32 values of a block of L1
Span = tuple[int, int]
_CALL_CYCLES = 200.0  # entering the kernel, its first instructions
_DRAIN_CYCLES = 60.0  # flags from engine to engine until the pipeline is full
_MIX_CYCLES = 600.0  # a tile's way through the workspace


@dataclass(frozen=True)
class ConvTiling(AicoreTiling):
    """One cut, see the module docstring. `pixel_channels` and `image_width`: of the image in L1. Sizes of the depth in
    elements. `slots`: of the rings for the image, the head, the chunks and the sums. `lane_rows`: positions of a tile
    in a vector core (MIX)."""

    missed: ClassVar[frozenset[Role]] = frozenset({Role.CONSTANT})

    hold: str
    load: ImageLoad
    pixel_channels: int
    fix: bool
    images: int
    groups: int
    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    framed: bool
    channels: int
    channel_blocks: int
    depth: int
    head: int
    chunk: int
    step: int
    image_bytes: int
    image_width: int
    slots: tuple[int, int, int, int]
    lane_rows: int = 0

    @property
    def kernel_type(self) -> AicoreKernelType:
        return AicoreKernelType.CUBE if self.fix else AicoreKernelType.MIX_1_2

    @property
    def places(self) -> int:
        """Blocks of positions, over all images."""
        return self.images * self.row_blocks * self.column_blocks

    @property
    def units(self) -> int:
        return self.places * self.groups * self.channel_blocks

    @property
    def inner(self) -> int:
        """Units that follow one another with the same held operand."""
        return self.places if self.hold == WEIGHTS else self.channel_blocks

    @property
    def positions(self) -> int:
        """Rows of the tile of sums."""
        return self.rows * self.columns

    @property
    def cuts(self) -> tuple[int, ...]:
        """Bounds of the head and the chunks."""
        first = (0, self.head) if self.head else (0,)
        return (*first, *range(self.head + self.chunk, self.depth, self.chunk), *([self.depth] if self.streams else []))

    @property
    def streams(self) -> bool:
        """Whether there are chunks behind the head."""
        return self.head < self.depth

    @property
    def slot_bytes(self) -> int:
        """Bytes of a tile of sums in the workspace."""
        return self.positions * self.channels * 4

    @property
    def scratch_bytes(self) -> int:
        return 0 if self.fix else 2 * ceil_to(self.slot_bytes, CHANNEL_ALIGN_BYTES)

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        self._factors(found, body, begin, end)
        for place, block in self._boxes(begin, end):
            self._results(found, body, place, block)
        return found.result()

    def role_accesses(self, body: Body, begin: int, end: int, role: CoreRole) -> tuple[Access, ...]:
        if self.fix:
            return self.accesses(body, begin, end)
        found = AccessSet(body)
        if role.is_cube:
            self._factors(found, body, begin, end)
        else:
            for place, block in self._boxes(begin, end):
                self._lane_results(found, body, place, block, role.lane)
        return found.result()

    def _boxes(self, begin: int, end: int) -> Iterator[tuple[Box, Box]]:
        """What units [begin, end) are: boxes of places (image, row block, column block) and of (group, block of
        channels)."""
        places = (self.images, self.row_blocks, self.column_blocks)
        blocks = (self.groups, self.channel_blocks)
        shape = (*blocks, *places) if self.hold == WEIGHTS else (*places, *blocks)
        for box in runs_of_range(shape, begin, end):
            yield (box[2:], box[:2]) if self.hold == WEIGHTS else (box[:3], box[3:])

    def _factors(self, found: AccessSet, body: Body, begin: int, end: int) -> None:
        """What the cube core reads."""
        conv = cube_conv(body)
        for place, block in self._boxes(begin, end):
            self._image(found, conv, place, block[0])
            self._weights(found, body, conv, block)
        if begin < end:
            for vector, pack in vector_packs(body, conv, self.fix).items():
                found.add(vector, False, (Region(0, pack.packed_bytes(body.operands[vector].type)),))

    def _image(self, found: AccessSet, conv: CubeConv, place: Box, groups: Span) -> None:
        rows = window(conv, 0, (place[1][0] * self.rows, min(place[1][1] * self.rows, conv.out_height)))
        columns = (0, conv.width)
        if self.column_blocks > 1:
            columns = window(conv, 1, (place[2][0] * self.columns, place[2][1] * self.columns))
        box = (place[0], rows, columns, (groups[0] * conv.channels, groups[1] * conv.channels))
        strides = (conv.image_stride, conv.row_stride, conv.pixel_stride, 1)
        found.view(conv.operand, box, strides, conv.offset)

    def _channels(self, conv: CubeConv, block: Box) -> list[Span]:
        """Runs of output channels, over all groups."""
        if block[1] == (0, self.channel_blocks):
            return [(block[0][0] * conv.out_channels, block[0][1] * conv.out_channels)]
        low, high = block[1][0] * self.channels, min(block[1][1] * self.channels, conv.out_channels)
        return [(g * conv.out_channels + low, g * conv.out_channels + high) for g in range(*block[0])]

    def _outputs(self, conv: CubeConv, place: Box, channels: Span) -> Box:
        """A box of the epilogue's space."""
        spans = {
            conv.spatial[0]: (place[1][0] * self.rows, min(place[1][1] * self.rows, conv.out_height)),
            conv.spatial[1]: (place[2][0] * self.columns, min(place[2][1] * self.columns, conv.out_width)),
        }
        return (place[0], channels, *(spans[d] for d in range(2, len(conv.epilogue.shape))))

    def _results(self, found: AccessSet, body: Body, place: Box, block: Box) -> None:
        conv, fix = cube_conv(body), conv_fix(body)
        for channels in self._channels(conv, block):
            box = self._outputs(conv, place, channels)
            if self.fix and fix is not None:
                found.view(fix.target, box, fix.strides, fix.offset, write=True)
            else:
                found.program(conv.epilogue, box)

    def _lane_results(self, found: AccessSet, body: Body, place: Box, block: Box, lane: int) -> None:
        """What a vector core reads and writes: half of the lines of each tile."""
        conv = cube_conv(body)
        form = lane_form(body, conv.epilogue, self.framed)
        assert form is not None
        for row_block, column_block in product(range(*place[1]), range(*place[2])):
            box = self._outputs(conv, (place[0], (row_block, row_block + 1), (column_block, column_block + 1)), (0, 1))
            span = box[2]
            if form.merged and len(box) == 4:
                span = (span[0] * conv.out_width, span[1] * conv.out_width)
            middle = span[0] + half(span[1] - span[0])
            mine = (middle, span[1]) if lane else (span[0], middle)
            for channels in self._channels(conv, block):
                own: Box = (place[0], channels, mine) if form.merged else (place[0], channels, mine, box[3])
                found.program(form.program, own)

    def _weights(self, found: AccessSet, body: Body, conv: CubeConv, block: Box) -> None:
        view = body.anchor_inputs[1]
        assert isinstance(view, View)
        size = conv.out_channels * self.depth * conv.item  # of a group
        for group in range(*block[0]):
            low, high = block[1][0] * self.channels, min(block[1][1] * self.channels, conv.out_channels)
            if (low, high) == (0, conv.out_channels):
                found.add(view.operand, False, (Region(group * size, size),))
                continue
            for a, b in pairwise(self.cuts):
                start = group * size + (a * conv.out_channels + low * (b - a)) * conv.item
                found.add(view.operand, False, (Region(start, (high - low) * (b - a) * conv.item),))

    def packs(self, body: Body) -> Mapping[int, Pack]:
        conv, view = cube_conv(body), body.anchor_inputs[1]
        assert isinstance(view, View)
        if not self.units:
            return {}
        filters = PackCubeFilters(
            self.groups, conv.merged, conv.out_channels // conv.merged, view.shape, view.strides, view.offset,
            self.pixel_channels, self.cuts,
        )  # fmt: skip
        return {view.operand: filters, **vector_packs(body, conv, self.fix)}

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return range_cycles(self, cube_conv(body), end - begin, target)

    def ranked_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return ranked_cycles(self, cube_conv(body), end - begin, target)


@lru_cache(maxsize=1024)
def conv_fix(body: Body) -> FixForm | None:
    """How FIX does the epilogue of a convolution."""
    return fix_form(body, cube_conv(body).epilogue)


def half(lines: int) -> int:
    """Lines of the first vector core's half."""
    return (lines + 1) // 2


def vector_packs(body: Body, conv: CubeConv, fix: bool) -> dict[int, Pack]:
    """How the vectors that FIX takes lie in global memory. Without `fix` that is the convolution's own bias."""
    form, own = conv_fix(body), slot_bias(body)
    vectors = form.vectors if fix and form is not None else (own,) if own is not None else ()
    padded = ceil_to(conv.out_channels, BIAS_STEP)
    return {v.operand: PackVector(v.offset, v.stride, conv.out_channels, padded, conv.groups) for v in vectors}


def window(conv: CubeConv | ConvForm, axis: int, outputs: Span) -> Span:
    """Input rows (axis 0) or columns that a block of outputs wants; at least one."""
    stride, dilation, pad = conv.strides[axis], conv.dilations[axis], conv.pads[axis]
    extent = (conv.height, conv.width)[axis]
    low = outputs[0] * stride - pad
    high = (outputs[1] - 1) * stride - pad + (conv.kernel[axis] - 1) * dilation + 1
    begin = max(0, min(low, extent - 1))
    return begin, max(begin + 1, min(high, extent))


def window_extent(conv: CubeConv | ConvForm, axis: int, outputs: int) -> int:
    """The most rows or columns that any block of `outputs` wants."""
    extent = (conv.height, conv.width)[axis]
    return min(extent, (outputs - 1) * conv.strides[axis] + (conv.kernel[axis] - 1) * conv.dilations[axis] + 1)


def is_empty(body: Body) -> bool:
    """No outputs at all."""
    return prod(body.anchor_outputs[0].shape) == 0


# Cost -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitCycles:
    """Engine by engine, for a unit of full size: loading an image, weights ahead of it, weights behind it, MTE1, M,
    FIX. Weights come from L2, or from HBM."""

    image: float
    head: float
    rest: float
    mte1: float
    cube: float
    fix: float


def unit_cycles(
    tiling: ConvTiling, conv: CubeConv, target: AicoreTarget, first: FirstReads | None = None
) -> UnitCycles:
    """See UnitCycles. `first`: how weights that nobody read before are; None: L2 has them."""
    item, cube, dma = conv.item, target.cube, target.dma
    m, n = ceil_to(tiling.positions, cube.m), ceil_to(min(tiling.channels, conv.out_channels), cube.n)
    wide = min(tiling.channels, conv.out_channels)
    steps = -(-tiling.depth // tiling.step) + (1 if tiling.head and tiling.streams else 0)
    depth = {DType.F32: cube.k_f32, DType.I8: cube.k_i8}.get(conv.dtype, cube.k_f16)
    left = target.transfer_cycles("rates.l1_to_l0a_gb_per_s", m * tiling.depth * item)
    right = target.transfer_cycles("rates.l1_to_l0b_gb_per_s", n * tiling.depth * item)
    product = (m // cube.m) * (n // cube.n) * -(-tiling.depth // depth)

    def weights(length: int) -> float:
        if not length:
            return 0.0
        size = wide * length * item
        beats = target.global_transfer_cycles("rates.gm_to_l1_gb_per_s", size, 32)
        if first is not None:
            beats = target.missed_cycles(beats, size, first.sharers, first.at_once)
        return dma.startup_cycles + beats

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
    if tiling.load is ImageLoad.ROWS:
        rows = high
    elif tiling.load is ImageLoad.PIXELS:
        rows, address = high * tiling.image_width, conv.pixel_step * conv.item
        commands = 1 if conv.evenly_spaced and tiling.column_blocks == 1 else high
    beats = target.global_transfer_cycles("rates.gm_to_l1_gb_per_s", size, address)
    return commands * dma.startup_cycles + beats + rows * dma.row_cycles


def _store_cycles(tiling: ConvTiling, conv: CubeConv, wide: int, target: AicoreTarget) -> float:
    dma = target.dma
    item = conv.item if tiling.fix and conv.dtype is not DType.I8 else 4
    rows = tiling.rows * min(tiling.columns, conv.out_width)
    commands = tiling.rows if tiling.framed and tiling.fix else 1
    address = conv.out_channels * conv.groups * item if tiling.fix else wide * item
    beats = target.global_transfer_cycles("rates.l0c_to_gm_gb_per_s", rows * wide * item, address)
    return commands * dma.store_startup_cycles + beats + rows * dma.row_cycles


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


def _first_reads(tiling: ConvTiling, units: int, target: AicoreTarget) -> tuple[int, FirstReads]:
    """How many of a range's loads of weights nobody did before, where all cores have such ranges and begin at the same
    time; and of these loads."""
    cores = min(target.device.cube_cores, tiling.units)
    blocks = tiling.groups * tiling.channel_blocks
    if tiling.hold == WEIGHTS:
        loads, own = -(-units // tiling.places), max(1, units // tiling.places)
        sharers = max(1.0, min(cores, tiling.places / units))
        return own, FirstReads(own / loads, sharers, cores / sharers)
    begun = min(cores, blocks // gcd(blocks, units))  # different blocks
    own = min(units, -(-blocks // begun))
    return own, FirstReads(own / units, cores / begun, begun)


def ranked_cycles(tiling: ConvTiling, conv: CubeConv, units: int, target: AicoreTarget) -> float:
    """What cuts are ranked by: the mean of cycles with weights from HBM and from L2. Which it will be is not known yet:
    SDMA may bring them ahead."""
    return sum(range_cycles(tiling, conv, units, target, cold=cold) for cold in (True, False)) / 2


def range_cycles(tiling: ConvTiling, conv: CubeConv, units: int, target: AicoreTarget, *, cold: bool = True) -> float:
    """Cycles of one core (MIX: group) for a range of that many units; `cold`: nobody has read the weights before."""
    if units <= 0:
        return 0.0
    one = unit_cycles(tiling, conv, target)
    own, first = _first_reads(tiling, units, target)
    missed = unit_cycles(tiling, conv, target, first) if cold else one
    held = -(-units // max(1, tiling.inner))
    images = held if tiling.hold == "image" else units
    heads = held if tiling.hold == "weights" else units
    compute = max(one.mte1, one.cube)
    later_heads = (heads - 1) * one.head + (own - 1) * (missed.head - one.head)
    later_rests = (units - 1) * one.rest + (own - 1) * (missed.rest - one.rest)
    later = (images - 1) * one.image + later_heads + later_rests
    serial = one.fix if tiling.slots[3] == 1 else 0.0  # sums are stored before the next ones begin
    inside = max(later, (units - 1) * (compute + serial), (units - 1) * one.fix)
    if tiling.slots[0] == 1 and tiling.hold != "image":  # the next image waits for this one's last use
        inside = max(inside, (units - 1) * (one.image + compute))
    if tiling.head and tiling.slots[1] == 1:  # and so does the next head
        inside = max(inside, later_heads + (heads - 1) * compute)
    last = one.fix + (0.0 if tiling.fix else _MIX_CYCLES)
    return _CALL_CYCLES + _DRAIN_CYCLES + _first_unit(tiling, missed, target) + inside + last
