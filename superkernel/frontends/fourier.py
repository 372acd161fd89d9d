"""Fourier transforms along an axis as products with constant matrices of cosines and sines: for the lengths that models
use (windows of speech, modes, patches) that is what the table's kernels are good at. Matrices are built in float64."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.frontends.emitter import Emitter
from superkernel.frontends.resample import Weights, along

LENGTH_MAX = 4096
"""Most samples of a transform: its matrices have the square of it."""


def of_real(
    call: Emitter, x: Tensor, axis: int, bins: int, factor: float = 1.0, window: Weights | None = None
) -> tuple[Tensor, Tensor]:
    """The first `bins` frequencies of a real signal, times a factor: real and imaginary parts. A `window` of a factor
    per sample costs nothing."""
    cos, sin = _matrices(call, x.shape[axis], bins, factor)
    if window is not None:
        cos, sin = cos * window, sin * window
    return along(call, x, cos, axis), along(call, x, -sin, axis)


def of_complex(
    call: Emitter, re: Tensor, im: Tensor, axis: int, *, sign: int, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The sum of x exp(sign i 2 pi j k / n), times a factor: real and imaginary parts."""
    length = re.shape[axis]
    cos, sin = _matrices(call, length, length, factor)
    real = call.emit("sub", along(call, re, cos, axis), along(call, im, sign * sin, axis))
    return real, call.emit("add", along(call, im, cos, axis), along(call, re, sign * sin, axis))


def to_real(call: Emitter, re: Tensor, im: Tensor, axis: int, length: int, factor: float = 1.0) -> Tensor:
    """The real signal of `length` samples whose first frequencies are given: those that are left out are the conjugates
    of those that are there."""
    bins = length // 2 + 1
    cos, sin = _matrices(call, length, bins, factor)
    number = np.arange(bins)
    counted = np.where((number == 0) | (2 * number == length), 1.0, 2.0)
    re, im = call.slice(re, axis, 0, bins), call.slice(im, axis, 0, bins)
    return call.emit("sub", along(call, re, cos.T * counted, axis), along(call, im, sin.T * counted, axis))


def _matrices(call: Emitter, length: int, bins: int, factor: float) -> tuple[Weights, Weights]:
    """Cosines and sines of 2 pi j k / n, [bin, sample]; the products of numbers are exact, so that angles are."""
    if length > LENGTH_MAX:
        expected = f"at most {LENGTH_MAX} samples"
        raise call.unsupported("the Fourier transform is too long", expected=expected, found=str(length))
    angles = 2 * np.pi * (np.outer(np.arange(bins), np.arange(length)) % length) / length
    return np.cos(angles) * factor, np.sin(angles) * factor
