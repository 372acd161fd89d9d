"""A decoder's step on a simulated accelerator: one fused kernel for 24 cube and 48 vector cores.

    python examples/accelerator.py [TARGET [LAYERS]]

Builds one step of an 8-layer llama-style decoder (width 512, 128 cached positions), compiles it for a target ("a3"
unless told), checks its output against float64, and prints what the simulator counted: fused with minimal
synchronisation, fused with a full barrier between any two sub-operators, and launched one by one.
"""

from __future__ import annotations

import sys

import numpy as np

import superkernel as sk
from superkernel.builder.tensor import Tensor
from superkernel.reference import evaluate

LAYERS, WIDTH, HEADS, INNER, VOCABULARY, POSITIONS = 8, 512, 8, 1408, 1024, 128


def decoder_step(layers: int) -> sk.Graph:
    """Token and position in, logits out; the caches are states that the kernel updates in place."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("decoder step")

    def weight(rows: int, columns: int) -> Tensor:
        return b.constant(rng.standard_normal((rows, columns), np.float32) / np.sqrt(np.float32(rows)))

    size = WIDTH // HEADS
    token, position = b.input("token", (1,), "i64"), b.input("position", (1,), "i64")
    angles = np.arange(POSITIONS)[:, None] / 10000.0 ** (np.arange(size // 2) / (size // 2))
    cos, sin = (b.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    length = position + 1
    x = b.gather(weight(VOCABULARY, WIDTH), token, axis=0)
    for layer in range(layers):
        h = b.rms_norm(x, b.constant(np.ones(WIDTH, np.float32)), epsilon=1e-5)
        q, k, v = ((h @ weight(WIDTH, WIDTH)).reshape(1, 1, HEADS, size).transpose(0, 2, 1, 3) for _ in "qkv")
        q, k = (b.rope(part, cos, sin, position) for part in (q, k))
        caches = []
        for name, new in (("k", k), ("v", v)):
            cache = b.state(f"layer{layer}.{name}", np.zeros((1, HEADS, POSITIONS, size), np.float32))
            full = b.kv_update(cache, new, position)
            b.update(cache, full)
            caches.append(full)
        mixed = b.attention(q, *caches, length=length).transpose(0, 2, 1, 3).reshape(1, WIDTH)  # type: ignore[misc]
        x = x + mixed @ weight(WIDTH, WIDTH)
        h = b.rms_norm(x, b.constant(np.ones(WIDTH, np.float32)), epsilon=1e-5)
        x = x + (b.silu(h @ weight(WIDTH, INNER)) * (h @ weight(WIDTH, INNER))) @ weight(INNER, WIDTH)
    b.output(x @ weight(WIDTH, VOCABULARY), "logits")
    return b.graph()


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "a3"
    graph = decoder_step(int(sys.argv[2]) if len(sys.argv) > 2 else LAYERS)
    inputs = {"token": np.array([3]), "position": np.array([POSITIONS - 1])}
    expected = evaluate(graph, inputs, wide=True)["logits"]

    kernel = sk.compile(graph, target=target)
    logits = kernel.run(inputs).outputs["logits"]
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    print(f"largest difference from float64: {error:.1e} of the largest logit (f16 in memory, sums f32)")
    kernel.reset_states()
    print(kernel.report(inputs))

    naive = sk.compile(graph, target=target, options={"sync": "full", "early_start": False})
    minimal_us, full_us = (k.time(inputs, rounds=1)[0] / 1000 for k in (kernel, naive))
    print(f"fused, without launch: minimal synchronisation {minimal_us:.1f} us, full barriers {full_us:.1f} us")


if __name__ == "__main__":
    main()
