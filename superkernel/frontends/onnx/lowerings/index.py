"""Gathers, scatters, one-hot, top-k and other operators that read or write by index."""

from __future__ import annotations

from math import prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers
from superkernel.frontends.scans import running_product


@lowers("TensorScatter")
def tensor_scatter(call: OnnxCall) -> Tensor:
    """Writes `update` into the cache at one position per batch element."""
    cache, update = call.input(0), call.input(1)
    axis = call.axis(call.attr("axis", -2), cache.rank)
    length, extent = update.shape[axis], cache.shape[axis]
    steps = call.constant(np.arange(length, dtype=np.int64))
    if call.has(2):
        first = call.reshape(call.cast(call.input(2), steps.dtype), (cache.shape[0], 1))
        rows = call.emit("add", first, steps)
    else:
        rows = call.expand(steps, (cache.shape[0], length))
    if call.attr("mode", "linear") == "circular":
        rows = call.emit("mod", rows, call.like(extent, rows))
    shape = [1] * cache.rank
    shape[0], shape[axis] = cache.shape[0], length
    indices = call.expand(call.reshape(rows, shape), update.shape)
    return call.emit("scatter_elements", cache, indices, update, axis=axis)


@lowers("OneHot")
def one_hot(call: OnnxCall) -> Tensor:
    depth = int(call.static_scalar(1))
    indices = call.input(0)
    if not indices.dtype.is_integer:
        indices = call.cast(indices, call.constant(np.int64(0)).dtype)
    return call.emit("one_hot", indices, call.input(2), depth=depth, axis=call.attr("axis", -1))


@lowers("TopK")
def topk(call: OnnxCall) -> list[Tensor | None]:
    k = call.attrs["k"] if call.opset < 10 else int(call.static_scalar(1))
    options = {"largest": bool(call.attr("largest", 1)), "sorted": bool(call.attr("sorted", 1))}
    return list(call.emit_all("topk", call.input(0), k=k, axis=call.attr("axis", -1), **options))


@lowers("Trilu")
def trilu(call: OnnxCall) -> Tensor:
    k = int(call.static_scalar(1)) if call.has(1) else 0
    return call.emit("trilu", call.input(0), upper=bool(call.attr("upper", 1)), k=k)


@lowers("Compress")
def compress(call: OnnxCall) -> Tensor:
    """A gather of the kept indices: how many they are is data where the condition is."""
    x, condition = call.input(0), call.input(1)
    call.require_rank(condition, 1, 1)
    axis = call.attr("axis")
    if axis is None:
        x, axis = call.reshape(x, (x.type.size,)), 0
    axis = call.axis(axis, x.rank)
    if condition.shape[0] > x.shape[axis]:
        condition = call.slice(condition, 0, 0, x.shape[axis])
    return call.emit("gather", x, call.found.places(call, condition)[0], axis=axis)


@lowers("ReverseSequence")
def reverse_sequence(call: OnnxCall) -> Tensor:
    """With static lengths: a gather along time with constant indices."""
    x, lengths = call.input(0), call.static_ints(1)
    time, batch = (call.axis(call.attr(f"{name}_axis", i), x.rank) for i, name in enumerate(("time", "batch")))
    fits = x.rank > 1 and time != batch and len(lengths) == x.shape[batch]
    if not fits or not all(0 <= n <= x.shape[time] for n in lengths):
        found = f"{lengths} for {x.type}, axes {time} and {batch}"
        raise call.contradiction("not a length per element of a batch", found=found)
    steps = np.arange(x.shape[time])
    rows = np.stack([np.where(steps < n, n - 1 - steps, steps) for n in lengths])  # [batch, time]
    shape = [1] * x.rank
    shape[batch], shape[time] = rows.shape
    indices = (rows if batch < time else rows.T).reshape(shape).astype(np.int64)
    return call.emit("gather_elements", x, call.expand(call.constant(indices), x.shape), axis=time)


@lowers("NonZero")
def non_zero(call: OnnxCall) -> Tensor:
    """The coordinates of indices into it as one row."""
    x = call.input(0)
    x = call.reshape(x, x.shape or (1,))
    return call.concat([call.reshape(place, (1, *place.shape)) for place in call.found.places(call, x)], 0)


@lowers("NonMaxSuppression")
def non_max_suppression(call: OnnxCall) -> Tensor:
    """Limit and thresholds must be known; without a limit nothing is selected."""
    boxes, scores = call.input(0), call.input(1)
    call.require_rank(boxes, 3, 3)
    call.require_rank(scores, 3, 3)
    limit = int(call.static_scalar(2)) if call.has(2) else 0
    overlap = float(call.static_scalar(3)) if call.has(3) else 0.0
    least = float(call.static_scalar(4)) if call.has(4) else None
    limit = min(max(limit, 0), scores.shape[2])
    return call.found.find(
        call, "non_max_suppression", boxes, scores, most=limit * prod(scores.shape[:2]), limit=limit,
        iou_threshold=overlap, score_threshold=least, centers=bool(call.attr("center_point_box", 0)),
    )  # fmt: skip


@lowers("Hardmax")
def hardmax(call: OnnxCall) -> Tensor:
    """1 at the first maximum along the axis."""
    x = call.input(0)
    shape = x.shape
    axis = call.axis(call.attr("axis", 1 if call.opset < 13 else -1), x.rank)
    if call.opset < 13:
        x, axis = call.reshape(x, (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))), 1
    index = call.emit("argmax", x, axis=axis, keepdims=False)
    values = call.constant(np.array([0, 1]).astype(x.dtype.numpy))
    return call.reshape(call.emit("one_hot", index, values, depth=x.shape[axis], axis=axis), shape)


@lowers("CumSum")
def cumsum(call: OnnxCall) -> Tensor:
    options = {"exclusive": bool(call.attr("exclusive", 0)), "reverse": bool(call.attr("reverse", 0))}
    return call.emit("cumsum", call.input(0), axis=int(call.static_scalar(1)), **options)


@lowers("CumProd")
def cumprod(call: OnnxCall) -> Tensor:
    """Backwards the axis is turned round before and behind; the own element is left out by a shift."""
    x = call.input(0)
    call.require_rank(x, 1)
    axis = call.axis(int(call.static_scalar(1)), x.rank)
    backwards, extent = bool(call.attr("reverse", 0)), x.shape[axis]
    if backwards:
        x = _turned(call, x, axis)
    if call.attr("exclusive", 0) and extent:
        one = call.expand(call.like(1, x), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        x = call.concat([one, call.slice(x, axis, 0, extent - 1)], axis)
    y = running_product(call, x, axis)
    return _turned(call, y, axis) if backwards else y


def _turned(call: OnnxCall, x: Tensor, axis: int) -> Tensor:
    """`x` with an axis the other way round."""
    order = np.arange(x.shape[axis], dtype=np.int64)[::-1]
    return call.emit("gather", x, call.constant(np.ascontiguousarray(order)), axis=axis)


@lowers("Col2Im")
def col2im(call: OnnxCall) -> Tensor:
    """Overlapping blocks summed into an image: a scatter-add with constant indices, then the padding cut off."""
    x, image, block = call.input(0), call.static_ints(1), call.static_ints(2)
    rank = len(image)
    dilations, strides = call.attr("dilations") or [1] * rank, call.attr("strides") or [1] * rank
    pads = call.attr("pads") or [0] * (2 * rank)
    padded = [d + pads[i] + pads[rank + i] for i, d in enumerate(image)]
    call.require_rank(x, 3, 3)
    if {len(block), len(dilations), len(strides), len(pads) / 2} != {rank} or min(*block, *strides, *image) < 1:
        raise call.contradiction("not an image and its blocks", found=f"image {image}, blocks {block}")
    counts = [(padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    if min(counts) < 0 or prod(counts) != x.shape[2] or x.shape[1] % prod(block):
        raise call.contradiction("not the columns of the image", expected=f"{counts} blocks of {block}", found=x.type)
    inside = np.indices(block).reshape(rank, -1, 1) * np.reshape(dilations, (rank, 1, 1))
    corner = np.indices(counts).reshape(rank, 1, -1) * np.reshape(strides, (rank, 1, 1))
    places = np.ravel_multi_index(tuple(inside + corner), tuple(padded)).reshape(1, 1, -1)
    n, c = x.shape[0], x.shape[1] // int(np.prod(block))
    size = int(np.prod(padded))
    indices = call.expand(call.constant(places.astype(np.int64)), (n, c, places.size))
    zeros = call.constant(np.zeros((n, c, size), x.dtype.numpy))
    updates = call.reshape(x, (n, c, places.size))
    summed = call.emit("scatter_elements", zeros, indices, updates, axis=2, reduction="add")
    summed = call.reshape(summed, (n, c, *padded))
    if not any(pads):
        return summed
    ends = [pads[i] + d for i, d in enumerate(image)]
    return call.emit("slice", summed, starts=pads[:rank], ends=ends, axes=range(2, 2 + rank), steps=[1] * rank)
