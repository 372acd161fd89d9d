"""Deformable convolutions, as ONNX and torchvision have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.frontends.emitter import Emitter
from superkernel.frontends.sampling import (
    Tap,
    between,
    linear_taps,
    places_type,
    read_by_image,
    summed,
    weighted,
)


@dataclass(frozen=True)
class Deformed:
    """How the window moves along each axis, without its offsets; `begins`, `ends`: padding on either side of each."""

    strides: Sequence[int]
    begins: Sequence[int]
    ends: Sequence[int]
    dilations: Sequence[int]
    groups: int = 1
    offset_groups: int = 1

    def misfit(
        self, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> Mapping[str, Any] | None:
        """What does not fit of the operands, as an error says it; None where all does."""
        kernel, many = weight.shape[2:], self.offset_groups
        if not weight.rank == offset.rank == x.rank == len(self.strides) + 2 or min(kernel) < 1:
            found = f"{x.type}, {weight.type}, {offset.type}"
            return {"message": "not a kernel and its offsets", "found": found}
        if min(self.groups, many, *self.strides, *self.dilations) < 1:
            found = f"{self.groups} and {many} groups, {list(self.strides)}, {list(self.dilations)}"
            return {"message": "not a window", "found": found}
        if x.shape[1] != weight.shape[1] * self.groups or weight.shape[0] % self.groups or x.shape[1] % many:
            found = f"{self.groups} and {many} of {x.type}, {weight.type}"
            return {"message": "channels in other groups", "found": found}
        moves = zip(x.shape[2:], kernel, self.begins, self.ends, self.dilations, self.strides, strict=True)
        sizes = [(e + begin + end - d * (k - 1) - 1) // s + 1 for e, k, begin, end, d, s in moves]
        taps = many * prod(kernel)
        for operand, each in ((offset, taps * len(kernel)), (mask, taps)):
            shape = (x.shape[0], each, *sizes)
            if operand is not None and operand.shape != shape:
                return {"message": "not one per tap", "expected": list(shape), "found": operand.type}
        if bias is not None and bias.shape != weight.shape[:1]:
            return {"message": "not a bias", "expected": list(weight.shape[:1]), "found": bias.type}
        return None


def deform_conv(
    call: Emitter,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    window: Deformed,
) -> Tensor:
    """Of operands that fit: a convolution whose taps stand `offset` [N, offset groups * taps * axes, ...] away from
    their places in the window, and count `mask` [N, offset groups * taps, ...]: points are read linearly, zeros outside
    of the image; what the taps have read, times the weights, is one product."""
    (batch, channels, *extents), kernel, sizes = x.shape, weight.shape[2:], offset.shape[2:]
    axes, many, taps, places = len(extents), window.offset_groups, prod(kernel), prod(sizes)
    kind = places_type(x)
    moved = call.cast(call.reshape(offset, (batch, many, taps, axes, places)), kind)
    moved = call.transpose(moved, (0, 4, 2, 1, 3))  # [batch, place, tap, group, axis]
    read = []
    for axis, extent in enumerate(extents):
        still = np.add.outer(
            np.indices(sizes)[axis].reshape(-1) * window.strides[axis] - window.begins[axis],
            np.indices(kernel)[axis].reshape(-1) * window.dilations[axis],
        )
        away = call.reshape(call.slice(moved, 4, axis, axis + 1), (batch, places, taps, many))
        place = call.emit("add", away, call.constant(still.reshape(1, places, taps, 1).astype(kind.numpy)))
        read.append([Tap(at, counts, between(call, at, 0, extent - 1)) for at, counts in linear_taps(call, place)])
    rows, first = read_by_image(call, call.cast(x, kind), 4, many)
    first = call.emit("add", first, call.constant(np.arange(many, dtype=np.int64)))
    points = summed(call, weighted(call, rows, first, extents, read, many))
    if mask is not None:
        counts = call.transpose(call.reshape(mask, (batch, many, taps, places)), (0, 3, 2, 1))
        points = call.emit("mul", points, call.cast(call.reshape(counts, (*counts.shape, 1)), kind))
    points = call.reshape(call.cast(points, x.dtype), (batch * places, taps, window.groups, channels // window.groups))
    y = _products(call, points, weight, window.groups)
    y = call.transpose(call.reshape(y, (window.groups, batch, places, y.shape[-1])), (1, 0, 3, 2))
    y = call.reshape(y, (batch, weight.shape[0], *sizes))
    return y if bias is None else call.emit("add", y, call.reshape(bias, (1, weight.shape[0], *(1 for _ in sizes))))


def _products(call: Emitter, points: Tensor, weight: Tensor, groups: int) -> Tensor:
    """[groups, rows, outputs] of points [rows, taps, groups, channels]."""
    rows, taps, _, channels = points.shape
    outputs = weight.shape[0] // groups
    points = call.reshape(call.transpose(points, (2, 0, 1, 3)), (groups, rows, taps * channels))
    weight = call.transpose(call.reshape(weight, (groups, outputs, channels, taps)), (0, 3, 2, 1))
    weight = call.reshape(weight, (groups, taps * channels, outputs))
    return call.emit("matmul", points, weight)
