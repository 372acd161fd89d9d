"""aicore.pool: how pools are cut for a vector core.

Model: a pool of [images, channels] planes over windows (depth, height, width). A tile is a block of `rows` x `cols`
outputs of one image and depth, for a block of `channels`; in UB it lies channels last: [row][column][channel], vectors
along the channels. The *slab* is the inputs its windows reach, clipped to the image. Windows are separable: rows of the
slab are combined first (for all output rows of the tile by one command per tap), then columns (one command per tap
and output row). Planes that lie in memory one after the other (NCHW) are turned in UB on the way in and out. A deep
window takes one slab per tap.

Global pools are reductions: they go the way of aicore.reduce.

Invariant: the order in which a window's elements are combined depends on its position alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.ops.windows import Window
from superkernel.registry.predicates import Reason, within
from superkernel.registry.rounding import ROW_SUMS
from superkernel.scheduler.families.aicore.base import AicoreTiling, VectorTiling
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.scheduler.families.aicore.kernel import BYTES, FLOATS, INTEGERS, AicoreKernelDef
from superkernel.scheduler.families.aicore.rounding import ceil_to, largest
from superkernel.scheduler.families.aicore.rows import FAMILY as ROWS
from superkernel.scheduler.families.aicore.rows import RowsTiling
from superkernel.scheduler.families.aicore.tilecode import COUNT_MAX, Home, TileCode, TileSize
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.pool import GLOBAL, PoolForm, pool_form
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.aicore import AicoreTarget

CANDIDATES_MAX = 8


def work_of(body: Body) -> DType:
    """The type a pool computes in: f32 for sums and for bf16, else what represents the input exactly."""
    dtype = pool_form(body).dtype
    if body.op != "max_pool":
        return DType.F32
    if dtype.itemsize == 1:
        return DType.F16
    return DType.F32 if dtype is DType.BF16 else dtype


def reach_of(window: Window, first: int, last: int) -> tuple[int, int]:
    """The inputs from the first to the last that outputs first..last-1 reach, clipped to the input."""
    begin = first * window.stride - window.begin
    end = (last - 1) * window.stride - window.begin + window.reach
    return max(0, begin), min(window.extent, end)


@dataclass(frozen=True)
class PoolTiling(VectorTiling):
    """See the module docstring. `channel_stride`: elements from column to column in UB; `planar_in`, `planar_out`:
    turned on the way in, out."""

    images: int
    depths: int
    rows: int
    row_blocks: int
    cols: int
    col_blocks: int
    channels: int
    channel_blocks: int
    channel_stride: int
    planar_in: bool
    planar_out: bool
    depth: int

    @property
    def space(self) -> tuple[int, ...]:
        """Units as a box: image, depth, block of rows, of columns, of channels."""
        return (self.images, self.depths, self.row_blocks, self.col_blocks, self.channel_blocks)

    @property
    def units(self) -> int:
        return prod(self.space)

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = pool_form(body), AccessSet(body)
        deep, high, wide = form.windows
        for image, depth, rows, cols, channels in runs_of_range(self.space, begin, end):
            row = (rows[0] * self.rows, min(high.size, rows[1] * self.rows))
            col = (cols[0] * self.cols, min(wide.size, cols[1] * self.cols))
            channel = (channels[0] * self.channels, min(form.channels, channels[1] * self.channels))
            found.program(body.epilogue, (image, channel, *(depth, row, col)[3 - form.spatial :]))
            wide_reach = (0, wide.extent) if self.col_blocks == 1 else reach_of(wide, *col)
            box = (image, channel, reach_of(deep, *depth), reach_of(high, *row), wide_reach)
            if all(a < b for a, b in box):
                found.view(form.x.operand, box, form.strides, form.x.offset)
        return found.result()

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        load, work, store = self._engines(body, target)
        slowest = max(load, work, store)
        return (end - begin) * slowest + (load + work + store - slowest)

    def _engines(self, body: Body, target: AicoreTarget) -> tuple[float, float, float]:
        """Cycles of MTE2, V and MTE3 for a unit."""
        form = pool_form(body)
        deep, high, wide = form.windows
        size = slab_of(form, self)
        item, wide_work = form.dtype.itemsize, work_of(body).itemsize
        lanes = target.vector.lanes_16bit if wide_work < 4 else target.vector.lanes_32bit
        start = target.vector.startup_cycles
        elements = size[0] * size[1] * self.channel_stride
        load = target.dma.startup_cycles + target.transfer_cycles("rates.gm_to_ub_gb_per_s", elements * item)
        if self.channels != form.channels and not self.planar_in:
            load += size[0] * size[1] * target.dma.row_cycles
        passes = (work_of(body) is not form.dtype) + self.planar_in
        vertical = self.rows * size[1] * self.channel_stride / lanes + start
        beats = elements / lanes * passes + (high.kernel - 1) * vertical
        per_row = self.cols * -(-self.channels // lanes) + start
        beats += wide.kernel * self.rows * per_row + (2 + self.planar_out) * start
        out = self.rows * self.cols * self.channel_stride
        beats += out / lanes * (1 + self.planar_out)
        store = target.move_cycles("rates.ub_to_gm_gb_per_s", 1, int(out * item))
        return load * deep.kernel, beats * deep.kernel, float(store)


@dataclass(frozen=True)
class GlobalPoolTiling(VectorTiling):
    """A global pool as a reduction."""

    rows: RowsTiling

    @property
    def units(self) -> int:
        return self.rows.units

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return self.rows.accesses(reduction_of(body), begin, end)

    def align(self, body: Body, unit: int) -> int:
        return self.rows.align(reduction_of(body), unit)

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return self.rows.cost_cycles(reduction_of(body), begin, end, target)


@lru_cache(maxsize=1024)
def reduction_of(body: Body) -> Body:
    """A global pool as the reduction it is."""
    kind = body.anchor_input_types[0]
    assert kind is not None
    op = "reduce_mean" if body.op == "global_avg_pool" else "reduce_max"
    return replace(body, op=op, attrs=(("axes", tuple(range(2, kind.rank))), ("keepdims", True)))


def slab_of(form: PoolForm, tiling: PoolTiling) -> tuple[int, int]:
    """Rows and columns of the largest slab; all columns where tiles are not cut along them."""
    _, high, wide = form.windows
    return _largest(high, tiling.rows), wide.extent if tiling.col_blocks == 1 else _largest(wide, tiling.cols)


def _largest(window: Window, count: int) -> int:
    return min(window.extent, (count - 1) * window.stride + window.reach)


@dataclass(frozen=True)
class PoolBuffers:
    """Bytes of UB: `raw` in every slot of the input ring, `out` and `across` in every slot of the output ring."""

    raw: int
    slab: int  # channels last, of the input's type; 0: raw is that
    work: int  # in the type of the work; 0: the same
    acc: int  # rows combined; 0: there is one tap
    sums: int  # results in the type of the work; 0: computed in `out`
    out: int
    across: int
    behind: tuple[int, int]  # of a program that takes the results: input ring, once

    def total(self, depth: int, block: int) -> int:
        """Bytes of UB with rings of `depth` slots, each buffer a multiple of `block` bytes."""
        sizes = [self.raw, self.out, self.across, self.behind[0]] * depth
        sizes += [self.slab, self.work, self.acc, self.sums, self.behind[1]]
        return sum(ceil_to(n, block) for n in sizes)


def planar_stride(elements: int, item: int, block: int) -> int:
    """Bytes from plane to plane of turned tiles in UB."""
    return ceil_to(elements * item, block)


def buffers_of(body: Body, tiling: PoolTiling, block: int) -> PoolBuffers:
    """What a kernel allocates; `block`: `memory.block_bytes`."""
    form, t = pool_form(body), tiling
    height, width = slab_of(form, t)
    item, work = form.dtype.itemsize, work_of(body)
    slab = height * width * t.channel_stride
    tile = t.rows * t.cols * t.channel_stride
    out, code = stored_dtype(body), code_behind(body)
    size = TileSize(t.cols, t.channels, block)
    planar_in = planar_stride(height * width, item, block)
    planar_out = planar_stride(t.rows * t.cols, out.itemsize, block)
    deep = form.windows[0].kernel > 1
    return PoolBuffers(
        raw=t.channels * planar_in if t.planar_in else slab * item,
        slab=slab * item if t.planar_in else 0,
        work=slab * work.itemsize if work is not form.dtype else 0,
        acc=t.rows * width * t.channel_stride * work.itemsize if form.windows[1].kernel > 1 or deep else 0,
        sums=tile * work.itemsize if out is not work or code else 0,
        out=tile * out.itemsize if code is None else code.home_bytes(Home.OUTPUT, size)
        + t.cols * t.channel_stride * work.itemsize,
        across=t.channels * planar_out if t.planar_out and code is None else 0,
        behind=(0, 0) if code is None else (code.home_bytes(Home.INPUT, size), code.temporaries(size)[1]),
    )  # fmt: skip


def stored_dtype(body: Body) -> DType:
    """The element type of the first output."""
    return body.operands[body.epilogue.outputs[0].target].type.dtype


@lru_cache(maxsize=1024)
def code_behind(body: Body) -> TileCode | None:
    """The tile code of the program that takes the results of an output row, columns x channels; None for a plain
    store."""
    program, work = body.epilogue, work_of(body)
    if not program.instructions and len(program.inputs) == len(program.outputs) == 1:
        return None
    dtypes = tuple(body.operands[o.target].type.dtype for o in program.outputs)
    return lower(program, dtypes, len(program.shape) - 1, 1, anchors=(work,))


class PoolFamily(KernelFamily[AicoreTarget]):
    """Max, average and Lp pools, windowed or global."""

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        if body.op in GLOBAL:
            found = ROWS.by_rows(reduction_of(body), target)
            return [GlobalPoolTiling(t) for t in found]
        return _tilings(body, target)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        if op in GLOBAL:
            return ROWS.accepts_view("aicore.reduce", op, slot, view, dtype)
        return view.is_dense or (len(view.shape) <= 5 and is_channels_last(view.shape, view.strides))

    def accepts_store(self, kernel: str, op: str, view: View, dtype: DType) -> bool:
        return op in GLOBAL or view.is_dense or is_channels_last(view.shape, view.strides)


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether channels are contiguous, and columns of a row follow one another evenly."""
    return shape[1] == 1 or (strides[1] == 1 and all(s > 0 for s, d in zip(strides, shape, strict=True) if d > 1))


def _tilings(body: Body, target: AicoreTarget) -> list[AicoreTiling]:
    """Candidates: large tiles first, then smaller ones for more cores."""
    form = pool_form(body)
    _, high, wide = form.windows
    planar_in = not is_channels_last(form.x.shape, form.x.strides)
    out = body.epilogue.outputs[0]
    planar_out = not is_channels_last(body.anchor_outputs[0].shape, out.strides)
    block = target.memory.block_bytes
    narrow = min(form.dtype.itemsize, work_of(body).itemsize, body.operands[out.target].type.dtype.itemsize)
    empty = 0 in (form.images, form.channels, form.windows[0].size, high.size, wide.size)

    def make(rows: int, cols: int, channels: int, depth: int) -> PoolTiling:
        step = block // narrow
        return PoolTiling(
            0 if empty else form.images, form.windows[0].size, rows, -(-high.size // rows), cols, -(-wide.size // cols),
            channels, -(-form.channels // channels), ceil_to(channels, step), planar_in, planar_out, depth,
        )  # fmt: skip

    def fits(t: PoolTiling) -> bool:
        height, width = slab_of(form, t)
        counts = max(t.rows * t.cols, height * width, width * t.channel_stride, t.cols * t.channel_stride)
        return counts <= COUNT_MAX and buffers_of(body, t, block).total(t.depth, block) <= target.memory.ub_bytes

    if empty:
        return [make(1, 1, 1, 1)]

    def of_width(cols: int, channels: int, depth: int) -> Iterator[PoolTiling]:
        rows = largest(high.size, lambda rows: fits(make(rows, cols, channels, depth)))
        while rows:
            yield make(rows, cols, channels, depth)
            rows //= 2

    found: list[PoolTiling] = []
    widths = (wide.size, *(c for c in (64, 16, 4, 1) if c < wide.size and not (planar_in or planar_out)))
    blocks = dict.fromkeys(min(form.channels, c) for c in (form.channels, 512, 256, 128, 64, 32, 16))
    for depth, cols in product((2, 1), widths):
        found = found or [t for channels in blocks for t in of_width(cols, channels, depth)]
    if not found:
        raise UnsupportedError(
            "the unified buffer is too small for a pool", location="memory.ub_bytes",
            expected="room for the inputs of one output row", found=target.memory.ub_bytes,
        )  # fmt: skip
    share = max(1, target.device.vector_cores)

    def cost(t: PoolTiling) -> float:
        return t.cost_cycles(body, 0, -(-t.units // share), target)

    return list(sorted(found, key=cost)[:CANDIDATES_MAX])


FAMILY = PoolFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.pool",
        ops=("max_pool", "avg_pool", "lp_pool", "global_avg_pool", "global_max_pool"),
        family=FAMILY,
        emitter="pool",
        micro="pool",
        dtypes=FLOATS,
        exact={INTEGERS | BYTES: ("max_pool",)},
        limits=(within(Reason.RANK, "spatial", 1, 3),),
        rounding=ROW_SUMS,
    ),
)
