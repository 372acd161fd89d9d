"""How 3 x 3 convolutions without strides are cut for minimal filtering in bf16, F(2 x 2, 3 x 3).

Model: as `winograd`, but for the products: transformed inputs and filters are rounded to bf16, words of two
neighbouring channels are multiplied at once, sums are f32. Transforms are computed in f32. Weights are packed as
[panel][t * t][word][tile_rows][2] bf16, the second half of the last word 0 where channels are odd.

F(4 x 4) has no such form: its transforms magnify the rounding of what they multiply four to five times, those of
F(2 x 2) one and a half times (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.formats import BF16, NumberFormat
from superkernel.ir.body import Body, View
from superkernel.ops.opdef import Array
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.winograd import PackWinograd, WinogradFamily, WinogradTiling
from superkernel.scheduler.tiling import Pack
from superkernel.target.cpu import CpuTarget


@dataclass(frozen=True)
class PackNarrowWinograd(Pack):
    """Transformed filters in words of bf16, see the module docstring."""

    filters: PackWinograd

    def apply(self, array: Array) -> Array:
        wide = self.filters.apply(array)  # [panels][planes][channels][rows]
        panels, planes, channels, rows = wide.shape
        padded = np.zeros((panels, planes, channels + channels % 2, rows), np.float32)
        padded[:, :, :channels] = wide
        words = padded.reshape(panels, planes, -1, 2, rows).swapaxes(3, 4)
        return np.ascontiguousarray(words).astype(DType.BF16.numpy).view(np.uint8)

    def packed_bytes(self, kind: object) -> int:
        channels = self.filters.depth[0]
        return self.filters.packed_bytes(kind) // max(1, channels) * -(-channels // 2)


@dataclass(frozen=True)
class NarrowWinogradTiling(WinogradTiling):
    """A cut of a convolution by minimal filtering in bf16."""

    format: NumberFormat = BF16

    @property
    def item_bytes(self) -> int:
        return 2 if self.format.native else 4

    @property
    def steps(self) -> int:
        return -(-self.channels // 2)

    def step_ns(self, target: CpuTarget) -> float:
        return super().step_ns(target) * self.format.word_time

    def packs(self, body: Body) -> Mapping[int, Pack]:
        form, view = conv_form(body), body.anchor_inputs[1]
        assert isinstance(view, View)
        wide = PackWinograd(self.m, form.out_channels, view.shape[1:], view.strides, view.offset, self.tile_rows)
        return {view.operand: PackNarrowWinograd(wide)}


class NarrowWinogradFamily(WinogradFamily):
    """3 x 3 convolutions with constant weights, one group, no strides or dilations, rounded to bf16."""

    squares: Mapping[str, int] = {"host.conv.winograd2_bf16": 2}
    kernels: tuple[str, ...] = tuple(squares)

    def finished(self, cut: WinogradTiling, target: CpuTarget) -> NarrowWinogradTiling:
        given = {f.name: getattr(cut, f.name) for f in fields(WinogradTiling)}
        return NarrowWinogradTiling(**given, format=BF16.on(target.has))

    def item_bytes(self, target: CpuTarget) -> int:
        return 2 if BF16.on(target.has).native else 4


FAMILY = NarrowWinogradFamily()
