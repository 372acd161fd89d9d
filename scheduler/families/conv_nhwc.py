"""How convolutions over images that lie channels last are cut: vectors over output channels, rows of the register tile
over neighbouring output positions.

Model: a matrix product per tap, taps outside, channels inside. Each output row (of a 1 x 1 convolution without strides
each image, rows and columns being one dimension) is divided into tiles of `positions` neighbours; a *panel* is the
`tile_rows` output channels that one register tile computes. A *line* is an output row, or a piece of it where there is
only one: of whole tiles, or, where that gives two or four cores more even shares, of equal length, with a shorter tile
at the end of each. The unit axis is *pixels* (one unit = one line of one image, all panels) or *channels* (one unit =
one panel of one image and group, all lines), the latter for late layers with few positions and many weights. As many
lines as have their input in the second-level cache go through a panel before the next one is taken up. Weights are
packed when compiling as [group][panel][tap][channel][tile_rows], zero-padded, in f32. The last vector of the channels
is computed with half its lanes where those are enough. While the tiles of some lines go through a panel they fetch the
next one together, each its part, where it comes from behind the second-level cache. A panel that would fill much of
that cache is taken in *pieces*, of one tap and so many channels: all tiles go through a piece before the next one, and
their sums are parked meanwhile.

Where nothing is padded, converted or computed ahead, inputs are read where they are, in whatever layout: they are
broadcast element by element. Else the input positions of some lines are copied to scratch, the *patch*, with zeros for
the padding: channels inside, or columns inside where that is the order of the input.

In reduced precision inputs always go by way of a patch with channels inside: they are rounded once, as they are copied
there, and every tap reads them from it. Depth goes by words of neighbours. A *run* is what lies side by side under a
row of a window: all its columns and channels (with dilated columns the channels of one tap). Weights are packed as
[group][panel][run][word][tile_rows][numbers of a word], zeros behind a run's end. A window of one tap needs only the
inputs that it meets: with strides the patch holds those alone.


In int8 every *input row* (all columns and the channels of a group that some output needs) is turned into unsigned bytes
with a scale and a zero point of its own, found at run time as those of rows of a matrix product are; weights are signed
bytes with a scale per output channel. The sum over one row of a window is exact in 32 bits; the row's scale makes it
f32, rows of a window are added in f32, from the first on, and the channel's scale comes last. Padding adds nothing: a
padded column holds the row's zero point, a padded row has scale 0. Behind a panel's words lie the i32 sums of the bytes
per row of the window (what a zero point adds is known from them), then the f32 scales. A patch row is [scale, zero
point, up to 64 bytes][columns][channels]. A line is a whole output row, that of a convolution in one dimension too: a
row's scale does not depend on how the work is split. 1 x 1 convolutions, whose rows and columns are one dimension
elsewhere, have rows here (`rowed`). A depthwise convolution has one run of few bytes per filter row: the registry's
estimate leaves it to f32.

Invariant: the order of additions behind an output is tap by tap, channel by channel (in reduced precision run by run,
word by word), whatever the cut and the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import (
    BF16,
    BF16_TILES,
    BYTES,
    BYTES_TILES,
    F32,
    INT8,
    INT8_TILES,
    TILE_ROWS,
    NumberFormat,
)
from superkernel.core.tensor import TensorType, strided_view
from superkernel.ir.body import Body, Role, View
from superkernel.ops.opdef import BYTES as BYTE_TYPES
from superkernel.ops.opdef import Array
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.records import KernelRole
from superkernel.registry.requirement import CHANNELS_LAST
from superkernel.scheduler.families.conv import (
    CHANNELS,
    IGEMM,
    PIXELS,
    ConvFamily,
    ConvTiling,
)
from superkernel.scheduler.families.conv_form import ConvForm, conv_form
from superkernel.scheduler.families.costing import elements_ns, program_weight
from superkernel.scheduler.families.kernel import PLANE, ByteKernelDef, HostTiling, ReducedKernelDef
from superkernel.scheduler.families.matmul import INT8_DEPTHS
from superkernel.scheduler.families.packing import bytes_of, encoded, signed_bytes, words_of
from superkernel.scheduler.tiling import Pack
from superkernel.target.cpu import CpuTarget

# Positions x vectors of the register tile: 28 accumulators leave registers for the operands of a step.
ACCUMULATORS = {"avx512": 28, "avx2": 12, "plain": 12}
POSITIONS_MOST = {"avx512": 14, "avx2": 6, "plain": 6}
VECTORS_MOST = {"avx512": 6, "avx2": 4, "plain": 4}
_HALVED = 16  # lanes from which on CPUs do two vectors of half the lanes in the time of one
_CALL_NS = 30.0
HEAD_BYTES = 64
"""Of a patch row of integers, ahead of its first column: f32 scale, i32 zero point."""

_BEHIND = 3  # bytes behind a row of integers that its last word reads, times weights of 0
_ROW_STEPS = 3.0  # steps of depth that the end of such a row of the window takes as long as
_REGISTERS = 30  # for sums and weights
_LOAD = 0.05  # time of a load, of a multiply-add
_COPIED_PER_NS, _QUANTISED_PER_NS = 32.0, 6.0  # elements of the patch, as floats, as integers
_RATE = 0.95  # of the peak, of a register tile that hides all latencies
HIDDEN = 6  # accumulators that hide the latency of a multiply-add
_NEAR_WEIGHTS = 0.5  # of the second-level cache: constants that are there when they are needed, more or less
_SHARERS_MAX = 64  # tiles that fetch the next panel together
_PIECE, _PARKED = 0.25, 0.2  # of the second-level cache: a piece of a panel, sums parked from piece to piece
_PIECE_CHANNELS = 128  # for which sums are worth reading and parking again
_EVEN_CORES = (2, 4)  # numbers of cores for which equal shares are looked for...
_PIECES = (2, 4, 8, 16)  # ...in rows of so many lines of equal length...
_EVENER = 0.98  # ...that bring the longest share at least down to this


@dataclass(frozen=True)
class PackTaps(Pack):
    """Weights [groups * out, channels, taps..] (a strided view; of one dimension of taps: one row) as
    [groups][panels][taps][channels][rows], zero-padded, f32; in a reduced format as words, `run` taps side by side, see
    the module docstring."""

    groups: int
    out: int
    depth: tuple[int, ...]  # channels and kernel extents
    strides: tuple[int, ...]
    offset: int
    rows: int
    format: NumberFormat = F32
    run: int = 1

    def apply(self, array: Array) -> Array:
        taps = self._taps(array)
        if not self.format.is_reduced:
            return taps
        if not taps.size:
            return np.zeros(self.packed_bytes(None), np.uint8)
        runs = taps.reshape(*taps.shape[:2], -1, self.run * self.depth[0], self.rows)
        if self.format.is_integral:
            codes = runs.astype(self.format.weights.numpy)
            blocks = [words_of(codes, self.format), codes.sum(axis=(2, 3), dtype=np.int32)]
            return np.concatenate([bytes_of(block, 2) for block in blocks], axis=2)
        if not self.format.scales_weights:
            return encoded(runs, self.format)
        codes, scale = signed_bytes(runs, axis=(2, 3))
        sums = codes.reshape(*taps.shape[:2], self._lines, -1, self.rows).sum(axis=3, dtype=np.int32)
        blocks = [words_of(codes, self.format), sums, scale]
        return np.concatenate([bytes_of(block, 2) for block in blocks], axis=2)

    def packed_bytes(self, kind: TensorType | None) -> int:
        panels, runs = -(-self.out // self.rows), prod(self.depth[1:]) // self.run
        nbytes = runs * self.format.words(self.run * self.depth[0]) * self.format.word_bytes
        if self.format.scales_rows:
            nbytes += 4 * (self._lines + 1)
        elif self.format.is_integral:
            nbytes += 4
        return self.groups * panels * self.rows * nbytes

    @property
    def _lines(self) -> int:
        """Rows of the window."""
        return prod(self.depth[1:-1])

    def _taps(self, array: Array) -> Array:
        """[groups][panels][taps][channels][rows] in f32."""
        filters = strided_view(array, (self.groups * self.out, *self.depth), self.strides, self.offset)
        panels = -(-self.out // self.rows)
        channels, taps = self.depth[0], prod(self.depth[1:])
        packed = np.zeros((self.groups, panels * self.rows, taps, channels), np.float32)
        packed[:, : self.out] = filters.reshape(self.groups, self.out, channels, taps).transpose(0, 1, 3, 2)
        return packed.reshape(self.groups, panels, self.rows, taps, channels).transpose(0, 1, 3, 4, 2)


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
    are those of every line but the last of a row; `lines` go together. `patch_bytes`: of one group. `staged`: f32
    elements of the input row that is being turned into bytes, where it cannot be read where it is. `pieces`: of a
    panel, 0 where it is taken as a whole. `sharers`: parts of what comes next that tiles fetch, a power of two; 0:
    they fetch nothing."""

    positions: int
    lines: int
    patch_bytes: int
    staged: int = 0
    format: NumberFormat = F32
    pieces: int = 0
    sharers: int = 0

    def form_of(self, body: Body) -> ConvForm:
        """The convolution as its kernel computes it."""
        return form_for(self.format, body)

    def panels(self, form: ConvForm) -> float:
        """Panels of a group, counted by their work: a last vector of half the lanes is half of it, the end of a row of
        the window takes as long as some steps."""
        count = self.channel_tiles - (1 - self.last_lanes(form.out_channels) / self.lanes) / self.vectors
        row_steps = _ROW_STEPS * form.kernel[0] if self.format.scales_rows else 0.0
        return count * (1.0 + row_steps / max(1, self.steps(form)))

    def last_lanes(self, channels: int) -> int:
        """Lanes of the last vector of so many output channels: half of the others' where that is enough, and half the
        work."""
        rest = channels % self.lanes
        halved = not self.format.is_reduced and self.lanes >= _HALVED and 0 < rest <= self.lanes // 2
        return self.lanes // 2 if halved else self.lanes

    def steps(self, form: ConvForm) -> int:
        """Steps of depth behind one output."""
        count, run = runs_of(form)
        return count * self.format.words(run)

    def step_ns(self, target: CpuTarget) -> float:
        """Time that one vector takes in such a step."""
        return 2.0 * self.lanes / target.flops_per_ns * self.format.word_time

    @property
    def last_block_moves_up(self) -> bool:
        return False

    def line_columns(self, form: ConvForm) -> tuple[int, int]:
        """Columns of a line, and of the last line of an image."""
        return self.columns, form.out_width - (self.column_blocks - 1) * self.columns

    def cycles(self, form: ConvForm, begin: int, end: int) -> float:
        """Vector multiply-adds of one step of depth over all positions of lines [begin, end), counted over images."""
        if self.format.scales_rows:
            return (end - begin) * self._line_cycles(self.columns)
        columns, rest = self.line_columns(form)
        short = end // self.column_blocks - begin // self.column_blocks if self.column_blocks else 0
        return self._line_cycles(columns) * (end - begin - short) + self._line_cycles(rest) * short

    def _line_cycles(self, columns: int) -> float:
        """Of a line, where short tiles wait for results and tall ones for loads."""
        whole, rest = divmod(max(0, columns), self.positions)
        return whole * self._tile_cycles(self.positions) + (self._tile_cycles(rest) if rest else 0.0)

    def _tile_cycles(self, positions: int) -> float:
        if self.format.tiled:  # fewer rows than a tile has take as long
            return max(positions, TILE_ROWS) * self.vectors
        work = positions * self.vectors
        if not self.format.scales_rows:
            return max(work, HIDDEN * 0.75) + 0.04 * (positions + 2 * self.vectors)
        kept = max(0, min(self.vectors, _REGISTERS - work))  # weights that find no register: loads for every position
        return max(work, HIDDEN * 0.75) + _LOAD * (positions + kept + (self.vectors - kept) * positions)

    @property
    def scratch_bytes(self) -> int:
        return self.tile_bytes + self.patch_bytes + 4 * self.staged

    @property
    def tile_bytes(self) -> int:
        """Bytes ahead of the patch: of a register tile on its way through the epilogue, then of the sums of all tiles
        that are open at a time."""
        if self.format.tiled and self.format.scales_rows:
            return 2 * self.finished_bytes  # sums of a row of the window, and of all its rows
        return self.finished_bytes + (self.open_positions * self.tile_rows * 4 if self.pieces else 0)

    @property
    def finished_bytes(self) -> int:
        """Of a register tile on its way through the epilogue."""
        return self.positions * self.tile_rows * 4

    @property
    def open_positions(self) -> int:
        """Output positions of the lines that go together."""
        return self.columns * self.lines

    def filter_elements(self, form: ConvForm) -> int:
        """Words of one panel, of the size of an f32: its steps, behind those of integers sums and scales."""
        behind = form.kernel[0] + 1 if self.format.scales_rows else int(self.format.is_integral)
        return (self.steps(form) + behind) * self.tile_rows

    def packs(self, body: Body) -> Mapping[int, Pack]:
        form, view = self.form_of(body), body.anchor_inputs[1]
        assert isinstance(view, View)
        taps = max(1, runs_of(form)[1] // max(1, form.channels)) if self.format.is_reduced else 1
        return {
            view.operand: PackTaps(
                form.groups, form.out_channels, view.shape[1:], view.strides, view.offset, self.tile_rows, self.format,
                taps,
            )
        }  # fmt: skip

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
        far = target.l3_same_bytes_per_ns if self.axis == PIXELS else target.l3_bytes_per_ns
        speed = target.l2_bytes_per_ns if weights < target.l2_bytes // 2 else far
        passes = form.images * self.blocks / max(1, self.lines)
        stream = weights * (max(1.0, passes * share) if self.axis == PIXELS else max(1.0, passes) * share) / speed
        per_ns = _QUANTISED_PER_NS if self.format.scales_rows else _COPIED_PER_NS
        copies = self.patch_elements * form.images * self.groups * passes / per_ns
        copies *= share if self.axis == PIXELS or form.images * form.groups > 1 else 1.0
        return _CALL_NS + max(share * compute, stream) + share * finish + copies


def form_for(number: NumberFormat, body: Body) -> ConvForm:
    """A convolution as kernels of a format compute it."""
    if not number.is_reduced:
        return conv_form(body)
    return rowed(body) if number.scales_rows else met_inputs(conv_form(body))


def runs_of(form: ConvForm) -> tuple[int, int]:
    """How many runs a window has, and their length."""
    joined = form.dilations[1] == 1 or form.kernel[1] == 1
    run = form.channels * (form.kernel[1] if joined else 1)
    return form.channels * form.taps // max(1, run), run


def met_inputs(form: ConvForm) -> ConvForm:
    """A convolution of one tap over the inputs that it meets: without strides."""
    if form.taps > 1 or form.prologue is not None or form.pads != (0, 0):
        return form
    image, channel, row, column = form.x_strides
    strides = (image, channel, row * form.strides[0], column * form.strides[1])
    height, width = (-(-n // s) for n, s in zip((form.height, form.width), form.strides, strict=True))
    return replace(form, strides=(1, 1), height=height, width=width, x_strides=strides)


def rowed(body: Body) -> ConvForm:
    """The convolution as its kernel computes it: as `met_inputs`, but images have the rows that they came with. The
    programs' coordinates stay what they are."""
    form, x = met_inputs(conv_form(body)), body.anchor_input_types[0]
    assert x is not None
    if x.rank != 4 or form.spatial != 1 or form.prologue is not None:
        return form
    height, width = x.shape[2:]
    image, channel, _, column = form.x_strides
    strides = (image, channel, width * column, column)
    return replace(form, height=height, width=width, out_height=height, out_width=width, x_strides=strides)


def is_dense(form: ConvForm) -> bool:
    """True where the columns and channels of an input row are one run of f32 in memory."""
    _, channel, _, column = form.x_strides
    plain = form.prologue is None and form.dtype is DType.F32
    return plain and channel == 1 and (column == form.channels or form.width == 1)


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


def patch_row_bytes(form: ConvForm, wide: int) -> int:
    """Of a patch row of so many columns of integers, its head included."""
    return -(-(HEAD_BYTES + wide * form.channels) // 64) * 64


def patch_walk(form: ConvForm, columns: int, number: NumberFormat) -> Walk:
    """Strides inside the patch of blocks with so many columns, in items of the format (bytes of integers)."""
    wide = patch_extent(form, 1, columns)[1]
    if number.scales_rows:
        return Walk(patch_row_bytes(form, wide), form.channels, 1)
    if number.is_reduced or channels_inside_patch(form):
        return Walk(wide * form.channels, form.channels, 1)
    return Walk(wide * form.channels, 1, wide)


class NhwcFamily(ConvFamily):
    """Convolutions with constant weights of images that lie channels last (any other layout is read too), in f32 or, of
    f32 images, in reduced precision."""

    def __init__(self, *numbers: NumberFormat) -> None:
        super().__init__(*numbers)
        types = "f32" if numbers else "f32, f16 or bf16"
        self.expectation = f"conv in one or two dimensions, {types}, with constant weights"

    def serves(self, body: Body) -> bool:
        x = body.anchor_input_types[0]
        return super().serves(body) and not (self.numbers and x is not None and x.dtype is not DType.F32)

    def reads_any_order(self, kernel: str, slot: int) -> bool:
        return True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        self._require(kernel, body)
        number = self.format_on(target)
        form = form_for(number, body)
        if number.tiled:
            _require_tiles(kernel, form, number, target)
        axes = [PIXELS, CHANNELS] if form.pixels * 4 <= form.channels * form.taps * 8 else [PIXELS]
        shapes = [_shape_in_tiles(form, target)] if number.tiled else _shapes(form, target)
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

    def tiling(
        self, form: ConvForm, axis: str, shape: tuple[int, int, int], target: CpuTarget, pieces: int = 0
    ) -> NhwcTiling:
        """The tiling with a register tile of (positions, vectors, lanes); `pieces`: see `cut_lines`."""
        return nhwc_tiling(form, axis, shape, target, self.format_on(target), pieces)


class ByteConvFamily(NhwcFamily):
    """Convolutions of bytes with constant signed weights, exact in i32."""

    def __init__(self, *numbers: NumberFormat) -> None:
        super().__init__(*numbers)
        self.expectation = "conv_integer in one or two dimensions, constant i8 weights without a zero point"

    def serves(self, body: Body) -> bool:
        x, weights = body.anchor_input_types[0], body.anchor_inputs[1]
        if body.op != "conv_integer" or x is None or x.rank not in (3, 4) or not isinstance(weights, View):
            return False
        plain = all(source is None or isinstance(source, View) for source in body.anchor_inputs[2:4])
        factor = body.operands[weights.operand]
        signed = factor.role is Role.CONSTANT and factor.type.dtype is DType.I8
        return plain and signed and body.anchor_inputs[4:] in ((), (None,))


def register_tiles(form: ConvForm, target: CpuTarget) -> Iterator[tuple[int, int, int]]:
    """(positions, vectors, lanes) of the tallest register tiles, not wider than the channels need, panels alike."""
    lanes = max(1, target.vector_bytes // 4)
    while lanes > 4 and lanes // 2 >= form.out_channels:
        lanes //= 2
    vectors_needed = max(1, -(-form.out_channels // lanes))
    for most in range(1, VECTORS_MOST[target.tier] + 1):
        vectors = -(-vectors_needed // -(-vectors_needed // most))
        yield max(1, min(POSITIONS_MOST[target.tier], ACCUMULATORS[target.tier] // vectors)), vectors, lanes


def _shapes(form: ConvForm, target: CpuTarget) -> list[tuple[int, int, int]]:
    """(positions, vectors, lanes) of register tiles worth a look: balanced over a row, or tall."""
    found = []
    for tall, vectors, lanes in register_tiles(form, target):
        tiles = max(1, -(-form.out_width // tall))
        found.append((max(1, -(-form.out_width // tiles)), vectors, lanes))
        found.append((min(tall, max(1, form.out_width)), vectors, lanes))
    return list(dict.fromkeys(found))


def _require_tiles(kernel: str, form: ConvForm, number: NumberFormat, target: CpuTarget) -> None:
    """Raises UnsupportedError where there are no tiles, and on runs that end within a word of floats: what is behind
    them need not be a number, so that weights of 0 do not undo it."""
    if not number.native:
        raise UnsupportedError(
            "this CPU has no tiles", location=f"kernel {kernel!r}", expected=number.feature, found=target.features
        )
    if number.rows.is_float and runs_of(form)[1] % number.step:
        raise UnsupportedError(
            "a row of the window that ends within a word",
            location=f"kernel {kernel!r}",
            expected=f"a multiple of {number.step} columns and channels",
            found=str(runs_of(form)[1]),
        )


def _shape_in_tiles(form: ConvForm, target: CpuTarget) -> tuple[int, int, int]:
    """(positions, vectors, lanes) of the results that four of the CPU's tiles hold: two by two, or one row of them
    where a line has no more positions."""
    tall, most = (TILE_ROWS, 4) if form.out_width <= TILE_ROWS else (2 * TILE_ROWS, 2)
    lanes, tiles = max(1, target.vector_bytes // 4), max(1, -(-form.out_width // tall))
    columns = TILE_ROWS * max(1, min(most, -(-form.out_channels // TILE_ROWS)))
    return max(1, -(-form.out_width // tiles)), columns // lanes, lanes


def nhwc_tiling(
    form: ConvForm, axis: str, shape: tuple[int, int, int], target: CpuTarget, number: NumberFormat, pieces: int = 0
) -> NhwcTiling:
    """The tiling with that register tile."""
    positions, vectors, lanes = shape
    panel, by_rows = vectors * lanes, number.scales_rows
    in_place = not number.is_reduced and reads_in_place(form)
    budget = target.l2_bytes // (4 if by_rows else 10) * (4 // number.item.itemsize if not by_rows else 1)
    columns, lines = cut_lines(form, positions, budget, in_place or number.is_reduced, pieces)
    if by_rows:
        columns, lines = max(1, form.out_width), 1 if form.out_height == 1 else lines
    high, wide = patch_extent(form, *_together(form, columns, lines))
    elements = 0 if in_place else high * wide * form.channels
    joined = by_rows and form.spatial == 1  # as accesses see it
    made = NhwcTiling(
        axis,
        panel,
        vectors,
        lanes,
        form.images if form.pixels and form.out_channels else 0,
        form.groups,
        max(1, -(-form.out_channels // panel)),
        1,
        columns,
        1 if joined else form.out_height,
        form.out_height if joined else 1 if by_rows else -(-form.out_width // columns),
        in_place,
        0,
        elements,
        True,
        positions,
        lines,
        _patch_bytes(form, (high, wide), elements, number) + _behind_patch(form, positions, number),
        wide * form.channels if by_rows and not is_dense(form) else 0,
        number,
    )
    return _from_afar(made, form, target)


def sharers_of(tiles: int, weights: int, target: CpuTarget) -> int:
    """How many of so many register tiles, which walk the same weights one after the other, fetch what comes next
    together: a power of two, 0 where nothing is fetched. `weights`: bytes of all of them."""
    if tiles < 2 or max(target.constants_bytes, weights) <= _NEAR_WEIGHTS * target.l2_bytes:
        return 0
    return 1 << (min(tiles, _SHARERS_MAX).bit_length() - 1)


def _from_afar(tiling: NhwcTiling, form: ConvForm, target: CpuTarget) -> NhwcTiling:
    """The tiling with what is done about weights that come from behind the second-level cache."""
    panel = 4 * tiling.filter_elements(form)
    tiles = tiling.lines * -(-tiling.columns // tiling.positions)
    sharers = sharers_of(tiles, panel * tiling.groups * tiling.channel_tiles, target)
    if not sharers:
        return tiling
    made = replace(tiling, sharers=sharers)
    most = _PIECE * target.l2_bytes
    pieces = [n for n in range(1, form.channels // _PIECE_CHANNELS + 1) if form.channels % n == 0]
    fitting = [n for n in pieces if panel / form.taps / n <= most]
    if (
        tiling.format.is_reduced
        or panel <= most
        or not fitting
        or 4 * tiling.open_positions * tiling.tile_rows > _PARKED * target.l2_bytes
    ):
        return made
    return replace(made, pieces=form.taps * fitting[0])


def _patch_bytes(form: ConvForm, extent: tuple[int, int], elements: int, number: NumberFormat) -> int:
    """Of a patch of so many rows and columns; where words of bytes end behind it, of those too."""
    if number.scales_rows:
        return -(-(extent[0] * patch_row_bytes(form, extent[1]) + _BEHIND) // 64) * 64
    if number.is_integral and elements:
        return -(-(elements + _BEHIND) // 64) * 64
    return elements * number.item.itemsize


def _behind_patch(form: ConvForm, positions: int, number: NumberFormat) -> int:
    """Bytes behind a patch that the last register tile of a row reads in tiles: those of as many positions as it lacks,
    and what a word of bytes may have behind its run."""
    if not number.tiled:
        return 0
    items = positions * form.strides[1] * form.channels
    return -(-items * number.item.itemsize // 64) * 64


def _together(form: ConvForm, columns: int, lines: int) -> tuple[int, int]:
    """Output rows and columns of so many lines."""
    return (1, min(form.out_width, columns * lines)) if form.out_height == 1 else (lines, form.out_width)


def cut_lines(form: ConvForm, positions: int, budget: int, in_pieces: bool, pieces: int = 0) -> tuple[int, int]:
    """Columns of a line, and how many lines have inputs of about `budget` elements. `in_pieces`: an only row is cut,
    with `pieces` into so many lines of equal length, without into lines of whole tiles."""
    if form.pixels == 0:
        return max(1, form.out_width), 1
    columns, count = form.out_width, form.out_height
    if form.out_height == 1 and (in_pieces or channels_inside_patch(form)):
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


_BF16 = ReducedKernelDef(
    id="host.conv.nhwc_bf16",
    ops=("conv",),
    family=NhwcFamily(BF16),
    emitter="conv_nhwc",
    micro="conv",
    modifier="nhwc",
    limits=(PLANE,),
    layout=CHANNELS_LAST,
    code_bytes=6144,
)
_BYTES = ByteKernelDef(
    id="host.conv.bytes",
    ops=("conv_integer",),
    family=ByteConvFamily(BYTES),
    emitter="conv_nhwc",
    micro="conv",
    modifier="nhwc",
    others=(frozenset({DType.I8}), frozenset({DType.I32}), BYTE_TYPES),
    limits=(PLANE, INT8_DEPTHS, one_of(Reason.CONSTANT, "in4.dtype", None)),
    layout=CHANNELS_LAST,
    code_bytes=6144,
)
KERNELS = (
    replace(
        IGEMM,
        id="host.conv.nhwc",
        family=NhwcFamily(),
        emitter="conv_nhwc",
        micro="conv",
        modifier="nhwc",
        layout=CHANNELS_LAST,
        tiles={},
    ),
    _BF16,
    _BYTES,
    replace(_BF16, id="host.conv.nhwc_bf16_tiles", family=NhwcFamily(BF16_TILES), code_bytes=4096),
    replace(_BYTES, id="host.conv.bytes_tiles", family=ByteConvFamily(BYTES_TILES), code_bytes=4096),
    replace(_BYTES, id="host.conv.bytes_any", modifier="any", layout=None, role=KernelRole.GENERIC),
    replace(_BF16, id="host.conv.nhwc_int8", family=NhwcFamily(INT8), limits=(PLANE, INT8_DEPTHS)),
    replace(
        _BF16,
        id="host.conv.nhwc_int8_tiles",
        family=NhwcFamily(INT8_TILES),
        limits=(PLANE, INT8_DEPTHS),
        code_bytes=4096,
    ),
)
