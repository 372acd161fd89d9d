"""Small networks of images, one per habit of real ones: branches, shortcuts, dense connections, gates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from random_graphs import GraphMaker

from superkernel.ir.body import SubOperator
from superkernel.ir.graph import Graph
from superkernel.scheduler.grouping import Grouping

RNG = np.random.default_rng(5)


class Net(GraphMaker):
    """Layers of image networks."""

    def conv(
        self, x: str, channels_in: int, channels: int, size: int = 3, *, stride: int = 1, relu: bool = True
    ) -> str:
        w = RNG.standard_normal((channels, channels_in, size, size)).astype(np.float32) / np.sqrt(channels_in * size**2)
        pads = (size // 2,) * 4
        bias = self.constant((0.1 * RNG.standard_normal(channels)).astype(np.float32))
        y = self.op("conv", x, self.constant(w.astype(np.float32)), bias, pads=pads, strides=(stride, stride))
        return self.op("relu", y) if relu else y

    def scaled(self, x: str, channels: int) -> str:
        """What is left of a batch norm that could not be folded."""
        a, b = (self.constant(RNG.standard_normal((1, channels, 1, 1)).astype(np.float32)) for _ in range(2))
        return self.op("relu", self.op("add", self.op("mul", x, a), b))

    def pool(self, x: str, stride: int = 2) -> str:
        return self.op("max_pool", x, kernel=(3, 3), strides=(stride, stride), pads=(1, 1, 1, 1))

    def head(self, x: str, channels: int) -> str:
        flat = self.op("reshape", self.op("global_avg_pool", x), shape=(-1, channels))
        return self.op("matmul", flat, self.constant(RNG.standard_normal((channels, 5)).astype(np.float32)))


def squeezenet(batch: int = 1) -> Graph:
    n = Net()
    h = n.pool(n.conv(n.input("x", batch, 3, 12, 12), 3, 8, stride=2))
    for _ in range(2):
        squeezed = n.conv(h, 8, 4, 1)
        h = n.op("concat", n.conv(squeezed, 4, 4, 1), n.conv(squeezed, 4, 4, 3), axis=1)
    return n.graph(n.head(h, 8))


def resnet(batch: int = 1) -> Graph:
    n = Net()
    h = n.pool(n.conv(n.input("x", batch, 3, 12, 12), 3, 8, stride=2))
    for stride in (1, 2):
        inner = n.conv(n.conv(h, 8, 8, stride=stride), 8, 8, relu=False)
        short = h if stride == 1 else n.conv(h, 8, 8, 1, stride=2, relu=False)
        h = n.op("relu", n.op("add", inner, short))
    return n.graph(n.head(h, 8))


def densenet(batch: int = 1, *, flat: bool = False) -> Graph:
    """`flat`: every concatenation names all earlier features, not the concatenation before."""
    n = Net()
    h = n.conv(n.input("x", batch, 3, 10, 10), 3, 6)
    for block in range(2):
        features, channels = [h], 6 + 3 * block
        for _ in range(3):
            new = n.conv(n.conv(n.scaled(h, channels), channels, 8, 1), 8, 4, relu=False)
            features, channels = [*features, new], channels + 4
            h = n.op("concat", *(features if flat else (h, new)), axis=1)
        if block == 0:
            h = n.conv(n.scaled(h, channels), channels, 9, 1, relu=False)
            h = n.op("avg_pool", h, kernel=(2, 2), strides=(2, 2))
    return n.graph(n.head(n.scaled(h, channels), channels))


def inception(batch: int = 1) -> Graph:
    n = Net()
    h, channels = n.conv(n.input("x", batch, 3, 9, 9), 3, 6), 6
    for _ in range(2):
        branches = (
            n.conv(h, channels, 4, 1),
            n.conv(n.conv(h, channels, 3, 1), 3, 5),
            n.conv(n.conv(h, channels, 2, 1), 2, 3, 5),
            n.conv(n.pool(h, 1), channels, 2, 1),
        )
        h, channels = n.op("concat", *branches, axis=1), 14
    return n.graph(n.head(h, channels))


def squeeze_excite(batch: int = 1) -> Graph:
    n = Net()
    h = n.conv(n.input("x", batch, 3, 8, 8), 3, 6)
    gate = n.op("sigmoid", n.conv(n.conv(n.op("global_avg_pool", h), 6, 2, 1), 2, 6, 1, relu=False))
    return n.graph(n.head(n.conv(n.op("mul", h, gate), 6, 6), 6))


def audio_encoder(batch: int = 1) -> Graph:
    """Images of one dimension, whose positions become rows."""
    n = Net()
    h, channels = n.input("x", batch, 5, 21), 5
    for stride in (1, 2):
        w = RNG.standard_normal((6, channels, 3)).astype(np.float32) / np.sqrt(channels * 3)
        h = n.op("conv", h, n.constant(w.astype(np.float32)), pads=(1, 1), strides=(stride,))
        h, channels = n.op("relu", h), 6
    rows = n.op("transpose", h, perm=(0, 2, 1))
    return n.graph(n.op("matmul", rows, n.constant(RNG.standard_normal((6, 5)).astype(np.float32))))


NETS: dict[str, Callable[..., Graph]] = {
    "squeezenet": squeezenet,
    "resnet": resnet,
    "densenet": densenet,
    "densenet_flat": lambda batch=1: densenet(batch, flat=True),
    "inception": inception,
    "squeeze_excite": squeeze_excite,
    "audio_encoder": audio_encoder,
}


def copies(grouping: Grouping) -> list[SubOperator]:
    """Sub-operators that only move data."""
    return [s for s in grouping.subops if s.body.op in (None, "concat") and s.body.epilogue.is_store_only]
