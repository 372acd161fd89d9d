"""How convolutions of images that lie channels last are cut where bf16 is allowed: any window, strides, groups.

Model: the cuts of `conv_nhwc`, always by way of the patch: inputs are rounded once, as they are copied there, and every
tap reads them from it. Depth goes by words of two neighbours. A *run* is what lies side by side under a row of a
window: all its columns and channels (with dilated columns the channels of one tap). Weights are packed as
[group][panel][run][word][tile_rows][2] bf16; the second half of a run's last word is 0 where its length is odd, and the
input behind it is not read.

A window of one tap needs no others of the inputs than those it meets: with strides the patch holds those only.

Invariant: the order of additions behind an output is run by run, word by word, whatever the cut and the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import prod

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.formats import BF16, NumberFormat
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, View
from superkernel.ops.opdef import Array
from superkernel.scheduler.families.conv_form import ConvForm, conv_form
from superkernel.scheduler.families.conv_nhwc import NhwcFamily, NhwcTiling, cut_lines, filters_of, patch_extent
from superkernel.scheduler.tiling import Pack
from superkernel.target.cpu import CpuTarget


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


@dataclass(frozen=True)
class PackRuns(Pack):
    """Weights [groups * out, channels, taps..] (a strided view) in words of bf16, see the module docstring. `run` taps
    are side by side."""

    groups: int
    out: int
    depth: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    rows: int
    run: int

    def apply(self, array: Array) -> Array:
        filters = filters_of(array, self.groups * self.out, self.depth, self.strides, self.offset)
        panels, words, count = self._sizes()
        channels, taps = self.depth[0], prod(self.depth[1:])
        packed = np.zeros((self.groups, panels * self.rows, count, words * 2), np.float32)
        if channels * taps:
            runs = filters.reshape(self.groups, self.out, channels, taps).swapaxes(2, 3)
            packed[:, : self.out, :, : self.run * channels] = runs.reshape(self.groups, self.out, count, -1)
        packed = packed.reshape(self.groups, panels, self.rows, count, words, 2).transpose(0, 1, 3, 4, 2, 5)
        return np.ascontiguousarray(packed).astype(DType.BF16.numpy).view(np.uint8)

    def packed_bytes(self, kind: TensorType) -> int:
        panels, words, count = self._sizes()
        return self.groups * panels * self.rows * count * words * 4

    def _sizes(self) -> tuple[int, int, int]:
        """Panels, words of a run, runs."""
        words = -(-self.run * self.depth[0] // 2)
        return -(-self.out // self.rows), words, prod(self.depth[1:]) // self.run


def packed_filters(pack: Callable[..., Pack], form: ConvForm, body: Body, rows: int) -> Mapping[int, Pack]:
    """The packing of a convolution's weights as runs, by `PackRuns` or one with the same fields."""
    view, taps = body.anchor_inputs[1], max(1, runs_of(form)[1] // max(1, form.channels))
    assert isinstance(view, View)
    return {view.operand: pack(form.groups, form.out_channels, view.shape[1:], view.strides, view.offset, rows, taps)}


@dataclass(frozen=True)
class NarrowNhwcTiling(NhwcTiling):
    """A cut of a convolution in bf16."""

    format: NumberFormat = BF16

    def form_of(self, body: Body) -> ConvForm:
        return met_inputs(conv_form(body))

    def steps(self, form: ConvForm) -> int:
        count, run = runs_of(form)
        return count * -(-run // 2)

    def panels(self, form: ConvForm) -> float:
        return float(self.channel_tiles)

    def step_ns(self, target: CpuTarget) -> float:
        return super().step_ns(target) * self.format.word_time

    @property
    def scratch_bytes(self) -> int:
        return self.tile_bytes + self.patch_elements * (2 if self.format.native else 4)

    def filter_elements(self, form: ConvForm) -> int:
        """Words of the filters of one panel, of the size of an f32."""
        return self.steps(form) * self.tile_rows

    def packs(self, body: Body) -> Mapping[int, Pack]:
        return packed_filters(PackRuns, self.form_of(body), body, self.tile_rows)


class ReducedNhwcFamily(NhwcFamily):
    """Convolutions of f32 images with constant weights, in less than f32."""

    expectation = "conv in one or two dimensions, f32, with constant weights"

    def serves(self, body: Body) -> bool:
        x = body.anchor_input_types[0]
        return super().serves(body) and x is not None and x.dtype is DType.F32


class NarrowNhwcFamily(ReducedNhwcFamily):
    """Convolutions of f32 images with constant weights, rounded to bf16."""

    kernels: tuple[str, ...] = ("host.conv.nhwc_bf16",)

    def form_of(self, body: Body) -> ConvForm:
        return met_inputs(conv_form(body))

    def tiling(
        self, form: ConvForm, axis: str, shape: tuple[int, int, int], target: CpuTarget, pieces: int = 0
    ) -> NarrowNhwcTiling:
        base, native = super().tiling(form, axis, shape, target, pieces), BF16.on(target.has).native
        budget = target.l2_bytes // (5 if native else 10)
        columns, lines = cut_lines(form, base.positions, budget, True, pieces)
        together = (1, min(form.out_width, columns * lines)) if form.out_height == 1 else (lines, form.out_width)
        given = {f.name: getattr(base, f.name) for f in fields(NhwcTiling)} | {
            "columns": columns,
            "column_blocks": -(-form.out_width // columns),
            "in_place": False,
            "patch_elements": prod(patch_extent(form, *together)) * form.channels,
            "lines": lines,
        }
        return NarrowNhwcTiling(**given, format=BF16.on(target.has))


FAMILY = NarrowNhwcFamily()
