"""Convolutions that the tests of several kernels share, and how one is run in a reduced precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from anchor_bodies import AnchorCase, anchor_case
from narrow_model import bf16
from numpy.typing import NDArray

from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.scheduler.families import family_of

DIRECT: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 9, 11), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 4, 13, 12), (30, 4, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 4, 20, 20), (6, 2, 3, 3), {"pads": (2, 0, 1, 1), "dilations": (2, 1), "groups": 2}),
    ((1, 16, 14, 14), (40, 16, 1, 1), {}),
    ((1, 7, 3, 3), (5, 7, 1, 1), {}),
    ((1, 7, 9, 9), (5, 7, 1, 1), {"strides": (2, 2)}),
    ((1, 3, 33, 31), (8, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    ((1, 5, 1000), (6, 5, 5), {"pads": (2, 2)}),
    ((1, 5, 2011), (6, 5, 4), {"pads": (2, 7), "strides": (2,), "dilations": (3,)}),
    ((2, 5, 901), (6, 5, 1), {}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 5, 22, 22), (6, 5, 2, 5), {"pads": (0, 4, 1, 4), "strides": (3, 1), "dilations": (1, 2)}),
    ((0, 3, 9, 9), (4, 3, 3, 3), {}),
    ((1, 2, 3, 3), (3, 2, 3, 3), {"pads": (2, 2, 2, 2)}),
    ((1, 2, 50, 45), (3, 2, 16, 16), {"strides": (16, 16)}),
    ((1, 2, 40, 39), (4, 2, 5, 5), {"pads": (2, 1, 2, 1), "strides": (7, 7), "dilations": (3, 3)}),
    ((1, 1, 12000), (3, 1, 40), {"pads": (7, 3), "strides": (20,)}),
]


WINOGRAD_CASES = [
    ((1, 3, 9, 11), 5, 1),
    ((2, 17, 13, 12), 30, 1),
    ((1, 2, 3, 3), 3, 2),
    ((0, 3, 9, 9), 4, 1),
    ((1, 1, 3, 3), 1, 0),
]


Array = NDArray[Any]


def last(rank: int) -> dict[int, tuple[int, ...]]:
    """Slot 0 channels last."""
    return {0: (0, *range(2, rank), 1)}


def rounded_case(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], turned: bool = True, **how: Any
) -> AnchorCase:
    """A convolution of numbers that bf16 holds: rounding the factors changes nothing."""
    rng = np.random.default_rng(len(x) + w[0])
    image, filters = (bf16(rng.standard_normal(s)).astype(np.float32) for s in (x, w))
    bias = rng.standard_normal(w[0]).astype(np.float32)
    layouts = last(len(x)) if turned else None
    return anchor_case("conv", attrs, [image, filters, bias], constants=[1, 2], layouts=layouts, **how)


def run(kernel: str, case: AnchorCase, tier: str | None = None) -> Array:
    cpu = detect_cpu(tier)
    tiling = family_of(kernel).tilings(kernel, case.body, cpu)[0]
    out = next(iter(case.expected))
    kind = case.body.operands[out].type
    arrays = [np.zeros(kind.shape, kind.dtype.numpy) if a is None else a for a in case.arrays]
    StandaloneKernel(kernel, case.body, tiling, cpu).run(arrays)
    return arrays[out]
