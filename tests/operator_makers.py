"""Makers of small legal instances for the operators that are not pointwise: moves, reductions, norms, products,
windows, attention. `operator_cases.py` says what a maker is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.ops.grouped import GroupTable

Array = np.ndarray[Any, Any]
Instance = tuple[list[Array | None], dict[str, Any]]
Rng = np.random.Generator
Maker = Callable[[Rng, DType], Iterator[Instance]]
Shape = tuple[int, ...]


def values(rng: Rng, shape: Shape, dtype: DType, low: float = -3.0, high: float = 3.0) -> Array:
    """Uniform floats, integers of at most two digits, or coin tosses, of `dtype`."""
    if dtype is DType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_float:
        return np.asarray(rng.uniform(low, high, shape)).astype(dtype.numpy)
    least = -50 if dtype.is_signed else 0
    return np.asarray(rng.integers(least, 100, shape)).astype(dtype.numpy)


def few(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """Values of which many are equal."""
    return np.asarray(rng.integers(0, 3, shape)).astype(dtype.numpy)


def indices(rng: Rng, shape: Shape, extent: int, dtype: DType = DType.I64) -> Array:
    """Legal indices, negative ones too."""
    return np.asarray(rng.integers(-extent, extent, shape)).astype(dtype.numpy)


def _plain(*variants: tuple[Shape, dict[str, Any]]) -> Maker:
    """One input x of each given shape, with the attributes beside it."""

    def make(rng: Rng, dtype: DType) -> Iterator[Instance]:
        for shape, attrs in variants:
            yield [values(rng, shape, dtype)], attrs

    return make


def _both(*makers: Maker) -> Maker:
    def make(rng: Rng, dtype: DType) -> Iterator[Instance]:
        for maker in makers:
            yield from maker(rng, dtype)

    return make


# Moves


def _concat(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for axis, shapes in (
        (1, [(2, 3), (2, 1), (2, 4)]),
        (0, [(2, 3), (0, 3), (1, 3)]),
        (-1, [(2, 2, 2)]),
        (0, [(3,)] * 3),
    ):
        yield [values(rng, s, dtype) for s in shapes], {"axis": axis}


def _gather(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for shape, axis, picked, kind in (
        ((5, 3), 0, (4,), DType.I64),
        ((2, 5, 3), 1, (2, 2), DType.I32),
        ((2, 5), -1, (), DType.I64),
        ((4, 2), 0, (0,), DType.I64),
    ):
        yield [values(rng, shape, dtype), indices(rng, picked, shape[axis], kind)], {"axis": axis}


def _gather_elements(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for shape, axis, picked in (((4, 3), 0, (2, 3)), ((2, 5, 3), 1, (2, 7, 2)), ((3, 4), -1, (3, 4))):
        yield [values(rng, shape, dtype), indices(rng, picked, shape[axis])], {"axis": axis}


def _gather_nd(rng: Rng, dtype: DType) -> Iterator[Instance]:
    yield [values(rng, (3, 3, 2), dtype), indices(rng, (4, 2), 3)], {}
    yield [values(rng, (2, 3, 4), dtype), indices(rng, (2, 5, 1), 3)], {"batch_dims": 1}
    yield [values(rng, (3, 3), dtype), indices(rng, (2, 2), 3)], {"batch_dims": 0}


def _reductions(dtype: DType) -> tuple[str, ...]:
    return ("none",) if dtype is DType.BOOL else ("none", "add", "mul", "max", "min")


def _scatter_elements(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for reduction in _reductions(dtype):
        for shape, axis, picked in (((4, 3), 0, (2, 3)), ((2, 5, 3), 1, (1, 4, 2))):
            # Distinct indices per line, in random order.
            order = np.argsort(rng.random((*picked[:axis], shape[axis], *picked[axis + 1 :])), axis=axis)
            where = order.take(range(picked[axis]), axis=axis).astype(np.int64)
            inputs: list[Array | None] = [values(rng, shape, dtype), where, values(rng, picked, dtype)]
            yield inputs, {"axis": axis, "reduction": reduction}


def _scatter_nd(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for reduction in _reductions(dtype):
        rows = rng.permutation(5)[:3].reshape(3, 1).astype(np.int64)
        yield [values(rng, (5, 2), dtype), rows, values(rng, (3, 2), dtype)], {"reduction": reduction}
        pairs = np.stack([rng.permutation(4)[:3], rng.integers(-3, 3, 3)], axis=1).astype(np.int64)
        yield [values(rng, (4, 3), dtype), pairs, values(rng, (3,), dtype)], {"reduction": reduction}


def _one_hot(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for on in (DType.F32, DType.I64, DType.BOOL):
        chosen = np.asarray(rng.integers(0, 5, (2, 3))).astype(dtype.numpy)
        yield [chosen, np.array([0, 1], on.numpy)], {"depth": 4}
        yield [chosen, np.array([1, 0], on.numpy)], {"depth": 5, "axis": 1}


def _topk(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for shape, attrs in (((3, 7), {"k": 3}), ((2, 5, 3), {"k": 2, "axis": 1, "largest": False}), ((4,), {"k": 4})):
        yield [values(rng, shape, dtype)], attrs
        yield [few(rng, shape, dtype)], attrs


# Norms and products


def _layer_norm(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for shape, axis in (((4, 9), -1), ((2, 3, 5), -1), ((2, 3, 5), 1), ((3, 64), 1)):
        tail = shape[axis:]
        x, scale, bias = values(rng, shape, dtype), values(rng, tail, dtype, 0.5, 2.0), values(rng, tail, dtype)
        yield [x, scale, bias], {"axis": axis}
        yield [x, scale], {"axis": axis, "epsilon": 1e-3}
        yield [x], {"axis": axis}


def _rms_norm(rng: Rng, dtype: DType) -> Iterator[Instance]:
    yield from ((inputs[:2], attrs) for inputs, attrs in _layer_norm(rng, dtype))


def _channels(count: int, *options: dict[str, Any]) -> Maker:
    """x [N, C, ...] and `count` positive vectors of C."""

    def make(rng: Rng, dtype: DType) -> Iterator[Instance]:
        for shape in ((2, 4, 5), (1, 4, 3, 3), (2, 4)):
            for attrs in options:
                vectors = [values(rng, (4,), dtype, 0.3, 2.0) for _ in range(count)]
                yield [values(rng, shape, dtype), *vectors], attrs

    return make


_PRODUCTS: tuple[tuple[Shape, Shape, dict[str, bool]], ...] = (
    ((3, 5), (5, 4), {}),
    ((2, 3, 5), (5, 7), {}),
    ((2, 1, 3, 4), (3, 4, 2), {}),
    ((5,), (5, 3), {}),
    ((2, 3, 5), (5,), {}),
    ((5,), (5,), {}),
    ((4, 3), (4, 6), {"trans_a": True}),
    ((2, 3, 4), (2, 6, 4), {"trans_b": True}),
    ((4, 3), (6, 4), {"trans_a": True, "trans_b": True}),
    ((3, 0), (0, 2), {}),
    ((1, 33), (33, 17), {}),
)


def _matmul(rng: Rng, dtype: DType) -> Iterator[Instance]:
    others = (DType.I8, DType.U8) if dtype.itemsize == 1 else (dtype,)
    for left, right, attrs in _PRODUCTS:
        for other in others:
            yield [values(rng, left, dtype, -1, 1), values(rng, right, other, -1, 1)], attrs


def _gemm(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for c in ((3, 4), (4,), (3, 1), (), None):
        third = None if c is None else values(rng, c, dtype, -1, 1)
        yield [values(rng, (3, 5), dtype, -1, 1), values(rng, (5, 4), dtype, -1, 1), third], {"alpha": 0.5, "beta": 2.0}
    yield [values(rng, (5, 3), dtype), values(rng, (4, 5), dtype)], {"trans_a": True, "trans_b": True}


def _matmul_integer(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for other in (DType.I8, DType.U8):
        a, b = values(rng, (3, 5), dtype), values(rng, (5, 4), other)
        one, many = np.array(3, dtype.numpy), values(rng, (4,), other)
        rows = values(rng, (3,), dtype)
        options: list[list[Array | None]] = [[], [one], [one, many], [rows, np.array([2], other.numpy)], [None, many]]
        for zeros in options:
            yield [a, b, *zeros], {}
        yield [values(rng, (2, 3, 5), dtype), b, values(rng, (2, 3, 1), dtype), many], {}


def _block_matmul(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for bits, kind, zero in ((4, DType.U8, 8), (8, DType.I8, 0), (8, DType.U8, 130)):
        for shape, block, scale in (((3, 24), 8, DType.F32), ((2, 1, 21), 16, DType.F16), ((7,), 32, dtype)):
            depth = shape[-1]
            codes = rng.integers(0, 256, (5, -(-depth * bits // 8))).astype(np.uint8).view(kind.numpy)
            scales, offsets = (values(rng, (5, -(-depth // block)), scale, -0.25, 0.25) for _ in range(2))
            attrs = {"bits": bits, "block": block, "zero": zero}
            yield [values(rng, shape, dtype), codes, scales], attrs
            yield [values(rng, shape, dtype), codes, scales, offsets], {"bits": bits, "block": block}


# Windows

_CONVS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((1, 3, 7, 7), (4, 3, 3, 3), {}),
    ((2, 4, 6, 5), (6, 2, 3, 2), {"strides": (2, 1), "pads": (1, 0, 1, 1), "groups": 2}),
    ((1, 4, 8, 8), (4, 1, 3, 3), {"groups": 4, "pads": (1, 1, 1, 1)}),
    ((1, 2, 9), (3, 2, 3), {"dilations": (2,), "pads": (2, 2), "strides": (3,)}),
    ((1, 2, 4, 4, 5), (2, 2, 2, 3, 2), {"pads": (0, 1, 0, 1, 0, 1)}),
    ((1, 4, 5, 5), (8, 4, 1, 1), {}),
)
_TRANSPOSED: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((1, 3, 4, 4), (3, 2, 3, 3), {}),
    ((2, 4, 3, 4), (4, 3, 2, 3), {"strides": (2, 2), "pads": (0, 1, 1, 0), "output_padding": (1, 0), "groups": 2}),
    ((1, 2, 5), (2, 3, 3), {"strides": (3,), "dilations": (2,), "pads": (2, 1)}),
    ((1, 2, 2, 3, 2), (2, 1, 2, 2, 2), {"strides": (1, 2, 1)}),
)


def _conv(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for x, w, attrs in _CONVS:
        yield [values(rng, x, dtype, -1, 1), values(rng, w, dtype, -1, 1), values(rng, w[:1], dtype)], attrs
        yield [values(rng, x, dtype, -1, 1), values(rng, w, dtype, -1, 1)], attrs


def _conv_integer(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for x, w, attrs in _CONVS:
        a, b, bias = values(rng, x, dtype), values(rng, w, DType.I8), values(rng, w[:1], DType.I32)
        yield [a, b], attrs
        yield [a, b, bias, np.array(3, dtype.numpy)], attrs
        yield [a, b, None, np.array([3], dtype.numpy), values(rng, w[:1], DType.I8)], attrs


def _conv_transpose(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for x, w, attrs in _TRANSPOSED:
        bias = values(rng, (w[1] * attrs.get("groups", 1),), dtype)
        yield [values(rng, x, dtype, -1, 1), values(rng, w, dtype, -1, 1), bias], attrs
        yield [values(rng, x, dtype, -1, 1), values(rng, w, dtype, -1, 1)], attrs


_POOLS = _plain(
    ((1, 2, 6, 6), {"kernel": (2, 2), "strides": (2, 2)}),
    ((2, 2, 7, 6), {"kernel": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 1)}),
    ((1, 3, 9), {"kernel": (3,)}),
    ((1, 1, 4, 5, 4), {"kernel": (2, 3, 2)}),
)
_WIDE_POOLS = _plain(
    ((1, 2, 7, 7), {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True, "pads": (0, 1, 0, 1)}),
    ((1, 2, 8, 7), {"kernel": (2, 3), "dilations": (3, 2)}),
    ((1, 2, 6, 5), {"kernel": (2, 2), "strides": (2, 2), "ceil_mode": True}),
)
_PADDED_POOL = ((1, 1, 5, 5), {"kernel": (3, 3), "pads": (1,) * 4, "count_include_pad": True})
_CEIL_POOL = (
    (1, 1, 6, 6),
    {"kernel": (3, 3), "pads": (1,) * 4, "count_include_pad": True, "ceil_mode": True, "strides": (2, 2)},
)


# Attention


def _attention(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for batch, heads, kv, rows, keys, depth, out in (
        (2, 4, 2, 3, 5, 8, 6),
        (1, 2, 2, 4, 4, 4, 4),
        (2, 2, 1, 1, 7, 16, 16),
    ):
        shapes = ((batch, heads, rows, depth), (batch, kv, keys, depth), (batch, kv, keys, out))
        qkv = [values(rng, s, dtype, -1, 1) for s in shapes]
        added = values(rng, (batch, 1, rows, keys), dtype)
        kept = np.asarray(rng.random((rows, keys)) < 0.6)
        each = rng.integers(0, keys + 1, batch)
        yield [*qkv], {}
        yield [*qkv], {"causal": True, "scale": 0.5}
        yield [*qkv, added], {"softcap": 2.0}
        yield [*qkv, kept], {}
        yield [*qkv, None, np.array(keys - 1)], {"causal": True}
        yield [*qkv, kept, each.astype(np.int32)], {}


def _rope(rng: Rng, dtype: DType) -> Iterator[Instance]:
    x = values(rng, (2, 3, 4, 8), dtype)
    for width, attrs in (
        (8, {}),
        (8, {"interleaved": True}),
        (4, {"rotary_dim": 4}),
        (6, {"rotary_dim": 6, "interleaved": True}),
    ):
        for shape in ((4, width // 2), (2, 1, 4, width // 2)):
            yield [x, values(rng, shape, dtype, -1, 1), values(rng, shape, dtype, -1, 1)], attrs
        tables = [values(rng, (9, width // 2), dtype, -1, 1) for _ in range(2)]
        for position in (np.array(3), np.array([1]), np.array([0, 5]), rng.integers(0, 9, (2, 4)).astype(np.int32)):
            yield [x, *tables, position], attrs


def _kv_update(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for position in (np.array(2), np.array([0], np.int32), np.array(99), np.array(-4)):
        yield [values(rng, (1, 2, 6, 3), dtype), values(rng, (1, 2, 2, 3), dtype), position], {}


def _grouped_matmul(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for counts, kind in (([2, 0, 3], DType.I64), ([0, 6, 0], DType.I32), ([0, 0, 0], DType.I64)):
        given = np.array(counts, kind.numpy)
        inputs: list[Any] = [values(rng, (6, 5), dtype), values(rng, (3, 5, 4), dtype), given]
        yield inputs, {}
        yield [*inputs, GroupTable(3, 6, 2, 1, 2).made(given)], {"cut": (2, 1, 2)}


def _tile_groups(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for counts in ([2, 0, 3], [0, 9, 0], [0, 0, 0], [9]):
        for attrs in ({"rows": 9, "tile": 2}, {"rows": 9, "tile": 4, "columns": 3, "slots": 2}):
            yield [np.array(counts, dtype.numpy)], attrs


def _tile_lengths(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for lengths in ([2, 0, 70], [0], [64, 64, 64, 64], [0, 0, 0]):
        for slots in (1, 3):
            yield [np.array(lengths, dtype.numpy)], {"keys": 70, "slots": slots, "fixed": 5 * slots}


def _nonzero(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for shape, size in (((3, 70), 210), ((2, 5, 4), 3), ((130,), 200), ((), 1), ((0, 3), 2), ((2, 3), 0)):
        x = values(rng, shape, dtype)
        yield [np.where(rng.random(shape) < 0.3, x, np.zeros((), x.dtype))], {"size": size}


def _suppression(rng: Rng, dtype: DType) -> Iterator[Instance]:
    boxes, scores = values(rng, (2, 9, 4), dtype, 0, 1), values(rng, (2, 3, 9), dtype, 0, 1)
    scores[0, 0, 2] = np.nan
    equal = np.round(scores.astype(np.float32), 1).astype(scores.dtype)
    yield [boxes, equal], {"size": 54, "limit": 9, "iou_threshold": 0.2}
    yield [boxes, scores], {"size": 12, "limit": 2, "iou_threshold": 0.3, "score_threshold": 0.4, "centers": True}
    yield [boxes, scores], {"size": 4, "limit": 40, "score_threshold": 0.1}
    yield [boxes, scores], {"size": 5, "limit": 0}
    yield [boxes[:, :0], scores[:, :, :0]], {"size": 5, "limit": 3}


_AXIS_ROWS = _plain(
    ((4, 9), {}),
    ((2, 3, 5), {"axis": 1}),
    ((7,), {"axis": 0}),
    ((2, 0), {"axis": 0}),
    ((3, 40), {"axis": -1}),
)
_REDUCTIONS = _plain(
    ((2, 3, 5), {}),
    ((2, 3, 5), {"axes": (1,), "keepdims": False}),
    ((2, 3, 5), {"axes": (-1, 0)}),
    ((4, 33), {"axes": (1,)}),
    ((), {}),
    ((3, 0), {"axes": (1,)}),
)
_REDUCE_NAMES = ("sum", "mean", "max", "min", "prod", "l1", "l2", "log_sum", "log_sum_exp", "sum_square")
_EXTREMES = _plain(
    ((3, 7), {"axis": 1}),
    ((2, 3, 5), {"axis": 1, "keepdims": False}),
    ((4, 3), {"select_last_index": True}),
)
_GLOBAL = _plain(((2, 3, 4, 5), {}), ((1, 2, 7), {}))

ANCHOR_MAKERS: dict[str, Maker] = {
    "concat": _concat,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "one_hot": _one_hot,
    "topk": _topk,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "matmul": _matmul,
    "gemm": _gemm,
    "matmul_integer": _matmul_integer,
    "block_matmul": _block_matmul,
    "conv": _conv,
    "conv_integer": _conv_integer,
    "conv_transpose": _conv_transpose,
    "attention": _attention,
    "rope": _rope,
    "kv_update": _kv_update,
    "grouped_matmul": _grouped_matmul,
    "tile_groups": _tile_groups,
    "tile_lengths": _tile_lengths,
    "nonzero": _nonzero,
    "non_max_suppression": _suppression,
    "group_norm": _channels(2, {"groups": 2}, {"groups": 4}, {"groups": 1}),
    "instance_norm": _channels(2, {}, {"epsilon": 1e-2}),
    "batch_norm": _channels(4, {}),
    "softmax": _AXIS_ROWS,
    "log_softmax": _AXIS_ROWS,
    "softmax_integer": _plain(((4, 9), {"grid": 1 << 20, "scale": 0.3}), ((3, 5, 2), {"axis": 1, "grid": 1 << 21})),
    "lp_norm": _both(_AXIS_ROWS, _plain(((4, 9), {"p": 1}))),
    "lrn": _plain(((1, 5, 4), {"size": 3}), ((2, 4, 2, 2), {"size": 4, "alpha": 0.5, "beta": 0.5, "bias": 2.0})),
    "max_pool": _both(_POOLS, _WIDE_POOLS),
    "avg_pool": _both(_POOLS, _WIDE_POOLS, _plain(_PADDED_POOL, _CEIL_POOL)),
    "lp_pool": _both(_POOLS, _plain(((1, 1, 5, 5), {"kernel": (3, 3), "p": 3}))),
    "global_avg_pool": _GLOBAL,
    "global_max_pool": _GLOBAL,
    "argmax": _EXTREMES,
    "argmin": _EXTREMES,
    **{f"reduce_{name}": _REDUCTIONS for name in _REDUCE_NAMES},
    "cumsum": _plain(
        ((3, 7), {"axis": 1}),
        ((2, 3, 2), {"axis": 1, "exclusive": True}),
        ((5,), {"reverse": True}),
        ((4, 3), {"exclusive": True, "reverse": True}),
    ),
    "reshape": _plain(
        ((2, 3, 4), {"shape": (6, 4)}),
        ((2, 3, 4), {"shape": (4, -1)}),
        ((6,), {"shape": (1, 6, 1)}),
        ((1,), {"shape": ()}),
        ((4, 6), {"shape": (6, 2, 2)}),
    ),
    "transpose": _plain(((2, 3, 4), {"perm": (1, 2, 0)}), ((2, 3), {}), ((2, 3, 4, 2), {"perm": (0, 2, 1, 3)})),
    "expand": _plain(((3, 1), {"shape": (2, 3, 4)}), ((3, 2), {"shape": (1, 1)}), ((), {"shape": (2, 2)})),
    "slice": _plain(
        ((5, 6), {"starts": (1, 0), "ends": (4, 100), "steps": (1, 2)}),
        ((5, 6), {"starts": (-1,), "ends": (-100,), "axes": (1,), "steps": (-2,)}),
        ((7,), {"starts": (5,), "ends": (2,)}),
        ((4, 4), {"starts": (-3,), "ends": (-1,), "axes": (-1,)}),
    ),
    "split": _plain(((2, 6), {"axis": 1, "sizes": (1, 3, 2)}), ((4, 3), {"sizes": (2, 2)}), ((3,), {"sizes": (3, 0)})),
    "pad": _plain(
        ((3, 4), {"pads": (1, 2, 2, 1)}),
        ((3, 4), {"pads": (1, 2, 2, 1), "value": 3.0}),
        *(((3, 4), {"pads": (1, 2, 2, 1), "mode": mode}) for mode in ("reflect", "edge", "wrap")),
        ((4, 5), {"pads": (-1, 1, 2, -2)}),
        ((0, 2), {"pads": (1, 0, 1, 0)}),
    ),
    "tile": _plain(((2, 3), {"repeats": (2, 3)}), ((4,), {"repeats": (1,)}), ((2, 2), {"repeats": (0, 1)})),
    "trilu": _plain(((4, 4), {}), ((2, 3, 5), {"upper": False, "k": 1}), ((5, 3), {"k": -1})),
    "resize": _plain(
        ((1, 2, 3, 4), {"sizes": (1, 2, 6, 8)}),
        ((1, 2, 4, 6), {"sizes": (1, 2, 3, 9), "mode": "linear"}),
        ((1, 1, 5, 5), {"sizes": (1, 1, 10, 3), "mode": "linear", "coordinate_mode": "align_corners"}),
        ((1, 1, 5, 4), {"sizes": (1, 1, 7, 8), "coordinate_mode": "asymmetric", "nearest_mode": "floor"}),
        ((1, 1, 4), {"sizes": (1, 1, 6), "scales": (1.0, 1.0, 1.6), "nearest_mode": "ceil"}),
    ),
}
