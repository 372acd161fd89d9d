"""Small networks of the shapes of well-known ones, as f32 ONNX files, to be quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx_models import helper, numpy_helper, onnx

Array = NDArray[Any]
NETWORKS = ("mobilenet", "resnet", "attention")
SIZE, CLASSES = 24, 10


class _Net:
    def __init__(self, name: str) -> None:
        self.name, self.rng = name, np.random.default_rng(3)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, *shape: int, scale: float) -> str:
        name = f"c{len(self.constants)}"
        array = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def conv(self, x: str, channels: tuple[int, int], k: int, stride: int = 1, groups: int = 1) -> str:
        depth = channels[0] // groups * k * k
        w = self.constant(channels[1], channels[0] // groups, k, k, scale=(2 / depth) ** 0.5)
        b = self.constant(channels[1], scale=0.1)
        window = {"kernel_shape": [k, k], "strides": [stride, stride], "pads": [k // 2] * 4}
        return self.node("Conv", x, w, b, group=groups, **window)

    def linear(self, x: str, depth: int, width: int) -> str:
        w, b = self.constant(depth, width, scale=depth**-0.5), self.constant(width, scale=0.1)
        return self.node("Add", self.node("MatMul", x, w), b)

    def shaped(self, x: str, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(shape), name))
        return self.node("Reshape", x, name)

    def relu(self, x: str) -> str:
        return self.node("Relu", x)

    def save(self, path: Path, x: str, channels: int) -> None:
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        w, b = self.constant(CLASSES, channels, scale=0.2), self.constant(CLASSES, scale=0.1)
        self.nodes.append(helper.make_node("Gemm", [flat, w, b], ["y"], transB=1))
        ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 3, SIZE, SIZE]), ("y", [1, CLASSES]))]
        graph = helper.make_graph(self.nodes, self.name, ends[:1], ends[1:], self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def save_network(name: str, path: Path, width: int = 16) -> None:
    """MobileNet's: depthwise and 1 x 1 convolutions in turn. ResNet-50's: bottlenecks with residual sums. Attention of
    patches, without norms."""
    net = _Net(name)
    if name == "attention":
        _attention(net, path)
        return
    x = net.relu(net.conv("x", (3, width), 3, 2))
    have = width
    if name == "mobilenet":
        for channels, stride in ((2 * width, 1), (2 * width, 2), (4 * width, 1)):
            x = net.relu(net.conv(x, (have, have), 3, stride, have))
            x, have = net.relu(net.conv(x, (have, channels), 1)), channels
    else:
        x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        for channels, stride in ((width, 1), (2 * width, 2)):
            y = net.relu(net.conv(x, (have, channels // 2), 1))
            y = net.relu(net.conv(y, (channels // 2, channels // 2), 3, stride))
            y = net.conv(y, (channels // 2, channels), 1)
            z = x if (have, stride) == (channels, 1) else net.conv(x, (have, channels), 1, stride)
            x, have = net.relu(net.node("Add", y, z)), channels
    net.save(path, x, have)


def _attention(net: _Net, path: Path) -> None:
    tokens, width, heads, depth = 36, 48, 4, 12
    x = net.node("Transpose", net.shaped("x", 1, width, tokens), perm=[0, 2, 1])
    q, k, v = (net.shaped(net.linear(x, width, width), 1, tokens, heads, depth) for _ in range(3))
    q, v = (net.node("Transpose", side, perm=[0, 2, 1, 3]) for side in (q, v))
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 3, 1]))
    seen = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    seen = net.shaped(net.node("Transpose", seen, perm=[0, 2, 1, 3]), 1, tokens, width)
    x = net.relu(net.node("Add", x, net.linear(seen, width, width)))
    net.save(path, net.shaped(net.node("Transpose", x, perm=[0, 2, 1]), 1, width, 6, 6), width)


def images(count: int, seed: int = 1) -> list[dict[str, Array]]:
    """Samples of the networks' input."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)} for _ in range(count)]
