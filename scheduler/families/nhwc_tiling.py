"""How convolutions over images that lie channels last are cut: vectors over output channels, rows of the register tile
over neighbouring output positions.

Model: a matrix product per tap, taps outside, channels inside. Each output row (of a 1 x 1 convolution without strides
each image, rows and columns being one dimension) is divided into tiles of `positions` neighbours; a *panel* is the
`tile_rows` output channels that one register tile computes. A *line* is an output row, or a piece of it where there is
only one: of whole tiles, or, where that gives two or four cores more even shares, of equal length, with a shorter tile
at the end of each. The unit axis is *pixels* (one unit = one line of one plane, all panels) or *channels* (one unit =
one panel of one plane and group, all lines, or those of a *band* of them, so that a core has some of the positions and
some of the weights), the latter for late layers with few positions and many weights. As many
lines as have their input in the second-level cache go through a panel before the next one is taken up. Weights are
packed when compiling as [group][panel][tap][channel][tile_rows], zero-padded, in f32. The last vector of the channels
is computed with half its lanes where those are enough. While the tiles of some lines go through a panel they fetch the
next one together, each its part, where it comes from behind the second-level cache. A panel that would fill much of
that cache is taken in *pieces*, of one tap and so many channels: all tiles go through a piece before the next one, and
their sums are parked meanwhile.

In three dimensions the depths of an image are planes, lines are those of a plane, and a window has rows at each of its
depths. Depths in the padding are left out of the sums, and of patches, which hold the rows of one depth after the
other; sums of bytes take them in.

Where nothing is padded, converted or computed ahead, inputs are read where they are, in whatever layout: they are
broadcast element by element. Else the input positions of some lines are copied to scratch, the *patch*, with zeros for
the padding: channels inside, or columns inside where that is the order of the input.

In reduced precision inputs go by way of a patch with channels inside: they are rounded once, as they are copied there,
and every tap reads them from it. Unsigned bytes that lie so already, in whole words, are read where they are.
Depth goes by words of neighbours. A *run* is what lies side by side under a
row of a window: all its columns and channels (with dilated columns the channels of one tap). Where it would end within
a word of a tile the patch has one more channel, of zeros. Weights are packed as
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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from superkernel.core.formats import (
    F32,
    TILE_ROWS,
    NumberFormat,
)
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.scheduler.families.conv import (
    PIXELS,
    ConvTiling,
)
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.families.costing import elements_ns, program_weight
from superkernel.scheduler.families.nhwc_form import (
    always_meets,
    channels_inside_patch,
    form_for,
    is_dense,
    patch_channels,
    patch_extent,
    patch_row_bytes,
    reads_in_place,
    runs_of,
)
from superkernel.scheduler.families.packing import PackTaps
from superkernel.scheduler.tiling import Pack
from superkernel.target.cpu import CpuTarget

# Positions x vectors of the register tile: 28 accumulators leave registers for the operands of a step.
ACCUMULATORS = {"avx512": 28, "avx2": 12, "plain": 12, "small": 6}
POSITIONS_MOST = {"avx512": 14, "avx2": 6, "plain": 6, "small": 6}
VECTORS_MOST = {"avx512": 6, "avx2": 4, "plain": 4, "small": 2}
_HALVED = 16  # lanes from which on CPUs do two vectors of half the lanes in the time of one
_CALL_NS = 30.0
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
SUM_TILES = 4  # of the CPU's tiles, those that hold sums
_PIECE_CHANNELS = 128  # for which sums are worth reading and parking again


@dataclass(frozen=True)
class NhwcTiling(ConvTiling):
    """One cut, see the module docstring. `tile_rows` are the output channels of a panel, blocks are lines; `columns`
    are those of every line but the last of a row; `lines` go together, `tile_lines` of them in one register tile,
    `joined` of these in the rows of one of the CPU's tiles, each `line_gap` rows behind the one before: what lies
    between them in the patch is computed and dropped. `patch_bytes`: of one group. `staged`: f32 elements of the input
    row that is being turned into bytes, where it cannot be read where it is. `pieces`: of a panel, 0 where it is taken
    as a whole. `sharers`: parts of what comes next that tiles fetch, a power of two; 0: they fetch nothing."""

    positions: int
    lines: int
    patch_bytes: int
    staged: int = 0
    format: NumberFormat = F32
    pieces: int = 0
    sharers: int = 0
    tile_lines: int = 1
    joined: int = 1
    line_gap: int = 0

    def form_of(self, body: Body) -> ConvForm:
        """The convolution as its kernel computes it."""
        return form_for(self.format, body)

    def panels(self, form: ConvForm) -> float:
        """Panels of a group, counted by their work: a last vector of half the lanes is half of it, the end of a row of
        the window takes as long as some steps."""
        count = self.channel_tiles - (1 - self.last_lanes(form.out_channels) / self.lanes) / self.vectors
        row_steps = _ROW_STEPS * form.lines if self.format.scales_rows else 0.0
        return count * (1.0 + row_steps / max(1, self.steps(form)))

    def last_lanes(self, channels: int) -> int:
        """Lanes of the last vector of so many output channels: half of the others' where that is enough, and half the
        work."""
        rest = channels % self.lanes
        halved = not self.format.is_reduced and self.lanes >= _HALVED and 0 < rest <= self.lanes // 2
        return self.lanes // 2 if halved else self.lanes

    def steps(self, form: ConvForm) -> int:
        """Steps of depth behind one output."""
        count, run = runs_of(form, self.format)
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
        if self.tile_lines > 1:
            return -(-(end - begin) // self.tile_lines) * self.tile_lines * self._line_cycles(self.columns)
        columns, rest = self.line_columns(form)
        short = end // self.column_blocks - begin // self.column_blocks if self.column_blocks else 0
        return self._line_cycles(columns) * (end - begin - short) + self._line_cycles(rest) * short

    def _line_cycles(self, columns: int) -> float:
        """Of a line, where short tiles wait for results and tall ones for loads."""
        whole, rest = divmod(max(0, columns), self.positions)
        return whole * self._tile_cycles(self.positions) + (self._tile_cycles(rest) if rest else 0.0)

    def _tile_cycles(self, positions: int) -> float:
        if self.format.tiled:  # fewer rows than a tile has take as long
            return max(positions, TILE_ROWS) / self.joined * self.vectors
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
        return self.tile_lines // self.joined * self.tile_height * self.tile_rows * 4

    @property
    def tile_height(self) -> int:
        """Rows of the lines that one of the CPU's tiles holds, or of a line that takes several."""
        return (self.joined - 1) * self.line_gap + self.positions

    def register_tile_inputs(self, form: ConvForm) -> int:
        """Bytes of the patch that one register tile meets."""
        high, wide = patch_extent(form, self.tile_lines, self.positions)
        return high * wide * patch_channels(form, self.format) * self.format.item.itemsize

    @property
    def open_positions(self) -> int:
        """Output positions of the lines that go together."""
        return self.columns * self.lines

    def filter_elements(self, form: ConvForm) -> int:
        """Words of one panel, of the size of an f32: its steps, behind those of integers sums and scales."""
        behind = form.lines + 1 if self.format.scales_rows else int(self.format.is_integral)
        return (self.steps(form) + behind) * self.tile_rows

    def packs(self, body: Body) -> Mapping[int, Pack]:
        form, view = self.form_of(body), body.anchor_inputs[1]
        assert isinstance(view, View)
        channels, run = patch_channels(form, self.format), runs_of(form, self.format)[1]
        taps = max(1, run // max(1, channels)) if self.format.is_reduced else 1
        return {
            view.operand: PackTaps(
                form.groups, form.out_channels, view.shape[1:], view.strides, view.offset, self.tile_rows, self.format,
                taps, channels,
            )
        }  # fmt: skip

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = self.form_of(body)
        total = self.cycles(form, 0, self.images * self.blocks)
        lines = self.axis == PIXELS and total > 0
        unit_share = (end - begin) / max(1, self.units)
        share = self.cycles(form, begin, end) / total if lines else self._share(form, begin, end, total)
        rows = form.planes * form.out_height * -(-form.out_width // self.positions) * self.groups * self.channel_tiles
        compute = self.groups * self.steps(form) * total * self.panels(form) * self.step_ns(target) / _RATE
        outputs = float(form.planes * self.groups * form.out_channels * form.pixels)
        finish = elements_ns(outputs, program_weight(form.epilogue) + 1.0, target) + rows * 4.0
        weights = 4.0 * self.groups * self.channel_tiles * self.filter_elements(form)
        passes = form.planes * self.bands * self.band_blocks / max(1, self.lines)
        stream = self.weights_ns(weights, passes, share if self.axis == PIXELS else unit_share, form.planes, target)
        per_ns = _QUANTISED_PER_NS if self.format.scales_rows else _COPIED_PER_NS
        copies = self.patch_elements * self.groups * passes / per_ns
        copies *= share if self.axis == PIXELS else self.bands_of(begin, end)
        return _CALL_NS + max(share * compute, stream) + share * finish + copies

    def _share(self, form: ConvForm, begin: int, end: int, total: float) -> float:
        """Of the work, that of units of axis channels; `total`: cycles of all lines."""
        if self.bands == 1 or not total:
            return (end - begin) / max(1, self.units)
        share = 0.0
        for outer, panels in runs_of_range((self.images * self.groups * self.bands, self.channel_tiles), begin, end):
            for band in range(*outer):
                first = min(band % self.bands * self.band_blocks, self.blocks)
                last = min(first + self.band_blocks, self.blocks)
                share += self.cycles(form, first, last) / total * (panels[1] - panels[0]) / self.channel_tiles
        return share / self.groups


def register_tiles(form: ConvForm, target: CpuTarget) -> Iterator[tuple[int, int, int]]:
    """(positions, vectors, lanes) of the tallest register tiles, not wider than the channels need, panels alike."""
    lanes = max(1, target.vector_bytes // 4)
    while lanes > 4 and lanes // 2 >= form.out_channels:
        lanes //= 2
    vectors_needed = max(1, -(-form.out_channels // lanes))
    for most in range(1, VECTORS_MOST[target.register_tier] + 1):
        vectors = -(-vectors_needed // -(-vectors_needed // most))
        yield (
            max(1, min(POSITIONS_MOST[target.register_tier], ACCUMULATORS[target.register_tier] // vectors)),
            vectors,
            lanes,
        )


def nhwc_tiling(
    form: ConvForm,
    axis: str,
    shape: tuple[int, int, int],
    target: CpuTarget,
    number: NumberFormat,
    pieces: int,
    bands: int,
) -> NhwcTiling:
    """The tiling with that register tile."""
    positions, vectors, lanes = shape
    panel, by_rows = vectors * lanes, number.scales_rows
    as_stored = not number.is_reduced or (number.is_integral and not number.tiled)
    in_place = as_stored and reads_in_place(form)
    budget = target.l2_bytes // (4 if by_rows else 10) * (4 // number.item.itemsize if not by_rows else 1)
    columns, lines = cut_lines(form, positions, budget, in_place or number.is_reduced, pieces)
    if by_rows:
        columns, lines = max(1, form.out_width), 1 if form.out_height == 1 else lines
    blocks = -(-form.out_width // columns) if form.out_height == 1 and not by_rows else form.out_height
    together, in_a_tile = tile_lines_of(form, shape, number)
    lines = max(1, min(-(-lines // together) * together, -(-blocks // bands)))
    high, wide = patch_extent(form, *_together(form, columns, lines))
    high *= form.depth.kernel
    elements = 0 if in_place else high * wide * patch_channels(form, number)
    joined = by_rows and form.spatial == 1  # as accesses see it
    made = NhwcTiling(
        axis,
        panel,
        vectors,
        lanes,
        form.planes if form.pixels and form.out_channels else 0,
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
        _patch_bytes(form, (high, wide), elements, number) + _behind_patch(form, positions, together, number),
        wide * form.channels if by_rows and not is_dense(form) else 0,
        number,
        bands=bands,
        tile_lines=together,
        joined=in_a_tile,
        line_gap=patch_extent(form, 1, form.out_width)[1] if in_a_tile > 1 else 0,
    )
    return _from_afar(made, form, target)


def tile_lines_of(form: ConvForm, shape: tuple[int, int, int], number: NumberFormat) -> tuple[int, int]:
    """Lines that a register tile holds in tiles, as many as there are tiles for, where one is enough for a whole line;
    and how many of them one of the CPU's tiles does. Formats that scale rows take each by itself."""
    positions, vectors, lanes = shape
    if not number.tiled or number.scales_rows or form.out_height == 1 or positions < form.out_width:
        return 1, 1
    joined = joined_lines(form)
    tiles = SUM_TILES * TILE_ROWS // (vectors * lanes) // -(-positions // TILE_ROWS)
    return max(1, min(tiles, -(-form.out_height // joined))) * joined, joined


def joined_lines(form: ConvForm) -> int:
    """Whole lines that the rows of one of the CPU's tiles hold: those behind one another in the patch."""
    if form.strides != (1, 1) or form.out_width > TILE_ROWS:
        return 1
    return max(1, min((TILE_ROWS - form.out_width) // patch_extent(form, 1, form.out_width)[1] + 1, form.out_height))


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
        or not always_meets(form.depth)
        or not fitting
        or 4 * tiling.open_positions * tiling.tile_rows > _PARKED * target.l2_bytes
    ):
        return made
    return replace(made, pieces=form.taps * fitting[0])


def _patch_bytes(form: ConvForm, extent: tuple[int, int], elements: int, number: NumberFormat) -> int:
    """Of a patch of so many rows, of all depths, and columns; where words of bytes end behind it, of those too."""
    if number.scales_rows:
        return -(-(extent[0] * patch_row_bytes(form, extent[1]) + _BEHIND) // 64) * 64
    if number.is_integral and elements:
        return -(-(elements + _BEHIND) // 64) * 64
    return elements * number.item.itemsize


def _behind_patch(form: ConvForm, positions: int, tile_lines: int, number: NumberFormat) -> int:
    """Bytes behind a patch that the last register tiles of a row and of an image read in tiles: those of as many lines
    and positions as they lack, and what a word of bytes may have behind its run."""
    if not number.tiled:
        return 0
    beyond = (tile_lines - 1) * form.strides[0] * patch_extent(form, 1, form.out_width)[1]
    items = (beyond + positions * form.strides[1]) * patch_channels(form, number)
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
    lines, deep = count, form.depth.kernel * form.channels
    while lines > 1 and prod(patch_extent(form, *_together(form, columns, lines))) * deep > budget:
        lines -= 1
    return columns, -(-count // -(-count // lines))
