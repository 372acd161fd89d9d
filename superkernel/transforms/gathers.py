"""Gathers of constant positions that are evenly spaced are slices: views, which cost nothing, instead of copies.

What exporters write for `x[:, 0]`, for the three parts of a joined query/key/value, or for the last step of a sequence.
"""

from __future__ import annotations

import numpy as np

from superkernel.ir.graph import Node
from superkernel.transforms.base import NodePass
from superkernel.transforms.editor import Editor


def _slice(editor: Editor, node: Node) -> None:
    source, positions = node.inputs
    indices = editor.array(positions)
    if source is None or source in editor.constants or indices is None or indices.size == 0:
        return
    shape, output = editor.type(source).shape, node.outputs[0]
    axis = int(node.attrs["axis"]) % len(shape)  # type: ignore[arg-type]
    extent = shape[axis]
    flat = indices.reshape(-1).astype(np.int64)
    flat = np.where(flat < 0, flat + extent, flat)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    if step == 0 or flat.min() < 0 or flat.max() >= extent or np.any(np.diff(flat) != step):
        return
    end = int(flat[-1]) + (1 if step > 0 else -1)
    limits = {"starts": (int(flat[0]),), "ends": (end if end >= 0 else -extent - 1,), "axes": (axis,), "steps": (step,)}
    if indices.ndim == 1:
        editor.emit("slice", (source,), limits, node, output)
        return
    part = editor.emit("slice", (source,), limits, node)
    if part is not None:
        editor.emit("reshape", (part,), {"shape": editor.type(output).shape}, node, output)


class SliceGathers(NodePass):
    """Indices of any rank whose values in order are first, first + step, ...; all inside the axis (others are clamped
    by gather, which a slice would not do)."""

    rules = ({"gather": _slice},)
