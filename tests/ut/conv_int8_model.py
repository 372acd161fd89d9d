"""What convolutions in int8 compute, but for the rounding of f32 sums: NumPy, written without the kernel's forms.

Model: input rows become bytes over the columns and channels (of a group) that some output needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from narrow_model import rows_of_codes, weights8
from numpy.typing import NDArray

Array = NDArray[Any]


def two_dimensional(x: Array, w: Array, attrs: dict[str, Any]) -> tuple[Array, Array, dict[str, Any]]:
    """The convolution with two spatial dimensions, pads of all four sides and one number each for both dimensions."""
    rank = x.ndim - 2
    full = {
        "strides": tuple(attrs.get("strides", (1,) * rank)),
        "dilations": tuple(attrs.get("dilations", (1,) * rank)),
        "pads": tuple(attrs.get("pads", (0,) * (2 * rank))),
        "groups": attrs.get("groups", 1),
    }
    if rank == 1:
        x, w = x[:, :, None], w[:, :, None]
        (low, high), one = full["pads"], (1,)
        full |= {"strides": one + full["strides"], "dilations": one + full["dilations"], "pads": (0, low, 0, high)}
    return x, w, full


def convolve(x: Array, w: Array, full: dict[str, Any]) -> Array:
    """Direct convolution, tap by tap, in the arrays' own type."""
    (top, left, bottom, right), groups = full["pads"], full["groups"]
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], full["dilations"], strict=True)]
    high, wide = ((n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, full["strides"], strict=True))
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    total = np.zeros((x.shape[0], groups, w.shape[1], high, wide), x.dtype)
    (step, stride), (dilation, spread) = full["strides"], full["dilations"]
    for i in range(w.shape[3]):
        for j in range(w.shape[4]):
            under = x[..., i * dilation :: step, j * spread :: stride][..., :high, :wide]
            total += np.einsum("ngchw,gfc->ngfhw", under, w[:, :, :, i, j])
    return total.reshape(x.shape[0], -1, high, wide)


def as_bytes(x: Array, w: Array, full: dict[str, Any]) -> Array:
    """Inputs [n, channels, rows, columns] that have gone through bytes; columns that no output needs are 0."""
    (_, left, _, right), groups, stride = full["pads"], full["groups"], full["strides"][1]
    n, channels, height, width = x.shape
    reach = (w.shape[3] - 1) * full["dilations"][1] + 1
    wide = (width + left + right - reach) // stride * stride + reach
    columns = np.arange(0, min(width, wide - left))
    if w.shape[2:] == (1, 1) and not any(full["pads"][:2]):
        columns = columns[::stride]
    met = x[..., columns].reshape(n, groups, channels // groups, height, -1)
    rows = np.moveaxis(met, 2, 3)  # n, group, height, channel, column
    back = np.moveaxis(rows_of_codes(rows.reshape(n, groups, height, -1), 255).reshape(rows.shape), 3, 2)
    found = np.zeros(x.shape)
    found[..., columns] = back.reshape(n, channels, height, -1)
    return found


def expected_conv(x: Array, w: Array, attrs: dict[str, Any]) -> Array:
    """The convolution of what bytes hold, in float64."""
    x2, w2, full = two_dimensional(x.astype(np.float64), w.astype(np.float64), attrs)
    flat = weights8(w2.reshape(w2.shape[0], -1).T).T.reshape(w2.shape)
    found = convolve(as_bytes(x2, w2, full), flat, full)
    return found if x.ndim == 4 else found[:, :, 0]


def expected_volume(x: Array, w: Array, attrs: dict[str, Any]) -> Array:
    """As `expected_conv` for three dimensions: planes become bytes one by one, filters as wholes."""
    strides, dilations = attrs.get("strides", (1,) * 3), attrs.get("dilations", (1,) * 3)
    pads = attrs.get("pads", (0,) * 6)
    full = {
        "strides": strides[1:],
        "dilations": dilations[1:],
        "pads": (*pads[1:3], *pads[4:]),
        "groups": attrs.get("groups", 1),
    }
    (n, channels, depth, *plane), deep = x.shape, w.shape[2]
    planes = x.astype(np.float64).swapaxes(1, 2).reshape(n * depth, channels, *plane)
    lines = w.reshape(*w.shape[:2], -1, w.shape[4])
    planes = as_bytes(planes, lines, full).reshape(n, depth, channels, *plane)
    planes = np.pad(planes, ((0, 0), (pads[0], pads[3]), (0, 0), (0, 0), (0, 0)))
    flat = weights8(w.astype(np.float64).reshape(w.shape[0], -1).T).T.reshape(w.shape)
    size = (planes.shape[1] - (deep - 1) * dilations[0] - 1) // strides[0] + 1
    taps = [planes[:, a * dilations[0] :: strides[0]][:, :size].reshape(-1, channels, *plane) for a in range(deep)]
    total = sum(convolve(met, flat[:, :, a], full) for a, met in enumerate(taps))
    return np.asarray(total).reshape(n, size, w.shape[0], *np.shape(total)[2:]).swapaxes(1, 2)
