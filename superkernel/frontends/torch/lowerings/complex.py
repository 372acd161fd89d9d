"""Complex numbers, as pairs of real tensors, and Fourier transforms.

Moves, and what is linear with real factors, apply to both parts alike: the operator's own lowering runs twice. Products
are written out. An absolute value is the root of the sum of squares: it overflows where the squares do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch.utils import _pytree as pytree

from superkernel.builder.einsum import einsum
from superkernel.builder.tensor import Tensor
from superkernel.frontends.fourier import of_complex, of_real, to_real
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.pairs import Pair
from superkernel.frontends.torch.registry import ComplexLowered, find_lowering, lowers_complex

POWER_MAX = 16

_PARTWISE = (
    "alias", "cat", "clone", "constant_pad_nd", "detach", "detach_", "diagonal", "expand", "flip", "gather",
    "index.Tensor", "index_select", "lift_fresh_copy", "mean.dim", "neg", "permute", "repeat", "reshape",
    "resolve_conj", "resolve_neg", "roll", "select.int", "select_scatter", "slice.Tensor", "slice_scatter",
    "split.Tensor", "split_with_sizes", "squeeze", "stack", "sum", "t", "transpose.int", "unbind.int", "unsqueeze",
    "view", "_unsafe_view", "where.self",
)  # fmt: skip


@lowers_complex(*_PARTWISE)
def partwise(call: TorchCall) -> ComplexLowered:
    """The operator's own lowering on the real parts and on the imaginary ones."""
    lowering = find_lowering(str(call.node.target))
    given = call.args
    if lowering is None or any(isinstance(v, Tensor) and v.dtype.is_float for v in pytree.tree_leaves(given)):
        raise call.unsupported("real and complex tensors together are not supported here")
    parts: list[Any] = []
    for part in ("re", "im"):
        call.args = pytree.tree_map(lambda v, part=part: getattr(v, part) if isinstance(v, Pair) else v, given)
        parts.append(lowering(call))
    real, imaginary = parts
    if isinstance(real, Tensor):
        return Pair(real, imaginary)
    return [Pair(r, i) for r, i in zip(real, imaginary, strict=True)]


# Between real and complex ---------------------------------------------------------------------------------------------


@lowers_complex("view_as_complex")
def view_as_complex(call: TorchCall) -> Pair:
    x = call.tensor("self")
    return Pair(*(call.reshape(call.slice(x, x.rank - 1, i, i + 1), x.shape[:-1]) for i in (0, 1)))


@lowers_complex("view_as_real")
def view_as_real(call: TorchCall) -> Tensor:
    x = _pair(call, "self")
    return call.concat([call.reshape(part, (*part.shape, 1)) for part in (x.re, x.im)], x.re.rank)


@lowers_complex("complex")
def from_parts(call: TorchCall) -> Pair:
    return Pair(*_expanded(call, call.tensor("real"), call.tensor("imag")))


@lowers_complex("polar")
def polar(call: TorchCall) -> Pair:
    return _from_polar(call, call.tensor("abs"), call.tensor("angle"))


@lowers_complex("real", "imag")
def part(call: TorchCall) -> Tensor:
    x = _pair(call, "self")
    return x.re if call.op == "real" else x.im


@lowers_complex("_to_copy")
def to_copy(call: TorchCall) -> ComplexLowered:
    """To another complex type; a real tensor gets an imaginary part of zeros, a complex one never loses its own."""
    if not call.values[0].is_complex():
        raise call.unsupported("an imaginary part would be lost", hint="take .real or .abs()")
    return _pair(call, "self")


@lowers_complex("copy")
def copied(call: TorchCall) -> Pair:
    """In place of all that was there."""
    source = _pair(call, "src")
    return Pair(*_expanded(call, source.re, source.im))


@lowers_complex("full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "new_zeros", "new_full")
def filled(call: TorchCall) -> Pair:
    value = complex(call.get("fill_value", 1 if "ones" in call.op else 0))
    parts = (np.full(call.shape, number, call.dtype.numpy) for number in (value.real, value.imag))
    return Pair(*(call.constant(part, call.dtype) for part in parts))


# Arithmetic -----------------------------------------------------------------------------------------------------------


@lowers_complex("_conj", "_conj_physical", "conj_physical", "conj")
def conjugate(call: TorchCall) -> Pair:
    x = _pair(call, "self")
    return Pair(x.re, call.emit("neg", x.im))


@lowers_complex("abs")
def absolute(call: TorchCall) -> Tensor:
    x = _pair(call, "self")
    return call.emit("sqrt", _squared(call, x))


@lowers_complex("angle")
def angle(call: TorchCall) -> Tensor:
    x = _pair(call, "self")
    return call.emit("atan2", x.im, x.re)


@lowers_complex("pow.Tensor_Scalar")
def whole_power(call: TorchCall) -> Pair:
    """Of a small whole exponent, by squaring."""
    exponent = call.args["exponent"]
    if exponent not in range(1, POWER_MAX + 1):
        expected = f"a whole number from 1 to {POWER_MAX}"
        raise call.unsupported("this power of a complex tensor is not supported", expected=expected, found=exponent)
    square, left, result = _pair(call, "self"), int(exponent), None
    times = partial(call.emit, "mul")
    while True:
        if left % 2:
            result = square if result is None else _times(call, times, result, square)
        left //= 2
        if not left:
            assert result is not None
            return result
        square = _times(call, times, square, square)


@lowers_complex("exp")
def exponential(call: TorchCall) -> Pair:
    x = _pair(call, "self")
    return _from_polar(call, call.emit("exp", x.re), x.im)


@lowers_complex("add", "sub")
def added(call: TorchCall) -> Pair:
    x, y = _pair(call, "self"), _pair(call, "other")
    if call.get("alpha", 1) != 1:
        factor = call.like(float(call.args["alpha"]), y.re)
        y = Pair(call.emit("mul", y.re, factor), call.emit("mul", y.im, factor))
    return Pair(*_expanded(call, call.emit(call.op, x.re, y.re), call.emit(call.op, x.im, y.im)))


@lowers_complex("mul")
def multiplied(call: TorchCall) -> Pair:
    return _times(call, partial(call.emit, "mul"), call.args["self"], call.args["other"])


@lowers_complex("mm", "bmm", "matmul")
def product(call: TorchCall) -> Pair:
    second = call.args["other" if call.op == "matmul" else "mat2"]
    return _times(call, partial(call.emit, "matmul"), call.args["self"], second)


@lowers_complex("einsum")
def lower_einsum(call: TorchCall) -> Pair:
    operands, equation = call.args["tensors"], str(call.args["equation"])
    if len(operands) != 2:
        raise call.unsupported("a complex einsum of other than two tensors", hint="multiply them two by two")
    return _times(call, lambda x, y: einsum(call, equation, [x, y]), *operands)


@lowers_complex("div.Tensor", "div.Scalar")
def divided(call: TorchCall) -> Pair:
    x, divisor = _pair(call, "self"), call.args["other"]
    if isinstance(divisor, Pair):
        turned = _times(call, partial(call.emit, "mul"), x, Pair(divisor.re, call.emit("neg", divisor.im)))
        x, divisor = turned, _squared(call, divisor)
    if isinstance(divisor, complex):
        return _times(call, partial(call.emit, "mul"), x, 1 / divisor)
    by = call.typed(divisor, call.dtype)
    return Pair(call.emit("div", x.re, by), call.emit("div", x.im, by))


def _times(call: TorchCall, times: Callable[[Tensor, Tensor], Tensor], first: Any, second: Any) -> Pair:
    """A product of two, of which one may be real: an imaginary part that is none costs nothing."""
    (a, b), (c, d) = _parts(call, first), _parts(call, second)
    if d is None:
        return Pair(times(a, c), _zeros(call, a) if b is None else times(b, c))
    if b is None:
        return Pair(times(a, c), times(a, d))
    re, im = call.emit("sub", times(a, c), times(b, d)), call.emit("add", times(a, d), times(b, c))
    return Pair(re, im)


def _squared(call: TorchCall, x: Pair) -> Tensor:
    return call.emit("add", call.emit("mul", x.re, x.re), call.emit("mul", x.im, x.im))


def _from_polar(call: TorchCall, size: Tensor, angle: Tensor) -> Pair:
    return Pair(*(call.emit("mul", size, call.emit(op, angle)) for op in ("cos", "sin")))


def _parts(call: TorchCall, value: Any) -> tuple[Tensor, Tensor | None]:
    """The parts of a pair, a real tensor or a number, in the element type of the result."""
    if isinstance(value, Pair):
        return call.cast(value.re, call.dtype), call.cast(value.im, call.dtype)
    if isinstance(value, complex):
        return call.typed(value.real, call.dtype), call.typed(value.imag, call.dtype)
    return call.typed(value, call.dtype), None


def _pair(call: TorchCall, name: str) -> Pair:
    """An argument as a pair; what is real gets an imaginary part of zeros."""
    re, im = _parts(call, call.args[name])
    return Pair(re, _zeros(call, re) if im is None else im)


def _zeros(call: TorchCall, like: Tensor) -> Tensor:
    return call.constant(np.zeros(like.shape, like.dtype.numpy), like.dtype)


def _expanded(call: TorchCall, *parts: Tensor) -> list[Tensor]:
    """The parts in the shape of the result."""
    return [call.expand(part, call.shape) for part in parts]


# Fourier transforms ---------------------------------------------------------------------------------------------------


@lowers_complex("_fft_r2c")
def real_to_complex(call: TorchCall) -> Pair:
    """One-sided along the last of the axes, where that is asked for, two-sided along the others."""
    x, axes = call.tensor("self"), _axes(call)
    sizes = [x.shape[a] for a in axes]
    length = sizes[-1]
    bins = length // 2 + 1 if call.args["onesided"] else length
    pair = Pair(*of_real(call, x, axes[-1], bins, _factor(call, sizes)))
    return _transformed(call, pair, axes[:-1], sign=-1)


@lowers_complex("_fft_c2c")
def complex_to_complex(call: TorchCall) -> Pair:
    x, axes = _pair(call, "self"), _axes(call)
    factor = _factor(call, [x.re.shape[a] for a in axes])
    return _transformed(call, x, axes, sign=-1 if call.args["forward"] else 1, factor=factor)


@lowers_complex("_fft_c2r")
def complex_to_real(call: TorchCall) -> Tensor:
    x, axes, length = _pair(call, "self"), _axes(call), int(call.args["last_dim_size"])
    sizes = [x.re.shape[a] for a in axes[:-1]] + [length]
    x = _transformed(call, x, axes[:-1], sign=1)
    return to_real(call, x.re, x.im, axes[-1], length, _factor(call, sizes))


def _transformed(call: TorchCall, x: Pair, axes: Sequence[int], *, sign: int, factor: float = 1.0) -> Pair:
    """The sum of x exp(sign i 2 pi j k / n) along each axis, times a factor."""
    for axis in axes:
        x, factor = Pair(*of_complex(call, x.re, x.im, axis, sign=sign, factor=factor)), 1.0
    return x


def _axes(call: TorchCall) -> list[int]:
    value = call.args["self"]
    rank = (value.re if isinstance(value, Pair) else value).rank
    return [int(a) % rank for a in call.ints("dim")]


def _factor(call: TorchCall, sizes: Sequence[int]) -> float:
    """What torch's number of a normalisation stands for: nothing, the root of the count, the count."""
    count = float(np.prod(sizes))
    return (1.0, count**-0.5, 1 / count)[int(call.args["normalization"])]
