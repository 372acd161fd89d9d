"""Products of dequantised values as products of integers, and moves of them as moves of their codes.

Model: `dequantize` of codes of 8 or 16 bits with a constant scale gives a value that is (code - zero point) * scale. A
product of two such values, the weights constant bytes, is the product of their codes in i32, exact, times both scales:
the sums are cast to f32 and scaled, and what followed (bias, activation, `quantize`) follows still, so that kernels
have it as their epilogue. Weights are i8 with zero point 0 or u8 with zero point 128, which is the same 128 lower;
their scale may differ from output to output. A bias that is quantised with the product of the scales is added to the
sums. Operators that only move or compare values (reshape, transpose, slices, concatenation, maxima), between a
dequantize and a quantize of the same scale and zero point, move the codes. A clamp ahead of a quantize that clamps no
less is gone.

Codes of 16 bits are multiplied byte by byte: 256 times the sum of the upper bytes and the sum of the lower ones, each
exact, are added in f32. Unsigned ones that are quantised here are i16, 2^15 lower. A product of which both factors are
computed bytes is one of their codes in f32, in pieces of the depth whose sums f32 holds exactly. A softmax between
bytes takes exponentials of differences of codes in steps that are the same on every target (`softmax_grid`).

A `conv_integer` that no kernel of bytes takes (depthwise, in three dimensions, weights with a zero point or computed)
becomes a convolution of the same numbers in f32 or f64, rounded to whole ones; so does a depthwise convolution of
dequantised values, whose sums f32 holds exactly. Averages over images are of codes, scaled afterwards. So the integers
of a quantised network hang neither on the order of sums nor on the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import BYTES
from superkernel.ops.rowwise import grid_max
from superkernel.transforms.base import NodePass
from superkernel.transforms.editor import Editor
from superkernel.transforms.fold import FoldConstants

_SIGN = 128
_BIAS_TOLERANCE = 1e-6  # of the scale of a bias, relative to the product of scales
_DEPTH_MOST = 1 << 16
_QUANTISED = frozenset({"dequantize", "matmul_integer", "conv_integer"})
_EXACT_F32 = 1 << 24
_CLAMPED = 0.25  # of a step: what is so near to the last code is rounded to it
_MOVES = frozenset({"reshape", "transpose", "slice", "max_pool"})
_WORDS = frozenset({DType.I16, DType.U16})
_ACTIVATIONS = BYTES | _WORDS
_BYTE, _HALF_WORD = 256, 1 << 15
_STEPS_PER_ELEMENT = 32  # of a row: roundings that all go one way are 4 steps of 8 bits then, others some tenths
_EXP_ERROR = 2.0**-21  # of an exponential times a number, relative: twice what it is
_PIECES = 16  # of the depth of a product of computed factors


@dataclass(frozen=True)
class Codes:
    """A dequantised value: (value - zero) * scale."""

    value: str
    scale: NDArray[Any]
    zero: NDArray[Any] | None

    @property
    def per_tensor(self) -> bool:
        """Whether one scale and zero point are all."""
        return self.scale.size == 1 and (self.zero is None or self.zero.size == 1)

    def alike(self, other: Codes) -> bool:
        """Whether equal codes mean equal values."""
        zeros = [0 if c.zero is None else int(c.zero.reshape(-1)[0]) for c in (self, other)]
        both = self.per_tensor and other.per_tensor
        return both and zeros[0] == zeros[1] and float(self.scale.reshape(-1)[0]) == float(other.scale.reshape(-1)[0])


def codes_of(editor: Editor, value: str | None, types: frozenset[DType] = _ACTIVATIONS) -> Codes | None:
    """How a value is dequantised from codes of some types, None where it is not."""
    node = None if value is None else editor.producer.get(value)
    if node is None or node.op != "dequantize" or editor.type(node.outputs[0]).dtype is not DType.F32:
        return None
    codes = _parameters(editor, node)
    return codes if codes is not None and editor.type(codes.value).dtype in types else None


def _parameters(editor: Editor, node: Node) -> Codes | None:
    """What a dequantize reads, or a quantize is told, where it is constant."""
    source, scale = node.inputs[0], editor.array(node.inputs[1])
    point = node.inputs[2] if len(node.inputs) > 2 else None
    zero = editor.array(point)
    if source is None or scale is None or (point is not None and zero is None):
        return None
    return Codes(source, np.asarray(scale, np.float32), zero)


@dataclass(frozen=True)
class Weights:
    """Constant i8 codes with zero point 0, and a scale per output."""

    codes: NDArray[Any]
    scale: NDArray[Any]


def _weights(editor: Editor, value: str | None, axis: int) -> Weights | None:
    """A constant that is dequantised; `axis`: that of the outputs."""
    found = codes_of(editor, value, BYTES)
    array = None if found is None else editor.array(found.value)
    if found is None or array is None:
        return None
    shift = _SIGN if array.dtype == np.uint8 else 0
    if np.any((0 if found.zero is None else found.zero.astype(np.int64)) != shift):
        return None
    scale = found.scale.reshape((1,) * (array.ndim - found.scale.ndim) + found.scale.shape)
    if any(extent != 1 for i, extent in enumerate(scale.shape) if i != axis):
        return None
    return Weights(
        (array.astype(np.int16) - shift).astype(np.int8), np.broadcast_to(scale.reshape(-1), array.shape[axis])
    )


def _rows(editor: Editor, value: str | None, near: Node, types: frozenset[DType] = _ACTIVATIONS) -> Codes | None:
    """A factor of a product: one scale and zero point, dequantised ahead of a reshape or transpose too."""
    found = codes_of(editor, value, types)
    if found is not None:
        return found if found.per_tensor else None
    node = None if value is None else editor.producer.get(value)
    if node is None or node.op not in ("reshape", "transpose"):
        return None
    found = codes_of(editor, node.inputs[0], types)
    if found is None or not found.per_tensor:
        return None
    moved = editor.emit(node.op, (found.value,), node.attrs, near)
    return None if moved is None else Codes(moved, found.scale, found.zero)


def _bytes(editor: Editor, rows: Codes, near: Node) -> list[Codes]:
    """Codes of bytes that add up to the given ones, the last as it is and those ahead of it times 256. The lower byte
    of a word is taken 128 lower, so that both are signed."""
    kind = editor.type(rows.value).dtype
    if kind in BYTES:
        return [rows]
    words, zero = rows.value, 0 if rows.zero is None else int(rows.zero.reshape(())[()])

    def computed(op: str, left: str, right: int) -> str:
        operand = editor.constant(np.array(right, np.int16), f"{near.name}/{op}")
        return _some(editor.emit(op, (left, operand), {}, near))

    if kind is DType.U16:
        words = _some(editor.emit("cast", (words,), {"dtype": DType.I16}, near))
        words, zero = computed("bitwise_xor", words, -_HALF_WORD), zero - _HALF_WORD
    low = computed("sub", computed("bitwise_and", words, _BYTE - 1), _SIGN)
    parts = (computed("shift_right", words, 8), zero >> 8), (low, zero % _BYTE - _SIGN)
    made = []
    for part, point in parts:
        value = _some(editor.emit("cast", (part,), {"dtype": DType.I8}, near))
        made.append(Codes(value, rows.scale, np.array(point, np.int8)))
    return made


def _some(value: str | None) -> str:
    """A value that an operator which has kernels for all its types gave."""
    assert value is not None
    return value


def _whole(editor: Editor, sums: list[str | None], near: Node) -> str | None:
    """The sums of the bytes of codes, in f32, as that of the codes: exact but for the rounding of the addition."""
    if len(sums) == 1 or None in sums:
        return sums[0] if None not in sums else None
    upper = editor.emit("mul", (sums[0], editor.constant(np.float32(_BYTE), f"{near.name}/byte")), {}, near)
    return editor.emit("add", (upper, sums[1]), {}, near)


def _zero_point(editor: Editor, rows: Codes, near: Node) -> str | None:
    """A scalar, None where it is 0."""
    if rows.zero is None or not rows.zero.any():
        return None
    return editor.constant(rows.zero.reshape(()), f"{near.name}/zero_point")


def _exact_bias(editor: Editor, bias: str | None, scale: NDArray[Any]) -> NDArray[Any] | None:
    """The i32 codes of a bias whose scale is that of the sums."""
    node = None if bias is None else editor.producer.get(bias)
    if node is None or node.op != "dequantize":
        return None
    found = _parameters(editor, node)
    array = None if found is None else editor.array(found.value)
    if found is None or array is None or array.dtype != np.int32 or (found.zero is not None and found.zero.any()):
        return None
    own = np.broadcast_to(found.scale.reshape(-1), scale.shape)
    return array.reshape(-1) if np.allclose(own, scale, rtol=_BIAS_TOLERANCE, atol=0.0) else None


def _scaled(
    editor: Editor, sums: list[str | None], scale: NDArray[Any], bias: str | None, node: Node, shape: tuple[int, ...]
) -> None:
    """The whole of the sums * scale + bias under the name of the node's result; scale and bias vary as `shape` says."""
    reals = [None if s is None else editor.emit("cast", (s,), {"dtype": DType.F32}, node) for s in sums]
    real = _whole(editor, reals, node)
    if real is None:
        return
    _times(editor, real, editor.constant(scale.reshape(shape), f"{node.name}/scale"), bias, node)


def _times(editor: Editor, real: str | None, factor: str, bias: str | None, node: Node) -> None:
    """real * factor + bias under the name of the node's result."""
    product = editor.emit("mul", (real, factor), {}, node, None if bias is not None else node.outputs[0])
    if bias is None or product is None:
        return
    editor.emit("add", (product, bias), {}, node, node.outputs[0])


def _integer_conv(editor: Editor, node: Node) -> None:
    x, w, bias = (*node.inputs, None)[:3]
    rows, weights = _rows(editor, x, node), _weights(editor, w, 0)
    if rows is None or weights is None:
        return
    depth, count = int(np.prod(weights.codes.shape[1:])), weights.codes.shape[0]
    if weights.codes.ndim > 4 or depth > _DEPTH_MOST:
        return
    scale = (rows.scale.reshape(()) * weights.scale).astype(np.float32)
    parts = _bytes(editor, rows, node)
    exact = _exact_bias(editor, bias, scale) if len(parts) == 1 else None
    shape = (1, count) + (1,) * (weights.codes.ndim - 2)
    if weights.codes.shape[1] == 1 and int(node.attrs["groups"]) > 1:  # type: ignore[arg-type]
        _depthwise(editor, node, parts, weights, exact, bias, scale.reshape(shape))
        return
    wide = bias
    if exact is not None:
        wide = None
    elif bias is not None:
        wide = editor.emit("reshape", (bias,), {"shape": shape}, node)
    codes = editor.constant(weights.codes, f"{node.name}/codes")
    added = None if exact is None else editor.constant(exact, f"{node.name}/bias")
    sums = [
        editor.emit("conv_integer", (part.value, codes, added, _zero_point(editor, part, node)), node.attrs, node)
        for part in parts
    ]
    _scaled(editor, sums, scale, wide, node, shape)


def _depthwise(
    editor: Editor, node: Node, parts: list[Codes], weights: Weights, exact: NDArray[Any] | None, bias: str | None,
    scale: NDArray[Any],
) -> None:  # fmt: skip
    """A depthwise convolution of codes in f32, which holds its sums: exact in any order, rounded all the same so that
    no pass moves the scale into the weights."""
    codes = np.abs(weights.codes.astype(np.int64)).reshape(len(weights.codes), -1)
    most = codes.sum(axis=1) * 255 + (0 if exact is None else np.abs(exact.astype(np.int64)))
    if most.max(initial=0) >= _EXACT_F32:
        return
    factors = [editor.constant(weights.codes.astype(np.float32), f"{node.name}/codes")]
    if exact is not None:
        factors.append(editor.constant(exact.astype(np.float32), f"{node.name}/bias"))
    sums = []
    for part in parts:
        real = editor.emit("dequantize", (part.value, *_unscaled(editor, part, node)), {}, node)
        sums.append(editor.emit("round", (editor.emit("conv", (real, *factors), node.attrs, node),), {}, node))
    wide = None
    if exact is None and bias is not None:
        wide = editor.emit("reshape", (bias,), {"shape": scale.shape}, node)
    _times(editor, _whole(editor, sums, node), editor.constant(scale, f"{node.name}/scale"), wide, node)


def _unscaled(editor: Editor, codes: Codes, near: Node) -> tuple[str | None, ...]:
    """What makes a dequantize give code - zero point."""
    point = _zero_point(editor, codes, near)
    return (editor.constant(np.float32(1), f"{near.name}/one"), *([] if point is None else [point]))


def _average(editor: Editor, node: Node) -> None:
    """The average of dequantised values over an image as one of codes, whose sums f32 holds, times the scale."""
    codes = codes_of(editor, node.inputs[0])
    if codes is None or not codes.per_tensor:
        return
    kind = editor.type(codes.value)
    if int(np.prod(kind.shape[2:])) * (_BYTE**kind.dtype.itemsize - 1) >= _EXACT_F32:
        return
    real = editor.emit("dequantize", (codes.value, *_unscaled(editor, codes, node)), {}, node)
    average = editor.emit(node.op, (real,), node.attrs, node)
    _times(editor, average, editor.constant(codes.scale.reshape(()), f"{node.name}/scale"), None, node)


def _integer_matmul(editor: Editor, node: Node) -> None:
    a, b, bias = (*node.inputs, None)[:3]
    if node.attrs.get("trans_a") or node.attrs.get("alpha", 1.0) != 1.0 or node.attrs.get("beta", 1.0) != 1.0:
        return
    swapped = bool(node.attrs.get("trans_b"))
    rows, weights = _rows(editor, a, node), _weights(editor, b, 0 if swapped else 1)
    if weights is None and node.op == "matmul":
        _computed_factors(editor, node)
    if rows is None or weights is None or weights.codes.ndim != 2 or editor.type(node.outputs[0]).rank < 2:
        return
    codes = np.ascontiguousarray(weights.codes.T) if swapped else weights.codes
    if codes.shape[0] > _DEPTH_MOST:
        return
    scale = (rows.scale.reshape(()) * weights.scale).astype(np.float32)
    parts, factor = _bytes(editor, rows, node), editor.constant(codes, f"{node.name}/codes")
    sums = [
        editor.emit("matmul_integer", (part.value, factor, _zero_point(editor, part, node)), {}, node) for part in parts
    ]
    exact = _exact_bias(editor, bias, scale) if len(parts) == 1 else None
    if exact is not None and sums[0] is not None:
        sums = [editor.emit("add", (sums[0], editor.constant(exact, f"{node.name}/bias")), {}, node)]
        bias = None
    _scaled(editor, sums, scale, bias, node, scale.shape)


def _computed_factors(editor: Editor, node: Node) -> None:
    """A product of two dequantised values as one of their codes in f32, piece by piece of the depth, so that f32 holds
    the sums of a piece exactly. Rounded all the same, so that nothing takes them for other than whole numbers."""
    a, b = (_rows(editor, value, node, BYTES) for value in node.inputs[:2])
    if a is None or b is None or min(editor.type(f.value).rank for f in (a, b)) < 2:
        return
    ranks = [editor.type(factor.value).rank for factor in (a, b)]
    axes = (ranks[0] - (2 if node.attrs.get("trans_a") else 1), ranks[1] - (1 if node.attrs.get("trans_b") else 2))
    depth = editor.type(a.value).shape[axes[0]]
    piece = (_EXACT_F32 - 1) // (_largest(editor, a) * _largest(editor, b))
    if not 0 < depth <= _PIECES * piece:
        return
    total: str | None = None
    for first in range(0, depth, piece):
        sides: list[str | None] = []
        for factor, axis in zip((a, b), axes, strict=True):
            part: str | None = factor.value
            if depth > piece:
                attrs = {"starts": (first,), "ends": (min(depth, first + piece),), "axes": (axis,), "steps": (1,)}
                part = editor.emit("slice", (part,), attrs, node)
            sides.append(editor.emit("dequantize", (part, *_unscaled(editor, factor, node)), {}, node))
        sums = editor.emit("round", (editor.emit("matmul", sides, node.attrs, node),), {}, node)
        total = sums if total is None else editor.emit("add", (total, sums), {}, node)
    scale = (a.scale.reshape(()) * b.scale.reshape(())).astype(np.float32)
    _times(editor, total, editor.constant(scale, f"{node.name}/scale"), None, node)


def _largest(editor: Editor, codes: Codes) -> int:
    """The largest magnitude of a code less its zero point."""
    info, zero = np.iinfo(editor.type(codes.value).dtype.numpy), 0 if codes.zero is None else int(codes.zero.item())
    return max(info.max - zero, zero - info.min)


def _softmax(editor: Editor, node: Node) -> None:
    """The softmax of dequantised bytes that is quantised again as one of whole numbers, the same on every target."""
    codes = codes_of(editor, node.inputs[0], BYTES)
    readers = [editor.nodes[name] for name in editor.readers.get(node.outputs[0], {})]
    quantised = bool(readers) and all(r.op == "quantize" for r in readers) and node.outputs[0] not in editor.outputs
    if codes is None or not codes.per_tensor or not quantised:
        return
    scale, kind = codes.scale.reshape(()), editor.type(codes.value)
    axis = int(node.attrs["axis"])  # type: ignore[arg-type]
    grid = softmax_grid(float(scale), kind.shape[axis]) if kind.rank and kind.size else None
    if grid is not None:
        real = editor.emit("cast", (codes.value,), {"dtype": DType.F32}, node)
        attrs = {"axis": axis, "scale": float(scale), "grid": grid}
        editor.emit("softmax_integer", (real,), attrs, node, node.outputs[0])


@cache
def softmax_grid(scale: float, row: int) -> int | None:
    """A large number of which no e^(-d * scale), d the difference of two bytes, is a multiple and a half, by more than
    exponentials are off on any target: in multiples of it they are the same on all. None where rows are too long for
    f32 to hold their sums in enough steps."""
    apart = (np.arange(1, _BYTE, dtype=np.float32) * np.float32(scale)).astype(np.float64)
    powers, most = np.exp(-apart), grid_max(row)
    least = max(1, _STEPS_PER_ELEMENT * row)
    while most >= least:
        for grid in range(most, max(least, most - most // 8) - 1, -max(1, most // 1024)):
            steps = powers * grid
            if np.all(np.abs(steps - np.floor(steps) - 0.5) > steps * _EXP_ERROR):
                return grid
        most //= 2
    return None


def _signed_weights(editor: Editor, node: Node) -> bool:
    """Constant u8 weights with zero point 128 as i8; whether the node has i8 weights without a zero point then."""
    last = 4 if node.op == "conv_integer" else 3
    inputs = [*node.inputs, *[None] * (last + 1 - len(node.inputs))]
    codes, point = editor.array(inputs[1]), editor.array(inputs[last])
    if codes is None or (inputs[last] is not None and point is None):
        return False
    shift = _SIGN if codes.dtype == np.uint8 else 0
    if np.any((np.zeros(1) if point is None else point) != shift):
        return False
    if shift or point is not None:
        signed = (codes.astype(np.int16) - shift).astype(np.int8)
        inputs[1], inputs[last] = editor.constant(signed, f"{node.name}/codes"), None
        editor.set_inputs(node, inputs)
    return True


def _integer_or_float_conv(editor: Editor, node: Node) -> None:
    """As floats where no kernel multiplies bytes."""
    x = node.inputs[0]
    grouped = int(node.attrs["groups"]) > 1  # type: ignore[arg-type]
    depthwise = grouped and node.inputs[1] is not None and editor.type(node.inputs[1]).shape[1] == 1
    fits = x is not None and editor.type(x).rank < 5 and not depthwise
    if not fits or not _signed_weights(editor, node):
        float_conv(editor, node)


def float_conv(editor: Editor, node: Node) -> None:
    """A convolution of integers as one of the same numbers in f32 or, where sums may be none of f32, f64."""
    x, w, bias, *zeros = [*node.inputs, None, None, None][:5]
    attrs = dict(node.attrs)
    assert x is not None
    assert w is not None
    if attrs.pop("padding") != 0:
        return
    depth = int(np.prod(editor.type(w).shape[1:]))
    wide = DType.F32 if depth * 255 * 255 < _EXACT_F32 else DType.F64
    sides: list[str | None] = []
    for value, zero in ((x, zeros[0]), (w, zeros[1])):
        real = editor.emit("cast", (value,), {"dtype": wide}, node)
        point = None if zero is None else editor.emit("cast", (zero,), {"dtype": wide}, node)
        if zero is not None:
            shape = (-1, *(1,) * (editor.type(value).rank - 1)) if editor.type(zero).size > 1 else ()
            point = editor.emit("reshape", (point,), {"shape": shape}, node)
            real = editor.emit("sub", (real, point), {}, node)
        sides.append(real)
    sums = editor.emit("conv", sides, attrs, node)
    sums = editor.emit("round", (sums,), {}, node)  # Winograd convolution leaves no whole numbers
    if bias is None:
        editor.emit("cast", (sums,), {"dtype": DType.I32}, node, node.outputs[0])
        return
    shape = (1, -1, *(1,) * (editor.type(w).rank - 2))
    whole = editor.emit("cast", (sums,), {"dtype": DType.I32}, node)
    added = editor.emit("reshape", (bias,), {"shape": shape}, node)
    editor.emit("add", (whole, added), {}, node, node.outputs[0])


def _moved_codes(editor: Editor, node: Node) -> None:
    """quantize(move(dequantize(codes))) of equal scales as move(codes)."""
    told, moved = _parameters(editor, node), editor.producer.get(node.inputs[0] or "")
    if told is None or moved is None or not told.per_tensor:
        return
    dtype = editor.type(node.outputs[0]).dtype
    if moved.op == "concat":
        _joined_codes(editor, node, moved, told, dtype)
        return
    codes = codes_of(editor, moved.inputs[0]) if moved.op in _MOVES else None
    if codes is not None and codes.alike(told) and editor.type(codes.value).dtype is dtype:
        editor.emit(moved.op, (codes.value, *moved.inputs[1:]), moved.attrs, node, node.outputs[0])


def _signed_words(editor: Editor, node: Node) -> None:
    """A quantize to u16 as one to i16, for all that dequantise it."""
    told, value = _parameters(editor, node), node.outputs[0]
    if told is None or editor.type(value).dtype is not DType.U16:
        return
    lower = editor.emit(
        "quantize", (*node.inputs[:2], _lower(editor, told, node)), {**node.attrs, "dtype": DType.I16}, node
    )
    for name in list(editor.readers.get(value, {})):
        reader = editor.nodes[name]
        own = _parameters(editor, reader) if reader.op == "dequantize" else None
        if own is not None and reader.inputs[0] == value:
            inputs = (lower, reader.inputs[1], _lower(editor, own, reader))
            editor.emit("dequantize", inputs, {}, reader, reader.outputs[0])


def _lower(editor: Editor, codes: Codes, near: Node) -> str:
    """The zero point of u16 codes that are i16 now."""
    zero = np.zeros((), np.int32) if codes.zero is None else codes.zero.astype(np.int32)
    return editor.constant((zero - _HALF_WORD).astype(np.int16), f"{near.name}/signed_zero")


def _quantised(editor: Editor, node: Node) -> None:
    _moved_codes(editor, _without_clamp(editor, node))


def _without_clamp(editor: Editor, node: Node) -> Node:
    """quantize(relu(x)), or of a clip, as quantize(x), where the ends of the quantised type clamp all the same."""
    told, clamp = _parameters(editor, node), editor.producer.get(node.inputs[0] or "")
    bounds = None if clamp is None else _bounds(editor, clamp)
    dtype = editor.type(node.outputs[0]).dtype
    if told is None or clamp is None or bounds is None or dtype not in _ACTIVATIONS or not np.all(told.scale > 0):
        return node
    ends, zero = np.iinfo(dtype.numpy), 0.0 if told.zero is None else told.zero.astype(np.float64)
    least, most = (bound / told.scale.astype(np.float64) + zero for bound in bounds)
    if np.all(least <= ends.min + _CLAMPED) and np.all(most >= ends.max - _CLAMPED):
        return editor.set_inputs(node, (clamp.inputs[0], *node.inputs[1:]))
    return node


def _bounds(editor: Editor, clamp: Node) -> tuple[float, float] | None:
    """Between what a relu or a clip keeps values; None for any other operator, and where they are computed."""
    if clamp.op == "relu":
        return 0.0, np.inf
    given = (*clamp.inputs, None, None)[1:3] if clamp.op == "clip" else ("", "")
    lo, hi = (
        free if value is None else editor.scalar(value) for value, free in zip(given, (-np.inf, np.inf), strict=True)
    )
    return None if lo is None or hi is None else (lo, hi)


def _joined_codes(editor: Editor, node: Node, concat: Node, told: Codes, dtype: DType) -> None:
    """quantize(concat(values)) as a concatenation of codes, those of other scales quantised one by one."""
    found = [codes_of(editor, value) for value in concat.inputs]
    if not all(codes is not None and codes.per_tensor for codes in found):
        return
    parts: list[str | None] = []
    for value, codes in zip(concat.inputs, found, strict=True):
        if codes is not None and codes.alike(told) and editor.type(codes.value).dtype is dtype:
            parts.append(codes.value)
        else:
            parts.append(editor.emit("quantize", (value, *node.inputs[1:]), node.attrs, node))
    if all(part is not None for part in parts):
        editor.emit("concat", parts, concat.attrs, node, node.outputs[0])


@dataclass(frozen=True)
class FuseQuantised:
    """See the module docstring."""

    def apply(self, graph: Graph) -> Graph:
        if not any(node.op in _QUANTISED for node in graph.nodes):
            return graph
        editor = Editor.of(FoldConstants(kept=frozenset({"dequantize"})).apply(graph))
        for node in editor.walk():
            if node.op == "quantize":
                _signed_words(editor, node)
        rules = {
            "matmul_integer": _signed_weights,
            "conv_integer": _integer_or_float_conv,
            "quantize": _quantised,
            "global_avg_pool": _average,
            "softmax": _softmax,
            "conv": _integer_conv,
            "gemm": _integer_matmul,
            "matmul": _integer_matmul,
        }
        for node in editor.walk():
            if node.op in rules:
                rules[node.op](editor, node)
        found = editor.finish()
        return graph if found is editor.graph else found


@dataclass(frozen=True)
class FoldDequantised:
    """Constants that are still dequantised, as values: weights of products in floats. Those of more than
    `grow_bytes_max` stay codes, which cost less to read."""

    grow_bytes_max: int = 1 << 20

    def apply(self, graph: Graph) -> Graph:
        if not any(node.op == "dequantize" for node in graph.nodes):
            return graph
        return FoldConstants(self.grow_bytes_max).apply(graph)


class LowerIntegerConv(NodePass):
    """Convolutions of integers as ones of floats, for targets without kernels of bytes."""

    rules = ({"conv_integer": float_conv},)
