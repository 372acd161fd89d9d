"""Models for the accelerator that tests and benchmarks share: residual blocks, branches."""

from __future__ import annotations

import numpy as np

from superkernel.builder import GraphBuilder, Tensor
from superkernel.ir.graph import Graph


def conv(b: GraphBuilder, rng: np.random.Generator, x: Tensor, channels: int, size: int, stride: int = 1) -> Tensor:
    """A convolution with random weights that keeps (or, with a stride, divides) the image's size."""
    shape = (channels, x.shape[1], size, size)
    weight = b.constant(rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:]))))
    pad = size // 2
    return b.conv(x, weight, pads=(pad,) * 4, strides=(stride, stride))


def residual_chain() -> Graph:
    """Two blocks of a residual network: the first halves the image and has a projection."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("residual_chain")
    x = b.relu(conv(b, rng, b.input("image", (1, 16, 16, 16)), 16, 3))
    for channels, stride in ((32, 2), (32, 1)):
        inner = conv(b, rng, b.relu(conv(b, rng, x, channels, 3, stride)), channels, 3)
        x = b.relu(inner + (x if stride == 1 else conv(b, rng, x, channels, 1, stride)))
    b.output(x, name="y")
    return b.graph()


def branching() -> Graph:
    """Four branches of different depth, joined along the channels."""
    rng = np.random.default_rng(1)
    b = GraphBuilder("branching")
    x = b.relu(conv(b, rng, b.input("image", (1, 16, 12, 12)), 32, 3))
    pooled = b.max_pool(x, kernel=(3, 3), pads=(1, 1, 1, 1), strides=(1, 1))
    branches = [
        b.relu(conv(b, rng, x, 16, 1)),
        b.relu(conv(b, rng, b.relu(conv(b, rng, x, 16, 1)), 32, 3)),
        b.relu(conv(b, rng, b.relu(conv(b, rng, b.relu(conv(b, rng, x, 16, 1)), 16, 3)), 16, 3)),
        b.relu(conv(b, rng, pooled, 16, 1)),
    ]
    b.output(b.concat(*branches, axis=1), name="y")
    return b.graph()


def inception() -> Graph:
    """The first module of an Inception network at its full size: 28 x 28 pixels, 192 channels to 256."""
    rng = np.random.default_rng(2)
    b = GraphBuilder("inception")
    x = b.relu(b.input("image", (1, 192, 28, 28)))
    pooled = b.max_pool(x, kernel=(3, 3), pads=(1, 1, 1, 1), strides=(1, 1))
    branches = [
        b.relu(conv(b, rng, x, 64, 1)),
        b.relu(conv(b, rng, b.relu(conv(b, rng, x, 96, 1)), 128, 3)),
        b.relu(conv(b, rng, b.relu(conv(b, rng, x, 16, 1)), 32, 5)),
        b.relu(conv(b, rng, pooled, 32, 1)),
    ]
    b.output(b.concat(*branches, axis=1), name="y")
    return b.graph()


def fork_and_join() -> Graph:
    """A stem, two branches, and what needs both."""
    b = GraphBuilder("fork_and_join")
    stem = b.softmax(b.input("x", (32, 256), "f16"))
    ends = []
    for factor in (2.0, 3.0):
        v = stem
        for _ in range(8):
            v = b.softmax(v * factor)
        ends.append(v)
    b.output(b.softmax((ends[0] + ends[1]).transpose(1, 0)), "y")
    return b.graph()
