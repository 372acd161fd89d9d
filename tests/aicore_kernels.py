"""A small graph for every kernel that the registry has for the accelerator, and every element type that it has.

Model: `CASES` by kernel; a graph has that kernel somewhere in it, chosen by the registry. `covered_ids` are the rows
that the table claims to cover: tests hold it against the registry's, so that a new row demands a new graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import superkernel as sk
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.scheduler.families.aicore import AICORE_KERNELS

FLOATS = ("f32", "f16", "bf16")
INTEGERS = ("i8", "u8", "i16", "i32")
Maker = Callable[[sk.GraphBuilder, str], Any]


def floats(b: sk.GraphBuilder, name: str, dtype: str, *shape: int) -> Any:
    return b.input(name, shape, dtype)


def attention(shape: tuple[int, ...], **options: Any) -> Maker:
    return lambda b, t: b.attention(*(floats(b, n, t, *shape) for n in "qkv"), **options)


def norm(shape: tuple[int, ...]) -> Maker:
    return lambda b, t: b.layer_norm(
        floats(b, "x", t, *shape), floats(b, "s", t, shape[-1]), floats(b, "c", t, shape[-1]), epsilon=1e-5
    )


def product(*shapes: tuple[int, ...]) -> Maker:
    return lambda b, t: floats(b, "x", t, *shapes[0]) @ floats(b, "w", t, *shapes[1])


def integers(b: sk.GraphBuilder, dtype: str) -> Any:
    sums = b.matmul_integer(b.input("x", (33, 70), dtype), b.input("w", (70, 50), dtype))
    return b.relu(b.cast(sums, dtype="f32") * 0.125)


def conv(channels: int, size: int, out: int, window: int, **options: Any) -> Maker:
    weights = np.random.default_rng(out).standard_normal((out, channels, window, window)).astype(np.float32) / 8
    return lambda b, t: b.conv(floats(b, "x", t, 1, channels, size, size), b.constant(weights, dtype=t), **options)


def integer_conv(
    channels: int, size: int, out: int, window: int, scaled: bool, groups: int = 1, **options: Any
) -> Maker:
    """Of signed bytes; what is behind the sums, FIX stores or the vector cores compute."""
    shape = (out, channels // groups, window, window)
    weights = np.random.default_rng(out).integers(-128, 128, shape, dtype=np.int8)

    def made(b: sk.GraphBuilder, t: str) -> Any:
        sums = b.conv_integer(b.input("x", (1, channels, size, size), t), b.constant(weights), groups=groups, **options)
        return b.relu(b.cast(sums, dtype="f32") * 0.125) if scaled else sums

    return made


def grouped(b: sk.GraphBuilder, t: str) -> Any:
    counts = b.constant(np.array([3, 0, 17, 4], np.int32))
    return b.grouped_matmul(floats(b, "x", t, 24, 40), floats(b, "w", t, 4, 40, 24), counts)


def tiled(b: sk.GraphBuilder, t: str) -> Any:
    """Lengths that another sub-operator computes: their tiling is made by the aicpu hart."""
    counts = b.reduce_sum(b.input("hot", (24, 4), "i32"), axes=(0,), keepdims=False)
    return b.grouped_matmul(floats(b, "x", t, 24, 40), floats(b, "w", t, 4, 40, 24), counts)


def rope(b: sk.GraphBuilder, t: str) -> Any:
    return b.rope(floats(b, "x", t, 1, 4, 9, 32), floats(b, "cos", t, 9, 16), floats(b, "sin", t, 9, 16))


def update(b: sk.GraphBuilder, t: str) -> Any:
    cache = b.state("cache", np.zeros((1, 4, 12, 32), np.float32))
    grown = b.kv_update(cache, floats(b, "new", t, 1, 4, 1, 32), b.constant(np.array([5])))
    b.update(cache, grown)
    return grown * 2.0


def finding(b: sk.GraphBuilder, t: str) -> Any:
    """Where a tensor is not 0 and, of numbers, boxes that overlap no better one."""
    places = b.nonzero(b.input("mask", (4, 15), t), 60)
    if t == "bool":
        return places
    corner = floats(b, "corner", t, 1, 20, 2)
    boxes = b.concat(corner, corner + 0.5, axis=2)
    selected = b.non_max_suppression(boxes, floats(b, "scores", t, 1, 2, 20), 20, 10, iou_threshold=0.2)
    return b.concat(places, b.reshape(selected, (63,)), axis=0)


# kernel -> element types and what makes graphs of it
CASES: dict[str, tuple[tuple[str, ...], tuple[Maker, ...]]] = {
    "attention": (FLOATS, (attention((2, 2, 20, 32)), attention((1, 4, 33, 16), causal=True))),
    "conv": (FLOATS, (conv(8, 9, 16, 3, pads=[1, 1, 1, 1]), conv(5, 7, 20, 1), conv(16, 8, 8, 3, strides=[2, 2]))),
    "conv.i8": (
        ("i8",),
        (
            integer_conv(8, 9, 16, 3, True, pads=[1, 1, 1, 1], padding=-7),
            integer_conv(40, 12, 24, 3, True, pads=[1, 1, 0, 2], strides=[2, 2], padding=100),
            integer_conv(5, 7, 20, 1, False),
            integer_conv(8, 9, 12, 3, True, pads=[1, 1, 1, 1], groups=2, padding=-128),
            integer_conv(3, 11, 5, 5, False, pads=[2, 2, 2, 2], padding=127),
        ),
    ),
    "matmul": (FLOATS, (product((20, 48), (48, 40)), product((1, 100), (100, 33)), product((3, 20, 33), (3, 33, 17)))),
    "matmul.i8": (("i8",), (product((20, 48), (48, 40)), integers)),
    "grouped_matmul": (FLOATS, (grouped,)),
    "tiling": (("f32",), (tiled,)),
    "norm": (FLOATS, (norm((6, 64)), norm((3, 5, 33)))),
    "softmax": (FLOATS, (lambda b, t: b.softmax(floats(b, "x", t, 6, 50), axis=1),)),
    "pool": (
        (*FLOATS, *INTEGERS),
        (lambda b, t: b.max_pool(b.input("x", (1, 32, 9, 9), t), kernel=[3, 3], strides=[2, 2]),),
    ),
    "reduce": (
        (*FLOATS, *INTEGERS, "bool"),
        (lambda b, t: b.reduce_max(b.input("x", (40, 300), t), axes=(1,)),),
    ),
    "scan": (("i32",), (lambda b, t: b.cumsum(b.input("x", (40, 24), t), axis=0),)),
    "rope": (FLOATS, (rope,)),
    "gather": (("f32",), (lambda b, t: b.gather(floats(b, "x", t, 90, 96), b.input("i", (200,), "i32"), axis=0),)),
    "kv_update": (("f32",), (update,)),
    "movement": (
        ("f32", "i8"),
        (
            lambda b, t: b.concat(b.input("x", (30, 200), t), b.input("y", (30, 131), t), axis=1),
            lambda b, t: b.pad(b.input("x", (33, 100), t), pads=[1, 2, 3, 4]),
        ),
    ),
    "pointwise": (FLOATS, (lambda b, t: b.tanh(floats(b, "x", t, 70, 100) * 2.0 + floats(b, "y", t, 70, 100)),)),
    "finding": (("f32", "f16", "bool"), (finding,)),
    "scalar": (("i64",), (lambda b, t: b.input("x", (3, 5), t) * b.input("y", (3, 5), t),)),
}


def cases() -> Iterator[tuple[str, str, int]]:
    for name, (types, makers) in CASES.items():
        for dtype in types:
            yield from ((name, dtype, n) for n in range(len(makers)))


def graph_of(name: str, dtype: str, number: int) -> Graph:
    b = sk.GraphBuilder(f"{name}_{dtype}")
    b.output(CASES[name][1][number](b, dtype), "z")
    return b.graph()


def precision_of(dtype: str) -> str:
    """The option that keeps an element type as it is."""
    return dtype if dtype in ("bf16", "f16") else "f32"


def inputs_of(types: Mapping[str, TensorType]) -> dict[str, NDArray[Any]]:
    """Inputs of such a graph: indices within range, one hot row."""
    found = random_inputs(types, 0)
    if "hot" in found:
        found["hot"] = np.eye(4, dtype=np.int32)[np.arange(24) % 3]
    return {n: a % 90 if n == "i" else a for n, a in found.items()}


def known_ids() -> set[str]:
    """The ids of the registry's rows; the reference runs on the host."""
    return {row.id for row in AICORE_KERNELS.registry.rows} - {"host.reference"}


def covered_ids() -> set[str]:
    """The ids of the rows that `CASES` claims to cover."""
    here: set[str] = set()
    for name, (types, _) in CASES.items():
        typed = any(i.startswith(f"aicore.{name}/") for i in known_ids())
        here |= {f"aicore.{name}/{t}" for t in types} if typed else {f"aicore.{name}"}
    return here
