"""Graphs of one operator of an odd shape each: wide windows, long axes, many dimensions, many operands. Compiling each
must take about a second, whatever its sizes (`compile_time.py --odd`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import superkernel as sk

Make = Callable[[], sk.Graph]
Shape = Sequence[int]

_UNARY = ("relu", "exp", "gelu", "erf", "tanh", "sin", "mish", "acosh", "softplus", "round")
_BINARY = ("add", "div", "pow", "mod", "maximum", "atan2", "greater")
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_prod", "reduce_l2", "reduce_log_sum_exp", "reduce_mean")


def odd_shapes() -> dict[str, Make]:
    """By name; what a name says is what is odd."""
    return {**dict(_windows()), **dict(_moves()), **dict(_arithmetic()), **dict(_indexed())}


def _graph(compute: Callable[[sk.GraphBuilder], Any]) -> Make:
    def make() -> sk.Graph:
        builder = sk.GraphBuilder("odd")
        found = compute(builder)
        for each in found if isinstance(found, tuple) else (found,):
            builder.output(each)
        return builder.graph()

    return make


def _of(op: str, shape: Shape, *more: Any, **attributes: Any) -> Make:
    """An operator on one input; `more` are constants, attributes by place included."""
    return _over(op, (shape,), *more, **attributes)


def _over(op: str, shapes: Sequence[Shape], *more: Any, **attributes: Any) -> Make:
    """The same on several."""

    def compute(b: sk.GraphBuilder) -> Any:
        inputs = [b.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
        return getattr(b, op)(*inputs, *more, **attributes)

    return _graph(compute)


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _windows() -> Iterator[tuple[str, Make]]:
    for size in (8, 14, 16, 20, 24, 32, 64):
        extent = max(224, 2 * size) // size * size
        yield (
            f"stem: conv {size} x {size}, stride {size}",
            _of("conv", (1, 3, extent, extent), _weights(64, 3, size, size), strides=(size, size)),
        )
    for size, stride in ((11, 4), (11, 16), (31, 1), (16, 10)):
        yield (
            f"conv {size} x {size}, stride {stride}",
            _of("conv", (1, 3, 160, 160), _weights(32, 3, size, size), strides=(stride, stride)),
        )
    yield (
        "conv 8 x 8, stride 8, dilation 3",
        _of("conv", (1, 4, 96, 96), _weights(16, 4, 8, 8), strides=(8, 8), dilations=(3, 3)),
    )
    yield "conv 3 x 3, dilation 60", _of("conv", (1, 8, 160, 160), _weights(8, 8, 3, 3), dilations=(60, 60))
    for size, stride in ((250, 320), (320, 160), (400, 160), (512, 256), (1024, 512)):
        yield (
            f"speech: conv of {size}, stride {stride}",
            _of("conv", (1, 1, 16000), _weights(64, 1, size), strides=(stride,)),
        )
    yield "depthwise conv 51 x 51", _of("conv", (1, 32, 64, 64), _weights(32, 1, 51, 51), groups=32, pads=(25,) * 4)
    yield "grouped conv, 64 groups", _of("conv", (1, 256, 14, 14), _weights(256, 4, 3, 3), groups=64)
    yield "conv of 2048 channels", _of("conv", (1, 2048, 7, 7), _weights(64, 2048, 3, 3), pads=(1,) * 4)
    yield (
        "conv 7 x 7 x 7, stride 4",
        _of("conv", (1, 3, 24, 48, 48), _weights(16, 3, 7, 7, 7), strides=(4, 4, 4)),
    )
    yield (
        "transposed conv 32 x 32, stride 16",
        _of("conv_transpose", (1, 8, 9, 9), _weights(8, 4, 32, 32), strides=(16, 16)),
    )
    yield "transposed conv of 1000", _of("conv_transpose", (1, 4, 40), _weights(4, 2, 1000), strides=(250,))
    for op in ("max_pool", "avg_pool"):
        for size in (2, 33, 150):
            yield f"{op} {size} x {size}", _of(op, (1, 16, 160, 160), (size, size), strides=(3, 3))
        yield f"{op} 9 x 9 x 9", _of(op, (1, 4, 20, 20, 20), (9, 9, 9))
    yield "lp_pool 40 x 40", _of("lp_pool", (1, 8, 80, 80), (40, 40))
    yield "lrn of 31 channels", _of("lrn", (1, 64, 20, 20), 31)
    yield "global_avg_pool of 300 x 300", _of("global_avg_pool", (1, 9, 300, 300))


def _moves() -> Iterator[tuple[str, Make]]:
    yield "resize of 1,000,000 columns", _of("resize", (1, 1, 1_000_000), (1, 1, 2_000_000), mode="linear")
    yield "resize to 1,000 x 1,000", _of("resize", (1, 3, 37, 41), (1, 3, 1000, 1000), mode="linear")
    corners = {"mode": "linear", "coordinate_mode": "align_corners"}
    yield "resize by align_corners", _of("resize", (1, 3, 64, 64), (1, 3, 300, 301), **corners)
    yield "nearest resize by 17", _of("resize", (1, 4, 30, 30), (1, 4, 510, 510))
    yield "pad by 1,000,000", _of("pad", (8,), (1_000_000, 1_000_000))
    yield "reflecting pad of 4 axes", _of("pad", (40, 30, 20, 10), (39, 29, 19, 9, 38, 28, 18, 8), mode="reflect")
    yield "edge pad by 5,000", _of("pad", (3, 7), (0, 5000, 0, 5000), mode="edge")
    for perm in ((5, 4, 3, 2, 1, 0), (1, 3, 5, 0, 2, 4), (0, 2, 1, 4, 3, 5)):
        yield f"transpose {perm}", _of("transpose", (4, 5, 6, 7, 8, 9), perm)
    yield "transpose of 8 axes", _of("transpose", (2, 3, 4, 5, 2, 3, 4, 5), (7, 0, 6, 1, 5, 2, 4, 3))
    yield "split into 400", _of("split", (400, 30), (1,) * 400)
    yield "split into 400 odd parts", _of("split", (30, 80_200), tuple(range(1, 401)), axis=1)
    for axis in (0, 1):
        yield f"concat of 400, axis {axis}", _over("concat", ((7, 9),) * 400, axis=axis)
    yield "sum of 300 inputs", _graph(_sum_of_many)
    starts, ends, steps = (8, 0, 1, 7, 0, 2), (0, 9, 8, 1, 9, 9), (-1, 2, 3, -2, 4, 2)
    yield "slice of 6 axes with steps", _of("slice", (9,) * 6, starts, ends, steps=steps)
    yield "expand to 6 axes", _graph(lambda b: b.expand(b.input("x", (1, 7, 1, 5, 1, 3)), (4, 7, 6, 5, 2, 3)))
    yield "tile by 50 x 50", _of("tile", (13, 17), (50, 50))
    yield "trilu of 3000 x 3000", _of("trilu", (3000, 3000))


def _sum_of_many(b: sk.GraphBuilder) -> Any:
    total = b.input("x0", (33,))
    for i in range(1, 300):
        total = b.add(total, b.input(f"x{i}", (33,)))
    return total


def _arithmetic() -> Iterator[tuple[str, Make]]:
    for op in _UNARY:
        yield f"{op} of 7 axes", _of(op, (2, 3, 2, 3, 2, 3, 5))
    for op in _BINARY:
        yield f"{op} of 6 axes, each the other's turn to be one", _over(op, ((4, 1, 5, 1, 6, 1), (1, 3, 1, 7, 1, 9)))
    for op in _REDUCTIONS:
        yield f"{op} of every other of 6 axes", _of(op, (4, 5, 6, 7, 3, 9), (0, 2, 4))
        yield f"{op} of 1,000,003", _of(op, (1_000_003,))
    for op in ("softmax", "log_softmax", "argmax", "cumsum"):
        yield f"{op} of 100,003", _of(op, (3, 100_003), axis=1)
        yield f"{op} of the middle axis", _of(op, (7, 1031, 9), axis=1)
    yield "layer_norm of 50,001", _of("layer_norm", (2, 50_001))
    yield "rms_norm of 3", _of("rms_norm", (999, 3), _weights(3))
    yield "topk of 3,000", _of("topk", (2, 10_007), 3000)
    yield "matmul 1 x 100,003 x 1", _over("matmul", ((1, 100_003), (100_003, 1)))
    yield "matmul 1009 x 1 x 1013", _over("matmul", ((1009, 1), (1, 1013)))
    yield "matmul by prime numbers", _of("matmul", (257, 509), _weights(509, 1021))
    yield "matmul of batches of 4 axes", _over("matmul", ((3, 1, 5, 17, 19), (1, 7, 5, 19, 23)))
    yield "attention of 1,500 tokens, heads of 200", _over("attention", ((1, 2, 1500, 200),) * 3)


def _indexed() -> Iterator[tuple[str, Make]]:
    indices = np.random.default_rng(1).integers(0, 50, (20_000,))
    yield "gather of 20,000 constant rows", _of("gather", (50, 33), indices)
    yield "gather along the last of 5 axes", _of("gather", (3, 4, 5, 6, 50), indices[:300], axis=4)
    yield (
        "gather_elements of 4 axes",
        _graph(lambda b: b.gather_elements(b.input("x", (5, 6, 7, 8)), b.input("i", (5, 6, 7, 8), "i64"), axis=1)),
    )
    yield (
        "scatter_elements of 3,000",
        _graph(
            lambda b: b.scatter_elements(
                b.input("x", (9, 5000)), b.input("i", (9, 3000), "i64"), b.input("u", (9, 3000)), axis=1
            )
        ),
    )
    yield (
        "scatter_nd of 2,000 rows",
        _graph(
            lambda b: b.scatter_nd(b.input("x", (50, 60, 7)), b.input("i", (2000, 2), "i64"), b.input("u", (2000, 7)))
        ),
    )
    yield (
        "one_hot of 30,000",
        _graph(lambda b: b.one_hot(b.input("i", (40,), "i64"), b.constant(np.array([0, 1], np.float32)), 30_000)),
    )
    yield (
        "where of 6 axes",
        _graph(
            lambda b: b.where(
                b.input("c", (4, 1, 5, 1, 6, 1), "bool"), b.input("x", (1, 3, 1, 7, 1, 9)), b.input("y", (9,))
            )
        ),
    )
