"""Which cuts of a convolution the accelerator's cube kernel offers: the search over blocks of positions and channels.

Model: a cut is made of a block of positions, a block of output channels and what a range holds in L1; everything else
(steps of the depth, slots of the rings) follows from the sizes of the memories. All cuts that fit are weighed by the
longest range of an even split over the device's cube cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, View
from superkernel.registry.predicates import Reason, one_of, within
from superkernel.registry.rounding import EXACT, PRODUCT_SUMS
from superkernel.scheduler.families.aicore import depthwise
from superkernel.scheduler.families.aicore.base import AicoreTiling, check_group, mixes
from superkernel.scheduler.families.aicore.conv_fix import CHANNEL, FixForm
from superkernel.scheduler.families.aicore.conv_form import TYPES, CubeConv, ImageLoad, cube_conv, unsupported
from superkernel.scheduler.families.aicore.conv_mix import LANES, lane_form
from superkernel.scheduler.families.aicore.conv_tiling import (
    IMAGE,
    NOTHING,
    STEP,
    WEIGHTS,
    ConvTiling,
    conv_fix,
    is_empty,
    ranked_cycles,
    vector_packs,
    window_extent,
)
from superkernel.scheduler.families.aicore.kernel import FLOATS, AicoreKernelDef
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.aicore import AicoreTarget

_OFFERED = 3  # tilings, best first
_POSITIONS = (*range(16, 272, 16), 288, 320, 352, 384, 448, 512, 640, 768, 1024)
_CHANNELS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_CHUNK_BYTES = (32768, 65536, 131072)  # of weights that stream: large enough to be near the full rate
_FLAGS = 6  # that one pair of engines has for rings
_ROW_MAX = 65535  # elements of a row, rows of a transfer


@dataclass(frozen=True)
class _Frame:
    """A block of positions."""

    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    framed: bool


def channels_inside(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True where the channels of a pixel stand side by side and nothing runs backwards."""
    return (shape[CHANNEL] == 1 or strides[CHANNEL] == 1) and min(strides, default=0) >= 0


class ConvFamily(KernelFamily[AicoreTarget]):
    """Convolutions of one and two dimensions, any groups, with constant weights."""

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        if slot == 0:
            return len(view.shape) in (3, 4) and dtype in TYPES and channels_inside(view.shape, view.strides)
        return slot < 3

    def accepts_store(self, kernel: str, op: str, view: View, dtype: DType) -> bool:
        return channels_inside(view.shape, view.strides)

    def accepts_epilogue(self, kernel: str, target: AicoreTarget) -> bool:
        return mixes(target, (LANES,))

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        return _offers(body, target)


@lru_cache(maxsize=256)
def _offers(body: Body, target: AicoreTarget) -> tuple[AicoreTiling, ...]:
    found: list[AicoreTiling] = list(cube_tilings(body, target)[:_OFFERED])
    if depthwise.serves(body) and not is_empty(body):
        found += depthwise.tilings(body, target)[:_OFFERED]
    return tuple(sorted(found, key=lambda t: _longest(t, body, target)))


def _longest(tiling: AicoreTiling, body: Body, target: AicoreTarget) -> float:
    """Cycles of the longest range of an even split."""
    device = target.device
    cores = device.cube_cores if tiling.kernel_type.uses_cube else device.vector_cores
    return tiling.ranked_cycles(body, 0, -(-tiling.units // int(cores)), target)


def cube_tilings(body: Body, target: AicoreTarget, every: bool = False) -> tuple[ConvTiling, ...]:
    """Cuts for the cube, cheapest first; `every`: those too that cannot be the cheapest."""
    conv, fix = cube_conv(body), conv_fix(body)
    if is_empty(body):
        return (_empty_tiling(fix is not None),)
    if fix is None:
        check_group(target, (LANES,), "the vector cores cannot finish a convolution")
    found = _Search(body, conv, fix, target).run(every)
    if not found:
        raise unsupported(
            "no tile of a convolution fits the local memories",
            "larger memory.l1_bytes, memory.l0a_bytes, memory.l0b_bytes or memory.l0c_bytes",
            f"{conv.kernel} taps of {conv.channels} channels",
        )
    return tuple(sorted(found, key=lambda t: found[t]))


def _empty_tiling(fix: bool) -> ConvTiling:
    return ConvTiling(
        NOTHING, ImageLoad.FLAT, 1, fix, 0, 1, 1, 1, 1, 1, False, 1, 1, 16, 16, 16, 16, 32, 1, (1, 1, 1, 1)
    )


class _Search:
    def __init__(self, body: Body, conv: CubeConv, fix: FixForm | None, target: AicoreTarget) -> None:
        self.body, self.conv, self.fix, self.target = body, conv, fix, target
        self.block = int(target.memory.block_bytes) // conv.item  # elements of a block
        self.even = self._evenly_stored()
        packs = vector_packs(body, conv, fix is not None)
        self.vector_bytes = sum(ceil_to(p.packed_bytes(body.operands[o].type), 32) for o, p in packs.items())

    def _evenly_stored(self) -> bool:
        """Whether results of any run of output positions are evenly spaced."""
        if self.fix is None:
            return lane_form(self.body, self.conv.epilogue, False) is not None
        if 1 in (self.conv.out_height, self.conv.out_width):
            return True
        rows, columns = (self.fix.strides[d] for d in self.conv.spatial)
        return rows == columns * self.conv.out_width

    def run(self, every: bool) -> dict[ConvTiling, float]:
        """Cuts that fit, with what they are ranked by: cycles of the longest range of an even split. Without `every`,
        blocks whose sums or stores alone take longer than the best cut so far are left out."""
        found: dict[ConvTiling, float] = {}
        best = float("inf")
        for frame in dict.fromkeys(self._frames()):
            load = self._load(frame)
            if load is None:
                continue
            for channels in dict.fromkeys(self._channel_blocks()):
                if not every and self._least_cycles(frame, channels) >= best:
                    continue
                for tiling in (
                    t for hold in (NOTHING, WEIGHTS, IMAGE) for t in self._fitted(frame, load, channels, hold)
                ):
                    found[tiling] = ranked_cycles(tiling, self.conv, self._share(tiling.units), self.target)
                    best = min(best, found[tiling])
        return found

    def _share(self, units: int) -> int:
        """Units of the longest range."""
        return -(-units // int(self.target.device.cube_cores))

    def _least_cycles(self, frame: _Frame, channels: int) -> float:
        """What the cube and FIX take for the longest range at least."""
        conv, cube, target = self.conv, self.target.cube, self.target
        blocks = frame.row_blocks * frame.column_blocks * -(-conv.out_channels // channels)
        m, n = -(-frame.rows * frame.columns // cube.m), -(-channels // cube.n)
        step = {4: cube.k_f32, 1: cube.k_i8}.get(conv.item, cube.k_f16)
        depth = -(-conv.kernel[0] * conv.kernel[1] * conv.channels // step)
        item = conv.item if self.fix and conv.dtype is not DType.I8 else 4
        stored = frame.rows * min(frame.columns, conv.out_width) * channels * item
        fix = target.move_cycles("rates.l0c_to_gm_gb_per_s", 1, stored)
        return self._share(conv.images * conv.groups * blocks) * max(m * n * depth, fix)

    def _channel_blocks(self) -> Iterator[int]:
        out = self.conv.out_channels
        for wanted in _CHANNELS:
            if wanted < out:
                yield ceil_to(-(-out // -(-out // wanted)), STEP)
        if out <= max(_CHANNELS):
            yield out

    def _frames(self) -> Iterator[_Frame]:
        conv = self.conv
        high, wide = conv.out_height, conv.out_width
        for wanted in _POSITIONS:
            if self.even:
                rows = max(1, min(high, wanted // wide))
                rows = -(-high // -(-high // rows))
                rows = ceil_to(rows, STEP) if wide == 1 and rows < high else rows
                yield _Frame(rows, wide, -(-high // rows), 1, False)
            for columns in {min(ceil_to(wide, STEP), c) for c in (16, 32, 64, 128, 256, ceil_to(wide, STEP))}:
                blocks = -(-wide // columns)
                if (self.even and blocks == 1) or self._late(columns, blocks):
                    continue
                rows = max(1, min(high, wanted // columns))
                rows = -(-high // -(-high // rows))
                yield _Frame(rows, columns, -(-high // rows), blocks, True)

    def _late(self, columns: int, blocks: int) -> bool:
        """Whether a block of columns begins behind the image: those have no place in the command's coordinates."""
        return (blocks - 1) * columns * self.conv.strides[1] - self.conv.pads[1] > self.conv.width - 1

    def _load(self, frame: _Frame) -> ImageLoad | None:
        conv = self.conv
        whole = frame.column_blocks == 1
        if conv.groups == 1 and whole and conv.rows_flat:
            return ImageLoad.FLAT
        dense = conv.line_dense and conv.groups == 1 and (conv.channels % self.block == 0)
        if dense and self._width(frame) * conv.channels <= _ROW_MAX:
            return ImageLoad.ROWS
        return ImageLoad.PIXELS if conv.channels <= _ROW_MAX else None

    def _width(self, frame: _Frame) -> int:
        return self.conv.width if frame.column_blocks == 1 else window_extent(self.conv, 1, frame.columns)

    def _fitted(self, frame: _Frame, load: ImageLoad, channels: int, hold: str) -> Iterator[ConvTiling]:
        conv, memory, item = self.conv, self.target.memory, self.conv.item
        pixel = conv.padded_channels(int(memory.block_bytes)) if load is ImageLoad.PIXELS else conv.channels
        depth = ceil_to(conv.kernel[0] * conv.kernel[1] * pixel, self.block)
        m, n = ceil_to(frame.rows * frame.columns, STEP), ceil_to(channels, STEP)
        step = min(memory.l0a_bytes // 2 // (m * item), memory.l0b_bytes // 2 // (n * item)) // self.block * self.block
        step = min(step, depth)
        width = self._width(frame)
        high = window_extent(conv, 0, frame.rows)
        image = high * width * pixel * item
        if step < self.block or m * n * 4 > memory.l0c_bytes or max(high, width, high * width) > _ROW_MAX:
            return
        blocks = -(-conv.out_channels // channels)
        tiles = conv.images * frame.row_blocks * frame.column_blocks * conv.groups * blocks
        many = tiles > self.target.device.cube_cores
        sums = 2 if many and 2 * m * n * 4 <= memory.l0c_bytes else 1
        lane_rows = self._lane_rows(frame, channels)
        if (hold != NOTHING and not many) or lane_rows is None:
            return
        free = memory.l1_bytes - self.vector_bytes
        for slots, head, chunk in dict.fromkeys(
            self._memory(hold, free, ceil_to(image, 32), channels * item, depth, step, many)
        ):
            yield ConvTiling(
                hold, load, pixel, self.fix is not None, conv.images, conv.groups, frame.rows, frame.columns,
                frame.row_blocks, frame.column_blocks, frame.framed, channels, blocks, depth, head, chunk, step, image,
                width, (*slots, sums), lane_rows,
            )  # fmt: skip

    def _lane_rows(self, frame: _Frame, channels: int) -> int | None:
        """Positions of a tile in a vector core; 0 where FIX does it all, None where none fits."""
        if self.fix is not None:
            return 0
        lanes, memory = lane_form(self.body, self.conv.epilogue, frame.framed), self.target.memory
        assert lanes is not None
        line = frame.columns if frame.framed else -(-frame.rows * frame.columns // LANES)
        return lanes.rows(line, channels, memory.ub_bytes, memory.block_bytes) or None

    def _memory(
        self, hold: str, free: int, image: int, row: int, depth: int, step: int, many: bool
    ) -> Iterator[tuple[tuple[int, int, int], int, int]]:
        """Slots of image, head and chunks, and the depths of head and chunk. `row`: bytes of one element of the depth
        over all channels of the block; `many`: ranges have several units."""
        images = 2 if many and hold != IMAGE and 2 * image <= free // 2 else 1
        free -= images * image
        whole = row * depth
        if hold != IMAGE and whole <= free:
            yield (images, 2 if many and 2 * whole <= free else 1, 1), depth, step
        if hold == WEIGHTS:
            return
        for size in _CHUNK_BYTES:
            chunk = min(ceil_to(depth, step), max(step, size // row // step * step))
            spare = _FLAGS - images - (0 if hold == IMAGE else 1)
            chunks = min(4 if hold == IMAGE else 2, free // (row * chunk), spare)
            if chunks < 1:
                continue
            left = free - chunks * row * chunk
            if hold == IMAGE:
                yield (images, 1, chunks), 0, chunk
                continue
            for quarters in range(4):
                first = min(depth * quarters // 4, left // row) // step * step
                pieces = -(-(depth - first) // chunk)
                even = ceil_to(-(-(depth - first) // pieces), step)
                yield (images, 1, min(chunks, pieces)), first, even


FAMILY = ConvFamily()

_FLOATS = AicoreKernelDef(
    id="aicore.conv",
    ops=("conv",),
    family=FAMILY,
    emitter="conv",
    micro="igemm",
    core_type="mix",
    dtypes=FLOATS,
    others=(None, None),
    limits=(
        one_of(Reason.CONSTANT, "weight.constant", True),
        one_of(Reason.CONSTANT, "bias.constant", True),
        within(Reason.RANK, "spatial", 1, 2),
    ),
    stepped=True,
    deep=True,
    rounding=PRODUCT_SUMS,
    code_bytes=8192,
)
KERNELS = (
    _FLOATS,
    replace(
        _FLOATS,
        id="aicore.conv.i8",  # sums of i32, exact modulo 2^32
        ops=("conv_integer",),
        modifier="i8",
        dtypes=frozenset({DType.I8}),
        others=(None,),
        limits=(
            *_FLOATS.limits,
            *(one_of(Reason.ATTRIBUTE, f"in{slot}.dtype", None) for slot in (2, 3, 4)),  # no bias, no zero points
        ),
        rounding=EXACT,
    ),
)
