"""How 3 x 3 convolutions without strides are cut for Winograd convolution, F(m x m, 3 x 3) with m = 2 or 4.

Model: outputs are computed in squares of m x m from input squares of side t = m + 2. Both are transformed so that the
convolution becomes t * t independent products over the channels: with D an input square, G a filter,
Y = A' [ (G g G') * (B' D B) ] A. The matrices are Toom's and Cook's for the points 0, +-p, ... and infinity. F(4 x 4)
does so at 0, +-3/4, +-3/2: there the error stays a small multiple of a direct convolution's, which at the customary
points +-1, +-2 it does not (see docs/numerics.md).

A *line* is `squares` squares of neighbouring rows of squares. The unit axis is *pixels* (one unit = one line of one
image) or *channels* (one unit = one panel of output channels of one image, or of a band of its lines). For as many
lines as fit near, inputs are copied to a padded patch and transformed; then panel by panel come the products and the
outputs. All filters pass by once for these lines, so where they come from far and take longer than the products it is
more lines than fit. Weights are transformed when compiling, in f64, and packed as [panel][t * t][channel][tile_rows].

In bf16 transformed inputs and filters are rounded, and words of two neighbouring channels multiplied at once: [panel]
[t * t][word][tile_rows][2]. Transforms and sums are f32. F(4 x 4) has no such form: its transforms magnify the rounding
of what they multiply four to five times, those of F(2 x 2) one and a half times (docs/numerics.md).

Invariant: what is added in which order depends on the body only, never on the cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.formats import BF16, F32, NumberFormat
from superkernel.core.tensor import strided_view
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.ops.opdef import Array
from superkernel.registry.predicates import Reason, one_of, within
from superkernel.registry.requirement import CHANNELS_LAST
from superkernel.scheduler.families.conv import (
    CHANNELS,
    IGEMM,
    PIXELS,
    ConvFamily,
    ConvTiling,
)
from superkernel.scheduler.families.conv_form import ConvForm, conv_form
from superkernel.scheduler.families.costing import (
    L3,
    MEMORY,
    band_counts,
    best_whole_and_shared,
    elements_ns,
    program_weight,
)
from superkernel.scheduler.families.kernel import CONSTANT_WEIGHT, HostTiling, ReducedKernelDef
from superkernel.scheduler.families.nhwc_tiling import HIDDEN, register_tiles, sharers_of
from superkernel.scheduler.families.packing import encoded
from superkernel.scheduler.tiling import Pack
from superkernel.target.cpu import CpuTarget

POINTS: dict[int, tuple[Fraction, ...]] = {2: (Fraction(1),), 4: (Fraction(3, 4), Fraction(3, 2))}
"""The positive points beside 0 and infinity, by m."""

INPUT_INSTRUCTIONS = {2: 60.0, 4: 240.0}  # per square and vector of channels: loads, transform, stores, copy
OUTPUT_INSTRUCTIONS = {2: 50.0, 4: 170.0}
_CALL_NS = 60.0
_RATE = 0.9
_WEIGHT_LOADS = 3, 12  # a vector of weights costs so many broadcasts: from the first-level cache, from others
_SPEEDS = {L3: 2 / 3, MEMORY: 5 / 6}  # of a core's reads: transformed inputs and products are written beside them
_LOST = 0.2  # share of loads that computing does not hide
_STEP = 0.5  # cycles of a step of depth beside its multiply-adds and loads
_PAD = 16  # elements between planes, so that they do not share sets of the first-level cache


@cache
def filter_matrix(m: int) -> tuple[tuple[Fraction, ...], ...]:
    """G, [t][3]: how a filter row is transformed."""
    points = (Fraction(0), *(s * p for p in POINTS[m] for s in (1, -1)))
    rows = []
    for i, p in enumerate(points):
        scale = prod((p - q for k, q in enumerate(points) if k != i), start=Fraction(1))
        rows.append((1 / scale, p / scale, p * p / scale))
    return (*rows, (Fraction(0), Fraction(0), Fraction(1)))


@cache
def even_polynomial(m: int, without: int = -1) -> tuple[Fraction, ...]:
    """Coefficients, lowest first, of the product over the points of (z - p^2), leaving out one."""
    found = [Fraction(1)]
    for i, p in enumerate(POINTS[m]):
        if i != without:
            shifted, scaled = [Fraction(0), *found], [*(-p * p * c for c in found), Fraction(0)]
            found = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(found)


@dataclass(frozen=True)
class PackWinograd(Pack):
    """Weights [out, channels, 3, 3] (a strided view) as [panels][t * t][channels][rows], transformed, zero-padded,
    in f32 or words."""

    m: int
    out: int
    depth: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    rows: int
    format: NumberFormat = F32

    def apply(self, array: Array) -> Array:
        channels = self.depth[0]
        panels, planes = -(-self.out // self.rows), (self.m + 2) ** 2
        packed = np.zeros((panels * self.rows, planes, channels), np.float32)
        if channels and self.out:
            g = np.array([[float(c) for c in row] for row in filter_matrix(self.m)])
            filters = strided_view(array, (self.out, *self.depth), self.strides, self.offset).astype(np.float64)
            squares = filters.reshape(self.out * channels, 9) @ np.kron(g, g).T  # row by row of a square
            packed[: self.out] = squares.reshape(self.out, channels, planes).transpose(0, 2, 1)
        parts = packed.reshape(panels, self.rows, planes, channels).transpose(0, 2, 3, 1)
        return encoded(parts, self.format) if self.format.is_reduced else np.ascontiguousarray(parts)

    def packed_bytes(self, kind: object) -> int:
        panels = -(-self.out // self.rows)
        return (self.m + 2) ** 2 * panels * self.format.panel_bytes(self.depth[0], self.rows)


@dataclass(frozen=True)
class WinogradTiling(ConvTiling):
    """One cut, see the module docstring. `tile_rows` are the output channels of a panel, blocks are lines of
    `square_rows` rows of squares; `positions` squares make a register tile; `lines` lines go together."""

    m: int
    positions: int
    square_rows: int
    square_columns: int
    lines: int
    channels: int
    format: NumberFormat = F32
    sharers: int = 0  # register tiles that fetch the next plane of weights together, see conv_nhwc

    @property
    def side(self) -> int:
        """Rows and columns of a transformed square: m + 3 - 1."""
        return self.m + 2

    @property
    def squares(self) -> int:
        """Squares of a line."""
        return self.square_rows * self.square_columns

    @property
    def input_plane(self) -> int:
        """Elements of one of the t * t planes of transformed inputs."""
        return self.lines * self.squares * self.channels + _PAD

    @property
    def output_plane(self) -> int:
        """Elements of one of the t * t planes of products."""
        return self.lines * self.squares * self.tile_rows + _PAD

    @property
    def parked(self) -> int:
        """Elements of the outputs of one square and vector."""
        return self.m * self.m * self.lanes

    @property
    def item_bytes(self) -> int:
        """Size of a transformed input."""
        return self.format.item.itemsize

    @property
    def scratch_bytes(self) -> int:
        planes = self.side * self.side
        products = max(planes * self.output_plane, self.patch_elements)
        return 4 * (self.parked + products) + self.item_bytes * planes * self.input_plane

    @property
    def steps(self) -> int:
        """Steps of depth of a product of transformed inputs."""
        return self.format.words(self.channels)

    def step_ns(self, target: CpuTarget) -> float:
        """Time that one vector takes in such a step."""
        return 2.0 * self.lanes / target.flops_per_ns * self.format.word_time

    def filter_elements(self, form: ConvForm) -> int:
        return self.side * self.side * self.steps * self.tile_rows

    def packs(self, body: Body) -> Mapping[int, Pack]:
        form, view = conv_form(body), body.anchor_inputs[1]
        assert isinstance(view, View)
        return {
            view.operand: PackWinograd(
                self.m, form.out_channels, view.shape[1:], view.strides, view.offset, self.tile_rows, self.format
            )
        }

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = conv_form(body)
        unit_share = (end - begin) / max(1, self.units)
        share = unit_share if self.axis == PIXELS else self._share(begin, end)
        planes, squares = self.side**2, float(form.images * self.blocks * self.squares)
        cycle = self.step_ns(target)
        whole, rest = divmod(self.squares, self.positions)

        loads = _WEIGHT_LOADS[4 * self.steps * self.tile_rows > target.l1_bytes]

        def one(count: int) -> float:
            return max(count * self.vectors, HIDDEN * 0.75) + 0.04 * (count + loads * self.vectors) + _STEP

        steps = planes * self.steps * self.channel_tiles * form.images * self.blocks
        compute = steps * (whole * one(self.positions) + (one(rest) if rest else 0.0)) * cycle / _RATE
        vector = 2.0 * self.lanes / target.flops_per_ns
        inputs = squares * -(-form.channels // self.lanes) * INPUT_INSTRUCTIONS[self.m] * vector
        outputs = squares * self.channel_tiles * self.vectors * OUTPUT_INSTRUCTIONS[self.m] * vector
        results = float(form.images * form.out_channels * form.pixels)
        outputs += elements_ns(results, program_weight(form.epilogue), target)
        pixels = self.axis == PIXELS
        inputs *= share if pixels else self.bands_of(begin, end)
        groups = max(1.0, form.images * self.bands * -(-self.band_blocks // max(1, self.lines)))
        passes = max(1.0, groups * share) if pixels else groups * unit_share
        stream = self._filters_ns(form, groups, share if pixels else unit_share, target)
        longer, shorter = max(share * compute, stream), min(share * compute, stream)
        rereads = passes * self._reread_ns(target)
        return _CALL_NS + inputs + longer + _LOST * shorter + rereads + share * outputs

    def _share(self, begin: int, end: int) -> float:
        """Of the work, that of units of axis channels."""
        tiles = 0
        for outer, panels in runs_of_range((self.images * self.bands, self.channel_tiles), begin, end):
            for band in range(*outer):
                first = band % self.bands * self.band_blocks
                tiles += (min(first + self.band_blocks, self.blocks) - first) * (panels[1] - panels[0])
        return tiles / max(1, self.images * self.blocks * self.channel_tiles)

    def _filters_ns(self, form: ConvForm, passes: float, share: float, target: CpuTarget) -> float:
        """Of a share's filters coming by."""
        nbytes = 4.0 * self.channel_tiles * self.filter_elements(form)
        return self.weights_ns(nbytes, passes, share, form.images, target, _SPEEDS)

    def _reread_ns(self, target: CpuTarget) -> float:
        """Of reading transformed inputs for each panel and products once: what is too much to stay near comes from
        the third-level cache, and products that are go there, too."""
        planes, near = self.side * self.side, 4 * near_elements(target)
        inputs, products = self.item_bytes * planes * self.input_plane, 4 * planes * self.output_plane
        far = min(inputs, max(0, inputs + products - near)) + 3 * max(0, products - near)
        return self.channel_tiles * (
            far / (_SPEEDS[L3] * target.l3_bytes_per_ns) + _LOST * inputs / target.l2_bytes_per_ns
        )


class WinogradFamily(ConvFamily):
    """3 x 3 convolutions of f32 images with constant weights, one group, no strides or dilations, in squares of m x m
    outputs."""

    expectation = "conv 3 x 3 in f32, one group, no strides or dilations, with constant weights"

    def __init__(self, m: int, *numbers: NumberFormat) -> None:
        super().__init__(*numbers)
        self.m = m

    def serves(self, body: Body) -> bool:
        x = body.anchor_input_types[0]
        if not super().serves(body) or x is None or x.rank != 4 or x.dtype is not DType.F32:
            return False
        form = conv_form(body)
        return form.kernel == (3, 3) and form.strides == form.dilations == (1, 1) and form.groups == 1

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        self._require(kernel, body)
        form, m, number = conv_form(body), self.m, self.format_on(target)
        filters = 4 * (m + 2) ** 2 * form.channels * form.out_channels
        budgets = [n * near_elements(target) for n in ((1,) if filters < target.l2_bytes else (1, 2, 4, 8))]
        best = []
        cuts = [(PIXELS, 1), *((CHANNELS, n) for n in (1, *band_counts(-(-form.out_height // m), target)))]
        for axis, bands in cuts:
            found = [
                winograd_tiling(form, m, axis, rows, shape, budget, number, bands)
                for budget in budgets
                for rows in _heights(form, m, budget, number)[: None if axis == CHANNELS else 2]
                for shape in _shapes(form, m, rows, target)
            ]
            found = [t for t in found if bands == 1 or (bands - 1) * t.band_blocks < t.blocks]
            if not found:
                continue
            for made in best_whole_and_shared(body, found, target):
                tiles = made.lines * -(-made.squares // made.positions)
                best.append(replace(made, sharers=sharers_of(tiles, filters, target)))
        return sorted(dict.fromkeys(best), key=lambda t: t.cost_ns(body, 0, t.units, target))


def _heights(form: ConvForm, m: int, budget: int, number: NumberFormat) -> list[int]:
    """Rows of squares that may make a line."""
    high = -(-form.out_height // m)
    fits = (n for n in (2, 4, high) if n <= high and line_elements(form, m, n, 0, number) <= budget)
    return sorted({1, *fits})


def near_elements(target: CpuTarget) -> int:
    """Elements of scratch that leave room for a panel's filters in the second-level cache."""
    return target.l2_bytes // 4 * 5 // 8


def line_elements(form: ConvForm, m: int, rows: int, panel: int, number: NumberFormat) -> int:
    """Elements of scratch, of 4 bytes, that so many rows of squares take with panels of so many channels."""
    wide, planes = max(1, -(-form.out_width // m)), (m + 2) ** 2
    patch = (rows * m + 2) * (wide * m + 2) * form.channels
    return planes * rows * wide * form.channels * number.item.itemsize // 4 + max(planes * rows * wide * panel, patch)


def _shapes(form: ConvForm, m: int, rows: int, target: CpuTarget) -> list[tuple[int, int, int]]:
    """(positions, vectors, lanes) of register tiles worth a look."""
    squares = max(1, rows * -(-form.out_width // m))
    found = [
        (-(-squares // -(-squares // tall)), vectors, lanes) for tall, vectors, lanes in register_tiles(form, target)
    ]
    return list(dict.fromkeys(found))


def winograd_tiling(
    form: ConvForm,
    m: int,
    axis: str,
    rows: int,
    shape: tuple[int, int, int],
    budget: int,
    number: NumberFormat,
    bands: int = 1,
) -> WinogradTiling:
    """The tiling with lines of `rows` rows of squares, a register tile of (positions, vectors, lanes), and as many
    lines together as `budget` elements of scratch hold."""
    positions, vectors, lanes = shape
    panel = vectors * lanes
    wide = max(1, -(-form.out_width // m))
    blocks = -(-form.out_height // (m * rows))
    lines = max(1, -(-blocks // bands))
    band = lines
    while lines > 1 and line_elements(form, m, lines * rows, panel, number) > budget:
        lines -= 1
    lines = -(-band // -(-band // lines))
    return WinogradTiling(
        axis,
        panel,
        vectors,
        lanes,
        form.images if form.pixels and form.out_channels else 0,
        1,
        max(1, -(-form.out_channels // panel)),
        m * rows,
        max(1, form.out_width),
        blocks,
        1 if form.out_width else 0,
        False,
        0,
        (lines * rows * m + 2) * (wide * m + 2) * form.channels,
        True,
        m,
        positions,
        rows,
        wide,
        lines,
        form.channels,
        number,
        bands=bands,
    )


_CHANNELS_MIN = 8  # transforms of half empty vectors, and of an input that is not channels last, do not pay

WINOGRAD_LIMITS = (
    one_of(Reason.RANK, "spatial", 2),
    one_of(Reason.SHAPE, "taps", 9),
    *(one_of(Reason.SHAPE, f"window_{name}", 3) for name in ("rows", "columns")),
    *(one_of(Reason.STRIDE, f"stride_{name}", 1) for name in ("rows", "columns")),
    one_of(Reason.GROUPS, "groups", 1),
    within(Reason.SHAPE, "channels", _CHANNELS_MIN),
)
"""What the algorithm is for, of images that lie channels last."""


KERNELS = (
    *(
        replace(
            IGEMM,
            id=f"host.conv.winograd{m}",
            family=WinogradFamily(m),
            emitter="winograd",
            micro="conv",
            modifier=f"winograd{m}",
            dtypes=frozenset({DType.F32}),  # the error grows with the rounding of transformed inputs
            limits=(CONSTANT_WEIGHT, *WINOGRAD_LIMITS),
            layout=CHANNELS_LAST,
            tiles={},
            code_bytes=16384,
        )
        for m in POINTS
    ),
    ReducedKernelDef(
        id="host.conv.winograd2_bf16",
        ops=("conv",),
        family=WinogradFamily(2, BF16),
        emitter="winograd",
        micro="conv",
        modifier="winograd2",
        limits=WINOGRAD_LIMITS,
        layout=CHANNELS_LAST,
        magnified=2.0,
        code_bytes=6144,
    ),
)
