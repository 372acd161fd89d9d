"""Transposed convolutions with constant weights as plain ones.

Model: along an axis with stride s, output position u of the uncropped result is s*m + r, and its *phase* r says which
taps reach it: r, r + s, r + 2s, ..., at inputs m, m - 1, m - 2, ... So all phases together are one convolution without
strides, of ceil(kernel / s) taps and as many times the channels as there are phases, whose results are then laid side
by side and cropped. What is computed beyond the transposed convolution are the taps that the last phases do not have.

Depthwise ones stay: there is a channel for every phase, and hardly any work in it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.ir.graph import Node
from superkernel.ops.common import get
from superkernel.ops.conv import transpose_windows
from superkernel.ops.windows import Window
from superkernel.transforms.base import NodePass
from superkernel.transforms.editor import Editor

_FEWEST_CHANNELS = 4  # of a group
_TYPES = frozenset({DType.F32, DType.F16, DType.BF16})


def _by_phases(editor: Editor, node: Node) -> None:
    x, w = node.inputs[0], node.inputs[1]
    b = node.inputs[2] if len(node.inputs) > 2 else None
    weights, bias = editor.array(w), editor.array(b)
    if x is None or w is None or weights is None or (b is not None and bias is None):
        return
    kind, result, groups = editor.type(x), editor.type(node.outputs[0]), get(node.attrs, "groups", int)
    axes = transpose_windows(kind, editor.type(w), node.attrs)
    if kind.dtype not in _TYPES or kind.shape[1] < groups * _FEWEST_CHANNELS or 0 in result.shape:
        return
    if any(a.dilation != 1 for a in axes):
        return
    first = [a.begin // a.stride for a in axes]  # of the positions m, and how many there are
    count = [(a.begin + a.extent - 1) // a.stride - low + 1 for a, low in zip(axes, first, strict=True)]
    begin = [_taps(a) - 1 - low for a, low in zip(axes, first, strict=True)]
    end = [n + _taps(a) - 1 - a.size - low for a, n, low in zip(axes, count, begin, strict=True)]
    if min(*begin, *end) < 0:  # whole inputs are cropped
        return
    strides = tuple(a.stride for a in axes)
    filters = editor.constant(_filters(weights, axes, groups), f"{node.name}/w")
    added = None if bias is None else editor.constant(np.repeat(bias, prod(strides)), f"{node.name}/b")
    rank, shape = len(axes), result.shape
    wide = tuple(n * s for n, s in zip(count, strides, strict=True))
    steps: list[tuple[str, dict[str, Any]]] = [("conv", {"pads": (*begin, *end), "groups": groups})]
    if max(strides) > 1:
        pairs = [d for k in range(rank) for d in (2 + rank + k, 2 + k)]
        steps += [
            ("reshape", {"shape": (*shape[:2], *strides, *count)}),
            ("transpose", {"perm": (0, 1, *pairs)}),
            ("reshape", {"shape": (*shape[:2], *wide)}),
        ]
    if wide != shape[2:]:
        low = tuple(a.begin - s * at for a, s, at in zip(axes, strides, first, strict=True))
        high = tuple(at + n for at, n in zip(low, shape[2:], strict=True))
        steps.append(("slice", {"starts": low, "ends": high, "axes": tuple(range(2, 2 + rank))}))
    value: str | None = x
    for op, attrs in steps:
        inputs = (value, filters, added) if op == "conv" else (value,)
        value = editor.emit(op, inputs, attrs, node, node.outputs[0] if (op, attrs) == steps[-1] else None)


def _taps(axis: Window) -> int:
    """Of each phase."""
    return -(-axis.kernel // axis.stride)


def _filters(weights: NDArray[Any], axes: tuple[Window, ...], groups: int) -> NDArray[Any]:
    """Weights [channels, outputs / groups, taps...] as [outputs, phases..., channels / groups, taps...], the outputs
    and phases as one axis."""
    channels, outputs, rank = weights.shape[0] // groups, weights.shape[1], len(axes)
    full = np.zeros((*weights.shape[:2], *(_taps(a) * a.stride for a in axes)), weights.dtype)
    full[(slice(None), slice(None), *(slice(a.kernel) for a in axes))] = weights
    split = full.reshape(groups, channels, outputs, *(n for a in axes for n in (_taps(a), a.stride)))
    taps, phases = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    turned = np.flip(split, tuple(taps)).transpose(0, 2, *phases, 1, *taps)
    return np.ascontiguousarray(turned).reshape(-1, channels, *(_taps(a) for a in axes))


class ConvolveByPhases(NodePass):
    """A transposed convolution with constant weights as a convolution of all phases, its results laid side by side."""

    rules = ({"conv_transpose": _by_phases},)
