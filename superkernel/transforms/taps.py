"""Convolutions without the taps that only meet padding.

Model: where a dilation reaches as far as an image is wide, as in the pyramids of networks for segmentation, the outer
taps of a window lie in the padding wherever it stands. Along each axis the taps from the first to the last that meet
the image somewhere are kept, and as much less is padded: with a dilation of the width a window of 3 x 3 becomes one of
1 x 1. What is left out are products with zeros.

Invariant: weights that are not finite stay, as a zero times them is no zero.
"""

from __future__ import annotations

import numpy as np

from superkernel.ir.graph import Node
from superkernel.ops.conv import conv_windows
from superkernel.transforms.base import NodePass
from superkernel.transforms.editor import Editor


def _without_taps(editor: Editor, node: Node) -> None:
    x, w = node.inputs[0], node.inputs[1]
    weights = editor.array(w)
    if x is None or w is None or weights is None:
        return
    axes = conv_windows(editor.type(x), editor.type(w), node.attrs)
    kept = []
    for axis in axes:
        met = [tap for tap in range(axis.kernel) for first, last in [axis.taps(tap)] if first < last]
        low, high = (met[0], met[-1]) if met else (0, axis.kernel - 1)
        begin, end = axis.begin - low * axis.dilation, axis.end - (axis.kernel - 1 - high) * axis.dilation
        # A negative pad would crop the image.
        kept.append((low, high + 1, begin, end) if min(begin, end) >= 0 else (0, axis.kernel, axis.begin, axis.end))
    inside = weights[(slice(None), slice(None), *(slice(low, high) for low, high, _, _ in kept))]
    if inside.shape == weights.shape or not np.isfinite(weights.astype(np.float64)).all():
        return
    attrs = {
        **node.attrs,
        "pads": (*(begin for _, _, begin, _ in kept), *(end for _, _, _, end in kept)),
        "dilations": tuple(
            a.dilation if high - low > 1 else 1 for a, (low, high, _, _) in zip(axes, kept, strict=True)
        ),
    }
    fewer = editor.constant(np.ascontiguousarray(inside), f"{node.name}/w")
    editor.emit("conv", (x, fewer, *node.inputs[2:]), attrs, node, node.outputs[0])


class DropPaddedTaps(NodePass):
    """A convolution with constant weights without the taps that only meet padding."""

    rules = ({"conv": _without_taps},)
