"""How convolutions over images that lie channels last are cut: vectors over output channels, rows of the register tile
over neighbouring output positions.

Model: a matrix product per tap, taps outside, channels inside. Each output row (of a 1 x 1 convolution without strides
each image, rows and columns being one dimension) is dealt out in tiles of `positions` neighbours; a *panel* is the
`tile_rows` output channels that one register tile computes. A *line* is an output row, or a piece of it where there is
only one: of whole tiles, or, where that gives two or four cores more even shares, of equal length, with a shorter tile
at the end of each. The unit axis is *pixels* (one unit = one line of one image, all panels) or *channels* (one unit =
one panel of one image and group, all lines), the latter for late layers with few positions and many weights. As many
lines as have their input in the second-level cache go through a panel before the next one is taken up. Weights are
packed when compiling as [group][panel][tap][channel][tile_rows], zero-padded, in f32. The last vector of the channels
is computed with half its lanes where those are enough.

Where nothing is padded, converted or computed ahead, inputs are read where they are, in whatever layout: they are
broadcast element by element. Else the input positions of some lines are copied to scratch, the *patch*, with zeros for
the padding: channels inside, or columns inside where that is the order of the input.

Invariant: the order of additions behind an output is tap by tap, channel by channel, whatever the cut and the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, View
from superkernel.ops.opdef import Array
from superkernel.registry.models import channel_panels, conv_nhwc, patch_nhwc
from superkernel.registry.requirement import CHANNELS_LAST
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.conv import (
    CHANNELS,
    FILTERS_PACKED,
    FLOAT_TYPES,
    IMAGE_PATCHED,
    PIXELS,
    PLANE,
    ConvFamily,
    ConvTiling,
)
from superkernel.scheduler.families.conv_form import ConvForm, conv_form
from superkernel.scheduler.families.costing import elements_ns, program_weight
from superkernel.scheduler.families.kernel import CONSTANT_WEIGHT, HostKernel
from superkernel.scheduler.tiling import Pack, Tiling
from superkernel.target.cpu import CpuTarget

# Positions x vectors of the register tile: 28 accumulators leave registers for the operands of a step.
ACCUMULATORS = {"avx512": 28, "avx2": 12, "plain": 12}
POSITIONS_MOST = {"avx512": 14, "avx2": 6, "plain": 6}
VECTORS_MOST = {"avx512": 6, "avx2": 4, "plain": 4}
_HALVED = 16  # lanes from which on CPUs do two vectors of half the lanes in the time of one
_CALL_NS = 30.0
_RATE = 0.95  # of the peak, of a register tile that hides all latencies
HIDDEN = 6  # accumulators that hide the latency of a multiply-add
_EVEN_CORES = (2, 4)  # numbers of cores for which equal shares are looked for...
_PIECES = (2, 4, 8, 16)  # ...in rows of so many lines of equal length...
_EVENER = 0.98  # ...that bring the longest share at least down to this


@dataclass(frozen=True)
class PackTaps(Pack):
    """Weights [groups * out, channels, taps..] (a strided view) as [groups][panels][taps][channels][rows], zero-padded,
    f32."""

    groups: int
    out: int
    depth: tuple[int, ...]  # channels and kernel extents
    strides: tuple[int, ...]
    offset: int
    rows: int

    def apply(self, array: Array) -> Array:
        filters = filters_of(array, self.groups * self.out, self.depth, self.strides, self.offset)
        panels = -(-self.out // self.rows)
        channels, taps = self.depth[0], prod(self.depth[1:])
        packed = np.zeros((self.groups, panels * self.rows, taps, channels), np.float32)
        packed[:, : self.out] = filters.reshape(self.groups, self.out, channels, taps).transpose(0, 1, 3, 2)
        return packed.reshape(self.groups, panels, self.rows, taps, channels).transpose(0, 1, 3, 4, 2)


def filters_of(array: Array, count: int, depth: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """The strided view of filters [count, *depth] on a constant."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if 0 in (count, *depth):
        return np.zeros((count, *depth), flat.dtype)
    steps = tuple(s * flat.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(flat[offset:], (count, *depth), steps, writeable=False)


@dataclass(frozen=True)
class Walk:
    """Strides, in elements, of what a register tile reads: from image row to row, column to column, channel to
    channel."""

    row: int
    column: int
    channel: int


@dataclass(frozen=True)
class NhwcTiling(ConvTiling):
    """One cut, see the module docstring. `tile_rows` are the output channels of a panel, blocks are lines; `columns`
    are those of every line but the last of a row; `lines` go together."""

    positions: int
    lines: int

    copied_per_ns: ClassVar[float] = 32.0
    """Elements that are copied to the patch in a nanosecond."""

    def form_of(self, body: Body) -> ConvForm:
        """The convolution as its kernel computes it."""
        return conv_form(body)

    def panels(self, form: ConvForm) -> float:
        """Panels of a group, counted by their work: a last vector of half the lanes is half of it."""
        return self.channel_tiles - (1 - last_lanes(form.out_channels, self.lanes) / self.lanes) / self.vectors

    def steps(self, form: ConvForm) -> int:
        """Steps of depth behind one output."""
        return form.channels * form.taps

    def step_ns(self, target: CpuTarget) -> float:
        """Time that one vector takes in such a step."""
        return 2.0 * self.lanes / target.flops_per_ns

    @property
    def last_block_moves_up(self) -> bool:
        return False

    def line_columns(self, form: ConvForm) -> tuple[int, int]:
        """Columns of a line, and of the last line of an image."""
        return self.columns, form.out_width - (self.column_blocks - 1) * self.columns

    def cycles(self, form: ConvForm, begin: int, end: int) -> float:
        """Vector multiply-adds of one step of depth over all positions of lines [begin, end), counted over images."""
        columns, rest = self.line_columns(form)
        short = end // self.column_blocks - begin // self.column_blocks if self.column_blocks else 0
        whole = line_cycles(columns, self.positions, self.vectors) * (end - begin - short)
        return whole + line_cycles(rest, self.positions, self.vectors) * short

    @property
    def scratch_bytes(self) -> int:
        return (self.positions * self.tile_rows + self.patch_elements) * 4

    @property
    def tile_bytes(self) -> int:
        """Bytes of a parked register tile, ahead of the patch."""
        return self.positions * self.tile_rows * 4

    def packs(self, body: Body) -> Mapping[int, Pack]:
        form, view = conv_form(body), body.anchor_inputs[1]
        assert isinstance(view, View)
        depth = view.shape[1:]
        return {
            view.operand: PackTaps(form.groups, form.out_channels, depth, view.strides, view.offset, self.tile_rows)
        }

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = self.form_of(body)
        total = self.cycles(form, 0, self.images * self.blocks)
        lines = self.axis == PIXELS and total > 0
        share = self.cycles(form, begin, end) / total if lines else (end - begin) / max(1, self.units)
        rows = form.images * form.out_height * -(-form.out_width // self.positions) * self.groups * self.channel_tiles
        compute = self.groups * self.steps(form) * total * self.panels(form) * self.step_ns(target) / _RATE
        outputs = float(form.images * self.groups * form.out_channels * form.pixels)
        finish = elements_ns(outputs, program_weight(form.epilogue) + 1.0, target) + rows * 4.0
        weights = 4.0 * self.groups * self.channel_tiles * self.filter_elements(form)
        near = weights < target.l2_bytes // 2
        speed = target.l2_bytes_per_ns if near else target.l3_bytes_per_ns
        passes = form.images * self.blocks / max(1, self.lines)
        stream = weights * (max(1.0, passes * share) if self.axis == PIXELS else max(1.0, passes) * share) / speed
        copies = self.patch_elements * form.images * self.groups * passes / self.copied_per_ns
        copies *= share if self.axis == PIXELS or form.images * form.groups > 1 else 1.0
        return _CALL_NS + max(share * compute, stream) + share * finish + copies


def last_lanes(channels: int, lanes: int) -> int:
    """Lanes of the last vector of so many output channels: half of the others' where that is enough, and half the
    work."""
    rest = channels % lanes
    return lanes // 2 if lanes >= _HALVED and 0 < rest <= lanes // 2 else lanes


def line_cycles(columns: int, positions: int, vectors: int) -> float:
    """Vector multiply-adds of one step of depth over a line, where short tiles wait for results and tall ones for
    loads."""
    whole, rest = divmod(max(0, columns), positions)

    def one(count: int) -> float:
        work = max(count * vectors, HIDDEN * 0.75)
        return work + 0.04 * (count + 2 * vectors)

    return whole * one(positions) + (one(rest) if rest else 0.0)


def reads_in_place(form: ConvForm) -> bool:
    """True where every tap of every output lies inside an input that needs no conversion."""
    last = tuple(
        (size - 1) * stride - pad + (kernel - 1) * dilation
        for size, stride, pad, kernel, dilation in zip(
            (form.out_height, form.out_width), form.strides, form.pads, form.kernel, form.dilations, strict=True
        )
    )
    inside = last[0] < form.height and last[1] < form.width
    return form.prologue is None and form.dtype is DType.F32 and form.pads == (0, 0) and inside


def channels_inside_patch(form: ConvForm) -> bool:
    """Whether patches have channels inside: computed inputs, and inputs that lie so."""
    return form.prologue is not None or form.x_strides[1] == 1 or form.x_strides[3] != 1 or form.width == 1


def patch_extent(form: ConvForm, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the patch of a block."""
    high, wide = (
        (count - 1) * stride + (kernel - 1) * dilation + 1
        for count, stride, kernel, dilation in zip(
            (rows, columns), form.strides, form.kernel, form.dilations, strict=True
        )
    )
    return high, wide


def patch_walk(form: ConvForm, columns: int) -> Walk:
    """Strides inside the patch of blocks with so many columns."""
    wide = patch_extent(form, 1, columns)[1]
    if channels_inside_patch(form):
        return Walk(wide * form.channels, form.channels, 1)
    return Walk(wide * form.channels, 1, wide)


class NhwcFamily(ConvFamily):
    """Convolutions with constant weights of images that lie channels last (any other layout is read too)."""

    kernels: tuple[str, ...] = ("host.conv.nhwc",)

    def reads_any_order(self, kernel: str, slot: int) -> bool:
        return True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[Tiling]:
        self._require(body)
        form = self.form_of(body)
        axes = [PIXELS, CHANNELS] if form.pixels * 4 <= form.channels * form.taps * 8 else [PIXELS]
        shapes = _shapes(form, target)
        found = [self.tiling(form, axis, shape, target) for axis in axes for shape in shapes]

        def cost(tiling: NhwcTiling) -> float:
            return tiling.cost_ns(body, 0, tiling.units, target)

        def longest(tiling: NhwcTiling, cores: int) -> float:
            cuts = [tiling.units * i // cores for i in range(cores + 1)]
            return max(tiling.cost_ns(body, a, b, target) for a, b in pairwise(cuts))

        best = [min((t for t in found if t.axis == axis), key=cost) for axis in axes]
        even = [self.tiling(form, PIXELS, s, target, n) for s in shapes for n in _PIECES if form.out_height == 1]
        for cores in _EVEN_CORES:
            shared = [t for t in even if t.units >= cores and longest(t, cores) < _EVENER * longest(best[0], cores)]
            best += [min(shared, key=lambda t: longest(t, cores))] if shared else []
        return sorted(dict.fromkeys(best), key=cost)

    def form_of(self, body: Body) -> ConvForm:
        """The convolution as the kernel computes it."""
        return conv_form(body)

    def tiling(
        self, form: ConvForm, axis: str, shape: tuple[int, int, int], target: CpuTarget, pieces: int = 0
    ) -> NhwcTiling:
        """The tiling with a register tile of (positions, vectors, lanes); `pieces`: see `cut_lines`."""
        return nhwc_tiling(form, axis, shape, target, pieces)


def _shapes(form: ConvForm, target: CpuTarget) -> list[tuple[int, int, int]]:
    """(positions, vectors, lanes) of register tiles worth a look: balanced, not wider than the channels need."""
    lanes = max(1, target.vector_bytes // 4)
    while lanes > 4 and lanes // 2 >= form.out_channels:
        lanes //= 2
    vectors_needed = max(1, -(-form.out_channels // lanes))
    found = []
    for most in range(1, VECTORS_MOST[target.tier] + 1):
        vectors = -(-vectors_needed // -(-vectors_needed // most))
        tall = max(1, min(POSITIONS_MOST[target.tier], ACCUMULATORS[target.tier] // vectors))
        tiles = max(1, -(-form.out_width // tall))
        found.append((max(1, -(-form.out_width // tiles)), vectors, lanes))
        found.append((min(tall, max(1, form.out_width)), vectors, lanes))
    return list(dict.fromkeys(found))


def nhwc_tiling(form: ConvForm, axis: str, shape: tuple[int, int, int], target: CpuTarget, pieces: int) -> NhwcTiling:
    """The tiling with that register tile."""
    positions, vectors, lanes = shape
    panel = vectors * lanes
    in_place = reads_in_place(form)
    columns, lines = cut_lines(form, positions, target.l2_bytes // 10, in_place, pieces)
    wide = patch_extent(form, *_together(form, columns, lines))
    return NhwcTiling(
        axis,
        panel,
        vectors,
        lanes,
        form.images if form.pixels and form.out_channels else 0,
        form.groups,
        max(1, -(-form.out_channels // panel)),
        1,
        columns,
        form.out_height,
        -(-form.out_width // columns),
        in_place,
        0,
        0 if in_place else wide[0] * wide[1] * form.channels,
        True,
        positions,
        lines,
    )


def _together(form: ConvForm, columns: int, lines: int) -> tuple[int, int]:
    """Output rows and columns of so many lines."""
    return (1, min(form.out_width, columns * lines)) if form.out_height == 1 else (lines, form.out_width)


def cut_lines(form: ConvForm, positions: int, budget: int, in_place: bool, pieces: int = 0) -> tuple[int, int]:
    """Columns of a line, and how many lines have inputs of about `budget` elements. With `pieces` a row is cut into so
    many lines of equal length, without into lines of whole tiles."""
    if form.pixels == 0:
        return max(1, form.out_width), 1
    columns, count = form.out_width, form.out_height
    if form.out_height == 1 and (in_place or channels_inside_patch(form)):
        if pieces:
            columns = -(-form.out_width // pieces)
        else:
            tiles = -(-form.out_width // positions)
            columns = -(-tiles // 16) * positions
            columns = columns if columns < form.out_width else form.out_width
        count = -(-form.out_width // columns)
    lines = count
    while lines > 1 and prod(patch_extent(form, *_together(form, columns, lines))) * form.channels > budget:
        lines -= 1
    return columns, -(-count // -(-count // lines))


FAMILY = NhwcFamily()

KERNELS = (
    HostKernel(
        id="host.conv.nhwc",
        ops=("conv",),
        family=FAMILY,
        emitter="conv_nhwc",
        micro="conv",
        modifier="nhwc",
        dtypes=FLOAT_TYPES,
        typed=True,
        others=(None, None),
        limits=(CONSTANT_WEIGHT, PLANE),
        layout=CHANNELS_LAST,
        workspace=patch_nhwc,
        persistent=channel_panels,
        transforms=(FILTERS_PACKED, IMAGE_PATCHED),
        cost=conv_nhwc,
        rounding=PRODUCT_SUMS,
        code_bytes=12288,
    ),
)
