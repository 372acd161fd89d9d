"""Fourier transforms and what goes with them."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.errors import FileFormatError
from superkernel.frontends.fourier import of_complex, of_real, to_real
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers
from superkernel.frontends.onnx.types import element_type


@lowers("DFT")
def dft(call: OnnxCall) -> Tensor:
    """The last axis holds real parts, or real and imaginary ones. One-sided, the inverse gives a real signal."""
    x = call.input(0)
    axis = call.attr("axis", 1) if call.opset < 20 else int(call.static_scalar(2)) if call.has(2) else -2
    axis = call.axis(axis, x.rank)
    inverse, onesided = bool(call.attr("inverse", 0)), bool(call.attr("onesided", 0))
    if axis == x.rank - 1:
        raise FileFormatError("a transform along the axis of real and imaginary parts", location=call.where)
    parts = _parts(call, x)
    halved = inverse and onesided
    length = 2 * (x.shape[axis] - 1) if halved else x.shape[axis]
    if call.has(1):
        length = int(call.static_scalar(1))
    if length < 1:
        raise call.contradiction("a transform of no elements", expected="1 or more", found=length)
    if halved and len(parts) == 2:
        re, im = (_resized(call, p, axis, length // 2 + 1) for p in parts)
        return _joined(call, to_real(call, re, im, axis, length, 1 / length))
    parts = [_resized(call, p, axis, length) for p in parts]
    if onesided and (inverse or len(parts) == 2):
        raise call.unsupported("a one-sided transform of what is no real signal, or to none")
    factor = 1 / length if inverse else 1.0
    if len(parts) == 2:
        return _joined(call, *of_complex(call, parts[0], parts[1], axis, sign=1 if inverse else -1, factor=factor))
    re, im = of_real(call, parts[0], axis, length // 2 + 1 if onesided else length, factor)
    return _joined(call, re, call.emit("neg", im) if inverse else im)


@lowers("STFT")
def stft(call: OnnxCall) -> Tensor:
    """Frames gathered and transformed; a known window is part of the transform's matrices."""
    parts = _parts(call, call.input(0))
    step = int(call.static_scalar(1))
    length = int(call.static_scalar(3)) if call.has(3) else call.input(2).shape[0]
    samples = parts[0].shape[1]
    if not (step > 0 and 0 < length <= samples):
        what = f"frames of {length} every {step} of {samples} samples"
        raise FileFormatError("no such frames", location=call.where, found=what)
    first = step * np.arange((samples - length) // step + 1)
    places = call.constant(first[:, None] + np.arange(length))
    framed = [call.emit("gather", part, places, axis=1) for part in parts]  # batch, frame, sample
    window = call.optional(2)
    known = None
    if window is not None and window.value.data is not None and len(parts) == 1:
        known = window.value.data.astype(np.float64)
    elif window is not None:
        framed = [call.emit("mul", part, window) for part in framed]
    onesided = bool(call.attr("onesided", 1))
    if len(framed) == 2:
        if onesided:
            raise call.unsupported("a one-sided transform of a complex signal")
        return _joined(call, *of_complex(call, framed[0], framed[1], 2, sign=-1))
    bins = length // 2 + 1 if onesided else length
    return _joined(call, *of_real(call, framed[0], 2, bins, window=known))


@lowers("MelWeightMatrix")
def mel_weight_matrix(call: OnnxCall) -> Tensor:
    """Triangles from one mel band's middle to the next, over the bins of a one-sided spectrum."""
    bands, length, rate, low, high = (call.static_scalar(i) for i in range(5))
    if min(bands, length) < 0 or rate == 0:
        raise call.contradiction("no such spectrum", found=f"{bands} bands, length {length}, rate {rate}")
    ends = 2595 * np.log10(1 + np.array([low, high], np.float64) / 700)
    mels = ends[0] + np.arange(bands + 2) * ((ends[1] - ends[0]) / (bands + 2))
    middles = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    weights = np.zeros((int(length) // 2 + 1, int(bands)))
    for band, (left, middle, right) in enumerate(zip(middles, middles[1:], middles[2:], strict=False)):
        if not 0 <= left <= right < len(weights) + 1:
            raise FileFormatError("bands beyond the spectrum", location=call.where, found=f"bin {right}")
        rising, falling = np.arange(left, middle + 1), np.arange(middle, right)
        weights[rising, band] = (rising - left) / (middle - left) if middle > left else 1.0
        if right > middle:
            weights[falling, band] = (right - falling) / (right - middle)
    dtype = element_type(call.attr("output_datatype", 1), call.where)
    return call.constant(weights.astype(dtype.numpy), dtype)


def _parts(call: OnnxCall, x: Tensor) -> list[Tensor]:
    """The real part, and the imaginary one where there is one, without the axis that tells them apart."""
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise FileFormatError("the last axis is of real and imaginary parts", location=call.where, found=x.shape)
    last = x.rank - 1
    return [call.reshape(call.slice(x, last, i, i + 1), x.shape[:-1]) for i in range(x.shape[-1])]


def _joined(call: OnnxCall, *parts: Tensor) -> Tensor:
    """Parts as a last axis."""
    return call.concat([call.reshape(p, (*p.shape, 1)) for p in parts], parts[0].rank)


def _resized(call: OnnxCall, x: Tensor, axis: int, length: int) -> Tensor:
    """`x` cut off, or with zeros behind it."""
    missing = length - x.shape[axis]
    if missing <= 0:
        return call.slice(x, axis, 0, length)
    zeros = call.expand(call.like(0, x), (*x.shape[:axis], missing, *x.shape[axis + 1 :]))
    return call.concat([x, zeros], axis)
