"""Models that tests share: the light ONNX models with random weights, an MLP, a small encoder, a decoder step with
caches in states.

All are deterministic in their seed. The light models ship with every weight a constant 0.02, so every channel computes
the same and errors hide; `light_model` gives each weight its own random values, scaled so that activations neither
vanish nor explode.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder, Tensor
from superkernel.ir.graph import Graph

LIGHT_MODELS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def light_model(name: str, seed: int = 0, gain: float = 1.0) -> Any:
    """A light ONNX model as a ModelProto whose generated constants are initialisers with random contents. What goes
    into the last softmax is a second output: softmax hides errors of small and of saturated logits alike. `gain`:
    factor on weights of convolutions and products; below 1, residual networks stay within the range of f16."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test import __file__ as home

    model = onnx.load(str(Path(home).parent / "data" / "light" / f"light_{name}.onnx"))
    graph = model.graph
    rng = np.random.default_rng([seed, LIGHT_MODELS.index(name)])
    shapes = {t.name: tuple(numpy_helper.to_array(t).tolist()) for t in graph.initializer if t.name.endswith("__SHAPE")}
    kinds = _kinds_of_weights(graph)
    kept = []
    weights = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        out = node.output[0]
        kind = kinds.get(out, "weight")
        values = _random(rng, shapes[node.input[0]], kind) * np.float32(gain if kind == "weight" else 1.0)
        weights.append(numpy_helper.from_array(values, out))
    others = [t for t in graph.initializer if t.name not in shapes]
    inputs = [i for i in graph.input if i.name not in shapes]
    last = kept[-1]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept)
    graph.initializer.extend([*others, *weights])
    graph.input.extend(inputs)
    if last.op_type == "Softmax":
        graph.output.append(onnx.helper.make_empty_tensor_value_info(last.input[0]))
    return model


def _kinds_of_weights(graph: Any) -> dict[str, str]:
    """What each generated constant is used as, looking through Unsqueeze."""
    kinds: dict[str, str] = {}
    origin: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Unsqueeze":
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
        for slot, value in enumerate(node.input):
            source = origin.get(value, value)
            if node.op_type == "BatchNormalization" and slot:
                kinds[source] = ("", "scale", "bias", "mean", "variance")[slot]
            elif node.op_type == "Mul":
                kinds[source] = "scale"
            elif node.op_type == "Add" or (node.op_type in ("Conv", "Gemm") and slot == 2):
                kinds[source] = "bias"
    return kinds


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> NDArray[np.float32]:
    if kind == "variance":
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    noise = rng.standard_normal(shape, np.float32)
    if kind == "scale":
        return np.float32(1.0) + np.float32(0.1) * noise
    if kind in ("bias", "mean"):
        return np.float32(0.1) * noise
    fan_in = max(1, int(np.prod(shape[1:])))
    return noise * np.float32(np.sqrt(2.0 / fan_in))


def light_input(model: Any, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random data for the one input of a light model that is no weight."""
    constant = {t.name for t in model.graph.initializer}
    rng = np.random.default_rng(seed)
    found = {}
    for info in model.graph.input:
        if info.name not in constant:
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            found[info.name] = rng.standard_normal(shape, np.float32)
    return found


def _weight(b: GraphBuilder, rng: np.random.Generator, name: str, *shape: int) -> Tensor:
    scale = np.float32(1.0 / np.sqrt(shape[0]))
    return b.constant(rng.standard_normal(shape, np.float32) * scale, name=name)


def mlp(sizes: tuple[int, ...] = (64, 128, 32), batch: int = 1, seed: int = 0) -> Graph:
    """relu(x W + b) layer by layer, no activation behind the last."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("mlp")
    x = b.input("x", (batch, sizes[0]))
    for i, (rows, columns) in enumerate(pairwise(sizes)):
        x = x @ _weight(b, rng, f"w{i}", rows, columns) + _weight(b, rng, f"b{i}", columns)
        if i < len(sizes) - 2:
            x = b.relu(x)
    b.output(x, name="y")
    return b.graph()


def transformer(
    *, layers: int = 2, batch: int = 1, tokens: int = 16, width: int = 64, heads: int = 4, seed: int = 0
) -> Graph:
    """A post-norm encoder with attention and GELU as operators of their own; input [B, S, W], output the same."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("transformer")
    x = b.input("x", (batch, tokens, width))
    for i in range(layers):
        with b.section(f"layer{i}"):
            x = _norm(b, rng, f"l{i}.n1", x + _self_attention(b, rng, f"l{i}", x, heads))
            inner = b.gelu(x @ _weight(b, rng, f"l{i}.up", width, 4 * width) + _weight(b, rng, f"l{i}.bup", 4 * width))
            x = _norm(b, rng, f"l{i}.n2", x + inner @ _weight(b, rng, f"l{i}.down", 4 * width, width))
    b.output(x, name="y")
    return b.graph()


def _norm(b: GraphBuilder, rng: np.random.Generator, name: str, x: Tensor) -> Tensor:
    width = x.shape[-1]
    scale = b.constant(1 + 0.1 * rng.standard_normal(width, np.float32), name=f"{name}.scale")
    return b.layer_norm(x, scale, _weight(b, rng, f"{name}.bias", width), epsilon=1e-5)


def _self_attention(b: GraphBuilder, rng: np.random.Generator, name: str, x: Tensor, heads: int) -> Tensor:
    batch, tokens, width = x.shape
    q, k, v = (
        (x @ _weight(b, rng, f"{name}.{part}", width, width))
        .reshape(batch, tokens, heads, width // heads)
        .transpose(0, 2, 1, 3)
        for part in "qkv"
    )
    mixed = b.attention(q, k, v).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    return mixed @ _weight(b, rng, f"{name}.o", width, width)


def decode_step(
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    inner: int = 128,
    vocabulary: int = 96,
    positions: int = 32,
    seed: int = 0,
) -> Graph:
    """One step of a llama-style decoder: token [1] and position [1] in, logits [1, V] out; key and value caches are
    states."""
    rng = np.random.default_rng(seed)
    size = width // heads
    b = GraphBuilder("decode_step")
    token, position = b.input("token", (1,), "i64"), b.input("position", (1,), "i64")
    angles = np.arange(positions)[:, None] / 10000.0 ** (np.arange(size // 2) / (size // 2))
    cos, sin = (b.constant(f(angles).astype(np.float32), name=n) for f, n in ((np.cos, "cos"), (np.sin, "sin")))
    x = b.gather(_weight(b, rng, "embedding", vocabulary, width), token, axis=0)
    for i in range(layers):
        with b.section(f"layer{i}"):
            h = b.rms_norm(
                x, b.constant(1 + 0.1 * rng.standard_normal(width, np.float32), name=f"l{i}.n1"), epsilon=1e-5
            )
            parts = {}
            for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                flat = h @ _weight(b, rng, f"l{i}.{part}", width, count * size)
                parts[part] = flat.reshape(1, 1, count, size).transpose(0, 2, 1, 3)
            q, k = (b.rope(parts[p], cos, sin, position) for p in "qk")
            caches = []
            for part, new in (("k", k), ("v", parts["v"])):
                cache = b.state(f"l{i}.{part}_cache", np.zeros((1, kv_heads, positions, size), np.float32))
                full = b.kv_update(cache, new, position)
                b.update(cache, full)
                caches.append(full)
            mixed = b.attention(q, caches[0], caches[1], length=position + 1)
            x = x + mixed.transpose(0, 2, 1, 3).reshape(1, width) @ _weight(b, rng, f"l{i}.o", width, width)
            h = b.rms_norm(
                x, b.constant(1 + 0.1 * rng.standard_normal(width, np.float32), name=f"l{i}.n2"), epsilon=1e-5
            )
            gate = b.silu(h @ _weight(b, rng, f"l{i}.gate", width, inner))
            x = x + (gate * (h @ _weight(b, rng, f"l{i}.up", width, inner))) @ _weight(
                b, rng, f"l{i}.down", inner, width
            )
    b.output(x @ _weight(b, rng, "head", width, vocabulary), name="logits")
    return b.graph()


def moe_layer(
    *,
    tokens: int = 32,
    width: int = 256,
    inner: int = 256,
    experts: int = 8,
    top: int = 2,
    gated: bool = True,
    seed: int = 0,
) -> Graph:
    """A mixture-of-experts layer with a residual, [tokens, width] to the same: the router's `top` experts per token,
    rows sorted by expert (stably: by counting), SwiGLU (`gated`) or ReLU experts, weighted sums."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("moe_layer")
    x = b.input("x", (tokens, width))
    rows = tokens * top
    scores, chosen = b.topk(x @ _weight(b, rng, "router", width, experts), k=top)
    weights = b.softmax(scores, axis=-1)
    flags = b.constant(np.array([0, 1], np.int32), name="off_on")
    hot = b.one_hot(chosen.reshape(rows), flags, depth=experts)
    counts = b.reduce_sum(hot, axes=(0,), keepdims=False)
    first = b.cumsum(counts, axis=0) - counts
    place = b.reduce_sum(hot * (b.cumsum(hot, axis=0) + (first - 1)), axes=(1,), keepdims=False)
    owners = b.constant(np.repeat(np.arange(tokens, dtype=np.int32), top), name="owners")
    zeros = b.constant(np.zeros(rows, np.int32), name="nowhere")
    ordered = b.gather(x, b.scatter_elements(zeros, place, owners, axis=0), axis=0)

    def each(name: str, value: Tensor, columns: int) -> Tensor:
        depth = value.shape[-1]
        w = rng.standard_normal((experts, depth, columns), np.float32) / np.float32(np.sqrt(depth))
        return b.grouped_matmul(value, b.constant(w, name=name), counts)

    up = each("up", ordered, inner)
    hidden = b.silu(each("gate", ordered, inner)) * up if gated else b.relu(up)
    back = b.gather(each("down", hidden, width), place, axis=0).reshape(tokens, top, width)
    b.output(x + b.reduce_sum(back * weights.reshape(tokens, top, 1), axes=(1,), keepdims=False), name="y")
    return b.graph()


def ragged_attention(
    *, batch: int = 4, tokens: int = 32, width: int = 128, heads: int = 4, causal: bool = False, seed: int = 0
) -> Graph:
    """Self-attention of a padded batch [batch, tokens, width] whose lengths are computed from a mask of what is there
    [batch, tokens]: no row looks at keys behind its sequence's end."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("ragged_attention")
    x, present = b.input("x", (batch, tokens, width)), b.input("present", (batch, tokens), "i32")
    lengths = b.reduce_sum(present, axes=(1,), keepdims=False)
    q, k, v = (
        (x @ _weight(b, rng, part, width, width)).reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)
        for part in "qkv"
    )
    heads_out = b.attention(q, k, v, length=lengths, causal=causal, ragged=True)
    mixed = heads_out.transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    b.output(x + mixed @ _weight(b, rng, "o", width, width), name="y")
    return b.graph()


def quantised_classifier() -> Graph:
    """Bytes in, three convolutions, a pool, a product and classes: 100 KB of codes."""
    b = GraphBuilder("quantised")
    rng = np.random.default_rng(0)
    step, zero = b.constant(np.array(0.02, np.float32)), b.constant(np.array(128, np.uint8))

    def weights(*shape: int) -> Tensor:
        codes = b.constant(rng.integers(-128, 128, shape, dtype=np.int8))
        return b.dequantize(codes, b.constant(np.array(0.002, np.float32)))

    def again(value: Tensor) -> Tensor:
        return b.dequantize(b.quantize(value, step, zero), step, zero)

    x = b.dequantize(b.input("x", (1, 3, 32, 32), "u8"), step, zero)
    x = again(b.relu(b.conv(x, weights(32, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))))
    x = again(b.relu(b.conv(x, weights(64, 32, 3, 3), pads=(1, 1, 1, 1))))
    x = again(b.relu(b.conv(x, weights(128, 64, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))))
    x = again(b.reshape(b.global_avg_pool(x), shape=(1, 128)))
    b.output(b.matmul(x, weights(128, 10)), "y")
    return b.graph()
