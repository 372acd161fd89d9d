"""Decoding with a cache: the keys and values of all positions are states of the kernel, one launch per token.

    python examples/decode.py [TOKENS]

A small decoder with random weights writes TOKENS tokens (24), each the one that the last position finds most likely.
Keys and values stay inside the kernel between launches. What it writes is held against NumPy, which computes each step
with a cache of its own; then it starts again from `reset_states` and must write the same.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import superkernel as sk
from superkernel.builder.tensor import Tensor
from superkernel.reference import evaluate

WIDTH, HEADS, INNER, VOCABULARY, POSITIONS, LAYERS = 128, 4, 352, 512, 64, 2


def decoder(layers: int = LAYERS) -> sk.Graph:
    """Token and position in, logits out."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("decoder")

    def weight(rows: int, columns: int) -> Tensor:
        return b.constant(rng.standard_normal((rows, columns), np.float32) / np.sqrt(np.float32(rows)))

    size = WIDTH // HEADS
    token, position = b.input("token", (1,), "i64"), b.input("position", (1,), "i64")
    angles = np.arange(POSITIONS)[:, None] / 10000.0 ** (np.arange(size // 2) / (size // 2))
    cos, sin = (b.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    x = b.gather(weight(VOCABULARY, WIDTH), token, axis=0)
    for layer in range(layers):
        h = b.rms_norm(x, b.constant(np.ones(WIDTH, np.float32)), epsilon=1e-5)
        q, k, v = ((h @ weight(WIDTH, WIDTH)).reshape(1, 1, HEADS, size).transpose(0, 2, 1, 3) for _ in "qkv")
        q, k = (b.rope(part, cos, sin, position) for part in (q, k))
        kept = []
        for name, new in (("k", k), ("v", v)):
            cache = b.state(f"layer{layer}.{name}", np.zeros((1, HEADS, POSITIONS, size), np.float32))
            full = b.kv_update(cache, new, position)
            b.update(cache, full)
            kept.append(full)
        mixed = b.attention(q, kept[0], kept[1], length=position + 1)
        x = x + mixed.transpose(0, 2, 1, 3).reshape(1, WIDTH) @ weight(WIDTH, WIDTH)
        h = b.rms_norm(x, b.constant(np.ones(WIDTH, np.float32)), epsilon=1e-5)
        x = x + (b.silu(h @ weight(WIDTH, INNER)) * (h @ weight(WIDTH, INNER))) @ weight(INNER, WIDTH)
    b.output(x @ weight(WIDTH, VOCABULARY), "logits")
    return b.graph()


def written(kernel: sk.Kernel, tokens: int) -> list[int]:
    """Tokens from token 1 on."""
    found = [1]
    for position in range(tokens):
        logits = kernel(np.array([found[-1]]), np.array([position]))
        found.append(int(np.argmax(logits)))
    return found


def written_by_numpy(graph: sk.Graph, tokens: int) -> list[int]:
    """The same with the reference, whose cache goes from step to step by hand."""
    states, found = dict(graph.states), [1]
    for position in range(tokens):
        step = {"token": np.array([found[-1]]), "position": np.array([position])}
        values = evaluate(graph, step, states, keep=graph.updates.values())
        states = {name: values[value] for name, value in graph.updates.items()}
        found.append(int(np.argmax(values["logits"])))
    return found


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    graph = decoder()
    kernel = sk.compile(graph)
    first = written(kernel, tokens)
    assert first == written_by_numpy(graph, tokens), "the kernel and NumPy write different tokens"
    kernel.reset_states()
    start = time.perf_counter()
    again = written(kernel, tokens)
    us = 1e6 * (time.perf_counter() - start) / tokens
    assert again == first, "not the same again"
    print(f"{tokens} tokens: {' '.join(map(str, first[1:]))}")
    print(f"{us:.1f} us per token, one launch each; NumPy writes the same, and so does a second run")


if __name__ == "__main__":
    main()
