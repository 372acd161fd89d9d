"""aicore.pool: windows over images on a vector core (geometry: families/aicore/pool; global pools: rows).

Model of a tile: load the slab, make it channels last and of the work's type; combine rows (`_down`: one command per
tap for all output rows), then columns (`_across`: one command per tap and output row), finish (mean, root), store. A
tap that some outputs have in the padding is combined over the outputs that have it inside; the first two taps that
all have are combined straight into the result, which else begins as the identity. So no padding is ever stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.kernels import rows
from superkernel.codegen.aicore.kernels.pool_taps import Taps, overlap
from superkernel.codegen.aicore.kernels.row_task import coordinates
from superkernel.codegen.aicore.kernels.row_transfer import BITS
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part
from superkernel.codegen.aicore.scalar import Number
from superkernel.codegen.aicore.tileprogram import TileProgram
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.ops.pool import window_counts
from superkernel.ops.windows import Window
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.lowering import bits_of, engine_type
from superkernel.scheduler.families.aicore.pool import (
    GlobalPoolTiling,
    PoolTiling,
    buffers_of,
    code_behind,
    planar_stride,
    reduction_of,
    slab_of,
    stored_dtype,
    work_of,
)
from superkernel.scheduler.families.aicore.tilecode import TileSize
from superkernel.scheduler.families.pool import pool_form
from superkernel.scheduler.families.rowops import integer
from superkernel.target.engines import Local


class _Pool:
    """The kernel of one body. Extents of a tile's slab and output are numbers of the control unit."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: PoolTiling) -> None:
        self.kb, self.body, self.t = kb, body, tiling
        self.form = pool_form(body)
        self.deep, self.high, self.wide = self.form.windows
        self.dtype, self.work = engine_type(self.form.dtype), work_of(body)
        self.out_dtype = engine_type(stored_dtype(body))
        identity = bits_of(_lowest(self.dtype), self.work) if body.op == "max_pool" else 0
        self.taps = Taps(kb, self.work, "v_max" if body.op == "max_pool" else "v_add", identity)
        self.slab_rows, self.slab_cols = slab_of(self.form, tiling)
        self.column = tiling.channel_stride * self.work.itemsize  # bytes from column to column
        self.pitch = self.slab_cols * self.column  # bytes from row to row of the slab
        self.block = kb.target.memory.block_bytes
        self.uses_acc = self.high.kernel > 1 or self.deep.kernel > 1
        self.exponent = integer(body.attr["p"]) if body.op == "lp_pool" else 0
        self._allocate()

    def _allocate(self) -> None:
        kb, need, depth = self.kb, buffers_of(self.body, self.t, self.block), self.t.depth
        self.ring_in, self.ring_out = kb.ring("in", depth), kb.ring("out", depth)
        self.raw = kb.buffer(self.ring_in, Local.UB, need.raw, "raw")
        self.slab = kb.fixed(Local.UB, need.slab, "slab") if need.slab else self.raw
        self.data = kb.fixed(Local.UB, need.work, "work") if need.work else self.slab
        self.acc = kb.fixed(Local.UB, need.acc, "acc") if need.acc else self.data
        sums = kb.fixed(Local.UB, need.sums, "sums") if need.sums else None
        self.across = kb.buffer(self.ring_out, Local.UB, need.across, "across", top=True) if need.across else None
        code = code_behind(self.body)
        self.behind: TileProgram | None = None
        if code is None:
            self.out: Buffer = kb.buffer(self.ring_out, Local.UB, need.out, "out", top=True)
        else:
            size = TileSize(self.t.cols, self.t.channels, self.block)
            self.out = kb.buffer(self.ring_out, Local.UB, self.t.cols * self.column, "taken", top=True)
            ring, anchors = kb.ring("behind", depth), [self.out.rows(self.column)]
            self.behind = TileProgram(kb, self.body.epilogue, code, size, ring, self.ring_out, anchors=anchors)
        self.sums = sums or self.out
        ragged = self.form.channels % self.t.channels or self.t.channels != self.t.channel_stride
        if self.t.planar_in and ragged:  # lanes behind the channels are combined, never stored
            count, lanes = self.slab_rows * self.slab_cols, self.t.channel_stride
            slab = self.slab.rows(lanes * self.dtype.itemsize)
            kb.issue("v_duplicate", self.dtype, dst=slab, rows=count, cols=lanes, value=0)

    # Units ------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All units of the range."""
        kb, t = self.kb, self.t
        with kb.loop(kb.begin, kb.end) as unit:
            at = coordinates(unit, t.space)
            self.image, self.depth = at[0], at[1]
            self.row, self.rows = self._block(at[2], t.rows, self.high.size)
            self.col, self.cols = self._block(at[3], t.cols, self.wide.size)
            self.channel, self.channels = self._block(at[4], t.channels, self.form.channels)
            self.top, self.height = self._reach(self.high, self.row, self.rows)
            self.left, self.width = (
                (0, self.wide.extent) if t.col_blocks == 1 else self._reach(self.wide, self.col, self.cols)
            )
            self._tile()

    def _block(self, number: Number, size: int, extent: int) -> tuple[Number, Number]:
        """Start and extent of a block."""
        start = number * size
        return start, size if extent % size == 0 else self.kb.minimum(extent - start, size)

    def _reach(self, window: Window, first: Number, count: Number) -> tuple[Number, Number]:
        """Start and extent of the inputs that outputs reach (`reach_of` at run time)."""
        kb = self.kb
        start = kb.maximum(first * window.stride - window.begin, 0)
        stop = (first + (count - 1)) * window.stride + (window.reach - window.begin)
        return start, kb.minimum(stop, window.extent) - start

    def _tile(self) -> None:
        kb = self.kb
        with ExitStack() as stack:
            if self.behind is None:
                stack.enter_context(kb.turn(self.ring_out))
            if self.deep.kernel == 1:
                with kb.turn(self.ring_in):
                    self._load(self.depth * self.deep.stride)
                    self._down(self.high)
                    self._sideways()
            else:
                self._deep()
                self._sideways()
            self._finish()
            if self.behind is None:
                self._store()
            else:
                self._store_through(self.behind)

    def _deep(self) -> None:
        """One slab per tap of the depth that lies inside."""
        kb = self.kb
        self.taps.fill(self.acc.rows(self.pitch), self.rows, self.pitch // self.work.itemsize)
        with kb.loop(0, self.deep.kernel) as tap:
            depth = self.depth * self.deep.stride + tap * self.deep.dilation - self.deep.begin
            inside = kb.when(kb.compare(">=", depth, 0)), kb.when(kb.compare("<", depth, self.deep.extent))
            with inside[0], inside[1], kb.turn(self.ring_in):
                self._load(depth)
                self._down(self.high, onto=True)

    # Loading ----------------------------------------------------------------------------------------------------------

    def _load(self, depth: Number) -> None:
        """The slab, channels last, in the type of the work."""
        kb, item = self.kb, self.dtype.itemsize
        count = self.height * self.width
        start = self._address(depth)
        if self.t.planar_in:
            raw = self.raw.rows(planar_stride(self.slab_rows * self.slab_cols, item, self.block))
            slab = self.slab.rows(self.t.channel_stride * item)
            kb.load_rows(raw, start.rows(self.form.strides[1] * item), BITS[item], self.channels, count)
            kb.issue("v_transpose", BITS[item], dst=slab, src=raw, rows=self.channels, cols=count)
        else:
            self._load_last(start, item)
        if self.data is not self.slab:
            self._slab_op("v_cast", (self.dtype, self.work), self.data, self.slab)
        if self.body.op == "lp_pool":
            if self.exponent == 2:
                self._square()
            else:
                self._power(self.exponent)

    def _address(self, depth: Number) -> Address:
        form, item = self.form, self.dtype.itemsize
        at = (self.image, self.channel, depth, self.top, self.left)
        place: Number = form.x.offset * item
        for start, stride in zip(at, form.strides, strict=True):
            place = place + start * (stride * item)
        return self.kb.operand(form.x.operand, place)

    def _load_last(self, start: Address, item: int) -> None:
        """Channels last in global memory too."""
        kb, form, lanes = self.kb, self.form, self.t.channel_stride
        row, column = form.strides[3] * item, form.strides[4] * item
        whole = self.t.col_blocks == 1 and (row == self.wide.extent * column or self.high.extent == 1)
        full = isinstance(self.channels, int) and self.channels == lanes
        if whole and full and column == lanes * item:
            kb.issue("gm_to_ub", dst=self.raw, src=start, bytes=self.height * (self.width * column))
            return
        pad: dict[str, Any] = {} if full else {"right": lanes - self.channels}

        raw, start = self.raw.rows(lanes * item), start.rows(column)
        if whole:
            kb.load_rows(raw, start, BITS[item], self.height * self.width, self.channels, **pad)
            return
        with kb.loop(0, self.height) as r:
            line = raw.at(r * (self.slab_cols * lanes * item))
            kb.load_rows(line, start.at(r * row), BITS[item], self.width, self.channels, **pad)

    # Commands ---------------------------------------------------------------------------------------------------------

    def _slab_op(self, name: str, types: Sequence[DType], dst: Buffer, src: Buffer, **extra: int) -> None:
        """dst = f(src) on the slab."""
        step, lanes = self.slab_cols * self.t.channel_stride, self.width * self.t.channel_stride
        to, source = dst.rows(step * types[-1].itemsize), src.rows(step * types[0].itemsize)
        self.kb.issue(name, *types, dst=to, src=source, rows=self.height, cols=lanes, **extra)

    def _sums_op(self, name: str, types: Sequence[DType], dst: Buffer, **extra: int) -> None:
        """dst = f(sums) on the tile."""
        step, lanes = self.t.cols * self.t.channel_stride, self.cols * self.t.channel_stride
        to, source = dst.rows(step * types[-1].itemsize), self.sums.rows(step * types[0].itemsize)
        self.kb.issue(name, *types, dst=to, src=source, rows=self.rows, cols=lanes, **extra)

    def _down(self, window: Window, onto: bool = False) -> None:
        """Combine rows into `acc`; `onto`: onto what it has."""
        if not self.uses_acc:
            return
        lanes, acc, data = self.width * self.t.channel_stride, self.acc.rows(self.pitch), self.data.rows(self.pitch)
        taps = list(range(window.kernel))
        if not onto:
            taps = self.taps.begin(window, acc, self.row, self.rows, self.top, data, lanes)
        for tap in taps:
            with self.taps.inside(window, tap, self.row, self.rows) as (first, count):
                dst = acc.at((first - self.row) * self.pitch)
                self.taps.onto(dst, dst, self.taps.source(window, tap, first, self.top, data), count, lanes)

    def _sideways(self) -> None:
        """Combine columns into `sums`: for all rows at once where windows do not overlap, else row by row."""
        kb, window, lanes = self.kb, self.wide, self.t.channel_stride
        rows_apart = 1 if self.uses_acc else self.high.stride
        line = self.t.cols * self.column
        full = all(window.taps(tap) == (0, window.size) for tap in range(window.kernel))
        if full and rows_apart == 1 and self.t.col_blocks == 1 and window.extent == window.size * window.stride:
            self._columns(self.acc.at(0), self.sums.at(0), self.rows * self.cols, lanes)
            return
        with kb.loop(0, self.rows) as r:
            self._columns(self.acc.at(r * (rows_apart * self.pitch)), self.sums.at(r * line), self.cols, lanes)

    def _columns(self, src: Part, dst: Part, count: Number, lanes: int) -> None:
        window, src, dst = self.wide, src.rows(self.column), dst.rows(self.column)
        for tap in self.taps.begin(window, dst, self.col, count, self.left, src, lanes):
            with self.taps.inside(window, tap, self.col, count) as (first, number):
                place = dst.at((first - self.col) * self.column)
                self.taps.onto(place, place, self.taps.source(window, tap, first, self.left, src), number, lanes)

    # Results ----------------------------------------------------------------------------------------------------------

    def _power(self, p: int) -> None:
        """|x|^p of the slab, in place; x^p is exp(p * ln x), with ln 0 = -inf."""
        types = (self.work,)
        self._slab_op("v_abs", types, self.data, self.data)
        if p > 1:
            self._slab_op("v_ln", types, self.data, self.data)
            self._slab_op("v_muls", types, self.data, self.data, value=bits_of(float(p), self.work))
            self._slab_op("v_exp", types, self.data, self.data)

    def _square(self) -> None:
        """x^2 of the slab, in place."""
        data, lanes = self.data.rows(self.pitch), self.width * self.t.channel_stride
        self.kb.issue("v_mul", self.work, dst=data, a=data, b=data, rows=self.height, cols=lanes)

    def _finish(self) -> None:
        """From sums to means or roots."""
        types = (self.work,)
        if self.body.op == "avg_pool":
            self._divide()
        elif self.body.op == "lp_pool" and self.exponent == 2:
            self._sums_op("v_sqrt", types, self.sums)
        elif self.body.op == "lp_pool" and self.exponent > 2:
            self._sums_op("v_ln", types, self.sums)
            self._sums_op("v_muls", types, self.sums, value=bits_of(1.0 / self.exponent, self.work))
            self._sums_op("v_exp", types, self.sums)

    def _divide(self) -> None:
        """By how many positions each window counts: a product of one number per axis, few of them different."""
        kb, line = self.kb, self.t.cols * self.column
        padded = bool(self.body.attr["count_include_pad"])
        deep, high, wide = (self._segments(w, padded) for w in (self.deep, self.high, self.wide))
        common = 1.0
        for segments in (deep, high, wide):
            if len(segments) == 1:
                common /= segments[0][2]
        lanes, sums = self.cols * self.t.channel_stride, self.sums.rows(line)
        if common != 1.0:
            self._times(sums, self.rows, lanes, common)
        for first, stop, count in deep if len(deep) > 1 else []:
            if count > 1:
                with kb.when(kb.compare(">=", self.depth, first)), kb.when(kb.compare("<", self.depth, stop)):
                    self._times(sums, self.rows, lanes, 1.0 / count)
        for first, stop, count in high if len(high) > 1 else []:
            if count > 1:
                with overlap(kb, first, stop, self.row, self.rows) as (start, number):
                    self._times(sums.at((start - self.row) * line), number, lanes, 1.0 / count)
        for first, stop, count in wide if len(wide) > 1 else []:
            if count > 1:
                with overlap(kb, first, stop, self.col, self.cols) as (start, number):
                    place = sums.at((start - self.col) * self.column)
                    self._times(place, self.rows, number * self.t.channel_stride, 1.0 / count)

    def _segments(self, window: Window, padded: bool) -> list[tuple[int, int, int]]:
        """Runs of outputs whose windows count as many positions along an axis: first, stop, count."""
        counts = [max(1, int(c)) for c in window_counts(window, padded)]
        found: list[tuple[int, int, int]] = []
        for k, count in enumerate(counts):
            if found and found[-1][2] == count:
                found[-1] = (found[-1][0], k + 1, count)
            else:
                found.append((k, k + 1, count))
        return found

    def _times(self, dst: Part, count: Number, lanes: Number, factor: float) -> None:
        self.kb.issue("v_muls", self.work, dst=dst, src=dst, rows=count, cols=lanes, value=bits_of(factor, self.work))

    # Storing ----------------------------------------------------------------------------------------------------------

    def _store(self) -> None:
        """The tile, in the output's type and layout."""
        kb, item, lanes = self.kb, self.out_dtype.itemsize, self.t.channel_stride
        out = self.body.epilogue.outputs[0]
        if self.sums is not self.out:
            same = self.out_dtype is self.work
            self._sums_op(
                "v_copy" if same else "v_cast", (self.work,) if same else (self.work, self.out_dtype), self.out
            )
        strides = (*out.strides[:2], *(0,) * (3 - self.form.spatial), *out.strides[2:])
        place: Number = out.offset * item
        at = (self.image, self.channel, self.depth, self.row, self.col)
        for start, stride in zip(at, strides, strict=True):
            place = place + start * (stride * item)
        target = kb.operand(out.target, place)
        if self.across is not None:
            across = self.across.rows(planar_stride(self.t.rows * self.t.cols, item, self.block))
            last, rows = self.out.rows(lanes * item), self.rows * self.t.cols
            kb.issue("v_transpose", BITS[item], dst=across, src=last, rows=rows, cols=self.channels)
            kb.store_rows(target.rows(strides[1] * item), across, self.channels, self.rows * (self.t.cols * item))
            return
        self._store_last(target, strides[3] * item, strides[4] * item)

    def _store_last(self, target: Address, row: int, column: int) -> None:
        """Channels last in global memory too."""
        kb, item, lanes = self.kb, self.out_dtype.itemsize, self.t.channel_stride
        whole = self.t.col_blocks == 1 and (row == self.wide.size * column or self.high.size == 1)
        full = isinstance(self.channels, int) and self.channels == lanes
        if whole and full and column == lanes * item:
            kb.issue("ub_to_gm", dst=target, src=self.out, bytes=self.rows * (self.t.cols * column))
            return

        target, out = target.rows(column), self.out.rows(lanes * item)
        if whole:
            kb.store_rows(target, out, self.rows * self.t.cols, self.channels * item)
            return
        with kb.loop(0, self.rows) as r:
            line = out.at(r * (self.t.cols * lanes * item))
            kb.store_rows(target.at(r * row), line, self.cols, self.channels * item)

    def _store_through(self, behind: TileProgram) -> None:
        """Row by row through the program that takes the results."""
        kb, lanes = self.kb, self.t.channel_stride
        rings = tuple(dict.fromkeys((*behind.rings, self.ring_out)))
        with kb.loop(0, self.rows) as r, kb.turn(*rings):
            line = self.sums.at(r * (self.t.cols * self.column))
            kb.issue("v_copy", self.work, dst=self.out, src=line, rows=1, cols=self.cols * lanes)
            spatial = (self.depth, self.row + r, self.col)[3 - self.form.spatial :]
            behind.run((self.image, self.channel, *spatial), self.cols, self.channels)


def _lowest(dtype: DType) -> float:
    """What no element of the type is below."""
    if dtype.is_float:
        return -math.inf
    bits = 8 * dtype.itemsize
    return -(1 << bits - 1) if dtype.is_signed else 0


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """Write the kernel."""
    if isinstance(tiling, GlobalPoolTiling):
        rows.emit(kb, reduction_of(body), tiling.rows)
        return
    if not isinstance(tiling, PoolTiling):
        raise InternalError("not a pool", location=str(body.op), found=type(tiling).__name__)
    _Pool(kb, body, tiling).run()
