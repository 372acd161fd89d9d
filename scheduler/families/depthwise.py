"""How depthwise convolutions (one input channel per group) are cut: planes of one image and channel, or blocks of
rows.

Model: the direct convolution's tilings with register tiles of one output channel and several vectors of positions; the
patch is one channel's and stays in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.body import Body
from superkernel.scheduler.families.conv import CHANNELS, PIXELS, ConvFamily, best_tilings
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.tiling import Tiling
from superkernel.target.cpu import CpuTarget

_VECTORS = {"avx512": (8, 4), "avx2": (6, 4), "plain": (6, 4)}
_POSITIONS = 4096


class DepthwiseFamily(ConvFamily):
    """Convolutions whose groups have one input channel each, any number of output channels per group."""

    kernels = ("host.conv.depthwise",)

    def serves(self, body: Body) -> bool:
        return super().serves(body) and conv_form(body).channels == 1

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[Tiling]:
        self._require(body)
        form = conv_form(body)
        cuts = [(CHANNELS, _POSITIONS)]
        if form.groups * form.images < 16:
            cuts.append((PIXELS, max(64, form.pixels // 16)))
        return best_tilings(body, form, cuts, [(1, v) for v in _VECTORS[target.tier]], target.l1_bytes, target)


FAMILY = DepthwiseFamily()
