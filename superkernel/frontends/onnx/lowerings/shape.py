"""Shapes and re-indexing: reshape and its kin, transposes, slices, joins, padding. What only depends on shapes becomes
a constant."""

from __future__ import annotations

from math import prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.errors import FileFormatError
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers


@lowers("Shape")
def shape(call: OnnxCall) -> Tensor:
    x = call.input(0)
    return call.constant(np.array(x.shape[slice(call.attr("start", 0), call.attr("end"))], np.int64))


@lowers("Size")
def size(call: OnnxCall) -> Tensor:
    return call.constant(np.array(call.input(0).type.size, np.int64))


@lowers("Reshape")
def reshape(call: OnnxCall) -> Tensor:
    x = call.input(0)
    wanted = call.static_ints(1) if call.opset >= 5 else list(call.required("shape"))
    if not call.attr("allowzero", 0):
        for axis, extent in enumerate(wanted):
            if extent == 0:
                if axis >= x.rank:
                    raise FileFormatError(
                        "0 copies a dimension that the input lacks", location=call.where, found=wanted
                    )
                wanted[axis] = x.shape[axis]
    if -1 in wanted:
        known = prod(d for d in wanted if d != -1)
        wanted[wanted.index(-1)] = x.type.size // known if known else 0
    return call.emit("reshape", x, shape=wanted)


@lowers("Flatten")
def flatten(call: OnnxCall) -> Tensor:
    x = call.input(0)
    axis = call.attr("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise FileFormatError("axis out of range", location=call.where, expected=f"{-x.rank}..{x.rank}", found=axis)
    axis = axis + x.rank if axis < 0 else axis
    return call.emit("reshape", x, shape=(prod(x.shape[:axis]), prod(x.shape[axis:])))


def given_axes(call: OnnxCall, since: int, slot: int = 1) -> list[int] | None:
    """Axes from the attribute (before operator set `since`) or from input `slot`; None where absent."""
    if call.opset < since:
        axes = call.attr("axes")
        return None if axes is None else list(axes)
    return call.static_ints(slot) if call.has(slot) else None


@lowers("Squeeze")
def squeeze(call: OnnxCall) -> Tensor:
    x = call.input(0)
    axes = given_axes(call, 13)
    gone = {i for i, d in enumerate(x.shape) if d == 1} if axes is None else {call.axis(a, x.rank) for a in axes}
    if any(x.shape[a] != 1 for a in gone):
        raise FileFormatError(
            "only axes of size 1 can be squeezed", location=call.where, found=f"{x.type}, axes {sorted(gone)}"
        )
    return call.emit("reshape", x, shape=[d for i, d in enumerate(x.shape) if i not in gone])


@lowers("Unsqueeze")
def unsqueeze(call: OnnxCall) -> Tensor:
    x = call.input(0)
    axes = given_axes(call, 13) or []
    rank = x.rank + len(axes)
    added = {call.axis(a, rank) for a in axes}
    if len(added) < len(axes):
        raise call.contradiction("an axis is given twice", found=axes)
    rest = iter(x.shape)
    return call.emit("reshape", x, shape=[1 if i in added else next(rest) for i in range(rank)])


@lowers("Transpose")
def transpose(call: OnnxCall) -> Tensor:
    x = call.input(0)
    return call.emit("transpose", x, perm=call.attr("perm") or list(range(x.rank))[::-1])


@lowers("Expand")
def expand(call: OnnxCall) -> Tensor:
    x = call.input(0)
    given = tuple(call.static_ints(1))
    try:
        target = np.broadcast_shapes(x.shape, given)
    except ValueError as error:
        raise call.contradiction("not a shape to expand to", expected=x.type, found=list(given)) from error
    return call.emit("expand", x, shape=target)


@lowers("Slice")
def slice_(call: OnnxCall) -> Tensor:
    x = call.input(0)
    if call.opset < 10:
        starts, ends = list(call.required("starts")), list(call.required("ends"))
        axes, steps = call.attr("axes"), None
    else:
        starts, ends = call.static_ints(1), call.static_ints(2)
        axes = call.static_ints(3) if call.has(3) else None
        steps = call.static_ints(4) if call.has(4) else None
    axes = list(range(len(starts))) if axes is None else axes
    if steps and x.rank and len(steps) == len(axes) == len(starts):
        # Backwards from before the first element ONNX begins at the first, and NumPy nowhere.
        extents = [x.shape[call.axis(axis, x.rank)] for axis in axes]
        starts = [max(s, -n) if step < 0 else s for s, step, n in zip(starts, steps, extents, strict=True)]
    return call.emit("slice", x, starts=starts, ends=ends, axes=axes, steps=steps or [1] * len(starts))


@lowers("Split")
def split(call: OnnxCall) -> list[Tensor | None]:
    x = call.input(0)
    axis = call.axis(call.attr("axis", 0), x.rank)
    extent, parts = x.shape[axis], len(call.node.output)
    if call.attr("num_outputs", parts) != parts:
        raise call.contradiction("another number of outputs", expected=call.attr("num_outputs"), found=parts)
    if call.opset < 13 and "split" in call.attrs:
        sizes = list(call.attrs["split"])
    elif call.opset >= 13 and call.has(1):
        sizes = call.static_ints(1)
    else:
        chunk = -(-extent // parts)
        sizes = [max(0, min(chunk, extent - i * chunk)) for i in range(parts)]
    if len(sizes) == 1:
        return [call.emit("identity", x)]
    return list(call.emit_all("split", x, axis=axis, sizes=sizes))


@lowers("Concat")
def concat(call: OnnxCall) -> Tensor:
    parts = [call.input(i) for i in range(len(call.inputs))]
    axis = call.axis(call.attr("axis", 1 if call.opset < 4 else None), parts[0].rank)
    return call.emit("identity", parts[0]) if len(parts) == 1 else call.emit("concat", *parts, axis=axis)


@lowers("Pad")
def pad(call: OnnxCall) -> Tensor:
    x = call.input(0)
    value = 0.0
    if call.opset < 11:
        pads, value = list(call.required("pads")), call.attr("value", 0.0)
    else:
        pads = call.static_ints(1)
        if call.has(2):
            value = call.static_scalar(2)
    if call.has(3):
        axes = [call.axis(a, x.rank) for a in call.static_ints(3)]
        every = [0] * (2 * x.rank)
        if len(pads) != 2 * len(axes):
            raise call.contradiction("not two pads per axis", expected=2 * len(axes), found=len(pads))
        for i, axis in enumerate(axes):
            every[axis], every[x.rank + axis] = pads[i], pads[len(axes) + i]
        pads = every
    return call.emit("pad", x, pads=pads, mode=call.attr("mode", "constant"), value=float(value))


@lowers("Tile")
def tile(call: OnnxCall) -> Tensor:
    return call.emit("tile", call.input(0), repeats=call.static_ints(1))


@lowers("DepthToSpace")
def depth_to_space(call: OnnxCall) -> Tensor:
    x, block = call.input(0), call.required("blocksize")
    n, c, h, w = x.shape
    if call.attr("mode", "DCR") == "DCR":
        split, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
    y = call.transpose(call.reshape(x, split), perm)
    return call.emit("reshape", y, shape=(n, c // block**2, h * block, w * block))


@lowers("SpaceToDepth")
def space_to_depth(call: OnnxCall) -> Tensor:
    x, block = call.input(0), call.required("blocksize")
    n, c, h, w = x.shape
    y = call.reshape(x, (n, c, h // block, block, w // block, block))
    order = (0, 3, 5, 1, 2, 4) if call.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = call.transpose(y, order)
    return call.emit("reshape", y, shape=(n, c * block**2, h // block, w // block))


@lowers("CenterCropPad")
def center_crop_pad(call: OnnxCall) -> Tensor:
    x = call.input(0)
    target = call.static_ints(1)
    axes = [call.axis(a, x.rank) for a in call.attr("axes") or range(x.rank)]
    if len(target) != len(axes):
        raise call.contradiction("not an extent per axis", expected=len(axes), found=len(target))
    pads = [0] * (2 * x.rank)
    starts: list[int] = []
    ends: list[int] = []
    cut: list[int] = []
    for axis, extent in zip(axes, target, strict=True):
        have = x.shape[axis]
        if extent > have:
            before = (extent - have) // 2
            pads[axis], pads[x.rank + axis] = before, extent - have - before
        elif extent < have:
            first = (have - extent) // 2
            starts, ends, cut = [*starts, first], [*ends, first + extent], [*cut, axis]
    if cut:
        x = call.emit("slice", x, starts=starts, ends=ends, axes=cut, steps=[1] * len(cut))
    return call.emit("pad", x, pads=pads) if any(pads) else call.emit("identity", x)
