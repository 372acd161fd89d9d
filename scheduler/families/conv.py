"""How convolutions of one or two dimensions are cut: direct convolution over padded, phase-split patches.

Model: vectors run over output positions, rows of the register tile over output channels. The unit axis is *pixels*
(one unit = one block of output positions of one image, all output channels) or *channels* (one unit = one tile of
output channels of one image and group, all positions), the latter for late layers with few positions and many weights.
Many cores share it in two dimensions (kernels of images that lie channels last): channels of *bands* of blocks.
Weights are packed when compiling into tiles [group][tile][channel x tap][row], zero-padded, in f32. A patch (see
conv_form) is copied to scratch per block and shared by all output channels; 1 x 1 convolutions without strides read
the input in place.

Invariant: the order of additions behind an output is channel by channel, tap by tap, whatever the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Region, TensorType, strided_view
from superkernel.ir.body import Body, Role, View
from superkernel.ir.collapse import runs_of_range
from superkernel.ops.opdef import Array
from superkernel.registry.records import Transform
from superkernel.registry.requirement import ROW_MAJOR
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.conv_form import ConvForm, Patch, conv_form, patch_of
from superkernel.scheduler.families.costing import constants_ns
from superkernel.scheduler.families.kernel import CONSTANT_WEIGHT, PLANE, FormatFamily, HostKernelDef, HostTiling
from superkernel.scheduler.families.matmul import GEMM_TILES
from superkernel.scheduler.tiling import Access, Pack
from superkernel.target.cpu import CpuTarget

PIXELS, CHANNELS = "pixels", "channels"
_TILES = {
    "avx512": ((14, 2), (8, 3), (6, 4), (14, 1)),
    "avx2": ((6, 2), (10, 1)),
    "plain": ((6, 2), (10, 1)),
    "small": ((3, 2), (6, 1)),
}
_CALL_NS = 30.0
_PIXELS_PER_BLOCK = 400
FLOAT_TYPES = frozenset({DType.F32, DType.F16, DType.BF16})


@dataclass(frozen=True)
class PackFilters(Pack):
    """Weights [groups * out, channels, taps..] (a strided view) as [groups][tiles][channels * taps][rows],
    zero-padded, f32."""

    groups: int
    out: int
    depth: tuple[int, ...]  # channels and kernel extents
    strides: tuple[int, ...]
    offset: int
    rows: int

    def apply(self, array: Array) -> Array:
        filters = strided_view(array, (self.groups * self.out, *self.depth), self.strides, self.offset)
        tiles, count = -(-self.out // self.rows), prod(self.depth)
        packed = np.zeros((self.groups, tiles * self.rows, count), np.float32)
        packed[:, : self.out] = filters.reshape(self.groups, self.out, count)
        return packed.reshape(self.groups, tiles, self.rows, count).transpose(0, 1, 3, 2)

    def packed_bytes(self, kind: TensorType) -> int:
        return 4 * self.groups * -(-self.out // self.rows) * self.rows * prod(self.depth)


@dataclass(frozen=True)
class ConvTiling(HostTiling):
    """One cut, see the module docstring. Blocks hold `rows` x `columns` positions; with `in_place` no patch is
    copied."""

    axis: str
    tile_rows: int
    vectors: int
    lanes: int
    images: int
    groups: int
    channel_tiles: int
    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    in_place: bool
    span: int  # positions of a block, walked with the patch's pitch
    patch_elements: int  # of one group, 0 in place
    packed: bool  # filters in packed tiles; else as they are, which register tiles of one channel can read
    bands: int = field(default=1, kw_only=True)  # of an image's blocks, on axis channels

    def named(self, body: Body) -> tuple[str, Mapping[str, int]]:
        return "", {"mr": self.tile_rows, "nr": self.vectors * self.lanes}

    @property
    def blocks(self) -> int:
        """Blocks of output positions per image."""
        return self.row_blocks * self.column_blocks

    @property
    def last_block_moves_up(self) -> bool:
        """Whether the last block of a row reads as many columns as the others, some of them once more."""
        return self.column_blocks > 1

    @property
    def units(self) -> int:
        return self.images * (self.blocks if self.axis == PIXELS else self.groups * self.bands * self.channel_tiles)

    @property
    def band_blocks(self) -> int:
        """Blocks of a band; the last one may have fewer."""
        return -(-self.blocks // self.bands)

    def bands_of(self, begin: int, end: int) -> float:
        """The share of all images', groups' and bands' inputs that units of axis channels need."""
        touched = -(-end // self.channel_tiles) - begin // self.channel_tiles
        return touched / max(1, self.images * self.groups * self.bands)

    @property
    def pitch(self) -> int:
        """Elements of one row of the accumulated tile: whole vectors."""
        return -(-self.span // self.lanes) * self.lanes

    @property
    def tile_bytes(self) -> int:
        """Scratch for one tile's results, whole cache lines."""
        return -(-self.tile_rows * self.pitch * 4 // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        return self.tile_bytes + (self.patch_elements + self.vectors * self.lanes) * 4

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = conv_form(body), AccessSet(body)
        if self.axis == PIXELS:
            for box in runs_of_range((self.images, self.row_blocks, self.column_blocks), begin, end):
                image, rows, columns = box
                at_rows = (rows[0] * self.rows, min(rows[1] * self.rows, form.out_height))
                at_columns = (columns[0] * self.columns, min(columns[1] * self.columns, form.out_width))
                self._box(found, form, image, (0, self.groups), (0, form.out_channels), (at_rows, at_columns))
            filters = (0, self.groups * self.channel_tiles)
            self._constants(found, body, form, [filters] if begin < end else [], (0, self.groups * form.out_channels))
        else:
            dims = (self.images, self.groups, self.bands, self.channel_tiles)
            for image, group, bands, tile in runs_of_range(dims, begin, end):
                channels = (tile[0] * self.tile_rows, min(tile[1] * self.tile_rows, form.out_channels))
                for positions in self._positions(form, bands):
                    self._box(found, form, image, group, channels, positions)
                tiles = [(g * self.channel_tiles + tile[0], g * self.channel_tiles + tile[1]) for g in range(*group)]
                self._constants(found, body, form, tiles, (0, self.groups * form.out_channels))
        return found.result()

    def _positions(self, form: ConvForm, bands: tuple[int, int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Boxes of rows and columns of the outputs of some bands."""
        if bands == (0, self.bands):
            yield (0, form.out_height), (0, form.out_width)
            return
        first, last = (min(band * self.band_blocks, self.blocks) for band in bands)
        for rows, columns in runs_of_range((self.row_blocks, self.column_blocks), first, last):
            yield (
                (rows[0] * self.rows, min(rows[1] * self.rows, form.out_height)),
                (columns[0] * self.columns, min(columns[1] * self.columns, form.out_width)),
            )

    def _box(
        self,
        found: AccessSet,
        form: ConvForm,
        image: tuple[int, int],
        group: tuple[int, int],
        channels: tuple[int, int],
        block: tuple[tuple[int, int], tuple[int, int]],
    ) -> None:
        whole = channels == (0, form.out_channels)
        spans = (
            [(group[0] * form.out_channels, group[1] * form.out_channels)]
            if whole
            else [(g * form.out_channels + channels[0], g * form.out_channels + channels[1]) for g in range(*group)]
        )
        planes = [*runs_of_range((form.images, form.depth.size), *image)]
        for span in spans:
            for box in planes:
                found.program(form.epilogue, (box[0], span, *(box[1], *block)[3 - form.spatial :]))
        rows, columns = block
        if self.last_block_moves_up:
            columns = (min(columns[0], form.out_width - self.columns), columns[1])
        rows = (rows[0], -(-rows[1] // self.rows) * self.rows)  # patches are copied whole
        inputs = (group[0] * form.channels, group[1] * form.channels)
        window = (
            input_range(rows, form.strides[0], form.dilations[0], form.pads[0], form.kernel[0], form.height),
            input_range(columns, form.strides[1], form.dilations[1], form.pads[1], form.kernel[1], form.width),
        )
        if any(low >= high for low, high in window):
            return
        strides = (*form.x_strides[:2], form.x_depth, *form.x_strides[2:])
        for own, outputs in planes:
            depth = form.depth.reads(*outputs)
            if depth[0] >= depth[1]:
                continue
            if form.prologue is not None:
                found.program(form.prologue, (own, inputs, *(depth, *window)[3 - form.spatial :]))
            else:
                found.view(form.operand, (own, inputs, depth, *window), strides, form.x_offset)

    def _constants(
        self, found: AccessSet, body: Body, form: ConvForm, tiles: Sequence[tuple[int, int]], channels: tuple[int, int]
    ) -> None:
        weights = body.anchor_inputs[1]
        assert isinstance(weights, View)
        item = 4 if self.packed else body.operands[weights.operand].type.dtype.itemsize
        start = 0 if self.packed else weights.offset * item
        size = self.filter_elements(form) * item
        if size:
            spans = (Region(start + a * size, (b - a) * size) for a, b in tiles if a < b)
            found.add(weights.operand, False, spans)
        if tiles:
            read_bias(found, body, channels)

    def filter_elements(self, form: ConvForm) -> int:
        """Elements of the filters of one tile of output channels."""
        return form.channels * form.taps * self.tile_rows

    def packs(self, body: Body) -> Mapping[int, Pack]:
        if not self.packed:
            return {}
        form, view = conv_form(body), body.anchor_inputs[1]
        assert isinstance(view, View)
        depth = view.shape[1:]
        return {
            view.operand: PackFilters(form.groups, form.out_channels, depth, view.strides, view.offset, self.tile_rows)
        }

    def weights_ns(
        self,
        nbytes: float,
        passes: float,
        share: float,
        images: int,
        target: CpuTarget,
        speeds: Mapping[str, float] = MappingProxyType({}),
    ) -> float:
        """Time of a core with a share of the units to bring weights near, by all of which all units pass so often;
        `speeds`: see `constants_ns`."""
        if self.axis == PIXELS:
            first, passed, sharers = nbytes, nbytes * max(1.0, passes * share), target.readers
        else:
            sharers = images * self.bands
            first, passed = nbytes * min(1.0, sharers * share), nbytes * max(1.0, passes) * share
        return constants_ns(first, max(0.0, passed - first), nbytes, sharers, target, speeds)

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = conv_form(body)
        share = (end - begin) / max(1, self.units)
        positions = form.images * self.blocks * self.pitch
        channels = self.groups * self.channel_tiles * self.tile_rows
        fill = min(1.0, self.tile_rows * self.vectors / 8)
        compute = 2.0 * positions * channels * form.channels * form.taps / (target.flops_per_ns * 0.93 * fill)
        weights = 4.0 * channels * form.channels * form.taps
        stream = self.weights_ns(weights, form.images * self.blocks, share, 1, target)
        patches = self.patch_elements * form.images * self.blocks * (1 if self.axis == CHANNELS else form.groups) / 8.0
        stores = form.images * self.groups * form.out_channels * form.pixels / 8.0
        if self.tile_rows == 1:  # little arithmetic: copying in and out is what takes the time
            patches, stores = 1.6 * patches, 1.6 * stores
        copies = patches * (share if self.axis == PIXELS or form.images * form.groups > 1 else 1.0)
        return _CALL_NS + max(share * compute, stream) + copies + share * stores


def input_range(
    outputs: tuple[int, int], stride: int, dilation: int, pad: int, kernel: int, extent: int
) -> tuple[int, int]:
    """Input positions along one axis that the patch of a range of outputs holds: all phases to the same length."""
    phases = {k * dilation % stride for k in range(kernel)}
    last = outputs[1] - 1 + (kernel - 1) * dilation // stride
    low, high = outputs[0] * stride - pad + min(phases), last * stride - pad + max(phases) + 1
    return max(0, min(low, extent)), max(0, min(high, extent))


def read_bias(found: AccessSet, body: Body, channels: tuple[int, int]) -> None:
    """The bias slot of a convolution, where there is one, and the zero points of one of bytes."""
    bias, *zeros = [*body.anchor_inputs[2:], None]
    if isinstance(bias, View):
        found.view(bias.operand, (channels,), bias.strides, bias.offset)
    for zero in zeros:
        if isinstance(zero, View):
            found.add(zero.operand, False, zero.regions(body.operands[zero.operand].type.dtype.itemsize))


class ConvFamily(FormatFamily):
    """Direct convolution with constant weights, f32 arithmetic."""

    any_view = True
    prologue_slots = (0,)
    ranks: tuple[int, ...] = (3, 4)  # of images
    expectation = "conv in one or two dimensions, f32, f16 or bf16, with constant weights"

    def serves(self, body: Body) -> bool:
        """True of bodies this family can compute."""
        x, weights = body.anchor_input_types[0], body.anchor_inputs[1]
        return (
            body.op == "conv"
            and x is not None
            and x.rank in self.ranks
            and x.dtype in FLOAT_TYPES
            and isinstance(weights, View)
            and body.operands[weights.operand].role is Role.CONSTANT
        )

    def _require(self, kernel: str, body: Body) -> None:
        if not self.serves(body):
            raise UnsupportedError(
                "not a convolution that this kernel computes",
                location=kernel,
                expected=self.expectation,
                found=f"{body.op} of {body.anchor_input_types[0]}",
                hint="host.conv.generic computes every convolution",
            )

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        self._require(kernel, body)
        form = conv_form(body)
        cuts = [(PIXELS, _PIXELS_PER_BLOCK), (PIXELS, _PIXELS_PER_BLOCK // 4)]
        if form.pixels <= 4 * _PIXELS_PER_BLOCK:
            cuts.append((CHANNELS, _PIXELS_PER_BLOCK))
        return best_tilings(body, form, cuts, _TILES[target.register_tier], target.l2_bytes // 2, target)


def best_tilings(
    body: Body,
    form: ConvForm,
    cuts: Sequence[tuple[str, int]],
    shapes: Sequence[tuple[int, int]],
    patch_bytes: int,
    target: CpuTarget,
    packed: bool = True,
) -> list[HostTiling]:
    """Per (axis, positions per block) the cheapest register tile; cheapest cut first, equal ones once."""
    lanes = max(1, target.vector_bytes // 4)

    def cost(tiling: ConvTiling) -> float:
        return tiling.cost_ns(body, 0, tiling.units, target)

    found = [min((conv_tiling(form, a, s, lanes, n, patch_bytes, packed) for s in shapes), key=cost) for a, n in cuts]
    return [*sorted(dict.fromkeys(found), key=cost)]


def conv_tiling(
    form: ConvForm, axis: str, shape: tuple[int, int], lanes: int, wanted: int, patch_bytes: int, packed: bool
) -> ConvTiling:
    """The tiling with register tiles of at most `shape` (rows, vectors) and blocks of about `wanted` positions."""
    most, vectors = shape
    tiles = max(1, -(-form.out_channels // most))
    rows = max(1, -(-form.out_channels // tiles))
    tiles = -(-form.out_channels // rows)
    block, patch, in_place = _block(form, vectors * lanes, wanted, patch_bytes // 4 // max(1, form.channels))
    vectors = max(1, min(vectors, -(-patch.span // lanes)))
    row_blocks = -(-form.out_height // block[0]) if block[0] else 0
    column_blocks = -(-form.out_width // block[1]) if block[1] else 0
    images = form.images if form.pixels and form.out_channels else 0
    return ConvTiling(
        axis,
        rows,
        vectors,
        lanes,
        images,
        form.groups,
        tiles,
        block[0],
        block[1],
        row_blocks,
        column_blocks,
        in_place,
        patch.span,
        0 if in_place else patch.channel * form.channels,
        packed,
    )


def _block(form: ConvForm, tile: int, wanted: int, budget: int) -> tuple[tuple[int, int], Patch, bool]:
    """About `wanted` positions whose patch has at most `budget` elements per channel; in place where a tile fits the
    image."""
    if form.pixels == 0:
        return (max(1, form.out_height), max(1, form.out_width)), patch_of(form, 1, 1), True
    if form.out_height == 1:
        wanted = max(tile, min(wanted, budget))
        blocks = max(1, -(-form.out_width // wanted))
        columns = -(-form.out_width // blocks)
        contiguous = form.prologue is None and form.dtype is DType.F32 and (form.x_strides[3] == 1 or form.width == 1)
        plain = form.kernel == form.strides == (1, 1) and form.pads == (0, 0) and form.out_width == form.width
        in_place = contiguous and plain and columns >= tile
        return (1, columns), patch_of(form, 1, columns), in_place
    rows = max(1, min(form.out_height, -(-wanted // form.out_width)))
    while rows > 1 and patch_of(form, rows, form.out_width).channel > budget:
        rows -= 1
    rows = -(-form.out_height // -(-form.out_height // rows))
    return (rows, form.out_width), patch_of(form, rows, form.out_width), False


FILTERS_PACKED = Transform("pack", 1, True)
IMAGE_PATCHED = Transform("reorder", 0, False)

IGEMM = HostKernelDef(
    id="host.conv.igemm",
    ops=("conv",),
    family=ConvFamily(),
    emitter="conv",
    micro="igemm",
    dtypes=FLOAT_TYPES,
    typed=True,
    others=(None, None),
    limits=(CONSTANT_WEIGHT, PLANE),
    layout=ROW_MAJOR,
    tiles=GEMM_TILES,
    transforms=(FILTERS_PACKED, IMAGE_PATCHED),
    rounding=PRODUCT_SUMS,
    code_bytes=12288,
)
KERNELS = (IGEMM,)
