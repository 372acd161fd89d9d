"""Pooling."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.frontends.maxima import places_of_maxima, unpooled
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.lowerings.conv import window
from superkernel.frontends.onnx.registry import lowers
from superkernel.ir.graph import VALUE_BYTES_MAX
from superkernel.ops.windows import windows


def _geometry(call: OnnxCall) -> dict[str, tuple[int, ...]]:
    kernel = tuple(call.required("kernel_shape"))
    return {"kernel": kernel, **window(call, call.input(0).shape[2:], kernel)}


@lowers("MaxPool")
def max_pool(call: OnnxCall) -> list[Tensor | None]:
    x, geometry = call.input(0), _geometry(call)
    y = call.emit("max_pool", x, ceil_mode=bool(call.attr("ceil_mode", 0)), **geometry)
    return [y, _indices(call, x, y.shape[2:], geometry) if call.wants(1) else None]


def _indices(call: OnnxCall, x: Tensor, sizes: tuple[int, ...], geometry: Mapping[str, tuple[int, ...]]) -> Tensor:
    """Of the largest elements, counted through the whole input, or (`storage_order` 1) with the first spatial axis
    innermost."""
    windows_of = (geometry[name] for name in ("kernel", "strides", "pads", "dilations"))
    places = places_of_maxima(call, x, sizes, *windows_of)
    extents, images = x.shape[2:], prod(x.shape[:2])
    if call.attr("storage_order", 0):
        order = np.arange(prod(extents)).reshape(extents[::-1]).transpose().reshape(-1)
        places = call.emit("gather", call.constant(order), places, axis=0)
    firsts = np.arange(images).reshape(*x.shape[:2], *(1 for _ in extents)) * prod(extents)
    return call.emit("add", places, call.constant(firsts))


@lowers("MaxUnpool")
def max_unpool(call: OnnxCall) -> Tensor:
    """The places are counted through the output that the window has; more of it that is asked for is zeros behind."""
    x, places, kernel = call.input(0), call.input(1), tuple(call.required("kernel_shape"))
    geometry = window(call, x.shape[2:], kernel)
    pads, windows_of = geometry["pads"], zip(x.shape[2:], kernel, geometry["strides"], strict=True)
    inner = [(e - 1) * s + k for e, k, s in windows_of]
    shape = [*x.shape[:2], *(n - a - b for n, a, b in zip(inner, pads, pads[len(kernel) :], strict=False))]
    whole = call.static_ints(2) if call.has(2) else shape
    if places.shape != x.shape or min(shape) < 0 or len(whole) != len(shape):
        found = f"{x.type}, {places.type}, {whole}"
        raise call.contradiction("not elements and their places", expected=f"{shape} or more", found=found)
    over = [w - n for w, n in zip(whole, shape, strict=True)]
    if min(over) < 0 or max(whole) > VALUE_BYTES_MAX:
        raise call.contradiction("not the size of an output", expected=f"{shape} or more", found=str(whole))
    x, places = (call.reshape(t, (1, t.type.size)) for t in (x, places))
    y = call.reshape(unpooled(call, x, places, prod(shape)), shape)
    return call.emit("pad", y, pads=[0] * len(over) + over, mode="constant", value=0.0) if any(over) else y


@lowers("AveragePool")
def average_pool(call: OnnxCall) -> Tensor:
    options = {
        "ceil_mode": bool(call.attr("ceil_mode", 0)),
        "count_include_pad": bool(call.attr("count_include_pad", 0)),
    }
    return call.emit("avg_pool", call.input(0), **_geometry(call), **options)


@lowers("LpPool")
def lp_pool(call: OnnxCall) -> Tensor:
    geometry, x, p = _geometry(call), call.input(0), call.attr("p", 2)
    if p < 1:
        raise call.contradiction("not a norm", expected="p of 1 or more", found=p)
    if call.attr("ceil_mode", 0):  # what the last windows hang over the end adds nothing, as padding does not
        axes = windows(x.shape[2:], geometry["kernel"], geometry, ceil_mode=True)
        over = tuple(max(w.end, (w.size - 1) * w.stride + w.reach - w.extent - w.begin) for w in axes)
        geometry["pads"] = (*(w.begin for w in axes), *over)
    dilations = geometry.pop("dilations")
    if set(dilations) == {1}:
        return call.emit("lp_pool", x, p=p, **geometry)
    # The sum of powers as an average with every tap counted.
    powers = call.emit("pow", call.emit("abs", x), call.like(p, x))
    mean = call.emit("avg_pool", powers, dilations=dilations, count_include_pad=True, **geometry)
    total = call.emit("mul", mean, call.like(prod(geometry["kernel"]), mean))
    return call.emit("pow", total, call.like(1.0 / p, total))


@lowers("GlobalLpPool")
def global_lp_pool(call: OnnxCall) -> Tensor:
    x, p = call.input(0), call.attr("p", 2)
    axes = tuple(range(2, x.rank))
    if p in (1, 2):
        return call.emit("reduce_l1" if p == 1 else "reduce_l2", x, axes=axes, keepdims=True)
    powers = call.emit("pow", call.emit("abs", x), call.like(p, x))
    total = call.emit("reduce_sum", powers, axes=axes, keepdims=True)
    return call.emit("pow", total, call.like(1.0 / p, total))
