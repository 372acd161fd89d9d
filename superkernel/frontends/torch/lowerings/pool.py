"""Pools, adaptive ones included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.frontends.maxima import places_of_maxima
from superkernel.frontends.resample import along
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


def _batched(call: TorchCall, spatial: int, pool: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies to [N, C, spatial] what may come as [C, spatial]."""
    x = call.tensor("self")
    if x.rank == spatial + 2:
        return pool(x)
    y = pool(call.reshape(x, (1, *x.shape)))
    return call.reshape(y, y.shape[1:])


def _spatial(call: TorchCall) -> int:
    return int(next(c for c in call.op if c.isdigit()))


def _windows(call: TorchCall) -> dict[str, list[int] | bool]:
    n = _spatial(call)
    kernel = call.ints("kernel_size", n)
    pads = call.ints("padding", n) or [0] * n
    strides = call.ints("stride", n) or kernel
    return {"kernel": kernel, "strides": strides, "pads": pads * 2, "ceil_mode": bool(call.get("ceil_mode", False))}


@lowers(*(f"max_pool{n}d{form}" for n in (1, 2, 3) for form in ("", "_with_indices")))
def max_pool(call: TorchCall) -> list[Tensor | None]:
    n = _spatial(call)
    options = {**_windows(call), "dilations": call.ints("dilation", n) or [1] * n}
    values = _batched(call, n, lambda x: call.emit("max_pool", x, **options)) if call.wants(0) else None
    return [values, _batched(call, n, lambda x: _places(call, x, options)) if call.wants(1) else None]


def _places(call: TorchCall, x: Tensor, options: Mapping[str, Any]) -> Tensor:
    sizes = call.shape[-len(x.shape[2:]) :]
    return places_of_maxima(call, x, sizes, *(options[name] for name in ("kernel", "strides", "pads", "dilations")))


@lowers("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(call: TorchCall) -> Tensor:
    options = _windows(call)
    divisor = call.get("divisor_override")
    counted = bool(call.get("count_include_pad", True))
    if divisor is None:
        options["count_include_pad"] = counted
        return _batched(call, _spatial(call), lambda x: call.emit("avg_pool", x, **options))
    if options["ceil_mode"]:
        raise call.unsupported("divisor_override together with ceil_mode is not supported")
    kernel = options["kernel"]
    assert isinstance(kernel, list)
    y = _batched(call, _spatial(call), lambda x: call.emit("avg_pool", x, count_include_pad=True, **options))
    return call.emit("mul", y, call.like(float(np.prod(kernel)) / divisor, y))


@lowers(*(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)), "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(call: TorchCall) -> Tensor:
    n = _spatial(call)
    sizes = call.shape[-n:]

    def pool(x: Tensor) -> Tensor:
        if all(s == 1 for s in sizes):
            return call.emit("global_avg_pool", x)
        kernel = _even(x, sizes)
        if kernel is not None:
            return call.emit("avg_pool", x, kernel=kernel, strides=kernel)
        for axis, size in enumerate(sizes, 2):
            weights = np.zeros((size, x.shape[axis]))
            for row, (start, end) in enumerate(_ranges(x.shape[axis], size)):
                weights[row, start:end] = 1 / (end - start)
            x = along(call, x, weights, axis)
        return x

    return _batched(call, n, pool)


@lowers("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: TorchCall) -> list[Tensor | None]:
    if call.wants(1):
        raise call.unsupported("the indices of an adaptive max pool are not supported")
    n = _spatial(call)
    sizes = call.shape[-n:]

    def pool(x: Tensor) -> Tensor:
        kernel = _even(x, sizes)
        if kernel is not None:
            return call.emit("max_pool", x, kernel=kernel, strides=kernel)
        for axis, size in enumerate(sizes, 2):
            cuts = [call.slice(x, axis, start, end) for start, end in _ranges(x.shape[axis], size)]
            x = call.concat([call.emit("reduce_max", c, axes=(axis,), keepdims=True) for c in cuts], axis)
        return x

    return [_batched(call, n, pool)]


def _even(x: Tensor, sizes: tuple[int, ...]) -> list[int] | None:
    """The window where all are equal and none overlap."""
    pairs = list(zip(x.shape[2:], sizes, strict=True))
    return [extent // size for extent, size in pairs] if all(s and e % s == 0 and e for e, s in pairs) else None


def _ranges(extent: int, size: int) -> list[tuple[int, int]]:
    """The window of each output."""
    return [(i * extent // size, -(-(i + 1) * extent // size)) for i in range(size)]
