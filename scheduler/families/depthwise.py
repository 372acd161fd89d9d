"""How depthwise convolutions (one input channel per group) are cut: planes of one image and channel, or blocks of
rows.

Model: the direct convolution's tilings with register tiles of one output channel and several vectors of positions; the
patch is one channel's and stays in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superkernel.ir.body import Body, View
from superkernel.registry.predicates import Reason, one_of
from superkernel.scheduler.families.conv import (
    CHANNELS,
    FLOAT_TYPES,
    IGEMM,
    IMAGE_PATCHED,
    PIXELS,
    ConvFamily,
    best_tilings,
)
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.kernel import PLANE, HostTiling
from superkernel.target.cpu import CpuTarget

_VECTORS = {"avx512": (8, 4), "avx2": (6, 4), "plain": (6, 4), "small": (4, 2)}
_POSITIONS = 4096


class DepthwiseFamily(ConvFamily):
    """Convolutions whose groups have one input channel each, any number of output channels per group."""

    any_view = False
    view_slots = (0, 2)
    expectation = "conv in one or two dimensions, f32, f16 or bf16, with one input channel per group"

    def serves(self, body: Body) -> bool:
        x, weights = body.anchor_input_types[0], body.anchor_inputs[1]
        return (
            body.op == "conv"
            and x is not None
            and x.rank in (3, 4)
            and x.dtype in FLOAT_TYPES
            and isinstance(weights, View)
            and weights.is_dense
            and conv_form(body).channels == 1
        )

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        self._require(kernel, body)
        form = conv_form(body)
        cuts = [(CHANNELS, _POSITIONS)]
        if form.groups * form.images < 16:
            cuts.append((PIXELS, max(64, form.pixels // 16)))
        return best_tilings(
            body, form, cuts, [(1, v) for v in _VECTORS[target.register_tier]], target.l1_bytes, target, packed=False
        )


DEPTHWISE_GROUPS = one_of(Reason.GROUPS, "depthwise", True)

KERNELS = (
    replace(
        IGEMM,
        id="host.conv.depthwise",
        family=DepthwiseFamily(),
        micro="conv",
        modifier="depthwise",
        limits=(DEPTHWISE_GROUPS, PLANE),
        tiles={},
        transforms=(IMAGE_PATCHED,),
        code_bytes=6144,
    ),
)
