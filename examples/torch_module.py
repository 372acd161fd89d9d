"""A torch module as ONE kernel: a small decoder with a key-value cache in its buffers, step by step beside torch.

    python examples/torch_module.py [--threads N] [--steps N] [--json]

Needs the `torch` extra. Shows: compiling a module for example inputs, buffers that become the kernel's states, and how
close and how fast the result is. Weights are random: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import superkernel

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    sys.exit("torch is not installed. Run: pip install 'superkernel-compiler[torch]'")

WIDTH, HEADS, SHARED, INNER, LAYERS, ROWS, WORDS = 256, 8, 2, 704, 4, 256, 1000


class Block(nn.Module):
    """Attention of grouped queries over a cache, then a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        depth = WIDTH // HEADS
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, SHARED * depth, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.register_buffer("keys", torch.zeros(1, SHARED, ROWS, depth))
        self.register_buffer("values", torch.zeros(1, SHARED, ROWS, depth))

    def forward(self, x: torch.Tensor, position: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor, count: int) -> torch.Tensor:
            return y.view(1, -1, count, WIDTH // HEADS).transpose(1, 2)

        def turned(y: torch.Tensor) -> torch.Tensor:
            low, high = y.chunk(2, -1)
            return y * cos + torch.cat((-high, low), -1) * sin

        y = self.norm1(x)
        self.keys[:, :, position] = turned(heads(self.k(y), SHARED))
        self.values[:, :, position] = heads(self.v(y), SHARED)
        seen = torch.arange(ROWS)[None, :] <= position[:, None]
        q = turned(heads(self.q(y), HEADS))
        y = functional.scaled_dot_product_attention(q, self.keys, self.values, seen, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(1, -1, WIDTH))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """One token in, the scores of the next one out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        depth = WIDTH // HEADS
        step = 10000.0 ** (-torch.arange(0, depth, 2) / depth)
        angles = torch.outer(torch.arange(ROWS), step).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.words(token)[None]
        cos, sin = self.cos[position], self.sin[position]
        for block in self.blocks:
            x = block(x, position, cos, sin)
        return self.head(self.norm(x))


def decode(step: Callable[[torch.Tensor, torch.Tensor], Any], count: int) -> tuple[list[int], float, Any]:
    """Tokens that follow token 1, microseconds per step (the median), and the last scores."""
    tokens, times, scores = [1], [], None
    for position in range(count):
        token, place = torch.tensor([tokens[-1]]), torch.tensor([position])
        start = time.perf_counter()
        scores = np.asarray(step(token, place))
        times.append(time.perf_counter() - start)
        tokens.append(int(scores[0, -1].argmax()))
    return tokens, float(np.median(times)) * 1e6, scores


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=None, help="worker threads (default: all allowed CPUs)")
    parser.add_argument("--steps", type=int, default=64, help=f"tokens to decode, at most {ROWS} (default 64)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    module = Decoder().eval()

    start = time.perf_counter()
    kernel = superkernel.compile(module, threads=args.threads, example_inputs=(torch.tensor([1]), torch.tensor([0])))
    seconds = time.perf_counter() - start
    ours, ours_us, found = decode(kernel, args.steps)
    torch.set_num_threads(kernel.threads)
    with torch.no_grad():
        theirs, theirs_us, wanted = decode(module, args.steps)
    result = {
        "sub_operators": kernel.summary()["sub_operators"],
        "threads": kernel.threads,
        "compile_seconds": round(seconds, 2),
        "same_tokens": ours == theirs,
        "difference_max": float(np.abs(found - wanted).max()),
        "step_us": round(ours_us, 1),
        "torch_step_us": round(theirs_us, 1),
    }
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name}: {value}" for name, value in result.items()))
    return 0 if result["same_tokens"] and result["difference_max"] < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
