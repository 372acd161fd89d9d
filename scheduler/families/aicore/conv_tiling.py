"""How convolutions are cut for the accelerator: implicit matrix products on the cube.

Model: a unit is a tile of sums that fits L0C: a block of output positions (`rows` x `columns` of one image) times a
block of `channels` output channels of one group. Units are numbered so that a contiguous range keeps what is dear in
L1: with hold WEIGHTS all positions of one block of channels follow one another, with hold IMAGE all blocks of channels
of one block of positions; with NOTHING each unit loads both. The depth of the product is cut in a `head`, loaded as a
whole ahead of the image (it does not depend on anyone, so it runs while the kernel waits for the image), and chunks
that stream through a ring behind it.

Blocks of positions are whole rows, one run of output positions, wherever output pixels are evenly spaced; else they
are `framed`: rows of a multiple of the cube's step, each stored by itself.

What FIX cannot do with the sums (`conv_fix`) the vector cores of the group do (MIX): the tile goes through the
workspace in f32.

Invariant: the order of additions behind a sum is that of the depth, whatever the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod

from superkernel.core.tensor import Box, Region
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES, AicoreTiling, KernelType, Role
from superkernel.scheduler.families.aicore.conv_cost import range_cycles
from superkernel.scheduler.families.aicore.conv_fix import FixForm, fix_form, slot_bias
from superkernel.scheduler.families.aicore.conv_form import CubeConv, Load, cube_conv
from superkernel.scheduler.families.aicore.conv_mix import lane_form
from superkernel.scheduler.families.aicore.conv_pack import PackFilters, PackVector
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.tiling import Access, Pack
from superkernel.target.aicore import AicoreTarget

WEIGHTS, IMAGE, NOTHING = "weights", "image", "nothing"
STEP = 16  # rows and columns of a fractal
BIAS_STEP = 8  # f32 values of a block of L1
Span = tuple[int, int]


@dataclass(frozen=True)
class ConvTiling(AicoreTiling):
    """One cut, see the module docstring. `pixel_channels` and `image_width`: of the image in L1. Sizes of the depth in
    elements. `slots`: of the rings for the image, the head, the chunks and the sums. `lane_rows`: positions of a tile
    in a vector core (MIX)."""

    hold: str
    load: Load
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
    def kernel_type(self) -> KernelType:
        return KernelType.CUBE if self.fix else KernelType.MIX_1_2

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

    def role_accesses(self, body: Body, begin: int, end: int, role: Role) -> tuple[Access, ...]:
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
        filters = PackFilters(
            self.groups, conv.merged, conv.out_channels // conv.merged, view.shape, view.strides, view.offset,
            self.pixel_channels, self.cuts,
        )  # fmt: skip
        return {view.operand: filters, **vector_packs(body, conv, self.fix)}

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return range_cycles(self, cube_conv(body), end - begin, target)


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
    return {v.operand: PackVector(conv.groups, conv.out_channels, padded, v.offset, v.stride) for v in vectors}


def window(conv: CubeConv | ConvForm, axis: int, outputs: Span) -> Span:
    """Input rows (axis 0) or columns that a block of outputs wants; at least one."""
    stride, dilation, pad = conv.strides[axis], conv.dilations[axis], conv.pads[axis]
    extent = (conv.height, conv.width)[axis]
    low = outputs[0] * stride - pad
    high = (outputs[1] - 1) * stride - pad + (conv.kernel[axis] - 1) * dilation + 1
    begin = max(0, min(low, extent - 1))
    return begin, max(begin + 1, min(high, extent))


def window_extent(conv: CubeConv, axis: int, outputs: int) -> int:
    """The most rows or columns that any block of `outputs` wants."""
    extent = (conv.height, conv.width)[axis]
    return min(extent, (outputs - 1) * conv.strides[axis] + (conv.kernel[axis] - 1) * conv.dilations[axis] + 1)


def is_empty(body: Body) -> bool:
    """No outputs at all."""
    return prod(body.anchor_outputs[0].shape) == 0
