"""How convolutions of images that lie channels last are cut where int8 is allowed: any window, strides, groups.

Model: the cuts of `conv_nhwc`, always by way of a patch of bytes. Every *input row* (all columns and the channels of a
group that some output needs) is turned into unsigned bytes with a scale and a zero point of its own, found at run time
as those of rows of a matrix product are; weights are signed bytes with a scale per output channel. The sum over one
row of a window is exact in 32 bits; the row's scale makes it f32, rows of a window are added in f32, from the first
on, and the channel's scale comes last. Padding adds nothing: a padded column holds the row's zero point, a padded row
has scale 0.

Depth goes by words of four neighbours. A *run* is what lies side by side under a row of a window: all its columns and
channels (with dilated columns the channels of one tap). A panel of weights is [run][word][tile_rows][4] bytes, zeros
behind a run's end, then the i32 sums of the bytes per row of the window, then the f32 scales: what a zero point adds is
known from the sums.

A patch row is [scale, zero point, up to 64 bytes][columns][channels], `row_bytes` apart. A line is a whole output row,
that of a convolution in one dimension too: a row's scale does not depend on how the work is split. 1 x 1 convolutions,
whose rows and columns are one dimension elsewhere, have rows here (`rowed`).

A depthwise convolution has one run of few bytes per filter row: the registry's estimate leaves it to f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from typing import ClassVar

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.formats import INT8, NumberFormat
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body
from superkernel.ops.opdef import Array
from superkernel.scheduler.families.conv_form import ConvForm, conv_form
from superkernel.scheduler.families.conv_nhwc import (
    HIDDEN,
    NhwcTiling,
    cut_lines,
    filters_of,
    patch_extent,
)
from superkernel.scheduler.families.conv_nhwc_reduced import ReducedNhwcFamily, met_inputs, packed_filters, runs_of
from superkernel.scheduler.tiling import Pack
from superkernel.target.cpu import CpuTarget

HEAD_BYTES = 64
"""Of a patch row, ahead of its first column: f32 scale, i32 zero point."""

_ROW_STEPS = 3.0  # steps of depth that the end of a row of the window takes as long as
_REGISTERS = 30  # for sums and weights
_LOAD = 0.05  # time of a load, of a multiply-add
_BEHIND = 3  # bytes behind a row that its last word reads, times weights of 0


@dataclass(frozen=True)
class PackBytes(Pack):
    """Weights [groups * out, channels, rows, columns of taps] (a strided view; rows left out: one) as panels of bytes,
    see the module docstring. `run` taps are side by side."""

    groups: int
    out: int
    depth: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    rows: int
    run: int

    def apply(self, array: Array) -> Array:
        count = self.groups * self.out
        filters = filters_of(array, count, self.depth, self.strides, self.offset).astype(np.float32)
        panels, words, runs, lines = self._sizes()
        if not filters.size:
            return np.zeros(self.groups * panels * self._panel_bytes(), np.uint8)
        flat = filters.reshape(count, self.depth[0], -1)
        scale = (np.abs(flat).max(axis=(1, 2)) / np.float32(127)).astype(np.float32)
        divisor = np.where(scale > 0, scale, np.float32(1))[:, None, None]
        codes = np.clip(np.rint(flat / divisor), -127, 127).astype(np.int8).swapaxes(1, 2)
        packed = np.zeros((self.groups, panels * self.rows, runs, words * 4), np.int8)
        packed[:, : self.out, :, : self.run * self.depth[0]] = codes.reshape(self.groups, self.out, runs, -1)
        scales = np.zeros((self.groups, panels * self.rows), np.float32)
        scales[:, : self.out] = scale.reshape(self.groups, self.out)
        sums = packed.reshape(self.groups, panels, self.rows, lines, -1).sum(axis=-1, dtype=np.int32)
        packed = packed.reshape(self.groups, panels, self.rows, runs, words, 4).transpose(0, 1, 3, 4, 2, 5)
        parts = [packed, sums.swapaxes(2, 3), scales.reshape(self.groups, panels, self.rows)]
        blocks = [np.ascontiguousarray(p).reshape(self.groups, panels, -1).view(np.uint8) for p in parts]
        return np.concatenate(blocks, axis=2)

    def packed_bytes(self, kind: TensorType) -> int:
        return self.groups * self._sizes()[0] * self._panel_bytes()

    def _panel_bytes(self) -> int:
        _, words, runs, lines = self._sizes()
        return 4 * self.rows * (runs * words + lines + 1)

    def _sizes(self) -> tuple[int, int, int, int]:
        """Panels, words of a run, runs, rows of the window."""
        words = -(-self.run * self.depth[0] // 4)
        lines = prod(self.depth[1:-1])
        return -(-self.out // self.rows), words, prod(self.depth[1:]) // self.run, lines


@dataclass(frozen=True)
class Int8NhwcTiling(NhwcTiling):
    """A cut of a convolution in int8, see the module docstring. `staged`: f32 elements of the input row that is being
    turned into bytes, where it cannot be read where it is."""

    row_bytes: int = 0
    patch_rows: int = 0
    staged: int = 0
    format: NumberFormat = INT8

    copied_per_ns: ClassVar[float] = 6.0

    def form_of(self, body: Body) -> ConvForm:
        return rowed(body)

    def line_columns(self, form: ConvForm) -> tuple[int, int]:
        return self.columns, self.columns

    def cycles(self, form: ConvForm, begin: int, end: int) -> float:
        whole, rest = divmod(self.columns, self.positions)
        return (end - begin) * (whole * self._tile_cycles(self.positions) + (self._tile_cycles(rest) if rest else 0.0))

    def _tile_cycles(self, positions: int) -> float:
        """As of f32, but counted by loads: weights that find no register are loaded for every position."""
        work = positions * self.vectors
        kept = max(0, min(self.vectors, _REGISTERS - work))
        return max(work, HIDDEN * 0.75) + _LOAD * (positions + kept + (self.vectors - kept) * positions)

    def steps(self, form: ConvForm) -> int:
        count, run = runs_of(form)
        return count * -(-run // 4)

    def panels(self, form: ConvForm) -> float:
        return self.channel_tiles * (1.0 + _ROW_STEPS * form.kernel[0] / max(1, self.steps(form)))

    def step_ns(self, target: CpuTarget) -> float:
        return super().step_ns(target) * self.format.word_time

    @property
    def patch_bytes(self) -> int:
        """The patch, and what may be read behind it."""
        return -(-(self.patch_rows * self.row_bytes + _BEHIND) // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        return self.tile_bytes + self.patch_bytes + 4 * self.staged

    def filter_elements(self, form: ConvForm) -> int:
        """Words of one panel: its steps, sums and scales."""
        return (self.steps(form) + form.kernel[0] + 1) * self.tile_rows

    def packs(self, body: Body) -> Mapping[int, Pack]:
        return packed_filters(PackBytes, self.form_of(body), body, self.tile_rows)


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


class Int8NhwcFamily(ReducedNhwcFamily):
    """Convolutions of f32 images with constant weights, as bytes."""

    kernels: tuple[str, ...] = ("host.conv.nhwc_int8",)

    def form_of(self, body: Body) -> ConvForm:
        return rowed(body)

    def tiling(
        self, form: ConvForm, axis: str, shape: tuple[int, int, int], target: CpuTarget, pieces: int = 0
    ) -> Int8NhwcTiling:
        base = super().tiling(form, axis, shape, target)
        lines = 1 if form.out_height == 1 else cut_lines(form, base.positions, target.l2_bytes // 4, True)[1]
        high, wide = patch_extent(form, lines, form.out_width)
        joined = form.spatial == 1  # as accesses see it
        given = {f.name: getattr(base, f.name) for f in fields(NhwcTiling)} | {
            "columns": max(1, form.out_width),
            "row_blocks": 1 if joined else base.row_blocks,
            "column_blocks": form.out_height if joined else 1,
            "in_place": False,
            "patch_elements": high * wide * form.channels,
            "lines": lines,
        }
        return Int8NhwcTiling(
            **given,
            row_bytes=-(-(HEAD_BYTES + wide * form.channels) // 64) * 64,
            patch_rows=high,
            staged=0 if is_dense(form) else wide * form.channels,
            format=INT8.on(target.has),
        )


FAMILY = Int8NhwcFamily()
